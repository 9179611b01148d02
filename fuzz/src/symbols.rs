// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may lists of symbols do? 0: the kernel's (/proc/kallsyms), else a perf
//! map or jitdump of a process; before it an address to look up.

use crate::{Taker, choice};

use debox_symbol::Functions;
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
    let functions = Functions::read(text).expect("reading memory");
    for place in [address, 0, u64::MAX, address >> 16, !address] {
        if let Some((name, start)) = functions.name_around(place) {
            assert!(start <= place && !name.is_empty());
            // The first of those with this name.
            assert!(functions.address(name).is_some());
        }
        if let Some((function, offset)) = functions.around(place) {
            assert_eq!(function.address + offset, place);
            assert!(offset < function.len);
        }
        functions.neighbours(place);
        functions.is_core(place);
    }
    for name in functions.names().take(64) {
        assert!(functions.named(name, None).iter().all(|f| f.name == name));
        assert!(functions.beginning(name).iter().any(|f| f.name == name));
    }
    functions.matching("*_*", None);
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
