/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits of terminals can be provoked? */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>
#include "record.h"

static int pty(int *master)
{
	struct termios raw;
	*master = MUST(posix_openpt(O_RDWR | O_NOCTTY));
	grantpt(*master);
	MUST(unlockpt(*master));
	int slave = MUST(open(ptsname(*master), O_RDWR | O_NOCTTY));
	tcgetattr(slave, &raw);
	cfmakeraw(&raw);
	tcsetattr(slave, TCSANOW, &raw);
	return slave;
}

static void case_tty_read(void)
{
	int master;
	char byte;
	int slave = pty(&master);
	ready();
	read(slave, &byte, 1);
}

static void case_tty_write(void)
{
	int master;
	int slave = pty(&master);
	/* A worker moves what was written to the other end, as far as it has room. */
	for (int i = 0; i < 10; i++) {
		fill(slave);
		usleep(5000);
	}
	ready();
	write(slave, "x", 1);
}

static void case_tty_lock(void)
{
	int master;
	int slave = pty(&master);
	if (partner() == 0) {
		for (;;) {
			static char block[4096];
			write(slave, block, sizeof(block));
		}
	}
	settle();
	ready();
	write(slave, "x", 1);
}

const struct test_case tty_cases[] = {
	CASE(tty_read, "tty-read"),
	CASE(tty_write, "tty-write"),
	CASE(tty_lock, "tty-lock"),
	{ 0 },
};
