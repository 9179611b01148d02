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
#include "fuse.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
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

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
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

static void mutex_behind(void *(*writer)(void *))
{
	pthread_t a, b;

	pthread_barrier_init(&start, NULL, 3);
	a = thread(mutex_holder);
	b = thread(writer);
	pthread_barrier_wait(&start);
	name("waiter");
	pthread_mutex_lock(&lock);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

static void mutex_pipe(void)
{
	mutex_behind(pipe_writer);
}

/* ---- the same, but the pipe's writer flushes files first, and says how long that took */

static int file_without_name(void)
{
	/* The six are mkstemp()'s to fill in. */
	char path[] = "/var/tmp/debox-chains-XXXXXX";
	int file = mkstemp(path);

	if (file < 0 || unlink(path))
		fail(path);
	return file;
}

static void *flushing_writer(void *unused)
{
	char block[65536] = { 1 };
	uint64_t begin = now_ns(), flushed_ns = 0;
	int file = file_without_name(), flushes = 0;

	name("writer");
	pthread_barrier_wait(&start);
	while (now_ns() - begin < ms * 1000000ull) {
		uint64_t from;

		if (write(file, block, sizeof(block)) != sizeof(block))
			fail("write to a file");
		from = now_ns();
		if (fsync(file))
			fail("fsync");
		flushed_ns += now_ns() - from;
		flushes++;
	}
	if (write(ends[1], "x", 1) != 1)
		fail("write");
	printf("flushed %d %llu\n", flushes, (unsigned long long)flushed_ns);
	return unused;
}

static void mutex_pipe_flush(void)
{
	mutex_behind(flushing_writer);
}

/* ---- sleeps that a timer ends, while a disk is busy */

static void *flusher(void *unused)
{
	char block[65536] = { 1 };
	int file = file_without_name();

	name("flusher");
	while (!__atomic_load_n(&done, __ATOMIC_RELAXED))
		if (pwrite(file, block, sizeof(block), 0) != sizeof(block) || fsync(file))
			fail("fsync");
	return unused;
}

static void timers_beside_disk(void)
{
	pthread_t other = thread(flusher);

	name("waiter");
	for (int i = 0; i < ms / 5; i++)
		sleep_ms(5);
	__atomic_store_n(&done, 1, __ATOMIC_RELAXED);
	pthread_join(other, NULL);
}

/* ---- what ends a wait: its own time limit, in each of the ways there are; or a timer that is read */

#define LIMIT_MS 20

static void *answerer(void *unused)
{
	uint64_t end = now_ns() + ms * 1000000ull;

	name("answerer");
	while (now_ns() < end)
		;
	if (write(ends[1], "", 1) != 1)
		fail("write");
	return unused;
}

static void time_limits(void)
{
	struct timespec limit = { 0, ms * 1000000 };
	struct itimerspec once = { .it_value = limit };
	struct timeval patience = { 0, ms * 1000 };
	int sockets[2], timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	struct pollfd waited = { .fd = ends[0], .events = POLLIN };
	uint64_t times;
	unsigned word = 0;
	pthread_t other;
	char byte;

	name("waiter");
	if (timer < 0 || timerfd_settime(timer, 0, &once, NULL) || read(timer, &times, sizeof(times)) < 0)
		fail("timerfd");
	if (!syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0) || errno != ETIMEDOUT)
		fail("futex");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) ||
	    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
		fail("socketpair");
	if (recv(sockets[0], &byte, 1, 0) != -1 || errno != EAGAIN)
		fail("recv");
	/* What it waits for comes after MS. */
	other = thread(answerer);
	while (!poll(&waited, 1, LIMIT_MS))
		;
	pthread_join(other, NULL);
}

/* ---- storms: two threads on one CPU wake each other MS times; a thousand in a ring, MS rounds */

static int back[2];

static void *pong(void *unused)
{
	char byte;

	name("pong");
	for (long i = 0; i < ms; i++)
		if (read(ends[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
			fail("pong");
	return unused;
}

static void ping_pong(void)
{
	cpu_set_t allowed, one;
	pthread_t other;
	char byte = 0;
	int cpu = 0;

	if (pipe2(back, O_CLOEXEC) || sched_getaffinity(0, sizeof(allowed), &allowed))
		fail("ping-pong");
	while (!CPU_ISSET(cpu, &allowed))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		fail("sched_setaffinity");
	other = thread(pong);
	name("ping");
	for (long i = 0; i < ms; i++)
		if (write(ends[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			fail("ping");
	pthread_join(other, NULL);
}

#define RING 1000
static unsigned turn[RING + 1];

static void *ring_member(void *number)
{
	long own = (long)number;

	name("member");
	for (long i = 1; i <= ms; i++) {
		unsigned now;

		while ((now = __atomic_load_n(&turn[own], __ATOMIC_ACQUIRE)) != i)
			syscall(SYS_futex, &turn[own], FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
		__atomic_store_n(&turn[own + 1], i, __ATOMIC_RELEASE);
		syscall(SYS_futex, &turn[own + 1], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
	return number;
}

static void ring(void)
{
	static pthread_t members[RING];
	unsigned now;

	for (long i = 0; i < RING; i++)
		if (pthread_create(&members[i], NULL, ring_member, (void *)i))
			fail("pthread_create");
	name("ring");
	for (unsigned i = 1; i <= ms; i++) {
		__atomic_store_n(&turn[0], i, __ATOMIC_RELEASE);
		syscall(SYS_futex, &turn[0], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		while ((now = __atomic_load_n(&turn[RING], __ATOMIC_ACQUIRE)) != i)
			syscall(SYS_futex, &turn[RING], FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
	}
	for (int i = 0; i < RING; i++)
		pthread_join(members[i], NULL);
}

/* ---- a mutex, whose holder computes after its last call, without another one */

static __attribute__((noinline)) void crunch(void)
{
	struct timespec ts;
	uint64_t until;

	syscall(SYS_getppid);
	clock_gettime(CLOCK_MONOTONIC, &ts);
	until = ts.tv_sec * 1000000000ull + ts.tv_nsec + ms * 1000000ull;
	do
		clock_gettime(CLOCK_MONOTONIC, &ts);
	while (ts.tv_sec * 1000000000ull + ts.tv_nsec < until);
}

static void *mutex_cruncher(void *unused)
{
	name("cruncher");
	pthread_mutex_lock(&lock);
	pthread_barrier_wait(&start);
	crunch();
	pthread_mutex_unlock(&lock);
	return unused;
}

static void mutex_computing(void)
{
	pthread_t a;

	pthread_barrier_init(&start, NULL, 2);
	a = thread(mutex_cruncher);
	pthread_barrier_wait(&start);
	name("waiter");
	/* It is to be in crunch() by then. */
	sleep_ms(ms / 4);
	pthread_mutex_lock(&lock);
	pthread_join(a, NULL);
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

/* ---- two processes and a directory, which the kernel locks for who makes something in it */

static void maker(const char *who, const char *directory)
{
	char path[64];

	name(who);
	snprintf(path, sizeof(path), "%s/%s", directory, who);
	/* Each of the server's answers is a refusal. */
	if (mkdir(path, 0700) == 0)
		fail("mkdir");
}

/* Looks for a name: there is none. To make one takes its time. */
static void serve(int device)
{
	static char request[FUSE_REQUEST_BYTES];
	struct fuse_in_header *in = (void *)request;

	name("server");
	while (read(device, request, sizeof(request)) > 0) {
		struct fuse_out_header answer = { .len = sizeof(answer), .unique = in->unique };

		if (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET)
			continue;
		answer.error = in->opcode == FUSE_LOOKUP ? -ENOENT : -EACCES;
		if (in->opcode == FUSE_MKDIR) {
			if (write(ends[1], "x", 1) != 1)
				fail("write");
			sleep_ms(ms);
		}
		if (write(device, &answer, sizeof(answer)) != sizeof(answer))
			fail("answering /dev/fuse");
	}
	_exit(0);
}

static void directory_lock(void)
{
	static char request[FUSE_REQUEST_BYTES];
	char directory[] = "/tmp/debox-chains-XXXXXX", byte;
	int device;
	pid_t server, holder;

	if (!mkdtemp(directory))
		fail("mkdtemp");
	device = fuse_mount(directory);
	if (device < 0)
		fail("mounting fuse");
	server = fork();
	if (!server) {
		if (fuse_begin(device, request))
			fail("answering /dev/fuse");
		serve(device);
	}
	close(device);
	holder = fork();
	if (!holder) {
		maker("holder", directory);
		_exit(0);
	}
	if (read(ends[0], &byte, 1) != 1)
		fail("read");
	maker("waiter", directory);
	waitpid(holder, NULL, 0);
	/* Which ends the server. */
	umount2(directory, MNT_DETACH);
	waitpid(server, NULL, 0);
	rmdir(directory);
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
	{ "mutex-pipe-flush", mutex_pipe_flush },
	{ "timers-beside-disk", timers_beside_disk },
	{ "time-limits", time_limits },
	{ "ping-pong", ping_pong },
	{ "ring", ring },
	{ "mutex-computing", mutex_computing },
	{ "condition", condition },
	{ "convoy", convoy },
	{ "priority", priority },
	{ "file-lock", file_lock },
	{ "directory-lock", directory_lock },
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
