/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What was a sleep waiting for, link by link, down to a root?
 *
 * When W wakes T, T's sleep is explained by what W did meanwhile (past.h): by
 * W's own last sleeps, each with the chain that explains it, by W running, by W
 * waiting for a CPU. So a chain of any depth costs one step a link. Chains are
 * interned: a number stands for (task, call, site, what it waited for), and an
 * account adds a time to a number.
 *
 * Wakers that nobody watches are followed from then on (follow.h): they have a
 * past, and no hook on their calls.
 *
 * Who writes what: `past` and `who` of a thread are written on the CPU that it
 * leaves or gets, with interrupts off. `parts` of a sleeping thread
 * are written by whoever wakes it, under its pi_lock (sched_waking), and by
 * nobody while it runs but itself. A thread that is not yet seen to be off
 * the CPU when it is woken has its short sleep left unexplained (UNSEEN).
 */
#ifndef DEBOX_CHAIN_H
#define DEBOX_CHAIN_H

#include "life.h"
#include "state.h"

/* It lies on the stack twice, where there is little room (6.1). */
struct chain_key {
	u8 kind;    /* DEBOX_CHAIN_* */
	u8 flags;   /* DEBOX_CHAIN_HELD, _REST, _FIRST, _OWN, _LOOP */
	u16 stack;  /* a user stack, below DEBOX_USER_STACKS_MAX; 0: none */
	u32 serial; /* ... of this account */
	u32 site;
	s32 nr;
	u32 parent;
	u32 uid;
	char comm[DEBOX_COMM_LEN];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, DEBOX_CHAINS_MAX);
	__type(key, struct chain_key);
	__type(value, u32);
} chain_ids SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DEBOX_CHAINS_MAX);
	__type(key, u32);
	__type(value, struct debox_chain);
} chains SEC(".maps");

/* Numbers handed out: 1.. The times of links that find no room stand under
 * chain 0. */
u32 chains_used;

/* The number of a link; 0 when the table is full. */
VERIFIED_ONCE u32 chain_intern(const struct chain_key *asked, u32 tid)
{
	struct debox_chain *chain;
	struct chain_key copy, *key = &copy;
	u32 *found, id, depth = 1;

	if (!asked)
		return 0;
	/* 6.1 takes no argument as a map's key. */
	copy = *asked;
	found = bpf_map_lookup_elem(&chain_ids, key);
	if (found)
		return *found;
	if (key->parent) {
		u32 parent = key->parent;

		chain = bpf_map_lookup_elem(&chains, &parent);
		if (chain)
			depth = chain->depth + 1;
	}
	if (chains_used >= DEBOX_CHAINS_MAX - 1)
		return 0;
	id = __sync_fetch_and_add(&chains_used, 1) + 1;
	chain = bpf_map_lookup_elem(&chains, &id);
	if (!chain)
		return 0;
	chain->site = key->site;
	chain->nr = key->nr;
	chain->parent = key->parent;
	chain->uid = key->uid;
	chain->flags = key->flags;
	chain->user_stack = key->stack;
	chain->serial = key->serial;
	chain->tid = tid;
	chain->depth = depth;
	comm_copy(chain->comm, key->comm);
	/* Before anybody can learn its number from the table of ids. */
	barrier();
	*(volatile u32 *)&chain->type = key->kind;
	if (!bpf_map_update_elem(&chain_ids, key, &id, BPF_NOEXIST))
		return id;
	/* Another CPU was faster: its number is the one, ours is never used. */
	found = bpf_map_lookup_elem(&chain_ids, key);
	if (found) {
		chain->type = DEBOX_CHAIN_NONE;
		return *found;
	}
	return id;
}

/* A root, of nobody yet. */
static __always_inline void chain_key_root(struct chain_key *key, u32 kind, s32 nr)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->kind = kind;
	key->site = DEBOX_SITE_NONE;
	key->nr = nr;
}

/* Roots that have no name but their kind: each has one number, once it has been
 * asked for. */
u32 chain_plain[DEBOX_CHAIN_KINDS];

static __always_inline u32 chain_plain_root(u32 kind)
{
	struct chain_key key;
	u32 id;

	kind &= DEBOX_CHAIN_KINDS - 1;
	id = chain_plain[kind];
	if (id)
		return id;
	chain_key_root(&key, kind, -1);
	id = chain_intern(&key, 0);
	chain_plain[kind] = id;
	return id;
}

/*
 * Where links were found, by a hash of what they consist of. A number that stands there
 * is a guess (others have the same hash, and CPUs write at the same time): the link
 * itself is compared. The kernel's hash tables take five times as long.
 */
#define CHAIN_GUESSES_LOG2 13
u16 chain_guesses[1 << CHAIN_GUESSES_LOG2];

static __always_inline u16 *chain_guess(const struct thread_state *st, u32 kind, u32 flags, u32 stack,
					u32 site, s32 nr, u32 parent)
{
	const u64 *comm = (const u64 *)st->who.comm;
	u64 hash;

	_Static_assert(DEBOX_CHAINS_MAX <= 1 << 16, "a guess has 16 bits");
	hash = (comm[0] ^ kind ^ (u64)stack << 32) * 0x9e3779b97f4a7c15ull;
	hash = (hash ^ hash >> 32 ^ comm[1] ^ (u64)site << 32 ^ (u32)nr) * 0xbf58476d1ce4e5b9ull;
	hash = (hash ^ hash >> 32 ^ (u64)flags << 32 ^ parent) * 0x94d049bb133111ebull;
	return &chain_guesses[hash >> (64 - CHAIN_GUESSES_LOG2)];
}

/* What a link of the thread's sleep says before it is known who ends it. */
static __always_inline u32 chain_rests(const struct thread_state *st)
{
	u32 at = st->rest.resting;

	if (at)
		return at == REST_YES ? DEBOX_CHAIN_REST : DEBOX_CHAIN_FIRST;
	return rest_is_loop(&st->rest) ? DEBOX_CHAIN_LOOP : 0;
}

/* Only a sleep's link says whether its waker held what was waited for. */
static __always_inline u32 chain_flags_of(const struct thread_state *st, u32 kind)
{
	return kind == DEBOX_CHAIN_SLEEP ? st->chain_flags : 0;
}

/* Only who ran has a place of its own, see place.h; of calls it is the one that it wakes
 * from. */
static __always_inline u32 chain_stack_of(const struct thread_state *st, u32 kind, s32 nr)
{
	if (kind == DEBOX_CHAIN_RAN_USER || kind == DEBOX_CHAIN_RAN ||
	    (kind == DEBOX_CHAIN_RAN_CALL && nr >= 0))
		return st->chain_stack;
	return 0;
}

/* ... of a link that no guess was right about. */
VERIFIED_ONCE u32 chain_look_up(struct thread_state *st, u32 kind, u32 site, s32 nr, u32 parent)
{
	struct chain_key key;
	u32 id, flags, stack;

	if (!st)
		return 0;
	flags = chain_flags_of(st, kind);
	stack = chain_stack_of(st, kind, nr);
	__builtin_memset(&key, 0, sizeof(key));
	key.kind = kind;
	key.site = site;
	key.nr = nr;
	key.parent = parent;
	key.uid = st->who.uid;
	key.flags = flags;
	key.stack = stack;
	key.serial = stack ? st->chain_serial : 0;
	comm_copy(key.comm, st->who.comm);
	if (parent && kind == DEBOX_CHAIN_SLEEP) {
		struct debox_chain *above = bpf_map_lookup_elem(&chains, &parent);

		if (above && above->depth >= DEBOX_CHAIN_DEPTH_MAX - 1)
			key.parent = chain_plain_root(DEBOX_CHAIN_DEEPER);
	}
	id = chain_intern(&key, st->who.tid);
	*chain_guess(st, kind, flags, stack, site, nr, parent) = id;
	return id;
}

/* ... of a link of a thread of ours. */
static __always_inline u32 chain_of(struct thread_state *st, u32 kind, u32 site, s32 nr, u32 parent)
{
	const u64 *comm = (const u64 *)st->who.comm, *its;
	u32 flags = chain_flags_of(st, kind), stack = chain_stack_of(st, kind, nr);
	u32 id = *chain_guess(st, kind, flags, stack, site, nr, parent);
	struct debox_chain *chain = id ? bpf_map_lookup_elem(&chains, &id) : NULL;

	if (chain) {
		its = (const u64 *)chain->comm;
		if (chain->type == kind && chain->site == site && chain->nr == nr &&
		    chain->parent == parent && chain->uid == st->who.uid && chain->flags == flags &&
		    chain->user_stack == stack && (!stack || chain->serial == st->chain_serial) &&
		    its[0] == comm[0] && its[1] == comm[1])
			return id;
	}
	return chain_look_up(st, kind, site, nr, parent);
}

/* Whose names and places it tells: its user's, and root's if it may do more than its user,
 * or is closed to it. One that ends has no address space any more that says so, and is what it
 * was. `st` NULL: not followed. */
static __always_inline u32 chain_owner(const struct thread_state *st, const struct task_struct *task)
{
	const struct cred *cred = task_read(task)->real_cred;
	u32 uid = cred->uid.val;

	if (cred->euid.val != uid || cred->suid.val != uid)
		return 0;
	if (!task_read(task)->mm)
		return st && st->who.tid ? st->who.uid : 0;
	return task_dumpable(task) == DUMPABLE_BY_USER ? uid : 0;
}

static __always_inline bool task_is_worker(const struct task_struct *task)
{
	return task->flags & PF_WQ_WORKER;
}

#define WORKER_NAME 0x72656b726f776bull /* "kworker" */

/* A kernel worker's own name says which work it did last. */
static __always_inline void who_name(char *to, const struct task_struct *task)
{
	bool worker = task_is_worker(task);
	const u64 *is = (const u64 *)task->comm;

	((comm_word *)to)[0] = worker ? WORKER_NAME : is[0];
	((comm_word *)to)[1] = worker ? 0 : is[1];
}

/* The thread's name and user, of whom the links are. */
static __always_inline void who_renew(struct thread_state *st, const struct task_struct *task)
{
	const u64 *is = (const u64 *)task->comm;
	u64 *was = (u64 *)st->who.comm;
	u32 uid = chain_owner(st, task);
	bool worker = task_is_worker(task);

	if (st->who.tid && st->who.uid == uid && (worker || (was[0] == is[0] && was[1] == is[1])))
		return;
	who_name(st->who.comm, task);
	st->who.uid = uid;
	st->who.tid = pid_of(task);
}

/* What a part of a sleep is explained by: a chain, or what the waker ran or waited for. */
static __always_inline u32 chain_past(struct thread_state *waker, u32 from, s32 key)
{
	u32 kind;
	s32 nr = -1;

	switch (from) {
	case PAST_RAN_USER:
		kind = DEBOX_CHAIN_RAN_USER;
		break;
	case PAST_RAN_CALL:
		kind = DEBOX_CHAIN_RAN_CALL;
		nr = key;
		break;
	case PAST_RAN_CALLS:
		kind = DEBOX_CHAIN_RAN_CALL;
		break;
	case PAST_RAN:
		kind = DEBOX_CHAIN_RAN;
		break;
	case PAST_RUNQ:
		kind = DEBOX_CHAIN_RUNQ;
		break;
	case PAST_EARLIER:
		kind = DEBOX_CHAIN_EARLIER;
		break;
	case PAST_EARLIER_CALL:
		kind = DEBOX_CHAIN_EARLIER;
		nr = key;
		break;
	case PAST_SLEPT:
		kind = DEBOX_CHAIN_SLEPT;
		break;
	default:
		return from;
	}
	return chain_of(waker, kind, DEBOX_SITE_NONE, nr, 0);
}

/* One part of a sleep that has been explained gets its chain. */
VERIFIED_ONCE int chain_part_link(struct thread_state *st, struct thread_state *waker, u32 i, s32 key)
{
	struct stretch *part;

	if (!st || !waker || i >= PARTS_MAX)
		return 0;
	part = &st->parts.part[i];
	/* What it ran before it slept was elsewhere. */
	if (part->chain < PAST_RAN)
		waker->chain_stack = 0;
	part->chain = chain_of(st, DEBOX_CHAIN_SLEEP, st->out_site, st->out_key,
			       chain_past(waker, part->chain, key));
	return 0;
}

/* Each step by itself: the verifier would follow all of them together through
 * every branch. */
VERIFIED_ONCE int chain_explain_step(struct explaining *e, const struct past *past, u32 i,
				     struct parts *parts)
{
	return e && past && parts ? explain_step(e, past, i, parts) : 1;
}

/* `st` sleeps and is woken now by a thread with a past. */
VERIFIED_ONCE int chain_woken(struct thread_state *st, struct thread_state *waker, u64 now,
			      const struct waking *waking)
{
	struct explaining e;
	u32 used;

	if (!st || !waker || !waking)
		return 0;
	explain_begin(&e, st->out_ns, now, waking, &st->parts);
	for (u32 i = 0; i < PAST_MAX; i++)
		if (chain_explain_step(&e, &waker->past, i, &st->parts))
			break;
	explain_since(&e, &waker->past, &st->parts);
	for (u32 i = 0; i < EPOCHS; i++)
		if (explain_epoch(&e, &waker->past, i, &st->parts))
			break;
	explain_end(&e, &st->parts);
	used = st->parts.used;
	for (u32 i = 0; i < PARTS_MAX; i++) {
		if (i >= used)
			break;
		chain_part_link(st, waker, i, waking->key);
	}
	return 0;
}

/* ... by somebody without a past, or by an interrupt: one part. */
VERIFIED_ONCE int chain_rooted(struct thread_state *st, u32 root, u64 now)
{
	struct stretch *part;

	if (!st)
		return 0;
	part = &st->parts.part[0];
	part->begin_ns = st->out_ns;
	part->end_ns = now;
	part->coarse = 0;
	part->chain = chain_of(st, DEBOX_CHAIN_SLEEP, st->out_site, st->out_key, root);
	st->parts.used = 1;
	return 0;
}

static __always_inline struct debox_chain_sums *chain_sums_of(u32 account)
{
	u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&account_chains, &account);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

/* A sleep that is over, part by part, oldest first. */
struct ending {
	u64 end_ns;   /* of the sleep */
	u64 held_ns;  /* where the past's next stretch begins */
	u64 least_ns; /* shorter ones are not handed on by themselves */
	u64 most_ns;  /* of the longest part */
};

/* Each part by itself, see chain_explain_step(). */
VERIFIED_ONCE int chain_part_end(struct thread_state *st, struct ending *e, struct debox_chain_sums *sums, u32 at)
{
	struct stretch *part;
	u32 coarse;
	u64 ns;

	if (!st || !e || at >= PARTS_MAX)
		return 0;
	part = &st->parts.part[at];
	ns = part_fit(part, at, e->end_ns);
	if (!e->held_ns)
		e->held_ns = part->begin_ns;
	if (sums) {
		struct debox_chain_sum *sum = &sums->sum[part->chain & (DEBOX_CHAINS_MAX - 1)];

		__sync_fetch_and_add(&sum->count, 1);
		__sync_fetch_and_add(&sum->total_ns, ns);
		if (ns > sum->max_ns)
			sum->max_ns = ns;
	}
	if (ns >= e->most_ns) {
		e->most_ns = ns;
		st->sleep_chain = part->chain;
		st->sleep_chain_ns = ns;
	}
	if (part->end_ns - e->held_ns < e->least_ns && at)
		return 0;
	coarse = part->coarse ? coarse_from(e->held_ns, coarse_group(part)) : 0;
	past_add_coarse(&st->past, e->held_ns, part->end_ns, st->called_ns, part->chain, coarse);
	e->held_ns = part->end_ns;
	return 0;
}

/* The sleep is over, and nobody was seen to end it. (By itself for the sake of 6.1's stack.) */
VERIFIED_ONCE int chain_unseen(struct thread_state *st, u64 blocked_ns)
{
	if (!st || st->parts.used)
		return 0;
	st->chain_flags = chain_rests(st);
	return chain_rooted(st, chain_plain_root(DEBOX_CHAIN_UNSEEN), st->out_ns + blocked_ns);
}

/*
 * The sleep is over: its parts, which stand until the next one, become the thread's past,
 * and with `account` the account's. What comes down to others is a little coarser than what is
 * counted: a part that is less than a thirty-second of its sleep goes to its
 * neighbour there, or the past would fill with wake-ups.
 */
VERIFIED_ONCE int chain_sleep_end(struct thread_state *st, u64 blocked_ns, u32 account)
{
	struct debox_chain_sums *sums;
	struct ending e = {};
	u32 used;

	if (!st)
		return 0;
	e.end_ns = st->out_ns + blocked_ns;
	e.least_ns = blocked_ns / 32;
	sums = account ? chain_sums_of(st->account) : NULL;
	used = st->parts.used;
	for (u32 i = 0; i < PARTS_MAX; i++) {
		if (i >= used)
			break;
		/* Here, where 6.1 has stack left for it. */
		past_room(&st->past);
		chain_part_end(st, &e, sums, used - 1 - i);
	}
	return 0;
}

#endif
