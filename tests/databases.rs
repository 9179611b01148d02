// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a database say the same of its waits?
//!
//! PostgreSQL knows who blocks whom (pg_blocking_pids) and how long it synced its log
//! (pg_stat_wal); MariaDB who blocks whom, and how long all waits for rows were
//! (Innodb_row_lock_time). SQLite knows nothing, and the kernel who has its locks
//! (/proc/locks).

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
        Session::of(
            self.client("psql").args(["-AtXq"]),
            "select pg_backend_pid();",
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: our child, which has not been waited for. SIGINT: at once, in order.
        unsafe { libc::kill(self.postmaster.id() as i32, libc::SIGINT) };
        let _ = self.postmaster.wait();
    }
}

/// A client of a database that says what it is told to.
struct Session {
    client: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The thread that serves it.
    backend: u32,
}

impl Session {
    /// `who` asks for the number of that thread.
    fn of(client: &mut Command, who: &str) -> Session {
        let mut client = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut session = Session {
            input: client.stdin.take(),
            output: BufReader::new(client.stdout.take().unwrap()),
            client,
            backend: 0,
        };
        session.say(who);
        session.backend = session.line().parse().expect("a thread");
        session
    }

    fn say(&mut self, words: &str) {
        let input = self.input.as_mut().expect("open");
        writeln!(input, "{words}").unwrap();
        input.flush().unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn end(mut self) {
        self.input = None;
        assert!(self.client.wait().unwrap().success());
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
    let Some(_alone) = alone() else { return };
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
    let Some(_alone) = alone() else { return };
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

/// A server of our own, as above.
struct MariaDb {
    directory: tempfile::TempDir,
    server: Child,
}

/// Debian has it in /usr/sbin.
fn found(program: &str) -> String {
    let found = Command::new("sh")
        .args([
            "-c",
            "PATH=$PATH:/usr/sbin:/usr/libexec; command -v $0",
            program,
        ])
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    assert!(
        !found.is_empty(),
        "{program} is missing: `setup/packages.sh all` installs mariadb-server-core"
    );
    found
}

impl MariaDb {
    fn start() -> MariaDb {
        let directory = tempfile::Builder::new()
            .prefix("debox-my")
            .tempdir_in("/var/tmp")
            .unwrap();
        let path = directory.path();
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        let data = format!("--datadir={}", path.join("data").display());
        let made = as_nobody(&mut Command::new(found("mariadb-install-db")))
            .args(["--no-defaults", "--skip-test-db", &data])
            .arg("--auth-root-authentication-method=normal")
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let server = as_nobody(&mut Command::new(found("mariadbd")))
            .args(["--no-defaults", "--skip-networking", &data])
            .arg("--innodb-buffer-pool-size=16M")
            .arg(format!("--socket={}", path.join("socket").display()))
            .arg(format!("--pid-file={}", path.join("pid").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = MariaDb { directory, server };
        wait_until("MariaDB answers", || {
            let answer = server.client().args(["-e", "select 1"]).output();
            answer.unwrap().status.success()
        });
        server
    }

    fn client(&self) -> Command {
        let mut command = Command::new(found("mariadb"));
        command
            .args(["--no-defaults", "-u", "root", "-NBn"])
            .arg(format!(
                "--socket={}",
                self.directory.path().join("socket").display()
            ));
        command
    }

    fn ask(&self, sql: &str) -> String {
        let out = self.client().args(["-e", sql]).output().unwrap();
        assert!(out.status.success(), "{sql}: {out:?}");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    fn session(&self) -> Session {
        Session::of(
            &mut self.client(),
            "select tid from information_schema.processlist where id = connection_id();",
        )
    }

    /// Of all waits for rows that are over, as it counts them.
    fn waited_ms(&self) -> u64 {
        let row = self.ask("show global status like 'Innodb_row_lock_time'");
        let ms = row.split_whitespace().last().and_then(|ms| ms.parse().ok());
        ms.unwrap_or_else(|| panic!("{row}"))
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        // SAFETY: our child, which has not been waited for.
        unsafe { libc::kill(self.server.id() as i32, libc::SIGTERM) };
        let _ = self.server.wait();
    }
}

/// The wait is as long as the server says, who ended it is the connection that the server
/// says it waits for, and that one had waited for its own client.
#[test]
fn a_row_that_another_connection_has() {
    let Some(_alone) = alone() else { return };
    let server = MariaDb::start();
    server.ask(
        "create database d; create table d.t(id int primary key, v int) engine=innodb; \
         insert into d.t values (1, 0)",
    );
    let mut holder = server.session();
    let mut waiter = server.session();
    let (blocked, blocking) = (waiter.backend, holder.backend);
    holder.say("begin; update d.t set v = 1 where id = 1; select 'held';");
    assert_eq!(holder.line(), "held");
    let attached = Attached::to(&[server.server.id()], server.directory.path());
    let before = server.waited_ms();
    waiter.say("update d.t set v = 2 where id = 1; select 'done';");
    let waits = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'";
    wait_until("the second waits", || server.ask(waits) == "1");
    let begin = Instant::now();
    let says = server.ask(
        "select p.tid, q.tid from information_schema.innodb_lock_waits w \
         join information_schema.innodb_trx r on r.trx_id = w.requesting_trx_id \
         join information_schema.innodb_trx b on b.trx_id = w.blocking_trx_id \
         join information_schema.processlist p on p.id = r.trx_mysql_thread_id \
         join information_schema.processlist q on q.id = b.trx_mysql_thread_id",
    );
    assert_eq!(says, format!("{blocked}\t{blocking}"));
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(server.ask(waits), "1", "it waits all the time");
    let waited = begin.elapsed().as_nanos() as u64;
    holder.say("commit; select 'done';");
    assert_eq!(
        (holder.line().as_str(), waiter.line().as_str()),
        ("done", "done")
    );
    let says = (server.waited_ms() - before) * 1_000_000;
    holder.end();
    waiter.end();
    attached.stop();
    let report = attached.report();

    // It wakes others as well, for shorter.
    let sleep = report["slow_calls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|call| call["call"] == "futex" && call["tid"] == blocked)
        .flat_map(|call| call["sleeps"].as_array().unwrap())
        .filter(|sleep| sleep["waker"]["tid"] == blocking)
        .max_by_key(|sleep| number(sleep, "blocked_ns"))
        .unwrap_or_else(|| {
            panic!(
                "{blocked} did not wait for {blocking}: {:#}",
                report["slow_calls"]
            )
        });
    let measured = number(sleep, "blocked_ns");
    println!("the server says {says} ns, debox {measured} ns");
    assert!(measured >= waited, "{waited}: {sleep}");
    // It begins to count a little before it sleeps, and counts until it runs again, in
    // milliseconds.
    let runs = measured + number(sleep, "runq_ns");
    assert!(
        runs <= says + says / 10 + 2_000_000 && says <= runs + runs / 10 + 20_000_000,
        "the server says {says} ns, debox {measured} ns: {sleep}"
    );
    let links = report["chain_links"].as_array().unwrap();
    let link = |link: &Value| links.get(link.as_u64()? as usize);
    let first = link(&sleep["chain"]).expect("a chain");
    let second = link(&first["parent"]).expect("a second link");
    assert_eq!(
        (&first["call"], &second["kind"]),
        (&"futex".into(), &"sleep".into())
    );
    assert_eq!(second["call"], "poll", "for its client: {second}");
    let third = link(&second["parent"]).expect("a third link");
    assert_eq!(third["comm"], "mariadb", "its client: {third}");
}

const SQLITE: &str = r#"
import sqlite3, sys, threading
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("create table if not exists t(v)")
print(threading.get_native_id(), flush=True)
for line in sys.stdin:
    connection.execute(line)
    print("done", flush=True)
"#;

/// SQLite does not wait for a lock: it tries, and sleeps between its tries. Said is what
/// is true, that it sleeps for a timer, and that another process has the file locked,
/// which the kernel says of it.
#[test]
fn a_file_that_another_connection_has_locked() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::Builder::new()
        .prefix("debox-lite")
        .tempdir_in("/var/tmp")
        .unwrap();
    let file = directory.path().join("database");
    let session = || {
        let mut python = Command::new("python3");
        Session::of(python.args(["-c", SQLITE]).arg(&file), "select 1")
    };
    let mut holder = session();
    assert_eq!(holder.line(), "done");
    let mut waiter = session();
    assert_eq!(waiter.line(), "done");
    holder.say("begin immediate");
    assert_eq!(holder.line(), "done");
    let (blocked, blocking) = (waiter.backend, holder.backend);
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&file).unwrap());
    let writes = |pid: u32| {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            matches!(words[1..], ["POSIX", _, "WRITE", of, at, ..]
                if of == pid.to_string() && at.ends_with(&format!(":{inode}")))
        })
    };
    assert!(writes(blocking) && !writes(blocked));
    let attached = Attached::to(&[blocked], directory.path());
    waiter.say("begin immediate");
    let begin = Instant::now();
    let note = format!(
        "{} is open here and locked by python3 ({blocking}): it may be trying again and again",
        file.display()
    );
    let why = || {
        let out = Command::new(debox())
            .args(["why", "--json", &blocked.to_string()])
            .output()
            .unwrap();
        let why: Value = serde_json::from_slice(&out.stdout).unwrap();
        why["threads"][0].clone()
    };
    // Between two looks it may be trying.
    let mut said = Value::Null;
    wait_until("it sleeps, and is told behind whom", || {
        said = why();
        said["notes"]
            .as_array()
            .is_some_and(|notes| notes.iter().any(|n| *n == note))
    });
    assert_eq!(said["label"], "nanosleep", "{said}");
    assert!(
        said["on"].as_array().is_none_or(Vec::is_empty),
        "it waits for nobody: {said}"
    );
    std::thread::sleep(Duration::from_millis(1200));
    assert!(writes(blocking) && !writes(blocked), "all the time");
    let waited = begin.elapsed().as_nanos() as u64;
    holder.say("commit");
    assert_eq!(
        (holder.line().as_str(), waiter.line().as_str()),
        ("done", "done")
    );
    assert!(writes(blocked) && !writes(blocking), "it has the lock now");
    holder.end();
    waiter.end();
    let report = attached.report();

    let row = |name: &str| {
        let rows = report["calls"].as_array().unwrap();
        rows.iter()
            .find(|row| row["name"] == name)
            .cloned()
            .unwrap()
    };
    let (tries, sleeps) = (row("fcntl"), row("clock_nanosleep"));
    assert!(
        number(&tries, "errors") >= 5,
        "each try was refused: {tries}"
    );
    assert_eq!(number(&tries, "blocked_ns"), 0, "and did not wait: {tries}");
    assert!(
        number(&sleeps, "count") >= number(&tries, "errors"),
        "it slept after each: {sleeps}"
    );
    // The rest are the tries, and waits for a CPU.
    let asleep = number(&sleeps, "wall_ns");
    assert!(asleep > waited / 2, "{asleep} of {waited} ns: {sleeps}");
    let links = report["chain_links"].as_array().unwrap();
    let chains = report["chains"].as_array().unwrap();
    let sleeping: Vec<&Value> = chains
        .iter()
        .filter_map(|row| links.get(row["first"].as_u64()? as usize))
        .filter(|link| link["call"] == "clock_nanosleep")
        .filter_map(|link| links.get(link["parent"].as_u64()? as usize))
        .collect();
    assert!(
        !sleeping.is_empty() && sleeping.iter().all(|root| root["kind"] == "timer"),
        "{sleeping:?}"
    );
}
