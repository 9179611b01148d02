// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do chains become the tree and the roots that people read?

mod support;

use debox_report::*;

fn link(kind: ChainKind, comm: &str, site: Option<usize>, parent: Option<usize>) -> ChainLink {
    ChainLink {
        by_own: false,
        in_loop: false,
        rests: false,
        means: None,
        class: None,
        kind,
        comm: comm.into(),
        call: site.map(|_| "futex".into()),
        site,
        operation: None,
        parent,
        held: false,
        stack: None,
    }
}

/// a waited 100 for b: 60 of it b slept for the disk, 40 it ran; and c 10 for the disk.
fn report() -> Report {
    let mut report = support::empty();
    report.sites = vec![Site {
        label: "lock".into(),
        unlabelled: false,
        function: None,
        offset: None,
        file: None,
        line: None,
        frames: vec![],
    }];
    report.chain_links = vec![
        link(ChainKind::Disk, "vda", None, None),
        link(ChainKind::Sleep, "b", Some(0), Some(0)),
        link(ChainKind::Sleep, "a", Some(0), Some(1)),
        link(ChainKind::Ran, "b", None, None),
        link(ChainKind::Sleep, "a", Some(0), Some(3)),
        link(ChainKind::Sleep, "c", Some(0), Some(0)),
    ];
    let row = |first, total_ns| ChainRow {
        first,
        count: 1,
        total_ns,
        max_ns: total_ns,
    };
    report.chains = vec![row(2, 60), row(4, 40), row(5, 10)];
    report
}

#[test]
fn chains_that_begin_alike_are_one_branch() {
    let (lines, left) = tree_lines(&tree(&report(), &report().chains), 10);
    let lines: Vec<_> = lines
        .iter()
        .map(|l| (l.depth, l.text.as_str(), l.total_ns))
        .collect();
    assert_eq!(
        lines,
        [
            (0, "a in futex: lock", 100),
            (1, "b in futex: lock ← disk vda", 60),
            (1, "b ran", 40),
            (0, "c in futex: lock ← disk vda", 10),
        ]
    );
    assert_eq!(left, 0);
}

#[test]
fn what_is_least_is_left_out_first() {
    let (lines, left) = tree_lines(&tree(&report(), &report().chains), 2);
    let texts: Vec<_> = lines.iter().map(|l| l.total_ns).collect();
    assert_eq!((texts, left), (vec![100, 60], 2));
}

#[test]
fn roots_are_summed_up_over_all_ways() {
    let roots = roots(&report(), &report().chains);
    let roots: Vec<_> = roots
        .iter()
        .map(|r| (r.text.as_str(), r.total_ns, r.ways, r.known))
        .collect();
    assert_eq!(roots, [("disk vda", 70, 2, true), ("b ran", 40, 1, true)]);
}

#[test]
fn a_circle_in_a_foreign_report_ends() {
    let mut report = report();
    report.chain_links[0].parent = Some(2);
    assert!(links_of(&report, 2).len() <= report.chain_links.len() + 1);
    tree(&report, &report.chains);
    roots(&report, &report.chains);
}

#[test]
fn who_ran_is_told_with_its_place() {
    let mut report = report();
    let frame = |function: &str, line| Frame {
        function: Some(function.into()),
        module: Some("b".into()),
        offset: 4,
        file: Some("/src/b.c".into()),
        line: Some(line),
        inlined: false,
    };
    report.stacks = vec![UserStack {
        frames: vec![
            frame("futex_wake", 1),
            frame("release", 2),
            frame("work", 3),
            frame("loop", 4),
            frame("main", 5),
            Frame {
                module: Some("libc.so.6".into()),
                ..frame("__libc_start_call_main", 58)
            },
        ],
        site_frame: 1,
        cut: false,
    }];
    report.chain_links[3].stack = Some(0);
    assert_eq!(
        link_text(&report.chain_links[3], &report),
        "b ran at release (b.c:2), from work (b.c:3), from loop (b.c:4)"
    );
    // What starts the program is none of its places.
    report.stacks[0].site_frame = 4;
    assert_eq!(
        link_text(&report.chain_links[3], &report),
        "b ran at main (b.c:5)"
    );
    // In a foreign report there may be no such stack, or frame.
    report.stacks[0].site_frame = 6;
    assert_eq!(link_text(&report.chain_links[3], &report), "b ran");
    report.chain_links[3].stack = Some(1);
    assert_eq!(link_text(&report.chain_links[3], &report), "b ran");
}

fn options(ascii: bool) -> TextOptions {
    TextOptions {
        ascii,
        ..TextOptions::default()
    }
}

/// A slow call with one sleep, of which `permille` are explained.
fn slow(permille: Option<u32>) -> Report {
    let mut report = report();
    let mut full = support::server(1);
    let mut call = full.slow_calls.remove(0);
    call.sleeps.truncate(1);
    let sleep = &mut call.sleeps[0];
    (sleep.blocked_ns, sleep.site, sleep.holder) = (136_000_000, Some(0), None);
    (sleep.chain, sleep.chain_permille) = (Some(4), permille);
    report.slow_calls = vec![call];
    report
}

#[test]
fn what_explains_a_part_is_not_told_of_the_whole() {
    let line = |permille: Option<u32>, ascii: bool| {
        let text = render_text(&slow(permille), &options(ascii));
        let line = text.lines().find(|line| line.contains("136 ms lock"));
        line.expect("the sleep is told").trim().to_owned()
    };
    assert!(line(Some(196), false).ends_with("136 ms lock, with 2 others, 26.7 ms of it ← b ran"));
    for nearly_all in [Some(1000), Some(960), None] {
        assert!(line(nearly_all, false).ends_with("136 ms lock, with 2 others ← b ran"));
    }
    assert!(line(Some(196), true).ends_with("26.7 ms of it <- b ran"));
}

#[test]
fn slow_calls_that_are_not_kept_singly_are_counted() {
    let mut report = slow(None);
    let said = "(kept singly: 1; 4,711 more that were seen are in the tables alone)";
    assert!(!render_text(&report, &options(false)).contains("kept singly"));
    report.slow_calls_left_out = 4_711;
    let text = render_text(&report, &options(false));
    assert!(text.contains(said), "{text}");
    let json: serde_json::Value = serde_json::from_str(&render_json(&report)).unwrap();
    assert_eq!(json["slow_calls_left_out"], 4_711);
}

/// Whose call may go on.
#[test]
fn a_single_sleep_is_told_as_one() {
    let mut report = slow(None);
    let text = render_text(&report, &options(false));
    assert!(
        text.contains("Slow calls, the slowest of each kind"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&render_json(&report)).unwrap();
    assert_eq!(json["slow_calls"][0].get("one_sleep"), None);
    let call = &mut report.slow_calls[0];
    call.one_sleep = true;
    (call.retval, call.cpu_ns, call.major_faults) = (0, 0, 0);
    (call.blocked_ns, call.runq_ns, call.wall_ns) = (136_000_000, 300_000_000, 436_000_000);
    let text = render_text(&report, &options(false));
    assert!(
        text.contains("Slow sleeps, the slowest of each kind"),
        "{text}"
    );
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Not how long it was on a CPU, or what it returned.
    assert!(line.contains(": run queue 300 ms 136 ms lock"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&render_json(&report)).unwrap();
    assert_eq!(json["slow_calls"][0]["one_sleep"], true);
    let page = render_html(&report);
    assert!(page.contains("The slowest single sleeps"));
    (report.measured.calls, report.totals.calls) = (true, 7);
    assert!(render_html(&report).contains("7 calls took"));
    report.measured.calls = false;
    assert!(!render_html(&report).contains("7 calls took"));
}

#[test]
fn parts_are_called_parts_and_arrows_are_as_plain_as_units() {
    let mut report = slow(Some(196));
    report.chain_links[5].rests = true;
    report.chains[2].count = 5;
    for (ascii, arrow) in [(false, "←"), (true, "<-")] {
        let text = render_text(&report, &options(ascii));
        assert!(
            text.contains(&format!("PARTS  WAITED  {arrow}  FOR")),
            "{text}"
        );
        assert!(
            text.contains("for an answer: 10 ns: c in futex:\n  lock (10 ns)\n"),
            "{text}"
        );
        assert!(
            text.contains(&format!("b in futex: lock {arrow} disk vda")),
            "{text}"
        );
        assert!(!ascii || text.is_ascii(), "{text}");
    }
}

#[test]
fn a_time_limit_is_told_from_a_timer() {
    for (kind, said) in [
        (ChainKind::Timer, " ← a timer"),
        (ChainKind::Limit, " ← its own time limit"),
        (ChainKind::GracePeriod, " ← an RCU grace period"),
    ] {
        let mut report = slow(None);
        report.chain_links[3] = link(kind, "", None, None);
        let text = render_text(&report, &options(false));
        let line = text.lines().find(|line| line.contains("136 ms lock"));
        assert!(line.expect("the sleep is told").ends_with(said), "{text}");
    }
}

mod all_time_of_threads {
    use super::*;

    fn link(comm: &str, call: Option<&str>, rests: bool) -> ChainLink {
        ChainLink {
            by_own: false,
            in_loop: false,
            kind: ChainKind::Sleep,
            comm: comm.into(),
            call: call.map(str::to_owned),
            site: None,
            operation: None,
            parent: None,
            held: false,
            stack: None,
            rests,
            means: None,
            class: None,
        }
    }

    fn report(chains_ns: [u64; 3]) -> Report {
        let mut report = support::empty();
        report.lives = vec![LifeRow {
            comm: "a".into(),
            time: LifeTime {
                life_ns: 1070,
                own_ns: 700,
                calls_ns: 100,
                exit_ns: 10,
                blocked_ns: 200,
                rest_ns: 50,
                outside_ns: 30,
                runq_ns: 30,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        }];
        report.chain_links = vec![
            link("a", Some("read"), false),
            link("a", Some("read"), true),
            link("a", None, false),
            link("b", Some("read"), false),
        ];
        let row = |first: usize, total_ns| ChainRow {
            first,
            count: 1,
            total_ns,
            max_ns: total_ns,
        };
        report.chains = (chains_ns.into_iter().enumerate())
            .map(|(at, ns)| row(at, ns))
            .chain([row(3, 9), row(77, 9)])
            .collect();
        let sampled = |kind, call: Option<&str>, samples| OnCpuRow {
            group: 0,
            kind,
            call: call.map(str::to_owned),
            abi: 64,
            frame: None,
            samples,
        };
        report.on_cpu = Some(OnCpu {
            hz: 99,
            samples: 8,
            groups: vec![OnCpuGroup {
                comm: "a".into(),
                samples: 8,
                ..OnCpuGroup::default()
            }],
            rows: vec![
                sampled(OnCpuKind::User, None, 5),
                sampled(OnCpuKind::Kernel, None, 2),
                sampled(OnCpuKind::Call, Some("write"), 1),
            ],
            ..OnCpu::default()
        });
        report
    }

    #[test]
    fn parts_add_up_to_the_life() {
        for (chains_ns, blocked) in [([100, 50, 30], 100), ([400, 0, 10], 200)] {
            let all = all_time(&report(chains_ns));
            assert_eq!(all.len(), 1, "b has no life");
            assert_eq!(all[0].life_ns, 1070);
            let of = |of: TimeOf| {
                let parts = all[0].parts.iter().filter(|part| part.of == of);
                parts.map(|part| part.ns).sum::<u64>()
            };
            assert_eq!(of(TimeOf::Samples(0)) + of(TimeOf::Samples(1)), 700);
            assert_eq!(of(TimeOf::Samples(0)), 500);
            assert_eq!(of(TimeOf::Samples(2)), 100);
            assert_eq!(of(TimeOf::Chain(0)), blocked);
        }
        let mut bare = report([0; 3]);
        bare.on_cpu = None;
        bare.chains.clear();
        assert_eq!(all_time(&bare)[0].life_ns, 1070);
        bare.lives.clear();
        assert_eq!(all_time(&bare), []);
    }
}
