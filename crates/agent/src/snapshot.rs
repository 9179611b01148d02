// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox snapshot`: how does the agent learn that what it recorded is to stay?
//!
//! By a signal to whoever holds the lock of its folder, as the kernel tells it. Whoever may send
//! it one, may have it keep something; what it kept shows itself as one more folder.

use crate::Error;
use crate::flight;
use debox_cli::args::SnapshotArgs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// It begins a new period first, which takes no second where nothing is wrong.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);

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
    let Some(pid) = holder.filter(|pid| *pid > 0) else {
        return Err(Error::NoAgent {
            directory: directory.to_owned(),
        });
    };
    let before = flight::kept(directory)
        .map_err(|source| failed("what is kept cannot be looked at", source))?;
    // SAFETY: no memory involved.
    if unsafe { libc::kill(pid, libc::SIGUSR1) } != 0 {
        return Err(failed(
            "the agent cannot be asked",
            io::Error::last_os_error(),
        ));
    }
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
