// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Does a signal at any instruction of a trampoline, or of the runtime behind it, change anything?
 *
 *     stepped DEEP | group
 *
 * The processor's trap flag has a signal come after each instruction, in calls of each kind; the handler makes a
 * call itself, and now and then has itself stepped through, up to DEEP handlers in each other. `group`: children are made while signals come to the whole
 * process group. Prints how often getppid was called, by all threads and processes; ends with 7.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 16

static long *made; /* shared with children */
static pid_t parent, self;
static int deepest;
static __thread int deep;
static __thread long steps[MOST + 1]; /* of this one that is as deep */

/* Flags are pushed below the red zone. */
static inline void trap(int on)
{
	if (on)
		__asm__ volatile("leaq -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\tleaq 128(%%rsp), %%rsp" ::
					 : "memory", "cc");
	else
		__asm__ volatile("leaq -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tleaq 128(%%rsp), %%rsp" ::
					 : "memory", "cc");
}

static void right(int is, const char *what)
{
	if (is)
		return;
	trap(0);
	fprintf(stderr, "stepped: %s\n", what);
	_exit(1);
}

static void call(void)
{
	pid_t is;

	__atomic_fetch_add(made, 1, __ATOMIC_RELAXED);
	is = getppid();
	right(is == parent || is == self, "getppid"); /* self: of a child */
}

static void handler(int signal)
{
	const long n = ++steps[deep];

	(void)signal;
	call();
	if (deep == deepest || (deep ? n != 1 + steps[0] / 60 % 90 : n % 60))
		return;
	deep++;
	steps[deep] = 0;
	trap(1);
	call();
	trap(0);
	deep--;
}

static void called(int signal)
{
	(void)signal;
	call();
}

static void *thread(void *unused)
{
	trap(1);
	call();
	trap(0);
	return unused;
}

static int ended(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) != child)
		right(errno == EINTR, "waitpid");
	return status;
}

static void group(void)
{
	struct sigaction action = { .sa_handler = called, .sa_flags = SA_RESTART };
	pid_t killer, child;

	right(!setpgid(0, 0) && !sigaction(SIGUSR1, &action, NULL), "a group");
	killer = fork();
	if (!killer) {
		signal(SIGUSR1, SIG_IGN);
		for (;;)
			kill(0, SIGUSR1);
	}
	for (int i = 0; i < 100; i++) {
		child = fork();
		if (!child) {
			call();
			_exit(5);
		}
		right(ended(child) == 5 << 8, "fork");
		child = vfork();
		if (!child)
			_exit(6);
		right(ended(child) == 6 << 8, "vfork");
	}
	kill(killer, SIGKILL);
	ended(killer);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_NODEFER };
	struct timespec moment = { 0, 1000 };
	int ends[2];
	pthread_t other;
	char byte = 1;
	void *page;
	pid_t child;

	made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	self = getpid();
	parent = getppid();
	*made = 1;
	deepest = argc > 1 ? atoi(argv[1]) : 0;
	if (made == MAP_FAILED || deepest > MOST || pipe(ends) || sigaction(SIGTRAP, &action, NULL))
		return 2;
	if (argc > 1 && !strcmp(argv[1], "group")) {
		group();
		printf("%ld\n", *made);
		return 7;
	}
	trap(1);
	for (int i = 0; i < 5; i++)
		call();
	for (int i = 0; i < 5; i++) {
		__atomic_fetch_add(made, 1, __ATOMIC_RELAXED);
		right(syscall(SYS_getppid) == parent, "by its number");
	}
	right(write(ends[1], "x", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'x', "a pipe");
	right(!clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL), "a sleep");
	right(read(-1, &byte, 1) == -1, "an error");
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	right(page != MAP_FAILED, "mmap");
	right(!mprotect(page, 4096, PROT_READ | PROT_EXEC) && !munmap(page, 4096), "mprotect");
	right(!prctl(PR_SET_NAME, "stepped", 0, 0, 0), "prctl");
	/* All signals are blocked meanwhile (glibc's threads, the runtime's children), and this one kills then. */
	trap(0);
	child = fork();
	if (!child) {
		trap(1);
		call();
		trap(0);
		_exit(5);
	}
	right(ended(child) == 5 << 8, "fork");
	child = vfork();
	if (!child) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	right(!ended(child), "vfork and execve");
	right(!pthread_create(&other, NULL, thread, NULL) && !pthread_join(other, NULL), "a thread");
	trap(1);
	right(execl("/nowhere", "nowhere", (char *)NULL) == -1, "an execve that fails");
	trap(0);
	printf("%ld\n", *made);
	return 7;
}
