// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which single calls were the slowest, of an account that its owner reads himself, for as long as he likes?
//!
//! What an observer does in a thread of its own (`observe.rs`), done whenever events are taken out: thresholds
//! rise by what was counted, so that events stay few.

use crate::history::RowSums;
use crate::observe::{Account, Pace};
use crate::slow::{Reservoir, thresholds_begin, thresholds_raise};
use debox_abi::{DEBOX_EVENT_SLEEP, debox_event_call};
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
        // Of a sleep the call may go on.
        if event.flags & DEBOX_EVENT_SLEEP == 0 {
            self.kept.add(event);
        }
    }

    /// Takes events out, and looks at the sums if that is due. The first time it begins: whoever takes them out is not
    /// busy with something else any more.
    pub fn turn(&mut self, account: &mut impl Account, each: &mut dyn FnMut(&debox_event_call)) {
        let since = *self.since.get_or_insert_with(|| {
            thresholds_begin(account);
            Instant::now()
        });
        account.events(&mut |event| {
            self.add(event);
            each(event);
        });
        let began = Instant::now();
        if !self.look.is_due(began) {
            return;
        }
        let sums = &mut self.sums;
        account.look(&mut |key, row| {
            sums.insert(key, *row);
        });
        let sums: Vec<(u32, &RowSums)> = self.sums.iter().map(|(key, row)| (*key, row)).collect();
        thresholds_raise(account, &sums, KEPT_MAX);
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
