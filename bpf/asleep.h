/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What of a thread that is asleep already when its watch begins, or still when
 * somebody asks?
 *
 * Its sleep and its call count from the moment of binding: no switch showed them
 * begin. Where it sleeps is asked of its stack, from outside, before: the user side
 * gives that stack a number among the sites (`asleep_sites`), which holds as long as
 * the thread has not been switched since. A thread that wakes while it is bound keeps
 * what the scheduler's books tell, as after a switch that was hidden.
 */
#ifndef DEBOX_ASLEEP_H
#define DEBOX_ASLEEP_H

#include "boundary.h"
#include "sleep.h"
#include "state.h"
#include "trust.h"

#define ASLEEP_MAX 4096

struct asleep_site {
	u64 switches;
	u32 site;
	u32 reserved;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, ASLEEP_MAX);
	__type(key, u32); /* thread */
	__type(value, struct asleep_site);
} asleep_sites SEC(".maps");

/* As asleep_threads (thread.h) writes it. */
struct asleep_stack {
	u32 tid;
	u32 depth;
	u64 switches;
	u64 frames[STACK_DEPTH];
} asleep_stack;

static __always_inline bool task_sleeps(const struct task_struct *task)
{
	u32 state = task->__state;

	return state && !(state & TASK_DEAD) && !task->on_cpu && !runqueue_has(task) && !task->exit_state;
}

static __always_inline u64 task_switches(const struct task_struct *task)
{
	return task->nvcsw + task->nivcsw;
}

/* A call that is open as its watch begins. */
static __always_inline void call_begun_before(struct task_struct *task, struct thread_state *st, s32 nr, u64 now)
{
	struct debox_account *account = account_of(st);

	call_begin(&st->call, task, nr, now);
	if (account)
		__sync_fetch_and_add(&account->calls_begun_before, 1);
}

/* It was woken and has no CPU yet: what it slept is in the sums of the account that it comes from, and so is what it
 * has waited since. */
static __always_inline void woken_begin(struct task_struct *task, struct thread_state *st)
{
	u64 switches = task_switches(task);

	if (!(st->out_kind & OUT_VALID) || task->on_cpu)
		return;
	st->out_run_delay = task->sched_info.run_delay;
	st->out_clock = runqueue_clock(task);
	st->out_ns = bpf_ktime_get_ns();
	barrier();
	*(volatile u32 *)&st->out_kind = st->out_kind & ~OUT_BLOCKED;
	barrier();
	if (task->on_cpu || task_switches(task) != switches)
		st->out_kind = OUT_NONE;
}

/* The watch of a thread begins: what is it in the middle of? */
static __noinline int asleep_begin(struct task_struct *task, struct thread_state *st, u32 flags)
{
	u64 switches, now;
	struct asleep_site *told;
	u32 tid, kind = OUT_VALID | OUT_BLOCKED;
	int phase;
	s32 nr;

	if (!st)
		return 0;
	if (!task_sleeps(task)) {
		woken_begin(task, st);
		return 0;
	}
	switches = task_switches(task);
	phase = call_phase(task, &nr);
	now = bpf_ktime_get_ns();
	if (phase != CALL_OUTSIDE)
		kind |= OUT_IN_CALL;
	if (flags & WATCH_BOUNDARY && phase == CALL_RUNNING)
		call_begun_before(task, st, nr, now);
	/* A thread that was followed sleeps at a place that is known. */
	if (!(st->out_kind & OUT_VALID)) {
		tid = task->pid;
		told = bpf_map_lookup_elem(&asleep_sites, &tid);
		st->out_site = told && told->switches == switches ? told->site : DEBOX_SITE_NONE;
		st->out_signature = 0;
		st->out_nr = nr;
		st->slept_ns = now;
		sleep_open(task, st, phase, nr);
	}
	st->out_run_delay = task->sched_info.run_delay;
	st->out_clock = runqueue_clock(task);
	st->out_ns = now;
	st->called_ns = st->call.called_ns;
	if (!st->past.since_ns)
		st->past.since_ns = now;
	barrier();
	*(volatile u32 *)&st->out_kind = kind;
	barrier();
	/* It has run meanwhile: whatever is true of it now, this is not. */
	if (task->on_cpu || task_switches(task) != switches) {
		st->out_kind = OUT_NONE;
		st->call.in_call = 0;
	}
	return 0;
}

/* Which threads of an account live, and for how long do they do what they do now? */
u32 away_account;
/* One iterator runs at a time: the user side has one thread for them. */
struct away_of {
	struct debox_away away;
	u64 account; /* of a thread that another account takes, see thread.h */
} away_now;

/* Its time on a CPU in calls, asked from another CPU. */
static __always_inline u64 called_there(const struct task_struct *task, const struct thread_state *st, u64 now)
{
	const struct cpu_hot *hot = &cpu_hot[task->thread_info.cpu & (HOT_CPUS - 1)];
	const struct open_call *call = &st->call;

	/* What a spliced thread does on a CPU is known when it looks itself. */
	if (st->flags & WATCH_SPLICED && task->on_cpu)
		return st->called_ns;
	if (st->hot_regs && hot->regs == st->hot_regs)
		call = &hot->call;
	return call->in_call ? call_called(call, now) : call->called_ns;
}

/* How long a thread that went to sleep so long ago has waited for a CPU since it was woken; 0: it sleeps. */
static __always_inline u64 woken_queued_ns(const struct task_struct *task, const struct thread_state *st, u64 away)
{
	if (!task->on_rq || task->__state)
		return 0;
	return wait_since_woken(st, away, queued_ns(task));
}

/* How its life is split from when it was last counted up to now. It may run meanwhile: a
 * copy is split, whose parts add up whatever they are. */
static __noinline int life_now(struct task_struct *task, struct thread_state *st, u64 now, u64 off)
{
	const struct debox_lives *lives;
	struct life life;
	u64 away, queued, called_ns = st ? st->called_ns : 0;

	if (!st || !st->life.serial)
		return 0;
	life = st->life;
	if (off) {
		away = now - st->out_ns;
		queued = away;
		if (st->out_kind & OUT_BLOCKED) {
			queued = woken_queued_ns(task, st, away);
		}
		if (life.stopped)
			life.stopped_ns += away - queued;
		else if (st->out_kind & OUT_IN_CALL)
			life.blocked_ns += away - queued;
		else
			life.outside_ns += away - queued;
		if (st->rest.resting == REST_YES)
			life.rest_ns += away - queued;
		life.runq_ns += queued;
	} else if (life.phase == LIFE_NEW && !task->on_cpu) {
		/* Bound, or cloned, while it waited for a CPU, and it has not had one since. */
		life.runq_ns += now > life.since_ns ? now - life.since_ns : 0;
	} else {
		called_ns = called_there(task, st, now);
	}
	life_split(&away_now.away.life, &life, now, called_ns);
	life_counted(&away_now.away.life, &life, task);
	away_now.away.program = life.program;
	lives = lives_here(st);
	if (lives && lives->rows_used >= DEBOX_LIVES_ALONE)
		away_now.away.cgroup = life_group(task);
	away_now.away.flags |= DEBOX_AWAY_LIFE;
	return 0;
}

/* What a thread is in the middle of, into away_now; 0: there is nothing to tell. Not of one that
 * its watcher may see no more. */
static __noinline int away_look(struct task_struct *task, struct thread_state *st)
{
	struct debox_away *now_is = &away_now.away;
	u64 now, away;
	u32 kind;

	if (!task || !st)
		return 0;
	kind = *(volatile u32 *)&st->out_kind;
	now = bpf_ktime_get_ns();
	__builtin_memset(&away_now, 0, sizeof(away_now));
	now_is->pid = tgid_of(task);
	now_is->tid = pid_of(task);
	if (st->flags & WATCH_DETAILS)
		life_now(task, st, now, kind & OUT_VALID && !task->on_cpu);
	if (!(kind & OUT_VALID) || task->on_cpu)
		return now_is->flags != 0;
	now_is->flags |= DEBOX_AWAY_OFF;
	away = now - st->out_ns;
	now_is->site = kind & OUT_BLOCKED ? st->out_site : DEBOX_SITE_NONE;
	now_is->key = DEBOX_NR_OUTSIDE;
	comm_copy(now_is->comm, task->comm);
	now_is->runq_ns = away;
	if (kind & OUT_BLOCKED) {
		now_is->flags |= DEBOX_AWAY_ASLEEP | chain_rests(st) << DEBOX_AWAY_LINK_SHIFT;
		now_is->runq_ns = woken_queued_ns(task, st, away);
		now_is->blocked_ns = away - now_is->runq_ns;
		now_is->asleep_ns = now_is->blocked_ns;
	}
	if (st->flags & WATCH_BOUNDARY) {
		if (st->call.in_call) {
			now_is->flags |= DEBOX_AWAY_CALL;
			now_is->key = st->call.key;
			now_is->wall_ns = now - st->call.enter_ns;
			now_is->blocked_ns += st->call.blocked_ns;
			now_is->runq_ns += st->call.runq_ns;
			now_is->irq_ns = st->call.irq_ns;
		}
	} else if (st->flags & WATCH_SPLICED && st->call.in_call &&
		   (st->spliced.told.timed == SPLICE_TIMED || st->spliced.told.timed == SPLICE_UNSTAMPED)) {
		/* What it has waited before is in the sums already. */
		now_is->flags |= DEBOX_AWAY_CALL | DEBOX_AWAY_SPLICED;
		now_is->key = st->call.key;
		now_is->wall_ns = now - st->call.enter_ns;
	} else if (kind & OUT_IN_CALL) {
		now_is->key = nr_key(st->out_nr, task_in_compat_call(task));
	}
	return 1;
}

SEC("iter/task")
int away_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;

	if (!task || !task_stored(task))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || !(st->flags & WATCH_ACCOUNT) || st->account != away_account)
		return 0;
	if (task->exit_state || !account_trusted(task, st))
		return 0;
	if (away_look(task, st))
		bpf_seq_write(ctx->meta->seq, &away_now.away, sizeof(away_now.away));
	return 0;
}

#endif
