// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do findings say what the numbers show, and nothing more?

mod support;

use debox_report::*;
use support::*;

fn titles(report: &Report) -> Vec<String> {
    find_findings(report).into_iter().map(|f| f.title).collect()
}

fn only(report: &Report) -> Finding {
    let mut list = find_findings(report);
    assert_eq!(list.len(), 1, "{list:#?}");
    list.remove(0)
}

#[test]
fn a_users_own_label_has_his_words_and_his_judgement() {
    let mut b = Build::new();
    b.call("ioctl", 100, [20 * MS, 900 * MS, MS]);
    b.blocked("camera", "ioctl", "cam_wait", 100, 900 * MS);
    let mut report = b.done();
    assert!(only(&report).title.contains("waiting in camera"));
    let mut own = LabelMeaning {
        label: "camera".into(),
        meaning: debox_labels::Meaning {
            group: "camera".into(),
            kind: debox_labels::Kind::Loss,
            what: "a picture".into(),
            advice: "Ask for a smaller one.".into(),
        },
    };
    report.labels = vec![own.clone()];
    let finding = only(&report);
    assert!(
        finding.title.contains("waiting for a picture"),
        "{finding:#?}"
    );
    assert_eq!(finding.text, "Ask for a smaller one.");
    own.meaning.kind = debox_labels::Kind::Idle;
    report.labels = vec![own];
    assert!(
        !titles(&report)[0].contains("of the time lost"),
        "{:?}",
        titles(&report)
    );
}

#[test]
fn lock_holder_is_named() {
    let mut b = Build::new();
    b.call("openat", 4_000, [20 * MS, 1_000 * MS, 5 * MS]);
    b.blocked("inode-lock", "openat", "open_last_lookups", 3_000, 680 * MS)
        .waiters_max = 3;
    b.blocked("page-in", "openat", "filemap_read", 100, 320 * MS);
    b.culprit(
        "inode-lock",
        "openat",
        CulpritRole::Holder,
        (812, "find", "getdents64"),
        2_900,
        670 * MS,
    );
    let list = find_findings(&b.done());
    assert_eq!(
        list[0].title,
        "68 % of the blocked time is openat waiting for the inode lock, held by find (pid 812) in getdents64"
    );
    assert!((list[0].share - 0.68).abs() < 1e-9);
    let evidence = list[0].evidence.join("\n");
    assert!(evidence.contains("680 ms in 3,000 sleeps"), "{evidence}");
    assert!(
        evidence.contains("find (pid 812) in getdents64"),
        "{evidence}"
    );
    assert!(evidence.contains("3 other threads"), "{evidence}");
    assert!(list[1].title.starts_with(
        "32 % of the blocked time is openat waiting for pages of files to be read from disk"
    ));
    assert_eq!(list.len(), 2);
}

#[test]
fn holder_of_a_small_part_is_not_blamed() {
    let mut b = Build::new();
    b.call("openat", 4_000, [20 * MS, 1_000 * MS, 5 * MS]);
    b.blocked(
        "inode-lock",
        "openat",
        "open_last_lookups",
        3_000,
        1_000 * MS,
    );
    b.culprit(
        "inode-lock",
        "openat",
        CulpritRole::Holder,
        (812, "find", "getdents64"),
        100,
        300 * MS,
    );
    let title = &titles(&b.done())[0];
    assert!(!title.contains("find"), "{title}");
}

#[test]
fn sync_is_told_per_call() {
    let mut b = Build::new();
    b.call("fsync", 512, [9 * MS, 1_075 * MS, 3 * MS]);
    b.blocked(
        "journal-commit",
        "fsync",
        "jbd2_log_wait_commit",
        512,
        1_020 * MS,
    );
    b.blocked("device-flush", "fsync", "blkdev_issue_flush", 31, 55 * MS);
    let finding = only(&b.done());
    assert_eq!(
        finding.title,
        "fsync: 2.12 ms each, mostly waiting for the journal commit: 100 % of the blocked time"
    );
    assert!(finding.text.contains("fdatasync"), "{}", finding.text);
    assert!(
        finding
            .evidence
            .iter()
            .any(|e| e.contains("device-flush: 55.0 ms"))
    );
}

#[test]
fn cpu_shortage_is_not_blocking() {
    let mut b = Build::new();
    b.call("read", 10_000, [50 * MS, 20 * MS, 900 * MS]).nivcsw = Some(4_000);
    b.blocked("page-in", "read", "filemap_read", 10, 20 * MS);
    let finding = only(&b.done());
    assert!(
        finding
            .title
            .starts_with("93 % of the time in calls (waiting for work aside) is waiting for a CPU"),
        "{}",
        finding.title
    );
    assert!(finding.evidence.join("\n").contains("4,000 switches away"));
}

#[test]
fn cold_cache_counts_faults_of_the_program_as_well() {
    let mut b = Build::new();
    b.call("read", 900, [5 * MS, 300 * MS, MS]).major_faults = Some(7);
    b.blocked("page-in", "read", "filemap_read", 800, 300 * MS);
    b.blocked("page-in", "", "filemap_fault", 400, 700 * MS);
    let finding = only(&b.done());
    assert_eq!(
        finding.title,
        "100 % of the blocked time is the program's own code (page faults) and read waiting for pages of files to be read from disk"
    );
    assert!(
        finding
            .evidence
            .join("\n")
            .contains("7 page faults inside calls")
    );
}

#[test]
fn event_loop_is_no_loss() {
    let mut b = Build::new();
    b.call("epoll_wait", 100, [MS / 10, 9_000 * MS, 0]);
    b.call("read", 100, [MS / 10, 0, 0]);
    b.blocked("epoll", "epoll_wait", "ep_poll", 100, 9_000 * MS);
    let report = b.done();
    let finding = only(&report);
    assert_eq!(
        finding.title,
        "100 % of the blocked time is no loss: epoll_wait waiting for events (epoll)"
    );
}

#[test]
fn workers_that_wait_long_are_idle_and_short_waits_are_contention() {
    let mut b = Build::new();
    b.call("futex", 40, [MS, 40_000 * MS, 0]);
    b.blocked("futex", "futex", "futex_wait_queue", 40, 40_000 * MS);
    let list = titles(&b.done());
    assert!(
        list.iter().any(|t| t.contains("is no loss: futex")),
        "{list:?}"
    );

    let mut b = Build::new();
    b.call("futex", 40_000, [30 * MS, 4_000 * MS, 10 * MS]);
    b.blocked("futex", "futex", "futex_wait_queue", 40_000, 4_000 * MS);
    b.culprit(
        "futex",
        "futex",
        CulpritRole::Waker,
        (813, "worker", "futex"),
        39_000,
        3_900 * MS,
    );
    let finding = only(&b.done());
    assert!(finding.title.starts_with(
        "100 % of the blocked time is futex waiting for locks and conditions of the program itself"
    ));
    assert!(
        finding
            .evidence
            .join("\n")
            .contains("worker (pid 813) in futex ended 39,000 waits")
    );
}

#[test]
fn growth_is_weighed_by_what_it_cost() {
    let mut b = Build::new();
    b.call("clone", 4_000, [24_600 * MS, 0, 0]);
    b.report.trends.push(Trend {
        part: TrendPart::Whole,
        per_call_ns: 0.0,
        call: "clone".into(),
        abi: 64,
        calls: 4_000,
        from_ns: 300_000,
        to_ns: 12_000_000,
        p_value: 1e-9,
        grows_with: vec!["open descriptors".into(), "mappings".into()],
        text: String::new(),
    });
    let list = find_findings(&b.done());
    let grown = list
        .iter()
        .find(|f| f.title.contains("grows"))
        .expect("a trend");
    assert_eq!(
        grown.title,
        "clone grows from 300 µs to 12.0 ms a call as the run goes on, along with open descriptors and mappings"
    );
    assert!(grown.text.contains("posix_spawn"));
    assert!(grown.evidence.join("\n").contains("23.4 s less"));

    // A call that became faster, and one that cost nothing, are not told.
    let mut b = Build::new();
    b.call("read", 100, [5_000 * MS, 0, 0]);
    b.call("fork", 3, [900_000, 0, 0]);
    for (call, from_ns, to_ns) in [("read", 90 * MS, 10 * MS), ("fork", 200_000, 400_000)] {
        b.report.trends.push(Trend {
            part: TrendPart::Whole,
            per_call_ns: 0.0,
            call: call.into(),
            abi: 64,
            calls: 3,
            from_ns,
            to_ns,
            p_value: 1e-9,
            grows_with: vec![],
            text: String::new(),
        });
    }
    let list = titles(&b.done());
    assert!(list.iter().all(|t| !t.contains("grows")), "{list:?}");
}

#[test]
fn storms_of_errors_are_found() {
    let mut b = Build::new();
    b.call("recvfrom", 900_000, [800 * MS, 0, 10 * MS]).errors = 850_000;
    let list = find_findings(&b.done());
    let storm = list
        .iter()
        .find(|f| f.title.contains("fail"))
        .expect("a storm");
    assert_eq!(storm.title, "94 % of the 900,000 recvfrom calls fail");
    assert!(storm.evidence[0].contains("850,000 of 900,000 calls"));
    // Restarted calls were interrupted, they did not fail.
    let mut b = Build::new();
    let row = b.call("recvfrom", 900_000, [800 * MS, 0, 10 * MS]);
    (row.errors, row.restarted) = (850_000, 850_000);
    assert!(titles(&b.done()).iter().all(|t| !t.contains("fail")));
}

#[test]
fn many_short_calls_and_dear_ones_are_told_apart() {
    let mut b = Build::new();
    b.call("getpid", 5_000_000, [600 * MS, 0, 0]);
    b.call("mincore", 400, [400 * MS, 0, 0]);
    let list = titles(&b.done());
    assert_eq!(list.len(), 2);
    assert!(list[0].starts_with("60 %") && list[0].ends_with("many short calls"));
    assert!(list[1].starts_with("40 %") && list[1].contains("mincore"));
    assert!(list[1].ends_with("work inside the kernel, not waiting"));
}

#[test]
fn unknown_places_are_not_explained_away() {
    let mut b = Build::new();
    b.call("ioctl", 50, [MS, 900 * MS, 0]);
    b.blocked(
        "drm_wait_one_vblank",
        "ioctl",
        "drm_wait_one_vblank",
        50,
        900 * MS,
    );
    let finding = only(&b.done());
    assert_eq!(
        finding.title,
        "100 % of the blocked time is ioctl waiting in drm_wait_one_vblank"
    );
    assert!(finding.text.contains("not known"));
}

#[test]
fn says_that_nothing_stands_out() {
    let mut b = Build::new();
    b.call("read", 10, [MS / 10, 0, 0]);
    let report = b.done();
    assert!(find_findings(&report).is_empty());
    let text = nothing_found(&report);
    assert!(
        text.starts_with("Nothing stands out: all calls together took 100 µs of a run of 1.00 s"),
        "{text}"
    );

    let mut report = empty();
    assert!(nothing_found(&report).starts_with("No calls were counted"));
    report.totals.calls = 5;
    report.measured.blocked = false;
    assert!(nothing_found(&report).contains("not measured"));

    // Thirty parts of equal size: none is worth a finding.
    let mut b = Build::new();
    for i in 0..30 {
        b.call(&format!("call{i:02}"), 100, [20 * MS, 0, 0]);
    }
    let report = b.done();
    assert!(find_findings(&report).is_empty());
    assert!(nothing_found(&report).contains("many small parts"));
}

#[test]
fn at_most_three_and_the_dearest_first() {
    let list = find_findings(&server(30));
    assert_eq!(list.len(), 3);
    let shares: Vec<&str> = list.iter().map(|f| f.title.as_str()).collect();
    assert!(
        shares[0].contains("inode lock, held by find (pid 4812) in getdents64"),
        "{shares:#?}"
    );
    assert!(
        list[0]
            .evidence
            .iter()
            .any(|e| e.starts_with("called from cache_open [src/cache.c:77]: 6.21 s")),
        "{:#?}",
        list[0]
    );
    for finding in &list {
        assert!((0.0..=1.0).contains(&finding.share));
        assert!(!finding.text.is_empty() && !finding.evidence.is_empty());
    }
}

#[test]
fn foreign_names_stay_harmless() {
    let mut b = Build::new();
    b.call("openat", 4_000, [20 * MS, 1_000 * MS, 5 * MS]);
    b.blocked(
        "inode-lock",
        "openat",
        "open_last_lookups",
        3_000,
        1_000 * MS,
    );
    b.culprit(
        "inode-lock",
        "openat",
        CulpritRole::Holder,
        (9, "\u{1b}[31mevil", ""),
        3_000,
        990 * MS,
    );
    let title = &titles(&b.done())[0];
    assert!(
        !title.contains('\u{1b}') && title.contains("evil (pid 9)"),
        "{title}"
    );
}
