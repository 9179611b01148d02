// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a table stand in lines of text?
//!
//! A column that would not fit is left out, least important first, rather than
//! wrapped. Most texts in tables are foreign: none has a line of its own, and
//! none steers the terminal.

use crate::{Pen, Style, printable};

const GAP: usize = 2;
const INDENT: usize = 2;
/// The narrowest a last, left-aligned column may be cut to.
const TAIL_MIN: usize = 16;
/// Columns up to this rank stay when cutting the last column makes room.
const KEEP_RANK: u8 = 4;

pub struct Column {
    title: String,
    left: bool,
    drop_rank: u8,
    optional: bool,
    least: usize,
    /// Of each cell; those that are missing have none.
    styles: Vec<Option<Style>>,
    cells: Vec<String>,
}

fn width_of(text: &str) -> usize {
    text.chars().count()
}

impl Column {
    /// Numbers, to the right. The highest `drop_rank` goes first when the line
    /// is too long; 0 stays.
    pub fn new(title: &str, drop_rank: u8, cells: Vec<String>) -> Self {
        Self {
            title: printable(title),
            left: false,
            drop_rank,
            optional: false,
            least: 0,
            styles: Vec::new(),
            cells: cells.iter().map(|cell| printable(cell)).collect(),
        }
    }

    pub fn left(mut self) -> Self {
        self.left = true;
        self
    }

    /// Left out when no row has a value.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Never narrower: for rows that are shown one by one, or in several tables.
    pub fn least(mut self, width: usize) -> Self {
        self.least = width;
        self
    }

    pub fn style(self, style: Style) -> Self {
        let all = vec![Some(style); self.cells.len()];
        self.styles(all)
    }

    /// Cell by cell.
    pub fn styles(mut self, styles: Vec<Option<Style>>) -> Self {
        self.styles = styles;
        self
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().chain([&self.title]);
        cells.map(|c| width_of(c)).fold(self.least, usize::max)
    }

    fn is_empty(&self) -> bool {
        self.cells.iter().all(|c| c == "-" || c.is_empty())
    }
}

pub struct Table {
    columns: Vec<Column>,
    /// Rows in bold: sums of a group.
    bold: Vec<bool>,
    /// A line above the head: what columns from..to have in common.
    over: Option<(usize, usize, String)>,
}

impl From<Vec<Column>> for Table {
    fn from(columns: Vec<Column>) -> Self {
        Self {
            columns,
            bold: Vec::new(),
            over: None,
        }
    }
}

impl Table {
    /// Words in the first column, numbers in the others.
    pub fn new(head: &[&str]) -> Self {
        let column = |title: &&str| Column::new(title, 0, Vec::new());
        Self::from(head.iter().map(column).collect::<Vec<_>>()).left(0)
    }

    /// Words in this column.
    pub fn left(mut self, column: usize) -> Self {
        self.columns[column].left = true;
        self
    }

    /// Numbers in this column.
    pub fn right(mut self, column: usize) -> Self {
        self.columns[column].left = false;
        self
    }

    /// The columns from this one on are left out where no row says anything.
    pub fn optional_from(mut self, column: usize) -> Self {
        for column in &mut self.columns[column..] {
            column.optional = true;
        }
        self
    }

    pub fn over(mut self, from: usize, to: usize, text: &str) -> Self {
        self.over = Some((from, to, printable(text)));
        self
    }

    pub fn bold(mut self, rows: Vec<bool>) -> Self {
        self.bold = rows;
        self
    }

    /// Cells that are missing at the end are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        let mut cells = cells.into_iter();
        for column in &mut self.columns {
            let cell = cells.next().unwrap_or_default();
            column.cells.push(printable(&cell));
        }
    }

    pub fn rows(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        for row in rows {
            self.row(row);
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.columns.first().is_none_or(|c| c.cells.is_empty())
    }

    /// The table in lines no longer than `width`, if that can be had.
    pub fn text(mut self, pen: &Pen, width: Option<usize>) -> String {
        for column in &mut self.columns {
            column.title = pen.plain(&column.title);
            for cell in &mut column.cells {
                *cell = pen.plain(cell);
            }
        }
        let mut keep: Vec<bool> = self
            .columns
            .iter()
            .map(|c| !(c.optional && c.is_empty()))
            .collect();
        if let Some(width) = width {
            self.fit(&mut keep, width, pen);
        }
        // What the head spans, in the columns that are left.
        let over = self.over.take().map(|(from, to, text)| {
            let left = |range: &[bool]| range.iter().filter(|k| **k).count();
            let first = left(&keep[..from]);
            (first, first + left(&keep[from..to]), text)
        });
        let mut kept = keep.iter();
        self.columns.retain(|_| *kept.next().expect("one for each"));
        self.lines(pen, over)
    }

    fn fit(&mut self, keep: &mut [bool], width: usize, pen: &Pen) {
        let columns = &mut self.columns;
        loop {
            let kept: Vec<usize> = (0..columns.len()).filter(|&i| keep[i]).collect();
            let Some(&last) = kept.last() else { return };
            let cells: usize = kept.iter().map(|&i| columns[i].width()).sum();
            let line = INDENT + cells + GAP * (kept.len() - 1);
            if line <= width {
                return;
            }
            let over = line - width;
            let least = kept
                .iter()
                .copied()
                .filter(|&i| columns[i].drop_rank > 0)
                .max_by_key(|&i| columns[i].drop_rank);
            // A long text in the last column is cut, unless something less
            // important than the text can go instead.
            let tail = &columns[last];
            let own = tail.width();
            let spare = least.is_none_or(|i| columns[i].drop_rank <= tail.drop_rank.max(KEEP_RANK));
            if tail.left && spare && own >= over + TAIL_MIN {
                for cell in &mut columns[last].cells {
                    *cell = pen.cut(cell, own - over);
                }
                return;
            }
            let Some(least) = least else { return };
            keep[least] = false;
        }
    }

    fn lines(&self, pen: &Pen, over: Option<(usize, usize, String)>) -> String {
        let widths: Vec<usize> = self.columns.iter().map(Column::width).collect();
        let line = |cells: Vec<(&str, Option<Style>)>| {
            let mut text = " ".repeat(INDENT);
            for (i, (cell, style)) in cells.iter().enumerate() {
                let pad = " ".repeat(widths[i] - width_of(cell));
                let cell = style.map_or_else(|| (*cell).to_owned(), |s| pen.paint(s, cell));
                if self.columns[i].left {
                    text += &cell;
                    text += &pad;
                } else {
                    text += &pad;
                    text += &cell;
                }
                text += &" ".repeat(GAP);
            }
            text.trim_end().to_owned() + "\n"
        };
        let mut out = String::new();
        if let Some((from, to, text)) = over.filter(|(from, to, _)| from < to) {
            let start = INDENT + widths[..from].iter().map(|w| w + GAP).sum::<usize>();
            let room = widths[from..to].iter().map(|w| w + GAP).sum::<usize>() - GAP;
            let rule = room.saturating_sub(width_of(&text) + 2);
            let dash = if pen.ascii { "-" } else { "─" };
            let (before, after) = (dash.repeat(rule / 2), dash.repeat(rule - rule / 2));
            out += &" ".repeat(start);
            out += &pen.paint(Style::Dim, &format!("{before} {text} {after}"));
            out.push('\n');
        }
        // Rows that say themselves what they are have no head.
        if self.columns.iter().any(|c| !c.title.is_empty()) {
            let titles = self.columns.iter();
            out += &line(
                titles
                    .map(|c| (c.title.as_str(), Some(Style::Dim)))
                    .collect(),
            );
        }
        let rows = self.columns.first().map_or(0, |c| c.cells.len());
        for row in 0..rows {
            let bold = self.bold.get(row).copied().unwrap_or(false);
            let style = |c: &Column| match bold {
                true => Some(Style::Bold),
                false => c.styles.get(row).copied().flatten(),
            };
            let cells = self.columns.iter();
            out += &line(cells.map(|c| (c.cells[row].as_str(), style(c))).collect());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|c| (*c).to_owned()).collect()
    }

    #[test]
    fn columns_line_up() {
        let table = Table::new(&["NAME", "COUNT", "WHAT"]).left(2).rows([
            words(&["a", "1", "x"]),
            words(&["longer", "1,000", ""]),
            words(&["é"]),
        ]);
        assert_eq!(
            table.text(&Pen::default(), None),
            "  NAME    COUNT  WHAT\n  a           1  x\n  longer  1,000\n  é\n"
        );
    }

    #[test]
    fn a_column_without_content_is_left_out_with_its_part_of_the_head() {
        let table = Table::new(&["A", "B", "C", "D"])
            .left(3)
            .over(1, 4, "o")
            .optional_from(1)
            .rows([words(&["a", "-", "2", "x"]), words(&["b", "", "3", "-"])]);
        assert_eq!(
            table.text(&Pen::default(), None),
            "      o ─\n  A  C  D\n  a  2  x\n  b  3  -\n"
        );
    }

    #[test]
    fn the_least_important_column_goes_and_a_long_tail_is_cut() {
        let columns = || {
            vec![
                Column::new("call", 0, words(&["read"])).left(),
                Column::new("p50", 7, words(&["1 ms"])),
                Column::new("total", 2, words(&["10 ms"])),
                Column::new(
                    "place",
                    3,
                    words(&["a_very_long_function_name_of_the_kernel"]),
                )
                .left(),
            ]
        };
        let wide = Table::from(columns()).text(&Pen::default(), Some(60));
        assert!(wide.contains("p50"), "{wide}");
        let narrow = Table::from(columns()).text(&Pen::default(), Some(40));
        assert!(!narrow.contains("p50") && narrow.contains('…'), "{narrow}");
        assert!(narrow.lines().all(|l| l.chars().count() <= 40), "{narrow}");
    }

    #[test]
    fn a_row_without_a_head_lines_up_with_others_of_its_widths() {
        let pen = Pen {
            color: true,
            ascii: false,
        };
        let row = |cells: &[&str]| {
            let columns = vec![
                Column::new("", 0, words(&cells[..1])).left().least(6),
                Column::new("", 0, words(&cells[1..])).styles(vec![Some(Style::Bad)]),
            ];
            Table::from(columns).text(&pen, None)
        };
        assert_eq!(row(&["a", "1"]), "  a       \u{1b}[31m1\u{1b}[0m\n");
        assert_eq!(row(&["longer", "2"]), "  longer  \u{1b}[31m2\u{1b}[0m\n");
    }

    #[test]
    fn nothing_foreign_steers_the_terminal() {
        let text = Table::new(&["A"])
            .rows([words(&["\u{1b}[2J\nx\u{202e}"])])
            .text(&Pen::default(), None);
        assert_eq!(text, "  A\n  \\u{1b}[2J\\nx\\u{202e}\n");
    }
}
