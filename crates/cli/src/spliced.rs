// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox run --capture=splice`: how is a command counted in user space alone?
//!
//! No broker, no privileges, and nobody else pays. What its threads count is read from the
//! file that they share with us, when it has ended.

use crate::args::RunArgs;
use crate::capture::{END_WAIT, Target, Want, exit};
use crate::error::Error;
use crate::session::{self, Extra};
use debox_abi::{Pod, debox_account, debox_account_cpu, debox_wrap_row};
use debox_client::Snapshot;
use debox_command::{Child, Ended, Environment, Hold, Inherited, Library, Signals, Start};
use debox_record::monotonic_ns;
use debox_report::{Capture, Note, NoteKind, RunFacts, RunKind, WrapCounts, WrapProcess};
use debox_splice::{Counted, Run};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the areas of programs that have ended are freed.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Where patched code is kept from one run to the next.
fn images() -> Result<PathBuf, Error> {
    let set = |name: &str| {
        std::env::var_os(name).filter(|path| path.as_encoded_bytes().starts_with(b"/"))
    };
    let folder = (set("XDG_CACHE_HOME").map(PathBuf::from))
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let folder = folder.ok_or_else(|| {
        Error::Usage(
            "there is no place for patched code: set XDG_CACHE_HOME, or HOME, to a path".into(),
        )
    })?;
    Ok(folder.join("debox").join("splice"))
}

pub fn run(
    args: &RunArgs,
    target: Target<'_>,
    want: &Want,
    mut inherited: Inherited,
) -> Result<i32, Error> {
    let words = target.words();
    let Target::Command { program, .. } = target else {
        unreachable!("a command is what is run");
    };
    let output = want.output(&args.capture.report)?;
    let signals = Signals::open()?;
    let run = Run::new(&images()?, &Library::SPLICE.find()?, debox_splice::rate()?)?;
    let environment = Environment::inherited();
    let start = Start::new(&program, &environment, &inherited);
    let held = start.hold(Hold::Asleep, || Ok(()))?;
    let following = run.follow(held.pid())?;
    let started = held.start();
    // Nobody waits for it before.
    following.begun();
    let mut child = started?;
    let (since, start_ns) = (child.since, monotonic_ns());
    inherited.release_descriptors(output.uses_stdout());
    let until = args.capture.duration.map(|longest| since + longest);
    let ended = wait(&mut child, &signals, &run, until)?;
    let wall = since.elapsed();
    let counted = run
        .counted()
        .map_err(Error::system("reading what was counted"))?;

    let mut facts = RunFacts::new(RunKind::Run, Capture::Splice, words);
    facts.pids = vec![child.pid() as u32];
    facts.wall_ns = session::nanos(wall);
    facts.exit = Some(exit(ended));
    facts.notes = notes(&counted);
    let counts = counts(&counted, child.pid() as u32);
    let report = session::report(
        &nothing(),
        Some(&counts),
        facts,
        None,
        &Extra::new(start_ns),
    );
    if let Err(error) = output.write(report, &args.capture.report) {
        // The command's own status still matters more than ours.
        crate::complain(&error);
    }
    Ok(ended.end_as())
}

fn wait(
    child: &mut Child,
    signals: &Signals,
    run: &Run,
    until: Option<Instant>,
) -> Result<Ended, Error> {
    let swept = || {
        run.sweep()
            .map_err(Error::system("reading what was counted"))
    };
    loop {
        let next = Instant::now() + SWEEP_EVERY;
        let at = until.map_or(next, |until| until.min(next));
        if let Some(ended) = child.wait(signals, true, Some(at))? {
            return Ok(ended);
        }
        swept()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            child.end(&[(libc::SIGTERM, END_WAIT), (libc::SIGKILL, END_WAIT)]);
        }
    }
}

/// The kernel side, of which nobody asked anything.
fn nothing() -> Snapshot {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Snapshot {
        account: debox_account::zeroed_box(),
        cpus: debox_account_cpu::zeroed_slice(cpus),
        sites: Box::default(),
        features: 0,
        stale: false,
        details: None,
        objects: None,
        on_cpu: None,
        kernel_functions: Default::default(),
        lives: None,
        site_stacks: Vec::new(),
        chain_sums: Vec::new(),
        chains: Vec::new(),
    }
}

fn counts(counted: &Counted, pid: u32) -> WrapCounts {
    let mut counts = WrapCounts::default();
    let process = counts.process_add(WrapProcess {
        pid,
        measured: false,
        why: String::new(),
        threads_lost: counted.threads_lost,
        restricted: false,
    });
    for (nr, sums) in counted
        .calls
        .iter()
        .enumerate()
        .filter(|(_, sums)| sums.count > 0)
    {
        let mut row = debox_wrap_row::zeroed();
        row.used = 1 << 63 | nr as u64;
        row.count = sums.count;
        row.errors = sums.errors;
        row.wall_ns = sums.wall_ns;
        row.max_ns = sums.max_ns;
        row.hist
            .iter_mut()
            .zip(&sums.hist)
            .for_each(|(to, from)| *to = *from);
        counts.row_add(process, &row);
    }
    counts
}

/// What is not in it, and why.
fn notes(counted: &Counted) -> Vec<Note> {
    let mut notes = vec![Note::new(
        NoteKind::SpliceNotMeasured,
        0,
        "splice capture: counts, errors and wall times of all calls; what they waited for is not measured. \
         --capture=boundary, the usual way, tells (it needs root, or a broker)",
    )];
    let mut left = |count: u64, text: String| {
        if count > 0 {
            notes.push(Note::new(NoteKind::SpliceLeft, count, text));
        }
    };
    let n = |count: u64, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let why = counted.why.join("; ");
    left(
        counted.programs_left,
        format!(
            "calls of {} are missing: {}",
            n(counted.programs_left, "program", "programs"),
            debox_output::printable(&why)
        ),
    );
    left(
        counted.files_left,
        format!(
            "calls out of {} may be missing: their code could not be replaced",
            n(counted.files_left, "mapped file", "mapped files")
        ),
    );
    left(
        counted.threads_lost,
        format!(
            "calls of {} are not all counted: more threads than a program's area holds",
            n(counted.threads_lost, "thread", "threads")
        ),
    );
    left(
        counted.late_code,
        format!(
            "{} of code from no file: system calls in it are missing (just-in-time compilers write none, usually)",
            n(counted.late_code, "piece", "pieces")
        ),
    );
    left(
        counted.undone,
        format!(
            "{} went on without: it uses what splicing cannot go with (a filter that looks at where calls are made, \
             the GS register, a forbidden time stamp counter)",
            n(counted.undone, "program", "programs")
        ),
    );
    left(
        counted.untimed,
        format!("{} without a time", n(counted.untimed, "call", "calls")),
    );
    notes
}
