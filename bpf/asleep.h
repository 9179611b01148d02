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

#define TASK_DEAD 0x80u
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

/*
 * Puts every thread of one process under watch; the user side sets `bind`
 * and reads the iterator to its end, twice, since a thread may be cloned by
 * one that was not watched yet.
 */
struct bind_request {
	u32 tgid;
	u32 flags;      /* to add */
	u32 segment;    /* with WATCH_SLOT */
	u32 account;    /* with WATCH_ACCOUNT */
	u32 bound;      /* out: threads newly bound */
	u32 exhausted;  /* out: threads that found no slot */
	u32 failed;     /* out: threads with no memory for their state */
	u32 seen;       /* out: threads of the process */
	u32 busy;       /* out: threads that another account keeps */
	u32 refused[4]; /* out: threads that the watcher may not see, by REFUSED_* */
	struct judged judged;
} bind;

/* As the iterator below writes it. */
struct asleep_stack {
	u32 tid;
	u32 depth;
	u64 switches;
	u64 frames[STACK_DEPTH];
} asleep_stack;

static __always_inline bool task_sleeps(const struct task_struct *task)
{
	u32 state = task->__state;

	return state && !(state & TASK_DEAD) && !task->on_cpu && !task->on_rq && !task->exit_state;
}

static __always_inline u64 task_switches(const struct task_struct *task)
{
	return task->nvcsw + task->nivcsw;
}

/* Where the sleeping threads of process bind.tgid sleep. */
SEC("iter/task")
int asleep_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	long bytes;

	if (!task || task->tgid != bind.tgid || !task_sleeps(task))
		return 0;
	asleep_stack.tid = task->pid;
	asleep_stack.switches = task_switches(task);
	bytes = bpf_get_task_stack(task, asleep_stack.frames, sizeof(asleep_stack.frames), 0);
	asleep_stack.depth = bytes > 0 ? (u64)bytes / 8 : 0;
	if (asleep_stack.depth)
		bpf_seq_write(ctx->meta->seq, &asleep_stack, sizeof(asleep_stack));
	return 0;
}

/* The watch of a thread begins: what is it in the middle of? */
static __noinline int asleep_begin(struct task_struct *task, struct thread_state *st, u32 flags)
{
	u64 switches, now;
	struct asleep_site *told;
	u32 tid, kind = OUT_VALID | OUT_BLOCKED;
	int phase;
	s32 nr;

	if (!st || !task_sleeps(task))
		return 0;
	switches = task_switches(task);
	phase = call_phase(task, &nr);
	now = bpf_ktime_get_ns();
	if (phase != CALL_OUTSIDE)
		kind |= OUT_IN_CALL;
	if (flags & WATCH_BOUNDARY && phase == CALL_RUNNING) {
		struct debox_account *account = account_of(st);

		call_begin(&st->call, task, nr, now);
		if (account)
			__sync_fetch_and_add(&account->calls_begun_before, 1);
	}
	/* A thread that was followed sleeps at a place that is known. */
	if (!(st->out_kind & OUT_VALID)) {
		tid = task->pid;
		told = bpf_map_lookup_elem(&asleep_sites, &tid);
		st->out_site = told && told->switches == switches ? told->site : DEBOX_SITE_NONE;
		st->out_signature = 0;
		st->out_nr = nr;
		st->out_key = phase == CALL_OUTSIDE ? -1 : (s32)nr_key(nr, task_in_compat_call(task));
		st->waker_pid = 0;
		st->waker_tgid = 0;
		st->waker_nr = -1;
		st->waker_comm[0] = 0;
		st->parts.used = 0;
		who_renew(st, task);
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

/* Which threads of an account are off the CPU now, and since when. */
struct away_request {
	u32 account;
	u32 reserved;
} away_request;
struct debox_away away_now;

SEC("iter/task")
int away_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;
	u64 now, away, queued;
	u32 kind;

	if (!task || !task->bpf_storage)
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || !(st->flags & WATCH_ACCOUNT) || st->account != away_request.account)
		return 0;
	kind = *(volatile u32 *)&st->out_kind;
	if (!(kind & OUT_VALID) || task->on_cpu || task->exit_state || !account_trusted(task, st))
		return 0;
	now = bpf_ktime_get_ns();
	away = now - st->out_ns;
	__builtin_memset(&away_now, 0, sizeof(away_now));
	away_now.pid = task->tgid;
	away_now.tid = task->pid;
	away_now.site = kind & OUT_BLOCKED ? st->out_site : DEBOX_SITE_NONE;
	away_now.key = DEBOX_NR_OUTSIDE;
	__builtin_memcpy(away_now.comm, task->comm, DEBOX_COMM_LEN);
	away_now.runq_ns = away;
	if (kind & OUT_BLOCKED) {
		away_now.flags |= DEBOX_AWAY_ASLEEP;
		away_now.runq_ns = 0;
		/* Woken, and not yet run. */
		queued = task->sched_info.last_queued;
		if (task->on_rq && queued && runqueue_clock_exists()) {
			s64 waited = (s64)(runqueue_clock(task) - queued);

			if (waited > 0)
				away_now.runq_ns = (u64)waited < away ? (u64)waited : away;
		}
		away_now.blocked_ns = away - away_now.runq_ns;
		away_now.asleep_ns = away_now.blocked_ns;
	}
	if (st->flags & WATCH_BOUNDARY) {
		if (st->call.in_call) {
			away_now.flags |= DEBOX_AWAY_CALL;
			away_now.key = st->call.key;
			away_now.wall_ns = now - st->call.enter_ns;
			away_now.blocked_ns += st->call.blocked_ns;
			away_now.runq_ns += st->call.runq_ns;
			away_now.irq_ns = st->call.irq_ns;
		}
	} else if (kind & OUT_IN_CALL) {
		away_now.key = nr_key(st->out_nr, task_in_compat_call(task));
	}
	bpf_seq_write(ctx->meta->seq, &away_now, sizeof(away_now));
	return 0;
}

#endif
