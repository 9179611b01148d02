/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How can libdebox be tested without BPF and without privileges?
 *
 * With a broker that is only a process with memory files: it speaks the real
 * protocol and hands out slots, and the test itself writes the records, as the
 * kernel side would (fake_event). The broker can be killed: its robust mutex
 * then tells the library.
 */
#ifndef FAKE_BROKER_H
#define FAKE_BROKER_H

#include "../fresh_start.h"

#include <debox/protocol.h>
#include <dirent.h>
#include <fcntl.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAKE_SEGMENTS 24u
#define FAKE_SHARED_BYTES (DEBOX_PAGE_SIZE + (size_t)DEBOX_SITES_MAX * sizeof(struct debox_site))
#define FAKE_SEGMENT_BYTES ((size_t)DEBOX_SEGMENT_SLOTS * DEBOX_PAGE_SIZE)
#define FAKE_CONNECTIONS 64

/* Shared between the test and its broker. */
struct fake_state {
	uint32_t segments; /* handed out */
	uint32_t refuse;   /* answer -ENOSPC */
	uint32_t blind;    /* bind no thread */
	uint32_t requests;
	uint32_t silent;                   /* answer nothing */
	uint32_t old;                      /* know nothing of chains */
	uint32_t pipe;                     /* a pipe instead of chains */
	int32_t owner[FAKE_SEGMENTS];      /* pid of the client */
	int32_t connection[FAKE_SEGMENTS]; /* descriptor in the broker; -1 */
};

struct fake {
	pid_t pid;
	char path[108];
	int listen_fd;
	int record_fd[FAKE_SEGMENTS], control_fd[FAKE_SEGMENTS], shared_fd;
	int chains_fd; /* the test writes the links */
	struct debox_record *records[FAKE_SEGMENTS];
	struct debox_control *controls[FAKE_SEGMENTS];
	struct debox_shared *shared;
	struct fake_state *state;
};

static void *fake_map(int fd, size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE,
		       fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

	if (p == MAP_FAILED) {
		perror("fake broker: mmap");
		exit(2);
	}
	return p;
}

/* The library maps nothing that could become shorter. */
static int fake_memory(const char *name, size_t n)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)n) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		perror("fake broker: memory");
		exit(2);
	}
	return fd;
}

static int fake_has_slot(struct fake *k, uint32_t tid)
{
	for (uint32_t s = 0; s < k->state->segments; s++)
		for (uint32_t i = 0; i < DEBOX_SEGMENT_SLOTS; i++)
			if (k->records[s][i].tid == tid)
				return 1;
	return 0;
}

/* What the kernel side does at clone: a free slot of the process for `tid`. */
static int fake_bind(struct fake *k, pid_t pid, uint32_t tid)
{
	for (uint32_t s = 0; s < k->state->segments; s++) {
		if (k->state->owner[s] != pid || k->state->connection[s] < 0)
			continue;
		for (uint32_t i = 0; i < DEBOX_SEGMENT_SLOTS; i++) {
			struct debox_record *r = &k->records[s][i];
			uint32_t nobody = 0;

			if (!__atomic_compare_exchange_n(&r->tid, &nobody, tid, 0, __ATOMIC_ACQ_REL,
							 __ATOMIC_RELAXED))
				continue;
			r->tgid = (uint32_t)pid;
			r->generation++;
			memset(&r->totals, 0, sizeof r->totals);
			return 1;
		}
	}
	return 0;
}

static void fake_chains_reply(struct fake *k, int conn, struct debox_reply *rep)
{
	struct iovec iov = { rep, sizeof *rep };
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &c,
			      .msg_controllen = sizeof c };
	struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
	int ends[2] = { -1, -1 };

	if (k->state->pipe && pipe(ends))
		exit(2);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), k->state->pipe ? &ends[0] : &k->chains_fd, sizeof(int));
	rep->fds = 1;
	if (sendmsg(conn, &msg, MSG_NOSIGNAL) < 0)
		perror("fake broker: sendmsg");
}

static void fake_reply(struct fake *k, int conn, pid_t pid, const struct debox_request *req)
{
	struct debox_reply rep;
	struct iovec iov = { &rep, sizeof rep };
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(3 * sizeof(int))];
	} c;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fds[3];

	memset(&rep, 0, sizeof rep);
	rep.size = sizeof rep;
	rep.version = DEBOX_PROTOCOL_VERSION;
	rep.type = req->type;
	k->state->requests++;
	if (k->state->silent)
		return;
	if (req->type == DEBOX_MSG_CHAINS && !k->state->old) {
		fake_chains_reply(k, conn, &rep);
		return;
	}
	if (req->size != sizeof *req || (k->state->old && req->flags) || req->version != DEBOX_PROTOCOL_VERSION ||
	    req->type != DEBOX_MSG_SLOTS) {
		rep.status = -EINVAL;
		strcpy(rep.text, "fake broker: bad request");
	} else if (k->state->refuse || k->state->segments == FAKE_SEGMENTS) {
		rep.status = -ENOSPC;
		strcpy(rep.text, "fake broker: all 768 slots are in use; end a program.");
	} else {
		uint32_t s = k->state->segments;
		char dir[64];
		DIR *d;

		k->state->owner[s] = pid;
		k->state->connection[s] = conn;
		k->state->segments = s + 1;
		snprintf(dir, sizeof dir, "/proc/%d/task", pid);
		d = opendir(dir);
		for (struct dirent *e; d && !k->state->blind && (e = readdir(d));) {
			uint32_t tid = (uint32_t)strtoul(e->d_name, NULL, 10);

			if (tid && !fake_has_slot(k, tid))
				rep.threads += (uint32_t)fake_bind(k, pid, tid);
		}
		if (d)
			closedir(d);
		rep.fds = 3;
		rep.slots = DEBOX_SEGMENT_SLOTS;
		rep.features = k->shared->features;
		fds[0] = k->record_fd[s];
		fds[1] = k->control_fd[s];
		fds[2] = k->shared_fd;
		msg.msg_control = &c;
		msg.msg_controllen = sizeof c;
		struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(sizeof fds);
		memcpy(CMSG_DATA(h), fds, sizeof fds);
	}
	if (sendmsg(conn, &msg, MSG_NOSIGNAL) < 0)
		perror("fake broker: sendmsg");
}

static void fake_serve(struct fake *k)
{
	struct pollfd p[FAKE_CONNECTIONS];
	int n = 1;

	p[0].fd = k->listen_fd;
	p[0].events = POLLIN;
	for (;;) {
		if (poll(p, (nfds_t)n, -1) < 0)
			continue;
		if (p[0].revents & POLLIN && n < FAKE_CONNECTIONS) {
			p[n].fd = accept(k->listen_fd, NULL, NULL);
			p[n].events = POLLIN;
			p[n].revents = 0;
			n++;
		}
		for (int i = 1; i < n; i++) {
			struct debox_request req;
			struct ucred who;
			socklen_t len = sizeof who;
			ssize_t got;

			if (!p[i].revents)
				continue;
			/* The real broker takes the sender from each message; for a
			 * test the connecting process is enough. */
			getsockopt(p[i].fd, SOL_SOCKET, SO_PEERCRED, &who, &len);
			got = recv(p[i].fd, &req, sizeof req, 0);
			if (got == (ssize_t)sizeof req) {
				fake_reply(k, p[i].fd, who.pid, &req);
				continue;
			}
			for (uint32_t s = 0; s < k->state->segments; s++)
				if (k->state->connection[s] == p[i].fd) {
					k->state->connection[s] = -1;
					for (uint32_t j = 0; j < DEBOX_SEGMENT_SLOTS; j++)
						k->records[s][j].tid = 0;
				}
			close(p[i].fd);
			p[i--] = p[--n];
		}
	}
}

static void fake_mutex_hold(struct fake *k)
{
	pthread_mutexattr_t a;
	pthread_mutex_t *m = (pthread_mutex_t *)(void *)k->shared->mutex;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(m, &a);
	pthread_mutex_lock(m);
	k->shared->alive_offset = offsetof(struct debox_shared, mutex);
	k->shared->broker_pid = (uint32_t)getpid();
}

/* Starts the broker process; sets $DEBOX_SOCKET. */
static void fake_start(struct fake *k)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int ready[2];
	char c;

	memset(k, 0, sizeof *k);
	snprintf(k->path, sizeof k->path, "/tmp/debox-fake-%d.sock", getpid());
	strcpy(at.sun_path, k->path);
	unlink(k->path);
	k->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(k->listen_fd, (struct sockaddr *)&at, sizeof at) || listen(k->listen_fd, 64)) {
		perror(k->path);
		exit(2);
	}
	k->state = fake_map(-1, sizeof *k->state);
	k->shared_fd = fake_memory("shared", FAKE_SHARED_BYTES);
	k->chains_fd = memfd_create("chains", MFD_CLOEXEC);
	k->shared = fake_map(k->shared_fd, FAKE_SHARED_BYTES);
	k->shared->magic = DEBOX_SHARED_MAGIC;
	k->shared->abi_version = DEBOX_ABI_VERSION;
	k->shared->site_entry_size = sizeof(struct debox_site);
	k->shared->features = DEBOX_FEATURE_SLEEPS | DEBOX_FEATURE_FAULTS |
			      DEBOX_FEATURE_MAJOR_FAULTS | DEBOX_FEATURE_RUNQ | DEBOX_FEATURE_SITES;
	for (uint32_t s = 0; s < FAKE_SEGMENTS; s++) {
		k->record_fd[s] = fake_memory("records", FAKE_SEGMENT_BYTES);
		k->control_fd[s] = fake_memory("controls", FAKE_SEGMENT_BYTES);
		k->records[s] = fake_map(k->record_fd[s], FAKE_SEGMENT_BYTES);
		k->controls[s] = fake_map(k->control_fd[s], FAKE_SEGMENT_BYTES);
		k->state->connection[s] = -1;
	}
	if (pipe(ready))
		exit(2);
	k->pid = fork();
	if (k->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]);
		fake_mutex_hold(k);
		if (write(ready[1], "x", 1) != 1)
			_exit(2);
		close(ready[1]);
		fake_serve(k);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		exit(2);
	close(ready[0]);
	close(k->listen_fd);
	setenv(DEBOX_ENV_SOCKET, k->path, 1);
}

static void fake_stop(struct fake *k)
{
	if (k->pid > 0) {
		kill(k->pid, SIGKILL);
		waitpid(k->pid, NULL, 0);
		k->pid = 0;
	}
	unlink(k->path);
}

/* The slot of the calling thread as the kernel side sees it. */
static inline struct debox_record *fake_record(struct fake *k, struct debox_control **control)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid);

	for (uint32_t s = 0; s < FAKE_SEGMENTS; s++)
		for (uint32_t i = 0; i < DEBOX_SEGMENT_SLOTS; i++)
			if (k->records[s][i].tid == tid) {
				*control = &k->controls[s][i];
				return &k->records[s][i];
			}
	return NULL;
}

struct fake_what {
	uint64_t blocked_ns, runq_ns, outside_ns;
	uint32_t minor, major, site;
};

/* What the kernel side does when something happened to the calling thread.
 * Returns the number of the call it was counted for. */
static inline uint64_t fake_event(struct fake *k, struct fake_what w)
{
	struct debox_control *c;
	struct debox_record *r = fake_record(k, &c);
	struct debox_info *b;
	uint64_t open;

	if (!r)
		return 0;
	r->totals.blocked_ns += w.blocked_ns;
	r->totals.runq_ns += w.runq_ns + w.outside_ns;
	r->totals.outside_runq_ns += w.outside_ns;
	r->totals.kernel_faults += w.minor;
	r->totals.major_faults += w.major;
	r->totals.nvcsw += w.blocked_ns != 0;
	r->totals.nivcsw += w.runq_ns != 0;
	open = c->open_seq;
	if (!open)
		return 0;
	b = &r->bank[c->level % DEBOX_BANKS].info;
	if (b->call_seq != open) {
		memset(b, 0, sizeof *b);
		b->call_seq = open;
		b->nr = c->nr;
		b->valid = DEBOX_VALID_BLOCKED | DEBOX_VALID_RUNQ | DEBOX_VALID_FAULTS |
			   DEBOX_VALID_SWITCHES | DEBOX_VALID_SLEEPS;
	}
	b->blocked_ns += w.blocked_ns;
	b->runq_ns += w.runq_ns;
	b->outside_ns += w.outside_ns;
	b->minor_faults += w.minor;
	b->major_faults += w.major;
	b->nvcsw += w.blocked_ns != 0;
	b->nivcsw += w.runq_ns != 0;
	if (w.blocked_ns) {
		uint32_t i = 0;

		while (i < b->sleep_count && b->sleeps[i].site != w.site)
			i++;
		if (i < c->max_sleeps && i < DEBOX_SLEEPS_MAX) {
			struct debox_sleep *s = &b->sleeps[i];

			if (i == b->sleep_count)
				b->sleep_count++;
			s->site = w.site;
			s->count++;
			s->total_ns += w.blocked_ns;
			if (w.blocked_ns > s->max_ns)
				s->max_ns = w.blocked_ns;
		} else {
			b->sleeps_dropped++;
			b->sleeps_dropped_ns += w.blocked_ns;
		}
	}
	return open;
}

static inline void fake_site(struct fake *k, uint32_t i, const char *label, const char *function,
			     const char *file, uint32_t line, uint32_t merged)
{
	struct debox_site *s = (struct debox_site *)(void *)((char *)k->shared + DEBOX_PAGE_SIZE) + i;

	s->merged = merged;
	s->line = line;
	snprintf(s->label, sizeof s->label, "%s", label);
	snprintf(s->function, sizeof s->function, "%s", function);
	snprintf(s->file, sizeof s->file, "%s", file);
	if (i >= k->shared->site_count)
		k->shared->site_count = i + 1;
	__atomic_store_n(&s->state, DEBOX_SITE_RESOLVED, __ATOMIC_RELEASE);
}

#endif
