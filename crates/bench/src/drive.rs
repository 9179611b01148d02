// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a run of `debox bench os` go?
//!
//! Invocation after invocation of every suite, each in a fresh process, until
//! the intervals are narrow or the time is over; then one more round with
//! DeBox watching, for the accounts.

use crate::args::OsArgs;
use crate::clock::Clock;
use crate::derive::derive;
use crate::machine::{Machine, cpus_choose};
use crate::model::{Document, Kind, Row, SCHEMA, SCHEMA_VERSION};
use crate::noise::Watch;
use crate::os::Suite;
use crate::os::clocks::Survey;
use crate::os::reads::Cold;
use crate::output::progress;
use crate::stat::Summary;
use crate::tidy;
use crate::worker::{Answer, Order};
use crate::{Error, output};
use debox_command::stop;
use file::TestFile;
use gathered::Gathered;
use plan::Plan;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

mod accounts;
mod file;
mod gathered;
mod plan;

/// A worker that takes this much longer than its budget hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// What was said about each suite, in the order of [`plan::ALL`].
type All = BTreeMap<Suite, Gathered>;

/// The hidden subcommand: one invocation.
pub fn worker(order: &str) -> Result<i32, Error> {
    let order: Order = serde_json::from_str(order)
        .map_err(|e| Error::Usage(format!("this subcommand is for debox itself: {e}")))?;
    let answer = crate::worker::work(&order)?;
    println!("{}", serde_json::to_string(&answer).expect("plain data"));
    Ok(0)
}

/// `debox bench os`.
pub fn os(args: OsArgs) -> Result<i32, Error> {
    if let Some(path) = &args.output.load {
        let document = output::load(path)?;
        return output::deliver(document, &args.output, None);
    }
    output::check(&args.output, Kind::Os)?;
    stop::note_signals();
    let begin = Instant::now();
    let started = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let (quick, quiet) = (args.output.quick, args.output.quiet);
    let (cpu, other_cpu, cpus) = cpus_choose(args.cpu)?;
    let mut notes = Vec::new();
    if other_cpu.is_none() {
        notes.push(
            "this process may use one CPU only: what needs two is left out, and the measuring \
             shares the CPU with the measured"
                .into(),
        );
    }
    let plan = Plan::of(&args);
    let mut suites = plan.suites.clone();
    let file = plan.needs_file().then(|| {
        progress(quiet, "making a file to read");
        TestFile::create(args.dir.as_deref(), plan.file_bytes, &mut notes)
    });
    let mut runner = Runner::new((cpu, other_cpu), &plan, file.flatten())?;

    // This program keeps off the measured CPU, if there is another.
    if let Some(other) = other_cpu {
        crate::sampling::pin(other)?;
    }
    progress(quiet, "choosing the clock");
    let survey = runner.choose_clock(quick || plan.clocks_only_choice)?;
    let mut watch = Watch::begin(&cpus, cpu, Clock::new(&survey.choice));
    let mut gathered = rounds(&runner, &plan, &mut suites, &mut watch, quiet, &mut notes)?;
    // Before DeBox hooks anything.
    let noise = watch.end(gathered::preempted(
        gathered.values().map(|g| &g.invocations),
    ));
    if !args.no_account {
        accounts::accounts(&args, &runner, &suites, &mut gathered, &mut notes)?;
    }
    progress(quiet, "");

    let (results, cold) = rows(gathered);
    let document = Document {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION").into(),
        kind: Kind::Os,
        label: args.output.label.clone(),
        quick,
        started,
        seconds: begin.elapsed().as_secs_f64(),
        machine: Machine::look(&cpus, runner.file.as_ref().map(|f| f.device)),
        noise,
        clocks: Some(survey),
        derived: derive(&results),
        results,
        cold,
        self_cost: None,
        notes,
        comparison: None,
    };
    output::deliver(document, &args.output, Some(&args.only))
}

/// One invocation of each suite after the other, until all have settled or the
/// time is over. A suite that cannot run is taken out of `suites`, with a note.
fn rounds(
    runner: &Runner,
    plan: &Plan,
    suites: &mut Vec<Suite>,
    watch: &mut Watch,
    quiet: bool,
    notes: &mut Vec<String>,
) -> Result<All, Error> {
    let begin = Instant::now();
    let mut gathered = All::new();
    let mut active = suites.clone();
    let mut done = 0;
    while !active.is_empty() {
        active.rotate_left(done.min(1));
        for (n, &suite) in active.iter().enumerate() {
            progress(
                quiet,
                &format!(
                    "round {} of {}, suite {} of {}, {:.0} s",
                    done + 1,
                    plan.invocations,
                    n + 1,
                    active.len(),
                    begin.elapsed().as_secs_f64()
                ),
            );
            let order = Order {
                suite,
                budget_ms: plan::budget_ms(suite, plan.quick),
                first: done,
                ..runner.order.clone()
            };
            match runner.ask(&order) {
                Ok(answer) => gathered.entry(suite).or_default().add(answer),
                Err(Error::Unavailable(text)) => {
                    notes.push(text);
                    suites.retain(|s| *s != suite);
                }
                Err(other) => return Err(other),
            }
            tidy::go_on()?;
        }
        watch.look_all();
        done += 1;
        active.retain(|s| suites.contains(s));
        // What has settled after half of the rounds may rest, so that others
        // get their rounds within the time.
        if done >= plan.invocations.div_ceil(2).max(5) {
            active.retain(|s| !gathered.get(s).is_none_or(|g| g.settled(plan.target)));
        }
        if done >= plan.invocations {
            break;
        }
        let per_round = begin.elapsed() / done as u32;
        if begin.elapsed().saturating_add(per_round) > plan.limit {
            if !active.is_empty() {
                notes.push(format!(
                    "the time was over after {done} of {} rounds: intervals are wider than they could be",
                    plan.invocations
                ));
            }
            break;
        }
    }
    Ok(gathered)
}

/// A row for each case, and what is known of cold reads.
fn rows(gathered: All) -> (Vec<Row>, Option<Cold>) {
    let mut rows = Vec::new();
    let mut cold = None;
    for mut g in gathered.into_values() {
        for id in &g.order {
            let summary = g.invocations.get(id).and_then(|i| Summary::of(i));
            let missing = summary.is_none().then(|| {
                let why = g.missing.get(id).cloned();
                why.unwrap_or_else(|| "no sample".into())
            });
            rows.push(Row {
                id: id.clone(),
                summary,
                account: g.accounts.remove(id),
                missing,
            });
        }
        if g.cold.passes > 0 {
            cold = Some(g.cold);
        }
    }
    (rows, cold)
}

struct Runner {
    order: Order,
    executable: PathBuf,
    file: Option<TestFile>,
}

impl Runner {
    fn new(
        (cpu, other_cpu): (usize, Option<usize>),
        plan: &Plan,
        file: Option<TestFile>,
    ) -> Result<Self, Error> {
        let order = Order {
            suite: Suite::Clocks,
            cpu,
            other_cpu,
            quick: plan.quick,
            budget_ms: 0,
            target: plan.target,
            first: 0,
            clock: None,
            file: file.as_ref().map(|f| f.file.as_raw_fd()),
            file_bytes: file.as_ref().map_or(0, |f| f.bytes),
            account: None,
            account_ms: 0,
        };
        let executable = std::env::current_exe().map_err(|source| Error::System {
            what: "finding this program".into(),
            source,
        })?;
        Ok(Self {
            order,
            executable,
            file,
        })
    }

    /// All later invocations measure with the clock that is chosen here.
    fn choose_clock(&mut self, quick: bool) -> Result<Survey, Error> {
        let order = Order {
            quick,
            ..self.order.clone()
        };
        let survey = self
            .ask(&order)?
            .survey
            .ok_or_else(|| Error::Unavailable("the clocks' process gave no survey".into()))?;
        self.order.clock = Some(survey.choice.clone());
        Ok(survey)
    }

    fn ask(&self, order: &Order) -> Result<Answer, Error> {
        let mut command = Command::new(&self.executable);
        command
            .args(["bench", "worker"])
            .arg(serde_json::to_string(order).expect("plain data"))
            .env_remove("LD_PRELOAD");
        let limit = Duration::from_millis(order.budget_ms) + PATIENCE;
        let inherit = self.file.as_ref().map(|f| f.file.as_raw_fd());
        let (status, out, err) = tidy::run(&mut command, None, inherit, limit)?;
        if !status.success() {
            return Err(Error::Unavailable(format!(
                "the {:?} suite's process ended with {status}: {}",
                order.suite,
                err.trim().strip_prefix("debox: ").unwrap_or(err.trim())
            )));
        }
        serde_json::from_str(&out).map_err(|e| {
            Error::Unavailable(format!(
                "the {:?} suite's answer cannot be read: {e}",
                order.suite
            ))
        })
    }
}
