// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a finished call, and what is the answer to whether it is meant?

use crate::field::{NUMBERS, Number};

/// `Unknown`: it depends on something that was not measured, or has no name
/// (yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    Unknown,
}

/// One place where the call slept; None: not known (yet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteFacts<'a> {
    pub label: Option<&'a str>,
    pub function: Option<&'a str>,
    /// Empty: nobody.
    pub holder: Option<&'a str>,
    /// A word a line.
    pub root: Option<&'a str>,
    pub chain: Option<&'a str>,
}

/// What is known of one finished call.
#[derive(Clone, Debug)]
pub struct CallFacts<'a> {
    /// Account key of the system call; None: not known.
    pub key: Option<u32>,
    /// By `Number as usize`; None: not measured. `Faults` and `Errno` follow
    /// from the others and are not looked at.
    pub numbers: [Option<i64>; NUMBERS],
    pub comm: Option<&'a str>,
    pub caller: Option<&'a str>,
    pub sites: Vec<SiteFacts<'a>>,
    /// Whether `sites` names every sleep.
    pub sites_whole: bool,
}

impl Default for CallFacts<'_> {
    fn default() -> Self {
        Self {
            key: None,
            numbers: [None; NUMBERS],
            comm: None,
            caller: None,
            sites: Vec::new(),
            sites_whole: true,
        }
    }
}

impl CallFacts<'_> {
    pub fn set(&mut self, number: Number, value: u64) {
        self.numbers[number as usize] = Some(i64::try_from(value).unwrap_or(i64::MAX));
    }
}
