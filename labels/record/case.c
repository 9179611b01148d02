/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How does a case say that it is ready, start others, and give up? */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "record.h"

int ready_pipe[2], go_pipe[2];
const char *disk_device, *disk_type;
char scratch[] = "/tmp/debox-record-XXXXXX";
char disk[64];

void fail(const char *format, ...)
{
	int error = errno;
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "record: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(arguments);
	_exit(3);
}

/* Everything before this is set-up and not recorded. */
void ready(void)
{
	char byte = 0;
	MUST(write(ready_pipe[1], &byte, 1));
	MUST(read(go_pipe[0], &byte, 1));
}

/* A second process of the case; it dies with it. */
pid_t partner(void)
{
	pid_t child = MUST(fork());
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return child;
}

void pause_forever(void)
{
	for (;;)
		pause();
}

void settle(void)
{
	usleep(30000);
}

void write_file(const char *path, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, length) != length)
		fail("%s > %s", text, path);
	close(fd);
}

char *in_disk(const char *name)
{
	static char path[8][PATH_MAX];
	static int next;
	char *result = path[next++ % 8];
	snprintf(result, PATH_MAX, "%s/%s", disk, name);
	return result;
}
