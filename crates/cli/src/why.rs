// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox why`: what does a process wait for right now?

use crate::args::WhyArgs;
use crate::error::Error;
use crate::output;
use crate::source::may_load;
use crate::whom::Whom;
use debox_labels::Rules;
use debox_report::OpenCall;
use debox_why::{Neighbour, Options, Target, TextOptions, Thread};

/// A number is a process or a thread, whatever is called so.
fn target(text: &str) -> Target {
    match text.parse() {
        Ok(number) => Target::Number(number),
        Err(_) => Target::Name(text.to_owned()),
    }
}

/// Whether the kernel's picture is of use: its numbers are those of the first PID namespace.
fn kernel_tells() -> bool {
    may_load() && debox_probe::first_pid_namespace()
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
        kernel: kernel_tells(),
        rules: rules_of_here(),
    };
    let answer = debox_why::look_at(&threads, options);
    for call in calls {
        let told = answer.threads.iter().find(|thread| thread.tid == call.tid);
        // It may have gone on meanwhile.
        let told = told.filter(|thread| thread.call.as_ref() == Some(&call.call));
        if let Some(thread) = told {
            call.why.clone_from(&thread.sentence);
            call.held_up = held_up(thread).unwrap_or_default();
        }
    }
}

/// That somebody else has what it needs to go on; not that it waits for data or for children,
/// which may well be all that it is there for.
fn held_up(thread: &Thread) -> Option<String> {
    let has_it = |of: &Neighbour| matches!(of.relation, "holder" | "reader" | "server");
    if thread.deadlocked || (!thread.idle && thread.waits_for.iter().any(has_it)) {
        return Some(format!("{}.", thread.sentence));
    }
    let means = thread.means.as_ref().filter(|means| !means.rests)?;
    Some(means.why.clone())
}

/// For the live view: one thread, or all of these processes.
pub fn of_now(thread: Option<u32>, pids: &[u32]) -> String {
    let numbers = thread.map_or_else(|| pids.to_vec(), |tid| vec![tid]);
    let targets: Vec<Target> = numbers.into_iter().map(Target::Number).collect();
    let options = Options {
        kernel: kernel_tells(),
        rules: rules_of_here(),
    };
    match debox_why::look(&targets, options) {
        Ok(answer) => debox_why::render(&answer, &TextOptions::default()),
        Err(error) => debox_output::printable(&error.to_string()),
    }
}

pub fn why(args: WhyArgs) -> Result<i32, Error> {
    let targets: Vec<Target> = if args.whom.any() {
        let whom = Whom::of(&args.whom)?;
        let pids = whom.pids();
        if pids.is_empty() {
            return Err(Error::Usage(format!("no process fits {}", whom.text())));
        }
        // As an ordinary user: one's own. Who is named is an error instead.
        let told = |pid: &u32| kernel_tells() || debox_why::may_read(*pid);
        let seen: Vec<u32> = pids.iter().copied().filter(told).collect();
        if seen.is_empty() {
            return Err(Error::Usage(format!(
                "{} processes fit {}, all of other users: ask as root",
                pids.len(),
                whom.text()
            )));
        }
        seen.into_iter().map(Target::Found).collect()
    } else if args.targets.iter().any(|text| text.is_empty()) {
        return Err(Error::Usage(
            "an empty word names no process: give the number of a process or thread, or a name"
                .into(),
        ));
    } else {
        args.targets.iter().map(|text| target(text)).collect()
    };
    let own: Vec<_> = args.labels.into_iter().collect();
    let answer = debox_why::look(
        &targets,
        Options {
            kernel: kernel_tells(),
            rules: Rules::load(&own)?,
        },
    )?;
    let text = if args.result.json {
        output::json(&answer)
    } else {
        let options = TextOptions {
            width: args.result.width(),
            all: args.idle,
            ascii: output::ascii(),
        };
        debox_why::render(&answer, &options)
    };
    output::deliver(&args.result, &text)?;
    Ok(0)
}
