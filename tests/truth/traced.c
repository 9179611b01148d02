/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does libdebox say about the kernel functions that known calls run
 * through?
 *
 *   traced [-f PATTERNS] [-n ENTRIES] [-m MAX] [-w WAY] [-d DIRECTORY] SCENARIO [N]
 *
 * One JSON line for each traced call:
 *   {"step", "nr", "wall_ns", "valid", "count", "dropped", "flags",
 *    "entries": [[function, depth, start_ns, total_ns, self_ns, flags], ...]}
 * and at the end one with the trace's own state. Exit status 3: no trace.
 */
#include <debox.h>
#include <debox_compat.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned max_entries = DEBOX_TRACE_DEFAULT;
static const char *directory = "/var/tmp";
static struct debox_trace_entry entries[DEBOX_TRACE_MAX];

static void fail(const char *what, int err)
{
	char why[512];
	struct debox_trace_table table;

	debox_why(why, sizeof why);
	fprintf(stderr, "traced: %s: %s. %s %s\n", what, strerror(err < 0 ? -err : errno), why,
		debox_trace_status(&table) == 0 ? table.text : "");
	exit(3);
}

static void show(const char *step)
{
	struct debox_info info = { .size = sizeof info };
	uint32_t dropped = 0, flags = 0;
	int n;

	if (debox_last(&info))
		fail("debox_last", 0);
	n = debox_trace_read(entries, DEBOX_TRACE_MAX, &dropped, &flags);
	printf("{\"step\": \"%s\", \"nr\": %d, \"retval\": %lld, \"wall_ns\": %llu, \"outside_ns\": %llu, "
	       "\"valid\": %llu, \"read\": %d, "
	       "\"count\": %u, \"dropped\": %u, \"trace_dropped\": %u, \"flags\": %u, \"entries\": [",
	       step, info.nr, (long long)info.retval, (unsigned long long)info.wall_ns,
	       (unsigned long long)info.outside_ns, (unsigned long long)info.valid, n, info.trace_count, dropped, info.trace_dropped, flags);
	for (int i = 0; i < n; i++)
		printf("%s[\"%s\", %u, %llu, %llu, %llu, %u]", i ? ", " : "",
		       debox_trace_function(entries[i].function), entries[i].depth,
		       (unsigned long long)entries[i].start_ns,
		       (unsigned long long)entries[i].total_ns,
		       (unsigned long long)entries[i].self_ns, entries[i].flags);
	printf("]}\n");
	fflush(stdout);
}

static void files(void)
{
	char path[256], buffer[8192];
	int fd;

	memset(buffer, 'x', sizeof buffer);
	snprintf(path, sizeof path, "%s/traced-file", directory);
	unlink(path);
	fd = DEBOX_CALL(open(path, O_CREAT | O_RDWR | O_EXCL, 0644));
	show("create");
	DEBOX_CALL(write(fd, buffer, sizeof buffer));
	show("write");
	DEBOX_CALL(fsync(fd));
	show("fsync");
	DEBOX_CALL(pread(fd, buffer, sizeof buffer, 0));
	show("read");
	DEBOX_CALL(close(fd));
	show("close");
	fd = DEBOX_CALL(open(path, O_RDWR | O_TRUNC));
	show("open-trunc");
	close(fd);
	DEBOX_CALL(unlink(path));
	show("unlink");
	DEBOX_CALL(open(path, O_RDONLY));
	show("open-absent");
}

static void pipes(unsigned ms)
{
	struct timespec pause = { ms / 1000, ms % 1000 * 1000000l };
	int fds[2];
	char c;

	if (pipe(fds))
		fail("pipe", 0);
	if (fork() == 0) {
		nanosleep(&pause, NULL);
		_exit(write(fds[1], "x", 1) != 1);
	}
	DEBOX_CALL(read(fds[0], &c, 1));
	show("pipe-read");
	wait(NULL);
}

static void *worker(void *on)
{
	char buffer[512];
	int fd = open("/proc/self/stat", O_RDONLY);

	if (*(int *)on && debox_trace_set(max_entries))
		fail("debox_trace_set in a thread", 0);
	for (int i = 0; i < 20; i++)
		DEBOX_CALL(pread(fd, buffer, sizeof buffer, 0));
	flockfile(stdout);
	show(*(int *)on ? "thread-on" : "thread-off");
	funlockfile(stdout);
	close(fd);
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	int on[4] = { 1, 0, 1, 0 };

	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, worker, &on[i]);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

static void toggle(unsigned rounds)
{
	char buffer[64];
	int fd = open("/proc/self/stat", O_RDONLY);

	for (unsigned i = 0; i < rounds; i++) {
		debox_trace_set(max_entries);
		DEBOX_CALL(pread(fd, buffer, sizeof buffer, 0));
		show("on");
		debox_trace_set(0);
		DEBOX_CALL(pread(fd, buffer, sizeof buffer, 0));
		show("off");
	}
}

static int handler_fd;
static void handler(int signal)
{
	char buffer[64];

	(void)signal;
	DEBOX_CALL(pread(handler_fd, buffer, sizeof buffer, 0));
}

/* A call inside of a call: the outer one keeps its own trace. */
static void nested(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct timespec pause = { 0, 200000000 };
	pid_t parent = getpid();
	int fds[2];
	char c;

	handler_fd = open("/proc/self/stat", O_RDONLY);
	sigaction(SIGUSR1, &action, NULL);
	if (pipe(fds))
		fail("pipe", 0);
	if (fork() == 0) {
		nanosleep(&pause, NULL);
		kill(parent, SIGUSR1);
		nanosleep(&pause, NULL);
		_exit(write(fds[1], "x", 1) != 1);
	}
	DEBOX_CALL(read(fds[0], &c, 1));
	show("nested");
	wait(NULL);
}

static void forks(void)
{
	char *const argv[] = { "true", NULL };
	pid_t child = DEBOX_CALL_NR(SYS_clone, fork());

	if (child == 0) {
		execv("/bin/true", argv);
		_exit(127);
	}
	show("fork");
	DEBOX_CALL(wait4(child, NULL, 0, NULL));
	show("wait");
}

/* One call that passes the same functions once for each of 512 pages. */
static char pages[512][4096];

static int pages_file(void)
{
	char path[256];
	int fd;

	memset(pages, 'x', sizeof pages);
	snprintf(path, sizeof path, "%s/traced-pages", directory);
	fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (fd < 0)
		fail(path, 0);
	return fd;
}

static void many(void)
{
	int fd = pages_file();

	DEBOX_CALL(pwrite(fd, pages, sizeof pages, 0));
	show("many");
	close(fd);
}

/* Not bracketed here: by the interposer, when it is preloaded. */
static void plain(void)
{
	char buffer[512];
	int fd = open("/proc/self/stat", O_RDONLY);

	if (pread(fd, buffer, sizeof buffer, 0) <= 0)
		fail("pread", 0);
	show("plain");
	close(fd);
}

/* Up to 200 entries are what the paper's struct has room for. */
static void compat_many(void)
{
	struct debox_info all = { .size = sizeof all };
	static DeBoxInfo info;
	int fd = pages_file();

	if (DeBoxControl(&info, 5, (int)max_entries))
		fail("DeBoxControl", 0);
	DEBOX_CALL(pwrite(fd, pages, sizeof pages, 0));
	if (debox_last(&all))
		fail("debox_last", 0);
	printf("{\"step\": \"compat-many\", \"nr\": %d, \"depth\": %d, \"trace_dropped\": %u, \"named\": %d}\n",
	       info.syscallNum, info.traceDepth, all.trace_dropped,
	       info.traceDepth > 0 && *(const char *)info.ct[info.traceDepth - 1].callSite != 0);
	DeBoxControl(NULL, 0, 0);
	close(fd);
}

static void compat(void)
{
	static DeBoxInfo info;
	char buffer[512];
	int fd = open("/proc/self/stat", O_RDONLY);

	if (DeBoxControl(&info, 5, (int)max_entries))
		fail("DeBoxControl", 0);
	DEBOX_CALL(pread(fd, buffer, sizeof buffer, 0));
	printf("{\"step\": \"compat\", \"nr\": %d, \"depth\": %d, \"entries\": [", info.syscallNum, info.traceDepth);
	for (int i = 0; i < info.traceDepth; i++)
		printf("%s[\"%s\", %d]", i ? ", " : "", (const char *)info.ct[i].callSite, info.ct[i].deltaTime);
	printf("]}\n");
	DeBoxControl(NULL, 0, 0);
}

/* ------------------------------------------------------------------- cost */

/* Where a guest counts instructions, its time-stamp counter ticks once for
 * each: then these are exact. */
static unsigned long long ticks(void)
{
	unsigned lo, hi;

	__asm__ __volatile__("rdtsc"
			     : "=a"(lo), "=d"(hi)::"memory");
	return (unsigned long long)hi << 32 | lo;
}

static int cost_fd;
static char cost_buffer[4096];

/* The least of some rounds: interrupts only add. */
#define COST(expr)                                          \
	({                                                  \
		unsigned long long best = ~0ull;            \
		for (int round = 0; round < 30; round++) {  \
			unsigned long long begin = ticks(); \
			for (int i = 0; i < 20; i++)        \
				expr;                       \
			begin = ticks() - begin;            \
			if (begin < best)                   \
				best = begin;               \
		}                                           \
		best / 20;                                  \
	})

static void cost_bare(unsigned long long out[2])
{
	out[0] = COST(syscall(SYS_getppid));
	out[1] = COST(pread(cost_fd, cost_buffer, 128, 0));
}

static void cost_bracketed(unsigned long long out[2])
{
	out[0] = COST(DEBOX_CALL_NR(SYS_getppid, syscall(SYS_getppid)));
	out[1] = COST(DEBOX_CALL_NR(SYS_pread64, pread(cost_fd, cost_buffer, 128, 0)));
}

static void cost_show(const char *what, const unsigned long long n[2])
{
	printf("{\"step\": \"cost\", \"what\": \"%s\", \"getppid\": %llu, \"pread\": %llu}\n", what, n[0], n[1]);
	fflush(stdout);
}

/* A process that nobody watches, told through a pipe to measure. */
static int cost_ask[2], cost_answer[2];

static void cost_child(void)
{
	unsigned long long n[2];
	char c;

	if (pipe(cost_ask) || pipe(cost_answer))
		fail("pipe", 0);
	if (fork())
		return;
	close(cost_ask[1]);
	while (read(cost_ask[0], &c, 1) == 1) {
		cost_bare(n);
		if (write(cost_answer[1], n, sizeof n) != sizeof n)
			break;
	}
	_exit(0);
}

static void cost_elsewhere(const char *what)
{
	unsigned long long n[2];

	if (write(cost_ask[1], "x", 1) != 1 || read(cost_answer[0], n, sizeof n) != sizeof n)
		fail("the unwatched process", 0);
	cost_show(what, n);
}

static void cost_prepare(void)
{
	char path[256];

	snprintf(path, sizeof path, "%s/traced-cost", directory);
	cost_fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
	if (cost_fd < 0 || write(cost_fd, cost_buffer, sizeof cost_buffer) != sizeof cost_buffer)
		fail(path, 0);
	/* Read once: an access time is written once a day. */
	if (pread(cost_fd, cost_buffer, 128, 0) != 128)
		fail(path, 0);
	cost_child();
}

static void cost(const struct debox_trace_options *options)
{
	unsigned long long n[2];
	int err;

	cost_elsewhere("unwatched process, nothing attached but the watch");
	cost_bracketed(n);
	cost_show("bracketed, no trace", n);
	err = debox_trace_open(options);
	if (err)
		fail("debox_trace_open", err);
	cost_elsewhere("unwatched process, functions attached");
	cost_bracketed(n);
	cost_show("bracketed, thread did not ask", n);
	err = debox_trace_set(max_entries);
	if (err)
		fail("debox_trace_set", err);
	cost_bracketed(n);
	cost_show("bracketed, traced", n);
	DEBOX_CALL_NR(SYS_pread64, pread(cost_fd, cost_buffer, 128, 0));
	show("pread");
	DEBOX_CALL_NR(SYS_getppid, syscall(SYS_getppid));
	show("getppid");
	close(cost_ask[1]);
	wait(NULL);
}

static void state(void)
{
	struct debox_trace_table table;

	if (debox_trace_status(&table))
		return;
	printf("{\"step\": \"state\", \"state\": %u, \"way\": %u, \"functions\": %u, \"refused\": %u, \"attach_ns\": %llu, "
	       "\"text\": \"%s\"}\n",
	       table.state, table.way, table.functions, table.refused, (unsigned long long)table.attach_ns,
	       table.text);
}

int main(int argc, char **argv)
{
	struct debox_trace_options options = { .size = sizeof options };
	const char *scenario;
	unsigned n;
	int c, err, pretty = 0;

	while ((c = getopt(argc, argv, "f:n:m:w:d:p")) != -1) {
		switch (c) {
		case 'f':
			options.functions = optarg;
			break;
		case 'n':
			max_entries = (unsigned)atoi(optarg);
			break;
		case 'm':
			options.max_entries = (unsigned)atoi(optarg);
			break;
		case 'w':
			options.way = (unsigned)atoi(optarg);
			break;
		case 'd':
			directory = optarg;
			break;
		case 'p':
			pretty = 1;
			break;
		default:
			return 2;
		}
	}
	if (optind >= argc)
		return 2;
	scenario = argv[optind];
	n = optind + 1 < argc ? (unsigned)atoi(argv[optind + 1]) : 0;
	if (max_entries > options.max_entries && options.max_entries == 0)
		options.max_entries = max_entries;
	if (!strcmp(scenario, "cost") || !strcmp(scenario, "bare")) {
		unsigned long long bare[2];

		cost_prepare();
		cost_bare(bare);
		cost_show("bare", bare);
		if (!strcmp(scenario, "bare"))
			return 0;
	}
	err = debox_open(NULL);
	if (err || debox_status() != DEBOX_STATUS_MEASURED)
		fail("debox_open", err);
	if (!strcmp(scenario, "cost")) {
		cost(&options);
		state();
		return 0;
	}
	err = debox_trace_open(&options);
	if (err)
		fail("debox_trace_open", err);
	if (strcmp(scenario, "threads") && strncmp(scenario, "compat", 6)) {
		err = debox_trace_set(max_entries);
		if (err)
			fail("debox_trace_set", err);
	}
	if (!strcmp(scenario, "files"))
		files();
	else if (!strcmp(scenario, "pipe"))
		pipes(n);
	else if (!strcmp(scenario, "threads"))
		threads();
	else if (!strcmp(scenario, "toggle"))
		toggle(n);
	else if (!strcmp(scenario, "nested"))
		nested();
	else if (!strcmp(scenario, "fork"))
		forks();
	else if (!strcmp(scenario, "compat"))
		compat();
	else if (!strcmp(scenario, "compat-many"))
		compat_many();
	else if (!strcmp(scenario, "many"))
		many();
	else if (!strcmp(scenario, "plain"))
		plain();
	else
		return 2;
	if (pretty) {
		int fd = open("/proc/self/stat", O_RDONLY);
		char buffer[512];
		struct debox_info info = { .size = sizeof info };

		debox_trace_set(max_entries);
		DEBOX_CALL(pread(fd, buffer, sizeof buffer, 0));
		debox_last(&info);
		debox_info_print(stdout, &info);
		debox_trace_print(stdout);
	}
	state();
	return 0;
}
