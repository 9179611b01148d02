// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does DeBox cost here, and what do others cost for the same job?
//!
//! Every way to watch (nothing, DeBox's captures, other tools) runs the same
//! program, pinned to the same CPU, a fresh process each time or, where
//! nanoseconds are told apart, the same process all the time (floor.rs); the
//! ways take turns, and each round begins with another one. "Nothing" is there
//! twice: what it differs by from itself is what cannot be distinguished.

pub mod calls;
mod floor;
pub mod goals;
pub mod grid;
mod hooks;
mod loads;
pub mod memory;
mod nginx;
mod obey;
pub mod result;
mod rounds;
mod server;
pub mod show;
mod ways;
pub mod worker;
mod wrap;

use self::grid::{Grid, RowHead, WayHead};
use self::result::{SelfCost, ServerRow};
use self::rounds::{Plan, rounds};
use self::ways::{Bench, Way};
use crate::args::{Part, SelfArgs};
use crate::clock::{Clock, Kind as ClockKind, choice};
use crate::machine::{Machine, cpus_choose};
use crate::model::{Document, Kind, SCHEMA, SCHEMA_VERSION};
use crate::noise::Watch;
use crate::output::progress;
use crate::{Error, output, tidy};
use debox_command::stop;
use std::time::{Duration, Instant, SystemTime};

/// The fewest values whose median has a distribution-free 95 % interval.
const LEAST: usize = 6;

/// So many rounds, or as many as fit into the seconds.
fn plan(args: &SelfArgs, usual: (usize, u64), quick: (usize, u64)) -> Plan {
    let (most, seconds) = if args.output.quick { quick } else { usual };
    let plan = Plan {
        least: if args.output.quick { 3 } else { LEAST },
        most,
        others: usize::MAX,
        limit: Duration::from_secs(seconds),
        spare_first: !args.output.quick,
        quiet: args.output.quiet,
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
}

/// `debox bench self`.
pub fn run(args: SelfArgs) -> Result<i32, Error> {
    if let Some(path) = &args.output.load {
        let document = output::load(path)?;
        return deliver(&args, document);
    }
    output::check(&args.output, Kind::SelfCost)?;
    loads::check(&args.programs)?;
    stop::note_signals();
    let begin = Instant::now();
    let started = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
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
    let clock = Clock::new(&choice(ClockKind::Monotonic, 1.0));
    let mut parts = Parts {
        args: &args,
        bench: Bench::new(directory.path(), cpu, other_cpu.unwrap_or(cpu))?,
        watch: Watch::begin(&cpus, cpu, clock),
        notes,
        found: SelfCost::default(),
    };
    parts.measure()?;
    let Parts {
        mut found,
        notes,
        watch,
        ..
    } = parts;
    progress(args.output.quiet, "");
    let noise = watch.end(None);
    found.versions = ways::versions();
    found.goals = goals::of(&found);
    let document = Document {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION").into(),
        kind: Kind::SelfCost,
        label: args.output.label.clone(),
        quick: args.output.quick,
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

/// One part after the other.
struct Parts<'a> {
    args: &'a SelfArgs,
    bench: Bench,
    watch: Watch,
    notes: Vec<String>,
    found: SelfCost,
}

impl Parts<'_> {
    fn wants(&self, part: Part) -> bool {
        self.args.only.is_empty() || self.args.only.contains(&part)
    }

    fn measure(&mut self) -> Result<(), Error> {
        let quick = self.args.output.quick;
        if self.wants(Part::Wrap) {
            self.found.wrap = Some(self.wrap()?);
        }
        if self.wants(Part::Boundary) || self.wants(Part::Sleeps) {
            self.floors()?;
        }
        if self.wants(Part::Memory) {
            let memory = memory::measure(&mut self.bench);
            self.found.memory = self.or_left_out("memory", memory)?;
        }
        if self.wants(Part::Calls) || self.args.only == [Part::Peers] {
            self.calls()?;
        }
        let mut left_out = Vec::new();
        if self.wants(Part::Nginx) {
            if quick && self.args.only.is_empty() {
                left_out.push("nginx");
            } else {
                self.nginx()?;
            }
        }
        if self.wants(Part::Macro) {
            if quick && self.args.programs.is_empty() {
                left_out.push("whole programs");
            } else {
                self.programs()?;
            }
        }
        if !left_out.is_empty() {
            self.notes.push(format!(
                "--quick leaves out {}, and tools that take long to start",
                left_out.join(", ")
            ));
        }
        self.bench.finish();
        self.watch.look_all();
        Ok(())
    }

    /// What cannot be had at all is told with its reason, and the rest goes on.
    fn or_left_out<T>(
        &mut self,
        title: &str,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(e) => {
                self.found.left_out.push((title.into(), e.to_string()));
                Ok(None)
            }
        }
    }

    fn wrap(&mut self) -> Result<Grid, Error> {
        let plan = plan(self.args, (20, 90), (5, 8));
        let turns = if self.args.output.quick { 30 } else { 60 };
        let mut grid = wrap::grid();
        let begin = Instant::now();
        for round in 0..plan.most {
            if round >= plan.least && begin.elapsed() > plan.limit {
                break;
            }
            progress(
                plan.quiet,
                &format!("{}: round {} of {}", grid.title, round + 1, plan.most),
            );
            tidy::go_on()?;
            wrap::round(&mut self.bench, &mut grid, turns)?;
            self.watch.look();
        }
        self.bench.broker_end();
        self.watch.look_all();
        grid.judge();
        Ok(grid)
    }

    /// What is measured against the kernel's floor.
    fn floors(&mut self) -> Result<(), Error> {
        let cast = floor::Cast::start(&mut self.bench);
        let Some(mut cast) = self.or_left_out("calls and sleeps above the floor", cast)? else {
            return Ok(());
        };
        let (boundary, sleeps) = (self.wants(Part::Boundary), self.wants(Part::Sleeps));
        let quick = self.args.output.quick;
        let mut grid = |case, most, seconds| {
            let plan = plan(self.args, (most, seconds), (5, 8));
            cast.grid(&mut self.bench, case, &plan, quick, &mut self.watch)
        };
        if boundary {
            self.found.boundary = Some(grid(&floor::BOUNDARY, 40, 90)?);
            self.found.interrupts = Some(grid(&floor::INTERRUPTS, 30, 60)?);
        }
        if sleeps {
            self.found.sleeps = Some(grid(&floor::SLEEPS, 30, 120)?);
            self.found.switches = Some(grid(&floor::SWITCHES, 30, 60)?);
        }
        if let Some(c) = &cast.counters {
            self.notes.push(format!(
                "where the watched thread slept was recognised {} times and walked {} times while its sleeps were \
                 measured",
                c.site_hits, c.site_walks
            ));
        }
        self.bench.broker_end();
        self.watch.look_all();
        Ok(())
    }

    /// DeBox's ways and, if they are wanted, those of other tools.
    fn ways(&self) -> Vec<Way> {
        let mut ways = ways::of_debox();
        if self.wants(Part::Peers) {
            ways.extend(ways::of_others(self.args.output.quick));
        }
        ways
    }

    fn calls(&mut self) -> Result<(), Error> {
        let quick = self.args.output.quick;
        let plan = plan(self.args, (12, 180), (5, 13));
        let (repetitions, batch_us, connections) = if quick {
            (3, 500, 400)
        } else {
            (5, 2000, 4000)
        };
        let ways = self.ways();
        let rows: Vec<RowHead> = calls::CALLS.iter().map(RowHead::from).collect();
        let units = [(0..rows.len()).collect()];
        let task = calls::Task::Calls {
            repetitions,
            batch_us,
        };
        let bench = &mut self.bench;
        self.found.calls = Some(rounds(
            Grid::new("calls", "One call", rows, ways.iter().map(WayHead::from)),
            &ways,
            &units,
            &plan,
            &mut self.watch,
            &mut |_, way| {
                let answer = bench.run(way, &task)?;
                // What disturbs a repetition only adds: the shortest counts.
                Ok(answer
                    .into_iter()
                    .map(|(row, v)| (row, v.into_iter().fold(f64::MAX, f64::min)))
                    .collect())
            },
        )?);
        if self.wants(Part::Calls) {
            progress(plan.quiet, "a busy server");
            let answer = self.bench.server(connections);
            let answer = self.or_left_out("the busy server", answer)?;
            self.found.server = answer.iter().flat_map(server_rows).collect();
        }
        Ok(())
    }

    fn nginx(&mut self) -> Result<(), Error> {
        for (program, package) in [("nginx", "nginx-light"), ("wrk", "wrk")] {
            if !ways::installed(program) {
                let why = format!("{program} is not installed (Debian: {package})");
                self.found.left_out.push(("nginx".into(), why));
                return Ok(());
            }
        }
        let plan = Plan {
            others: 4,
            ..plan(self.args, (30, 300), (3, 60))
        };
        let ways = ways::for_programs(self.ways());
        let bench = &mut self.bench;
        let rows: Vec<RowHead> = nginx::ROWS.iter().map(RowHead::from).collect();
        let grid = Grid::new("nginx", "nginx", rows, ways.iter().map(WayHead::from));
        self.found.nginx = Some(rounds(
            grid,
            &ways,
            &[vec![0, 1]],
            &plan,
            &mut self.watch,
            &mut |_, way| {
                bench.limit_for(way);
                nginx::measure(bench, way)
            },
        )?);
        Ok(())
    }

    fn programs(&mut self) -> Result<(), Error> {
        let plan = plan(self.args, (12, 450), (5, 60));
        let ways = ways::for_programs(self.ways());
        progress(plan.quiet, "making files for whole programs");
        let mut loads = loads::prepare(&self.bench, &self.args.programs, &mut self.notes)?;
        let rows: Vec<RowHead> = loads
            .iter()
            .map(|l| RowHead::from(&(l.id, l.title)))
            .collect();
        let units: Vec<Vec<usize>> = (0..rows.len()).map(|row| vec![row]).collect();
        let ways_heads = ways.iter().map(WayHead::from);
        let bench = &mut self.bench;
        self.found.loads = Some(rounds(
            Grid::new("programs", "Whole programs", rows, ways_heads),
            &ways,
            &units,
            &plan,
            &mut self.watch,
            &mut |unit, way| {
                bench.limit_for(way);
                let load = &mut loads[unit];
                Ok(vec![(load.id.to_owned(), (load.run)(bench, way)?)])
            },
        )?);
        Ok(())
    }
}

fn deliver(args: &SelfArgs, document: Document) -> Result<i32, Error> {
    let Some(own) = document.self_cost.as_ref().filter(|_| args.markdown) else {
        return output::deliver(document, &args.output, None);
    };
    output::write(&args.output, &show::markdown(&document, own))?;
    Ok(0)
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
