/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a program learn from its own records what its sleeps waited for?
 *
 *     inband [-p] mutex-pipe MS   a mutex, whose holder reads a pipe, whose writer sleeps
 *     inband [-p] stdin N         N reads of one byte each from whoever writes there
 *
 * (Says {} before each of these.) Prints each bracketed call's sleeps as JSON, one a line, with their chains as
 * libdebox reads them. -p: without asking for chains. tests/chains.rs knows the
 * answers.
 */
#include <debox.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t start;
static int ends[2];
static long ms;

static void fail(const char *what)
{
	fprintf(stderr, "inband: %s\n", what);
	exit(99);
}

static void print_sleep(const struct debox_sleep *s)
{
	struct debox_link link[DEBOX_CHAIN_DEPTH_MAX];
	char text[1024];
	int n = debox_chain_read(s->chain, link, DEBOX_CHAIN_DEPTH_MAX);

	for (int tries = 0; n > 0 && !link[0].label[0] && tries < 100; tries++) {
		struct timespec step = { 0, 10000000 };

		nanosleep(&step, NULL); /* the broker names places a moment later */
		n = debox_chain_read(s->chain, link, DEBOX_CHAIN_DEPTH_MAX);
	}
	if (debox_chain_text(s->chain, text, sizeof text) < 0)
		text[0] = 0;
	printf("{\"total_ns\":%llu,\"max_ns\":%llu,\"told\":%d,\"chain\":%u,\"permille\":%u,\"read\":%d,"
	       "\"text\":\"%s\",\"links\":[",
	       (unsigned long long)s->total_ns, (unsigned long long)s->max_ns,
	       (s->flags & DEBOX_SLEEP_CHAIN) != 0, s->chain, s->chain_permille, n, text);
	for (int i = 0; i < n; i++)
		printf("%s{\"kind\":%u,\"comm\":\"%s\",\"nr\":%d,\"label\":\"%s\",\"site\":%u,\"tid\":%u,"
		       "\"held\":%d,\"withheld\":%d}",
		       i ? "," : "", link[i].kind, link[i].comm, link[i].nr, link[i].label, link[i].site,
		       link[i].tid, (link[i].flags & DEBOX_LINK_HELD) != 0,
		       (link[i].flags & DEBOX_LINK_WITHHELD) != 0);
	printf("]}\n");
}

static void print_last(void)
{
	struct debox_info info = { .size = sizeof info };

	if (debox_last(&info) || !(info.valid & DEBOX_VALID_SLEEPS))
		fail("no record");
	for (uint32_t i = 0; i < info.sleep_count; i++)
		print_sleep(&info.sleeps[i]);
	fflush(stdout);
}

static void *writer(void *unused)
{
	struct timespec wait = { ms / 1000, ms % 1000 * 1000000 };

	prctl(PR_SET_NAME, "writer");
	pthread_barrier_wait(&start);
	nanosleep(&wait, NULL);
	if (write(ends[1], "x", 1) != 1)
		fail("write");
	return unused;
}

static void *holder(void *unused)
{
	char byte;

	prctl(PR_SET_NAME, "holder");
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

	if (pipe(ends))
		fail("pipe");
	pthread_barrier_init(&start, NULL, 3);
	if (pthread_create(&a, NULL, holder, NULL) || pthread_create(&b, NULL, writer, NULL))
		fail("pthread_create");
	prctl(PR_SET_NAME, "waiter");
	pthread_barrier_wait(&start);
	DEBOX_CALL_NR(SYS_futex, pthread_mutex_lock(&lock));
	print_last();
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

static void from_stdin(long n)
{
	char byte;

	while (n--) {
		printf("{}\n"); /* now */
		fflush(stdout);
		if (DEBOX_CALL_NR(SYS_read, read(0, &byte, 1)) != 1)
			fail("read");
		print_last();
	}
}

int main(int argc, char **argv)
{
	struct debox_options options = { .size = sizeof options, .flags = DEBOX_OPEN_CHAINS };
	char why[512];

	if (argc > 1 && !strcmp(argv[1], "-p")) {
		options.flags = 0;
		argv++;
		argc--;
	}
	if (argc != 3)
		return 2;
	if (debox_open(&options) || debox_status() != DEBOX_STATUS_MEASURED || debox_why(why, sizeof why))
		fail("not measured");
	ms = atol(argv[2]);
	if (!strcmp(argv[1], "mutex-pipe"))
		mutex_pipe();
	else if (!strcmp(argv[1], "stdin"))
		from_stdin(ms);
	else
		return 2;
	return 0;
}
