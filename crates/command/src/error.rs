// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why can a command not be started, and which exit status says so?

use std::io;
use std::path::PathBuf;

/// The exit status when debox itself cannot work.
pub const FAILED: i32 = 125;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{command}: command not found")]
    NotFound { command: String },
    #[error("{command}: {source}")]
    NotExecutable { command: String, source: io::Error },
    /// What was to be done in its process before it starts failed.
    #[error("preparing {command}: {source}")]
    NotPrepared { command: String, source: io::Error },
    #[error("{what} holds a NUL byte")]
    Nul { what: String },
    #[error("{name} is in none of: {places}. Install it, or name it in ${variable}")]
    NoLibrary {
        name: &'static str,
        variable: &'static str,
        places: String,
    },
    #[error(
        "{} cannot be preloaded: its path holds a colon or a space. Copy it elsewhere and name it in ${variable}",
        .path.display()
    )]
    Unpreloadable {
        path: PathBuf,
        variable: &'static str,
    },
    #[error("{action}: {source}")]
    System {
        action: &'static str,
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { action, source }
    }

    /// What a shell would report.
    pub fn exit_status(&self) -> i32 {
        match self {
            Error::NotFound { .. } => 127,
            Error::NotExecutable { .. } => 126,
            _ => FAILED,
        }
    }
}
