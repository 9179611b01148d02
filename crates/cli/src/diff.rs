// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox diff`: what changed between two runs?

use crate::args::ResultArgs;
use crate::error::Error;
use crate::output;
use crate::report::load;
use clap::Args;
use debox_output::printable_bytes;
use debox_report::{DiffOptions, diff, render_diff};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Say what changed between two runs, and how sure that is
///
/// A and B are recordings (`debox run -o FILE.debox`) or JSON reports
/// (--json); A is the run before. Every change comes with an interval, from
/// the histories of the recordings where there are any. Runs that cannot be
/// compared are refused.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  debox run -o before.debox -- ./server-bench
  debox run -o after.debox -- ./server-bench
  debox diff before.debox after.debox
  debox diff --json a.debox b.debox | jq '.changes[].text'

The exit status is 0 whether or not something changed; 125 when the runs cannot
be compared.")]
pub struct DiffArgs {
    /// The run before
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// The run after
    #[arg(value_name = "B")]
    pub b: PathBuf,
    #[command(flatten)]
    pub result: ResultArgs,
    /// Write only the first N lines of each part
    #[arg(long, value_name = "N", value_parser = crate::args::rows)]
    pub top: Option<usize>,
    /// Confidence of the intervals and of all verdicts together, in percent
    #[arg(long, value_name = "PERCENT", default_value = "95", value_parser = percent)]
    pub confidence: f64,
    /// Pass over changes smaller than this, in percent
    #[arg(long, value_name = "PERCENT", default_value = "2", value_parser = percent)]
    pub min_change: f64,
    /// Pass over changes that make up less of the time of all calls, in percent
    #[arg(long, value_name = "PERCENT", default_value = "0.1", value_parser = percent)]
    pub min_effect: f64,
    /// Compare runs that were not taken in the same way
    #[arg(long)]
    pub force: bool,
    /// Seed of the random numbers that the intervals are drawn with
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(n) if (0.0..100.0).contains(&n) => Ok(n / 100.0),
        _ => Err("a number of percent, from 0 to below 100".into()),
    }
}

pub fn run(args: DiffArgs) -> Result<i32, Error> {
    if args.confidence < 0.5 {
        return Err(Error::Usage(
            "--confidence below 50 % would call noise a change: use 90, 95 or 99".into(),
        ));
    }
    let (a, b) = (load(&args.a)?, load(&args.b)?);
    let options = DiffOptions {
        confidence: args.confidence,
        change_min: args.min_change,
        effect_min: args.min_effect,
        force: args.force,
        seed: args.seed,
    };
    let found = diff(&a, &b, &options).map_err(|why| {
        Error::Usage(format!(
            "{} and {} cannot be compared: {why}; take both runs in the same way, or compare them nevertheless with --force",
            printable_bytes(args.a.as_os_str().as_bytes()),
            printable_bytes(args.b.as_os_str().as_bytes())
        ))
    })?;
    let text = if args.result.json {
        output::json(&found)
    } else {
        render_diff(&found, args.top)
    };
    output::deliver(&args.result, &text)?;
    Ok(0)
}
