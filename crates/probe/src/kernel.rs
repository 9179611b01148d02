// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the broker ask of the kernel side?
//!
//! The broker itself never touches BPF. It talks to this trait, so that every
//! rule of the protocol can be tested without privileges, and so that a bug in
//! the handling of clients cannot become a bug in the handling of programs
//! attached to the kernel. [`Probe`](crate::Probe) is what stands behind it; the
//! broker's tests put memory files there.

use std::os::fd::{BorrowedFd, OwnedFd};

use debox_labels::LabelTable;

use crate::{Bound, Error, Trace, TraceOptions, TraceTarget, Whom};

/// Who reads what is recorded, and by what right: `struct watcher` of
/// `bpf/may_read.h`. The kernel side lets a watcher without privileges see
/// exactly what ptrace's read access would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watcher {
    /// Real ids, in the first user namespace.
    pub uid: u32,
    pub gid: u32,
    /// Owner of the user namespaces that it made; `None`: not known.
    pub euid: Option<u32>,
    pub cap_permitted: u64,
    /// Has CAP_SYS_PTRACE, effective in its user namespace.
    pub sys_ptrace: bool,
    /// The number of its user namespace.
    pub user_ns: u32,
    /// May watch everybody: nothing is asked about what it sees.
    pub privileged: bool,
}

impl Watcher {
    /// Root with all capabilities, in the first user namespace.
    pub const fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            euid: Some(0),
            cap_permitted: u64::MAX,
            sys_ptrace: true,
            user_ns: 0xeffffffd,
            privileged: true,
        }
    }
}

/// A process's slots: [`debox_abi::DEBOX_SEGMENT_SLOTS`] record pages and as
/// many control pages.
#[derive(Debug)]
pub struct Segment {
    pub id: u32,
    /// Frozen: mappable, writable by nobody but the kernel side.
    pub record: OwnedFd,
    pub control: OwnedFd,
    /// Threads of the process that got a slot now.
    pub threads: u32,
    /// Its pieces of memory, for [`Kernel::memory_held`].
    pub memory: Vec<u32>,
}

/// What a segment's records are to say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentOptions {
    /// Call boundaries from the tracepoints.
    pub boundary: bool,
    /// What sleeps waited for.
    pub chains: bool,
    /// Interrupts: [`debox_abi::DEBOX_FEATURE_IRQ`] where they can be had.
    pub irq: bool,
}

/// What an account is to hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountOptions {
    /// Call boundaries from the tracepoints.
    pub boundary: bool,
    /// Its programs tell of their calls themselves ([`debox_abi::DEBOX_REQ_SPLICE`]).
    pub spliced: bool,
    /// Whether they tell of each is counted, too.
    pub audit: bool,
    /// Call sites, culprits, threads and single calls too (with `boundary` or `spliced`).
    pub details: bool,
    /// Interrupts too: [`debox_abi::DEBOX_FEATURE_IRQ`] where they can be had.
    pub irq: bool,
    /// How often a clock of CPU time strikes, with `details`; 0: there is none.
    pub on_cpu_hz: u32,
}

/// Of whose calls the kernel is to tell, in an account of spliced programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    pub tid: u32,
    /// Calls that are open now are counted otherwise.
    pub open_counted: bool,
    /// Its own calls count only from when it gives itself a name.
    pub renames: bool,
    /// Its own calls alone, from the program on that it is about to execute.
    pub executes: bool,
}

/// Who comes along with a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Join {
    /// Its future children.
    pub follow: bool,
    /// Those that it has, and theirs.
    pub descendants: bool,
    /// ... without these processes.
    pub except: [u32; 2],
}

/// An account: one `debox_account`, and one `debox_account_cpu` per CPU.
#[derive(Debug)]
pub struct Account {
    pub id: u32,
    /// Frozen, both.
    pub account: OwnedFd,
    pub cpus_map: OwnedFd,
    pub cpus: u32,
    pub cpu_stride: u64,
    /// Where they were asked for.
    pub details: Option<Details>,
    /// Its pieces of memory, for [`Kernel::memory_held`].
    pub memory: Vec<u32>,
}

/// What an account tells beyond its sums.
#[derive(Debug)]
pub struct Details {
    /// One `debox_details`, frozen.
    pub details: OwnedFd,
    /// A BPF ring buffer of `DEBOX_EVENTS_BYTES`.
    pub events: OwnedFd,
    /// One `debox_account_control`, for the client to write.
    pub control: OwnedFd,
    /// One `debox_chain_sums`, frozen.
    pub chains: OwnedFd,
    /// One `debox_objects`, frozen.
    pub objects: OwnedFd,
    /// One `debox_on_cpu`, frozen; where it was asked for.
    pub on_cpu: Option<OwnedFd>,
    /// One `debox_lives`, frozen.
    pub lives: OwnedFd,
}

/// A stack seen for the first time. Its addresses stay in the broker.
#[derive(Debug, Clone)]
pub struct NewStack {
    /// Its site number.
    pub id: u32,
    /// Return addresses, innermost first.
    pub frames: Vec<u64>,
    /// DEBOX_LABEL_*, from the kernel side.
    pub label: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub site_walks: u64,
    pub site_hits: u64,
    pub site_mismatches: u64,
    pub site_failures: u64,
    pub storage_failures: u64,
    pub slots_exhausted: u64,
    /// Switches back to a watched thread that the tracepoint did not show,
    /// made up for from the scheduler's books.
    pub switches_hidden: u64,
}

/// What the kernel side takes, for all who watch by it.
#[derive(Debug, Default)]
pub struct Costs {
    /// Of its maps; None: not known.
    pub tables_bytes: Option<u64>,
    /// Of its programs, if that was asked for; else why it is not known.
    pub run_time: Option<Result<RunTime, String>>,
}

/// By the kernel's own statistics.
#[derive(Debug)]
pub struct RunTime {
    /// In the times in which it was taken.
    pub ns: u64,
    /// While a copy of it is open the kernel takes it; None: it always does.
    pub statistics: Option<OwnedFd>,
}

/// Whether the process behind a pidfd is watched, through an account or slots:
/// its first thread tells.
pub type WatchedTest = Box<dyn Fn(BorrowedFd<'_>) -> bool + Send>;

/// The kernel side, as the broker sees it. The text of an [`Error`] goes to the
/// client as it is.
pub trait Kernel {
    /// Makes the maps of a new segment, binds every thread of `tgid` that has
    /// no slot, and attaches the programs if nobody was watching. EPERM when the
    /// process is not the watcher's to see any more (it may have called exec
    /// since it asked).
    fn segment_create(
        &mut self,
        tgid: u32,
        watcher: Watcher,
        options: SegmentOptions,
    ) -> Result<Segment, Error>;
    fn segment_release(&mut self, id: u32);

    /// Begins to bring the unwind tables of what `pid` has mapped into the
    /// kernel, users in turn, and calls `ready` (from any thread) when they are
    /// there or cannot be had.
    fn user_stacks_prepare(&mut self, uid: u32, pid: u32, ready: Box<dyn FnOnce() + Send>);
    fn account_create(
        &mut self,
        watcher: Watcher,
        options: AccountOptions,
    ) -> Result<Account, Error>;
    /// Puts all threads of `tgid` into the account, and what `join` says. EPERM when the
    /// account's watcher may not see one of them, EBUSY when another account
    /// keeps it.
    fn account_join(&mut self, id: u32, tgid: u32, join: Join) -> Result<Bound, Error>;
    /// Puts all that fit into the account whom its watcher may see and no other account
    /// keeps, and with `whom.follow` those that come to fit by fork or exec.
    fn account_select(&mut self, id: u32, whom: &Whom) -> Result<Bound, Error>;
    /// Whoever asks for whom the account asked goes before it from now on.
    fn account_yield(&mut self, id: u32);
    /// The kernel tells from now on when calls begin and end of the threads that share memory with
    /// one of the account's, a spliced one. How many there are.
    fn account_boundary(&mut self, id: u32, whose: Boundary) -> Result<u32, Error>;
    /// Takes `tgid` and its descendants out of the account again: another process
    /// with that number was meant.
    fn account_leave(&mut self, id: u32, tgid: u32);
    fn account_release(&mut self, id: u32);
    /// The account's threads that are off the CPU now.
    fn away(&mut self, id: u32) -> Result<Vec<debox_abi::debox_away>, Error>;

    /// Numbers and beginnings of the kernel's functions in the account's samples. The
    /// addresses stay in the broker.
    fn on_cpu_functions(&mut self, id: u32) -> Vec<(u32, u64)>;

    /// Which of these pieces of memory, of what was released, somebody in user
    /// space may still hold: by a descriptor, a mapping, or in a socket.
    fn memory_held(&mut self, memory: &[u32]) -> Vec<u32>;

    /// Starts a call trace under the caller's number; attaching may go on
    /// after this has returned.
    fn trace_start(
        &mut self,
        id: u32,
        target: TraceTarget,
        options: TraceOptions,
    ) -> Result<Trace, Error>;
    /// Records no more; sums and counters are final when this returns.
    fn trace_stop(&mut self, id: u32);
    fn trace_release(&mut self, id: u32);

    /// Readable when new stacks are waiting; None if that cannot be told. The
    /// same for all its life.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
    /// When to call [`Kernel::new_stacks`] even if nothing is readable; None:
    /// not at all.
    fn due(&self) -> Option<std::time::Duration>;
    /// Those seen since the last call.
    fn new_stacks(&mut self) -> Vec<NewStack>;
    /// Site `id` reads the same as site `merged`: count them as one.
    fn site_merged(&mut self, id: u32, merged: u32);

    /// The links of chains from number `from` on, which are complete and will not
    /// change. One of kind NONE is nobody's.
    fn chains(&mut self, from: u32) -> Vec<debox_abi::debox_chain>;

    /// From now on the kernel side gives places their label as it meets them;
    /// `numbers`: of each rule's.
    fn labels_set(&mut self, table: &LabelTable, numbers: &[u8]) -> Result<(), Error>;

    /// A test that can be asked while the kernel side is at work.
    fn watched_test(&self) -> WatchedTest;

    /// `DEBOX_FEATURE_*` attached now; 0 when nobody is watched.
    fn features(&self) -> u64;
    fn counters(&self) -> Counters;
    /// `run_time`: from here on the kernel is to take that of the programs.
    fn costs(&self, run_time: bool) -> Costs;
}
