// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is it told rightly where the time of threads went, what the end depended on, and where
//! they rest?
//!
//! In each scenario of tests/truth/lives.c the answer is known. What a busy machine adds
//! is waiting for a CPU, and is told as that.

use debox_tests::*;
use serde_json::Value;

const MS: u64 = 1_000_000;

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report[name].as_array().map_or(&[], Vec::as_slice)
}

/// The program's name in the kernel's books.
const COMM: &str = "lives";

struct Told {
    report: Value,
    /// By the kernel's own account of its children, microseconds.
    cpu_us: u64,
}

/// Every life and the path are split without remainder.
#[track_caller]
fn scenario(name: &str, ms: u64) -> Told {
    let command = [
        program("lives").display().to_string(),
        name.to_owned(),
        ms.to_string(),
    ];
    let run = run(&[], &command);
    run.check_sound();
    let report = run.report;
    let lives = list(&report, "lives");
    assert!(!lives.is_empty(), "no lives in {report}");
    for life in lives {
        assert_eq!(number(life, "life_ns"), life_parts_ns(life), "{life}");
        assert!(
            number(life, "rest_ns") <= number(life, "blocked_ns"),
            "{life}"
        );
    }
    let path = &report["critical_path"];
    let parts: u64 = list(path, "parts")
        .iter()
        .map(|p| number(p, "total_ns"))
        .sum();
    let total = number(path, "total_ns");
    // Each step reads the clock once more.
    assert!(total.abs_diff(parts) <= total / 1000 + MS / 10, "{path}");
    let wall = number(&report["run"], "wall_ns");
    assert!(
        total.abs_diff(wall) <= wall / 20 + slack(),
        "{total} of {wall}"
    );
    let said = String::from_utf8_lossy(&run.output.stdout);
    Told {
        cpu_us: said.trim().parse().expect("its CPU time"),
        report,
    }
}

/// A machine that is emulated takes milliseconds for a wake-up, a tenth of a second for an exec,
/// and what its host takes from it counts as its own.
fn slack() -> u64 {
    if slow() { 200 * MS } else { 20 * MS }
}

impl Told {
    /// The sum of lives of one name.
    #[track_caller]
    fn life(&self, comm: &str, part: &str) -> u64 {
        let of = list(&self.report, "lives")
            .iter()
            .filter(|life| life["comm"] == comm);
        let mut sum = 0;
        let mut found = false;
        for life in of {
            sum += number(life, part);
            found = true;
        }
        assert!(found, "nobody is called {comm}: {}", self.report["lives"]);
        sum
    }

    /// Of the critical path.
    fn path(&self, comm: &str, kind: &str) -> u64 {
        list(&self.report["critical_path"], "parts")
            .iter()
            .filter(|part| part["comm"] == comm && part["kind"] == kind)
            .map(|part| number(part, "total_ns"))
            .sum()
    }

    /// The path without waiting for a CPU, which others' load decides.
    fn path_of_all(&self) -> u64 {
        list(&self.report["critical_path"], "parts")
            .iter()
            .filter(|part| part["kind"] != "runq")
            .map(|part| number(part, "total_ns"))
            .sum()
    }

    #[track_caller]
    fn verdict(&self) -> &str {
        self.report["verdict"][0].as_str().expect("a sentence")
    }
}

#[track_caller]
fn about(is: u64, due: u64, what: &str) {
    // What its host takes from an emulated machine counts as the program's.
    let more = if slow() { 2 * due } else { 0 };
    assert!(
        is + due / 20 + slack() >= due && is <= due + due / 20 + slack() + more,
        "{what}: {is} ns, not {due}"
    );
}

#[test]
fn computing_is_own_code_and_nothing_else() {
    let told = scenario("compute", 300);
    about(told.life(COMM, "own_ns"), 300 * MS, "its own code");
    about(told.path(COMM, "own"), 300 * MS, "of the path");
    assert!(
        told.verdict().contains("computing in its own code"),
        "{}",
        told.verdict()
    );
}

#[test]
fn calls_are_time_in_calls() {
    let told = scenario("call", 300);
    let (own, calls) = (told.life(COMM, "own_ns"), told.life(COMM, "calls_ns"));
    about(own + calls, 300 * MS, "on a CPU");
    // Measured by the same brackets as the calls themselves.
    let in_calls = number(&told.report["totals"], "cpu_ns");
    let rows = list(&told.report, "lives").iter();
    let all: u64 = rows.map(|life| number(life, "calls_ns")).sum();
    assert!(
        all.abs_diff(in_calls) <= in_calls / 50 + 2 * MS,
        "{all} of {in_calls}"
    );
}

#[test]
fn faults_are_told_from_own_code() {
    let told = scenario("touch", 1000);
    let (own, calls) = (told.life(COMM, "own_ns"), told.life(COMM, "calls_ns"));
    let (user, system) = (told.life(COMM, "user_ns"), told.life(COMM, "system_ns"));
    let ticks = user + system;
    // What a hypervisor took from a CPU is no CPU time by the kernel's clock.
    assert!(
        ticks <= own + calls + (own + calls) / 10 + slack() && 2 * ticks >= own + calls,
        "{user} + {system} by ticks, {own} + {calls} measured"
    );
    assert!(
        system > ticks / 2,
        "{system} in the kernel, {calls} in calls"
    );
    let said = told.verdict();
    assert!(
        said.contains(" page faults") || slow() && said.contains("outside of calls"),
        "{said}"
    );
    // And where there are none, none are told.
    let told = scenario("compute", 1000);
    assert!(!told.verdict().contains("faults"), "{}", told.verdict());
}

#[test]
fn the_kernel_says_the_same_of_its_cpu_time() {
    for name in ["compute", "call", "pipeline"] {
        let told = scenario(name, 400);
        let rows = list(&told.report, "lives").iter();
        let cpu: u64 = rows
            .filter(|life| life["comm"] != "debox")
            .map(|life| number(life, "own_ns") + number(life, "calls_ns") + number(life, "exit_ns"))
            .sum();
        let cpu_us = told.cpu_us * 1000;
        // The kernel counts what the hooks themselves take, and not its own end.
        let apart = cpu.abs_diff(cpu_us);
        let most = if slow() { cpu_us / 2 } else { cpu_us / 10 };
        assert!(
            apart <= most + slack(),
            "{name}: {cpu} ns, by getrusage {cpu_us}"
        );
    }
}

/// (on a CPU, waiting for one) of a process's first thread: /proc/PID/schedstat.
fn schedstat(pid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    let mut numbers = text.split(' ').map(|n| n.trim().parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// The two looks at /proc enclose the watch: what lies between them and it is all that the
/// kernel may have counted more.
#[test]
fn the_schedulers_books_say_the_same() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let mut child = std::process::Command::new(program("lives"))
        .args(["compute", "60000"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let begin = std::time::Instant::now();
    let before = schedstat(child.id());
    let output = std::process::Command::new(debox())
        .args(["attach", "--json", "-d", "1s", "-o"])
        .arg(file.path())
        .arg("--socket")
        .arg(broker.socket())
        .args(["-p", &child.id().to_string()])
        .output()
        .unwrap();
    let after = schedstat(child.id());
    let enclosing = begin.elapsed().as_nanos() as u64;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let [life] = list(&report, "lives") else {
        panic!("{}", report["lives"])
    };
    let outside = enclosing - number(life, "life_ns");
    let ran = number(life, "own_ns") + number(life, "calls_ns") + number(life, "exit_ns");
    for (what, told, counted) in [
        ("on a CPU", ran, after.0 - before.0),
        (
            "waiting for one",
            number(life, "runq_ns"),
            after.1 - before.1,
        ),
    ] {
        // The books are written at ticks and switches.
        assert!(
            told <= counted + slack() && counted <= told + outside + slack(),
            "{what}: {told} ns, by schedstat {counted}, {outside} ns of them outside of the watch"
        );
    }
}

#[test]
fn a_sleep_is_what_it_took() {
    let told = scenario("sleep", 200);
    about(told.path(COMM, "blocked"), 200 * MS, "asleep on the path");
    assert!(told.verdict().contains("nanosleep"), "{}", told.verdict());
}

/// From 6.12 on who goes to sleep beside another one stays in its run queue for a while, and the scheduler's books take
/// it for waiting from when it is moved to another CPU.
#[test]
fn a_sleep_is_sleep_whatever_cpu_the_thread_is_taken_to() {
    if std::thread::available_parallelism().map_or(1, |cpus| cpus.get()) < 2 {
        return not_run("threads are not taken to another CPU where there is one alone");
    }
    let told = scenario("moved", 1000);
    // What is waited for as it is moved is a sleep, too.
    let blocked = told.life("moved", "blocked_ns");
    assert!(
        blocked + 20 * MS >= 1000 * MS,
        "{blocked} ns of sleeps of 1 s"
    );
}

#[test]
fn the_slow_middle_of_a_pipeline_is_what_it_took() {
    // Emulated, to start three programs takes a second of itself.
    let told = scenario("pipeline", if slow() { 2000 } else { 400 });
    let (middle, all) = (told.path("middle", "own"), told.path_of_all());
    assert!(
        middle * 10 >= all * 8 || slow() && middle * 2 >= all,
        "{middle} of {all}"
    );
    assert!(told.verdict().contains("middle"), "{}", told.verdict());
    // Those beside it waited, and are not what it took.
    for beside in ["front", "back"] {
        let ns = told.path(beside, "blocked") + told.path(beside, "own");
        assert!(ns * 10 <= all + slack(), "{beside}: {ns} of {all}");
    }
}

#[test]
fn the_thread_that_ends_last_is_what_it_took() {
    let told = scenario("threads", 400);
    about(told.path("long", "own"), 200 * MS, "computing");
    about(told.path("long", "blocked"), 200 * MS, "asleep");
    assert_eq!(
        told.path("short", "blocked"),
        0,
        "nobody waited for it in the end"
    );
}

#[test]
fn an_event_loop_rests_where_it_waits_for_events() {
    let told = scenario("server", 2000);
    let (rest, blocked) = (
        told.life("server", "rest_ns"),
        told.life("server", "blocked_ns"),
    );
    assert!(rest * 10 >= blocked * 6, "{rest} of {blocked}");
    let activity = list(&told.report, "activities")
        .iter()
        .find(|row| row["comm"] == "server")
        .unwrap_or_else(|| panic!("no activities: {}", told.report["activities"]));
    assert_eq!(activity["call"], "poll");
    let count = number(activity, "count");
    assert!(if slow() { count >= 3 } else { count >= 20 }, "{activity}");
    // One in four is held up for 20 ms, the others compute for 1 ms.
    // (On a busy machine the slowest of all may have waited for a CPU.)
    let slow_one = &activity["slow"];
    let held_up = number(slow_one, "blocked_ns") + number(slow_one, "runq_ns");
    // (Emulated, one that computes may be the slowest.)
    assert!(
        slow() || held_up * 2 > number(slow_one, "total_ns"),
        "{activity}"
    );
    assert!(number(&activity["all"], "blocked_ns") > 0, "{activity}");
    assert!(number(activity, "p99_ns") >= 15 * MS, "{activity}");
    let parts = ["own_ns", "calls_ns", "blocked_ns", "runq_ns"];
    let sum: u64 = parts
        .iter()
        .map(|part| number(&activity["all"], part))
        .sum();
    assert_eq!(number(&activity["all"], "total_ns"), sum);
    // Held up is not at rest.
    let links = list(&told.report, "chain_links");
    let sleeps = links
        .iter()
        .filter(|link| link["comm"] == "server" && link["kind"] == "sleep");
    for link in sleeps {
        let call = link["call"].as_str().unwrap_or("");
        assert!(
            call != "nanosleep" && call != "clock_nanosleep" || link["rests"] == false,
            "{link}"
        );
    }
}

/// A thread of a pool has the loop's name and sleeps in the call that the loop sleeps in as well: each sleep
/// says whose it is.
#[test]
fn a_loop_is_told_from_the_threads_of_its_pool() {
    let told = scenario("pool", 2000);
    let links = list(&told.report, "chain_links");
    let slept = |in_loop: bool| {
        let rows = list(&told.report, "chains").iter().filter(|row| {
            let link = &links[number(row, "first") as usize];
            let call = link["call"].as_str().unwrap_or_default();
            link["comm"] == "server"
                && call.ends_with("nanosleep")
                && (link["in_loop"] == true) == in_loop
        });
        rows.fold((0, 0), |sum, row| {
            (
                sum.0 + number(row, "count"),
                sum.1 + number(row, "total_ns"),
            )
        })
    };
    let ((loop_count, loop_ns), (pool_count, pool_ns)) = (slept(true), slept(false));
    // Of each four events one in the loop for 20 ms, and all of them in the pool for 10.
    assert!(
        loop_count > 0 && loop_ns >= loop_count * 20 * MS,
        "{loop_count} {loop_ns}"
    );
    assert!(pool_ns >= pool_count * 10 * MS, "{pool_count} {pool_ns}");
    assert!(pool_count >= loop_count * 3, "{pool_count} {loop_count}");
}

/// Where each call is shown as it ends, the thread gets its own name anew each time: its work goes on.
#[test]
fn an_event_loop_whose_calls_are_shown_rests_as_others_do() {
    let program = program("lives").display().to_string();
    let command = [program, "server".to_owned(), "2000".to_owned()];
    let run = run(&["--capture=splice", "--call-site"], &command);
    let activities = list(&run.report, "activities");
    let of_server = activities.iter().find(|row| row["comm"] == "server");
    let activity = of_server.unwrap_or_else(|| panic!("no activities: {}", run.report["lives"]));
    assert_eq!(activity["call"], "poll");
    let count = number(activity, "count");
    assert!(if slow() { count >= 3 } else { count >= 20 }, "{activity}");
}

#[test]
fn who_is_stopped_is_neither_blocked_nor_at_rest() {
    let told = scenario("stopped", 200);
    let stopped = told.life("stopped", "stopped_ns");
    assert!(stopped >= 190 * MS, "{stopped}");
    assert!(told.life("stopped", "blocked_ns") <= slack());
}

#[test]
fn commands_are_told_with_their_arguments() {
    let told = scenario("sleep", 1);
    let life = list(&told.report, "lives")
        .iter()
        .find(|life| life["comm"] == COMM)
        .expect("its life");
    let command = life["command"].as_str().expect("a command line");
    assert!(command.ends_with("lives sleep 1"), "{command}");
}

/// Those that come when rows are rare are told by their control group, and each of them is.
#[test]
fn more_processes_than_there_are_rows_are_told_by_control_group() {
    // Of each there are two: before its exec, and from it on.
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done";
    let run = run(&["--capture=sleeps"], &["sh", "-c", script]);
    let lives = list(&run.report, "lives").iter();
    let of: Vec<&Value> = lives.filter(|life| life["comm"] == "true").collect();
    let execs: u64 = of.iter().map(|life| number(life, "execs")).sum();
    assert_eq!(execs, 2000);
    let (shared, own): (Vec<&Value>, Vec<&Value>) =
        of.into_iter().partition(|life| number(life, "pid") == 0);
    assert!(own.len() > 1000, "{}", own.len());
    // All are in one group.
    assert_eq!(shared.len(), 1, "{shared:?}");
    assert_eq!(shared[0]["cgroup"], own[0]["cgroup"]);
    assert_eq!(shared[0]["unit"], own[0]["unit"]);
    assert!(!run.notes().contains(&"lives_shared".to_owned()));
}

#[test]
fn the_end_of_one_that_is_watched_for_a_while_is_not_what_it_is_about() {
    let Some(_alone) = alone() else { return };
    let sleep = |seconds: &str| {
        let mut command = std::process::Command::new("sleep");
        command.arg(seconds).spawn().expect("sleep starts")
    };
    let (mut ends, mut stays) = (sleep("2"), sleep("60"));
    let output = std::process::Command::new(debox())
        .args(["attach", "--json", "-o", "-", "-d", "4s", "-p"])
        .arg(format!("{},{}", ends.id(), stays.id()))
        .output()
        .expect("debox starts");
    stays.kill().expect("ours");
    stays.wait().expect("ours");
    ends.wait().expect("ours");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert!(report["critical_path"].is_null(), "{report}");
    let verdict = report["verdict"].to_string();
    assert!(!verdict.contains("\"Of "), "{verdict}");
}

/// What debox does to end a command is no doing of the program's.
#[test]
fn who_sleeps_when_debox_ends_it_has_waited_for_nobody() {
    let Some(_alone) = alone() else { return };
    for capture in ["--capture=boundary", "--capture=sleeps"] {
        let output = std::process::Command::new(debox())
            .args([
                "run", capture, "-d", "300ms", "--json", "-o", "-", "--", "sleep", "50",
            ])
            .output()
            .expect("debox starts");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let links = list(&report, "chain_links");
        let ended = links.iter().position(|link| link["kind"] == "ended");
        let ended = ended.unwrap_or_else(|| panic!("{capture}: {links:?}"));
        assert!(
            (links.iter()).any(|link| link["parent"] == ended && link["call"] == "clock_nanosleep"),
            "{capture}: {links:?}"
        );
        let by_us = |row: &&Value| row["comm"] == "debox" && row["culprit_call"] == "kill";
        assert_eq!(list(&report, "culprits").iter().find(by_us), None);
        let verdict = report["verdict"][0].as_str().expect("a verdict");
        assert!(
            verdict.contains("nanosleep ← not over when debox ended it"),
            "{verdict}"
        );
    }
}

/// Who looks every now and then is idle, from the sleep on that it was in as its watch began.
#[test]
fn who_looks_now_and_then_rests_from_the_first_sleep_on() {
    let Some(_alone) = alone() else { return };
    let mut program = (std::process::Command::new(program("lives")).args(["looks", "300"]))
        .spawn()
        .expect("lives starts");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let output = std::process::Command::new(debox())
        .args(["attach", "--json", "-o", "-", "-d", "2s", "-p"])
        .arg(program.id().to_string())
        .output()
        .expect("debox starts");
    program.kill().expect("ours");
    program.wait().expect("ours");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let links = list(&report, "chain_links");
    let ended: Vec<&Value> = (links.iter())
        .filter(|link| {
            let by = link["parent"].as_u64().map(|at| &links[at as usize]);
            link["call"] == "poll" && by.is_some_and(|by| by["kind"] != "not_over")
        })
        .collect();
    assert!(!ended.is_empty(), "{report}");
    for link in ended {
        assert_eq!(link["rests"], true, "{link} {}", report["verdict"]);
    }
}
