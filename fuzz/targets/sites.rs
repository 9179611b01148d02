// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a program, or a table, that hurts who splices its system calls?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::sites::check(data));
