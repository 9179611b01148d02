// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are places in programs named as binutils' and Go's own tools name them?

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use debox_symbol::{CodeFile, UserCode, UserFrame, UserOptions, UserSymbols};

const SOURCE: &str = r#"
#include <unistd.h>
volatile int sink;
static inline __attribute__((always_inline)) int innermost(int fd)
{
	char byte;
	return (int)read(fd, &byte, 1);
}
static inline __attribute__((always_inline)) int between(int fd)
{
	sink++;
	return innermost(fd) + 1;
}
__attribute__((noinline)) int outermost(int fd)
{
	int got = between(fd);
	return got + sink;
}
int main(void) { return outermost(0) & 0; }
"#;

fn stdout(command: &mut Command) -> String {
    let output = command
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; see setup/packages.sh"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn compile(dir: &Path, name: &str, source: &str, compiler: &str, flags: &[&str]) -> PathBuf {
    let extension = if compiler == "g++" { "cc" } else { "c" };
    let (file, program) = (dir.join(format!("{name}.{extension}")), dir.join(name));
    fs::write(&file, source).unwrap();
    stdout(
        Command::new(compiler)
            .args(flags)
            .arg("-o")
            .arg(&program)
            .arg(&file),
    );
    program
}

/// Return addresses of all calls in a function, by objdump.
fn calls_in(program: &Path, function: &str) -> Vec<u64> {
    let text = stdout(
        Command::new("objdump")
            .args([
                "-d",
                "--no-show-raw-insn",
                &format!("--disassemble={function}"),
            ])
            .arg(program),
    );
    let address = |line: &str| u64::from_str_radix(line.trim().split(':').next()?, 16).ok();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| address(line).is_some())
        .collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].contains("call"))
        .filter_map(|pair| address(pair[1]))
        .collect()
}

/// The offset in the file of an address, by readelf's segments.
fn offset_of(program: &Path, address: u64) -> u64 {
    let text = stdout(Command::new("readelf").arg("-lW").arg(program));
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.first() == Some(&"LOAD"))
        .map(|words| (hex(words[1]), hex(words[2]), hex(words[4])))
        .find(|(_, start, len)| (*start..start + len).contains(&address))
        .map(|(offset, start, _)| address - start + offset)
        .unwrap()
}

fn file(path: &Path) -> CodeFile {
    CodeFile {
        path: path.to_owned(),
        pid: None,
        build_id: None,
    }
}

fn build_id(path: &Path) -> Vec<u8> {
    let id = blazesym::helper::read_elf_build_id(&path).unwrap();
    id.expect("gcc writes build ids").into_owned()
}

/// Function and `file:line` of each frame.
fn short(frames: &[UserFrame]) -> Vec<(String, String)> {
    frames
        .iter()
        .map(|frame| {
            (
                frame.function.clone(),
                format!("{}:{}", frame.file, frame.line),
            )
        })
        .collect()
}

/// What `addr2line -i` says of the byte before a return address.
fn addr2line(program: &Path, address: u64) -> Vec<(String, String)> {
    let text = stdout(
        Command::new("addr2line")
            .args(["-C", "-f", "-i", "-e"])
            .arg(program)
            .arg(format!("{:#x}", address - 1)),
    );
    let lines: Vec<&str> = text.lines().collect();
    lines
        .chunks(2)
        // `file.c:7 (discriminator 2)`
        .map(|pair| {
            (
                pair[0].to_owned(),
                pair[1].split(" (").next().unwrap().to_owned(),
            )
        })
        .collect()
}

#[test]
fn inlined_functions_as_addr2line() {
    let dir = tempfile::tempdir().unwrap();
    let mut symbols = UserSymbols::default();
    for (name, flags) in [
        ("pie", &["-O2", "-g"][..]),
        ("fixed", &["-O2", "-g", "-no-pie"]),
        ("dwarf4", &["-O2", "-gdwarf-4"]),
        ("packed", &["-O2", "-g", "-gz"]),
        ("static", &["-O2", "-g", "-static"]),
        ("narrow", &["-O2", "-g", "-m32"]),
    ] {
        let program = compile(dir.path(), name, SOURCE, "gcc", flags);
        let address = *calls_in(&program, "outermost").last().unwrap();
        let place = offset_of(&program, address);
        let frames = symbols.resolve_one(&UserCode::File(file(&program)), place);
        assert_eq!(short(&frames), addr2line(&program, address), "{name}");
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0].function, "innermost");
        let inlined: Vec<bool> = frames.iter().map(|frame| frame.inlined).collect();
        assert_eq!(inlined, [true, true, false]);
        assert_eq!(frames[0].to_string(), format!("innermost ({name}.c:7)"));
        assert_eq!(frames[2].module, name);
    }
    assert_eq!(symbols.notes().count(), 0);
}

#[test]
fn without_debug_information() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "plain", SOURCE, "gcc", &["-O2"]);
    let address = *calls_in(&program, "outermost").last().unwrap();
    let place = offset_of(&program, address);
    let mut symbols = UserSymbols::default();
    let frames = symbols.resolve_one(&UserCode::File(file(&program)), place);
    let start = stdout(Command::new("nm").arg(&program))
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_suffix(" T outermost")?, 16).ok())
        .unwrap();
    let text = format!("outermost+{:#x} (plain)", address - start);
    assert_eq!(
        frames.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [text]
    );

    let bare = dir.path().join("bare");
    stdout(Command::new("strip").arg("-o").arg(&bare).arg(&program));
    let frames = symbols.resolve_one(&UserCode::File(file(&bare)), place);
    assert_eq!(frames[0].to_string(), format!("bare+{place:#x}"));
}

/// `/usr/lib/debug/.build-id`, and a debug link.
#[test]
fn separate_debug_information() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "whole", SOURCE, "gcc", &["-O2", "-g"]);
    let address = *calls_in(&program, "outermost").last().unwrap();
    let place = offset_of(&program, address);
    let expected = addr2line(&program, address);
    let id: String = build_id(&program)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let debug_dir = dir.path().join("debug");
    let debug = debug_dir.join(format!(".build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::create_dir_all(debug.parent().unwrap()).unwrap();
    stdout(
        Command::new("objcopy")
            .arg("--only-keep-debug")
            .arg(&program)
            .arg(&debug),
    );
    let (bare, linked) = (dir.path().join("bare"), dir.path().join("linked"));
    stdout(Command::new("strip").arg("-o").arg(&bare).arg(&program));
    let mut add = std::ffi::OsString::from("--add-gnu-debuglink=");
    add.push(&debug);
    stdout(Command::new("objcopy").arg(add).arg(&bare).arg(&linked));
    let mut symbols = UserSymbols::new(UserOptions {
        debug_dirs: vec![debug_dir],
        ..UserOptions::default()
    });
    for path in [&bare, &linked] {
        let frames = symbols.resolve_one(&UserCode::File(file(path)), place);
        assert_eq!(short(&frames), expected, "{}", path.display());
    }
    let mut none = UserSymbols::new(UserOptions {
        debug_dirs: Vec::new(),
        ..UserOptions::default()
    });
    let frames = none.resolve_one(&UserCode::File(file(&bare)), place);
    assert_eq!(frames[0].to_string(), format!("bare+{place:#x}"));
}

#[test]
fn cpp_names() {
    const CPP: &str = r#"
#include <unistd.h>
#include <vector>
volatile int sink;
namespace shop {
template <class T> struct Basket {
	std::vector<T> things;
	__attribute__((noinline)) long fill(int fd) { return ::read(fd, things.data(), 0) + sink; }
};
}
int main() { shop::Basket<int> b; return (int)b.fill(0) & 0; }
"#;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "cpp", CPP, "g++", &["-O2", "-g"]);
    let names = stdout(Command::new("nm").arg(&program));
    let mangled = names.lines().find(|line| line.contains("fill")).unwrap();
    let mangled = mangled.split(' ').next_back().unwrap();
    let address = calls_in(&program, mangled)[0];
    let frames = UserSymbols::default().resolve_one(
        &UserCode::File(file(&program)),
        offset_of(&program, address),
    );
    let outer = frames.last().unwrap();
    assert!(
        outer.function.starts_with("shop::Basket<int>::fill"),
        "{outer:?}"
    );
    assert_eq!(outer.line, 8);
}

/// With debug information, and stripped, by Go's own table; both as Go's tool
/// says.
#[test]
fn go_as_its_own_tool() {
    const GO: &str = "package main\n\nimport (\n\t\"bufio\"\n\t\"os\"\n)\n\n\
        //go:noinline\nfunc readLine(r *bufio.Reader) string {\n\
        \ts, _ := r.ReadString('\\n')\n\treturn s\n}\n\n\
        func main() {\n\tprintln(readLine(bufio.NewReader(os.Stdin)))\n}\n";
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("words.go");
    fs::write(&source, GO).unwrap();
    let program = dir.path().join("words");
    stdout(
        Command::new("go")
            .env("GO111MODULE", "off")
            .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"))
            .env("HOME", dir.path())
            .args(["build", "-o"])
            .arg(&program)
            .arg(&source),
    );
    let bare = dir.path().join("bare");
    stdout(Command::new("strip").arg("-o").arg(&bare).arg(&program));
    let addresses: Vec<u64> = [
        "main.readLine",
        "main.main",
        "bufio.(*Reader).collectFragments",
        "os.(*File).Read",
    ]
    .iter()
    .flat_map(|function| calls_in(&program, function))
    .collect();
    let questions: String = addresses
        .iter()
        .map(|address| format!("{:#x}\n", address - 1))
        .collect();
    let asked = dir.path().join("asked");
    fs::write(&asked, questions).unwrap();
    let answers = stdout(
        Command::new("go")
            .args(["tool", "addr2line"])
            .arg(&program)
            .env("HOME", dir.path())
            .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go-cache"))
            .stdin(fs::File::open(&asked).unwrap()),
    );
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), 2 * addresses.len());
    assert!(addresses.len() > 8, "{addresses:x?}");
    let mut symbols = UserSymbols::default();
    for (address, lines) in addresses.iter().zip(answers.chunks(2)) {
        let place = offset_of(&program, *address);
        let stripped = symbols.resolve_one(&UserCode::File(file(&bare)), place);
        let [frame] = &stripped[..] else {
            panic!("{stripped:?}");
        };
        assert_eq!(frame.function, lines[0]);
        assert_eq!(
            format!("{}:{}", frame.file, frame.line),
            lines[1],
            "{address:#x}"
        );
        let full = symbols.resolve_one(&UserCode::File(file(&program)), place);
        assert_eq!(full.last().unwrap().function, lines[0], "{full:?}");
        assert_eq!(
            format!("{}:{}", full[0].file, full[0].line),
            lines[1],
            "{full:?}"
        );
    }
}

#[test]
fn a_changed_file_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "prog", SOURCE, "gcc", &["-O2", "-g"]);
    let address = *calls_in(&program, "outermost").last().unwrap();
    let place = offset_of(&program, address);
    let then = build_id(&program);
    let noted = |build_id: Option<Vec<u8>>| {
        UserCode::File(CodeFile {
            build_id,
            ..file(&program)
        })
    };
    let mut symbols = UserSymbols::default();
    let same = symbols.resolve_one(&noted(Some(then.clone())), place);
    assert_eq!(same[0].function, "innermost");
    assert_eq!(symbols.notes().count(), 0);

    compile(
        dir.path(),
        "prog",
        &SOURCE.replace("+ 1", "+ 2"),
        "gcc",
        &["-O2", "-g"],
    );
    let mut symbols = UserSymbols::default();
    let changed = symbols.resolve_one(&noted(Some(then.clone())), place);
    assert_eq!(changed[0].to_string(), format!("prog+{place:#x}"));
    let note = symbols.notes().next().unwrap().text;
    let hex: String = then.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        note.contains("has changed since it ran") && note.contains(&hex),
        "{note}"
    );

    fs::remove_file(&program).unwrap();
    let mut symbols = UserSymbols::default();
    let gone = symbols.resolve_one(&noted(Some(then)), place);
    assert_eq!(gone[0].to_string(), format!("prog+{place:#x}"));
    let note = symbols.notes().next().unwrap().text;
    assert!(note.contains("No such file"), "{note}");
    // And once more: one note, not two.
    symbols.resolve_one(&noted(Some(vec![1])), place);
    symbols.resolve_one(&noted(Some(vec![1])), place + 1);
    assert_eq!(symbols.notes().count(), 1);
}

/// While a process lives its files are found below its own root directory.
#[test]
fn below_the_root_of_a_process() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(
        dir.path(),
        "inside",
        SOURCE,
        "gcc",
        &["-O2", "-g", "-static"],
    );
    let address = *calls_in(&program, "outermost").last().unwrap();
    let place = offset_of(&program, address);
    let mut child = Command::new("unshare")
        .args(["-r", "--root"])
        .arg(dir.path())
        .arg("/inside")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let link = format!("/proc/{}/exe", child.id());
    let start = std::time::Instant::now();
    while !fs::read_link(&link).is_ok_and(|exe| exe.ends_with("inside")) {
        assert!(start.elapsed().as_secs() < 60, "unshare did not start it");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let code = UserCode::File(CodeFile {
        path: "/inside".into(),
        pid: Some(child.id()),
        build_id: Some(build_id(&program)),
    });
    let frames = UserSymbols::default().resolve_one(&code, place);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(frames[0].function, "innermost");
}

#[test]
fn code_in_memory() {
    let pid = std::process::id();
    let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let code = UserCode::Memory { pid };
    let mut symbols = UserSymbols::default();
    let unknown = symbols.resolve_one(&code, 0x7f00_0000_1010);
    assert_eq!(unknown[0].to_string(), "[jit]+0x7f0000001010");
    assert!(
        symbols
            .notes()
            .any(|note| note.text.contains("--perf-basic-prof"))
    );

    fs::write(
        &path,
        "7f0000001000 20 LazyCompile:~serve /app/serve.js:12\n",
    )
    .unwrap();
    let frames = symbols.resolve_one(&code, 0x7f00_0000_1010);
    // The file grows, as it does while a program runs.
    fs::write(
        &path,
        "7f0000001000 20 LazyCompile:~serve /app/serve.js:12\n7f0000002000 8 later\x1b[m\n",
    )
    .unwrap();
    let later = symbols.resolve_one(&code, 0x7f00_0000_2008);
    let behind = symbols.resolve_one(&code, 0x7f00_0000_2009);
    fs::remove_file(&path).unwrap();
    assert_eq!(
        frames[0].to_string(),
        "LazyCompile:~serve /app/serve.js:12+0x10 ([jit])"
    );
    assert_eq!(later[0].function, "later?[m");
    assert_eq!(behind[0].function, "");
    // In the other form; without a map, or beside it.
    let dump = PathBuf::from(format!("/tmp/jit-{pid}.dump"));
    let bytes = include_bytes!("../../../fuzz/corpus/symbols/jitdump");
    let head = 9; // which is the fuzzer's
    fs::write(&dump, &bytes[head..]).unwrap();
    let dumped = symbols.resolve_one(&code, 0x2008);
    fs::remove_file(&dump).unwrap();
    assert_eq!(dumped[0].to_string(), "b::c d+0x8 ([jit])");
}

/// Every function of a real library, as nm has them; and a batch keeps its
/// order.
#[test]
fn all_functions_of_libc() {
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let text = stdout(
        Command::new("nm")
            .args(["-D", "--defined-only", "-S"])
            .arg(libc),
    );
    let mut by_address: HashMap<u64, (u64, Vec<String>)> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [start, len, "T" | "W" | "t", name] = words[..] else {
            continue;
        };
        let hex = |word| u64::from_str_radix(word, 16).unwrap();
        let name = name.split('@').next().unwrap().to_owned();
        let entry = by_address
            .entry(hex(start))
            .or_insert((hex(len), Vec::new()));
        entry.1.push(name);
    }
    // Without lines and debug directories the dynamic symbols are all there is.
    let mut symbols = UserSymbols::new(UserOptions {
        debug_dirs: Vec::new(),
        lines: false,
    });
    let segments = stdout(Command::new("readelf").arg("-lW").arg(libc));
    assert!(segments.contains("R E"));
    let mut names = Vec::new();
    let mut places = Vec::new();
    let delta = {
        let any = *by_address.keys().next().unwrap();
        offset_of(libc, any).wrapping_sub(any)
    };
    for (start, (len, aliases)) in &by_address {
        if *len > 4 {
            names.push((aliases.clone(), *start));
            places.push((UserCode::File(file(libc)), (start + 3).wrapping_add(delta)));
        }
    }
    assert!(places.len() > 1000);
    for ((aliases, start), frames) in names.iter().zip(symbols.resolve(&places)) {
        let frame = frames.last().unwrap();
        assert!(
            aliases.contains(&frame.function),
            "{start:#x}: {aliases:?} {frame:?}"
        );
        assert_eq!(frame.offset, 3);
    }
}
