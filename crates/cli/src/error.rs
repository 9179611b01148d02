// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, in words that say what to do?

use crate::access;
use std::io;
use std::path::PathBuf;

/// As the parser of the command line has it.
const WRONG_ARGUMENTS: i32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Command(#[from] debox_command::Error),
    #[error("cannot write the report to {}: {source}", .path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error("{error}{remedy}")]
    Connect {
        error: debox_client::Error,
        remedy: String,
    },
    #[error(transparent)]
    Broker(debox_client::Error),
    #[error("nothing can be watched: {why}")]
    CannotWatch { why: String },
    /// Whose account it is in does not give it away.
    #[error("nothing can be watched: {why}")]
    Taken { why: String },
    /// No privileges, and nobody who has them.
    #[error("nothing can be watched: {why}")]
    Unprivileged { why: String },
    #[error("{action}: {source}")]
    System {
        action: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Record(#[from] debox_record::WriteError),
    #[error(transparent)]
    Recording(#[from] debox_record::ReadError),
    #[error(transparent)]
    Why(#[from] debox_why::Error),
    /// Of a part that is a program of its own.
    #[error(transparent)]
    Part(Box<dyn std::error::Error + Send + Sync>),
    #[error("{program} is not installed: looked for {}. {remedy}", looked.join(", "))]
    Elsewhere {
        program: &'static str,
        looked: Vec<String>,
        remedy: &'static str,
    },
    #[error("nothing can be spliced: {0}")]
    Splice(#[from] debox_splice::Error),
    #[error(transparent)]
    Labels(#[from] debox_labels::RulesError),
    #[error(transparent)]
    Parquet(#[from] debox_export::ParquetError),
    /// Before anything had started.
    #[error("ended by {}", debox_command::signal_name(*.signal))]
    Interrupted { signal: i32 },
    /// What was asked for cannot be done here.
    #[error("{0}")]
    Usage(String),
    /// Wrong options, or some that do not go together, which the parser cannot see.
    #[error("{0}")]
    Arguments(String),
}

impl From<debox_client::Error> for Error {
    fn from(error: debox_client::Error) -> Self {
        match &error {
            debox_client::Error::Connect { path, source } => Error::Connect {
                remedy: access::remedy(path, source),
                error,
            },
            _ => Error::Broker(error),
        }
    }
}

impl Error {
    pub fn system(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { action, source }
    }

    pub fn exit_status(&self) -> i32 {
        match self {
            Error::Command(error) => error.exit_status(),
            Error::Arguments(_) => WRONG_ARGUMENTS,
            _ => debox_command::FAILED,
        }
    }

    /// Whether whoever read what was written has gone away.
    pub fn reader_gone(&self) -> bool {
        matches!(self, Error::Output { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the text has lines by design; foreign parts of it were made
    /// harmless as it was put together.
    pub fn has_lines(&self) -> bool {
        matches!(self, Error::Usage(_) | Error::Arguments(_))
    }

    /// Whether what `debox doctor` prints helps with it.
    pub fn wants_doctor(&self) -> bool {
        matches!(self, Error::CannotWatch { .. } | Error::Unprivileged { .. })
    }

    /// Whether the broker has no room for one more, until somebody gives something back.
    pub fn is_full(&self) -> bool {
        matches!(
            self,
            Error::Broker(debox_client::Error::Refused {
                errno: libc::ENOSPC | libc::EUSERS,
                ..
            })
        )
    }

    /// Whether the same with privileges would work.
    pub fn again(&self) -> bool {
        matches!(self, Error::Unprivileged { .. })
    }
}
