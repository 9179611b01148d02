/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a C or C++ program ask where the time of its system calls went?
 *
 *     #include <debox.h>                          // cc prog.c -ldebox
 *
 *     debox_open(NULL);
 *     ssize_t n = DEBOX_CALL(read(fd, buf, sizeof buf));
 *     struct debox_info info = { .size = sizeof info };
 *     if (debox_last(&info) == 0)
 *             debox_info_print(stdout, &info);
 *
 * A *call* is one system call of one thread; its *record* is struct
 * debox_info (debox/abi.h). Two ways give records: brackets (DEBOX_CALL, or
 * debox_call_begin/debox_call_end) around any expression, and the interposer
 * libdebox-wrap.so (linked with -ldebox-wrap, or preloaded), which brackets
 * libc's wrappers of the system calls by itself.
 *
 * Every function returns 0 or a positive number on success and -errno on
 * failure; errno itself is never touched. All functions work on the calling
 * thread and may be called from a signal handler, except debox_open,
 * debox_close and debox_info_print. A field of a record is meaningful only if
 * its DEBOX_VALID_* bit is set: without a broker wall times are measured and
 * everything else is marked "not measured".
 *
 * Names that end in an underscore are the private part of the inline code:
 * programs must not use them.
 */
#ifndef DEBOX_H
#define DEBOX_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#if !defined(__x86_64__)
#include <time.h>
#endif

#include <debox/abi.h>
#include <debox/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEBOX_API __attribute__((visibility("default")))

/* ------------------------------------------------------------ open, close */

/* options.max_sleeps: record no sleeps at all. */
#define DEBOX_SLEEPS_NONE 0xffffffffu

/* options.flags: stamp with clock_gettime even where the processor's time
 * stamp counter is usable (it is chosen by itself where the counter is not). */
#define DEBOX_OPEN_CLOCK_GETTIME (1u << 0)
/* ... records say what each sleep waited for, link by link: debox_sleep.chain. Costs
 * a part of a microsecond a sleep, and tasks of others that wake this process are
 * followed, which costs them as much; what calls without sleeps cost does not change. */
#define DEBOX_OPEN_CHAINS (1u << 1)
/* ... measure interrupts (debox_info.irq_ns), which costs every interrupt of the
 * machine a little; where it cannot be had, debox_features() lacks
 * DEBOX_FEATURE_IRQ. */
#define DEBOX_OPEN_IRQ (1u << 2)

/*
 * What debox_open() may be told. Set `size` to sizeof(struct debox_options)
 * and everything that is not wanted to 0.
 */
struct debox_options {
	uint32_t size;
	uint32_t flags;          /* DEBOX_OPEN_* */
	const char *socket_path; /* broker to ask; NULL: $DEBOX_SOCKET, else DEBOX_SOCKET_PATH */
	uint32_t max_sleeps;     /* sleeps kept per record: 0 means DEBOX_SLEEPS_MAX */
	uint32_t history;        /* records kept per thread: 0 means 64; rounded up to a power of 2 */
	uint64_t reserved[8];
};

/* debox_status() */
#define DEBOX_STATUS_CLOSED 0    /* debox_open() was not called, or debox_close() was */
#define DEBOX_STATUS_MEASURED 1  /* a broker measures what happens inside calls */
#define DEBOX_STATUS_WALL_ONLY 2 /* no broker: wall times only; debox_why() says why */
#define DEBOX_STATUS_STALE 3     /* the broker is gone; close and open again for a new one */

/*
 * Starts recording for this process, all its threads and, on their own
 * account, its future forked children. Needs no privilege. May be called
 * again at any time: a second call with the process open and a live broker
 * changes nothing but max_sleeps, and gives chains if it is the first to ask for
 * them; one after the broker died asks for a new broker.
 *
 * Returns 0 also when no broker can be had (debox_status() is then
 * DEBOX_STATUS_WALL_ONLY). -EINVAL: opts->size unknown, an unknown flag, a
 * reserved field not 0, history above 65536, path too long (-ENAMETOOLONG when
 * it is that of $DEBOX_SOCKET). -ENOMEM: no memory. -ENOSYS: a kernel before
 * 4.14, on which a forked child could not be told from its parent. May not be
 * called from a signal handler.
 */
DEBOX_API int debox_open(const struct debox_options *opts);

/*
 * Stops recording in every thread and gives the slots back. Records already
 * read stay readable text-wise only until the next debox_open(). Returns 0.
 */
DEBOX_API int debox_close(void);

/* One of DEBOX_STATUS_*. */
DEBOX_API int debox_status(void);

/*
 * Why is not everything measured? Writes a sentence with the cause and the
 * remedy to buf (always terminated; cut to fit) and returns the length of the
 * whole text, like snprintf. Empty when everything is measured.
 */
DEBOX_API int debox_why(char *buf, size_t len);

/* DEBOX_FEATURE_* that the broker has attached; 0 without a broker. */
DEBOX_API uint64_t debox_features(void);

/* --------------------------------------------------------------- brackets */

struct debox_hot_;

/*
 * One open call. Lives on the stack of the function that brackets the call;
 * contents are private. It must not outlive that function.
 */
struct debox_frame {
	struct debox_hot_ *hot_; /* NULL: this call is not recorded */
	uint64_t seq_;
	uint64_t spare_[6];
};

/* One finished or open call in the thread's ring, in its raw form. */
struct debox_entry_ {
	uint64_t seq;
	uint64_t stamp;
	uint64_t span;
	uint64_t call_site;
	int64_t ret;
	int32_t nr;
	uint32_t flags;
	uint64_t inner;
	uint64_t event;
};

/*
 * A thread's state as the inline code sees it. It lives in memory that a
 * forked child finds wiped (MADV_WIPEONFORK): `live` is then 0, and so a child
 * can never stamp its parent's control page.
 */
struct debox_hot_ {
	uint32_t live; /* 1: stamps as below; 2: clock_gettime instead of rdtsc; 0: take the slow way */
	uint32_t tid;
	uint64_t seq;
	/* The innermost open call. Its frame may be dead (longjmp), so that
	 * everything known about it stands here and `top` is only compared. */
	struct debox_frame *volatile top;
	volatile uintptr_t top_stack;
	volatile uint32_t top_flags; /* DEBOX_FRAME_*; from bit 8 on: take the slow way at the end */
	uint32_t mask;
	volatile struct debox_control *control;
	const volatile struct debox_record *record;
	const volatile uint32_t *alive;
	struct debox_entry_ *last;
	uint64_t spare[7];
};
#define DEBOX_RING_OFFSET_ 4096u
#define DEBOX_SPAN_OPEN_ (~(uint64_t)0)
#define DEBOX_ENTRY_INNER_ (1u << 18) /* entry.inner is valid */

#define DEBOX_FRAME_BRACKET_ 1u /* explicit: interposed calls inside belong to it */
#define DEBOX_FRAME_OWNED_ 2u   /* never abandoned by a jump (Rust) */
#define DEBOX_FRAME_WRAPPER_ 4u /* the interposer's */

extern DEBOX_API __thread struct debox_hot_ *debox_self_v1_
	__attribute__((tls_model("initial-exec")));

DEBOX_API void debox_begin_slow_(struct debox_frame *f, int nr, uint64_t call_site,
				 uintptr_t stack, uint32_t flags);
DEBOX_API void debox_end_slow_(struct debox_frame *f, int64_t ret, uint64_t stamp);
DEBOX_API void debox_end_event_(struct debox_frame *f, struct debox_entry_ *e);

/* Compiler barrier: the kernel side reads the control page on this CPU, or
 * after a context switch; a signal handler runs on this CPU. */
/* clang-format off */
#define DEBOX_BARRIER_() __asm__ __volatile__("" ::: "memory")
/* clang-format on */

static inline __attribute__((always_inline)) uint64_t debox_stamp_(void)
{
#if defined(DEBOX_STAMP_SOURCE_)
	return DEBOX_STAMP_SOURCE_(); /* tests: a counter that stands still, or goes back */
#elif defined(__x86_64__)
	uint32_t lo, hi;

	__asm__ __volatile__("rdtsc"
			     : "=a"(lo), "=d"(hi)::"memory");
	return (uint64_t)hi << 32 | lo;
#else
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
#endif
}

/*
 * Between two stamps. rdtsc is not ordered with the instructions around it, and
 * the counters of two CPUs may be some ticks apart: the second stamp can equal
 * the first, and after a migration even precede it. That is no time at all, not
 * the 2^64 ticks that the difference would be.
 */
static inline __attribute__((always_inline)) uint64_t debox_ticks_(uint64_t from, uint64_t to)
{
	return to > from ? to - from : 0;
}

/* One instruction takes the next number: a signal handler can come before or
 * after, never in between. */
static inline __attribute__((always_inline)) uint64_t debox_next_seq_(struct debox_hot_ *h)
{
#if defined(__x86_64__)
	uint64_t seq = 1;

	__asm__ __volatile__("xaddq %0, %1"
			     : "+r"(seq), "+m"(h->seq)::"memory", "cc");
	return seq + 1;
#else
	return __atomic_add_fetch(&h->seq, 1, __ATOMIC_RELAXED);
#endif
}

static inline __attribute__((always_inline)) struct debox_entry_ *
debox_entry_of_(struct debox_hot_ *h, uint64_t seq)
{
	return (struct debox_entry_ *)(void *)((char *)h + DEBOX_RING_OFFSET_) + (seq & h->mask);
}

static inline __attribute__((always_inline)) int debox_word_dead_(uint32_t word)
{
	return word == 0 || (word & 0x40000000u);
}

static inline __attribute__((always_inline)) void
debox_begin_(struct debox_frame *f, int nr, uint64_t call_site, uintptr_t stack, uint32_t flags)
{
	struct debox_hot_ *h = debox_self_v1_;
	volatile struct debox_control *c;
	struct debox_entry_ *e;
	uint64_t seq;

	if (__builtin_expect(!h || h->live != 1 || h->top, 0)) {
		debox_begin_slow_(f, nr, call_site, stack, flags);
		return;
	}
	seq = debox_next_seq_(h);
	f->hot_ = h;
	f->seq_ = seq;
	h->top_stack = stack;
	h->top_flags = flags;
	/* From here on a signal handler's call is a nested one: it saves and
	 * restores what follows. */
	DEBOX_BARRIER_();
	h->top = f;
	DEBOX_BARRIER_();
	/* Again: a handler just before `top` was set has left its own. */
	h->top_stack = stack;
	h->top_flags = flags;
	c = h->control;
	c->nr = nr;
	c->call_site = call_site;
	e = debox_entry_of_(h, seq);
	e->call_site = call_site;
	e->nr = nr;
	e->flags = 0;
	e->span = DEBOX_SPAN_OPEN_;
	e->stamp = DEBOX_SPAN_OPEN_; /* not stamped yet: a handler's time is not inside */
	DEBOX_BARRIER_();
	e->seq = seq;
	/* Stored last, so that the kernel side finds nr and call_site whole. */
	c->open_seq = seq;
	/* The stamps lie inside the open window: what the kernel side subtracts
	 * as time outside can be too much, but a preemption can never be missed
	 * and show up as a slow call. */
	e->stamp = debox_stamp_();
}

static inline __attribute__((always_inline)) void debox_end_(struct debox_frame *f, int64_t ret)
{
	uint64_t stamp = debox_stamp_();
	struct debox_hot_ *h = f->hot_;
	struct debox_entry_ *e;
	const volatile struct debox_record *r;

	if (__builtin_expect(!h || h->live != 1 || h->top != f || (h->top_flags >> 8), 0)) {
		debox_end_slow_(f, ret, stamp);
		return;
	}
	h->control->open_seq = 0;
	e = debox_entry_of_(h, f->seq_);
	e->ret = ret;
	e->span = debox_ticks_(e->stamp, stamp);
	DEBOX_BARRIER_();
	/* A handler since the check above ran after the stamp: not inside. */
	if (__builtin_expect(h->top_flags >> 8, 0))
		e->flags &= ~DEBOX_ENTRY_INNER_;
	h->last = e;
	r = h->record;
	/* Did anything happen inside? Is the slot still this thread's? Does the
	 * broker live? Asked before the frame is given up: until then a signal
	 * handler's call uses the other bank. */
	if (__builtin_expect(r->bank[0].info.call_seq == f->seq_ || r->tid != h->tid ||
				     debox_word_dead_(*h->alive),
			     0))
		debox_end_event_(f, e);
	DEBOX_BARRIER_();
	h->top = NULL;
}

/*
 * Opens a call: everything between this and debox_call_end() counts as system
 * call `nr` (SYS_read ...; -1: whatever the thread's registers say). `f` is a
 * local variable of the calling function. Costs about 10 ns together with
 * debox_call_end() and makes no system call, except once per thread.
 *
 * Brackets may nest, also through signal handlers: the inner call's time is
 * taken out of the outer one's. The kernel side keeps two levels apart; deeper
 * nesting marks the outer record DEBOX_FLAG_CLOBBERED. A bracket left by
 * longjmp or thread cancellation stays DEBOX_FLAG_UNFINISHED; it is recognised
 * at the next bracket, or at the next call from further up the stack. Interposed
 * libc calls inside a bracket belong to the bracket's record (`calls` counts
 * them), and make none of their own. A bracket must not be left open while the
 * thread switches to another stack (swapcontext).
 */
static inline __attribute__((always_inline)) void debox_call_begin(struct debox_frame *f, int nr)
{
	uint64_t here;

#if defined(__x86_64__)
	__asm__("leaq 0(%%rip), %0"
		: "=r"(here));
#else
	here = (uint64_t)(uintptr_t)__builtin_return_address(0);
#endif
	debox_begin_(f, nr, here, (uintptr_t)__builtin_frame_address(0), DEBOX_FRAME_BRACKET_);
}

/* Closes the call. `ret` is its raw result: -errno on failure. */
static inline __attribute__((always_inline)) void debox_call_end(struct debox_frame *f, long ret)
{
	debox_end_(f, ret);
}

/* libc's -1 plus errno, as the kernel returned it. */
static inline __attribute__((always_inline)) long debox_raw_result(long value)
{
	return __builtin_expect(value == -1, 0) ? -(long)errno : value;
}

/* The same as functions, for languages without inline C. `call_site` 0: not known. */
DEBOX_API void debox_frame_begin(struct debox_frame *f, int nr, uint64_t call_site);
DEBOX_API void debox_frame_end(struct debox_frame *f, long ret);

/*
 * DEBOX_CALL(expr)          value of expr, which makes one system call
 * DEBOX_CALL_NR(nr, expr)   the same, with the call's number known beforehand
 *
 * `expr` is of an arithmetic or pointer type and fails with -1 (MAP_FAILED is
 * -1, too) and errno. errno is left as expr leaves it. In C++ an exception
 * (or thread cancellation) that leaves expr closes the call; void is allowed.
 */
#ifndef __cplusplus
#define DEBOX_CALL_NR(nr, expr)                                                        \
	__extension__({                                                                \
		struct debox_frame debox_frame__;                                      \
		debox_call_begin(&debox_frame__, (nr));                                \
		__typeof__(expr) debox_value__ = (expr);                               \
		debox_call_end(&debox_frame__, debox_raw_result((long)debox_value__)); \
		debox_value__;                                                         \
	})
#else
#define DEBOX_CALL_NR(nr, expr) (::debox::call((nr), [&]() { return (expr); }))
#endif
#define DEBOX_CALL(expr) DEBOX_CALL_NR(-1, expr)

/* ---------------------------------------------------------------- records */

/*
 * The record of the last call that this thread finished (bracketed or
 * interposed). Set out->size to sizeof(struct debox_info) first; at most that
 * much is written and out->size becomes what was written, so that programs
 * and libraries of different age fit together.
 *
 * wall_ns = cpu_ns + blocked_ns + runq_ns + irq_ns holds exactly when
 * DEBOX_VALID_CPU is set. outside_ns (time off the CPU in user mode beside the
 * call) is not part of wall_ns.
 *
 * -ENODATA: no call finished yet. -ENOTCONN: debox_open() was not called.
 * -EINVAL: out->size too small.
 */
DEBOX_API int debox_last(struct debox_info *out);

/*
 * The thread's last records, oldest first: at most n, at most as many as
 * options.history. out[0].size is the size of every element. Calls that never
 * returned, or have not yet, are among them (DEBOX_FLAG_UNFINISHED). *lost (may
 * be NULL) becomes the number of calls begun since the thread's previous
 * debox_history_read() that are no longer to be had. Returns how many were
 * written; errors as debox_last().
 */
DEBOX_API int debox_history_read(struct debox_info *out, unsigned n, uint64_t *lost);

/* The names of the set DEBOX_VALID_* bits, blank-separated; like snprintf. */
DEBOX_API int debox_strvalid(uint64_t valid, char *buf, size_t len);

/* "read" for 0 ...; NULL for a number this library does not know. */
DEBOX_API const char *debox_call_name(int nr);

/* ------------------------------------------------------------------ spans */

/* The beginning of a span; contents are private. */
struct debox_span {
	uint64_t stamp_;
	uint64_t seq_;
	uint64_t generation_;
	uint32_t tid_;
	uint32_t flags_;
	struct debox_totals totals_;
};

/*
 * A span is any stretch of one thread's execution. Neither function makes a
 * system call: both read the thread's totals from shared memory. Spans may
 * overlap and nest freely.
 *
 * debox_span_end() fills a record with DEBOX_FLAG_SPAN and nr -1: wall_ns is
 * the whole stretch, user code included; blocked_ns and runq_ns are all the
 * time it was off the CPU, outside_ns says how much of them was in user mode
 * (page faults, preemption), and here it *is* part of wall_ns; minor_faults
 * counts page faults taken in kernel mode, major_faults major ones in either
 * mode; `calls` counts wrapped calls begun inside. sleeps[] stays empty and
 * its validity bit clear.
 *
 * -ENOTCONN: debox_open() was not called. -EXDEV: ended by another thread than
 * began it, or after a fork. -EINVAL: out->size too small.
 */
DEBOX_API int debox_span_begin(struct debox_span *span);
DEBOX_API int debox_span_end(const struct debox_span *span, struct debox_info *out);

/* ---------------------------------------------------------------- watches */

/*
 * A watch calls a function for each finished call of any thread that meets a
 * condition: at the end of the bracket (or of the interposed call), in the
 * thread that made it. `info` is the call's record; it is valid until the
 * function returns, which may make calls, bracketed ones too (they are not
 * watched), and may end the program: the stack is then that of the call. It must
 * return otherwise, and not jump away. errno is kept. In a signal handler's call it runs in the handler.
 */
typedef void debox_watch_fn(const struct debox_info *info, void *context);

/* Where an expression is wrong, and what would be right. */
struct debox_watch_error {
	uint32_t column; /* of the mistake, a byte, from 1; 0: it is none of the expression's */
	uint32_t length; /* bytes; 0: something is missing there */
	char text[160];
	char help[256]; /* may be empty */
};

struct debox_watch_counts {
	uint64_t met;     /* calls that met the condition */
	uint64_t unknown; /* calls that could not be judged: something was not measured */
	uint64_t inside;  /* calls made by the function itself that would have met it */
};

#define DEBOX_WATCHES_MAX 16

/*
 * Adds a watch for calls such as
 *
 *     call in {read, pread64} && blocked > 20ms && label == "page-in"
 *
 * The language is that of `debox run --on` (man debox-run), without `caller`.
 * Calls that do not meet the condition cost a comparison of their wall time;
 * those in which nothing happened cost nothing when the condition asks for
 * blocking, faults, labels or waiters.
 *
 * Returns the watch's number, from 1 on. -EINVAL: the expression is wrong;
 * *error (may be NULL) says where. -ENOSPC: DEBOX_WATCHES_MAX watches are
 * there. -ENOMEM. Watches outlive debox_close(), and a forked child has those
 * of its parent. May not be called from a signal handler, nor by a watch's own
 * function.
 */
DEBOX_API int debox_watch_add(const char *expression, debox_watch_fn *function, void *context,
			      struct debox_watch_error *error);

/*
 * Takes a watch away. When this returns, its function is not running in any
 * thread and will not be called again. -ENOENT: no such watch. -EDEADLK: called
 * by a watch's function.
 */
DEBOX_API int debox_watch_remove(int watch);

/* What a watch has seen so far. -ENOENT: no such watch. */
DEBOX_API int debox_watch_read(int watch, struct debox_watch_counts *out);

/* ------------------------------------------------------------------ sites */

/*
 * The text of a site: label, kernel function, file and line. Sites that are
 * the same place for a reader (out->merged) give the same text. -EAGAIN: the
 * broker has not resolved it yet (it takes some milliseconds the first time a
 * site is seen). -ENOENT: no such site. -ENOTCONN: no broker.
 */
DEBOX_API int debox_site_read(uint32_t site, struct debox_site *out);

/* ----------------------------------------------------------------- chains */

#define DEBOX_LINK_HELD (1u << 0)     /* the next link held what this one waited for */
#define DEBOX_LINK_COMPAT32 (1u << 1) /* nr is of the i386 table */
#define DEBOX_LINK_WITHHELD (1u << 2) /* of another user's task: no name, call or place */

/* One link of a chain: a task that slept until what the next link says had ended,
 * or, the last one, the root. */
struct debox_link {
	uint32_t chain;              /* its number: of the chain from here on */
	uint32_t kind;               /* DEBOX_CHAIN_* */
	uint32_t flags;              /* DEBOX_LINK_* */
	uint32_t site;               /* SLEEP: where; DEBOX_SITE_NONE not known, or withheld */
	int32_t nr;                  /* the task's call, -1 none or unknown; of a disk REQ_OP_* */
	uint32_t tid;                /* a thread it was seen of; 0: no task, or withheld */
	char comm[DEBOX_COMM_LEN];   /* of the task or device; empty: withheld */
	char label[DEBOX_LABEL_LEN]; /* SLEEP: of the site, withheld: its group; empty: not known, or not yet */
	uint64_t reserved[4];
};

/*
 * What did a sleep wait for, what did that wait for, and so on? Writes the links of
 * a record's sleeps[].chain, first to root: the first is the sleep itself, in the
 * calling thread. At most n are written; returns how many there are, which is at most
 * DEBOX_CHAIN_DEPTH_MAX. Links are read from the broker, once each: a chain that is new
 * costs a round trip to it (a millisecond or less), one that is known no system
 * call but those that block signals. docs/chains.md says how links are known and what
 * is not exact; of other users' tasks without privileges only their kind is told.
 *
 * -ENOENT: no such chain. -EOPNOTSUPP: not opened with DEBOX_OPEN_CHAINS, or the
 * broker is too old. -ENOTCONN: not open, or no broker. -ETIMEDOUT, -EPROTO: the
 * broker does not answer, or what it says makes no sense. Others: it refused.
 */
DEBOX_API int debox_chain_read(uint32_t chain, struct debox_link *out, unsigned n);

/*
 * The same in words, as in `debox run`: "waiter in futex: futex, held by <- holder in
 * read: pipe-read <- a timer", with arrows in UTF-8. Always terminated, cut to fit;
 * returns the length of the whole text, like snprintf, or an error as above.
 */
DEBOX_API int debox_chain_text(uint32_t chain, char *buf, size_t len);

/* ----------------------------------------------------------------- traces */

/*
 * A *trace* is the kernel functions that a call ran through, each with the
 * time in it: struct debox_trace_entry (debox/trace.h). Taking it costs some
 * hundred nanoseconds for each function, so it is asked for thread by thread,
 * and can be switched on and off at any time.
 *
 * On kernels that allow no probes on functions the trace is made of the static
 * tracepoints that the call passed, and says so (DEBOX_TRACE_FLAG_COARSE).
 */

/*
 * From now on every call of this thread is traced, up to `max_entries` entries
 * (0: switch it off; DEBOX_TRACE_DEFAULT is 200; more than the trace was opened
 * with counts as that). The first thread of a process that asks opens a trace
 * with default functions, if debox_trace_open() was not called, and waits until
 * the kernel has attached it: a tenth of a second where the kernel has
 * kprobe.session (Linux 6.10), some seconds elsewhere.
 *
 * -ENOTCONN: not open, or no broker. -EPERM: the broker grants traces to root
 * and CAP_PERFMON only. -EOPNOTSUPP: this kernel offers no way. -ETIMEDOUT: not
 * attached after 60 s; traces come as soon as it is. debox_why() says more.
 */
DEBOX_API int debox_trace_set(uint32_t max_entries);

/* What debox_trace_open() may be told; 0 and NULL are the broker's choice. */
struct debox_trace_options {
	uint32_t size;         /* sizeof(struct debox_trace_options) */
	uint32_t max_entries;  /* room for one call, up to DEBOX_TRACE_MAX */
	uint32_t threads;      /* threads traced at one time */
	uint32_t way;          /* DEBOX_TRACE_WAY_* */
	const char *functions; /* patterns with * and ?, separated by commas: "vfs_*,ext4_*" */
	uint64_t reserved[4];
};

/*
 * Says what this process's traces shall be made of; switches nothing on yet.
 * A trace that is open is replaced. Choosing functions or the way needs root
 * or CAP_PERFMON. Returns when it is attached; errors as debox_trace_set(), and
 * -EINVAL: size unknown, a reserved field not 0, max_entries too large, the
 * patterns too long.
 */
DEBOX_API int debox_trace_open(const struct debox_trace_options *options);

/*
 * The trace of the last call that this thread finished: at most n entries, in
 * the order in which the functions were entered; start_ns counts from the
 * call's beginning. Returns how many were written. *dropped (may be NULL)
 * becomes the number of entries that found no room, *flags (may be NULL)
 * DEBOX_TRACE_FLAG_*.
 *
 * -ENODATA: the last call was not traced. -ENOTCONN: not open.
 */
DEBOX_API int debox_trace_read(struct debox_trace_entry *out, unsigned n, uint32_t *dropped,
			       uint32_t *flags);

/* A function's name, valid until debox_close(); "?" for an unknown number. */
DEBOX_API const char *debox_trace_function(uint32_t function);

/* How is the trace doing? Fills *out from the broker's table (text included)
 * and returns 0; -ENOTCONN when there is none. */
DEBOX_API int debox_trace_status(struct debox_trace_table *out);

/* Prints the last call's trace as an indented tree: start, time, own time, in
 * microseconds, and the function. Returns 0, or -ENODATA, -EIO. */
DEBOX_API int debox_trace_print(FILE *to);

/*
 * Prints a record for people, sleeps with the text of their sites included;
 * waits at most 100 ms for site text not yet resolved. Returns 0, or -EIO when
 * the stream failed.
 */
DEBOX_API int debox_info_print(FILE *to, const struct debox_info *info);

#ifdef __cplusplus
} /* extern "C" */

namespace debox {
/* An open call that is closed at the end of the block at the latest. */
class bracket {
public:
	__attribute__((always_inline)) explicit bracket(int nr)
	    : open_(true)
	{
		debox_call_begin(&frame_, nr);
	}
	__attribute__((always_inline)) void end(long ret)
	{
		open_ = false;
		debox_call_end(&frame_, ret);
	}
	__attribute__((always_inline)) ~bracket()
	{
		if (open_)
			debox_call_end(&frame_, -EINTR);
	}
	bracket(const bracket &) = delete;
	bracket &operator=(const bracket &) = delete;

private:
	struct debox_frame frame_;
	bool open_;
};

namespace detail {
template <typename T> struct result {
	template <typename F> static inline __attribute__((always_inline)) T run(bracket &b, F &f)
	{
		T value = f();
		b.end(debox_raw_result((long)value));
		return value;
	}
};
template <> struct result<void> {
	template <typename F> static inline __attribute__((always_inline)) void run(bracket &b, F &f)
	{
		f();
		b.end(0);
	}
};
} // namespace detail

/* Runs f as system call nr and returns its value. */
template <typename F>
inline __attribute__((always_inline)) auto call(int nr, F f) -> decltype(f())
{
	bracket b(nr);
	return detail::result<decltype(f())>::run(b, f);
}
} // namespace debox
#endif

#endif /* DEBOX_H */
