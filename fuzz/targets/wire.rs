// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a message that hurts the symboliser, or who reads its answers?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::wire::check(data));
