/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How long does one getpid(), one pipe round trip, one context switch take in
 * this process, now?
 *
 * The worker of the benchmarks: it obeys lines on standard input, so that what
 * hangs on the kernel can change between two rounds of the same process.
 *
 *     getpid N R          R rounds of N system calls; prints R times, ns per call
 *     pingpong N R        N round trips through two pipes: 2 switches, 2 sleeps
 *     pingpong-wrap N R   the same, this side's read()s in DEBOX_CALL brackets
 *     yield N R           N sched_yield()s of two SCHED_FIFO processes in turn:
 *                         ns per switch, with the number of switches checked
 *     open, close         debox_open() with $DEBOX_SOCKET, debox_close()
 *
 * Runs on CPU argv[1], and so does its partner, a child that is forked before
 * anybody watches. The partner ends when its pipe does.
 */
#include <debox.h>

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int to_partner[2], from_partner[2];
/* Shared with the partner: how often it still has to yield. */
static volatile long *partner_yields;

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void fifo(int on)
{
	struct sched_param p = { .sched_priority = on ? 1 : 0 };

	if (sched_setscheduler(0, on ? SCHED_FIFO : SCHED_OTHER, &p))
		die("sched_setscheduler");
}

static void partner(void)
{
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(to_partner[1]);
	close(from_partner[0]);
	while (read(to_partner[0], &c, 1) == 1) {
		if (c == 'y') {
			fifo(1);
			if (write(from_partner[1], &c, 1) != 1)
				break;
			while (*partner_yields > 0) {
				sched_yield();
				--*partner_yields;
			}
			fifo(0);
		}
		if (write(from_partner[1], &c, 1) != 1)
			break;
	}
	_exit(0);
}

static void getpid_loop(long n)
{
	for (long i = 0; i < n; i++)
		syscall(SYS_getpid);
}

static void trip(char c)
{
	if (write(to_partner[1], &c, 1) != 1 || read(from_partner[0], &c, 1) != 1)
		die("pipe");
}

static void pingpong_loop(long n)
{
	while (n--)
		trip('p');
}

static void pingpong_wrap_loop(long n)
{
	char c = 'p';

	while (n--)
		if (write(to_partner[1], &c, 1) != 1 ||
		    DEBOX_CALL_NR(SYS_read, read(from_partner[0], &c, 1)) != 1)
			die("pipe");
}

static long switches(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_nvcsw + u.ru_nivcsw;
}

static double yield_round(long n)
{
	char c;
	double t;
	long before, seen;

	*partner_yields = 1L << 60;
	fifo(1);
	trip('y');
	sched_yield();
	before = switches();
	t = now_ns();
	for (long i = 0; i < n; i++)
		sched_yield();
	t = now_ns() - t;
	seen = switches() - before;
	*partner_yields = 0;
	if (read(from_partner[0], &c, 1) != 1)
		die("pipe");
	fifo(0);
	if (seen < n * 9 / 10) {
		fprintf(stderr, "loops: only %ld switches in %ld yields\n", seen, n);
		exit(1);
	}
	return t / (double)n / 2;
}

int main(int argc, char **argv)
{
	char line[128], what[32];
	cpu_set_t one;
	pid_t child;

	CPU_ZERO(&one);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &one);
	if (sched_setaffinity(0, sizeof one, &one))
		die("sched_setaffinity");
	partner_yields = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (partner_yields == MAP_FAILED || pipe(to_partner) || pipe(from_partner))
		die("pipe");
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0)
		partner();
	close(to_partner[0]);
	close(from_partner[1]);

	while (fgets(line, sizeof line, stdin)) {
		long n = 0, rounds = 0;
		int got = sscanf(line, "%31s %ld %ld", what, &n, &rounds);

		if (got == 1 && !strcmp(what, "open")) {
			int err = debox_open(NULL);
			char why[256] = "";

			debox_why(why, sizeof why);
			if (err || debox_status() != DEBOX_STATUS_MEASURED)
				printf("error %d %s\n", err, why);
			else
				printf("ok\n");
		} else if (got == 1 && !strcmp(what, "close")) {
			debox_close();
			printf("ok\n");
		} else if (got == 3 && n > 0 && rounds > 0) {
			void (*loop)(long) = !strcmp(what, "getpid")        ? getpid_loop :
					     !strcmp(what, "pingpong")      ? pingpong_loop :
					     !strcmp(what, "pingpong-wrap") ? pingpong_wrap_loop :
									      NULL;
			int yield = !strcmp(what, "yield");

			if (!loop && !yield)
				return 2;
			if (loop)
				loop(n / 10 + 1);
			for (long r = 0; r < rounds; r++) {
				double t = now_ns();

				if (yield) {
					printf("%.2f ", yield_round(n));
					continue;
				}
				loop(n);
				printf("%.2f ", (now_ns() - t) / (double)n);
			}
			printf("\n");
		} else {
			return 2;
		}
		fflush(stdout);
	}
	close(to_partner[1]);
	waitpid(child, NULL, 0);
	return 0;
}
