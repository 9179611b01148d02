// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the kernel say of a process, in as few reads as can be?
//!
//! Each execve waits for this, so files of /proc are read with a buffer in which they
//! mostly are whole.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

const BUFFER: usize = 16 << 10;

/// # Errors
/// When the process is gone, or is not for us to read.
pub fn read(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    let mut file = File::open(format!("/proc/{pid}/{name}"))?;
    let (mut bytes, mut used) = (vec![0; BUFFER], 0);
    loop {
        if used == bytes.len() {
            bytes.resize(2 * used, 0);
        }
        match file.read(&mut bytes[used..])? {
            0 => break,
            n => used += n,
        }
    }
    bytes.truncate(used);
    Ok(bytes)
}

/// # Errors
/// As `read`.
pub fn text(pid: i32, name: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read(pid, name)?).into_owned())
}

/// What the kernel says of one mapping: `struct procmap_query` of linux/fs.h (6.11).
#[repr(C)]
#[derive(Default)]
struct MapsQuery {
    size: u64,
    flags: u64,
    address: u64,
    /// Begin, end, flags, page size, offset.
    mapping: [u64; 5],
    inode: u64,
    device: [u32; 2],
    /// Of the name and the build id, which are not asked for.
    sizes: [u32; 2],
    places: [u64; 2],
}

/// `_IOWR('f', 17, struct procmap_query)`.
const MAPS_QUERY: libc::c_ulong =
    3 << 30 | (size_of::<MapsQuery>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 17;

/// Whether it has this file (major and minor number of the device, inode) mapped at an address. False
/// where the kernel cannot be asked so (before 6.11), too.
pub fn has_mapped(pid: i32, address: u64, device: [u32; 2], inode: u64) -> bool {
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let mut query = MapsQuery {
        size: size_of::<MapsQuery>() as u64,
        address,
        ..MapsQuery::default()
    };
    // SAFETY: the kernel reads and writes a struct of the size that it is told.
    let found = unsafe { libc::ioctl(maps.as_raw_fd(), MAPS_QUERY, &mut query) } == 0;
    found && query.device == device && query.inode == inode
}

/// The PID namespace that it is in; None: it is gone, or not for us to read.
pub fn pid_namespace(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}
