// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can a small file make its reader do?
//!
//! Each of these files took seconds or gigabytes once. With DEBOX_CORPUS=DIR
//! the test writes them there: fuzz/corpus/recording holds the small ones.

use debox_record::*;
use debox_report::*;
use std::io::Write as _;

const START: u32 = 1;
const REPORT: u32 = 2;
const HISTORY: u32 = 3;
const END: u32 = 4;

/// A recording with these blocks, written by docs/recording.md and not by the
/// library, which would refuse.
fn file(blocks: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = b"\x89DeBox\r\n".to_vec();
    for word in [1u32, 16] {
        out.extend(word.to_le_bytes());
    }
    let mut packed: Vec<(&[u8], Vec<u8>)> = Vec::new();
    for (kind, flags, text) in blocks {
        // Most are like the one before.
        if packed.last().is_none_or(|(known, _)| known != text) {
            packed.push((text, zstd::bulk::compress(text, 3).unwrap()));
        }
        let stored = &packed[packed.len() - 1].1;
        let mut head = Vec::new();
        for word in [*kind, flags | 1, stored.len() as u32, text.len() as u32] {
            head.extend(word.to_le_bytes());
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&head);
        hasher.update(stored);
        out.extend(&head);
        out.extend(hasher.finalize().to_le_bytes());
        out.extend(&stored[..]);
    }
    out
}

fn begin() -> (u32, u32, Vec<u8>) {
    let text = r#"{"debox_version":"0.1.0","kind":"run","capture":"boundary","command":["x"],"pids":[],
        "cpus":1,"started_unix_ns":1,"kernel":"6.18","hostname":"h"}"#;
    (START, 0, text.into())
}

/// The shortest report, as JSON with one more field.
fn report(calls: u64, more: &str) -> Vec<u8> {
    format!(
        r#"{{"schema":"debox.report","schema_version":1,"debox_version":"0.1.0","run":{{"kind":"run",
        "command":["x"],"pids":[],"capture":"boundary","wall_ns":5,"exit":null,"cpus":1}},"measured":
        {{"blocked":true,"runq":true,"minor_faults":true,"major_faults":true,"switches":true,"sites":true}},
        "totals":{{"calls":{calls},"errors":0,"restarted":0,"unfinished":0,"wall_ns":1,"cpu_ns":1,
        "blocked_ns":0,"runq_ns":0,"minor_faults":0,"major_faults":0,"nvcsw":0,"nivcsw":0,"sleeps":0,
        "sleeps_ns":0,"processes_started":0,"threads_started":0,"threads_ended":0}},"calls":[],
        "blocking":[],"call_sites":[],"open_calls":[],"notes":[]{more}}}"#
    )
    .into_bytes()
}

fn keep(name: &str, bytes: &[u8]) {
    if let Some(directory) = std::env::var_os("DEBOX_CORPUS") {
        let path = std::path::Path::new(&directory).join(name);
        std::fs::File::create(path)
            .unwrap()
            .write_all(bytes)
            .unwrap();
    }
}

fn refused(name: &str, bytes: &[u8]) -> String {
    keep(name, bytes);
    read_bytes(bytes).expect_err(name)
}

#[test]
fn reports_that_a_later_one_stands_for_are_not_unpacked() {
    // 48 reports of 40 MiB each, in 190 kB: the last one is small.
    let long = report(1, &format!(r#","later":"{}""#, "a".repeat(40 << 20)));
    let mut blocks = vec![begin()];
    blocks.extend((0..48).map(|_| (REPORT, 2, long.clone())));
    // Not even text: whoever unpacks it, says so.
    blocks.push((REPORT, 2, b"no report".to_vec()));
    blocks.push((REPORT, 2, report(7, "")));
    blocks.push((END, 0, br#"{"until_ns":5}"#.to_vec()));
    let bytes = file(&blocks);
    assert!(bytes.len() < 220_000, "{}", bytes.len());
    keep("reports", &bytes);
    let read = read_bytes(&bytes).unwrap();
    assert_eq!(read.totals.calls, 7);
    assert!(read.recording.unwrap().complete);

    // The last one senseless: the one before counts, and the damage is told.
    blocks.truncate(blocks.len() - 2);
    blocks[48] = (REPORT, 2, report(9, ""));
    let read = read_bytes(&file(&blocks)).unwrap();
    assert_eq!(read.totals.calls, 9);
    let state = read.recording.unwrap();
    assert!(state.why.unwrap().starts_with("it is damaged at byte "));
}

#[test]
fn what_a_file_unpacks_to_is_bounded() {
    // History adds up, so all of it counts: 24 blocks of 40 MiB.
    let spaces = " ".repeat(40 << 20);
    let text = format!(r#"{{"until_ns":5,"history":[],"gauges":[]{spaces}}}"#).into_bytes();
    let mut blocks = vec![begin(), (REPORT, 2, report(1, ""))];
    blocks.extend((0..24).map(|_| (HISTORY, 0, text.clone())));
    let error = refused("expands", &file(&blocks));
    assert!(
        error.contains("unpacks to more than 128 MiB and 32 times its size"),
        "{error}"
    );
    // What a later block stands for does not.
    blocks.push((HISTORY, 2, br#"{"until_ns":6}"#.to_vec()));
    assert_eq!(
        read_bytes(&file(&blocks))
            .unwrap()
            .recording
            .unwrap()
            .until_ns,
        6
    );

    let error = refused(
        "one-block",
        &file(&[begin(), (REPORT, 2, " ".repeat(49 << 20).into_bytes())]),
    );
    assert!(error.contains("bytes of text in one block"), "{error}");
}

#[test]
fn blocks_that_make_no_sense_are_not_tried_for_ever() {
    let mut blocks = vec![begin(), (REPORT, 2, report(3, ""))];
    blocks.extend((0..8).map(|_| (REPORT, 2, b"[]".to_vec())));
    assert_eq!(read_bytes(&file(&blocks)).unwrap().totals.calls, 3);
    blocks.extend((0..100_000).map(|_| (REPORT, 2, b"[]".to_vec())));
    let error = read_bytes(&file(&blocks)).unwrap_err();
    assert!(error.contains("make no sense"), "{error}");
    // Two million of nothing.
    let mut bytes = file(&[begin()]);
    let empty = &file(&[(77, 0, vec![])])[16..].to_vec();
    let many = empty.repeat((1 << 20) + 1);
    bytes.extend(many);
    let error = read_bytes(&bytes).unwrap_err();
    assert!(
        error.contains("blocks, and what debox writes has at most 1,048,576"),
        "{error}"
    );
}

#[test]
fn lists_that_no_account_can_fill_are_refused() {
    let history = |i: usize| format!(r#"{{"call":"c{i}","abi":64,"points":[]}}"#);
    let many: Vec<String> = (0..100_000).map(history).collect();
    let block = format!(r#"{{"until_ns":5,"history":[{}]}}"#, many.join(","));
    let bytes = file(&[
        begin(),
        (REPORT, 2, report(1, "")),
        (HISTORY, 0, block.into_bytes()),
    ]);
    let error = refused("histories", &bytes);
    assert!(
        error.contains("holds 100,000 histories, and what debox writes has at most 1,024"),
        "{error}"
    );
    // A few more in each block are no way round it.
    let blocks: Vec<_> = [begin(), (REPORT, 2, report(1, ""))]
        .into_iter()
        .chain(many.chunks(1000).take(2).map(|list| {
            let text = format!(r#"{{"until_ns":5,"history":[{}]}}"#, list.join(","));
            (HISTORY, 0, text.into_bytes())
        }))
        .collect();
    let error = read_bytes(&file(&blocks)).unwrap_err();
    assert!(error.contains("1,025 histories"), "{error}");

    // In a report, as a block and as a file of JSON.
    let call = r#"{"start_ns":0,"pid":1,"tid":1,"comm":"c","call":"read","abi":64,"retval":0,
        "args":[0,0,0,0,0,0],"path":null,"wall_ns":1,"cpu_ns":1,"blocked_ns":0,"runq_ns":0,"minor_faults":0,
        "major_faults":0,"stack":null,"conditions":[],"sleeps":[],"sleeps_dropped":0,"sleeps_dropped_ns":0}"#;
    let calls = vec![call; 3_001].join(",");
    let pid = vec!["1"; (1 << 20) + 1].join(",");
    for (more, what) in [
        (format!(r#","slow_calls":[{calls}]"#), "3,001 slow calls"),
        (
            format!(r#","later":[{pid},{pid},{pid},{pid},{pid},{pid},{pid},{pid}]"#),
            "fields and elements",
        ),
        (
            format!(r#","later":[{{}}{}]"#, ",{}".repeat(1 << 20)),
            "objects",
        ),
    ] {
        let text = report(1, &more);
        let error = read_bytes(&text).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
        let error = read_bytes(&file(&[begin(), (REPORT, 2, text)])).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }

    // Who slept, at all places together: one of each chain, and of each thread that still sleeps.
    let row = |names: usize| {
        let names = vec![r#"{"comm":"c","count":1,"total_ns":1}"#; names].join(",");
        format!(
            r#"{{"label":"l","unlabelled":false,"call":null,"abi":64,"function":null,"offset":null,"file":null,
            "line":null,"count":1,"total_ns":1,"mean_ns":1,"max_ns":1,"share":1.0,"waiters_mean":null,
            "waiters_max":null,"by_name":[{names}]}}"#
        )
    };
    let blocked = |rows: String| {
        let text = String::from_utf8(report(1, "")).unwrap();
        let text = text.replace(r#""blocking":[]"#, &format!(r#""blocking":[{rows}]"#));
        read_bytes(text.as_bytes())
    };
    assert_eq!(
        blocked(row(81_921)).unwrap().blocking[0].by_name.len(),
        81_921
    );
    let error = blocked(format!("{0},{0}", row(43_009))).unwrap_err();
    assert!(error.contains("86,018 names of who slept"), "{error}");
}

#[test]
fn the_fullest_report_of_a_run_is_within_the_bounds() {
    // As many of everything as an account and an observer can hold.
    let mut full = read_bytes(&report(1, "")).unwrap();
    // Every call at its longest would be more than one block takes; no program
    // makes a tenth of all calls.
    full.history = (0..256)
        .map(|i| CallHistory {
            call: format!("call{i}"),
            abi: 64,
            points: vec![HistoryPoint::default(); POINTS_MAX],
        })
        .collect();
    full.gauges = vec![Gauge::default(); 512];
    full.stacks = vec![UserStack::default(); debox_abi::DEBOX_USER_STACKS_MAX];
    let path = PathRow {
        call: None,
        abi: 64,
        stack: None,
        site: None,
        count: 1,
        total_ns: 1,
        max_ns: 1,
    };
    full.paths = vec![path; debox_abi::DEBOX_PATH_ROWS_MAX];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("full.debox");
    let start = Start {
        debox_version: "0.1.0".into(),
        kind: RunKind::Run,
        capture: Capture::Boundary,
        command: vec![],
        pids: vec![],
        cpus: 1,
        started_unix_ns: 1,
        kernel: String::new(),
        hostname: String::new(),
    };
    let history = std::mem::take(&mut full.history);
    let gauges = std::mem::take(&mut full.gauges);
    let contents = Contents {
        report: &full,
        history,
        gauges,
        whole: true,
        until_ns: 1,
    };
    let mut writer = Writer::create(&path, &start).unwrap();
    writer.flush(&contents);
    writer.finish(&contents).unwrap();
    let back = read(&path).unwrap();
    assert_eq!(back.history.len(), 256);
    assert_eq!(back.paths.len(), debox_abi::DEBOX_PATH_ROWS_MAX);
    assert!(back.recording.unwrap().complete);
}
