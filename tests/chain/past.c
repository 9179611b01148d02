/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does bpf/past.h explain a sleep by what its waker did, all of it and no more?
 *
 * A waker's life is made up at random, tick by tick, and told to past.h as the kernel
 * side would; then every part of a sleep is compared with the life. Of parts that are
 * sums, the sums are.
 */
#include <linux/types.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "past.h"

#define LIFE 16000u
/* A tick is as long as the unit of stretch.coarse. */
#define TICK 1024ull
enum { USER,
       CALL,
       RUNQ,
       CHAIN /* + number */ };

static unsigned life[LIFE]; /* what it did in each tick */
static unsigned long checked[15];

static unsigned random_below(unsigned n)
{
	return (unsigned)random() % n;
}

static void fail(const char *what, unsigned seed, const struct parts *parts)
{
	fprintf(stderr, "past: seed %u: %s\n", seed, what);
	for (unsigned i = 0; i < parts->used; i++)
		fprintf(stderr, "  %llu..%llu: %#x\n", (unsigned long long)parts->part[i].begin_ns,
			(unsigned long long)parts->part[i].end_ns, parts->part[i].chain);
	exit(1);
}

struct told {
	struct past past;
	__u64 called; /* ticks */
	__u64 call;   /* when the call began that is open at the end */
	bool sums;    /* some of its sleeps are told as sums themselves */
	unsigned longest_sum;
};

static void tell(struct told *told, unsigned begin, unsigned end, unsigned chain, unsigned since, unsigned group)
{
	if (begin < since)
		return;
	past_room(&told->past);
	past_add_coarse(&told->past, begin * TICK, end * TICK, told->called * TICK,
			chain, group ? coarse_from(begin * TICK, group * TICK) : 0);
}

/* A life until `to`, which is spent on a CPU at the end. */
static void live(struct told *told, unsigned to, unsigned since, unsigned chains, bool sums)
{
	unsigned at = 1, mode = USER;
	bool stays = false; /* in the call that it was in before it left the CPU */

	memset(told, 0, sizeof(*told));
	while (at < to) {
		unsigned length = 1 + random_below(random_below(4) ? 20 : 300), end;

		/* on a CPU, in and out of calls */
		end = at + length < to ? at + length : to;
		while (at < end) {
			unsigned until = at + 1 + random_below(40);

			if (!stays) {
				mode = random_below(3) ? USER : CALL;
				if (mode == CALL)
					told->call = at;
			}
			stays = false;
			for (; at < until && at < end; at++) {
				life[at] = mode;
				told->called += mode == CALL;
			}
		}
		if (mode == USER)
			told->call = 0;
		if (at + 160 >= to) {
			for (; at < to; at++) {
				life[at] = mode;
				told->called += mode == CALL;
			}
			break;
		}
		/* off it; its call may go on for several stretches */
		stays = mode == CALL && random_below(8);
		if (sums && !random_below(6)) {
			/* A sleep that was explained by sums: in this order they never were. */
			unsigned begin = at, of[24] = { 0 };

			for (end = at + 8 + random_below(120); at < end; at++) {
				unsigned chain = 1 + random_below(chains);

				life[at] = CHAIN + chain;
				of[chain]++;
			}
			told->sums = true;
			if (end - begin > told->longest_sum)
				told->longest_sum = end - begin;
			for (unsigned chain = 1, from = begin; chain <= chains; from += of[chain++])
				if (of[chain])
					tell(told, from, from + of[chain], chain, from == begin || begin >= since ? since : ~0u,
					     begin);
		} else if (random_below(2)) {
			unsigned begin = at, chain = 1 + random_below(chains);

			end = at + 1 + random_below(25);
			for (; at < end; at++)
				life[at] = CHAIN + chain;
			tell(told, begin, at, chain, since, 0);
		}
		if (random_below(2)) {
			unsigned begin = at;

			end = at + 1 + random_below(25);
			for (; at < end; at++)
				life[at] = RUNQ;
			tell(told, begin, at, PAST_RUNQ, since, 0);
		}
	}
}

/* What is told of a part at its place. */
static void check_part(unsigned seed, const struct parts *parts, unsigned i, const struct told *told)
{
	const struct stretch *part = &parts->part[i];
	unsigned begin = part->begin_ns / TICK, end = part->end_ns / TICK, users = 0, calls = 0;

	for (unsigned t = begin; t < end; t++) {
		unsigned was = life[t];

		users += was == USER;
		calls += was == CALL;
		if (part->chain < PAST_RAN && was != CHAIN + part->chain)
			fail("a chain that it was not in", seed, parts);
		if (part->chain == PAST_RUNQ && was != RUNQ)
			fail("it did not wait for a CPU", seed, parts);
		if (part->chain >= PAST_RAN && part->chain <= PAST_RAN_CALLS && was > CALL)
			fail("it did not run", seed, parts);
	}
	switch (part->chain) {
	case PAST_RAN_USER:
		if (calls * 16 > end - begin)
			fail("calls in what is called its own code", seed, parts);
		checked[0]++;
		break;
	case PAST_RAN_CALL:
		/* The call may have slept, but it was in no other code. */
		if (users || begin < told->call)
			fail("own code, or another call, in what is called its call", seed, parts);
		checked[i ? 7 : 1]++;
		break;
	case PAST_RAN_CALLS:
		if (users * 16 > end - begin)
			fail("own code in what is called calls", seed, parts);
		checked[2]++;
		break;
	case PAST_RAN:
		checked[3]++;
		break;
	case PAST_EARLIER:
	case PAST_EARLIER_CALL: {
		bool in_call = part->chain == PAST_EARLIER_CALL;
		unsigned oldest = told->past.since_ns ? told->past.since_ns / TICK : end;

		if (i != parts->used - 1 && !(in_call && parts->part[i + 1].chain == PAST_EARLIER))
			fail("EARLIER is not the earliest", seed, parts);
		if (in_call && (users || begin < told->call))
			fail("it was not in its call", seed, parts);
		if (end > oldest && !told->sums)
			fail("it is known what it did", seed, parts);
		checked[in_call ? 8 : 4]++;
		break;
	}
	case PAST_RUNQ:
		checked[5]++;
		break;
	default:
		checked[6]++;
	}
}

/* What is told of those that are sums, all together. */
static void check_sums(unsigned seed, const struct parts *parts, const struct told *told, unsigned from)
{
	long is[CHAIN + 24] = { 0 }, was[CHAIN + 24] = { 0 }, whole = 0, unknown = 0, ran = 0, slept = 0, borne,
			next, all = 0;
	const struct past *past = &told->past;

	for (unsigned i = 0; i < parts->used; i++) {
		const struct stretch *part = &parts->part[i];
		long ticks = (part->end_ns - part->begin_ns) / TICK;

		if (!part->coarse)
			continue;
		whole += ticks;
		for (unsigned t = part->begin_ns / TICK; t < part->end_ns / TICK; t++)
			was[life[t]]++;
		switch (part->chain) {
		case PAST_EARLIER:
		case PAST_EARLIER_CALL:
			unknown += ticks;
			break;
		case PAST_RAN:
			ran += ticks;
			break;
		case PAST_SLEPT:
			slept += ticks;
			break;
		case PAST_RAN_USER:
			is[USER] += ticks;
			break;
		case PAST_RAN_CALL:
		case PAST_RAN_CALLS:
			is[CALL] += ticks;
			break;
		case PAST_RUNQ:
			is[RUNQ] += ticks;
			break;
		default:
			is[CHAIN + part->chain] += ticks;
		}
	}
	if (!whole)
		return;
	/* What was borne, and that a part of a stretch on the CPU counts as one thing. */
	borne = whole / EPOCH_BORNE + 2;
	for (unsigned kind = 0; kind < CHAIN + 24; kind++) {
		long off = is[kind] - was[kind], bears = borne + (kind <= CALL ? whole / 16 + 20 : 0);

		if (off > bears || -off > bears + unknown + (kind <= CALL ? ran : kind > CHAIN ? slept :
												 0))
			fail("a sum that it was not", seed, parts);
		if (kind > CHAIN)
			all += off;
	}
	if (all + slept > borne || -(all + slept) > borne + unknown)
		fail("it did not sleep so long", seed, parts);
	checked[12] += slept > 0;
	checked[9]++;
	/* Not known is at most what the sleep shares with one epoch, and what was before them all. */
	next = past->since_ns / TICK;
	for (unsigned i = 0; i < EPOCHS && past->epoch[i].stretches; i++) {
		long begin = past->epoch[i].begin_ns / TICK;

		if (begin <= (long)from)
			break;
		next = begin;
	}
	if (!told->sums && unknown > (next > (long)from ? next - (long)from : 0))
		fail("it is known how long it did what", seed, parts);
	checked[unknown ? 10 : 11]++;
	/* What surely was of the epoch that the sleep begins in. */
	checked[13] += !told->sums && unknown && unknown < next - (long)from;
}

static void check(unsigned seed)
{
	unsigned to = 500 + random_below(LIFE - 501), since = 1 + random_below(3) * random_below(to / 2);
	unsigned from = 1 + random_below(to - 1);
	struct waking waking = { .told = random_below(4) != 0, .key = 7 };
	bool sums = random_below(2);
	struct explaining e;
	struct parts parts;
	struct told told;
	__u64 at = to * TICK, fits;

	srandom(seed * 2654435761u + 1);
	live(&told, to, since, random_below(3) ? 5 : 20, sums);
	waking.call_ns = waking.told ? told.call * TICK : 0;
	waking.called_ns = waking.told ? told.called * TICK : 0;
	memset(&parts, 0xee, sizeof(parts));
	explain_begin(&e, from * TICK, at, &waking, &parts);
	for (unsigned i = 0; i < PAST_MAX; i++)
		if (explain_step(&e, &told.past, i, &parts))
			break;
	explain_since(&e, &told.past, &parts);
	for (unsigned i = 0; i < EPOCHS; i++)
		if (explain_epoch(&e, &told.past, i, &parts))
			break;
	explain_end(&e, &parts);
	checked[14] += e.over > 0;

	if (!parts.used || parts.used > PARTS_MAX)
		fail("no parts, or too many", seed, &parts);
	for (unsigned i = 0; i < parts.used; i++) {
		const struct stretch *part = &parts.part[i];

		if (part->end_ns != at || part->begin_ns >= part->end_ns)
			fail("a gap, an overlap or nothing", seed, &parts);
		if (part->chain == PAST_EARLIER && i < PARTS_MAX - 1 && waking.call_ns && waking.call_ns <= from * TICK)
			fail("it was in its call all the time", seed, &parts);
		at = part->begin_ns;
		if (!part->coarse)
			check_part(seed, &parts, i, &told);
	}
	if (at != from * TICK)
		fail("the parts do not reach its beginning", seed, &parts);
	check_sums(seed, &parts, &told, from);

	/* Made to fit what the scheduler says, the parts still add up. */
	for (int off = -30; off <= 30; off += 15) {
		__u64 end = to + off > from ? (to + off) * TICK : (from + 1) * TICK;
		struct parts fitted = parts;

		fits = 0;
		for (unsigned i = 0; i < fitted.used; i++)
			fits += part_fit(&fitted.part[i], i, end);
		if (fits != end - from * TICK)
			fail("made to fit, they do not add up", seed, &fitted);
	}
}

/* Since when it computes: waits for a CPU do not end that, a sleep does. */
static int check_running(void)
{
	struct past past = { 0 };

	if (past_running(&past, 0, 100))
		return 1; /* nothing is known */
	past_add(&past, 10, 20, 0, 7);
	if (past_running(&past, 0, 100) != 80 || past_running(&past, 50, 100) != 50 ||
	    past_running(&past, 0, 15))
		return 1;
	past_add(&past, 60, 70, 0, PAST_RUNQ);
	if (past_running(&past, 0, 100) != 40 || past_running(&past, 90, 100) != 10)
		return 1;
	past_add(&past, 80, 90, 0, 7);
	return past_running(&past, 0, 100) != 10;
}

int main(void)
{
	if (check_running()) {
		fputs("past: a thread that runs is not known as such\n", stderr);
		return 1;
	}
	for (unsigned seed = 0; seed < 50000; seed++) {
		srandom(seed);
		check(seed);
	}
	for (unsigned i = 0; i < 15; i++)
		if (checked[i] < 125) {
			fprintf(stderr, "past: kind %u was met %lu times only\n", i, checked[i]);
			return 1;
		}
	puts("ok");
	return 0;
}
