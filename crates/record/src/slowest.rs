// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which single calls were the slowest, of an account that its owner reads himself, for as long as he likes?
//!
//! What an observer does in a thread of its own (`observe.rs`), done whenever events are taken out: thresholds
//! rise by what was counted, so that events stay few.

use crate::history::RowSums;
use crate::observe::{Account, Pace};
use crate::slow::{Reservoir, thresholds_begin, thresholds_raise};
use debox_abi::debox_event_call;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Kept of a period, of which there are many.
const KEPT_MAX: usize = 200;
/// In the ring they wait so long at most.
const TURN_MAX: Duration = Duration::from_millis(100);

pub struct Slowest {
    kept: Reservoir,
    /// Of each call, as of the last look.
    sums: HashMap<u32, RowSums>,
    /// None: nobody has taken events out yet.
    since: Option<Instant>,
    look: Pace,
}

impl Default for Slowest {
    fn default() -> Self {
        Self {
            kept: Reservoir::with_bound(KEPT_MAX),
            sums: HashMap::new(),
            since: None,
            look: Pace::of_looks(),
        }
    }
}

impl Slowest {
    /// How long it may be until the next turn: at first all calls are told that take more than next to nothing.
    pub fn due(&self) -> Duration {
        TURN_MAX.min(self.look.left(Instant::now()))
    }

    pub fn add(&mut self, event: &debox_event_call) {
        self.kept.add(event);
    }

    /// Takes events out, and looks at the sums if that is due. The first time it begins: whoever takes them out is not
    /// busy with something else any more.
    pub fn turn(&mut self, account: &mut impl Account, each: &mut dyn FnMut(&debox_event_call)) {
        let since = *self.since.get_or_insert_with(|| {
            thresholds_begin(account);
            Instant::now()
        });
        let mut told = false;
        account.events(&mut |event| {
            self.add(event);
            each(event);
            told = true;
        });
        // Of sleeps nothing but what was told.
        if told && account.tells_sleeps() {
            thresholds_raise(account, &[], &self.kept);
        }
        let began = Instant::now();
        if !self.look.is_due(began) {
            return;
        }
        if account.tells_sleeps() {
            self.look.next(since, began);
            return;
        }
        let sums = &mut self.sums;
        account.look(&mut |key, row| {
            sums.insert(key, *row);
        });
        let sums: Vec<(u32, &RowSums)> = self.sums.iter().map(|(key, row)| (*key, row)).collect();
        thresholds_raise(account, &sums, &self.kept);
        self.look.next(since, began);
    }

    /// Longest first.
    pub fn calls(&self) -> Vec<&debox_event_call> {
        self.kept.events()
    }

    /// How many more were seen.
    pub fn left_out(&self) -> u64 {
        self.kept.left_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_abi::{DEBOX_EVENT_SLEEP, DEBOX_EVENT_SLOW, DEBOX_NR_SLOTS, Pod};
    use debox_report::Report;
    use std::os::fd::BorrowedFd;

    /// Each turn has the sleeps that are told of the next ones.
    struct Sleeper {
        sleeps: Vec<(u32, u64)>,
        threshold_ns: Vec<u64>,
        told: u64,
    }

    impl Sleeper {
        fn new() -> Self {
            Self {
                sleeps: Vec::new(),
                threshold_ns: vec![u64::MAX; DEBOX_NR_SLOTS],
                told: 0,
            }
        }
    }

    impl Account for Sleeper {
        fn look(&mut self, _: &mut dyn FnMut(u32, &RowSums)) {}

        fn events(&mut self, each: &mut dyn FnMut(&debox_event_call)) {
            for (key, wall_ns) in self.sleeps.drain(..) {
                if wall_ns >= self.threshold_ns[key as usize] {
                    let mut event = debox_event_call::zeroed();
                    event.flags = DEBOX_EVENT_SLEEP | DEBOX_EVENT_SLOW;
                    (event.key, event.wall_ns) = (key, wall_ns);
                    each(&event);
                    self.told += 1;
                }
            }
        }

        fn tells_sleeps(&self) -> bool {
            true
        }

        fn threshold_set(&mut self, key: u32, wall_ns: u64) {
            self.threshold_ns[key as usize] = wall_ns;
        }

        fn urgent(&self, _: Duration) -> Option<(BorrowedFd<'_>, Duration)> {
            None
        }

        fn report(&mut self, _: u64, _: &[&debox_event_call]) -> Report {
            Report::default()
        }
    }

    /// They stay at a millisecond, and sleeps of one length are not told again and again.
    #[test]
    fn thresholds_of_sleeps_rise_to_what_is_kept() {
        let mut account = Sleeper::new();
        let mut slowest = Slowest::default();
        for _ in 0..300 {
            account
                .sleeps
                .extend([(0, 2_000_000), (1, 10_000), (2, 1_000_000_000)]);
            slowest.turn(&mut account, &mut |_| {});
        }
        assert!(account.threshold_ns.iter().all(|ns| *ns >= 1_000_000));
        assert!(account.told < 400, "{} of 900", account.told);
        assert!(slowest.calls().iter().all(|call| call.key != 1));
        assert_eq!(slowest.calls().len(), KEPT_MAX);
        // What meets no condition that it was told for, is not slow by that.
        let mut short = debox_event_call::zeroed();
        (short.flags, short.key, short.wall_ns) = (DEBOX_EVENT_SLEEP, 3, 20_000);
        slowest.add(&short);
        assert!(slowest.calls().iter().all(|call| call.key != 3));
    }

    #[test]
    fn of_sleeps_those_that_are_told_raise_the_thresholds() {
        let mut account = Sleeper::new();
        let mut slowest = Slowest::default();
        let turn = |account: &mut Sleeper, slowest: &mut Slowest| {
            // It is always time for a look.
            slowest.look = Pace::of_looks();
            std::thread::sleep(slowest.look.left(Instant::now()));
            slowest.turn(account, &mut |_| {});
        };
        turn(&mut account, &mut slowest);
        for i in 0..200u64 {
            // Who waits for work; and one call that seldom sleeps.
            let stirred = (0..100).map(|n| (i * 100 + n) * 7_919 % 20_011);
            account.sleeps = stirred.map(|ns| (0, 1_000_000 + 1_000 * ns)).collect();
            if i % 50 == 0 {
                account.sleeps.push((1, 1_000_000 + i));
            }
            turn(&mut account, &mut slowest);
        }
        assert!(account.told < 3_000, "{} of 20,004", account.told);
        let of = |key: u32| -> Vec<u64> {
            let calls = slowest.calls();
            let own = calls.iter().filter(|call| call.key == key);
            own.map(|call| call.wall_ns).collect()
        };
        assert_eq!(of(1), [1_000_150, 1_000_100, 1_000_050, 1_000_000]);
        let mut all: Vec<u64> = (0..20_000u64)
            .map(|i| 1_000_000 + 1_000 * (i * 7_919 % 20_011))
            .collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let kept = of(0);
        assert_eq!(kept.len(), KEPT_MAX - 4);
        assert_eq!(kept[..100], all[..100]);
    }
}
