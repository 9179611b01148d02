// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the broker ask of the kernel side?
//!
//! The broker itself never touches BPF. It talks to this trait, so that every
//! rule of the protocol can be tested without privileges, and so that a bug in
//! the handling of clients cannot become a bug in the handling of programs
//! attached to the kernel.

use std::os::fd::{BorrowedFd, OwnedFd};

/// Something the kernel side could not do; `errno` is positive.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct KernelError {
    pub errno: i32,
    /// What happened and the remedy; it goes to the client as it is (so it
    /// must never contain a kernel address).
    pub text: String,
}

impl KernelError {
    pub fn new(errno: i32, text: impl Into<String>) -> Self {
        Self {
            errno,
            text: text.into(),
        }
    }
}

/// Who reads what is recorded, and by what right. The kernel side lets a
/// watcher without privileges see exactly what ptrace's read access would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watcher {
    /// Real ids.
    pub uid: u32,
    pub gid: u32,
    /// Owner of the user namespaces that it made; `None`: not known.
    pub euid: Option<u32>,
    pub cap_permitted: u64,
    /// Has CAP_SYS_PTRACE, effective in its user namespace.
    pub sys_ptrace: bool,
    /// The number of its user namespace.
    pub user_ns: u32,
    /// May watch everybody.
    pub privileged: bool,
}

/// The maps of one new segment of slots.
#[derive(Debug)]
pub struct Segment {
    pub id: u32,
    /// Frozen: mappable, writable by nobody but the kernel side.
    pub record: OwnedFd,
    pub control: OwnedFd,
    /// Threads of the process that were bound now.
    pub threads: u32,
    /// Its pieces of memory, for [`Kernel::memory_held`].
    pub memory: Vec<u32>,
}

/// The maps of one new account.
#[derive(Debug)]
pub struct Account {
    pub id: u32,
    pub account: OwnedFd,
    pub cpus_map: OwnedFd,
    pub cpus: u32,
    pub cpu_stride: u64,
    /// Details map, ring buffer of events, control; where they were asked for.
    pub details: Option<[OwnedFd; 3]>,
    /// Its pieces of memory, for [`Kernel::memory_held`].
    pub memory: Vec<u32>,
}

/// What an account is to hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountOptions {
    pub boundary: bool,
    /// Call sites, culprits, threads and single calls too.
    pub details: bool,
    /// Begin when user stacks can be taken, of what the client has mapped.
    pub user_stacks: bool,
}

/// A call trace that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceWish {
    pub target: TraceTarget,
    /// Entries of one call; 0: the default.
    pub capacity: u32,
    /// Threads traced at one time; 0: the kernel side's choice.
    pub threads: u32,
    /// DEBOX_TRACE_WAY_*
    pub way: u32,
    /// Keys of calls; empty: all.
    pub calls: Vec<u32>,
    /// Patterns of functions; empty: the default.
    pub patterns: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceTarget {
    /// The calls that a process brackets itself.
    Process {
        tgid: u32,
    },
    Account {
        id: u32,
    },
}

/// The shared memory of a call trace, all of it read-only for clients.
#[derive(Debug)]
pub struct Trace {
    pub buffers: OwnedFd,
    pub sums: OwnedFd,
    pub table: OwnedFd,
}

/// A site that was seen for the first time: kernel return addresses, innermost
/// first. They stay in the broker.
#[derive(Debug, Clone)]
pub struct NewStack {
    pub id: u32,
    pub frames: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub site_walks: u64,
    pub site_hits: u64,
    pub site_mismatches: u64,
    pub site_failures: u64,
    pub storage_failures: u64,
    pub slots_exhausted: u64,
    pub switches_hidden: u64,
}

/// Whether the process behind a pidfd is watched, through an account or slots.
pub type WatchedTest = Box<dyn Fn(BorrowedFd<'_>) -> bool + Send>;

/// The kernel side, as the broker sees it.
pub trait Kernel {
    /// Makes the maps of a new segment, binds every thread of `tgid` that has
    /// no slot, and attaches the programs if nobody was watching. EPERM when the
    /// process is not the watcher's to see any more (it may have called exec
    /// since it asked).
    fn segment_create(
        &mut self,
        tgid: u32,
        watcher: Watcher,
        boundary: bool,
    ) -> Result<Segment, KernelError>;
    fn segment_release(&mut self, id: u32);

    /// Begins to bring the unwind tables of what `pid` has mapped into the
    /// kernel, users in turn, and calls `ready` (from any thread) when they are
    /// there or cannot be had.
    fn user_stacks_prepare(&mut self, uid: u32, pid: u32, ready: Box<dyn FnOnce() + Send>) {
        let _ = (uid, pid);
        ready();
    }
    fn account_create(
        &mut self,
        watcher: Watcher,
        options: AccountOptions,
    ) -> Result<Account, KernelError>;
    /// Puts all threads of `tgid`, and with `follow` its future children, into
    /// the account; returns the number of threads bound now. EPERM when the
    /// account's watcher may not see one of them, EBUSY when another account
    /// keeps it.
    fn account_join(&mut self, id: u32, tgid: u32, follow: bool) -> Result<u32, KernelError>;
    /// Takes `tgid` and its children out of the account again: another process
    /// with that number was meant.
    fn account_leave(&mut self, id: u32, tgid: u32);
    fn account_release(&mut self, id: u32);

    /// Which of these pieces of memory, of what was released, some process still
    /// holds.
    fn memory_held(&mut self, memory: &[u32]) -> Vec<u32> {
        let _ = memory;
        Vec::new()
    }

    /// Starts a call trace under the caller's number; attaching may go on
    /// after this has returned.
    fn trace_start(&mut self, id: u32, wish: TraceWish) -> Result<Trace, KernelError> {
        let _ = (id, wish);
        Err(KernelError::new(
            libc::EOPNOTSUPP,
            "this kernel side takes no call traces.",
        ))
    }
    /// Records no more; sums and counters are final when this returns.
    fn trace_stop(&mut self, id: u32) {
        let _ = id;
    }
    fn trace_release(&mut self, id: u32) {
        let _ = id;
    }

    /// Readable when new stacks are waiting; None if that cannot be told. The
    /// same for all its life.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
    fn new_stacks(&mut self) -> Vec<NewStack>;
    /// Site `id` reads the same as site `merged`: count them as one.
    fn site_merged(&mut self, id: u32, merged: u32);

    /// A test that can be asked while the kernel side is at work.
    fn watched_test(&self) -> WatchedTest {
        Box::new(|_| false)
    }

    /// DEBOX_FEATURE_* attached now.
    fn features(&self) -> u64;
    fn counters(&self) -> Counters;
}
