// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox snapshot`: how does the agent learn that what it recorded is to stay?
//!
//! By a signal to whoever holds the lock of its folder, as the kernel tells it. Whoever may send
//! it one, may have it keep something; what it kept shows itself as one more folder.
//!
//! The folder that is named may be anybody's, and so may its lock be one that others take for
//! reasons of their own (of a mailbox, of a database): only a process of the user whose the
//! lock is gets the signal, which would end another program.

use crate::Error;
use crate::flight;
use debox_cli::args::SnapshotArgs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// It begins a new period first, which takes no second where nothing is wrong.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process that stays the one that it is, whoever gets its number afterwards.
fn process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory involved.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } {
        fd if fd < 0 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor is new, and this process's own.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    }
}

fn signal(process: &OwnedFd) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open; no siginfo is passed.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGUSR1,
            info,
            0,
        )
    };
    match sent {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether it is of that user, and of no other in any respect.
fn is_of(pid: i32, user: u32) -> io::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ids = (status.lines()).find_map(|line| line.strip_prefix("Uid:"));
    let mut ids = ids.unwrap_or_default().split_whitespace().peekable();
    Ok(ids.peek().is_some() && ids.all(|id| id.parse() == Ok(user)))
}

fn asked(directory: &std::path::Path) -> Result<PathBuf, Error> {
    let failed = |what, source| Error::Snapshot {
        what,
        directory: directory.to_owned(),
        source,
    };
    let holder = match flight::holder(directory) {
        // Nobody has ever recorded there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        holder => holder.map_err(|source| failed("the folder cannot be looked into", source))?,
    };
    let Some((pid, owner)) = holder.filter(|(pid, _)| *pid > 0) else {
        return Err(Error::NoAgent {
            directory: directory.to_owned(),
        });
    };
    let before = flight::kept(directory)
        .map_err(|source| failed("what is kept cannot be looked at", source))?;
    let cannot = |source| failed("the agent cannot be asked", source);
    let process = process(pid).map_err(cannot)?;
    let own = is_of(pid, owner).map_err(cannot)?;
    // It has been the one all the time since it was opened.
    let same = flight::holder(directory).map_err(cannot)? == Some((pid, owner));
    if !own || !same {
        return Err(Error::NotAgent {
            directory: directory.to_owned(),
            pid,
        });
    }
    signal(&process).map_err(cannot)?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        let now = flight::kept(directory)
            .map_err(|source| failed("what is kept cannot be looked at", source))?;
        if let Some(new) = now.into_iter().find(|path| !before.contains(path)) {
            return Ok(new);
        }
    }
    Err(Error::NotKept {
        directory: directory.to_owned(),
        pid,
    })
}

pub fn snapshot(args: &SnapshotArgs) -> Result<i32, debox_cli::error::Error> {
    let kept = asked(&args.directory)?;
    let text = format!("{}\n", kept.display());
    debox_cli::output::print(text.as_bytes()).map(|()| 0)
}
