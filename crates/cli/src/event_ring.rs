// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a client read the events of its account?
//!
//! The broker passes the descriptor of a BPF ring buffer. Its first page holds
//! the consumer's position and is ours to write; the producer's position and
//! the data (mapped twice in a row, so that no event is broken at the end)
//! follow read-only. No privileges are needed to map it.

use debox_abi::{DEBOX_EVENTS_BYTES, DEBOX_PAGE_SIZE};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// include/uapi/linux/bpf.h
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: usize = 8;

pub struct EventRing {
    fd: OwnedFd,
    consumer: NonNull<u8>,
    producer: NonNull<u8>,
}

// SAFETY: both mappings belong to the ring alone and may be used from any
// thread; all methods that read or write take &mut self.
unsafe impl Send for EventRing {}

const PRODUCER_BYTES: usize = DEBOX_PAGE_SIZE + 2 * DEBOX_EVENTS_BYTES;

fn map(fd: &OwnedFd, offset: usize, length: usize, protection: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            protection,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

impl EventRing {
    pub fn map(fd: OwnedFd) -> io::Result<Self> {
        let consumer = map(&fd, 0, DEBOX_PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = match map(&fd, DEBOX_PAGE_SIZE, PRODUCER_BYTES, libc::PROT_READ) {
            Ok(producer) => producer,
            Err(error) => {
                // SAFETY: mapped above, and nobody else knows it.
                unsafe { libc::munmap(consumer.as_ptr().cast(), DEBOX_PAGE_SIZE) };
                return Err(error);
            }
        };
        Ok(Self {
            fd,
            consumer,
            producer,
        })
    }

    /// Readable when events wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Hands over all events that wait, oldest first; returns how many.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        // SAFETY: the first words of the two pages, aligned and mapped; the
        // kernel and we use them as atomic numbers.
        let (consumed, produced) = unsafe {
            (
                &*self.consumer.as_ptr().cast::<AtomicU64>(),
                &*self.producer.as_ptr().cast::<AtomicU64>(),
            )
        };
        let mut at = consumed.load(Ordering::Relaxed);
        let mut count = 0;
        // Acquire: pairs with the kernel's release of the position, so that
        // the headers up to there can be read.
        loop {
            // More than fits, or between two headers: no kernel wrote that.
            let waiting = produced.load(Ordering::Acquire).wrapping_sub(at);
            if waiting == 0 || waiting > DEBOX_EVENTS_BYTES as u64 || at % 8 != 0 {
                break;
            }
            let place = at as usize & (DEBOX_EVENTS_BYTES - 1);
            // SAFETY: within the data, which is mapped twice; headers are
            // aligned to 8.
            let data = unsafe { self.producer.as_ptr().add(DEBOX_PAGE_SIZE + place) };
            // SAFETY: as above.
            let header = unsafe { &*data.cast::<AtomicU32>() };
            // Acquire: pairs with the kernel's release when it commits the
            // event and clears BUSY.
            let word = header.load(Ordering::Acquire);
            if word & BUSY != 0 {
                break;
            }
            let length = (word & !(BUSY | DISCARD)) as usize;
            if length > DEBOX_EVENTS_BYTES - HEADER {
                break;
            }
            if word & DISCARD == 0 {
                // SAFETY: a committed event of this length, which the kernel
                // leaves alone until the position below passes it.
                each(unsafe { std::slice::from_raw_parts(data.add(HEADER), length) });
                count += 1;
            }
            at += (HEADER + length).next_multiple_of(8) as u64;
            // Release: we are done with what lies before.
            consumed.store(at, Ordering::Release);
        }
        count
    }
}

impl Drop for EventRing {
    fn drop(&mut self) {
        // SAFETY: ours alone; nothing borrowed from them outlives self.
        unsafe {
            libc::munmap(self.consumer.as_ptr().cast(), DEBOX_PAGE_SIZE);
            libc::munmap(self.producer.as_ptr().cast(), PRODUCER_BYTES);
        }
    }
}
