/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where do kernels differ, and since which version?
 *
 * Every difference between the kernels we claim (6.1 and later) stands here
 * and nowhere else.
 */
#ifndef DEBOX_CORE_FIXES_H
#define DEBOX_CORE_FIXES_H

#include "kernel_types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* From 6.2 on. */
extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __ksym __weak;

/*
 * The same task, only to be read. Of each pointer that is read from a task that it trusts the
 * verifier asks whether that one is to be trusted as well, by going through the names of all
 * the kernel's types: half a millisecond of loading (6.18), as often as it comes by. What was
 * cast nobody trusts.
 */
static __always_inline const struct task_struct *task_read(const struct task_struct *task)
{
	if (bpf_ksym_exists(bpf_rdonly_cast))
		return bpf_rdonly_cast(task, bpf_core_type_id_kernel(struct task_struct));
	return task;
}

/* Whether anything is remembered of it: not of one that nobody watches. */
static __always_inline bool task_stored(const struct task_struct *task)
{
	return task_read(task)->bpf_storage;
}

/*
 * The run queue's clock at this moment of `task`'s CPU: the very value that
 * sched_info_arrive() is about to subtract last_queued from; __schedule() has
 * updated it before the tracepoint. The `runqueues` symbol can only be found
 * on kernels with CONFIG_KALLSYMS_ALL, hence the way through the task's
 * scheduling entity, which every class keeps up to date
 * (CONFIG_FAIR_GROUP_SCHED). 0 where there is none.
 */
static __always_inline bool runqueue_clock_exists(void)
{
	return bpf_core_field_exists(struct sched_entity, cfs_rq) &&
	       bpf_core_field_exists(struct cfs_rq, rq);
}

static __always_inline u64 runqueue_clock(const struct task_struct *task)
{
	if (!runqueue_clock_exists())
		return 0;
	return task_read(task)->se.cfs_rq->rq->clock;
}

/*
 * Whether a thread runs or waits for a CPU. From 6.12 on one that has gone to sleep before it has used up its share
 * stays on the run queue for a while (DELAY_DEQUEUE); where CPUs are busy that is often so.
 */
static __always_inline bool runqueue_has(const struct task_struct *task)
{
	if (!task_read(task)->on_rq)
		return false;
	return !bpf_core_field_exists(struct sched_entity, sched_delayed) || !task_read(task)->se.sched_delayed;
}

/*
 * The running task, of whom a sys_enter on this CPU kept the address: for
 * reading only, and a load through it that would fault gives 0. 6.2 has
 * bpf_rdonly_cast(), which the verifier turns into a move; before that the
 * helper is called (a call, a return thunk, and what both cost again).
 */
static __always_inline const struct task_struct *task_kept(u64 address)
{
	if (bpf_ksym_exists(bpf_rdonly_cast))
		return bpf_rdonly_cast((const void *)address, bpf_core_type_id_kernel(struct task_struct));
	return bpf_get_current_task_btf();
}

static __always_inline bool kernel_word_is_load(void)
{
	return bpf_ksym_exists(bpf_rdonly_cast);
}

/*
 * The word at an address of the kernel's, 0 where there is none. Through
 * bpf_rdonly_cast() it is one load, which the kernel sees through if it faults; the
 * helper costs ten times that. (Any struct that begins with a number would do.)
 */
static __always_inline u64 kernel_word(u64 address)
{
	u64 word = 0;

	if (bpf_ksym_exists(bpf_rdonly_cast))
		return ((const struct pt_regs *)bpf_rdonly_cast((const void *)address,
								bpf_core_type_id_kernel(struct pt_regs)))
			->r15;
	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline u32 kernel_int(u64 address)
{
	u32 value = 0;

	if (bpf_ksym_exists(bpf_rdonly_cast))
		return *(const u32 *)&((const struct pt_regs *)bpf_rdonly_cast(
					       (const void *)address, bpf_core_type_id_kernel(struct pt_regs)))
				->r15;
	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

/* A member of eight bytes, and one of four. */
#define KERNEL_WORD(type, address, member) kernel_word((u64)(address) + bpf_core_field_offset(type, member))
#define KERNEL_INT(type, address, member) kernel_int((u64)(address) + bpf_core_field_offset(type, member))

/*
 * A file of overlayfs is mapped by the one below it. Up to 6.6 that has the program's path; from then on it has one in a
 * mount of nobody's, and the program's beside it (struct path); 0: there is none. What is no such file has
 * something else there: whoever asks looks at what it leads to.
 */
static __always_inline u64 file_user_path(u64 file)
{
	if (!bpf_core_type_exists(struct backing_file) || !bpf_core_field_exists(struct backing_file, user_path))
		return 0;
	return file + bpf_core_field_offset(struct backing_file, user_path);
}

/* 6.3: kernel_cap_t went from two u32 to one u64; 8 bytes both ways. */
static __always_inline u64 cred_capabilities(u64 cred)
{
	u64 permitted = 0;

	bpf_core_read(&permitted, sizeof(permitted), &((struct cred *)cred)->cap_permitted);
	return permitted;
}

/* 6.18: mm->flags went from a word to a bitmap in a struct. The low two bits
 * are the dumpable attribute in both (MMF_DUMPABLE_MASK). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct {
	unsigned long __mm_flags[1];
} mm_flags_t;
struct mm_struct___bitmap {
	mm_flags_t flags;
};
struct mm_struct___word {
	unsigned long flags;
};
#pragma clang attribute pop

/* 6.9: what locks of files and leases have in common went from struct file_lock
 * to struct file_lock_core, which stands first in it, and its members are named
 * flc_ where they were named fl_. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct file_lock_core {
	struct file_lock_core *flc_blocker;
	struct list_head flc_list;
	struct list_head flc_blocked_requests;
	struct list_head flc_blocked_member;
	void *flc_owner;
	unsigned int flc_flags;
	unsigned char flc_type;
	int flc_pid;
	struct wait_queue_head flc_wait;
	struct file *flc_file;
};
struct file_lock {
	s64 fl_start;
	s64 fl_end;
};
struct file_lock___whole {
	struct file_lock *fl_blocker;
	struct list_head fl_list;
	struct list_head fl_blocked_requests;
	struct list_head fl_blocked_member;
	void *fl_owner;
	unsigned int fl_flags;
	unsigned char fl_type;
	int fl_pid;
	struct wait_queue_head fl_wait;
	struct file *fl_file;
};
#pragma clang attribute pop

/* Where a member lies in either. */
#define FILE_LOCK_AT(member)                                                  \
	(bpf_core_type_exists(struct file_lock_core) ?                        \
		 bpf_core_field_offset(struct file_lock_core, flc_##member) : \
		 bpf_core_field_offset(struct file_lock___whole, fl_##member))

/* 0 as well for a thread without an address space. */
static __always_inline u32 task_dumpable(const struct task_struct *task)
{
	const struct mm_struct *mm = task_read(task)->mm;

	if (bpf_core_field_exists(((struct mm_struct___bitmap *)0)->flags.__mm_flags))
		return ((const struct mm_struct___bitmap *)mm)->flags.__mm_flags[0] & 3;
	return ((const struct mm_struct___word *)mm)->flags & 3;
}

/* ... of one whose address is only a number. */
static __always_inline u32 mm_dumpable(u64 mm)
{
	unsigned long flags = 0;

	if (bpf_core_field_exists(((struct mm_struct___bitmap *)0)->flags.__mm_flags))
		bpf_core_read(&flags, sizeof(flags),
			      &((struct mm_struct___bitmap *)mm)->flags.__mm_flags);
	else
		bpf_core_read(&flags, sizeof(flags), &((struct mm_struct___word *)mm)->flags);
	return flags & 3;
}

#endif
