/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What happens when threads and processes come and go by the thousand?
 *
 *     storm THREADS PROCESSES SECONDS [ROUNDS]
 *
 * Threads that live for one call, children that live for one call, some of
 * them killed in the middle, until the time is up and there were as many
 * rounds; prints how many threads and children there were.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *one_call(void *arg)
{
	(void)arg;
	syscall(SYS_getppid);
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 0, processes = argc > 2 ? atol(argv[2]) : 0;
	long seconds = argc > 3 ? atol(argv[3]) : 0, made_threads = 0, made_processes = 0;
	long rounds = argc > 4 ? atol(argv[4]) : 0;
	time_t end = time(NULL) + seconds;

	do {
		pthread_t some[512];
		pid_t children[128];
		long n = threads > 512 ? 512 : threads, m = processes > 128 ? 128 : processes;

		for (long i = 0; i < n; i++)
			if (pthread_create(&some[i], NULL, one_call, NULL))
				return 98;
		for (long i = 0; i < m; i++) {
			children[i] = fork();
			if (children[i] < 0)
				return 98;
			if (!children[i]) {
				syscall(SYS_getppid);
				if (i % 3 == 0)
					for (;;)
						pause();
				if (i % 3 == 1)
					execl("/bin/true", "true", (char *)NULL);
				_exit(0);
			}
		}
		for (long i = 0; i < n; i++)
			pthread_join(some[i], NULL);
		for (long i = 0; i < m; i++) {
			if (i % 3 == 0)
				kill(children[i], SIGKILL);
			waitpid(children[i], NULL, 0);
		}
		made_threads += n;
		made_processes += m;
	} while (--rounds > 0 || time(NULL) < end);
	printf("%ld %ld\n", made_threads, made_processes);
	return 0;
}
