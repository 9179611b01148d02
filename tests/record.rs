// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do recordings of real programs hold what the programs did, and do they
//! survive the end of their writer?

use debox_tests::*;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn run_debox(arguments: &[&str]) -> Output {
    let output = Command::new(debox())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("debox runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    output
}

fn json(recording: &Path) -> Value {
    let path = recording.to_str().expect("a plain path");
    let output = run_debox(&["report", "--json", path]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Records a command; gives (its standard output, the report).
fn record(options: &[&str], command: &[&str]) -> (String, Value) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("run.debox");
    let broker = shared_broker();
    let socket = broker.socket().to_str().expect("a plain path");
    let mut arguments = vec!["run", "--socket", socket];
    arguments.extend(["-o", file.to_str().expect("a plain path")]);
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    let output = run_debox(&arguments);
    let report = json(&file);
    assert_eq!(report["recording"]["complete"], true);
    (String::from_utf8_lossy(&output.stdout).into(), report)
}

fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    report[table].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn grow() -> String {
    program("grow").to_str().expect("a plain path").to_owned()
}

#[test]
fn a_fork_that_grows_is_a_trend_and_one_that_does_not_is_none() {
    let Some(_alone) = alone() else { return };
    // Time on CPU does not depend on who else uses the machine, to the extent
    // that matters here: fork's grows tenfold.
    // A machine whose own speed changes in the middle of a run is another
    // matter: growth that is not steady is rightly not told, and a machine that
    // becomes slower is told as a trend. So up to five of the one, three of the
    // other.
    let mut seen = Vec::new();
    let trend = (0..5)
        .find_map(|_| {
            let (_, report) = record(&[], &[&grow(), "fork", "800", "10"]);
            let trends = rows(&report, "trends");
            seen.extend_from_slice(trends);
            let mut forks = trends
                .iter()
                .filter(|t| t["call"] == "clone" || t["call"] == "clone3");
            forks.next().cloned()
        })
        .unwrap_or_else(|| panic!("fork's growth was not found: {seen:?}"));
    assert!(
        number(&trend["to_ns"]) > 2 * number(&trend["from_ns"]),
        "{trend}"
    );
    let with = trend["grows_with"].to_string();
    assert!(with.contains("mappings"), "{trend}");

    let mut seen = Vec::new();
    let without = (0..3).any(|_| {
        let (_, report) = record(&[], &[&grow(), "fork", "1500", "0"]);
        let before = seen.len();
        seen.extend(
            rows(&report, "trends")
                .iter()
                .filter(|t| t["call"].as_str().is_some_and(|c| c.starts_with("clone")))
                .cloned(),
        );
        seen.len() == before
    });
    assert!(without, "a trend where nothing grows, each time: {seen:?}");
}

#[test]
fn a_spliced_program_has_the_record_of_its_last_call() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let socket = broker.socket().to_str().expect("a plain path");
    let ms = if slow() { "400" } else { "20" };
    let asks = |kernel: &str, socket: &str, options: &[&str]| {
        let output = Command::new(debox())
            .args(["run", "--capture=splice"])
            .args(options)
            .args(["--", program("last").to_str().expect("a plain path")])
            .args([kernel, ms])
            .env("DEBOX_SOCKET", socket)
            .output()
            .expect("debox runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output:?}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{said}");
    };
    asks("kernel", socket, &["--socket", socket]);
    // Who asks has each of its calls stamped.
    asks("kernel", socket, &["--socket", socket, "--sample", "16"]);
    asks("sampled", socket, &["--socket", socket, "--sample", "16"]);
    // Whom nobody watches, libdebox cannot say that nothing was.
    asks("wall", "/nowhere/debox.sock", &["--socket", socket]);
}

#[test]
fn history_and_sums_tell_the_same() {
    let Some(_alone) = alone() else { return };
    let (_, report) = record(&[], &[&grow(), "sites", "30000"]);
    for call in rows(&report, "calls") {
        let history = rows(&report, "history")
            .iter()
            .find(|h| h["call"] == call["name"] && h["abi"] == call["abi"]);
        let points = history.map_or(&[][..], |h| rows(h, "points"));
        let sum = |field: &str| points.iter().map(|p| number(&p[field])).sum::<u64>();
        assert_eq!(sum("count"), number(&call["count"]), "{call}");
        assert!(points.len() <= 512);
        let (mut first, mut time) = (0, 0);
        for point in points {
            assert_eq!(number(&point["first"]), first, "{call}");
            assert!(number(&point["time_ns"]) >= time);
            first += number(&point["count"]);
            time = number(&point["time_ns"]);
        }
        // Calls that never return have time, but no number; a spliced program's exit has a number, but no time.
        let untimed = call["wall_ns"].is_null();
        if number(&call["unfinished"]) == 0 && number(&call["count"]) > 0 && !untimed {
            assert_eq!(sum("wall_ns"), number(&call["wall_ns"]), "{call}");
        }
    }
}

#[test]
fn calls_are_told_apart_by_where_they_were_made() {
    let Some(_alone) = alone() else { return };
    for option in ["--call-site", "--stacks"] {
        let (_, report) = record(&[option], &[&grow(), "sites", "2000"]);
        let count = |function: &str| {
            let rows = rows(&report, "call_sites").iter();
            rows.filter(|r| r["call"] == "read")
                .filter(|r| r["place"].as_str().is_some_and(|p| p.starts_with(function)))
                .map(|r| number(&r["count"]))
                .sum::<u64>()
        };
        // The first calls may come before the program's unwind table.
        assert!((1_900..=2_000).contains(&count("read_for_one")), "{report}");
        assert!(
            (19_000..=20_000).contains(&count("read_for_other")),
            "{report}"
        );
    }
}

#[test]
fn who_ended_the_wait_is_named() {
    let Some(_alone) = alone() else { return };
    let (child, report) = record(&[], &[&grow(), "wait", "200"]);
    let child: u64 = child.trim().parse().expect("a pid");
    let row = rows(&report, "culprits")
        .iter()
        .find(|r| r["label"] == "wait-child")
        .unwrap_or_else(|| panic!("{}", report["culprits"]));
    assert_eq!(
        (&row["role"], number(&row["pid"])),
        (&"waker".into(), child)
    );
    assert_eq!(row["culprit_call"], "exit_group");
    assert!(number(&row["total_ns"]) > 190_000_000, "{row}");
    // The same call among the slow ones, with its one sleep.
    let slow = rows(&report, "slow_calls")
        .iter()
        .find(|c| c["call"] == "wait4")
        .expect("wait4 took 200 ms");
    let sleeps = rows(slow, "sleeps");
    assert_eq!(sleeps.len(), 1, "{slow}");
    assert_eq!(number(&sleeps[0]["waker"]["tid"]), child);
    let site = &report["sites"][number(&sleeps[0]["site"]) as usize];
    assert_eq!(site["label"], "wait-child");
    assert!(site["frames"].to_string().contains("do_wait"), "{site}");
    let (start, end) = (number(&slow["start_ns"]), number(&report["run"]["wall_ns"]));
    assert!(
        start < end && start + number(&slow["wall_ns"]) <= end,
        "{slow}"
    );
}

/// The ends of calls are not seen then.
#[test]
fn by_sleeps_a_recording_has_the_slowest_sleeps() {
    let script =
        "n=0; while [ $n -lt 60 ]; do sleep 0.002; n=$((n + 1)); done; sleep 0.2; sleep 0.3";
    let (_, report) = record(&["--capture=sleeps"], &["sh", "-c", script]);
    let slow = rows(&report, "slow_calls");
    assert!(slow.iter().all(|sleep| sleep["one_sleep"] == true));
    assert!(
        slow.iter()
            .all(|sleep| number(&sleep["wall_ns"]) >= 1_000_000)
    );
    let of = |call: &str| -> Vec<u64> {
        let own = slow.iter().filter(|sleep| sleep["call"] == call);
        own.map(|sleep| number(&sleep["wall_ns"])).collect()
    };
    let slept = of("clock_nanosleep");
    assert!(slept.len() >= 24, "{slept:?}");
    assert!(slept[0] >= 300_000_000, "{slept:?}");
    assert!((200_000_000..slept[0]).contains(&slept[1]), "{slept:?}");
    // Where the shell comes back to for its children it has nothing to do, once that is known.
    assert!(of("wait4").len() < 10);
    let site = number(&slow[0]["sleeps"][0]["site"]) as usize;
    assert!(!report["sites"][site]["label"].is_null());
}

#[test]
fn two_processes_at_one_directory_name_each_other() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_str().expect("a plain path");
    // Meeting at the lock is a matter of chance; it is tried until both met.
    let mut seen = String::new();
    for _ in 0..5 {
        let (_, report) = record(&[], &[&grow(), "locks", "20000", path]);
        let held: Vec<&Value> = rows(&report, "culprits")
            .iter()
            .filter(|r| r["role"] == "holder" && r["label"] == "inode-lock")
            .collect();
        let mut pids: Vec<u64> = held.iter().map(|r| number(&r["pid"])).collect();
        pids.sort_unstable();
        pids.dedup();
        if pids.len() == 2 {
            assert!(held.iter().all(|r| r["comm"] == "grow"), "{held:?}");
            return;
        }
        seen = report["culprits"].to_string();
    }
    panic!("no two holders of the inode lock: {seen}");
}

#[test]
fn a_recording_holds_the_call_trace() {
    let Some(_alone) = alone() else { return };
    // Functions where these can be traced, else tracepoints: a sleep passes both.
    const FUNCTIONS: &str = "hrtimer_*";
    // As JSON without a recording, for what is to be there.
    let command = ["sh", "-c", "sleep 0.02; cat /proc/self/status"];
    let plain = [
        &["run", "--json", "-o", "-", "--trace", FUNCTIONS, "--"],
        &command[..],
    ]
    .concat();
    let plain = run_debox(&plain).stdout;
    let start = plain.iter().position(|byte| *byte == b'{').expect("JSON");
    let plain: Value = serde_json::from_slice(&plain[start..]).expect("JSON");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("run.debox");
    let path = file.to_str().expect("a plain path");
    run_debox(
        &[
            &["run", "-o", path, "--trace", FUNCTIONS, "--"],
            &command[..],
        ]
        .concat(),
    );
    let recorded = json(&file);
    let text = String::from_utf8(run_debox(&["report", path]).stdout).expect("text");
    assert!(text.contains("call trace: "), "{text}");
    for report in [&plain, &recorded] {
        let trace = &report["trace"];
        assert!(number(&trace["calls"]) > 0, "{trace}");
        let slowest = trace["slowest"].as_array().expect("a list");
        let call = slowest.iter().find(|c| c["call"] == "clock_nanosleep");
        assert!(
            call.is_some_and(|c| !c["entries"].as_array().expect("a list").is_empty()),
            "{trace}"
        );
    }
    assert_eq!(plain["trace"]["way"], recorded["trace"]["way"]);
}

#[test]
fn a_killed_recording_is_read_up_to_its_last_flush() {
    killed_recording(&[]);
}

#[test]
fn a_killed_recording_with_a_call_trace_is_read_as_well() {
    if let Some(report) = killed_recording(&["--trace", "default"]) {
        // Of the calls until then; single ones only come with the end.
        assert!(number(&report["trace"]["calls"]) > 0, "{}", report["trace"]);
        assert!(rows(&report["trace"], "slowest").is_empty());
    }
}

/// None: nothing can be loaded here, and nothing needs to be.
fn killed_recording(options: &[&str]) -> Option<Value> {
    let _alone = alone()?;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("run.debox");
    let path = file.to_str().expect("a plain path");
    let mut child = Command::new(debox())
        .args(["run", "-o", path])
        .args(options)
        .args(["--", &grow(), "wait", "60000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("debox starts");
    let begin = Instant::now();
    // Two flushes: something besides the first block is there.
    let flushed = loop {
        let report = file.exists().then(|| {
            Command::new(debox())
                .args(["report", "--json", path])
                .output()
                .ok()
        });
        let report = report.flatten().filter(|o| o.status.success());
        let report: Option<Value> = report.and_then(|o| serde_json::from_slice(&o.stdout).ok());
        let until = report.map_or(0, |r| number(&r["recording"]["until_ns"]));
        if until > 900_000_000 {
            break until;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no flush");
        std::thread::sleep(Duration::from_millis(100));
    };
    let commands = children(child.id());
    child.kill().expect("kill");
    child.wait().expect("wait");
    for pid in commands {
        for pid in children(pid).into_iter().chain([pid]) {
            // SAFETY: a process that this test started; no memory involved.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
    }
    let report = json(&file);
    assert_eq!(report["recording"]["complete"], false);
    assert!(number(&report["recording"]["until_ns"]) >= flushed);
    assert!(rows(&report, "calls").iter().any(|c| c["name"] == "execve"));
    let text = String::from_utf8(run_debox(&["report", path]).stdout).expect("text");
    assert!(text.contains("the recording is not complete"), "{text}");
    let traced = options.contains(&"--trace");
    assert_eq!(text.contains("call trace: "), traced, "{text}");
    Some(report)
}

fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}
