// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do signals reach the one loop, without a handler?

use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// SIGTERM, SIGINT and SIGHUP, blocked and read from a descriptor.
pub struct Signals(OwnedFd);

pub enum Signal {
    Stop(u32),
    Reload,
}

impl Signals {
    /// To be called while there is one thread: later ones inherit the mask.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: the set is initialised by sigemptyset before use; signalfd
        // returns a new descriptor that nobody else owns, or -1.
        let fd = unsafe {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                // A script that runs us in the background had its shell ignore
                // the terminal's Ctrl-C for us: signalfd would see it anyway.
                let mut old = std::mem::MaybeUninit::<libc::sigaction>::uninit();
                if signal == libc::SIGINT
                    && libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()) == 0
                    && old.assume_init_ref().sa_sigaction == libc::SIG_IGN
                {
                    continue;
                }
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return Err(Errno::from_raw_os_error(errno.unwrap_or(libc::EIO)));
        }
        // SAFETY: just made, see above.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn next(&self) -> Option<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        // ssi_signo is the first field.
        let number = u32::from_ne_bytes(info.get(..4)?.try_into().ok()?);
        (read == info.len()).then_some(match number as i32 {
            libc::SIGHUP => Signal::Reload,
            _ => Signal::Stop(number),
        })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
