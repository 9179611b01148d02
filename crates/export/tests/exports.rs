// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do other tools read the exports, and find the same numbers?

#[path = "../../report/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use debox_export::*;
use debox_report::{
    ChainKind, ChainLink, ChainRow, CriticalKind, CriticalPart, CriticalPath, LifeRow, LifeTime,
    Object, ObjectKind, ObjectRow, OnCpu, OnCpuFrame, OnCpuFunction, OnCpuGroup, OnCpuKind,
    OnCpuRow, Report,
};
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

fn sampled(comm: &str, work: &str) -> OnCpu {
    let function = |name: Option<&str>, module: Option<&str>| OnCpuFunction {
        name: name.map(str::to_owned),
        module: module.map(str::to_owned),
        own: 0,
        total: 0,
    };
    let frame = |function, caller| OnCpuFrame { function, caller };
    let row = |kind, call: Option<&str>, frame, samples| OnCpuRow {
        group: 0,
        kind,
        call: call.map(str::to_owned),
        abi: 64,
        frame,
        samples,
    };
    OnCpu {
        hz: 99,
        samples: 109,
        groups: vec![OnCpuGroup {
            comm: comm.into(),
            samples: 109,
            ..OnCpuGroup::default()
        }],
        functions: vec![
            function(Some("main"), Some("server")),
            function(Some(work), Some("server")),
            function(Some("vfs_read"), None),
            function(None, Some("libx.so")),
        ],
        frames: vec![
            frame(0, None),
            frame(1, Some(0)),
            frame(2, Some(1)),
            frame(3, Some(0)),
        ],
        rows: vec![
            row(OnCpuKind::User, None, Some(1), 70),
            row(OnCpuKind::Call, Some("read"), Some(2), 20),
            row(OnCpuKind::User, None, Some(3), 10),
            row(OnCpuKind::Interrupt, None, None, 9),
        ],
        ..OnCpu::default()
    }
}

#[test]
fn folded_cpu_stacks_keep_all_samples() {
    let mut report = support::server(0);
    assert_eq!(folded_cpu(&report), "");
    report.on_cpu = Some(sampled("worker", "work"));
    assert_eq!(
        folded_cpu(&report),
        "worker;(soft interrupt) 9\n\
         worker;main;(libx.so) 10\n\
         worker;main;work 70\n\
         worker;main;work;read;vfs_read_[k] 20\n"
    );
    report.on_cpu = Some(sampled("a;b\nc 7\u{1b}[31m", "f;\ng 3"));
    let text = folded_cpu(&report);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(
        !text.contains('\u{1b}') && text.contains("a:b\\nc 7"),
        "{text}"
    );
    // A recording's numbers are foreign.
    let on_cpu = report.on_cpu.as_mut().unwrap();
    on_cpu.frames[0].caller = Some(1);
    on_cpu.frames[2].function = 99;
    on_cpu.rows[2].group = 99;
    on_cpu.rows[3].frame = Some(99);
    assert_eq!(folded_cpu(&report).lines().count(), 4);
}

#[test]
fn folded_lives_keep_all_time() {
    let mut report = support::server(0);
    assert_eq!(folded_all(&report), "");
    report.on_cpu = Some(sampled("a;b", "work"));
    report.lives = vec![LifeRow {
        comm: "a;b".into(),
        time: LifeTime {
            life_ns: 900,
            own_ns: 89,
            calls_ns: 300,
            blocked_ns: 500,
            runq_ns: 11,
            ..LifeTime::default()
        },
        ..LifeRow::default()
    }];
    assert_eq!(
        folded_all(&report),
        "a:b;(blocked) 500\n\
         a:b;(on a CPU);(soft interrupt) 9\n\
         a:b;(on a CPU);main;(libx.so) 10\n\
         a:b;(on a CPU);main;work 70\n\
         a:b;(on a CPU);main;work;read;vfs_read_[k] 300\n\
         a:b;(waiting for a CPU) 11\n"
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
    // What lies between the sleeps: with them, and with waiting for a CPU, the whole call.
    assert!(slices("cpu").count() > 0);
    for call in &report.slow_calls {
        let mine = |category| {
            let events: Vec<_> = slices(category).collect();
            let (from, to) = (call.start_ns, call.start_ns + call.wall_ns);
            let inside = events.into_iter().filter(|e| e["tid"] == call.tid);
            inside
                .map(span)
                .filter(|(a, b)| from <= *a && *b <= to)
                .map(|(a, b)| b - a)
                .sum::<u64>()
        };
        if call.sleeps_dropped == 0 && mine("cpu") > 0 {
            let all = mine("cpu") + mine("sleep") + mine("runq");
            assert_eq!(all, call.wall_ns, "{call:?}");
        }
    }
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

/// What the trace event format asks for, and what viewers need beyond it: slices of a
/// thread lie inside of each other or apart, and an arrow has a slice at both ends.
fn check_trace(document: &Value) {
    assert_eq!(document["displayTimeUnit"], "ns");
    let events = document["traceEvents"].as_array().expect("events");
    let number = |e: &Value, key: &str| e[key].as_f64().unwrap_or_else(|| panic!("{key}: {e}"));
    let ns = |us: f64| (us * 1e3).round() as u64;
    let mut slices: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let thread = |e: &Value| {
        (
            e["pid"].as_u64().expect("pid"),
            e["tid"].as_u64().unwrap_or(0),
        )
    };
    let mut arrows: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for e in events {
        assert!(e["name"].is_string() && e["pid"].is_u64(), "{e}");
        match e["ph"].as_str().expect("phase") {
            "X" => {
                let from = ns(number(e, "ts"));
                let to = from + ns(number(e, "dur"));
                assert!(
                    e["tid"].is_u64() && e["cat"].is_string() && e["args"].is_object(),
                    "{e}"
                );
                slices.entry(thread(e)).or_default().push((from, to));
            }
            "s" | "f" => {
                assert!(e["tid"].is_u64() && e["cat"].is_string(), "{e}");
                number(e, "ts");
                arrows
                    .entry(e["id"].as_u64().expect("id"))
                    .or_default()
                    .push(e);
            }
            "C" => {
                number(e, "ts");
                let values = e["args"].as_object().expect("values");
                assert!(
                    !values.is_empty() && values.values().all(Value::is_number),
                    "{e}"
                );
            }
            "M" => match e["name"].as_str().unwrap() {
                "process_name" | "thread_name" => assert!(e["args"]["name"].is_string(), "{e}"),
                "process_sort_index" => assert!(e["args"]["sort_index"].is_i64(), "{e}"),
                other => panic!("{other}: {e}"),
            },
            other => panic!("{other}: {e}"),
        }
    }
    for (thread, slices) in &mut slices {
        slices.sort_by_key(|(from, to)| (*from, std::cmp::Reverse(*to)));
        let mut open: Vec<u64> = Vec::new();
        for (from, to) in slices.iter() {
            open.retain(|end| end > from);
            assert!(
                open.last().is_none_or(|end| to <= end),
                "slices of {thread:?} overlap at {from}"
            );
            open.push(*to);
        }
    }
    for arrow in arrows.values() {
        let [begin, end] = arrow[..] else {
            panic!("{arrow:?}");
        };
        assert_eq!((&begin["ph"], &end["ph"]), (&json!("s"), &json!("f")));
        assert_eq!(end["bp"], "e");
        assert!(number(begin, "ts") <= number(end, "ts"));
        for e in [begin, end] {
            let at = ns(number(e, "ts"));
            let held = slices[&thread(e)].iter().any(|(a, b)| *a <= at && at <= *b);
            assert!(held, "an arrow in the air: {e}");
        }
    }
}

#[test]
fn a_trace_is_what_viewers_read() {
    let mut report = support::server(40);
    report.critical_path = Some(CriticalPath {
        pid: 1,
        total_ns: 1_000,
        parts: vec![
            CriticalPart {
                comm: Some("worker".into()),
                kind: CriticalKind::Own,
                chain: None,
                total_ns: 600,
            },
            CriticalPart {
                comm: None,
                kind: CriticalKind::Runq,
                chain: None,
                total_ns: 300,
            },
            CriticalPart {
                comm: Some("worker".into()),
                kind: CriticalKind::Calls,
                chain: None,
                total_ns: 100,
            },
        ],
    });
    let document: Value = serde_json::from_str(&perfetto(&report)).expect("JSON");
    check_trace(&document);
    let events = document["traceEvents"].as_array().unwrap();
    let path: Vec<(&str, f64, f64)> = events
        .iter()
        .filter(|e| e["cat"] == "critical")
        .map(|e| {
            (
                e["name"].as_str().unwrap(),
                e["ts"].as_f64().unwrap(),
                e["dur"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        path,
        [
            ("worker", 0.0, 0.7),
            ("its own code on a CPU", 0.0, 0.6),
            ("system calls on a CPU", 0.6, 0.1),
            ("(several)", 0.7, 0.3),
            ("waiting for a CPU", 0.7, 0.3),
        ]
    );
    // A time between sleeps of which some are missing, or in which another thread had the
    // CPU, is not said to be on a CPU.
    let call = &mut report.slow_calls[0];
    call.runq_ns += 5;
    let (pid, start) = (call.pid, call.start_ns as f64 / 1e3);
    let named = |report: &Report| {
        let document: Value = serde_json::from_str(&perfetto(report)).unwrap();
        check_trace(&document);
        let events = document["traceEvents"].as_array().unwrap().clone();
        let found = events
            .into_iter()
            .find(|e| e["cat"] == "cpu" && e["pid"] == pid && e["ts"] == json!(start));
        found.map(|e| e["name"].clone())
    };
    assert_eq!(named(&report), Some(json!("on CPU, or preempted")));
    report.slow_calls[0].sleeps_dropped = 1;
    assert_eq!(named(&report), None);
    check_trace(&serde_json::from_str(&perfetto(&support::hostile())).unwrap());
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
        by_own: false,
        in_loop: false,
        rests: false,
        means: None,
        class: None,
        kind,
        comm: comm.into(),
        call: None,
        site: None,
        operation: None,
        parent,
        held: false,
        stack: None,
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
