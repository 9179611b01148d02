// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do the tables lead to the same return addresses as gdb finds, in programs
//! that wait in a system call? The unwinder here is written as the BPF one has
//! to be: registers, rows, and words of the stack, nothing else.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{C_PROGRAM, GO_PROGRAM, compile_c, compile_go, stdout, table_of};
use debox_unwind::{
    END, FRAME_POINTER, PLT, RBP, RBP_LOST, RDI, REALIGNED, RSP, Row, SIGNAL, Table,
};

/// A program that waits for its standard input.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path, arguments: &[&str]) -> Waiting {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Waiting(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The thread that is in a system call of that number, once there is one.
    fn thread_in(&self, call: &str) -> u32 {
        let start = Instant::now();
        loop {
            for task in fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap() {
                let path = task.unwrap().path();
                let now = fs::read_to_string(path.join("syscall")).unwrap_or_default();
                if now.split(' ').next() == Some(call) {
                    return path.file_name().unwrap().to_str().unwrap().parse().unwrap();
                }
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "no thread of {} in system call {call}",
                self.pid()
            );
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // The end of its input ends a vfork child too, whose parent cannot be
        // killed before. Already gone is as good.
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Executable mappings, each with its file's table.
struct Space {
    memory: File,
    mappings: Vec<(u64, u64, u64, PathBuf)>,
    tables: BTreeMap<PathBuf, Table>,
}

impl Space {
    fn of(pid: u32) -> Space {
        let mut mappings = Vec::new();
        let mut tables = BTreeMap::new();
        for line in fs::read_to_string(format!("/proc/{pid}/maps"))
            .unwrap()
            .lines()
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [range, flags, offset, _, _, path] = words[..] else {
                continue;
            };
            if !flags.contains('x') || !path.starts_with('/') {
                continue;
            }
            let hex = |word| u64::from_str_radix(word, 16).unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let path = PathBuf::from(path);
            tables
                .entry(path.clone())
                .or_insert_with(|| table_of(&path));
            mappings.push((hex(from), hex(to), hex(offset), path));
        }
        Space {
            memory: File::open(format!("/proc/{pid}/mem")).unwrap(),
            mappings,
            tables,
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn row(&self, address: u64) -> Option<Row> {
        let (from, _, offset, path) = self
            .mappings
            .iter()
            .find(|(from, to, ..)| (*from..*to).contains(&address))?;
        let place = u32::try_from(address - from + offset).ok()?;
        self.tables[path].row(place).copied()
    }

    /// Return addresses, innermost first, with whether each is a wrapper's.
    fn unwind(&self, mut rip: u64, mut rsp: u64, mut rbp: u64, rdi: u64) -> Vec<(u64, bool)> {
        let mut frames = Vec::new();
        for depth in 0..128 {
            // The byte before: inside `syscall`, or inside the call.
            let Some(row) = self.row(rip - 1) else {
                break;
            };
            frames.push((rip, row.is_wrapper()));
            let words = u64::from(row.cfa_words) * 8;
            let at = |cfa: u64, words: i8| cfa.wrapping_add_signed(8 * i64::from(words));
            let (cfa, mut next_rbp) = match row.kind() {
                END => break,
                RSP | RDI => (Some(rsp + words), None),
                RBP | FRAME_POINTER => (Some(rbp.wrapping_add(words)), None),
                PLT => (
                    Some(
                        rsp + if rip & 15 >= u64::from(row.cfa_words) {
                            16
                        } else {
                            8
                        },
                    ),
                    None,
                ),
                REALIGNED => (self.word(rbp.wrapping_sub(words)), self.word(rbp)),
                SIGNAL => {
                    // rt_sigframe without its return address: ucontext, whose
                    // registers begin at 40: r8 … r15, rdi, rsi, rbp, rbx, rdx,
                    // rax, rcx, rsp, rip.
                    let register = |index: u64| self.word(rsp + 40 + 8 * index);
                    let (Some(next_rip), Some(next_rsp), Some(next_rbp)) =
                        (register(16), register(15), register(10))
                    else {
                        break;
                    };
                    // Not a return address: the look-up is of the byte before
                    // all the same, which is `syscall` for one that waits.
                    (rip, rsp, rbp) = (next_rip, next_rsp, next_rbp);
                    continue;
                }
                kind => panic!("kind {kind}"),
            };
            let Some(cfa) = cfa else {
                break;
            };
            if row.kind() != REALIGNED && row.rbp_words != 0 && row.rbp_words != RBP_LOST {
                next_rbp = self.word(at(cfa, row.rbp_words));
            }
            let next = match row.kind() {
                RDI if depth == 0 => Some(rdi),
                RDI => break,
                _ => self.word(cfa - 8),
            };
            let Some(next) = next.filter(|&next| next != 0) else {
                break;
            };
            rip = next;
            rsp = cfa;
            rbp = next_rbp.unwrap_or(rbp);
        }
        frames
    }
}

/// What gdb says: registers, and the address of each frame.
fn gdb(thread: u32, pid: u32) -> ([u64; 4], Vec<(u64, String)>) {
    let text = stdout(Command::new("timeout").args([
        "120",
        "gdb",
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-ex",
        "set print frame-arguments none",
        "-ex",
        "set print inline-frames off",
        "-ex",
        &format!("attach {pid}"),
        "-ex",
        &format!("python [t.switch() for t in gdb.selected_inferior().threads() if t.ptid[1] == {thread}]"),
        "-ex",
        "python\nf = gdb.newest_frame()\nr = [int(f.read_register(n)) & (2**64-1) for n in ('rip', 'rsp', 'rbp', 'rdi')]\nprint('REGISTERS %x %x %x %x' % tuple(r))\nwhile f:\n  print('FRAME %x %d %s' % (f.pc(), f.type() in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME), f.name()))\n  f = f.older()\n",
    ]));
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("REGISTERS "));
    let mut registers = [0; 4];
    for (register, word) in registers.iter_mut().zip(line.unwrap().split(' ')) {
        *register = u64::from_str_radix(word, 16).unwrap();
    }
    let frames = text
        .lines()
        .filter_map(|line| line.strip_prefix("FRAME "))
        .filter_map(|line| {
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            // An inlined function and one that ended with a jump to the next
            // have no return address of their own.
            (words[1] == "0").then(|| {
                let address = u64::from_str_radix(words[0], 16).unwrap();
                (address, words[2].to_owned())
            })
        })
        .collect();
    (registers, frames)
}

/// Compares up to the function `last` and returns the names of the functions,
/// each with whether it is a wrapper.
fn agree(program: &Waiting, call: &str, last: &str) -> Vec<(String, bool)> {
    let thread = program.thread_in(call);
    let ([rip, rsp, rbp, rdi], theirs) = gdb(thread, program.pid());
    let ours = Space::of(program.pid()).unwind(rip, rsp, rbp, rdi);
    let end = theirs.iter().position(|(_, name)| name == last);
    let end = end.unwrap_or_else(|| panic!("gdb did not get to {last}: {theirs:x?}"));
    let expected: Vec<u64> = theirs[..=end].iter().map(|(address, _)| *address).collect();
    let found: Vec<u64> = ours
        .iter()
        .take(end + 1)
        .map(|(address, _)| *address)
        .collect();
    assert_eq!(found, expected, "gdb's: {theirs:x?}");
    theirs
        .into_iter()
        .zip(ours)
        .map(|((_, name), (_, wrapper))| (name, wrapper))
        .collect()
}

/// The function that a person looks for.
fn call_site(frames: &[(String, bool)]) -> &str {
    let own = frames.iter().find(|(_, wrapper)| !wrapper);
    &own.unwrap_or_else(|| panic!("all are wrappers: {frames:?}"))
        .0
}

const READ: &str = "0";

#[test]
fn c_without_frame_pointers() {
    let dir = tempfile::tempdir().unwrap();
    for (name, flags) in [
        ("shared", &["-O2", "-g", "-fomit-frame-pointer"][..]),
        ("static", &["-O2", "-g", "-static"]),
        ("static-pie", &["-O2", "-g", "-static-pie"]),
        ("chained", &["-O2", "-g", "-fno-omit-frame-pointer"]),
    ] {
        let program = Waiting::start(&compile_c(dir.path(), name, C_PROGRAM, flags), &[]);
        let frames = agree(&program, READ, "main");
        assert_eq!(call_site(&frames), "leaf_wait", "{name}");
        assert!(frames.iter().any(|(name, _)| name == "aligned_frame"));
    }
}

/// stdio between the program and the call, and a signal handler inside it.
#[test]
fn through_stdio_and_a_signal() {
    const SOURCE: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char line[100];
__attribute__((noinline)) static void in_handler(int number)
{
	if (!fgets(line, sizeof line, stdin))
		_exit(number);
}
static void handler(int number) { in_handler(number); line[0]++; }
__attribute__((noinline)) int raises(void)
{
	kill(getpid(), SIGUSR1);
	return line[0];
}
int main(void)
{
	signal(SIGUSR1, handler);
	return raises() & 0;
}
"#;
    let dir = tempfile::tempdir().unwrap();
    for (name, flags) in [
        ("shared", &["-O2", "-g"][..]),
        ("static", &["-O2", "-g", "-static"]),
    ] {
        let program = Waiting::start(&compile_c(dir.path(), name, SOURCE, flags), &[]);
        let frames = agree(&program, READ, "main");
        assert_eq!(call_site(&frames), "in_handler", "{name}: {frames:?}");
        assert!(
            frames.iter().any(|(name, _)| name == "raises"),
            "{frames:?}"
        );
    }
}

/// In glibc's vfork the return address is in a register.
#[test]
fn vfork() {
    const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <unistd.h>
__attribute__((noinline)) int starts_child(char *const *argv)
{
	int pid = vfork();
	if (pid == 0) {
		char byte;
		_exit((int)read(0, &byte, 1));
	}
	return pid + (argv[0] != 0);
}
int main(int argc, char **argv) { (void)argc; return starts_child(argv) & 0; }
"#;
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-fomit-frame-pointer", "-no-pie"];
    let path = compile_c(dir.path(), "vfork", SOURCE, &flags);
    let program = Waiting::start(&path, &[]);
    program.thread_in("58");
    // gdb cannot stop a process that waits for its vfork child; the kernel
    // shows registers, and nm where the functions are.
    let now = fs::read_to_string(format!("/proc/{}/syscall", program.pid())).unwrap();
    let words: Vec<u64> = now
        .split_whitespace()
        .skip(1)
        .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap())
        .collect();
    let (rdi, rsp, rip) = (words[0], words[6], words[7]);
    let frames = Space::of(program.pid()).unwind(rip, rsp, 0, rdi);
    let symbols = stdout(Command::new("nm").args(["-S", "--defined-only"]).arg(&path));
    let in_function = |address: u64, function: &str| {
        symbols.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, len, _, name] = words[..] else {
                return false;
            };
            let hex = |word| u64::from_str_radix(word, 16).unwrap();
            name == function && (hex(start) + 1..=hex(start) + hex(len)).contains(&address)
        })
    };
    assert!(frames[0].1, "vfork() is libc's");
    assert!(in_function(frames[1].0, "starts_child"), "{frames:x?}");
    assert!(in_function(frames[2].0, "main"), "{frames:x?}");
}

#[test]
fn go_programs() {
    let dir = tempfile::tempdir().unwrap();
    for (name, flags) in [("fixed", &[][..]), ("pie", &["-buildmode=pie"])] {
        let program = Waiting::start(&compile_go(dir.path(), name, GO_PROGRAM, flags), &[]);
        let frames = agree(&program, READ, "main.main");
        // bufio is not the runtime's.
        assert_eq!(
            call_site(&frames),
            "bufio.(*Reader).fill",
            "{name}: {frames:?}"
        );
        assert!(
            frames.iter().any(|(name, _)| name == "main.bigFrame"),
            "{frames:?}"
        );
    }
}

#[test]
fn python() {
    let program = stdout(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]));
    let program = Waiting::start(
        Path::new(program.trim()),
        &["-c", "import os\ndef f(): return os.read(0, 1)\nf()"],
    );
    let frames = agree(&program, READ, "Py_BytesMain");
    assert_eq!(call_site(&frames), "_Py_read", "{frames:?}");
    assert!(frames.len() > 8, "{frames:?}");
}
