/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What does an account tell beyond its sums, and what happens at once when a
 * single call is remarkable?
 *
 * Culprits are noted at the end of each sleep. The rest happens at the end of
 * a call, and only for accounts whose client asked for it: thread rows, call
 * sites, events of slow calls, conditions with their signals. A signal that is
 * sent here is delivered before the call returns to the program, so that a
 * core shows the very path that made the call.
 *
 * The control page is the client's: every value read from it is bounded, and
 * all it can cause concerns threads of its own account.
 */
#ifndef DEBOX_DETAILS_H
#define DEBOX_DETAILS_H

#include "object.h"
#include "record.h"
#include "thread_row.h"
#include "trust.h"
#include "user_stack.h"
#include "label.h"

static __always_inline u64 site_bits(u32 site)
{
	return (u64)(site < DEBOX_SITES_MAX ? site : DEBOX_KEY_SITE_NONE) << DEBOX_KEY_SITE_SHIFT;
}

/* ---- sleeps */

/* Rows of one key are told apart by their place: whoever finds none there claims it. */
static __always_inline bool culprit_is_at(u32 *at, u32 place)
{
	u32 found = *at;

	if (!found) {
		found = __sync_val_compare_and_swap(at, 0, place);
		if (!found)
			found = place;
	}
	return found == place;
}

struct culprit_search {
	struct debox_details *details;
	u64 key;
	u32 place;
	u32 found;
};

static long culprit_try(u32 i, struct culprit_search *s)
{
	u32 at = (row_place(s->key + s->place) + i) & (DEBOX_CULPRIT_ROWS_MAX - 1);
	struct debox_culprit_row *row = &s->details->culprits[at];

	if (!row_is_its(&row->key, s->key) || !culprit_is_at(&row->place, s->place))
		return 0;
	s->found = at;
	return 1;
}

/* `who`: 1 + the user stack where it was << 32 | thread. */
VERIFIED_ONCE int culprit_add(struct debox_details *details, u64 key, const struct comm_text *comm, u64 who, u64 ns)
{
	struct culprit_search s = { .details = details, .key = key, .place = who >> 32, .found = NONE };
	struct debox_culprit_row *row;

	if (!details || !comm)
		return 0;
	bpf_loop(ROW_PROBES, culprit_try, &s, 0);
	if (s.found == NONE) {
		__sync_fetch_and_add(&details->culprits_dropped, 1);
		__sync_fetch_and_add(&details->culprits_dropped_ns, ns);
		return 0;
	}
	row = &details->culprits[s.found & (DEBOX_CULPRIT_ROWS_MAX - 1)];
	__sync_fetch_and_add(&row->count, 1);
	__sync_fetch_and_add(&row->total_ns, ns);
	if (ns > row->max_ns)
		row->max_ns = ns;
	row->tid = who;
	comm_copy(row->comm, comm->text);
	return 0;
}

static __always_inline u64 culprit_key(u32 nr_key, u32 site, u32 kind, s32 nr, u32 pid)
{
	u64 call = nr >= 0 && nr < 2046 ? nr + 1 : 0;

	return DEBOX_KEY_USED | (u64)nr_key << DEBOX_KEY_NR_SHIFT | site_bits(site) |
	       (u64)kind << DEBOX_CULPRIT_KIND_SHIFT | call << DEBOX_CULPRIT_NR_SHIFT |
	       (pid & DEBOX_CULPRIT_PID_MASK);
}

static __always_inline u64 path_key(u32 nr_key, u32 site, u32 stack)
{
	return DEBOX_KEY_USED | (u64)nr_key << DEBOX_KEY_NR_SHIFT | site_bits(site) | stack;
}

VERIFIED_ONCE int path_add(struct debox_details *details, u64 key, u64 count, u64 ns)
{
	u32 at = row_place(key);

	if (!details)
		return 0;
	for (u32 i = 0; i < ROW_PROBES; i++, at++) {
		struct debox_path_row *row = &details->paths[at & (DEBOX_PATH_ROWS_MAX - 1)];

		if (!row_is_of(&row->key, key))
			continue;
		__sync_fetch_and_add(&row->count, count);
		__sync_fetch_and_add(&row->total_ns, ns);
		if (ns > row->max_ns)
			row->max_ns = ns;
		return 0;
	}
	__sync_fetch_and_add(&details->paths_dropped, 1);
	__sync_fetch_and_add(&details->paths_dropped_ns, ns);
	return 0;
}

/* Whether the sleep at `site` is one that condition `i` asks for goes to st->conditions_*. */
VERIFIED_ONCE int condition_sleep(struct thread_state *st, const struct debox_account_control *control, u32 i,
				  u32 site)
{
	const struct debox_condition *condition;
	u32 word = (site >> 6) & (DEBOX_SITES_MAX / 64 - 1), label;

	if (!st || !control)
		return 0;
	condition = &control->condition[i & (DEBOX_CONDITIONS_MAX - 1)];
	label = site < SITES_MAX ? site_label[site] : DEBOX_LABEL_UNKNOWN;
	if (!(condition->flags & (DEBOX_CONDITION_SITES | DEBOX_CONDITION_SITES_NOT)))
		return 0;
	if (condition->flags & DEBOX_CONDITION_LABELS && label != DEBOX_LABEL_UNKNOWN &&
	    label != DEBOX_LABEL_NONE) {
		if (condition->labels[label >> 6 & (DEBOX_LABELS_MAX / 64 - 1)] >> (label & 63) & 1)
			st->conditions_hit |= 1u << i;
		return 0;
	}
	if (site >= DEBOX_SITES_MAX || !(condition->known[word] >> (site & 63) & 1))
		st->conditions_unknown |= 1u << i;
	else if (condition->sites[word] >> (site & 63) & 1)
		st->conditions_hit |= 1u << i;
	return 0;
}

/* Of a lock of the program: where its holder was as the sleep began. */
static __always_inline u32 held_stack_of(const struct thread_state *st, const struct debox_details *details)
{
	return st->held_serial == (u32)details->serial ? st->held_stack : 0;
}

/* All that is known of the sleep that has just ended. */
static __always_inline void sleep_keep(const struct thread_state *st, const struct off_cpu *off, u32 held_stack,
				       struct debox_event_sleep *sleep)
{
	sleep->start_ns = st->out_ns;
	sleep->blocked_ns = off->blocked_ns;
	sleep->runq_ns = off->runq_ns;
	sleep->site = off->site;
	sleep->flags = st->wait_flags;
	if (st->sleep_chain_ns < off->blocked_ns)
		sleep->flags |= (u32)(st->sleep_chain_ns * 1000 / off->blocked_ns) << DEBOX_SLEEP_PERMILLE_SHIFT;
	else
		sleep->flags |= 1000u << DEBOX_SLEEP_PERMILLE_SHIFT;
	sleep->waiters_entry = st->waiters_entry;
	sleep->waiters_exit = st->waiters_exit;
	sleep->holder_kind = st->holder.kind;
	sleep->holder_pid = st->holder.pid;
	sleep->holder_nr = st->holder.nr;
	sleep->holder_exit_kind = st->holder_exit.kind;
	sleep->holder_exit_pid = st->holder_exit.pid;
	sleep->holder_exit_nr = st->holder_exit.nr;
	sleep->waker_pid = st->waker_pid;
	sleep->waker_nr = st->waker_nr;
	comm_copy(sleep->holder_comm, st->holder.comm);
	comm_copy(sleep->holder_exit_comm, st->holder_exit.comm);
	sleep->chain = st->sleep_chain;
	sleep->holder_stack = held_stack;
	comm_copy(sleep->waker_comm, st->waker_comm);
}

/* A sleep of a thread with details has ended. In a call it is kept until the
 * call ends. */
VERIFIED_ONCE int details_sleep_add(struct thread_state *st, const struct off_cpu *off, u32 key)
{
	struct debox_details *details;
	struct debox_account_control *control;
	u32 most, count, held_stack;

	if (!st || !off)
		return 0;
	details = details_of(st->account);
	control = details_control(st->account);
	if (!details || !control)
		return 0;
	held_stack = held_stack_of(st, details);
	if (st->holder.kind != DEBOX_HOLDER_NONE && st->holder.pid)
		culprit_add(details,
			    culprit_key(key, off->site,
					st->holder.kind == DEBOX_HOLDER_READER ? DEBOX_CULPRIT_HOLDER_READER :
										 DEBOX_CULPRIT_HOLDER_WRITER,
					st->holder.nr, st->holder.tgid),
			    (const struct comm_text *)st->holder.comm,
			    (u64)(held_stack + 1) << 32 | st->holder.pid, off->blocked_ns);
	if (st->waker_comm[0])
		culprit_add(details,
			    culprit_key(key, off->site, DEBOX_CULPRIT_WAKER, st->waker_nr, st->waker_tgid),
			    (const struct comm_text *)st->waker_comm, 1ull << 32 | st->waker_pid, off->blocked_ns);
	if (!control->flags)
		return 0;
	if (!st->call.in_call) {
		if (control->flags & DEBOX_DETAIL_STACKS)
			path_add(details, path_key(key, off->site, 0), 1, off->blocked_ns);
		return 0;
	}
	if (st->detail_seq != st->call.seq) {
		st->detail_seq = st->call.seq;
		st->conditions_hit = 0;
		st->conditions_unknown = 0;
		st->waiters_most = 0;
		st->sleep_count = 0;
		st->sleeps_dropped_ns = 0;
	}
	if (st->waiters_entry > st->waiters_most)
		st->waiters_most = st->waiters_entry;
	most = control->conditions;
	for (u32 i = 0; i < DEBOX_CONDITIONS_MAX; i++) {
		if (i >= most)
			break;
		condition_sleep(st, control, i, off->site);
	}
	count = st->sleep_count;
	st->sleep_count = count + 1;
	if (count >= DEBOX_EVENT_SLEEPS_MAX) {
		st->sleeps_dropped_ns += off->blocked_ns;
		return 0;
	}
	sleep_keep(st, off, held_stack, &st->sleeps[count & (DEBOX_EVENT_SLEEPS_MAX - 1)]);
	return 0;
}

/* ---- the end of a call */

/* One call as its conditions see it. System call tracepoints run with
 * preemption off: one for each CPU is enough. */
struct finished {
	s64 field[DEBOX_FIELDS];
	u32 account;
	u32 key;
	u32 hit;
	u32 unknown;
	u32 met;       /* out: bit n */
	u32 uncertain; /* out */
	u32 wanted;    /* out: of these, events to be sent */
	u32 signal;    /* out: the last one sent */
	u64 now;
	u64 may_signal;
	char comm[DEBOX_COMM_LEN];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct finished);
} finished_calls SEC(".maps");

static __always_inline struct finished *finished_here(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&finished_calls, &zero);
}

static __always_inline bool comm_equal(const char *a, const char *b)
{
	const u64 *x = (const u64 *)a, *y = (const u64 *)b;

	return x[0] == y[0] && x[1] == y[1];
}

struct condition_search {
	const struct debox_condition *condition;
	const struct finished *call;
	u64 outside;
};

static long condition_field(u32 f, struct condition_search *s)
{
	if (f >= DEBOX_FIELDS)
		return 1;
	s->outside = s->condition->fields >> f & 1 &&
		     (s->call->field[f] < s->condition->min[f] || s->call->field[f] > s->condition->max[f]);
	return s->outside;
}

/* Whether the numbers of a call are in the ranges of a condition. */
static __always_inline bool condition_fields(const struct debox_condition *condition, const struct finished *call)
{
	struct condition_search s = { .condition = condition, .call = call };

	bpf_loop(DEBOX_FIELDS, condition_field, &s, 0);
	return !s.outside;
}

static long condition_check(u32 i, void *unused)
{
	struct finished *call = finished_here();
	struct debox_account_control *control;
	struct debox_condition_state *state;
	struct debox_condition *condition;
	struct debox_details *details;
	u32 flags, bit, signal;
	bool uncertain = false;
	u64 limit, interval;

	if (!call || i >= DEBOX_CONDITIONS_MAX)
		return 1;
	control = details_control(call->account);
	details = details_of(call->account);
	if (!control || !details || i >= control->conditions)
		return 1;
	i &= DEBOX_CONDITIONS_MAX - 1;
	condition = &control->condition[i];
	state = &details->condition[i];
	bit = 1u << i;
	flags = condition->flags;
	if (!(flags & DEBOX_CONDITION_ON))
		return 0;
	if (!(condition->calls[(call->key >> 6) & (DEBOX_NR_SLOTS / 64 - 1)] >> (call->key & 63) & 1))
		return 0;
	if (!condition_fields(condition, call))
		return 0;
	if ((flags & DEBOX_CONDITION_COMM) && !comm_equal(condition->comm, call->comm))
		return 0;
	if ((flags & DEBOX_CONDITION_COMM_NOT) && comm_equal(condition->comm, call->comm))
		return 0;
	if (flags & DEBOX_CONDITION_SITES && !(call->hit & bit)) {
		if (!(call->unknown & bit))
			return 0;
		uncertain = true;
	}
	if (flags & DEBOX_CONDITION_SITES_NOT) {
		if (call->hit & bit)
			return 0;
		if (call->unknown & bit)
			uncertain = true;
	}
	if (uncertain) {
		/* The client will know the label by the time it reads this. */
		__sync_fetch_and_add(&state->uncertain, 1);
		call->uncertain |= bit;
		call->wanted |= bit;
		return 0;
	}
	__sync_fetch_and_add(&state->matched, 1);
	call->met |= bit;
	limit = condition->limit;
	interval = condition->interval_ns;
	if ((limit && state->acted >= limit) ||
	    (interval && state->last_ns && call->now - state->last_ns < interval)) {
		__sync_fetch_and_add(&state->limited, 1);
		return 0;
	}
	state->last_ns = call->now;
	__sync_fetch_and_add(&state->acted, 1);
	if (flags & DEBOX_CONDITION_EVENT)
		call->wanted |= bit;
	signal = condition->signal;
	if (signal && signal <= 64 && call->may_signal) {
		long failed = flags & DEBOX_CONDITION_SIGNAL_THREAD ? bpf_send_signal_thread(signal) :
								      bpf_send_signal(signal);

		if (!failed)
			call->signal = signal;
	}
	return 0;
}

/* What a call, or one sleep of it, was called with: the registers that it begins with are kept. */
static __always_inline void event_args(struct debox_event_call *event, struct task_struct *task, u32 compat)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	if (compat) {
		/* ebx ecx edx esi edi ebp; ecx has the user's ip after sysenter
		 * and ebx is not in the part of the registers we know */
		event->args[0] = event->args[1] = event->args[5] = 0;
		event->args[2] = (u32)regs->dx;
		event->args[3] = (u32)regs->si;
		event->args[4] = (u32)regs->di;
		return;
	}
	event->args[0] = regs->di;
	event->args[1] = regs->si;
	event->args[2] = regs->dx;
	event->args[3] = regs->r10;
	event->args[4] = regs->r8;
	event->args[5] = regs->r9;
}

/* What the call works on, or a sleep of it was about: object_now, or object_slept. */
static __always_inline void event_object(struct debox_event_call *event, const struct thread_state *st,
					 struct task_struct *task, u32 now)
{
	struct thread_objects *objects = now ? bpf_task_storage_get(&thread_objects, task, 0, 0) : NULL;

	if (objects)
		event->object = object_memo_of(objects, now - 1)->object;
	else
		__builtin_memset(&event->object, 0, sizeof(event->object));
	event->object.flags |= st->object_flags;
}

/* Room in the account's ring, and what stands first in it of whose call or sleep it is; NULL: there is none, which is
 * counted. */
static __always_inline struct debox_event_call *event_begin(u32 account, struct debox_details *details,
							    const struct finished *call, u32 flags)
{
	void *ring = bpf_map_lookup_elem(&account_rings, &account);
	struct debox_event_call *event;

	if (!ring)
		return NULL;
	event = bpf_ringbuf_reserve(ring, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&details->events_dropped, 1);
		return NULL;
	}
	event->size = sizeof(*event);
	event->type = DEBOX_EVENT_CALL;
	event->flags = flags | (call->uncertain ? DEBOX_EVENT_UNCERTAIN : 0);
	event->key = call->key;
	event->pid = call->field[DEBOX_FIELD_PID];
	event->tid = call->field[DEBOX_FIELD_TID];
	comm_copy(event->comm, call->comm);
	return event;
}

VERIFIED_ONCE int event_send(struct thread_state *st, struct debox_details *details, u32 slow,
			     u32 user_stack)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct splice_done *done = splice_done_here();
	struct finished *call = finished_here();
	struct debox_event_call *event;
	u32 kept;

	if (!st || !details || !call || !done)
		return 0;
	event = event_begin(st->account, details, call, (slow ? DEBOX_EVENT_SLOW : 0) | (st->call.compat ? DEBOX_EVENT_COMPAT32 : 0));
	if (!event)
		return 0;
	event->retval = call->field[DEBOX_FIELD_RETVAL];
	if (done->start)
		__builtin_memcpy(event->args, done->args, sizeof(event->args));
	else
		event_args(event, task, st->call.compat);
	event->start_ns = st->call.enter_ns;
	event->wall_ns = call->field[DEBOX_FIELD_WALL_NS];
	event->cpu_ns = call->field[DEBOX_FIELD_CPU_NS];
	event->blocked_ns = call->field[DEBOX_FIELD_BLOCKED_NS];
	event->runq_ns = call->field[DEBOX_FIELD_RUNQ_NS];
	event->irq_ns = call->field[DEBOX_FIELD_IRQ_NS];
	event->minor_faults = call->field[DEBOX_FIELD_MINOR_FAULTS];
	event->major_faults = call->field[DEBOX_FIELD_MAJOR_FAULTS];
	event->nvcsw = st->call.nvcsw;
	event->nivcsw = st->call.nivcsw;
	event->user_stack = user_stack;
	event->conditions = call->met & call->wanted;
	event->uncertain = call->uncertain;
	event->signal = call->signal;
	kept = st->detail_seq == st->call.seq ? st->sleep_count : 0;
	event->sleeps_dropped = kept > DEBOX_EVENT_SLEEPS_MAX ? kept - DEBOX_EVENT_SLEEPS_MAX : 0;
	event->sleeps_dropped_ns = event->sleeps_dropped ? st->sleeps_dropped_ns : 0;
	if (kept > DEBOX_EVENT_SLEEPS_MAX)
		kept = DEBOX_EVENT_SLEEPS_MAX;
	event->sleep_count = kept;
	for (u32 i = 0; i < DEBOX_EVENT_SLEEPS_MAX; i++) {
		if (i < kept)
			event->sleeps[i] = st->sleeps[i];
		else
			__builtin_memset(&event->sleeps[i], 0, sizeof(event->sleeps[i]));
	}
	event_object(event, st, task, st->object_now);
	__sync_fetch_and_add(&details->events_sent, 1);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* ---- a sleep whose call's end is not seen */

/* Whose the sleep was stands in what finished_here() has; which conditions it meets comes to stand there. */
VERIFIED_ONCE u32 sleep_wanted(struct thread_state *st, const struct off_cpu *off, u32 key)
{
	struct finished *call = finished_here();
	struct debox_account_control *control;
	u32 most;

	if (!st || !off || !call)
		return 0;
	control = details_control(st->account);
	if (!control)
		return 0;
	most = control->conditions;
	st->conditions_hit = 0;
	st->conditions_unknown = 0;
	for (u32 i = 0; i < DEBOX_CONDITIONS_MAX; i++) {
		if (i >= most)
			break;
		condition_sleep(st, control, i, off->site);
	}
	call->account = st->account;
	call->key = key & (DEBOX_NR_SLOTS - 1);
	call->now = st->out_ns + off->blocked_ns + off->runq_ns;
	call->field[DEBOX_FIELD_WALL_NS] = off->blocked_ns + off->runq_ns;
	call->field[DEBOX_FIELD_BLOCKED_NS] = off->blocked_ns;
	call->field[DEBOX_FIELD_RUNQ_NS] = off->runq_ns;
	call->field[DEBOX_FIELD_IRQ_NS] = 0;
	call->field[DEBOX_FIELD_CPU_NS] = 0;
	call->field[DEBOX_FIELD_RETVAL] = 0;
	call->field[DEBOX_FIELD_MINOR_FAULTS] = 0;
	call->field[DEBOX_FIELD_MAJOR_FAULTS] = 0;
	call->field[DEBOX_FIELD_SLEEPS] = 1;
	call->field[DEBOX_FIELD_PREEMPTIONS] = 0;
	call->field[DEBOX_FIELD_WAITERS] = st->waiters_entry;
	call->hit = st->conditions_hit;
	call->unknown = st->conditions_unknown;
	call->met = 0;
	call->uncertain = 0;
	call->wanted = 0;
	call->signal = 0;
	/* It is another thread that runs. */
	call->may_signal = 0;
	bpf_loop(DEBOX_CONDITIONS_MAX, condition_check, NULL, 0);
	return call->wanted;
}

/* `task` has slept in call `key`. */
static __noinline int sleep_judge(struct task_struct *task, struct thread_state *st, const struct off_cpu *off, u32 key,
				  u32 rests)
{
	struct debox_account_control *control;
	struct debox_event_call *event;
	struct debox_details *details;
	struct finished *call;
	u32 account, compat, flags;
	u64 threshold;
	bool slow;

	if (!st || !off)
		return 0;
	account = st->account;
	control = details_control(account);
	details = details_of(account);
	call = finished_here();
	if (!control || !details || !call)
		return 0;
	flags = control->flags;
	if (!(flags & DEBOX_DETAIL_SLEEPS))
		return 0;
	threshold = flags & DEBOX_DETAIL_EVENTS ? control->slow_ns[key & (DEBOX_NR_SLOTS - 1)] : 0;
	/* Who has nothing to do is not slow. */
	slow = !rests && threshold && off->blocked_ns + off->runq_ns >= threshold;
	if (!slow && !control->conditions)
		return 0;
	call->field[DEBOX_FIELD_PID] = tgid_of(task);
	call->field[DEBOX_FIELD_TID] = pid_of(task);
	comm_copy(call->comm, task->comm);
	if (!sleep_wanted(st, off, key) && !slow)
		return 0;
	compat = task_in_compat_call(task);
	event = event_begin(account, details, call,
			    DEBOX_EVENT_SLEEP | (slow ? DEBOX_EVENT_SLOW : 0) | (compat ? DEBOX_EVENT_COMPAT32 : 0));
	if (!event)
		return 0;
	event_args(event, task, compat);
	event->start_ns = st->out_ns;
	event->wall_ns = call->field[DEBOX_FIELD_WALL_NS];
	event->blocked_ns = off->blocked_ns;
	event->runq_ns = off->runq_ns;
	event->retval = 0;
	event->cpu_ns = 0;
	event->irq_ns = 0;
	event->minor_faults = 0;
	event->major_faults = 0;
	event->nvcsw = 1;
	event->nivcsw = 0;
	event->user_stack = 0;
	event->conditions = call->met & call->wanted;
	event->uncertain = call->uncertain;
	event->signal = 0;
	event->sleep_count = 1;
	event->sleeps_dropped = 0;
	event->sleeps_dropped_ns = 0;
	sleep_keep(st, off, held_stack_of(st, details), &event->sleeps[0]);
	for (u32 i = 1; i < DEBOX_EVENT_SLEEPS_MAX; i++)
		__builtin_memset(&event->sleeps[i], 0, sizeof(event->sleeps[i]));
	event_object(event, st, task, st->object_slept);
	__sync_fetch_and_add(&details->events_sent, 1);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline u32 coarse_bucket(u64 ns)
{
	u32 bucket = debox_log2(ns);

	return bucket < DEBOX_COARSE_BUCKETS ? bucket : DEBOX_COARSE_BUCKETS - 1;
}

VERIFIED_ONCE int call_site_add(struct thread_state *st, struct debox_details *details,
				const struct finished *call, u32 stack)
{
	u64 key, wall;
	u32 at;

	if (!st || !details || !call)
		return 0;
	key = DEBOX_KEY_USED | (u64)call->key << DEBOX_KEY_NR_SHIFT | stack;
	at = row_place(key);
	wall = call->field[DEBOX_FIELD_WALL_NS];
	for (u32 i = 0; i < ROW_PROBES; i++, at++) {
		struct debox_call_site_row *row = &details->call_sites[at & (DEBOX_CALL_SITE_ROWS_MAX - 1)];
		s64 result = call->field[DEBOX_FIELD_RETVAL];

		if (!row_is_of(&row->key, key))
			continue;
		__sync_fetch_and_add(&row->count, 1);
		__sync_fetch_and_add(&row->wall_ns, wall);
		__sync_fetch_and_add(&row->hist[coarse_bucket(wall)], 1);
		if (wall > row->max_ns)
			row->max_ns = wall;
		if (call_failed(result, call->key))
			__sync_fetch_and_add(&row->errors, 1);
		if (call->field[DEBOX_FIELD_MINOR_FAULTS] | call->field[DEBOX_FIELD_MAJOR_FAULTS]) {
			__sync_fetch_and_add(&row->minor_faults, call->field[DEBOX_FIELD_MINOR_FAULTS]);
			__sync_fetch_and_add(&row->major_faults, call->field[DEBOX_FIELD_MAJOR_FAULTS]);
		}
		if (call->field[DEBOX_FIELD_SLEEPS] | call->field[DEBOX_FIELD_PREEMPTIONS]) {
			__sync_fetch_and_add(&row->blocked_ns, call->field[DEBOX_FIELD_BLOCKED_NS]);
			__sync_fetch_and_add(&row->runq_ns, call->field[DEBOX_FIELD_RUNQ_NS]);
		}
		if (call->field[DEBOX_FIELD_IRQ_NS])
			__sync_fetch_and_add(&row->irq_ns, call->field[DEBOX_FIELD_IRQ_NS]);
		return 0;
	}
	__sync_fetch_and_add(&details->call_sites_dropped, 1);
	__sync_fetch_and_add(&details->call_sites_dropped_ns, wall);
	return 0;
}

/* The sleeps of the call, by user stack. */
VERIFIED_ONCE int call_paths_add(struct thread_state *st, struct debox_details *details, u32 key, u32 stack)
{
	u32 count;

	if (!st || !details || st->detail_seq != st->call.seq)
		return 0;
	count = st->sleep_count;
	for (u32 i = 0; i < DEBOX_EVENT_SLEEPS_MAX; i++) {
		if (i >= count)
			break;
		path_add(details, path_key(key, st->sleeps[i].site, stack), 1,
			 st->sleeps[i].blocked_ns);
	}
	if (count > DEBOX_EVENT_SLEEPS_MAX)
		path_add(details, path_key(key, DEBOX_SITE_NONE, stack),
			 count - DEBOX_EVENT_SLEEPS_MAX, st->sleeps_dropped_ns);
	return 0;
}

VERIFIED_ONCE int thread_row_add(struct thread_state *st, struct debox_details *details,
				 const struct finished *call)
{
	struct debox_thread_row *row;
	u32 index;

	if (!st || !details || !call)
		return 0;
	index = thread_row_of(st, details);
	row = &details->threads[index];
	if (index)
		comm_copy(row->comm, call->comm);
	/* Row 0 has many writers; in the others the adds never meet. */
	__sync_fetch_and_add(&row->count, 1);
	__sync_fetch_and_add(&row->wall_ns, call->field[DEBOX_FIELD_WALL_NS]);
	if (call_failed(call->field[DEBOX_FIELD_RETVAL], call->key))
		__sync_fetch_and_add(&row->errors, 1);
	if (call->field[DEBOX_FIELD_SLEEPS] | call->field[DEBOX_FIELD_PREEMPTIONS]) {
		__sync_fetch_and_add(&row->blocked_ns, call->field[DEBOX_FIELD_BLOCKED_NS]);
		__sync_fetch_and_add(&row->runq_ns, call->field[DEBOX_FIELD_RUNQ_NS]);
	}
	if (call->field[DEBOX_FIELD_IRQ_NS])
		__sync_fetch_and_add(&row->irq_ns, call->field[DEBOX_FIELD_IRQ_NS]);
	if (call->field[DEBOX_FIELD_MINOR_FAULTS] | call->field[DEBOX_FIELD_MAJOR_FAULTS]) {
		__sync_fetch_and_add(&row->minor_faults, call->field[DEBOX_FIELD_MINOR_FAULTS]);
		__sync_fetch_and_add(&row->major_faults, call->field[DEBOX_FIELD_MAJOR_FAULTS]);
	}
	return 0;
}

/* The running thread's call, which stands in st->call, has ended. */
__noinline int details_call_add(struct thread_state *st, s64 result, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct debox_account_control *control;
	struct debox_details *details;
	const struct watcher *watcher;
	const struct cred *cred;
	struct finished *call;
	u32 flags, key, stack = 0, event_stack, slow = 0;
	u64 wall, threshold;

	if (!st)
		return 0;
	details = details_of(st->account);
	control = details_control(st->account);
	call = finished_here();
	if (!details || !control || !call)
		return 0;
	flags = control->flags;
	if (!flags)
		return 0;
	key = st->call.key & (DEBOX_NR_SLOTS - 1);
	wall = now - st->call.enter_ns;
	call->account = st->account;
	call->key = key;
	call->now = now;
	call->field[DEBOX_FIELD_WALL_NS] = wall;
	call->field[DEBOX_FIELD_BLOCKED_NS] = st->call.blocked_ns;
	call->field[DEBOX_FIELD_RUNQ_NS] = st->call.runq_ns;
	call->field[DEBOX_FIELD_IRQ_NS] = st->call.irq_ns;
	call->field[DEBOX_FIELD_CPU_NS] =
		wall - st->call.blocked_ns - st->call.runq_ns - st->call.irq_ns;
	call->field[DEBOX_FIELD_RETVAL] = result;
	call->field[DEBOX_FIELD_MINOR_FAULTS] = task->min_flt - st->call.min_flt;
	call->field[DEBOX_FIELD_MAJOR_FAULTS] = task->maj_flt - st->call.maj_flt;
	call->field[DEBOX_FIELD_SLEEPS] = st->call.nvcsw;
	call->field[DEBOX_FIELD_PREEMPTIONS] = st->call.nivcsw;
	call->field[DEBOX_FIELD_PID] = tgid_of(task);
	call->field[DEBOX_FIELD_TID] = pid_of(task);
	call->field[DEBOX_FIELD_WAITERS] = 0;
	call->hit = 0;
	call->unknown = 0;
	if (st->detail_seq == st->call.seq) {
		call->field[DEBOX_FIELD_WAITERS] = st->waiters_most;
		call->hit = st->conditions_hit;
		call->unknown = st->conditions_unknown;
	}
	call->met = 0;
	call->uncertain = 0;
	call->wanted = 0;
	call->signal = 0;
	comm_copy(call->comm, task->comm);
	/* Whoever may watch need not be one who may kill. */
	cred = task_read(task)->real_cred;
	watcher = account_watcher(st);
	call->may_signal = ((watcher->flags & WATCHER_PRIVILEGED) && !watcher->uid) ||
			   (cred->uid.val == watcher->uid && cred->suid.val == watcher->uid);

	/* Spliced ones tell themselves how many they made. */
	if (flags & DEBOX_DETAIL_THREADS && !(st->flags & WATCH_SPLICED))
		thread_row_add(st, details, call);
	if (flags & (DEBOX_DETAIL_CALL_SITES | DEBOX_DETAIL_STACKS)) {
		/* After a successful exec the caller's image is gone. */
		if (result < 0 || !call_is_exec(st->call.nr, st->call.compat))
			stack = user_stack_take(st->account, !!(flags & DEBOX_DETAIL_STACKS));
		call_site_add(st, details, call, stack);
		if (st->call.nvcsw)
			call_paths_add(st, details, key, stack);
	}
	if (!(flags & DEBOX_DETAIL_EVENTS))
		return 0;
	threshold = control->slow_ns[key];
	if (threshold && wall >= threshold)
		slow = 1;
	if (control->conditions)
		bpf_loop(DEBOX_CONDITIONS_MAX, condition_check, NULL, 0);
	if (!slow && !call->wanted)
		return 0;
	event_stack = stack;
	if ((flags & DEBOX_DETAIL_EVENT_STACKS) && !(flags & DEBOX_DETAIL_STACKS))
		event_stack = user_stack_take(st->account, 1);
	/* After a successful exec the caller's image is gone. */
	if (result < 0 || !call_is_exec(st->call.nr, st->call.compat))
		object_late(st, key, st->call.compat);
	else if (st->object_seq != st->call.seq)
		st->object_now = st->object_flags = 0;
	event_send(st, details, slow, event_stack);
	return 0;
}

/* Whether each call goes into details. What the client changes is noticed when
 * the thread gets the CPU anew. */
static __always_inline u32 details_wanted(const struct thread_state *st)
{
	struct debox_account_control *control;

	if (!(st->flags & WATCH_DETAILS))
		return 0;
	control = details_control(st->account);
	return control ? control->flags : 0;
}

#endif
