/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Who holds the lock that another process waits for?
 *
 * dirfight DIR SECONDS: two processes, named fighter-one and fighter-two, make
 * and remove files of their own in the same directory, so that they fight over
 * nothing but the directory's inode lock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fight(const char *directory, const char *name, double seconds)
{
	double end = now() + seconds;
	char path[4096];
	long rounds = 0;

	prctl(PR_SET_NAME, name);
	while (now() < end) {
		for (int i = 0; i < 50; i++, rounds++) {
			int fd;

			snprintf(path, sizeof(path), "%s/%s-%d", directory, name, i);
			fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
			if (fd < 0)
				exit(1);
			close(fd);
			if (unlink(path) != 0)
				exit(1);
		}
	}
	printf("%s %d %ld\n", name, (int)getpid(), rounds);
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	int bad = 0, status;

	if (argc != 3)
		return 2;
	if (fork() == 0)
		fight(argv[1], "fighter-one", atof(argv[2]));
	if (fork() == 0)
		fight(argv[1], "fighter-two", atof(argv[2]));
	for (int i = 0; i < 2; i++)
		if (wait(&status) < 0 || status != 0)
			bad = 1;
	return bad;
}
