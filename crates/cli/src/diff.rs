// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox diff`: what changed between two runs?

use crate::args::DiffArgs;
use crate::error::Error;
use crate::export::write_form;
use crate::output;
use crate::report::load;
use debox_output::printable_bytes;
use debox_report::{DiffOptions, diff, render_diff, render_diff_html};
use std::os::unix::ffi::OsStrExt;

pub fn run(args: DiffArgs) -> Result<i32, Error> {
    if args.confidence < 0.5 {
        return Err(Error::Arguments(
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
    if let Some(path) = &args.html {
        write_form(path, render_diff_html(&found).as_bytes())?;
        // The text is written as well when it is given a place.
        if args.result.output.is_none() && !args.result.json {
            return Ok(0);
        }
    }
    let text = if args.result.json {
        output::json(&found)
    } else {
        render_diff(&found, args.top)
    };
    output::deliver(&args.result, &text)?;
    Ok(0)
}
