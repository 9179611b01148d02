// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the command come under watch before its first call?
//!
//! Its process sends the request to join the account over the inherited
//! connection, since the broker goes by who sends. debox receives the answer and
//! opens the gate that the process waits at without a system call. So whenever
//! the broker puts it under watch, the first call that begins after that is the
//! execve, and nothing of debox is counted.

use crate::error::Error;
use crate::spliced::Splicer;
use debox_abi::{DEBOX_MSG_JOIN, DEBOX_REQ_NOFOLLOW, Pod, debox_request};
use debox_client::Connection;
use debox_command::{Child, Held, Hold, Start};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A broker that is at work on others' accounts may take long.
const ANSWER_PATIENCE_MS: i32 = 60_000;

/// Starts the command as one of the connection's account, and spliced, if that is wanted;
/// `before` runs when it has joined, `begins` just before it is let go.
pub fn start(
    start: &Start<'_>,
    connection: &Connection,
    follow: bool,
    splicer: Option<&Splicer>,
    before: impl FnOnce(u32) -> Result<(), Error>,
    begins: impl FnOnce(),
) -> Result<Child, Error> {
    let flags = if follow { 0 } else { DEBOX_REQ_NOFOLLOW };
    let request = debox_request::new(DEBOX_MSG_JOIN, flags);
    let held = start.hold(Hold::Spinning, || connection.send(request.as_bytes()))?;
    match answered(connection, &held) {
        // It failed, or was killed: start() tells.
        None => {}
        Some(Ok(())) => before(held.pid() as u32)?,
        Some(Err(debox_client::Error::Refused { errno, text, .. })) => {
            return Err(match errno {
                libc::EBUSY => Error::Taken { why: text },
                _ => Error::CannotWatch { why: text },
            });
        }
        Some(Err(error)) => return Err(error.into()),
    }
    let following = splicer.map(|s| s.follow(held.pid())).transpose()?;
    begins();
    let started = held.start();
    if let Some(following) = following {
        // Nobody waits for it before.
        following.begun();
    }
    started.map_err(|error| match error {
        debox_command::Error::NotPrepared { source, .. } => Error::CannotWatch {
            why: format!("the broker does not listen any more: {source}"),
        },
        error => error.into(),
    })
}

/// The broker's answer to the process's request; None when the process is gone.
fn answered(connection: &Connection, held: &Held<'_>) -> Option<Result<(), debox_client::Error>> {
    let mut list = [connection.as_fd(), held.as_fd()].map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        let count = list.len() as libc::nfds_t;
        // SAFETY: a valid list of its length.
        let ready = unsafe { libc::poll(list.as_mut_ptr(), count, ANSWER_PATIENCE_MS) };
        if ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        // The process first: it keeps the connection open, whatever happens.
        if list[1].revents != 0 {
            return None;
        }
        return Some(connection.answer(DEBOX_MSG_JOIN).map(drop));
    }
}
