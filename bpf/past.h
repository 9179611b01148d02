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
 * What lies further back than PAST_MAX stretches is kept as sums, by epochs: how long it
 * was in what, but not when. The newest epoch is of EPOCH_STRETCHES, each further one
 * of up to four times as many, the last one of all that was before. A sleep that
 * reaches over a whole epoch is explained by its sums. So are the stretches of one that is
 * cut into more parts than there is room for: of them, too, only sums by what it was in
 * are kept. Of an epoch that began before the sleep nothing says which part of it was before: of
 * what it was in for longer than that, so much the rest is surely shared, and all else is EARLIER.
 * (Less than 1/32 of what is shared is borne: it is left out of the sums.)
 *
 * Parts that were sums lie one after the other in no true order. Whoever is woken by
 * the one who slept so finds them as its stretches, marked `coarse`, and takes of them what it
 * would take of an epoch.
 *
 * The parts add up to the sleep: each part ends where the one after it begins
 * (`at` goes down from `to`, and is the end of the next part), the last one
 * begins at `from`, since whatever is left when the past is used up becomes one
 * part of its own. Sums are of time that `at` has gone down by, so laid out from where
 * it stood they end where it stands.
 */
#ifndef DEBOX_PAST_H
#define DEBOX_PAST_H

#define PAST_MAX 16u /* a power of two */
#define EPOCHS 4u
#define EPOCH_STRETCHES 16u
#define EPOCH_CHAINS 8u
#define PARTS_MAX 24u
#define PARTS_APART 10u /* from here on parts are sums; see explain_step() */
/* Of a time that is known as sums only, so little may lie before the sleep. */
#define EPOCH_BORNE 32u

/* What a part is explained by when it is not a chain; chains are numbered from
 * 1 up. */
#define PAST_RAN 0xffffff01u          /* the waker ran: own code and calls, or it is not known which */
#define PAST_RAN_USER 0xffffff02u     /* ... its own code */
#define PAST_RAN_CALL 0xffffff03u     /* ... the call that it wakes from */
#define PAST_RAN_CALLS 0xffffff04u    /* ... other calls */
#define PAST_RUNQ 0xffffff05u         /* it waited for a CPU */
#define PAST_EARLIER 0xffffff06u      /* before what is known of it */
#define PAST_EARLIER_CALL 0xffffff07u /* ... in the call that it wakes from, running or not */
#define PAST_SLEPT 0xffffff08u        /* it slept, by more chains than are kept */

struct stretch {
	__u64 begin_ns;
	__u64 end_ns;
	__u64 called_ns; /* its time on a CPU in calls, all of its life, until then */
	__u32 chain;     /* or PAST_* */
	__u32 coarse;    /* 0, or 1 + how long after the beginning of what was summed up, in 1,024 ns */
};

/* Some of the time before `since_ns`, up to where the newer epoch begins. */
struct epoch {
	__u64 begin_ns;
	__u64 own_ns;
	__u64 calls_ns;
	__u64 runq_ns;
	__u64 others_ns; /* asleep, by smaller chains that found no room */
	__u64 ns[EPOCH_CHAINS];
	__u32 chain[EPOCH_CHAINS];
	__u32 stretches; /* 0: there is none */
	__u32 reserved;
};

struct past {
	__u64 since_ns;  /* known, stretch by stretch, from here on; 0: not at all */
	__u64 called_ns; /* as in stretch, at that time */
	__u32 next;      /* stretch[(next - 1) % PAST_MAX] is the newest */
	__u32 used;
	struct stretch stretch[PAST_MAX];
	struct epoch epoch[EPOCHS]; /* the newest first */
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
/* The kernel side has what loops verified by itself. (It calls eight functions deep at most, which
 * past_room() and what it calls just fit into.) */
#ifndef PAST_FUNCTION
#define PAST_FUNCTION static inline
#define PAST_FORGOTTEN(value, any) (value)
#endif

/* How long it has run at `now` without a sleep, if all of it is after `from`. */
PAST_INLINE __u64 past_running(const struct past *past, __u64 from, __u64 now)
{
	const struct stretch *newest = &past->stretch[(past->next - 1) & (PAST_MAX - 1)];
	__u64 since = past->since_ns;

	if (!since)
		return 0;
	if (past->used && newest->chain == PAST_RUNQ)
		since = newest->begin_ns;
	else if (past->used)
		since = newest->end_ns;
	since = since > from ? since : from;
	return now > since ? now - since : 0;
}

PAST_INLINE __u64 later_of(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

PAST_INLINE __u64 earlier_of(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/* What begins at `begin` lies in a time, from `group` on, of which only sums are known. */
PAST_INLINE __u32 coarse_from(__u64 begin, __u64 group)
{
	__u64 after = begin > group ? begin - group : 0;

	return 1 + (__u32)earlier_of(after >> 10, 0xfffffffeull);
}

/* Beginnings of groups are known to 1,024 ns, and two of them differ by twice that. */
#define COARSE_ROUNDED 2048u

/* When the time began of which a coarse stretch was a part. Too long ago to be said: at the
 * beginning of all time, which nothing reaches over. */
PAST_INLINE __u64 coarse_group(const struct stretch *stretch)
{
	__u64 after = (__u64)(stretch->coarse - 1) << 10;

	return stretch->coarse == ~0u || after > stretch->begin_ns ? 0 : stretch->begin_ns - after;
}

/* Where there is no room, the smallest is told without its chain. */
PAST_FUNCTION int epoch_slept(struct epoch *epoch, __u32 chain, __u64 ns)
{
	__u64 least = ~0ull, slot;
	__u32 at;

	if (!epoch || !ns)
		return 0;
	for (__u32 i = 0; i < EPOCH_CHAINS; i++) {
		if (epoch->ns[i] && epoch->chain[i] != chain) {
			/* Time and place in one number: they are compared together. */
			slot = epoch->ns[i] << 3 | i;
			least = slot < least ? slot : least;
			continue;
		}
		epoch->chain[i] = chain;
		epoch->ns[i] += ns;
		return 0;
	}
	least = PAST_FORGOTTEN(least, ns);
	at = least & (EPOCH_CHAINS - 1);
	if (least >> 3 >= ns) {
		epoch->others_ns += ns;
		return 0;
	}
	epoch->others_ns += epoch->ns[at];
	epoch->chain[at] = chain;
	epoch->ns[at] = ns;
	return 0;
}

/* The newer one goes up in the older one. */
PAST_INLINE void epoch_merge(struct epoch *older, const struct epoch *newer)
{
	if (!older->stretches)
		older->begin_ns = newer->begin_ns;
	older->own_ns += newer->own_ns;
	older->calls_ns += newer->calls_ns;
	older->runq_ns += newer->runq_ns;
	older->others_ns += newer->others_ns;
	older->stretches += newer->stretches;
	for (__u32 i = 0; i < EPOCH_CHAINS; i++)
		epoch_slept(older, newer->chain[i], newer->ns[i]);
}

/* Room for a new epoch: the first that is not full takes the one before it, and those
 * before that one move up. */
PAST_INLINE void epochs_move(struct past *past)
{
	__u32 to;

	for (to = 1; to < EPOCHS - 1; to++)
		if (past->epoch[to].stretches < EPOCH_STRETCHES << 2 * to)
			break;
	epoch_merge(&past->epoch[to], &past->epoch[to - 1]);
	if (to > 2)
		past->epoch[2] = past->epoch[1];
	if (to > 1)
		past->epoch[1] = past->epoch[0];
	__builtin_memset(&past->epoch[0], 0, sizeof(past->epoch[0]));
}

/* Room for one stretch more: if there is none, the oldest, and what it ran before that, become a
 * part of an epoch's sums. What the epoch grows by is what `since_ns` goes up by. */
PAST_FUNCTION int past_room(struct past *past)
{
	struct stretch *oldest;
	struct epoch *epoch;
	__u64 begin, end, ran, called;

	if (!past || past->used < PAST_MAX)
		return 0;
	oldest = &past->stretch[(past->next - past->used) & (PAST_MAX - 1)];
	past->used--;
	epoch = &past->epoch[0];
	/* What is known as one sum is not cut. */
	if (epoch->stretches >= EPOCH_STRETCHES && oldest->coarse <= 1)
		epochs_move(past);
	if (!epoch->stretches)
		epoch->begin_ns = past->since_ns;
	begin = later_of(oldest->begin_ns, past->since_ns);
	end = later_of(oldest->end_ns, begin);
	ran = begin - past->since_ns;
	called = oldest->called_ns > past->called_ns ? oldest->called_ns - past->called_ns : 0;
	called = earlier_of(called, ran);
	epoch->calls_ns += called;
	epoch->own_ns += ran - called;
	epoch->stretches++;
	past->since_ns = end;
	past->called_ns = oldest->called_ns;
	if (oldest->chain == PAST_RUNQ)
		epoch->runq_ns += end - begin;
	else
		epoch_slept(epoch, oldest->chain, end - begin);
	return 0;
}

/* Stretches are added in the order of time and do not overlap. There is past_room() for it. */
PAST_INLINE void past_add_coarse(struct past *past, __u64 begin_ns, __u64 end_ns, __u64 called_ns, __u32 chain,
				 __u32 coarse)
{
	struct stretch *stretch = &past->stretch[past->next & (PAST_MAX - 1)];

	if (past->used < PAST_MAX)
		past->used++;
	if (!past->since_ns) {
		past->since_ns = begin_ns;
		past->called_ns = called_ns;
	}
	stretch->begin_ns = begin_ns;
	stretch->end_ns = end_ns;
	stretch->called_ns = called_ns;
	stretch->chain = chain;
	stretch->coarse = coarse;
	past->next++;
}

PAST_INLINE void past_add(struct past *past, __u64 begin_ns, __u64 end_ns, __u64 called_ns, __u32 chain)
{
	past_room(past);
	past_add_coarse(past, begin_ns, end_ns, called_ns, chain, 0);
}

PAST_INLINE void part_add(struct parts *parts, __u64 begin_ns, __u64 end_ns, __u32 chain, __u32 coarse)
{
	/* Read anew each time: 6.1's verifier believes no bound of a sum of it. */
	__u32 at = *(volatile __u32 *)&parts->used;

	if (at >= PARTS_MAX)
		return;
	parts->part[at].begin_ns = begin_ns;
	parts->part[at].end_ns = end_ns;
	parts->part[at].chain = chain;
	parts->part[at].coarse = coarse;
	parts->used = at + 1;
}

/* ... in part `i`: 0 if that is another's. */
PAST_FUNCTION int part_sum(struct parts *parts, __u32 i, __u32 chain, __u64 ns)
{
	struct stretch *part;

	if (!parts || i >= PARTS_MAX)
		return 1;
	part = &parts->part[i];
	if (i >= PARTS_MAX - 7 && chain < PAST_RAN)
		chain = PAST_SLEPT;
	if (i == PARTS_MAX - 1)
		chain = PAST_EARLIER;
	if (i >= parts->used) {
		part->end_ns = ns;
		part->chain = chain;
		parts->used = i + 1;
		return 1;
	}
	if (part->chain != chain)
		return 0;
	part->end_ns += ns;
	return 1;
}

/* So much of the sleep, somewhere, was that. From part `base` on parts are sums, as end_ns, until
 * parts_lay(). Chains leave room for what is not one; the last is for all that finds none. */
PAST_FUNCTION int parts_sum(struct parts *parts, __u32 base, __u32 chain, __u64 ns)
{
	if (!parts || !ns)
		return 0;
	for (__u32 i = base; i < PARTS_MAX; i++)
		if (part_sum(parts, i, chain, ns))
			break;
	return 0;
}

/* One sum becomes a part that ends at `end`; where it begins. */
PAST_FUNCTION __u64 part_lay(struct parts *parts, __u32 i, __u64 end, __u64 from)
{
	struct stretch *part;

	if (!parts || i >= PARTS_MAX || i >= parts->used)
		return end;
	part = &parts->part[i];
	part->begin_ns = end - part->end_ns;
	part->end_ns = end;
	part->coarse = coarse_from(part->begin_ns, from);
	return part->begin_ns;
}

/* Sums become parts, one after the other from `end` back. */
PAST_FUNCTION int parts_lay(struct parts *parts, __u32 base, __u64 end, __u64 from)
{
	if (!parts)
		return 0;
	for (__u32 i = base; i < PARTS_MAX; i++)
		end = part_lay(parts, i, end, from);
	return 0;
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
	__u64 call_ns;   /* from here on it was in the call that it wakes from; ~0: in none */
	__u64 sums_end;  /* up to here parts are sums */
	__u64 group;     /* of the last coarse stretch */
	__u64 over;      /* if the rest is not known: so much of that group lies before the sleep */
	__u32 base;      /* ... from this one on; 0: none are yet */
	__u16 told;
	__u16 full; /* the rest is not known */
};

/* From here on only sums. There is always a part before them. */
PAST_INLINE void explain_sums(struct explaining *e, const struct parts *parts)
{
	if (e->base)
		return;
	e->base = *(const volatile __u32 *)&parts->used;
	e->sums_end = e->at;
}

PAST_INLINE __u32 explaining_ran(const struct explaining *e, __u64 begin, __u64 ran_begin, __u64 called_ns)
{
	return e->told ? past_ran(e->at - begin, e->ran_end - ran_begin, e->called_ns - called_ns) :
			 PAST_RAN;
}

/*
 * Of what it did from `begin` to `at`, what was in the call that it wakes from is a
 * part of its own, `how`. Less than a sixteenth (the wake-up itself) is not: that
 * counts as what came before.
 */
PAST_INLINE void explain_call(struct explaining *e, struct parts *parts, __u64 begin, __u32 how)
{
	__u64 cut = later_of(e->call_ns, begin);

	if (cut >= e->at || (e->at - cut) * 16 < e->at - begin)
		return;
	if (e->base)
		parts_sum(parts, e->base, how, e->at - cut);
	else
		part_add(parts, cut, e->at, how, 0);
	e->called_ns -= e->at - cut;
	e->ran_end = cut;
	e->at = cut;
}

/* It ran from `begin` to `at`, on a CPU since `ran_begin`, when it had spent `called_ns` in calls. */
PAST_INLINE void explain_ran(struct explaining *e, struct parts *parts, __u64 begin, __u64 ran_begin,
			     __u64 called_ns)
{
	__u64 ns, calls;

	explain_call(e, parts, begin, PAST_RAN_CALL);
	if (begin < e->at && !e->base) {
		part_add(parts, begin, e->at, explaining_ran(e, begin, ran_begin, called_ns), 0);
	} else if (begin < e->at && e->told && begin == ran_begin && e->at == e->ran_end) {
		/* The whole stretch: it is known how much of it was calls. */
		ns = e->at - begin;
		calls = e->called_ns > called_ns ? earlier_of(e->called_ns - called_ns, ns) : 0;
		parts_sum(parts, e->base, PAST_RAN_CALLS, calls);
		parts_sum(parts, e->base, PAST_RAN_USER, ns - calls);
	} else if (begin < e->at) {
		parts_sum(parts, e->base, explaining_ran(e, begin, ran_begin, called_ns), e->at - begin);
	}
	e->at = begin;
}

/*
 * Explains the sleep `from`..`to` by the past of a waker that runs now: begin, a step
 * for each stretch and then one for each epoch, until one says that it was the last, end.
 */
PAST_INLINE void explain_begin(struct explaining *e, __u64 from, __u64 to, const struct waking *waking,
			       struct parts *parts)
{
	parts->used = 0;
	e->from = from;
	e->at = to;
	e->ran_end = to;
	e->called_ns = waking->called_ns;
	e->call_ns = waking->told && waking->call_ns ? waking->call_ns : ~0ull;
	e->sums_end = to;
	e->group = ~0ull;
	e->over = 0;
	e->base = 0;
	e->told = !!waking->told;
	e->full = 0;
}

/* Whether of a time that began at `group`, and of which only sums are known, too much lies before
 * the sleep. */
PAST_INLINE int explain_cuts(const struct explaining *e, __u64 group)
{
	return e->from > group && (e->from - group) * EPOCH_BORNE > e->at - e->from;
}

/* A stretch of a group that began before the sleep: what surely is in it. */
PAST_INLINE int explain_sure(struct explaining *e, struct parts *parts, const struct stretch *stretch)
{
	__u64 ns = stretch->end_ns - stretch->begin_ns;

	if (!stretch->coarse || coarse_group(stretch) + COARSE_ROUNDED < e->group)
		return 1;
	ns = earlier_of(ns > e->over ? ns - e->over : 0, e->at - e->from);
	parts_sum(parts, e->base, stretch->chain, ns);
	e->at -= ns;
	return 0;
}

PAST_INLINE int explain_step(struct explaining *e, const struct past *past, __u32 i, struct parts *parts)
{
	const struct stretch *stretch = &past->stretch[(past->next - 1 - i) & (PAST_MAX - 1)];
	__u64 begin;

	if (i >= past->used || e->at <= e->from)
		return 1;
	if (e->full)
		return explain_sure(e, parts, stretch);
	/* A step adds three parts at most. */
	if (*(volatile __u32 *)&parts->used + 3 > PARTS_APART)
		explain_sums(e, parts);
	if (stretch->end_ns < e->at)
		explain_ran(e, parts, later_of(stretch->end_ns, e->from), stretch->end_ns,
			    stretch->called_ns);
	if (stretch->coarse && e->at > e->from) {
		__u64 group = coarse_group(stretch);

		/* Asked once for all that lie in it, whose beginnings are rounded. */
		if (group + COARSE_ROUNDED < e->group && explain_cuts(e, group)) {
			e->group = group;
			e->over = e->from - group + COARSE_ROUNDED;
			e->full = 1;
			/* Where in what is left its call began is not known any more. */
			if (e->call_ns > e->from)
				e->call_ns = ~0ull;
			explain_sums(e, parts);
			return explain_sure(e, parts, stretch);
		}
		e->group = group;
	}
	begin = later_of(stretch->begin_ns, e->from);
	if (begin < e->at) {
		if (e->base)
			parts_sum(parts, e->base, stretch->chain, e->at - begin);
		else
			part_add(parts, begin, e->at, stretch->chain,
				 stretch->coarse ? coarse_from(begin, later_of(coarse_group(stretch), e->from)) : 0);
		e->at = begin;
	}
	e->ran_end = stretch->begin_ns;
	e->called_ns = stretch->called_ns;
	return 0;
}

/* What it ran before the oldest stretch, as far as it is known. */
PAST_INLINE void explain_since(struct explaining *e, const struct past *past, struct parts *parts)
{
	__u64 since = past->since_ns;

	if (!e->full && since && e->at > e->from && since < e->at)
		explain_ran(e, parts, later_of(since, e->from), since, past->called_ns);
}

/* `over` of an epoch's sums lie before the sleep, and are left out: of which, is not known. If it
 * is too much for that, of each (`sure`). */
PAST_INLINE __u64 epoch_within(__u64 ns, __u64 *over, int sure)
{
	__u64 out = earlier_of(ns, *over);

	if (!sure)
		*over -= out;
	return ns - out;
}

/* The epoch `i` before the newest one. */
PAST_FUNCTION int explain_epoch(struct explaining *e, const struct past *past, __u32 i, struct parts *parts)
{
	const struct epoch *epoch;
	__u64 over, calls, own, ns, told_ns;
	int sure, in_call;

	if (!e || !past || !parts || e->full || i >= EPOCHS || e->at <= e->from)
		return 1;
	epoch = &past->epoch[i];
	if (!epoch->stretches)
		return 1;
	sure = explain_cuts(e, epoch->begin_ns);
	explain_sums(e, parts);
	over = e->from > epoch->begin_ns ? e->from - epoch->begin_ns : 0;
	in_call = e->call_ns <= later_of(epoch->begin_ns, e->from);
	own = epoch_within(epoch->own_ns, &over, sure);
	calls = epoch_within(epoch->calls_ns, &over, sure);
	if (!e->told) {
		parts_sum(parts, e->base, PAST_RAN, own + calls);
	} else {
		parts_sum(parts, e->base, PAST_RAN_USER, own);
		parts_sum(parts, e->base, in_call ? PAST_RAN_CALL : PAST_RAN_CALLS, calls);
	}
	ns = epoch_within(epoch->runq_ns, &over, sure);
	parts_sum(parts, e->base, PAST_RUNQ, ns);
	told_ns = own + calls + ns;
	for (__u32 at = 0; at < EPOCH_CHAINS; at++) {
		ns = epoch_within(epoch->ns[at], &over, sure);
		parts_sum(parts, e->base, epoch->chain[at], ns);
		told_ns += ns;
	}
	ns = epoch_within(epoch->others_ns, &over, sure);
	parts_sum(parts, e->base, PAST_SLEPT, ns);
	told_ns += ns;
	if (sure) {
		if (!in_call)
			e->call_ns = ~0ull;
		e->at -= earlier_of(told_ns, e->at - e->from);
		e->full = 1;
		return 1;
	}
	e->at = later_of(epoch->begin_ns, e->from);
	return 0;
}

PAST_INLINE void explain_end(struct explaining *e, struct parts *parts)
{
	explain_call(e, parts, e->from, PAST_EARLIER_CALL);
	if (e->at > e->from && e->base)
		parts_sum(parts, e->base, PAST_EARLIER, e->at - e->from);
	else if (e->at > e->from)
		part_add(parts, e->from, e->at, PAST_EARLIER, 0);
	if (e->base)
		parts_lay(parts, e->base, e->sums_end, e->from);
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
