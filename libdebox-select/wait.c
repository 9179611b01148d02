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
 * Signals: epoll ends with EINTR where poll and select would go on, after SIGSTOP
 * and SIGCONT, for a debugger, for the kernel's own work (io_uring). What of it a
 * handler caused cannot be seen afterwards. If no signal ever had a handler it was
 * none, and the real call goes on. Else the first EINTR counts as one, be it
 * epoll's or the real call's, and from then on the thread blocks in the real ppoll,
 * on the private descriptor, which knows; epoll is asked for its events before and
 * after. That is exact, and dearer by two system calls for each wait that has to
 * block.
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

/* One wait: the number of events, or -1 and errno. `empty`: something was there,
 * and is not any more. */
static int block(struct context *c, const struct timespec *limit, int zero, const sigset_t *mask,
		 int *empty)
{
	const struct real *libc = real();
	long got;

	if (zero)
		return libc->epoll_pwait(c->epfd, c->events, (int)c->events_capacity, 0, NULL);
	if (likely(libc->epoll_pwait2 && !SHARED_READ(debox_process.exact)))
		return libc->epoll_pwait2(c->epfd, c->events, (int)c->events_capacity, limit, mask);
	got = sys_call(SYS_epoll_pwait, c->epfd, c->events, c->events_capacity, 0, 0, 8);
	if (got == 0) {
		int r;

		debox_context_wait_entry(c, &c->alone);
		r = libc->ppoll(&c->alone, 1, limit, mask);
		if (r <= 0)
			return r;
		got = sys_call(SYS_epoll_pwait, c->epfd, c->events, c->events_capacity, 0, 0, 8);
		*empty = got == 0;
	}
	if (sys_failed(got)) {
		errno = (int)-got;
		return -1;
	}
	return (int)got;
}

/* The same with what epoll does not take. */
static int block_with_side(struct wait *w, const struct timespec *limit, int *found, int *empty)
{
	int ready = 0, got = w->side(w, limit, w->mask, &ready);

	COUNT(side_calls);
	if (got < 0) {
		errno = -got;
		return -1;
	}
	*found = got;
	if (ready) {
		int more = gather(w);

		/* The private descriptor is gone, which is nothing that the
		 * program asked about. */
		if (unlikely(more < 0)) {
			errno = EBADF;
			return -1;
		}
		*found = got + more;
	}
	*empty = ready && !*found;
	return *found;
}

static int any_stale(const struct context *c)
{
	return __atomic_load_n(&c->stale.any, __ATOMIC_SEQ_CST) != 0;
}

/* 1: the answer is *answer. 0: the wait goes on, for c->limit. */
static int closed_meanwhile(struct wait *w, int whole, int *still_whole, int *answer)
{
	int64_t slice = debox_process.recheck_ns > 1000000 ? debox_process.recheck_ns : 1000000;
	int own = (int)__atomic_exchange_n(&w->c->closed_by_own_handler, 0, __ATOMIC_SEQ_CST);
	struct timespec bound;
	int64_t now;

	/* A handler closed it before the call began: the kernel's call would have
	 * seen that. Of what other threads close during it, it sees nothing. */
	*answer = w->look(w, !whole && !own);
	if (*answer || (whole && !own))
		return 1;
	now = now_ns();
	*still_whole = 0;
	if (w->timeout) {
		int64_t left = w->begin_ns + ns_of(w->timeout) - now;

		if (left <= 0) {
			*answer = w->look(w, 0);
			return 1;
		}
		w->left = span(left);
		w->timeout = &w->left;
		w->begin_ns = now;
		*still_whole = left <= slice;
		if (left < slice)
			slice = left;
	}
	bound = span(slice);
	debox_context_wait_limit(w->c, &bound);
	return 0;
}

int debox_wait(struct wait *w)
{
	struct context *c = w->c;
	const struct timespec *limit = w->timeout;
	int zero = limit && limit->tv_sec == 0 && limit->tv_nsec == 0;
	int64_t to_check = c->check_at_ns - w->begin_ns;
	struct timespec bound;
	int got, found, empty, exactly, answer, whole = 1;

	/* What cannot be registered anew is for the next call to put aside. */
	if (unlikely(c->rebuild && (debox_context_rebuild(c) || any_stale(c))))
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
	exactly = c->side_count || SHARED_READ(debox_process.exact);
	debox_context_wait_begin(c);
	debox_context_wait_limit(c, limit);
	/* Pairs with forget(): it sees that we wait, or we what it took away. */
	if (unlikely(any_stale(c))) {
		debox_context_wait_end(c);
		return hand_over(w);
	}
	for (;;) {
		found = empty = 0;
		if (unlikely(c->side_count)) {
			got = block_with_side(w, &c->limit, &found, &empty);
		} else {
			got = block(c, &c->limit, zero, w->mask, &empty);
			if (likely(got > 0 && got < (int)c->events_capacity))
				found = w->collect(w, got);
			/* Signals that only the mask lets through come before
			 * "nothing". */
			if (got == 0 && zero && w->mask &&
			    real()->ppoll(NULL, 0, &c->limit, w->mask) < 0) {
				got = -1;
				exactly = 1;
			}
		}
		if (likely(got || empty || !any_stale(c)))
			break;
		if (closed_meanwhile(w, whole, &whole, &answer)) {
			debox_context_wait_end(c);
			return answer;
		}
	}
	if (unlikely(got < 0)) {
		int error = errno;

		debox_context_wait_end(c);
		if (error == EINTR) {
			int handled = exactly || debox_process_catches_signals();

			SHARED_WRITE(debox_process.exact, 1);
			if (handled)
				return -EINTR;
		}
		/* Somebody closed the private descriptor? EBADF can also be
		 * about one of the side. */
		else if (!c->side_count || sys_failed(sys_call(SYS_fcntl, c->epfd, F_GETFD)))
			c->rebuild = 1;
		return hand_over(w);
	}
	/* Another thread closed one of them meanwhile. The kernel looks up the
	 * numbers anew when it is woken, so the answer is its answer now. */
	if (unlikely(got > 0 && any_stale(c))) {
		answer = w->look(w, 0);
		debox_context_wait_end(c);
		return answer ? answer : hand_over(w);
	}
	debox_context_wait_end(c);
	/* More may have no room. */
	if (unlikely(got >= (int)c->events_capacity))
		return hand_over(w);
	if (likely(found > 0) || zero || (got == 0 && whole && !empty))
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

void debox_native_end(struct wait *w, int found)
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
	if (unlikely(found == -EINTR))
		SHARED_WRITE(debox_process.exact, 1);
	errno = saved;
}
