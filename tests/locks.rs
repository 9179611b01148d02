// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who holds what is waited for, in which call, and how many others wait for it?
//!
//! tests/truth/locks.c makes waits of which that is known. Holders and other waiters are
//! not watched where they are other processes.

use debox_tests::*;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MS: u64 = 1_000_000;

/// The one long sleep of the thread named "waiter", with its label.
struct Slept {
    sleep: Value,
    label: String,
}

#[track_caller]
fn slept(recording: &Path) -> Slept {
    let output = Command::new(debox())
        .args(["report", "--json"])
        .arg(recording)
        .output()
        .expect("debox runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let calls = report["slow_calls"].as_array().expect("slow calls");
    let mut sleeps: Vec<&Value> = calls
        .iter()
        .filter(|call| call["comm"] == "waiter")
        .flat_map(|call| call["sleeps"].as_array().unwrap())
        .filter(|sleep| number(sleep, "blocked_ns") > 20 * MS)
        .collect();
    sleeps.sort_by_key(|sleep| number(sleep, "blocked_ns"));
    let sleep = sleeps.pop().unwrap_or_else(|| {
        panic!("the waiter did not wait: {calls:#?}");
    });
    let label = sleep["site"]
        .as_u64()
        .and_then(|site| report["sites"][site as usize]["label"].as_str());
    Slept {
        sleep: sleep.clone(),
        label: label.unwrap_or_default().to_owned(),
    }
}

#[track_caller]
fn watched(arguments: &[&str], program_name: &str) -> (Slept, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let recording = directory.path().join("run.debox");
    let broker = shared_broker();
    let output = Command::new(debox())
        .current_dir("/")
        .args(["run", "--socket"])
        .arg(broker.socket())
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(program(program_name))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("debox runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    (slept(&recording), said)
}

struct Holding {
    child: Child,
    pid: u64,
}

/// `others` processes wait for what a further one holds; none is watched.
fn holding(kind: &str, file: &Path, others: u32) -> Holding {
    let mut child = Command::new(program("locks"))
        .args(["hold", kind])
        .arg(file)
        .arg(others.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("locks runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output"))
        .read_line(&mut line)
        .expect("a line");
    let pid = line
        .strip_prefix("ready ")
        .and_then(|pid| pid.trim().parse().ok());
    let pid = pid.unwrap_or_else(|| panic!("{kind}: the holder said {line:?}"));
    Holding { child, pid }
}

/// Of the process, or of one of its threads.
fn is_of(tid: u64, pid: u64) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// What must be known of a wait behind another process.
struct Case {
    kind: &'static str,
    label: &'static str,
    /// The call in which the holder is; none: there is no holder to be known.
    held_in: Option<&'static str>,
}

const CASES: [Case; 9] = [
    Case {
        kind: "flock",
        label: "flock",
        held_in: Some("read"),
    },
    Case {
        kind: "flock-shared",
        label: "flock",
        held_in: Some("read"),
    },
    Case {
        kind: "posix",
        label: "posix-lock",
        held_in: Some("read"),
    },
    Case {
        kind: "ofd",
        label: "posix-lock",
        held_in: Some("read"),
    },
    Case {
        kind: "lease",
        label: "lease-break",
        held_in: Some("read"),
    },
    Case {
        kind: "inode",
        label: "inode-lock",
        held_in: Some("write"),
    },
    Case {
        kind: "pipe-mutex",
        label: "pipe-lock",
        held_in: Some("write"),
    },
    Case {
        kind: "pipe",
        label: "pipe-read",
        held_in: None,
    },
    Case {
        kind: "shared-mutex",
        label: "futex",
        held_in: Some("read"),
    },
];

#[track_caller]
fn behind(case: &Case, others: u32) {
    let directory = tempfile::Builder::new()
        .prefix("debox-locks-")
        .tempdir_in("/var/tmp")
        .expect("a directory");
    let file = directory.path().join("f");
    let mut holding = holding(case.kind, &file, others);
    let listed = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // The holder ends when the waiter has waited: asked for before that.
    let own = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut threads: Vec<u64> = vec![];
            while is_of(holding.pid, holding.pid) && holding.child.try_wait().unwrap().is_none() {
                let tasks = std::fs::read_dir(format!("/proc/{}/task", holding.pid));
                for task in tasks.into_iter().flatten().flatten() {
                    threads.extend(
                        task.file_name()
                            .to_str()
                            .and_then(|n| n.parse::<u64>().ok()),
                    );
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            threads
        });
        let waited = watched(&["wait", case.kind, file.to_str().unwrap()], "locks").0;
        (waited, looks.join().unwrap())
    });
    let (Slept { sleep, label }, threads) = own;
    assert!(holding.child.wait().expect("it ends").success());
    assert_eq!(label, case.label, "{}: {sleep}", case.kind);
    assert_eq!(
        sleep["waiters_entry"], others,
        "{}: {others} others waited: {sleep}",
        case.kind
    );
    let holder = &sleep["holder"];
    let Some(call) = case.held_in else {
        assert!(holder.is_null(), "{}: {sleep}", case.kind);
        return;
    };
    assert_eq!(holder["comm"], "holder", "{}: {sleep}", case.kind);
    assert!(
        threads.contains(&number(holder, "tid")),
        "{}: not of {threads:?}: {sleep}",
        case.kind
    );
    assert_eq!(holder["call"], call, "{}: {sleep}", case.kind);
    if matches!(case.kind, "flock" | "flock-shared" | "posix") {
        let kind = if case.kind == "posix" {
            "POSIX"
        } else {
            "FLOCK"
        };
        let pid = number(holder, "tid").to_string();
        assert!(
            listed.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.get(1) == Some(&kind) && words.get(4) == Some(&pid.as_str())
            }),
            "{}: /proc/locks knows no {kind} lock of {pid}:\n{listed}",
            case.kind
        );
    }
}

#[test]
fn three_others_who_are_not_watched_are_counted_as_three() {
    if !bpf_wanted() {
        return;
    }
    for case in &CASES {
        behind(case, 3);
    }
}

#[test]
fn nobody_else_is_counted_as_nobody() {
    if !bpf_wanted() {
        return;
    }
    for case in &CASES {
        behind(case, 0);
    }
}

/// A lock that was left to a child: who took it has gone, and is not named.
#[test]
fn who_took_a_lock_and_is_gone_is_not_named() {
    if !bpf_wanted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("f");
    let script = r#"exec 9>"$0"; flock 9; echo ready; while ! [ -e "$0.waiter" ]; do sleep 0.05; done; sleep 0.5"#;
    let mut shell = Command::new("bash")
        .args(["-c", script])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (Slept { sleep, label }, _) = watched(&["wait", "flock", file.to_str().unwrap()], "locks");
    assert!(shell.wait().unwrap().success());
    assert_eq!(label, "flock", "{sleep}");
    assert_eq!(sleep["holder"]["comm"], "(gone)", "{sleep}");
    assert!(sleep["holder"]["call"].is_null(), "{sleep}");
}

#[track_caller]
fn user(kind: &str, program_name: &str) -> (Slept, Value) {
    let (slept, said) = watched(&["user", kind], program_name);
    let said = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{kind}: {e}: {said}"));
    (slept, said)
}

#[track_caller]
fn owned(kind: &str, program_name: &str) {
    let (Slept { sleep, .. }, said) = user(kind, program_name);
    let holder = &sleep["holder"];
    assert_eq!(
        holder["tid"], said["owner"],
        "{program_name} {kind}: {sleep}"
    );
    assert_eq!(holder["comm"], "owner", "{program_name} {kind}: {sleep}");
    assert_eq!(holder["call"], "read", "{program_name} {kind}: {sleep}");
    assert_eq!(sleep["waiters_entry"], 0, "{program_name} {kind}: {sleep}");
    assert_eq!(
        sleep["waker"]["comm"], "owner",
        "{program_name} {kind}: {sleep}"
    );
}

#[track_caller]
fn unowned(kind: &str, program_name: &str) {
    let (Slept { sleep, .. }, _) = user(kind, program_name);
    assert!(sleep["holder"].is_null(), "{program_name} {kind}: {sleep}");
    assert_eq!(sleep["waiters_entry"], 0, "{program_name} {kind}: {sleep}");
}

#[test]
fn the_owner_of_a_mutex_is_named() {
    if !bpf_wanted() {
        return;
    }
    for kind in [
        "normal",
        "recursive",
        "errorcheck",
        "adaptive",
        "timed",
        "shared",
        "robust",
        "robust-shared",
        "pi",
        "pi-robust",
    ] {
        owned(kind, "locks");
    }
}

#[test]
fn the_writer_of_a_rwlock_is_named() {
    if !bpf_wanted() {
        return;
    }
    for kind in ["rw-read", "rw-write", "rw-read-prefer", "rw-write-prefer"] {
        owned(kind, "locks");
    }
    unowned("rw-behind-reader", "locks");
}

/// musl's normal mutex and its rwlock keep no owner.
#[test]
fn musl_has_owners_too() {
    if !bpf_wanted() {
        return;
    }
    for kind in ["recursive", "errorcheck", "robust", "robust-shared", "pi"] {
        owned(kind, "locks-musl");
    }
    for kind in [
        "normal",
        "timed",
        "rw-read",
        "rw-write",
        "semaphore",
        "condition",
    ] {
        unowned(kind, "locks-musl");
    }
}

#[test]
fn what_is_no_lock_has_no_owner() {
    if !bpf_wanted() {
        return;
    }
    for kind in ["condition", "semaphore", "barrier", "join", "stdio"] {
        unowned(kind, "locks");
    }
}

/// Words of a program's own that look like a lock, but for one thing each.
#[test]
fn what_only_looks_like_a_lock_has_no_owner() {
    if !bpf_wanted() {
        return;
    }
    for kind in [
        "raw-zeros",
        "raw-depth",
        "raw-users",
        "raw-kind",
        "raw-garbage",
        "raw-dead",
        "raw-stranger",
        "raw-rust",
    ] {
        unowned(kind, "locks");
    }
}

/// Whoever locks twice waits for itself, and is told so.
#[test]
fn an_owner_that_is_the_waiter() {
    if !bpf_wanted() {
        return;
    }
    let (Slept { sleep, .. }, said) = user("raw-itself", "locks");
    assert_eq!(sleep["holder"]["tid"], said["waiter"], "{sleep}");
}

/// More than are counted.
#[test]
fn a_crowd_of_five_hundred() {
    if !bpf_wanted() {
        return;
    }
    let (Slept { sleep, .. }, said) = user("crowd", "locks");
    assert_eq!(sleep["holder"]["tid"], said["owner"], "{sleep}");
    assert_eq!(sleep["waiters_entry"], 64, "{sleep}");
}

/// A program that writes another user's process number into a lock of its own, and has
/// itself watched, is told nothing of that process.
#[test]
fn a_stranger_that_is_claimed_to_be_the_owner() {
    if !bpf_wanted() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let recording = directory.path().join("run.debox");
    let output = Command::new(debox())
        .current_dir("/")
        .arg("run")
        .arg("-o")
        .arg(&recording)
        .arg("--socket")
        .arg(shared_broker().socket())
        .args(["--", "setpriv", "--reuid", "65534", "--"])
        .arg(program("locks"))
        .args(["user", "raw-shared-stranger"])
        .stdin(Stdio::null())
        .output()
        .expect("debox runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let Slept { sleep, .. } = slept(&recording);
    assert!(sleep["holder"].is_null(), "{sleep}");
}
