/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * When did a call begin and end, for programs that do not say so themselves?
 *
 * The hottest programs here: they run at every system call of the machine
 * while anything is watched by boundary capture. One load per CPU tells the
 * threads that are not watched apart, with no helper called.
 */
#ifndef DEBOX_BOUNDARY_H
#define DEBOX_BOUNDARY_H

#include "record.h"
#include "sleep.h"
#include "details.h"
#include "spliced.h"
#include "trust.h"

static __always_inline void call_open(struct open_call *call, const struct task_struct *task,
				      const struct pt_regs *regs, s64 nr)
{
	call_begin(call, task, nr, bpf_ktime_get_ns());
	descriptor_removed(task, regs, call->key, call->compat, call->enter_ns);
}

/* From here on interrupts are not the call's; then the clock may be read. */
static __always_inline u64 call_close(struct open_call *call)
{
	*(volatile u32 *)&call->in_call = 0;
	barrier();
	return bpf_ktime_get_ns();
}

static __noinline int record_open(struct thread_state *st, struct task_struct *task)
{
	struct debox_record *record;

	if (!st)
		return 0;
	record = record_of(st);
	if (record)
		info_open(&record->bank[0].info, st->call.seq, st->call.nr, 0,
			  DEBOX_FLAG_BOUNDARY | (st->call.compat ? DEBOX_FLAG_COMPAT32 : 0), valid_irq(st),
			  record);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *regs, long nr)
{
	u32 cpu = bpf_get_smp_processor_id(), flags;
	struct cpu_hot *hot = &cpu_hot[cpu & (HOT_CPUS - 1)];
	/* Before the thread's state is looked at: what is kept of it is of no later one, when others change it
	 * meanwhile. */
	u32 generation = *(volatile u32 *)&watch_generation;
	struct thread_state *st = NULL;
	struct task_struct *task;

	if (hot->regs == (u64)regs && hot->generation == generation && cpu < HOT_CPUS) {
		if (hot->watched)
			call_open(&hot->call, task_kept(hot->task), regs, nr);
		return 0;
	}
	task = bpf_get_current_task_btf();
	if (task_stored(task))
		st = bpf_task_storage_get(&threads, task, 0, 0);
	if (st) {
		if (st->out_kind & OUT_VALID)
			switch_hidden(task, st);
		hot_flush(st);
	}
	if (st && st->flags & WATCH_LEAVES && spliced_leaves(task, st, (s32)nr))
		return 0;
	if (st && st->flags & (WATCH_AUDIT | WATCH_EXECUTES) && st->flags & WATCH_SPLICED) {
		if (st->flags & WATCH_AUDIT)
			spliced_audit(task, st, (s32)nr, nr_key(nr, task_in_compat_call(task)));
		if (st->flags & WATCH_EXECUTES)
			spliced_executes_not(task, st, (s32)nr);
		return 0;
	}
	if (st && (st->flags & WATCH_SLOT))
		slot_trusted(task, st);
	flags = st ? st->flags : 0;
	if (st && (flags & WATCH_SLOT_BOUNDARY || (flags & WATCH_BOUNDARY && cpu >= HOT_CPUS))) {
		call_open(&st->call, task, regs, nr);
		if (flags & WATCH_SLOT_BOUNDARY)
			record_open(st, task);
		return 0;
	}
	if (cpu >= HOT_CPUS)
		return 0;
	/* Whatever stood here was another thread's, which has left the CPU. */
	hot->regs = (u64)regs;
	hot->generation = generation;
	hot->watched = 0;
	if (st && flags & WATCH_BOUNDARY) {
		/* The one that stood here. */
		*(volatile u32 *)&hot->call.in_call = 0;
		barrier();
		st->hot_regs = hot->regs;
		hot->watched = flags & WATCH_CHECKED ? HOT_CHECKED : HOT_WATCHED;
		hot->checked_cred = st->checked.cred;
		hot->checked_dumpable = st->checked.dumpable;
		hot->task = (u64)task;
		hot->account = st->account;
		hot->details = details_wanted(st);
		hot->call.seq = st->call.seq;
		hot->call.called_ns = st->call.called_ns;
		call_open(&hot->call, task, regs, nr);
	}
	return 0;
}

/* The open call ends now with `result`: into the account. */
static __always_inline void account_call_add(u32 account, const struct open_call *call,
					     const struct task_struct *task, s64 result, u64 wall)
{
	struct debox_row *row = account_row(account, call->key);
	u64 minor = task->min_flt - call->min_flt, major = task->maj_flt - call->maj_flt;

	if (!row)
		return;
	row->count++;
	if (call_failed(result, call->key)) {
		row->errors++;
		if (result == -2) /* ENOENT */
			row->missing++;
	} else if (result == 1) {
		row->ones++;
	} else if (call_restarts(result) && !call_is_sigreturn(call->key)) {
		row->restarted++;
	}
	row_wall_add(row, wall);
	if (minor | major) {
		row->minor_faults += minor;
		row->major_faults += major;
	}
	if (call->nvcsw | call->nivcsw) {
		row->nvcsw += call->nvcsw;
		row->nivcsw += call->nivcsw;
		row->blocked_ns += call->blocked_ns;
		row->runq_ns += call->runq_ns;
	}
	if (call->irq_ns)
		row->irq_ns += call->irq_ns;
}

/* ... and into the record of a thread that asked for boundary capture. */
static __noinline int record_close(struct thread_state *st, struct task_struct *task, s64 result, u64 wall)
{
	struct debox_record *record;
	struct debox_info *info;

	if (!st)
		return 0;
	record = record_of(st);
	if (!record)
		return 0;
	info = &record->bank[0].info;
	info->retval = result;
	info->start_ns = st->call.enter_ns;
	info->wall_ns = wall;
	info->irq_ns = st->call.irq_ns;
	info->cpu_ns = wall - info->blocked_ns - info->runq_ns - info->irq_ns;
	info->minor_faults = task->min_flt - st->call.min_flt;
	info->major_faults = task->maj_flt - st->call.maj_flt;
	if (call_restarts(result))
		info->flags |= DEBOX_FLAG_RESTARTED;
	info->valid |= DEBOX_VALID_WALL | DEBOX_VALID_CPU | DEBOX_VALID_RETVAL;
	return 0;
}

/* The credentials of the running thread have changed since the watcher was
 * allowed to see it: false when that is over. */
static __noinline bool hot_renew(struct cpu_hot *hot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st = bpf_task_storage_get(&threads, task, 0, 0);

	if (!st || !hot || !trust_renew(task, st))
		return false;
	hot->checked_cred = st->checked.cred;
	hot->checked_dumpable = st->checked.dumpable;
	return true;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *regs, long result)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_hot *hot = &cpu_hot[cpu & (HOT_CPUS - 1)];
	struct task_struct *task;
	struct thread_state *st;
	u64 now, closed;

	if (hot->regs == (u64)regs && hot->generation == watch_generation && cpu < HOT_CPUS) {
		if (!hot->watched)
			return 0;
		/* A call that ran as the thread's watch began has no entry time; it
		 * is left out rather than guessed. (Of one that slept then, see
		 * asleep.h, the state says that, and it is not hot.) */
		if (!hot->call.in_call)
			return 0;
		now = call_close(&hot->call);
		hot->call.called_ns = call_called(&hot->call, now);
		descriptor_removed(task_kept(hot->task), regs, hot->call.key, hot->call.compat, now);
		if (hot->watched == HOT_CHECKED &&
		    !unchanged_by_call(task_kept(hot->task), hot->checked_cred, hot->checked_dumpable) &&
		    !hot_renew(hot))
			return 0;
		account_call_add(hot->account, &hot->call, task_kept(hot->task), result,
				 now - hot->call.enter_ns);
		if (hot->details) {
			task = bpf_get_current_task_btf();
			st = bpf_task_storage_get(&threads, task, 0, 0);
			if (st) {
				st->call = hot->call;
				details_call_add(st, result, now);
			}
		}
		return 0;
	}
	task = bpf_get_current_task_btf();
	if (!task_stored(task))
		return 0;
	now = bpf_ktime_get_ns();
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	hot_flush(st);
	if (!st->call.in_call || !(st->flags & (WATCH_BOUNDARY | WATCH_SLOT_BOUNDARY)))
		return 0;
	closed = call_close(&st->call);
	/* One that came since `now` was counted. */
	if (st->call.irq_ns)
		now = closed;
	st->call.called_ns = call_called(&st->call, now);
	descriptor_removed(task, regs, st->call.key, st->call.compat, now);
	if (st->flags & WATCH_ACCOUNT)
		account_trusted(task, st);
	if (st->flags & WATCH_BOUNDARY)
		account_call_add(st->account, &st->call, task, result, now - st->call.enter_ns);
	if ((st->flags & WATCH_SLOT_BOUNDARY) && slot_trusted(task, st))
		record_close(st, task, result, now - st->call.enter_ns);
	if (details_wanted(st))
		details_call_add(st, result, now);
	return 0;
}

#endif
