/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does wrap capture add to the cheapest call, getpid(), and to a common
 * one, pread() of 4096 cached bytes?
 *
 * For a process into which libdebox-wrap.so was preloaded: its own getpid() and
 * pread() are the interposed ones, the bare ones are libc's by address.
 */
#include <debox.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static pid_t (*libc_getpid)(void);
static uid_t (*libc_getuid)(void);
static ssize_t (*libc_pread)(int, void *, size_t, off_t);
static int file;
static char block[4096];
static volatile uint64_t sink;

/* Without libc: no function returns after the call, and there is none whose
 * return the processor mispredicts because the kernel cleared its stack. */
static inline long instruction(void)
{
#if defined(__x86_64__)
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(SYS_getpid)
			 : "rcx", "r11", "memory");
	return ret;
#else
	return syscall(SYS_getpid);
#endif
}

#define PREAD libc_pread(file, block, sizeof block, 0)

static inline void stamped(void)
{
	uint64_t a = debox_stamp_();

	instruction();
	sink = debox_stamp_() - a;
}

/* What an interposer costs that does nothing: one function more between the
 * program and libc, whose return the processor mispredicts like libc's. */
static __attribute__((noinline)) pid_t getpid_between(void)
{
	pid_t value = libc_getpid();

	__asm__ volatile(""
			 : "+r"(value));
	return value;
}

static __attribute__((noinline)) ssize_t pread_between(void)
{
	ssize_t value = PREAD;

	__asm__ volatile(""
			 : "+r"(value));
	return value;
}

static inline void bracket_last(void)
{
	struct debox_info info;

	info.size = sizeof info;
	DEBOX_CALL_NR(SYS_getpid, libc_getpid());
	debox_last(&info);
}

/* Two calls from two places: each finds the other one's row in its way. */
static inline void turns_bare(void)
{
	libc_getpid();
	libc_getuid();
}

static inline void turns_interposed(void)
{
	getpid();
	getuid();
}

#define LOOP(name, body)                        \
	static void name(int calls)             \
	{                                       \
		for (int i = 0; i < calls; i++) \
			body;                   \
	}
LOOP(pid_bare, libc_getpid())
LOOP(pid_bracket, DEBOX_CALL_NR(SYS_getpid, libc_getpid()))
LOOP(pid_interposed, getpid())
LOOP(pid_between, getpid_between())
LOOP(pid_last, bracket_last())
LOOP(raw_bare, instruction())
LOOP(raw_stamps, stamped())
LOOP(raw_bracket, DEBOX_CALL_NR(SYS_getpid, instruction()))
LOOP(read_bare, PREAD)
LOOP(read_bracket, DEBOX_CALL_NR(SYS_pread64, PREAD))
LOOP(read_interposed, if (pread(file, block, sizeof block, 0) != sizeof block) abort())
LOOP(read_between, pread_between())
LOOP(both_bare, if (i & 1) turns_bare())
LOOP(both_interposed, if (i & 1) turns_interposed())

/* Rows and ways of the grid; ends with a row that has no name. */
const struct debox_bench_wrap {
	const char *row, *way;
	void (*run)(int calls);
} debox_bench_wraps[] = {
	{ "getpid", "bare", pid_bare },
	{ "getpid", "bracket", pid_bracket },
	{ "getpid", "interposed", pid_interposed },
	{ "getpid", "between", pid_between },
	{ "getpid", "last", pid_last },
	{ "getpid", "again", pid_bare },
	{ "instruction", "bare", raw_bare },
	{ "instruction", "stamps", raw_stamps },
	{ "instruction", "bracket", raw_bracket },
	{ "instruction", "again", raw_bare },
	{ "pread-4096", "bare", read_bare },
	{ "pread-4096", "bracket", read_bracket },
	{ "pread-4096", "interposed", read_interposed },
	{ "pread-4096", "between", read_between },
	{ "pread-4096", "again", read_bare },
	{ "turns", "bare", both_bare },
	{ "turns", "interposed", both_interposed },
	{ "turns", "again", both_bare },
	{ NULL, NULL, NULL },
};

/* `fd`: 4096 bytes in memory. Is this process's getpid() an interposed one? */
int debox_bench_wrap_prepare(int fd)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	if (!libc)
		return 0;
	file = fd;
	libc_getpid = (pid_t(*)(void))dlsym(libc, "getpid");
	libc_getuid = (uid_t(*)(void))dlsym(libc, "getuid");
	libc_pread = (ssize_t(*)(int, void *, size_t, off_t))dlsym(libc, "pread");
	return libc_getpid && libc_getuid && libc_pread &&
	       dlsym(RTLD_DEFAULT, "getpid") != (void *)libc_getpid;
}
