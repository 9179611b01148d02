/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do the parts of libdebox-select.so know of each other?
 *
 * The library keeps, for each thread that waits with large sets, *contexts*: a
 * private epoll instance and the set that the last call named. The words of
 * Banga and Mogul, and where they live here:
 *
 *   INTERESTED   what is registered with the private epoll (struct slot, reg)
 *   SELECTING    what this call names (struct slot, want)
 *   HINTS, READY epoll's own list of descriptors that changed or were ready.
 *                They are registered level-triggered, with exactly the events
 *                that the program asked for, so the kernel keeps both sets and
 *                checks both when asked: one system call, where an
 *                edge-triggered registration needs a second one to look again
 *                at what was ready.
 *
 * The rule that everything rests on: when a thread blocks, each descriptor of
 * its call is registered with exactly the events of the call, or is on the
 * *side*, where the real system call looks at it.
 */
#ifndef DEBOX_SELECT_INTERNAL_H
#define DEBOX_SELECT_INTERNAL_H

#include "tree.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

#include "../libdebox/sys.h"

#define DEBOX_API __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define NS_PER_S 1000000000ll

/* One thread writes, others read, and nothing else depends on the order. */
#define SHARED_READ(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define SHARED_WRITE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

/* Descriptors from here on are never registered: the side looks at them.
 * fs.nr_open is no larger unless somebody raised it. */
#define FD_CAPACITY (1u << 20)
/* Contexts of one process; threads beyond use the real calls. */
#define CONTEXT_CAPACITY 4096u
/* Contexts of one thread: so many sets can be waited for in turns. */
#define THREAD_CONTEXTS 4u
/* Sets with fewer descriptors are the kernel's. See docs/select.md. */
#define THRESHOLD_DEFAULT 64u
/* A set is looked at in full when so long has passed, or 200 times the CPU time
 * that it costs, if that is longer: at most half a per cent. */
#define RECHECK_DEFAULT_NS 100000000ll
#define RECHECK_COST_FACTOR 200
#define RECHECK_LONGEST_NS (2 * NS_PER_S)

/* ------------------------------------------------------------ statistics */

/*
 * One per process; in a file shared with `debox select` when it asks for that
 * (crates/select/src/stats.rs mirrors this), so that a process that is killed
 * has counted as well. Counters only grow.
 */
#define STATISTICS_MAGIC 0x3173746174736264ull /* "dbstats1" */
#define STATISTICS(X)                                                                             \
	X(calls_straight, "calls passed straight through (few descriptors)")                      \
	X(calls_poll, "poll and ppoll calls served")                                              \
	X(calls_select, "select and pselect calls served")                                        \
	X(descriptors_named, "descriptors named in calls served")                                 \
	X(events, "descriptors found ready")                                                      \
	X(registered, "descriptors registered")                                                   \
	X(changed, "registrations changed")                                                       \
	X(removed, "registrations removed")                                                       \
	X(closes, "closes of a registered descriptor seen")                                       \
	X(native_first, "calls left to the kernel: a new set")                                    \
	X(native_unstable, "calls left to the kernel: the set changes too much")                  \
	X(native_nested, "calls left to the kernel: from a signal handler")                       \
	X(native_side, "calls left to the kernel: too many descriptors that epoll does not take") \
	X(native_argument, "calls left to the kernel: odd arguments")                             \
	X(native_resource, "calls left to the kernel: no memory or descriptor for a context")     \
	X(native_off, "calls left to the kernel: the library is off")                             \
	X(native_syscall, "calls left to the kernel: poll or select by syscall()")                \
	X(io_urings, "io_uring instances made: what they wait for is not seen")                   \
	X(side_calls, "calls that looked at some descriptors with the real call")                 \
	X(refused_type, "registrations refused: a file that is always ready")                     \
	X(refused_events, "registrations refused: events that are told late")                     \
	X(refused_closed, "registrations refused: the descriptor is not open")                    \
	X(refused_nesting, "registrations refused: epoll nested too deep")                        \
	X(refused_limit, "registrations refused: fs.epoll.max_user_watches")                      \
	X(refused_memory, "registrations refused: no kernel memory")                              \
	X(refused_other, "registrations refused: other")                                          \
	X(rechecks, "calls answered by the real call: a full look at the set")                    \
	X(recheck_ns, "nanoseconds of CPU time these took")                                       \
	X(recheck_found, "descriptors that a full look found replaced")                           \
	X(created_found, "descriptors found replaced when a new one took their number")           \
	X(rebuilds, "private epoll instances made anew")                                          \
	X(pinned, "descriptors closed while another thread waited for them")                      \
	X(private_protected, "attempts to close or overwrite a private descriptor")               \
	X(contexts, "contexts made")                                                              \
	X(descriptors_most, "most descriptors in one set")

struct statistics {
	uint64_t magic; /* written last */
	int32_t pid;
	uint32_t off; /* enum off */
	char command[16];
#define X(name, text) uint64_t name;
	STATISTICS(X)
#undef X
};

/* Counts in the process's block; several threads may lose a count to each
 * other, which costs less than it would to prevent. */
#define COUNT_BY(name, n) \
	SHARED_WRITE(debox_statistics->name, SHARED_READ(debox_statistics->name) + (uint64_t)(n))
#define COUNT(name) COUNT_BY(name, 1)
extern struct statistics *debox_statistics;

/* file: shared with others, or NULL; on_exit: print them at the end. */
void debox_statistics_start(const char *file, int on_exit);
/* A forked child gets a block of its own. */
void debox_statistics_child(void);

/* -------------------------------------------------------------- process */

/* Why the library does nothing in this process. */
enum off {
	OFF_NOT,
	OFF_ASKED,      /* DEBOX_SELECT=off */
	OFF_EPOLL,      /* epoll_create1 fails: seccomp, or a kernel without it */
	OFF_SECCOMP,    /* the program restricted its system calls */
	OFF_FILE_TABLE, /* threads or processes share memory but not descriptors, or the reverse */
	OFF_MEMORY,
};

/* Bits of debox_process.flags[fd]. */
#define FD_TRACKED 1u /* some context has it registered, or on its side */
#define FD_PRIVATE 2u /* ours; the program never opened it */
#define FD_KNOWN 4u   /* a file that wakes reliably */

struct process {
	/*
	 * In a page that a forked child finds zeroed (MADV_WIPEONFORK), however
	 * it was forked: 0 means that contexts are the parent's.
	 */
	uint32_t *alive;
	uint32_t off; /* enum off */
	uint32_t threshold;
	int64_t recheck_ns;
	uint8_t *flags;         /* FD_CAPACITY bytes; NULL: not set up */
	uint32_t contexts_made; /* contexts[0 .. contexts_made - 1] exist */
	uint32_t generation;    /* of thread state: a child's threads start over */
	uint32_t highest_flag;  /* atomic; no descriptor above has flags */
	uint32_t limits;        /* counts changes of RLIMIT_NOFILE */
	uint32_t counting;      /* somebody wants the statistics */
	uint32_t sticky;        /* the personality leaves timeouts alone */
	uint32_t catches;       /* a signal got a handler, once at least */
	uint32_t exact;         /* waits end with EINTR exactly when the system call's do; see wait.c */
	struct context *contexts[CONTEXT_CAPACITY];
};
extern struct process debox_process;

/* NULL until the first large wait. Pairs with the release store in start(). */
static inline uint8_t *descriptor_flags(void)
{
	return __atomic_load_n(&debox_process.flags, __ATOMIC_ACQUIRE);
}

/* 1 if contexts may be used in this process; sets them up when need be. */
int debox_process_ready(void);
void debox_process_turn_off(enum off why);
/* For what threads do one at a time: handles, and the limit of descriptors while
 * it is raised. Signals are blocked meanwhile. */
void debox_lock(sigset_t *old);
void debox_unlock(const sigset_t *old);
/* In a child, of whose parent some thread may have held it. */
void debox_lock_reset(void);
/* 1 if a signal that has a handler might interrupt a call (SigCgt). */
int debox_process_catches_signals(void);
/* 1 unless the process surely has one thread only. */
int debox_process_has_threads(void);
void *debox_memory_map(size_t bytes);

struct thread {
	uint32_t generation;
	uint32_t count;
	uint32_t abandoned;
	uint32_t vfork_child; /* on the parent's memory, with descriptors of its own */
	/* Inside the library: the stack pointer, so that a call from a signal
	 * handler is told from one after a longjmp out of the library. */
	uintptr_t busy;
	struct context *context[THREAD_CONTEXTS]; /* the last used one first */
	/* Sets that are known to be readable memory. */
	const fd_set *seen_set[3];
	uint32_t seen_nfds;
};
extern __thread struct thread debox_thread __attribute__((tls_model("initial-exec")));

/* -------------------------------------------------------------- context */

/* One descriptor number in one context. */
struct slot {
	uint16_t want;       /* SLOT_IN | events of the current set */
	uint16_t reg;        /* SLOT_IN | events registered; other threads clear it when
			* they close the descriptor */
	uint32_t index;      /* poll: its place in the array */
	uint32_t generation; /* in epoll's data: tells a registration from an
			      * older one of the same number */
	uint32_t on_side;
};
#define SLOT_IN 0x8000u
#define SLOT_EVENTS 0x3fffu

enum kind { KIND_POLL,
	    KIND_SELECT };
enum phase {
	PHASE_SEEN, /* the set is remembered, nothing is registered */
	PHASE_LIVE,
};

#define PINS 64u
enum { SET_READ,
       SET_WRITE,
       SET_EXCEPT,
       SETS };

struct context {
	uint32_t handle;
	uint32_t live;    /* atomic: 0 while nobody owns it */
	uint32_t waiting; /* atomic: odd while its thread waits; each wait has its own number */
	/* A handler that interrupted the wait closed one of its descriptors. A
	 * system call that has not begun yet would not see it: the handler takes
	 * its time away, and makes ppoll's entry one that is not open. */
	uint32_t closed_by_own_handler;
	struct timespec limit;      /* of this wait */
	struct pollfd *epoll_entry; /* while ppoll waits: in `alone`, or the side's last */
	struct pollfd alone;
	int epfd;
	enum kind kind;
	enum phase phase;
	uint32_t strikes; /* sets in a row that changed too much */
	uint32_t skip;    /* calls to leave to the kernel before the next try */
	const void *user; /* where the program keeps the set */

	struct slot *slots; /* FD_CAPACITY */
	/* Descriptors that were closed or replaced since the last call. */
	struct tree_box {
		struct debox_tree tree;
		uint32_t any; /* atomic */
	} stale;
	uint32_t highest_fd;
	uint32_t moved_for; /* highest_fd when the private descriptor was last moved */
	uint32_t rebuild;   /* the epoll instance reports what nobody can remove */
	uint32_t failed;    /* no memory to keep something on the side */

	struct epoll_event *events;
	uint32_t events_capacity;

	/* poll: the array as the program must find it at the next call, if it
	 * changed nothing */
	struct pollfd *shadow;
	uint32_t n, capacity;
	uint32_t readable;  /* places of the array that are known to be memory */
	uint32_t n_allowed; /* RLIMIT_NOFILE when last asked */
	uint32_t limits;    /* debox_process.limits then */
	uint32_t *ready;    /* places whose revents are not 0 */
	uint32_t ready_count;
	uint32_t *list; /* places that differ */
	uint32_t *gone; /* descriptors that were there */

	/* select: the sets of the last call */
	uint64_t *set[SETS];
	uint64_t *out[SETS]; /* results of this call */
	uint32_t words;
	uint32_t set_capacity; /* words */

	/* The side. poll: places. select: descriptors. */
	uint32_t *side;
	uint32_t side_count, side_capacity;
	struct pollfd *side_poll;
	uint64_t *side_set[SETS];
	uint32_t side_words;

	int64_t check_at_ns;   /* when the program's own call is due */
	int64_t check_cost_ns; /* of the last ones; 0: none yet */

	/* Descriptors that others closed while this context waited for them. */
	uint32_t pins_taken; /* atomic */
	int pins[PINS];      /* atomic; descriptor + 1 */
};

/* A context for one more set of the thread, which may give up its least recently
 * used one for it; NULL: none can be had. It is the thread's first then. */
struct context *debox_context_take(struct thread *t, enum kind kind);
/* Makes the thread's context `at` its first. */
void debox_context_use(struct thread *t, uint32_t at);
/* Gives everything up that the context knows: phase seen, nothing registered. */
void debox_context_reset(struct context *c);
/* Registers all that is wanted; what is refused is in `stale` then. */
int debox_context_go_live(struct context *c);
/* The same with a new epoll instance. */
int debox_context_rebuild(struct context *c);
/* Registers, changes or removes, after slot.want. Returns 0, or 1 if the
 * descriptor has to go on the side. */
int debox_context_apply(struct context *c, uint32_t fd);
/* Whether the registered descriptor is still the one that was registered. */
int debox_context_verify(struct context *c, uint32_t fd);
/* Verifies what epoll reports and a real call just did not find ready. */
void debox_context_doubt(struct context *c, int (*found)(const void *with, uint32_t fd),
			 const void *with);
/* Whether the kernel's name of what the number stands for has `word` in it. */
int debox_descriptor_is(uint32_t fd, const char *word);
/* Closes the private descriptor, if it still is ours. */
void debox_context_close_private(struct context *c);
/* From here on others keep open what they close of the set; until here. */
void debox_context_wait_begin(struct context *c);
void debox_context_wait_end(struct context *c);
void debox_context_wait_limit(struct context *c, const struct timespec *limit);
/* The entry of the private descriptor, for ppoll. */
void debox_context_wait_entry(struct context *c, struct pollfd *entry);
/* Whether another thread closed or replaced it since the call began. */
static inline int debox_context_stale(const struct context *c, uint32_t fd)
{
	return fd < FD_CAPACITY &&
	       __atomic_load_n(&c->stale.tree.level[0][fd >> 6], __ATOMIC_SEQ_CST) >> (fd & 63) & 1;
}
int debox_context_grow_events(struct context *c, uint32_t wanted);
int debox_context_grow_side(struct context *c);
/* Moves the private descriptor out of the way of a set that comes near. */
void debox_context_keep_away(struct context *c);
/* `place` is the address of a pointer to the memory. */
int debox_memory_grow(void *place, size_t old_bytes, size_t bytes);
int debox_memory_readable(const void *from, size_t bytes);

/* The program takes the number of a private descriptor. */
void debox_make_way(uint32_t fd);
static inline void debox_flag(int fd, uint8_t flag)
{
	struct process *p = &debox_process;
	uint32_t highest = __atomic_load_n(&p->highest_flag, __ATOMIC_RELAXED);

	/* Never down: another thread may have stored a higher one meanwhile. */
	while (unlikely((uint32_t)fd > highest))
		if (__atomic_compare_exchange_n(&p->highest_flag, &highest, (uint32_t)fd, 0,
						__ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			break;
	if (!(SHARED_READ(descriptor_flags()[fd]) & flag))
		__atomic_fetch_or(&descriptor_flags()[fd], flag, __ATOMIC_SEQ_CST);
}

/* A descriptor is about to be closed: forget it everywhere. */
void debox_forget(uint32_t fd);
/* It is closed. Another thread may have registered it between the two. */
void debox_forget_closed(uint32_t fd);
/* No epoll instance of the program is registered any more: until the next call
 * they nest no deeper than the program made them. How many there were. */
int debox_forget_nested(void);
/* A descriptor was created: if somebody still has its number registered, the
 * old one was closed where nobody saw it. */
void debox_created_known(uint32_t fd);

/* ----------------------------------------------------------------- wait */

/* The real call must decide; nothing of the program's memory has changed. */
#define NATIVE (-4095)

struct wait {
	struct context *c;
	const struct timespec *timeout; /* NULL: for ever; NATIVE: what is left of it */
	const sigset_t *mask;           /* NULL: as it is */
	int64_t begin_ns;
	struct timespec left;
	int64_t cpu_ns; /* of the thread, before the real call */
	/* Stores the results of `events` events; the number of descriptors that
	 * became ready by it. */
	int (*collect)(struct wait *w, int events);
	/* Waits for the side and the private epoll with the real call. Sets
	 * epoll_ready, stores results; the number of descriptors, or -errno. */
	int (*side)(struct wait *w, const struct timespec *timeout, const sigset_t *mask,
		    int *epoll_ready);
	/* What the system call would find now, after another thread closed some of
	 * the set: stores results, the number of descriptors, or -errno. `others`:
	 * 0, and nothing stored, when it is only these. */
	int (*look)(struct wait *w, int others);
	void *user;
	int n;
	fd_set *user_set[SETS];
};

/* How many descriptors are ready, 0 at the end of the time, -errno, NATIVE. */
int debox_wait(struct wait *w);
/* Around the real call that NATIVE asks for; found: its answer, or -errno. */
void debox_native_begin(struct wait *w);
void debox_native_end(struct wait *w, int found);

static inline int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* --------------------------------------------------------- poll, select */

int debox_poll_serve(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
		     const sigset_t *mask);
int debox_select_serve(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		       const struct timespec *timeout, const sigset_t *mask);

/* ----------------------------------------------------------------- real */

/* libc's functions: they are cancellation points where ours must be. */
struct real {
	int (*poll)(struct pollfd *, nfds_t, int);
	int (*ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
	int (*select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
	int (*pselect)(int, fd_set *, fd_set *, fd_set *, const struct timespec *,
		       const sigset_t *);
	int (*epoll_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
	int (*epoll_pwait2)(int, struct epoll_event *, int, const struct timespec *,
			    const sigset_t *);
	int (*close)(int);
	int (*close_range)(unsigned, unsigned, int);
	void (*closefrom)(int);
	int (*dup)(int);
	int (*dup2)(int, int);
	int (*dup3)(int, int, int);
	int (*fcntl)(int, int, ...);
	int (*fcntl64)(int, int, ...);
	int (*fclose)(FILE *);
	int (*pclose)(FILE *);
	FILE *(*freopen)(const char *, const char *, FILE *);
	FILE *(*freopen64)(const char *, const char *, FILE *);
	int (*closedir)(void *);
	int (*accept)(int, struct sockaddr *, socklen_t *);
	int (*accept4)(int, struct sockaddr *, socklen_t *, int);
	int (*socket)(int, int, int);
	int (*socketpair)(int, int, int, int[2]);
	int (*pipe)(int[2]);
	int (*pipe2)(int[2], int);
	int (*eventfd)(unsigned, int);
	int (*timerfd_create)(int, int);
	int (*signalfd)(int, const sigset_t *, int);
	int (*inotify_init)(void);
	int (*inotify_init1)(int);
	int (*epoll_create)(int);
	int (*epoll_create1)(int);
	int (*memfd_create)(const char *, unsigned);
	int (*open)(const char *, int, ...);
	int (*open64)(const char *, int, ...);
	int (*openat)(int, const char *, int, ...);
	int (*openat64)(int, const char *, int, ...);
	int (*creat)(const char *, mode_t);
	int (*creat64)(const char *, mode_t);
	ssize_t (*recvmsg)(int, struct msghdr *, int);
	int (*recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);
	int (*pidfd_open)(int, unsigned);
	int (*prctl)(int, long, long, long, long);
	int (*unshare)(int);
	int (*setrlimit)(int, const void *);
	int (*prlimit)(pid_t, int, const void *, void *);
	int (*epoll_ctl)(int, int, int, struct epoll_event *);
	int (*sigaction)(int, const struct sigaction *, struct sigaction *);
	void (*(*signal)(int, void (*)(int)))(int);
	void (*(*sysv_signal)(int, void (*)(int)))(int);
	void (*(*sigset)(int, void (*)(int)))(int);
	int (*clone)(int (*)(void *), void *, int, void *, ...);
	long (*syscall)(long, long, long, long, long, long, long);
};
extern struct real debox_real;
void debox_real_find(void);
static inline const struct real *real(void)
{
	if (unlikely(!debox_real.poll))
		debox_real_find();
	return &debox_real;
}

#endif
