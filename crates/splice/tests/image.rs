// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does whoever unwinds, or names places, in a copy with spliced calls find what is in the file?

use debox_splice::{Image, Kind, Side, Table};
use debox_unwind::{Options, Program, Row};
use std::path::Path;

const PAGE: usize = 4096;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn row_at(rows: &[Row], offset: u64) -> Option<&Row> {
    let next = rows.partition_point(|row| u64::from(row.pc) <= offset);
    rows.get(next.checked_sub(1)?)
}

#[test]
fn a_copy_is_unwound_and_named_as_its_file() {
    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
    // A program that cannot be moved has its heap behind it.
    let folder = tempfile::tempdir().unwrap();
    let (source, fixed) = (folder.path().join("fixed.c"), folder.path().join("fixed"));
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let compiler = std::process::Command::new("cc")
        .args(["-static", "-no-pie", "-o"])
        .args([&fixed, &source])
        .status();
    assert!(compiler.unwrap().success());
    let fixed = fixed.to_str().unwrap();
    let all = [
        (LIBC, Side::Below, false),
        (LIBC, Side::Above, false),
        (fixed, Side::Below, false),
        (LIBC, Side::Below, true),
        (fixed, Side::Below, true),
    ];
    let mut spliced = std::collections::HashMap::new();
    for (path, side, samples) in all {
        let file = std::fs::read(path).unwrap();
        let table = Table::of(&file).unwrap();
        let image = Image::of(&file, &table, Path::new(path), Kind { side, samples }).unwrap();
        let least = if path == LIBC { 200 } else { 20 };
        assert!(image.spliced > least, "{path}: {}", image.spliced);
        // Each kind has room for all of them.
        let same = *spliced.entry(path).or_insert(image.spliced);
        assert_eq!(same, image.spliced, "{path}");
        let copy = image.bytes;
        let last = copy.len() - PAGE;
        let (pool, pool_offset) = (word(&copy[last..], 16), word(&copy[last..], 32));

        let options = Options::default();
        let program = Program::open(&copy[..], &options).unwrap();
        assert_eq!(program.copy_of(), Some(path.as_bytes()));
        assert_eq!(Program::open(&file[..], &options).unwrap().copy_of(), None);
        let rows = debox_unwind::table(&copy[..], &options).unwrap().rows;
        let of_file = debox_unwind::table(&file[..], &options).unwrap().rows;
        assert_eq!(rows[..of_file.len()], of_file[..], "{path}");

        let mut tried = 0;
        for site in &table.sites {
            let Ok(window) = &site.window else { continue };
            // The file is mapped as it lies there: from one address the way is the same to all.
            let segments = object_segments(&file);
            let offset = |address: u64| {
                let of = segments
                    .iter()
                    .find(|s| address >= s.0 && address - s.0 < s.2);
                of.map(|s| s.1 + (address - s.0)).unwrap()
            };
            let at = offset(window.start) as usize;
            if copy[at] != 0xe9 {
                continue;
            }
            let way = i32::from_le_bytes(copy[at + 1..at + 5].try_into().unwrap());
            let begin = window.start.wrapping_add(5).wrapping_add_signed(way.into());
            let trampoline = pool_offset + begin.wrapping_sub(pool);
            let back = offset(site.back());
            assert_eq!(
                program.site(trampoline + 1),
                Some(back),
                "{path} {:#x}",
                site.address
            );
            let (here, there) = (row_at(&rows, trampoline), row_at(&of_file, back - 1));
            let told = |row: &Row| (row.cfa_words, row.rbp_words, row.kind);
            assert_eq!(
                here.map(told),
                there.map(told),
                "{path} {:#x}",
                site.address
            );
            tried += 1;
        }
        assert_eq!(tried, image.spliced, "{path}");
    }
}

/// Address, offset and length of what is loaded.
fn object_segments(file: &[u8]) -> Vec<(u64, u64, u64)> {
    let (headers, count) = (word(file, 32) as usize, file[56] as usize);
    (0..count)
        .map(|n| &file[headers + 56 * n..])
        .filter(|header| header[..4] == 1u32.to_le_bytes())
        .map(|header| (word(header, 16), word(header, 8), word(header, 32)))
        .collect()
}
