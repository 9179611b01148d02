/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for futexes can be provoked? */
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "record.h"

static uint32_t word[16];

static void case_futex_wait(void)
{
	ready();
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL);
}

static void case_futex_bitset_timeout(void)
{
	struct timespec until = { .tv_sec = 1u << 30 };
	ready();
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, 0, &until, NULL, ~0u);
}

static void case_futex_waitv(void)
{
	struct {
		uint64_t value, address;
		uint32_t flags, reserved;
	} waiters[2] = {
		{ 0, (uintptr_t)&word[0], 2, 0 },
		{ 0, (uintptr_t)&word[1], 2, 0 },
	};
	ready();
	syscall(449, waiters, 2, 0, NULL, 0);
}

static void case_futex_pi(void)
{
	uint32_t *shared = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	if (partner() == 0) {
		syscall(SYS_futex, shared, FUTEX_LOCK_PI, 0, NULL);
		pause_forever();
	}
	settle();
	ready();
	syscall(SYS_futex, shared, FUTEX_LOCK_PI, 0, NULL);
}

static void case_futex_requeue_pi(void)
{
	ready();
	syscall(SYS_futex, &word[0], FUTEX_WAIT_REQUEUE_PI, 0, NULL, &word[1], 0);
}

const struct test_case futexes_cases[] = {
	CASE(futex_wait, "futex"),
	CASE(futex_bitset_timeout, "futex"),
	CASE(futex_waitv, "futex"),
	CASE(futex_pi, "futex-pi"),
	CASE(futex_requeue_pi, "futex"),
	{ 0 },
};
