/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where in its program is the thread that others wait for?
 *
 * On request (call sites or stacks), and of threads of the same account only: whoever may
 * read the one's places may read the other's.
 */
#ifndef DEBOX_PLACE_H
#define DEBOX_PLACE_H

#include "details.h"

/* A shorter run is not worth what it costs to walk the stack. */
#define PLACE_RUN_NS 50000

/* A link with a place is of one account. They leave room for those that are of all. */
#define PLACE_CHAINS_MAX (DEBOX_CHAINS_MAX / 2)

/* What an account's client asked for, of places. */
static __always_inline u32 places_wanted(u32 account)
{
	struct debox_account_control *control = details_control(account);

	return control ? control->flags & (DEBOX_DETAIL_CALL_SITES | DEBOX_DETAIL_STACKS) : 0;
}

/*
 * Where the running thread wakes somebody from, for a link that says that it has computed:
 * the place of the call that it is in. 0 when it was not asked for, or cannot be told.
 */
static __noinline int place_waking(struct task_struct *self, struct thread_state *waker)
{
	struct debox_details *details;
	u32 wanted;

	if (!self || !waker || chains_used >= PLACE_CHAINS_MAX || !regs_above ||
	    task_in_compat_call(self))
		return 0;
	wanted = places_wanted(waker->account);
	details = details_of(waker->account);
	if (!wanted || !details || !account_trusted(self, waker))
		return 0;
	waker->chain_serial = (u32)details->serial;
	waker->chain_stack = user_stack_known(waker->account, !!(wanted & DEBOX_DETAIL_STACKS),
					      (u64)self->stack + regs_above);
	return 0;
}

/* How often a task has left the CPU. */
static __always_inline u64 switches_of(u64 task)
{
	return KERNEL_WORD(struct task_struct, task, nvcsw) + KERNEL_WORD(struct task_struct, task, nivcsw);
}

/*
 * Where the owner of a lock of the program is, for which `st`, the running thread, is going
 * to sleep. One that sleeps in a call is there: with the same memory its stack can be walked
 * from here, and if it has not run meanwhile, what was read stood still. Of any other one it is known
 * from where its last call came.
 */
VERIFIED_ONCE int place_holding(struct thread_state *st)
{
	struct task_struct *self = bpf_get_current_task_btf();
	struct debox_details *details;
	u64 owner, regs, switches;
	u32 wanted, stack;

	if (!st || !(st->flags & WATCH_DETAILS) || task_in_compat_call(self))
		return 0;
	wanted = places_wanted(st->account);
	details = details_of(st->account);
	if (!wanted || !details || !account_trusted(self, st))
		return 0;
	owner = st->held_task;
	st->held_serial = (u32)details->serial;
	if (st->holder.nr < 0) {
		st->held_stack = last_stack(st->holder.pid, st->held_serial);
		return 0;
	}
	if (KERNEL_WORD(struct task_struct, owner, mm) != (u64)task_read(self)->mm)
		return 0;
	regs = KERNEL_WORD(struct task_struct, owner, stack) + regs_above;
	switches = switches_of(owner);
	stack = user_stack_known(st->account, !!(wanted & DEBOX_DETAIL_STACKS), regs);
	if (KERNEL_INT(struct task_struct, owner, __state) && switches == switches_of(owner) &&
	    (s32)KERNEL_WORD(struct pt_regs, regs, orig_ax) == st->holder.nr)
		st->held_stack = stack;
	return 0;
}

#endif
