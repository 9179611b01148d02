// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a program do the same under DeBox as without it?

use debox_tests::*;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A file that the user nobody can write.
struct Report {
    _directory: tempfile::TempDir,
    path: std::path::PathBuf,
}

impl Report {
    fn of_nobody() -> Report {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
        let path = directory.path().join("report.json");
        Report {
            _directory: directory,
            path,
        }
    }

    fn path(&self) -> &std::path::Path {
        &self.path
    }
}

fn plain(command: &[&str]) -> Output {
    Command::new(command[0])
        .args(&command[1..])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn same<'a>(run: fn(&[&str], &[&'a str]) -> Run, options: &[&str], command: &[&'a str]) {
    let without = plain(command);
    let with = run(options, command);
    assert_eq!(
        with.output.status, without.status,
        "{options:?} {command:?}"
    );
    assert_eq!(
        String::from_utf8_lossy(&with.output.stdout),
        String::from_utf8_lossy(&without.stdout),
        "{options:?} {command:?}"
    );
    assert_eq!(
        String::from_utf8_lossy(&with.output.stderr),
        String::from_utf8_lossy(&without.stderr),
        "{options:?} {command:?}"
    );
}

/// Real programs, each way.
#[test]
fn real_programs_give_the_same_output() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir().unwrap();
    let d = directory.path().display().to_string();
    let git = format!(
        "cd {d} && rm -rf r && git init -q r && cd r && echo a > a && git add a && git -c user.name=t -c user.email=t@t -c commit.gpgsign=false commit -qm one --date=2000-01-01T00:00:00 && git status --short && git log --format=%s"
    );
    let sqlite = format!(
        "rm -f {d}/x.db; sqlite3 {d}/x.db 'create table t(a); insert into t values(1),(2); select sum(a) from t;'"
    );
    let tar = "tar c /usr/include/linux | sha256sum";
    let python = "import subprocess,threading,os,sys\nr=[]\nt=[threading.Thread(target=lambda i=i: r.append(i)) for i in range(50)]\n[x.start() for x in t]\n[x.join() for x in t]\nprint(sorted(r))\nprint(subprocess.run(['sh','-c','exit 3']).returncode)\nos.environ['X']='1'\nprint(subprocess.check_output(['sh','-c','echo $X'],text=True))\nprint(os.popen('echo popen').read())\nsys.exit(5)";
    // With a broker of its own, as who has no deboxd, and with the one that all share.
    for options in [&[][..], &["--capture=wrap"][..]] {
        let way = if options.is_empty() {
            run_privately
        } else {
            run
        };
        for command in [
            vec!["sh", "-c", tar],
            vec!["sh", "-c", &git],
            vec!["sh", "-c", &sqlite],
            vec!["python3", "-c", python],
            vec![
                "bash",
                "-c",
                "echo a; echo b >&2; seq 1000 | sort -rn | head -3; (exit 9) || echo $?",
            ],
            vec![
                "perl",
                "-e",
                "$SIG{ALRM}=sub{print qq(alarm\\n); exit 4}; alarm 1; sleep 10",
            ],
            vec!["env", "-i", "/bin/echo", "no environment"],
            vec!["sh", "-c", "umask; ulimit -n; echo $0"],
        ] {
            same(way, options, &command);
        }
    }
}

/// Awkward ends, each way.
#[test]
fn awkward_programs_end_the_same() {
    let Some(_alone) = alone() else { return };
    let calls = program("calls").display().to_string();
    for options in [&[][..], &["--capture=wrap"][..]] {
        for arguments in [
            &["exit", "0"][..],
            &["exit", "42"],
            &["exit", "255"],
            &["signal", "15"],
            &["signal", "9"],
            &["signal", "11"],
            &["signal", "6"],
            &["signal", "13"],
            &["thread-exec"],
            &["killed"],
            &["vfork", "5"],
            &["handler", "10"],
            &["exec", "3"],
            &["threads", "100", "3"],
            &["fork", "20"],
            &["errors", "5"],
            &["unknown"],
            &["sandbox", "20"],
            &["strict", "20"],
            &["no-stamps", "20"],
            &["file-limit", "20"],
        ] {
            let mut command = vec![calls.as_str()];
            command.extend(arguments);
            same(run, options, &command);
        }
    }
}

/// The interposer counts what goes through libc's wrappers, and says what it
/// cannot see.
#[test]
fn wrap_counts_and_says_what_it_does_not_cover() {
    let Some(_alone) = alone() else { return };
    let calls = program("calls").display().to_string();
    let run = run(
        &["--capture=wrap"],
        &[calls.as_str(), "threads", "40", "50"],
    );
    assert_eq!(run.count("getppid"), 2000, "{}", run.report["calls"]);
    assert!(
        run.notes().contains(&"wrap_coverage".to_owned()),
        "{:?}",
        run.notes()
    );
    assert_eq!(run.report["run"]["capture"], "wrap");

    // A sleep in a call that is not interposed: pthread_join waits by futex.
    let truth = program("truth").display().to_string();
    let run = debox_tests::run(
        &["--capture=wrap"],
        &[truth.as_str(), "-d", "/var/tmp", "pipe", "30"],
    );
    let read = run.call("read");
    assert!(number(&read, "blocked_ns") > 25_000_000, "{read}");
    assert!(
        run.blocking("read")
            .iter()
            .any(|b| b["label"] == "pipe-read"),
        "{}",
        run.report["blocking"]
    );

    let go = debox_tests::run(
        &["--capture=wrap"],
        &[program("gocalls").to_str().unwrap(), "10"],
    );
    assert_eq!(go.output.status.code(), Some(0));
    assert_eq!(
        go.count("getppid"),
        0,
        "a program without libc has nothing to interpose"
    );
    assert!(
        go.blocking("read")
            .iter()
            .any(|b| b["label"] == "pipe-read"),
        "the kernel side sees the sleep all the same: {}",
        go.report["blocking"]
    );
    let notes = go.notes();
    assert!(notes.contains(&"wrap_nobody".to_owned()), "{notes:?}");
}

/// A user without privileges, through a broker that somebody with them runs.
#[test]
fn a_user_without_privileges() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let report = Report::of_nobody();
    // The build tree may be closed to other users: copy what they need.
    let bin = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        bin.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    for (from, name) in [
        (debox(), "debox"),
        (program("calls"), "calls"),
        (program("truth"), "truth"),
    ] {
        std::fs::copy(from, bin.path().join(name)).unwrap();
    }
    // The interposer finds its library beside it: none needs to be installed.
    for name in ["libdebox-wrap.so", "libdebox.so.0"] {
        std::fs::copy(
            root().join("target/release").join(name),
            bin.path().join(name),
        )
        .unwrap();
    }
    for options in [&[][..], &["--capture=wrap"][..]] {
        let mut command = Command::new(bin.path().join("debox"));
        command
            .current_dir("/")
            .args(["run", "--json", "-o"])
            .arg(report.path())
            .args(options)
            .arg("--socket")
            .arg(broker.socket());
        command
            .arg("--")
            .arg(bin.path().join("calls"))
            .args(["getppid", "123"]);
        let output = as_nobody(&mut command).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let r = Run {
            report: serde_json::from_slice(&std::fs::read(report.path()).unwrap()).unwrap(),
            output,
        };
        assert_eq!(r.count("getppid"), 123, "{options:?} {}", r.report);
    }
    // In band, too.
    let mut command = Command::new(bin.path().join("truth"));
    command
        .current_dir("/")
        .env("DEBOX_SOCKET", broker.socket())
        .args(["-b", "nanosleep", "20"]);
    let line = lines(&as_nobody(&mut command).output().unwrap()).remove(0);
    assert!(number(&line["record"], "blocked_ns") > 19_000_000, "{line}");
    assert_eq!(line["record"]["sleeps"][0]["label"], "nanosleep", "{line}");

    // It may not watch others: root's broker, an unprivileged client.
    let mut command = Command::new(bin.path().join("debox"));
    command
        .current_dir("/")
        .args(["attach", "-d", "1", "-p", "1", "--socket"])
        .arg(broker.socket());
    let output = as_nobody(&mut command).output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("CAP_PERFMON") || said.contains("root"),
        "the remedy is named: {said}"
    );
}

/// What a machine does not allow is refused with the reason, or done in a
/// coarser way that says so: never silently something else.
#[test]
fn function_probes_or_a_clear_word() {
    let Some(_alone) = alone() else { return };
    let words = |o: &Output| String::from_utf8_lossy(&o.stderr).into_owned();
    let doctor = Command::new(debox())
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let works = |name: &str| {
        doctor["checks"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["name"] == name && c["state"] == "ok")
    };
    let traceable = works("fentry") || works("kprobe.multi") || works("kprobe.session");

    let kern = Command::new(debox())
        .args(["kern", "vfs_read", "-d", "1s", "--json", "--", "cat"])
        .arg(root().join("Cargo.toml"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if traceable || works("kprobe") {
        assert_eq!(kern.status.code(), Some(0), "{}", words(&kern));
    } else {
        assert_eq!(kern.status.code(), Some(125), "{}", words(&kern));
        assert!(
            words(&kern).contains("vfs_read cannot be measured: "),
            "{}",
            words(&kern)
        );
        // System calls can be measured all the same.
        let call = Command::new(debox())
            .args(["kern", "read()", "--json", "--", "cat"])
            .arg(root().join("Cargo.toml"))
            .output()
            .unwrap();
        assert_eq!(call.status.code(), Some(0), "{}", words(&call));
    }

    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.json");
    let run = Command::new(debox())
        .args(["run", "--json", "--trace", "default", "-o"])
        .arg(&report)
        .args(["--", "cat"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", words(&run));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let trace = &report["trace"];
    assert_eq!(trace["coarse"], !traceable, "{trace}");
    assert_eq!(trace["way"] == "tracepoints", !traceable, "{trace}");
    if !traceable {
        let text = trace["text"].as_str().unwrap();
        assert!(text.contains("no probes on functions"), "{text}");
    }
    // What is traced by default is what calls pass.
    let slowest = trace["slowest"].as_array().expect("a list");
    assert!(!slowest.is_empty(), "{trace}");
    // Asked for by name, a way that is not there is refused.
    if !works("kprobe.session") {
        let run = Command::new(debox())
            .args(["run", "--trace", "vfs_read", "--way", "session"])
            .args(["--", "true"])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(125), "{}", words(&run));
        assert!(words(&run).contains("kprobe.session: "), "{}", words(&run));
    }

    // Without privileges nothing is measured, and the remedy is named.
    let bin = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        bin.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    std::fs::copy(debox(), bin.path().join("debox")).unwrap();
    let mut command = Command::new(bin.path().join("debox"));
    command
        .current_dir("/")
        .args(["kern", "read()", "-d", "1s"]);
    let refused = as_nobody(&mut command).output().unwrap();
    assert_eq!(refused.status.code(), Some(125), "{}", words(&refused));
    assert!(
        words(&refused).contains("debox doctor"),
        "{}",
        words(&refused)
    );
}

/// What ptrace would refuse to an ordinary user runs as it does alone, is not
/// watched, not acted on, and that is said.
#[test]
fn what_ptrace_would_refuse_runs_unwatched() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let bin = tempfile::tempdir_in("/var/tmp").unwrap();
    let mode = |path: &Path, bits| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(bits);
        std::fs::set_permissions(path, mode).unwrap();
    };
    mode(bin.path(), 0o755);
    let debox = bin.path().join("debox");
    std::fs::copy(self::debox(), &debox).unwrap();
    for (name, bits, why) in [
        ("setuid", 0o4755, "set-user-id"),
        ("setgid", 0o2755, "set-group-id"),
        ("unreadable", 0o711, "run but not read"),
    ] {
        let calls = bin.path().join(name);
        std::fs::copy(program("calls"), &calls).unwrap();
        mode(&calls, bits);
        let report = Report::of_nobody();
        let mut command = Command::new(&debox);
        command
            .current_dir("/")
            .args(["run", "--json", "-o"])
            .arg(report.path())
            .arg("--socket")
            .arg(broker.socket())
            // Stopped, it would not end.
            .args(["--on", "call == close", "--do", "stop", "--"])
            .arg(&calls)
            .args(["errors", "50"]);
        let output = as_nobody(&mut command).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let r = Run {
            report: serde_json::from_slice(&std::fs::read(report.path()).unwrap()).unwrap(),
            output,
        };
        let close = r.call("close")["count"].as_u64().unwrap_or(0);
        assert_eq!(close, 0, "{name}: {}", r.report["calls"]);
        let notes = r.report["notes"].as_array().unwrap();
        let note = |kind: &str| notes.iter().find(|note| note["kind"] == kind);
        let left = note("threads_left").unwrap_or_else(|| panic!("{name}: {notes:?}"));
        assert_eq!(left["count"], 1, "{name}: {left}");
        assert!(left["text"].as_str().unwrap().contains(why), "{left}");
        assert!(note("threads_running").is_none(), "{name}: {notes:?}");
    }
}

/// A watch inside a watch, by one user and by root: the inner one has the
/// threads, and the outer one says so.
#[test]
fn a_run_inside_of_a_run_takes_over_and_that_is_said() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let bin = tempfile::tempdir_in("/var/tmp").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.path(), mode).unwrap();
    let debox = bin.path().join("debox");
    std::fs::copy(self::debox(), &debox).unwrap();
    for user in ["nobody", "root"] {
        let [outer, inner] = [Report::of_nobody(), Report::of_nobody()];
        let mut command = Command::new(&debox);
        command.current_dir("/");
        for (report, next) in [(&outer, debox.as_os_str()), (&inner, "true".as_ref())] {
            command.args(["run", "--json", "-o"]).arg(report.path());
            command.arg("--socket").arg(broker.socket());
            command.arg("--").arg(next);
        }
        if user == "nobody" {
            as_nobody(&mut command);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{user}: {text}");
        let read = |report: &Report| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(report.path()).unwrap()).unwrap()
        };
        let (outer, inner) = (read(&outer), read(&inner));
        for report in [&outer, &inner] {
            let run = Run {
                report: report.clone(),
                output: output.clone(),
            };
            assert!(run.call("execve")["count"].as_u64() > Some(0), "{user}");
        }
        let notes = outer["notes"].as_array().unwrap();
        let left = notes.iter().find(|note| note["kind"] == "threads_left");
        let left = left.unwrap_or_else(|| panic!("{user}: {notes:?}"));
        let text = left["text"].as_str().unwrap();
        assert!(text.contains("1 went to another account"), "{user}: {left}");
        // And one more where the inner debox has places in programs to name (a wait at the
        // start of `true`, on a busy machine): who names them closes its address space.
        assert!(
            left["count"] == 1 || left["count"] == 2 && text.contains("undumpable"),
            "{user}: {left}"
        );
    }
}

/// When the last watcher leaves, no BPF program stays attached.
#[test]
fn nothing_stays_attached() {
    let Some(_alone) = alone() else { return };
    let before = programs_attached();
    let broker = Broker::start();
    assert_eq!(programs_attached(), before, "nobody watches yet");
    {
        let _run = run_privately(&["--socket", broker.socket().to_str().unwrap()], &["true"]);
    }
    let _ = bracketed(&broker, &["getpid", "1"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(programs_attached(), before, "the last watcher has left");
    let mut child = Command::new(debox())
        .args(["run", "-o", "/dev/null", "--socket"])
        .arg(broker.socket())
        .args(["--", "sleep", "1"])
        .spawn()
        .unwrap();
    // The command runs for a second from then on; to get there may take a busy machine longer.
    wait_until("somebody is watched", || {
        programs_attached().len() > before.len()
    });
    child.wait().unwrap();
}

/// What `debox kern --json` says of resources, whole.
fn kern(options: &[&str], command: &[&str]) -> serde_json::Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kern.json");
    let output = Command::new(debox())
        .args(["kern", "--quiet", "--json", "-o"])
        .arg(&file)
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{options:?}: {said}");
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

fn totals(document: &serde_json::Value, place: usize) -> [u64; 6] {
    let totals = &document["resources"][place]["totals"];
    [
        "calls",
        "returned",
        "inside_now",
        "never_returned",
        "max_ns",
        "off_cpu_ns",
    ]
    .map(|field| number(totals, field))
}

/// System calls need no probes on functions: times, threads inside, the end of
/// threads, processes and the page.
#[test]
fn kern_measures_calls_on_any_kernel() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("kern.html");
    let script = "sleep 0.06; head -c 100 /dev/zero >/dev/null";
    let document = kern(
        &[
            "clock_nanosleep()",
            "read()",
            "read()@pid=1",
            "--html",
            page.to_str().unwrap(),
        ],
        &["sh", "-c", script],
    );
    let [calls, returned, _, _, longest, off_cpu] = totals(&document, 0);
    assert_eq!((calls, returned), (1, 1));
    assert!(longest >= 60_000_000 && off_cpu >= 30_000_000, "{document}");
    assert!(totals(&document, 1)[0] > 0, "{document}");
    assert_eq!(totals(&document, 2)[0], 0, "{document}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.trim_end().ends_with("</html>"));

    let document = kern(&["clock_nanosleep()", "-d", "1s"], &["sleep", "30"]);
    assert_eq!(totals(&document, 0)[..4], [1, 0, 1, 0], "{document}");
    let script = "sleep 600 & sleep 0.5; kill -9 $!; wait; sleep 0.1";
    let document = kern(&["clock_nanosleep()"], &["sh", "-c", script]);
    // Killed, it leaves the call all the same.
    assert_eq!(totals(&document, 0)[..4], [3, 3, 0, 0], "{document}");

    let load = [
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=4k",
        "count=100000000",
    ];
    let options = [
        "read()",
        "--max-overhead",
        "0.0001",
        "-i",
        "0.4",
        "-d",
        "3s",
    ];
    let document = kern(&options, &load);
    assert!(document.to_string().contains("taken out"), "{document}");
}

#[test]
fn kern_finds_the_function_by_stacks() {
    let Some(_alone) = alone() else { return };
    let load = [
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=256k",
        "count=100000000",
    ];
    let document = kern(&["--auto", "--sampled", "read", "-d", "2s"], &load);
    assert_eq!(document["path"]["method"], "sampled");
    let steps = &document["path"]["branches"][0]["steps"];
    let mut steps = steps.as_array().expect("steps").iter();
    assert!(
        steps.any(|step| step["function"] == "vfs_read"),
        "{document}"
    );
}
