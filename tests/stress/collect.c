/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Is every wrapped call counted, once, by call number and call site, in
 * threads, children and new programs?
 *
 * Plays the collector: runs itself with the interposer preloaded and reads the
 * memory that each process hands over.
 */
#include "fake_broker.h"

#include <libgen.h>
#include <limits.h>
#include <time.h>

#define MEMORIES 16

static void work_calls(int n)
{
	for (int i = 0; i < n; i++)
		getppid();
}

static void *work_thread(void *arg)
{
	work_calls(100);
	close(-1);
	return NULL;
}

/* The counted program. */
static int work(const char *self)
{
	struct timespec ts = { 0, 20000000 };
	pthread_t t[4];
	pid_t pid;

	work_calls(1000);
	nanosleep(&ts, NULL);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, work_thread, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	pid = fork();
	if (pid == 0) {
		work_calls(10);
		execl(self, self, "exec", (char *)NULL);
		_exit(9);
	}
	waitpid(pid, NULL, 0);
	/* Killed in the middle: what was counted stays. */
	pid = fork();
	if (pid == 0) {
		work_calls(20);
		raise(SIGKILL);
	}
	waitpid(pid, NULL, 0);
	return 0;
}

static struct {
	int conn, memfd;
	struct debox_wrap_header *h;
	uint32_t stripes;
} memory[MEMORIES];

static int take(int listener, int n)
{
	struct debox_collect hello;
	struct iovec iov = { &hello, sizeof hello };
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c };

	memory[n].conn = accept(listener, NULL, NULL);
	if (recvmsg(memory[n].conn, &m, 0) != sizeof hello)
		return -1;
	memcpy(&memory[n].memfd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
	if (hello.size != sizeof hello || hello.version != DEBOX_PROTOCOL_VERSION ||
	    hello.stripe_size != sizeof(struct debox_wrap_stripe))
		return -1;
	if (fcntl(memory[n].memfd, F_GET_SEALS) != (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -1;
	memory[n].stripes = hello.stripes;
	memory[n].h = mmap(NULL, DEBOX_PAGE_SIZE + hello.stripes * sizeof(struct debox_wrap_stripe),
			   PROT_READ, MAP_SHARED, memory[n].memfd, 0);
	return memory[n].h == MAP_FAILED ? -1 : 0;
}

struct sum {
	uint64_t count, errors, wall_ns, max_ns, hist, sites;
};

static struct sum sum_of(int n, int nr)
{
	struct debox_wrap_stripe *s = (void *)((char *)memory[n].h + DEBOX_PAGE_SIZE);
	uint64_t site[256], sites = 0;
	struct sum r = { 0, 0, 0, 0, 0, 0 };

	for (uint32_t i = 0; i < memory[n].stripes; i++)
		for (uint32_t j = 0; j < DEBOX_WRAP_ROWS && s[i].rows_used; j++) {
			struct debox_wrap_row *w = &s[i].rows[j];
			uint64_t k = 0;

			if (w->used != (1ull << 63 | (uint32_t)nr))
				continue;
			r.count += w->count;
			r.errors += w->errors;
			r.wall_ns += w->wall_ns;
			if (w->max_ns > r.max_ns)
				r.max_ns = w->max_ns;
			for (unsigned b = 0; b < DEBOX_HIST_BUCKETS; b++)
				r.hist += w->hist[b];
			while (k < sites && site[k] != w->call_site)
				k++;
			if (k == sites && sites < 256)
				site[sites++] = w->call_site;
		}
	r.sites = sites;
	return r;
}

static int failures;
#define CHECK(cond)                                                                     \
	do {                                                                            \
		if (!(cond)) {                                                          \
			failures++;                                                     \
			fprintf(stderr, "collect.c:%d: not so: %s\n", __LINE__, #cond); \
		}                                                                       \
	} while (0)

int main(int argc, char **argv)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char self[PATH_MAX], lib[PATH_MAX + 64], *slash;
	struct pollfd p;
	static struct fake broker;
	struct sum s;
	int listener, n = 0, status = -1;
	pid_t pid;

	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 2;
	if (argc > 1 && !strcmp(argv[1], "work"))
		return work(self);
	if (argc > 1 && !strcmp(argv[1], "exec")) {
		work_calls(5);
		return 0;
	}
	fake_start(&broker);
	snprintf(at.sun_path, sizeof at.sun_path, "/tmp/debox-collect-%d.sock", getpid());
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	unlink(at.sun_path);
	CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 16) == 0);
	/* target/c/tests/collect, target/release/libdebox-wrap.so; or $DEBOX_WRAP. */
	snprintf(lib, sizeof lib, "%s", self);
	for (int up = 0; up < 3 && (slash = strrchr(lib, '/')); up++)
		*slash = 0;
	strcat(lib, "/release/libdebox-wrap.so");
	if (getenv("DEBOX_WRAP"))
		snprintf(lib, sizeof lib, "%s", getenv("DEBOX_WRAP"));
	pid = fork();
	if (pid == 0) {
		setenv("LD_PRELOAD", lib, 1);
		setenv(DEBOX_ENV_COLLECT, at.sun_path, 1);
		execl(self, self, "work", (char *)NULL);
		_exit(127);
	}
	p.fd = listener;
	p.events = POLLIN;
	while (waitpid(pid, &status, WNOHANG) == 0)
		if (poll(&p, 1, 20) > 0 && n < MEMORIES) {
			if (take(listener, n) == 0)
				n++;
			else
				CHECK(!"a memory was refused");
		}
	unlink(at.sun_path);
	CHECK(status == 0);
	/* The program, two forked children, and what one of them became. */
	CHECK(n == 4);
	if (n == 4) {
		CHECK(memory[0].h->pid == (uint32_t)pid && memory[0].h->magic == DEBOX_COLLECT_MAGIC);
		CHECK(memory[0].h->measured == 1 && memory[0].h->why[0] == 0);
		s = sum_of(0, SYS_getppid);
		CHECK(s.count == 1400 && s.hist == 1400 && s.errors == 0 && s.sites >= 1);
		CHECK(s.wall_ns > 0 && s.max_ns <= s.wall_ns);
		s = sum_of(0, SYS_close);
		CHECK(s.count == 4 && s.errors == 4);
		s = sum_of(0, SYS_clock_nanosleep);
		CHECK(s.count == 1 && s.wall_ns >= 20000000 && s.max_ns == s.wall_ns);
		s = sum_of(0, SYS_clone);
		CHECK(s.count == 2);
		s = sum_of(0, SYS_wait4);
		CHECK(s.count == 2);
		CHECK(sum_of(1, SYS_getppid).count == 10);
		CHECK(sum_of(2, SYS_getppid).count == 5);
		CHECK(sum_of(3, SYS_getppid).count == 20);
		for (int i = 0; i < 4; i++)
			CHECK(memory[i].h->threads_lost == 0);
	}
	fake_stop(&broker);
	printf("collect: %d failures\n", failures);
	return failures != 0;
}
