/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which bucket does a wall time fall into, and which a sleep?
 *
 * Pure arithmetic, also compiled for the host by the tests and by libdebox.
 * BPF has no instruction that counts leading zeros, hence the binary search; without
 * branches, of which the verifier would follow each way.
 */
#ifndef DEBOX_HISTOGRAM_H
#define DEBOX_HISTOGRAM_H

/* Floor of the logarithm; 0 for 0. */
static inline __attribute__((always_inline)) __u32 debox_log2(__u64 v)
{
	__u32 e = 0;

	/* Any upper half carries into the bit above: its length or nothing is added. */
	for (__u32 half = 32; half >= 2; half /= 2) {
		__u32 more = (((v >> half) + (1ull << half) - 1) >> half) * half;

		/* Else clang makes a comparison of it again. */
		asm volatile(""
			     : "+r"(more));
		v >>= more;
		e += more;
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

/* See DEBOX_SLEEP_BUCKETS. */
static inline __attribute__((always_inline)) __u64 debox_sleep_bound(__u32 bound)
{
	return (bound & 1 ? DEBOX_SLEEP_BOUND_ODD : DEBOX_SLEEP_BOUND_EVEN) >>
	       (DEBOX_SLEEP_MIN_EXP + DEBOX_SLEEP_MAX_EXP - bound / 2);
}

static inline __attribute__((always_inline)) __u32 debox_sleep_bucket(__u64 ns)
{
	__u32 e, bucket = 0;

	if (ns > DEBOX_SLEEP_BOUND_EVEN)
		return DEBOX_SLEEP_BUCKETS - 1;
	/* 2^e ns are more than the bound before 2 e - 19, and at most one more bound lies below twice that:
	 * a second is 2^29.9 ns. */
	e = debox_log2(ns);
	if (e > 9)
		bucket = 2 * e - 19;
	if (ns > debox_sleep_bound(bucket))
		bucket++;
	if (ns > debox_sleep_bound(bucket))
		bucket++;
	return bucket;
}

#endif
