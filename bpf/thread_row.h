/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which row of an account's details is a thread's own? */
#ifndef DEBOX_THREAD_ROW_H
#define DEBOX_THREAD_ROW_H

#include "record.h"
#include "state.h"

/* The running thread's; 0: that of those which found none. */
static __always_inline u32 thread_row_of(struct thread_state *st, struct debox_details *details)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct debox_thread_row *row;
	u32 index;

	if (!st->thread_row_asked) {
		st->thread_row_asked = 1;
		st->thread_row = 0;
		if (details->threads_used < DEBOX_THREAD_ROWS_MAX - 1) {
			index = __sync_fetch_and_add(&details->threads_used, 1) + 1;
			if (index < DEBOX_THREAD_ROWS_MAX) {
				/* 6.1 does not know any more that it is small when it comes from the stack. */
				barrier_var(index);
				row = &details->threads[index & (DEBOX_THREAD_ROWS_MAX - 1)];
				barrier_var(row);
				row->tgid = tgid_of(task);
				row->first_ns = st->call.enter_ns ? st->call.enter_ns : bpf_ktime_get_ns();
				row->tid = pid_of(task);
				st->thread_row = index;
			}
		}
		if (!st->thread_row)
			__sync_fetch_and_add(&details->threads_dropped, 1);
	}
	return st->thread_row & (DEBOX_THREAD_ROWS_MAX - 1);
}

#endif
