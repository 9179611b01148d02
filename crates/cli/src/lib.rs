// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the `debox` command do?
//!
//! A library, so that its parts can be tested; the binary only notes what it
//! inherited and calls [`main`].

mod acting;
mod args;
mod attach;
mod call_site;
mod child;
mod collect;
mod command;
mod connection;
mod detail_control;
mod diff;
mod doctor;
mod error;
mod event_ring;
mod export;
pub mod inherited;
mod learn;
mod mapped_command;
mod open_call;
mod output;
mod record;
mod report;
mod run;
mod session;
mod source;
mod status;
mod top;
mod trace;
mod wait;
mod wrap_library;

use args::{Cli, Verb};
use clap::{CommandFactory, Parser};
use inherited::Inherited;
use std::io::Write;

/// A line of debox's own on standard error, where it may be closed.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "debox: {text}");
}

pub(crate) fn complain(text: &str) {
    say(text);
}

/// Does what the command line says; returns the exit status.
pub fn main(inherited: Inherited) -> i32 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output with status 0.
            let _ = error.print();
            return error.exit_code();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("DEBOX_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error")),
        )
        .with_writer(std::io::stderr)
        .init();
    let result = match cli.command {
        Verb::Run(args) if args.select => Ok(debox_select::compare(args.command, move || {
            inherited.restore_in_child()
        })),
        Verb::Run(args) => run::run(args, inherited),
        Verb::Attach(args) => attach::attach(args, inherited),
        Verb::Report(args) => report::report(args),
        Verb::Top(args) => top::top(args, inherited),
        Verb::Diff(args) => diff::run(args),
        Verb::Select(args) => Ok(debox_select::run(&args, move || {
            inherited.restore_in_child()
        })),
        Verb::Kern(args) => {
            // It and its command take signals as any other program.
            inherited.restore_in_child();
            Ok(debox_kern::run(*args))
        }
        Verb::Doctor(args) => doctor::doctor(args),
        Verb::Status(args) => status::status(args),
        Verb::Bench(args) => {
            return debox_bench::run(args).unwrap_or_else(|error| {
                complain(&error.to_string());
                error.exit_status()
            });
        }
        Verb::Completions(args) => {
            let mut text = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "debox", &mut text);
            let _ = std::io::stdout().lock().write_all(&text);
            Ok(0)
        }
    };
    result.unwrap_or_else(|error| {
        complain(&error.to_string());
        if error.wants_doctor() {
            doctor::explain();
        }
        error.exit_status()
    })
}
