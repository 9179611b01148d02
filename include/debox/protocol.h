/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do a client and the broker say to each other?
 *
 * One AF_UNIX SOCK_SEQPACKET connection; one packet is one message, fixed
 * structs in the machine's own byte order, every reserved byte zero. The
 * client speaks first, each request gets exactly one reply, file descriptors
 * travel with the reply (SCM_RIGHTS). The broker turns SO_PASSCRED on and
 * believes only what the kernel says about the sender (SCM_CREDENTIALS) and
 * about who connected (SO_PEERCRED): nothing in a message can name another
 * process except in DEBOX_MSG_WATCH, which is for CAP_PERFMON, and DEBOX_MSG_SELECT, of
 * which everybody gets what ptrace would let him read. All requests
 * but DEBOX_MSG_JOIN and DEBOX_MSG_STATUS are for the process that connected,
 * as long as it has no more privileges than then: a child opens a connection
 * of its own.
 *
 * What a connection was given lives as long as any copy of its socket: the
 * last close takes slots and account back. Slots of a process that has ended
 * are taken back even when its socket lives on in a child.
 */
#ifndef DEBOX_PROTOCOL_H
#define DEBOX_PROTOCOL_H

#include <debox/abi.h>

#define DEBOX_PROTOCOL_VERSION 1u

/* Where a permanent broker listens; $DEBOX_SOCKET names another one. */
#define DEBOX_SOCKET_PATH "/run/debox/debox.sock"
/* Where `debox run --capture=wrap` collects what the interposer counted. */
#define DEBOX_ENV_SOCKET "DEBOX_SOCKET"
#define DEBOX_ENV_COLLECT "DEBOX_COLLECT"
/* ... and set where that is to measure interrupts. */
#define DEBOX_ENV_IRQ "DEBOX_IRQ"

/* Gives the sender's process one more segment of slots and binds every thread
 * of it that has none. Reply carries 3 descriptors: record map (mmap
 * PROT_READ, MAP_SHARED), control map (PROT_READ|PROT_WRITE, MAP_SHARED),
 * shared memory (PROT_READ). Both maps are DEBOX_SEGMENT_SLOTS pages. */
#define DEBOX_MSG_SLOTS 1u
/* Opens an account for this connection (one per connection). Reply carries 3
 * descriptors: account map (struct debox_account), per-CPU map
 * (reply.cpus x struct debox_account_cpu, each rounded up to 8 bytes), shared
 * memory; all PROT_READ. */
#define DEBOX_MSG_ACCOUNT 2u
/* Puts the sender's own process (which may have inherited the socket) and all its future children into the connection's account. */
#define DEBOX_MSG_JOIN 3u
/* Puts process `pid`, with all its threads and future children, into the
 * connection's account. CAP_PERFMON or CAP_SYS_ADMIN, of the sender and of who
 * connected. */
#define DEBOX_MSG_WATCH 4u
/* Names the kernel functions of every site of this connection's account. Reply
 * carries 1 descriptor, a file for reading, the same for all: a line per site, `SITE TAB
 * FUNCTION;FUNCTION;...`, outermost first. Of several lines of a site the last
 * holds; a site that comes later is added. */
#define DEBOX_MSG_SITE_STACKS 6u
/* Opens or stops a call trace: struct debox_trace_request in trace.h. */
#define DEBOX_MSG_TRACE 7u
/* The links of chains (abi.h), for who has an account or slots with chains. Reply carries 1 descriptor, a file for reading:
 * struct debox_chain, the first of number 1; those that come later are added at the
 * next request. Clients without privileges are told the names and places of
 * their own user's threads only. */
#define DEBOX_MSG_CHAINS 8u
/* Gives places their label in the kernel from now on, for conditions
 * (DEBOX_CONDITION_LABELS): the reply comes when it does. It carries 1 descriptor,
 * a file for reading: a line per label, the first is label 1. EOPNOTSUPP where
 * the broker cannot. */
#define DEBOX_MSG_LABELS 9u
/* Which threads of this connection's account live, and what they are in the middle of. Reply carries 1
 * descriptor, a file for reading: struct debox_away (abi.h) of each, at most
 * DEBOX_AWAY_MAX of them. */
#define DEBOX_MSG_AWAY 10u
#define DEBOX_AWAY_MAX 65536u
/* Names of the kernel's functions in the stacks of this connection's debox_on_cpu (abi.h).
 * Reply carries 1 descriptor, a file for reading: a line for each, `NUMBER TAB NAME`. */
#define DEBOX_MSG_KERNEL_FUNCTIONS 11u
/* Puts all processes that have something in common into the connection's account, now and
 * from now on: struct debox_select. A thread that ptrace's read access would not be granted
 * to is left out, and one that another account keeps. */
#define DEBOX_MSG_SELECT 12u
/* From now on the kernel tells when calls begin and end of the threads that share memory with
 * thread `pid`, all of which are in this connection's account, of splice capture. */
#define DEBOX_MSG_BOUNDARY 13u
/* The processes that this connection's account was given by DEBOX_MSG_SELECT are from now on those of
 * whoever asks for them; until then they stay, and others come. */
#define DEBOX_MSG_YIELD 14u
/* What watching takes, for all clients together: struct debox_costs. For whom DEBOX_MSG_WATCH is
 * for. Reply carries 1 descriptor, a file for reading; with DEBOX_REQ_RUN_TIME a second one may
 * come: while a copy of it is open the kernel takes the run time of BPF programs, which makes
 * each run of one a little longer, everybody's. The reply's text says why that could not be had. */
#define DEBOX_MSG_COSTS 15u
/* How the broker is doing: fills the counters of the reply. */
#define DEBOX_MSG_STATUS 5u

/* request.flags */
#define DEBOX_REQ_BOUNDARY (1u << 0)    /* SLOTS, ACCOUNT: take call boundaries in the kernel */
#define DEBOX_REQ_CHAINS (1u << 4)      /* SLOTS: records say what sleeps waited for (debox_sleep.chain) */
#define DEBOX_REQ_NOFOLLOW (1u << 1)    /* JOIN, WATCH, SELECT: leave children alone, and what comes later */
#define DEBOX_REQ_DESCENDANTS (1u << 7) /* WATCH: the children that it has, too, and theirs */
/* ACCOUNT, with SPLICE: calls are looked at where they begin in the kernel, too, and it is counted
 * whether their program told of them (debox_row.told, untold). */
#define DEBOX_REQ_AUDIT (1u << 13)
/* BOUNDARY: calls that are open now are counted otherwise; and that thread's own calls count only
 * from when it gives itself a name; or it is this thread alone, from the program on that it is about to execute. */
#define DEBOX_REQ_OPEN_COUNTED (1u << 11)
#define DEBOX_REQ_RENAMES (1u << 12)
#define DEBOX_REQ_EXECUTES (1u << 15)
/* SELECT, with a rank: whoever may watch a process has it for as long as he asks, without rights, too. */
#define DEBOX_REQ_OWNERS_FIRST (1u << 14)
/* ACCOUNT (without BOUNDARY and SPLICE only sleeps are told, no calls): six more descriptors come, between the per-CPU map
 * and the shared memory: details map (struct
 * debox_details, PROT_READ), ring buffer of events (a BPF ring buffer of
 * DEBOX_EVENTS_BYTES: first page PROT_READ|PROT_WRITE, the rest PROT_READ),
 * control (struct debox_account_control, PROT_READ|PROT_WRITE), chains (struct
 * debox_chain_sums, PROT_READ), objects (struct debox_objects, PROT_READ), lives
 * (struct debox_lives, PROT_READ). EOPNOTSUPP to
 * senders without CAP_PERFMON on kernels with CVE-2024-41009. */
#define DEBOX_REQ_DETAILS (1u << 2)
/* ACCOUNT, with DETAILS: user stacks will be asked for; the reply comes when the
 * unwind tables of the C library, and of whatever else the sender has mapped
 * executable (its own program left out), are in place: a client maps the
 * program that it is about to run. */
#define DEBOX_REQ_USER_STACKS (1u << 3)
/* SLOTS, ACCOUNT: measure interrupts too. It costs every interrupt of the machine
 * something. Where it cannot be had, DEBOX_FEATURE_IRQ is missing from the reply
 * to SLOTS, to JOIN and to WATCH. */
#define DEBOX_REQ_IRQ (1u << 5)
/* ACCOUNT, with DETAILS: a clock of CPU time strikes request.hz times a second, 1 to
 * DEBOX_ON_CPU_HZ_MAX, on each CPU. One more descriptor comes, before the shared memory:
 * struct debox_on_cpu, PROT_READ. Where the kernel refuses the clock, it says so. */
#define DEBOX_REQ_ON_CPU (1u << 6)
#define DEBOX_ON_CPU_HZ_MAX 1000u
/* ACCOUNT, with DETAILS and without BOUNDARY: its programs are spliced, and tell by their own blocks
 * when calls begin and end; what a block's stamps are in time stands in struct
 * debox_account_control. Calls are not counted. */
#define DEBOX_REQ_SPLICE (1u << 10)
#define DEBOX_REQ_RUN_TIME (1u << 16) /* COSTS: of the programs in the kernel as well */

struct debox_request {
	__u32 size;    /* sizeof(struct debox_request) of the sender */
	__u32 version; /* DEBOX_PROTOCOL_VERSION */
	__u32 type;    /* DEBOX_MSG_* */
	__u32 flags;   /* DEBOX_REQ_* */
	__s32 pid;     /* WATCH; BOUNDARY: a thread */
	__u32 hz;      /* ACCOUNT, with ON_CPU */
	__u32 reserved[10];
};

struct debox_reply {
	__u32 size; /* sizeof(struct debox_reply) of the broker */
	__u32 version;
	__u32 type;             /* of the request */
	__s32 status;           /* 0 or -errno */
	__u32 fds;              /* descriptors that came along */
	__u32 slots;            /* SLOTS: slots in the segment (DEBOX_SEGMENT_SLOTS) */
	__u32 cpus;             /* ACCOUNT: elements of the per-CPU map */
	__u32 threads;          /* SLOTS, JOIN, WATCH, SELECT: threads bound now */
	__u64 cpu_stride;       /* ACCOUNT: bytes from one CPU's element to the next */
	__u64 features;         /* DEBOX_FEATURE_* attached now */
	__u64 slots_used;       /* STATUS */
	__u64 accounts_used;    /* STATUS */
	__u64 site_walks;       /* STATUS: stacks taken the slow way */
	__u64 site_hits;        /* STATUS: stacks recognised */
	__u64 site_mismatches;  /* STATUS: with site verification on; must be 0 */
	__u64 site_failures;    /* STATUS: walks that the kernel failed to make */
	__u64 storage_failures; /* STATUS: threads without memory for their state */
	__u64 slots_exhausted;  /* STATUS: new threads that found no slot at once */
	__u64 switches_hidden;  /* STATUS: switches back that the kernel did not show */
	__u64 processes;        /* WATCH, SELECT: of those threads, first ones of a process */
	char text[256];         /* what went wrong and the remedy, for people */
};

/* What of struct debox_costs is known; the rest is 0 and tells nothing. */
#define DEBOX_COSTS_RUN_TIME (1u << 0)
#define DEBOX_COSTS_TABLES (1u << 1)
#define DEBOX_COSTS_CPU (1u << 2)
#define DEBOX_COSTS_MEMORY (1u << 3)
struct debox_costs {
	__u32 size;         /* sizeof(struct debox_costs) of the broker */
	__u32 known;        /* DEBOX_COSTS_* */
	__u64 run_time_ns;  /* of its programs, in the times in which the kernel took it */
	__u64 tables_bytes; /* of its maps in the kernel */
	__u64 cpu_ns;       /* of the broker's process and what that started */
	__u64 memory_bytes; /* of the same: what no other process has */
	__u64 reserved[3];
};

/*
 * DEBOX_MSG_SELECT: what the processes have in common. Of one kind one must fit, of all kinds
 * that are given each; none: all processes. The client and the broker are left out.
 *
 * Where several accounts of one user, or of watchers with privileges, ask for the same process, one of
 * them has it: those of rank 0 go first, then the lowest rank, then who asked last. So a client puts
 * several accounts of its own in an order, all of them behind what a person asks for.
 *
 * Patterns end with a zero byte each, and are plain ASCII with *, ? and [...]; in paths
 * these stop at a slash, and ** does not. A control group is one whose path in the unified
 * hierarchy fits, or is below one that does.
 */
#define DEBOX_SELECT_UIDS_MAX 16u
#define DEBOX_SELECT_COMMS_LEN 256u
#define DEBOX_SELECT_CGROUPS_LEN 2048u
#define DEBOX_SELECT_RANK_MAX 65535u
struct debox_select {
	struct debox_request head; /* head.size = sizeof(struct debox_select) */
	__u32 uids;                /* effective user ids that follow */
	__u32 uid[DEBOX_SELECT_UIDS_MAX];
	__u32 rank; /* DEBOX_SELECT_RANK_MAX at most; 0 with DEBOX_REQ_NOFOLLOW */
	__u32 reserved[14];
	char comms[DEBOX_SELECT_COMMS_LEN];
	char cgroups[DEBOX_SELECT_CGROUPS_LEN];
};

/*
 * The collector of `debox run --capture=wrap`: the interposer connects to the socket
 * in $DEBOX_COLLECT and sends one debox_collect with one descriptor, a memfd
 * sealed against shrinking and growing: struct debox_wrap_header in the first
 * page, then `stripes` x struct debox_wrap_stripe. No reply. The collector
 * reads the rows when the connection closes (exit, exec, kill).
 */
#define DEBOX_COLLECT_MAGIC 0x77304265u
struct debox_collect {
	__u32 size;
	__u32 version;
	__u32 stripes;
	__u32 stripe_size; /* sizeof(struct debox_wrap_stripe) */
	__u32 reserved[12];
};

#define DEBOX_WRAP_ROWS 256u
struct debox_wrap_row {
	__u64 used;      /* 0 free; else 1<<63 | nr */
	__u64 call_site; /* return address of the wrapped call in the program */
	__u64 count;
	__u64 errors;
	__u64 wall_ns;
	__u64 max_ns;
	__u64 blocked_ns;
	__u64 runq_ns;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 nvcsw;
	__u64 nivcsw;
	__u64 irq_ns;
	__u64 hist[DEBOX_HIST_BUCKETS];
};

/* One thread at a time writes a stripe, so its counters are plain. */
struct debox_wrap_stripe {
	__u32 owner_tid; /* 0: free */
	__u32 rows_used;
	__u64 dropped; /* calls that found no row */
	__u64 dropped_ns;
	__u64 stale; /* calls that ended after the broker was gone */
	__u64 reserved[4];
	struct debox_wrap_row rows[DEBOX_WRAP_ROWS];
};

struct debox_wrap_header {
	__u32 magic;
	__u32 version;
	__u32 pid;
	__u32 measured;     /* 1: the broker gave slots; 0: wall times only */
	__u32 threads_lost; /* threads that found no stripe */
	__u32 restricted;   /* not 0: it forbade itself system calls or time stamps (seccomp,
			     * PR_SET_TSC); what came later is not all counted */
	__u32 reserved[10];
	char why[192]; /* why not measured */
};

#endif /* DEBOX_PROTOCOL_H */
