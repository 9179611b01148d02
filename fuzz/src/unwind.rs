// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a program's file do to who makes an unwind table of it?
//!
//! 0: the file itself. Else a section's content, put into a program that is
//! otherwise sound: 1 .eh_frame, 2 .debug_frame, 3 .gopclntab, 4 .debug_frame
//! that is compressed, 5 symbols.

use crate::{choice, program};
use debox_unwind::{END, Options, Program, table};
use std::time::Duration;

fn options() -> Options {
    Options {
        max_cpu: Duration::from_secs(2),
        max_rows: 100_000,
        max_read_bytes: 32 << 20,
        ..Options::default()
    }
}

pub fn check(data: &[u8]) {
    let (kind, rest) = choice(data);
    let file = &program::of(kind, rest, made_of)[..];
    let options = options();
    if let Ok(table) = table(file, &options) {
        assert!(table.rows.len() <= options.max_rows);
        assert!(table.rows.windows(2).all(|pair| pair[0].pc < pair[1].pc));
        assert!(table.rows.last().is_none_or(|last| last.kind == END));
        for row in &table.rows {
            assert_eq!(table.row(row.pc), Some(row));
        }
    }
    let Ok(program) = Program::open(file, &options) else {
        return;
    };
    for offset in (0..file.len() as u64).step_by(61) {
        if let Some(address) = program.address(offset) {
            program.go_place(address);
        }
    }
}

fn made_of(kind: u8, body: &[u8]) -> Vec<u8> {
    use program::{COMPRESSED, PROGBITS, STRTAB, SYMTAB};
    match kind {
        1 => program::file(&[(".eh_frame", PROGBITS, 2, body)]),
        2 => program::file(&[(".debug_frame", PROGBITS, 0, body)]),
        3 => program::file(&[(".gopclntab", PROGBITS, 2, body)]),
        4 => program::file(&[(".debug_frame", PROGBITS, COMPRESSED, body)]),
        _ => {
            let (symbols, names) = body.split_at(body.len() / 48 * 24);
            program::file(&[
                (".symtab", SYMTAB, 0, symbols),
                (".strtab", STRTAB, 0, names),
                (".note.gnu.build-id", 7, 2, names),
            ])
        }
    }
}
