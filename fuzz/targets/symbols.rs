// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a symbol table or perf map that hurts who reads it?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::symbols::check(data));
