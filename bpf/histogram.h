/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which bucket does a wall time fall into?
 *
 * Pure arithmetic, also compiled for the host by the tests and by libdebox.
 * BPF has no count-leading-zeros instruction before v4 of its instruction
 * set, hence the binary search.
 */
#ifndef DEBOX_HISTOGRAM_H
#define DEBOX_HISTOGRAM_H

/* Floor of the logarithm; 0 for 0. */
static inline __attribute__((always_inline)) __u32 debox_log2(__u64 v)
{
	__u32 e = 0;

	if (v >> 32) {
		v >>= 32;
		e += 32;
	}
	if (v >> 16) {
		v >>= 16;
		e += 16;
	}
	if (v >> 8) {
		v >>= 8;
		e += 8;
	}
	if (v >> 4) {
		v >>= 4;
		e += 4;
	}
	if (v >> 2) {
		v >>= 2;
		e += 2;
	}
	return e + (__u32)(v >> 1);
}

static inline __attribute__((always_inline)) __u32 debox_histogram_bucket(__u64 ns)
{
	__u32 e;

	if (ns < (1u << DEBOX_HIST_MIN_EXP))
		return 0;
	if (ns >> DEBOX_HIST_MAX_EXP)
		return DEBOX_HIST_BUCKETS - 1;
	e = debox_log2(ns);
	return 1 + (e - DEBOX_HIST_MIN_EXP) * DEBOX_HIST_SUB + ((ns >> (e - 3)) & (DEBOX_HIST_SUB - 1));
}

#endif
