// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a command line that its parsers mishandle?
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| debox_fuzz::policy::check(data));
