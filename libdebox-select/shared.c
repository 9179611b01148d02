/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do all threads of the process have in common, and how do they take turns?
 */
#include "internal.h"

#include <stddef.h>
#include <sys/mman.h>

struct process debox_process = { .threshold = THRESHOLD_DEFAULT, .recheck_ns = RECHECK_DEFAULT_NS };
__thread struct thread debox_thread;

static uint32_t lock; /* debox_lock() */

void *debox_memory_map(size_t bytes)
{
	long at = sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return sys_failed(at) ? NULL : (void *)at;
}

void debox_process_turn_off(enum off why)
{
	uint32_t not = OFF_NOT;

	if (__atomic_compare_exchange_n(&debox_process.off, &not, why, 0, __ATOMIC_SEQ_CST,
					__ATOMIC_SEQ_CST))
		debox_statistics->off = why;
}

void debox_lock(sigset_t *old)
{
	uint64_t all = ~0ull;

	/* A signal handler of this thread must not wait for this thread; nor may it
	 * be cancelled here. */
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, &all, old, 8);
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
		sys_call(SYS_sched_yield);
}

void debox_unlock(const sigset_t *old)
{
	__atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, old, 0, 8);
}

void debox_lock_reset(void)
{
	lock = 0;
}
