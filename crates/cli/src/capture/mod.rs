// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a capture go, from the broker to the report?
//!
//! `run`, `attach` and `top` are hosts of the same: [`Capture::open`] loads what
//! is wanted, [`Capture::start`] puts the target under watch, then it is waited
//! for ([`Capture::command_wait`], [`Capture::tick`]), and [`Capture::finish`]
//! makes the report. The hosts differ in their target and in what they show.

mod launch;
mod open;
mod target;
mod want;
mod watched;
pub mod wrap;

pub use crate::open_call::OpenCalls;
pub use debox_broker::{own_bytes, own_time};
pub use debox_client::Costs;
pub use open::{Bound, Opened};
pub use target::{Process, Target, is_readable};
pub use want::Want;

use crate::acting::{self, Actor};
use crate::args::{BrokerArgs, ReportArgs};
use crate::collect::Collector;
use crate::error::Error;
use crate::machine::MachineWatch;
use crate::output::Output;
use crate::session::{self, Extra};
use crate::source::Source;
use crate::spliced::{self, Splicer};
use crate::title::Titles;
use crate::trace::TraceView;
use crate::whom::Whom;
use debox_abi::{DEBOX_AWAY_TAKEN, DEBOX_MSG_YIELD, debox_away, debox_event_call, debox_request};
use debox_client::Connection;
use debox_command::{Child, Ended, Inherited, Signals, signal_name};
use debox_record::{Slowest, Writer};
use debox_report::{Exit, Note, NoteKind, Report, RunFacts, verdict_of};
use open::Learning;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use target::PROCESSES_MAX;
use watched::{Recorded, Watch};

/// How often threads are looked at, to tell how long they have been in a call.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A command that is to end gets this long, before SIGKILL.
pub const END_WAIT: Duration = Duration::from_secs(5);

/// What came to pass during a tick.
#[derive(Default)]
pub struct Tick {
    /// A signal that asks for the end.
    pub stop: Option<i32>,
    pub resized: bool,
    /// SIGUSR1.
    pub asked: bool,
}

impl Tick {
    fn of(signals: &Signals) -> Self {
        let mut tick = Tick::default();
        while let Some(arrived) = signals.next() {
            match arrived.signal {
                libc::SIGWINCH => tick.resized = true,
                libc::SIGUSR1 => tick.asked = true,
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => {
                    tick.stop = Some(arrived.signal);
                }
                _ => {}
            }
        }
        tick
    }
}

/// What captures share: the broker, and the signals that ask for something.
pub struct Base {
    signals: Arc<Signals>,
    source: Arc<Source>,
}

impl Base {
    /// `boundary_later`: the hooks at system calls may never be needed.
    pub fn open(broker: &BrokerArgs, boundary_later: bool) -> Result<Self, Error> {
        Ok(Self {
            signals: Arc::new(Signals::open()?),
            source: Arc::new(Source::choose(broker, boundary_later)?),
        })
    }

    /// One more. It takes over threads of others that it asks for: what these are in the middle of is told of
    /// both, up to that moment and from it.
    pub fn start(
        &self,
        want: Want,
        target: Target<'_>,
        inherited: &Inherited,
    ) -> Result<Capture, Error> {
        Opened::with(self, want, &target)?.start(target, inherited)
    }

    /// Whether the broker is this process's own.
    pub fn is_own(&self) -> bool {
        matches!(*self.source, Source::Private(_))
    }

    /// What the broker takes, and with `run_time` its programs in the kernel; over a connection of its own.
    pub fn costs(&self, run_time: bool) -> Result<Costs, Error> {
        Ok(self.source.connect()?.impatient().costs(run_time)?)
    }

    /// Waits for a signal, something to read, or until then.
    pub fn tick(&self, list: &[BorrowedFd<'_>], until: Option<Instant>) -> Tick {
        self.signals.wait(list, until);
        Tick::of(&self.signals)
    }
}

/// The target is watched.
pub struct Capture {
    signals: Arc<Signals>,
    source: Arc<Source>,
    connection: Arc<Connection>,
    watch: Watch,
    trace: Arc<OnceLock<TraceView>>,
    learning: Option<Learning>,
    collector: Option<Collector>,
    splicer: Option<Arc<Splicer>>,
    audit: bool,
    call_sites: bool,
    facts: RunFacts,
    conditions: Vec<String>,
    /// Whether a stopped command stops debox along with it.
    along: bool,
    processes: Vec<Process>,
    /// The command, when the target is one.
    pub child: Option<Child>,
    /// What was put under watch at the start.
    pub bound: Bound,
    /// Whom it waits for as well, and which processes it does not know by number.
    pub whom: Option<Whom>,
    /// Children, too.
    follow: bool,
    open_calls: OpenCalls,
    /// Processes that were not looked at for that.
    left_out: usize,
    machine: MachineWatch,
    titles: RefCell<Titles>,
    next_look: Instant,
    pub since: Instant,
    start_ns: u64,
    /// That were watched when the last report was made.
    threads: usize,
}

/// Those that have not ended.
fn live(processes: &[Process]) -> impl Iterator<Item = &Process> {
    processes.iter().filter(|process| !process.ended)
}

impl Capture {
    pub fn open(want: Want, target: &Target<'_>) -> Result<Opened, Error> {
        Opened::new(want, target)
    }

    /// From now on its processes go to whatever policy asks for them.
    pub fn give_way(&self) -> Result<(), Error> {
        self.connection
            .ask(&debox_request::new(DEBOX_MSG_YIELD, 0))?;
        Ok(())
    }

    /// Does what events of single calls ask for; `each` sees them, with a bit in `conditions` for each of those
    /// that was met. How many met one.
    pub fn act(&mut self, each: &mut dyn FnMut(&debox_event_call)) -> u64 {
        let mut events = 0;
        if let Watch::Idle(watched) = &mut self.watch
            && watched.has_events()
        {
            watched.events_take(&mut |event| {
                events += u64::from(event.conditions | event.uncertain != 0);
                each(event);
            });
        }
        events
    }

    /// Readable when an event waits on which somebody acts; and how long it may take at most until [`Capture::act`], whatever is there.
    pub fn events(&self) -> Option<(Option<BorrowedFd<'_>>, Option<Duration>)> {
        let Watch::Idle(watched) = &self.watch else {
            return None;
        };
        let details = watched.view.details.as_ref()?;
        // Nobody has to act at once on what is only slow.
        let actor = watched.actor.as_ref();
        let ring = actor.map(|_| details.events.fd());
        let due = [actor.and_then(Actor::due), watched.slow().map(Slowest::due)];
        (watched.has_events()).then(|| (ring, due.into_iter().flatten().min()))
    }

    /// How many threads were watched when the last report was made.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// A recording of it, whose reports are yet to come.
    pub fn writer(&self, path: &Path) -> Result<Writer, Error> {
        watched::writer(path, &self.facts)
    }

    /// Processes that are watched and alive; those that were looked for are `taken`, too, where another account has them by now.
    fn pids_now(&self, family: bool, taken: bool) -> Vec<u32> {
        let mut pids: Vec<u32> = match (&self.whom, family) {
            // Some that fit may be another account's.
            (Some(whom), _) => self.pids_asleep(taken).unwrap_or_else(|_| whom.pids()),
            (None, true) => live(&self.processes).flat_map(Process::family).collect(),
            (None, false) => live(&self.processes)
                .map(|process| process.pid as u32)
                .collect(),
        };
        pids.retain(|pid| *pid != std::process::id());
        pids
    }

    /// Those of the account, by the longest sleep of their threads.
    fn pids_asleep(&self, taken: bool) -> Result<Vec<u32>, debox_client::Error> {
        let mut longest: HashMap<u32, u64> = HashMap::new();
        let threads = self.connection.away_threads()?;
        let ours = |thread: &debox_away| taken || thread.flags & DEBOX_AWAY_TAKEN == 0;
        for thread in threads.into_iter().filter(ours) {
            let ns = longest.entry(thread.pid).or_default();
            *ns = thread.asleep_ns.max(*ns);
        }
        let mut pids: Vec<(u32, u64)> = longest.into_iter().collect();
        pids.sort_unstable_by_key(|(pid, ns)| (Reverse(*ns), *pid));
        Ok(pids.into_iter().map(|(pid, _)| pid).collect())
    }

    /// What /proc alone tells, for the reports to come: which threads are inside a call, with those of children if
    /// `family`, and what processes call themselves.
    pub fn look(&mut self, family: bool) {
        let pids = self.pids_now(family, false);
        self.machine.look(&pids);
        let looked = looked_for(&pids);
        self.left_out = pids.len() - looked.len();
        self.open_calls.sample(looked.iter().copied());
        self.titles.get_mut().forget();
        self.next_look = Instant::now() + LOOK_EVERY;
    }

    pub fn pids(&self) -> &[u32] {
        &self.facts.pids
    }

    /// Waits until the command has ended, passing signals on; after `until` it
    /// is ended.
    pub fn command_wait(&mut self, mut until: Option<Instant>) -> Result<Ended, Error> {
        let Some(child) = &mut self.child else {
            return Ok(Ended::Code(0));
        };
        loop {
            let next = self
                .splicer
                .is_some()
                .then(|| Instant::now() + spliced::SWEEP_EVERY);
            let at = until.into_iter().chain(next).min();
            if let Some(ended) = child.wait(&self.signals, self.along, at)? {
                return Ok(ended);
            }
            if let Some(signal) = (self.splicer.as_ref()).and_then(|s| s.stopped(child.pid())) {
                child.stops(self.along, signal);
            }
            // The observer does so itself.
            if let Watch::Idle(watched) = &mut self.watch {
                watched.sweep();
            }
            if until.is_none_or(|until| Instant::now() < until) {
                continue;
            }
            self.facts.ended_early = true;
            child.end(&[(libc::SIGTERM, END_WAIT), (libc::SIGKILL, END_WAIT)]);
            until = None;
        }
    }

    /// Waits for a signal, an end, something to read, or until then.
    pub fn tick(&mut self, input: Option<BorrowedFd<'_>>, until: Option<Instant>) -> Tick {
        let mut list: Vec<BorrowedFd<'_>> = input.into_iter().collect();
        // What has ended is readable for ever.
        list.extend(live(&self.processes).map(Process::as_fd));
        let due = self.child.is_none().then_some(self.next_look);
        let sweep = (self.splicer.is_some()).then(|| Instant::now() + spliced::SWEEP_EVERY);
        let next = until.into_iter().chain(due).chain(sweep).min();
        self.signals.wait(&list, next);
        // The observer does so itself.
        if let Watch::Idle(watched) = &mut self.watch {
            watched.sweep();
        }
        let tick = Tick::of(&self.signals);
        self.processes.iter_mut().for_each(Process::look);
        if self.child.is_none() && Instant::now() >= self.next_look {
            self.look(self.follow);
        }
        tick
    }

    /// Why there is nothing more to come, in words; None: there is.
    pub fn ended(&mut self) -> Option<String> {
        let ended = match &mut self.child {
            Some(child) => child.ended().map(|ended| match ended {
                Ended::Signal(signal) => format!("ended by {}", signal_name(signal)),
                Ended::Code(code) => format!("ended, status {code}"),
            }),
            // Others may come.
            None if self.whom.is_some() => None,
            None => live(&self.processes)
                .next()
                .is_none()
                .then(|| "ended".into()),
        };
        ended.or_else(|| self.watch.stale().then(|| "the broker is gone".into()))
    }

    /// A report of now; what /proc alone tells is as of the last look.
    ///
    /// # Panics
    /// Where an observer has the account: with a recording or --on.
    pub fn report(&mut self) -> Report {
        let Watch::Idle(watched) = &self.watch else {
            panic!("the observer has the account");
        };
        // What is not there yet stands in the next one.
        let (mut snapshot, _) = session::snapshot(&watched.view, &self.connection);
        let away = session::away_add(&mut snapshot, &watched.view, &self.connection);
        self.threads = away.unwrap_or(self.threads);
        let mut facts = RunFacts {
            wall_ns: session::nanos(self.since.elapsed()),
            open_calls: self.open_calls.list(),
            machine: self.machine.now(),
            ..self.facts.clone()
        };
        facts.notes.extend(processes_left_out(self.left_out));
        let slow = watched.slow().map(Slowest::calls).unwrap_or_default();
        let extra = Extra {
            slow: &slow,
            conditions: &self.conditions,
            // Whoever keeps slow calls has others to look after meanwhile. With sleeps nobody walks stacks.
            symbols: watched.slow().is_none()
                || self.facts.capture == debox_report::Capture::Sleeps,
            titles: Some(&self.titles),
            ..Extra::new(self.start_ns)
        };
        let splicer = self.splicer.as_ref();
        let counts = splicer.map(|splicer| splicer.counts(&facts.pids));
        let mut report = session::report(&snapshot, counts.as_ref(), facts, None, &extra);
        report.slow_calls_left_out = watched.slow().map_or(0, Slowest::left_out);
        report
    }

    /// Ends the thread that learns; what it found is in `trace`.
    fn learning_end(&mut self) {
        let Some(learning) = self.learning.take() else {
            return;
        };
        learning.over.store(true, Ordering::Relaxed);
        match learning.thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => crate::complain(&error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Nobody is watched any more; the report of all.
    pub fn finish(self) -> Finished {
        self.finish_with(true).0
    }

    /// The same, without what open calls wait for: whoever has others to look after meanwhile asks that of what is left
    /// of them here ([`OpenCalls::explain`]), elsewhere.
    pub fn finish_soon(self) -> (Finished, OpenCalls) {
        self.finish_with(false)
    }

    fn finish_with(mut self, explains: bool) -> (Finished, OpenCalls) {
        self.learning_end();
        let mut facts = self.facts.clone();
        facts.wall_ns = session::nanos(self.since.elapsed());
        // Whoever comes after a period has taken its threads.
        let pids = self.pids_now(self.follow, true);
        let looked = looked_for(&pids);
        // While they are watched still: what goes on meanwhile is counted. But what is watched by what
        // it is, would be watched with what we start to find the answer.
        let named = self.whom.is_none();
        if self.child.is_none() && named {
            self.open_calls.sample(looked.iter().copied());
            if explains {
                self.open_calls.explain();
            }
        }
        self.machine.look(&pids);
        facts.machine = self.machine.now();
        let Capture { watch, .. } = self;
        let (mut watched, recorded, notes, acted) = watch.finish();
        facts.notes = watched.facts.notes.clone();
        facts.notes.extend(notes);
        if self.child.is_none() {
            facts
                .notes
                .extend(processes_left_out(pids.len() - looked.len()));
        }
        let snapshot = session::snapshot_last(&watched.view, &self.connection, recorded.is_some());
        // What is under way has been counted up to here.
        if self.child.is_none() {
            facts.wall_ns = session::nanos(self.since.elapsed());
        }
        facts.exit = self.child.as_mut().and_then(Child::ended).map(exit);
        match self.child {
            Some(_) => facts.threads_running = Some(session::threads_running(&snapshot)),
            None => {
                self.open_calls.sample(looked.iter().copied());
                if explains && !named {
                    self.open_calls.explain();
                }
                facts.open_calls = self.open_calls.list();
            }
        }
        let collected = self.collector.map(Collector::finish);
        let spliced = self.splicer.map(|splicer| {
            let audit = self.audit.then_some(&watched.view);
            splicer.finish(&facts.pids, audit, &mut facts.notes)
        });
        let traced = self.trace.get().map(|trace| trace.finish(&self.connection));
        let kept = watched.slow_end();
        // The kernel side lets go before anything is printed; but for pairs of
        // probes, which take seconds.
        drop((watched, self.connection));
        let names = self.source.notes();
        let source = traced.is_some().then_some(self.source);

        let slow = (recorded.as_ref().map(Recorded::slow))
            .or(kept.as_ref().map(|kept| kept.calls()))
            .unwrap_or_default();
        let extra = Extra {
            slow: &slow,
            conditions: &self.conditions,
            ..Extra::new(self.start_ns)
        };
        let place = collected
            .as_ref()
            .filter(|_| self.call_sites)
            .map(|all| move |process: usize, address: u64| wrap::place_name(all, process, address));
        let place = place
            .as_ref()
            .map(|name| name as &dyn Fn(usize, u64) -> String);
        let counts = (collected.as_ref().map(|all| &all.counts)).or(spliced.as_ref());
        let mut report = session::report(&snapshot, counts, facts, place, &extra);
        report.slow_calls_left_out = kept.as_ref().map_or(0, |kept| kept.left_out());
        session::names_explain(&mut report, names);
        match traced.transpose() {
            Ok(trace) => report.trace = trace,
            Err(error) => crate::complain(&error),
        }
        let finished = Finished {
            report,
            recorded,
            acted,
            _source: source,
        };
        (finished, self.open_calls)
    }
}

/// Those whose open calls are looked for.
fn looked_for(pids: &[u32]) -> &[u32] {
    &pids[..pids.len().min(PROCESSES_MAX)]
}

fn processes_left_out(more: usize) -> Option<Note> {
    let text =
        format!("open calls are looked for in {PROCESSES_MAX} processes; {more} more are left out");
    (more > 0).then(|| Note::new(NoteKind::ProcessesLeftOut, more as u64, text))
}

fn calls_unexplained(calls: usize) -> Option<Note> {
    let text = "what open calls wait for was not found out: that took too long, or too many periods ended at once";
    (calls > 0).then(|| Note::new(NoteKind::CallsUnexplained, calls as u64, text))
}

pub fn exit(ended: Ended) -> Exit {
    match ended {
        Ended::Code(code) => Exit::Code(code),
        Ended::Signal(number) => Exit::Signal {
            number,
            name: signal_name(number),
        },
    }
}

/// What is left to do: to write it.
pub struct Finished {
    report: Report,
    acted: Vec<acting::Sum>,
    recorded: Option<Recorded>,
    /// A private broker takes its pairs of probes away when it is dropped.
    _source: Option<Arc<Source>>,
}

impl Finished {
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What its open calls wait for, which was asked behind it. None: there was no answer.
    pub fn open_calls_tell(&mut self, calls: Option<&OpenCalls>) {
        let Some(calls) = calls else {
            let unexplained = calls_unexplained(self.report.open_calls.len());
            self.report.notes.extend(unexplained);
            return;
        };
        self.report.open_calls = calls.list();
        self.report.verdict = verdict_of(&self.report);
    }

    /// What came of the conditions, in the order in which they were given.
    pub fn acted(&self) -> &[acting::Sum] {
        &self.acted
    }

    pub fn write(self, output: Output, args: &ReportArgs) -> Result<(), Error> {
        match self.recorded {
            Some(recorded) => recorded.write(self.report, args.quiet),
            None => output.write(self.report, args),
        }
    }
}
