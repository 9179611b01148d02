// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox run --capture=splice`: is all counted, and does the command end as it would?

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

#[path = "common/splice.rs"]
mod splice;

use splice::needs;
use splice::{NOBODY, Place, count, notes, row, sum, users};

/// `debox run --capture=splice`.
trait Runs {
    fn run(&self, words: &[&str]) -> Command;
    fn report(&self, words: &[&str]) -> (Output, Value);
    fn report_with(&self, options: &[&str], words: &[&str]) -> (Output, Value);
    /// The report of a recording.
    fn recorded(&self, options: &[&str], program: &str) -> Value;
}

impl Runs for Place {
    fn run(&self, words: &[&str]) -> Command {
        let mut command = self.debox(&["run", "--capture=splice"]);
        command.args(words);
        command
    }

    fn report(&self, words: &[&str]) -> (Output, Value) {
        self.report_with(&[], words)
    }

    fn report_with(&self, options: &[&str], words: &[&str]) -> (Output, Value) {
        let file = self.0.path().join("report.json");
        let mut all = options.to_vec();
        all.extend(["--json", "-o", file.to_str().unwrap(), "--"]);
        all.extend(words);
        let output = self.run(&all).output().unwrap();
        let report = std::fs::read_to_string(&file).unwrap();
        (output, serde_json::from_str(&report).unwrap())
    }

    fn recorded(&self, options: &[&str], program: &str) -> Value {
        let file = self.0.path().join("run.debox");
        let file = file.to_str().unwrap();
        let all = [&["-o", file], options, &["--", program]].concat();
        let done = self.run(&all).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let shown = Command::new(env!("CARGO_BIN_EXE_debox"))
            .args(["report", "--json", file])
            .output()
            .unwrap();
        serde_json::from_slice(&shown.stdout).unwrap()
    }
}

#[test]
fn calls_of_children_and_of_what_they_become_are_counted() {
    let place = Place::new();
    let script = "import os; [os.getppid() for _ in range(1000)]; os.execv('/bin/sh', ['sh', '-c', 'true; exec true'])";
    let (output, report) =
        place.report(&["sh", "-c", "/usr/bin/python3 -c \"$0\"; exec true", script]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["run"]["capture"], "splice");
    // sh is one: it forks the first, then becomes true.
    assert_eq!(count(&report, "getppid") / 1000, 1, "{report}");
    assert!(count(&report, "execve") >= 4, "{report}");
    assert_eq!(report["measured"]["blocked"], needs::is_root());
    assert_eq!(report["measured"]["minor_faults"], needs::is_root());
    let notes = report["notes"].as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["kind"] != "splice_left"),
        "{notes:?}"
    );
}

/// Calls from two places, sleeps, and a read that touches 200 new pages.
const PLACES: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static int fd;
static volatile sig_atomic_t came;
static void handler(int n) { came = n; }
__attribute__((noinline)) void one(void) { char b[512]; for (int i = 0; i < 1000; i++) pread(fd, b, 512, 0); }
__attribute__((noinline)) void two(void) { char b[512]; for (int i = 0; i < 500; i++) pread(fd, b, 512, 0); }
__attribute__((noinline)) void three(void) { struct timespec t = { 0, 5000000 }; for (int i = 0; i < 10; i++) nanosleep(&t, 0); }
int main(void)
{
	char *fresh = mmap(0, 200 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	signal(SIGUSR1, handler);
	madvise(fresh, 200 << 12, MADV_NOHUGEPAGE);
	fd = open("/etc/passwd", O_RDONLY);
	one(); two(); three();
	for (int i = 0; i < 200; i++) read(fd, fresh + (i << 12), 1);
	/* Whoever acts on a call does so before it returns. */
	for (int i = 0; i < 5; i++) { came = 0; if (lseek(fd, 77, SEEK_SET) == 77 && came) return 9; }
	return 0;
}
"#;

/// The sums of a call by the function of the program that it came from.
#[test]
fn call_sites_are_exact() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("places", PLACES);
    let file = place.0.path().join("report.json");
    let done = place
        .run(&[
            "--call-site",
            "--json",
            "-o",
            file.to_str().unwrap(),
            "--",
            &program,
        ])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let of = |function: &str| -> u64 {
        let sites = row(&report["call_sites"], "call", "pread64").into_iter();
        let here = sites.filter(|site| site["place"].as_str().unwrap().starts_with(function));
        here.map(|site| site["count"].as_u64().unwrap()).sum()
    };
    assert_eq!(
        (of("one "), of("two ")),
        (1000, 500),
        "{}",
        report["call_sites"]
    );
    let read = row(&report["calls"], "name", "read")[0];
    let faults = read["minor_faults"].as_u64().unwrap();
    assert!((195..=205).contains(&faults), "{read}");
}

/// A condition is judged, and a signal sent, before the program goes on.
#[test]
fn an_action_comes_before_the_call_returns() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("places", PLACES);
    let done = place
        .run(&[
            "--on",
            "call == lseek && retval == 77",
            "--do",
            "signal USR1",
            "--",
            &program,
        ])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(9), "{done:?}");
    let done = place
        .run(&[
            "--quiet",
            "--on",
            // Not by what it was blocked: kept from its CPU for long, it finds the time over already.
            "call == clock_nanosleep && wall > 2ms",
            "--do",
            "stack",
            "--limit",
            "0",
            "--",
            &program,
        ])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert_eq!(told.matches("clock_nanosleep() = 0").count(), 10, "{told}");
    assert!(
        told.contains("(nanosleep)") && told.contains(" three ("),
        "{told}"
    );
}

const INTERRUPTED: &str = r#"
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void handler(int n)
{
	struct timespec t = { 0, 5000000 };
	nanosleep(&t, 0);
	nanosleep(&t, 0);
}
int main(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	struct timespec t = { 0, 100000000 };
	int ends[2];
	char byte;
	pid_t child;
	if (pipe(ends) || sigaction(SIGUSR1, &action, 0)) return 1;
	child = fork();
	if (!child) {
		nanosleep(&t, 0);
		kill(getppid(), SIGUSR1);
		nanosleep(&t, 0);
		write(ends[1], "x", 1);
		_exit(0);
	}
	if (read(ends[0], &byte, 1) != 1) return 2;
	waitpid(child, 0, 0);
	return 0;
}
"#;

/// A call that a handler interrupts, and that goes on then: what it waited before and after is its own, and what the
/// handler's calls waited is theirs.
#[test]
fn a_call_that_is_interrupted_keeps_what_it_waited() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("interrupted", INTERRUPTED);
    let asked = ["--on", "call == read && wall > 50ms", "--do", "print"];
    let report = place.recorded(&asked, &program);
    let reads = row(&report["slow_calls"], "call", "read");
    let long: Vec<&&Value> = (reads.iter())
        .filter(|read| read["wall_ns"].as_u64() > Some(150_000_000))
        .collect();
    assert_eq!(long.len(), 1, "{reads:?}");
    let part = |name: &str| long[0][name].as_u64().unwrap();
    assert!(part("blocked_ns") > 150_000_000, "{long:?}");
    // The handler slept for 10 ms.
    assert!(part("cpu_ns") < 5_000_000, "{long:?}");
}

/// Its slow calls have arguments, sleeps and the program's stack, and its sums are the program's.
#[test]
fn a_recording_holds_slow_calls() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("places", PLACES);
    let report = place.recorded(&[], &program);
    assert_eq!(report["run"]["capture"], "splice");
    assert_eq!(count(&report, "pread64"), 1502, "{}", report["calls"]);
    let slow = row(&report["slow_calls"], "call", "clock_nanosleep");
    // Where the run takes a while, what is slow is by then told from what was seen.
    assert!((5..=10).contains(&slow.len()), "{}", report["slow_calls"]);
    let stack = &report["stacks"][slow[0]["stack"].as_u64().unwrap() as usize];
    assert!(stack.to_string().contains("\"three\""), "{stack}");
    assert!(
        slow[0]["sleeps"][0]["blocked_ns"].as_u64() > Some(4_000_000),
        "{}",
        slow[0]
    );
    let of = |rows: &Value, field: &str| -> u64 {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row[field].as_u64().unwrap_or_default())
            .sum()
    };
    let threads = report["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 1, "{}", report["threads"]);
    assert_eq!(threads[0]["comm"], "places");
    for field in ["count", "errors"] {
        let all = of(&report["calls"], field);
        assert_eq!(
            of(&report["threads"], field),
            all,
            "{field}: {}",
            report["calls"]
        );
    }
    let (slept, all) = (
        of(&report["threads"], "blocked_ns"),
        of(&report["calls"], "blocked_ns"),
    );
    assert!(slept.abs_diff(all) * 20 <= all, "{slept} of {all}");
}

/// The functions of calls are traced as anywhere; calls that the runtime makes for itself are none of
/// the program's.
#[test]
fn calls_are_traced() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    // Warm: what is made once for each file is made.
    place.report(&["/bin/sleep", "0.02"]);
    let (output, report) = place.report_with(&["--trace", "hrtimer_*"], &["/bin/sleep", "0.02"]);
    assert!(output.status.success(), "{output:?}");
    let trace = &report["trace"];
    let slowest = trace["slowest"].as_array().unwrap();
    let slept = slowest.iter().find(|row| row["call"] == "clock_nanosleep");
    let entries = slept.map_or(0, |row| row["entries"].as_array().unwrap().len());
    assert!(entries > 0, "{trace}");
    // Renaming itself as it ends is the runtime's, and sleep does not.
    assert!(slowest.iter().all(|row| row["call"] != "prctl"), "{trace}");
}

/// What the runtime does for call sites is DeBox's own, and no call that the program makes.
#[test]
fn what_the_runtime_does_is_no_call_of_the_program() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let script = "import os, time\n\
end = time.monotonic() + 1.5\n\
zero = open('/dev/zero', 'rb', buffering=0)\n\
while time.monotonic() < end:\n    for i in range(1000): os.getppid()\n    zero.read(1 << 22)\n";
    let (output, report) = place.report_with(&["--call-site"], &["/usr/bin/python3", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let rows = report["on_cpu"]["rows"].as_array().unwrap();
    let calls = || rows.iter().filter(|row| row["kind"] == "call");
    assert!(calls().all(|row| row["call"] != "prctl"), "{rows:?}");
    assert!(calls().any(|row| row["call"].is_null()), "{rows:?}");
    // One that samples meet where they are seldom, too.
    assert!(calls().any(|row| row["call"] == "read"), "{rows:?}");
}

/// No hook at any call, and yet it is known which call slept, and how much was own code.
#[test]
fn the_kernel_side_knows_the_calls() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let script = "import os, threading, time\n\
        def calls():\n  for _ in range(300000): os.getppid()\n\
        def asleep():\n  for _ in range(4): time.sleep(0.05)\n\
        t = threading.Thread(target=asleep)\n\
        t.start(); t.join(); calls()\n\
        if os.fork() == 0:\n  asleep(); os._exit(0)\n\
        os.wait()\n\
        end = time.thread_time() + 0.2\n\
        while time.thread_time() < end: sum(range(10000))\n";
    let (output, report) = place.report(&["/usr/bin/python3", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let row = |name: &str| {
        let rows = report["calls"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()
    };
    let ns = |value: &Value| value.as_u64().unwrap();
    let slept = row("clock_nanosleep");
    assert_eq!(ns(&slept["count"]), 8, "{slept}");
    assert!(ns(&slept["blocked_ns"]) >= 400_000_000, "{slept}");
    for row in report["calls"].as_array().unwrap() {
        let part = |name: &str| row[name].as_u64().unwrap_or(0);
        let (wall, blocked) = (part("wall_ns"), part("blocked_ns"));
        // Of exit nobody knows the end.
        let untimed = row["untimed"].as_u64().unwrap_or(0);
        let exits = row["name"].as_str().unwrap().starts_with("exit");
        assert!(
            untimed == if exits { ns(&row["count"]) } else { 0 },
            "{row}"
        );
        assert_eq!(row["wall_ns"].is_null(), exits, "{row}");
        assert!(
            blocked <= wall + 1_000_000 || row["name"] == "execve",
            "{row}"
        );
    }
    // The same time in calls, as the program counted it and as threads' lives have it.
    let counted: u64 = (report["calls"].as_array().unwrap().iter())
        .map(|row| row["cpu_ns"].as_u64().unwrap_or(0))
        .sum();
    let lives = report["lives"].as_array().unwrap();
    let of = |part: &str| lives.iter().map(|life| ns(&life[part])).sum::<u64>();
    let (calls, own) = (of("calls_ns"), of("own_ns"));
    // Lives have execve's as well, of which half is what begins a spliced program.
    assert!(
        calls.abs_diff(counted) < counted / 5 + 40_000_000,
        "{calls} {counted}"
    );
    // The loop of sums, and what of the loop of calls is Python's.
    assert!(own >= 150_000_000, "{own}");
    let path = &report["critical_path"];
    let parts = path["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| ns(&part["total_ns"])).sum();
    assert!(sum.abs_diff(ns(&path["total_ns"])) < 1_000_000, "{path}");
    let labels = report["blocking"].as_array().unwrap();
    let asleep = labels
        .iter()
        .find(|row| row["label"] == "nanosleep")
        .unwrap();
    assert_eq!(asleep["call"], "clock_nanosleep");
    let notes = report["notes"].as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["kind"] != "inconsistent"),
        "{notes:?}"
    );
}

/// Rights given up, by a child and by a child that shares memory until it executes; a filter that
/// looks at where calls are made; a forbidden time stamp counter beside another thread.
const OTHERWISE: &str = r#"
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
static void calls(int n) { while (n--) getppid(); }
static void *beside(void *ready) { calls(1000); write(*(int *)ready, "", 1); usleep(300000); calls(1000); return 0; }
int main(int argc, char **argv)
{
	char c;
	int ready[2];
	pthread_t thread;
	calls(1000);
	if (!strcmp(argv[1], "rights")) {
		if (!fork()) { setgid(65534); setuid(65534); calls(1000); execl("/bin/true", "true", NULL); }
		if (!vfork()) { setgid(65534); execl("/bin/true", "true", NULL); _exit(1); }
	} else if (!strcmp(argv[1], "filter")) {
		struct sock_filter filter[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
						BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
		struct sock_fprog program = { 2, filter };
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
		if (!fork()) { calls(1000); execl("/bin/true", "true", NULL); }
	} else if (!strcmp(argv[1], "stamps")) {
		if (pipe(ready) || pthread_create(&thread, 0, beside, &ready[1])) return 1;
		read(ready[0], &c, 1);
		prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
		pthread_join(thread, 0);
	}
	calls(1000);
	while (wait(0) > 0) {}
	return 7;
}
"#;

const BY_MUSL: &str = "
#include <unistd.h>
int main(void) { for (int i = 0; i < 2000; i++) getppid(); return 7; }
";

/// What cannot be spliced, or no more, is counted where the kernel sees it, each call once.
#[test]
fn what_splicing_leaves_is_counted_at_the_boundary() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("otherwise", OTHERWISE);
    let by_musl = place.file("musl.c", BY_MUSL);
    let musl = place.0.path().join("musl").to_str().unwrap().to_owned();
    let built = Command::new("musl-gcc")
        .args(["-O1", "-static", "-o", &musl, &by_musl])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "musl-gcc");
    // With the execve that begins it all.
    for (program, how, getppids, executes) in [
        (&program, "rights", 3000, 3),
        (&program, "filter", 3000, 2),
        (&program, "stamps", 4000, 1),
        (&musl, "none", 2000, 1),
    ] {
        let (output, report) = place.report(&[program, how]);
        assert_eq!(output.status.code(), Some(7), "{how}: {output:?}");
        assert_eq!(count(&report, "getppid"), getppids, "{how}: {report}");
        assert_eq!(count(&report, "execve"), executes, "{how}: {report}");
        assert_eq!(
            count(&report, "prctl") > 0,
            how == "filter" || how == "stamps"
        );
        let notes = report["notes"].as_array().unwrap();
        let kinds: Vec<_> = notes
            .iter()
            .map(|note| note["kind"].as_str().unwrap())
            .collect();
        assert!(kinds.contains(&"splice_boundary"), "{how}: {notes:?}");
        assert!(!kinds.contains(&"splice_left"), "{how}: {notes:?}");
        assert!(!kinds.contains(&"inconsistent"), "{how}: {report}");
    }
}

/// A call that its program began to tell of, and the kernel side tells of as it ends, is in the sums once.
#[test]
fn a_call_that_is_open_as_another_thread_gives_up_rights_is_counted_once() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "open-call",
        r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
static int ends[2];
static char much[3 << 20], some[1 << 16];
static void *writes(void *unused)
{
	return write(ends[1], much, sizeof(much)) == sizeof(much) ? unused : &ends;
}
static void *reads(void *unused)
{
	for (long all = 0; all < (long)sizeof(much); all += read(ends[0], some, sizeof(some))) usleep(20000);
	return unused;
}
int main(void)
{
	pthread_t one, other;
	void *wrong;
	if (pipe(ends)) return 1;
	pthread_create(&one, 0, writes, 0);
	pthread_create(&other, 0, reads, 0);
	usleep(200000);
	/* Of this thread alone: the C library's would interrupt the others. */
	if (syscall(SYS_setgid, 65534)) return 2;
	pthread_join(one, &wrong);
	pthread_join(other, 0);
	return wrong ? 9 : 7;
}
"#,
    );
    let (output, report) = place.report(&[&program]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(count(&report, "write"), 1, "{report}");
    let rows = report["calls"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "write").unwrap();
    let ns = |name: &str| row[name].as_u64().unwrap();
    // It waits for the reader nearly always, whatever else the machine does.
    let (wall, off) = (ns("wall_ns"), ns("blocked_ns") + ns("runq_ns"));
    assert!(off <= wall && off > 700_000_000, "{row}");
    assert!((30..=50).contains(&ns("nvcsw")), "{row}");
}

/// As a process gives up rights, the runtime puts other memory in place of what tells of its calls. Whoever loses
/// the CPU just then, is in no call of the program's.
#[test]
fn a_process_that_loses_the_cpu_as_it_gives_up_rights_has_no_call_of_the_runtimes() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "gives-up",
        r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	cpu_set_t one;
	pid_t others[4];
	sched_getaffinity(0, sizeof(one), &one);
	for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &one) && n++) CPU_CLR(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
	/* Who wakes up comes first, mostly. */
	for (int i = 0; i < 4; i++)
		if (!(others[i] = fork())) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;) usleep(20);
		}
	for (int i = 0; i < 200; i++) {
		if (!fork()) _exit(setgid(65534) != 0);
		wait(0);
	}
	for (int i = 0; i < 4; i++) {
		kill(others[i], SIGKILL);
		wait(0);
	}
	return 7;
}
"#,
    );
    let (output, report) = place.report(&[&program]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(count(&report, "setgid"), 200);
    let rows = report["calls"].as_array().unwrap();
    // Its own: to put memory in its place, and to say that it has.
    let own = |row: &&Value| row["name"] == "mremap" || row["name"] == "futex";
    assert!(rows.iter().all(|row| !own(&row)), "{rows:?}");
    let mut notes = report["notes"].as_array().unwrap().iter();
    assert!(notes.all(|note| note["kind"] != "inconsistent"), "{report}");
}

/// Its own code comes back under a thread that makes calls all the time: each is counted, by whom it may be, and made
/// as it is written.
#[test]
fn code_that_comes_back_under_a_thread_loses_no_call() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "comes-back",
        r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile int over;
static volatile long made;
static pid_t parent;
static void *beside(void *unused)
{
	while (!over && getppid() == parent) made++;
	return over ? unused : (void *)&over;
}
static void passes(long more)
{
	for (long now = made; made < now + more;) usleep(100);
}
int main(void)
{
	pthread_t thread;
	void *wrong;
	parent = getppid();
	pthread_create(&thread, 0, beside, 0);
	passes(10000);
	prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
	passes(10000);
	over = 1;
	pthread_join(thread, &wrong);
	printf("%ld", made + 1);
	return wrong ? 9 : 7;
}
"#,
    );
    for _ in 0..5 {
        let (output, report) = place.report(&[&program]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let made: u64 = String::from_utf8(output.stdout).unwrap().parse().unwrap();
        assert_eq!(count(&report, "getppid"), made, "{report}");
    }
}

/// A thread that waits for a child of vfork does not stop for that, and goes on when it may.
#[test]
fn code_comes_back_beside_a_thread_in_vfork() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "in-vfork",
        r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
static void *in_vfork(void *unused)
{
	if (!vfork()) { sleep(2); _exit(0); }
	for (int i = 0; i < 100; i++) getppid();
	return unused;
}
int main(void)
{
	pthread_t thread;
	pthread_create(&thread, 0, in_vfork, 0);
	usleep(100000);
	prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
	for (int i = 0; i < 1000; i++) getppid();
	pthread_join(thread, 0);
	return wait(0) > 0 ? 7 : 9;
}
"#,
    );
    let (output, report) = place.report(&[&program]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(count(&report, "getppid"), 1100, "{report}");
}

/// Nobody can be asked any more when it comes to what splicing cannot go with.
#[test]
fn who_gave_up_rights_forbids_itself_the_time_stamp_counter() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "forbids",
        r#"
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int status;
	if (!fork()) {
		if (setgid(65534) || setuid(65534)) _exit(1);
		if (argc > 1) prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		else prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
		for (int i = 0; argc == 1 && i < 1000; i++) getppid();
		syscall(SYS_exit, 7);
	}
	wait(&status);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}
"#,
    );
    for words in [&[program.as_str()][..], &[&program, "strict"]] {
        let (output, report) = place.report(words);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let calls = if words.len() == 1 { 1000 } else { 0 };
        assert_eq!(count(&report, "getppid"), calls, "{report}");
        // Without a broker.
        let other = Place::new();
        std::os::unix::fs::chown(other.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let mut command = other.run(&["-q", "-o", "/dev/null", "--"]);
        // Its folder is root's alone.
        let copy = other.0.path().join("forbids");
        std::fs::copy(&program, &copy).unwrap();
        command.arg(copy).args(&words[1..]).uid(NOBODY).gid(NOBODY);
        assert_eq!(command.status().unwrap().code(), Some(7), "{words:?}");
    }
}

/// Calls out of code that came from no file are seen by nobody but the kernel.
#[test]
fn an_audit_tells_what_was_not_counted() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "own",
        r#"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	/* mov $110, %eax (getppid); syscall; ret */
	static const unsigned char code[] = { 0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 1000; i++) getppid();
	if (!fork()) execl("/bin/true", "true", NULL);
	wait(0);
	memcpy(page, code, sizeof code);
	mprotect(page, 4096, PROT_READ | PROT_EXEC);
	for (int i = 0; argc > 1 && i < 123; i++) ((int (*)(void))page)();
	return 0;
}
"#,
    );
    for (words, untold) in [(&[program.as_str()][..], 0), (&[&program, "itself"], 123)] {
        let (output, report) = place.report_with(&["--audit"], words);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(count(&report, "getppid"), 1000);
        let notes = row(&report["notes"], "kind", "splice_audit");
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(notes[0]["count"], untold, "{notes:?}");
        let text = notes[0]["text"].as_str().unwrap();
        assert_eq!(text.contains("getppid 123"), untold > 0, "{text}");
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_debox"))
        .args(["run", "--audit", "--capture=boundary", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// There is nothing to look after.
#[test]
fn an_audit_is_refused_where_nothing_can_be_spliced() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    for options in [&["--audit", "--capture=splice"][..], &["--audit"]] {
        let output = (place
            .debox(&["run"])
            .args(options)
            .args(["--", "echo", "made"]))
        .env("DEBOX_SPLICE_RUNTIME", "/nothing/debox-splice.bin")
        .output()
        .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{said}");
        let why = "debox-splice.bin is in none of: /nothing/debox-splice.bin";
        assert!(
            said.contains(why) && said.contains("DEBOX_SPLICE_RUNTIME"),
            "{said}"
        );
        // There is one.
        assert!(!said.contains("need the kernel side"), "{said}");
    }
}

/// On one CPU with others, a process that has just been let go waits for it: the command's first execve was kept from
/// its CPU then, and did not have it.
#[test]
fn a_command_that_waits_for_its_cpu_does_not_have_it() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let warm = place.report(&["/bin/true"]);
    assert!(warm.0.status.success(), "{warm:?}");
    let on_one = |command: &mut Command| {
        let pin = || {
            // SAFETY: a set of zeros is an empty one; of this process.
            let pinned = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(0, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set)
            };
            match pinned {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: it makes one system call.
        unsafe { command.pre_exec(pin) };
    };
    let mut others: Vec<_> = (0..3)
        .map(|_| {
            let mut other = Command::new("sh");
            on_one(other.args(["-c", "while :; do :; done"]));
            other.spawn().unwrap()
        })
        .collect();
    let (mut cpu, mut runq) = (0, 0);
    for round in 0..3 {
        let file = place.0.path().join(format!("{round}.json"));
        let mut command = place.run(&["--json", "-o", file.to_str().unwrap(), "--", "/bin/true"]);
        on_one(&mut command);
        assert!(command.output().unwrap().status.success());
        let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let execve = row(&report["calls"], "name", "execve")[0];
        cpu += execve["cpu_ns"].as_u64().unwrap();
        runq += execve["runq_ns"].as_u64().unwrap();
    }
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    println!("{cpu} ns on its CPU, {runq} ns waiting for it");
    assert!(cpu * 3 < runq, "{cpu} {runq}");
}

/// What it holds up is its own, whatever it is called.
#[test]
fn a_thread_with_our_name_hides_nothing() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "hide",
        r#"
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *own(void *x)
{
	prctl(PR_SET_NAME, "debox");
	pthread_mutex_lock(&lock);
	usleep(300000);
	pthread_mutex_unlock(&lock);
	return x;
}
int main(void)
{
	pthread_t thread;
	pthread_create(&thread, 0, own, 0);
	usleep(100000);
	return pthread_mutex_lock(&lock);
}
"#,
    );
    let (output, report) = place.report_with(&[], &[&program]);
    assert!(output.status.success(), "{output:?}");
    let links = report["chain_links"].as_array().unwrap().iter();
    let waits: Vec<&str> = links
        // Whoever else ended one is debox itself: the program asks it for images of its files.
        .filter(|link| link["call"] == "futex" && link["by_own"] == true)
        .filter_map(|link| report["sites"][link["site"].as_u64()? as usize]["label"].as_str())
        .collect();
    assert!(!waits.is_empty(), "{}", report["chain_links"]);
    assert!(!waits.contains(&"splice-setup"), "{waits:?}");
}

/// Threads are, and what it becomes; neither forked children nor what these become.
#[test]
fn children_can_be_left_out() {
    let place = Place::new();
    let program = place.program(
        "alone",
        r#"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void calls(int n) { while (n--) getppid(); }
static void *beside(void *none) { calls(300); return none; }
int main(int argc, char **argv)
{
	pthread_t thread;
	calls(1000);
	if (argc > 1) return 0;
	pthread_create(&thread, 0, beside, 0);
	pthread_join(thread, 0);
	if (!fork()) { calls(77); execl(argv[0], argv[0], "again", NULL); }
	wait(0);
	execl(argv[0], argv[0], "again", NULL);
	return 1;
}
"#,
    );
    for (words, getppids, executes) in [(&["--no-follow"][..], 2300, 2), (&[], 2300 + 1077, 3)] {
        let (output, report) = place.report_with(words, &[&program]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(count(&report, "getppid"), getppids, "{words:?}: {report}");
        assert_eq!(count(&report, "execve"), executes, "{words:?}: {report}");
    }
}

/// By the trampolines themselves, of calls by a known number and by one in a register.
#[test]
fn what_is_not_there_and_single_bytes_are_told_apart() {
    let place = Place::new();
    let program = place.program(
        "found",
        r#"
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void)
{
	char c;
	int zero = open("/dev/zero", O_RDONLY);
	for (int i = 0; i < 70; i++) open("/not/there", O_RDONLY);
	for (int i = 0; i < 30; i++) syscall(SYS_openat, -1, "not/there", O_RDONLY);
	for (int i = 0; i < 20; i++) syscall(SYS_access, "/not/there", 0);
	for (int i = 0; i < 60; i++) read(zero, &c, 1);
	for (int i = 0; i < 50; i++) syscall(SYS_pread64, zero, &c, 1, 0);
	return 0;
}
"#,
    );
    let (output, report) = place.report(&[&program]);
    assert!(output.status.success(), "{output:?}");
    let of = |call: &str, what: &str| row(&report["calls"], "name", call)[0][what].as_u64();
    // By the first descriptor EBADF.
    assert!(of("openat", "missing") >= Some(70), "{report}");
    assert!(of("openat", "errors") >= Some(100), "{report}");
    assert_eq!(of("pread64", "ones"), Some(50), "{report}");
    assert_eq!(of("read", "ones"), Some(60), "{report}");
    // And the loader's own, for files that it does without.
    assert!(of("access", "missing") >= Some(20), "{report}");
}

/// A cancelled call has no end that the program knows.
#[test]
fn calls_that_are_jumped_out_of_have_the_time_that_they_waited() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program(
        "cancelled",
        r#"
#include <pthread.h>
#include <unistd.h>
static void *reader(void *from) { char c; read(*(int *)from, &c, 1); return 0; }
int main(void)
{
	int ends[2];
	if (pipe(ends)) return 1;
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		void *was;
		pthread_create(&thread, 0, reader, &ends[0]);
		usleep(5000);
		pthread_cancel(thread);
		pthread_join(thread, &was);
		if (was != PTHREAD_CANCELED) return 2;
	}
	return 0;
}
"#,
    );
    let (output, report) = place.report(&[&program]);
    assert!(output.status.success(), "{output:?}");
    let read = row(&report["calls"], "name", "read")[0];
    // A thread that is cancelled before it has run makes none.
    assert!(read["count"].as_u64() > Some(2), "{read}");
    assert!(read["blocked_ns"].as_u64() > Some(1_000_000), "{read}");
    assert!(
        read["wall_ns"].as_u64() >= read["blocked_ns"].as_u64(),
        "{read}"
    );
    let notes = report["notes"].as_array().unwrap();
    assert!(
        notes.iter().all(|note| note["kind"] != "inconsistent"),
        "{notes:?}"
    );
}

#[test]
fn the_end_of_the_command_is_deboxs_own() {
    let place = Place::new();
    let status = |words: &[&str]| place.run(words).output().unwrap().status;
    assert_eq!(status(&["--", "sh", "-c", "exit 7"]).code(), Some(7));
    assert_eq!(
        status(&["--", "sh", "-c", "kill -TERM $$"]).signal(),
        Some(libc::SIGTERM)
    );
    assert_eq!(status(&["--", "nonexistent-program"]).code(), Some(127));
    assert_eq!(status(&["--", "/etc/passwd"]).code(), Some(126));
    let has_not = ["--on", "wall > 1s", "--do", "core", "--", "true"];
    assert_eq!(status(&has_not).code(), Some(2));
}

/// One call with room, and two hundred as CALLS has them.
const NO_ROOM: &str = r#"
int main(void)
{
	int n = 200;
	long nr;
	__asm__ volatile("movl $110, %%eax\n	syscall" : "=a"(nr) : : "rcx", "r11", "memory");
	__asm__ volatile(CALLS : "+r"(n), "=a"(nr) : : "rcx", "r11", "memory", "cc");
	return n;
}
"#;

/// The signal by which a new program is stopped is its own again when it begins, also if it blocks it.
#[test]
fn a_program_that_blocks_all_signals_begins_so() {
    let place = Place::new();
    let words = [
        "env",
        "--block-signal",
        "grep",
        "^SigBlk",
        "/proc/self/status",
    ];
    let bare = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let (output, report) = place.report(&words);
    assert_eq!(output.stdout, bare.stdout);
    assert!(count(&report, "rt_sigprocmask") > 0, "{report}");
}

/// Its code ends where its page does, and it has no loader: nothing of it is nobody's.
#[test]
fn a_program_whose_pages_are_full_is_prepared_too() {
    let place = Place::new();
    let text = "\t.globl _start\n\t.type _start, @function\n_start:\n\tmovl $110, %eax\n\tsyscall\n\tmovl $231, %eax\n\tmovl $3, %edi\n\
                \tsyscall\n\tud2\n\t.size _start, . - _start\n\t.fill 4096 - (. - _start), 1, 0x90\n";
    let source = place.file("full.s", text);
    let program = place.0.path().join("full");
    let built = Command::new("cc")
        .args([
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-o",
        ])
        .args([program.as_os_str(), source.as_ref()])
        .status();
    assert!(built.unwrap().success());
    let (output, report) = place.report(&[program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(count(&report, "getppid"), 1, "{report}");
}

/// Flags from before the call are used after it.
const KEEPS_FLAGS: &str = r#""1:	decl %0\n	movl $39, %%eax\n	syscall\n	jnz 1b""#;
/// Something jumps to where the jump would have its later bytes, and who comes from there may want another call.
const JUMPED_INTO: &str =
    r#""movl $39, %%eax\n	jmp 2f\n1:	movl $39, %%eax\n2:	syscall\n	decl %0\n	jnz 1b""#;

/// Of a number that is not known it may make a thread, which would have another one's counters.
#[test]
fn a_program_with_any_call_that_has_no_room_is_counted_at_the_boundary() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("no-room", &NO_ROOM.replace("CALLS", JUMPED_INTO));
    let (output, report) = place.report(&[&program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&report, "getpid"), 200, "{report}");
    assert_eq!(count(&report, "getppid"), 1, "{report}");
    let note = row(&report["notes"], "kind", "splice_boundary");
    let text = note[0]["text"].as_str().unwrap();
    assert!(text.contains("may make a thread"), "{text}");
}

/// debox is a large program, with thousands of tables of jumps. `bench self` tells by it what splicing costs.
#[test]
fn debox_itself_can_be_spliced() {
    let place = Place::new();
    let (output, report) = place.report(&[env!("CARGO_BIN_EXE_debox"), "--version"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        row(&report["notes"], "kind", "splice_boundary").len(),
        0,
        "{report}"
    );
    assert!(count(&report, "write") > 0, "{report}");
}

#[test]
fn places_without_room_are_told() {
    let place = Place::new();
    let program = place.program("no-room", &NO_ROOM.replace("CALLS", KEEPS_FLAGS));
    let (output, report) = place.report(&[&program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&report, "getpid"), 0, "{report}");
    assert_eq!(count(&report, "getppid"), 1, "{report}");
    let note = row(&report["notes"], "kind", "splice_places");
    let text = note[0]["text"].as_str().unwrap();
    assert!(
        text.contains("1 of 2 in ") && text.contains("no-room"),
        "{text}"
    );
}

/// Nobody comes along any more, and nobody answers; also for a program that is being prepared at that moment.
#[test]
fn programs_go_on_when_debox_is_killed() {
    if !needs::root() {
        return;
    }
    let wait_for = |what: &Path| {
        for _ in 0..3000 {
            if what.exists() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    };
    for round in 0..16 {
        let place = Place::new();
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let (begun, over) = (place.0.path().join("begun"), place.0.path().join("over"));
        // Each of them is prepared; those that begin without debox ask for a moment first.
        let script = format!(
            "touch {}; for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; echo $((6 * 7)) > {}",
            begun.display(),
            over.display()
        );
        // Without privileges, so that it has begun soon.
        let mut debox = place.run(&["--", "sh", "-c", &script]);
        let mut debox = debox.uid(NOBODY).gid(NOBODY).spawn().unwrap();
        assert!(wait_for(&begun));
        std::thread::sleep(Duration::from_micros(1500 * round));
        debox.kill().unwrap();
        debox.wait().unwrap();
        assert!(wait_for(&over), "it did not end (round {round})");
    }
}

/// Steps of three calls, up to the end of its input; then how many.
const STEPS: &str = r#"
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static volatile int n;
__attribute__((noinline)) void step(int i) { struct timespec t = { 0, 2000000 }; n = i; getppid(); nanosleep(&t, 0); }
int main(void)
{
	struct pollfd input = { 0, POLLIN };

	printf("%d\n", getpid());
	fflush(stdout);
	while (!poll(&input, 1, 0))
		step(n + 1);
	printf("%d\n", n);
	return 5;
}
"#;

/// Breakpoints, also in the C library's functions that make calls, and single steps through a trampoline;
/// then a tracer of calls. It goes on as if nobody had come, and each call is counted.
#[test]
fn debuggers_come_and_go() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("steps", STEPS);
    let file = place.0.path().join("report.json");
    let mut command = place.run(&["--json", "-o", file.to_str().unwrap(), "--", &program]);
    let mut debox = (command.stdin(Stdio::piped()).stdout(Stdio::piped()))
        .spawn()
        .unwrap();
    let mut said = BufReader::new(debox.stdout.take().unwrap());
    let mut number = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let pid = number().to_string();
    let gdb = Command::new("gdb")
        .args(["-p", &pid, "-batch", "-ex", "break step"])
        .args(["-ex", "continue", "-ex", "break getppid", "-ex", "continue"])
        .args([
            "-ex",
            "backtrace",
            "-ex",
            "delete",
            "-ex",
            "stepi 60",
            "-ex",
            "detach",
        ])
        .output()
        .expect("gdb (apt-get install gdb)");
    let shown = String::from_utf8_lossy(&gdb.stdout);
    let frames = ["getppid", "in step (", "in main ("];
    assert!(frames.iter().all(|name| shown.contains(name)), "{shown}");
    let strace = Command::new("timeout")
        .args(["1", "strace", "-p", &pid])
        .output()
        .expect("strace (apt-get install strace)");
    let seen = String::from_utf8_lossy(&strace.stderr);
    let times = |call: &str| seen.matches(call).count();
    let (own, slept) = (times("getppid()"), times("clock_nanosleep("));
    // Nothing of the runtime's is between them.
    let lines = seen.lines().filter(|line| line.contains(" = ")).count();
    assert!(own > 1 && own.abs_diff(slept) <= 1, "{seen}");
    assert!(lines.abs_diff(own + slept + times("poll(")) <= 1, "{seen}");
    drop(debox.stdin.take());
    let steps = number();
    assert_eq!(debox.wait().unwrap().code(), Some(5));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(count(&report, "getppid"), steps);
    assert_eq!(count(&report, "clock_nanosleep"), steps);
}

/// There a process asks by a number that is another one's here: that one is let alone, and the kernel side counts what
/// it becomes, and all that that starts.
#[test]
fn programs_in_a_pid_namespace_are_counted_at_the_boundary() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let script =
        "/usr/bin/python3 -c 'import os; [os.getppid() for _ in range(1000)]'; /bin/true; exit 3";
    for mount in [&["--mount-proc"][..], &[]] {
        let unshare = ["unshare", "--pid", "--fork"];
        let words = [&unshare[..], mount, &["--", "/bin/sh", "-c", script]].concat();
        let (output, report) = place.report(&words);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let notes = report["notes"].to_string();
        assert_eq!(count(&report, "getppid") / 1000, 1, "{notes}");
        // unshare, sh, python3, true.
        assert_eq!(count(&report, "execve"), 4, "{notes}");
        assert_eq!(count(&report, "set_tid_address"), 4, "{notes}");
        assert!(
            notes.contains("it is in a PID namespace of its own") && !notes.contains("splice_left"),
            "{notes}"
        );
    }
}

/// There is room for 64 questions at a time: the others wait for their turn.
#[test]
fn hundreds_of_programs_at_once_are_counted() {
    let place = Place::new();
    let script = "import os\n\
        gate, key = os.pipe()\n\
        for i in range(200):\n  \
          if os.fork() == 0:\n    \
            os.close(key); os.read(gate, 1); os.execv('/bin/true', ['true'])\n\
        os.close(key)\n\
        for i in range(200): assert os.wait()[1] == 0\n";
    let (output, report) = place.report(&["/usr/bin/python3", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let notes = report["notes"].to_string();
    assert_eq!(count(&report, "set_tid_address"), 201, "{notes}");
    assert!(!notes.contains("splice_left"), "{notes}");
}

/// Most programs that set their own ids once more do it to be sure.
#[test]
fn who_sets_the_ids_that_it_has_gives_up_nothing() {
    let place = Place::new();
    if !alone(&place) {
        return;
    }
    let script = "import os\n\
        os.setgid(os.getgid()); os.setuid(os.getuid())\n\
        os.setresgid(*os.getresgid()); os.setresuid(*os.getresuid())\n\
        for i in range(1000): os.getppid()\n\
        os.execv('/bin/true', ['true'])\n";
    let (output, report) = alone_report(&place, &["/usr/bin/python3", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let notes = report["notes"].to_string();
    assert_eq!(count(&report, "getppid"), 1000, "{notes}");
    assert_eq!(count(&report, "setresuid"), 1, "{notes}");
    assert_eq!(count(&report, "set_tid_address"), 2, "{notes}");
    assert!(!notes.contains("splice_left"), "{notes}");
}

/// After each instruction of trampolines of each kind, and of the runtime, a handler makes calls: the program notices
/// nothing, and each call is counted.
#[test]
fn a_signal_comes_at_each_instruction() {
    let place = Place::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/stepped.c");
    let program = place.program_of("stepped", &source);
    let told = |how: &str, options: &[&str], (output, report): (Output, Value)| {
        assert_eq!(
            output.status.code(),
            Some(7),
            "{how} {options:?}: {output:?}"
        );
        let made = String::from_utf8(output.stdout).unwrap();
        let made: u64 = made.trim().parse().unwrap();
        // Of more handlers in each other than there is room for (eight), the outermost call is of no number.
        let all = count(&report, "getppid") + count(&report, "(unknown)");
        assert_eq!(all, made, "{how} {options:?}");
    };
    let (none, samples, sites) = (&[][..], &["--sample=16"][..], &["--call-site"][..]);
    let all = [
        ("2", none),
        ("2", samples),
        ("2", sites),
        ("11", none),
        ("group", none),
    ];
    for (how, options) in all.into_iter().filter(|_| needs::is_root()) {
        told(how, options, place.report_with(options, &[&program, how]));
    }
    // A folder of its own for its patched code.
    let place = Place::new();
    if !alone(&place) {
        return;
    }
    let program = place.program_of("stepped", &source);
    for (how, options) in [("2", none), ("2", sites), ("group", none)] {
        let report = alone_report_with(&place, options, &[&program, how]);
        told(how, options, report);
    }
}

/// Who traces is named: what it starts cannot be prepared as it begins, and is counted by the kernel side, each call once,
/// also where its first try to execute something has failed.
#[test]
fn what_a_command_traces_is_at_the_boundary_by_name() {
    let place = Place::new();
    let words = ["strace", "-f", "-o", "/dev/null", "/bin/true"];
    let (output, report) = place.report(&words);
    assert!(output.status.success(), "{output:?}");
    assert_names_the_tracer(&report, "strace");
    // It tries in vain, makes calls that it tells of, and succeeds while a handler makes calls; what comes then is the
    // kernel side's.
    let tracer = "#include <signal.h>\n#include <sys/ptrace.h>\n#include <sys/wait.h>\n\
                  #include <time.h>\n#include <unistd.h>\n\
                  static void handler(int number) { (void)number; getppid(); }\n\
                  int main(int argc, char **argv) {\n\
                  struct itimerspec often = { { 0, 200000 }, { 0, 200000 } };\n\
                  int status, number;\n\
                  timer_t timer;\n\
                  pid_t child;\n\
                  if (argc > 1) { for (int i = 0; i < 1000; i++) getpgrp(); return 0; }\n\
                  if (!(child = fork())) {\n\
                  ptrace(PTRACE_TRACEME, 0, 0, 0);\n\
                  execl(\"/dev/null\", \"null\", (char *)0);\n\
                  for (int i = 0; i < 100; i++) getpgrp();\n\
                  signal(SIGALRM, handler);\n\
                  timer_create(CLOCK_MONOTONIC, 0, &timer);\n\
                  timer_settime(timer, 0, &often, 0);\n\
                  execl(argv[0], argv[0], \"again\", (char *)0);\n\
                  _exit(1); }\n\
                  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {\n\
                  number = WSTOPSIG(status);\n\
                  ptrace(PTRACE_CONT, child, 0, number == SIGTRAP ? 0 : number); }\n\
                  return WIFEXITED(status) ? WEXITSTATUS(status) : 2; }\n";
    let program = place.program("tracer", tracer);
    for options in [&[][..], &["--audit"]] {
        if !needs::is_root() && !options.is_empty() {
            continue;
        }
        let (output, report) = place.report_with(options, &[&program]);
        assert!(output.status.success(), "{output:?}");
        assert_names_the_tracer(&report, "tracer");
        let expected = if needs::is_root() { 1100 } else { 100 };
        assert_eq!(count(&report, "getpgrp"), expected, "{report}");
        assert_eq!(count(&report, "execve"), 3, "{report}");
        assert_eq!(sum(&report, "execve", "errors"), 1, "{report}");
        let notes = report["notes"].to_string();
        assert!(!notes.contains("counted otherwise"), "{notes}");
    }
    // Nobody asked for children.
    let (output, report) = place.report_with(&["--no-follow"], &[&program]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("without being counted"), "{said}");
    let notes = report["notes"].to_string();
    assert!(!notes.contains("is traced by"), "{notes}");
    // A session within: where it stops, how it goes on, and what the program ended with.
    let three = "#include <unistd.h>\n__attribute__((noinline)) int step(void) { return getppid() > 0; }\n\
                 int main(void) { return 2 + step() + step() + step(); }\n";
    let program = place.program("three", three);
    let commands = ["break getppid", "run", "backtrace", "delete", "continue"];
    let mut words = vec!["gdb", "-batch", "-nx"];
    words.extend(commands.iter().flat_map(|command| ["-ex", *command]));
    words.push(&program);
    let (output, report) = place.report(&words);
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    let frames = ["in step (", "in main (", "exited with code 05"];
    assert!(frames.iter().all(|text| shown.contains(text)), "{shown}");
    assert_names_the_tracer(&report, "gdb");
}

fn assert_names_the_tracer(report: &Value, name: &str) {
    let kind = if needs::is_root() {
        "splice_boundary"
    } else {
        "splice_left"
    };
    let said = notes(report, kind);
    let by = format!("it is traced by {name} (");
    assert!(
        said.iter().any(|text| text.contains(&by)),
        "{}",
        report["notes"]
    );
}

/// Each handler of a signal ends a wait, and whoever asks waits on: here for a watcher that stands still for a while.
#[test]
fn who_executes_under_signals_is_counted() {
    const SOURCE: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static void handler(int number) { (void)number; }
int main(int argc, char **argv)
{
	struct itimerspec often = { { 0, 200000 }, { 0, 200000 } };
	struct timespec while_it_asks = { 0, 500000000 };
	const pid_t watcher = getppid();
	timer_t timer;
	if (argc > 1) {
		for (int i = 0; i < 1000; i++)
			getpgrp();
		return 0;
	}
	signal(SIGALRM, handler);
	if (!fork()) {
		nanosleep(&while_it_asks, 0);
		_exit(kill(watcher, SIGCONT));
	}
	kill(watcher, SIGSTOP);
	timer_create(CLOCK_MONOTONIC, 0, &timer);
	timer_settime(timer, 0, &often, 0);
	execl(argv[0], argv[0], "again", (char *)0);
	return 1;
}
"#;
    let place = Place::new();
    let program = place.program("asks", SOURCE);
    let (output, report) = place.report(&[&program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&report, "getpgrp"), 1000, "{report}");
    assert!(notes(&report, "splice_left").is_empty(), "{report}");
    assert!(notes(&report, "splice_boundary").is_empty(), "{report}");
}

/// Its child is traced, and tries in vain to execute something: what it does next is told, and it goes on.
const TRIES: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
static volatile int *at;
static void says(const char *text)
{
	char byte;
	puts(text);
	fflush(stdout);
	if (read(0, &byte, 1) != 1) _exit(3);
}
int main(void)
{
	int status;
	at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	says("begun");
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execl("/dev/null", "null", (char *)0);
		/* Without a call. */
		for (*at = 1; *at < 2;) ;
		getppid();
		for (*at = 3; *at < 4;) ;
		_exit(7);
	}
	while (*at < 1) usleep(1000);
	says("failed");
	*at = 2;
	while (*at < 3) usleep(1000);
	says("told");
	*at = 4;
	return wait(&status) > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}
"#;

/// Hooks that debox's own broker, a thread of it, has put on the kernel.
fn hooks(debox: u32) -> usize {
    let all = std::fs::read_dir(format!("/proc/{debox}/fdinfo")).unwrap();
    let texts = all
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    texts
        .filter(|text| text.contains("link_type:\traw_tracepoint"))
        .count()
}

/// All processes pay for hooks at system calls: they are there as long as somebody needs them.
#[test]
fn hooks_at_calls_go_when_nobody_needs_them_any_more() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("tries", TRIES);
    let script = "echo begun; read a; strace -f -o /dev/null /bin/true; echo told; read b; exit 7";
    for words in [&[program.as_str()][..], &["sh", "-c", script]] {
        let mut debox = place.run(&["-q", "-o", "/dev/null", "--"]);
        debox.args(words).stdin(Stdio::piped());
        let mut debox = debox.stdout(Stdio::piped()).spawn().unwrap();
        let (pid, mut go) = (debox.id(), debox.stdin.take().unwrap());
        let mut lines = BufReader::new(debox.stdout.take().unwrap()).lines();
        let mut says = || lines.next().unwrap().unwrap();
        let mut goes = || go.write_all(b"\n").unwrap();
        assert_eq!(says(), "begun");
        let before = hooks(pid);
        goes();
        if words.len() == 1 {
            assert_eq!(says(), "failed");
            // Longer than it takes until that is looked at.
            for _ in 0..30 {
                assert_eq!(hooks(pid), before + 2);
                std::thread::sleep(Duration::from_millis(100));
            }
            goes();
        }
        assert_eq!(says(), "told");
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            hooks(pid) == before
        });
        goes();
        assert_eq!(debox.wait().unwrap().code(), Some(7), "{words:?}");
        assert!(gone, "{words:?}");
    }
}
/// Between two programs no block of it is taken: it lives nevertheless.
#[test]
fn a_program_whose_execve_fails_again_and_again_lives_on() {
    let place = Place::new();
    let script = "import os, time\n\
        end = time.monotonic() + 1.5\n\
        while time.monotonic() < end:\n  \
        try: os.execv('/nonexistent', ['x'])\n  \
        except OSError: pass\n\
        os._exit(5)\n";
    let script = place.file("fails.py", script);
    let done = place
        .run(&["-q", "--", "/usr/bin/python3", &script])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(5), "{done:?}");
}

/// Strict mode forbids the time stamp counter; also where images are there already.
#[test]
fn a_program_that_forbids_itself_nearly_all_goes_on_without() {
    let place = Place::new();
    let program = place.program(
        "strict",
        "#include <linux/seccomp.h>\n#include <sys/prctl.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
         int main(void) { prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); write(1, \"in\", 2); \
         return syscall(SYS_exit, 4); }\n",
    );
    for _ in 0..2 {
        let done = place
            .run(&["-q", "-o", "/dev/null", "--", &program])
            .output();
        let done = done.unwrap();
        assert_eq!(done.status.code(), Some(4), "{done:?}");
        assert_eq!(done.stdout, b"in");
    }
}

/// Again and again: who waits for the command must not take what its tracer is to be told.
#[test]
fn a_command_that_becomes_others_does_not_hang() {
    let place = Place::new();
    // Without a broker: it would be loaded anew each time.
    if needs::is_root() {
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for _ in 0..50 {
        let mut command = place.run(&["-d", "20s", "--", "sh", "-c", "exec sh -c 'exec true'"]);
        if needs::is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// An execve that fails after somebody came along: a file that is no program.
#[test]
fn an_execve_that_fails_goes_on() {
    let place = Place::new();
    let script = "import os\nfor _ in range(20):\n  try: os.execv('/etc/passwd', ['x'])\n  except OSError: pass\n\
                  open('/proc/self/status').read().index('TracerPid:\\t0')";
    let file = place.0.path().join("not-a-program");
    std::fs::write(&file, b"\x7fELF nothing").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.replace("/etc/passwd", file.to_str().unwrap());
    let (output, report) = place.report(&["/usr/bin/python3", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let rows = report["calls"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "execve").unwrap();
    assert_eq!(
        (row["count"].as_u64(), row["errors"].as_u64()),
        (Some(21), Some(20)),
        "{row}"
    );
}

/// Killed on its way to its first instruction: its parent has to be told all the same.
#[test]
fn a_child_that_is_killed_as_it_begins_is_waited_for() {
    let place = Place::new();
    let script = "import subprocess, time\n\
        for i in range(60):\n  \
          p = subprocess.Popen(['/bin/sleep', '9'])\n  \
          time.sleep(i * 0.00005)\n  \
          p.kill()\n  \
          assert p.wait() == -9\n";
    let words = ["-d", "30s", "--", "/usr/bin/python3", "-c", script];
    let output = place.run(&words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Without a kernel side: whether nobody else would tell, too. The place is theirs who watch then.
fn alone(place: &Place) -> bool {
    if Path::new("/run/debox/debox.sock").exists() {
        eprintln!("NOT RUN: a broker is there for everybody");
        return false;
    }
    if needs::is_root() {
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    true
}

/// What whoever has no privileges is told of a command.
fn alone_report(place: &Place, words: &[&str]) -> (Output, Value) {
    alone_report_with(place, &[], words)
}

fn alone_report_with(place: &Place, options: &[&str], words: &[&str]) -> (Output, Value) {
    let file = place.0.path().join("report.json");
    let _ = std::fs::remove_file(&file);
    let mut command = place.run(options);
    command.args(["--json", "-o", file.to_str().unwrap(), "--"]);
    command.args(words);
    if needs::is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let report = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{output:?}"));
    (output, serde_json::from_str(&report).unwrap())
}

/// Executes itself, as often as it is told, and tells how long from before to behind each execve, at most and in all.
/// With `stop`, debox stands still for 300 ms in the third one.
const EXECUTES: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}
int main(int argc, char **argv)
{
	char left[32], began[32], most[32], all[32];
	long n = atol(argv[1]), stop = atol(argv[2]), took = argc > 3 ? now() - atol(argv[3]) : 0;
	long longest = argc > 3 ? atol(argv[4]) : 0, sum = argc > 3 ? atol(argv[5]) + took : 0;

	if (took > longest) longest = took;
	if (!n) return printf("%ld %ld\n", longest, sum) < 0;
	if (stop && n == 3) {
		int ends[2];
		char byte;
		if (pipe(ends)) return 2;
		if (!fork()) {
			kill((pid_t)stop, SIGSTOP);
			write(ends[1], "x", 1);
			usleep(300000);
			kill((pid_t)stop, SIGCONT);
			_exit(0);
		}
		if (read(ends[0], &byte, 1) != 1) return 3;
	}
	snprintf(left, sizeof left, "%ld", n - 1);
	snprintf(most, sizeof most, "%ld", longest);
	snprintf(all, sizeof all, "%ld", sum);
	snprintf(began, sizeof began, "%ld", now());
	execl(argv[0], argv[0], left, argv[2], began, most, all, (char *)0);
	return 1;
}
"#;

/// Nobody knows of an execve's end but who came along with it, and so how long it took: no longer than between what
/// its program does before and what the next one does.
#[test]
fn who_comes_along_with_an_execve_measures_it() {
    let place = Place::new();
    let program = place.program("executes", EXECUTES);
    if !alone(&place) {
        return;
    }
    let script = format!("exec {program} 20 $PPID");
    // Warm: of each file what is made once is made.
    alone_report(&place, &["sh", "-c", &format!("exec {program} 2 0")]);
    let (output, report) = alone_report(&place, &["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["measured"]["blocked"], false);
    let ns = |value: &Value| value.as_u64().unwrap();
    let execve = row(&report["calls"], "name", "execve")[0];
    // Of debox, of sh, and of the program itself.
    assert_eq!((ns(&execve["count"]), ns(&execve["errors"])), (22, 0));
    assert!(execve.get("untimed").is_none(), "{execve}");
    let timed = execve["histogram"].as_array().unwrap().iter();
    assert_eq!(timed.map(|one| ns(&one["count"])).sum::<u64>(), 22);
    let said = String::from_utf8(output.stdout).unwrap();
    let told: Vec<u64> = said
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    let (longest, sum) = (told[0], told[1]);
    let (wall, max) = (ns(&execve["wall_ns"]), ns(&execve["max_ns"]));
    // debox answers no sooner.
    assert!(
        longest > 250_000_000 && max > 250_000_000,
        "{said} {execve}"
    );
    assert!(wall >= max, "{execve}");
    // The first two are none of its own: they are in the run.
    let run = ns(&report["run"]["wall_ns"]);
    assert!(wall < run + 1_000_000 && sum < run, "{said} {execve} {run}");
    let exits = row(&report["calls"], "name", "exit_group")[0];
    assert_eq!((ns(&exits["count"]), ns(&exits["untimed"])), (2, 2));
    for field in ["wall_ns", "mean_ns", "p50_ns", "p99_ns", "max_ns"] {
        assert!(exits[field].is_null(), "{exits}");
    }
}

/// Stamps by another tool, of a shell that begins other programs; it costs more than they do, so no more than that is
/// held against it.
#[test]
fn execves_take_as_long_as_strace_says() {
    let place = Place::new();
    if !alone(&place) {
        return;
    }
    let words = [
        "sh",
        "-c",
        "for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done; exec /bin/true",
    ];
    let file = place.0.path().join("trace");
    let traced = Command::new("strace")
        .args(["-f", "-T", "-e", "trace=execve", "-o"])
        .arg(&file)
        .args(words)
        .status();
    assert!(traced.expect("strace is needed").success());
    let trace = std::fs::read_to_string(file).unwrap();
    let took = trace
        .lines()
        .filter_map(|line| line.rsplit_once("= 0 <")?.1.strip_suffix('>'));
    let took: Vec<f64> = took.map(|took| took.parse().unwrap()).collect();
    assert_eq!(took.len(), 11, "{trace}");
    alone_report(&place, &words);
    let (output, report) = alone_report(&place, &words);
    let execve = row(&report["calls"], "name", "execve")[0];
    assert_eq!(execve["count"], 11, "{output:?}");
    let wall = execve["wall_ns"].as_u64().unwrap() as f64 / 1e9;
    let theirs: f64 = took.iter().sum();
    assert!(
        wall > theirs / 100.0 && wall < theirs * 100.0 + 1.0,
        "{wall} s, not {theirs} s"
    );
}

/// Nobody comes along with a set-user-id program: what is not measured is no 0.
#[test]
fn an_execve_that_nobody_measures_has_no_time() {
    let place = Place::new();
    if !Path::new("/usr/bin/su").exists() {
        eprintln!("NOT RUN: needs su");
        return;
    }
    if !alone(&place) {
        return;
    }
    let (_, report) = alone_report(&place, &["sh", "-c", "exec /usr/bin/su --version"]);
    let execve = row(&report["calls"], "name", "execve")[0];
    let of = |field: &str| execve[field].as_u64().unwrap();
    assert_eq!((of("count"), of("errors"), of("untimed")), (2, 0, 1));
    // The other one.
    assert!(of("wall_ns") > 0, "{execve}");
    assert_eq!(of("wall_ns"), of("mean_ns"));
    let left = splice::notes(&report, "splice_left").join("\n");
    assert!(
        left.contains("1 of 2 calls of execve have no time"),
        "{left}"
    );
    let mut command = place.run(&["--top", "100", "--", "/bin/true"]);
    if needs::is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    let mut lines = said.lines().map(str::trim_start);
    let exits = lines.find(|line| line.starts_with("exit_group"));
    let cells: Vec<_> = exits
        .unwrap_or_else(|| panic!("{said}"))
        .split_whitespace()
        .collect();
    // All times of it, and their share.
    assert_eq!(
        cells.iter().filter(|cell| **cell == "?").count(),
        6,
        "{said}"
    );
}

#[test]
fn whoever_has_no_privileges_may_too() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    if !Path::new("/usr/bin/su").exists() {
        eprintln!("NOT RUN: needs su");
        return;
    }
    let mut command = place.run(&["--", "sh", "-c", "ls /; /usr/bin/su --version"]);
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("getdents64"),
        "{said}"
    );
    // set-user-id: it keeps its rights, and is not counted.
    assert!(said.contains("calls of 1 program are missing"), "{said}");
    // Whoever says nothing is helped so, where nobody else can.
    let unsaid = |options: &[&str]| {
        let mut command = place.debox(&["run"]);
        command
            .args(options)
            .args(["--", "sh", "-c", "ls / > /dev/null; exit 3"]);
        command.uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    if Path::new("/run/debox/debox.sock").exists() {
        eprintln!("NOT RUN: a broker is there for everybody");
        return;
    }
    let output = unsaid(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("system calls took") && said.contains("getdents64"),
        "{said}"
    );
    let asked = unsaid(&["--call-site"]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(3), "{said}");
    assert!(
        said.contains("nothing can be watched: no privileges") && said.contains("CALL SITE"),
        "{said}"
    );
}

/// What is taken where nobody says how.
#[test]
fn calls_are_counted_where_that_costs_least_if_nobody_says_where() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let way = |options: &[&str]| {
        let mut command = place.debox(&["run", "-q", "--json", "-o"]);
        let file = place.0.path().join("way.json");
        command.arg(&file).args(options).args(["--", "true"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        report["run"]["capture"].as_str().unwrap().to_owned()
    };
    assert_eq!(way(&[]), "splice");
    assert_eq!(way(&["--irq"]), "splice");
    for options in [
        &["--call-site"][..],
        &["--stacks"],
        &["--trace", "vfs_read"],
        &["--on", "call == sync", "--do", "core"],
    ] {
        assert_eq!(way(options), "boundary", "{options:?}");
    }
}

/// Whoever has fewer capabilities, or is another user, is not let at memory by which those go who have more: it counts in a file
/// of its own, and so does what it executes.
#[test]
fn a_program_with_fewer_rights_shares_nothing_with_others() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let files = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = said.lines().map(str::trim).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let own = "awk '/memfd:debox-splice/ { print $5 }' /proc/self/maps | sort -u";
    for fewer in [
        "setpriv --bounding-set=-all",
        "setpriv --reuid=65534 --regid=65534 --clear-groups",
    ] {
        let script = format!(
            "{own}; {fewer} sh -c \"{}\"; {own}",
            own.replace('$', "\\$")
        );
        let (output, report) = place.report(&["sh", "-c", &script]);
        assert!(output.status.success(), "{output:?}");
        let files = files(&output);
        assert_eq!(files.len(), 3, "{files:?}");
        assert_eq!(files[0], files[2], "{files:?}");
        assert_ne!(files[0], files[1], "{files:?}");
        assert!(notes(&report, "splice_boundary").is_empty(), "{report}");
        assert!(notes(&report, "splice_left").is_empty(), "{report}");
        // `sort` and `awk`, three times, `setpriv` and two shells; of its own way the latter tries some in vain.
        let executes = row(&report["calls"], "name", "execve")[0];
        let of = |field: &str| executes[field].as_u64().unwrap();
        assert_eq!(of("count") - of("errors"), 9, "{report}");
    }
    // One with more than who executes it is not let at it at all.
    let suid = place.program("suid", "int main(void) { return 0; }");
    std::fs::set_permissions(&suid, std::fs::Permissions::from_mode(0o4755)).unwrap();
    place.open_to_others();
    let words = ["setpriv", "--reuid=65534", "--clear-groups", &suid];
    let (output, report) = place.report(&words);
    assert!(output.status.success(), "{output:?}");
    let boundary = notes(&report, "splice_boundary");
    assert!(
        boundary.len() == 1 && boundary[0].contains("other rights"),
        "{boundary:?}"
    );
}

/// Gives up rights as servers do, once or after it was forked; in between and behind it makes calls, with more threads, and
/// executes itself.
const GIVES_UP: &str = r#"
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static void handler(int number) { (void)number; }
static void *calls(void *unused)
{
	for (int i = 0; i < 100; i++) getpgid(0);
	return unused;
}
static void gives_up(void)
{
	struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
	gid_t group = 65534;
	signal(SIGALRM, handler);
	setitimer(ITIMER_REAL, &often, 0);
	for (int i = 0; i < 100; i++) getsid(0);
	if (setgroups(1, &group) || setresgid(65534, 65534, 65534)) _exit(3);
	for (int i = 0; i < 100; i++) getsid(0);
	if (setresuid(65534, 65534, 65534)) _exit(4);
	setitimer(ITIMER_REAL, &never, 0);
}
int main(int argc, char **argv)
{
	pthread_t thread[40];
	int status, bad = 0;
	if (argc > 2) {
		for (int i = 0; i < 500; i++) getppid();
		return 0;
	}
	for (int i = 0; i < 3; i++)
		if (!strcmp(argv[1], "workers") && !fork()) {
			gives_up();
			for (int k = 0; k < 40; k++) pthread_create(&thread[k], 0, calls, 0);
			for (int k = 0; k < 40; k++) pthread_join(thread[k], 0);
			if (setresuid(0, 0, 0) != -1 || setgroups(0, 0) != -1) _exit(5);
			for (int k = 0; k < 1000; k++) getppid();
			if (!fork()) _exit(getppid() < 0);
			wait(&status);
			execl(argv[0], argv[0], "", "again", (char *)0);
			_exit(status || 6);
		}
	while (wait(&status) > 0) bad |= status;
	for (int i = 0; i < 1000; i++) getpgrp();
	if (!strcmp(argv[1], "workers")) return bad != 0;
	gives_up();
	for (int k = 0; k < 1000; k++) getppid();
	execl(argv[0], argv[0], "", "again", (char *)0);
	return 1;
}
"#;

/// It goes on as it was, in a file of its own, and each call is counted once, those too that signal handlers come into; what
/// it executes is spliced from its first instruction on.
#[test]
fn who_gives_up_rights_is_counted_to_the_end() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("gives", GIVES_UP);
    place.open_to_others();
    for (how, of) in [("workers", 3), ("alone", 1)] {
        for options in [&[][..], &["--call-site"], &["--audit"], &["--sample", "16"]] {
            let (output, report) = place.report_with(options, &[&program, how]);
            assert!(output.status.success(), "{how} {options:?}: {output:?}");
            let workers = u64::from(how == "workers");
            let expected = [
                ("getsid", 200 * of),
                ("getppid", (1500 + workers) * of),
                ("getpgid", 4000 * of * workers),
                ("getpgrp", 1000),
                ("setresuid", of * (1 + workers)),
                ("setgroups", of * (1 + workers)),
                ("setresgid", of),
                ("execve", of + 1),
            ];
            for (name, expected) in expected {
                let all = row(&report["calls"], "name", name);
                let counted = all.first().map_or(0, |row| row["count"].as_u64().unwrap());
                assert_eq!(counted, expected, "{how} {options:?}: {name}: {report}");
            }
            assert!(notes(&report, "splice_boundary").is_empty(), "{report}");
            assert!(notes(&report, "splice_left").is_empty(), "{report}");
            if options == ["--audit"] {
                let audit = notes(&report, "splice_audit");
                assert!(audit[0].ends_with("all were told by them"), "{audit:?}");
            }
        }
    }
}

/// Prints where it counts, before and after it set its own ids once more with a thread beside it, and gave up groups alone.
const STAYS: &str = r#"
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *waits(void *end)
{
	char c;
	if (read(*(int *)end, &c, 1)) _exit(9);
	return end;
}
static void where(void)
{
	char line[512], last[64] = "", file[64];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "memfd:debox-splice") && sscanf(line, "%*s %*s %*s %*s %63s", file) == 1 && strcmp(file, last))
			puts(strcpy(last, file));
	fclose(maps);
}
int main(void)
{
	gid_t group = 65534;
	pthread_t thread;
	int ends[2];
	if (pipe(ends)) return 2;
	where();
	pthread_create(&thread, 0, waits, ends);
	for (int i = 0; i < 100; i++)
		if (syscall(SYS_setresuid, getuid(), getuid(), getuid()) || syscall(SYS_setgid, getgid())) return 3;
	where();
	close(ends[1]);
	pthread_join(thread, 0);
	if (!getuid() && setgroups(1, &group)) return 4;
	where();
	for (int i = 0; i < 100; i++) getppid();
	return 0;
}
"#;

/// Whoever sets the ids that it has gives up nothing, and who shares with nobody need not stop sharing.
#[test]
fn who_shares_with_nobody_stays_where_it_counts() {
    let place = Place::new();
    let (output, report) = place.report(&[&place.program("stays", STAYS)]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let files: Vec<&str> = said.lines().collect();
    assert_eq!(files, [files[0]; 3]);
    assert_eq!(count(&report, "getppid"), 100, "{report}");
    assert!(notes(&report, "splice_boundary").is_empty(), "{report}");
    assert!(notes(&report, "splice_left").is_empty(), "{report}");
}

/// Whoever executes a large program for the first time, alone in a file of its own, is counted while that is copied, and after.
#[test]
fn a_large_program_is_executed_with_fewer_rights() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let large = place.file("large", "");
    std::fs::copy("/usr/bin/python3", &large).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&large);
    // Behind all that is loaded.
    file.unwrap().write_all_at(&[7], 60 << 20).unwrap();
    place.open_to_others();
    let script = format!(
        "setpriv --reuid=65534 --regid=65534 --clear-groups {large} -S -E -c \"import os\n\
         for _ in range(700): os.getppid()\"; true"
    );
    let (output, report) = place.report(&["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    assert!(count(&report, "getppid") >= 700, "{report}");
    assert!(notes(&report, "splice_boundary").is_empty(), "{report}");
    assert!(notes(&report, "splice_left").is_empty(), "{report}");
}

/// A child of who ended before it ran, as daemons are begun, has the signals that it had.
const DAEMONS: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	sigset_t mask, other;
	cpu_set_t one;
	int ends[2], held = 0;
	char is;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	sigemptyset(&other);
	sigaddset(&other, SIGUSR2);
	sigprocmask(SIG_SETMASK, &other, 0);
	if (pipe(ends)) return 2;
	for (int i = 0; i < 200; i++) {
		if (!fork()) {
			if (!fork()) {
				sigprocmask(SIG_SETMASK, 0, &mask);
				is = sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGUSR2) ? 'b' : 'g';
				_exit(write(ends[1], &is, 1) != 1);
			}
			_exit(0);
		}
		wait(0);
		if (read(ends[0], &is, 1) != 1) return 3;
		held += is != 'g';
	}
	printf("%d\n", held);
	return 0;
}
"#;

#[test]
fn whose_parent_ended_first_has_its_signals() {
    let place = Place::new();
    let (output, report) = place.report(&[&place.program("daemons", DAEMONS)]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n");
    assert!(notes(&report, "splice_left").is_empty(), "{report}");
}

/// Its threads spawn itself by its name, which is in the last of three folders.
const SEARCHES: &str = r#"
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char *name;
static void *spawns(void *unused)
{
	char *words[] = { name, "calls", 0 };
	pid_t child;
	int status;
	for (int i = 0; i < 50; i++)
		if (posix_spawnp(&child, name, 0, 0, words, environ) || waitpid(child, &status, 0) != child || status) exit(1);
	return unused;
}
int main(int argc, char **argv)
{
	char path[4096];
	pthread_t threads[4];
	if (argc > 1) {
		for (int i = 0; i < 100; i++) getpgrp();
		return 0;
	}
	name = strrchr(argv[0], '/') + 1;
	snprintf(path, sizeof path, "/none/a:/none/b:%.*s", (int)(name - 1 - argv[0]), argv[0]);
	setenv("PATH", path, 1);
	for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, spawns, 0);
	for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
	return 7;
}
"#;

/// While an execve is under way its thread's counters may become another one's: where it fails it is counted once all the same.
#[test]
fn threads_that_search_for_what_they_execute_are_counted_once() {
    for user in users() {
        let place = Place::new();
        let program = place.program("searches", SEARCHES);
        let (output, report) = place.spliced(user, &[], &[&program]);
        let of_it = format!("{user:?}: {}", report["notes"]);
        assert_eq!(output.status.code(), Some(7), "{of_it} {output:?}");
        assert_eq!(count(&report, "getpgrp"), 200 * 100, "{of_it}");
        let execve = row(&report["calls"], "name", "execve")[0];
        assert_eq!(execve["count"], 1 + 200 * 3, "{of_it}");
        assert_eq!(execve["errors"], 200 * 2, "{of_it}");
        assert_eq!(notes(&report, "splice_boundary"), [""; 0], "{of_it}");
    }
}
