// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who looks after events while the main thread waits for the command?

use super::actor::{Actor, pause};
use crate::error::Error;
use debox_client::AccountView;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// A thread that sleeps until there are events.
pub struct Worker {
    stop: OwnedFd,
    stale: Arc<AtomicBool>,
    thread: JoinHandle<(AccountView, Actor)>,
}

impl Worker {
    pub fn start(mut view: AccountView, mut actor: Actor) -> Result<Self, Error> {
        // SAFETY: no memory involved; the descriptor is owned at once.
        let stop = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
            if fd < 0 {
                return Err(Error::system("creating an eventfd")(
                    std::io::Error::last_os_error(),
                ));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let stopped = stop
            .try_clone()
            .map_err(Error::system("duplicating an eventfd"))?;
        let stale = Arc::new(AtomicBool::new(false));
        let told = stale.clone();
        let thread = std::thread::Builder::new()
            .name("debox-actor".into())
            .spawn(move || {
                let since = Instant::now();
                loop {
                    let events = view
                        .details
                        .as_ref()
                        .map_or(-1, |details| details.events.fd().as_raw_fd());
                    let mut list = [stopped.as_raw_fd(), events].map(|fd| libc::pollfd {
                        fd,
                        events: libc::POLLIN,
                        revents: 0,
                    });
                    let wait = pause(&actor, since.elapsed()).as_millis() as i32;
                    // SAFETY: a valid list of its length.
                    unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, wait) };
                    actor.turn(&mut view, &mut |_| {});
                    // Relaxed: nothing else is read on the strength of it.
                    told.store(view.stale(), Ordering::Relaxed);
                    if list[0].revents != 0 {
                        return (view, actor);
                    }
                }
            })
            .map_err(Error::system("starting the actor's thread"))?;
        Ok(Self {
            stop,
            stale,
            thread,
        })
    }

    pub fn stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    pub fn finish(self) -> (AccountView, Actor) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes that live long enough.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
