// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a comparison find what changed, and nothing where nothing did?

mod support;

use debox_report::*;
use support::*;

struct Kind6 {
    name: &'static str,
    mean_ns: f64,
    /// Of the logarithm.
    sigma: f64,
    calls: u64,
}

const CALLS: [Kind6; 6] = [
    Kind6 {
        name: "read",
        mean_ns: 20_000.0,
        sigma: 0.9,
        calls: 1_800,
    },
    Kind6 {
        name: "openat",
        mean_ns: 200_000.0,
        sigma: 1.2,
        calls: 900,
    },
    Kind6 {
        name: "fsync",
        mean_ns: 2_100_000.0,
        sigma: 0.5,
        calls: 600,
    },
    Kind6 {
        name: "futex",
        mean_ns: 150_000.0,
        sigma: 1.4,
        calls: 900,
    },
    Kind6 {
        name: "write",
        mean_ns: 5_000.0,
        sigma: 0.6,
        calls: 1_500,
    },
    Kind6 {
        name: "close",
        mean_ns: 700.0,
        sigma: 0.4,
        calls: 900,
    },
];

const POINTS: u64 = 60;

/// One run. `factor` slows the calls of that name; `wander` makes times drift
/// from point to point, so that neighbours resemble each other.
fn run(dice: &mut Dice, slower: &[(&str, f64)], wander: f64, history: bool) -> Report {
    let mut b = Build::new();
    b.report.run.wall_ns = 10_000 * MS;
    for kind in &CALLS {
        let factor = slower
            .iter()
            .find(|s| s.0 == kind.name)
            .map_or(1.0, |s| s.1);
        let mut points = Vec::new();
        let mut walls = Vec::new();
        let mut drift = 0.0f64;
        for i in 0..POINTS {
            // Of an autoregression with variance 1.
            drift = 0.7 * drift + (1.0f64 - 0.49).sqrt() * dice.normal();
            let count = kind.calls / POINTS + dice.below(kind.calls / POINTS + 1) / 4;
            let first = walls.len();
            for _ in 0..count {
                let log =
                    kind.sigma * dice.normal() - kind.sigma * kind.sigma / 2.0 + wander * drift;
                walls.push((kind.mean_ns * factor * log.exp()) as u64 + 1);
            }
            let wall_ns: u64 = walls[first..].iter().sum();
            points.push(HistoryPoint {
                time_ns: 10_000 * MS * (i + 1) / POINTS,
                first: first as u64,
                count,
                wall_ns,
                blocked_ns: wall_ns * 7 / 10,
                ..Default::default()
            });
        }
        let wall_ns: u64 = walls.iter().sum();
        let count = walls.len() as u64;
        let blocked = wall_ns * 7 / 10;
        let row = b.call(kind.name, count, [wall_ns - blocked, blocked, 0]);
        row.histogram = histogram(&walls);
        row.mean_ns = Some(wall_ns / count);
        walls.sort_unstable();
        let max = walls[walls.len() - 1];
        row.max_ns = Some(max);
        let label = format!("{}-label", kind.name);
        let sleeps = b.blocked(&label, kind.name, "f", count, blocked);
        sleeps.max_ns = max;
        if history {
            b.report.history.push(CallHistory {
                call: kind.name.into(),
                abi: 64,
                points,
            });
        }
    }
    b.done()
}

/// In how many of `pairs` comparisons of equal runs is something found?
fn false_alarms(pairs: u64, wander: f64, history: bool) -> usize {
    (0..pairs)
        .filter(|i| {
            let mut dice = Dice(1_000 + i);
            let a = run(&mut dice, &[], wander, history);
            let b = run(&mut dice, &[], wander, history);
            let options = DiffOptions {
                seed: *i,
                ..Default::default()
            };
            let d = diff(&a, &b, &options).expect("comparable");
            assert!(d.compared >= 20, "{}", d.compared);
            !d.changes.is_empty()
        })
        .count()
}

#[test]
fn equal_runs_give_no_finding() {
    // 3 of 60 are the promise; more than 8 would come by chance once in 200.
    let alarms = false_alarms(60, 0.0, true);
    assert!(alarms <= 8, "{alarms} of 60 with a history");
    let alarms = false_alarms(60, 0.0, false);
    assert!(alarms <= 8, "{alarms} of 60 with histograms");
}

#[test]
fn equal_runs_with_slow_and_fast_stretches_give_none_either() {
    let alarms = false_alarms(60, 0.25, true);
    assert!(alarms <= 9, "{alarms} of 60");
}

#[test]
fn known_shifts_are_found_with_their_size() {
    let mut inside = 0;
    for i in 0..20 {
        let mut dice = Dice(50 + i);
        let a = run(&mut dice, &[], 0.1, true);
        let b = run(&mut dice, &[("fsync", 0.43), ("openat", 2.5)], 0.1, true);
        let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
        let mean = |name: &str| {
            d.changes
                .iter()
                .find(|c| c.kind == Kind::Call && c.name == name && c.metric == Metric::Mean)
                .unwrap_or_else(|| panic!("run {i}: {name} not found: {:#?}", d.changes))
        };
        for (name, true_change) in [("fsync", -0.57), ("openat", 1.5)] {
            let c = mean(name);
            assert_eq!(c.basis, Basis::History);
            if c.low.unwrap() <= true_change && true_change <= c.high.unwrap() {
                inside += 1;
            }
        }
        assert!(
            mean("fsync").text.starts_with("fsync: mean 2."),
            "{}",
            mean("fsync").text
        );
        assert!(
            mean("fsync").text.contains("95 % interval -"),
            "{}",
            mean("fsync").text
        );
        assert!(mean("fsync").effect_ns < 0 && mean("openat").effect_ns > 0);
        // The largest effect stands first.
        assert_eq!(d.changes[0].name, "fsync");
        for other in ["read", "close", "write"] {
            assert!(
                d.changes.iter().all(|c| c.name != other),
                "{other}: {:#?}",
                d.changes
            );
        }
        let text = render_diff(&d, None);
        assert!(
            text.contains("What changed") && text.contains("label fsync-label: blocked "),
            "{text}"
        );
    }
    // 95 % intervals hold the truth in about 38 of 40.
    assert!(inside >= 34, "{inside} of 40");
}

#[test]
fn percentiles_change_with_the_tail() {
    let mut dice = Dice(3);
    let a = run(&mut dice, &[], 0.0, false);
    let mut b = run(&mut dice, &[], 0.0, false);
    // Two calls in a hundred take 50 ms now.
    let row = b.calls.iter_mut().find(|c| c.name == "close").unwrap();
    let slow = row.count / 50;
    let (from_ns, to) = debox_abi::hist_range(debox_abi::hist_bucket(50 * MS));
    row.histogram.push(Bucket {
        from_ns,
        to_ns: Some(to),
        count: slow,
    });
    row.count += slow;
    row.wall_ns = row.wall_ns.map(|ns| ns + slow * 50 * MS);
    row.mean_ns = row.wall_ns.map(|ns| ns / row.count);
    row.max_ns = Some(51 * MS);
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    let p99 = d
        .changes
        .iter()
        .find(|c| c.metric == Metric::P99)
        .expect("a change of p99");
    assert_eq!(p99.name, "close");
    assert!(p99.b > 40.0 * MS as f64, "{p99:?}");
}

#[test]
fn new_and_vanished_are_listed() {
    let mut dice = Dice(9);
    let a = run(&mut dice, &[], 0.0, false);
    let mut b = a.clone();
    b.calls.retain(|c| c.name != "futex");
    b.blocking.retain(|r| r.label != "futex-label");
    b.calls[0].name = "openat2".into();
    let old = a.calls[0].name.clone();
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    let names = |list: &[Only]| list.iter().map(|o| o.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&d.appeared), ["openat2"]);
    let vanished = names(&d.vanished);
    for name in [old.as_str(), "futex", "futex-label"] {
        assert!(vanished.iter().any(|v| v == name), "{vanished:?}");
    }
    let text = render_diff(&d, None);
    assert!(
        text.contains("In b only\n  openat2:") && text.contains("In a only\n"),
        "{text}"
    );
    // A call that was made twice may be missing by chance.
    let mut c = a.clone();
    c.calls[5].count = 2;
    let mut without = a.clone();
    without.calls.remove(5);
    let d = diff(&c, &without, &DiffOptions::default()).expect("comparable");
    assert!(d.vanished.is_empty(), "{:?}", d.vanished);
}

/// Chains of one link: the root.
fn with_roots(mut report: Report, roots: &[(ChainKind, &str, u64, u64)]) -> Report {
    for (kind, comm, count, total_ns) in roots {
        report.chain_links.push(ChainLink {
            by_own: false,
            in_loop: false,
            rests: false,
            means: None,
            class: None,
            kind: *kind,
            comm: (*comm).into(),
            call: None,
            site: None,
            operation: None,
            parent: None,
            held: false,
            stack: None,
        });
        report.chains.push(ChainRow {
            first: report.chain_links.len() - 1,
            count: *count,
            total_ns: *total_ns,
            max_ns: total_ns / count * 2,
        });
    }
    report
}

#[test]
fn roots_are_compared() {
    use ChainKind::{Device, Disk, Earlier};
    let mut dice = Dice(21);
    let runs = [(); 2].map(|()| run(&mut dice, &[], 0.0, false));
    let [a, b] = runs;
    let a = with_roots(
        a,
        &[
            (Disk, "vda", 500, 500 * MS),
            (Device, "eth0", 50, 50 * MS),
            (Earlier, "x", 500, 500 * MS),
        ],
    );
    let b = with_roots(
        b,
        &[
            (Disk, "vda", 500, 3_000 * MS),
            (Disk, "vdb", 30, 30 * MS),
            (Earlier, "x", 500, 5_000 * MS),
        ],
    );
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    let changed: Vec<&str> = (d.changes.iter())
        .filter(|c| c.kind == Kind::Root)
        .map(|c| c.name.as_str())
        .collect();
    // Where knowledge ends is no root.
    assert_eq!(changed, ["disk vda"], "{:#?}", d.changes);
    let names = |list: &[Only]| list.iter().map(|o| o.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&d.appeared), ["disk vdb"]);
    assert_eq!(names(&d.vanished), ["device eth0"]);
    let text = render_diff(&d, None);
    assert!(
        text.contains("root disk vda: blocked 500 ms -> 3.00 s"),
        "{text}"
    );
}

#[test]
fn a_root_is_the_same_at_another_line() {
    let mut dice = Dice(21);
    let mut at_line = |line| {
        let root = (ChainKind::RanUser, "worker", 500, 500 * MS);
        let mut report = with_roots(run(&mut dice, &[], 0.0, false), &[root]);
        report.stacks = vec![UserStack {
            frames: vec![Frame {
                function: Some("work".into()),
                module: Some("server".into()),
                offset: 4,
                file: Some("server.c".into()),
                line: Some(line),
                inlined: false,
            }],
            site_frame: 0,
            cut: false,
        }];
        report.chain_links[0].stack = Some(0);
        report
    };
    let (a, b) = (at_line(10), at_line(20));
    assert!(link_text(&b.chain_links[0], &b).contains("server.c:20"));
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    assert!(d.appeared.is_empty() && d.vanished.is_empty(), "{d:#?}");
}

#[test]
fn the_same_report_twice_has_no_difference() {
    let report = server(500);
    let d = diff(&report, &report, &DiffOptions::default()).expect("comparable");
    assert!(d.changes.is_empty() && d.appeared.is_empty() && d.vanished.is_empty());
    assert!(d.per_run);
    let text = render_diff(&d, None);
    assert!(text.contains("No significant difference in "), "{text}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let a = server(0);
    let mut b = server(0);
    b.run.capture = Capture::Wrap;
    let error = diff(&a, &b, &DiffOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("boundary capture") && error.contains("wrap capture"),
        "{error}"
    );
    let forced = DiffOptions {
        force: true,
        ..Default::default()
    };
    let d = diff(&a, &b, &forced).expect("forced");
    assert!(d.warnings.iter().any(|w| w.contains("wrap capture")));
    let error = diff(&empty(), &a, &DiffOptions::default())
        .unwrap_err()
        .to_string();
    assert_eq!(error, "the first run has no calls");
}

#[test]
fn doubtful_comparisons_warn() {
    let a = server(0);
    let mut b = server(0);
    b.run.wall_ns *= 10;
    b.run.command = vec!["other".into()];
    b.measured.blocked = false;
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    let all = d.warnings.join("\n");
    for part in [
        "lengths",
        "commands",
        "blocking was measured in one run only",
        "first recording ends after 29.9 s",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    assert!(
        d.changes
            .iter()
            .chain(&d.unclear)
            .all(|c| c.metric != Metric::Blocked)
    );
}

#[test]
fn rates_are_compared_when_the_work_differs() {
    let mut dice = Dice(11);
    let a = run(&mut dice, &[], 0.0, true);
    let mut b = run(&mut dice, &[], 0.0, true);
    let fsync = b.history.iter_mut().find(|h| h.call == "fsync").unwrap();
    for p in &mut fsync.points {
        (p.count, p.wall_ns, p.blocked_ns) = (p.count * 3, p.wall_ns * 3, p.blocked_ns * 3);
    }
    let row = b.calls.iter_mut().find(|c| c.name == "fsync").unwrap();
    (row.count, row.wall_ns) = (row.count * 3, row.wall_ns.map(|ns| ns * 3));
    b.totals.calls = b.calls.iter().map(|c| c.count).sum();
    // A command that ended by itself is compared by run ...
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    assert!(d.per_run);
    let number = d
        .changes
        .iter()
        .find(|c| c.metric == Metric::Count)
        .expect("a count");
    assert_eq!(
        (number.name.as_str(), number.basis),
        ("fsync", Basis::Chance)
    );
    assert_eq!(
        number.b,
        b.calls.iter().find(|c| c.name == "fsync").unwrap().count as f64
    );
    // ... one that was stopped, by time.
    b.run.exit = Some(Exit::Signal {
        number: 15,
        name: "SIGTERM".into(),
    });
    let d = diff(&a, &b, &DiffOptions::default()).expect("comparable");
    assert!(!d.per_run);
    let rate = d
        .changes
        .iter()
        .find(|c| c.metric == Metric::Count)
        .expect("a rate");
    assert_eq!(rate.name, "fsync");
    assert!(rate.text.contains(" calls a second (+"), "{}", rate.text);
    assert!((rate.b / rate.a - 3.0).abs() < 0.3, "{rate:?}");
}

/// Of commands that ended by themselves, and of nothing else.
#[test]
fn the_speed_up_is_that_of_finished_commands() {
    let mut dice = Dice(31);
    let mut a = run(&mut dice, &[], 0.0, false);
    let mut b = a.clone();
    a.run.kind = RunKind::Run;
    a.run.exit = Some(Exit::Code(0));
    (b.run.kind, b.run.exit) = (a.run.kind, a.run.exit.clone());
    (a.run.wall_ns, b.run.wall_ns) = (9_000 * MS, 4_000 * MS);
    let between = |a: &Report, b: &Report| diff(a, b, &DiffOptions::default()).expect("comparable");
    let d = between(&a, &b);
    assert_eq!(d.speed_up, Some(2.25));
    for text in [render_diff(&d, None), render_diff_html(&d)] {
        assert!(text.contains("2.25 times as fast: 9.00 s -"), "{text}");
        assert!(text.contains("one run each"), "{text}");
    }
    let text = render_diff(&between(&b, &a), None);
    assert!(
        text.starts_with("2.25 times as long: 4.00 s -> 9.00 s\n"),
        "{text}"
    );
    let text = render_diff(&between(&a, &a), None);
    assert!(text.starts_with("as fast as before: "), "{text}");
    // Half a recording, or a failed command, is no faster.
    let mut half = b.clone();
    half.recording = Some(RecordingState {
        complete: false,
        until_ns: 4_000 * MS,
        why: None,
    });
    b.run.exit = Some(Exit::Code(1));
    for other in [half, b] {
        let d = between(&a, &other);
        assert_eq!(d.speed_up, None);
        assert!(render_diff(&d, None).contains("is not known"));
    }
}
