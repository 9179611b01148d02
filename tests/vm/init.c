/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a guest tell the host its exit status?
 *
 * PID 1 of the test guests: runs /setup, takes in orphans, and writes the
 * status to the port of QEMU's isa-debug-exit device. In C because Debian's
 * kernels have no /dev/port, so that only ioperm() leads to the port.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_PORT 0x501

/* QEMU ends with 2 * value + 1, and with 1 for its own errors: 0 is not ours. */
#define ALL_PASSED 0x10
#define SOME_FAILED 0x11

int main(void)
{
	int status = -1;
	pid_t child = fork(), ended;

	if (child == 0) {
		char *argv[] = { "sh", "/setup", NULL };
		char *environment[] = { "PATH=/bin", "HOME=/", "NO_COLOR=1", "LC_ALL=C.UTF-8", NULL };

		execve("/bin/busybox", argv, environment);
		perror("init: /bin/busybox");
		_exit(127);
	}
	while ((ended = wait(&status)) != child)
		if (ended < 0 && errno != EINTR)
			break;
	sync();
	if (ioperm(EXIT_PORT, 1, 1))
		fprintf(stderr, "init: ioperm: %s\n", strerror(errno));
	else
		outb(ended == child && status == 0 ? ALL_PASSED : SOME_FAILED, EXIT_PORT);
	/* Only where the device is missing. */
	reboot(RB_POWER_OFF);
	return 1;
}
