/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a program compile and run that knows nothing but the paper's Figure 3?
 */
#include <debox_compat.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

DeBoxInfo info, other;

int main(void)
{
	struct PerSleepInfo *p = info.psi;
	struct CallTrace *t = info.ct;
	union CallTime *when = &info.CallTime;
	int fd, bad = 0;

	if (DeBoxControl(&info, 5, 200))
		return 1;
	fd = open("/proc/self/status", O_RDONLY);
	bad |= info.syscallNum != SYS_openat;
	bad |= read(fd, &other, sizeof other) <= 0;
	bad |= info.syscallNum != SYS_read || when->callTimeval.tv_sec != 0;
	bad |= info.numPerSleepInfo < 0 || info.numPerSleepInfo > 5 || info.traceDepth != 0;
	bad |= p->blockingLine < 0 || t->deltaTime != 0;
	memset(&other, 0, sizeof other);
	DeBoxControl(&other, 0, 0);
	close(fd);
	bad |= info.syscallNum != SYS_read || other.syscallNum != SYS_close;
	DeBoxControl(NULL, 0, 0);
	getppid();
	bad |= other.syscallNum != SYS_close;
	printf("compat_paper: %s\n", bad ? "FAILED" : "ok");
	return bad;
}
