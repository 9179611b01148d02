/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How much memory does DeBox share with a program of N threads?
 *
 *     threads N
 *
 * Opens the broker at $DEBOX_SOCKET, makes one recorded call in each of N
 * threads, prints "ready" and, for each, holds them until standard input ends.
 */
#include <debox.h>

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_barrier_t made, over;

static void *thread(void *unused)
{
	struct debox_info info = { .size = sizeof info };

	(void)unused;
	DEBOX_CALL_NR(SYS_getpid, syscall(SYS_getpid));
	if (debox_last(&info) || !(info.valid & DEBOX_VALID_BLOCKED)) {
		fprintf(stderr, "threads: a thread is not watched\n");
		_exit(1);
	}
	pthread_barrier_wait(&made);
	pthread_barrier_wait(&over);
	return NULL;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1000;
	pthread_attr_t attr;
	pthread_t *t = calloc((size_t)n, sizeof *t);

	if (!t || debox_open(NULL) || debox_status() != DEBOX_STATUS_MEASURED) {
		char why[256];

		debox_why(why, sizeof why);
		fprintf(stderr, "threads: %s\n", why);
		return 1;
	}
	pthread_barrier_init(&made, NULL, (unsigned)n + 1);
	pthread_barrier_init(&over, NULL, (unsigned)n + 1);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], &attr, thread, NULL)) {
			fprintf(stderr, "threads: no %dth thread\n", i);
			return 1;
		}
	pthread_barrier_wait(&made);
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	pthread_barrier_wait(&over);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	return 0;
}
