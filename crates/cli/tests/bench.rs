// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox bench` work as a command: with and without privileges, to its
//! end and interrupted, and does it leave nothing behind?
//!
//! What its numbers say is tested in crates/bench.

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
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
            "-o",
        ])
        .arg(&json)
        .arg("--html")
        .arg(&html));
    assert_eq!((status, text.as_str()), (0, ""), "{errors}");
    let (status, text, errors) = run(Command::new(DEBOX)
        .args(["bench", "os", "--load"])
        .arg(&json));
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

    // Each chart as a file, in the page's order.
    let figures = dir.path().join("figures");
    let (status, _, errors) = run(Command::new(DEBOX)
        .args(["bench", "os", "--load"])
        .arg(&json)
        .arg("--figures")
        .arg(&figures));
    assert_eq!(status, 0, "{errors}");
    let mut files: Vec<_> = std::fs::read_dir(&figures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let captions: Vec<&str> = page
        .split("<figcaption>")
        .skip(1)
        .map(|rest| rest.split("</figcaption>").next().unwrap())
        .collect();
    assert!(
        !captions.is_empty() && captions.len() == files.len(),
        "{files:?}"
    );
    for (file, caption) in files.iter().zip(captions) {
        let svg = std::fs::read_to_string(file).unwrap();
        assert!(
            svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"),
            "{file:?}: {svg}"
        );
        assert!(
            svg.contains(&format!(">{caption}</text>")),
            "{file:?}: no {caption}"
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
        .args(["bench", "os", "--quick", "--rounds", "2", "--json"])
        .env("TMPDIR", dir.path())
        .env_remove("DEBOX_SOCKET")
        .current_dir(dir.path())
        .uid(65534)
        .gid(65534));
    assert_eq!(status, 0, "{errors}");
    let document: Value = serde_json::from_str(&out).unwrap();
    assert!(document["clocks"]["choice"].is_object());
    // Something of every suite.
    for id in [
        "trivial/getpid",
        "switch/pipe/same",
        "switch/futex/same",
        "fault/zero-fill",
        "fault/file-mapped",
        "read/warm/read/4096",
        "read/warm/mmap/65536",
        "read/cold/read/65536",
        "descriptor/open/10",
        "descriptor/accept/10",
        "wait/epoll/100",
    ] {
        assert!(
            row(&document, id)["summary"].is_object(),
            "{id}: {}",
            row(&document, id)
        );
    }
    // What there is not has a reason.
    for r in document["results"].as_array().unwrap() {
        assert!(r["summary"].is_null() != r["missing"].is_null(), "{r}");
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
        (
            libc::SIGTERM,
            &["bench", "select", "--only", "plain select server, no idle"],
        ),
        (libc::SIGTERM, &["bench", "self", "--quick"]),
        (
            libc::SIGTERM,
            &[
                "bench",
                "self",
                "--only",
                "macro,nginx",
                "--programs",
                "redis,fio,storm",
            ],
        ),
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
            assert_eq!(ended.signal(), Some(signal), "{ended}");
        }
        wait_until_gone(&mark);
        assert!(
            empty(dir.path()),
            "files were left behind after signal {signal}"
        );
    }
}

/// A grid of `bench self`.
struct Grid<'a>(&'a Value);

impl Grid<'_> {
    fn at(&self, of: &str, id: &str) -> usize {
        self.0[of]
            .as_array()
            .unwrap()
            .iter()
            .position(|w| w["id"] == id)
            .unwrap_or_else(|| panic!("no {id} in {of}"))
    }

    /// Why a way is not there.
    fn missing(&self, way: &str) -> Option<String> {
        let missing = &self.0["ways"][self.at("ways", way)]["missing"];
        missing.as_str().map(str::to_owned)
    }

    fn cell(&self, row: &str, way: &str) -> Option<&Value> {
        let (row, way) = (self.at("rows", row), self.at("ways", way));
        self.0["cells"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["row"] == row && c["way"] == way)
    }

    /// Shortest of the rounds, ns.
    fn min(&self, row: &str, way: &str) -> f64 {
        self.cell(row, way)
            .unwrap_or_else(|| panic!("no {row} with {way}: {:?}", self.missing(way)))["min"]
            .as_f64()
            .unwrap()
    }
}

/// ns of one `f`, the shortest of some batches.
fn shortest(mut f: impl FnMut()) -> f64 {
    (0..20)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..2000 {
                f();
            }
            begin.elapsed().as_nanos() as f64 / 2000.0
        })
        .fold(f64::MAX, f64::min)
}

#[test]
fn self_compares_debox_with_others() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let (status, out, errors) = run(Command::new(DEBOX)
        .args([
            "bench",
            "self",
            "--rounds",
            "2",
            "--only",
            "calls,peers",
            "--json",
        ])
        .env("TMPDIR", &temporary));
    assert_eq!(status, 0, "{errors}");
    assert!(empty(&temporary), "something was left behind");
    let document: Value = serde_json::from_str(&out).unwrap();
    let own = &document["self_cost"];
    let grid = Grid(&own["calls"]);
    let bare = grid.min("getpid", "bare");

    // Independent: the same calls, by hand.
    let by_hand = shortest(|| {
        // SAFETY: no arguments.
        unsafe { libc::syscall(libc::SYS_getpid) };
    });
    assert!(
        bare < 4.0 * by_hand && by_hand < 4.0 * bare,
        "{bare} {by_hand}"
    );
    let clocks = 2.0
        * shortest(|| {
            // SAFETY: a timespec of our own.
            unsafe {
                let mut t: libc::timespec = std::mem::zeroed();
                libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t);
            }
        });
    let usages = 2.0
        * shortest(|| {
            // SAFETY: an rusage of our own.
            unsafe {
                let mut u: libc::rusage = std::mem::zeroed();
                libc::getrusage(libc::RUSAGE_THREAD, &raw mut u);
            }
        });
    for (way, brackets) in [("clock", clocks), ("getrusage", usages)] {
        let both = bare + brackets;
        let found = grid.min("getpid", way);
        assert!(
            found < 3.0 * both && both < 3.0 * found,
            "{way}: {found}, by hand {both}"
        );
    }
    assert!(grid.min("getpid", "getrusage") > bare);

    // strace stops the program twice at every call, and that is more than
    // anything that does not; a BPF program at every call is more than none,
    // and brackets cannot be less than what is between them: true of any machine.
    let strace = grid.min("getpid", "strace-c");
    assert!(strace > 3.0 * bare && grid.min("getpid", "strace-T") > 3.0 * bare);
    for way in ["run", "other-boundary"] {
        let found = grid.min("getpid", way);
        assert!(bare < found && found < strace, "{way}: {found}");
    }
    for way in [
        "again",
        "broker",
        "bracket",
        "other-wrap",
        "run-wrap",
        "run-sleeps",
        "run-splice",
    ] {
        let found = grid.min("getpid", way);
        assert!(
            found > 0.5 * bare && found < strace,
            "{way}: {found}, bare {bare}"
        );
    }
    // A filter in the kernel lets what nobody asked for pass.
    assert!(grid.min("getpid", "strace-seccomp") > 3.0 * bare);
    assert!(grid.min("getpid", "strace-seccomp-others") < 0.5 * strace);
    // What is installed and works costs something; else there is a reason.
    for way in ["perf-trace", "bpftrace", "syscount", "ltrace", "perf-stat"] {
        match grid.missing(way) {
            Some(why) => {
                assert!(why.len() > 20 && !why.contains("<text>"), "{way}: {why}");
                assert!(grid.cell("getpid", way).is_none(), "{way}");
            }
            None if way == "perf-stat" => assert!(grid.min("getpid", way) > 0.5 * bare),
            None => assert!(grid.min("getpid", way) > bare, "{way}"),
        }
    }

    // The same calls by two who know nothing of each other.
    let server = own["server"].as_array().unwrap();
    assert_eq!(server.len(), 4, "{}", document["notes"]);
    for pair in server.chunks(2) {
        assert_eq!(pair[0]["call"], pair[1]["call"]);
        for row in pair {
            let value = |k: &str| row[k].as_f64().unwrap();
            assert!(value("count") >= 1000.0, "{row}");
            for (less, more) in [
                ("min", "median"),
                ("median", "p99"),
                ("p99", "max"),
                ("min", "mean"),
            ] {
                assert!(value(less) <= value(more), "{row}");
            }
        }
        let (a, b) = (
            pair[0]["min"].as_f64().unwrap(),
            pair[1]["min"].as_f64().unwrap(),
        );
        assert!(a < 3.0 * b && b < 3.0 * a, "{} {}", pair[0], pair[1]);
    }

    let result = dir.path().join("result.json");
    std::fs::write(&result, &out).unwrap();
    let (_, text, _) = run(Command::new(DEBOX)
        .args(["bench", "self", "--markdown", "--load"])
        .arg(&result));
    for word in [
        "| time of one call | getpid, ",
        "| strace -c |",
        "Measured on 2",
        "docs/PERFORMANCE.md",
    ] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
}

/// What each way costs above nothing, and above the kernel's floor.
#[test]
fn self_holds_its_own_cost_against_its_goals() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (status, out, errors) = run(Command::new(DEBOX)
        .args(["bench", "self", "--quick", "--rounds", "2", "--json"])
        .args(["--only", "wrap,boundary,sleeps,memory"])
        .env("TMPDIR", dir.path()));
    assert_eq!(status, 0, "{errors}");
    assert!(empty(dir.path()), "something was left behind");
    let document: Value = serde_json::from_str(&out).unwrap();
    let own = &document["self_cost"];
    let grid = |id: &str| Grid(&own[id]);
    // SAFETY: no arguments.
    let call = shortest(|| unsafe {
        libc::syscall(libc::SYS_getpid);
    });
    let (wrap, boundary, sleeps) = (grid("wrap"), grid("boundary"), grid("sleeps"));
    let interrupts = grid("interrupts");
    for bare in [wrap.min("getpid", "bare"), boundary.min("getpid", "bare")] {
        assert!(
            bare < 4.0 * call && call < 4.0 * bare,
            "{bare}, by hand {call}"
        );
    }
    // True of any machine: who does more in the same process takes longer.
    for (grid, row, ways) in [
        (&wrap, "getpid", &["bare", "bracket", "last"][..]),
        (&wrap, "instruction", &["bare", "stamps"]),
        (&wrap, "counted-getpid", &["bare", "interposed", "last"]),
        (&wrap, "counted-turns", &["bare", "interposed"]),
        (&boundary, "getpid", &["bare", "floor", "floor-clock"]),
        (&boundary, "getpid", &["floor", "watched-boundary"]),
        (&interrupts, "datagram", &["bare", "watched-boundaryirq"]),
    ] {
        let times: Vec<f64> = ways.iter().map(|way| grid.min(row, way)).collect();
        assert!(times.is_sorted(), "{row}: {ways:?} {times:?}");
    }
    // Four system calls and two switches a round trip, one call and one switch a yield.
    assert!(sleeps.min("trip", "bare") > 4.0 * boundary.min("getpid", "bare"));
    for way in ["watched-wrap", "watched-boundary", "record"] {
        assert!(
            sleeps.min("trip", way) > 0.8 * sleeps.min("trip", "bare"),
            "{way}"
        );
    }
    let switch = grid("switches").min("yield", "bare");
    assert!(switch > boundary.min("getpid", "bare") && switch < sleeps.min("trip", "bare"));
    let memory = |of: &str| own["memory"][of].as_f64().unwrap();
    // A page for the record and one for the thread's part of it.
    assert_eq!(
        memory("slots") / memory("maps"),
        32.0 * 4096.0,
        "{}",
        own["memory"]
    );
    assert!(memory("slots") >= 2.0 * 4096.0 * memory("watched"));
    assert!((1e6..100e6).contains(&memory("broker")));
    let goals = own["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 17, "{}", own["left_out"]);
    for goal in goals {
        assert!(
            goal["found"]["value"].is_f64() && goal["missing"].is_null(),
            "{goal}"
        );
    }
}

#[test]
fn self_measures_programs_and_loses_only_what_fails() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("tmp");
    let tools = dir.path().join("bin");
    for made in [&temporary, &tools] {
        std::fs::create_dir(made).unwrap();
    }
    for broken in ["redis-server", "redis-benchmark"] {
        let path = tools.join(broken);
        std::fs::write(&path, "#!/bin/sh\necho broken on purpose >&2\nexit 1\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let (status, out, errors) = run(Command::new(DEBOX)
        .args([
            "bench",
            "self",
            "--quick",
            "--rounds",
            "2",
            "--only",
            "macro,peers",
            "--programs",
            "redis,storm,tar-1",
            "--json",
        ])
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("TMPDIR", &temporary));
    assert_eq!(status, 0, "{errors}");
    assert!(empty(&temporary), "something was left behind");
    let document: Value = serde_json::from_str(&out).unwrap();
    let grid = Grid(&document["self_cost"]["loads"]);
    let why = grid.0["rows"][grid.at("rows", "redis")]["missing"].to_string();
    assert!(why.contains("broken on purpose"), "{why}");
    assert!(grid.cell("redis", "bare").is_none());
    for way in [
        "bare",
        "again",
        "broker",
        "other-wrap",
        "other-boundary",
        "run-wrap",
        "run-sleeps",
        "run-splice",
        "run",
    ] {
        for row in ["storm", "tar-1"] {
            assert_eq!(
                grid.cell(row, way).unwrap()["values"]
                    .as_array()
                    .unwrap()
                    .len(),
                2
            );
        }
    }
    // By hand: with a hook between them, the library forks and execs.
    let by_hand = (0..60)
        .map(|_| {
            let mut command = Command::new("/bin/true");
            // SAFETY: does nothing.
            unsafe { command.pre_exec(|| Ok(())) };
            let begin = Instant::now();
            assert!(command.status().unwrap().success());
            begin.elapsed().as_nanos() as f64
        })
        .collect::<Vec<f64>>();
    let mean = by_hand.iter().sum::<f64>() / by_hand.len() as f64;
    let bare = grid.min("storm", "bare");
    assert!(
        bare < 5.0 * mean && mean < 5.0 * bare,
        "{bare}, by hand {mean}"
    );
    if grid.missing("strace-c").is_none() {
        assert!(grid.min("storm", "strace-c") > 0.8 * bare);
    }

    let (status, _, errors) =
        run(Command::new(DEBOX).args(["bench", "self", "--programs", "emacs"]));
    assert_eq!(status, 2);
    assert!(
        errors.contains("emacs") && errors.contains("tar-1"),
        "{errors}"
    );
}

#[test]
fn self_measures_what_it_may_without_privilege() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = dir.path().join("debox");
    std::fs::copy(DEBOX, &copy).unwrap();
    let (status, out, errors) = run(Command::new(&copy)
        .args([
            "bench",
            "self",
            "--quick",
            "--rounds",
            "2",
            "--only",
            "wrap,boundary,sleeps,memory,calls,peers",
            "--json",
        ])
        .env("TMPDIR", dir.path())
        .env("DEBOX_SOCKET", dir.path().join("nobody-listens"))
        .current_dir(dir.path())
        .uid(65534)
        .gid(65534));
    assert_eq!(status, 0, "{errors}");
    let document: Value = serde_json::from_str(&out).unwrap();
    let grid = Grid(&document["self_cost"]["calls"]);
    for way in ["bare", "again", "getrusage", "clock"] {
        assert!(
            grid.min("getpid", way) > 0.5 * grid.min("getpid", "bare"),
            "{way}"
        );
    }
    for way in ["broker", "bracket", "other-boundary", "run", "run-wrap"] {
        let why = grid
            .missing(way)
            .unwrap_or_else(|| panic!("{way} was measured"));
        assert!(why.len() > 20, "{way}: {why}");
        assert!(grid.cell("getpid", way).is_none(), "{way}");
    }
    if grid.missing("strace-c").is_none() {
        assert!(grid.min("getpid", "strace-c") > 3.0 * grid.min("getpid", "bare"));
    }
    assert!(document["notes"].to_string().contains("without root"));
    // What takes more than this program says what it takes.
    let own = &document["self_cost"];
    let reason = |grid: &str, of: &str, n: usize| own[grid][of][n]["missing"].to_string();
    for (why, word) in [
        (reason("wrap", "rows", 0), "libdebox-wrap.so"),
        (reason("boundary", "ways", 2), "ermi"),
        (reason("switches", "rows", 0), "real-time"),
        (own["left_out"].to_string(), "deboxd"),
    ] {
        assert!(why.contains(word), "no {word} in {why}");
    }
    assert!(Grid(&own["boundary"]).min("getpid", "bare") > 0.0);
    for goal in own["goals"].as_array().unwrap() {
        assert!(
            goal["found"].is_null() && goal["missing"].is_string(),
            "{goal}"
        );
    }
    let result = dir.path().join("result.json");
    std::fs::write(&result, &out).unwrap();
    let (_, text, _) = run(Command::new(&copy)
        .args(["bench", "self", "--load"])
        .arg(&result));
    let (goals, reasons) = text.split_once("Not measured").expect(&text);
    assert!(
        goals.contains("not measured") && reasons.contains("deboxd"),
        "{text}"
    );
    std::fs::remove_file(&result).unwrap();
    std::fs::remove_file(&copy).unwrap();
    assert!(empty(dir.path()), "something was left behind");
}
