// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--capture=splice --sample N`: are calls without stamps counted, and is what is told of their time true?

use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

#[path = "common/splice.rs"]
mod splice;

use splice::{Place, needs, notes};

fn report(place: &Place, options: &[&str], words: &[&str]) -> (Output, Value) {
    let file = place.0.path().join("report.json");
    let output = place
        .debox(&["run", "--capture=splice", "--sample", "16", "--json", "-o"])
        .arg(&file)
        .args(options)
        .arg("--")
        .args(words)
        .output()
        .unwrap();
    let report = std::fs::read_to_string(&file).unwrap();
    (output, serde_json::from_str(&report).unwrap())
}

fn call<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["calls"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap()
}

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or(0)
}

/// Of a row of which not all calls were stamped.
fn check_row(row: &Value) {
    let count = number(row, "count");
    let buckets: u64 = (row["histogram"].as_array().unwrap().iter())
        .map(|bucket| number(bucket, "count"))
        .sum();
    assert_eq!(buckets + number(row, "unstamped"), count, "{row}");
    // The first thousand are stamped, and later ones that nobody has seen yet.
    assert!(number(row, "unstamped") > 0 && buckets >= 1000, "{row}");
    assert_eq!(
        number(row, "mean_ns"),
        number(row, "wall_ns") / count,
        "{row}"
    );
    if !row["blocked_ns"].is_null() {
        let parts = ["cpu_ns", "blocked_ns", "runq_ns", "irq_ns"];
        let sum: u64 = parts.iter().map(|part| number(row, part)).sum();
        assert_eq!(sum, number(row, "wall_ns"), "{row}");
    }
}

/// Where threads were is told to the nanosecond.
fn check_parts(report: &Value) {
    for life in report["lives"].as_array().unwrap() {
        assert_eq!(
            debox_tests::life_parts_ns(life),
            number(life, "life_ns"),
            "{life}"
        );
    }
}

/// ... and of it as much in calls as those are said to have had a CPU.
fn check_lives(report: &Value) {
    check_parts(report);
    let rows = report["calls"].as_array().unwrap().iter();
    let counted: u64 = rows.map(|row| number(row, "cpu_ns")).sum();
    let lives = report["lives"].as_array().unwrap().iter();
    let calls: u64 = lives.map(|life| number(life, "calls_ns")).sum();
    // Lives have execve's as well.
    assert!(
        calls.abs_diff(counted) < counted / 5 + 40_000_000,
        "{calls} {counted}"
    );
}

/// Says how long its loops took, each thread of both processes; and becomes another program.
const SHORT: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static long n;
static long long ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static void *loop(void *sum)
{
	long long begin = ns();
	for (long i = 0; i < n; i++)
		syscall(SYS_getppid);
	__sync_fetch_and_add((long long *)sum, ns() - begin);
	return sum;
}
int main(int argc, char **argv)
{
	long long sum = 0;
	pthread_t thread;
	n = atol(argv[1]);
	loop(&sum);
	pthread_create(&thread, NULL, loop, &sum);
	pthread_join(thread, NULL);
	printf("%lld\n", sum);
	fflush(stdout);
	if (argc > 2)
		return 0;
	if (fork() == 0) {
		sum = 0;
		loop(&sum);
		printf("%lld\n", sum);
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	return execl("/proc/self/exe", argv[0], argv[1], "last", NULL);
}
"#;

#[test]
fn short_calls_are_counted_and_their_time_is_estimated() {
    const N: u64 = 1_500_000;
    let place = Place::new();
    let program = place.program("short", SHORT);
    let (output, report) = report(&place, &[], &[&program, &N.to_string()]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let took: u64 = told.lines().map(|line| line.parse::<u64>().unwrap()).sum();
    let row = call(&report, "getppid");
    assert_eq!(number(row, "count"), 5 * N, "{row}");
    check_row(row);
    // Far more than half of them were left out of the times.
    assert!(number(row, "unstamped") > 2 * N, "{row}");
    // By the program's own clock, which has its loop, and what counts the calls, as well.
    let cpu = row["cpu_ns"].as_u64().unwrap_or(number(row, "wall_ns")) as f64;
    let share = cpu / took as f64;
    assert!((0.3..1.3).contains(&share), "{share}: {row}, {took} ns");
    let said = notes(&report, "splice_sampled");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("(--sample 16)"), "{said:?}");
    // What takes long is known exactly.
    let others = report["calls"].as_array().unwrap().iter();
    for row in others.filter(|row| row["name"] != "getppid") {
        assert!(row.get("unstamped").is_none(), "{row}");
    }
    if needs::is_root() {
        check_lives(&report);
    }
}

#[test]
fn a_row_of_estimates_is_marked() {
    let place = Place::new();
    let program = place.program("short", SHORT);
    let run = place
        .debox(&["run", "--capture=splice", "--sample", "16", "--"])
        .args([&program, "1500000", "last"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stderr).unwrap();
    let of = |call: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(call));
        line.unwrap_or_else(|| panic!("{call}: {text}")).to_owned()
    };
    assert!(of("getppid").contains('~'), "{text}");
    assert!(!of("clone").contains('~'), "{text}");
    assert!(
        text.contains("times of rows with ~ are estimates"),
        "{text}"
    );
}

/// One of 4,000 calls sleeps.
const RARE: &str = r#"
#define _GNU_SOURCE
#include <poll.h>
#include <time.h>
int main(void)
{
	const struct timespec none = { 0, 0 }, some = { 0, 200000 };
	for (int i = 0; i < 500; i++) {
		for (int k = 0; k < 4000; k++)
			ppoll(0, 0, &none, 0);
		ppoll(0, 0, &some, 0);
	}
	return 0;
}
"#;

#[test]
fn each_sleep_of_calls_without_stamps_is_told() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("rare", RARE);
    let (output, report) = report(&place, &[], &[&program]);
    assert!(output.status.success(), "{output:?}");
    let row = call(&report, "ppoll");
    assert_eq!(number(row, "count"), 500 * 4001, "{row}");
    check_row(row);
    let blocking = report["blocking"].as_array().unwrap();
    let (mut sleeps, mut slept) = (0, 0);
    for at in blocking.iter().filter(|at| at["call"] == "ppoll") {
        sleeps += number(at, "count");
        slept += number(at, "total_ns");
    }
    // Kept from its CPU for long, one finds the time over already.
    assert!((480..=500).contains(&sleeps), "{sleeps}: {blocking:?}");
    assert!(slept >= sleeps * 150_000, "{slept}");
    assert_eq!(number(row, "blocked_ns"), slept, "{row}");
    assert!(number(row, "max_ns") >= 200_000, "{row}");
    // What it had a CPU for is neither what it slept, nor nothing.
    let cpu = number(row, "cpu_ns") as f64 / number(row, "count") as f64;
    let usual = number(row, "p50_ns") as f64;
    assert!((0.4..3.0).contains(&(cpu / usual)), "{cpu}: {row}");
    let sum = |rows: &str| -> u64 {
        let rows = report[rows].as_array().into_iter().flatten();
        rows.map(|row| number(row, "total_ns")).sum()
    };
    assert_eq!(sum("chains"), sum("blocking"));
    check_lives(&report);
}

/// Handlers that sleep, in calls most of which are not stamped.
const HANDLERS: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long handled;
static void handler(int n)
{
	const struct timespec some = { 0, 100000 };
	(void)n;
	syscall(SYS_getuid);
	nanosleep(&some, NULL);
	handled++;
}
int main(void)
{
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } }, never = { { 0, 0 }, { 0, 0 } };
	timer_t timer;
	for (int i = 0; i < 1000000; i++)
		syscall(SYS_getppid);
	sigaction(SIGUSR1, &act, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &often, NULL);
	for (int i = 0; i < 4000000; i++)
		syscall(SYS_getppid);
	timer_settime(timer, 0, &never, NULL);
	printf("%ld\n", handled);
	return 0;
}
"#;

#[test]
fn handlers_in_calls_without_stamps_are_told() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("handlers", HANDLERS);
    let (output, report) = report(&place, &[], &[&program]);
    assert!(output.status.success(), "{output:?}");
    let handled: u64 = (String::from_utf8(output.stdout).unwrap().trim())
        .parse()
        .unwrap();
    assert!(handled > 50, "{handled}");
    let row = call(&report, "getppid");
    assert_eq!(number(row, "count"), 5_000_000, "{row}");
    check_row(row);
    assert_eq!(number(call(&report, "getuid"), "count"), handled);
    let slept = call(&report, "clock_nanosleep");
    assert_eq!(number(slept, "count"), handled, "{slept}");
    assert!(number(slept, "blocked_ns") >= handled * 90_000, "{slept}");
    // Those sleeps are not what interrupted calls took.
    assert!(
        number(row, "blocked_ns") < number(slept, "blocked_ns") / 10,
        "{row}"
    );
    check_parts(&report);
}

#[test]
fn a_running_program_is_told_which_calls_to_stamp() {
    let place = Place::new();
    let program = place.program("short", SHORT);
    let mut child = Command::new(&program)
        .args(["100000000", "last"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let file = place.0.path().join("attached.json");
    let attached = place
        .debox(&["attach", "--capture=splice", "--sample", "32", "-d", "1s"])
        .args(["--json", "-o", file.to_str().unwrap(), "-p"])
        .arg(child.id().to_string())
        .output();
    // It goes on with its own code.
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let attached = attached.unwrap();
    assert!(attached.status.success(), "{attached:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    check_row(call(&report, "getppid"));
}

/// Fills what it has for its own counts, and has a child that counts as it should.
const SPOILS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <asm/prctl.h>
int main(void)
{
	unsigned long gs = 0, from, to;
	char line[512], may[8];
	FILE *maps;

	for (int i = 0; i < 100000; i++) getppid();
	syscall(SYS_arch_prctl, ARCH_GET_GS, &gs);
	maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %7s", &from, &to, may) == 3 && may[3] == 's' && gs >= from && gs < to)
			memset((void *)(gs + 4096), 0xff, 600000);
	for (int i = 0; i < 100000; i++) getppid();
	if (!fork()) {
		execl("/bin/sh", "sh", "-c", "exit 4", (char *)0);
		_exit(1);
	}
	wait(0);
	return 3;
}
"#;

#[test]
fn what_cannot_be_true_is_left_out_and_said() {
    let place = Place::new();
    let program = place.program("spoils", SPOILS);
    let (output, report) = report(&place, &[], &[&program]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let left = notes(&report, "splice_left");
    assert!(
        left.iter().any(|note| note.contains("cannot be true")),
        "{left:?}"
    );
    for row in report["calls"].as_array().unwrap() {
        assert!(number(row, "count") < 1 << 40, "{row}");
        assert!(number(row, "wall_ns") < 1 << 50, "{row}");
    }
    assert_eq!(number(call(&report, "set_tid_address"), "count"), 1);
}

/// The live view marks estimates as the report does.
#[test]
fn top_marks_what_is_estimated() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let script = "import os, time\n\
        end = time.monotonic() + 60\n\
        while time.monotonic() < end:\n  \
          for i in range(1000): os.getppid()\n";
    let shown = place
        .debox(&["top", "--capture=splice", "--sample", "16", "--batch", "6"])
        .args(["--", "/usr/bin/python3", "-c", script])
        .output()
        .unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8(shown.stdout).unwrap();
    let rows: Vec<Vec<&str>> = (text.lines())
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|row| row.first() == Some(&"getppid"))
        .collect();
    // From when enough of them have been seen that took little, which others on the CPU may put off.
    assert!(rows.iter().any(|row| row[2].starts_with('~')), "{text}");
}

#[test]
fn what_has_no_stamps_to_leave_out_is_refused() {
    let place = Place::new();
    for (options, says) in [
        (
            &["--capture=boundary", "--sample", "16"][..],
            "--sample leaves stamps out, which are there with --capture=splice alone",
        ),
        (
            &["--capture=splice", "--sample", "16", "--call-site"],
            "leave out --sample",
        ),
        (&["--capture=splice", "--sample", "1"], "2..=1024"),
        (&["--capture=splice", "--sample", "1025"], "2..=1024"),
    ] {
        let mut run = place.debox(&["run"]);
        let run = run.args(options).args(["--", "true"]).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{options:?}: {run:?}");
        let why = String::from_utf8(run.stderr).unwrap();
        assert!(why.contains(says), "{options:?}: {why}");
    }
}
