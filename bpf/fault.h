/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How many page faults did a call take?
 *
 * Boundary capture takes differences of the task's own counters. Wrap and splice capture
 * have no moment of their own at the end of each call, so they count as they happen:
 * page_fault_kernel fires for faults taken in kernel mode only, and the
 * software event of major faults only for faults that waited for a device, so
 * programs that are not watched hardly meet either. Records (slots) have programs of their
 * own, which are loaded when the first slots are asked for.
 */
#ifndef DEBOX_FAULT_H
#define DEBOX_FAULT_H

#include "record.h"
#include "sleep.h"

static __always_inline struct thread_state *fault_state(struct task_struct *task)
{
	return task_stored(task) ? bpf_task_storage_get(&threads, task, 0, 0) : NULL;
}

static __always_inline void fault_spliced(u32 minor, u32 major)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st = fault_state(task);

	if (st && st->flags & WATCH_SPLICED)
		spliced_fault(task, st, minor, major);
}

static __always_inline void fault_record(u32 minor, u32 major)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *st = fault_state(task);
	struct debox_record *record;
	struct debox_control *control;
	struct debox_info *info;
	s32 nr;

	if (!st || !(st->flags & WATCH_SLOT) || !slot_trusted(task, st))
		return;
	record = record_of(st);
	control = control_of(st);
	if (!record || !control)
		return;
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	/* A fault that libdebox takes only to have us look (see abi.h). */
	if (control->flags & DEBOX_CONTROL_SETTLE)
		return;
	record->totals.kernel_faults += minor;
	record->totals.major_faults += major;
	/* sys_exit fills the record from the task's counters then */
	if (st->flags & WATCH_SLOT_BOUNDARY)
		return;
	if (call_phase(task, &nr) == CALL_OUTSIDE)
		return;
	info = bank_open(st, record, control, nr, task_in_compat_call(task));
	if (!info)
		return;
	/* Every fault is counted as minor at its start; the event of a major
	 * one, at its end, turns it over. */
	info->minor_faults += minor;
	if (major && info->minor_faults) {
		info->minor_faults -= major;
		info->major_faults += major;
	}
}

/* A copy with faults disabled gives up at once and faults the page in
 * by other means: the kernel does not count it, neither do we. */
static __always_inline bool fault_counts(void)
{
	return !bpf_get_current_task_btf()->pagefault_disabled;
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(page_fault_kernel, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	if (fault_counts())
		fault_spliced(1, 0);
	return 0;
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(page_fault_record, unsigned long address, struct pt_regs *regs, unsigned long error_code)
{
	if (fault_counts())
		fault_record(1, 0);
	return 0;
}

SEC("perf_event")
int page_faults_maj(void *ctx)
{
	fault_spliced(0, 1);
	return 0;
}

SEC("perf_event")
int page_faults_maj_record(void *ctx)
{
	fault_record(0, 1);
	return 0;
}

#endif
