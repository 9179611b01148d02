// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the operating system charge on this machine, and what does DeBox
//! add to it? (`debox bench os`, `debox bench self`)
//!
//! The command starts each suite several times, in a process of its own
//! ([`worker`]), and puts the results together; nothing that it needs itself
//! is in the measured process.

#[cfg(test)]
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

pub mod account;
pub mod args;
pub mod clock;
mod derive;
mod drive;
pub mod machine;
pub mod model;
pub mod noise;
pub mod os;
mod output;
mod page;
mod raw;
pub mod sampling;
mod section;
pub mod selfcost;
mod shown;
mod span;
pub mod stat;
mod text;
mod tidy;
pub mod titles;
pub mod worker;

pub use output::parse as document_parse;
pub use page::render as document_page;
pub use text::render as document_text;

pub use args::Args;

use debox_command::stop;
use std::path::PathBuf;

/// Why could something not be measured, or shown?
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not to be had here; the text says why.
    #[error("{0}")]
    Unavailable(String),
    #[error("{what}: {source}")]
    System {
        what: String,
        source: std::io::Error,
    },
    #[error("{0}")]
    Usage(String),
    #[error("{}: {what}", .path.display())]
    File { path: PathBuf, what: String },
    #[error("interrupted; nothing is left behind")]
    Interrupted,
}

impl Error {
    /// As the rest of debox: 2 for wrong arguments, 125 when it cannot work.
    pub fn exit_status(&self) -> i32 {
        match self {
            Self::Usage(_) => 2,
            _ => 125,
        }
    }

    /// The signal that debox ends by as well.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Self::Interrupted => stop::asked_by(),
            _ => None,
        }
    }
}

/// Does what the arguments say.
///
/// # Errors
/// When nothing at all could be measured or the result cannot be written;
/// single measurements that fail are part of the result.
pub fn run(args: Args) -> Result<i32, Error> {
    match args.command {
        args::Command::Os(os) => drive::os(os),
        args::Command::SelfCost(own) => selfcost::run(own),
        args::Command::Select(select) => Ok(debox_select::bench_run(&select)),
        args::Command::Serve(serve) => {
            stop::admit_signals();
            Ok(debox_select::serve_run(&serve))
        }
        args::Command::Load(load) => {
            stop::admit_signals();
            Ok(debox_select::load_run(&load))
        }
        args::Command::Worker { order } => {
            stop::admit_signals();
            drive::worker(&order)
        }
        args::Command::Calls { order } => {
            stop::admit_signals();
            selfcost::worker::main(&order)
        }
    }
}
