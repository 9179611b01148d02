/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Who holds a lock of the kernel, and which list do those wait in who want it?
 *
 * mutex and rwsem keep their owner in the lock itself; a per-CPU rwsem has a
 * queue and no owner.
 */
#ifndef DEBOX_KERNEL_LOCK_H
#define DEBOX_KERNEL_LOCK_H

#include "holder.h"
#include "queue.h"

/* include/trace/events/lock.h */
#define LCB_F_SPIN (1u << 0)
#define LCB_F_READ (1u << 1)
#define LCB_F_WRITE (1u << 2)
#define LCB_F_RT (1u << 3)
#define LCB_F_PERCPU (1u << 4)
#define LCB_F_MUTEX (1u << 5)
/* Ours: contention_end has been, and the end of the sleep has not. Who holds it now had it later. */
#define LOCK_OVER (1u << 31)

/*
 * Of readers the lock keeps the last one, also when that one has let go and another still
 * has it. Nobody who has an address space's lock sleeps so that a signal would end
 * it: who does has gone on.
 */
static __always_inline bool reader_is_gone(const struct thread_state *st, u64 owner)
{
	u64 mm = KERNEL_WORD(struct task_struct, st->queue.task, mm);

	return st->lock == mm + bpf_core_field_offset(struct mm_struct, mmap_lock) &&
	       KERNEL_INT(struct task_struct, owner, __state) & TASK_INTERRUPTIBLE;
}

/* False where the lock has no owner that could be known. Nobody holds it: 0. */
VERIFIED_ONCE u32 kernel_lock_owner(struct thread_state *st, struct holder *holder)
{
	u32 flags;
	u64 lock, word, owner;
	bool reader;

	if (!st || !holder)
		return 0;
	flags = st->lock_flags;
	lock = st->lock;
	if (flags & (LCB_F_RT | LCB_F_PERCPU | LOCK_OVER))
		return 0;
	if (flags & LCB_F_MUTEX)
		word = KERNEL_WORD(struct mutex, lock, owner.counter);
	else if (flags & (LCB_F_READ | LCB_F_WRITE))
		word = KERNEL_WORD(struct rw_semaphore, lock, owner.counter);
	else
		return 0;
	/* The low three bits of both are flags; bit 0 of a rwsem says that the
	 * owner is one of perhaps several readers. */
	owner = word & ~7ull;
	reader = !(flags & LCB_F_MUTEX) && (word & 1);
	if (owner && owner != st->queue.task && !(reader && reader_is_gone(st, owner))) {
		st->held_tid = KERNEL_INT(struct task_struct, owner, pid);
		holder_tell(st, holder, owner, reader ? DEBOX_HOLDER_READER : DEBOX_HOLDER_WRITER,
			    HOLDER_IN_KERNEL);
	}
	return DEBOX_SLEEP_HOLDER_EXIT;
}

/* Where its waiters' list begins; 0: it has none. `kind` is set. */
static __always_inline u64 kernel_lock_queue(u64 lock, u32 flags, u32 *kind)
{
	*kind = QUEUE_LIST;
	if (flags & LCB_F_RT)
		return 0;
	if (flags & LCB_F_PERCPU) {
		*kind = QUEUE_WAIT;
		return lock + bpf_core_field_offset(struct percpu_rw_semaphore, waiters.head);
	}
	if (flags & LCB_F_MUTEX)
		return lock + bpf_core_field_offset(struct mutex, wait_list);
	if (flags & (LCB_F_READ | LCB_F_WRITE))
		return lock + bpf_core_field_offset(struct rw_semaphore, wait_list);
	return 0;
}

#endif
