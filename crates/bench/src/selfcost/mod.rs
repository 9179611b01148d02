// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does DeBox cost here, and what do others cost for the same job?
//!
//! Every way to watch (nothing, DeBox's captures, other tools) runs the same
//! program, a fresh process each time, pinned to the same CPU; the ways take
//! turns, and each round begins with another one. "Nothing" is there twice:
//! what it differs by from itself is what cannot be distinguished.

pub mod calls;
pub mod grid;
mod loads;
pub mod result;
mod server;
pub mod show;
mod ways;

use self::grid::{Grid, RowHead, WayHead, WayKind};
use self::result::{SelfCost, ServerRow};
use crate::args::{Part, SelfArgs};
use crate::clock::{Clock, Kind as ClockKind, choice};
use crate::machine::{Machine, cpus_choose};
use crate::model::{Document, Kind, SCHEMA, SCHEMA_VERSION};
use crate::noise::Watch;
use crate::output::progress;
use crate::{Error, output, tidy};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use ways::{Bench, Way};

/// How many rounds of a grid, and for how long.
#[derive(Clone, Copy)]
struct Plan {
    /// So many in any case: what takes too long for that is left out.
    least: usize,
    most: usize,
    limit: Duration,
    /// The first round shows what runs here at all and how long it takes, and
    /// warms caches; it does not count.
    spare_first: bool,
    quiet: bool,
}

struct Limits {
    calls: Plan,
    loads: Plan,
    repetitions: usize,
    batch_us: u64,
    connections: u64,
}

/// The fewest values whose median has a distribution-free 95 % interval.
const LEAST: usize = 6;

fn limits(args: &SelfArgs) -> Limits {
    let (quick, quiet) = (args.output.quick, args.output.quiet);
    let plan = |least, most, seconds| {
        let plan = Plan {
            least,
            most,
            limit: Duration::from_secs(seconds),
            spare_first: !quick,
            quiet,
        };
        match args.output.rounds {
            Some(rounds) => Plan {
                least: rounds as usize,
                most: rounds as usize,
                limit: Duration::MAX,
                ..plan
            },
            None => plan,
        }
    };
    if quick {
        Limits {
            calls: plan(3, 5, 13),
            loads: plan(3, 5, 60),
            repetitions: 3,
            batch_us: 500,
            connections: 400,
        }
    } else {
        Limits {
            calls: plan(LEAST, 12, 180),
            loads: plan(LEAST, 12, 450),
            repetitions: 5,
            batch_us: 2000,
            connections: 4000,
        }
    }
}

/// A tool that takes longer for a program that ends in a second by itself is
/// not worth waiting for.
const PATIENCE: Duration = Duration::from_secs(15);

/// `debox bench self`.
pub fn run(args: SelfArgs) -> Result<i32, Error> {
    if let Some(path) = &args.output.load {
        let document = output::load(path)?;
        return deliver(&args, document);
    }
    output::check(&args.output, Kind::SelfCost)?;
    markdown_check(&args)?;
    loads::check(&args.programs)?;
    tidy::watch_signals()?;
    let begin = Instant::now();
    let started = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let (quick, quiet) = (args.output.quick, args.output.quiet);
    let limits = limits(&args);
    let (cpu, other_cpu, cpus) = cpus_choose(None)?;
    let mut notes = Vec::new();
    match other_cpu {
        Some(other) => crate::sampling::pin(other)?,
        None => notes.push(
            "this process may use one CPU only: what drives the measurement shares it with the measured".into(),
        ),
    }
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        notes.push(
            "run without root: what needs more is left out, each with its own reason above (sudo debox bench self \
             measures all)"
                .into(),
        );
    }
    let wants = |part: Part| args.only.is_empty() || args.only.contains(&part);
    let directory = match &args.dir {
        Some(dir) => tempfile::Builder::new()
            .prefix("debox-bench-")
            .tempdir_in(dir),
        None => tempfile::Builder::new().prefix("debox-bench-").tempdir(),
    }
    .map_err(|source| Error::System {
        what: "making a temporary directory".into(),
        source,
    })?;
    let mut bench = Bench::new(directory.path(), cpu, other_cpu.unwrap_or(cpu))?;
    let clock = Clock::new(&choice(ClockKind::Monotonic, 1.0));
    let mut watch = Watch::begin(&cpus, cpu, clock);

    let mut found = SelfCost::default();
    if wants(Part::Calls) || args.only == [Part::Peers] {
        let mut ways = ways::of_debox();
        if wants(Part::Peers) {
            ways.extend(ways::of_others(quick, &mut notes));
        }
        let rows: Vec<RowHead> = calls::CALLS
            .iter()
            .map(|(id, title)| RowHead {
                id: (*id).into(),
                title: (*title).into(),
                missing: None,
            })
            .collect();
        let units = [(0..rows.len()).collect()];
        let task = calls::Task::Calls {
            repetitions: limits.repetitions,
            batch_us: limits.batch_us,
        };
        let grid = rounds(
            Grid::new("calls", "One call", rows, ways.iter().map(WayHead::from)),
            &ways,
            &units,
            &limits.calls,
            &mut watch,
            &mut |_, way| {
                let answer = bench.run(way, &task)?;
                // What disturbs a repetition only adds: the shortest counts.
                Ok(answer
                    .into_iter()
                    .map(|(row, v)| (row, v.into_iter().fold(f64::MAX, f64::min)))
                    .collect())
            },
        )?;
        found.calls = Some(grid);
        if wants(Part::Calls) {
            progress(quiet, "a busy server");
            match bench.server(limits.connections) {
                Ok(answer) => found.server = server_rows(&answer),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(e) => notes.push(format!("the busy server was not measured: {e}")),
            }
        }
    }
    if wants(Part::Macro) && (!quick || !args.programs.is_empty()) {
        let mut ways = ways::of_debox();
        if wants(Part::Peers) {
            // Said once is enough.
            ways.extend(ways::of_others(quick, &mut Vec::new()));
        }
        let ways = ways::for_programs(ways);
        progress(quiet, "making files for whole programs");
        let mut loads = loads::prepare(&bench, &args.programs, &mut notes)?;
        let rows: Vec<RowHead> = loads
            .iter()
            .map(|l| RowHead {
                id: l.id.into(),
                title: l.title.into(),
                missing: None,
            })
            .collect();
        let units: Vec<Vec<usize>> = (0..rows.len()).map(|row| vec![row]).collect();
        let grid = rounds(
            Grid::new(
                "programs",
                "Whole programs",
                rows,
                ways.iter().map(WayHead::from),
            ),
            &ways,
            &units,
            &limits.loads,
            &mut watch,
            &mut |unit, way| {
                bench.limit = match way.kind {
                    WayKind::Other => PATIENCE,
                    _ => ways::LIMIT,
                };
                let load = &mut loads[unit];
                Ok(vec![(load.id.to_owned(), (load.run)(&mut bench, way)?)])
            },
        )?;
        found.loads = Some(grid);
    } else if quick && wants(Part::Macro) {
        notes.push("--quick leaves out whole programs, and tools that take long to start".into());
    }
    bench.finish();
    progress(quiet, "");
    let noise = watch.end(None);
    found.versions = ways::versions();
    let document = Document {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION").into(),
        kind: Kind::SelfCost,
        label: args.output.label.clone(),
        quick,
        started,
        seconds: begin.elapsed().as_secs_f64(),
        machine: Machine::look(&cpus, None),
        noise,
        clocks: None,
        results: Vec::new(),
        derived: Vec::new(),
        cold: None,
        self_cost: Some(found),
        notes,
        comparison: None,
    };
    deliver(&args, document)
}

/// The tables first: a file that cannot be written must not cost them.
fn deliver(args: &SelfArgs, document: Document) -> Result<i32, Error> {
    let table = document
        .self_cost
        .as_ref()
        .map(|own| show::markdown(&document, own));
    let delivered = output::deliver(document, &args.output, None);
    if let Some(table) = table {
        markdown_write(args, &table)?;
    }
    delivered
}

/// One run under a way: by its number, and itself.
type Measure<'a> = dyn FnMut(usize, &Way) -> Result<Vec<(String, f64)>, Error> + 'a;

/// Lets the ways take turns until the rounds are done or the time is over. What
/// fails costs its own cell; the others go on. `units`: rows that one run gives.
fn rounds(
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
                if !rows.iter().any(|row| grid.wanted(*row, way)) {
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
        if counted < plan.least {
            let left = plan.limit.saturating_sub(begin.elapsed());
            leave_out(
                &mut grid,
                ways,
                units,
                &costs,
                plan,
                plan.least - counted,
                left,
            );
        } else if begin.elapsed() + cost(&grid, units, &costs) > plan.limit {
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

fn server_rows(answer: &calls::Answer) -> Vec<ServerRow> {
    ["accept", "sendfile"]
        .iter()
        .flat_map(|call| {
            [("user", "the program's own stamps"), ("debox", "DeBox")].map(|b| (call, b))
        })
        .filter_map(|(call, (who, by))| {
            let values = crate::stat::sorted(answer.get(&format!("{call}-{who}"))?.iter().copied());
            Some(ServerRow {
                call: (*call).to_owned(),
                by: by.into(),
                count: values.len() as u64,
                min: *values.first()?,
                median: crate::stat::quantile(&values, 0.5),
                mean: crate::stat::mean(&values),
                p99: crate::stat::quantile(&values, 0.99),
                max: *values.last()?,
            })
        })
        .collect()
}

pub const MARK_BEGIN: &str = "<!-- debox bench self: begin -->";
pub const MARK_END: &str = "<!-- debox bench self: end -->";

/// `text` with what stands between the markers replaced.
///
/// # Errors
/// [`Error::File`] when the markers are not there.
pub fn between_markers(text: &str, new: &str, path: &Path) -> Result<String, Error> {
    let wrong = || Error::File {
        path: path.to_owned(),
        what: format!("has no lines {MARK_BEGIN} and {MARK_END} to write between: add them"),
    };
    let from = text.find(MARK_BEGIN).ok_or_else(wrong)? + MARK_BEGIN.len();
    let to = text
        .find(MARK_END)
        .filter(|to| *to >= from)
        .ok_or_else(wrong)?;
    Ok(format!(
        "{}\n\n{}\n{}",
        &text[..from],
        new.trim_end(),
        &text[to..]
    ))
}

/// Before minutes are spent on measuring: has the file its markers?
fn markdown_check(args: &SelfArgs) -> Result<(), Error> {
    match &args.markdown {
        Some(path) if path != Path::new("-") => {
            let old = std::fs::read_to_string(path).map_err(markdown_file(path))?;
            between_markers(&old, "", path).map(drop)
        }
        _ => Ok(()),
    }
}

fn markdown_file(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |e| Error::File {
        path: path.to_owned(),
        what: e.to_string(),
    }
}

fn markdown_write(args: &SelfArgs, table: &str) -> Result<(), Error> {
    let Some(path) = &args.markdown else {
        return Ok(());
    };
    if path == Path::new("-") {
        print!("{table}");
        return Ok(());
    }
    let old = std::fs::read_to_string(path).map_err(markdown_file(path))?;
    std::fs::write(path, between_markers(&old, table, path)?).map_err(markdown_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(limit: Duration) -> Plan {
        Plan {
            least: 6,
            most: 6,
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
        let clock = Clock::new(&choice(ClockKind::Monotonic, 1.0));
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
                std::thread::sleep(Duration::from_millis([20, 2, 2][unit]));
            }
            Ok(vec![(names[unit].into(), 1.0)])
        });
        // Six rounds there are in any case.
        assert_eq!(grid.rounds(), 6);
        assert!((0..3).all(|row| grid.cell(row, 2).is_some()));
        assert!(grid.cell(0, 3).is_none() && grid.cell(1, 3).is_some());
        assert!(grid.why_absent(0, 3).unwrap().contains("--rounds 6"));
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let old = format!("before\n{MARK_BEGIN}\nold\n{MARK_END}\nafter\n");
        let new = between_markers(&old, "| new |\n", Path::new("x")).unwrap();
        assert_eq!(
            new,
            format!("before\n{MARK_BEGIN}\n\n| new |\n{MARK_END}\nafter\n")
        );
        // Again: the same.
        assert_eq!(
            between_markers(&new, "| new |\n", Path::new("x")).unwrap(),
            new
        );
        assert!(between_markers("nothing", "x", Path::new("x")).is_err());
        let reversed = format!("{MARK_END}{MARK_BEGIN}");
        assert!(between_markers(&reversed, "x", Path::new("x")).is_err());
    }
}
