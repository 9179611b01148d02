// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a condition that a parser mishandles, or that the two read differently?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::expression::check(data));
