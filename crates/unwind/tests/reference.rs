// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do the tables say what readelf says? Every row that readelf interprets is
//! compared with the one that holds there, in libc, bash, Python, C programs
//! without frame pointers (shared and static), and Go programs.

mod common;

use std::path::Path;
use std::process::Command;

use common::{C_PROGRAM, GO_PROGRAM, compile_c, compile_go, libc, python, stdout, table_of};
use debox_unwind::{
    END, FRAME_POINTER, PLT, RBP, RBP_LOST, RDI, REALIGNED, RSP, Row, SIGNAL, Table,
};

/// Address, offset in the file and length of executable segments, from
/// `readelf -l`.
fn segments(path: &Path) -> Vec<(u64, u64, u64)> {
    let text = stdout(Command::new("readelf").arg("-lW").arg(path));
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.first() == Some(&"LOAD") && line.contains(" E "))
                .then(|| (hex(words[2]), hex(words[1]), hex(words[4])))
        })
        .collect()
}

/// One line of readelf's tables.
struct Line {
    address: u64,
    cfa: String,
    rbp: String,
    return_address: String,
}

/// readelf's interpretation of one section: every row of every function.
fn interpreted(path: &Path, section: &str) -> Vec<Line> {
    // Its exit status is 1 when separate debug information that it looks for
    // is not installed; an empty answer fails the tests by its length.
    let output = Command::new("readelf")
        .env("LC_ALL", "C")
        .arg("--debug-dump=frames-interp")
        .arg(path)
        .output()
        .expect("readelf runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = Vec::new();
    let (mut in_section, mut in_function) = (false, false);
    let mut columns: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Contents of the ") {
            in_section = rest.starts_with(section);
        } else if line.contains(" CIE ") || line.contains(" FDE ") {
            in_function = line.contains(" FDE ");
            columns.clear();
        } else if line.contains("ZERO terminator") {
            in_function = false;
        } else if line.trim_start().starts_with("LOC ") {
            columns = line.split_whitespace().collect();
        } else if in_section && in_function && !columns.is_empty() && !line.trim().is_empty() {
            // `r9 (r9)`: the register that holds another
            let line = line.replace(" (", "(");
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words.len(), columns.len(), "{line}");
            let word = |column: &str| {
                columns
                    .iter()
                    .position(|name| *name == column)
                    .map_or("u", |index| words[index])
                    .to_owned()
            };
            lines.push(Line {
                address: u64::from_str_radix(words[0], 16).unwrap(),
                cfa: word("CFA"),
                rbp: word("rbp"),
                return_address: word("ra"),
            });
        }
    }
    lines
}

/// `c-16` → −2.
fn at_cfa(rule: &str) -> Option<i64> {
    let bytes: i64 = rule.strip_prefix('c')?.parse().ok()?;
    Some(bytes / 8)
}

fn agrees(line: &Line, row: &Row, with_rbp: bool) -> bool {
    let kind = row.kind();
    if line.return_address == "u" {
        return kind == END;
    }
    if line.cfa == "exp" {
        // Which of them is checked below, on programs that have each.
        return matches!(kind, PLT | REALIGNED | SIGNAL);
    }
    let (register, offset) = line
        .cfa
        .split_once('+')
        .expect("an offset is never negative");
    let offset: u64 = offset.parse().unwrap();
    let expected = match (register, line.return_address.as_str()) {
        ("rsp", "c-8") => RSP,
        ("rbp", "c-8") => RBP,
        ("rsp", "r5(rdi)") => RDI,
        _ => return kind == FRAME_POINTER,
    };
    let rbp = match line.rbp.as_str() {
        "u" | "s" => 0,
        rule => match at_cfa(rule) {
            Some(words) => words,
            None => i64::from(RBP_LOST),
        },
    };
    let rbp_agrees = !with_rbp || i64::from(row.rbp_words) == rbp;
    kind == expected && u64::from(row.cfa_words) * 8 == offset && rbp_agrees
}

/// Compares; returns how many rows were.
fn compare(path: &Path, section: &str, skip: impl Fn(&Line, &Row) -> bool) -> usize {
    let table = table_of(path);
    // Go's .debug_frame does not say where rbp is; the live tests follow it.
    let with_rbp = section != ".debug_frame" || !table.go;
    let segments = segments(path);
    let lines = interpreted(path, section);
    let mut compared = 0;
    for (index, line) in lines.iter().enumerate() {
        // A location that occurs twice: the later row holds.
        if lines
            .get(index + 1)
            .is_some_and(|next| next.address == line.address)
        {
            continue;
        }
        let (address, offset, _) = segments
            .iter()
            .find(|(address, _, len)| (*address..*address + *len).contains(&line.address))
            .unwrap_or_else(|| panic!("{:#x} is not code", line.address));
        let place = u32::try_from(line.address - address + offset).unwrap();
        let row = table.row(place).expect("code has a row");
        if skip(line, row) {
            continue;
        }
        assert!(
            agrees(line, row, with_rbp),
            "{} {:#x}: readelf says CFA {}, rbp {}, return address {}; the table {row:?}",
            path.display(),
            line.address,
            line.cfa,
            line.rbp,
            line.return_address
        );
        compared += 1;
    }
    check_form(&table);
    compared
}

/// What a search by BPF relies on.
fn check_form(table: &Table) {
    for pair in table.rows.windows(2) {
        assert!(pair[0].pc < pair[1].pc, "{pair:?}");
        let content = |row: &Row| (row.cfa_words, row.rbp_words, row.kind);
        assert!(content(&pair[0]) != content(&pair[1]), "{pair:?}");
    }
    assert_eq!(table.rows.last().unwrap().kind, END);
}

/// The table of a stripped file says what the whole file's does. Code without
/// any information is a gap: where symbols cut it into functions, the padding
/// before the first of them goes on as the row before it did.
fn same_code(whole: &Table, stripped: &Table) {
    let content = |row: &Row| (row.cfa_words, row.rbp_words, row.kind());
    for row in &stripped.rows {
        let at = |offset: u32| content(whole.row(row.pc + offset).unwrap());
        let same = at(0) == content(row);
        let behind_padding = row.kind() == FRAME_POINTER && at(16) == content(row);
        assert!(same || behind_padding, "{row:x?}: {:x?}", at(0));
    }
    // And nothing is missing from it: rows that differ only in whose code it
    // is merge.
    assert!(stripped.rows.len() <= whole.rows.len() + 16);
    assert!(2 * stripped.rows.len() > whole.rows.len());
}

fn count(table: &Table, kind: u8) -> usize {
    table.rows.iter().filter(|row| row.kind() == kind).count()
}

#[test]
fn libc_row_by_row() {
    let compared = compare(&libc(), ".eh_frame", |_, _| false);
    assert!(compared > 15_000, "{compared}");
    let table = table_of(&libc());
    assert_eq!(table.soname.as_deref(), Some("libc.so.6"));
    assert!(!table.go && !table.static_binary && table.wrapper_known);
    assert!(count(&table, PLT) >= 1 && count(&table, RDI) >= 1);
    assert_eq!(count(&table, SIGNAL), 1);
    let (last, code) = table.rows.split_last().unwrap();
    assert!(code.iter().all(Row::is_wrapper) && !last.is_wrapper());
    // The build id as file(1)'s source of it, the note, has it.
    let notes = stdout(Command::new("readelf").arg("-nW").arg(libc()));
    let id: String = table
        .build_id
        .unwrap()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(notes.contains(&id), "{id} not in {notes}");
}

#[test]
fn bash_and_python_row_by_row() {
    for program in ["/bin/bash".into(), python()] {
        let compared = compare(&program, ".eh_frame", |_, _| false);
        assert!(compared > 10_000, "{}: {compared}", program.display());
        assert!(!table_of(&program).rows.iter().any(Row::is_wrapper));
    }
}

#[test]
fn c_programs_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let flags: [(&str, &[&str]); 5] = [
        ("shared", &["-O2"]),
        ("static", &["-O2", "-static"]),
        ("static-pie", &["-O2", "-static-pie"]),
        // One with frame pointers, where rows are by rbp.
        ("chained", &["-O2", "-fno-omit-frame-pointer"]),
        ("lazy", &["-O2", "-Wl,-z,lazy"]),
    ];
    for (name, flags) in flags {
        let program = compile_c(dir.path(), name, C_PROGRAM, flags);
        let compared = compare(&program, ".eh_frame", |_, _| false);
        let table = table_of(&program);
        assert_eq!(table.static_binary, name.starts_with("static"), "{name}");
        let least = if table.static_binary { 5_000 } else { 20 };
        assert!(compared > least, "{name}: {compared}");
        // aligned_frame is the only one of its kind.
        assert!(count(&table, REALIGNED) >= 1, "{name}");
        if name == "lazy" {
            let plt = table.rows.iter().find(|row| row.kind() == PLT).unwrap();
            let raw = stdout(
                Command::new("readelf")
                    .arg("--debug-dump=frames")
                    .arg(&program),
            );
            assert!(raw.contains(&format!("DW_OP_lit{}; DW_OP_ge", plt.cfa_words)));
        }

        // Without section headers: the segment leads to .eh_frame.
        let bare = dir.path().join(format!("{name}-bare"));
        let mut bytes = std::fs::read(&program).unwrap();
        bytes[0x28..0x30].fill(0); // e_shoff
        bytes[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
        std::fs::write(&bare, bytes).unwrap();
        let shape = |table: &Table| -> Vec<(u32, u16, i8, u8)> {
            table
                .rows
                .iter()
                .map(|row| (row.pc, row.cfa_words, row.rbp_words, row.kind()))
                .collect()
        };
        let bare = table_of(&bare);
        if table.static_binary {
            // Rows that differ only in who made the function merge then.
            assert!(!bare.wrapper_known && bare.rows.len() <= table.rows.len());
            let headers = stdout(Command::new("readelf").arg("-lW").arg(&program));
            if headers.contains("GNU_EH_FRAME") {
                same_code(&table, &bare);
            } else {
                // gcc -static: only the section header led to .eh_frame.
                let known = |row: &Row| matches!(row.kind(), FRAME_POINTER | SIGNAL | END);
                assert!(bare.rows.iter().all(known), "{name}");
            }
        } else {
            assert_eq!(shape(&bare), shape(&table), "{name}");
        }
    }
}

/// `.debug_frame`, plain, compressed with zlib and with zstd if this binutils
/// can, in a program that has no .eh_frame.
#[test]
fn debug_frame_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let flags = [
        "-O2",
        "-g",
        "-c",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
    ];
    let object = compile_c(dir.path(), "part.o", C_PROGRAM, &flags);
    let program = dir.path().join("debug");
    common::run(Command::new("gcc").arg("-o").arg(&program).arg(&object));
    let compared = compare(&program, ".debug_frame", |_, _| false);
    assert!(compared > 20, "{compared}");
    let plain = table_of(&program);
    let packed = dir.path().join("packed");
    for form in ["zlib-gabi", "zlib-gnu", "zstd"] {
        let done = Command::new("objcopy")
            .arg(format!("--compress-debug-sections={form}"))
            .arg(&program)
            .arg(&packed)
            .output()
            .unwrap();
        if !done.status.success() {
            // binutils before 2.40 knows no zstd.
            assert_eq!(form, "zstd", "{done:?}");
            continue;
        }
        let sections = stdout(Command::new("readelf").arg("-SW").arg(&packed));
        assert!(sections.contains("debug_frame"), "{sections}");
        assert_eq!(table_of(&packed).rows, plain.rows, "{form}");
    }
}

/// Go's `.debug_frame` against `.gopclntab`, which the table is made of. The
/// two differ on purpose where a function runs on another stack or is the
/// first on its stack; these are few.
#[test]
fn go_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile_go(dir.path(), "fixed", GO_PROGRAM, &[]);
    let special_count = std::cell::Cell::new(0);
    let compared = compare(&program, ".debug_frame", |_, row| {
        let special = matches!(row.kind(), END | FRAME_POINTER | SIGNAL);
        special_count.set(special_count.get() + usize::from(special));
        special
    });
    let special = special_count.get();
    assert!(compared > 5_000 && special < 200, "{compared} {special}");

    let table = table_of(&program);
    assert!(table.go && table.static_binary && table.wrapper_known);
    let names: Vec<(u64, String)> = stdout(Command::new("go").args(["tool", "nm"]).arg(&program))
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [address, "T" | "t", name] = words[..] else {
                return None;
            };
            // Assembly functions have the name of their calling convention.
            let name = name.trim_end_matches(".abi0").to_owned();
            Some((u64::from_str_radix(address, 16).ok()?, name))
        })
        .collect();
    let (address, offset, _) = segments(&program)[0];
    let row_of = |function: &str| {
        let start = names.iter().find(|(_, name)| name == function);
        let start = start.unwrap_or_else(|| panic!("no {function}")).0;
        *table.row((start - address + offset) as u32).unwrap()
    };
    for own in ["main.main", "main.readLine", "bufio.(*Reader).ReadString"] {
        assert!(!row_of(own).is_wrapper(), "{own}");
    }
    for wrapper in [
        "os.(*File).Read",
        "syscall.read",
        "runtime.futex",
        "internal/poll.(*FD).Read",
    ] {
        assert!(row_of(wrapper).is_wrapper(), "{wrapper}");
    }
    assert_eq!(row_of("runtime.goexit").kind(), END);
    assert_eq!(row_of("runtime.systemstack").kind(), FRAME_POINTER);

    // Stripped: the same code, so the same rows.
    let stripped = dir.path().join("stripped");
    common::run(Command::new("strip").arg("-o").arg(&stripped).arg(&program));
    let bare = table_of(&stripped);
    assert!(bare.go && bare.wrapper_known);
    same_code(&table, &bare);
    // Position-independent, stripped.
    let pie = compile_go(
        dir.path(),
        "pie",
        GO_PROGRAM,
        &["-buildmode=pie", "-ldflags=-s -w"],
    );
    let pie = table_of(&pie);
    assert!(
        pie.go,
        "no Go table found in a position-independent program"
    );
    assert!(count(&pie, RSP) > 5_000);
}

/// A Go program that the system's linker put together, with C code in it: the
/// Go code does not begin where .text begins, and no symbol says where.
#[test]
fn go_with_c_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let source = GO_PROGRAM.replace(
        "import (",
        "/*\n#include <unistd.h>\n*/\nimport \"C\"\n\nimport (",
    ) + "\nvar parent = C.getppid()\n";
    for (name, flags) in [
        ("cgo", &["-ldflags=-linkmode=external"][..]),
        (
            "cgo-pie",
            &["-buildmode=pie", "-ldflags=-linkmode=external"],
        ),
    ] {
        let program = compile_go(dir.path(), name, &source, flags);
        let go = compare(&program, ".debug_frame", |_, row| {
            matches!(row.kind(), END | FRAME_POINTER | SIGNAL)
        });
        let c = compare(&program, ".eh_frame", |_, _| false);
        assert!(go > 5_000 && c > 30, "{name}: {go} {c}");
        let table = table_of(&program);
        let stripped = dir.path().join(format!("{name}-stripped"));
        common::run(Command::new("strip").arg("-o").arg(&stripped).arg(&program));
        let bare = table_of(&stripped);
        assert!(bare.go && !bare.static_binary);
        for row in &bare.rows {
            let full = table.row(row.pc).unwrap();
            assert_eq!(
                (full.cfa_words, full.kind()),
                (row.cfa_words, row.kind()),
                "{name}"
            );
        }
    }
}

/// Without any information there are frame pointers to follow.
#[test]
fn nothing_known_means_frame_pointers() {
    let dir = tempfile::tempdir().unwrap();
    let source = "__attribute__((used)) int f(int a) { return a + 1; }";
    let flags = [
        "-O2",
        "-shared",
        "-nostdlib",
        "-fno-asynchronous-unwind-tables",
        "-Wl,--build-id=none",
    ];
    let library = compile_c(dir.path(), "bare.so", source, &flags);
    let table = table_of(&library);
    assert!(table.build_id.is_none() && !table.static_binary);
    let kinds: Vec<u8> = table.rows.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, [FRAME_POINTER, END]);
}

#[test]
fn what_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8]| {
        debox_unwind::table(bytes, &debox_unwind::Options::default())
            .unwrap_err()
            .to_string()
    };
    let program = compile_c(dir.path(), "wide", C_PROGRAM, &["-O2"]);
    let mut bytes = std::fs::read(program).unwrap();
    let narrow = compile_c(dir.path(), "narrow.o", "int f;", &["-m32", "-c"]);
    assert!(refused(&std::fs::read(narrow).unwrap()).contains("32-bit"));
    let object = compile_c(dir.path(), "wide.o", "int f;", &["-c"]);
    assert!(refused(&std::fs::read(object).unwrap()).contains("ELF type 1"));
    bytes[18] = 183; // aarch64
    assert!(refused(&bytes).contains("another processor (ELF machine 183)"));
    assert!(refused(b"#!/bin/sh\n").contains("not an ELF"));
    assert!(refused(b"").contains("not an ELF"));
    assert!(refused(&bytes[..40]).contains("damaged"));
    let error = debox_unwind::table_of_path("/dev/zero".as_ref(), &Default::default());
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}
