// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Does the recording see what this program makes slower, and only that?
 *
 *   grow fork ROUNDS STEP   forks ROUNDS times; before each it makes STEP more
 *                           mappings, so that fork has more to copy
 *   grow sites ROUNDS       reads one byte from each of two functions, from
 *                           the second one ten times as often
 *   grow locks ROUNDS DIR   creates and removes ROUNDS files in DIR from two
 *                           processes at a time, which meet at its inode lock
 *   grow wait MS            waits for a child that sleeps for MS, and prints
 *                           the child's pid
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void forks(int rounds, int step)
{
	for (int i = 0; i < rounds; i++) {
		for (int k = 0; k < step; k++) {
			/* Neighbours of unlike protection stay apart. */
			int protection = k & 1 ? PROT_READ : PROT_READ | PROT_WRITE;
			char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			if (memory == MAP_FAILED)
				exit(3);
			*memory = 1;
			mprotect(memory, 4096, protection);
		}
		pid_t child = fork();

		if (!child)
			_exit(0);
		if (child < 0 || waitpid(child, NULL, 0) != child)
			exit(4);
	}
}

static int zero;

/* The remarks in assembly keep the compiler from making one function of two. */

__attribute__((noinline)) static void read_for_one(void)
{
	char byte;

	if (read(zero, &byte, 1) != 1)
		exit(5);
	__asm__ volatile("# one");
}

__attribute__((noinline)) static void read_for_other(void)
{
	char byte;

	if (read(zero, &byte, 1) != 1)
		exit(5);
	__asm__ volatile("# other");
}

static void sites(int rounds)
{
	zero = open("/dev/zero", O_RDONLY);
	for (int i = 0; i < rounds; i++) {
		read_for_one();
		for (int k = 0; k < 10; k++)
			read_for_other();
	}
}

static void locks(int rounds, const char *directory)
{
	char path[4096];

	for (int p = 0; p < 2; p++) {
		if (fork())
			continue;
		snprintf(path, sizeof(path), "%s/%d", directory, p);
		for (int i = 0; i < rounds; i++) {
			int fd = open(path, O_CREAT | O_WRONLY, 0600);

			if (fd < 0)
				_exit(6);
			close(fd);
			unlink(path);
		}
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
}

static void waits(int milliseconds)
{
	pid_t child = fork();

	if (!child) {
		usleep(milliseconds * 1000);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	printf("%d\n", child);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (!strcmp(what, "fork") && argc == 4)
		forks(atoi(argv[2]), atoi(argv[3]));
	else if (!strcmp(what, "sites"))
		sites(atoi(argv[2]));
	else if (!strcmp(what, "locks") && argc == 4)
		locks(atoi(argv[2]), argv[3]);
	else if (!strcmp(what, "wait"))
		waits(atoi(argv[2]));
	else
		return 2;
	return 0;
}
