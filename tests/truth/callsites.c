/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which place in the program makes how many calls?
 *
 * callsites: 700 preads of 10 bytes in reads_from_cgi(), 500 in
 * reads_from_file() (the paper's question: which reads are of CGI programs?),
 * 20 sleeps of 2 ms in sleeps_in_handler() as SIGALRM's handler, 30 in
 * sleeps_deep() six calls down, 64 KiB through stdio in writes_buffered().
 * The compiler keeps these functions apart and their frames without rbp.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone, noipa))

static char bytes[64];
static volatile int sink;

APART static int reads_from_cgi(int fd)
{
	int n = 0;

	for (int i = 0; i < 700; i++)
		n += pread(fd, bytes, 10, 0) == 10;
	return n;
}

APART static int reads_from_file(int fd)
{
	int n = 0;

	for (int i = 0; i < 500; i++)
		n += pread(fd, bytes, 10, 0) == 10;
	return n + 1;
}

APART static void nap(void)
{
	struct timespec t = { .tv_nsec = 2000000 };

	while (nanosleep(&t, &t) != 0)
		;
	sink++;
}

APART static void sleeps_in_handler(int sig)
{
	(void)sig;
	for (int i = 0; i < 20; i++)
		nap();
	sink++;
}

APART static int sleeps_deep(int depth)
{
	char room[200];

	room[depth] = (char)depth;
	if (depth == 0) {
		for (int i = 0; i < 30; i++)
			nap();
	} else {
		sink += sleeps_deep(depth - 1);
	}
	return room[depth];
}

APART static int writes_buffered(const char *path)
{
	FILE *f = fopen(path, "w");

	if (!f)
		return 1;
	for (int i = 0; i < 8192; i++)
		fputs("12345678", f);
	return fclose(f);
}

int main(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	char path[] = "/tmp/debox-callsites-XXXXXX";
	int temporary = mkstemp(path);

	if (fd < 0 || temporary < 0)
		return 1;
	if (reads_from_cgi(fd) != 700 || reads_from_file(fd) != 501)
		return 2;
	sink += sleeps_deep(6);
	signal(SIGALRM, sleeps_in_handler);
	raise(SIGALRM);
	sink += writes_buffered(path);
	unlink(path);
	printf("done\n");
	return 0;
}
