// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which histogram bucket does a duration fall into, and what does a bucket hold? Calls have
//! other ones than sleeps.

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

/// The longest sleep of a bucket; the last bucket has none.
pub const fn sleep_bound(bound: usize) -> u64 {
    let of = match bound % 2 {
        0 => DEBOX_SLEEP_BOUND_EVEN,
        _ => DEBOX_SLEEP_BOUND_ODD,
    };
    of >> (DEBOX_SLEEP_MIN_EXP + DEBOX_SLEEP_MAX_EXP - bound as u32 / 2)
}

/// The bucket of a sleep: the first whose bound it does not exceed.
pub const fn sleep_bucket(ns: u64) -> usize {
    let mut bucket = match ns.checked_ilog2() {
        // 2^e ns are more than the bound before.
        Some(e @ 10..) => 2 * e as usize - 19,
        _ => 0,
    };
    while bucket < DEBOX_SLEEP_BUCKETS - 1 && ns > sleep_bound(bucket) {
        bucket += 1;
    }
    // The begin for the longest of all is behind the last one.
    if bucket < DEBOX_SLEEP_BUCKETS {
        bucket
    } else {
        DEBOX_SLEEP_BUCKETS - 1
    }
}

/// The half-open range of sleeps of a bucket. The last one ends at u64::MAX.
pub const fn sleep_range(bucket: usize) -> (u64, u64) {
    let from = match bucket {
        0 => 0,
        _ => sleep_bound(bucket - 1) + 1,
    };
    match bucket < DEBOX_SLEEP_BUCKETS - 1 {
        true => (from, sleep_bound(bucket) + 1),
        false => (from, u64::MAX),
    }
}
