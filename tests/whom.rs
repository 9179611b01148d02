// SPDX-License-Identifier: MIT OR Apache-2.0
//! Are those watched that are meant, from their first instruction, and nobody else?
//!
//! Every process here is started by the test, under a name of its own.

use debox_tests::*;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const NOBODY: u32 = 65534;

/// Copies of programs under names that nobody else has.
struct Named(tempfile::TempDir);

impl Named {
    fn new() -> Named {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        Named(dir)
    }

    fn copy(&self, of: &str, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::copy(of, &path).expect("a copy");
        path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// `debox attach`, which watches already.
struct Attached {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
    first: String,
    report: PathBuf,
}

fn attach(command: &mut Command, options: &[&str], report: &Path) -> Attached {
    let mut child = command
        .arg("attach")
        .args(options)
        .arg("-o")
        .arg(report)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("debox starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut first = String::new();
    said.read_line(&mut first).expect("a line");
    Attached {
        child,
        said,
        first,
        report: report.to_owned(),
    }
}

impl Attached {
    /// Ctrl-C; the recording as JSON.
    fn finish(mut self) -> Value {
        // SAFETY: no memory involved; it is our child, not reaped.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        let status = self.child.wait().expect("it ends");
        let rest: Vec<String> = self.said.lines().map_while(Result::ok).collect();
        assert!(status.success(), "{}{}", self.first, rest.join("\n"));
        let output = Command::new(debox())
            .args(["report", "--json"])
            .arg(&self.report)
            .output()
            .expect("debox report");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

fn lives<'a>(report: &'a Value, comm: &str) -> Vec<&'a Value> {
    let all = report["lives"].as_array().expect("lives");
    all.iter().filter(|life| life["comm"] == comm).collect()
}

fn count(report: &Value, call: &str) -> u64 {
    let calls = report["calls"].as_array().expect("calls");
    let of = calls.iter().filter(|row| row["name"] == call);
    of.map(|row| number(row, "count")).sum()
}

#[test]
fn who_comes_by_exec_is_watched_from_the_first_instruction() {
    let Some(_alone) = alone() else { return };
    let named = Named::new();
    let late = named.copy("/bin/sleep", "whom-late");
    // What a whole run of it calls, its first calls among them.
    let due = run_privately(&[], &[late.as_os_str(), "0.02".as_ref()]).report;
    let attached = attach(
        &mut Command::new(debox()),
        &["--comm", "whom-l*"],
        &named.file("comm.debox"),
    );
    assert!(attached.first.contains("no process"), "{}", attached.first);
    assert!(
        attached.first.contains("--comm 'whom-l*'"),
        "{}",
        attached.first
    );
    for _ in 0..3 {
        let ended = Command::new(&late).arg("0.02").status().expect("runs");
        assert!(ended.success());
        // Another one that does not fit.
        Command::new("/bin/true").status().expect("runs");
    }
    let report = attached.finish();
    assert_eq!(lives(&report, "true").len(), 0, "{}", report["lives"]);
    for call in [
        "brk",
        "mmap",
        "openat",
        "close",
        "clock_nanosleep",
        "munmap",
    ] {
        let once = count(&due, call);
        assert!(once > 0, "{call} {}", due["calls"]);
        assert_eq!(count(&report, call), 3 * once, "{call}");
    }
    let of = lives(&report, "whom-late");
    let processes: u64 = of.iter().map(|life| number(life, "processes")).sum();
    assert_eq!(processes, 3, "{}", report["lives"]);
}

#[test]
fn a_parents_children_come_along_and_debox_does_not() {
    let Some(_alone) = alone() else { return };
    let named = Named::new();
    let child = named.copy("/bin/sleep", "whom-child");
    // A shell, its child, a grandchild, and debox below it.
    let script = format!(
        "{0} 30 & (exec /bin/sh -c '{0} 30 & wait') & \
         {1} attach -p $$ --json -d 500ms -o {2} & wait $!; kill -9 $(jobs -p)",
        child.display(),
        debox().display(),
        named.file("family.json").display()
    );
    let output = Command::new("/bin/sh")
        .args(["-c", &script])
        .process_group(0)
        .output()
        .expect("sh");
    let told = std::fs::read(named.file("family.json"));
    let told = told.unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let report: Value = serde_json::from_slice(&told).expect("JSON");
    // The grandchild's parent was killed, and it was not.
    let pids: Vec<u64> = lives(&report, "whom-child")
        .iter()
        .map(|life| number(life, "pid"))
        .collect();
    for pid in &pids {
        // SAFETY: no memory involved; started above.
        unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
    }
    assert_eq!(pids.len(), 2, "{}", report["lives"]);
    assert_eq!(lives(&report, "debox").len(), 0, "{}", report["lives"]);
}

#[test]
fn a_group_that_is_made_later() {
    if !bpf_wanted() {
        return;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let unified = mounts
        .lines()
        .filter_map(|line| line.split_once(" - cgroup2 "))
        .find_map(|(mount, _)| mount.split(' ').nth(4));
    let Some(unified) = unified else {
        not_run("the unified hierarchy of control groups is not mounted here");
        return;
    };
    let _alone = alone();
    let named = Named::new();
    let inside = named.copy("/bin/sleep", "whom-inside");
    let outside = named.copy("/bin/sleep", "whom-outside");
    let unit = format!("whom-{}", std::process::id());
    let attached = attach(
        &mut Command::new(debox()),
        &["--unit", &unit],
        &named.file("unit.debox"),
    );
    let group = Path::new(unified).join(format!("{unit}.service"));
    std::fs::create_dir(&group).expect("a control group");
    let script = format!(
        "echo $$ > {0}/cgroup.procs; {1} 0.01; {1} 0.01",
        group.display(),
        inside.display()
    );
    let joined = Command::new("/bin/sh").args(["-c", &script]).status();
    let other = Command::new(&outside).arg("0.01").status();
    let report = attached.finish();
    // Who was in it has ended.
    wait_until("the group is empty", || std::fs::remove_dir(&group).is_ok());
    assert!(joined.expect("sh").success() && other.expect("sleep").success());
    let of = lives(&report, "whom-inside");
    let processes: u64 = of.iter().map(|life| number(life, "processes")).sum();
    assert!(processes >= 2 || of.len() == 2, "{}", report["lives"]);
    assert_eq!(of[0]["unit"], format!("{unit}.service"), "{}", of[0]);
    assert_eq!(
        lives(&report, "whom-outside").len(),
        0,
        "{}",
        report["lives"]
    );
    assert_eq!(count(&report, "clock_nanosleep"), 2);
}

#[test]
fn an_ordinary_user_gets_what_ptrace_would_let_him_read() {
    let Some(_alone) = alone() else { return };
    let named = Named::new();
    let broker = Broker::start();
    let sleeper = |name: &str, uid: u32| -> Child {
        Command::new("/bin/sh")
            .arg("-c")
            .arg(format!(
                "while :; do {} 0.01; done",
                named.copy("/bin/sleep", name).display()
            ))
            .uid(uid)
            .gid(uid)
            .process_group(0)
            .spawn()
            .expect("sh")
    };
    let mut before = [
        sleeper("whom-mine", NOBODY),
        sleeper("whom-roots", 0),
        sleeper("whom-other", NOBODY - 1),
    ];
    // His own, but closed: it can be run, and not be read.
    let closed = named.copy("/bin/sleep", "whom-closed");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o711)).expect("chmod");
    let report = named.file("all.json");
    std::fs::write(&report, "").expect("a file");
    std::os::unix::fs::chown(&report, Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut command = Command::new(debox());
    let attached = as_nobody(&mut command)
        .args(["attach", "--all", "--json", "-d", "1500ms", "--socket"])
        .arg(broker.socket())
        .arg("-o")
        .arg(&report)
        .stderr(Stdio::piped())
        .spawn()
        .expect("debox");
    let debox_pid = attached.id();
    for _ in 0..5 {
        let mut late = Command::new(&closed);
        as_nobody(late.arg("0.01")).status().expect("runs");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let output = attached.wait_with_output().expect("ends");
    for child in &mut before {
        // SAFETY: no memory involved; a process group of our child, not reaped.
        unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
        child.wait().expect("ends");
    }
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let told = std::fs::read(&report).expect("a report");
    let report: Value = serde_json::from_slice(&told).expect("JSON");
    assert!(
        !lives(&report, "whom-mine").is_empty(),
        "{}",
        report["lives"]
    );
    for name in ["whom-roots", "whom-other", "whom-closed", "deboxd"] {
        assert_eq!(lives(&report, name).len(), 0, "{name}: {}", report["lives"]);
    }
    // By their ids: what other tests run as nobody is there for nobody.
    for pid in [before[1].id(), before[2].id(), broker.pid(), debox_pid] {
        let lives = report["lives"].as_array().expect("lives");
        assert!(lives.iter().all(|life| life["pid"] != pid), "{pid}");
    }
}

/// Runs a script as the first process of a PID namespace with a /proc of its own.
fn in_namespace(script: &str) -> Option<std::process::Output> {
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "/bin/sh", "-c", script])
        .output()
        .ok()?;
    let refused = String::from_utf8_lossy(&output.stderr).contains("unshare: ");
    if refused {
        not_run("PID namespaces are refused here");
    }
    (!refused).then_some(output)
}

#[test]
fn inside_of_a_pid_namespace_its_own_numbers_hold() {
    let Some(_alone) = alone() else { return };
    let named = Named::new();
    let child = named.copy("/bin/sleep", "whom-child");
    let script = format!(
        "{debox} run --json -o {run} -- /bin/sh -c 'echo $$ > {pid}; {child} 0.05' && \
         {{ {child} 5 & }} && {debox} attach -p $! --json -d 300ms -o {attach} && echo $! > {pid}2",
        debox = debox().display(),
        run = named.file("run.json").display(),
        attach = named.file("attach.json").display(),
        pid = named.file("pid").display(),
        child = child.display(),
    );
    let Some(output) = in_namespace(&script) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let read = |name: &str| std::fs::read_to_string(named.file(name)).expect(name);
    let pid = |name: &str| read(name).trim().parse::<u64>().expect("a number");
    let report = |name: &str| serde_json::from_str::<Value>(&read(name)).expect("JSON");
    let ran = report("run.json");
    assert!(count(&ran, "clock_nanosleep") == 1, "{}", ran["calls"]);
    let numbers = |report: &Value| -> Vec<u64> {
        let lives = report["lives"].as_array().expect("lives");
        lives.iter().map(|life| number(life, "pid")).collect()
    };
    assert!(numbers(&ran).contains(&pid("pid")), "{}", ran["lives"]);
    assert!(
        numbers(&ran).iter().all(|pid| *pid < 1000),
        "{}",
        ran["lives"]
    );
    let attached = report("attach.json");
    let lives = lives(&attached, "whom-child");
    assert_eq!(lives.len(), 1, "{}", attached["lives"]);
    assert_eq!(number(lives[0], "pid"), pid("pid2"));
    let open = attached["open_calls"].as_array().expect("open calls");
    assert!(
        open.iter().any(|call| call["call"] == "clock_nanosleep"),
        "{open:?}"
    );
}

#[test]
fn a_client_in_a_pid_namespace_has_records_of_the_brokers_outside() {
    let Some(_alone) = alone() else { return };
    let broker = Broker::start();
    let script = format!(
        "DEBOX_SOCKET={} {} -b -d /var/tmp nanosleep 20",
        broker.socket().display(),
        program("truth").display()
    );
    let Some(output) = in_namespace(&script) else {
        return;
    };
    let told = lines(&output);
    let record = &told[0]["record"];
    assert!(number(record, "blocked_ns") >= 15_000_000, "{record}");
}
