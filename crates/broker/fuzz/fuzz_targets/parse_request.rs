// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a packet that the parser mishandles? `cargo +nightly fuzz run
//! parse_request` in crates/broker looks for one.
#![no_main]

#[path = "../property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
