/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where did the time of threads go, and what did the end of a process depend on?
 *
 * The arithmetic is critical.h's. Here: when a thread's life begins, is split anew (a new
 * name: exec) and ends, in whose row it is counted, and who takes over whose critical
 * path. Both are kept for threads of accounts with details.
 *
 * Who writes what: `life` of a thread is written by itself, or on the CPU that it leaves
 * or gets; `critical` too, and by whoever wakes it, while it sleeps (see chain.h).
 */
#ifndef DEBOX_LIFE_H
#define DEBOX_LIFE_H

#include "state.h"
#include "row.h"
#include "spliced.h"

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct critical);
} criticals SEC(".maps");

static __always_inline struct debox_lives *lives_of(u32 account)
{
	u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&account_lives, &account);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

/* NULL if the thread has no life in this account: its number is another's now. */
static __always_inline struct debox_lives *lives_here(const struct thread_state *st)
{
	struct debox_lives *lives = st->life.serial ? lives_of(st->account) : NULL;

	return lives && lives->serial == st->life.serial ? lives : NULL;
}

/* ---- names and rows */

struct life_search {
	struct debox_lives *lives;
	u64 key;
	u32 found;
	u32 makes;
};

static long program_try(u32 i, struct life_search *s)
{
	u32 number = (row_place(s->key) + i) & (DEBOX_PROGRAMS_MAX - 1);

	if (!number || !row_is_its(&s->lives->programs[number].key, s->key))
		return 0;
	s->found = number;
	return 1;
}

/* The number of a name; 0: it found none. */
VERIFIED_ONCE u32 program_number(struct debox_lives *lives, const struct comm_text *comm)
{
	struct life_search s = { .lives = lives };
	const u64 *words = (const u64 *)comm;
	u64 key;

	if (!lives || !comm)
		return 0;
	key = words[0] * 0x9e3779b97f4a7c15ull;
	s.key = (key ^ key >> 32 ^ words[1]) * 0xbf58476d1ce4e5b9ull | 1ull << 63;
	bpf_loop(ROW_PROBES, program_try, &s, 0);
	if (s.found)
		comm_copy(lives->programs[s.found & (DEBOX_PROGRAMS_MAX - 1)].comm, comm->text);
	else
		__sync_fetch_and_add(&lives->programs_dropped, 1);
	return s.found;
}

static long life_row_try(u32 i, struct life_search *s)
{
	u32 number = (row_place(s->key) + i) & (DEBOX_LIVES_MAX - 1);
	u64 found = s->lives->rows[number].key;

	if (found != s->key) {
		if (found || !s->makes)
			return 0;
		__sync_fetch_and_add(&s->lives->rows_used, 1);
		if (!row_is_its(&s->lives->rows[number].key, s->key))
			return 0;
	}
	s->found = number;
	return 1;
}

/* Finds the row of a key, or makes it while fewer than `most` are used; NONE: there is none. */
VERIFIED_ONCE u32 life_row_find(struct debox_lives *lives, u64 key, u32 most)
{
	struct life_search s = { .lives = lives, .key = key, .found = NONE };

	if (!lives)
		return NONE;
	s.makes = lives->rows_used < most;
	bpf_loop(ROW_PROBES, life_row_try, &s, 0);
	return s.found;
}

#define LIFE_KEY_USED (1ull << 63)

static __always_inline u64 life_key(u32 program, u32 tgid)
{
	return LIFE_KEY_USED | (u64)program << 32 | tgid;
}

/* The control group of a process, by number; 0: not known. (Not a part of its callers, whose stacks it would add to.) */
static __noinline u64 life_group(const struct task_struct *task)
{
	if (!task || !bpf_core_field_exists(task->cgroups))
		return 0;
	return BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
}

/*
 * The row of a process's threads of one name. Where it has none, and rows become rare: of many processes' in
 * its control group, and then in all of them.
 */
static __always_inline struct debox_life *life_row(struct debox_lives *lives, u32 program, u32 tgid,
						   const struct task_struct *task)
{
	u32 group, at = life_row_find(lives, life_key(program, tgid), DEBOX_LIVES_ALONE);

	if (at == NONE) {
		group = (u32)life_group(task);
		if (group)
			at = life_row_find(lives, life_key(program, group) | DEBOX_LIFE_GROUP, DEBOX_LIVES_GROUPED);
	}
	if (at == NONE)
		at = life_row_find(lives, life_key(program, 0), DEBOX_LIVES_MAX);
	return at == NONE ? NULL : &lives->rows[at & (DEBOX_LIVES_MAX - 1)];
}

static __always_inline void life_time_add(struct debox_life_time *to, const struct debox_life_time *time)
{
	__sync_fetch_and_add(&to->life_ns, time->life_ns);
	__sync_fetch_and_add(&to->own_ns, time->own_ns);
	__sync_fetch_and_add(&to->calls_ns, time->calls_ns);
	__sync_fetch_and_add(&to->exit_ns, time->exit_ns);
	__sync_fetch_and_add(&to->blocked_ns, time->blocked_ns);
	__sync_fetch_and_add(&to->rest_ns, time->rest_ns);
	__sync_fetch_and_add(&to->outside_ns, time->outside_ns);
	__sync_fetch_and_add(&to->stopped_ns, time->stopped_ns);
	__sync_fetch_and_add(&to->runq_ns, time->runq_ns);
	__sync_fetch_and_add(&to->minor_faults, time->minor_faults);
	__sync_fetch_and_add(&to->major_faults, time->major_faults);
	__sync_fetch_and_add(&to->user_ns, time->user_ns);
	__sync_fetch_and_add(&to->system_ns, time->system_ns);
}

/* ---- lives */

/* The time on a CPU in calls, until now, of the thread that runs here. */
static __always_inline u64 called_here(struct thread_state *st, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id();
	const struct cpu_hot *hot = &cpu_hot[cpu & (HOT_CPUS - 1)];
	const struct open_call *call = &st->call;

	spliced_ask(st);
	if (st->hot_regs && hot->regs == st->hot_regs)
		call = &hot->call;
	return call->in_call ? call_called(call, now) : call->called_ns;
}

#define LIFE_CAME_FIRST 1u  /* as the first thread of a process */
#define LIFE_CAME_THREAD 2u /* as another one */
#define LIFE_CAME_EXEC 4u

/* Somebody comes to a row. */
static __noinline int life_row_come(struct debox_lives *lives, const struct task_struct *task, u32 program, u32 how)
{
	u32 tgid = task ? tgid_of(task) : 0;
	struct debox_life *row;
	u64 none = 0;

	if (!lives || !task)
		return 0;
	row = life_row(lives, program, tgid, task);
	if (!row)
		return 0;
	if (!row->first_ns) {
		none = bpf_ktime_get_ns();
		__sync_val_compare_and_swap(&row->first_ns, 0, none);
		if ((u32)row->key && !(row->key & DEBOX_LIFE_GROUP))
			row->parent = tgid_of(task_read(task)->real_parent);
	}
	if ((u32)row->key)
		row->cgroup = life_group(task);
	__sync_fetch_and_add(&row->threads, 1);
	if (how & LIFE_CAME_FIRST)
		__sync_fetch_and_add(&row->processes, 1);
	if (how & LIFE_CAME_EXEC)
		__sync_fetch_and_add(&row->execs, 1);
	return 0;
}

/* An interrupt landed in the life of a thread, whose stretch goes on. */
VERIFIED_ONCE int life_interrupt(const struct thread_state *st, u32 tgid, u64 ns, u32 in_call)
{
	struct debox_lives *lives;
	struct debox_life *row;

	if (!st || st->life.phase == LIFE_ENDING)
		return 0;
	lives = lives_here(st);
	if (!lives)
		return 0;
	row = life_row(lives, st->life.program, tgid, bpf_get_current_task_btf());
	if (row)
		__sync_fetch_and_add(in_call ? &row->time.irq_ns : &row->time.irq_outside_ns, ns);
	return 0;
}

/* What the kernel counts of a thread itself, since the stretch began. */
static __always_inline void life_counted(struct debox_life_time *time, const struct life *life,
					 const struct task_struct *task)
{
	time->minor_faults = task->min_flt - life->min_flt;
	time->major_faults = task->maj_flt - life->maj_flt;
	time->user_ns = task->utime - life->user_ns;
	time->system_ns = task->stime - life->system_ns;
}

/* A stretch begins. */
static __always_inline void life_renew(struct thread_state *st, const struct task_struct *task, u64 now, u64 called_ns)
{
	struct life *life = &st->life;

	life->since_ns = now;
	life->called_ns = called_ns;
	life->min_flt = task->min_flt;
	life->maj_flt = task->maj_flt;
	life->user_ns = task->utime;
	life->system_ns = task->stime;
	life->blocked_ns = 0;
	life->rest_ns = 0;
	life->outside_ns = 0;
	life->stopped_ns = 0;
	life->runq_ns = 0;
	__builtin_memset(&st->rest, 0, sizeof(st->rest));
}

/* A stretch of a life ends now, and goes into its row. */
static __noinline int life_add(struct thread_state *st, const struct task_struct *task, u64 now, u64 called_ns)
{
	struct debox_lives *lives;
	struct debox_life_time time = {};
	struct debox_life *row;
	struct life *life;

	if (!st || !task)
		return 0;
	lives = lives_here(st);
	if (!lives)
		return 0;
	life = &st->life;
	life_split(&time, life, now, called_ns);
	life_counted(&time, life, task);
	row = life_row(lives, life->program, tgid_of(task), task);
	if (row) {
		life_time_add(&row->time, &time);
		row->last_ns = now;
	} else {
		__sync_fetch_and_add(&lives->rows_dropped, 1);
		life_time_add(&lives->dropped, &time);
	}
	life_renew(st, task, now, called_ns);
	return 0;
}

static __always_inline void life_start(struct thread_state *st, const struct task_struct *task, u64 now, u32 phase)
{
	life_renew(st, task, now, st->call.called_ns);
	st->life.phase = phase;
}

/* ---- critical paths */

static __always_inline struct critical *critical_of(struct task_struct *task, const struct thread_state *st)
{
	struct critical *path;

	if (!st->life.serial)
		return NULL;
	path = bpf_task_storage_get(&criticals, task, 0, 0);
	return path && path->serial == st->life.serial ? path : NULL;
}

VERIFIED_ONCE int critical_add_slow(struct critical *path, u64 key, u64 ns)
{
	if (path)
		critical_put_slow(path, key, ns);
	return 0;
}

static __always_inline void critical_add(struct critical *path, u64 key, u64 ns)
{
	if (ns && !critical_put(path, key, ns))
		critical_add_slow(path, key, ns);
}

/* It has run until now. */
static __always_inline void critical_run(struct critical *path, const struct life *life, u64 now, u64 called_ns)
{
	u64 ran, calls = called_ns - path->called_ns;

	if (now <= path->at_ns)
		return;
	ran = now - path->at_ns;
	if (life->phase == LIFE_ENDING) {
		critical_add(path, critical_key(life->program, DEBOX_CRITICAL_EXIT, 0), ran);
	} else {
		if (calls > ran)
			calls = ran;
		critical_add(path, critical_key(life->program, DEBOX_CRITICAL_CALLS, 0), calls);
		critical_add(path, critical_key(life->program, DEBOX_CRITICAL_OWN, 0), ran - calls);
	}
	path->at_ns = now;
	path->called_ns = called_ns;
}

/* `to` goes on from where `from` is. */
static __always_inline void critical_copy(struct critical *to, const struct critical *from)
{
	to->serial = from->serial;
	to->at_ns = from->at_ns;
	__builtin_memcpy(to->hint, from->hint, sizeof(to->hint));
	to->sums = from->sums;
}

/* The running thread wakes a sleeping one. */
VERIFIED_ONCE int critical_hand_on(struct critical *from, struct critical *to, struct thread_state *waker,
				   struct thread_state *st)
{
	u64 now = bpf_ktime_get_ns();

	if (!from || !to || !waker || !st)
		return 0;
	critical_run(from, &waker->life, now, called_here(waker, now));
	critical_copy(to, from);
	to->called_ns = st->called_ns;
	to->taken = 1;
	/* An earlier one is made up for by this. */
	st->woken_early_ns = 0;
	return 0;
}

static __always_inline void critical_wake(struct task_struct *self, struct thread_state *waker,
					  struct task_struct *woken, struct thread_state *st)
{
	struct critical *from, *to;

	if (!st->life.serial || waker->life.serial != st->life.serial)
		return;
	/*
	 * What it waited for did not come, and it has looked after other things since: what the woken one
	 * did before it slept is more to the point than that wait. (The Java machine stops all
	 * threads once a second, from a thread that has waited for work until then.) What it has
	 * done since then is in the chain of the sleep that it ends.
	 */
	if (waker->limited)
		return;
	from = critical_of(self, waker);
	to = critical_of(woken, st);
	if (from && to)
		critical_hand_on(from, to, waker, st);
}

/* How long it takes at most from deciding to sleep until the CPU is left. */
#define EARLY_NS 100000ull

/*
 * A thread that is about to sleep, and still on its CPU, is woken: what it goes on with is as
 * much the waker's doing as its own (a lock that is let go of just as somebody asks for it, as Python's
 * interpreter lock is, always). It changes no path until it leaves the CPU, or returns.
 */
static __noinline int critical_wake_early(struct task_struct *self, struct task_struct *woken,
					  struct thread_state *st)
{
	struct thread_state *waker = bpf_task_storage_get(&threads, self, 0, 0);

	if (!st || !waker || !woken->on_cpu)
		return 0;
	critical_wake(self, waker, woken, st);
	st->woken_early_ns = bpf_ktime_get_ns();
	return 0;
}

/* It was on its way to the sleep that is over now, or did not sleep at all then. */
static __always_inline void critical_early_end(struct critical *path, struct thread_state *st, u32 kind)
{
	u64 early = st->woken_early_ns;

	if (!early)
		return;
	st->woken_early_ns = 0;
	if (path && (!(kind & OUT_BLOCKED) || early > st->out_ns || st->out_ns - early > EARLY_NS))
		path->taken = 0;
}

/* A stretch off the CPU begins to be told: what was before it. */
VERIFIED_ONCE int critical_away(struct critical *path, struct thread_state *st, u32 kind)
{
	if (!st)
		return 0;
	critical_early_end(path, st, kind);
	if (path && !path->taken)
		critical_run(path, &st->life, st->out_ns, st->called_ns);
	return 0;
}

VERIFIED_ONCE int critical_part(struct critical *path, const struct thread_state *st, u32 at)
{
	const struct stretch *part;

	if (!path || !st || at >= PARTS_MAX)
		return 0;
	part = &st->parts.part[at];
	critical_add(path, critical_key(st->life.program, DEBOX_CRITICAL_BLOCKED, part->chain),
		     part->end_ns - part->begin_ns);
	path->at_ns += part->end_ns - part->begin_ns;
	return 0;
}

/* ... and ended now: what of it was not sleep was waiting for a CPU. */
VERIFIED_ONCE int critical_back(struct critical *path, struct thread_state *st, u64 now)
{
	if (!path || !st)
		return 0;
	if (!path->taken) {
		for (u32 i = 0; i < PARTS_MAX; i++) {
			if (i >= st->parts.used)
				break;
			critical_part(path, st, i);
		}
	}
	path->taken = 0;
	path->called_ns = st->called_ns;
	if (now > path->at_ns) {
		critical_add(path, critical_key(st->life.program, DEBOX_CRITICAL_RUNQ, 0), now - path->at_ns);
		path->at_ns = now;
	}
	return 0;
}

/* As far as the path of the process that it is about. */
static __always_inline void critical_tell(struct thread_state *st, struct task_struct *task, u64 now, u64 called_ns)
{
	struct debox_lives *lives = lives_here(st);
	struct critical *path = critical_of(task, st);

	if (!lives || !path)
		return;
	critical_run(path, &st->life, now, called_ns);
	if (tgid_of(task) != lives->critical_pid)
		return;
	lives->critical = path->sums;
	lives->end_ns = now;
}

/* ---- what happens to threads */

/* The watch of a thread begins: it has been bound. */
static __noinline int life_begin(struct task_struct *task, struct thread_state *st)
{
	struct debox_lives *lives;
	struct comm_text text = {};
	struct critical *path;
	u64 now = bpf_ktime_get_ns();

	if (!st)
		return 0;
	st->life.serial = 0;
	lives = lives_of(st->account);
	if (!lives)
		return 0;
	path = bpf_task_storage_get(&criticals, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!path)
		return 0;
	if (!lives->begin_ns) {
		lives->begin_ns = now;
		lives->critical_pid = tgid_of(task);
	}
	__builtin_memset(path, 0, sizeof(*path));
	path->serial = lives->serial;
	path->at_ns = now;
	path->called_ns = st->call.called_ns;
	__builtin_memcpy(text.text, task->comm, sizeof(text.text));
	st->life.program = program_number(lives, &text);
	life_start(st, task, now, LIFE_NEW);
	if (!(st->out_kind & OUT_VALID))
		st->out_run_delay = task->sched_info.run_delay;
	life_row_come(lives, task, st->life.program,
		      task->pid == task->tgid ? LIFE_CAME_FIRST : LIFE_CAME_THREAD);
	barrier();
	st->life.serial = lives->serial;
	return 0;
}

/* A thread with a life makes another one. */
static __noinline int life_fork(struct task_struct *parent, struct thread_state *from, struct task_struct *child,
				struct thread_state *to)
{
	struct debox_lives *lives;
	struct critical *path, *parents;
	u64 now;

	if (!from || !to)
		return 0;
	lives = lives_here(from);
	parents = critical_of(parent, from);
	if (!lives || !parents)
		return 0;
	path = bpf_task_storage_get(&criticals, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!path)
		return 0;
	now = bpf_ktime_get_ns();
	critical_run(parents, &from->life, now, called_here(from, now));
	critical_copy(path, parents);
	path->called_ns = 0;
	path->taken = 0;
	to->life.program = from->life.program;
	life_start(to, child, now, LIFE_NEW);
	life_row_come(lives, child, to->life.program,
		      child->pid == child->tgid ? LIFE_CAME_FIRST : LIFE_CAME_THREAD);
	to->life.serial = from->life.serial;
	return 0;
}

/* The running thread gets another name: by exec, or by itself. */
SEC("tp_btf/task_rename")
int BPF_PROG(task_rename, struct task_struct *task, const char *comm)
{
	struct debox_lives *lives;
	struct thread_state *st;
	struct comm_text text = {};
	struct critical *path;
	u64 now, called_ns;
	u32 program, execs;

	if (!task_stored(task) || task != bpf_get_current_task_btf())
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	lives = lives_here(st);
	path = critical_of(task, st);
	if (!lives || !path)
		return 0;
	bpf_probe_read_kernel_str(text.text, sizeof(text.text), comm);
	program = program_number(lives, &text);
	execs = BPF_CORE_READ_BITFIELD_PROBED(task, in_execve) ? LIFE_CAME_EXEC : 0;
	now = bpf_ktime_get_ns();
	/* The last look at a spliced thread that ends, too: up to 6.15 its memory is gone at its exit. */
	called_ns = called_here(st, now);
	/* Its own name: a spliced call is shown (spliced_end.h), or ends all, and what the thread does goes on. */
	if (!execs && program == st->life.program)
		return 0;
	critical_run(path, &st->life, now, called_ns);
	life_add(st, task, now, called_ns);
	st->life.program = program;
	life_row_come(lives, task, program, execs);
	return 0;
}

/* What is it called with? */
static __noinline int life_title(struct task_struct *task, struct thread_state *st)
{
	const struct mm_struct *mm;
	struct debox_lives *lives;
	struct debox_life *row;
	u64 begin, bytes;
	u8 first;

	if (!st)
		return 0;
	lives = lives_here(st);
	mm = task_read(task)->mm;
	if (!lives || !mm)
		return 0;
	row = life_row(lives, st->life.program, tgid_of(task), task);
	if (!row)
		return 0;
	begin = mm->arg_start;
	bytes = mm->arg_end - begin;
	if (bpf_probe_read_user(&first, 1, (const void *)begin))
		return 0;
	if (bytes > DEBOX_TITLE_LEN)
		bytes = DEBOX_TITLE_LEN;
	/* Other processes' in the same row: the last one stands. */
	__builtin_memset(row->title, 0, sizeof(row->title));
	if (bytes)
		bpf_probe_read_user(row->title, bytes, (const void *)begin);
	return 0;
}

/* It begins to end: what it does from now on is that. */
static __noinline int life_ending(struct task_struct *task, struct thread_state *st)
{
	u64 now, called_ns;

	if (!st || !st->life.serial)
		return 0;
	now = bpf_ktime_get_ns();
	called_ns = called_here(st, now);
	life_add(st, task, now, called_ns);
	critical_tell(st, task, now, called_ns);
	/* Programs write theirs anew. Its memory is there from 6.16 on. */
	if (task->pid == task->tgid)
		life_title(task, st);
	st->life.phase = LIFE_ENDING;
	return 0;
}

/* It has left the CPU for the last time. */
static __noinline int life_end(struct task_struct *task, struct thread_state *st)
{
	if (!st || !st->life.serial)
		return 0;
	life_add(st, task, st->out_ns, st->called_ns);
	critical_tell(st, task, st->out_ns, st->called_ns);
	st->life.serial = 0;
	return 0;
}

/* It is on a CPU for the first time since its life began: it waited for that. */
static __noinline int life_first_run(struct task_struct *task, struct thread_state *st, u64 now)
{
	struct critical *path;

	if (!st)
		return 0;
	if (!st->past.since_ns)
		past_add(&st->past, st->life.since_ns, now, 0, PAST_RUNQ);
	st->life.phase = LIFE_RUNS;
	st->life.runq_ns += now - st->life.since_ns;
	if (st->flags & WATCH_SPLICED)
		spliced_waits_first(st, now - st->life.since_ns);
	path = critical_of(task, st);
	if (path)
		critical_back(path, st, now);
	return 0;
}

/* ---- activities */

/*
 * Calls, by number, in which threads wait for something to come: read, poll, select,
 * pause, nanosleep, accept, recvfrom, recvmsg, readv, wait4, semop, msgrcv,
 * rt_sigtimedwait, rt_sigsuspend, futex, io_getevents, semtimedop, clock_nanosleep,
 * epoll_wait, mq_timedreceive, waitid, pselect6, ppoll, epoll_pwait, accept4, recvmmsg,
 * io_pgetevents, io_uring_enter, epoll_pwait2, futex_waitv.
 */
static const u64 rest_calls[8] = {
	1ull << 0 | 1ull << 7 | 1ull << 23 | 1ull << 34 | 1ull << 35 | 1ull << 43 | 1ull << 45 | 1ull << 47 |
		1ull << 19 | 1ull << 61,
	1ull << (65 - 64) | 1ull << (70 - 64),
	1ull << (128 - 128) | 1ull << (130 - 128),
	1ull << (202 - 192) | 1ull << (208 - 192) | 1ull << (220 - 192) | 1ull << (230 - 192) |
		1ull << (232 - 192) | 1ull << (243 - 192) | 1ull << (247 - 192),
	1ull << (270 - 256) | 1ull << (271 - 256) | 1ull << (281 - 256) | 1ull << (288 - 256) | 1ull << (299 - 256),
	1ull << (333 - 320),
	1ull << (426 - 384) | 1ull << (441 - 384),
	1ull << (449 - 448),
};

static __always_inline bool rest_call(u32 key)
{
	return key < DEBOX_NR_COMPAT && rest_calls[key >> 6 & 7] >> (key & 63) & 1;
}

/* Of those the ones that wait for many things at once: whoever rests there is an event loop. */
static const u64 loop_calls[8] = {
	1ull << 7 | 1ull << 23,
	0,
	0,
	1ull << (208 - 192) | 1ull << (232 - 192),
	1ull << (270 - 256) | 1ull << (271 - 256) | 1ull << (281 - 256),
	1ull << (333 - 320),
	1ull << (426 - 384) | 1ull << (441 - 384),
	0,
};

static __always_inline bool rest_is_loop(const struct rest *rest)
{
	u32 nr = rest->place.nr;

	return rest->place.visits >= REST_BELIEVED && loop_calls[nr >> 6 & 7] >> (nr & 63) & 1;
}

VERIFIED_ONCE int rest_asked(struct rest *rest, u64 sp, u64 ip, u32 key)
{
	return rest ? rest_visit(rest, sp, ip, key) : REST_NO;
}

/* The thread goes to sleep in a call, with nothing in its way that somebody holds. */
static __noinline int rest_sleep(struct task_struct *task, struct thread_state *st)
{
	u32 key;
	u64 sp, ip;

	if (!st)
		return 0;
	key = (u32)st->out_key;
	if (st->holder.kind != DEBOX_HOLDER_NONE || !rest_call(key))
		return 0;
	if (kernel_word_is_load() && regs_above) {
		u64 at = (u64)task->stack + regs_above;

		sp = KERNEL_WORD(struct pt_regs, at, sp);
		ip = KERNEL_WORD(struct pt_regs, at, ip);
	} else {
		struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

		sp = regs->sp;
		ip = regs->ip;
	}
	st->rest.resting = rest_asked(&st->rest, sp, ip, key);
	return 0;
}

static __always_inline u64 life_off(const struct life *life)
{
	return life->blocked_ns + life->outside_ns + life->stopped_ns;
}

VERIFIED_ONCE u32 activity_row_find(struct debox_lives *lives, u64 key)
{
	u32 at = row_place(key);

	if (!lives)
		return NONE;
	for (u32 i = 0; i < ROW_PROBES; i++, at++)
		if (row_is_of(&lives->activities[at & (DEBOX_ACTIVITIES_MAX - 1)].key, key))
			return at & (DEBOX_ACTIVITIES_MAX - 1);
	return NONE;
}

/* The bucket of a latency. */
static __always_inline u32 activity_bucket(u64 ns)
{
	u32 bucket = 0;

	ns >>= DEBOX_ACTIVITY_MIN_EXP;
	if (ns >> 16) {
		bucket += 16;
		ns >>= 16;
	}
	if (ns >> 8) {
		bucket += 8;
		ns >>= 8;
	}
	if (ns >> 4) {
		bucket += 4;
		ns >>= 4;
	}
	if (ns >> 2) {
		bucket += 2;
		ns >>= 2;
	}
	if (ns >> 1) {
		bucket += 1;
		ns >>= 1;
	}
	bucket += ns & 1;
	return bucket < DEBOX_ACTIVITY_BUCKETS ? bucket : DEBOX_ACTIVITY_BUCKETS - 1;
}

/* It rests again: what it did since it was woken there is one activity. */
VERIFIED_ONCE int activity_end(struct thread_state *st)
{
	u64 total, off, runq, calls, cpu;
	struct debox_activity_bucket *bucket;
	struct debox_activity *row;
	struct debox_lives *lives;
	struct rest *rest;
	u32 at;

	if (!st)
		return 0;
	rest = &st->rest;
	lives = lives_here(st);
	if (!lives || st->out_ns < rest->begun_ns)
		return 0;
	at = activity_row_find(lives, LIFE_KEY_USED | (u64)st->life.program << 32 | rest->place.nr);
	if (at == NONE) {
		__sync_fetch_and_add(&lives->activities_dropped, 1);
		return 0;
	}
	total = st->out_ns - rest->begun_ns;
	off = life_off(&st->life) - rest->off_ns;
	runq = st->life.runq_ns - rest->runq_ns;
	calls = st->called_ns - rest->called_ns;
	cpu = total > off + runq ? total - off - runq : 0;
	if (calls > cpu)
		calls = cpu;
	row = &lives->activities[at & (DEBOX_ACTIVITIES_MAX - 1)];
	if (total > row->max_ns)
		row->max_ns = total;
	at = activity_bucket(total);
	if (at >= DEBOX_ACTIVITY_BUCKETS)
		return 0;
	bucket = &row->bucket[at];
	__sync_fetch_and_add(&bucket->count, 1);
	__sync_fetch_and_add(&bucket->total_ns, off + runq + cpu);
	__sync_fetch_and_add(&bucket->own_ns, cpu - calls);
	__sync_fetch_and_add(&bucket->calls_ns, calls);
	__sync_fetch_and_add(&bucket->blocked_ns, off);
	__sync_fetch_and_add(&bucket->runq_ns, runq);
	if (rest->longest_ns > bucket->longest_ns) {
		bucket->longest_ns = rest->longest_ns;
		bucket->chain = rest->chain;
	}
	return 0;
}

/* The thread leaves the CPU. (What it left with is asked of itself: another argument would
 * cost switch_out() a word of stack, of which 6.1 has none to spare.) */
static __noinline int life_leave(struct task_struct *task, struct thread_state *st, u64 kind)
{
	u32 state = task->__state;

	if (!st)
		return 0;
	if (st->life.phase == LIFE_NEW)
		st->life.phase = LIFE_RUNS;
	if (state & TASK_DEAD)
		return life_end(task, st);
	/* One that is being woken already has another state; its sleep is a short one. */
	st->life.stopped = state & (TASK_STOPPED | TASK_TRACED) && kind & OUT_BLOCKED;
	if (state & TASK_INTERRUPTIBLE && kind & OUT_BLOCKED && st->out_key >= 0)
		rest_sleep(task, st);
	if (st->rest.resting == REST_YES && st->rest.begun_ns)
		activity_end(st);
	return 0;
}

/* ---- the end of a stretch off the CPU */

VERIFIED_ONCE int life_away_add(struct thread_state *st, u32 kind, u64 blocked_ns, u64 runq_ns)
{
	if (!st)
		return 0;
	if (kind & OUT_BLOCKED && st->life.stopped)
		st->life.stopped_ns += blocked_ns;
	else if (kind & OUT_IN_CALL)
		st->life.blocked_ns += blocked_ns;
	else
		st->life.outside_ns += blocked_ns;
	if (st->rest.resting == REST_YES) {
		st->life.rest_ns += blocked_ns;
		st->rest.begun_ns = st->out_ns + blocked_ns;
		st->rest.off_ns = life_off(&st->life);
		st->rest.runq_ns = st->life.runq_ns;
		st->rest.called_ns = st->called_ns;
		st->rest.longest_ns = 0;
		st->rest.chain = 0;
	}
	st->life.runq_ns += runq_ns;
	return 0;
}

/* ... of which is known by now what it waited for. */
static __always_inline void activity_wait_add(struct thread_state *st, u64 blocked_ns)
{
	if (!st->rest.resting && blocked_ns > st->rest.longest_ns) {
		st->rest.longest_ns = blocked_ns;
		st->rest.chain = st->sleep_chain;
	}
	st->rest.resting = 0;
}

#endif
