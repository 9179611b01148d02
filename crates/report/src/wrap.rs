// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did the interposers of a run count, all together?
//!
//! Every number here was written by a watched program's own memory, so sums
//! saturate, call numbers are bounded, and nothing is used as an index.

use crate::sum::{Sum, grow};
use debox_abi::{DEBOX_NR_COMPAT, DEBOX_NR_UNKNOWN, debox_wrap_row};
use std::collections::BTreeMap;

/// Most (process, call, call site) rows kept apart: the interposer holds 256
/// per thread, but a fork storm has no end.
const CALL_SITES_MAX: usize = 16384;

/// One process that sent its counters.
#[derive(Clone, Debug)]
pub struct WrapProcess {
    pub pid: u32,
    /// The broker gave it slots, so blocked time and the rest were measured.
    pub measured: bool,
    /// Why not.
    pub why: String,
    pub threads_lost: u64,
    /// It forbade itself what counting needs, at some time.
    pub restricted: bool,
}

/// Calls of one number from one place.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaceCounts {
    pub count: u64,
    pub errors: u64,
    pub wall_ns: u64,
    pub max_ns: u64,
}

/// The counters of all processes, folded by call and by call site.
#[derive(Default)]
pub struct WrapCounts {
    pub(crate) by_nr: BTreeMap<u32, Sum>,
    pub(crate) by_site: BTreeMap<(usize, u32, u64), Sum>,
    pub(crate) processes: Vec<WrapProcess>,
    pub(crate) dropped: u64,
    pub(crate) dropped_ns: u64,
    pub(crate) stale: u64,
    pub(crate) sites_merged: u64,
    pub(crate) refused: Vec<String>,
    pub(crate) refused_more: u64,
    /// Calls that a handler jumped out of: counted, without a time.
    pub jumped_out: u64,
}

impl WrapCounts {
    /// Registers a process; its rows are added under the returned number.
    pub fn process_add(&mut self, process: WrapProcess) -> usize {
        self.processes.push(process);
        self.processes.len() - 1
    }

    /// Of the calls of a number: how many failed with ENOENT, and how many returned 1.
    pub fn results_add(&mut self, nr_key: u32, missing: u64, ones: u64) {
        if let Some(sum) = self.by_nr.get_mut(&nr_key) {
            sum.missing = sum.missing.saturating_add(missing);
            sum.ones = sum.ones.saturating_add(ones);
        }
    }

    /// ... and how many had no stamps: their time is an estimate.
    pub fn unstamped_add(&mut self, nr_key: u32, unstamped: u64) {
        if let Some(sum) = self.by_nr.get_mut(&nr_key) {
            grow(&mut sum.unstamped, unstamped);
        }
    }

    /// The head of one stripe: what that stripe had to leave out.
    pub fn stripe_add(&mut self, dropped: u64, dropped_ns: u64, stale: u64) {
        self.dropped = self.dropped.saturating_add(dropped);
        self.dropped_ns = self.dropped_ns.saturating_add(dropped_ns);
        self.stale = self.stale.saturating_add(stale);
    }

    /// A collection that could not be believed, with the reason for people.
    pub fn refused_add(&mut self, why: String) {
        self.refused.push(why);
    }

    /// One more, of which only the number is told.
    pub fn refused_more(&mut self) {
        self.refused_more += 1;
    }

    pub fn row_add(&mut self, process: usize, row: &debox_wrap_row) {
        let Some(nr) = row.nr() else { return };
        let nr = if nr < DEBOX_NR_COMPAT {
            nr
        } else {
            DEBOX_NR_UNKNOWN
        };
        let measured = self.processes.get(process).is_some_and(|p| p.measured);
        self.by_nr.entry(nr).or_default().add_wrap(row, measured);
        let key = (process, nr, row.call_site);
        if self.by_site.contains_key(&key) || self.by_site.len() < CALL_SITES_MAX {
            self.by_site.entry(key).or_default().add_wrap(row, measured);
        } else {
            self.sites_merged = self.sites_merged.saturating_add(row.count);
        }
    }

    /// Of the calls of a number that were added so far, so many came from one place, as they say: what they
    /// have more than all of them together stays at an unknown one. False: there is no room for it.
    pub fn place_add(&mut self, process: usize, nr_key: u32, place: u64, of: &PlaceCounts) -> bool {
        let key = (process, nr_key, place);
        let full = self.by_site.len() >= CALL_SITES_MAX && !self.by_site.contains_key(&key);
        let Some(rest) = self.by_site.get_mut(&(process, nr_key, 0)) else {
            return true;
        };
        if full {
            return false;
        }
        let take = |from: &mut u64, wanted: u64| {
            let taken = wanted.min(*from);
            *from -= taken;
            taken
        };
        let (count, errors) = (
            take(&mut rest.count, of.count),
            take(&mut rest.errors, of.errors),
        );
        let wall_ns = take(&mut rest.wall_ns, of.wall_ns);
        // The longest of those that are left is not known, but not longer than all of them.
        let longest = rest.max_ns;
        rest.max_ns = longest.min(rest.wall_ns);
        let sum = self.by_site.entry(key).or_default();
        grow(&mut sum.count, count);
        grow(&mut sum.errors, errors.min(count));
        grow(&mut sum.wall_ns, wall_ns);
        sum.max_ns = sum.max_ns.max(of.max_ns.min(wall_ns));
        true
    }

    /// All calls that were counted.
    pub fn calls(&self) -> u64 {
        self.by_nr
            .values()
            .fold(0, |all, sum| all.saturating_add(sum.count))
    }

    pub fn processes(&self) -> &[WrapProcess] {
        &self.processes
    }
}
