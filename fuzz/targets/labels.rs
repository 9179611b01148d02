// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are there label rules, or a stack, that the rules' engine mishandles?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::labels::check(data));
