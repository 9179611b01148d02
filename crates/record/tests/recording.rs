// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is what was flushed read back, whatever happened to the file since?

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

use debox_record::*;
use debox_report::*;
use proptest::prelude::*;
use std::path::Path;

fn start() -> Start {
    Start {
        debox_version: "0.1.0".into(),
        kind: RunKind::Run,
        capture: Capture::Boundary,
        command: vec!["server".into()],
        pids: vec![],
        cpus: 2,
        started_unix_ns: 1_000,
        kernel: "6.18".into(),
        hostname: "here".into(),
    }
}

/// The report of a run that made `calls` calls so far.
fn report(calls: u64, wall_ns: u64) -> Report {
    // What a recording begins with is the shortest way to an empty report.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty.debox");
    drop(Writer::create(&path, &start()).unwrap());
    let mut report = read(&path).unwrap();
    report.recording = None;
    report.run.wall_ns = wall_ns;
    report.totals.calls = calls;
    report
}

fn point(first: u64, count: u64, time_ns: u64) -> HistoryPoint {
    HistoryPoint {
        time_ns,
        first,
        count,
        wall_ns: count * 1_000,
        p50_ns: 1_000,
        p99_ns: 1_100,
        max_ns: 1_200,
        ..HistoryPoint::default()
    }
}

fn history(points: Vec<HistoryPoint>) -> Vec<CallHistory> {
    vec![CallHistory {
        call: "read".into(),
        abi: 64,
        points,
    }]
}

fn flush(writer: &mut Writer, index: u64, whole: bool) {
    let gauge = Gauge {
        time_ns: index,
        mappings: Some(index),
        ..Gauge::default()
    };
    let from = if whole { 0 } else { index };
    let points = (from..=index).map(|i| point(i * 10, 10, i + 1)).collect();
    writer.flush(&Contents {
        report: &report(index * 10 + 10, index + 1),
        history: history(points),
        gauges: vec![gauge],
        whole,
        until_ns: index + 1,
    });
}

fn written(path: &Path, flushes: u64) -> Writer {
    let mut writer = Writer::create(path, &start()).unwrap();
    for index in 0..flushes {
        flush(&mut writer, index, false);
    }
    writer
}

fn finish(writer: Writer, flushes: u64) {
    let points = (0..flushes).map(|i| point(i * 10, 10, i + 1)).collect();
    let contents = Contents {
        report: &report(flushes * 10, flushes),
        history: history(points),
        gauges: vec![],
        whole: true,
        until_ns: flushes,
    };
    writer.finish(&contents).unwrap();
}

#[test]
fn a_recording_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.debox");
    finish(written(&path, 5), 5);
    let report = read(&path).unwrap();
    let state = report.recording.unwrap();
    assert_eq!((state.complete, state.until_ns, state.why), (true, 5, None));
    assert_eq!(report.totals.calls, 50);
    assert_eq!(report.run.command, ["server"]);
    assert_eq!(report.run.kernel.as_deref(), Some("6.18"));
    // The last block stands for all earlier ones: no point is there twice.
    let points = &report.history[0].points;
    assert_eq!(points.len(), 5);
    assert!(
        points
            .windows(2)
            .all(|w| w[1].first == w[0].first + w[0].count)
    );
}

#[test]
fn cut_at_any_byte_it_is_readable_up_to_the_last_flush() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.debox");
    let mut ends = Vec::new();
    let mut writer = Writer::create(&path, &start()).unwrap();
    let begin = writer.bytes() as usize;
    for index in 0..4 {
        flush(&mut writer, index, false);
        ends.push(writer.bytes() as usize);
    }
    finish(writer, 4);
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        let result = read_bytes(&bytes[..length]);
        if length < begin {
            assert!(result.is_err(), "{length}");
            continue;
        }
        let report = result.unwrap();
        let state = report.recording.unwrap();
        assert!(!state.complete && state.why.is_some(), "{length}");
        let flushed = ends.iter().filter(|end| **end <= length).count() as u64;
        assert!(report.totals.calls >= flushed * 10, "{length}");
        assert!(state.until_ns >= flushed, "{length}");
    }
    assert!(read_bytes(&bytes).unwrap().recording.unwrap().complete);
}

#[test]
fn parts_of_later_versions_are_skipped_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.debox");
    let writer = written(&path, 2);
    drop(writer);
    let mut bytes = std::fs::read(&path).unwrap();
    // A block of type 77, as docs/recording.md describes blocks.
    let payload = b"whatever a later version has to say";
    let mut block = Vec::new();
    for word in [77u32, 0, payload.len() as u32, payload.len() as u32] {
        block.extend_from_slice(&word.to_le_bytes());
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&block);
    hasher.update(payload);
    block.extend_from_slice(&hasher.finalize().to_le_bytes());
    block.extend_from_slice(payload);
    bytes.extend_from_slice(&block);
    let report = read_bytes(&bytes).unwrap();
    assert_eq!(report.totals.calls, 20);
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.text.contains("later version"))
    );
    // A later version of the whole format is refused with both numbers.
    bytes[8] = 9;
    let error = read_bytes(&bytes).unwrap_err();
    assert!(
        error.contains("version 9") && error.contains("version 1"),
        "{error}"
    );
}

#[test]
fn what_is_no_recording_is_refused_in_words() {
    for (bytes, says) in [
        (&b""[..], "is empty"),
        (b"hello", "neither a recording"),
        (b"{\"schema\": 5}", "not a JSON report"),
        (b"\x89DeBox\r\n", "cut off"),
    ] {
        let error = read_bytes(bytes).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let missing = read(Path::new("/nonexistent.debox"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("/nonexistent.debox"), "{missing}");
}

#[test]
fn the_file_does_not_grow_without_bound() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.debox");
    let mut writer = Writer::create(&path, &start()).unwrap();
    let mut big = report(1, 1);
    // Text that does not compress.
    let mut state = 1u64;
    let text: String = (0..400_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'a' + (state >> 59) as u8 % 26)
        })
        .collect();
    big.run.command = vec![text];
    let mut largest = 0;
    for index in 0..400u64 {
        let whole = writer.wants_whole();
        writer.flush(&Contents {
            report: &big,
            history: history(vec![point(index, 1, index)]),
            gauges: vec![],
            whole,
            until_ns: index,
        });
        largest = largest.max(std::fs::metadata(&path).unwrap().len());
    }
    assert!((16 << 20..20 << 20).contains(&largest), "{largest}");
    let contents = Contents {
        report: &big,
        history: history(vec![point(0, 400, 400)]),
        gauges: vec![],
        whole: true,
        until_ns: 400,
    };
    writer.finish(&contents).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length < 2 << 20, "{length}");
    assert!(read(&path).unwrap().recording.unwrap().complete);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// A limit of file sizes acts on the file as a full disk does.
#[test]
fn a_full_disk_costs_only_what_did_not_fit() {
    const CHILD: &str = "DEBOX_TEST_FULL_DISK";
    if let Ok(path) = std::env::var(CHILD) {
        let path = Path::new(&path);
        let mut writer = written(path, 3);
        // SAFETY: changes limits and a disposition of this process.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit {
                rlim_cur: writer.bytes() + 100,
                rlim_max: libc::RLIM_INFINITY,
            };
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        }
        flush(&mut writer, 3, false);
        assert!(writer.wants_whole(), "what was lost must come again");
        let before = std::fs::metadata(path).unwrap().len();
        assert_eq!(before, writer.bytes());
        let contents = Contents {
            report: &report(50, 5),
            history: vec![],
            gauges: vec![],
            whole: true,
            until_ns: 5,
        };
        let error = writer.finish(&contents).unwrap_err().to_string();
        assert!(error.contains("ends at 3 ns"), "{error}");
        let report = read(path).unwrap();
        assert_eq!(report.totals.calls, 30);
        assert!(!report.recording.unwrap().complete);
        // Space again: everything comes with the next flush.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.debox");
    // Through pipes: its limit would act on our output too where that is a file.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_costs_only_what_did_not_fit"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn only_files_of_their_own_are_written() {
    let device = Writer::create(Path::new("/dev/null"), &start())
        .err()
        .unwrap();
    assert!(device.to_string().contains("device"), "{device}");
    let nowhere = Writer::create(Path::new("/nonexistent/x.debox"), &start());
    assert!(nowhere.err().unwrap().to_string().contains("/nonexistent"));
}

fn sample() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.debox");
    finish(written(&path, 3), 3);
    std::fs::read(&path).unwrap()
}

/// A block with a right checksum around any text.
fn framed(kind: u32, flags: u32, stored: &[u8], length: u32) -> Vec<u8> {
    let mut block = Vec::new();
    for word in [kind, flags, stored.len() as u32, length] {
        block.extend_from_slice(&word.to_le_bytes());
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&block);
    hasher.update(stored);
    block.extend_from_slice(&hasher.finalize().to_le_bytes());
    block.extend_from_slice(stored);
    block
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn mutations_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(report) = read_bytes(&bytes) {
            prop_assert!(report.totals.calls <= 30);
        }
    }

    /// The checksum does not protect from those who compute it.
    #[test]
    fn hostile_texts_do_no_harm(
        kind in 0u32..6,
        flags in 0u32..4,
        text in prop_oneof![
            "[\\[\\]{}:,\"a-z0-9]{0,200}",
            Just("{\"until_ns\":1,\"history\":[{\"call\":\"x\",\"abi\":64,\"points\":[]}]}".to_owned()),
        ],
        length in prop_oneof![0u32..300, any::<u32>()],
    ) {
        let mut bytes = sample();
        bytes.extend(framed(kind, flags, text.as_bytes(), length));
        let _ = read_bytes(&bytes);
    }
}

#[test]
fn a_small_file_cannot_ask_for_much_memory() {
    let mut bytes = sample();
    // 40 MiB of empty objects in a few kB: more than a reader makes structs of.
    let text = format!(
        "{{\"until_ns\":1,\"gauges\":[{}{{}}]}}",
        "{},".repeat(14 << 20)
    );
    let packed = zstd::bulk::compress(text.as_bytes(), 3).unwrap();
    assert!(packed.len() < 100_000);
    bytes.extend(framed(3, 1, &packed, text.len() as u32));
    let error = read_bytes(&bytes).unwrap_err();
    assert!(
        error.contains("objects, and what debox writes has at most"),
        "{error}"
    );
    // Nor one whose frame claims more than its header says.
    let mut bytes = sample();
    let packed = zstd::bulk::compress(&vec![b' '; 40 << 20], 3).unwrap();
    bytes.extend(framed(3, 1, &packed, 100));
    assert!(read_bytes(&bytes).is_ok());
}
