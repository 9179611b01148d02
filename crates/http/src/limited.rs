// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does nobody keep others away: by many connections, by saying nothing, by reading slowly?

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many are there at once; more wait to be accepted.
    pub connections: usize,
    /// Whoever connects says within that all of what they want, and not only a first letter,
    pub request: Duration,
    /// and is gone by then, however slowly they speak or read.
    pub longest: Duration,
}

/// Who is at the other end, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// As it connected. None: over TCP nobody knows, or the kernel did not say.
    pub uid: Option<u32>,
}

/// What a connection tells of who made it.
pub trait OfPeer {
    fn peer(&self) -> Peer;
}

impl OfPeer for TcpStream {
    fn peer(&self) -> Peer {
        Peer { uid: None }
    }
}

impl OfPeer for UnixStream {
    fn peer(&self) -> Peer {
        Peer {
            uid: self.peer_cred().ok().map(|credentials| credentials.uid()),
        }
    }
}

/// Where in a request's head somebody is. It ends with an empty line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    InLine,
    LineBegins,
    Over,
}

impl Head {
    fn after(self, bytes: &[u8]) -> Self {
        bytes.iter().fold(self, |head, byte| match (head, byte) {
            (Self::Over, _) | (Self::LineBegins, b'\n') => Self::Over,
            (Self::LineBegins, b'\r') | (_, b'\n') => Self::LineBegins,
            _ => Self::InLine,
        })
    }
}

/// A connection that is over in time.
pub struct Timed<S> {
    stream: S,
    head: Head,
    longest: Duration,
    end: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl<S> Timed<S> {
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(context)?;
        let before = into.filled().len();
        let got = pin!(&mut self.stream).poll_read(context, into);
        if self.head == Head::Over {
            return got;
        }
        self.head = self.head.after(&into.filled()[before..]);
        if self.head == Head::Over {
            let end = tokio::time::Instant::now() + self.longest;
            self.end.as_mut().reset(end);
        }
        got
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.in_time(context)?;
        pin!(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(context)
    }
}

/// Accepts so many, of which each is over in time.
pub struct Limited<L> {
    listener: L,
    limits: Limits,
    room: Arc<Semaphore>,
}

impl<L> Limited<L> {
    pub fn new(listener: L, limits: Limits) -> Self {
        Self {
            listener,
            limits,
            room: Arc::new(Semaphore::new(limits.connections)),
        }
    }
}

impl<L: Listener> Listener for Limited<L>
where
    L::Io: Unpin,
{
    type Io = Timed<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let room = loop {
            // It is never closed.
            if let Ok(room) = Arc::clone(&self.room).acquire_owned().await {
                break room;
            }
        };
        let (stream, address) = self.listener.accept().await;
        let timed = Timed {
            stream,
            head: Head::InLine,
            longest: self.limits.longest,
            end: Box::pin(tokio::time::sleep(self.limits.request)),
            _room: room,
        };
        (timed, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl<L: Listener> Connected<IncomingStream<'_, Limited<L>>> for Peer
where
    L::Io: Unpin + OfPeer,
{
    fn connect_info(incoming: IncomingStream<'_, Limited<L>>) -> Self {
        incoming.io().stream.peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_over_with_an_empty_line() {
        for (text, over) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\nHost: a\n\n", true),
            ("GET / HTTP/1.1\r\n\r\nmore", true),
            ("G", false),
            ("GET / HTTP/1.1\r\nHost: a\r\n", false),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r", false),
            ("\r\r\r", false),
        ] {
            assert_eq!(
                Head::InLine.after(text.as_bytes()) == Head::Over,
                over,
                "{text:?}"
            );
            // In whatever pieces it comes.
            let letters = text.as_bytes().chunks(1);
            let head = letters.fold(Head::InLine, |head, letter| head.after(letter));
            assert_eq!(head == Head::Over, over, "{text:?}");
        }
    }
}
