// SPDX-License-Identifier: MIT OR Apache-2.0
//! What are the bytes of a recording?
//!
//! A header of 16 bytes, then blocks. A block is a header of 20 bytes (type,
//! flags, length as stored, length of the text, CRC) and its text, JSON,
//! compressed or not. All numbers are little endian. docs/recording.md says the
//! same for people who write their own reader.

use debox_report::{CallHistory, Capture, Gauge, RunKind};
use serde::{Deserialize, Serialize};

/// Not text (the first byte), not mangled by a transfer in text mode (CR LF),
/// not printed beyond its name (^Z).
pub const MAGIC: [u8; 8] = *b"\x89DeBox\r\n";
/// Raised when an old reader could not make sense of a new file. New types of
/// blocks are not such a reason: they are skipped.
pub const VERSION: u32 = 1;
pub const HEADER_LEN: usize = 16;
pub const BLOCK_HEADER_LEN: usize = 20;

pub const BLOCK_START: u32 = 1;
pub const BLOCK_REPORT: u32 = 2;
pub const BLOCK_HISTORY: u32 = 3;
pub const BLOCK_END: u32 = 4;

pub const FLAG_ZSTD: u32 = 1 << 0;
/// This block stands for all earlier ones of its type. A report always does.
pub const FLAG_REPLACES: u32 = 1 << 1;

/// Longest text of one block: a full account (every table of it) makes 24 MiB.
pub const TEXT_MAX: usize = 48 << 20;
/// Most JSON objects in one block: small objects become larger structs, and a
/// reader must not be made to fill its memory by a small file.
pub const OBJECTS_MAX: usize = 1 << 20;

const ZSTD_LEVEL: i32 = 3;
/// Below, compressing saves nothing worth having.
const COMPRESS_FROM: usize = 256;

/// What is known when a recording begins.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Start {
    pub debox_version: String,
    pub kind: RunKind,
    pub capture: Capture,
    pub command: Vec<String>,
    pub pids: Vec<u32>,
    pub cpus: u32,
    /// Of the run's begin, nanoseconds since 1970.
    pub started_unix_ns: u64,
    pub kernel: String,
    pub hostname: String,
}

/// What the looks since the block before added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HistoryBlock {
    /// Since the start of the run, of the last look in it.
    pub until_ns: u64,
    #[serde(default)]
    pub history: Vec<CallHistory>,
    #[serde(default)]
    pub gauges: Vec<Gauge>,
}

/// The last block of a recording that was written to its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct End {
    pub until_ns: u64,
    /// What is missing all the same.
    #[serde(default)]
    pub why: Option<String>,
}

pub fn header() -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&(HEADER_LEN as u32).to_le_bytes());
    bytes
}

fn crc(head: &[u8], stored: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(stored);
    hasher.finalize()
}

/// One block, ready to be appended. None if its text is too long.
pub fn block(kind: u32, flags: u32, text: &[u8]) -> Option<Vec<u8>> {
    if text.len() > TEXT_MAX {
        return None;
    }
    let mut flags = flags & !FLAG_ZSTD;
    let packed = (text.len() >= COMPRESS_FROM)
        .then(|| zstd::bulk::compress(text, ZSTD_LEVEL).ok())
        .flatten()
        .filter(|packed| packed.len() < text.len());
    let stored = match &packed {
        Some(packed) => {
            flags |= FLAG_ZSTD;
            packed.as_slice()
        }
        None => text,
    };
    let mut out = Vec::with_capacity(BLOCK_HEADER_LEN + stored.len());
    for word in [kind, flags, stored.len() as u32, text.len() as u32] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let sum = crc(&out, stored);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(stored);
    Some(out)
}

/// A block as found in a file; `text` is None for a type not known.
#[derive(Debug)]
pub struct Block {
    pub kind: u32,
    pub flags: u32,
    pub text: Option<Vec<u8>>,
}

/// Why reading stopped before the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The file ends inside of a block.
    Short,
    /// The block's bytes are not those that were written.
    Damaged,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// The block at the front of `bytes`, and its length; None at the end.
pub fn block_read(bytes: &[u8]) -> Result<Option<(Block, usize)>, Broken> {
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() < BLOCK_HEADER_LEN {
        return Err(Broken::Short);
    }
    let (kind, flags) = (word(bytes, 0), word(bytes, 4));
    let (stored_len, text_len) = (word(bytes, 8) as usize, word(bytes, 12) as usize);
    let Some(stored) = bytes[BLOCK_HEADER_LEN..].get(..stored_len) else {
        // A length that was damaged looks the same as a file that was cut.
        return Err(Broken::Short);
    };
    if crc(&bytes[..16], stored) != word(bytes, 16) {
        return Err(Broken::Damaged);
    }
    let length = BLOCK_HEADER_LEN + stored_len;
    let known = matches!(kind, BLOCK_START | BLOCK_REPORT | BLOCK_HISTORY | BLOCK_END);
    let block = |text| Block { kind, flags, text };
    if !known {
        return Ok(Some((block(None), length)));
    }
    if text_len > TEXT_MAX {
        return Err(Broken::Damaged);
    }
    let text = if flags & FLAG_ZSTD != 0 {
        // Never more than text_len bytes are made, whatever the frame claims.
        zstd::bulk::decompress(stored, text_len).map_err(|_| Broken::Damaged)?
    } else {
        stored.to_vec()
    };
    let objects = text.iter().filter(|byte| **byte == b'{').count();
    if text.len() != text_len || objects > OBJECTS_MAX {
        return Err(Broken::Damaged);
    }
    Ok(Some((block(Some(text)), length)))
}
