/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does libdebox itself call the kernel?
 *
 * Directly, never through libc: libc's wrappers may be interposed by
 * libdebox-wrap.so (which would come back here), they write errno, and some of
 * them are cancellation points. Every function returns the raw result, -errno
 * on failure, and may be used in a signal handler.
 */
#ifndef DEBOX_SYS_H
#define DEBOX_SYS_H

#include <stdint.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f)
{
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ __volatile__("syscall"
			     : "=a"(ret)
			     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			     : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
static inline long sys_call6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ __volatile__("svc 0"
			     : "+r"(x0)
			     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			     : "memory", "cc");
	return x0;
}
#else
#error "libdebox: system calls are written for x86-64 and aarch64 only; add sys_call6 for this machine to libdebox/sys.h"
#endif

#ifndef SYS_CALL6
#define SYS_CALL6 sys_call6
#endif
#define SYS_ARG_(x) ((long)(uintptr_t)(x))
#define SYS_PICK_(_1, _2, _3, _4, _5, _6, _7, name, ...) name
#define sys_call_1(n) SYS_CALL6(n, 0, 0, 0, 0, 0, 0)
#define sys_call_2(n, a) SYS_CALL6(n, SYS_ARG_(a), 0, 0, 0, 0, 0)
#define sys_call_3(n, a, b) SYS_CALL6(n, SYS_ARG_(a), SYS_ARG_(b), 0, 0, 0, 0)
#define sys_call_4(n, a, b, c) SYS_CALL6(n, SYS_ARG_(a), SYS_ARG_(b), SYS_ARG_(c), 0, 0, 0)
#define sys_call_5(n, a, b, c, d) \
	SYS_CALL6(n, SYS_ARG_(a), SYS_ARG_(b), SYS_ARG_(c), SYS_ARG_(d), 0, 0)
#define sys_call_6(n, a, b, c, d, e) \
	SYS_CALL6(n, SYS_ARG_(a), SYS_ARG_(b), SYS_ARG_(c), SYS_ARG_(d), SYS_ARG_(e), 0)
#define sys_call_7(n, a, b, c, d, e, f)                                               \
	SYS_CALL6(n, SYS_ARG_(a), SYS_ARG_(b), SYS_ARG_(c), SYS_ARG_(d), SYS_ARG_(e), \
		  SYS_ARG_(f))
/* sys_call(SYS_close, fd): the number and up to six arguments. */
#define sys_call(...)                                                          \
	SYS_PICK_(__VA_ARGS__, sys_call_7, sys_call_6, sys_call_5, sys_call_4, \
		  sys_call_3, sys_call_2, sys_call_1)                          \
	(__VA_ARGS__)

static inline int sys_failed(long ret)
{
	return (unsigned long)ret > -4096ul;
}

#endif
