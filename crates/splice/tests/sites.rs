// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are the sites of real files those that a disassembler shows, and is a window really one?

use debox_splice::{Left, Site, Table};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What this machine runs: the C library, the loader, and a program that is linked statically.
fn files() -> Vec<PathBuf> {
    let known = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/lib64/libc.so.6",
        "/bin/busybox",
    ];
    let found: Vec<PathBuf> = (known.iter().map(PathBuf::from))
        .filter(|path| path.exists())
        .collect();
    assert!(!found.is_empty(), "none of {known:?} is here");
    found
}

fn table(path: &Path) -> Table {
    Table::of(&std::fs::read(path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What is assembled, linked so.
fn linked(folder: &Path, text: &str, how: &[&str]) -> PathBuf {
    let (source, file) = (folder.join("linked.s"), folder.join("linked"));
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc")
        .arg("-nostdlib")
        .args(how)
        .arg("-o")
        .args([&file, &source])
        .status();
    assert!(built.unwrap().success(), "{how:?}: {text}");
    file
}

/// Addresses of instructions by objdump, whose decoder is another one, with their text.
fn disassembled(path: &Path) -> Option<Vec<(u64, String)>> {
    let done = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(path)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let lines = text.lines().filter_map(|line| {
        let (address, instruction) = line.split_once(":\t")?;
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        Some((address, instruction.trim().to_owned()))
    });
    Some(lines.collect())
}

#[test]
fn all_that_a_disassembler_shows_are_found_and_no_others() {
    for path in files() {
        let Some(all) = disassembled(&path) else {
            eprintln!("NOT RUN: needs objdump");
            return;
        };
        let shown: BTreeSet<u64> = (all.iter())
            .filter(|(_, text)| text == "syscall")
            .map(|(address, _)| *address)
            .collect();
        let table = table(&path);
        let found: BTreeSet<u64> = (table.sites.iter())
            .filter(|site| !matches!(site.window, Err(Left::NotKnown | Left::OtherWay)))
            .filter(|site| site.callee().is_none())
            .map(|site| site.address)
            .collect();
        assert!(!shown.is_empty(), "{}", path.display());
        assert_eq!(found, shown, "{}", path.display());
    }
}

#[test]
fn windows_are_whole_instructions_that_nothing_jumps_into() {
    for path in files() {
        let Some(all) = disassembled(&path) else {
            eprintln!("NOT RUN: needs objdump");
            return;
        };
        let begins: BTreeSet<u64> = all.iter().map(|(address, _)| *address).collect();
        // As the disassembler writes a direct branch: jne    30f42 <read+0x12>
        let targets: BTreeSet<u64> = (all.iter())
            .filter(|(_, text)| text.starts_with('j') || text.starts_with("call"))
            .filter_map(|(_, text)| u64::from_str_radix(text.split_whitespace().nth(1)?, 16).ok())
            .collect();
        let table = table(&path);
        for site in &table.sites {
            let Ok(window) = &site.window else {
                continue;
            };
            let place = format!("{}: {site:x?}", path.display());
            assert!(begins.contains(&window.start), "{place}");
            assert!(begins.contains(&window.end()), "{place}");
            assert!(
                window.start <= site.address && site.address + 2 <= window.end(),
                "{place}"
            );
            assert!(window.bytes.len() >= debox_splice::JUMP_BYTES, "{place}");
            let inside = targets.range(window.start + 1..window.end()).next();
            assert_eq!(inside, None, "{place}");
        }
    }
}

/// The figures of a prototype, or better: all but a hundredth of the C library's.
#[test]
fn nearly_all_have_room() {
    for path in files() {
        let table = table(&path);
        let (room, all) = table.room();
        let left: Vec<&Site> = table
            .sites
            .iter()
            .filter(|site| site.window.is_err())
            .collect();
        eprintln!("{}: {room} of {all}; left: {left:x?}", path.display());
        let library = path.ends_with("libc.so.6") || path.ends_with("ld-linux-x86-64.so.2");
        let least = if library { all - 2 } else { all - all / 20 };
        assert!(
            room >= least,
            "{}: {room} of {all}; left: {left:x?}",
            path.display()
        );
    }
}

/// The return from a signal handler is known by its bytes.
#[test]
fn the_return_from_a_signal_handler_stays() {
    let library = files().into_iter().find(|path| path.ends_with("libc.so.6"));
    let Some(library) = library else {
        eprintln!("NOT RUN: no glibc here");
        return;
    };
    let table = table(&library);
    let returns: Vec<&Site> = table
        .sites
        .iter()
        .filter(|site| site.nr == Some(15))
        .collect();
    assert!(!returns.is_empty());
    assert!(
        returns
            .iter()
            .all(|site| site.window == Err(Left::SignalReturn)),
        "{returns:x?}"
    );
    // read, write and close have their numbers.
    for nr in [0, 1, 3] {
        assert!(
            table
                .sites
                .iter()
                .any(|site| site.nr == Some(nr) && site.window.is_ok()),
            "{nr}"
        );
    }
}

#[test]
fn a_table_is_the_same_after_a_cache() {
    for path in files() {
        let table = table(&path);
        let bytes = table.to_bytes();
        assert_eq!(Table::parse(&bytes).unwrap(), table);
        for cut in [0, 7, 12, 20, bytes.len() / 2, bytes.len() - 1] {
            assert!(Table::parse(&bytes[..cut]).is_err(), "{cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Table::parse(&longer).is_err());
    }
}

/// What is not believed: none of these may panic, and what is taken holds what it promises.
#[test]
fn damaged_files_and_tables_are_refused_or_read() {
    let path = &files()[0];
    let file = std::fs::read(path).unwrap();
    let bytes = table(path).to_bytes();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    for _ in 0..2000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() % damaged.len();
            damaged[at] = random() as u8;
        }
        let Ok(table) = Table::parse(&damaged) else {
            continue;
        };
        let mut free = 0;
        for site in &table.sites {
            if let Ok(window) = &site.window {
                assert!(window.start >= free);
                assert_eq!(
                    &window.bytes[window.before..window.before + 2],
                    [0x0f, 0x05]
                );
                free = window.end();
            }
        }
    }
    // The head, where all offsets lie, and the tables that are found by it.
    for _ in 0..8 {
        let mut damaged = file.clone();
        for _ in 0..8 {
            let at = random() % 1024;
            damaged[at] = random() as u8;
        }
        let _ = Table::of(&damaged);
    }
    for cut in [0, 3, 64, 400, file.len() / 3] {
        assert!(Table::of(&file[..cut]).is_err() || cut > 400);
    }
}

/// Two functions with two calls each; the address behind a call of the first one lies in data, at no multiple of eight.
const COMPARES: &str = "\t.globl _start\n\t.type _start, @function\n_start:\n\tmovl $39, %eax\n\tsyscall\n\
    1:\tmovl $110, %eax\n\tsyscall\n\tret\n\t.size _start, . - _start\n\
    \t.globl other\n\t.type other, @function\nother:\n\tmovl $39, %eax\n\tsyscall\n\tmovl $110, %eax\n\tsyscall\n\tret\n\
    \t.size other, . - other\n\t.data\n\t.balign 8\n\t.byte 0\n\t.quad 1b\n";

/// As valgrind does it: so no call of that function is made elsewhere, and a program that is one file is left.
#[test]
fn a_function_whose_calls_are_compared_with_stays() {
    let place = tempfile::tempdir().unwrap();
    for (how, whole) in [("-no-pie", true), ("-shared", false)] {
        let file = linked(place.path(), COMPARES, &[how]);
        let table = table(&file);
        let windows: Vec<_> = (table.sites.iter())
            .map(|site| site.window.as_ref().err())
            .collect();
        let compared = Some(&Left::Compared);
        assert_eq!(windows, [compared, compared, None, None], "{how}");
        assert_eq!(table.knows_its_calls, whole, "{how}");
        assert_eq!(Table::parse(&table.to_bytes()).unwrap(), table);
    }
}

/// One with room, and its bytes once more: in a section of data, or behind the function.
const LOOKS_LIKE: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n\t.cfi_startproc\n\tmovl $39, %eax\n\
    \tsyscall\n\tret\n\t.cfi_endproc\n\t.size _start, . - _start\n{section}\n\t.byte 0x0f, 0x05, 0x0f, 0x05\n";

/// Some linkers put both in one segment, as older ones did.
#[test]
fn data_in_a_segment_of_code_is_no_call() {
    let place = tempfile::tempdir().unwrap();
    for (section, left) in [("\t.section .rodata", 0), ("", 2)] {
        let text = LOOKS_LIKE.replace("{section}", section);
        let file = linked(place.path(), &text, &["-no-pie", "-Wl,-z,noseparate-code"]);
        let bytes = std::fs::read(&file).unwrap();
        assert!(executable(&bytes, &[0x0f, 0x05, 0x0f, 0x05]), "{section}");
        let table = table(&file);
        assert_eq!(table.room(), (1, 1 + left), "{section}");
        assert_eq!(table.places_left(), left, "{section}");
    }
}

/// As Go programs are without their table, or what is assembled by hand.
#[test]
fn a_whole_program_of_which_no_function_is_known_is_not_spliced() {
    let place = tempfile::tempdir().unwrap();
    let text = PUSHES.replace("{begin}", "").replace("{end}", "");
    for (strip, whole, knows) in [
        ("-Wl,-s", "-no-pie", true),
        ("-Wl,--no-gc-sections", "-no-pie", false),
        ("-Wl,-s", "-shared", false),
    ] {
        let file = linked(place.path(), &text, &[whole, strip]);
        assert_eq!(table(&file).knows_its_calls, knows, "{strip} {whole}");
    }
}

/// Its last function leads on into what lies behind it.
const FALLS: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n\t.cfi_startproc\n\tmovl $39, %eax\n\
    \tsyscall\n\thlt\n\t.cfi_endproc\n\t.size _start, . - _start\n\t.section .rodata\n\
    \t.byte 0xb8, 0x27, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xc3\n";

#[test]
fn data_behind_the_last_function_is_not_its_own() {
    let place = tempfile::tempdir().unwrap();
    let file = linked(place.path(), FALLS, &["-no-pie", "-Wl,-z,noseparate-code"]);
    let bytes = std::fs::read(&file).unwrap();
    assert!(executable(&bytes, &[0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xc3]));
    assert_eq!(table(&file).room(), (1, 1));
}

/// As Go's vfork: its return address is off the stack for the call.
const PUSHES: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n{begin}\tmovq 8(%rsp), %rax\n\tpopq %r12\n\
    \tsyscall\n\tpushq %r12\n\tcmpq $0xfffffffffffff001, %rax\n\tret\n{end}\t.size _start, . - _start\n";

/// Where an unwinder has a table, that says of each byte where the stack stands.
#[test]
fn what_is_pushed_behind_a_call_moves_where_no_unwinder_follows() {
    let place = tempfile::tempdir().unwrap();
    for (begin, end, room) in [("", "", 1), ("\t.cfi_startproc\n", "\t.cfi_endproc\n", 0)] {
        let text = PUSHES.replace("{begin}", begin).replace("{end}", end);
        let file = linked(place.path(), &text, &["-no-pie"]);
        assert_eq!(table(&file).room(), (room, 1), "{begin}");
    }
}

/// Whether bytes lie in a segment of code.
fn executable(file: &[u8], bytes: &[u8]) -> bool {
    use object::read::elf::{FileHeader, ProgramHeader};
    let header = object::elf::FileHeader64::<object::Endianness>::parse(file).unwrap();
    let endian = header.endian().unwrap();
    let segments = header.program_headers(endian, file).unwrap();
    segments.iter().any(|segment| {
        let data = segment.data(endian, file).unwrap();
        segment.p_flags(endian) & object::elf::PF_X != 0
            && data.windows(bytes.len()).any(|part| part == bytes)
    })
}

/// Two functions whose only window holds an instruction within. How something comes to that of the first one stands among
/// its own code (`{within}`), in another function (`{code}`), or behind both (`{data}`).
const ENTERED: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n\t.cfi_startproc\n{within}\
    \tmovl %ecx, %eax\n1:\tmovb $39, %al\n2:\tsyscall\n\tret\n\t.cfi_endproc\n\t.size _start, . - _start\n\
    \t.globl other\n\t.type other, @function\nother:\n\t.cfi_startproc\n\
    \tmovl %ecx, %eax\n\tmovb $39, %al\n\tsyscall\n\tret\n\t.cfi_endproc\n\t.size other, . - other\n\
    \t.globl leads\n\t.type leads, @function\nleads:\n8:\t.cfi_startproc\n{code}\n\tret\n\t.cfi_endproc\n\t.size leads, . - leads\n\
    {data}\n";

/// Each way of coming into the midst of a window, assembled: that site is left, and the same one that nothing leads into
/// is not.
#[test]
fn what_leads_into_a_window_is_found() {
    struct Way {
        how: &'static str,
        /// In the function itself, among `leads`' code, and behind the code.
        within: &'static str,
        code: &'static str,
        data: &'static str,
    }
    const BOTH: [&str; 2] = ["-shared", "-no-pie"];
    const FIXED: [&str; 1] = ["-no-pie"];
    // What is only read lies in the segment of code.
    const ALL: [&str; 3] = ["-shared", "-no-pie", "-Wl,-z,noseparate-code"];
    let way = |how, within, code, data| Way {
        how,
        within,
        code,
        data,
    };
    let relative =
        "\tleaq 4f(%rip), %rdx\n\tmovslq (%rdx,%rdi,4), %rax\n\taddq %rdx, %rax\n\tjmp *%rax";
    let by_register = "\tmovslq 4f(,%rdi,4), %rax\n\taddq $4f, %rax\n\tjmp *%rax";
    let offsets = "\t.section .rodata\n\t.balign 4\n4:\t.long 8b - 4b\n\t.long 1b - 4b\n\t.text";
    let pad = "\t.section .gcc_except_table, \"a\"\n5:\t.byte 0xff, 0xff, 1\n\t.uleb128 7f - 6f\n\
               6:\t.uleb128 2b - _start\n\t.uleb128 2\n\t.uleb128 1b - _start\n\t.uleb128 0\n7:\n\t.text";
    let none: (&[&str], Way) = (&BOTH, way("nothing", "", "", ""));
    let ways: [(&[&str], Way); 10] = [
        (&BOTH, way("a jump", "", "\tjmp 1b", "")),
        (
            &BOTH,
            way("a short branch", "\ttestl %edi, %edi\n\tjnz 1f\n", "", ""),
        ),
        (&BOTH, way("a loop", "\tjrcxz 1f\n", "", "")),
        // Behind the last function, which nothing describes.
        (
            &BOTH,
            way("a jump of a gap", "", "", "\t.text\n\t.balign 16\n\tjmp 1b"),
        ),
        (&ALL, way("a table of offsets", "", relative, offsets)),
        (
            &FIXED,
            way("one that is read by its address", "", by_register, offsets),
        ),
        (
            &FIXED,
            way(
                "a table of addresses",
                "",
                "\tjmp *4f(,%rdi,8)",
                "\t.section .rodata\n4:\t.quad leads, 1b\n\t.text",
            ),
        ),
        (
            &BOTH,
            way(
                "an address in data",
                "",
                "",
                "\t.data\n\t.balign 8\n\t.quad 1b",
            ),
        ),
        (
            &BOTH,
            way("a landing pad", "\t.cfi_lsda 0x1b, 5f\n", "", pad),
        ),
        (
            &BOTH,
            way("a symbol", "", "", "\t.globl within\n\t.set within, 1b"),
        ),
    ];
    let place = tempfile::tempdir().unwrap();
    for (links, way) in ways.iter().chain([&none]) {
        let text = (ENTERED
            .replace("{within}", way.within)
            .replace("{code}", way.code))
        .replace("{data}", way.data);
        for link in *links {
            let file = linked(place.path(), &text, &[link]);
            let table = table(&file);
            let windows: Vec<_> = (table.sites.iter())
                .map(|site| site.window.as_ref().err())
                .collect();
            let first = (way.how != "nothing").then_some(&Left::JumpedInto);
            assert_eq!(windows, [first, None], "{} {link}", way.how);
        }
    }
}

/// Two functions with a table of jumps each, one behind the other: the second one's, read as if it went on the first one's, leads
/// four bytes before where it does, to the call in a window. `{code}` works with what it names.
const TABLES: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n\t.cfi_startproc\n\
    \tleaq 4f(%rip), %rdx\n\tmovslq (%rdx,%rdi,4), %rax\n\taddq %rdx, %rax\n\tjmp *%rax\n9:\tret\n\
    \t.cfi_endproc\n\t.size _start, . - _start\n\
    \t.globl other\n\t.type other, @function\nother:\n\t.cfi_startproc\n\
    \tleaq 5f(%rip), %rdx\n\tmovslq (%rdx,%rdi,4), %rax\n\taddq %rdx, %rax\n\tjmp *%rax\n\
    \tmovl %ecx, %eax\n\tmovb $39, %al\n2:\tsyscall\n\tnop\n\tnop\n3:\tret\n\
    \t.cfi_endproc\n\t.size other, . - other\n\
    \t.globl names\n\t.type names, @function\nnames:\n\t.cfi_startproc\n{code}\
    \tmovl %ecx, %eax\n\tmovb $39, %al\n8:\tsyscall\n\tret\n\
    \t.cfi_endproc\n\t.size names, . - names\n\
    \t.section .rodata\n\t.balign 4\n4:\t.long 9b - 4b\n5:\t.long 3b - 5b\n6:\t.long {last} - 5b\n\t.text\n";

#[test]
fn a_table_of_jumps_ends_where_the_next_one_begins() {
    let place = tempfile::tempdir().unwrap();
    let names = "\tleaq 6f(%rip), %rax\n";
    let into = Some(&Left::JumpedInto);
    for (code, last, left) in [
        ("", "3b", [None, None]),
        (names, "3b", [None, None]),
        ("", "2b", [into, None]),
        // An array, perhaps, that is named by a place before it, which is in the table.
        (names, "2b", [into, None]),
        // A part of the function that lies elsewhere.
        ("", "8b", [None, into]),
        (names, "8b", [None, into]),
    ] {
        let text = TABLES.replace("{code}", code).replace("{last}", last);
        for link in ["-shared", "-no-pie"] {
            let table = table(&linked(place.path(), &text, &[link]));
            let windows: Vec<_> = (table.sites.iter())
                .map(|site| site.window.as_ref().err())
                .collect();
            assert_eq!(windows, left, "{code} {last} {link}");
        }
    }
}

/// Each instruction of a small file names a table that goes on and on.
#[test]
fn a_file_of_tables_without_an_end_is_refused() {
    const TABLES: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n\t.set i, 0\n\t.rept 9000\n\
        \tleaq 4f + i(%rip), %rax\n\t.set i, i + 4\n\t.endr\n\tjmp *%rax\n\t.size _start, . - _start\n\
        4:\t.zero 298144\n";
    let place = tempfile::tempdir().unwrap();
    let file = linked(place.path(), TABLES, &["-no-pie"]);
    let refused = Table::of(&std::fs::read(file).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("tables of jumps"), "{refused}");
}

/// A function, and what lies behind it.
const GS: &str = "\t.text\n\t.globl _start\n\t.type _start, @function\n_start:\n{code}\n\tret\n\t.size _start, . - _start\n\
    {behind}\n";

#[test]
fn what_sets_the_gs_register_is_found_and_data_that_looks_like_it_is_not() {
    const HIDDEN: &str = "\tcall 1f";
    const NAMED: &str = "\tleaq 1f(%rip), %rax";
    let place = tempfile::tempdir().unwrap();
    for (code, behind, sets) in [
        ("\twrgsbase %rax", "", true),
        ("\twrgsbase %r9d", "", true),
        ("\tmovl %eax, %gs", "", true),
        ("\tmovw (%rdi), %gs", "", true),
        ("\tpopq %gs", "", true),
        ("\tlgs (%rdi), %eax", "", true),
        ("\tjmp 1f\n\tnop\n1:\tmovl %eax, %gs", "", true),
        // That no function covers.
        (HIDDEN, "1:\twrgsbase %rax\n\tret", true),
        (HIDDEN, "1:\tmovl %eax, %gs\n\tret", true),
        // What uses it, and what sets another one.
        ("\tmovl %gs, %eax\n\trdgsbase %rax\n\tpushq %gs", "", false),
        (
            "\tmovq %rax, %gs:8\n\tmovl %eax, %fs\n\twrfsbase %rax",
            "",
            false,
        ),
        // Within another instruction.
        (
            "\tmovl $0xe88e, %eax\n\tmovabsq $0xd8ae0f48f3, %rax",
            "",
            false,
        ),
        // Where nothing goes, and data that code names.
        ("\tret\n\t.byte 0x8e, 0xe8", "", false),
        (NAMED, "1:\t.byte 0x8e, 0xe8, 0x06", false),
        (
            NAMED,
            "\t.data\n1:\t.byte 0xf3, 0x48, 0x0f, 0xae, 0xd8",
            false,
        ),
    ] {
        let text = GS.replace("{code}", code).replace("{behind}", behind);
        for link in ["-shared", "-no-pie"] {
            let file = linked(place.path(), &text, &[link]);
            let table = table(&file);
            assert_eq!(table.sets_gs, sets, "{code} {behind} {link}");
            assert_eq!(Table::parse(&table.to_bytes()).unwrap(), table);
        }
    }
    // OpenSSL has tables among its code.
    let more = [
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    ];
    let more = more.map(PathBuf::from).into_iter();
    for path in files().into_iter().chain(more.filter(|path| path.exists())) {
        assert!(!table(&path).sets_gs, "{}", path.display());
    }
}
