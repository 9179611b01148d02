/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How is one poll() of a large array answered?
 *
 * The array is compared with a copy of what it was after the last call; only
 * places that differ are looked at. Results go to the places that epoll names.
 * What remains of O(n) is the comparison, at the speed of memory.
 */
#include "internal.h"

#include <string.h>
#include <sys/resource.h>

#define SAMPLES 16u
#define BLOCK 64u /* pollfds that are compared at once */

static int side_add(struct context *c, uint32_t place)
{
	if (debox_context_grow_side(c))
		return -ENOMEM;
	c->side[c->side_count++] = place;
	return 0;
}

static void side_remove(struct context *c, uint32_t place)
{
	for (uint32_t i = 0; i < c->side_count; i++)
		if (c->side[i] == place) {
			c->side[i] = c->side[--c->side_count];
			return;
		}
}

static int grow(struct context *c, uint32_t n)
{
	uint32_t old = c->capacity, capacity = old ? old : 512;

	if (likely(n <= old))
		return debox_context_grow_events(c, n + 64);
	while (capacity < n)
		capacity *= 2;
	if (debox_memory_grow(&c->shadow, old * sizeof *c->shadow, capacity * sizeof *c->shadow) ||
	    debox_memory_grow(&c->ready, old * sizeof *c->ready, capacity * sizeof *c->ready) ||
	    debox_memory_grow(&c->list, old * sizeof *c->list, capacity * sizeof *c->list) ||
	    debox_memory_grow(&c->gone, old * sizeof *c->gone, capacity * sizeof *c->gone))
		return -ENOMEM;
	c->capacity = capacity;
	return debox_context_grow_events(c, n + 64);
}

/* fd and events; revents are the kernel's to write. */
static inline uint64_t asked(const struct pollfd *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof word);
	return word & 0xffffffffffffull;
}

static inline uint64_t whole(const struct pollfd *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof word);
	return word;
}

/* Places [from, n) get this set's descriptors into the shadow only. */
static void remember(struct context *c, const struct pollfd *fds, uint32_t n)
{
	memcpy(c->shadow, fds, n * sizeof *fds);
	for (uint32_t i = 0; i < n; i++)
		c->shadow[i].revents = 0;
	c->n = n;
	c->ready_count = 0;
}

static struct context *find(struct thread *t, const struct pollfd *fds, uint32_t n)
{
	struct context *c;

	for (uint32_t i = 0; i < t->count; i++)
		if (t->context[i]->user == fds && t->context[i]->kind == KIND_POLL) {
			debox_context_use(t, i);
			return t->context[0];
		}
	if (!debox_memory_readable(fds, n * sizeof *fds))
		return NULL;
	/* The same set at another place: an array that was reallocated. */
	for (uint32_t i = 0; i < t->count; i++) {
		uint32_t common, same = 0;

		c = t->context[i];
		common = n < c->n ? n : c->n;
		if (c->kind != KIND_POLL || common < 2 || common < (n > c->n ? n : c->n) / 4 * 3)
			continue;
		for (uint32_t s = 0; s < SAMPLES; s++) {
			uint32_t place = (uint32_t)((uint64_t)s * (common - 1) / (SAMPLES - 1));

			same += asked(&fds[place]) == asked(&c->shadow[place]);
		}
		if (same >= SAMPLES * 3 / 4) {
			debox_context_use(t, i);
			c->user = fds;
			c->readable = n;
			return c;
		}
	}
	c = debox_context_take(t, KIND_POLL);
	if (!c)
		return NULL;
	c->user = fds;
	c->readable = n;
	return c;
}

/* The place begins to name a descriptor: 1 if it has to be registered. */
static int place_enters(struct context *c, uint32_t place)
{
	const struct pollfd *p = &c->shadow[place];
	struct slot *slot;

	if (p->fd < 0)
		return 0;
	if ((uint32_t)p->fd >= FD_CAPACITY) {
		side_add(c, place);
		return 0;
	}
	if ((uint32_t)p->fd > c->highest_fd)
		c->highest_fd = (uint32_t)p->fd;
	slot = &c->slots[p->fd];
	if (slot->want) {
		/* A second place for the same descriptor. */
		side_add(c, place);
		return 0;
	}
	SHARED_WRITE(slot->want, (uint16_t)(SLOT_IN | ((uint16_t)p->events & SLOT_EVENTS)));
	slot->index = place;
	return slot->want != SHARED_READ(slot->reg);
}

static void apply(struct context *c, uint32_t fd)
{
	struct slot *slot = &c->slots[fd];

	if (slot->on_side) {
		slot->on_side = 0;
		side_remove(c, slot->index);
	}
	if (debox_context_apply(c, fd) && side_add(c, slot->index) == 0)
		slot->on_side = 1;
}

static void place_leaves(struct context *c, uint32_t place)
{
	int fd = c->shadow[place].fd;
	struct slot *slot;

	if (fd < 0)
		return;
	if ((uint32_t)fd < FD_CAPACITY) {
		slot = &c->slots[fd];
		if (slot->want && slot->index == place) {
			SHARED_WRITE(slot->want, 0);
			if (!slot->on_side)
				return;
			slot->on_side = 0;
		}
	}
	side_remove(c, place);
}

/* Registers the whole set. */
static int go_live(struct context *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		place_enters(c, i);
	return debox_context_go_live(c);
}

static void stale_one(uint32_t fd, void *with)
{
	struct context *c = with;
	struct slot *slot = &c->slots[fd];

	if (!slot->want)
		return;
	if (slot->on_side) {
		slot->on_side = 0;
		side_remove(c, slot->index);
	}
	apply(c, fd);
}

/* The revents that the last call left, in both. */
static void clear_ready(struct context *c, struct pollfd *fds, uint32_t n)
{
	for (uint32_t i = 0; i < c->ready_count; i++) {
		uint32_t place = c->ready[i];

		c->shadow[place].revents = 0;
		if (place < n)
			fds[place].revents = 0;
	}
	c->ready_count = 0;
}

/*
 * Brings shadow and registrations to what the array says now. 0, or 1 if it
 * changed so much that the kernel is quicker.
 */
static int update(struct context *c, struct pollfd *fds, uint32_t n)
{
	uint32_t changed = 0, before = c->n, work = 0;

	clear_ready(c, fds, n);
	for (uint32_t i = before; i < n; i++)
		c->shadow[i] = (struct pollfd){ .fd = -1 };
	for (uint32_t i = n; i < before; i++)
		if (c->shadow[i].fd >= 0)
			c->list[changed++] = i;
	for (uint32_t block = 0; block < n; block += BLOCK) {
		uint32_t size = n - block < BLOCK ? n - block : BLOCK;

		if (likely(!memcmp(fds + block, c->shadow + block, size * sizeof *fds)))
			continue;
		for (uint32_t i = block; i < block + size; i++) {
			if (whole(&fds[i]) == whole(&c->shadow[i]))
				continue;
			fds[i].revents = 0;
			if (asked(&fds[i]) != asked(&c->shadow[i]))
				c->list[changed++] = i;
		}
	}
	c->n = n;
	if (likely(!changed))
		return 0;
	for (uint32_t i = 0; i < changed; i++) {
		uint32_t place = c->list[i];
		int old = c->shadow[place].fd;

		place_leaves(c, place);
		c->gone[i] = old >= 0 && (uint32_t)old < FD_CAPACITY ? (uint32_t)old : FD_CAPACITY;
	}
	for (uint32_t i = 0; i < changed; i++) {
		uint32_t place = c->list[i];

		if (place >= n)
			continue;
		c->shadow[place] = fds[place];
		work += (uint32_t)place_enters(c, place);
	}
	if (work > n / 4 + 64)
		return 1;
	for (uint32_t i = 0; i < changed; i++)
		if (c->gone[i] != FD_CAPACITY)
			apply(c, c->gone[i]);
	for (uint32_t i = 0; i < changed; i++) {
		/* Ours: the program's may be changed by another thread. */
		int fd = c->list[i] < n ? c->shadow[c->list[i]].fd : -1;

		if (fd >= 0 && (uint32_t)fd < FD_CAPACITY)
			apply(c, (uint32_t)fd);
	}
	return 0;
}

/* How many places differ from the last set? */
static uint32_t difference(const struct context *c, const struct pollfd *fds, uint32_t n)
{
	uint32_t common = n < c->n ? n : c->n, differ = (n > c->n ? n : c->n) - common;

	for (uint32_t i = 0; i < common; i++)
		differ += asked(&fds[i]) != asked(&c->shadow[i]);
	return differ;
}

/* ------------------------------------------------------------ the results */

static inline int result(struct context *c, struct pollfd *fds, uint32_t place, int revents)
{
	if (fds[place].revents)
		return 0;
	fds[place].revents = c->shadow[place].revents = (short)revents;
	c->ready[c->ready_count++] = place;
	return 1;
}

static int poll_collect(struct wait *w, int events)
{
	struct context *c = w->c;
	struct pollfd *fds = w->user;
	int found = 0;

	for (int i = 0; i < events; i++) {
		uint32_t fd = (uint32_t)c->events[i].data.u64, revents;
		struct slot *slot = &c->slots[fd < FD_CAPACITY ? fd : 0];

		if (unlikely(fd >= FD_CAPACITY || slot->generation != c->events[i].data.u64 >> 32 ||
			     !slot->want || slot->on_side)) {
			/* A file that somebody keeps open after its descriptor
			 * was closed: only a new epoll instance gets rid of it. */
			c->rebuild = 1;
			continue;
		}
		revents = c->events[i].events & ((slot->want & SLOT_EVENTS) | POLLERR | POLLHUP);
		if (likely(revents))
			found += result(c, fds, slot->index, (int)revents);
	}
	return found;
}

static int poll_side(struct wait *w, const struct timespec *timeout, const sigset_t *mask,
		     int *epoll_ready)
{
	struct context *c = w->c;
	uint32_t n = c->side_count;
	int r, found = 0;

	for (uint32_t i = 0; i < n; i++) {
		c->side_poll[i] = c->shadow[c->side[i]];
		c->side_poll[i].revents = 0;
	}
	debox_context_wait_entry(c, &c->side_poll[n]);
	r = real()->ppoll(c->side_poll, n + 1, timeout, mask);
	if (r < 0)
		return -errno;
	for (uint32_t i = 0; i < n && r; i++)
		if (c->side_poll[i].revents)
			found += result(c, w->user, c->side[i], c->side_poll[i].revents);
	*epoll_ready = c->side_poll[n].revents != 0;
	return found;
}

/* Of the program's array, after a real call. */
static int found_ready(const void *with, uint32_t fd)
{
	const struct wait *w = with;

	return ((const struct pollfd *)w->user)[w->c->slots[fd].index].revents != 0;
}

/* After a real call on the program's array: what is ready there is remembered,
 * and whether it is what is registered. */
static void poll_synchronize(struct wait *w, int found)
{
	struct context *c = w->c;
	struct pollfd *fds = w->user;

	for (uint32_t i = 0; i < c->n && found > 0; i++) {
		uint32_t fd;

		if (!fds[i].revents)
			continue;
		found--;
		result(c, &c->shadow[0], i, fds[i].revents);
		fd = (uint32_t)fds[i].fd;
		if (fd < FD_CAPACITY && c->slots[fd].index == i && c->slots[fd].want &&
		    !c->slots[fd].on_side)
			debox_context_verify(c, fd);
	}
}

/* -------------------------------------------------------------- the call */

static int poll_look(struct wait *w, int others)
{
	static const struct timespec none;
	struct context *c = w->c;
	struct pollfd *fds = w->user;
	uint32_t n = (uint32_t)w->n;
	int found, closed = 0;

	clear_ready(c, fds, n);
	found = real()->ppoll(fds, n, &none, NULL);
	if (found < 0)
		return -errno;
	for (uint32_t i = 0; others && i < n && closed < found; i++)
		closed += fds[i].revents == POLLNVAL && fds[i].fd >= 0 &&
			  debox_context_stale(c, (uint32_t)fds[i].fd);
	if (others && closed == found) {
		for (uint32_t i = 0; i < n; i++)
			fds[i].revents = 0;
		return 0;
	}
	poll_synchronize(w, found);
	return found;
}

static int leave_to_kernel(struct pollfd *fds, uint32_t n, const struct timespec *timeout,
			   const sigset_t *mask)
{
	int r = real()->ppoll(fds, n, timeout, mask);

	return r < 0 ? -errno : r;
}

static int limit_allows(struct context *c, uint32_t n)
{
	uint64_t limit[2];

	if (likely(n <= c->n_allowed && c->limits == SHARED_READ(debox_process.limits)))
		return 1;
	c->limits = SHARED_READ(debox_process.limits);
	if (sys_failed(sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, limit)))
		return 0;
	c->n_allowed = limit[0] > FD_CAPACITY ? FD_CAPACITY : (uint32_t)limit[0];
	return n <= c->n_allowed;
}

int debox_poll_serve(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		     const sigset_t *mask)
{
	struct thread *t = &debox_thread;
	struct wait w = { .timeout = timeout, .mask = mask, .user = fds, .n = (int)count, .collect = poll_collect, .side = poll_side, .look = poll_look };
	uint32_t n = (uint32_t)count;
	struct context *c;
	int found;

	if (likely(t->count && t->context[0]->user == fds && t->context[0]->kind == KIND_POLL))
		c = t->context[0];
	else
		c = find(t, fds, n);
	if (unlikely(!c)) {
		COUNT(native_resource);
		return leave_to_kernel(fds, n, timeout, mask);
	}
	if (unlikely(n > c->readable)) {
		if (!debox_memory_readable(fds, n * sizeof *fds)) {
			COUNT(native_argument);
			return leave_to_kernel(fds, n, timeout, mask);
		}
		/* As far as the page of the last place goes. */
		c->readable = n + (uint32_t)(-(uintptr_t)(fds + n) % 4096 / sizeof *fds);
	}
	if (unlikely(!limit_allows(c, n) || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 ||
							 timeout->tv_nsec >= NS_PER_S)))) {
		COUNT(native_argument);
		return leave_to_kernel(fds, n, timeout, mask);
	}
	if (unlikely(c->phase == PHASE_SEEN)) {
		if (c->skip) {
			c->skip--;
			COUNT(native_unstable);
			return leave_to_kernel(fds, n, timeout, mask);
		}
		if (grow(c, n > c->n ? n : c->n)) {
			COUNT(native_resource);
			return leave_to_kernel(fds, n, timeout, mask);
		}
		if (!c->n || difference(c, fds, n) > n / 4) {
			if (c->n && ++c->strikes >= 8)
				c->skip = 64;
			COUNT(native_first);
			remember(c, fds, n);
			return leave_to_kernel(fds, n, timeout, mask);
		}
		remember(c, fds, n);
		for (uint32_t i = 0; i < n; i++)
			fds[i].revents = 0;
		if (go_live(c)) {
			COUNT(native_resource);
			debox_context_reset(c);
			c->skip = 1024;
			return leave_to_kernel(fds, n, timeout, mask);
		}
	} else {
		if (unlikely(n > c->capacity && grow(c, n))) {
			debox_context_reset(c);
			COUNT(native_resource);
			return leave_to_kernel(fds, n, timeout, mask);
		}
		if (unlikely(update(c, fds, n))) {
			debox_context_reset(c);
			remember(c, fds, n);
			if (++c->strikes >= 8)
				c->skip = 64;
			COUNT(native_unstable);
			return leave_to_kernel(fds, n, timeout, mask);
		}
	}
	if (unlikely(__atomic_load_n(&c->stale.any, __ATOMIC_SEQ_CST))) {
		__atomic_store_n(&c->stale.any, 0, __ATOMIC_SEQ_CST);
		debox_tree_take_atomic(&c->stale.tree, stale_one, c);
	}
	debox_context_keep_away(c);
	if (unlikely(c->side_count > n / 2 || c->failed)) {
		debox_context_reset(c);
		c->skip = 1024;
		COUNT(native_side);
		return leave_to_kernel(fds, n, timeout, mask);
	}
	w.c = c;
	w.begin_ns = now_ns();
	found = debox_wait(&w);
	if (unlikely(found == NATIVE)) {
		clear_ready(c, fds, n);
		debox_native_begin(&w);
		found = leave_to_kernel(fds, n, w.timeout, mask);
		debox_native_end(&w, found);
		poll_synchronize(&w, found);
		if (found >= 0)
			debox_context_doubt(c, found_ready, &w);
	}
	COUNT(calls_poll);
	COUNT_BY(descriptors_named, n);
	if (n > SHARED_READ(debox_statistics->descriptors_most))
		SHARED_WRITE(debox_statistics->descriptors_most, n);
	if (found > 0)
		COUNT_BY(events, found);
	return found;
}
