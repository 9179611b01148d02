// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do packets with descriptors pass over a Unix socket?

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Linux 6.5, include/uapi/asm-generic/socket.h.
const SO_PEERPIDFD: libc::c_int = 77;
/// Room for control messages; u64 for the alignment of cmsghdr.
type Control = [u64; 130];
/// The most that one packet is sent with; the kernel allows 253.
const DESCRIPTORS_MAX: usize = 253;

/// A socket's address. "@name" is a name without a file, as in ss(8), systemd
/// and libdebox. Too long ones are an error, not cut.
fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let mut length = size_of::<libc::sockaddr_un>();
    if bytes.first() == Some(&b'@') {
        address.sun_path[0] = 0;
        length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len();
    }
    Ok((address, length as libc::socklen_t))
}

/// Whether a path is short enough to connect to.
pub fn path_fits(path: &Path) -> io::Result<()> {
    address(path).map(drop)
}

fn socket(blocking: bool) -> io::Result<OwnedFd> {
    let how = if blocking { 0 } else { libc::SOCK_NONBLOCK };
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | how;
    // SAFETY: no memory involved; the descriptor is owned at once.
    unsafe {
        match libc::socket(libc::AF_UNIX, kind, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// A socket that is bound to a path but not listening yet.
pub fn bind(path: &Path, blocking: bool) -> io::Result<OwnedFd> {
    let (address, length) = address(path)?;
    let socket = socket(blocking)?;
    // SAFETY: the address is a local of that length.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn listen(socket: &OwnedFd, queue: i32) -> io::Result<()> {
    // SAFETY: no memory involved.
    match unsafe { libc::listen(socket.as_raw_fd(), queue) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next who has connected.
pub fn accept(listener: &OwnedFd, blocking: bool) -> io::Result<OwnedFd> {
    let how = if blocking { 0 } else { libc::SOCK_NONBLOCK };
    let none = std::ptr::null_mut();
    // SAFETY: no address is asked for; the descriptor is owned at once.
    unsafe {
        let flags = libc::SOCK_CLOEXEC | how;
        match libc::accept4(listener.as_raw_fd(), none, std::ptr::null_mut(), flags) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

pub fn connect(path: &Path, blocking: bool) -> io::Result<OwnedFd> {
    let (address, length) = address(path)?;
    let socket = socket(blocking)?;
    loop {
        // SAFETY: the address is a local of that length.
        if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } == 0 {
            return Ok(socket);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// How long sending and receiving may take.
pub fn patience_set(socket: &OwnedFd, sending: Duration, receiving: Duration) {
    let size = size_of::<libc::timeval>() as libc::socklen_t;
    let both = [(libc::SO_RCVTIMEO, receiving), (libc::SO_SNDTIMEO, sending)];
    for (option, patience) in both {
        let limit = libc::timeval {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_usec: patience.subsec_micros().into(),
        };
        // SAFETY: the value is a local of the size that is given.
        unsafe {
            let limit = (&raw const limit).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, limit, size);
        }
    }
}

/// Fills `value` with an option of the socket.
fn option_get<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is writable for the length given, and both types that
    // are asked for are numbers only.
    let status = unsafe {
        let value = (&raw mut *value).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value,
            &raw mut length,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether packets that were sent have not been read by the other end, which lives.
pub fn unread(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    status == 0 && bytes > 0
}

/// Who is at the other end, with the effective ids of the moment when the
/// connection was made.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    option_get(socket, libc::SO_PEERCRED, &mut peer)?;
    Ok(peer)
}

/// A pidfd of who is at the other end, made of what the kernel noted then: no
/// number is looked up that may belong to somebody else by now. ENOPROTOOPT
/// before Linux 6.5.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    option_get(socket, SO_PEERPIDFD, &mut pidfd)?;
    // SAFETY: the kernel has just installed it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// Sends one packet. Also used between fork and exec: system calls only.
///
/// # Panics
/// When there are more descriptors than a packet can carry.
pub fn send(socket: RawFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, fds, 0)
}

/// The same, or an error where it would have to wait.
pub fn send_now(socket: RawFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, fds, libc::MSG_DONTWAIT)
}

fn send_with(socket: RawFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: i32) -> io::Result<()> {
    assert!(fds.len() <= DESCRIPTORS_MAX);
    let mut control: Control = [0; 130];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: msghdr is valid when zeroed; the buffers outlive the calls, and
    // so many descriptors (assert) fit into the control buffer: CMSG_FIRSTHDR
    // of it is therefore not null.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let size = size_of_val(fds) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
        loop {
            let sent = libc::sendmsg(socket, &raw const message, flags | libc::MSG_NOSIGNAL);
            if sent == bytes.len() as isize {
                return Ok(());
            }
            if sent >= 0 {
                return Err(io::Error::from_raw_os_error(libc::EPROTO));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// A packet as it came.
pub struct Received {
    /// 0: the other end is closed.
    pub length: usize,
    pub fds: Vec<OwnedFd>,
    /// Something found no room.
    pub cut: bool,
}

/// Takes one packet.
pub fn receive(socket: RawFd, bytes: &mut [u8]) -> io::Result<Received> {
    // Credentials may be passed as well.
    let mut control: Control = [0; 130];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: msghdr is valid when zeroed; the pointers are to locals that
    // outlive the call; the control messages are walked by libc's macros
    // within the length that the kernel set; received descriptors are owned at
    // once.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        let length = loop {
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            let got = libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if got >= 0 {
                break got as usize;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        let mut fds = Vec::new();
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let bytes = (*header).cmsg_len as usize - (data as usize - header as usize);
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        Ok(Received {
            length,
            fds,
            cut: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_pass_under_a_path_and_under_a_name_without_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("@debox-test-{}", std::process::id());
        for path in [directory.path().join("socket"), name.into()] {
            let listener = bind(&path, true).unwrap();
            assert_eq!(
                connect(&path, true).unwrap_err().kind(),
                io::ErrorKind::ConnectionRefused
            );
            listen(&listener, 4).unwrap();
            let here = connect(&path, true).unwrap();
            let there = accept(&listener, true).unwrap();
            assert_eq!(
                peer(there.as_fd()).unwrap().pid as u32,
                std::process::id(),
                "{path:?}"
            );
            send(
                here.as_raw_fd(),
                b"hello",
                &[listener.as_fd(), here.as_fd()],
            )
            .unwrap();
            let mut bytes = [0; 4];
            let got = receive(there.as_raw_fd(), &mut bytes).unwrap();
            assert_eq!((got.length, got.fds.len(), got.cut), (4, 2, true));
            drop((here, got));
            assert_eq!(receive(there.as_raw_fd(), &mut bytes).unwrap().length, 0);
        }
    }

    #[test]
    fn a_name_without_a_file_leaves_none_and_long_ones_are_not_cut() {
        assert!(!Path::new("@debox-test").exists());
        let long = "x".repeat(108);
        assert_eq!(
            path_fits(long.as_ref()).unwrap_err().raw_os_error(),
            Some(libc::ENAMETOOLONG)
        );
        path_fits("x".repeat(107).as_ref()).unwrap();
    }
}
