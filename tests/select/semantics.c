/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does each rule of select and poll hold through libdebox-select.so?
 *
 * One test per rule, each with enough descriptors that the library serves it
 * (or with what it must leave to the kernel). Runs without the library as well:
 * the rules are the kernel's. `semantics NAME` runs one, in its own process;
 * -l demands the library, -w leaves out what only its full looks can find, -x NAME
 * leaves out a rule.
 */
#include "../fresh_start.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libdebox/sys.h"

#define N 200
static int near_end[N], far_end[N];
static struct pollfd set[2 * N];

#define CHECK(what)                                                                  \
	do {                                                                         \
		if (!(what)) {                                                       \
			fprintf(stderr, "semantics: %s:%d: not so: %s (errno %d)\n", \
				__func__, __LINE__, #what, errno);                   \
			_exit(1);                                                    \
		}                                                                    \
	} while (0)

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* How many calls the library has served; NULL without -l. */
static uint64_t (*served)(void);

/* N quiet connections that the library knows: several calls have been made. */
static void prepare(void)
{
	for (int i = 0; i < N; i++) {
		int pair[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
		near_end[i] = pair[0];
		far_end[i] = pair[1];
		set[i] = (struct pollfd){ pair[0], POLLIN, 0 };
	}
	for (int i = 0; i < 4; i++)
		CHECK(poll(set, N, 0) == 0);
	/* With -l: it is the library that is tested. */
	CHECK(!served || served() >= 2);
}

static int fill(fd_set *s)
{
	int most = 0;

	FD_ZERO(s);
	for (int i = 0; i < N; i++) {
		FD_SET(near_end[i], s);
		if (near_end[i] > most)
			most = near_end[i];
	}
	return most + 1;
}

static void say(int i)
{
	CHECK(write(far_end[i], "12345678", 8) == 8);
}

static __thread char sink[1 << 16];

/* --------------------------------------------------------------------- */

static void level_triggered(void)
{
	fd_set s;
	int n;

	say(17);
	for (int i = 0; i < 5; i++) {
		CHECK(poll(set, N, -1) == 1 && set[17].revents == POLLIN);
		n = fill(&s);
		CHECK(select(n, &s, NULL, NULL, NULL) == 1 && FD_ISSET(near_end[17], &s));
	}
	/* A part of it read: still ready. */
	CHECK(read(near_end[17], sink, 3) == 3);
	CHECK(poll(set, N, 0) == 1);
	CHECK(read(near_end[17], sink, 100) == 5);
	CHECK(poll(set, N, 0) == 0 && set[17].revents == 0);
}

static void interest_toggled(void)
{
	say(3);
	CHECK(poll(set, N, 0) == 1);
	set[3].events = POLLOUT;
	CHECK(poll(set, N, 0) == 1 && set[3].revents == POLLOUT);
	set[3].events = 0;
	CHECK(poll(set, N, 0) == 0 && set[3].revents == 0);
	set[3].events = POLLIN | POLLOUT;
	CHECK(poll(set, N, 0) == 1 && set[3].revents == (POLLIN | POLLOUT));
	set[3].fd = -1;
	CHECK(poll(set, N, 0) == 0 && set[3].revents == 0);
	set[3].fd = near_end[3];
	set[3].events = POLLIN;
	CHECK(poll(set, N, 0) == 1);
}

static void closed_is_invalid(void)
{
	fd_set s, before;
	int n = fill(&s);

	before = s;
	CHECK(select(n, &s, NULL, NULL, &(struct timeval){ 0, 0 }) == 0);
	close(near_end[5]);
	CHECK(poll(set, N, -1) == 1 && set[5].revents == POLLNVAL);
	s = before;
	CHECK(select(n, &s, NULL, NULL, NULL) == -1 && errno == EBADF);
	CHECK(memcmp(&s, &before, sizeof s) == 0);
}

static void duplicates_in_array(void)
{
	set[N] = set[9];
	set[N + 1] = set[9];
	set[N + 1].events = POLLIN | POLLOUT;
	for (int i = 0; i < 3; i++)
		CHECK(poll(set, N + 2, 0) == 1 && set[N + 1].revents == POLLOUT);
	say(9);
	CHECK(poll(set, N + 2, 0) == 3 && set[9].revents == POLLIN && set[N].revents == POLLIN &&
	      set[N + 1].revents == (POLLIN | POLLOUT));
	/* The first of them goes. */
	set[9].fd = -1;
	CHECK(poll(set, N + 2, 0) == 2 && set[9].revents == 0 && set[N].revents == POLLIN);
}

static void dup_survives_close(void)
{
	int copy = dup(near_end[11]);

	CHECK(copy >= 0);
	close(near_end[11]);
	set[11].fd = -1;
	CHECK(poll(set, N, 0) == 0);
	/* Something arrives for a file that is open under another number. */
	say(11);
	CHECK(poll(set, N, 20) == 0);
	set[11].fd = copy;
	CHECK(poll(set, N, 0) == 1 && set[11].revents == POLLIN);
}

static void replaced_by_dup2(void)
{
	int pair[2];

	CHECK(pipe(pair) == 0);
	CHECK(dup2(pair[0], near_end[21]) == near_end[21]);
	CHECK(poll(set, N, 0) == 0);
	CHECK(write(pair[1], "x", 1) == 1);
	CHECK(poll(set, N, -1) == 1 && set[21].revents == POLLIN);
	/* The old file has no descriptor left: its peer knows. */
	CHECK(write(far_end[21], "x", 1) == -1 && errno == EPIPE);
}

/* Closed and opened anew by system calls that no library sees. */
static void replaced_unseen(void)
{
	int pair[2];
	double begin;

	CHECK(pipe(pair) == 0);
	CHECK(sys_call(SYS_close, near_end[33]) == 0);
	CHECK(sys_call(SYS_fcntl, pair[0], F_DUPFD, near_end[33]) == near_end[33]);
	begin = seconds();
	CHECK(write(pair[1], "x", 1) == 1);
	/* Never lost: found when the wait gets long. */
	CHECK(poll(set, N, 10000) == 1 && set[33].revents == POLLIN);
	CHECK(seconds() - begin < 5);
	CHECK(read(near_end[33], sink, 1) == 1);
	for (int i = 0; i < 50; i++) {
		CHECK(write(pair[1], "x", 1) == 1);
		CHECK(poll(set, N, 10000) == 1 && set[33].revents == POLLIN);
		CHECK(read(near_end[33], sink, 1) == 1);
	}
}

/* The same while the thread is busy all the time and never waits long. */
static void replaced_unseen_busy(void)
{
	int pair[2], found = 0;
	double begin = seconds();

	CHECK(pipe(pair) == 0);
	CHECK(sys_call(SYS_close, near_end[34]) == 0);
	CHECK(sys_call(SYS_fcntl, pair[0], F_DUPFD, near_end[34]) == near_end[34]);
	CHECK(write(pair[1], "x", 1) == 1);
	while (!found && seconds() - begin < 10) {
		say(1);
		CHECK(poll(set, N, 1000) >= 1);
		CHECK(read(near_end[1], sink, 8) == 8);
		found = set[34].revents == POLLIN;
	}
	CHECK(found);
}

static void closed_unseen(void)
{
	CHECK(sys_call(SYS_close, near_end[35]) == 0);
	CHECK(poll(set, N, 10000) == 1 && set[35].revents == POLLNVAL);
}

static void closed_by_stdio(void)
{
	FILE *f = fdopen(near_end[40], "r");
	int pair[2];

	fclose(f);
	CHECK(pipe(pair) == 0 && pair[0] == near_end[40]);
	CHECK(poll(set, N, 0) == 0);
	CHECK(write(pair[1], "x", 1) == 1);
	CHECK(poll(set, N, -1) == 1 && set[40].revents == POLLIN);
}

static void arrived_over_a_socket(void)
{
	char space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { "x", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int channel[2], pair[2], got;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0 && pipe(pair) == 0);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &pair[0], sizeof(int));
	CHECK(sendmsg(channel[0], &m, 0) == 1);
	/* Its number is that of one that was closed unseen. */
	CHECK(sys_call(SYS_close, near_end[0]) == 0);
	v.iov_base = sink;
	CHECK(recvmsg(channel[1], &m, 0) == 1 && (c = CMSG_FIRSTHDR(&m)));
	memcpy(&got, CMSG_DATA(c), sizeof got);
	CHECK(got == near_end[0]);
	CHECK(poll(set, N, 0) == 0);
	CHECK(write(pair[1], "x", 1) == 1);
	CHECK(poll(set, N, 0) == 1 && set[0].revents == POLLIN);
}

/* Everything is closed, the private descriptor survives or is made anew. */
static void everything_closed(int how)
{
	int first = near_end[0];

	switch (how) {
	case 0: CHECK(close_range((unsigned)first, ~0u, 0) == 0); break;
	case 1: closefrom(first); break;
	case 2:
		for (int fd = first; fd < 20000; fd++)
			close(fd);
		break;
	case 3:
		for (int fd = first; fd < 20000; fd++)
			sys_call(SYS_close, fd);
		break;
	}
	CHECK(poll(set, N, -1) == N && set[0].revents == POLLNVAL && set[N - 1].revents == POLLNVAL);
	prepare();
	for (int i = 0; i < 20; i++) {
		say(i);
		CHECK(poll(set, N, 10000) == 1 && set[i].revents == POLLIN);
		CHECK(read(near_end[i], sink, 8) == 8);
	}
}
static void survives_close_range(void)
{
	everything_closed(0);
}
static void survives_closefrom(void)
{
	everything_closed(1);
}
static void survives_close_loop(void)
{
	everything_closed(2);
}
static void survives_raw_closes(void)
{
	everything_closed(3);
}

static void numbers_are_the_lowest(void)
{
	/* The program gets the numbers that it would get without the library. */
	int copy = dup(0);

	CHECK(copy == far_end[N - 1] + 1);
	close(near_end[7]);
	CHECK(dup(0) == near_end[7]);
}

static void regular_files_are_ready(void)
{
	set[N] = (struct pollfd){ open("/proc/self/exe", O_RDONLY), POLLIN | POLLOUT, 0 };
	CHECK(set[N].fd >= 0);
	for (int i = 0; i < 3; i++)
		CHECK(poll(set, N + 1, -1) == 1 && set[N].revents == (POLLIN | POLLOUT));
	set[N].events = 0;
	CHECK(poll(set, N + 1, 10) == 0);
}

static void out_of_band(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0), c, s, n;
	fd_set r, e;

	CHECK(bind(l, (struct sockaddr *)&a, size) == 0 && listen(l, 1) == 0 &&
	      getsockname(l, (struct sockaddr *)&a, &size) == 0);
	c = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(c, (struct sockaddr *)&a, size) == 0 && (s = accept(l, NULL, NULL)) >= 0);
	for (int i = 0; i < 4; i++) {
		n = fill(&r);
		FD_ZERO(&e);
		FD_SET(s, &e);
		CHECK(select(s >= n ? s + 1 : n, &r, NULL, &e, &(struct timeval){ 0, 0 }) == 0);
	}
	CHECK(send(c, "!", 1, MSG_OOB) == 1);
	n = fill(&r);
	FD_ZERO(&e);
	FD_SET(s, &e);
	CHECK(select(s >= n ? s + 1 : n, &r, NULL, &e, NULL) == 1 && FD_ISSET(s, &e));
	set[N] = (struct pollfd){ s, POLLPRI, 0 };
	CHECK(poll(set, N + 1, -1) == 1 && set[N].revents == POLLPRI);
}

/* A hang-up is nothing for select's write and except sets. */
static void hang_up_for_select(void)
{
	fd_set r, e;
	int n;
	double begin;

	for (int i = 0; i < 6; i++) {
		n = fill(&r);
		FD_CLR(near_end[2], &r);
		FD_ZERO(&e);
		FD_SET(near_end[2], &e);
		if (i == 3)
			close(far_end[2]);
		begin = seconds();
		CHECK(select(n, &r, NULL, &e, &(struct timeval){ 0, 30000 }) == 0);
		CHECK(seconds() - begin >= 0.03);
	}
	n = fill(&r);
	CHECK(select(n, &r, NULL, NULL, NULL) == 1 && FD_ISSET(near_end[2], &r));
}

static void timeouts(void)
{
	struct timeval tv = { 0, 150000 };
	struct timespec ts = { 0, 150000000 };
	double begin = seconds(), took;
	fd_set s;
	int n = fill(&s);

	CHECK(poll(set, N, 150) == 0);
	took = seconds() - begin;
	CHECK(took >= 0.15 && took < 5);
	begin = seconds();
	CHECK(ppoll(set, N, &ts, NULL) == 0 && seconds() - begin >= 0.15);
	CHECK(ts.tv_nsec == 150000000);
	CHECK(select(n, &s, NULL, NULL, &tv) == 0 && tv.tv_sec == 0 && tv.tv_usec == 0);
	/* What is left of it. */
	say(4);
	tv = (struct timeval){ 5, 0 };
	n = fill(&s);
	CHECK(select(n, &s, NULL, NULL, &tv) == 1);
	CHECK(tv.tv_sec == 4 && tv.tv_usec > 0);
	n = fill(&s);
	ts = (struct timespec){ 5, 0 };
	CHECK(pselect(n, &s, NULL, NULL, &ts, NULL) == 1 && ts.tv_sec == 5);
	/* More than is allowed of microseconds is allowed in select. */
	CHECK(read(near_end[4], sink, 8) == 8);
	n = fill(&s);
	tv = (struct timeval){ 0, 1100000 };
	begin = seconds();
	CHECK(select(n, &s, NULL, NULL, &tv) == 0 && seconds() - begin >= 1.1);
	n = fill(&s);
	tv = (struct timeval){ -1, 0 };
	CHECK(select(n, &s, NULL, NULL, &tv) == -1 && errno == EINVAL);
	ts = (struct timespec){ 0, 1000000000 };
	CHECK(ppoll(set, N, &ts, NULL) == -1 && errno == EINVAL);
}

static volatile sig_atomic_t signals;
static void count_signal(int s)
{
	signals++;
}

static void on_signal(int s, void (*handler)(int), int flags)
{
	struct sigaction a = { .sa_handler = handler, .sa_flags = flags };

	CHECK(sigaction(s, &a, NULL) == 0);
}

static void alarms(long us, long seconds_between)
{
	struct itimerval t = { { seconds_between, 0 }, { us / 1000000, us % 1000000 } };

	CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
}

static void alarm_in(long us)
{
	alarms(us, 0);
}

static void interrupted_despite_restart(void)
{
	fd_set s, before;
	int n;

	on_signal(SIGALRM, count_signal, SA_RESTART);
	/* Early, and long after the library's first bound on its wait. */
	for (long us = 5000; us <= 605000; us += 200000) {
		set[8].revents = 0x11;
		alarms(us, 1); /* again, should the first come before the wait began */
		CHECK(poll(set, N, -1) == -1 && errno == EINTR);
		CHECK(set[8].revents == 0);
		n = fill(&s);
		before = s;
		alarms(us, 1);
		CHECK(select(n, &s, NULL, NULL, NULL) == -1 && errno == EINTR);
		CHECK(memcmp(&s, &before, sizeof s) == 0);
	}
	CHECK(signals >= 8);
}

static void mask_is_atomic(void)
{
	sigset_t block, none;
	struct timespec zero = { 0, 0 }, long_time = { 20, 0 };
	fd_set s;
	int n;

	on_signal(SIGUSR1, count_signal, 0);
	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &block, NULL) == 0);
	/* Pending before: comes in the wait, also in one of no length. */
	raise(SIGUSR1);
	CHECK(signals == 0 && ppoll(set, N, &long_time, &none) == -1 && errno == EINTR && signals == 1);
	raise(SIGUSR1);
	CHECK(ppoll(set, N, &zero, &none) == -1 && errno == EINTR && signals == 2);
	for (int i = 0; i < 4; i++) {
		n = fill(&s);
		CHECK(pselect(n, &s, NULL, NULL, &zero, NULL) == 0);
	}
	raise(SIGUSR1);
	n = fill(&s);
	CHECK(pselect(n, &s, NULL, NULL, &long_time, &none) == -1 && errno == EINTR && signals == 3);
	/* Something ready comes first, the signal stays pending. */
	say(6);
	raise(SIGUSR1);
	CHECK(ppoll(set, N, &long_time, &none) == 1 && signals == 3);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &none) == 0 && sigismember(&none, SIGUSR1));
}

static void count_once(int signal_number)
{
	signals++;
	signal(signal_number, SIG_DFL);
}

/* The handler is gone when the call ends, and none else is there. */
static void handler_gone_again(void)
{
	for (int how = 0; how < 3; how++) {
		double begin;

		if (how == 2)
			CHECK(signal(SIGALRM, count_once) != SIG_ERR);
		else
			on_signal(SIGALRM, how ? count_once : count_signal, how ? 0 : SA_RESETHAND);
		/* Long enough to be asleep by then, on a busy machine too. */
		alarm_in(400000);
		begin = seconds();
		CHECK(poll(set, N, 5000) == -1 && errno == EINTR && signals == how + 1);
		CHECK(seconds() - begin < 4);
	}
}

/* Also in a program that handles signals, but for the first time. */
static void stopped_with_a_handler(void)
{
	int ready[2];
	char byte = 1;
	pid_t child, status;

	CHECK(pipe(ready) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		on_signal(SIGUSR1, count_signal, 0);
		CHECK(poll(set, N, 0) == 0);
		CHECK(poll(set, N, 0) == 0);
		on_signal(SIGALRM, count_signal, 0);
		/* Long enough to be asleep by then, on a busy machine too. */
		alarm_in(400000);
		CHECK(poll(set, N, 5000) == -1 && errno == EINTR && signals == 1);
		CHECK(write(ready[1], &byte, 1) == 1);
		_exit(poll(set, N, 900) == 0 ? 7 : 8);
	}
	/* Stopped before its own signal, that would be the first EINTR. */
	CHECK(read(ready[0], &byte, 1) == 1);
	for (int i = 0; i < 5; i++) {
		usleep(100000);
		kill(child, SIGSTOP);
		usleep(20000);
		kill(child, SIGCONT);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void stopped_and_continued(void)
{
	/* No handler: neither call ends, as neither does without the library. */
	for (int late = 0; late < 2; late++) {
		pid_t child = fork(), status;

		CHECK(child >= 0);
		if (child == 0) {
			CHECK(poll(set, N, 0) == 0);
			CHECK(poll(set, N, 0) == 0);
			_exit(poll(set, N, 900) == 0 ? 7 : 8);
		}
		usleep(late ? 450000 : 60000);
		kill(child, SIGSTOP);
		usleep(50000);
		kill(child, SIGCONT);
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
}

static void poll_in_handler(int signal)
{
	struct pollfd many[100];
	int saved = errno;

	memcpy(many, set, sizeof many);
	signals += poll(many, 100, 0) >= 0;
	/* And closes one that the interrupted call waits for. */
	if (signals == 1)
		close(near_end[50]);
	errno = saved;
}

static void called_from_handler(void)
{
	int found;

	on_signal(SIGALRM, poll_in_handler, 0);
	alarm_in(20000);
	found = poll(set, N, -1);
	/* On a busy machine it may come before the wait has begun. */
	CHECK(found == -1 ? errno == EINTR : found == 1 && set[50].revents == POLLNVAL);
	CHECK(signals == 1);
	CHECK(poll(set, N, -1) == 1 && set[50].revents == POLLNVAL);
}

static volatile int to_close;

static void close_in_handler(int signal)
{
	if (to_close >= 0)
		close(to_close);
	to_close = -1;
}

/* Before the call, on its way into the kernel, in it: never is the wait for ever. */
static void closed_on_the_way(void)
{
	on_signal(SIGALRM, close_in_handler, 0);
	for (int i = 0; i < 3000; i++) {
		int at = i % N, kept = dup(near_end[at]), found;

		CHECK(kept >= 0);
		to_close = near_end[at];
		alarm_in(1 + i * 7 % 60);
		found = poll(set, N, -1);
		CHECK(found == -1 ? errno == EINTR : found == 1 && set[at].revents == POLLNVAL);
		CHECK(to_close == -1);
		CHECK(dup2(kept, near_end[at]) == near_end[at] && close(kept) == 0);
	}
}

static sigjmp_buf jump;
static void jump_out(int signal)
{
	siglongjmp(jump, 1);
}

static void left_by_longjmp(void)
{
	on_signal(SIGALRM, jump_out, 0);
	for (volatile int i = 0; i < 20; i++) {
		if (sigsetjmp(jump, 1) == 0) {
			alarm_in(3000);
			poll(set, N, -1);
			CHECK(!"reached");
		}
		say(i);
		CHECK(poll(set, N, -1) == 1 && set[i].revents == POLLIN);
		CHECK(poll(set, N, -1) == 1 && set[i].revents == POLLIN);
		CHECK(read(near_end[i], sink, 8) == 8);
	}
}

static void *waits(void *result)
{
	struct pollfd mine[N];

	memcpy(mine, set, sizeof mine);
	for (int i = 0; i < 3; i++)
		poll(mine, N, 0);
	*(int *)result = poll(mine, N, 20000);
	*(int *)result += mine[60].revents << 8;
	return NULL;
}

static void closed_while_another_waits(void)
{
	int results[4] = { 0 };
	pthread_t thread[4];

	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, waits, &results[i]);
	usleep(50000);
	close(near_end[60]);
	/* The waiting system call keeps the file open and is woken; then it
	 * looks the number up again. */
	CHECK(write(far_end[60], "x", 1) == 1);
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], NULL);
		CHECK(results[i] == 1 + (POLLNVAL << 8));
	}
	/* Nobody waits any more: now it is closed. */
	CHECK(write(far_end[60], "x", 1) == -1 && errno == EPIPE);
}

static int in_select; /* what the threads below wait with */

struct closed_wait {
	int ms, result, error, closed, data, begun;
	double took;
};

static void *waits_for_closed(void *with)
{
	struct closed_wait *w = with;
	struct timeval zero = { 0, 0 }, tv = { w->ms / 1000, w->ms % 1000 * 1000 };
	struct pollfd mine[N];
	fd_set s;
	double begin;

	memcpy(mine, set, sizeof mine);
	for (int i = 0; i < 4; i++) {
		int n = fill(&s);

		if (in_select)
			select(n, &s, NULL, NULL, &zero);
		else
			poll(mine, N, 0);
	}
	begin = seconds();
	__atomic_store_n(&w->begun, 1, __ATOMIC_SEQ_CST);
	if (in_select) {
		int n = fill(&s);

		w->result = select(n, &s, NULL, NULL, &tv);
		w->closed = FD_ISSET(near_end[60], &s) != 0;
		w->data = FD_ISSET(near_end[61], &s) != 0;
	} else {
		w->result = poll(mine, N, w->ms);
		w->closed = mine[60].revents == POLLNVAL;
		w->data = mine[61].revents == POLLIN;
	}
	w->error = errno;
	w->took = seconds() - begin;
	return NULL;
}

/* Nobody is woken by a close; who wakes, or whose time is over, sees it. */
static void closed_while_another_waits_on(void)
{
	static const struct {
		int in_select, ms, data;
	} cases[] = {
		{ 0, 250, 0 },
		{ 0, 700, 0 },
		{ 0, 5000, 1 },
		{ 1, 250, 0 },
		{ 1, 700, 0 },
		{ 1, 5000, 1 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct closed_wait w = { .ms = cases[i].ms };
		pthread_t thread;
		int pair[2];

		in_select = cases[i].in_select;
		CHECK(pthread_create(&thread, NULL, waits_for_closed, &w) == 0);
		while (!__atomic_load_n(&w.begun, __ATOMIC_SEQ_CST))
			sched_yield();
		usleep(25000);
		close(near_end[60]);
		if (cases[i].data) {
			/* Beyond the library's first bound on its wait. */
			usleep(350000);
			say(61);
		}
		pthread_join(thread, NULL);
		if (w.result != 1 + cases[i].data || !w.closed || w.data != cases[i].data)
			fprintf(stderr, "semantics: case %zu: %d after %.3f s (errno %d), closed %d, data %d\n", i,
				w.result, w.took, w.error, w.closed, w.data);
		CHECK(w.result == 1 + cases[i].data && w.closed && w.data == cases[i].data);
		if (!cases[i].data)
			CHECK(w.took * 1000 >= cases[i].ms - 1);
		if (cases[i].data)
			CHECK(read(near_end[61], sink, 8) == 8);
		close(far_end[60]);
		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
		near_end[60] = set[60].fd = pair[0];
		far_end[60] = pair[1];
	}
}

static struct {
	int fd, state;
} close_race;

static void state_await(int state)
{
	while (__atomic_load_n(&close_race.state, __ATOMIC_SEQ_CST) != state)
		sched_yield();
}

static void state_set(int state)
{
	__atomic_store_n(&close_race.state, state, __ATOMIC_SEQ_CST);
}

static void *waits_shortly(void *unused)
{
	struct timespec us = { 0, 1000 };
	struct pollfd mine[N];

	memcpy(mine, set, sizeof mine);
	for (;;) {
		do {
			if (__atomic_load_n(&close_race.state, __ATOMIC_SEQ_CST) == 9)
				return NULL;
			sched_yield();
		} while (__atomic_load_n(&close_race.state, __ATOMIC_SEQ_CST) != 1);
		mine[50] = (struct pollfd){ close_race.fd, POLLIN, 0 };
		poll(mine, N, 0);
		poll(mine, N, 0);
		state_set(2);
		for (int i = 0; i < 300 && __atomic_load_n(&close_race.state, __ATOMIC_SEQ_CST) == 2; i++)
			ppoll(mine, N, &us, NULL);
		mine[50].fd = -1;
		state_await(3);
		state_set(4);
	}
}

/* Closed at the very end of another's wait: closed it is. */
static void closed_as_a_wait_ends(void)
{
	pthread_t thread;
	unsigned random = 1;
	double until = seconds() + 2;

	CHECK(pthread_create(&thread, NULL, waits_shortly, NULL) == 0);
	while (seconds() < until) {
		int pair[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
		close_race.fd = pair[0];
		state_set(1);
		state_await(2);
		for (volatile int i = rand_r(&random) % 4000; i; i--)
			;
		close(pair[0]);
		state_set(3);
		state_await(4);
		CHECK(recv(pair[1], sink, 1, 0) == 0);
		close(pair[1]);
		state_set(0);
	}
	state_set(9);
	pthread_join(thread, NULL);
}

/* After a jump out of the wait nobody waits. */
static void closed_after_a_jump(void)
{
	on_signal(SIGALRM, jump_out, 0);
	if (sigsetjmp(jump, 1) == 0) {
		alarm_in(20000);
		poll(set, N, -1);
	}
	close(near_end[5]);
	CHECK(recv(far_end[5], sink, 1, 0) == 0);
}

static void *overlapping(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;
	struct pollfd mine[N];

	for (int turn = 0; turn < 3000; turn++) {
		int at = rand_r(&random) % 100 + (int)(uintptr_t)seed % 2 * 100;

		memcpy(mine, set, sizeof mine);
		say(at);
		CHECK(poll(mine, N, 10000) >= 1 && mine[at].revents & POLLIN);
		while (read(near_end[at], sink, sizeof sink) > 0)
			;
	}
	return NULL;
}

static void overlapping_sets(void)
{
	pthread_t thread[2];

	signal(SIGPIPE, SIG_IGN);
	for (uintptr_t i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, overlapping, (void *)(i + 2));
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

static void *cancelled(void *unused)
{
	poll(set, N, -1);
	return NULL;
}

static void cancellation(void)
{
	pthread_t thread;
	void *result;

	for (long us = 10000; us < 300000; us *= 5) {
		pthread_create(&thread, NULL, cancelled, NULL);
		usleep((useconds_t)us);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 &&
		      result == PTHREAD_CANCELED);
	}
	say(1);
	CHECK(poll(set, N, 0) == 1);
}

static void child_check(int status)
{
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void forked(int how)
{
	int status, pair[2];
	long child = -1;

	switch (how) {
	case 0: child = fork(); break;
	case 1: child = _Fork(); break;
	case 2: child = sys_call(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
	}
	CHECK(child >= 0);
	if (child == 0) {
		/* What the child closes and waits for is its own business. */
		for (int i = 0; i < N; i += 2)
			close(near_end[i]);
		CHECK(pipe(pair) == 0);
		set[0].fd = pair[0];
		for (int i = 2; i < N; i += 2)
			set[i].fd = -1;
		for (int i = 0; i < 4; i++)
			CHECK(poll(set, N, 0) == 0);
		CHECK(write(pair[1], "x", 1) == 1);
		CHECK(poll(set, N, 10000) == 1 && set[0].revents == POLLIN);
		_exit(0);
	}
	CHECK(waitpid((pid_t)child, &status, 0) == child);
	child_check(status);
	CHECK(poll(set, N, 0) == 0);
	for (int i = 0; i < 10; i++) {
		say(i);
		CHECK(poll(set, N, -1) == 1 && set[i].revents == POLLIN);
		CHECK(read(near_end[i], sink, 8) == 8);
	}
}
static void fork_by_libc(void)
{
	forked(0);
}
static void fork_without_handlers(void)
{
	forked(1);
}
static void fork_by_system_call(void)
{
	forked(2);
}

static void child_of_vfork(void)
{
	int status;
	pid_t child = vfork();

	if (child == 0) {
		/* On our memory, with descriptors of its own. */
		for (int i = 0; i < N; i++)
			close(near_end[i]);
		closefrom(3);
		_exit(poll(set, N, 0) == N ? 0 : 1);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	child_check(status);
	CHECK(poll(set, N, 0) == 0);
	for (int i = 0; i < 10; i++) {
		say(i);
		CHECK(poll(set, N, -1) == 1 && set[i].revents == POLLIN);
		CHECK(read(near_end[i], sink, 8) == 8);
	}
}

static void exec_starts_over(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		for (int i = 0; i < N; i++)
			fcntl(near_end[i], F_SETFD, 0);
		/* No descriptor that the program did not open itself. */
		execl("/bin/sh", "sh", "-c",
		      "case $(ls -l /proc/self/fd) in *eventpoll*) exit 1;; *pipe:*) ;; *) exit 2;; esac", NULL);
		_exit(2);
	}
	CHECK(waitpid(child, &status, 0) == child);
	child_check(status);
}

static void nested_epoll(void)
{
	int e[8], depth;
	struct epoll_event event = { .events = EPOLLIN };

	/* As deep as the kernel allows: the library's own is one too many. */
	for (depth = 0; depth < 8; depth++) {
		e[depth] = epoll_create1(0);
		if (epoll_ctl(e[depth], EPOLL_CTL_ADD, depth ? e[depth - 1] : near_end[70], &event))
			break;
	}
	CHECK(depth >= 4 && depth < 8);
	for (int i = 0; i < depth; i++)
		set[N + i] = (struct pollfd){ e[i], POLLIN, 0 };
	for (int i = 0; i < 3; i++)
		CHECK(poll(set, (nfds_t)(N + depth), 0) == 0);
	say(70);
	CHECK(poll(set, (nfds_t)(N + depth), -1) == 1 + depth);
	for (int i = 0; i < depth; i++)
		CHECK(set[N + i].revents == POLLIN);
	/* The program's own view of its instance is untouched. */
	CHECK(epoll_wait(e[0], &event, 1, 0) == 1);
}

static void more_than_fd_setsize(void)
{
	static unsigned long bits[3000 / 64 + 1];
	int high = fcntl(near_end[80], F_DUPFD, 2500);

	CHECK(high >= 2500);
	for (int turn = 0; turn < 4; turn++) {
		memset(bits, 0, sizeof bits);
		for (int i = 0; i < N; i++)
			bits[near_end[i] / 64] |= 1ul << near_end[i] % 64;
		bits[high / 64] |= 1ul << high % 64;
		bits[near_end[80] / 64] &= ~(1ul << near_end[80] % 64);
		CHECK(select(high + 1, (fd_set *)bits, NULL, NULL, &(struct timeval){ 0, 0 }) ==
		      (turn == 3));
		if (turn == 2)
			say(80);
	}
	CHECK(bits[high / 64] == 1ul << high % 64);
}

static void fortified(void)
{
	extern int __poll_chk(struct pollfd *, nfds_t, int, size_t);
	extern long __fdelt_chk(long);
	extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
	int status;
	pid_t child;

	say(90);
	CHECK(__poll_chk(set, N, -1, sizeof set) == 1 && set[90].revents == POLLIN);
	CHECK(__ppoll_chk(set, N, NULL, NULL, sizeof set) == 1);
	child = fork();
	if (child == 0) {
		close(2);
		__poll_chk(set, N, -1, sizeof set[0] * (N - 1));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	/* FD_SET of a fortified program: which word, or the end. */
	CHECK(__fdelt_chk(FD_SETSIZE - 1) == FD_SETSIZE / 64 - 1);
	child = fork();
	if (child == 0) {
		close(2);
		__fdelt_chk(FD_SETSIZE);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void bad_memory(void)
{
	volatile nfds_t many = 1u << 30;
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED && munmap(page, 8192) == 0);
	CHECK(poll((struct pollfd *)page, N, 0) == -1 && errno == EFAULT);
	CHECK(select(1000, (fd_set *)page, NULL, NULL, NULL) == -1 && errno == EFAULT);
	CHECK(select(-1, NULL, NULL, NULL, NULL) == -1 && errno == EINVAL);
	CHECK(poll(set, many, 0) == -1 && errno == EINVAL);
}

static void limit_lowered(void)
{
	struct rlimit limit = { 100, 100 };

	/* poll asks the limit, not what is open. */
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(poll(set, N, 0) == -1 && errno == EINVAL);
}

static void two_sets_in_turns(void)
{
	static struct pollfd other[N];
	int pair[2];

	for (int i = 0; i < 100; i++) {
		CHECK(pipe(pair) == 0);
		other[i] = (struct pollfd){ pair[0], POLLIN, 0 };
	}
	for (int turn = 0; turn < 200; turn++) {
		if (turn == 100)
			CHECK(write(pair[1], "x", 1) == 1);
		if (turn == 150)
			say(1);
		CHECK(poll(other, 100, 0) == (turn >= 100));
		CHECK(poll(set, N, 0) == (turn >= 150));
	}
}

/* A set that is another at each call. */
static void unstable_set(void)
{
	struct pollfd mine[100];
	unsigned random = 1;

	for (int turn = 0; turn < 2000; turn++) {
		int at = rand_r(&random) % 100;

		for (int i = 0; i < 100; i++)
			mine[i] = set[rand_r(&random) % N];
		say(mine[at].fd == near_end[0] ? 0 : 1);
		mine[at] = set[1];
		say(1);
		CHECK(poll(mine, 100, 10000) >= 1 && mine[at].revents == POLLIN);
		while (read(near_end[1], sink, sizeof sink) > 0)
			;
		while (read(near_end[0], sink, sizeof sink) > 0)
			;
	}
}

static void installs_filter(void)
{
	/* epoll from now on is death. */
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_wait, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_create1, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
	close(near_end[100]);
	CHECK(poll(set, N, -1) == 1 && set[100].revents == POLLNVAL);
	say(3);
	CHECK(poll(set, N, -1) == 2);
}

static void starts_under_filter(void)
{
	/* Found by a child that tries; then a fresh process under the same. */
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct sock_filter code[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_create1, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog program = { sizeof code / sizeof *code, code };

		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
		execl("/proc/self/exe", "semantics", "level_triggered", NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child);
	child_check(status);
}

/* No room to register: the kernel's answer, as if nothing had been tried. */
static void no_watches_left(void)
{
	FILE *f = fopen("/proc/sys/fs/epoll/max_user_watches", "r+");
	char before[32];
	int good;

	if (!f || !fgets(before, sizeof before, f)) {
		printf("  no_watches_left: /proc/sys/fs/epoll/max_user_watches cannot be read here\n");
		return;
	}
	rewind(f);
	if (geteuid() || fprintf(f, "%d", 10) < 0 || fflush(f)) {
		printf("  no_watches_left: max_user_watches cannot be changed here (root?)\n");
		return;
	}
	prepare();
	for (int i = 0; i < 3; i++)
		poll(set, N, 0);
	say(120);
	good = poll(set, N, 5000) == 1 && set[120].revents == POLLIN;
	rewind(f);
	fprintf(f, "%s", before);
	fclose(f);
	CHECK(good);
}

static void shares_the_table(void)
{
	/* A process with our descriptors and memory of its own. */
	int status, pair[2];
	long child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);

	CHECK(child >= 0);
	if (child == 0) {
		sys_call(SYS_close, near_end[130]);
		sys_call(SYS_exit_group, 0);
	}
	CHECK(waitpid((pid_t)child, &status, 0) == child);
	CHECK(poll(set, N, -1) == 1 && set[130].revents == POLLNVAL);
	CHECK(pipe(pair) == 0 && pair[0] == near_end[130]);
	CHECK(poll(set, N, 0) == 0);
	CHECK(write(pair[1], "x", 1) == 1 && poll(set, N, -1) == 1);
}

/* ------------------------- closed, and its number taken, by each function */

/* A quiet descriptor in set[N], known to the library. */
static int known(void)
{
	int fd = eventfd(0, 0);

	CHECK(fd >= 0);
	set[N] = (struct pollfd){ fd, POLLIN, 0 };
	for (int i = 0; i < 3; i++)
		CHECK(poll(set, N + 1, 0) == 0);
	return fd;
}

static void closed_by_each_function(void)
{
	uint64_t one = 1;
	FILE *f;
	int fd, other, pair[2];

	for (int way = 0; way < 5; way++) {
		fd = known();
		switch (way) {
		case 0: CHECK(close(fd) == 0); break;
		case 1: CHECK(close_range((unsigned)fd, (unsigned)fd, 0) == 0); break;
		case 2: closefrom(fd); break;
		case 3: CHECK((f = fdopen(fd, "r")) && fclose(f) == 0); break;
		case 4: CHECK(syscall(SYS_close, fd) == 0); break;
		}
		CHECK(poll(set, N + 1, 0) == 1 && set[N].revents == POLLNVAL);
		CHECK(poll(set, N + 1, -1) == 1 && set[N].revents == POLLNVAL);
	}
	/* Replaced by one that is ready. */
	other = eventfd(1, 0);
	for (int way = 0; way < 4; way++) {
		fd = known();
		switch (way) {
		case 0: CHECK(dup2(other, fd) == fd); break;
		case 1: CHECK(dup3(other, fd, O_CLOEXEC) == fd); break;
		case 2: CHECK(syscall(SYS_dup3, other, fd, 0) == fd); break;
		case 3:
			CHECK((f = fdopen(fd, "r")) && freopen("/proc/self/exe", "r", f) == f &&
			      fileno(f) == fd);
			break;
		}
		CHECK(poll(set, N + 1, 0) == 1 && set[N].revents == POLLIN);
		CHECK(poll(set, N + 1, -1) == 1 && set[N].revents == POLLIN);
		close(fd);
	}
	f = popen("read x", "w");
	CHECK(f);
	set[N] = (struct pollfd){ fileno(f), POLLIN, 0 };
	for (int i = 0; i < 3; i++)
		CHECK(poll(set, N + 1, 0) == 0);
	pclose(f);
	CHECK(poll(set, N + 1, 0) == 1 && set[N].revents == POLLNVAL);
	/* Nothing that fails forgets anything. */
	fd = known();
	CHECK(dup2(-1, fd) == -1 && errno == EBADF && close_range(5, 4, 0) == -1 && errno == EINVAL);
	CHECK(write(fd, &one, sizeof one) == sizeof one);
	CHECK(poll(set, N + 1, -1) == 1 && set[N].revents == POLLIN);
	CHECK(pipe(pair) == 0 && close(pair[0]) == 0 && close(pair[0]) == -1 && errno == EBADF);
}

/* Closed where no library sees it, and the number taken by what each function
 * creates: told at once. Each is ready in the end. */
static void taken_by_each_function(void)
{
	enum { PIPE,
	       PIPE2,
	       SOCKETPAIR,
	       SOCKET,
	       ACCEPT,
	       ACCEPT4,
	       EVENTFD,
	       TIMERFD,
	       SIGNALFD,
	       INOTIFY,
	       EPOLL,
	       EPOLL1,
	       MEMFD,
	       OPEN,
	       OPENAT,
	       CREAT,
	       DUP,
	       DUPFD,
	       PIDFD,
	       WAYS };
	extern int pidfd_open(pid_t, unsigned);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof a;
	struct epoll_event event = { .events = EPOLLIN };
	struct itimerspec at_once = { .it_value = { 0, 1 } };
	int l = socket(AF_INET, SOCK_STREAM, 0), ready = eventfd(1, 0);
	char path[] = "/tmp/semantics-XXXXXX";
	sigset_t usr2;
	pid_t dead = fork();

	if (dead == 0)
		_exit(0);
	CHECK(bind(l, (struct sockaddr *)&a, size) == 0 && listen(l, 4) == 0 &&
	      getsockname(l, (struct sockaddr *)&a, &size) == 0);
	sigemptyset(&usr2);
	sigaddset(&usr2, SIGUSR2);
	sigprocmask(SIG_BLOCK, &usr2, NULL);
	raise(SIGUSR2);
	close(mkstemp(path));
	for (int way = 0; way < WAYS; way++) {
		int fd = near_end[0], quiet = eventfd(0, 0), client = -1, pair[2] = { -1, -1 };
		struct timespec moment = { 5, 0 };
		struct pollfd truth;

		if (way == ACCEPT || way == ACCEPT4) {
			client = socket(AF_INET, SOCK_STREAM, 0);
			CHECK(connect(client, (struct sockaddr *)&a, size) == 0);
			CHECK(write(client, "x", 1) == 1);
		}
		CHECK(dup2(quiet, fd) == fd);
		close(quiet);
		for (int i = 0; i < 3; i++)
			CHECK(poll(set, N, 0) == 0);
		CHECK(sys_call(SYS_close, fd) == 0);
		switch (way) {
		case PIPE: CHECK(pipe(pair) == 0); break;
		case PIPE2: CHECK(pipe2(pair, O_CLOEXEC) == 0); break;
		case SOCKETPAIR: CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0); break;
		/* not connected: hung up */
		case SOCKET: pair[0] = socket(AF_INET, SOCK_STREAM, 0); break;
		case ACCEPT: pair[0] = accept(l, NULL, NULL); break;
		case ACCEPT4: pair[0] = accept4(l, NULL, NULL, SOCK_CLOEXEC); break;
		case EVENTFD: pair[0] = eventfd(1, 0); break;
		case TIMERFD: CHECK(timerfd_settime(pair[0] = timerfd_create(CLOCK_MONOTONIC, 0), 0, &at_once, NULL) == 0); break;
		case SIGNALFD: pair[0] = signalfd(-1, &usr2, 0); break;
		case INOTIFY:
			CHECK(inotify_add_watch(pair[0] = inotify_init1(0), path, IN_ATTRIB) >= 0);
			CHECK(chmod(path, 0600) == 0);
			break;
		case EPOLL: CHECK(epoll_ctl(pair[0] = epoll_create(1), EPOLL_CTL_ADD, ready, &event) == 0); break;
		case EPOLL1: CHECK(epoll_ctl(pair[0] = epoll_create1(0), EPOLL_CTL_ADD, ready, &event) == 0); break;
		case MEMFD: pair[0] = memfd_create("x", 0); break;
		case OPEN: pair[0] = open(path, O_RDONLY); break;
		case OPENAT: pair[0] = openat(AT_FDCWD, path, O_RDONLY); break;
		case CREAT: pair[0] = creat(path, 0600); break;
		case DUP: pair[0] = dup(ready); break;
		case DUPFD: pair[0] = fcntl(ready, F_DUPFD, 0); break;
		case PIDFD: pair[0] = pidfd_open(dead, 0); break;
		}
		CHECK(pair[0] == fd);
		if (pair[1] >= 0)
			CHECK(write(pair[1], "x", 1) == 1);
		truth = (struct pollfd){ fd, POLLIN, 0 };
		/* A timer or the network may need a moment. */
		CHECK(sys_call(SYS_ppoll, &truth, 1, &moment, 0, 8) == 1);
		if (poll(set, N, 0) != 1 || set[0].revents != truth.revents) {
			fprintf(stderr, "semantics: creation %d is not told: %x, not %x\n", way,
				set[0].revents, truth.revents);
			_exit(1);
		}
		if (pair[1] >= 0)
			close(pair[1]);
		if (client >= 0)
			close(client);
	}
	unlink(path);
	waitpid(dead, NULL, 0);
}

/* A descriptor that io_uring closes is found like one of a raw system call. */
static void closed_by_io_uring(void)
{
	struct io_uring_params p = { 0 };
	long ring = sys_call(SYS_io_uring_setup, 4, &p);
	char *sq, *cq;
	struct io_uring_sqe *sqes;
	unsigned tail;

	if (sys_failed(ring)) {
		printf("  closed_by_io_uring: not run: io_uring is refused here (errno %ld)\n", -ring);
		return;
	}
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		  MAP_SHARED, (int)ring, IORING_OFF_CQ_RING);
	sqes = mmap(NULL, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_SQES);
	CHECK(sq != MAP_FAILED && cq != MAP_FAILED && sqes != MAP_FAILED);
	memset(sqes, 0, sizeof *sqes);
	sqes->opcode = IORING_OP_CLOSE;
	sqes->fd = near_end[36];
	tail = *(unsigned *)(sq + p.sq_off.tail);
	((unsigned *)(sq + p.sq_off.array))[tail & *(unsigned *)(sq + p.sq_off.ring_mask)] = 0;
	__atomic_store_n((unsigned *)(sq + p.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	CHECK(sys_call(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
	CHECK(((struct io_uring_cqe *)(cq + p.cq_off.cqes))[0].res == 0);
	CHECK(sys_call(SYS_fcntl, near_end[36], F_GETFD) == -EBADF);
	CHECK(poll(set, N, 10000) == 1 && set[36].revents == POLLNVAL);
}

/* A terminal gets room without a wake-up; and takes the number of a socket. */
static void terminal_gets_room(void)
{
	char name[64];
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK), slave;

	CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 &&
	      ptsname_r(master, name, sizeof name) == 0);
	slave = open(name, O_RDWR | O_NOCTTY | O_NONBLOCK);
	CHECK(slave >= 0);
	CHECK(sys_call(SYS_dup3, slave, near_end[37], 0) == near_end[37]);
	set[37].events = POLLOUT;
	set[N] = (struct pollfd){ slave, POLLOUT, 0 };
	for (int turn = 0; turn < 5; turn++) {
		double begin = seconds();

		while (write(slave, sink, sizeof sink) > 0)
			;
		for (int quiet = 0; quiet < 20;) {
			ssize_t got = read(master, sink, sizeof sink);

			quiet = got > 0 ? 0 : quiet + 1;
			usleep(500);
		}
		CHECK(poll(set, N + 1, 10000) == 2 && set[37].revents == POLLOUT && set[N].revents == POLLOUT);
		CHECK(seconds() - begin < 8);
	}
}

/* One thread closes what another is about to register: known when it is closed. */
static int racing_fd, racing_state;
static void *racing(void *unused)
{
	struct pollfd mine[N];

	memcpy(mine, set, sizeof mine);
	for (int round = 0; round < 4000; round++) {
		while (__atomic_load_n(&racing_state, __ATOMIC_ACQUIRE) != 1)
			sched_yield();
		mine[50].fd = racing_fd;
		__atomic_store_n(&racing_state, 2, __ATOMIC_RELEASE);
		for (int turn = 0; __atomic_load_n(&racing_state, __ATOMIC_ACQUIRE) != 3; turn++) {
			/* Registered, changed, removed, again and again. */
			mine[50].events = turn % 3 ? POLLIN : POLLPRI;
			mine[50].fd = turn % 4 ? racing_fd : -1;
			poll(mine, N, 0);
		}
		mine[50].fd = racing_fd;
		if (poll(mine, N, 0) != 1 || mine[50].revents != POLLNVAL)
			return (void *)1;
		__atomic_store_n(&racing_state, 4, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void closed_while_another_registers(void)
{
	pthread_t thread;
	void *wrong = NULL;
	unsigned random = 7;

	pthread_create(&thread, NULL, racing, NULL);
	for (int round = 0; round < 4000; round++) {
		racing_fd = eventfd(0, 0);
		__atomic_store_n(&racing_state, 1, __ATOMIC_RELEASE);
		while (__atomic_load_n(&racing_state, __ATOMIC_ACQUIRE) != 2)
			sched_yield();
		for (volatile int spin = rand_r(&random) % 3000; spin; spin--)
			;
		close(racing_fd);
		__atomic_store_n(&racing_state, 3, __ATOMIC_RELEASE);
		while (__atomic_load_n(&racing_state, __ATOMIC_ACQUIRE) != 4) {
			if (pthread_tryjoin_np(thread, &wrong) == 0) {
				CHECK(!wrong);
				return;
			}
			sched_yield();
		}
	}
	pthread_join(thread, &wrong);
	CHECK(!wrong);
}

static void *makes_a_context(void *unused)
{
	struct pollfd mine[N];

	memcpy(mine, set, sizeof mine);
	for (int i = 0; i < 3; i++)
		poll(mine, N, 0);
	return NULL;
}

/* The program's limit is the program's, whatever the library needs. */
static void limit_stays(void)
{
	struct rlimit limit, now;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_max >= 8192) {
		limit.rlim_cur = 4096;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	}
	for (int round = 0; round < 100; round++) {
		pthread_t thread[8];

		for (int i = 0; i < 8; i++)
			pthread_create(&thread[i], NULL, makes_a_context, NULL);
		for (int i = 0; i < 8; i++)
			pthread_join(thread[i], NULL);
		CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == limit.rlim_cur &&
		      now.rlim_max == limit.rlim_max);
	}
}

static int eventpoll_find(int from)
{
	char path[40], target[40];

	for (int fd = from; fd < 200000; fd++) {
		ssize_t got;

		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		got = readlink(path, target, sizeof target - 1);
		target[got < 0 ? 0 : got] = 0;
		if (strstr(target, "eventpoll"))
			return fd;
	}
	return -1;
}

/* The private descriptor is closed by a system call of the program's own, while
 * the library also looks at something with the real call. */
static void private_gone_with_a_side(void)
{
	int private;

	set[N] = (struct pollfd){ open("/proc/self/exe", O_RDONLY), 0, 0 };
	for (int turn = 0; turn < 3; turn++) {
		for (int i = 0; i < 3; i++)
			CHECK(poll(set, N + 1, 0) == 0);
		private = eventpoll_find(set[N].fd + 1);
		CHECK(!served || private >= 0);
		if (private >= 0)
			CHECK(sys_call(SYS_close, private) == 0);
		CHECK(poll(set, N + 1, 0) == 0);
		say(5);
		CHECK(poll(set, N + 1, 0) == 1 && set[5].revents == POLLIN);
		CHECK(read(near_end[5], sink, 8) == 8);
	}
}

/* A number that got another file where nobody saw it: quiet, while the old file
 * is open elsewhere and readable. The answers are right after a while, for good. */
static void replaced_unseen_by_a_quiet_one(void)
{
	for (int with_select = 0; with_select < 2; with_select++) {
		int quiet = eventfd(0, 0), at = 33 + with_select, copy, wrong = 0;
		double begin, last = 0;

		say(at);
		CHECK(poll(set, N, 0) == 1);
		for (int i = 0; i < 4; i++) {
			fd_set s;
			int n = fill(&s);

			CHECK(select(n, &s, NULL, NULL, &(struct timeval){ 0, 0 }) == 1);
		}
		copy = dup(near_end[at]);
		CHECK(copy >= 0 && sys_call(SYS_dup3, quiet, near_end[at], 0) == near_end[at]);
		begin = seconds();
		while (seconds() - begin < 5) {
			fd_set s;
			int n = fill(&s);
			int r = with_select ? select(n, &s, NULL, NULL, &(struct timeval){ 0, 0 }) :
					      poll(set, N, 0);

			if (r) {
				wrong++;
				last = seconds() - begin;
			}
			usleep(2000);
		}
		if (last > 2.5)
			fprintf(stderr, "semantics: %d wrong answers, the last after %.2f s\n", wrong, last);
		CHECK(last <= 2.5);
	}
}

/* A perf event forgets that it has something when it is looked at. */
static void perf_event_tells(void)
{
	struct perf_event_attr a = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof a,
		.config = PERF_COUNT_SW_PAGE_FAULTS,
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_IP,
		.disabled = 1,
		.wakeup_events = 1,
	};
	int fd = (int)sys_call(SYS_perf_event_open, &a, 0, -1, -1, 0);
	struct perf_event_mmap_page *page;

	if (fd < 0) {
		printf("  perf_event_tells: not run: no perf events here (error %d)\n", -fd);
		return;
	}
	page = mmap(NULL, 9 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	for (int i = 0; i < 10; i++) {
		char *fresh;

		page->data_tail = page->data_head;
		set[N].fd = -1;
		poll(set, N + 1, 0);
		CHECK(ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) == 0);
		fresh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*(volatile char *)fresh = 1;
		munmap(fresh, 4096);
		CHECK(ioctl(fd, PERF_EVENT_IOC_DISABLE, 0) == 0);
		set[N] = (struct pollfd){ fd, POLLIN, 0 };
		CHECK(poll(set, N + 1, 10000) == 1 && set[N].revents & POLLIN);
	}
}

static void errno_is_left_alone(void)
{
	set[N] = (struct pollfd){ open("/proc/self/exe", O_RDONLY), POLLIN, 0 };
	for (int i = 0; i < 6; i++) {
		errno = EAGAIN;
		CHECK(poll(set, N + 1, 0) == 1 && errno == EAGAIN);
	}
}

/* The same place, but more than there is memory for. */
static void array_beyond_memory(void)
{
	struct pollfd *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED && munmap((char *)p + 4096, 4096) == 0);
	memcpy(p, set, N * sizeof *p);
	for (int i = 0; i < 4; i++)
		CHECK(poll(p, N, 0) == 0);
	CHECK(poll(p, 600, 0) == -1 && errno == EFAULT);
	CHECK(poll(p, N, 0) == 0);
}

/* Programs try like this whether there is such a call. */
static void call_tried_with_nothing(void)
{
	CHECK(syscall(SYS_clone3, NULL, 0) == -1 && errno == EINVAL);
	CHECK(syscall(SYS_clone3, NULL, 64) == -1 && errno == EFAULT);
	CHECK(syscall(SYS_rt_sigaction, SIGUSR1, 8, NULL, 8) == -1 && errno == EFAULT);
}

/* And the program gets the number: it is the program's. */
static void private_number_taken(void)
{
	struct rlimit limit;
	int private = eventpoll_find(far_end[N - 1] + 1), pair[2];

	CHECK(!served || private >= 0);
	if (private < 0)
	private = 5000;
	CHECK(pipe(pair) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_max <= (rlim_t) private + 1) {
		printf("  private_number_taken: not run: the limit cannot be raised above %d\n", private);
		return;
	}
	if (limit.rlim_cur <= (rlim_t) private + 1) {
		limit.rlim_cur = (rlim_t) private + 2;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	}
	CHECK(sys_call(SYS_dup3, pair[0], private, 0) == private);
	for (int i = 0; i < 10; i++) {
		say(i);
		CHECK(poll(set, N, 10000) == 1 && set[i].revents == POLLIN);
		CHECK(read(near_end[i], sink, 8) == 8);
	}
	CHECK(fcntl(private, F_GETFD) >= 0);
	CHECK(close(private) == 0);
}

/* Bits beyond the kernel's table of descriptors are nothing to it. */
static void bits_beyond_the_table(void)
{
	enum { FAR = 900000 };
	static unsigned long bits[FAR / 64 + 1];
	struct rlimit limit;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_cur > 4096) {
		limit.rlim_cur = 4096;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	}
	for (int turn = 0; turn < 6; turn++) {
		memset(bits, 0, sizeof bits);
		for (int i = 0; i < N; i++)
			bits[near_end[i] / 64] |= 1ul << near_end[i] % 64;
		if (turn >= 3)
			bits[FAR / 64] |= 1ul << FAR % 64;
		if (turn == 4)
			say(44);
		CHECK(select(FAR + 1, (fd_set *)bits, NULL, NULL, &(struct timeval){ 0, 0 }) == (turn >= 4));
		CHECK(!(bits[near_end[44] / 64] >> near_end[44] % 64 & 1) == (turn < 4));
		CHECK(!(bits[FAR / 64] >> FAR % 64 & 1) == (turn < 3));
	}
}

/* The library's epoll instance above the program's is none too many. */
static void nested_epoll_grows(void)
{
	int e[8], most, below = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };

	for (most = 0; most < 8; most++) {
		e[most] = epoll_create1(0);
		if (epoll_ctl(e[most], EPOLL_CTL_ADD, most ? e[most - 1] : near_end[70], &event))
			break;
	}
	CHECK(most >= 4 && most < 8);
	for (int i = 0; i <= most; i++)
		close(e[i]);
	/* One level less, all in the library's; then the last one below. */
	for (int i = 0; i < most - 1; i++) {
		e[i] = epoll_create1(0);
		CHECK(!i || epoll_ctl(e[i], EPOLL_CTL_ADD, e[i - 1], &event) == 0);
		set[N + i] = (struct pollfd){ e[i], POLLIN, 0 };
	}
	for (int i = 0; i < 4; i++)
		CHECK(poll(set, (nfds_t)(N + most - 1), 0) == 0);
	CHECK(epoll_ctl(below, EPOLL_CTL_ADD, near_end[70], &event) == 0);
	CHECK(epoll_ctl(e[0], EPOLL_CTL_ADD, below, &event) == 0);
	CHECK(poll(set, (nfds_t)(N + most - 1), 0) == 0);
	say(70);
	CHECK(poll(set, (nfds_t)(N + most - 1), -1) == most);
	CHECK(poll(set, (nfds_t)(N + most - 1), 10000) == most);
}

/* The kernel refuses what the library needs, from one moment to the next. */
static void refuse(long call, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };

	CHECK(sys_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	/* Not through libc: the library is to go on. */
	CHECK(sys_call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

static void epoll_refuses(void)
{
	static const struct {
		long call;
		int error;
	} cases[] = {
		{ SYS_epoll_ctl, ENOMEM },
		{ SYS_epoll_ctl, ENOSPC },
		{ SYS_epoll_ctl, ELOOP },
		{ SYS_epoll_ctl, EPERM },
		{ SYS_epoll_pwait, ENOSYS },
		{ SYS_epoll_pwait2, ENOSYS },
		{ SYS_epoll_pwait2, EPERM },
		{ SYS_epoll_create1, EMFILE },
		{ SYS_epoll_create1, ENOMEM },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int fresh = 0; fresh < 2; fresh++) {
			pid_t child = fork();
			int status;

			if (child == 0) {
				/* A context of this process, or only after the refusal. */
				for (int k = 0; !fresh && k < 4; k++)
					CHECK(poll(set, N, 0) == 0);
				refuse(cases[i].call, cases[i].error);
				for (int k = 0; k < 20; k++) {
					set[N + k] = (struct pollfd){ dup(far_end[k]), POLLIN, 0 };
					CHECK(poll(set, (nfds_t)(N + k + 1), 0) == 0);
				}
				for (int k = 0; k < 20; k++) {
					CHECK(write(near_end[k], "x", 1) == 1);
					say(k);
					CHECK(poll(set, N + 20, 10000) == 2 && set[k].revents == POLLIN &&
					      set[N + k].revents == POLLIN);
					CHECK(poll(set, N + 20, 0) == 2);
					CHECK(read(near_end[k], sink, 8) == 8 && read(far_end[k], sink, 1) == 1);
				}
				close(near_end[30]);
				CHECK(poll(set, N + 20, -1) == 1 && set[30].revents == POLLNVAL);
				_exit(0);
			}
			CHECK(waitpid(child, &status, 0) == child);
			if (!WIFEXITED(status) || WEXITSTATUS(status)) {
				fprintf(stderr, "semantics: epoll_refuses: call %ld, error %d, fresh %d: %x\n",
					cases[i].call, cases[i].error, fresh, status);
				_exit(1);
			}
		}
}

/* Registering again is refused while the instance is made anew. */
static void refused_while_made_anew(void)
{
	int private = eventpoll_find(far_end[N - 1] + 1);

	CHECK(!served || private >= 0);
	if (private >= 0)
		CHECK(sys_call(SYS_close, private) == 0);
	CHECK(poll(set, N, 0) == 0);
	refuse(SYS_epoll_ctl, ENOSPC);
	say(3);
	for (int i = 0; i < 3; i++)
		CHECK(poll(set, N, 0) == 1 && set[3].revents == POLLIN);
}

/* No more memory while the set grows: the answers stay right. */
static void memory_runs_out(void)
{
	enum { MANY = 1500,
	       FILES = 500,
	       MORE = 100 };
	static struct pollfd many[MANY];
	struct rlimit limit, none = { 1 << 20, 0 };
	int file = open("/proc/self/exe", O_RDONLY), at;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_max < 4096) {
		printf("  memory_runs_out: not run: 4,096 descriptors are not allowed here\n");
		return;
	}
	limit.rlim_cur = limit.rlim_cur < 4096 ? 4096 : limit.rlim_cur;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int i = 0; i < MANY; i++)
		many[i] = i < FILES        ? (struct pollfd){ dup(file), 0, 0 } :
			  i < FILES + MORE ? (struct pollfd){ -1, 0, 0 } :
					     (struct pollfd){ dup(near_end[i % N]), POLLIN, 0 };
	for (int i = 0; i < 4; i++)
		CHECK(poll(many, MANY, 0) == 0);
	CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
	none.rlim_max = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_AS, &none) == 0);
	for (at = FILES; at < FILES + MORE; at++) {
		many[at] = (struct pollfd){ dup(file), POLLIN, 0 };
		CHECK(poll(many, MANY, 0) == 1 && many[at].revents == POLLIN);
		many[at].events = 0;
		CHECK(poll(many, MANY, 0) == 0);
	}
	say(3);
	at = 0;
	for (int i = FILES + MORE; i < MANY; i++)
		at += i % N == 3;
	CHECK(poll(many, MANY, 0) == at && poll(many, MANY, -1) == at);
}

/* --------------------------------------------------------------------- */

#define TEST(f)       \
	{             \
#f, f \
	}
static const struct test {
	const char *name;
	void (*run)(void);
} tests[] = {
	TEST(level_triggered),
	TEST(interest_toggled),
	TEST(closed_is_invalid),
	TEST(duplicates_in_array),
	TEST(dup_survives_close),
	TEST(replaced_by_dup2),
	TEST(replaced_unseen),
	TEST(replaced_unseen_busy),
	TEST(closed_unseen),
	TEST(closed_by_stdio),
	TEST(arrived_over_a_socket),
	TEST(survives_close_range),
	TEST(survives_closefrom),
	TEST(survives_close_loop),
	TEST(survives_raw_closes),
	TEST(numbers_are_the_lowest),
	TEST(regular_files_are_ready),
	TEST(out_of_band),
	TEST(hang_up_for_select),
	TEST(timeouts),
	TEST(interrupted_despite_restart),
	TEST(mask_is_atomic),
	TEST(stopped_and_continued),
	TEST(called_from_handler),
	TEST(closed_on_the_way),
	TEST(left_by_longjmp),
	TEST(closed_while_another_waits),
	TEST(overlapping_sets),
	TEST(cancellation),
	TEST(fork_by_libc),
	TEST(fork_without_handlers),
	TEST(fork_by_system_call),
	TEST(child_of_vfork),
	TEST(exec_starts_over),
	TEST(nested_epoll),
	TEST(more_than_fd_setsize),
	TEST(fortified),
	TEST(bad_memory),
	TEST(limit_lowered),
	TEST(two_sets_in_turns),
	TEST(unstable_set),
	TEST(installs_filter),
	TEST(starts_under_filter),
	TEST(no_watches_left),
	TEST(shares_the_table),
	TEST(closed_by_each_function),
	TEST(taken_by_each_function),
	TEST(closed_by_io_uring),
	TEST(terminal_gets_room),
	TEST(closed_while_another_registers),
	TEST(limit_stays),
	TEST(private_gone_with_a_side),
	TEST(private_number_taken),
	TEST(bits_beyond_the_table),
	TEST(nested_epoll_grows),
	TEST(epoll_refuses),
	TEST(memory_runs_out),
	TEST(handler_gone_again),
	TEST(stopped_with_a_handler),
	TEST(closed_while_another_waits_on),
	TEST(closed_as_a_wait_ends),
	TEST(closed_after_a_jump),
	TEST(replaced_unseen_by_a_quiet_one),
	TEST(refused_while_made_anew),
	TEST(perf_event_tells),
	TEST(errno_is_left_alone),
	TEST(array_beyond_memory),
	TEST(call_tried_with_nothing),
};

/* What is found by a full look only. */
static int needs_recheck(const char *name)
{
	return strstr(name, "unseen") || strstr(name, "raw_closes") || strstr(name, "io_uring");
}

int main(int argc, char **argv)
{
	int failed = 0, run = 0, c, wake_ups_alone = 0, out = 0;
	const char *left_out[8];

	/* Some rules end a child by a signal: no core files. */
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
	while ((c = getopt(argc, argv, "lwx:")) != -1)
		switch (c) {
		case 'l':
			served = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "debox_select_served");
			if (!served) {
				fprintf(stderr, "semantics: -l: libdebox-select.so is not loaded\n");
				return 2;
			}
			break;
		case 'w':
			/* With a recheck that never comes: no wake-up may be lost
			 * that it would make good. */
			wake_ups_alone = 1;
			break;
		case 'x':
			if (out == 8)
				return 2;
			left_out[out++] = optarg;
			break;
		default:
			return 2;
		}
	argv += optind - 1;
	argc -= optind - 1;
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		int status;
		pid_t child;

		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		if (wake_ups_alone && needs_recheck(tests[i].name))
			continue;
		for (c = 0; c < out && strcmp(left_out[c], tests[i].name); c++)
			;
		if (c < out) {
			printf("  %s: left out\n", tests[i].name);
			continue;
		}
		run++;
		fflush(stdout);
		child = fork();
		if (child == 0) {
			signal(SIGPIPE, SIG_IGN);
			/* A wait that never ends is a failure too. */
			alarm(0);
			prepare();
			tests[i].run();
			exit(0);
		}
		for (int ticks = 0; waitpid(child, &status, WNOHANG) == 0; ticks++) {
			if (ticks == 6000) {
				fprintf(stderr, "semantics: %s: hangs\n", tests[i].name);
				kill(child, SIGKILL);
			}
			usleep(5000);
		}
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			failed++;
			fprintf(stderr, "semantics: %s FAILED (status %x)\n", tests[i].name, status);
		}
	}
	if (!run) {
		fprintf(stderr, "semantics: no test of that name\n");
		return 2;
	}
	printf("semantics: %d rules, %d failed\n", run, failed);
	return failed != 0;
}
