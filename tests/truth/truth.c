/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which programs have a known answer?
 *
 *     truth [-b] [-d DIR] SCENARIO [ARG]
 *
 * Each scenario makes one call (or a few) whose account is known beforehand,
 * and prints what it knows as one JSON object a line: what it measured itself
 * around the call (clock, getrusage, schedstat). With -b the call is bracketed
 * by libdebox and the record is printed beside it. tests/truth.rs compares:
 * with the record here, with `debox run`'s report otherwise.
 */
#define _GNU_SOURCE
#include <debox.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int bracket;
static const char *dir = "/tmp";

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "truth: %s: %s\n", what, strerror(errno));
	exit(99);
}

static void sleep_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &ts, &ts) == -1 && errno == EINTR)
		;
}

/* To the n-th of the CPUs that this process may use: a container or taskset may
 * have given it others than 0. */
static int pin(int n)
{
	cpu_set_t set;
	int cpu = 0;

	if (sched_getaffinity(0, sizeof(set), &set))
		fail("sched_getaffinity");
	n %= CPU_COUNT(&set);
	while (!CPU_ISSET(cpu, &set) || n-- > 0)
		cpu++;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("sched_setaffinity");
	return cpu;
}

/* What the kernel's own books say of this thread. */
struct books {
	uint64_t clock_ns;
	uint64_t run_ns;
	uint64_t wait_ns;
	long minflt, majflt, nvcsw, nivcsw;
};

static int schedstat_fd = -1;

static void books_read(struct books *b)
{
	struct rusage ru;
	char buf[128];
	ssize_t n;

	if (schedstat_fd < 0) {
		schedstat_fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
		if (schedstat_fd < 0)
			fail("/proc/thread-self/schedstat");
	}
	n = pread(schedstat_fd, buf, sizeof(buf) - 1, 0);
	if (n <= 0)
		fail("reading schedstat");
	buf[n] = 0;
	if (sscanf(buf, "%lu %lu", &b->run_ns, &b->wait_ns) != 2)
		fail("schedstat's form");
	if (getrusage(RUSAGE_THREAD, &ru))
		fail("getrusage");
	b->minflt = ru.ru_minflt;
	b->majflt = ru.ru_majflt;
	b->nvcsw = ru.ru_nvcsw;
	b->nivcsw = ru.ru_nivcsw;
	b->clock_ns = now_ns();
}

static struct books before, after;

static void record_print(const struct debox_info *i)
{
	printf(",\"record\":{\"valid\":%llu,\"flags\":%u,\"nr\":%d,\"retval\":%lld,\"wall_ns\":%llu,\"cpu_ns\":%llu,"
	       "\"blocked_ns\":%llu,\"runq_ns\":%llu,\"outside_ns\":%llu,\"minor_faults\":%u,\"major_faults\":%u,"
	       "\"nvcsw\":%u,\"nivcsw\":%u,\"sleeps_dropped\":%u,\"sleeps\":[",
	       (unsigned long long)i->valid, i->flags, i->nr, (long long)i->retval,
	       (unsigned long long)i->wall_ns, (unsigned long long)i->cpu_ns, (unsigned long long)i->blocked_ns,
	       (unsigned long long)i->runq_ns, (unsigned long long)i->outside_ns, i->minor_faults,
	       i->major_faults, i->nvcsw, i->nivcsw, i->sleeps_dropped);
	for (uint32_t s = 0; s < i->sleep_count; s++) {
		const struct debox_sleep *sleep = &i->sleeps[s];
		struct debox_site site;
		int err = -EAGAIN;

		memset(&site, 0, sizeof(site));
		for (int tries = 0; tries < 200 && err == -EAGAIN; tries++) {
			err = debox_site_read(sleep->site, &site);
			if (err == -EAGAIN)
				sleep_ms(5);
		}
		printf("%s{\"site\":%u,\"count\":%u,\"total_ns\":%llu,\"max_ns\":%llu,\"waiters_entry\":%u,"
		       "\"waiters_exit\":%u,\"holder_pid\":%u,\"waker_pid\":%u,\"waker_comm\":\"%.15s\","
		       "\"label\":\"%s\",\"function\":\"%s\",\"err\":%d}",
		       s ? "," : "", sleep->site, sleep->count, (unsigned long long)sleep->total_ns,
		       (unsigned long long)sleep->max_ns, sleep->waiters_entry, sleep->waiters_exit,
		       sleep->holder_pid, sleep->waker_pid, sleep->waker_comm, site.label, site.function, err);
	}
	printf("]}");
}

/* One line for one measured call. */
static void report(const char *call, long value, long other)
{
	struct debox_info info;
	int saved = errno;

	printf("{\"call\":\"%s\",\"value\":%ld,\"errno\":%d,\"other\":%ld,\"user_ns\":%llu,\"run_ns\":%llu,"
	       "\"wait_ns\":%llu,\"minflt\":%ld,\"majflt\":%ld,\"nvcsw\":%ld,\"nivcsw\":%ld",
	       call, value, value == -1 ? saved : 0, other,
	       (unsigned long long)(after.clock_ns - before.clock_ns),
	       (unsigned long long)(after.run_ns - before.run_ns),
	       (unsigned long long)(after.wait_ns - before.wait_ns), after.minflt - before.minflt,
	       after.majflt - before.majflt, after.nvcsw - before.nvcsw, after.nivcsw - before.nivcsw);
	if (bracket) {
		memset(&info, 0, sizeof(info));
		info.size = sizeof(info);
		if (debox_last(&info)) {
			errno = ENODATA;
			fail("debox_last");
		}
		record_print(&info);
	}
	printf("}\n");
	fflush(stdout);
}

/* The call's own value and errno must come out untouched. */
#define MEASURE(name, nr, other, expr)                                              \
	({                                                                          \
		long value__;                                                       \
		int errno__;                                                        \
		books_read(&before);                                                \
		errno = 0;                                                          \
		value__ = bracket ? (long)DEBOX_CALL_NR(nr, (expr)) : (long)(expr); \
		errno__ = errno;                                                    \
		books_read(&after);                                                 \
		errno = errno__;                                                    \
		report(name, value__, (long)(other));                               \
		value__;                                                            \
	})

/* In a child: sleeps for `ms` from when the parent sleeps, so that however late it
 * comes to that, it sleeps as long. */
static void sleep_beside_parent(long ms)
{
	char path[64], text[512];

	snprintf(path, sizeof(path), "/proc/%d/stat", getppid());
	for (;;) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
		const char *name_end;

		if (n <= 0)
			_exit(1);
		close(fd);
		text[n] = 0;
		name_end = strrchr(text, ')');
		if (name_end && name_end[1] == ' ' && name_end[2] == 'S')
			break;
		sleep_ms(1);
	}
	sleep_ms(ms);
}

/* A child that waits `ms` and then does something to let us go on. */
#define CHILD(ms, ...)                           \
	({                                       \
		pid_t child__ = fork();          \
		if (child__ < 0)                 \
			fail("fork");            \
		if (child__ == 0) {              \
			sleep_beside_parent(ms); \
			__VA_ARGS__;             \
			_exit(0);                \
		}                                \
		child__;                         \
	})

static void reap(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || status)
		fail("child");
}

static void scenario_nanosleep(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	MEASURE("clock_nanosleep", SYS_clock_nanosleep, 0, syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &ts, NULL));
}

static void scenario_getpid(long n)
{
	for (long i = 0; i < n; i++)
		MEASURE("getpid", SYS_getpid, 0, syscall(SYS_getpid));
}

static void scenario_pipe(long ms)
{
	int fd[2];
	char c = 'x';
	pid_t child;

	if (pipe(fd))
		fail("pipe");
	child = CHILD(ms, if (write(fd[1], &c, 1) != 1) _exit(1));
	MEASURE("read", SYS_read, child, read(fd[0], &c, 1));
	reap(child);
}

static void scenario_futex(long ms)
{
	static uint32_t word = 7;
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	MEASURE("futex", SYS_futex, 0, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, &ts, NULL, 0));
}

static void scenario_flock(long ms)
{
	char path[256];
	int fd, ready[2];
	char c = 0;
	pid_t child;

	snprintf(path, sizeof(path), "%s/truth-flock.%d", dir, getpid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || pipe(ready))
		fail(path);
	child = fork();
	if (child == 0) {
		int own = open(path, O_RDWR | O_CLOEXEC);

		if (own < 0 || flock(own, LOCK_EX) || write(ready[1], &c, 1) != 1)
			_exit(1);
		sleep_beside_parent(ms);
		_exit(0);
	}
	if (read(ready[0], &c, 1) != 1)
		fail("child's lock");
	MEASURE("flock", SYS_flock, child, flock(fd, LOCK_EX));
	reap(child);
	unlink(path);
}

static void scenario_accept(long ms)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pid_t child;

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 8) ||
	    getsockname(fd, (struct sockaddr *)&at, &len))
		fail("listening on loopback");
	child = CHILD(ms, int s = socket(AF_INET, SOCK_STREAM, 0);
		      if (connect(s, (struct sockaddr *)&at, sizeof(at))) _exit(1));
	MEASURE("accept4", SYS_accept4, child, accept4(fd, NULL, NULL, SOCK_CLOEXEC));
	reap(child);
}

/* A file of n bytes, written, on the disk, and out of the page cache. */
static int file_cold(const char *path, size_t n)
{
	static char block[1 << 20];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	unsigned char in_core[16384];
	void *map;
	int cached;

	if (fd < 0)
		fail(path);
	for (size_t i = 0; i < sizeof(block); i++)
		block[i] = (char)(i * 31);
	for (size_t done = 0; done < n; done += sizeof(block))
		if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
			fail("writing the file");
	if (fsync(fd))
		fail("fsync");
	for (int tries = 0; tries < 50; tries++) {
		if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
			fail("posix_fadvise");
		map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED || mincore(map, n, in_core))
			fail("mincore");
		munmap(map, n);
		cached = 0;
		for (size_t i = 0; i < n / 4096; i++)
			cached += in_core[i] & 1;
		if (!cached)
			return fd;
		sleep_ms(20);
	}
	fprintf(stderr, "truth: %d pages of %s stay cached\n", cached, path);
	exit(98);
}

/* A file of which nothing is in memory. */
static char *map_cold(size_t n)
{
	char path[256], *map;
	int from;

	snprintf(path, sizeof(path), "%s/truth-from.%d", dir, getpid());
	from = file_cold(path, n);
	unlink(path);
	map = mmap(NULL, n, PROT_READ, MAP_SHARED, from, 0);
	if (map == MAP_FAILED)
		fail("mmap");
	return map;
}

/* The paper's Figure 4. */
static void scenario_page_in(long mb)
{
	size_t n = (size_t)mb << 20;
	char path[256], *map = map_cold(n);
	int to;

	snprintf(path, sizeof(path), "%s/truth-to.%d", dir, getpid());
	to = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (to < 0)
		fail(path);
	unlink(path);
	MEASURE("write", SYS_write, n, write(to, map, n));
}

/* The same without a call. */
static void scenario_touch(long mb)
{
	size_t n = (size_t)mb << 20;
	volatile char *map = map_cold(n);

	if (madvise((void *)map, n, MADV_RANDOM))
		fail("madvise");
	for (size_t at = 0; at < n; at += 16 * 4096)
		(void)map[at];
	usleep(50000);
}

static void scenario_fsync(long mb)
{
	char path[256], *block = calloc(1, (size_t)mb << 20);
	int fd;

	snprintf(path, sizeof(path), "%s/truth-fsync.%d", dir, getpid());
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, block, (size_t)mb << 20) != (ssize_t)mb << 20)
		fail(path);
	MEASURE("fsync", SYS_fsync, 0, fsync(fd));
	unlink(path);
}

/* read() into memory that was never touched: one minor fault a page, all of
 * them inside the call. */
static void scenario_faults(long pages)
{
	size_t n = (size_t)pages * 4096;
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fd < 0 || map == MAP_FAILED || madvise(map, n, MADV_NOHUGEPAGE))
		fail("mmap");
	MEASURE("read", SYS_read, pages, read(fd, map, n));
}

static pid_t hog_start(int cpu)
{
	pid_t child = fork();

	if (child == 0) {
		pin(cpu);
		for (volatile unsigned long i = 0;; i++)
			;
	}
	return child;
}

static void hog_stop(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* What the hypervisor took of a CPU so far, in ns; /proc/stat counts it in
 * hundredths of a second. */
static uint64_t stolen_ns(int cpu)
{
	char line[512], name[16];
	unsigned long long stolen = 0;
	FILE *file = fopen("/proc/stat", "re");

	if (!file)
		fail("/proc/stat");
	snprintf(name, sizeof(name), "cpu%d ", cpu);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			sscanf(line + strlen(name), "%*u %*u %*u %*u %*u %*u %*u %llu", &stolen);
	fclose(file);
	return stolen * 10000000u;
}

/* The paper's Table 1: short calls that never block, beside a CPU hog. The
 * largest time seen from user level holds preemptions, the record's must not. */
static void scenario_hog(long seconds)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(at);
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int sv[2], file;
	char path[256], sink[65536];
	uint64_t user_max[2] = { 0 }, record_max[2] = { 0 }, calls = 0, conserved = 1, outside = 0, end;
	uint64_t runq = 0, user_beyond = 0, record_beyond = 0, own_beyond = 0, stolen;
	uint64_t missed = 0;
	pid_t hog;
	int cpu;

	snprintf(path, sizeof(path), "%s/truth-hog.%d", dir, getpid());
	file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	unlink(path);
	memset(sink, 1, sizeof(sink));
	if (listening < 0 || bind(listening, (struct sockaddr *)&at, sizeof(at)) || listen(listening, 8) ||
	    getsockname(listening, (struct sockaddr *)&at, &len) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sv) || file < 0 ||
	    write(file, sink, 16384) != 16384)
		fail("hog's setting");
	cpu = pin(0);
	hog = hog_start(0);
	stolen = stolen_ns(cpu);
	end = now_ns() + (uint64_t)seconds * 1000000000u;
	while (now_ns() < end) {
		for (int which = 0; which < 2; which++) {
			struct debox_info info = { .size = sizeof(info) };
			off_t from = 0;
			uint64_t t, took;
			long value;

			books_read(&before);
			t = now_ns();
			if (which)
				value = bracket ? DEBOX_CALL_NR(SYS_sendfile, sendfile(sv[0], file, &from, 16384)) :
						  sendfile(sv[0], file, &from, 16384);
			else
				value = bracket ? DEBOX_CALL_NR(SYS_accept4, accept4(listening, NULL, NULL, 0)) :
						  accept4(listening, NULL, NULL, 0);
			took = now_ns() - t;
			(void)value;
			if (took > user_max[which])
				user_max[which] = took;
			user_beyond += took > 1000000;
			if (bracket && !debox_last(&info)) {
				if (info.wall_ns > record_max[which])
					record_max[which] = info.wall_ns;
				if (info.wall_ns != info.cpu_ns + info.blocked_ns + info.runq_ns)
					conserved = 0;
				outside += info.outside_ns;
				runq += info.runq_ns;
				record_beyond += info.runq_ns > 1000000;
				if (info.cpu_ns + info.blocked_ns > 1000000) {
					own_beyond += info.cpu_ns + info.blocked_ns;
					/* The kernel's own book of waits for the CPU, beside ours. */
					books_read(&after);
					missed += after.wait_ns - before.wait_ns > info.runq_ns + info.outside_ns + 1000000;
				}
			}
			calls++;
			while (which && read(sv[1], sink, sizeof(sink)) > 0)
				;
		}
	}
	stolen = stolen_ns(cpu) - stolen;
	hog_stop(hog);
	printf("{\"call\":\"hog\",\"calls\":%llu,\"user_max_ns\":[%llu,%llu],\"record_max_ns\":[%llu,%llu],"
	       "\"conserved\":%llu,\"outside_ns\":%llu,\"runq_ns\":%llu,\"user_beyond_1ms\":%llu,\"runq_beyond_1ms\":%llu,\"own_beyond_1ms_ns\":%llu,\"stolen_ns\":%llu,\"missed\":%llu}\n",
	       (unsigned long long)calls, (unsigned long long)user_max[0], (unsigned long long)user_max[1],
	       (unsigned long long)record_max[0], (unsigned long long)record_max[1],
	       (unsigned long long)conserved, (unsigned long long)outside, (unsigned long long)runq,
	       (unsigned long long)user_beyond, (unsigned long long)record_beyond,
	       (unsigned long long)own_beyond, (unsigned long long)stolen, (unsigned long long)missed);
}

/* Woken while a hog has the CPU: the wait after the wake-up is run-queue wait,
 * and the kernel's own book (schedstat) says how long. */
static void scenario_runq(long rounds)
{
	pid_t hog;

	pin(0);
	hog = hog_start(0);
	/* a batch thread does not preempt anybody by waking up */
	if (sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }))
		fail("sched_setscheduler");
	for (long i = 0; i < rounds; i++) {
		struct timespec ts = { 0, 3000000 };

		MEASURE("clock_nanosleep", SYS_clock_nanosleep, 0,
			syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &ts, NULL));
	}
	hog_stop(hog);
}

static void on_signal(int n)
{
	(void)n;
}

/* Interrupted after `ms`: without SA_RESTART the call returns EINTR, with it
 * the kernel takes it up again and a byte comes after 2 x ms. */
static void interrupted(long ms, int flags)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = flags };
	int fd[2];
	char c = 'x';
	pid_t self = getpid(), child;

	sigaction(SIGUSR1, &sa, NULL);
	if (pipe(fd))
		fail("pipe");
	child = CHILD(ms, kill(self, SIGUSR1); sleep_beside_parent(ms); if (write(fd[1], &c, 1) != 1) _exit(1));
	MEASURE("read", SYS_read, child, read(fd[0], &c, 1));
	reap(child);
}

/* Two threads write to one file: the second waits for the inode's lock. */
static int shared_fd;
static volatile int writing;
static volatile pid_t writer_tid;

static void *big_write(void *arg)
{
	size_t n = (size_t)(long)arg << 20;
	char *block = malloc(n);

	memset(block, 1, n);
	writer_tid = (pid_t)syscall(SYS_gettid);
	writing = 1;
	if (pwrite(shared_fd, block, n, 0) < 0)
		fail("pwrite");
	writing = 2;
	free(block);
	return NULL;
}

static void scenario_inode_lock(long mb)
{
	char path[256];
	pthread_t thread;

	snprintf(path, sizeof(path), "%s/truth-lock.%d", dir, getpid());
	shared_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (shared_fd < 0)
		fail(path);
	unlink(path);
	pthread_create(&thread, NULL, big_write, (void *)mb);
	while (!writing)
		;
	sleep_ms(20);
	MEASURE("pwrite64", SYS_pwrite64, writer_tid, pwrite(shared_fd, "x", 1, 0));
	pthread_join(thread, NULL);
}

/* Computes for `ns`, and returns how much of it the thread certainly ran: the
 * time between two looks at the clock that lie closer than SHORT_NS. */
#define SHORT_NS 5000u
static uint64_t compute(uint64_t ns)
{
	uint64_t last = now_ns(), until = last + ns, now, ran = 0;

	for (; last < until; last = now) {
		now = now_ns();
		if (now - last < SHORT_NS)
			ran += now - last;
	}
	return ran;
}

/* A span over user code, a sleep and more user code. */
static void scenario_span(long ms)
{
	struct debox_span span;
	struct debox_info info = { .size = sizeof(info) };
	uint64_t ran;
	int err;

	if (!bracket)
		return scenario_nanosleep(ms);
	books_read(&before);
	err = debox_span_begin(&span);
	if (err) {
		errno = -err;
		fail("debox_span_begin");
	}
	ran = compute(5000000);
	sleep_ms(ms);
	ran += compute(5000000);
	err = debox_span_end(&span, &info);
	if (err) {
		errno = -err;
		fail("debox_span_end");
	}
	books_read(&after);
	printf("{\"call\":\"span\",\"user_ns\":%llu,\"run_ns\":%llu,\"wait_ns\":%llu,\"ran_ns\":%llu,\"short_ns\":%u",
	       (unsigned long long)(after.clock_ns - before.clock_ns),
	       (unsigned long long)(after.run_ns - before.run_ns),
	       (unsigned long long)(after.wait_ns - before.wait_ns), (unsigned long long)ran, SHORT_NS);
	record_print(&info);
	printf("}\n");
}

int main(int argc, char **argv)
{
	int opt;
	const char *name;
	long arg;

	while ((opt = getopt(argc, argv, "+bd:")) != -1) {
		if (opt == 'b')
			bracket = 1;
		else if (opt == 'd')
			dir = optarg;
		else
			return 2;
	}
	if (optind >= argc)
		return 2;
	name = argv[optind];
	arg = optind + 1 < argc ? atol(argv[optind + 1]) : 0;
	if (bracket) {
		char why[512];
		int err = debox_open(NULL);

		if (err || debox_status() != DEBOX_STATUS_MEASURED) {
			debox_why(why, sizeof(why));
			fprintf(stderr, "truth: no broker: %s (%d)\n", why, err);
			return 97;
		}
		/* A thread's first call waits for the broker. */
		(void)DEBOX_CALL_NR(SYS_getppid, syscall(SYS_getppid));
	}
	if (!strcmp(name, "nanosleep"))
		scenario_nanosleep(arg);
	else if (!strcmp(name, "getpid"))
		scenario_getpid(arg);
	else if (!strcmp(name, "pipe"))
		scenario_pipe(arg);
	else if (!strcmp(name, "futex"))
		scenario_futex(arg);
	else if (!strcmp(name, "flock"))
		scenario_flock(arg);
	else if (!strcmp(name, "accept"))
		scenario_accept(arg);
	else if (!strcmp(name, "page-in"))
		scenario_page_in(arg);
	else if (!strcmp(name, "touch"))
		scenario_touch(arg);
	else if (!strcmp(name, "fsync"))
		scenario_fsync(arg);
	else if (!strcmp(name, "faults"))
		scenario_faults(arg);
	else if (!strcmp(name, "hog"))
		scenario_hog(arg);
	else if (!strcmp(name, "runq"))
		scenario_runq(arg);
	else if (!strcmp(name, "eintr"))
		interrupted(arg, 0);
	else if (!strcmp(name, "restart"))
		interrupted(arg, SA_RESTART);
	else if (!strcmp(name, "inode-lock"))
		scenario_inode_lock(arg);
	else if (!strcmp(name, "span"))
		scenario_span(arg);
	else {
		fprintf(stderr, "truth: no scenario %s\n", name);
		return 2;
	}
	return 0;
}
