// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a file made that DeBox writes?
//!
//! Reports, recordings and pages hold command lines, paths, arguments and call
//! stacks of whatever was watched, often by root. So each file is new, for its
//! owner only (0600; directories 0700), and the one that had the name before is
//! replaced, not written into: whoever made that one may hold it open, and its
//! mode was chosen by him. A symbolic link is followed when it is one's own or
//! root's; a link that another user laid there is refused, and so is his pipe.
//! What is no file (a terminal, /dev/null, a pipe, standard output by its name)
//! is written as it is.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// As the kernel has it.
const LINKS_MAX: usize = 40;

fn euid() -> u32 {
    // SAFETY: no memory involved.
    unsafe { libc::geteuid() }
}

fn trusted(metadata: &Metadata) -> bool {
    metadata.uid() == 0 || metadata.uid() == euid()
}

fn refused(what: &str, path: &Path, uid: u32) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{} is a {what} of another user (uid {uid}), and is not written to: remove it, or name \
             another file",
            path.display()
        ),
    )
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// Whether the links in a directory stand for open descriptors, not for names.
fn in_proc(directory: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(directory.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: a NUL-terminated path, and a local that is filled.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &mut found) == 0 && found.f_type == libc::PROC_SUPER_MAGIC
    }
}

fn create_new(path: &Path) -> io::Result<File> {
    // O_EXCL: nobody else's file, and no link, is opened.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

fn replace(path: &Path, old: &Metadata) -> io::Result<File> {
    let new = tempfile::Builder::new()
        .prefix(".debox-")
        .suffix(".part")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(directory_of(path));
    match new {
        Ok(new) => {
            new.as_file()
                .set_permissions(Permissions::from_mode(MODE))?;
            new.persist(path).map_err(|error| error.error)
        }
        // In a directory that takes no new files, one's own is emptied.
        Err(error) if old.uid() == euid() => {
            let file = open_existing(path).map_err(|_| error)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() || (metadata.dev(), metadata.ino()) != (old.dev(), old.ino()) {
                return Err(io::Error::other("it was exchanged meanwhile"));
            }
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.set_len(0)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

fn open_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path)
}

/// Opens `path` to be written from its beginning, for its owner only.
pub fn create(path: &Path) -> io::Result<File> {
    let mut path: PathBuf = path.to_owned();
    for _ in 0..LINKS_MAX {
        let found = match std::fs::symlink_metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match create_new(&path) {
                // Somebody was faster: look at what he made.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                done => return done,
            },
            Err(error) => return Err(error),
        };
        let kind = found.file_type();
        if kind.is_symlink() {
            if in_proc(directory_of(&path)) {
                // /dev/stdout, /dev/fd/63, /proc/self/fd/1: open already.
                return OpenOptions::new().write(true).truncate(true).open(&path);
            }
            if !trusted(&found) {
                return Err(refused("symbolic link", &path, found.uid()));
            }
            let target = std::fs::read_link(&path)?;
            path = directory_of(&path).join(target);
        } else if kind.is_file() {
            return replace(&path, &found);
        } else if kind.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        } else {
            if kind.is_fifo() && !trusted(&found) {
                return Err(refused("pipe", &path, found.uid()));
            }
            let file = open_existing(&path)?;
            let opened = file.metadata()?;
            if (opened.dev(), opened.ino()) != (found.dev(), found.ino()) {
                return Err(io::Error::other("it was exchanged meanwhile"));
            }
            return Ok(file);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// [`create`], and all of its contents.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// A directory for such files, with those above it that are missing. One that
/// is there stays as it is.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
}
