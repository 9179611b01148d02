// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which difference between two ways is real?

use crate::stat::{median, median_interval, quantile, sorted};
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RowHead {
    pub id: String,
    pub title: String,
    /// Why there is nothing of it, when it failed with nobody watching.
    #[serde(default)]
    pub missing: Option<String>,
}

impl From<&(&str, &str)> for RowHead {
    fn from((id, title): &(&str, &str)) -> Self {
        Self {
            id: (*id).into(),
            title: (*title).into(),
            missing: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WayKind {
    Nothing,
    Debox,
    Other,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WayHead {
    pub id: String,
    pub title: String,
    pub kind: WayKind,
    /// Why it was not measured: its own message.
    pub missing: Option<String>,
}

/// Ways against rows; ns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grid {
    pub id: String,
    pub title: String,
    pub rows: Vec<RowHead>,
    pub ways: Vec<WayHead>,
    pub cells: Vec<Cell>,
    /// Cells that have no values, though the row and the way do elsewhere.
    #[serde(default)]
    pub absent: Vec<Absent>,
}

/// Why a way has no value in a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Absent {
    pub row: usize,
    pub way: usize,
    pub why: String,
}

/// JSON has no NaN and says null.
pub(super) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cell {
    pub row: usize,
    pub way: usize,
    /// One for each round.
    pub values: Vec<f64>,
    pub min: f64,
    pub median: f64,
    /// Quartiles.
    pub low: f64,
    pub high: f64,
    /// Added to the bare run: median of the differences within rounds, and an
    /// interval that holds the true median with 95 % (or all of them, if they
    /// are too few for that).
    #[serde(deserialize_with = "number")]
    pub added: f64,
    #[serde(deserialize_with = "number")]
    pub added_low: f64,
    #[serde(deserialize_with = "number")]
    pub added_high: f64,
    /// The same, as a ratio.
    #[serde(deserialize_with = "number")]
    pub ratio: f64,
    #[serde(default, deserialize_with = "number")]
    pub ratio_low: f64,
    #[serde(default, deserialize_with = "number")]
    pub ratio_high: f64,
    /// Is it more than two bare runs differ by? `None` for the bare run.
    pub distinguishable: Option<bool>,
}

impl Grid {
    pub fn new(
        id: &str,
        title: &str,
        rows: Vec<RowHead>,
        ways: impl IntoIterator<Item = WayHead>,
    ) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            rows,
            ways: ways.into_iter().collect(),
            cells: Vec::new(),
            absent: Vec::new(),
        }
    }

    pub fn add(&mut self, way: usize, values: &[(String, f64)]) {
        for (id, value) in values {
            let Some(row) = self.rows.iter().position(|r| r.id == *id) else {
                continue;
            };
            match self.cells.iter_mut().find(|c| c.row == row && c.way == way) {
                Some(cell) => cell.values.push(*value),
                None => {
                    self.cells.push(Cell {
                        row,
                        way,
                        values: vec![*value],
                        ..Cell::default()
                    });
                }
            }
        }
    }

    /// A way that failed: out, with the reason and without half its values.
    pub fn drop_way(&mut self, way: usize, why: String) {
        self.ways[way].missing = Some(why);
        self.cells.retain(|c| c.way != way);
        self.absent.retain(|a| a.way != way);
    }

    /// What failed in one way only costs one cell; what fails with nobody
    /// watching, its row; and a way in which everything failed is out.
    pub fn drop_cell(&mut self, row: usize, way: usize, why: String) {
        if way == 0 {
            self.rows[row].missing = Some(why);
            self.cells.retain(|c| c.row != row);
            self.absent.retain(|a| a.row != row);
            return;
        }
        self.cells.retain(|c| (c.row, c.way) != (row, way));
        self.absent.retain(|a| (a.row, a.way) != (row, way));
        self.absent.push(Absent { row, way, why });
        let first = (0..self.rows.len())
            .filter(|r| self.rows[*r].missing.is_none())
            .map(|r| self.why_absent(r, way))
            .reduce(|a, b| b.and(a));
        if let Some(Some(why)) = first.map(|why| why.map(str::to_owned)) {
            self.drop_way(way, why);
        }
    }

    pub fn why_absent(&self, row: usize, way: usize) -> Option<&str> {
        self.absent
            .iter()
            .find(|a| (a.row, a.way) == (row, way))
            .map(|a| a.why.as_str())
    }

    /// Whether it is worth trying.
    pub fn wanted(&self, row: usize, way: usize) -> bool {
        self.rows[row].missing.is_none()
            && self.ways[way].missing.is_none()
            && self.why_absent(row, way).is_none()
    }

    /// How many rounds there were.
    pub fn rounds(&self) -> usize {
        let base = self.cells.iter().filter(|c| c.way == 0);
        base.map(|c| c.values.len()).max().unwrap_or(0)
    }

    pub fn cell(&self, row: usize, way: usize) -> Option<&Cell> {
        self.cells.iter().find(|c| c.row == row && c.way == way)
    }

    pub fn way(&self, id: &str) -> Option<usize> {
        self.ways.iter().position(|w| w.id == id)
    }

    pub fn row(&self, id: &str) -> Option<usize> {
        self.rows.iter().position(|r| r.id == id)
    }

    /// Works out every cell from its values.
    pub fn judge(&mut self) {
        let base: Vec<Option<Vec<f64>>> = (0..self.rows.len())
            .map(|r| self.cell(r, 0).map(|c| c.values.clone()))
            .collect();
        let differences = |cell: &Cell| -> Vec<f64> {
            base[cell.row]
                .iter()
                .flat_map(|b| cell.values.iter().zip(b).map(|(v, b)| v - b))
                .collect()
        };
        let null: Vec<(f64, f64)> = (0..self.rows.len())
            .map(|r| {
                self.cell(r, 1)
                    .map_or((f64::NAN, f64::NAN), |c| median_interval(&differences(c)))
            })
            .collect();
        let mut cells = std::mem::take(&mut self.cells);
        for cell in &mut cells {
            let v = sorted(cell.values.iter().copied());
            cell.min = v[0];
            cell.median = quantile(&v, 0.5);
            cell.low = quantile(&v, 0.25);
            cell.high = quantile(&v, 0.75);
            let d = differences(cell);
            if d.is_empty() {
                (cell.added, cell.ratio) = (f64::NAN, f64::NAN);
                continue;
            }
            cell.added = median(&d);
            (cell.added_low, cell.added_high) = median_interval(&d);
            let ratios: Vec<f64> = base[cell.row]
                .iter()
                .flat_map(|b| cell.values.iter().zip(b).map(|(v, b)| v / b))
                .collect();
            cell.ratio = median(&ratios);
            (cell.ratio_low, cell.ratio_high) = median_interval(&ratios);
            if cell.way > 0 {
                // Comparisons with NaN are false: without a null run nothing
                // is called distinguishable.
                let (low, high) = null[cell.row];
                let apart = cell.added_low > high.max(0.0) || cell.added_high < low.min(0.0);
                cell.distinguishable = Some(apart && cell.way != 1);
            }
        }
        self.cells = cells;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(id: &str) -> WayHead {
        WayHead {
            id: id.into(),
            title: id.into(),
            kind: WayKind::Nothing,
            missing: None,
        }
    }

    fn grid(base: &[f64], again: &[f64], other: &[f64]) -> Grid {
        let rows = vec![RowHead {
            id: "r".into(),
            title: "r".into(),
            missing: None,
        }];
        let mut g = Grid::new("g", "G", rows, ["bare", "again", "other"].map(way));
        for (w, values) in [base, again, other].iter().enumerate() {
            for v in *values {
                g.add(w, &[("r".into(), *v)]);
            }
        }
        g.judge();
        g
    }

    #[test]
    fn what_the_null_run_does_as_well_is_not_distinguishable() {
        let base = [100.0, 104.0, 99.0, 101.0, 103.0, 100.0, 102.0, 98.0];
        let again = [102.0, 100.0, 101.0, 99.0, 101.0, 103.0, 100.0, 101.0];
        let near = [101.0, 103.0, 102.0, 101.0, 102.0, 102.0, 103.0, 100.0];
        let far: Vec<f64> = base.iter().map(|b| b + 30.0).collect();
        assert_eq!(
            grid(&base, &again, &near).cells[2].distinguishable,
            Some(false)
        );
        let g = grid(&base, &again, &far);
        assert_eq!(g.cells[2].distinguishable, Some(true));
        assert_eq!(g.cells[2].added, 30.0);
        // The null run itself never is.
        assert_eq!(g.cells[1].distinguishable, Some(false));
        assert_eq!(g.cells[0].distinguishable, None);
    }

    #[test]
    fn a_way_that_fails_leaves_no_half_results() {
        let mut g = grid(&[1.0, 1.0], &[1.0, 1.0], &[2.0, 2.0]);
        g.drop_way(2, "refused".into());
        assert!(g.cell(0, 2).is_none());
        assert_eq!(g.ways[2].missing.as_deref(), Some("refused"));
    }

    #[test]
    fn what_fails_takes_no_more_with_it_than_it_must() {
        let rows = ["a", "b", "c"].map(|id| RowHead {
            id: id.into(),
            title: id.into(),
            missing: None,
        });
        let mut g = Grid::new("g", "G", rows.into(), ["bare", "again", "other"].map(way));
        for row in ["a", "b", "c"] {
            for (w, value) in [(0, 10.0), (1, 10.0), (2, 30.0)] {
                for _ in 0..6 {
                    g.add(w, &[(row.into(), value)]);
                }
            }
        }
        // One cell.
        g.drop_cell(1, 2, "crashed".into());
        assert!(g.cell(1, 2).is_none() && !g.wanted(1, 2));
        assert_eq!(g.why_absent(1, 2), Some("crashed"));
        assert!(g.ways[2].missing.is_none() && g.wanted(0, 2) && g.wanted(1, 1));
        g.judge();
        assert_eq!(g.cell(0, 2).unwrap().added, 20.0);
        let c = g.cell(0, 2).unwrap();
        assert_eq!((c.ratio_low, c.ratio_high), (3.0, 3.0));
        // The base: its row, and no other.
        g.drop_cell(0, 0, "not here".into());
        assert_eq!(g.rows[0].missing.as_deref(), Some("not here"));
        assert!((0..3).all(|w| g.cell(0, w).is_none() && !g.wanted(0, w)));
        assert!(g.cell(2, 0).is_some());
        // The last row that the way had: the way, with the first reason.
        g.drop_cell(2, 2, "later".into());
        assert_eq!(g.ways[2].missing.as_deref(), Some("crashed"));
        assert!(g.absent.is_empty());
    }

    #[test]
    fn a_single_round_can_be_written_and_read_again() {
        let g = grid(&[1.0], &[1.0], &[2.0]);
        assert!(g.cells[2].added_low.is_nan());
        let text = serde_json::to_string(&g).unwrap();
        let again: Grid = serde_json::from_str(&text).unwrap();
        assert!(again.cells[2].added_low.is_nan());
        assert_eq!(again.cells[2].added, 1.0);
    }
}
