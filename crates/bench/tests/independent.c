/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does somebody else measure for the same things?
 *
 * Loops written apart from those of `debox bench`, in the plainest way, with
 * another clock; the tests compare by wide ratios. Prints "name ns" for each,
 * the shortest of many rounds: what else the machine does only adds; "name -"
 * where this machine does not have it.
 *
 *     independent CPU OTHER_CPU FILE
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

#define BEST(name, rounds, n, ...)                      \
	do {                                            \
		double best_ = 1e18;                    \
		for (int r_ = 0; r_ < (rounds); r_++) { \
			double t_ = now();              \
			for (int i = 0; i < (n); i++) { \
				__VA_ARGS__;            \
			}                               \
			t_ = (now() - t_) / (n);        \
			if (t_ < best_)                 \
				best_ = t_;             \
		}                                       \
		printf("%s %.3f\n", name, best_);       \
		fflush(stdout);                         \
	} while (0)

static void on_cpu(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof one, &one))
		perror("sched_setaffinity"), exit(1);
}

static void print(const char *name, double ns)
{
	printf("%s %.3f\n", name, ns);
	fflush(stdout);
}

static void not_here(const char *name)
{
	printf("%s -\n", name);
	fflush(stdout);
}

static void must(int good, const char *what)
{
	if (!good)
		perror(what), exit(1);
}

static double lower(double a, double b)
{
	return a < b ? a : b;
}

/* ---- switches: "switch/KIND/PLACE", and without a partner "switch-calls/KIND" */

/* What both ends use; the words lie in memory that a child shares. */
static int to_them[2], to_us[2], message;
static int *word;
static pid_t them, us;
static sigset_t all_open, handled, waited;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int turn;
static volatile sig_atomic_t got;

static int send_word(int fd)
{
	unsigned long long one = 1;

	return write(fd, &one, message) == message;
}

static int take_word(int fd)
{
	unsigned long long one;

	return read(fd, &one, message) == message;
}

static int fd_us(void)
{
	return send_word(to_them[1]) && take_word(to_us[0]);
}
static int fd_them(void)
{
	return take_word(to_them[0]) && send_word(to_us[1]);
}
static int fd_calls(void)
{
	return send_word(to_them[1]) && take_word(to_them[0]);
}

static void on_signal(int sig)
{
	(void)sig;
	got = 1;
}

static int handler_wait(void)
{
	got = 0;
	while (!got)
		sigsuspend(&all_open);
	return 1;
}

static int handler_us(void)
{
	return !kill(them, SIGUSR1) && handler_wait();
}
static int handler_them(void)
{
	return handler_wait() && !kill(us, SIGUSR1);
}
static int handler_calls(void)
{
	return !kill(us, SIGUSR1) && handler_wait();
}
static int wait_us(void)
{
	return !kill(them, SIGUSR2) && sigwaitinfo(&waited, NULL) > 0;
}
static int wait_them(void)
{
	return sigwaitinfo(&waited, NULL) > 0 && !kill(us, SIGUSR2);
}
static int wait_calls(void)
{
	return !kill(us, SIGUSR2) && sigwaitinfo(&waited, NULL) > 0;
}

static void futex_until(int value)
{
	int now_;

	while ((now_ = __atomic_load_n(word, __ATOMIC_SEQ_CST)) != value)
		syscall(SYS_futex, word, FUTEX_WAIT, now_, NULL, NULL, 0);
}

static void futex_give(int value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int futex_us(void)
{
	futex_give(1);
	futex_until(0);
	return 1;
}
static int futex_them(void)
{
	futex_until(1);
	futex_give(0);
	return 1;
}

static int futex_calls(void)
{
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	/* Another value than what is there: returns at once. */
	syscall(SYS_futex, word, FUTEX_WAIT, *word + 1, NULL, NULL, 0);
	return 1;
}

static void cond_give(int whose)
{
	pthread_mutex_lock(&mutex);
	turn = whose;
	pthread_mutex_unlock(&mutex);
	pthread_cond_signal(&condition);
}

static void cond_until(int whose)
{
	pthread_mutex_lock(&mutex);
	while (turn != whose)
		pthread_cond_wait(&condition, &mutex);
	pthread_mutex_unlock(&mutex);
}

static int cond_us(void)
{
	cond_give(1);
	cond_until(0);
	return 1;
}
static int cond_them(void)
{
	cond_until(1);
	cond_give(0);
	return 1;
}
static int cond_calls(void)
{
	turn = 0;
	cond_give(0);
	cond_until(0);
	return futex_calls();
}

static const struct means {
	const char *name, *calls_name;
	int (*us)(void), (*them)(void), (*calls)(void);
	int kind, thread;
} all_means[] = {
	{ "pipe", "pipe", fd_us, fd_them, fd_calls, 0, 0 },
	{ "pipe-threads", NULL, fd_us, fd_them, NULL, 0, 1 },
	{ "eventfd", "eventfd", fd_us, fd_them, fd_calls, 1, 0 },
	{ "socket", "socket", fd_us, fd_them, fd_calls, 2, 0 },
	{ "signal", "signal", handler_us, handler_them, handler_calls, 3, 0 },
	{ "signal-wait", "signal-wait", wait_us, wait_them, wait_calls, 3, 0 },
	{ "futex", "futex", futex_us, futex_them, futex_calls, 3, 0 },
	{ "condvar", "condvar", cond_us, cond_them, cond_calls, 3, 1 },
};

static int their_cpu;

static void *partner(void *p)
{
	const struct means *m = p;

	on_cpu(their_cpu);
	while (m->them())
		;
	return NULL;
}

static void descriptors_make(int kind)
{
	int s[2];

	message = kind == 1 ? 8 : 1;
	if (kind == 0)
		must(!pipe(to_them) && !pipe(to_us), "pipe");
	if (kind == 1) {
		to_them[0] = to_them[1] = eventfd(0, 0);
		to_us[0] = to_us[1] = eventfd(0, 0);
	}
	if (kind == 2) {
		must(!socketpair(AF_UNIX, SOCK_STREAM, 0, s), "socketpair");
		to_them[1] = to_us[0] = s[0];
		to_them[0] = to_us[1] = s[1];
	}
}

static void switch_to(const struct means *m, int cpu, const char *place)
{
	char name[80];

	descriptors_make(m->kind);
	their_cpu = cpu;
	us = getpid();
	*word = 0;
	turn = 0;
	if (m->thread) {
		pthread_t thread;

		must(!pthread_create(&thread, NULL, partner, (void *)m), "pthread_create");
		/* It waits for ever in the end: this program's exit takes it along. */
	} else if ((them = fork()) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		partner((void *)m);
		_exit(0);
	}
	snprintf(name, sizeof name, "switch/%s/%s", m->name, place);
	BEST(name, 30, 50, if (!m->us()) exit(1));
	if (!m->thread) {
		kill(them, SIGKILL);
		waitpid(them, NULL, 0);
	}
}

static void switches(int cpu, int other)
{
	char name[80];

	word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGUSR1, on_signal);
	sigemptyset(&all_open);
	sigemptyset(&waited);
	sigaddset(&waited, SIGUSR2);
	handled = waited;
	sigaddset(&handled, SIGUSR1);
	sigprocmask(SIG_BLOCK, &handled, NULL);
	for (size_t i = 0; i < sizeof all_means / sizeof *all_means; i++) {
		const struct means *m = &all_means[i];

		if (m->calls) {
			us = getpid();
			descriptors_make(m->kind);
			/* A word of a descriptor is taken where it was put. */
			if (m->kind == 2) {
				int s[2];

				must(!socketpair(AF_UNIX, SOCK_STREAM, 0, s), "socketpair");
				to_them[1] = s[0];
				to_them[0] = s[1];
			}
			snprintf(name, sizeof name, "switch-calls/%s", m->calls_name);
			BEST(name, 40, 200, if (!m->calls()) exit(1));
		}
	}
	/* Each in a process of its own: threads stay behind. */
	for (size_t i = 0; i < sizeof all_means / sizeof *all_means; i++) {
		for (int k = 0; k < (other == cpu ? 1 : 2); k++) {
			pid_t one = fork();
			int status;

			if (one == 0) {
				switch_to(&all_means[i], k ? other : cpu, k ? "other" : "same");
				_exit(0);
			}
			waitpid(one, &status, 0);
			must(status == 0, all_means[i].name);
		}
	}
}

/* ---- page faults */

/* clang-format off */
enum { PAGE = 4096, PAGES = 1024, HUGE = 2 << 20 };
/* clang-format on */

static long minor(void)
{
	struct rusage u;

	getrusage(RUSAGE_THREAD, &u);
	return u.ru_minflt;
}

static char *memory(int flags)
{
	char *m = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	must(m != MAP_FAILED, "mmap");
	return m;
}

/* ns a page for touching `n` pages, each `stride` pages from the one before. */
static double touch(char *m, int n, int stride, int writing)
{
	volatile char *v = m;
	double t = now();

	for (int i = 0; i < n; i++) {
		size_t at = (size_t)i * stride * PAGE;

		if (writing)
			v[at] = 1;
		else
			(void)v[at];
	}
	return (now() - t) / n;
}

static int their_memory_cpu;

static void *touch_there(void *m)
{
	on_cpu(their_memory_cpu);
	touch(m, PAGES, 1, 1);
	return NULL;
}

static void faults(int cpu, int other, const char *path)
{
	double fill = 1e18, none = 1e18, zero = 1e18, cow = 1e18, populated = 1e18, advised = 1e18, huge = 1e18;
	double one = 1e18, around = 1e18, private = 1e18, before = 1e18;
	int fd = open(path, O_RDONLY), has_populate = 1, has_huge = 1;
	int blocks = lseek(fd, 0, SEEK_END) / HUGE;

	for (int r = 0; r < 20; r++) {
		char *m = memory(0), *at;
		long had;
		double t;
		pid_t child;
		pthread_t thread;

		madvise(m, PAGES * PAGE, MADV_NOHUGEPAGE);
		fill = lower(fill, touch(m, PAGES, 1, 1));
		none = lower(none, touch(m, PAGES, 1, 1));
		child = fork();
		if (child == 0)
			for (;;)
				pause();
		cow = lower(cow, touch(m, PAGES, 1, 1));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		munmap(m, PAGES * PAGE);

		m = memory(0);
		madvise(m, PAGES * PAGE, MADV_NOHUGEPAGE);
		zero = lower(zero, touch(m, PAGES, 1, 0));
		munmap(m, PAGES * PAGE);

		/* Huge pages may be on for all memory. */
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
		t = now();
		m = memory(MAP_POPULATE);
		populated = lower(populated, (now() - t) / PAGES);
		munmap(m, PAGES * PAGE);
		prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);

		m = memory(0);
		madvise(m, PAGES * PAGE, MADV_NOHUGEPAGE);
		t = now();
		if (madvise(m, PAGES * PAGE, 23 /* MADV_POPULATE_WRITE */))
			has_populate = 0;
		advised = lower(advised, (now() - t) / PAGES);
		munmap(m, PAGES * PAGE);

		m = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		at = (char *)(((size_t)m + HUGE - 1) / HUGE * HUGE);
		madvise(at, HUGE, MADV_HUGEPAGE);
		had = minor();
		t = touch(at, HUGE / PAGE, 1, 1) * (HUGE / PAGE);
		if (minor() - had > 16)
			has_huge = 0;
		else
			huge = lower(huge, t);
		munmap(m, 2 * HUGE);

		/* One page in each page table, which the fault makes as well. */
		m = mmap(NULL, (size_t)blocks * HUGE, PROT_READ, MAP_SHARED, fd, 0);
		one = lower(one, touch(m, blocks, HUGE / PAGE, 0));
		munmap(m, (size_t)blocks * HUGE);
		m = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
		around = lower(around, touch(m, PAGES, 1, 0));
		munmap(m, PAGES * PAGE);
		m = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
		private = lower(private, touch(m, PAGES, 1, 1));
		munmap(m, PAGES * PAGE);

		m = memory(0);
		madvise(m, PAGES * PAGE, MADV_NOHUGEPAGE);
		their_memory_cpu = other;
		pthread_create(&thread, NULL, touch_there, m);
		pthread_join(thread, NULL);
		on_cpu(cpu);
		before = lower(before, touch(m, PAGES, 1, 1));
		munmap(m, PAGES * PAGE);
	}
	print("fault/zero-fill", fill);
	print("fault/none", none);
	print("fault/zero-page-read", zero);
	print("fault/copy-on-write", cow);
	print("fault/map-populate", populated);
	has_populate ? print("fault/madvise-populate", advised) : not_here("fault/madvise-populate");
	has_huge ? print("fault/huge", huge) : not_here("fault/huge");
	print("fault/file-mapped", one);
	print("fault/file-around", around);
	print("fault/file-private-write", private);
	if (other != cpu)
		print("fault/prefaulted-before", before);
	close(fd);
}

/* ---- io_uring, as its manual page shows it */

static struct {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
} ring;

static int ring_open(void)
{
	struct io_uring_params p = { 0 };
	char *at;
	size_t size;

	ring.fd = syscall(SYS_io_uring_setup, 64, &p);
	if (ring.fd < 0)
		return 0;
	size = p.sq_off.array + p.sq_entries * 4;
	if (size < p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe))
		size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
	ring.sqes = mmap(NULL, p.sq_entries * sizeof *ring.sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
			 IORING_OFF_SQES);
	must(at != MAP_FAILED && ring.sqes != MAP_FAILED, "mapping an io_uring");
	ring.sq_tail = (unsigned *)(at + p.sq_off.tail);
	ring.sq_mask = (unsigned *)(at + p.sq_off.ring_mask);
	ring.sq_array = (unsigned *)(at + p.sq_off.array);
	ring.cq_head = (unsigned *)(at + p.cq_off.head);
	ring.cq_tail = (unsigned *)(at + p.cq_off.tail);
	ring.cq_mask = (unsigned *)(at + p.cq_off.ring_mask);
	ring.cqes = (struct io_uring_cqe *)(at + p.cq_off.cqes);
	return 1;
}

static void ring_do(struct io_uring_sqe what, int n, int result)
{
	unsigned tail = *ring.sq_tail, head = *ring.cq_head;

	for (int i = 0; i < n; i++, tail++) {
		ring.sqes[tail & *ring.sq_mask] = what;
		ring.sq_array[tail & *ring.sq_mask] = tail & *ring.sq_mask;
	}
	__atomic_store_n(ring.sq_tail, tail, __ATOMIC_RELEASE);
	must(syscall(SYS_io_uring_enter, ring.fd, n, n, IORING_ENTER_GETEVENTS, NULL, 0) == n, "io_uring_enter");
	for (; head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE); head++)
		must(ring.cqes[head & *ring.cq_mask].res == result, "an io_uring operation");
	__atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
}

/* ---- reads: 1 MiB in requests of one size, ns for each request */

enum { WHOLE = 1 << 20 };
static char *to;
static int file, direct, sink;
static FILE *stream;

static int by_read(size_t size, size_t at)
{
	(void)at;
	return read(file, to, size) == (ssize_t)size;
}
static int by_pread(size_t size, size_t at)
{
	return pread(file, to, size, at) == (ssize_t)size;
}
static int by_direct(size_t size, size_t at)
{
	return pread(direct, to, size, at) == (ssize_t)size;
}
static int by_fread(size_t size, size_t at)
{
	(void)at;
	return fread(to, 1, size, stream) == size;
}

static int by_readv(size_t size, size_t at)
{
	struct iovec v[4];

	(void)at;
	for (int i = 0; i < 4; i++)
		v[i] = (struct iovec){ to + i * (size / 4), size / 4 };
	return readv(file, v, 4) == (ssize_t)size;
}

static int by_sendfile(size_t size, size_t at)
{
	(void)at;
	return sendfile(sink, file, NULL, size) == (ssize_t)size;
}

static char *mapped;
static int by_mmap(size_t size, size_t at)
{
	memcpy(to, mapped + at, size);
	__asm__ volatile(""
			 :
			 : "r"(to)
			 : "memory");
	return 1;
}

static int by_ring(size_t size, size_t at)
{
	struct io_uring_sqe e = { .opcode = IORING_OP_READ, .fd = file, .off = at, .addr = (size_t)to, .len = size };

	ring_do(e, 1, size);
	return 1;
}

static void one_way(const char *state, const char *way, int (*request)(size_t, size_t), size_t size)
{
	size_t bytes = size < 512 ? 32768 : WHOLE;
	int cold = !strcmp(state, "cold");
	char name[80];
	double best = 1e18;

	for (int r = 0; r < (cold ? 12 : 40); r++) {
		double t;

		if (cold)
			posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
		lseek(file, 0, SEEK_SET);
		rewind(stream);
		t = now();
		if (request == by_mmap)
			mapped = mmap(NULL, WHOLE, PROT_READ, MAP_SHARED, file, 0);
		for (size_t at = 0; at < bytes; at += size)
			must(request(size, at), way);
		if (request == by_mmap)
			munmap(mapped, WHOLE);
		best = lower(best, (now() - t) / (bytes / size));
	}
	snprintf(name, sizeof name, "read/%s/%s/%zu", state, way, size);
	print(name, best);
}

static void reads(const char *path, int has_ring)
{
	file = open(path, O_RDONLY);
	stream = fopen(path, "r");
	direct = open(path, O_RDONLY | O_DIRECT);
	sink = open("/dev/null", O_WRONLY);
	must(file >= 0 && stream, path);
	must(!posix_memalign((void **)&to, 4096, WHOLE), "memory");
	must(pread(file, to, WHOLE, 0) == WHOLE, path);
	for (size_t size = 4096; size <= 65536; size *= 16) {
		one_way("warm", "read", by_read, size);
		one_way("warm", "pread", by_pread, size);
		one_way("warm", "readv", by_readv, size);
		one_way("warm", "fread", by_fread, size);
		one_way("warm", "mmap", by_mmap, size);
		one_way("warm", "sendfile", by_sendfile, size);
		if (has_ring)
			one_way("warm", "io_uring", by_ring, size);
		else
			not_here(size == 4096 ? "read/warm/io_uring/4096" : "read/warm/io_uring/65536");
	}
	one_way("warm", "read", by_read, 8);
	one_way("warm", "fread", by_fread, 8);
	one_way("cold", "read", by_read, 65536);
	one_way("cold", "pread", by_pread, 65536);
	one_way("cold", "readv", by_readv, 65536);
	one_way("cold", "fread", by_fread, 65536);
	one_way("cold", "mmap", by_mmap, 65536);
	if (has_ring)
		one_way("cold", "io_uring", by_ring, 65536);
	else
		not_here("read/cold/io_uring/65536");
	one_way("cold", "read", by_read, WHOLE);
	one_way("cold", "sendfile", by_sendfile, 65536);
	if (direct >= 0)
		one_way("cold", "direct", by_direct, 65536);
	else
		not_here("read/cold/direct/65536");
}

/* ---- descriptors */

/* The shortest round of 50, each timed alone, since what undoes it is not to be timed. */
#define EACH(kind, level, before, timed, after)                                 \
	do {                                                                    \
		char name_[80];                                                 \
		double best_ = 1e18;                                            \
		for (int r_ = 0; r_ < 30; r_++) {                               \
			double sum_ = 0;                                        \
			for (int i = 0; i < 50; i++) {                          \
				double t_;                                      \
				before;                                         \
				t_ = now();                                     \
				timed;                                          \
				sum_ += now() - t_;                             \
				after;                                          \
			}                                                       \
			best_ = lower(best_, sum_ / 50);                        \
		}                                                               \
		snprintf(name_, sizeof name_, "descriptor/%s/%d", kind, level); \
		print(name_, best_);                                            \
	} while (0)

static void descriptors(void)
{
	static const int levels[] = { 10, 100, 1000, 10000 };
	static struct pollfd p[10001];
	static unsigned long want[400], set[400];
	struct rlimit limit = { 20000, 20000 };
	struct epoll_event e[8], one = { .events = EPOLLIN };
	struct linger at_once = { 1, 0 };
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int ep = epoll_create1(0), low = dup(0), fd, ready, client, n = 0, highest = 0;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char name[80];

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must(!bind(listener, (void *)&address, sizeof address) && !listen(listener, 10), "listen");
	getsockname(listener, (void *)&address, &length);
	if (setrlimit(RLIMIT_NOFILE, &limit)) {
		getrlimit(RLIMIT_NOFILE, &limit);
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	ready = eventfd(1, EFD_NONBLOCK);
	epoll_ctl(ep, EPOLL_CTL_ADD, ready, &one);
	p[0] = (struct pollfd){ .fd = ready, .events = POLLIN };
	want[ready / 64] |= 1ul << ready % 64;
	highest = ready;
	for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
		int level = levels[l];
		struct timeval zero = { 0, 0 };

		if ((rlim_t)level + 100 > limit.rlim_cur)
			break;
		for (; n < level; n++) {
			fd = eventfd(0, EFD_NONBLOCK);
			must(fd >= 0, "eventfd");
			p[n + 1] = (struct pollfd){ .fd = fd, .events = POLLIN };
			want[fd / 64] |= 1ul << fd % 64;
			highest = fd > highest ? fd : highest;
			epoll_ctl(ep, EPOLL_CTL_ADD, fd, &one);
		}
		EACH("open", level, , fd = open("/dev/null", O_RDONLY), close(fd));
		EACH("dup", level, , fd = dup(0), close(fd));
		EACH("dup-search", level, (close(low), low = dup(0)), fd = dup(0), close(fd));
		EACH("socket", level, , fd = socket(AF_INET, SOCK_STREAM, 0), close(fd));
		EACH(
			"accept", level,
			{
				client = socket(AF_INET, SOCK_STREAM, 0);
				setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
				must(!connect(client, (void *)&address, sizeof address), "connect");
			},
			fd = accept(listener, NULL, NULL), (close(client), close(fd)));
		snprintf(name, sizeof name, "wait/poll/%d", level);
		BEST(name, 40, level > 1000 ? 3 : 20, if (poll(p, level + 1, 0) != 1) exit(1));
		snprintf(name, sizeof name, "wait/epoll/%d", level);
		BEST(name, 40, 200, if (epoll_wait(ep, e, 8, 0) != 1) exit(1));
		snprintf(name, sizeof name, "wait/select/%d", level);
		BEST(name, 40, level > 1000 ? 3 : 20, {
			memcpy(set, want, sizeof set);
			if (syscall(SYS_select, highest + 1, set, NULL, NULL, &zero) != 1)
				exit(1);
		});
	}
}

/* ---- clocks: "clock/NAME" */

static void perf_clock(const char *name, unsigned type, unsigned long long config)
{
	struct perf_event_attr a = { .type = type, .size = sizeof a, .config = config, .exclude_kernel = 1, .exclude_hv = 1 };
	int fd = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
	unsigned long long value;

	if (fd < 0) {
		not_here(name);
		return;
	}
	BEST(name, 40, 1000, if (read(fd, &value, sizeof value) != sizeof value) exit(1));
	close(fd);
}

static void clocks(void)
{
	static const struct {
		const char *name;
		int id;
	} by[] = {
		{ "MONOTONIC", CLOCK_MONOTONIC },
		{ "MONOTONIC_RAW", CLOCK_MONOTONIC_RAW },
		{ "REALTIME", CLOCK_REALTIME },
		{ "BOOTTIME", CLOCK_BOOTTIME },
		{ "TAI", CLOCK_TAI },
		{ "MONOTONIC_COARSE", CLOCK_MONOTONIC_COARSE },
		{ "REALTIME_COARSE", CLOCK_REALTIME_COARSE },
		{ "PROCESS_CPUTIME_ID", CLOCK_PROCESS_CPUTIME_ID },
		{ "THREAD_CPUTIME_ID", CLOCK_THREAD_CPUTIME_ID },
	};
	volatile unsigned long long sink_;
	struct timespec ts;
	struct timeval tv;
	struct tms tm;
	struct rusage u;
	unsigned aux;
	char name[80];

	BEST("clock/rdtsc", 40, 1000, sink_ = __rdtsc());
	BEST("clock/lfence; rdtsc; lfence", 40, 1000, (_mm_lfence(), sink_ = __rdtsc(), _mm_lfence()));
	BEST("clock/rdtscp; lfence", 40, 1000, (sink_ = __rdtscp(&aux), _mm_lfence()));
	for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
		int id = by[i].id;

		snprintf(name, sizeof name, "clock/clock_gettime %s", by[i].name);
		BEST(name, 40, 1000, clock_gettime(id, &ts));
		if (id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID)
			continue;
		snprintf(name, sizeof name, "clock/clock_gettime %s, system call", by[i].name);
		BEST(name, 40, 1000, syscall(SYS_clock_gettime, id, &ts));
	}
	BEST("clock/gettimeofday", 40, 1000, gettimeofday(&tv, NULL));
	BEST("clock/gettimeofday, system call", 40, 1000, syscall(SYS_gettimeofday, &tv, NULL));
	BEST("clock/time", 40, 1000, sink_ = time(NULL));
	BEST("clock/times", 40, 1000, times(&tm));
	BEST("clock/getrusage", 40, 1000, getrusage(RUSAGE_THREAD, &u));
	BEST("clock/clock", 40, 1000, sink_ = clock());
	perf_clock("clock/perf event, task clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK);
	perf_clock("clock/perf event, cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
	(void)sink_;
}

/* ---- trivial calls */

__attribute__((noinline)) static long nothing(long x)
{
	__asm__ volatile(""
			 : "+r"(x));
	return x;
}

static void trivial(int has_ring)
{
	struct utsname u;
	struct tms tm;
	struct timespec ts;
	struct io_uring_sqe nop = { .opcode = IORING_OP_NOP };
	char byte = 0;
	int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY);

	BEST("trivial/function", 40, 20000, nothing(i));
	BEST("trivial/getpid", 40, 2000, syscall(SYS_getpid));
	BEST("trivial/getppid", 40, 2000, syscall(SYS_getppid));
	BEST("trivial/gettid", 40, 2000, syscall(SYS_gettid));
	BEST("trivial/getuid", 40, 2000, syscall(SYS_getuid));
	BEST("trivial/uname", 40, 2000, uname(&u));
	BEST("trivial/times", 40, 2000, times(&tm));
	BEST("trivial/clock_gettime", 40, 2000, syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts));
	BEST("trivial/vdso", 40, 2000, clock_gettime(CLOCK_MONOTONIC, &ts));
	BEST("trivial/close-bad", 40, 2000, close(-1));
	BEST("trivial/read-0", 40, 2000, if (read(zero, &byte, 0)) exit(1));
	BEST("trivial/write-null", 40, 2000, if (write(null, &byte, 1) != 1) exit(1));
	BEST("trivial/no-such-call", 40, 2000, syscall(999999));
	if (has_ring) {
		BEST("trivial/io_uring-nop", 40, 500, ring_do(nop, 1, 0));
		BEST("trivial/io_uring-nops", 40, 100, ring_do(nop, 32, 0));
	} else {
		not_here("trivial/io_uring-nop");
		not_here("trivial/io_uring-nops");
	}
}

int main(int argc, char **argv)
{
	int cpu, other, has_ring;

	if (argc != 4)
		return 2;
	cpu = atoi(argv[1]);
	other = atoi(argv[2]);
	on_cpu(cpu);
	has_ring = ring_open();
	clocks();
	trivial(has_ring);
	switches(cpu, other);
	reads(argv[3], has_ring);
	faults(cpu, other, argv[3]);
	descriptors();
	return 0;
}
