/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 OR BSD-2-Clause */
/*
 * What do the kernel side, libdebox, the broker and every language binding
 * agree on?
 *
 * This is the one description of DeBox's shared memory and records. The BPF
 * programs, C, C++ and the Rust crates all use this file (Rust through
 * crates/abi/src/generated.rs, which `make abi` writes). Units stand in the
 * names; all times are nanoseconds. Numbers are never reused: a value that
 * goes away leaves a hole.
 */
#ifndef DEBOX_ABI_H
#define DEBOX_ABI_H

#include <linux/types.h>

#define DEBOX_ABI_VERSION 1u

/* ------------------------------------------------------------------ record */

/* Most sleeps one record can hold; further sites are counted as dropped. */
#define DEBOX_SLEEPS_MAX 16u
#define DEBOX_COMM_LEN 16u

/*
 * Which fields of a record were really measured. A field whose bit is clear
 * holds 0 and means "not measured", never "nothing happened".
 */
#define DEBOX_VALID_WALL (1ull << 0)      /* wall_ns, start_ns */
#define DEBOX_VALID_CPU (1ull << 1)       /* cpu_ns */
#define DEBOX_VALID_BLOCKED (1ull << 2)   /* blocked_ns */
#define DEBOX_VALID_RUNQ (1ull << 3)      /* runq_ns */
#define DEBOX_VALID_FAULTS (1ull << 4)    /* minor_faults, major_faults */
#define DEBOX_VALID_SWITCHES (1ull << 5)  /* nvcsw, nivcsw */
#define DEBOX_VALID_SLEEPS (1ull << 6)    /* sleeps[], sleep_count, sleeps_dropped */
#define DEBOX_VALID_IRQ (1ull << 7)       /* irq_ns */
#define DEBOX_VALID_TRACE (1ull << 8)     /* trace_count, trace_dropped */
#define DEBOX_VALID_CALL_SITE (1ull << 9) /* call_site */
#define DEBOX_VALID_RETVAL (1ull << 10)   /* retval */
#define DEBOX_VALID_NR (1ull << 11)       /* nr */

/* What kind of record this is, and what befell it. */
#define DEBOX_FLAG_WRAP (1u << 0)       /* boundaries stamped in user space */
#define DEBOX_FLAG_BOUNDARY (1u << 1)   /* boundaries taken in the kernel */
#define DEBOX_FLAG_STALE (1u << 2)      /* the broker was gone when the call ended */
#define DEBOX_FLAG_UNFINISHED (1u << 3) /* the call never returned, or has not yet */
#define DEBOX_FLAG_CLOBBERED (1u << 4)  /* nested calls overwrote the kernel's part */
#define DEBOX_FLAG_COMPAT32 (1u << 5)   /* a 32-bit call: nr is of the i386 table */
#define DEBOX_FLAG_RESTARTED (1u << 6)  /* a signal broke in; the kernel restarts it */
#define DEBOX_FLAG_SPAN (1u << 7)       /* a span: the sum over a stretch of execution */
#define DEBOX_FLAG_SPLICE (1u << 8)     /* boundaries stamped by the program's spliced code */

/* A sleep's holder_kind. */
#define DEBOX_HOLDER_NONE 0u   /* the kernel records no owner for this resource */
#define DEBOX_HOLDER_WRITER 1u /* holder_pid owned the lock when we went to sleep */
#define DEBOX_HOLDER_READER 2u /* held for reading; holder_pid is one reader, a hint */

/* A sleep's flags: what is known of its waiters and of who held the lock as it
 * ended. Where a bit is clear, the number is 0 and means nothing. */
#define DEBOX_SLEEP_WAITERS_ENTRY (1u << 0)      /* waiters_entry: 0 is nobody */
#define DEBOX_SLEEP_WAITERS_EXIT (1u << 1)       /* waiters_exit */
#define DEBOX_SLEEP_WAITERS_ENTRY_MORE (1u << 2) /* there were at least so many */
#define DEBOX_SLEEP_WAITERS_EXIT_MORE (1u << 3)
#define DEBOX_SLEEP_HOLDER_EXIT (1u << 4) /* holder_exit_pid: 0 is nobody else, or withheld */
#define DEBOX_SLEEP_CHAIN (1u << 5)       /* chain, chain_permille: 0 is no room for more chains */
/* Of an event's sleep, from this bit on: how much of it its chain explains, in thousandths;
 * 0: not known. */
#define DEBOX_SLEEP_PERMILLE_SHIFT 16u

/* Others at one lock or queue are counted up to here. */
#define DEBOX_WAITERS_MAX 64u

/* One blocking place inside one call (the paper's PerSleepInfo). */
struct debox_sleep {
	__u64 total_ns;      /* blocked here in all */
	__u64 max_ns;        /* longest single sleep */
	__u32 site;          /* index into the site table */
	__u32 count;         /* how often */
	__u32 waiters_entry; /* other threads waiting for the same when the last sleep began */
	__u32 waiters_exit;  /* ... and when it ended */
	__u32 holder_pid;    /* thread id of the lock's owner, 0 unknown or withheld */
	__u32 waker_pid;     /* thread id of who woke us last, 0 unknown or withheld */
	__u32 holder_kind;   /* DEBOX_HOLDER_* */
	__u32 flags;         /* DEBOX_SLEEP_* */
	char holder_comm[DEBOX_COMM_LEN];
	char waker_comm[DEBOX_COMM_LEN];
	__s32 holder_nr;       /* the call the holder was in; -1 none or unknown */
	__u32 holder_exit_pid; /* thread id of who held the lock when the last sleep ended */
	__u32 chain;           /* what the longest sleep waited for: explains the longest part of it */
	__u32 chain_permille;  /* so much of it */
};

/* The account of one call, of any capture, in any language. */
struct debox_info {
	__u32 size;        /* sizeof(struct debox_info) of the writer */
	__u32 flags;       /* DEBOX_FLAG_* */
	__u64 valid;       /* DEBOX_VALID_* */
	__u64 call_seq;    /* the thread's own running number of the call */
	__s32 nr;          /* system call number; -1 unknown */
	__u32 sleep_count; /* entries used in sleeps[] */
	__s64 retval;      /* the kernel's return value: -errno on failure */
	__u64 start_ns;    /* CLOCK_MONOTONIC at entry */
	__u64 wall_ns;     /* = cpu_ns + blocked_ns + runq_ns (+ irq_ns) */
	__u64 cpu_ns;      /* on a CPU */
	__u64 blocked_ns;  /* asleep until woken */
	__u64 runq_ns;     /* runnable, waiting for a CPU */
	__u64 irq_ns;      /* interrupts that landed in the call; only where asked for */
	__u64 outside_ns;  /* in user mode beside the call, off CPU or in (measured) interrupts: not
	                    * part of wall_ns */
	__u64 call_site;   /* return address in the program */
	__u32 minor_faults;
	__u32 major_faults;
	__u32 nvcsw;          /* voluntary context switches */
	__u32 nivcsw;         /* involuntary ones */
	__u32 sleeps_dropped; /* sleeps that found no room in sleeps[] */
	__u32 trace_count;
	__u64 sleeps_dropped_ns;
	__u32 trace_dropped;
	__u32 pid;   /* thread group */
	__u32 tid;   /* thread */
	__u32 calls; /* calls summed up here: 1, or a span's number of wrapped calls */
	__u64 reserved[10];
	struct debox_sleep sleeps[DEBOX_SLEEPS_MAX];
};

/* -------------------------------------------------------------------- slot */

/*
 * A slot is two pages of one thread: the control page, which the program
 * writes and the kernel side only reads (and bounds), and the record page,
 * which only the kernel side writes; the program maps it read-only from a
 * frozen map. A segment is DEBOX_SEGMENT_SLOTS slots: one map of record
 * pages, one of control pages.
 */
#define DEBOX_PAGE_SIZE 4096u
#define DEBOX_SEGMENT_SLOTS 32u
/* Records per record page: nesting level n (a signal handler's call inside a
 * call) uses bank n % DEBOX_BANKS. */
#define DEBOX_BANKS 2u
#define DEBOX_BANK_SIZE 1920u

struct debox_control {
	__u64 open_seq; /* the open call's number, 0 outside calls. Written last at
	                    * begin, first at end. The reader runs on the same CPU or
	                    * after a context switch, so a compiler barrier is enough. */
	__s32 nr;       /* -1: take it from the thread's registers */
	__u32 level;    /* nesting level of the open call */
	__u64 call_site;
	__u32 max_sleeps; /* 0..DEBOX_SLEEPS_MAX, larger counts as the maximum */
	__u32 flags;      /* DEBOX_CONTROL_* */
	__u32 max_trace;  /* trace entries wanted of each call (trace.h); 0: none */
	__u32 reserved0;
	__u64 reserved[3];
	__u8 user[DEBOX_PAGE_SIZE - 64]; /* libdebox's own; the kernel side never looks */
};

/* control.flags. SETTLE: the page fault that the program takes now, in kernel
 * mode and with open_seq as it was, is not to be counted: it only brings the
 * record up to date (see debox_record.away). Nor do spliced calls begin a record
 * meanwhile. */
#define DEBOX_CONTROL_SETTLE (1u << 0)

/* Sums over the thread's whole watched life: two reads make a span. */
struct debox_totals {
	__u64 blocked_ns;         /* all sleeps, inside and outside of calls */
	__u64 runq_ns;            /* all waits for a CPU */
	__u64 outside_blocked_ns; /* of blocked_ns: in user mode (page faults) */
	__u64 outside_runq_ns;    /* of runq_ns: preempted in user mode */
	__u64 sleeps;             /* number of sleeps */
	__u64 kernel_faults;      /* page faults taken in kernel mode */
	__u64 major_faults;       /* major ones among all faults, of user mode too */
	__u64 nvcsw;
	__u64 nivcsw;
	__u64 dropped_ns; /* blocked time that found no room in a record */
	__u64 irq_ns;     /* all interrupts, in and outside of calls; 0 where not asked for */
	__u64 reserved[13];
};

/* call_seq of a spliced call in a bank: this, and its time stamp. */
#define DEBOX_SEQ_SPLICED (1ull << 63)

union debox_bank {
	struct debox_info info;
	__u8 pad[DEBOX_BANK_SIZE];
};

struct debox_record {
	__u32 tid; /* the slot's thread, 0 when free; claimed and freed by the kernel side */
	__u32 tgid;
	__u64 generation; /* counts the threads that had this slot */
	struct debox_totals totals;
	/* 1 while the thread is off the CPU. A thread that finds it set about
	 * itself was switched back in unseen: some kernels hide switches away
	 * from processes they protect. The open bank then lacks its last sleep,
	 * until the next event; DEBOX_CONTROL_SETTLE says how to make one. */
	__u32 away;
	/* 1: what happens in spliced calls is recorded as well, while libdebox has none
	 * open: in bank 1 if the call interrupted another one, else in bank 0. As of the
	 * last event. */
	__u32 spliced;
	__u64 reserved[5];
	union debox_bank bank[DEBOX_BANKS];
};

/* ------------------------------------------------------------------- sites */

#define DEBOX_SITES_MAX 16384u
#define DEBOX_SITE_NONE 0xffffffffu
#define DEBOX_LABEL_LEN 24u
#define DEBOX_FUNCTION_LEN 64u
#define DEBOX_FILE_LEN 112u

#define DEBOX_SITE_EMPTY 0u
#define DEBOX_SITE_RESOLVED 1u

/*
 * The text of one site. `state` is stored last with release order by the
 * broker and must be loaded with acquire order.
 */
struct debox_site {
	__u32 state;  /* DEBOX_SITE_* */
	__u32 merged; /* the first site with the same label and place: print them as one */
	__u32 line;   /* 0: no debug information */
	__u32 offset; /* byte offset inside the function */
	char label[DEBOX_LABEL_LEN];
	char function[DEBOX_FUNCTION_LEN];
	char file[DEBOX_FILE_LEN]; /* empty without debug information */
	__u32 flags;               /* DEBOX_SITE_FLAG_* */
	__u32 reserved[9];
};
#define DEBOX_SITE_FLAG_UNLABELLED (1u << 0)   /* no rule matched: the label is the function */
#define DEBOX_SITE_FLAG_GRACE_PERIOD (1u << 1) /* it ends when all CPUs have left what they read (RCU) */

/*
 * The first page of the broker's shared memory, read-only for clients;
 * struct debox_site[DEBOX_SITES_MAX] follows at DEBOX_PAGE_SIZE.
 */
#define DEBOX_SHARED_MAGIC 0x58304265u
struct debox_shared {
	__u32 magic;
	__u32 abi_version;
	__u32 broker_pid;
	/* Byte offset, in this page, of a robust mutex's lock word that the
	 * broker's main thread holds. The kernel sets FUTEX_OWNER_DIED in it when
	 * the broker dies, also by SIGKILL, before its BPF programs go away: so
	 * word & 0x40000000 (or word == 0) means that records are stale. */
	__u32 alive_offset;
	__u32 site_count;
	__u32 site_entry_size; /* sizeof(struct debox_site) */
	__u64 features;        /* DEBOX_FEATURE_* that are attached */
	__u64 reserved[5];
	__u8 mutex[128];
};
#define DEBOX_FEATURE_SLEEPS (1ull << 0)
#define DEBOX_FEATURE_FAULTS (1ull << 1)
#define DEBOX_FEATURE_MAJOR_FAULTS (1ull << 2)
#define DEBOX_FEATURE_LOCKS (1ull << 3)
#define DEBOX_FEATURE_WAKERS (1ull << 4)
#define DEBOX_FEATURE_RUNQ (1ull << 5)
#define DEBOX_FEATURE_SITES (1ull << 6)
#define DEBOX_FEATURE_IRQ (1ull << 7) /* of whoever asked for it */

/* --------------------------------------------------------------- histogram */

/*
 * Wall times in buckets of at most 12.5 % width: 8 per power of two from
 * 16 ns to 2^40 ns (18 minutes); bucket 0 holds what is below, the last one
 * what is above.
 */
#define DEBOX_HIST_MIN_EXP 4u
#define DEBOX_HIST_MAX_EXP 40u
#define DEBOX_HIST_SUB 8u
#define DEBOX_HIST_BUCKETS ((DEBOX_HIST_MAX_EXP - DEBOX_HIST_MIN_EXP) * DEBOX_HIST_SUB + 2u)

/* ----------------------------------------------------------------- account */

/*
 * An account sums up the calls of a whole run. It lives in two frozen,
 * mappable maps: one struct debox_account, and one struct debox_account_cpu
 * for each possible CPU (so that no counter is ever contended).
 */
#define DEBOX_ROWS_MAX 192u
#define DEBOX_NR_SLOTS 1024u
#define DEBOX_NR_COMPAT 512u   /* key of 32-bit call n is DEBOX_NR_COMPAT + n */
#define DEBOX_NR_OUTSIDE 1022u /* key of waits outside of calls (user page faults) */
#define DEBOX_NR_UNKNOWN 1023u /* key of numbers beyond the tables */
#define DEBOX_SITE_ROWS_MAX 2048u

/* One system call of an account, on one CPU. Index 0 is never used. */
struct debox_row {
	__u64 count;      /* calls that returned */
	__u64 errors;     /* of those: returned -errno */
	__u64 restarted;  /* of those: interrupted, to be restarted by the kernel */
	__u64 unfinished; /* calls that never returned (exit); not in count, their time is in wall_ns */
	__u64 wall_ns;
	__u64 max_ns;
	__u64 blocked_ns;
	__u64 runq_ns;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 nvcsw;
	__u64 nivcsw;
	__u64 irq_ns;
	__u64 missing; /* of the errors: -ENOENT */
	__u64 ones;    /* calls that returned 1: a read or write of one byte */
	__u64 told;    /* DEBOX_REQ_AUDIT: calls that the kernel saw begin, and their program said so, */
	__u64 untold;  /* and those of which it did not */
	__u64 hist[DEBOX_HIST_BUCKETS];
};

struct debox_account_cpu {
	struct debox_row rows[DEBOX_ROWS_MAX];
};

/*
 * Sleeps by how long they took: two buckets for each power of two of *seconds*, from 2^-20 s
 * (1 us) to 2^14 s (4.5 h). Bucket 0 holds what is not above the first bound, bucket n what is
 * above bound n - 1 and not above bound n, the last one the rest. These are the buckets of
 * Prometheus' native histograms of schema 1, and each second bound is one of schema 0: what is
 * exposed is what was counted. Powers of two of nanoseconds would lie between them.
 */
#define DEBOX_SLEEP_MIN_EXP 20u /* the first bound is 2^-20 s */
#define DEBOX_SLEEP_MAX_EXP 14u /* the last one 2^14 s */
#define DEBOX_SLEEP_BUCKETS ((DEBOX_SLEEP_MIN_EXP + DEBOX_SLEEP_MAX_EXP) * 2u + 2u)
/* The last bound, and 1 / sqrt(2) of twice it, in ns; those before are these, shifted. */
#define DEBOX_SLEEP_BOUND_EVEN 16384000000000ull
#define DEBOX_SLEEP_BOUND_ODD 23170475005920ull

/*
 * Where one system call blocked.
 *
 * hist, and longest_*, are of sleeps that are over, each whole: one that another account was told
 * the begin of (it has handed its thread over) is here with that. How often this account saw a
 * sleep end is the sum of hist, so no copy can have one without the other.
 *
 * Who slept longest is written by one CPU at a time: it makes longest_begun one more, writes, and
 * then longest_told the same. So what a copy that was made from the front to the back has of it
 * belongs together if both are equal.
 */
struct debox_site_row {
	__u64 key;      /* 0 empty, else 1<<63 | nr key << 32 | site */
	__u64 total_ns; /* of sleeps that are over, since this account has had the thread */
	__u64 max_ns;
	__u64 waiters_entry; /* sum over the sleeps of which they are known */
	__u64 waiters_max;
	__u64 waiters_known; /* so many sleeps */
	__u64 before_ns;     /* of sleeps that are over, before this account had the thread */
	__u64 asleep;        /* 0; who copies the row adds those that are not over, */
	__u64 asleep_ns;     /* ... and how long they have slept here */
	__u64 longest_told;
	__u64 longest_ns;                  /* 0: none is known. One that two CPUs saw end at once may be missing */
	__u64 longest_end_ns;              /* CLOCK_MONOTONIC */
	char longest_comm[DEBOX_COMM_LEN]; /* the thread's name as it fell asleep */
	__u64 longest_begun;
	__u64 hist[DEBOX_SLEEP_BUCKETS];
};

/*
 * Interrupts that landed on the CPU while a thread of the account had it: by
 * device, by the processor's own vector, by the soft interrupt. A hard interrupt
 * in a soft one is counted as the hard one alone.
 */
#define DEBOX_IRQ_ROWS_MAX 128u
#define DEBOX_IRQ_NAME_LEN 32u
#define DEBOX_IRQ_DEVICE 1u /* number: of the line; name: its handler's */
#define DEBOX_IRQ_VECTOR 2u /* number: the processor's vector */
#define DEBOX_IRQ_SOFT 3u   /* number: of the soft interrupt */
#define DEBOX_IRQ_KIND_SHIFT 56u
#define DEBOX_IRQ_NUMBER_SHIFT 24u /* 32 bits; below them a hash of the name */
struct debox_irq_row {
	__u64 key;   /* 0 free, else 1 << 63 | kind | number | hash */
	__u64 count; /* that landed in calls */
	__u64 total_ns;
	__u64 max_ns;
	__u64 outside_count; /* ... between calls, in the program's own code */
	__u64 outside_ns;
	__u64 outside_max_ns;
	__u64 reserved[1];
	char name[DEBOX_IRQ_NAME_LEN];
};

struct debox_account {
	__u32 rows_used; /* row indices handed out, 1.. */
	__u32 cpus;
	__u64 threads_started; /* threads (first ones of processes included) cloned under watch; not
	                        * those that were there when the watch began */
	__u64 threads_ended;
	__u64 threads_unwatched; /* threads that could not be watched: no memory */
	__u64 rows_dropped;      /* calls whose number found no free row */
	__u64 sites_dropped;     /* sleeps that found no free site row */
	__u64 sites_dropped_ns;
	__u64 sites_unknown; /* sleeps whose stack could not be taken */
	__u64 sites_unknown_ns;
	/* Threads that left the watch, by reason. The first four: since ptrace would
	 * refuse them to the account's user. */
	__u64 left_privileged_exec; /* exec of a set-user-id, set-group-id program or one with capabilities */
	__u64 processes_started;
	__u64 left_unreadable_exec; /* exec of a program that may be run and not read */
	__u64 left_credentials;     /* changed their user or group ids or capabilities */
	__u64 left_undumpable;      /* closed themselves (PR_SET_DUMPABLE), or their process did */
	__u64 left_taken;           /* another account has them now */
	__u64 irqs_dropped;         /* interrupts that found no row; their time is in the calls' */
	__u64 irqs_dropped_ns;
	__u64 calls_begun_before; /* calls that slept as their thread's watch began: of them what came after */
	__u64 sleeps_untold;      /* in calls of spliced programs that these did not tell of: by site alone */
	__u64 sleeps_untold_ns;
	__u64 reserved[1];
	__u32 row_of[DEBOX_NR_SLOTS]; /* nr key -> row index, 0 none */
	struct debox_site_row sites[DEBOX_SITE_ROWS_MAX];
	struct debox_irq_row irqs[DEBOX_IRQ_ROWS_MAX];
};

/*
 * Where the time of threads went, from first to last sight: life_ns is the sum of the
 * parts after it (rest_ns is part of blocked_ns), to the nanosecond.
 */
struct debox_life_time {
	__u64 life_ns;
	__u64 own_ns;     /* on a CPU, in none of its calls: its own code, and faults of it */
	__u64 calls_ns;   /* on a CPU, in system calls (accounts with boundaries; else own_ns has it) */
	__u64 exit_ns;    /* on a CPU, on its way out of the world */
	__u64 blocked_ns; /* asleep in calls */
	__u64 rest_ns;    /* ... of this: at its resting place, with nothing to do */
	__u64 outside_ns; /* asleep outside of calls: faults, exit */
	__u64 stopped_ns; /* by a signal, or a tracer */
	__u64 runq_ns;    /* could have run, and had no CPU */
	__u64 minor_faults;
	__u64 major_faults;
	/* The same time on a CPU as the kernel counts it: by ticks, or exactly where it is
	 * built so. Of many ticks the ratio tells how much of own_ns the kernel took. */
	__u64 user_ns;
	__u64 system_ns; /* calls_ns, exit_ns, and faults and interrupts of own_ns */
	/* Interrupts that landed in calls_ns, and in own_ns; 0 unless the account measures them. */
	__u64 irq_ns;
	__u64 irq_outside_ns;
};

/*
 * A thread of an account that lives: of DEBOX_MSG_AWAY. What is told is not
 * yet in the account's sums.
 */
#define DEBOX_AWAY_CALL (1u << 0)    /* inside a call that boundary capture has seen begin, or found asleep */
#define DEBOX_AWAY_ASLEEP (1u << 1)  /* blocked */
#define DEBOX_AWAY_OFF (1u << 2)     /* off the CPU: blocked, preempted, or waiting for its turn */
#define DEBOX_AWAY_LIFE (1u << 3)    /* with details: life is of it, since its row was last added to */
#define DEBOX_AWAY_SPLICED (1u << 4) /* CALL: a spliced program's; blocked_ns and runq_ns are of this stretch alone */
#define DEBOX_AWAY_TAKEN (1u << 5)   /* another account has it: all of this is of when it was taken */
#define DEBOX_AWAY_LINK_SHIFT 8u     /* ASLEEP: above it DEBOX_CHAIN_REST, _FIRST or _LOOP, as of a sleep that is over */
struct debox_away {
	__u32 pid;
	__u32 tid;
	__u32 key;        /* OFF: nr key of the call that it is in, DEBOX_NR_OUTSIDE none */
	__u32 site;       /* ASLEEP: where; DEBOX_SITE_NONE: not known */
	__u32 flags;      /* DEBOX_AWAY_* */
	__u32 program;    /* LIFE: its number among the programs of struct debox_lives */
	__u64 wall_ns;    /* CALL: since it began, or its watch did */
	__u64 blocked_ns; /* of the call so far (CALL), else of this stretch off the CPU */
	__u64 runq_ns;
	__u64 irq_ns;    /* CALL: interrupts that landed in it; see debox_row */
	__u64 asleep_ns; /* ASLEEP: of this sleep so far */
	char comm[DEBOX_COMM_LEN];
	struct debox_life_time life;
	__u64 cgroup; /* LIFE: its process's, as in struct debox_life, when rows are of many; else 0 */
	__u64 reserved[1];
};

/* ----------------------------------------------------------------- details */

/*
 * What an account can tell beyond its sums: call sites, culprits, threads and
 * single calls. It lives in more maps that the broker hands out with
 * DEBOX_REQ_DETAILS: struct debox_details (frozen, read-only), a ring buffer
 * of events (the kernel's BPF_MAP_TYPE_RINGBUF, DEBOX_EVENTS_BYTES), and one
 * struct debox_account_control that the client writes.
 *
 * Rows of one table are found by open addressing; key 0 is free, a used key
 * has bit 63 set and never changes. Tables that are full count what they drop.
 */
#define DEBOX_EVENTS_BYTES (1u << 20)

/* Parts of the keys. */
#define DEBOX_KEY_USED (1ull << 63)
#define DEBOX_KEY_NR_SHIFT 53u   /* 10 bits: nr key of the call */
#define DEBOX_KEY_SITE_SHIFT 38u /* 15 bits: site, DEBOX_KEY_SITE_NONE: unknown */
#define DEBOX_KEY_SITE_NONE 0x7fffu

/* ------ user stacks: the place in the program that made a call */

#define DEBOX_USER_FRAMES_MAX 32u
#define DEBOX_USER_STACKS_MAX 8192u
#define DEBOX_USER_FILES_MAX 512u
#define DEBOX_PATH_LEN 240u

/* A frame is file << 48 | offset: `file` is an index into files[], `offset`
 * the byte offset in that file of the return address (the instruction after
 * the call; of frame 0 the one after the system call instruction). File 0: the
 * offset is an address in no file (generated code). */
#define DEBOX_FRAME_FILE_SHIFT 48u
/* ... and this file is the code that the kernel lends programs (vDSO). */
#define DEBOX_FRAME_VDSO 0xfffeu

#define DEBOX_STACK_CUT (1u << 0)     /* more frames than were asked for, or fit */
#define DEBOX_STACK_PENDING (1u << 1) /* a file's unwind table was not there yet: guessed by frame pointer */
#define DEBOX_STACK_LOST (1u << 2)    /* the walk ended before the outermost frame */

struct debox_user_stack {
	__u64 hash;                          /* of frames, never 0; 0: free. Written first */
	__u32 depth;                         /* frames used; written last: 0 while being filled */
	__u32 flags;                         /* DEBOX_STACK_* */
	__u32 pid;                           /* a process it was seen in */
	__u32 site_frame;                    /* index of the program's own call site: the first frame outside of
	                   * the C library or the language's runtime */
	__u64 frames[DEBOX_USER_FRAMES_MAX]; /* innermost first */
};

struct debox_user_file {
	__u64 ino;   /* 0: free */
	__u32 dev;   /* kernel's encoding: major << 20 | minor */
	__u32 state; /* 1 once path is complete */
	__u32 pid;   /* a process that had it mapped */
	__u32 reserved0;
	char path[DEBOX_PATH_LEN]; /* as the process's mount namespace shows it; may be cut at the
	                            * front, then it does not begin with '/' */
};

/* The calls of one system call from one user stack. Written from several CPUs,
 * with atomic adds. */
#define DEBOX_COARSE_BUCKETS 40u /* bucket i: wall times below 2^(i+1) ns, the last one holds the rest */
#define DEBOX_CALL_SITE_ROWS_MAX 4096u
struct debox_call_site_row {
	__u64 key; /* USED | nr key << NR_SHIFT | user stack index */
	__u64 count;
	__u64 errors;
	__u64 wall_ns;
	__u64 max_ns;
	__u64 blocked_ns;
	__u64 runq_ns;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 irq_ns;
	__u64 reserved[2];
	__u32 hist[DEBOX_COARSE_BUCKETS];
};

/* Sleeps of one system call at one site from one user stack. */
#define DEBOX_PATH_ROWS_MAX 8192u
struct debox_path_row {
	__u64 key; /* USED | nr key << NR_SHIFT | site << SITE_SHIFT | user stack index (0: unknown) */
	__u64 count;
	__u64 total_ns;
	__u64 max_ns;
};

/* ------ culprits: who held what was waited for, who ended the wait */

#define DEBOX_CULPRIT_HOLDER_WRITER 1u
#define DEBOX_CULPRIT_HOLDER_READER 2u /* one of perhaps several: a hint */
#define DEBOX_CULPRIT_WAKER 3u         /* pid 0: an interrupt */
#define DEBOX_CULPRIT_KIND_SHIFT 36u   /* 2 bits */
#define DEBOX_CULPRIT_NR_SHIFT 24u     /* 11 bits: nr + 1 of the call the culprit was in; 0: none or unknown */
#define DEBOX_CULPRIT_PID_MASK 0x3fffffu
#define DEBOX_CULPRIT_ROWS_MAX 4096u
struct debox_culprit_row {
	__u64 key; /* USED | nr key << NR_SHIFT | site << SITE_SHIFT | kind | nr + 1 | pid */
	__u64 count;
	__u64 total_ns;
	__u64 max_ns;
	__u32 tid;   /* of the last one seen; pid in the key is the process */
	__u32 place; /* 1 + where a holder was in its program, a number in stacks[] (holder_stack
	              * below); 1: not known; 0: while the row is being claimed */
	char comm[DEBOX_COMM_LEN];
};

/* ------ threads */

#define DEBOX_THREAD_ROWS_MAX 1024u
struct debox_thread_row {
	__u32 tid; /* 0: free. Row 0 sums up the threads that found no row */
	__u32 tgid;
	char comm[DEBOX_COMM_LEN]; /* as of its last call */
	__u64 first_ns;            /* CLOCK_MONOTONIC */
	__u64 ended_ns;            /* 0: lives */
	__u64 count;
	__u64 errors;
	__u64 wall_ns;
	__u64 blocked_ns;
	__u64 runq_ns;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 irq_ns; /* in its calls */
	__u64 irq_outside_ns;
	__u64 told; /* of a spliced thread: calls and, << 32, errors as it told them last */
};

/* ------ conditions: which single calls are worth an event or an action */

#define DEBOX_CONDITIONS_MAX 8u

/* What a condition can ask of a finished call; values are compared as signed
 * 64-bit numbers. */
#define DEBOX_FIELD_WALL_NS 0u
#define DEBOX_FIELD_CPU_NS 1u
#define DEBOX_FIELD_BLOCKED_NS 2u
#define DEBOX_FIELD_RUNQ_NS 3u
#define DEBOX_FIELD_RETVAL 4u
#define DEBOX_FIELD_MINOR_FAULTS 5u
#define DEBOX_FIELD_MAJOR_FAULTS 6u
#define DEBOX_FIELD_SLEEPS 7u
#define DEBOX_FIELD_PREEMPTIONS 8u
#define DEBOX_FIELD_PID 9u
#define DEBOX_FIELD_TID 10u
#define DEBOX_FIELD_WAITERS 11u /* most other waiters at any of its sleeps */
#define DEBOX_FIELD_IRQ_NS 12u
#define DEBOX_FIELDS 13u

#define DEBOX_CONDITION_ON (1u << 0)
#define DEBOX_CONDITION_COMM (1u << 1)          /* the thread's command name must equal comm */
#define DEBOX_CONDITION_COMM_NOT (1u << 2)      /* ... must differ from it */
#define DEBOX_CONDITION_SITES (1u << 3)         /* at least one sleep at a site of sites[] */
#define DEBOX_CONDITION_SITES_NOT (1u << 4)     /* no sleep at a site of sites[] */
#define DEBOX_CONDITION_EVENT (1u << 5)         /* send an event */
#define DEBOX_CONDITION_SIGNAL_THREAD (1u << 6) /* signal to the thread, else to its process */
#define DEBOX_CONDITION_LABELS (1u << 7)        /* of places that a rule gives a label, labels[] decides \
						 * alone, also before sites[] is told of them */

/* Labels by number: of DEBOX_MSG_LABELS from 1 on. */
#define DEBOX_LABELS_MAX 256u
#define DEBOX_LABEL_UNKNOWN 0u
#define DEBOX_LABEL_NONE 255u /* no rule gives one */

/* All of its parts must hold (a conjunction). `serial` rises with each change;
 * a condition whose flags lack ON is not looked at. */
struct debox_condition {
	__u32 flags;  /* DEBOX_CONDITION_* */
	__u32 signal; /* sent to the caller as the call returns; 0: none */
	__u32 fields; /* bit n: min[n] <= field n <= max[n] is asked */
	__u32 reserved0;
	__u64 limit;       /* acts at most so often; 0: without limit */
	__u64 interval_ns; /* ... and not again before this time has passed */
	char comm[DEBOX_COMM_LEN];
	__s64 min[DEBOX_FIELDS];
	__s64 max[DEBOX_FIELDS];
	__u64 calls[DEBOX_NR_SLOTS / 64];    /* bit = nr key */
	__u64 sites[DEBOX_SITES_MAX / 64];   /* bit = site; the client sets them as sites get their text */
	__u64 known[DEBOX_SITES_MAX / 64];   /* sites that the client has judged; a sleep at another one makes
	                                     * the answer uncertain: DEBOX_EVENT_UNCERTAIN */
	__u64 labels[DEBOX_LABELS_MAX / 64]; /* bit = label; with CONDITION_LABELS */
};

#define DEBOX_DETAIL_CALL_SITES (1u << 0) /* fill call_sites[] with the call site alone */
#define DEBOX_DETAIL_STACKS (1u << 1)     /* ... with whole user stacks; paths[] too */
#define DEBOX_DETAIL_THREADS (1u << 2)
#define DEBOX_DETAIL_EVENTS (1u << 3)       /* slow_ns[] and conditions[] are looked at */
#define DEBOX_DETAIL_EVENT_STACKS (1u << 4) /* events carry a user stack */
#define DEBOX_DETAIL_SLEEPS (1u << 5)       /* without REQ_BOUNDARY: each sleep in a call is judged, alone, by conditions[], and by slow_ns[] with DETAIL_EVENTS */

struct debox_account_control {
	__u32 flags;      /* DEBOX_DETAIL_* */
	__u32 conditions; /* entries in use */
	/* DEBOX_REQ_SPLICE: CLOCK_MONOTONIC is ticks of the time stamp counter x this, 32 bits of which
	 * are after the point, and this; as of now. */
	__u64 tick_rate;
	__s64 tick_offset_ns;
	__u64 begins_ns; /* ... when its command was let go; 0: there is none */
	__u64 reserved[4];
	__u64 slow_ns[DEBOX_NR_SLOTS]; /* by nr key: a call (or sleep in it) that took so long is worth an event; 0: none is */
	struct debox_condition condition[DEBOX_CONDITIONS_MAX];
};

/* What the kernel side knows of a condition. */
struct debox_condition_state {
	__u64 matched; /* calls that met it */
	__u64 acted;   /* signals sent */
	__u64 limited; /* matched, but held back by limit or interval */
	__u64 uncertain;
	__u64 last_ns;
	__u64 reserved[3];
};

/* Below 4 MiB: older kernels (6.1, 6.12) have no larger elements of an array map. */
struct debox_details {
	__u64 events_sent;
	__u64 events_dropped;     /* found no room in the ring */
	__u64 call_sites_dropped; /* calls that found no row, or no stack */
	__u64 call_sites_dropped_ns;
	__u64 stacks_dropped; /* user stacks that found no place */
	__u64 stacks_pending; /* walks that met a file without an unwind table */
	__u64 stacks_failed;  /* walks that found no call site at all */
	__u64 paths_dropped;
	__u64 paths_dropped_ns;
	__u64 culprits_dropped;
	__u64 culprits_dropped_ns;
	__u64 files_dropped;
	__u64 threads_dropped; /* threads that are summed up in row 0 */
	__u32 stacks_used;     /* indices handed out: 1.. */
	__u32 files_used;
	__u32 threads_used;
	__u32 reserved0;
	__u64 serial; /* of this account among all of the broker's; never 0 */
	__u64 reserved[15];
	struct debox_condition_state condition[DEBOX_CONDITIONS_MAX];
	struct debox_culprit_row culprits[DEBOX_CULPRIT_ROWS_MAX];
	struct debox_path_row paths[DEBOX_PATH_ROWS_MAX];
	struct debox_thread_row threads[DEBOX_THREAD_ROWS_MAX];
	struct debox_user_file files[DEBOX_USER_FILES_MAX];
	struct debox_call_site_row call_sites[DEBOX_CALL_SITE_ROWS_MAX];
	struct debox_user_stack stacks[DEBOX_USER_STACKS_MAX];
};

/* ------ chains: what a sleep was waiting for, down to a root */

/*
 * A chain is a link and, through `parent`, what that waited for. It is made when
 * its first sleep ends and never changes. Times are counted under the number
 * of the first link. The last link has no parent: the root.
 */
#define DEBOX_CHAINS_MAX 16384u
#define DEBOX_CHAIN_DEPTH_MAX 16u /* one that is longer ends in DEBOX_CHAIN_DEEPER */
#define DEBOX_CHAIN_NONE 0u       /* not a chain: never given out */
#define DEBOX_CHAIN_SLEEP 1u      /* comm slept at site, in call nr, until its parent ended */
/* Roots. */
#define DEBOX_CHAIN_RAN_USER 2u   /* comm ran its own code */
#define DEBOX_CHAIN_RAN_CALL 3u   /* comm ran in call nr */
#define DEBOX_CHAIN_RAN 4u        /* comm ran, own code and calls not told apart */
#define DEBOX_CHAIN_RUNQ 5u       /* comm waited for a CPU */
#define DEBOX_CHAIN_DEVICE 6u     /* an interrupt of a device: comm is its name */
#define DEBOX_CHAIN_DISK 7u       /* a block device: comm is its name, nr what it did (REQ_OP_*) */
#define DEBOX_CHAIN_TIMER 8u      /* a time set before */
#define DEBOX_CHAIN_NETWORK 9u    /* packets that came */
#define DEBOX_CHAIN_INTERRUPT 10u /* another interrupt: nr is the vector of a soft one, -1 a hard one */
/* Roots that are the end of what is known. */
#define DEBOX_CHAIN_EARLIER 11u  /* comm woke us; what it did then, in call nr if not -1, is not known any more, or not yet */
#define DEBOX_CHAIN_WOKEN 12u    /* comm woke us, in call nr, and was not followed */
#define DEBOX_CHAIN_UNSEEN 13u   /* who woke us was not seen */
#define DEBOX_CHAIN_NOT_OVER 15u /* nobody yet: the sleep was not over (made by clients) */
#define DEBOX_CHAIN_SLEPT 16u    /* comm woke us; it had slept, for more than is kept apart */
#define DEBOX_CHAIN_LIMIT 17u    /* the time that the call would wait at most was over: nothing had come */
/* All CPUs had left what they read (RCU). Whoever woke us ran the call-back, and did nothing for it (made by
 * whoever reads a chain, in place of what is behind a sleep with DEBOX_SITE_FLAG_GRACE_PERIOD). */
#define DEBOX_CHAIN_GRACE_PERIOD 18u
#define DEBOX_CHAIN_KINDS 32u  /* more than there are */
#define DEBOX_CHAIN_DEEPER 14u /* longer than is kept */

#define DEBOX_CHAIN_HELD (1u << 0)  /* SLEEP: whose parent is who held what was waited for */
#define DEBOX_CHAIN_REST (1u << 1)  /* SLEEP: at its resting place, with nothing to do (struct debox_life_time) */
#define DEBOX_CHAIN_CLASS (1u << 3) /* SLEEP of another user's task: comm is the group of its label (made by the broker) */
#define DEBOX_CHAIN_OWN (1u << 4)   /* SLEEP: a thread of the same account ended it */
#define DEBOX_CHAIN_FIRST (1u << 2) /* SLEEP: where it was seen to wait first, which may turn out to be that */
#define DEBOX_CHAIN_LOOP (1u << 5)  /* SLEEP elsewhere of a thread that rests where it waits for many things at once */

struct debox_chain {
	__u32 type;   /* DEBOX_CHAIN_*, written last */
	__u32 parent; /* 0: this is the root */
	__u32 site;   /* SLEEP: where; DEBOX_SITE_NONE: not known */
	__s32 nr;     /* nr key of the system call (see DEBOX_NR_COMPAT), -1 none */
	__u32 uid;    /* whose thread; what the broker withholds depends on it */
	__u32 tid;    /* a thread it was seen of */
	__u32 depth;  /* links from here to the root, this one included */
	__u32 flags;  /* DEBOX_CHAIN_HELD, _REST, _FIRST, _CLASS, _OWN, _LOOP */
	char comm[DEBOX_COMM_LEN];
	__u32 user_stack; /* RAN_USER, RAN: where that was, a number in stacks[] of ... */
	__u32 serial;     /* ... the account with this serial (its low half); 0: not taken */
	__u64 reserved[1];
};

struct debox_chain_sum {
	__u64 count; /* sleeps, or parts of them */
	__u64 total_ns;
	__u64 max_ns;
};

/* Of one account. sum[0]: those that found no room among the chains. */
struct debox_chain_sums {
	__u64 reserved[8];
	struct debox_chain_sum sum[DEBOX_CHAINS_MAX];
};

/* ------ objects: what a call worked on, taken while it was in the call */

/*
 * Of an account with details: a map of its own (frozen, read-only). An object is
 * what a descriptor, a path or an address among the arguments of a call stood for,
 * read in the kernel when the thread first left the CPU in that call. One that
 * is equal in all that is summed under it has one number.
 */
#define DEBOX_OBJECT_NONE 0u
#define DEBOX_OBJECT_FILE 1u
#define DEBOX_OBJECT_DIRECTORY 2u
#define DEBOX_OBJECT_CHARACTER 3u /* a device: rdev */
#define DEBOX_OBJECT_BLOCK 4u     /* the same */
#define DEBOX_OBJECT_FIFO 5u      /* a pipe with a name */
#define DEBOX_OBJECT_PIPE 6u      /* ino is its number */
#define DEBOX_OBJECT_SOCKET 7u
#define DEBOX_OBJECT_ANON 8u   /* text is the kernel's name of its kind, as "[eventpoll]" */
#define DEBOX_OBJECT_PSEUDO 9u /* a file with a name and no place, as "memfd:..." */
#define DEBOX_OBJECT_PATH 10u  /* text is the string passed */
#define DEBOX_OBJECT_FUTEX 11u /* ino is its address, in process pid */
#define DEBOX_OBJECT_OTHER 12u

#define DEBOX_OBJECT_DELETED (1u << 0)
#define DEBOX_OBJECT_CUT (1u << 1)       /* text is not all of it: of files the front is missing, else the end */
#define DEBOX_OBJECT_UNREAD (1u << 2)    /* text could not be read */
#define DEBOX_OBJECT_WITHHELD (1u << 3)  /* peer_pid is another user's, and 0 */
#define DEBOX_OBJECT_LOCAL (1u << 4)     /* local address and port are there */
#define DEBOX_OBJECT_PEER (1u << 5)      /* peer address and port are there */
#define DEBOX_OBJECT_TEXT_PEER (1u << 6) /* text is the name of the peer's socket */
#define DEBOX_OBJECT_ANY_PORT (1u << 7)  /* a port of a passing connection was left out */
#define DEBOX_OBJECT_SEVERAL (1u << 8)   /* of several inodes: ino is the first one's */
#define DEBOX_OBJECT_LATE (1u << 9)      /* taken as the call ended: it never left the CPU */
#define DEBOX_OBJECT_UNSURE (1u << 10)   /* not taken: it would have been as the call ended, and
                                          * another thread could have changed the descriptor */

#define DEBOX_OBJECT_TEXT_LEN 240u
struct debox_object {
	__u64 hash; /* of what it is told apart by, never 0; 0: free, or not in a table */
	__u64 ino;
	__u32 type; /* DEBOX_OBJECT_*, written last */
	__u32 flags;
	__u32 dev; /* kernel's encoding: major << 20 | minor */
	__u32 rdev;
	__u32 pid;         /* ANON, FUTEX: of this process */
	__s32 fd;          /* the descriptor; -1 none. Of many, in a table: 0 to all but ANON */
	__u32 peer_pid;    /* unix sockets: who connected, or listened; 0 not known */
	__u16 family;      /* AF_* */
	__u16 socket_type; /* SOCK_* */
	__u16 protocol;    /* IPPROTO_* */
	__u16 local_port;
	__u16 peer_port;
	__u16 reserved0;
	__u8 local[16]; /* network order; IPv4: the first four */
	__u8 peer[16];
	char text[DEBOX_OBJECT_TEXT_LEN];
};

#define DEBOX_OBJECTS_MAX 4096u
#define DEBOX_OBJECT_ROWS_MAX 8192u
#define DEBOX_OBJECT_NO_ROOM 0xffffffffu /* in a key: its object found no room */
struct debox_object_row {
	__u64 key;   /* 0 empty, else 1 << 63 | nr key << 32 | number of the object; 0: none, or not known */
	__u64 count; /* sleeps */
	__u64 total_ns;
	__u64 max_ns;
};

struct debox_objects {
	__u64 serial; /* that of the details */
	__u64 rows_dropped;
	__u64 rows_dropped_ns;
	__u64 reserved[5];
	struct debox_object objects[DEBOX_OBJECTS_MAX]; /* the first is not used */
	struct debox_object_row rows[DEBOX_OBJECT_ROWS_MAX];
};

/* ------ on the CPU: what a clock of CPU time found the threads doing */

/*
 * Of an account that asked for it: a map of its own (frozen, read-only). On each
 * CPU a clock strikes `hz` times a second, and what the thread of the account that
 * has the CPU does at that moment is one sample: it stands for 1/hz s of CPU time.
 * A group is the threads of one name. Its samples are complete; rows tell them
 * apart further, as far as there is room.
 */
#define DEBOX_ON_CPU_USER 0u      /* in the program's own code */
#define DEBOX_ON_CPU_CALL 1u      /* in the kernel, in a call */
#define DEBOX_ON_CPU_KERNEL 2u    /* in the kernel for something else: a fault, the way back from a call */
#define DEBOX_ON_CPU_INTERRUPT 3u /* in a soft interrupt that came while it had the CPU */
#define DEBOX_ON_CPU_CLASSES 4u

#define DEBOX_ON_CPU_GROUPS_MAX 512u
struct debox_on_cpu_group {
	__u64 hash; /* of the name; 0: free. The first is of threads that found no group */
	__u64 samples[DEBOX_ON_CPU_CLASSES];
	char comm[DEBOX_COMM_LEN];
	__u64 reserved[1];
};

/* A stack's frame is of the kernel: file is this, offset a function's number
 * (DEBOX_MSG_KERNEL_FUNCTIONS); 0: not known. */
#define DEBOX_FRAME_KERNEL 0xffffu

/* ... and of a function that a Python interpreter ran: file is this, offset an index into
 * python[]; 0: there was no room. */
#define DEBOX_FRAME_PYTHON 0xfffdu
#define DEBOX_PYTHON_TEXT 64u
#define DEBOX_PYTHON_FUNCTIONS_MAX 2048u
struct debox_python_function {
	__u64 hash;                   /* 0: free */
	char name[DEBOX_PYTHON_TEXT]; /* what was too long is cut off at its end */
	char file[DEBOX_PYTHON_TEXT]; /* ... at its beginning */
};

/* Parts of the keys, above the number of the stack of the program's own frames. */
#define DEBOX_ON_CPU_KERNEL_SHIFT 13u /* 13 bits: number of the stack of the kernel's frames */
#define DEBOX_ON_CPU_NR_SHIFT 26u     /* 10 bits: nr key, DEBOX_NR_OUTSIDE: in none of the program's calls */
#define DEBOX_ON_CPU_CLASS_SHIFT 36u  /* 2 bits */
#define DEBOX_ON_CPU_GROUP_SHIFT 38u  /* 9 bits */
#define DEBOX_ON_CPU_ROWS_MAX 16384u
struct debox_on_cpu_row {
	__u64 key; /* USED | ...; of stacks 0: none, or no room */
	__u64 count;
};

struct debox_on_cpu {
	__u64 serial; /* that of the details, whose files[] the frames are in */
	__u32 hz;     /* 0: there is no clock */
	__s32 error;  /* then: why, an errno */
	__u64 rows_dropped;
	__u64 stacks_dropped; /* samples whose stack, or its callers, found no room */
	__u64 stacks_pending; /* walks that met a file without an unwind table */
	__u64 withheld;       /* samples of threads that may not be seen, or not any more, if that is not known yet */
	__u32 stacks_used;
	__u32 reserved0;
	__u64 python_dropped; /* frames of Python functions that found no room */
	__u64 reserved[8];
	struct debox_on_cpu_group groups[DEBOX_ON_CPU_GROUPS_MAX];
	struct debox_on_cpu_row rows[DEBOX_ON_CPU_ROWS_MAX];
	/* Frame 0 is one byte behind the start of the instruction that ran: like
	 * the others, it lies behind what it names. */
	struct debox_user_stack stacks[DEBOX_USER_STACKS_MAX];
	struct debox_python_function python[DEBOX_PYTHON_FUNCTIONS_MAX];
};

/* ------ lives */

/*
 * Where the time of threads went: struct debox_lives, frozen and read-only, a map of its
 * own. A row is of the threads of one name in one process; when there are many rows, of
 * those of one name in all processes of a control group that have none, and when there
 * are more of these, in all that have none (pid 0). Names are numbered: programs. The
 * sums grow when a thread ends or gets another name (exec); those that
 * live are told by DEBOX_MSG_AWAY.
 */
#define DEBOX_PROGRAMS_MAX 1024u
struct debox_program {
	__u64 key; /* 0 empty; of its name */
	char comm[DEBOX_COMM_LEN];
};

#define DEBOX_LIVES_MAX 4096u
#define DEBOX_LIVES_ALONE 2560u       /* rows in use beyond which new processes are summed up by control group, */
#define DEBOX_LIVES_GROUPED 3072u     /* and beyond which new control groups are */
#define DEBOX_LIFE_GROUP (1ull << 62) /* of a key: its lower half is that of a control group's number, and no pid */
#define DEBOX_TITLE_LEN 128u
struct debox_life {
	__u64 key;       /* 0 empty; else 1 << 63 | program << 32 | pid, or see DEBOX_LIFE_GROUP */
	__u32 parent;    /* its process's, when the row was made; 0: rows of many */
	__u32 threads;   /* that began under this name, or came to it */
	__u32 processes; /* first threads among them */
	__u32 execs;     /* of these, those that came to it by exec */
	__u64 first_ns;  /* CLOCK_MONOTONIC: of the first thread's beginning */
	__u64 last_ns;   /* of what was added last */
	struct debox_life_time time;
	__u64 cgroup; /* its process's, by number in the unified hierarchy, at its last beginning
		       * or exec here; 0: not known, or of many */
	__u64 reserved[1];
	char title[DEBOX_TITLE_LEN]; /* the last exec's arguments, each with a 0 behind it; cut */
};

/*
 * What the end of a process depended on, back to the beginning: the critical path, as
 * sums. A thread that is woken by another one of its account takes over that one's
 * path, a child begins with its parent's; whoever runs, waits for a CPU or is
 * woken by anybody else goes on with its own. So the sum is always the time since the
 * beginning. Of parts that find no room only the kind is kept.
 */
#define DEBOX_CRITICAL_OWN 1u     /* on a CPU, in its own code */
#define DEBOX_CRITICAL_CALLS 2u   /* on a CPU, in calls */
#define DEBOX_CRITICAL_EXIT 3u    /* on a CPU, ending */
#define DEBOX_CRITICAL_RUNQ 4u    /* waiting for a CPU */
#define DEBOX_CRITICAL_BLOCKED 5u /* asleep: the chain says for what */
#define DEBOX_CRITICAL_KINDS 8u
#define DEBOX_CRITICAL_PROGRAM_SHIFT 48u
#define DEBOX_CRITICAL_KIND_SHIFT 32u
#define DEBOX_CRITICAL_PARTS_MAX 32u /* a power of two */
struct debox_critical_part {
	__u64 key; /* program << 48 | DEBOX_CRITICAL_* << 32 | chain */
	__u64 ns;
};
struct debox_critical {
	__u64 other_ns[DEBOX_CRITICAL_KINDS]; /* by kind: what found no room */
	__u32 used;
	__u32 reserved0;
	struct debox_critical_part part[DEBOX_CRITICAL_PARTS_MAX];
};

/*
 * What threads do between two rests at their resting place: activities, by how long each
 * took from its wake-up to the next rest.
 */
#define DEBOX_ACTIVITY_BUCKETS 24u /* below 2 us, 4 us, ...; the last one holds the rest */
#define DEBOX_ACTIVITY_MIN_EXP 11u
struct debox_activity_bucket {
	__u64 count;
	__u64 total_ns; /* the sum of the four after it */
	__u64 own_ns;
	__u64 calls_ns;
	__u64 blocked_ns;
	__u64 runq_ns;
	__u64 longest_ns; /* the longest wait in one of them, */
	__u32 chain;      /* and for what; 0: none */
	__u32 reserved0;
};
#define DEBOX_ACTIVITIES_MAX 128u
struct debox_activity {
	__u64 key; /* 0 empty; else 1 << 63 | program << 32 | nr key of the call in which it rests */
	__u64 max_ns;
	__u64 reserved[2];
	struct debox_activity_bucket bucket[DEBOX_ACTIVITY_BUCKETS];
};

struct debox_lives {
	__u64 serial;   /* that of the details */
	__u64 begin_ns; /* CLOCK_MONOTONIC: the first thread was bound */
	__u64 end_ns;   /* the path's; 0: its process lives */
	__u64 rows_used;
	__u64 rows_dropped; /* stretches of life that found no row */
	struct debox_life_time dropped;
	__u32 critical_pid;       /* whose end the path leads to: the first process bound */
	__u32 programs_dropped;   /* names that found no number; theirs is 0 */
	__u64 activities_dropped; /* that found no row */
	__u64 reserved[7];
	struct debox_critical critical;
	struct debox_activity activities[DEBOX_ACTIVITIES_MAX];
	struct debox_program programs[DEBOX_PROGRAMS_MAX]; /* the first is not used */
	struct debox_life rows[DEBOX_LIVES_MAX];
};

/* ------ events */

#define DEBOX_EVENT_CALL 1u /* one finished call: slow, or meeting a condition */

#define DEBOX_EVENT_SLOW (1u << 0)      /* at least slow_ns */
#define DEBOX_EVENT_UNCERTAIN (1u << 1) /* a condition's label was not known yet: the client judges */
#define DEBOX_EVENT_COMPAT32 (1u << 3)
#define DEBOX_EVENT_SLEEP (1u << 4) /* DETAIL_SLEEPS: one sleep, whose call may go on: start and wall are the sleep's,
                                     * and what only the end of a call tells is 0 */

#define DEBOX_EVENT_SLEEPS_MAX 8u

/* One sleep of a single call, in order; not merged. */
struct debox_event_sleep {
	__u64 start_ns; /* CLOCK_MONOTONIC */
	__u64 blocked_ns;
	__u64 runq_ns; /* after the wake-up */
	__u32 site;
	__u32 waiters_entry;
	__u32 waiters_exit;
	__u32 holder_kind; /* DEBOX_HOLDER_* */
	__u32 holder_pid;  /* thread id */
	__s32 holder_nr;   /* the call the holder was in; -1 none or unknown */
	__u32 waker_pid;
	__s32 waker_nr;
	__u32 flags;            /* DEBOX_SLEEP_*; above, what `chain` explains of it */
	__u32 holder_exit_kind; /* ... when it ended */
	__u32 holder_exit_pid;
	__s32 holder_exit_nr;
	char holder_comm[DEBOX_COMM_LEN];
	char waker_comm[DEBOX_COMM_LEN];
	char holder_exit_comm[DEBOX_COMM_LEN];
	__u32 chain;        /* that explains the longest part of it; 0: there was no room */
	__u32 holder_stack; /* of a lock of the program: where the holder was as the sleep began, in the call
	                     * holder_nr; that is -1: where its last call had been made; 0: not known */
};

struct debox_event_call {
	__u32 size;  /* of this event */
	__u32 type;  /* DEBOX_EVENT_CALL */
	__u32 flags; /* DEBOX_EVENT_* */
	__u32 key;   /* nr key */
	__u32 pid;
	__u32 tid;
	char comm[DEBOX_COMM_LEN];
	__s64 retval;
	__u64 args[6];
	__u64 start_ns; /* CLOCK_MONOTONIC */
	__u64 wall_ns;
	__u64 cpu_ns;
	__u64 blocked_ns;
	__u64 runq_ns;
	__u64 irq_ns; /* 0 as well where it is not measured */
	__u32 minor_faults;
	__u32 major_faults;
	__u32 nvcsw;
	__u32 nivcsw;
	__u32 user_stack; /* index into stacks[], 0 none */
	__u32 conditions; /* bit n: met condition n */
	__u32 uncertain;  /* bit n: met condition n but for a label not known yet */
	__u32 signal;     /* sent to the caller, 0 none */
	__u32 sleep_count;
	__u32 sleeps_dropped;
	__u64 sleeps_dropped_ns;
	struct debox_object object; /* what the call worked on */
	struct debox_event_sleep sleeps[DEBOX_EVENT_SLEEPS_MAX];
};

#endif /* DEBOX_ABI_H */
