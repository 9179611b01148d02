// SPDX-License-Identifier: MIT OR Apache-2.0
//! From which places in its programs did a run's calls come?
//!
//! As the programs themselves say (`struct splice_places` of `splice/state.h`): all of it may be
//! anything. So numbers are bounded, sums saturate, and of a file it is only told which one, by device and inode.

use crate::state::{NRS, places};
use std::collections::HashMap;

/// More of a run are not kept apart: each program has room for 1,024.
const PLACES_MOST: usize = 1 << 15;

/// Behind a call, of whoever wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At an offset in the file.
    File {
        device: u64,
        inode: u64,
        offset: u64,
    },
    /// In code that came from no file, of a process, as we number it.
    Memory { pid: i32, address: u64 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceSums {
    pub count: u64,
    pub errors: u64,
    pub wall_ns: u64,
    pub max_ns: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Places {
    /// By number of the call.
    pub all: HashMap<(u32, Place), PlaceSums>,
    /// Calls that found no room.
    pub lost: u64,
}

impl Places {
    /// What the area of a program says.
    pub(crate) fn add(&mut self, bytes: &[u8], pid: i32) {
        let long = |at: u64| {
            let word = bytes
                .get(at as usize..)
                .and_then(|bytes| bytes.first_chunk());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        self.lost = self.lost.saturating_add(long(places::LOST));
        for n in 0..places::PLACES {
            let at = places::PLACE + n * places::PLACE_BYTES;
            let (key, sums) = (
                long(at),
                PlaceSums {
                    count: long(at + places::COUNT),
                    errors: long(at + places::ERRORS),
                    wall_ns: long(at + places::WALL_NS),
                    max_ns: long(at + places::MAX_NS),
                },
            );
            // One that was taken back when an execve failed leaves nothing.
            if key == 0 || sums.count == 0 {
                continue;
            }
            let nr = (key >> places::OFFSET_BITS) as u32 & (NRS - 1);
            let offset = key & ((1 << places::OFFSET_BITS) - 1);
            let place = match key >> places::FILE_SHIFT {
                places::FILE_NONE => Place::Memory {
                    pid,
                    address: offset,
                },
                file @ 1..=places::FILES => {
                    let at = places::FILE + (file - 1) * places::FILE_BYTES;
                    Place::File {
                        device: long(at + places::FILE_DEVICE),
                        inode: long(at),
                        offset,
                    }
                }
                _ => continue,
            };
            let room = self.all.len() < PLACES_MOST;
            let Some(known) = (match room {
                true => Some(self.all.entry((nr, place)).or_default()),
                false => self.all.get_mut(&(nr, place)),
            }) else {
                self.lost = self.lost.saturating_add(sums.count);
                continue;
            };
            known.count = known.count.saturating_add(sums.count);
            known.errors = known.errors.saturating_add(sums.errors);
            known.wall_ns = known.wall_ns.saturating_add(sums.wall_ns);
            known.max_ns = known.max_ns.max(sums.max_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: &mut [u8], at: u64, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            bytes[at as usize + 8 * n..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }

    #[test]
    fn what_programs_say_is_added_up() {
        let mut bytes = vec![0; places::BYTES as usize];
        let key = |file: u64, nr: u64, offset: u64| {
            file << places::FILE_SHIFT | nr << places::OFFSET_BITS | offset
        };
        let place = |n: u64| places::PLACE + n * places::PLACE_BYTES;
        put(&mut bytes, places::LOST, &[7]);
        put(&mut bytes, places::FILE, &[12, 34]);
        put(&mut bytes, place(0), &[key(1, 39, 0x1234), 3, 1, 30, 20]);
        put(&mut bytes, place(9), &[key(1, 39, 0x1234), 2, 0, 5, 4]);
        put(
            &mut bytes,
            place(1023),
            &[key(255, 511, 0x7fff_ffff_f000), 1, 0, 1, 1],
        );
        // Nobody's file, and nothing.
        put(&mut bytes, place(5), &[key(0, 39, 1), 1, 0, 1, 1]);
        put(&mut bytes, place(6), &[key(2, 59, 1), 0, 0, 1, 1]);
        let mut all = Places::default();
        all.add(&bytes, 77);
        let file = Place::File {
            device: 34,
            inode: 12,
            offset: 0x1234,
        };
        let memory = Place::Memory {
            pid: 77,
            address: 0x7fff_ffff_f000,
        };
        assert_eq!(all.lost, 7);
        assert_eq!(all.all.len(), 2);
        assert_eq!(
            all.all[&(39, file)],
            PlaceSums {
                count: 5,
                errors: 1,
                wall_ns: 35,
                max_ns: 20
            }
        );
        assert_eq!(all.all[&(511, memory)].count, 1);
    }

    #[test]
    fn anything_does_no_harm() {
        let mut all = Places::default();
        let mut seed = 1u64;
        for _ in 0..100 {
            let bytes: Vec<u8> = (0..places::BYTES)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (seed >> 56) as u8
                })
                .collect();
            all.add(&bytes, 1);
        }
        assert!(all.all.len() <= PLACES_MOST);
        assert!(all.all.keys().all(|(nr, _)| *nr < NRS));
        assert!(all.lost > 0);
        all.add(&[0xff; 100], 1);
    }
}
