// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox attach`: what do running processes spend their system calls on?

use crate::args::AttachArgs;
use crate::capture::{Capture, Target, Want};
use crate::error::Error;
use debox_command::Inherited;
use std::time::Instant;

pub fn attach(args: AttachArgs, inherited: Inherited) -> Result<i32, Error> {
    let target = Target::processes(&args.pids)?;
    let want = Want::new(&args.capture, false)?;
    let output = want.output(&args.capture.report)?;
    let mut capture = Capture::open(want, &target)?.start(target, &inherited)?;
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
    capture.finish().write(output, &args.capture.report)?;
    Ok(0)
}

fn watching_say(args: &AttachArgs, capture: &Capture) {
    let until = match args.capture.duration {
        Some(duration) => format!("for {} s", duration.as_secs_f64()),
        None => "until it ends or Ctrl-C".into(),
    };
    let threads = capture.threads;
    crate::say(&format!(
        "watching {threads} {} of {} {until}",
        if threads == 1 { "thread" } else { "threads" },
        match capture.pids() {
            [pid] => format!("process {pid}"),
            pids => format!("{} processes", pids.len()),
        },
    ));
}
