// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox top`: what is a program's time going into, now?

use crate::args::TopArgs;
use crate::attach::{Target, command_line};
use crate::error::Error;
use crate::launch;
use crate::open_call::OpenCalls;
use crate::output::{ascii, color};
use crate::session;
use crate::source::{Source, SourceOptions};
use debox_abi::{
    DEBOX_DETAIL_CALL_SITES, DEBOX_DETAIL_THREADS, DEBOX_REQ_BOUNDARY, DEBOX_REQ_DETAILS,
    DEBOX_REQ_NOFOLLOW, DEBOX_REQ_USER_STACKS, debox_request,
};
use debox_client::{AccountView, Connection};
use debox_command::{Child, Ended, Environment, Inherited, Program, Signals, Start, signal_name};
use debox_report::{Capture, Report, RunFacts, RunKind};
use debox_top::{End, Host, Settings, View, Woken};
use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A command that was asked to end gets this long.
const END_WAIT: Duration = Duration::from_secs(3);
/// Processes whose threads are looked up in /proc for the calls they are in.
const PROCESSES_MAX: usize = 256;
/// Columns of a frame of plain text where nobody says how many.
const BATCH_WIDTH: usize = 120;

struct Live<'a> {
    account: &'a AccountView,
    signals: &'a Signals,
    targets: Vec<Target>,
    /// The command, when it is our child.
    child: Option<Child>,
    command: Vec<String>,
    since: Instant,
    open_calls: OpenCalls,
    follow: bool,
    ended: Option<String>,
}

/// A process and, where children are followed, theirs.
fn family(pid: i32, follow: bool) -> Vec<u32> {
    let mut found = vec![pid as u32];
    let mut next = 0;
    while follow && next < found.len() && found.len() < PROCESSES_MAX {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", found[next]));
        next += 1;
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            for child in children.unwrap_or_default().split_ascii_whitespace() {
                if let Ok(child) = child.parse() {
                    found.push(child);
                }
            }
        }
    }
    found
}

impl Host for Live<'_> {
    fn sample(&mut self) -> Report {
        let pids: Vec<u32> = self
            .targets
            .iter()
            .filter(|target| !target.ended)
            .flat_map(|target| family(target.pid, self.follow))
            .collect();
        self.open_calls.sample(pids.into_iter());
        // Names that are not there yet stand in the next frame.
        let snapshot = self.account.snapshot();
        let facts = RunFacts {
            kind: if self.child.is_some() {
                RunKind::Run
            } else {
                RunKind::Attach
            },
            command: self.command.clone(),
            pids: self.targets.iter().map(|t| t.pid as u32).collect(),
            capture: Capture::Boundary,
            wall_ns: u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX),
            exit: None,
            features: 0,
            stale: false,
            threads_running: None,
            open_calls: self.open_calls.list(),
            notes: Vec::new(),
        };
        session::report(&snapshot, None, facts, None)
    }

    fn ended(&mut self) -> Option<String> {
        if self.ended.is_some() {
            return self.ended.clone();
        }
        self.targets.iter_mut().for_each(Target::look);
        if let Some(child) = &mut self.child {
            self.ended = child.ended().map(|ended| match ended {
                Ended::Signal(signal) => format!("ended by {}", signal_name(signal)),
                Ended::Code(code) => format!("ended, status {code}"),
            });
        } else if self.targets.iter().all(|target| target.ended) {
            self.ended = Some("ended".into());
        }
        if self.ended.is_none() && self.account.stale() {
            self.ended = Some("the broker is gone".into());
        }
        self.ended.clone()
    }

    fn wait(&mut self, input: bool, until: Instant) -> Woken {
        let mut woken = Woken::default();
        let stdin = io::stdin();
        let mut list: Vec<BorrowedFd<'_>> = Vec::new();
        if input {
            list.push(stdin.as_fd());
        }
        // What has ended is readable for ever.
        if self.ended.is_none() {
            list.extend(
                self.targets
                    .iter()
                    .filter(|target| !target.ended)
                    .map(Target::handle),
            );
        }
        self.signals.wait(&list, Some(until));
        while let Some(arrived) = self.signals.next() {
            match arrived.signal {
                libc::SIGWINCH => woken.resized = true,
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => {
                    woken.stop = Some(arrived.signal);
                }
                _ => {}
            }
        }
        if input {
            let mut poll = libc::pollfd {
                fd: stdin.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid entry, no waiting.
            woken.input = unsafe { libc::poll(&mut poll, 1, 0) } > 0;
            if poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                // The terminal is gone, and there may be no signal for it.
                woken.stop = Some(libc::SIGHUP);
            }
        }
        woken.ended = self.ended().is_some();
        woken
    }

    fn owns_command(&self) -> bool {
        self.child.is_some()
    }
}

fn command_start(
    args: &TopArgs,
    command: &Program,
    inherited: &Inherited,
    connection: &Connection,
) -> Result<Child, Error> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(Error::system("opening /dev/null"))?;
    let output = match &args.command_output {
        None => null
            .try_clone()
            .map_err(Error::system("opening /dev/null"))?,
        Some(path) => debox_output::create(path).map_err(|source| Error::Output {
            path: path.clone(),
            source,
        })?,
    };
    // It must not write over the view, nor read its keys.
    let (null, output) = (null.as_fd(), output.as_fd());
    let environment = Environment::inherited();
    let start = Start {
        streams: [Some(null), Some(output), Some(output)],
        ..Start::new(command, &environment, inherited)
    };
    launch::start(&start, connection, !args.no_follow, |_| Ok(()))
}

fn watch(targets: &mut [Target], connection: &Connection, follow: bool) -> Result<(), Error> {
    let flags = if follow { 0 } else { DEBOX_REQ_NOFOLLOW };
    for target in targets {
        if let Err(error) = connection.ask(&debox_request::watch(target.pid, flags)) {
            target.look();
            if !target.ended {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Ends the command and waits for that a little.
fn command_end(child: &mut Child) {
    if child.end(&[(libc::SIGTERM, END_WAIT)]).is_none() {
        crate::say(&format!(
            "the command (process {}) does not end on SIGTERM and runs on, unwatched",
            child.pid()
        ));
    }
}

pub fn top(args: TopArgs, inherited: Inherited) -> Result<i32, Error> {
    if args.batch.is_none() && !debox_top::is_terminal() {
        return Err(Error::Usage(
            "top needs a terminal: standard input, standard output, or $TERM is none. For frames of plain \
             text use --batch N"
                .into(),
        ));
    }
    let command = if args.command.is_empty() {
        None
    } else {
        Some(Program::resolve(&args.command)?)
    };
    let mut pids = args.pids.clone();
    pids.sort_unstable();
    pids.dedup();
    let mut targets = pids
        .iter()
        .map(|pid| Target::open(*pid))
        .collect::<Result<Vec<_>, _>>()?;
    let words: Vec<String> = match &command {
        Some(_) => args
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        None if pids.len() == 1 => command_line(pids[0]),
        None => Vec::new(),
    };
    let signals = Signals::open()?;
    let source = Source::choose(&SourceOptions {
        socket: args.broker.socket.clone(),
        labels: args.broker.labels.clone(),
        vmlinux: args.broker.vmlinux.clone(),
    })?;
    let connection = source.connect()?;
    let mut account =
        connection.account(DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS | DEBOX_REQ_USER_STACKS)?;
    if let Some(details) = &mut account.details {
        details
            .control
            .flags_set(DEBOX_DETAIL_THREADS | DEBOX_DETAIL_CALL_SITES);
    }
    let mut child = None;
    match &command {
        Some(command) => {
            let started = command_start(&args, command, &inherited, &connection)?;
            targets = vec![Target::open(started.pid())?];
            child = Some(started);
        }
        None => watch(&mut targets, &connection, !args.no_follow)?,
    }
    let title = match (&child, pids.len()) {
        (Some(child), _) => format!("{} (pid {})", words.join(" "), child.pid()),
        (None, 1) => format!("{} (pid {})", words.join(" "), pids[0]),
        (None, n) => format!("{n} processes"),
    };
    let settings = Settings {
        title,
        interval: args.interval,
        view: args.view.first().copied().unwrap_or(View::Calls),
        totals: args.totals,
        color: color(args.color, io::stdout().is_terminal()),
        ascii: ascii(),
    };
    let mut live = Live {
        account: &account,
        signals: &signals,
        targets,
        child,
        command: words,
        since: Instant::now(),
        open_calls: OpenCalls::default(),
        follow: !args.no_follow,
        ended: None,
    };
    let end = match args.batch {
        Some(frames) => {
            let views = if args.view.is_empty() {
                vec![View::Calls, View::Blocking]
            } else {
                args.view.clone()
            };
            let width = std::env::var("COLUMNS")
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(BATCH_WIDTH);
            let mut out = io::stdout().lock();
            debox_top::batch(&mut live, settings, &views, frames, width, &mut out)
                .map(|signal| signal.map_or(End::Quit { end_command: true }, End::Signal))
        }
        None => debox_top::run(&mut live, settings),
    };
    let child = live.child.take().filter(|_| live.ended.is_none());
    drop(account);
    drop(connection);
    drop(source);
    let end = end.map_err(|source| Error::Output {
        path: "standard output".into(),
        source,
    });
    if let Some(mut child) = child {
        // Whoever ends top by a signal, or cannot be shown anything, is not
        // asked: the command ends, too.
        if !matches!(end, Ok(End::Quit { end_command: false })) {
            command_end(&mut child);
        } else {
            crate::say(&format!(
                "the command runs on as process {}, unwatched",
                child.pid()
            ));
        }
    }
    Ok(match end? {
        End::Quit { .. } => 0,
        End::Signal(signal) => Ended::Signal(signal).end_as(),
    })
}
