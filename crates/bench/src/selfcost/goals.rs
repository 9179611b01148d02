// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did DeBox set itself as the most it may cost, and what does it?

use super::grid::Grid;
use super::result::{Found, Goal, Reached, SelfCost, Unit};
use crate::stat::{median, median_interval};

fn values<'a>(grid: &'a Grid, row: &str, way: &str) -> Result<&'a [f64], String> {
    let none = || "not measured in this run".to_owned();
    let (r, w) = (
        grid.row(row).ok_or_else(none)?,
        grid.way(way).ok_or_else(none)?,
    );
    match grid.cell(r, w) {
        Some(cell) => Ok(&cell.values),
        None => Err(grid.rows[r]
            .missing
            .as_deref()
            .or(grid.ways[w].missing.as_deref())
            .or(grid.why_absent(r, w))
            .map_or_else(none, str::to_owned)),
    }
}

/// One line of the list.
struct Line {
    id: &'static str,
    grid: &'static str,
    row: &'static str,
    way: &'static str,
    to: &'static str,
    again: &'static str,
    unit: Unit,
    most: f64,
    title: &'static str,
}

fn lines() -> impl Iterator<Item = Line> {
    let goals = include_str!("goals.txt").lines();
    goals.filter(|l| !l.starts_with('#')).map(|line| {
        let words: Vec<&str> = line.split('|').map(str::trim).collect();
        let [id, grid, row, way, to, again, unit, most, title] = words[..] else {
            panic!("goals.txt: not nine words: {line}");
        };
        Line {
            id,
            grid,
            row,
            way,
            to,
            again,
            unit: match unit {
                "times" => Unit::Times,
                "percent" => Unit::Percent,
                _ => Unit::Ns,
            },
            most: most.parse().expect("a number"),
            title,
        }
    })
}

fn compared(own: &SelfCost, grid: &Grid, line: &Line) -> Result<Found, String> {
    let in_unit = |v: f64, to: f64| match line.unit {
        Unit::Times => v / to,
        Unit::Percent => (v / to - 1.0) * 100.0,
        Unit::Ns | Unit::Bytes => v - to,
    };
    let rounds = |a: &[f64], b: &[f64]| -> Vec<f64> {
        a.iter().zip(b).map(|(a, b)| in_unit(*a, *b)).collect()
    };
    let least = |v: &[f64]| v.iter().copied().fold(f64::MAX, f64::min);
    let mut way = values(grid, line.row, line.way)?.to_vec();
    let mut to = values(grid, line.row, line.to)?.to_vec();
    let (again, bare) = match line.again {
        "-" => ("again", "bare"),
        again => (again, line.to),
    };
    let again = values(grid, line.row, again)?;
    let null = rounds(again, values(grid, line.row, bare)?);
    if line.id == "sleep-boundary" {
        let calls = two_calls(own)
            .ok_or("what boundary capture adds to a call must be known: --only boundary,sleeps")?;
        way.iter_mut().for_each(|v| *v -= calls);
    }
    if line.grid == "nginx" {
        // Both are fresh servers each time, and differ.
        to.iter_mut()
            .zip(again)
            .for_each(|(to, again)| *to = (*to + again) / 2.0);
    }
    let found = rounds(&way, &to);
    let (low, high) = median_interval(&found);
    let nothing = if line.unit == Unit::Times { 1.0 } else { 0.0 };
    let (null_low, null_high) = median_interval(&null);
    let null = (nothing - null_low).abs().max((null_high - nothing).abs());
    Ok(Found {
        value: median(&found),
        low,
        high,
        of_minima: in_unit(least(&way), least(&to)),
        of_medians: in_unit(median(&way), median(&to)),
        null,
        reached: Reached::of(low - null, high, line.most),
    })
}

impl Reached {
    fn of(low: f64, high: f64, most: f64) -> Self {
        if high <= most {
            Self::Yes
        } else if low > most {
            Self::No
        } else {
            Self::Untold
        }
    }
}

/// Of every part that was asked for.
pub fn of(own: &SelfCost) -> Vec<Goal> {
    let measured = lines().filter_map(|line| {
        let grid = own.grids().find(|g| g.id == line.grid)?;
        let (found, missing) = match compared(own, grid, &line) {
            Ok(found) => (Some(found), None),
            Err(why) => (None, Some(why)),
        };
        Some(Goal {
            id: line.id.into(),
            title: line.title.into(),
            unit: line.unit,
            most: line.most,
            found,
            missing,
        })
    });
    let exact = own.memory.iter().flat_map(|m| {
        let broker = format!("resident memory of a broker with {} threads", m.threads);
        let slot = "memory shared with a watched thread".to_owned();
        let spliced = "private memory of a program that is spliced".to_owned();
        [
            ("memory-slot", slot, Some(m.slot()), 8192.0),
            ("memory-broker", broker, Some(m.broker), f64::from(40 << 20)),
            ("memory-spliced", spliced, m.spliced, 300_000.0),
        ]
        .map(|(id, title, value, most)| Goal {
            id: id.into(),
            title,
            unit: Unit::Bytes,
            most,
            found: value.map(|value| Found {
                value,
                low: value,
                high: value,
                of_minima: value,
                of_medians: value,
                null: 0.0,
                reached: Reached::of(value, value, most),
            }),
            missing: (value.is_none()).then(|| {
                let why = m.spliced_missing.clone();
                why.unwrap_or_else(|| "not measured in this run".to_owned())
            }),
        })
    });
    measured.chain(exact).collect()
}

/// What boundary capture adds to the two calls of a round trip that are the
/// watched thread's own, without a sleep.
pub fn two_calls(own: &SelfCost) -> Option<f64> {
    let grid = own.boundary.as_ref()?;
    let watched = values(grid, "getpid", "watched-boundary").ok()?;
    let other = values(grid, "getpid", "other-boundary").ok()?;
    let added: Vec<f64> = watched.iter().zip(other).map(|(w, o)| w - o).collect();
    Some(2.0 * median(&added))
}

#[cfg(test)]
mod tests {
    use super::super::grid::{RowHead, WayHead, WayKind};
    use super::*;

    fn grid(id: &str, row: &str, ways: &[(&str, f64)]) -> Grid {
        let heads = ways.iter().map(|(id, _)| WayHead {
            id: (*id).into(),
            title: (*id).into(),
            kind: WayKind::Debox,
            missing: None,
        });
        let mut g = Grid::new(id, id, vec![RowHead::from(&(row, row))], heads);
        for round in 0..8 {
            for (w, (_, ns)) in ways.iter().enumerate() {
                // What disturbs a round disturbs all of it.
                g.add(w, &[(row.into(), ns + f64::from(round))]);
            }
        }
        g.judge();
        g
    }

    fn boundary(watched: f64) -> Grid {
        let ways = [
            ("bare", 100.0),
            ("again", 100.0),
            ("floor", 240.0),
            ("floor-again", 242.0),
            ("watched-boundary", watched),
            ("other-boundary", 250.0),
            ("other-wrap", 100.0),
        ];
        grid("boundary", "getpid", &ways)
    }

    fn goal(own: &SelfCost, id: &str) -> Goal {
        let goals = of(own);
        let found = goals.iter().find(|g| g.id == id);
        found.unwrap_or_else(|| panic!("no {id}")).clone()
    }

    #[test]
    fn what_is_above_the_floor_is_held_against_the_goal() {
        for (watched, reached) in [
            (320.0, Reached::Yes),
            (349.9, Reached::Yes),
            // Two floors are 2 ns apart.
            (351.0, Reached::Untold),
            (353.0, Reached::No),
        ] {
            let own = SelfCost {
                boundary: Some(boundary(watched)),
                ..SelfCost::default()
            };
            let found = goal(&own, "getpid-boundary").found.unwrap();
            assert!((found.value - (watched - 240.0)).abs() < 1e-9, "{found:?}");
            assert!((found.of_minima - found.value).abs() < 1e-9 && found.null == 2.0);
            assert_eq!(found.reached, reached, "{watched}");
        }
    }

    #[test]
    fn a_sleep_under_boundary_capture_is_without_its_two_calls() {
        let ways = [
            ("bare", 4000.0),
            ("again", 4000.0),
            ("other-boundary", 5000.0),
            ("watched-boundary", 5600.0),
        ];
        let mut own = SelfCost {
            boundary: Some(boundary(320.0)),
            sleeps: Some(grid("sleeps", "trip", &ways)),
            ..SelfCost::default()
        };
        // 600 more than with another watched, of which two calls are 70 each.
        assert_eq!(two_calls(&own), Some(140.0));
        assert_eq!(goal(&own, "sleep-boundary").found.unwrap().value, 460.0);
        own.boundary = None;
        let why = goal(&own, "sleep-boundary").missing.unwrap();
        assert!(why.contains("--only boundary,sleeps"), "{why}");
    }

    #[test]
    fn a_server_is_compared_with_both_bare_runs_and_a_reason_is_kept() {
        let ways = [
            ("bare", 100.0),
            ("again", 120.0),
            ("run-wrap", 121.0),
            ("run", 1.0),
        ];
        let mut nginx = grid("nginx", "cpu", &ways);
        nginx.drop_way(3, "refused".into());
        let own = SelfCost {
            nginx: Some(nginx),
            ..SelfCost::default()
        };
        let found = goal(&own, "nginx-wrap").found.unwrap();
        assert!((found.of_minima - 10.0).abs() < 1e-9, "{found:?}");
        assert_eq!(
            goal(&own, "nginx-boundary").missing.as_deref(),
            Some("refused")
        );
    }
}
