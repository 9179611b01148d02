// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a program whose unwind table hurts who makes it?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::unwind::check(data));
