/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Who is watched, and how do threads, children, exec and exit hand it on?
 *
 * All of it in the kernel, with no round trip: a new thread gets a free slot
 * of its parent's segment while it is being cloned, before it runs.
 */
#ifndef DEBOX_THREAD_H
#define DEBOX_THREAD_H

#include "state.h"
#include "asleep.h"
#include "boundary.h"
#include "chain.h"
#include "details.h"
#include "life.h"
#include "trust.h"
#include "whom.h"

struct slot_search {
	void *records;
	u32 tid, tgid;
	u32 spliced;
	u32 found;
};

static long slot_try(u32 i, struct slot_search *s)
{
	u32 slot = i;
	struct debox_record *record = bpf_map_lookup_elem(s->records, &slot);

	if (!record)
		return 1;
	/* tid is taken first, so that nobody else takes it; the new
	 * owner looks for its tid only after its clone has returned. */
	if (record->tid || __sync_val_compare_and_swap(&record->tid, 0, s->tid) != 0)
		return 0;
	record->tgid = s->tgid;
	record->generation++;
	record->spliced = s->spliced;
	record->bank[0].info.call_seq = 0;
	record->bank[1].info.call_seq = 0;
	__builtin_memset(&record->totals, 0, sizeof(record->totals));
	s->found = i;
	return 1;
}

/* Takes a free slot of the segment for a thread. */
VERIFIED_ONCE u32 slot_claim(u32 segment, u32 tid, u32 tgid, u32 flags)
{
	struct slot_search s = { .tid = tid, .tgid = tgid, .spliced = flags & WATCH_SPLICED ? 1 : 0, .found = NONE };

	s.records = bpf_map_lookup_elem(&segment_records, &segment);
	if (s.records)
		bpf_loop(DEBOX_SEGMENT_SLOTS, slot_try, &s, 0);
	return s.found;
}

static __always_inline struct thread_state *thread_state_create(struct task_struct *task, u32 flags)
{
	struct thread_state *st =
		bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!st || (flags & WATCH_DETAILS &&
		    !bpf_task_storage_get(&thread_objects, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE)))
		__sync_fetch_and_add(&counters_here()->storage_failures, 1);
	if (st && !st->who.tid)
		who_renew(st, task);
	return st;
}

/* A call that does not end for its account: with its thread, or as that goes to another account. */
static __noinline int call_unfinished(struct thread_state *st)
{
	struct debox_row *row;
	u64 now;

	if (!st || !st->call.in_call)
		return 0;
	now = call_close(&st->call);
	row = account_row(st->account, st->call.key);
	if (!row)
		return 0;
	row->unfinished++;
	/* Of spliced calls they are there already, see spliced_away_add(). */
	if (!(st->flags & WATCH_SPLICED)) {
		row->blocked_ns += st->call.blocked_ns;
		row->runq_ns += st->call.runq_ns;
		row->irq_ns += st->call.irq_ns;
	}
	row->wall_ns += now - st->call.enter_ns;
	return 0;
}

/* The running thread goes on to another account: what it did up to here is this one's. */
static __noinline int whom_leave(struct task_struct *task, struct thread_state *st, u32 to)
{
	u64 now;

	if (!task || !st)
		return 0;
	hot_flush(st);
	call_unfinished(st);
	if (st->life.serial) {
		now = bpf_ktime_get_ns();
		life_add(st, task, now, called_here(st, now));
		st->life.serial = 0;
	}
	if (!whom_same_client(st->account, to))
		left_count(account_of(st), LEFT_TAKEN);
	thread_row_end(st);
	st->flags &= ~WATCH_OF_ACCOUNT;
	st->detail_seq = 0;
	st->sleep_count = 0;
	return 1;
}

/* A process begins, or has become another one, for which some account may have asked. */
static __noinline int whom_join(struct task_struct *task, u32 at_exec)
{
	u32 moved = 0;
	struct whom_facts facts = {};
	struct debox_account *account;
	struct judged judged = {};
	struct thread_state *st;
	u32 index, flags;

	if (!task || task->flags & PF_KTHREAD)
		return 0;
	whom_look(task, &facts);
	judged.task = (u64)task;
	index = whom_find(&facts, &judged);
	if (index >= ACCOUNTS_MAX)
		return 0;
	flags = whom[index].flags;
	st = thread_state_create(task, flags);
	if (!st)
		return 0;
	if (st->flags & WATCH_ACCOUNT) {
		if (st->account == index || !account_yields(st->account, index))
			return 0;
		moved = whom_leave(task, st, index);
	}
	if (!(account_watchers[index].flags & WATCHER_PRIVILEGED)) {
		flags |= WATCH_CHECKED;
		st->checked = judged.found;
	}
	st->call.in_call = 0;
	st->account = index;
	st->thread_row_asked = 0;
	barrier();
	st->flags |= flags;
	/* What is known of this CPU's threads is no more. */
	__sync_fetch_and_add(&watch_generation, 1);
	if (flags & WATCH_DETAILS) {
		life_begin(task, st);
		if (at_exec)
			life_title(task, st);
	}
	account = account_of(st);
	if (account && !moved) {
		__sync_fetch_and_add(&account->threads_started, 1);
		if (task->pid == task->tgid)
			__sync_fetch_and_add(&account->processes_started, 1);
	}
	return 0;
}

/* How many have been made by threads with WATCH_OF_HOOKS: who counts those may have missed one that was made meanwhile. */
u32 hooked_forks;

/* What the parent is watched for, its child is; false: nothing. (Not a part of its only caller, whose other
 * ways are deep: 6.1 counts the stack of all.) */
static __noinline bool fork_inherit(struct task_struct *parent, struct task_struct *child)
{
	struct thread_state *from, *to;
	struct debox_account *account;
	bool thread;
	u32 flags;

	if (!parent || !child)
		return false;
	thread = parent->tgid == child->tgid;
	if (!task_stored(parent))
		return false;
	from = bpf_task_storage_get(&threads, parent, 0, 0);
	if (!from)
		return false;
	/* What the parent may not show, its child does not inherit. */
	account_trusted(parent, from);
	slot_trusted(parent, from);
	flags = from->flags;
	if (!thread) {
		flags &= ~WATCH_OF_SLOT;
		if (!(flags & WATCH_FOLLOW))
			flags = 0;
	}
	flags &= ~(WATCH_RENAMES | WATCH_EXECUTES);
	if (!(flags & (WATCH_ACCOUNT | WATCH_SLOT)))
		return false;
	account = flags & WATCH_ACCOUNT ? account_of(from) : NULL;
	if ((flags & WATCH_ACCOUNT) && !account)
		flags &= ~WATCH_OF_ACCOUNT;
	to = thread_state_create(child, flags);
	if (!to) {
		if (account)
			__sync_fetch_and_add(&account->threads_unwatched, 1);
		return true;
	}
	/* The child may run on the stack of a thread that died. */
	__sync_fetch_and_add(&watch_generation, 1);
	to->account = from->account;
	/* `checked` stays 0: whoever gets credentials of its own is asked
	 * about before its first call is written. */
	if (flags & WATCH_SLOT) {
		u32 tid = pid_own(child);
		u32 slot = slot_claim(from->segment, tid, tgid_own(child), flags);

		if (slot == NONE) {
			/* libdebox asks for another segment when the thread
			 * makes its first call. */
			__sync_fetch_and_add(&counters_here()->slots_exhausted, 1);
			flags &= ~WATCH_OF_SLOT;
		} else {
			to->slot_exec = from->slot_exec;
			to->tid = tid;
			to->segment = from->segment;
			to->slot = slot;
		}
	}
	to->flags = flags;
	/* After that: whoever has not seen it there sees it here. */
	if (flags & WATCH_OF_HOOKS)
		__sync_fetch_and_add(&hooked_forks, 1);
	if (flags & WATCH_DETAILS)
		life_fork(parent, from, child, to);
	if (account) {
		__sync_fetch_and_add(&account->threads_started, 1);
		if (!thread)
			__sync_fetch_and_add(&account->processes_started, 1);
	}
	return account != NULL;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	/* A thread belongs to its process, watched or not. */
	if (!fork_inherit(parent, child) && whom_asked && child->pid == child->tgid)
		whom_join(child, 0);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct thread_state *st;

	st = task_stored(task) ? bpf_task_storage_get(&threads, task, 0, 0) : NULL;
	if (!st) {
		if (whom_asked)
			whom_join(task, 1);
		return 0;
	}
	/* The mappings of the old image are gone, and its control page with them. */
	slot_free(st);
	/* Asked in any case: its address space is another one. */
	if (st->flags & WATCH_CHECKED)
		trust_renew(task, st);
	who_renew(st, task);
	if (st->flags & WATCH_SPLICED) {
		spliced_executes(task, st);
		if (st->flags & WATCH_EXECUTES)
			flags_change(st, WATCH_EXECUTES, WATCH_LEAVES);
	}
	if (st->flags & WATCH_DETAILS)
		life_title(task, st);
	/* What a person asked for stays there, whatever it becomes. */
	if (whom_asked && (!(st->flags & WATCH_ACCOUNT) || whom_rank(st->account)))
		whom_join(task, 1);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	struct thread_state *st;

	if (!task_stored(task))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	hot_flush(st);
	slot_free(st);
	thread_row_end(st);
	/* Its address space is gone by now on some kernels; its credentials
	 * are as its last call left them. */
	if ((st->flags & WATCH_CHECKED) && !credentials_unchanged(task, &st->checked))
		trust_renew(task, st);
	if (st->flags & WATCH_DETAILS)
		life_ending(task, st);
	else
		st->life.serial = 0;
	if (st->flags & WATCH_ACCOUNT) {
		struct debox_account *account = account_of(st);

		if (account)
			__sync_fetch_and_add(&account->threads_ended, 1);
		/* exit, exit_group, or killed inside a call */
		if (account)
			call_unfinished(st);
	}
	/* Its past stays until the task itself goes: it has yet to wake whoever
	 * waits for its end. */
	st->flags &= WATCH_FOLLOWED | WATCH_BOUNDARY | WATCH_SPLICED;
	return 0;
}

/*
 * Puts every thread of one process (and of its descendants), or of those whom the account
 * asks for, under watch; the user side sets `bind` and reads the iterator to its end, twice, since
 * a thread may be cloned by one that was not watched yet.
 */
struct bind_request {
	u32 tgid;        /* 0: whom the account asks for */
	u32 flags;       /* to add */
	u32 segment;     /* with WATCH_SLOT */
	u32 account;     /* with WATCH_ACCOUNT */
	u32 bound;       /* out: threads newly bound */
	u32 exhausted;   /* out: threads that found no slot */
	u32 failed;      /* out: threads with no memory for their state */
	u32 seen;        /* out: threads of the process */
	u32 busy;        /* out: threads that another account keeps */
	u32 refused[4];  /* out: threads that the watcher may not see, by REFUSED_* */
	u32 descendants; /* of tgid, too */
	u32 except[2];   /* ... but not these processes */
	u32 processes;   /* out: processes newly bound */
	struct judged judged;
} bind;

#define ANCESTORS_MAX 64

struct ancestor_search {
	u64 address;
	u32 tgid;
	u32 found;
};

static long ancestor_try(u32 i, struct ancestor_search *s)
{
	struct task_struct *task = (struct task_struct *)s->address;
	u32 here = pid_translate ? pid_of_address((u64)BPF_CORE_READ(task, group_leader)) : BPF_CORE_READ(task, tgid);

	s->found = here == s->tgid;
	if (s->found || here <= 1)
		return 1;
	s->address = (u64)BPF_CORE_READ(task, real_parent);
	return !s->address;
}

/* Whether a process is `tgid`, or came of it. */
VERIFIED_ONCE u32 task_descends(u64 address, u32 tgid)
{
	struct ancestor_search s = { .address = address, .tgid = tgid };

	if (address)
		bpf_loop(ANCESTORS_MAX, ancestor_try, &s, 0);
	return s.found;
}

/* Whether a thread is of those that are to be bound. */
static __noinline int bind_wanted(struct task_struct *task)
{
	struct whom_facts facts = {};
	struct judged judged = {};

	if (!task)
		return 0;
	if (bind.tgid) {
		u32 tgid = tgid_of(task);

		if (tgid == bind.tgid)
			return 1;
		return bind.descendants && tgid != bind.except[0] && tgid != bind.except[1] &&
		       task_descends((u64)BPF_CORE_READ(task, group_leader), bind.tgid);
	}
	if (task->flags & PF_KTHREAD || task->exit_state)
		return 0;
	whom_look(task, &facts);
	if (!whom_rank(bind.account))
		return whom_fits(&facts, bind.account);
	/* Of policies it is the first one's that it fits. */
	judged.task = (u64)task;
	return whom_find(&facts, &judged) == bind.account;
}

/* Whether the watcher that binds may see the thread; counts if not. */
static __always_inline bool bind_allowed(struct task_struct *task, const struct watcher *watcher)
{
	u32 refused;

	if (watcher->flags & WATCHER_PRIVILEGED)
		return true;
	bind.judged.task = (u64)task;
	barrier();
	refused = thread_judge(&bind.judged, watcher);
	if (refused == MAY_READ)
		return true;
	bind.refused[refused & 3]++;
	return false;
}

static __always_inline void bind_slot(struct task_struct *task, struct thread_state *st)
{
	const struct watcher *watcher = &segment_watchers[bind.segment & (SEGMENTS_MAX - 1)];
	bool checked = !(watcher->flags & WATCHER_PRIVILEGED);
	/* Before the question: an exec changes the dumpable attribute of its new
	 * address space first, then this number, then the credentials. Whichever of
	 * them is seen, what is answered is about this number's program or
	 * one before it. */
	u64 exec = *(volatile u64 *)&task->self_exec_id;
	u32 slot, tid;

	/* A process may always see itself. That it is still the program that asked
	 * is certain if it has called no exec since it was forked (a server's
	 * worker, who has given up root and so is not dumpable); of others only
	 * what any watcher may see. */
	if (exec != task->parent_exec_id && !bind_allowed(task, watcher))
		return;
	tid = pid_own(task);
	slot = slot_claim(bind.segment, tid, tgid_own(task), st->flags);
	if (slot == NONE) {
		bind.exhausted++;
		return;
	}
	st->segment = bind.segment;
	st->slot = slot;
	st->slot_exec = exec;
	st->tid = tid;
	barrier();
	st->flags |= (bind.flags & WATCH_OF_SLOT) | (checked ? WATCH_SLOT_CHECKED : 0);
	bind.bound++;
}

/* From here on a thread is `account`'s, in the middle of whatever it does. */
static __noinline int thread_take(struct task_struct *task, struct thread_state *st, u32 account, u32 flags)
{
	if (!task || !st)
		return 0;
	st->flags &= ~WATCH_OF_ACCOUNT;
	/* a call that is open now began unseen, or for another account; see asleep.h */
	st->call.in_call = 0;
	st->account = account;
	st->thread_row_asked = 0;
	asleep_begin(task, st, flags);
	barrier();
	st->flags |= flags & WATCH_OF_ACCOUNT;
	if (flags & WATCH_DETAILS)
		life_begin(task, st);
	st->spliced.stood = STOOD_NOT;
	/* No switch showed that it was stopped. */
	if (st->out_kind & OUT_BLOCKED && task->__state & (TASK_STOPPED | TASK_TRACED)) {
		st->life.stopped = 1;
		if (flags & WATCH_SPLICED && task->__state & TASK_TRACED)
			st->spliced.stood = STOOD_STILL;
	}
	/* It may rest: where it sleeps is the first place. */
	if (st->life.serial && st->out_kind & OUT_IN_CALL)
		rest_sleep(task, st);
	return 0;
}

static __always_inline void bind_account(struct seq_file *seq, struct task_struct *task, struct thread_state *st)
{
	const struct watcher *watcher = &account_watchers[bind.account & (ACCOUNTS_MAX - 1)];
	u32 checked = watcher->flags & WATCHER_PRIVILEGED ? 0 : WATCH_CHECKED;

	if (!bind_allowed(task, watcher))
		return;
	if (st->flags & WATCH_ACCOUNT) {
		if (!account_yields(st->account, bind.account)) {
			bind.busy++;
			return;
		}
		/* What it is in the middle of is in nobody's sums yet: up to here it is the other
		 * account's. Where there is no room for it, the iterator comes to this thread once
		 * more. */
		if (account_trusted(task, st) && away_look(task, st)) {
			away_now.account = st->account;
			if (bpf_seq_write(seq, &away_now, sizeof(away_now)))
				return;
		}
		if (!whom_same_client(st->account, bind.account))
			left_count(account_of(st), LEFT_TAKEN);
		thread_row_end(st);
	}
	if (checked)
		st->checked = bind.judged.found;
	thread_take(task, st, bind.account, bind.flags | checked);
	bind.bound++;
	if (task->pid == task->tgid)
		bind.processes++;
}

/* Where the threads sleep that `bind` is about. */
SEC("iter/task")
int asleep_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	long bytes;

	if (!task || !task_sleeps(task) || !bind_wanted(task))
		return 0;
	asleep_stack.tid = task->pid;
	asleep_stack.switches = task_switches(task);
	bytes = bpf_get_task_stack(task, asleep_stack.frames, sizeof(asleep_stack.frames), 0);
	asleep_stack.depth = bytes > 0 ? (u64)bytes / 8 : 0;
	if (asleep_stack.depth)
		bpf_seq_write(ctx->meta->seq, &asleep_stack, sizeof(asleep_stack));
	return 0;
}

SEC("iter/task")
int bind_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;

	if (!task || !bind_wanted(task))
		return 0;
	bind.seen++;
	/* Of those whom nobody named, none is refused: they are left out, at no cost. */
	if (!bind.tgid && !bind_allowed(task, &account_watchers[bind.account & (ACCOUNTS_MAX - 1)]))
		return 0;
	st = thread_state_create(task, bind.flags);
	if (!st) {
		bind.failed++;
		return 0;
	}
	if ((bind.flags & WATCH_SLOT) && !(st->flags & WATCH_SLOT))
		bind_slot(task, st);
	if ((bind.flags & WATCH_ACCOUNT) &&
	    (!(st->flags & WATCH_ACCOUNT) || st->account != bind.account))
		bind_account(ctx->meta->seq, task, st);
	return 0;
}

/* A sleep in a call that its program did not tell of. */
static __noinline int boundary_asleep(struct task_struct *task, struct thread_state *st)
{
	u64 switches;
	s32 nr;

	/* What its runtime waits for is no call of the program's. */
	if (!st || st->call.in_call || st->spliced.by_runtime || !(st->out_kind & OUT_BLOCKED) || !task_sleeps(task))
		return 0;
	switches = task_switches(task);
	if (call_phase(task, &nr) == CALL_RUNNING)
		call_begun_before(task, st, nr, st->out_ns);
	barrier();
	if (task->on_cpu || task_switches(task) != switches)
		st->call.in_call = 0;
	return 0;
}

/* The kernel side counts a call to its end of which its program told: what it was off the CPU until now, its
 * interrupts and its faults are in the sums already. */
static __noinline int boundary_open(struct task_struct *task, struct thread_state *st)
{
	struct open_call *call;

	if (!task || !st || !st->call.in_call)
		return 0;
	call = &st->call;
	/* Its end takes that off no more, see call_called(). */
	call->called_ns -= call->blocked_ns + call->runq_ns;
	call->blocked_ns = 0;
	call->runq_ns = 0;
	call->irq_ns = 0;
	call->nvcsw = 0;
	call->nivcsw = 0;
	call->min_flt = task->min_flt;
	call->maj_flt = task->maj_flt;
	return 0;
}

/* From now on the kernel tells of the calls of whoever shares memory with a thread: the user side
 * reads the iterator to its end, the first time for the memory. */
struct boundary_wish {
	u32 account;
	u32 tid;
	u32 open_counted; /* calls that are open now are */
	u32 renames;      /* its own calls count from when it renames itself */
	u32 executes;     /* its own calls alone, from the program on that it is about to execute */
	u32 counts;       /* nothing is changed: how many of the account's need the hooks is counted */
	u32 moved;
	u64 memory;
} boundary_wish;

SEC("iter/task")
int boundary_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;
	u64 memory;
	bool asks;

	if (!task || !task_stored(task))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || st->account != boundary_wish.account)
		return 0;
	if (boundary_wish.counts) {
		if (st->flags & WATCH_ACCOUNT && st->flags & WATCH_OF_HOOKS)
			boundary_wish.moved++;
		return 0;
	}
	asks = pid_of(task) == boundary_wish.tid;
	if (!(st->flags & WATCH_SPLICED)) {
		/* It is there already. */
		if (asks && st->flags & WATCH_ACCOUNT && st->flags & WATCH_BOUNDARY)
			boundary_wish.moved++;
		return 0;
	}
	memory = (u64)task_read(task)->mm;
	if (boundary_wish.executes) {
		if (!asks)
			return 0;
		flags_change(st, 0, WATCH_EXECUTES);
		boundary_wish.moved++;
		return 0;
	}
	if (!boundary_wish.memory && asks)
		boundary_wish.memory = memory;
	if (!memory || memory != boundary_wish.memory)
		return 0;
	if (asks && boundary_wish.renames) {
		flags_change(st, 0, WATCH_RENAMES);
	} else if (boundary_wish.open_counted) {
		flags_change(st, 0, WATCH_LEAVES);
	} else {
		boundary_asleep(task, st);
		boundary_begins(st);
		boundary_open(task, st);
	}
	boundary_wish.moved++;
	return 0;
}

/* In which PID namespace is the user side? It reads this to its end. */
SEC("iter/task")
int pid_look(struct bpf_iter__task *ctx)
{
	u64 pid, upid;

	if (pid_namespace)
		return 0;
	pid = (u64)BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid);
	pid_level = BPF_CORE_READ((struct pid *)pid, level);
	upid = pid + bpf_core_field_offset(struct pid, numbers) + (u64)pid_level * bpf_core_type_size(struct upid);
	pid_namespace = (u64)BPF_CORE_READ((struct upid *)upid, ns);
	return 0;
}

/* Takes the watch of a released account or segment off all its threads. */
struct unbind_request {
	u32 account; /* NONE: not by account */
	u32 segment; /* NONE: not by segment */
	u32 tgid;    /* not 0: this process and its children only */
	u32 freed;
} unbind;

/* The account of a thread has ended: another one that asked for it has it from here on. */
static __noinline int whom_fall_back(struct task_struct *task, struct thread_state *st)
{
	struct whom_facts facts = {};
	struct judged judged = {};
	u32 index, flags;

	if (!task || !st || task->flags & PF_KTHREAD || task->exit_state)
		return 0;
	whom_look(task, &facts);
	judged.task = (u64)task;
	index = whom_find(&facts, &judged);
	if (index >= ACCOUNTS_MAX || index == st->account)
		return 0;
	flags = whom[index].flags;
	if (!(account_watchers[index].flags & WATCHER_PRIVILEGED)) {
		flags |= WATCH_CHECKED;
		st->checked = judged.found;
	}
	if (flags & WATCH_DETAILS &&
	    !bpf_task_storage_get(&thread_objects, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE))
		__sync_fetch_and_add(&counters_here()->storage_failures, 1);
	thread_take(task, st, index, flags);
	return 1;
}

SEC("iter/task")
int unbind_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;

	if (!task)
		return 0;
	if (unbind.tgid && !task_descends((u64)BPF_CORE_READ(task, group_leader), unbind.tgid))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	if ((st->flags & WATCH_ACCOUNT) && st->account == unbind.account &&
	    (!whom_asked || !whom_fall_back(task, st)))
		st->flags &= ~WATCH_OF_ACCOUNT;
	if ((st->flags & WATCH_SLOT) && st->segment == unbind.segment)
		st->flags &= ~WATCH_OF_SLOT;
	if (!(st->flags & WATCH_DETAILS))
		bpf_task_storage_delete(&thread_objects, task);
	if (!(st->flags & (WATCH_ACCOUNT | WATCH_SLOT | WATCH_FOLLOWED))) {
		bpf_task_storage_delete(&threads, task);
		unbind.freed++;
	}
	return 0;
}

#endif
