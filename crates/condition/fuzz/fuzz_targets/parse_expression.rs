// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is there a text that the parser mishandles? `cargo +nightly fuzz run
//! parse_expression` in crates/condition looks for one.
#![no_main]

#[path = "../property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        property::check(text);
    }
});
