// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does DeBox cost here, and what do others cost for the same job?
//!
//! Every way to watch (nothing, DeBox's captures, other tools) runs the same
//! program, a fresh process each time, pinned to the same CPU; the ways take
//! turns, and each round begins with another one. "Nothing" is there twice:
//! what it differs by from itself is what cannot be distinguished.

pub mod calls;
mod grid;
mod loads;
mod server;
mod show;
mod ways;

pub use grid::{Cell, Grid, RowHead, WayHead, WayKind};
pub use show::{markdown, sections, text};

use crate::args::SelfArgs;
use crate::clock::{Clock, Kind as ClockKind, choice};
use crate::drive::{cpus_choose, progress};
use crate::machine::Machine;
use crate::model::{Document, Kind, SCHEMA, SCHEMA_VERSION};
use crate::noise::Watch;
use crate::{Error, output, tidy};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use ways::{Bench, Way};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Single calls: the paper's Tables 1 and 2
    Calls,
    /// Whole programs: the paper's Table 3
    Macro,
    /// Other tools, beside either
    Peers,
}

/// Everything that `bench self` has found out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SelfCost {
    /// Single calls, ns.
    pub calls: Option<Grid>,
    /// Whole programs, ns.
    pub loads: Option<Grid>,
    /// Calls of a busy server, by its own stamps and by DeBox.
    pub server: Vec<ServerRow>,
}

/// ns of one call of a busy server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerRow {
    pub call: String,
    /// Stamped by the program itself, or DeBox's record.
    pub by: String,
    pub count: u64,
    pub min: f64,
    pub median: f64,
    pub mean: f64,
    pub p99: f64,
    pub max: f64,
}

impl SelfCost {
    /// (id, a value of each round): for comparisons.
    pub fn values(&self) -> Vec<(String, Vec<f64>)> {
        self.calls
            .iter()
            .chain(&self.loads)
            .flat_map(|g| {
                g.cells.iter().map(|c| {
                    (
                        format!("{}/{}/{}", g.id, g.rows[c.row].id, g.ways[c.way].id),
                        c.values.clone(),
                    )
                })
            })
            .collect()
    }
}

struct Limits {
    rounds: usize,
    calls: Duration,
    loads: Duration,
    repetitions: usize,
    batch_us: u64,
    connections: u64,
}

fn limits(quick: bool) -> Limits {
    if quick {
        Limits {
            rounds: 5,
            calls: Duration::from_secs(13),
            loads: Duration::ZERO,
            repetitions: 3,
            batch_us: 500,
            connections: 400,
        }
    } else {
        Limits {
            rounds: 12,
            calls: Duration::from_secs(200),
            loads: Duration::from_secs(330),
            repetitions: 5,
            batch_us: 2000,
            connections: 4000,
        }
    }
}

/// `debox bench self`.
pub fn run(args: SelfArgs) -> Result<i32, Error> {
    if let Some(path) = &args.output.load {
        let document = output::load(path)?;
        markdown_write(&args, &document)?;
        return output::deliver(document, &args.output, None);
    }
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Error::Unavailable(
            "bench self attaches BPF programs and runs strace, perf and others under the same conditions: \
             run it as root (bench os needs no privilege)"
                .into(),
        ));
    }
    tidy::watch_signals()?;
    let begin = Instant::now();
    let started = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let (quick, quiet) = (args.output.quick, args.output.quiet);
    let mut limits = limits(quick);
    if let Some(rounds) = args.output.rounds {
        limits.rounds = rounds as usize;
        limits.calls = Duration::MAX;
        limits.loads = Duration::MAX;
    }
    let (cpu, other_cpu, cpus) = cpus_choose(None)?;
    let mut notes = Vec::new();
    match other_cpu {
        Some(other) => crate::sampling::pin(other)?,
        None => notes.push(
            "this process may use one CPU only: what drives the measurement shares it with the measured".into(),
        ),
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
    let mut watch = Watch::begin(&cpus, clock);

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
            })
            .collect();
        let task = calls::Task::Calls {
            repetitions: limits.repetitions,
            batch_us: limits.batch_us,
        };
        let grid = rounds(
            Grid::new("calls", "One call", rows, &ways),
            &ways,
            limits.rounds,
            limits.calls,
            quiet,
            !quick,
            &mut watch,
            &mut |way| {
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
    if wants(Part::Macro) && !quick {
        let mut ways = ways::of_debox();
        ways.retain(|w| w.for_programs);
        if wants(Part::Peers) {
            ways.extend(
                ways::of_others(quick, &mut Vec::new())
                    .into_iter()
                    .filter(|w| w.for_programs),
            );
        }
        let mut loads = loads::prepare(&bench, &mut notes)?;
        let rows = loads
            .iter()
            .map(|l| RowHead {
                id: l.id.into(),
                title: l.title.into(),
            })
            .collect();
        let grid = rounds(
            Grid::new("programs", "Whole programs", rows, &ways),
            &ways,
            limits.rounds,
            limits.loads,
            quiet,
            !quick,
            &mut watch,
            &mut |way| {
                let mut values = Vec::new();
                for load in &mut loads {
                    tidy::go_on()?;
                    values.push((load.id.to_owned(), (load.run)(&mut bench, way)?));
                }
                Ok(values)
            },
        )?;
        found.loads = Some(grid);
    } else if quick && wants(Part::Macro) {
        notes.push("--quick leaves out whole programs, and tools that take long to start".into());
    }
    bench.finish();
    progress(quiet, "");
    let noise = watch.end(0.0);
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
    markdown_write(&args, &document)?;
    output::deliver(document, &args.output, None)
}

/// Lets the ways take turns until the rounds are done or the time is over. A
/// way that fails is out, with the reason; the others go on.
#[expect(clippy::too_many_arguments, reason = "one caller for each grid")]
fn rounds(
    mut grid: Grid,
    ways: &[Way],
    most: usize,
    limit: Duration,
    quiet: bool,
    spare_first: bool,
    watch: &mut Watch,
    measure: &mut dyn FnMut(&Way) -> Result<Vec<(String, f64)>, Error>,
) -> Result<Grid, Error> {
    let begin = Instant::now();
    // The first round shows what runs here at all, and warms caches: it does
    // not count when there is time for others.
    for round in 0..most + usize::from(spare_first) {
        for k in 0..ways.len() {
            let at = (k + round) % ways.len();
            if grid.ways[at].missing.is_some() {
                continue;
            }
            progress(
                quiet,
                &format!(
                    "{}, round {} of {most}: {} ({:.0} s)",
                    grid.title,
                    round + usize::from(!spare_first),
                    ways[at].title,
                    begin.elapsed().as_secs_f64()
                ),
            );
            tidy::go_on()?;
            match measure(&ways[at]) {
                Ok(values) if round > 0 || !spare_first => grid.add(at, &values),
                Ok(_) => {}
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => grid.drop_way(at, error.to_string()),
            }
        }
        watch.look();
        let each = begin.elapsed() / (round as u32 + 1);
        if round > usize::from(spare_first) && begin.elapsed().saturating_add(each) > limit {
            break;
        }
    }
    grid.judge();
    Ok(grid)
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

fn markdown_write(args: &SelfArgs, document: &Document) -> Result<(), Error> {
    let (Some(path), Some(own)) = (&args.markdown, &document.self_cost) else {
        return Ok(());
    };
    let table = markdown(document, own);
    if path == &PathBuf::from("-") {
        print!("{table}");
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::File {
        path: path.clone(),
        what: e.to_string(),
    };
    let old = std::fs::read_to_string(path).map_err(failed)?;
    std::fs::write(path, between_markers(&old, &table, path)?).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

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
