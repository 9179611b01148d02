/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do the kernel stacks of sleeping threads look like on this kernel?
 *
 * Each case in the files beside this one blocks in one known way. The program
 * runs it in a process of its own, lets ftrace write down the kernel stack at
 * each switch away from that process while it sleeps, and prints the distinct
 * stacks as a fixture for the tests of the label rules (labels/stacks/):
 * `[label] case origin`, then the functions, innermost first.
 *
 *   cc -O1 -static -pthread -o record *.c
 *   ./record [-t MILLISECONDS] [-d DEVICE -f FILESYSTEM] [CASE…]
 *
 * Root only. It uses a tracing instance of its own. Cases that need a disk run
 * only with -d: a scratch device with a fresh file system, which is mounted,
 * written to, frozen and filled. Some cases (marked) change the whole machine
 * for a moment and run only with -m: for throw-away guests.
 *
 * A stack trace from /proc/PID/stack would not do: it leaves out every
 * function of the scheduler's section, so mutexes, rwsems and completions.
 */
#define _GNU_SOURCE
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include "record.h"

static char instance[128];
static struct utsname kernel;

static void trace_file(const char *name, const char *format, int value)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", instance, name);
	write_file(path, format, value);
}

static void trace_open(void)
{
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	snprintf(instance, sizeof(instance), "/sys/kernel/tracing/instances/debox-record-%d", getpid());
	MUST(mkdir(instance, 0755));
	trace_file("tracing_on", "0", 0);
	trace_file("options/stacktrace", "1", 0);
	trace_file("buffer_size_kb", "%d", 8192);
}

#define STACKS_MAX 4096
static struct {
	char *text;
	int count;
} stacks[STACKS_MAX];

static int by_count(const void *a, const void *b)
{
	return ((const int *)b)[2] - ((const int *)a)[2];
}

static int collect(int pid)
{
	char path[256], line[512], stack[16384], prev[32];
	int found = 0, size = 0;
	bool wanted = false, inside = false;
	snprintf(path, sizeof(path), "%s/trace", instance);
	snprintf(prev, sizeof(prev), "prev_pid=%d ", pid);
	FILE *file = fopen(path, "r");
	if (file == NULL)
		fail("%s", path);
	for (;;) {
		char *got = fgets(line, sizeof(line), file);
		if (got != NULL && inside && strncmp(line, " => ", 4) == 0) {
			char *end = line + 4 + strcspn(line + 4, " \n");
			*end = 0;
			/* What is inside of it is the tracepoint. */
			if (size == 0 && strncmp(line + 4, "__schedule", 10) != 0)
				continue;
			if (size + 300 < (int)sizeof(stack))
				size += snprintf(stack + size, sizeof(stack) - size, "%s\n", line + 4);
			continue;
		}
		if (inside && size > 0) {
			int i = 0;
			while (i < found && strcmp(stacks[i].text, stack) != 0)
				i++;
			if (i == found && found < STACKS_MAX) {
				stacks[found].text = strdup(stack);
				stacks[found++].count = 0;
			}
			if (i < found)
				stacks[i].count++;
		}
		inside = false;
		size = 0;
		if (got == NULL)
			break;
		if (strstr(line, "sched_switch:") != NULL)
			wanted = strstr(line, prev) != NULL;
		else if (strstr(line, "<stack trace>") != NULL)
			inside = wanted;
	}
	fclose(file);
	return found;
}

static void record(const struct test_case *test, int milliseconds)
{
	int status = 0;
	char byte, filter[128];
	MUST(pipe(ready_pipe));
	MUST(pipe(go_pipe));
	fflush(stdout);
	pid_t child = MUST(fork());
	if (child == 0) {
		setpgid(0, 0);
		/* So that a failing case closes the pipe and is noticed. */
		close(ready_pipe[0]);
		close(go_pipe[1]);
		test->run();
		/* Neither a sleep nor an exit (which may unmount) is the case's. */
		MUST(write(ready_pipe[1], "x", 1));
		for (;;)
			;
	}
	close(ready_pipe[1]);
	struct pollfd set_up = { ready_pipe[0], POLLIN, 0 };
	if (poll(&set_up, 1, 60000) != 1 || read(ready_pipe[0], &byte, 1) != 1) {
		printf("# %s: could not be provoked on this kernel\n\n", test->name);
		goto out;
	}
	/* Asleep, stopped or traced: not running (0), dead (16) or preempted
	 * (the highest bit). */
	snprintf(filter, sizeof(filter), "prev_pid == %d && prev_state > 0 && prev_state < 16", child);
	trace_file("events/sched/sched_switch/filter", filter, 0);
	trace_file("trace", "", 0);
	trace_file("events/sched/sched_switch/enable", "1", 0);
	trace_file("tracing_on", "1", 0);
	MUST(write(go_pipe[1], "x", 1));
	poll(&set_up, 1, milliseconds);
	trace_file("tracing_on", "0", 0);
	trace_file("events/sched/sched_switch/enable", "0", 0);
	int found = collect(child);
	qsort(stacks, found, sizeof(stacks[0]), by_count);
	if (found == 0)
		printf("# %s: never slept\n\n", test->name);
	for (int i = 0; i < found; i++) {
		if (i < 24)
			printf("[%s] %s%s%s seen\n%s\n", test->label, test->name,
			       test->needs & DISK ? "/" : "", test->needs & DISK ? disk_type : "",
			       stacks[i].text);
		free(stacks[i].text);
	}
out:
	kill(-child, SIGKILL);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	close(ready_pipe[0]);
	close(go_pipe[0]);
	close(go_pipe[1]);
	/* Partners die with their parent; a file system only after them. */
	usleep(50000);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	fflush(stdout);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	(void)status, (void)kind, (void)at;
	return remove(path), 0;
}

static const struct test_case *const all[] = {
	pipes_cases,
	futexes_cases,
	file_locks_cases,
	processes_cases,
	events_cases,
	message_queues_cases,
	sockets_cases,
	tty_cases,
	memory_cases,
	fuse_cases,
	disk_cases,
};

/* Named ones, or all; those that need a disk or a machine of their own only when given one. */
static bool wanted(const struct test_case *test, char **names, bool machine)
{
	bool possible = (!(test->needs & MACHINE) || machine) && (!(test->needs & DISK) || disk_device != NULL);
	if (*names == NULL)
		return possible;
	for (; *names != NULL; names++) {
		if (strcmp(*names, test->name) != 0)
			continue;
		if (!possible)
			fprintf(stderr, "record: %s needs -d or -m\n", test->name);
		return possible;
	}
	return false;
}

int main(int argc, char **argv)
{
	int option, milliseconds = 150;
	bool machine = false;
	while ((option = getopt(argc, argv, "t:d:f:m")) != -1) {
		switch (option) {
		case 't': milliseconds = atoi(optarg); break;
		case 'd': disk_device = optarg; break;
		case 'f': disk_type = optarg; break;
		case 'm': machine = true; break;
		default:
			fprintf(stderr, "usage: %s [-m] [-t MS] [-d DEVICE -f FILESYSTEM] [CASE…]\n", argv[0]);
			return 2;
		}
	}
	uname(&kernel);
	/* Cases leave children behind, which it has to reap then. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	MUST(mkdtemp(scratch));
	MUST(chdir(scratch));
	loopback_up();
	trace_open();
	printf("# Linux %s %s\n\n", kernel.release, kernel.machine);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		for (const struct test_case *test = all[i]; test->name != NULL; test++)
			if (wanted(test, argv + optind, machine))
				record(test, milliseconds);
	rmdir(instance);
	chdir("/");
	nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	return 0;
}
