/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does wrap capture add to the cheapest call, getpid(), and to a common
 * one, pread() of 4096 cached bytes?
 *
 * One process, pinned to one CPU; the variants take turns in short rounds, each
 * round begins with another one, so that whatever disturbs the machine disturbs
 * all of them. Per variant the minimum and the median over the rounds, and the
 * ratio to libc's function or to the bare instruction; "again" is the same
 * variant twice: what differs there is noise. The program is linked with
 * -ldebox-wrap: its own getpid() and pread() are the interposed ones, the bare
 * ones are libc's by address.
 *
 *     wrap_getpid [--raw FILE] [ROUNDS [CALLS PER ROUND]]
 *
 * --raw: every round's ns per call to FILE as well, one variant a line:
 * name, tab, number of the variant that it is compared to, tab, values.
 */
#include <debox.h>

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pid_t (*libc_getpid)(void);
static uid_t (*libc_getuid)(void);
static ssize_t (*libc_pread)(int, void *, size_t, off_t);
static int (*libc_getrusage)(int, struct rusage *);
static int file;
static char block[4096];
static int calls = 2000;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#define LOOP(body)                              \
	do {                                    \
		for (int i = 0; i < calls; i++) \
			body;                   \
	} while (0)

/* Without libc: no function returns after the call, and there is none whose
 * return the processor mispredicts because the kernel cleared its stack. */
static inline long raw_getpid(void)
{
#if defined(__x86_64__)
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(SYS_getpid)
			 : "rcx", "r11", "memory");
	return ret;
#else
	return syscall(SYS_getpid);
#endif
}

static void raw(void)
{
	LOOP(raw_getpid());
}

static void raw_bracket(void)
{
	LOOP(DEBOX_CALL_NR(SYS_getpid, raw_getpid()));
}

static volatile uint64_t sink;

static void raw_stamps(void)
{
	LOOP({
		uint64_t a = debox_stamp_();
		raw_getpid();
		sink = debox_stamp_() - a;
	});
}

static void bare(void)
{
	LOOP(libc_getpid());
}

static void bracket(void)
{
	LOOP(DEBOX_CALL_NR(SYS_getpid, libc_getpid()));
}

static void interposed(void)
{
	LOOP(getpid());
}

static void bracket_last(void)
{
	struct debox_info info;

	info.size = sizeof info;
	LOOP({
		DEBOX_CALL_NR(SYS_getpid, libc_getpid());
		debox_last(&info);
	});
}

static void clock_bracket(void)
{
	LOOP({
		uint64_t a = now_ns();
		libc_getpid();
		sink = now_ns() - a;
	});
}

static void rusage_bracket(void)
{
	struct rusage a, b;

	LOOP({
		libc_getrusage(RUSAGE_THREAD, &a);
		libc_getpid();
		libc_getrusage(RUSAGE_THREAD, &b);
	});
}

/* Two calls from two places: each finds the other one's row in its way. */
static void turns_bare(void)
{
	for (int i = 0; i < calls; i += 2) {
		libc_getpid();
		libc_getuid();
	}
}

static void turns_interposed(void)
{
	for (int i = 0; i < calls; i += 2) {
		getpid();
		getuid();
	}
}

/* What an interposer costs that does nothing: one function more between the
 * program and libc, whose return the processor mispredicts like libc's. */
static __attribute__((noinline)) pid_t wrapper_empty(void)
{
	pid_t value = libc_getpid();

	__asm__ volatile(""
			 : "+r"(value));
	return value;
}

static void wrapped_empty(void)
{
	LOOP(wrapper_empty());
}

static __attribute__((noinline)) ssize_t read_wrapper_empty(int fd, void *to, size_t n, off_t at)
{
	ssize_t value = libc_pread(fd, to, n, at);

	__asm__ volatile(""
			 : "+r"(value));
	return value;
}

static void read_wrapped_empty(void)
{
	LOOP(read_wrapper_empty(file, block, sizeof block, 0));
}

#define PREAD libc_pread(file, block, sizeof block, 0)

static void read_bare(void)
{
	LOOP(PREAD);
}

static void read_bracket(void)
{
	LOOP(DEBOX_CALL_NR(SYS_pread64, PREAD));
}

static void read_interposed(void)
{
	LOOP(if (pread(file, block, sizeof block, 0) != sizeof block) abort());
}

static void read_clock_bracket(void)
{
	LOOP({
		uint64_t a = now_ns();
		PREAD;
		sink = now_ns() - a;
	});
}

static void read_rusage_bracket(void)
{
	struct rusage a, b;

	LOOP({
		libc_getrusage(RUSAGE_THREAD, &a);
		PREAD;
		libc_getrusage(RUSAGE_THREAD, &b);
	});
}

/* `to`: the variant that the ratio is to. */
static struct {
	const char *name;
	void (*run)(void);
	int to;
	double *ns, *sorted;
} variants[] = {
	{ "libc getpid", bare, 0, NULL, NULL },
	{ "  again", bare, 0, NULL, NULL },
	{ "  bracket (DEBOX_CALL)", bracket, 0, NULL, NULL },
	{ "  interposed", interposed, 0, NULL, NULL },
	{ "  interposed by a function that does nothing", wrapped_empty, 0, NULL, NULL },
	{ "  bracket + debox_last", bracket_last, 0, NULL, NULL },
	{ "  clock_gettime bracket", clock_bracket, 0, NULL, NULL },
	{ "  getrusage bracket", rusage_bracket, 0, NULL, NULL },
	{ "bare system call", raw, 8, NULL, NULL },
	{ "  two time stamps alone", raw_stamps, 8, NULL, NULL },
	{ "  bracket (DEBOX_CALL)", raw_bracket, 8, NULL, NULL },
	{ "libc pread 4096", read_bare, 11, NULL, NULL },
	{ "  again", read_bare, 11, NULL, NULL },
	{ "  bracket (DEBOX_CALL)", read_bracket, 11, NULL, NULL },
	{ "  interposed", read_interposed, 11, NULL, NULL },
	{ "  interposed by a function that does nothing", read_wrapped_empty, 11, NULL, NULL },
	{ "  clock_gettime bracket", read_clock_bracket, 11, NULL, NULL },
	{ "  getrusage bracket", read_rusage_bracket, 11, NULL, NULL },
	{ "libc getpid and getuid in turn", turns_bare, 18, NULL, NULL },
	{ "  interposed", turns_interposed, 18, NULL, NULL },
};
#define VARIANTS (sizeof variants / sizeof *variants)

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void *libc_symbol(const char *name)
{
	void *p = dlsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), name);

	if (!p) {
		fprintf(stderr, "wrap_getpid: libc.so.6 has no %s\n", name);
		exit(1);
	}
	return p;
}

/* One file of 4096 bytes, in the page cache. */
static int cached_file(void)
{
	FILE *f = tmpfile();

	if (!f || fwrite(block, 1, sizeof block, f) != sizeof block || fflush(f)) {
		perror("wrap_getpid: temporary file");
		exit(1);
	}
	return fileno(f);
}

int main(int argc, char **argv)
{
	static const char *const status[] = { "closed", "measured", "wall times only", "stale" };
	FILE *raw_file = NULL;
	int rounds = 301;
	cpu_set_t one;

	if (argc > 2 && !strcmp(argv[1], "--raw")) {
		raw_file = fopen(argv[2], "w");
		if (!raw_file) {
			perror(argv[2]);
			return 1;
		}
		argv += 2;
		argc -= 2;
	}
	if (argc > 1)
		rounds = atoi(argv[1]);
	if (argc > 2)
		calls = atoi(argv[2]);
	if (rounds < 1 || calls < 1)
		return 2;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	libc_getpid = (pid_t(*)(void))libc_symbol("getpid");
	libc_getuid = (uid_t(*)(void))libc_symbol("getuid");
	libc_pread = (ssize_t(*)(int, void *, size_t, off_t))libc_symbol("pread");
	libc_getrusage = (int (*)(int, struct rusage *))libc_symbol("getrusage");
	file = cached_file();
	if (debox_open(NULL))
		return 1;
	printf("ns per call; %d rounds of %d calls; records: %s%s\n", rounds, calls,
	       status[debox_status()],
	       getenv("DEBOX_COLLECT") ? "; interposer counts by call and call site" : "");
	for (size_t v = 0; v < VARIANTS; v++) {
		variants[v].ns = calloc((size_t)rounds, sizeof(double));
		variants[v].sorted = calloc((size_t)rounds, sizeof(double));
		if (!variants[v].ns || !variants[v].sorted)
			return 1;
		variants[v].run();
	}
	for (int r = 0; r < rounds; r++)
		for (size_t i = 0; i < VARIANTS; i++) {
			size_t v = (i + (size_t)r) % VARIANTS;
			uint64_t t = now_ns();

			variants[v].run();
			variants[v].ns[r] = (double)(now_ns() - t) / calls;
		}
	for (size_t v = 0; v < VARIANTS; v++) {
		memcpy(variants[v].sorted, variants[v].ns, (size_t)rounds * sizeof(double));
		qsort(variants[v].sorted, (size_t)rounds, sizeof(double), by_value);
	}
	printf("%-46s %8s %8s %10s %10s\n", "", "min", "median", "min ratio", "med ratio");
	for (size_t v = 0; v < VARIANTS; v++) {
		double *mine = variants[v].sorted, *base = variants[variants[v].to].sorted;

		printf("%-46s %8.1f %8.1f %10.3f %10.3f\n", variants[v].name, mine[0],
		       mine[rounds / 2], mine[0] / base[0], mine[rounds / 2] / base[rounds / 2]);
		if (!raw_file)
			continue;
		fprintf(raw_file, "%s\t%d\t", variants[v].name, variants[v].to);
		for (int r = 0; r < rounds; r++)
			fprintf(raw_file, "%.2f ", variants[v].ns[r]);
		fprintf(raw_file, "\n");
	}
	return raw_file && fclose(raw_file);
}
