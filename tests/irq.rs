// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are interrupts counted where they landed, and taken out of the time on CPU?
//!
//! tests/truth/flood.c knows what runs in its calls: a packet for the machine itself is
//! received by a soft interrupt in the call that sends it. The kernel's own books
//! (/proc/softirqs, /proc/stat) and the thread's clock are held against it.

use debox_tests::*;
use serde_json::Value;
use std::process::{Command, Stdio};

const MS: u64 = 1_000_000;

fn flood(scenario: &str, n: u64) -> [String; 3] {
    [
        program("flood").display().to_string(),
        scenario.to_owned(),
        n.to_string(),
    ]
}

/// Of one kind: (how many, how long) in calls, and between them.
fn interrupts(report: &Value, name: &str) -> [u64; 4] {
    let rows = report["interrupts"].as_array().cloned().unwrap_or_default();
    let row = rows.iter().find(|row| row["name"] == name);
    ["count", "total_ns", "outside_count", "outside_ns"]
        .map(|field| row.map_or(0, |row| number(row, field)))
}

#[track_caller]
fn check_measured(run: &Run) {
    let report = &run.report;
    assert_eq!(report["measured"]["irq"], true, "{}", report["notes"]);
}

/// What holds for every report with interrupts: the parts add up, and the kinds of
/// interrupts to the calls.
#[track_caller]
fn check_sums(run: &Run) {
    run.check_sound();
    let report = &run.report;
    check_measured(run);
    let all = |list: &str, field: &str| -> u64 {
        let rows = report[list].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| number(row, field)).sum()
    };
    let totals = &report["totals"];
    assert_eq!(all("calls", "irq_ns"), number(totals, "irq_ns"));
    assert_eq!(
        all("interrupts", "outside_ns"),
        number(totals, "irq_outside_ns")
    );
    // The lives have the same interrupts, but for those that came at a thread's end.
    let (lives, told) = (
        all("lives", "irq_ns") + all("lives", "irq_outside_ns"),
        number(totals, "irq_ns") + number(totals, "irq_outside_ns"),
    );
    assert!(
        lives.abs_diff(told) <= told / 50 + MS,
        "interrupts of {lives} ns in lives, {told} ns in all"
    );
    // One that landed while the call was being closed, on this side of it or that.
    let (kinds, calls) = (all("interrupts", "total_ns"), number(totals, "irq_ns"));
    assert!(
        kinds.abs_diff(calls) <= calls / 100 + MS / 10,
        "interrupts of {kinds} ns in calls with {calls} ns of them"
    );
}

#[test]
fn packets_for_the_machine_itself_are_received_in_the_call_that_sends_them() {
    let Some(_alone) = alone() else { return };
    let n = if slow() { 5_000 } else { 300_000 };
    let run = run(&["--irq", "--capture=boundary"], &flood("loopback", n));
    check_sums(&run);
    let own = lines(&run.output).remove(0);
    let sent = run.call("sendto");
    assert_eq!(number(&sent, "count"), n);
    let [count, in_calls, _, between] = interrupts(&run.report, "NET_RX");
    // What ksoftirqd did is a task's; what came for others in the same turn is there too.
    assert!(
        count >= n * 9 / 10 && count <= number(&own, "net_rx") + n / 100,
        "{count} of {n} packets in calls: {own}"
    );
    assert!(in_calls > 100 * count, "{in_calls} ns for {count} packets");
    let (cpu, irq) = (number(&sent, "cpu_ns"), number(&sent, "irq_ns"));
    assert!(
        irq >= in_calls * 99 / 100,
        "{irq} ns of them in sendto, of {in_calls}"
    );
    // Both are of the thread's time, as its own clock has it.
    let clock = number(&own, "on_cpu_ns");
    // The verdict's path has them, too.
    let path = run.report["critical_path"]["parts"].as_array().cloned();
    let of_path: u64 = (path.iter().flatten())
        .filter(|part| part["kind"] == "interrupts")
        .map(|part| number(part, "total_ns"))
        .sum();
    assert!(
        of_path > irq / 2,
        "{of_path} ns of {irq} ns: {}",
        run.report["critical_path"]
    );
    if !slow() {
        assert!(
            cpu + irq <= clock + clock / 50 + 5 * MS,
            "{cpu} ns on CPU, {irq} ns in interrupts, by the thread's clock {clock} ns"
        );
        assert!(irq * 20 > clock, "{irq} ns in interrupts of {clock} ns");
        // By ticks (a hundred of them here, so to a tenth), and of all of the machine.
        let stat = number(&own, "stat_soft_ns");
        assert!(
            in_calls + between <= stat + stat / 2 + 50 * MS,
            "{in_calls} ns, and by /proc/stat {stat} ns of the whole machine"
        );
    }
}

/// No hook runs at those calls: the interrupt looks itself in which one it is.
#[test]
fn spliced_calls_have_theirs() {
    let Some(_alone) = alone() else { return };
    let n = 100_000;
    let run = run(&["--irq", "--capture=splice"], &flood("loopback", n));
    check_measured(&run);
    let sent = run.call("sendto");
    assert_eq!(number(&sent, "count"), n);
    let ns = |field: &str| number(&sent, field);
    assert_eq!(
        ns("wall_ns"),
        ns("cpu_ns") + ns("blocked_ns") + ns("runq_ns") + ns("irq_ns"),
        "{sent}"
    );
    let [count, in_calls, ..] = interrupts(&run.report, "NET_RX");
    assert!(count >= n * 9 / 10, "{count} of {n} packets in calls");
    assert!(
        ns("irq_ns") >= in_calls * 9 / 10,
        "{in_calls} ns of packets in calls: {sent}"
    );
    let own = lines(&run.output).remove(0);
    let clock = number(&own, "on_cpu_ns");
    let cpu = ns("cpu_ns") + ns("irq_ns");
    assert!(
        cpu <= clock + clock / 50 + 5 * MS,
        "{cpu} ns on a CPU and in interrupts, by the thread's clock {clock} ns"
    );
}

#[test]
fn calls_without_packets_have_hardly_any() {
    let Some(_alone) = alone() else { return };
    let n = if slow() { 2_000 } else { 50_000 };
    let run = run(&["--irq", "--capture=boundary"], &flood("pipe", n));
    check_sums(&run);
    let [count, ..] = interrupts(&run.report, "NET_RX");
    assert!(count * 20 <= n, "{count} packets in {n} turns of a pipe");
    for call in ["read", "write"] {
        let row = run.call(call);
        let (wall, irq) = (number(&row, "wall_ns"), number(&row, "irq_ns"));
        assert!(irq <= wall / 2 || slow(), "{irq} of {wall} ns: {row}");
    }
}

/// The CPUs are interrupted all the time that the thread sleeps.
#[test]
fn interrupts_are_of_who_has_the_cpu() {
    let Some(_alone) = alone() else { return };
    let run = run(&["--irq", "--capture=boundary"], &flood("compute", 400));
    check_sums(&run);
    let row = run.call("clock_nanosleep");
    assert!(number(&row, "blocked_ns") >= 390 * MS, "{row}");
    // Its ends are a few microseconds on a CPU.
    assert!(number(&row, "irq_ns") <= 2 * MS || slow(), "{row}");
    // A tick at least every 10 ms of computing, if it had but a third of a CPU.
    let [_, _, count, ns] = interrupts(&run.report, "local timer");
    assert!(
        count >= 10 && ns > 0,
        "{count} ticks, {ns} ns: {}",
        run.report["interrupts"]
    );
}

#[test]
fn what_nobody_asked_for_is_not_measured() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    // Somebody else has asked, of the same broker.
    let mut other = Command::new(debox())
        .args(["run", "--irq", "-o", "/dev/null", "--socket"])
        .arg(broker.socket())
        .args(["--", "sleep", "60"])
        .stdin(Stdio::null())
        .spawn()
        .expect("debox runs");
    wait_until("interrupts are measured", || {
        let features = &broker.counters()["features"];
        features
            .as_array()
            .is_some_and(|f| f.iter().any(|f| f == "irq"))
    });
    let plain = run(&["--capture=boundary"], &flood("loopback", 2000));
    plain.check_sound();
    assert_eq!(plain.report["measured"]["irq"], false);
    assert!(plain.report["interrupts"].is_null(), "{}", plain.report);
    assert!(plain.report["totals"]["irq_ns"].is_null());
    assert!(plain.call("sendto")["irq_ns"].is_null());
    let own = bracketed_flood(&broker, &["loopback", "2000"]);
    assert_eq!(
        (number(&own, "records"), number(&own, "measured")),
        (2000, 0)
    );
    assert_eq!((number(&own, "uneven"), number(&own, "irq_ns")), (0, 0));
    // SAFETY: a child of ours that has not been waited for.
    unsafe { libc::kill(other.id() as i32, libc::SIGTERM) };
    other.wait().expect("wait");
}

fn bracketed_flood(broker: &Broker, arguments: &[&str]) -> Value {
    let output = Command::new(program("flood"))
        .arg("-b")
        .args(arguments)
        .env("DEBOX_SOCKET", broker.socket())
        .output()
        .expect("flood runs");
    lines(&output).remove(0)
}

#[test]
fn records_have_them_too() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let n: u64 = if slow() { 3_000 } else { 50_000 };
    let own = bracketed_flood(&broker, &["-i", "loopback", &n.to_string()]);
    assert_eq!(
        (number(&own, "records"), number(&own, "measured")),
        (n, n),
        "{own}"
    );
    assert_eq!(number(&own, "uneven"), 0, "{own}");
    let irq = number(&own, "irq_ns");
    assert!(irq > 100 * n, "{own}");
    if !slow() {
        // A quarter and more of what a datagram for oneself costs is to receive it.
        assert!(irq * 20 > number(&own, "cpu_ns"), "{own}");
        let own = bracketed_flood(&broker, &["-i", "pipe", &n.to_string()]);
        assert_eq!(number(&own, "measured"), 2 * n, "{own}");
        assert!(
            number(&own, "irq_ns") * 2 < number(&own, "wall_ns"),
            "{own}"
        );
    }
}

#[test]
fn the_interposer_counts_them() {
    let Some(_alone) = alone() else { return };
    let n = if slow() { 3_000 } else { 50_000 };
    let run = run(&["--irq", "--capture=wrap"], &flood("loopback", n));
    run.check_sound();
    check_measured(&run);
    let row = run.call("sendto");
    assert_eq!(number(&row, "count"), n);
    let [count, in_calls, ..] = interrupts(&run.report, "NET_RX");
    assert!(count >= n * 9 / 10, "{count} of {n} packets in calls");
    let irq = number(&row, "irq_ns");
    assert!(
        irq >= in_calls * 9 / 10 && irq > 0,
        "{irq} of {in_calls} ns in sendto"
    );
}

#[test]
fn conditions_ask_for_them() {
    let Some(_alone) = alone() else { return };
    let n = 2_000;
    let met = |on: &str| {
        let run = run(
            &["--irq", "--on", on, "--do", "print", "--limit", "1"],
            &flood("loopback", n),
        );
        let notes = run.report["notes"].as_array().cloned().unwrap_or_default();
        let about = |note: &Value| note["text"].as_str().is_some_and(|text| text.contains(on));
        notes
            .iter()
            .find(|note| about(note))
            .map_or(0, |note| number(note, "count"))
    };
    let many = met("call == sendto && irq > 50ns");
    assert!(many >= n * 9 / 10, "{many} of {n} calls");
    assert_eq!(met("call == sendto && irq > 5s"), 0);
    let refused = Command::new(debox())
        .args(["run", "--on", "irq > 1ms", "--do", "print", "--", "true"])
        .output()
        .expect("debox runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("add --irq"), "{text}");
}
