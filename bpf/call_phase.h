/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Is a thread, which may not be the running one, inside a system call, and in which? */
#ifndef DEBOX_CALL_PHASE_H
#define DEBOX_CALL_PHASE_H

#include "state.h"

/* Regs say whether the thread was inside a system call: orig_ax holds its
 * number, or -1 when an exception or interrupt brought it into the kernel. ax
 * is preset to -ENOSYS at entry and holds the result once the call is done:
 * what happens on the way back to user mode is no longer the call. */
#define CALL_OUTSIDE 0
#define CALL_RUNNING 1
#define CALL_LEAVING 2

static __always_inline int call_phase(const struct task_struct *task, s32 *nr)
{
	s64 number, result;

	if (kernel_word_is_load() && regs_above) {
		u64 at = (u64)task->stack + regs_above;

		number = KERNEL_WORD(struct pt_regs, at, orig_ax);
		result = KERNEL_WORD(struct pt_regs, at, ax);
	} else {
		struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs((struct task_struct *)task);

		number = regs->orig_ax;
		result = regs->ax;
	}
	*nr = (s32)number;
	if (number < 0)
		return CALL_OUTSIDE;
	return result == -38 ? CALL_RUNNING : CALL_LEAVING;
}

#endif
