// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a program that hurts the symboliser, which names places in it?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::module::check(data));
