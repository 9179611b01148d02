// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do other tools read the exports, and find the same numbers?

#[path = "../../report/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use debox_export::*;
use debox_report::{ChainKind, ChainLink, ChainRow, Object, ObjectKind, ObjectRow, Report};
use serde_json::{Value, json};

fn blocked_ns(report: &Report) -> u64 {
    report.paths.iter().map(|p| p.total_ns).sum()
}

#[test]
fn folded_stacks_keep_all_time() {
    let report = support::server(10);
    let text = folded(&report);
    let mut sum = 0;
    for line in text.lines() {
        let (stack, ns) = line.rsplit_once(' ').expect("a stack and a number");
        sum += ns.parse::<u64>().expect("nanoseconds");
        assert!(
            !stack.is_empty() && !stack.split(';').any(str::is_empty),
            "{line}"
        );
    }
    assert_eq!(sum, blocked_ns(&report));
    assert!(text.contains(
        "main;serve_request;cache_open;openat;do_syscall_64_[k];do_sys_openat2_[k];path_openat_[k];open_last_lookups_[k];[inode-lock] 6210000000\n"
    ), "{text}");
    assert!(
        text.contains("(cut off);main;libevent.so.7+0x1000;epoll_wait;"),
        "{text}"
    );
}

#[test]
fn folded_stacks_of_a_run_without_paths_come_from_the_blocking_table() {
    let mut report = support::server(0);
    report.paths.clear();
    let text = folded(&report);
    assert!(
        text.contains("openat;open_last_lookups_[k];[inode-lock] 6210000000\n"),
        "{text}"
    );
    assert!(
        text.contains("(no call);filemap_fault_[k];[page-in] 212000000\n"),
        "{text}"
    );
}

#[test]
fn hostile_names_cannot_break_lines() {
    let mut report = support::server(3);
    for stack in &mut report.stacks {
        for frame in &mut stack.frames {
            frame.function = Some("a;b\nc 7\u{1b}[31m".into());
        }
    }
    let text = folded(&report);
    assert_eq!(
        text.lines().count(),
        folded(&support::server(3)).lines().count()
    );
    assert!(
        !text.contains('\u{1b}') && text.contains("a:b\\nc 7"),
        "{text}"
    );
}

#[test]
fn trace_has_each_sleep_inside_its_call() {
    let report = support::server(3);
    let document: Value = serde_json::from_str(&perfetto(&report)).expect("JSON");
    let events = document["traceEvents"].as_array().unwrap();
    // (begin, end) in nanoseconds of each call by thread.
    let span = |e: &Value| {
        let ns = |key: &str| (e[key].as_f64().unwrap() * 1e3).round() as u64;
        (ns("ts"), ns("ts") + ns("dur"))
    };
    let mut calls: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let slices = |category: &'static str| {
        events
            .iter()
            .filter(move |e| e["ph"] == "X" && e["cat"] == category)
    };
    for e in slices("call") {
        calls
            .entry(e["tid"].as_u64().unwrap())
            .or_default()
            .push(span(e));
    }
    assert_eq!(slices("call").count(), report.slow_calls.len());
    assert_eq!(slices("sleep").count(), 2 * report.slow_calls.len());
    for e in slices("sleep").chain(slices("runq")) {
        let (from, to) = span(e);
        let inside = calls[&e["tid"].as_u64().unwrap()]
            .iter()
            .any(|(a, b)| *a <= from && to <= *b);
        assert!(inside, "{e}");
    }
    let held = slices("sleep").any(|e| e["args"]["held by"] == "find 4812 in getdents64");
    assert!(held);
    let named = |kind: &str| events.iter().filter(|e| e["name"] == kind).count();
    assert_eq!(
        named("thread_name"),
        5 + 4 + 1,
        "the workers have other names in the thread table, and one who wakes is in none"
    );
    assert_eq!(named("process_name"), 2);
    // An arrow for each sleep that a thread ended: from a slice of that thread's to
    // the sleep's end.
    let phase = |ph: &'static str| events.iter().filter(move |e| e["ph"] == ph);
    let woken =
        (report.slow_calls.iter()).flat_map(|call| call.sleeps.iter().map(move |s| (call, s)));
    let woken: Vec<_> = woken
        .filter_map(|(call, s)| Some((call, s, s.waker.as_ref().filter(|w| w.tid != 0)?)))
        .collect();
    assert!(!woken.is_empty());
    assert_eq!(phase("s").count(), woken.len());
    for (call, sleep, waker) in woken {
        let at = json!((sleep.start_ns + sleep.blocked_ns) as f64 / 1e3);
        let end = phase("f")
            .find(|e| e["tid"] == call.tid && e["ts"] == at)
            .unwrap();
        let begin = phase("s").find(|e| e["id"] == end["id"]).unwrap();
        assert_eq!((&begin["tid"], &begin["ts"]), (&json!(waker.tid), &at));
        assert!(slices("wake").any(|e| e["tid"] == waker.tid && e["ts"] == at));
    }
    assert_eq!(named("open descriptors"), report.gauges.len());
    assert!(named("clone: mean ns") > 100);
}

fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{shown}: {e}; setup/packages.sh test installs it"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{shown}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Go's own reader of profiles.
#[test]
fn go_tool_pprof_reads_the_profile() {
    let report = support::server(4);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("debox.pb.gz");
    std::fs::write(&file, pprof(&report)).unwrap();
    let go = |index: &str, extra: &[&str]| {
        let mut command = Command::new("go");
        // Go builds the tool when it is first asked for, and wants a place.
        if std::env::var_os("HOME").is_none() {
            command.env("HOME", dir.path());
        }
        command
            .args(["tool", "pprof", "-top", "-nodecount=60"])
            .arg(format!("-sample_index={index}"))
            .args(extra)
            .arg(&file)
            .current_dir(dir.path());
        run(&mut command)
    };
    let text = go("blocked", &["-unit=ns"]);
    let total = format!("{}ns total", blocked_ns(&report));
    assert!(
        text.contains("File: webserver\n") && text.contains("Type: blocked"),
        "{text}"
    );
    assert!(text.contains(&total), "{total}: {text}");
    let row = |name: &str| {
        text.lines()
            .find(|l| l.ends_with(name))
            .unwrap_or_else(|| panic!("no {name}: {text}"))
            .split_whitespace()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    assert_eq!(row(" [inode-lock]")[0], "6210000000ns");
    assert_eq!(
        row(" serve_request")[3],
        format!("{}ns", (6_210 + 2_900 + 1_820 + 1_020) * support::MS)
    );
    let text = go("calls", &[]);
    let calls: u64 = report.call_sites.iter().map(|s| s.count).sum();
    assert!(
        text.contains(&format!("of {calls} total")),
        "{calls}: {text}"
    );
    let text = go("blocked", &["-unit=ns", "-tagfocus=label=journal-commit"]);
    assert!(
        text.contains("1020000000ns, 1.38% of 74162000000ns total"),
        "{text}"
    );
}

#[test]
fn profile_is_gzip_with_its_first_string_empty() {
    let bytes = pprof(&support::server(2));
    let mut inside = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..])
        .read_to_end(&mut inside)
        .expect("gzip");
    // Field 6, length 0: the string table begins with "".
    assert!(inside.windows(2).any(|w| w == [0x32, 0x00]));
}

/// A Python that has DuckDB: the system's, or one of our own.
fn duckdb() -> PathBuf {
    let has = |python: &Path| {
        Command::new(python)
            .args(["-c", "import duckdb"])
            .output()
            .is_ok_and(|o| o.status.success())
    };
    let system = PathBuf::from("python3");
    if has(&system) {
        return system;
    }
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let own = home.join("bin/python");
    if !has(&own) {
        run(Command::new("python3").args(["-m", "venv"]).arg(&home));
        run(Command::new(&own).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "duckdb",
        ]));
    }
    own
}

/// A database that shares no code with us.
#[test]
fn duckdb_reads_the_tables() {
    let mut report = support::server(500);
    let link = |kind, comm: &str, parent| ChainLink {
        kind,
        comm: comm.into(),
        call: None,
        site: None,
        operation: None,
        parent,
        held: false,
    };
    report.chain_links = vec![
        link(ChainKind::Disk, "vda", None),
        link(ChainKind::Sleep, "jbd2", Some(0)),
        link(ChainKind::Sleep, "server", Some(1)),
        link(ChainKind::Earlier, "find", None),
    ];
    report.chains = [(2, 30), (1, 20), (3, 10)]
        .map(|(first, total_ns)| ChainRow {
            first,
            count: 2,
            total_ns,
            max_ns: 9,
        })
        .to_vec();
    report.objects = vec![Object {
        kind: ObjectKind::IoUring,
        text: "io_uring 5 of process 7".into(),
        descriptor: Some(5),
        pid: Some(7),
        ..Object::default()
    }];
    report.by_object = [(Some(0), 30), (None, 20)]
        .map(|(object, total_ns)| ObjectRow {
            call: object.map(|_| "io_uring_enter".into()),
            abi: 64,
            object,
            count: 2,
            total_ns,
            max_ns: 9,
        })
        .to_vec();
    let dir = tempfile::tempdir().unwrap();
    let files = parquet(&report, dir.path()).expect("writes");
    assert_eq!(files.len(), 17);
    let own: u64 = report
        .slow_calls
        .iter()
        .flat_map(|c| &c.sleeps)
        .map(|s| s.blocked_ns)
        .sum();
    let points: usize = report.history.iter().map(|h| h.points.len()).sum();
    let buckets: Vec<_> = report.calls.iter().flat_map(|c| &c.histogram).collect();
    let in_buckets: u64 = buckets.iter().map(|b| b.count).sum();
    let expected = [
        (
            "select count(*), sum(count), sum(wall_ns) from 'calls.parquet'",
            json!([[
                report.calls.len(),
                report.totals.calls,
                report.totals.wall_ns
            ]]),
        ),
        (
            "select count(*), max(length(place)) > 10 from 'call_sites.parquet'",
            json!([[500, true]]),
        ),
        (
            "select label, call, total_ns from 'blocking.parquet' where call is null or label = 'inode-lock' order by total_ns",
            json!([
                ["page-in", null, 212 * support::MS],
                ["inode-lock", "openat", 6_210 * support::MS]
            ]),
        ),
        // Sleeps belong to their calls; unsigned arguments stay whole.
        (
            "select sum(s.blocked_ns), count(distinct c.id), min(c.arg0) from 'sleeps.parquet' s join 'slow_calls.parquet' c on s.slow_call_id = c.id",
            json!([[own, report.slow_calls.len(), 0xffff_ff9cu64]]),
        ),
        (
            "select holder_comm, holder_call, count(*) from 'sleeps.parquet' where label = 'inode-lock' group by all",
            json!([["find", "getdents64", 120]]),
        ),
        (
            "select (select count(*) from 'history.parquet'), (select count(*) from 'gauges.parquet'), (select complete from 'run.parquet'), (select text from 'trends.parquet') like 'clone%'",
            json!([[points, 60, false, true]]),
        ),
        (
            "select root, root_known, max(links), sum(total_ns), sum(count), max(max_ns) from 'chains.parquet' group by all order by 4 desc",
            json!([
                ["disk vda", 1, 3, 50, 4, 9],
                ["find, what it did before is not known", 0, 1, 10, 2, 9]
            ]),
        ),
        (
            "select call, kind, object, peer, total_ns from 'objects.parquet' order by total_ns desc",
            json!([
                [
                    "io_uring_enter",
                    "io_uring",
                    "io_uring 5 of process 7",
                    null,
                    30
                ],
                [null, null, null, null, 20]
            ]),
        ),
        (
            "select count(*), sum(count) from 'histogram.parquet'",
            json!([[buckets.len(), in_buckets]]),
        ),
        // What a call is called, is called the same in every table; errors have
        // their names, and conditions are there.
        (
            "select count(*) from 'calls.parquet' c join 'histogram.parquet' h using (call, abi)",
            json!([[buckets.len()]]),
        ),
        (
            "select distinct retval, error from 'slow_calls.parquet' where error is not null",
            json!([[-2, "ENOENT"]]),
        ),
        (
            "select count(*) from 'slow_calls.parquet' where conditions <> ''",
            json!([[report
                .slow_calls
                .iter()
                .filter(|c| !c.conditions.is_empty())
                .count()]]),
        ),
        // Empty tables are tables too.
        ("select count(*) from 'empty/sleeps.parquet'", json!([[0]])),
    ];
    parquet(&support::empty(), &dir.path().join("empty")).expect("writes");
    let queries: Vec<&str> = expected.iter().map(|e| e.0).collect();
    let script = "import duckdb, json, os, sys\nos.chdir(sys.argv[1])\nprint(json.dumps([duckdb.sql(q).fetchall() for q in sys.argv[2:]]))";
    let text = run(Command::new(duckdb())
        .args(["-c", script])
        .arg(dir.path())
        .args(&queries));
    let answers: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answers.len(), expected.len());
    for ((query, wanted), answer) in expected.iter().zip(&answers) {
        assert_eq!(answer, wanted, "{query}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = parquet(&support::empty(), file.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot make the directory"), "{error}");
}
