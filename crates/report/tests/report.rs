// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do invented snapshots give exactly the reports that they should?
//!
//! Golden files lie in tests/golden; DEBOX_GOLDEN_WRITE=1 writes them anew.

use debox_abi::*;
use debox_output::duration_text;
use debox_report::*;

struct Snapshot {
    account: Box<debox_account>,
    cpus: Vec<debox_account_cpu>,
    sites: Vec<debox_site>,
}

impl Snapshot {
    fn new(cpus: usize) -> Self {
        Self {
            account: debox_account::zeroed_box(),
            cpus: (0..cpus)
                .map(|_| *debox_account_cpu::zeroed_box())
                .collect(),
            sites: vec![debox_site::default(); 8],
        }
    }

    fn row(&mut self, key: u32, cpu: usize) -> &mut debox_row {
        if self.account.row_of[key as usize] == 0 {
            self.account.rows_used += 1;
            self.account.row_of[key as usize] = self.account.rows_used;
        }
        let index = self.account.row_of[key as usize] as usize;
        &mut self.cpus[cpu].rows[index]
    }

    /// One call of each given wall time.
    fn calls(&mut self, key: u32, cpu: usize, walls: &[u64]) -> &mut debox_row {
        let row = self.row(key, cpu);
        for &wall in walls {
            row.count += 1;
            row.wall_ns += wall;
            row.max_ns = row.max_ns.max(wall);
            row.hist[hist_bucket(wall)] += 1;
        }
        row
    }

    fn site(&mut self, index: usize, merged: u32, site: debox_site) {
        self.sites[index] = site;
        self.sites[index].merged = merged;
    }

    fn slept(
        &mut self,
        key: u32,
        site: u32,
        count: u64,
        total_ns: u64,
        max_ns: u64,
    ) -> &mut debox_site_row {
        let free = self.account.sites.iter().position(|r| r.key == 0).unwrap();
        let row = &mut self.account.sites[free];
        row.key = debox_site_row::key_of(key, site);
        row.hist[sleep_bucket(total_ns / count)] = count;
        row.total_ns = total_ns;
        row.max_ns = max_ns;
        row
    }

    fn report(&self, facts: RunFacts, wrap: Option<&WrapCounts>) -> Report {
        self.report_with(facts, wrap, None)
    }

    fn report_with(
        &self,
        facts: RunFacts,
        wrap: Option<&WrapCounts>,
        details: Option<&Details<'_>>,
    ) -> Report {
        assemble(Input {
            account: &self.account,
            cpus: &self.cpus,
            sites: &self.sites,
            wrap,
            facts,
            call_names: &names,
            call_site_names: Some(&|process, address| format!("prog{process}+{address:#x}")),
            details,
        })
    }

    fn slept_by(&self, chains: &[(&str, i32, u32, u64, u64)]) -> Report {
        self.slept_by_while(chains, None)
    }

    /// Each chain: who slept (nobody: it found no room), in which call (-1: none), where, in how many parts, and how
    /// long.
    fn slept_by_while(
        &self,
        chains: &[(&str, i32, u32, u64, u64)],
        lives: Option<&debox_lives>,
    ) -> Report {
        let (mut links, mut sums) = (Vec::new(), Vec::new());
        for &(comm, nr, site, count, total_ns) in chains {
            let mut link = debox_chain {
                kind: DEBOX_CHAIN_SLEEP,
                site,
                nr,
                tid: 7,
                depth: 1,
                ..debox_chain::zeroed()
            };
            text_put(&mut link.comm, comm);
            links.push(link);
            let sum = debox_chain_sum {
                count,
                total_ns,
                max_ns: total_ns,
            };
            let number = if comm.is_empty() {
                0
            } else {
                links.len() as u32
            };
            sums.push((number, sum));
        }
        self.with_links(&links, &sums, lives)
    }

    fn with_links(
        &self,
        links: &[debox_chain],
        sums: &[(u32, debox_chain_sum)],
        lives: Option<&debox_lives>,
    ) -> Report {
        let details = debox_details::zeroed_box();
        let functions = std::collections::HashMap::new();
        let details = Details {
            details: &details,
            site_stacks: &[],
            events: &[],
            call_arguments: &|_, _, _| Vec::new(),
            objects: None,
            on_cpu: None,
            kernel_functions: &functions,
            lives,
            frames: &|_| Vec::new(),
            chain_sums: sums,
            chain_links: links,
            start_ns: 0,
            conditions: &[],
        };
        self.report_with(facts(), None, Some(&details))
    }
}

fn names(nr: u32, compat: bool) -> Option<String> {
    let name = match (nr, compat) {
        (0, false) => "read",
        (1, false) => "write",
        (3, false) => "close",
        (39, false) => "getpid",
        (59, false) => "execve",
        (202, false) => "futex",
        (230, false) => "clock_nanosleep",
        (257, false) => "openat",
        (20, true) => "getpid",
        _ => return None,
    };
    Some(name.into())
}

const ALL: u64 = DEBOX_FEATURE_SLEEPS
    | DEBOX_FEATURE_FAULTS
    | DEBOX_FEATURE_MAJOR_FAULTS
    | DEBOX_FEATURE_LOCKS
    | DEBOX_FEATURE_RUNQ
    | DEBOX_FEATURE_SITES;

fn facts() -> RunFacts {
    RunFacts {
        kind: RunKind::Run,
        command: ["tar", "czf", "/tmp/a b.tar.gz", "/usr/include"]
            .map(String::from)
            .to_vec(),
        pids: vec![],
        capture: Capture::Boundary,
        wall_ns: 1_520_000_000,
        exit: Some(Exit::Code(0)),
        ended_early: false,
        features: ALL,
        irq: false,
        stale: false,
        threads_running: Some(0),
        open_calls: vec![],
        notes: vec![],
        machine: None,
        splice_setup: None,
    }
}

/// A run with everything in it.
fn full() -> Snapshot {
    let mut s = Snapshot::new(2);
    s.account.cpus = 2;
    s.account.processes_started = 2;
    s.account.threads_started = 3;
    s.account.threads_ended = 3;
    let row = s.calls(0, 0, &[900, 1_100, 1_300, 120_000_000]);
    row.blocked_ns = 100_000_000;
    row.runq_ns = 15_000_000;
    row.major_faults = 12;
    row.minor_faults = 3;
    row.nvcsw = 40;
    row.nivcsw = 2;
    let row = s.calls(0, 1, &[1_000; 96]);
    row.errors = 3;
    row.restarted = 1;
    s.calls(1, 0, &[2_500_000; 40]).blocked_ns = 30_000_000;
    s.calls(1, 1, &[700; 4_000]);
    s.calls(257, 1, &[5_400, 9_000]).blocked_ns = 1_200;
    s.calls(3, 0, &[120]);
    s.calls(DEBOX_NR_COMPAT + 20, 0, &[80]);
    s.calls(DEBOX_NR_UNKNOWN, 1, &[60]).errors = 1;
    s.calls(299, 1, &[75]);
    s.row(230, 1).unfinished = 2;
    // Sites 2 and 4 are two stacks of one place; 3 has no debug information.
    s.site(
        2,
        2,
        debox_site::new(
            "page-io",
            "folio_wait_bit_common",
            "mm/filemap.c",
            1315,
            0x1f0,
        ),
    );
    s.site(
        4,
        2,
        debox_site::new(
            "page-io",
            "folio_wait_bit_common",
            "mm/filemap.c",
            1315,
            0x1f0,
        ),
    );
    s.site(
        3,
        3,
        debox_site::new("pipe-write", "pipe_write", "", 0, 0x2b4),
    );
    s.site(5, 5, debox_site::new("do_thing", "do_thing", "", 0, 0));
    s.sites[5].flags = DEBOX_SITE_FLAG_UNLABELLED;
    let row = s.slept(0, 2, 20, 60_000_000, 9_000_000);
    row.waiters_entry = 30;
    row.waiters_max = 4;
    row.waiters_known = 20;
    s.slept(0, 4, 19, 40_000_000, 20_000_000);
    s.slept(257, 2, 1, 1_200, 1_200);
    s.slept(1, 3, 40, 30_000_000, 2_000_000);
    s.slept(DEBOX_NR_OUTSIDE, 4, 7, 3_000_000, 900_000);
    s.slept(1, 5, 1, 10_000, 10_000);
    s
}

fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("DEBOX_GOLDEN_WRITE").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(
        text == want,
        "{name} differs; it is now:\n{text}\n--- and was:\n{want}"
    );
}

fn lossy() -> (Snapshot, RunFacts) {
    let mut s = full();
    s.account.threads_unwatched = 3;
    s.account.rows_dropped = 1;
    s.account.sites_dropped = 5;
    s.account.sites_dropped_ns = 1_000_000;
    s.account.sites_unknown = 1;
    s.account.sites_unknown_ns = 2_000;
    s.account.left_privileged_exec = 1;
    s.account.left_undumpable = 2;
    s.account.left_taken = 1;
    s.slept(1, 7, 2, 5_000, 4_000); // site 7 is not resolved
    s.slept(1, DEBOX_SITE_NONE, 1, 2_000, 2_000);
    let mut f = facts();
    f.stale = true;
    f.threads_running = Some(1);
    f.exit = Some(Exit::Signal {
        number: 11,
        name: "SIGSEGV".into(),
    });
    f.features = DEBOX_FEATURE_SLEEPS | DEBOX_FEATURE_RUNQ | DEBOX_FEATURE_SITES;
    (s, f)
}

#[test]
fn text_of_a_full_run() {
    let report = full().report(facts(), None);
    golden("full.txt", &render_text(&report, &TextOptions::default()));
}

/// Interrupts are parts of calls where they were asked for, and nothing where not.
#[test]
fn interrupts_are_shown_where_they_were_measured() {
    let mut snapshot = Snapshot::new(1);
    let row = snapshot.calls(1, 0, &[10_000, 20_000]);
    (row.irq_ns, row.runq_ns) = (6_000, 1_000);
    for (at, kind, number, counts) in [
        (3, DEBOX_IRQ_SOFT, 3, [2, 5_000, 4_000, 0, 0, 0]),
        (
            90,
            DEBOX_IRQ_VECTOR,
            0xec,
            [1, 1_000, 1_000, 7, 9_000, 2_000],
        ),
    ] {
        let row = &mut snapshot.account.irqs[at];
        row.key = DEBOX_KEY_USED
            | u64::from(kind) << DEBOX_IRQ_KIND_SHIFT
            | number << DEBOX_IRQ_NUMBER_SHIFT;
        let [count, total, max, outside, outside_ns, outside_max] = counts;
        (row.count, row.total_ns, row.max_ns) = (count, total, max);
        (row.outside_count, row.outside_ns, row.outside_max_ns) =
            (outside, outside_ns, outside_max);
    }
    let with = |irq: bool, feature: u64| {
        let mut facts = facts();
        (facts.irq, facts.features) = (irq, ALL | feature);
        snapshot.report(facts, None)
    };
    let report = with(true, DEBOX_FEATURE_IRQ);
    let write = &report.calls[0];
    assert_eq!((write.irq_ns, write.cpu_ns), (Some(6_000), Some(23_000)));
    assert_eq!(report.totals.irq_ns, Some(6_000));
    assert_eq!(report.totals.irq_outside_ns, Some(9_000));
    let names: Vec<&str> = report.interrupts.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["NET_RX", "local timer"]);
    golden("irq.txt", &render_text(&report, &TextOptions::default()));
    let page = render_html(&report);
    assert!(page.contains("NET_RX") && page.contains("Work done for others"));

    // Asked for, and refused by the kernel: said, and never 0.
    let report = with(true, 0);
    assert!(report.notes.iter().any(|n| n.text.contains("interrupts")));
    for report in [report, with(false, DEBOX_FEATURE_IRQ)] {
        assert_eq!((report.calls[0].irq_ns, report.totals.irq_ns), (None, None));
        assert!(report.interrupts.is_empty());
        let text = render_text(&report, &TextOptions::default());
        assert!(
            !text.contains("IRQ") && !text.contains("local timer"),
            "{text}"
        );
    }
}

#[test]
fn text_never_exceeds_the_terminal_and_keeps_the_core() {
    let report = full().report(facts(), None);
    for width in 76..220 {
        let options = TextOptions {
            width: Some(width),
            ..Default::default()
        };
        let text = render_text(&report, &options);
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        for core in ["CALL", "COUNT", "TOTAL", "BLOCKED", "LABEL"] {
            assert!(text.contains(core), "{core} is gone at width {width}");
        }
    }
    let options = TextOptions {
        width: Some(80),
        ..Default::default()
    };
    golden("narrow.txt", &render_text(&report, &options));
}

#[test]
fn text_in_colour_and_in_ascii_says_the_same() {
    let report = full().report(facts(), None);
    let plain = render_text(&report, &TextOptions::default());
    let color = render_text(
        &report,
        &TextOptions {
            color: true,
            ..Default::default()
        },
    );
    let mut stripped = String::new();
    let mut escape = false;
    for c in color.chars() {
        match (escape, c) {
            (false, '\x1b') => escape = true,
            (true, 'm') => escape = false,
            (true, _) => {}
            (false, c) => stripped.push(c),
        }
    }
    assert_ne!(color, plain);
    assert_eq!(stripped, plain);
    let ascii = render_text(
        &report,
        &TextOptions {
            ascii: true,
            ..Default::default()
        },
    );
    assert!(ascii.is_ascii());
    assert_eq!(ascii, plain.replace('µ', "u"));
}

#[test]
fn text_of_losses() {
    let (s, f) = lossy();
    golden(
        "losses.txt",
        &render_text(&s.report(f, None), &TextOptions::default()),
    );
}

#[test]
fn text_of_the_first_rows_only() {
    let mut report = full().report(facts(), None);
    report.sort_calls(SortKey::Count);
    let options = TextOptions {
        top: Some(3),
        ..Default::default()
    };
    golden("top.txt", &render_text(&report, &options));
}

/// Which was taken is often the default's choice.
#[test]
fn text_ends_with_the_capture() {
    let mut report = full().report(facts(), None);
    for (capture, name) in [
        (Capture::Boundary, "boundary"),
        (Capture::Wrap, "wrap"),
        (Capture::Splice, "splice"),
        (Capture::Sleeps, "sleeps"),
    ] {
        report.run.capture = capture;
        let text = render_text(&report, &TextOptions::default());
        let last = text.lines().last().unwrap();
        let wanted = format!("Taken with {name} capture (");
        assert!(last.starts_with(&wanted), "{text}");
        assert!(render_html(&report).contains(&format!("<li>{name} capture (")));
    }
}

#[test]
fn text_when_nothing_happened() {
    let mut f = facts();
    f.command = vec!["true".into()];
    f.exit = Some(Exit::Code(7));
    golden(
        "empty.txt",
        &render_text(&Snapshot::new(1).report(f, None), &TextOptions::default()),
    );
}

#[test]
fn text_of_an_attach() {
    let mut f = facts();
    f.kind = RunKind::Attach;
    f.pids = vec![71, 72];
    f.command = vec!["nginx:\x1b[31m worker".into()];
    f.exit = None;
    f.threads_running = None;
    f.open_calls = vec![
        OpenCall {
            pid: 71,
            tid: 71,
            comm: "nginx".into(),
            call: "epoll_wait".into(),
            at_least_ns: 2_100_000_000,
            why: String::new(),
            held_up: String::new(),
        },
        OpenCall {
            pid: 72,
            tid: 80,
            comm: "\u{202e}evil\n".into(),
            call: "futex".into(),
            at_least_ns: 0,
            why: String::new(),
            held_up: String::new(),
        },
    ];
    golden(
        "attach.txt",
        &render_text(&full().report(f, None), &TextOptions::default()),
    );
}

#[test]
fn json_of_a_full_run() {
    let (s, f) = lossy();
    let json = render_json(&s.report(f, None)).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    golden("losses.json", &json);
}

fn wrap_row(nr: u64, site: u64, walls: &[u64], blocked: u64) -> debox_wrap_row {
    let mut row = debox_wrap_row {
        used: 1 << 63 | nr,
        call_site: site,
        count: walls.len() as u64,
        wall_ns: walls.iter().sum(),
        max_ns: walls.iter().copied().max().unwrap_or(0),
        blocked_ns: blocked,
        ..Default::default()
    };
    for wall in walls {
        row.hist[hist_bucket(*wall)] += 1;
    }
    row
}

fn process(measured: bool, why: &str) -> WrapProcess {
    WrapProcess {
        pid: 1,
        measured,
        why: why.into(),
        threads_lost: 0,
        restricted: false,
    }
}

#[test]
fn wrap_counts_are_folded_and_what_they_miss_is_said() {
    let mut s = Snapshot::new(1);
    s.site(0, 0, debox_site::new("pipe-read", "pipe_read", "", 0, 4));
    s.site(1, 1, debox_site::new("futex", "futex_wait_queue", "", 0, 4));
    s.slept(0, 0, 3, 9_000_000, 4_000_000); // read: 5 ms told, 9 ms seen
    s.slept(202, 1, 2, 70_000_000, 40_000_000); // never interposed
    let mut wrap = WrapCounts::default();
    let one = wrap.process_add(process(true, ""));
    let two = wrap.process_add(process(true, ""));
    wrap.row_add(one, &wrap_row(0, 0x10, &[1_000, 6_000_000], 5_000_000));
    wrap.row_add(two, &wrap_row(0, 0x20, &[2_000], 0));
    wrap.row_add(two, &wrap_row(99_999, 0x20, &[10], 0));
    wrap.stripe_add(2, 3_000, 0);
    let mut f = facts();
    f.capture = Capture::Wrap;
    let report = s.report(f, Some(&wrap));
    assert_eq!(report.totals.calls, 4);
    let read = report.calls.iter().find(|r| r.name == "read").unwrap();
    assert_eq!(
        (read.count, read.wall_ns, read.blocked_ns),
        (3, Some(6_003_000), Some(5_000_000))
    );
    assert_eq!(read.cpu_ns, Some(1_003_000));
    golden("wrap.txt", &render_text(&report, &TextOptions::default()));
}

#[test]
fn wrap_without_a_broker_measures_wall_times_only() {
    let mut wrap = WrapCounts::default();
    let one = wrap.process_add(process(false, "no broker listens at /run/debox/debox.sock"));
    wrap.row_add(one, &wrap_row(0, 0x10, &[1_000], 77));
    let mut f = facts();
    f.capture = Capture::Wrap;
    let report = Snapshot::new(1).report(f, Some(&wrap));
    assert_eq!(report.calls[0].blocked_ns, None);
    assert_eq!(report.totals.cpu_ns, None);
    golden(
        "wrap_wall.txt",
        &render_text(&report, &TextOptions::default()),
    );
}

#[test]
fn a_hostile_interposer_cannot_break_the_report() {
    let mut wrap = WrapCounts::default();
    let one = wrap.process_add(process(true, "\x1b[2J"));
    for site in 0..40_000 {
        let mut row = debox_wrap_row::default();
        row.as_bytes_mut().fill(0xff);
        row.call_site = site;
        wrap.row_add(one, &row);
    }
    let mut f = facts();
    f.capture = Capture::Wrap;
    let report = Snapshot::new(1).report(f, Some(&wrap));
    let text = render_text(
        &report,
        &TextOptions {
            top: Some(3),
            ..Default::default()
        },
    );
    assert!(!text.contains('\x1b'));
    render_json(&report);
}

#[test]
fn garbage_in_the_account_is_survived() {
    let mut s = Snapshot::new(1);
    s.account.as_bytes_mut().fill(0xff);
    s.cpus[0].as_bytes_mut().fill(0xff);
    for site in &mut s.sites {
        site.as_bytes_mut().fill(0xff);
        site.state = DEBOX_SITE_RESOLVED;
    }
    let report = s.report(facts(), None);
    render_text(&report, &TextOptions::default());
    render_json(&report);
}

#[test]
fn sites_merge_and_shares_add_up() {
    let report = full().report(facts(), None);
    let read = report
        .blocking
        .iter()
        .find(|r| r.label == "page-io" && r.call.as_deref() == Some("read"))
        .unwrap();
    assert_eq!(
        (read.count, read.total_ns, read.max_ns),
        (39, 100_000_000, 20_000_000)
    );
    assert_eq!(read.waiters_max, Some(4));
    let share: f64 = report.blocking.iter().map(|r| r.share).sum();
    assert!((share - 1.0).abs() < 1e-9);
    assert_eq!(report.totals.sleeps, 88);
}

/// Of a row of the blocking table whose sleeps they were: nothing, or parts that are the whole.
fn names_at<'a>(report: &'a Report, label: &str, call: Option<&str>) -> Vec<BlockedAt<'a>> {
    let mut rows = report.blocking.iter();
    let row = rows.find(|row| row.label == label && row.call.as_deref() == call);
    let row = row.unwrap_or_else(|| panic!("no {label} in {call:?}"));
    let told: u64 = row.by_name.iter().map(|name| name.total_ns).sum();
    assert!(row.by_name.is_empty() || told == row.total_ns, "{row:?}");
    let names = row.by_name.iter();
    names
        .map(|name| (name.comm.as_deref(), name.count, name.total_ns))
        .collect()
}

type BlockedAt<'a> = (Option<&'a str>, Option<u64>, u64);

#[test]
fn sleeps_of_a_place_are_divided_by_name() {
    let report = full().slept_by(&[
        // Two stacks of one place, and one way to wait at one of them more.
        ("main", 0, 2, 15, 50_000_000),
        ("main", 0, 2, 5, 10_000_000),
        ("helper", 0, 4, 19, 40_000_000),
        // Sleeps that waited for several things, and what found no room among the chains.
        ("helper", 1, 3, 45, 28_000_000),
        ("main", 1, 3, 1, 1_000_000),
        // Of its time 1 ms came as the call was over: another row's of that place.
        ("main", 257, 2, 2, 1_001_200),
        ("helper", -1, 2, 6, 2_000_000),
        // More than its place has.
        ("main", 1, 5, 2, 99_000),
        // At a place that found no row.
        ("late", 1, 6, 1, 500),
    ]);
    let at = |label: &str, call: Option<&str>| names_at(&report, label, call);
    assert_eq!(
        at("page-io", Some("read")),
        [
            (Some("main"), Some(20), 60_000_000),
            (Some("helper"), Some(19), 40_000_000)
        ]
    );
    assert_eq!(
        at("pipe-write", Some("write")),
        [
            (Some("helper"), None, 28_000_000),
            (None, None, 1_000_000),
            (Some("main"), None, 1_000_000)
        ]
    );
    assert!(at("page-io", Some("openat")).is_empty());
    assert!(at("page-io", None).is_empty());
    assert!(at("do_thing", Some("write")).is_empty());

    let text = render_text(&report, &TextOptions::default());
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for wanted in [
        &["LABEL", "CALL", "NAME", "COUNT", "TOTAL"][..],
        &["read", "(2", "names)", "39", "100", "ms"],
        // Who is not known is no name.
        &["pipe-write", "write", "(2", "names)", "40", "30.0", "ms"],
        &["main", "20", "60.0", "ms", "45.1%", "3.00", "ms"],
        &["helper", "19", "40.0", "ms", "30.1%"],
        &["helper", "?", "28.0", "ms", "21.1%", "?"],
        &["(unknown)", "?", "1.00", "ms"],
        &["do_thing", "write", "1", "10.0"],
    ] {
        let found = lines.iter().any(|line| line.starts_with(wanted));
        assert!(found, "{wanted:?}:\n{text}");
    }
    let whose = format!(
        "main {}, helper {}",
        duration_text(60_000_000, false),
        duration_text(40_000_000, false)
    );
    assert!(render_html(&report).contains(&whose), "{whose}");
    let again = parse_json(&render_json(&report)).unwrap();
    for (again, row) in again.blocking.iter().zip(&report.blocking) {
        assert_eq!(again.by_name, row.by_name);
    }
}

/// A helper that waits for work as the watch ends rests where those of its name do.
#[test]
fn a_sleep_that_is_not_over_rests_where_others_of_its_name_do() {
    let not_over = debox_chain {
        kind: DEBOX_CHAIN_NOT_OVER,
        site: DEBOX_SITE_NONE,
        nr: -1,
        depth: 1,
        ..debox_chain::zeroed()
    };
    let slept = |comm: &str, nr, flags, parent| {
        let mut link = debox_chain {
            kind: DEBOX_CHAIN_SLEEP,
            site: 3,
            tid: 7,
            depth: 2,
            nr,
            flags,
            parent,
            ..debox_chain::zeroed()
        };
        text_put(&mut link.comm, comm);
        link
    };
    let links = [
        not_over,
        slept("helper", 1, DEBOX_CHAIN_REST, 0),
        slept("helper", 1, DEBOX_CHAIN_FIRST, 1),
        // Elsewhere, of another name, and found to be at no resting place.
        slept("helper", 0, DEBOX_CHAIN_FIRST, 1),
        slept("main", 1, DEBOX_CHAIN_FIRST, 1),
        slept("helper", 1, 0, 1),
    ];
    let sum = debox_chain_sum {
        count: 1,
        total_ns: 1_000_000,
        max_ns: 1_000_000,
    };
    let sums: Vec<_> = (2..=links.len() as u32)
        .map(|number| (number, sum))
        .collect();
    let report = full().with_links(&links, &sums, None);
    let rests = report.chains.iter().map(|row| {
        let link = &report.chain_links[row.first];
        (
            link.comm.as_str(),
            link.call.as_deref(),
            link.rests,
            row.count,
        )
    });
    let mut rests: Vec<_> = rests.collect();
    rests.sort();
    assert_eq!(
        rests,
        [
            ("helper", Some("read"), false, 1),
            ("helper", Some("write"), false, 1),
            ("helper", Some("write"), true, 1),
            ("helper", Some("write"), true, 1),
            ("main", Some("write"), false, 1),
        ]
    );
}

/// What a program's runtime waits for within an execve has that call in its row, and in its chain the futex.
#[test]
fn what_may_be_another_calls_at_a_place_is_nobodys() {
    type Named = (Option<String>, Option<u64>, u64);
    let mut s = Snapshot::new(1);
    s.site(2, 2, debox_site::new("futex", "futex_do_wait", "", 0, 0));
    s.slept(59, 2, 1, 10_000_000, 10_000_000);
    s.slept(202, 2, 4, 8_000_000, 2_000_000);
    let told = |chains: &[(&str, i32, u32, u64, u64)]| {
        let report = s.slept_by(chains);
        ["execve", "futex"].map(|call| {
            let names = names_at(&report, "futex", Some(call)).into_iter();
            let names = names.map(|(comm, count, ns)| (comm.map(str::to_owned), count, ns));
            names.collect::<Vec<Named>>()
        })
    };
    let some =
        |comm: &str, count: Option<u64>, ns: u64| -> Named { (Some(comm.to_owned()), count, ns) };
    let nobody: [Vec<Named>; 2] = [vec![], vec![]];
    // Each of two waited in one row alone; the chains do not say in which.
    let others = [
        ("sh", 202, 2, 1, 10_000_000),
        ("zworker", 202, 2, 4, 8_000_000),
    ];
    assert_eq!(told(&others), nobody);
    assert_eq!(told(&[others[1], ("a", 202, 2, 1, 9_000_000)]), nobody);
    // What has its chains in its own call is divided in any case.
    let own = ("own", 59, 2, 1, 10_000_000);
    let told_own = told(&[own, others[1], ("sh", 202, 2, 1, 500_000)]);
    assert_eq!(told_own, [vec![some("own", Some(1), 10_000_000)], vec![]]);
    // A call that has no row.
    let less = ("a", 59, 2, 1, 6_000_000);
    let elsewhere = told(&[less, ("b", 0, 2, 1, 4_000_000), others[1]]);
    let of_futex = vec![some("zworker", Some(4), 8_000_000)];
    assert_eq!(elsewhere, [vec![], of_futex]);

    // Where nobody else is, it is clear whose they are.
    let one = [
        vec![some("sh", Some(1), 10_000_000)],
        vec![some("sh", Some(4), 8_000_000)],
    ];
    for ns in [17_830_000, 18_000_000, 18_170_000] {
        assert_eq!(told(&[("sh", 202, 2, 6, ns)]), one, "{ns}");
    }
    assert_eq!(told(&[("sh", 202, 2, 6, 17_000_000)]), nobody);

    // A row that lacks chains may have another's, where chains found no room.
    let short = ("sh", 202, 2, 1, 5_000_000);
    let of_futex = [some("sh", None, 5_000_000), (None, None, 3_000_000)];
    assert_eq!(told(&[short, own])[1], of_futex);
    assert_eq!(told(&[short, own, ("", 0, 2, 9, 3_000_000)])[1], of_futex);
    assert_eq!(told(&[short, ("", 0, 2, 9, 13_000_000)]), nobody);
    // So little more is rounding.
    let rounded = [
        ("a", 202, 2, 3, 6_030_000),
        ("b", 202, 2, 1, 2_010_000),
        own,
    ];
    assert_eq!(
        told(&rounded)[1],
        [some("a", None, 6_000_000), some("b", None, 2_000_000)]
    );
}

/// Before its process has ended, too.
#[test]
fn what_the_launcher_slept_is_the_commands() {
    let mut lives = debox_lives::zeroed_box();
    (lives.begin_ns, lives.critical_pid) = (1, 9);
    for (at, comm, pid, execs) in [(1, "debox", 9u32, 0), (2, "tar", 9, 1), (3, "debox", 8, 0)] {
        let program = if comm == "tar" { 2 } else { 1 };
        lives.programs[program].key = program as u64;
        text_put(&mut lives.programs[program].comm, comm);
        let row = &mut lives.rows[at];
        row.key = 1 << 63 | (program as u64) << 32 | u64::from(pid);
        (row.threads, row.processes, row.execs) = (1, 1 - execs, execs);
    }
    let chains = [
        ("debox", 1, 3, 8, 10_000_000),
        ("tar", 1, 3, 32, 20_000_000),
    ];
    let report = full().slept_by_while(&chains, Some(&lives));
    let names = names_at(&report, "pipe-write", Some("write"));
    assert_eq!(
        names,
        [
            (Some("tar"), Some(32), 20_000_000),
            (Some("debox"), Some(8), 10_000_000)
        ],
        "another one is called debox"
    );
    lives.rows[3].key = 0;
    let report = full().slept_by_while(&chains, Some(&lives));
    let names = names_at(&report, "pipe-write", Some("write"));
    assert_eq!(names, [(Some("tar"), Some(40), 30_000_000)]);
    let text = render_text(&report, &TextOptions::default());
    let table = text.split("Where it blocked").nth(1).unwrap();
    assert!(
        !table.split("\n\n").next().unwrap().contains("NAME"),
        "{text}"
    );
}

#[test]
fn many_names_are_told_as_one_and_one_name_not_at_all() {
    let names = ["a", "b", "c", "d", "e"];
    let chains = (names.iter().zip(1..)).map(|(name, n)| (*name, 1, 3, 8, n * 2_000_000));
    let chains: Vec<_> = chains.collect();
    let report = full().slept_by(&chains);
    let text = render_text(&report, &TextOptions::default());
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    for wanted in ["e ", "d ", "c ", "(2 others)  ", "pipe-write  write"] {
        let found = lines.iter().filter(|line| line.starts_with(wanted)).count();
        assert_eq!(found, 1, "{wanted}:\n{text}");
    }
    assert!(!lines.iter().any(|line| line.starts_with("b ")), "{text}");

    // Who is not known is none of the others, and no name.
    let lines_of = |chains: &[(&str, i32, u32, u64, u64)]| {
        let text = render_text(&full().slept_by(chains), &TextOptions::default());
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect::<Vec<String>>()
    };
    let lines = lines_of(&chains[..4]);
    for wanted in ["pipe-write write (4 names) 40", "b ", "a ", "(unknown) ?"] {
        let found = lines.iter().filter(|line| line.starts_with(wanted)).count();
        assert_eq!(found, 1, "{wanted}:\n{lines:#?}");
    }
    let lines = lines_of(&[("c", 1, 3, 8, 20_000_000), ("d", 0, 2, 39, 100_000_000)]);
    let whose = |line: &String| line.starts_with("pipe-write write c, ? 40");
    assert!(lines.iter().any(whose), "{lines:#?}");

    let alone = full().slept_by(&[("main", 1, 3, 40, 30_000_000)]);
    let whole = [(Some("main"), Some(40), 30_000_000)];
    assert_eq!(names_at(&alone, "pipe-write", Some("write")), whole);
    let text = render_text(&alone, &TextOptions::default());
    let table = text.split("Where it blocked").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    assert!(!table.contains("NAME") && !table.contains("main"), "{text}");
    assert!(!render_html(&alone).contains("Names of the threads that slept"));
}

#[test]
fn wall_is_cpu_and_blocked_and_runq() {
    let report = full().report(facts(), None);
    for row in &report.calls {
        let parts = row.cpu_ns.unwrap() + row.blocked_ns.unwrap() + row.runq_ns.unwrap();
        assert_eq!(parts, row.wall(), "{}", row.name);
    }
}

#[test]
fn impossible_sums_are_reported() {
    let mut s = Snapshot::new(1);
    s.calls(0, 0, &[1_000]).blocked_ns = 9_000;
    let report = s.report(facts(), None);
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.kind == NoteKind::Inconsistent)
    );
    assert!(
        !full()
            .report(facts(), None)
            .notes
            .iter()
            .any(|n| n.kind == NoteKind::Inconsistent)
    );
}

#[test]
fn every_sort_name_is_known_and_sorts() {
    for name in SortKey::NAMES {
        let key = SortKey::parse(name).unwrap();
        full().report(facts(), None).sort_calls(key);
    }
    assert_eq!(SortKey::parse("nonsense"), None);
    let mut report = full().report(facts(), None);
    report.sort_calls(SortKey::Name);
    let names: Vec<_> = report.calls.iter().map(|r| r.name.clone()).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(names, sorted);
}

mod histogram {
    use super::*;
    use proptest::prelude::*;

    fn hist_of(values: &[u64]) -> Hist {
        let mut buckets = [0u64; DEBOX_HIST_BUCKETS];
        for v in values {
            buckets[hist_bucket(*v)] += 1;
        }
        let mut hist = Hist::default();
        hist.add(&buckets);
        hist
    }

    /// Durations of every size: an exponent first, then the bits below.
    fn duration() -> impl Strategy<Value = u64> {
        (0u32..50, any::<u64>())
            .prop_map(|(exp, bits)| (1u64 << exp) | (bits & ((1u64 << exp) - 1)))
    }

    proptest! {
        #[test]
        fn a_value_lies_in_its_bucket(ns in any::<u64>()) {
            let (low, high) = hist_range(hist_bucket(ns));
            prop_assert!(low <= ns && (ns < high || high == u64::MAX));
        }

        #[test]
        fn percentiles_are_near_the_true_ones(mut values in prop::collection::vec(duration(), 1..300), percent in 0u32..=100) {
            let max = *values.iter().max().unwrap();
            let got = hist_of(&values).percentile(percent, max).unwrap();
            values.sort_unstable();
            let rank = (values.len() * percent as usize).div_ceil(100).max(1);
            let truth = values[rank - 1];
            prop_assert!(got <= max);
            let (low, high) = hist_range(hist_bucket(truth));
            prop_assert!(got >= low && got <= high, "{got} for {truth}");
        }

        #[test]
        fn percentiles_never_fall(values in prop::collection::vec(duration(), 1..100)) {
            let max = *values.iter().max().unwrap();
            let hist = hist_of(&values);
            let mut last = 0;
            for percent in 0..=100 {
                let now = hist.percentile(percent, max).unwrap();
                prop_assert!(now >= last, "{percent}: {now} < {last}");
                last = now;
            }
            prop_assert_eq!(last, max);
        }

        #[test]
        fn durations_read_back(ns in any::<u64>()) {
            let text = duration_text(ns, true);
            let (number, unit) = text.split_once(' ').unwrap();
            let scale = match unit { "ns" => 1.0, "us" => 1e3, "ms" => 1e6, "s" => 1e9, _ => panic!("{text}") };
            let back = number.replace(',', "").parse::<f64>().unwrap() * scale;
            let error = (back - ns as f64).abs();
            prop_assert!(error <= ns as f64 * 0.00501 + 0.5, "{} became {}", ns, text);
            let digits = number.chars().filter(char::is_ascii_digit).count();
            prop_assert!(digits <= 3 || ns >= 999_500_000_000);
        }
    }

    #[test]
    fn no_calls_have_no_percentile() {
        assert_eq!(Hist::default().percentile(50, 0), None);
    }

    #[test]
    fn units_roll_over() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (9_994, "9.99 µs"),
            (9_995, "10.0 µs"),
            (99_950, "100 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (1_520_000_000, "1.52 s"),
            (999_499_999_999, "999 s"),
            (1_234_000_000_000, "1,234 s"),
        ] {
            assert_eq!(duration_text(ns, false), text);
        }
    }
}

#[test]
fn a_report_survives_its_json() {
    let report = full().report(facts(), None);
    let text = render_json(&report);
    let back = parse_json(&text).expect("reads what it wrote");
    assert_eq!(render_json(&back), text);
    let other = text.replace("debox.report", "debox.doctor");
    let error = parse_json(&other).expect_err("not a report").to_string();
    assert!(error.contains("debox.doctor"), "{error}");
}
