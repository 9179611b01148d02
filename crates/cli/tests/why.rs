// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox why` name what a program hangs in, whoever holds it, and who is in a
//! deadlock?
//!
//! The programs of tests/truth/stuck.c hang in known ways, and began to before debox
//! was started. What /proc says of the same threads must agree. These need root and BPF.

mod common;

use common::{DEBOX, kernel_or_skip, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Built by `make test-programs`.
fn program() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/truth/stuck");
    assert!(path.exists(), "{}: run make test-programs", path.display());
    path
}

/// A program that hangs, ended when this is dropped (its children end with it).
struct Stuck(Child);

impl Stuck {
    fn start(words: &[&str]) -> Stuck {
        let mut child = Command::new(program())
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{words:?} did not get there");
        Stuck(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its processes and threads, by name.
    fn tid(&self, name: &str) -> u32 {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some((_, tid)) = self.threads().iter().find(|(comm, _)| comm == name) {
                return *tid;
            }
            assert!(Instant::now() < until, "no {name} in {:?}", self.threads());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn threads(&self) -> Vec<(String, u32)> {
        let mut pids = vec![self.pid()];
        let mut found = Vec::new();
        while let Some(pid) = pids.pop() {
            for tid in std::fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
            {
                let at = tid.unwrap().path();
                let read = |name: &str| std::fs::read_to_string(at.join(name)).unwrap_or_default();
                let tid = at.file_name().unwrap().to_str().unwrap().parse().unwrap();
                found.push((read("comm").trim_end().to_owned(), tid));
                let children = read("children");
                pids.extend(
                    children
                        .split_whitespace()
                        .map(|pid| pid.parse::<u32>().unwrap()),
                );
            }
        }
        found
    }

    /// Waits until a thread is asleep in a call.
    fn asleep(&self, name: &str, call: i64) -> u32 {
        let tid = self.tid(name);
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let at = |file: &str| {
                std::fs::read_to_string(format!("/proc/{tid}/{file}")).unwrap_or_default()
            };
            let asleep = at("stat")
                .rsplit(") ")
                .next()
                .unwrap_or_default()
                .starts_with(['S', 'D']);
            if asleep && at("syscall").starts_with(&format!("{call} ")) {
                return tid;
            }
            assert!(
                Instant::now() < until,
                "{name} is not in call {call}: {}",
                at("syscall")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn why(words: &[&str]) -> Value {
    let out = Command::new(DEBOX)
        .env("LC_ALL", "C.UTF-8")
        .arg("why")
        .arg("--json")
        .args(words)
        .output()
        .unwrap();
    assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn thread(answer: &Value, tid: u32) -> &Value {
    answer["threads"]
        .as_array()
        .unwrap()
        .iter()
        .find(|thread| thread["tid"] == tid)
        .unwrap_or_else(|| panic!("no thread {tid}: {answer:#}"))
}

fn words(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

/// Of a thread that waits for one thing: who it waits for, and as what.
#[track_caller]
fn waits(thread: &Value, relation: &str, pid: u32, tid: u32) {
    let on = thread["waits_for"].as_array().unwrap();
    assert_eq!(on.len(), 1, "{thread:#}");
    let told = (words(&on[0]["relation"]), &on[0]["pid"], &on[0]["tid"]);
    assert_eq!(told, (relation, &pid.into(), &tid.into()), "{thread:#}");
}

/// What another reader of the same thread says.
fn wchan(tid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap()
}

/// The sentence, its times replaced.
fn timeless(sentence: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut all = sentence.split(' ').peekable();
    while let Some(word) = all.next() {
        let number = word.starts_with(|c: char| c.is_ascii_digit());
        let unit = all.peek().is_some_and(|unit| {
            ["ns", "µs", "ms", "s"].contains(&unit.trim_end_matches([',', ':', ';']))
        });
        if number && unit {
            out.push("TIME");
            let unit = all.next().unwrap();
            if unit.ends_with(',') {
                out.push(",");
            }
        } else {
            out.push(word);
        }
    }
    out.join(" ").replace(" ,", ",")
}

#[track_caller]
fn sentence_is(answer: &Value, expected: &str) {
    let sentences = answer["sentences"].as_array().unwrap();
    assert_eq!(timeless(words(&sentences[0])), expected, "{answer:#}");
}

#[track_caller]
fn no_deadlock(answer: &Value) {
    assert_eq!(
        answer["deadlocks"].as_array().unwrap().len(),
        0,
        "{answer:#}"
    );
}

#[test]
fn three_threads_in_a_ring_of_mutexes_are_a_deadlock() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["ring"]);
    let ring = ["ring-A", "ring-B", "ring-C"].map(|name| stuck.asleep(name, libc::SYS_futex));
    let main = stuck.asleep("stuck", libc::SYS_futex);
    let answer = why(&[&stuck.pid().to_string()]);
    let [a, b, c] = ring;
    let circle = match (a < b, b < c, a < c) {
        _ if a < b && a < c => [a, b, c],
        _ if b < a && b < c => [b, c, a],
        _ => [c, a, b],
    };
    assert_eq!(answer["deadlocks"][0]["threads"], serde_json::json!(circle));
    for (at, tid) in ring.iter().enumerate() {
        let thread = thread(&answer, *tid);
        waits(thread, "holder", stuck.pid(), ring[(at + 1) % 3]);
        assert_eq!(thread["deadlocked"], true);
        assert_eq!(thread["label"], "futex");
        assert!(
            thread["kernel_stack"].to_string().contains(&wchan(*tid)),
            "{thread:#}"
        );
        let program = thread["user_stack"].to_string();
        assert!(program.contains("ring_member (stuck.c:"), "{program}");
    }
    // Who waits for one of them is stuck with them, and not in the circle.
    let main = thread(&answer, main);
    waits(main, "thread", stuck.pid(), a);
    assert_eq!(main["deadlocked"], true);
    let mut names = ["ring-A", "ring-B", "ring-C"];
    names.rotate_left(ring.iter().position(|tid| *tid == circle[0]).unwrap());
    let part = |at: usize| {
        format!(
            "{} ({}) has waited TIME for a mutex held by {} ({})",
            names[at],
            circle[at],
            names[(at + 1) % 3],
            circle[(at + 1) % 3]
        )
    };
    let expected = format!(
        "DEADLOCK of 3 threads of stuck ({}): {}; {}; {}",
        stuck.pid(),
        part(0),
        part(1),
        part(2)
    );
    sentence_is(&answer, &expected);
    // One thread of it can be asked about as well.
    let answer = why(&[&b.to_string()]);
    assert_eq!(answer["threads"].as_array().unwrap().len(), 1);
    assert_eq!(answer["deadlocks"].as_array().unwrap().len(), 1);
}

#[test]
fn a_thread_that_takes_its_mutex_twice_waits_for_itself() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["self"]);
    let pid = stuck.asleep("twice", libc::SYS_futex);
    let answer = why(&[&pid.to_string()]);
    assert_eq!(answer["deadlocks"][0]["threads"], serde_json::json!([pid]));
    sentence_is(
        &answer,
        &format!(
            "DEADLOCK of twice ({pid}) with itself: twice ({pid}) has waited TIME for a mutex \
             held by twice ({pid})"
        ),
    );
}

#[test]
fn file_locks_have_holders() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    for (scenario, call, what) in [
        ("flock", libc::SYS_flock, "an exclusive flock on FILE held"),
        (
            "posix",
            libc::SYS_fcntl,
            "an exclusive POSIX lock on FILE (bytes 10 to 29) held",
        ),
        (
            "ofd",
            libc::SYS_fcntl,
            "an exclusive open-file-description lock on FILE (bytes 10 to 29) held",
        ),
        ("lease", libc::SYS_openat, "a lease on FILE to be given up"),
    ] {
        let file = directory.join(scenario);
        let file = file.to_str().unwrap();
        let stuck = Stuck::start(&[scenario, file]);
        let waiter = stuck.asleep(&format!("{scenario}-waiter"), call);
        let holder = stuck.asleep(&format!("{scenario}-holder"), libc::SYS_clock_nanosleep);
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let line = |pid: u32| locks.lines().any(|line| line.contains(&format!(" {pid} ")));
        // Nobody is written beside a lock of an open file.
        assert!(scenario == "ofd" || line(waiter) && line(holder), "{locks}");
        let answer = why(&[&waiter.to_string()]);
        let thread = thread(&answer, waiter);
        waits(thread, "holder", holder, 0);
        assert_eq!(thread["object"], file);
        assert_eq!(thread["chain"][0]["tid"], holder);
        // The kernel takes a lease away after a while.
        let limit = match scenario {
            "lease" => ", for TIME more at the most",
            _ => "",
        };
        sentence_is(
            &answer,
            &format!(
                "{scenario}-waiter ({waiter}) has waited TIME for {} by {scenario}-holder \
                 ({holder}){limit}, which sleeps in clock_nanosleep, TIME left",
                what.replace("FILE", file)
            ),
        );
        no_deadlock(&answer);
    }
}

#[test]
fn all_that_hold_a_lock_together_are_named() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("lock");
    let stuck = Stuck::start(&["readers", file.to_str().unwrap()]);
    let waiter = stuck.asleep("readers-waiter", libc::SYS_flock);
    let answer = why(&[&waiter.to_string()]);
    let on = thread(&answer, waiter)["waits_for"].as_array().unwrap();
    let mut named: Vec<u64> = on.iter().filter_map(|on| on["pid"].as_u64()).collect();
    named.sort_unstable();
    let mut holders = [0, 1, 2].map(|i| u64::from(stuck.tid(&format!("reader-{i}"))));
    holders.sort_unstable();
    assert_eq!(named, holders, "{answer:#}");
    let told = words(&answer["sentences"][0]);
    let list = told.split_once(" held by ").expect(told).1;
    let list = list.split_once("; of these ").expect(list).0;
    assert!(
        list.matches("reader-").count() == 3 && list.contains(" and "),
        "{told}"
    );
    no_deadlock(&answer);
}

#[test]
fn a_flock_and_a_mutex_make_a_deadlock_of_two_processes() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("lock");
    let file = file.to_str().unwrap();
    let stuck = Stuck::start(&["crossed", file]);
    let a = stuck.asleep("crossed-A", libc::SYS_flock);
    let b = stuck.asleep("crossed-B", libc::SYS_futex);
    let answer = why(&["crossed-A"]);
    let told = words(&answer["sentences"][0]);
    assert!(told.starts_with("DEADLOCK of 2 threads: "), "{told}");
    for part in [
        format!(
            "crossed-A ({a}) has waited TIME for an exclusive flock on {file} held by crossed-B ({b})"
        ),
        format!(
            "crossed-B ({b}) has waited TIME for a mutex in shared memory held by crossed-A ({a})"
        ),
    ] {
        assert!(timeless(told).contains(&part), "{told}\nlacks\n{part}");
    }
}

#[test]
fn a_full_pipe_whose_reader_is_stopped() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["pipe"]);
    let writer = stuck.asleep("pipe-writer", libc::SYS_write);
    let reader = stuck.tid("pipe-reader");
    let answer = why(&[&writer.to_string()]);
    waits(thread(&answer, writer), "reader", reader, 0);
    sentence_is(
        &answer,
        &format!(
            "pipe-writer ({writer}) has waited TIME for room in a pipe, which is full and is \
             read by pipe-reader ({reader}), which is stopped by a signal"
        ),
    );
    no_deadlock(&answer);
}

#[test]
fn a_futex_in_memory_of_two_processes() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["shared"]);
    let waiter = stuck.asleep("shared-waiter", libc::SYS_futex);
    let holder = stuck.asleep("shared-holder", libc::SYS_pause);
    let answer = why(&[&waiter.to_string()]);
    waits(thread(&answer, waiter), "holder", holder, holder);
    sentence_is(
        &answer,
        &format!(
            "shared-waiter ({waiter}) has waited TIME for a mutex in shared memory held by \
             shared-holder ({holder}), which waits for a signal (pause)"
        ),
    );
}

#[test]
fn every_kind_of_mutex_has_its_holder() {
    if !kernel_or_skip() {
        return;
    }
    for (kind, what) in [
        ("normal", "a mutex"),
        ("recursive", "a mutex"),
        ("robust", "a mutex"),
        ("pi", "a priority-inheritance mutex"),
        ("rwlock", "a read-write lock (for writing)"),
    ] {
        let stuck = Stuck::start(&["kind", kind]);
        let waiter = stuck.asleep("kind-waiter", libc::SYS_futex);
        let holder = stuck.asleep("kind-holder", libc::SYS_pause);
        let answer = why(&[&stuck.pid().to_string()]);
        waits(thread(&answer, waiter), "holder", holder, holder);
        sentence_is(
            &answer,
            &format!(
                "kind-waiter ({waiter} of kind-holder {holder}) has waited TIME for {what} held \
                 by kind-holder ({holder}), which waits for a signal (pause)"
            ),
        );
    }
}

#[test]
fn what_has_no_owner_is_given_none() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["ownerless"]);
    let condition = stuck.asleep("cond-waiter", libc::SYS_futex);
    let semaphore = stuck.asleep("sem-waiter", libc::SYS_futex);
    let answer = why(&[&stuck.pid().to_string()]);
    for (tid, what) in [
        (condition, "waits for a condition variable"),
        (semaphore, "waits for a semaphore"),
    ] {
        let thread = thread(&answer, tid);
        assert_eq!(
            (words(&thread["text"]), &thread["waits_for"]),
            (what, &serde_json::json!([]))
        );
    }
    sentence_is(
        &answer,
        &format!(
            "nobody is seen to hold up stuck ({}): its 3 threads wait for input, for time, or to \
             be woken",
            stuck.pid()
        ),
    );
    no_deadlock(&answer);
}

/// Memory says what its program writes: an owner is named only if it can be one.
#[test]
fn garbage_in_a_lock_names_nobody() {
    if !kernel_or_skip() {
        return;
    }
    for owner in ["1", "2", "4194304", "-1"] {
        let stuck = Stuck::start(&["garbage", owner]);
        let name = "\u{1b}[31mgarbage\\n";
        let pid = stuck.pid();
        let until = Instant::now() + Duration::from_secs(20);
        while !std::fs::read_to_string(format!("/proc/{pid}/syscall"))
            .unwrap()
            .starts_with("202 ")
        {
            assert!(Instant::now() < until, "{name} does not wait");
        }
        let answer = why(&[&pid.to_string()]);
        let thread = thread(&answer, pid);
        assert_eq!(thread["waits_for"], serde_json::json!([]), "{thread:#}");
        assert!(
            words(&thread["text"]).starts_with("waits to be woken (futex)"),
            "{thread:#}"
        );
        let out = Command::new(DEBOX)
            .args(["why", &pid.to_string()])
            .output()
            .unwrap();
        assert!(!out.stdout.contains(&0x1b), "{}", text(&out.stdout));
    }
}

#[test]
fn a_child_that_is_stopped_and_one_that_keeps_vfork_waiting() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["stopped"]);
    let parent = stuck.asleep("stopped-parent", libc::SYS_wait4);
    let child = stuck.tid("stopped-child");
    let answer = why(&[&parent.to_string()]);
    waits(thread(&answer, parent), "child", child, 0);
    sentence_is(
        &answer,
        &format!(
            "stopped-parent ({parent}) has waited TIME for its child stopped-child ({child}) to \
             end, which is stopped by a signal"
        ),
    );
    let stuck = Stuck::start(&["vfork"]);
    let child = stuck.asleep("vfork-child", libc::SYS_pause);
    let parent = stuck.asleep("vfork-parent", libc::SYS_vfork);
    let answer = why(&[&parent.to_string()]);
    let told = thread(&answer, parent);
    assert_eq!(told["state"], "uninterruptible");
    waits(told, "child", child, 0);
    sentence_is(
        &answer,
        &format!(
            "vfork-parent ({parent}) has waited TIME for its vfork child vfork-child ({child}) \
             to call exec or to end, which waits for a signal (pause)"
        ),
    );
}

#[test]
fn two_ends_that_both_listen_are_a_deadlock() {
    if !kernel_or_skip() {
        return;
    }
    for (family, place) in [("unix", "a Unix socket"), ("tcp", "a local TCP connection")] {
        let stuck = Stuck::start(&["sockets", family]);
        let a = stuck.asleep("socket-A", libc::SYS_read);
        let b = stuck.asleep("socket-B", libc::SYS_read);
        let answer = why(&[&a.to_string()]);
        waits(thread(&answer, a), "peer", b, 0);
        let call = words(&thread(&answer, a)["call_text"]);
        if family == "tcp" {
            // Not by a number that only the kernel knows.
            assert!(call.contains(" tcp 127.0.0.1:"), "{call}");
            assert!(call.contains(" with 127.0.0.1:"), "{call}");
        }
        // In a PID namespace others could have the same socket.
        let alone = std::fs::read_link("/proc/self/ns/pid").unwrap();
        if alone.to_str() == Some("pid:[4026531836]") {
            sentence_is(
                &answer,
                &format!(
                    "DEADLOCK of 2 threads: socket-A ({a}) has waited TIME for data from socket-B \
                     ({b}) on {place}; socket-B ({b}) has waited TIME for data from socket-A ({a}) \
                     on {place}"
                ),
            );
        } else {
            no_deadlock(&answer);
        }
    }
}

/// The other end of a pipe is waited for only if nothing else could end the wait.
#[test]
fn who_watches_over_somebody_does_not_wait_for_them() {
    if !kernel_or_skip() {
        return;
    }
    for (how, waited) in [("alone", true), ("beside-a-timer", false)] {
        let stuck = Stuck::start(&["watching", how]);
        let watcher = stuck.asleep("watcher", libc::SYS_poll);
        let answer = why(&[&watcher.to_string()]);
        let starter = stuck.pid();
        if waited {
            waits(thread(&answer, watcher), "peer", starter, 0);
        } else {
            let sentence = words(&answer["sentences"][0]);
            assert!(!sentence.contains("starter"), "{answer:#}");
            let notes = thread(&answer, watcher)["notes"].to_string();
            assert!(
                notes.contains(&format!("a pipe of process {starter}")),
                "{answer:#}"
            );
        }
    }
}

#[test]
fn a_hung_fuse_file_system_has_a_server() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let place = place.to_str().unwrap();
    let stuck = Stuck::start(&["fuse", place]);
    let server = stuck.asleep("fuse-server", libc::SYS_pause);
    let waiter = stuck.asleep("fuse-waiter", libc::SYS_newfstatat);
    let answer = why(&[&waiter.to_string()]);
    let told = thread(&answer, waiter);
    waits(told, "server", server, 0);
    assert_eq!(told["label"], "fuse");
    sentence_is(
        &answer,
        &format!(
            "fuse-waiter ({waiter}) has waited TIME for an answer of the FUSE file system at \
             {place} from fuse-server ({server}), which waits for a signal (pause)"
        ),
    );
}

/// A lock of the kernel: its holder waits for the server of a file system.
#[test]
fn the_holder_of_a_lock_of_the_kernel_is_named() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let stuck = Stuck::start(&["fuse-lock", place.to_str().unwrap()]);
    let server = stuck.asleep("fuse-server", libc::SYS_pause);
    let holder = stuck.asleep("fuse-maker", libc::SYS_mkdir);
    let behind = stuck.asleep("fuse-behind", libc::SYS_mkdir);
    let answer = why(&[&behind.to_string()]);
    let told = thread(&answer, behind);
    waits(told, "holder", holder, holder);
    assert_eq!(told["label"], "inode-lock");
    assert_eq!(told["chain"][1]["tid"], server);
    sentence_is(
        &answer,
        &format!(
            "fuse-behind ({behind}) has waited TIME for a read-write semaphore of the kernel \
             (inode-lock) held by fuse-maker ({holder}), which waits for an answer of the FUSE \
             file system at {} from fuse-server ({server}), which waits for a signal (pause)",
            place.display()
        ),
    );
}

/// What `attach` cannot count, because it never returns, is explained.
#[test]
fn attach_explains_calls_that_are_open_at_the_end() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("lock");
    let stuck = Stuck::start(&["flock", file.to_str().unwrap()]);
    let waiter = stuck.asleep("flock-waiter", libc::SYS_flock);
    let holder = stuck.asleep("flock-holder", libc::SYS_clock_nanosleep);
    let attach = |form: &[&str]| {
        let out = Command::new(DEBOX)
            .args([
                "attach",
                "-d",
                "300ms",
                "-o",
                "-",
                "-p",
                &waiter.to_string(),
            ])
            .args(form)
            .env_remove("DEBOX_SOCKET")
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let report: Value = serde_json::from_str(&attach(&["--json"])).unwrap();
    let expected = format!(
        "flock-waiter ({waiter}) has waited TIME for an exclusive flock on {} held by flock-holder \
         ({holder}), which sleeps in clock_nanosleep, TIME left",
        file.display()
    );
    assert_eq!(timeless(words(&report["open_calls"][0]["why"])), expected);
    let shown = attach(&[]);
    let shown: Vec<&str> = shown.split_whitespace().collect();
    assert!(timeless(&shown.join(" ")).contains(&expected), "{shown:?}");
}

#[test]
fn who_has_ended_is_in_no_call() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["zombie"]);
    let parent = stuck.tid("careless");
    let zombie = stuck.tid("zombie");
    let answer = why(&[&zombie.to_string()]);
    sentence_is(
        &answer,
        &format!(
            "zombie ({zombie}) has ended and waits to be waited for by its parent careless \
             ({parent}), which waits for a signal (pause)"
        ),
    );
    let thread = thread(&answer, zombie);
    assert!(thread["call"].is_null() && thread["call_text"].is_null());
    assert_eq!(thread["state"], "zombie");
}

#[test]
fn what_anybody_may_send_has_an_address_and_no_sender() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["datagram"]);
    let pid = stuck.asleep("datagram", libc::SYS_recvfrom);
    let answer = why(&[&pid.to_string()]);
    let told = timeless(words(&answer["sentences"][0]));
    let start = format!("datagram ({pid}) has waited TIME for a datagram on 127.0.0.1:");
    assert!(told.starts_with(&start), "{told}");
}

/// Processes that come and go while they are read, by name and by number.
#[test]
fn who_ends_meanwhile_is_no_error() {
    if !kernel_or_skip() {
        return;
    }
    let mut storm = Command::new("/bin/sh")
        .args([
            "-c",
            "while :; do /bin/true; /bin/sleep 0.001; (exit 0) & wait; done",
        ])
        .process_group(0)
        .spawn()
        .unwrap();
    let pid = storm.id().to_string();
    for _ in 0..30 {
        let answer = why(&[&pid]);
        assert_eq!(answer["threads"][0]["tid"], storm.id(), "{answer:#}");
        no_deadlock(&answer);
    }
    // SAFETY: the group that was just made, with its leader not waited for.
    unsafe { libc::kill(-(storm.id() as libc::pid_t), libc::SIGKILL) };
    storm.wait().unwrap();
}

#[test]
fn who_computes_is_not_waiting() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["compute"]);
    let pid = stuck.tid("computing");
    let answer = why(&[&pid.to_string()]);
    let told = words(&answer["sentences"][0]);
    assert!(
        told.starts_with(&format!("computing ({pid}) is not waiting: ")),
        "{told}"
    );
    let thread = thread(&answer, pid);
    assert!(
        ["running", "queued"].contains(&words(&thread["state"])),
        "{thread:#}"
    );
    assert!(
        thread["cpu"].is_u64() && thread["call"].is_null(),
        "{thread:#}"
    );
}

/// As long as the kernel says itself, by other books.
#[test]
fn since_when_is_true() {
    if !kernel_or_skip() {
        return;
    }
    let before = Instant::now();
    let stuck = Stuck::start(&["pipe"]);
    let writer = stuck.asleep("pipe-writer", libc::SYS_write);
    let asleep = Instant::now();
    std::thread::sleep(Duration::from_millis(700));
    let least = asleep.elapsed();
    let answer = why(&[&writer.to_string()]);
    let most = before.elapsed();
    let told = Duration::from_nanos(thread(&answer, writer)["asleep_ns"].as_u64().unwrap());
    // The clock of the scheduler is read some microseconds before it is asked.
    assert!(
        told + Duration::from_millis(1) >= least && told <= most,
        "{least:?} {told:?} {most:?}"
    );
}

#[test]
fn threads_that_do_the_same_are_told_once() {
    if !kernel_or_skip() {
        return;
    }
    let stuck = Stuck::start(&["many", "40"]);
    let pid = stuck.pid();
    let until = Instant::now() + Duration::from_secs(20);
    while why(&[&pid.to_string()])["threads"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|thread| thread["waits_for"][0]["tid"] == pid)
        .count()
        < 40
    {
        assert!(Instant::now() < until);
    }
    let out = Command::new(DEBOX)
        .args(["why", &pid.to_string()])
        .output()
        .unwrap();
    let shown = text(&out.stdout);
    assert!(
        shown.starts_with(&format!(
            "40 threads of process {pid} do the same; the longest: many ("
        )),
        "{shown}"
    );
    assert!(shown.lines().count() < 20, "{shown}");
    assert!(
        shown.contains("waiting for something to come:\n  thread"),
        "{shown}"
    );
}

/// One's own processes may be asked about, and those of others not.
#[test]
fn ordinary_users_ask_about_their_own() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let debox = directory.path().join("debox");
    std::fs::copy(DEBOX, &debox).unwrap();
    let open = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(directory.path());
    open(&debox);
    let as_nobody = |path: &Path, words: &[&str]| {
        let mut command = Command::new(path);
        command
            .args(words)
            .uid(65534)
            .gid(65534)
            .current_dir("/")
            // Its own label rules, not root's.
            .env_remove("HOME")
            .env_remove("XDG_CONFIG_HOME");
        command
    };
    let roots = Stuck::start(&["pipe"]);
    let out = as_nobody(&debox, &["why", &roots.pid().to_string()])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert_eq!(
        text(&out.stderr),
        format!(
            "debox: process {0} (pipe-writer) belongs to the user with id 0: what it waits for is \
             for root and that user to know. Ask as root: sudo debox why {0}\n",
            roots.pid()
        )
    );
    let sleep = as_nobody(Path::new("/bin/sleep"), &["1000"])
        .spawn()
        .unwrap();
    let own = Stuck(sleep);
    let pid = own.asleep("sleep", libc::SYS_clock_nanosleep);
    let out = as_nobody(&debox, &["why", "--json", &pid.to_string()])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(answer["source"], "proc");
    let told = thread(&answer, pid);
    assert_eq!(told["call"], "clock_nanosleep");
    assert_eq!(told["idle"], true);
    assert!(
        words(&told["call_text"]).contains("request=1000 s"),
        "{told:#}"
    );
    let note = answer["notes"].to_string();
    assert!(note.contains("sudo debox why"), "{note}");
    assert!(
        note.contains("the kernel was not asked, which takes CAP_BPF"),
        "{note}"
    );
    let sentence = words(&answer["sentences"][0]);
    assert!(!sentence.contains("at least 0 ns"), "{sentence}");
}

#[test]
fn what_is_not_there_is_said() {
    if !kernel_or_skip() {
        return;
    }
    for (word, says) in [
        ("4194303", "there is no process or thread 4194303"),
        ("no-such-name", "no process is called \"no-such-name\""),
    ] {
        let out = Command::new(DEBOX).args(["why", word]).output().unwrap();
        assert_eq!(out.status.code(), Some(125), "{word}");
        assert!(text(&out.stderr).contains(says), "{}", text(&out.stderr));
    }
}
