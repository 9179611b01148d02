// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which signals were sent to debox?
//!
//! All signals are blocked in every thread and read from a signalfd by the
//! main thread; `child.rs` says which are passed on.

use crate::error::Error;
use crate::inherited::empty_set;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;

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
    /// From here on the kernel tells of children that have ended, and no more of those that stop: whoever traces would be
    /// woken twice at each of their stops, once for nothing. A child that job control stops is there to be looked for.
    pub fn stops_untold() {
        // SAFETY: plain data, and an action that is none.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            action.sa_flags = libc::SA_NOCLDSTOP;
            libc::sigaction(libc::SIGCHLD, &action, std::ptr::null_mut());
        }
    }

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
