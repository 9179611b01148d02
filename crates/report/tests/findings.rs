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
        .waiters_max = Some(3);
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

/// 3 in 1,000 calls have nearly all of a call's time.
fn rare_and_long(label: &str) -> Report {
    let mut b = Build::new();
    let row = b.call("getdents64", 100_000, [30 * MS, 450 * MS, 0]);
    row.p50_ns = Some(250);
    row.max_ns = Some(3 * MS);
    row.histogram = vec![
        Bucket {
            from_ns: 240,
            to_ns: Some(256),
            count: 99_700,
        },
        Bucket {
            from_ns: MS,
            to_ns: Some(2 * MS),
            count: 300,
        },
    ];
    b.blocked(label, "getdents64", "fdget_pos", 300, 450 * MS);
    b.culprit(
        label,
        "getdents64",
        CulpritRole::Holder,
        (812, "reader", "read"),
        300,
        440 * MS,
    );
    b.done()
}

#[test]
fn few_calls_that_have_the_time_are_told_by_their_number() {
    let mut report = rare_and_long("file-position");
    let finding = only(&report);
    assert_eq!(
        finding.title,
        "300 of 100,000 getdents64 calls took 94 % of the call's time, 1.00 ms or more each, waiting for the position \
         of an open file that another thread is using, held by reader (pid 812) in read"
    );
    assert!(
        finding.evidence[0].contains("half of its 100,000 calls took 250 ns at most"),
        "{finding:#?}"
    );
    // Where all are long, or the long ones are many, it is a wait as any other.
    report.calls[0].histogram[1].count = 3_000;
    assert!(titles(&report)[0].starts_with("100 % of the blocked time is getdents64"));
    report.calls[0].histogram[1].count = 300;
    report.calls[0].p50_ns = Some(MS / 2);
    assert!(titles(&report)[0].starts_with("100 % of the blocked time is getdents64"));
    // Nothing came: that is no loss, however long.
    for label in ["poll", "nanosleep", "socket-read"] {
        let all = titles(&rare_and_long(label)).concat();
        assert!(!all.contains("300 of 100,000"), "{all}");
    }
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
fn the_kernels_threads_of_each_cpu_are_one() {
    let list = |wakers: &[&str]| {
        let mut b = Build::new();
        b.call("futex", 40_000, [30 * MS, 4_000 * MS, 10 * MS]);
        b.blocked("futex", "futex", "futex_wait_queue", 40_000, 4_000 * MS);
        for (pid, name) in (13..).zip(wakers) {
            let role = CulpritRole::Waker;
            b.culprit("futex", "futex", role, (pid, name, ""), 1_000, 400 * MS);
        }
        only(&b.done()).evidence.join("\n")
    };
    let told = list(&["ksoftirqd/0", "ksoftirqd/1"]);
    assert!(
        told.contains("ksoftirqd/* (2 processes) ended 2,000 waits"),
        "{told}"
    );
    let told = list(&["serve/a", "serve/b"]);
    assert!(
        told.contains("serve/a (pid 13)") && told.contains("serve/b (pid 14)"),
        "{told}"
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
            .any(|e| e.starts_with("called from cache_open (cache.c:77): 6.21 s")),
        "{:#?}",
        list[0]
    );
    for finding in &list {
        assert!((0.0..=1.0).contains(&finding.share));
        assert!(!finding.text.is_empty() && !finding.evidence.is_empty());
    }
}

#[test]
fn processes_of_one_command_are_one_culprit() {
    let mut b = Build::new();
    let mut woke = |who: (u32, &str, &str), count, total_ns| {
        b.culprit(
            "unix-recv",
            "recvmsg",
            CulpritRole::Waker,
            who,
            count,
            total_ns,
        );
    };
    for pid in 100..115 {
        woke((pid, "helper", "sendmsg"), 10, 20 * MS);
    }
    woke((7, "ksoftirqd/0", ""), 3, 10 * MS);
    woke((8, "ksoftirqd/1", ""), 3, 10 * MS);
    woke((0, "(interrupt)", ""), 3, 5 * MS);
    let held = (100, "helper", "sendmsg");
    b.culprit("unix-recv", "recvmsg", CulpritRole::Holder, held, 1, MS);
    let report = b.done();
    let groups = culprit_groups(&report, &report);
    let told: Vec<_> = (groups.iter())
        .map(|group| {
            let of = &group.of;
            let processes = group.pids.len();
            (
                of.comm.as_str(),
                of.role,
                processes,
                group.count,
                group.total_ns,
            )
        })
        .collect();
    use CulpritRole::{Holder, Waker};
    assert_eq!(
        told,
        [
            ("helper", Waker, 15, 150, 300 * MS),
            ("ksoftirqd/*", Waker, 2, 6, 20 * MS),
            ("", Waker, 0, 3, 5 * MS),
            ("helper", Holder, 1, 1, MS),
        ]
    );
    assert_eq!(groups[0].max_ns, 4 * MS);
    assert_eq!(render_html(&report).matches("15 processes").count(), 1);
    // JSON has each.
    assert_eq!(report.culprits.len(), 19);
}

#[test]
fn a_place_has_one_spelling_in_a_report() {
    let report = server(20);
    let page = render_html(&report);
    for text in [render_text(&report, &TextOptions::default()), page] {
        for place in [
            "cache_open (cache.c:77)",
            "open_last_lookups (fs/namei.c:3517)",
        ] {
            assert!(text.contains(place), "{place}:\n{text}");
        }
        for other in ["cache_open [", "src/cache.c", "open_last_lookups ["] {
            assert!(!text.contains(other), "{other}:\n{text}");
        }
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

#[test]
fn files_that_are_not_there_are_told_as_a_search() {
    let mut b = Build::new();
    let row = b.call("openat", 52_000, [400 * MS, 0, 4 * MS]);
    (row.errors, row.missing) = (50_000, 50_000);
    b.call("read", 2_000, [20 * MS, 0, 0]);
    let report = b.done();
    let list = find_findings(&report);
    assert_eq!(
        list[0].title,
        "50,000 of 52,000 openat calls ask for files that are not there"
    );
    // Said once, not again as a call that fails or is dear.
    assert_eq!(list.len(), 1, "{list:#?}");
    // Other errors are told as before.
    let mut b = Build::new();
    b.call("openat", 52_000, [400 * MS, 0, 4 * MS]).errors = 50_000;
    assert!(titles(&b.done()).iter().any(|title| title.contains("fail")));
}

#[test]
fn one_byte_at_a_time() {
    let mut b = Build::new();
    b.call("read", 90_000, [90 * MS, 0, 0]).ones = 90_000;
    b.call("write", 400_000, [800 * MS, 0, 4 * MS]).ones = 399_000;
    let list = find_findings(&b.done());
    assert_eq!(
        list[0].title,
        "399,000 of 400,000 write calls move one byte each"
    );
    // Little of the time is no finding.
    let mut b = Build::new();
    b.call("write", 4_000, [2 * MS, 0, 0]).ones = 4_000;
    b.call("read", 400, [200 * MS, 300 * MS, 0]);
    assert!(!titles(&b.done()).concat().contains("one byte"));
}

#[test]
fn seeks_beside_reads() {
    let mut b = Build::new();
    b.call("lseek", 100_000, [300 * MS, 0, 0]);
    b.call("read", 100_000, [300 * MS, 0, 0]);
    let all = titles(&b.done()).join("\n");
    assert!(
        all.contains("lseek is called 100,000 times, beside 100,000"),
        "{all}"
    );
    let mut b = Build::new();
    b.call("lseek", 10_000, [30 * MS, 0, 0]);
    b.call("read", 100_000, [300 * MS, 0, 0]);
    assert!(!titles(&b.done()).concat().contains("lseek is called"));
}

#[test]
fn processes_that_live_for_a_moment() {
    let mut b = Build::new();
    b.call("wait4", 400, [2 * MS, 1_000 * MS, MS]);
    let mut report = b.done();
    report.lives = vec![LifeRow {
        comm: "true".into(),
        processes: 400,
        threads: 400,
        time: LifeTime {
            life_ns: 400 * 2 * MS,
            own_ns: 400 * MS,
            ..LifeTime::default()
        },
        ..LifeRow::default()
    }];
    let all = titles(&report).join("\n");
    assert!(
        all.contains("400 processes of true lived for 2.00 ms each"),
        "{all}"
    );
    report.lives[0].time.own_ns = 40_000 * MS;
    report.lives[0].time.life_ns = 40_000 * MS;
    assert!(!titles(&report).concat().contains("lived for"));
}

#[test]
fn one_file_that_many_sync() {
    let mut b = Build::new();
    b.call("fsync", 300, [5 * MS, 900 * MS, MS]);
    b.blocked(
        "journal-commit",
        "fsync",
        "jbd2_log_wait_commit",
        300,
        900 * MS,
    )
    .waiters_max = Some(3);
    let mut report = b.done();
    report.objects = vec![Object {
        text: "/var/lib/x/wal".into(),
        ..Object::default()
    }];
    report.by_object = vec![ObjectRow {
        call: Some("fsync".into()),
        abi: 64,
        object: Some(0),
        count: 300,
        total_ns: 890 * MS,
        max_ns: 9 * MS,
    }];
    let all = titles(&report).join("\n");
    assert!(
        all.contains("/var/lib/x/wal is synced by several threads at once: 890 ms of fsync, while up to 3 others"),
        "{all}"
    );
    // Alone, or many files: nothing of the kind.
    report.blocking[0].waiters_max = None;
    assert!(!titles(&report).concat().contains("is synced by"));
    report.blocking[0].waiters_max = Some(3);
    report.by_object[0].total_ns = 90 * MS;
    assert!(!titles(&report).concat().contains("is synced by"));
}

#[test]
fn the_table_of_open_files_and_the_address_space() {
    let mut b = Build::new();
    b.call("openat", 4_000, [20 * MS, 400 * MS, 5 * MS]);
    b.blocked("fd-table", "openat", "expand_files", 40, 400 * MS);
    b.call("mmap", 4_000, [20 * MS, 1_000 * MS, 5 * MS]);
    b.blocked("mmap-lock", "mmap", "vm_mmap_pgoff", 900, 1_000 * MS);
    b.culprit(
        "mmap-lock",
        "mmap",
        CulpritRole::Holder,
        (4_077, "monitor", "write"),
        880,
        990 * MS,
    );
    let list = find_findings(&b.done());
    assert_eq!(
        list[0].title,
        "71 % of the blocked time is mmap waiting for the address space's lock, held by monitor (pid 4077) in write"
    );
    assert!(list[0].text.contains("held from outside"), "{list:#?}");
    assert!(
        list[1]
            .title
            .contains("openat waiting for the table of open files"),
        "{list:#?}"
    );
    assert!(list[1].text.contains("RCU grace period"), "{list:#?}");
}

#[test]
fn what_is_known_of_a_program_decides_whether_it_rests() {
    let mut report = event_loop();
    let frame = |function: &str| Frame {
        function: Some(function.into()),
        ..Frame::default()
    };
    let stack = |functions: &[&str]| UserStack {
        frames: functions.iter().copied().map(frame).collect(),
        ..UserStack::default()
    };
    report.stacks = vec![
        stack(&["epoll_wait", "WaitLatch", "ProcSleep", "main"]),
        stack(&["epoll_wait", "ServerLoop", "main"]),
    ];
    let path = |stack, total_ns| PathRow {
        call: Some("epoll_wait".into()),
        abi: 64,
        stack: Some(stack),
        site: Some(0),
        count: 1,
        total_ns,
        max_ns: total_ns,
    };
    let rules = debox_labels::Rules::builtin();
    // Some of both at one place: the behaviour decides.
    report.paths = vec![path(0, 10_000 * MS), path(1, 10_000 * MS)];
    rests_refine(&mut report, rules.places());
    assert!(report.chain_links[3].rests);
    report.paths = vec![path(0, 20_000 * MS)];
    rests_refine(&mut report, rules.places());
    assert!(!report.chain_links[3].rests);
    assert_eq!(
        report.chain_links[3].means.as_deref(),
        Some("A PostgreSQL transaction waits for another one's lock.")
    );
    // A user's own place is believed first.
    let own = "[[place]]\nfunctions = [\"WaitLat*\"]\nrests = true\nwhy = \"we know\"\n";
    let own = debox_labels::Rules::parse("own", own).unwrap();
    let places = [own.places(), rules.places()].concat();
    rests_refine(&mut report, &places);
    assert!(report.chain_links[3].rests && report.chain_links[3].means.is_none());
    let bad = "[[place]]\nfunctions = [\"*\"]\nrests = true\nwhy = \"all\"\n";
    let error = debox_labels::Rules::parse("own", bad)
        .unwrap_err()
        .to_string();
    assert!(error.contains("place 1"), "{error}");
}

/// A loop that rests in epoll_wait and reads cold files in between.
fn event_loop() -> Report {
    let mut b = Build::new();
    b.call("epoll_wait", 5_000, [20 * MS, 20_000 * MS, MS]);
    b.call("openat", 400, [20 * MS, 1_200 * MS, MS]);
    b.blocked("page-in", "openat", "filemap_read", 41, 1_200 * MS);
    let mut report = b.done();
    let site = |label: &str| Site {
        label: label.into(),
        unlabelled: false,
        function: None,
        offset: None,
        file: None,
        line: None,
        frames: Vec::new(),
    };
    report.sites = vec![site("poll"), site("page-in")];
    let link = |kind, comm: &str, call: Option<&str>, site, parent, rests| ChainLink {
        by_own: false,
        in_loop: false,
        kind,
        comm: comm.into(),
        call: call.map(Into::into),
        site,
        operation: None,
        parent,
        held: false,
        stack: None,
        rests,
        means: None,
        class: None,
    };
    report.chain_links = vec![
        link(ChainKind::Disk, "vda", None, None, None, false),
        link(
            ChainKind::Sleep,
            "server",
            Some("openat"),
            Some(1),
            Some(0),
            false,
        ),
        link(ChainKind::Timer, "", None, None, None, false),
        link(
            ChainKind::Sleep,
            "server",
            Some("epoll_wait"),
            Some(0),
            Some(2),
            true,
        ),
    ];
    let chain = |first, count, total_ns| ChainRow {
        first,
        count,
        total_ns,
        max_ns: total_ns,
    };
    report.chain_links[1].in_loop = true;
    report.chains = vec![chain(3, 5_000, 20_000 * MS), chain(1, 44, 1_200 * MS)];
    report.activities = vec![ActivityRow {
        comm: "server".into(),
        call: Some("epoll_wait".into()),
        count: 5_000,
        all: ActivityTime {
            total_ns: 2_000 * MS,
            blocked_ns: 1_200 * MS,
            ..ActivityTime::default()
        },
        ..ActivityRow::default()
    }];
    report
}

#[test]
fn what_blocks_an_event_loop() {
    let mut report = event_loop();
    let all = titles(&report).join("\n");
    assert!(
        all.contains(
            "The loop of server was blocked 41 times for 1.20 s by openat waiting for pages of files to be read \
             from disk ← disk vda"
        ),
        "{all}"
    );
    // In the verdict of what is watched for a while.
    report.run.kind = RunKind::Attach;
    report.lives = vec![LifeRow {
        pid: 812,
        comm: "server".into(),
        threads: 1,
        processes: 1,
        time: LifeTime {
            life_ns: 22_000 * MS,
            own_ns: 800 * MS,
            blocked_ns: 21_200 * MS,
            rest_ns: 20_000 * MS,
            ..LifeTime::default()
        },
        ..LifeRow::default()
    }];
    report.run.wall_ns = 22_000 * MS;
    let verdict = verdict_of(&report);
    assert!(
        verdict[1].starts_with("The loop of server was blocked 41 times"),
        "{verdict:?}"
    );
    // Threads of a pool have the name of the loop: they rest elsewhere, and the loop is judged all the same.
    report.activities.push(ActivityRow {
        comm: "server".into(),
        call: Some("futex".into()),
        count: 5_000,
        all: ActivityTime {
            total_ns: 9_000 * MS,
            ..ActivityTime::default()
        },
        ..ActivityRow::default()
    });
    let all = titles(&report).join("\n");
    assert!(all.contains("blocked 41 times for 1.20 s"), "{all}");
    // The same waits in such a thread are no loop's, and one place of both is not said to be the loop's.
    report.stacks = vec![UserStack {
        frames: vec![Frame {
            function: Some("read_ahead".into()),
            ..Frame::default()
        }],
        ..UserStack::default()
    }];
    report.paths = vec![PathRow {
        call: Some("openat".into()),
        abi: 64,
        stack: Some(0),
        site: Some(1),
        count: 1,
        total_ns: 1_200 * MS,
        max_ns: MS,
    }];
    assert!(titles(&report).concat().contains("called from read_ahead"));
    let mut of_pool = report.chain_links[1].clone();
    of_pool.in_loop = false;
    report.chain_links.push(of_pool);
    report.chains.push(ChainRow {
        first: 4,
        count: 70,
        total_ns: 2_000 * MS,
        max_ns: MS,
    });
    // But of the only thread there is they are the loop's, from before it was known as one.
    let all = titles(&report).join("\n");
    assert!(all.contains("blocked 41 times for 3.20 s"), "{all}");
    report.lives[0].threads = 5;
    let all = titles(&report).join("\n");
    assert!(
        all.contains("The loop of server was blocked for 1.20 s by openat"),
        "{all}"
    );
    assert!(!all.contains("read_ahead"), "{all}");
    // What it ended in was not the same each time.
    let mut by_timer = report.chain_links[1].clone();
    by_timer.parent = Some(2);
    report.chain_links.push(by_timer);
    report.chains[1].total_ns = 700 * MS;
    report.chains.push(ChainRow {
        first: 5,
        count: 20,
        total_ns: 500 * MS,
        max_ns: MS,
    });
    let all = titles(&report).join("\n");
    assert!(all.contains(" (← disk vda: 58 % of it)"), "{all}");
    report.chains.pop();
    report.chains.remove(1);
    assert!(!titles(&report).concat().contains("The loop of"));
}
