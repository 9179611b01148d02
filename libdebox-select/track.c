/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * When does a descriptor number begin or cease to name a file?
 *
 * The functions of libc that close, replace and create descriptors are defined
 * here: what is registered is forgotten before its number goes, and a number
 * that is new but still registered was closed where nobody saw it. What goes by
 * (system calls of the program's own, io_uring) is found by the full looks of
 * wait.c.
 *
 * The functions are defined under names of our own with the libc name as
 * assembler name, since libc's headers declare some of them with attributes.
 */
#include "internal.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1u << 1)
#endif
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1u << 2)
#endif
#define SCM_PIDFD_ 4

static inline void debox_created(int fd)
{
	if (fd >= 0 && (uint32_t)fd < FD_CAPACITY && descriptor_flags() &&
	    unlikely(SHARED_READ(descriptor_flags()[fd])))
		debox_created_known((uint32_t)fd);
}

/* The same for a socket and the like. */
static inline void debox_created_socket(int fd)
{
	debox_created(fd);
	if (fd >= 0 && (uint32_t)fd < FD_CAPACITY && descriptor_flags() && !debox_thread.vfork_child)
		debox_flag(fd, FD_KNOWN);
}

static inline uint32_t flags_of(int fd)
{
	const uint8_t *flags = descriptor_flags();

	return flags && (uint32_t)fd < FD_CAPACITY ? SHARED_READ(flags[fd]) : 0;
}

enum where {
	HERE,    /* the contexts are this process's */
	FORKED,  /* they are the parent's, in a copy of its memory */
	VFORKED, /* they are the parent's, in its memory */
};

static enum where where(void)
{
	if (debox_thread.vfork_child)
		return VFORKED;
	return debox_process.alive && *debox_process.alive ? HERE : FORKED;
}

/*
 * The program is about to close, or to replace, a number. 1: it does not know
 * of the descriptor there and must not close it.
 */
static __attribute__((noinline)) int goes_known(int fd, int replace)
{
	uint32_t flags = flags_of(fd);

	switch (where()) {
	case VFORKED:
		/* Its descriptors are a copy: closing does no harm to ours. */
		return 0;
	case FORKED:
		/* A copy of the parent's: good riddance. */
		SHARED_WRITE(descriptor_flags()[fd], 0);
		return 0;
	case HERE:
		break;
	}
	if (flags & FD_PRIVATE) {
		if (replace) {
			debox_make_way((uint32_t)fd);
			return 0;
		}
		COUNT(private_protected);
		return 1;
	}
	/* Once off, nothing but what the program itself calls: a filter may kill. */
	if (!debox_process.off)
		debox_forget((uint32_t)fd);
	return 0;
}

static inline int goes(int fd)
{
	return unlikely(flags_of(fd)) ? goes_known(fd, 0) : 0;
}

static inline void replaced(int fd)
{
	if (unlikely(flags_of(fd)))
		goes_known(fd, 1);
}

/* The number is closed, or was not the program's to close. */
static inline void gone(int fd)
{
	if (unlikely(flags_of(fd) & (FD_TRACKED | FD_KNOWN)) && where() == HERE && !debox_process.off)
		debox_forget_closed((uint32_t)fd);
}

#define ENTRY(type, name, params)                                \
	DEBOX_API type debox_entry_##name params __asm__(#name); \
	type debox_entry_##name params

/* ----------------------------------------------------------------- close */

ENTRY(int, close, (int fd))
{
	int r = real()->close(goes(fd) ? -1 : fd);

	gone(fd);
	return r;
}

/* All numbers from first to last but our own. */
static int range_close(unsigned first, unsigned last, int flags)
{
	struct process *p = &debox_process;
	unsigned highest = p->highest_flag, begin = first;
	int r;

	if (!descriptor_flags() || debox_thread.vfork_child || flags & (int)CLOSE_RANGE_CLOEXEC || first > last)
		return real()->close_range(first, last, flags);
	if (flags & (int)CLOSE_RANGE_UNSHARE && debox_process_has_threads())
		debox_process_turn_off(OFF_FILE_TABLE);
	for (unsigned fd = first; fd <= last && fd <= highest; fd++) {
		if (likely(!SHARED_READ(descriptor_flags()[fd])) || !goes_known((int)fd, 0))
			continue;
		if (fd > first) {
			r = real()->close_range(first, fd - 1, flags);
			if (r)
				return r;
		}
		first = fd + 1;
		if (fd == last)
			return 0;
	}
	r = real()->close_range(first, last, flags);
	for (unsigned fd = begin; fd <= last && fd <= highest; fd++)
		gone((int)fd);
	return r;
}

ENTRY(int, close_range, (unsigned first, unsigned last, int flags))
{
	return range_close(first, last, flags);
}

ENTRY(void, closefrom, (int first))
{
	/* libc has its own way where the kernel lacks the call. */
	if (range_close(first < 0 ? 0 : (unsigned)first, ~0u, 0))
		real()->closefrom(first);
}

#define CLOSES(name, type, number_of)      \
	ENTRY(int, name, (type of))        \
	{                                  \
		int fd = number_of(of), r; \
                                           \
		goes(fd);                  \
		r = real()->name(of);      \
		gone(fd);                  \
		return r;                  \
	}
CLOSES(fclose, FILE *, fileno)
CLOSES(pclose, FILE *, fileno)
extern int dirfd(void *);
CLOSES(closedir, void *, dirfd)

#define FREOPEN(name)                                                           \
	ENTRY(FILE *, name, (const char *path, const char *mode, FILE *stream)) \
	{                                                                       \
		FILE *now;                                                      \
                                                                                \
		replaced(fileno(stream));                                       \
		now = real()->name(path, mode, stream);                         \
		if (now)                                                        \
			debox_created(fileno(now));                             \
		return now;                                                     \
	}
FREOPEN(freopen)
FREOPEN(freopen64)

/* --------------------------------------------------------------- replace */

ENTRY(int, dup2, (int from, int to))
{
	int fd;

	replaced(to);
	fd = real()->dup2(from, to);
	debox_created(fd);
	return fd;
}

ENTRY(int, dup3, (int from, int to, int flags))
{
	int fd;

	replaced(to);
	fd = real()->dup3(from, to, flags);
	debox_created(fd);
	return fd;
}

/* ---------------------------------------------------------------- create */

#define CREATES_(name, params, args, noted) \
	ENTRY(int, name, params)            \
	{                                   \
		int fd = real()->name args; \
                                            \
		noted(fd);                  \
		return fd;                  \
	}
#define CREATES(name, params, args) CREATES_(name, params, args, debox_created)
#define CREATES_SOCKET(name, params, args) CREATES_(name, params, args, debox_created_socket)
CREATES_SOCKET(accept, (int fd_, struct sockaddr *a, socklen_t *n), (fd_, a, n))
CREATES_SOCKET(accept4, (int fd_, struct sockaddr *a, socklen_t *n, int flags), (fd_, a, n, flags))
CREATES_SOCKET(socket, (int domain, int type, int protocol), (domain, type, protocol))
CREATES(dup, (int from), (from))
CREATES(eventfd, (unsigned count, int flags), (count, flags))
CREATES(timerfd_create, (int clock, int flags), (clock, flags))
CREATES(signalfd, (int old, const sigset_t *mask, int flags), (old, mask, flags))
CREATES(inotify_init, (void), ())
CREATES(inotify_init1, (int flags), (flags))
CREATES(epoll_create, (int size), (size))
CREATES(epoll_create1, (int flags), (flags))
CREATES(memfd_create, (const char *name, unsigned flags), (name, flags))
CREATES(creat, (const char *path, mode_t mode), (path, mode))
CREATES(creat64, (const char *path, mode_t mode), (path, mode))
CREATES(pidfd_open, (int pid, unsigned flags), (pid, flags))

#define CREATES_TWO(name, params, args, pair)          \
	ENTRY(int, name, params)                       \
	{                                              \
		int r = real()->name args;             \
                                                       \
		if (r == 0) {                          \
			debox_created_socket(pair[0]); \
			debox_created_socket(pair[1]); \
		}                                      \
		return r;                              \
	}
CREATES_TWO(socketpair, (int domain, int type, int protocol, int pair[2]),
	    (domain, type, protocol, pair), pair)
CREATES_TWO(pipe, (int pair[2]), (pair), pair)
CREATES_TWO(pipe2, (int pair[2], int flags), (pair, flags), pair)

/* The mode is there only with flags that create; reading it otherwise does no
 * harm, the registers are there. */
#define OPENS(name)                                          \
	ENTRY(int, name, (const char *path, int flags, ...)) \
	{                                                    \
		va_list ap;                                  \
		mode_t mode;                                 \
		int fd;                                      \
                                                             \
		va_start(ap, flags);                         \
		mode = va_arg(ap, mode_t);                   \
		va_end(ap);                                  \
		fd = real()->name(path, flags, mode);        \
		debox_created(fd);                           \
		return fd;                                   \
	}
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                               \
	ENTRY(int, name, (int at, const char *path, int flags, ...)) \
	{                                                            \
		va_list ap;                                          \
		mode_t mode;                                         \
		int fd;                                              \
                                                                     \
		va_start(ap, flags);                                 \
		mode = va_arg(ap, mode_t);                           \
		va_end(ap);                                          \
		fd = real()->name(at, path, flags, mode);            \
		debox_created(fd);                                   \
		return fd;                                           \
	}
OPENS_AT(openat)
OPENS_AT(openat64)

#define CONTROLS(name)                                        \
	ENTRY(int, name, (int of, int how, ...))              \
	{                                                     \
		va_list ap;                                   \
		void *arg;                                    \
		int r;                                        \
                                                              \
		va_start(ap, how);                            \
		arg = va_arg(ap, void *);                     \
		va_end(ap);                                   \
		r = real()->name(of, how, arg);               \
		if (how == F_DUPFD || how == F_DUPFD_CLOEXEC) \
			debox_created(r);                     \
		return r;                                     \
	}
CONTROLS(fcntl)
CONTROLS(fcntl64)

static void arrived(struct msghdr *message)
{
	struct cmsghdr *c;

	for (c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		const char *data = (const char *)CMSG_DATA(c);

		if (c->cmsg_level != SOL_SOCKET ||
		    (c->cmsg_type != SCM_RIGHTS && c->cmsg_type != SCM_PIDFD_))
			continue;
		for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int)) {
			int fd;

			memcpy(&fd, data + at, sizeof fd);
			debox_created(fd);
		}
	}
}

ENTRY(ssize_t, recvmsg, (int from, struct msghdr *message, int flags))
{
	ssize_t got = real()->recvmsg(from, message, flags);

	if (got >= 0 && message->msg_controllen)
		arrived(message);
	return got;
}

ENTRY(int, recvmmsg, (int from, struct mmsghdr *list, unsigned n, int flags, struct timespec *timeout))
{
	int got = real()->recvmmsg(from, list, n, flags, timeout);

	for (int i = 0; i < got; i++)
		if (list[i].msg_hdr.msg_controllen)
			arrived(&list[i].msg_hdr);
	return got;
}

/* --------------------------------------------- restrictions of the process */

static void restricts(long number, long a, long b)
{
	if ((number == SYS_prctl && a == PR_SET_SECCOMP) ||
	    (number == SYS_seccomp &&
	     (a == SECCOMP_SET_MODE_STRICT || a == SECCOMP_SET_MODE_FILTER)))
		debox_process_turn_off(OFF_SECCOMP);
	else if (number == SYS_unshare && a & CLONE_FILES && debox_process_has_threads())
		debox_process_turn_off(OFF_FILE_TABLE);
	else if ((number == SYS_setrlimit && a == RLIMIT_NOFILE) ||
		 (number == SYS_prlimit64 && b == RLIMIT_NOFILE))
		__atomic_fetch_add(&debox_process.limits, 1, __ATOMIC_SEQ_CST);
}

ENTRY(int, prctl, (int option, long a, long b, long c, long d))
{
	if (unlikely(option == PR_SET_SECCOMP))
		restricts(SYS_prctl, option, 0);
	return real()->prctl(option, a, b, c, d);
}

ENTRY(int, unshare, (int flags))
{
	restricts(SYS_unshare, flags, 0);
	return real()->unshare(flags);
}

#define SETS_LIMIT(name)                                                    \
	DEBOX_API int debox_entry_##name(int, const void *) __asm__(#name); \
	int debox_entry_##name(int resource, const void *limit)             \
	{                                                                   \
		int r = real()->setrlimit(resource, limit);                 \
                                                                            \
		restricts(SYS_setrlimit, resource, 0);                      \
		return r;                                                   \
	}
SETS_LIMIT(setrlimit)
#ifdef __LP64__
SETS_LIMIT(setrlimit64)
#endif

#define PROCESS_LIMIT(name)                                                                \
	DEBOX_API int debox_entry_##name(pid_t, int, const void *, void *) __asm__(#name); \
	int debox_entry_##name(pid_t pid, int resource, const void *limit, void *old)      \
	{                                                                                  \
		int r = real()->prlimit(pid, resource, limit, old);                        \
                                                                                           \
		restricts(SYS_prlimit64, pid, resource);                                   \
		return r;                                                                  \
	}
PROCESS_LIMIT(prlimit)
PROCESS_LIMIT(prlimit64)

/* ------------------------------------------------------------ nested epoll */

/* The kernel allows a few levels of epoll instances in each other. Ours above
 * the program's must not be the one too many. */
ENTRY(int, epoll_ctl, (int of, int how, int fd, struct epoll_event *event))
{
	int r = real()->epoll_ctl(of, how, fd, event);

	if (unlikely(r && how == EPOLL_CTL_ADD && (errno == ELOOP || errno == EINVAL)) &&
	    descriptor_flags() && where() == HERE && !debox_process.off && debox_forget_nested())
		r = real()->epoll_ctl(of, how, fd, event);
	return r;
}

/* ---------------------------------------------------------------- signals */

/* Only noted, for wait.c: a handler may be gone again when its EINTR comes. */
static void caught(void (*handler)(int))
{
	if (handler != SIG_DFL && handler != SIG_IGN)
		SHARED_WRITE(debox_process.catches, 1);
}

typedef void (*handler)(int);

ENTRY(int, sigaction, (int signal, const struct sigaction *action, struct sigaction *old))
{
	if (action)
		caught(action->sa_handler);
	return real()->sigaction(signal, action, old);
}

#define SETS_HANDLER(name, function)                  \
	ENTRY(handler, name, (int signal, handler h)) \
	{                                             \
		caught(h);                            \
		return real()->function(signal, h);   \
	}
SETS_HANDLER(signal, signal)
SETS_HANDLER(bsd_signal, signal)
SETS_HANDLER(ssignal, signal)
SETS_HANDLER(sysv_signal, sysv_signal)
SETS_HANDLER(__sysv_signal, sysv_signal)
SETS_HANDLER(sigset, sigset)

/* -------------------------------------------- children that share something */

static void shares(unsigned long flags)
{
	/* Memory without descriptors, or the reverse: what one does, the other's
	 * contexts do not know. Threads share both. */
	if (flags & CLONE_THREAD ? !(flags & CLONE_FILES) : (flags & (CLONE_VM | CLONE_FILES)) != 0)
		debox_process_turn_off(OFF_FILE_TABLE);
}

ENTRY(int, clone, (int (*run)(void *), void *stack, int flags, void *arg, ...))
{
	void *more[3];
	va_list ap;
	int r;

	va_start(ap, arg);
	for (int i = 0; i < 3; i++)
		more[i] = va_arg(ap, void *);
	va_end(ap);
	if ((flags & (CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_THREAD | CLONE_SETTLS)) ==
	    (CLONE_VM | CLONE_VFORK)) {
		/* Like vfork: this thread stands still until the child is gone. */
		debox_thread.vfork_child++;
		r = real()->clone(run, stack, flags, arg, more[0], more[1], more[2]);
		debox_thread.vfork_child--;
		return r;
	}
	shares((unsigned)flags);
	return real()->clone(run, stack, flags, arg, more[0], more[1], more[2]);
}

#if defined(__x86_64__)

/* Numbers that debox_before_syscall looks at: the assembler below sends only
 * these there. */
uint8_t debox_syscalls_seen[512] __attribute__((visibility("hidden"))) = {
	[SYS_close] = 1,
	[SYS_dup2] = 1,
	[SYS_dup3] = 1,
	[SYS_close_range] = 1,
	[SYS_prctl] = 1,
	[SYS_seccomp] = 1,
	[SYS_unshare] = 1,
	[SYS_setrlimit] = 1,
	[SYS_prlimit64] = 1,
	[SYS_clone] = 1,
	[SYS_clone3] = 1,
	[SYS_vfork] = 1,
	[SYS_rt_sigaction] = 1,
	/* Only to be told: the program asked for the system call itself. */
	[SYS_poll] = 1,
	[SYS_ppoll] = 1,
	[SYS_select] = 1,
	[SYS_pselect6] = 1,
	[SYS_io_uring_setup] = 1,
};
void *debox_real_syscall __attribute__((visibility("hidden")));

/* 1: the call is done, with this result. */
int debox_before_syscall(const long *arg, long *result) __attribute__((visibility("hidden")));
int debox_before_syscall(const long *arg, long *result)
{
	long done;

	debox_real_syscall = (void *)(uintptr_t)real()->syscall;
	switch (arg[0]) {
	case SYS_close:
		done = goes((int)arg[1]) ? -EBADF : sys_call(SYS_close, arg[1]);
		gone((int)arg[1]);
		break;
	case SYS_dup2:
	case SYS_dup3:
		replaced((int)arg[2]);
		done = sys_call(arg[0], arg[1], arg[2], arg[3]);
		debox_created((int)done);
		break;
	case SYS_close_range:
		*result = range_close((unsigned)arg[1], (unsigned)arg[2], (int)arg[3]);
		return 1;
	case SYS_clone:
		shares((unsigned long)arg[1]);
		return 0;
	case SYS_clone3:
		/* Callers try whether there is such a call, with anything. */
		if (arg[2] >= (long)sizeof(uint64_t) &&
		    debox_memory_readable((const void *)arg[1], sizeof(uint64_t)))
			shares(*(const uint64_t *)arg[1]);
		return 0;
	case SYS_rt_sigaction:
		/* The kernel's struct begins with the handler, too. */
		if (arg[2] && debox_memory_readable((const void *)arg[2], sizeof(handler)))
			caught(*(const handler *)arg[2]);
		return 0;
	case SYS_vfork:
		shares(CLONE_VM);
		return 0;
	case SYS_poll:
	case SYS_ppoll:
	case SYS_select:
	case SYS_pselect6:
		COUNT(native_syscall);
		return 0;
	case SYS_io_uring_setup:
		COUNT(io_urings);
		return 0;
	default:
		restricts(arg[0], arg[1], arg[2]);
		return 0;
	}
	*result = done;
	if (sys_failed(done)) {
		errno = (int)-done;
		*result = -1;
	}
	return 1;
}

/*
 * syscall(): looks at the call before, and jumps to libc's function, so that
 * clone and vfork can return twice and seven arguments stay where they are.
 */
__asm__(".text\n"
	".globl syscall\n"
	".type syscall, @function\n"
	"syscall:\n"
	"	.cfi_startproc\n"
	"	cmpq $512, %rdi\n"
	"	jae 1f\n"
	"	leaq debox_syscalls_seen(%rip), %rax\n"
	"	cmpb $0, (%rax,%rdi)\n"
	"	jne 2f\n"
	"1:	movq debox_real_syscall(%rip), %rax\n"
	"	testq %rax, %rax\n"
	"	jz 2f\n"
	"	jmp *%rax\n"
	"2:	subq $72, %rsp\n"
	"	.cfi_adjust_cfa_offset 72\n"
	"	movq %rdi, 0(%rsp)\n"
	"	movq %rsi, 8(%rsp)\n"
	"	movq %rdx, 16(%rsp)\n"
	"	movq %rcx, 24(%rsp)\n"
	"	movq %r8, 32(%rsp)\n"
	"	movq %r9, 40(%rsp)\n"
	"	movq %rsp, %rdi\n"
	"	leaq 48(%rsp), %rsi\n"
	"	call debox_before_syscall\n"
	"	testl %eax, %eax\n"
	"	movq 48(%rsp), %rax\n"
	"	movq 0(%rsp), %rdi\n"
	"	movq 8(%rsp), %rsi\n"
	"	movq 16(%rsp), %rdx\n"
	"	movq 24(%rsp), %rcx\n"
	"	movq 32(%rsp), %r8\n"
	"	movq 40(%rsp), %r9\n"
	"	leaq 72(%rsp), %rsp\n"
	"	.cfi_adjust_cfa_offset -72\n"
	"	jnz 3f\n"
	"	jmp *debox_real_syscall(%rip)\n"
	"3:	ret\n"
	"	.cfi_endproc\n"
	".size syscall, . - syscall\n");

int debox_vfork_failed(int error) __attribute__((visibility("hidden")));
int debox_vfork_failed(int error)
{
	errno = error;
	return -1;
}

/* For the assembler: where thread.vfork_child is counted. */
void debox_vfork_count(int by) __attribute__((visibility("hidden")));
void debox_vfork_count(int by)
{
	debox_thread.vfork_child += (uint32_t)by;
}

/*
 * vfork(): the child runs on this thread's memory with descriptors of its own.
 * While it does, the thread is marked. The return address is kept in a register
 * across the call, since the child overwrites the stack below its caller.
 */
__asm__(".text\n"
	".globl vfork\n"
	".type vfork, @function\n"
	"vfork:\n"
	"	.cfi_startproc\n"
	"	subq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	movl $1, %edi\n"
	"	call debox_vfork_count\n"
	"	addq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rdx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	.cfi_register %rip, %rdx\n"
	"	movl $58, %eax\n"
	"	syscall\n"
	"	pushq %rdx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %rip, 0\n"
	"	testl %eax, %eax\n"
	"	jz 1f\n"
	/* The parent, after the child. */
	"	pushq %rax\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	movl $-1, %edi\n"
	"	call debox_vfork_count\n"
	"	popq %rax\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	cmpl $-4095, %eax\n"
	"	jae 2f\n"
	"1:	ret\n"
	"2:	movl %eax, %edi\n"
	"	negl %edi\n"
	"	jmp debox_vfork_failed\n"
	"	.cfi_endproc\n"
	".size vfork, . - vfork\n"
	".globl __vfork\n"
	".set __vfork, vfork\n");
#else
#warning "libdebox-select: syscall() and vfork() are not followed on this machine"
#endif
