// SPDX-License-Identifier: MIT OR Apache-2.0
//! How did the time of each call change with its invocation number?
//!
//! Each look gives one point for each call that returned since the look
//! before. A series that has grown to its bound is halved by merging
//! neighbours, so a run of any length costs the same memory and the points
//! stay evenly spread. Points carry their histogram while they are in memory,
//! so that percentiles of merged points are exact to a bucket.

use crate::format::exceeds;
use debox_abi::{DEBOX_HIST_BUCKETS, DEBOX_NR_OUTSIDE, DEBOX_NR_SLOTS, debox_row, hist_range};
use debox_report::{CallHistory, CallNames, HistoryPoint, call_of_key};

/// Points kept of each call.
pub const POINTS_MAX: usize = 512;
/// Histogram buckets kept in all the points of one call.
const BUCKETS_MAX: usize = 8192;
/// The same between two flushes.
const PENDING_POINTS_MAX: usize = 128;
const PENDING_BUCKETS_MAX: usize = 1024;

/// The counters of one call, summed over the CPUs.
pub type RowSums = debox_row;

#[derive(Clone, Debug, Default)]
struct Point {
    time_ns: u64,
    count: u64,
    wall_ns: u64,
    blocked_ns: u64,
    runq_ns: u64,
    irq_ns: u64,
    /// (bucket, calls), ascending.
    buckets: Vec<(u16, u64)>,
}

/// What happened between two readings of a row.
fn difference(before: Option<&RowSums>, now: &RowSums, time_ns: u64) -> Point {
    let less = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
    let buckets = (0..DEBOX_HIST_BUCKETS)
        .filter_map(|i| {
            let n = less(now.hist[i], before.map(|b| b.hist[i]));
            (n > 0).then_some((i as u16, n))
        })
        .collect();
    Point {
        time_ns,
        count: less(now.count, before.map(|b| b.count)),
        wall_ns: less(now.wall_ns, before.map(|b| b.wall_ns)),
        blocked_ns: less(now.blocked_ns, before.map(|b| b.blocked_ns)),
        runq_ns: less(now.runq_ns, before.map(|b| b.runq_ns)),
        irq_ns: less(now.irq_ns, before.map(|b| b.irq_ns)),
        buckets,
    }
}

impl Point {
    fn merge(&mut self, next: &Point) {
        self.time_ns = next.time_ns;
        self.count = self.count.saturating_add(next.count);
        self.wall_ns = self.wall_ns.saturating_add(next.wall_ns);
        self.blocked_ns = self.blocked_ns.saturating_add(next.blocked_ns);
        self.runq_ns = self.runq_ns.saturating_add(next.runq_ns);
        self.irq_ns = self.irq_ns.saturating_add(next.irq_ns);
        let (a, b) = (std::mem::take(&mut self.buckets), &next.buckets);
        let (mut i, mut j) = (0, 0);
        self.buckets.reserve_exact(a.len().max(b.len()));
        while i < a.len() || j < b.len() {
            let left = a.get(i).map_or(u16::MAX, |x| x.0);
            let right = b.get(j).map_or(u16::MAX, |x| x.0);
            let bucket = left.min(right);
            let mut n = 0u64;
            if left == bucket {
                n = n.saturating_add(a[i].1);
                i += 1;
            }
            if right == bucket {
                n = n.saturating_add(b[j].1);
                j += 1;
            }
            self.buckets.push((bucket, n));
        }
    }

    /// Nearest rank, the middle of its bucket.
    fn percentile(&self, percent: u128) -> u64 {
        let total: u128 = self.buckets.iter().map(|(_, n)| u128::from(*n)).sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut below = 0;
        for (bucket, n) in &self.buckets {
            below += u128::from(*n);
            if below >= rank {
                let (low, high) = hist_range(usize::from(*bucket));
                return if high == u64::MAX {
                    low
                } else {
                    low + (high - low) / 2
                };
            }
        }
        0
    }

    fn model(&self, first: u64) -> HistoryPoint {
        let max_ns = self.buckets.last().map_or(0, |(bucket, _)| {
            let (low, high) = hist_range(usize::from(*bucket));
            if high == u64::MAX { low } else { high }
        });
        HistoryPoint {
            time_ns: self.time_ns,
            first,
            count: self.count,
            wall_ns: self.wall_ns,
            blocked_ns: self.blocked_ns,
            runq_ns: self.runq_ns,
            irq_ns: self.irq_ns,
            p50_ns: self.percentile(50),
            p99_ns: self.percentile(99),
            max_ns,
        }
    }
}

/// The points of one call, never more than the bounds.
#[derive(Clone, Debug, Default)]
struct Series {
    /// Calls before the first point.
    first: u64,
    points: Vec<Point>,
    buckets: usize,
    /// Looks that one full point stands for.
    looks: usize,
    /// Looks in the last point.
    filled: usize,
}

impl Series {
    fn push(&mut self, point: &Point, points_max: usize, buckets_max: usize) {
        self.looks = self.looks.max(1);
        if self.filled > 0 && self.filled < self.looks {
            if let Some(last) = self.points.last_mut() {
                let before = last.buckets.len();
                last.merge(point);
                self.buckets += last.buckets.len() - before;
                self.filled += 1;
            }
        } else {
            self.buckets += point.buckets.len();
            self.points.push(point.clone());
            self.filled = 1;
        }
        while self.points.len() > 2
            && (self.points.len() >= points_max || self.buckets > buckets_max)
        {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let odd = self.points.len() % 2 == 1;
        let mut merged: Vec<Point> = Vec::with_capacity(self.points.len() / 2 + 1);
        for (i, point) in self.points.drain(..).enumerate() {
            match merged.last_mut() {
                Some(last) if i % 2 == 1 => last.merge(&point),
                _ => merged.push(point),
            }
        }
        self.points = merged;
        self.buckets = self.points.iter().map(|p| p.buckets.len()).sum();
        if !odd {
            self.filled += self.looks;
        }
        self.looks *= 2;
    }

    fn model(&self) -> Vec<HistoryPoint> {
        let mut first = self.first;
        self.points
            .iter()
            .map(|point| {
                let model = point.model(first);
                first = first.saturating_add(point.count);
                model
            })
            .collect()
    }

    fn bytes(&self) -> usize {
        let buckets: usize = self.points.iter().map(|p| p.buckets.capacity()).sum();
        self.points.capacity() * size_of::<Point>() + buckets * size_of::<(u16, u64)>()
    }
}

struct Call {
    last: Box<RowSums>,
    all: Series,
    pending: Series,
}

/// The history of all calls of a run.
pub struct History {
    calls: Vec<Option<Call>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            calls: (0..DEBOX_NR_SLOTS).map(|_| None).collect(),
        }
    }
}

fn models(
    calls: &[Option<Call>],
    names: &CallNames<'_>,
    series: impl Fn(&Call) -> &Series,
) -> Vec<CallHistory> {
    calls
        .iter()
        .enumerate()
        .filter_map(|(key, call)| {
            let points = series(call.as_ref()?).model();
            let (call, abi) = call_of_key(key as u32, names)?;
            (!points.is_empty()).then_some(CallHistory { call, abi, points })
        })
        .collect()
}

impl History {
    /// Takes in what a look found in the row of `key`.
    pub fn add(&mut self, key: u32, now: &RowSums, time_ns: u64) {
        let Some(entry) = self.calls.get_mut(key as usize) else {
            return;
        };
        if key == DEBOX_NR_OUTSIDE {
            return;
        }
        let point = difference(entry.as_ref().map(|c| &*c.last), now, time_ns);
        let call = entry.get_or_insert_with(|| Call {
            last: Box::new(*now),
            all: Series::default(),
            pending: Series::default(),
        });
        if point.count == 0 {
            // A call that is half counted is whole at the next look.
            return;
        }
        if call.pending.points.is_empty() {
            call.pending.first = call.last.count.min(now.count);
            if call.all.points.is_empty() {
                call.pending.first = 0;
            }
        }
        *call.last = *now;
        call.all.push(&point, POINTS_MAX, BUCKETS_MAX);
        call.pending
            .push(&point, PENDING_POINTS_MAX, PENDING_BUCKETS_MAX);
    }

    /// Sums as of the last look, by nr key.
    pub fn sums(&self) -> impl Iterator<Item = (u32, &RowSums)> + '_ {
        self.calls
            .iter()
            .enumerate()
            .filter_map(|(key, call)| Some((key as u32, &*call.as_ref()?.last)))
    }

    /// Everything, at the resolution that is left.
    pub fn all(&self, names: &CallNames<'_>) -> Vec<CallHistory> {
        models(&self.calls, names, |call| &call.all)
    }

    /// What was added since the last time this was asked.
    pub fn pending_take(&mut self, names: &CallNames<'_>) -> Vec<CallHistory> {
        let models = models(&self.calls, names, |call| &call.pending);
        for call in self.calls.iter_mut().flatten() {
            call.pending = Series::default();
        }
        models
    }

    /// Memory in use, to within what the allocator adds.
    pub fn bytes(&self) -> usize {
        let rows = self.calls.iter().flatten();
        let each = rows.map(|call| size_of::<RowSums>() + call.all.bytes() + call.pending.bytes());
        each.sum::<usize>() + self.calls.len() * size_of::<Option<Call>>()
    }
}

/// Joins two neighbours read from a file, where histograms are gone: the
/// median becomes the mean of both by calls, the 99th percentile the larger.
fn join(a: &HistoryPoint, b: &HistoryPoint) -> HistoryPoint {
    let calls = u128::from(a.count) + u128::from(b.count);
    let weighed = |x: u64, y: u64| {
        let sum = u128::from(x) * u128::from(a.count) + u128::from(y) * u128::from(b.count);
        sum.checked_div(calls).unwrap_or(0) as u64
    };
    HistoryPoint {
        time_ns: b.time_ns,
        first: a.first,
        count: a.count.saturating_add(b.count),
        wall_ns: a.wall_ns.saturating_add(b.wall_ns),
        blocked_ns: a.blocked_ns.saturating_add(b.blocked_ns),
        runq_ns: a.runq_ns.saturating_add(b.runq_ns),
        irq_ns: a.irq_ns.saturating_add(b.irq_ns),
        p50_ns: weighed(a.p50_ns, b.p50_ns),
        p99_ns: a.p99_ns.max(b.p99_ns),
        max_ns: a.max_ns.max(b.max_ns),
    }
}

/// Appends what a later block says, within the same bound.
/// As many as an account can tell apart, with as many points as a whole history
/// has.
pub(crate) fn check(history: &[CallHistory]) -> Result<(), String> {
    if history.len() > DEBOX_NR_SLOTS {
        return Err(exceeds(history.len(), "histories", DEBOX_NR_SLOTS));
    }
    match history.iter().map(|call| call.points.len()).max() {
        Some(points) if points > 2 * POINTS_MAX => {
            Err(exceeds(points, "points of a history", 2 * POINTS_MAX))
        }
        _ => Ok(()),
    }
}

pub(crate) fn append(history: &mut Vec<CallHistory>, more: Vec<CallHistory>) -> Result<(), String> {
    for call in more {
        let known = history
            .iter()
            .position(|c| c.call == call.call && c.abi == call.abi);
        let index = match known {
            Some(index) => {
                history[index].points.extend(call.points);
                index
            }
            None if history.len() < DEBOX_NR_SLOTS => {
                history.push(call);
                history.len() - 1
            }
            None => return Err(exceeds(history.len() + 1, "histories", DEBOX_NR_SLOTS)),
        };
        let series = &mut history[index];
        while series.points.len() > POINTS_MAX {
            series.points = series
                .points
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => join(a, b),
                    _ => pair[0],
                })
                .collect();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_abi::{Pod, hist_bucket};

    fn names(nr: u32, _: bool) -> Option<String> {
        Some(format!("call{nr}"))
    }

    fn grow(row: &mut RowSums, wall_ns: u64) {
        row.count += 1;
        row.wall_ns += wall_ns;
        row.hist[hist_bucket(wall_ns)] += 1;
    }

    #[test]
    fn points_add_up_to_the_whole_at_any_length() {
        for looks in [1u64, 2, 3, 511, 512, 513, 1024, 5_000, 40_001] {
            let mut history = History::default();
            let mut row = RowSums::zeroed();
            for look in 0..looks {
                for i in 0..3 {
                    grow(&mut row, 1_000 + look * 10 + i);
                }
                history.add(7, &row, (look + 1) * 1_000);
            }
            let all = history.all(&names);
            assert_eq!(all.len(), 1);
            let points = &all[0].points;
            assert!(points.len() <= POINTS_MAX);
            assert!(points.len() as u64 >= looks.min(POINTS_MAX as u64 / 2));
            assert_eq!(points.iter().map(|p| p.count).sum::<u64>(), row.count);
            assert_eq!(points.iter().map(|p| p.wall_ns).sum::<u64>(), row.wall_ns);
            let mut first = 0;
            for point in points {
                assert_eq!(point.first, first);
                first += point.count;
                let mean = point.wall_ns / point.count;
                // Within the bucket's width, the spread inside the point is small.
                assert!(point.p50_ns.abs_diff(mean) <= mean / 4, "{point:?}");
                assert!(point.p50_ns <= point.p99_ns && point.p99_ns <= point.max_ns);
            }
            assert_eq!(points.last().map(|p| p.time_ns), Some(looks * 1_000));
            // Evenly spread: no point stands for more than twice a neighbour's
            // calls, except the last one, which is being filled.
            let full = points[0].count;
            assert!(points[..points.len() - 1].iter().all(|p| p.count == full));
        }
    }

    #[test]
    fn deltas_put_together_are_the_whole() {
        let mut history = History::default();
        let mut row = RowSums::zeroed();
        let mut read = Vec::new();
        for look in 0..3_000u64 {
            grow(&mut row, 500);
            history.add(1, &row, look);
            if look % 100 == 99 {
                append(&mut read, history.pending_take(&names)).unwrap();
            }
        }
        let points = &read[0].points;
        assert!(points.len() <= POINTS_MAX);
        assert_eq!(points.iter().map(|p| p.count).sum::<u64>(), 3_000);
        let mut first = 0;
        for point in points {
            assert_eq!(point.first, first);
            first += point.count;
        }
        assert!(history.pending_take(&names).is_empty());
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut history = History::default();
        // Every row, every bucket: far beyond what a program does.
        for look in 0..1_500u64 {
            for key in 0..191 {
                let mut row = RowSums::zeroed();
                row.count = (look + 1) * 290;
                row.hist = [look + 1; DEBOX_HIST_BUCKETS];
                history.add(key, &row, look);
            }
        }
        let bytes = history.bytes();
        assert!(bytes < 40 << 20, "{bytes}");
    }
}
