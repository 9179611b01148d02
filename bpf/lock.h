/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which lock of the kernel is a thread about to wait for?
 *
 * contention_begin/end (5.19) give its address; who holds it and who waits for it
 * is asked when the thread sleeps (wait.h). Spinning is CPU time, not sleeping, so
 * plain spinlocks are passed over.
 */
#ifndef DEBOX_LOCK_H
#define DEBOX_LOCK_H

#include "kernel_lock.h"
#include "sleep.h"
#include "state.h"

SEC("tp_btf/contention_begin")
int BPF_PROG(contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st;

	if (!task_stored(task))
		return 0;
	if ((flags & LCB_F_SPIN) && !(flags & LCB_F_MUTEX))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	st->lock = (u64)lock;
	st->lock_flags = flags;
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(contention_end, void *lock, int result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st;

	if (!task_stored(task))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || st->lock != (u64)lock)
		return 0;
	/* It has slept for it, and its way back was hidden: what it waited for is wanted then. */
	if (st->out_kind & OUT_VALID)
		st->lock_flags |= LOCK_OVER;
	else
		st->lock = 0;
	return 0;
}

#endif
