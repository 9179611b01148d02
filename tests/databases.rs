// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a database say the same of its waits?
//!
//! PostgreSQL knows who blocks whom (pg_blocking_pids) and how long it synced its log
//! (pg_stat_wal).

use debox_tests::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A server of our own, on a socket of its own, which ends with the test.
struct Cluster {
    programs: PathBuf,
    directory: tempfile::TempDir,
    postmaster: Child,
}

/// Debian has the server's programs in a folder a version; others on the path.
fn programs() -> PathBuf {
    let found = Command::new("sh")
        .args([
            "-c",
            "for d in /usr/lib/postgresql/*/bin $(echo $PATH | tr : ' '); do \
             [ -x $d/initdb ] && echo $d && break; done",
        ])
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&found.stdout);
    assert!(
        !found.trim().is_empty(),
        "initdb is missing: `setup/packages.sh all` installs postgresql"
    );
    found.trim().into()
}

impl Cluster {
    fn start() -> Cluster {
        let programs = programs();
        let directory = tempfile::Builder::new()
            .prefix("debox-pg")
            .tempdir_in("/var/tmp")
            .unwrap();
        let path = directory.path();
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        let made = as_nobody(&mut Command::new(programs.join("initdb")))
            .args(["-N", "-A", "trust", "-U", "test", "-D"])
            .arg(path.join("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let postmaster = as_nobody(&mut Command::new(programs.join("postgres")))
            .arg("-D")
            .arg(path.join("data"))
            .arg("-k")
            .arg(path)
            .args(["-c", "listen_addresses=", "-c", "track_wal_io_timing=on"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let cluster = Cluster {
            programs,
            directory,
            postmaster,
        };
        wait_until("PostgreSQL answers", || {
            cluster
                .client("psql")
                .arg("-lqt")
                .output()
                .unwrap()
                .status
                .success()
        });
        cluster
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-h").arg(self.directory.path());
        command.args(["-U", "test"]).env("PGDATABASE", "postgres");
        command
    }

    fn ask(&self, sql: &str) -> String {
        let out = self.client("psql").args(["-AtXqc", sql]).output().unwrap();
        assert!(out.status.success(), "{sql}: {out:?}");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    fn session(&self) -> Session {
        let mut psql = self
            .client("psql")
            .args(["-AtXq"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut session = Session {
            input: psql.stdin.take(),
            output: BufReader::new(psql.stdout.take().unwrap()),
            psql,
            backend: 0,
        };
        session.say("select pg_backend_pid();");
        let mut line = String::new();
        session.output.read_line(&mut line).unwrap();
        session.backend = line.trim().parse().expect("a process");
        session
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: our child, which has not been waited for. SIGINT: at once, in order.
        unsafe { libc::kill(self.postmaster.id() as i32, libc::SIGINT) };
        let _ = self.postmaster.wait();
    }
}

struct Session {
    psql: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    backend: u32,
}

impl Session {
    fn say(&mut self, sql: &str) {
        let input = self.input.as_mut().expect("open");
        writeln!(input, "{sql}").unwrap();
        input.flush().unwrap();
    }

    fn end(mut self) {
        self.input = None;
        assert!(self.psql.wait().unwrap().success());
    }
}

/// `debox attach`, from when it watches.
struct Attached {
    debox: Child,
    file: PathBuf,
}

impl Attached {
    fn to(pids: &[u32], directory: &Path) -> Attached {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let file = directory.join("recording.debox");
        let mut debox = Command::new(debox())
            .args(["attach", "-p", &pids.join(","), "-o"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(debox.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("watching"), "{line}");
        Attached { debox, file }
    }

    fn stop(&self) {
        // SAFETY: our child, which has not been waited for.
        unsafe { libc::kill(self.debox.id() as i32, libc::SIGINT) };
    }

    fn report(mut self) -> Value {
        assert!(self.debox.wait().unwrap().success());
        let out = Command::new(debox())
            .args(["report", "--json"])
            .arg(&self.file)
            .output()
            .unwrap();
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

/// The whole wait is told, though it began before, and who ended it: the one whom the
/// server says it waits for.
#[test]
fn a_transaction_that_waits_for_another() {
    if !bpf_wanted() {
        return;
    }
    let _alone = alone();
    let cluster = Cluster::start();
    cluster.ask("create table t(id int primary key, v int); insert into t values (1, 0);");
    let mut holder = cluster.session();
    holder.say("begin; update t set v = 1 where id = 1;");
    let mut waiter = cluster.session();
    let (blocked, blocking) = (waiter.backend, holder.backend);
    let waiting = format!(
        "select count(*) from pg_stat_activity where pid = {blocked} and wait_event_type = 'Lock'"
    );
    let locked = "select count(*) from pg_locks where mode = 'RowExclusiveLock'";
    wait_until("the first has the row", || cluster.ask(locked) != "0");
    waiter.say("update t set v = 2 where id = 1;");
    wait_until("the second waits", || cluster.ask(&waiting) == "1");
    let says = cluster.ask(&format!("select pg_blocking_pids({blocked})"));
    assert_eq!(says, format!("{{{blocking}}}"));

    let why = Command::new(debox())
        .args(["why", &blocked.to_string()])
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.contains("ProcSleep"),
        "the server's own wait for locks: {why}"
    );

    let attached = Attached::to(&[blocked], cluster.directory.path());
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(cluster.ask(&waiting), "1", "it waits all the time");
    let waited = begin.elapsed().as_nanos() as u64;
    holder.say("commit;");
    holder.end();
    waiter.end();
    let report = attached.report();

    let rows = report["calls"].as_array().unwrap();
    let epoll = rows.iter().find(|row| row["name"] == "epoll_wait").unwrap();
    assert!(number(epoll, "blocked_ns") >= waited, "{waited}: {epoll}");
    let culprits = report["culprits"].as_array().unwrap();
    let ended: u64 = culprits
        .iter()
        .filter(|row| number(row, "pid") == u64::from(blocking) && row["role"] == "waker")
        .map(|row| number(row, "total_ns"))
        .sum();
    assert!(ended >= waited, "{blocking} ended it: {culprits:?}");
}

/// The time of the log's syncs, as the server measured it.
#[test]
fn commits_wait_for_the_log_as_long_as_the_server_says() {
    if !bpf_wanted() {
        return;
    }
    let _alone = alone();
    let cluster = Cluster::start();
    cluster.ask("create table t(v int); checkpoint; select pg_stat_reset_shared('wal');");
    let mut sessions: Vec<Session> = (0..3).map(|_| cluster.session()).collect();
    let others =
        cluster.ask("select pid from pg_stat_activity where backend_type <> 'client backend'");
    let mut pids: Vec<u32> = others.lines().map(|pid| pid.parse().unwrap()).collect();
    pids.extend(sessions.iter().map(|session| session.backend));
    let attached = Attached::to(&pids, cluster.directory.path());
    let before: f64 = cluster
        .ask("select wal_sync_time from pg_stat_wal")
        .parse()
        .unwrap();
    for session in &mut sessions {
        for n in 0..150 {
            session.say(&format!("insert into t values ({n});"));
        }
    }
    for session in sessions {
        session.end();
    }
    // What a backend has counted is told at its end, at the latest.
    wait_until("all is told", || {
        cluster.ask("select count(*) from pg_stat_activity where backend_type = 'client backend'")
            == "1"
    });
    attached.stop();
    let report = attached.report();
    let after: f64 = cluster
        .ask("select wal_sync_time from pg_stat_wal")
        .parse()
        .unwrap();
    let says = (after - before) * 1e6;
    let rows = report["calls"].as_array().unwrap();
    let synced = rows
        .iter()
        .find(|row| row["name"] == "fdatasync")
        .expect("commits");
    let measured = number(synced, "wall_ns") as f64;
    println!("the server says {says} ns, debox {measured} ns");
    assert!(number(synced, "count") >= 150, "{synced}");
    // The server's clock is read around the call; what it rounds is a microsecond.
    assert!(
        (measured - says).abs() < says * 0.1 + 5e6,
        "the server says {says} ns, debox {measured} ns: {synced}"
    );
}
