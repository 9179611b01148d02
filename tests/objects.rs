// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is the file, peer or lock word told that a call really worked on?
//!
//! tests/truth/objects.c knows its objects, from getsockname(), fstat() and ttyname(),
//! and gives the descriptors that it waits on to other files meanwhile: who looks
//! late, sees /dev/null.

use debox_tests::*;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Command;

/// The report of a recording, and what the program wrote.
fn recorded(command: &[OsString]) -> (Value, String) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("run.debox");
    let broker = shared_broker();
    let output = Command::new(debox())
        .args(["run", "-q", "--capture=boundary", "--socket"])
        .arg(broker.socket())
        .arg("-o")
        .arg(&file)
        .arg("--")
        .args(command)
        .output()
        .expect("debox runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report = Command::new(debox())
        .args(["report", "--json"])
        .arg(&file)
        .output()
        .expect("debox runs");
    let report = serde_json::from_slice(&report.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&report.stderr)));
    (report, String::from_utf8_lossy(&output.stdout).into_owned())
}

fn objects(arguments: &[&OsStr]) -> (Value, String) {
    let mut command = vec![program("objects").into_os_string()];
    command.extend(arguments.iter().map(|a| (*a).to_owned()));
    recorded(&command)
}

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report[name].as_array().map_or(&[], Vec::as_slice)
}

/// The first thread's calls that waited for the other one, in order.
fn waits<'a>(report: &'a Value, call: &str) -> Vec<&'a Value> {
    let mut calls: Vec<&Value> = list(report, "slow_calls")
        .iter()
        .filter(|c| c["call"] == call && c["pid"] == c["tid"])
        .filter(|c| number(c, "blocked_ns") > 5_000_000)
        .collect();
    calls.sort_by_key(|c| number(c, "start_ns"));
    calls
}

fn object_of<'a>(report: &'a Value, row: &Value) -> &'a Value {
    let at = row["object"].as_u64();
    at.map_or(&Value::Null, |at| &report["objects"][at as usize])
}

/// The sums are those of the sleeps, and each wait is in them.
#[track_caller]
fn check_sums(report: &Value) {
    let sum = |table: &str, field: &str| -> u64 {
        list(report, table)
            .iter()
            .map(|row| number(row, field))
            .sum()
    };
    for field in ["total_ns", "count"] {
        assert_eq!(sum("by_object", field), sum("blocking", field), "{field}");
    }
}

#[test]
fn descriptors_are_named_as_they_were_not_as_they_are() {
    let Some(_alone) = alone() else { return };
    for removed in [false, true] {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        let paths: Vec<_> = (0..40)
            .map(|i| directory.path().join(format!("file-{i:02}")))
            .collect();
        let mut arguments = vec![OsStr::new("lock")];
        if removed {
            arguments.push(OsStr::new("-d"));
        }
        arguments.extend(paths.iter().map(|path| path.as_os_str()));
        let (report, _) = objects(&arguments);
        let waits = waits(&report, "flock");
        assert_eq!(waits.len(), 40, "{:#}", report["slow_calls"]);
        let mark = if removed { " (deleted)" } else { "" };
        for (wait, path) in waits.iter().zip(&paths) {
            let path = path.display().to_string();
            assert_eq!(wait["path"], format!("{path}{mark}"), "{wait}");
            let object = object_of(&report, wait);
            assert_eq!(object["name"], path);
            assert_eq!(object["kind"], "file");
            assert_eq!(
                object["deleted"],
                if removed { true.into() } else { Value::Null }
            );
            let flags = &wait["arguments"][1];
            assert_eq!(
                (&flags["name"], &flags["text"]),
                (&"operation".into(), &"LOCK_EX".into())
            );
        }
        check_sums(&report);
        // Each file has a row with its wait.
        for path in &paths {
            let text = format!("{}{mark}", path.display());
            let row = list(&report, "by_object")
                .iter()
                .find(|row| row["call"] == "flock" && object_of(&report, row)["text"] == text);
            let row = row.unwrap_or_else(|| panic!("no row of {text}"));
            assert!(number(row, "total_ns") > 5_000_000, "{row}");
        }
    }
}

#[test]
fn device_and_inode_are_those_of_the_file() {
    use std::os::unix::fs::MetadataExt;
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let path = directory.path().join("file");
    let (report, _) = objects(&[OsStr::new("lock"), path.as_os_str()]);
    let is = std::fs::metadata(&path).expect("the file is there");
    let waits = waits(&report, "flock");
    let object = object_of(&report, waits[0]);
    assert_eq!(number(object, "inode"), is.ino());
    let device = format!("{}:{}", libc::major(is.dev()), libc::minor(is.dev()));
    assert_eq!(object["device"], device);
}

#[test]
fn every_kind_of_object_is_told() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let (report, output) = objects(&[OsStr::new("kinds"), directory.path().as_os_str()]);
    let expected: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect();
    let without: Vec<&Value> = expected
        .iter()
        .filter(|e| !e["missing"].is_null())
        .collect();
    if !without.is_empty() {
        assert!(
            !std::path::Path::new("/proc/net/if_inet6").exists(),
            "no sockets of family {without:?}"
        );
    }
    let texts = |call: &str| -> Vec<String> {
        expected
            .iter()
            .filter(|e| e["call"] == call)
            .filter_map(|e| e["text"].as_str().map(str::to_owned))
            .collect()
    };
    let (mut told_of_all, mut due_of_all) = (0, 0);
    for call in [
        "read",
        "poll",
        "epoll_wait",
        "accept",
        "recvfrom",
        "openat",
        "flock",
        "futex",
    ] {
        let due = texts(call);
        assert!(!due.is_empty(), "{call}");
        // Joining a thread is a futex as well, and libraries may come from a slow disk.
        let told: Vec<String> = waits(&report, call)
            .iter()
            .filter_map(|wait| wait["path"].as_str().map(str::to_owned))
            .filter(|text| due.contains(text))
            .collect();
        if slow() {
            // Which calls are slow enough to be kept differs there; none is told wrongly.
            let mut rest = due.iter();
            assert!(
                told.iter().all(|t| rest.any(|d| d == t)),
                "{told:?}: {due:?}"
            );
            told_of_all += told.len();
            due_of_all += due.len();
        } else {
            assert_eq!(told, due, "{call}");
        }
    }
    assert!(
        2 * told_of_all >= due_of_all,
        "{told_of_all} of {due_of_all}"
    );
    check_sums(&report);
}

#[test]
fn a_path_leads_over_mount_points() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    std::fs::create_dir(&from).expect("mkdir");
    std::fs::create_dir(&to).expect("mkdir");
    let path = to.join("file");
    let arguments = [
        OsStr::new("lock"),
        OsStr::new("-m"),
        from.as_os_str(),
        to.as_os_str(),
        path.as_os_str(),
    ];
    let (report, _) = objects(&arguments);
    assert!(from.join("file").exists() && !path.exists());
    assert_eq!(
        waits(&report, "flock")[0]["path"],
        path.display().to_string()
    );
}

/// Names that steer a terminal, that are no text, or too long: bounded, and as they
/// are in JSON; escaped wherever they are shown.
#[test]
fn hostile_names_are_told_and_do_no_harm() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let long = vec![b'l'; 255];
    let names: [&[u8]; 5] = [
        b"\x1b[31mred\x1b]0;title\x07",
        b"two\nlines\t\r",
        b"no\xfftext\xc3",
        "turned\u{202e}round".as_bytes(),
        &long,
    ];
    let mut deep = directory.path().to_owned();
    for i in 0..30 {
        deep.push(format!("directory-{i:02}"));
    }
    std::fs::create_dir_all(&deep).expect("mkdir -p");
    let mut paths: Vec<OsString> = names
        .iter()
        .map(|name| {
            directory
                .path()
                .join(OsStr::from_bytes(name))
                .into_os_string()
        })
        .collect();
    paths.push(deep.join("file").into_os_string());
    let mut command = vec![program("objects").into_os_string(), "lock".into()];
    command.extend(paths.iter().cloned());
    let (report, _) = recorded(&command);
    let told = waits(&report, "flock");
    assert_eq!(told.len(), paths.len());
    let here = directory.path().display().to_string();
    for (wait, name) in told.iter().zip([
        "\u{1b}[31mred\u{1b}]0;title\u{7}",
        "two\nlines\t\r",
        "no\\xfftext\\xc3",
        "turned\u{202e}round",
    ]) {
        assert_eq!(wait["path"], format!("{here}/{name}"));
    }
    // What has no room loses its front, and says so.
    for (wait, path) in told.iter().zip(&paths).skip(4) {
        let object = object_of(&report, wait);
        let name = object["name"].as_str().expect("a name");
        let whole = String::from_utf8(path.clone().into_vec()).expect("text");
        assert_eq!(object["cut"], true, "{object}");
        assert!(whole.ends_with(name) && !name.starts_with('/'), "{object}");
        assert!(name.len() > 200 && name.len() < 240, "{}", name.len());
        assert_eq!(wait["path"], format!("…{name}"));
    }
    // On a terminal, and in a pipe.
    let file = directory.path().join("run.debox");
    let broker = shared_broker();
    let run = |options: &[&OsStr]| {
        let output = Command::new(debox())
            .args([
                OsStr::new("run"),
                OsStr::new("--socket"),
                broker.socket().as_os_str(),
            ])
            .args(options)
            .arg("--")
            .args(&command)
            .output()
            .expect("debox runs");
        assert!(output.status.success());
        output
    };
    let text = run(&[]).stderr;
    run(&[OsStr::new("-q"), OsStr::new("-o"), file.as_os_str()]);
    let report = Command::new(debox())
        .arg("report")
        .arg(&file)
        .output()
        .expect("debox runs");
    let written = directory.path().join("page.html");
    let status = Command::new(debox())
        .args(["report", "--html"])
        .args([&written, &file])
        .status()
        .expect("debox runs");
    assert!(status.success());
    let page = std::fs::read(&written).expect("the page");
    for (what, bytes) in [("run", &text), ("report", &report.stdout), ("page", &page)] {
        let shown = String::from_utf8(bytes.clone()).expect("UTF-8");
        assert!(shown.contains("two\\nlines"), "{what}: {shown}");
        assert!(
            !shown.contains(['\u{1b}', '\u{7}', '\r', '\u{202e}']),
            "{what}: {shown}"
        );
    }
}

/// A long read that never sleeps, of a descriptor that is another file's half of the
/// time: not one may be told to be on that one.
/// Without a call, and in one that reads from memory: not the file that it writes.
#[test]
fn a_page_is_of_the_file_that_is_mapped() {
    let Some(_alone) = alone() else { return };
    let truth = program("truth").display().to_string();
    for capture in ["boundary", "splice", "sleeps"] {
        if capture == "splice" && slow() {
            continue;
        }
        for (scenario, call) in [("touch", Value::Null), ("page-in", "write".into())] {
            let option = format!("--capture={capture}");
            let run = run(&[&option], &[&truth, "-d", "/var/tmp", scenario, "10"]);
            let report = &run.report;
            check_sums(report);
            let rows = list(report, "blocking").iter();
            let page_in: u64 = rows
                .filter(|row| row["label"] == "page-in" && row["call"] == call)
                .map(|row| number(row, "count"))
                .sum();
            let read: Vec<&Value> = list(report, "by_object")
                .iter()
                .filter(|row| row["call"] == call && !row["object"].is_null())
                .filter(|row| {
                    let name = object_of(report, row)["name"].as_str().unwrap_or("");
                    name.starts_with("/var/tmp/truth-from.")
                })
                .collect();
            assert_eq!(
                read.len(),
                1,
                "{capture}, {scenario}: {}",
                report["by_object"]
            );
            assert_eq!(object_of(report, read[0])["deleted"], true);
            // What else was not in memory is of libraries.
            let count = number(read[0], "count");
            assert!(
                count > 0 && count <= page_in,
                "{capture}, {scenario}: {count} of {page_in}"
            );
            // What came before is of nothing else.
            let slept = list(report, "by_object").iter();
            let mut slept = slept.filter(|row| row["call"] == "clock_nanosleep");
            assert!(slept.all(|row| row["object"].is_null()), "{report}");
            assert!(
                scenario == "page-in" || slow() || count >= 100,
                "{capture}: {count}"
            );
        }
    }
}

/// Where it is not seen that calls begin.
#[test]
fn by_sleeps_files_are_told_as_well() {
    let Some(_alone) = alone() else { return };
    let truth = program("truth").display().to_string();
    for capture in ["boundary", "sleeps"] {
        let option = format!("--capture={capture}");
        let run = run(&[&option], &[&truth, "-d", "/var/tmp", "fsync", "1"]);
        check_sums(&run.report);
        let rows = list(&run.report, "by_object").iter();
        let rows: Vec<&Value> = rows.filter(|row| row["call"] == "fsync").collect();
        let name = |row: &&Value| object_of(&run.report, row)["name"].to_string();
        assert!(
            !rows.is_empty()
                && rows
                    .iter()
                    .all(|row| name(row).contains("/var/tmp/truth-fsync.")),
            "{capture}: {rows:?}"
        );
    }
}

#[test]
fn a_descriptor_that_may_be_another_one_is_not_told() {
    let Some(_alone) = alone() else { return };
    let (report, _) = objects(&[OsStr::new("race"), OsStr::new("3")]);
    let reads: Vec<&Value> = list(&report, "slow_calls")
        .iter()
        .filter(|c| c["call"] == "read" && number(c, "retval") == 256 << 20)
        // A read of /dev/null ends at once.
        .filter(|c| number(c, "wall_ns") > 5_000_000)
        .collect();
    let least = if slow() { 1 } else { 5 };
    assert!(reads.len() >= least, "{} reads", reads.len());
    for read in &reads {
        let kind = &object_of(&report, read)["kind"];
        assert!(
            read["path"] == "/dev/zero" || kind == "unsure" || kind.is_null(),
            "{read}: {kind}"
        );
    }
}

/// A client without privileges sees what its own processes work on; of the peers of
/// their sockets, only its own.
#[test]
fn peers_of_other_users_are_withheld() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .expect("chmod");
    let socket = directory.path().join("server");
    let server = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("chmod");
    let serve = std::thread::spawn(move || {
        for client in server.incoming().take(2) {
            std::thread::sleep(std::time::Duration::from_millis(30));
            use std::io::Write;
            client.expect("a client").write_all(b"x").expect("write");
        }
    });
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect({:?})\ns.recv(1)",
        socket.display().to_string()
    );
    let broker = shared_broker();
    let text = |unprivileged: bool| {
        let report = report_by(unprivileged, &broker, &["python3", "-c", &script]);
        let row = list(&report, "by_object")
            .iter()
            .find(|row| row["call"] == "recvfrom")
            .unwrap_or_else(|| panic!("{:#}", report["by_object"]));
        object_of(&report, row)["text"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    let path = socket.display();
    assert_eq!(
        text(false),
        format!("unix to {path} with process {}", std::process::id())
    );
    assert_eq!(
        text(true),
        format!("unix to {path} with another user's process")
    );
    serve.join().expect("the server");
}

/// sync(2) waits for pages of everybody's.
#[test]
fn files_of_others_are_not_told_by_their_pages() {
    let Some(_alone) = alone() else { return };
    let directory = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
    let file = directory.path().join("hidden.db");
    let script = "import mmap, sys\nn = 32 << 20\nfile = open(sys.argv[1], 'w+b')\nfile.truncate(n)\n\
                  kept = mmap.mmap(file.fileno(), n)\nwhile True:\n    for at in range(0, n, 4096): kept[at] ^= 1\n";
    let mut writes = Command::new("python3")
        .args(["-c", script])
        .arg(&file)
        .spawn()
        .expect("python3");
    let broker = shared_broker();
    let told = |unprivileged: bool| {
        let report = report_by(unprivileged, &broker, &["sync", "-f", "/var/tmp"]);
        let waited = list(&report, "blocking").iter();
        let waited = waited.filter(|row| row["label"] == "page-writeback");
        (
            waited.map(|row| number(row, "count")).sum::<u64>(),
            report.to_string().contains("hidden.db"),
        )
    };
    // Whether they are waited for is a matter of chance; root is told.
    let root = (0..10).map(|_| told(false)).find(|(_, is_told)| *is_told);
    let others: Vec<(u64, bool)> = (0..3).map(|_| told(true)).collect();
    writes.kill().expect("kill");
    writes.wait().expect("ends");
    assert!(root.is_some());
    assert!(others.iter().all(|(_, is_told)| !is_told), "{others:?}");
    assert!(others.iter().any(|(waited, _)| *waited > 0), "{others:?}");
}
