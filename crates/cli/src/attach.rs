// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox attach`: what do running processes spend their system calls on?

use crate::ahead::Ahead;
use crate::args::AttachArgs;
use crate::capture::{Capture, Target, Want};
use crate::error::Error;
use crate::spliced;
use debox_command::Inherited;
use std::time::Instant;

pub fn attach(args: AttachArgs, inherited: Inherited) -> Result<i32, Error> {
    let target = match args.whom.any() {
        true => Target::whom(&args.whom)?,
        false => Target::processes(&args.pids)?,
    };
    args.capture
        .capture_way
        .unwrap_or_default()
        .check_live(!args.whom.any())?;
    let want = Want::new(&args.capture)?;
    let output = want.output(&args.capture.report)?;
    let without = spliced::Without::of(&args.capture, &want, false);
    let ahead = Ahead::begin();
    let opened = match Capture::open(want, &target) {
        Err(why) if without.allows(&why) => {
            drop(ahead);
            return spliced::attach(&args, target, output, why);
        }
        opened => opened?,
    };
    let mut capture = opened.start(target, &inherited)?;
    drop(ahead);
    if !args.capture.report.quiet && !args.capture.report.json {
        watching_say(&args, &capture);
    }
    let until = args.capture.duration.map(|longest| capture.since + longest);
    loop {
        let tick = capture.tick(None, until);
        let over = until.is_some_and(|until| Instant::now() >= until);
        if tick.stop.is_some() || over || capture.ended().is_some() {
            break;
        }
    }
    let ahead = Ahead::begin();
    let finished = capture.finish();
    drop(ahead);
    finished.write(output, &args.capture.report)?;
    Ok(0)
}

fn watching_say(args: &AttachArgs, capture: &Capture) {
    let until = match (args.capture.duration, &capture.whom) {
        (Some(duration), _) => format!("for {} s", duration.as_secs_f64()),
        (None, None) => "until it ends or Ctrl-C".into(),
        (None, Some(_)) => "until Ctrl-C".into(),
    };
    let (threads, processes) = (capture.bound.threads, capture.bound.processes);
    let later = !args.capture.no_follow;
    if let (Some(whom), 0) = (&capture.whom, threads) {
        let text = whom.text();
        crate::say(&match later {
            true => format!(
                "no process that you may watch fits {text} now; waiting {until} for those that come"
            ),
            false => {
                format!("no process that you may watch fits {text}, and --no-follow waits for none")
            }
        });
        return;
    }
    crate::say(&format!(
        "watching {threads} {} of {}{} {until}",
        if threads == 1 { "thread" } else { "threads" },
        match (capture.pids(), processes) {
            ([pid], 0 | 1) => format!("process {pid}"),
            ([pid], n) => format!("process {pid} and {} below it", n - 1),
            (_, 1) => "1 process".into(),
            (_, n) => format!("{n} processes"),
        },
        if capture.whom.is_some() && later {
            ", and those that come,"
        } else {
            ""
        }
    ));
}
