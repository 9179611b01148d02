// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may lists of symbols do? 0: the kernel's (/proc/kallsyms), else a perf
//! map of a process; before it an address to look up.

use crate::{Taker, choice};

use debox_symbol::SymbolTable;
use debox_symboliser::PerfMap;

pub fn check(data: &[u8]) {
    let (kind, rest) = choice(data);
    let mut taker = Taker(rest);
    let address = taker.u64();
    match kind {
        0 => kernel(taker.0, address),
        _ => perf_map(taker.0, address),
    }
}

fn kernel(text: &[u8], address: u64) {
    let table = SymbolTable::read(text).expect("reading memory");
    for place in [address, 0, u64::MAX, address >> 16, !address] {
        if let Some((name, start)) = table.function(place) {
            assert!(start <= place && !name.is_empty());
            // The first of those with this name.
            assert!(table.address(name).is_some());
        }
        table.is_core(place);
    }
}

/// As the symboliser reads it.
fn perf_map(text: &[u8], address: u64) {
    let map = PerfMap::of_bytes(text);
    for place in [address, 0, 1, u64::MAX, address >> 16] {
        if let Some((start, name)) = map.name(place) {
            assert!(start <= place && !name.is_empty());
            assert!(!name.chars().any(char::is_control), "{name:?}");
        }
    }
}
