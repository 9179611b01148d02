/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How is one select() of many descriptors answered?
 *
 * The sets are compared word by word with those of the last call; only bits
 * that differ are looked at. Results are collected in sets of our own and
 * copied at the end, since a call that fails must leave the program's alone.
 */
#include "internal.h"

#include <fcntl.h>
#include <string.h>

/* fs/select.c: which events put a descriptor into which set. */
#define READ_EVENTS (POLLRDNORM | POLLRDBAND | POLLIN)
#define WRITE_EVENTS (POLLWRBAND | POLLWRNORM | POLLOUT)
#define EXCEPT_EVENTS POLLPRI
#define READ_RESULTS (READ_EVENTS | POLLHUP | POLLERR)
#define WRITE_RESULTS (WRITE_EVENTS | POLLERR)
#define EXCEPT_RESULTS EXCEPT_EVENTS

static inline uint64_t word_of(const fd_set *set, uint32_t at)
{
	uint64_t word = 0;

	if (set)
		memcpy(&word, (const char *)set + at * sizeof word, sizeof word);
	return word;
}

/* Bits of word `at` that are below nfds. */
static inline uint64_t valid(uint32_t nfds, uint32_t at)
{
	return (at + 1) * 64 <= nfds ? ~0ull : (1ull << (nfds & 63)) - 1;
}

static int grow(struct context *c, uint32_t words)
{
	uint32_t capacity = c->set_capacity ? c->set_capacity : 64;

	if (words > c->set_capacity) {
		while (capacity < words)
			capacity *= 2;
		for (int k = 0; k < SETS; k++) {
			if (debox_memory_grow(&c->set[k], c->set_capacity * 8, capacity * 8) ||
			    debox_memory_grow(&c->out[k], c->set_capacity * 8, capacity * 8))
				return -ENOMEM;
		}
		c->set_capacity = capacity;
	}
	return debox_context_grow_events(c, words * 64 + 64);
}

static uint32_t count_bits(fd_set *const set[SETS], uint32_t nfds)
{
	uint32_t words = (nfds + 63) / 64, bits = 0;

	for (uint32_t i = 0; i < words; i++)
		bits += (uint32_t)__builtin_popcountll(
			(word_of(set[0], i) | word_of(set[1], i) | word_of(set[2], i)) &
			valid(nfds, i));
	return bits;
}

/* Descriptors whose interest differs from the last call's. */
static uint32_t difference(const struct context *c, fd_set *const set[SETS], uint32_t nfds)
{
	uint32_t words = (nfds + 63) / 64, most = words > c->words ? words : c->words, bits = 0;

	for (uint32_t i = 0; i < most; i++) {
		uint64_t differ = 0;

		for (int k = 0; k < SETS; k++)
			differ |= (i < words ? word_of(set[k], i) & valid(nfds, i) : 0) ^
				  (i < c->words ? c->set[k][i] : 0);
		bits += (uint32_t)__builtin_popcountll(differ);
	}
	return bits;
}

static void remember(struct context *c, fd_set *const set[SETS], uint32_t nfds)
{
	c->words = (nfds + 63) / 64;
	for (int k = 0; k < SETS; k++)
		for (uint32_t i = 0; i < c->words; i++)
			c->set[k][i] = word_of(set[k], i) & valid(nfds, i);
}

static struct context *find(struct thread *t, fd_set *const set[SETS], uint32_t nfds, uint32_t bits)
{
	const void *user = set[0] ? set[0] : set[1] ? set[1] :
						      set[2];
	struct context *c;

	for (uint32_t i = 0; i < t->count; i++)
		if (t->context[i]->user == user && t->context[i]->kind == KIND_SELECT) {
			debox_context_use(t, i);
			return t->context[0];
		}
	for (uint32_t i = 0; i < t->count; i++) {
		c = t->context[i];
		if (c->kind == KIND_SELECT && difference(c, set, nfds) <= bits / 4) {
			debox_context_use(t, i);
			c->user = user;
			return c;
		}
	}
	c = debox_context_take(t, KIND_SELECT);
	if (c)
		c->user = user;
	return c;
}

/* ---------------------------------------------------------------- the side */

static void side_remove(struct context *c, uint32_t fd)
{
	for (uint32_t i = 0; i < c->side_count; i++)
		if (c->side[i] == fd) {
			c->side[i] = c->side[--c->side_count];
			return;
		}
}

static void apply(struct context *c, uint32_t fd)
{
	struct slot *slot = &c->slots[fd];

	if (slot->on_side) {
		slot->on_side = 0;
		side_remove(c, fd);
	}
	if (debox_context_apply(c, fd) && debox_context_grow_side(c) == 0) {
		c->side[c->side_count++] = fd;
		slot->on_side = 1;
	}
}

/*
 * select does not look at hang-ups of a descriptor that is not in the read
 * set, but epoll and poll always report them: such a descriptor would keep the
 * private epoll ready for nothing.
 */
static void to_side(struct context *c, uint32_t fd)
{
	struct slot *slot = &c->slots[fd];
	uint16_t want = slot->want;

	SHARED_WRITE(slot->want, 0);
	debox_context_apply(c, fd);
	SHARED_WRITE(slot->want, want);
	if (debox_context_grow_side(c) == 0) {
		c->side[c->side_count++] = fd;
		slot->on_side = 1;
	}
}

static uint16_t wanted(const struct context *c, uint32_t fd)
{
	uint32_t at = fd >> 6, bit = fd & 63, want = 0;

	if (at >= c->words)
		return 0;
	if (c->set[SET_READ][at] >> bit & 1)
		want |= READ_EVENTS | SLOT_IN;
	if (c->set[SET_WRITE][at] >> bit & 1)
		want |= WRITE_EVENTS | SLOT_IN;
	if (c->set[SET_EXCEPT][at] >> bit & 1)
		want |= EXCEPT_EVENTS | SLOT_IN;
	return (uint16_t)want;
}

/* 1: changed so much that the kernel is quicker. */
static int update(struct context *c, fd_set *const set[SETS], uint32_t nfds, uint32_t bits)
{
	uint32_t words = (nfds + 63) / 64, most = words > c->words ? words : c->words;
	uint32_t old_words = c->words, differing = 0;

	for (int k = 0; k < SETS; k++)
		for (uint32_t i = old_words; i < words; i++)
			c->set[k][i] = 0;
	differing = difference(c, set, nfds);
	if (likely(!differing)) {
		c->words = words;
		return 0;
	}
	if (differing > bits / 4 + 64)
		return 1;
	c->words = most;
	for (uint32_t i = 0; i < most; i++) {
		uint64_t differ = 0;

		for (int k = 0; k < SETS; k++) {
			uint64_t now = i < words ? word_of(set[k], i) & valid(nfds, i) : 0;

			differ |= now ^ c->set[k][i];
			c->set[k][i] = now;
		}
		while (differ) {
			uint32_t fd = i * 64 + (uint32_t)__builtin_ctzll(differ);

			differ &= differ - 1;
			if (fd > c->highest_fd)
				c->highest_fd = fd;
			SHARED_WRITE(c->slots[fd].want, wanted(c, fd));
			apply(c, fd);
		}
	}
	c->words = words;
	return 0;
}

static int go_live(struct context *c)
{
	for (uint32_t i = 0; i < c->words; i++) {
		uint64_t any = c->set[0][i] | c->set[1][i] | c->set[2][i];

		while (any) {
			uint32_t fd = i * 64 + (uint32_t)__builtin_ctzll(any);

			any &= any - 1;
			if (fd > c->highest_fd)
				c->highest_fd = fd;
			SHARED_WRITE(c->slots[fd].want, wanted(c, fd));
		}
	}
	return debox_context_go_live(c);
}

static void stale_one(uint32_t fd, void *with)
{
	struct context *c = with;

	if (c->slots[fd].want)
		apply(c, fd);
}

/* ------------------------------------------------------------- the results */

/* Marks what `revents` mean for the descriptor; how many sets it is in. */
static int results(struct context *c, uint32_t fd, uint32_t revents)
{
	uint32_t at = fd >> 6;
	uint64_t bit = 1ull << (fd & 63);
	int found = 0;
	static const uint32_t in[SETS] = { READ_RESULTS, WRITE_RESULTS, EXCEPT_RESULTS };

	for (int k = 0; k < SETS; k++)
		if (revents & in[k] && at < c->words && c->set[k][at] & bit && !(c->out[k][at] & bit)) {
			c->out[k][at] |= bit;
			found++;
		}
	return found;
}

static int select_collect(struct wait *w, int events)
{
	struct context *c = w->c;
	int found = 0;

	for (int i = 0; i < events; i++) {
		uint32_t fd = (uint32_t)c->events[i].data.u64;
		struct slot *slot = &c->slots[fd < FD_CAPACITY ? fd : 0];
		int more;

		if (unlikely(fd >= FD_CAPACITY || slot->generation != c->events[i].data.u64 >> 32 ||
			     !slot->want || slot->on_side)) {
			/* A file that somebody keeps open after its descriptor
			 * was closed: only a new epoll instance gets rid of it. */
			c->rebuild = 1;
			continue;
		}
		more = results(c, fd, c->events[i].events);
		if (unlikely(!more))
			to_side(c, fd);
		found += more;
	}
	return found;
}

static int side_grow(struct context *c, uint32_t words)
{
	if (words <= c->side_words)
		return 0;
	for (int k = 0; k < SETS; k++) {
		if (debox_memory_grow(&c->side_set[k], c->side_words * 8, words * 8))
			return -ENOMEM;
	}
	c->side_words = words;
	return 0;
}

static int select_side(struct wait *w, const struct timespec *timeout, const sigset_t *mask,
		       int *epoll_ready)
{
	struct context *c = w->c;
	uint32_t most = c->highest_fd > (uint32_t)c->epfd ? c->highest_fd : (uint32_t)c->epfd;
	uint32_t words = most / 64 + 1;
	uint64_t *epoll_word;
	int r, found = 0;

	if (side_grow(c, words))
		return -ENOMEM;
	for (int k = 0; k < SETS; k++)
		memset(c->side_set[k], 0, words * 8);
	for (uint32_t i = 0; i < c->side_count; i++) {
		uint32_t fd = c->side[i], at = fd >> 6;

		for (int k = 0; k < SETS; k++)
			if (at < c->words)
				c->side_set[k][at] |= c->set[k][at] & 1ull << (fd & 63);
	}
	epoll_word = &c->side_set[SET_READ][(uint32_t)c->epfd >> 6];
	*epoll_word |= 1ull << (c->epfd & 63);
	r = real()->pselect((int)most + 1, (fd_set *)c->side_set[0], (fd_set *)c->side_set[1],
			    (fd_set *)c->side_set[2], timeout, mask);
	if (r < 0)
		return -errno;
	if (r == 0)
		return 0;
	*epoll_ready = *epoll_word >> (c->epfd & 63) & 1;
	for (uint32_t i = 0; i < c->side_count; i++) {
		uint32_t fd = c->side[i], at = fd >> 6;
		uint64_t bit = 1ull << (fd & 63);

		for (int k = 0; k < SETS; k++)
			if (c->side_set[k][at] & bit && !(c->out[k][at] & bit)) {
				c->out[k][at] |= bit;
				found++;
			}
	}
	return found;
}

static uint64_t named(const struct context *c, uint32_t at)
{
	return c->set[SET_READ][at] | c->set[SET_WRITE][at] | c->set[SET_EXCEPT][at];
}

/* Linux 5.17 on: a descriptor that was closed while select waited is ready in
 * each set that names it. (When the call begins, it is EBADF.) */
static int select_look(struct wait *w, int others)
{
	static const struct timespec none;
	struct context *c = w->c;
	uint32_t words = c->words;
	int found, closed = 0;

	if (side_grow(c, words))
		return -ENOMEM;
	for (int k = 0; k < SETS; k++) {
		memcpy(c->side_set[k], c->set[k], words * 8);
		memset(c->out[k], 0, words * 8);
	}
	for (uint32_t at = 0; at < words; at++) {
		uint64_t any = named(c, at) & __atomic_load_n(&c->stale.tree.level[0][at], __ATOMIC_SEQ_CST);

		while (any) {
			uint32_t fd = at * 64 + (uint32_t)__builtin_ctzll(any);
			uint64_t bit = any & -any;

			any &= any - 1;
			if (sys_call(SYS_fcntl, fd, F_GETFD) != -EBADF)
				continue;
			for (int k = 0; k < SETS; k++) {
				c->side_set[k][at] &= ~bit;
				c->out[k][at] |= c->set[k][at] & bit;
				closed += (c->set[k][at] & bit) != 0;
			}
		}
	}
	found = real()->pselect(w->n, (fd_set *)c->side_set[0], (fd_set *)c->side_set[1],
				(fd_set *)c->side_set[2], &none, NULL);
	if (found < 0)
		return -errno;
	if (others && !found)
		return 0;
	for (int k = 0; k < SETS && found; k++)
		for (uint32_t at = 0; at < words; at++)
			c->out[k][at] |= c->side_set[k][at];
	return found + closed;
}

/* Of the program's sets, after a real call. */
static int found_ready(const void *with, uint32_t fd)
{
	const struct wait *w = with;

	for (int k = 0; k < SETS; k++)
		if (word_of(w->user_set[k], fd >> 6) >> (fd & 63) & 1)
			return 1;
	return 0;
}

/* What a real call found ready: is it what is registered? */
static void verify(struct context *c, fd_set *const set[SETS])
{
	for (uint32_t i = 0; i < c->words; i++) {
		uint64_t any = word_of(set[0], i) | word_of(set[1], i) | word_of(set[2], i);

		while (any) {
			uint32_t fd = i * 64 + (uint32_t)__builtin_ctzll(any);

			any &= any - 1;
			if (!c->slots[fd].on_side && c->slots[fd].want)
				debox_context_verify(c, fd);
		}
	}
}

/* -------------------------------------------------------------- the call */

static int leave_to_kernel(int nfds, fd_set *const set[SETS], const struct timespec *timeout,
			   const sigset_t *mask)
{
	int r = real()->pselect(nfds, set[0], set[1], set[2], timeout, mask);

	return r < 0 ? -errno : r;
}

static int readable(struct thread *t, fd_set *const set[SETS], uint32_t nfds)
{
	size_t bytes = (nfds + 63) / 64 * 8;

	for (int k = 0; k < SETS; k++) {
		if (!set[k] || (set[k] == t->seen_set[k] && nfds <= t->seen_nfds))
			continue;
		if (!debox_memory_readable(set[k], bytes))
			return 0;
	}
	for (int k = 0; k < SETS; k++)
		t->seen_set[k] = set[k];
	t->seen_nfds = nfds;
	return 1;
}

int debox_select_serve(int count, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		       const struct timespec *timeout, const sigset_t *mask)
{
	struct thread *t = &debox_thread;
	fd_set *const set[SETS] = { readfds, writefds, exceptfds };
	struct wait w = { .timeout = timeout, .mask = mask, .n = count, .collect = select_collect, .side = select_side, .look = select_look, .user_set = { readfds, writefds, exceptfds } };
	uint32_t nfds = (uint32_t)count, bits;
	struct context *c;
	int found;

	if (unlikely(nfds > FD_CAPACITY || !readable(t, set, nfds) ||
		     (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 ||
				  timeout->tv_nsec >= NS_PER_S)))) {
		COUNT(native_argument);
		return leave_to_kernel(count, set, timeout, mask);
	}
	bits = count_bits(set, nfds);
	if (bits < debox_process.threshold) {
		COUNT(calls_straight);
		return leave_to_kernel(count, set, timeout, mask);
	}
	c = find(t, set, nfds, bits);
	if (unlikely(!c || grow(c, (nfds + 63) / 64))) {
		COUNT(native_resource);
		return leave_to_kernel(count, set, timeout, mask);
	}
	if (unlikely(c->phase == PHASE_SEEN)) {
		if (c->skip) {
			c->skip--;
			COUNT(native_unstable);
			return leave_to_kernel(count, set, timeout, mask);
		}
		if (!c->words || difference(c, set, nfds) > bits / 4) {
			if (c->words && ++c->strikes >= 8)
				c->skip = 64;
			COUNT(native_first);
			remember(c, set, nfds);
			return leave_to_kernel(count, set, timeout, mask);
		}
		remember(c, set, nfds);
		if (go_live(c)) {
			COUNT(native_resource);
			debox_context_reset(c);
			c->skip = 1024;
			return leave_to_kernel(count, set, timeout, mask);
		}
	} else if (unlikely(update(c, set, nfds, bits))) {
		debox_context_reset(c);
		remember(c, set, nfds);
		if (++c->strikes >= 8)
			c->skip = 64;
		COUNT(native_unstable);
		return leave_to_kernel(count, set, timeout, mask);
	}
	if (unlikely(__atomic_load_n(&c->stale.any, __ATOMIC_SEQ_CST))) {
		__atomic_store_n(&c->stale.any, 0, __ATOMIC_SEQ_CST);
		debox_tree_take_atomic(&c->stale.tree, stale_one, c);
	}
	debox_context_keep_away(c);
	if (unlikely(c->side_count > bits / 2 || c->failed)) {
		debox_context_reset(c);
		c->skip = 1024;
		COUNT(native_side);
		return leave_to_kernel(count, set, timeout, mask);
	}
	/* The kernel ignores bits that its table of descriptors has no place for,
	 * and only it knows how large that is. */
	if (unlikely(c->side_count && c->highest_fd > (uint32_t)c->epfd)) {
		COUNT(native_argument);
		return leave_to_kernel(count, set, timeout, mask);
	}
	for (int k = 0; k < SETS; k++)
		memset(c->out[k], 0, c->words * 8);
	w.c = c;
	w.begin_ns = now_ns();
	found = debox_wait(&w);
	if (unlikely(found == NATIVE)) {
		debox_native_begin(&w);
		found = leave_to_kernel(count, set, w.timeout, mask);
		debox_native_end(&w, found);
		if (found > 0)
			verify(c, set);
		if (found >= 0)
			debox_context_doubt(c, found_ready, &w);
	} else if (found >= 0) {
		for (int k = 0; k < SETS; k++)
			if (set[k])
				memcpy(set[k], c->out[k], c->words * 8);
	}
	COUNT(calls_select);
	COUNT_BY(descriptors_named, bits);
	if (bits > SHARED_READ(debox_statistics->descriptors_most))
		SHARED_WRITE(debox_statistics->descriptors_most, bits);
	if (found > 0)
		COUNT_BY(events, found);
	return found;
}
