// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which ways can a program be watched, and how is each put in place?

use super::calls::{Answer, Bracket, Order, Task};
use super::grid::{WayHead, WayKind};
use crate::Error;
use crate::noise::bpf_links;
use crate::tidy::{self, Guarded};
use debox_broker::{Private, PrivateOptions};
use debox_probe::{Kernel, Probe};
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
    /// A tool that is started before it and watches the whole machine.
    Beside(&'static [&'static str]),
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
    /// What is done around whole programs, which have children; `None`: it
    /// makes no sense there.
    pub programs: Option<How>,
    /// Known before anything is tried.
    pub missing: Option<String>,
}

impl From<&Way> for WayHead {
    fn from(way: &Way) -> Self {
        Self {
            id: way.id.into(),
            title: way.title.into(),
            kind: way.kind,
            missing: way.missing.clone(),
        }
    }
}

impl Default for Way {
    fn default() -> Self {
        Self {
            id: "",
            title: "",
            kind: WayKind::Nothing,
            how: How::Nothing,
            programs: Some(How::Nothing),
            missing: None,
        }
    }
}

/// Nothing, nothing again, and DeBox in all its ways. The first two are what
/// the grid takes for base and null run.
pub fn of_debox() -> Vec<Way> {
    let way = |id, title, how, programs: bool| Way {
        id,
        title,
        kind: WayKind::Debox,
        how,
        programs: programs.then_some(how),
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
        true,
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

/// As it is for whole programs: with what their children need.
pub fn for_programs(ways: Vec<Way>) -> Vec<Way> {
    ways.into_iter()
        .filter_map(|way| {
            Some(Way {
                how: way.programs?,
                title: match way.programs? {
                    How::Beside(_) if way.id == "bpftrace" => "bpftrace, whole machine",
                    How::Beside(_) => "bcc's syscount -L, whole machine",
                    _ => way.title,
                },
                ..way
            })
        })
        .collect()
}

/// Count, and total time, by call, of one process: what `debox run` does.
const BPFTRACE: &str = "\
BEGIN { printf(\"Tracing\\n\"); } \
tracepoint:raw_syscalls:sys_enter /pid == $1/ { @begin[tid] = nsecs; } \
tracepoint:raw_syscalls:sys_exit /pid == $1 && @begin[tid]/ { \
@count[args->id] = count(); @total[args->id] = sum(nsecs - @begin[tid]); delete(@begin[tid]); }";

/// The same of everything: it follows no children.
const BPFTRACE_ALL: &str = "\
BEGIN { printf(\"Tracing\\n\"); } \
tracepoint:raw_syscalls:sys_enter { @begin[tid] = nsecs; } \
tracepoint:raw_syscalls:sys_exit /@begin[tid]/ { \
@count[args->id] = count(); @total[args->id] = sum(nsecs - @begin[tid]); delete(@begin[tid]); }";

/// Also where only root looks by itself.
pub fn installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into()])
            .any(|d| d.join(program).is_file())
    })
}

/// What was compared, in which version: (name, as it says itself).
pub fn versions() -> Vec<(String, String)> {
    const ASK: [(&str, &[&str]); 11] = [
        ("strace", &["strace", "-V"]),
        ("perf", &["perf", "--version"]),
        (
            "bcc",
            &[
                "/usr/bin/python3",
                "-c",
                "import bcc; print(bcc.__version__)",
            ],
        ),
        ("bpftrace", &["bpftrace", "--version"]),
        ("ltrace", &["ltrace", "-V"]),
        ("cc", &["cc", "--version"]),
        ("tar", &["tar", "--version"]),
        ("nginx", &["nginx", "-v"]),
        ("wrk", &["wrk", "-v"]),
        ("redis", &["redis-server", "--version"]),
        ("fio", &["fio", "--version"]),
    ];
    ASK.iter()
        .filter_map(|(name, words)| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            // wrk ends with 1 when it only tells its version.
            let (_, out, err) =
                tidy::run(&mut command, None, None, Duration::from_secs(10)).ok()?;
            Some(((*name).to_owned(), version(&format!("{out}\n{err}"))?))
        })
        .collect()
}

/// The first word that is a number with dots, or is one after a letter or
/// name: `6.1`, `v0.17.0`, `fio-3.33`, `v=7.0.15`, `nginx/1.22.1`.
fn version(said: &str) -> Option<String> {
    said.split_whitespace().find_map(|word| {
        let from = word.find(|c: char| c.is_ascii_digit())?;
        let number = word[from..].trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let plain = number.split('.').count() > 1
            && number
                .split('.')
                .next()?
                .bytes()
                .all(|b| b.is_ascii_digit());
        let prefix = word[..from].trim_end_matches(['v', '-', '=', '/', '(']);
        (plain && prefix.bytes().all(|b| b.is_ascii_alphabetic())).then(|| number.to_owned())
    })
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
    const PERF_TRACE: &[&str] = &["perf", "trace", "-s", "-o", "/dev/null", "--"];
    const PERF_STAT: &[&str] = &["perf", "stat", "-o", "/dev/null", "--"];
    const LTRACE: &[&str] = &["ltrace", "-f", "-S", "-c", "-L", "-o", "/dev/null"];
    struct Tool {
        id: &'static str,
        title: &'static str,
        how: How,
        programs: Option<How>,
        /// Program and Debian package.
        needs: Option<(&'static str, &'static str)>,
        in_quick: bool,
    }
    let brackets = |id, title, with| Tool {
        id,
        title,
        how: How::Bracket(with),
        programs: None,
        needs: None,
        in_quick: true,
    };
    let before = |id, title, words, needs, in_quick| Tool {
        id,
        title,
        how: How::Prefix(words),
        programs: Some(How::Prefix(words)),
        needs: Some(needs),
        in_quick,
    };
    let strace = ("strace", "strace");
    let perf = ("perf", "linux-perf");
    let all = [
        brackets("getrusage", "getrusage brackets", BracketWith::Getrusage),
        brackets("clock", "clock_gettime brackets", BracketWith::Clock),
        before("strace-c", "strace -c", STRACE, strace, true),
        before("strace-T", "strace -T", STRACE_T, strace, true),
        before(
            "strace-seccomp",
            "strace --seccomp-bpf -c, of these calls",
            SECCOMP,
            strace,
            false,
        ),
        before(
            "strace-seccomp-others",
            "strace --seccomp-bpf -c, of openat only",
            SECCOMP_OTHERS,
            strace,
            false,
        ),
        before("perf-trace", "perf trace -s", PERF_TRACE, perf, false),
        before("perf-stat", "perf stat", PERF_STAT, perf, false),
        Tool {
            id: "syscount",
            title: "bcc's syscount -L",
            how: How::Attach(&["syscount-bpfcc", "-L", "-p"]),
            programs: Some(How::Beside(&["syscount-bpfcc", "-L"])),
            needs: Some(("syscount-bpfcc", "bpfcc-tools")),
            in_quick: false,
        },
        Tool {
            id: "bpftrace",
            title: "bpftrace, count and time by call",
            how: How::Attach(&["bpftrace", "-e", BPFTRACE]),
            programs: Some(How::Beside(&["bpftrace", "-e", BPFTRACE_ALL])),
            needs: Some(("bpftrace", "bpftrace")),
            in_quick: false,
        },
        before("ltrace", "ltrace -S -c", LTRACE, ("ltrace", "ltrace"), true),
    ];
    let mut found = Vec::new();
    let mut absent = Vec::new();
    for tool in all {
        if quick && !tool.in_quick {
            continue;
        }
        let missing = tool
            .needs
            .filter(|(program, _)| !installed(program))
            .map(|(_, package)| {
                absent.push(package);
                format!("not installed (Debian: {package})")
            });
        found.push(Way {
            id: tool.id,
            title: tool.title,
            kind: WayKind::Other,
            how: tool.how,
            programs: tool.programs,
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
    /// How long a program may take in a way.
    pub limit: Duration,
    broker: Option<Private>,
    probe: Option<Probe>,
    /// Links of others, there before us.
    foreign: Option<u32>,
    files: u64,
}

/// The socket of a broker that runs by itself.
fn running() -> Option<PathBuf> {
    let path = std::env::var_os(debox_abi::DEBOX_ENV_SOCKET)
        .unwrap_or_else(|| debox_abi::DEBOX_SOCKET_PATH.into());
    let path = PathBuf::from(path);
    path.exists().then_some(path)
}

pub const LIMIT: Duration = Duration::from_secs(120);

/// What is in place while a program runs; taken away when dropped, but for
/// what the next way may need as well.
struct InPlace {
    account: Option<u32>,
    watched: Option<Guarded>,
    tool: Option<Watcher>,
}

/// A tool that runs beside the program.
struct Watcher {
    guarded: Guarded,
    reader: std::thread::JoinHandle<String>,
}

impl Watcher {
    /// Starts it, and waits until it says that it traces.
    fn start(tool: &[&str], pid: Option<u32>, cpu: usize, limit: Duration) -> Result<Self, Error> {
        let mut command = Command::new(tool[0]);
        command
            .args(&tool[1..])
            .args(pid.map(|pid| pid.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its lines must come when they are written.
            .env("PYTHONUNBUFFERED", "1");
        tidy::bind(&mut command, Some(cpu), None);
        let mut guarded = Guarded::spawn(&mut command)?;
        let (ready, begun) = std::sync::mpsc::channel();
        let out = guarded.child.stdout.take().expect("piped");
        let reader = std::thread::spawn(move || {
            // What it says before it begins may be why it does not.
            let mut first = String::new();
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.contains("Tracing") {
                    let _ = ready.send(());
                } else if first.len() < 4096 {
                    first = first + &line + "\n";
                }
            }
            first
        });
        let begin = Instant::now();
        loop {
            match begun.recv_timeout(Duration::from_millis(20)) {
                Ok(()) => return Ok(Self { guarded, reader }),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    let mut errors = reader.join().unwrap_or_default();
                    if let Some(mut e) = guarded.child.stderr.take() {
                        let _ = e.read_to_string(&mut errors);
                    }
                    let status = guarded.wait(Duration::from_secs(10))?;
                    let words: Vec<String> = tool.iter().map(|w| (*w).to_owned()).collect();
                    return Err(Error::Unavailable(refusal(&words, status, &errors)));
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    tidy::go_on()?;
                    if begin.elapsed() > limit {
                        return Err(Error::Unavailable(format!(
                            "{} was not ready after {} s",
                            tool[0],
                            limit.as_secs()
                        )));
                    }
                }
            }
        }
    }

    /// Ends it as its users do.
    fn stop(mut self) {
        self.guarded.signal(libc::SIGINT);
        let _ = self.guarded.wait(Duration::from_secs(10));
        drop(self.guarded);
        let _ = self.reader.join();
    }
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
            limit: LIMIT,
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

    /// A private broker; without the privileges for one, that of the system.
    fn broker(&mut self) -> Result<PathBuf, Error> {
        if self.broker.is_none() {
            match Private::start(PrivateOptions::default()) {
                Ok(broker) => self.broker = Some(broker),
                Err(e) => return running().ok_or_else(|| Error::Unavailable(e.to_string())),
            }
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
            tool: None,
        };
        match how {
            How::Broker | How::Bracket(BracketWith::Debox) => {
                self.broker()?;
            }
            _ => self.broker = None,
        }
        if let How::Beside(tool) = how {
            place.tool = Some(Watcher::start(tool, None, self.cpu, self.limit)?);
        }
        if how == How::Broker && self.broker.is_none() {
            return Err(Error::Unavailable(
                "a broker of this machine runs all the time: it is in \"nothing\" as well".into(),
            ));
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
                    debox_probe::Watcher::root(),
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
        if let Some(tool) = place.tool {
            tool.stop();
        }
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
        f: impl FnOnce(&mut Self, Vec<String>) -> Result<T, Error>,
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
        self.under(way, |bench, prefix| {
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
        let (status, _, errors) = tidy::run(&mut command, Some(self.cpu), None, self.limit)?;
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
        let watcher = Watcher::start(tool, Some(program.child.id()), self.cpu, self.limit)?;
        program.signal(libc::SIGUSR1);
        let status = program.wait(self.limit)?;
        watcher.stop();
        self.answer(order).ok_or_else(|| {
            Error::Unavailable(format!("the program ended with {status} under {}", tool[0]))
        })
    }
}

/// What a tool said when it did not do its job, in one line: the first line
/// that tells of something wrong, since what follows follows from it.
fn refusal(prefix: &[String], status: std::process::ExitStatus, errors: &str) -> String {
    const WRONG: [&str; 9] = [
        "error",
        "fail",
        "unable",
        "cannot",
        "can't",
        "denied",
        "not permitted",
        "only supports",
        "needs",
    ];
    let lines: Vec<&str> = errors
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let said = lines
        .iter()
        .find(|l| {
            let low = l.to_lowercase();
            WRONG.iter().any(|w| low.contains(w))
        })
        .or(lines.last());
    match (prefix.first(), said) {
        // Not a tool of others.
        (Some(_), Some(said)) if said.starts_with("debox: ") => {
            said["debox: ".len()..].trim_end_matches('.').to_owned()
        }
        (Some(_), Some(said)) => {
            format!("installed but refused: {}", said.trim_end_matches('.'))
        }
        (Some(tool), None) => {
            format!("installed but refused: {tool} ended with {status} and said nothing")
        }
        (None, Some(said)) => (*said).to_owned(),
        (None, None) => format!("the program ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_shown_and_not_what_followed() {
        use std::os::unix::process::ExitStatusExt;
        let status = std::process::ExitStatus::from_raw(256);
        let said = "\
modprobe: FATAL: Module kheaders not found in directory /lib/modules/6.1.0
Unable to find kernel headers. Try rebuilding kernel with CONFIG_IKHEADERS=m (module) or \
installing the kernel development package for your running kernel version.
chdir(/lib/modules/6.1.0/build): No such file or directory
Traceback (most recent call last):
    raise Exception(\"Failed to compile BPF module %s\" % (src_file or \"<text>\"))
Exception: Failed to compile BPF module <text>
";
        let text = refusal(&["syscount-bpfcc".into()], status, said);
        assert!(
            text.starts_with("installed but refused: Unable to find kernel headers"),
            "{text}"
        );
        assert!(!text.ends_with('.'), "{text}");
        assert_eq!(refusal(&[], status, "a\nb\n"), "b");
        assert!(refusal(&["x".into()], status, "").contains("said nothing"));
    }

    #[test]
    fn versions_are_found_in_what_tools_say() {
        for (said, number) in [
            ("strace -- version 6.1\nCopyright (c) 1991-2022", "6.1"),
            ("perf version 6.1.140", "6.1.140"),
            ("bpftrace v0.17.0", "0.17.0"),
            ("ltrace version 0.7.3.\n", "0.7.3"),
            ("cc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0-14+deb12u1"),
            ("nginx version: nginx/1.22.1", "1.22.1"),
            ("wrk debian/4.1.0-3+b2 [epoll]", "4.1.0-3+b2"),
            ("Redis server v=7.0.15 sha=00000000:0", "7.0.15"),
            ("fio-3.33", "3.33"),
            ("0.26.0", "0.26.0"),
        ] {
            assert_eq!(version(said).as_deref(), Some(number), "{said}");
        }
        assert_eq!(version("ModuleNotFoundError: No module"), None);
    }
}
