// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which ways can a program be watched, and how is each put in place?

use super::calls::{Answer, Bracket, Order, Task};
use super::grid::{WayHead, WayKind};
use super::hooks::{Capture, Hang, Hooks};
use crate::Error;
use crate::tidy::{self, Guarded};
use debox_broker::{Private, PrivateOptions};
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
    /// Another process is watched.
    AnotherWatched(Capture),
    /// A command in front of it, of words without spaces.
    Prefix(&'static str),
    /// The same, and the first word is this debox.
    Debox(&'static str),
    /// A tool that is started beside it and attaches by process id.
    Attach(&'static [&'static str]),
    /// A tool that is started before it and watches the whole machine.
    Beside(&'static [&'static str]),
    /// The same, of this debox, which runs a program of its own that says when it is there.
    BesideRun(&'static [&'static str]),
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
    let bare = |title| Way {
        title,
        ..Way::default()
    };
    let way = |id, title, how| Way {
        id,
        title,
        kind: WayKind::Debox,
        how,
        programs: Some(how).filter(|how| !matches!(how, How::Bracket(_) | How::BesideRun(_))),
        missing: None,
    };
    const TRACE: &str = "run --trace default -o /dev/null --";
    let (wrap, boundary) = (
        "another process watched, wrap",
        "another process watched, boundary",
    );
    let run = How::Debox("run --capture=boundary -o /dev/null --");
    let run_wrap = How::Debox("run --capture=wrap -o /dev/null --");
    let run_splice = How::Debox("run --capture=splice -o /dev/null --");
    const IDLES: [&str; 7] = [
        "run",
        "--capture=splice",
        "-q",
        "--",
        "sh",
        "-c",
        "echo Tracing; exec sleep infinity",
    ];
    let run_sample = How::Debox("run --capture=splice --sample 16 -o /dev/null --");
    let run_sleeps = How::Debox("run --capture=sleeps -o /dev/null --");
    let bracket = How::Bracket(BracketWith::Debox);
    vec![
        Way {
            id: "bare",
            ..bare("nothing")
        },
        Way {
            id: "again",
            ..bare("nothing, again")
        },
        way("broker", "broker running, nobody watched", How::Broker),
        way("bracket", "DEBOX_CALL brackets", bracket),
        way("other-wrap", wrap, How::AnotherWatched(Capture::Wrap)),
        way(
            "other-boundary",
            boundary,
            How::AnotherWatched(Capture::Boundary),
        ),
        way(
            "other-splice",
            "another program under debox run --capture=splice",
            How::BesideRun(&IDLES),
        ),
        way("run-wrap", "debox run --capture=wrap", run_wrap),
        way("run-sleeps", "debox run --capture=sleeps", run_sleeps),
        way("run-splice", "debox run --capture=splice", run_splice),
        way(
            "run-sample",
            "debox run --capture=splice --sample 16",
            run_sample,
        ),
        way("run", "debox run --capture=boundary", run),
        way("run-trace", "debox run --trace", How::Debox(TRACE)),
    ]
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

/// Count, and total time, by call, of one process: what `debox run` does, too.
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
pub fn of_others(quick: bool) -> Vec<Way> {
    const SECCOMP: &str = "strace -f --seccomp-bpf -c -e \
        trace=getpid,gettimeofday,pread64,read,write -o /dev/null --";
    const SECCOMP_OTHERS: &str = "strace -f --seccomp-bpf -c -e trace=openat -o /dev/null --";
    const LTRACE: &str = "ltrace -f -S -c -L -o /dev/null";
    let tool = |id, title, how, programs| Way {
        id,
        title,
        kind: WayKind::Other,
        how,
        programs,
        missing: None,
    };
    let brackets = |id, title, with| tool(id, title, How::Bracket(with), None);
    let before = |id, title, words| {
        let how = How::Prefix(words);
        tool(id, title, how, Some(how))
    };
    let syscount = tool(
        "syscount",
        "bcc's syscount -L",
        How::Attach(&["syscount-bpfcc", "-L", "-p"]),
        Some(How::Beside(&["syscount-bpfcc", "-L"])),
    );
    let bpftrace = tool(
        "bpftrace",
        "bpftrace, count and time by call",
        How::Attach(&["bpftrace", "-e", BPFTRACE]),
        Some(How::Beside(&["bpftrace", "-e", BPFTRACE_ALL])),
    );
    let of_calls = "strace --seccomp-bpf -c, of these calls";
    let of_openat = "strace --seccomp-bpf -c, of openat only";
    // With the Debian package of each, and whether --quick has time for it.
    let all = [
        (
            brackets("getrusage", "getrusage brackets", BracketWith::Getrusage),
            "",
            true,
        ),
        (
            brackets("clock", "clock_gettime brackets", BracketWith::Clock),
            "",
            true,
        ),
        (
            before("strace-c", "strace -c", "strace -f -c -o /dev/null --"),
            "strace",
            true,
        ),
        (
            before("strace-T", "strace -T", "strace -f -T -o /dev/null --"),
            "strace",
            true,
        ),
        (before("strace-seccomp", of_calls, SECCOMP), "strace", false),
        (
            before("strace-seccomp-others", of_openat, SECCOMP_OTHERS),
            "strace",
            false,
        ),
        (
            before(
                "perf-trace",
                "perf trace -s",
                "perf trace -s -o /dev/null --",
            ),
            "linux-perf",
            false,
        ),
        (
            before("perf-stat", "perf stat", "perf stat -o /dev/null --"),
            "linux-perf",
            false,
        ),
        (syscount, "bpfcc-tools", false),
        (bpftrace, "bpftrace", false),
        (before("ltrace", "ltrace -S -c", LTRACE), "ltrace", true),
    ];
    let mut found = Vec::new();
    for (mut way, package, in_quick) in all {
        if quick && !in_quick {
            continue;
        }
        let program = match way.how {
            How::Prefix(words) => words.split(' ').next(),
            How::Attach(words) => words.first().copied(),
            _ => None,
        };
        if program.is_some_and(|program| !installed(program)) {
            way.missing = Some(format!("not installed (Debian: {package})"));
        }
        found.push(way);
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
    /// For what is known by its own process id only.
    pub hooks: Hooks,
    broker: Option<Private>,
    files: u64,
}

/// The socket of a broker that runs by itself.
fn running() -> Option<PathBuf> {
    let path = std::env::var_os(debox_abi::DEBOX_ENV_SOCKET)
        .unwrap_or_else(|| debox_abi::DEBOX_SOCKET_PATH.into());
    let path = PathBuf::from(path);
    path.exists().then_some(path)
}

const LIMIT: Duration = Duration::from_secs(120);
/// A tool that takes longer for a program that ends in a second by itself is
/// not worth waiting for.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is in place while a program runs; taken away when dropped, but for
/// what the next way may need as well.
struct InPlace {
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
            hooks: Hooks::new(),
            broker: None,
            files: 0,
        })
    }

    /// How long a program may take in this way.
    pub fn limit_for(&mut self, way: &Way) {
        self.limit = match way.kind {
            WayKind::Other => PATIENCE,
            _ => LIMIT,
        };
    }

    pub fn finish(&mut self) {
        self.broker = None;
        self.hooks = Hooks::new();
    }

    /// A private broker; without the privileges for one, that of the system.
    pub fn broker(&mut self) -> Result<PathBuf, Error> {
        if self.broker.is_none() {
            match Private::start(PrivateOptions::default()) {
                Ok(broker) => self.broker = Some(broker),
                Err(e) => return running().ok_or_else(|| Error::Unavailable(e.to_string())),
            }
        }
        let broker = self.broker.as_ref().expect("just made");
        Ok(broker.socket_path().to_owned())
    }

    /// Somebody else, who does nothing.
    pub fn idler(&self) -> Result<Guarded, Error> {
        let mut command = Command::new("sleep");
        command.arg("infinity");
        tidy::bind(&mut command, Some(self.other_cpu), None);
        Guarded::spawn(&mut command)
    }

    fn put(&mut self, how: How) -> Result<InPlace, Error> {
        let mut place = InPlace {
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
        if let How::BesideRun(words) = how {
            let debox = self.executable.display().to_string();
            let words = [&[debox.as_str()], words].concat();
            place.tool = Some(Watcher::start(&words, None, self.other_cpu, self.limit)?);
        }
        if how == How::Broker && self.broker.is_none() {
            return Err(Error::Unavailable(
                "a broker of this machine runs all the time: it is in \"nothing\" as well".into(),
            ));
        }
        if let How::AnotherWatched(capture) = how {
            let watched = self.idler()?;
            self.hooks.put(Hang::Watch(capture, watched.child.id()))?;
            place.watched = Some(watched);
        }
        Ok(place)
    }

    fn take_away(&mut self, place: InPlace) {
        if let Some(tool) = place.tool {
            tool.stop();
        }
        self.hooks.off();
        drop(place.watched);
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
            How::Prefix(words) => words.split(' ').map(String::from).collect(),
            How::Debox(words) => std::iter::once(self.executable.display().to_string())
                .chain(words.split(' ').map(String::from))
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
                bracket,
                wait: matches!(how, How::Attach(_)),
                socket,
                ..bench.order(task.clone())
            };
            match how {
                How::Attach(tool) => bench.attached(tool, &order),
                _ => bench.program(&prefix, None, &order),
            }
        })
    }

    /// The paper's Table 1: one process, stamped both ways.
    pub fn server(&mut self, connections: u64) -> Result<Answer, Error> {
        let order = Order {
            socket: Some(self.broker()?),
            ..self.order(Task::Server { connections })
        };
        let answer = self.program(&[], None, &order);
        self.broker_end();
        answer
    }

    /// What the measured program is told, with nobody in its way.
    pub fn order(&mut self, task: Task) -> Order {
        Order {
            task,
            bracket: Bracket::Plain,
            cpu: self.cpu,
            out: self.out_file(),
            wait: false,
            socket: None,
        }
    }

    /// Programs go a moment after who used them: what is measured next must
    /// not pay for them.
    pub fn broker_end(&mut self) {
        self.broker = None;
        self.hooks.off();
    }

    /// What a `debox run` in front of it makes lies in our directory: it goes with
    /// that when both are killed.
    pub fn command(&self, prefix: &[String], order: &Order) -> Command {
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
        command
            .args(&words[1..])
            .env_remove("LD_PRELOAD")
            .env("TMPDIR", &self.directory);
        command
    }

    /// `preload`: a library between the program and libc.
    pub fn program(
        &self,
        prefix: &[String],
        preload: Option<&Path>,
        order: &Order,
    ) -> Result<Answer, Error> {
        let mut command = self.command(prefix, order);
        command.envs(preload.map(|library| ("LD_PRELOAD", library)));
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
pub(super) fn refusal(prefix: &[String], status: std::process::ExitStatus, errors: &str) -> String {
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
