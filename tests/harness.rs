// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the tests run DeBox as its user would?
//!
//! They use what `make build test-programs` leaves in target/ (or, in a guest of
//! tests/vm, in the directory DEBOX_TEST_PROGRAMS): the command itself, the broker,
//! the libraries, and the C and Go programs of tests/truth. All of them need root
//! (or CAP_BPF and CAP_PERFMON); where that is missing they fail and say so, unless
//! DEBOX_TEST_NO_BPF=1 asks for them to be left out.

#[path = "fresh_start.rs"]
mod fresh_start;
#[path = "needs.rs"]
mod needs;

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_owned()
}

/// A file of target/. In a guest of tests/vm all of them lie in one directory.
fn built(file: &str) -> PathBuf {
    let path = match std::env::var_os("DEBOX_TEST_PROGRAMS") {
        Some(directory) => {
            Path::new(&directory).join(Path::new(file).file_name().expect("a file's name"))
        }
        None => root().join("target").join(file),
    };
    assert!(
        path.exists(),
        "{} is missing: run `make build test-programs` first",
        path.display()
    );
    path
}

pub fn debox() -> PathBuf {
    built("release/debox")
}

pub fn deboxd() -> PathBuf {
    built("release/deboxd")
}

pub fn program(name: &str) -> PathBuf {
    built(&format!("truth/{name}"))
}

/// Whether this machine is slow and may stand still at any moment, as a guest is
/// that is emulated (DEBOX_TEST_SLOW=1): no time has a bound from above then.
pub fn slow() -> bool {
    std::env::var_os("DEBOX_TEST_SLOW").is_some_and(|value| value == "1")
}

/// How long to wait at most for what only takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what comes by itself.
#[track_caller]
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {} s: {what}",
            PATIENCE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub use needs::{bpf as bpf_wanted, not_run};

/// A test's turn: those that take times must not disturb each other on a small machine.
/// None: it is to be left out, like all that load programs into the kernel.
pub fn alone() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    bpf_wanted().then(|| ONE.lock().unwrap_or_else(|e| e.into_inner()))
}

/// A permanent broker of our own, on a socket of our own.
pub struct Broker {
    socket: PathBuf,
    /// None: it is whoever's who started the test (DEBOX_TEST_BROKER).
    child: Option<Child>,
    _directory: Option<tempfile::TempDir>,
}

impl Broker {
    pub fn start() -> Broker {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Broker {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Clients of other users connect, too.
        std::fs::set_permissions(
            directory.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .expect("chmod");
        let socket = directory.path().join("debox.sock");
        let child = Command::new(deboxd())
            .arg("--everybody")
            .arg("--socket")
            .arg(&socket)
            .args(options)
            .stdin(Stdio::null())
            .spawn()
            .expect("deboxd starts");
        let broker = Broker {
            socket,
            child: Some(child),
            _directory: Some(directory),
        };
        wait_until("deboxd answers", || {
            broker.status().is_some_and(|o| o.status.success())
        });
        broker
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a broker of our own").id()
    }

    fn status(&self) -> Option<Output> {
        Command::new(debox())
            .args(["status", "--json", "--socket"])
            .arg(self.socket())
            .output()
            .ok()
    }

    /// `debox status --json`.
    pub fn counters(&self) -> Value {
        let output = self.status().expect("debox status runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    pub fn kill(&mut self) {
        let child = self.child.as_mut().expect("a broker of our own");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else {
            return;
        };
        if matches!(child.try_wait(), Ok(None)) {
            // SIGTERM: the socket file goes with it.
            // SAFETY: a child of ours that has not been waited for.
            unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            let _ = child.wait();
        }
    }
}

static SHARED: Mutex<Option<Arc<Broker>>> = Mutex::new(None);

/// One broker for all tests of a program that need none of their own: loading
/// its programs takes longer than most tests. It ends with the test program.
pub fn shared_broker() -> Arc<Broker> {
    let mut shared = SHARED.lock().unwrap_or_else(|e| e.into_inner());
    let broker = shared.get_or_insert_with(|| {
        if let Some(socket) = std::env::var_os("DEBOX_TEST_BROKER") {
            return Arc::new(Broker {
                socket: socket.into(),
                child: None,
                _directory: None,
            });
        }
        // SAFETY: the function takes nothing, and is there until the end.
        assert_eq!(unsafe { libc::atexit(shared_broker_end) }, 0, "atexit");
        Arc::new(Broker::start())
    });
    Arc::clone(broker)
}

extern "C" fn shared_broker_end() {
    // No test runs any more, so this is the last of it.
    if let Ok(mut shared) = SHARED.lock() {
        drop(shared.take());
    }
}

/// What `debox run --json` said, and how the command ended.
pub struct Run {
    pub report: Value,
    pub output: Output,
}

/// By the broker that the tests share.
pub fn run<S: AsRef<OsStr>>(options: &[&str], command: &[S]) -> Run {
    let broker = shared_broker();
    let socket = broker.socket().to_str().expect("a plain path");
    run_privately(&[&["--socket", socket], options].concat(), command)
}

/// By a broker of its own, as users do who have none; or the one of the options.
pub fn run_privately<S: AsRef<OsStr>>(options: &[&str], command: &[S]) -> Run {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let output = Command::new(debox())
        .current_dir("/")
        .args(["run", "--json", "-o"])
        .arg(file.path())
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output()
        .expect("debox runs");
    let text = std::fs::read(file.path()).expect("the report");
    let report = serde_json::from_slice(&text).unwrap_or_else(|e| {
        panic!(
            "no JSON report ({e}); stderr: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    Run { report, output }
}

/// A scenario of tests/truth/chains.c, by the broker that the tests share.
pub fn chains_run(scenario: &str, ms: u64) -> Run {
    let command = [
        program("chains").display().to_string(),
        scenario.to_owned(),
        ms.to_string(),
    ];
    run(&[], &command)
}

impl Run {
    /// The row of a call; an empty object when there was none.
    pub fn call(&self, name: &str) -> Value {
        self.call_abi(name, 64)
    }

    pub fn call_abi(&self, name: &str, abi: u64) -> Value {
        self.report["calls"]
            .as_array()
            .expect("calls")
            .iter()
            .find(|r| r["name"] == name && r["abi"] == abi)
            .cloned()
            .unwrap_or(Value::Object(Default::default()))
    }

    pub fn count(&self, name: &str) -> u64 {
        self.call(name)["count"].as_u64().unwrap_or(0)
    }

    /// Blocking rows of a call.
    pub fn blocking(&self, call: &str) -> Vec<Value> {
        self.report["blocking"]
            .as_array()
            .expect("blocking")
            .iter()
            .filter(|r| r["call"] == call)
            .cloned()
            .collect()
    }

    pub fn notes(&self) -> Vec<String> {
        self.report["notes"]
            .as_array()
            .expect("notes")
            .iter()
            .filter_map(|n| n["kind"].as_str().map(str::to_owned))
            .collect()
    }

    /// wall = cpu + blocked + run queue (+ interrupts) in every row, and nothing lost.
    pub fn check_sound(&self) {
        for row in self.report["calls"].as_array().expect("calls") {
            let n = |f: &str| row[f].as_u64().unwrap_or_else(|| panic!("{f} in {row}"));
            let untimed = row["untimed"].as_u64().unwrap_or(0);
            let unstamped = row["unstamped"].as_u64().unwrap_or(0);
            // A spliced program's exit has no time.
            if row["wall_ns"].is_null() {
                assert!(untimed > 0 && untimed == n("count"), "{row}");
                continue;
            }
            assert_eq!(
                n("wall_ns"),
                n("cpu_ns") + n("blocked_ns") + n("runq_ns") + row["irq_ns"].as_u64().unwrap_or(0),
                "{row}"
            );
            assert!(n("max_ns") <= n("wall_ns"), "{row}");
            assert!(
                n("p50_ns") <= n("p99_ns") && n("p99_ns") <= n("max_ns"),
                "{row}"
            );
            let buckets: u64 = row["histogram"]
                .as_array()
                .expect("histogram")
                .iter()
                .filter_map(|b| b["count"].as_u64())
                .sum();
            assert_eq!(buckets + untimed + unstamped, n("count"), "{row}");
        }
        for lost in [
            "rows_dropped",
            "sites_dropped",
            "threads_unwatched",
            "inconsistent",
            "stale",
        ] {
            assert!(
                !self.notes().iter().any(|n| n == lost),
                "{lost}: {}",
                self.report["notes"]
            );
        }
    }

    /// And every sleep is explained, to the nanosecond.
    #[track_caller]
    pub fn check_explained(&self) {
        self.check_sound();
        let sum = |rows: &str| -> u64 {
            let rows = self.report[rows].as_array().into_iter().flatten();
            rows.map(|row| number(row, "total_ns")).sum()
        };
        let (explained, slept) = (sum("chains"), sum("blocking"));
        assert_eq!(explained, slept, "chains do not add up to the sleeps");
    }
}

/// A truth program's lines.
pub fn lines(output: &Output) -> Vec<Value> {
    assert!(
        output.status.success(),
        "{:?}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect()
}

/// Runs the truth program with its calls bracketed by libdebox.
pub fn bracketed(broker: &Broker, arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(program("truth"))
        .arg("-b")
        .args(["-d", "/var/tmp"])
        .args(arguments)
        .env("DEBOX_SOCKET", broker.socket())
        .output()
        .expect("truth runs");
    lines(&output)
}

pub fn number(value: &Value, field: &str) -> u64 {
    value[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field} in {value}"))
}

/// The parts that a thread's life is split into, together.
pub fn life_parts_ns(life: &Value) -> u64 {
    let parts = [
        "own_ns",
        "calls_ns",
        "exit_ns",
        "blocked_ns",
        "outside_ns",
        "stopped_ns",
        "runq_ns",
        "irq_ns",
        "irq_outside_ns",
    ];
    parts.iter().map(|part| number(life, part)).sum()
}

/// Whether no thread of a process runs, or is about to.
pub fn all_sleep(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    threads
        .flatten()
        .all(|thread| stat_of(&thread.path()).is_some_and(|words| words[0] == "S"))
}

/// What stands behind the name in a thread's or a process's `stat`: its state, its parent, ...
fn stat_of(place: &Path) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(place.join("stat")).ok()?;
    let (_, words) = stat.rsplit_once(')')?;
    Some(words.split_whitespace().map(str::to_owned).collect())
}

/// What debox reports of a command that root, or `nobody`, has watched by this broker.
pub fn report_by(nobody: bool, broker: &Broker, command: &[&str]) -> Value {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let file = directory.path().join("report");
    let mut debox = Command::new(debox());
    debox.current_dir("/").args(["run", "--json", "--socket"]);
    debox.arg(broker.socket()).arg("-o").arg(&file);
    debox.arg("--").args(command);
    if nobody {
        std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).expect("chown");
        as_nobody(&mut debox);
    }
    let output = debox.output().expect("debox runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&std::fs::read(&file).expect("the report")).expect("JSON")
}

/// Runs as the user nobody.
pub fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(65534).gid(65534)
}

/// BPF programs that processes started by this test keep attached now. (Others
/// on the machine may have theirs.)
pub fn programs_attached() -> Vec<String> {
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        if !descends_from_us(pid) {
            continue;
        }
        let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
            continue;
        };
        for fd in fds.flatten() {
            let Ok(text) = std::fs::read_to_string(fd.path()) else {
                continue;
            };
            if ["tracing", "perf", "raw_tracepoint"]
                .iter()
                .any(|kind| text.contains(&format!("link_type:\t{kind}")))
            {
                found.push(format!("pid {pid}: {}", text.replace('\n', " ")));
            }
        }
    }
    found
}

fn descends_from_us(mut pid: u32) -> bool {
    for _ in 0..64 {
        if pid == std::process::id() {
            return true;
        }
        let words = stat_of(Path::new(&format!("/proc/{pid}")));
        match words.and_then(|words| words.get(1)?.parse().ok()) {
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}
