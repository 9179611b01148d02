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

    /// What the kernel side saw of calls that were counted elsewhere.
    pub(crate) fn slept_add(&mut self, slept: &Self) {
        grow(&mut self.blocked_ns, slept.blocked_ns);
        grow(&mut self.runq_ns, slept.runq_ns);
        grow(&mut self.nvcsw, slept.nvcsw);
        grow(&mut self.nivcsw, slept.nivcsw);
        grow(&mut self.minor_faults, slept.minor_faults);
        grow(&mut self.major_faults, slept.major_faults);
        // Whoever counted the others knows nothing of those that never returned.
        grow(&mut self.unfinished, slept.unfinished);
        grow(&mut self.wall_ns, slept.wall_ns);
        grow(&mut self.measured_wall_ns, slept.wall_ns);
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
