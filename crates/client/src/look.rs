// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which calls returned since the last look, cheaply?
//!
//! A row is 2.4 KiB for each CPU; most rows do not change between two looks. So
//! only the counts are read, and rows whose count moved.

use crate::account::AccountView;
use debox_abi::*;
use std::collections::HashMap;

/// Tries to find a row at rest. What a look gets wrong, the next one sets right.
const LOOK_COPIES: usize = 3;

/// The counters of one call on one CPU, as of the last look.
struct Seen {
    count: u64,
    row: Box<debox_row>,
}

/// What earlier looks saw.
#[derive(Default)]
pub struct Looks {
    seen: HashMap<(usize, usize), Seen>,
}

impl AccountView {
    /// Tells the sums, over all CPUs, of each call that returned since the
    /// last look.
    pub fn look(&self, looks: &mut Looks, each: &mut dyn FnMut(u32, &debox_row)) {
        let mut row_of = [0u32; DEBOX_NR_SLOTS];
        let offset = std::mem::offset_of!(debox_account, row_of);
        self.account.copy_words(offset, row_of.as_bytes_mut());
        for (key, index) in row_of.iter().enumerate() {
            let index = *index as usize;
            if (1..DEBOX_ROWS_MAX).contains(&index) && self.row_look(looks, index) {
                let mut sum = debox_row::zeroed();
                for cpu in 0..self.cpu_count {
                    if let Some(seen) = looks.seen.get(&(index, cpu)) {
                        row_add(&mut sum, &seen.row);
                    }
                }
                each(key as u32, &sum);
            }
        }
    }

    /// The sums of one call over all CPUs; zeroes if the kernel side has none.
    pub fn row_sum(&self, key: u32) -> debox_row {
        let mut sum = debox_row::zeroed();
        // What is copied is words of 8 bytes.
        let mut two = [0u32; 2];
        let offset = std::mem::offset_of!(debox_account, row_of) + 4 * (key as usize & !1);
        self.account.copy_words(offset, two.as_bytes_mut());
        let index = two[key as usize & 1] as usize;
        if (1..DEBOX_ROWS_MAX).contains(&index) {
            let mut row = debox_row::zeroed_box();
            for cpu in 0..self.cpu_count {
                let offset = cpu * self.stride + index * size_of::<debox_row>();
                self.row_copy(offset, &mut row, LOOK_COPIES);
                row_add(&mut sum, &row);
            }
        }
        sum
    }

    /// Brings one row up to date; whether it changed.
    fn row_look(&self, looks: &mut Looks, index: usize) -> bool {
        let mut changed = false;
        for cpu in 0..self.cpu_count {
            let offset = cpu * self.stride + index * size_of::<debox_row>();
            let mut count = 0u64;
            self.cpus.copy_words(offset, count.as_bytes_mut());
            let known = looks.seen.get_mut(&(index, cpu));
            if count == known.as_ref().map_or(0, |seen| seen.count) {
                continue;
            }
            changed = true;
            let seen = match known {
                Some(seen) => seen,
                None => looks.seen.entry((index, cpu)).or_insert(Seen {
                    count: 0,
                    row: debox_row::zeroed_box(),
                }),
            };
            self.row_copy(offset, &mut seen.row, LOOK_COPIES);
            seen.count = seen.row.count;
        }
        changed
    }
}

fn row_add(sum: &mut debox_row, row: &debox_row) {
    for (to, from) in [
        (&mut sum.count, row.count),
        (&mut sum.errors, row.errors),
        (&mut sum.restarted, row.restarted),
        (&mut sum.unfinished, row.unfinished),
        (&mut sum.wall_ns, row.wall_ns),
        (&mut sum.blocked_ns, row.blocked_ns),
        (&mut sum.runq_ns, row.runq_ns),
        (&mut sum.minor_faults, row.minor_faults),
        (&mut sum.major_faults, row.major_faults),
        (&mut sum.nvcsw, row.nvcsw),
        (&mut sum.nivcsw, row.nivcsw),
        (&mut sum.missing, row.missing),
        (&mut sum.ones, row.ones),
        (&mut sum.told, row.told),
        (&mut sum.untold, row.untold),
    ] {
        *to = to.saturating_add(from);
    }
    sum.max_ns = sum.max_ns.max(row.max_ns);
    for (to, from) in sum.hist.iter_mut().zip(&row.hist) {
        *to = to.saturating_add(*from);
    }
}
