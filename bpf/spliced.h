/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Is a thread of a spliced program in a call, since when, and how long was it in calls before?
 *
 * Nothing of ours runs when such a call begins or ends: the program's own trampolines count it
 * (splice/state.h), in a block of the thread that the base of GS points to. Its first bytes are
 * read whenever something happens to the thread itself, and brought into the form in which
 * boundary capture remembers calls. What they say is the program's own word: wrong numbers
 * are wrong in its own sums only, which are cut to what the scheduler counts.
 */
#ifndef DEBOX_SPLICED_H
#define DEBOX_SPLICED_H

#include "call_phase.h"
#include "record.h"
#include "runtime.h"
#include "thread_row.h"

/* Ticks of the time stamp counter in ns; `rate` has 32 bits after the point. */
static __always_inline u64 ticks_ns(u64 ticks, u64 rate)
{
	return (ticks >> 32) * rate + (((ticks & 0xffffffff) >> 2) * rate >> 30);
}

/* When the call began that a block tells of, by the kernel's clock; the two clocks may differ a little. */
static __always_inline u64 spliced_began_ns(const struct debox_account_control *control, const struct spliced *spliced)
{
	return ticks_ns(spliced->told.start, control->tick_rate) + control->tick_offset_ns;
}

/* A counter that could be read is the thread's own. */
static __always_inline bool spliced_read(struct task_struct *task, struct spliced *spliced)
{
	const void *block = (const void *)task->thread.gsbase;

	if (!block || bpf_probe_read_user(&spliced->told, sizeof(spliced->told), block))
		return false;
	if (spliced->told.tid == spliced->tid)
		return spliced->tid != 0;
	/* Its number is another one since an exec, or was not asked for yet. */
	spliced->tid = pid_own(task);
	return spliced->told.tid == spliced->tid;
}

/* exit and exit_group; who makes one of them is done with its block. */
static __always_inline bool call_is_end(s32 nr)
{
	return nr == 60 || nr == 231;
}

/* rt_sigreturn, exit and exit_group do not return; restart_syscall goes on with one that was told of. */
static __always_inline bool call_is_no_own(s32 nr)
{
	return nr == 15 || call_is_end(nr) || nr == NR_RESTART_SYSCALL;
}

/* The call that is open may go on; its time until now is behind it. */
static __always_inline void spliced_fold(struct open_call *call, u64 now)
{
	call->called_ns = call_called(call, now);
	call->enter_ns = now;
	call->blocked_ns = 0;
	call->runq_ns = 0;
}

/* Whether the running thread is in a call that the runtime makes for itself, by where that is made. */
VERIFIED_ONCE u32 spliced_by_runtime(struct thread_state *st)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return st && st->spliced.is_told && made_by_runtime(st->spliced.block, regs->ip);
}

/* The row of a thread whose account has one for each; NULL: there is none. */
static __always_inline struct debox_thread_row *spliced_row(struct thread_state *st)
{
	struct debox_account_control *control = details_control(st->account);
	struct debox_details *details;
	u32 index;

	if (!control || !(control->flags & DEBOX_DETAIL_THREADS))
		return NULL;
	details = details_of(st->account);
	if (!details)
		return NULL;
	index = thread_row_of(st, details);
	return index ? &details->threads[index] : NULL;
}

/* Whether its block is another one than before: that begins at 0. */
static __always_inline bool spliced_begins(const struct spliced *spliced, const struct task_struct *task)
{
	return spliced->block != task->thread.gsbase || spliced->told.called_ns < spliced->called_ns;
}

/* Calls of the thread have ended since it was looked at last. */
VERIFIED_ONCE int spliced_ended(struct thread_state *st)
{
	struct debox_thread_row *row;
	u32 calls, failed;
	u64 wall_ns;

	if (!st)
		return 0;
	row = spliced_row(st);
	if (!row)
		return 0;
	calls = st->spliced.told.calls;
	failed = st->spliced.told.failed;
	wall_ns = st->spliced.called_ns;
	if (spliced_begins(&st->spliced, bpf_get_current_task_btf())) {
		row->told = 0;
		wall_ns = 0;
	}
	/* An execve that fails is taken back, and counted then. */
	row->count += (s32)(calls - (u32)row->told);
	row->errors += (s32)(failed - (u32)(row->told >> 32));
	row->wall_ns += st->spliced.told.called_ns - wall_ns;
	row->told = (u64)failed << 32 | calls;
	comm_copy(row->comm, bpf_get_current_task_btf()->comm);
	return 0;
}

/* Whether the open call, which began where the block could not be read, is the one that it tells of now: that began
 * before. */
static __noinline int spliced_is_it(struct thread_state *st)
{
	struct debox_account_control *control = st ? details_control(st->account) : NULL;

	/* Of one that is not stamped it is not known. */
	return control && st->spliced.told.timed != SPLICE_UNSTAMPED &&
	       spliced_began_ns(control, &st->spliced) <= st->call.enter_ns;
}

/*
 * An execve that has succeeded: its program cannot tell of its end any more, and counts it alone. It lasts until the
 * thread, stopped in it by whoever comes along, goes on; what it does then on a CPU before it is seen in something
 * else is the new program's.
 */
VERIFIED_ONCE int spliced_executed(struct thread_state *st)
{
	struct debox_thread_row *thread;
	struct open_call *call;
	struct debox_row *row;
	u64 wall;

	if (!st)
		return 0;
	call = &st->call;
	wall = call->executes_ns + call->blocked_ns + call->runq_ns;
	call->in_call = 0;
	call->seq = 0;
	if (st->flags & WATCH_DETAILS) {
		thread = spliced_row(st);
		if (thread)
			thread->wall_ns += wall;
	}
	row = account_row(st->account, call->key);
	if (!row)
		return 0;
	row_wall_add(row, wall);
	return 0;
}

/* When the command was let go, whose process this is, if it has not executed anything yet; else 0. */
static __always_inline u64 spliced_released_ns(struct thread_state *st, u64 now)
{
	struct debox_account_control *control;

	if (st->call.in_call || st->spliced.block)
		return 0;
	control = details_control(st->account);
	return control && control->begins_ns <= now ? control->begins_ns : 0;
}

/* The one that a command begins with, which no program tells of: from when it was let go. */
VERIFIED_ONCE int spliced_executes_first(struct thread_state *st, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct debox_thread_row *thread;
	struct debox_row *row;
	u64 begin, waited;
	s32 nr;

	if (!st)
		return 0;
	begin = spliced_released_ns(st, now);
	if (!begin || call_phase(task, &nr) != CALL_RUNNING || !call_is_exec(nr, task_in_compat_call(task)))
		return 0;
	waited = st->call.runq_ns;
	if (waited > now - begin)
		waited = now - begin;
	call_begin(&st->call, task, nr, begin);
	st->call.runq_ns = waited;
	row = account_row(st->account, st->call.key);
	if (row)
		row->runq_ns += waited;
	thread = st->flags & WATCH_DETAILS ? spliced_row(st) : NULL;
	if (thread) {
		thread->count++;
		thread->runq_ns += waited;
	}
	st->call.seq = SEQ_EXECUTED;
	st->call.executes_ns = 0;
	return 0;
}

/* The new program has taken the place of the old one, whose execve goes on. */
static __noinline int spliced_executes(struct task_struct *task, struct thread_state *st)
{
	struct open_call *call;
	u64 now = bpf_ktime_get_ns();

	if (!task || !st)
		return 0;
	call = &st->call;
	spliced_executes_first(st, now);
	if (!call->in_call || !call_is_exec(call->nr, call->compat))
		return 0;
	if (call->seq < SEQ_EXECUTES)
		call->executes_ns = 0;
	call->executes_ns += now - call->enter_ns;
	call->seq = SEQ_EXECUTED;
	spliced_fold(call, now);
	return 0;
}

/* ... or does not any more. */
VERIFIED_ONCE int spliced_execs(struct thread_state *st, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	s32 nr;

	if (!st)
		return 0;
	if (st->spliced.is_told || call_phase(task, &nr) != CALL_RUNNING || nr != st->call.nr) {
		if (st->call.seq == SEQ_EXECUTED)
			return spliced_executed(st);
		/* It has failed, and its program counts it. */
		st->call.seq = 0;
		return 0;
	}
	if (st->call.seq < SEQ_EXECUTES) {
		st->call.seq = SEQ_EXECUTES;
		st->call.executes_ns = 0;
	}
	st->call.executes_ns += now - st->call.enter_ns;
	spliced_fold(&st->call, now);
	return 0;
}

/* Of a handler's call in it. */
static __always_inline void outer_gone(struct outer_call *outer, u64 off_ns)
{
	outer->gone_ns += off_ns;
	outer->inner_ns += off_ns;
}

/*
 * Another call than before is open, or none, and one of the two is a signal handler's, within one that goes on
 * meanwhile: that is put aside, or ends. How much of the time that the program counts now the thread was off the
 * CPU; `off_ns`: of the call before.
 */
VERIFIED_ONCE u64 spliced_outer(struct thread_state *st, u64 off_ns, u64 now)
{
	struct open_call *call;
	struct outer_call *outer, new = {};
	u32 tid = (u32)bpf_get_current_pid_tgid();
	u64 rsp;

	if (!st)
		return off_ns;
	call = &st->call;
	rsp = st->spliced.told.rsp;
	if (call->inner) {
		outer = bpf_map_lookup_elem(&outer_calls, &tid);
		if (!outer)
			return off_ns;
		outer_gone(outer, off_ns);
		if (rsp & 1)
			return 0;
		call->called_ns -= outer->folded_ns;
		outer->folded_ns = 0;
		if (rsp && st->spliced.told.start == outer->seq)
			return 0;
		off_ns = outer->gone_ns + outer->blocked_ns + outer->runq_ns;
		outer->seq = 0;
		call->inner = 0;
		return off_ns;
	}
	/* Else it has ended before, and which one was interrupted is not known: that has not slept. */
	if (!(rsp & 1) || st->spliced.told.called_ns != st->spliced.called_ns)
		return off_ns;
	outer = bpf_map_lookup_elem(&outer_calls, &tid);
	if (outer && outer->seq == call->seq)
		new.inner_ns = outer->inner_ns;
	new.seq = call->seq;
	new.blocked_ns = call->blocked_ns;
	new.runq_ns = call->runq_ns;
	new.irq_ns = call->irq_ns;
	new.nvcsw = call->nvcsw;
	new.nivcsw = call->nivcsw;
	new.folded_ns = call_called(call, now) - call->called_ns;
	if (bpf_map_update_elem(&outer_calls, &tid, &new, BPF_ANY))
		return off_ns;
	call->called_ns += new.folded_ns;
	call->inner = 1;
	return 0;
}

/* The one that a handler had interrupted goes on: as it was. False: it is not, or is not known. */
static __noinline int spliced_resume(struct thread_state *st)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct outer_call *outer = bpf_map_lookup_elem(&outer_calls, &tid);

	if (!st || !outer || outer->seq != st->spliced.told.start)
		return 0;
	st->call.blocked_ns = outer->blocked_ns;
	st->call.runq_ns = outer->runq_ns;
	st->call.irq_ns = outer->irq_ns;
	st->call.nvcsw = outer->nvcsw;
	st->call.nivcsw = outer->nivcsw;
	/* Its wall time has it. */
	st->call.called_ns -= outer->gone_ns;
	outer->gone_ns = 0;
	return 1;
}

/* A handler's call has ended, and been shown. */
static __noinline int spliced_inner_shown(u64 off_ns)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct outer_call *outer = bpf_map_lookup_elem(&outer_calls, &tid);

	if (outer)
		outer_gone(outer, off_ns);
	return 0;
}

/* How long a handler's calls in it were off the CPU. */
static __noinline u64 spliced_inner_ns(const struct open_call *call)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct outer_call *outer = bpf_map_lookup_elem(&outer_calls, &tid);

	return call && outer && outer->seq == call->seq ? outer->inner_ns : 0;
}

/* The call that was open is over, for its program. */
VERIFIED_ONCE int spliced_leave(struct thread_state *st, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct spliced *spliced;
	struct open_call *call;
	u64 more, off;

	if (!st)
		return 0;
	call = &st->call;
	spliced = &st->spliced;
	if (st->flags & WATCH_DETAILS)
		spliced_ended(st);
	/* What was seen of it, up to when it left the CPU last; the rest is its program's word. */
	if (call->in_call && call->unstamped && call->enter_ns < st->out_ns)
		call->called_ns += st->out_ns - call->enter_ns;
	off = call->in_call && !call->unstamped ? call->blocked_ns + call->runq_ns : 0;
	if (call->inner || (call->in_call && !call->unstamped && spliced->told.rsp & 1))
		off = spliced_outer(st, off, now);
	more = spliced->told.called_ns - spliced->called_ns;
	if (spliced_begins(spliced, task)) {
		more = spliced->told.called_ns;
		if (call->in_call)
			spliced_fold(call, now);
		off = 0;
	}
	spliced->block = task->thread.gsbase;
	spliced->called_ns = spliced->told.called_ns;
	if (more > off)
		call->called_ns += more - off;
	call->in_call = 0;
	return 0;
}

/* The running thread's block could not be read. `runtimes`: when it was looked at last its call was the runtime's. */
VERIFIED_ONCE int spliced_untold(struct thread_state *st, u32 runtimes, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct spliced *spliced;
	struct open_call *call;
	u32 away;
	s32 nr;

	if (!st)
		return 0;
	call = &st->call;
	spliced = &st->spliced;
	/* Who was killed within a call has no memory any more (up to 6.14), and ends in that one: its time is
	 * added as the thread ends. */
	if (call->in_call && !(task->flags & PF_EXITING))
		spliced_fold(call, now);
	/* Another block, or none: between two programs, the execve goes on. Its own could not be read
	 * just now, and the call that it is in may be another one since; but the one that it ends in
	 * is counted, and over for who counts, before its memory is gone. Nor is it one by which the runtime,
	 * as rights are given up, puts other memory in place of the block: who does that has asked before, and
	 * waited for the answer. */
	away = spliced->block && spliced->block == task->thread.gsbase && call_phase(task, &nr) == CALL_RUNNING &&
	       !call_is_end(nr);
	spliced->by_runtime = away && runtimes;
	if (away && !runtimes && !(st->flags & WATCH_RENAMES) && !(call->in_call && nr == call->nr)) {
		call_begin(call, task, nr, now);
		call->seq = 0;
		/* Nothing of it is noted yet, nor of another one with that number. */
		st->detail_seq = ~0ull;
		st->object_seq = OBJECT_SEQ_NONE;
	}
	return 0;
}

/* Of two calls, one within the other (a signal's handler made it): */
#define LEFT_OUTER 1u  /* the inner one has ended, it is in the outer one again */
#define LEFT_WITHIN 2u /* there is an outer one */

/* The call that the running thread's program tells of becomes the open one. */
VERIFIED_ONCE int spliced_enter(struct thread_state *st, u32 stood, u32 left, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 back = left & LEFT_OUTER, within = left & LEFT_WITHIN;
	struct debox_account_control *control;
	struct debox_account *account;
	struct spliced *spliced;
	struct open_call *call;
	struct debox_row *row;
	u64 begin, stood_ns = 0;

	control = st ? details_control(st->account) : NULL;
	if (!control)
		return 0;
	call = &st->call;
	spliced = &st->spliced;
	begin = spliced_began_ns(control, spliced);
	/* A call that is not stamped begins as it is seen: most are not, and take little. */
	if (begin > now || spliced->told.timed == SPLICE_UNSTAMPED)
		begin = now;
	else if (back)
		; /* what it was off the CPU is known from there on */
	else if (begin < st->out_ns && stood == STOOD_BEHIND)
		stood_ns = st->out_ns - begin;
	else if (begin < st->out_ns)
		begin = st->out_ns;
	/* Of its faults all are to come: the first one is told before it is counted. */
	call_begin(call, task, (s32)spliced->told.nr, begin);
	call->seq = spliced->told.start;
	if (back && spliced_resume(st))
		return 0;
	if (back && begin < st->out_ns)
		call->enter_ns = st->out_ns;
	call->inner = !back && within;
	call->unstamped = spliced->told.timed == SPLICE_UNSTAMPED;
	/* The program counts it from a moment on at which it still stood. */
	call->blocked_ns = stood_ns;
	account = stood_ns ? account_of(st) : NULL;
	if (account)
		__sync_fetch_and_add(&account->calls_begun_before, 1);
	row = stood_ns ? account_row(st->account, call->key) : NULL;
	if (row)
		row->blocked_ns += stood_ns;
	return 0;
}

static __always_inline void spliced_look_here(struct thread_state *st, u32 ended)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct open_call *call = &st->call;
	struct spliced *spliced = &st->spliced;
	u64 now = bpf_ktime_get_ns();
	u32 stood, left, runtimes = spliced->by_runtime;

	spliced->by_runtime = 0;
	spliced->is_told = spliced_read(task, spliced);
	if (!spliced->is_told)
		spliced_executes_first(st, now);
	if (call->in_call && (call->seq >= SEQ_EXECUTES || (!spliced->is_told && call_is_exec(call->nr, call->compat))))
		spliced_execs(st, now);
	if (!spliced->is_told) {
		spliced_untold(st, runtimes, now);
		return;
	}
	if (spliced->told.rsp && call->in_call && spliced->told.start == call->seq) {
		/* Nobody else knows how long it lasts. */
		if (call->unstamped)
			spliced_fold(call, now);
		return;
	}
	if (spliced->told.rsp && call->in_call && !call->seq && call->nr == (s32)spliced->told.nr &&
	    spliced_is_it(st)) {
		if (!st->detail_seq)
			st->detail_seq = spliced->told.start;
		if (!st->object_seq)
			st->object_seq = spliced->told.start;
		call->seq = spliced->told.start;
		return;
	}
	left = call->inner && spliced->told.rsp && !(spliced->told.rsp & 1) ? LEFT_OUTER : 0;
	spliced_leave(st, now);
	/* That may just have found it to be within the one that was open. */
	if (call->inner)
		left |= LEFT_WITHIN;
	stood = spliced->stood;
	spliced->stood = STOOD_NOT;
	if (!spliced->told.rsp)
		spliced->by_runtime = spliced_by_runtime(st);
	else if (ended || spliced->told.timed == SPLICE_TIMED || spliced->told.timed == SPLICE_UNSTAMPED)
		spliced_enter(st, stood, left, now);
}

/* The running thread's calls, as of now; with `ended` also one that is being counted. */
VERIFIED_ONCE int spliced_look(struct thread_state *st, u32 ended)
{
	if (!st)
		return 0;
	*(volatile u8 *)&st->spliced.looking = 1;
	spliced_look_here(st, ended);
	*(volatile u8 *)&st->spliced.looking = 0;
	return 0;
}

/* Whether the call that a stretch off the CPU was in is open, and its program knows no more than how long one takes
 * that is not off the CPU. */
static __always_inline bool spliced_away_untold(const struct thread_state *st)
{
	return st->call.unstamped && st->call.enter_ns <= st->out_ns;
}

static __noinline int spliced_away(struct thread_state *st, u64 blocked_ns, u64 runq_ns)
{
	struct debox_thread_row *row = st ? spliced_row(st) : NULL;

	if (!row)
		return 0;
	row->blocked_ns += blocked_ns;
	row->runq_ns += runq_ns;
	if (spliced_away_untold(st))
		row->wall_ns += blocked_ns + runq_ns;
	return 0;
}

/* The command's process has waited for a CPU on its way into its first execve, which lasts since it was let go. */
static __always_inline void spliced_waits_first(struct thread_state *st, u64 runq_ns)
{
	u64 now = bpf_ktime_get_ns(), begin = spliced_released_ns(st, now);

	if (begin)
		st->call.runq_ns += runq_ns < now - begin ? runq_ns : now - begin;
}

/* The running thread, which has been looked at, is about to sleep in call `nr`: whether its program does not tell of
 * that. It was made where nothing was replaced, by code that came from no file or by a site without a window. */
static __always_inline bool spliced_is_untold(const struct thread_state *st, s32 nr)
{
	return st->flags & WATCH_SPLICED && st->spliced.is_told && !st->spliced.told.rsp && !st->spliced.by_runtime &&
	       !st->call.in_call && !call_is_no_own(nr);
}

static __always_inline void spliced_sleep_untold(struct thread_state *st, const struct off_cpu *off)
{
	struct debox_account *account;

	if (!(off->kind & OUT_UNTOLD))
		return;
	account = account_of(st);
	if (!account)
		return;
	__sync_fetch_and_add(&account->sleeps_untold, 1);
	__sync_fetch_and_add(&account->sleeps_untold_ns, off->blocked_ns);
}

/* A stretch off the CPU, which began in the call that was open then: its key, else `key`. */
static __noinline u32 spliced_away_add(struct thread_state *st, const struct off_cpu *off, u32 key)
{
	struct debox_row *row;

	if (!st || !off)
		return key;
	if (!st->call.in_call) {
		spliced_waits_first(st, off->runq_ns);
		if (st->spliced.by_runtime)
			return DEBOX_NR_OUTSIDE;
		spliced_sleep_untold(st, off);
		return key;
	}
	/* It has ended, and is only being counted: what keeps that is not the call's. */
	if (st->spliced.told.timed == SPLICE_ENDED) {
		st->call.enter_ns += off->blocked_ns + off->runq_ns;
		return key;
	}
	/* The way back was hidden, and the thread has gone on to another call since: that one did not sleep. */
	if (st->call.enter_ns <= st->out_ns) {
		key = st->call.key;
		st->call.blocked_ns += off->blocked_ns;
		st->call.runq_ns += off->runq_ns;
		if (off->kind & OUT_BLOCKED)
			st->call.nvcsw++;
		else
			st->call.nivcsw++;
	}
	if (st->flags & WATCH_DETAILS)
		spliced_away(st, off->blocked_ns, off->runq_ns);
	row = account_row(st->account, key);
	if (row) {
		row->blocked_ns += off->blocked_ns;
		row->runq_ns += off->runq_ns;
		if (off->kind & OUT_BLOCKED)
			row->nvcsw++;
		else
			row->nivcsw++;
		if (spliced_away_untold(st)) {
			row->wall_ns += off->blocked_ns + off->runq_ns;
			if (off->blocked_ns + off->runq_ns > row->max_ns)
				row->max_ns = off->blocked_ns + off->runq_ns;
		}
	}
	return key;
}

/* An interrupt of the running thread has ended: whether it was in a call. One that came while the
 * thread was looked at is taken for one beside calls. */
static __noinline int spliced_irq_add(struct task_struct *task, struct thread_state *st, u64 ns)
{
	struct debox_row *row;

	/* Where the way back was hidden, the next look finds the call that slept. */
	if (!task || !st || st->out_kind & OUT_VALID || *(volatile u8 *)&st->spliced.looking)
		return 0;
	spliced_look(st, 0);
	if (!st->call.in_call || st->spliced.told.timed == SPLICE_ENDED)
		return 0;
	st->call.irq_ns += ns;
	row = account_row(st->account, st->call.key);
	if (row)
		row->irq_ns += ns;
	return 1;
}

/* The kernel has taken a page fault, in the thread's call. */
static __noinline int spliced_fault(struct task_struct *task, struct thread_state *st, u32 minor, u32 major)
{
	struct debox_row *row;

	if (!task || !st)
		return 0;
	spliced_look(st, 0);
	if (!st->call.in_call)
		return 0;
	row = account_row(st->account, st->call.key);
	if (!row)
		return 0;
	row->minor_faults += minor;
	/* It was counted as a minor one at its begin. */
	if (major && row->minor_faults) {
		row->minor_faults -= major;
		row->major_faults += major;
	}
	return 0;
}

/* Unless its flags are changing just now on its own CPU: it may have lost its watch, which nobody gives back. */
static __always_inline void flags_change(struct thread_state *st, u32 off, u32 on)
{
	u32 flags = *(volatile u32 *)&st->flags;

	if (flags & WATCH_SPLICED)
		__sync_val_compare_and_swap(&st->flags, flags, (flags & ~off) | on);
}

/* A call that is open, and has been looked at, ends there. */
static __always_inline void boundary_begins(struct thread_state *st)
{
	st->spliced.by_runtime = 0;
	if (st->call.in_call && st->call.seq == SEQ_EXECUTED)
		spliced_executed(st);
	flags_change(st, WATCH_SPLICED | WATCH_RENAMES | WATCH_LEAVES | WATCH_EXECUTES, WATCH_BOUNDARY);
}

/* The running thread makes call `nr`: whether it tells of that. */
static __noinline int spliced_tells(struct task_struct *task, struct thread_state *st, s32 nr)
{
	if (!task || !st)
		return 1;
	spliced_look(st, 0);
	return st->spliced.is_told && st->call.in_call && st->call.nr == nr;
}

/* A call that is nobody's, or told of before: the runtime's own, and what does not return. */
static __always_inline bool spliced_is_silent(struct thread_state *st, s32 nr)
{
	return call_is_no_own(nr) || spliced_by_runtime(st);
}

/* The running thread makes call `nr`, and tells of it; if not, it tells of no more: its code is as it was, or
 * about to be. */
static __always_inline bool spliced_leaves(struct task_struct *task, struct thread_state *st, s32 nr)
{
	if (spliced_tells(task, st, nr) || (spliced_is_silent(st, nr) && !call_is_end(nr)))
		return true;
	boundary_begins(st);
	return false;
}

/* The running thread makes call `nr`, and has asked about its next program: another call that it tells of, and that is no
 * handler's within the execve, comes only where that has failed, and then it may be asked about the next one otherwise. */
static __always_inline void spliced_executes_not(struct task_struct *task, struct thread_state *st, s32 nr)
{
	if (!call_is_exec(nr, 0) && spliced_tells(task, st, nr) && !st->call.inner && !(st->spliced.told.rsp & 1))
		flags_change(st, WATCH_EXECUTES, 0);
}

/* The running thread makes call `nr`: does it tell of it? */
static __noinline int spliced_audit(struct task_struct *task, struct thread_state *st, s32 nr, u32 key)
{
	struct debox_row *row;
	int tells;
	u64 seq;

	if (!task || !st)
		return 0;
	seq = st->call.in_call ? st->call.seq : 0;
	tells = spliced_tells(task, st, nr);
	if (!st->spliced.is_told || spliced_is_silent(st, nr))
		return 0;
	/* A signal had interrupted it, and the kernel makes it again: its program has made one. */
	if (tells && seq && st->call.seq == seq)
		return 0;
	row = account_row(st->account, key);
	if (!row)
		return 0;
	if (tells)
		row->told++;
	else
		row->untold++;
	return 0;
}

static __always_inline void spliced_ask(struct thread_state *st)
{
	if (st->flags & WATCH_SPLICED)
		spliced_look(st, 0);
}

#endif
