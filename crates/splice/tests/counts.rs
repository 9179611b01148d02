// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a spliced program do what it does otherwise, and is each call counted as strace counts it?

use debox_command::{Environment, Hold, Inherited, Program, Start};
use debox_splice::{Counted, Run};
use debox_symbol::syscall_name;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// target/release, where the tests lie one folder deeper.
fn built() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().and_then(Path::parent).unwrap().to_owned()
}

fn images() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Its exit status, and what was counted.
fn spliced(folder: &Path, words: &[&str]) -> (i32, Counted) {
    let run = Run::new(folder, &built().join("debox-splice.bin"), 1 << 31).unwrap();
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let program = Program::resolve(&words).unwrap();
    let environment = Environment::inherited();
    // Once: from then on signals are blocked here. SIGPIPE, which Rust's runtime has ignored, as
    // std::process does for strace's.
    static INHERITED: LazyLock<Inherited> = LazyLock::new(|| {
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        Inherited::take()
    });
    let inherited = &*INHERITED;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let start = Start {
        streams: [Some(null.as_fd()).filter(|_| std::env::var("DEBOX_SPLICE_SHOW").is_err()); 3],
        ..Start::new(&program, &environment, inherited)
    };
    let held = start.hold(Hold::Asleep, || Ok(())).unwrap();
    let following = run.follow(held.pid()).unwrap();
    let mut child = held.start().unwrap();
    following.begun();
    let ended = loop {
        if let Some(ended) = child.ended() {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    (ended.status(), run.counted().unwrap())
}

/// Ends that strace does not count, what is left on purpose, and the execve that begins it all.
const NOT_HELD_AGAINST: [&str; 3] = ["exit", "exit_group", "rt_sigreturn"];

type Counts = BTreeMap<String, (u64, u64)>;

/// Calls and errors by name, as strace counts them.
fn strace(words: &[&str]) -> Option<Counts> {
    let out = tempfile::NamedTempFile::new().unwrap();
    let done = std::process::Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(out.path())
        .args(words)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    done.ok()?;
    let mut counts = Counts::new();
    for line in std::fs::read_to_string(out.path()).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(Ok(calls)), Some(name)) = (words.get(3).map(|n| n.parse()), words.last()) else {
            continue;
        };
        let errors = if words.len() > 5 { words[4].parse().unwrap() } else { 0 };
        if *name != "total" && !NOT_HELD_AGAINST.contains(name) {
            counts.insert((*name).to_owned(), (calls, errors));
        }
    }
    Some(counts)
}

fn by_name(counted: &Counted) -> Counts {
    let all = counted.calls.iter().enumerate().filter(|(_, sums)| sums.count > 0);
    let mut counts: Counts = all
        .map(|(nr, sums)| (syscall_name(nr as i32, false).into_owned(), (sums.count, sums.errors)))
        .filter(|(name, _)| !NOT_HELD_AGAINST.contains(&name.as_str()))
        .collect();
    // The first one is ours.
    counts.entry("execve".into()).or_default().0 += 1;
    counts
}

/// Programs that make the same calls each time.
const SAME_EACH_TIME: [&str; 14] = [
    "/bin/true",
    "ls -la /usr/lib",
    "cat /etc/passwd /nonexistent",
    "sh -c true;/bin/true;/bin/false;exit_3",
    "sh -c cat</etc/passwd|sort|uniq>/dev/null",
    "find /etc/apt",
    "tar cf /dev/null /etc/apt",
    "grep -r root /etc/apt",
    "awk BEGIN{for(i=0;i<1000;i++)print(i)}",
    "sed -n p /etc/passwd",
    "perl -e print(1)",
    "git --version",
    "env nonexistent-program",
    "dd if=/dev/zero of=/dev/null bs=64k count=100",
];

fn words_of(command: &str) -> Vec<&str> {
    match command.strip_prefix("sh -c ") {
        Some(script) => vec!["sh", "-c", script],
        None => command.split(' ').collect(),
    }
}

#[test]
fn each_call_is_counted_as_strace_counts_it() {
    let folder = images();
    let mut compared = 0;
    for command in SAME_EACH_TIME {
        let words = words_of(command);
        if debox_command::find(std::ffi::OsStr::new(words[0])).is_err() {
            eprintln!("{command}: {} is not here", words[0]);
            continue;
        }
        let Some(expected) = strace(&words) else {
            eprintln!("NOT RUN: needs strace");
            return;
        };
        let (_, counted) = spliced(folder.path(), &words);
        let found = by_name(&counted);
        let names: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        let differ: Vec<String> = (names.into_iter())
            .filter(|name| expected.get(*name) != found.get(*name))
            .map(|name| format!("{name}: strace {:?}, spliced {:?}", expected.get(name), found.get(name)))
            .collect();
        let all = Counted { calls: Vec::new(), ..counted };
        assert!(differ.is_empty(), "{command}: {differ:#?}; {all:?}");
        compared += 1;
    }
    assert!(compared > 5, "{compared}");
}

#[test]
fn try_it() {
    let Ok(command) = std::env::var("DEBOX_SPLICE_TRY") else {
        return;
    };
    let folder = images();
    let words = words_of(&command);
    let at = std::time::Instant::now();
    let (status, counted) = spliced(folder.path(), &words);
    eprintln!("first: {:?}", at.elapsed());
    let at = std::time::Instant::now();
    let (_, _) = spliced(folder.path(), &words);
    eprintln!("second: {:?}", at.elapsed());
    for (nr, sums) in counted.calls.iter().enumerate().filter(|(_, sums)| sums.count > 0) {
        eprintln!("{nr} {} {} {}", sums.count, sums.errors, sums.wall_ns);
    }
    let counts = by_name(&counted);
    let calls = Vec::new();
    eprintln!("status {status}: {:?}", Counted { calls, ..counted });
    let expected = strace(&words).unwrap_or_default();
    for (name, n) in &expected {
        if counts.get(name) != Some(n) {
            eprintln!("{name}: strace {n:?}, spliced {:?}", counts.get(name));
        }
    }
}
