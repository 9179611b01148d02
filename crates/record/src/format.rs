// SPDX-License-Identifier: MIT OR Apache-2.0
//! What are the bytes of a recording?
//!
//! A header of 16 bytes, then blocks. A block is a header of 20 bytes (type,
//! flags, length as stored, length of the text, CRC) and its text, JSON,
//! compressed or not. All numbers are little endian. docs/recording.md says the
//! same for people who write their own reader.

use debox_output::count_text;
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
/// The same for what is smaller than an object: list elements and fields,
/// counted by their commas.
pub const ELEMENTS_MAX: usize = 8 << 20;
/// Text that is unpacked of one file: so much in any case, and so many times
/// the file's size. Blocks that later ones stand for are not unpacked, so a
/// file that debox wrote needs far less.
pub const UNPACKED_MAX: usize = 128 << 20;
pub const UNPACKED_TIMES: usize = 32;

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

/// A block as found in a file, not unpacked yet.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub kind: u32,
    pub flags: u32,
    /// Where it begins in the file.
    pub at: usize,
    stored: &'a [u8],
    pub text_len: usize,
}

/// Why reading stopped before the end of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The file ends inside of a block.
    Short,
    /// The block's bytes are not those that were written.
    Damaged,
    /// No debox wrote this: what exceeds what, as a sentence.
    Exceeds(String),
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// "holds 7 X, and a recording has at most 5".
pub fn exceeds(found: usize, what: &str, most: usize) -> String {
    let (found, most) = (count_text(found as u64), count_text(most as u64));
    format!("holds {found} {what}, and what debox writes has at most {most}")
}

/// The block that begins at `at`; None at the end.
pub fn block_read(bytes: &[u8], at: usize) -> Result<Option<Block<'_>>, Broken> {
    let bytes = &bytes[at..];
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() < BLOCK_HEADER_LEN {
        return Err(Broken::Short);
    }
    let (stored_len, text_len) = (word(bytes, 8) as usize, word(bytes, 12) as usize);
    let Some(stored) = bytes[BLOCK_HEADER_LEN..].get(..stored_len) else {
        // A length that was damaged looks the same as a file that was cut.
        return Err(Broken::Short);
    };
    if crc(&bytes[..16], stored) != word(bytes, 16) {
        return Err(Broken::Damaged);
    }
    Ok(Some(Block {
        kind: word(bytes, 0),
        flags: word(bytes, 4),
        at,
        stored,
        text_len,
    }))
}

/// Refuses JSON that would take more memory than any that debox writes.
pub fn json_check(text: &[u8]) -> Result<(), String> {
    let count = |sought: u8| text.iter().filter(|byte| **byte == sought).count();
    for (sought, what, most) in [
        (b'{', "objects", OBJECTS_MAX),
        (b',', "fields and elements", ELEMENTS_MAX),
    ] {
        let found = count(sought);
        if found > most {
            return Err(exceeds(found, what, most));
        }
    }
    Ok(())
}

impl Block<'_> {
    pub fn is_known(&self) -> bool {
        matches!(
            self.kind,
            BLOCK_START | BLOCK_REPORT | BLOCK_HISTORY | BLOCK_END
        )
    }

    /// Bytes in the file.
    pub fn len(&self) -> usize {
        BLOCK_HEADER_LEN + self.stored.len()
    }

    pub fn unpack(&self) -> Result<Vec<u8>, Broken> {
        if self.text_len > TEXT_MAX {
            let what = "bytes of text in one block";
            return Err(Broken::Exceeds(exceeds(self.text_len, what, TEXT_MAX)));
        }
        let text = if self.flags & FLAG_ZSTD != 0 {
            // Never more than text_len bytes are made, whatever the frame claims.
            zstd::bulk::decompress(self.stored, self.text_len).map_err(|_| Broken::Damaged)?
        } else {
            self.stored.to_vec()
        };
        if text.len() != self.text_len {
            return Err(Broken::Damaged);
        }
        json_check(&text).map_err(Broken::Exceeds)?;
        Ok(text)
    }
}
