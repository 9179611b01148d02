// SPDX-License-Identifier: MIT OR Apache-2.0
//! How did the command end, and what becomes of signals while it runs?
//!
//! What the terminal sends goes to the whole foreground process group, so the
//! command has it already; what somebody sent to debox alone is passed on. When
//! the command stops, debox stops as well, so that the shell gets its terminal
//! back.

use crate::error::Error;
use crate::inherited::empty_set;
use crate::signals::Signals;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    fn of(status: i32) -> Self {
        match libc::WIFSIGNALED(status) {
            true => Ended::Signal(libc::WTERMSIG(status)),
            false => Ended::Code(libc::WEXITSTATUS(status)),
        }
    }

    /// As a shell shows it.
    pub fn status(self) -> i32 {
        match self {
            Ended::Code(code) => code,
            Ended::Signal(signal) => 128 + signal,
        }
    }

    /// Ends debox the way the command ended, so that a shell sees the same: by
    /// its signal, or with the status that is returned.
    pub fn end_as(self) -> i32 {
        let signal = match self {
            Ended::Code(code) => return code,
            Ended::Signal(signal) => signal,
        };
        // SAFETY: changes limits, a disposition and the mask of this process, which
        // then ends by the signal. The command has left its core dump; a second
        // one, of debox, would only mislead (PR_SET_DUMPABLE also covers dumps
        // that go to a pipe, which ignore the limit).
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            libc::signal(signal, libc::SIG_DFL);
            let mut set = empty_set();
            libc::sigaddset(&mut set, signal);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
        // A signal that did not end us (a stopped tracer, init of a container).
        128 + signal
    }
}

/// Readable when the process has ended.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory involved; the descriptor (close-on-exec by nature) is
    // owned at once.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as i32)),
        }
    }
}

/// A process of ours: its number is its own until its end was seen.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    pub since: Instant,
    ended: Option<Ended>,
}

fn send(pid: libc::pid_t, signal: i32) {
    // SAFETY: no memory involved; the command is a child that was not reaped,
    // so the number is still its own.
    unsafe { libc::kill(pid, signal) };
}

/// 'T' stopped, 'R', 'S', ... as in /proc/PID/stat.
fn state_of(pid: libc::pid_t) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything, also ") R".
    let end = stat.iter().rposition(|b| *b == b')')?;
    stat.get(end + 2).copied()
}

/// It is stopped, also where debox traces it.
fn stands(pid: libc::pid_t) -> bool {
    matches!(state_of(pid), Some(b'T' | b't'))
}

/// Stops debox itself until somebody continues it, and sees to it that the
/// command continues, too.
fn stop_along(pid: libc::pid_t) {
    // SAFETY: stops this process; SIGSTOP needs no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    // A shell continues the whole group, the command included. If only debox
    // was continued, it passes that on.
    std::thread::sleep(Duration::from_millis(10));
    if stands(pid) {
        send(pid, libc::SIGCONT);
    }
}

impl Child {
    pub(crate) fn new(pid: i32) -> Self {
        Self {
            pid,
            since: Instant::now(),
            ended: None,
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<Ended> {
        // What cannot be waited for is gone, and nobody knows how.
        let _ = self.look(libc::WNOHANG);
        self.ended
    }

    pub(crate) fn reap(&mut self) {
        while matches!(self.look(0), Ok(None)) {}
    }

    /// Takes its next change; the signal that stopped it, with WUNTRACED.
    fn look(&mut self, flags: i32) -> io::Result<Option<i32>> {
        if self.ended.is_some() {
            return Ok(Some(0));
        }
        if !self.is_for_us(flags)? {
            return Ok(None);
        }
        let mut status = 0;
        // SAFETY: our own child, and a local for its status.
        match unsafe { libc::waitpid(self.pid, &mut status, flags) } {
            0 => Ok(None),
            got if got < 0 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
            _ if libc::WIFSTOPPED(status) => Ok(Some(libc::WSTOPSIG(status))),
            _ => {
                self.ended = Some(Ended::of(status));
                Ok(Some(0))
            }
        }
    }

    /// Whether there is a change, and it is no stop for whoever of us traces it (splice capture):
    /// the kernel tells that to any thread of ours that asks, and then no more to the one that
    /// traces. So nothing is taken that has not been looked at.
    fn is_for_us(&self, flags: i32) -> io::Result<bool> {
        // SAFETY: plain data.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | flags & libc::WNOHANG;
        // SAFETY: our own child, and a local for what is told.
        let done = unsafe { libc::waitid(libc::P_PID, self.pid as u32, &mut about, flags) };
        if done == 0 {
            return Ok(![0, libc::CLD_TRAPPED].contains(&about.si_code));
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        }
    }

    /// Waits until it has ended, or until then (None), passing signals on.
    /// `along`: debox stops also when the command was stopped by SIGSTOP, not
    /// only when a terminal stopped it.
    pub fn wait(
        &mut self,
        signals: &Signals,
        along: bool,
        until: Option<Instant>,
    ) -> Result<Option<Ended>, Error> {
        loop {
            let changed = self
                .look(libc::WNOHANG | libc::WUNTRACED)
                .map_err(Error::system("waiting for the command"))?;
            if self.ended.is_some() {
                return Ok(self.ended);
            }
            if let Some(signal) = changed {
                self.stops(along, signal);
                continue;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
            signals.wait(&[], until);
            while let Some(arrived) = signals.next() {
                // The command's own signals to its parent, or to its whole
                // group, are not meant to come back to it.
                let own = arrived.sender == self.pid as u32;
                let for_us = matches!(arrived.signal, libc::SIGCHLD | libc::SIGCONT);
                if arrived.by_process && !own && !for_us {
                    send(self.pid, arrived.signal);
                }
            }
        }
    }

    /// It has been stopped by `signal`: so are we, if that goes `along`, until we are continued.
    pub fn stops(&self, along: bool, signal: i32) {
        if stands(self.pid) && (along || signal != libc::SIGSTOP) {
            stop_along(self.pid);
        }
    }

    fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            send(self.pid, signal);
        }
    }

    /// Sends one signal after the other until it has ended, each with its time.
    pub fn end(&mut self, signals: &[(i32, Duration)]) -> Option<Ended> {
        for (signal, patience) in signals {
            self.signal(*signal);
            let until = Instant::now() + *patience;
            while self.ended().is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.ended()
    }
}

/// "SIGTERM", "SIGRTMIN+2", or the number.
pub fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match signal {
        1..=31 => format!("SIG{}", NAMES[signal as usize - 1]),
        s if s >= libc::SIGRTMIN() && s <= libc::SIGRTMAX() => {
            format!("SIGRTMIN+{}", s - libc::SIGRTMIN())
        }
        s => s.to_string(),
    }
}
