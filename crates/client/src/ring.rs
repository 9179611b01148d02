// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a client read the events of its account?
//!
//! The broker passes the descriptor of a BPF ring buffer. Its first page holds
//! the consumer's position and is ours to write; the producer's position and
//! the data (mapped twice in a row, so that no event is broken at the end)
//! follow read-only. No privileges are needed to map it.

use crate::mapping::Mapping;
use debox_abi::{DEBOX_EVENTS_BYTES, DEBOX_PAGE_SIZE};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// include/uapi/linux/bpf.h
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: usize = 8;

/// Both mappings belong to the ring alone; all that reads or writes takes
/// &mut self.
pub struct EventRing {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
}

const PRODUCER_BYTES: usize = DEBOX_PAGE_SIZE + 2 * DEBOX_EVENTS_BYTES;

impl EventRing {
    pub(crate) fn map(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            consumer: Mapping::part(&fd, 0, DEBOX_PAGE_SIZE, true)?,
            producer: Mapping::part(&fd, DEBOX_PAGE_SIZE, PRODUCER_BYTES, false)?,
            fd,
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
                &*self.consumer.pointer().cast::<AtomicU64>(),
                &*self.producer.pointer().cast::<AtomicU64>(),
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
            let data = unsafe { self.producer.pointer().add(DEBOX_PAGE_SIZE + place) };
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
