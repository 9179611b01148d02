// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox attach`: what do running processes spend their system calls on?

use crate::acting::{self, Actor, Plan};
use crate::args::AttachArgs;
use crate::error::Error;
use crate::open_call::OpenCalls;
use crate::output::Output;
use crate::record::{self, Recorded, Watch};
use crate::session::{self, Extra};
use crate::source::{Source, SourceOptions};
use crate::trace::TraceView;
use debox_abi::{DEBOX_REQ_NOFOLLOW, debox_event_call, debox_request};
use debox_command::{Inherited, Signals};
use debox_record::monotonic_ns;
use debox_report::{Capture, Note, NoteKind, RunFacts, RunKind};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How often threads are looked at, to tell how long they have been in a call.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// How long `--trace learn` waits for calls.
const LEARN_LONGEST: Duration = Duration::from_secs(10);

fn threads_of(pid: u32) -> Vec<u32> {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

pub(crate) struct Target {
    pub(crate) pid: i32,
    /// Readable when the process has ended.
    handle: OwnedFd,
    pub(crate) ended: bool,
}

impl Target {
    pub(crate) fn open(pid: i32) -> Result<Self, Error> {
        if pid == std::process::id() as i32 {
            return Err(Error::Usage("debox does not watch itself".into()));
        }
        // SAFETY: no memory involved; the descriptor (close-on-exec by nature)
        // is owned at once.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::ESRCH) => Error::Usage(format!("there is no process {pid}")),
                Some(libc::EINVAL) => Error::Usage(format!(
                    "{pid} is a thread, not a process: name its process"
                )),
                _ => Error::System {
                    action: "opening the process",
                    source,
                },
            });
        }
        // SAFETY: as above.
        let handle = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self {
            pid,
            handle,
            ended: false,
        })
    }

    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub(crate) fn look(&mut self) {
        let mut poll = libc::pollfd {
            fd: std::os::fd::AsRawFd::as_raw_fd(&self.handle),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid entry, no waiting.
        self.ended |= unsafe { libc::poll(&mut poll, 1, 0) } > 0;
    }
}

pub(crate) fn command_line(pid: i32) -> Vec<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = words
        .split(|b| *b == 0)
        .filter(|w| !w.is_empty())
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect();
    if !words.is_empty() {
        return words;
    }
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    vec![comm.trim_end().to_owned()]
}

pub fn attach(args: AttachArgs, _inherited: Inherited) -> Result<i32, Error> {
    let mut pids = args.pids.clone();
    pids.sort_unstable();
    pids.dedup();
    let mut targets = pids
        .iter()
        .map(|pid| Target::open(*pid))
        .collect::<Result<Vec<_>, _>>()?;
    let plan = Plan::new(&args.act, args.broker.labels.as_deref())?;
    if plan.as_ref().is_some_and(Plan::dumps_core) {
        acting::cores_check_attached(&pids)?;
    }
    let commands: Vec<Vec<String>> = pids.iter().map(|pid| command_line(*pid)).collect();
    let recording = record::wanted(&args.report, &args.record, &args.trace)?;
    let output = match recording {
        Some(_) => Output::stderr(),
        None => Output::open(&args.report)?,
    };
    let signals = Signals::open()?;
    let source = Source::choose(&SourceOptions {
        socket: args.broker.socket.clone(),
        labels: args.broker.labels.clone(),
        vmlinux: args.broker.vmlinux.clone(),
    })?;
    let connection = source.connect()?;
    let mut facts = RunFacts {
        kind: RunKind::Attach,
        command: if commands.len() == 1 {
            commands.into_iter().next().unwrap_or_default()
        } else {
            Vec::new()
        },
        pids: pids.iter().map(|pid| *pid as u32).collect(),
        capture: Capture::Boundary,
        wall_ns: 0,
        exit: None,
        features: 0,
        stale: false,
        threads_running: None,
        open_calls: Vec::new(),
        notes: Vec::new(),
    };
    let writer = recording
        .as_ref()
        .map(|path| record::create(path, facts.kind, facts.capture, &facts.command, &facts.pids))
        .transpose()?;
    let (request, details) = record::details(&args.details, recording.is_some());
    let request = request | plan.as_ref().map_or(0, Plan::request_flags);
    let mut account = connection.account(request)?;
    if let Some(view) = &mut account.details {
        view.control.flags_set(details);
    }
    let actor = plan
        .map(|plan| Actor::install(plan, &mut account))
        .transpose()?;
    let trace = match args.trace.learner()? {
        Some(learner) => {
            let pids = targets.iter().map(|target| target.pid as u32);
            learner.begin(&pids.flat_map(threads_of).collect::<Vec<_>>())?;
            let learned = learner.run(&AtomicBool::new(false), Some(LEARN_LONGEST))?;
            Some(TraceView::open_learned(&connection, &args.trace, &learned)?)
        }
        None => (args.trace.wanted())
            .then(|| TraceView::open(&connection, &args.trace))
            .transpose()?,
    };
    let flags = if args.no_follow {
        DEBOX_REQ_NOFOLLOW
    } else {
        0
    };
    let mut threads = 0;
    let since = Instant::now();
    for target in &mut targets {
        match connection.ask(&debox_request::watch(target.pid, flags)) {
            Ok((reply, _)) => threads += reply.threads,
            Err(error) => {
                target.look();
                if !target.ended {
                    return Err(error.into());
                }
                facts.notes.push(Note {
                    kind: NoteKind::Other,
                    count: 1,
                    time_ns: None,
                    text: format!("process {} ended before it could be watched", target.pid),
                });
            }
        }
    }
    if !args.report.quiet && !args.report.json {
        let until = match args.duration {
            Some(duration) => format!("for {} s", duration.as_secs_f64()),
            None => "until it ends or Ctrl-C".into(),
        };
        crate::say(&format!(
            "watching {threads} {} of {} {until}",
            if threads == 1 { "thread" } else { "threads" },
            if pids.len() == 1 {
                format!("process {}", pids[0])
            } else {
                format!("{} processes", pids.len())
            },
        ));
    }

    let start_ns = monotonic_ns().saturating_sub(session::nanos(since.elapsed()));
    let watch = Watch::start(
        account,
        writer,
        actor,
        facts.clone(),
        !args.no_follow,
        start_ns,
    )?;
    let deadline = args.duration.map(|duration| since + duration);
    let mut open_calls = OpenCalls::default();
    let mut next_sample = since;
    loop {
        let now = Instant::now();
        let stopped = std::iter::from_fn(|| signals.next()).any(|s| {
            matches!(
                s.signal,
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT
            )
        });
        targets.iter_mut().for_each(Target::look);
        if stopped
            || targets.iter().all(|t| t.ended)
            || deadline.is_some_and(|d| now >= d)
            || watch.stale()
        {
            break;
        }
        if now >= next_sample {
            open_calls.sample(targets.iter().filter(|t| !t.ended).map(|t| t.pid as u32));
            next_sample = Instant::now() + SAMPLE_EVERY;
        }
        let live: Vec<_> = targets
            .iter()
            .filter(|t| !t.ended)
            .map(|t| t.handle.as_fd())
            .collect();
        signals.wait(
            &live,
            Some(deadline.map_or(next_sample, |d| d.min(next_sample))),
        );
    }
    let wall_ns = session::nanos(since.elapsed());
    let (mut account, mut recorded, actor) = watch.finish();
    let mut conditions = Vec::new();
    if let Some(actor) = actor {
        conditions = actor.conditions();
        let late = &mut |event: &debox_event_call| {
            if let Some(recorded) = &mut recorded {
                recorded.event(event);
            }
        };
        facts.notes.extend(actor.finish(&mut account, late));
    }
    let snapshot = session::snapshot_last(&account, &connection, recorded.is_some());
    open_calls.sample(targets.iter().filter(|t| !t.ended).map(|t| t.pid as u32));
    let traced = trace.map(|trace| trace.finish(&connection)).transpose()?;
    drop(account);
    drop(connection);
    let names = source.notes();
    let _source = traced.is_some().then_some(source);

    facts.wall_ns = wall_ns;
    facts.open_calls = open_calls.list();
    let slow = recorded.as_ref().map(Recorded::slow).unwrap_or_default();
    let extra = Extra {
        slow: &slow,
        start_ns,
        conditions: &conditions,
        symbols: true,
    };
    let mut report = session::report_with(&snapshot, None, facts, None, &extra);
    session::names_explain(&mut report, names);
    report.trace = traced;
    match recorded {
        Some(recorded) => recorded.write(report, args.report.quiet)?,
        None => output.write(report, &args.report)?,
    }
    Ok(0)
}
