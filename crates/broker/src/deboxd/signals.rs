// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do signals reach the one loop, without a handler? And how is it noticed that it has got stuck?

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// SIGTERM, SIGINT and SIGHUP, blocked and read from a descriptor; and when systemd is to be told that the loop
/// goes on, which is asked of the loop itself.
pub struct Signals {
    signals: OwnedFd,
    beat: Option<OwnedFd>,
    /// Readable when one of them is.
    either: OwnedFd,
}

pub enum Signal {
    Stop(u32),
    Reload,
    /// So much time has passed.
    Beat,
}

fn beating(every: Duration) -> Result<OwnedFd, Errno> {
    let timer = timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )?;
    let every = Timespec {
        tv_sec: every.as_secs() as i64,
        tv_nsec: every.subsec_nanos().into(),
    };
    let times = Itimerspec {
        it_interval: every,
        it_value: every,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
    Ok(timer)
}

impl Signals {
    /// To be called while there is one thread: later ones inherit the mask.
    pub fn new(beat_every: Option<Duration>) -> Result<Self, Errno> {
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
        let signals = unsafe { OwnedFd::from_raw_fd(fd) };
        let beat = beat_every.map(beating).transpose()?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [Some(&signals), beat.as_ref()].into_iter().flatten() {
            epoll::add(
                &either,
                fd,
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Self {
            signals,
            beat,
            either,
        })
    }

    pub fn next(&self) -> Option<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        let Ok(read) = rustix::io::read(&self.signals, &mut info) else {
            let mut times = [0; size_of::<u64>()];
            rustix::io::read(self.beat.as_ref()?, &mut times).ok()?;
            return Some(Signal::Beat);
        };
        // ssi_signo is the first field.
        let number = u32::from_ne_bytes(info.get(..4)?.try_into().ok()?);
        (read == info.len()).then_some(match number as i32 {
            libc::SIGHUP => Signal::Reload,
            _ => Signal::Stop(number),
        })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}
