// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a client read of the links of chains?
//!
//! All of it with privileges. Without, the names and places of its own
//! user's threads; of others what kind of link it is and, of a sleep, the group of its
//! label (where that has a name by then), and no more. (Threads with
//! other rights than their user's count as root's, see `bpf/chain.h`.) One file for
//! all clients of the same right: what they hold is one piece of memory, however
//! often they ask.

use crate::shared_file::SharedFile;
use crate::site::SiteBook;
use debox_abi::{
    DEBOX_CHAIN_CLASS, DEBOX_CHAIN_DISK, DEBOX_CHAIN_SLEEP, DEBOX_SITE_NONE, Pod, debox_chain,
    text_put,
};
use debox_probe::Watcher;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// Users without privileges that are served in a broker's life, 1 MiB each.
const USERS_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct ChainBook {
    /// The first is number 1.
    chains: Vec<debox_chain>,
    /// By user, None: with privileges. And how many links are in.
    files: HashMap<Option<u32>, (SharedFile, usize)>,
}

impl ChainBook {
    /// The number of the first link that is not here yet.
    pub fn next(&self) -> u32 {
        self.chains.len() as u32 + 1
    }

    pub fn add(&mut self, from: u32, chains: Vec<debox_chain>) {
        // Two requests may have been on their way.
        let known = (self.next().saturating_sub(from)) as usize;
        self.chains.extend(chains.into_iter().skip(known));
    }

    /// For this client to read.
    pub fn file(&mut self, watcher: &Watcher, sites: &SiteBook) -> Result<OwnedFd, Errno> {
        let reader = (!watcher.privileged).then_some(watcher.uid);
        if !self.files.contains_key(&reader) {
            if self.files.len() > USERS_MAX {
                return Err(Errno::NOSPC);
            }
            let file = SharedFile::new("debox-chains")?;
            self.files.insert(reader, (file, 0));
        }
        let (file, used) = self.files.get_mut(&reader).ok_or(Errno::NOENT)?;
        let mut bytes = Vec::new();
        for chain in &self.chains[*used..] {
            bytes.extend_from_slice(shown_to(reader, *chain, sites.group(chain.site)).as_bytes());
        }
        file.append(&bytes)?;
        *used = self.chains.len();
        file.for_reading()
    }
}

/// `reader` None: with privileges. `group`: of the label of the link's site.
fn shown_to(reader: Option<u32>, chain: debox_chain, group: Option<&str>) -> debox_chain {
    if reader.is_none_or(|uid| uid == chain.uid && chain.tid != 0) {
        return chain;
    }
    // A disk's name is in /proc/partitions, a device's in /proc/interrupts.
    let device = chain.kind > DEBOX_CHAIN_SLEEP && chain.tid == 0 && chain.uid == 0;
    let group = group.filter(|_| chain.kind == DEBOX_CHAIN_SLEEP);
    let mut comm = if device { chain.comm } else { [0; 16] };
    if let Some(group) = group {
        text_put(&mut comm, group);
    }
    debox_chain {
        comm,
        flags: chain.flags
            | if group.is_some() {
                DEBOX_CHAIN_CLASS
            } else {
                0
            },
        nr: if chain.kind == DEBOX_CHAIN_DISK {
            chain.nr
        } else {
            -1
        },
        site: DEBOX_SITE_NONE,
        uid: 0,
        tid: 0,
        user_stack: 0,
        serial: 0,
        ..chain
    }
}

#[cfg(test)]
mod tests {
    use super::shown_to;
    use debox_abi::*;

    fn link(uid: u32) -> debox_chain {
        debox_chain {
            kind: DEBOX_CHAIN_SLEEP,
            parent: 7,
            site: 3,
            nr: 74,
            uid,
            tid: 41,
            depth: 2,
            user_stack: 9,
            serial: 1,
            comm: b"backup\0\0\0\0\0\0\0\0\0\0".map(|byte| byte as _),
            ..debox_chain::zeroed()
        }
    }

    #[test]
    fn names_of_others_are_withheld() {
        let own = shown_to(Some(1000), link(1000), Some("sync"));
        assert_eq!((own.tid, own.site, own.nr), (41, 3, 74));
        assert_eq!(own.user_stack, 9);
        assert_eq!(own.flags & DEBOX_CHAIN_CLASS, 0);
        let other = shown_to(Some(1000), link(0), None);
        assert_eq!((other.comm, other.flags), ([0; 16], 0));
        let class = shown_to(Some(1000), link(0), Some("sync"));
        assert_eq!(
            (text_get(&class.comm), class.flags),
            ("sync", DEBOX_CHAIN_CLASS)
        );
        assert_eq!((class.tid, class.site, class.nr), (0, DEBOX_SITE_NONE, -1));
        // What runs has no label.
        let runs = debox_chain {
            kind: DEBOX_CHAIN_RAN_USER,
            ..link(0)
        };
        assert_eq!(shown_to(Some(1000), runs, Some("sync")).comm, [0; 16]);
        assert_eq!((other.tid, other.uid, other.nr), (0, 0, -1));
        assert_eq!((other.user_stack, other.serial), (0, 0));
        assert_eq!(
            (other.kind, other.parent, other.site),
            (DEBOX_CHAIN_SLEEP, 7, DEBOX_SITE_NONE)
        );
        let all = shown_to(None, link(0), Some("sync"));
        assert_eq!(all.tid, 41);
    }
}
