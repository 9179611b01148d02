// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is memory read that others write, and how is it given back?

use crate::lasting;
use debox_abi::{DEBOX_PAGE_SIZE, Pod};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A shared mapping.
pub struct Mapping {
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: read through atomics only by what is here; who writes through
// `pointer` has to hold the mapping alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Read-only, from the beginning.
    pub fn new(fd: impl AsFd, length: usize) -> io::Result<Self> {
        Self::part(fd, 0, length, false)
    }

    pub(crate) fn part(
        fd: impl AsFd,
        offset: usize,
        length: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let length = length.next_multiple_of(DEBOX_PAGE_SIZE);
        lasting::check(fd.as_fd(), offset.saturating_add(length))?;
        let write = if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | write,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast());
        let memory = memory.ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { memory, length })
    }

    /// Its first byte, for what atomics cannot do; unmapped when self is dropped.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// A word that others publish with release order.
    pub fn load_acquire(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        // SAFETY: inside the mapping and aligned (assert).
        unsafe { &*self.pointer().add(offset).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }

    /// Copies words out while others write them: each is whole, they need not
    /// be of one moment.
    pub fn copy_words(&self, offset: usize, to: &mut [u8]) {
        let words = self.words(offset, to.len());
        for (bytes, word) in to.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
    }

    /// The same of a whole value, from the front on. Most of a table is zero: what is not written to needs no memory.
    pub fn copy<T: Pod>(&self) -> Box<T> {
        let mut copy = T::zeroed_box();
        let bytes = copy.as_bytes_mut();
        let words = self.words(0, bytes.len());
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            if word != 0 {
                *bytes = word.to_ne_bytes();
            }
        }
        copy
    }

    fn words(&self, offset: usize, bytes: usize) -> impl Iterator<Item = u64> {
        assert!(
            offset.is_multiple_of(8) && bytes.is_multiple_of(8) && offset + bytes <= self.length
        );
        let places = (offset..offset + bytes).step_by(8);
        // Acquire: from the front to the back, as who slept longest is told (debox_site_row).
        places.map(|at| self.word(at).load(Ordering::Acquire))
    }

    /// A word that others may write; to be stored to in a writable mapping only.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: inside the mapping and aligned (assert; the mapping begins with
        // a page). Loads of this size are allowed where writing is not.
        unsafe { &*self.pointer().add(offset).cast::<AtomicU64>() }
    }

    /// Memory of one's own in place of a descriptor's, which Miri does not map.
    #[cfg(test)]
    pub(crate) fn anonymous(length: usize) -> Self {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let memory = NonNull::new(memory.cast()).unwrap();
        Self { memory, length }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone, and nothing borrowed from it outlives self.
        unsafe { libc::munmap(self.pointer().cast(), self.length) };
    }
}
