// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the account agree with programs whose answer is known?
//!
//! Every scenario of tests/truth/truth.c runs twice: bracketed by libdebox
//! (wrap capture: the record), and under `debox run` (boundary capture: the
//! report). Tolerances are one-sided where the machine may only add. The suite
//! `truth` of tests/vm runs these tests in guests with other kernels.

use debox_tests::*;
use serde_json::Value;

const MS: u64 = 1_000_000;

/// How far a time may lie above its due on a busy machine: the other side of a
/// pipe may wait for a CPU. What the program measured itself bounds it anyway.
const LATE_NS: u64 = 500 * MS;

#[track_caller]
fn near(what: &str, have: u64, due: u64, slack_below: u64) {
    // The end of a wait is set before it begins (by a timer, or by a child with a
    // clock of its own): where the machine stands still in between, part of the
    // time has gone by then.
    let (least, most) = if slow() {
        (due / 2, u64::MAX)
    } else {
        (due - slack_below, due + LATE_NS)
    };
    assert!(
        (least..=most).contains(&have),
        "{what}: {have} ns, expected {due} ns, at least {least}, at most {most}"
    );
}

/// For how long a scenario waits: a slow machine stands still for shorter than that.
fn wait_ms(ms: u64) -> u64 {
    if slow() { 5 * ms } else { ms }
}

/// What holds for every record of one call.
#[track_caller]
fn check_record(line: &Value) -> &Value {
    let record = &line["record"];
    let n = |f| number(record, f);
    // WALL CPU BLOCKED RUNQ FAULTS SWITCHES SLEEPS, RETVAL, NR
    let all = 0b1100_0111_1111;
    assert_eq!(n("valid") & all, all, "not everything was measured: {line}");
    assert_eq!(
        n("wall_ns"),
        n("cpu_ns") + n("blocked_ns") + n("runq_ns"),
        "conservation: {line}"
    );
    // Two clock readings and books around the call cost the program itself.
    let books = number(line, "user_ns");
    assert!(
        n("wall_ns") + n("outside_ns") <= books + 1000,
        "longer than seen from outside: {line}"
    );
    let sleeps = record["sleeps"].as_array().unwrap();
    let total: u64 = sleeps.iter().map(|s| number(s, "total_ns")).sum();
    assert_eq!(total, n("blocked_ns"), "sleeps do not sum up: {line}");
    for s in sleeps {
        assert_eq!(s["err"], 0, "a site without text: {line}");
        assert!(number(s, "max_ns") <= number(s, "total_ns"));
        assert!(number(s, "count") >= 1);
    }
    record
}

#[track_caller]
fn only_sleep<'a>(record: &'a Value, label: &str) -> &'a Value {
    let sleeps = record["sleeps"].as_array().unwrap();
    let named: Vec<&Value> = sleeps.iter().filter(|s| s["label"] == label).collect();
    assert_eq!(named.len(), 1, "one sleep labelled {label}: {record}");
    named[0]
}

/// The same scenario under `debox run`: the row's blocked time and label.
#[track_caller]
fn boundary(arguments: &[&str], call: &str, label: &str, due: u64, below: u64) -> Run {
    let mut command = vec![
        program("truth").display().to_string(),
        "-d".into(),
        "/var/tmp".into(),
    ];
    command.extend(arguments.iter().map(|a| a.to_string()));
    let run = run(&["--capture=boundary"], &command);
    run.check_sound();
    let own = lines(&run.output);
    let places = run.blocking(call);
    let at: u64 = places
        .iter()
        .filter(|r| r["label"] == label)
        .map(|r| number(r, "total_ns"))
        .sum();
    assert!(
        places.iter().any(|r| r["label"] == label),
        "{call} should have blocked at {label}: {places:?}\n{own:?}"
    );
    near(&format!("{call} blocked at {label}"), at, due, below);
    run
}

fn blocks(scenario: &str, ms: u64, call: &str, label: &str) {
    let Some(_alone) = alone() else { return };
    let ms = wait_ms(ms);
    let arguments = [scenario, &ms.to_string()];
    let broker = shared_broker();
    let line = bracketed(&broker, &arguments).remove(0);
    let record = check_record(&line);
    let sleep = only_sleep(record, label);
    near("blocked", number(sleep, "total_ns"), ms * MS, 2 * MS);
    assert!(number(record, "nvcsw") >= 1, "{line}");
    boundary(&arguments, call, label, ms * MS, 2 * MS);
}

#[test]
fn a_sleep_of_known_length() {
    blocks("nanosleep", 50, "clock_nanosleep", "nanosleep");
}

#[test]
fn a_pipe_that_fills_late() {
    blocks("pipe", 40, "read", "pipe-read");
}

#[test]
fn a_futex_that_times_out() {
    blocks("futex", 30, "futex", "futex");
}

#[test]
fn a_file_lock_held_by_another() {
    blocks("flock", 40, "flock", "flock");
}

#[test]
fn an_accept_before_the_connection() {
    blocks("accept", 30, "accept4", "sock-accept");
}

#[test]
fn a_call_broken_by_a_signal() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let ms = wait_ms(30);
    let line = bracketed(&broker, &["eintr", &ms.to_string()]).remove(0);
    assert_eq!(line["value"], -1);
    assert_eq!(line["errno"], libc::EINTR, "the call's own errno");
    let record = check_record(&line);
    assert_eq!(record["retval"], -i64::from(libc::EINTR));
    near(
        "blocked",
        number(only_sleep(record, "pipe-read"), "total_ns"),
        ms * MS,
        5 * MS,
    );
}

#[test]
fn a_call_that_the_kernel_restarts() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let ms = wait_ms(30);
    let arguments = ["restart", &ms.to_string()];
    let line = bracketed(&broker, &arguments).remove(0);
    assert_eq!(line["value"], 1);
    let record = check_record(&line);
    // Two places, where a test beside puts a function of the kernel under trace between them: the stack is another one then.
    let sleeps = record["sleeps"].as_array().unwrap();
    assert!(sleeps.iter().all(|s| s["label"] == "pipe-read"), "{record}");
    let sum = |of: &str| sleeps.iter().map(|s| number(s, of)).sum::<u64>();
    near("both halves", sum("total_ns"), 2 * ms * MS, 5 * MS);
    assert!(sum("count") >= 2, "{line}");

    let run = boundary(&arguments, "read", "pipe-read", 2 * ms * MS, 5 * MS);
    assert!(
        number(&run.call("read"), "restarted") >= 1,
        "{}",
        run.call("read")
    );
}

#[test]
fn faults_inside_a_read() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let line = bracketed(&broker, &["faults", "300"]).remove(0);
    let record = check_record(&line);
    assert_eq!(number(record, "minor_faults"), 300, "{line}");
    assert_eq!(number(record, "major_faults"), 0, "{line}");
    // the bracket's own first touches come on top
    assert!(
        (300..310).contains(&number(&line, "minflt")),
        "getrusage: {line}"
    );

    let run = run(
        &["--capture=boundary"],
        &[program("truth").to_str().unwrap(), "faults", "300"],
    );
    run.check_sound();
    let read = run.call("read");
    // The dynamic loader's reads fault a few more.
    let faults = number(&read, "minor_faults");
    assert!((300..340).contains(&faults), "{read}");
}

/// The paper's Figure 4.
#[test]
fn a_mapped_file_written_to_another() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let line = bracketed(&broker, &["page-in", "10"]).remove(0);
    let record = check_record(&line);
    let page_in: Vec<&Value> = record["sleeps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["label"] == "page-in")
        .collect();
    assert!(!page_in.is_empty(), "{line}");
    assert!(number(record, "major_faults") >= 1, "{line}");
    // getrusage counts the whole bracket, which holds nothing else.
    assert_eq!(
        number(record, "major_faults"),
        number(&line, "majflt"),
        "{line}"
    );
    let faults = number(record, "minor_faults") + number(record, "major_faults");
    let books = number(&line, "minflt") + number(&line, "majflt");
    assert!(
        faults.abs_diff(books) <= 2,
        "{faults} faults, getrusage says {books}: {line}"
    );
    assert_eq!(number(record, "nvcsw"), number(&line, "nvcsw"), "{line}");

    let run = run(
        &[],
        &[
            program("truth").to_str().unwrap(),
            "-d",
            "/var/tmp",
            "page-in",
            "10",
        ],
    );
    run.check_sound();
    assert!(
        run.blocking("write")
            .iter()
            .any(|r| r["label"] == "page-in"),
        "{:?}",
        run.report["blocking"]
    );
}

#[test]
fn a_flush_to_disk_is_labelled() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let line = bracketed(&broker, &["fsync", "8"]).remove(0);
    let record = check_record(&line);
    assert!(number(record, "blocked_ns") > 0, "{line}");
    for s in record["sleeps"].as_array().unwrap() {
        let label = s["label"].as_str().unwrap();
        assert!(
            [
                "page-writeback",
                "journal-commit",
                "device-flush",
                "block-io",
                "buffer-io",
                "buffer-write",
                "block-request",
                "page-lock"
            ]
            .contains(&label),
            "{label}: {line}"
        );
    }
}

/// The wait after the wake-up is the kernel's own: schedstat's second number.
#[test]
fn waiting_for_a_cpu_is_not_blocking() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let lines = bracketed(&broker, &["runq", "40"]);
    assert_eq!(lines.len(), 40);
    let (mut runq, mut books, mut close, mut slept) = (0, 0, 0, 0);
    for line in &lines {
        let record = check_record(line);
        runq += number(record, "runq_ns");
        books += number(line, "wait_ns");
        let blocked = number(record, "blocked_ns");
        if slow() {
            // Where it stands still, the 3 ms are over before the thread sleeps.
            assert!(blocked > 0 || number(record, "nvcsw") == 0, "{line}");
        } else {
            near("blocked", blocked, 3 * MS, MS);
        }
        slept += u32::from(blocked >= 2 * MS);
        // Between the two readings of schedstat the thread may wait outside
        // of the call as well, hence "most".
        if number(record, "runq_ns").abs_diff(number(line, "wait_ns")) <= 1000 {
            close += 1;
        }
    }
    // The scheduler may let the thread in at once; then its own books say so, too.
    assert!(
        runq > 5 * MS || books < 5 * MS,
        "a hog on the same CPU, and no wait? {runq} ns, the kernel says {books} ns"
    );
    let (enough_slept, enough_close) = if slow() { (20, 20) } else { (40, 30) };
    assert!(
        slept >= enough_slept,
        "{slept} of 40 sleeps took their time"
    );
    assert!(
        close >= enough_close,
        "{close} of 40 waits agree with schedstat to 1 us"
    );
    // The book's clock may be older than the switch (74 us were seen once).
    assert!(
        runq <= books + MS,
        "more than the kernel's own book: {runq} > {books}"
    );
}

/// The paper's Table 1, by its own yardstick: the largest time seen from user
/// level holds a preemption, the record's does not.
#[test]
fn preemption_beside_a_call_is_not_in_the_call() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let seconds = if slow() { "2" } else { "4" };
    let line = bracketed(&broker, &["hog", seconds]).remove(0);
    assert_eq!(line["conserved"], 1, "{line}");
    let user: Vec<u64> = line["user_max_ns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect();
    let record: Vec<u64> = line["record_max_ns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect();
    assert!(
        number(&line, "outside_ns") > 2 * MS,
        "the hog never got in: {line}"
    );
    assert!(record.iter().zip(&user).all(|(r, u)| r <= u), "{line}");
    // A preemption inside the kernel is the call's, but not its work: it
    // stands in runq_ns. The record must be free of nearly all preemptions that
    // user-level timing shows.
    let (seen, kept) = (
        number(&line, "user_beyond_1ms"),
        number(&line, "runq_beyond_1ms"),
    );
    if slow() {
        assert!(kept < seen, "{line}");
        return;
    }
    assert!(seen >= 50 && kept * 5 <= seen, "{line}");
    // A time slice is 2.8 ms or more; one of the two calls met it at least.
    assert!(user.iter().any(|&u| u > 2 * MS), "{line}");
    // And none may be missing: a wait for the CPU that the kernel's own book has
    // and the record counts as work. (One in a hundred: the two are not read at
    // the same moment.)
    assert!(number(&line, "missed") * 100 <= seen, "{line}");
    // What is left must be short, but for what a hypervisor took of the CPU:
    // that is in no account of its guest's kernel, and in the call that it hit.
    // /proc/stat tells most of it, in hundredths of a second; machines also
    // stall without telling, for a percent of the time or two.
    assert!(
        number(&line, "own_beyond_1ms_ns")
            <= 2 * number(&line, "stolen_ns") + number(&line, "outside_ns") / 10 + 20 * MS,
        "{line}"
    );
}

#[test]
fn two_writers_of_one_file() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let line = bracketed(&broker, &["inode-lock", "400"]).remove(0);
    let record = check_record(&line);
    let sleep = only_sleep(record, "inode-lock");
    let least = if slow() { MS } else { 5 * MS };
    assert!(number(sleep, "total_ns") > least, "{line}");
    assert_eq!(
        number(sleep, "holder_pid"),
        number(&line, "other"),
        "the holder is the other thread: {line}"
    );
    assert_eq!(
        number(sleep, "waker_pid"),
        number(&line, "other"),
        "it wakes us: {line}"
    );
}

#[test]
fn a_span_holds_everything_in_it() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let line = bracketed(&broker, &["span", "40"]).remove(0);
    let record = &line["record"];
    let n = |f| number(record, f);
    assert_eq!(
        n("wall_ns"),
        n("cpu_ns") + n("blocked_ns") + n("runq_ns"),
        "{line}"
    );
    near("blocked", n("blocked_ns"), 40 * MS, MS);
    near("wall", n("wall_ns"), 50 * MS, 0);
    // its busy loops run by the clock, preempted or not
    let busy = n("cpu_ns") + n("runq_ns");
    assert!(busy >= 9 * MS || slow() && busy > 0, "{line}");
    // What it waited for a CPU is neither the sleep nor what it saw itself run.
    // (schedstat is no judge here: the run queue's clock, which it goes by, may be
    // older than the switch; 74 us were seen.)
    let hidden = (n("nivcsw") + n("nvcsw")) * number(&line, "short_ns");
    assert!(
        n("runq_ns") + n("blocked_ns") + number(&line, "ran_ns")
            <= number(&line, "user_ns") + hidden,
        "{line}"
    );
}

/// Every site that was recognised is walked as well, over programs that block
/// in many ways; not one may differ.
#[test]
fn no_site_is_ever_mislabelled() {
    let Some(_alone) = alone() else { return };
    let broker = Broker::start_with(&["--verify-sites"]);
    let socket = broker.socket();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = format!(
        "for i in 1 2 3; do {truth} pipe 5; {truth} futex 5; {truth} flock 5; {truth} accept 5; {truth} fsync 2; \
         {truth} page-in 4; {truth} inode-lock 50; done >/dev/null; \
         tar cf {dir}/a.tar /usr/include 2>/dev/null; (cd {dir}; git init -q .; git add a.tar; \
         git -c user.name=t -c user.email=t@t commit -qm x); sync {dir}/a.tar; \
         (for i in $(seq 3000); do echo $i; done) | (while read a; do :; done); \
         {storm} 64 32 2 >/dev/null; \
         python3 -c 'import subprocess,threading,queue\nq=queue.Queue(1)\nt=threading.Thread(target=lambda:[q.put(i) for i in range(3000)])\nt.start()\n[q.get() for i in range(3000)]\nt.join()\n[subprocess.run([\"true\"]) for i in range(20)]'",
        truth = format!("{} -d /var/tmp", program("truth").display()),
        storm = program("storm").display(),
        dir = directory.path().display(),
    );
    // A condition on a label has the kernel side give labels, which are compared too.
    let on_label = ["--on", "label == nanosleep && wall > 100s", "--do", "print"];
    let mut options = vec!["--socket", socket.to_str().unwrap()];
    options.extend(on_label);
    let run = run_privately(&options, &["bash", "-c", &script]);
    run.check_sound();
    assert_eq!(
        run.output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&run.output.stderr)
    );
    let counters = broker.counters();
    assert_eq!(number(&counters, "site_mismatches"), 0, "{counters}");
    let (hits, walks) = (
        number(&counters, "site_hits"),
        number(&counters, "site_walks"),
    );
    assert!(
        hits > 3000 && hits > walks,
        "{hits} recognised, {walks} walked"
    );
    eprintln!("{hits} sites recognised and verified, {walks} walked, 0 differ");
}
