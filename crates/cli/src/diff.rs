// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox diff`: what changed between two runs?

use crate::args::DiffArgs;
use crate::error::Error;
use crate::output;
use crate::report::load;
use debox_output::printable_bytes;
use debox_report::{DiffOptions, diff, render_diff};
use std::os::unix::ffi::OsStrExt;

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
