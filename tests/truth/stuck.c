/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs that hang, each in a known way, for `debox why`.
 *
 *   stuck SCENARIO [FILE]
 *
 * Every thread has a name of its own; children end with whoever started them. Prints
 * "ready" when all that can be arranged without waiting is arranged; the last step of
 * each thread, the one that it hangs in, comes just after.
 */
#define _GNU_SOURCE
#include "fuse.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "stuck: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void named(const char *name)
{
	prctl(PR_SET_NAME, name);
}

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

/* 0 in the child, which has a name and ends with its parent. */
static pid_t child(const char *name)
{
	pid_t pid = fork();

	must(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		named(name);
	}
	return pid;
}

static void *shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED, "mmap");
	return at;
}

static void mutex_between_processes(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(mutex, &attr);
}

/* Three threads, each of which has a mutex and wants the next one's. */
static pthread_mutex_t ring[3];
static pthread_barrier_t meet;

static void *ring_member(void *number)
{
	long n = (long)number;
	char name[] = "ring-A";

	name[5] += n;
	named(name);
	pthread_mutex_lock(&ring[n]);
	pthread_barrier_wait(&meet);
	pthread_mutex_lock(&ring[(n + 1) % 3]);
	return NULL;
}

static void scenario_ring(void)
{
	pthread_t thread[3];

	pthread_barrier_init(&meet, NULL, 3);
	for (long i = 0; i < 3; i++) {
		pthread_mutex_init(&ring[i], NULL);
		pthread_create(&thread[i], NULL, ring_member, (void *)i);
	}
	ready();
	pthread_join(thread[0], NULL);
}

static void scenario_self(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

	named("twice");
	pthread_mutex_lock(&mutex);
	ready();
	pthread_mutex_lock(&mutex);
}

static void scenario_flock(const char *file)
{
	int fd = open(file, O_RDWR | O_CREAT, 0600);

	must(fd >= 0 && flock(fd, LOCK_EX) == 0, file);
	if (child("flock-waiter") == 0) {
		fd = open(file, O_RDWR);
		ready();
		flock(fd, LOCK_EX);
		_exit(0);
	}
	named("flock-holder");
	sleep(1000);
}

static void scenario_posix(const char *file)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 20 };
	int fd = open(file, O_RDWR | O_CREAT, 0600);

	must(fd >= 0 && fcntl(fd, F_SETLK, &lock) == 0, file);
	if (child("posix-waiter") == 0) {
		ready();
		fcntl(fd, F_SETLKW, &lock);
		_exit(0);
	}
	named("posix-holder");
	sleep(1000);
}

/* Of an open file, so that /proc/locks says nothing of who took it. */
static void scenario_ofd(const char *file)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 20 };
	int fd = open(file, O_RDWR | O_CREAT, 0600);

	must(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, file);
	if (child("ofd-waiter") == 0) {
		close(fd);
		fd = open(file, O_RDWR);
		ready();
		fcntl(fd, F_OFD_SETLKW, &lock);
		_exit(0);
	}
	named("ofd-holder");
	sleep(1000);
}

static void scenario_lease(const char *file)
{
	int fd = open(file, O_RDONLY | O_CREAT, 0600);

	signal(SIGIO, SIG_IGN);
	must(fd >= 0 && fcntl(fd, F_SETLEASE, F_RDLCK) == 0, file);
	if (child("lease-waiter") == 0) {
		ready();
		open(file, O_WRONLY);
		_exit(0);
	}
	named("lease-holder");
	for (;;)
		sleep(1000);
}

/* Three hold it together, and one wants it alone. */
static void scenario_readers(const char *file)
{
	int fd = open(file, O_RDWR | O_CREAT, 0600), ends[2];
	static const char *const name[] = { "reader-1", "reader-2" };
	char byte;

	must(fd >= 0 && flock(fd, LOCK_SH) == 0 && pipe(ends) == 0, file);
	for (int i = 0; i < 2; i++) {
		if (child(name[i]) == 0) {
			fd = open(file, O_RDWR);
			must(flock(fd, LOCK_SH) == 0 && write(ends[1], "", 1) == 1, file);
			sleep(1000);
		}
		must(read(ends[0], &byte, 1) == 1, "read");
	}
	if (child("readers-waiter") == 0) {
		fd = open(file, O_RDWR);
		ready();
		flock(fd, LOCK_EX);
		_exit(0);
	}
	named("reader-0");
	sleep(1000);
}

/* A waits for a flock of B, B waits for a mutex of A. */
static void scenario_crossed(const char *file)
{
	pthread_mutex_t *mutex = shared(sizeof(*mutex));
	volatile int *taken = shared(sizeof(*taken));
	int fd;

	mutex_between_processes(mutex);
	if (child("crossed-B") == 0) {
		fd = open(file, O_RDWR | O_CREAT, 0600);
		must(fd >= 0 && flock(fd, LOCK_EX) == 0, file);
		*taken = 1;
		while (*taken != 2)
			usleep(1000);
		pthread_mutex_lock(mutex);
		_exit(0);
	}
	named("crossed-A");
	pthread_mutex_lock(mutex);
	while (*taken != 1)
		usleep(1000);
	fd = open(file, O_RDWR);
	*taken = 2;
	ready();
	flock(fd, LOCK_EX);
}

/* Ended, and its parent does not care. */
static void scenario_zombie(void)
{
	pid_t pid = child("zombie");
	siginfo_t info;

	if (pid == 0)
		_exit(0);
	must(waitid(P_PID, pid, &info, WEXITED | WNOWAIT) == 0, "waitid");
	named("careless");
	ready();
	pause();
}

/* Anybody may send to it, and nobody does. */
static void scenario_datagram(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	char byte;

	must(bind(fd, (void *)&address, sizeof(address)) == 0, "bind");
	named("datagram");
	ready();
	recv(fd, &byte, 1, 0);
}

static void scenario_pipe(void)
{
	static char bytes[4096];
	int ends[2];

	must(pipe(ends) == 0, "pipe");
	if (child("pipe-reader") == 0) {
		close(ends[1]);
		raise(SIGSTOP);
		pause();
	}
	close(ends[0]);
	named("pipe-writer");
	ready();
	for (;;)
		must(write(ends[1], bytes, sizeof(bytes)) > 0, "write");
}

static void scenario_shared(void)
{
	pthread_mutex_t *mutex = shared(sizeof(*mutex));

	mutex_between_processes(mutex);
	pthread_mutex_lock(mutex);
	if (child("shared-waiter") == 0) {
		ready();
		pthread_mutex_lock(mutex);
		_exit(0);
	}
	named("shared-holder");
	pause();
}

static void *waits_for_mutex(void *mutex)
{
	named("kind-waiter");
	pthread_mutex_lock(mutex);
	return NULL;
}

static void *waits_to_read(void *lock)
{
	named("kind-waiter");
	pthread_rwlock_rdlock(lock);
	return NULL;
}

/* A mutex of another kind, held by the main thread. */
static void scenario_kind(const char *kind)
{
	static pthread_mutex_t mutex;
	static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
	pthread_mutexattr_t attr;
	pthread_t thread;

	named("kind-holder");
	pthread_mutexattr_init(&attr);
	if (strcmp(kind, "pi") == 0)
		pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
	if (strcmp(kind, "robust") == 0)
		pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	if (strcmp(kind, "recursive") == 0)
		pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&mutex, &attr);
	if (strcmp(kind, "rwlock") == 0) {
		pthread_rwlock_wrlock(&lock);
		pthread_create(&thread, NULL, waits_to_read, &lock);
	} else {
		pthread_mutex_lock(&mutex);
		pthread_create(&thread, NULL, waits_for_mutex, &mutex);
	}
	ready();
	pause();
}

static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void *waits_for_condition(void *mutex)
{
	named("cond-waiter");
	pthread_mutex_lock(mutex);
	pthread_cond_wait(&never, mutex);
	return NULL;
}

static void *waits_for_semaphore(void *semaphore)
{
	named("sem-waiter");
	sem_wait(semaphore);
	return NULL;
}

/* What has no owner. */
static void scenario_ownerless(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static sem_t semaphore;
	pthread_t thread;

	sem_init(&semaphore, 0, 0);
	pthread_create(&thread, NULL, waits_for_condition, &mutex);
	pthread_create(&thread, NULL, waits_for_semaphore, &semaphore);
	ready();
	pause();
}

/* Words that look like a mutex, with owners that cannot be: `file` is the owner. */
static void scenario_garbage(const char *owner)
{
	static int words[8] __attribute__((aligned(64)));

	named("\033[31mgarbage\n");
	words[0] = 2;
	words[2] = atoi(owner);
	words[3] = 1;
	ready();
	syscall(SYS_futex, words, 128, 2, NULL, NULL, 0);
}

static void scenario_stopped(void)
{
	if (child("stopped-child") == 0) {
		raise(SIGSTOP);
		_exit(0);
	}
	named("stopped-parent");
	ready();
	wait(NULL);
}

static void scenario_vfork(void)
{
	named("vfork-parent");
	ready();
	if (vfork() == 0) {
		prctl(PR_SET_NAME, "vfork-child");
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
}

static void scenario_compute(void)
{
	volatile long sum = 0;

	named("computing");
	ready();
	for (;;)
		sum++;
}

/* Each waits for the other to say something. */
static void scenario_sockets(const char *family)
{
	int ends[2];
	char byte;

	if (strcmp(family, "tcp") == 0) {
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t length = sizeof(to);
		int listener = socket(AF_INET, SOCK_STREAM, 0);

		must(bind(listener, (struct sockaddr *)&to, sizeof(to)) == 0, "bind");
		must(listen(listener, 1) == 0, "listen");
		must(getsockname(listener, (struct sockaddr *)&to, &length) == 0, "getsockname");
		ends[0] = socket(AF_INET, SOCK_STREAM, 0);
		must(connect(ends[0], (struct sockaddr *)&to, sizeof(to)) == 0, "connect");
		ends[1] = accept(listener, NULL, NULL);
		close(listener);
	} else {
		must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
	}
	if (child("socket-B") == 0) {
		close(ends[0]);
		must(read(ends[1], &byte, 1) >= 0, "read");
		_exit(0);
	}
	close(ends[1]);
	named("socket-A");
	ready();
	must(read(ends[0], &byte, 1) >= 0, "read");
}

/* Waits for a timer or, as servers do, for the end of whoever started it: `alone`
 * leaves out the timer. */
static void scenario_watching(int alone)
{
	struct itimerspec in = { .it_value.tv_sec = 1000 };
	struct pollfd at[2] = {};
	int life[2];

	must(pipe(life) == 0, "pipe");
	if (child("watcher") == 0) {
		close(life[1]);
		at[0].fd = life[0];
		at[1].fd = timerfd_create(CLOCK_MONOTONIC, 0);
		at[0].events = at[1].events = POLLIN;
		must(timerfd_settime(at[1].fd, 0, &in, NULL) == 0, "timerfd_settime");
		poll(at, alone ? 1 : 2, -1);
		_exit(0);
	}
	close(life[0]);
	named("starter");
	ready();
	pause();
}

/* Makes a directory in the hung one, where `after` has its lock already. */
static void maker(const char *name, const char *place, pid_t after, int device)
{
	char path[4096], state[64] = "";
	ssize_t got;
	int fd;

	if (child(name) != 0)
		return;
	close(device);
	while (!strstr(state, "request_wait_answer")) {
		usleep(1000);
		snprintf(path, sizeof(path), "/proc/%d/wchan", after);
		fd = open(path, O_RDONLY);
		got = read(fd, state, sizeof(state) - 1);
		state[got > 0 ? got : 0] = 0;
		close(fd);
	}
	snprintf(path, sizeof(path), "%s/%s", place, name);
	mkdir(path, 0700);
	_exit(0);
}

/*
 * A FUSE file system at `place` whose server answers the first request only. With
 * `locked` the first who waits for it holds a lock of the kernel that another one wants.
 */
static void scenario_fuse(const char *place, int locked)
{
	static char request[FUSE_REQUEST_BYTES];
	struct stat stat_buffer;
	char path[4096];
	int device, told[2];
	pid_t first;
	char byte;

	must(pipe(told) == 0, "pipe");
	device = fuse_mount(place);
	must(device >= 0, "mounting fuse");
	named("fuse-server");
	first = child(locked ? "fuse-maker" : "fuse-waiter");
	if (first == 0) {
		close(device);
		must(read(told[0], &byte, 1) == 1, "read");
		ready();
		snprintf(path, sizeof(path), "%s/some", place);
		if (locked)
			mkdir(path, 0700);
		else
			stat(path, &stat_buffer);
		_exit(0);
	}
	must(fuse_begin(device, request) == 0, "answering /dev/fuse");
	must(write(told[1], "x", 1) == 1, "write");
	if (locked)
		maker("fuse-behind", place, first, device);
	pause();
}

static void *one_of_many(void *mutex)
{
	pthread_mutex_lock(mutex);
	return NULL;
}

/* So many threads that want what the first one has. */
static void scenario_many(const char *count)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_attr_t attr;
	pthread_t thread;

	named("many");
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	pthread_mutex_lock(&mutex);
	for (int i = 0; i < atoi(count); i++)
		must(pthread_create(&thread, &attr, one_of_many, &mutex) == 0, "pthread_create");
	ready();
	pause();
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "", *file = count > 2 ? words[2] : "";

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (strcmp(what, "ring") == 0)
		scenario_ring();
	else if (strcmp(what, "self") == 0)
		scenario_self();
	else if (strcmp(what, "flock") == 0)
		scenario_flock(file);
	else if (strcmp(what, "posix") == 0)
		scenario_posix(file);
	else if (strcmp(what, "ofd") == 0)
		scenario_ofd(file);
	else if (strcmp(what, "lease") == 0)
		scenario_lease(file);
	else if (strcmp(what, "readers") == 0)
		scenario_readers(file);
	else if (strcmp(what, "crossed") == 0)
		scenario_crossed(file);
	else if (strcmp(what, "zombie") == 0)
		scenario_zombie();
	else if (strcmp(what, "datagram") == 0)
		scenario_datagram();
	else if (strcmp(what, "pipe") == 0)
		scenario_pipe();
	else if (strcmp(what, "shared") == 0)
		scenario_shared();
	else if (strcmp(what, "kind") == 0)
		scenario_kind(file);
	else if (strcmp(what, "ownerless") == 0)
		scenario_ownerless();
	else if (strcmp(what, "garbage") == 0)
		scenario_garbage(file);
	else if (strcmp(what, "stopped") == 0)
		scenario_stopped();
	else if (strcmp(what, "vfork") == 0)
		scenario_vfork();
	else if (strcmp(what, "compute") == 0)
		scenario_compute();
	else if (strcmp(what, "sockets") == 0)
		scenario_sockets(file);
	else if (strcmp(what, "watching") == 0)
		scenario_watching(strcmp(file, "alone") == 0);
	else if (strcmp(what, "fuse") == 0)
		scenario_fuse(file, 0);
	else if (strcmp(what, "fuse-lock") == 0)
		scenario_fuse(file, 1);
	else if (strcmp(what, "many") == 0)
		scenario_many(file);
	else
		fprintf(stderr, "stuck: no scenario \"%s\"\n", what);
	return 1;
}
