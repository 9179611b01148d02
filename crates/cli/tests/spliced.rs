// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox run --capture=splice`: is all counted, and does the command end as it would?

use serde_json::Value;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output};

const NOBODY: u32 = 65534;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn debox(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_debox"));
        command.args(["run", "--capture=splice"]).args(words);
        command
            .env("XDG_CACHE_HOME", self.0.path())
            .env_remove("DEBOX_SPLICE_RUNTIME");
        command
    }

    fn report(&self, words: &[&str]) -> (Output, Value) {
        let file = self.0.path().join("report.json");
        let mut all = vec!["--json", "-o", file.to_str().unwrap(), "--"];
        all.extend(words);
        let output = self.debox(&all).output().unwrap();
        let report = std::fs::read_to_string(&file).unwrap();
        (output, serde_json::from_str(&report).unwrap())
    }
}

fn count(report: &Value, call: &str) -> u64 {
    let rows = report["calls"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == call);
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

#[test]
fn calls_of_children_and_of_what_they_become_are_counted() {
    let place = Place::new();
    let script = "import os; [os.getppid() for _ in range(1000)]; os.execv('/bin/sh', ['sh', '-c', 'true; exec true'])";
    let (output, report) =
        place.report(&["sh", "-c", "/usr/bin/python3 -c \"$0\"; exec true", script]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["run"]["capture"], "splice");
    // sh is one: it forks the first, then becomes true.
    assert_eq!(count(&report, "getppid") / 1000, 1, "{report}");
    assert!(count(&report, "execve") >= 4, "{report}");
    assert_eq!(report["measured"]["blocked"], is_root());
    assert_eq!(report["measured"]["minor_faults"], false);
    let notes = report["notes"].as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["kind"] != "splice_left"),
        "{notes:?}"
    );
}

fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// No hook at any call, and yet it is known which call slept, and how much was own code.
#[test]
fn the_kernel_side_knows_the_calls() {
    if !is_root() {
        eprintln!("NOT RUN: needs root");
        return;
    }
    let place = Place::new();
    let script = "import os, threading, time\n\
        def calls():\n  for _ in range(300000): os.getppid()\n\
        def asleep():\n  for _ in range(4): time.sleep(0.05)\n\
        t = threading.Thread(target=asleep)\n\
        t.start(); t.join(); calls()\n\
        if os.fork() == 0:\n  asleep(); os._exit(0)\n\
        os.wait()\n\
        end = time.thread_time() + 0.2\n\
        while time.thread_time() < end: sum(range(10000))\n";
    let (output, report) = place.report(&["/usr/bin/python3", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let row = |name: &str| {
        let rows = report["calls"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()
    };
    let ns = |value: &Value| value.as_u64().unwrap();
    let slept = row("clock_nanosleep");
    assert_eq!(ns(&slept["count"]), 8, "{slept}");
    assert!(ns(&slept["blocked_ns"]) >= 400_000_000, "{slept}");
    for row in report["calls"].as_array().unwrap() {
        let (wall, blocked) = (ns(&row["wall_ns"]), row["blocked_ns"].as_u64().unwrap_or(0));
        // Of an execve that succeeds nobody knows the end.
        assert!(
            blocked <= wall + 1_000_000 || row["name"] == "execve",
            "{row}"
        );
    }
    // The same time in calls, as the program counted it and as threads' lives have it.
    let counted: u64 = (report["calls"].as_array().unwrap().iter())
        .map(|row| row["cpu_ns"].as_u64().unwrap_or(0))
        .sum();
    let lives = report["lives"].as_array().unwrap();
    let of = |part: &str| lives.iter().map(|life| ns(&life[part])).sum::<u64>();
    let (calls, own) = (of("calls_ns"), of("own_ns"));
    assert!(
        calls.abs_diff(counted) < counted / 5 + 10_000_000,
        "{calls} {counted}"
    );
    // The loop of sums, and what of the loop of calls is Python's.
    assert!(own >= 150_000_000, "{own}");
    let path = &report["critical_path"];
    let parts = path["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| ns(&part["total_ns"])).sum();
    assert!(sum.abs_diff(ns(&path["total_ns"])) < 1_000_000, "{path}");
    let labels = report["blocking"].as_array().unwrap();
    let asleep = labels
        .iter()
        .find(|row| row["label"] == "nanosleep")
        .unwrap();
    assert_eq!(asleep["call"], "clock_nanosleep");
    let notes = report["notes"].as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["kind"] != "inconsistent"),
        "{notes:?}"
    );
}

#[test]
fn the_end_of_the_command_is_deboxs_own() {
    let place = Place::new();
    let status = |words: &[&str]| place.debox(words).output().unwrap().status;
    assert_eq!(status(&["--", "sh", "-c", "exit 7"]).code(), Some(7));
    assert_eq!(
        status(&["--", "sh", "-c", "kill -TERM $$"]).signal(),
        Some(libc::SIGTERM)
    );
    assert_eq!(status(&["--", "nonexistent-program"]).code(), Some(127));
    assert_eq!(status(&["--", "/etc/passwd"]).code(), Some(126));
    assert_eq!(status(&["--stacks", "--", "true"]).code(), Some(2));
    assert_eq!(status(&["-o", "x.debox", "--", "true"]).code(), Some(2));
}

/// Again and again: who waits for the command must not take what its tracer is to be told.
#[test]
fn a_command_that_becomes_others_does_not_hang() {
    let place = Place::new();
    // Without a broker: it would be loaded anew each time.
    if is_root() {
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for _ in 0..50 {
        let mut command = place.debox(&["-d", "20s", "--", "sh", "-c", "exec sh -c 'exec true'"]);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// An execve that fails after somebody came along: a file that is no program.
#[test]
fn an_execve_that_fails_goes_on() {
    let place = Place::new();
    let script = "import os\nfor _ in range(20):\n  try: os.execv('/etc/passwd', ['x'])\n  except OSError: pass\n\
                  open('/proc/self/status').read().index('TracerPid:\\t0')";
    let file = place.0.path().join("not-a-program");
    std::fs::write(&file, b"\x7fELF nothing").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.replace("/etc/passwd", file.to_str().unwrap());
    let (output, report) = place.report(&["/usr/bin/python3", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let rows = report["calls"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "execve").unwrap();
    assert_eq!(
        (row["count"].as_u64(), row["errors"].as_u64()),
        (Some(20), Some(20)),
        "{row}"
    );
}

/// Killed on its way to its first instruction: its parent has to be told all the same.
#[test]
fn a_child_that_is_killed_as_it_begins_is_waited_for() {
    let place = Place::new();
    let script = "import subprocess, time\n\
        for i in range(60):\n  \
          p = subprocess.Popen(['/bin/sleep', '9'])\n  \
          time.sleep(i * 0.00005)\n  \
          p.kill()\n  \
          assert p.wait() == -9\n";
    let words = ["-d", "30s", "--", "/usr/bin/python3", "-c", script];
    let output = place.debox(&words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn whoever_has_no_privileges_may_too() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    if !Path::new("/usr/bin/su").exists() {
        eprintln!("NOT RUN: needs su");
        return;
    }
    let mut command = place.debox(&["--", "sh", "-c", "ls /; /usr/bin/su --version"]);
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("getdents64"),
        "{said}"
    );
    // set-user-id: it keeps its rights, and is not counted.
    assert!(said.contains("calls of 1 program are missing"), "{said}");
}
