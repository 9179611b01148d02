/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How do a process and its threads get at their slots, and lose them again?
 *
 * The process asks the broker for a segment of slots; the kernel side binds
 * threads to slots, also those that are born later. A thread finds its slot by
 * its id at its first call. Everything here runs with all signals blocked and
 * calls the kernel directly, so that it may run inside a signal handler or
 * inside an interposed libc function.
 */
#include "internal.h"
#include "own_call.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#define SEGMENT_BYTES ((size_t)DEBOX_SEGMENT_SLOTS * DEBOX_PAGE_SIZE)
#define SHARED_BYTES (DEBOX_PAGE_SIZE + (size_t)DEBOX_SITES_MAX * sizeof(struct debox_site))
/* A broker that does not answer for so long is taken for hung. */
#define REPLY_TIMEOUT_S 5
/* Above what programs number by hand or sweep over (select, close loops). */
#define FD_FLOOR 512

_Static_assert(sizeof(struct debox_record) == DEBOX_PAGE_SIZE, "a record page");
_Static_assert(sizeof(struct debox_control) == DEBOX_PAGE_SIZE, "a control page");

__thread struct debox_hot_ *debox_self_v1_;
/* Of the mapping behind debox_self_v1_; not in it, since a fork wipes that. */
static __thread size_t self_bytes;
static __thread uint32_t self_ended;

static const uint32_t word_live = 1; /* hot.alive with nobody to die */
static const uint32_t word_dead = 0; /* hot.alive to see every call end */

struct segment {
	struct debox_record *records;
	struct debox_control *controls;
};

/*
 * Plain memory: a forked child finds its parent's copy and starts over, which
 * it knows by the guard page.
 */
static struct {
	uint32_t lock; /* futex: 0 free, 1 held, 2 held and waited for */
	uint32_t opened;
	uint32_t attached; /* the broker was asked (with or without success) */
	uint32_t status;
	uint32_t key_made;
	pthread_key_t key;
	uint32_t max_sleeps;
	uint32_t history;
	uint32_t flags;
	uint32_t unslotted; /* threads that found no slot */
	char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	int fd;
	uint64_t fd_ino;
	uint64_t features;
	uint32_t segments; /* in use */
	uint32_t mapped;   /* address ranges that exist */
	uint32_t hint;     /* where the last thread was found */
	struct segment segment[SEGMENTS_MAX];
	struct debox_shared *shared;
	uint32_t alive_offset; /* of it, as it was when it was judged */
	struct debox_thread *threads;
	struct debox_trace_map trace;          /* base NULL: no call trace */
	int trace_err;                         /* why not */
	struct debox_chain *chains;            /* a copy; its addresses stay. The first is number 1 */
	uint32_t chains_known;                 /* so many are in it */
	int chains_err;                        /* why none can be asked for */
	struct debox_trace_request trace_wish; /* size 0: nobody has asked yet */
	char why[512];
} process = { .fd = -1 };

/* One word in a MADV_WIPEONFORK page. */
#define GUARD_FRESH 0u /* never used, or this is a forked child */
#define GUARD_BUSY 1u
#define GUARD_OURS 2u
static uint32_t *guard;

/* Another copy of this library that owns the state; see struct debox_runtime. */
static const struct debox_runtime *elsewhere;
static const struct debox_watch_runtime *elsewhere_watch;
static __thread uint32_t elsewhere_rounds;

/* ------------------------------------------------- signals and the lock */

static void signals_block(uint64_t *old)
{
	uint64_t all = ~0ull;

	sys_call(SYS_rt_sigprocmask, SIG_BLOCK, &all, old, sizeof *old);
}

static void signals_restore(const uint64_t *old)
{
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, old, 0, sizeof *old);
}

static void lock_take(void)
{
	uint32_t seen = 0;

	if (__atomic_compare_exchange_n(&process.lock, &seen, 1, 0, __ATOMIC_ACQUIRE,
					__ATOMIC_RELAXED))
		return;
	while (__atomic_exchange_n(&process.lock, 2, __ATOMIC_ACQUIRE))
		sys_call(SYS_futex, &process.lock, FUTEX_WAIT_PRIVATE, 2, 0);
}

static void lock_give(void)
{
	if (__atomic_exchange_n(&process.lock, 0, __ATOMIC_RELEASE) == 2)
		sys_call(SYS_futex, &process.lock, FUTEX_WAKE_PRIVATE, 1);
}

/* ----------------------------------------------------------------- text */

/* snprintf is not async-signal-safe; this much is enough. */
static void text_add(const char *s)
{
	size_t n = strlen(process.why), room = sizeof process.why - 1 - n, m = strlen(s);

	if (m > room)
		m = room;
	memcpy(process.why + n, s, m);
	process.why[n + m] = 0;
}

static void text_add_number(long v)
{
	char b[24];
	size_t i = sizeof b;
	unsigned long u = v < 0 ? 0ul - (unsigned long)v : (unsigned long)v;

	b[--i] = 0;
	do
		b[--i] = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0)
		b[--i] = '-';
	text_add(b + i);
}

static void text_add_error(long err)
{
	const char *s = strerrordesc_np((int)-err), *name = debox_errno_name_(-err);

	text_add(s ? s : "error");
	text_add(" (");
	if (name) {
		text_add(name);
	} else {
		text_add("errno ");
		text_add_number(-err);
	}
	text_add(")");
}

/* ------------------------------------------------------------ descriptors */

int debox_private_fd_raise(int fd)
{
	struct rlimit64 lim = { 0, 0 };
	long moved = -EINVAL;

	sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &lim);
	if (lim.rlim_cur > FD_FLOOR + 8)
		moved = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FD_FLOOR);
	else if (lim.rlim_cur > 32)
		moved = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, (long)lim.rlim_cur - 16);
	if (sys_failed(moved))
		return fd;
	sys_call(SYS_close, fd);
	return (int)moved;
}

static uint64_t fd_inode(int fd)
{
	struct stat st;

	if (fd < 0 || sys_failed(sys_call(SYS_fstat, fd, &st)) || !S_ISSOCK(st.st_mode))
		return 0;
	return st.st_ino;
}

int debox_private_fd(void)
{
	return __atomic_load_n(&process.fd, __ATOMIC_RELAXED);
}

void debox_private_fd_moved(int fd)
{
	__atomic_store_n(&process.fd, fd, __ATOMIC_RELAXED);
}

int debox_private_connect(const char *path)
{
	struct sockaddr_un to;
	struct timeval patience = { REPLY_TIMEOUT_S, 0 };
	size_t n = strlen(path);
	long fd, err;

	if (n >= sizeof to.sun_path)
		return -ENAMETOOLONG;
	memset(&to, 0, sizeof to);
	to.sun_family = AF_UNIX;
	memcpy(to.sun_path, path, n);
	/* "@name" is a name without a file, as in ss(8) and systemd. */
	if (path[0] == '@')
		to.sun_path[0] = 0;
	fd = sys_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sys_failed(fd))
		return (int)fd;
	fd = debox_private_fd_raise((int)fd);
	sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	do
		err = sys_call(SYS_connect, fd, &to,
			       path[0] == '@' ? offsetof(struct sockaddr_un, sun_path) + n :
						sizeof to);
	while (err == -EINTR);
	if (sys_failed(err)) {
		sys_call(SYS_close, fd);
		return (int)err;
	}
	return (int)fd;
}

/* Sends one request and takes its reply with `count` descriptors, up to three. */
static long broker_ask(int fd, const struct debox_request *req, struct debox_reply *rep, int fds[3],
		       int count)
{
	struct iovec iov = { (void *)(uintptr_t)req, req->size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	union {
		struct cmsghdr align;
		/* Room for credentials, too: the socket may be set to pass them. */
		char room[CMSG_SPACE(3 * sizeof(int)) + CMSG_SPACE(32)];
	} c;
	int got = 0;
	long n;

	fds[0] = fds[1] = fds[2] = -1;
	memset(rep, 0, sizeof *rep);
	do
		n = sys_call(SYS_sendmsg, fd, &msg, MSG_NOSIGNAL);
	while (n == -EINTR);
	if (sys_failed(n))
		return n;
	iov.iov_base = rep;
	iov.iov_len = sizeof *rep;
	memset(&msg, 0, sizeof msg);
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = &c;
	msg.msg_controllen = sizeof c;
	do
		n = sys_call(SYS_recvmsg, fd, &msg, MSG_CMSG_CLOEXEC);
	while (n == -EINTR);
	if (sys_failed(n))
		return n == -EAGAIN ? -ETIMEDOUT : n;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&msg); h; h = CMSG_NXTHDR(&msg, h)) {
		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int f;

			memcpy(&f, CMSG_DATA(h) + i * sizeof f, sizeof f);
			if (got < 3)
				fds[got++] = f;
			else
				sys_call(SYS_close, f);
		}
	}
	rep->text[sizeof rep->text - 1] = 0;
	if ((size_t)n < offsetof(struct debox_reply, text))
		return n ? -EPROTO : -ECONNRESET;
	if (rep->status < 0)
		return rep->status;
	if (rep->version != DEBOX_PROTOCOL_VERSION)
		return -EPROTONOSUPPORT;
	return got == count && rep->type == req->type ? 0 : -EPROTO;
}

static void fds_close(const int fds[3])
{
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			sys_call(SYS_close, fds[i]);
}

/* ---------------------------------------------------------------- segments */

static void *map_at(void *where, size_t len, int prot, int fd)
{
	long p = sys_call(SYS_mmap, where, len, prot,
			  (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED) |
				  (where ? MAP_FIXED : 0),
			  fd, 0);

	return sys_failed(p) ? NULL : (void *)p;
}

/* Reads once what the other side may be changing. */
#define ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)

/*
 * Maps one more segment. Address ranges are never given back: another thread
 * may be between looking at `live` and storing to its control page. A range
 * whose segment is gone holds anonymous memory and is used for the next one.
 */
static long segment_map(const int fds[3])
{
	struct segment *s;
	struct debox_record *r;
	struct debox_control *c;
	int old = process.segments < process.mapped;

	if (process.segments == SEGMENTS_MAX)
		return -ENOSPC;
	if (!debox_fd_lasting_(fds[0], SEGMENT_BYTES) ||
	    !debox_fd_lasting_(fds[1], SEGMENT_BYTES) || !debox_fd_lasting_(fds[2], SHARED_BYTES))
		return -EPROTO;
	s = &process.segment[process.segments];
	r = map_at(old ? s->records : NULL, SEGMENT_BYTES, PROT_READ, fds[0]);
	if (!r)
		return -ENOMEM;
	c = map_at(old ? s->controls : NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, fds[1]);
	if (!c) {
		if (old)
			map_at(r, SEGMENT_BYTES, PROT_READ, -1);
		else
			sys_call(SYS_munmap, r, SEGMENT_BYTES);
		return -ENOMEM;
	}
	if (!process.shared || !process.segments) {
		struct debox_shared *sh = map_at(process.shared, SHARED_BYTES, PROT_READ, fds[2]);
		uint32_t alive = sh ? ONCE(sh->alive_offset) : 0;

		if (!sh || sh->magic != DEBOX_SHARED_MAGIC ||
		    sh->abi_version != DEBOX_ABI_VERSION ||
		    sh->site_entry_size != sizeof(struct debox_site) ||
		    alive > DEBOX_PAGE_SIZE - 4 || alive % 4) {
			map_at(r, SEGMENT_BYTES, PROT_READ, -1);
			map_at(c, SEGMENT_BYTES, PROT_READ | PROT_WRITE, -1);
			if (sh)
				process.shared = map_at(sh, SHARED_BYTES, PROT_READ, -1);
			s->records = r;
			s->controls = c;
			if (!old)
				process.mapped++;
			return sh ? -EPROTONOSUPPORT : -ENOMEM;
		}
		process.shared = sh;
		process.alive_offset = alive;
		/* A forked child has its own; it must not even see its parent's. */
		sys_call(SYS_madvise, sh, SHARED_BYTES, MADV_DONTFORK);
	}
	sys_call(SYS_madvise, r, SEGMENT_BYTES, MADV_DONTFORK);
	sys_call(SYS_madvise, c, SEGMENT_BYTES, MADV_DONTFORK);
	s->records = r;
	s->controls = c;
	if (!old)
		process.mapped++;
	process.segments++;
	return 0;
}

static void trace_drop(void);

static void segments_drop(void)
{
	for (uint32_t i = 0; i < process.segments; i++) {
		map_at(process.segment[i].records, SEGMENT_BYTES, PROT_READ, -1);
		map_at(process.segment[i].controls, SEGMENT_BYTES, PROT_READ | PROT_WRITE, -1);
	}
	if (process.shared && process.segments)
		map_at(process.shared, SHARED_BYTES, PROT_READ, -1);
	process.segments = 0;
	process.hint = 0;
	trace_drop();
}

/* -------------------------------------------------------------------- trace */

/* Most buffers that a broker makes: two for each of 4,096 threads, and those
 * that slowest calls are kept in. */
#define TRACE_BUFFERS_MAX (1u << 14)
/* The table, and behind it a page of zeros: whatever stands in the table, each
 * name in it ends. */
#define TABLE_BYTES ((DEBOX_TRACE_TABLE_SIZE + 2 * DEBOX_PAGE_SIZE - 1) & ~(size_t)(DEBOX_PAGE_SIZE - 1))
#define TRACE_BYTES(m) (((size_t)(m)->buffers * (m)->stride + DEBOX_PAGE_SIZE - 1) & ~(size_t)(DEBOX_PAGE_SIZE - 1))

/* Its addresses stay: another thread may be reading there. */
static void trace_drop(void)
{
	struct debox_trace_map *m = &process.trace;

	if (!m->base)
		return;
	map_at((void *)(uintptr_t)m->base, TRACE_BYTES(m), PROT_READ, -1);
	map_at((void *)(uintptr_t)m->table, TABLE_BYTES, PROT_READ, -1);
	memset(m, 0, sizeof *m);
}

static long trace_map(const int fds[3])
{
	struct debox_trace_map m = { 0 };
	struct debox_trace_table *table;
	long err = -ENOMEM;

	if (!debox_fd_lasting_(fds[2], DEBOX_TRACE_TABLE_SIZE))
		return -EPROTO;
	table = map_at(NULL, TABLE_BYTES, PROT_READ, -1);
	if (!table)
		return -ENOMEM;
	if (!map_at(table, DEBOX_TRACE_TABLE_SIZE, PROT_READ, fds[2]))
		goto out;
	m.table = table;
	m.buffers = ONCE(table->buffers);
	m.stride = ONCE(table->stride);
	m.capacity = ONCE(table->capacity);
	err = -EPROTONOSUPPORT;
	if (table->magic != DEBOX_TRACE_MAGIC || !m.buffers || m.buffers > TRACE_BUFFERS_MAX ||
	    m.capacity > DEBOX_TRACE_MAX ||
	    m.stride != sizeof(struct debox_trace) + m.capacity * sizeof(struct debox_trace_entry))
		goto out;
	err = -EPROTO;
	if (!debox_fd_lasting_(fds[0], TRACE_BYTES(&m)))
		goto out;
	err = -ENOMEM;
	m.base = map_at(NULL, TRACE_BYTES(&m), PROT_READ, fds[0]);
	if (!m.base)
		goto out;
	sys_call(SYS_madvise, m.base, TRACE_BYTES(&m), MADV_DONTFORK);
	sys_call(SYS_madvise, table, TABLE_BYTES, MADV_DONTFORK);
	trace_drop();
	process.trace = m;
	return 0;
out:
	sys_call(SYS_munmap, table, TABLE_BYTES);
	return err;
}

/* Asks for the trace that the program wants; the lock is held. */
static void trace_ask(void)
{
	struct debox_trace_request *req = &process.trace_wish;
	struct debox_reply rep;
	int fds[3];
	long err;

	if (process.status != DEBOX_STATUS_MEASURED || process.fd < 0 ||
	    fd_inode(process.fd) != process.fd_ino) {
		process.trace_err = -ENOTCONN;
		return;
	}
	err = broker_ask(process.fd, &req->head, &rep, fds, 3);
	if (!err)
		err = trace_map(fds);
	fds_close(fds);
	process.trace_err = (int)err;
	if (err) {
		process.why[0] = 0;
		text_add("no call trace: ");
		if (rep.status < 0 && rep.text[0])
			text_add(rep.text);
		else
			text_add_error(err);
	}
}

/* ------------------------------------------------------------------- chains */

static int process_stale(void);

#define CHAINS_BYTES ((size_t)DEBOX_CHAINS_MAX * sizeof(struct debox_chain))

static void chains_forget(void)
{
	process.chains_known = 0;
	process.chains_err = process.flags & DEBOX_OPEN_CHAINS ? 0 : -EOPNOTSUPP;
}

/* Read and not mapped: what was judged is what is used, whatever becomes of the file. */
static long chains_copy(int fd)
{
	size_t have = (size_t)process.chains_known * sizeof(struct debox_chain);
	long n = 0;

	if (!debox_fd_memory_(fd))
		return -EPROTO;
	if (!process.chains)
		process.chains = map_at(NULL, CHAINS_BYTES, PROT_READ | PROT_WRITE, -1);
	if (!process.chains)
		return -ENOMEM;
	while (have < CHAINS_BYTES) {
		n = sys_call(SYS_pread64, fd, (char *)process.chains + have, CHAINS_BYTES - have, have);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	process.chains_known = (uint32_t)(have / sizeof(struct debox_chain));
	return sys_failed(n) ? -EPROTO : 0;
}

/* Asks for the links that are not known yet; the lock is held. */
static long chains_ask(void)
{
	struct debox_request req = { .size = sizeof req,
				     .version = DEBOX_PROTOCOL_VERSION,
				     .type = DEBOX_MSG_CHAINS };
	struct debox_reply rep;
	int fds[3];
	long err;

	if (process.chains_err)
		return process.chains_err;
	if (process.fd < 0 || fd_inode(process.fd) != process.fd_ino || process_stale())
		return -ENOTCONN;
	err = broker_ask(process.fd, &req, &rep, fds, 1);
	if (!err)
		err = chains_copy(fds[0]);
	fds_close(fds);
	/* Who does not answer, or not what was asked, is not asked again. */
	if (err && rep.status >= 0 && err != -ENOMEM)
		process.chains_err = (int)err;
	return err;
}

/* The lock is held. */
static int chain_follow(uint32_t chain, struct debox_numbered_link *out)
{
	int n = 0;

	if (process.status != DEBOX_STATUS_MEASURED)
		return -ENOTCONN;
	if (process.chains_err == -EOPNOTSUPP)
		return -EOPNOTSUPP;
	if (!chain || chain >= DEBOX_CHAINS_MAX)
		return -ENOENT;
	if (chain > process.chains_known) {
		long err = chains_ask();

		if (err)
			return (int)err;
		if (chain > process.chains_known)
			return -ENOENT;
	}
	while (chain) {
		const struct debox_chain *link = &process.chains[chain - 1];

		if (link->type == DEBOX_CHAIN_NONE)
			return n ? -EPROTO : -ENOENT;
		if (n == (int)DEBOX_CHAIN_DEPTH_MAX)
			return -EPROTO;
		out[n].number = chain;
		out[n++].link = *link;
		/* A link leads only to one that was there before it. */
		if (link->parent >= chain)
			return -EPROTO;
		chain = link->parent;
	}
	return n;
}

static void text_add_way_in(const char *path, int err)
{
	char group[DEBOX_GROUP_NAME_LEN];

	if (err != -EACCES && err != -EPERM) {
		text_add(". Start the broker as root (deboxd), or set "
			 "DEBOX_SOCKET to the socket of one that runs.");
	} else if (debox_socket_group_(path, group)) {
		text_add(". It is for members of the group ");
		text_add(group);
		text_add(": `sudo usermod -aG ");
		text_add(group);
		text_add(" $USER`, then log in again.");
	} else {
		text_add(". Ask the administrator for access to the socket.");
	}
}

static void fd_drop(void)
{
	/* The program may have closed it and opened something else there. */
	if (process.fd >= 0 && fd_inode(process.fd) == process.fd_ino)
		sys_call(SYS_close, process.fd);
	process.fd = -1;
}

/* One more segment from the broker, over a new connection if need be. */
static long segment_ask(uint32_t *threads)
{
	struct debox_request req = { .size = sizeof req,
				     .version = DEBOX_PROTOCOL_VERSION,
				     .type = DEBOX_MSG_SLOTS,
				     .flags = process.flags & DEBOX_OPEN_IRQ ? DEBOX_REQ_IRQ : 0 };
	struct debox_reply rep;
	const char *path = process.socket_path;
	int fds[3];
	long err;

	process.why[0] = 0;
	if (process.fd < 0 || fd_inode(process.fd) != process.fd_ino) {
		int fd = debox_private_connect(path);

		if (fd < 0) {
			text_add("no broker: cannot connect to ");
			text_add(path);
			text_add(": ");
			text_add_error(fd);
			text_add_way_in(path, fd);
			text_add(" Wall times only.");
			return fd;
		}
		process.fd_ino = fd_inode(fd);
		process.fd = fd;
	}
	if (process.flags & DEBOX_OPEN_CHAINS && process.chains_err != -EOPNOTSUPP)
		req.flags |= DEBOX_REQ_CHAINS;
	err = broker_ask(process.fd, &req, &rep, fds, 3);
	if (rep.status == -EINVAL && req.flags) {
		/* A broker that does not know of chains, or of interrupts. */
		process.chains_err = -EOPNOTSUPP;
		req.flags = 0;
		fds_close(fds);
		err = broker_ask(process.fd, &req, &rep, fds, 3);
	}
	if (!err && process.flags & DEBOX_OPEN_CHAINS && process.chains_err == -EOPNOTSUPP)
		text_add("records do not say what sleeps waited for: the broker is older than this "
			 "library. Update it.");
	if (!err) {
		process.features = rep.features;
		/* Somebody else's wish. */
		if (!(process.flags & DEBOX_OPEN_IRQ))
			process.features &= ~DEBOX_FEATURE_IRQ;
		*threads = rep.threads;
		err = segment_map(fds);
	}
	fds_close(fds);
	if (err) {
		text_add("the broker at ");
		text_add(path);
		text_add(" gave no slots: ");
		if (rep.status < 0 && rep.text[0]) {
			text_add(rep.text);
		} else {
			text_add_error(err);
			if (err == -EPROTONOSUPPORT)
				text_add(". Broker and libdebox are of different versions: "
					 "update the older one");
			else if (err == -ENOMEM)
				text_add(". The process has no address space left for slots: "
					 "raise RLIMIT_AS");
			else if (err == -ETIMEDOUT)
				text_add(". It did not answer: restart it");
			else if (err == -EPROTO)
				text_add(". What answers there is not DeBox's broker: set "
					 "DEBOX_SOCKET to the right socket");
			text_add(".");
		}
		text_add(" Wall times only.");
		/* A refusal leaves the connection, and with it every slot that the
		 * process already has; a broken conversation cannot go on. */
		if (rep.status >= 0 && err != -ENOMEM && err != -ENOSPC)
			fd_drop();
	}
	return err;
}

static void process_attach(void)
{
	uint32_t threads = 0;

	process.unslotted = 0;
	process.features = 0;
	chains_forget();
	process.status = segment_ask(&threads) ? DEBOX_STATUS_WALL_ONLY : DEBOX_STATUS_MEASURED;
	/* A forked child, or another broker: the wish is still there. */
	if (process.trace_wish.head.size)
		trace_ask();
	__atomic_store_n(&process.attached, 1, __ATOMIC_RELEASE);
}

static int process_stale(void)
{
	const char *page = (const char *)process.shared;

	if (process.status != DEBOX_STATUS_MEASURED || !page)
		return 0;
	return debox_word_dead_(__atomic_load_n(
		(const uint32_t *)(const void *)(page + process.alive_offset),
		__ATOMIC_RELAXED));
}

/* ------------------------------------------------------------------- fork */

/*
 * Finds out whether this is a forked child that has not run here yet, and if
 * so forgets what it inherited. Signals are blocked; several threads of the
 * child may arrive at once.
 */
static void fork_check(void)
{
	uint32_t state = GUARD_FRESH;

	if (__builtin_expect(__atomic_load_n(guard, __ATOMIC_ACQUIRE) == GUARD_OURS, 1))
		return;
	if (!__atomic_compare_exchange_n(guard, &state, GUARD_BUSY, 0, __ATOMIC_ACQUIRE,
					 __ATOMIC_ACQUIRE)) {
		while (__atomic_load_n(guard, __ATOMIC_ACQUIRE) != GUARD_OURS)
			sys_call(SYS_sched_yield);
		return;
	}
	/* Held by a thread of the parent, for ever. */
	process.lock = 0;
	/* The parent's slots live as long as any copy of its connection. */
	fd_drop();
	process.attached = 0;
	process.segments = process.mapped = 0;
	process.hint = 0;
	process.shared = NULL;
	process.threads = NULL;
	memset(&process.trace, 0, sizeof process.trace);
	process.trace_err = 0;
	process.features = 0;
	process.why[0] = 0;
	__atomic_store_n(guard, GUARD_OURS, __ATOMIC_RELEASE);
}

static int guard_make(void)
{
	void *p;

	if (guard)
		return 0;
	p = map_at(NULL, DEBOX_PAGE_SIZE, PROT_READ | PROT_WRITE, -1);
	if (!p)
		return -ENOMEM;
	/* Linux 4.14. Without it a child could not tell: then do not record. */
	if (sys_failed(sys_call(SYS_madvise, p, DEBOX_PAGE_SIZE, MADV_WIPEONFORK))) {
		sys_call(SYS_munmap, p, DEBOX_PAGE_SIZE);
		return -ENOSYS;
	}
	*(uint32_t *)p = GUARD_OURS;
	guard = p;
	return 0;
}

/* ---------------------------------------------------------------- threads */

static uint64_t round_page(uint64_t n)
{
	return (n + DEBOX_PAGE_SIZE - 1) & ~(uint64_t)(DEBOX_PAGE_SIZE - 1);
}

static uint64_t events_bytes(uint32_t history)
{
	uint64_t n = (uint64_t)history * 512;

	return round_page(n < 4 * sizeof(struct event) ? 4 * sizeof(struct event) : n);
}

static void list_remove(struct debox_thread *t)
{
	if (t->prev)
		t->prev->next = t->next;
	else if (process.threads == t)
		process.threads = t->next;
	if (t->next)
		t->next->prev = t->prev;
	t->next = t->prev = NULL;
}

/* The slot of thread `tid`, if the kernel side has given it one. */
static int slot_find(uint32_t tid, uint32_t *segment, uint32_t *slot)
{
	uint32_t n = process.segments * DEBOX_SEGMENT_SLOTS;

	for (uint32_t k = 0; k < n; k++) {
		uint32_t i = process.hint + k;

		if (i >= n)
			i -= n;
		const struct debox_record *r =
			&process.segment[i / DEBOX_SEGMENT_SLOTS].records[i % DEBOX_SEGMENT_SLOTS];

		if (__atomic_load_n(&r->tid, __ATOMIC_ACQUIRE) == tid) {
			process.hint = i;
			*segment = i / DEBOX_SEGMENT_SLOTS;
			*slot = i % DEBOX_SEGMENT_SLOTS;
			return 1;
		}
	}
	return 0;
}

static uint64_t max3(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t m = a > b ? a : b;

	return m > c ? m : c;
}

static char *private_pages(struct debox_thread *t)
{
	return t->events + t->events_size;
}

/* Sends the thread's stamps to pages of its own: nobody measures. */
static void thread_unmeasured(struct debox_thread *t)
{
	struct debox_control *c = (struct debox_control *)(void *)private_pages(t);
	struct debox_record *r = (struct debox_record *)(void *)(private_pages(t) + DEBOX_PAGE_SIZE);

	r->tid = t->hot.tid;
	c->open_seq = 0;
	c->level = 0;
	t->measured = 0;
	t->features = 0;
	t->broker_alive = &word_live;
	t->hot.control = c;
	t->hot.record = r;
	/* Every end of a call looks closer, and marks the entry. */
	debox_thread_watch_(t);
}

static uint32_t watching; /* WATCHING_* */

uint32_t debox_watching_(void)
{
	return elsewhere ? elsewhere->watching() : __atomic_load_n(&watching, __ATOMIC_RELAXED);
}

void debox_watching_set_(uint32_t flags)
{
	__atomic_store_n(&watching, flags, __ATOMIC_RELEASE);
}

/* Chooses how much of the end of a call may stay inline. */
void debox_thread_watch_(struct debox_thread *t)
{
	int every = t->compat || t->trace_limit || !t->measured ||
		    (debox_watching_() & WATCHING_EVERY);

	t->hot.alive = every ? &word_dead : t->broker_alive;
}

/* More calls than any thread can have made. */
#define SEQ_MAX (1ull << 62)

static void thread_bind(struct debox_thread *t)
{
	struct debox_hot_ *h = &t->hot;
	uint32_t segment, slot, tid = h->tid, threads = 0;
	struct debox_control *c;
	const struct debox_record *r;
	uint64_t seq;
	int found;

	if (process.status != DEBOX_STATUS_MEASURED || process_stale()) {
		thread_unmeasured(t);
		return;
	}
	found = slot_find(tid, &segment, &slot);
	/* Born before the broker knew us, or all slots were in use. Others of that
	 * kind may have got all that came with a new segment: then there are fewer
	 * of them. */
	while (!found && !segment_ask(&threads) && threads) {
		found = slot_find(tid, &segment, &slot);
		if (!found && threads == 1 && process.segments) {
			/* The kernel side counts threads from outside of our pid
			 * namespace. One new slot, one thread without: ours. */
			uint32_t used = 0;

			segment = process.segments - 1;
			for (uint32_t i = 0; i < DEBOX_SEGMENT_SLOTS; i++)
				if (process.segment[segment].records[i].tid) {
					used++;
					slot = i;
				}
			found = used == 1;
			break;
		}
	}
	if (!found) {
		process.unslotted++;
		thread_unmeasured(t);
		return;
	}
	c = &process.segment[segment].controls[slot];
	r = &process.segment[segment].records[slot];
	seq = max3(h->seq, debox_bank_seq_(&r->bank[0].info), debox_bank_seq_(&r->bank[1].info));
	if (seq > SEQ_MAX) {
		process.unslotted++;
		thread_unmeasured(t);
		return;
	}
	h->tid = __atomic_load_n(&r->tid, __ATOMIC_ACQUIRE);
	t->generation = r->generation;
	t->measured = 1;
	t->features = process.features;
	/* The slot's former thread may have died inside a call, and left numbers
	 * in the banks that ours must not meet. */
	c->open_seq = 0;
	c->level = 0;
	c->nr = -1;
	c->call_site = 0;
	c->flags = 0;
	c->max_sleeps = process.max_sleeps;
	c->max_trace = t->trace_limit;
	t->trace_buffer = NULL;
	h->seq = seq;
	h->control = c;
	h->record = r;
	t->broker_alive = (const uint32_t *)(const void *)((const char *)process.shared +
							   process.alive_offset);
	debox_thread_watch_(t);
}

void debox_trace_free_(struct debox_thread *t)
{
	if (t->trace_copy)
		sys_call(SYS_munmap, t->trace_copy,
			 ((size_t)t->trace_room * sizeof *t->trace_copy + DEBOX_PAGE_SIZE - 1) &
				 ~(size_t)(DEBOX_PAGE_SIZE - 1));
	t->trace_copy = NULL;
	t->trace_room = 0;
	/* What the last call's record says of it is gone too. */
	t->trace_count = 0;
}

static struct debox_thread *thread_make(void)
{
	uint64_t ring = (uint64_t)process.history * sizeof(struct debox_entry_);
	uint64_t events = events_bytes(process.history);
	size_t bytes = DEBOX_RING_OFFSET_ + round_page(ring) + events + 2 * DEBOX_PAGE_SIZE;
	struct debox_thread *t = (struct debox_thread *)(void *)debox_self_v1_;

	if (t && self_bytes != bytes) {
		/* History was resized between close and open, or before a fork. */
		list_remove(t);
		debox_self_v1_ = NULL;
		debox_trace_free_(t);
		sys_call(SYS_munmap, t, self_bytes);
		t = NULL;
	}
	if (!t) {
		t = map_at(NULL, bytes, PROT_READ | PROT_WRITE, -1);
		if (!t)
			return NULL;
		if (sys_failed(sys_call(SYS_madvise, t, bytes, MADV_WIPEONFORK))) {
			sys_call(SYS_munmap, t, bytes);
			return NULL;
		}
		self_bytes = bytes;
	}
	t->events = (char *)t + DEBOX_RING_OFFSET_ + round_page(ring);
	t->events_size = events;
	t->hot.mask = process.history - 1;
	t->hot.tid = (uint32_t)sys_call(SYS_gettid);
	t->pid = (uint32_t)sys_call(SYS_getpid);
	t->hot.top = NULL;
	t->hot.top_flags = 0;
	t->depth = 0;
	return t;
}

struct debox_thread *debox_thread_get_(void)
{
	struct debox_thread *t = (struct debox_thread *)(void *)debox_self_v1_;
	uint64_t mask;

	if (elsewhere) {
		if (self_ended)
			return NULL;
		t = elsewhere->thread();
		debox_self_v1_ = t ? &t->hot : NULL;
		if (t && process.key_made)
			pthread_setspecific(process.key, t);
		return t;
	}
	if (t && t->vfork_live)
		return NULL;
	if (!__atomic_load_n(&process.opened, __ATOMIC_ACQUIRE) || self_ended)
		return NULL;
	signals_block(&mask);
	fork_check();
	lock_take();
	/* A signal handler may have come just before the signals were blocked. */
	t = (struct debox_thread *)(void *)debox_self_v1_;
	if (!process.opened) {
		t = NULL;
	} else if (!t || !t->hot.live) {
		if (!process.attached)
			process_attach();
		t = thread_make();
		if (t) {
			list_remove(t);
			t->next = process.threads;
			if (t->next)
				t->next->prev = t;
			process.threads = t;
			uint64_t before = t->hot.seq;

			thread_bind(t);
			/* Numbers that the bind skipped were never calls. */
			t->history_seen += t->hot.seq - before;
			if (process.key_made)
				pthread_setspecific(process.key, t);
			DEBOX_BARRIER_();
#if defined(__x86_64__)
			t->hot.live = debox_clock_is_tsc_() ? 1 : 2;
#else
			t->hot.live = 1;
#endif
			debox_self_v1_ = &t->hot;
		}
	}
	lock_give();
	signals_restore(&mask);
	return t;
}

struct debox_thread *debox_private_thread(void)
{
	struct debox_hot_ *h = debox_self_v1_;

	return h && h->live ? (struct debox_thread *)(void *)h : debox_thread_get_();
}

/*
 * A thread ends. Other keys' destructors may still make calls: be last, as far
 * as pthreads allow.
 */
static void thread_end(void *p)
{
	struct debox_thread *t = p;
	size_t bytes = self_bytes;
	uint64_t mask;

	if (elsewhere) {
		/* One round before the owner takes the memory away. */
		if (++elsewhere_rounds < PTHREAD_DESTRUCTOR_ITERATIONS - 1) {
			pthread_setspecific(process.key, t);
		} else {
			self_ended = 1;
			debox_self_v1_ = NULL;
		}
		return;
	}
	if (t != (struct debox_thread *)(void *)debox_self_v1_)
		return;
	if (++t->destructor_rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
		pthread_setspecific(process.key, t);
		return;
	}
	signals_block(&mask);
	fork_check();
	self_ended = 1;
	debox_self_v1_ = NULL;
	if (t->hot.live) {
		t->hot.control->open_seq = 0;
		t->hot.live = 0;
	}
	/* Its counters stay; another thread may go on with the stripe. */
	if (t->collect_stripe)
		__atomic_store_n(&((struct debox_wrap_stripe *)t->collect_stripe)->owner_tid, 0,
				 __ATOMIC_RELEASE);
	lock_take();
	list_remove(t);
	lock_give();
	debox_trace_free_(t);
	sys_call(SYS_munmap, t, bytes);
	signals_restore(&mask);
}

/* ------------------------------------------------------------------ vfork */

void *debox_private_vfork_enter(void)
{
	struct debox_thread *t = (struct debox_thread *)(void *)debox_self_v1_;

	if (!t || !t->hot.live)
		return NULL;
	t->vfork_live = t->hot.live;
	t->hot.live = 0;
	return t;
}

void debox_private_vfork_leave(void *cookie)
{
	struct debox_thread *t = cookie;

	if (!t || !t->vfork_live)
		return;
	t->hot.live = t->vfork_live;
	t->vfork_live = 0;
}

/* ------------------------------------------------------------ open, close */

DEBOX_API const struct debox_runtime debox_private_runtime = {
	.size = sizeof(struct debox_runtime),
	.thread_size = sizeof(struct debox_thread),
	.open = debox_open,
	.close = debox_close,
	.status = debox_status,
	.why = debox_why,
	.features = debox_features,
	.is_open = debox_is_open_,
	.thread = debox_private_thread,
	.site_table = debox_site_table_,
	.trace_want = debox_trace_want_,
	.trace_map = debox_trace_map_,
	.chain_links = debox_chain_links_,
	.watching = debox_watching_,
};

const struct debox_watch_runtime *debox_watch_elsewhere_(void)
{
	return elsewhere_watch;
}

/* Not there in a fully static program, and not needed. */
extern void *dlsym(void *restrict, const char *restrict) __attribute__((weak));

__attribute__((constructor)) static void loaded(void)
{
	const struct debox_runtime *r = NULL;
	const struct debox_watch_runtime *w = NULL;

	/* The first pair of the clock, and a key with a low number, whose slot
	 * needs no memory when a signal handler sets it. */
	debox_clock_init_(0);
	if (!process.key_made)
		process.key_made = pthread_key_create(&process.key, thread_end) == 0;
	if (dlsym && !elsewhere) {
		r = dlsym(RTLD_DEFAULT, "debox_private_runtime");
		w = dlsym(RTLD_DEFAULT, "debox_private_watch");
	}
	if (r && r != &debox_private_runtime && r->size == sizeof *r &&
	    r->thread_size == sizeof(struct debox_thread) && w && w->size == sizeof *w) {
		elsewhere = r;
		elsewhere_watch = w;
	}
}

void debox_threads_watch_(void)
{
	uint64_t mask;

	if (elsewhere || !guard)
		return;
	signals_block(&mask);
	fork_check();
	lock_take();
	/* A word that another thread reads: either value is a valid address. */
	for (struct debox_thread *t = process.threads; t; t = t->next)
		debox_thread_watch_(t);
	lock_give();
	signals_restore(&mask);
}

static void threads_silence(void)
{
	for (struct debox_thread *t = process.threads; t; t = t->next)
		__atomic_store_n(&t->hot.live, 0, __ATOMIC_RELEASE);
}

static void process_detach(void)
{
	threads_silence();
	fd_drop();
	segments_drop();
	process.attached = 0;
	process.features = 0;
	process.status = DEBOX_STATUS_CLOSED;
	process.why[0] = 0;
}

static int options_check(const struct debox_options *o)
{
	if (o->size != sizeof *o ||
	    (o->flags & ~(DEBOX_OPEN_CLOCK_GETTIME | DEBOX_OPEN_CHAINS | DEBOX_OPEN_IRQ)) ||
	    o->history > HISTORY_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < sizeof o->reserved / sizeof *o->reserved; i++)
		if (o->reserved[i])
			return -EINVAL;
	if (o->socket_path && strlen(o->socket_path) >= sizeof process.socket_path)
		return -EINVAL;
	return 0;
}

static uint32_t power_of_two(uint32_t n)
{
	uint32_t p = HISTORY_MIN;

	while (p < n)
		p *= 2;
	return p;
}

int debox_open(const struct debox_options *opts)
{
	static const struct debox_options none = { .size = sizeof none };
	uint64_t mask;
	int err;

	if (!opts)
		opts = &none;
	err = options_check(opts);
	if (err)
		return err;
	if (!debox_clock_ready_())
		loaded();
	if (elsewhere) {
		debox_clock_init_((opts->flags & DEBOX_OPEN_CLOCK_GETTIME) != 0);
		return elsewhere->open(opts);
	}
	signals_block(&mask);
	err = guard_make();
	if (err) {
		signals_restore(&mask);
		return err;
	}
	fork_check();
	lock_take();
	process.max_sleeps = opts->max_sleeps == DEBOX_SLEEPS_NONE ? 0 :
			     opts->max_sleeps == 0                 ? DEBOX_SLEEPS_MAX :
			     opts->max_sleeps > DEBOX_SLEEPS_MAX   ? DEBOX_SLEEPS_MAX :
								     opts->max_sleeps;
	/* Slots are made with chains, or without. */
	if (process.opened && (process_stale() || process.status == DEBOX_STATUS_WALL_ONLY ||
			       (opts->flags & ~process.flags & DEBOX_OPEN_CHAINS)))
		process_detach();
	if (!process.attached) {
		process.history = power_of_two(opts->history ? opts->history : HISTORY_DEFAULT);
		process.flags = opts->flags;
		/* Kept: a forked child must not look at an environment that the
		 * program may be changing. */
		const char *path = opts->socket_path;

		if (!path)
			path = secure_getenv(DEBOX_ENV_SOCKET);
		if (!path || !path[0])
			path = DEBOX_SOCKET_PATH;
		if (strlen(path) < sizeof process.socket_path)
			strcpy(process.socket_path, path);
		else
			err = -ENAMETOOLONG;
		debox_clock_init_((opts->flags & DEBOX_OPEN_CLOCK_GETTIME) != 0);
		debox_spliced_find_();
		if (!err)
			process_attach();
	} else {
		for (struct debox_thread *t = process.threads; t; t = t->next)
			if (t->hot.live && !t->compat)
				t->hot.control->max_sleeps = process.max_sleeps;
	}
	if (!err)
		__atomic_store_n(&process.opened, 1, __ATOMIC_RELEASE);
	lock_give();
	signals_restore(&mask);
	if (err)
		return err;
	if (!debox_private_thread())
		return -ENOMEM;
	return 0;
}

int debox_close(void)
{
	uint64_t mask;

	if (elsewhere)
		return elsewhere->close();
	if (!guard)
		return 0;
	signals_block(&mask);
	fork_check();
	lock_take();
	if (process.opened) {
		process_detach();
		__atomic_store_n(&process.opened, 0, __ATOMIC_RELEASE);
	}
	lock_give();
	signals_restore(&mask);
	return 0;
}

int debox_is_open_(void)
{
	if (elsewhere)
		return elsewhere->is_open();
	return (int)__atomic_load_n(&process.opened, __ATOMIC_ACQUIRE);
}

int debox_status(void)
{
	uint64_t mask;
	int status;

	if (elsewhere)
		return elsewhere->status();
	if (!debox_is_open_())
		return DEBOX_STATUS_CLOSED;
	/* In a forked child: attach first. */
	debox_private_thread();
	signals_block(&mask);
	fork_check();
	lock_take();
	status = process_stale() ? DEBOX_STATUS_STALE : (int)process.status;
	lock_give();
	signals_restore(&mask);
	return status;
}

uint64_t debox_features(void)
{
	if (elsewhere)
		return elsewhere->features();
	return debox_status() == DEBOX_STATUS_MEASURED ? process.features : 0;
}

int debox_why(char *buf, size_t len)
{
	static const char closed[] = "debox_open() was not called.";
	static const char stale[] = "the broker is gone: records from now on have wall times only. "
				    "Start it again and call debox_open() once more.";
	int status;
	uint64_t mask;
	const char *text = "";
	size_t n;

	if (elsewhere)
		return elsewhere->why(buf, len);
	status = debox_status();
	signals_block(&mask);
	if (guard)
		fork_check();
	lock_take();
	if (status == DEBOX_STATUS_CLOSED) {
		text = closed;
	} else if (status == DEBOX_STATUS_STALE) {
		text = stale;
	} else {
		if (status == DEBOX_STATUS_MEASURED && process.unslotted && !process.why[0]) {
			text_add_number(process.unslotted);
			text_add(" thread(s) found no slot, though the broker gave a segment: "
				 "wall times only in these. In a container, run the broker in the "
				 "same pid namespace.");
		}
		text = process.why;
	}
	n = strlen(text);
	if (len) {
		size_t m = n < len - 1 ? n : len - 1;

		memcpy(buf, text, m);
		buf[m] = 0;
	}
	lock_give();
	signals_restore(&mask);
	return (int)n;
}

const struct debox_site *debox_site_table_(uint32_t *count)
{
	const struct debox_shared *s;

	if (elsewhere)
		return elsewhere->site_table(count);
	if (!debox_private_thread())
		return NULL;
	s = process.shared;
	if (process.status != DEBOX_STATUS_MEASURED || !s)
		return NULL;
	*count = DEBOX_SITES_MAX;
	return (const struct debox_site *)(const void *)((const char *)s + DEBOX_PAGE_SIZE);
}

int debox_trace_want_(const struct debox_trace_request *wish)
{
	uint64_t mask;
	int err;

	if (elsewhere)
		return elsewhere->trace_want(wish);
	if (!debox_private_thread())
		return -ENOTCONN;
	signals_block(&mask);
	fork_check();
	lock_take();
	if (wish || !process.trace.base) {
		if (wish) {
			process.trace_wish = *wish;
		} else if (!process.trace_wish.head.size) {
			process.trace_wish.head.size = sizeof process.trace_wish;
			process.trace_wish.head.version = DEBOX_PROTOCOL_VERSION;
			process.trace_wish.head.type = DEBOX_MSG_TRACE;
		}
		trace_ask();
		for (struct debox_thread *t = process.threads; t; t = t->next)
			t->trace_buffer = NULL;
	}
	err = process.trace_err;
	lock_give();
	signals_restore(&mask);
	return err;
}

void debox_trace_map_(struct debox_trace_map *out)
{
	uint64_t mask;

	if (elsewhere) {
		elsewhere->trace_map(out);
		return;
	}
	signals_block(&mask);
	fork_check();
	lock_take();
	*out = process.trace;
	lock_give();
	signals_restore(&mask);
}

int debox_chain_links_(uint32_t chain, struct debox_numbered_link out[DEBOX_CHAIN_DEPTH_MAX])
{
	uint64_t mask;
	int n;

	if (elsewhere)
		return elsewhere->chain_links(chain, out);
	if (!debox_private_thread())
		return -ENOTCONN;
	signals_block(&mask);
	fork_check();
	lock_take();
	n = chain_follow(chain, out);
	lock_give();
	signals_restore(&mask);
	return n;
}
