// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox bench` work as a command: with and without privileges, to its
//! end and interrupted, and does it leave nothing behind?
//!
//! What its numbers say is tested in crates/bench.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

const DEBOX: &str = env!("CARGO_BIN_EXE_debox");

/// One at a time: they would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run(command: &mut Command) -> (i32, String, String) {
    let out = command.stdin(Stdio::null()).output().unwrap();
    (
        out.status.code().unwrap_or(-1),
        String::from_utf8(out.stdout).unwrap(),
        String::from_utf8(out.stderr).unwrap(),
    )
}

fn row<'a>(document: &'a Value, id: &str) -> &'a Value {
    document["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["id"] == id)
        .unwrap_or_else(|| panic!("no {id}"))
}

/// Processes that have `mark` in their environment.
fn marked(mark: &str) -> Vec<u32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| String::from_utf8_lossy(&env).contains(mark))
        })
        .collect()
}

fn wait_until_gone(mark: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while !marked(mark).is_empty() {
        assert!(Instant::now() < until, "processes stay: {:?}", marked(mark));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn os_measures_shows_and_compares() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (json, html) = (dir.path().join("a.json"), dir.path().join("a.html"));
    let (status, text, errors) = run(Command::new(DEBOX)
        .args([
            "bench",
            "os",
            "--quick",
            "--rounds",
            "2",
            "--only",
            "trivial,switches",
            "--json",
        ])
        .arg(&json)
        .arg("--html")
        .arg(&html));
    assert_eq!(status, 0, "{errors}");
    for word in ["getpid", "Context switches", "pipe", "95%"] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
    let document: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(document["schema"], "debox.bench");
    // Every case has a number or a reason.
    for r in document["results"].as_array().unwrap() {
        assert!(r["summary"].is_null() != r["missing"].is_null(), "{r}");
    }
    assert_eq!(
        row(&document, "trivial/getpid")["summary"]["medians"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    // As root there are accounts, and a round trip sleeps.
    let account = &row(&document, "switch/pipe/same")["account"];
    assert!(account["cpu_ns"].as_f64().unwrap() > 0.0, "{account}");
    assert!(!document["derived"].as_array().unwrap().is_empty());
    assert!(document["machine"]["facts"]["kernel"].is_string());

    let page = std::fs::read_to_string(&html).unwrap();
    for forbidden in ["http://", "https://", "src=", "@import", "<script"] {
        assert!(!page.contains(forbidden), "the page has {forbidden}");
    }
    for tag in ["section", "table", "svg", "figure", "ul", "tr", "details"] {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(
            open,
            page.matches(&format!("</{tag}>")).count(),
            "{tag} is not closed"
        );
    }

    // With itself: no difference. With one twice as fast in one case: that one.
    let compare = |other: &Path| {
        let (status, out, errors) = run(Command::new(DEBOX)
            .args(["bench", "os", "--json", "--load"])
            .arg(&json)
            .arg("--compare")
            .arg(other));
        assert_eq!(status, 0, "{errors}");
        serde_json::from_str::<Value>(&out).unwrap()["comparison"]["rows"].clone()
    };
    let differing = |rows: &Value| -> Vec<String> {
        rows.as_array()
            .unwrap()
            .iter()
            .filter(|r| r["comparison"]["difference"] != "not_distinguishable")
            .map(|r| r["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(differing(&compare(&json)).is_empty());
    let mut six = document.clone();
    for r in six["results"].as_array_mut().unwrap() {
        if r["summary"].is_object() {
            r["summary"]["medians"] = serde_json::json!([100.0, 101.0, 99.0, 100.5, 100.2, 99.7]);
        }
    }
    std::fs::write(&json, six.to_string()).unwrap();
    let other = dir.path().join("b.json");
    for r in six["results"].as_array_mut().unwrap() {
        if r["id"] == "trivial/getpid" {
            r["summary"]["medians"] = serde_json::json!([50.0, 51.0, 49.0, 50.5, 50.2, 49.7]);
        }
    }
    std::fs::write(&other, six.to_string()).unwrap();
    let rows = compare(&other);
    assert_eq!(differing(&rows), ["trivial/getpid"]);
    let (_, text, _) = run(Command::new(DEBOX)
        .args(["bench", "os", "--load"])
        .arg(&json)
        .arg("--compare")
        .arg(&other));
    assert!(text.contains("slower"), "{text}");

    let wrong = dir.path().join("wrong.json");
    std::fs::write(&wrong, "{\"schema\": \"debox.report\"}").unwrap();
    let (status, _, errors) = run(Command::new(DEBOX)
        .args(["bench", "os", "--load"])
        .arg(&wrong));
    assert_eq!(status, 125);
    assert!(
        errors.contains("debox.report") && errors.contains("debox.bench"),
        "{errors}"
    );
}

#[test]
fn os_needs_no_privilege() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = dir.path().join("debox");
    std::fs::copy(DEBOX, &copy).unwrap();
    let (status, out, errors) = run(Command::new(&copy)
        .args([
            "bench",
            "os",
            "--quick",
            "--rounds",
            "2",
            "--only",
            "trivial,faults",
            "--json",
        ])
        .env("TMPDIR", dir.path())
        .env_remove("DEBOX_SOCKET")
        .current_dir(dir.path())
        .uid(65534)
        .gid(65534));
    assert_eq!(status, 0, "{errors}");
    let document: Value = serde_json::from_str(&out).unwrap();
    for id in ["trivial/getpid", "fault/zero-fill", "fault/file-mapped"] {
        assert!(
            row(&document, id)["summary"].is_object(),
            "{id}: {}",
            row(&document, id)
        );
    }
    let notes = document["notes"].to_string();
    assert!(notes.contains("no accounts by DeBox"), "{notes}");
    std::fs::remove_file(&copy).unwrap();
    assert!(empty(dir.path()), "something was left behind");

    let (status, _, errors) = run(Command::new(DEBOX).args(["bench", "os", "--cpu", "9999"]));
    assert_eq!(status, 2);
    assert!(errors.contains("9999"), "{errors}");
}

#[test]
fn an_interruption_leaves_nothing_behind() {
    let _alone = alone();
    for (signal, arguments) in [
        (
            libc::SIGINT,
            &["bench", "os", "--only", "switches,reads"][..],
        ),
        (libc::SIGKILL, &["bench", "os", "--only", "switches"]),
        (libc::SIGTERM, &["bench", "self", "--quick"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("DEBOX_BENCH_TEST={}-{signal}", std::process::id());
        let (key, value) = mark.split_once('=').unwrap();
        let mut child = Command::new(DEBOX)
            .args(arguments)
            .env(key, value)
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Until a process of its own has processes of its own: in the middle.
        let until = Instant::now() + Duration::from_secs(60);
        while marked(&mark).len() < 3 {
            assert!(Instant::now() < until, "nothing was started");
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: our own child, not reaped.
        unsafe { libc::kill(child.id() as i32, signal) };
        let ended = child.wait().unwrap();
        if signal != libc::SIGKILL {
            assert_eq!(ended.code(), Some(130), "{signal}: {ended}");
        }
        wait_until_gone(&mark);
        assert!(
            empty(dir.path()),
            "files were left behind after signal {signal}"
        );
    }
}

#[test]
fn self_compares_debox_with_others() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let readme = dir.path().join("README.md");
    std::fs::write(
        &readme,
        "before\n<!-- debox bench self: begin -->\n<!-- debox bench self: end -->\nafter\n",
    )
    .unwrap();
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let (status, out, errors) = run(Command::new(DEBOX)
        .args([
            "bench",
            "self",
            "--quick",
            "--rounds",
            "2",
            "--only",
            "calls,peers",
            "--json",
        ])
        .arg("--markdown")
        .arg(&readme)
        .env("TMPDIR", &temporary));
    assert_eq!(status, 0, "{errors}");
    assert!(empty(&temporary), "something was left behind");
    let document: Value = serde_json::from_str(&out).unwrap();
    let grid = &document["self_cost"]["calls"];
    let way = |id: &str| {
        grid["ways"]
            .as_array()
            .unwrap()
            .iter()
            .position(|w| w["id"] == id)
            .unwrap() as u64
    };
    let median = |id: &str, row: u64| {
        grid["cells"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["way"] == way(id) && c["row"] == row)
            .unwrap_or_else(|| panic!("{id}: {}", grid["ways"][way(id) as usize]["missing"]))["min"]
            .as_f64()
            .unwrap()
    };
    // strace stops the program twice at every call, and that is more than
    // anything that does not: true of any machine.
    assert!(median("strace-c", 0) > 3.0 * median("bare", 0));
    assert!(median("strace-c", 0) > median("run", 0));
    for id in [
        "again",
        "broker",
        "bracket",
        "other-wrap",
        "other-boundary",
        "run-wrap",
        "getrusage",
    ] {
        assert!(median(id, 0) > 0.0);
    }
    let text = std::fs::read_to_string(&readme).unwrap();
    assert!(text.starts_with("before\n") && text.ends_with("after\n"));
    assert!(
        text.contains("| getpid |") && text.contains("strace -c"),
        "{text}"
    );
}
