// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox attach --capture=splice`: does a running program go on as it would, and is all counted?

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;
/// What tests/splice/attached.c ends with when all was right.
const RIGHT: Option<i32> = Some(7);

fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// False: what it is about is left out, and said.
fn root_or_told() -> bool {
    if !is_root() {
        eprintln!("NOT RUN: needs root");
    }
    is_root()
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn built(&self, name: &str, source: &Path) -> PathBuf {
        let program = self.0.path().join(name);
        let built = Command::new("cc")
            .args(["-O1", "-g", "-pthread", "-o"])
            .args([&program, source])
            .status();
        assert!(built.unwrap().success());
        program
    }

    fn of_text(&self, name: &str, text: &str) -> PathBuf {
        let source = self.0.path().join("source.c");
        std::fs::write(&source, text).unwrap();
        self.built(name, &source)
    }

    fn attached_c(&self) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/attached.c");
        self.built("attached", &source)
    }

    fn debox(&self, pid: u32, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_debox"));
        let (pid, report) = (pid.to_string(), self.0.path().join("report.json"));
        let _ = std::fs::remove_file(&report);
        command
            .args(["attach", "--capture=splice", "-p", &pid, "--json", "-o"])
            .arg(report)
            .args(options)
            .env("XDG_CACHE_HOME", self.0.path())
            .env_remove("DEBOX_SPLICE_RUNTIME")
            .stderr(Stdio::piped());
        command
    }

    /// Says as text what it counts of a process that it leaves as it is; it has begun.
    fn debox_that_says(&self, pid: u32) -> (Child, BufReader<ChildStderr>) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_debox"))
            .args(["attach", "--capture=splice", "-p", &pid.to_string()])
            .args(["--top", "100", "-o"])
            .arg(self.0.path().join("report.txt"))
            .env("XDG_CACHE_HOME", self.0.path())
            .env_remove("DEBOX_SPLICE_RUNTIME")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("watching") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
        }
        (child, said)
    }

    /// Its text, on one line.
    fn text(&self, (mut debox, mut said): (Child, BufReader<ChildStderr>)) -> String {
        // SAFETY: a child of ours.
        unsafe { libc::kill(debox.id() as i32, libc::SIGINT) };
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(debox.wait().unwrap().success(), "{rest}");
        let text = std::fs::read_to_string(self.0.path().join("report.txt")).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn report(&self) -> Value {
        let text = std::fs::read_to_string(self.0.path().join("report.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

/// A program that takes orders, and is ended with the test.
struct Program {
    child: Child,
    orders: ChildStdin,
    answers: ChildStdout,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut program = Self {
            child,
            orders,
            answers,
        };
        program.answered(b'r');
        program
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn answered(&mut self, byte: u8) {
        let mut answer = [0];
        self.answers.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0] as char, byte as char);
    }

    fn order(&mut self, orders: &str) {
        for byte in orders.bytes() {
            self.orders.write_all(&[byte]).unwrap();
            self.answered(byte);
        }
    }

    fn end(mut self) -> Option<i32> {
        self.orders.write_all(b"q").unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mappings of a run's memory.
fn areas(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ours = maps
        .lines()
        .filter(|line| line.contains("memfd:debox-splice"));
    ours.count()
}

/// Waits until the watch has begun: a report is asked for by SIGINT as soon as one would be there.
fn watches(debox: &mut Child, pid: u32, areas_before: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while areas(pid) == areas_before {
        if debox.try_wait().unwrap().is_some() {
            return;
        }
        assert!(Instant::now() < until, "nobody attached to it");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Threads go on as soon as all is prepared: who looks at signals does so then.
    std::thread::sleep(Duration::from_millis(500));
}

fn end(mut debox: Child) -> String {
    // SAFETY: a child of ours.
    unsafe { libc::kill(debox.id() as i32, libc::SIGINT) };
    let mut said = String::new();
    debox
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(debox.wait().unwrap().success(), "{said}");
    said
}

/// Of a call: count and errors.
fn counted(report: &Value, call: &str) -> (u64, u64) {
    let rows = report["calls"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == call);
    let of = |field: &str| row.map_or(0, |row| row[field].as_u64().unwrap());
    (of("count"), of("errors"))
}

fn notes(report: &Value, kind: &str) -> Vec<String> {
    let all = report["notes"].as_array().unwrap().iter();
    let of = all.filter(|note| note["kind"] == kind);
    of.map(|note| note["text"].as_str().unwrap().to_owned())
        .collect()
}

/// Threads that wait in calls of all kinds, and such that make calls all the time, notice nothing; attached
/// to three times, one after the other.
#[test]
fn a_running_program_is_counted_and_goes_on() {
    let place = Place::new();
    let mut program = Program::start(Command::new(place.attached_c()).arg("6"));
    for round in 0..3 {
        let before = areas(program.pid());
        let mut debox = place.debox(program.pid(), &[]).spawn().unwrap();
        watches(&mut debox, program.pid(), before);
        program.order("atfs");
        let said = end(debox);
        let report = place.report();
        assert_eq!(report["run"]["capture"], "splice");
        // The shell asks once.
        assert_eq!(counted(&report, "getppid"), (1201, 0), "{round}: {said}");
        let (opened, failed) = counted(&report, "openat");
        assert!(opened >= 10 && failed == 10, "{round}: {opened}, {failed}");
        assert_eq!(counted(&report, "execve").0, 1, "{round}: {said}");
        assert_eq!(counted(&report, "tgkill"), (100, 0), "{round}: {said}");
        for kind in ["splice_left", "splice_boundary"] {
            assert_eq!(notes(&report, kind), [""; 0], "{round}: {said}");
        }
        // Nobody counts what it does by itself.
        program.order("atf");
    }
    assert_eq!(program.end(), RIGHT);
}

/// The kernel sees no call that was not told.
#[test]
fn each_call_is_told() {
    if !root_or_told() {
        return;
    }
    let place = Place::new();
    let mut program = Program::start(Command::new(place.attached_c()).arg("1"));
    let mut debox = place.debox(program.pid(), &["--audit"]).spawn().unwrap();
    watches(&mut debox, program.pid(), 0);
    program.order("ats");
    let said = end(debox);
    let audit = notes(&place.report(), "splice_audit");
    assert!(
        audit.len() == 1 && audit[0].contains("all were told by them"),
        "{audit:?} {said}"
    );
    assert_eq!(program.end(), RIGHT);
}

/// By root, without that it could open anything of root's: what it asks for later is not granted, and said.
#[test]
fn another_users_program_is_counted_and_shares_nothing_with_others() {
    if !root_or_told() {
        return;
    }
    let place = Place::new();
    let program = place.attached_c();
    let mut all = [NOBODY, 0].map(|user| {
        let mut command = Command::new(&program);
        // What it executes is in nobody's way.
        command.arg("1").current_dir("/").uid(user).gid(user);
        Program::start(&mut command)
    });
    // The place is root's alone: whoever starts it stands in it already.
    let second = all[1].pid().to_string();
    let mut debox = place.debox(all[0].pid(), &["-p", &second]).spawn().unwrap();
    watches(&mut debox, all[0].pid(), 0);
    all.iter_mut().for_each(|program| program.order("at"));
    let said = end(debox);
    let report = place.report();
    // Either at the boundary or spliced, each call once.
    assert_eq!(counted(&report, "getppid"), (2400, 0), "{said}");
    let boundary = notes(&report, "splice_boundary");
    assert!(
        boundary.len() == 1 && boundary[0].contains("other rights"),
        "{boundary:?}"
    );
    for program in all {
        assert_eq!(program.end(), RIGHT);
    }
}

/// A handler that waits has interrupted a call, to which it will return.
const HANDLER: &str = r#"
#include <signal.h>
#include <unistd.h>
#include <sys/syscall.h>
static char c;
static void handler(int n) { (void)n; for (;;) { if (read(0, &c, 1) != 1 || c == 'h') break; for (int i = 0; i < 1000; i++) syscall(SYS_getppid); write(1, &c, 1); } }
int main(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	int never[2];
	pipe(never);
	sigaction(SIGUSR1, &action, 0);
	alarm(120);
	write(1, "r", 1);
	if (read(0, &c, 1) != 1) return 1;
	write(1, &c, 1);
	if (fork() == 0) { usleep(100000); kill(getppid(), SIGUSR1); _exit(0); }
	/* Interrupted, and made again, in the midst of what a jump would take the place of. */
	long n;
	__asm__ volatile("movl $0, %%eax\n	syscall" : "=a"(n) : "D"(0), "S"(&c), "d"(1) : "rcx", "r11", "memory");
	if (n != 1 || c != 'q') return 2;
	return 7;
}
"#;

#[test]
fn whom_a_handler_returns_to_is_left_at_the_boundary() {
    if !root_or_told() {
        return;
    }
    let place = Place::new();
    let mut program = Program::start(&mut Command::new(place.of_text("handler", HANDLER)));
    program.order("x");
    std::thread::sleep(Duration::from_millis(500));
    let debox = place.debox_that_says(program.pid());
    program.order("a");
    let text = place.text(debox);
    assert!(text.contains("a signal handler will return"), "{text}");
    assert!(text.contains("getppid 1,000 "), "{text}");
    program.orders.write_all(b"h").unwrap();
    assert_eq!(program.end(), RIGHT);
}

/// What has been changed in memory is not replaced by what its file says.
#[test]
fn code_that_was_changed_is_left() {
    if !root_or_told() {
        return;
    }
    const CHANGED: &str = r#"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <stdint.h>
__attribute__((noinline, aligned(4096))) int seven(void) { return 3; }
int main(void)
{
	char *page = (char *)((uintptr_t)seven & -4096ul), c;
	if (mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
	for (int i = 0; i < 64; i++) if (page[i] == 3) { page[i] = 7; break; }
	if (mprotect(page, 4096, PROT_READ | PROT_EXEC)) return 1;
	write(1, "r", 1);
	while (read(0, &c, 1) == 1 && c != 'q') { for (int i = 0; i < 1000; i++) { long n = SYS_getppid; __asm__ volatile("syscall" : "+a"(n) : : "rcx", "r11", "memory"); } write(1, &c, 1); }
	return seven();
}
"#;
    let place = Place::new();
    let mut program = Program::start(&mut Command::new(place.of_text("changed", CHANGED)));
    let debox = place.debox_that_says(program.pid());
    program.order("a");
    let text = place.text(debox);
    assert!(text.contains("was changed"), "{text}");
    assert!(text.contains("getppid 1,000 "), "{text}");
    assert_eq!(program.end(), RIGHT);
}

/// Attached to when debox has been killed: it goes on, and is at the boundary.
#[test]
fn it_goes_on_when_debox_is_killed() {
    let place = Place::new();
    let mut program = Program::start(Command::new(place.attached_c()).arg("1"));
    let mut debox = place.debox(program.pid(), &[]).spawn().unwrap();
    watches(&mut debox, program.pid(), 0);
    debox.kill().unwrap();
    debox.wait().unwrap();
    program.order("atfs");
    if is_root() {
        let debox = place.debox_that_says(program.pid());
        program.order("a");
        let text = place.text(debox);
        assert!(text.contains("is spliced already"), "{text}");
        assert!(text.contains("getppid 1,000 "), "{text}");
    }
    assert_eq!(program.end(), RIGHT);
}

/// Own processes, without a broker.
#[test]
fn whoever_has_no_privileges_may_too() {
    if !root_or_told() {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let program = place.attached_c();
    let mut program = Program::start(Command::new(program).arg("1").uid(NOBODY).gid(NOBODY));
    let mut debox = place.debox(program.pid(), &[]);
    let mut debox = debox.uid(NOBODY).gid(NOBODY).spawn().unwrap();
    watches(&mut debox, program.pid(), 0);
    program.order("atf");
    let said = end(debox);
    let report = place.report();
    assert_eq!(counted(&report, "getppid"), (1201, 0), "{said}");
    assert_eq!(notes(&report, "splice_left"), [""; 0], "{said}");
    assert_eq!(report["measured"]["blocked"], false);
    assert_eq!(program.end(), RIGHT);
}
