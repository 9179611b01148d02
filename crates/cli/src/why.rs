// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox why`: what does a process wait for right now?

use crate::args::WhyArgs;
use crate::error::Error;
use crate::output;
use crate::source::may_load;
use debox_labels::Rules;
use debox_why::{Options, Target, TextOptions};

/// A number is a process or a thread, whatever is called so.
fn target(text: &str) -> Target {
    match text.parse() {
        Ok(number) => Target::Number(number),
        Err(_) => Target::Name(text.to_owned()),
    }
}

pub fn why(args: WhyArgs) -> Result<i32, Error> {
    let targets: Vec<Target> = args.targets.iter().map(|text| target(text)).collect();
    let own: Vec<_> = args.labels.into_iter().collect();
    let answer = debox_why::look(
        &targets,
        Options {
            kernel: may_load(),
            rules: Rules::load(&own)?,
        },
    )?;
    let text = if args.result.json {
        output::json(&answer)
    } else {
        let options = TextOptions {
            width: args.result.width(),
            all: args.all,
        };
        debox_why::render(&answer, &options)
    };
    output::deliver(&args.result, &text)?;
    Ok(0)
}
