// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens in storms: threads and processes by the thousand, and kill -9
//! of everybody at random moments? The suite `stress` of tests/vm runs these tests
//! in guests with other kernels.

use debox_tests::*;
use std::process::{Command, Stdio};
use std::time::Duration;

/// xorshift: the same moments in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn made(output: &std::process::Output) -> (u64, u64) {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut n = text.split_whitespace().map(|w| w.parse().unwrap());
    (n.next().unwrap(), n.next().unwrap())
}

#[test]
fn threads_and_processes_by_the_thousand() {
    let Some(_alone) = alone() else { return };
    let (size, least) = if slow() {
        (["64", "24", "2", "2"], (128, 48))
    } else {
        (["256", "64", "4", "4"], (1000, 200))
    };
    let storm = program("storm").display().to_string();
    let mut command = vec![storm.as_str()];
    command.extend(size);
    let run = run(&[], &command);
    run.check_sound();
    let (threads, processes) = made(&run.output);
    assert!(
        threads >= least.0 && processes >= least.1,
        "{threads} {processes}"
    );
    let totals = &run.report["totals"];
    assert_eq!(
        number(totals, "threads_started"),
        threads + processes,
        "{totals}"
    );
    assert_eq!(number(totals, "processes_started"), processes, "{totals}");
    // Children that were killed in pause() made their call before.
    assert!(run.count("getppid") <= threads + processes);
    assert!(
        run.count("getppid") >= threads,
        "{} of {threads}",
        run.count("getppid")
    );
    eprintln!("{threads} threads, {processes} processes");
}

/// Slots are handed out and taken back in the kernel, and more are asked for
/// when they run out.
/// A scenario of tests/truth/chains.c, told; every one of its sleeps is explained, to the
/// nanosecond. How many there were.
fn explained(scenario: &str, times: u64) -> u64 {
    let run = chains_run(scenario, times);
    assert!(run.output.status.success(), "{:?}", run.output);
    run.check_explained();
    let rows = run.report["blocking"].as_array().unwrap();
    rows.iter().map(|row| number(row, "count")).sum()
}

#[test]
fn a_million_sleeps_are_explained() {
    let Some(_alone) = alone() else { return };
    let sleeps = explained("ping-pong", 1_000_000);
    assert!(sleeps >= 1_000_000, "{sleeps} sleeps");
}

/// Each is woken by the one before it, a thousand links long.
#[test]
fn a_ring_of_a_thousand_threads_is_explained() {
    let Some(_alone) = alone() else { return };
    let sleeps = explained("ring", 50);
    assert!(sleeps >= 45_000, "{sleeps} sleeps");
}

#[test]
fn slots_are_reused() {
    let Some(_alone) = alone() else { return };
    let calls = program("calls").display().to_string();
    let options = ["--capture=wrap"];
    let started: u64 = if slow() { 300 } else { 1500 };
    let run = run(
        &options,
        &[calls.as_str(), "threads", &started.to_string(), "4"],
    );
    assert_eq!(run.count("getppid"), 4 * started, "{}", run.report["notes"]);
    assert!(
        !run.notes().contains(&"wrap_threads_lost".to_owned()),
        "{:?}",
        run.report["notes"]
    );
    let size = if slow() {
        ["64", "16", "2"]
    } else {
        ["256", "32", "3"]
    };
    let storm = program("storm").display().to_string();
    let mut command = vec![storm.as_str()];
    command.extend(size);
    let storm = debox_tests::run(&options, &command);
    assert_eq!(
        storm.output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&storm.output.stderr)
    );
    let (threads, _) = made(&storm.output);
    assert!(
        storm.count("getppid") >= threads,
        "{} of {threads}: {}",
        storm.count("getppid"),
        storm.report["notes"]
    );
    wait_until("no slot is in use", || {
        number(&shared_broker().counters(), "slots_used") == 0
    });
}

fn has_child(pid: u32, name: &str) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children
        .unwrap_or_default()
        .split_whitespace()
        .any(|child| {
            std::fs::read_to_string(format!("/proc/{child}/comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        })
}

/// kill -9 of the watched program, of debox, of the broker.
#[test]
fn killed_at_random_moments() {
    let Some(_alone) = alone() else { return };
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let before = programs_attached();
    let (rounds, size, calls) = if slow() {
        (3, ["32", "8", "1"], "20000")
    } else {
        (12, ["64", "16", "2"], "200000")
    };
    for round in 0..rounds {
        let mut broker = Broker::start();
        let mut program_child = Command::new(debox())
            .args(["run", "-o", "/dev/null", "--socket"])
            .arg(broker.socket())
            .arg("--")
            .arg(program("storm"))
            .args(size)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut client = Command::new(program("truth"))
            .args(["-b", "getpid", calls])
            .env("DEBOX_SOCKET", broker.socket())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Without a broker `debox run` does not start the program: no harm that a
        // watched one comes to. It is watched from its first call on.
        wait_until("the program starts", || {
            has_child(program_child.id(), "storm") || program_child.try_wait().unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(50 + random.below(700)));
        match round % 3 {
            0 => {
                broker.kill();
                // The clients go on; the storm ends by itself.
                assert!(
                    program_child.wait().unwrap().success(),
                    "round {round}: the watched program is not disturbed"
                );
                assert!(client.try_wait().unwrap().is_none_or(|s| s.success()));
            }
            1 => {
                program_child.kill().unwrap();
                program_child.wait().unwrap();
            }
            _ => {
                client.kill().unwrap();
                assert!(program_child.wait().unwrap().success());
            }
        }
        let _ = client.kill();
        let _ = client.wait();
        let _ = program_child.kill();
        let _ = program_child.wait();
        if round % 3 != 0 {
            wait_until("the broker watches nobody for the dead", || {
                let status = broker.counters();
                number(&status, "slots_used") == 0 && number(&status, "accounts_used") == 0
            });
        }
    }
    // The broker that the other tests share may have let go meanwhile.
    wait_until("everything is detached", || {
        programs_attached()
            .iter()
            .all(|program| before.contains(program))
    });
}

/// Records say when the broker is gone.
#[test]
fn records_are_stale_without_a_broker() {
    let Some(_alone) = alone() else { return };
    let mut broker = Broker::start();
    let mut child = Command::new(program("truth"))
        .args(["-b", "getpid", "3000000"])
        .env("DEBOX_SOCKET", broker.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let flags = |line: &str| {
        let v: serde_json::Value = serde_json::from_str(line).unwrap();
        (number(&v["record"], "flags"), number(&v["record"], "valid"))
    };
    use std::io::BufRead;
    reader.read_line(&mut line).unwrap();
    assert_eq!(flags(&line).0 & 4, 0, "fresh at first: {line}");
    broker.kill();
    let mut stale = None;
    for n in 0..2_000_000 {
        line.clear();
        if reader.read_line(&mut line).unwrap() == 0 {
            break;
        }
        let (f, valid) = flags(&line);
        if f & 4 != 0 {
            assert_eq!(
                valid & 0x7e,
                0,
                "a stale record measures wall time only: {line}"
            );
            assert_eq!(valid & 1, 1, "{line}");
            stale = Some(n);
            break;
        }
    }
    assert!(
        stale.is_some(),
        "no record ever said that the broker was gone"
    );
    drop(reader);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// 1,000 threads: at most 8 KiB of shared memory each, the broker below 40 MiB.
#[test]
fn memory_of_a_thousand_threads() {
    let Some(_alone) = alone() else { return };
    let broker = Broker::start();
    let mut child = Command::new(debox())
        .args(["run", "--capture=wrap", "-o", "/dev/null", "--socket"])
        .arg(broker.socket())
        .args(["--", "python3", "-c"])
        .arg(
            "import threading,os,time\nthreading.stack_size(65536)\nb=threading.Barrier(1001)\n\
             def f():\n os.getppid(); b.wait(); time.sleep(3); os.getppid()\n\
             t=[threading.Thread(target=f) for _ in range(1000)]\n[x.start() for x in t]\nb.wait(); time.sleep(3)\n[x.join() for x in t]",
        )
        .spawn()
        .unwrap();
    let mut most = 0;
    let mut rss = 0;
    for _ in 0..80 {
        std::thread::sleep(Duration::from_millis(100));
        let status = broker.counters();
        let used = number(&status, "slots_used");
        if used > most {
            most = used;
            rss = rss_kib(broker.pid());
        }
        if used >= 1000 {
            break;
        }
    }
    child.wait().unwrap();
    assert!(most >= 1000, "{most} slots used");
    assert!(rss < 40 * 1024, "the broker uses {rss} KiB");
    eprintln!("1,000 threads: {most} slots, broker {rss} KiB resident");
}

fn rss_kib(pid: u32) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap()
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .unwrap()
}
