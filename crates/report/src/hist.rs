// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which duration do q of all calls not exceed?

use debox_abi::{DEBOX_HIST_BUCKETS, hist_range};

/// A histogram of wall times, summed over CPUs or processes.
#[derive(Clone)]
pub struct Hist {
    buckets: Box<[u64; DEBOX_HIST_BUCKETS]>,
}

impl Default for Hist {
    fn default() -> Self {
        Self {
            buckets: Box::new([0; DEBOX_HIST_BUCKETS]),
        }
    }
}

impl Hist {
    /// Adds another histogram. Saturates: the numbers may come from a process
    /// that writes what it likes.
    pub fn add(&mut self, other: &[u64; DEBOX_HIST_BUCKETS]) {
        for (sum, n) in self.buckets.iter_mut().zip(other) {
            *sum = sum.saturating_add(*n);
        }
    }

    /// How many durations there are.
    pub fn count(&self) -> u64 {
        let all = self.buckets.iter();
        all.fold(0, |all, n| all.saturating_add(*n))
    }

    pub fn buckets(&self) -> &[u64; DEBOX_HIST_BUCKETS] {
        &self.buckets
    }

    /// The buckets in use: (from, to, count).
    pub fn used(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.buckets
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(bucket, n)| {
                let (low, high) = hist_range(bucket);
                (low, high, *n)
            })
    }

    /// The `percent`-th percentile by nearest rank, spread evenly inside its
    /// bucket and never above `max_ns`; None without calls. The largest value
    /// is known exactly, so the highest rank is `max_ns` itself.
    pub fn percentile(&self, percent: u32, max_ns: u64) -> Option<u64> {
        let total: u128 = self.buckets.iter().map(|n| u128::from(*n)).sum();
        if total == 0 {
            return None;
        }
        let rank = (total * u128::from(percent.min(100)))
            .div_ceil(100)
            .clamp(1, total);
        if rank == total {
            return Some(max_ns);
        }
        let mut below = 0u128;
        for (bucket, n) in self.buckets.iter().enumerate() {
            let n = u128::from(*n);
            if below + n < rank {
                below += n;
                continue;
            }
            let (low, high) = hist_range(bucket);
            // No value exceeds the maximum, so the bucket ends there.
            let high = high.min(max_ns.saturating_add(1)).max(low);
            let width = u128::from(high - low);
            // The k-th of n values stands in the middle of the k-th n-th part.
            let inside = width * (2 * (rank - below) - 1) / (2 * n);
            return Some((u128::from(low) + inside).min(u128::from(max_ns)) as u64);
        }
        Some(max_ns)
    }
}
