/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Is this process one of those that an account watches without having been told its number?
 *
 * An account may say what its processes have in common (struct whom): all of them, names,
 * control groups, users. That is asked when they are bound, and of others at the two
 * moments at which a process can come to fit from its first instruction on: when it is
 * forked and when it calls exec (thread.h). While no account says so, these cost one test
 * of `whom_asked`.
 *
 * Where several accounts ask for the same thread, one has it. What a person asks for goes before
 * policies, which have ranks; of one rank the account that came last has it, as it is the next
 * period of the one before.
 *
 * A control group is known by its number in the unified hierarchy. Whether its path fits is
 * found once: by the user side of those that exist, here as one is made, before anybody can
 * be in it.
 */
#ifndef DEBOX_WHOM_H
#define DEBOX_WHOM_H

#include "state.h"
#include "trust.h"

/* What must hold, all of it; 0: everybody. */
#define WHOM_COMM (1u << 0)
#define WHOM_CGROUP (1u << 1)
#define WHOM_UID (1u << 2)
#define WHOM_UIDS 16

/*
 * Patterns, as a machine whose states are bits: bit n is set when what has been read fits the
 * first n elements. `accept` tells by the next byte which elements it fits (bytes above 127,
 * as 0, fit those that take any), `stars` which elements may be repeated, or be nothing.
 * Several patterns stand one behind the other: nothing leads out of an end.
 */
#define WHOM_BYTES 128
struct whom_names {
	u64 begin;
	u64 stars;
	u64 end;
	u64 accept[WHOM_BYTES];
};
#define WHOM_WORDS 4
struct whom_states {
	u64 word[WHOM_WORDS];
};
struct whom_paths {
	struct whom_states begin;
	struct whom_states stars;
	struct whom_states end;
	struct whom_states accept[WHOM_BYTES];
};

struct whom {
	u32 kinds;     /* WHOM_* */
	u32 flags;     /* WATCH_*, of who is watched for it */
	u32 except[2]; /* these processes are not: the client and the broker */
	u32 uids;
	u32 uid[WHOM_UIDS];
	u32 rank;         /* 0: of a person; else of a policy: lower ones go first */
	u64 order;        /* later ones are larger */
	u32 owners_first; /* of a policy: who may watch a process has it for as long as he asks */
	u32 reserved;
	struct whom_names names;
};
struct whom whom[ACCOUNTS_MAX];
/* Bit n: account n says whom to watch. */
u64 whom_asked;
/* Bit n: ... by control groups. */
u64 whom_asked_cgroups;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ACCOUNTS_MAX);
	__type(key, u32);
	__type(value, struct whom_paths);
} whom_paths SEC(".maps");

/* Bit n: it is one of those of account n, or below one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u64); /* control group */
	__type(value, u64);
} whom_cgroups SEC(".maps");

/* What of a process decides. */
struct whom_facts {
	u64 cgroup; /* 0: not known */
	u32 tgid;
	u32 euid;
	struct comm_text comm;
};

struct whom_name_search {
	const struct whom_names *names;
	const struct comm_text *comm;
	u64 at;
};

static long whom_name_step(u32 i, struct whom_name_search *s)
{
	u8 c = s->comm->text[i & (DEBOX_COMM_LEN - 1)];
	u64 fits;

	if (!c)
		return 1;
	fits = s->at & s->names->accept[c < WHOM_BYTES ? c : 0];
	s->at = (fits & ~s->names->stars) << 1 | (fits & s->names->stars);
	s->at |= (s->at & s->names->stars) << 1;
	return 0;
}

VERIFIED_ONCE u32 whom_name_fits(const struct whom_names *names, const struct comm_text *comm)
{
	struct whom_name_search s = { .names = names, .comm = comm };

	if (!names || !comm)
		return 0;
	s.at = names->begin;
	s.at |= (s.at & names->stars) << 1;
	bpf_loop(DEBOX_COMM_LEN, whom_name_step, &s, 0);
	return (s.at & names->end) != 0;
}

VERIFIED_ONCE u32 whom_user_fits(u32 account, u32 uid)
{
	const struct whom *asked = &whom[account & (ACCOUNTS_MAX - 1)];

	for (u32 i = 0; i < WHOM_UIDS; i++) {
		if (i >= asked->uids)
			break;
		if (asked->uid[i] == uid)
			return 1;
	}
	return 0;
}

VERIFIED_ONCE u32 whom_fits(const struct whom_facts *facts, u32 account)
{
	const struct whom *asked = &whom[account & (ACCOUNTS_MAX - 1)];

	if (!facts || facts->tgid == asked->except[0] || facts->tgid == asked->except[1])
		return 0;
	if (asked->kinds & WHOM_UID && !whom_user_fits(account, facts->euid))
		return 0;
	if (asked->kinds & WHOM_CGROUP) {
		u64 cgroup = facts->cgroup;
		u64 *of = bpf_map_lookup_elem(&whom_cgroups, &cgroup);

		if (!of || !(*of >> (account & (ACCOUNTS_MAX - 1)) & 1))
			return 0;
	}
	return asked->kinds & WHOM_COMM ? whom_name_fits(&asked->names, &facts->comm) : 1;
}

static __always_inline u32 whom_rank(u32 account)
{
	return whom[account & (ACCOUNTS_MAX - 1)].rank;
}

/* Policies of one client: what goes from one to the other has not left its watch. */
static __always_inline bool whom_same_client(u32 a, u32 b)
{
	return whom_rank(a) && whom_rank(b) &&
	       whom[a & (ACCOUNTS_MAX - 1)].except[0] == whom[b & (ACCOUNTS_MAX - 1)].except[0];
}

/* Of two accounts one is a policy's that goes behind whoever may watch a process. */
static __always_inline bool whom_owners_first(u32 policy, u32 other)
{
	return whom_rank(policy) && !whom_rank(other) && whom[policy & (ACCOUNTS_MAX - 1)].owners_first;
}

/* Whether `wants` may have what is another account's. Nobody disappears from the watch of
 * another user, unless that is a policy that has it so; of one's own, and of watchers with
 * privileges, what somebody asks for goes before policies. */
static __always_inline bool account_yields(u32 has, u32 wants)
{
	const struct watcher *owner = &account_watchers[has & (ACCOUNTS_MAX - 1)];
	const struct watcher *comer = &account_watchers[wants & (ACCOUNTS_MAX - 1)];

	if (comer->flags & WATCHER_PRIVILEGED) {
		if (!(owner->flags & WATCHER_PRIVILEGED))
			return !whom_owners_first(wants, has);
	} else if (owner->flags & WATCHER_PRIVILEGED || owner->uid != comer->uid) {
		return whom_owners_first(has, wants);
	}
	return !whom_rank(wants) || whom_rank(has);
}

/* Of two accounts that a thread fits: whether it is `a`'s. */
VERIFIED_ONCE u32 whom_before(u32 a, u32 b)
{
	const struct whom *one = &whom[a & (ACCOUNTS_MAX - 1)], *other = &whom[b & (ACCOUNTS_MAX - 1)];
	u32 privileged = account_watchers[a & (ACCOUNTS_MAX - 1)].flags & WATCHER_PRIVILEGED;

	if (privileged != (account_watchers[b & (ACCOUNTS_MAX - 1)].flags & WATCHER_PRIVILEGED))
		return privileged != 0;
	if (one->rank != other->rank)
		return one->rank < other->rank;
	return one->order > other->order;
}

struct whom_search {
	const struct whom_facts *facts;
	struct judged *judged;
	u32 found;
};

static long whom_try(u32 account, struct whom_search *search)
{
	account &= ACCOUNTS_MAX - 1;
	if (!(whom_asked >> account & 1) || (search->found != NONE && !whom_before(account, search->found)) ||
	    !whom_fits(search->facts, account))
		return 0;
	if (account_watchers[account].flags & WATCHER_PRIVILEGED ||
	    thread_judge(search->judged, &account_watchers[account]) == MAY_READ)
		search->found = account;
	return 0;
}

/* The account for which a thread is watched; NONE: for none. judged->found is filled when its
 * watcher has no privileges. */
static __always_inline u32 whom_find(const struct whom_facts *facts, struct judged *judged)
{
	struct whom_search search = { .facts = facts, .judged = judged, .found = NONE };

	bpf_loop(ACCOUNTS_MAX, whom_try, &search, 0);
	return search.found;
}

static __always_inline void whom_look(const struct task_struct *task, struct whom_facts *facts)
{
	const struct task_struct *leader = task_read(task)->group_leader;

	facts->tgid = tgid_of(task);
	facts->euid = task_read(task)->real_cred->euid.val;
	if (bpf_core_field_exists(task->cgroups))
		facts->cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	BPF_CORE_READ_INTO(&facts->comm.text, leader, comm);
}

/* ---- control groups that are made later */

#define WHOM_PATH 1024
/* Groups are made one at a time. */
char whom_path[WHOM_PATH];
u64 whom_path_of; /* bit n: it is account n's */

struct whom_path_search {
	struct whom_paths *paths;
	struct whom_states at;
	u32 fits;
};

/* One more byte of the path; 1: it is decided. */
static long whom_path_step(u32 i, struct whom_path_search *search)
{
	struct whom_paths *paths = search->paths;
	u8 c = whom_path[i & (WHOM_PATH - 1)];
	u64 carry = 0, ended = 0;

	for (u32 j = 0; j < WHOM_WORDS; j++)
		ended |= search->at.word[j] & paths->end.word[j];
	if (!c || (ended && c == '/')) {
		search->fits = ended != 0;
		return 1;
	}
	if (c >= WHOM_BYTES)
		c = 0;
	for (u32 j = 0; j < WHOM_WORDS; j++) {
		u64 stars = paths->stars.word[j];
		u64 fits = search->at.word[j] & paths->accept[c & (WHOM_BYTES - 1)].word[j];
		u64 moved = fits & ~stars;
		u64 next = moved << 1 | carry | (fits & stars);
		u64 skipped = (next & stars) << 1;

		/* What goes over into the next word: one that moved, and one that
		 * then skips a star. */
		carry = moved >> 63 | (next & stars) >> 63;
		search->at.word[j] = next | skipped;
	}
	return 0;
}

/* Whether the path in whom_path, or one above it, fits an account's patterns. */
VERIFIED_ONCE u32 whom_path_fits(u32 account)
{
	struct whom_path_search search = { .paths = bpf_map_lookup_elem(&whom_paths, &account) };

	if (!search.paths)
		return 0;
	search.at = search.paths->begin;
	bpf_loop(WHOM_PATH, whom_path_step, &search, 0);
	return search.fits;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(cgroup_mkdir, struct cgroup *made, const char *path)
{
	u64 asked = whom_asked_cgroups, id;

	/* The unified hierarchy has number 0. */
	if (!asked || BPF_CORE_READ(made, root, hierarchy_id))
		return 0;
	id = BPF_CORE_READ(made, kn, id);
	if (bpf_probe_read_kernel_str(whom_path, sizeof(whom_path), path) <= 0)
		return 0;
	whom_path_of = 0;
	barrier();
	for (u32 i = 0; i < ACCOUNTS_MAX; i++)
		if (asked >> i & 1 && whom_path_fits(i))
			*(volatile u64 *)&whom_path_of |= 1ull << i;
	if (*(volatile u64 *)&whom_path_of)
		bpf_map_update_elem(&whom_cgroups, &id, &whom_path_of, BPF_ANY);
	return 0;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(cgroup_rmdir, struct cgroup *gone, const char *path)
{
	u64 id;

	if (BPF_CORE_READ(gone, root, hierarchy_id))
		return 0;
	id = BPF_CORE_READ(gone, kn, id);
	bpf_map_delete_elem(&whom_cgroups, &id);
	return 0;
}

#endif
