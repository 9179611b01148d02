// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where are tracefs and debugfs, and what do they list about functions?
//!
//! Where they are not mounted, a mount that no other process can see is made
//! for the reading and gone after it. Nothing is ever written there.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// Where tracefs is mounted.
pub fn mounted() -> Option<PathBuf> {
    ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.join("trace").exists())
}

static KEPT: OnceLock<Mutex<HashMap<String, Option<File>>>> = OnceLock::new();

/// Opens files for later: tracefs is root's, and a broker that is about to
/// become another user cannot open them afterwards, nor mount anything.
pub fn keep(files: &[&str]) {
    KEPT.get_or_init(|| {
        let opened = files.iter().map(|f| ((*f).to_owned(), open(f).ok()));
        Mutex::new(opened.collect())
    });
}

/// A file of tracefs, such as `available_filter_functions`, as it is now.
pub fn read(file: &str) -> io::Result<String> {
    let mut text = String::new();
    let Some(kept) = KEPT.get() else {
        open(file)?.read_to_string(&mut text)?;
        return Ok(text);
    };
    // Held while it is read: who else reads it moves the same position.
    let mut kept = kept.lock().unwrap_or_else(|e| e.into_inner());
    let Some(Some(file)) = kept.get_mut(file) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn open(file: &str) -> io::Result<File> {
    match mounted() {
        Some(root) => File::open(root.join(file)),
        None => private_open(c"tracefs", file),
    }
}

/// A file of debugfs, such as `kprobes/blacklist`.
pub(crate) fn debugfs_read(file: &str) -> io::Result<String> {
    match std::fs::read_to_string(Path::new("/sys/kernel/debug").join(file)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && KEPT.get().is_none() => {
            let mut text = String::new();
            private_open(c"debugfs", file)?.read_to_string(&mut text)?;
            Ok(text)
        }
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
fn private_open(filesystem: &CStr, file: &str) -> io::Result<File> {
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
    let path = CString::new(file)?;
    // SAFETY: a live descriptor and a NUL-terminated path below it.
    let fd = unsafe {
        libc::openat(
            mount.as_raw_fd(),
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    Ok(File::from(checked(fd.into())?))
}
