// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong?

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--listen is HOST:PORT or a path with a /, and {0:?} is neither")]
    Place(String),
    #[error(
        "{0} can be reached from other machines, over which what is shown, and the token, goes unencrypted. Listen on \
         127.0.0.1 and use ssh -L, or, if that is meant, give --anywhere and --token"
    )]
    Anywhere(std::net::SocketAddr),
    #[error(
        "cannot listen on {listen}: {source}. Name another address with --listen, or end who has it"
    )]
    Listen { listen: String, source: io::Error },
    #[error("the token in {}: {what}", path.display())]
    Token { path: PathBuf, what: String },
    #[error("making a token: {0}")]
    Random(io::Error),
    #[error("starting to serve: {0}")]
    Start(io::Error),
}

impl From<Error> for debox_cli::error::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Place(_) | Error::Anywhere(_) => Self::Arguments(error.to_string()),
            error => Self::Part(Box::new(error)),
        }
    }
}
