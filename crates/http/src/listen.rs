// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where is somebody answered: at an address, or at a path?

use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Address(SocketAddr),
    /// Of a Unix socket.
    Path(PathBuf),
}

impl Listen {
    /// HOST:PORT, or a path that begins with /. None: neither.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            return Some(Self::Path(text.into()));
        }
        let found = text.to_socket_addrs().ok()?.next()?;
        Some(Self::Address(found))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Whoever connects is served as soon as [`crate::serve`] is called.
pub enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket that nobody listens at any more is taken away; other files are not.
fn left_behind(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn unix_listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if left_behind(path) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    set_mode(path, mode)?;
    Ok(listener)
}

/// Of the socket, and not of what somebody put in its place, or where a link leads.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("it was exchanged meanwhile"));
    }
    // A descriptor that is for its path only has no mode to be set by.
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(itself, std::fs::Permissions::from_mode(mode))
}

impl Socket {
    /// `mode` is that of a socket's file: who may connect.
    ///
    /// # Errors
    /// Somebody else has it, or it may not be had.
    pub fn open(listen: &Listen, mode: u32) -> io::Result<Self> {
        Ok(match listen {
            Listen::Address(address) => Self::Tcp(TcpListener::bind(address)?),
            Listen::Path(path) => Self::Unix(unix_listen(path, mode)?),
        })
    }

    /// With the port that was free, where none was said. None: a path.
    pub fn address(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Unix(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn nothing_but_a_socket_gets_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let _listener = unix_listen(&path("socket"), 0o660).unwrap();
        assert_eq!(mode(&path("socket")), 0o660);
        std::fs::write(path("file"), "of somebody").unwrap();
        std::fs::set_permissions(path("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(path("file"), path("link")).unwrap();
        assert!(set_mode(&path("link"), 0o666).is_err());
        assert!(set_mode(&path("file"), 0o666).is_err());
        assert_eq!(mode(&path("file")), 0o600);
    }
}
