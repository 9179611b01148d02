/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits of sockets can be provoked? */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>
#include "record.h"

static struct sockaddr_in local = { .sin_family = AF_INET };
static struct sockaddr_un name_un = { .sun_family = AF_UNIX };
static socklen_t name_un_size;

static int listener(int family, int backlog)
{
	int fd = MUST(socket(family, SOCK_STREAM, 0));
	if (family == AF_INET) {
		socklen_t size = sizeof(local);
		local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		MUST(bind(fd, (void *)&local, sizeof(local)));
		MUST(getsockname(fd, (void *)&local, &size));
	} else {
		name_un_size = sizeof(name_un);
		MUST(bind(fd, (void *)&name_un, sizeof(sa_family_t)));
		MUST(getsockname(fd, (void *)&name_un, &name_un_size));
	}
	MUST(listen(fd, backlog));
	return fd;
}

static void tcp_pair(int pair[2])
{
	int fd = listener(AF_INET, 8);
	pair[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(pair[0], (void *)&local, sizeof(local)));
	pair[1] = MUST(accept(fd, NULL, NULL));
}

void loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(ioctl(fd, SIOCGIFFLAGS, &request));
	request.ifr_flags |= IFF_UP;
	MUST(ioctl(fd, SIOCSIFFLAGS, &request));
	close(fd);
}

static void case_tcp_accept(void)
{
	int fd = listener(AF_INET, 8);
	ready();
	accept(fd, NULL, NULL);
}

static void case_tcp_recv(void)
{
	char byte;
	int pair[2];
	tcp_pair(pair);
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void case_tcp_send(void)
{
	int pair[2];
	tcp_pair(pair);
	fill(pair[0]);
	usleep(50000);
	fill(pair[0]);
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_tcp_splice(void)
{
	int pair[2];
	tcp_pair(pair);
	MUST(pipe(pipe_ends));
	ready();
	splice(pair[0], NULL, pipe_ends[1], NULL, 4096, 0);
}

static void case_tcp_connect(void)
{
	/* A full accept queue drops the SYN. */
	listener(AF_INET, 0);
	for (int i = 0; i < 2; i++) {
		int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		connect(fd, (void *)&local, sizeof(local));
	}
	settle();
	int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
	ready();
	connect(fd, (void *)&local, sizeof(local));
}

static void case_tcp_linger(void)
{
	int pair[2];
	struct linger linger = { 1, 100 };
	tcp_pair(pair);
	fill(pair[0]);
	MUST(setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	ready();
	close(pair[0]);
}

static void case_sock_lock(void)
{
	int pair[2];
	tcp_pair(pair);
	if (partner() == 0) {
		send(pair[0], stuck_memory(4096), 4096, 0);
		_exit(0);
	}
	settle();
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_udp_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_udp6_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_raw_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_UDPLITE));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_packet_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_SNAP)));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_netlink_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_vsock_accept(void)
{
	struct sockaddr_vm address = {
		.svm_family = AF_VSOCK,
		.svm_cid = VMADDR_CID_ANY,
		.svm_port = 4321,
	};
	int fd = MUST(socket(AF_VSOCK, SOCK_STREAM, 0));
	MUST(bind(fd, (void *)&address, sizeof(address)));
	MUST(listen(fd, 1));
	ready();
	accept(fd, NULL, NULL);
}

static void case_unix_accept(void)
{
	int fd = listener(AF_UNIX, 8);
	ready();
	accept(fd, NULL, NULL);
}

static void case_unix_connect(void)
{
	listener(AF_UNIX, 0);
	int first = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(connect(first, (void *)&name_un, name_un_size));
	int fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	ready();
	connect(fd, (void *)&name_un, name_un_size);
}

static void unix_recv(int type)
{
	char byte;
	int pair[2];
	MUST(socketpair(AF_UNIX, type, 0, pair));
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void unix_send(int type)
{
	int pair[2];
	MUST(socketpair(AF_UNIX, type, 0, pair));
	fill(pair[0]);
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_unix_recv_stream(void)
{
	unix_recv(SOCK_STREAM);
}
static void case_unix_recv_dgram(void)
{
	unix_recv(SOCK_DGRAM);
}
static void case_unix_recv_seqpacket(void)
{
	unix_recv(SOCK_SEQPACKET);
}
static void case_unix_send_stream(void)
{
	unix_send(SOCK_STREAM);
}
static void case_unix_send_dgram(void)
{
	unix_send(SOCK_DGRAM);
}
static void case_unix_send_seqpacket(void)
{
	unix_send(SOCK_SEQPACKET);
}

static void case_unix_lock(void)
{
	char byte;
	int pair[2];
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	MUST(write(pair[1], "xy", 2));
	if (partner() == 0) {
		recv(pair[0], stuck_memory(4096), 1, 0);
		_exit(0);
	}
	settle();
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void case_tcp_send_connecting(void)
{
	listener(AF_INET, 0);
	for (int i = 0; i < 2; i++) {
		int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		connect(fd, (void *)&local, sizeof(local));
	}
	settle();
	int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	connect(fd, (void *)&local, sizeof(local));
	fcntl(fd, F_SETFL, 0);
	ready();
	send(fd, "x", 1, 0);
}

/* Needs the loopback transport (vsock_loopback). */
static int vsock_pair(int pair[2])
{
	struct sockaddr_vm address = {
		.svm_family = AF_VSOCK,
		.svm_cid = VMADDR_CID_LOCAL,
		.svm_port = 4322,
	};
	int fd = MUST(socket(AF_VSOCK, SOCK_STREAM, 0));
	MUST(bind(fd, (void *)&address, sizeof(address)));
	MUST(listen(fd, 1));
	pair[0] = MUST(socket(AF_VSOCK, SOCK_STREAM, 0));
	MUST(connect(pair[0], (void *)&address, sizeof(address)));
	pair[1] = MUST(accept(fd, NULL, NULL));
	return fd;
}

static void case_vsock_recv(void)
{
	char byte;
	int pair[2];
	vsock_pair(pair);
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void case_vsock_send(void)
{
	int pair[2];
	vsock_pair(pair);
	fill(pair[0]);
	usleep(50000);
	fill(pair[0]);
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_rtnl_lock(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	for (int i = 0; i < 3; i++) {
		if (partner() != 0)
			continue;
		for (;;) {
			struct ifreq tunnel = { .ifr_flags = IFF_TUN | IFF_NO_PI };
			int fd = open("/dev/net/tun", O_RDWR);
			ioctl(fd, TUNSETIFF, &tunnel);
			close(fd);
		}
	}
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(ioctl(fd, SIOCGIFFLAGS, &request));
	ready();
	for (;;)
		ioctl(fd, SIOCSIFFLAGS, &request);
}

const struct test_case sockets_cases[] = {
	CASE(tcp_accept, "sock-accept"),
	CASE(tcp_recv, "sock-recv"),
	CASE(tcp_send, "sock-send"),
	CASE(tcp_splice, "sock-recv"),
	CASE(tcp_connect, "sock-connect"),
	CASE(tcp_send_connecting, "sock-connect"),
	CASE(tcp_linger, "sock-close"),
	CASE(sock_lock, "sock-lock"),
	CASE(udp_recv, "sock-recv"),
	CASE(udp6_recv, "sock-recv"),
	CASE(raw_recv, "sock-recv"),
	CASE(packet_recv, "packet-recv"),
	CASE(netlink_recv, "netlink-recv"),
	CASE(vsock_accept, "vsock-accept"),
	CASE(vsock_recv, "vsock-recv"),
	CASE(vsock_send, "vsock-send"),
	CASE(rtnl_lock, "?"),
	CASE(unix_accept, "unix-accept"),
	CASE(unix_connect, "unix-connect"),
	CASE(unix_lock, "unix-lock"),
	CASE(unix_recv_stream, "unix-recv"),
	CASE(unix_recv_dgram, "unix-recv"),
	CASE(unix_recv_seqpacket, "unix-recv"),
	CASE(unix_send_stream, "unix-send"),
	CASE(unix_send_dgram, "unix-send"),
	CASE(unix_send_seqpacket, "unix-send"),
	{ 0 },
};
