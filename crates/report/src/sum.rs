// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the calls of one row sum up to?

use crate::hist::Hist;
use debox_abi::{debox_row, debox_wrap_row};

/// The counters of one call, summed.
#[derive(Clone, Default)]
pub(crate) struct Sum {
    pub(crate) count: u64,
    pub(crate) errors: u64,
    pub(crate) restarted: u64,
    pub(crate) unfinished: u64,
    /// Of `count`: without a time.
    pub(crate) untimed: u64,
    /// ... and with an estimate only.
    pub(crate) unstamped: u64,
    pub(crate) wall_ns: u64,
    /// Wall time of calls whose parts were measured, too.
    pub(crate) measured_wall_ns: u64,
    pub(crate) measured: bool,
    pub(crate) max_ns: u64,
    pub(crate) blocked_ns: u64,
    pub(crate) runq_ns: u64,
    pub(crate) irq_ns: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    pub(crate) nvcsw: u64,
    pub(crate) nivcsw: u64,
    pub(crate) missing: u64,
    pub(crate) ones: u64,
    pub(crate) hist: Hist,
}

pub(crate) fn grow(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

impl Sum {
    pub(crate) fn add_row(&mut self, row: &debox_row) {
        grow(&mut self.count, row.count);
        grow(&mut self.errors, row.errors);
        grow(&mut self.restarted, row.restarted);
        grow(&mut self.unfinished, row.unfinished);
        grow(&mut self.wall_ns, row.wall_ns);
        grow(&mut self.measured_wall_ns, row.wall_ns);
        self.measured = true;
        self.max_ns = self.max_ns.max(row.max_ns);
        grow(&mut self.blocked_ns, row.blocked_ns);
        grow(&mut self.runq_ns, row.runq_ns);
        grow(&mut self.irq_ns, row.irq_ns);
        grow(&mut self.minor_faults, row.minor_faults);
        grow(&mut self.major_faults, row.major_faults);
        grow(&mut self.nvcsw, row.nvcsw);
        grow(&mut self.nivcsw, row.nivcsw);
        grow(&mut self.missing, row.missing);
        grow(&mut self.ones, row.ones);
        self.hist.add(&row.hist);
    }

    pub(crate) fn add_wrap(&mut self, row: &debox_wrap_row, measured: bool) {
        grow(&mut self.count, row.count);
        grow(&mut self.errors, row.errors);
        grow(&mut self.wall_ns, row.wall_ns);
        self.max_ns = self.max_ns.max(row.max_ns);
        self.hist.add(&row.hist);
        if measured {
            self.measured = true;
            grow(&mut self.measured_wall_ns, row.wall_ns);
            grow(&mut self.blocked_ns, row.blocked_ns);
            grow(&mut self.runq_ns, row.runq_ns);
            grow(&mut self.irq_ns, row.irq_ns);
            grow(&mut self.minor_faults, row.minor_faults);
            grow(&mut self.major_faults, row.major_faults);
            grow(&mut self.nvcsw, row.nvcsw);
            grow(&mut self.nivcsw, row.nivcsw);
        }
    }

    /// How many and how long, not what was in it.
    pub(crate) fn counts_add(&mut self, other: &Self) {
        grow(&mut self.count, other.count);
        grow(&mut self.errors, other.errors);
        grow(&mut self.restarted, other.restarted);
        grow(&mut self.unfinished, other.unfinished);
        grow(&mut self.unstamped, other.unstamped);
        grow(&mut self.wall_ns, other.wall_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        grow(&mut self.missing, other.missing);
        grow(&mut self.ones, other.ones);
        self.hist.add(other.hist.buckets());
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts_add(other);
        grow(&mut self.measured_wall_ns, other.measured_wall_ns);
        grow(&mut self.blocked_ns, other.blocked_ns);
        grow(&mut self.runq_ns, other.runq_ns);
        grow(&mut self.irq_ns, other.irq_ns);
        grow(&mut self.nvcsw, other.nvcsw);
        grow(&mut self.nivcsw, other.nivcsw);
        grow(&mut self.minor_faults, other.minor_faults);
        grow(&mut self.major_faults, other.major_faults);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.unfinished == 0
    }

    pub(crate) fn cpu_ns(&self) -> u64 {
        self.measured_wall_ns
            .saturating_sub(self.blocked_ns)
            .saturating_sub(self.runq_ns)
            .saturating_sub(self.irq_ns)
    }

    /// By how much the parts exceed the whole.
    pub(crate) fn excess_ns(&self) -> u64 {
        self.blocked_ns
            .saturating_add(self.runq_ns)
            .saturating_add(self.irq_ns)
            .saturating_sub(self.measured_wall_ns)
    }
}
