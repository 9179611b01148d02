// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do others count the same? strace, perf, getrusage and the kernel's own
//! books, on real programs.

use debox_tests::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

fn have(tool: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

#[track_caller]
fn need(tool: &str) {
    assert!(
        have(tool),
        "{tool} is missing: `make setup-test` installs it"
    );
}

fn counts(run: &Run) -> BTreeMap<String, u64> {
    run.report["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["name"].as_str().unwrap().to_owned(), number(r, "count")))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// `strace -f -c`: calls and errors by name. exit and exit_group never return
/// and are in neither table.
fn strace(command: &[&str]) -> BTreeMap<String, (u64, u64)> {
    need("strace");
    let file = tempfile::NamedTempFile::new().unwrap();
    // The same kinds of files on 0, 1 and 2 as under `run`: programs ask.
    let output = Command::new("strace")
        .args(["-f", "-c", "-U", "name,calls,errors", "-o"])
        .arg(file.path())
        .args(command)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "strace {command:?}");
    std::fs::read_to_string(file.path())
        .unwrap()
        .lines()
        .filter_map(|l| {
            let mut w = l.split_whitespace();
            let (name, calls, errors) = (w.next()?, w.next()?, w.next().unwrap_or("0"));
            (name != "total").then_some((
                name.to_owned(),
                (calls.parse().ok()?, errors.parse().unwrap_or(0)),
            ))
        })
        .collect()
}

/// Programs that make the same calls every time.
#[test]
fn strace_counts_the_same() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("t.db").display().to_string();
    let tar = directory.path().join("t.tar").display().to_string();
    let commands: Vec<Vec<&str>> = vec![
        vec!["tar", "cf", &tar, "/usr/include/linux"],
        vec![
            "sqlite3",
            &db,
            "drop table if exists t; create table t(a); insert into t values(1); select count(*) from t;",
        ],
        vec![
            "sh",
            "-c",
            "for i in 1 2 3 4 5; do /bin/true; ls / >/dev/null; done",
        ],
        vec!["git", "--version"],
    ];
    for command in &commands {
        // once to warm up what a program leaves behind (databases, caches)
        Command::new(command[0])
            .args(&command[1..])
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .status()
            .unwrap();
        let ours = run(&["--capture=boundary"], command);
        ours.check_sound();
        let theirs = strace(command);
        assert!(theirs.len() > 5, "{theirs:?}");
        for (name, (calls, errors)) in &theirs {
            let row = ours.call(name);
            let have = row["count"].as_u64().unwrap_or(0);
            // The allocator grows its heap by as much as address space
            // randomisation makes necessary.
            let slack = if name == "brk" { 1 } else { 0 };
            assert!(
                have.abs_diff(*calls) <= slack,
                "{command:?}: {name}: {have}, strace {calls}"
            );
            let have = row["errors"].as_u64().unwrap_or(0) + row["restarted"].as_u64().unwrap_or(0);
            assert_eq!(have, *errors, "{command:?}: errors of {name}");
        }
        for (name, n) in counts(&ours) {
            assert!(
                theirs.contains_key(&name),
                "{command:?}: {name} {n} times, strace has none"
            );
        }
    }
}

/// perf counts every sys_enter, those that never return included.
#[test]
fn perf_counts_the_same() {
    let Some(_alone) = alone() else { return };
    let Some(perf) = perf() else {
        panic!("perf is missing or does not run: `make setup-test` installs linux-perf");
    };
    let command = ["tar", "cf", "/dev/null", "/usr/include/linux"];
    let output = Command::new(&perf)
        .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "--"])
        .args(command)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let theirs: u64 = text
        .lines()
        .find(|l| l.contains("raw_syscalls:sys_enter"))
        .and_then(|l| l.split(',').next())
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("perf stat says: {text}"));
    let ours = run(&["--capture=boundary"], &command);
    let totals = &ours.report["totals"];
    let have = number(totals, "calls") + number(totals, "unfinished");
    // perf counts from its own execve on, with what its child does before.
    assert!(have.abs_diff(theirs) <= 4, "{have}, perf {theirs}");
}

fn perf() -> Option<String> {
    Command::new("perf")
        .arg("--version")
        .output()
        .ok()
        .filter(|o| o.status.success())
        .map(|_| "perf".to_owned())
}

/// The books of getrusage for a whole run: faults and switches of the children
/// are those of the calls plus those in user mode.
#[test]
fn getrusage_bounds_the_account() {
    let Some(_alone) = alone() else { return };
    let script = "import os,resource,subprocess,sys,json\n\
        subprocess.run(['tar','czf','/dev/null','/usr/include/linux'],check=True,stderr=subprocess.DEVNULL)\n\
        u=resource.getrusage(resource.RUSAGE_CHILDREN)\n\
        print(json.dumps([u.ru_minflt,u.ru_majflt,u.ru_nvcsw,u.ru_nivcsw,u.ru_stime]))";
    let run = run(&["--capture=boundary"], &["python3", "-c", script]);
    run.check_sound();
    let books: Vec<f64> = serde_json::from_slice::<Value>(&run.output.stdout)
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect();
    let totals = &run.report["totals"];
    // python itself adds faults of its own, all in the report too
    assert!(
        number(totals, "nvcsw") as f64 >= books[2] * 0.5,
        "{totals} {books:?}"
    );
    assert!(number(totals, "minor_faults") > 0);
    let cpu = number(totals, "cpu_ns") as f64 / 1e9;
    // system time holds faults and interrupts outside of calls as well, and
    // is sampled by the tick
    assert!(
        cpu < books[4] * 3.0 + 1.0,
        "{cpu} s on CPU in calls, {} s system time",
        books[4]
    );
}

#[test]
fn static_go_and_32_bit_programs_are_counted_exactly() {
    let Some(_alone) = alone() else { return };
    let path = |name: &str| program(name).display().to_string();
    let fixed = run(
        &[],
        &[path("calls-static"), "getppid".into(), "1000".into()],
    );
    fixed.check_sound();
    assert_eq!(fixed.count("getppid"), 1000);

    let compat = run(
        &["--capture=boundary"],
        &[path("calls-32"), "getppid".into(), "500".into()],
    );
    compat.check_sound();
    assert_eq!(
        number(&compat.call_abi("getppid", 32), "count"),
        500,
        "{}",
        compat.report["calls"]
    );
    assert_eq!(compat.count("getppid"), 0, "no 64-bit getppid was made");

    let go = run(&["--capture=boundary"], &[path("gocalls"), "300".into()]);
    go.check_sound();
    assert_eq!(go.count("getppid"), 1200);
    assert!(
        go.blocking("read")
            .iter()
            .any(|r| r["label"] == "pipe-read" && number(r, "max_ns") > 20_000_000),
        "{}",
        go.report["blocking"]
    );
}

#[test]
fn awkward_programs_are_counted_exactly() {
    let Some(_alone) = alone() else { return };
    let calls = program("calls").display().to_string();
    let go = |a: &[&str]| {
        let mut command = vec![calls.as_str()];
        command.extend(a);
        let r = run(&["--capture=boundary"], &command);
        r.check_sound();
        r
    };
    let r = go(&["threads", "200", "10"]);
    assert_eq!(r.count("getppid"), 2000);
    assert_eq!(
        number(&r.report["totals"], "threads_started"),
        200,
        "{}",
        r.report["totals"]
    );
    let r = go(&["fork", "100"]);
    assert_eq!(r.count("getppid"), 100);
    assert_eq!(
        number(&r.call("exit_group"), "unfinished"),
        101,
        "{}",
        r.call("exit_group")
    );
    let r = go(&["vfork", "20"]);
    assert_eq!(r.count("vfork"), 20);
    assert_eq!(r.count("execve"), 21, "{}", r.call("execve"));
    assert!(
        r.blocking("vfork").iter().any(|b| b["label"] == "vfork"),
        "{:?}",
        r.blocking("vfork")
    );
    let r = go(&["exec", "5"]);
    assert_eq!(r.count("getppid"), 6);
    assert_eq!(r.count("execve"), 6);
    let r = go(&["thread-exec"]);
    assert_eq!(r.output.status.code(), Some(7));
    let r = go(&["killed"]);
    // The kernel leaves a killed call through its exit, as one to be restarted.
    let read = r.call("read");
    assert_eq!(
        number(&read, "unfinished") + number(&read, "restarted"),
        1,
        "{read}"
    );
    assert!(
        r.blocking("read").iter().any(|b| b["label"] == "pipe-read"),
        "a killed sleep is a sleep: {:?}",
        r.report["blocking"]
    );
    let r = go(&["errors", "77"]);
    assert_eq!(
        number(&r.call("close"), "errors"),
        77,
        "{}",
        r.call("close")
    );
    let r = go(&["unknown"]);
    assert!(
        r.report["calls"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["nr"].is_null() && number(c, "errors") == 1),
        "{}",
        r.report["calls"]
    );
    let r = go(&["handler", "20"]);
    assert_eq!(r.count("getppid"), 21);
    assert_eq!(
        number(&r.call("rt_sigreturn"), "errors"),
        0,
        "{}",
        r.call("rt_sigreturn")
    );
    assert!(
        number(&r.call("pause"), "restarted") + number(&r.call("pause"), "errors") >= 18,
        "{}",
        r.call("pause")
    );
}

/// A server under a load generator: as many answers as the generator counted.
/// A socket, a pipe and a FIFO that threads read from, each of them one byte at a time. Says the
/// numbers of these descriptors, and goes on for as long as somebody reads what it says.
const READERS: &str = r#"
import os, socket, sys, threading, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
c = socket.create_connection(s.getsockname()); a, _ = s.accept()
r, w = os.pipe()
os.mkfifo(sys.argv[1]); f = os.open(sys.argv[1], os.O_RDWR)
def again(call):
    while True: call()
for call in (lambda: c.recv(1), lambda: os.read(r, 1), lambda: os.read(f, 1)):
    threading.Thread(target=again, args=(call,), daemon=True).start()
print(c.fileno(), r, f, flush=True)
while True:
    time.sleep(0.02); a.send(b"x"); os.write(w, b"x"); os.write(f, b"x")
"#;

#[test]
fn lsof_names_the_same_objects() {
    let Some(_alone) = alone() else { return };
    need("lsof");
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let fifo = directory.path().join("fifo");
    let mut child = Command::new("python3")
        .args(["-c", READERS])
        .arg(&fifo)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let fds: Vec<&str> = line.split_whitespace().collect();
    let pid = child.id().to_string();
    let report = directory.path().join("report.json");
    let attached = Command::new(debox())
        .args(["attach", "--json", "-q", "-d", "1s", "-p", &pid, "-o"])
        .arg(&report)
        .arg("--socket")
        .arg(shared_broker().socket())
        .output();
    let listed = Command::new("lsof")
        .args(["-nP", "-p", &pid, "-a", "-d", &fds.join(","), "-F", "fin"])
        .output();
    child.kill().unwrap();
    child.wait().unwrap();
    let (attached, listed) = (attached.unwrap(), listed.unwrap());
    assert!(attached.status.success(), "{attached:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let objects = report["objects"].as_array().unwrap();
    // One record a descriptor: f4, i4822232, n127.0.0.1:1->127.0.0.1:2.
    let listed = String::from_utf8(listed.stdout).unwrap();
    let field = |fd: &str, letter: char| -> String {
        let of_it = listed
            .lines()
            .skip_while(|l| *l != format!("f{fd}"))
            .skip(1);
        let mut fields = of_it.take_while(|l| !l.starts_with('f'));
        let found = fields.find_map(|l| l.strip_prefix(letter));
        found
            .unwrap_or_else(|| panic!("{letter} of {fd}:\n{listed}"))
            .to_owned()
    };
    let told = |what: &str, is_it: &dyn Fn(&Value) -> bool| {
        assert!(
            objects.iter().any(is_it),
            "no {what}: {objects:#?}\n{listed}"
        );
    };
    let both = field(fds[0], 'n');
    let (local, peer) = both.split_once("->").unwrap();
    told(&both, &|o| o["local"] == local && o["peer"] == peer);
    let pipe: u64 = field(fds[1], 'i').parse().unwrap();
    told("pipe", &|o| o["kind"] == "pipe" && o["inode"] == pipe);
    let inode: u64 = field(fds[2], 'i').parse().unwrap();
    let name = field(fds[2], 'n');
    told(&name, &|o| {
        o["name"] == name.as_str() && o["inode"] == inode
    });
}

#[test]
fn nginx_under_wrk() {
    let Some(_alone) = alone() else { return };
    need("nginx");
    need("wrk");
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path().display().to_string();
    std::fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    std::fs::create_dir(directory.path().join("www")).unwrap();
    std::fs::write(directory.path().join("www/f"), vec![b'x'; 1024]).unwrap();
    let port = free_port();
    std::fs::write(
        directory.path().join("nginx.conf"),
        format!(
            "daemon off; master_process off; pid {d}/pid; error_log {d}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; client_body_temp_path {d}/a; proxy_temp_path {d}/b; fastcgi_temp_path {d}/c; uwsgi_temp_path {d}/e; scgi_temp_path {d}/g; \
             keepalive_requests 1000000; server {{ listen 127.0.0.1:{port}; root {d}/www; }} }}\n"
        ),
    )
    .unwrap();
    // nginx is the command; wrk runs beside it, and ends it.
    let script = format!(
        "nginx -c {d}/nginx.conf & n=$!; \
         for i in $(seq 100); do curl -sf -o /dev/null http://127.0.0.1:{port}/f && break; sleep 0.05; done; echo $n > {d}/nginx.pid; \
         wait $n"
    );
    let report = directory.path().join("report.json");
    let mut child = Command::new(debox())
        .args(["run", "--json", "-o"])
        .arg(&report)
        .args(["--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pid_file = directory.path().join("nginx.pid");
    for _ in 0..200 {
        if pid_file.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let wrk = Command::new("wrk")
        .args(["-t1", "-c16", "-d3s", &format!("http://127.0.0.1:{port}/f")])
        .output()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let nginx: i32 = std::fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // SAFETY: the nginx that the script started.
    unsafe { libc::kill(nginx, libc::SIGQUIT) };
    child.wait().unwrap();
    let text = String::from_utf8_lossy(&wrk.stdout).into_owned();
    let answered: u64 = text
        .lines()
        .find_map(|l| l.trim().split_once(" requests in "))
        .and_then(|(n, _)| n.trim().parse().ok())
        .unwrap_or_else(|| panic!("wrk says: {text}"));
    let run = Run {
        report: serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap(),
        output: wrk,
    };
    run.check_sound();
    let sent = run.count("sendfile");
    // At the end wrk leaves up to one answer a connection uncounted.
    assert!(
        sent >= answered && sent <= answered + 16 + 2,
        "{sent} sendfile calls for {answered} answers"
    );
}

/// redis answers each PING with one read and one write.
#[test]
fn redis_under_its_benchmark() {
    let Some(_alone) = alone() else { return };
    need("redis-server");
    need("redis-benchmark");
    let port = free_port();
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "redis-server --port {port} --bind 127.0.0.1 --save '' --appendonly no --dir {d} --daemonize no >/dev/null & r=$!; \
         for i in $(seq 100); do redis-cli -p {port} ping >/dev/null 2>&1 && break; sleep 0.05; done; \
         redis-benchmark -p {port} -t ping_mbulk -n 5000 -c 1 -q >/dev/null; redis-cli -p {port} shutdown nosave; wait $r",
        d = directory.path().display()
    );
    let run = run(&["--capture=boundary"], &["sh", "-c", &script]);
    run.check_sound();
    assert_eq!(run.output.status.code(), Some(0));
    // server and client: 5,000 requests each, and what set-up takes
    let sent = run.count("write") + run.count("sendto");
    assert!(
        (10_000..10_400).contains(&sent),
        "{sent} writes for 5,000 pings"
    );
    assert!(
        run.blocking("epoll_wait")
            .iter()
            .any(|b| b["label"] == "epoll"),
        "{}",
        run.report["blocking"]
    );
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// The kernel's own book of a whole process: time waited for a CPU.
#[test]
fn schedstat_agrees_with_the_run_queue_wait() {
    let Some(_alone) = alone() else { return };
    // Mostly system calls, beside a hog on the same CPU; python prints its
    // own schedstat at the end.
    let script = "import os,time\n\
        os.sched_setaffinity(0,{min(os.sched_getaffinity(0))})\n\
        p=os.fork()\n\
        if p==0:\n\
        \x20 while True: pass\n\
        a=open('/proc/self/schedstat').read().split()\n\
        for i in range(60): time.sleep(0.002)\n\
        b=open('/proc/self/schedstat').read().split()\n\
        os.kill(p,9); os.waitpid(p,0)\n\
        print(int(b[1])-int(a[1]))";
    let run = run(&["--capture=boundary"], &["python3", "-c", script]);
    run.check_sound();
    let books: u64 = String::from_utf8_lossy(&run.output.stdout)
        .trim()
        .parse()
        .unwrap();
    let row = run.call("clock_nanosleep");
    let ours = number(&row, "runq_ns");
    assert!(ours <= books + 100_000, "{ours} > {books}");
    assert!(ours + 3_000_000 >= books / 2, "{ours} of {books} ns");
}
