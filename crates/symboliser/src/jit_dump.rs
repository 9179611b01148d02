// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which code does a jitdump tell of?
//!
//! The form in which compilers hand their code to perf(1): a header, then records, among
//! them the code that was made, with its bytes, and code that moved. Only addresses and
//! names are read.

use std::collections::HashMap;

use crate::wire::{NAME_CHARS_MAX, clean};

/// "JiTD", as x86-64 writes it.
const MAGIC: [u8; 4] = *b"DTiJ";
const VERSION: u32 = 1;
const EM_X86_64: u32 = 62;
const HEADER_BYTES: u64 = 40;
/// Kind, length, time.
const RECORD_BYTES: u64 = 16;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
/// Process, thread, address, address of the code, its length, its number.
const LOAD_BYTES: usize = 40;
/// Process, thread, address, old and new address of the code, its length, its number.
const MOVE_BYTES: usize = 48;
/// A large program makes some hundred thousand.
const RECORDS_MAX: usize = 1 << 21;
/// No more code is remembered.
const CODES_MAX: usize = 1 << 20;

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    word(bytes, at) as u32
}

/// Start, end and name of the code, in the order in which it was told of; None: it is no
/// jitdump of this machine's. What is behind a damaged record is not read. `read` fills a
/// buffer from a place on.
pub(crate) fn parse(
    len: u64,
    read: &dyn Fn(u64, &mut [u8]) -> bool,
) -> Option<Vec<(u64, u64, String)>> {
    let mut head = [0; HEADER_BYTES as usize];
    if !read(0, &mut head) || head[..4] != MAGIC {
        return None;
    }
    if half(&head, 4) != VERSION || half(&head, 12) != EM_X86_64 {
        return Some(Vec::new());
    }
    let mut found = Vec::new();
    // Names of code by its number, for when it moves.
    let mut names: HashMap<u64, usize> = HashMap::new();
    let mut at = u64::from(half(&head, 8)).max(HEADER_BYTES);
    for _ in 0..RECORDS_MAX {
        let mut record = [0; RECORD_BYTES as usize];
        if found.len() >= CODES_MAX || !read(at, &mut record) {
            break;
        }
        let (kind, record_bytes) = (half(&record, 0), u64::from(half(&record, 4)));
        // The last one may not be written to its end yet.
        if record_bytes < RECORD_BYTES || at.checked_add(record_bytes).is_none_or(|end| end > len) {
            break;
        }
        let inside = at + RECORD_BYTES;
        let body_bytes = record_bytes - RECORD_BYTES;
        match kind {
            CODE_LOAD if body_bytes > LOAD_BYTES as u64 => {
                // A character has up to four bytes, and what is too long is cut off.
                let most = LOAD_BYTES as u64 + 4 * NAME_CHARS_MAX as u64 + 8;
                let mut body = vec![0; body_bytes.min(most) as usize];
                if !read(inside, &mut body) {
                    break;
                }
                let name = &body[LOAD_BYTES..];
                let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
                let (start, code_bytes) = (word(&body, 16), word(&body, 24));
                if let Some(span) = span(start, code_bytes).filter(|_| !name.is_empty()) {
                    names.insert(word(&body, 32), found.len());
                    found.push((span.0, span.1, clean(&String::from_utf8_lossy(name))));
                }
            }
            CODE_MOVE if body_bytes >= MOVE_BYTES as u64 => {
                let mut body = [0; MOVE_BYTES];
                if !read(inside, &mut body) {
                    break;
                }
                let known = names.get(&word(&body, 40)).map(|which| &found[*which]);
                if let (Some(known), Some(span)) = (known, span(word(&body, 24), word(&body, 32))) {
                    let (_, _, name): &(u64, u64, String) = known;
                    found.push((span.0, span.1, name.clone()));
                }
            }
            _ => {}
        }
        at += record_bytes;
    }
    Some(found)
}

fn span(start: u64, bytes: u64) -> Option<(u64, u64)> {
    let end = start.checked_add(bytes)?;
    (bytes > 0).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use crate::PerfMap;

    fn head() -> Vec<u8> {
        let mut bytes = b"DTiJ".to_vec();
        for half in [1u32, 40, 62, 0, 7] {
            bytes.extend(half.to_le_bytes());
        }
        bytes.extend([0; 16]);
        bytes
    }

    fn record(kind: u32, words: &[u64], tail: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        let len = 16 + 8 * words.len() + tail.len();
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend([0; 8]);
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(tail);
        bytes
    }

    #[test]
    fn code_has_its_names() {
        let made = |start: u64, len: u64, number: u64, name: &str| {
            let tail = [name.as_bytes(), b"\0\x90\x90"].concat();
            record(0, &[7, start, start, len, number], &tail)
        };
        let all = [
            head(),
            made(0x1000, 0x20, 1, "old"),
            record(2, &[0; 2], b"debug information"),
            made(0x2000, 0x10, 2, "b::c \u{1b}[31m"),
            made(0x1000, 0x10, 3, "new"),
            record(1, &[7, 0, 0x1000, 0x3000, 0x10, 3], &[]),
            record(1, &[7, 0, 0x1000, 0x4000, 0x10, 99], &[]),
            made(u64::MAX, 0x10, 4, "over"),
            made(0x5000, 0, 5, "none"),
            record(3, &[], &[]),
        ]
        .concat();
        let map = PerfMap::of_bytes(&all);
        assert_eq!(map.name(0x100f), Some((0x1000, "new")));
        assert_eq!(map.name(0x1010), None);
        assert_eq!(map.name(0x2000), Some((0x2000, "b::c ?[31m")));
        assert_eq!(map.name(0x3001), Some((0x3000, "new")));
        for nothing in [0x4000, 0x5000, u64::MAX, 0] {
            assert_eq!(map.name(nothing), None);
        }
        // Cut anywhere, and with any byte changed: what is whole, and no more.
        for cut in 0..all.len() {
            PerfMap::of_bytes(&all[..cut]);
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = all.clone();
                changed[cut] = value;
                PerfMap::of_bytes(&changed).name(0x1001);
            }
        }
        let whole = head().len() + made(0x1000, 0x20, 1, "old").len();
        let map = PerfMap::of_bytes(&all[..whole]);
        assert_eq!(map.name(0x101f), Some((0x1000, "old")));
        assert_eq!(PerfMap::of_bytes(&all[..whole - 1]).name(0x1000), None);
    }

    #[test]
    fn another_machines_says_nothing() {
        let mut bytes = head();
        bytes[12] = 183;
        bytes.extend(record(0, &[7, 1, 1, 9, 1], b"f\0"));
        assert_eq!(PerfMap::of_bytes(&bytes).name(2), None);
    }
}
