// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happened between two looks at the account?

use debox_report::{Bucket, Report};
use std::time::Duration;

/// One look: the sums since the beginning.
#[derive(Clone, Debug)]
pub struct Frame {
    pub report: Report,
    /// Since the view began.
    pub at: Duration,
}

impl Frame {
    pub fn new(report: Report, at: Duration) -> Self {
        Self { report, at }
    }
}

/// What two frames differ by, per second; or, for totals, the second alone.
#[derive(Clone, Copy)]
pub struct Between<'a> {
    pub now: &'a Report,
    pub before: Option<&'a Report>,
    /// 1 for totals.
    pub seconds: f64,
}

impl<'a> Between<'a> {
    pub fn totals(now: &'a Frame) -> Self {
        Self {
            now: &now.report,
            before: None,
            seconds: 1.0,
        }
    }

    pub fn interval(now: &'a Frame, before: &'a Frame) -> Self {
        let seconds = now.at.saturating_sub(before.at).as_secs_f64();
        Self {
            now: &now.report,
            before: Some(&before.report),
            // Two looks at the same moment differ by nothing.
            seconds: if seconds > 0.0 { seconds } else { 1.0 },
        }
    }

    pub fn per_second(&self, now: u64, before: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }

    /// None if it is not measured.
    pub fn some_per_second(&self, now: Option<u64>, before: Option<u64>) -> Option<f64> {
        now.map(|now| self.per_second(now, before.unwrap_or(0)))
    }
}

/// The buckets of `now` less those of `before`; both in order.
pub fn buckets_between(now: &[Bucket], before: &[Bucket]) -> Vec<Bucket> {
    let mut old = before.iter().peekable();
    now.iter()
        .filter_map(|bucket| {
            while old.peek().is_some_and(|o| o.from_ns < bucket.from_ns) {
                old.next();
            }
            let was = old
                .peek()
                .filter(|o| o.from_ns == bucket.from_ns)
                .map_or(0, |o| o.count);
            let count = bucket.count.saturating_sub(was);
            (count > 0).then_some(Bucket { count, ..*bucket })
        })
        .collect()
}

/// The upper end of the bucket in which the given share of the calls lies; at
/// most `max_ns`.
pub fn percentile(buckets: &[Bucket], percent: u64, max_ns: u64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|b| b.count).sum();
    if total == 0 {
        return None;
    }
    let rank = (u128::from(total) * u128::from(percent))
        .div_ceil(100)
        .max(1);
    let mut seen = 0;
    for bucket in buckets {
        seen += u128::from(bucket.count);
        if seen >= rank {
            return Some(bucket.to_ns.unwrap_or(max_ns).min(max_ns));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(from_ns: u64, to_ns: Option<u64>, count: u64) -> Bucket {
        Bucket {
            from_ns,
            to_ns,
            count,
        }
    }

    #[test]
    fn differences_and_percentiles() {
        let before = [bucket(16, Some(18), 5), bucket(64, Some(72), 1)];
        let now = [
            bucket(16, Some(18), 5),
            bucket(32, Some(36), 98),
            bucket(64, Some(72), 2),
            bucket(1 << 40, None, 1),
        ];
        let between = buckets_between(&now, &before);
        assert_eq!(
            between,
            [
                bucket(32, Some(36), 98),
                bucket(64, Some(72), 1),
                bucket(1 << 40, None, 1)
            ]
        );
        assert_eq!(percentile(&between, 50, u64::MAX), Some(36));
        assert_eq!(percentile(&between, 99, u64::MAX), Some(72));
        assert_eq!(percentile(&between, 100, 1 << 41), Some(1 << 41));
        assert_eq!(percentile(&between, 50, 33), Some(33));
        assert_eq!(percentile(&[], 50, 1), None);
    }
}
