// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the `debox` command do?
//!
//! A library, so that its parts can be tested; the binary only notes what it
//! inherited and calls [`main`].

#[cfg(test)]
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[cfg(test)]
#[path = "../../../tests/needs.rs"]
mod needs;

mod access;
pub mod acting;
pub mod ahead;
pub mod args;
mod attach;
mod call_site;
pub mod capture;
pub mod cgroup;
mod collect;
mod diff;
mod doctor;
mod elsewhere;
pub mod error;
mod export;
#[doc(hidden)]
pub mod fuzz;
mod help;
mod kin;
mod learn;
pub mod limits;
mod machine;
mod mapped_command;
mod open_call;
pub mod output;
mod own_end;
mod own_labels;
mod patched;
mod report;
mod run;
mod session;
mod source;
mod spliced;
mod status;
mod title;
mod top;
mod trace;
mod welcome;
pub mod whom;
mod why;

use args::Verb;
use debox_command::{Ended, Inherited};
use debox_output::printable_bytes;
pub use debox_output::say;
pub(crate) use debox_output::say_lines;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// A line that can be taken as it is: without a name before it.
fn say_plain(text: &str) {
    let text = debox_output::printable(text);
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

pub fn complain(error: &error::Error) {
    match error {
        // A reader that has seen enough (head) is no failure.
        error if error.reader_gone() => {}
        error if error.has_lines() => say_lines(&error.to_string()),
        error => say(&error.to_string()),
    }
}

/// What the parser of the command line says about it, with arguments that can
/// be shown. Help and version go to standard output with status 0.
fn parser_says(error: clap::Error) -> i32 {
    let shown = if error.use_stderr() {
        let words = std::env::args_os().map(|word| printable_bytes(word.as_bytes()));
        // The same complaint about the same words, as far as they can be shown.
        help::parse(words).err().unwrap_or(error)
    } else {
        error
    };
    let _ = shown.print();
    shown.exit_code()
}

/// Does what the command line says; returns the exit status.
pub fn main(inherited: Inherited) -> i32 {
    if std::env::args_os().len() < 2 {
        return welcome::welcome();
    }
    // Reading the command line takes as long as that is to be measured for.
    debox_splice::rate_begin();
    command_line(|verb| act(verb, inherited))
}

/// What is done of the command line's words, by this program or by one of its own for a part
/// ([`elsewhere`]); returns the exit status.
pub fn command_line(act: impl FnOnce(Verb) -> Result<i32, error::Error>) -> i32 {
    let cli = match help::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return parser_says(error),
    };
    let levels = std::env::var("DEBOX_LOG").ok();
    let levels = levels
        .filter(|levels| !levels.is_empty())
        .and_then(|levels| levels.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR));
    tracing_subscriber::registry()
        .with(levels)
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr))
        .init();
    act(cli.command).unwrap_or_else(|error| {
        if error.reader_gone() {
            // As any program that is written to a pipe with: `... | head`.
            return Ended::Signal(libc::SIGPIPE).end_as();
        }
        if let error::Error::Interrupted { signal } = error {
            return Ended::Signal(signal).end_as();
        }
        complain(&error);
        match error.again().then(welcome::again_with_sudo).flatten() {
            Some(line) => say_plain(&line),
            None if error.wants_doctor() => doctor::explain(),
            None => {}
        }
        error.exit_status()
    })
}

fn act(verb: Verb, inherited: Inherited) -> Result<i32, error::Error> {
    match verb {
        Verb::Run(args) => run::run(args, inherited),
        Verb::Attach(args) => attach::attach(args, inherited),
        Verb::Report(args) => report::report(args),
        Verb::Top(args) => top::top(args, inherited),
        Verb::Why(args) => why::why(args),
        Verb::Agent(_) | Verb::Snapshot(_) => elsewhere::program(&elsewhere::AGENT, &inherited),
        Verb::Serve(_) => elsewhere::program(&elsewhere::SERVE, &inherited),
        Verb::Fleet(_) => elsewhere::program(&elsewhere::FLEET, &inherited),
        Verb::Diff(args) => diff::run(args),
        Verb::Select(args) => Ok(debox_select::run(&args, &inherited)),
        Verb::Kern(args) => {
            // It and its command take signals as any other program.
            inherited.restore();
            Ok(debox_kern::run(*args, &inherited))
        }
        Verb::Doctor(args) => doctor::doctor(args),
        Verb::Status(args) => status::status(args),
        Verb::Bench(args) => Ok(debox_bench::run(args).unwrap_or_else(|error| {
            say_lines(&error.to_string());
            let by_signal = error.signal().map(|signal| Ended::Signal(signal).end_as());
            by_signal.unwrap_or(error.exit_status())
        })),
        Verb::Completions(args) => {
            let mut text = Vec::new();
            clap_complete::generate(args.shell, &mut help::command(), "debox", &mut text);
            output::print(&text).map(|()| 0)
        }
    }
}
