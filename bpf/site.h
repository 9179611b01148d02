/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where in the kernel does this thread block, without walking its stack again?
 *
 * A walk (bpf_get_stackid) costs 2-3 us. But a blocking place seen once leaves
 * its return addresses at fixed distances from our own frame, so the next time
 * a comparison of those words is enough. Why this can never name a wrong site:
 *
 * - A signature is made from one real walk of one real stack. It holds *every*
 *   stack word, from our frame up to the system call's dispatch, that equals
 *   one of the walk's return addresses; the true ones are therefore among them.
 * - All of them must be equal again, at the same distances. Our own frame and
 *   the code we return to are known. The kernel has no variable-length frames
 *   (it is built with -Wvla), so the distance from one return address to the
 *   next follows from the return address alone: by induction from our frame
 *   outwards, equal words mean the same chain of calls.
 * - The one frame that does vary, do_syscall_64 with its randomised stack
 *   offset, is the outermost: what lies beyond it is not compared, only its
 *   caller, the entry code, stands there. Outside of system calls that is
 *   compared: a fault and an interrupt leave through the same functions.
 * - A fault that hits user mode ends its chain at its entry code; one that
 *   hits the kernel goes on from there, over the very same words. So chains
 *   outside of system calls, which have no randomised offset, must also end
 *   at the same distance (stack_end), and are never taken for one inside.
 * - Stale words that happen to equal an address are compared as well. They can
 *   only make us walk once more, never accept. (Of the dispatch's own address,
 *   whose surroundings are random, those places are kept that several walks
 *   of the same chain share; the true one is always among them.)
 *
 * With `verify_sites` each recognised site is walked too, and differences are
 * counted (site_mismatches); the truth tests run that way.
 *
 * The anchor is the address of a variable in sched_switch's own frame. From
 * 6.13 on, programs with 64 bytes of stack or more get a stack of their own
 * elsewhere; the program stays below that, and an anchor outside the task's
 * stack falls back to walking.
 */
#ifndef DEBOX_SITE_H
#define DEBOX_SITE_H

#include "label.h"
#include "state.h"

#define KERNEL_TEXT_MIN 0xffffffff80000000ull /* and modules; x86-64 */

struct stack_frames {
	u64 address[STACK_DEPTH];
};
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, STACKS_MAX);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct stack_frames));
} stacks SEC(".maps");
/* The table keeps the first of two stacks that hash alike, so there is a
 * second one for the others: sites from STACKS_MAX on. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, STACKS_SECOND_MAX);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct stack_frames));
} stacks_second SEC(".maps");

struct signature {
	u32 stack;                   /* id in `stacks`, or STACKS_MAX + id in `stacks_second` */
	u32 site;                    /* canonical site number */
	u32 words;                   /* entries used below */
	u32 span;                    /* bytes to read, from the anchor upwards */
	u16 offset[SIGNATURE_WORDS]; /* in words */
	u64 value[SIGNATURE_WORDS];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SIGNATURES_MAX);
	__type(key, u32);
	__type(value, struct signature);
} signatures SEC(".maps");

/* Candidates for a system call and the function that called schedule(). */
struct site_hint {
	u32 used;
	u32 signature[HINT_SIGNATURES];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SIGNATURES_MAX);
	__type(key, u64);
	__type(value, struct site_hint);
} site_hints SEC(".maps");

/* What the user side learns signatures from. */
struct stack_sample {
	u32 stack;
	u32 bytes;
	u64 hint;
	u64 words[STACK_WORDS];
};
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} stack_samples SEC(".maps");

/* Walks of a stack. At each power of two up to SAMPLES_UNTIL a sample goes to
 * the user side, which needs more than one to tell stale words from true ones;
 * once a signature fits, no walk happens and no sample is sent. */
#define SAMPLES_UNTIL 4096
u32 stack_seen[SITES_MAX];

/* Bytes from the anchor to the end of the stack for chains outside of system
 * calls; 0 for those inside, where the distance is random. */
u16 stack_end[SITES_MAX];

/* Distance, in words, from the anchor to the return address of schedule();
 * 0 until the user side has learned it. */
u64 schedule_word;

struct stack_copy {
	u64 words[STACK_WORDS];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct stack_copy);
} stack_copies SEC(".maps");

/* `copy` of the stack from `anchor` on; NULL: its words are read as they are compared. */
static __always_inline bool signature_matches(const struct signature *sig, u64 anchor,
					      const struct stack_copy *copy)
{
	u32 n = sig->words;

	if (!n)
		return false;
	for (u32 i = 0; i < SIGNATURE_WORDS; i++) {
		u32 at;

		if (i >= n)
			break;
		at = sig->offset[i] & (STACK_WORDS - 1);
		if ((copy ? copy->words[at] : kernel_word(anchor + at * 8)) != sig->value[i])
			return false;
	}
	return true;
}

/* Returns the signature's number, NONE if it does not match. At most `limit`
 * bytes of the stack may be read. */
VERIFIED_ONCE u32 signature_try(struct thread_state *st, u32 index, u32 limit, u32 end)
{
	u32 zero = 0;
	struct signature *sig = bpf_map_lookup_elem(&signatures, &index);
	struct stack_copy *copy;
	u32 span;

	if (!sig || !st)
		return NONE;
	if (stack_end[sig->stack & (SITES_MAX - 1)] != end)
		return NONE;
	span = sig->span;
	if (!span || span > limit || span > sizeof(copy->words))
		return NONE;
	if (kernel_word_is_load())
		return signature_matches(sig, st->anchor, NULL) ? index : NONE;
	copy = bpf_map_lookup_elem(&stack_copies, &zero);
	if (!copy || bpf_probe_read_kernel(copy->words, span, (void *)st->anchor))
		return NONE;
	return signature_matches(sig, 0, copy) ? index : NONE;
}

/* A stack that no signature fits: its id is its site, and a sample of the raw
 * words goes to the user side now and then. */
VERIFIED_ONCE u32 site_walked(struct thread_state *st, long id, u64 hint, u32 limit, u32 end)
{
	struct stack_sample *sample;
	u32 seen;

	if (!st)
		return DEBOX_SITE_NONE;
	if (id < 0 || id >= SITES_WALKED_MAX) {
		__sync_fetch_and_add(&counters_here()->site_failures, 1);
		return DEBOX_SITE_NONE;
	}
	__sync_fetch_and_add(&counters_here()->site_walks, 1);
	stack_end[id & (SITES_MAX - 1)] = end;
	seen = __sync_fetch_and_add(&stack_seen[id & (SITES_MAX - 1)], 1) + 1;
	if ((seen & (seen - 1)) || seen > SAMPLES_UNTIL)
		return id;
	sample = bpf_ringbuf_reserve(&stack_samples, sizeof(*sample), 0);
	if (!sample) {
		/* try again at the next walk */
		__sync_fetch_and_add(&stack_seen[id & (SITES_MAX - 1)], -1);
		return id;
	}
	sample->stack = id;
	sample->hint = hint;
	if (limit > sizeof(sample->words))
		limit = 0;
	/* One register for the bound and the use, or 6.1 forgets the bound. */
	barrier_var(limit);
	sample->bytes = limit;
	if (bpf_probe_read_kernel(sample->words, limit, (void *)st->anchor))
		sample->bytes = 0;
	bpf_ringbuf_submit(sample, 0);
	return id;
}

struct site_search {
	u64 hint;
	u32 limit; /* bytes of the stack that may be read */
	u32 end;
	u32 found; /* the signature that fits, or NONE */
	u32 reserved;
};

/* Whether the stack is a known one's. */
VERIFIED_ONCE int site_known(struct thread_state *st, s32 nr, struct site_search *s)
{
	u64 word = 0, hint, room;
	u32 limit = 0, end = 0, found = NONE;
	struct site_hint *candidates;

	if (!st || !s)
		return 0;
	room = st->stack_base + THREAD_SIZE - st->anchor;
	if (st->anchor > st->stack_base && room <= THREAD_SIZE) {
		limit = room & (THREAD_SIZE - 1) & ~7u;
		if (limit > STACK_WORDS * 8)
			limit = STACK_WORDS * 8;
		if (nr < 0)
			end = room & (2 * THREAD_SIZE - 1);
	}
	if (limit) {
		if (st->last_signature[nr & (LAST_SIGNATURES - 1)])
			found = signature_try(st, st->last_signature[nr & (LAST_SIGNATURES - 1)], limit, end);
		if (found == NONE) {
			u64 at = schedule_word;

			if (at && at * 8 < limit)
				word = kernel_word(st->anchor + at * 8);
			/* Of who dies, and calls __schedule() itself, something else
			 * stands there, different each time. */
			if (word < KERNEL_TEXT_MIN)
				word = 0;
		}
	}
	hint = word ^ ((u64)(u32)nr << 48);
	if (limit && found == NONE) {
		candidates = bpf_map_lookup_elem(&site_hints, &hint);
		if (candidates) {
			for (u32 i = 0; i < HINT_SIGNATURES; i++) {
				u32 index = candidates->signature[i];

				if (i >= candidates->used)
					break;
				found = signature_try(st, index, limit, end);
				if (found != NONE)
					break;
			}
		}
	}
	s->hint = hint;
	s->limit = limit;
	s->end = end;
	s->found = found;
	return 0;
}

/* The site at which `task` (current, about to be switched out) blocks. */
static __noinline u32 site_identify(void *ctx, struct thread_state *st, s32 nr)
{
	struct site_search s = {};
	u32 found;
	long id = -1;
	u64 walk;

	if (!st)
		return DEBOX_SITE_NONE;
	st->out_signature = 0;
	site_known(st, nr, &s);
	found = s.found;
	/* One call for both uses, which clang must not split into two: the id
	 * covers our own frames as well. */
	walk = found == NONE || verify_sites;
	asm volatile(""
		     : "+r"(walk));
	if (walk) {
		id = bpf_get_stackid(ctx, &stacks, 0);
		if (id == -17) { /* EEXIST */
			id = bpf_get_stackid(ctx, &stacks_second, 0);
			if (id >= 0)
				id += STACKS_MAX;
		}
	}
	asm volatile(""
		     : "+r"(id));
	if (found != NONE) {
		struct signature *sig = bpf_map_lookup_elem(&signatures, &found);

		if (sig) {
			st->last_signature[nr & (LAST_SIGNATURES - 1)] = found;
			st->out_signature = found;
			__sync_fetch_and_add(&counters_here()->site_hits, 1);
			/* A walk that failed says nothing of the place. */
			if (verify_sites && id < 0)
				__sync_fetch_and_add(&counters_here()->site_failures, 1);
			else if (verify_sites && id != sig->stack) {
				struct counters *here = counters_here();

				__sync_fetch_and_add(&here->site_mismatches, 1);
				here->site_mismatch_last = (u64)sig->stack << 32 | (u32)id;
			}
			return sig->site;
		}
	}
	label_find(ctx, id);
	return site_walked(st, id, s.hint, s.limit, s.end);
}

#endif
