/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a program act on its own slow calls, at the moment they happen?
 *
 *     cc watch.c -ldebox && ./a.out
 *
 * Writes a file with fsync and reports each one that took longer than 1 ms,
 * with the account of its time. A real server would count, log, or abort():
 * the core's stack is then the path that made the call.
 */
#include <debox.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void slow(const struct debox_info *info, void *context)
{
	unsigned *count = context;

	if (++*count <= 3)
		debox_info_print(stdout, info);
}

int main(int argc, char **argv)
{
	const char *condition = argc > 1 ? argv[1] : "call == fsync && wall > 1ms";
	struct debox_watch_error error;
	struct debox_watch_counts counts;
	unsigned count = 0;
	char name[] = "watch-XXXXXX";
	int fd, watch;

	debox_open(NULL);
	watch = debox_watch_add(condition, slow, &count, &error);
	if (watch < 0) {
		fprintf(stderr, "%s\n%s\n%*s^ %s\n", error.text, condition,
			error.column ? (int)error.column - 1 : 0, "", error.help);
		return 2;
	}
	fd = mkstemp(name);
	if (fd < 0)
		return 1;
	unlink(name);
	for (int i = 0; i < 50; i++) {
		if (DEBOX_CALL(write(fd, "entry\n", 6)) < 0 ||
		    DEBOX_CALL_NR(SYS_fsync, fsync(fd)) < 0)
			return 1;
	}
	debox_watch_read(watch, &counts);
	printf("%llu of 50 calls met: %s\n", (unsigned long long)counts.met, condition);
	return 0;
}
