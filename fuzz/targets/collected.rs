// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are there counters of a process that hurt who collects them?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::collected::check(data));
