// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which ways can a program be watched, and how is each put in place?

use super::calls::{Answer, Bracket, Order, Task};
use super::grid::WayKind;
use crate::Error;
use crate::noise::bpf_links;
use crate::tidy::{self, Guarded};
use debox_broker::{Private, PrivateOptions};
use debox_probe::Probe;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is done around the measured program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    #[default]
    Nothing,
    /// A broker runs, nobody is watched.
    Broker,
    /// The program brackets its own calls.
    Bracket(BracketWith),
    /// Another process is watched: by wrap (false) or boundary capture (true).
    AnotherWatched(bool),
    /// A command in front of it.
    Prefix(&'static [&'static str]),
    /// The same, and the first word is this debox.
    Debox(&'static [&'static str]),
    /// A tool that is started beside it and attaches by process id.
    Attach(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BracketWith {
    Debox,
    Clock,
    Getrusage,
}

#[derive(Clone, Debug)]
pub struct Way {
    pub id: &'static str,
    pub title: &'static str,
    pub kind: WayKind,
    pub how: How,
    /// Makes sense for whole programs.
    pub for_programs: bool,
    /// Known before anything is tried.
    pub missing: Option<String>,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            id: "",
            title: "",
            kind: WayKind::Nothing,
            how: How::Nothing,
            for_programs: true,
            missing: None,
        }
    }
}

/// Nothing, nothing again, and DeBox in all its ways. The first two are what
/// the grid takes for base and null run.
pub fn of_debox() -> Vec<Way> {
    let way = |id, title, how, for_programs| Way {
        id,
        title,
        kind: WayKind::Debox,
        how,
        for_programs,
        missing: None,
    };
    let mut found = vec![
        Way {
            id: "bare",
            title: "nothing",
            ..Way::default()
        },
        Way {
            id: "again",
            title: "nothing, again",
            ..Way::default()
        },
        way(
            "broker",
            "broker running, nobody watched",
            How::Broker,
            true,
        ),
        way(
            "bracket",
            "DEBOX_CALL brackets",
            How::Bracket(BracketWith::Debox),
            false,
        ),
        way(
            "other-wrap",
            "another process watched, wrap",
            How::AnotherWatched(false),
            true,
        ),
        way(
            "other-boundary",
            "another process watched, boundary",
            How::AnotherWatched(true),
            true,
        ),
        way(
            "run-wrap",
            "debox run --wrap",
            How::Debox(&["run", "--wrap", "-o", "/dev/null", "--"]),
            true,
        ),
        way(
            "run",
            "debox run",
            How::Debox(&["run", "-o", "/dev/null", "--"]),
            true,
        ),
    ];
    let mut trace = way(
        "run-trace",
        "debox run --trace",
        How::Debox(&["run", "--trace", "default", "-o", "/dev/null", "--"]),
        false,
    );
    if !run_has("--trace") {
        trace.missing = Some("this debox has no call trace".into());
    }
    found.push(trace);
    found
}

/// Whether `debox run` knows an option.
fn run_has(option: &str) -> bool {
    let Ok(exe) = std::env::current_exe() else {
        return false;
    };
    Command::new(exe)
        .args(["run", "--help"])
        .output()
        .is_ok_and(|o| {
            String::from_utf8_lossy(&o.stdout)
                .split_whitespace()
                .any(|w| w == option)
        })
}

/// Count, and total time, by call, of one process: what `debox run` does.
const BPFTRACE: &str = "\
BEGIN { printf(\"Tracing\\n\"); } \
tracepoint:raw_syscalls:sys_enter /pid == $1/ { @begin[tid] = nsecs; } \
tracepoint:raw_syscalls:sys_exit /pid == $1 && @begin[tid]/ { \
@count[args->id] = count(); @total[args->id] = sum(nsecs - @begin[tid]); delete(@begin[tid]); }";

fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|d| d.join(program).is_file()))
}

/// The tools that are usual for the job, with the Debian package of each.
pub fn of_others(quick: bool, notes: &mut Vec<String>) -> Vec<Way> {
    const TRACED: &str = "trace=getpid,gettimeofday,pread64,read,write";
    const STRACE: &[&str] = &["strace", "-f", "-c", "-o", "/dev/null", "--"];
    const STRACE_T: &[&str] = &["strace", "-f", "-T", "-o", "/dev/null", "--"];
    const SECCOMP: &[&str] = &[
        "strace",
        "-f",
        "--seccomp-bpf",
        "-c",
        "-e",
        TRACED,
        "-o",
        "/dev/null",
        "--",
    ];
    const SECCOMP_OTHERS: &[&str] = &[
        "strace",
        "-f",
        "--seccomp-bpf",
        "-c",
        "-e",
        "trace=openat",
        "-o",
        "/dev/null",
        "--",
    ];
    let all: [(&str, &str, How, &str, &str, bool, bool); 11] = [
        // id, title, how, program, package, whole programs too, also with --quick
        (
            "getrusage",
            "getrusage brackets",
            How::Bracket(BracketWith::Getrusage),
            "",
            "",
            false,
            true,
        ),
        (
            "clock",
            "clock_gettime brackets",
            How::Bracket(BracketWith::Clock),
            "",
            "",
            false,
            true,
        ),
        (
            "strace-c",
            "strace -c",
            How::Prefix(STRACE),
            "strace",
            "strace",
            true,
            true,
        ),
        (
            "strace-T",
            "strace -T",
            How::Prefix(STRACE_T),
            "strace",
            "strace",
            false,
            true,
        ),
        (
            "strace-seccomp",
            "strace --seccomp-bpf -c, of these calls",
            How::Prefix(SECCOMP),
            "strace",
            "strace",
            false,
            false,
        ),
        (
            "strace-seccomp-others",
            "strace --seccomp-bpf -c, of openat only",
            How::Prefix(SECCOMP_OTHERS),
            "strace",
            "strace",
            false,
            false,
        ),
        (
            "perf-trace",
            "perf trace -s",
            How::Prefix(&["perf", "trace", "-s", "-o", "/dev/null", "--"]),
            "perf",
            "linux-perf",
            true,
            false,
        ),
        (
            "perf-stat",
            "perf stat",
            How::Prefix(&["perf", "stat", "-o", "/dev/null", "--"]),
            "perf",
            "linux-perf",
            true,
            false,
        ),
        (
            "syscount",
            "bcc's syscount -L",
            How::Attach(&["syscount-bpfcc", "-L", "-p"]),
            "syscount-bpfcc",
            "bpfcc-tools",
            false,
            false,
        ),
        (
            "bpftrace",
            "bpftrace, count and time by call",
            How::Attach(&["bpftrace", "-e", BPFTRACE]),
            "bpftrace",
            "bpftrace",
            false,
            false,
        ),
        (
            "ltrace",
            "ltrace -S -c",
            How::Prefix(&["ltrace", "-f", "-S", "-c", "-L", "-o", "/dev/null"]),
            "ltrace",
            "ltrace",
            false,
            true,
        ),
    ];
    let mut found = Vec::new();
    let mut absent = Vec::new();
    for (id, title, how, program, package, for_programs, in_quick) in all {
        if quick && !in_quick {
            continue;
        }
        let missing = (!program.is_empty() && !installed(program)).then(|| {
            absent.push(package);
            format!("not installed (Debian: {package})")
        });
        found.push(Way {
            id,
            title,
            kind: WayKind::Other,
            how,
            for_programs,
            missing,
        });
    }
    absent.dedup();
    if !absent.is_empty() {
        notes.push(format!(
            "not installed, so not compared with: {}",
            absent.join(", ")
        ));
    }
    found
}

/// Where everything happens.
pub struct Bench {
    pub directory: PathBuf,
    pub cpu: usize,
    pub other_cpu: usize,
    pub executable: PathBuf,
    broker: Option<Private>,
    probe: Option<Probe>,
    /// Links of others, there before us.
    foreign: Option<u32>,
    files: u64,
}

const LIMIT: Duration = Duration::from_secs(120);

/// What is in place while a program runs; taken away when dropped, but for
/// what the next way may need as well.
struct InPlace {
    account: Option<u32>,
    watched: Option<Guarded>,
}

impl Bench {
    pub fn new(directory: &Path, cpu: usize, other_cpu: usize) -> Result<Self, Error> {
        Ok(Self {
            directory: directory.to_owned(),
            cpu,
            other_cpu,
            executable: std::env::current_exe().map_err(|source| Error::System {
                what: "finding this program".into(),
                source,
            })?,
            broker: None,
            probe: None,
            foreign: bpf_links(),
            files: 0,
        })
    }

    pub fn finish(&mut self) {
        self.broker = None;
        self.probe = None;
    }

    fn broker(&mut self) -> Result<PathBuf, Error> {
        if self.broker.is_none() {
            self.broker = Some(
                Private::start(PrivateOptions::default())
                    .map_err(|e| Error::Unavailable(e.to_string()))?,
            );
        }
        let broker = self.broker.as_ref().expect("just made");
        Ok(broker.socket_path().to_owned())
    }

    /// Programs go a moment after who used them: what is measured next must
    /// not pay for them.
    fn settle(&self) {
        let Some(before) = self.foreign else { return };
        let begin = Instant::now();
        while bpf_links().is_some_and(|n| n > before) && begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn put(&mut self, how: How) -> Result<InPlace, Error> {
        let mut place = InPlace {
            account: None,
            watched: None,
        };
        match how {
            How::Broker | How::Bracket(BracketWith::Debox) => {
                self.broker()?;
            }
            _ => self.broker = None,
        }
        if let How::AnotherWatched(boundary) = how {
            let mut command = Command::new("sleep");
            command.arg("infinity");
            tidy::bind(&mut command, Some(self.other_cpu), None);
            let watched = Guarded::spawn(&mut command)?;
            if self.probe.is_none() {
                self.probe = Some(
                    Probe::load(debox_probe::Options::default())
                        .map_err(|e| Error::Unavailable(e.to_string()))?,
                );
            }
            let probe = self.probe.as_mut().expect("just loaded");
            let account = probe
                .account_create(
                    0,
                    debox_probe::AccountOptions {
                        boundary,
                        ..Default::default()
                    },
                )
                .map_err(|e| Error::Unavailable(e.to_string()))?;
            place.account = Some(account.id);
            probe
                .account_join(account.id, watched.child.id(), false)
                .map_err(|e| Error::Unavailable(e.to_string()))?;
            place.watched = Some(watched);
        }
        Ok(place)
    }

    fn take_away(&mut self, place: InPlace) {
        if let (Some(id), Some(probe)) = (place.account, self.probe.as_mut()) {
            probe.account_release(id);
        }
        drop(place.watched);
        self.settle();
    }

    pub fn out_file(&mut self) -> PathBuf {
        self.files += 1;
        self.directory.join(format!("out-{}", self.files))
    }

    /// Puts a way in place, runs `f` with the words that go before a command,
    /// and takes it away again.
    pub fn under<T>(
        &mut self,
        way: &Way,
        f: &mut dyn FnMut(&mut Self, Vec<String>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let place = self.put(way.how)?;
        let prefix: Vec<String> = match way.how {
            How::Prefix(words) => words.iter().map(|w| (*w).to_owned()).collect(),
            How::Debox(words) => std::iter::once(self.executable.display().to_string())
                .chain(words.iter().map(|w| (*w).to_owned()))
                .collect(),
            _ => Vec::new(),
        };
        let result = f(self, prefix);
        self.take_away(place);
        result
    }

    /// Runs one task of the measured program in one way.
    pub fn run(&mut self, way: &Way, task: &Task) -> Result<Answer, Error> {
        let bracket = match way.how {
            How::Bracket(BracketWith::Debox) => Bracket::Debox,
            How::Bracket(BracketWith::Clock) => Bracket::Clock,
            How::Bracket(BracketWith::Getrusage) => Bracket::Getrusage,
            _ => Bracket::Plain,
        };
        let how = way.how;
        self.under(way, &mut |bench, prefix| {
            let socket = if bracket == Bracket::Debox {
                Some(bench.broker()?)
            } else {
                None
            };
            let order = Order {
                task: task.clone(),
                bracket,
                cpu: bench.cpu,
                out: bench.out_file(),
                wait: matches!(how, How::Attach(_)),
                socket,
            };
            match how {
                How::Attach(tool) => bench.attached(tool, &order),
                _ => bench.program(&prefix, &order),
            }
        })
    }

    /// The paper's Table 1: one process, stamped both ways.
    pub fn server(&mut self, connections: u64) -> Result<Answer, Error> {
        let order = Order {
            task: Task::Server { connections },
            bracket: Bracket::Debox,
            cpu: self.cpu,
            out: self.out_file(),
            wait: false,
            socket: Some(self.broker()?),
        };
        let answer = self.program(&[], &order);
        self.broker = None;
        self.settle();
        answer
    }

    fn command(&self, prefix: &[String], order: &Order) -> Command {
        let words: Vec<String> = prefix
            .iter()
            .cloned()
            .chain([
                self.executable.display().to_string(),
                "bench".into(),
                "calls".into(),
                serde_json::to_string(order).expect("plain data"),
            ])
            .collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_remove("LD_PRELOAD");
        command
    }

    pub fn program(&self, prefix: &[String], order: &Order) -> Result<Answer, Error> {
        let mut command = self.command(prefix, order);
        let (status, _, errors) = tidy::run(&mut command, Some(self.cpu), None, LIMIT)?;
        self.answer(order)
            .ok_or_else(|| Error::Unavailable(refusal(prefix, status, &errors)))
    }

    fn answer(&self, order: &Order) -> Option<Answer> {
        let text = std::fs::read_to_string(&order.out).ok()?;
        let _ = std::fs::remove_file(&order.out);
        serde_json::from_str(&text).ok()
    }

    /// The program first, then the tool on it, then go.
    fn attached(&self, tool: &[&str], order: &Order) -> Result<Answer, Error> {
        let mut command = self.command(&[], order);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        tidy::bind(&mut command, Some(self.cpu), None);
        // Blocked before exec: the signal may come before the program waits.
        // SAFETY: a set on the stack, between fork and exec.
        unsafe {
            use std::os::unix::process::CommandExt;
            command.pre_exec(|| {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGUSR1);
                libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                Ok(())
            });
        }
        let mut program = Guarded::spawn(&mut command)?;
        let mut watcher = Command::new(tool[0]);
        watcher
            .args(&tool[1..])
            .arg(program.child.id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its lines must come when they are written.
            .env("PYTHONUNBUFFERED", "1");
        tidy::bind(&mut watcher, Some(self.cpu), None);
        let mut watcher = Guarded::spawn(&mut watcher)?;
        let (ready, begun) = std::sync::mpsc::channel();
        let out = watcher.child.stdout.take().expect("piped");
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.contains("Tracing") {
                    let _ = ready.send(());
                }
            }
        });
        let begin = Instant::now();
        loop {
            match begun.recv_timeout(Duration::from_millis(20)) {
                Ok(()) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    let mut errors = String::new();
                    if let Some(mut e) = watcher.child.stderr.take() {
                        let _ = e.read_to_string(&mut errors);
                    }
                    let status = watcher.wait(Duration::from_secs(10))?;
                    let words: Vec<String> = tool.iter().map(|w| (*w).to_owned()).collect();
                    return Err(Error::Unavailable(refusal(&words, status, &errors)));
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    tidy::go_on()?;
                    if begin.elapsed() > LIMIT {
                        return Err(Error::Unavailable(format!(
                            "{} was not ready after {} s",
                            tool[0],
                            LIMIT.as_secs()
                        )));
                    }
                }
            }
        }
        program.signal(libc::SIGUSR1);
        let status = program.wait(LIMIT)?;
        watcher.signal(libc::SIGINT);
        let _ = watcher.wait(Duration::from_secs(10));
        drop(watcher);
        let _ = reader.join();
        self.answer(order).ok_or_else(|| {
            Error::Unavailable(format!("the program ended with {status} under {}", tool[0]))
        })
    }
}

/// What a tool said when it did not do its job, in one line.
fn refusal(prefix: &[String], status: std::process::ExitStatus, errors: &str) -> String {
    let lines: Vec<&str> = errors
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let said = lines
        .iter()
        .rev()
        .find(|l| {
            let low = l.to_lowercase();
            [
                "error",
                "fail",
                "cannot",
                "can't",
                "denied",
                "not permitted",
            ]
            .iter()
            .any(|w| low.contains(w))
        })
        .or(lines.last());
    match (prefix.first(), said) {
        (Some(_), Some(said)) => format!("installed but refused: {said}"),
        (Some(tool), None) => {
            format!("installed but refused: {tool} ended with {status} and said nothing")
        }
        (None, Some(said)) => (*said).to_owned(),
        (None, None) => format!("the program ended with {status}"),
    }
}
