// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is what SECURITY.md promises of the broker kept: as whom it runs, with how
//! little, and who may use it?
//!
//! Clients run as an ordinary user, with copies of the programs, since this
//! tree may lie below somebody's home.

#[path = "security/unit.rs"]
mod unit;
#[path = "security/walk.rs"]
mod walk;

use debox_tests::{alone, bpf_wanted, debox, deboxd, root, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use unit::Unit;

/// Whom programs run as that must not need anything.
const NOBODY: u32 = 65534;
/// Whom the unit's user is played by: an id that no account has.
const UNOWNED: u32 = 60500;

/// A directory that every user can enter, with copies of what they run.
struct Stage {
    dir: tempfile::TempDir,
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
}

fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    open_to_all(dir.path());
    dir
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let dir = directory();
        let runtime = root().join("target/release/debox-splice.bin");
        for file in [debox(), deboxd(), runtime] {
            let copy = dir.path().join(file.file_name().expect("a name"));
            std::fs::copy(&file, &copy).expect("a copy");
            open_to_all(&copy);
        }
        let (source, library) = (
            root().join("tests/truth/own_call.c"),
            root().join("target/release/libdebox.a"),
        );
        let built = Command::new("cc")
            .args(["-O2", "-pthread", "-I"])
            .arg(root().join("include"))
            .arg("-o")
            .arg(dir.path().join("own_call"))
            .args([source, library])
            .status();
        assert!(built.expect("cc").success(), "tests/truth/own_call.c");
        open_to_all(&dir.path().join("own_call"));
        Stage { dir }
    })
}

fn staged(name: &str) -> PathBuf {
    stage().dir.path().join(name)
}

/// A program as nobody, in one group more if that is given.
fn as_nobody(group: Option<u32>, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    let id = NOBODY.to_string();
    command.args(["--reuid", &id, "--regid", &id]);
    match group {
        Some(group) => command.arg(format!("--groups={group}")),
        None => command.arg("--clear-groups"),
    };
    command
        .arg(staged(program))
        .env_remove("DEBOX_SOCKET")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

/// A file that nobody may write.
fn empty_of_nobody(path: &Path) {
    std::fs::write(path, "").expect("a file");
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("chown");
}

fn errors_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A broker that does not outlive a test that fails.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(command: &mut Command, socket: PathBuf) -> Self {
        let child = command.stdin(Stdio::null()).spawn().expect("deboxd starts");
        let mut daemon = Self { child, socket };
        let begin = Instant::now();
        while daemon.status().is_err() {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "no answer in 30 s"
            );
            let ended = daemon.child.try_wait().expect("wait");
            assert!(ended.is_none(), "deboxd ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(30));
        }
        daemon
    }

    fn for_everybody(dir: &Path) -> Self {
        let socket = dir.join("debox.sock");
        let mut command = Command::new(deboxd());
        command.args(["--everybody", "--socket"]).arg(&socket);
        Self::start(&mut command, socket)
    }

    /// `debox status --json`, as root.
    fn status(&self) -> Result<Value, String> {
        let output = Command::new(debox())
            .args(["status", "--json", "--socket"])
            .arg(&self.socket)
            .output()
            .expect("debox runs");
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
            false => Err(errors_of(&output)),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }

    fn terminate(mut self) -> std::process::ExitStatus {
        self.signal(libc::SIGTERM);
        self.child.wait().expect("wait")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fields of /proc/PID/task/TID/status, the same for all threads.
fn fields(pid: u32, name: &str) -> String {
    let mut found: Option<String> = None;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("threads")
        .flatten()
    {
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else {
            continue;
        };
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .unwrap_or_else(|| panic!("no {name} in a status"));
        let value = line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            found.as_ref().is_none_or(|f| *f == value),
            "{name}: {found:?} and {value}"
        );
        found = Some(value);
    }
    found.expect("a thread")
}

fn capability_set(pid: u32, name: &str) -> u64 {
    u64::from_str_radix(&fields(pid, name), 16).expect("hexadecimal")
}

/// As whom a broker runs, and that it has the unit's capabilities and no more.
fn assert_little(pid: u32) -> u32 {
    let kept = Unit::read().capabilities("CapabilityBoundingSet");
    let uids = fields(pid, "Uid");
    let uid = uids.split(' ').next().expect("an id").to_owned();
    assert_eq!(uids, format!("{uid} {uid} {uid} {uid}"));
    assert!(!fields(pid, "Gid").split(' ').any(|gid| gid == "0"));
    assert!(!fields(pid, "Groups").split(' ').any(|gid| gid == "0"));
    assert_eq!(capability_set(pid, "CapEff"), kept);
    assert_eq!(capability_set(pid, "CapPrm"), kept);
    assert_eq!(capability_set(pid, "CapAmb"), 0, "what it starts has none");
    // A bounding set cannot grow; that of this test may be smaller.
    assert_eq!(capability_set(pid, "CapBnd") & !kept, 0);
    assert_eq!(fields(pid, "NoNewPrivs"), "1");
    assert_eq!(fields(pid, "Seccomp"), "2");
    let uid = uid.parse().expect("a number");
    assert_ne!(uid, 0);
    uid
}

/// Every use of a broker that an ordinary user and root can make of it.
fn assert_serves(daemon: &Daemon) {
    let socket = daemon.socket.as_os_str();
    // libdebox.
    let output = as_nobody(None, "own_call")
        .env("DEBOX_SOCKET", socket)
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.starts_with("measured blocked"),
        "{said}{}",
        errors_of(&output)
    );
    // The account of a command, with the places in the program that called.
    let output = as_nobody(None, "debox")
        .args(["run", "--json", "--stacks", "-o", "-", "--socket"])
        .arg(socket)
        .args(["--", "/bin/sleep", "0.1"])
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", errors_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let slept = report["calls"]
        .as_array()
        .expect("calls")
        .iter()
        .find(|row| row["name"] == "clock_nanosleep")
        .expect("the sleep");
    assert!(slept["blocked_ns"].as_u64() > Some(50_000_000), "{slept}");
    // Kernel functions have names (kallsyms), and stacks lead through libc to
    // the program and back to what started it: both files' tables were read.
    let place = report["blocking"]
        .as_array()
        .expect("blocking")
        .iter()
        .find(|row| row["call"] == "clock_nanosleep")
        .expect("where it slept");
    let function = place["function"].as_str().unwrap_or_default();
    assert!(function.contains("nanosleep"), "{place}");
    let walked = report["stacks"]
        .as_array()
        .expect("stacks")
        .iter()
        .any(|stack| {
            let frames = stack["frames"].as_array().expect("frames");
            let of = |module: &str| frames.iter().filter(|f| f["module"] == module).count();
            of("sleep") >= 2 && of("libc.so.6") >= 2
        });
    assert!(walked, "{}", report["stacks"]);
    // The live view of an own command.
    let output = as_nobody(None, "debox")
        .args(["top", "--batch", "1", "--interval", "0.3", "--socket"])
        .arg(socket)
        .args(["--", "/bin/sleep", "1"])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("CALL"),
        "{said}{}",
        errors_of(&output)
    );
    // What is not for everybody.
    let mut refused = as_nobody(None, "debox");
    refused
        .args(["run", "--trace", "read", "--socket"])
        .arg(socket)
        .args(["--", "/bin/true"]);
    let output = refused.output().expect("runs");
    assert!(
        errors_of(&output).contains("call trace hangs probes"),
        "{output:?}"
    );
    let pid = std::process::id().to_string();
    let mut refused = as_nobody(None, "debox");
    refused
        .args(["attach", "-d", "0.1", "-p", &pid, "--socket"])
        .arg(socket);
    let output = refused.output().expect("runs");
    assert!(!output.status.success(), "{output:?}");
    assert!(errors_of(&output).contains("CAP_PERFMON"), "{output:?}");
    // Root, at another user's process.
    let mut sleeper = Command::new("sleep")
        .arg("20")
        .uid(NOBODY)
        .spawn()
        .expect("sleep");
    let output = Command::new(debox())
        .args([
            "attach",
            "--json",
            "-o",
            "-",
            "-d",
            "0.3",
            "-p",
            &sleeper.id().to_string(),
        ])
        .arg("--socket")
        .arg(socket)
        .output()
        .expect("runs");
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    assert!(output.status.success(), "{}", errors_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["schema"], "debox.report", "{report}");
}

#[test]
fn started_as_root_it_runs_as_a_user_of_its_own() {
    let Some(_alone) = alone() else { return };
    let dir = directory();
    let socket = dir.path().join("run/debox.sock");
    let mut command = Command::new(deboxd());
    command.args(["-v", "--everybody", "--socket"]).arg(&socket);
    let log = std::fs::File::create(dir.path().join("log")).expect("a log");
    command.stderr(log);
    let daemon = Daemon::start(&mut command, socket.clone());
    let uid = assert_little(daemon.pid());
    // The directory that it made is its own, and so is what clients are shown.
    assert_eq!(
        std::fs::metadata(dir.path().join("run"))
            .expect("stat")
            .uid(),
        uid
    );
    let status = daemon.status().expect("an answer");
    assert_eq!(status["broker_uid"], uid);
    assert_eq!(status["broker_pid"], daemon.pid());
    assert_eq!(status["access"], "everybody");
    let said = std::fs::read_to_string(dir.path().join("log")).expect("the log");
    let line = said
        .lines()
        .find(|line| line.contains("running as a user of its own"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.contains(&format!("uid={uid}")) && line.contains("CAP_BPF"),
        "{line}"
    );
    assert_serves(&daemon);
    daemon.signal(libc::SIGHUP);
    assert_serves(&daemon);
    assert!(daemon.terminate().success());
    assert!(!socket.exists(), "the socket file is gone");
}

#[test]
fn its_unit_gives_enough_and_deboxd_needs_no_more() {
    let Some(_alone) = alone() else { return };
    let dir = directory();
    let socket = dir.path().join("debox.sock");
    // As systemd opens it.
    let listener = listening(&socket);
    let fd = listener.as_raw_fd();
    let mut command = Command::new("sh");
    command
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\""])
        .arg(staged("deboxd"))
        // As systemd does.
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/");
    // SAFETY: dup2 is async-signal-safe; the descriptor is open.
    unsafe {
        command.pre_exec(move || match libc::dup2(fd, 3) {
            -1 => Err(std::io::Error::last_os_error()),
            _ if fd == 3 && libc::fcntl(3, libc::F_SETFD, 0) != 0 => {
                Err(std::io::Error::last_os_error())
            }
            _ => Ok(()),
        });
    }
    Unit::read().confine(&mut command, UNOWNED);
    let daemon = Daemon::start(&mut command, socket);
    assert_eq!(assert_little(daemon.pid()), UNOWNED);
    // Not systemd's, nor this test's, who opened the socket.
    assert_eq!(
        daemon.status().expect("an answer")["broker_pid"],
        daemon.pid()
    );
    assert_serves(&daemon);
    daemon.signal(libc::SIGHUP);
    assert_serves(&daemon);
    assert!(daemon.terminate().success());
}

fn listening(path: &Path) -> std::os::fd::OwnedFd {
    use debox_client::packet;
    let socket = packet::bind(path, true).expect("binds");
    let on: libc::c_int = 1;
    // PassCredentials=yes
    // SAFETY: the value is a local of the size that is given.
    let set = unsafe {
        let (fd, on) = (socket.as_raw_fd(), (&raw const on).cast());
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, on, 4)
    };
    assert_eq!(set, 0);
    packet::listen(&socket, 64).expect("listens");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).expect("chmod");
    socket
}

#[test]
fn it_does_not_serve_as_root() {
    if !bpf_wanted() {
        return;
    }
    let dir = directory();
    let socket = dir.path().join("debox.sock");
    // Without CAP_SETUID it cannot leave user 0.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-setuid", "--inh-caps=-all"])
        .arg(deboxd())
        .args(["--everybody", "--socket"])
        .arg(&socket)
        .output()
        .expect("runs");
    let said = errors_of(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("does not run as user 0") && said.contains("deboxd.service"),
        "{said}"
    );
    assert!(!socket.exists());
    // Nor as a user who is root by another name, or who is not there.
    for (user, wanted) in [
        ("root", "never runs as user or group 0"),
        ("no-such", "useradd"),
    ] {
        let output = Command::new(deboxd())
            .args(["--everybody", "--user", user, "--socket"])
            .arg(&socket)
            .output()
            .expect("runs");
        assert!(
            !output.status.success() && errors_of(&output).contains(wanted),
            "{output:?}"
        );
    }
    // Nor in a directory whose owner could put another socket in its place.
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), None).expect("chown");
    let output = Command::new(deboxd())
        .args(["--everybody", "--socket"])
        .arg(&socket)
        .output()
        .expect("runs");
    let said = errors_of(&output);
    assert!(
        !output.status.success() && said.contains("belongs to user 65534"),
        "{said}"
    );
}

/// Some group with a name, other than root's.
fn some_group() -> (String, u32) {
    let groups = std::fs::read_to_string("/etc/group").expect("/etc/group");
    let mut entries = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        (id != 0 && id != NOBODY).then(|| (name.to_owned(), id))
    });
    entries.next().expect("a group other than root")
}

#[test]
fn a_group_is_let_in_and_others_are_told_which() {
    let Some(_alone) = alone() else { return };
    let dir = directory();
    let (group, id) = some_group();
    // In a directory of root's, and in one that it makes.
    for socket in ["debox.sock", "run/debox.sock"] {
        let socket = dir.path().join(socket);
        let mut command = Command::new(deboxd());
        command.args(["--group", &group, "--socket"]).arg(&socket);
        let daemon = Daemon::start(&mut command, socket.clone());
        let meta = std::fs::metadata(&socket).expect("stat");
        assert_eq!((meta.mode() & 0o7777, meta.gid()), (0o660, id));
        let status = daemon.status().expect("root is let in");
        assert_eq!(
            status["access"],
            format!("root and members of the group {group}")
        );

        let member = as_nobody(Some(id), "debox")
            .args(["run", "-q", "--socket"])
            .arg(&socket)
            .args(["--", "/bin/true"])
            .output()
            .expect("runs");
        assert!(member.status.success(), "{}", errors_of(&member));
        let other = as_nobody(None, "debox")
            .args(["run", "--socket"])
            .arg(&socket)
            .args(["--", "/bin/true"])
            .output()
            .expect("runs");
        let said = errors_of(&other);
        assert!(!other.status.success(), "{said}");
        assert!(
            said.contains(&format!("sudo usermod -aG {group} ")),
            "{said}"
        );
        // libdebox measures less and says the same.
        let mut program = as_nobody(None, "own_call");
        let output = program.env("DEBOX_SOCKET", &socket).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("wall "), "{said}");
        assert!(
            said.contains(&format!("sudo usermod -aG {group} $USER")),
            "{said}"
        );
        for (groups, wanted) in [(None, "usermod -aG"), (Some(id), "runs as ")] {
            let mut doctor = as_nobody(groups, "debox");
            let output = doctor
                .args(["doctor", "--json", "--socket"])
                .arg(&socket)
                .output();
            let output = output.expect("runs");
            let diagnosis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let checks = diagnosis["checks"].as_array().expect("checks");
            let broker = checks
                .iter()
                .find(|check| check["name"] == "broker")
                .expect("broker");
            assert!(broker.to_string().contains(wanted), "{broker}");
        }
        assert!(daemon.terminate().success());
    }
}

/// Also with what costs others or tells more: nothing of a process that he did not start
/// under debox, his own ones too; and of what he starts all of it.
#[test]
fn an_ordinary_user_measures_what_he_starts_and_nothing_else() {
    let Some(_alone) = alone() else { return };
    let dir = directory();
    let daemon = Daemon::for_everybody(dir.path());
    let socket = daemon.socket.clone();
    let features = || daemon.status().expect("root is let in")["features"].to_string();

    let looping = "exec 2>/dev/null; while :; do sleep 0.01; done";
    for uid in [NOBODY, NOBODY - 1, 0] {
        let mut victim = Command::new("/bin/sh")
            .args(["-c", looping])
            .uid(uid)
            .gid(uid)
            .spawn()
            .expect("sh");
        let pid = victim.id().to_string();
        for options in [&[][..], &["--irq"], &["--call-site"], &["--json"]] {
            let tried = as_nobody(None, "debox")
                .args(["attach", "--duration", "300ms", "-p", &pid, "--socket"])
                .arg(&socket)
                .args(options)
                .output()
                .expect("runs");
            let said = errors_of(&tried);
            assert!(!tried.status.success(), "uid {uid} {options:?}: {said}");
            assert!(
                said.contains("CAP_PERFMON"),
                "uid {uid} {options:?}: {said}"
            );
            assert!(tried.stdout.is_empty(), "uid {uid} {options:?}: {tried:?}");
        }
        victim.kill().expect("kill");
        victim.wait().expect("wait");
    }
    assert!(!features().contains("irq"), "{}", features());

    let file = dir.path().join("report.json");
    empty_of_nobody(&file);
    let started = as_nobody(None, "debox")
        .args(["run", "--irq", "--json", "--socket"])
        .arg(&socket)
        .arg("-o")
        .arg(&file)
        .args(["--", "/bin/sh", "-c", "sleep 0.1; echo $$ > /dev/null"])
        .output()
        .expect("runs");
    assert!(started.status.success(), "{}", errors_of(&started));
    let report: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
    assert_eq!(report["measured"]["irq"], true, "{}", report["notes"]);
    assert!(report["totals"]["irq_ns"].is_u64(), "{}", report["totals"]);
    wait_until("nothing of it is attached any more", || {
        !features().contains("irq")
    });
    assert!(daemon.terminate().success());
}

/// Nothing leaves root's watch; and a user's command that starts in it is counted all the same, by itself.
#[test]
fn a_users_command_is_counted_in_roots_watch() {
    let Some(_alone) = alone() else { return };
    let dir = directory();
    let daemon = Daemon::for_everybody(dir.path());
    let socket = daemon.socket.clone();
    let file = dir.path().join("report.json");
    empty_of_nobody(&file);
    let cache = dir.path().join("cache");
    std::fs::create_dir(&cache).expect("a directory");
    std::os::unix::fs::chown(&cache, Some(NOBODY), Some(NOBODY)).expect("chown");

    let run = |options: &[&str]| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "read word; \"$@\"; exit $?", "sh"]);
        let mut user = as_nobody(None, "debox");
        user.args(["run", "--json", "--socket"])
            .arg(&socket)
            .arg("-o")
            .arg(&file)
            .args(options)
            .args(["--", "/bin/sh", "-c", "umask; umask; exit 5"]);
        shell.arg(user.get_program()).args(user.get_args());
        let piped = shell.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = piped.env("XDG_CACHE_HOME", &cache).spawn().expect("sh");
        let mut root = Command::new(debox())
            .args([
                "attach",
                "--capture=sleeps",
                "-p",
                &shell.id().to_string(),
                "--socket",
            ])
            .arg(&socket)
            .stderr(Stdio::piped())
            .spawn()
            .expect("debox");
        let mut said = BufReader::new(root.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("what it says");
        assert!(line.contains("watching"), "{line}");
        shell
            .stdin
            .take()
            .expect("piped")
            .write_all(b"go\n")
            .expect("write");
        let ended = shell.wait_with_output().expect("wait");
        let mut told = String::new();
        said.read_to_string(&mut told).expect("the report");
        assert!(root.wait().expect("wait").success(), "{told}");
        (ended, told)
    };
    for options in [&[][..], &["--capture=splice"]] {
        let (ended, told) = run(options);
        assert_eq!(ended.status.code(), Some(5), "{}", errors_of(&ended));
        let report: Value =
            serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
        let rows = report["calls"].as_array().expect("rows");
        let umask = rows.iter().find(|row| row["name"] == "umask");
        assert_eq!(umask.map(|row| &row["count"]), Some(&4.into()), "{report}");
        let notes = report["notes"].to_string();
        assert!(
            notes.contains("splice_not_measured")
                && notes.contains("in an account of another user"),
            "{notes}"
        );
        // Root sees the whole of it, and nobody has left.
        assert!(!told.contains("left the watch"), "{told}");
    }
    // What only the kernel side could tell is not had so.
    let (ended, _) = run(&["--stacks"]);
    let said = errors_of(&ended);
    assert_eq!(ended.status.code(), Some(125), "{said}");
    assert!(said.contains("in an account of another user"), "{said}");
    assert!(daemon.terminate().success());
}

/// What an agent watches may be for owners to take over, ends of its periods or not.
#[test]
fn owners_go_before_a_policy_that_has_it_so() {
    let Some(_alone) = alone() else { return };
    let dir = directory();
    let daemon = Daemon::for_everybody(dir.path());
    let socket = daemon.socket.clone();
    let config = dir.path().join("agent.toml");
    let file = dir.path().join("report.json");
    for owners_first in [true, false] {
        let policy = format!(
            "[[policy]]\nname = \"users\"\nuid = [\"{NOBODY}\"]\nperiod = \"2s\"\nowners_first = {owners_first}\n\
             [flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
        );
        std::fs::write(&config, policy).expect("a file");
        let mut agent = Command::new(debox())
            .args(["agent", "--config"])
            .arg(&config)
            .arg("--socket")
            .arg(&socket)
            .stderr(Stdio::piped())
            .spawn()
            .expect("debox agent");
        let mut said = BufReader::new(agent.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("figures at") {
            line.clear();
            assert!(said.read_line(&mut line).expect("a line") > 0, "it ended");
        }
        let at = line.trim_end().rsplit_once("http://").expect("where").1;
        let at = at.strip_suffix("/metrics").expect("where").to_owned();

        empty_of_nobody(&file);
        let mut run = as_nobody(None, "debox");
        run.args(["run", "--capture=sleeps", "--json", "--socket"])
            .arg(&socket)
            .arg("-o")
            .arg(&file)
            .args(["--", "/bin/sleep", "5"]);
        let ended = run.output().expect("runs");
        let said = errors_of(&ended);
        assert_eq!(ended.status.success(), owners_first, "{said}");
        if owners_first {
            let report: Value =
                serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
            let rows = report["blocking"].as_array().expect("rows");
            let slept = rows.iter().find(|row| row["call"] == "clock_nanosleep");
            let slept = slept.and_then(|row| row["total_ns"].as_u64());
            assert!(slept.is_some_and(|ns| ns > 4_990_000_000), "{report}");
            assert!(!report["notes"].to_string().contains("threads_left"));
            // The agent says that it lacks them.
            let mut figures = String::new();
            let mut stream = std::net::TcpStream::connect(&at).expect("figures");
            stream
                .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
                .expect("asks");
            stream.read_to_string(&mut figures).expect("figures");
            assert!(figures.contains("threads_left"), "{figures}");
        } else {
            assert!(said.contains("in an account of another user"), "{said}");
        }
        // SAFETY: kill touches no memory; it is our own child.
        unsafe { libc::kill(agent.id() as i32, libc::SIGTERM) };
        assert!(agent.wait().expect("wait").success());
    }
    assert!(daemon.terminate().success());
}

#[test]
fn without_the_group_it_says_what_to_do() {
    if !bpf_wanted() {
        return;
    }
    let dir = directory();
    let socket = dir.path().join("debox.sock");
    let output = Command::new(deboxd())
        .args(["--group", "no-such-group", "--socket"])
        .arg(&socket)
        .output()
        .expect("runs");
    let said = errors_of(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("groupadd --system no-such-group"), "{said}");
    assert!(said.contains("--everybody") && !socket.exists(), "{said}");
}

// ----------------------------------------------------------------- the unit

#[test]
fn the_unit_promises_what_is_written() {
    let unit = Unit::read();
    assert_eq!(unit.get("User"), Some("debox"));
    assert_eq!(unit.get("Group"), Some("debox"));
    let ambient = unit.capabilities("AmbientCapabilities");
    assert_eq!(ambient, unit.capabilities("CapabilityBoundingSet"));
    for (name, value) in [("IPAddressDeny", "any"), ("NoNewPrivileges", "yes")] {
        assert_eq!(unit.get(name), Some(value), "{name}");
    }
    for name in ["MemoryMax", "TasksMax"] {
        assert!(
            unit.get(name).is_some_and(|value| value != "infinity"),
            "{name}"
        );
    }
    needs("systemd-analyze");
    let calls = unit.calls();
    let left: Vec<String> = unit::set("@resources")
        .intersection(&calls)
        .cloned()
        .collect();
    // sched_yield and the like are in sets that are always there.
    assert!(left.is_empty(), "{left:?}");
    let left: Vec<String> = unit::set("@privileged")
        .intersection(&calls)
        .cloned()
        .collect();
    assert_eq!(left, ["bpf"]);
    // What a process needs that shuts itself in, as the one does that reads programs.
    for call in [
        "seccomp",
        "prctl",
        "landlock_restrict_self",
        "execve",
        "prlimit64",
    ] {
        assert!(calls.contains(call), "{call}");
    }
}

fn needs(program: &str) {
    let there = Command::new(program).arg("--version").output().is_ok();
    assert!(
        there,
        "{program} is not installed: `make setup-test` does that"
    );
}

#[test]
fn systemd_finds_little_exposed() {
    needs("systemd-analyze");
    let dir = directory();
    // systemd-analyze wants the programs to be there.
    std::fs::create_dir(dir.path().join("bin")).expect("a directory");
    for name in ["deboxd", "bin/debox"] {
        let program = dir.path().join(name);
        std::fs::write(&program, "#!/bin/sh\n").expect("written");
        open_to_all(&program);
    }
    let place = dir.path().to_str().expect("UTF-8");
    for name in ["deboxd.service", "debox-agent.service"] {
        let text = std::fs::read_to_string(root().join("systemd").join(name)).expect("the unit");
        let unit = dir.path().join(name);
        let text = text.replace("@SBINDIR@", place).replace("@PREFIX@", place);
        std::fs::write(&unit, text).expect("written");
        let output = Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true"])
            .arg(&unit)
            .output()
            .expect("systemd-analyze");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let level = format!("Overall exposure level for {name}: ");
        let exposure: f64 = said
            .lines()
            .find_map(|line| line.split_once(&level))
            .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{said}{}", errors_of(&output)));
        assert!(exposure <= 2.0, "{name}: {exposure}:\n{said}");
    }
}

#[test]
fn the_units_user_can_be_made() {
    needs("systemd-sysusers");
    let dir = directory();
    std::fs::create_dir(dir.path().join("etc")).expect("a directory");
    let status = Command::new("systemd-sysusers")
        .arg(format!("--root={}", dir.path().display()))
        .arg(root().join("systemd/debox.conf"))
        .output()
        .expect("systemd-sysusers");
    assert!(status.status.success(), "{status:?}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("made");
    let user = read("etc/passwd");
    assert!(
        user.starts_with("debox:") && user.contains("/nologin"),
        "{user}"
    );
    assert!(read("etc/group").starts_with("debox:"));
    let socket = std::fs::read_to_string(root().join("systemd/deboxd.socket")).expect("the unit");
    assert!(socket.contains("\nSocketGroup=debox\n") && socket.contains("\nSocketMode=0660\n"));
}
