/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which programs wait for each other in a way that is known?
 *
 *     chains SCENARIO MS
 *
 * The one that is asked about is a thread named "waiter"; whom it waits for are
 * named as what they do. tests/chains.rs knows each chain.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long ms;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t start;
static int done;
static int ends[2];
static unsigned pi_word;

static void fail(const char *what)
{
	fprintf(stderr, "chains: %s: %s\n", what, strerror(errno));
	exit(99);
}

static void name(const char *text)
{
	prctl(PR_SET_NAME, text);
}

static void sleep_ms(long n)
{
	struct timespec ts = { n / 1000, n % 1000 * 1000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

/* So long of this thread's own time. */
static void compute_ms(long n)
{
	struct timespec ts;
	uint64_t until;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	until = ts.tv_sec * 1000000000ull + ts.tv_nsec + n * 1000000ull;
	do {
		for (volatile int i = 0; i < 100000; i++)
			;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	} while (ts.tv_sec * 1000000000ull + ts.tv_nsec < until);
}

static pthread_t thread(void *(*body)(void *))
{
	pthread_t id;

	if (pthread_create(&id, NULL, body, NULL))
		fail("pthread_create");
	return id;
}

/* ---- a mutex, whose holder reads a pipe, whose writer sleeps */

static void *pipe_writer(void *unused)
{
	name("writer");
	pthread_barrier_wait(&start);
	sleep_ms(ms);
	if (write(ends[1], "x", 1) != 1)
		fail("write");
	return unused;
}

static void *mutex_holder(void *unused)
{
	char byte;

	name("holder");
	pthread_mutex_lock(&lock);
	pthread_barrier_wait(&start);
	if (read(ends[0], &byte, 1) != 1)
		fail("read");
	pthread_mutex_unlock(&lock);
	return unused;
}

static void mutex_pipe(void)
{
	pthread_t a, b;

	pthread_barrier_init(&start, NULL, 3);
	a = thread(mutex_holder);
	b = thread(pipe_writer);
	pthread_barrier_wait(&start);
	name("waiter");
	pthread_mutex_lock(&lock);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

/* ---- a condition that is signalled after computing */

static void *signaller(void *unused)
{
	name("computer");
	pthread_barrier_wait(&start);
	compute_ms(ms);
	pthread_mutex_lock(&lock);
	done = 1;
	pthread_cond_signal(&ready);
	pthread_mutex_unlock(&lock);
	return unused;
}

static void condition(void)
{
	pthread_t a;

	pthread_barrier_init(&start, NULL, 2);
	a = thread(signaller);
	pthread_barrier_wait(&start);
	name("waiter");
	pthread_mutex_lock(&lock);
	while (!done)
		pthread_cond_wait(&ready, &lock);
	pthread_mutex_unlock(&lock);
	pthread_join(a, NULL);
}

/* ---- ten threads, each holds the same mutex for as long */

static void *convoy_one(void *number)
{
	char text[16];

	snprintf(text, sizeof(text), "convoy-%ld", (long)(intptr_t)number);
	name(text);
	pthread_barrier_wait(&start);
	pthread_mutex_lock(&lock);
	sleep_ms(ms);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static void convoy(void)
{
	pthread_t id[10];

	pthread_barrier_init(&start, NULL, 10);
	for (long i = 0; i < 10; i++)
		if (pthread_create(&id[i], NULL, convoy_one, (void *)(intptr_t)i))
			fail("pthread_create");
	for (int i = 0; i < 10; i++)
		pthread_join(id[i], NULL);
}

/* ---- a futex with priority inheritance */

static void pi(int operation)
{
	if (syscall(SYS_futex, &pi_word, operation, 0, NULL, NULL, 0))
		fail("futex");
}

static void *pi_holder(void *unused)
{
	name("pi-holder");
	pi(FUTEX_LOCK_PI);
	pthread_barrier_wait(&start);
	sleep_ms(ms);
	pi(FUTEX_UNLOCK_PI);
	return unused;
}

static void priority(void)
{
	pthread_t a;

	pthread_barrier_init(&start, NULL, 2);
	a = thread(pi_holder);
	pthread_barrier_wait(&start);
	name("waiter");
	pi(FUTEX_LOCK_PI);
	pi(FUTEX_UNLOCK_PI);
	pthread_join(a, NULL);
}

/* ---- two processes and a file's lock */

static void file_lock(void)
{
	char path[] = "/tmp/debox-chains-XXXXXX", byte;
	int fd = mkstemp(path);
	pid_t child;

	if (fd < 0)
		fail("mkstemp");
	child = fork();
	if (!child) {
		int own = open(path, O_RDWR);

		name("locker");
		if (own < 0 || flock(own, LOCK_EX) || write(ends[1], "x", 1) != 1)
			fail("flock");
		sleep_ms(ms);
		_exit(0);
	}
	if (read(ends[0], &byte, 1) != 1)
		fail("read");
	name("waiter");
	if (flock(fd, LOCK_EX))
		fail("flock");
	unlink(path);
	waitpid(child, NULL, 0);
}

/* ---- a client and a server on this machine, three times around */

static void loopback(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(at);
	int listening = socket(AF_INET, SOCK_STREAM, 0), client;
	char byte = 'x';
	pid_t child;

	if (bind(listening, (void *)&at, length) || listen(listening, 1) ||
	    getsockname(listening, (void *)&at, &length))
		fail("listen");
	child = fork();
	if (!child) {
		int server;

		name("server");
		server = accept(listening, NULL, NULL);
		for (int i = 0; i < 3; i++) {
			if (recv(server, &byte, 1, 0) != 1)
				fail("recv");
			sleep_ms(ms);
			if (send(server, &byte, 1, 0) != 1)
				fail("send");
		}
		_exit(0);
	}
	client = socket(AF_INET, SOCK_STREAM, 0);
	name("waiter");
	if (connect(client, (void *)&at, sizeof(at)))
		fail("connect");
	for (int i = 0; i < 3; i++)
		if (send(client, &byte, 1, 0) != 1 || recv(client, &byte, 1, 0) != 1)
			fail("send, recv");
	waitpid(child, NULL, 0);
}

/* ---- what only others do: reads what a process writes that nobody watches */

static void reader(void)
{
	char byte;

	name("waiter");
	while (read(0, &byte, 1) == 1)
		;
}

/* ... and that other one: sleeps and writes, MS times. */
static void writer(void)
{
	name("outsider");
	for (long i = 0; i < ms; i++) {
		sleep_ms(20);
		if (write(1, "x", 1) != 1)
			break;
	}
}

/* ---- a child that sleeps, computes and ends */

static void child(void)
{
	pid_t pid;

	name("waiter");
	pid = fork();
	if (!pid) {
		name("child");
		sleep_ms(ms);
		compute_ms(ms);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "mutex-pipe", mutex_pipe },
	{ "condition", condition },
	{ "convoy", convoy },
	{ "priority", priority },
	{ "file-lock", file_lock },
	{ "loopback", loopback },
	{ "reader", reader },
	{ "writer", writer },
	{ "child", child },
};

int main(int argc, char **argv)
{
	ms = argc > 2 ? atol(argv[2]) : 0;
	if (pipe2(ends, O_CLOEXEC))
		fail("pipe2");
	for (size_t i = 0; argc == 3 && i < sizeof(scenarios) / sizeof(*scenarios); i++)
		if (!strcmp(argv[1], scenarios[i].name)) {
			scenarios[i].run();
			return 0;
		}
	fprintf(stderr, "usage: chains SCENARIO MS\n");
	return 2;
}
