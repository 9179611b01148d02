/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a program notice that its code is replaced, and put back, under its threads?
 *
 * attached SECONDS: threads wait in calls of all kinds for so long, others make calls all the time and look at
 * what came back, one has signals. Orders come by standard input, a byte each, and are answered by the
 * same: a: 1,000 getppid and 10 files that are not there; t: two threads with 100 getppid each; f: a
 * child that becomes a shell; s: a signal for the thread that has them; q: the end. Status 7 when all was right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                    \
	do {                                                                           \
		if (!(what)) {                                                         \
			dprintf(2, "line %d: %s, errno %d\n", __LINE__, #what, errno); \
			_exit(9);                                                      \
		}                                                                      \
	} while (0)

static volatile int over;
static int silent[2], pair[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t never;
static int seconds;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A wait takes as long as it was to take, however often it was made again; a busy machine may take longer. */
static void took(double since)
{
	CHECK(now() - since >= seconds && now() - since < seconds + 5);
}

static void *sleeps(void *p)
{
	struct timespec time = { seconds, 0 };
	double since = now();

	CHECK(nanosleep(&time, 0) == 0);
	took(since);
	return p;
}

static void *polls(void *p)
{
	struct timespec time = { seconds, 0 };
	double since = now();
	sigset_t none;

	sigemptyset(&none);
	CHECK(ppoll(0, 0, &time, &none) == 0);
	took(since);
	return p;
}

static void *polls_as_of_old(void *p)
{
	double since = now();

	CHECK(poll(0, 0, seconds * 1000) == 0);
	took(since);
	return p;
}

static void *waits(void *p)
{
	pthread_mutex_lock(&lock);
	while (!over)
		pthread_cond_wait(&cond, &lock);
	pthread_mutex_unlock(&lock);
	return p;
}

static void *reads(void *p)
{
	char c = 0;

	CHECK(read(silent[0], &c, 1) == 1 && c == 'x');
	return p;
}

static void *receives(void *p)
{
	char text[8];

	CHECK(recv(pair[0], text, sizeof text, 0) == 3 && !memcmp(text, "abc", 3));
	return p;
}

/* EINTR comes of being stopped, as signal(7) says. */
static void *epolls(void *p)
{
	int e = epoll_create1(0), n = 0;
	struct epoll_event event;

	while ((n == 0 || (n < 0 && errno == EINTR)) && !over)
		n = epoll_wait(e, &event, 1, 100);
	CHECK(n == 0 || errno == EINTR);
	return p;
}

static void *waits_until(void *p)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	time.tv_sec += seconds;
	CHECK(sem_timedwait(&never, &time) < 0 && errno == ETIMEDOUT);
	return p;
}

static void *has_children(void *p)
{
	for (int i = 0; !over; i++) {
		pid_t child = fork();
		int status;

		CHECK(child >= 0);
		if (!child) {
			usleep(1000);
			_exit(i & 63);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (i & 63));
	}
	return p;
}

static void *computes(void *p)
{
	volatile unsigned long x = 1;

	while (!over)
		x = x * 3 + 1;
	return p;
}

/* Nothing but rax, rcx and r11 is another one afterwards, and the red zone is as it was. */
static long call(long nr)
{
	register long r10 __asm__("r10") = 0x1010, r8 __asm__("r8") = 0x88, r9 __asm__("r9") = 0x99;
	register long r12 __asm__("r12") = 0x1212;
	long a = 1, b = 2, c = 3, result;

	__asm__ volatile("movq $0x5a5a, -8(%%rsp)\n	syscall\n	cmpq $0x5a5a, -8(%%rsp)\n	je 1f\n	ud2\n1:"
			 : "=a"(result), "+r"(r10), "+r"(r8), "+r"(r9), "+r"(r12), "+D"(a), "+S"(b), "+d"(c)
			 : "0"(nr)
			 : "rcx", "r11", "memory");
	CHECK(r10 == 0x1010 && r8 == 0x88 && r9 == 0x99 && r12 == 0x1212 && a == 1 && b == 2 && c == 3);
	return result;
}

static void *is_busy(void *p)
{
	int me = (int)syscall(SYS_gettid), zero = open("/dev/zero", O_RDONLY);
	char bytes[64];

	while (!over) {
		CHECK(call(SYS_gettid) == me);
		memset(bytes, 1, sizeof bytes);
		CHECK(read(zero, bytes, sizeof bytes) == sizeof bytes && !bytes[63]);
		CHECK(syscall(999) < 0 && errno == ENOSYS);
		CHECK(write(-1, bytes, 1) < 0 && errno == EBADF);
	}
	return p;
}

static void *asks(void *p)
{
	for (int i = 0; i < 100; i++)
		syscall(SYS_getppid);
	return p;
}

static void handler(int signal)
{
	(void)signal;
	getgid();
}

static void *has_signals(void *p)
{
	while (!over) {
		struct timespec time = { 0, 300000 };

		nanosleep(&time, 0);
		getuid();
	}
	return p;
}

static void order(char c, pthread_t signalled)
{
	if (c == 'a') {
		for (int i = 0; i < 1000; i++)
			syscall(SYS_getppid);
		for (int i = 0; i < 10; i++)
			CHECK(open("/nonexistent", O_RDONLY) < 0);
	}
	if (c == 't') {
		pthread_t two[2];

		for (int i = 0; i < 2; i++)
			CHECK(!pthread_create(&two[i], 0, asks, 0));
		for (int i = 0; i < 2; i++)
			pthread_join(two[i], 0);
	}
	if (c == 'f') {
		pid_t child = fork();
		int status;

		if (!child) {
			execl("/bin/sh", "sh", "-c", "exit 3", (char *)0);
			_exit(1);
		}
		CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
	}
	if (c == 's')
		for (int i = 0; i < 100; i++) {
			CHECK(!pthread_kill(signalled, SIGUSR1));
			usleep(200);
		}
}

int main(int argc, char **argv)
{
	void *(*all[])(void *) = { sleeps, polls, polls_as_of_old, waits, reads, receives, epolls, waits_until,
				   has_children, computes, is_busy, is_busy, has_signals };
	enum { N = sizeof all / sizeof *all };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	pthread_t thread[N];
	ssize_t n = 1;
	char c = 'r';

	seconds = argc > 1 ? atoi(argv[1]) : 1;
	CHECK(!pipe(silent) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	sem_init(&never, 0, 0);
	sigaction(SIGUSR1, &action, 0);
	for (int i = 0; i < N; i++)
		CHECK(!pthread_create(&thread[i], 0, all[i], 0));
	while (n == 1 && c != 'q') {
		order(c, thread[N - 1]);
		CHECK(write(1, &c, 1) == 1);
		n = read(0, &c, 1);
	}
	pthread_mutex_lock(&lock);
	over = 1;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&lock);
	CHECK(write(silent[1], "x", 1) == 1 && write(pair[1], "abc", 3) == 3);
	for (int i = 0; i < N; i++)
		pthread_join(thread[i], 0);
	return 7;
}
