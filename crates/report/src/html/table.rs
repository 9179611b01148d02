// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a table written, so that it reads without a script, a script can sort, filter
//! and page it, and no column is ever out of sight?
//!
//! Each cell carries what it is sorted by in `data-v` when its text does not tell. A
//! page is read far from where it was made, so a table has at most so many rows; how
//! many are missing, and what they come to, stands below it.
//!
//! A row that does not fit becomes smaller, and in a still narrower window takes several
//! lines, with each value below its heading and each heading in the same place in all
//! rows. At which width, the texts decide; a container query asks it, without a script.

use super::time;
use debox_output::{Section, count_text, escape};
use std::fmt::Write;

/// Texts up to this many characters stay on one line.
const NOWRAP_MAX: usize = 44;
/// Rows of a table, and their bytes, from so many rows on.
const ROWS_MAX: usize = 500;
const ROWS_MIN: usize = 60;
const BYTES_MAX: usize = 120_000;

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

    /// What stands in the cell. The script knows a dash as 0, and ? as less than that.
    fn body(&self) -> String {
        match self {
            Self::Text(s) | Self::Value(_, s) => escape(s),
            Self::Html(s) => s.clone(),
            Self::Time(None) | Self::Count(None) => "?".into(),
            Self::Time(Some(0)) | Self::Count(Some(0)) => "–".into(),
            Self::Time(Some(ns)) => time(*ns),
            Self::Count(Some(n)) => count_text(*n),
        }
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
                        Cell::Value(v, _) => *v != 0.0,
                    })
            })
            .collect()
    }

    /// A row as text, ready to stand in the page.
    fn row(&self, kept: &[bool], attributes: &str, cells: &[Cell]) -> String {
        let mut out = format!("<tr{attributes}>");
        for (i, cell) in cells.iter().enumerate().filter(|(i, _)| kept[*i]) {
            let class = self.columns[i].class;
            let (tag, scope) = if class == "h" {
                ("th", " scope=row")
            } else {
                ("td", "")
            };
            // Names do not break in the middle; long texts may.
            let fits = matches!(cell, Cell::Text(s) if s.chars().count() <= NOWRAP_MAX);
            let class = match (class, fits) {
                ("", false) => String::new(),
                ("", true) => " class=w".into(),
                (class, false) => format!(" class={class}"),
                (class, true) => format!(" class=\"{class} w\""),
            };
            let value = match cell {
                Cell::Time(Some(ns)) if *ns > 0 => format!(" data-v={ns}"),
                Cell::Value(v, _) => format!(" data-v={v}"),
                Cell::Time(None) | Cell::Count(None) => " title=\"not measured\"".into(),
                _ => String::new(),
            };
            let body = cell.body();
            let _ = write!(out, "<{tag}{scope}{class}{value}>{body}</{tag}>");
        }
        out + "</tr>\n"
    }

    /// How wide are the columns that are kept?
    fn widths(&self, kept: &[bool], rows: &[(String, Vec<Cell>)]) -> Vec<Width> {
        (0..self.columns.len())
            .filter(|i| kept[*i])
            .map(|i| {
                let lengths = rows.iter().map(|(_, cells)| match &cells[i] {
                    Cell::Html(_) => 0,
                    Cell::Text(s) => s.chars().count(),
                    cell => cell.body().chars().count(),
                });
                Width {
                    title: self.columns[i].title.to_owned(),
                    class: self.columns[i].class,
                    chars: lengths.max().unwrap_or(0),
                }
            })
            .collect()
    }

    /// What is said below of rows that are left out.
    fn left(&self, rows: &[(String, Vec<Cell>)]) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let sum = self.sorted.map_or(String::new(), |i| {
            let sum = rows.iter().fold(0u64, |sum, (_, cells)| match &cells[i] {
                Cell::Time(Some(ns)) => sum.saturating_add(*ns),
                _ => sum,
            });
            match self.columns[i].title {
                _ if sum == 0 => String::new(),
                title => format!(" ({}: {} together)", title.to_lowercase(), time(sum)),
            }
        });
        format!(
            "<p class=\"soft left\">{} more {} not in this page{sum}; debox report --json has all.</p>\n",
            count_text(rows.len() as u64),
            if rows.len() == 1 {
                "row is"
            } else {
                "rows are"
            },
        )
    }

    pub fn html(&self) -> String {
        let kept = self.kept();
        let mut body = String::new();
        let mut written = 0;
        for (attributes, cells) in self.rows.iter().take(ROWS_MAX) {
            let row = self.row(&kept, attributes, cells);
            if written >= ROWS_MIN && body.len() + row.len() > BYTES_MAX {
                break;
            }
            body += &row;
            written += 1;
        }
        let (rows, left) = self.rows.split_at(written);
        let mut out = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n<style>{3}</style><table id=\"{1}\" class=\"data\" data-page=\"{2}\">\n<caption class=\"sr\">{0}</caption>\n<thead><tr>",
            escape(&self.caption),
            self.id,
            self.page,
            narrow_style(self.id, &self.widths(&kept, rows)),
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
            let _ = write!(
                out,
                "<th scope=\"col\" class=\"{}\"{hint}{sorted}>{}</th>",
                column.class,
                escape(column.title)
            );
        }
        let _ = write!(
            out,
            "</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n{}",
            self.left(left)
        );
        out
    }
}

/// Takes the styles of tables out of sections, for the head, where they belong. Nothing
/// foreign has such a tag: it is escaped.
pub fn take_styles(sections: &mut [Section]) -> String {
    const TAGS: (&str, &str) = ("<style>", "</style>");
    let mut styles = String::new();
    for section in sections {
        let mut rest = std::mem::take(&mut section.body);
        while let Some((before, after)) = rest.split_once(TAGS.0) {
            let (style, after) = after.split_once(TAGS.1).unwrap_or((after, ""));
            section.body += before;
            styles += style;
            styles.push('\n');
            rest = after.to_owned();
        }
        section.body += &rest;
    }
    styles
}

/// How much room a column needs.
pub struct Width {
    pub title: String,
    pub class: &'static str,
    /// Of its longest cell.
    pub chars: usize,
}

/// Pixels of a column: as it should be, and as narrow as it still reads well. A generous
/// estimate, as fonts differ: what is narrower than need be hides nothing.
fn pixels(width: &Width) -> (f64, f64) {
    let word = width.title.split(' ').map(|w| w.chars().count()).max();
    let (word, chars) = (word.unwrap_or(0) as f64, width.chars as f64);
    match width.class {
        // Sparklines and bars.
        "d" => (196.0, 92.0),
        "n" => (
            (chars * 9.3).max(word * 10.2 + 16.0) + 18.0,
            (chars * 7.4).max(word * 6.7) + 6.0,
        ),
        _ => {
            let whole = match width.chars {
                0..=NOWRAP_MAX => chars * 10.2,
                // Wrapped; beside it may stand one that is not.
                _ => NOWRAP_MAX as f64 * 10.2,
            };
            (
                whole.max(word * 10.2 + 16.0) + 18.0,
                (chars * 7.4).min(118.0).max(word * 6.7) + 6.0,
            )
        }
    }
}

/// A string of a style sheet, whatever is in it.
fn css_string(foreign: &str) -> String {
    let mut out = String::from("\"");
    for c in foreign.chars() {
        match c {
            ' ' | '(' | ')' | '.' | '_' | '±' => out.push(c),
            c if c.is_ascii_alphanumeric() => out.push(c),
            c => {
                let _ = write!(out, "\\{:x} ", c as u32);
            }
        }
    }
    out + "\""
}

/// What becomes of table `id` where its columns do not fit side by side.
pub fn narrow_style(id: &str, columns: &[Width]) -> String {
    let sum = |f: fn((f64, f64)) -> f64| columns.iter().map(|c| f(pixels(c))).sum::<f64>();
    let (wide, tight) = (sum(|p| p.0), sum(|p| p.1));
    let t = format!("#{id}");
    let mut out = format!(
        "@container (max-width:{wide:.0}px){{{t}{{font-size:11.5px}}{t} :is(th,td){{padding-left:3px;padding-right:3px;min-width:0;white-space:normal}}\
         {t} thead th{{font-size:10.5px;font-weight:500}}{t} thead button::after{{width:auto}}{t} :is(tbody,tfoot) .n{{white-space:nowrap}}{t} .spark{{width:84px}}{t} .bar{{min-width:80px}}"
    );
    for (i, column) in columns.iter().enumerate() {
        if column.class != "n" {
            let _ = write!(
                out,
                "{t} :is(th,td):nth-child({}){{min-width:{:.0}px}}",
                i + 1,
                pixels(column).1
            );
        }
    }
    let _ = write!(
        out,
        "}}@container (max-width:{tight:.0}px){{{t},{t} :is(thead,tbody,tfoot,caption){{display:block}}\
         {t} thead tr{{display:flex;flex-wrap:wrap;gap:0 .7rem}}{t} tr>:is(th,td){{display:block;border:0;padding:0;min-width:0!important;max-width:none;text-align:left;white-space:normal}}\
         {t} :is(tbody,tfoot) tr{{display:grid;grid-template-columns:repeat(auto-fill,minmax(92px,1fr));gap:.15rem .7rem;padding:.4rem 0;border-top:1px solid var(--line)}}\
         {t} :is(tbody,tfoot) .n{{white-space:nowrap}}{t} :is(tbody,tfoot) tr>:not(.n){{grid-column:span 2}}{t} tbody tr>:not(.n,.w,.d){{grid-column:1/-1}}{t} tr.chosen>*{{box-shadow:none}}{t} tr>::before{{display:block;color:var(--soft);font-size:11px;font-weight:400;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}"
    );
    for (i, column) in columns.iter().enumerate() {
        if column.class != "h" && !column.title.is_empty() {
            let _ = write!(
                out,
                "{t} :is(tbody,tfoot) td:nth-child({}):not(:empty)::before{{content:{}}}",
                i + 1,
                css_string(&column.title)
            );
        }
    }
    out + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_cannot_leave_its_string() {
        assert_eq!(css_string("read (32-bit)"), "\"read (32\\2d bit)\"");
        let evil = css_string("\"}</style><b>\\\n");
        assert!(!evil[1..evil.len() - 1].contains(['"', '<', '>', '}', '\n']));
        assert!(evil.ends_with("\\5c \\a \""), "{evil}");
    }

    fn table(rows: usize, text: &str) -> String {
        Table {
            id: "t-x",
            caption: "X".into(),
            columns: vec![head("Name", ""), number("Total", ""), number("Never", "")],
            rows: (0..rows)
                .map(|_| {
                    let cells = vec![
                        Cell::text(text),
                        Cell::Time(Some(1_000)),
                        Cell::Count(Some(0)),
                    ];
                    (String::new(), cells)
                })
                .collect(),
            page: 10,
            sorted: Some(1),
        }
        .html()
    }

    #[test]
    fn rows_that_are_left_out_are_counted() {
        let whole = table(ROWS_MAX, "a");
        assert_eq!(whole.matches("<tr>").count(), ROWS_MAX + 1);
        assert!(!whole.contains("not in this page"));
        let more = table(ROWS_MAX + 7, "a");
        assert_eq!(more.matches("<tr>").count(), ROWS_MAX + 1);
        assert!(more.contains("7 more rows are not in this page (total: 7.00 µs together)"));
        // Long texts count by their bytes, but some rows are always there.
        let long = table(ROWS_MAX, &"<".repeat(4_000));
        assert_eq!(long.matches("<tr>").count(), ROWS_MIN + 1);
        assert!(long.contains("440 more rows are not in this page"));
    }

    #[test]
    fn a_column_of_nothing_takes_no_room() {
        assert!(!table(3, "a").contains("Never"));
        // Less than nothing is something.
        let less = Table {
            id: "t-y",
            caption: "Y".into(),
            columns: vec![head("Name", ""), number("Change", "")],
            rows: vec![(
                String::new(),
                vec![Cell::text("a"), Cell::Value(-0.5, "-50 %".into())],
            )],
            page: 10,
            sorted: None,
        };
        assert!(less.html().contains("-50 %"));
    }
}
