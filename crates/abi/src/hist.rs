// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which histogram bucket does a duration fall into, and what does a bucket hold?

use crate::generated::*;

/// The bucket of a duration: 0 below 16 ns, the last one from 2^40 ns on.
pub const fn hist_bucket(ns: u64) -> usize {
    if ns < 1 << DEBOX_HIST_MIN_EXP {
        return 0;
    }
    if ns >= 1 << DEBOX_HIST_MAX_EXP {
        return DEBOX_HIST_BUCKETS - 1;
    }
    let exp = 63 - ns.leading_zeros();
    // The three bits below the leading one; exp >= 4, so the shift is >= 1.
    let sub = (ns >> (exp - 3)) & 7;
    (1 + (exp - DEBOX_HIST_MIN_EXP) as u64 * DEBOX_HIST_SUB as u64 + sub) as usize
}

/// The half-open range of durations of a bucket. The last one ends at u64::MAX.
pub const fn hist_range(bucket: usize) -> (u64, u64) {
    if bucket == 0 {
        return (0, 1 << DEBOX_HIST_MIN_EXP);
    }
    if bucket >= DEBOX_HIST_BUCKETS - 1 {
        return (1 << DEBOX_HIST_MAX_EXP, u64::MAX);
    }
    let index = bucket as u32 - 1;
    let exp = DEBOX_HIST_MIN_EXP + index / DEBOX_HIST_SUB;
    let sub = (index % DEBOX_HIST_SUB) as u64;
    let step = 1u64 << (exp - 3);
    let low = (8 + sub) * step;
    (low, low + step)
}
