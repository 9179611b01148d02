/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Is what bpf/critical.h hands from thread to thread the critical path, and does a life's
 * split add up?
 *
 * Threads live at random: they run, call, wait for a CPU, sleep until an interrupt or
 * another one of them wakes them, and make new ones. All of it goes into a log, and to
 * critical.h as the kernel side would tell it. At the end the critical path is found the
 * other way, by walking backwards through the log, and both are compared, nanosecond by
 * nanosecond.
 */
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <debox/abi.h>
#include "critical.h"

#define THREADS 6u
#define TIME 3000u
#define CHAINS 4u /* for interrupts to wake from */

enum doing { ABSENT,
	     OWN,
	     CALLS,
	     EXIT,
	     RUNQ,
	     ASLEEP };

struct thread {
	struct critical path;
	struct life life;
	enum doing doing;
	__u64 called_ns;
	__u64 out_ns;
	__u64 since_ns; /* what it does now */
	unsigned parent;
	unsigned born;
};

static struct thread threads[THREADS];
/* log: what a thread did in a nanosecond, and who ended its sleep then (1 + number; 0: an
 * interrupt), with the interrupt's chain */
static unsigned char did[THREADS][TIME + 1];
static unsigned char woken_by[THREADS][TIME + 1], woken_chain[THREADS][TIME + 1];
static unsigned seed_now;

static unsigned random_below(unsigned n)
{
	return (unsigned)random() % n;
}

static void fail(const char *what)
{
	fprintf(stderr, "critical: seed %u: %s\n", seed_now, what);
	exit(1);
}

static void add(struct critical *path, __u64 key, __u64 ns)
{
	if (ns && !critical_put(path, key, ns))
		critical_put_slow(path, key, ns);
}

/* As critical_run() in life.h does. */
static void run_until(struct thread *t, __u64 now)
{
	__u64 ran = now - t->path.at_ns, calls = t->called_ns - t->path.called_ns;

	if (now <= t->path.at_ns)
		return;
	if (t->life.phase == LIFE_ENDING) {
		add(&t->path, critical_key(t->life.program, DEBOX_CRITICAL_EXIT, 0), ran);
	} else {
		if (calls > ran)
			fail("more in calls than it ran");
		add(&t->path, critical_key(t->life.program, DEBOX_CRITICAL_CALLS, 0), calls);
		add(&t->path, critical_key(t->life.program, DEBOX_CRITICAL_OWN, 0), ran - calls);
	}
	t->path.at_ns = now;
	t->path.called_ns = t->called_ns;
}

static __u64 sum_of(const struct debox_critical *sums)
{
	__u64 sum = 0;

	for (unsigned i = 0; i < DEBOX_CRITICAL_PARTS_MAX; i++)
		sum += sums->part[i].ns;
	for (unsigned i = 0; i < DEBOX_CRITICAL_KINDS; i++)
		sum += sums->other_ns[i];
	return sum;
}

static __u64 part_of(const struct debox_critical *sums, __u64 key)
{
	for (unsigned i = 0; i < sums->used; i++)
		if (sums->part[i].key == key)
			return sums->part[i].ns;
	return 0;
}

static void one(unsigned seed)
{
	__u64 wanted[THREADS][6][CHAINS + 1] = { 0 };
	unsigned at, who;

	seed_now = seed;
	srandom(seed * 2654435761u + 1);
	memset(threads, 0, sizeof(threads));
	memset(did, 0, sizeof(did));
	threads[0].doing = OWN;
	threads[0].life.program = 1;
	threads[0].life.phase = LIFE_RUNS;
	for (__u64 now = 0; now < TIME; now++) {
		for (unsigned i = 0; i < THREADS; i++) {
			struct thread *t = &threads[i];
			int changes = !random_below(12);

			if (t->doing == ASLEEP && changes && !random_below(2)) {
				unsigned chain = 1 + random_below(CHAINS);

				/* an interrupt */
				run_until(t, t->out_ns);
				add(&t->path, critical_key(t->life.program, DEBOX_CRITICAL_BLOCKED, chain),
				    now - t->out_ns);
				t->path.at_ns = now;
				t->life.blocked_ns += now - t->out_ns;
				woken_chain[i][now] = chain;
				woken_by[i][now] = 0;
				t->doing = random_below(2) ? RUNQ : OWN;
				t->since_ns = now;
			} else if ((t->doing == OWN || t->doing == CALLS) && changes) {
				unsigned what = random_below(8), other = random_below(THREADS);
				struct thread *o = &threads[other];

				if (what < 2) {
					t->doing = t->doing == OWN ? CALLS : OWN;
				} else if (what == 2) {
					t->out_ns = now;
					t->doing = ASLEEP;
				} else if (what == 3) {
					/* preempted */
					t->out_ns = now;
					run_until(t, now);
					t->doing = RUNQ;
					t->since_ns = now;
				} else if (o->doing == ASLEEP && o->out_ns < now) {
					/* wakes another one */
					__u64 called = o->called_ns;

					run_until(t, now);
					o->path = t->path;
					o->path.at_ns = now;
					o->path.called_ns = called;
					o->life.blocked_ns += now - o->out_ns;
					woken_by[other][now] = 1 + i;
					o->doing = RUNQ;
					o->since_ns = now;
				} else if (o->doing == ABSENT && !o->born && now > 1) {
					run_until(t, now);
					o->path = t->path;
					o->path.called_ns = 0;
					o->life = (struct life){ .since_ns = now, .program = 1 + other };
					o->doing = RUNQ;
					o->since_ns = now;
					o->parent = i;
					o->born = now;
				}
			} else if (t->doing == RUNQ && changes) {
				add(&t->path, critical_key(t->life.program, DEBOX_CRITICAL_RUNQ, 0),
				    now - t->path.at_ns);
				t->path.at_ns = now;
				t->path.called_ns = t->called_ns;
				t->life.runq_ns += now - t->since_ns;
				t->life.phase = LIFE_RUNS;
				t->doing = OWN;
			}
		}
		for (unsigned i = 0; i < THREADS; i++) {
			did[i][now] = threads[i].doing;
			threads[i].called_ns += threads[i].doing == CALLS;
		}
	}

	/* Whoever runs at the end is asked. */
	for (who = 0; who < THREADS; who++)
		if (threads[who].doing == OWN || threads[who].doing == CALLS)
			break;
	if (who == THREADS)
		return;
	run_until(&threads[who], TIME);
	if (sum_of(&threads[who].path.sums) != TIME)
		fail("the path does not cover the time");
	for (unsigned i = 0; i < THREADS; i++) {
		struct thread *t = &threads[i];
		struct debox_life_time time = { 0 };

		if (t->doing != OWN && t->doing != CALLS)
			continue;
		life_split(&time, &t->life, TIME, t->called_ns);
		if (time.life_ns != TIME - t->life.since_ns ||
		    time.life_ns != time.own_ns + time.calls_ns + time.exit_ns + time.blocked_ns +
					    time.outside_ns + time.stopped_ns + time.runq_ns)
			fail("a life's parts do not add up");
		if (time.calls_ns != t->called_ns)
			fail("a life's time in calls is another");
	}

	/* Backwards: at the end of a sleep over to whoever ended it. */
	at = TIME;
	for (unsigned now = who; at > 0;) {
		unsigned doing = did[now][at - 1], begin = at;

		if (doing == ASLEEP) {
			if (woken_by[now][at]) {
				now = woken_by[now][at] - 1;
				continue;
			}
			while (begin > 0 && did[now][begin - 1] == ASLEEP)
				begin--;
			wanted[now][ASLEEP][woken_chain[now][at]] += at - begin;
			at = begin;
		} else if (doing == ABSENT) {
			now = threads[now].parent;
		} else {
			wanted[now][doing][0]++;
			at--;
		}
	}
	if (threads[who].path.sums.used == DEBOX_CRITICAL_PARTS_MAX)
		return; /* something may have found no room: sums are checked above */
	for (unsigned i = 0; i < THREADS; i++) {
		const struct debox_critical *sums = &threads[who].path.sums;

		if (part_of(sums, critical_key(1 + i, DEBOX_CRITICAL_OWN, 0)) != wanted[i][OWN][0] ||
		    part_of(sums, critical_key(1 + i, DEBOX_CRITICAL_CALLS, 0)) != wanted[i][CALLS][0] ||
		    part_of(sums, critical_key(1 + i, DEBOX_CRITICAL_RUNQ, 0)) != wanted[i][RUNQ][0])
			fail("another path than the walk backwards finds");
		for (unsigned chain = 1; chain <= CHAINS; chain++)
			if (part_of(sums, critical_key(1 + i, DEBOX_CRITICAL_BLOCKED, chain)) !=
			    wanted[i][ASLEEP][chain])
				fail("other sleeps than the walk backwards finds");
	}
}

/* More parts than there is room for: the time is kept, and what is large. */
static void full(void)
{
	struct critical path;
	__u64 total = 0;

	memset(&path, 0, sizeof(path));
	seed_now = 0;
	for (unsigned i = 0; i < 20000; i++) {
		unsigned chain = 1 + random_below(500);
		__u64 ns = chain == 7 ? 5000 : 1 + random_below(100);

		add(&path, critical_key(3, DEBOX_CRITICAL_BLOCKED, chain), ns);
		if (!(i % 10))
			add(&path, critical_key(3, DEBOX_CRITICAL_OWN, 0), 50);
		total += ns + (i % 10 ? 0 : 50);
	}
	if (sum_of(&path.sums) != total)
		fail("time was lost with the room");
	if (part_of(&path.sums, critical_key(3, DEBOX_CRITICAL_OWN, 0)) != 2000 * 50)
		fail("its own code found no room");
	if (part_of(&path.sums, critical_key(3, DEBOX_CRITICAL_BLOCKED, 7)) < 5000)
		fail("the largest wait found no room");
}

int main(void)
{
	for (unsigned seed = 1; seed <= 3000; seed++)
		one(seed);
	full();
	puts("ok");
	return 0;
}
