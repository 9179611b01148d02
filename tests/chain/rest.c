/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does bpf/rest.h find where threads rest, from nothing but where they sleep?
 */
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "rest.h"

#define BASE 0x7ffc00000000ull

struct visit {
	unsigned depth; /* bytes below the base */
	unsigned nr;
	int rests; /* REST_*; -1: either */
};

static int failed;

/* `times` times over; from round `learned` on each visit must be judged as it says. */
static void loop(const char *what, struct rest *rest, const struct visit *visits, unsigned count,
		 unsigned times, unsigned learned)
{
	for (unsigned round = 0; round < times; round++)
		for (unsigned i = 0; i < count; i++) {
			int is = rest_visit(rest, BASE - visits[i].depth, 0x1000 + visits[i].nr, visits[i].nr);

			if (round >= learned && visits[i].rests >= 0 && is != visits[i].rests && !failed++)
				fprintf(stderr, "rest: %s: round %u, visit %u: %d\n", what, round, i, is);
		}
}

int main(void)
{
	/* an event loop, whose handlers wait for locks and files further in */
	static const struct visit events[] = { { 1000, 232, REST_YES }, { 3000, 202, REST_NO }, { 5000, 0, REST_NO } };
	/* a start of other places, one of them further out, then a loop */
	static const struct visit start[] = { { 500, 0, -1 }, { 4000, 0, -1 }, { 700, 35, -1 } };
	/* a worker whose place moves as its code is compiled */
	static const struct visit before[] = { { 2000, 202, REST_YES }, { 2600, 202, REST_NO } };
	static const struct visit after[] = { { 3500, 202, REST_YES }, { 4600, 202, REST_NO } };
	/* the same call, deeper: a lock that is waited for with it */
	static const struct visit deeper[] = { { 1000, 232, REST_YES }, { 1000, 232, REST_YES }, { 2000, 232, REST_NO } };
	/* variables of the same frame between */
	static const struct visit near[] = { { 1000, 232, REST_YES }, { 1100, 232, REST_YES }, { 1300, 232, REST_YES } };
	struct rest rest;

	memset(&rest, 0, sizeof(rest));
	if (rest_visit(&rest, BASE, 1, 7) != REST_PERHAPS || rest_visit(&rest, BASE, 1, 7) != REST_YES)
		failed++;
	memset(&rest, 0, sizeof(rest));
	loop("events", &rest, events, 3, 50, 1);
	memset(&rest, 0, sizeof(rest));
	loop("start", &rest, start, 3, 1, 9);
	loop("events after a start", &rest, events, 3, 100, 40);
	memset(&rest, 0, sizeof(rest));
	loop("before", &rest, before, 2, 50, 1);
	loop("after", &rest, after, 2, 200, 60);
	memset(&rest, 0, sizeof(rest));
	loop("deeper", &rest, deeper, 3, 50, 1);
	memset(&rest, 0, sizeof(rest));
	loop("near", &rest, near, 3, 50, 1);
	if (failed)
		return 1;
	puts("ok");
	return 0;
}
