/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * May this watcher (still) see this thread?
 *
 * A watcher without privileges sees a thread exactly when ptrace's read access
 * would let it (may_read.h). That is asked when a thread is bound and at every
 * exec, and before anything of a thread is written to an account: the kernel has no
 * hook where credentials change, so what was found is kept with the thread
 * (struct checked: its credentials, and the dumpable attribute of its address
 * space) and compared. Every change is made by a system call, of this thread or
 * (the attribute) of another one of its process; so the call that made it is
 * not written any more.
 *
 * Credentials are never changed but replaced. Is it enough to compare their
 * address? Those that were replaced are freed after a grace period, and the
 * next ones may then lie in their place (a thread that had 20 ms got their
 * address back in 7 of 8 tries). So:
 * - With boundary capture, at the end of a call: yes. The look before was at
 *   the end of the last call. One call replaces them once, and the old ones
 *   are the thread's until then, so the new ones lie elsewhere. (Between two
 *   calls only a new session keyring replaces them, KEYCTL_SESSION_TO_PARENT,
 *   with the same ids.)
 * - Everywhere else a thread may have changed them any number of times since the
 *   look before: no. There what they hold is compared as well. A user namespace's
 *   address is as good as the namespace: a thread can only go down to
 *   one that its own is an ancestor of, which keeps its own.
 *
 * The comparison is also what holds against an exec that comes between a
 * request and its binding: an exec replaces the credentials.
 *
 * Slots belong to the program that asked for them, and a process may always
 * see itself. What must not happen is that they show the next
 * program: they are taken back at exec, and are good only for the number of
 * execs at which they were bound.
 *
 * Watchers with privileges are never asked about.
 */
#ifndef DEBOX_TRUST_H
#define DEBOX_TRUST_H

#include "state.h"

/* Who reads an account, or a segment's records. The user side sets it before
 * anybody is bound. */
struct watcher account_watchers[ACCOUNTS_MAX];
struct watcher segment_watchers[SEGMENTS_MAX];

static __always_inline const struct watcher *account_watcher(const struct thread_state *st)
{
	return &account_watchers[st->account & (ACCOUNTS_MAX - 1)];
}

static __always_inline const struct watcher *segment_watcher(const struct thread_state *st)
{
	return &segment_watchers[st->segment & (SEGMENTS_MAX - 1)];
}

/* Names and ids of other users' processes are not for clients without
 * privileges. The kernel's own ids are the same in all user namespaces. */
static __always_inline bool name_withheld(const struct thread_state *st, u32 uid)
{
	if ((st->flags & WATCH_SLOT_CHECKED) && segment_watcher(st)->uid != uid)
		return true;
	return (st->flags & (WATCH_DETAILS | WATCH_CHECKED)) == (WATCH_DETAILS | WATCH_CHECKED) &&
	       account_watcher(st)->uid != uid;
}

/* The deepest user namespace is at level 32 below the first. */
#define USER_NS_LEVELS 33

/* Whether the watcher has CAP_SYS_PTRACE in the user namespace `ns`, asked from there upwards. */
struct capable {
	const struct watcher *watcher;
	u64 ns;
	u64 answer;
};

static long capable_up(u32 i, struct capable *asked)
{
	struct user_namespace *here = (struct user_namespace *)asked->ns;
	u64 parent = (u64)BPF_CORE_READ(here, parent);
	u32 above = parent ? BPF_CORE_READ((struct user_namespace *)parent, ns.inum) : 0;
	u32 answer = capable_step(asked->watcher, BPF_CORE_READ(here, ns.inum), above,
				  BPF_CORE_READ(here, owner.val));

	if (answer != NS_UP) {
		asked->answer = answer == NS_YES;
		return 1;
	}
	asked->ns = parent;
	return parent ? 0 : 1;
}

VERIFIED_ONCE u32 capable_in(const struct watcher *watcher, u64 ns)
{
	struct capable asked = { .watcher = watcher, .ns = ns };

	if (!watcher || !ns)
		return 0;
	bpf_loop(USER_NS_LEVELS, capable_up, &asked, 0);
	return asked.answer;
}

/* MAY_READ or REFUSED_* of judged->task; the rest of `judged` is filled. */
VERIFIED_ONCE u32 thread_judge(struct judged *judged, const struct watcher *watcher)
{
	struct subject subject = {};
	struct task_struct *task;
	struct mm_struct *mm;
	struct cred *cred;

	if (!judged || !watcher)
		return REFUSED_IDS;
	task = (struct task_struct *)judged->task;
	mm = BPF_CORE_READ(task, mm);
	cred = (struct cred *)BPF_CORE_READ(task, real_cred);
	subject.has_mm = mm != NULL;
	subject.dumpable = mm ? mm_dumpable((u64)mm) : 0;
	subject.uid = BPF_CORE_READ(cred, uid.val);
	subject.euid = BPF_CORE_READ(cred, euid.val);
	subject.suid = BPF_CORE_READ(cred, suid.val);
	subject.gid = BPF_CORE_READ(cred, gid.val);
	subject.egid = BPF_CORE_READ(cred, egid.val);
	subject.sgid = BPF_CORE_READ(cred, sgid.val);
	subject.cap_permitted = cred_capabilities((u64)cred);
	subject.user_ns = BPF_CORE_READ(cred, user_ns, ns.inum);
	subject.capable = capable_in(watcher, (u64)BPF_CORE_READ(cred, user_ns));
	subject.mm_capable = mm ? capable_in(watcher, (u64)BPF_CORE_READ(mm, user_ns)) : 0;
	judged->found = (struct checked){
		.cred = (u64)cred,
		.cap_permitted = subject.cap_permitted,
		.user_ns = (u64)BPF_CORE_READ(cred, user_ns),
		.uid = subject.uid,
		.euid = subject.euid,
		.suid = subject.suid,
		.gid = subject.gid,
		.egid = subject.egid,
		.sgid = subject.sgid,
		.dumpable = subject.dumpable,
	};
	return watcher_may_read(watcher, &subject);
}

/* Why a thread left its account. */
#define LEFT_EXEC 0u        /* by an exec that gave it other ids or capabilities */
#define LEFT_UNREADABLE 1u  /* by exec of a file that its user may not read */
#define LEFT_CREDENTIALS 2u /* it changed its ids or capabilities */
#define LEFT_UNDUMPABLE 3u  /* it closed its address space */
#define LEFT_TAKEN 4u       /* another account has it */

static __always_inline void left_count(struct debox_account *account, u32 why)
{
	if (!account)
		return;
	switch (why) {
	case LEFT_EXEC:
		__sync_fetch_and_add(&account->left_privileged_exec, 1);
		break;
	case LEFT_UNREADABLE:
		__sync_fetch_and_add(&account->left_unreadable_exec, 1);
		break;
	case LEFT_CREDENTIALS:
		__sync_fetch_and_add(&account->left_credentials, 1);
		break;
	case LEFT_UNDUMPABLE:
		__sync_fetch_and_add(&account->left_undumpable, 1);
		break;
	case LEFT_TAKEN:
		__sync_fetch_and_add(&account->left_taken, 1);
		break;
	}
}

static __always_inline void thread_row_end(const struct thread_state *st)
{
	u32 index = st->thread_row & (DEBOX_THREAD_ROWS_MAX - 1);
	struct debox_details *details;

	if (!(st->flags & WATCH_DETAILS) || !index)
		return;
	details = details_of(st->account);
	if (details)
		details->threads[index].ended_ns = bpf_ktime_get_ns();
}

/* The thread is its account's no more; what it is in is forgotten. */
VERIFIED_ONCE int account_leave(struct thread_state *st, u32 why)
{
	if (!st || !(st->flags & WATCH_ACCOUNT))
		return 0;
	hot_flush(st);
	left_count(account_of(st), why);
	thread_row_end(st);
	st->flags &= ~WATCH_OF_ACCOUNT;
	st->call.in_call = 0;
	st->detail_seq = 0;
	st->sleep_count = 0;
	return 0;
}

/* For the end of a call whose thread was looked at when the one before ended. */
static __always_inline bool unchanged_by_call(const struct task_struct *task, u64 cred, u32 dumpable)
{
	return (u64)task_read(task)->real_cred == cred && task_dumpable(task) == dumpable;
}

/* One that ends has given its address space away, and nobody can close that any more. */
static __always_inline bool dumpable_unchanged(const struct task_struct *task, const struct checked *was)
{
	return !task_read(task)->mm || task_dumpable(task) == was->dumpable;
}

static __always_inline bool credentials_unchanged(const struct task_struct *task,
						  const struct checked *was)
{
	const struct cred *cred = task_read(task)->real_cred;

	return (u64)cred == was->cred && cred->uid.val == was->uid && cred->euid.val == was->euid &&
	       cred->suid.val == was->suid && cred->gid.val == was->gid &&
	       cred->egid.val == was->egid && cred->sgid.val == was->sgid &&
	       cred_capabilities((u64)cred) == was->cap_permitted &&
	       (u64)cred->user_ns == was->user_ns;
}

/* Asked anew, since something has changed: false when the thread left. */
static __noinline bool trust_renew(struct task_struct *task, struct thread_state *st)
{
	bool at_exec;
	u32 refused;

	if (!st)
		return false;
	/* Through the map a pointer becomes a number. */
	st->judged.task = (u64)task;
	barrier();
	refused = thread_judge(&st->judged, account_watcher(st));
	if (refused == MAY_READ) {
		st->checked = st->judged.found;
		return true;
	}
	/* Also before sched_process_exec: the kernel reads pages of a program whose
	 * ids it has taken on, and may sleep for them. */
	at_exec = BPF_CORE_READ_BITFIELD_PROBED(task, in_execve);
	if (refused == REFUSED_UNDUMPABLE)
		account_leave(st, at_exec ? LEFT_UNREADABLE : LEFT_UNDUMPABLE);
	else
		account_leave(st, at_exec ? LEFT_EXEC : LEFT_CREDENTIALS);
	return false;
}

/* Before anything of the thread goes into its account: false when it must
 * not. `task` is the running thread, or the one that is about to run. */
static __always_inline bool account_trusted(struct task_struct *task, struct thread_state *st)
{
	if (!(st->flags & WATCH_CHECKED))
		return true;
	return (credentials_unchanged(task, &st->checked) && dumpable_unchanged(task, &st->checked)) ||
	       trust_renew(task, st);
}

static __always_inline void slot_free(struct thread_state *st)
{
	struct debox_record *record;

	if (!(st->flags & WATCH_SLOT))
		return;
	record = record_of(st);
	if (record)
		*(volatile u32 *)&record->tid = 0;
	st->flags &= ~WATCH_OF_SLOT;
}

/* Before anything goes into the thread's record page: is it still the program
 * that asked for it? */
static __always_inline bool slot_trusted(const struct task_struct *task, struct thread_state *st)
{
	if (!(st->flags & WATCH_SLOT_CHECKED) || task->self_exec_id == st->slot_exec)
		return true;
	slot_free(st);
	return false;
}

#endif
