/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What does the kernel side remember about a thread, and where does shared
 * memory hang?
 */
#ifndef DEBOX_STATE_H
#define DEBOX_STATE_H

#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <debox/abi.h>
#include "core_fixes.h"
#include "histogram.h"
#include "may_read.h"
#include "rest.h"

#define SEGMENTS_MAX 4096
#define ACCOUNTS_MAX 64
#define NONE 0xffffffffu

/* task_struct.__state */
#define TASK_INTERRUPTIBLE 0x01u
#define TASK_STOPPED 0x04u
#define TASK_TRACED 0x08u
#define TASK_DEAD 0x80u

#define PF_EXITING 0x00000004u
#define PF_WQ_WORKER 0x00000020u
#define PF_KTHREAD 0x00200000u

/*
 * A function that is not static is verified by itself, once a program; a static
 * one anew for each way that leads to it, which for loops behind branches made
 * up most of the second that loading took. Its pointers are to whole structs,
 * and may be NULL as far as the verifier knows.
 */
#define VERIFIED_ONCE __noinline

/* What such a function returns, as a callback's own: 0, or 1 for the last turn. The verifier knows nothing of it,
 * and clang all. */
static __always_inline long last_turn(u32 returned)
{
	barrier_var(returned);
	return returned != 0;
}

/*
 * The same number, of which the verifier knows nothing any more: it follows as one, from there on, ways that
 * differ in what it was. `any`: another one of which it knows nothing.
 */
static __always_inline u64 forgotten(u64 value, u64 any)
{
	asm volatile("%0 ^= %1\n\t"
		     "%0 ^= %1"
		     : "+&r"(value)
		     : "r"(any));
	return value;
}

#define PAST_FORGOTTEN forgotten
#define PAST_FUNCTION VERIFIED_ONCE
#include "past.h"
#define CRITICAL_FUNCTION VERIFIED_ONCE
#include "critical.h"

struct comm_text {
	char text[DEBOX_COMM_LEN];
} __attribute__((aligned(8)));

typedef u64 __attribute__((may_alias)) comm_word;

/* A name, which lies at a multiple of 8 wherever there is one: as two words, where clang would copy bytes. */
static __always_inline void comm_copy(char *to, const char *from)
{
	((comm_word *)to)[0] = ((const comm_word *)from)[0];
	((comm_word *)to)[1] = ((const comm_word *)from)[1];
}

/* Depth of a recorded stack, and how much of the raw stack is compared. */
#define STACK_DEPTH 40
#define STACKS_MAX 8192
#define STACKS_SECOND_MAX 4096 /* of those that hash alike */
#define SITES_WALKED_MAX (STACKS_MAX + STACKS_SECOND_MAX)
#define SITES_MAX 16384 /* with those that the user side numbers, see asleep.h */
#define SIGNATURES_MAX 4096
#define SIGNATURE_WORDS 64
#define STACK_WORDS 256 /* 2 KiB */
#define HINT_SIGNATURES 8
#define LAST_SIGNATURES 8 /* a power of two */

/*
 * Process numbers. Those that users are told are of the PID namespace of the user side, which
 * may be a container's; a record has the numbers by which its own process knows itself. Within
 * the kernel side (what is compared with task->pid) they are the first namespace's.
 */
const volatile bool pid_translate = false; /* the user side is not in the first one */
u32 pid_level;                             /* ... but so deep below it, */
u64 pid_namespace;                         /* in this one */

/* Numbers of threads, for when they have none any more: they end. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);   /* of the first namespace */
	__type(value, u32); /* of the user side's */
} pid_numbers SEC(".maps");

/* The number of struct pid at `pid`, so deep; 0: it has none in this namespace (0: any). */
static __always_inline u32 pid_number_at(u64 pid, u32 level, u64 namespace)
{
	u64 upid = pid + bpf_core_field_offset(struct pid, numbers) +
		   (u64)level * bpf_core_type_size(struct upid);

	if (!pid || BPF_CORE_READ((struct pid *)pid, level) < level)
		return 0;
	if (namespace && (u64)BPF_CORE_READ((struct upid *)upid, ns) != namespace)
		return 0;
	return BPF_CORE_READ((struct upid *)upid, nr);
}

/* The number of a task as the user side knows it, from its struct pid and first number; 0: it has
 * none. */
VERIFIED_ONCE u32 pid_there(u64 pid, u32 first)
{
	u32 number, *was;

	if (pid) {
		number = pid_number_at(pid, pid_level, pid_namespace);
		if (number)
			bpf_map_update_elem(&pid_numbers, &first, &number, BPF_ANY);
		return number;
	}
	was = bpf_map_lookup_elem(&pid_numbers, &first);
	return was ? *was : 0;
}

static __always_inline u32 pid_of_address(u64 address)
{
	struct task_struct *task = (struct task_struct *)address;

	return pid_there((u64)BPF_CORE_READ(task, thread_pid), BPF_CORE_READ(task, pid));
}

static __always_inline u32 pid_of(const struct task_struct *task)
{
	return pid_translate ? pid_there((u64)BPF_CORE_READ(task, thread_pid), task->pid) : task->pid;
}

static __always_inline u32 tgid_of(const struct task_struct *task)
{
	return pid_translate ? pid_of_address((u64)BPF_CORE_READ(task, group_leader)) : task->tgid;
}

/* ... as it knows itself. */
VERIFIED_ONCE u32 pid_innermost(u64 pid, u32 first)
{
	u32 level = pid ? BPF_CORE_READ((struct pid *)pid, level) : 0;

	return level ? pid_number_at(pid, level, 0) : first;
}

static __always_inline u32 pid_own(const struct task_struct *task)
{
	return pid_innermost((u64)BPF_CORE_READ(task, thread_pid), BPF_CORE_READ(task, pid));
}

static __always_inline u32 tgid_own(const struct task_struct *task)
{
	return pid_innermost((u64)BPF_CORE_READ(task, group_leader, thread_pid), BPF_CORE_READ(task, tgid));
}

/* thread_state.flags */
#define WATCH_ACCOUNT (1u << 0)       /* sums go to an account */
#define WATCH_BOUNDARY (1u << 1)      /* ... with call boundaries from the tracepoints */
#define WATCH_SLOT (1u << 2)          /* has a slot */
#define WATCH_SLOT_BOUNDARY (1u << 3) /* ... and its records come from the tracepoints */
#define WATCH_DETAILS (1u << 5)       /* the account has details: culprits are noted */
#define WATCH_FOLLOW (1u << 4)        /* children of the account are watched too */
#define WATCH_CHECKED (1u << 6)       /* the account's watcher has no privileges: see trust.h */
#define WATCH_SLOT_CHECKED (1u << 7)  /* ... and the slot's */
#define WATCH_SLOT_CHAINS (1u << 9)   /* its records say what sleeps waited for */

#define WATCH_FOLLOWED (1u << 8) /* woke somebody who is watched: see follow.h */
/* Whose sleeps are explained, see chain.h. */
#define WATCH_EXPLAINED (WATCH_DETAILS | WATCH_SLOT_CHAINS | WATCH_FOLLOWED)

#define WATCH_IRQ (1u << 10)      /* interrupts are measured for the account */
#define WATCH_SLOT_IRQ (1u << 11) /* ... and for the slot */
#define WATCH_SPLICED (1u << 12)  /* the program itself tells of its calls, see spliced.h */
#define WATCH_RENAMES (1u << 13)  /* ... until it renames itself; not handed on */
#define WATCH_LEAVES (1u << 14)   /* ... until it makes a call that it does not tell of */
#define WATCH_AUDIT (1u << 15)    /* whether it does is counted */
#define WATCH_EXECUTES (1u << 16) /* ... until it executes what is told of by nobody; not handed on */

#define WATCH_OF_ACCOUNT                                                                 \
	(WATCH_ACCOUNT | WATCH_BOUNDARY | WATCH_DETAILS | WATCH_FOLLOW | WATCH_CHECKED | \
	 WATCH_IRQ | WATCH_SPLICED | WATCH_RENAMES | WATCH_LEAVES | WATCH_AUDIT |        \
	 WATCH_EXECUTES)
#define WATCH_OF_SLOT                                                                \
	(WATCH_SLOT | WATCH_SLOT_BOUNDARY | WATCH_SLOT_CHECKED | WATCH_SLOT_CHAINS | \
	 WATCH_SLOT_IRQ)
/* Hooks at system calls are there for a thread with one of these. */
#define WATCH_OF_HOOKS (WATCH_BOUNDARY | WATCH_RENAMES | WATCH_LEAVES | WATCH_EXECUTES)

/* thread_state.out_kind: how the thread left the CPU */
#define OUT_NONE 0u
#define OUT_BLOCKED (1u << 0) /* asleep until woken; else preempted or yielding */
#define OUT_IN_CALL (1u << 1) /* inside a system call, as wrap capture sees it */
#define OUT_VALID (1u << 2)
#define OUT_UNTOLD (1u << 3) /* ... of which its spliced program does not tell */

#define NR_RESTART_SYSCALL 219

/* A call that boundary capture has seen begin, or of which a spliced program tells. */
struct open_call {
	u32 in_call;
	s32 nr;
	u32 key;
	u16 compat;
	u8 inner;     /* a spliced program's signal handler makes it within another one, see struct outer_call */
	u8 unstamped; /* a spliced program does not know how long it takes: enter_ns is when it was looked at last */
	u64 seq;
	u64 enter_ns;
	u64 called_ns; /* on a CPU in all calls before this one */
	u64 blocked_ns;
	u64 runq_ns;
	u64 irq_ns; /* of its time on a CPU: in interrupts; see irq_time.h */
	u64 min_flt;
	union {
		u64 maj_flt;
		u64 executes_ns; /* from SEQ_EXECUTES on: how long until enter_ns */
	};
	u32 nvcsw;
	u32 nivcsw;
};

/* The seq of a spliced program's execve that its block does not tell of any more, and of one in which a new program has
 * taken its place; see spliced_executed(). */
#define SEQ_EXECUTES (~0ull - 1)
#define SEQ_EXECUTED (~0ull)

static __always_inline bool call_is_exec(s32 nr, u32 compat)
{
	return compat ? nr == 11 || nr == 358 : nr == 59 || nr == 322;
}

/* Time on a CPU in calls, this one, open at `now`, included. */
static __always_inline u64 call_called(const struct open_call *call, u64 now)
{
	return call->called_ns + (now - call->enter_ns) - call->blocked_ns - call->runq_ns;
}

#define SPLICE_TIMED 1u
#define SPLICE_ENDED 2u
#define SPLICE_UNSTAMPED 3u
/* The begin of a spliced thread's block: struct splice_block of splice/state.h. */
struct splice_told {
	u64 rsp;   /* 0: no call is open */
	u64 start; /* of the open one, in ticks; of one that is not stamped only another one than of those before */
	u32 nr;
	u32 timed; /* SPLICE_*, as splice/state.h says */
	u32 calls; /* how many the thread has made, */
	u32 failed;
	u64 called_ns; /* how long the calls before took, off the CPU or on it */
	u32 tid;
	u32 pid;
};
_Static_assert(__builtin_offsetof(struct splice_told, called_ns) == 32, "as splice/state.h says");
_Static_assert(__builtin_offsetof(struct splice_told, tid) == 40, "as splice/state.h says");
/* A call that has just ended. */
struct splice_done {
	u64 start; /* as above; 0: there is none */
	u64 wall_ns;
	s64 result;
	u64 args[6];
	u64 ip, sp, bp; /* behind the call */
};
/* In a block, as splice/state.h says: what just ended, and where in the runtime a call enters it. */
#define SPLICE_DONE 360
#define SPLICE_ENTER 48
/* All of the runtime lies as near to that (splice/build.mk). */
#define SPLICE_RUNTIME_BYTES 24576ull
/* A thread's call that a handler has interrupted, which may make calls of its own: what is known of it. */
struct outer_call {
	u64 seq;
	u64 blocked_ns;
	u64 runq_ns;
	u64 irq_ns;
	u64 folded_ns; /* on a CPU until it was interrupted */
	u64 gone_ns;   /* off the CPU in calls of handlers, not taken out of called_ns yet */
	u64 inner_ns;  /* ... all of it */
	u32 nvcsw;
	u32 nivcsw;
};
/* By number of the thread. Full: what was longest not asked for has no time off the CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct outer_call);
} outer_calls SEC(".maps");

/* The running thread's, while it is looked at with preemption off; else its start is 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct splice_done);
} splice_dones SEC(".maps");

static __always_inline struct splice_done *splice_done_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&splice_dones, &zero);
}

/* A thread that its watcher had stopped as its watch began: what that took is nobody's time. */
enum stood {
	STOOD_NOT,
	STOOD_STILL, /* it has not gone on yet */
	STOOD_BEHIND /* it has, at out_ns; the call that it was stopped in has not been looked at */
};

struct spliced {
	struct splice_told told;
	u64 block; /* where it was read last */
	u64 called_ns;
	u32 tid; /* as the thread knows itself; 0: not asked for yet */
	u8 is_told;
	u8 by_runtime; /* it is in a call that its runtime makes */
	u8 looking;    /* it is being looked at: an interrupt finds the rest half done */
	u8 stood;      /* enum stood */
};

/* All of a thread that decides whether it may be seen, see trust.h. */
struct checked {
	u64 cred; /* their address */
	u64 cap_permitted;
	u64 user_ns; /* its address */
	u32 uid;
	u32 euid;
	u32 suid;
	u32 gid;
	u32 egid;
	u32 sgid;
	u32 dumpable;
	u32 reserved;
};

/* A question about a thread, see thread_judge(). */
struct judged {
	u64 task;             /* in: its address, as a number */
	struct checked found; /* out */
};

/* Of whom a chain's links tell. */
struct who {
	u32 uid;
	u32 tid;
	char comm[DEBOX_COMM_LEN];
};

/* Who holds what a thread waits for. */
struct holder {
	u32 pid; /* 0: nobody, not known, or withheld */
	u32 tgid;
	u32 kind; /* DEBOX_HOLDER_* */
	s32 nr;   /* the call that it was in, -1 none or not known */
	char comm[DEBOX_COMM_LEN];
};

/* The queue that a thread waits in; see queue.h. */
struct queue {
	u64 head; /* 0: not known */
	u64 own;  /* the thread's own node; 0: not known */
	u64 key_object;
	u64 key_word;
	u32 key_offset;
	u32 kind; /* QUEUE_* */
	u32 many; /* one queue for many things to wait for */
	u32 reserved0;
	/* while it is walked */
	u64 task;
	u64 at;
	u64 before;
	u64 end;
	u32 others;
	u32 heads;
	u32 result; /* QUEUE_COUNT_* */
	u32 over;
};

/* A lock of a file that a thread waits for; see file_lock.h. */
struct file_lock_wait {
	u64 list; /* the locks that the file has; 0: none is waited for */
	u64 owner;
	s64 start;
	s64 end;
	u64 at; /* while they are walked */
	u64 root;
	u32 type;
	u16 up;
	u16 over;
	u32 others;
	u32 result;
};

/* What calls of a thread worked on last, and what each is recognised by; see object.h. */
/* What tells a file from another, and from itself with another name. */
struct object_place {
	u64 inode; /* their addresses */
	u64 dentry;
	u64 parent;
	u64 mnt;
	u64 number;
	u64 hash_len;
	u32 hashed;
	u32 watcher; /* for whom it was read, see object_watcher() */
};
struct object_memo {
	struct object_place place;
	u64 check;      /* of sockets */
	u64 serial;     /* of the account in which it has this number */
	u32 id;         /* 0: none yet */
	u32 operations; /* of the file, their address's lower half */
	struct debox_object object;
};
#define OBJECT_MEMOS 4 /* a power of two */
struct thread_objects {
	u32 next; /* to be replaced */
	u32 reserved;
	struct object_memo memo[OBJECT_MEMOS];
};

struct thread_state {
	u32 flags; /* first: the user side reads it, see Probe::watched_test */
	u32 account;
	u32 segment;
	u32 slot;
	u32 tid;      /* as the slot knows it */
	u32 limited;  /* its last sleep was ended by its own time limit */
	u64 hot_regs; /* see struct cpu_hot; 0: call below holds */

	/* trust.h; with WATCH_CHECKED, WATCH_SLOT_CHECKED */
	struct checked checked; /* what the account's watcher was found to be allowed to see */
	struct judged judged;   /* the thread's own questions only */
	u64 slot_exec;          /* task->self_exec_id of the program that has the slot */

	/* off the CPU now */
	u32 out_kind;
	u32 out_site;
	s32 out_nr;
	s32 out_key;                         /* nr_key() of it, -1 outside of calls */
	u16 last_signature[LAST_SIGNATURES]; /* by call number: what fitted there last */
	u32 out_signature;                   /* by which its place was recognised; 0: by none */
	u32 wait_flags;                      /* DEBOX_SLEEP_* */
	u32 waiters_entry;
	u32 waiters_exit;
	u64 out_seq; /* with WATCH_SLOT: seq_open() then */
	u64 out_ns;
	u64 out_run_delay;
	u64 out_clock;
	u64 anchor; /* see site.h */
	u64 stack_base;
	u64 waker_anchor;
	/* While it is found out who wakes it, the begin of that one's stack; then when it was woken, until it
	 * is again: no address of the kernel's is a time. */
	union {
		u64 waker_base;
		u64 woken_ns;
	};
	u32 waker_pid;
	u32 waker_tgid;
	s32 waker_nr; /* the call that it was in, -1 none */
	u32 lock_flags;
	u64 slept_ns; /* when this sleep began; before out_ns if another account has had the thread since */
	char waker_comm[DEBOX_COMM_LEN];
	u64 lock;     /* contended, between contention_begin and contention_end */
	u32 held_tid; /* who held what it waits for when it fell asleep, withheld or not; 0: not known */
	u32 held_tgid;
	u64 held_task;             /* address of that task, if its watcher may know it and it is for place.h */
	u32 held_stack;            /* where it was in its program, see place.h; 0: not known */
	u32 held_serial;           /* ... in the account with this serial, its low half */
	struct holder holder;      /* ... as its watcher may know it */
	struct holder holder_exit; /* when the sleep ended */
	struct queue queue;
	struct file_lock_wait file_lock;
	u64 own_regs; /* see regs_learn() */

	/* chains; see chain.h */
	struct who who;
	struct past past;
	struct parts parts; /* of the sleep that is ending */
	u32 sleep_chain;    /* of the longest part of the sleep that ended last */
	u64 sleep_chain_ns; /* ... so long */
	u32 chain_flags;    /* DEBOX_CHAIN_*, of the sleep that is ending */
	u32 chain_stack;    /* where it wakes somebody from, see place.h; 0: not known */
	u32 chain_serial;   /* ... in the account with this serial, its low half */
	u64 called_ns;      /* on a CPU in calls, until it left the CPU */
	u64 mattered_ns;    /* with WATCH_FOLLOWED: when it last woke somebody */

	struct life life;   /* see life.h */
	u64 woken_early_ns; /* when it was woken before it had left the CPU; 0: it was not */
	struct rest rest;

	/* objects; see object.h */
	u64 object_seq;    /* the call whose object was taken last, or OBJECT_SEQ_NONE */
	u32 object_now;    /* 1 + number of the memo that is of this call; 0: none */
	u32 object_flags;  /* more of it, of this call only */
	u64 object_serial; /* the account in which it has this number */
	u32 object_id;     /* 0: none yet */
	u32 object_slept;  /* as object_now, of the last sleep: of the call, or a file that a page is of */

	/* boundary capture; see struct cpu_hot for who holds the truth. Or as of the last
	 * spliced_look(). */
	struct open_call call;
	struct spliced spliced;

	/* details; see details.h. What follows is of call detail_seq. */
	u32 thread_row;
	u32 thread_row_asked;
	u64 detail_seq;
	u32 conditions_hit;     /* bit n: slept at a site of condition n */
	u32 conditions_unknown; /* ... at one that the client has not judged */
	u32 waiters_most;
	u32 sleep_count; /* all of them; the first are kept */
	u64 sleeps_dropped_ns;
	struct debox_event_sleep sleeps[DEBOX_EVENT_SLEEPS_MAX];
};

/* Of no call. */
#define OBJECT_SEQ_NONE (~0ull)

/*
 * What boundary capture needs of the thread that runs on a CPU, without a
 * look-up in task storage (16-20 ns, twice a call) and, for threads that are
 * not watched, without even asking which thread it is.
 *
 * `regs` says whose entry this is: the address of a thread's saved registers
 * is the same at every system call, and no other living thread has it. (A
 * scheduler hook would be the obvious way to know, but hardened kernels hide
 * switches away from protected processes.) The entry is filled by the first
 * sys_enter that does not find its own; `generation` throws all entries away
 * when what is watched changes, or when a watched process clones: the new
 * thread may have got the stack of one that died.
 *
 * While a watched thread's entry stands, `call` here holds, and the one in
 * thread_state is old: hot_flush() takes it back when the thread leaves the
 * CPU or ends.
 */
#define HOT_CPUS 1024
#define HOT_WATCHED 1u
#define HOT_CHECKED 2u /* ... for a watcher that may not see everything */
struct cpu_hot {
	u64 regs;
	u32 generation;
	u32 watched; /* HOT_*, 0: not at all */
	u32 account;
	u32 details; /* each call goes into the account's details */
	u64 task;    /* to whom `regs` belong, see task_kept() */
	struct open_call call;
	u64 checked_cred; /* with HOT_CHECKED, as in thread_state */
	u32 checked_dumpable;
	u32 reserved;
	u64 pad;
} __attribute__((aligned(64)));
struct cpu_hot cpu_hot[HOT_CPUS];

/* Raised with every change of what is watched. */
u32 watch_generation = 1;

/* The thread leaves this CPU, or its state is asked for: what is hot goes
 * back. */
static __always_inline void hot_flush(struct thread_state *st)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_hot *hot = &cpu_hot[cpu & (HOT_CPUS - 1)];

	if (cpu >= HOT_CPUS || !st->hot_regs || hot->regs != st->hot_regs)
		return;
	st->call = hot->call;
	st->hot_regs = 0;
	hot->regs = 0;
}

/*
 * What a watched thread costs in memory. Task storage would take values of nearly 64 KiB,
 * but each is one object of the slab, whose sizes are powers of two: the value, the 72
 * bytes that the kernel has before it (struct bpf_local_storage_elem), and from 6.4 on
 * the 8 bytes of BPF's own allocator. Measured on 6.18: 200 values of 4016 bytes are 200 more
 * objects of kmalloc-4k, 200 of 4024 bytes of kmalloc-8k. One field too many would double
 * the memory of every thread, and nothing else would tell.
 */
#define STORAGE_HEADER 80
_Static_assert(sizeof(struct thread_state) + STORAGE_HEADER <= 4096,
	       "a thread's state lies in 4 KiB of the slab: put what does not fit into a map of its own");
_Static_assert(sizeof(struct thread_objects) + STORAGE_HEADER <= 2048,
	       "a thread's objects lie in 2 KiB of the slab: fewer OBJECT_MEMOS");
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} threads SEC(".maps");
/* Of threads with details only, and apart: together they would lie in 8 KiB. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_objects);
} thread_objects SEC(".maps");

/* Inner maps give sizes, not types: clang keeps only a forward declaration
 * of a struct that is reached through __array(values, ...) alone.
 *
 * One segment of slots: record pages (frozen for user space) and control
 * pages. The user side puts the inner maps in. */
struct record_pages {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEBOX_SEGMENT_SLOTS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_record));
};
struct control_pages {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEBOX_SEGMENT_SLOTS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_control));
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SEGMENTS_MAX);
	__type(key, u32);
	__array(values, struct record_pages);
} segment_records SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SEGMENTS_MAX);
	__type(key, u32);
	__array(values, struct control_pages);
} segment_controls SEC(".maps");

struct account_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_account));
};
/* One element for each possible CPU: the user side sets a template of that
 * size before loading. (BPF_F_INNER_MAP would allow any size, at the price of
 * a look-up that is not inlined.) */
struct account_cpu_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_account_cpu));
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct account_map);
} accounts SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct account_cpu_map);
} account_cpus SEC(".maps");

/* Details of an account, where they were asked for (abi.h). */
struct details_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_details));
};
struct account_control_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_account_control));
};
struct chain_sums_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_chain_sums));
};
struct objects_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_objects));
};
struct on_cpu_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_on_cpu));
};
struct account_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, DEBOX_EVENTS_BYTES);
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct details_map);
} account_details SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct account_control_map);
} account_detail_controls SEC(".maps");

static __always_inline struct debox_account_control *details_control(u32 account)
{
	u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&account_detail_controls, &account);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct account_ring);
} account_rings SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct on_cpu_map);
} account_on_cpu SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct chain_sums_map);
} account_chains SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct objects_map);
} account_objects SEC(".maps");
struct lives_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_lives));
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__array(values, struct lives_map);
} account_lives SEC(".maps");

/* Counters for the broker; index = CPU & 63, so nearly uncontended. */
struct counters {
	u64 site_walks;
	u64 site_hits;
	u64 site_mismatches;
	u64 site_failures;
	u64 storage_failures;
	u64 slots_exhausted;
	u64 switches_hidden;
	u64 site_mismatch_last; /* recognised stack << 32 | walked stack */
} __attribute__((aligned(64)));
struct counters counters[64];

/* Set by the user side before loading. */
const volatile bool verify_sites = false;

static __always_inline struct counters *counters_here(void)
{
	return &counters[bpf_get_smp_processor_id() & 63];
}

static __always_inline struct debox_account *account_of(const struct thread_state *st)
{
	u32 zero = 0, index = st->account;
	void *inner = bpf_map_lookup_elem(&accounts, &index);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

static __always_inline struct debox_details *details_of(u32 account)
{
	u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&account_details, &account);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

/* NULL when the slot is no longer this thread's: a released segment's number
 * is used again, and a thread that was being cloned meanwhile may remember it. */
static __always_inline struct debox_record *record_of(const struct thread_state *st)
{
	u32 segment = st->segment, slot = st->slot;
	void *inner = bpf_map_lookup_elem(&segment_records, &segment);
	struct debox_record *record;

	if (!inner)
		return NULL;
	record = bpf_map_lookup_elem(inner, &slot);
	return record && record->tid == st->tid ? record : NULL;
}

static __always_inline struct debox_control *control_of(const struct thread_state *st)
{
	u32 segment = st->segment, slot = st->slot;
	void *inner = bpf_map_lookup_elem(&segment_controls, &segment);

	return inner ? bpf_map_lookup_elem(inner, &slot) : NULL;
}

/*
 * Bytes from the lower end of a thread's stack to its saved registers, the same for all
 * threads: THREAD_SIZE, less the registers, less padding that depends on the
 * kernel's configuration (16 bytes with FRED, from 6.9 on). 0: nobody watched has
 * left a CPU yet.
 */
u32 regs_above;

#define THREAD_SIZE 16384ull /* x86-64 without KASAN */

static __always_inline void regs_learn(struct thread_state *st, struct task_struct *task)
{
	u64 above;

	/* Through the map the pointers become numbers. */
	st->own_regs = bpf_task_pt_regs(task);
	st->stack_base = (u64)task->stack;
	barrier();
	above = st->own_regs - st->stack_base;
	if (above < THREAD_SIZE && above > THREAD_SIZE - 512)
		regs_above = above;
}

/* The saved registers of the running thread, whose state `st` is. */
static __always_inline const struct pt_regs *regs_here(struct thread_state *st, struct task_struct *task)
{
	if (!kernel_word_is_load())
		return (const struct pt_regs *)bpf_task_pt_regs(task);
	if (!regs_above)
		regs_learn(st, task);
	return bpf_rdonly_cast((const void *)((u64)task->stack + regs_above),
			       bpf_core_type_id_kernel(struct pt_regs));
}

/* TS_COMPAT: entered through int 0x80 or the 32-bit vsyscall page. */
static __always_inline bool task_in_compat_call(const struct task_struct *task)
{
	return task->thread_info.status & 2;
}

static __always_inline u32 nr_key(s64 nr, bool compat)
{
	u32 limit = compat ? DEBOX_NR_OUTSIDE - DEBOX_NR_COMPAT : DEBOX_NR_COMPAT;

	if ((u64)nr >= limit)
		return DEBOX_NR_UNKNOWN;
	return (u32)nr + (compat ? DEBOX_NR_COMPAT : 0);
}

static __always_inline void call_begin(struct open_call *call, const struct task_struct *task, s64 nr,
				       u64 now)
{
	call->nr = nr;
	call->compat = task_in_compat_call(task);
	call->inner = 0;
	call->unstamped = 0;
	call->key = nr_key(nr, call->compat);
	call->seq++;
	call->blocked_ns = 0;
	call->runq_ns = 0;
	call->min_flt = task->min_flt;
	call->maj_flt = task->maj_flt;
	call->nvcsw = 0;
	call->nivcsw = 0;
	call->enter_ns = now;
	/* An interrupt in between is one of the call's whole only: its parts must
	 * not exceed it. */
	call->irq_ns = 0;
	barrier();
	*(volatile u32 *)&call->in_call = 1;
}

#endif
