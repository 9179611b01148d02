/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a call wait so that nothing is lost: no event, no signal, no time?
 *
 * One system call, epoll_pwait2, with the program's mask and time. What it
 * cannot see are descriptors that were closed or replaced where no library
 * sees it (system calls of the program's own, io_uring). So every now and then
 * the program gets its own call, the real poll or select: when the last time is
 * 100 ms or 200 times what it costs ago, whichever is longer. A wait that lasts
 * until then goes on as the real call for the rest of its time. That bounds how
 * late such a descriptor is noticed, and what it costs to half a per cent.
 *
 * It also makes long waits exactly those of the kernel: restarted after SIGSTOP
 * and SIGCONT. epoll ends with EINTR then, where poll and select go on; if no
 * signal has a handler, EINTR was that, and the real call goes on.
 */
#include "internal.h"

#include <fcntl.h>

static struct timespec span(int64_t ns)
{
	struct timespec ts = { 0, 0 };

	if (ns > 0) {
		ts.tv_sec = ns / NS_PER_S;
		ts.tv_nsec = ns % NS_PER_S;
	}
	return ts;
}

static int64_t ns_of(const struct timespec *ts)
{
	/* 146 years are for ever. */
	return ts->tv_sec >= INT64_MAX / 2 / NS_PER_S ? INT64_MAX / 2 :
							ts->tv_sec * NS_PER_S + ts->tv_nsec;
}

/* What epoll has now, without waiting. */
static int gather(struct wait *w)
{
	struct context *c = w->c;
	long got = sys_call(SYS_epoll_pwait, c->epfd, c->events, c->events_capacity, 0, 0, 8);

	if (unlikely(got < 0))
		c->rebuild = 1;
	/* More may have no room. */
	if (unlikely(got >= (long)c->events_capacity))
		return -EOVERFLOW;
	return got > 0 ? w->collect(w, (int)got) : (int)got;
}

/* The rest of the program's time, for the real call. */
static int hand_over(struct wait *w)
{
	if (w->timeout && ns_of(w->timeout)) {
		w->left = span(w->begin_ns + ns_of(w->timeout) - now_ns());
		w->timeout = &w->left;
	}
	return NATIVE;
}

int debox_wait(struct wait *w)
{
	struct context *c = w->c;
	const struct real *libc = real();
	const struct timespec *limit = w->timeout;
	int zero = limit && limit->tv_sec == 0 && limit->tv_nsec == 0;
	int64_t to_check = c->check_at_ns - w->begin_ns;
	struct timespec bound;
	int got, found = 0, whole = 1;

	if (unlikely(c->rebuild && debox_context_rebuild(c)))
		return NATIVE;
	if (unlikely(to_check <= 0))
		return NATIVE;
	/* No shorter wait than a millisecond for the sake of a full look. */
	if (to_check < 1000000)
		to_check = 1000000;
	if (!limit || ns_of(limit) > to_check) {
		bound = span(to_check);
		limit = &bound;
		whole = 0;
	}

	__atomic_store_n(&c->waiting, 1, __ATOMIC_RELEASE);
	if (unlikely(c->side_count)) {
		int ready = 0;

		COUNT(side_calls);
		got = w->side(w, limit, w->mask, &ready);
		__atomic_store_n(&c->waiting, 0, __ATOMIC_RELEASE);
		found = got;
		if (got >= 0 && ready) {
			int more = gather(w);

			/* The private descriptor is gone, which is nothing that
			 * the program asked about. */
			if (unlikely(more < 0)) {
				debox_context_release_pins(c);
				return hand_over(w);
			}
			found = got + more;
		}
		errno = got < 0 ? -got : 0;
		got = got < 0 ? -1 : found || ready;
	} else {
		if (zero)
			got = libc->epoll_pwait(c->epfd, c->events, (int)c->events_capacity, 0, NULL);
		else if (likely(libc->epoll_pwait2 != NULL))
			got = libc->epoll_pwait2(c->epfd, c->events, (int)c->events_capacity, limit,
						 w->mask);
		else {
			struct pollfd one = { .fd = c->epfd, .events = POLLIN };

			/* An older libc. */
			got = libc->ppoll(&one, 1, limit, w->mask);
			if (got > 0)
				got = (int)sys_call(SYS_epoll_pwait, c->epfd, c->events,
						    c->events_capacity, 0, 0, 8);
		}
		__atomic_store_n(&c->waiting, 0, __ATOMIC_RELEASE);
		if (unlikely(got >= (int)c->events_capacity)) {
			/* More may have no room. */
			debox_context_release_pins(c);
			return hand_over(w);
		}
		if (likely(got > 0))
			found = w->collect(w, got);
		/* Signals that only the mask lets through come before "nothing". */
		if (got == 0 && zero && w->mask && libc->ppoll(NULL, 0, limit, w->mask) < 0)
			got = -1;
	}
	if (unlikely(got < 0)) {
		int error = errno;

		debox_context_release_pins(c);
		if (error == EINTR && debox_process_catches_signals())
			return -EINTR;
		/* Somebody closed the private descriptor? EBADF can also be
		 * about one of the side. */
		if (error != EINTR &&
		    (!c->side_count || sys_failed(sys_call(SYS_fcntl, c->epfd, F_GETFD))))
			c->rebuild = 1;
		return hand_over(w);
	}
	debox_context_release_pins(c);
	/* Another thread closed one of them meanwhile. The kernel looks up the
	 * numbers anew when it is woken, so the answer is its answer now. */
	if (unlikely(got > 0 && __atomic_load_n(&c->stale.any, __ATOMIC_RELAXED)))
		return hand_over(w);
	if (likely(found > 0) || zero || (got == 0 && whole))
		return found;
	/* Only what nobody asked for, or a long wait. */
	return hand_over(w);
}

static int64_t thread_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ns_of(&ts);
}

void debox_native_begin(struct wait *w)
{
	COUNT(rechecks);
	w->cpu_ns = thread_cpu_ns();
}

void debox_native_end(struct wait *w)
{
	struct context *c = w->c;
	int saved = errno;
	int64_t cost = thread_cpu_ns() - w->cpu_ns;

	COUNT_BY(recheck_ns, cost);
	/* A call may seem to cost a hundred times as much as it does, when the
	 * machine does other things in the thread's time (interrupts, another
	 * virtual machine): no more than twice what it was is believed. */
	if (c->check_cost_ns && cost > 2 * c->check_cost_ns)
		cost = 2 * c->check_cost_ns;
	c->check_cost_ns = cost;
	/* 0: every time. */
	cost *= debox_process.recheck_ns ? RECHECK_COST_FACTOR : 0;
	if (cost > RECHECK_LONGEST_NS)
		cost = RECHECK_LONGEST_NS;
	if (cost < debox_process.recheck_ns)
		cost = debox_process.recheck_ns;
	c->check_at_ns = now_ns() + cost;
	errno = saved;
}
