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
use std::sync::atomic::Ordering;

/// include/uapi/linux/bpf.h
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: usize = 8;

/// Where the data begins in the producer's mapping.
const DATA: usize = DEBOX_PAGE_SIZE;
const PRODUCER_BYTES: usize = DATA + 2 * DEBOX_EVENTS_BYTES;

/// Both mappings belong to the ring alone; all that reads or writes takes
/// &mut self.
pub struct EventRing {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
    /// The event that is handed over. A copy: what poses as the broker may send
    /// memory in place of a ring buffer, and go on writing it.
    event: Vec<u8>,
}

impl EventRing {
    pub(crate) fn map(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            consumer: Mapping::part(&fd, 0, DEBOX_PAGE_SIZE, true)?,
            producer: Mapping::part(&fd, DEBOX_PAGE_SIZE, PRODUCER_BYTES, false)?,
            fd,
            event: Vec::new(),
        })
    }

    /// Readable when events wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Hands over all events that wait, oldest first; returns how many.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let (consumed, produced) = (self.consumer.word(0), self.producer.word(0));
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
            // The data is mapped twice: no event is broken at the end.
            let place = DATA + (at as usize & (DEBOX_EVENTS_BYTES - 1));
            // Acquire: pairs with the kernel's release when it commits the
            // event and clears BUSY.
            let header = self.producer.load_acquire(place);
            if header & BUSY != 0 {
                break;
            }
            let length = (header & !(BUSY | DISCARD)) as usize;
            if length > DEBOX_EVENTS_BYTES - HEADER {
                break;
            }
            let whole = length.next_multiple_of(8);
            if header & DISCARD == 0 {
                self.event.resize(whole, 0);
                self.producer.copy_words(place + HEADER, &mut self.event);
                each(&self.event[..length]);
                count += 1;
            }
            at = at.wrapping_add((HEADER + whole) as u64);
            // Release: we are done with what lies before.
            consumed.store(at, Ordering::Release);
        }
        count
    }
}

/// For Miri: `cargo +nightly miri test -p debox-client ring`.
#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = DEBOX_EVENTS_BYTES as u64 - 8;

    fn ring() -> EventRing {
        EventRing {
            fd: std::io::stdin().as_fd().try_clone_to_owned().unwrap(),
            consumer: Mapping::anonymous(DEBOX_PAGE_SIZE),
            producer: Mapping::anonymous(PRODUCER_BYTES),
            event: Vec::new(),
        }
    }

    impl EventRing {
        fn word_set(&self, at: u64, value: u64) {
            let place = DATA + (at as usize & (DEBOX_EVENTS_BYTES - 1));
            for place in [place, place + DEBOX_EVENTS_BYTES] {
                self.producer.word(place).store(value, Ordering::Relaxed);
            }
        }

        /// As the kernel commits it: words, all the same.
        fn commit(&self, at: u64, header: u32, words: u64, value: u64) -> u64 {
            self.word_set(at, header.into());
            for word in 1..=words {
                self.word_set(at + word * 8, value);
            }
            at + (words + 1) * 8
        }

        fn positions_set(&self, consumed: u64, produced: u64) {
            self.consumer.word(0).store(consumed, Ordering::Relaxed);
            self.producer.word(0).store(produced, Ordering::Release);
        }

        fn taken(&mut self) -> Vec<Vec<u8>> {
            let mut all = Vec::new();
            let count = self.drain(|event| all.push(event.to_vec()));
            assert_eq!(count, all.len());
            all
        }
    }

    #[test]
    fn events_come_in_turn_and_whole_at_the_end() {
        let mut ring = ring();
        // Its header is the last word of the data.
        let mut at = ring.commit(LAST, 5, 1, u64::MAX);
        at = ring.commit(at, DISCARD | 8, 1, 7);
        at = ring.commit(at, 0, 0, 0);
        at = ring.commit(at, 16, 2, 0x0101_0101_0101_0101);
        let end = ring.commit(at, BUSY | 8, 1, 3);
        ring.positions_set(LAST, end);
        assert_eq!(ring.taken(), [vec![255; 5], vec![], vec![1; 16]]);
        assert_eq!(ring.consumer.word(0).load(Ordering::Relaxed), at);
        assert!(ring.taken().is_empty());
        ring.commit(at, 8, 1, 3);
        assert_eq!(ring.taken(), [3u64.to_ne_bytes()]);
    }

    #[test]
    fn what_no_kernel_wrote_is_not_followed() {
        let mut ring = ring();
        let all = DEBOX_EVENTS_BYTES as u64;
        for (consumed, produced, header) in [
            (0, all + 8, 8),
            (8, 0, 8),
            (3, 3 + 16, 8),
            (0, 16, u32::MAX),
            (0, 16, DEBOX_EVENTS_BYTES as u32 - 7),
            (0, 16, !(BUSY | DISCARD)),
        ] {
            ring.commit(0, header, 0, 0);
            ring.positions_set(consumed, produced);
            assert!(ring.taken().is_empty(), "{consumed} {produced} {header:#x}");
        }
        // The longest there can be (Miri takes long over it), and a position that
        // goes round.
        let longest = if cfg!(miri) { 4096 } else { all - 8 };
        ring.commit(all - 8, longest as u32, 0, 0);
        ring.positions_set(u64::MAX - 7, longest);
        assert_eq!(ring.taken()[0].len() as u64, longest);
    }

    #[test]
    fn who_goes_on_writing_changes_nothing_that_was_handed_over() {
        let mut ring = ring();
        let end = ring.commit(0, 8, 1, 1);
        ring.positions_set(0, end);
        let place = DATA + HEADER;
        let word = std::ptr::from_ref(ring.producer.word(place));
        let mut seen = Vec::new();
        ring.drain(|event| {
            // SAFETY: mapped as long as the ring lives.
            unsafe { &*word }.store(2, Ordering::Relaxed);
            seen.extend_from_slice(event);
        });
        assert_eq!(seen, 1u64.to_ne_bytes());
    }
}
