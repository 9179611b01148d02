// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of this crate reads foreign bytes? For the checks in fuzz/, which reach
//! it here.

use crate::acting::Plan;
use crate::args::{Cli, Verb};
use crate::collect::{Collected, memory_check};
use crate::session;
use clap::Parser;
use debox_abi::*;
use debox_report::{Capture, Report, RunFacts, RunKind};
use std::fs::File;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// A broker's reply to a request of type `asked`, which came with so many
/// descriptors; the error is what the user is told.
pub fn reply(asked: u32, bytes: &[u8], descriptors: usize) -> Result<debox_reply, String> {
    let reply = debox_reply::read_from(bytes).ok_or("cut off")?;
    debox_client::reply_judge("/broker".as_ref(), asked, &reply, descriptors)
        .map_err(|error| error.to_string())?;
    Ok(reply)
}

/// The text that SITE_STACKS gives.
pub fn site_stacks(text: &str) -> Vec<(u32, Vec<String>)> {
    debox_client::site_stacks_parse(text)
}

/// The report of what one process handed over: its message and its memory.
pub fn collected(packet: &debox_collect, memory: &File) -> Result<Report, String> {
    memory_check(memory, packet)?;
    // Counters of an hour: more than that is not believed.
    let now = Instant::now();
    let mut collected = Collected::since(now.checked_sub(HOUR).unwrap_or(now));
    collected.fold_memory(4711, memory, packet.stripes, None)?;
    let snapshot = debox_client::Snapshot {
        account: debox_account::zeroed_box(),
        cpus: debox_account_cpu::zeroed_slice(1),
        sites: debox_site::zeroed_slice(1),
        features: DEBOX_FEATURE_SLEEPS | DEBOX_FEATURE_RUNQ,
        stale: false,
        details: None,
        objects: None,
        on_cpu: None,
        kernel_functions: Default::default(),
        lives: None,
        site_stacks: Vec::new(),
        chain_sums: Vec::new(),
        chains: Vec::new(),
    };
    let mut facts = RunFacts::new(RunKind::Run, Capture::Wrap, vec!["program".into()]);
    facts.pids.push(4711);
    facts.wall_ns = 1_000_000;
    let name = |process: usize, address: u64| format!("{process}+{address:#x}");
    Ok(session::report(
        &snapshot,
        Some(&collected.counts),
        facts,
        Some(&name),
        &session::Extra::new(0),
    ))
}

/// A command line without its first word; what it plans to act on.
pub fn command_line(words: &[&str]) -> Result<(), String> {
    let cli = Cli::try_parse_from([&["debox"], words].concat())
        .map_err(|error| error.render().to_string())?;
    let act = match &cli.command {
        Verb::Run(args) => &args.capture.act,
        Verb::Attach(args) => &args.capture.act,
        _ => return Ok(()),
    };
    // The log is a file that would be made.
    let act = crate::acting::ActArgs {
        lasting: false,
        log: None,
        ..act.clone()
    };
    Plan::new(&act, true, None)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// The functions that patterns to trace choose.
pub fn functions_choose(patterns: &str, names: &[&str]) -> Vec<String> {
    debox_probe::functions_choose(patterns, names.iter().copied())
}
