// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a program's file do to the symboliser, which names places in it?
//!
//! 0: the file itself. 1: .debug_abbrev, .debug_info, .debug_line and .debug_str,
//! each with two bytes of length before it, put into a program that is otherwise
//! sound. 2: symbols. Else: what refers to other files (build id,
//! .gnu_debuglink, .gnu_debugaltlink).

use crate::{Taker, choice, program};
use debox_symboliser::{Module, NAME_CHARS_MAX, Reply, python};

/// Places that are named in one file.
const PLACES: u64 = 48;

pub fn check(data: &[u8]) {
    let (kind, rest) = choice(data);
    let file = program::of(kind, rest, made_of).into_owned();
    let len = file.len() as u64;
    if let Ok(found) = python::of_bytes(file.clone()) {
        said(Reply::Python(found));
    }
    let Ok(module) = Module::of_bytes(file) else {
        return;
    };
    said(Reply::Loaded(module.loaded()));
    for index in 0..PLACES {
        let place = len * index / PLACES;
        for lines in [true, false] {
            let named = module.name(place, lines);
            said(Reply::Named {
                frames: named.frames,
                incomplete: named.incomplete,
            });
        }
    }
    module.name(u64::MAX, true);
}

/// Whoever asked must be able to read the answer.
fn said(reply: Reply) {
    let bytes = reply.encode();
    let (head, body) = bytes.split_at(5);
    let read = Reply::decode(head[4], body).expect("a reply that its reader refuses");
    if let Reply::Named { frames, .. } = read {
        for frame in frames {
            assert!(!frame.function.chars().any(char::is_control));
            assert!(frame.function.chars().count() <= NAME_CHARS_MAX + 1);
        }
    }
}

fn made_of(kind: u8, body: &[u8]) -> Vec<u8> {
    use program::{PROGBITS, STRTAB, SYMTAB};
    let mut taker = Taker(body);
    match kind {
        1 => {
            let mut part = || {
                let len = taker.u16().into();
                taker.bytes(len)
            };
            let parts = [part(), part(), part(), part()];
            program::file(&[
                (".debug_abbrev", PROGBITS, 0, parts[0]),
                (".debug_info", PROGBITS, 0, parts[1]),
                (".debug_line", PROGBITS, 0, parts[2]),
                (".debug_str", PROGBITS, 0, parts[3]),
            ])
        }
        2 => {
            let (symbols, names) = body.split_at(body.len() / 48 * 24);
            program::file(&[
                (".symtab", SYMTAB, 0, symbols),
                (".strtab", STRTAB, 0, names),
            ])
        }
        _ => program::file(&[
            (".note.gnu.build-id", 7, 2, body),
            (".gnu_debuglink", PROGBITS, 0, body),
            (".gnu_debugaltlink", PROGBITS, 0, body),
        ]),
    }
}
