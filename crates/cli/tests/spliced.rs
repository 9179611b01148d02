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
    assert_eq!(report["measured"]["blocked"], false);
    let notes = report["notes"].as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["kind"] != "splice_left"),
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
    for _ in 0..50 {
        let output = place
            .debox(&["-d", "20s", "--", "sh", "-c", "exec sh -c 'exec true'"])
            .output()
            .unwrap();
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
