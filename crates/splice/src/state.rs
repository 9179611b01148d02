// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where do trampolines find the thread's state? As `splice/state.h` has it, which says why.

/// Offsets in a block, from the base of GS.
pub mod block {
    pub const OPEN: u64 = 0;
    pub const START: u64 = 8;
    pub const NR: u64 = 16;
    pub const RATE: u64 = 24;
    pub const ENTER: u64 = 32;
    pub const EXIT: u64 = 40;
    pub const BEFORE: u64 = 48;
    pub const AFTER: u64 = 56;
    pub const FIND: u64 = 128;
    pub const SAVED_RDX: u64 = 64;
    pub const SELF: u64 = 72;
    /// tid, pid, state, depth.
    pub const TID: u64 = 80;
    pub const UNTIMED: u64 = 96;
    pub const ABANDONED: u64 = 104;
    pub const SPECIAL: u64 = 512;
    pub const ROWS: u64 = 4096;
    pub const BYTES: u64 = ROWS + super::NRS as u64 * super::row::BYTES;
}

/// Offsets in a row of a block: the sums of one call.
pub mod row {
    pub const COUNT: u64 = 0;
    pub const WALL_NS: u64 = 8;
    pub const MAX_NS: u64 = 16;
    pub const ERRORS: u64 = 24;
    pub const HIST: u64 = 32;
    pub const BYTES: u64 = 1216;
}

/// The first page of an area, which is of one program.
pub mod area {
    pub const BLOCKS: u64 = 32;
    pub const BLOCKS_LOST: u64 = 12;
    pub const IMAGES: u64 = 16;
    pub const LATE_CODE: u64 = 24;
    pub const LEFT: u64 = 28;
    pub const OFF: u64 = 36;
    pub const IMAGE: u64 = 72;
    pub const IMAGE_BYTES: u64 = 48;
    pub const IMAGES_MOST: u64 = 64;
    pub const BYTES: u64 = super::PAGE + BLOCKS * super::block::BYTES;
}

/// The first page of a run's file.
pub mod run {
    pub const BYTES: u64 = 4096;
    pub const BELL: u64 = 8;
    pub const IMAGES: u64 = 24;
    pub const IMAGES_BYTES: u64 = 256;
    pub const REQUEST: u64 = 280;
    pub const REQUEST_BYTES: u64 = 32;
    pub const REQUESTS: usize = 64;
    /// Of a request, whose state comes first.
    pub const KIND: u64 = 4;
    pub const TID: u64 = 8;
    pub const FD: u64 = 12;
    pub const ANSWER: u64 = 16;
}

pub const PAGE: u64 = 4096;
pub const NRS: u32 = 512;
pub const BUCKETS: u32 = 290;
pub const VERSION: u32 = 1;
pub const IMAGE_MAGIC: u64 = 0x4741_4d49_5842_4544;
pub const IMAGE_SEGMENTS: usize = 4;

/// The row of a call in a block.
pub fn row_of(nr: u32) -> u64 {
    block::ROWS + u64::from(nr.min(NRS - 1)) * row::BYTES
}
