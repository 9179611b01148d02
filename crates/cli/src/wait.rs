// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does debox do with signals while the command runs?
//!
//! All signals are blocked in every thread and read from a signalfd by the
//! main thread. What the terminal sends goes to the whole foreground process
//! group, so the command has it already; what somebody sent to debox alone is
//! passed on. When the command stops, debox stops as well, so that the shell
//! gets its terminal back.

use crate::error::Error;
use crate::inherited::empty_set;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

/// A signal that was sent to debox.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    pub signal: i32,
    pub sender: u32,
    /// By kill and the like, not by the kernel (a terminal, a child's end).
    pub by_process: bool,
}

pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// `Inherited::take` has blocked the signals that are read here.
    pub fn open() -> Result<Self, Error> {
        let mut all = empty_set();
        // SAFETY: the set is a valid local, the descriptor is owned at once.
        unsafe {
            libc::sigfillset(&mut all);
            let fd = libc::signalfd(-1, &all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(Error::system("opening a signalfd")(
                    io::Error::last_os_error(),
                ));
            }
            Ok(Self {
                fd: OwnedFd::from_raw_fd(fd),
            })
        }
    }

    pub fn next(&self) -> Option<Arrived> {
        // SAFETY: all-zero is valid; read fills at most the struct.
        let info = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            let got = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size);
            if got != size as isize {
                return None;
            }
            info
        };
        Some(Arrived {
            signal: info.ssi_signo as i32,
            sender: info.ssi_pid,
            by_process: info.ssi_code <= 0,
        })
    }

    /// A signal that arrived while debox was starting and means "stop".
    pub fn wants_end(&self) -> Option<i32> {
        let mut end = None;
        while let Some(arrived) = self.next() {
            if matches!(
                arrived.signal,
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT
            ) {
                end = Some(arrived.signal);
            }
        }
        end
    }

    /// Waits for a signal or one of the descriptors, or until the deadline.
    pub fn wait(&self, others: &[BorrowedFd<'_>], until: Option<Instant>) {
        let mut list = vec![libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        list.extend(others.iter().map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        let timeout = until.map_or(-1, |until| {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: waking before the deadline would spin.
            i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        // SAFETY: a valid list of its length.
        unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, timeout) };
    }
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

/// Stops debox itself until somebody continues it, and sees to it that the
/// command continues, too.
fn stop_along(pid: libc::pid_t) {
    // SAFETY: stops this process; SIGSTOP needs no memory.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    // A shell continues the whole group, the command included. If only debox
    // was continued, it passes that on.
    std::thread::sleep(Duration::from_millis(10));
    if state_of(pid) == Some(b'T') {
        send(pid, libc::SIGCONT);
    }
}

/// Waits until the command has ended, passing signals on. `along`: debox stops
/// also when the command was stopped by SIGSTOP, not only when a terminal
/// stopped it.
pub fn command_wait(pid: libc::pid_t, signals: &Signals, along: bool) -> Result<Ended, Error> {
    loop {
        let mut status = 0;
        // SAFETY: fills a local.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED) };
        if got == pid {
            if libc::WIFEXITED(status) {
                return Ok(Ended::Code(libc::WEXITSTATUS(status)));
            }
            if libc::WIFSIGNALED(status) {
                return Ok(Ended::Signal(libc::WTERMSIG(status)));
            }
            if libc::WIFSTOPPED(status) && (along || libc::WSTOPSIG(status) != libc::SIGSTOP) {
                stop_along(pid);
            }
            continue;
        }
        if got < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(Error::system("waiting for the command")(error));
        }
        signals.wait(&[], None);
        while let Some(arrived) = signals.next() {
            // The command's own signals to its parent, or to its whole group,
            // are not meant to come back to it.
            let own = arrived.sender == pid as u32;
            let for_us = matches!(arrived.signal, libc::SIGCHLD | libc::SIGCONT);
            if arrived.by_process && !own && !for_us {
                send(pid, arrived.signal);
            }
        }
    }
}

/// Ends debox the way the command ended, so that a shell sees the same.
pub fn end_as(ended: Ended) -> i32 {
    let signal = match ended {
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
