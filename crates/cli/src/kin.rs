// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is a process that connects one of the command's?
//!
//! The kernel says who connected. A process of debox's own user is taken at its
//! word: it could as well trace one of the command's. One of another user must be
//! a relative, as a server's worker is that gave up root: a descendant of debox,
//! or of a process that was found to be the command's before and still lives.
//! That such a process was started by the command and has lost all its relatives
//! since cannot be known, so it is refused, which is said.

use debox_client::packet;
use debox_command::pidfd_open;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Processes between one and its relative.
const DEPTH_MAX: usize = 256;
/// Relatives that are remembered before the dead ones are looked for.
const KIN_MAX: usize = 4096;

pub struct Peer {
    pub pid: u32,
    uid: u32,
    /// None: it has ended already.
    process: Option<OwnedFd>,
}

/// Who connected, as the kernel noted it then.
pub fn peer_of(socket: &OwnedFd) -> io::Result<Peer> {
    let peer = packet::peer(socket.as_fd())?;
    let process = packet::peer_pidfd(socket.as_fd()).or_else(|error| match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => pidfd_open(peer.pid),
        _ => Err(error),
    });
    Ok(Peer {
        pid: peer.pid as u32,
        uid: peer.uid,
        process: process.ok(),
    })
}

fn is_alive(process: &OwnedFd) -> bool {
    let mut list = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: a list of one; a pidfd is readable once its process has ended.
    unsafe { libc::poll(&mut list, 1, 0) == 0 }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything, also ") R 1".
    let end = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The processes known to be the command's; a pidfd keeps a number from meaning
/// another process.
pub struct Kin {
    own_pid: u32,
    own_uid: u32,
    known: HashMap<u32, OwnedFd>,
}

impl Kin {
    pub fn new() -> Self {
        Self {
            own_pid: std::process::id(),
            // SAFETY: no memory involved.
            own_uid: unsafe { libc::geteuid() },
            known: HashMap::new(),
        }
    }

    fn is_known(&self, pid: u32) -> bool {
        pid == self.own_pid || self.known.get(&pid).is_some_and(is_alive)
    }

    /// From a process to its nearest known relative.
    fn path(&self, pid: u32) -> Option<Vec<u32>> {
        let mut path = vec![pid];
        while !self.is_known(*path.last()?) {
            let parent = parent_of(*path.last()?)?;
            if parent == 0 || path.len() == DEPTH_MAX {
                return None;
            }
            path.push(parent);
        }
        Some(path)
    }

    /// Asked twice: a number that came to mean another process in between shows.
    fn is_relative(&self, pid: u32) -> bool {
        let path = self.path(pid);
        path.is_some() && path == self.path(pid)
    }

    /// Takes a process in, or says why not.
    pub fn admit(&mut self, peer: Peer) -> Result<(), String> {
        if peer.pid == 0 {
            return Err("a process that cannot be seen from here is not the command's".into());
        }
        if peer.uid != self.own_uid && !self.is_relative(peer.pid) {
            return Err(format!(
                "process {} of user {} is not known to be the command's",
                peer.pid, peer.uid
            ));
        }
        if self.known.len() >= KIN_MAX {
            self.known.retain(|_, process| is_alive(process));
        }
        if let Some(process) = peer.process
            && self.known.len() < KIN_MAX
        {
            self.known.insert(peer.pid, process);
        }
        Ok(())
    }
}
