/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits of pipes and FIFOs can be provoked? */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "record.h"

int pipe_ends[2];

void fill(int fd)
{
	static char block[65536];
	int flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	while (write(fd, block, sizeof(block)) > 0)
		;
	while (write(fd, block, 1) > 0)
		;
	fcntl(fd, F_SETFL, flags);
}

static void case_pipe_read(void)
{
	char byte;
	MUST(pipe(pipe_ends));
	ready();
	read(pipe_ends[0], &byte, 1);
}

static void case_pipe_write(void)
{
	MUST(pipe(pipe_ends));
	fill(pipe_ends[1]);
	ready();
	write(pipe_ends[1], "x", 1);
}

static void case_pipe_splice_in(void)
{
	MUST(pipe(pipe_ends));
	int null = MUST(open("/dev/null", O_WRONLY));
	ready();
	splice(pipe_ends[0], NULL, null, NULL, 4096, 0);
}

static void case_pipe_vmsplice(void)
{
	static char page[4096] __attribute__((aligned(4096)));
	struct iovec vec = { page, sizeof(page) };
	MUST(pipe(pipe_ends));
	fill(pipe_ends[1]);
	ready();
	vmsplice(pipe_ends[1], &vec, 1, 0);
}

static void case_pipe_tee(void)
{
	int other[2];
	MUST(pipe(pipe_ends));
	MUST(pipe(other));
	ready();
	tee(pipe_ends[0], other[1], 4096, 0);
}

static void case_pipe_splice_pipe(void)
{
	int other[2];
	MUST(pipe(pipe_ends));
	MUST(pipe(other));
	write(pipe_ends[1], "x", 1);
	fill(other[1]);
	ready();
	splice(pipe_ends[0], NULL, other[1], NULL, 4096, 0);
}

static void case_fifo_open(void)
{
	char path[] = "fifo-XXXXXX";
	MUST(mkdtemp(path));
	char fifo[64];
	snprintf(fifo, sizeof(fifo), "%s/f", path);
	MUST(mkfifo(fifo, 0600));
	ready();
	open(fifo, O_RDONLY);
}

static void case_pipe_lock(void)
{
	MUST(pipe(pipe_ends));
	if (partner() == 0) {
		write(pipe_ends[1], stuck_memory(4096), 4096);
		_exit(0);
	}
	settle();
	ready();
	write(pipe_ends[1], "x", 1);
}

const struct test_case pipes_cases[] = {
	CASE(pipe_read, "pipe-read"),
	CASE(pipe_write, "pipe-write"),
	CASE(pipe_splice_in, "pipe-read"),
	CASE(pipe_vmsplice, "pipe-write"),
	CASE(pipe_tee, "pipe-read"),
	CASE(pipe_splice_pipe, "pipe-write"),
	CASE(fifo_open, "fifo-open"),
	CASE(pipe_lock, "pipe-lock"),
	{ 0 },
};
