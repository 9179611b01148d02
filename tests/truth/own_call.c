/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Does the library measure a call of this very program, or why not? */
#include <debox.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	struct debox_info info = { .size = sizeof info };
	char why[512] = "";

	debox_open(NULL);
	DEBOX_CALL_NR(SYS_clock_nanosleep, usleep(20000));
	debox_last(&info);
	debox_why(why, sizeof why);
	printf("%s %s %s\n", debox_status() == DEBOX_STATUS_MEASURED ? "measured" : "wall",
	       info.blocked_ns > 10000000 ? "blocked" : "-", why);
	return 0;
}
