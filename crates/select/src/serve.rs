// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a plain server of the old school look like, with select, poll and
//! epoll?
//!
//! For measurements where no other server is installed, and as the select
//! server of the tables: like darkhttpd and thttpd, it makes its sets anew from
//! the list of connections before each call and looks through the list after
//! it. It answers `GET /N` with N bytes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    Select,
    Poll,
    Epoll,
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    close: bool,
}

enum Next {
    Go,
    Close,
}

impl Connection {
    fn wants_write(&self) -> bool {
        self.sent < self.output.len()
    }

    fn answer(&mut self) -> Next {
        while let Some(end) = self.input.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&self.input[..end]).into_owned();
            self.input.drain(..end + 4);
            let size: usize = head
                .split(' ')
                .nth(1)
                .and_then(|p| p.trim_start_matches('/').parse().ok())
                .unwrap_or(0);
            self.close = head.to_ascii_lowercase().contains("connection: close");
            let head = format!(
                "HTTP/1.1 200 OK\r\nServer: debox\r\nContent-Length: {size}\r\nConnection: {}\r\n\r\n",
                if self.close { "close" } else { "keep-alive" }
            );
            self.output.clear();
            self.sent = 0;
            self.output.extend_from_slice(head.as_bytes());
            self.output.resize(head.len() + size, b'x');
            if let Next::Close = self.write() {
                return Next::Close;
            }
        }
        Next::Go
    }

    fn write(&mut self) -> Next {
        while self.wants_write() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Next::Go,
                Err(_) => return Next::Close,
            }
        }
        if self.close { Next::Close } else { Next::Go }
    }

    fn read(&mut self) -> Next {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => Next::Close,
            Ok(n) => {
                self.input.extend_from_slice(&buffer[..n]);
                self.answer()
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Next::Go,
            Err(_) => Next::Close,
        }
    }
}

/// Serves for ever.
pub fn serve(listener: &TcpListener, backend: Backend) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<Connection> = Vec::new();
    let mut polled: Vec<libc::pollfd> = Vec::new();
    let epoll = match backend {
        // SAFETY: no memory involved.
        Backend::Epoll => unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) },
        _ => -1,
    };
    let watch = |fd: RawFd, how: i32, write: bool| {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 }) as u32,
            u64: fd as u64,
        };
        // SAFETY: the event is a local.
        unsafe { libc::epoll_ctl(epoll, how, fd, &mut event) };
    };
    let mut by_descriptor: Vec<usize> = Vec::new();
    if backend == Backend::Epoll {
        watch(listener.as_raw_fd(), libc::EPOLL_CTL_ADD, false);
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
    loop {
        let mut accept = false;
        let mut gone: Vec<usize> = Vec::new();
        match backend {
            Backend::Select => {
                // SAFETY: sets are locals; FD_SETSIZE bounds the descriptors
                // (accept below closes what does not fit).
                unsafe {
                    let mut read: libc::fd_set = std::mem::zeroed();
                    let mut write: libc::fd_set = std::mem::zeroed();
                    let mut most = listener.as_raw_fd();
                    libc::FD_SET(most, &mut read);
                    for c in &connections {
                        let fd = c.stream.as_raw_fd();
                        if c.wants_write() {
                            libc::FD_SET(fd, &mut write);
                        } else {
                            libc::FD_SET(fd, &mut read);
                        }
                        most = most.max(fd);
                    }
                    if libc::select(
                        most + 1,
                        &mut read,
                        &mut write,
                        std::ptr::null_mut(),
                        std::ptr::null_mut(),
                    ) < 0
                    {
                        continue;
                    }
                    accept = libc::FD_ISSET(listener.as_raw_fd(), &read);
                    for (at, c) in connections.iter_mut().enumerate() {
                        let fd = c.stream.as_raw_fd();
                        let next = if libc::FD_ISSET(fd, &read) {
                            c.read()
                        } else if libc::FD_ISSET(fd, &write) {
                            c.write()
                        } else {
                            Next::Go
                        };
                        if let Next::Close = next {
                            gone.push(at);
                        }
                    }
                }
            }
            Backend::Poll => {
                polled.clear();
                polled.push(libc::pollfd {
                    fd: listener.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                });
                polled.extend(connections.iter().map(|c| libc::pollfd {
                    fd: c.stream.as_raw_fd(),
                    events: if c.wants_write() {
                        libc::POLLOUT
                    } else {
                        libc::POLLIN
                    },
                    revents: 0,
                }));
                // SAFETY: the array is valid for its length.
                let n = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, -1) };
                if n < 0 {
                    continue;
                }
                accept = polled[0].revents != 0;
                let mut left = n - i32::from(accept);
                for (at, p) in polled[1..].iter().enumerate() {
                    if left == 0 {
                        break;
                    }
                    if p.revents == 0 {
                        continue;
                    }
                    left -= 1;
                    let c = &mut connections[at];
                    let next = if p.revents & libc::POLLOUT != 0 {
                        c.write()
                    } else {
                        c.read()
                    };
                    if let Next::Close = next {
                        gone.push(at);
                    }
                }
            }
            Backend::Epoll => {
                // SAFETY: the array is valid for its length.
                let n = unsafe {
                    libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, -1)
                };
                for event in &events[..n.max(0) as usize] {
                    let fd = event.u64 as usize;
                    if fd == listener.as_raw_fd() as usize {
                        accept = true;
                        continue;
                    }
                    let at = by_descriptor[fd];
                    let c = &mut connections[at];
                    let wanted = c.wants_write();
                    let next = if event.events & libc::EPOLLOUT as u32 != 0 {
                        c.write()
                    } else {
                        c.read()
                    };
                    match next {
                        Next::Close => gone.push(at),
                        Next::Go if c.wants_write() != wanted => {
                            watch(fd as RawFd, libc::EPOLL_CTL_MOD, c.wants_write());
                        }
                        Next::Go => {}
                    }
                }
            }
        }
        gone.sort_unstable();
        gone.dedup();
        for at in gone.into_iter().rev() {
            connections.swap_remove(at);
            if let Some(moved) = connections.get(at)
                && backend == Backend::Epoll
            {
                by_descriptor[moved.stream.as_raw_fd() as usize] = at;
            }
        }
        if !accept {
            continue;
        }
        while let Ok((stream, _)) = listener.accept() {
            let fd = stream.as_raw_fd();
            if backend == Backend::Select && fd as usize >= libc::FD_SETSIZE {
                continue;
            }
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            if backend == Backend::Epoll {
                watch(fd, libc::EPOLL_CTL_ADD, false);
                if by_descriptor.len() <= fd as usize {
                    by_descriptor.resize(fd as usize + 1, 0);
                }
                by_descriptor[fd as usize] = connections.len();
            }
            connections.push(Connection {
                stream,
                input: Vec::new(),
                output: Vec::new(),
                sent: 0,
                close: false,
            });
        }
    }
}
