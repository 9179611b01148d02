/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What were the calls before the one that was slow?
 *
 * Linked with -ldebox-wrap, so that every libc call has a record without a
 * bracket. The program looks only when something took long.
 */
#include <debox.h>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
	static struct debox_info h[8];
	struct debox_info info = { .size = sizeof info };
	uint64_t lost;
	char buf[512];

	debox_open(NULL);
	for (int round = 0; round < 5; round++) {
		int fd = open("/proc/self/status", O_RDONLY);

		if (fd < 0 || read(fd, buf, sizeof buf) < 0)
			return 1;
		close(fd);
		usleep(round == 3 ? 20000 : 10);
		if (debox_last(&info) || info.wall_ns < 10000000)
			continue;
		h[0].size = sizeof h[0];
		int n = debox_history_read(h, 8, &lost);
		printf("slow in round %d; the last %d calls (%llu older ones not shown):\n", round, n,
		       (unsigned long long)lost);
		for (int i = 0; i < n; i++) {
			const char *name = debox_call_name(h[i].nr);

			printf("  %-16s = %-6lld %10.3f us\n", name ? name : "?",
			       (long long)h[i].retval, (double)h[i].wall_ns / 1e3);
		}
	}
	return 0;
}
