// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a packet that broker or client mishandles?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::protocol::check(data));
