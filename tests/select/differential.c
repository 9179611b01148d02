/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Do poll and select through libdebox-select.so answer what the system calls
 * answer?
 *
 * The same random sequence of operations on descriptors, and after each a wait
 * through libc's function (which the library replaces) beside the real system
 * call (made here, without libc). Nothing else touches the descriptors, so both
 * must give the same number, the same errno and the same bits.
 *
 * What differs is asked again, of both, and the report says whether it stays:
 * a wrong answer does, a state that the kernel changed between the two does
 * not. A difference that goes away fails the run as well, except at terminals
 * and what watches them, whose data kernel threads hand on: run this without
 * the library to see the system call differ from itself there; and, with -o, at
 * numbers that are closed: while the library makes an epoll instance in another
 * thread, the lowest of them is open for a moment (docs/select.md).
 *
 *   differential [-s SEED] [-n STEPS] [-t THREADS] [-k KINDS] [-u] [-i] [-f] [-o] [-q]
 *     -k  bits of the kinds of descriptors to make, see create()
 *     -u  close and replace descriptors with system calls of our own, too: the
 *         right answer may then come late, within two seconds
 *     -i  a timer interrupts with a handler that waits and closes as well
 *     -f  fork now and then; the child goes on for a while
 *     -o  all threads have the same descriptors: their sets overlap, and each
 *         closes and replaces what is in the others'. While any of them waits,
 *         none changes anything.
 */
#include "../fresh_start.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libdebox/sys.h"

#define NUMBERS 4096 /* of descriptors, per process */
#define LARGEST 400  /* descriptors of one thread */
/* The library's own descriptors are the highest that the limit allows, and
 * there is no room above it here: not for the program to ask about. */
#define PRIVATE 64
#define LATEST_S 2.5 /* the library's bound for what it cannot see, and some */
#define ASKED_AGAIN 4

/* Descriptors that are open. With -o all threads have the same, and sets of their
 * own over them. */
struct pool {
	int count;
	int fd[LARGEST];
};

struct state {
	uint64_t random;
	uint64_t seed;
	int index;
	unsigned long steps, waits, blocked, interrupted;
	struct pool *pool; /* ours */
	struct pollfd set[LARGEST * 2 + 16];
	int n;
	unsigned char interest[NUMBERS]; /* 1 read, 2 write, 4 except */
	int calm;
	unsigned kinds; /* of descriptors that are made in this phase */
	/* A difference that is being asked again. */
	char difference[300];
	int asked, flicker;
	double since;
	char trail[64][96]; /* the last operations */
	unsigned trail_at;
};

static int option_unseen, option_signals, option_fork, option_overlap, option_threads = 1;
static unsigned option_kinds = 0x1fff;
static unsigned long option_steps = 20000;
static volatile sig_atomic_t alarms;
static unsigned long late, flickers;
static double latest;
static char directory_file[] = "/proc/self/exe";

static uint64_t next(struct state *s)
{
	/* xorshift64* */
	s->random ^= s->random >> 12;
	s->random ^= s->random << 25;
	s->random ^= s->random >> 27;
	return s->random * 0x2545f4914f6cdd1dull;
}

static unsigned upto(struct state *s, unsigned n)
{
	return (unsigned)(next(s) >> 33) % n;
}

static void note(struct state *s, const char *what, int a, int b)
{
	snprintf(s->trail[s->trail_at++ % 64], 96, "%lu: %s %d %d", s->steps, what, a, b);
}

static void fail(struct state *s, const char *what)
{
	fprintf(stderr, "differential: %s\n  seed %llu, thread %d, step %lu; run again with -s %llu\n", what,
		(unsigned long long)s->seed, s->index, s->steps, (unsigned long long)s->seed);
	for (unsigned i = s->trail_at > 40 ? s->trail_at - 40 : 0; i < s->trail_at; i++)
		fprintf(stderr, "  %s\n", s->trail[i % 64]);
	_exit(1);
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Says what the descriptor is; 1 if kernel threads work on it, or it is closed and
 * another thread may take its number for a moment. */
static int describe(int fd, const char *what, int number, unsigned got, unsigned expected)
{
	char path[40], target[100];
	ssize_t length;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof target - 1);
	target[length < 0 ? 0 : length] = 0;
	fprintf(stderr, "  differs: %s %d, descriptor %d (%s): %x, expected %x\n", what, number, fd, target,
		got, expected);
	return !strncmp(target, "/dev/pt", 7) || strstr(target, "eventpoll") || (option_overlap && length < 0);
}

/* ------------------------------------------------------- the descriptors */

static void have(struct state *s, int fd)
{
	if (fd < 0)
		return;
	if (fd >= NUMBERS || s->pool->count == LARGEST) {
		close(fd);
		return;
	}
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	s->pool->fd[s->pool->count++] = fd;
}

static int any(struct state *s)
{
	return s->pool->count ? s->pool->fd[upto(s, (unsigned)s->pool->count)] : -1;
}

static void lose(struct state *s, int fd)
{
	for (int i = 0; i < s->pool->count; i++)
		if (s->pool->fd[i] == fd) {
			s->pool->fd[i] = s->pool->fd[--s->pool->count];
			return;
		}
}

static void create(struct state *s)
{
	int pair[2] = { -1, -1 }, kind;

	do
		kind = (int)upto(s, 13);
	while (!(s->kinds & option_kinds & 1u << kind));

	note(s, "create", kind, s->pool->count);
	switch (kind) {
	case 0:
	case 1:
	case 2:
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			return;
		break;
	case 3:
		if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair))
			return;
		break;
	case 4:
	case 5:
		if (pipe2(pair, O_CLOEXEC))
			return;
		break;
	case 6:
		pair[0] = eventfd(upto(s, 2), EFD_CLOEXEC);
		break;
	case 7: {
		struct itimerspec t = { .it_value = { 0, upto(s, 2) ? 1 : 0 } };

		pair[0] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
		timerfd_settime(pair[0], 0, &t, NULL);
		break;
	}
	case 8:
		pair[0] = open(upto(s, 2) ? "/dev/null" : directory_file, O_RDONLY | O_CLOEXEC);
		break;
	case 9: {
		struct epoll_event e = { .events = EPOLLIN };
		int inner = any(s);

		pair[0] = epoll_create1(EPOLL_CLOEXEC);
		/* Nested, sometimes; loops are refused. */
		if (inner >= 0 && pair[0] >= 0)
			epoll_ctl(pair[0], EPOLL_CTL_ADD, inner, &e);
		break;
	}
	case 12: {
		/* A terminal: its hang-up is told in a way of its own. */
		char name[64];

		pair[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (pair[0] >= 0 && grantpt(pair[0]) == 0 && unlockpt(pair[0]) == 0 &&
		    ptsname_r(pair[0], name, sizeof name) == 0)
			pair[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
		break;
	}
	case 10: /* TCP: out-of-band data, resets, half-open */
	case 11: {
		struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		socklen_t size = sizeof a;
		int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (l < 0)
			return;
		if (bind(l, (struct sockaddr *)&a, size) || listen(l, 4) ||
		    getsockname(l, (struct sockaddr *)&a, &size)) {
			close(l);
			return;
		}
		pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (upto(s, 8) == 0) {
			/* A socket that is not connected. */
			pair[1] = l;
			break;
		}
		if (connect(pair[0], (struct sockaddr *)&a, size) == 0)
			pair[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
		close(l);
	}
	}
	have(s, pair[0]);
	have(s, pair[1]);
}

/* Numbers that are not open belong to whoever opens them next: with threads that
 * have descriptors of their own, nobody waits for another's. */
static void purge(struct state *s, int fd)
{
	s->interest[fd] = 0;
	for (int i = 0; i < s->n; i++)
		if (s->set[i].fd == fd)
			s->set[i--] = s->set[--s->n];
}

static void release(struct state *s)
{
	int fd = any(s), how = (int)upto(s, option_unseen ? 8 : 6), copy;

	if (fd < 0)
		return;
	note(s, "close", how, fd);
	/* Sometimes the file stays open under another number. */
	if (upto(s, 6) == 0 && (copy = dup(fd)) >= 0)
		have(s, copy);
	lose(s, fd);
	if (option_threads > 1 && !option_overlap)
		purge(s, fd);
	switch (how) {
	case 0:
	case 1:
		close(fd);
		break;
	case 2: {
		FILE *f = fdopen(fd, "r");

		if (f)
			fclose(f);
		else
			close(fd);
		break;
	}
	case 3:
		close_range((unsigned)fd, (unsigned)fd, 0);
		break;
	case 4: {
		/* Replaced by another. */
		int other = any(s);

		if (other >= 0) {
			dup2(other, fd);
			have(s, fd);
		} else {
			close(fd);
		}
		break;
	}
	case 5:
		syscall(SYS_close, fd);
		break;
	case 6:
		sys_call(SYS_close, fd);
		break;
	case 7: {
		int other = any(s);

		if (other >= 0) {
			sys_call(SYS_dup3, other, fd, O_CLOEXEC);
			have(s, fd);
		} else {
			sys_call(SYS_close, fd);
		}
	}
	}
}

static void pass(struct state *s)
{
	/* A descriptor that arrives over a socket. */
	char space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { "x", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int pair[2], fd = any(s), got;
	char byte;

	if (fd < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return;
	note(s, "pass", fd, 0);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(pair[0], &m, 0) == 1) {
		v.iov_base = &byte;
		if (recvmsg(pair[1], &m, MSG_CMSG_CLOEXEC) == 1 && (c = CMSG_FIRSTHDR(&m))) {
			memcpy(&got, CMSG_DATA(c), sizeof got);
			have(s, got);
		}
	}
	close(pair[0]);
	close(pair[1]);
}

static void use(struct state *s)
{
	static __thread char buffer[1 << 17];
	int fd = any(s), how = (int)upto(s, 14);
	struct linger hard = { 1, 0 };
	ssize_t r = 0;

	if (fd < 0)
		return;
	switch (how) {
	case 0:
	case 1:
	case 2:
	case 3:
		r = write(fd, "12345678", 8);
		break;
	case 4:
	case 5:
		r = read(fd, buffer, 4);
		break;
	case 6:
	case 7:
	case 8:
		while ((r = read(fd, buffer, sizeof buffer)) > 0 && upto(s, 64))
			;
		break;
	case 9:
		/* Full. */
		for (int i = 0; i < 64 && (r = write(fd, buffer, sizeof buffer)) > 0; i++)
			;
		break;
	case 10:
		r = shutdown(fd, upto(s, 2) ? SHUT_WR : upto(s, 2) ? SHUT_RD :
								     SHUT_RDWR);
		break;
	case 11:
		r = send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL);
		break;
	case 12:
		r = recv(fd, buffer, 1, MSG_OOB);
		break;
	case 13:
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
		break;
	}
	note(s, "use", how * 1000 + fd, (int)r);
}

static void arrange(struct state *s)
{
	static const short events[] = { POLLIN, POLLIN, POLLIN, POLLOUT, POLLIN | POLLOUT, 0, POLLPRI,
					POLLIN | POLLPRI | POLLRDHUP, POLLRDNORM | POLLRDBAND, POLLWRNORM,
					POLLRDHUP, 0x7fff };
	struct pollfd *p;
	int how = (int)upto(s, 10), fd = any(s);

	if (fd < 0)
		return;
	note(s, "arrange", how, fd);
	if (how < 4 || !s->n) {
		if (s->n < LARGEST * 2)
			s->set[s->n++] = (struct pollfd){ fd, events[upto(s, sizeof events / sizeof *events)], 0x55 };
	} else {
		p = &s->set[upto(s, (unsigned)s->n)];
		if (how < 6)
			p->events = events[upto(s, sizeof events / sizeof *events)];
		else if (how == 6)
			p->fd = fd;
		else if (how == 7)
			p->fd = (option_threads > 1 && !option_overlap) || upto(s, 16) ? -1 : (int)upto(s, NUMBERS - PRIVATE);
		else if (how == 8)
			*p = s->set[--s->n];
		else
			memmove(p, p + 1, (size_t)(&s->set[--s->n] - p) * sizeof *p);
	}
	s->interest[fd] = (unsigned char)upto(s, 8);
	if (upto(s, 512) == 0)
		memset(s->interest, 0, sizeof s->interest);
	if (upto(s, 512) == 0)
		s->n = 0;
}

/* Nothing to read anywhere. */
static void drain(struct state *s)
{
	static __thread char buffer[1 << 16];

	note(s, "drain", 0, 0);
	for (int i = 0; i < s->pool->count; i++) {
		int turns = 1000;

		while (turns-- && read(s->pool->fd[i], buffer, sizeof buffer) > 0)
			;
	}
}

/* A set that is wholly in order, as programs have it. */
static void tidy(struct state *s)
{
	note(s, "tidy", s->pool->count, 0);
	s->n = 0;
	memset(s->interest, 0, sizeof s->interest);
	for (int i = 0; i < s->pool->count; i++) {
		s->set[s->n++] = (struct pollfd){ s->pool->fd[i], POLLIN, 0 };
		s->interest[s->pool->fd[i]] = 1;
	}
}

/* --------------------------------------------------------------- compare */

static long real_poll(struct pollfd *p, int n)
{
	struct timespec zero = { 0, 0 };
	long r;

	do
		r = sys_call(SYS_ppoll, p, n, &zero, 0, 8);
	while (r == -EINTR);
	return r;
}

static long real_select(int n, fd_set *r, fd_set *w, fd_set *e)
{
	struct timeval zero = { 0, 0 };
	long got;

	do
		got = sys_call(SYS_select, n, r, w, e, &zero);
	while (got == -EINTR);
	return got;
}

/* A wait with nothing ready: by a timeout, or by something that happens. */
static void *later(void *what)
{
	int fd = *(int *)what;
	struct timespec t = { 0, 300000 };

	nanosleep(&t, NULL);
	if (write(fd, "12345678", 8) < 0)
		return (void *)1;
	return NULL;
}

/*
 * The answers differ, and what the system call says now is not the library's
 * answer either. 1: ask both again. `moved`: it says something else than before,
 * so the state changed meanwhile. Otherwise `flicker`, whether only terminals
 * and the like differ, decides what to make of it if it goes away.
 */
static int ask_again(struct state *s, int moved, int flicker, int *turns)
{
	if (option_unseen) {
		/* Replaced where the library does not see it: found within a
		 * bounded time, so not always at once. */
		struct timespec t = { 0, 2000000 };

		if (!(*turns)++)
			s->since = seconds();
		if (seconds() - s->since > LATEST_S)
			return 0;
		nanosleep(&t, NULL);
		late++;
		return 1;
	}
	if (moved)
		return (*turns)++ < 20;
	s->flicker = flicker && (s->flicker || !s->asked);
	return s->asked++ < ASKED_AGAIN;
}

/* Both said the same: what of the difference before? */
static void agreed(struct state *s, int turns)
{
	if (option_unseen && turns && seconds() - s->since > latest)
		latest = seconds() - s->since;
	if (s->asked && s->flicker)
		__atomic_fetch_add(&flickers, 1, __ATOMIC_RELAXED);
	else if (s->asked) {
		fprintf(stderr, "  gone when both were asked again (%d times)\n", s->asked);
		fail(s, s->difference);
	}
}

static void persists(struct state *s)
{
	if (option_unseen)
		fprintf(stderr, "  the same for %.1f s\n", seconds() - s->since);
	else
		fprintf(stderr, "  persists: both were asked again %d times\n", s->asked - 1);
	fail(s, s->difference);
}

static void compare_poll(struct state *s, int wait)
{
	static __thread struct pollfd expect[LARGEST * 2 + 16], before[LARGEST * 2 + 16];
	int turns = 0;
	struct timespec ts = { 0, 0 };
	int n = s->n, r, ready;
	sigset_t none;
	long e;

	s->asked = s->flicker = 0;
	sigemptyset(&none);
again:
	memcpy(expect, s->set, (size_t)n * sizeof *expect);
	e = real_poll(expect, n);
	ready = e != 0;
	do {
		for (int i = 0; i < n && upto(s, 4) == 0; i++)
			s->set[upto(s, (unsigned)n)].revents = (short)next(s);
		if (ready || !wait) {
			switch (upto(s, 4)) {
			case 0: r = ppoll(s->set, (nfds_t)n, &ts, NULL); break;
			case 1: r = ppoll(s->set, (nfds_t)n, &ts, &none); break;
			default: r = poll(s->set, (nfds_t)n, ready && upto(s, 2) ? -1 : 0);
			}
		} else {
			ts.tv_nsec = 1000 * (1 + upto(s, 2000));
			r = upto(s, 2) ? ppoll(s->set, (nfds_t)n, &ts, NULL) : poll(s->set, (nfds_t)n, 1);
			s->blocked++;
		}
		if (r < 0 && errno == EINTR) {
			s->interrupted++;
			for (int i = 0; i < n; i++)
				if (s->set[i].revents)
					fail(s, "poll: EINTR with revents");
			if (!option_signals)
				fail(s, "poll: EINTR without a signal");
		}
	} while (r < 0 && errno == EINTR);
	s->waits++;
	if ((r < 0 ? -errno != e : r != e) || memcmp(s->set, expect, (size_t)n * sizeof *expect)) {
		int error = errno, flicker = 1, moved;
		long was = e;

		memcpy(before, expect, (size_t)n * sizeof *expect);
		e = real_poll(expect, n);
		if ((r < 0 ? -error == e : r == e) && !memcmp(s->set, expect, (size_t)n * sizeof *expect))
			return agreed(s, turns);
		moved = memcmp(before, expect, (size_t)n * sizeof *expect) != 0;
		if (option_unseen || moved) {
			if (ask_again(s, moved, 0, &turns))
				goto again;
		}
		for (int i = 0; i < n; i++)
			if (s->set[i].revents != expect[i].revents)
				flicker &= describe(s->set[i].fd, "place", i, (unsigned short)s->set[i].revents,
						    (unsigned short)expect[i].revents);
		if (!s->asked || option_unseen || moved)
			snprintf(s->difference, sizeof s->difference,
				 "poll of %d: %d (errno %d), expected %ld (before) and %ld (after)%s", n, r,
				 r < 0 ? error : 0, was, e, moved ? ", still moving" : "");
		if (option_unseen || moved || !ask_again(s, 0, flicker, &turns))
			persists(s);
		goto again;
	}
	agreed(s, turns);
}

struct sets {
	fd_set *set[3];
	unsigned char memory[3][NUMBERS / 8];
};

static int fill(struct state *s, struct sets *out)
{
	int n = 0;

	for (int k = 0; k < 3; k++)
		memset(out->memory[k], 0, sizeof out->memory[k]);
	for (int fd = 0; fd < NUMBERS; fd++)
		for (int k = 0; k < 3; k++)
			if (s->interest[fd] >> k & 1) {
				out->memory[k][fd / 8] |= (unsigned char)(1 << fd % 8);
				n = fd + 1;
			}
	for (int k = 0; k < 3; k++)
		out->set[k] = (fd_set *)out->memory[k];
	return n;
}

static void compare_select(struct state *s, int wait)
{
	static __thread struct sets expect, got, before;
	int turns = 0;
	struct timeval tv = { 0, 0 };
	struct timespec ts = { 0, 0 };
	int n = fill(s, &expect), r;
	long e;

	s->asked = s->flicker = 0;
	if (upto(s, 4) == 0)
		n += (int)upto(s, 70);
	if (n > NUMBERS)
		n = NUMBERS;
again:
	fill(s, &expect);
	tv.tv_sec = tv.tv_usec = 0;
	e = real_select(n, expect.set[0], expect.set[1], expect.set[2]);
	do {
		fill(s, &got);
		if (e || !wait) {
			if (upto(s, 2))
				r = select(n, got.set[0], got.set[1], got.set[2], e && upto(s, 2) ? NULL : &tv);
			else
				r = pselect(n, got.set[0], got.set[1], got.set[2], &ts, NULL);
		} else {
			tv.tv_usec = 1 + upto(s, 1500);
			r = select(n, got.set[0], got.set[1], got.set[2], &tv);
			if (r == 0 && (tv.tv_sec || tv.tv_usec))
				fail(s, "select: time left at the end of the time");
			s->blocked++;
		}
		if (r < 0 && errno == EINTR) {
			s->interrupted++;
			if (!option_signals)
				fail(s, "select: EINTR without a signal");
		}
	} while (r < 0 && errno == EINTR);
	s->waits++;
	if ((r < 0 ? -errno != e : r != e) || memcmp(got.memory, expect.memory, sizeof got.memory)) {
		int error = errno, flicker = 1, moved;
		long was = e;

		memcpy(before.memory, expect.memory, sizeof before.memory);
		fill(s, &expect);
		e = real_select(n, expect.set[0], expect.set[1], expect.set[2]);
		if ((r < 0 ? -error == e : r == e) && !memcmp(got.memory, expect.memory, sizeof got.memory))
			return agreed(s, turns);
		moved = was != e || memcmp(before.memory, expect.memory, sizeof before.memory);
		if (option_unseen || moved) {
			if (ask_again(s, moved, 0, &turns))
				goto again;
		}
		for (int k = 0; k < 3; k++)
			for (int fd = 0; fd < NUMBERS; fd++)
				if ((got.memory[k][fd / 8] ^ expect.memory[k][fd / 8]) >> fd % 8 & 1)
					flicker &= describe(fd, "set", k, got.memory[k][fd / 8] >> fd % 8 & 1,
							    expect.memory[k][fd / 8] >> fd % 8 & 1);
		/* Of a closed number all sets are left as they are. */
		flicker |= option_overlap && e == -EBADF;
		if (!s->asked || option_unseen || moved)
			snprintf(s->difference, sizeof s->difference,
				 "select of %d: %d (errno %d), expected %ld (before) and %ld (after)%s", n, r,
				 r < 0 ? error : 0, was, e, moved ? ", still moving" : "");
		if (option_unseen || moved || !ask_again(s, 0, flicker, &turns))
			persists(s);
		goto again;
	}
	agreed(s, turns);
}

/* Something happens while nothing is ready. */
static void compare_wake(struct state *s)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), r;
	struct pollfd *p;
	pthread_t thread;
	uint64_t count;

	if (fd < 0)
		return;
	p = &s->set[s->n++];
	*p = (struct pollfd){ fd, POLLIN, 0 };
	if (real_poll(s->set, s->n) == 0 && pthread_create(&thread, NULL, later, &fd) == 0) {
		note(s, "wake", fd, s->n);
		do
			r = poll(s->set, (nfds_t)s->n, 10000);
		while (r < 0 && errno == EINTR);
		if (r <= 0)
			fail(s, "poll: a wake-up was lost");
		/* A terminal may have woken it as well; or, of what the library
		 * did not see, the file that had the number before. */
		if (p->revents != POLLIN && !option_unseen && real_poll(s->set, s->n) <= 0)
			fail(s, "poll: woken by nothing");
		pthread_join(thread, NULL);
		if (read(fd, &count, sizeof count) != sizeof count)
			fail(s, "eventfd");
		s->blocked++;
	}
	s->n--;
	close(fd);
}

/* ------------------------------------------------------------------- run */

/* With -o: who changes descriptors is alone, and those who wait see none change. */
static pthread_rwlock_t changes;

static void changing(void)
{
	if (option_overlap)
		pthread_rwlock_wrlock(&changes);
}

static void waiting(void)
{
	if (option_overlap)
		pthread_rwlock_rdlock(&changes);
}

static void done(void)
{
	if (option_overlap)
		pthread_rwlock_unlock(&changes);
}

static void change(struct state *s)
{
	unsigned what = upto(s, 100);

	/* Phases: all kinds of descriptors, or only such as can be quiet. */
	if (s->steps % 1000 == 0) {
		s->kinds = upto(s, 2) || !(option_kinds & 0x1e7f) ? 0x1fff : 0x1e7f;
		s->calm = upto(s, 3) == 0;
		while (s->pool->count)
			close(s->pool->fd[--s->pool->count]);
		s->n = 0;
		memset(s->interest, 0, sizeof s->interest);
	}
	s->steps++;
	if (s->pool->count < 80 || (what < 8 && s->pool->count < LARGEST - 4))
		create(s);
	else if (what < 16)
		release(s);
	else if (what < 18)
		pass(s);
	else if (what < 60)
		use(s);
	else if (what < 90 && !s->calm)
		arrange(s);
	else if (s->calm ? upto(s, 20) < 18 : upto(s, 40) == 0)
		tidy(s);
	else if (s->calm)
		drain(s);
}

static void step(struct state *s)
{
	changing();
	change(s);
	done();
	/* The same set several times: registered, and asked again. */
	for (unsigned again = 1 + upto(s, 3); again; again--) {
		waiting();
		if (s->n)
			compare_poll(s, upto(s, 16) == 0);
		compare_select(s, upto(s, 16) == 0);
		done();
	}
	if (upto(s, 64) == 0) {
		changing();
		compare_wake(s);
		done();
	}
}

static void *run(void *state)
{
	struct state *s = state;

	while (s->steps < option_steps) {
		step(s);
		if (option_fork && upto(s, 500) == 0) {
			int status;
			pid_t child = fork();

			if (child == 0) {
				for (int i = 0; i < 100; i++)
					step(s);
				_exit(0);
			}
			if (child > 0 && (waitpid(child, &status, 0) != child || status))
				fail(s, "a forked child failed");
		}
	}
	return NULL;
}

static void on_alarm(int signal)
{
	struct pollfd many[80];
	int saved = errno, fd;

	alarms++;
	/* What a handler may do: wait, close, create. */
	for (int i = 0; i < 80; i++)
		many[i] = (struct pollfd){ -1, POLLIN, 0 };
	fd = dup(0);
	many[7].fd = fd;
	poll(many, 80, 0);
	if (fd >= 0)
		close(fd);
	errno = saved;
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)time(NULL) * 1000003u ^ (uint64_t)getpid();
	struct rlimit limit = { NUMBERS, NUMBERS };
	unsigned long steps = 0, waits = 0, blocked = 0, interrupted = 0;
	pthread_rwlockattr_t writers_first;
	struct state *states;
	struct pool *pools;
	int c, quiet = 0, demanded = 0;
	pthread_t thread[16];

	while ((c = getopt(argc, argv, "s:n:t:k:uifoql")) != -1)
		switch (c) {
		case 's': seed = strtoull(optarg, NULL, 10); break;
		case 'n': option_steps = strtoul(optarg, NULL, 10); break;
		case 't': option_threads = atoi(optarg); break;
		case 'k': option_kinds = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'u': option_unseen = 1; break;
		case 'i': option_signals = 1; break;
		case 'f': option_fork = 1; break;
		case 'o': option_overlap = 1; break;
		case 'q': quiet = 1; break;
		case 'l': demanded = 1; break;
		default: return 2;
		}
	if (!(option_kinds & 0x1fff))
		return 2;
	if (option_threads < 1 || option_threads > 8 ||
	    (option_threads > 1 && (option_fork || (option_unseen && !option_overlap))))
		return 2;
	/* A handler's descriptor would come and go in the others' sets. */
	if (option_overlap && (option_signals || option_fork))
		return 2;
	pthread_rwlockattr_init(&writers_first);
	pthread_rwlockattr_setkind_np(&writers_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&changes, &writers_first);
	signal(SIGPIPE, SIG_IGN);
	/* All numbers fit the bitmaps; the table of the kernel is as large as it
	 * gets, so that select looks at all bits from the beginning. */
	if (setrlimit(RLIMIT_NOFILE, &limit)) {
		perror("setrlimit");
		return 2;
	}
	close(fcntl(0, F_DUPFD, NUMBERS - 1));
	states = calloc((size_t)option_threads, sizeof *states);
	pools = calloc((size_t)option_threads, sizeof *pools);
	if (option_signals) {
		struct sigaction a = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
		struct itimerval t = { { 0, 700 }, { 0, 700 } };

		sigaction(SIGALRM, &a, NULL);
		setitimer(ITIMER_REAL, &t, NULL);
	}
	for (int i = 0; i < option_threads; i++) {
		states[i].index = i;
		states[i].pool = &pools[option_overlap ? 0 : i];
		states[i].seed = seed;
		states[i].random = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15ull | 1;
		if (i)
			pthread_create(&thread[i], NULL, run, &states[i]);
	}
	run(&states[0]);
	for (int i = 0; i < option_threads; i++) {
		if (i)
			pthread_join(thread[i], NULL);
		steps += states[i].steps;
		waits += states[i].waits;
		blocked += states[i].blocked;
		interrupted += states[i].interrupted;
	}
	if (!quiet) {
		printf("differential: seed %llu: %lu steps, %lu waits (%lu blocked, %lu interrupted), all the same",
		       (unsigned long long)seed, steps, waits, blocked, interrupted);
		if (option_unseen)
			printf("; asked %lu times again, %.2f s late at most", late, latest);
		if (flickers)
			printf("; %lu differences at terminals%s, gone when asked again", flickers,
			       option_overlap ? " or numbers that are closed" : "");
		printf("\n");
	}
	if (demanded) {
		uint64_t (*served)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "debox_select_served");

		/* Of a forked child's waits this process knows nothing. */
		if (!served || (!option_fork && served() < waits / 10))
			return fprintf(stderr, "differential: -l: the library %s\n",
				       served ? "served hardly any of the waits" : "is not loaded"),
			       1;
	}
	if (option_signals && !interrupted)
		return fprintf(stderr, "differential: no wait was ever interrupted\n"), 1;
	return 0;
}
