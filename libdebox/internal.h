/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do libdebox's own parts, and the interposer, know of each other?
 */
#ifndef DEBOX_INTERNAL_H
#define DEBOX_INTERNAL_H

#include <debox.h>
#include <debox/protocol.h>
#include <debox/trace.h>
#include <debox_compat.h>
#include <signal.h>

/* Calls open at once in one thread (handlers in handlers): deeper ones are not
 * recorded. */
#define LEVELS_MAX 16u
#define SEGMENTS_MAX 1024u
/* Rows that a thread finds without looking: a server's loop makes a handful of
 * calls in turn. */
#define COLLECT_ROWS 16u
#define HISTORY_DEFAULT 64u
#define HISTORY_MIN 16u
#define HISTORY_MAX 65536u

/* top_flags beyond the public ones: any of these takes the slow way at the end. */
#define FRAME_NESTED (1u << 8)     /* level > 0 */
#define FRAME_HAD_INNER (1u << 9)  /* another call nested inside it */
#define FRAME_CLOBBERED (1u << 10) /* its bank was taken over two levels deeper */
#define FRAME_OVERFLOW (1u << 11)  /* its ring entry was reused: see thread.overflow */
#define FRAME_ON_ALT (1u << 12)    /* on the alternate signal stack */

/* debox_entry_.flags beyond DEBOX_FLAG_*. */
#define ENTRY_EVENT (1u << 16)         /* the kernel saw something: a copy is in the event ring */
#define ENTRY_UNMEASURED (1u << 17)    /* nobody measured inside this call */
#define ENTRY_INNER DEBOX_ENTRY_INNER_ /* inner is valid */
#define ENTRY_LEVEL_SHIFT 8            /* 4 bits: how deeply nested the call was */
#define ENTRY_LEVEL_MASK 0xf00u
#define ENTRY_CALLS_SHIFT 20 /* interposed calls adopted by a bracket, at most 4095 */

/* What a nested call must put back when it ends. */
struct level {
	struct debox_frame *top;
	uintptr_t stack;
	uint32_t flags;
	int32_t nr;
	uint64_t open_seq;
	uint64_t call_site;
	uint32_t level;
	uint32_t reserved;
	struct debox_entry_ entry;
};

/* A copy of what the kernel side wrote about one call, cut to its sleeps. */
struct event {
	uint64_t seq;
	uint64_t bytes; /* of info */
	struct debox_info info;
};

/*
 * One thread's state: mapped as a whole, wiped in a forked child. The ring of
 * entries follows at DEBOX_RING_OFFSET_, then the event ring, then a control
 * and a record page used while there is no slot.
 */
struct debox_thread {
	struct debox_hot_ hot;
	struct debox_thread *next, *prev;
	uint32_t vfork_live; /* not 0: in vfork(); what hot.live was */
	uint32_t measured;   /* a slot of the broker's is in use */
	uint32_t depth;
	uint32_t destructor_rounds;
	uint32_t pid;
	uint32_t reserved;
	uint64_t generation;
	uint64_t features;
	const volatile uint32_t *broker_alive; /* hot.alive may be the word that is always dead */
	char *events;
	uint64_t events_size;
	uint64_t events_head;
	uint64_t history_seen; /* calls up to this number were handed out */
	DeBoxInfo *compat;
	uint64_t compat_valid;
	uint32_t compat_sleeps;
	uint32_t compat_trace;
	/* trace.c: entries wanted of each call; the thread's buffers; a copy of
	 * the last traced call's. */
	uint32_t trace_limit;
	uint32_t trace_room;
	uint32_t trace_count;
	uint32_t trace_dropped;
	uint32_t trace_flags;
	int32_t trace_nr;
	uint64_t trace_seq;
	uint64_t trace_start_ns;
	uint64_t trace_stride;
	const char *trace_buffer;
	struct debox_trace_entry *trace_copy;
	/* The interposer's counting (preload/collect.c). */
	void *collect_stripe;
	void *collect_rows[COLLECT_ROWS];
	uint64_t collect_state;
	uint32_t watch_inside; /* a watch's function runs in this thread */
	uint32_t reserved2;
	struct level levels[LEVELS_MAX];
	struct debox_entry_ overflow[LEVELS_MAX];
};
_Static_assert(sizeof(struct debox_hot_) == 128, "part of the binary interface");
_Static_assert(sizeof(struct debox_thread) <= DEBOX_RING_OFFSET_, "the ring begins there");
_Static_assert(sizeof(struct debox_entry_) == 64, "one cache line");

#define HIDDEN __attribute__((visibility("hidden")))

/* The process's call trace, as the broker shares it. */
struct debox_trace_map {
	const char *base;
	const struct debox_trace_table *table;
	uint64_t stride;
	uint32_t buffers;
	uint32_t capacity;
};

/* descriptor.c: so many bytes of it can be mapped and will stay */
int debox_fd_lasting_(int fd, uint64_t bytes) HIDDEN;
int debox_fd_memory_(int fd) HIDDEN; /* a memory file: reading it cannot be waited for */

/* runtime.c */
struct debox_thread *debox_thread_get_(void) HIDDEN; /* NULL: do not record */
void debox_thread_watch_(struct debox_thread *t) HIDDEN;
const struct debox_site *debox_site_table_(uint32_t *count) HIDDEN;
int debox_is_open_(void) HIDDEN;
/* Asks the broker for a trace, if there is none yet or `wish` says otherwise. */
int debox_trace_want_(const struct debox_trace_request *wish) HIDDEN;
void debox_trace_map_(struct debox_trace_map *out) HIDDEN;

/* A link of a chain, and its number. */
struct debox_numbered_link {
	uint32_t number;
	struct debox_chain link;
};
/* Those of a chain, first to root. Errors as debox_chain_read(). */
int debox_chain_links_(uint32_t chain, struct debox_numbered_link out[DEBOX_CHAIN_DEPTH_MAX]) HIDDEN;

/* chain.c: debox_chain_text() from link `skip` on; waits for labels as long as the
 * budget lasts */
int debox_chain_say_(uint32_t chain, int skip, char *buf, size_t len, int *budget_ms) HIDDEN;

void debox_trace_free_(struct debox_thread *t) HIDDEN; /* the copies */

/* trace.c */
void debox_trace_keep_(struct debox_thread *t, const struct debox_entry_ *e, uint32_t level) HIDDEN;

/*
 * A program may contain libdebox (the static library, the Rust crate) and be
 * run with the interposer, which brings the shared one: two copies, but a
 * thread has only one slot. The copy inside the program then leaves all state
 * to the shared one, which exports this.
 */
struct debox_runtime {
	uint32_t size;
	uint32_t thread_size;
	int (*open)(const struct debox_options *);
	int (*close)(void);
	int (*status)(void);
	int (*why)(char *, size_t);
	uint64_t (*features)(void);
	int (*is_open)(void);
	struct debox_thread *(*thread)(void);
	const struct debox_site *(*site_table)(uint32_t *);
	int (*trace_want)(const struct debox_trace_request *);
	void (*trace_map)(struct debox_trace_map *);
	int (*chain_links)(uint32_t, struct debox_numbered_link *);
	uint32_t (*watching)(void);
};
/* watch.c's part of it: runtime.c knows nothing of watches but that there are some. */
struct debox_watch_runtime {
	uint32_t size;
	int (*add)(const char *, debox_watch_fn *, void *, struct debox_watch_error *);
	int (*remove)(int);
	int (*read)(int, struct debox_watch_counts *);
	void (*run)(struct debox_thread *, struct debox_entry_ *);
};
/* NULL: this copy owns the state */
const struct debox_watch_runtime *debox_watch_elsewhere_(void) HIDDEN;
void debox_threads_watch_(void) HIDDEN; /* debox_thread_watch_() for each */

#define WATCHING 1u       /* there is a watch */
#define WATCHING_EVERY 2u /* and one for calls in which nothing happened */
uint32_t debox_watching_(void) HIDDEN;
void debox_watching_set_(uint32_t flags) HIDDEN;

/* watch.c */
void debox_watch_run_(struct debox_thread *t, struct debox_entry_ *e) HIDDEN;

/* clock.c: stamps are CPU cycles, or nanoseconds where the counter is not usable. */
struct debox_time {
	uint64_t start_ns;
	uint64_t span_ns;
};
void debox_clock_init_(int force_gettime) HIDDEN;
int debox_clock_is_tsc_(void) HIDDEN;
int debox_clock_ready_(void) HIDDEN;
uint64_t debox_clock_gettime_ns_(void) HIDDEN;
uint64_t debox_clock_stamp_(void) HIDDEN;
struct debox_time debox_clock_convert_(uint64_t stamp, uint64_t span) HIDDEN;
uint64_t debox_clock_span_ns_(uint64_t span) HIDDEN;

/* record.c */
void debox_record_fill_(struct debox_thread *t, const struct debox_entry_ *e,
			struct debox_info *out) HIDDEN;
void debox_away_settle_(struct debox_thread *t, uint64_t seq, uint32_t level) HIDDEN;
/* How many sleeps a bank has; whoever shares the page may have written anything. Read once. */
static inline uint32_t debox_bank_sleeps_(const volatile struct debox_info *bank)
{
	uint32_t sleeps = bank->sleep_count;

	return sleeps > DEBOX_SLEEPS_MAX ? DEBOX_SLEEPS_MAX : sleeps;
}

static inline uint64_t debox_info_bytes_(uint32_t sleeps)
{
	return offsetof(struct debox_info, sleeps) + sleeps * sizeof(struct debox_sleep);
}

/* What the kernel side wrote about one call, cut to so many sleeps. */
void debox_bank_copy_(const volatile struct debox_info *bank, uint32_t sleeps,
		      struct debox_info *to) HIDDEN;

/* The number of the call that libdebox opened last in a bank; 0: it is a spliced one's now. */
static inline uint64_t debox_bank_seq_(const volatile struct debox_info *bank)
{
	uint64_t seq = bank->call_seq;

	return seq & DEBOX_SEQ_SPLICED ? 0 : seq;
}

/* Whether the slot is this thread's still: the broker takes it back when the connection is closed. */
static inline int debox_slot_is_ours_(const struct debox_thread *t)
{
	return t->measured && t->hot.record->tid == t->hot.tid &&
	       t->hot.record->generation == t->generation;
}

/* spliced.c */
struct debox_spliced_call {
	uint64_t start; /* the time stamp counter */
	uint64_t wall_ns;
	int64_t result;
	int32_t nr;
	uint32_t calls;       /* of the thread, up to it; wraps */
	uint32_t open;        /* we are in a handler that has interrupted another one */
	uint32_t interrupted; /* a handler has made calls meanwhile: wall_ns has them */
	uint32_t unstamped;   /* wall_ns is not known, and `start` is only no other call's */
	uint32_t reserved;
};
void debox_spliced_find_(void) HIDDEN; /* whether this process is spliced */
/* The thread's last call, libdebox's own left out; 0: none is known. */
int debox_spliced_last_(struct debox_spliced_call *out) HIDDEN;

/* compat.c */
void debox_compat_fill_(struct debox_thread *t, const struct debox_entry_ *e) HIDDEN;
/* "ENOENT" for 2; NULL for a number that has no name. */
const char *debox_errno_name_(int64_t number) HIDDEN;

int debox_site_wait_(uint32_t site, struct debox_site *out, int *budget_ms) HIDDEN;

/* ----------------- for the interposer: exported, but not for programs ----- */

/* Around vfork(): the child shares this thread's memory and must leave it alone. */
DEBOX_API void *debox_private_vfork_enter(void);
DEBOX_API void debox_private_vfork_leave(void *cookie);
/* The thread's state, made on first use; NULL: nothing is recorded here. */
DEBOX_API struct debox_thread *debox_private_thread(void);
/* Fills the kernel's part of the last finished call; for counting. */
struct debox_private_counts {
	uint64_t wall_ns, blocked_ns, runq_ns, irq_ns;
	uint64_t minor_faults, major_faults, nvcsw, nivcsw;
	uint32_t stale, measured;
};
DEBOX_API void debox_private_count(struct debox_thread *t, const struct debox_entry_ *e,
				   struct debox_private_counts *out);
/* Cycles (32.32 fixed point) to nanoseconds, right to 0.1 % at once and better
 * later; *again is the stamp at which asking again pays. */
DEBOX_API uint64_t debox_private_rate(uint64_t *again);
DEBOX_API uint64_t debox_private_stamp(void);
/* A descriptor moved out of the program's way, close-on-exec; -errno. */
DEBOX_API int debox_private_fd_raise(int fd);
/* The broker connection's descriptor (-1: none), and the way to move it. */
DEBOX_API int debox_private_fd(void);
DEBOX_API void debox_private_fd_moved(int fd);
DEBOX_API int debox_private_connect(const char *path);

#define DEBOX_GROUP_NAME_LEN 33 /* useradd's longest name, and its end */
/* Whether the socket is for a group that has a name, and this name. */
int debox_socket_group_(const char *path, char name[DEBOX_GROUP_NAME_LEN]);

#endif
