// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a recording that its reader mishandles?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::recording::check(data));
