/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which lock is a thread about to sleep on, who holds it, and how many others
 * wait for it?
 *
 * contention_begin/end (5.19) give the lock's address; mutex and rwsem keep
 * their owner in the lock itself. Spinning is CPU time, not sleeping, so
 * plain spinlocks are passed over.
 */
#ifndef DEBOX_LOCK_H
#define DEBOX_LOCK_H

#include "sleep.h"
#include "state.h"
#include "trust.h"

/* include/trace/events/lock.h */
#define LCB_F_SPIN (1u << 0)
#define LCB_F_READ (1u << 1)
#define LCB_F_WRITE (1u << 2)
#define LCB_F_RT (1u << 3)
#define LCB_F_PERCPU (1u << 4)
#define LCB_F_MUTEX (1u << 5)

/* The system call that another task is in, -1 for none. bpf_task_pt_regs()
 * wants a task pointer that the verifier knows; so the place of the saved
 * registers is learned from the running task: THREAD_SIZE, less padding that
 * depends on the kernel's configuration (16 bytes with FRED, from 6.9 on). */
static __always_inline s32 holder_call(struct thread_state *st, struct task_struct *owner)
{
	struct task_struct *self = bpf_get_current_task_btf();
	struct pt_regs *regs;

	/* Through the map the pointers become numbers. */
	st->own_regs = bpf_task_pt_regs(self);
	st->own_stack = (u64)self->stack;
	barrier();
	regs = (struct pt_regs *)((u64)BPF_CORE_READ(owner, stack) + (st->own_regs - st->own_stack));
	if (BPF_CORE_READ(owner, flags) & PF_KTHREAD)
		return -1;
	return (s32)BPF_CORE_READ(regs, orig_ax);
}

static __always_inline void holder_read(struct thread_state *st, void *lock, u32 flags)
{
	struct task_struct *owner;
	u64 word;

	st->holder_kind = DEBOX_HOLDER_NONE;
	st->holder_pid = 0;
	st->holder_tgid = 0;
	st->holder_nr = -1;
	st->holder_comm[0] = 0;
	if (flags & (LCB_F_RT | LCB_F_PERCPU))
		return;
	if (flags & LCB_F_MUTEX)
		word = BPF_CORE_READ((struct mutex *)lock, owner.counter);
	else if (flags & (LCB_F_READ | LCB_F_WRITE))
		word = BPF_CORE_READ((struct rw_semaphore *)lock, owner.counter);
	else
		return;
	/* The low three bits of both are flags; bit 0 of a rwsem says that the
	 * owner is one of perhaps several readers. */
	owner = (struct task_struct *)(word & ~7ull);
	if (!owner)
		return;
	if (name_withheld(st, BPF_CORE_READ(owner, real_cred, uid.val))) {
		__builtin_memcpy(st->holder_comm, "(other user)\0\0\0\0", DEBOX_COMM_LEN);
		return;
	}
	st->holder_pid = BPF_CORE_READ(owner, pid);
	st->holder_tgid = BPF_CORE_READ(owner, tgid);
	st->holder_nr = holder_call(st, owner);
	st->holder_kind = !(flags & LCB_F_MUTEX) && (word & 1) ? DEBOX_HOLDER_READER : DEBOX_HOLDER_WRITER;
	bpf_probe_read_kernel(st->holder_comm, DEBOX_COMM_LEN, &owner->comm);
}

SEC("tp_btf/contention_begin")
int BPF_PROG(contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st;
	u64 address = (u64)lock;
	u32 *waiters, one = 1;

	if (!task->bpf_storage)
		return 0;
	if ((flags & LCB_F_SPIN) && !(flags & LCB_F_MUTEX))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st)
		return 0;
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	/* A mutex reports spinning first and sleeping later: one waiter. */
	if (st->lock != address) {
		st->lock = address;
		st->lock_waiters = 0;
		waiters = bpf_map_lookup_elem(&lock_waiters, &address);
		if (waiters)
			st->lock_waiters = __sync_fetch_and_add(waiters, 1);
		else
			bpf_map_update_elem(&lock_waiters, &address, &one, BPF_ANY);
	}
	holder_read(st, lock, flags);
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(contention_end, void *lock, int result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st;
	u64 address = (u64)lock;
	u32 *waiters;

	if (!task->bpf_storage)
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || st->lock != address)
		return 0;
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	st->lock = 0;
	st->holder_pid = 0;
	st->holder_kind = DEBOX_HOLDER_NONE;
	st->holder_comm[0] = 0;
	waiters = bpf_map_lookup_elem(&lock_waiters, &address);
	if (waiters && *waiters)
		__sync_fetch_and_add(waiters, -1);
	return 0;
}

#endif
