/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Where does the time of a request go, all its calls and its own computing
 * together?
 */
#include <debox.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A request: some computing, some waiting, some more computing. */
static unsigned request(void)
{
	struct timespec wait = { 0, 2000000 };
	unsigned x = 1;

	for (int i = 0; i < 1000000; i++)
		x = x * 1664525u + 1013904223u;
	DEBOX_CALL(nanosleep(&wait, NULL));
	char *block = malloc(1 << 22);
	if (block)
		memset(block, (int)x, 1 << 22); /* page faults in user mode */
	free(block);
	return x;
}

int main(void)
{
	struct debox_info info = { .size = sizeof info };
	struct debox_span span;
	char why[512];

	debox_open(NULL);
	if (debox_why(why, sizeof why))
		fprintf(stderr, "note: %s\n", why);
	debox_span_begin(&span);
	unsigned x = request();
	if (debox_span_end(&span, &info) == 0)
		debox_info_print(stdout, &info);
	return x == 0;
}
