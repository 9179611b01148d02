/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for events of descriptors can be provoked? */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/if_tun.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "record.h"

static void case_eventfd_read(void)
{
	eventfd_t value;
	int fd = MUST(eventfd(0, 0));
	ready();
	eventfd_read(fd, &value);
}

static void case_eventfd_write(void)
{
	int fd = MUST(eventfd(0, 0));
	eventfd_write(fd, UINT64_MAX - 1);
	ready();
	eventfd_write(fd, 1);
}

static void case_timerfd(void)
{
	uint64_t expirations;
	struct itimerspec later = { .it_value = { .tv_sec = 100 } };
	int fd = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
	MUST(timerfd_settime(fd, 0, &later, NULL));
	ready();
	read(fd, &expirations, sizeof(expirations));
}

static void case_poll(void)
{
	MUST(pipe(pipe_ends));
	struct pollfd fd = { pipe_ends[0], POLLIN, 0 };
	ready();
	poll(&fd, 1, -1);
}

static void case_ppoll(void)
{
	struct timespec long_time = { .tv_sec = 100 };
	ready();
	ppoll(NULL, 0, &long_time, NULL);
}

static void case_select(void)
{
	struct timeval long_time = { .tv_sec = 100 };
	fd_set set;
	MUST(pipe(pipe_ends));
	FD_ZERO(&set);
	FD_SET(pipe_ends[0], &set);
	ready();
	select(pipe_ends[0] + 1, &set, NULL, NULL, &long_time);
}

static void case_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	MUST(pipe(pipe_ends));
	int fd = MUST(epoll_create1(0));
	MUST(epoll_ctl(fd, EPOLL_CTL_ADD, pipe_ends[0], &event));
	ready();
	epoll_wait(fd, &event, 1, -1);
}

static void case_epoll_pwait2(void)
{
	struct epoll_event event;
	struct timespec long_time = { .tv_sec = 100 };
	int fd = MUST(epoll_create1(0));
	ready();
	syscall(441, fd, &event, 1, &long_time, NULL, 8);
}

static void case_inotify(void)
{
	char buffer[4096];
	int fd = MUST(inotify_init());
	ready();
	read(fd, buffer, sizeof(buffer));
}

static void case_fanotify_read(void)
{
	char buffer[4096];
	int fd = MUST(fanotify_init(FAN_CLASS_NOTIF, O_RDONLY));
	ready();
	read(fd, buffer, sizeof(buffer));
}

static void case_fanotify_permission(void)
{
	MUST(mkstemp(lock_path));
	if (partner() == 0) {
		int fd = MUST(fanotify_init(FAN_CLASS_CONTENT, O_RDONLY));
		MUST(fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, lock_path));
		pause_forever();
	}
	settle();
	ready();
	open(lock_path, O_RDONLY);
}

static void case_io_uring(void)
{
	struct io_uring_params parameters = { 0 };
	int fd = MUST((int)syscall(SYS_io_uring_setup, 8, &parameters));
	ready();
	syscall(SYS_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void case_aio(void)
{
	aio_context_t context = 0;
	struct io_event event;
	MUST(syscall(SYS_io_setup, 4, &context));
	ready();
	syscall(SYS_io_getevents, context, 1, 1, &event, NULL);
}

static void case_tun_read(void)
{
	char buffer[2048];
	struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd = MUST(open("/dev/net/tun", O_RDWR));
	MUST(ioctl(fd, TUNSETIFF, &request));
	ready();
	read(fd, buffer, sizeof(buffer));
}

static void case_kernel_log(void)
{
	char buffer[8192];
	int fd = MUST(open("/dev/kmsg", O_RDONLY));
	lseek(fd, 0, SEEK_END);
	ready();
	read(fd, buffer, sizeof(buffer));
}

const struct test_case events_cases[] = {
	CASE(eventfd_read, "eventfd"),
	CASE(eventfd_write, "eventfd"),
	CASE(timerfd, "timerfd"),
	CASE(poll, "poll"),
	CASE(ppoll, "poll"),
	CASE(select, "select"),
	CASE(epoll, "epoll"),
	CASE(epoll_pwait2, "epoll"),
	CASE(inotify, "inotify"),
	CASE(fanotify_read, "fanotify"),
	CASE(fanotify_permission, "fanotify-permission"),
	CASE(io_uring, "io-uring"),
	CASE(aio, "aio"),
	CASE(tun_read, "tun-read"),
	CASE(kernel_log, "kernel-log"),
	{ 0 },
};
