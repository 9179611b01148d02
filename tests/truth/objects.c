// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Which object does a blocked call work on, when it is known?
 *
 *   objects lock [-d] [-m FROM TO] PATH...
 *     Waits 10 ms for the flock of each file, in order. While it waits, another
 *     thread puts /dev/null in the place of the descriptor, so that whoever looks
 *     late sees that. -d: the file is removed before. -m: in a mount namespace of
 *     its own, FROM is mounted over TO first.
 *   objects kinds DIRECTORY
 *     Waits some milliseconds in a call on each kind of object, and says what it
 *     was: a JSON line with call and text.
 *   objects race SECONDS
 *     Long reads of /dev/zero, while another thread puts /dev/null in its place and
 *     back again. What was read from /dev/null took no time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <termios.h>
#include <arpa/inet.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 12

static void fail(const char *what)
{
	fprintf(stderr, "objects: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int must(int result, const char *what)
{
	if (result < 0)
		fail(what);
	return result;
}

static void nap(int ms)
{
	struct timespec time = { 0, ms * 1000000l };

	nanosleep(&time, NULL);
}

static char main_state(void)
{
	char path[64], stat[256];
	const char *end;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	fd = must(open(path, O_RDONLY | O_CLOEXEC), path);
	length = must(read(fd, stat, sizeof(stat) - 1), path);
	close(fd);
	stat[length] = 0;
	end = strrchr(stat, ')');
	return end ? end[2] : '?';
}

/* Returns when the first thread has slept for so long: on a busy machine it may come
 * late to the call that is meant. */
static void main_sleeps(int ms)
{
	do {
		while (main_state() != 'S')
			nap(1);
		nap(ms);
	} while (main_state() != 'S');
}

/* ---- lock */

struct theft {
	int held;
	int waited;
};

static void *steal(void *argument)
{
	struct theft *theft = argument;
	int other = must(open("/dev/null", O_RDONLY), "/dev/null");

	main_sleeps(WAIT_MS / 2);
	must(dup2(other, theft->waited), "dup2");
	nap(WAIT_MS / 2);
	must(flock(theft->held, LOCK_UN), "unlock");
	close(other);
	return NULL;
}

static void lock(const char *path, int unlinked)
{
	struct theft theft;
	pthread_t thread;

	theft.held = open(path, O_RDONLY | O_CREAT, 0600);
	if (theft.held < 0 && errno == EISDIR)
		theft.held = open(path, O_RDONLY);
	must(theft.held, path);
	theft.waited = must(open(path, O_RDONLY), path);
	if (unlinked)
		must(unlink(path), "unlink");
	must(flock(theft.held, LOCK_EX), "the first lock");
	if (pthread_create(&thread, NULL, steal, &theft))
		fail("pthread_create");
	must(flock(theft.waited, LOCK_EX), "the second lock");
	pthread_join(thread, NULL);
	close(theft.waited);
	close(theft.held);
}

static int locks(int argc, char **argv)
{
	int unlinked = 0, at = 2;

	if (at < argc && !strcmp(argv[at], "-d")) {
		unlinked = 1;
		at++;
	}
	if (at + 2 < argc && !strcmp(argv[at], "-m")) {
		must(unshare(CLONE_NEWNS), "unshare");
		must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount / private");
		must(mount(argv[at + 1], argv[at + 2], NULL, MS_BIND, NULL), "mount --bind");
		at += 3;
	}
	for (; at < argc; at++)
		lock(argv[at], unlinked);
	return 0;
}

/* ---- kinds */

static void expect(const char *call, const char *text)
{
	printf("{\"call\": \"%s\", \"text\": \"%s\"}\n", call, text);
}

static void expect_numbered(const char *call, const char *kind, int fd)
{
	char text[128];

	snprintf(text, sizeof(text), "%s %d of process %d", kind, fd, getpid());
	expect(call, text);
}

static void expect_inode(const char *call, const char *kind, int fd)
{
	struct stat st;
	char text[64];

	must(fstat(fd, &st), "fstat");
	snprintf(text, sizeof(text), "%s %lu", kind, (unsigned long)st.st_ino);
	expect(call, text);
}

static void expect_pipe(const char *call, int fd)
{
	expect_inode(call, "pipe", fd);
}

/* After a while, one byte (or eight) for whoever waits. */
struct gift {
	int fd;
	int length;
	pthread_t thread;
};

static void *give(void *argument)
{
	struct gift *gift = argument;
	uint64_t one = 1;

	main_sleeps(WAIT_MS);
	must(write(gift->fd, &one, gift->length), "write");
	return NULL;
}

static void give_later(struct gift *gift, int fd, int length)
{
	gift->fd = fd;
	gift->length = length;
	if (pthread_create(&gift->thread, NULL, give, gift))
		fail("pthread_create");
}

static void receive(int fd)
{
	char byte;

	must(recv(fd, &byte, 1, 0), "recv");
}

static void ip_text(char *text, const struct sockaddr *address)
{
	char number[INET6_ADDRSTRLEN];

	if (address->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)address;

		inet_ntop(AF_INET, &in->sin_addr, number, sizeof(number));
		sprintf(text, "%s:%d", number, ntohs(in->sin_port));
	} else {
		const struct sockaddr_in6 *in = (const void *)address;

		inet_ntop(AF_INET6, &in->sin6_addr, number, sizeof(number));
		sprintf(text, "[%s]:%d", number, ntohs(in->sin6_port));
	}
}

static void expect_ip(const char *call, const char *protocol, int fd)
{
	struct sockaddr_storage local, peer;
	socklen_t length = sizeof(local);
	char here[80], there[80], text[256];

	must(getsockname(fd, (void *)&local, &length), "getsockname");
	ip_text(here, (void *)&local);
	length = sizeof(peer);
	if (getpeername(fd, (void *)&peer, &length)) {
		snprintf(text, sizeof(text), "%s %s", protocol, here);
	} else {
		ip_text(there, (void *)&peer);
		snprintf(text, sizeof(text), "%s %s with %s", protocol, here, there);
	}
	expect(call, text);
}

static int listener;

static void *connect_later(void *argument)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	int fd;

	must(getsockname(listener, (void *)&address, &length), "getsockname");
	fd = must(socket(address.ss_family, SOCK_STREAM, 0), "socket");
	main_sleeps(WAIT_MS);
	must(connect(fd, (void *)&address, length), "connect");
	*(int *)argument = fd;
	return NULL;
}

static void tcp(const struct sockaddr *address, socklen_t length)
{
	struct gift gift;
	pthread_t thread;
	int server, client;

	listener = socket(address->sa_family, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, address, length)) {
		printf("{\"missing\": %d}\n", address->sa_family);
		return;
	}
	must(listen(listener, 1), "listen");
	expect_ip("accept", "tcp", listener);
	if (pthread_create(&thread, NULL, connect_later, &client))
		fail("pthread_create");
	server = must(accept(listener, NULL, NULL), "accept");
	pthread_join(thread, NULL);
	expect_ip("recvfrom", "tcp", server);
	give_later(&gift, client, 1);
	receive(server);
	pthread_join(gift.thread, NULL);
	expect_ip("recvfrom", "tcp", client);
	give_later(&gift, server, 1);
	receive(client);
	pthread_join(gift.thread, NULL);
	close(server);
	close(client);
	close(listener);
}

static void unix_socket(const struct sockaddr_un *address, socklen_t length, const char *name)
{
	int listening = must(socket(AF_UNIX, SOCK_STREAM, 0), "socket"), server, client;
	struct gift gift;
	char text[256];

	must(bind(listening, (void *)address, length), "bind");
	must(listen(listening, 1), "listen");
	client = must(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
	must(connect(client, (void *)address, length), "connect");
	server = must(accept(listening, NULL, NULL), "accept");
	/* Both ends are its own: nobody else is there to be named. */
	snprintf(text, sizeof(text), "unix to %s", name);
	expect("recvfrom", text);
	give_later(&gift, server, 1);
	receive(client);
	pthread_join(gift.thread, NULL);
	snprintf(text, sizeof(text), "unix %s", name);
	expect("recvfrom", text);
	give_later(&gift, client, 1);
	receive(server);
	pthread_join(gift.thread, NULL);
	close(listening);
	close(server);
	close(client);
}

static void *write_fifo(void *argument)
{
	int fd;

	main_sleeps(WAIT_MS);
	fd = must(open(argument, O_WRONLY), "fifo");
	main_sleeps(WAIT_MS);
	must(write(fd, "x", 1), "write");
	close(fd);
	return NULL;
}

static void *make_file(void *argument)
{
	main_sleeps(WAIT_MS);
	close(must(open(argument, O_WRONLY | O_CREAT, 0600), argument));
	return NULL;
}

static void *signal_us(void *unused)
{
	main_sleeps(WAIT_MS);
	kill(getpid(), SIGUSR1);
	return unused;
}

static int kinds(const char *directory)
{
	struct itimerspec soon = { .it_value.tv_nsec = 5 * WAIT_MS * 1000000l };
	struct timespec until = { 0, WAIT_MS * 1000000l };
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct signalfd_siginfo info;
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd poll_one;
	struct termios mode;
	struct gift gift;
	pthread_t thread;
	sigset_t set;
	char text[4300], path[4200], buffer[512];
	uint64_t number;
	uint32_t word = 0;
	socklen_t length;
	int fds[2], fd, other;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);

	must(pipe(fds), "pipe");
	expect_pipe("read", fds[0]);
	give_later(&gift, fds[1], 1);
	must(read(fds[0], buffer, 1), "read");
	pthread_join(gift.thread, NULL);
	expect_pipe("poll", fds[0]);
	poll_one = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	/* As long as the others are on a slow machine, or it is not slow enough to be
	 * kept. */
	poll(&poll_one, 1, 10 * WAIT_MS);

	fd = must(epoll_create1(0), "epoll");
	must(epoll_ctl(fd, EPOLL_CTL_ADD, fds[0], &event), "epoll_ctl");
	expect_numbered("epoll_wait", "epoll", fd);
	epoll_wait(fd, &event, 1, WAIT_MS);

	fd = must(eventfd(0, 0), "eventfd");
	expect_numbered("read", "eventfd", fd);
	give_later(&gift, fd, 8);
	must(read(fd, &number, 8), "read");
	pthread_join(gift.thread, NULL);

	fd = must(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd");
	must(timerfd_settime(fd, 0, &soon, NULL), "timerfd_settime");
	expect_numbered("read", "timerfd", fd);
	must(read(fd, &number, 8), "read");

	fd = must(signalfd(-1, &set, 0), "signalfd");
	expect_numbered("read", "signalfd", fd);
	pthread_create(&thread, NULL, signal_us, NULL);
	must(read(fd, &info, sizeof(info)), "read");
	pthread_join(thread, NULL);

	fd = must(inotify_init(), "inotify");
	must(inotify_add_watch(fd, directory, IN_CREATE), "inotify_add_watch");
	expect_numbered("read", "inotify", fd);
	snprintf(path, sizeof(path), "%s/made", directory);
	pthread_create(&thread, NULL, make_file, path);
	must(read(fd, buffer, sizeof(buffer)), "read");
	pthread_join(thread, NULL);
	close(fd);

	fd = must(syscall(SYS_pidfd_open, getpid(), 0), "pidfd_open");
	expect_numbered("poll", "pidfd", fd);
	poll_one = (struct pollfd){ .fd = fd, .events = POLLIN };
	/* Longer than the one before, or it may not be slow enough to be kept. */
	poll(&poll_one, 1, 20 * WAIT_MS);

	tcp((void *)&in, sizeof(in));
	tcp((void *)&in6, sizeof(in6));
	fd = must(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	must(bind(fd, (void *)&in, sizeof(in)), "bind");
	expect_ip("recvfrom", "udp", fd);
	other = must(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	length = sizeof(in);
	must(getsockname(fd, (void *)&in, &length), "getsockname");
	must(connect(other, (void *)&in, length), "connect");
	give_later(&gift, other, 1);
	receive(fd);
	pthread_join(gift.thread, NULL);

	snprintf(un.sun_path, sizeof(un.sun_path), "%s/socket", directory);
	unix_socket(&un, sizeof(un), un.sun_path);
	snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "debox-objects-%d", getpid());
	un.sun_path[0] = 0;
	snprintf(text, sizeof(text), "@%s", un.sun_path + 1);
	unix_socket(&un, sizeof(sa_family_t) + 1 + strlen(un.sun_path + 1), text);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "socketpair");
	/* Nothing says whose the other end is: it made both itself. */
	expect_inode("recvfrom", "unix socket", fds[0]);
	give_later(&gift, fds[1], 1);
	receive(fds[0]);
	pthread_join(gift.thread, NULL);

	snprintf(path, sizeof(path), "%s/fifo", directory);
	must(mkfifo(path, 0600), "mkfifo");
	pthread_create(&thread, NULL, write_fifo, path);
	expect("openat", path);
	fd = must(open(path, O_RDONLY), "open");
	expect("read", path);
	must(read(fd, buffer, 1), "read");
	pthread_join(thread, NULL);

	must(openpty(&fd, &other, NULL, NULL, NULL), "openpty");
	must(tcgetattr(other, &mode), "tcgetattr");
	cfmakeraw(&mode);
	must(tcsetattr(other, TCSANOW, &mode), "tcsetattr");
	if (ttyname_r(other, text, sizeof(text)))
		fail("ttyname");
	expect("read", text);
	give_later(&gift, fd, 1);
	must(read(other, buffer, 1), "read");
	pthread_join(gift.thread, NULL);

	fd = must(memfd_create("a name", 0), "memfd_create");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	expect("flock", "memfd a name");
	lock(path, 0);
	expect("flock", directory);
	lock(directory, 0);

	snprintf(text, sizeof(text), "futex %p of process %d", (void *)&word, getpid());
	expect("futex", text);
	syscall(SYS_futex, &word, FUTEX_WAIT, 0, &until, NULL, 0);
	return 0;
}

/* ---- race */

static int raced;

static void *swap(void *unused)
{
	int zero = must(open("/dev/zero", O_RDONLY), "/dev/zero");
	int null = must(open("/dev/null", O_RDONLY), "/dev/null");

	for (;;) {
		nap(1);
		must(dup2(null, raced), "dup2");
		nap(3);
		must(dup2(zero, raced), "dup2");
	}
	return unused;
}

static int race(int seconds)
{
	const size_t length = 256 << 20;
	time_t end = time(NULL) + seconds;
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	if (memory == MAP_FAILED)
		fail("mmap");
	raced = must(open("/dev/zero", O_RDONLY), "/dev/zero");
	memset(memory, 1, length);
	if (pthread_create(&thread, NULL, swap, NULL))
		fail("pthread_create");
	while (time(NULL) < end)
		must(read(raced, memory, length), "read");
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 2 && !strcmp(argv[1], "lock"))
		return locks(argc, argv);
	if (argc == 3 && !strcmp(argv[1], "kinds"))
		return kinds(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "race"))
		return race(atoi(argv[2]));
	fprintf(stderr, "usage: objects lock [-d] [-m FROM TO] PATH... | kinds DIRECTORY | race SECONDS\n");
	return 2;
}
