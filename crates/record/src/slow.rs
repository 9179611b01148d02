// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which single calls are kept, and how long must a call take to be worth an
//! event?
//!
//! The slowest of all calls, but of each call at least the slowest few, so that
//! a thousand long waits do not hide the one slow unlink. The kernel side sends
//! an event for a call that takes at least the threshold of its number; the
//! thresholds rise with what is kept and with what the histograms say, so that
//! events stay few however many calls a run makes.
//!
//! Where the ends of calls are not seen it is single sleeps instead. These are
//! counted as they are told: of shorter ones nothing has to be known.

use crate::history::RowSums;
use crate::observe::Account;
use debox_abi::{
    DEBOX_EVENT_SLEEP, DEBOX_EVENT_SLOW, DEBOX_HIST_BUCKETS, DEBOX_NR_SLOTS, Pod, debox_event_call,
    hist_bucket, hist_range,
};
use std::collections::HashMap;

/// Slow calls kept of a run.
pub const SLOW_CALLS_MAX: usize = 1000;
/// Kept of each call, whatever the others do.
const EACH: usize = 24;
/// Kept for meeting a condition; the first ones.
pub const MATCHED_MAX: usize = 500;
/// Before a call is known: a machine cannot make so many slower calls that the
/// ring of events overflows between two looks.
const THRESHOLD_FIRST_NS: u64 = 10_000;
/// Of a sleep: each second of a busy machine has tens of thousands that are shorter.
const SLEEP_FIRST_NS: u64 = 1_000_000;
/// Never worth an event.
const THRESHOLD_MIN_NS: u64 = 5_000;

/// One event. In a box: events are sorted in often, and large.
struct Kept {
    call: Box<debox_event_call>,
}

/// The slow calls kept so far.
pub struct Reservoir {
    /// By nr key, each sorted by wall time, shortest first.
    calls: HashMap<u32, Vec<Kept>>,
    kept: usize,
    max: usize,
    /// Calls that met a condition.
    matched: Vec<Kept>,
    matched_dropped: u64,
    /// Calls that found no room, or lost it to longer ones.
    left_out: u64,
    /// Sleeps that were told, by nr key.
    sleeps: HashMap<u32, RowSums>,
}

impl Default for Reservoir {
    fn default() -> Self {
        Self::with_bound(SLOW_CALLS_MAX)
    }
}

impl Reservoir {
    pub fn with_bound(max: usize) -> Self {
        Self {
            calls: HashMap::new(),
            kept: 0,
            max,
            matched: Vec::new(),
            matched_dropped: 0,
            left_out: 0,
            sleeps: HashMap::new(),
        }
    }

    /// The call whose shortest entry goes when one must: the shortest of all
    /// among calls with more than their share, else of the fullest call.
    fn victim(&self) -> Option<u32> {
        let shortest = |events: &Vec<Kept>| events.first().map_or(u64::MAX, |e| e.call.wall_ns);
        let above = self
            .calls
            .iter()
            .filter(|(_, events)| events.len() > EACH)
            .min_by_key(|(key, events)| (shortest(events), **key));
        above
            .or_else(|| self.calls.iter().max_by_key(|(key, e)| (e.len(), **key)))
            .map(|(key, _)| *key)
    }

    /// From how long on a call would be kept.
    fn wanted_ns(&self, key: u32) -> u64 {
        if self.kept < self.max {
            return 0;
        }
        let Some(own) = self.calls.get(&key).filter(|own| own.len() >= EACH) else {
            return 0;
        };
        let shortest = |events: &[Kept]| events.first().map_or(0, |e| e.call.wall_ns);
        let victim = self.victim().and_then(|v| self.calls.get(&v));
        let limit = victim.map_or(0, |events| shortest(events));
        limit.min(shortest(own)).saturating_add(1)
    }

    /// Takes in one event.
    pub fn add(&mut self, event: &debox_event_call) {
        let matched = event.conditions | event.uncertain != 0;
        // Of sleeps that were told for a condition alone it is not known how many are as long.
        let (sleeps, slow) = (DEBOX_EVENT_SLEEP, DEBOX_EVENT_SLOW);
        let for_condition = event.flags & (sleeps | slow) == sleeps;
        if for_condition && !matched {
            return;
        }
        if event.flags & DEBOX_EVENT_SLEEP != 0 && !for_condition {
            let sums = self.sleeps.entry(event.key);
            sums.or_insert_with(RowSums::zeroed).hist[hist_bucket(event.wall_ns)] += 1;
        }
        let matched_fits = matched && self.matched.len() < MATCHED_MAX;
        if matched && !matched_fits {
            self.matched_dropped += 1;
        }
        if !matched_fits && (for_condition || event.wall_ns < self.wanted_ns(event.key)) {
            self.left_out += 1;
            return;
        }
        let kept = Kept {
            call: Box::new(*event),
        };
        if matched_fits {
            self.matched.push(kept);
            return;
        }
        let events = self.calls.entry(event.key).or_default();
        let at = events.partition_point(|e| e.call.wall_ns <= event.wall_ns);
        events.insert(at, kept);
        self.kept += 1;
        while self.kept > self.max {
            let Some(events) = self.victim().and_then(|v| self.calls.get_mut(&v)) else {
                break;
            };
            events.remove(0);
            self.kept -= 1;
            self.left_out += 1;
        }
    }

    /// Everything kept, longest first; what met a condition is among it.
    pub fn events(&self) -> Vec<&debox_event_call> {
        let kept = self.calls.values().flatten().chain(&self.matched);
        let mut all: Vec<&debox_event_call> = kept.map(|event| &*event.call).collect();
        all.sort_by_key(|e| (std::cmp::Reverse(e.wall_ns), e.start_ns, e.tid));
        all
    }

    /// Calls that were seen, beyond those that are kept.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Calls that met a condition, beyond those that are kept.
    pub fn matched_dropped(&self) -> u64 {
        self.matched_dropped
    }
}

/// The shortest time that at least `n` calls of a histogram have reached.
fn reached_by(hist: &[u64; DEBOX_HIST_BUCKETS], n: u64) -> u64 {
    let mut above = 0u64;
    for bucket in (0..DEBOX_HIST_BUCKETS).rev() {
        above = above.saturating_add(hist[bucket]);
        if above >= n {
            return hist_range(bucket).0;
        }
    }
    0
}

/// How long calls must take to be worth an event, by nr key, after a look at
/// the sums of all of them.
///
/// A call sends an event if it is among the slowest few of its own number, or
/// among the slowest of all. In a run that goes on as it began, the n-th call
/// is among the k slowest so far with probability k / n, so events number
/// k x ln(calls): a few thousand in ten million calls. Histograms only grow, so
/// thresholds only rise, and what is kept has no gap above the last threshold.
fn thresholds(
    sums: &[(u32, &RowSums)],
    kept_max: usize,
    first_ns: u64,
    least_ns: u64,
) -> Vec<(u32, u64)> {
    let mut all = [0u64; DEBOX_HIST_BUCKETS];
    for (_, row) in sums {
        for (sum, n) in all.iter_mut().zip(&row.hist) {
            *sum = sum.saturating_add(*n);
        }
    }
    let of_all = reached_by(&all, kept_max as u64 / 2);
    sums.iter()
        .map(|(key, row)| {
            let own = reached_by(&row.hist, EACH as u64);
            // Few calls yet: a call made once deserves its first threshold.
            let floor = if own == 0 { first_ns } else { least_ns };
            (*key, own.min(of_all).max(floor))
        })
        .collect()
}

/// All calls are told that take more than next to nothing.
pub(crate) fn thresholds_begin(account: &mut impl Account) {
    let first_ns = match account.tells_sleeps() {
        true => SLEEP_FIRST_NS,
        false => THRESHOLD_FIRST_NS,
    };
    for key in 0..DEBOX_NR_SLOTS as u32 {
        account.threshold_set(key, first_ns);
    }
}

/// ... and from now on fewer of them, by their sums; sleeps, of which many last equally long, by what is kept as well.
pub(crate) fn thresholds_raise(
    account: &mut impl Account,
    calls: &[(u32, &RowSums)],
    kept: &Reservoir,
) {
    if !account.tells_sleeps() {
        for (key, wall_ns) in thresholds(calls, kept.max, THRESHOLD_FIRST_NS, THRESHOLD_MIN_NS) {
            account.threshold_set(key, wall_ns);
        }
        return;
    }
    let sleeps: Vec<_> = kept.sleeps.iter().map(|(key, sums)| (*key, sums)).collect();
    for (key, wall_ns) in thresholds(&sleeps, kept.max, SLEEP_FIRST_NS, SLEEP_FIRST_NS) {
        account.threshold_set(key, wall_ns.max(kept.wanted_ns(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn event(key: u32, wall_ns: u64) -> debox_event_call {
        let mut event = debox_event_call::zeroed();
        (event.key, event.wall_ns) = (key, wall_ns);
        event
    }

    fn kept(reservoir: &Reservoir, key: u32) -> Vec<u64> {
        let events = reservoir.events();
        let own = events.iter().filter(|e| e.key == key);
        own.map(|e| e.wall_ns).collect()
    }

    #[test]
    fn the_slowest_of_all_and_a_few_of_each_are_kept() {
        let mut reservoir = Reservoir::with_bound(100);
        for i in 0..10_000u64 {
            // A stir of lengths without a pattern.
            let stirred = (i * 7_919) % 10_007;
            reservoir.add(&event(0, 1_000_000 + stirred));
            reservoir.add(&event(1, 20_000 + stirred));
            reservoir.add(&event(2, 2_000_000 + stirred));
        }
        let of = |base: u64| {
            let mut all: Vec<u64> = (0..10_000).map(|i| base + (i * 7_919) % 10_007).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all
        };
        assert_eq!(reservoir.events().len(), 100);
        assert_eq!(reservoir.left_out(), 30_000 - 100);
        assert_eq!(kept(&reservoir, 1), of(20_000)[..EACH]);
        assert_eq!(kept(&reservoir, 0), of(1_000_000)[..EACH]);
        assert_eq!(kept(&reservoir, 2), of(2_000_000)[..100 - 2 * EACH]);
        let events = reservoir.events();
        assert!(events.is_sorted_by_key(|e| std::cmp::Reverse(e.wall_ns)));
    }

    #[test]
    fn the_bound_holds_with_more_calls_than_shares() {
        let mut reservoir = Reservoir::with_bound(50);
        for i in 0..5_000u64 {
            reservoir.add(&event((i % 40) as u32, i));
        }
        assert_eq!(reservoir.events().len(), 50);
    }

    #[test]
    fn what_met_a_condition_stays_however_short() {
        let mut reservoir = Reservoir::with_bound(10);
        let mut met = event(3, 1);
        met.conditions = 1;
        for _ in 0..MATCHED_MAX + 5 {
            reservoir.add(&met);
        }
        for i in 0..100 {
            reservoir.add(&event(3, 1_000 + i));
        }
        assert_eq!(
            kept(&reservoir, 3).iter().filter(|ns| **ns == 1).count(),
            MATCHED_MAX
        );
        assert_eq!(reservoir.matched_dropped(), 5);
    }

    #[test]
    fn events_are_few_and_complete() {
        // Ten calls of different usual lengths, a look after each 1,000 calls.
        let mut rows: Vec<(u32, RowSums)> = (0..10).map(|key| (key, RowSums::zeroed())).collect();
        let mut now = [THRESHOLD_FIRST_NS; 10];
        let mut reservoir = Reservoir::default();
        let (mut sent, mut slowest, mut state) = (0u64, Vec::new(), 1u64);
        for i in 0..1_000_000u64 {
            let key = (i % 10) as u32;
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Heavy tail: 1 in 2^k is 2^k times as long.
            let tail = ((state >> 33) | 1 << 20).trailing_zeros();
            let wall_ns = (200 << key) * (1u64 << tail) + ((state >> 20) & 127);
            let row = &mut rows[key as usize].1;
            row.count += 1;
            row.hist[hist_bucket(wall_ns)] += 1;
            slowest.push((wall_ns, key));
            if wall_ns >= now[key as usize] {
                sent += 1;
                reservoir.add(&event(key, wall_ns));
            }
            if i % 1_000 == 999 {
                let sums: Vec<(u32, &RowSums)> = rows.iter().map(|(k, r)| (*k, r)).collect();
                for (key, ns) in
                    thresholds(&sums, SLOW_CALLS_MAX, THRESHOLD_FIRST_NS, THRESHOLD_MIN_NS)
                {
                    assert!(ns >= now[key as usize] || now[key as usize] == THRESHOLD_FIRST_NS);
                    now[key as usize] = ns;
                }
            }
        }
        assert!(sent < 30_000, "{sent} events of a million calls");
        // The slowest 200 of all and the slowest 10 of each are there.
        slowest.sort_unstable_by(|a, b| b.cmp(a));
        let have: Vec<u64> = reservoir.events().iter().map(|e| e.wall_ns).collect();
        for (wall_ns, _) in &slowest[..200] {
            assert!(have.contains(wall_ns));
        }
        for key in 0..10 {
            let own = slowest
                .iter()
                .filter(|(ns, k)| *k == key && *ns >= THRESHOLD_FIRST_NS);
            let have = kept(&reservoir, key);
            for (wall_ns, _) in own.take(10) {
                assert!(have.contains(wall_ns), "{key} {wall_ns}");
            }
        }
    }
}
