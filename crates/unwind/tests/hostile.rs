// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can a file do that somebody made to harm the broker? Damaged, cut and
//! hand-made files give a table or an error, never a panic, and neither much
//! time nor much memory. `DEBOX_FUZZ_ROUNDS` sets how many damaged files each
//! program is made into.

mod common;
#[path = "../../../fuzz/src/program.rs"]
#[allow(dead_code)]
mod program;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{C_PROGRAM, GO_PROGRAM, compile_c, compile_go};
use debox_unwind::{END, Error, Options, Table, table};
use program::{COMPRESSED, PROGBITS, STRTAB, SYMTAB};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn limits() -> Options {
    Options {
        max_cpu: Duration::from_secs(2),
        max_rows: 100_000,
        max_read_bytes: 32 << 20,
        ..Options::default()
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Whatever comes out has the form that a search relies on, within the limits.
fn check(bytes: &[u8]) -> Result<Table, Error> {
    let options = limits();
    let start = cpu();
    let made = table(bytes, &options);
    let took = cpu().saturating_sub(start);
    // One function's worth of work can lie between two looks at the clock.
    assert!(took < options.max_cpu + Duration::from_secs(3), "{took:?}");
    if let Ok(table) = &made {
        assert!(table.rows.len() <= options.max_rows);
        for pair in table.rows.windows(2) {
            assert!(pair[0].pc < pair[1].pc, "{pair:?}");
        }
        if let Some(last) = table.rows.last() {
            assert_eq!(last.kind, END);
        }
    }
    made
}

/// Where a section is in a file, by readelf.
fn section(path: &Path, name: &str) -> Option<(usize, usize)> {
    let text = common::stdout(Command::new("readelf").arg("-SW").arg(path));
    let line = text.lines().find(|line| {
        line.split_once(']')
            .is_some_and(|(_, rest)| rest.split_whitespace().next() == Some(name))
    })?;
    let words: Vec<&str> = line.split_once(']')?.1.split_whitespace().collect();
    let hex = |word: &str| usize::from_str_radix(word, 16).unwrap();
    Some((hex(words[3]), hex(words[4])))
}

fn rounds(default: u32) -> u32 {
    std::env::var("DEBOX_FUZZ_ROUNDS").map_or(default, |rounds| rounds.parse().unwrap())
}

/// Bytes changed anywhere, but most of them where something is parsed; a
/// quarter of the files are cut off as well.
fn damage(path: &Path, rounds: u32) {
    let original = fs::read(path).unwrap();
    check(&original).unwrap();
    let mut places = vec![(0, 64 + 56 * 14)];
    for name in [
        ".eh_frame",
        ".eh_frame_hdr",
        ".debug_frame",
        ".gopclntab",
        ".symtab",
        ".strtab",
        ".dynamic",
        ".note.gnu.build-id",
        ".go.module",
    ] {
        places.extend(section(path, name));
    }
    let headers = u64::from_le_bytes(original[0x28..0x30].try_into().unwrap()) as usize;
    places.push((headers, original.len() - headers));
    let value = prop_oneof![
        3 => any::<u8>(),
        1 => Just(0u8),
        1 => Just(0xffu8),
        1 => Just(0x7fu8),
        1 => Just(0x80u8),
    ];
    let change = (
        0..places.len(),
        any::<prop::sample::Index>(),
        value,
        1..9usize,
    );
    let changes = prop::collection::vec(change, 1..24);
    let cut = prop::option::weighted(0.25, any::<prop::sample::Index>());
    let config = Config {
        cases: rounds,
        // Shrinking a damaged file costs more than looking at it.
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&(changes, cut), |(changes, cut)| {
        let mut bytes = original.clone();
        for (place, at, value, len) in changes {
            let (start, size) = places[place];
            // The first bytes of a part are the ones with lengths in them.
            let at = start + at.index(size.max(1)).min(at.index(4 * size.max(1)));
            let end = (at + len).min(bytes.len());
            if at < end {
                bytes[at..end].fill(value);
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = check(&bytes);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn damaged_c_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile_c(dir.path(), "c", C_PROGRAM, &["-O2", "-g"]);
    damage(&program, rounds(4000));
}

#[test]
fn damaged_static_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile_c(dir.path(), "static", C_PROGRAM, &["-O2", "-static"]);
    damage(&program, rounds(300));
}

#[test]
fn damaged_go_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile_go(dir.path(), "go", GO_PROGRAM, &[]);
    damage(&program, rounds(300));
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(2000) })]
    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..2048), elf in any::<bool>()) {
        if elf && bytes.len() > 20 {
            bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
            bytes[16..20].copy_from_slice(&[3, 0, 62, 0]);
        }
        let _ = check(&bytes);
    }
}

/// An FDE of .debug_frame for 16 bytes at an address.
fn fde(cie: u32, address: u64, instructions: &[u8]) -> Vec<u8> {
    let mut bytes = (20 + instructions.len() as u32).to_le_bytes().to_vec();
    bytes.extend(cie.to_le_bytes());
    bytes.extend(address.to_le_bytes());
    bytes.extend(16u64.to_le_bytes());
    bytes.extend(instructions);
    bytes
}

/// A CIE of .debug_frame: version 1, no augmentation, factors 1 and −8,
/// return address in 16.
fn cie(instructions: &[u8]) -> Vec<u8> {
    let body = [&[0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16], instructions].concat();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

#[test]
fn the_hand_made_program_is_read() {
    // def_cfa rsp+8, return address at c-8; then at +1: def_cfa_offset 16,
    // rbp at c-16.
    let mut frames = cie(&[0x0c, 7, 8, 0x90, 1]);
    frames.extend(fde(0, 0x20, &[0x41, 0x0e, 16, 0x86, 2, 0, 0, 0]));
    let table = check(&program::file(&[(".debug_frame", PROGBITS, 0, &frames)])).unwrap();
    let row = table.row(0x25).unwrap();
    assert_eq!(
        (row.kind(), row.cfa_words, row.rbp_words),
        (debox_unwind::RSP, 2, -2)
    );
    assert_eq!(table.row(0x20).unwrap().cfa_words, 1);
}

/// A long CIE would be interpreted again for each of its functions.
#[test]
fn long_cie() {
    // remember_state, restore_state: each copies all rules
    let instructions = [0x0a, 0x0b].repeat(500_000);
    let mut frames = cie(&instructions);
    for index in 0..200_000u64 {
        frames.extend(fde(0, index, &[0; 4]));
    }
    let table = check(&program::file(&[(".debug_frame", PROGBITS, 0, &frames)])).unwrap();
    assert!(
        table
            .rows
            .iter()
            .all(|row| matches!(row.kind(), debox_unwind::FRAME_POINTER | END))
    );
}

#[test]
fn slow_functions_meet_the_clock() {
    let body = [0x0a, 0x0b].repeat(1 << 20);
    let mut frames = cie(&[0x0c, 7, 8, 0x90, 1]);
    for index in 0..12 {
        frames.extend(fde(0, 0x40 + 16 * index, &body));
    }
    let bytes = program::file(&[(".debug_frame", PROGBITS, 0, &frames)]);
    let options = Options {
        max_cpu: Duration::from_millis(1),
        ..Options::default()
    };
    let error = table(&bytes[..], &options).unwrap_err();
    assert!(matches!(error, Error::Time { limit_ms: 1 }), "{error}");
}

#[test]
fn too_many_rows() {
    // advance 1, then one more word of stack, many times
    let mut frames = cie(&[0x0c, 7, 8, 0x90, 1]);
    for address in 0..3000 {
        frames.extend(fde(
            0,
            64 + 16 * address,
            &[0x41, 0x0e, 16, 0x41, 0x0e, 24, 0, 0],
        ));
    }
    let bytes = program::file(&[(".debug_frame", PROGBITS, 0, &frames)]);
    assert!(check(&bytes).is_ok());
    let options = Options {
        max_rows: 5000,
        ..Options::default()
    };
    let error = table(&bytes[..], &options).unwrap_err().to_string();
    assert!(
        error.contains("number of rows") && error.contains("5000"),
        "{error}"
    );
    let options = Options {
        max_rows: 2000,
        ..Options::default()
    };
    let error = table(&bytes[..], &options).unwrap_err().to_string();
    assert!(error.contains("number of its functions"), "{error}");
}

/// 1 GiB of zeros in 1 MiB.
#[test]
fn compression_bomb() {
    use std::io::Write as _;
    let mut header = Vec::new();
    header.extend(1u32.to_le_bytes()); // ELFCOMPRESS_ZLIB
    header.extend(0u32.to_le_bytes());
    header.extend((1u64 << 30).to_le_bytes());
    header.extend(1u64.to_le_bytes());
    let mut packer = flate2::write::ZlibEncoder::new(header, flate2::Compression::fast());
    for _ in 0..64 {
        packer.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let mut packed = packer.finish().unwrap();
    let error = check(&program::file(&[(
        ".debug_frame",
        PROGBITS,
        COMPRESSED,
        &packed,
    )]))
    .unwrap_err();
    assert!(error.to_string().contains("more than the limit"), "{error}");
    // A header that says less than there is: no more than it says is made.
    packed[8..16].copy_from_slice(&(1u64 << 20).to_le_bytes());
    check(&program::file(&[(
        ".debug_frame",
        PROGBITS,
        COMPRESSED,
        &packed,
    )]))
    .unwrap();
}

/// Half a million symbols that all have the same 4,000-byte name.
#[test]
fn shared_names() {
    let mut symbols = Vec::new();
    for index in 0..400_000u64 {
        symbols.extend(1u32.to_le_bytes());
        symbols.extend([2, 0, 1, 0]);
        symbols.extend(index.to_le_bytes());
        symbols.extend(1u64.to_le_bytes());
    }
    let mut names = vec![b'x'; 4000];
    names[0] = 0;
    names.push(0);
    let bytes = program::file(&[
        (".symtab", SYMTAB, 0, &symbols),
        (".strtab", STRTAB, 0, &names),
    ]);
    let error = check(&bytes).unwrap_err().to_string();
    assert!(error.contains("more than the limit"), "{error}");
}

#[test]
fn file_too_long() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(5 << 30).unwrap();
    let error = table(&file, &Options::default()).unwrap_err().to_string();
    assert!(
        error.contains("the file's length in bytes is 5368709120"),
        "{error}"
    );
}
