// SPDX-License-Identifier: MIT OR Apache-2.0
//! May memory that came as a descriptor be mapped, or will it be gone?
//!
//! DEBOX_SOCKET may name anything, and a file that is shorter than what is mapped
//! of it, or becomes so, raises SIGBUS. So there are two kinds that a broker may
//! send, as in libdebox/descriptor.c: a memory file (tmpfs) that is long enough
//! and sealed against shrinking, and a BPF map, of which the kernel maps no more
//! than there is.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Both of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;
const ANONYMOUS_INODE: i64 = 0x0904_1934;
const BPF_MAP: &str = "anon_inode:bpf-map";

/// Whether the first `bytes` are there, and stay.
pub(crate) fn check(fd: BorrowedFd, bytes: usize) -> io::Result<()> {
    let refused = |why: &str| {
        Err(io::Error::other(format!(
            "it is {why}; no broker of this release sends that, see who listens at the socket"
        )))
    };
    // SAFETY: all-zero is valid for both, and the kernel fills them.
    let (files, stat, known) = unsafe {
        let mut files: libc::statfs = std::mem::zeroed();
        let mut stat: libc::stat = std::mem::zeroed();
        let known = libc::fstatfs(fd.as_raw_fd(), &raw mut files) == 0
            && libc::fstat(fd.as_raw_fd(), &raw mut stat) == 0;
        (files, stat, known)
    };
    if !known {
        return Err(io::Error::last_os_error());
    }
    if files.f_type == ANONYMOUS_INODE {
        return match is_bpf_map(fd) {
            true => Ok(()),
            false => refused("an object of the kernel, and no BPF map"),
        };
    }
    if files.f_type != TMPFS || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return refused("neither a memory file nor a BPF map");
    }
    // SAFETY: no memory involved.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return refused("a memory file that is not sealed against shrinking");
    }
    if usize::try_from(stat.st_size).is_ok_and(|size| size >= bytes) {
        return Ok(());
    }
    refused(&format!(
        "a memory file of {} bytes, where {bytes} are to be read",
        stat.st_size
    ))
}

/// By the name in /proc. Where that is not mounted, every object of the
/// kernel's own is taken for a map: none that an ordinary user can make shrinks.
fn is_bpf_map(fd: BorrowedFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map_or(true, |name| name.as_os_str() == BPF_MAP)
}
