/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does the interposer count the calls of a run?
 *
 * With $DEBOX_COLLECT set, each process hands a memfd of its own to the
 * collector and adds every wrapped call up in it, by call number and call
 * site. Each thread has a stripe to itself, so no counter is ever contended,
 * and nothing has to be done at exit: the memory is the collector's.
 */
#ifndef DEBOX_COLLECT_H
#define DEBOX_COLLECT_H

#include "../libdebox/internal.h"

extern uint32_t debox_collecting_ HIDDEN;
extern uint64_t debox_collect_rate_ HIDDEN;
extern uint64_t debox_collect_again_ HIDDEN;

void debox_collect_start_(void) HIDDEN;
/* The collector connection's descriptor, -1: none. */
int debox_collect_fd_(void) HIDDEN;
void debox_collect_fd_moved_(int fd) HIDDEN;

/*
 * What the program has forbidden itself, as far as we are in its way: with a
 * seccomp filter any system call of ours may end the process, so nothing is set
 * up any more for threads and children that come later. Without the time stamp
 * counter (PR_SET_TSC, and seccomp's strict mode, which takes it away) there
 * are no stamps at all. Plain memory: a forked child inherits both.
 */
#define DEBOX_RESTRICTED_FILTER_ (1u << 0)
#define DEBOX_RESTRICTED_STAMPS_ (1u << 1)
extern uint32_t debox_restricted_ HIDDEN;
/* Before the call that restricts; gives what to put back if it fails. */
uint32_t debox_collect_restrict_(uint32_t what) HIDDEN;

/* A call inside a bracket has no record of its own: note where it began. */
void debox_collect_adopted_(struct debox_frame *f) HIDDEN;
void debox_collect_slow_(struct debox_frame *f, int nr, uint64_t call_site, int64_t ret) HIDDEN;

static inline __attribute__((always_inline)) uint32_t debox_bucket_(uint64_t ns)
{
	uint32_t exp;

	if (ns < 1ull << DEBOX_HIST_MIN_EXP)
		return 0;
	exp = 63u - (uint32_t)__builtin_clzll(ns);
	if (exp >= DEBOX_HIST_MAX_EXP)
		return DEBOX_HIST_BUCKETS - 1;
	return 1 + (exp - DEBOX_HIST_MIN_EXP) * DEBOX_HIST_SUB +
	       (uint32_t)(ns >> (exp - 3) & (DEBOX_HIST_SUB - 1));
}

static inline __attribute__((always_inline)) struct debox_wrap_row **
debox_collect_place_(struct debox_thread *t, int nr, uint64_t call_site)
{
	uint64_t at = (uint64_t)(uint32_t)nr ^ call_site ^ call_site >> 4;

	return (struct debox_wrap_row **)&t->collect_rows[at & (COLLECT_ROWS - 1)];
}

/* The plain case: nothing happened in the call, and its row is at hand. */
static inline __attribute__((always_inline)) void
debox_collect_count_(struct debox_frame *f, int nr, uint64_t call_site, int64_t ret)
{
	struct debox_hot_ *h = f->hot_;
	struct debox_thread *t = (struct debox_thread *)(void *)h;
	const struct debox_entry_ *e;
	struct debox_wrap_row *row;
	uint64_t ns;

	if (__builtin_expect(!h || !h->live, 0))
		goto slow;
	e = h->last;
	row = *debox_collect_place_(t, nr, call_site);
	if (__builtin_expect(!row || row->used != (1ull << 63 | (uint32_t)nr) ||
				     row->call_site != call_site || e->seq != f->seq_ ||
				     (e->flags & ~ENTRY_UNMEASURED) ||
				     e->stamp > debox_collect_again_,
			     0))
		goto slow;
	ns = (uint64_t)(((unsigned __int128)e->span * debox_collect_rate_) >> 32);
	row->count++;
	row->errors += (uint64_t)ret > -4096ull;
	row->wall_ns += ns;
	if (ns > row->max_ns)
		row->max_ns = ns;
	row->hist[debox_bucket_(ns)]++;
	return;
slow:
	debox_collect_slow_(f, nr, call_site, ret);
}

#endif
