// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can a watched program's files do to who names places in them? Cost
//! their own names, and no more.

#[path = "../../../tests/needs.rs"]
mod needs;

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use debox_symbol::{CodeFile, UserCode, UserFrame, UserSymbols};

const SOURCE: &str = "__attribute__((noinline)) int called(int n) { return n + 1; }\n\
    int outermost(int n) { return called(n) + 1; }\n";

fn run(command: &mut Command) -> String {
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

fn library(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, library) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, source).unwrap();
    run(Command::new("gcc")
        .args(["-O1", "-shared", "-fPIC", "-nostdlib"])
        .args(flags)
        .arg("-o")
        .arg(&library)
        .arg(&file));
    library
}

/// The place that the call in `outermost` returns to; code lies at its
/// addresses in a library as small as these.
fn place(library: &Path) -> u64 {
    let text = run(Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "--disassemble=outermost"])
        .arg(library));
    let lines: Vec<&str> = text.lines().collect();
    let call = lines
        .iter()
        .position(|line| line.contains("call "))
        .unwrap_or_else(|| panic!("{text}"));
    let address = lines[call + 1].trim().split(':').next().unwrap();
    u64::from_str_radix(address, 16).unwrap()
}

fn code(path: &Path) -> UserCode {
    UserCode::File(CodeFile {
        path: path.to_owned(),
        pid: None,
        build_id: None,
    })
}

fn named(symbols: &mut UserSymbols, path: &Path, place: u64) -> UserFrame {
    let frames = symbols.resolve_one(&code(path), place);
    frames.last().unwrap().clone()
}

fn notes(symbols: &UserSymbols) -> String {
    let all: Vec<String> = symbols.notes().map(|note| note.text).collect();
    all.join("\n")
}

fn fifo(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o644) }, 0);
}

/// Small ones are read at once, large ones are mapped.
fn victims(dir: &Path) -> [PathBuf; 2] {
    // Behind the functions, so that offsets are addresses; and so much to read about
    // them that somebody can come in between.
    let more: String = (0..4000)
        .map(|n| format!("int more_{n}(int n) {{ return n + {n}; }}\n"))
        .collect();
    let padded = format!("{SOURCE}{more}const char padding[16 << 20] = {{1}};\n");
    [
        library(dir, "small.so", SOURCE, &["-g"]),
        library(dir, "large.so", &padded, &["-g"]),
    ]
}

/// A library is cut off between one place and the next. Others keep their
/// names.
#[test]
fn a_library_that_is_truncated_after_a_look() {
    let dir = tempfile::tempdir().unwrap();
    let other = library(dir.path(), "other.so", SOURCE, &["-g"]);
    let mut symbols = UserSymbols::default();
    for victim in victims(dir.path()) {
        let at = place(&victim);
        assert_eq!(named(&mut symbols, &victim, at).line, 2);
        File::options()
            .write(true)
            .open(&victim)
            .unwrap()
            .set_len(4096)
            .unwrap();
        let after = named(&mut symbols, &victim, at - 1);
        if victim.ends_with("large.so") {
            assert_eq!(after.function, "");
            let told = notes(&symbols);
            assert!(told.contains("1 place in large.so have no"), "{told}");
        }
        let place = place(&other) - u64::from(victim.ends_with("large.so"));
        let frame = named(&mut symbols, &other, place);
        assert_eq!((frame.function.as_str(), frame.line), ("outermost", 2));
    }
}

/// Also when what is in scope with it has failed.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same, again and again, at any moment of reading it: it is whole for a while and
/// cut off for a while, each of a length of its own. A large one is mapped then, which
/// ends the process that reads it: so often that it must be seen.
#[test]
fn a_library_that_is_truncated_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let other = library(dir.path(), "other.so", SOURCE, &["-g"]);
    for victim in victims(dir.path()) {
        let at = place(&victim);
        let whole = fs::read(&victim).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stopped = Stopped(&stop);
            scope.spawn(|| {
                let file = File::options().write(true).open(&victim).unwrap();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    file.set_len(4096).unwrap();
                    std::thread::sleep(Duration::from_micros(100 + n * 70 % 500));
                    file.set_len(whole.len() as u64).unwrap();
                    for (block, bytes) in whole.chunks(4096).enumerate() {
                        if bytes.iter().any(|byte| *byte != 0) {
                            file.write_all_at(bytes, 4096 * block as u64).unwrap();
                        }
                    }
                    std::thread::sleep(Duration::from_micros(100 + n * 110 % 2_000));
                }
            });
            let start = Instant::now();
            let mut ends = 0;
            let is_mapped = victim.ends_with("large.so");
            while start.elapsed() < Duration::from_secs(2)
                || (is_mapped && ends == 0 && start.elapsed() < Duration::from_secs(60))
            {
                let mut symbols = UserSymbols::default();
                let first = named(&mut symbols, &other, place(&other));
                for _ in 0..3 {
                    named(&mut symbols, &victim, at);
                    if symbols.symboliser().ends() > 0 {
                        break;
                    }
                }
                ends += symbols.symboliser().ends();
                assert_eq!(first.function, "outermost");
                // After whatever has happened.
                let again = named(&mut symbols, &other, place(&other) - 1);
                assert_eq!(again.function, "outermost", "{}", notes(&symbols));
            }
            assert!(ends > 0 || !is_mapped, "never cut off while it was read");
        });
    }
}

/// A debug link to a FIFO, to a device and to a directory.
#[test]
fn a_debug_link_to_a_fifo() {
    let dir = tempfile::tempdir().unwrap();
    let plain = library(dir.path(), "plain.so", SOURCE, &[]);
    let at = place(&plain);
    let target = dir.path().join("debug");
    let linked = dir.path().join("linked.so");
    fs::write(&target, "x").unwrap();
    let mut add = std::ffi::OsString::from("--add-gnu-debuglink=");
    add.push(&target);
    run(Command::new("objcopy").arg(add).arg(&plain).arg(&linked));
    for make in [
        (|path: &Path| fifo(path)) as fn(&Path),
        |path| symlink("/dev/zero", path).unwrap(),
        |path| fs::create_dir(path).unwrap(),
        |path| symlink(path, path).unwrap(),
    ] {
        let _ = fs::remove_file(&target);
        let _ = fs::remove_dir(&target);
        make(&target);
        let start = Instant::now();
        let frame = named(&mut UserSymbols::default(), &linked, at);
        assert_eq!(frame.function, "outermost");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/elf")
}

fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

/// 2.2 gigabytes in 84 kilobytes, with a header that says so, and with one
/// that denies it: neither process grows by it, and lines of others are found.
#[test]
fn a_section_that_expands_to_gigabytes() {
    let dir = tempfile::tempdir().unwrap();
    let other = library(dir.path(), "other.so", SOURCE, &["-g"]);
    for (name, told) in [
        ("section-of-gigabytes.so", true),
        ("section-of-gigabytes-denied.so", false),
    ] {
        let before = peak_kib(std::process::id());
        let mut symbols = UserSymbols::default();
        let frame = named(&mut symbols, &corpus().join(name), 0x1072);
        let grown = peak_kib(std::process::id()).saturating_sub(before);
        assert!(grown < 256 << 10, "{grown} KiB");
        let its = peak_kib(symbols.symboliser().pid().unwrap());
        assert!(its < 512 << 10, "{its} KiB");
        assert_eq!(frame.function, "outermost");
        let notes = notes(&symbols);
        assert_eq!(
            notes.contains(&format!("1 place in {name}")),
            told,
            "{notes}"
        );
        let again = self::named(&mut symbols, &other, place(&other));
        assert_eq!((again.function.as_str(), again.line), ("outermost", 2));
    }
}

/// All inputs that have done harm, and those that fuzzing found: none ends
/// more than the process that reads it.
#[test]
fn the_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let other = library(dir.path(), "other.so", SOURCE, &["-g"]);
    let mut seen = 0;
    for entry in fs::read_dir(corpus()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "md") {
            continue;
        }
        let mut symbols = UserSymbols::default();
        for at in [0x1072, 0x1070, 0x1040, 1, 0, u64::MAX] {
            named(&mut symbols, &path, at);
        }
        let frame = named(&mut symbols, &other, place(&other));
        assert_eq!(
            (frame.function.as_str(), frame.line),
            ("outermost", 2),
            "{}: {}",
            path.display(),
            notes(&symbols)
        );
        seen += 1;
    }
    assert!(seen > 0);
}

/// Devices and FIFOs at the place of the library itself.
#[test]
fn not_a_regular_file() {
    let dir = tempfile::tempdir().unwrap();
    let good = library(dir.path(), "good.so", SOURCE, &[]);
    let at = place(&good);
    let path = dir.path().join("lib.so");
    for (make, word) in [
        ((|path: &Path| fifo(path)) as fn(&Path), "FIFO"),
        (|path| symlink("/dev/zero", path).unwrap(), "device"),
        (|path| fs::create_dir(path).unwrap(), "directory"),
    ] {
        let _ = fs::remove_file(&path);
        make(&path);
        let mut symbols = UserSymbols::default();
        let frame = named(&mut symbols, &path, at);
        assert_eq!(frame.to_string(), format!("lib.so+{at:#x}"));
        assert!(notes(&symbols).contains(word), "{}", notes(&symbols));
    }
}

/// A process of another user (65534, as this runs as root).
struct Nobodys(std::process::Child);

impl Nobodys {
    fn start() -> Nobodys {
        use std::os::unix::process::CommandExt as _;
        let child = Command::new("sleep")
            .arg("600")
            .uid(65534)
            .gid(65534)
            .stdin(Stdio::null())
            .spawn();
        Nobodys(child.unwrap())
    }
}

impl Drop for Nobodys {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `/tmp/perf-PID.map` is anybody's to write.
#[test]
fn a_perf_map_of_another_owner() {
    if !needs::root() {
        return;
    }
    let process = Nobodys::start();
    let pid = process.0.id();
    let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let map = "7f0000001000 20 forged\n";
    let give = |owner: u32| std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
    let resolve = || {
        let mut symbols = UserSymbols::default();
        let frames = symbols.resolve_one(&UserCode::Memory { pid }, 0x7f00_0000_1010);
        (frames[0].function.clone(), notes(&symbols))
    };
    fs::write(&path, map).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    give(65533);
    let (foreign, why) = resolve();
    give(65534);
    let (own, _) = resolve();
    give(0);
    let (roots, _) = resolve();
    // A second name, which somebody else may have made.
    let second = PathBuf::from(format!("/tmp/perf-{pid}.map.second"));
    fs::hard_link(&path, &second).unwrap();
    let (two_names, _) = resolve();
    fs::remove_file(&path).unwrap();
    // A link to a file of the right owner.
    symlink(&second, &path).unwrap();
    let (linked, _) = resolve();
    fs::remove_file(&path).unwrap();
    fs::remove_file(&second).unwrap();
    assert_eq!(own, "forged");
    assert_eq!(roots, "forged");
    assert_eq!(foreign, "", "a stranger's map is believed");
    assert!(
        why.contains("user 65533") && why.contains("user 65534"),
        "{why}"
    );
    assert_eq!(two_names, "");
    assert_eq!(linked, "");
}
