// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a process that stands still get memory and files from us?
//!
//! Files by a pair of sockets of its own, one of which we take part in: so it needs not to be allowed to
//! open them, nor see where they lie.

use crate::proc;
use crate::tracee::{Caller, Stopped};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What it needs for the message in its memory: the pair, a byte, the message's head, descriptors.
pub const MESSAGE_BYTES: u64 = 2048;
const BYTE: u64 = 8;
const VECTOR: u64 = 16;
const HEAD: u64 = 32;
const CONTROL: u64 = 128;
/// SCM_MAX_FD.
const FILES_MOST: usize = 253;

/// Memory of its own, which nobody else sees.
pub fn memory(thread: &mut Stopped, by: &Caller<'_>, bytes: u64) -> io::Result<u64> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    thread.call(by, libc::SYS_mmap, [0, bytes, rights, kind, u64::MAX, 0])
}

pub struct Sent {
    /// In its numbers, in order.
    pub files: Vec<i32>,
    /// The sockets, which are still open.
    pub pair: [i32; 2],
}

/// `memory`: of [`MESSAGE_BYTES`].
pub fn files_send(
    thread: &mut Stopped,
    by: &Caller<'_>,
    pid: i32,
    memory: u64,
    files: &[BorrowedFd<'_>],
) -> io::Result<Sent> {
    if files.len() > FILES_MOST {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    let family = libc::AF_UNIX as u64;
    thread.call(by, libc::SYS_socketpair, [family, kind, 0, memory, 0, 0])?;
    let pair = proc::word(pid, memory)?;
    let pair = [pair as u32 as i32, (pair >> 32) as i32];
    send(&socket_of(pid, pair[0])?, files)?;

    let mut head = Vec::new();
    head.extend([memory + BYTE, 1].map(u64::to_le_bytes).concat());
    thread.write(memory + VECTOR, &head)?;
    // struct msghdr: name, its length, vector, one, control, its length, flags.
    let room = MESSAGE_BYTES - CONTROL;
    let words = [0, 0, memory + VECTOR, 1, memory + CONTROL, room, 0];
    thread.write(memory + HEAD, &words.map(u64::to_le_bytes).concat())?;
    let flags = libc::MSG_CMSG_CLOEXEC as u64;
    thread.call(
        by,
        libc::SYS_recvmsg,
        [pair[1] as u64, memory + HEAD, flags, 0, 0, 0],
    )?;
    let mut control = vec![0; room as usize];
    proc::memory_read(pid, memory + CONTROL, &mut control)?;
    let bytes = proc::long_of(&control, 0) as usize;
    let numbers = control.get(16..bytes).unwrap_or_default();
    let numbers: Vec<i32> = (0..numbers.len() / 4)
        .map(|n| proc::int_of(numbers, 4 * n))
        .collect();
    match numbers.len() == files.len() {
        true => Ok(Sent {
            files: numbers,
            pair,
        }),
        // It may have no more.
        false => Err(io::Error::from_raw_os_error(libc::EMFILE)),
    }
}

fn socket_of(pid: i32, number: i32) -> io::Result<OwnedFd> {
    let own = |fd: i64| match fd {
        // SAFETY: the kernel has just given it to us.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: plain numbers.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

fn send(socket: &OwnedFd, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let bytes = size_of_val(&numbers[..]);
    // SAFETY: only computes.
    let (room, length) = unsafe { (libc::CMSG_SPACE(bytes as u32), libc::CMSG_LEN(bytes as u32)) };
    let mut control = vec![0u64; (room as usize).div_ceil(8)];
    let mut byte = 0u8;
    let mut vector = libc::iovec {
        iov_base: std::ptr::from_mut(&mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: all zeros are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = room as usize;
    // SAFETY: `control` is aligned, lives, and has room for the head and these numbers.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = length as usize;
        std::ptr::copy_nonoverlapping(numbers.as_ptr().cast(), libc::CMSG_DATA(head), bytes);
    }
    // SAFETY: a message whose parts live.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
