// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is a file a copy of another one in which calls are spliced, and of which place of that is a
//! trampoline?
//!
//! `crates/splice/src/image.rs` writes it, `splice/state.h` has the layout: the file itself; behind
//! it trampolines, by pages; last a page that says so. A trampoline has no frame: all is as at its
//! site. Each page of them tells for every 16 bytes how far behind the page's begin, in memory,
//! the place lies that the trampoline's call returns to, and 2^31, since it may lie before it.

use crate::elf::Image;
use crate::{Error, Row, Source};

const MAGIC: u64 = 0x4741_4d49_5842_4544;
const PAGE: u64 = 4096;
/// Of what is told of each.
const PART: u64 = 16;
const PARTS: u64 = PAGE / PART;
const WAY_0: u64 = 1 << 31;
/// More than any file's trampolines take.
const POOL_BYTES_MAX: u64 = 16 << 20;
/// Of the path, in the last page.
const PATH: usize = 512;
/// `struct splice_image`: where the pool lies in memory, in the file, and where its own call frame
/// information begins, in memory.
const POOL: usize = 16;
const POOL_OFFSET: usize = 32;
const FRAMES: usize = 48;

/// A trampoline, or the end of one: offsets in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    from: u32,
    to: u32,
    /// Where its call returns to.
    back: u32,
}

#[derive(Clone, Debug)]
pub struct Spliced {
    /// Of the file that it is a copy of, when it was made.
    pub path: Vec<u8>,
    /// In order.
    pieces: Vec<Piece>,
}

impl Spliced {
    /// None: it is no such copy.
    ///
    /// # Errors
    /// When more would have to be read than the limits allow.
    pub fn find<S: Source + ?Sized>(image: &Image<'_, S>) -> Result<Option<Self>, Error> {
        let length = image.file_len();
        if length < 2 * PAGE || !length.is_multiple_of(PAGE) {
            return Ok(None);
        }
        let end = length - PAGE;
        let last = image.read(end, PAGE)?;
        let word = |at: usize| crate::elf::word(&last, at).unwrap_or(0);
        let (pool, offset) = (word(POOL), word(POOL_OFFSET));
        // Trampolines lie in front of their call frame information.
        let bytes = word(FRAMES).wrapping_sub(pool);
        let inside = (offset.checked_add(bytes)).is_some_and(|behind| behind <= end)
            && offset % PAGE == 0
            && bytes % PAGE == 0
            && bytes <= POOL_BYTES_MAX
            && u32::try_from(length).is_ok();
        if word(0) != MAGIC || !inside {
            return Ok(None);
        }
        let path = last.get(PATH..).unwrap_or_default();
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut pieces: Vec<Piece> = Vec::new();
        for page in 0..bytes / PAGE {
            let ways = image.read(offset + page * PAGE, 4 * PARTS)?;
            for part in 4 * PARTS / PART..PARTS {
                let way = crate::elf::half(&ways, 4 * part as usize).unwrap_or(0);
                if way == 0 {
                    continue;
                }
                let from = pool.wrapping_add(page * PAGE).wrapping_sub(WAY_0);
                let address = from.wrapping_add(u64::from(way));
                let back = image.file_offset(address);
                let Some(back) = back.and_then(|back| u32::try_from(back).ok()) else {
                    continue;
                };
                let from = (offset + page * PAGE + part * PART) as u32;
                let to = from + PART as u32;
                match pieces.last_mut() {
                    Some(last) if last.to == from && last.back == back => last.to = to,
                    _ => pieces.push(Piece { from, to, back }),
                }
            }
        }
        Ok(Some(Self {
            path: path.to_vec(),
            pieces,
        }))
    }

    /// The place in the file that stands for one (behind a call) in a trampoline.
    pub fn site(&self, place: u64) -> Option<u64> {
        let at = u32::try_from(place.checked_sub(1)?).ok()?;
        let next = self.pieces.partition_point(|piece| piece.from <= at);
        let piece = self.pieces.get(next.checked_sub(1)?)?;
        (at < piece.to).then_some(u64::from(piece.back))
    }

    /// Rows of the trampolines: those of their sites, in `rows`; and what holds behind them.
    pub fn rows<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = (Row, u32)> + 'a {
        self.pieces.iter().filter_map(|piece| {
            let at = piece.back.checked_sub(1)?;
            let next = rows.partition_point(|row| row.pc <= at);
            let row = rows.get(next.checked_sub(1)?)?;
            let pc = piece.from;
            Some((Row { pc, ..*row }, piece.to))
        })
    }
}
