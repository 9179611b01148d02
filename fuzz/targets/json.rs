// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a JSON document that its readers mishandle?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::json::check(data));
