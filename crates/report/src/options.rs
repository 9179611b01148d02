// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may text for people look like where it goes?

#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions {
    /// Columns of the terminal; None: as wide as it gets.
    pub width: Option<usize>,
    pub color: bool,
    /// No characters beyond ASCII.
    pub ascii: bool,
    /// Rows of each table; the others are summed in one row.
    pub top: Option<usize>,
}
