// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold for everything that DeBox shows or writes?
//!
//! Text that came from outside (the watched program, a file, the command line)
//! cannot steer a terminal: [`printable`]. Error numbers have names:
//! [`errno_name`]. Files are for their owner only, and are not put where
//! somebody else points to: [`create`]. Text in a page cannot end its element: [`escape`]. Numbers have the
//! unit that fits: [`duration_text`], [`count_text`], [`bytes_text`]. What debox says of itself
//! begins with its name: [`say`]. Days are those of one calendar: [`Utc`].

mod calendar;
pub mod chart;
mod errno;
mod file;
mod foreign;
mod lines;
mod markup;
mod page;
mod pen;
mod said;
mod table;
mod units;

pub use calendar::Utc;
pub use errno::{errno_name, error_name, result_text};
pub use file::{create, create_directory, write};
pub use foreign::{
    TEXT_CHARS_MAX, is_unprintable, json_printable, printable, printable_bytes, printable_lines,
    printable_within, shell_word,
};
pub use lines::wrapped;
pub use markup::{escape, script_json};
pub use page::{PAGE_STYLE, Page, Section, html_table, script_policy};
pub use pen::{Pen, Style, count_cell, count_cell_opt};
pub use said::{say, say_lines};
pub use table::{Column, Table};
pub use units::{
    bytes_text, count_text, difference_text, digits_text, duration_text, mark_text, measured_text,
    range_text, share_text, signed_text, size_text, two_digits_text,
};
