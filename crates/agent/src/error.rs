// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong?

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}. Make the file readable, or name another one with --config", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// `what` tells line and column.
    #[error("{}: {what}", path.display())]
    Config { path: PathBuf, what: String },
    #[error(
        "cannot listen on {listen}: {source}. Name another address in [metrics] listen, or end who has it"
    )]
    Listen { listen: String, source: io::Error },
    #[error("starting the endpoint: {0}")]
    Start(io::Error),
}

impl From<Error> for debox_cli::error::Error {
    fn from(error: Error) -> Self {
        Self::Part(Box::new(error))
    }
}
