// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * How long does the n-th socket() or open() take, while the table of descriptors grows?
 *
 *	rcu socket|open CALLS THREADS RESERVE
 *
 * THREADS - 1 other threads only sleep. RESERVE: a number that a descriptor has for a
 * moment before there are threads, so that the table is as large from then on; 0: none.
 * Says "ready" on standard output, waits for a line on standard input, makes its calls,
 * says "made", waits for a line, and writes one line for each call: descriptor, nanoseconds,
 * how often it slept.
 */
#define _GNU_SOURCE // RUSAGE_THREAD
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what, const char *remedy)
{
	fprintf(stderr, "rcu: %s: %s; %s\n", what, strerror(errno), remedy);
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// It is this thread's, and tells a call that waited from one that lost its CPU.
static long slept(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

static void *sleeper(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void wait_for_line(void)
{
	for (int byte = getchar(); byte != '\n' && byte != EOF;)
		byte = getchar();
}

int main(int argc, char **argv)
{
	if (argc != 5 || (strcmp(argv[1], "socket") && strcmp(argv[1], "open"))) {
		fprintf(stderr, "usage: rcu socket|open CALLS THREADS RESERVE\n");
		return 2;
	}

	int sockets = !strcmp(argv[1], "socket");
	size_t calls = strtoul(argv[2], NULL, 10);
	long threads = atol(argv[3]);
	int reserve = atoi(argv[4]);
	struct rlimit files;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);

	struct {
		int descriptor;
		uint64_t ns;
		long sleeps;
	} *made = malloc(calls * sizeof(*made));

	if (!made)
		fail("no memory for its notes", "ask for fewer calls");
	memset(made, 0, calls * sizeof(*made)); // no page fault is to be timed
	if (reserve) {
		int high = fcntl(0, F_DUPFD, reserve);

		if (high < 0)
			fail("cannot have the reserved number", "ulimit -n must be above it");
		close(high);
	}
	for (long n = 1; n < threads; n++) {
		pthread_t thread;

		errno = pthread_create(&thread, NULL, sleeper, NULL);
		if (errno)
			fail("cannot start a thread", "ask for fewer");
	}
	puts("ready");
	fflush(stdout);
	wait_for_line();

	for (size_t n = 0; n < calls; n++) {
		long sleeps = slept();
		uint64_t begin_ns = now_ns();

		made[n].descriptor = sockets ? socket(AF_UNIX, SOCK_STREAM, 0) : open("/dev/null", O_RDONLY);
		made[n].ns = now_ns() - begin_ns;
		made[n].sleeps = slept() - sleeps;
		if (made[n].descriptor < 0)
			fail("no more descriptors", "ask for fewer calls, or raise ulimit -Hn");
	}
	puts("made");
	fflush(stdout);
	wait_for_line();
	for (size_t n = 0; n < calls; n++)
		printf("%d %lu %ld\n", made[n].descriptor, (unsigned long)made[n].ns, made[n].sleeps);
	return 0;
}
