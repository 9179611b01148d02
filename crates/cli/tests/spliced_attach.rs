// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox attach --capture=splice`: does a running program go on as it would, and is all counted?

use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "common/splice.rs"]
mod splice;

use splice::needs;
use splice::{NOBODY, Place, notes, row, writable_code};

/// What tests/splice/attached.c ends with when all was right.
const RIGHT: Option<i32> = Some(7);

/// `debox attach --capture=splice`.
struct Attached(Place);

impl Attached {
    fn new() -> Self {
        Self(Place::new())
    }

    fn folder(&self) -> &Path {
        self.0.0.path()
    }

    fn attached_c(&self) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/attached.c");
        self.0.program_of("attached", &source)
    }

    fn attach(&self, pid: u32, report: &str) -> Command {
        let file = self.folder().join(report);
        let _ = std::fs::remove_file(&file);
        let mut command =
            self.0
                .debox(&["attach", "--capture=splice", "-p", &pid.to_string(), "-o"]);
        command.arg(file).stderr(Stdio::piped());
        command
    }

    fn debox(&self, pid: u32, options: &[&str]) -> Command {
        let mut command = self.attach(pid, "report.json");
        command.arg("--json").args(options);
        command
    }

    fn report(&self) -> Value {
        let text = std::fs::read_to_string(self.folder().join("report.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// It is left at the boundary for this reason, where its calls are counted, and goes on.
    fn stays_as_it_is(&self, program: &mut Program, why: &str) {
        let mut debox = self.attach(program.pid(), "report.txt");
        let mut debox = debox.args(["--top", "100"]).spawn().unwrap();
        let mut said = BufReader::new(debox.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("watching") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
        }
        program.order("a");
        // SAFETY: a child of ours.
        unsafe { libc::kill(debox.id() as i32, libc::SIGINT) };
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(debox.wait().unwrap().success(), "{rest}");
        let text = std::fs::read_to_string(self.folder().join("report.txt")).unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(why), "{text}");
        assert!(text.contains("getppid 1,000 "), "{text}");
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
            // Cargo's, of which the loaders of what it starts would ask.
            .env_remove("LD_LIBRARY_PATH")
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
            if let Err(error) = self.orders.write_all(&[byte]) {
                panic!(
                    "it ended before '{}': {error}, {:?}",
                    byte as char,
                    self.child.wait()
                );
            }
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

/// Its code that came from files: where it lies, and what it says.
fn code(pid: u32) -> Vec<(u64, Vec<u8>)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let of_files = |line: &&str| line.contains(" r-xp ") && line.contains('/');
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some((number(start)?, number(end)?))
    };
    let ranges = maps.lines().filter(of_files).filter_map(range);
    ranges
        .map(|(start, end)| (start, memory(pid, start, (end - start) as usize)))
        .collect()
}

fn memory(pid: u32, at: u64, bytes: usize) -> Vec<u8> {
    let mut there = vec![0; bytes];
    let file = File::open(format!("/proc/{pid}/mem")).unwrap();
    file.read_exact_at(&mut there, at).unwrap();
    there
}

/// How many bytes of its code are others than they were.
fn differ(pid: u32, code: &[(u64, Vec<u8>)]) -> usize {
    let of = |(at, was): &(u64, Vec<u8>)| {
        let is = memory(pid, *at, was.len());
        is.iter().zip(was).filter(|(is, was)| is != was).count()
    };
    code.iter().map(of).sum()
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

/// Threads that wait in calls of all kinds, and such that make calls all the time, notice nothing; attached
/// to three times, one after the other.
#[test]
fn a_running_program_is_counted_and_goes_on() {
    let place = Attached::new();
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
        let (none, failed) = counted(&report, "(unknown)");
        // Two threads make them while the two numbers are read, one after the other.
        let apart = none.abs_diff(failed);
        assert!(none > 0 && apart * 10 <= none, "{round}: {none}, {failed}");
        for kind in ["splice_left", "splice_boundary", "inconsistent"] {
            let calls = &report["calls"];
            assert_eq!(notes(&report, kind), [""; 0], "{round}: {said} {calls}");
        }
        // Nobody counts what it does by itself.
        program.order("atf");
    }
    assert_eq!(program.end(), RIGHT);
}

/// Byte by byte; and at no time could anybody write code where it is executed.
#[test]
fn its_own_code_comes_back() {
    let place = Attached::new();
    let mut program = Program::start(Command::new(place.attached_c()).arg("1"));
    let pid = program.pid();
    let own = code(pid);
    for round in 0..2 {
        let before = areas(pid);
        let mut debox = place.debox(pid, &[]).spawn().unwrap();
        while areas(pid) == before && debox.try_wait().unwrap().is_none() {
            assert_eq!(writable_code(pid), [""; 0], "{round}");
            std::thread::sleep(Duration::from_micros(200));
        }
        watches(&mut debox, pid, before);
        program.order("at");
        assert_eq!(writable_code(pid), [""; 0], "{round}");
        // Else nothing could come back.
        assert!(differ(pid, &own) > 0, "{round}");
        let said = end(debox);
        assert_eq!(differ(pid, &own), 0, "{round}: {said}");
        assert_eq!(writable_code(pid), [""; 0], "{round}");
        program.order("at");
    }
    assert_eq!(program.end(), RIGHT);
}

/// Calls that are open all the while are told, of spliced processes as of such that are at the boundary;
/// and what a process stood still for at the begin is in nothing.
#[test]
fn calls_that_do_not_return_are_told() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    // The second one has other rights, and so is at the boundary.
    let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let script = format!("{nobody} sh -c 'echo -n r; read word'; exit 7");
    let mut program = Program::start(Command::new("sh").args(["-c", &script]));
    let debox = place.debox(program.pid(), &["-d", "1s"]).spawn().unwrap();
    let said = debox.wait_with_output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let report = place.report();
    let wall = report["run"]["wall_ns"].as_u64().unwrap();
    for call in ["wait4", "read"] {
        let row = row(&report["calls"], "name", call);
        let unfinished = row.first().map(|row| row["unfinished"].as_u64());
        assert_eq!(unfinished, Some(Some(1)), "{call}: {}", report["calls"]);
        let blocked = row[0]["blocked_ns"].as_u64().unwrap();
        assert!(
            (wall * 6 / 10..=wall).contains(&blocked),
            "{call}: {blocked} of {wall}"
        );
    }
    let blocking = report["blocking"].as_array().unwrap();
    assert!(
        blocking
            .iter()
            .all(|row| !row["call"].is_null() && row["label"] != "splice-setup"),
        "{}",
        report["blocking"]
    );
    let lives = report["lives"].as_array().unwrap();
    assert!(
        lives.iter().all(|row| row["stopped_ns"] == 0),
        "{}",
        report["lives"]
    );
    assert_eq!(
        notes(&report, "splice_boundary").len(),
        1,
        "{}",
        report["notes"]
    );
    program.orders.write_all(b"\n").unwrap();
    assert_eq!(program.child.wait().unwrap().code(), RIGHT);
}

/// A call that stays where it is: its function returns into a trampoline, and to the program's own code later.
#[test]
fn a_thread_in_a_call_that_is_made_in_place_is_taken_over() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/in_place.c");
    let program = place.0.program_of("in_place", &source);
    let mut program = Program::start(Command::new(program).arg("orders"));
    for _ in 0..2 {
        let before = areas(program.pid());
        let mut debox = place.debox(program.pid(), &["--audit"]).spawn().unwrap();
        watches(&mut debox, program.pid(), before);
        program.order("abc");
        let said = end(debox);
        let report = place.report();
        assert_eq!(counted(&report, "read"), (3, 0), "{said}");
        assert_eq!(counted(&report, "write"), (3, 0), "{said}");
        let boundary = notes(&report, "splice_boundary");
        assert!(boundary.is_empty(), "{boundary:?}");
        let audit = notes(&report, "splice_audit");
        assert!(
            audit.len() == 1 && audit[0].contains("all were told by them"),
            "{audit:?} {said}"
        );
        program.order("d");
    }
    assert_eq!(program.end(), RIGHT);
}

/// The kernel sees no call that was not told.
#[test]
fn each_call_is_told() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
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
    if !needs::root() {
        return;
    }
    let place = Attached::new();
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

/// Has a child that executes something, when it is told.
const EXECUTES: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	char c = 'r';
	alarm(120);
	do {
		write(1, &c, 1);
		if (read(0, &c, 1) != 1) return 1;
		if (c == 'e' && fork() == 0) {
			for (int i = 0; i < 50; i++) getsid(0);
			execl("/bin/true", "true", (char *)0);
			_exit(1);
		}
		if (c == 'e') wait(0);
	} while (c != 'q');
	return 7;
}
"#;

/// It cannot open what is counted in, nor its folder: it is sent what it needs.
#[test]
fn what_another_users_program_executes_is_spliced() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    let mut command = Command::new(place.0.program("executes", EXECUTES));
    command.current_dir("/").uid(NOBODY).gid(NOBODY);
    let mut program = Program::start(&mut command);
    let mut debox = place.debox(program.pid(), &[]).spawn().unwrap();
    watches(&mut debox, program.pid(), 0);
    program.order("ee");
    let said = end(debox);
    let report = place.report();
    assert_eq!(counted(&report, "getsid"), (100, 0), "{said}");
    assert_eq!(counted(&report, "execve"), (2, 0), "{said}");
    // Its loader's.
    assert_eq!(counted(&report, "set_tid_address"), (2, 0), "{said}");
    assert!(notes(&report, "splice_boundary").is_empty(), "{report}");
    assert!(notes(&report, "splice_left").is_empty(), "{report}");
    assert_eq!(program.end(), RIGHT);
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
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    let mut program = Program::start(&mut Command::new(place.0.program("handler", HANDLER)));
    program.order("x");
    std::thread::sleep(Duration::from_millis(500));
    place.stays_as_it_is(&mut program, "a signal handler will return");
    program.orders.write_all(b"h").unwrap();
    assert_eq!(program.end(), RIGHT);
}

/// What has been changed in memory is not replaced by what its file says.
#[test]
fn code_that_was_changed_is_left() {
    if !needs::root() {
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
    let place = Attached::new();
    let mut program = Program::start(&mut Command::new(place.0.program("changed", CHANGED)));
    place.stays_as_it_is(&mut program, "was changed");
    assert_eq!(program.end(), RIGHT);
}

/// Orders, a byte each: 1,000 calls.
const STEPS: &str = r#"
#include <unistd.h>
__attribute__((noinline)) void step(void) { getppid(); }
int main(void)
{
	char c;
	write(1, "r", 1);
	while (read(0, &c, 1) == 1 && c != 'q') { for (int i = 0; i < 1000; i++) step(); write(1, &c, 1); }
	return 7;
}
"#;

/// The live view of a process by its number, which has its own code again afterwards.
#[test]
fn top_shows_the_calls_of_a_running_program() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    let mut program = Program::start(&mut Command::new(place.0.program("steps", STEPS)));
    let (pid, own) = (program.pid(), code(program.pid()));
    let words = ["top", "--capture=splice", "--totals", "--batch", "8"];
    let mut debox = place.0.debox(&words);
    debox.args(["--view", "calls", "--interval", "500ms"]);
    debox.args(["-p", &pid.to_string()]);
    let debox = debox.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut debox = debox.spawn().unwrap();
    watches(&mut debox, pid, 0);
    program.order("aaa");
    let shown = debox.wait_with_output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8(shown.stdout).unwrap();
    // The last frame's.
    let rows = text.lines().map(|line| line.split_whitespace());
    let mut counts = rows.filter_map(|mut row| match row.next() {
        Some("getppid") => row.next(),
        _ => None,
    });
    assert_eq!(counts.next_back(), Some("3,000"), "{text}");
    assert_eq!(differ(pid, &own), 0);
    program.order("a");
    assert_eq!(program.end(), RIGHT);
}

/// A debugger with a breakpoint in a function whose call has been replaced, which then goes through the trampoline by
/// single steps. Where it is still there as the watch ends, the program keeps the trampolines, which is said.
#[test]
fn a_debugger_comes_meanwhile() {
    if !needs::root() {
        return;
    }
    for stays in [false, true] {
        let place = Attached::new();
        let mut program = Program::start(&mut Command::new(place.0.program("steps", STEPS)));
        let mut debox = place.debox(program.pid(), &[]).spawn().unwrap();
        watches(&mut debox, program.pid(), 0);
        let (there, go) = (place.folder().join("there"), place.folder().join("go"));
        if !stays {
            std::fs::write(&go, "").unwrap();
        }
        let waits = format!(
            "shell touch {}; while ! [ -e {} ]; do sleep 0.1; done",
            there.display(),
            go.display()
        );
        let mut gdb = Command::new("gdb");
        gdb.args(["-p", &program.pid().to_string(), "-batch"]);
        for word in ["break getppid", "echo set\\n", "continue", "backtrace"] {
            gdb.args(["-ex", word]);
        }
        for word in [&waits, "delete", "stepi 60", "detach"] {
            gdb.args(["-ex", word]);
        }
        let mut gdb = (gdb.stdout(Stdio::piped()).stderr(Stdio::null()).spawn())
            .expect("gdb (apt-get install gdb)");
        let mut shown = BufReader::new(gdb.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("set") {
            line.clear();
            assert_ne!(shown.read_line(&mut line).unwrap(), 0, "it ended");
        }
        program.orders.write_all(b"a").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !there.exists() {
            assert!(Instant::now() < until, "it did not come to the breakpoint");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut said = String::new();
        let mut debox = Some(debox);
        if stays {
            said = end(debox.take().unwrap());
            std::fs::write(&go, "").unwrap();
        }
        program.answered(b'a');
        let mut frames = String::new();
        shown.read_to_string(&mut frames).unwrap();
        assert!(gdb.wait().unwrap().success(), "{frames}");
        for name in ["getppid", "in step (", "in main ("] {
            assert!(frames.contains(name), "{frames}");
        }
        if let Some(debox) = debox {
            said = end(debox);
        }
        // It stands at the first of them.
        let calls = if stays { 0 } else { 1000 };
        assert_eq!(counted(&place.report(), "getppid").0, calls, "{said}");
        assert_eq!(said.contains("for nobody"), stays, "{said}");
        // It stood still for gdb.
        let report = place.report();
        let verdict = report["verdict"].to_string();
        assert!(!verdict.contains("splice-setup"), "{verdict}");
        assert!(
            !row(&report["blocking"], "label", "ptrace").is_empty(),
            "{}",
            report["blocking"]
        );
        program.order("a");
        assert_eq!(program.end(), RIGHT);
    }
}

/// Attached to when debox has been killed: it goes on, and is at the boundary.
#[test]
fn it_goes_on_when_debox_is_killed() {
    let place = Attached::new();
    let mut program = Program::start(Command::new(place.attached_c()).arg("1"));
    let mut debox = place.debox(program.pid(), &[]).spawn().unwrap();
    watches(&mut debox, program.pid(), 0);
    debox.kill().unwrap();
    debox.wait().unwrap();
    program.order("atfs");
    if needs::is_root() {
        place.stays_as_it_is(&mut program, "is spliced already");
    }
    assert_eq!(program.end(), RIGHT);
}

/// Loads a library and makes calls in it, closes it, and keeps something else where it was.
const CLOSES: &str = r#"
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void *library;
static long (*raw)(void);
static unsigned char *page;
int main(int argc, char **argv)
{
	char order = 'r';
	do {
		if (order == 'l') {
			library = dlopen(argv[1], RTLD_NOW);
			raw = (long (*)(void))dlsym(library, "raw");
		}
		for (int i = 0; order == 'c' && i < 1000; i++) raw();
		if (order == 'x') {
			page = (unsigned char *)((uintptr_t)raw & -4096l);
			dlclose(library);
			if (mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != page) return 1;
			memset(page, 0x5a, 4096);
		}
		for (int i = 0; order == 'v' && i < 4096; i++) if (page[i] != 0x5a) return 2;
		write(1, &order, 1);
	} while (read(0, &order, 1) == 1 && order != 'q');
	return 7;
}
"#;

/// What a program keeps where a library was is left alone as its own code comes back.
#[test]
fn where_a_library_was_nothing_is_written() {
    if !needs::root() {
        return;
    }
    for loaded_before in [true, false] {
        let place = Attached::new();
        let (library, program) = (place.0.library(), place.0.program("closes", CLOSES));
        let mut program = Program::start(Command::new(program).arg(library));
        program.order(if loaded_before { "lc" } else { "" });
        let mut debox = place.debox(program.pid(), &[]);
        let mut debox = debox.spawn().unwrap();
        watches(&mut debox, program.pid(), 0);
        program.order(if loaded_before { "cx" } else { "lcx" });
        let said = end(debox);
        let report = place.report();
        assert_eq!(counted(&report, "getppid").0, 1000, "{said}");
        assert_eq!(notes(&report, "splice_left"), [""; 0], "{said}");
        program.order("v");
        assert_eq!(program.end(), RIGHT, "{loaded_before}");
    }
}

/// Whether somebody traces it.
fn is_traced(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.contains("TracerPid:\t0\n")
}

/// Killed as it attaches, at any moment: its threads wait in calls of all kinds, which go on.
#[test]
fn it_goes_on_when_debox_is_killed_as_it_attaches() {
    if !needs::root() {
        return;
    }
    let mut midst = 0;
    for round in 0..16 {
        let place = Attached::new();
        std::os::unix::fs::chown(place.folder(), Some(NOBODY), Some(NOBODY)).unwrap();
        let mut program = Command::new(place.attached_c());
        let mut program = Program::start(program.arg("1").uid(NOBODY).gid(NOBODY));
        let mut debox = place.debox(program.pid(), &[]);
        let mut debox = debox.uid(NOBODY).gid(NOBODY).spawn().unwrap();
        // On a busy machine all of it may be done between two looks.
        let begun = |pid| is_traced(pid) || areas(pid) > 0;
        while !begun(program.pid()) && debox.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(50));
        }
        std::thread::sleep(Duration::from_micros(400 * round));
        midst += u32::from(is_traced(program.pid()));
        let _ = debox.kill();
        debox.wait().unwrap();
        program.order("atfs");
        assert_eq!(program.end(), RIGHT, "round {round}");
    }
    println!("in the midst of it: {midst} of 16");
}

/// Own processes, without a broker.
#[test]
fn whoever_has_no_privileges_may_too() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    std::os::unix::fs::chown(place.folder(), Some(NOBODY), Some(NOBODY)).unwrap();
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

/// What is in memory that all may know: the begin of a file that is not moved.
const KNOWN_AT: u64 = 0x40_0000;

/// Asks debox to come along with the next execve of another process, and tells what came of it: 7, it is refused.
const ASKS_FOR_ANOTHER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char line[512];
	struct splice_run *run = 0;
	unsigned long from, to, offset;
	for (int i = 0; i < 2000 && !run; i++, usleep(10000)) {
		FILE *maps = fopen("/proc/self/maps", "r");
		while (fgets(line, sizeof line, maps))
			if (strstr(line, "memfd:debox-splice") && sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) == 3 &&
			    offset == 0 && to - from == SPLICE_RUN_BYTES)
				run = (struct splice_run *)from;
		fclose(maps);
	}
	if (!run) return 1;
	struct splice_request *r = &run->request[SPLICE_REQUESTS - 1];
	r->kind = SPLICE_EXEC;
	r->tid = atoi(argv[1]);
	r->at = (unsigned long)run;
	r->word_at = strtoul(argv[2], 0, 0);
	r->word = strtoul(argv[3], 0, 0);
	r->answer = -110;
	__atomic_store_n(&r->state, SPLICE_ASKED, __ATOMIC_SEQ_CST);
	/* Whoever answers requests looks once a second in any case. */
	__atomic_fetch_add(&run->bell, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 500 && __atomic_load_n(&r->state, __ATOMIC_SEQ_CST) == SPLICE_ASKED; i++) usleep(10000);
	return r->state != SPLICE_ANSWERED ? 2 : r->answer == -1 ? 7 : 3;
}
"#;

/// Root watches a process of somebody else's, who can write what is shared.
#[test]
fn whoever_is_attached_to_cannot_have_debox_trace_another() {
    if !needs::root() {
        return;
    }
    let place = Attached::new();
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../../splice/state.h");
    let text = format!("#include \"{header}\"\n{ASKS_FOR_ANOTHER}");
    let asks = place.0.program("asks", &text);
    let (victim, source) = (
        place.folder().join("victim"),
        place.0.file(
            "victim.c",
            "#include <unistd.h>\nint main(void) { pause(); }\n",
        ),
    );
    let built = Command::new("cc")
        .args(["-static", "-no-pie", "-o"])
        .args([victim.as_os_str(), source.as_ref()])
        .status();
    assert!(built.unwrap().success());
    let mut word = [0; 8];
    File::open(&victim)
        .unwrap()
        .read_exact_at(&mut word, 0)
        .unwrap();
    let mut victim = Command::new(&victim).spawn().unwrap();
    // Its memory is as the attacker says.
    let there = || {
        let memory = File::open(format!("/proc/{}/mem", victim.id())).unwrap();
        let mut is = [0; 8];
        memory.read_exact_at(&mut is, KNOWN_AT).is_ok() && is == word
    };
    while !there() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut asks = Command::new(asks)
        .args([victim.id().to_string(), KNOWN_AT.to_string()])
        .arg(u64::from_le_bytes(word).to_string())
        .uid(NOBODY)
        .gid(NOBODY)
        .spawn()
        .unwrap();
    let debox = place.debox(asks.id(), &[]).spawn().unwrap();
    let asked = asks.wait().unwrap();
    let said = end(debox);
    let traced = is_traced(victim.id());
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(asked.code(), Some(7), "{said}");
    assert!(!traced, "{said}");
}
