// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, in words that say what to do?

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Usage(String),
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("{what}: {text}")]
    Bpf { what: String, text: String },
    /// Nothing of the kind can be attached on this machine.
    #[error("{0}")]
    CannotAttach(String),
    #[error("{0}")]
    Symbols(#[from] debox_symbol::SymbolError),
    #[error(transparent)]
    Command(#[from] debox_command::Error),
    #[error("cannot write {}: {source}", .path.display())]
    Output { path: PathBuf, source: io::Error },
}

impl Error {
    pub(crate) fn exit_status(&self) -> i32 {
        match self {
            Error::Command(error) => error.exit_status(),
            _ => debox_command::FAILED,
        }
    }

    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::System { what, source }
    }

    pub(crate) fn bpf(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
        let what = what.into();
        move |error| Error::Bpf {
            what,
            text: format!("{error:#}"),
        }
    }
}
