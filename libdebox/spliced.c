/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which call has a spliced program made last, where nobody bracketed it?
 *
 * The trampolines of splice capture (splice/) leave in the thread's block when the last
 * call began, how long it took and what it returned; GS points to the block. What the
 * kernel side saw in the call it files under that begin.
 */
#include "internal.h"
#include "own_call.h"

#include <sys/auxv.h>

#if defined(__x86_64__)
#include "../splice/state.h"

#define HWCAP2_FSGSBASE 2ul /* Linux 5.9 */

/* Atomic. What GS points to in each thread of this process is a block, or nothing any more. */
static uint32_t process_is;
static __thread uint64_t own_start;
static __thread struct debox_spliced_call kept;
/* Whose these are: a forked child has them from its parent, and a block of its own. */
static __thread const volatile struct splice_block *kept_of;

static uint64_t gs_base(void)
{
	uint64_t base;

	__asm__ __volatile__("rdgsbase %0"
			     : "=r"(base));
	return base;
}

static const volatile struct splice_block *block_here(void)
{
	const volatile struct splice_block *b;

	if (!__atomic_load_n(&process_is, __ATOMIC_RELAXED))
		return NULL;
	b = (const volatile struct splice_block *)gs_base();
	/* Blocks are never unmapped. One that several threads have is none of them's. */
	if (!b || b->self != (uint64_t)b || b->state != SPLICE_TAKEN || b->area->off != SPLICE_ON)
		return NULL;
	if (b != kept_of) {
		kept.start = own_start = 0;
		kept_of = b;
	}
	return b;
}

/* The kernel looks at the set before it finds that there is no such way to change it. */
static int page_readable(uint64_t address)
{
	return sys_call6(SYS_rt_sigprocmask, -1, (long)address, 0, 8, 0, 0) == -EINVAL;
}

void debox_spliced_find_(void)
{
	const struct splice_block *b;

	if (!(getauxval(AT_HWCAP2) & HWCAP2_FSGSBASE))
		return;
	b = (const struct splice_block *)gs_base();
	if (!b || (uint64_t)b % SPLICE_PAGE || !page_readable((uint64_t)b) || b->self != (uint64_t)b ||
	    b->tid != (uint32_t)sys_call6(SYS_gettid, 0, 0, 0, 0, 0, 0) ||
	    (uint64_t)b->area % SPLICE_PAGE || !page_readable((uint64_t)b->area) ||
	    b->area->version != SPLICE_VERSION)
		return;
	/* Who asks for the record of its last call is to be told how long that took. */
	__atomic_store_n(&b->area->reads, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&process_is, 1, __ATOMIC_RELAXED);
}

/* Handlers of this thread may make calls meanwhile. */
static int last_read(const volatile struct splice_block *b, struct debox_spliced_call *to)
{
	uint32_t calls;

	for (int tries = 0; tries < 8; tries++) {
		calls = b->calls;
		DEBOX_BARRIER_();
		to->calls = calls;
		to->open = b->open.rsp != 0;
		to->start = b->open.start;
		if (!to->open) {
			to->nr = (int32_t)b->open.nr;
			to->wall_ns = b->last_ns;
			to->result = b->last_result;
			to->interrupted = b->inner_start > to->start;
		} else if (b->inner_start > to->start) {
			/* We are in the handler that made it. */
			to->start = b->inner_start;
			to->nr = (int32_t)b->inner_nr;
			to->wall_ns = b->inner_ns;
			to->result = b->inner_result;
			to->interrupted = 0;
		} else {
			return 0;
		}
		DEBOX_BARRIER_();
		if (calls != b->calls || to->open != (b->open.rsp != 0))
			continue;
		to->unstamped = to->wall_ns == SPLICE_NO_TIME;
		if (to->unstamped)
			to->wall_ns = 0;
		return to->start != 0;
	}
	return 0;
}

static void keep(const volatile struct splice_block *b)
{
	struct debox_spliced_call last;

	if (last_read(b, &last) && last.start != own_start)
		kept = last;
}

int debox_spliced_last_(struct debox_spliced_call *out)
{
	const volatile struct splice_block *b = block_here();

	if (!b)
		return 0;
	keep(b);
	*out = kept;
	return kept.start != 0;
}

long debox_own_call_(long nr, long a, long b, long c, long d, long e, long f)
{
	const volatile struct splice_block *block = block_here();
	struct debox_spliced_call own;
	long ret;

	if (!block)
		return sys_call6(nr, a, b, c, d, e, f);
	keep(block);
	ret = sys_call6(nr, a, b, c, d, e, f);
	if (last_read(block, &own))
		own_start = own.start;
	return ret;
}

#else

void debox_spliced_find_(void)
{
}

int debox_spliced_last_(struct debox_spliced_call *out)
{
	(void)out;
	return 0;
}

long debox_own_call_(long nr, long a, long b, long c, long d, long e, long f)
{
	return sys_call6(nr, a, b, c, d, e, f);
}

#endif
