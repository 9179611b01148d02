/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Who holds the lock of a file that a thread waits for: flock(), POSIX and open file
 * description locks, leases?
 *
 * Such a wait is in the queue of the thread's own request (struct file_lock), where
 * nobody else waits; so the request is found around the queue's head, and
 * believed when it says what it is blocked by and stands in that one's list. Requests
 * hang below the lock that they wait for, and below each other: a tree, whose root is
 * the lock that is held.
 *
 * A lock belongs to an open file (flock, open file description locks) or to a
 * table of files (POSIX), and remembers only the number of the process that took it,
 * as /proc/locks shows it. That process is named if the lock is its own still: if its
 * table is the owner, or has the file open. A script's `flock 9` is gone while
 * its shell holds the lock; then the number stands without a name.
 */
#ifndef DEBOX_FILE_LOCK_H
#define DEBOX_FILE_LOCK_H

#include "holder.h"
#include "queue.h"

/* include/linux/filelock.h: the same numbers in all kernels so far */
#define FL_POSIX 1u
#define FL_FLOCK 2u
#define FL_DELEG 4u
#define FL_LEASE 32u
#define FL_OFDLCK 1024u
#define FL_LAYOUT 2048u
#define FL_KINDS (FL_POSIX | FL_FLOCK | FL_DELEG | FL_LEASE | FL_OFDLCK | FL_LAYOUT)
#define TYPE_READ 0u /* F_RDLCK */

/* Steps through the tree, and locks of one file that are looked at. */
#define FILE_LOCK_STEPS 160u
#define FILE_LOCKS_MAX 32u
/* Descriptors of a process that are looked at. */
#define FILE_LOCK_FILES 256u

#define FILE_LOCK_WORD(lock, member) kernel_word((lock) + FILE_LOCK_AT(member))

static __always_inline u32 file_lock_type(u64 lock)
{
	return (u8)kernel_int(lock + FILE_LOCK_AT(type));
}

static __always_inline u64 file_lock_context(u64 file)
{
	return file ? KERNEL_WORD(struct inode, KERNEL_WORD(struct file, file, f_inode), i_flctx) : 0;
}

/* Calls that can wait for such a lock: flock, fcntl, and those that break a lease. */
static __always_inline bool file_lock_call(s32 key)
{
	switch (key) {
	case 2:
	case 72:
	case 73:
	case 76:
	case 85:
	case 257:
	case 437: /* clang-format off */
	case DEBOX_NR_COMPAT + 5: case DEBOX_NR_COMPAT + 8: case DEBOX_NR_COMPAT + 55:
	case DEBOX_NR_COMPAT + 92: case DEBOX_NR_COMPAT + 143: case DEBOX_NR_COMPAT + 193:
	case DEBOX_NR_COMPAT + 221: case DEBOX_NR_COMPAT + 295: case DEBOX_NR_COMPAT + 437: /* clang-format on */
		return true;
	}
	return false;
}

/* One step through the requests below `root`; 1: all were seen. */
VERIFIED_ONCE u32 file_lock_step(struct thread_state *st)
{
	struct file_lock_wait *w;
	u64 child, next, parent;

	if (!st)
		return 1;
	w = &st->file_lock;
	if (w->others > DEBOX_WAITERS_MAX) {
		w->result = QUEUE_COUNT_MORE;
		return 1;
	}
	if (!w->up) {
		child = FILE_LOCK_WORD(w->at, blocked_requests);
		if (!child) {
			w->result = QUEUE_COUNT_BROKEN;
			return 1;
		}
		if (child != w->at + FILE_LOCK_AT(blocked_requests)) {
			child -= FILE_LOCK_AT(blocked_member);
			if (FILE_LOCK_WORD(child, blocker) != w->at) {
				w->result = QUEUE_COUNT_BROKEN;
				return 1;
			}
			w->others++;
			w->at = child;
			return 0;
		}
	}
	if (w->at == w->root)
		return 1;
	parent = FILE_LOCK_WORD(w->at, blocker);
	next = FILE_LOCK_WORD(w->at, blocked_member);
	if (parent < KERNEL_HALF || next < KERNEL_HALF) {
		w->result = QUEUE_COUNT_BROKEN;
		return 1;
	}
	if (next == parent + FILE_LOCK_AT(blocked_requests)) {
		w->at = parent;
		w->up = 1;
		return 0;
	}
	next -= FILE_LOCK_AT(blocked_member);
	if (FILE_LOCK_WORD(next, blocker) != parent) {
		w->result = QUEUE_COUNT_BROKEN;
		return 1;
	}
	w->others++;
	w->at = next;
	w->up = 0;
	return 0;
}

static long file_lock_step_of(u32 i, struct thread_state **st)
{
	if (!file_lock_step(*st))
		return 0;
	(*st)->file_lock.over = 1;
	return 1;
}

/* All requests below `root`: others. */
VERIFIED_ONCE int file_lock_walk(struct thread_state *st, u64 root)
{
	struct file_lock_wait *w;

	if (!st)
		return 0;
	w = &st->file_lock;
	w->root = root;
	w->at = root;
	w->up = 0;
	w->others = 0;
	w->result = QUEUE_COUNT_WHOLE;
	w->over = 0;
	bpf_loop(FILE_LOCK_STEPS, file_lock_step_of, &st, 0);
	if (!w->over)
		w->result = QUEUE_COUNT_BROKEN;
	return 0;
}

struct files_searched {
	u64 table;
	u64 file;
	u64 most;
	u64 found;
};

static long file_lock_file_at(u32 i, struct files_searched *s)
{
	if (i >= s->most)
		return 1;
	if (kernel_word(s->table + i * 8) != s->file)
		return 0;
	s->found = 1;
	return 1;
}

/* Whether the task's table of files is, or has, what the lock belongs to. */
VERIFIED_ONCE u32 file_lock_is_of(u64 address, u64 lock)
{
	struct task_struct *task = (struct task_struct *)address;
	u64 files = (u64)BPF_CORE_READ(task, files);
	u32 flags = kernel_int(lock + FILE_LOCK_AT(flags));
	struct files_searched s = {};

	if (!files)
		return 0;
	if ((flags & FL_POSIX) && !(flags & FL_OFDLCK))
		return FILE_LOCK_WORD(lock, owner) == files;
	s.file = FILE_LOCK_WORD(lock, file);
	s.most = BPF_CORE_READ((struct files_struct *)files, fdt, max_fds);
	s.table = (u64)BPF_CORE_READ((struct files_struct *)files, fdt, fd);
	bpf_loop(FILE_LOCK_FILES, file_lock_file_at, &s, 0);
	return s.found;
}

VERIFIED_ONCE int file_lock_holder(struct thread_state *st, struct holder *holder, u64 lock)
{
	u32 kind, number;
	u64 task;

	if (!st || !holder)
		return 0;
	number = kernel_int(lock + FILE_LOCK_AT(pid));
	kind = file_lock_type(lock) == TYPE_READ ? DEBOX_HOLDER_READER : DEBOX_HOLDER_WRITER;
	task = task_numbered(numbers_of(bpf_get_current_task_btf(), true), number);
	if (task && file_lock_is_of(task, lock)) {
		holder_tell(st, holder, task, kind, HOLDER_PROCESS);
		return number;
	}
	/* Whose number that was cannot be asked any more. */
	if (st->flags & WATCH_ANY_CHECKED) {
		holder_withhold(holder);
		return 0;
	}
	holder->kind = kind;
	holder->pid = pid_translate ? 0 : number;
	holder->tgid = holder->pid;
	holder->nr = -1;
	__builtin_memcpy(holder->comm, "(gone)\0\0\0\0\0\0\0\0\0", DEBOX_COMM_LEN);
	return 0;
}

struct request_followed {
	u64 at;
	u64 root;
};

static long file_lock_above(u32 i, struct request_followed *f)
{
	u64 above = FILE_LOCK_WORD(f->at, blocker);

	if (!above) {
		f->root = i ? f->at : 0;
		return 1;
	}
	f->at = above;
	return 0;
}

/* The lock at the end of what `request` is blocked by; 0: it is none. */
VERIFIED_ONCE u64 file_lock_root(u64 request)
{
	struct request_followed f = { .at = request };

	bpf_loop(DEBOX_WAITERS_MAX * 2, file_lock_above, &f, 0);
	return f.root;
}

/*
 * The thread waits in a queue of its own, `head`. If that is a request for a lock of a
 * file: who holds it, and how many others wait for it? Returns DEBOX_SLEEP_*; 0 when
 * it is none.
 */
VERIFIED_ONCE u32 file_lock_enter(struct thread_state *st, u64 head)
{
	struct file_lock_wait *w;
	u64 request, root, blocker, member, context;
	u32 flags;

	if (!st)
		return 0;
	w = &st->file_lock;
	request = head - bpf_core_field_offset(struct wait_queue_head, head) - FILE_LOCK_AT(wait);
	blocker = FILE_LOCK_WORD(request, blocker);
	member = FILE_LOCK_WORD(request, blocked_member);
	if (blocker < KERNEL_HALF || member < KERNEL_HALF ||
	    kernel_word(member + 8) != request + FILE_LOCK_AT(blocked_member))
		return 0;
	root = file_lock_root(request);
	flags = root ? kernel_int(root + FILE_LOCK_AT(flags)) & FL_KINDS : 0;
	context = flags ? file_lock_context(FILE_LOCK_WORD(root, file)) : 0;
	if (!context)
		return 0;
	w->list = context + (flags & FL_POSIX ? bpf_core_field_offset(struct file_lock_context, flc_posix) :
			     flags & FL_FLOCK ? bpf_core_field_offset(struct file_lock_context, flc_flock) :
						bpf_core_field_offset(struct file_lock_context, flc_lease));
	w->owner = FILE_LOCK_WORD(request, owner);
	w->type = file_lock_type(request);
	w->start = BPF_CORE_READ((struct file_lock *)request, fl_start);
	w->end = BPF_CORE_READ((struct file_lock *)request, fl_end);
	st->held_tgid = file_lock_holder(st, &st->holder, root);
	file_lock_walk(st, root);
	if (w->result == QUEUE_COUNT_BROKEN || !w->others)
		return DEBOX_SLEEP_HOLDER_EXIT;
	st->waiters_entry = w->others - 1;
	return DEBOX_SLEEP_HOLDER_EXIT | DEBOX_SLEEP_WAITERS_ENTRY |
	       (w->result == QUEUE_COUNT_MORE ? DEBOX_SLEEP_WAITERS_ENTRY_MORE : 0);
}

/* Whether the lock keeps away the one that was waited for. */
static __always_inline bool file_lock_conflicts(const struct file_lock_wait *w, u64 lock)
{
	s64 start = BPF_CORE_READ((struct file_lock *)lock, fl_start);
	s64 end = BPF_CORE_READ((struct file_lock *)lock, fl_end);

	return FILE_LOCK_WORD(lock, owner) != w->owner && start <= w->end && end >= w->start &&
	       (w->type != TYPE_READ || file_lock_type(lock) != TYPE_READ);
}

/* The sleep is over: the lock that keeps it away now. */
#define FILE_LOCK_FREE 1u
struct locks_searched {
	const struct thread_state *st;
	u64 at;
	u64 found;
};

static long file_lock_held_at(u32 i, struct locks_searched *s)
{
	const struct file_lock_wait *w = &s->st->file_lock;
	u64 at = s->at, lock = at - FILE_LOCK_AT(list);

	if (at == w->list) {
		s->found = FILE_LOCK_FREE;
		return 1;
	}
	if (at < KERNEL_HALF)
		return 1;
	if (file_lock_conflicts(w, lock)) {
		s->found = lock;
		return 1;
	}
	s->at = kernel_word(at);
	return 0;
}

VERIFIED_ONCE u64 file_lock_held(struct thread_state *st)
{
	struct locks_searched s = { .st = st };

	if (!st || !st->file_lock.list)
		return 0;
	s.at = kernel_word(st->file_lock.list);
	bpf_loop(FILE_LOCKS_MAX, file_lock_held_at, &s, 0);
	return s.found;
}

/* (In the caller's frame: calls are eight deep at most.) */
static __always_inline u32 file_lock_leave(struct thread_state *st)
{
	u64 lock = file_lock_held(st);

	if (!lock)
		return 0;
	/* Free: who waited was woken, and waits again only when it has run. */
	if (lock == FILE_LOCK_FREE)
		return DEBOX_SLEEP_HOLDER_EXIT | DEBOX_SLEEP_WAITERS_EXIT;
	file_lock_holder(st, &st->holder_exit, lock);
	file_lock_walk(st, lock);
	if (st->file_lock.result == QUEUE_COUNT_BROKEN)
		return DEBOX_SLEEP_HOLDER_EXIT;
	st->waiters_exit = st->file_lock.others < DEBOX_WAITERS_MAX ? st->file_lock.others :
								      DEBOX_WAITERS_MAX;
	return DEBOX_SLEEP_HOLDER_EXIT | DEBOX_SLEEP_WAITERS_EXIT |
	       (st->file_lock.result == QUEUE_COUNT_MORE ? DEBOX_SLEEP_WAITERS_EXIT_MORE : 0);
}

#endif
