/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How long was a thread off the CPU, and was it blocked or only waiting for a
 * CPU?
 *
 * One program on sched_switch for both sides of the switch: a second one
 * would cost every switch of the machine. Threads that are not watched are
 * recognised by bpf_storage == NULL, one load each.
 */
#ifndef DEBOX_SLEEP_H
#define DEBOX_SLEEP_H

#include "call_phase.h"
#include "record.h"
#include "site.h"
#include "spliced.h"
#include "details.h"
#include "trust.h"
#include "chain.h"
#include "follow.h"
#include "interrupt.h"
#include "place.h"
#include "wait.h"

/* One stretch off the CPU goes into the record of the thread's slot. */
VERIFIED_ONCE int away_record_add(struct thread_state *st, const struct off_cpu *off, u32 compat)
{
	struct debox_record *record;
	struct debox_control *control;
	struct debox_totals *totals;
	struct debox_info *info;

	if (!st || !off)
		return 0;
	record = record_of(st);
	control = control_of(st);
	if (!record || !control)
		return 0;
	totals = &record->totals;
	info = bank_left(st, record, control, compat);

	totals->blocked_ns += off->blocked_ns;
	totals->runq_ns += off->runq_ns;
	if (!(off->kind & OUT_IN_CALL)) {
		totals->outside_blocked_ns += off->blocked_ns;
		totals->outside_runq_ns += off->runq_ns;
	}
	if (off->kind & OUT_BLOCKED) {
		totals->sleeps++;
		totals->nvcsw++;
	} else {
		totals->nivcsw++;
	}
	record->away = 0;
	if (info) {
		u64 dropped = info->sleeps_dropped_ns;

		/* boundary capture: nobody writes the control page */
		info_off_cpu_add(info, st, off,
				 st->flags & WATCH_SLOT_BOUNDARY ? DEBOX_SLEEPS_MAX : control->max_sleeps);
		totals->dropped_ns += info->sleeps_dropped_ns - dropped;
	}
	return 0;
}

/* ... and into the account: the key of the call that it was in. `seen`: flags of the account. */
VERIFIED_ONCE u32 away_account_add(struct thread_state *st, const struct off_cpu *off, u32 seen, u32 compat)
{
	u32 key = DEBOX_NR_OUTSIDE;

	if (!st || !off)
		return key;
	if (seen & WATCH_BOUNDARY) {
		if (st->call.in_call) {
			st->call.blocked_ns += off->blocked_ns;
			st->call.runq_ns += off->runq_ns;
			if (off->kind & OUT_BLOCKED)
				st->call.nvcsw++;
			else
				st->call.nivcsw++;
			key = st->call.key;
		}
	} else if (off->kind & OUT_IN_CALL) {
		key = nr_key(st->out_nr, compat);
	}
	if (seen & WATCH_SPLICED)
		key = spliced_away_add(st, off, key);
	if (off->kind & OUT_BLOCKED) {
		account_sleep_add(st, off, key);
		if (seen & WATCH_DETAILS)
			details_sleep_add(st, off, key);
	}
	return key;
}

/*
 * Of a sleep that took `away` with what came after it, how long the thread has waited for a CPU: `wait` by the
 * scheduler's books, and no longer than since it was woken. From 6.12 on a thread that has gone to sleep may
 * stay in its run queue for a while, and be taken to another CPU's: the books have it waiting for a CPU from then
 * on, although it sleeps.
 */
static __always_inline u64 wait_since_woken(const struct thread_state *st, u64 away, u64 wait)
{
	u64 woken = st->woken_ns, back = st->out_ns + away;

	if (woken >= st->out_ns && woken <= back && wait > back - woken)
		return back - woken;
	return wait < away ? wait : away;
}

/* The thread is back: one stretch off the CPU goes into record and account. */
static __noinline int away_add(struct task_struct *task, struct thread_state *st, u64 away, u64 wait)
{
	struct critical *path = NULL;
	struct off_cpu off = {};
	u32 kind, seen, key, rests;

	if (!st)
		return 0;
	kind = st->out_kind;
	st->out_kind = OUT_NONE;
	off.kind = kind;
	off.site = st->out_site;
	off.runq_ns = away;
	if (kind & OUT_BLOCKED) {
		wait = wait_since_woken(st, away, wait);
		off.runq_ns = wait;
		off.blocked_ns = away - wait;
		if (st->flags & (WATCH_ACCOUNT | WATCH_SLOT))
			wait_end(st);
	}
	seen = st->flags & WATCH_ACCOUNT && account_trusted(task, st) ? st->flags : 0;
	seen = forgotten(seen, away);
	off.blocked_ns = forgotten(off.blocked_ns, away);
	off.runq_ns = forgotten(off.runq_ns, away);
	if (st->life.serial) {
		life_away_add(st, kind, off.blocked_ns, off.runq_ns);
		path = critical_of(task, st);
		critical_away(path, st, kind);
	}
	if (kind & OUT_BLOCKED && st->flags & WATCH_EXPLAINED) {
		chain_unseen(st, off.blocked_ns);
		chain_sleep_end(st, off.blocked_ns, seen & WATCH_DETAILS);
	}
	critical_back(path, st, st->out_ns + away);
	st->parts.used = 0;
	rests = forgotten(st->rest.resting == REST_YES, away);
	if (kind & OUT_BLOCKED)
		activity_wait_add(st, off.blocked_ns);
	if (off.runq_ns)
		past_add(&st->past, st->out_ns + off.blocked_ns, st->out_ns + away, st->called_ns,
			 PAST_RUNQ);
	if ((st->flags & WATCH_SLOT) && slot_trusted(task, st))
		away_record_add(st, &off, task_in_compat_call(task));
	if (!seen)
		return 0;
	key = away_account_add(st, &off, seen, task_in_compat_call(task));
	if (kind & OUT_BLOCKED && seen & WATCH_DETAILS)
		object_sleep_add(task, st, key, off.blocked_ns);
	/* Where the ends of calls are seen a call is judged then, and not its sleeps. */
	if (kind & OUT_BLOCKED && kind & OUT_IN_CALL && seen & WATCH_DETAILS && !(seen & (WATCH_BOUNDARY | WATCH_SPLICED)))
		sleep_judge(task, st, &off, key, rests);
	return 0;
}

/*
 * A switch back to this thread that the tracepoint did not show: the kernel
 * hides those away from processes it protects. The scheduler's own books tell
 * what is missing: when the thread got the CPU, and how long it had waited.
 */
static __noinline int switch_hidden(struct task_struct *task, struct thread_state *st)
{
	u64 arrival = task->sched_info.last_arrival, away = 0, most;

	if (!st)
		return 0;
	st->spliced.stood = STOOD_NOT;
	__sync_fetch_and_add(&counters_here()->switches_hidden, 1);
	if (runqueue_clock_exists() && arrival > st->out_clock)
		away = arrival - st->out_clock;
	/* The clock of a run queue that was idle stands still: of a thread that was
	 * asleep as its watch began (asleep.h), out_clock is older than out_ns. */
	most = bpf_ktime_get_ns() - st->out_ns;
	if (away > most)
		away = most;
	away_add(task, st, away, task->sched_info.run_delay - st->out_run_delay);
	if (st->lock_flags & LOCK_OVER)
		st->lock = 0;
	return 0;
}

/* ... and to a thread that had not run before. */
static __noinline int first_run_hidden(struct task_struct *task, struct thread_state *st)
{
	u64 waited, most;

	if (!st || st->past.since_ns || !st->life.serial || st->life.phase != LIFE_NEW)
		return 0;
	waited = task->sched_info.run_delay - st->out_run_delay;
	most = bpf_ktime_get_ns() - st->life.since_ns;
	return life_first_run(task, st, st->life.since_ns + (waited < most ? waited : most));
}

/* The record says that its thread is off the CPU: a reader that still finds
 * it so at the end of a call knows that the way back was hidden. */
VERIFIED_ONCE int record_away(struct thread_state *st, s32 nr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct debox_record *record;
	struct debox_control *control;

	if (!st || !slot_trusted(task, st))
		return 0;
	record = record_of(st);
	control = control_of(st);
	if (!record || !control)
		return 0;
	record->away = 1;
	record->spliced = st->flags & WATCH_SPLICED ? 1 : 0;
	st->out_seq = seq_open(st, control);
	bank_open(st, record, control, nr, task_in_compat_call(task));
	return 0;
}

/* A sleep begins, of which nothing else is known yet. */
static __always_inline void sleep_open(struct task_struct *task, struct thread_state *st, int phase, s32 nr)
{
	st->waker_pid = 0;
	st->waker_tgid = 0;
	st->waker_nr = -1;
	st->waker_comm[0] = 0;
	st->parts.used = 0;
	st->out_key = phase == CALL_OUTSIDE ? -1 : (s32)nr_key(nr, task_in_compat_call(task));
	who_renew(st, task);
}

static __noinline int switch_out(void *ctx, struct task_struct *prev, struct thread_state *st, u64 blocks)
{
	u32 kind = OUT_VALID;
	s32 nr;
	int phase;

	if (!st)
		return 0;
	if (st->out_kind & OUT_VALID)
		switch_hidden(prev, st);
	first_run_hidden(prev, st);
	hot_flush(st);
	spliced_ask(st);
	if (!regs_above)
		regs_learn(st, prev);
	phase = call_phase(prev, &nr);
	if (prev->flags & PF_KTHREAD) {
		phase = CALL_OUTSIDE;
		nr = -1;
	}
	phase = (int)forgotten(phase, st->flags);
	nr = (s32)forgotten(nr, st->flags);
	/* It was stopped in it, and goes on: the program has made one call. */
	if (nr == NR_RESTART_SYSCALL && st->flags & WATCH_SPLICED && st->call.in_call)
		nr = st->call.nr;
	st->out_nr = nr;
	if (blocks) {
		kind |= OUT_BLOCKED;
		/* Work done on the way out (a delayed close, a job-control
		 * stop) belongs to the call that caused it. */
		if (phase != CALL_OUTSIDE)
			kind |= spliced_is_untold(st, nr) ? OUT_IN_CALL | OUT_UNTOLD : OUT_IN_CALL;
		sleep_open(prev, st, phase, nr);
		st->stack_base = (u64)prev->stack;
		st->out_site = site_identify(ctx, st, phase == CALL_OUTSIDE ? -1 : nr);
		if (st->flags & (WATCH_ACCOUNT | WATCH_SLOT))
			wait_begin(st);
		if (st->held_task)
			place_holding(st);
	} else if (phase == CALL_RUNNING) {
		kind |= OUT_IN_CALL;
	}
	st->object_slept = 0;
	/* What the runtime calls within a spliced call is not what that is about. */
	if (st->flags & WATCH_DETAILS && phase != CALL_OUTSIDE &&
	    (!(st->flags & WATCH_SPLICED) || st->call.nr == nr))
		object_leave(st, nr_key(nr, task_in_compat_call(prev)), task_in_compat_call(prev),
			     phase == CALL_RUNNING, blocks);
	/* Who waits for a page stands in a queue of the kernel's image. */
	if (blocks && st->flags & WATCH_DETAILS && !st->lock && st->queue.many)
		object_of_fault(st);
	if (st->flags & WATCH_SLOT)
		record_away(st, nr);
	st->out_run_delay = prev->sched_info.run_delay;
	st->out_clock = runqueue_clock(prev);
	st->out_ns = bpf_ktime_get_ns();
	st->slept_ns = st->out_ns;
	st->called_ns = st->call.in_call ? call_called(&st->call, st->out_ns) : st->call.called_ns;
	if (st->life.serial)
		life_leave(prev, st, kind);
	/* Last: whoever wakes the thread from another CPU looks at it first. */
	barrier();
	*(volatile u32 *)&st->out_kind = kind;
	return 0;
}

/* How long a thread that has been woken waits for a CPU by now. */
static __always_inline u64 queued_ns(const struct task_struct *task)
{
	u64 queued = task->sched_info.last_queued;
	s64 since;

	if (!queued || !runqueue_clock_exists())
		return 0;
	since = (s64)(runqueue_clock(task) - queued);
	return since > 0 ? since : 0;
}

/* A thread that its watcher had stopped goes on, and its life begins. */
static __noinline int stood_end(struct task_struct *task, struct thread_state *st, u64 now)
{
	struct critical *path;

	if (!st)
		return 0;
	st->spliced.stood = STOOD_BEHIND;
	st->out_kind = OUT_NONE;
	st->out_ns = now;
	st->past.since_ns = now;
	st->life.since_ns = now;
	st->life.stopped = 0;
	st->rest.resting = 0;
	path = critical_of(task, st);
	if (path)
		path->at_ns = now;
	if (st->life.serial)
		life_first_run(task, st, now);
	return 0;
}

/* `now`: 0, or what the clock was read as a moment ago. */
static __noinline int switch_in(struct task_struct *next, struct thread_state *st, u64 now)
{
	u64 away, wait;

	if (!st)
		return 0;
	if (!(st->out_kind & OUT_VALID)) {
		/* The first time that it is seen. */
		now = bpf_ktime_get_ns();
		if (st->life.serial && st->life.phase == LIFE_NEW)
			life_first_run(next, st, now);
		if (!st->past.since_ns)
			st->past.since_ns = now;
		return 0;
	}
	if (!now)
		now = bpf_ktime_get_ns();
	if (st->spliced.stood == STOOD_STILL)
		return stood_end(next, st, now);
	away = now - st->out_ns;
	/* sched_info_arrive() runs after this tracepoint, so the wait that
	 * ends now is added here the way it will do it. */
	wait = next->sched_info.run_delay - st->out_run_delay + queued_ns(next);
	return away_add(next, st, away, wait);
}

/* From 5.18 on: (preempt, prev, next, prev_state). */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	struct thread_state *st;
	u64 anchor, now = 0;

	if (task_stored(prev)) {
		st = bpf_task_storage_get(&threads, prev, 0, 0);
		if (st) {
			/* Through the map a pointer becomes a number. */
			st->anchor = (u64)&anchor;
			switch_out(ctx, prev, st, !preempt && prev_state != 0);
			now = st->out_ns;
		}
	}
	if (task_stored(next)) {
		st = bpf_task_storage_get(&threads, next, 0, 0);
		if (st)
			switch_in(next, st, now);
	}
	return 0;
}

/* The call that the running thread wakes somebody from. */
static __always_inline void waking_call(struct thread_state *st, struct waking *waking, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id();
	const struct cpu_hot *hot = &cpu_hot[cpu & (HOT_CPUS - 1)];
	const struct open_call *call = &st->call;

	spliced_ask(st);
	/* A spliced thread that ends has been looked at as it began to, and may have no memory any more. */
	waking->told = st->flags & (WATCH_BOUNDARY | WATCH_SLOT_BOUNDARY) || st->spliced.is_told ||
		       (st->spliced.block && bpf_get_current_task_btf()->flags & PF_EXITING);
	if (st->hot_regs && hot->regs == st->hot_regs)
		call = &hot->call;
	waking->call_ns = call->in_call ? call->enter_ns : 0;
	waking->called_ns = call->in_call ? call_called(call, now) : call->called_ns;
}

/*
 * ... by somebody without a past, and who held what it waited for as it fell asleep was another
 * one: most of such waiting was for that one, and who wakes it has waited as well, mostly.
 */
static __noinline int woken_unknown(struct thread_state *st, u64 now)
{
	struct chain_key root;

	if (!st)
		return 0;
	chain_key_root(&root, DEBOX_CHAIN_WOKEN, st->holder.nr < 0 ? -1 : (s32)nr_key(st->holder.nr, 0));
	/* A watcher that sees all was told a name that may be anybody's. */
	if (st->flags & WATCH_ACCOUNT && !(account_watcher(st)->flags & WATCHER_PRIVILEGED))
		root.uid = st->who.uid;
	comm_copy(root.comm, st->holder.comm);
	st->chain_flags |= DEBOX_CHAIN_HELD;
	follow_ask(st->held_tid ? st->held_tid : st->held_tgid);
	return chain_rooted(st, chain_intern(&root, st->holder.pid), now);
}

/* Somebody whom nobody watches wakes `st`, in call `key`. (By itself for the sake of 6.1's stack.) */
static __noinline int woken_by_other(struct task_struct *self, struct thread_state *st, s32 key, u64 now)
{
	struct chain_key root;

	if (!st)
		return 0;
	chain_key_root(&root, DEBOX_CHAIN_WOKEN, key);
	root.uid = chain_owner(NULL, self);
	who_name(root.comm, self);
	follow_ask(self->pid);
	if (!(st->chain_flags & DEBOX_CHAIN_HELD) && st->holder.pid &&
	    st->holder.kind != DEBOX_HOLDER_READER)
		return woken_unknown(st, now);
	return chain_rooted(st, chain_intern(&root, pid_of(self)), now);
}

/* Somebody, not an interrupt, wakes `st`. */
static __noinline int woken_by(struct task_struct *woken, struct thread_state *st, struct thread_state *waker,
			       s32 nr)
{
	struct task_struct *self = bpf_get_current_task_btf();
	struct waking waking = {};
	u64 now = bpf_ktime_get_ns();
	s32 key = nr < 0 ? -1 : (s32)nr_key(nr, task_in_compat_call(self));

	if (!st)
		return 0;
	st->limited = 0;
	/* A lock of a file is a process's, others are a thread's. */
	st->chain_flags =
		(self->pid == st->held_tid || self->tgid == st->held_tgid ? DEBOX_CHAIN_HELD : 0) |
		(waker && waker->flags & st->flags & WATCH_ACCOUNT && waker->account == st->account ?
			 DEBOX_CHAIN_OWN :
			 0) |
		chain_rests(st);
	if (waker) {
		who_renew(waker, self);
		waker->mattered_ns = now;
		waking.key = key;
		waking_call(waker, &waking, now);
		waker->chain_stack = 0;
		if (key >= 0 && waker->flags & st->flags & WATCH_DETAILS && waker->account == st->account &&
		    past_running(&waker->past, st->out_ns, now) >= PLACE_RUN_NS)
			place_waking(self, waker);
		critical_wake(self, waker, woken, st);
		return chain_woken(st, waker, now, &waking);
	}
	return woken_by_other(self, st, key, now);
}

/*
 * Who wakes a watched thread. In an interrupt `current` is a bystander: the
 * waker is then a device, a timer or the network, pid 0. Interrupts run on a
 * stack of their own, or, when they hit user mode, on the task's with orig_ax =
 * -1; so a waker is believed when it stands on its own stack and is a kernel
 * thread or inside a system call. (This program's own stack stays below 64
 * bytes, see site.h: its variable lies on the stack that it was called on.)
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *p)
{
	struct thread_state *st;
	struct task_struct *self;
	bool sleeps, interrupt;
	u64 here;
	s32 nr = -1;

	if (!task_stored(p))
		return 0;
	st = bpf_task_storage_get(&threads, p, 0, 0);
	if (!st)
		return 0;
	/* Who is asked what they waited for, and who is followed for that. */
	sleeps = st->flags & WATCH_EXPLAINED &&
		 (*(volatile u32 *)&st->out_kind & (OUT_VALID | OUT_BLOCKED)) == (OUT_VALID | OUT_BLOCKED);
	self = bpf_get_current_task_btf();
	st->waker_anchor = (u64)&here;
	st->waker_base = (u64)self->stack;
	/* Read back from the map, the pointer has become a number. */
	barrier();
	if (!(self->flags & PF_KTHREAD) && call_phase(self, &nr) == CALL_OUTSIDE)
		nr = -1;
	/* The idle task works for others only. */
	interrupt = !self->pid || st->waker_anchor - st->waker_base >= THREAD_SIZE ||
		    (nr < 0 && !(self->flags & PF_KTHREAD));
	if (interrupt && nr >= 0 && interrupt_sent_by(self->pid))
		interrupt = false;
	st->woken_ns = bpf_ktime_get_ns();
	if (interrupt) {
		st->waker_pid = 0;
		st->waker_tgid = 0;
		st->waker_nr = -1;
		__builtin_memcpy(st->waker_comm, "(interrupt)\0\0\0\0\0", DEBOX_COMM_LEN);
		if (sleeps) {
			u32 root = interrupt_root(p);

			st->chain_flags = chain_rests(st);
			/* A time that it lets pass since then (to look again) has brought nothing either. */
			if (!root || root != chain_plain[DEBOX_CHAIN_TIMER])
				st->limited = root && root == chain_plain[DEBOX_CHAIN_LIMIT];
			chain_rooted(st, root, bpf_ktime_get_ns());
		}
		return 0;
	}
	if (sleeps) {
		struct thread_state *waker =
			task_stored(self) ? bpf_task_storage_get(&threads, self, 0, 0) : NULL;

		/* Or its last sleep is not in its past yet. */
		if (waker && waker->out_kind & OUT_VALID)
			switch_hidden(self, waker);
		first_run_hidden(self, waker);
		woken_by(p, st, waker, nr);
	} else if (st->life.serial && !(*(volatile u32 *)&st->out_kind & OUT_VALID) && p != self &&
		   task_stored(self)) {
		critical_wake_early(self, p, st);
	}
	if (name_withheld(st, task_read(self)->real_cred->uid.val)) {
		st->waker_pid = 0;
		st->waker_tgid = 0;
		st->waker_nr = -1;
		__builtin_memcpy(st->waker_comm, "(other user)\0\0\0\0", DEBOX_COMM_LEN);
		return 0;
	}
	st->waker_pid = pid_of(self);
	st->waker_tgid = tgid_of(self);
	st->waker_nr = nr;
	comm_copy(st->waker_comm, self->comm);
	return 0;
}

#endif
