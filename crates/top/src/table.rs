// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a table fit into so many columns of a terminal?

use std::cmp::Ordering;
use unicode_width::UnicodeWidthStr;

#[derive(Clone, Debug)]
pub struct Column {
    pub title: &'static str,
    /// Words stand left and may be cut; numbers stand right.
    pub text: bool,
    /// Never narrower.
    pub least: usize,
    /// Where there is no room for all, those with the highest rank go first;
    /// 0 stays.
    pub rank: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    /// What is shown, and what it is sorted by.
    Number(String, f64),
}

impl Cell {
    pub fn text(&self) -> &str {
        match self {
            Cell::Text(text) | Cell::Number(text, _) => text,
        }
    }

    fn order(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Number(_, a), Cell::Number(_, b)) => a.total_cmp(b),
            _ => self.text().cmp(other.text()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    pub cells: Vec<Cell>,
    /// Nothing happened here in the interval.
    pub idle: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// Shown when there are no rows.
    pub nothing: String,
}

impl Table {
    pub fn filter(&mut self, words: &str) {
        let words = words.to_lowercase();
        self.rows.retain(|row| {
            words.split_whitespace().all(|word| {
                row.cells
                    .iter()
                    .any(|cell| cell.text().to_lowercase().contains(word))
            })
        });
    }

    /// By a column; what is equal there stays in order, idle rows come last.
    pub fn sort(&mut self, column: usize, descending: bool) {
        self.rows.sort_by(|a, b| {
            let order = a.cells[column].order(&b.cells[column]);
            let order = if descending { order.reverse() } else { order };
            a.idle.cmp(&b.idle).then(order)
        });
    }

    /// Which columns are shown, and how wide, one blank apart.
    pub fn layout(&self, width: usize) -> Vec<(usize, usize)> {
        let natural = |index: usize| {
            let column = &self.columns[index];
            let cells = self.rows.iter().map(|row| row.cells[index].text().width());
            cells
                .chain([column.title.width() + 1, column.least])
                .max()
                .unwrap_or(0)
        };
        let mut shown: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|i| (i, natural(i))).collect();
        loop {
            let total = |shown: &[(usize, usize)]| {
                shown
                    .iter()
                    .map(|(_, w)| w + 1)
                    .sum::<usize>()
                    .saturating_sub(1)
            };
            let mut fitted = shown.clone();
            // The widest words give way first, evenly.
            while total(&fitted) > width {
                let Some((_, widest)) = fitted
                    .iter_mut()
                    .filter(|(i, w)| self.columns[*i].text && *w > self.columns[*i].least)
                    .max_by_key(|(_, w)| *w)
                else {
                    break;
                };
                *widest -= 1;
            }
            if total(&fitted) <= width {
                return fitted;
            }
            let Some(dropped) = (1..shown.len())
                .filter(|at| self.columns[shown[*at].0].rank > 0)
                .max_by_key(|at| self.columns[shown[*at].0].rank)
            else {
                return fitted;
            };
            shown.remove(dropped);
        }
    }
}

/// Cut or filled to exactly `width` columns; the end that is cut is marked.
pub fn fit(text: &str, width: usize, right: bool, ascii: bool) -> String {
    use unicode_width::UnicodeWidthChar;
    let have = text.width();
    if have <= width {
        let fill = " ".repeat(width - have);
        return if right {
            fill + text
        } else {
            text.to_owned() + &fill
        };
    }
    let mark = if ascii { "~" } else { "…" };
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let w = c.width().unwrap_or(0);
        if used + w + 1 > width {
            break;
        }
        out.push(c);
        used += w;
    }
    if used < width {
        out.push_str(mark);
        used += 1;
    }
    out + &" ".repeat(width - used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(title: &'static str, text: bool, least: usize, rank: u8) -> Column {
        Column {
            title,
            text,
            least,
            rank,
        }
    }

    fn table() -> Table {
        let row = |name: &str, n: f64, idle| Row {
            cells: vec![
                Cell::Text(name.into()),
                Cell::Number(format!("{n}"), n),
                Cell::Text("somewhere in a kernel function".into()),
            ],
            idle,
        };
        Table {
            columns: vec![
                column("NAME", true, 4, 0),
                column("N", false, 6, 0),
                column("PLACE", true, 10, 3),
            ],
            rows: vec![
                row("read", 2.0, false),
                row("write", 10.0, false),
                row("open", 99.0, true),
            ],
            nothing: String::new(),
        }
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let mut t = table();
        t.sort(1, true);
        let names = |t: &Table| -> Vec<String> {
            t.rows.iter().map(|r| r.cells[0].text().into()).collect()
        };
        assert_eq!(names(&t), ["write", "read", "open"]);
        t.sort(0, false);
        assert_eq!(names(&t), ["read", "write", "open"]);
        t.filter("E somewhere");
        assert_eq!(names(&t), ["read", "write", "open"]);
        t.filter("WRI");
        assert_eq!(names(&t), ["write"]);
    }

    #[test]
    fn what_does_not_fit_is_cut_and_then_dropped() {
        let t = table();
        assert_eq!(t.layout(100), [(0, 5), (1, 6), (2, 30)]);
        assert_eq!(t.layout(30), [(0, 5), (1, 6), (2, 17)]);
        assert_eq!(t.layout(16), [(0, 5), (1, 6)]);
        assert_eq!(t.layout(1), [(0, 4), (1, 6)]);
        assert_eq!(fit("abcdef", 4, false, false), "abc…");
        assert_eq!(fit("abcdef", 4, false, true), "abc~");
        assert_eq!(fit("日本語", 4, false, false), "日… ");
        assert_eq!(fit("ab", 4, true, false), "  ab");
        assert_eq!(fit("ab", 0, true, false), "");
    }
}
