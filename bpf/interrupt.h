/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * In an interrupt: whose?
 *
 * `current` is a bystander there. These hooks, and those of irq_time.h, say which
 * interrupt it is: the device's handler, the soft interrupt's vector, a timer
 * that ran out, and the disk whose request was completed. They run once an
 * interrupt, only while wakers are wanted. (The kernel's own count of nested contexts can be
 * found with CONFIG_KALLSYMS_ALL only.)
 */
#ifndef DEBOX_INTERRUPT_H
#define DEBOX_INTERRUPT_H

#include "state.h"
#include "call_phase.h"
#include "chain.h"

struct cpu_interrupt {
	u64 action; /* of the handler that runs now: struct irqaction, 0 none */
	u64 disk;   /* struct gendisk of the last request completed in here */
	u32 disk_op;
	u32 vector;     /* 1 + of the soft interrupt that runs now */
	u64 timer;      /* struct hrtimer whose function runs now */
	u64 list_timer; /* struct timer_list of the last function that a timers' soft interrupt ran */
	u32 sender;     /* thread that put a packet into the loopback's queue, and not gone since */
	/* irq_time.h */
	u64 hard_begin_ns; /* of the hard interrupt that runs now; 0: none, or its begin was not seen */
	u64 hard_ns;       /* in all of them so far */
	u64 soft_begin_ns;
	u64 soft_hard_ns; /* hard_ns at that time */
} __attribute__((aligned(64)));
struct cpu_interrupt cpu_interrupts[HOT_CPUS];

static __always_inline struct cpu_interrupt *interrupt_here(void)
{
	return &cpu_interrupts[bpf_get_smp_processor_id() & (HOT_CPUS - 1)];
}

#define REQ_OP_MASK 0xffu
#define REQ_OP_WRITE 1u
#define REQ_OP_FLUSH 2u
#define NET_RX_SOFTIRQ 3u
#define NET_TX_SOFTIRQ 2u
#define TIMER_SOFTIRQ 1u
#define HRTIMER_SOFTIRQ 8u

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(hrtimer_expire_entry, struct hrtimer *timer)
{
	interrupt_here()->timer = (u64)timer;
	return 0;
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(hrtimer_expire_exit, struct hrtimer *timer)
{
	interrupt_here()->timer = 0;
	return 0;
}

SEC("tp_btf/timer_expire_entry")
int BPF_PROG(timer_expire_entry, struct timer_list *timer)
{
	interrupt_here()->list_timer = (u64)timer;
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *request, u8 error, unsigned int bytes)
{
	struct cpu_interrupt *here = interrupt_here();

	/* By a thread: that is who wakes then, and nobody would take the mark back. */
	if (!here->action && !here->vector)
		return 0;
	here->disk = (u64)request->q->disk;
	here->disk_op = request->cmd_flags & REQ_OP_MASK;
	/* A flush that was asked for by itself is an empty write. */
	if (here->disk_op == REQ_OP_WRITE && !bytes)
		here->disk_op = REQ_OP_FLUSH;
	return 0;
}

/*
 * A packet for the machine itself: the soft interrupt that brings it runs on
 * this CPU before its sender goes on, and what it wakes the sender has woken.
 */
SEC("tp_btf/netif_rx")
int BPF_PROG(netif_rx, struct sk_buff *skb)
{
	struct cpu_interrupt *here = interrupt_here();

	if (!here->action && !here->vector)
		here->sender = bpf_get_current_task_btf()->pid;
	return 0;
}

/* Whether the running thread has sent the packet that a soft interrupt brings. */
static __always_inline bool interrupt_sent_by(u32 tid)
{
	struct cpu_interrupt *here = interrupt_here();

	return here->vector == NET_RX_SOFTIRQ + 1 && !here->action && here->sender == tid;
}

/*
 * A timer woke `p`. One that lies on its own stack is the time that its wait may last at
 * most: what it waited for had not come. Of a call that waits for nothing else, and of a
 * kernel thread's pause, the timer is what it waited for.
 */
static __always_inline u32 timer_root(struct task_struct *p, u64 timer)
{
	s32 nr;

	if (p->flags & PF_KTHREAD || timer - (u64)p->stack >= THREAD_SIZE)
		return chain_plain_root(DEBOX_CHAIN_TIMER);
	if (call_phase(p, &nr) == CALL_OUTSIDE)
		return chain_plain_root(DEBOX_CHAIN_TIMER);
	switch (nr) {
	case 35:  /* nanosleep */
	case 230: /* clock_nanosleep */
	case 162: /* on i386 nanosleep, clock_nanosleep, clock_nanosleep_time64 */
	case 267:
	case 407:
		return chain_plain_root(DEBOX_CHAIN_TIMER);
	}
	return chain_plain_root(DEBOX_CHAIN_LIMIT);
}

/* The interrupt that wakes `p`, as a chain's root. */
static __noinline u32 interrupt_root(struct task_struct *p)
{
	struct cpu_interrupt *here = interrupt_here();
	u64 action = here->action, disk = here->disk;
	u32 vector = here->vector;
	struct chain_key key;

	/* In the midst of any other. */
	if (here->timer)
		return timer_root(p, here->timer);
	if (!disk) {
		if (!action && vector == TIMER_SOFTIRQ + 1)
			return timer_root(p, here->list_timer);
		if (!action && vector == HRTIMER_SOFTIRQ + 1)
			return chain_plain_root(DEBOX_CHAIN_TIMER);
		if (!action && (vector == NET_RX_SOFTIRQ + 1 || vector == NET_TX_SOFTIRQ + 1))
			return chain_plain_root(DEBOX_CHAIN_NETWORK);
		if (!action && !vector)
			return chain_plain_root(DEBOX_CHAIN_INTERRUPT);
	}
	chain_key_root(&key, DEBOX_CHAIN_NONE, -1);
	if (disk) {
		key.kind = DEBOX_CHAIN_DISK;
		key.nr = here->disk_op;
		bpf_probe_read_kernel_str(key.comm, DEBOX_COMM_LEN, ((struct gendisk *)disk)->disk_name);
	} else if (action) {
		key.kind = DEBOX_CHAIN_DEVICE;
		bpf_probe_read_kernel_str(key.comm, DEBOX_COMM_LEN,
					  BPF_CORE_READ((struct irqaction *)action, name));
	} else {
		key.kind = DEBOX_CHAIN_INTERRUPT;
		key.nr = vector - 1;
	}
	return chain_intern(&key, 0);
}

#endif
