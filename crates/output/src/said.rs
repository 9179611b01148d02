// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does debox itself say something, beside what it was asked for?

use std::io::Write;

use crate::{printable, printable_lines};

fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "debox: {text}");
}

/// A line on standard error, where it may be closed. Paths, arguments and names in
/// it are shown, never obeyed.
pub fn say(text: &str) {
    line(&printable(text));
}

/// The same for text that has lines by design.
pub fn say_lines(text: &str) {
    line(&printable_lines(text));
}
