/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a process get its counting memory, and a thread its part of it?
 *
 * Runs inside wrapped calls and signal handlers: direct system calls, signals
 * blocked while anything is set up.
 */
#include "collect.h"
#include "../libdebox/sys.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define STRIPES 128u
#define AREA_BYTES(stripes) (DEBOX_PAGE_SIZE + (size_t)(stripes) * sizeof(struct debox_wrap_stripe))

uint32_t debox_collecting_;
uint32_t debox_restricted_;
uint64_t debox_collect_rate_;
uint64_t debox_collect_again_;

static char collect_path[sizeof(((struct sockaddr_un *)0)->sun_path)];

/* Plain memory, so that a forked child finds its parent's and starts over. */
static struct {
	uint32_t lock;
	int32_t pid; /* whose area it is */
	int32_t failed_pid;
	int fd;
	uint32_t stripes;
	struct debox_wrap_header *area;
} collect = { .fd = -1 };

int debox_collect_fd_(void)
{
	return collect.fd;
}

void debox_collect_fd_moved_(int fd)
{
	collect.fd = fd;
}

void debox_collect_start_(void)
{
	const char *path = secure_getenv(DEBOX_ENV_COLLECT);
	struct debox_options options = { .size = sizeof options };

	if (!path || !path[0] || strlen(path) >= sizeof collect_path)
		return;
	strcpy(collect_path, path);
	if (secure_getenv(DEBOX_ENV_IRQ))
		options.flags = DEBOX_OPEN_IRQ;
	if (debox_open(&options))
		return;
	debox_collect_rate_ = debox_private_rate(&debox_collect_again_);
	debox_collecting_ = 1;
}

/*
 * As many stripes as a file may be large. Growing a memfd beyond RLIMIT_FSIZE
 * raises SIGXFSZ, which would end a program that did nothing wrong.
 */
static uint32_t stripes_allowed(void)
{
	struct rlimit64 lim = { 0, 0 };

	if (sys_failed(sys_call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &lim)) ||
	    lim.rlim_cur >= AREA_BYTES(STRIPES))
		return STRIPES;
	if (lim.rlim_cur < AREA_BYTES(1))
		return 0;
	return (uint32_t)((lim.rlim_cur - DEBOX_PAGE_SIZE) / sizeof(struct debox_wrap_stripe));
}

static long area_send(int fd, int memfd, uint32_t stripes)
{
	struct debox_collect hello = { .size = sizeof hello,
				       .version = DEBOX_PROTOCOL_VERSION,
				       .stripes = stripes,
				       .stripe_size = sizeof(struct debox_wrap_stripe) };
	struct iovec iov = { &hello, sizeof hello };
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c };
	struct cmsghdr *h;
	long n;

	memset(&c, 0, sizeof c);
	h = CMSG_FIRSTHDR(&msg);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof memfd);
	memcpy(CMSG_DATA(h), &memfd, sizeof memfd);
	do
		n = sys_call(SYS_sendmsg, fd, &msg, MSG_NOSIGNAL);
	while (n == -EINTR);
	return n;
}

/* A new area for this process. With the lock held. */
static int area_make(int32_t pid)
{
	struct debox_wrap_header *area;
	uint32_t stripes = stripes_allowed();
	size_t bytes = AREA_BYTES(stripes);
	long memfd, p;
	int fd;

	if (collect.fd >= 0) {
		/* The parent's connection must not live on in its child. */
		sys_call(SYS_close, collect.fd);
		collect.fd = -1;
	}
	collect.area = NULL;
	memfd = sys_call(SYS_memfd_create, "debox-wrap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (sys_failed(memfd))
		return (int)memfd;
	if (!stripes) {
		/* The collector is told, and tells the user. */
		fd = debox_private_connect(collect_path);
		if (fd >= 0) {
			area_send(fd, (int)memfd, 0);
			sys_call(SYS_close, fd);
		}
		sys_call(SYS_close, memfd);
		return -EFBIG;
	}
	p = sys_call(SYS_ftruncate, memfd, bytes);
	if (!sys_failed(p))
		p = sys_call(SYS_fcntl, memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	if (!sys_failed(p))
		p = sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_NORESERVE, memfd, 0);
	if (sys_failed(p)) {
		sys_call(SYS_close, memfd);
		return (int)p;
	}
	area = (struct debox_wrap_header *)p;
	sys_call(SYS_madvise, area, bytes, MADV_DONTFORK);
	area->version = DEBOX_PROTOCOL_VERSION;
	area->pid = (uint32_t)pid;
	area->measured = debox_status() == DEBOX_STATUS_MEASURED;
	debox_why(area->why, sizeof area->why);
	area->magic = DEBOX_COLLECT_MAGIC;
	fd = debox_private_connect(collect_path);
	p = fd < 0 ? fd : area_send(fd, (int)memfd, stripes);
	sys_call(SYS_close, memfd);
	if (sys_failed(p)) {
		if (fd >= 0)
			sys_call(SYS_close, fd);
		sys_call(SYS_munmap, area, bytes);
		return (int)p;
	}
	collect.fd = fd;
	collect.area = area;
	collect.stripes = stripes;
	collect.pid = pid;
	return 0;
}

static struct debox_wrap_stripe *stripe_at(uint32_t i)
{
	return (struct debox_wrap_stripe *)(void *)((char *)collect.area + DEBOX_PAGE_SIZE) + i;
}

/* A stripe for this thread; NULL: its calls are not counted. */
static struct debox_wrap_stripe *stripe_claim(struct debox_thread *t)
{
	struct debox_wrap_stripe *found = NULL;
	int32_t pid = (int32_t)sys_call(SYS_getpid);
	uint64_t all = ~0ull, mask;

	sys_call(SYS_rt_sigprocmask, SIG_BLOCK, &all, &mask, sizeof mask);
	for (;;) {
		uint32_t owner = __atomic_load_n(&collect.lock, __ATOMIC_RELAXED);

		/* The lock holds the pid, so that one inherited from a parent's
		 * other thread is known for what it is. */
		if (owner != (uint32_t)pid &&
		    __atomic_compare_exchange_n(&collect.lock, &owner, (uint32_t)pid, 0,
						__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			break;
		sys_call(SYS_sched_yield);
	}
	if (collect.pid != pid && collect.failed_pid != pid && area_make(pid))
		collect.failed_pid = pid;
	if (collect.pid == pid) {
		for (uint32_t i = 0; i < collect.stripes && !found; i++) {
			uint32_t nobody = 0;

			if (__atomic_compare_exchange_n(&stripe_at(i)->owner_tid, &nobody,
							t->hot.tid, 0, __ATOMIC_ACQUIRE,
							__ATOMIC_RELAXED))
				found = stripe_at(i);
		}
		if (!found)
			__atomic_fetch_add(&collect.area->threads_lost, 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&collect.lock, 0, __ATOMIC_RELEASE);
	t->collect_stripe = found;
	memset(t->collect_rows, 0, sizeof t->collect_rows);
	t->collect_state = 1;
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, sizeof mask);
	return found;
}

uint32_t debox_collect_restrict_(uint32_t what)
{
	struct debox_thread *t;
	uint32_t before = debox_restricted_;

	if (!debox_collecting_)
		return __atomic_fetch_or(&debox_restricted_, what, __ATOMIC_RELAXED);
	/* While it is still allowed: this thread's slot and counters. */
	if (!before) {
		t = debox_private_thread();
		if (t && !t->vfork_live && !t->collect_state)
			stripe_claim(t);
	}
	/* In a forked child that has counted nothing this is the parent's, and
	 * not mapped. */
	if (collect.area && collect.pid == (int32_t)sys_call(SYS_getpid))
		__atomic_fetch_or(&collect.area->restricted, what, __ATOMIC_RELAXED);
	return __atomic_fetch_or(&debox_restricted_, what, __ATOMIC_RELAXED);
}

static struct debox_wrap_row *row_find(struct debox_wrap_stripe *s, int nr, uint64_t call_site)
{
	uint64_t key = 1ull << 63 | (uint32_t)nr;
	uint64_t hash = (call_site ^ (uint64_t)(uint32_t)nr << 48) * 0x9e3779b97f4a7c15ull;
	uint32_t i = (uint32_t)(hash >> 56) % DEBOX_WRAP_ROWS;

	for (uint32_t k = 0; k < DEBOX_WRAP_ROWS; k++) {
		struct debox_wrap_row *r = &s->rows[(i + k) % DEBOX_WRAP_ROWS];

		if (r->used == key && r->call_site == call_site)
			return r;
		if (!r->used) {
			/* A signal handler may take the same row: it is then found
			 * taken by something else, or by the same call. */
			r->call_site = call_site;
			DEBOX_BARRIER_();
			r->used = key;
			s->rows_used++;
			return r;
		}
	}
	return NULL;
}

#define ADOPTED 0x61646f70746564ull /* marks spare_[0] */

struct adopted_counts {
	uint64_t blocked_ns, runq_ns, irq_ns, outside_ns;
	uint32_t minor, major, nvcsw, nivcsw;
};

/* What the kernel side has put down so far for the bracket that is open. */
static struct adopted_counts bracket_counts(const struct debox_thread *t)
{
	const volatile struct debox_info *b =
		&t->hot.record->bank[t->depth % DEBOX_BANKS].info;
	struct adopted_counts c;

	memset(&c, 0, sizeof c);
	if (t->measured && b->call_seq == t->hot.control->open_seq) {
		c.blocked_ns = b->blocked_ns;
		c.runq_ns = b->runq_ns;
		c.irq_ns = b->irq_ns;
		c.outside_ns = b->outside_ns;
		c.minor = b->minor_faults;
		c.major = b->major_faults;
		c.nvcsw = b->nvcsw;
		c.nivcsw = b->nivcsw;
	}
	return c;
}

static __thread struct adopted_counts adopted_before __attribute__((tls_model("initial-exec")));

void debox_collect_adopted_(struct debox_frame *f)
{
	struct debox_thread *t = (struct debox_thread *)(void *)debox_self_v1_;

	f->spare_[0] = 0;
	if (!t || !t->hot.live || !t->hot.top)
		return;
	adopted_before = bracket_counts(t);
	f->spare_[0] = ADOPTED;
	f->spare_[1] = debox_private_stamp();
}

static void row_add(struct debox_wrap_row *row, const struct debox_private_counts *c, int64_t ret)
{
	row->count++;
	row->errors += (uint64_t)ret > -4096ull;
	row->wall_ns += c->wall_ns;
	if (c->wall_ns > row->max_ns)
		row->max_ns = c->wall_ns;
	row->hist[debox_bucket_(c->wall_ns)]++;
	row->blocked_ns += c->blocked_ns;
	row->runq_ns += c->runq_ns;
	row->irq_ns += c->irq_ns;
	row->minor_faults += c->minor_faults;
	row->major_faults += c->major_faults;
	row->nvcsw += c->nvcsw;
	row->nivcsw += c->nivcsw;
}

void debox_collect_slow_(struct debox_frame *f, int nr, uint64_t call_site, int64_t ret)
{
	struct debox_thread *t = (struct debox_thread *)(void *)debox_self_v1_;
	struct debox_private_counts c;
	struct debox_wrap_stripe *s;
	struct debox_wrap_row *row;

	if (!t || !t->hot.live)
		return;
	if (f->hot_) {
		const struct debox_entry_ *e = t->hot.last;

		if (f->hot_ != &t->hot || !e || e->seq != f->seq_)
			return;
		if (e->stamp > debox_collect_again_)
			debox_collect_rate_ = debox_private_rate(&debox_collect_again_);
		if (e->flags & ~ENTRY_UNMEASURED) {
			debox_private_count(t, e, &c);
		} else {
			memset(&c, 0, sizeof c);
			c.wall_ns = (uint64_t)(((unsigned __int128)e->span * debox_collect_rate_) >> 32);
		}
	} else {
		struct adopted_counts now;
		uint64_t span;

		if (f->spare_[0] != ADOPTED)
			return;
		now = bracket_counts(t);
		span = debox_ticks_(f->spare_[1], debox_private_stamp());
		memset(&c, 0, sizeof c);
		c.wall_ns = (uint64_t)(((unsigned __int128)span * debox_collect_rate_) >> 32);
		c.blocked_ns = now.blocked_ns - adopted_before.blocked_ns;
		c.runq_ns = now.runq_ns - adopted_before.runq_ns;
		c.irq_ns = now.irq_ns - adopted_before.irq_ns;
		c.minor_faults = now.minor - adopted_before.minor;
		c.major_faults = now.major - adopted_before.major;
		c.nvcsw = now.nvcsw - adopted_before.nvcsw;
		c.nivcsw = now.nivcsw - adopted_before.nivcsw;
		now.outside_ns -= adopted_before.outside_ns;
		if (now.outside_ns < c.wall_ns)
			c.wall_ns -= now.outside_ns;
	}
	s = t->collect_stripe;
	if (!s) {
		if (t->collect_state || debox_restricted_)
			return;
		s = stripe_claim(t);
		if (!s)
			return;
	}
	if (c.stale)
		s->stale++;
	row = row_find(s, nr, call_site);
	if (!row) {
		s->dropped++;
		s->dropped_ns += c.wall_ns;
		return;
	}
	row_add(row, &c, ret);
	*debox_collect_place_(t, nr, call_site) = row;
}
