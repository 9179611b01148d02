/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 OR BSD-2-Clause */
/*
 * How is the trace of a call, the kernel functions that it ran through, laid
 * out and asked for?
 *
 * A trace is asked for with DEBOX_MSG_TRACE (protocol.h). It comes with three
 * shared memories, all read-only:
 *
 * - buffers: `buffers` x `stride` bytes, each a struct debox_trace followed by
 *   `capacity` entries. A thread owns one buffer, or two (one for each nesting
 *   level of calls) when it is the asking program's own.
 * - sums: struct debox_trace_sums, counted over all calls.
 * - table: struct debox_trace_table and the functions' names, so that no
 *   address of the kernel is ever shown.
 *
 * All times are nanoseconds. Names and numbers follow abi.h's rules.
 */
#ifndef DEBOX_TRACE_H
#define DEBOX_TRACE_H

#include <debox/abi.h>
#include <debox/protocol.h>

/* Entries of one call's trace: the paper's limit, and ours. */
#define DEBOX_TRACE_DEFAULT 200u
#define DEBOX_TRACE_MAX 16384u
/* Functions that one trace may name. */
#define DEBOX_TRACE_FUNCTIONS_MAX 8192u
/* Functions open at one time in one call; deeper ones are counted as dropped. */
#define DEBOX_TRACE_DEPTH_MAX 64u

/* What takes the trace: debox_trace_table.way. Not all kernels allow all. */
#define DEBOX_TRACE_WAY_NONE 0u
#define DEBOX_TRACE_WAY_SESSION 1u    /* kprobe.session, Linux 6.10 */
#define DEBOX_TRACE_WAY_MULTI 2u      /* a pair of kprobe.multi, Linux 5.18 */
#define DEBOX_TRACE_WAY_FENTRY 3u     /* a pair of fentry and fexit for each function */
#define DEBOX_TRACE_WAY_TRACEPOINT 4u /* static tracepoints only: coarser */

/* debox_trace_entry.flags */
#define DEBOX_TRACE_OPEN (1u << 0)  /* had not returned when the call, or its thread, ended */
#define DEBOX_TRACE_POINT (1u << 1) /* a tracepoint that was passed: it has no duration */

/* One function that the call ran through (the paper's CallTrace). */
struct debox_trace_entry {
	__u64 start_ns; /* after debox_trace.start_ns; in a copy from libdebox: after the call began */
	__u64 total_ns; /* from entry to return, sleeps included */
	__u64 self_ns;  /* of it: not in functions that are traced as well */
	__u32 function; /* number in the table */
	__u16 depth;    /* functions above it in this trace */
	__u16 flags;    /* DEBOX_TRACE_* */
};

/* debox_trace.flags */
#define DEBOX_TRACE_FLAG_COARSE (1u << 0)     /* made of tracepoints */
#define DEBOX_TRACE_FLAG_UNFINISHED (1u << 1) /* the call never returned */
#define DEBOX_TRACE_FLAG_COMPAT32 (1u << 2)   /* nr is of the i386 table */

/* The head of a buffer; entries follow. Entries stand in the order of entry. */
struct debox_trace {
	__u32 tid;      /* owner, 0 free */
	__u32 level;    /* nesting level of the calls it holds */
	__u64 call_seq; /* the call whose trace this is */
	__u64 start_ns; /* CLOCK_MONOTONIC: the call's begin (account), its first entry's (slots) */
	__u64 wall_ns;  /* account: from sys_enter to sys_exit */
	__s64 retval;   /* account */
	__s32 nr;
	__u32 flags;   /* DEBOX_TRACE_FLAG_* */
	__u32 count;   /* entries in use */
	__u32 dropped; /* entries that found no room, or were too deep */
	__u32 pid;
	__u32 reserved[17];
};

/* One function, over all calls of an account. */
struct debox_trace_sum {
	__u64 calls;
	__u64 total_ns; /* recursion counts once */
	__u64 self_ns;
	__u64 max_ns;
};

struct debox_trace_sums {
	__u64 calls; /* calls that were traced */
	__u64 entries_dropped;
	__u64 threads_untraced; /* threads that found no buffer */
	__u64 unmatched;        /* returns of functions whose entry was not seen, and the other way round */
	__u64 unkept;           /* slowest calls that found no buffer to stay in */
	__u64 reserved[11];
	/* By key of the call (DEBOX_NR_*): its slowest one; wall_ns / 256 << 20 |
	 * number of the buffer + 1, 0 none. */
	__u64 slowest[DEBOX_NR_SLOTS];
	struct debox_trace_sum functions[DEBOX_TRACE_FUNCTIONS_MAX];
};
#define DEBOX_TRACE_SLOWEST_BUFFER(word) ((__u32)((word)&0xfffffu))

/* debox_trace_table.state */
#define DEBOX_TRACE_STATE_STARTING 0u
#define DEBOX_TRACE_STATE_ON 1u
#define DEBOX_TRACE_STATE_FAILED 2u /* `text` says why */
#define DEBOX_TRACE_STATE_STOPPED 3u

#define DEBOX_TRACE_MAGIC 0x63304265u
struct debox_trace_function {
	char name[DEBOX_FUNCTION_LEN];
};
struct debox_trace_table {
	__u32 magic;
	__u32 state;     /* stored last with release order */
	__u32 way;       /* DEBOX_TRACE_WAY_* */
	__u32 functions; /* names that follow at DEBOX_PAGE_SIZE */
	__u32 buffers;
	__u32 capacity;
	__u64 stride;
	__u32 refused; /* functions that were asked for and cannot be traced here */
	__u32 reserved0;
	__u64 missed;    /* entries and returns that the kernel did not deliver, of all processes;
			  * up to date when STOPPED */
	__u64 attach_ns; /* how long attaching took */
	__u64 reserved[9];
	char text[1024]; /* for people: what is missing, or why it failed */
};
#define DEBOX_TRACE_TABLE_SIZE \
	(DEBOX_PAGE_SIZE + DEBOX_TRACE_FUNCTIONS_MAX * sizeof(struct debox_trace_function))

/*
 * DEBOX_MSG_TRACE. Without flags: the trace of the sender's own calls, as it
 * brackets them (its threads need slots, and say how many entries they want in
 * debox_control.max_trace). With ACCOUNT: of every call of every thread in the
 * connection's account. One trace for a connection; it ends with it.
 *
 * The reply carries 3 descriptors: buffers, sums, table. Attaching goes on
 * after the reply; table.state says when it is done.
 */
#define DEBOX_REQ_TRACE_ACCOUNT (1u << 8)
/* Nothing is traced any more from the reply on; `missed` is up to date. */
#define DEBOX_REQ_TRACE_STOP (1u << 9)

#define DEBOX_TRACE_PATTERNS_LEN 7808u
#define DEBOX_TRACE_CALLS_MAX 32u
struct debox_trace_request {
	struct debox_request head; /* head.size = sizeof(struct debox_trace_request) */
	__u32 capacity;            /* entries of one call; 0: DEBOX_TRACE_DEFAULT */
	__u32 threads;             /* that may be traced at one time; 0: the broker's choice */
	__u32 way;                 /* DEBOX_TRACE_WAY_NONE: the best that this kernel allows */
	__u32 calls_count;
	__u32 calls[DEBOX_TRACE_CALLS_MAX]; /* ACCOUNT: keys of the calls to trace; none: all */
	__u32 reserved[44];
	/* Patterns with * and ?, separated by commas; empty: the broker's default.
	 * Root and CAP_PERFMON only. */
	char patterns[DEBOX_TRACE_PATTERNS_LEN];
};

#endif /* DEBOX_TRACE_H */
