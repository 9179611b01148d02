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
    #[error(
        "the flight recorder has no folder {}: {source}. Name another one in [flight] directory, or \"\" for none",
        directory.display()
    )]
    Flight {
        directory: PathBuf,
        source: io::Error,
    },
    #[error(
        "{} is the folder of another agent, process {pid}. Name another one in [flight] directory, or end that",
        directory.display()
    )]
    FlightTaken { directory: PathBuf, pid: i32 },
    #[error("{}: {what}: {source}. It belongs to the agent's user: call debox as that one, or as root", directory.display())]
    Snapshot {
        what: &'static str,
        directory: PathBuf,
        source: io::Error,
    },
    #[error(
        "no agent records to {}: start one (systemctl start debox-agent), or name its [flight] directory with --directory",
        directory.display()
    )]
    NoAgent { directory: PathBuf },
    #[error(
        "{} is locked by process {pid}, which is not of the user whose the lock is, and so no agent: name an agent's \
         [flight] directory with --directory",
        directory.display()
    )]
    NotAgent { directory: PathBuf, pid: i32 },
    #[error(
        "the agent, process {pid}, kept nothing new in {}: what it says tells why (journalctl -u debox-agent)",
        directory.display()
    )]
    NotKept { directory: PathBuf, pid: i32 },
    #[error("starting the endpoint: {0}")]
    Start(io::Error),
}

impl From<Error> for debox_cli::error::Error {
    fn from(error: Error) -> Self {
        Self::Part(Box::new(error))
    }
}
