// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the least program that a hostile section can be put into?

use std::borrow::Cow;

/// An input as a program: of kind 0 it is one; of others it is put into one.
pub fn of(kind: u8, rest: &[u8], made_of: fn(u8, &[u8]) -> Vec<u8>) -> Cow<'_, [u8]> {
    match kind {
        0 => Cow::Borrowed(rest),
        _ => Cow::Owned(made_of(kind, rest)),
    }
}

/// A program with one executable segment of the whole file and the given
/// sections.
pub fn file(sections: &[(&str, u32, u64, &[u8])]) -> Vec<u8> {
    let mut names = vec![0];
    let mut bodies = Vec::new();
    let mut headers = vec![[0u64; 8]];
    let mut at = 0x1000u64;
    let names_section: (&str, u32, u64, &[u8]) = (".shstrtab", 3, 0, &[0; 256]);
    for (name, kind, flags, body) in sections.iter().chain([&names_section]) {
        let name_at = names.len() as u64;
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        // name | type, flags, address, offset, size, link | info, align, entry
        let first = name_at | u64::from(*kind) << 32;
        let link = headers.len() as u64 + 1;
        headers.push([first, *flags, at, at, body.len() as u64, link, 1, 0]);
        bodies.push((at, body.to_vec()));
        at = (at + body.len() as u64).next_multiple_of(16);
    }
    let last = bodies.last_mut().unwrap();
    last.1[..names.len()].copy_from_slice(&names);
    let end = at + headers.len() as u64 * 64;
    let mut file = vec![0u8; end as usize];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let mut put = |at: usize, value: u64, len: usize| {
        file[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    for (place, value, len) in [
        (16, 2, 2),
        (18, 62, 2),
        (20, 1, 4),
        (32, 64, 8),
        (40, at, 8),
        (52, 64, 2),
        (54, 56, 2),
        (56, 1, 2),
        (58, 64, 2),
        (60, headers.len() as u64, 2),
        (62, headers.len() as u64 - 1, 2),
        // PT_LOAD, readable and executable, the whole file at address 0
        (64, 1 | 5 << 32, 8),
        (96, end, 8),
        (104, end, 8),
        (112, 0x1000, 8),
    ] {
        put(place, value, len);
    }
    for (index, header) in headers.iter().enumerate() {
        for (word, value) in header.iter().enumerate() {
            put(at as usize + index * 64 + word * 8, *value, 8);
        }
    }
    for (at, body) in bodies {
        file[at as usize..at as usize + body.len()].copy_from_slice(&body);
    }
    file
}

pub const PROGBITS: u32 = 1;
pub const SYMTAB: u32 = 2;
pub const STRTAB: u32 = 3;
pub const COMPRESSED: u64 = 0x800;
