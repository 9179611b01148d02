/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does getpid() take in a program that a tool watches?
 *
 *     calls CALLS ROUNDS OUTPUT
 *
 * Waits for a signal (SIGUSR1) that the tool is in place when OUTPUT is
 * followed by "wait"; writes ns per call of each round to the file OUTPUT:
 * the standard streams are the tool's.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

int main(int argc, char **argv)
{
	FILE *out;
	sigset_t set;
	int sig;

	if (argc < 4)
		return 2;
	if (argc > 4) {
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		sigprocmask(SIG_BLOCK, &set, NULL);
		sigwait(&set, &sig);
	}
	long n = atol(argv[1]), rounds = atol(argv[2]);
	double *ns = calloc((size_t)rounds, sizeof *ns);

	for (long r = 0; r < rounds; r++) {
		double t = now_ns();

		for (long i = 0; i < n; i++)
			getpid();
		ns[r] = (now_ns() - t) / (double)n;
	}
	out = fopen(argv[3], "w");
	if (!out)
		return 1;
	for (long r = 0; r < rounds; r++)
		fprintf(out, "%.2f ", ns[r]);
	return fclose(out) != 0;
}
