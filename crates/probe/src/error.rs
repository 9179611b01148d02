// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong between us and the kernel, and what to do about it?

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel refused to {action}: {source}{}", remedy(.source))]
    Kernel {
        action: &'static str,
        source: io::Error,
    },
    #[error("{action} failed: {message}")]
    Bpf {
        action: &'static str,
        message: String,
        errno: i32,
    },
    #[error("{}", refused_text(*pid, watcher, *why))]
    Refused {
        pid: u32,
        watcher: crate::Watcher,
        why: Refused,
    },
    #[error(
        "process {pid} is in an account of another user, or of one who may watch everybody, and stays \
         there; watch it as root, or when that watch has ended (an agent gives it away where its policy has \
         owners_first = true)"
    )]
    Busy { pid: u32 },
    #[error("no process {pid}: it has ended or never existed")]
    NoProcess { pid: u32 },
    #[error("all {limit} {what} are in use; close a program that uses them")]
    Full { what: &'static str, limit: u32 },
    #[error(
        "{failed} threads of process {pid} could not be watched: the kernel had no memory for their state"
    )]
    NoMemory { pid: u32, failed: u32 },
    #[error("{what}: {text}")]
    Request { what: &'static str, text: String },
}

/// Why a process may not be watched: `REFUSED_*` of `bpf/may_read.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Ids,
    Capabilities,
    Undumpable,
}

impl Refused {
    /// What most threads were refused for, of the counts that the kernel side
    /// made; `None` when there were none.
    pub(crate) fn most(counts: [u32; 4]) -> Option<Refused> {
        [
            (counts[1], Refused::Ids),
            (counts[2], Refused::Capabilities),
            (counts[3], Refused::Undumpable),
        ]
        .into_iter()
        .filter(|&(count, _)| count > 0)
        .max_by_key(|&(count, _)| count)
        .map(|(_, why)| why)
    }
}

/// Fits into a reply of the broker (255 bytes).
fn refused_text(pid: u32, watcher: &crate::Watcher, why: Refused) -> String {
    let (uid, gid) = (watcher.uid, watcher.gid);
    let (what, remedy) = match why {
        Refused::Ids => (
            format!("its user and group ids are not all uid {uid} and gid {gid}"),
            "watch it as root",
        ),
        Refused::Capabilities => (
            "it has capabilities that you lack, or another user namespace".to_owned(),
            "watch it as root",
        ),
        Refused::Undumpable => (
            "it is not dumpable (an unreadable program, a change of user, or PR_SET_DUMPABLE)"
                .to_owned(),
            "watch it as root, or have it call prctl(PR_SET_DUMPABLE, 1)",
        ),
    };
    format!("ptrace would refuse uid {uid} to see process {pid}: {what}; {remedy}")
}

impl Error {
    /// The errno a client is told.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Kernel { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Bpf { errno, .. } => *errno,
            Error::NoProcess { .. } => libc::ESRCH,
            Error::Refused { .. } => libc::EPERM,
            Error::Busy { .. } => libc::EBUSY,
            Error::Full { .. } => libc::ENOSPC,
            Error::NoMemory { .. } => libc::ENOMEM,
            Error::Request { .. } => libc::EINVAL,
        }
    }

    pub(crate) fn bpf(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
        move |source| {
            let errno = errno_of(&source);
            let message = format!("{source:#}{}", remedy(&io::Error::from_raw_os_error(errno)));
            Error::Bpf {
                action,
                message,
                errno,
            }
        }
    }
}

fn errno_of(error: &libbpf_rs::Error) -> i32 {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => libc::EPERM,
        libbpf_rs::ErrorKind::NotFound => libc::ENOENT,
        libbpf_rs::ErrorKind::OutOfMemory => libc::ENOMEM,
        libbpf_rs::ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; loading and attaching needs CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN): run as root, or \
             use a running deboxd. `debox doctor` shows what this machine allows"
        }
        Some(libc::ENOENT) => {
            "; this kernel lacks a tracepoint or type that is needed: Linux 6.1 or later with CONFIG_DEBUG_INFO_BTF"
        }
        _ => "",
    }
}
