// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which broker does this run use?
//!
//! The one that was named (--socket, $DEBOX_SOCKET); else, with the privileges
//! for it, a private one inside this process, which ends with it; else the
//! permanent one at its usual place.

use crate::args::BrokerArgs;
use crate::error::Error;
use crate::own_labels;
use debox_abi::{DEBOX_ENV_SOCKET, DEBOX_SOCKET_PATH};
use std::path::{Path, PathBuf};

pub enum Source {
    Private(debox_broker::Private),
    Permanent(PathBuf),
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// The effective capabilities of this process.
pub fn capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whether BPF programs can be loaded by this process, as far as capabilities say.
pub fn may_load() -> bool {
    let has = |cap: u32| capabilities() & (1 << cap) != 0;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

impl Source {
    /// `boundary_later`: the hooks at system calls may never be needed.
    pub fn choose(options: &BrokerArgs, boundary_later: bool) -> Result<Self, Error> {
        let named = options.socket.clone().or_else(|| {
            std::env::var_os(DEBOX_ENV_SOCKET)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        });
        let rules = options.labels.is_some() || options.vmlinux.is_some();
        let private = named.is_none() && may_load();
        if !private {
            if rules {
                return Err(Error::Usage(
                    "--labels and --vmlinux are for a private broker: run debox as root and name no socket, \
                     or give them to deboxd"
                        .into(),
                ));
            }
            own_labels::read(None, false)?;
            return Ok(Source::Permanent(
                named.unwrap_or_else(|| DEBOX_SOCKET_PATH.into()),
            ));
        }
        own_labels::read(options.labels.as_deref(), true)?;
        let private = debox_broker::Private::start(debox_broker::PrivateOptions {
            labels: options.labels.clone(),
            vmlinux: options.vmlinux.clone(),
            boundary_later,
            ends_with_process: true,
            // It takes minutes; nobody should wonder.
            progress: crate::say,
            ..Default::default()
        })
        .map_err(|e| Error::CannotWatch { why: e.to_string() })?;
        Ok(Source::Private(private))
    }

    /// What the private broker cannot name, and how that can be had.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Source::Private(private) => private.notes().to_vec(),
            Source::Permanent(_) => Vec::new(),
        }
    }

    pub fn socket(&self) -> &Path {
        match self {
            Source::Private(private) => private.socket_path(),
            Source::Permanent(path) => path,
        }
    }

    /// A permanent broker that is not there means that nothing can be watched.
    pub fn connect(&self) -> Result<debox_client::Connection, Error> {
        debox_client::Connection::open(self.socket()).map_err(|error| {
            if let (Source::Permanent(path), debox_client::Error::Connect { source, .. }) =
                (self, &error)
                && !may_load()
                && path.as_path() == Path::new(DEBOX_SOCKET_PATH)
                && matches!(
                    source.raw_os_error(),
                    Some(libc::ENOENT | libc::ECONNREFUSED)
                )
            {
                let path = path.display();
                let why = format!("no privileges (CAP_BPF, CAP_PERFMON), and no broker at {path}");
                return Error::Unprivileged { why };
            }
            match (Error::from(error), self) {
                (error @ Error::Connect { .. }, Source::Permanent(_)) => Error::CannotWatch {
                    why: error.to_string(),
                },
                (error, _) => error,
            }
        })
    }
}
