// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why can there be no broker here, and what would help?

use crate::shared::SharedError;
use rustix::io::Errno;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    #[error("{0}")]
    Kernel(#[from] debox_probe::Error),
    #[error("{0}")]
    Shared(#[from] SharedError),
    #[error("{0}")]
    Symbols(String),
    #[error(
        "this process may not load BPF programs: it lacks {missing}; run as root, or grant it with \
         `setcap cap_bpf,cap_perfmon,cap_syslog,cap_sys_ptrace+ep` on the program, or use a running \
         deboxd. `debox doctor` shows what this machine allows"
    )]
    NotPermitted { missing: String },
    #[error(
        "another broker{} already serves {path}; stop it (systemctl stop deboxd.socket deboxd), or \
         give this one another --socket",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("{path} exists and is not a socket; remove it, or give another --socket")]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {path} ({step}): {source}; {remedy}")]
    Listen {
        path: PathBuf,
        step: &'static str,
        source: Errno,
        remedy: &'static str,
    },
    #[error("socket activation: {0}; look at deboxd.socket")]
    Activation(String),
    #[error("a socket operation that the broker cannot do without failed ({step}): {source}")]
    Socket { step: &'static str, source: Errno },
    #[error("the private broker's thread could not be started: {0}")]
    Thread(std::io::Error),
    #[error("the private broker's thread ended by a panic; please report this: {0}")]
    Panicked(String),
    #[error(
        "cannot make a directory for the private broker's socket in {parent}: {source}; make it \
         writable, or set TMPDIR to a directory that is"
    )]
    Directory {
        parent: PathBuf,
        source: std::io::Error,
    },
}

impl BrokerError {
    /// The errno that describes it best, positive.
    pub fn errno(&self) -> i32 {
        match self {
            BrokerError::Kernel(error) => error.errno(),
            BrokerError::Shared(SharedError::Memory { source, .. }) => source.raw_os_error(),
            BrokerError::Shared(SharedError::Mutex { source, .. })
            | BrokerError::Thread(source)
            | BrokerError::Directory { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            BrokerError::Shared(SharedError::LockWord { .. }) => libc::ENOTSUP,
            BrokerError::NotPermitted { .. } => libc::EPERM,
            BrokerError::InUse { .. } => libc::EADDRINUSE,
            BrokerError::NotASocket { .. } => libc::ENOTSOCK,
            BrokerError::Listen { source, .. } | BrokerError::Socket { source, .. } => {
                source.raw_os_error()
            }
            BrokerError::Activation(_) => libc::EINVAL,
            BrokerError::Symbols(_) | BrokerError::Panicked(_) => libc::EIO,
        }
    }
}
