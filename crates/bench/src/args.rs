// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be said to `debox bench`?

use crate::os::Suite;
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Measure what the operating system charges here, and what DeBox adds
#[derive(Parser, Debug)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Os(OsArgs),
    #[command(name = "self")]
    SelfCost(SelfArgs),
    Select(debox_select::BenchArgs),
    /// One invocation of a suite: started by `bench os` itself
    #[command(hide = true)]
    Worker {
        order: String,
    },
    /// The plain server of `bench select`
    #[command(hide = true)]
    Serve(debox_select::ServeArgs),
    /// The clients of `bench select`
    #[command(hide = true)]
    Load(debox_select::LoadArgs),
    /// The measured program of `bench self`
    #[command(hide = true)]
    Calls {
        order: String,
    },
}

/// Where results come from and go to.
#[derive(clap::Args, Debug, Default)]
pub struct OutputArgs {
    /// In seconds instead of minutes, with wider intervals
    #[arg(long)]
    pub quick: bool,
    /// So many rounds, however long they take (default: until the time is over)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000), hide_short_help = true)]
    pub rounds: Option<u32>,
    /// Write the result to FILE (- is standard output)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Write a page with charts to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the charts (SVG), each in a file of its own, into this directory
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub figures: Option<PathBuf>,
    /// Measure nothing: show this earlier result (JSON)
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    pub load: Option<PathBuf>,
    /// Compare with this earlier result (JSON), of this or another machine
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// A name for this run, for comparisons
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub label: Option<String>,
    /// When to use colours: auto, always, never
    #[arg(long, value_name = "WHEN", default_value = "auto",
          value_parser = ["auto", "always", "never"], hide_short_help = true)]
    pub color: String,
    /// Say nothing about the progress
    #[arg(short, long, hide_short_help = true)]
    pub quiet: bool,
}

/// Measure what the operating system charges: clocks, calls, switches, faults,
/// file reads, descriptors
///
/// Needs no privilege; as root (or with a running deboxd) each result has
/// DeBox's own account beside it. What could not be measured is listed with
/// the reason. Nothing is left behind, also after Ctrl-C.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = "\
Examples:
  debox bench os --quick
  debox bench os --json -o here.json --html here.html
  debox bench os --load here.json --compare there.json
  debox bench os --only trivial,switches")]
pub struct OsArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    /// Only these suites
    #[arg(long, value_name = "SUITES", value_enum, value_delimiter = ',')]
    pub only: Vec<Suite>,
    /// Make the file for the reads in this directory (it never has a name)
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub dir: Option<PathBuf>,
    /// Use the broker at this socket for the accounts
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub socket: Option<PathBuf>,
    /// Leave DeBox's accounts out
    #[arg(long, hide_short_help = true)]
    pub no_account: bool,
    /// Measure on this CPU (default: the last one that may be used)
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub cpu: Option<usize>,
}

/// Measure what DeBox costs here, and what other tools cost for the same job
///
/// All ways take turns in one run: nothing, nothing again (what these two
/// differ by is noise), the kernel's floor, DeBox's captures, and strace, perf,
/// bcc, bpftrace, ltrace where they are installed. What it may cost at most
/// stands beside what it costs. Without root, or where a tool refuses, the rest
/// is measured, and what was left out is listed with the reason.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = "\
Examples:
  debox bench self --quick
  debox bench self --only boundary,sleeps
  debox bench self --only calls,peers --json -o self.json")]
pub struct SelfArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    /// Only these parts
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Of whole programs only these: tar-1, tar-10, build, storm, start, redis, fio
    #[arg(
        long,
        value_name = "PROGRAMS",
        value_delimiter = ',',
        hide_short_help = true
    )]
    pub programs: Vec<String>,
    /// Write the shortest table, as Markdown: for a README
    #[arg(long, conflicts_with_all = ["json", "html", "compare"], hide_short_help = true)]
    pub markdown: bool,
    /// Put temporary files in this directory
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub dir: Option<PathBuf>,
}

/// What of DeBox's own cost is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Single calls: the paper's Tables 1 and 2
    Calls,
    /// Whole programs: the paper's Table 3
    Macro,
    /// Other tools, beside either
    Peers,
    /// A call by wrap capture, and what that consists of
    Wrap,
    /// A call by boundary capture, and others' calls, above the kernel's floor
    Boundary,
    /// A sleep, and others' switches, above the kernel's floor
    Sleeps,
    /// A web server's requests
    Nginx,
    /// What DeBox has in memory
    Memory,
}
