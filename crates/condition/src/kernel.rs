// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the kernel side judge a `struct debox_condition`?
//!
//! Written from the description in include/debox/abi.h, independently of the
//! BPF programs: tests hold the compiler, and the BPF programs, to it.

use crate::field::{NUMBERS, Number};
use debox_abi::*;

/// What the kernel side can say of a call and a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelAnswer {
    Met,
    NotMet,
    /// It depends on a site that the client has not judged.
    Uncertain,
}

/// Compares one finished call, that slept at `sites`, with a condition.
/// `numbers` is by `Number as usize`; only the kernel side's own are looked at.
pub fn kernel_judge(
    condition: &debox_condition,
    key: u32,
    numbers: &[i64; NUMBERS],
    comm: &[u8; DEBOX_COMM_LEN],
    sites: &[u32],
) -> KernelAnswer {
    let bit = |words: &[u64], index: u32| {
        words
            .get(index as usize / 64)
            .is_some_and(|word| word >> (index % 64) & 1 != 0)
    };
    if condition.flags & DEBOX_CONDITION_ON == 0 || !bit(&condition.calls, key) {
        return KernelAnswer::NotMet;
    }
    for field in 0..DEBOX_FIELDS {
        let value = numbers[Number::ALL[field] as usize];
        if condition.fields >> field & 1 != 0
            && !(condition.min[field]..=condition.max[field]).contains(&value)
        {
            return KernelAnswer::NotMet;
        }
    }
    let same = name_get(comm) == name_get(&condition.comm);
    if condition.flags & DEBOX_CONDITION_COMM != 0 && !same
        || condition.flags & DEBOX_CONDITION_COMM_NOT != 0 && same
    {
        return KernelAnswer::NotMet;
    }
    let listed = sites.iter().any(|site| bit(&condition.sites, *site));
    let judged = sites.iter().all(|site| bit(&condition.known, *site));
    let wanted = condition.flags & DEBOX_CONDITION_SITES != 0;
    let unwanted = condition.flags & DEBOX_CONDITION_SITES_NOT != 0;
    match (wanted, unwanted) {
        (true, _) if listed => KernelAnswer::Met,
        (_, true) if listed => KernelAnswer::NotMet,
        (true, _) | (_, true) if !judged => KernelAnswer::Uncertain,
        (true, _) => KernelAnswer::NotMet,
        _ => KernelAnswer::Met,
    }
}
