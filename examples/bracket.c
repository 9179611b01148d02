/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a program ask about one call?
 *
 *     cc bracket.c -ldebox && ./a.out
 */
#include <debox.h>

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
	struct timespec ms = { 0, 1000000 };
	struct debox_info info = { .size = sizeof info };
	char why[512];

	debox_open(NULL);
	if (debox_why(why, sizeof why))
		fprintf(stderr, "note: %s\n", why);

	/* The macro returns what the expression returns; errno is its own. */
	if (DEBOX_CALL(nanosleep(&ms, NULL)) == 0 && debox_last(&info) == 0)
		debox_info_print(stdout, &info);

	/* The same in two steps, for code that is no single expression. */
	struct debox_frame frame;
	debox_call_begin(&frame, SYS_write);
	ssize_t n = write(1, "hello\n", 6);
	debox_call_end(&frame, debox_raw_result(n));
	info.size = sizeof info;
	if (debox_last(&info) == 0)
		debox_info_print(stdout, &info);
	return 0;
}
