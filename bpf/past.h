/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How is a sleep explained by what its waker did meanwhile?
 *
 * On plain numbers: chain.h asks in the kernel, tests/chain compiles this file
 * for the host.
 *
 * A thread's past is the list of its last stretches off the CPU: asleep (with
 * the chain that explains the sleep) or waiting for a CPU. Between two of them
 * it ran. So at every moment since `since_ns` it is known what the thread was
 * doing, and only one thing.
 *
 * The rule: a sleep from `from` to `to` is cut where the waker's past is cut,
 * from its end backwards. Each part is explained by the stretch of the waker
 * that it falls into; what lies before the oldest one known is EARLIER.
 *
 * The parts add up to the sleep: each part ends where the one after it begins
 * (`at` goes down from `to`, and is the end of the next part), the last one
 * begins at `from`, since whatever is left when the past is used up becomes one
 * part of its own. Nothing is weighed or shared out.
 */
#ifndef DEBOX_PAST_H
#define DEBOX_PAST_H

#define PAST_MAX 32u /* a power of two */
#define PARTS_MAX 24u

/* What a part is explained by when it is not a chain; chains are numbered from
 * 1 up. */
#define PAST_RAN 0xffffff01u       /* the waker ran: own code and calls, or it is not known which */
#define PAST_RAN_USER 0xffffff02u  /* ... its own code */
#define PAST_RAN_CALL 0xffffff03u  /* ... the call that it wakes from */
#define PAST_RAN_CALLS 0xffffff04u /* ... calls before that */
#define PAST_RUNQ 0xffffff05u      /* it waited for a CPU */
#define PAST_EARLIER 0xffffff06u   /* before what is known of it */

struct stretch {
	__u64 begin_ns;
	__u64 end_ns;
	__u64 called_ns; /* its time on a CPU in calls, all of its life, until then */
	__u32 chain;     /* or PAST_* */
	__u32 reserved;
};

struct past {
	__u64 since_ns;  /* known from here on; 0: not at all */
	__u64 called_ns; /* as in stretch, at that time */
	__u32 next;      /* stretch[(next - 1) % PAST_MAX] is the newest */
	__u32 used;
	struct stretch stretch[PAST_MAX];
};

/* A part of a sleep. Newest first: part 0 ends when the sleep ends. */
struct parts {
	__u32 used;
	__u32 reserved;
	struct stretch part[PARTS_MAX];
};

/* What the waker is in as it wakes. */
struct waking {
	__u64 call_ns;   /* when its call began; 0: it is in none */
	__u64 called_ns; /* as in stretch, until now */
	__u32 told;      /* its calls are watched; else the two are not known */
	__s32 key;       /* nr key of the call, -1 none */
};

#define PAST_INLINE static inline __attribute__((always_inline))

/* Stretches are added in the order of time and do not overlap. */
PAST_INLINE void past_add(struct past *past, __u64 begin_ns, __u64 end_ns, __u64 called_ns, __u32 chain)
{
	struct stretch *stretch = &past->stretch[past->next & (PAST_MAX - 1)];

	if (past->used < PAST_MAX) {
		past->used++;
	} else {
		/* the oldest goes, and with it what was before */
		past->since_ns = stretch->end_ns;
		past->called_ns = stretch->called_ns;
	}
	if (!past->since_ns) {
		past->since_ns = begin_ns;
		past->called_ns = called_ns;
	}
	stretch->begin_ns = begin_ns;
	stretch->end_ns = end_ns;
	stretch->called_ns = called_ns;
	stretch->chain = chain;
	past->next++;
}

PAST_INLINE void part_add(struct parts *parts, __u64 begin_ns, __u64 end_ns, __u32 chain)
{
	__u32 at = parts->used;

	if (at >= PARTS_MAX)
		return;
	parts->part[at].begin_ns = begin_ns;
	parts->part[at].end_ns = end_ns;
	parts->part[at].chain = chain;
	parts->used = at + 1;
}

PAST_INLINE __u64 later_of(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/*
 * What a thread ran in the part (`part_ns` long) of a stretch on the CPU
 * (`ran_ns` long) of which it spent `called_ns` in calls. Of the part at most
 * `called_ns` can be calls, and at most the rest of the stretch own code: what
 * cannot be a sixteenth of the part is not named.
 */
PAST_INLINE __u32 past_ran(__u64 part_ns, __u64 ran_ns, __u64 called_ns)
{
	__u64 own_ns = ran_ns > called_ns ? ran_ns - called_ns : 0;

	if (called_ns * 16 <= part_ns)
		return PAST_RAN_USER;
	if (own_ns * 16 <= part_ns)
		return PAST_RAN_CALLS;
	return PAST_RAN;
}

/* A sleep that is being explained: what is left of it is `from`..`at`. */
struct explaining {
	__u64 from;
	__u64 at;
	__u64 ran_end;   /* where the stretch on the CPU before `at` ends */
	__u64 called_ns; /* as in stretch, at that time */
	__u32 told;
	__u32 full;
};

PAST_INLINE __u32 explaining_ran(const struct explaining *e, __u64 begin, __u64 ran_begin, __u64 called_ns)
{
	return e->told ? past_ran(e->at - begin, e->ran_end - ran_begin, e->called_ns - called_ns) :
			 PAST_RAN;
}

/*
 * Explains the sleep `from`..`to` by the past of a waker that runs now: begin,
 * a step for each stretch until one says that it was the last, end.
 *
 * Of the last stretch on the CPU the call that it wakes from is a part of its own
 * where it is at least a sixteenth of it; a shorter one (the wake-up itself)
 * counts as what came before.
 */
PAST_INLINE void explain_begin(struct explaining *e, const struct past *past, __u64 from, __u64 to,
			       const struct waking *waking, struct parts *parts)
{
	__u64 since = past->since_ns ? past->since_ns : to, call_ns = waking->call_ns;

	parts->used = 0;
	e->from = from;
	e->at = to;
	e->ran_end = to;
	e->called_ns = waking->called_ns;
	e->told = waking->told;
	e->full = 0;
	if (!e->told || !call_ns || call_ns >= to)
		return;
	since = later_of(since, from);
	if (past->used)
		since = later_of(since, past->stretch[(past->next - 1) & (PAST_MAX - 1)].end_ns);
	call_ns = later_of(call_ns, since);
	if (call_ns >= to || (to - call_ns) * 16 < to - since)
		return;
	part_add(parts, call_ns, to, PAST_RAN_CALL);
	e->at = call_ns;
	e->ran_end = call_ns;
	e->called_ns -= to - call_ns;
}

PAST_INLINE int explain_step(struct explaining *e, const struct past *past, __u32 i, struct parts *parts)
{
	const struct stretch *stretch = &past->stretch[(past->next - 1 - i) & (PAST_MAX - 1)];
	__u64 begin;

	if (i >= past->used || e->at <= e->from)
		return 1;
	if (parts->used + 3 > PARTS_MAX) {
		e->full = 1;
		return 1;
	}
	if (stretch->end_ns < e->at) {
		begin = later_of(stretch->end_ns, e->from);
		part_add(parts, begin, e->at,
			 explaining_ran(e, begin, stretch->end_ns, stretch->called_ns));
		e->at = begin;
	}
	begin = later_of(stretch->begin_ns, e->from);
	if (begin < e->at) {
		part_add(parts, begin, e->at, stretch->chain);
		e->at = begin;
	}
	e->ran_end = stretch->begin_ns;
	e->called_ns = stretch->called_ns;
	return 0;
}

PAST_INLINE void explain_end(struct explaining *e, const struct past *past, struct parts *parts)
{
	__u64 since = past->since_ns, begin;

	if (!e->full && since && e->at > e->from && since < e->at) {
		begin = later_of(since, e->from);
		part_add(parts, begin, e->at, explaining_ran(e, begin, since, past->called_ns));
		e->at = begin;
	}
	if (e->at > e->from)
		part_add(parts, e->from, e->at, PAST_EARLIER);
}

/*
 * The scheduler's books say how long the sleep was, and the wake-up was seen
 * a moment before its end: the newest part takes the difference, or gives it.
 * `end`: of the sleep.
 */
PAST_INLINE __u64 part_fit(struct stretch *part, __u32 index, __u64 end)
{
	if (part->end_ns > end || !index)
		part->end_ns = end;
	if (part->begin_ns > end)
		part->begin_ns = end;
	return part->end_ns - part->begin_ns;
}

#endif
