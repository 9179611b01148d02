/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Who is the task that holds a lock, in which call is it, and may its name be
 * told?
 *
 * Locks of the kernel give the task itself, those of files and of programs a
 * process number. Numbers are looked up the way the kernel does it, in the tree of
 * their namespace: no helper for that exists before 6.2.
 */
#ifndef DEBOX_HOLDER_H
#define DEBOX_HOLDER_H

#include "state.h"
#include "trust.h"

/* What lies behind an address that was not looked up but read is a number to the
 * verifier: every read through it may fail, and then gives 0. */

/* The tree of numbers of a namespace: 64 ways at each node, 22 bits at most. */
#define NUMBER_TREE_DEPTH 5
#define NUMBER_TREE_WAYS 64u

/* The namespace in which `task` numbers others, or the first one of all. */
static __always_inline u64 numbers_of(const struct task_struct *task, bool first)
{
	/* A pointer of the verifier's takes no sums. */
	u64 pid = (u64)BPF_CORE_READ(task, thread_pid);
	u64 upid = pid + bpf_core_field_offset(struct pid, numbers);
	u32 level = first ? 0 : KERNEL_INT(struct pid, pid, level);

	upid += (u64)level * bpf_core_type_size(struct upid);
	return KERNEL_WORD(struct upid, upid, ns);
}

/* The address of the task that has this number in the namespace at `ns`; 0: none has. */
VERIFIED_ONCE u64 task_numbered(u64 ns, u32 number)
{
	u64 entry = KERNEL_WORD(struct pid_namespace, ns, idr.idr_rt.xa_head);
	u64 task;
	bool leaf = false;

	for (u32 i = 0; i < NUMBER_TREE_DEPTH; i++) {
		u64 node = entry - 2, way;
		u32 shift;

		/* A node's address is marked by its low two bits. */
		if ((entry & 3) != 2 || entry < 4096)
			return 0;
		shift = (u8)KERNEL_INT(struct xa_node, node, shift);
		if (shift > 24)
			return 0;
		way = number >> shift;
		if (!i && way >= NUMBER_TREE_WAYS)
			return 0;
		way &= NUMBER_TREE_WAYS - 1;
		entry = kernel_word(node + bpf_core_field_offset(struct xa_node, slots) + way * 8);
		if (!shift) {
			leaf = true;
			break;
		}
	}
	if (!leaf || !entry || (entry & 3))
		return 0;
	/* The number's tasks[PIDTYPE_PID]. */
	task = KERNEL_WORD(struct pid, entry, tasks[0].first);
	return task ? task - bpf_core_field_offset(struct task_struct, pid_links) : 0;
}

/*
 * The system call that another task is in, -1 for none. bpf_task_pt_regs() wants a task
 * pointer that the verifier knows; hence regs_above.
 *
 * Whoever holds a lock of the kernel is in the kernel. Others may compute, and
 * then the registers are those of their last call: theirs is told when they sleep
 * in it. Of a process that is several threads it is not known whose counts.
 */
#define HOLDER_THREAD 0u
#define HOLDER_IN_KERNEL 1u
#define HOLDER_PROCESS 2u
static __always_inline s32 holder_call(u64 owner, u32 how)
{
	u64 regs;

	if (KERNEL_INT(struct task_struct, owner, flags) & PF_KTHREAD)
		return -1;
	regs = KERNEL_WORD(struct task_struct, owner, stack) + regs_above;
	if (how == HOLDER_PROCESS &&
	    KERNEL_INT(struct signal_struct, KERNEL_WORD(struct task_struct, owner, signal), nr_threads) != 1)
		return -1;
	if (how != HOLDER_IN_KERNEL && (!KERNEL_INT(struct task_struct, owner, __state) ||
					(s64)KERNEL_WORD(struct pt_regs, regs, ax) != -38))
		return -1;
	return (s32)KERNEL_WORD(struct pt_regs, regs, orig_ax);
}

static __always_inline void holder_none(struct holder *holder)
{
	holder->kind = DEBOX_HOLDER_NONE;
	holder->pid = 0;
	holder->tgid = 0;
	holder->nr = -1;
	holder->comm[0] = 0;
}

static __always_inline void holder_withhold(struct holder *holder)
{
	holder_none(holder);
	__builtin_memcpy(holder->comm, "(other user)\0\0\0\0", DEBOX_COMM_LEN);
}

#define WATCH_ANY_CHECKED (WATCH_CHECKED | WATCH_SLOT_CHECKED)

/*
 * Whether a watcher without privileges is told who the task at `address` is: its own user's,
 * and not one that may do more than its user or is closed to it. (Which task that is, a
 * program may choose: it writes any number into its lock.)
 */
VERIFIED_ONCE u32 holder_withheld(struct thread_state *st, u64 address)
{
	struct task_struct *task = (struct task_struct *)address;
	struct mm_struct *mm;
	u32 uid;

	if (!st)
		return 1;
	if (!(st->flags & WATCH_ANY_CHECKED))
		return 0;
	uid = BPF_CORE_READ(task, real_cred, uid.val);
	if (name_withheld(st, uid))
		return 1;
	mm = BPF_CORE_READ(task, mm);
	return BPF_CORE_READ(task, real_cred, euid.val) != uid ||
	       BPF_CORE_READ(task, real_cred, suid.val) != uid ||
	       (mm && mm_dumpable((u64)mm) != DUMPABLE_BY_USER);
}

VERIFIED_ONCE int holder_tell(struct thread_state *st, struct holder *holder, u64 address, u32 kind,
			      u32 how)
{
	u64 *comm;

	if (!st || !holder)
		return 0;
	if (holder_withheld(st, address)) {
		holder_withhold(holder);
		return 0;
	}
	holder->kind = kind;
	if (pid_translate) {
		holder->pid = pid_of_address(address);
		holder->tgid = pid_of_address(KERNEL_WORD(struct task_struct, address, group_leader));
	} else {
		holder->pid = KERNEL_INT(struct task_struct, address, pid);
		holder->tgid = KERNEL_INT(struct task_struct, address, tgid);
	}
	holder->nr = holder_call(address, how);
	comm = (u64 *)holder->comm;
	comm[0] = KERNEL_WORD(struct task_struct, address, comm);
	comm[1] = kernel_word(address + bpf_core_field_offset(struct task_struct, comm) + 8);
	return 0;
}

#endif
