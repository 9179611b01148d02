// SPDX-License-Identifier: MIT OR Apache-2.0
//! With which signals, descriptors and limits was debox started, so that the
//! command it runs can be started with exactly the same?

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Signals 1 to 64.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

static NOTED: AtomicBool = AtomicBool::new(false);
/// Bit n - 1: signal n was ignored.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Bit n: descriptor n was closed.
static CLOSED_STDIO: AtomicU32 = AtomicU32::new(0);

/// The kernel's struct sigaction: handler, flags, restorer, mask. By its own call, since libc refuses to tell of
/// the two signals that it keeps for itself, and handles them once there are threads.
type Action = [usize; 4];

fn handler(signal: i32) -> usize {
    let mut now: Action = [0; 4];
    // SAFETY: fills a local of the kernel's size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            std::ptr::null::<Action>(),
            now.as_mut_ptr(),
            size_of::<u64>(),
        )
    };
    now[0]
}

fn handler_set(signal: i32, handler: usize) {
    let action: Action = [handler, 0, 0, 0];
    // SAFETY: sets a disposition of this process, to none of ours; SIGKILL and SIGSTOP fail.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            std::ptr::null::<Action>(),
            size_of::<u64>(),
        )
    };
}

/// Runs before Rust's runtime: only system calls and atomics in here.
pub fn note_before_runtime() {
    let mut ignored = 0;
    for signal in SIGNALS {
        if handler(signal) == libc::SIG_IGN {
            ignored |= 1u64 << (signal - 1);
        }
    }
    let mut closed = 0;
    for fd in 0..3 {
        // SAFETY: F_GETFD touches no memory.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            closed |= 1 << fd;
        }
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    CLOSED_STDIO.store(closed, Ordering::Relaxed);
    NOTED.store(true, Ordering::Relaxed);
}

/// What the command must find as debox found it.
pub struct Inherited {
    ignored: u64,
    mask: libc::sigset_t,
    limits: Vec<(u32, libc::rlimit64)>,
    /// Descriptors beyond stdio that were open at the start.
    descriptors: Vec<i32>,
}

impl Inherited {
    /// To be called first in `main`: blocks every signal, so that all threads
    /// started later leave them to the main thread's signalfd.
    pub fn take() -> Self {
        crate::names_settle();
        if !NOTED.load(Ordering::Relaxed) {
            note_before_runtime();
        }
        let closed = CLOSED_STDIO.load(Ordering::Relaxed);
        for fd in 0..3 {
            if closed & (1 << fd) != 0 {
                // The runtime's /dev/null must not reach the command.
                // SAFETY: sets a flag on a descriptor number.
                unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
        }
        let descriptors = open_descriptors();
        let mut limits = Vec::new();
        // The kernel side may raise the first, the collector raises the other.
        for resource in [libc::RLIMIT_MEMLOCK, libc::RLIMIT_NOFILE] {
            let mut limit = libc::rlimit64 {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: fills a local.
            if unsafe { libc::getrlimit64(resource, &mut limit) } == 0 {
                limits.push((resource, limit));
            }
        }
        let mut mask = empty_set();
        // SAFETY: both sets are valid locals; faults of debox itself stay
        // deliverable.
        unsafe {
            let mut all: libc::sigset_t = empty_set();
            libc::sigfillset(&mut all);
            for fault in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGABRT,
                libc::SIGTRAP,
                libc::SIGSYS,
            ] {
                libc::sigdelset(&mut all, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut mask);
            // Inherited as ignored it would make the command's status vanish.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        Self {
            ignored: IGNORED.load(Ordering::Relaxed),
            mask,
            limits,
            descriptors,
        }
    }

    /// Puts signals and limits back. Also between fork and exec: system calls only.
    pub fn restore(&self) {
        for signal in SIGNALS {
            let wanted = if self.ignored & (1u64 << (signal - 1)) != 0 {
                libc::SIG_IGN
            } else {
                libc::SIG_DFL
            };
            if handler(signal) != wanted {
                handler_set(signal, wanted);
            }
        }
        for (resource, limit) in &self.limits {
            // SAFETY: reads a value of ours.
            unsafe { libc::setrlimit64(*resource, limit) };
        }
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
    }

    /// Lets go of what belongs to the command alone, once it has its copies: a
    /// pipe must end when the command closes it, not when debox ends.
    pub fn release_descriptors(&mut self, keep_stdout: bool) {
        for fd in self.descriptors.drain(..) {
            // SAFETY: these were open before any of ours existed, and no code
            // of debox was told of them.
            unsafe { libc::close(fd) };
        }
        // SAFETY: replaces our own copies of the standard streams.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if null >= 0 {
                libc::dup2(null, 0);
                if !keep_stdout {
                    libc::dup2(null, 1);
                }
                if null > 2 {
                    libc::close(null);
                }
            }
        }
    }
}

pub(crate) fn empty_set() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the local.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        set
    }
}

fn open_descriptors() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let listed: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    // The directory's own descriptor is among them and closed by now.
    // SAFETY: F_GETFD touches no memory.
    listed
        .into_iter()
        .filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1)
        .collect()
}
