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
#include "details.h"
#include "trust.h"

/* Takes a free slot of the segment for a thread. */
VERIFIED_ONCE u32 slot_claim(u32 segment, u32 tid, u32 tgid)
{
	void *records = bpf_map_lookup_elem(&segment_records, &segment);

	if (!records)
		return NONE;
	for (u32 i = 0; i < DEBOX_SEGMENT_SLOTS; i++) {
		u32 slot = i;
		struct debox_record *record = bpf_map_lookup_elem(records, &slot);

		if (!record)
			break;
		if (record->tid)
			continue;
		/* tid is taken first, so that nobody else takes it; the new
		 * owner looks for its tid only after its clone has returned. */
		if (__sync_val_compare_and_swap(&record->tid, 0, tid) != 0)
			continue;
		record->tgid = tgid;
		record->generation++;
		record->bank[0].info.call_seq = 0;
		record->bank[1].info.call_seq = 0;
		__builtin_memset(&record->totals, 0, sizeof(record->totals));
		return i;
	}
	return NONE;
}

static __always_inline struct thread_state *thread_state_create(struct task_struct *task, u32 flags)
{
	struct thread_state *st =
		bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!st || (flags & WATCH_DETAILS &&
		    !bpf_task_storage_get(&thread_objects, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE)))
		__sync_fetch_and_add(&counters_here()->storage_failures, 1);
	return st;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct thread_state *from, *to;
	struct debox_account *account;
	bool thread = parent->tgid == child->tgid;
	u32 flags;

	if (!parent->bpf_storage)
		return 0;
	from = bpf_task_storage_get(&threads, parent, 0, 0);
	if (!from)
		return 0;
	/* What the parent may not show, its child does not inherit. */
	account_trusted(parent, from);
	slot_trusted(parent, from);
	flags = from->flags;
	if (!thread) {
		flags &= ~WATCH_OF_SLOT;
		if (!(flags & WATCH_FOLLOW))
			flags = 0;
	}
	if (!(flags & (WATCH_ACCOUNT | WATCH_SLOT)))
		return 0;
	account = flags & WATCH_ACCOUNT ? account_of(from) : NULL;
	if ((flags & WATCH_ACCOUNT) && !account)
		flags &= ~WATCH_OF_ACCOUNT;
	to = thread_state_create(child, flags);
	if (!to) {
		if (account)
			__sync_fetch_and_add(&account->threads_unwatched, 1);
		return 0;
	}
	/* The child may run on the stack of a thread that died. */
	__sync_fetch_and_add(&watch_generation, 1);
	to->account = from->account;
	/* `checked` stays 0: whoever gets credentials of its own is asked
	 * about before its first call is written. */
	if (flags & WATCH_SLOT) {
		u32 slot = slot_claim(from->segment, child->pid, child->tgid);

		if (slot == NONE) {
			/* libdebox asks for another segment when the thread
			 * makes its first call. */
			__sync_fetch_and_add(&counters_here()->slots_exhausted, 1);
			flags &= ~WATCH_OF_SLOT;
		} else {
			to->slot_exec = from->slot_exec;
			to->tid = child->pid;
			to->segment = from->segment;
			to->slot = slot;
		}
	}
	to->flags = flags;
	if (account) {
		__sync_fetch_and_add(&account->threads_started, 1);
		if (!thread)
			__sync_fetch_and_add(&account->processes_started, 1);
	}
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct thread_state *st;

	if (!task->bpf_storage)
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	/* The mappings of the old image are gone, and its control page with them. */
	slot_free(st);
	/* Asked in any case: its address space is another one. */
	if (st->flags & WATCH_CHECKED)
		trust_renew(task, st);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	struct thread_state *st;

	if (!task->bpf_storage)
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
	if (st->flags & WATCH_ACCOUNT) {
		struct debox_account *account = account_of(st);

		if (account)
			__sync_fetch_and_add(&account->threads_ended, 1);
		if (account && st->call.in_call) {
			/* exit, exit_group, or killed inside a call */
			u64 now = call_close(&st->call);
			struct debox_row *row = account_row(st->account, st->call.key);

			if (row) {
				row->unfinished++;
				row->blocked_ns += st->call.blocked_ns;
				row->runq_ns += st->call.runq_ns;
				row->irq_ns += st->call.irq_ns;
				row->wall_ns += now - st->call.enter_ns;
			}
		}
	}
	/* Its past stays until the task itself goes: it has yet to wake whoever
	 * waits for its end. */
	st->flags &= WATCH_FOLLOWED | WATCH_BOUNDARY;
	return 0;
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

/* An account may take a thread from another one of its own user, or with
 * privileges; nobody disappears from the watch of another. */
static __always_inline bool account_yields(const struct thread_state *st)
{
	const struct watcher *has = account_watcher(st);
	const struct watcher *wants = &account_watchers[bind.account & (ACCOUNTS_MAX - 1)];

	if (wants->flags & WATCHER_PRIVILEGED)
		return true;
	return !(has->flags & WATCHER_PRIVILEGED) && has->uid == wants->uid;
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
	u32 slot;

	/* A process may always see itself. That it is still the program that asked
	 * is certain if it has called no exec since it was forked (a server's
	 * worker, who has given up root and so is not dumpable); of others only
	 * what any watcher may see. */
	if (exec != task->parent_exec_id && !bind_allowed(task, watcher))
		return;
	slot = slot_claim(bind.segment, task->pid, task->tgid);
	if (slot == NONE) {
		bind.exhausted++;
		return;
	}
	st->segment = bind.segment;
	st->slot = slot;
	st->slot_exec = exec;
	st->tid = task->pid;
	barrier();
	st->flags |= (bind.flags & WATCH_OF_SLOT) | (checked ? WATCH_SLOT_CHECKED : 0);
	bind.bound++;
}

static __always_inline void bind_account(struct task_struct *task, struct thread_state *st)
{
	const struct watcher *watcher = &account_watchers[bind.account & (ACCOUNTS_MAX - 1)];
	bool checked = !(watcher->flags & WATCHER_PRIVILEGED);

	if (!bind_allowed(task, watcher))
		return;
	if (st->flags & WATCH_ACCOUNT) {
		if (!account_yields(st)) {
			bind.busy++;
			return;
		}
		left_count(account_of(st), LEFT_TAKEN);
		thread_row_end(st);
	}
	st->flags &= ~WATCH_OF_ACCOUNT;
	/* a call that is open now began unseen, or for another account; see asleep.h */
	st->call.in_call = 0;
	st->account = bind.account;
	st->thread_row_asked = 0;
	if (checked)
		st->checked = bind.judged.found;
	asleep_begin(task, st, bind.flags);
	barrier();
	st->flags |= (bind.flags & WATCH_OF_ACCOUNT) | (checked ? WATCH_CHECKED : 0);
	bind.bound++;
}

SEC("iter/task")
int bind_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;

	if (!task || task->tgid != bind.tgid)
		return 0;
	bind.seen++;
	st = thread_state_create(task, bind.flags);
	if (!st) {
		bind.failed++;
		return 0;
	}
	if ((bind.flags & WATCH_SLOT) && !(st->flags & WATCH_SLOT))
		bind_slot(task, st);
	if ((bind.flags & WATCH_ACCOUNT) &&
	    (!(st->flags & WATCH_ACCOUNT) || st->account != bind.account))
		bind_account(task, st);
	return 0;
}

/* Takes the watch of a released account or segment off all its threads. */
struct unbind_request {
	u32 account; /* NONE: not by account */
	u32 segment; /* NONE: not by segment */
	u32 tgid;    /* not 0: this process and its children only */
	u32 freed;
} unbind;

SEC("iter/task")
int unbind_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;

	if (!task)
		return 0;
	if (unbind.tgid && task->tgid != unbind.tgid &&
	    BPF_CORE_READ(task, real_parent, tgid) != unbind.tgid)
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	if ((st->flags & WATCH_ACCOUNT) && st->account == unbind.account)
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
