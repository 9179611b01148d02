/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Where does a program's call enter, and who answers it?
 *
 * The kernel, straight, unless the set is large; and whenever the library
 * cannot be sure of its own state: in a signal handler that interrupted it, in
 * the child of vfork, before it is set up, after it was switched off.
 */
#include "internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

/* 1: the library may serve this call. */
static int enter(struct thread *t)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	if (unlikely(!debox_process_ready() || t->vfork_child)) {
		COUNT(native_off);
		return 0;
	}
	if (unlikely(t->generation != debox_process.generation)) {
		memset(t, 0, sizeof *t);
		t->generation = debox_process.generation;
	}
	if (unlikely(t->busy)) {
		stack_t stack;

		/* A handler runs below the frame that it interrupted, or on a
		 * stack of its own. */
		if (here <= t->busy ||
		    sys_failed(sys_call(SYS_sigaltstack, 0, &stack)) || stack.ss_flags & SS_ONSTACK) {
			COUNT(native_nested);
			return 0;
		}
		/* A handler jumped out of the library: begin anew. */
		for (uint32_t i = 0; i < t->count; i++)
			debox_context_reset(t->context[i]); /* and its wait is over */
	}
	t->busy = here;
	return 1;
}

/* Runs too when the thread is cancelled in the call. */
static void leave(struct thread **t)
{
	(*t)->busy = 0;
}

static int answer(int r)
{
	if (r >= 0)
		return r;
	errno = -r;
	return -1;
}

static inline void count_straight(void)
{
	if (unlikely(debox_process.counting))
		COUNT(calls_straight);
}

/* ------------------------------------------------------------------ poll */

static __attribute__((noinline)) int poll_large(struct pollfd *fds, nfds_t n,
						const struct timespec *timeout, const sigset_t *mask)
{
	struct thread *t = &debox_thread;

	if (n > FD_CAPACITY || !enter(t))
		return real()->ppoll(fds, n, timeout, mask);
	struct thread *guard __attribute__((cleanup(leave))) = t;

	(void)guard;
	return answer(debox_poll_serve(fds, n, timeout, mask));
}

DEBOX_API int debox_entry_poll(struct pollfd *, nfds_t, int) __asm__("poll");
int debox_entry_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	struct timespec ts;

	if (n < debox_process.threshold) {
		count_straight();
		return real()->poll(fds, n, timeout_ms);
	}
	ts.tv_sec = timeout_ms / 1000;
	ts.tv_nsec = timeout_ms % 1000 * 1000000l;
	return poll_large(fds, n, timeout_ms < 0 ? NULL : &ts, NULL);
}

DEBOX_API int debox_entry_ppoll(struct pollfd *, nfds_t, const struct timespec *,
				const sigset_t *) __asm__("ppoll");
int debox_entry_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
		      const sigset_t *mask)
{
	if (n < debox_process.threshold) {
		count_straight();
		return real()->ppoll(fds, n, timeout, mask);
	}
	return poll_large(fds, n, timeout, mask);
}

/* Programs built with _FORTIFY_SOURCE. */
extern void __chk_fail(void) __attribute__((noreturn));

DEBOX_API int debox_entry_poll_chk(struct pollfd *, nfds_t, int, size_t) __asm__("__poll_chk");
int debox_entry_poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t bytes)
{
	if (bytes / sizeof *fds < n)
		__chk_fail();
	return debox_entry_poll(fds, n, timeout_ms);
}

DEBOX_API int debox_entry_ppoll_chk(struct pollfd *, nfds_t, const struct timespec *,
				    const sigset_t *, size_t) __asm__("__ppoll_chk");
int debox_entry_ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
			  const sigset_t *mask, size_t bytes)
{
	if (bytes / sizeof *fds < n)
		__chk_fail();
	return debox_entry_ppoll(fds, n, timeout, mask);
}

DEBOX_API int debox_entry_poll_alias(struct pollfd *, nfds_t, int) __asm__("__poll");
int debox_entry_poll_alias(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	return debox_entry_poll(fds, n, timeout_ms);
}

/* ---------------------------------------------------------------- select */

static __attribute__((noinline)) int select_large(int nfds, fd_set *readfds, fd_set *writefds,
						  fd_set *exceptfds, const struct timespec *timeout,
						  const sigset_t *mask)
{
	struct thread *t = &debox_thread;

	if (!enter(t))
		return real()->pselect(nfds, readfds, writefds, exceptfds, timeout, mask);
	struct thread *guard __attribute__((cleanup(leave))) = t;

	(void)guard;
	return answer(debox_select_serve(nfds, readfds, writefds, exceptfds, timeout, mask));
}

/* What Linux leaves in the program's timeout: the rest. */
static void timeout_update(struct timeval *timeout, const struct timespec *was, int64_t begin_ns)
{
	int64_t left;

	if (was->tv_sec == 0 && was->tv_nsec == 0) {
		/* 0 s and so many times 0 us */
		timeout->tv_sec = 0;
		timeout->tv_usec = 0;
		return;
	}
	if (was->tv_sec > INT64_MAX / 4 / NS_PER_S) {
		/* More than a century: only the seconds are worth counting. */
		timeout->tv_sec = was->tv_sec - (now_ns() - begin_ns) / NS_PER_S;
		timeout->tv_usec = 0;
		return;
	}
	left = was->tv_sec * NS_PER_S + was->tv_nsec - (now_ns() - begin_ns);
	if (left < 0)
		left = 0;
	timeout->tv_sec = left / NS_PER_S;
	timeout->tv_usec = left % NS_PER_S / 1000;
}

DEBOX_API int debox_entry_select(int, fd_set *, fd_set *, fd_set *,
				 struct timeval *) __asm__("select");
int debox_entry_select(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		       struct timeval *timeout)
{
	struct timespec ts;
	int64_t begin_ns;
	int r, saved;

	/* Negative numbers of descriptors are the kernel's to refuse, too. */
	if (nfds < (int)debox_process.threshold) {
		count_straight();
		return real()->select(nfds, readfds, writefds, exceptfds, timeout);
	}
	if (!timeout)
		return select_large(nfds, readfds, writefds, exceptfds, NULL, NULL);
	if (timeout->tv_sec < 0 || timeout->tv_usec < 0 ||
	    timeout->tv_usec / 1000000 > INT64_MAX - timeout->tv_sec || SHARED_READ(debox_process.sticky) ||
	    SHARED_READ(debox_process.off))
		return real()->select(nfds, readfds, writefds, exceptfds, timeout);
	ts.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
	ts.tv_nsec = timeout->tv_usec % 1000000 * 1000;
	begin_ns = now_ns();
	r = select_large(nfds, readfds, writefds, exceptfds, &ts, NULL);
	saved = errno;
	/* Known by now. */
	if (!SHARED_READ(debox_process.sticky))
		timeout_update(timeout, &ts, begin_ns);
	errno = saved;
	return r;
}

DEBOX_API int debox_entry_pselect(int, fd_set *, fd_set *, fd_set *, const struct timespec *,
				  const sigset_t *) __asm__("pselect");
int debox_entry_pselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
			const struct timespec *timeout, const sigset_t *mask)
{
	if (nfds < (int)debox_process.threshold) {
		count_straight();
		return real()->pselect(nfds, readfds, writefds, exceptfds, timeout, mask);
	}
	return select_large(nfds, readfds, writefds, exceptfds, timeout, mask);
}

DEBOX_API int debox_entry_select_alias(int, fd_set *, fd_set *, fd_set *,
				       struct timeval *) __asm__("__select");
int debox_entry_select_alias(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
			     struct timeval *timeout)
{
	return debox_entry_select(nfds, readfds, writefds, exceptfds, timeout);
}
