// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox bench os` say what others measure?
//!
//! Each suite against loops written apart from it (independent.c), against
//! `perf bench`, and against what the kernel's own books say. By wide ratios,
//! of minima of many: the machine may be busy with anything.

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

use debox_bench::account::Accountant;
use debox_bench::clock::{self, Clock, Kind};
use debox_bench::machine::cpus_allowed;
use debox_bench::os::{Ctx, Suite, clocks, groups, reads};
use debox_bench::sampling::{Case, Plan, measure, pin};
use debox_bench::worker::{Order, work};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One test at a time: all use the same CPU.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn context(file: Option<&std::fs::File>) -> Ctx {
    let cpus = cpus_allowed();
    let cpu = *cpus.last().unwrap();
    let choice = clock::choice(
        Kind::CounterOrdered,
        clock::counter_calibrate(Duration::from_millis(30)),
    );
    Ctx {
        clock: Clock::new(&choice),
        cpu,
        other_cpu: cpus.iter().copied().find(|c| *c != cpu),
        quick: true,
        file: file.map(AsRawFd::as_raw_fd),
        file_bytes: file.map_or(0, |f| f.metadata().unwrap().len()),
    }
}

fn plan(ms: u64) -> Plan {
    Plan {
        budget: Duration::from_millis(ms),
        target: 0.001,
        batch: Duration::from_micros(100),
        first: 0,
        turn: 5,
        turns_min: 4,
    }
}

/// The shortest batch of every case, ns for one operation, and why others have none.
fn minima(suite: Suite, ctx: &Ctx, ms: u64) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    pin(ctx.cpu).unwrap();
    let (mut found, mut missing) = (BTreeMap::new(), BTreeMap::new());
    for make in groups(suite, ctx) {
        let mut group = make(ctx).unwrap();
        let budget = ((ms as f64 * group.share) as u64).max(1);
        let results = measure(&mut group.cases, &plan(budget));
        for (case, result) in group.cases.iter().zip(results) {
            match result {
                Ok(i) => {
                    let least = i.samples.iter().copied().fold(f64::MAX, f64::min);
                    found.insert(case.id.clone(), least);
                }
                Err(e) => {
                    missing.insert(case.id.clone(), e.to_string());
                }
            }
        }
    }
    (found, missing)
}

/// 16 MiB on a disk, with a name for the C program.
fn file() -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new()
        .tempfile_in(if std::path::Path::new("/var/tmp").is_dir() {
            "/var/tmp"
        } else {
            "."
        })
        .unwrap();
    let mut rng = fastrand::Rng::with_seed(4);
    let mut block = vec![0u8; 1 << 20];
    for _ in 0..16 {
        rng.fill(&mut block);
        file.write_all(&block).unwrap();
    }
    file.as_file().sync_all().unwrap();
    file
}

/// What independent.c measures; `None`: this machine does not have it.
fn independent(ctx: &Ctx, path: &std::path::Path) -> BTreeMap<String, Option<f64>> {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("independent");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/independent.c");
    let built = Command::new("cc")
        .args(["-O2", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .expect("a C compiler, as building DeBox needs one");
    assert!(built.success());
    let out = Command::new(&program)
        .arg(ctx.cpu.to_string())
        .arg(ctx.other_cpu.unwrap_or(ctx.cpu).to_string())
        .arg(path)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|l| {
            let (name, ns) = l.rsplit_once(' ').unwrap();
            (name.to_owned(), (ns != "-").then(|| ns.parse().unwrap()))
        })
        .collect()
}

/// How far apart the two may be, either way. More where a virtual machine's
/// idle CPU, a disk, or the state of the caches has a part in it, and where the
/// plain loop does not do quite the same.
fn most(name: &str) -> f64 {
    match name {
        // Their fault makes the page table, too.
        "fault/file-mapped" => 6.0,
        // As many pages at once as the page cache happened to get in one piece.
        "fault/file-around" => 12.0,
        "fault/none" | "fault/prefaulted-before" => 5.0,
        // 2 MiB are cleared within a cache, or not.
        "fault/huge" => 8.0,
        // Mapped, touched, unmapped: the faults take in as many pages at once as
        // the page cache got in one piece.
        n if n.starts_with("read/warm/mmap") => 6.0,
        // Where the other is quick enough, neither sleeps at all.
        "switch/futex/other" | "switch/condvar/other" => 200.0,
        // A virtual CPU that was halted is woken in tens of microseconds, one
        // that still polls in three.
        n if n.ends_with("/other") => 30.0,
        n if n.starts_with("read/cold/") => 10.0,
        n if n.starts_with("clock/") => 4.0,
        _ => 3.0,
    }
}

/// Of the reads, some sizes of each way and state stand for all sizes of it.
fn stands_for(name: &str) -> &str {
    match name.strip_prefix("read/") {
        Some(_) => name.rsplit_once('/').map_or(name, |(way, _)| way),
        None => name,
    }
}

/// Twice each, the lower of both: a burst of other work outlasts neither.
#[test]
fn every_suite_agrees_with_loops_written_apart() {
    let _alone = alone();
    let file = file();
    let ctx = context(Some(file.as_file()));
    let mut ours: BTreeMap<String, f64> = BTreeMap::new();
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    let mut theirs: BTreeMap<String, Option<f64>> = BTreeMap::new();
    let mut ours_lower = |from: BTreeMap<String, f64>| {
        for (name, ns) in from {
            let entry = ours.entry(name).or_insert(f64::MAX);
            *entry = entry.min(ns);
        }
    };
    for _ in 0..2 {
        for (name, ns) in independent(&ctx, file.path()) {
            let entry = theirs.entry(name).or_insert(ns);
            *entry = match (*entry, ns) {
                (Some(a), Some(b)) => Some(f64::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        let survey = clocks::survey(ctx.cpu, None, true).unwrap();
        ours_lower(
            survey
                .sources
                .into_iter()
                .filter_map(|s| {
                    let name = format!("clock/{}", s.name);
                    if let Some(why) = &s.missing {
                        missing.insert(name.clone(), why.clone());
                    }
                    Some((name, s.cost_ns?))
                })
                .collect(),
        );
        for (suite, ms) in [
            (Suite::Trivial, 200),
            (Suite::Switches, 500),
            (Suite::Faults, 300),
            (Suite::Reads, 500),
            (Suite::Descriptors, 400),
        ] {
            let (found, not) = minima(suite, &ctx, ms);
            ours_lower(found);
            missing.extend(not);
        }
    }
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, their) in &theirs {
        match (ours.get(name), their) {
            (Some(our), Some(their)) => {
                let (ratio, most) = (our / their, most(name));
                compared += 1;
                if !(1.0 / most..most).contains(&ratio) {
                    wrong.push(format!(
                        "{name}: ours {our:.1} ns, theirs {their:.1} ns, ratio {ratio:.2}"
                    ));
                }
            }
            (None, None) => assert!(
                missing.contains_key(name),
                "{name} is gone without a reason"
            ),
            (None, Some(_)) => wrong.push(format!(
                "{name}: not measured by us: {}",
                missing.get(name).map_or("no such case", |why| why)
            )),
            (Some(_), None) => {
                wrong.push(format!("{name}: measured by us, and not to be had here"))
            }
        }
    }
    // Who of two threads gets how far is a race, each time another one: between
    // all pages found and all faults taken, beside the other's.
    let race = "fault/prefaulted-beside";
    if let Some(our) = ours.get(race) {
        let (found, taken) = (theirs["fault/prefaulted-before"], theirs["fault/zero-fill"]);
        let (found, taken) = (found.unwrap(), taken.unwrap());
        compared += 1;
        if !(found / 5.0..taken * 10.0).contains(our) {
            wrong.push(format!(
                "{race}: ours {our:.1} ns, theirs between {found:.1} and {taken:.1} ns"
            ));
        }
    }
    // And nothing of ours that nobody looks at.
    for name in ours.keys().filter(|n| *n != race) {
        if !theirs.keys().any(|t| stands_for(t) == stands_for(name)) {
            wrong.push(format!("{name}: nothing to compare it with"));
        }
    }
    assert!(compared >= 100, "only {compared} compared");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The test's output is hidden when it passes; this is not.
fn not_tested(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {what}");
}

fn has_perf() -> bool {
    let there = Command::new("perf").arg("--version").output().is_ok();
    if !there {
        not_tested("agreement with perf bench: perf is not installed (package linux-perf)");
    }
    there
}

/// ns per operation as `perf bench` prints it: "0.134 usecs/op".
fn perf_bench(arguments: &[&str]) -> Result<f64, String> {
    let out = Command::new("perf")
        .arg("bench")
        .args(arguments)
        .output()
        .map_err(|e| format!("perf: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines()
        .find_map(|l| {
            l.trim()
                .strip_suffix("usecs/op")?
                .trim()
                .parse::<f64>()
                .ok()
        })
        .map(|us| us * 1e3)
        .ok_or_else(|| format!("{text}{}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn calls_agree_with_perf_bench() {
    if !has_perf() {
        return;
    }
    let _alone = alone();
    let ctx = context(None);
    // Short runs, so that some are not interrupted on a busy machine.
    let best = |arguments: &[&str]| {
        (0..40)
            .map(|_| perf_bench(arguments).expect("perf bench works (package linux-perf)"))
            .fold(f64::MAX, f64::min)
    };
    // Its loop calls getppid through libc.
    let theirs = best(&["syscall", "basic", "--loop", "4000"]);
    let ours = minima(Suite::Trivial, &ctx, 200).0["trivial/getppid"];
    let ratio = ours / theirs;
    assert!(
        (0.3..3.0).contains(&ratio),
        "ours {ours} ns, perf bench {theirs} ns"
    );
}

/// `perf bench sched pipe` hands a byte to and fro as well, between processes
/// or (-T) threads.
#[test]
fn pipes_agree_with_perf_bench() {
    if !has_perf() {
        return;
    }
    let _alone = alone();
    let ctx = context(None);
    let ours = minima(Suite::Switches, &ctx, 300).0;
    // This thread is pinned by now, and so is what it starts: one CPU for both ends.
    for (name, more) in [
        ("switch/pipe/same", &[][..]),
        ("switch/pipe-threads/same", &["-T"]),
    ] {
        let mut arguments = vec!["sched", "pipe", "-l", "2000"];
        arguments.extend(more);
        let theirs = (0..20)
            .map(|_| perf_bench(&arguments).expect("perf bench works (package linux-perf)"))
            .fold(f64::MAX, f64::min);
        let ratio = ours[name] / theirs;
        assert!(
            (0.3..3.0).contains(&ratio),
            "{name}: ours {} ns, perf bench {theirs} ns",
            ours[name]
        );
    }
}

/// fincore(1) of util-linux asks the kernel in its own way.
fn fincore(path: &str) -> u64 {
    let out = Command::new("fincore")
        .args(["--noheadings", "--output", "PAGES", path])
        .output()
        .expect("fincore of util-linux");
    String::from_utf8(out.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn cold_reads_are_cold_and_warm_reads_are_warm() {
    let _alone = alone();
    let file = file();
    let ctx = context(Some(file.as_file()));
    let fd = file.as_file().as_raw_fd();
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    reads::warm(fd, 16 << 20).unwrap();
    assert_eq!(reads::resident(fd, 16 << 20).unwrap().0, 4096);
    assert_eq!(fincore(&path), 4096);
    pin(ctx.cpu).unwrap();
    let mut proof = None;
    for make in groups(Suite::Reads, &ctx) {
        let mut group = make(&ctx).unwrap();
        group.cases.retain(|c| c.id == "read/cold/pread/65536");
        let Some(case) = group.cases.first_mut() else {
            continue;
        };
        let n = case.most;
        for _ in 0..3 {
            (case.batch)(n).unwrap();
        }
        // It was dropped before the pass, and the pass read only the beginning.
        let there = reads::resident(fd, 16 << 20).unwrap().0;
        assert_eq!(there, fincore(&path));
        proof = reads::cold_proof();
    }
    let proof = proof.expect("there is a cold case");
    assert_eq!(proof.passes, 3);
    // At most the 1 % that chilling allows.
    assert!(proof.resident * 100 <= proof.pages, "{proof:?}");
    // How many probes are refused says little: a fast device answers most
    // within the call, though the page was not there before it.
    assert_eq!(proof.nowait_tried, 9, "{proof:?}");
    // Every byte that was read came from storage, by the kernel's books.
    assert!(proof.storage_bytes >= proof.bytes, "{proof:?}");
}

/// Probing a page brings it in: that must not make the pass a warm one.
#[test]
fn the_proof_of_the_cold_does_not_warm() {
    let _alone = alone();
    let file = file();
    let ctx = context(Some(file.as_file()));
    let fd = file.as_file().as_raw_fd();
    pin(ctx.cpu).unwrap();
    let mut seen = false;
    for make in groups(Suite::Reads, &ctx) {
        let mut group = make(&ctx).unwrap();
        // 8-byte requests: a pass of few pages, of which the probes touch three.
        group.cases.retain(|c| c.id == "read/cold/sendfile/8");
        let Some(case) = group.cases.first_mut() else {
            continue;
        };
        let before = major_bytes();
        let passes = 3;
        for _ in 0..passes {
            (case.batch)(case.most).unwrap();
        }
        let pass = case.most * 8;
        // By the kernel's books the disk delivered every pass whole, and the
        // probed pages beside it: had they stayed, it would be once only.
        let delivered = major_bytes() - before;
        assert!(
            delivered >= passes * (pass + 3 * 4096),
            "{delivered} bytes for {passes} passes of {pass}"
        );
        assert!(reads::resident(fd, pass).unwrap().0 * 4096 >= pass);
        seen = true;
    }
    assert!(seen);
}

/// What storage has delivered to this process, by /proc/self/io.
fn major_bytes() -> u64 {
    std::fs::read_to_string("/proc/self/io")
        .unwrap()
        .lines()
        .find_map(|l| l.strip_prefix("read_bytes: "))
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn what_cannot_be_had_says_why() {
    let _alone = alone();
    let (_, missing) = minima(Suite::Faults, &context(None), 20);
    assert!(
        missing["fault/file-mapped"].contains("no file"),
        "{missing:?}"
    );
    let mut alone = context(None);
    alone.other_cpu = None;
    let (found, missing) = minima(Suite::Switches, &alone, 20);
    assert!(found.contains_key("switch/pipe/same"));
    assert!(
        missing["switch/pipe/other"].contains("one CPU only"),
        "{missing:?}"
    );
}

/// However slow a machine is, the accounts end: by their limit, said case by case.
#[test]
fn accounts_end_when_their_time_is_over() {
    let _alone = alone();
    let broker = debox_broker::Private::start(debox_broker::PrivateOptions::default())
        .expect("the tests run as root on a kernel that DeBox works on");
    let ctx = context(None);
    let order = Order {
        suite: Suite::Trivial,
        cpu: ctx.cpu,
        other_cpu: ctx.other_cpu,
        quick: true,
        budget_ms: 0,
        target: 0.03,
        first: 0,
        clock: Some(clock::choice(Kind::MonotonicRaw, 1.0)),
        file: None,
        file_bytes: 0,
        account: Some(broker.socket_path().to_owned()),
        account_ms: 0,
    };
    let answer = work(&order).unwrap();
    assert!(!answer.rows.is_empty());
    for row in answer.rows {
        assert!(row.account.is_none());
        let why = row.missing.unwrap();
        assert!(why.contains("time for accounts was over"), "{why}");
    }
    let answer = work(&Order {
        account_ms: 60_000,
        ..order
    })
    .unwrap();
    let row = answer
        .rows
        .iter()
        .find(|r| r.id == "trivial/getpid")
        .unwrap();
    let account = row.account.as_ref().unwrap();
    assert_eq!(account.slices.len(), 5, "{account:?}");
    let (low, high) = account.range(|s| s.cpu_ns).unwrap();
    let cpu = account.cpu_ns.unwrap();
    assert!(low > 0.0 && low <= cpu && cpu <= high, "{account:?}");
}

/// The account of operations with a known answer. Needs what `debox run` needs.
#[test]
fn accounts_say_where_the_time_went() {
    let _alone = alone();
    let ctx = context(None);
    let broker = debox_broker::Private::start(debox_broker::PrivateOptions::default())
        .expect("the tests run as root on a kernel that DeBox works on");
    pin(ctx.cpu).unwrap();
    let accountant = Accountant::open(broker.socket_path(), &ctx.clock).unwrap();
    let clock = ctx.clock;
    let mut sleeping = Case::new("sleeping", move |n| {
        Ok(clock.time(|| {
            for _ in 0..n {
                std::thread::sleep(Duration::from_millis(2));
            }
        }))
    });
    let mut computing = Case::new("computing", move |n| {
        Ok(clock.time(|| {
            for i in 0..n * 1000 {
                std::hint::black_box(i);
            }
        }))
    });
    let mut touching = Case::new("touching", move |n| {
        let mut memory = Vec::<u8>::with_capacity((n as usize + 1) * 4096);
        let at = memory.spare_capacity_mut();
        Ok(clock.time(|| {
            for i in 0..n as usize {
                at[i * 4096].write(1);
            }
        }))
    })
    .most(4096);
    let sleep = accountant.account(&mut sleeping, 1, 2e6).unwrap();
    let blocked = sleep.blocked_ns.unwrap();
    // Asked for 2 ms, so not less; a busy machine adds run-queue time, not this.
    assert!((1.9e6..20e6).contains(&blocked), "{sleep:?}");
    assert!(sleep.cpu_ns.unwrap() < 1e6, "{sleep:?}");
    assert!((0.9..2.0).contains(&sleep.voluntary_switches), "{sleep:?}");
    assert!(!sleep.sleeps.is_empty(), "{sleep:?}");
    assert!((0.9..2.0).contains(&sleep.sleeps[0].count), "{sleep:?}");
    // What is done outside of the timed section is nobody's account.
    let mut beside = Case::new("beside", move |n| {
        std::thread::sleep(Duration::from_millis(3));
        Ok(clock.time(|| {
            for i in 0..n * 1000 {
                std::hint::black_box(i);
            }
        }))
    });
    let none = accountant.account(&mut beside, 1, 500.0).unwrap();
    assert_eq!(none.blocked_ns, Some(0.0), "{none:?}");
    assert!(none.sleeps.is_empty(), "{none:?}");
    let whole = sleep.cpu_ns.unwrap() + blocked + sleep.runq_ns.unwrap();
    assert!(
        (whole / sleep.wall_ns.unwrap() - 1.0).abs() < 0.02,
        "{sleep:?}"
    );
    let compute = accountant.account(&mut computing, 100, 500.0).unwrap();
    assert_eq!(compute.blocked_ns, Some(0.0), "{compute:?}");
    assert!(compute.cpu_ns.unwrap() > 10.0, "{compute:?}");
    let touch = accountant.account(&mut touching, 1024, 1000.0).unwrap();
    // Huge pages, where they are on for all memory, take fewer.
    assert!(
        touch.minor_faults > 0.0015 && touch.minor_faults < 1.2,
        "{touch:?}"
    );
    accountant.close();
}
