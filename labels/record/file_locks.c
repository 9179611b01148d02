/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for file locks and leases can be provoked? */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include "record.h"

char lock_path[] = "lock-XXXXXX";

static void hold_lock(short type, int command)
{
	struct flock all = { .l_type = type };
	MUST(mkstemp(lock_path));
	if (partner() == 0) {
		int fd = MUST(open(lock_path, O_RDWR));
		MUST(command ? fcntl(fd, command, &all) : flock(fd, LOCK_EX));
		pause_forever();
	}
	settle();
}

static void case_flock(void)
{
	hold_lock(0, 0);
	int fd = MUST(open(lock_path, O_RDWR));
	ready();
	flock(fd, LOCK_EX);
}

static void case_posix_lock(void)
{
	struct flock all = { .l_type = F_WRLCK };
	hold_lock(F_WRLCK, F_SETLK);
	int fd = MUST(open(lock_path, O_RDWR));
	ready();
	fcntl(fd, F_SETLKW, &all);
}

static void case_ofd_lock(void)
{
	struct flock all = { .l_type = F_WRLCK };
	hold_lock(F_WRLCK, F_SETLK);
	int fd = MUST(open(lock_path, O_RDWR));
	ready();
	fcntl(fd, F_OFD_SETLKW, &all);
}

static void case_lease_break(void)
{
	/* Nobody may have it open for writing, or there is no lease. */
	close(MUST(mkstemp(lock_path)));
	if (partner() == 0) {
		signal(SIGIO, SIG_IGN);
		int fd = MUST(open(lock_path, O_RDONLY));
		MUST(fcntl(fd, F_SETLEASE, F_RDLCK));
		pause_forever();
	}
	settle();
	ready();
	open(lock_path, O_WRONLY);
}

const struct test_case file_locks_cases[] = {
	CASE(flock, "flock"),
	CASE(posix_lock, "posix-lock"),
	CASE(ofd_lock, "posix-lock"),
	CASE(lease_break, "lease-break"),
	{ 0 },
};
