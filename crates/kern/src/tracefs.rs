// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do tracefs and debugfs list about functions?
//!
//! Where they are not mounted, a mount that no other process can see is made
//! for the reading and gone after it. Nothing is ever written there: what
//! `debox kern` attaches are file descriptors of its own process.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// A file of tracefs, such as `available_filter_functions`.
pub fn tracefs_read(file: &str) -> io::Result<String> {
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        match std::fs::read_to_string(Path::new(root).join(file)) {
            Ok(text) => return Ok(text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    private_read(c"tracefs", file)
}

/// A file of debugfs, such as `kprobes/blacklist`.
pub fn debugfs_read(file: &str) -> io::Result<String> {
    match std::fs::read_to_string(Path::new("/sys/kernel/debug").join(file)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => private_read(c"debugfs", file),
        other => other,
    }
}

fn checked(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor from the system call that just succeeded.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Linux 5.2: a mount that hangs in no directory.
fn private_read(filesystem: &CStr, file: &str) -> io::Result<String> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    // SAFETY: a NUL-terminated name and a flag.
    let context =
        checked(unsafe { libc::syscall(libc::SYS_fsopen, filesystem.as_ptr(), FSOPEN_CLOEXEC) })?;
    // SAFETY: a live descriptor; this command takes no further arguments.
    let created = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            std::ptr::null::<libc::c_char>(),
            std::ptr::null::<libc::c_char>(),
            0,
        )
    };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a live descriptor and flags.
    let mount = checked(unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0)
    })?;
    let path = std::ffi::CString::new(file)?;
    // SAFETY: a live descriptor and a NUL-terminated path below it.
    let fd = unsafe {
        libc::openat(
            mount.as_raw_fd(),
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    let mut text = String::new();
    File::from(checked(fd.into())?).read_to_string(&mut text)?;
    Ok(text)
}
