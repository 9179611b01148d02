// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of one thread at one moment?

use std::fmt;

use serde::{Serialize, Serializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running {
        cpu: u32,
    },
    /// Ready to run, and no CPU is free.
    Queued {
        cpu: u32,
    },
    Asleep,
    /// "D": signals do not end it.
    Uninterruptible,
    /// A kernel thread without work.
    Idle,
    /// By SIGSTOP or the like.
    Stopped,
    /// By its tracer.
    Traced,
    Zombie,
    Dead,
}

impl State {
    /// The letter of ps and /proc.
    pub fn letter(self) -> char {
        match self {
            State::Running { .. } | State::Queued { .. } => 'R',
            State::Asleep => 'S',
            State::Uninterruptible => 'D',
            State::Idle => 'I',
            State::Stopped => 'T',
            State::Traced => 't',
            State::Zombie => 'Z',
            State::Dead => 'X',
        }
    }

    /// Whether it is off its CPU for a reason.
    pub fn waits(self) -> bool {
        matches!(self, State::Asleep | State::Uninterruptible | State::Idle)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Running { cpu } => write!(f, "running on CPU {cpu}"),
            State::Queued { cpu } => write!(f, "waiting for CPU {cpu}"),
            State::Asleep => f.write_str("asleep"),
            State::Uninterruptible => f.write_str("asleep, not to be interrupted (D)"),
            State::Idle => f.write_str("idle"),
            State::Stopped => f.write_str("stopped by a signal"),
            State::Traced => f.write_str("stopped by its tracer"),
            State::Zombie => f.write_str("ended, not waited for"),
            State::Dead => f.write_str("ended"),
        }
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            State::Running { .. } => "running",
            State::Queued { .. } => "queued",
            State::Asleep => "asleep",
            State::Uninterruptible => "uninterruptible",
            State::Idle => "idle",
            State::Stopped => "stopped",
            State::Traced => "traced",
            State::Zombie => "zombie",
            State::Dead => "dead",
        })
    }
}

/// How long it is off its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    pub ns: u64,
    /// It may be longer.
    pub at_least: bool,
}

impl Asleep {
    /// "At least nothing" does not.
    pub fn says_something(&self) -> bool {
        self.ns > 0 || !self.at_least
    }
}

/// As they were when it entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// None outside of a system call.
    pub call: Option<i32>,
    pub args: [u64; 6],
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    Mutex,
    Semaphore,
    Rwsem,
    /// Behind a futex with priority inheritance.
    RtMutex,
}

/// The lock of the kernel that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLock {
    pub kind: LockKind,
    /// The thread that holds it, where the lock says so.
    pub owner: Option<u32>,
    /// Several may hold it for reading; the owner is the last of them.
    pub readers: bool,
}

/// A lock that was found from its waiter, on a kernel that does not name it: which kind
/// it is says the function that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLock {
    pub mutex_owner: Option<u32>,
    pub rwsem_owner: Option<u32>,
    pub rwsem_readers: bool,
    /// Addresses in the kernel that lie on the stack below the waiter.
    pub code: Vec<u64>,
}

impl FoundLock {
    /// By the functions that `code` is in.
    pub fn kind<'a>(&self, functions: impl Iterator<Item = &'a str>) -> Option<KernelLock> {
        for name in functions {
            if name.starts_with("rwsem_down_") {
                return Some(KernelLock {
                    kind: LockKind::Rwsem,
                    owner: self.rwsem_owner,
                    readers: self.rwsem_readers,
                });
            }
            if name.starts_with("__mutex_lock") || name.starts_with("__ww_mutex_lock") {
                return Some(KernelLock {
                    kind: LockKind::Mutex,
                    owner: self.mutex_owner,
                    readers: false,
                });
            }
            if name.starts_with("__down") {
                return Some(KernelLock {
                    kind: LockKind::Semaphore,
                    owner: None,
                    readers: false,
                });
            }
        }
        None
    }
}

#[derive(Clone, Debug)]
pub struct Task {
    pub pid: u32,
    pub tid: u32,
    pub parent: u32,
    /// 0 if none.
    pub tracer: u32,
    pub comm: String,
    pub kernel: bool,
    /// In a 32-bit system call.
    pub compat: bool,
    pub state: State,
    pub since: Option<Asleep>,
    pub registers: Option<Registers>,
    /// Alike for those that share their memory; 0 if not known.
    pub memory: u64,
    pub lock: Option<KernelLock>,
    pub found: Option<FoundLock>,
    /// Return addresses in the kernel, innermost first. Never shown.
    pub stack: Vec<u64>,
    /// Their functions, once they have been looked up.
    pub functions: Vec<String>,
}

impl Task {
    pub fn call(&self) -> Option<i32> {
        self.registers.and_then(|registers| registers.call)
    }

    /// Whether a function of this name is on its kernel stack.
    pub fn is_in(&self, function: &str) -> bool {
        self.functions
            .iter()
            .any(|name| debox_labels::plain(name) == function)
    }

    /// Whether one is whose name begins so.
    pub fn is_in_any(&self, prefix: &str) -> bool {
        self.functions.iter().any(|name| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_found_is_what_its_waiter_is_in() {
        let found = FoundLock {
            mutex_owner: Some(1),
            rwsem_owner: Some(2),
            rwsem_readers: true,
            code: Vec::new(),
        };
        let owner = |name: &str| {
            let lock = found.kind(["schedule_preempt_disabled", name].into_iter());
            lock.map(|lock| (lock.owner, lock.readers))
        };
        assert_eq!(owner("__mutex_lock.constprop.0"), Some((Some(1), false)));
        assert_eq!(owner("rwsem_down_write_slowpath"), Some((Some(2), true)));
        assert_eq!(owner("__down_common"), Some((None, false)));
        // A node of some other list that looks like a waiter.
        assert_eq!(owner("io_schedule"), None);
    }
}
