// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox run`: what does a command spend its system calls on?

use crate::args::RunArgs;
use crate::capture::{Capture, Target, Want};
use crate::error::Error;
use crate::spliced;
use debox_command::Inherited;

pub fn run(args: RunArgs, mut inherited: Inherited) -> Result<i32, Error> {
    let target = Target::command(&args.command)?;
    let want = Want::of_command(&args.capture)?;
    let output = want.output(&args.capture.report)?;
    let without = spliced::Without::of(&args.capture, &want, true);
    let opened = match Capture::open(want, &target) {
        Err(why) if without.allows_command(&why) => {
            return spliced::run(&args, target, output, why, inherited);
        }
        opened => opened?,
    };
    let mut capture = match opened.start(target, &inherited) {
        Err(why @ Error::Taken { .. }) if without.allows_command(&why) => {
            let again = Target::command(&args.command)?;
            return spliced::run(&args, again, output, why, inherited);
        }
        started => started?,
    };
    inherited.release_descriptors(output.uses_stdout());
    let until = args.capture.duration.map(|longest| capture.since + longest);
    let ended = capture.command_wait(until)?;
    if let Err(error) = capture.finish().write(output, &args.capture.report) {
        // The command's own status still matters more than ours.
        crate::complain(&error);
    }
    Ok(ended.end_as())
}
