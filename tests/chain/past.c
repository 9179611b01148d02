/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does bpf/past.h explain a sleep by what its waker did, all of it and no more?
 *
 * A waker's life is made up at random, nanosecond by nanosecond, and told to
 * past.h as the kernel side would; then every part of a sleep is compared with
 * the life.
 */
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "past.h"

#define LIFE 4000u
enum { USER,
       CALL,
       RUNQ,
       CHAIN /* + number */ };

static unsigned life[LIFE]; /* what it did in each nanosecond */
static unsigned long checked[8];

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
	__u64 called_ns;
	__u64 call_ns; /* of the call that is open at the end */
};

/* A life until `to`, which is spent on a CPU at the end. */
static void live(struct told *told, unsigned to, unsigned since, unsigned chains)
{
	unsigned at = 1, mode = USER;

	memset(told, 0, sizeof(*told));
	while (at < to) {
		unsigned length = 1 + random_below(random_below(4) ? 20 : 300), end;

		/* on a CPU, in and out of calls */
		end = at + length < to ? at + length : to;
		while (at < end) {
			unsigned until = at + 1 + random_below(40);

			mode = random_below(3) ? USER : CALL;
			if (mode == CALL)
				told->call_ns = at;
			for (; at < until && at < end; at++) {
				life[at] = mode;
				told->called_ns += mode == CALL;
			}
		}
		if (mode == USER)
			told->call_ns = 0;
		if (at + 60 >= to) {
			for (; at < to; at++) {
				life[at] = mode;
				told->called_ns += mode == CALL;
			}
			break;
		}
		/* off it; a call that is open stays open, as past.h is not told */
		if (random_below(2)) {
			unsigned begin = at, chain = 1 + random_below(chains);

			end = at + 1 + random_below(25);
			for (; at < end; at++)
				life[at] = CHAIN + chain;
			if (begin >= since)
				past_add(&told->past, begin, at, told->called_ns, chain);
		}
		if (random_below(2)) {
			unsigned begin = at;

			end = at + 1 + random_below(25);
			for (; at < end; at++)
				life[at] = RUNQ;
			if (begin >= since)
				past_add(&told->past, begin, at, told->called_ns, PAST_RUNQ);
		}
	}
}

static void check(unsigned seed)
{
	unsigned to = 500 + random_below(LIFE - 501), since = 1 + random_below(3) * random_below(to / 2);
	unsigned from = 1 + random_below(to - 1);
	struct waking waking = { .told = random_below(4) != 0, .key = 7 };
	struct explaining e;
	struct parts parts;
	struct told told;
	__u64 at = to, fits;

	srandom(seed * 2654435761u + 1);
	live(&told, to, since, 5);
	waking.call_ns = waking.told ? told.call_ns : 0;
	waking.called_ns = waking.told ? told.called_ns : 0;
	memset(&parts, 0xee, sizeof(parts));
	explain_begin(&e, &told.past, from, to, &waking, &parts);
	for (unsigned i = 0; i < PAST_MAX; i++)
		if (explain_step(&e, &told.past, i, &parts))
			break;
	explain_end(&e, &told.past, &parts);

	if (!parts.used || parts.used > PARTS_MAX)
		fail("no parts, or too many", seed, &parts);
	for (unsigned i = 0; i < parts.used; i++) {
		const struct stretch *part = &parts.part[i];
		unsigned users = 0, calls = 0, length = part->end_ns - part->begin_ns;

		if (part->end_ns != at || part->begin_ns >= part->end_ns)
			fail("a gap, an overlap or nothing", seed, &parts);
		at = part->begin_ns;
		for (__u64 t = part->begin_ns; t < part->end_ns; t++) {
			unsigned was = life[t];

			users += was == USER;
			calls += was == CALL;
			if (part->chain < PAST_RAN && was != CHAIN + part->chain)
				fail("a chain that it was not in", seed, &parts);
			if (part->chain == PAST_RUNQ && was != RUNQ)
				fail("it did not wait for a CPU", seed, &parts);
			if (part->chain >= PAST_RAN && part->chain <= PAST_RAN_CALLS && was > CALL)
				fail("it did not run", seed, &parts);
		}
		switch (part->chain) {
		case PAST_RAN_USER:
			if (calls * 16 > length)
				fail("calls in what is called its own code", seed, &parts);
			checked[0]++;
			break;
		case PAST_RAN_CALL:
			/* The call may have slept, but it was in no other code. */
			if (users || i)
				fail("own code in what is called a call", seed, &parts);
			checked[1]++;
			break;
		case PAST_RAN_CALLS:
			if (users * 16 > length)
				fail("own code in what is called calls", seed, &parts);
			checked[2]++;
			break;
		case PAST_RAN:
			checked[3]++;
			break;
		case PAST_EARLIER: {
			unsigned oldest = told.past.since_ns ? told.past.since_ns : to;

			if (i != parts.used - 1)
				fail("EARLIER is not the earliest", seed, &parts);
			if (part->end_ns > oldest && parts.used + 2 < PARTS_MAX)
				fail("it is known what it did", seed, &parts);
			checked[4]++;
			break;
		}
		case PAST_RUNQ:
			checked[5]++;
			break;
		default:
			checked[6]++;
		}
	}
	if (at != from)
		fail("the parts do not reach its beginning", seed, &parts);

	/* Made to fit what the scheduler says, the parts still add up. */
	for (int off = -30; off <= 30; off += 15) {
		__u64 end = to + off > from ? to + off : from + 1;
		struct parts fitted = parts;

		fits = 0;
		for (unsigned i = 0; i < fitted.used; i++)
			fits += part_fit(&fitted.part[i], i, end);
		if (fits != end - from)
			fail("made to fit, they do not add up", seed, &fitted);
	}
}

int main(void)
{
	for (unsigned seed = 0; seed < 200000; seed++) {
		srandom(seed);
		check(seed);
	}
	for (unsigned i = 0; i < 7; i++)
		if (checked[i] < 1000) {
			fprintf(stderr, "past: kind %u was met %lu times only\n", i, checked[i]);
			return 1;
		}
	puts("ok");
	return 0;
}
