// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be said on the command line of `debox kern`?

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::way::Way;
use debox_command::duration;

/// What is plotted, and what is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Entries per second; alone it attaches to the entry only, which is cheaper
    Calls,
    /// Threads inside: thread-seconds per second
    #[default]
    Concurrency,
    /// Time from entry to return: median, 99th percentile, longest
    Latency,
    /// Threads inside the function itself, not in measured functions below
    #[value(name = "self")]
    SelfTime,
    /// Threads inside that are off the CPU
    OffCpu,
}

impl Metric {
    pub fn title(self) -> &'static str {
        match self {
            Metric::Calls => "calls per second",
            Metric::Concurrency => "threads inside",
            Metric::Latency => "99th percentile of latency",
            Metric::SelfTime => "threads inside, self",
            Metric::OffCpu => "threads inside, off the CPU",
        }
    }

    pub fn next(self) -> Metric {
        match self {
            Metric::Calls => Metric::Concurrency,
            Metric::Concurrency => Metric::Latency,
            Metric::Latency => Metric::SelfTime,
            Metric::SelfTime => Metric::OffCpu,
            Metric::OffCpu => Metric::Calls,
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("a percentage, such as 10 or 2.5".into()),
    }
}

/// Insert metrics into the running kernel: which functions, how often, how long
///
/// RESOURCE is what is measured:
///   FUNCTION            a kernel function: vfs_read, ext4:ext4_lookup, 0xffffffff81234567
///   'PATTERN*'          all functions that match
///   FUNCTION+0x1f       one instruction of it (calls only)
///   CALL()              a system call at its tracepoints: openat()
/// and may be restricted by itself: vfs_read@pid=1234,call=read. Of several
/// functions with one name, FUNCTION@2 is the second and FUNCTION@all all.
#[derive(Parser, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  debox kern vfs_read vfs_write                  watch two functions in the terminal
  debox kern 'ext4_*' -m calls -d 10s            which of them are called at all
  debox kern do_sys_openat2 -p 1234 --html o.html
  debox kern --auto openat -- ./proxy            where does its open spend the time?
  debox kern --list 'jbd2_*'                     what would be attached, and how
  debox kern --list vfs_open                     its instructions that call, and whom

In the terminal: a add, d remove, m metric, Enter refine (its callees), A refine
to the end, p pause, w write HTML, q quit.

Root, or CAP_BPF, CAP_PERFMON and CAP_SYSLOG. What this kernel refuses is said,
with the reason; system calls and --auto (sampled) work without kprobes."
)]
pub struct Args {
    /// What to measure
    #[arg(value_name = "RESOURCE")]
    pub resources: Vec<String>,
    /// Find out where the time of RESOURCE goes: measure its callees, descend
    /// into the one that dominates, and so on. Without RESOURCE, of the system
    /// call that takes the most
    #[arg(long)]
    pub auto: bool,
    /// What to plot
    #[arg(short, long, value_enum, default_value_t)]
    pub metric: Metric,

    /// Only these processes
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), help_heading = "Restrictions")]
    pub pids: Vec<u32>,
    /// Only processes in this cgroup (v2), or below it
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Restrictions",
        hide_short_help = true
    )]
    pub cgroup: Option<PathBuf>,
    /// Only inside of this system call
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Restrictions",
        hide_short_help = true
    )]
    pub call: Option<String>,
    /// Only in calls made from this place: PROGRAM:FUNCTION+0x1f, or
    /// PROGRAM:0xADDRESS, of a call instruction
    #[arg(
        long,
        value_name = "PLACE",
        help_heading = "Restrictions",
        hide_short_help = true
    )]
    pub from: Option<String>,
    /// Children of these processes, and of CMD, are not included
    #[arg(long, help_heading = "Restrictions", hide_short_help = true)]
    pub no_follow: bool,

    /// Measure for so long, then report and end
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Time between two points of the plot
    #[arg(short, long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub interval: Duration,
    /// Lines of text instead of the terminal display (default if standard
    /// output is no terminal)
    #[arg(long, help_heading = "Output")]
    pub text: bool,
    /// Write the result as JSON, at the end
    #[arg(long, help_heading = "Output", conflicts_with = "text")]
    pub json: bool,
    /// Write text or JSON to FILE (- is standard output)
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Write a page with plots, complete in one file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Only the report at the end
    #[arg(short, long, help_heading = "Output", hide_short_help = true)]
    pub quiet: bool,

    /// With --auto: stop when no callee has this share of the whole
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "10", help_heading = "Refinement", hide_short_help = true)]
    pub share: f64,
    /// With --auto: at most so many steps down
    #[arg(
        long,
        value_name = "N",
        default_value_t = 24,
        help_heading = "Refinement",
        hide_short_help = true
    )]
    pub depth: usize,
    /// With --auto: follow so many ways down, the heaviest first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        help_heading = "Refinement",
        hide_short_help = true
    )]
    pub branches: usize,
    /// With --auto: take samples of stacks, also where functions can be measured
    #[arg(long, help_heading = "Refinement", hide_short_help = true)]
    pub sampled: bool,

    /// List what RESOURCE stands for and how it would be attached, and end
    #[arg(long, conflicts_with_all = ["auto", "duration", "html", "command"])]
    pub list: bool,
    /// How to attach to functions (default: what suits best)
    #[arg(
        long,
        value_name = "WAY",
        value_enum,
        help_heading = "Limits",
        hide_short_help = true
    )]
    pub way: Option<Way>,
    /// Attach to at most so many functions at the same time
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=20000), help_heading = "Limits", hide_short_help = true)]
    pub max_functions: u32,
    /// Take a function out again when measuring it takes more than this share
    /// of one CPU, by estimate
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "30", help_heading = "Limits", hide_short_help = true)]
    pub max_overhead: f64,
    /// Room for so many threads inside of measured functions at the same time
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(64..=1_048_576), help_heading = "Limits", hide_short_help = true)]
    pub max_threads: u32,

    /// Run CMD, and measure it and its children only
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn numbers_are_checked() {
        for bad in [
            &["kern", "-d", "0", "f"][..],
            &["kern", "-d", "nan", "f"],
            &["kern", "-p", "0", "f"],
            &["kern", "--share", "101", "f"],
            &["kern", "--max-functions", "0", "f"],
            &["kern", "-m", "speed", "f"],
            &["kern", "--text", "--json", "f"],
            &["kern", "--list", "--html", "x.html", "f"],
            &["kern", "--list", "-d", "1s", "f"],
            &["kern", "--list", "f", "--", "ls"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let args = Args::try_parse_from([
            "kern", "--auto", "openat", "-d", "1.5s", "-i", "200ms", "--share", "5%", "-p", "3,4",
            "--", "ls", "--json",
        ])
        .unwrap();
        assert!(args.auto && !args.json);
        assert_eq!(args.pids, [3, 4]);
        assert_eq!(args.duration, Some(Duration::from_millis(1500)));
        assert_eq!(args.interval, Duration::from_millis(200));
        assert_eq!(args.command, ["ls", "--json"]);
    }
}
