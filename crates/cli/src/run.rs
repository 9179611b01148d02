// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox run`: what does a command spend its system calls on?

use crate::acting::{self, Actor, Plan};
use crate::args::RunArgs;
use crate::call_site::{self, Modules};
use crate::collect::{Collected, Collector};
use crate::error::Error;
use crate::launch;
use crate::mapped_command::MappedCommand;
use crate::output::Output;
use crate::record::{self, Recorded, Watch};
use crate::session::{self, Extra};
use crate::source::{Source, SourceOptions};
use crate::trace::{TraceView, learned_too_late};
use debox_abi::{
    DEBOX_ENV_COLLECT, DEBOX_ENV_SOCKET, DEBOX_REQ_DETAILS, DEBOX_REQ_USER_STACKS, debox_event_call,
};
use debox_command::{Ended, Environment, Inherited, Library, Program, Signals, Start, signal_name};
use debox_record::monotonic_ns;
use debox_report::{Capture, Exit, Note, NoteKind, RunFacts, RunKind};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

pub const WRAP_LIBRARY: Library = Library {
    name: "libdebox-wrap.so",
    variable: "DEBOX_WRAP_LIBRARY",
};

pub fn run(args: RunArgs, mut inherited: Inherited) -> Result<i32, Error> {
    let command = Program::resolve(&args.command)?;
    let plan = Plan::new(&args.act, args.broker.labels.as_deref())?;
    if args.wrap && plan.is_some() {
        return Err(Error::Usage(
            "--on needs calls to be counted in the kernel: leave out --wrap".into(),
        ));
    }
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
    let (request, details) = if args.wrap {
        (0, 0)
    } else {
        let (request, details) = record::details(&args.details, recording.is_some());
        (
            request | plan.as_ref().map_or(0, Plan::request_flags),
            details,
        )
    };
    let mapped = (request & DEBOX_REQ_USER_STACKS != 0).then(|| MappedCommand::map(command.path()));
    // Details that nobody asked for by name are done without where the broker
    // cannot give them.
    let (account, without) = match connection.account(request) {
        Err(debox_client::Error::Refused { errno, text, .. })
            if errno == libc::EOPNOTSUPP && details == 0 && plan.is_none() =>
        {
            let plain = request & !(DEBOX_REQ_DETAILS | DEBOX_REQ_USER_STACKS);
            (connection.account(plain)?, Some(text))
        }
        opened => (opened?, None),
    };
    let mut account = account;
    drop(mapped);
    if let Some(view) = &mut account.details {
        view.control.flags_set(details);
    }
    if plan.as_ref().is_some_and(Plan::dumps_core) {
        acting::cores_check_run()?;
    }
    let actor = plan
        .map(|plan| Actor::install(plan, &mut account))
        .transpose()?;
    let stops = actor.as_ref().is_some_and(Actor::stops);

    let learner = args.trace.learner()?;
    let trace = (args.trace.wanted() && learner.is_none())
        .then(|| TraceView::open(&connection, &args.trace))
        .transpose()?;

    let mut facts = RunFacts {
        kind: RunKind::Run,
        command: args
            .command
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect(),
        pids: Vec::new(),
        capture: if args.wrap {
            Capture::Wrap
        } else {
            Capture::Boundary
        },
        wall_ns: 0,
        exit: None,
        features: 0,
        stale: false,
        threads_running: None,
        open_calls: Vec::new(),
        notes: Vec::new(),
    };
    if let Some(why) = without {
        facts.notes.push(Note {
            kind: NoteKind::Other,
            count: 0,
            time_ns: None,
            text: format!("who held locks and who woke threads is not known: {why}"),
        });
    }
    if args.no_follow {
        facts.notes.push(Note {
            kind: NoteKind::Other,
            count: 0,
            time_ns: None,
            text: "children of the command are not included (--no-follow)".into(),
        });
    }

    let mut environment = Environment::inherited();
    let mut collector = None;
    if args.wrap {
        let library = WRAP_LIBRARY.find()?;
        collector = Some(wrap_prepare(
            &mut environment,
            &library,
            &source,
            args.details.call_sites,
        )?);
    }
    if let Some(signal) = signals.wants_end() {
        // Ctrl-C while the programs were loaded: nothing has started yet.
        return Ok(Ended::Signal(signal).end_as());
    }
    // As late as can be: it takes the place of an earlier recording.
    let writer = recording
        .as_ref()
        .map(|path| record::create(path, facts.kind, facts.capture, &facts.command, &[]))
        .transpose()?;

    let mut child = launch::start(
        &Start::new(&command, &environment, &inherited),
        &connection,
        !args.no_follow,
        |pid| match &learner {
            Some(learner) => learner.begin(&[pid]),
            None => Ok(()),
        },
    )?;
    inherited.release_descriptors(output.uses_stdout());
    facts.pids = vec![child.pid() as u32];
    let start_ns = monotonic_ns().saturating_sub(session::nanos(child.since.elapsed()));
    let watch = Watch::start(
        account,
        writer,
        actor,
        facts.clone(),
        !args.no_follow,
        start_ns,
    )?;
    let over = AtomicBool::new(false);
    let (ended, learned) = std::thread::scope(|scope| {
        let learning = learner.map(|learner| {
            scope.spawn(|| {
                let learned = learner.run(&over, None)?;
                if over.load(Ordering::Relaxed) {
                    return Err(Error::CannotWatch {
                        why: learned_too_late(&learned),
                    });
                }
                TraceView::open_learned(&connection, &args.trace, &learned)
            })
        });
        let ended = child.wait(&signals, !stops, None);
        over.store(true, Ordering::Relaxed);
        (ended, learning.map(|thread| thread.join()))
    });
    // Without a deadline it is over when wait() returns.
    let ended = ended?.unwrap_or(Ended::Code(0));
    let trace = match learned {
        None => trace,
        Some(Ok(Ok(view))) => Some(view),
        Some(Ok(Err(error))) => {
            crate::complain(&error);
            None
        }
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    };
    facts.wall_ns = session::nanos(child.since.elapsed());

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
    let collected: Option<Collected> = collector.map(Collector::finish);
    let traced = trace.map(|trace| trace.finish(&connection));
    // The kernel side lets go before anything is printed; but for pairs of
    // probes, which take seconds.
    drop(account);
    drop(connection);
    let names = source.notes();
    let source = traced.is_some().then_some(source);

    facts.exit = Some(match ended {
        Ended::Code(code) => Exit::Code(code),
        Ended::Signal(number) => Exit::Signal {
            number,
            name: signal_name(number),
        },
    });
    facts.threads_running = Some(session::threads_running(&snapshot));
    let mut report = match &collected {
        None => {
            let slow = recorded.as_ref().map(Recorded::slow).unwrap_or_default();
            let extra = Extra {
                slow: &slow,
                start_ns,
                conditions: &conditions,
                symbols: true,
            };
            session::report_with(&snapshot, None, facts, None, &extra)
        }
        Some(collected) => {
            let name = |process: usize, address: u64| {
                call_site::name(
                    Modules::holding(&collected.modules, process, address),
                    address,
                )
            };
            let names: Option<&dyn Fn(usize, u64) -> String> = if args.details.call_sites {
                Some(&name)
            } else {
                None
            };
            session::report(&snapshot, Some(&collected.counts), facts, names)
        }
    };
    session::names_explain(&mut report, names);
    match traced {
        Some(Ok(trace)) => report.trace = Some(trace),
        Some(Err(error)) => crate::complain(&error),
        None => {}
    }
    let written = match recorded {
        Some(recorded) => recorded.write(report, args.report.quiet),
        None => output.write(report, &args.report),
    };
    if let Err(error) = written {
        // The command's own status still matters more than ours.
        crate::complain(&error);
    }
    drop(source);
    Ok(ended.end_as())
}

/// The interposer, its broker and its collector for the command's environment.
fn wrap_prepare(
    environment: &mut Environment,
    library: &std::path::Path,
    source: &Source,
    call_sites: bool,
) -> Result<Collector, Error> {
    let collector = Collector::start(call_sites)?;
    environment.preload(library, false)?;
    environment.set(DEBOX_ENV_SOCKET, source.socket().as_os_str().as_bytes())?;
    environment.set(DEBOX_ENV_COLLECT, collector.path().as_os_str().as_bytes())?;
    Ok(collector)
}
