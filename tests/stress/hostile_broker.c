/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Can whoever listens at $DEBOX_SOCKET hurt a program that uses libdebox?
 *
 * It may be anybody: the variable comes from the environment. So here a broker
 * hangs up at each step, never answers, cuts its replies or makes them longer,
 * sends other descriptors than promised, memory that is too short or becomes
 * so, and fills the shared memory with lies that change while they are read.
 * The program, under the sanitizers, must neither crash nor hang: each case
 * runs in a process of its own, with a time limit. It counts its calls as the
 * interposer does, and hands the counters to the same liar.
 *
 *     hostile_broker [RANDOM_CASES [SEED [CMD ARGS...]]]
 *
 * With CMD that is the program: for the interposer as a whole, preloaded.
 */
#include "../../preload/collect.h"
#include <debox.h>
#include <debox/protocol.h>
#include <debox/trace.h>
#include <debox_compat.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#define SEGMENT_BYTES ((size_t)DEBOX_SEGMENT_SLOTS * DEBOX_PAGE_SIZE)
#define SHARED_BYTES (DEBOX_PAGE_SIZE + (size_t)DEBOX_SITES_MAX * sizeof(struct debox_site))
#define TRACE_CAPACITY 8u
#define TRACE_STRIDE (sizeof(struct debox_trace) + TRACE_CAPACITY * sizeof(struct debox_trace_entry))
#define TRACE_BUFFERS 16u
#define LINKS 64u
#define CHAINS_BYTES (2 * DEBOX_PAGE_SIZE)
/* The library gives a reply 5 s; nothing here asks more than a few times. */
#define CASE_SECONDS 40

/* What one descriptor is instead of what was promised. */
enum thing {
	THING_GOOD,
	THING_UNSEALED,
	THING_EMPTY,
	THING_PAGE,
	THING_ALMOST, /* one page less */
	THING_PIPE,
	THING_DIRECTORY,
	THING_DEVICE,
	THING_SOCKET,
	THING_EVENT,
	THING_EPOLL,
	THING_PROC,
	THING_PATH, /* O_PATH */
	THING_FILE,
	THING_WRITE_ONLY,
	THING_HUGE, /* sparse, much too long */
	THINGS,
};

enum when { NEVER,
	    AT_ACCEPT,
	    AT_REQUEST,
	    AFTER_REPLY,
	    WHENS };

/* How this broker lies. All 0: it does not. */
struct lie {
	uint32_t seed;
	enum when hang_up;
	enum when silent;      /* from then on nothing is said any more */
	uint32_t length;       /* of the reply: 0 as it should be */
	int32_t version, type; /* added */
	int32_t status;
	uint32_t fds;        /* of descriptors sent, less 1; 0: as it should be */
	uint32_t size;       /* of the reply's own size field; 0 as it should be */
	uint32_t text;       /* the text has no end */
	uint32_t replies;    /* more than one for each request */
	enum thing thing[3]; /* slots */
	enum thing trace[3];
	enum thing chains;
	uint32_t header;   /* which field of the shared page lies; 0 none */
	uint64_t value;    /* ... and what it says */
	uint32_t table;    /* the same for the head of the trace's table */
	uint32_t noise;    /* the records, sites and traces are filled with it */
	uint32_t scribble; /* ... and it changes all the time */
};

static uint64_t dice_state;

static uint64_t dice(void)
{
	uint64_t z = dice_state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* Numbers at which something breaks, if anywhere. */
static uint64_t edge(void)
{
	static const uint64_t edges[] = { 0, 1, 2, 16, 17, 31, 32, 4092, 4095, 4096, 16383, 16384,
					  0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 62,
					  1ull << 63, ~0ull - 1, ~0ull };

	return dice() & 3 ? edges[dice() % (sizeof edges / sizeof *edges)] : dice();
}

/* ---------------------------------------------------------------- the broker */

struct broker {
	struct lie lie;
	int record_fd, control_fd, shared_fd;
	int trace_fd, sums_fd, table_fd, chains_fd;
	struct debox_record *records;
	struct debox_control *controls;
	struct debox_shared *shared;
	char *traces;
	struct debox_trace_table *table;
	struct debox_chain *chains;
};

static int memory(size_t bytes, int seal)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) || (seal && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)))
		exit(2);
	return fd;
}

static void *mapped(int fd, size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		exit(2);
	return p;
}

/* The descriptor that is sent instead of `good`. */
static int thing_make(enum thing thing, int good, size_t bytes)
{
	int pair[2];

	switch (thing) {
	case THING_UNSEALED:
		return memory(bytes, 0);
	case THING_EMPTY:
		return memory(0, 1);
	case THING_PAGE:
		return memory(DEBOX_PAGE_SIZE, 1);
	case THING_ALMOST:
		return memory(bytes - DEBOX_PAGE_SIZE, 1);
	case THING_HUGE:
		return memory((size_t)1 << 40, 1);
	case THING_PIPE:
		return pipe(pair) ? -1 : pair[0];
	case THING_DIRECTORY:
		return open("/", O_RDONLY | O_DIRECTORY);
	case THING_DEVICE:
		return open("/dev/zero", O_RDWR);
	case THING_SOCKET:
		return socket(AF_UNIX, SOCK_STREAM, 0);
	case THING_EVENT:
		return eventfd(0, 0);
	case THING_EPOLL:
		return epoll_create1(0);
	case THING_PROC:
		return open("/proc/self/maps", O_RDONLY);
	case THING_PATH:
		return open("/", O_PATH);
	case THING_FILE: {
		char name[] = "/tmp/debox-hostile-XXXXXX";
		int fd = mkstemp(name);

		unlink(name);
		return ftruncate(fd, DEBOX_PAGE_SIZE) ? -1 : fd;
	}
	case THING_WRITE_ONLY: {
		char path[32];

		snprintf(path, sizeof path, "/proc/self/fd/%d", good);
		return open(path, O_WRONLY);
	}
	default:
		return good;
	}
}

static void noise(void *to, size_t bytes)
{
	uint64_t *words = to;

	for (size_t i = 0; i < bytes / 8; i++)
		words[i] = edge();
}

/* Threads that the client has get slots, as from the real one. */
static void threads_bind(struct broker *b, pid_t pid)
{
	char dir[64];
	DIR *d;
	uint32_t slot = 0;

	snprintf(dir, sizeof dir, "/proc/%d/task", pid);
	d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		uint32_t tid = (uint32_t)strtoul(e->d_name, NULL, 10);

		if (tid && slot < DEBOX_SEGMENT_SLOTS) {
			b->records[slot].tid = tid;
			b->records[slot].generation = 1;
			((struct debox_trace *)(void *)(b->traces + 2 * slot % TRACE_BUFFERS * TRACE_STRIDE))
				->tid = tid;
			slot++;
		}
	}
	if (d)
		closedir(d);
}

/* Lies in all that the client reads, but for what makes it look there. */
static void lies_tell(struct broker *b)
{
	for (uint32_t i = 0; i < DEBOX_SEGMENT_SLOTS; i++) {
		struct debox_record *r = &b->records[i];

		noise((char *)r + offsetof(struct debox_record, totals),
		      sizeof *r - offsetof(struct debox_record, totals));
		if (dice() & 1)
			r->away = 0;
		for (uint32_t k = 0; k < DEBOX_BANKS; k++) {
			/* Of the call that is open, or one before or after it. */
			r->bank[k].info.call_seq = b->controls[i].open_seq + (dice() & 3) - 1;
			if (dice() & 1)
				r->bank[k].info.valid = ~0ull;
			for (uint32_t s = 0; s < DEBOX_SLEEPS_MAX; s++) {
				r->bank[k].info.sleeps[s].site = (uint32_t)dice() % 8;
				if (dice() & 3)
					r->bank[k].info.sleeps[s].chain = (uint32_t)dice() % LINKS;
			}
		}
	}
	for (uint32_t i = 0; i < 8; i++) {
		struct debox_site *s = (struct debox_site *)(void *)((char *)b->shared + DEBOX_PAGE_SIZE) + i;

		noise(s, sizeof *s);
		s->state = dice() & 3 ? DEBOX_SITE_RESOLVED : (uint32_t)edge();
		s->merged = dice() & 1 ? (uint32_t)dice() % 8 : (uint32_t)edge();
		memset(s->label, dice() & 1 ? 'x' : 0, sizeof s->label);
	}
	for (uint32_t i = 0; i < TRACE_BUFFERS; i++) {
		struct debox_trace *t = (struct debox_trace *)(void *)(b->traces + i * TRACE_STRIDE);
		uint32_t tid = t->tid;

		noise(t, TRACE_STRIDE);
		t->tid = tid;
		t->call_seq = b->controls[i / 2].open_seq;
	}
	for (uint32_t i = 0; i < LINKS; i++) {
		noise(&b->chains[i], sizeof *b->chains);
		b->chains[i].type = dice() & 7 ? (uint32_t)dice() % DEBOX_CHAIN_KINDS : (uint32_t)edge();
		/* Back, forward, to itself, and out of all bounds. */
		if (dice() & 7)
			b->chains[i].parent = (uint32_t)dice() % LINKS;
		if (dice() & 1)
			b->chains[i].site = (uint32_t)dice() % 8;
		if (dice() & 1)
			memset(b->chains[i].comm, 'x', sizeof b->chains[i].comm);
	}
	/* Names that have no end, the last one too. */
	memset((char *)b->table + DEBOX_PAGE_SIZE, 'n', DEBOX_TRACE_TABLE_SIZE - DEBOX_PAGE_SIZE);
	b->table->functions = (uint32_t)edge();
	memset(b->table->text, 't', sizeof b->table->text);
}

static void *scribbler(void *arg)
{
	struct broker *b = arg;

	for (;;) {
		lies_tell(b);
		if (b->lie.header)
			b->shared->alive_offset = (uint32_t)edge();
	}
	return NULL;
}

static void header_lie(struct broker *b)
{
	struct debox_shared *s = b->shared;
	uint32_t v = (uint32_t)b->lie.value;

	switch (b->lie.header) {
	case 1: s->magic = v; break;
	case 2: s->abi_version = v; break;
	case 3: s->broker_pid = v; break;
	case 4: s->alive_offset = v; break;
	case 5: s->site_count = v; break;
	case 6: s->site_entry_size = v; break;
	case 7: s->features = b->lie.value; break;
	}
}

static void table_lie(struct broker *b)
{
	struct debox_trace_table *t = b->table;
	uint32_t v = (uint32_t)b->lie.value;

	switch (b->lie.table) {
	case 1: t->magic = v; break;
	case 2: t->functions = v; break;
	case 3: t->buffers = v; break;
	case 4:
		t->capacity = v;
		t->stride = sizeof(struct debox_trace) + (uint64_t)v * sizeof(struct debox_trace_entry);
		break;
	case 5: t->stride = b->lie.value; break;
	case 6: t->state = v; break;
	}
}

static void broker_make(struct broker *b, const struct lie *lie)
{
	memset(b, 0, sizeof *b);
	b->lie = *lie;
	dice_state = lie->seed;
	b->record_fd = memory(SEGMENT_BYTES, 1);
	b->control_fd = memory(SEGMENT_BYTES, 1);
	b->shared_fd = memory(SHARED_BYTES, 1);
	b->trace_fd = memory(TRACE_BUFFERS * TRACE_STRIDE + DEBOX_PAGE_SIZE, 1);
	b->sums_fd = memory(DEBOX_PAGE_SIZE, 1);
	b->table_fd = memory(DEBOX_TRACE_TABLE_SIZE, 1);
	b->chains_fd = memory(CHAINS_BYTES, 1);
	b->records = mapped(b->record_fd, SEGMENT_BYTES);
	b->controls = mapped(b->control_fd, SEGMENT_BYTES);
	b->shared = mapped(b->shared_fd, SHARED_BYTES);
	b->traces = mapped(b->trace_fd, TRACE_BUFFERS * TRACE_STRIDE + DEBOX_PAGE_SIZE);
	b->table = mapped(b->table_fd, DEBOX_TRACE_TABLE_SIZE);
	b->chains = mapped(b->chains_fd, CHAINS_BYTES);
	b->chains[0] = (struct debox_chain){ .type = DEBOX_CHAIN_TIMER };
	b->shared->magic = DEBOX_SHARED_MAGIC;
	b->shared->abi_version = DEBOX_ABI_VERSION;
	b->shared->site_entry_size = sizeof(struct debox_site);
	b->shared->alive_offset = offsetof(struct debox_shared, mutex);
	b->shared->features = 0x7f;
	memset(b->shared->mutex, 1, sizeof b->shared->mutex);
	b->table->magic = DEBOX_TRACE_MAGIC;
	b->table->state = DEBOX_TRACE_STATE_ON;
	b->table->functions = DEBOX_TRACE_FUNCTIONS_MAX;
	b->table->buffers = TRACE_BUFFERS;
	b->table->capacity = TRACE_CAPACITY;
	b->table->stride = TRACE_STRIDE;
	if (lie->noise)
		lies_tell(b);
	header_lie(b);
	table_lie(b);
}

static void reply(struct broker *b, int conn, pid_t pid, uint32_t type)
{
	static char bytes[sizeof(struct debox_reply) + 4096];
	struct debox_reply rep;
	const struct lie *lie = &b->lie;
	const int chains = type == DEBOX_MSG_CHAINS, trace = type == DEBOX_MSG_TRACE;
	uint32_t due = chains ? 1 : 3, count = lie->fds ? lie->fds - 1 : due;
	int fds[8];
	struct iovec iov = { bytes, lie->length ? lie->length : sizeof rep };
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof fds)];
	} c;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	const size_t sizes[2][3] = { { SEGMENT_BYTES, SEGMENT_BYTES, SHARED_BYTES },
				     { TRACE_BUFFERS * TRACE_STRIDE, DEBOX_PAGE_SIZE,
				       DEBOX_TRACE_TABLE_SIZE } };

	memset(&rep, 0, sizeof rep);
	rep.size = lie->size ? lie->size : sizeof rep;
	rep.version = (uint32_t)(DEBOX_PROTOCOL_VERSION + lie->version);
	rep.type = (uint32_t)((int32_t)type + lie->type);
	rep.status = lie->status;
	rep.fds = due;
	rep.slots = DEBOX_SEGMENT_SLOTS;
	rep.features = 0x7f;
	rep.threads = 1;
	if (lie->text)
		memset(rep.text, 'x', sizeof rep.text);
	memcpy(bytes, &rep, sizeof rep);
	threads_bind(b, pid);
	for (uint32_t i = 0; i < count; i++) {
		const int good[2][3] = { { b->record_fd, b->control_fd, b->shared_fd },
					 { b->trace_fd, b->sums_fd, b->table_fd } };
		enum thing thing = trace ? lie->trace[i % 3] : lie->thing[i % 3];

		if (chains)
			fds[i] = thing_make(i ? THING_GOOD : lie->chains, b->chains_fd, CHAINS_BYTES);
		else
			fds[i] = thing_make(thing, good[trace][i % 3], sizes[trace][i % 3]);
		if (fds[i] < 0)
			fds[i] = b->sums_fd;
	}
	if (count) {
		msg.msg_control = &c;
		msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(h), fds, count * sizeof(int));
	}
	for (uint32_t i = 0; i <= lie->replies; i++)
		if (sendmsg(conn, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			break;
	/* Of what was mapped, nothing is left, if that can be done. */
	for (uint32_t i = 0; i < count; i++)
		if ((chains ? lie->chains : (trace ? lie->trace : lie->thing)[i % 3]) == THING_UNSEALED &&
		    ftruncate(fds[i], 0))
			break;
}

static struct broker the_broker;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void *connection(void *arg)
{
	struct broker *b = &the_broker;
	struct debox_trace_request req;
	int conn = (int)(intptr_t)arg;
	struct ucred who;
	socklen_t len = sizeof who;

	getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &who, &len);
	while (recv(conn, &req, sizeof req, 0) > 0) {
		if (b->lie.hang_up == AT_REQUEST)
			break;
		if (b->lie.silent == AT_REQUEST)
			pause();
		pthread_mutex_lock(&one_at_a_time);
		reply(b, conn, who.pid, req.head.type);
		if (b->lie.silent == AFTER_REPLY)
			b->lie.silent = AT_REQUEST;
		pthread_mutex_unlock(&one_at_a_time);
		if (b->lie.hang_up == AFTER_REPLY)
			break;
	}
	close(conn);
	return NULL;
}

static void serve(struct broker *b, int listener)
{
	pthread_t thread;

	if (b->lie.scribble && pthread_create(&thread, NULL, scribbler, b))
		exit(2);
	for (;;) {
		int conn = accept(listener, NULL, NULL);

		if (b->lie.hang_up == AT_ACCEPT)
			close(conn);
		else if (pthread_create(&thread, NULL, connection, (void *)(intptr_t)conn))
			exit(2);
	}
}

/* ---------------------------------------------------------------- the program */

static FILE *nowhere;

static void met(const struct debox_info *info, void *context)
{
	debox_info_print(context, info);
}

static void calls_make(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct debox_frame f;
		struct debox_info info = { .size = sizeof info };

		debox_call_begin(&f, SYS_getpid);
		if (i % 8 == 3) {
			struct debox_frame inner;

			debox_call_begin(&inner, SYS_gettid);
			debox_call_end(&inner, 0);
		}
		debox_call_end(&f, syscall(SYS_getpid));
		debox_collect_count_(&f, SYS_getpid, (uint64_t)(uintptr_t)&f, 0);
		if (debox_last(&info) == 0) {
			if (info.sleep_count > DEBOX_SLEEPS_MAX)
				abort();
			debox_info_print(nowhere, &info);
		}
	}
}

static void *other_thread(void *arg)
{
	calls_make(20);
	return arg;
}

/* Everything that reads what the broker says. */
static int program(int honest)
{
	static struct debox_info history[64];
	static DeBoxInfo compat;
	struct debox_trace_options trace = { .size = sizeof trace, .max_entries = TRACE_CAPACITY };
	struct debox_options options = { .size = sizeof options, .flags = DEBOX_OPEN_CHAINS };
	struct debox_link link[DEBOX_CHAIN_DEPTH_MAX];
	struct debox_trace_table table;
	struct debox_trace_entry entries[32];
	struct debox_watch_error wrong;
	struct debox_span span;
	struct debox_info info = { .size = sizeof info };
	struct debox_site site;
	pthread_t thread;
	char why[600];
	uint64_t lost;
	int watch, n;
	pid_t pid;

	nowhere = fopen("/dev/null", "w");
	debox_collect_start_();
	debox_open(&options);
	if (honest && debox_status() != DEBOX_STATUS_MEASURED)
		abort();
	debox_features();
	n = debox_why(why, sizeof why);
	if (n < 0 || strlen(why) >= sizeof why)
		abort();
	calls_make(20);
	watch = debox_watch_add("label == xxx || function =~ a* || sleeps > 1 || wall > 0ns", met, nowhere,
				&wrong);
	debox_span_begin(&span);
	calls_make(20);
	if (!debox_span_end(&span, &info))
		debox_info_print(nowhere, &info);
	if (watch >= 0)
		debox_watch_remove(watch);
	history[0].size = sizeof info;
	n = debox_history_read(history, 64, &lost);
	for (int i = 0; i < n; i++)
		debox_info_print(nowhere, &history[i]);
	for (uint32_t i = 0; i < 12; i++)
		debox_site_read(i, &site);
	debox_site_read(DEBOX_SITES_MAX - 1, &site);
	for (uint32_t i = 0; i < LINKS; i++) {
		n = debox_chain_read(i, link, 1 + i % DEBOX_CHAIN_DEPTH_MAX);
		if (n > (int)DEBOX_CHAIN_DEPTH_MAX || (honest && i == 1 && n != 1))
			abort();
		n = debox_chain_text(i, why, 1 + i % sizeof why);
		if (n >= 0 && strlen(why) > i % sizeof why)
			abort();
	}
	debox_chain_read(DEBOX_CHAINS_MAX - 1, link, 1);
	debox_chain_read(~0u, NULL, 0);
	n = debox_trace_open(&trace);
	if (!n)
		n = debox_trace_set(TRACE_CAPACITY);
	if (honest && n)
		abort();
	if (!n) {
		calls_make(10);
		n = debox_trace_read(entries, 32, NULL, NULL);
		if (n > (int)TRACE_CAPACITY)
			abort();
		debox_trace_print(nowhere);
		fputs(debox_trace_function(DEBOX_TRACE_FUNCTIONS_MAX - 1), nowhere);
		fputs(debox_trace_function(~0u), nowhere);
		debox_trace_status(&table);
		debox_trace_set(0);
	}
	DeBoxControl(&compat, 5, 10);
	calls_make(10);
	DeBoxControl(NULL, 0, 0);
	if (!pthread_create(&thread, NULL, other_thread, NULL))
		pthread_join(thread, NULL);
	pid = fork();
	if (!pid) {
		calls_make(5);
		fflush(nowhere);
		_exit(0);
	}
	waitpid(pid, &n, 0);
	debox_close();
	fclose(nowhere);
	return !WIFEXITED(n) || WEXITSTATUS(n);
}

/* ----------------------------------------------------------------- the cases */

static unsigned cases, failed;
static char **command;

static void describe(const struct lie *l)
{
	printf("    seed %u hang_up %d silent %d length %u version %d type %d status %d fds %u size %u text %u "
	       "replies %u things %d %d %d traces %d %d %d chains %d header %u table %u value %#llx noise %u scribble %u\n",
	       l->seed, l->hang_up, l->silent, l->length, l->version, l->type, l->status, l->fds, l->size,
	       l->text, l->replies, l->thing[0], l->thing[1], l->thing[2], l->trace[0], l->trace[1],
	       l->trace[2], l->chains, l->header, l->table, (unsigned long long)l->value, l->noise, l->scribble);
}

static void run(const char *name, struct lie lie)
{
	static const struct lie none;
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct timespec step = { 0, 2000000 };
	int listener, status = 0, ended = 0;
	pid_t broker, client;
	/* Or nothing of what is tried here would be looked at. */
	int honest = !memcmp(&lie, &none, sizeof lie);

	cases++;
	if (!lie.seed)
		lie.seed = cases;
	snprintf(at.sun_path, sizeof at.sun_path, "/tmp/debox-hostile-%d.sock", getpid());
	unlink(at.sun_path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) {
		perror(at.sun_path);
		exit(2);
	}
	fflush(stdout);
	broker = fork();
	if (!broker) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		broker_make(&the_broker, &lie);
		serve(&the_broker, listener);
	}
	client = fork();
	if (!client) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(listener);
		setenv(DEBOX_ENV_SOCKET, at.sun_path, 1);
		setenv(DEBOX_ENV_COLLECT, at.sun_path, 1);
		if (command) {
			int null = open("/dev/null", O_WRONLY);

			dup2(null, 1);
			execvp(command[0], command);
			_exit(127);
		}
		_exit(program(honest));
	}
	close(listener);
	for (int ms = 0; ms < CASE_SECONDS * 1000 && !ended; ms += 2) {
		ended = waitpid(client, &status, WNOHANG) == client;
		if (!ended)
			nanosleep(&step, NULL);
	}
	if (!ended) {
		kill(client, SIGKILL);
		waitpid(client, &status, 0);
	}
	kill(broker, SIGKILL);
	waitpid(broker, NULL, 0);
	unlink(at.sun_path);
	if (ended && WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	failed++;
	if (!ended)
		printf("FAILED %s: the program hung for %d s\n", name, CASE_SECONDS);
	else if (WIFSIGNALED(status))
		printf("FAILED %s: the program was killed by %s\n", name, strsignal(WTERMSIG(status)));
	else
		printf("FAILED %s: the program ended with %d\n", name, WEXITSTATUS(status));
	describe(&lie);
}

static void each_step(void)
{
	run("an honest broker", (struct lie){ 0 });
	for (enum when w = AT_ACCEPT; w < WHENS; w++)
		run("hang-up", (struct lie){ .hang_up = w });
	run("silent at the first request", (struct lie){ .silent = AT_REQUEST });
	run("silent after the first reply", (struct lie){ .silent = AFTER_REPLY });
	for (uint32_t n = 1; n < sizeof(struct debox_reply) + 128; n += n < 64 ? 7 : 41)
		run("reply of another length", (struct lie){ .length = n });
	run("a reply of 4 KiB", (struct lie){ .length = sizeof(struct debox_reply) + 3000 });
	for (uint32_t n = 1; n <= 8; n++)
		run("another number of descriptors", (struct lie){ .fds = n });
	run("another version", (struct lie){ .version = 1 });
	run("another type", (struct lie){ .type = 1 });
	run("five replies for one", (struct lie){ .replies = 4 });
	run("no end of the text", (struct lie){ .status = -ENOSPC, .text = 1 });
	for (unsigned i = 0; i < 6; i++)
		run("status", (struct lie){ .status = (int32_t[]){ 1, -1, -4095, -4096, INT32_MIN,
								   INT32_MAX }[i] });
	for (uint32_t i = 0; i < 3; i++)
		for (enum thing t = THING_UNSEALED; t < THINGS; t++) {
			struct lie slots = { 0 }, trace = { 0 };

			slots.thing[i] = t;
			trace.trace[i] = t;
			run("another thing for slots", slots);
			run("another thing for traces", trace);
		}
	for (enum thing t = THING_UNSEALED; t < THINGS; t++)
		run("another thing for chains", (struct lie){ .chains = t });
	for (uint32_t field = 1; field <= 7; field++)
		for (uint64_t v = 0; v < 5; v++) {
			uint64_t value = (uint64_t[]){ 0, 4093, 4096, 0x7fffffff, ~0ull }[v];

			run("the shared page lies", (struct lie){ .header = field, .value = value });
			if (field <= 6 && !(field == 6 && !v))
				run("the trace's table lies", (struct lie){ .table = field, .value = value });
		}
	run("a sparse trace", (struct lie){ .table = 3, .value = 1u << 20, .trace = { THING_HUGE, THING_GOOD, THING_GOOD } });
}

static void random_case(uint32_t seed)
{
	struct lie lie = { 0 };

	dice_state = seed;
	lie.seed = seed;
	lie.noise = 1;
	lie.scribble = dice() & 1;
	if (!(dice() % 8))
		lie.length = (uint32_t)(dice() % 1024) + 1;
	if (!(dice() % 8))
		lie.fds = (uint32_t)(dice() % 9);
	if (!(dice() % 8))
		lie.replies = (uint32_t)(dice() % 8);
	if (!(dice() % 8))
		lie.status = (int32_t)edge();
	if (!(dice() % 8))
		lie.hang_up = dice() % WHENS;
	for (int i = 0; i < 3; i++) {
		if (!(dice() % 16))
			lie.thing[i] = dice() % THINGS;
		if (!(dice() % 16))
			lie.trace[i] = dice() % THINGS;
	}
	if (!(dice() % 16))
		lie.chains = dice() % THINGS;
	if (!(dice() % 4)) {
		lie.header = (uint32_t)(dice() % 8);
		lie.value = edge();
	}
	if (!(dice() % 4)) {
		lie.table = (uint32_t)(dice() % 6);
		lie.value = edge();
	}
	run("random", lie);
}

int main(int argc, char **argv)
{
	unsigned random = argc > 1 ? (unsigned)atoi(argv[1]) : 200;
	uint32_t seed = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 1000;

	command = argc > 3 ? argv + 3 : NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 3)
		each_step();
	for (unsigned i = 0; i < random; i++)
		random_case(seed + i);
	printf("hostile broker: %u cases, %u failed\n", cases, failed);
	return failed != 0;
}
