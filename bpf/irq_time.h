/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How long did interrupts keep a thread from its own work?
 *
 * The time from an interrupt's begin to its end, as the tracepoints show them, is
 * added at its end to the call of the thread that it interrupted: so it goes with
 * the thread when that moves to another CPU, and the programs at the ends of
 * calls have nothing to read or to subtract. (Running totals of each CPU, read at
 * the ends of calls and at switches, cost every watched call what this costs an
 * interrupt; and wrap capture has no such moments.) A soft interrupt runs where a
 * hard one ends, in the call that raised it, or in ksoftirqd: that is a task,
 * and no interrupt. A hard interrupt in a soft one is the hard one's time alone.
 *
 * Not seen: the microsecond or less around the tracepoints (saving registers, the
 * interrupt controller), interrupts without a tracepoint (a hypervisor's own,
 * NMIs), and whatever the machine's firmware does.
 *
 * Attached on request only. The programs of devices' handlers and soft
 * interrupts are also there for chains, see interrupt.h; `irq_timed` says
 * whether time is wanted. What is done with the time at their ends is in programs
 * of its own, which nobody loads who does not want it.
 */
#ifndef DEBOX_IRQ_TIME_H
#define DEBOX_IRQ_TIME_H

#include "interrupt.h"
#include "life.h"
#include "record.h"
#include "row.h"
#include "sleep.h"
#include "trust.h"

/* The user side sets it, and clears all begins before. */
u32 irq_timed;

/* An interrupt that has ended. */
struct landed {
	u64 ns;
	u64 key; /* as in struct debox_irq_row */
	char name[DEBOX_IRQ_NAME_LEN];
};

VERIFIED_ONCE int irq_row_add(struct debox_account *account, const struct landed *landed, u32 in_call)
{
	u64 key, ns;
	u32 at;

	if (!account || !landed)
		return 0;
	key = landed->key;
	ns = landed->ns;
	at = row_place(key);
	for (u32 i = 0; i < ROW_PROBES; i++, at++) {
		struct debox_irq_row *row = &account->irqs[at & (DEBOX_IRQ_ROWS_MAX - 1)];

		if (!row_is_of(&row->key, key))
			continue;
		/* The same from everybody: the key holds a hash of it. */
		if (!row->name[0])
			__builtin_memcpy(row->name, landed->name, DEBOX_IRQ_NAME_LEN);
		if (in_call) {
			__sync_fetch_and_add(&row->count, 1);
			__sync_fetch_and_add(&row->total_ns, ns);
			if (ns > row->max_ns)
				row->max_ns = ns;
		} else {
			__sync_fetch_and_add(&row->outside_count, 1);
			__sync_fetch_and_add(&row->outside_ns, ns);
			if (ns > row->outside_max_ns)
				row->outside_max_ns = ns;
		}
		return 0;
	}
	__sync_fetch_and_add(&account->irqs_dropped, 1);
	__sync_fetch_and_add(&account->irqs_dropped_ns, ns);
	return 0;
}

/* Into the record that the thread has open, as sleeps and preemptions do it: what
 * came in user mode, or on the way out, is beside the call. */
static __always_inline void irq_record_add(struct task_struct *task, struct thread_state *st, u64 ns)
{
	struct debox_record *record;
	struct debox_control *control;
	struct debox_info *info;
	s32 nr;
	int phase;

	if (!slot_trusted(task, st))
		return;
	record = record_of(st);
	control = control_of(st);
	if (!record || !control)
		return;
	record->totals.irq_ns += ns;
	/* sys_exit fills the record then. */
	if (st->flags & WATCH_SLOT_BOUNDARY || control->flags & DEBOX_CONTROL_SETTLE)
		return;
	phase = call_phase(task, &nr);
	info = bank_open(st, record, control, nr, task_in_compat_call(task));
	if (!info)
		return;
	if (phase == CALL_RUNNING)
		info->irq_ns += ns;
	else
		info->outside_ns += ns;
}

/* The running thread, if interrupts are measured for it. */
static __always_inline struct thread_state *irq_victim(struct task_struct *task)
{
	struct thread_state *st;

	if (!task_stored(task))
		return NULL;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	return st && st->flags & (WATCH_IRQ | WATCH_SLOT_IRQ) ? st : NULL;
}

static __noinline int irq_landed(struct task_struct *task, struct thread_state *st, const struct landed *landed)
{
	struct cpu_hot *hot = &cpu_hot[bpf_get_smp_processor_id() & (HOT_CPUS - 1)];
	struct open_call *call;
	u32 in_call;
	s32 nr;
	u64 ns;

	if (!task || !st || !landed)
		return 0;
	ns = landed->ns;
	if (st->flags & WATCH_SPLICED) {
		in_call = spliced_irq_add(task, st, ns);
	} else {
		call = st->hot_regs && hot->regs == st->hot_regs ? &hot->call : &st->call;
		in_call = call->in_call;
		if (in_call)
			call->irq_ns += ns;
		else if (!(st->flags & (WATCH_BOUNDARY | WATCH_SLOT_BOUNDARY)))
			in_call = call_phase(task, &nr) == CALL_RUNNING;
	}
	if (st->flags & WATCH_SLOT_IRQ)
		irq_record_add(task, st, ns);
	if (st->flags & WATCH_IRQ && account_trusted(task, st)) {
		irq_row_add(account_of(st), landed, in_call);
		life_interrupt(st, tgid_of(task), ns, in_call);
		if (!in_call && st->flags & WATCH_DETAILS && st->thread_row_asked) {
			struct debox_details *details = details_of(st->account);

			if (details)
				__sync_fetch_and_add(
					&details->threads[st->thread_row & (DEBOX_THREAD_ROWS_MAX - 1)]
						 .irq_outside_ns,
					ns);
		}
	}
	return 0;
}

static __always_inline u64 irq_key(u64 kind, u32 number, u32 hash)
{
	return 1ull << 63 | kind << DEBOX_IRQ_KIND_SHIFT | (u64)number << DEBOX_IRQ_NUMBER_SHIFT |
	       (hash & ((1u << DEBOX_IRQ_NUMBER_SHIFT) - 1));
}

static __always_inline void hard_begin(struct cpu_interrupt *here)
{
	if (irq_timed)
		here->hard_begin_ns = bpf_ktime_get_ns();
}

/* 0: not measured. */
static __always_inline u64 hard_end(struct cpu_interrupt *here)
{
	u64 ns;

	if (!here->hard_begin_ns)
		return 0;
	ns = bpf_ktime_get_ns() - here->hard_begin_ns;
	here->hard_begin_ns = 0;
	here->hard_ns += ns;
	return ns;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_handler_entry, int irq, struct irqaction *action)
{
	struct cpu_interrupt *here = interrupt_here();

	here->action = (u64)action;
	hard_begin(here);
	return 0;
}

static __always_inline void handler_end(struct cpu_interrupt *here)
{
	here->action = 0;
	here->disk = 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit, int irq, struct irqaction *action, int ret)
{
	handler_end(interrupt_here());
	return 0;
}

/* In place of that one, where time is wanted. */
SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_handler_exit_timed, int irq, struct irqaction *action, int ret)
{
	struct cpu_interrupt *here = interrupt_here();
	struct task_struct *task;
	struct thread_state *st;
	struct landed landed = {};
	u64 hash = 0;

	handler_end(here);
	landed.ns = hard_end(here);
	if (!landed.ns)
		return 0;
	task = bpf_get_current_task_btf();
	st = irq_victim(task);
	if (!st)
		return 0;
	bpf_probe_read_kernel_str(landed.name, sizeof(landed.name), action->name);
	for (u32 i = 0; i < sizeof(landed.name) / 8; i++)
		hash = (hash ^ ((u64 *)landed.name)[i]) * 0x9e3779b97f4a7c15ull;
	landed.key = irq_key(DEBOX_IRQ_DEVICE, irq, hash >> 40);
	return irq_landed(task, st, &landed);
}

/* The processor's own vectors: their tracepoints have the vector as their one
 * argument, and a program can be attached to any number of them. */
SEC("raw_tp")
int vector_entry(struct bpf_raw_tracepoint_args *args)
{
	hard_begin(interrupt_here());
	return 0;
}

SEC("raw_tp")
int vector_exit(struct bpf_raw_tracepoint_args *args)
{
	struct task_struct *task;
	struct thread_state *st;
	struct landed landed = {};

	landed.ns = hard_end(interrupt_here());
	if (!landed.ns)
		return 0;
	task = bpf_get_current_task_btf();
	st = irq_victim(task);
	if (!st)
		return 0;
	landed.key = irq_key(DEBOX_IRQ_VECTOR, (u32)args->args[0], 0);
	return irq_landed(task, st, &landed);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_entry, unsigned int vector)
{
	struct cpu_interrupt *here = interrupt_here();

	here->vector = vector + 1;
	if (irq_timed) {
		here->soft_hard_ns = here->hard_ns;
		barrier();
		here->soft_begin_ns = bpf_ktime_get_ns();
	}
	return 0;
}

static __always_inline void soft_end(struct cpu_interrupt *here, u32 vector)
{
	here->vector = 0;
	here->disk = 0;
	if (vector == NET_RX_SOFTIRQ)
		here->sender = 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit, unsigned int vector)
{
	soft_end(interrupt_here(), vector);
	return 0;
}

/* In place of that one, where time is wanted. */
SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_exit_timed, unsigned int vector)
{
	struct cpu_interrupt *here = interrupt_here();
	struct task_struct *task;
	struct thread_state *st;
	struct landed landed = {};
	u64 begin, ns, hard;

	soft_end(here, vector);
	begin = here->soft_begin_ns;
	if (!begin)
		return 0;
	here->soft_begin_ns = 0;
	/* In this order: an interrupt in between is one too many in `hard`. */
	ns = bpf_ktime_get_ns() - begin;
	barrier();
	hard = *(volatile u64 *)&here->hard_ns - here->soft_hard_ns;
	landed.ns = ns > hard ? ns - hard : 0;
	task = bpf_get_current_task_btf();
	st = irq_victim(task);
	if (!st || !landed.ns)
		return 0;
	landed.key = irq_key(DEBOX_IRQ_SOFT, vector, 0);
	return irq_landed(task, st, &landed);
}

#endif
