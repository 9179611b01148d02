// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox report`: what does a recording say?

use crate::args::ShowArgs;
use crate::error::Error;
use crate::output::Output;
use debox_report::{Report, find_findings, find_trends};

/// The report of a recording or of a file that --json wrote, with all that is
/// made anew at each reading: the tests for trends and the findings of the
/// version that reads, not of the one that wrote.
pub fn load(path: &std::path::Path) -> Result<Report, Error> {
    let mut report = debox_record::read(path)?;
    report.trends = find_trends(&report.history, &report.gauges);
    report.findings = find_findings(&report);
    Ok(report)
}

pub fn report(args: ShowArgs) -> Result<i32, Error> {
    // The text is written as well when it is given a place.
    let text = !args.export.any() || args.report.output.is_some() || args.report.json;
    let report = load(&args.file)?;
    args.export.write(&report)?;
    if !text {
        return Ok(0);
    }
    let output = Output::open_or_stdout(&args.report)?;
    output.write(report, &args.report)?;
    Ok(0)
}
