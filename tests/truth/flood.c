/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which programs are interrupted in a way that is known?
 *
 *     flood [-b [-i]] SCENARIO N
 *
 *     loopback N  sends N datagrams to a socket of its own on 127.0.0.1: what
 *                 receives them, the soft interrupt NET_RX, runs in sendto
 *     pipe N      writes a byte into a pipe and reads it, N times: no packets
 *     compute N   sleeps N ms in one call, beside a thread that computes
 *
 * It prints one line: its calls, the time around them and its own time on CPU, and
 * how often the machine ran NET_RX meanwhile (/proc/softirqs), and how long soft
 * interrupts (/proc/stat). With -b the calls are bracketed by libdebox, and the sums of
 * their records are printed too; with -i it measures interrupts.
 */
#define _GNU_SOURCE
#include <debox.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int bracket, irq;

static struct sums {
	uint64_t records, measured, uneven;
	uint64_t wall_ns, cpu_ns, blocked_ns, runq_ns, irq_ns, outside_ns;
} sums;

static void fail(const char *what)
{
	fprintf(stderr, "flood: %s: %s\n", what, strerror(errno));
	exit(99);
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The thread's own time on CPU; interrupts are in it, where the kernel does not
 * keep them apart (CONFIG_IRQ_TIME_ACCOUNTING). */
static uint64_t on_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Of all CPUs, in soft interrupts; by ticks where the kernel keeps it by ticks. */
static uint64_t stat_soft_ns(void)
{
	FILE *file = fopen("/proc/stat", "re");
	unsigned long long soft = 0;

	if (!file || fscanf(file, "cpu %*u %*u %*u %*u %*u %*u %llu", &soft) != 1)
		fail("/proc/stat");
	fclose(file);
	return soft * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

/* Of all CPUs. */
static uint64_t net_rx(void)
{
	FILE *file = fopen("/proc/softirqs", "re");
	char line[16384], *at;
	uint64_t all = 0;

	if (!file)
		fail("/proc/softirqs");
	while (fgets(line, sizeof line, file)) {
		at = strstr(line, "NET_RX:");
		if (!at)
			continue;
		at += 7;
		for (;;) {
			char *end;
			uint64_t one = strtoull(at, &end, 10);

			if (end == at)
				break;
			all += one;
			at = end;
		}
	}
	fclose(file);
	return all;
}

static void record_add(void)
{
	struct debox_info info = { .size = sizeof info };

	if (debox_last(&info))
		return;
	sums.records++;
	if (info.valid & DEBOX_VALID_IRQ)
		sums.measured++;
	if (info.wall_ns != info.cpu_ns + info.blocked_ns + info.runq_ns + info.irq_ns)
		sums.uneven++;
	sums.wall_ns += info.wall_ns;
	sums.cpu_ns += info.cpu_ns;
	sums.blocked_ns += info.blocked_ns;
	sums.runq_ns += info.runq_ns;
	sums.irq_ns += info.irq_ns;
	sums.outside_ns += info.outside_ns;
}

#define CALL(nr, ...)                                  \
	do {                                           \
		struct debox_frame frame_;             \
		long ret_;                             \
		if (bracket)                           \
			debox_call_begin(&frame_, nr); \
		ret_ = syscall(nr, __VA_ARGS__);       \
		if (bracket) {                         \
			debox_call_end(&frame_, ret_); \
			record_add();                  \
		}                                      \
	} while (0)

static void loopback(long n)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof to;
	char bytes[64] = { 0 };
	int from = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int at = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (from < 0 || at < 0 || bind(at, (struct sockaddr *)&to, sizeof to) ||
	    getsockname(at, (struct sockaddr *)&to, &length))
		fail("sockets on 127.0.0.1");
	for (long i = 0; i < n; i++)
		CALL(SYS_sendto, from, bytes, sizeof bytes, 0, &to, length);
}

static void pipe_turns(long n)
{
	int ends[2];
	char byte = 0;

	if (pipe(ends))
		fail("pipe");
	for (long i = 0; i < n; i++) {
		CALL(SYS_write, ends[1], &byte, 1);
		CALL(SYS_read, ends[0], &byte, 1);
	}
}

static volatile int over;

static void *computing(void *unused)
{
	volatile uint64_t n = 0;

	(void)unused;
	while (!over)
		n++;
	return NULL;
}

static void compute(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };
	pthread_t thread;

	if (pthread_create(&thread, NULL, computing, NULL))
		fail("a thread");
	CALL(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &ts, NULL);
	over = 1;
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	uint64_t begin, cpu, rx, soft;
	long n;

	for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
		if (!strcmp(argv[1], "-b"))
			bracket = 1;
		else if (!strcmp(argv[1], "-i"))
			irq = 1;
		else
			return 2;
	}
	if (argc != 3 || (n = atol(argv[2])) <= 0) {
		fprintf(stderr, "usage: flood [-b [-i]] loopback|pipe|compute N\n");
		return 2;
	}
	if (bracket) {
		struct debox_options options = { .size = sizeof options };

		if (irq)
			options.flags = DEBOX_OPEN_IRQ;
		if (debox_open(&options))
			fail("debox_open");
	}
	rx = net_rx();
	soft = stat_soft_ns();
	cpu = on_cpu_ns();
	begin = now_ns();
	if (!strcmp(argv[1], "loopback"))
		loopback(n);
	else if (!strcmp(argv[1], "pipe"))
		pipe_turns(n);
	else if (!strcmp(argv[1], "compute"))
		compute(n);
	else
		return 2;
	begin = now_ns() - begin;
	cpu = on_cpu_ns() - cpu;
	soft = stat_soft_ns() - soft;
	rx = net_rx() - rx;
	printf("{\"calls\": %ld, \"span_ns\": %" PRIu64 ", \"on_cpu_ns\": %" PRIu64 ", \"stat_soft_ns\": %" PRIu64 ", \"net_rx\": %" PRIu64
	       ", \"records\": %" PRIu64 ", \"measured\": %" PRIu64 ", \"uneven\": %" PRIu64
	       ", \"wall_ns\": %" PRIu64 ", \"cpu_ns\": %" PRIu64 ", \"blocked_ns\": %" PRIu64
	       ", \"runq_ns\": %" PRIu64 ", \"irq_ns\": %" PRIu64 ", \"outside_ns\": %" PRIu64 "}\n",
	       n, begin, cpu, soft, rx, sums.records, sums.measured, sums.uneven, sums.wall_ns, sums.cpu_ns,
	       sums.blocked_ns, sums.runq_ns, sums.irq_ns, sums.outside_ns);
	return 0;
}
