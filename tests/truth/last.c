/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a spliced program get the record of its last call without a bracket?
 *
 *     last kernel MS   under a kernel side, which tells where it slept; sleeps of MS
 *     last wall MS     without: the wall time alone
 *     last sampled MS  the first calls are not all stamped (--sample); from when it asks on, they are
 *
 * Prints "ok", or what was not so.
 */
#include <debox.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALONE (DEBOX_VALID_WALL | DEBOX_VALID_NR | DEBOX_VALID_RETVAL)
#define KERNEL                                                                                   \
	(ALONE | DEBOX_VALID_CPU | DEBOX_VALID_BLOCKED | DEBOX_VALID_RUNQ | DEBOX_VALID_SLEEPS | \
	 DEBOX_VALID_SWITCHES)

static int kernel;
static uint64_t ms_ns;
static int ends[2];
static int failed;

static void say(int line, const char *what, const struct debox_info *i)
{
	printf("line %d: %s: nr %d result %lld wall %llu cpu %llu blocked %llu runq %llu sleeps %u "
	       "valid %#llx flags %#x\n",
	       line, what, i->nr, (long long)i->retval, (unsigned long long)i->wall_ns,
	       (unsigned long long)i->cpu_ns, (unsigned long long)i->blocked_ns,
	       (unsigned long long)i->runq_ns, i->sleep_count, (unsigned long long)i->valid, i->flags);
	failed = 1;
}
#define WANT(condition, i)                               \
	do {                                             \
		if (!(condition))                        \
			say(__LINE__, #condition, &(i)); \
	} while (0)

static struct debox_info last(int line)
{
	struct debox_info info;
	int err;

	memset(&info, 0, sizeof info);
	info.size = sizeof info;
	err = debox_last(&info);
	if (err)
		say(line, strerror(-err), &info);
	return info;
}
#define LAST() last(__LINE__)

/* The same whenever it is asked, and sums are whole. */
static void sound(const struct debox_info *i, int nr)
{
	struct debox_info again = LAST();

	WANT(i->nr == nr && i->calls == 1 && i->tid == (uint32_t)syscall(SYS_gettid), *i);
	WANT(i->flags & DEBOX_FLAG_SPLICE && !(i->flags & DEBOX_FLAG_WRAP), *i);
	WANT(again.nr == nr && again.retval == i->retval && again.wall_ns == i->wall_ns &&
		     again.blocked_ns == i->blocked_ns && again.valid == i->valid,
	     again);
	if (!kernel) {
		WANT(i->valid == ALONE && !i->blocked_ns && !i->cpu_ns && !i->sleep_count, *i);
		return;
	}
	WANT((i->valid & KERNEL) == KERNEL, *i);
	WANT(i->wall_ns == i->cpu_ns + i->blocked_ns + i->runq_ns + i->irq_ns, *i);
}

static void slept(const struct debox_info *i, uint64_t least_ns)
{
	WANT(i->wall_ns >= least_ns, *i);
	if (!kernel)
		return;
	WANT(i->blocked_ns + i->runq_ns >= least_ns - least_ns / 8, *i);
	WANT(i->sleep_count >= 1 && i->nvcsw >= 1, *i);
	WANT(i->sleeps[0].total_ns <= i->blocked_ns && i->sleeps[0].total_ns >= i->blocked_ns / 2, *i);
}

static void sleep_ms(void)
{
	struct timespec t = { (time_t)(ms_ns / 1000000000), (long)(ms_ns % 1000000000) };

	syscall(SYS_nanosleep, &t, NULL);
}

static void *writer(void *unused)
{
	sleep_ms();
	if (write(ends[1], "x", 1) != 1)
		abort();
	return unused;
}

static void *another(void *unused)
{
	struct debox_info i;
	char c;

	(void)read(-1, &c, 1);
	/* The first time that libdebox hears of this thread. */
	i = LAST();
	WANT(i.nr == SYS_read && i.retval == -EBADF && i.valid & DEBOX_VALID_RETVAL, i);
	sleep_ms();
	i = LAST();
	sound(&i, SYS_nanosleep);
	slept(&i, ms_ns);
	return unused;
}

static struct debox_info in_handler, before_call;
static int before_err;

static void handler(int sig)
{
	(void)sig;
	memset(&before_call, 0, sizeof before_call);
	before_call.size = sizeof before_call;
	before_err = debox_last(&before_call);
	sleep_ms();
	in_handler = LAST();
}

static void interrupted(void)
{
	struct itimerval timer = { .it_value = { 0, (suseconds_t)(ms_ns / 1000) } };
	struct sigaction action = { .sa_handler = handler };
	struct debox_info i;
	char c;

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	(void)read(ends[0], &c, 1);
	i = LAST();
	WANT(in_handler.nr == SYS_nanosleep && in_handler.retval == 0, in_handler);
	slept(&in_handler, ms_ns);
	WANT(i.nr == SYS_read && i.retval == -EINTR, i);
	/* The handler's time is in it; what of it was on a CPU is not known. */
	WANT(i.wall_ns >= 2 * ms_ns && !(i.valid & DEBOX_VALID_CPU), i);
	if (kernel)
		WANT(i.blocked_ns >= ms_ns / 2 && i.blocked_ns < 2 * ms_ns, i);
	getppid();
	i = LAST();
	sound(&i, SYS_getppid);
}

/* What is told of the last call, which was getppid. Whether its time is. */
static int timed(void)
{
	struct debox_info i = LAST();

	WANT(i.nr == SYS_getppid && i.valid & DEBOX_VALID_NR, i);
	WANT(i.retval == getppid() && i.valid & DEBOX_VALID_RETVAL, i);
	if (i.valid & DEBOX_VALID_WALL)
		WANT(i.wall_ns > 0 && i.start_ns > 0, i);
	else
		WANT(!(i.valid & DEBOX_VALID_CPU) && i.wall_ns == 0 && i.cpu_ns == 0 && i.start_ns == 0, i);
	return (i.valid & DEBOX_VALID_WALL) != 0;
}

static int sampled(void)
{
	const struct timespec a_moment = { 0, 50000000 };
	struct timespec begin, now;
	int all = 0;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		for (int k = 0; k < 1000; k++)
			getppid();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 600);
	if (debox_open(NULL))
		return 2;
	for (int tries = 0; tries < 200 && all < 1000; tries++) {
		nanosleep(&a_moment, NULL);
		for (all = 0; all < 1000; all++) {
			getppid();
			if (!timed() || failed)
				break;
		}
	}
	if (all < 1000)
		printf("not all are stamped\n");
	else if (!failed)
		printf("ok\n");
	return failed || all < 1000;
}

int main(int argc, char **argv)
{
	struct debox_info i;
	struct debox_span span;
	struct pollfd none = { -1, 0, 0 };
	pthread_t thread;
	pid_t child;
	int status;
	char c;

	if (argc != 3 || pipe(ends))
		return 2;
	if (!strcmp(argv[1], "sampled"))
		return sampled();
	kernel = !strcmp(argv[1], "kernel");
	ms_ns = strtoull(argv[2], NULL, 10) * 1000000;
	if (debox_open(NULL))
		return 2;
	if ((debox_status() == DEBOX_STATUS_MEASURED) != kernel) {
		printf("status %d\n", debox_status());
		return 1;
	}

	getppid();
	i = LAST();
	sound(&i, SYS_getppid);
	WANT(i.retval == getppid() && i.sleep_count == 0 && i.blocked_ns == 0, i);

	sleep_ms();
	i = LAST();
	sound(&i, SYS_nanosleep);
	slept(&i, ms_ns);
	/* libdebox waits for labels here, which is none of the program's calls. */
	debox_info_print(stderr, &i);
	i = LAST();
	WANT(i.nr == SYS_write || i.nr == SYS_nanosleep, i);

	WANT(open("/nowhere/at/all", O_RDONLY) == -1, i);
	i = LAST();
	sound(&i, SYS_openat);
	WANT(i.retval == -ENOENT, i);

	pthread_create(&thread, NULL, writer, NULL);
	(void)read(ends[0], &c, 1);
	i = LAST();
	sound(&i, SYS_read);
	WANT(i.retval == 1, i);
	if (i.wall_ns > ms_ns / 2)
		slept(&i, ms_ns / 2);
	pthread_join(thread, NULL);

	/* A bracket's record is the bracket's; what comes behind it is not. */
	(void)DEBOX_CALL(poll(&none, 1, (int)(ms_ns / 1000000)));
	i = LAST();
	WANT(i.flags & DEBOX_FLAG_WRAP && !(i.flags & DEBOX_FLAG_SPLICE), i);
	slept(&i, ms_ns);
	poll(&none, 1, 0);
	i = LAST();
	sound(&i, SYS_poll);
	WANT(i.wall_ns < ms_ns || i.runq_ns || !kernel, i);
	debox_span_begin(&span);
	sleep_ms();
	i.size = sizeof i;
	debox_span_end(&span, &i);
	i = LAST();
	sound(&i, SYS_nanosleep);
	slept(&i, ms_ns);

	pthread_create(&thread, NULL, another, NULL);
	pthread_join(thread, NULL);
	interrupted();

	/* A child that has made no call of its own has none of its parent's. */
	fflush(stdout);
	child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!child) {
		i.size = sizeof i;
		_exit(debox_last(&i) != -ENODATA);
	}
	waitpid(child, &status, 0);
	i = LAST();
	WANT(i.nr == SYS_wait4 && i.retval == child && status == 0, i);

	child = fork();
	if (!child) {
		failed = 0;
		kernel = kernel && debox_status() == DEBOX_STATUS_MEASURED;
		sleep_ms();
		i = LAST();
		sound(&i, SYS_nanosleep);
		slept(&i, ms_ns);
		fflush(stdout);
		_exit(failed);
	}
	waitpid(child, &status, 0);
	i = LAST();
	WANT(i.nr == SYS_wait4 && i.retval == child, i);
	slept(&i, ms_ns);
	WANT(status == 0, i);
	if (!failed)
		printf("ok\n");
	return failed;
}
