/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Is a call that is stopped and goes on (the kernel makes it again, with what is left of its time, by restart_syscall)
 * one call, which lasts as long as was asked for?
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int main(void)
{
	int status, word = 0;
	pid_t child = fork();
	if (!child) {
		struct timespec time = { 0, 300000000 };
		struct timespec begin, end;
		long ms[3];
		for (int i = 0; i < 3; i++) {
			int r = 0;
			clock_gettime(CLOCK_MONOTONIC, &begin);
			if (i == 0)
				r = nanosleep(&time, 0);
			else if (i == 1)
				r = ppoll(0, 0, &time, 0);
			else
				r = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, 0, 0) == -1 ? 0 : 1;
			clock_gettime(CLOCK_MONOTONIC, &end);
			if (r)
				_exit(2 + i);
			ms[i] = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
			if (ms[i] < 300)
				_exit(5 + i);
		}
		_exit(1);
	}
	/* Six times or so while each of them waits. */
	do {
		poll(0, 0, 40);
		kill(child, SIGSTOP);
		if (waitpid(child, &status, WUNTRACED) != child)
			return 20;
		kill(child, SIGCONT);
	} while (WIFSTOPPED(status));
	return WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 7 : 10 + WEXITSTATUS(status);
}
