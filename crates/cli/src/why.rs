// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox why`: what does a process wait for right now?

use crate::args::WhyArgs;
use crate::error::Error;
use crate::output;
use crate::source::may_load;
use debox_labels::Rules;
use debox_report::OpenCall;
use debox_why::{Options, Target, TextOptions};

/// A number is a process or a thread, whatever is called so.
fn target(text: &str) -> Target {
    match text.parse() {
        Ok(number) => Target::Number(number),
        Err(_) => Target::Name(text.to_owned()),
    }
}

fn rules_of_here() -> Rules {
    // The broker says what is wrong with them.
    Rules::load(&[]).unwrap_or_else(|_| Rules::builtin())
}

/// Says of calls that are open what they wait for.
pub fn explain(calls: &mut [OpenCall]) {
    if calls.is_empty() {
        return;
    }
    let threads: Vec<(u32, u32)> = calls.iter().map(|call| (call.pid, call.tid)).collect();
    let options = Options {
        kernel: may_load(),
        rules: rules_of_here(),
    };
    let answer = debox_why::look_at(&threads, options);
    for call in calls {
        let told = answer.threads.iter().find(|thread| thread.tid == call.tid);
        // It may have gone on meanwhile.
        let told = told.filter(|thread| thread.call.as_ref() == Some(&call.call));
        if let Some(thread) = told {
            call.why.clone_from(&thread.sentence);
        }
    }
}

/// For the live view: one thread, or all of these processes.
pub fn of_now(thread: Option<u32>, pids: &[u32]) -> String {
    let numbers = thread.map_or_else(|| pids.to_vec(), |tid| vec![tid]);
    let targets: Vec<Target> = numbers.into_iter().map(Target::Number).collect();
    let options = Options {
        kernel: may_load(),
        rules: rules_of_here(),
    };
    match debox_why::look(&targets, options) {
        Ok(answer) => debox_why::render(&answer, &TextOptions::default()),
        Err(error) => debox_output::printable(&error.to_string()),
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
            ascii: output::ascii(),
        };
        debox_why::render(&answer, &options)
    };
    output::deliver(&args.result, &text)?;
    Ok(0)
}
