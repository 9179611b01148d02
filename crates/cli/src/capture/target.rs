// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose calls are captured?

use crate::error::Error;
use crate::whom::{Whom, WhomArgs};
use debox_command::{Program, Streams, pidfd_open};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Processes whose threads are looked up in /proc for the calls they are in.
pub const PROCESSES_MAX: usize = 256;

pub enum Target<'a> {
    Command {
        program: Program,
        words: Vec<String>,
        streams: Streams<'a>,
    },
    Processes(Vec<Process>),
    /// By what they have in common.
    Whom(Whom),
}

impl Target<'_> {
    /// A command with debox's standard streams.
    pub fn command(words: &[OsString]) -> Result<Self, Error> {
        Ok(Target::Command {
            program: Program::resolve(words)?,
            words: words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            streams: [None; 3],
        })
    }

    /// With other standard streams.
    pub fn with_streams<'b>(self, streams: Streams<'b>) -> Target<'b> {
        match self {
            Target::Command { program, words, .. } => Target::Command {
                program,
                words,
                streams,
            },
            Target::Processes(list) => Target::Processes(list),
            Target::Whom(whom) => Target::Whom(whom),
        }
    }

    /// Those that these options mean.
    pub fn whom(args: &WhomArgs) -> Result<Self, Error> {
        Ok(Target::Whom(Whom::of(args)?))
    }

    /// The same as one of several policies: who fits several is the first one's.
    /// `owners_first`: but for whom whoever may watch him asks for.
    pub fn policy(args: &WhomArgs, rank: u32, owners_first: bool) -> Result<Self, Error> {
        let mut whom = Whom::of(args)?;
        whom.rank = rank;
        whom.owners_first = owners_first;
        Ok(Target::Whom(whom))
    }

    /// Running processes, each once.
    pub fn processes(pids: &[i32]) -> Result<Self, Error> {
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        pids.dedup();
        let opened = pids.iter().map(|pid| Process::open(*pid)?.unless_ended());
        Ok(Target::Processes(opened.collect::<Result<_, _>>()?))
    }

    /// The command's words, or those of the only process.
    pub fn words(&self) -> Vec<String> {
        match self {
            Target::Command { words, .. } => words.clone(),
            Target::Processes(list) => match &list[..] {
                [process] => command_line(process.pid),
                _ => Vec::new(),
            },
            Target::Whom(whom) => whom.args.words(),
        }
    }
}

/// A process that cannot become another one under its number.
pub struct Process {
    pub pid: i32,
    /// Readable when the process has ended.
    handle: OwnedFd,
    pub ended: bool,
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Process {
    pub fn open(pid: i32) -> Result<Self, Error> {
        if pid == std::process::id() as i32 {
            return Err(Error::Usage("debox does not watch itself".into()));
        }
        let handle = pidfd_open(pid).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => Error::Usage(format!("there is no process {pid}")),
            Some(libc::EINVAL) => Error::Usage(format!(
                "{pid} is a thread, not a process: name its process"
            )),
            _ => Error::System {
                action: "opening the process",
                source,
            },
        })?;
        Ok(Self {
            pid,
            handle,
            ended: false,
        })
    }

    /// A zombie, whose parent has not asked for its end yet, is nothing to watch.
    fn unless_ended(mut self) -> Result<Self, Error> {
        self.look();
        if self.ended {
            return Err(Error::Usage(format!(
                "process {} has ended: nothing of it is left to watch",
                self.pid
            )));
        }
        Ok(self)
    }

    pub fn look(&mut self) {
        self.ended |= is_readable(&self.handle).0;
    }

    pub fn threads(&self) -> Vec<u32> {
        std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// The process and its children, and theirs.
    pub fn family(&self) -> Vec<u32> {
        debox_broker::family_of(self.pid as u32)
    }
}

/// Whether there is something to read, and whether the other end is gone.
pub fn is_readable(fd: impl AsFd) -> (bool, bool) {
    let mut poll = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry, no waiting.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) } > 0;
    (ready, poll.revents & (libc::POLLHUP | libc::POLLERR) != 0)
}

fn command_line(pid: i32) -> Vec<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = words
        .split(|b| *b == 0)
        .filter(|w| !w.is_empty())
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect();
    if !words.is_empty() {
        return words;
    }
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    vec![comm.trim_end().to_owned()]
}
