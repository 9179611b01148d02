// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a recording do to who reads it?
//!
//! The file itself, or with a 0 before it. Else a list of blocks, which are put into a file with
//! right lengths and checksums, since no mutation finds those: type, flags,
//! length (32 bits), text.

use crate::{Taker, choice, rendered};

pub fn check(data: &[u8]) {
    let (kind, rest) = choice(data);
    let made;
    let file = if debox_record::is_recording(data) {
        data
    } else if kind == 0 {
        rest
    } else {
        made = file_of(rest);
        &made
    };
    if let Ok(report) = debox_record::read_bytes(file) {
        rendered::check(report);
    }
}

/// docs/recording.md: a header of 16 bytes, then blocks of 20 bytes and a text.
fn file_of(blocks: &[u8]) -> Vec<u8> {
    let mut file = b"\x89DeBox\r\n".to_vec();
    file.extend(debox_record::VERSION.to_le_bytes());
    file.extend(16u32.to_le_bytes());
    let mut taker = Taker(blocks);
    while !taker.is_empty() {
        let (kind, flags, length) = (taker.u8(), taker.u8(), taker.u32());
        let text = taker.bytes(length as usize);
        let packed = (flags & 1 != 0)
            .then(|| zstd::bulk::compress(text, 1).ok())
            .flatten();
        let stored = packed.as_deref().unwrap_or(text);
        let mut head = Vec::new();
        // A length that lies, now and then.
        let said = text.len() as u32 ^ u32::from(flags >> 4);
        for word in [
            u32::from(kind),
            u32::from(flags & 3),
            stored.len() as u32,
            said,
        ] {
            head.extend(word.to_le_bytes());
        }
        let mut sum = crc32fast::Hasher::new();
        sum.update(&head);
        sum.update(stored);
        file.extend(head);
        file.extend(sum.finalize().to_le_bytes());
        file.extend(stored);
    }
    file
}
