/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does every libc system call of a program get a record, without a change
 * to the program?
 *
 * This library defines libc's wrappers of the system calls anew: each opens a
 * call, runs libc's own function (found with dlsym(RTLD_NEXT), so that errno,
 * cancellation and signal masks stay libc's business), and closes it. Only
 * what a program calls through these names is seen. What libc calls inside
 * itself (stdio's writes, posix_spawn's child, pthread_mutex_lock's futex) is
 * not: no symbol is looked up for that.
 *
 * The functions are defined under names of our own with the libc name as
 * assembler name: libc's headers declare some of them with transparent unions
 * and attributes that no other definition could match.
 */
#include "collect.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../libdebox/sys.h"

#if !defined(__x86_64__)
#error "libdebox-wrap: the table of calls and two assembler stubs are for x86-64; use brackets (DEBOX_CALL) on this machine"
#endif

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1u << 2)
#endif

/* What stands in for a function that this libc does not have. */
static long absent(void)
{
	errno = ENOSYS;
	return -1;
}

static void *resolve(const char *name)
{
	void *p = dlsym(RTLD_NEXT, name);

	return p ? p : (void *)(uintptr_t)absent;
}

/* Whether to keep out of the way of a call; see collect.h. */
static __attribute__((noinline)) int is_restricted(void)
{
	const struct debox_hot_ *h = debox_self_v1_;

	return (debox_restricted_ & DEBOX_RESTRICTED_STAMPS_) || !h || !h->live;
}

static inline __attribute__((always_inline)) void wrap_begin(struct debox_frame *f, int nr,
							     uint64_t call_site)
{
	if (__builtin_expect(debox_restricted_, 0) && is_restricted()) {
		f->hot_ = NULL;
		return;
	}
	debox_begin_(f, nr, call_site, (uintptr_t)f, DEBOX_FRAME_WRAPPER_);
	if (__builtin_expect(debox_collecting_ && !f->hot_, 0))
		debox_collect_adopted_(f);
}

static inline __attribute__((always_inline)) void wrap_end(struct debox_frame *f, int nr,
							   uint64_t call_site, int64_t ret)
{
	if (__builtin_expect(debox_restricted_, 0) && !f->hot_)
		return;
	debox_end_(f, ret);
	if (debox_collecting_)
		debox_collect_count_(f, nr, call_site, ret);
}

#define CALLER() ((uint64_t)(uintptr_t)__builtin_return_address(0))

/* libc's results as the kernel's. */
#define RAW_CALL(v) debox_raw_result((long)(v))
#define RAW_ERRN(v) (-(long)(v))
#define RAW_PLAIN(v) ((long)(v))

/* `at_once`: what may end the function before libc's is looked up and called. */
/* clang-format off */
#define WRAP_UNLESS(at_once, type, name, nr, raw, params, args)                   \
	static type(*real_##name) params;                                         \
	DEBOX_API type wrap_##name params __asm__(#name);                         \
	type wrap_##name params                                                   \
	{                                                                         \
		struct debox_frame f;                                             \
		uint64_t site = CALLER();                                         \
		type value;                                                       \
                                                                                  \
		at_once                                                           \
		if (__builtin_expect(!real_##name, 0))                            \
			real_##name = (type(*) params)(uintptr_t)resolve(#name);  \
		wrap_begin(&f, nr, site);                                         \
		value = real_##name args;                                         \
		wrap_end(&f, nr, site, raw(value));                               \
		return value;                                                     \
	}
/* clang-format on */
#define WRAP(type, name, nr, raw, params, args) WRAP_UNLESS(, type, name, nr, raw, params, args)

/*
 * Every function that is returned from after a system call is mispredicted (the
 * kernel empties the return stack buffer on its way): 8 ns, and more in a real
 * server. So where libc's function is nothing but the call, the call is made
 * here. That is so while the process has one thread (with more, the function
 * is a cancellation point), has cancelled nothing, and no other interposer
 * stands between us and libc; `pure` then points at libc's own word on it.
 */
static const char impure;
static const char *pure = &impure;
extern char __libc_single_threaded __attribute__((weak)); /* glibc 2.32 */

static inline __attribute__((always_inline)) long libc_result(long raw)
{
	if (__builtin_expect(sys_failed(raw), 0)) {
		errno = (int)-raw;
		return -1;
	}
	return raw;
}

#define WRAP_PURE(type, name, nr, params, args, call)     \
	WRAP_UNLESS(                                      \
		if (__builtin_expect(*pure, 1)) {         \
			long result;                      \
                                                          \
			wrap_begin(&f, nr, site);         \
			result = call;                    \
			wrap_end(&f, nr, site, result);   \
			return (type)libc_result(result); \
		},                                        \
		type, name, nr, RAW_CALL, params, args)

#define P0(t, n, nr) WRAP_PURE(t, n, nr, (void), (), sys_call(nr))
#define P1(t, n, nr, ta, a) WRAP_PURE(t, n, nr, (ta a), (a), sys_call(nr, a))
#define P2(t, n, nr, ta, a, tb, b) WRAP_PURE(t, n, nr, (ta a, tb b), (a, b), sys_call(nr, a, b))
#define P3(t, n, nr, ta, a, tb, b, tc, c) \
	WRAP_PURE(t, n, nr, (ta a, tb b, tc c), (a, b, c), sys_call(nr, a, b, c))
#define P4(t, n, nr, ta, a, tb, b, tc, c, td, d) \
	WRAP_PURE(t, n, nr, (ta a, tb b, tc c, td d), (a, b, c, d), sys_call(nr, a, b, c, d))
#define P5(t, n, nr, ta, a, tb, b, tc, c, td, d, te, e)                      \
	WRAP_PURE(t, n, nr, (ta a, tb b, tc c, td d, te e), (a, b, c, d, e), \
		  sys_call(nr, a, b, c, d, e))
#define P6(t, n, nr, ta, a, tb, b, tc, c, td, d, te, e, tg, g)                        \
	WRAP_PURE(t, n, nr, (ta a, tb b, tc c, td d, te e, tg g), (a, b, c, d, e, g), \
		  sys_call(nr, a, b, c, d, e, g))

#define W0(raw, t, n, nr) WRAP(t, n, nr, raw, (void), ())
#define W1(raw, t, n, nr, ta, a) WRAP(t, n, nr, raw, (ta a), (a))
#define W2(raw, t, n, nr, ta, a, tb, b) WRAP(t, n, nr, raw, (ta a, tb b), (a, b))
#define W3(raw, t, n, nr, ta, a, tb, b, tc, c) \
	WRAP(t, n, nr, raw, (ta a, tb b, tc c), (a, b, c))
#define W4(raw, t, n, nr, ta, a, tb, b, tc, c, td, d) \
	WRAP(t, n, nr, raw, (ta a, tb b, tc c, td d), (a, b, c, d))
#define W5(raw, t, n, nr, ta, a, tb, b, tc, c, td, d, te, e) \
	WRAP(t, n, nr, raw, (ta a, tb b, tc c, td d, te e), (a, b, c, d, e))
#define W6(raw, t, n, nr, ta, a, tb, b, tc, c, td, d, te, e, tg, g) \
	WRAP(t, n, nr, raw, (ta a, tb b, tc c, td d, te e, tg g), (a, b, c, d, e, g))
#define W7(raw, t, n, nr, ta, a, tb, b, tc, c, td, d, te, e, tg, g, th, h) \
	WRAP(t, n, nr, raw, (ta a, tb b, tc c, td d, te e, tg g, th h), (a, b, c, d, e, g, h))

#define CALL0(...) W0(RAW_CALL, __VA_ARGS__)
#define CALL1(...) W1(RAW_CALL, __VA_ARGS__)
#define CALL2(...) W2(RAW_CALL, __VA_ARGS__)
#define CALL3(...) W3(RAW_CALL, __VA_ARGS__)
#define CALL4(...) W4(RAW_CALL, __VA_ARGS__)
#define CALL5(...) W5(RAW_CALL, __VA_ARGS__)
#define CALL6(...) W6(RAW_CALL, __VA_ARGS__)
#define CALL7(...) W7(RAW_CALL, __VA_ARGS__)
#define PTR6(...) W6(RAW_CALL, __VA_ARGS__)
#define ERRN2(...) W2(RAW_ERRN, __VA_ARGS__)
#define ERRN3(...) W3(RAW_ERRN, __VA_ARGS__)
#define ERRN4(...) W4(RAW_ERRN, __VA_ARGS__)
#define PLAIN1(...) W1(RAW_PLAIN, __VA_ARGS__)
#define PURE0 P0
#define PURE1 P1
#define PURE2 P2
#define PURE3 P3
#define PURE4 P4
#define PURE5 P5
#define PURE6 P6
#include "calls.def"
#undef CALL0
#undef CALL1
#undef CALL2
#undef CALL3
#undef CALL4
#undef CALL5
#undef CALL6
#undef CALL7
#undef PTR6
#undef ERRN2
#undef ERRN3
#undef ERRN4
#undef PLAIN1
#undef PURE0
#undef PURE1
#undef PURE2
#undef PURE3
#undef PURE4
#undef PURE5
#undef PURE6

/* ------------------------------------------------------ variable arguments */

/* mode is there only with flags that create; reading it otherwise would be
 * harmless here, but it is not passed on. */
static int mode_follows(int flags)
{
	return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

/* `params` of the function, and those of them that stand before the flags. */
#define WRAP_OPENS(name, params, ...)                                \
	static int(*real_##name) params;                             \
	DEBOX_API int wrap_##name params __asm__(#name);             \
	int wrap_##name params                                       \
	{                                                            \
		struct debox_frame f;                                \
		uint64_t site = CALLER();                            \
		mode_t mode = 0;                                     \
		int value;                                           \
                                                                     \
		if (mode_follows(flags)) {                           \
			va_list ap;                                  \
			va_start(ap, flags);                         \
			mode = va_arg(ap, mode_t);                   \
			va_end(ap);                                  \
		}                                                    \
		if (__builtin_expect(!real_##name, 0))               \
			real_##name = (int(*) params)resolve(#name); \
		wrap_begin(&f, SYS_openat, site);                    \
		value = real_##name(__VA_ARGS__, flags, mode);       \
		wrap_end(&f, SYS_openat, site, RAW_CALL(value));     \
		return value;                                        \
	}
WRAP_OPENS(open, (const char *path, int flags, ...), path)
WRAP_OPENS(open64, (const char *path, int flags, ...), path)
WRAP_OPENS(openat, (int dir, const char *path, int flags, ...), dir, path)
WRAP_OPENS(openat64, (int dir, const char *path, int flags, ...), dir, path)

/* One argument more, of any type: the registers carry it either way. */
#define WRAP_CONTROL(name, nr, cmd_type)                                           \
	static int (*real_##name)(int, cmd_type, ...);                             \
	DEBOX_API int wrap_##name(int fd, cmd_type cmd, ...) __asm__(#name);       \
	int wrap_##name(int fd, cmd_type cmd, ...)                                 \
	{                                                                          \
		struct debox_frame f;                                              \
		uint64_t site = CALLER();                                          \
		va_list ap;                                                        \
		void *arg;                                                         \
		int value;                                                         \
                                                                                   \
		va_start(ap, cmd);                                                 \
		arg = va_arg(ap, void *);                                          \
		va_end(ap);                                                        \
		if (__builtin_expect(!real_##name, 0))                             \
			real_##name = (int (*)(int, cmd_type, ...))resolve(#name); \
		wrap_begin(&f, nr, site);                                          \
		value = real_##name(fd, cmd, arg);                                 \
		wrap_end(&f, nr, site, RAW_CALL(value));                           \
		return value;                                                      \
	}
WRAP_CONTROL(fcntl, SYS_fcntl, int)
WRAP_CONTROL(fcntl64, SYS_fcntl, int)
WRAP_CONTROL(ioctl, SYS_ioctl, unsigned long)

static void *(*real_mremap)(void *, size_t, size_t, int, ...);
DEBOX_API void *wrap_mremap(void *, size_t, size_t, int, ...) __asm__("mremap");
void *wrap_mremap(void *at, size_t old, size_t size, int flags, ...)
{
	struct debox_frame f;
	uint64_t site = CALLER();
	va_list ap;
	void *to, *value;

	va_start(ap, flags);
	to = va_arg(ap, void *);
	va_end(ap);
	if (__builtin_expect(!real_mremap, 0))
		real_mremap = (void *(*)(void *, size_t, size_t, int, ...))resolve("mremap");
	wrap_begin(&f, SYS_mremap, site);
	value = real_mremap(at, old, size, flags, to);
	wrap_end(&f, SYS_mremap, site, RAW_CALL(value));
	return value;
}

/* ------------------------------------------------- our own descriptors */

/*
 * libdebox and the collector's connection hold one descriptor each that the
 * program does not know of. Programs that close or overwrite descriptors
 * which they never opened find what they would find without us: nothing.
 */
static int is_ours(int fd)
{
	return fd >= 0 && (fd == debox_private_fd() || fd == debox_collect_fd_());
}

/* Out of the way of a dup2 to its number. */
static void make_way(int fd)
{
	long moved;

	if (!is_ours(fd))
		return;
	moved = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, fd + 1);
	if (sys_failed(moved))
		moved = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
	if (sys_failed(moved))
		return;
	if (fd == debox_private_fd())
		debox_private_fd_moved((int)moved);
	else
		debox_collect_fd_moved_((int)moved);
}

static int (*real_close)(int);
DEBOX_API int wrap_close(int) __asm__("close");
int wrap_close(int fd)
{
	struct debox_frame f;
	uint64_t site = CALLER();
	int value;

	if (__builtin_expect(!real_close, 0))
		real_close = (int (*)(int))resolve("close");
	wrap_begin(&f, SYS_close, site);
	value = real_close(__builtin_expect(is_ours(fd), 0) ? -1 : fd);
	wrap_end(&f, SYS_close, site, RAW_CALL(value));
	return value;
}

static int (*real_close_range)(unsigned, unsigned, int);

static int close_range_around(unsigned first, unsigned last, int flags)
{
	unsigned hole[2], n = 0;
	int fds[2] = { debox_private_fd(), debox_collect_fd_() };

	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0 && (unsigned)fds[i] >= first && (unsigned)fds[i] <= last)
			hole[n++] = (unsigned)fds[i];
	if (n == 2 && hole[0] > hole[1]) {
		unsigned h = hole[0];

		hole[0] = hole[1];
		hole[1] = h;
	}
	/* Ours are close-on-exec anyway. */
	if ((unsigned)flags & CLOSE_RANGE_CLOEXEC)
		n = 0;
	for (unsigned i = 0; i < n; i++) {
		if (hole[i] > first) {
			int r = real_close_range(first, hole[i] - 1, flags);

			if (r)
				return r;
		}
		first = hole[i] + 1;
		if (hole[i] == last)
			return 0;
	}
	return real_close_range(first, last, flags);
}

DEBOX_API int wrap_close_range(unsigned, unsigned, int) __asm__("close_range");
int wrap_close_range(unsigned first, unsigned last, int flags)
{
	struct debox_frame f;
	uint64_t site = CALLER();
	int value;

	if (__builtin_expect(!real_close_range, 0))
		real_close_range = (int (*)(unsigned, unsigned, int))resolve("close_range");
	wrap_begin(&f, SYS_close_range, site);
	value = close_range_around(first, last, flags);
	wrap_end(&f, SYS_close_range, site, RAW_CALL(value));
	return value;
}

static void (*real_closefrom)(int);
DEBOX_API void wrap_closefrom(int) __asm__("closefrom");
void wrap_closefrom(int first)
{
	struct debox_frame f;
	uint64_t site = CALLER();

	if (__builtin_expect(!real_closefrom, 0))
		real_closefrom = (void (*)(int))resolve("closefrom");
	if (__builtin_expect(!real_close_range, 0))
		real_close_range = (int (*)(unsigned, unsigned, int))resolve("close_range");
	wrap_begin(&f, SYS_close_range, site);
	/* libc's own way without close_range(2) ends here too, if it must. */
	if (close_range_around(first < 0 ? 0 : (unsigned)first, ~0u, 0))
		real_closefrom(first);
	wrap_end(&f, SYS_close_range, site, 0);
}

static int (*real_dup2)(int, int);
DEBOX_API int wrap_dup2(int, int) __asm__("dup2");
int wrap_dup2(int from, int to)
{
	struct debox_frame f;
	uint64_t site = CALLER();
	int value;

	if (__builtin_expect(!real_dup2, 0))
		real_dup2 = (int (*)(int, int))resolve("dup2");
	make_way(to);
	wrap_begin(&f, SYS_dup2, site);
	value = real_dup2(from, to);
	wrap_end(&f, SYS_dup2, site, RAW_CALL(value));
	return value;
}

static int (*real_dup3)(int, int, int);
DEBOX_API int wrap_dup3(int, int, int) __asm__("dup3");
int wrap_dup3(int from, int to, int flags)
{
	struct debox_frame f;
	uint64_t site = CALLER();
	int value;

	if (__builtin_expect(!real_dup3, 0))
		real_dup3 = (int (*)(int, int, int))resolve("dup3");
	make_way(to);
	wrap_begin(&f, SYS_dup3, site);
	value = real_dup3(from, to, flags);
	wrap_end(&f, SYS_dup3, site, RAW_CALL(value));
	return value;
}

/* ------------------------------------------------ prctl, syscall, vfork */

/* What a system call takes away from us if it succeeds. */
static inline uint32_t restriction(long nr, long a, long b)
{
	if (__builtin_expect(nr != SYS_prctl && nr != SYS_seccomp, 1))
		return 0;
	if (nr == SYS_prctl && a == PR_SET_TSC)
		return b == PR_TSC_SIGSEGV ? DEBOX_RESTRICTED_STAMPS_ : 0;
	if (nr == SYS_prctl && a == PR_SET_SECCOMP)
		return b == SECCOMP_MODE_STRICT ? DEBOX_RESTRICTED_STAMPS_ : DEBOX_RESTRICTED_FILTER_;
	if (nr == SYS_seccomp && a == SECCOMP_SET_MODE_STRICT)
		return DEBOX_RESTRICTED_STAMPS_;
	return nr == SYS_seccomp && a == SECCOMP_SET_MODE_FILTER ? DEBOX_RESTRICTED_FILTER_ : 0;
}

/* Five registers, whatever the caller passed. The call that restricts is not
 * counted: its end could not be stamped. */
static int (*real_prctl)(int, long, long, long, long);
DEBOX_API int wrap_prctl(int, long, long, long, long) __asm__("prctl");
int wrap_prctl(int option, long a, long b, long c, long d)
{
	struct debox_frame f;
	uint64_t site = CALLER();
	uint32_t what = restriction(SYS_prctl, option, a);
	int value;

	if (__builtin_expect(!real_prctl, 0))
		real_prctl = (int (*)(int, long, long, long, long))resolve("prctl");
	if (__builtin_expect(what, 0)) {
		uint32_t before = debox_collect_restrict_(what);

		value = real_prctl(option, a, b, c, d);
		if (value < 0)
			debox_restricted_ = before;
		return value;
	}
	wrap_begin(&f, SYS_prctl, site);
	value = real_prctl(option, a, b, c, d);
	wrap_end(&f, SYS_prctl, site, RAW_CALL(value));
	return value;
}

HIDDEN long (*debox_real_syscall_)(long, ...);

/* All six registers are passed on: a call ignores those it does not have. */
HIDDEN long debox_wrap_syscall_(long nr, long a, long b, long c, long d, long e, long g,
				uint64_t site);
long debox_wrap_syscall_(long nr, long a, long b, long c, long d, long e, long g, uint64_t site)
{
	struct debox_frame f;
	uint32_t what = restriction(nr, a, b);
	long value;

	if (__builtin_expect(what, 0)) {
		uint32_t before = debox_collect_restrict_(what);

		value = debox_real_syscall_(nr, a, b, c, d, e, g);
		if (value < 0)
			debox_restricted_ = before;
		return value;
	}
	wrap_begin(&f, (int)nr, site);
	value = debox_real_syscall_(nr, a, b, c, d, e, g);
	wrap_end(&f, (int)nr, site, RAW_CALL(value));
	return value;
}

HIDDEN void debox_resolve_syscall_(void);
void debox_resolve_syscall_(void)
{
	debox_real_syscall_ = (long (*)(long, ...))resolve("syscall");
}

/*
 * syscall(): clone, clone3 and vfork return twice, perhaps on another stack,
 * and rt_sigreturn not at all: these jump straight to libc's function, without
 * a frame of ours. Others push the call site behind the seventh argument.
 */
__asm__(".text\n"
	".globl syscall\n"
	".type syscall, @function\n"
	"syscall:\n"
	"	.cfi_startproc\n"
	"	movq debox_real_syscall_(%rip), %r11\n"
	"	testq %r11, %r11\n"
	"	jz 3f\n"
	"1:	cmpq $56, %rdi\n"
	"	je 2f\n"
	"	cmpq $435, %rdi\n"
	"	je 2f\n"
	"	cmpq $58, %rdi\n"
	"	je 2f\n"
	"	cmpq $15, %rdi\n"
	"	je 2f\n"
	/* (rsp): return address, 8(rsp): 7th argument. */
	"	movq 8(%rsp), %rax\n"
	"	movq (%rsp), %r10\n"
	"	subq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %r10\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %rax\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call debox_wrap_syscall_\n"
	"	addq $24, %rsp\n"
	"	.cfi_adjust_cfa_offset -24\n"
	"	ret\n"
	"2:	jmp *%r11\n"
	"3:	pushq %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %rdx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %rcx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %r8\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %r9\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	subq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call debox_resolve_syscall_\n"
	"	addq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r9\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r8\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rcx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rdx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	movq debox_real_syscall_(%rip), %r11\n"
	"	jmp 1b\n"
	"	.cfi_endproc\n"
	".size syscall, . - syscall\n");

/*
 * vfork(): the child runs on this thread's memory, stack and thread pointer
 * until it execs or exits; its calls must leave the thread's state alone. The
 * return address and the cookie are kept in registers across the call, since
 * the child overwrites the stack below its caller.
 */
__asm__(".text\n"
	".globl vfork\n"
	".type vfork, @function\n"
	"vfork:\n"
	"	.cfi_startproc\n"
	"	subq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call debox_private_vfork_enter@PLT\n"
	"	addq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	movq %rax, %rsi\n"
	"	popq %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	.cfi_register %rip, %rdi\n"
	"	movl $58, %eax\n"
	"	syscall\n"
	"	pushq %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_offset %rip, -8\n"
	"	testq %rax, %rax\n"
	"	jz 1f\n"
	"	pushq %rax\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	movq %rsi, %rdi\n"
	"	call debox_private_vfork_leave@PLT\n"
	"	popq %rax\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	testq %rax, %rax\n"
	"	js 2f\n"
	"1:	ret\n"
	"2:	negl %eax\n"
	"	pushq %rax\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call __errno_location@PLT\n"
	"	popq %rcx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	movl %ecx, (%rax)\n"
	"	movq $-1, %rax\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size vfork, . - vfork\n");

/* ---------------------------------------------------------------- loading */

#define NAMED(type, name, ...) { #name, (void **)(void *)&real_##name, 0 },
#define PURE(type, name, ...) { #name, (void **)(void *)&real_##name, 1 },
#define CALL0 NAMED
#define CALL1 NAMED
#define CALL2 NAMED
#define CALL3 NAMED
#define CALL4 NAMED
#define CALL5 NAMED
#define CALL6 NAMED
#define CALL7 NAMED
#define PTR6 NAMED
#define ERRN2 NAMED
#define ERRN3 NAMED
#define ERRN4 NAMED
#define PLAIN1 NAMED
#define PURE0 PURE
#define PURE1 PURE
#define PURE2 PURE
#define PURE3 PURE
#define PURE4 PURE
#define PURE5 PURE
#define PURE6 PURE
static const struct {
	const char *name;
	void **real;
	int pure;
} table[] = {
#include "calls.def"
	NAMED(int, open) NAMED(int, open64) NAMED(int, openat) NAMED(int, openat64)
		NAMED(int, fcntl) NAMED(int, fcntl64) NAMED(int, ioctl) NAMED(void *, mremap)
			NAMED(int, close) NAMED(int, close_range) NAMED(void, closefrom)
				NAMED(int, dup2) NAMED(int, dup3) NAMED(int, prctl)
};

/* Each process that starts asks this thirty times: dladdr looks through all of
 * libc's symbols for a name, some 20 us. */
static int in_libc(void *function, const Dl_info *libc)
{
#if __GLIBC_PREREQ(2, 35)
	struct dl_find_object found;

	return _dl_find_object(function, &found) == 0 && found.dlfo_map_start == libc->dli_fbase;
#else
	Dl_info here;

	return dladdr(function, &here) && here.dli_fbase == libc->dli_fbase;
#endif
}

/* Are all of these libc's own, and does libc say how many threads there are? */
static void pure_decide(void)
{
	Dl_info libc;

	if (!&__libc_single_threaded || !dladdr(&__libc_single_threaded, &libc))
		return;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (table[i].pure && !in_libc(*table[i].real, &libc))
			return;
	pure = &__libc_single_threaded;
}

/* A thread may cancel itself, also when it is the only one; from then on libc's
 * functions have more to do. */
static int (*real_pthread_cancel)(pthread_t);
DEBOX_API int wrap_pthread_cancel(pthread_t) __asm__("pthread_cancel");
int wrap_pthread_cancel(pthread_t thread)
{
	pure = &impure;
	if (!real_pthread_cancel)
		real_pthread_cancel = (int (*)(pthread_t))resolve("pthread_cancel");
	return real_pthread_cancel(thread);
}

/* All at once, early: dlsym may not be used in a signal handler, nor in the
 * child of vfork. */
__attribute__((constructor)) static void loaded(void)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!*table[i].real)
			*table[i].real = resolve(table[i].name);
	real_pthread_cancel = (int (*)(pthread_t))resolve("pthread_cancel");
	pure_decide();
	if (!debox_real_syscall_)
		debox_resolve_syscall_();
	debox_collect_start_();
}
