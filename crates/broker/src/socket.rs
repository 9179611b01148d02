// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do packets come in and go out, with what the kernel adds to them?
//!
//! recvmsg through libc: rustix drops control messages that it does not know, and
//! SCM_PIDFD carries a descriptor, which would leak.

use crate::message::Credentials;
use debox_abi::{Pod, debox_reply};
use debox_client::packet;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

// Linux 6.5, include/uapi/asm-generic/socket.h and linux/socket.h.
const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 0x04;
// Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// The most descriptors one reply carries.
pub(crate) const REPLY_FDS_MAX: usize = 10;

/// What the kernel added to one packet.
#[derive(Debug, Default)]
pub(crate) struct Ancillary {
    pub credentials: Option<Credentials>,
    /// The sender's pidfd, or the errno that kept the kernel from making one.
    pub pidfd: Option<Result<OwnedFd, i32>>,
    /// How long ago it was sent; 0 when the kernel did not stamp it.
    pub age: Duration,
    /// Descriptors or anything else that the sender added. The packet is still
    /// in the queue then.
    pub foreign: bool,
    /// Copies of such descriptors, as far as they found room.
    pub brought: Vec<OwnedFd>,
}

/// A connection with descriptors in its queue that the other end sent. The last
/// close of a file may take as long as its owner likes (a socket with
/// SO_LINGER, a file system in user space): this is for a thread that has
/// nothing else to do.
#[derive(Debug)]
pub(crate) struct Unclosed {
    fd: OwnedFd,
    _brought: Vec<OwnedFd>,
}

#[derive(Debug)]
pub(crate) enum Received {
    /// The peer closed, or shut down its sending side.
    End,
    /// Nothing there now.
    Nothing,
    Packet {
        /// Its real length; the buffer may have held less.
        length: usize,
        ancillary: Ancillary,
    },
}

fn set_int(fd: BorrowedFd, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    // SAFETY: fd is open; the value is a valid c_int of the length given.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn last_errno() -> Errno {
    errno_of(std::io::Error::last_os_error())
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

pub(crate) fn pass_credentials(fd: BorrowedFd) -> Result<(), Errno> {
    set_int(fd, libc::SO_PASSCRED, 1)
}

/// ENOPROTOOPT before Linux 6.5.
pub(crate) fn pass_pidfd(fd: BorrowedFd) -> Result<(), Errno> {
    set_int(fd, SO_PASSPIDFD, 1)
}

pub(crate) fn pass_timestamp(fd: BorrowedFd) -> Result<(), Errno> {
    set_int(fd, libc::SO_TIMESTAMPNS, 1)
}

/// Who sends descriptors to this socket, or to one that connects to it from now
/// on, is told EPERM by the kernel, and nothing arrives. Before Linux 6.16
/// they do arrive, and [`receive`] leaves them in the queue.
pub(crate) fn refuse_descriptors(fd: BorrowedFd) -> Result<(), Errno> {
    match set_int(fd, SO_PASSRIGHTS, 0) {
        Err(Errno::NOPROTOOPT) => Ok(()),
        done => done,
    }
}

/// Takes one packet, but for one with descriptors: that stays in the queue,
/// where they are not closed. `buffer` should be a little larger than a request,
/// so that an oversized packet is seen to be one.
pub(crate) fn receive(fd: BorrowedFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    // Room for what the kernel adds and hardly anything else: descriptors that
    // find no room are never installed in our table, and MSG_CTRUNC is set. u64
    // for the alignment of cmsghdr.
    const ROOM: usize = 8;
    let mut control = [0u64; ROOM];
    const {
        // SAFETY: CMSG_SPACE only computes.
        let [ucred, pidfd, time] = unsafe {
            [
                libc::CMSG_SPACE(size_of::<libc::ucred>() as u32),
                libc::CMSG_SPACE(size_of::<libc::c_int>() as u32),
                libc::CMSG_SPACE(size_of::<libc::timespec>() as u32),
            ]
        };
        // One of pidfd and time is asked for.
        assert!((ucred + pidfd) as usize <= ROOM * 8 && (ucred + time) as usize <= ROOM * 8);
        assert!(align_of::<u64>() >= align_of::<libc::cmsghdr>());
    }
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all-zero is a valid msghdr.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // MSG_TRUNC: give the packet's real length.
    let look = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC | libc::MSG_PEEK;
    // SAFETY: header points to live buffers of the lengths given.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, look) };
    if length < 0 {
        return match last_errno() {
            Errno::AGAIN | Errno::INTR => Ok(Received::Nothing),
            errno => Err(errno),
        };
    }
    // SAFETY: the kernel filled header and control; nothing moved since.
    let ancillary = unsafe { take_ancillary(&header) };
    if length == 0 && ancillary.credentials.is_none() {
        // An empty packet brings credentials with it; the end brings nothing.
        return Ok(Received::End);
    }
    if !ancillary.foreign {
        take(fd);
    }
    Ok(Received::Packet {
        length: length as usize,
        ancillary,
    })
}

/// Takes the first packet out of the queue, and what came with it goes.
fn take(fd: BorrowedFd) {
    let _ = rustix::net::recv(fd, &mut [0u8; 1][..], rustix::net::RecvFlags::DONTWAIT);
}

/// Takes every control message.
///
/// # Safety
/// `header` was filled by recvmsg and its control buffer is still there.
unsafe fn take_ancillary(header: &libc::msghdr) -> Ancillary {
    let mut out = Ancillary {
        foreign: header.msg_flags & libc::MSG_CTRUNC != 0,
        ..Ancillary::default()
    };
    // CMSG_FIRSTHDR and CMSG_NXTHDR stay inside the control buffer; the kernel
    // wrote whole messages of the types it names.
    // SAFETY: as the caller says, recvmsg filled the header.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so a whole header is there.
        let message = unsafe { next.read_unaligned() };
        // SAFETY: computes an address behind that header.
        let data = unsafe { libc::CMSG_DATA(next) };
        // SAFETY: computes a number.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        let bytes = (message.cmsg_len as usize).saturating_sub(head);
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                // SAFETY: so many bytes of data are there (the guard).
                let ucred = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                out.credentials = Some(Credentials {
                    pid: ucred.pid.max(0) as u32,
                    uid: ucred.uid,
                    gid: ucred.gid,
                });
            }
            (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= size_of::<libc::c_int>() => {
                // SAFETY: so many bytes of data are there (the guard).
                let fd = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                out.pidfd = Some(if fd < 0 {
                    Err(-fd)
                } else {
                    // SAFETY: the kernel has just installed it for us.
                    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
                });
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if bytes >= size_of::<libc::timespec>() => {
                // SAFETY: so many bytes of data are there (the guard).
                let sent = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                let ns = |sec: i64, nsec: i64| sec as i128 * 1_000_000_000 + nsec as i128;
                let age = ns(now.tv_sec, now.tv_nsec as i64) - ns(sent.tv_sec, sent.tv_nsec);
                out.age = Duration::from_nanos(age.clamp(0, u64::MAX as i128) as u64);
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                out.foreign = true;
                for index in 0..bytes / size_of::<RawFd>() {
                    // SAFETY: within the message's data (the range).
                    let fd = unsafe { data.cast::<RawFd>().add(index).read_unaligned() };
                    // SAFETY: installed for us by the kernel.
                    out.brought.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            _ => out.foreign = true,
        }
        // SAFETY: `next` is a header of this buffer.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    out
}

/// Sends one reply, or says why it did not go; it never waits.
pub(crate) fn send(fd: BorrowedFd, reply: &debox_reply, fds: &[BorrowedFd]) -> Result<(), Errno> {
    assert!(fds.len() <= REPLY_FDS_MAX);
    packet::send_now(fd.as_raw_fd(), reply.as_bytes(), fds).map_err(errno_of)
}

/// Who connected, with the *effective* ids of that moment. The messages that
/// follow may come from others, who inherited the socket.
pub(crate) fn peer(fd: BorrowedFd) -> Result<Credentials, Errno> {
    let ucred = packet::peer(fd).map_err(errno_of)?;
    Ok(Credentials {
        pid: ucred.pid.max(0) as u32,
        uid: ucred.uid,
        gid: ucred.gid,
    })
}

pub(crate) fn peer_pidfd(fd: BorrowedFd) -> Result<OwnedFd, Errno> {
    packet::peer_pidfd(fd).map_err(errno_of)
}

/// Ends a connection so that a reply on its way still arrives: closing with
/// unread packets would make the peer's next recv fail with ECONNRESET instead.
/// After the shutdown no new packet can come, so the queue is finite. What is
/// returned is shut down, and still to be closed.
pub(crate) fn finish(fd: OwnedFd) -> Option<Unclosed> {
    let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Read);
    while let Ok(Received::Packet { ancillary, .. }) = receive(fd.as_fd(), &mut [0u8; 1]) {
        if ancillary.foreign {
            let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Write);
            return Some(Unclosed {
                fd,
                _brought: ancillary.brought,
            });
        }
    }
    None
}

impl Unclosed {
    /// Takes its time.
    pub fn close(self) {
        while let Ok(Received::Packet { ancillary, .. }) = receive(self.fd.as_fd(), &mut [0u8; 1]) {
            if ancillary.foreign {
                take(self.fd.as_fd());
            }
        }
    }
}
