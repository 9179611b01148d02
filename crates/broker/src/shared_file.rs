// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do many clients read what the broker goes on adding to?
//!
//! In one file: what they hold of it is one piece of memory, however many they
//! are and however often they ask.

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Some hundred bytes for each of 16384 sites or chains.
const BYTES_MAX: usize = 16 << 20;

pub(crate) struct SharedFile {
    file: std::fs::File,
    length: usize,
}

impl SharedFile {
    pub fn new(name: &str) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC;
        // MFD_NOEXEC_SEAL exists since 6.3; vm.memfd_noexec=2 demands it there.
        let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o400))?;
        Ok(Self {
            file: fd.into(),
            length: 0,
        })
    }

    /// With a position of its own. Nothing can be written through it, and the
    /// file's mode lets nobody but root open it for more.
    pub fn for_reading(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::open(
            format!("/proc/self/fd/{}", self.file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }

    /// All of it or nothing: the file grows after the write.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.len() > BYTES_MAX.saturating_sub(self.length) {
            return Err(Errno::NOSPC);
        }
        self.file
            .write_all_at(bytes, self.length as u64)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.length += bytes.len();
        Ok(())
    }
}
