// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox top`: what is a program's time going into, now?

use crate::ahead::Ahead;
use crate::args::{TopArgs, Way};
use crate::capture::{Capture, Target, Want, is_readable};
use crate::error::Error;
use crate::output::{ascii, color};
use crate::whom::WhomArgs;
use debox_command::{Child, Ended, Inherited};
use debox_report::Report;
use debox_top::{End, Host, Settings, View, Woken};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A command that was asked to end gets this long.
const END_WAIT: Duration = Duration::from_secs(3);
/// Columns of a frame of plain text where nobody says how many.
const BATCH_WIDTH: usize = 120;

struct Live {
    capture: Capture,
    follow: bool,
    ended: Option<String>,
    /// Not longer than that.
    until: Option<Instant>,
}

impl Host for Live {
    fn sample(&mut self) -> Report {
        self.capture.look(self.follow);
        self.capture.report()
    }

    fn ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = self.capture.ended();
        }
        self.ended.clone()
    }

    fn wait(&mut self, input: bool, until: Instant) -> Woken {
        let stdin = io::stdin();
        let until = self.until.map_or(until, |end| end.min(until));
        let tick = self.capture.tick(input.then(|| stdin.as_fd()), Some(until));
        let (readable, gone) = if input {
            is_readable(&stdin)
        } else {
            (false, false)
        };
        Woken {
            resized: tick.resized,
            input: readable,
            // The terminal is gone, and there may be no signal for it.
            stop: tick.stop.or(gone.then_some(libc::SIGHUP)),
            ended: self.ended().is_some(),
            over: self.until.is_some_and(|end| Instant::now() >= end),
        }
    }

    fn owns_command(&self) -> bool {
        self.capture.child.is_some()
    }

    fn why(&mut self, thread: Option<u32>) -> String {
        let pids = match (&self.capture.whom, thread) {
            (Some(whom), None) => whom.pids(),
            _ => self.capture.pids().to_vec(),
        };
        crate::why::of_now(thread, &pids)
    }
}

fn null_open() -> Result<File, Error> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(Error::system("opening /dev/null"))
}

/// Where the command's output goes.
fn command_output(args: &TopArgs) -> Result<File, Error> {
    let Some(path) = &args.command_output else {
        return null_open();
    };
    debox_output::create(path).map_err(|source| Error::Output {
        path: path.clone(),
        source,
    })
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

/// Processes that nobody named: which they are is the first question.
fn of_many(args: &TopArgs) -> bool {
    args.pids.is_empty() && args.command.is_empty()
}

fn settings(args: &TopArgs, title: String) -> Settings {
    Settings {
        title,
        interval: args.interval,
        view: args.view.first().copied().unwrap_or(match of_many(args) {
            true => View::Processes,
            false if args.capture_way == Some(Way::Sleeps) => View::Blocking,
            false => View::Calls,
        }),
        totals: args.totals,
        color: color(args.color, io::stdout().is_terminal()),
        ascii: ascii(),
    }
}

/// Shows it until somebody has seen enough.
fn show(args: &TopArgs, live: &mut Live, settings: Settings) -> Result<End, Error> {
    let shown = match args.batch {
        Some(frames) => {
            let views = match &args.view[..] {
                [] if of_many(args) => vec![View::Processes, View::Blocking],
                [] if args.capture_way == Some(Way::Sleeps) => vec![View::Blocking],
                [] => vec![View::Calls, View::Blocking],
                views => views.to_vec(),
            };
            let width = std::env::var("COLUMNS").ok();
            let width = width.and_then(|text| text.parse().ok());
            let mut out = io::stdout().lock();
            let width = width.unwrap_or(BATCH_WIDTH);
            debox_top::batch(live, settings, &views, frames, width, &mut out)
                .map(|signal| signal.map_or(End::Quit { end_command: true }, End::Signal))
        }
        None => debox_top::run(live, settings),
    };
    shown.map_err(|source| Error::Output {
        path: "standard output".into(),
        source,
    })
}

pub fn top(args: TopArgs, inherited: Inherited) -> Result<i32, Error> {
    if args.batch.is_none() && !debox_top::is_terminal() {
        return Err(Error::Usage(
            "top needs a terminal: standard input, standard output, or $TERM is none. For frames of plain \
             text use --batch N"
                .into(),
        ));
    }
    args.capture_way
        .unwrap_or_default()
        .check_live(!of_many(&args))?;
    // The command must not write over the view, nor read its keys.
    let (null, output) = (null_open()?, command_output(&args)?);
    let target = if of_many(&args) {
        let whole = WhomArgs::whole_machine();
        Target::whom(if args.whom.any() { &args.whom } else { &whole })?
    } else if args.command.is_empty() {
        Target::processes(&args.pids)?
    } else {
        let streams = [null.as_fd(), output.as_fd(), output.as_fd()].map(Some);
        Target::command(&args.command)?.with_streams(streams)
    };
    let words = target.words().join(" ");
    // A command would keep the weight.
    let ahead = args.command.is_empty().then(Ahead::begin);
    let capture = Capture::open(Want::live(&args)?, &target)?.start(target, &inherited)?;
    drop(ahead);
    let until = args.duration.map(|longest| capture.since + longest);
    let title = match capture.pids() {
        _ if args.whom.any() && !args.whom.all => format!("processes: {words}"),
        [] => "the whole machine".into(),
        [pid] => format!("{words} (pid {pid})"),
        pids => format!("{} processes", pids.len()),
    };
    let mut live = Live {
        capture,
        follow: !args.no_follow,
        ended: None,
        until,
    };
    let end = show(&args, &mut live, settings(&args, title));
    let child = live.capture.child.take();
    let running = child.filter(|_| live.ended.is_none());
    drop(live);
    match running {
        // Whoever ends top by a signal, or cannot be shown anything, is not
        // asked: the command ends, too.
        Some(child) if matches!(end, Ok(End::Quit { end_command: false })) => {
            let pid = child.pid();
            crate::say(&format!("the command runs on as process {pid}, unwatched"));
        }
        Some(mut child) => command_end(&mut child),
        None => {}
    }
    Ok(match end? {
        End::Quit { .. } => 0,
        End::Signal(signal) => Ended::Signal(signal).end_as(),
    })
}
