// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is it told rightly what a sleep waited for, link by link?
//!
//! In each scenario of tests/truth/chains.c it is known who waits for whom, and
//! for how long. What a busy machine adds is waiting for a CPU, and is told as that.

use debox_tests::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

const MS: u64 = 1_000_000;

struct Chain {
    /// First to root, each as "KIND comm call label".
    links: Vec<String>,
    /// The second link tells of who held what the first one waited for.
    held: bool,
    total_ns: u64,
}

fn chains(report: &Value) -> Vec<Chain> {
    let list = |name: &str| report[name].as_array().cloned().unwrap_or_default();
    let (links, sites) = (list("chain_links"), list("sites"));
    let text = |link: &Value| {
        let words = [
            link["kind"].as_str(),
            link["comm"].as_str(),
            link["call"].as_str(),
            link["site"]
                .as_u64()
                .and_then(|site| sites[site as usize]["label"].as_str()),
        ];
        let words: Vec<&str> = words
            .into_iter()
            .flatten()
            .filter(|w| !w.is_empty())
            .collect();
        words.join(" ")
    };
    let mut out = Vec::new();
    for row in list("chains") {
        let mut path = Vec::new();
        let mut next = row["first"].as_u64();
        while let Some(at) = next {
            let link = &links[at as usize];
            path.push(text(link));
            next = link["parent"].as_u64();
        }
        let first = &links[number(&row, "first") as usize];
        out.push(Chain {
            links: path,
            held: first["held"] == true,
            total_ns: number(&row, "total_ns"),
        });
    }
    out
}

fn scenario(name: &str, ms: u64) -> Vec<Chain> {
    let run = chains_run(name, ms);
    run.check_explained();
    chains(&run.report)
}

/// A line each, for whoever has to find out what was not so.
fn listed(chains: &[Chain]) -> String {
    let lines = chains
        .iter()
        .map(|c| format!("{:>12} {}", c.total_ns, c.links.join(" <- ")));
    lines.collect::<Vec<_>>().join("\n")
}

/// Of the chains that begin with `first`: in all, that lead on through `then`,
/// and that end where the machine was busy or knowledge ends.
fn shares(chains: &[Chain], first: &str, then: &[&str]) -> (u64, u64, u64) {
    let (mut all, mut so, mut busy) = (0, 0, 0);
    for chain in chains.iter().filter(|chain| chain.links[0] == first) {
        all += chain.total_ns;
        let root = chain.links.last().map_or("", String::as_str);
        if chain.links[1..]
            .iter()
            .map(String::as_str)
            .eq(then.iter().copied())
        {
            so += chain.total_ns;
        } else if root.starts_with("runq")
            || root.starts_with("earlier")
            || root.starts_with("unseen")
            // What its host takes from an emulated machine counts as whoever ran then.
            || (slow() && root.starts_with("ran"))
        {
            busy += chain.total_ns;
        }
    }
    (all, so, busy)
}

/// What may be told otherwise: on a machine that is emulated a wake-up takes
/// milliseconds.
fn slack(all: u64) -> u64 {
    if slow() { all / 4 } else { (all / 20).max(MS) }
}

/// The waiter waited `due` or longer, for what `then` says and for CPUs.
#[track_caller]
fn leads(chains: &[Chain], first: &str, then: &[&str], due: u64) {
    let (all, so, busy) = shares(chains, first, then);
    let every = || listed(chains);
    // Where it stands still, part of the time is over before the waiter sleeps.
    let least = if slow() { due / 2 } else { due - MS };
    assert!(all >= least, "{first}: {all} ns of {due} ns:\n{}", every());
    let slack = slack(all);
    assert!(
        so + busy + slack >= all,
        "{first}: {all} ns, of it through {then:?} {so} ns, busy {busy} ns:\n{}",
        every()
    );
    assert!(
        slow() || so + slack >= due || busy > all / 4,
        "{first}: {so} ns of {due} ns through {then:?}:\n{}",
        every()
    );
    assert!(so > 0, "{first}: nothing through {then:?}:\n{}", every());
}

const TIMER: &str = "timer";

/// Of the time in chains that begin with `first`, and lead on at all: how much is behind
/// who held what was waited for, in percent.
fn held_percent(chains: &[Chain], first: &str) -> u64 {
    let (mut all, mut held) = (0, 0);
    for chain in chains.iter().filter(|chain| chain.links[0] == first) {
        all += chain.total_ns;
        held += if chain.held { chain.total_ns } else { 0 };
    }
    100 * held / all.max(1)
}

#[test]
fn a_mutex_whose_holder_waits_for_a_pipe() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("mutex-pipe", 60);
    let sleeps = "sleep writer clock_nanosleep nanosleep";
    leads(
        &chains,
        "sleep waiter futex futex",
        &["sleep holder read pipe-read", sleeps, TIMER],
        58 * MS,
    );
    leads(
        &chains,
        "sleep holder read pipe-read",
        &[sleeps, TIMER],
        58 * MS,
    );
    assert!(held_percent(&chains, "sleep waiter futex futex") >= 90);
}

/// Three links long, and the last one's time is what that thread's own clock says.
#[test]
fn a_mutex_whose_holder_waits_for_who_flushes_files() {
    let Some(_alone) = alone() else { return };
    // Kernel threads are followed from the first time on that they wake somebody.
    assert!(
        (0..5).any(|_| flushes_lead_to_a_root()),
        "the flushes are not told whole, or lead to no root, five times"
    );
}

/// Whether three quarters of the flushing do, and it is told whole; all else holds each time.
fn flushes_lead_to_a_root() -> bool {
    let run = chains_run("mutex-pipe-flush", 150);
    run.check_explained();
    let chains = chains(&run.report);
    let said = String::from_utf8_lossy(&run.output.stdout);
    let flushed_ns: u64 = said
        .strip_prefix("flushed ")
        .and_then(|words| words.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or_else(|| panic!("the program said {said:?}"));
    let lines = || format!("flushed for {flushed_ns} ns\n{}", listed(&chains));
    // Its sleeps in fsync, those of them that lead to a root, those by more ways than are kept
    // (of which there are many to a disk), and its running in calls.
    let (mut all, mut flush, mut rooted, mut slept, mut ran) = (0, 0, 0, 0, 0);
    for chain in &chains {
        let links: Vec<&str> = chain.links.iter().map(String::as_str).collect();
        if links[0] != "sleep waiter futex futex" {
            continue;
        }
        all += chain.total_ns;
        if links.get(1) != Some(&"sleep holder read pipe-read") {
            continue;
        }
        match links[2..] {
            [flushes, .., root] if flushes.starts_with("sleep writer fsync") => {
                flush += chain.total_ns;
                let unknown = ["earlier", "unseen", "woken"];
                if !unknown.iter().any(|kind| root.starts_with(kind)) {
                    rooted += chain.total_ns;
                }
            }
            ["slept writer"] => slept += chain.total_ns,
            [runs, ..] if runs.starts_with("ran") => ran += chain.total_ns,
            _ => {}
        }
    }
    assert!(flush + slept <= flushed_ns + slack(all), "{}", lines());
    // There the file system's own code takes most of the time, and every wake-up milliseconds.
    if slow() {
        assert!(flush > 0, "{}", lines());
        return true;
    }
    // Of a file system in memory there is nothing to wait for; and of a writer that many
    // others kept from a CPU, the holder's past can end within the wait (docs/chains.md).
    let due_ns = flushed_ns.min(all).saturating_sub(busy_of(&chains));
    let found = flush + slept + ran + slack(all) >= due_ns && rooted >= flush - flush / 4;
    if !found {
        eprintln!("{rooted} of {flush} ns have a root: {}", lines());
    }
    found
}

/// Of the waiter's time: what waits for CPUs explain.
fn busy_of(chains: &[Chain]) -> u64 {
    let busy = |chain: &&Chain| {
        let root = chain.links.last().map_or("", String::as_str);
        chain.links[0] == "sleep waiter futex futex" && root.starts_with("runq")
    };
    chains.iter().filter(busy).map(|chain| chain.total_ns).sum()
}

/// A disk's interrupts that come meanwhile end none of them.
#[test]
fn sleeps_that_a_timer_ends_beside_a_busy_disk() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("timers-beside-disk", 500);
    leads(
        &chains,
        "sleep waiter clock_nanosleep nanosleep",
        &[TIMER],
        490 * MS,
    );
}

/// A wait that lasted as long as it may is none for a timer: what it waited for had not come.
#[test]
fn a_time_limit_is_not_what_was_waited_for() {
    let Some(_alone) = alone() else { return };
    let run = chains_run("time-limits", 110);
    run.check_explained();
    let chains = chains(&run.report);
    let waits = |call, label, root: &[&str], due_ms| {
        leads(
            &chains,
            &format!("sleep waiter {call} {label}"),
            root,
            due_ms * MS,
        );
    };
    waits("read", "timerfd", &[TIMER], 109);
    waits("futex", "futex", &["limit"], 109);
    waits("recvfrom", "unix-recv", &["limit"], 109);
    let (all, limit, busy) = shares(&chains, "sleep waiter poll poll", &["limit"]);
    let (_, answer, _) = shares(&chains, "sleep waiter poll poll", &["ran_user answerer"]);
    assert!(
        limit > all / 2 && limit + answer + busy + slack(all) >= all,
        "{}",
        listed(&chains)
    );
}

#[test]
fn a_condition_that_is_signalled_after_computing() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("condition", 30);
    leads(
        &chains,
        "sleep waiter futex futex",
        &["ran_user computer"],
        29 * MS,
    );
    assert!(held_percent(&chains, "sleep waiter futex futex") <= 10);
}

#[test]
fn a_convoy_ends_in_what_each_holder_does() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("convoy", 10);
    let waits = chains.iter().filter(|chain| {
        chain.links[0].starts_with("sleep convoy-") && chain.links[0].ends_with("futex futex")
    });
    let (mut all, mut timers, mut busy, mut longest) = (0, 0, 0, 0);
    for chain in waits {
        all += chain.total_ns;
        longest = longest.max(chain.links.len());
        let root = chain.links.last().map_or("", String::as_str);
        if root == TIMER {
            timers += chain.total_ns;
        } else if root.starts_with("runq") || slow() && root.starts_with("ran") {
            busy += chain.total_ns;
        }
    }
    // 1 + 2 + ... + 9 turns of 10 ms.
    assert!(all >= 440 * MS, "{all} ns");
    assert!(
        timers + busy + slack(all).max(all / 5) >= all && timers >= 200 * MS,
        "{timers} of {all} ns end in a timer, {busy} at a CPU"
    );
    // The last one waits for the one before it, and that one did, too.
    assert!(longest >= 9, "{longest} links");
}

#[test]
fn a_futex_with_priority_inheritance() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("priority", 40);
    leads(
        &chains,
        "sleep waiter futex futex-pi",
        &["sleep pi-holder clock_nanosleep nanosleep", TIMER],
        38 * MS,
    );
    assert!(held_percent(&chains, "sleep waiter futex futex-pi") >= 90);
}

#[test]
fn a_file_lock_of_another_process() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("file-lock", 40);
    leads(
        &chains,
        "sleep waiter flock flock",
        &["sleep locker clock_nanosleep nanosleep", TIMER],
        38 * MS,
    );
    assert!(held_percent(&chains, "sleep waiter flock flock") >= 90);
}

/// Who makes something in a directory has its inode's lock, until a server in user space
/// has answered.
#[test]
fn a_directory_of_another_process() {
    let Some(_alone) = alone() else { return };
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("NOT RUN: a_directory_of_another_process needs /dev/fuse");
        return;
    }
    let chains = scenario("directory-lock", 40);
    let first = "sleep waiter mkdir inode-lock";
    leads(
        &chains,
        first,
        &[
            "sleep holder mkdir fuse",
            "sleep server clock_nanosleep nanosleep",
            TIMER,
        ],
        36 * MS,
    );
    assert!(held_percent(&chains, first) >= 90);
}

#[test]
fn a_server_on_this_machine() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("loopback", 40);
    leads(
        &chains,
        "sleep waiter recvfrom sock-recv",
        &["sleep server clock_nanosleep nanosleep", TIMER],
        3 * 38 * MS,
    );
    assert!(held_percent(&chains, "sleep waiter recvfrom sock-recv") == 0);
}

#[test]
fn a_child_that_sleeps_and_computes() {
    let Some(_alone) = alone() else { return };
    let chains = scenario("child", 40);
    let (all, slept, _) = shares(
        &chains,
        "sleep waiter wait4 wait-child",
        &["sleep child clock_nanosleep nanosleep", TIMER],
    );
    let (_, computed, busy) = shares(
        &chains,
        "sleep waiter wait4 wait-child",
        &["ran_user child"],
    );
    let least = if slow() { 40 * MS } else { 78 * MS };
    assert!(all >= least, "{all} ns");
    assert!(
        slow() || slept >= 38 * MS || busy > all / 4,
        "slept {slept} ns of {all} ns"
    );
    assert!(computed > 0, "computed {computed} ns of {all} ns");
    assert!(
        slept + computed + busy + slack(all) >= all,
        "{slept} + {computed} + {busy} of {all} ns"
    );
}

/// What became of the time that "waiter" slept in futex(), whose worker's thread is
/// called "worker".
struct Led {
    all: u64,
    /// It leads to the worker, over whatever threads its runtime put between.
    worker: u64,
    /// ... which computed.
    computed: u64,
    /// It is known no further: more stretches than are remembered, where the CPUs are
    /// busy, or a thread that the runtime started just then.
    ended: u64,
    lines: Vec<String>,
}

fn led(command: &[String]) -> Led {
    let run = run(&[], command);
    run.check_explained();
    let chains = chains(&run.report);
    let mut led = Led {
        all: 0,
        worker: 0,
        computed: 0,
        ended: 0,
        lines: chains
            .iter()
            .map(|c| format!("{} {}", c.total_ns, c.links.join(" <- ")))
            .collect(),
    };
    for chain in chains
        .iter()
        .filter(|chain| chain.links[0] == "sleep waiter futex futex")
    {
        led.all += chain.total_ns;
        let root = chain.links.last().map_or("", String::as_str);
        if root.ends_with(" worker") {
            led.worker += chain.total_ns;
            if root.starts_with("ran") {
                led.computed += chain.total_ns;
            }
        } else if root.starts_with("earlier") || root.starts_with("runq") {
            led.ended += chain.total_ns;
        }
    }
    led
}

/// Nearly all of the wait leads to the worker. A runtime hands over through whichever
/// of its threads it likes, now and then through a new one: so in one run of five.
#[track_caller]
fn leads_to_the_worker(command: &[String], ms: u64) {
    let mut tries = (0..5).map(|_| led(command));
    let good = |led: &Led| {
        let Led { all, worker, .. } = *led;
        // A runtime's threads also wait for it to start.
        worker + led.ended + slack(all).max(all / 5) >= all
            && worker >= all / 10
            && (led.computed > 0 || slow())
    };
    let first = tries.next().expect("five");
    assert!(
        first.all >= ms * MS / 2,
        "{}: {:#?}",
        first.all,
        first.lines
    );
    assert!(
        good(&first) || tries.any(|led| good(&led)),
        "{} of {} ns, {} known no further: {:#?}",
        first.worker,
        first.all,
        first.ended,
        first.lines
    );
}

fn source(name: &str) -> String {
    root().join("tests/truth").join(name).display().to_string()
}

/// The interpreter itself: a shim in its place would be a shell script.
#[test]
fn pythons_lock_leads_to_the_thread_that_computes() {
    let Some(_alone) = alone() else { return };
    let python = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .expect("python3 runs");
    let python = String::from_utf8_lossy(&python.stdout).trim().to_owned();
    leads_to_the_worker(&[python, source("gil.py"), "100".into()], 100);
}

#[test]
fn a_channel_of_go_leads_to_the_thread_that_computes() {
    let Some(_alone) = alone() else { return };
    let program = program("gochannel").display().to_string();
    leads_to_the_worker(&[program, "100".into()], 100);
}

/// With a JDK, which setup does not bring: it is large.
#[test]
fn a_parked_thread_of_java_leads_to_the_thread_that_computes() {
    let Some(_alone) = alone() else { return };
    if Command::new("javac").arg("-version").output().is_err() {
        not_run("Java's parks: no JDK is installed");
        return;
    }
    leads_to_the_worker(&["java".into(), source("Park.java"), "200".into()], 200);
}

/// Nobody watches the one that writes: it is followed since it wakes the reader.
#[test]
fn a_waker_that_is_not_watched() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let mut outsider = Command::new(program("chains"))
        .args(["writer", "400"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = Command::new(program("chains"))
        .args(["reader", "0"])
        .stdin(outsider.stdout.take().unwrap())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(debox())
        .args(["attach", "--json", "-d", "2s", "-o"])
        .arg(file.path())
        .arg("--socket")
        .arg(broker.socket())
        .args(["-p", &reader.id().to_string()])
        .output()
        .unwrap();
    for child in [&mut outsider, &mut reader] {
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let chains = chains(&report);
    let first = "sleep waiter read pipe-read";
    let (all, so, busy) = shares(
        &chains,
        first,
        &["sleep outsider clock_nanosleep nanosleep", TIMER],
    );
    let lines: Vec<String> = chains
        .iter()
        .map(|c| format!("{} {}", c.total_ns, c.links.join(" <- ")))
        .collect();
    // Emulated, most of the two seconds go by before it is bound.
    assert!(all >= if slow() { 200 } else { 500 } * MS, "{lines:#?}");
    // The first wake-ups come before it is followed; and who waits for a CPU, or stands still
    // with the machine, does not sleep.
    assert!(
        so + busy >= all - all / 4 && so >= (all - busy) / 2 && so >= 100 * MS,
        "{so} of {all} ns: {lines:#?}"
    );
}

/// What the sleeps of a program's own records waited for, as it reads them itself.
fn inband(command: &mut Command) -> Vec<Value> {
    lines(&command.output().expect("inband runs"))
}

/// Links as "comm nr label".
fn link_words(sleep: &Value) -> Vec<String> {
    let links = sleep["links"].as_array().expect("links");
    let words = |link: &Value| {
        let text = |field: &str| link[field].as_str().unwrap_or("?").to_owned();
        format!("{} {} {}", text("comm"), link["nr"], text("label"))
    };
    links.iter().map(words).collect()
}

#[test]
fn a_record_says_what_its_sleep_waited_for() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let ms = if slow() { 400 } else { 80 };
    let run = |options: &[&str]| {
        let mut command = Command::new(program("inband"));
        command.args(options).args(["mutex-pipe", &ms.to_string()]);
        inband(command.env("DEBOX_SOCKET", broker.socket()))
    };
    // On a busy machine a thread may begin late, and has less to wait for then.
    let least = if slow() {
        ms * MS / 2
    } else {
        ms * MS - 4 * MS
    };
    let mut explained = 0;
    let mut sleeps = Vec::new();
    for _ in 0..3 {
        sleeps = run(&[]);
        let [sleep] = sleeps.as_slice() else {
            panic!("not one place: {sleeps:?}");
        };
        explained = number(sleep, "max_ns") * number(sleep, "permille") / 1000;
        if explained >= least {
            break;
        }
    }
    let sleep = &sleeps[0];
    assert_eq!(sleep["told"], 1, "{sleep}");
    assert!(explained >= least, "{explained} ns: {sleep}");
    let words = link_words(sleep);
    assert_eq!(
        words[..3],
        [
            "waiter 202 futex",
            "holder 0 pipe-read",
            "writer 230 nanosleep"
        ],
        "{sleep}"
    );
    // DEBOX_CHAIN_TIMER is the root.
    assert_eq!(sleep["links"][3]["kind"], 8, "{sleep}");
    assert_eq!(words.len(), 4, "{sleep}");
    assert_eq!(sleep["links"][0]["held"], 1, "{sleep}");
    assert_eq!(sleep["links"][1]["held"], 0, "{sleep}");
    assert_eq!(
        sleep["text"],
        "waiter in futex: futex, held by ← holder in read: pipe-read ← writer in \
         clock_nanosleep: nanosleep ← a timer",
    );
    // Who does not ask is told nothing, and has no way to read.
    for sleep in run(&["-p"]) {
        assert_eq!((&sleep["told"], &sleep["chain"]), (&0.into(), &0.into()));
        assert_eq!(sleep["read"], -libc::EOPNOTSUPP, "{sleep}");
    }
}

#[test]
fn a_record_does_not_name_other_users() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let read = |nobody: bool| {
        let mut command = Command::new(program("inband"));
        command.args(["stdin", "3"]).stdin(Stdio::piped());
        command.env("DEBOX_SOCKET", broker.socket());
        if nobody {
            as_nobody(&mut command);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("inband runs");
        let mut to = child.stdin.take().expect("a pipe");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut sleeps = Vec::new();
        for line in said.lines() {
            let line = line.expect("inband writes");
            if line == "{}" {
                while !all_sleep(child.id()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(300));
                to.write_all(b"x").expect("inband reads");
            } else {
                sleeps.push(serde_json::from_str::<Value>(&line).expect("JSON"));
            }
        }
        assert!(child.wait().expect("inband ends").success());
        sleeps
    };
    for nobody in [true, false] {
        let sleeps = read(nobody);
        assert_eq!(sleeps.len(), 3, "{sleeps:?}");
        for (i, sleep) in sleeps.iter().enumerate() {
            let links = sleep["links"].as_array().expect("links");
            assert_eq!(links[0]["comm"], "inband", "{sleep}");
            assert_eq!(links[0]["label"], "pipe-read", "{sleep}");
            // At first not followed, or its sleep began before (DEBOX_CHAIN_WOKEN, _EARLIER).
            let kind = number(&links[1], "kind");
            assert!(kind == 1 || (i < 2 && [11, 12].contains(&kind)), "{sleep}");
            assert_eq!(links[1]["withheld"], i32::from(nobody), "{sleep}");
            let told = (&links[1]["comm"], &links[1]["tid"]);
            if nobody {
                assert_eq!(told, (&"".into(), &0.into()), "{sleep}");
                // Of a sleep the group of its label, where that has a name by then.
                let class = links[1]["label"].as_str().unwrap_or_default();
                let known = if kind == 1 { "idle" } else { "" };
                assert!(class == known || class.is_empty() && i < 2, "{sleep}");
                assert_eq!(links[1]["site"], u32::MAX, "{sleep}");
                let text = sleep["text"].as_str().unwrap_or_default();
                assert!(text.contains("another user's task"), "{sleep}");
            } else {
                assert_ne!(links[1]["comm"], "", "{sleep}");
                assert_ne!(links[1]["tid"], 0, "{sleep}");
            }
        }
    }
}

/// It has no address space any more when it wakes its parent: nothing then says that it was open
/// to its user.
#[test]
fn a_child_that_ends_has_its_name_for_an_ordinary_user() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let turns = if slow() { 2_000 } else { 100_000 };
    // It never sleeps, and has never been looked at by who waits for it.
    let script = format!("(i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done); exit 0");
    let report = report_by(true, &broker, &["sh", "-c", &script]);
    let chains = chains(&report);
    let waited = chains
        .iter()
        .filter(|chain| chain.links[0] == "sleep sh wait4 wait-child");
    let (mut all, mut named) = (0, 0);
    for chain in waited {
        all += chain.total_ns;
        let what = chain.links.get(1).and_then(|link| link.split_once(' '));
        named += match what {
            Some((_, who)) if who.starts_with("sh") => chain.total_ns,
            _ => 0,
        };
    }
    assert!(all > MS, "{}", listed(&chains));
    assert!(
        named * 10 > all * 9,
        "{named} of {all} ns:\n{}",
        listed(&chains)
    );
}

/// Of the time that "waiter" waited for what `computer` ran: all, and what is told with
/// the function in which that is.
fn told_by_function(run: &Run, computer: &str, function: &str) -> (u64, u64) {
    let list = |name: &str| run.report[name].as_array().cloned().unwrap_or_default();
    let (links, stacks) = (list("chain_links"), list("stacks"));
    let (mut all, mut told) = (0, 0);
    for row in list("chains") {
        let first = &links[number(&row, "first") as usize];
        let mut root = first;
        while let Some(next) = root["parent"].as_u64() {
            root = &links[next as usize];
        }
        let ran = ["ran_user", "ran"].contains(&root["kind"].as_str().unwrap_or_default());
        if first["comm"] != "waiter" || root["comm"] != computer || !ran {
            continue;
        }
        all += number(&row, "total_ns");
        let Some(stack) = root["stack"].as_u64() else {
            continue;
        };
        let stack = &stacks[stack as usize];
        let frame = &stack["frames"][number(stack, "site_frame") as usize];
        assert_eq!(frame["function"], function, "{root} {stack}");
        told += number(&row, "total_ns");
    }
    (all, told)
}

/// It wakes who waits once in its life, and nobody has seen it at that place before.
#[test]
fn who_computes_is_named_by_its_function() {
    let Some(_alone) = alone() else { return };
    let ms = if slow() { 2000 } else { 200 };
    let command = [
        program("chains").display().to_string(),
        "condition".to_owned(),
        ms.to_string(),
    ];
    for options in [["--call-site"], ["--stacks"]] {
        let good = |(all, told): &(u64, u64)| told + slack(*all) >= *all && *told > 0;
        // On a busy machine it may be off the CPU more often than is remembered.
        let mut seen = Vec::new();
        while seen.len() < 5 && !seen.last().is_some_and(good) {
            let run = run(&options, &command);
            run.check_explained();
            seen.push(told_by_function(&run, "computer", "signaller"));
        }
        assert!(seen.last().is_some_and(good), "{options:?}: {seen:?}");
    }
    // Who does not ask is told nothing.
    let (_, told) = told_by_function(&run(&[], &command), "computer", "signaller");
    assert_eq!(told, 0);
}

/// The runtime wakes from a stack of its own: no place is better than one of its own.
#[test]
fn a_runtime_is_not_named_for_its_program() {
    let Some(_alone) = alone() else { return };
    let command = [program("gochannel").display().to_string(), "100".into()];
    let run = run(&["--stacks"], &command);
    run.check_explained();
    let list = |name: &str| run.report[name].as_array().cloned().unwrap_or_default();
    let stacks = list("stacks");
    for link in list("chain_links") {
        let Some(stack) = link["stack"].as_u64() else {
            continue;
        };
        let stack = &stacks[stack as usize];
        let frame = &stack["frames"][number(stack, "site_frame") as usize];
        let function = frame["function"].as_str().unwrap_or_default();
        assert!(function.starts_with("main."), "{link}: {stack}");
    }
}

/// Of the rows of who held the waiter's mutex: their time, and what is told with the
/// function in which the holder was.
fn holders_function(run: &Run, holder: &str, call: Option<&str>, function: &str) -> (u64, u64) {
    let list = |name: &str| run.report[name].as_array().cloned().unwrap_or_default();
    let stacks = list("stacks");
    let (mut all, mut told) = (0, 0);
    for row in list("culprits") {
        if row["role"] != "holder" || row["comm"] != holder || row["label"] != "futex" {
            continue;
        }
        all += number(&row, "total_ns");
        let Some(stack) = row["stack"].as_u64() else {
            continue;
        };
        let stack = &stacks[stack as usize];
        let frame = &stack["frames"][number(stack, "site_frame") as usize];
        if frame["function"] == function && row["culprit_call"].as_str() == call {
            told += number(&row, "total_ns");
        }
    }
    (all, told)
}

#[track_caller]
fn holder_is_told(name: &str, holder: &str, call: Option<&str>, function: &str) {
    let least_ms = if slow() { 4000 } else { 400 };
    let command = |ms: u64| {
        [
            program("chains").display().to_string(),
            name.to_owned(),
            ms.to_string(),
        ]
    };
    for option in ["--call-site", "--stacks"] {
        let mut seen = Vec::new();
        let good = |(all, told): &(u64, u64)| told + slack(*all) >= *all && *told > 0;
        while seen.len() < 5 && !seen.last().is_some_and(good) {
            // The unwind tables of a program that has just been started take a moment, longer where others compute.
            let run = run(&[option], &command(least_ms << seen.len()));
            run.check_sound();
            seen.push(holders_function(&run, holder, call, function));
        }
        assert!(seen.last().is_some_and(good), "{option}: {seen:?}");
    }
    let without = run(&[], &command(least_ms));
    let (all, told) = holders_function(&without, holder, call, function);
    assert!(all > 0 && told == 0, "{told} of {all} ns, not asked for");
}

#[test]
fn a_holder_that_sleeps_is_told_with_the_place_of_its_call() {
    let Some(_alone) = alone() else { return };
    holder_is_told("mutex-pipe", "holder", Some("read"), "mutex_holder");
}

#[test]
fn a_holder_that_computes_is_told_with_the_place_of_its_last_call() {
    let Some(_alone) = alone() else { return };
    holder_is_told("mutex-computing", "cruncher", None, "crunch");
}
