// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong with a question?

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "nothing here reads the fleet's tables: install chDB (pip install chdb; DEBOX_PYTHON names the Python that has \
         it) or ClickHouse's command `clickhouse`, or ask a server with --url"
    )]
    NoEngine,
    #[error(
        "{} has no tables of a fleet: name the directory that agents write to with --parquet, a database with --database \
         or a server with --url",
        path.display()
    )]
    NoTables { path: PathBuf },
    #[error("{action} {program}: {source}")]
    Engine {
        program: String,
        action: &'static str,
        source: io::Error,
    },
    #[error(
        "an engine needs a directory of its own, and there is none to be had: {0}. TMPDIR names another place"
    )]
    Room(io::Error),
    /// It says itself what is wrong.
    #[error("{who}: {why}")]
    Answer { who: String, why: String },
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "another `debox fleet load` is at work there and has {}: try again when it has ended", path.display()
    )]
    Busy { path: PathBuf },
    /// Wrong arguments.
    #[error("{0}")]
    Words(String),
    /// There is nothing that would answer the question.
    #[error("{0}")]
    Nothing(String),
    #[error(transparent)]
    Cli(#[from] debox_cli::error::Error),
}

impl From<Error> for debox_cli::error::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Cli(error) => error,
            Error::Words(text) => Self::Arguments(text),
            error => Self::Part(Box::new(error)),
        }
    }
}
