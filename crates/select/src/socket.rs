// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a client's socket begin and end?

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Of a slow client: the kernel doubles it, and half of that is the window.
const SLOW_RECEIVE_BUFFER_BYTES: i32 = 16_384;
/// Of an Ethernet. On loopback one segment would be larger than the small window.
const SLOW_SEGMENT_BYTES: i32 = 1460;

pub fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn set<T>(fd: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the option's value is borrowed for the call, and of this size.
    check(unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    })
    .map(drop)
}

/// Begins to connect, without waiting. `turn` chooses among several addresses of this machine:
/// one has no more than 28,000 ports. `slow`: with a small receive buffer.
pub fn open(server: SocketAddrV4, turn: u32, slow: bool) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, owned at once.
    let fd = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        ))?)
    };
    let raw = fd.as_raw_fd();
    set(raw, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32)?;
    if slow {
        // Before it connects: the window's scale is agreed upon then.
        set(
            raw,
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            &SLOW_RECEIVE_BUFFER_BYTES,
        )?;
        set(
            raw,
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            &SLOW_SEGMENT_BYTES,
        )?;
    }
    let size = size_of::<libc::sockaddr_in>() as u32;
    if server.ip().is_loopback() {
        set(raw, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32)?;
        let from = address([127, 0, 1, 1 + (turn % 8) as u8], 0);
        // SAFETY: the address is a local of its size.
        check(unsafe { libc::bind(raw, (&raw const from).cast(), size) })?;
    }
    let to = address(server.ip().octets(), server.port());
    // SAFETY: as above.
    match check(unsafe { libc::connect(raw, (&raw const to).cast(), size) }) {
        Ok(_) => Ok(fd),
        Err(error) => match error.raw_os_error() {
            // A refusal that comes at once: epoll tells of it, as of a later one.
            Some(libc::EINPROGRESS | libc::ECONNREFUSED) => Ok(fd),
            _ => Err(error),
        },
    }
}

fn address(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(ip),
        },
        sin_zero: [0; 8],
    }
}

/// Sends what the socket takes now; 0 if that is nothing.
pub fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let sent = unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
    if sent >= 0 {
        return Ok(sent as usize);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        error => Err(error),
    }
}

/// None: nothing is there. 0 bytes: the server closed.
pub fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the buffer is valid for its length.
    let got = unsafe {
        libc::recv(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    if got >= 0 {
        return Ok(Some(got as usize));
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        error => Err(error),
    }
}

/// What closes it then is a reset.
pub fn reset_on_close(fd: &OwnedFd) {
    let hard = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // It cannot fail on a socket; closed softly, it would only be gone later.
    let _ = set(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &hard);
}
