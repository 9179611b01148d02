// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a file opened that somebody else named?
//!
//! A watched program can put anything at a path that it names, and change it
//! meanwhile: a FIFO, whose open waits for ever; a device, whose open does
//! something; a file without end. So a path is first opened as a place only
//! (O_PATH: nothing happens to what is there), then asked what it is, and only
//! a regular file of bearable size is opened for reading, through the
//! descriptor and not by its name again.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Offsets of code have 32 bits; debug information may be larger.
pub const FILE_BYTES_MAX: u64 = 8 << 30;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is a {what}, not a regular file")]
    NotRegular { what: &'static str },
    #[error("it has {bytes} bytes, more than the limit of {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("it was replaced while it was opened")]
    Replaced,
}

/// Opens a regular file for reading, whatever is at the path.
pub fn open(path: &Path) -> Result<File, OpenError> {
    let place = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?;
    reopen(&place)
}

/// The same, if the last part of the path is not a symbolic link.
pub fn open_no_link(path: &Path) -> Result<File, OpenError> {
    let place = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(path)?;
    reopen(&place)
}

/// The same, with a path as a process with that root directory sees it: links
/// in it lead nowhere else.
pub fn open_below(root: &Path, path: &Path, follow: bool) -> Result<File, OpenError> {
    let root = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(root)?;
    let relative = path.strip_prefix("/").unwrap_or(path);
    let name = CString::new(relative.as_os_str().as_bytes())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: all-zero is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    let no_follow = if follow { 0 } else { libc::O_NOFOLLOW };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC | no_follow) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: a string that ends with a zero byte, and a struct of its size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            name.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the kernel just gave us this descriptor.
    let place = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    reopen(&File::from(place))
}

/// From a place to an open file, if it is one.
fn reopen(place: &File) -> Result<File, OpenError> {
    let before = place.metadata()?;
    if !before.is_file() {
        return Err(OpenError::NotRegular {
            what: kind(before.mode()),
        });
    }
    if before.len() > FILE_BYTES_MAX {
        return Err(OpenError::TooLarge {
            bytes: before.len(),
            limit: FILE_BYTES_MAX,
        });
    }
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    let after = file.metadata()?;
    if !after.is_file() || (before.dev(), before.ino()) != (after.dev(), after.ino()) {
        return Err(OpenError::Replaced);
    }
    Ok(file)
}

fn kind(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFIFO => "FIFO",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR | libc::S_IFBLK => "device",
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symbolic link",
        _ => "file of an unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn fifo(path: &Path) {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    /// What stat says of the last reading of a device or FIFO is not changed,
    /// and nothing waits.
    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        symlink("fifo", at("to-fifo")).unwrap();
        fifo(&at("fifo"));
        assert!(open(&at("file")).is_ok() && open(&at("link")).is_ok());
        assert!(open_no_link(&at("file")).is_ok());
        for name in ["fifo", "to-fifo", "device"] {
            let error = open(&at(name)).unwrap_err();
            assert!(matches!(error, OpenError::NotRegular { .. }), "{error}");
        }
        let error = open_no_link(&at("link")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it is a symbolic link, not a regular file"
        );
        assert!(open(dir.path()).is_err());
        let huge = File::create(at("huge")).unwrap();
        huge.set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = open(&at("huge")).unwrap_err();
        assert!(matches!(error, OpenError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn links_stay_below_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("passwd"), "inside").unwrap();
        symlink("/passwd", at("absolute")).unwrap();
        symlink("../../../../passwd", at("upwards")).unwrap();
        for name in ["/passwd", "/absolute", "/upwards", "passwd"] {
            let file = open_below(dir.path(), Path::new(name), true).unwrap();
            assert_eq!(std::io::read_to_string(file).unwrap(), "inside", "{name}");
        }
        assert!(open_below(dir.path(), Path::new("/absolute"), false).is_err());
    }
}
