// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a process that stands still get memory and files from us?
//!
//! Files by a pair of sockets of its own, one of which we take part in: so it needs not to be allowed to
//! open them, nor see where they lie.

use crate::proc;
use crate::tracee::{Caller, Stopped};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

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

#[derive(Clone)]
pub struct Sent {
    /// In its numbers, in order.
    pub files: Vec<i32>,
    /// The sockets, which are still open.
    pub pair: [i32; 2],
}

impl Sent {
    /// All of it, in that process.
    pub fn close(&self, thread: &mut Stopped, by: &Caller<'_>) {
        for fd in self.files.iter().chain(&self.pair) {
            // It may have ended.
            let _ = thread.call(by, libc::SYS_close, [*fd as u64, 0, 0, 0, 0, 0]);
        }
    }
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
    let numbers = received(thread, by, pid, memory, pair, files);
    match numbers {
        Ok(numbers) if numbers.len() == files.len() => Ok(Sent {
            files: numbers,
            pair,
        }),
        // It may have no more.
        numbers => {
            let error = numbers.as_ref().err().and_then(io::Error::raw_os_error);
            let sent = Sent {
                files: numbers.unwrap_or_default(),
                pair,
            };
            sent.close(thread, by);
            Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EMFILE)))
        }
    }
}

/// What arrives of it, in its numbers.
fn received(
    thread: &mut Stopped,
    by: &Caller<'_>,
    pid: i32,
    memory: u64,
    pair: [i32; 2],
    files: &[BorrowedFd<'_>],
) -> io::Result<Vec<i32>> {
    send(&descriptor_of(pid, pair[0])?, files)?;
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
    Ok((0..numbers.len() / 4)
        .map(|n| proc::int_of(numbers, 4 * n))
        .collect())
}

/// Files through a pair of sockets that a process has made for that.
///
/// # Errors
/// When it is another socket: whom it leads to would take us for who sends.
pub fn send_to(pid: i32, number: i32, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    // What is no socket is not even touched: its end may be waited for.
    let is = std::fs::read_link(format!("/proc/{pid}/fd/{number}"))?;
    if !is.to_string_lossy().starts_with("socket:") {
        return Err(io::Error::from_raw_os_error(libc::ENOTSOCK));
    }
    let socket = descriptor_of(pid, number)?;
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: room for the answer, and how much.
    let told = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &mut bytes,
        )
    };
    match told {
        0 if peer.pid == pid => send(&socket, files),
        0 => Err(io::Error::from_raw_os_error(libc::EPERM)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a process has open, for us to read from its begin. Nothing is waited for: no pipe, no lease; `kept`: nor a file system that
/// a program answers for.
///
/// # Errors
/// When it is no regular file, or may not be opened.
pub fn open_by(pid: i32, number: i32, kept: bool) -> io::Result<File> {
    // By its name alone: to open a device may do something.
    let theirs = (File::options().read(true))
        .custom_flags(libc::O_PATH)
        .open(format!("/proc/{pid}/fd/{number}"))?;
    if kept && is_programs(pid, &theirs) {
        return Err(io::Error::from_raw_os_error(libc::ENOEXEC));
    }
    if !theirs.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::ENOEXEC));
    }
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", theirs.as_raw_fd()))
}

/// Whether it lies on a file system of FUSE's, of which whoever answers may let us wait for ever; or perhaps, where the
/// mount is known to nobody.
fn is_programs(pid: i32, file: &File) -> bool {
    let own = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/self/{name}"));
        text.unwrap_or_default()
    };
    let about = own(&format!("fdinfo/{}", file.as_raw_fd()));
    let mount = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let is = |mounts: &str| {
        let mut lines = mounts.lines();
        let line = lines.find(|line| line.split(' ').next() == mount.map(str::trim))?;
        Some(line.split_once(" - ")?.1.starts_with("fuse"))
    };
    // In a chroot its own list is empty.
    let theirs = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let known = is(&theirs).or_else(|| is(&own("mountinfo")));
    known.unwrap_or_else(|| {
        // Memory is on no mount.
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        !name.is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:"))
    })
}

fn descriptor_of(pid: i32, number: i32) -> io::Result<OwnedFd> {
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
    // Who has filled it waits for himself.
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: a message whose parts live.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::os::unix::process::CommandExt;

    fn own() -> i32 {
        std::process::id() as i32
    }

    fn code(result: io::Result<File>) -> Result<u64, i32> {
        let bytes = |file: File| file.metadata().map(|is| is.len());
        (result.and_then(bytes)).map_err(|e| e.raw_os_error().unwrap())
    }

    #[test]
    fn only_what_may_be_read_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "four").unwrap();
        let open = |flags: i32| {
            let mut options = std::fs::OpenOptions::new();
            options.read(flags & libc::O_ACCMODE != libc::O_WRONLY);
            options.write(flags & libc::O_ACCMODE != libc::O_RDONLY);
            options.custom_flags(flags & !libc::O_ACCMODE);
            options.open(&path).unwrap()
        };
        for kept in [true, false] {
            let read = |file: &File| code(open_by(own(), file.as_raw_fd(), kept));
            assert_eq!(read(&open(libc::O_RDONLY)), Ok(4));
            assert_eq!(read(&open(libc::O_PATH)), Ok(4));
            // One that nobody writes into, which would be waited for, and a device.
            let (end, _other) = io::pipe().unwrap();
            let pipe = read(&File::from(OwnedFd::from(end)));
            assert_eq!(pipe, Err(libc::ENOEXEC));
            let device = File::open("/dev/null").unwrap();
            assert_eq!(read(&device), Err(libc::ENOEXEC));
            assert_eq!(code(open_by(own(), -1, kept)), Err(libc::ENOENT));
        }
        // What it has open by its name alone need not be for it.
        let mode = |mode| {
            let to = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, to).unwrap();
            std::fs::metadata(&path).unwrap()
        };
        let nobody = std::process::Command::new("sleep")
            .arg("30")
            .uid(65534)
            .gid(65534)
            .spawn();
        // As an ordinary user there is nobody else.
        if let Ok(mut nobody) = nobody {
            let pid = nobody.id() as i32;
            assert!(proc::may_read(pid, &mode(0o604)));
            assert!(!proc::may_read(pid, &mode(0o640)));
            assert!(proc::may_read(own(), &mode(0o600)));
            nobody.kill().unwrap();
            nobody.wait().unwrap();
        }

        let file = open(libc::O_RDONLY);
        let send = |socket: i32| {
            let sent = send_to(own(), socket, &[std::os::fd::AsFd::as_fd(&file)]);
            sent.map_err(|e| e.raw_os_error().unwrap())
        };
        let (one, other) = UnixDatagram::pair().unwrap();
        assert_eq!(send(one.as_raw_fd()), Ok(()));
        let mut byte = [1; 8];
        assert_eq!(other.recv(&mut byte).unwrap(), 1);
        // A service that would take us for who asks.
        let name = folder.path().join("service");
        let service = UnixDatagram::bind(&name).unwrap();
        let asks = UnixDatagram::unbound().unwrap();
        asks.connect(&name).unwrap();
        assert_eq!(send(asks.as_raw_fd()), Err(libc::EPERM));
        service.set_nonblocking(true).unwrap();
        assert!(service.recv(&mut byte).is_err());
        assert_eq!(send(file.as_raw_fd()), Err(libc::ENOTSOCK));
    }
}
