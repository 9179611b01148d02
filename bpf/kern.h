/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What do `debox kern` and its BPF programs tell each other?
 *
 * Rust's side of this file is made by `make abi`.
 */
#ifndef DEBOX_KERN_H
#define DEBOX_KERN_H

/* Threads that are inside of a measured function at the same time: buckets of
 * KERN_WAYS neighbours. The number of buckets is set before loading. */
#define KERN_WAYS 8u

/* kern_metric.flags */
#define KERN_TIMED (1u << 0)  /* entry and exit; else calls are only counted */
#define KERN_UNDER (1u << 1)  /* only directly below the metric `under` */
#define KERN_FILTER (1u << 2) /* one of the restrictions below is set */

/* A metric on a resource. Its id is index | generation << 16: an id that was
 * taken away never means the next one that gets its place. */
struct kern_metric {
	__u32 generation;
	__u32 flags;
	__u32 under;     /* id */
	__u32 processes; /* bits of `processes`; 0: any */
	__s32 call;      /* system call number; -1: any */
	__s32 cgroup;    /* place in `cgroups`; -1: any */
	__u32 call_site; /* 0: any */
	__u32 reserved;
};

/*
 * Sums of one metric on one CPU. `ended` and `begun` frame an update: a reader
 * that copies upwards and finds them equal has a consistent copy (stores are
 * not reordered with stores on x86, nor loads with loads).
 *
 * Time inside, of calls that are over and of those that are not, is
 *   left_at - entered_at + (entered - left) * now
 * in arithmetic modulo 2^64, so nobody has to look at the threads.
 */
struct kern_sums {
	__u64 ended;
	__u64 calls;      /* entries, timed or not */
	__u64 entered;    /* outermost timed entries */
	__u64 entered_at; /* sum of their times, ns */
	__u64 left;       /* of these left again, in whatever way */
	__u64 left_at;
	__u64 returned; /* timed entries that returned, recursive ones as well */
	__u64 total_ns; /* their time */
	__u64 self_ns;  /* ... without that in measured functions below */
	__u64 off_ns;   /* ... of total_ns off the CPU */
	__u64 self_off_ns;
	__u64 max_ns;
	__u64 never;    /* thread ended inside */
	__u64 lost;     /* return was not seen */
	__u64 no_room;  /* not timed: too many threads inside */
	__u64 too_deep; /* not timed: KERN_DEPTH */
	__u64 nested;   /* not timed: interrupt came while we counted */
	__u64 begun;
};

/* An indirect call instruction: the operand tells whom it calls. Packed into
 * the cookie of its kprobe. */
#define KERN_OPERAND_MEMORY (1ull << 63)
/* bits 0-7 register (byte offset in pt_regs / 8), 8-15 index register or 0xff,
 * 16-23 scale, 24-47 site, 48-62 unused; the displacement is in `operands`. */

struct kern_target {
	__u64 address;
	__u32 site;
	__u32 reserved;
};

struct kern_operand {
	__s64 displacement;
	__u32 under; /* id whose frame must be on top */
	__u32 reserved;
};

/* What is not a map. */
struct kern_state {
	__u32 follow;        /* children of processes in these sets belong to them too */
	__u32 sample_metric; /* the metric whose restrictions sampled threads must meet */
	__u64 unfollowed;    /* children that found no room */
	__u64 samples_lost;  /* samples whose stack found no room */
	__u64 samples_user;  /* samples in user mode */
};

/* Metrics on one system call, for different processes and the like. */
#define KERN_PER_CALL 4u
#define KERN_CALLS 512u

struct kern_call_ids {
	__u32 id[KERN_PER_CALL];
};

/* Of one stack. */
struct kern_stack_time {
	__u64 samples; /* on a CPU */
	__u64 times;   /* off the CPU: how often */
	__u64 off_ns;  /* and how long */
};

#endif
