/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a context keep what is registered equal to what the program asked
 * for, when descriptors are closed, replaced, duplicated and refused?
 *
 * Only the owner thread of a context registers. Any thread, and any signal
 * handler, may close a descriptor: debox_forget takes the registration back
 * and leaves a mark in `stale`. The order that makes this safe without a lock:
 * the owner stores slot.reg before it registers, the closer clears slot.reg and
 * marks before it closes. Whatever happens between, a descriptor whose
 * registration may be gone is marked, and the owner's next call looks at it.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* --------------------------------------------------------------- memory */

/*
 * The place names the old memory or the new, never what is unmapped: a signal
 * handler may jump out of the library at any instruction, for good.
 */
int debox_memory_grow(void *place, size_t old_bytes, size_t bytes)
{
	void *old, *new = debox_memory_map(bytes);

	if (!new)
		return -ENOMEM;
	memcpy(&old, place, sizeof old);
	if (old)
		memcpy(new, old, old_bytes);
	__atomic_store_n((void **)place, new, __ATOMIC_SEQ_CST);
	if (old)
		sys_call(SYS_munmap, old, old_bytes);
	return 0;
}

/*
 * The kernel answers EFAULT for memory that is not there; a library would end
 * the program. Asked once for each new place of a set.
 */
int debox_memory_readable(const void *from, size_t bytes)
{
	uintptr_t at = (uintptr_t)from & ~4095ul, end = (uintptr_t)from + bytes;

	while (at < end) {
		char into[256];
		struct iovec local = { into, 0 }, remote[256];
		uint32_t n = 0;

		for (; n < 256 && at < end; n++, at += 4096) {
			remote[n].iov_base = (void *)(at < (uintptr_t)from ? (uintptr_t)from : at);
			remote[n].iov_len = 1;
		}
		local.iov_len = n;
		if (sys_call(SYS_process_vm_readv, sys_call(SYS_getpid), &local, 1, remote, n, 0) !=
		    (long)n)
			return 0;
	}
	return 1;
}

int debox_context_grow_events(struct context *c, uint32_t wanted)
{
	uint32_t capacity = c->events_capacity ? c->events_capacity : 1024;

	if (likely(wanted <= c->events_capacity))
		return 0;
	while (capacity < wanted)
		capacity *= 2;
	if (debox_memory_grow(&c->events, c->events_capacity * sizeof *c->events,
			      capacity * sizeof *c->events))
		return -ENOMEM;
	c->events_capacity = capacity;
	return 0;
}

int debox_context_grow_side(struct context *c)
{
	uint32_t old = c->side_capacity, capacity = old ? old * 2 : 512;

	if (c->side_count < old)
		return 0;
	/* One more place for the private descriptor. */
	if (debox_memory_grow(&c->side, old * sizeof *c->side, capacity * sizeof *c->side) ||
	    debox_memory_grow(&c->side_poll, old ? (old + 1) * sizeof *c->side_poll : 0,
			      (capacity + 1) * sizeof *c->side_poll)) {
		/* The next to be served looks: the set is the kernel's then. */
		c->failed = 1;
		return -ENOMEM;
	}
	c->side_capacity = capacity;
	return 0;
}

/* ------------------------------------------------------ private descriptor */

/*
 * A number that the program will not get and not miss: at or above its limit
 * if that can be had, for which the limit is raised for a moment (the hard
 * limit stays). Limits beyond 64k would make the kernel's table of descriptors
 * large, so there it is only far above what is in use.
 */
static int private_place(int fd, uint32_t above)
{
	struct rlimit64 limit = { 0, 0 }, raised;
	uint32_t lowest;
	long moved = -EMFILE;
	sigset_t old;

	/* Two threads at once would take each other's raised limit for the
	 * program's. */
	debox_lock(&old);
	sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &limit);
	if (limit.rlim_cur <= 65536 && limit.rlim_cur + 64 <= limit.rlim_max) {
		raised = limit;
		raised.rlim_cur = limit.rlim_cur + 64;
		if (!sys_failed(sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, &raised, 0))) {
			moved = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, limit.rlim_cur);
			sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, 0);
		}
	}
	debox_unlock(&old);
	if (!sys_failed(moved))
		return (int)moved;
	lowest = above < 1024 ? 4096 : above * 4;
	if (lowest + 64 > limit.rlim_cur)
		lowest = limit.rlim_cur > 64 ? (uint32_t)limit.rlim_cur - 64 : 3;
	for (;;) {
		moved = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
		if (!sys_failed(moved) || lowest <= 3)
			return (int)moved;
		lowest = lowest / 2 < 3 ? 3 : lowest / 2;
	}
}

enum state {
	CLOSED, /* or replaced: nothing to take back */
	OPEN,   /* and will be closed: kept open for those who wait for it */
	STAYS,  /* open */
};

static int forget(uint32_t fd, enum state state);

static int epoll_open(struct context *c)
{
	long fd = sys_call(SYS_epoll_create1, EPOLL_CLOEXEC), moved;

	if (sys_failed(fd))
		return (int)fd;
	moved = private_place((int)fd, c->highest_fd);
	if (!sys_failed(moved) && moved < (long)FD_CAPACITY) {
		/* It had the lowest free number for a moment. Another thread that
		 * asks about that number, closed for the program, may have found
		 * this instance and registered it: before the close it can still
		 * be taken away, and after it nobody can find it. */
		forget((uint32_t)fd, STAYS);
		sys_call(SYS_close, fd);
		forget((uint32_t)fd, CLOSED);
		fd = moved;
	} else if (!sys_failed(moved)) {
		sys_call(SYS_close, moved);
	}
	SHARED_WRITE(c->epfd, (int)fd);
	if ((uint32_t)fd < FD_CAPACITY)
		debox_flag(fd, FD_PRIVATE);
	return 0;
}

int debox_descriptor_is(uint32_t fd, const char *word)
{
	char path[40], target[40] = "";

	snprintf(path, sizeof path, "/proc/self/fd/%u", fd);
	return !sys_failed(sys_call(SYS_readlinkat, AT_FDCWD, path, target, sizeof target - 1)) &&
	       strstr(target, word);
}

void debox_context_close_private(struct context *c)
{
	if (c->epfd < 0)
		return;
	if ((uint32_t)c->epfd < FD_CAPACITY)
		SHARED_WRITE(descriptor_flags()[c->epfd], 0);
	/* The program may have closed it where nobody saw it, and may have got
	 * the number since. */
	if (debox_descriptor_is((uint32_t)c->epfd, "eventpoll"))
		sys_call(SYS_close, c->epfd);
	SHARED_WRITE(c->epfd, -1);
}

static void move_away(struct context *c)
{
	long moved;

	c->moved_for = c->highest_fd;
	moved = private_place(c->epfd, c->highest_fd);
	if (sys_failed(moved) || moved >= (long)FD_CAPACITY)
		return;
	debox_flag((int)moved, FD_PRIVATE);
	SHARED_WRITE(descriptor_flags()[c->epfd], 0);
	sys_call(SYS_close, c->epfd);
	SHARED_WRITE(c->epfd, (int)moved);
}

void debox_context_keep_away(struct context *c)
{
	if (unlikely((uint32_t)c->epfd <= c->highest_fd + 256 && c->highest_fd > c->moved_for))
		move_away(c);
}

/* ---------------------------------------------------------- registrations */

static void ignore(uint32_t number, void *with)
{
}

void debox_context_reset(struct context *c)
{
	debox_context_close_private(c);
	debox_context_wait_end(c);
	sys_call(SYS_madvise, c->slots, FD_CAPACITY * sizeof(struct slot), MADV_DONTNEED);
	__atomic_store_n(&c->stale.any, 0, __ATOMIC_SEQ_CST);
	debox_tree_take_atomic(&c->stale.tree, ignore, NULL);
	c->phase = PHASE_SEEN;
	c->side_count = 0;
	c->ready_count = 0;
	c->rebuild = 0;
	c->failed = 0;
	c->n = 0;
	c->words = 0;
	c->highest_fd = 0;
	c->moved_for = 0;
}

static void refused(long error)
{
	switch (-error) {
	case EPERM: COUNT(refused_type); break;
	case EBADF: COUNT(refused_closed); break;
	case ELOOP: COUNT(refused_nesting); break;
	case ENOSPC: COUNT(refused_limit); break;
	case ENOMEM: COUNT(refused_memory); break;
	default: COUNT(refused_other);
	}
}

static long control(struct context *c, int how, uint32_t fd, uint32_t events)
{
	struct epoll_event event = {
		.events = events & SLOT_EVENTS,
		.data.u64 = (uint64_t)c->slots[fd].generation << 32 | fd,
	};

	return sys_call(SYS_epoll_ctl, c->epfd, how, fd, &event);
}

/*
 * Wake-ups carry the events that they are for, and epoll ignores those that
 * name nothing it registered; some drivers name POLLIN alone where their state
 * is POLLIN and POLLRDNORM (epoll itself, eventfd). So a set with only the
 * second would be told late. poll's and select's first look does not depend on
 * wake-ups: these go on the side.
 */
static int told_late(uint32_t events)
{
	return (events & (POLLRDNORM | POLLRDBAND) && !(events & POLLIN)) ||
	       (events & (POLLWRNORM | POLLWRBAND) && !(events & POLLOUT));
}

/*
 * Sockets, pipes and the kernel's own (eventfd, timerfd, epoll ...) wake whoever
 * waits whenever their state changes. Devices need not: a terminal becomes
 * writable without a wake-up, which the first look of every poll hides. Files
 * of /proc and /sys, and perf events, forget an event when it was looked at, and
 * to register is to look. These go on the side. What a function here created is
 * known; others are asked once.
 */
static int wakes(uint32_t fd)
{
	struct stat st;

	if (likely(SHARED_READ(descriptor_flags()[fd]) & FD_KNOWN))
		return 1;
	if (sys_failed(sys_call(SYS_fstat, fd, &st)))
		return 1; /* epoll_ctl says what is wrong */
	/* Files of no kind: eventfd, timerfd ... */
	if (!(st.st_mode & S_IFMT) && debox_descriptor_is(fd, "perf_event"))
		return 0;
	if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
		return 0;
	debox_flag((int)fd, FD_KNOWN);
	return 1;
}

/* What is known of the number was about another file. */
static void not_known(uint32_t fd)
{
	__atomic_fetch_and(&descriptor_flags()[fd], (uint8_t)~FD_KNOWN, __ATOMIC_SEQ_CST);
}

int debox_context_apply(struct context *c, uint32_t fd)
{
	struct slot *slot = &c->slots[fd];
	uint16_t want = slot->want;
	uint16_t reg = __atomic_load_n(&slot->reg, __ATOMIC_SEQ_CST);
	long r;

	if (want == reg)
		return 0;
	if (!want || unlikely(told_late(want))) {
		/* Only if it is still ours to remove. */
		if (__atomic_exchange_n(&slot->reg, 0, __ATOMIC_SEQ_CST)) {
			control(c, EPOLL_CTL_DEL, fd, 0);
			COUNT(removed);
		}
		if (!want)
			return 0;
		debox_flag((int)fd, FD_TRACKED);
		COUNT(refused_events);
		return 1;
	}
	/* Only if it is still registered: who closes it in another thread takes reg
	 * and then the registration, and must find what is written here, or have
	 * been found. */
	if (reg && __atomic_compare_exchange_n(&slot->reg, &reg, want, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		r = control(c, EPOLL_CTL_MOD, fd, want);
		if (r == 0) {
			COUNT(changed);
			return 0;
		}
		/* Another file has the number now. */
		not_known(fd);
		COUNT(recheck_found);
	}
	if (unlikely(!wakes(fd))) {
		__atomic_store_n(&slot->reg, 0, __ATOMIC_SEQ_CST);
		debox_flag((int)fd, FD_TRACKED);
		COUNT(refused_type);
		return 1;
	}
	slot->generation++;
	/* In this order: who closes it clears the flag before it looks at reg,
	 * and looks at the flag again when it is closed. */
	__atomic_store_n(&slot->reg, want, __ATOMIC_SEQ_CST);
	debox_flag((int)fd, FD_TRACKED);
	r = control(c, EPOLL_CTL_ADD, fd, want);
	if (r == -EEXIST)
		/* An older registration of the same file and number, which
		 * survived as somebody kept the file open. */
		r = control(c, EPOLL_CTL_MOD, fd, want);
	if (r == 0) {
		COUNT(registered);
		return 0;
	}
	__atomic_store_n(&slot->reg, 0, __ATOMIC_SEQ_CST);
	refused(r);
	return 1;
}

int debox_context_verify(struct context *c, uint32_t fd)
{
	struct slot *slot = &c->slots[fd];
	uint16_t reg = __atomic_load_n(&slot->reg, __ATOMIC_SEQ_CST);

	if (!reg || control(c, EPOLL_CTL_MOD, fd, reg) == 0)
		return 1;
	COUNT(recheck_found);
	not_known(fd);
	__atomic_store_n(&slot->reg, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&c->stale.any, 1, __ATOMIC_SEQ_CST);
	debox_tree_insert_atomic(&c->stale.tree, fd);
	return 0;
}

void debox_context_doubt(struct context *c, int (*found)(const void *with, uint32_t fd),
			 const void *with)
{
	long got = sys_call(SYS_epoll_pwait, c->epfd, c->events, c->events_capacity, 0, 0, 8);

	/* The private descriptor is gone, or the number is the program's now. */
	if (unlikely(got < 0))
		c->rebuild = 1;
	for (long i = 0; i < got; i++) {
		uint32_t fd = (uint32_t)c->events[i].data.u64;
		const struct slot *slot = &c->slots[fd < FD_CAPACITY ? fd : 0];

		if (fd >= FD_CAPACITY || slot->generation != c->events[i].data.u64 >> 32)
			c->rebuild = 1;
		else if (slot->want && !slot->on_side && !found(with, fd))
			debox_context_verify(c, fd);
	}
}

static int register_all(struct context *c)
{
	int r;

	debox_context_close_private(c);
	r = epoll_open(c);
	if (r)
		return r;
	c->rebuild = 0;
	for (uint32_t fd = 0; fd <= c->highest_fd; fd++) {
		struct slot *slot = &c->slots[fd];

		if (!slot->want && !SHARED_READ(slot->reg))
			continue;
		__atomic_store_n(&slot->reg, 0, __ATOMIC_SEQ_CST);
		if (slot->want && !slot->on_side && debox_context_apply(c, fd)) {
			__atomic_store_n(&c->stale.any, 1, __ATOMIC_SEQ_CST);
			debox_tree_insert_atomic(&c->stale.tree, fd);
		}
	}
	return 0;
}

int debox_context_rebuild(struct context *c)
{
	COUNT(rebuilds);
	return register_all(c);
}

int debox_context_go_live(struct context *c)
{
	c->phase = PHASE_LIVE;
	c->check_at_ns = now_ns() + debox_process.recheck_ns;
	return register_all(c);
}

/* -------------------------------------------------- closed and created */

/*
 * The system call of a thread that waits for a descriptor keeps its file open
 * when another thread closes it, and still wakes when something arrives. So
 * does a second descriptor of the file until that thread has finished waiting.
 */
static void pin_close(int fd)
{
	if (fd < (int)FD_CAPACITY)
		SHARED_WRITE(descriptor_flags()[fd], 0);
	sys_call(SYS_close, fd);
}

static int pin(struct context *c, uint32_t fd, uint32_t waiting)
{
	long copy = private_place((int)fd, c->highest_fd);
	uint32_t at;
	int pinned;

	if (sys_failed(copy))
		return 0;
	if (copy < (long)FD_CAPACITY)
		debox_flag((int)copy, FD_PRIVATE);
	pinned = (int)copy + 1;
	__atomic_fetch_add(&c->pins_taken, 1, __ATOMIC_SEQ_CST);
	for (at = 0; at < PINS; at++) {
		int none = 0;

		if (__atomic_compare_exchange_n(&c->pins[at], &none, pinned, 0, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			break;
	}
	if (at == PINS) {
		pin_close((int)copy);
		return 0;
	}
	COUNT(pinned);
	/* Pairs with debox_context_wait_end: either it finds what is in the place,
	 * or this sees that the wait is over. */
	if (__atomic_load_n(&c->waiting, __ATOMIC_SEQ_CST) == waiting)
		return 1;
	if (__atomic_compare_exchange_n(&c->pins[at], &pinned, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		pin_close((int)copy);
	return 0;
}

void debox_context_wait_begin(struct context *c)
{
	SHARED_WRITE(c->closed_by_own_handler, 0);
	SHARED_WRITE(c->epoll_entry, NULL);
	__atomic_store_n(&c->waiting, c->waiting + 1, __ATOMIC_SEQ_CST);
}

void debox_context_wait_end(struct context *c)
{
	/* Even already: a context that is reset. */
	__atomic_store_n(&c->waiting, (c->waiting + 1) & ~1u, __ATOMIC_SEQ_CST);
	if (likely(!__atomic_load_n(&c->pins_taken, __ATOMIC_SEQ_CST)))
		return;
	__atomic_store_n(&c->pins_taken, 0, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < PINS; i++) {
		int fd = __atomic_exchange_n(&c->pins[i], 0, __ATOMIC_SEQ_CST) - 1;

		if (fd >= 0)
			pin_close(fd);
	}
}

static void end_before_it_begins(struct context *c)
{
	struct pollfd *entry = SHARED_READ(c->epoll_entry);

	SHARED_WRITE(c->limit.tv_sec, 0);
	SHARED_WRITE(c->limit.tv_nsec, 0);
	if (entry)
		SHARED_WRITE(entry->fd, INT_MAX);
}

/* Both pair with waits() in a handler of the same thread: it sets the mark, then
 * changes what these write; they write, then read the mark. */
void debox_context_wait_limit(struct context *c, const struct timespec *limit)
{
	SHARED_WRITE(c->limit.tv_sec, limit->tv_sec);
	SHARED_WRITE(c->limit.tv_nsec, limit->tv_nsec);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (unlikely(SHARED_READ(c->closed_by_own_handler)))
		end_before_it_begins(c);
}

void debox_context_wait_entry(struct context *c, struct pollfd *entry)
{
	*entry = (struct pollfd){ .fd = c->epfd, .events = POLLIN };
	SHARED_WRITE(c->epoll_entry, entry);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (unlikely(SHARED_READ(c->closed_by_own_handler)))
		end_before_it_begins(c);
}

/*
 * The number of the wait in which another thread is, or 0. A handler that closes
 * what its own thread waits for ends that call with EINTR, if it has begun; if
 * not, the call finds no time left and debox_wait looks again. After a jump out of
 * the call nobody waits.
 */
static uint32_t waits(struct context *c)
{
	const struct thread *t = &debox_thread;
	uint32_t waiting = __atomic_load_n(&c->waiting, __ATOMIC_SEQ_CST);

	if (!(waiting & 1))
		return 0;
	if (t->generation == debox_process.generation)
		for (uint32_t i = 0; i < t->count; i++)
			if (t->context[i] == c) {
				SHARED_WRITE(c->closed_by_own_handler, 1);
				end_before_it_begins(c);
				return 0;
			}
	return waiting;
}

/* How many contexts had it registered. */
static int forget(uint32_t fd, enum state state)
{
	struct process *p = &debox_process;
	uint32_t made = __atomic_load_n(&p->contexts_made, __ATOMIC_ACQUIRE);
	int registered = 0;

	__atomic_fetch_and(&descriptor_flags()[fd], (uint8_t) ~(FD_TRACKED | FD_KNOWN), __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < made; i++) {
		struct context *c = __atomic_load_n(&p->contexts[i], __ATOMIC_ACQUIRE);
		struct slot *slot;
		uint32_t waiting;
		uint16_t reg;

		if (!c || !__atomic_load_n(&c->live, __ATOMIC_SEQ_CST))
			continue;
		slot = &c->slots[fd];
		reg = __atomic_exchange_n(&slot->reg, 0, __ATOMIC_SEQ_CST);
		if (!reg && !SHARED_READ(slot->want))
			continue;
		debox_tree_insert_atomic(&c->stale.tree, fd);
		__atomic_store_n(&c->stale.any, 1, __ATOMIC_SEQ_CST);
		if (!reg)
			continue;
		registered++;
		waiting = waits(c);
		if (waiting && state == OPEN && pin(c, fd, waiting))
			continue;
		if (state != CLOSED)
			sys_call(SYS_epoll_ctl, SHARED_READ(c->epfd), EPOLL_CTL_DEL, fd, 0);
	}
	return registered;
}

void debox_make_way(uint32_t fd)
{
	struct process *p = &debox_process;

	COUNT(private_protected);
	for (uint32_t i = 0; i < p->contexts_made; i++) {
		struct context *c = p->contexts[i];
		int place;

		if (!c || !c->live)
			continue;
		if (c->epfd == (int)fd) {
			place = private_place((int)fd, fd);
			if (!sys_failed(place)) {
				debox_flag(place, FD_PRIVATE);
				c->epfd = place;
			}
		}
		for (uint32_t k = 0; k < PINS; k++)
			if (c->pins[k] == (int)fd + 1) {
				place = private_place((int)fd, fd);
				if (!sys_failed(place)) {
					debox_flag(place, FD_PRIVATE);
					c->pins[k] = place + 1;
				}
			}
	}
	SHARED_WRITE(descriptor_flags()[fd], 0);
}

void debox_forget(uint32_t fd)
{
	if (forget(fd, OPEN))
		COUNT(closes);
}

void debox_forget_closed(uint32_t fd)
{
	forget(fd, CLOSED);
}

int debox_forget_nested(void)
{
	struct process *p = &debox_process;
	int found = 0;

	for (uint32_t fd = 0; fd <= p->highest_flag; fd++)
		if (SHARED_READ(descriptor_flags()[fd]) & FD_TRACKED && debox_descriptor_is(fd, "eventpoll"))
			found += forget(fd, STAYS);
	return found;
}

void debox_created_known(uint32_t fd)
{
	if (!debox_process.alive || !*debox_process.alive || debox_thread.vfork_child)
		return;
	if (forget(fd, CLOSED))
		COUNT(created_found);
}
