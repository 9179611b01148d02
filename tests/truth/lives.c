/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Whose time is it that a program takes? Each scenario's answer is known:
 *
 *   lives SCENARIO MS
 *
 * It ends by printing what the kernel says of its CPU time, its children's included, in
 * microseconds.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1e3 + ts.tv_nsec / 1e6;
}

static void compute(double ms)
{
	double end = now_ms(CLOCK_THREAD_CPUTIME_ID) + ms;
	volatile unsigned long n = 0;

	while (now_ms(CLOCK_THREAD_CPUTIME_ID) < end)
		for (int i = 0; i < 20000; i++)
			n += i;
}

static void call(double ms)
{
	double end = now_ms(CLOCK_THREAD_CPUTIME_ID) + ms;

	while (now_ms(CLOCK_THREAD_CPUTIME_ID) < end)
		for (int i = 0; i < 1000; i++)
			syscall(SYS_getppid);
}

/* Memory that is always new: the kernel's time, in no call. */
static void touch(double ms)
{
	double end = now_ms(CLOCK_THREAD_CPUTIME_ID) + ms;
	size_t bytes = 4 << 20;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(memory, bytes, MADV_NOHUGEPAGE);
	while (now_ms(CLOCK_THREAD_CPUTIME_ID) < end) {
		for (size_t i = 0; i < bytes; i += 4096)
			*(volatile char *)&memory[i] = 1;
		madvise(memory, bytes, MADV_DONTNEED);
	}
}

static void sleep_ms(double ms)
{
	struct timespec ts = { .tv_sec = ms / 1e3 };

	ts.tv_nsec = (ms - ts.tv_sec * 1e3) * 1e6;
	nanosleep(&ts, NULL);
}

static void name(const char *name)
{
	prctl(PR_SET_NAME, name);
}

/* front | middle | back, the middle of which is slow. */
static void pipeline(double ms)
{
	int first[2], second[2];
	char byte = 0;

	if (pipe(first) || pipe(second))
		exit(1);
	if (!fork()) {
		name("front");
		for (int i = 0; i < 20; i++)
			if (write(first[1], &byte, 1) != 1)
				exit(1);
		exit(0);
	}
	if (!fork()) {
		name("middle");
		close(first[1]);
		close(second[0]);
		while (read(first[0], &byte, 1) == 1) {
			compute(ms / 20);
			if (write(second[1], &byte, 1) != 1)
				exit(1);
		}
		exit(0);
	}
	if (!fork()) {
		name("back");
		close(first[1]);
		close(second[1]);
		while (read(second[0], &byte, 1) == 1)
			;
		exit(0);
	}
	close(first[0]);
	close(first[1]);
	close(second[0]);
	close(second[1]);
	while (wait(NULL) > 0)
		;
}

static void *thread_short(void *ms)
{
	name("short");
	sleep_ms(*(double *)ms / 4);
	return NULL;
}

static void *thread_long(void *ms)
{
	name("long");
	compute(*(double *)ms / 2);
	sleep_ms(*(double *)ms / 2);
	return NULL;
}

/* Two threads, of which one is waited for in vain. */
static void threads(double ms)
{
	pthread_t one, two;

	pthread_create(&one, NULL, thread_short, &ms);
	pthread_create(&two, NULL, thread_long, &ms);
	pthread_join(one, NULL);
	pthread_join(two, NULL);
}

static __attribute__((noinline)) void handle(int fd, int number)
{
	volatile char deeper[4096] __attribute__((unused)) = { 0 };
	char byte;

	if (read(fd, &byte, 1) != 1)
		exit(1);
	compute(1);
	/* every fourth is held up */
	if (number % 4 == 3)
		sleep_ms(20);
	deeper[0] = 1;
}

/* Where each event's work goes on, if there are threads for it. */
static int pool_fd = -1;

/* An event loop with something to do every now and then. */
static void server(double ms)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	if (!fork()) {
		name("client");
		for (double end = now_ms(CLOCK_MONOTONIC) + ms; now_ms(CLOCK_MONOTONIC) < end;) {
			sleep_ms(40);
			if (write(pair[1], "", 1) != 1)
				exit(1);
		}
		exit(0);
	}
	close(pair[1]);
	name("server");
	for (int number = 0;; number++) {
		struct pollfd fd = { .fd = pair[0], .events = POLLIN };

		poll(&fd, 1, -1);
		if (!(fd.revents & POLLIN) || (fd.revents & POLLHUP && recv(pair[0], (char[1]){ 0 }, 1, MSG_PEEK) == 0))
			break;
		handle(pair[0], number);
		if (pool_fd >= 0 && write(pool_fd, "", 1) != 1)
			exit(1);
	}
	while (wait(NULL) > 0)
		;
}

static __attribute__((noinline)) void pool_work(void)
{
	volatile char deeper[4096] = { 0 };

	sleep_ms(10);
	deeper[0] = deeper[1];
}

static void *pool_thread(void *fd)
{
	char byte;

	while (read(*(int *)fd, &byte, 1) == 1)
		pool_work();
	return NULL;
}

/* The same with a thread beside it, of the same name, that sleeps in the same call. */
static void pool(double ms)
{
	pthread_t thread;
	int ends[2];

	name("server");
	if (pipe(ends) || pthread_create(&thread, NULL, pool_thread, &ends[0]))
		exit(1);
	pool_fd = ends[1];
	server(ms);
	close(ends[1]);
	pthread_join(thread, NULL);
}

/* A child that stops until it is told to go on. */
static void stopped(double ms)
{
	pid_t child = fork();

	if (!child) {
		name("stopped");
		raise(SIGSTOP);
		exit(0);
	}
	waitpid(child, NULL, WUNTRACED);
	sleep_ms(ms);
	kill(child, SIGCONT);
	waitpid(child, NULL, 0);
}

/* Looks every now and then whether there is something to do, until it is killed. */
static void looks(double ms)
{
	for (;;)
		poll(NULL, 0, (int)ms);
}

static void pin(int thread, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(thread, sizeof(set), &set))
		exit(3);
}

#define MOVES 5

static struct {
	double ms;
	int from;
	volatile int tid, slept;
} moving;

/* Has computed beside another one whenever it goes to sleep, so that it stays in its run queue for a while. */
static void *moving_thread(void *unused)
{
	name("moved");
	moving.tid = (int)syscall(SYS_gettid);
	for (int i = 0; i < MOVES; i++) {
		pin(0, moving.from);
		compute(30);
		moving.slept = i + 1;
		sleep_ms(moving.ms / MOVES);
	}
	return unused;
}

static char moving_state(void)
{
	char path[64], text[256] = "", is = '?';
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", moving.tid);
	f = fopen(path, "r");
	if (f && fgets(text, sizeof(text), f))
		sscanf(text, "%*d (moved) %c", &is);
	if (f)
		fclose(f);
	return is;
}

/* A thread that is taken to another CPU as it sleeps. */
static void moved(double ms)
{
	pthread_t thread;
	cpu_set_t set;
	int to = 0;
	pid_t busy;

	if (sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) < 2)
		exit(3);
	moving.ms = ms;
	while (!CPU_ISSET(moving.from, &set))
		moving.from++;
	for (to = moving.from + 1; !CPU_ISSET(to, &set);)
		to++;
	busy = fork();
	if (!busy) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		name("beside");
		pin(0, moving.from);
		for (;;)
			compute(1000);
	}
	pin(0, to);
	pthread_create(&thread, NULL, moving_thread, NULL);
	for (int i = 1; i <= MOVES; i++) {
		while (moving.slept < i)
			usleep(200);
		while (moving_state() != 'S' && moving.slept == i)
			;
		pin(moving.tid, to);
	}
	pthread_join(thread, NULL);
	kill(busy, SIGKILL);
	waitpid(busy, NULL, 0);
}

static long cpu_us(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L + usage.ru_utime.tv_usec +
	       usage.ru_stime.tv_usec;
}

int main(int count, char **args)
{
	static const struct {
		const char *name;
		void (*run)(double ms);
	} scenarios[] = { { "compute", compute }, { "call", call }, { "touch", touch }, { "sleep", sleep_ms }, { "pipeline", pipeline }, { "threads", threads }, { "server", server }, { "pool", pool }, { "stopped", stopped }, { "looks", looks }, { "moved", moved } };

	if (count != 3)
		return 2;
	for (unsigned i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++) {
		if (strcmp(scenarios[i].name, args[1]))
			continue;
		scenarios[i].run(atof(args[2]));
		printf("%ld\n", cpu_us(RUSAGE_SELF) + cpu_us(RUSAGE_CHILDREN));
		return 0;
	}
	return 2;
}
