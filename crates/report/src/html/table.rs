// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a table written, so that it reads without a script and a script can
//! sort, filter and page it?
//!
//! Each cell carries what it is sorted by in `data-v` when that differs from
//! its text.

use super::time;
use debox_output::{count_text, escape};

/// Texts up to this many characters stay on one line.
const NOWRAP_MAX: usize = 44;

pub struct Column {
    title: &'static str,
    /// A sentence shown on the heading.
    hint: &'static str,
    class: &'static str,
}

pub fn number(title: &'static str, hint: &'static str) -> Column {
    Column {
        title,
        hint,
        class: "n",
    }
}

pub fn words(title: &'static str, hint: &'static str) -> Column {
    Column {
        title,
        hint,
        class: "",
    }
}

/// A name that other cells of the row belong to.
pub fn head(title: &'static str, hint: &'static str) -> Column {
    Column {
        title,
        hint,
        class: "h",
    }
}

/// A column of drawings: not sorted.
pub fn drawing(title: &'static str, hint: &'static str) -> Column {
    Column {
        title,
        hint,
        class: "d",
    }
}

pub enum Cell {
    Text(String),
    /// Nanoseconds; None: not measured.
    Time(Option<u64>),
    Count(Option<u64>),
    /// Sorted by the number, shown as the text.
    Value(f64, String),
    /// HTML made by us.
    Html(String),
}

impl Cell {
    pub fn text(s: &str) -> Self {
        Self::Text(s.to_owned())
    }
}

pub struct Table {
    pub id: &'static str,
    pub caption: String,
    pub columns: Vec<Column>,
    /// Attributes of the row (made by us), and its cells.
    pub rows: Vec<(String, Vec<Cell>)>,
    /// Rows on a page, when a script makes pages.
    pub page: usize,
    /// Which column it is sorted by as written, largest first.
    pub sorted: Option<usize>,
}

impl Table {
    /// Leaves out columns in which no row has anything.
    fn kept(&self) -> Vec<bool> {
        (0..self.columns.len())
            .map(|i| {
                self.columns[i].class == "h"
                    || self.rows.iter().any(|(_, cells)| match &cells[i] {
                        Cell::Text(s) | Cell::Html(s) => !s.is_empty(),
                        Cell::Time(v) | Cell::Count(v) => v.is_some_and(|v| v > 0),
                        Cell::Value(v, _) => *v > 0.0,
                    })
            })
            .collect()
    }

    pub fn html(&self) -> String {
        let kept = self.kept();
        let mut out = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n<table id=\"{1}\" class=\"data\" data-page=\"{2}\">\n<caption class=\"sr\">{0}</caption>\n<thead><tr>",
            escape(&self.caption),
            self.id,
            self.page
        );
        for (i, column) in self.columns.iter().enumerate().filter(|(i, _)| kept[*i]) {
            let sorted = if self.sorted == Some(i) {
                " aria-sort=\"descending\""
            } else {
                ""
            };
            let hint = if column.hint.is_empty() {
                String::new()
            } else {
                format!(" title=\"{}\"", escape(column.hint))
            };
            out.push_str(&format!(
                "<th scope=\"col\" class=\"{}\"{hint}{sorted}>{}</th>",
                column.class,
                escape(column.title)
            ));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for (attributes, cells) in &self.rows {
            out.push_str("<tr");
            out.push_str(attributes);
            out.push('>');
            for (i, cell) in cells.iter().enumerate().filter(|(i, _)| kept[*i]) {
                let class = self.columns[i].class;
                let (tag, scope) = if class == "h" {
                    ("th", " scope=\"row\"")
                } else {
                    ("td", "")
                };
                // Names do not break in the middle; long texts may.
                let fits = match cell {
                    Cell::Text(s) => s.chars().count() <= NOWRAP_MAX,
                    _ => false,
                };
                let class = match (class, fits) {
                    ("", false) => String::new(),
                    ("", true) => " class=\"w\"".into(),
                    (class, false) => format!(" class=\"{class}\""),
                    (class, true) => format!(" class=\"{class} w\""),
                };
                let (value, body) = match cell {
                    Cell::Text(s) => (None, escape(s)),
                    Cell::Html(s) => (None, s.clone()),
                    Cell::Time(None) | Cell::Count(None) => (
                        Some("-1".into()),
                        "<span title=\"not measured\">?</span>".into(),
                    ),
                    Cell::Time(Some(0)) | Cell::Count(Some(0)) => (Some("0".into()), "–".into()),
                    Cell::Time(Some(ns)) => (Some(ns.to_string()), time(*ns)),
                    Cell::Count(Some(n)) => (Some(n.to_string()), count_text(*n)),
                    Cell::Value(v, s) => (Some(v.to_string()), escape(s)),
                };
                let value = value.map_or(String::new(), |v| format!(" data-v=\"{v}\""));
                out.push_str(&format!("<{tag}{scope}{class}{value}>{body}</{tag}>"));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table>\n</div>\n");
        out
    }
}
