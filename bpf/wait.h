/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What does a thread wait for as it falls asleep, and how has that changed when it
 * wakes up: who holds it, and how many others wait for it?
 *
 * A lock of the kernel is known by its tracepoint (lock.h), everything else by the
 * queue (queue.h): of a request for a lock of a file (file_lock.h), of a futex, whose
 * lock is in the program's memory (user_lock.h), or of anything else, without
 * a holder. Pages, buffers and requests of disks have none: the kernel does not
 * record who locked a page or writes it back; the waker is known.
 */
#ifndef DEBOX_WAIT_H
#define DEBOX_WAIT_H

#include "file_lock.h"
#include "kernel_lock.h"
#include "queue.h"
#include "user_lock.h"

#define NR_FUTEX 202

/* The thread leaves the CPU and is the running one still. */
static __always_inline int wait_begin(struct thread_state *st)
{
	u32 flags, kind = QUEUE_NONE;
	u64 head = 0;
	bool futex;

	st->waiters_entry = 0;
	st->waiters_exit = 0;
	st->held_tid = 0;
	st->held_tgid = 0;
	st->held_task = 0;
	st->held_stack = 0;
	holder_none(&st->holder);
	holder_none(&st->holder_exit);
	st->file_lock.list = 0;
	if (st->lock) {
		st->queue.head = 0;
		head = kernel_lock_queue(st->lock, st->lock_flags, &kind);
		flags = head ? queue_enter(st, head, kind, 0) : 0;
		if (flags)
			st->waiters_entry = st->queue.others;
		st->queue.task = bpf_get_current_task();
		st->wait_flags = flags | kernel_lock_owner(st, &st->holder);
		return 0;
	}
	futex = st->out_key == NR_FUTEX || st->out_key == DEBOX_NR_COMPAT + 240;
	flags = queue_enter(st, 0, kind, futex);
	if (flags && !st->queue.many && !st->queue.others && st->queue.kind == QUEUE_WAIT &&
	    file_lock_call(st->out_key)) {
		u32 of_file = file_lock_enter(st, st->queue.head);

		if (of_file) {
			st->wait_flags = of_file;
			return 0;
		}
	}
	if (flags)
		st->waiters_entry = st->queue.others;
	st->wait_flags = flags;
	if (st->out_key == NR_FUTEX)
		user_lock_owner(st);
	return 0;
}

/* The sleep is over, and the thread has not run yet. */
VERIFIED_ONCE int wait_end(struct thread_state *st)
{
	u32 flags, known;

	if (!st)
		return 0;
	flags = st->wait_flags & (DEBOX_SLEEP_WAITERS_ENTRY | DEBOX_SLEEP_WAITERS_ENTRY_MORE);
	if (st->file_lock.list) {
		flags |= file_lock_leave(st);
	} else {
		known = queue_leave(st);
		if (known)
			st->waiters_exit = st->queue.others;
		flags |= known;
		if (st->lock)
			flags |= kernel_lock_owner(st, &st->holder_exit);
	}
	st->wait_flags = flags;
	return 0;
}

#endif
