// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong between a client and its broker?

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot reach a broker at {}: {source}", .path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the broker at {} refused: {text}", .path.display())]
    Refused {
        path: PathBuf,
        errno: i32,
        text: String,
    },
    #[error(
        "the broker at {} has not taken a request in {seconds} s: it hangs, or cannot load its programs. \
         `systemctl status deboxd` says which", .path.display()
    )]
    Starting { path: PathBuf, seconds: u64 },
    #[error("the broker at {} broke the protocol: {what}", .path.display())]
    Protocol { path: PathBuf, what: String },
}
