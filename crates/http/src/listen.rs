// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where is somebody answered: at an address, or at a path?

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
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
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
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
