/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a program run under the fake broker?
 *
 *     fake_broker CMD ARGS...
 *
 * Runs CMD with DEBOX_SOCKET naming a broker that hands out slots in which
 * nothing ever happens; exits as CMD does.
 */
#include "fake_broker.h"

int main(int argc, char **argv)
{
	struct fake k;
	pid_t pid;
	int status;

	if (argc < 2) {
		fprintf(stderr, "usage: fake_broker CMD ARGS...\n");
		return 2;
	}
	fake_start(&k);
	pid = fork();
	if (pid == 0) {
		execvp(argv[1], argv + 1);
		perror(argv[1]);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	fake_stop(&k);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
