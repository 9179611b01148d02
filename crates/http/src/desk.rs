// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the thread that answers get what only another one knows?
//!
//! Who knows is woken ([`Desk::as_fd`]) and gives it ([`Desk::asked`]). However often somebody
//! asks, it is asked for once a second at most.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, oneshot};

/// Whoever knows answers within that, or is told to be stuck.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What was answered is good for so long.
const FRESH: Duration = Duration::from_secs(1);

/// Somebody wants to know.
pub struct Asked<A>(oneshot::Sender<A>);

impl<A> Asked<A> {
    pub fn answer(self, answer: A) {
        // Who asked may have gone.
        let _ = self.0.send(answer);
    }
}

/// Of the thread that answers to others.
pub struct Asker<A> {
    asks: mpsc::Sender<Asked<A>>,
    bell: UnixStream,
    last: Mutex<Option<(Instant, A)>>,
}

/// Of the thread that knows.
pub struct Desk<A> {
    asks: mpsc::Receiver<Asked<A>>,
    bell: OwnedFd,
}

/// # Errors
/// No descriptors are to be had.
pub fn desk<A>() -> io::Result<(Asker<A>, Desk<A>)> {
    let (bell, rings) = UnixStream::pair()?;
    rings.set_nonblocking(true)?;
    bell.set_nonblocking(true)?;
    let (sender, asks) = mpsc::channel();
    let asker = Asker {
        asks: sender,
        bell: rings,
        last: Mutex::new(None),
    };
    let bell = bell.into();
    Ok((asker, Desk { asks, bell }))
}

impl<A: Clone> Asker<A> {
    /// None: nobody answered in [`PATIENCE`].
    pub async fn ask(&self) -> Option<A> {
        // Who asks meanwhile waits for the same.
        let mut last = self.last.lock().await;
        if let Some((when, answer)) = last.as_ref()
            && when.elapsed() < FRESH
        {
            return Some(answer.clone());
        }
        let (sender, receiver) = oneshot::channel();
        self.asks.send(Asked(sender)).ok()?;
        // Full: it rings already.
        let _ = io::Write::write(&mut &self.bell, b"!");
        let answer = tokio::time::timeout(PATIENCE, receiver).await.ok()?.ok()?;
        *last = Some((Instant::now(), answer.clone()));
        Some(answer)
    }
}

impl<A> Desk<A> {
    /// Who asks now, if anybody.
    pub fn asked(&self) -> Option<Asked<A>> {
        let mut rung = [0; 64];
        while rustix::io::read(&self.bell, &mut rung).is_ok_and(|bytes| bytes > 0) {}
        self.asks.try_recv().ok()
    }
}

impl<A> AsFd for Desk<A> {
    /// Readable: somebody asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
