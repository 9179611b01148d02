// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are the numbers of `debox run` and `debox attach` true, on this kernel?
//!
//! These need root and BPF, and fail without; DEBOX_TEST_NO_BPF=1 leaves them
//! out and says so.

mod common;

use common::{debox_of_shared as debox, kernel_or_skip, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs under debox and returns (output of the command, report).
fn report(options: &[&str], command: &[&str]) -> (String, Value) {
    let (out, report) = report_of(options, command);
    check_sums(&report);
    (out, report)
}

fn report_of(options: &[&str], command: &[&str]) -> (String, Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let mut arguments = vec!["run", "--json", "-o", file.to_str().unwrap()];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    let out = debox(&arguments).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", text(&out.stderr));
    let json = std::fs::read(&file).unwrap();
    (text(&out.stdout), serde_json::from_slice(&json).unwrap())
}

fn call<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    report["calls"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == name)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// What must hold in every report.
fn check_sums(report: &Value) {
    for row in report["calls"].as_array().unwrap() {
        let count = number(&row["count"]);
        // A spliced program's exit has no time.
        if row["wall_ns"].is_null() {
            assert_eq!(number(&row["untimed"]), count, "{row}");
            continue;
        }
        let parts = number(&row["cpu_ns"]) + number(&row["blocked_ns"]) + number(&row["runq_ns"]);
        assert!(
            parts.abs_diff(number(&row["wall_ns"])) <= count * 1000,
            "{row}"
        );
        let in_histogram: u64 = row["histogram"]
            .as_array()
            .unwrap()
            .iter()
            .map(|b| number(&b["count"]))
            .sum();
        assert_eq!(in_histogram, count, "{row}");
        assert!(number(&row["p50_ns"]) <= number(&row["p99_ns"]), "{row}");
        assert!(number(&row["p99_ns"]) <= number(&row["max_ns"]), "{row}");
        assert!(number(&row["errors"]) <= count, "{row}");
    }
    let lost: Vec<&Value> = report["notes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|n| {
            let kind = n["kind"].as_str().unwrap();
            [
                "stale",
                "threads_unwatched",
                "rows_dropped",
                "sites_dropped",
                "inconsistent",
            ]
            .contains(&kind)
        })
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Without call boundaries: what slept, where and for what, and the CPU time of program and kernel.
#[test]
fn sleeps_alone_are_told_without_calls() {
    if !kernel_or_skip() {
        return;
    }
    let script = "import os, time\n\
                  for _ in range(10): time.sleep(0.02)\n\
                  null = os.open('/dev/zero', os.O_RDONLY)\n\
                  begin = os.times()\n\
                  while os.times().system - begin.system < 1.0: os.pread(null, 1 << 20, 0)\n\
                  print(os.times().user, os.times().system)";
    let (out, report) = report_of(&["--capture=sleeps"], &["/usr/bin/python3", "-c", script]);
    assert_eq!(report["run"]["capture"], "sleeps");
    assert_eq!(report["measured"]["calls"], false);
    assert_eq!(report["calls"].as_array().unwrap().len(), 0);
    for field in ["calls", "errors", "wall_ns", "cpu_ns", "blocked_ns"] {
        assert!(
            report["totals"][field].is_null(),
            "{field}: {}",
            report["totals"]
        );
    }
    let rows = report["blocking"].as_array().unwrap();
    let naps = |of: &str| -> u64 {
        let naps = rows.iter().filter(|row| row["label"] == "nanosleep");
        naps.map(|row| number(&row[of])).sum()
    };
    assert_eq!(naps("count"), 10, "{rows:?}");
    assert!(naps("total_ns") >= 150_000_000, "{rows:?}");
    // By the kernel's own books, which the program has read a moment before its end.
    let life = &report["lives"][0];
    let told: Vec<f64> = out
        .split_whitespace()
        .map(|word| word.parse::<f64>().unwrap() * 1e9)
        .collect();
    let (own, kernel) = (number(&life["own_ns"]), number(&life["calls_ns"]));
    let (all, told) = ((own + kernel) as f64, told[0] + told[1]);
    assert!((all - told).abs() < told / 5.0 + 30e6, "{life} {told}");
    assert!(kernel > 3 * own, "{life}");
    let all: u64 = [
        "own_ns",
        "calls_ns",
        "exit_ns",
        "blocked_ns",
        "outside_ns",
        "stopped_ns",
        "runq_ns",
    ]
    .iter()
    .map(|part| number(&life[part]))
    .sum();
    assert_eq!(all, number(&life["life_ns"]), "{life}");
    let path = &report["critical_path"];
    let parts: u64 = (path["parts"].as_array().unwrap().iter())
        .map(|part| number(&part["total_ns"]))
        .sum();
    assert_eq!(parts, number(&path["total_ns"]), "{path}");
    let verdict = report["verdict"].to_string();
    assert!(
        verdict.contains("nanosleep") && verdict.contains("in the kernel"),
        "{verdict}"
    );
}

/// The live view has the same sleeps, and without being asked no table of calls, which would be empty.
#[test]
fn top_shows_sleeps_alone() {
    if !kernel_or_skip() {
        return;
    }
    let script = "import time\nfor _ in range(10): time.sleep(0.02)";
    let words = ["top", "--capture=sleeps", "--totals", "--batch", "100"];
    let command = [
        "--interval",
        "300ms",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ];
    let out = debox(&[&words[..], &command].concat()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    assert!(!shown.contains("\n  calls\n"), "{shown}");
    // The command's end has the last one.
    let last = shown.rsplit("debox top  ").next().unwrap();
    assert!(last.contains("\n  calls not counted\n"), "{shown}");
    let (_, rows) = last.split_once("\n  blocking\n").expect("its one table");
    let naps: Vec<&str> = rows
        .lines()
        .filter_map(|row| row.trim_start().strip_prefix("nanosleep "))
        .filter_map(|row| row.split_whitespace().nth(1))
        .collect();
    assert_eq!(naps, ["10"], "{shown}");
}

/// Nobody pays at system calls for sleeps alone, nor for a program whose own code tells of its calls.
#[test]
fn sleeps_alone_and_spliced_calls_have_no_hook_at_calls() {
    if !kernel_or_skip() {
        return;
    }
    // All of them, and those at system calls.
    let hooks = |way: &str| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_debox"))
            .args(["run", way, "--", "sh", "-c", "echo began; exec sleep 60"])
            .env_remove("DEBOX_SOCKET")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut began = String::new();
        BufReader::new(run.stdout.take().unwrap())
            .read_line(&mut began)
            .unwrap();
        assert_eq!(began, "began\n");
        // Its own broker is a thread of it.
        let links: Vec<String> = (std::fs::read_dir(format!("/proc/{}/fdinfo", run.id())).unwrap())
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
            .filter(|text| text.contains("link_type:\traw_tracepoint"))
            .collect();
        // SAFETY: a child of ours, which hands it on to the command.
        unsafe { libc::kill(run.id() as i32, libc::SIGTERM) };
        run.wait().unwrap();
        let at_calls = |link: &&String| {
            ["\tsys_enter\n", "\tsys_exit\n"]
                .iter()
                .any(|name| link.contains(name))
        };
        (links.len(), links.iter().filter(at_calls).count())
    };
    for way in ["--capture=sleeps", "--capture=splice"] {
        let (all, at_calls) = hooks(way);
        assert!(all > 10 && at_calls == 0, "{way}: {at_calls} of {all}");
    }
    assert_eq!(hooks("--capture=boundary").1, 2);
}

#[test]
fn a_sleep_of_known_length_is_found() {
    if !kernel_or_skip() {
        return;
    }
    let (_, report) = report(&[], &["sleep", "0.3"]);
    let sleep = call(&report, "clock_nanosleep").expect("sleep sleeps in clock_nanosleep");
    assert_eq!(number(&sleep["count"]), 1);
    let blocked = number(&sleep["blocked_ns"]);
    assert!((299_000_000..330_000_000).contains(&blocked), "{sleep}");
    let place = report["blocking"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["call"] == "clock_nanosleep")
        .expect("the place where it slept");
    assert_eq!(number(&place["count"]), 1);
    assert!(
        number(&place["total_ns"]).abs_diff(blocked) < 1_000_000,
        "{place}"
    );
    assert!(place["function"].is_string(), "{place}");
}

#[test]
fn counts_are_those_of_strace_and_nothing_of_debox_is_among_them() {
    if !kernel_or_skip() {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        panic!("strace is needed for this test: apt-get install strace");
    }
    let directory = tempfile::tempdir().unwrap();
    let counts = directory.path().join("counts");
    let command = [
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=512",
        "count=777",
        "status=none",
    ];
    let status = Command::new("strace")
        .args([
            "-f",
            "-c",
            "-U",
            "calls,name",
            "-o",
            counts.to_str().unwrap(),
        ])
        .args(command)
        .status()
        .unwrap();
    assert!(status.success());
    let mut wanted = std::collections::BTreeMap::new();
    for line in std::fs::read_to_string(&counts).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [calls, name] = words[..] else { continue };
        match calls.parse::<u64>() {
            Ok(calls) if name != "total" => wanted.insert(name.to_owned(), calls),
            _ => continue,
        };
    }
    assert!(wanted["read"] >= 777, "{wanted:?}");
    let (_, report) = report(&[], &command);
    let mut got = std::collections::BTreeMap::new();
    for row in report["calls"].as_array().unwrap() {
        let all = number(&row["count"]) + number(&row["unfinished"]);
        got.insert(row["name"].as_str().unwrap().to_owned(), all);
    }
    // strace leaves out the call that never returns.
    got.remove("exit_group");
    wanted.remove("exit_group");
    assert_eq!(got, wanted);
}

#[test]
fn children_are_followed_or_not() {
    if !kernel_or_skip() {
        return;
    }
    let script = "sleep 0.1; sleep 0.1 & wait; (sleep 0.1)";
    let (_, all) = report(&[], &["sh", "-c", script]);
    assert_eq!(number(&call(&all, "clock_nanosleep").unwrap()["count"]), 3);
    assert!(number(&call(&all, "execve").unwrap()["count"]) >= 4);
    let (_, own) = report(&["--no-follow"], &["sh", "-c", script]);
    assert!(call(&own, "clock_nanosleep").is_none());
    assert_eq!(number(&call(&own, "execve").unwrap()["count"]), 1);
}

#[test]
fn output_and_status_are_the_commands() {
    if !kernel_or_skip() {
        return;
    }
    let out = debox(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 42"])
        .output()
        .unwrap();
    assert_eq!(
        (text(&out.stdout).as_str(), out.status.code()),
        ("out\n", Some(42))
    );
    let said = text(&out.stderr);
    assert!(said.starts_with("err\nsh -c "), "{said}");
    assert!(
        said.contains("exit status 42") && said.contains("execve"),
        "{said}"
    );
    let out = debox(&[
        "run",
        "-q",
        "-o",
        "/dev/null",
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ])
    .output()
    .unwrap();
    assert_eq!(out.status.signal(), Some(9));
    // The limits that the kernel side raises are the command's own again.
    let bare = Command::new("cat")
        .arg("/proc/self/limits")
        .output()
        .unwrap();
    let under = debox(&["run", "-o", "/dev/null", "--", "cat", "/proc/self/limits"])
        .output()
        .unwrap();
    assert_eq!(text(&under.stdout), text(&bare.stdout));
    let under = debox(&["run", "-o", "/dev/null", "--", "ls", "/proc/self/fd"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let bare = Command::new("ls")
        .arg("/proc/self/fd")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(text(&under.stdout), text(&bare.stdout));
}

#[test]
fn threads_that_outlive_the_command_are_told() {
    if !kernel_or_skip() {
        return;
    }
    // Who is in an execve as the report is made has a count, and no time yet.
    let (_, report) = report_of(&[], &["sh", "-c", "sleep 0.7 & sleep 0.7 & exit 0"]);
    let running = |report: &Value| {
        let notes = report["notes"].as_array().unwrap();
        let note = notes.iter().find(|n| n["kind"] == "threads_running");
        note.map_or(0, |n| number(&n["count"]))
    };
    assert_eq!(running(&report), 2);
    let (_, report) = self::report(&[], &["sh", "-c", "sleep 0.1 & sleep 0.1 & wait"]);
    assert_eq!(running(&report), 0);
}

/// Returns when `debox attach`, started with a pipe for what it says, watches.
fn watching_one_thread(attach: &mut Child) {
    let mut line = String::new();
    BufReader::new(attach.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("debox: watching 1 thread"), "{line}");
}

#[test]
fn attach_sees_a_process_at_work_and_one_asleep() {
    if !kernel_or_skip() {
        return;
    }
    let mut busy = Command::new("sh")
        .args(["-c", "while :; do sleep 0.02; done"])
        .spawn()
        .unwrap();
    let mut idle = Command::new("sleep").arg("1000").spawn().unwrap();
    let pids = format!("{},{}", busy.id(), idle.id());
    std::thread::sleep(Duration::from_millis(100));
    let out = debox(&["attach", "-p", &pids, "-d", "1", "--json", "-o", "-"])
        .output()
        .unwrap();
    for child in [&mut busy, &mut idle] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    check_sums(&report);
    let sleeps = call(&report, "clock_nanosleep").expect("the children of the shell are followed");
    // What is open is asked for while they are watched still, which takes a third of a second.
    assert!((1..=90).contains(&number(&sleeps["count"])), "{sleeps}");
    let open = report["open_calls"].as_array().unwrap();
    let asleep = open
        .iter()
        .find(|o| number(&o["pid"]) == u64::from(idle.id()))
        .expect("the idle one");
    assert_eq!(asleep["call"], "clock_nanosleep");
    assert!(number(&asleep["at_least_ns"]) > 900_000_000, "{asleep}");
    assert!(number(&sleeps["unfinished"]) >= 1, "{sleeps}");
    assert!(number(&sleeps["blocked_ns"]) > 900_000_000, "{sleeps}");
}

/// Those that wait for a CPU as they are bound, and get none, did not compute.
#[test]
fn busy_processes_have_no_more_time_than_the_cpus() {
    if !kernel_or_skip() {
        return;
    }
    let script = "for i in $(seq 60); do (while :; do :; done) & done; trap 'kill 0' TERM; wait";
    use std::os::unix::process::CommandExt;
    let mut busy = Command::new("sh")
        .args(["-c", script])
        .process_group(0)
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let out = debox(&[
        "attach",
        "--json",
        "-o",
        "-",
        "-d",
        "300ms",
        "-p",
        &busy.id().to_string(),
    ])
    .output()
    .unwrap();
    // SAFETY: a group of our own.
    unsafe { libc::kill(-(busy.id() as i32), libc::SIGKILL) };
    busy.wait().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let lives = report["lives"].as_array().unwrap();
    let of = |part: &str| lives.iter().map(|life| number(&life[part])).sum::<u64>();
    let cpus = number(&report["run"]["cpus"]);
    let most = number(&report["run"]["wall_ns"]) * cpus;
    assert!(of("life_ns") > most, "{} lives", lives.len());
    assert!(of("own_ns") <= most + most / 10, "{} {most}", of("own_ns"));
}

/// Its sleep has begun before, or is not over at the end, or both.
#[test]
fn attach_counts_sleeps_that_are_under_way() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("recording.debox");
    for unfinished in [0, 1] {
        let mut sleeper = Command::new("sh")
            .args(["-c", "read line; exit 0"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let input = sleeper.stdin.take();
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        let mut attach = debox(&["attach", "-p", &sleeper.id().to_string()])
            .args(["-d", if unfinished == 1 { "1" } else { "60" }])
            .arg("-o")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        watching_one_thread(&mut attach);
        if unfinished == 0 {
            std::thread::sleep(Duration::from_millis(700));
            drop(input);
        }
        let status = attach.wait().unwrap();
        let lasted = begin.elapsed().as_nanos() as u64;
        let _ = sleeper.kill();
        sleeper.wait().unwrap();
        assert!(status.success());
        let out = debox(&["report", "--json", file.to_str().unwrap()])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        check_sums(&report);
        let name = "read";
        let row = call(&report, name).expect(name);
        assert_eq!(number(&row["unfinished"]), unfinished, "{row}");
        let wall = number(&report["run"]["wall_ns"]);
        let blocked = number(&row["blocked_ns"]);
        // From the watch's begin to the line that does not come, or to the end.
        assert!((600_000_000..lasted).contains(&blocked), "{wall}: {row}");
        assert!(blocked <= wall, "{wall}: {row}");
        let place = report["blocking"].as_array().unwrap();
        let place = place.iter().find(|p| p["call"] == name).expect("a place");
        assert_eq!(place["label"], "pipe-read", "{place}");
        assert_eq!(number(&place["total_ns"]), blocked, "{place}");
        let chains = report["chains"].as_array().unwrap();
        let told: u64 = chains.iter().map(|chain| number(&chain["total_ns"])).sum();
        let all = number(&report["totals"]["blocked_ns"]);
        assert_eq!(told, all, "the parts of all sleeps are all of them");
    }
}

#[test]
fn attach_ends_with_its_process() {
    if !kernel_or_skip() {
        return;
    }
    let mut target = Command::new("sh")
        .args(["-c", "echo ready; read x; sleep 0.2; exit 3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(target.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let pid = target.id().to_string();
    let mut watcher = debox(&["attach", "-p", &pid, "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    watching_one_thread(&mut watcher);
    drop(target.stdin.take());
    assert_eq!(target.wait().unwrap().code(), Some(3));
    let until = Instant::now() + Duration::from_secs(5);
    while watcher.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "attach goes on after its process");
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = watcher.wait_with_output().unwrap();
    assert!(out.status.success());
    assert!(
        text(&out.stdout).contains("clock_nanosleep"),
        "{}",
        text(&out.stdout)
    );
}

/// A lock goes from who held it to one that waits, and from that to the next: who held it is whom
/// they waited for, though somebody else wakes them.
#[test]
fn who_held_a_lock_is_named_and_not_who_waited_for_it_too() {
    if !kernel_or_skip() {
        return;
    }
    if !std::path::Path::new("/usr/bin/flock").exists() {
        eprintln!("NOT RUN: no flock (package util-linux)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    for name in ["holder", "contender"] {
        std::fs::copy("/usr/bin/flock", place(name)).unwrap();
    }
    let lock = place("lock");
    let start = |name: &str, command: &[&str]| {
        let mut start = Command::new(place(name));
        start.arg("-x").arg(&lock).args(command);
        start.spawn().unwrap()
    };
    let mut children = vec![start("holder", &["sleep", "2"])];
    let held = |line: &str| line.contains("FLOCK") && line.contains(&children[0].id().to_string());
    let begin = Instant::now();
    while !std::fs::read_to_string("/proc/locks")
        .unwrap()
        .lines()
        .any(held)
    {
        assert!(begin.elapsed() < Duration::from_secs(20), "no lock");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..3 {
        children.push(start("contender", &["true"]));
    }
    std::thread::sleep(Duration::from_millis(300));
    let (_, report) = report(
        &[],
        &["/usr/bin/flock", "-x", lock.to_str().unwrap(), "true"],
    );
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let links = report["chain_links"].as_array().unwrap();
    let slept = links
        .iter()
        .find(|link| link["comm"] == "flock" && link["call"] == "flock");
    let slept = slept.unwrap_or_else(|| panic!("{links:?}"));
    let parent = &links[number(&slept["parent"]) as usize];
    assert_eq!(parent["comm"], "holder", "{links:?}");
    assert_eq!(slept["held"], true, "{slept}");
}

/// Of two programs that wait for different things each has its own.
#[test]
fn who_blocked_where_is_told_by_name() {
    if !kernel_or_skip() {
        return;
    }
    let command = ["sh", "-c", "sleep 0.3 | head -c 1"];
    for options in [&[][..], &["--capture=boundary"]] {
        let (_, report) = report(options, &command);
        let rows = report["blocking"].as_array().unwrap();
        let mut slept: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for row in rows {
            // Left out where the chains do not say in which call of a place it was.
            let Some(names) = row["by_name"].as_array() else {
                continue;
            };
            let mut all = 0;
            for name in names {
                let total = number(&name["total_ns"]);
                all += total;
                let comm = name["comm"].as_str();
                let comm = comm.unwrap_or_else(|| panic!("{options:?}: whose? {row}"));
                // What debox's own process slept until its execve is the command's.
                assert!(["sh", "sleep", "head"].contains(&comm), "{row}");
                *slept
                    .entry((comm, row["label"].as_str().unwrap()))
                    .or_default() += total;
            }
            assert_eq!(all, number(&row["total_ns"]), "{options:?}: {row}");
        }
        let of = |comm, label| slept.get(&(comm, label)).copied().unwrap_or(0);
        assert!(of("sleep", "nanosleep") > 200_000_000, "{slept:?}");
        assert!(of("head", "pipe-read") > 200_000_000, "{slept:?}");
        assert_eq!(of("head", "nanosleep"), 0, "{slept:?}");
        assert_eq!(of("sleep", "pipe-read"), 0, "{slept:?}");
        let mut arguments = vec!["run"];
        arguments.extend(options);
        arguments.push("--");
        arguments.extend(command);
        let out = debox(&arguments).output().unwrap();
        let said = text(&out.stderr);
        let table = said.split("Where it blocked").nth(1).unwrap_or_default();
        let table = table.split("\n\n").next().unwrap();
        let its = |line: &str| {
            let mut words = line.split_whitespace();
            line.contains("nanosleep") && words.any(|word| word == "sleep")
        };
        assert!(table.lines().any(its), "{said}");
    }
}

/// The interposer that `make` builds, in target/release.
fn interposer() -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/release/libdebox-wrap.so");
    assert!(
        path.is_file(),
        "{} is missing: run `make preload` first",
        path.display()
    );
    path
}

#[test]
fn wrap_counts_what_the_program_calls() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let mut child = debox(&[
        "run",
        "--capture=wrap",
        "--call-site",
        "--json",
        "-o",
        file.to_str().unwrap(),
        "--",
    ])
    .args(["dd", "of=/dev/null", "bs=512", "count=500", "status=none"])
    .env("DEBOX_WRAP_LIBRARY", interposer())
    .stdin(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // Where the program's code lies is read while the program lives: let it
    // wait for its input until then.
    let until = Instant::now() + Duration::from_secs(20);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let reads = |pid: &str| {
        let read =
            |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        read("comm").trim() == "dd" && read("syscall").starts_with("0 0x0 ")
    };
    while !std::fs::read_to_string(&children)
        .unwrap_or_default()
        .split_whitespace()
        .any(reads)
    {
        assert!(Instant::now() < until, "dd does not come to read its input");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&vec![0; 500 * 512])
        .unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    check_sums(&report);
    assert_eq!(report["run"]["capture"], "wrap");
    assert_eq!(number(&call(&report, "write").unwrap()["count"]), 500);
    assert_eq!(number(&call(&report, "read").unwrap()["count"]), 500);
    let sites = report["call_sites"].as_array().unwrap();
    assert!(
        sites
            .iter()
            .any(|s| s["call"] == "read" && s["place"].as_str().unwrap().contains("dd")),
        "{sites:?}"
    );
    assert!(
        report["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|n| n["kind"] == "wrap_coverage")
    );
}
