// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox bench os` say what others measure?
//!
//! Each suite against loops written apart from it (independent.c), against
//! `perf bench`, and against what the kernel's own books say. By wide ratios,
//! of minima of many: the machine may be busy with anything.

use debox_bench::account::Accountant;
use debox_bench::clock::{self, Clock, Kind};
use debox_bench::machine::cpus_allowed;
use debox_bench::os::{Ctx, Suite, groups, reads};
use debox_bench::sampling::{Case, Plan, measure, pin};
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

/// What independent.c measures.
fn independent(ctx: &Ctx, path: &std::path::Path) -> BTreeMap<String, f64> {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("independent");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/independent.c");
    let built = Command::new("cc")
        .args(["-O2", "-o"])
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
            let (name, ns) = l.split_once(' ').unwrap();
            (name.to_owned(), ns.parse().unwrap())
        })
        .collect()
}

/// Twice each, the lower of both: a burst of other work outlasts neither.
#[test]
fn every_suite_agrees_with_loops_written_apart() {
    let _alone = alone();
    let file = file();
    let ctx = context(Some(file.as_file()));
    let mut ours: BTreeMap<String, f64> = BTreeMap::new();
    let mut theirs: BTreeMap<String, f64> = BTreeMap::new();
    let lower = |to: &mut BTreeMap<String, f64>, from: BTreeMap<String, f64>| {
        for (name, ns) in from {
            let entry = to.entry(name).or_insert(f64::MAX);
            *entry = entry.min(ns);
        }
    };
    for _ in 0..2 {
        lower(&mut theirs, independent(&ctx, file.path()));
        for (suite, ms) in [
            (Suite::Trivial, 200),
            (Suite::Switches, 500),
            (Suite::Faults, 300),
            (Suite::Reads, 300),
            (Suite::Descriptors, 300),
        ] {
            lower(&mut ours, minima(suite, &ctx, ms).0);
        }
    }
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, their) in &theirs {
        let Some(our) = ours.get(name) else {
            wrong.push(format!("{name}: not measured by us"));
            continue;
        };
        // Passes against requests: the C program reads 1 MiB (32 KiB with fread).
        let their = match name.as_str() {
            "read/warm/read/4096" => their / 256.0,
            "read/warm/read/65536" => their / 16.0,
            "read/warm/fread/8" => their / 4096.0,
            // Ours is without the close.
            n if n.starts_with("descriptor/") => their / 1.5,
            _ => *their,
        };
        let most = if name.ends_with("/other") { 10.0 } else { 3.0 };
        let ratio = our / their;
        compared += 1;
        if !(1.0 / most..most).contains(&ratio) {
            wrong.push(format!(
                "{name}: ours {our:.1} ns, theirs {their:.1} ns, ratio {ratio:.2}"
            ));
        }
    }
    assert!(compared >= 20, "only {compared} compared");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
    assert!(
        proof.nowait_again * 10 >= proof.nowait_tried * 9,
        "{proof:?}"
    );
    // Every byte that was read came from storage, by the kernel's books.
    assert!(proof.storage_bytes >= proof.bytes, "{proof:?}");
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
