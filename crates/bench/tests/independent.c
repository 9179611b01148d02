/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does somebody else measure for the same things?
 *
 * Loops written apart from those of `debox bench`, in the plainest way, with
 * another clock; the tests compare by wide ratios. Prints "name ns" for each,
 * the shortest of many rounds: what else the machine does only adds.
 *
 *     independent CPU OTHER_CPU FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

#define BEST(name, rounds, n, ...)                                  \
	do {                                                        \
		double best_ = 1e18;                                \
		for (int r_ = 0; r_ < (rounds); r_++) {             \
			double t_ = now();                          \
			for (int i = 0; i < (n); i++) {             \
				__VA_ARGS__;                        \
			}                                           \
			t_ = (now() - t_) / (n);                    \
			if (t_ < best_)                             \
				best_ = t_;                         \
		}                                                   \
		printf("%s %.3f\n", name, best_);                   \
		fflush(stdout);                                     \
	} while (0)

static void on_cpu(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof one, &one))
		perror("sched_setaffinity"), exit(1);
}

/* A child that sends back every message; kind 0 pipes, 1 eventfds, 2 a socket pair. */
static void trips(const char *name, int kind, int cpu)
{
	int a[2], b[2], size = kind == 1 ? 8 : 1;
	unsigned long long word = 1;
	pid_t child;

	if (kind == 0 && (pipe(a) || pipe(b)))
		exit(1);
	if (kind == 1) {
		a[0] = a[1] = eventfd(0, 0);
		b[0] = b[1] = eventfd(0, 0);
	}
	if (kind == 2) {
		int s[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, s))
			exit(1);
		a[1] = b[0] = s[0];
		a[0] = b[1] = s[1];
	}
	child = fork();
	if (child == 0) {
		on_cpu(cpu);
		while (read(a[0], &word, size) == size && write(b[1], &word, size) == size)
			;
		_exit(0);
	}
	BEST(name, 30, 200, {
		word = 1;
		if (write(a[1], &word, size) != size || read(b[0], &word, size) != size)
			exit(1);
	});
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static volatile sig_atomic_t got;

static void on_signal(int sig)
{
	(void)sig;
	got = 1;
}

static void signals(int cpu)
{
	sigset_t block, open;
	pid_t child;

	signal(SIGUSR1, on_signal);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigprocmask(SIG_BLOCK, &block, NULL);
	sigemptyset(&open);
	child = fork();
	if (child == 0) {
		on_cpu(cpu);
		for (;;) {
			got = 0;
			while (!got)
				sigsuspend(&open);
			kill(getppid(), SIGUSR1);
		}
	}
	BEST("switch/signal/same", 30, 200, {
		got = 0;
		kill(child, SIGUSR1);
		while (!got)
			sigsuspend(&open);
	});
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void faults(void)
{
	enum { PAGES = 1024 };
	double best = 1e18, cow = 1e18, populated = 1e18;

	for (int r = 0; r < 20; r++) {
		char *m = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		double t;
		pid_t child;

		madvise(m, PAGES * 4096, MADV_NOHUGEPAGE);
		t = now();
		for (int i = 0; i < PAGES; i++)
			((volatile char *)m)[i * 4096] = 1;
		t = (now() - t) / PAGES;
		best = t < best ? t : best;
		child = fork();
		if (child == 0)
			for (;;)
				pause();
		t = now();
		for (int i = 0; i < PAGES; i++)
			((volatile char *)m)[i * 4096] = 2;
		t = (now() - t) / PAGES;
		cow = t < cow ? t : cow;
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		munmap(m, PAGES * 4096);
		t = now();
		m = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		t = (now() - t) / PAGES;
		populated = t < populated ? t : populated;
		munmap(m, PAGES * 4096);
	}
	printf("fault/zero-fill %.3f\nfault/copy-on-write %.3f\nfault/map-populate %.3f\n", best, cow, populated);
}

static void reads(const char *path)
{
	static char to[1 << 20];
	int fd = open(path, O_RDONLY);
	FILE *f = fopen(path, "r");
	char *m = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0);

	if (fd < 0 || !f || m == MAP_FAILED)
		perror(path), exit(1);
	if (read(fd, to, sizeof to) != sizeof to)
		exit(1);
	BEST("read/warm/read/4096", 40, 1, {
		lseek(fd, 0, SEEK_SET);
		for (int k = 0; k < 256; k++)
			if (read(fd, to, 4096) != 4096)
				exit(1);
	});
	BEST("read/warm/read/65536", 40, 1, {
		lseek(fd, 0, SEEK_SET);
		for (int k = 0; k < 16; k++)
			if (read(fd, to, 65536) != 65536)
				exit(1);
	});
	BEST("read/warm/fread/8", 40, 1, {
		rewind(f);
		for (int k = 0; k < 4096; k++)
			if (fread(to, 1, 8, f) != 8)
				exit(1);
	});
}

static void descriptors(void)
{
	enum { IDLE = 1000 };
	static struct pollfd p[IDLE + 1];
	struct epoll_event e[8], one = { .events = EPOLLIN };
	int ep = epoll_create1(0), fd;
	fd_set set, want;
	struct timeval zero = { 0, 0 };

	BEST("descriptor/open/10", 40, 200, { fd = open("/dev/null", O_RDONLY); close(fd); });
	BEST("descriptor/dup/10", 40, 200, { fd = dup(0); close(fd); });
	BEST("descriptor/socket/10", 40, 100, { fd = socket(AF_INET, SOCK_STREAM, 0); close(fd); });
	FD_ZERO(&want);
	for (int i = 0; i <= IDLE; i++) {
		fd = eventfd(i == IDLE, EFD_NONBLOCK);
		p[i] = (struct pollfd){ .fd = fd, .events = POLLIN };
		if (fd < FD_SETSIZE)
			FD_SET(fd, &want);
		epoll_ctl(ep, EPOLL_CTL_ADD, fd, &one);
	}
	BEST("wait/poll/1000", 40, 20, { if (poll(p, IDLE + 1, 0) != 1) exit(1); });
	BEST("wait/epoll/1000", 40, 200, { if (epoll_wait(ep, e, 8, 0) != 1) exit(1); });
	BEST("wait/select/1000", 40, 20, {
		set = want;
		if (select(FD_SETSIZE, &set, NULL, NULL, &zero) < 0)
			exit(1);
	});
}

int main(int argc, char **argv)
{
	struct utsname u;
	struct tms tm;
	struct timespec ts;
	char byte = 0;
	int cpu = atoi(argv[1]), other = atoi(argv[2]), null;

	if (argc != 4)
		return 2;
	on_cpu(cpu);
	null = open("/dev/null", O_WRONLY);
	BEST("trivial/getpid", 40, 2000, syscall(SYS_getpid));
	BEST("trivial/getppid", 40, 2000, syscall(SYS_getppid));
	BEST("trivial/gettid", 40, 2000, syscall(SYS_gettid));
	BEST("trivial/getuid", 40, 2000, syscall(SYS_getuid));
	BEST("trivial/uname", 40, 2000, uname(&u));
	BEST("trivial/times", 40, 2000, times(&tm));
	BEST("trivial/clock_gettime", 40, 2000, syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts));
	BEST("trivial/vdso", 40, 2000, clock_gettime(CLOCK_MONOTONIC, &ts));
	BEST("trivial/close-bad", 40, 2000, close(-1));
	BEST("trivial/write-null", 40, 2000, if (write(null, &byte, 1) != 1) exit(1));
	BEST("trivial/no-such-call", 40, 2000, syscall(999999));
	trips("switch/pipe/same", 0, cpu);
	trips("switch/eventfd/same", 1, cpu);
	trips("switch/socket/same", 2, cpu);
	if (other != cpu)
		trips("switch/pipe/other", 0, other);
	signals(cpu);
	faults();
	reads(argv[3]);
	descriptors();
	return 0;
}
