// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has a thread counted, of which a block has room for five hundred calls and mostly tells of twenty?

use crate::proc;
use crate::run::Run;
use crate::state::{block, row, row_of};
use std::cell::Cell;
use std::io;
use std::ops::Range;

/// Rows of a block, and what lies behind them: mostly holes, which are neither read nor looked at.
pub(crate) struct Rows {
    pub(crate) bytes: Vec<u8>,
    there: Vec<Range<usize>>,
}

thread_local! {
    /// Half a megabyte of zeros, which each program that ends would have written anew.
    static ROWS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Rows {
    pub(crate) fn new() -> Self {
        let mut bytes = ROWS.take();
        bytes.resize((block::BYTES - block::ROWS) as usize, 0);
        Self {
            bytes,
            there: Vec::new(),
        }
    }

    fn clear(&mut self) {
        for part in self.there.drain(..) {
            self.bytes[part].fill(0);
        }
    }

    pub(crate) fn read(&mut self, run: &Run, at: u64) -> io::Result<()> {
        self.clear();
        let there = &mut self.there;
        run.read_data(&mut self.bytes, at + block::ROWS, |part| there.push(part))
    }

    /// How many calls of a number there were.
    pub(crate) fn count(&self, nr: u32) -> u64 {
        let at = (row_of(nr) + row::COUNT - block::ROWS) as usize;
        match self.there.iter().any(|part| part.contains(&at)) {
            true => proc::long_of(&self.bytes, at),
            false => 0,
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.clear();
        ROWS.set(std::mem::take(&mut self.bytes));
    }
}
