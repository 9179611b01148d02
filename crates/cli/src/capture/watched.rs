// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to the account while it is written?
//!
//! A recording looks at it and flushes what it saw; --do acts on its events.
//! One observer does both or either; when there is neither, nobody looks.

use crate::acting::{self, Actor, pause};
use crate::error::Error;
use crate::session::{self, Extra, call_name};
use crate::spliced::{self, Splicer};
use crate::trace::TraceView;
use debox_abi::{DEBOX_EVENT_CALL, Pod, debox_event_call, debox_row};
use debox_client::{AccountView, Looks};
use debox_output::{bytes_text, duration_text, shell_word};
use debox_record::{Account, Observer, Options, Slowest, Start, Writer, start_here};
use debox_report::{Capture, Note, NoteKind, Report, RunFacts};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// An account, and who acts on its events.
pub struct Watched {
    pub view: AccountView,
    pub actor: Option<Actor>,
    /// What is known of the run while it lasts.
    pub facts: RunFacts,
    /// CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// There once its probes are on.
    pub trace: Arc<OnceLock<TraceView>>,
    looks: Looks,
    /// Where its programs count themselves, what was seen of that, and when it was last
    /// looked after.
    splicer: Option<Arc<Splicer>>,
    spliced: spliced::Looks,
    swept: Instant,
    stale: Arc<AtomicBool>,
    /// Kept by who reads the account, where no observer does.
    slow: Option<Box<Slowest>>,
}

impl Watched {
    pub fn new(
        view: AccountView,
        actor: Option<Actor>,
        facts: RunFacts,
        splicer: Option<Arc<Splicer>>,
    ) -> Self {
        Self {
            view,
            actor,
            facts,
            start_ns: 0,
            trace: Arc::default(),
            looks: Looks::default(),
            splicer,
            spliced: spliced::Looks::default(),
            swept: Instant::now(),
            stale: Arc::default(),
            slow: None,
        }
    }

    /// What spliced programs need from time to time.
    pub fn sweep(&mut self) {
        if let Some(splicer) = &self.splicer
            && self.swept.elapsed() >= spliced::SWEEP_EVERY
        {
            self.swept = Instant::now();
            if let Err(error) = splicer.look(&mut self.view) {
                crate::complain(&error);
            }
        }
    }

    /// The slowest single calls, or sleeps, are kept, from when events are first taken out.
    pub fn slow_keep(&mut self) {
        self.slow = Some(Box::default());
    }

    /// Whether somebody has to ask for events.
    pub fn has_events(&self) -> bool {
        self.actor.is_some() || self.slow.is_some()
    }

    /// Those that came since the last time.
    pub fn events_take(&mut self, each: &mut dyn FnMut(&debox_event_call)) {
        let Some(mut slow) = self.slow.take() else {
            self.events(each);
            return;
        };
        slow.turn(self, each);
        self.slow = Some(slow);
    }

    /// They are all there.
    pub fn slow_end(&mut self) -> Option<Box<Slowest>> {
        self.slow.take()
    }

    pub fn slow(&self) -> Option<&Slowest> {
        self.slow.as_deref()
    }

    /// Texts of the actor's conditions.
    pub fn conditions(&self) -> Vec<String> {
        self.actor
            .as_ref()
            .map(Actor::conditions)
            .unwrap_or_default()
    }

    fn stale_note(&self) {
        // Relaxed: nothing else is read on the strength of it.
        self.stale.store(self.view.stale(), Ordering::Relaxed);
    }
}

impl Account for Watched {
    fn look(&mut self, each: &mut dyn FnMut(u32, &debox_row)) {
        match &self.splicer {
            Some(splicer) => splicer.sums(&self.view, &mut self.spliced, each),
            None => self.view.look(&mut self.looks, each),
        }
    }

    fn events(&mut self, each: &mut dyn FnMut(&debox_event_call)) {
        self.stale_note();
        self.sweep();
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

    fn urgent(&self, age: Duration) -> Option<(BorrowedFd<'_>, Duration)> {
        let details = self.view.details.as_ref()?;
        let actor = self.actor.as_ref()?;
        Some((details.events.fd(), pause(actor, age)))
    }

    fn tells_sleeps(&self) -> bool {
        self.facts.capture == Capture::Sleeps
    }

    fn threshold_set(&mut self, key: u32, wall_ns: u64) {
        if let Some(details) = &mut self.view.details {
            details.control.slow_ns_set(key, wall_ns);
        }
        if let Some(splicer) = &self.splicer {
            splicer.ends_show(key, wall_ns);
        }
    }

    fn report(&mut self, wall_ns: u64, slow: &[&debox_event_call]) -> Report {
        let mut facts = self.facts.clone();
        facts.wall_ns = wall_ns;
        let extra = Extra {
            slow,
            start_ns: self.start_ns,
            conditions: &self.conditions(),
            // Reading a program's debug information takes long, and memory,
            // beside the program. That is done once, at the end.
            symbols: false,
            titles: None,
        };
        let splicer = self.splicer.as_ref();
        let counts = splicer.map(|splicer| splicer.counts(&facts.pids));
        let snapshot = self.view.snapshot();
        let mut report = session::report(&snapshot, counts.as_ref(), facts, None, &extra);
        report.trace = self.trace.get().map(TraceView::sums_so_far);
        report
    }
}

/// The account, with or without an observer.
pub enum Watch {
    Idle(Box<Watched>),
    Observed(Observer<Watched>, Arc<AtomicBool>),
}

impl Watch {
    pub fn start(watched: Watched, writer: Option<Writer>, follow: bool) -> Result<Self, Error> {
        // Of what lasts who reads the account looks at its events as well.
        if writer.is_none() && watched.actor.as_ref().is_none_or(Actor::lasts) {
            return Ok(Watch::Idle(Box::new(watched)));
        }
        let options = Options {
            start_ns: watched.start_ns,
            roots: watched.facts.pids.clone(),
            follow,
            call_names: Box::new(call_name),
        };
        let stale = watched.stale.clone();
        Observer::start(watched, writer, options)
            .map(|observer| Watch::Observed(observer, stale))
            .map_err(Error::system("starting the observer's thread"))
    }

    /// Whether the broker is gone, as of the last look.
    pub fn stale(&self) -> bool {
        match self {
            Watch::Idle(watched) => watched.view.stale(),
            Watch::Observed(_, stale) => stale.load(Ordering::Relaxed),
        }
    }

    /// What the actor did comes as notes and sums; the recording waits for its report.
    pub fn finish(self) -> (Watched, Option<Recorded>, Vec<Note>, Vec<acting::Sum>) {
        let (mut watched, mut recorded) = match self {
            Watch::Idle(mut watched) => {
                if watched.slow.is_some() {
                    watched.events_take(&mut |_| {});
                }
                (*watched, None)
            }
            Watch::Observed(observer, _) => {
                let (watched, observed, recording) = observer.finish();
                let recorded = recording.map(|recording| Recorded {
                    observed,
                    recording,
                });
                (watched, recorded)
            }
        };
        let mut slow = watched.slow.take();
        let (mut notes, mut sums) = (Vec::new(), Vec::new());
        if let Some(actor) = watched.actor.take() {
            // Events that are judged after the last look.
            let late = &mut |event: &debox_event_call| {
                if let Some(recorded) = &mut recorded {
                    recorded.observed.event(event);
                } else if let Some(slow) = &mut slow {
                    slow.add(event);
                }
            };
            (notes, sums) = actor.finish(&mut watched.view, late);
        }
        watched.slow = slow;
        (watched, recorded, notes, sums)
    }
}

/// Creates the file. It takes the place of an earlier recording.
pub fn writer(path: &Path, facts: &RunFacts) -> Result<Writer, Error> {
    let start = start_here(Start {
        debox_version: env!("CARGO_PKG_VERSION").to_owned(),
        kind: facts.kind,
        capture: facts.capture,
        command: facts.command.clone(),
        pids: facts.pids.clone(),
        cpus: 0,
        started_unix_ns: 0,
        kernel: String::new(),
        hostname: String::new(),
    });
    Ok(Writer::create(path, &start)?)
}

/// What the observer saw, and the file that waits for its end.
pub struct Recorded {
    observed: debox_record::Observed,
    recording: debox_record::Recording,
}

impl Recorded {
    pub fn slow(&self) -> Vec<&debox_event_call> {
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
