// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is loaded before anybody is watched, and how is the target put under
//! watch?

use super::target::Process;
use super::watched::{self, Watch, Watched};
use super::{Base, Capture, Target, Want, launch, wrap};
use crate::acting::{self, Actor, Plan};
use crate::args::Way;
use crate::collect::Collector;
use crate::error::Error;
use crate::learn::{Learned, Learner};
use crate::machine::MachineWatch;
use crate::mapped_command::MappedCommand;
use crate::open_call::OpenCalls;
use crate::session;
use crate::source::Source;
use crate::spliced::Splicer;
use crate::trace::{TraceView, learned_too_late};
use crate::whom::Whom;
use debox_abi::{
    DEBOX_DETAIL_CALL_SITES, DEBOX_DETAIL_STACKS, DEBOX_MSG_SELECT, DEBOX_REQ_DESCENDANTS,
    DEBOX_REQ_DETAILS, DEBOX_REQ_NOFOLLOW, DEBOX_REQ_USER_STACKS, Pod, debox_reply, debox_request,
};
use debox_client::{AccountView, Connection};
use debox_command::{Child, Environment, Inherited, Program, Signals, Start, Streams};
use debox_record::monotonic_ns;
use debox_report::{self as report, Note, NoteKind, RunFacts, RunKind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long `--trace learn` waits for the calls of running processes.
const LEARN_LONGEST: Duration = Duration::from_secs(10);

/// What was put under watch at the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    pub threads: u32,
    pub processes: u64,
}

impl Bound {
    fn of(reply: &debox_reply) -> Self {
        Self {
            threads: reply.threads,
            processes: reply.processes,
        }
    }

    fn add(&mut self, more: Self) {
        self.threads = self.threads.saturating_add(more.threads);
        self.processes = self.processes.saturating_add(more.processes);
    }
}

/// Everything is loaded, nobody is watched.
pub struct Opened {
    signals: Arc<Signals>,
    source: Arc<Source>,
    connection: Arc<Connection>,
    watched: Watched,
    learner: Option<Learner>,
    environment: Environment,
    collector: Option<Collector>,
    splicer: Option<Arc<Splicer>>,
    want: Want,
}

/// A thread that learns a command's functions while it runs, and traces them.
pub(super) struct Learning {
    pub(super) over: Arc<AtomicBool>,
    pub(super) thread: JoinHandle<Result<(), Error>>,
}

/// Opens the account; details that nobody asked for by name are done without
/// where the broker cannot give them, which is the note.
fn account_open(
    connection: &Connection,
    want: &Want,
) -> Result<(AccountView, Option<Note>), Error> {
    match connection.account(want.request, want.hz) {
        Err(debox_client::Error::Refused { errno, text, .. })
            if errno == libc::EOPNOTSUPP
                && want.details == 0
                && want.plan.is_none()
                && matches!(want.way, Way::Boundary | Way::Wrap) =>
        {
            let plain = want.request & !(DEBOX_REQ_DETAILS | DEBOX_REQ_USER_STACKS);
            let why = format!("who held locks and who woke threads is not known: {text}");
            Ok((
                connection.account(plain, 0)?,
                Some(Note::new(NoteKind::Other, 0, why)),
            ))
        }
        opened => Ok((opened?, None)),
    }
}

fn facts_of(want: &Want, target: &Target<'_>, without: Option<Note>) -> RunFacts {
    let capture = match want.way {
        Way::Boundary => report::Capture::Boundary,
        Way::Wrap => report::Capture::Wrap,
        Way::Splice => report::Capture::Splice,
        Way::Sleeps => report::Capture::Sleeps,
    };
    let mut facts = RunFacts::new(RunKind::Attach, capture, target.words());
    facts.irq = want.irq;
    facts.notes.extend(without);
    match target {
        Target::Command { .. } => {
            facts.kind = RunKind::Run;
            facts.notes.extend(session::not_followed(want.follow));
        }
        Target::Processes(list) => facts.pids = list.iter().map(|p| p.pid as u32).collect(),
        Target::Whom(_) => {}
    }
    facts
}

fn splicer_open(want: &Want) -> Option<JoinHandle<Result<Splicer, Error>>> {
    let (follow, sample) = (want.follow, want.sample);
    matches!(want.way, Way::Splice)
        .then(|| std::thread::spawn(move || Splicer::open(follow, sample)))
}

impl Opened {
    /// Everything that takes time and can fail, before anybody is watched.
    pub(super) fn new(want: Want, target: &Target<'_>) -> Result<Self, Error> {
        // What cannot be spliced waits at its beginning until they are loaded; a process that runs
        // would go on without them.
        let runs = !matches!(target, Target::Command { .. });
        let boundary_later = match want.way {
            Way::Boundary => false,
            Way::Splice => !runs,
            Way::Wrap | Way::Sleeps => true,
        };
        let signals = Arc::new(Signals::open()?);
        // Beside what the broker loads: it waits for the disk.
        let splicer = splicer_open(&want);
        let source = Arc::new(Source::choose(&want.broker, boundary_later)?);
        Self::of(&Base { signals, source }, want, target, splicer)
    }

    /// The same with a broker that is there already.
    pub(super) fn with(base: &Base, want: Want, target: &Target<'_>) -> Result<Self, Error> {
        let splicer = splicer_open(&want);
        Self::of(base, want, target, splicer)
    }

    fn of(
        Base { signals, source }: &Base,
        mut want: Want,
        target: &Target<'_>,
        splicer: Option<JoinHandle<Result<Splicer, Error>>>,
    ) -> Result<Self, Error> {
        if want.plan.as_ref().is_some_and(Plan::dumps_core) {
            match target {
                Target::Command { .. } => acting::cores_check_run()?,
                Target::Processes(list) => {
                    let pids: Vec<i32> = list.iter().map(|process| process.pid).collect();
                    acting::cores_check_attached(&pids)?;
                }
                Target::Whom(whom) => {
                    let pids: Vec<i32> = whom.pids().iter().map(|pid| *pid as i32).collect();
                    acting::cores_check_attached(&pids)?;
                }
            }
        }
        let connection = Arc::new(source.connect()?);
        let opened = splicer.map(|thread| match thread.join() {
            Ok(opened) => opened,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let mut splicer = match opened {
            Some(Err(why)) if want.is_default && !want.audits() && want.sample.is_none() => {
                crate::say(&format!(
                    "calls are counted at the kernel's boundary, where all processes pay for it: {why}"
                ));
                want.at_boundary();
                None
            }
            opened => opened.transpose()?,
        };
        let mapped = match target {
            Target::Command { program, .. } if want.request & DEBOX_REQ_USER_STACKS != 0 => {
                let images = splicer.iter().flat_map(|s| s.images_of(program.path()));
                let mapped = MappedCommand::map(program.path());
                Some(images.fold(mapped, |mapped, image| mapped.and(&image)))
            }
            _ => None,
        };
        let (mut view, without) = account_open(&connection, &want)?;
        drop(mapped);
        if let Some(view) = &mut view.details {
            view.control.flags_set(want.details);
        }
        let actor = want
            .plan
            .take()
            .map(|plan| Actor::install(plan, &mut view, connection.clone()));
        let actor = actor.transpose()?;
        if let Some(splicer) = &mut splicer {
            splicer.looked_at(&mut view, &connection);
            if want.details & (DEBOX_DETAIL_CALL_SITES | DEBOX_DETAIL_STACKS) != 0 {
                (0..debox_splice::NRS).for_each(|nr| splicer.ends_show_always(nr, 0));
            }
            for (key, from_ns) in actor.iter().flat_map(Actor::calls_asked) {
                splicer.ends_show_always(key, from_ns);
            }
        }
        let splicer = splicer.map(Arc::new);
        let facts = facts_of(&want, target, without);
        let mut watched = Watched::new(view, actor, facts, splicer.clone());
        if want.keeps_slow {
            watched.slow_keep();
        }
        let learner = want.trace.learner()?;
        if want.trace.wanted() && learner.is_none() {
            let _ = watched
                .trace
                .set(TraceView::open(&connection, &want.trace)?);
        }
        let mut environment = Environment::inherited();
        let collector = match want.way {
            Way::Wrap => Some(wrap::prepare(
                &mut environment,
                source,
                want.call_sites,
                want.irq,
            )?),
            Way::Boundary | Way::Splice | Way::Sleeps => None,
        };
        Ok(Self {
            signals: signals.clone(),
            source: source.clone(),
            connection,
            watched,
            learner,
            environment,
            collector,
            splicer,
            want,
        })
    }

    /// Puts the target under watch; a command starts.
    pub fn start(mut self, target: Target<'_>, inherited: &Inherited) -> Result<Capture, Error> {
        // As late as can be: it takes the place of an earlier recording.
        let writer = match &self.want.recording {
            Some(path) => Some(watched::writer(path, &self.watched.facts)?),
            None => None,
        };
        let (mut child, mut learning, mut bound) = (None, None, Bound::default());
        let mut whom = None;
        let since;
        let processes = match target {
            Target::Command {
                program, streams, ..
            } => {
                let started = self.command_start(&program, streams, inherited)?;
                since = started.since;
                learning = self
                    .learner
                    .take()
                    .map(|learner| self.learn_beside(learner));
                let process = Process::open(started.pid())?;
                child = Some(started);
                vec![process]
            }
            Target::Processes(mut list) => {
                self.learn(&list)?;
                if let Some(splicer) = &self.splicer {
                    splicer.attach_prepare(&list);
                }
                since = Instant::now();
                bound = match self.splicer.clone() {
                    Some(splicer) => self.processes_splice(&splicer, &mut list)?,
                    None => self.processes_watch(&mut list)?,
                };
                list
            }
            Target::Whom(asked) => {
                if self.learner.is_some() {
                    return Err(Error::Usage(
                        "--trace learn looks at processes that are named: give -p".into(),
                    ));
                }
                since = Instant::now();
                bound = self.whom_watch(&asked)?;
                whom = Some(asked);
                vec![]
            }
        };
        self.watched.start_ns = monotonic_ns().saturating_sub(session::nanos(since.elapsed()));
        // Whom nobody named has no numbers.
        let machine = match &whom {
            Some(whom) => MachineWatch::of_machine(whom.args.all),
            None => MachineWatch::start(self.watched.facts.pids.clone()),
        };
        let mut capture = Capture {
            along: !self.watched.actor.as_ref().is_some_and(Actor::stops),
            conditions: self.watched.conditions(),
            facts: self.watched.facts.clone(),
            start_ns: self.watched.start_ns,
            trace: self.watched.trace.clone(),
            watch: Watch::start(self.watched, writer, self.want.follow)?,
            signals: self.signals,
            source: self.source,
            connection: self.connection,
            learning,
            collector: self.collector,
            splicer: self.splicer,
            audit: self.want.audits(),
            call_sites: self.want.call_sites,
            processes,
            child,
            bound,
            whom,
            follow: self.want.follow,
            open_calls: OpenCalls::default(),
            left_out: 0,
            machine,
            titles: RefCell::default(),
            next_look: since,
            since,
            threads: 0,
        };
        if capture.child.is_none() {
            capture.look(capture.follow);
        }
        Ok(capture)
    }

    fn command_start(
        &mut self,
        program: &Program,
        streams: Streams<'_>,
        inherited: &Inherited,
    ) -> Result<Child, Error> {
        if let Some(signal) = self.signals.wants_end() {
            // Ctrl-C while the programs were loaded: nothing has started yet.
            return Err(Error::Interrupted { signal });
        }
        let start = Start {
            streams,
            ..Start::new(program, &self.environment, inherited)
        };
        let learner = self.learner.as_ref();
        let control = (self.watched.view.details.as_mut()).map(|view| &mut view.control);
        let started = launch::start(
            &start,
            &self.connection,
            self.want.follow,
            self.splicer.as_deref(),
            |pid| learner.map_or(Ok(()), |learner| learner.begin(&[pid])),
            || {
                if let Some(control) = control {
                    control.begins_set(monotonic_ns());
                }
            },
        )?;
        self.watched.facts.pids = vec![started.pid() as u32];
        Ok(started)
    }

    /// Finds the functions that the calls of running processes pass, and traces
    /// them.
    fn learn(&mut self, list: &[Process]) -> Result<(), Error> {
        if let Some(learner) = self.learner.take() {
            let threads = list.iter().flat_map(Process::threads);
            learner.begin(&threads.collect::<Vec<_>>())?;
            let learned = learner.run(&AtomicBool::new(false), Some(LEARN_LONGEST))?;
            let view = TraceView::open_learned(&self.connection, &self.want.trace, &learned)?;
            let _ = self.watched.trace.set(view);
        }
        Ok(())
    }

    /// The same beside a command.
    fn learn_beside(&self, learner: Learner) -> Learning {
        let over = Arc::new(AtomicBool::new(false));
        let (ended, connection) = (over.clone(), self.connection.clone());
        let (trace, args) = (self.watched.trace.clone(), self.want.trace.clone());
        let thread = std::thread::spawn(move || {
            let learned: Learned = learner.run(&ended, None)?;
            if ended.load(Ordering::Relaxed) {
                return Err(Error::CannotWatch {
                    why: learned_too_late(&learned),
                });
            }
            let _ = trace.set(TraceView::open_learned(&connection, &args, &learned)?);
            Ok(())
        });
        Learning { over, thread }
    }

    fn whom_watch(&mut self, whom: &Whom) -> Result<Bound, Error> {
        let request = whom.request(self.want.follow)?;
        let (reply, _) = self
            .connection
            .ask_bytes(DEBOX_MSG_SELECT, request.as_bytes())?;
        Ok(Bound::of(&reply))
    }

    fn processes_watch(&mut self, list: &mut [Process]) -> Result<Bound, Error> {
        let flags = if self.want.follow {
            DEBOX_REQ_DESCENDANTS
        } else {
            DEBOX_REQ_NOFOLLOW
        };
        let mut bound = Bound::default();
        for process in list {
            match self
                .connection
                .ask(&debox_request::watch(process.pid, flags))
            {
                Ok((reply, _)) => bound.add(Bound::of(&reply)),
                Err(error) => self.not_watched(process, error)?,
            }
        }
        Ok(bound)
    }

    /// It matters unless it has ended.
    fn not_watched(
        &mut self,
        process: &mut Process,
        error: debox_client::Error,
    ) -> Result<(), Error> {
        process.look();
        if !process.ended {
            return Err(error.into());
        }
        let text = format!("process {} ended before it could be watched", process.pid);
        let note = Note::new(NoteKind::Other, 1, text);
        self.watched.facts.notes.push(note);
        Ok(())
    }

    /// Each is put under watch where it stands still, just before it goes on with code that counts.
    fn processes_splice(
        &mut self,
        splicer: &Splicer,
        list: &mut [Process],
    ) -> Result<Bound, Error> {
        let (mut bound, mut refused) = (Bound::default(), HashMap::new());
        // Children are spliced one by one, too.
        let flags = if self.want.follow {
            0
        } else {
            DEBOX_REQ_NOFOLLOW
        };
        splicer.attach(list, &mut |pid| match self
            .connection
            .ask(&debox_request::watch(pid, flags))
        {
            Ok((reply, _)) => bound.add(Bound::of(&reply)),
            Err(error) => {
                refused.insert(pid, error);
            }
        })?;
        for process in list {
            if let Some(error) = refused.remove(&process.pid) {
                self.not_watched(process, error)?;
            }
        }
        Ok(bound)
    }
}
