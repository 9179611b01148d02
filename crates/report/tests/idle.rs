// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are shares of the waits that are a loss, and is told how long was idle?

mod support;

use debox_report::*;
use support::*;

/// The lines of a table, a space between words.
fn table(report: &Report, title: &str) -> Vec<String> {
    let text = render_text(report, &TextOptions::default());
    let section = text.split(title).nth(1).expect("its table");
    let section = section.split("\n\n").next().unwrap_or_default();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    section.lines().map(words).collect()
}

fn has(lines: &[String], wanted: &str) {
    let found = lines.iter().any(|line| line.starts_with(wanted));
    assert!(found, "{wanted}:\n{lines:#?}");
}

#[test]
fn without_chains_labels_say_what_is_idle() {
    let report = server(4);
    let lines = table(&report, "Where it blocked");
    has(&lines, "inode-lock openat 2,812 6.21 s 46.6% ");
    let [.., epoll, aside] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert!(epoll.starts_with("epoll epoll_wait 61,020 62.0 s idle "));
    assert_eq!(
        aside,
        "Not in the shares: 62.0 s idle, waiting for work or for an answer"
    );
    let page = render_html(&report);
    for cell in [">46.6 %</td>", ">idle</td>"] {
        assert!(page.contains(cell), "{cell}");
    }
    // A wait for input that is short is a loss, and else one for work.
    let share = |count| {
        let mut b = Build::new();
        b.blocked("futex", "futex", "futex_wait_queue", count, 3_000 * MS);
        b.blocked("page-in", "read", "filemap_read", 50, 1_000 * MS);
        table(&b.done(), "Where it blocked")
    };
    has(&share(1_000), "futex futex 1,000 3.00 s 75.0% ");
    has(&share(10), "futex futex 10 3.00 s idle ");
    has(&share(10), "page-in read 50 1.00 s 100.0% ");
}

/// A loop that waits for events and for helpers, and helpers that wait for work.
fn helpers() -> Report {
    let mut b = Build::new();
    let recv = b.blocked("unix-recv", "recvmsg", "unix_wait", 10, 1_000 * MS);
    let name = |comm: &str, count, total_ns| BlockedName {
        comm: Some(comm.into()),
        count: Some(count),
        total_ns,
    };
    recv.by_name = vec![name("helper", 9, 900 * MS), name("main", 1, 100 * MS)];
    b.blocked("page-in", "sendfile", "filemap_get_pages", 50, 300 * MS);
    b.blocked("epoll", "epoll_wait", "ep_poll", 100, 5_000 * MS);
    let mut report = b.done();
    let site = |label: &str, function: &str| Site {
        label: label.into(),
        unlabelled: false,
        function: Some(function.into()),
        offset: Some(0x1c),
        file: None,
        line: None,
        frames: Vec::new(),
    };
    report.sites = vec![
        site("unix-recv", "unix_wait"),
        site("page-in", "filemap_get_pages"),
        site("epoll", "ep_poll"),
    ];
    let calls = ["recvmsg", "sendfile", "epoll_wait"];
    report.chain_links = vec![ChainLink::of(ChainKind::Timer)];
    for (comm, site, rests, total_ns) in [
        ("helper", 0, true, 900 * MS),
        ("main", 0, false, 100 * MS),
        ("main", 1, false, 300 * MS),
        ("main", 2, true, 4_950 * MS),
        // Before it was known where the loop rests.
        ("main", 2, false, 50 * MS),
    ] {
        report.chains.push(ChainRow {
            first: report.chain_links.len(),
            count: 1,
            total_ns,
            max_ns: total_ns,
        });
        report.chain_links.push(ChainLink {
            comm: comm.into(),
            call: Some(calls[site].into()),
            site: Some(site),
            parent: Some(0),
            rests,
            ..ChainLink::of(ChainKind::Sleep)
        });
    }
    report.objects = ["a socket", "a file", "an epoll set"]
        .map(|text| Object {
            text: text.into(),
            ..Object::default()
        })
        .to_vec();
    let row = |at: usize, total_ns| ObjectRow {
        call: Some(calls[at].into()),
        abi: 64,
        object: Some(at),
        count: 1,
        total_ns,
        max_ns: total_ns,
    };
    report.by_object = vec![row(2, 5_000 * MS), row(0, 1_000 * MS), row(1, 300 * MS)];
    report
}

#[test]
fn chains_say_whose_waits_are_idle() {
    let report = helpers();
    let lines = table(&report, "Where it blocked");
    has(&lines, "page-in sendfile 50 300 ms 75.0% ");
    has(
        &lines,
        "unix-recv recvmsg (2 names) 10 1.00 s 900 ms 25.0% ",
    );
    has(&lines, "helper 9 900 ms idle ");
    has(&lines, "main 1 100 ms 25.0% ");
    has(&lines, "epoll epoll_wait 100 5.00 s idle ");
    has(&lines, "Not in the shares: 5.90 s idle,");
    // Objects are known by call: most of a call's waits have to be idle.
    let lines = table(&report, "On what it blocked");
    has(&lines, "1.00 s 76.9% 1 1.00 s recvmsg a socket");
    has(&lines, "300 ms 23.1% 1 300 ms sendfile a file");
    has(&lines, "5.00 s idle 1 5.00 s epoll_wait an epoll set");
    has(&lines, "Not in the shares: 5.00 s idle,");
    // The page leaves rests out of where waiting ends as well.
    let page = render_html(&report);
    for said in ["5.90 s idle", "5.85 s where threads come back to"] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn a_wait_that_chains_know_to_be_none_for_work_is_a_loss_however_long() {
    let mut report = helpers();
    for link in &mut report.chain_links {
        link.rests = false;
    }
    let lines = table(&report, "Where it blocked");
    has(&lines, "epoll epoll_wait 100 5.00 s 79.4% ");
    has(&lines, "unix-recv recvmsg (2 names) 10 1.00 s 15.9% ");
    assert!(!lines.concat().contains("idle"), "{lines:#?}");
    // Of a foreign report chains may tell more than there was.
    for (row, link) in report.chains.iter_mut().zip(&mut report.chain_links[1..]) {
        (row.total_ns, link.rests) = (u64::MAX, true);
    }
    let lines = table(&report, "Where it blocked");
    // A label that is a loss stays one.
    has(&lines, "page-in sendfile 50 300 ms 100.0% ");
}

/// It is not over as the watch ends, or the first at that place: who knows?
#[test]
fn a_wait_that_is_not_over_is_judged_by_its_label() {
    let mut b = Build::new();
    b.blocked("epoll", "epoll_wait", "ep_poll", 1, 10_000 * MS);
    b.blocked("page-in", "read", "filemap_read", 5, 50 * MS);
    let mut report = b.done();
    report.sites = vec![Site {
        label: "epoll".into(),
        unlabelled: false,
        function: Some("ep_poll".into()),
        offset: None,
        file: None,
        line: None,
        frames: Vec::new(),
    }];
    report.chain_links = vec![
        ChainLink::of(ChainKind::NotOver),
        ChainLink {
            comm: "server".into(),
            call: Some("epoll_wait".into()),
            site: Some(0),
            parent: Some(0),
            ..ChainLink::of(ChainKind::Sleep)
        },
    ];
    report.chains.push(ChainRow {
        first: 1,
        count: 1,
        total_ns: 10_000 * MS,
        max_ns: 10_000 * MS,
    });
    let lines = table(&report, "Where it blocked");
    has(&lines, "page-in read 5 50.0 ms 100.0% ");
    has(&lines, "epoll epoll_wait 1 10.0 s idle ");
    // Links of a foreign recording that go round.
    report.chain_links[0].kind = ChainKind::Woken;
    report.chain_links[0].parent = Some(1);
    table(&report, "Where it blocked");
}

/// Of calls of which the kernel side tells no rest, the label does.
#[test]
fn a_place_without_rests_is_judged_by_its_label() {
    let mut report = helpers();
    for link in &mut report.chain_links {
        link.rests = false;
        if link.call.as_deref() == Some("epoll_wait") {
            link.call = Some("ioctl".into());
        }
    }
    for row in &mut report.blocking {
        if row.call.as_deref() == Some("epoll_wait") {
            row.call = Some("ioctl".into());
        }
    }
    let lines = table(&report, "Where it blocked");
    has(&lines, "epoll ioctl 100 5.00 s idle ");
    has(&lines, "page-in sendfile 50 300 ms 23.1% ");
}
