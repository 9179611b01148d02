/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How does an event inside a call get into the record, and into the account?
 *
 * The same functions serve wrap and boundary capture: they differ only in who
 * opens the call (control.open_seq, or sys_enter).
 */
#ifndef DEBOX_RECORD_H
#define DEBOX_RECORD_H

#include "row.h"
#include "state.h"

/* Results by which the kernel asks itself to run the call again: ERESTARTSYS,
 * ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK. */
static __always_inline bool call_restarts(s64 result)
{
	return result <= -512 && result >= -516 && result != -515;
}

/* Its "result" is what the interrupted code had in the register. */
static __always_inline bool call_is_sigreturn(u32 key)
{
	return key == 15 || key == DEBOX_NR_COMPAT + 119 || key == DEBOX_NR_COMPAT + 173;
}

static __always_inline bool call_failed(s64 result, u32 key)
{
	return result < 0 && result >= -4095 && !call_restarts(result) && !call_is_sigreturn(key);
}

#define VALID_BY_EVENTS \
	(DEBOX_VALID_BLOCKED | DEBOX_VALID_FAULTS | DEBOX_VALID_SWITCHES | DEBOX_VALID_SLEEPS)

/* One finished stretch off the CPU. */
struct off_cpu {
	u64 blocked_ns;
	u64 runq_ns;
	u32 site;
	u32 kind; /* OUT_* */
};

static __always_inline u64 valid_irq(const struct thread_state *st)
{
	return st->flags & WATCH_SLOT_IRQ ? DEBOX_VALID_IRQ : 0;
}

/* `valid`: what depends on the thread. */
static __always_inline void info_open(struct debox_info *info, u64 seq, s32 nr, u64 call_site,
				      u32 flags, u64 valid, const struct debox_record *record)
{
	info->size = sizeof(*info);
	info->flags = flags;
	info->valid = VALID_BY_EVENTS | DEBOX_VALID_NR | (runqueue_clock_exists() ? DEBOX_VALID_RUNQ : 0) |
		      valid;
	info->call_seq = seq;
	info->nr = nr;
	info->sleep_count = 0;
	info->retval = 0;
	info->start_ns = 0;
	info->wall_ns = 0;
	info->cpu_ns = 0;
	info->blocked_ns = 0;
	info->runq_ns = 0;
	info->irq_ns = 0;
	info->outside_ns = 0;
	info->call_site = call_site;
	info->minor_faults = 0;
	info->major_faults = 0;
	info->nvcsw = 0;
	info->nivcsw = 0;
	info->sleeps_dropped = 0;
	info->trace_count = 0;
	info->sleeps_dropped_ns = 0;
	info->trace_dropped = 0;
	info->pid = record->tgid;
	info->tid = record->tid;
	info->calls = 1;
}

/* The number of the call that the thread has open: as libdebox says, else of a spliced one. 0: none is. */
static __always_inline u64 seq_open(const struct thread_state *st, const struct debox_control *control)
{
	u64 seq = *(volatile const u64 *)&control->open_seq;

	if (seq || !(st->flags & WATCH_SPLICED) || !st->call.in_call || !st->call.seq ||
	    st->call.seq >= SEQ_EXECUTES || *(volatile const u32 *)&control->flags & DEBOX_CONTROL_SETTLE)
		return seq;
	return st->call.seq | DEBOX_SEQ_SPLICED;
}

static __always_inline struct debox_info *bank_spliced(const struct thread_state *st, struct debox_record *record,
						       u64 seq)
{
	struct debox_info *info;

	if (st->spliced.told.rsp & 1)
		info = &record->bank[1].info;
	else
		info = &record->bank[0].info;
	if (info->call_seq != seq)
		/* A later one: a handler's, within this one, whose begin is gone from here. */
		info_open(info, seq, st->call.nr, 0,
			  DEBOX_FLAG_SPLICE | (info->call_seq > seq ? DEBOX_FLAG_CLOBBERED : 0), valid_irq(st),
			  record);
	return info;
}

/*
 * The bank of the call that the thread has open, reset if it is a new one; NULL
 * when none is open. The control page is the program's: level and max_sleeps
 * are bounded here, the rest is only passed back to the same program.
 *
 * Ordering: the program wrote control on this CPU, or before the context
 * switch that brought its thread here; either way its plain stores are
 * visible in program order, and open_seq is written last.
 */
static __always_inline struct debox_info *bank_open(struct thread_state *st, struct debox_record *record,
						    const struct debox_control *control, s32 nr,
						    bool compat)
{
	struct debox_info *info;
	u64 seq;

	if (st->flags & WATCH_SLOT_BOUNDARY) {
		if (!st->call.in_call)
			return NULL;
		return &record->bank[0].info;
	}
	seq = seq_open(st, control);
	if (!seq)
		return NULL;
	if (seq & DEBOX_SEQ_SPLICED)
		return bank_spliced(st, record, seq);
	if (control->level & 1)
		info = &record->bank[1].info;
	else
		info = &record->bank[0].info;
	if (info->call_seq != seq)
		info_open(info, seq, control->nr >= 0 ? control->nr : nr, control->call_site,
			  DEBOX_FLAG_WRAP | (compat ? DEBOX_FLAG_COMPAT32 : 0),
			  valid_irq(st), record);
	else if (info->nr < 0)
		info->nr = nr;
	return info;
}

/* ... that it had open as it left the CPU. */
static __always_inline struct debox_info *bank_left(struct thread_state *st, struct debox_record *record,
						    const struct debox_control *control, bool compat)
{
	if (st->flags & WATCH_SLOT_BOUNDARY)
		return bank_open(st, record, control, st->out_nr, compat);
	if (st->out_seq & DEBOX_SEQ_SPLICED) {
		if (record->bank[0].info.call_seq == st->out_seq)
			return &record->bank[0].info;
		return record->bank[1].info.call_seq == st->out_seq ? &record->bank[1].info : NULL;
	}
	/* The way back was hidden, and the thread has gone on to another
	 * call since: that one did not sleep. */
	if (!st->out_seq || seq_open(st, control) != st->out_seq)
		return NULL;
	return bank_open(st, record, control, st->out_nr, compat);
}

/* What the sleep that has just ended waited for. */
static __always_inline void sleep_chain_tell(struct debox_sleep *sleep, const struct thread_state *st,
					     u64 blocked_ns)
{
	sleep->chain = st->sleep_chain;
	sleep->chain_permille = blocked_ns ? st->sleep_chain_ns * 1000 / blocked_ns : 1000;
}

/* Which of the call's sleeps are at `site`; DEBOX_SLEEPS_MAX: none are yet. */
VERIFIED_ONCE u32 info_sleep_find(const struct debox_info *info, u32 site)
{
	if (!info)
		return DEBOX_SLEEPS_MAX;
	for (u32 i = 0; i < DEBOX_SLEEPS_MAX; i++) {
		if (i >= info->sleep_count)
			break;
		if (info->sleeps[i].site == site)
			return i;
	}
	return DEBOX_SLEEPS_MAX;
}

VERIFIED_ONCE int info_sleep_add(struct debox_info *info, const struct thread_state *st,
				 const struct off_cpu *off, u32 max_sleeps)
{
	struct debox_sleep *sleep;
	u32 used, at;

	if (!info || !st || !off)
		return 0;
	at = info_sleep_find(info, off->site);
	if (at < DEBOX_SLEEPS_MAX) {
		sleep = &info->sleeps[at];
	} else {
		used = info->sleep_count;
		if (used >= max_sleeps || used >= DEBOX_SLEEPS_MAX) {
			info->sleeps_dropped++;
			info->sleeps_dropped_ns += off->blocked_ns;
			return 1;
		}
		sleep = &info->sleeps[used];
		info->sleep_count = used + 1;
		sleep->total_ns = 0;
		sleep->max_ns = 0;
		sleep->site = off->site;
		sleep->count = 0;
		sleep->chain = 0;
		sleep->chain_permille = 0;
	}
	sleep->count++;
	sleep->total_ns += off->blocked_ns;
	sleep->flags = st->wait_flags;
	if (st->flags & WATCH_SLOT_CHAINS) {
		sleep->flags |= DEBOX_SLEEP_CHAIN;
		if (off->blocked_ns >= sleep->max_ns)
			sleep_chain_tell(sleep, st, off->blocked_ns);
	}
	if (off->blocked_ns > sleep->max_ns)
		sleep->max_ns = off->blocked_ns;
	sleep->waiters_entry = st->waiters_entry;
	sleep->waiters_exit = st->waiters_exit;
	sleep->waker_pid = st->waker_pid;
	comm_copy(sleep->waker_comm, st->waker_comm);
	sleep->holder_pid = st->holder.pid;
	sleep->holder_kind = st->holder.kind;
	sleep->holder_nr = st->holder.nr;
	sleep->holder_exit_pid = st->holder_exit.pid;
	comm_copy(sleep->holder_comm, st->holder.comm);
	return 0;
}

static __always_inline void info_off_cpu_add(struct debox_info *info, const struct thread_state *st,
					     const struct off_cpu *off, u32 max_sleeps)
{
	if (!(off->kind & OUT_IN_CALL)) {
		info->outside_ns += off->blocked_ns + off->runq_ns;
		return;
	}
	info->runq_ns += off->runq_ns;
	if (off->kind & OUT_BLOCKED) {
		info->nvcsw++;
		info->blocked_ns += off->blocked_ns;
		info_sleep_add(info, st, off, max_sleeps);
	} else {
		info->nivcsw++;
	}
}

/* Whose sleep the longest of a row was, `whole_ns` long. While another CPU writes that, this one is not told. */
VERIFIED_ONCE int sleep_longest_tell(struct debox_site_row *row, const struct thread_state *st, u64 whole_ns)
{
	u64 begun;

	if (!row || !st)
		return 0;
	begun = *(volatile u64 *)&row->longest_begun;
	if (*(volatile u64 *)&row->longest_told != begun || whole_ns <= row->longest_ns ||
	    __sync_val_compare_and_swap(&row->longest_begun, begun, begun + 1) != begun)
		return 0;
	row->longest_ns = whole_ns;
	row->longest_end_ns = st->slept_ns + whole_ns;
	comm_copy(row->longest_comm, st->who.comm);
	/* With all that was written before it. */
	__sync_fetch_and_add(&row->longest_told, 1);
	return 0;
}

/* Where the row of such sleeps lies; DEBOX_SITE_ROWS_MAX: the table has no room for it. */
VERIFIED_ONCE u32 site_row_find(struct debox_account *account, u64 tag, u32 at)
{
	if (!account)
		return DEBOX_SITE_ROWS_MAX;
	for (u32 i = 0; i < ROW_PROBES; i++, at++) {
		if (row_is_of(&account->sites[at & (DEBOX_SITE_ROWS_MAX - 1)].key, tag))
			return at & (DEBOX_SITE_ROWS_MAX - 1);
	}
	return DEBOX_SITE_ROWS_MAX;
}

/* By itself, since each way through it would be one through all that comes after. */
VERIFIED_ONCE u32 sleep_bucket(u64 ns)
{
	return debox_sleep_bucket(ns);
}

/* Where a system call blocked, summed over the account. */
VERIFIED_ONCE int account_sleep_add(struct thread_state *st, const struct off_cpu *off, u32 key)
{
	struct debox_account *account;
	struct debox_site_row *row;
	u64 tag, before_ns;
	u32 at, bucket;

	if (!st || !off)
		return 0;
	account = account_of(st);
	if (!account)
		return 0;
	if (off->site == DEBOX_SITE_NONE) {
		__sync_fetch_and_add(&account->sites_unknown, 1);
		__sync_fetch_and_add(&account->sites_unknown_ns, off->blocked_ns);
	}
	tag = (1ull << 63) | (u64)key << 32 | off->site;
	at = (off->site * 2654435761u ^ key * 40503u) >> 8;
	at = site_row_find(account, tag, at);
	if (at >= DEBOX_SITE_ROWS_MAX) {
		__sync_fetch_and_add(&account->sites_dropped, 1);
		__sync_fetch_and_add(&account->sites_dropped_ns, off->blocked_ns);
		return 0;
	}
	row = &account->sites[at];
	before_ns = st->out_ns - st->slept_ns;
	bucket = sleep_bucket(before_ns + off->blocked_ns);
	if (bucket < DEBOX_SLEEP_BUCKETS)
		__sync_fetch_and_add(&row->hist[bucket], 1);
	__sync_fetch_and_add(&row->total_ns, off->blocked_ns);
	if (before_ns)
		__sync_fetch_and_add(&row->before_ns, before_ns);
	if (st->wait_flags & DEBOX_SLEEP_WAITERS_ENTRY) {
		__sync_fetch_and_add(&row->waiters_known, 1);
		__sync_fetch_and_add(&row->waiters_entry, st->waiters_entry);
	}
	if (off->blocked_ns > row->max_ns)
		row->max_ns = off->blocked_ns;
	if (before_ns + off->blocked_ns > row->longest_ns)
		sleep_longest_tell(row, st, before_ns + off->blocked_ns);
	if (st->waiters_entry > row->waiters_max)
		row->waiters_max = st->waiters_entry;
	return 0;
}

/* The row of a call on this CPU, NULL when the account has none left. */
static __always_inline struct debox_row *account_row(u32 account, u32 key)
{
	u32 cpu = bpf_get_smp_processor_id(), zero = 0, index;
	struct debox_account_cpu *rows;
	struct debox_account *head;
	void *inner;

	inner = bpf_map_lookup_elem(&accounts, &account);
	if (!inner)
		return NULL;
	head = bpf_map_lookup_elem(inner, &zero);
	if (!head)
		return NULL;
	key &= DEBOX_NR_SLOTS - 1;
	index = head->row_of[key];
	if (!index) {
		u32 fresh = __sync_fetch_and_add(&head->rows_used, 1) + 1;

		if (fresh >= DEBOX_ROWS_MAX) {
			__sync_fetch_and_add(&head->rows_dropped, 1);
			return NULL;
		}
		/* Losing the race wastes one row, no more. */
		index = __sync_val_compare_and_swap(&head->row_of[key], 0, fresh);
		if (!index)
			index = fresh;
	}
	inner = bpf_map_lookup_elem(&account_cpus, &account);
	if (!inner)
		return NULL;
	rows = bpf_map_lookup_elem(inner, &cpu);
	if (!rows || index >= DEBOX_ROWS_MAX)
		return NULL;
	return &rows->rows[index];
}

/* A call took so long. */
static __always_inline void row_wall_add(struct debox_row *row, u64 wall)
{
	u32 bucket;

	row->wall_ns += wall;
	if (wall > row->max_ns)
		row->max_ns = wall;
	bucket = forgotten(debox_histogram_bucket(wall), wall);
	if (bucket < DEBOX_HIST_BUCKETS)
		row->hist[bucket]++;
}

#endif
