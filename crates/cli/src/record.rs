// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do `run` and `attach` do beside waiting, when a recording is wanted?

use crate::acting::{Actor, Worker};
use crate::args::{DetailArgs, RecordArgs, ReportArgs};
use crate::error::Error;
use crate::session::{self, Extra, call_name};
use crate::trace::TraceArgs;
use debox_abi::{
    DEBOX_DETAIL_CALL_SITES, DEBOX_DETAIL_EVENT_STACKS, DEBOX_DETAIL_EVENTS, DEBOX_DETAIL_STACKS,
    DEBOX_DETAIL_THREADS, DEBOX_EVENT_CALL, DEBOX_REQ_BOUNDARY, DEBOX_REQ_DETAILS,
    DEBOX_REQ_USER_STACKS, Pod, debox_event_call, debox_row,
};
use debox_client::{AccountView, Looks};
use debox_output::{printable_bytes, shell_word};
use debox_record::{Account, Observer, Options, SlowEvent, Start, Writer, start_here};
use debox_report::{Capture, NoteKind, Report, RunFacts, RunKind, duration_text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The details that the command line asks for: DEBOX_REQ_* of the account, and
/// the DEBOX_DETAIL_* to switch on before the first process joins.
pub fn details(details: &DetailArgs, recording: bool) -> (u32, u32) {
    let mut flags = 0;
    if details.call_sites || details.stacks {
        flags |= DEBOX_DETAIL_CALL_SITES;
    }
    if details.stacks {
        flags |= DEBOX_DETAIL_STACKS;
    }
    if recording {
        flags |= DEBOX_DETAIL_THREADS | DEBOX_DETAIL_EVENTS | DEBOX_DETAIL_EVENT_STACKS;
    }
    let walks = DEBOX_DETAIL_CALL_SITES | DEBOX_DETAIL_STACKS | DEBOX_DETAIL_EVENT_STACKS;
    let request = DEBOX_REQ_BOUNDARY
        | DEBOX_REQ_DETAILS
        | if flags & walks != 0 {
            DEBOX_REQ_USER_STACKS
        } else {
            0
        };
    (request, flags)
}

/// What names a recording among the files that -o can write.
const EXTENSION: &str = "debox";

/// The recording that the command line asks for.
pub fn wanted(
    report: &ReportArgs,
    record: &RecordArgs,
    trace: &TraceArgs,
) -> Result<Option<PathBuf>, Error> {
    let named = report
        .output
        .as_ref()
        .filter(|path| path.extension() == Some(OsStr::new(EXTENSION)));
    match (&report.output, record.record) {
        (_, false) if named.is_none() => Ok(None),
        (None, _) => Err(Error::Usage(
            "--record needs the file to write: -o FILE".into(),
        )),
        (Some(path), _) if path.as_os_str() == "-" => Err(Error::Usage(
            "a recording is rewritten as the run goes on, so it cannot go to standard output: name a file"
                .into(),
        )),
        (Some(path), _) if trace.wanted() => Err(Error::Usage(format!(
            "a recording holds no call trace, so {} would lose it: write the trace with --json -o FILE.json, and \
             record in another run",
            printable_bytes(path.as_os_str().as_bytes())
        ))),
        (Some(path), _) if report.json => Err(Error::Usage(format!(
            "--json writes JSON, and {} is to be a recording: leave out --json (debox report --json makes \
             JSON of a recording), or name the file otherwise",
            printable_bytes(path.as_os_str().as_bytes())
        ))),
        (Some(path), _) => Ok(Some(path.clone())),
    }
}

/// Creates the file before anything is watched: that it cannot be written
/// should be known before an hour of measuring.
pub fn create(
    path: &std::path::Path,
    kind: RunKind,
    capture: Capture,
    command: &[String],
    pids: &[u32],
) -> Result<Writer, Error> {
    let start = start_here(Start {
        debox_version: env!("CARGO_PKG_VERSION").to_owned(),
        kind,
        capture,
        command: command.to_vec(),
        pids: pids.to_vec(),
        cpus: 0,
        started_unix_ns: 0,
        kernel: String::new(),
        hostname: String::new(),
    });
    Ok(Writer::create(path, &start)?)
}

/// An account that is looked at while it is written.
pub struct Watched {
    view: AccountView,
    looks: Looks,
    /// What is known of the run while it lasts.
    facts: RunFacts,
    start_ns: u64,
    stale: Arc<AtomicBool>,
    actor: Option<Actor>,
    /// Texts of its conditions.
    conditions: Vec<String>,
}

impl Account for Watched {
    fn look(&mut self, each: &mut dyn FnMut(u32, &debox_row)) {
        self.view.look(&mut self.looks, each);
        // Relaxed: nothing else is read on the strength of it.
        self.stale.store(self.view.stale(), Ordering::Relaxed);
    }

    fn events(&mut self, each: &mut dyn FnMut(&debox_event_call)) {
        if let Some(actor) = &mut self.actor {
            actor.turn(&mut self.view, each);
        } else if let Some(details) = &mut self.view.details {
            details.events.drain(|bytes| {
                let event = debox_event_call::read_from(bytes);
                if let Some(event) = event.filter(|e| e.kind == DEBOX_EVENT_CALL) {
                    each(&event);
                }
            });
        }
    }

    fn threshold_set(&mut self, key: u32, wall_ns: u64) {
        if let Some(details) = &mut self.view.details {
            details.control.slow_ns_set(key, wall_ns);
        }
    }

    fn report(&mut self, wall_ns: u64, slow: &[&SlowEvent]) -> Report {
        let mut facts = self.facts.clone();
        facts.wall_ns = wall_ns;
        let extra = Extra {
            slow,
            start_ns: self.start_ns,
            conditions: &self.conditions,
            // Reading a program's debug information takes long, and memory,
            // beside the program. That is done once, at the end.
            symbols: false,
        };
        session::report_with(&self.view.snapshot(), None, facts, None, &extra)
    }
}

/// The account of a run, with or without somebody looking at it meanwhile.
pub enum Watch {
    Plain(AccountView),
    /// Somebody acts on its events.
    Acting(Worker),
    Observed(Observer<Watched>, Arc<AtomicBool>),
}

impl Watch {
    /// `facts`: of the run as far as it is known; `start_ns`: CLOCK_MONOTONIC.
    pub fn start(
        view: AccountView,
        writer: Option<Writer>,
        actor: Option<Actor>,
        facts: RunFacts,
        follow: bool,
        start_ns: u64,
    ) -> Result<Self, Error> {
        if writer.is_none() {
            return match actor {
                Some(actor) => Worker::start(view, actor).map(Watch::Acting),
                None => Ok(Watch::Plain(view)),
            };
        }
        let options = Options {
            start_ns,
            roots: facts.pids.clone(),
            follow,
            call_names: Box::new(call_name),
            on_event: None,
        };
        let stale = Arc::new(AtomicBool::new(false));
        let watched = Watched {
            view,
            looks: Looks::default(),
            facts,
            start_ns,
            stale: stale.clone(),
            conditions: actor.as_ref().map(Actor::conditions).unwrap_or_default(),
            actor,
        };
        Observer::start(watched, writer, options)
            .map(|observer| Watch::Observed(observer, stale))
            .map_err(Error::system("starting the observer's thread"))
    }

    /// Whether the broker is gone, as of the last look.
    pub fn stale(&self) -> bool {
        match self {
            Watch::Plain(view) => view.stale(),
            Watch::Acting(worker) => worker.stale(),
            Watch::Observed(_, stale) => stale.load(Ordering::Relaxed),
        }
    }

    pub fn finish(self) -> (AccountView, Option<Recorded>, Option<Actor>) {
        match self {
            Watch::Plain(view) => (view, None, None),
            Watch::Acting(worker) => {
                let (view, actor) = worker.finish();
                (view, None, Some(actor))
            }
            Watch::Observed(observer, _) => {
                let (watched, observed, recording) = observer.finish();
                let recorded = recording.map(|recording| Recorded {
                    observed,
                    recording,
                });
                (watched.view, recorded, watched.actor)
            }
        }
    }
}

/// What the observer saw, and the file that waits for its end.
pub struct Recorded {
    observed: debox_record::Observed,
    recording: debox_record::Recording,
}

impl Recorded {
    /// An event that was judged after the last look.
    pub fn event(&mut self, event: &debox_event_call) {
        self.observed.event(event);
    }

    pub fn slow(&self) -> Vec<&SlowEvent> {
        self.observed.slow.events()
    }

    /// Completes the report and closes the file; says where it is.
    pub fn write(self, mut report: Report, quiet: bool) -> Result<(), Error> {
        self.observed.complete(&mut report, &call_name);
        let path = self.recording.finish(&report)?;
        if !quiet {
            let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
            let lost = report.notes.iter().filter(|note| {
                matches!(
                    note.kind,
                    NoteKind::Stale | NoteKind::RowsDropped | NoteKind::ThreadsUnwatched
                )
            });
            for note in lost {
                crate::say(&note.text);
            }
            crate::say(&format!(
                "recorded {} in {} ({}); see it with: debox report {}",
                duration_text(report.run.wall_ns, crate::output::ascii()),
                path.display(),
                bytes_text(bytes),
                shell_word(path.as_os_str().as_bytes())
            ));
        }
        Ok(())
    }
}

fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{} kB", bytes.div_ceil(1_000)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
