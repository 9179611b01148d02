/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a spliced program keep its calls apart when it switches stacks: coroutines that make calls in turns, and one that
 * leaves a sleep out of a signal handler, and comes back to it after a thousand others?
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
enum { COROUTINES = 4,
       ROUNDS = 50 };
static ucontext_t back, coroutine[COROUTINES], left;
static volatile int done, out, late;
static void run(int n)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct timespec little = { 0, 100000 };
		getppid();
		if (i % 10 == n)
			nanosleep(&little, 0);
		swapcontext(&coroutine[n], &back);
		if (getpid() < 2)
			_exit(2);
	}
	done++;
}
/* Out of a sleep that it interrupted, to the main loop, which comes back later. */
static void leaves(int signal)
{
	if (!out++) {
		swapcontext(&left, &back);
		late = getppid() > 0;
	}
}
static void sleeps(int n)
{
	struct timespec long_one = { 3, 0 };
	/* Again: it may come before the sleep begins. */
	struct itimerval soon = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &soon, 0);
	if (nanosleep(&long_one, 0) != -1 || errno != EINTR || !late)
		_exit(3);
	setitimer(ITIMER_REAL, &never, 0);
	done++;
}
int main(void)
{
	struct sigaction action = { .sa_handler = leaves };
	sigaction(SIGALRM, &action, 0);
	for (int n = 0; n < COROUTINES; n++) {
		getcontext(&coroutine[n]);
		coroutine[n].uc_stack.ss_sp = malloc(65536);
		coroutine[n].uc_stack.ss_size = 65536;
		coroutine[n].uc_link = &back;
		makecontext(&coroutine[n], (void (*)(void))run, 1, n);
	}
	for (int i = 0; i <= ROUNDS; i++)
		for (int n = 0; n < COROUTINES; n++)
			swapcontext(&back, &coroutine[n]);
	if (done != COROUTINES)
		return 1;
	getcontext(&coroutine[0]);
	coroutine[0].uc_stack.ss_sp = malloc(65536);
	coroutine[0].uc_stack.ss_size = 65536;
	coroutine[0].uc_link = &back;
	makecontext(&coroutine[0], (void (*)(void))sleeps, 1, 0);
	swapcontext(&back, &coroutine[0]);
	/* The sleep that was interrupted is on another stack, and has not ended. */
	for (int i = 0; i < 1000; i++)
		getppid();
	swapcontext(&back, &left);
	return done == COROUTINES + 1 ? 7 : 4;
}
