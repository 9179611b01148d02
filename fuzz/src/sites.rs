// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a program's file, or a table from a cache, do to who splices its system calls?
//!
//! 0: the file itself. 1: a table. Else a section's content, put into a program that is
//! otherwise sound: 2 code, all of which is one function, 3 .eh_frame, 4 relocations.

use crate::{choice, program};
use debox_splice::{JUMP_BYTES, Table};

pub fn check(data: &[u8]) {
    let (kind, rest) = choice(data);
    if kind == 1 {
        if let Ok(table) = Table::parse(rest) {
            holds(&table);
        }
        return;
    }
    let file = &program::of(kind, rest, made_of)[..];
    if let Ok(table) = Table::of(file) {
        holds(&table);
    }
}

/// Windows do not overlap and contain their call; the table is the same after a cache.
fn holds(table: &Table) {
    let mut free = 0;
    for site in &table.sites {
        let Ok(window) = &site.window else {
            continue;
        };
        assert!(window.start >= free && window.bytes.len() >= JUMP_BYTES);
        assert_eq!(window.start + window.before as u64, site.address);
        assert_eq!(&window.bytes[window.before..][..2], b"\x0f\x05");
        for &(from, end) in &window.relative {
            assert!(from as usize + 4 <= end as usize && end as usize <= window.bytes.len());
        }
        free = window.end();
    }
    assert_eq!(
        &Table::parse(&table.to_bytes()).expect("its own bytes"),
        table
    );
}

fn made_of(kind: u8, body: &[u8]) -> Vec<u8> {
    use program::{PROGBITS, STRTAB, SYMTAB};
    const RELA: u32 = 4;
    match kind {
        2 => {
            // A function of the first section's size at its address.
            let mut symbol = [0u8; 24];
            symbol[4] = 0x12;
            symbol[6] = 1;
            symbol[8..16].copy_from_slice(&0x1000u64.to_le_bytes());
            symbol[16..].copy_from_slice(&(body.len() as u64).to_le_bytes());
            program::file(&[
                (".text", PROGBITS, 6, body),
                (".symtab", SYMTAB, 0, &symbol),
                (".strtab", STRTAB, 0, b"\0f\0"),
            ])
        }
        3 => program::file(&[(".eh_frame", PROGBITS, 2, body)]),
        _ => program::file(&[(".rela.dyn", RELA, 2, body), (".dynstr", STRTAB, 2, b"\0")]),
    }
}
