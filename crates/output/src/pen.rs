// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which colours and characters may be used where this is shown?

use crate::{count_text, duration_text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Bold,
    Dim,
    Label,
    Good,
    Poor,
    Bad,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Pen {
    pub color: bool,
    /// No characters beyond ASCII.
    pub ascii: bool,
}

impl Pen {
    pub fn paint(&self, style: Style, text: &str) -> String {
        if !self.color || text.is_empty() {
            return text.to_owned();
        }
        let code = match style {
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Label => "36",
            Style::Good => "32",
            Style::Poor => "33",
            Style::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub fn time(&self, ns: u64) -> String {
        duration_text(ns, self.ascii)
    }

    /// A duration in a table: nothing happened is a dash.
    pub fn cell(&self, ns: u64) -> String {
        if ns == 0 { "-".into() } else { self.time(ns) }
    }

    /// What was not measured is a question mark.
    pub fn cell_opt(&self, ns: Option<u64>) -> String {
        ns.map_or_else(|| "?".into(), |ns| self.cell(ns))
    }

    /// Shortens at the end.
    pub fn cut(&self, text: &str, width: usize) -> String {
        if text.chars().count() <= width {
            return text.to_owned();
        }
        let dots = if self.ascii { "..." } else { "…" };
        let keep = width.saturating_sub(dots.chars().count());
        let mut out: String = text.chars().take(keep).collect();
        out.push_str(dots);
        out
    }

    /// Texts composed elsewhere (notes) are written with the micro sign.
    pub fn plain(&self, text: &str) -> String {
        if self.ascii {
            text.replace('µ', "u")
                .replace('…', "...")
                .replace('→', "->")
                .replace('←', "<-")
        } else {
            text.to_owned()
        }
    }
}

/// A count in a table: none is a dash.
pub fn count_cell(n: u64) -> String {
    if n == 0 { "-".into() } else { count_text(n) }
}

/// What was not counted is a question mark.
pub fn count_cell_opt(n: Option<u64>) -> String {
    n.map_or_else(|| "?".into(), count_cell)
}
