/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which thread holds the lock in the program's own memory that a futex wait is for?
 *
 * The kernel sees an address, an operation and the value that was expected. Which of
 * them are locks with an owner is told by what stands at and beside the address at
 * that moment, and only when all of it fits:
 *
 * - Priority inheritance (FUTEX_LOCK_PI): the word holds the owner, by the kernel's
 *   own rules.
 * - glibc's mutex: the value is 2, contended; the owner stands 8 bytes on, between a
 *   depth (0 unless recursive), a number of users and a kind that has known bits only.
 *   A robust one has the owner in the word as well, and must name the same.
 * - glibc's rwlock: the value is 3; the word of readers before it says "held by a writer",
 *   whose number stands 16 or 12 bytes on. Of readers none is recorded.
 * - musl's mutex: the owner is in the word; before it stands the type, which must be
 *   one that keeps an owner (its normal one does not), behind it the number of waiters.
 *
 * And in all of them: the owner is a thread that lives, of the same process, or of the
 * same user if the lock is shared between processes, and "shared" in the lock says what the operation
 * says. Condition variables (glibc waits there for a changing sequence), semaphores
 * (0), barriers, stdio's and malloc's locks (no owner, or a pointer) and the locks of
 * other runtimes (Rust: the same 2, by another operation; Go, Java) do not fit. A
 * program that lays all of this out in its own memory is believed: it is its own lock.
 * A shared lock is looked up in the waiter's namespace of process numbers.
 *
 * The program's memory is read without faults; what is not there is not known.
 */
#ifndef DEBOX_USER_LOCK_H
#define DEBOX_USER_LOCK_H

#include "holder.h"

#define FUTEX_WAIT 0u
#define FUTEX_LOCK_PI 6u
#define FUTEX_WAIT_BITSET 9u
#define FUTEX_LOCK_PI2 13u
#define FUTEX_PRIVATE 128u
#define FUTEX_COMMAND 127u
#define FUTEX_WAITERS 0x80000000u
#define FUTEX_TID 0x3fffffffu

/* glibc, bits/struct_mutex.h, pthreadP.h */
#define GLIBC_KIND_TYPE 3u
#define GLIBC_RECURSIVE 1u
#define GLIBC_ROBUST 16u
#define GLIBC_SHARED 128u
#define GLIBC_ELISION 0x300u
struct glibc_mutex {
	u32 lock;
	u32 count;
	u32 owner;
	u32 users;
	u32 kind;
};

/* bits/struct_rwlock.h, pthread_rwlock_common.c */
#define GLIBC_WRITE_PHASE 1u
#define GLIBC_WRITE_LOCKED 2u
struct glibc_rwlock {
	u32 readers;
	u32 writers;
	u32 write_phase_futex;
	u32 writers_futex;
	u32 pad[2];
	u32 writer;
	u32 shared;
	u64 elision;
	u64 pad1;
	u32 flags;
};

/* pthread_impl.h: _m_type, _m_lock, _m_waiters */
#define MUSL_ROBUST 4u
#define MUSL_SHARED 128u
struct musl_mutex {
	u32 type;
	u32 lock;
	u32 waiters;
};

struct futex_wait {
	u64 address;
	u32 expected;
	u32 word; /* what is there now */
	u32 command;
	u32 shared;
	u32 timed;
};

static __always_inline u32 glibc_mutex_owner(const struct futex_wait *wait)
{
	struct glibc_mutex m = {};
	u32 robust, recursive;

	if (bpf_probe_read_user(&m, sizeof(m), (void *)wait->address))
		return 0;
	if (m.kind & ~(GLIBC_KIND_TYPE | GLIBC_ROBUST | GLIBC_SHARED | GLIBC_ELISION) || !m.users ||
	    m.lock != wait->expected)
		return 0;
	robust = m.kind & GLIBC_ROBUST;
	recursive = (m.kind & GLIBC_KIND_TYPE) == GLIBC_RECURSIVE;
	if (robust) {
		if (!(m.lock & FUTEX_WAITERS) || (m.lock & FUTEX_TID) != m.owner || !m.count)
			return 0;
		return m.owner;
	}
	if (m.lock != 2 || (m.count != 0) != recursive || !!(m.kind & GLIBC_SHARED) != wait->shared)
		return 0;
	return m.owner;
}

static __always_inline u32 musl_mutex_owner(const struct futex_wait *wait)
{
	struct musl_mutex m = {};

	if (bpf_probe_read_user(&m, sizeof(m), (void *)(wait->address - 4)))
		return 0;
	if (m.type & ~(3u | MUSL_ROBUST | MUSL_SHARED) || !(m.type & (3u | MUSL_ROBUST)) ||
	    (m.type & 3) == 3 || !m.waiters || m.waiters > 0xffff || m.lock != wait->expected ||
	    !!(m.type & MUSL_SHARED) != wait->shared)
		return 0;
	return m.lock & FUTEX_TID;
}

VERIFIED_ONCE u32 glibc_rwlock_owner(const struct futex_wait *wait, u32 offset)
{
	struct glibc_rwlock l = {};

	if (!wait || bpf_probe_read_user(&l, sizeof(l), (void *)(wait->address - offset)))
		return 0;
	if ((l.readers & (GLIBC_WRITE_PHASE | GLIBC_WRITE_LOCKED)) != (GLIBC_WRITE_PHASE | GLIBC_WRITE_LOCKED) ||
	    l.shared != wait->shared || l.flags > 2 || !(l.write_phase_futex & 1) || l.write_phase_futex > 3 ||
	    l.writers_futex > 3)
		return 0;
	return l.writer;
}

/* The number of the owner as the program knows it; 0: none can be told. */
VERIFIED_ONCE u32 user_lock_number(const struct futex_wait *wait)
{
	u32 at_phase, at_writers;

	if (!wait)
		return 0;
	if (wait->command == FUTEX_LOCK_PI || wait->command == FUTEX_LOCK_PI2)
		return wait->word & FUTEX_TID;
	if (wait->word != wait->expected)
		return 0;
	if (wait->expected & FUTEX_WAITERS) {
		/* Both know the owner by the word. */
		u32 owner = glibc_mutex_owner(wait);

		return owner ? owner : musl_mutex_owner(wait);
	}
	/* With a time limit glibc waits by the other operation, else never. */
	if (wait->expected == 2 && (wait->command == FUTEX_WAIT_BITSET) == wait->timed)
		return glibc_mutex_owner(wait);
	if (wait->expected == 3 && wait->command == FUTEX_WAIT_BITSET) {
		at_phase = glibc_rwlock_owner(wait, 8);
		at_writers = glibc_rwlock_owner(wait, 12);
		if (at_phase && at_writers)
			return 0;
		return at_phase ? at_phase : at_writers;
	}
	return 0;
}

/* The running thread is going to sleep in futex(). */
VERIFIED_ONCE int user_lock_owner(struct thread_state *st)
{
	struct task_struct *self = bpf_get_current_task_btf();
	u64 regs = (u64)self->stack + regs_above;
	struct futex_wait wait = {};
	u32 number, operation = (u32)KERNEL_WORD(struct pt_regs, regs, si);
	u32 limit = (u32)KERNEL_WORD(struct pt_regs, regs, r9);
	u64 task;

	if (!st)
		return 0;
	wait.address = KERNEL_WORD(struct pt_regs, regs, di);
	wait.command = operation & FUTEX_COMMAND;
	wait.expected = (u32)KERNEL_WORD(struct pt_regs, regs, dx);
	wait.shared = !(operation & FUTEX_PRIVATE);
	wait.timed = KERNEL_WORD(struct pt_regs, regs, r10) != 0;
	if (wait.command != FUTEX_WAIT && wait.command != FUTEX_WAIT_BITSET &&
	    wait.command != FUTEX_LOCK_PI && wait.command != FUTEX_LOCK_PI2)
		return 0;
	if (wait.command == FUTEX_WAIT_BITSET && limit != 0xffffffff)
		return 0;
	if (bpf_probe_read_user(&wait.word, sizeof(wait.word), (void *)wait.address))
		return 0;
	number = user_lock_number(&wait);
	if (!number)
		return 0;
	task = task_numbered(numbers_of(self, false), number);
	if (!task)
		return 0;
	if (wait.shared ? KERNEL_INT(struct cred, KERNEL_WORD(struct task_struct, task, real_cred), uid.val) !=
				  task_read(self)->real_cred->uid.val :
			  KERNEL_INT(struct task_struct, task, tgid) != self->tgid)
		return 0;
	st->held_tid = KERNEL_INT(struct task_struct, task, pid);
	holder_tell(st, &st->holder, task, DEBOX_HOLDER_WRITER, HOLDER_THREAD);
	if (st->holder.pid)
		st->held_task = task;
	return 0;
}

#endif
