// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, in words that say what to do?

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{command}: command not found")]
    NotFound { command: String },
    #[error("{command}: {source}")]
    NotExecutable { command: String, source: io::Error },
    #[error("cannot write the report to {}: {source}", .path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error("cannot reach a broker at {}: {source}{remedy}", .path.display())]
    Connect {
        path: PathBuf,
        source: io::Error,
        remedy: String,
    },
    #[error("the broker at {} refused: {text}", .path.display())]
    Refused {
        path: PathBuf,
        errno: i32,
        text: String,
    },
    #[error("the broker at {} broke the protocol: {what}", .path.display())]
    Protocol { path: PathBuf, what: String },
    #[error("nothing can be watched: {why}")]
    CannotWatch { why: String },
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
    Parquet(#[from] debox_export::ParquetError),
    #[error("{0}")]
    Usage(String),
}

impl Error {
    pub fn system(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { action, source }
    }

    /// What a shell would report: 127 not found, 126 not executable, 125 when
    /// debox itself cannot work.
    pub fn exit_status(&self) -> i32 {
        match self {
            Error::NotFound { .. } => 127,
            Error::NotExecutable { .. } => 126,
            _ => 125,
        }
    }

    /// Whether whoever read what was written has gone away.
    pub fn reader_gone(&self) -> bool {
        matches!(self, Error::Output { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether the text has lines by design; foreign parts of it were made
    /// harmless as it was put together.
    pub fn has_lines(&self) -> bool {
        matches!(self, Error::Usage(_))
    }

    /// Whether what `debox doctor` prints helps with it.
    pub fn wants_doctor(&self) -> bool {
        matches!(self, Error::CannotWatch { .. })
    }
}
