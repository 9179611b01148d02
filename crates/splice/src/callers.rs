// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the runtime find out who wanted a call, without anybody's help?
//!
//! Beside the image of a file lies what the walk from a call to its call site needs of the file
//! (`struct splice_callers` of `splice/state.h`, read by `splice/call_site.h`): the unwind rows of the C library
//! and of a language's runtime, through which it goes on, and those of call instructions in other
//! code, where it begins. All else is the program's own, where it ends: one row says so.

use crate::image::whole_pages;
use crate::state::{VERSION, callers};
use crate::{Error, Table};
use debox_unwind::{END, Options, Row, WRAPPER, soname_is_wrapper};
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use std::collections::BTreeMap;
use std::path::Path;

/// What is the program's own.
const OUTSIDE: Row = Row {
    pc: 0,
    cfa_words: 0,
    rbp_words: 0,
    kind: END,
};

/// The bytes of the file beside the image. `sites`: what is known of its calls; `path`: where it lies.
///
/// # Errors
/// When it is no ELF file for x86-64.
pub fn callers(file: &[u8], sites: &Table, path: &Path) -> Result<Vec<u8>, Error> {
    let not = |error: object::Error| Error::NotElf(error.to_string());
    let header = FileHeader64::<Endianness>::parse(file).map_err(not)?;
    let endian = header.endian().map_err(not)?;
    let mut segments = Vec::new();
    for segment in header.program_headers(endian, file).map_err(not)? {
        let is_code =
            segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0;
        let (address, offset) = (segment.p_vaddr(endian), segment.p_offset(endian));
        let bytes = segment.p_filesz(endian);
        if is_code && bytes != 0 && address % crate::state::PAGE == offset % crate::state::PAGE {
            segments.push(whole_pages(file, address, offset, bytes)?);
        }
    }
    segments.truncate(callers::SEGMENTS);
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let wraps = name.as_deref().is_some_and(soname_is_wrapper);
    let calls = sites.sites.iter().filter_map(|site| {
        let at = site.back().wrapping_sub(1);
        let inside =
            |segment: &&crate::image::Part| at.wrapping_sub(segment.address) < segment.bytes;
        let segment = segments.iter().find(inside)?;
        u32::try_from(at - segment.address + segment.offset).ok()
    });
    let calls: Vec<u32> = calls.collect();
    // Nothing of others' makes a call or passes one on.
    let table = (!calls.is_empty() || wraps)
        .then(|| {
            let options = Options {
                file_name: name,
                ..Options::default()
            };
            debox_unwind::table(file, &options).ok()
        })
        .flatten();
    let rows = table.map_or_else(Vec::new, |table| rows(&table, &calls));
    let mut out = Vec::new();
    out.extend(callers::MAGIC.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend((segments.len() as u32).to_le_bytes());
    out.extend((rows.len() as u64).to_le_bytes());
    for segment in &segments {
        let words = [segment.address, segment.bytes, segment.offset];
        out.extend(words.map(u64::to_le_bytes).concat());
    }
    out.resize(callers::BYTES, 0);
    out.extend(rows.into_iter().flat_map(Row::to_bytes));
    Ok(out)
}

/// `calls`: the last bytes of call instructions.
fn rows(table: &debox_unwind::Table, calls: &[u32]) -> Vec<Row> {
    let passes = |row: &Row| row.kind & WRAPPER != 0;
    let at = |pc: u32| match table.row(pc).filter(|row| passes(row)) {
        Some(row) => Row { pc, ..*row },
        None => Row { pc, ..OUTSIDE },
    };
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    for row in &table.rows {
        rows.insert(row.pc, at(row.pc));
    }
    for call in calls {
        let Some(row) = table.row(*call).filter(|row| !passes(row)) else {
            continue;
        };
        rows.insert(*call, Row { pc: *call, ..*row });
        rows.entry(call + 1).or_insert_with(|| at(call + 1));
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.dedup_by(|row, before| {
        (row.cfa_words, row.rbp_words, row.kind)
            == (before.cfa_words, before.rbp_words, before.kind)
    });
    rows
}

/// Whether they are whole, and of this version.
pub fn are_whole(bytes: &[u8]) -> bool {
    let head = [
        callers::MAGIC.to_le_bytes().as_slice(),
        &VERSION.to_le_bytes(),
    ]
    .concat();
    let rows = bytes.get(16..24).and_then(|rows| rows.try_into().ok());
    let rows = rows.map_or(u64::MAX, u64::from_le_bytes);
    bytes.starts_with(&head)
        && rows
            .checked_mul(size_of::<Row>() as u64)
            .and_then(|rows| rows.checked_add(callers::BYTES as u64))
            == Some(bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &Path) -> (Vec<u8>, Table, debox_unwind::Table) {
        let file = std::fs::read(path).unwrap();
        let sites = Table::of(&file).unwrap();
        let options = Options {
            file_name: Some(path.file_name().unwrap().to_string_lossy().into_owned()),
            ..Options::default()
        };
        let table = debox_unwind::table(&file[..], &options).unwrap();
        let bytes = callers(&file, &sites, path).unwrap();
        assert!(are_whole(&bytes));
        assert!(!are_whole(&bytes[..bytes.len() - 1]));
        (bytes, sites, table)
    }

    fn row(bytes: &[u8], pc: u32) -> Option<Row> {
        let rows: Vec<Row> = bytes[callers::BYTES..]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|row| Row::from_bytes(*row).unwrap())
            .collect();
        assert!(rows.is_sorted_by(|a, b| a.pc < b.pc));
        let next = rows.partition_point(|row| row.pc <= pc);
        rows.get(next.checked_sub(1)?).copied()
    }

    /// What is passed on has the rows that it has, each byte of it; a call is made with its own; what is between is
    /// the program's.
    #[test]
    fn rows_are_those_of_the_unwinder() {
        let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = libc.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            path.ends_with("libc.so.6").then(|| path.to_owned())
        });
        let own = std::env::current_exe().unwrap();
        for path in [Path::new(&libc.unwrap()), &own, Path::new("/bin/sh")] {
            let (bytes, sites, table) = of(path);
            let rest = |row: &Row| (row.cfa_words, row.rbp_words, row.kind);
            for all in &table.rows {
                let Some(found) = row(&bytes, all.pc) else {
                    assert!(sites.sites.is_empty());
                    continue;
                };
                match all.kind & WRAPPER {
                    0 => assert_eq!(found.kind & WRAPPER, 0, "{path:?} {all:?} {found:?}"),
                    _ => assert_eq!(rest(&found), rest(all), "{path:?}"),
                }
            }
        }
    }

    #[test]
    fn a_call_in_the_programs_own_code_has_its_row_and_no_other_place() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("own.c"), folder.path().join("own"));
        let text = "long own(long n) { char b[40]; long r; __asm__ volatile(\"movb $1, %1; syscall\" \
                    : \"=a\"(r), \"=m\"(b[n & 31]) : \"0\"(39L) : \"rcx\", \"r11\", \"memory\"); return r + b[3]; }\n\
                    int main(int c, char **v) { return own(c) == 0; }\n";
        std::fs::write(&source, text).unwrap();
        let built = std::process::Command::new("cc")
            .args(["-O2", "-o"])
            .args([&program, &source])
            .status();
        assert!(built.unwrap().success());
        let (bytes, sites, table) = of(&program);
        let site = sites.sites.first().unwrap();
        let file = std::fs::read(&program).unwrap();
        let code = debox_unwind::Program::open(&file[..], &Options::default()).unwrap();
        let back = (0..file.len() as u64).find(|at| code.address(*at) == Some(site.back()));
        let back = back.unwrap() as u32;
        let (made, here) = (
            *table.row(back - 1).unwrap(),
            row(&bytes, back - 1).unwrap(),
        );
        assert_eq!(
            (here.cfa_words, here.rbp_words, here.kind),
            (made.cfa_words, made.rbp_words, made.kind)
        );
        assert_ne!(made.kind, END);
        for other in [back - 3, back, back + 1] {
            assert_eq!(row(&bytes, other).unwrap().kind, END);
        }
    }
}
