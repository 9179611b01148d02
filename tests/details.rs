// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who called, who held the lock, which thread: is what an account tells
//! beyond its sums true?

use debox_tests::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

fn rows<'a>(run: &'a Run, table: &str) -> Vec<&'a Value> {
    run.report[table]
        .as_array()
        .unwrap_or_else(|| panic!("no table {table}: {}", run.report))
        .iter()
        .collect()
}

/// Calls by (call, function of the program's call site).
fn by_function(run: &Run) -> BTreeMap<(String, String), u64> {
    let mut out = BTreeMap::new();
    for row in rows(run, "call_sites") {
        let place = row["place"].as_str().unwrap_or_default();
        let function = place.split([' ', '+']).next().unwrap_or_default();
        let key = (
            row["call"].as_str().unwrap_or_default().to_owned(),
            function.to_owned(),
        );
        *out.entry(key).or_insert(0) += number(row, "count");
    }
    out
}

fn of(map: &BTreeMap<(String, String), u64>, call: &str, function: &str) -> u64 {
    map.get(&(call.to_owned(), function.to_owned()))
        .copied()
        .unwrap_or(0)
}

/// Every call has a call-site row: the tables add up to each other.
fn check_call_site_sums(run: &Run) {
    let mut by_call: BTreeMap<String, u64> = BTreeMap::new();
    for row in rows(run, "call_sites") {
        *by_call
            .entry(row["call"].as_str().unwrap_or_default().to_owned())
            .or_insert(0) += number(row, "count");
    }
    for row in rows(run, "calls") {
        let name = row["name"].as_str().unwrap_or_default();
        assert_eq!(
            by_call.get(name).copied().unwrap_or(0),
            number(row, "count"),
            "{name}: {:#}",
            run.report["call_sites"]
        );
    }
}

#[test]
fn reads_are_told_apart_by_who_made_them() {
    if !bpf_wanted() {
        return;
    }
    for binary in ["callsites", "callsites-static"] {
        let run = run(&["--call-site"], &[program(binary)]);
        assert_eq!(run.output.status.code(), Some(0), "{binary}");
        let map = by_function(&run);
        assert_eq!(
            of(&map, "pread64", "reads_from_cgi"),
            700,
            "{binary}: {map:?}"
        );
        assert_eq!(
            of(&map, "pread64", "reads_from_file"),
            500,
            "{binary}: {map:?}"
        );
        // nanosleep() is clock_nanosleep() in glibc; nap() called it, from
        // main's side and from a signal handler.
        assert_eq!(of(&map, "clock_nanosleep", "nap"), 50, "{binary}: {map:?}");
        // Through stdio: the program's own function, not one of libc.
        assert!(
            of(&map, "write", "writes_buffered") >= 8,
            "{binary}: {map:?}"
        );
        check_call_site_sums(&run);
        let row = rows(&run, "call_sites")
            .into_iter()
            .find(|r| {
                r["place"]
                    .as_str()
                    .unwrap_or_default()
                    .starts_with("reads_from_cgi")
            })
            .unwrap();
        let place = row["place"].as_str().unwrap();
        assert!(place.contains("callsites.c:"), "no file and line: {place}");
    }
}

#[test]
fn whole_stacks_reach_main_also_through_a_signal_handler() {
    if !bpf_wanted() {
        return;
    }
    for binary in ["callsites", "callsites-static"] {
        let run = run(&["--stacks"], &[program(binary)]);
        let stacks = rows(&run, "stacks");
        let chain = |row: &Value| -> Vec<String> {
            let index = row["stack"].as_u64().expect("a stack") as usize;
            stacks[index]["frames"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|f| f["function"].as_str().map(str::to_owned))
                .collect()
        };
        let mut deep = 0;
        let mut handler = 0;
        for row in rows(&run, "paths")
            .into_iter()
            .filter(|r| r["call"] == "clock_nanosleep")
        {
            let chain = chain(row);
            assert!(chain.iter().any(|f| f == "nap"), "{binary}: {chain:?}");
            assert!(chain.iter().any(|f| f == "main"), "{binary}: {chain:?}");
            let levels = chain.iter().filter(|f| *f == "sleeps_deep").count();
            if chain.iter().any(|f| f == "sleeps_in_handler") {
                handler += number(row, "count");
            } else {
                assert_eq!(levels, 7, "{binary}: {chain:?}");
                deep += number(row, "count");
            }
        }
        assert_eq!((deep, handler), (30, 20), "{binary}");
        // All blocked time inside of calls has a path.
        let of_paths: u64 = rows(&run, "paths")
            .iter()
            .map(|r| number(r, "total_ns"))
            .sum();
        let of_table: u64 = rows(&run, "blocking")
            .iter()
            .map(|r| number(r, "total_ns"))
            .sum();
        let unfinished = rows(&run, "calls")
            .iter()
            .map(|r| number(r, "unfinished"))
            .sum::<u64>();
        assert!(
            of_paths <= of_table && (of_paths * 100 >= of_table * 95 || unfinished > 1),
            "{of_paths} of {of_table} ns have a path"
        );
    }
}

#[test]
fn go_programs_have_call_sites_without_libc() {
    if !bpf_wanted() {
        return;
    }
    // On a busy machine it may be over before its tables are read: once more, with those.
    let mut tries = 0..3;
    let (run, map, ours) = loop {
        let run = run(
            &["--call-site"],
            &[program("gocalls").to_str().unwrap(), "300"],
        );
        assert_eq!(run.output.status.code(), Some(0));
        let map = by_function(&run);
        let ours: u64 = map
            .iter()
            .filter(|((call, function), _)| call == "getppid" && function.starts_with("main."))
            .map(|(_, n)| n)
            .sum();
        if ours == 1200 || tries.next().is_none() {
            break (run, map, ours);
        }
    };
    assert_eq!(ours, 1200, "{map:?}");
    check_call_site_sums(&run);
}

#[test]
fn two_processes_fighting_over_a_directory_see_each_other() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let run = run(
        &[],
        &[
            program("dirfight").to_str().unwrap(),
            directory.path().to_str().unwrap(),
            "4",
        ],
    );
    assert_eq!(run.output.status.code(), Some(0));
    let output = String::from_utf8_lossy(&run.output.stdout).into_owned();
    let pid = |name: &str| -> u64 {
        output
            .lines()
            .find_map(|l| {
                l.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .unwrap_or_else(|| panic!("{name} did not say its pid: {output}"))
    };
    let held: Vec<&Value> = rows(&run, "culprits")
        .into_iter()
        .filter(|r| r["label"] == "inode-lock" && r["role"] == "holder")
        .collect();
    for fighter in ["fighter-one", "fighter-two"] {
        let row = held
            .iter()
            .find(|r| r["comm"] == fighter)
            .unwrap_or_else(|| panic!("{fighter} held nothing: {:#}", run.report["culprits"]));
        assert_eq!(number(row, "pid"), pid(fighter), "{row}");
        assert!(
            number(row, "count") > 0 && number(row, "total_ns") > 0,
            "{row}"
        );
        // What it was doing meanwhile is one of its calls.
        let call = row["culprit_call"].as_str().unwrap_or_default();
        assert!(["openat", "unlink", "open"].contains(&call), "{row}");
    }
    // Nobody else was there.
    for row in &held {
        let comm = row["comm"].as_str().unwrap_or_default();
        assert!(comm.starts_with("fighter-"), "{row}");
    }
}

#[test]
fn a_waker_is_named_with_its_call() {
    let Some(_alone) = alone() else { return };
    let run = run(
        &[],
        &[
            "bash",
            "-c",
            "(for i in 1 2 3 4 5; do sleep 0.02; echo $i; done) | while read x; do :; done",
        ],
    );
    let woken: Vec<&Value> = rows(&run, "culprits")
        .into_iter()
        .filter(|r| {
            r["label"] == "pipe-read" && r["role"] == "waker" && r["culprit_call"] == "write"
        })
        .collect();
    let waits: u64 = woken.iter().map(|r| number(r, "count")).sum();
    assert!((3..=6).contains(&waits), "{:#}", run.report["culprits"]);
    assert!(woken.iter().all(|r| r["comm"] == "bash"), "{woken:?}");
}

#[test]
fn details_of_threads_add_up_to_the_whole() {
    if !bpf_wanted() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.debox");
    let status = Command::new(debox())
        .args(["run", "-q", "-o"])
        .arg(&file)
        .args(["--", "bash", "-c"])
        .arg(format!("{} 8 50 0 >/dev/null; ls /usr/bin >/dev/null; tar cf /dev/null /usr/include/linux 2>/dev/null", program("storm").display()))
        .status()
        .unwrap();
    assert!(status.success());
    let output = Command::new(debox())
        .args(["report", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    let sum = |table: &str, field: &str| -> u64 {
        report[table]
            .as_array()
            .unwrap_or_else(|| panic!("no {table}"))
            .iter()
            .map(|r| number(r, field))
            .sum()
    };
    assert_eq!(sum("threads", "count"), number(&report["totals"], "calls"));
    assert_eq!(
        sum("threads", "errors"),
        number(&report["totals"], "errors")
    );
    // Calls that never returned are in the totals' time alone.
    assert!(sum("threads", "wall_ns") <= number(&report["totals"], "wall_ns"));
    assert!(report["threads"].as_array().unwrap().len() > 8);
}
