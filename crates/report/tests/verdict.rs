// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the first sentence say what an expert would?

mod support;

use debox_report::*;
use support::{MS, empty};

fn part(comm: &str, kind: CriticalKind, ms: u64, chain: Option<usize>) -> CriticalPart {
    CriticalPart {
        comm: Some(comm.into()),
        kind,
        chain,
        total_ns: ms * MS,
    }
}

fn life(comm: &str, life_ms: u64, own_ms: u64) -> LifeRow {
    LifeRow {
        pid: 812,
        comm: comm.into(),
        threads: 1,
        processes: 1,
        time: LifeTime {
            life_ns: life_ms * MS,
            own_ns: own_ms * MS,
            blocked_ns: (life_ms - own_ms) * MS,
            ..LifeTime::default()
        },
        ..LifeRow::default()
    }
}

/// Nine sleeps that one chain explains.
fn slept(first: usize, total_ms: u64) -> ChainRow {
    ChainRow {
        first,
        count: 9,
        total_ns: total_ms * MS,
        max_ns: total_ms * MS,
    }
}

fn link(kind: ChainKind, comm: &str, parent: Option<usize>, rests: bool) -> ChainLink {
    let sleeps = kind == ChainKind::Sleep;
    ChainLink {
        by_own: false,
        in_loop: false,
        kind,
        comm: comm.into(),
        call: sleeps.then(|| "fsync".into()),
        site: sleeps.then_some(0),
        operation: None,
        parent,
        held: false,
        stack: None,
        rests,
        means: None,
        class: None,
    }
}

/// `parts` add up to a second.
fn command(parts: Vec<CriticalPart>) -> Report {
    let mut report = empty();
    let total: u64 = parts.iter().map(|part| part.total_ns).sum();
    assert_eq!(total, 1000 * MS);
    report.critical_path = Some(CriticalPath {
        pid: 812,
        total_ns: total,
        parts,
    });
    report
}

fn with_chain(mut report: Report, label: &str) -> Report {
    report.sites = vec![Site {
        label: label.into(),
        unlabelled: false,
        function: None,
        offset: None,
        file: None,
        line: None,
        frames: Vec::new(),
    }];
    report.chain_links = vec![
        link(ChainKind::Disk, "vda", None, false),
        link(ChainKind::Sleep, "dpkg", Some(0), false),
        link(ChainKind::Sleep, "worker", Some(0), true),
    ];
    report
}

#[test]
fn computing_is_no_matter_of_system_calls() {
    let report = command(vec![
        part("cc1plus", CriticalKind::Own, 900, None),
        part("make", CriticalKind::Calls, 60, None),
        part("make", CriticalKind::Runq, 40, None),
    ]);
    assert_eq!(
        verdict_of(&report),
        [
            "Of 1.00 s, 90 % (900 ms) cc1plus: computing in its own code.",
            "Not a matter of system calls: what the code does with the CPU is the question."
        ]
    );
}

#[test]
fn a_wait_ends_at_its_root_with_what_can_be_done() {
    let report = with_chain(
        command(vec![
            part("dpkg", CriticalKind::Blocked, 700, Some(1)),
            part("dpkg", CriticalKind::Own, 300, None),
        ]),
        "device-flush",
    );
    let verdict = verdict_of(&report);
    assert_eq!(
        verdict[0],
        "Of 1.00 s, 100 % (1.00 s) dpkg: 700 ms in fsync: device-flush ← disk vda and 300 ms \
         computing in its own code."
    );
    assert!(verdict[1].contains("stable storage"), "{verdict:?}");
}

/// The file that nearly all of them can only have been for.
#[test]
fn waits_for_one_file_name_it() {
    let said = |others_ms: u64, kind: ObjectKind| {
        let mut made = support::Build::new();
        made.blocked("device-flush", "fsync", "sync", 9, (700 + others_ms) * MS);
        made.blocked("pipe", "read", "pipe_read", 9, 5000 * MS);
        let report = command(vec![
            part("dpkg", CriticalKind::Blocked, 700, Some(1)),
            part("dpkg", CriticalKind::Own, 300, None),
        ]);
        let mut report = with_chain(report, "device-flush");
        report.blocking = made.report.blocking;
        report.objects = vec![Object {
            kind,
            text: "/var/lib/dpkg/status\u{1b}[2J".into(),
            ..Object::default()
        }];
        let row = |call: &str, object: Option<usize>, ms: u64| ObjectRow {
            call: Some(call.into()),
            abi: 64,
            object,
            count: 9,
            total_ns: ms * MS,
            max_ns: ms * MS,
        };
        // What found no room is not there.
        report.by_object = vec![row("read", Some(0), 5000), row("fsync", Some(0), 700)];
        verdict_of(&report).swap_remove(0)
    };
    let is = "700 ms in fsync: device-flush on /var/lib/dpkg/status\\u{1b}[2J ← disk vda";
    assert!(
        said(130, ObjectKind::File).contains(is),
        "{}",
        said(130, ObjectKind::File)
    );
    let is_not = "700 ms in fsync: device-flush ← disk vda";
    assert!(said(150, ObjectKind::File).contains(is_not));
    assert!(said(0, ObjectKind::Futex).contains(is_not));
}

/// Who polls for a second at a time has waited for what came at last.
#[test]
fn a_time_limit_is_no_cause() {
    let waited = |limit_ms: u64| {
        let mut report = command(vec![
            part("curl", CriticalKind::Blocked, limit_ms, Some(1)),
            part("curl", CriticalKind::Blocked, 1000 - limit_ms, Some(3)),
        ]);
        report = with_chain(report, "poll");
        report.chain_links = vec![
            link(ChainKind::Limit, "", None, false),
            link(ChainKind::Sleep, "curl", Some(0), false),
            link(ChainKind::RanUser, "server", None, false),
            link(ChainKind::Sleep, "curl", Some(2), false),
        ];
        verdict_of(&report)[0].clone()
    };
    let said = |how: &str| format!("Of 1.00 s, 100 % (1.00 s) curl: in fsync: poll{how}.");
    assert_eq!(
        waited(900),
        said(" (90 % of it up to its own time limit, and then ← server ran its own code)")
    );
    assert_eq!(waited(100), said(" ← server ran its own code"));
    assert_eq!(waited(1000), said(" ← its own time limit"));
}

/// Of the smallest parts of a path only the kind is kept.
#[test]
fn small_waits_of_many_have_no_place() {
    let mut parts = vec![part("sh", CriticalKind::Own, 800, None)];
    parts.push(CriticalPart {
        comm: None,
        ..part("", CriticalKind::Blocked, 200, None)
    });
    let verdict = verdict_of(&command(parts));
    assert!(
        verdict[0].ends_with("20 % (200 ms) several others: asleep."),
        "{verdict:?}"
    );
}

/// Two waits for one lock, whose holder flushes once and writes once.
fn behind_a_holder() -> Report {
    let mut report = with_chain(empty(), "futex");
    report.sites.push(Site {
        label: "device-flush".into(),
        ..report.sites[0].clone()
    });
    let held = |parent| ChainLink {
        call: Some("futex".into()),
        held: true,
        ..link(ChainKind::Sleep, "python3", Some(parent), false)
    };
    let holder = |parent| ChainLink {
        site: Some(1),
        ..link(ChainKind::Sleep, "python3", Some(parent), false)
    };
    let disk = |operation: &str| ChainLink {
        operation: Some(operation.into()),
        ..link(ChainKind::Disk, "vda", None, false)
    };
    report.chain_links = vec![
        disk("flush"),
        holder(0),
        held(1),
        disk("write"),
        holder(3),
        held(4),
    ];
    report
}

/// A cause is told before a larger part of which none is known, unless that is all but all of it.
#[test]
fn a_cause_goes_before_what_is_not_known() {
    let mut report = behind_a_holder();
    report.chain_links[3] = link(ChainKind::Earlier, "kworker", None, false);
    for (cause, unknown, told) in [
        (30, 70, "(30 % of it ← disk vda: flush)"),
        (70, 30, "(70 % of it ← disk vda: flush)"),
        (8, 92, "← kworker, what it did before is not known"),
    ] {
        let parts = vec![
            part("python3", CriticalKind::Blocked, cause * 10, Some(2)),
            part("python3", CriticalKind::Blocked, unknown * 10, Some(5)),
        ];
        report.critical_path = command(parts).critical_path;
        let said = verdict_of(&report)[0].clone();
        assert!(said.contains(told), "{cause} {unknown}: {said}");
    }
}

#[test]
fn waits_for_one_holder_are_one_whatever_it_waited_for() {
    let parts = |flush, write| {
        vec![
            part("python3", CriticalKind::Blocked, flush, Some(2)),
            part("python3", CriticalKind::Blocked, write, Some(5)),
        ]
    };
    let mut report = behind_a_holder();
    report.critical_path = command(parts(600, 400)).critical_path;
    assert_eq!(
        verdict_of(&report)[0],
        "Of 1.00 s, 100 % (1.00 s) python3: in futex: futex ← python3 in fsync (60 % of it ← disk \
         vda: flush, 40 % ← disk vda: write)."
    );
    report.critical_path = command(parts(900, 100)).critical_path;
    assert_eq!(
        verdict_of(&report)[0],
        "Of 1.00 s, 100 % (1.00 s) python3: in futex: futex ← python3 in fsync ← disk vda: flush."
    );
    // What the program means by it is known: that is said in place of advice on the label.
    report.chain_links[2].means = Some("Another request has the log.".into());
    assert_eq!(verdict_of(&report)[1], "Another request has the log.");
}

/// A wait is one, whoever held it up: the second of them is told where it is half of the first, and a tenth
/// of all.
#[test]
fn the_second_who_held_a_wait_up_is_told() {
    let said = |first_ms: u64, second_ms: u64, own_ms: u64| {
        let mut report = with_chain(
            command(vec![
                part("server", CriticalKind::Blocked, first_ms, Some(2)),
                part("server", CriticalKind::Blocked, second_ms, Some(4)),
                part("server", CriticalKind::Own, own_ms, None),
            ]),
            "page-in",
        );
        report.chain_links = vec![
            link(ChainKind::Limit, "", None, false),
            link(ChainKind::Sleep, "slowdisk", Some(0), false),
            link(ChainKind::Sleep, "server", Some(1), false),
            link(ChainKind::Interrupt, "", None, false),
            link(ChainKind::Sleep, "server", Some(3), false),
        ];
        (verdict_of(&report)[0].clone(), report)
    };
    let (both, report) = said(410, 360, 230);
    assert_eq!(
        both,
        "Of 1.00 s, 100 % (1.00 s) server: 770 ms in fsync: page-in (53 % of it ← slowdisk waiting in fsync \
         until its own time limit, 47 % ← an interrupt) and 230 ms computing in its own code."
    );
    // The same in the table: one row, and what held it up below.
    let rows = critical_rows(&report);
    assert_eq!(
        (rows[0].what.as_str(), rows[0].total_ns),
        ("fsync: page-in", 770 * MS)
    );
    assert_eq!(
        rows[0].causes,
        [
            (
                "slowdisk waiting in fsync until its own time limit".to_owned(),
                410 * MS
            ),
            ("an interrupt".to_owned(), 360 * MS)
        ]
    );
    // Less than half of the first; less than a tenth of the whole; next to nothing.
    assert!(
        said(500, 200, 300)
            .0
            .contains("(71 % of it ← slowdisk waiting in fsync until its own time limit)")
    );
    assert!(
        said(110, 90, 800)
            .0
            .contains("(55 % of it ← slowdisk waiting in fsync until its own time limit)")
    );
    assert!(
        said(700, 100, 200)
            .0
            .contains("page-in ← slowdisk waiting in fsync until its own time limit and")
    );
    // What is not known is no second cause.
    let mut report = said(410, 360, 230).1;
    report.chain_links[3].kind = ChainKind::Unseen;
    assert!(!verdict_of(&report)[0].contains("was not seen"));
}

#[test]
fn page_faults_are_not_the_programs_own_code() {
    let mut report = command(vec![
        part("true", CriticalKind::Own, 700, None),
        part("true", CriticalKind::Calls, 200, None),
        part("true", CriticalKind::Exit, 100, None),
    ]);
    let mut row = life("true", 1000, 700);
    row.time.blocked_ns = 0;
    row.time.calls_ns = 200 * MS;
    row.time.exit_ns = 100 * MS;
    row.time.minor_faults = 120_000;
    // Nine tenths of all in the kernel, of that 300 ms in calls and at the end.
    row.time.user_ns = 100 * MS;
    row.time.system_ns = 900 * MS;
    report.lives = vec![row];
    let verdict = verdict_of(&report);
    assert_eq!(
        verdict[0],
        "Of 1.00 s, 100 % (1.00 s) true: 600 ms in 120,000 page faults, 200 ms on a CPU in system \
         calls and 100 ms computing in its own code."
    );
    assert!(verdict[1].contains("first use of memory"), "{verdict:?}");
    // Longer than faults take: it is not said that they are it.
    report.lives[0].time.minor_faults = 100;
    assert!(verdict_of(&report)[0].contains("600 ms in the kernel outside of calls"));
    // Too few ticks to tell.
    report.lives[0].time.user_ns /= 100;
    report.lives[0].time.system_ns /= 100;
    assert!(verdict_of(&report)[0].contains("700 ms computing in its own code"));
}

#[test]
fn whose_cpus_they_were_is_told_apart() {
    let mut report = command(vec![
        part("a", CriticalKind::Runq, 600, None),
        part("a", CriticalKind::Own, 400, None),
    ]);
    report.lives = vec![life("a", 1000, 400)];
    let verdict = verdict_of(&report);
    assert!(
        verdict[0].contains("60 % (600 ms) waiting for a CPU"),
        "{verdict:?}"
    );
    // Not measured: nothing is guessed.
    assert!(verdict[1].contains("was not measured"), "{verdict:?}");
    let machine = Machine {
        cpus_online: 2,
        cpus_allowed: vec![0, 1],
        busy_ns: 1_900 * MS,
        ..Machine::default()
    };
    report.machine = Some(machine.clone());
    // In no queue, and waiting: until idle CPUs had begun.
    report.totals.nvcsw = Some(20_000);
    assert!(verdict_of(&report)[1].contains("20,000 wake-ups"));
    report.totals.nvcsw = None;
    assert_eq!(
        verdict_of(&report)[1],
        "The machine, not the program: others used 75 % of the time of 2 CPUs, it had 20 %."
    );
    report.machine = Some(Machine {
        steal_ns: 500 * MS,
        ..machine.clone()
    });
    assert_eq!(
        verdict_of(&report)[1],
        "The machine, not the program: a hypervisor took 25 % of the time of 2 CPUs (steal), it had 20 %."
    );
    report.machine = Some(Machine {
        limits: vec![CpuLimit {
            group: "/app".into(),
            file: "cpu.max".into(),
            quota_ns: 40 * MS,
            period_ns: 100 * MS,
            periods: 10,
            throttled: 9,
            throttled_ns: 600 * MS,
        }],
        ..machine.clone()
    });
    assert_eq!(
        verdict_of(&report)[1],
        "A limit, not the program: the control group /app may use 40.0 ms of each 100 ms (0.40 CPUs, cpu.max), \
         and was held back in 9 of 10 of them: more of it, or less to compute, would help."
    );
    // Nobody took it: that is said, and no culprit made up.
    report.machine = Some(Machine {
        busy_ns: 400 * MS,
        ..machine.clone()
    });
    assert!(verdict_of(&report)[1].ends_with("what did is not known."));
    report.lives = vec![life("a", 2000, 900)];
    report.machine = Some(Machine {
        cpus_allowed: vec![1],
        busy_ns: 950 * MS,
        ..machine.clone()
    });
    assert!(
        verdict_of(&report)[1].starts_with("Its own threads filled CPU 1, and its affinity"),
        "{:?}",
        verdict_of(&report)
    );
    report.lives = vec![life("a", 2000, 1900)];
    report.machine = Some(machine);
    let verdict = verdict_of(&report);
    assert!(
        verdict[1].starts_with("Its own threads filled the 2 CPUs"),
        "{verdict:?}"
    );
}

#[test]
fn calls_that_do_very_little_are_the_answer_where_the_time_is_theirs() {
    let mut report = command(vec![
        part("dd", CriticalKind::Calls, 800, None),
        part("dd", CriticalKind::Own, 200, None),
    ]);
    let mut b = support::Build::new();
    let row = b.call("read", 500_000, [700 * MS, 0, 0]);
    row.ones = 500_000;
    let built = b.done();
    (report.calls, report.totals) = (built.calls, built.totals);
    assert_eq!(
        verdict_of(&report)[1],
        "500,000 of 500,000 read calls move one byte each. A call costs about the same for one byte as for a \
         few thousand: read and write through a buffer."
    );
    // Most of the time is elsewhere: no word of it.
    report.critical_path = command(vec![
        part("dd", CriticalKind::Calls, 100, None),
        part("dd", CriticalKind::Own, 900, None),
    ])
    .critical_path;
    assert!(!verdict_of(&report).concat().contains("one byte"));
}

#[test]
fn between_two_looks_only_what_happened_there_counts() {
    let mut before = with_chain(empty(), "poll");
    before.run.kind = RunKind::Attach;
    before.lives = vec![life("worker", 1000, 990)];
    let mut now = before.clone();
    now.run.wall_ns = 2_000 * MS;
    now.lives[0].time.life_ns = 2_000 * MS;
    now.lives[0].time.blocked_ns = 1_010 * MS;
    // A sleep that began before the first look ends after it: it counts from there on.
    let open = |report: &mut Report, ms: u64| {
        let still = report.chain_links.len();
        report
            .chain_links
            .push(link(ChainKind::NotOver, "", None, false));
        report
            .chain_links
            .push(link(ChainKind::Sleep, "worker", Some(still), false));
        report.chains.push(ChainRow {
            first: still + 1,
            count: 1,
            total_ns: ms * MS,
            max_ns: ms * MS,
        });
    };
    open(&mut before, 5);
    now.chain_links
        .push(link(ChainKind::Sleep, "worker", Some(0), false));
    now.chains.push(ChainRow {
        first: now.chain_links.len() - 1,
        count: 1,
        total_ns: 1_000 * MS,
        max_ns: 1_000 * MS,
    });
    let verdict = since(&now, &before).verdict;
    assert!(
        verdict[0].starts_with(
            "In 1.00 s, its thread had something to do for 995 ms: 100 % (995 ms) in fsync"
        ),
        "{verdict:?}"
    );
    // Nothing happened since.
    assert!(since(&now, &now).verdict.is_empty());
}

/// Processes beyond the rows are told by control group: each row less what the same one had.
#[test]
fn rows_of_many_processes_are_told_apart_by_control_group() {
    let row = |pid, number, path: Option<&str>, ms| LifeRow {
        pid,
        comm: "cc".into(),
        cgroup: path.map(str::to_owned),
        cgroup_number: number,
        time: LifeTime {
            life_ns: ms * MS,
            ..LifeTime::default()
        },
        ..LifeRow::default()
    };
    let lives = |lives: Vec<LifeRow>| Report {
        lives,
        ..Report::default()
    };
    let told = |now: &Report, before: &Report| {
        let rows = since(now, before).lives.into_iter();
        rows.map(|row| row.time.life_ns / MS).collect::<Vec<_>>()
    };
    // The name of one is found out meanwhile, and that of another is not known any more; a process goes elsewhere.
    let before = lives(vec![
        row(0, 7, None, 100),
        row(0, 8, Some("/b"), 1),
        row(0, 0, None, 10),
        row(5, 7, Some("/a"), 3),
    ]);
    let now = lives(vec![
        row(0, 7, Some("/a"), 102),
        row(0, 0, None, 15),
        row(5, 8, Some("/b"), 9),
        row(0, 8, None, 4),
    ]);
    assert_eq!(told(&now, &before), [2, 5, 6, 3]);
    // Files have no numbers, and not all names.
    let before = lives(vec![
        row(0, 0, Some("/a"), 100),
        row(0, 0, None, 10),
        row(0, 0, None, 1),
    ]);
    let now = lives(vec![
        row(0, 0, None, 12),
        row(0, 0, Some("/a"), 102),
        row(0, 0, None, 3),
    ]);
    assert_eq!(told(&now, &before), [1, 2, 3]);
}

/// A sleep at a resting place that lasts to the end is one rest, and not two.
#[test]
fn a_pool_that_rests_does_not_hide_who_works() {
    let mut report = with_chain(empty(), "poll");
    report.run.kind = RunKind::Attach;
    report.run.wall_ns = 1_000 * MS;
    report.lives = vec![life("node", 1000, 300), life("pool", 20_000, 0)];
    report.lives[0].time.blocked_ns = 700 * MS;
    report.lives[1].time.blocked_ns = 20_000 * MS;
    report.chain_links = vec![
        link(ChainKind::NotOver, "", None, false),
        link(ChainKind::Sleep, "pool", Some(0), true),
    ];
    report.chains = vec![slept(1, 20_000)];
    let verdict = verdict_of(&report);
    assert!(verdict[0].contains("had something to do"), "{verdict:?}");
}

/// Threads that wait up to a time limit and look again, for a lock that lets one run at a time.
#[test]
fn what_others_computed_beside_a_time_limit_is_told() {
    let mut report = command(vec![
        part("python3", CriticalKind::Own, 550, None),
        part("python3", CriticalKind::Blocked, 450, Some(1)),
    ]);
    report = with_chain(report, "futex");
    report.chain_links = vec![
        link(ChainKind::Limit, "", None, false),
        link(ChainKind::Sleep, "python3", Some(0), false),
    ];
    report.lives = vec![life("python3", 4000, 990)];
    let verdict = verdict_of(&report);
    assert!(
        verdict[0].contains("(other threads of it computed for 440 ms)"),
        "{verdict:?}"
    );
    assert!(
        verdict[1].starts_with("Its threads computed"),
        "{verdict:?}"
    );
    // Nothing beside: then it is a wait as any other.
    report.lives = vec![life("python3", 4000, 560)];
    assert!(!verdict_of(&report)[0].contains("other threads"));
}

/// A parent that sleeps and looks again, while its child computes.
#[test]
fn what_went_on_beside_sleeps_is_told() {
    let report = command(vec![
        part("sh", CriticalKind::Blocked, 900, Some(1)),
        part("sh", CriticalKind::Own, 100, None),
    ]);
    let mut report = with_chain(report, "nanosleep");
    report.chain_links = vec![
        link(ChainKind::Timer, "", None, false),
        link(ChainKind::Sleep, "sh", Some(0), false),
    ];
    report.lives = vec![life("sh", 1000, 100), life("worker", 1000, 850)];
    let verdict = verdict_of(&report);
    assert!(
        verdict[1].starts_with("Beside that worker had a CPU for 850 ms"),
        "{verdict:?}"
    );
    report.lives.pop();
    assert!(!verdict_of(&report).concat().contains("Beside"));
}

#[test]
fn rests_are_no_answer() {
    let mut report = with_chain(empty(), "poll");
    report.run.kind = RunKind::Attach;
    report.lives = vec![life("worker", 1000, 1)];
    report.chains = vec![slept(2, 999)];
    let verdict = verdict_of(&report);
    assert_eq!(verdict.len(), 1);
    assert!(verdict[0].starts_with("Nothing went on"), "{verdict:?}");
}

/// Who has waited from beginning to end for what somebody has is no rest, and the answer.
#[test]
fn who_is_held_up_all_the_while_is_named_first() {
    let why = "worker (7) has waited 9 s for a flock held by backup (8).";
    let watched = |worked_ms: u64, at_least_ms: u64| {
        let mut report = with_chain(empty(), "flock");
        report.run.kind = RunKind::Attach;
        report.lives = vec![life("worker", 1000, worked_ms)];
        report.chain_links = vec![
            link(ChainKind::NotOver, "", None, false),
            link(ChainKind::Sleep, "worker", Some(0), false),
        ];
        report.chains = vec![slept(1, 1000 - worked_ms)];
        report.open_calls = vec![OpenCall {
            pid: 7,
            tid: 7,
            comm: "worker".into(),
            call: "flock".into(),
            at_least_ns: at_least_ms * MS,
            why: String::new(),
            held_up: why.into(),
        }];
        verdict_of(&report)
    };
    let verdict = watched(0, 1000);
    assert_eq!(verdict[0], why);
    assert!(
        verdict[1].starts_with("Nothing else went on"),
        "{verdict:?}"
    );
    // Others had something to do.
    let verdict = watched(400, 1000);
    assert_eq!(verdict[1], why);
    assert!(
        !verdict.concat().contains("until something came"),
        "{verdict:?}"
    );
    // It came late.
    assert!(!watched(0, 100).contains(&why.to_owned()));
}

/// Who waits for a lock comes back to one place, as who waits for work does.
#[test]
fn who_waits_for_threads_of_its_own_may_have_something_to_do() {
    let rested = |root: ChainKind, who: &str, by_own: bool| {
        let mut report = with_chain(empty(), "futex");
        report.run.kind = RunKind::Attach;
        report.lives = vec![life("python3", 1000, 400)];
        report.chain_links = vec![
            link(root, who, None, false),
            link(ChainKind::Sleep, "python3", Some(0), true),
            link(ChainKind::Limit, "", None, false),
            link(ChainKind::Sleep, "python3", Some(2), true),
        ];
        report.chain_links[1].by_own = by_own;
        report.chains = vec![slept(3, 500), slept(1, 100)];
        verdict_of(&report)[0].clone()
    };
    let own =
        "slept until other threads of its own had run, mostly in fsync: for a lock that they held";
    assert!(rested(ChainKind::RanUser, "python3", true).contains(own));
    assert!(rested(ChainKind::Runq, "python3", true).contains(own));
    let idle = "slept until something came, mostly in fsync.";
    assert!(rested(ChainKind::RanUser, "client", false).contains(idle));
    // Of the same name, and not watched.
    assert!(rested(ChainKind::RanUser, "python3", false).contains(idle));
    assert!(rested(ChainKind::Network, "", false).contains(idle));
}

#[test]
fn a_users_own_advice_is_shown() {
    let mut report = with_chain(
        command(vec![
            part("dpkg", CriticalKind::Blocked, 700, Some(1)),
            part("dpkg", CriticalKind::Own, 300, None),
        ]),
        "our-barrier",
    );
    assert_eq!(verdict_of(&report).len(), 1);
    let mut own = LabelMeaning {
        label: "our-barrier".into(),
        meaning: debox_labels::Meaning {
            group: "our-barrier".into(),
            kind: debox_labels::Kind::Loss,
            what: "the barrier".into(),
            advice: "Raise barrier_slots.".into(),
        },
    };
    report.labels = vec![own.clone()];
    assert_eq!(verdict_of(&report)[1], "Raise barrier_slots.");
    own.meaning.kind = debox_labels::Kind::Idle;
    report.labels = vec![own];
    assert_eq!(verdict_of(&report).len(), 1);
}

#[test]
fn what_measuring_took_is_set_aside() {
    let with = |of_tool_ms: u64| {
        let mut report = with_chain(
            command(vec![
                part("sh", CriticalKind::Blocked, of_tool_ms, Some(1)),
                part("sh", CriticalKind::Own, 1000 - of_tool_ms, None),
            ]),
            "splice-setup",
        );
        report.labels = vec![LabelMeaning {
            label: "splice-setup".into(),
            meaning: debox_labels::Meaning {
                group: "splice-setup".into(),
                kind: debox_labels::Kind::Tool,
                what: "DeBox".into(),
                advice: "That is DeBox's own work.".into(),
            },
        }];
        verdict_of(&report)
    };
    let much = with(400);
    assert!(
        much[0].starts_with(
            "Of 600 ms (without 400 ms of DeBox's own work), 100 % (600 ms) sh: computing"
        ),
        "{much:?}"
    );
    assert_eq!(much.last().unwrap(), "That is DeBox's own work.");
    let little = with(5);
    assert!(little[0].starts_with("Of 995 ms, 100 %"), "{little:?}");
    assert_eq!(little.len(), 2, "{little:?}");
    assert!(with(1000).is_empty());
}

#[test]
fn without_a_broker_waits_are_told_apart_from_work() {
    let asked = |calls: &[(&str, u64)], setup_ms: u64, asked_ms: u64| {
        let mut b = support::Build::new();
        for (name, ms) in calls {
            b.call(name, 1, [ms * MS, 0, 0]);
        }
        let mut report = b.report;
        report.run.capture = Capture::Splice;
        report.run.wall_ns = 1000 * MS;
        report.measured.blocked = false;
        report.run.splice_setup = Some(SpliceSetup {
            programs: 1 + setup_ms / 1000,
            total_ns: setup_ms * MS,
            asked_ns: asked_ms * MS,
            files_copied: (setup_ms + asked_ms) / 300,
        });
        verdict_of(&report)
    };
    let all = |calls: &[(&str, u64)], setup_ms| asked(calls, setup_ms, 0);
    let of = |calls: &[(&str, u64)]| all(calls, 0).remove(0);
    assert_eq!(
        of(&[("read", 80), ("write", 20), ("getpid", 4)]),
        "In 1.00 s system calls took 104 ms (10 %), mostly read."
    );
    assert_eq!(
        of(&[
            ("pselect6", 1800),
            ("futex", 150),
            ("read", 300),
            ("write", 250)
        ]),
        "In 1.00 s system calls took 2.50 s, those of all threads added up: 1.95 s in calls that wait for \
         something to come (mostly pselect6), 550 ms in others (mostly read)."
    );
    assert_eq!(
        of(&[("epoll_wait", 900), ("read", 1)]),
        "In 1.00 s system calls took 901 ms (90 %), in calls that wait for something to come (mostly epoll_wait)."
    );
    // What debox took of an execve is no call's.
    let own = all(&[("execve", 301), ("read", 20)], 300);
    assert_eq!(
        own[..2],
        [
            "In 1.00 s system calls took 21.0 ms (2 %), mostly read.",
            "Of 1.00 s DeBox itself took 300 ms to prepare programs that begin, and to copy those that it had \
             not seen yet: a second run has less of that."
        ]
    );
    assert_eq!(own.len(), 3, "{own:?}");
    // A large library's copy takes most of it, and is in no call.
    let late = asked(&[("execve", 2), ("read", 20)], 1, 900);
    assert_eq!(
        late[..2],
        [
            "Of 1.00 s DeBox itself took 901 ms to prepare programs that begin, and to copy those that it had not \
             seen yet: a second run has less of that.",
            "In 1.00 s system calls took 21.0 ms (2 %), mostly read."
        ]
    );
    let many = all(&[("wait4", 900)], 1500).remove(1);
    assert!(
        many.starts_with(
            "DeBox itself took 1.50 s, of all programs and threads added up, to prepare"
        ),
        "{many}"
    );
    assert_eq!(all(&[("execve", 2), ("read", 20)], 1).len(), 2);
    // Several that waited for copies at once.
    let forks = asked(&[("clone", 1), ("read", 20)], 1, 2400);
    assert!(forks[0].starts_with("In 1.00 s"), "{forks:?}");
    assert!(
        forks[1].starts_with("DeBox itself took 2.40 s, of all programs and threads added up,"),
        "{forks:?}"
    );
}

#[test]
fn names_cannot_write_to_a_terminal_and_nothing_is_said_from_nothing() {
    let report = command(vec![part("\x1b[2J", CriticalKind::Own, 1000, None)]);
    assert!(!verdict_of(&report).concat().contains('\x1b'));
    assert!(verdict_of(&empty()).is_empty());
}
