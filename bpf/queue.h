/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * In which queue of the kernel does a thread wait, and how many others wait there,
 * watched or not?
 *
 * A thread that waits has put a node into a list, and nearly always that node lies
 * on its own stack beside a pointer to itself. So the node is searched there once: the
 * word that is the thread's address, with a list's links at the distance that
 * one of the kernel's ways to wait has them, and with neighbours that point back. (A
 * node that is left over from an earlier wait is in no list: its neighbours do
 * not.) Frames have one length each (site.h), so the node of a place that was
 * recognised lies where it lay before, and is only looked at again.
 *
 * The list is then walked, forwards, each node's way back compared: others add
 * themselves and leave meanwhile, and a walk that meets a half-done change is not
 * believed. What cannot be known is said to be so (DEBOX_SLEEP_WAITERS_*):
 * - poll and select wait in many queues at once, timers in none.
 * - Queues of hashed addresses (pages, bits of inodes and buffers) hold those who wait
 *   for something else as well. They lie in the kernel's image, not among its
 *   objects; of them only "nobody else" is told. Futexes carry their key, and
 *   those with the same one are counted.
 */
#ifndef DEBOX_QUEUE_H
#define DEBOX_QUEUE_H

#include "state.h"
#include "site.h"

#define QUEUE_NONE 0u
#define QUEUE_WAIT 1u   /* struct wait_queue_entry */
#define QUEUE_SIMPLE 2u /* struct swait_queue: completions */
#define QUEUE_LIST 3u   /* struct mutex_waiter, rwsem_waiter, semaphore_waiter */
#define QUEUE_FUTEX 4u  /* struct futex_q */

#define QUEUE_COUNT_WHOLE 0u
#define QUEUE_COUNT_MORE 1u
#define QUEUE_COUNT_BROKEN 2u

/* Nodes that are looked at; more than are counted, since not each is a thread. */
#define QUEUE_STEPS 96u

/* x86-64: the kernel's text and data, and its modules; the rest of its half. */
#define KERNEL_IMAGE 0xffffffff80000000ull
#define KERNEL_HALF 0xff00000000000000ull

/* A node's links stand at the same distance from what tells whose it is in all
 * kernels so far; where they do not, nothing is counted. */
static __always_inline bool queue_layouts_fit(void)
{
	if (!bpf_core_type_exists(struct mutex_waiter) || !bpf_core_type_exists(struct swait_queue) ||
	    !bpf_core_type_exists(struct futex_q))
		return false;
	return bpf_core_field_offset(struct wait_queue_entry, entry) -
			       bpf_core_field_offset(struct wait_queue_entry, private) ==
		       16 &&
	       bpf_core_field_offset(struct wait_queue_entry, entry) -
			       bpf_core_field_offset(struct wait_queue_entry, func) ==
		       8 &&
	       bpf_core_field_offset(struct swait_queue, task_list) -
			       bpf_core_field_offset(struct swait_queue, task) ==
		       8 &&
	       bpf_core_field_offset(struct mutex_waiter, task) -
			       bpf_core_field_offset(struct mutex_waiter, list) ==
		       16 &&
	       bpf_core_field_offset(struct futex_q, task) -
			       bpf_core_field_offset(struct futex_q, list.node_list) ==
		       16;
}

struct futex_key_copy {
	u64 object;
	u64 word;
	u32 offset;
	u32 reserved;
};

static __always_inline void futex_key_read(struct futex_key_copy *key, u64 node)
{
	u64 at = node - bpf_core_field_offset(struct futex_q, list.node_list) +
		 bpf_core_field_offset(struct futex_q, key);

	key->object = kernel_word(at);
	key->word = kernel_word(at + 8);
	key->offset = kernel_int(at + 16);
}

/* One node of the walk; 1: it is over. */
VERIFIED_ONCE u32 queue_step(struct thread_state *st)
{
	struct futex_key_copy key;
	struct queue *q;
	u64 at, function, owner;

	if (!st)
		return 1;
	q = &st->queue;
	if (q->at == q->end)
		return 1;
	if (q->others >= DEBOX_WAITERS_MAX) {
		q->result = QUEUE_COUNT_MORE;
		return 1;
	}
	at = q->at;
	if (kernel_word(at + 8) != q->before) {
		q->result = QUEUE_COUNT_BROKEN;
		return 1;
	}
	switch (q->kind) {
	case QUEUE_WAIT:
		function = kernel_word(at - 8);
		owner = kernel_word(at - 16);
		/* A queue's head has its lock where an entry has a function. */
		if (function < KERNEL_IMAGE) {
			q->heads++;
			q->head = at;
		} else if (owner && owner != q->task)
			q->others++;
		break;
	case QUEUE_SIMPLE:
		owner = kernel_word(at - 8);
		if (owner < KERNEL_HALF) {
			q->heads++;
			q->head = at;
		} else if (owner != q->task)
			q->others++;
		break;
	case QUEUE_LIST:
		/* Without the head's address it is counted as one, see queue_enter(). */
		if (!q->head || kernel_word(at + 16) != q->task)
			q->others++;
		break;
	case QUEUE_FUTEX:
		if (kernel_word(at + 16) == q->task)
			break;
		futex_key_read(&key, at);
		if (key.object == q->key_object && key.word == q->key_word && key.offset == q->key_offset)
			q->others++;
		break;
	}
	q->before = at;
	q->at = kernel_word(at);
	return 0;
}

static long queue_step_of(u32 i, struct thread_state **st)
{
	if (!queue_step(*st))
		return 0;
	(*st)->queue.over = 1;
	return 1;
}

/* All nodes of the list but the one at `start`. */
VERIFIED_ONCE int queue_walk(struct thread_state *st, u64 start)
{
	struct queue *q;

	if (!st)
		return 0;
	q = &st->queue;
	q->end = start;
	q->before = start;
	q->others = 0;
	q->heads = 0;
	q->result = QUEUE_COUNT_WHOLE;
	q->at = kernel_word(start);
	if (!q->at) {
		q->result = QUEUE_COUNT_BROKEN;
		return 0;
	}
	q->over = 0;
	bpf_loop(QUEUE_STEPS, queue_step_of, &st, 0);
	if (!q->over)
		q->result = QUEUE_COUNT_BROKEN;
	return 0;
}

/* Whether the node at `node` is in a list that other nodes are in. */
static __always_inline bool node_linked(u64 node, u64 next, u64 prev)
{
	if (next == node || next < KERNEL_HALF || prev < KERNEL_HALF || (next | prev) & 7)
		return false;
	return kernel_word(next + 8) == node && kernel_word(prev) == node;
}

/* Whether the thread's address, at this word above the anchor, stands in a node of a
 * list; then queue.own is it. */
static __always_inline u32 queue_node_at(struct thread_state *st, u32 at)
{
	u64 here, after, next, prev, before[2];
	struct queue *q;

	if (at < 2)
		return 0;
	q = &st->queue;
	here = st->anchor + (u64)at * 8;
	if (kernel_word(here) != q->task)
		return 0;
	q->head = 0;
	after = kernel_word(here + 8);
	next = kernel_word(here + 16);
	prev = kernel_word(here + 24);
	if (after >= KERNEL_IMAGE && node_linked(here + 16, next, prev)) {
		q->kind = QUEUE_WAIT;
		q->own = here + 16;
		if (next == prev)
			q->head = next;
		return 1;
	}
	before[0] = kernel_word(here - 16);
	before[1] = kernel_word(here - 8);
	if (node_linked(here - 16, before[0], before[1])) {
		q->kind = QUEUE_LIST;
		q->own = here - 16;
		if (before[0] == before[1])
			q->head = before[0];
		return 1;
	}
	if (node_linked(here + 8, after, next)) {
		q->kind = QUEUE_SIMPLE;
		q->own = here + 8;
		if (after == next)
			q->head = after;
		return 1;
	}
	return 0;
}

/* For the search: each place by itself. */
VERIFIED_ONCE u32 queue_verify(struct thread_state *st, u32 at)
{
	return st ? queue_node_at(st, at) : 0;
}

/* Where the node lies at a place that a signature recognises: its word above the anchor,
 * 0: not found yet. */
u16 signature_node[SIGNATURES_MAX];
/* How often it was searched without being found. */
u8 signature_searched[SIGNATURES_MAX];
#define SEARCHES_MAX 16

struct searched {
	struct thread_state *st;
	u64 words; /* so many of the stack are known */
	u64 found;
};

static long queue_search_at(u32 i, struct searched *s)
{
	u32 zero = 0, at = i + 2;
	struct stack_copy *copy = bpf_map_lookup_elem(&stack_copies, &zero);

	if (!copy || at >= STACK_WORDS - 4 || at >= s->words)
		return 1;
	if (copy->words[at] != s->st->queue.task || !queue_verify(s->st, at))
		return 0;
	s->found = at;
	return 1;
}

/* The innermost node, searched from the anchor upwards; its word, 0: none. */
VERIFIED_ONCE u32 queue_search(struct thread_state *st)
{
	u32 zero = 0, limit = 0;
	struct stack_copy *copy = bpf_map_lookup_elem(&stack_copies, &zero);
	struct searched s = { .st = st };
	u64 room;

	if (!st || !copy)
		return 0;
	room = st->stack_base + THREAD_SIZE - st->anchor;
	if (st->anchor <= st->stack_base || room > THREAD_SIZE)
		return 0;
	limit = room & (THREAD_SIZE - 1) & ~7u;
	if (limit > sizeof(copy->words))
		limit = sizeof(copy->words);
	/* One register for the bound and the use, or 6.1 forgets the bound. */
	barrier_var(limit);
	if (bpf_probe_read_kernel(copy->words, limit, (void *)st->anchor))
		return 0;
	s.words = limit / 8;
	bpf_loop(STACK_WORDS, queue_search_at, &s, 0);
	return s.found;
}

/* The node of the thread that is going to sleep: false when none is known. */
static __always_inline u32 queue_find(struct thread_state *st)
{
	u32 signature, word;

	signature = st->out_signature & (SIGNATURES_MAX - 1);
	if (signature) {
		word = signature_node[signature];
		if (word)
			return queue_node_at(st, word);
		if (signature_searched[signature] >= SEARCHES_MAX)
			return 0;
	}
	word = queue_search(st);
	if (!signature)
		return word;
	if (word)
		signature_node[signature] = word;
	else
		signature_searched[signature]++;
	return word;
}

/* A futex's queue is shared by those whose addresses hash alike; the node tells which
 * one, and of which address. */
static __noinline int queue_futex(struct thread_state *st)
{
	struct futex_key_copy key = {};
	struct queue *q;
	u64 own, lock;

	if (!st)
		return 0;
	q = &st->queue;
	own = q->own - bpf_core_field_offset(struct futex_q, list.node_list);
	lock = KERNEL_WORD(struct futex_q, own, lock_ptr);
	futex_key_read(&key, q->own);
	q->head = 0;
	if (lock < KERNEL_HALF || !key.object || !bpf_core_type_exists(struct futex_hash_bucket))
		return 0;
	q->kind = QUEUE_FUTEX;
	q->key_object = key.object;
	q->key_word = key.word;
	q->key_offset = key.offset;
	q->head = lock - bpf_core_field_offset(struct futex_hash_bucket, lock) +
		  bpf_core_field_offset(struct futex_hash_bucket, chain.node_list);
	return 0;
}

/* DEBOX_SLEEP_WAITERS_ENTRY and _MORE for what was walked; 0: not known. */
static __always_inline u32 queue_flags(const struct queue *q)
{
	if (q->result == QUEUE_COUNT_BROKEN || q->heads > 1 || (q->many && q->others))
		return 0;
	return DEBOX_SLEEP_WAITERS_ENTRY |
	       (q->result == QUEUE_COUNT_MORE ? DEBOX_SLEEP_WAITERS_ENTRY_MORE : 0);
}

/*
 * The thread is going to sleep. `head` of a lock's list, or 0: it is searched for;
 * `kind` of that list.
 */
VERIFIED_ONCE u32 queue_enter(struct thread_state *st, u64 head, u32 kind, u32 futex)
{
	struct queue *q;
	u32 flags;

	if (!st || !queue_layouts_fit())
		return 0;
	q = &st->queue;
	q->task = bpf_get_current_task();
	q->own = 0;
	q->many = 0;
	q->head = head;
	q->kind = kind;
	if (!head) {
		if (!queue_find(st)) {
			q->kind = QUEUE_NONE;
			return 0;
		}
		if (futex && q->kind == QUEUE_LIST) {
			queue_futex(st);
			if (!q->head)
				return 0;
		} else if (q->head) {
			/* It and the head, and nobody else. */
			q->many = q->head >= KERNEL_IMAGE;
			q->others = 0;
			return DEBOX_SLEEP_WAITERS_ENTRY;
		}
	}
	queue_walk(st, q->head ? q->head : q->own);
	if (!head) {
		/* one of them is the head */
		if (q->kind == QUEUE_LIST && q->others)
			q->others--;
		q->many = q->kind != QUEUE_FUTEX && q->head >= KERNEL_IMAGE;
	}
	flags = queue_flags(q);
	if (!head && (q->kind == QUEUE_WAIT || q->kind == QUEUE_SIMPLE) && !q->heads &&
	    q->result == QUEUE_COUNT_WHOLE)
		flags = 0;
	if (!flags) {
		q->others = 0;
		q->head = 0;
	}
	return flags;
}

/* The sleep is over: who waits there now? `others` is set as well. */
static __always_inline u32 queue_leave(struct thread_state *st)
{
	u32 flags;

	if (!st->queue.head || !queue_layouts_fit())
		return 0;
	/* Nobody is the most frequent, and needs no walk. */
	if (kernel_word(st->queue.head) == st->queue.head && kernel_word(st->queue.head + 8) == st->queue.head) {
		st->queue.others = 0;
		return DEBOX_SLEEP_WAITERS_EXIT;
	}
	queue_walk(st, st->queue.head);
	flags = queue_flags(&st->queue);
	if (!flags || st->queue.heads) {
		st->queue.others = 0;
		return 0;
	}
	return flags << 1 & (DEBOX_SLEEP_WAITERS_EXIT | DEBOX_SLEEP_WAITERS_EXIT_MORE);
}

#endif
