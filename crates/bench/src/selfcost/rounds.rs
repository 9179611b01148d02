// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the ways take turns, for how long, and what happens when one fails?

use super::grid::{Grid, WayKind};
use super::ways::Way;
use crate::noise::Watch;
use crate::output::progress;
use crate::{Error, tidy};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many rounds of a grid, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// So many in any case: what takes too long for that is left out.
    pub least: usize,
    pub most: usize,
    /// Other tools take part in the first rounds only.
    pub others: usize,
    pub limit: Duration,
    /// The first round shows what runs here at all and how long it takes, and
    /// warms caches; it does not count.
    pub spare_first: bool,
    pub quiet: bool,
}

/// One run under a way: by its number, and itself.
pub(super) type Measure<'a> = dyn FnMut(usize, &Way) -> Result<Vec<(String, f64)>, Error> + 'a;

/// Lets the ways take turns until the rounds are done or the time is over. What
/// fails costs its own cell; the others go on. `units`: rows that one run gives.
pub(super) fn rounds(
    mut grid: Grid,
    ways: &[Way],
    units: &[Vec<usize>],
    plan: &Plan,
    watch: &mut Watch,
    measure: &mut Measure<'_>,
) -> Result<Grid, Error> {
    let begin = Instant::now();
    // The two bare runs far from each other: what changes between them is what
    // changes between the first and any other.
    let mut order: Vec<usize> = (0..ways.len()).filter(|w| *w != 1).collect();
    order.insert(ways.len() / 2, 1);
    let mut costs: BTreeMap<(usize, usize), Duration> = BTreeMap::new();
    let spare = usize::from(plan.spare_first);
    for round in 0..plan.most + spare {
        for (unit, rows) in units.iter().enumerate() {
            for k in 0..order.len() {
                let way = order[(k + round) % order.len()];
                let late =
                    ways[way].kind == WayKind::Other && round.saturating_sub(spare) >= plan.others;
                if late || !rows.iter().any(|row| grid.wanted(*row, way)) {
                    continue;
                }
                let what = if units.len() > 1 {
                    format!("{}, {}", grid.rows[rows[0]].title, ways[way].title)
                } else {
                    ways[way].title.to_owned()
                };
                progress(
                    plan.quiet,
                    &format!(
                        "{}, {}: {what} ({:.0} s)",
                        grid.title,
                        if round < spare {
                            "trial".to_owned()
                        } else {
                            format!("round {} of {}", round + 1 - spare, plan.most)
                        },
                        begin.elapsed().as_secs_f64()
                    ),
                );
                tidy::go_on()?;
                let from = Instant::now();
                let mut result = measure(unit, &ways[way]);
                // What has worked may fail by chance: a port that is taken.
                if matches!(&result, Err(e) if !matches!(e, Error::Interrupted))
                    && costs.contains_key(&(unit, way))
                {
                    result = measure(unit, &ways[way]);
                }
                match result {
                    Ok(values) => {
                        costs.insert((unit, way), from.elapsed());
                        if round >= spare {
                            grid.add(way, &values);
                        }
                    }
                    Err(Error::Interrupted) => return Err(Error::Interrupted),
                    Err(error) => {
                        for row in rows {
                            grid.drop_cell(*row, way, error.to_string());
                        }
                    }
                }
            }
        }
        watch.look();
        let counted = round + 1 - spare;
        if plan.limit == Duration::MAX {
            continue;
        }
        if counted < plan.least && counted < plan.others {
            let left = plan.limit.saturating_sub(begin.elapsed());
            leave_out(
                &mut grid,
                ways,
                units,
                &costs,
                plan,
                plan.least.min(plan.others) - counted,
                left,
            );
        } else if counted >= plan.least && begin.elapsed() + cost(&grid, units, &costs) > plan.limit
        {
            break;
        }
    }
    grid.judge();
    Ok(grid)
}

/// How long a round takes.
fn cost(grid: &Grid, units: &[Vec<usize>], costs: &BTreeMap<(usize, usize), Duration>) -> Duration {
    costs
        .iter()
        .filter(|((unit, way), _)| units[*unit].iter().any(|row| grid.wanted(*row, *way)))
        .map(|(_, cost)| *cost)
        .sum()
}

/// So many rows a tool keeps, however long they take: it is to be compared.
const KEPT: usize = 2;

/// Other tools' dearest cells go until `more` rounds fit into what is left of
/// the time.
fn leave_out(
    grid: &mut Grid,
    ways: &[Way],
    units: &[Vec<usize>],
    costs: &BTreeMap<(usize, usize), Duration>,
    plan: &Plan,
    more: usize,
    left: Duration,
) {
    while cost(grid, units, costs) * more as u32 > left {
        let there = |grid: &Grid, unit: usize, way: usize| {
            costs.contains_key(&(unit, way)) && units[unit].iter().any(|row| grid.wanted(*row, way))
        };
        let dearest = costs
            .iter()
            .filter(|((unit, way), _)| {
                ways[*way].kind == WayKind::Other
                    && there(grid, *unit, *way)
                    && (0..units.len()).filter(|u| there(grid, *u, *way)).count() > KEPT
            })
            .max_by_key(|(_, cost)| **cost);
        let Some(((unit, way), _)) = dearest else {
            break;
        };
        for row in &units[*unit] {
            grid.drop_cell(
                *row,
                *way,
                format!(
                    "left out, since {} rounds of everything take longer than {} s (--rounds {} measures it)",
                    plan.least,
                    plan.limit.as_secs(),
                    plan.least
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::{RowHead, WayHead};
    use super::*;
    use crate::clock::{Clock, Kind, choice};

    fn plan(limit: Duration) -> Plan {
        Plan {
            least: 6,
            most: 6,
            others: usize::MAX,
            limit,
            spare_first: true,
            quiet: true,
        }
    }

    fn trial(limit: Duration, measure: &mut Measure<'_>) -> Grid {
        let way = |id, kind| Way {
            id,
            title: id,
            kind,
            ..Way::default()
        };
        let ways = [
            way("bare", WayKind::Nothing),
            way("again", WayKind::Nothing),
            way("run", WayKind::Debox),
            way("slow", WayKind::Other),
        ];
        let rows = ["a", "b", "c"].map(|id| RowHead {
            id: id.into(),
            title: id.into(),
            missing: None,
        });
        let cpus = crate::machine::cpus_allowed();
        let clock = Clock::new(&choice(Kind::Monotonic, 1.0));
        let mut watch = Watch::begin(&cpus, cpus[0], clock);
        let grid = Grid::new("g", "G", rows.into(), ways.iter().map(WayHead::from));
        let units = [vec![0], vec![1], vec![2]];
        rounds(grid, &ways, &units, &plan(limit), &mut watch, measure).unwrap()
    }

    #[test]
    fn one_failing_program_costs_one_cell_and_chance_is_forgiven() {
        let names = ["a", "b", "c"];
        let (mut chance, mut asked) = (0, 0);
        let grid = trial(Duration::MAX, &mut |unit, way| {
            if (unit, way.id) == (1, "run") {
                asked += 1;
                return Err(Error::Unavailable("crashed".into()));
            }
            if (unit, way.id) == (2, "bare") {
                return Err(Error::Unavailable("not here".into()));
            }
            if (unit, way.id) == (0, "slow") {
                chance += 1;
                if chance == 3 {
                    return Err(Error::Unavailable("port taken".into()));
                }
            }
            Ok(vec![(names[unit].into(), 1.0)])
        });
        assert_eq!(asked, 1);
        assert_eq!(grid.why_absent(1, 2), Some("crashed"));
        assert_eq!(grid.rows[2].missing.as_deref(), Some("not here"));
        let rounds = |row, way| grid.cell(row, way).map(|c| c.values.len());
        // The trial does not count.
        assert_eq!(
            (rounds(0, 0), rounds(0, 2), rounds(0, 3)),
            (Some(6), Some(6), Some(6))
        );
        assert_eq!(
            (rounds(1, 0), rounds(1, 2), rounds(1, 3)),
            (Some(6), None, Some(6))
        );
        assert!(grid.ways.iter().all(|w| w.missing.is_none()));
    }

    #[test]
    fn without_time_tools_lose_their_dearest_programs_and_debox_none() {
        let names = ["a", "b", "c"];
        let grid = trial(Duration::from_millis(1), &mut |unit, way| {
            if way.id == "slow" {
                // Longer than anybody keeps the others from a CPU.
                std::thread::sleep(Duration::from_millis([200, 0, 0][unit]));
            }
            Ok(vec![(names[unit].into(), 1.0)])
        });
        // Six rounds there are in any case.
        assert_eq!(grid.rounds(), 6);
        assert!((0..3).all(|row| grid.cell(row, 2).is_some()));
        assert!(grid.cell(0, 3).is_none() && grid.cell(1, 3).is_some());
        assert!(grid.why_absent(0, 3).unwrap().contains("--rounds 6"));
    }
}
