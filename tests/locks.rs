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

/// A long sleep of the thread named "waiter".
struct Slept {
    sleep: Value,
    label: String,
    /// In which call.
    call: String,
}

/// All of them, the longest last.
fn sleeps(report: &Value) -> Vec<Slept> {
    let calls = report["slow_calls"].as_array().expect("slow calls");
    let mut sleeps = vec![];
    for call in calls.iter().filter(|call| call["comm"] == "waiter") {
        for sleep in call["sleeps"].as_array().unwrap() {
            let label = sleep["site"]
                .as_u64()
                .and_then(|site| report["sites"][site as usize]["label"].as_str());
            sleeps.push(Slept {
                sleep: sleep.clone(),
                label: label.unwrap_or_default().to_owned(),
                call: call["call"].as_str().unwrap_or_default().to_owned(),
            });
        }
    }
    sleeps.retain(|slept| number(&slept.sleep, "blocked_ns") > 20 * MS);
    sleeps.sort_by_key(|slept| number(&slept.sleep, "blocked_ns"));
    sleeps
}

/// The longest; one in `call` before all others. (A file system may let the waiter wait
/// elsewhere, in the calls before.)
#[track_caller]
fn slept(recording: &Path, call: Option<&str>) -> Option<Slept> {
    let mut all = sleeps(&report(recording));
    all.sort_by_key(|slept| call == Some(&slept.call));
    all.pop()
}

#[track_caller]
fn report(recording: &Path) -> Value {
    let output = Command::new(debox())
        .args(["report", "--json"])
        .arg(recording)
        .output()
        .expect("debox runs");
    serde_json::from_slice(&output.stdout).expect("a report")
}

#[track_caller]
fn watched(arguments: &[&str], program_name: &str, call: Option<&str>) -> (Slept, String) {
    let (directory, said) = recorded(arguments, program_name);
    let slept = slept(&directory.path().join(RECORDING), call);
    (slept.expect("the waiter waits"), said)
}

const RECORDING: &str = "run.debox";

/// The directory has the recording; what the program said.
#[track_caller]
fn recorded(arguments: &[&str], program_name: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let broker = shared_broker();
    let output = Command::new(debox())
        .current_dir("/")
        .args(["run", "--capture=boundary", "--socket"])
        .arg(broker.socket())
        .arg("-o")
        .arg(directory.path().join(RECORDING))
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
    (directory, said)
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
    waits_in: &'static str,
    /// The call in which the holder is; none: there is no holder to be known.
    held_in: Option<&'static str>,
}

const CASES: [Case; 9] = [
    Case {
        kind: "flock",
        label: "flock",
        waits_in: "flock",
        held_in: Some("read"),
    },
    Case {
        kind: "flock-shared",
        label: "flock",
        waits_in: "flock",
        held_in: Some("read"),
    },
    Case {
        kind: "posix",
        label: "posix-lock",
        waits_in: "fcntl",
        held_in: Some("read"),
    },
    Case {
        kind: "ofd",
        label: "posix-lock",
        waits_in: "fcntl",
        held_in: Some("read"),
    },
    Case {
        kind: "lease",
        label: "lease-break",
        waits_in: "openat",
        held_in: Some("read"),
    },
    Case {
        kind: "inode",
        label: "inode-lock",
        waits_in: "write",
        held_in: Some("write"),
    },
    Case {
        kind: "pipe-mutex",
        label: "pipe-lock",
        waits_in: "openat",
        held_in: Some("write"),
    },
    Case {
        kind: "pipe",
        label: "pipe-read",
        waits_in: "read",
        held_in: None,
    },
    Case {
        kind: "shared-mutex",
        label: "futex",
        waits_in: "futex",
        held_in: Some("read"),
    },
];

/// Where a wait's stack could not be read it has no label, and says so: then once more.
#[track_caller]
fn behind(case: &Case, others: u32) {
    assert!(
        (0..3).any(|_| is_behind(case, others)),
        "{}: a wait without a label, three times",
        case.kind
    );
}

#[track_caller]
fn is_behind(case: &Case, others: u32) -> bool {
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
        let waited = watched(
            &["wait", case.kind, file.to_str().unwrap()],
            "locks",
            Some(case.waits_in),
        )
        .0;
        (waited, looks.join().unwrap())
    });
    let (Slept { sleep, label, .. }, threads) = own;
    assert!(holding.child.wait().expect("it ends").success());
    if label == "(unknown)" {
        return false;
    }
    assert_eq!(label, case.label, "{}: {sleep}", case.kind);
    assert_eq!(
        sleep["waiters_entry"], others,
        "{}: {others} others waited: {sleep}",
        case.kind
    );
    let holder = &sleep["holder"];
    let Some(call) = case.held_in else {
        assert!(holder.is_null(), "{}: {sleep}", case.kind);
        return true;
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
    true
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
    let (Slept { sleep, label, .. }, _) = watched(
        &["wait", "flock", file.to_str().unwrap()],
        "locks",
        Some("flock"),
    );
    assert!(shell.wait().unwrap().success());
    assert_eq!(label, "flock", "{sleep}");
    assert_eq!(sleep["holder"]["comm"], "(gone)", "{sleep}");
    assert!(sleep["holder"]["call"].is_null(), "{sleep}");
}

#[track_caller]
fn user(kind: &str, program_name: &str) -> (Slept, Value) {
    // On a busy machine the owner may have let go before anybody waits.
    let tries = (0..3).find_map(|_| {
        let (directory, said) = recorded(&["user", kind], program_name);
        Some((slept(&directory.path().join(RECORDING), None)?, said))
    });
    let (slept, said) = tries.unwrap_or_else(|| panic!("{kind}: the waiter did not wait"));
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

/// The address space's lock, and in which call its holder keeps it: OWNER-WAITER of
/// `locks space`. Of readers the kernel keeps the last one, which may be debox as it reads
/// the program's memory.
const SPACES: [(&str, &str, &str, bool); 6] = [
    ("mprotect-mmap", "mprotect", "mmap", false),
    ("mprotect-fault", "mprotect", "write", false),
    ("mprotect-mincore", "mprotect", "mincore", false),
    ("munmap-mmap", "munmap", "mmap", true),
    ("populate-mmap", "mmap", "mmap", true),
    ("smaps-mmap", "read", "mmap", true),
];

/// What holders did while somebody waited in `call`.
fn held_links<'a>(report: &'a Value, call: &str) -> Vec<&'a Value> {
    let links = report["chain_links"].as_array().expect("links");
    links
        .iter()
        .filter(|link| link["held"] == true && link["call"] == call)
        .filter_map(|link| links.get(link["parent"].as_u64()? as usize))
        .collect()
}

/// It ran in that call. Where the past is not known so far back, the call is.
fn is_of_call(link: &Value, call: &str) -> bool {
    matches!(link["kind"].as_str(), Some("ran_call" | "earlier")) && link["call"] == call
}

#[test]
fn the_call_that_holds_the_address_space_is_named() {
    if !bpf_wanted() {
        return;
    }
    for (kind, held_in, waits_in, reader) in SPACES {
        let mut tries = 0..5;
        let (report, said, waits) = loop {
            let (directory, said) = recorded(&["space", kind], "locks");
            let report = report(&directory.path().join(RECORDING));
            let said: Value = serde_json::from_str(&said).expect("what it says of itself");
            let mut waits = sleeps(&report);
            waits.retain(|slept| {
                // debox reads the program's memory, and keeps it waiting as well.
                let of_debox =
                    |who: &Value| who["comm"].as_str().is_some_and(|c| c.starts_with("debox"));
                slept.label == "mmap-lock" && !of_debox(&slept.sleep["waker"])
            });
            // debox, as it reads the program's memory, may wait for the same lock. And what
            // the owner did just before the wait may be taken for a part of it, as long as
            // that is less than a thirtieth.
            let alone = |slept: &Slept| slept.sleep["waiters_entry"] == 0;
            let exact = held_links(&report, waits_in)
                .iter()
                .all(|link| link["kind"] == "runq" || is_of_call(link, held_in));
            if waits.iter().all(alone) && exact || tries.next().is_none() {
                break (report, said, waits);
            }
        };
        assert!(
            !waits.is_empty(),
            "{kind}: no wait of {said}: {:#}",
            report["slow_calls"]
        );
        let mut named = 0;
        for Slept { sleep, call, .. } in &waits {
            let holder = &sleep["holder"];
            assert_eq!(call, waits_in, "{kind}: {sleep}");
            assert_eq!(sleep["waker"]["tid"], said["owner"], "{kind}: {sleep}");
            assert_eq!(sleep["waker"]["call"], held_in, "{kind}: {sleep}");
            assert_eq!(sleep["waiters_entry"], 0, "{kind}: {sleep}");
            // Somebody else was the last reader, and has gone on.
            if reader && holder.is_null() {
                continue;
            }
            named += 1;
            assert_eq!(holder["tid"], said["owner"], "{kind}: {sleep}");
            assert_eq!(holder["comm"], "owner", "{kind}: {sleep}");
            assert_eq!(holder["call"], held_in, "{kind}: {sleep}");
            assert_eq!(holder["reader"], reader, "{kind}: {sleep}");
        }
        assert!(named > 0, "{kind}: the holder is in no sleep: {said}");
        // And what the holder did meanwhile is told of that call, and of no other.
        let held = held_links(&report, waits_in);
        let of_it = |link: &&&Value| is_of_call(link, held_in);
        assert!(held.iter().any(|link| of_it(&link)), "{kind}: {held:#?}");
        for link in held.iter().filter(|link| link["kind"] != "runq") {
            assert!(of_it(&link), "{kind}: {link}");
        }
    }
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
    let Slept { sleep, .. } = slept(&recording, None).expect("the waiter waits");
    assert!(sleep["holder"].is_null(), "{sleep}");
}
