/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does any instant exist at which a signal handler's call corrupts the record
 * of the call it broke into, or gets a wrong one itself?
 *
 * A timer fires every 43 us while brackets run; both sides know exactly
 * what their records must say. Arguments: seconds (default 3), and which
 * stamps: "clock_gettime"; built with DEBOX_STAMP_SOURCE_, those of a counter
 * that stands still ("steps") or goes back ("back").
 */
#include <debox.h>

#include "fake_broker.h"

#include <setjmp.h>
#include <sys/time.h>
#include <time.h>

#define HISTORY 64 /* records that are kept, if nobody asks for another number */

static struct fake broker;
static struct debox_control *control;
static struct debox_record *record;
static volatile unsigned long wrong, handled, jumped, pushed_out;
static sigjmp_buf back;
static volatile int jumpy;

/* What the kernel side does for one wait. It is longer than the call, whose time
 * stamps may even be equal: that must not cut it. */
static void blocked(uint32_t ns)
{
	uint64_t open = control->open_seq;
	struct debox_info *b;
	uint32_t level = control->level;

	if (!open)
		return;
	b = &record->bank[level % DEBOX_BANKS].info;
	if (b->call_seq != open) {
		b->call_seq = open;
		b->valid = DEBOX_VALID_BLOCKED | DEBOX_VALID_RUNQ | DEBOX_VALID_SLEEPS |
			   DEBOX_VALID_FAULTS | DEBOX_VALID_SWITCHES;
		b->nr = control->nr;
		b->blocked_ns = b->runq_ns = b->outside_ns = 0;
		b->sleep_count = 0;
	}
	b->runq_ns += ns;
}

static void expect(const char *who, int nr, long ret, uint64_t runq)
{
	struct debox_info i = { .size = sizeof i };

	if (debox_last(&i) || i.nr != nr || i.retval != ret || !(i.valid & DEBOX_VALID_RUNQ) ||
	    i.runq_ns != runq || i.wall_ns != i.cpu_ns + i.blocked_ns + i.runq_ns) {
		if (wrong++ < 5)
			fprintf(stderr, "%s: nr %d/%d ret %lld/%ld runq %llu/%llu valid %llx flags %x\n",
				who, i.nr, nr, (long long)i.retval, ret, (unsigned long long)i.runq_ns,
				(unsigned long long)runq, (unsigned long long)i.valid, i.flags);
	}
}

static void on_timer(int sig)
{
	unsigned long n = ++handled;
	uint32_t ns = 10007 * (uint32_t)(n % 3);

	DEBOX_CALL_NR(1000, ({
			      if (ns)
				      blocked(ns);
			      (long)n;
		      }));
	expect("handler", 1000, (long)n, ns);
	if (jumpy && n % 16 == 0) {
		jumped++;
		siglongjmp(back, 1);
	}
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static __attribute__((noinline)) void one(unsigned long n)
{
	uint32_t ns = n % 5 ? 0 : 10007 * ((uint32_t)(n % 3) + 1);

	DEBOX_CALL_NR(2000, ({
			      if (ns)
				      blocked(ns);
			      (long)n;
		      }));
	struct debox_info h[8];
	int found = 0, ours = 0;
	uint64_t ours_last = 0, last = 0;

	/* The handler's calls may be later ones: look for ours among the last. */
	h[0].size = sizeof h[0];
	int got = debox_history_read(h, 8, NULL);
	for (int k = 0; k < got; k++) {
		struct debox_info *i = &h[k];

		ours += i->nr == 2000;
		if (i->nr == 2000)
			ours_last = i->call_seq;
		last = i->call_seq;
		if (i->nr != 2000 || i->retval != (long)n)
			continue;
		found = 1;
		if (!(i->valid & DEBOX_VALID_RUNQ) || i->runq_ns != ns || i->flags != DEBOX_FLAG_WRAP ||
		    i->wall_ns != i->cpu_ns + i->blocked_ns + i->runq_ns)
			found = 2;
	}
	/* On a stalled machine handlers can follow one another so closely that
	 * theirs are all that is left: no older call of ours is among them, or
	 * those alone that were read before as many others came as are kept, in
	 * whose places nothing was read then. */
	if (!found && (!ours || (got < 8 && n > 8) || last - ours_last >= HISTORY - 8)) {
		pushed_out++;
		return;
	}
	if (found != 1 && wrong++ < 5) {
		fprintf(stderr, "main: call %lu: %s among\n", n, found ? "wrong record" : "no record");
		for (int k = 0; k < got; k++)
			fprintf(stderr, "  seq %llu nr %d retval %lld runq %llu valid %llx flags %x\n",
				(unsigned long long)h[k].call_seq, h[k].nr, (long long)h[k].retval,
				(unsigned long long)h[k].runq_ns, (unsigned long long)h[k].valid, h[k].flags);
	}
}

int main(int argc, char **argv)
{
	double limit = argc > 1 ? atof(argv[1]) : 3, end;
	struct sigaction sa = { .sa_handler = on_timer };
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct itimerspec its = { { 0, 43001 }, { 0, 43001 } };
	struct debox_options options = { .size = sizeof options };
	volatile unsigned long n = 0;
	timer_t timer;

	fake_start(&broker);
#ifdef DEBOX_STAMP_SOURCE_
	fake_stamp_back = argc > 2 && !strcmp(argv[2], "back");
#endif
	if (argc > 2 && !strcmp(argv[2], "clock_gettime"))
		options.flags = DEBOX_OPEN_CLOCK_GETTIME;
	if (debox_open(&options) || debox_status() != DEBOX_STATUS_MEASURED)
		return 2;
	DEBOX_CALL_NR(1, 0);
	record = fake_record(&broker, &control);
	sigaction(SIGALRM, &sa, NULL);
	if (timer_create(CLOCK_MONOTONIC, &ev, &timer))
		return 2;
	for (jumpy = 0; jumpy < 2; jumpy++) {
		unsigned long was = handled;

		end = seconds() + limit / 2;
		if (sigsetjmp(back, 1)) {
			/* Left from any place inside a call. */
		}
		timer_settime(timer, 0, &its, NULL);
		/* Longer where the machine is busy: some signals and calls must
		 * have been, or nothing was tested. */
		while (seconds() < end ||
		       ((handled - was < 100 || n < 10000) && seconds() < end + 60))
			for (int k = 0; k < 100; k++)
				one(++n);
		struct itimerspec off = { { 0, 0 }, { 0, 0 } };
		timer_settime(timer, 0, &off, NULL);
		printf("%s jumps: %lu signals so far (%lu jumps), %lu calls, %lu wrong\n",
		       jumpy ? "with" : "without", handled, jumped, n, wrong);
		if (handled - was < 100 || n < 10000) {
			fprintf(stderr, "too few signals or calls to say anything\n");
			wrong++;
		}
	}
	DEBOX_CALL_NR(3000, 5);
	expect("at the end", 3000, 5, 0);
	if (control->open_seq || control->level)
		wrong++;
	fake_stop(&broker);
	/* That must stay the exception, or nothing was tested. */
	if (pushed_out > n / 1000)
		wrong++;
	printf("signals: %lu wrong, %lu not seen\n", wrong, pushed_out);
	return wrong != 0;
}
