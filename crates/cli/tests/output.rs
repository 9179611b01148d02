// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may read what debox writes, what happens when nobody reads on, and does
//! each form tell what a call met and how it failed?
//!
//! The tests with real programs need root and BPF, and fail without;
//! DEBOX_TEST_NO_BPF=1 leaves them out and says so.

mod common;
#[path = "../../report/tests/support/mod.rs"]
mod support;

use common::{DEBOX, debox_of_shared, kernel_or_skip};
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NOBODY: u32 = 65534;

fn debox(arguments: &[&str]) -> Command {
    let mut command = Command::new(DEBOX);
    command
        .args(arguments)
        .env_remove("DEBOX_SOCKET")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null());
    command
}

fn done(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let out = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{shown}: {}", text(&out.stderr));
    text(&out.stdout) + &text(&out.stderr)
}

fn sample(directory: &Path) -> PathBuf {
    let file = directory.join("report.json");
    std::fs::write(&file, debox_report::render_json(&support::server(30))).unwrap();
    file
}

/// Every file below, with its mode.
fn modes(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let found = std::fs::symlink_metadata(&path).unwrap();
        list.push((path.clone(), found.mode() & 0o7777));
        if found.is_dir() {
            list.extend(modes(&path));
        }
    }
    list.sort();
    list
}

/// With a mask that takes nothing away.
fn unmasked(command: &mut Command) -> &mut Command {
    // SAFETY: a system call that is safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0);
            Ok(())
        })
    }
}

fn private(directory: &Path, count: usize) {
    let found = modes(directory);
    assert!(found.len() >= count, "{found:?}");
    for (path, mode) in found {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, wanted, "{}: {mode:o}", path.display());
    }
}

#[test]
fn what_report_writes_is_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let file = sample(directory.path());
    let to = directory.path().join("out");
    std::fs::create_dir(&to).unwrap();
    // One that is there, open to all, and that others have by another name.
    let old = to.join("text");
    std::fs::write(&old, "old").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut held = std::fs::File::open(&old).unwrap();
    done(unmasked(
        debox(&["report"])
            .args([
                "--html",
                "page.html",
                "--folded",
                "folded",
                "--perfetto",
                "trace.json",
            ])
            .args(["--pprof", "p.gz", "--parquet", "tables/deep", "-o", "text"])
            .arg(&file)
            .current_dir(&to),
    ));
    done(unmasked(
        debox(&["report", "--json", "-o", "json"])
            .arg(&file)
            .current_dir(&to),
    ));
    done(unmasked(debox(&["report", "-o", "/dev/null"]).arg(&file)));
    private(&to, 6 + 2 + 14);
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old", "the old file was written into");
}

#[test]
fn what_run_writes_is_for_its_owner_only() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path();
    for options in [
        &["-o", "run.debox"][..],
        &["-o", "text"],
        &["--json", "-o", "json"],
        &[
            "--on",
            "wall > 0",
            "--do",
            "print",
            "--log",
            "log",
            "-o",
            "/dev/null",
        ],
    ] {
        done(unmasked(
            debox_of_shared(&["run"])
                .args(options)
                .args(["--", "true"])
                .current_dir(to),
        ));
    }
    done(unmasked(
        debox_of_shared(&[
            "top",
            "--batch",
            "1",
            "--command-output",
            "output",
            "--",
            "true",
        ])
        .current_dir(to),
    ));
    done(unmasked(
        debox(&[
            "kern",
            "-d",
            "200ms",
            "--html",
            "kern.html",
            "-o",
            "kern.txt",
            "getpid()",
        ])
        .current_dir(to),
    ));
    private(to, 7);
}

#[test]
fn a_link_that_another_user_laid_is_not_followed() {
    if !common::needs::root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = sample(directory.path());
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    // World-writable, and not sticky: the kernel's fs.protected_symlinks does
    // not look at it.
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let link = shared.join("page.html");
    symlink(&victim, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    for form in ["--html", "--folded", "--perfetto", "--pprof", "-o"] {
        let out = debox(&["report", form])
            .args([&link, &file])
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(125), "{form}: {err}");
        assert!(
            err.contains("symbolic link of another user (uid 65534)"),
            "{form}: {err}"
        );
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

/// `command | reader that closes at once`.
fn into_closed_pipe(command: &mut Command) -> (std::process::ExitStatus, String) {
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let writer = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let out = command
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    (
        out.status,
        String::from_utf8_lossy(&out.stderr).into_owned(),
    )
}

#[test]
fn a_reader_that_goes_away_ends_it_in_silence() {
    let directory = tempfile::tempdir().unwrap();
    let file = sample(directory.path());
    let file = file.to_str().unwrap();
    for arguments in [
        &["report", file][..],
        &["report", "--json", file],
        &["report", "--html", "-", file],
        &["report", "--folded", "-", file],
        &["report", "--perfetto", "-", file],
        &["report", "--pprof", "-", file],
        &["report", "-o", "/dev/stdout", file],
        &["diff", file, file],
        &["diff", "--json", file, file],
        &["diff", "--html", "-", file, file],
        &["doctor"],
        &["doctor", "--json"],
        &["completions", "bash"],
    ] {
        let (status, err) = into_closed_pipe(&mut debox(arguments));
        assert_eq!(
            status.signal(),
            Some(libc::SIGPIPE),
            "{arguments:?}: {status} {err}"
        );
        assert!(err.is_empty(), "{arguments:?}: {err}");
    }
    // What clap prints.
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let (_, err) = into_closed_pipe(&mut debox(arguments));
        assert!(err.is_empty(), "{arguments:?}: {err}");
    }
}

#[test]
fn a_reader_that_goes_away_does_not_change_the_commands_status() {
    if !kernel_or_skip() {
        return;
    }
    for arguments in [
        &["run", "-o", "-", "--", "sh", "-c", "exit 7"][..],
        &["run", "--json", "-o", "-", "--", "sh", "-c", "exit 7"],
    ] {
        let (status, err) = into_closed_pipe(&mut debox(arguments));
        assert_eq!(status.code(), Some(7), "{arguments:?}: {err}");
        assert!(err.is_empty(), "{arguments:?}: {err}");
    }
    for arguments in [
        &["top", "--batch", "2", "--", "sleep", "0.1"][..],
        &["kern", "-d", "200ms", "getpid()"],
        &["kern", "-d", "200ms", "--json", "getpid()"],
        &["kern", "--list", "getpid()"],
    ] {
        let (status, err) = into_closed_pipe(&mut debox(arguments));
        assert!(
            !err.contains("roken pipe") && !err.contains("panicked"),
            "{arguments:?}: {err}"
        );
        assert_ne!(status.code(), Some(101), "{arguments:?}");
        assert_ne!(status.code(), Some(125), "{arguments:?}");
    }
}

/// A run with one condition that the kernel judges, one that needs a label, and
/// calls that meet none, one or both.
#[test]
fn conditions_that_a_call_met_are_told_in_every_form() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.debox");
    let file = file.to_str().unwrap();
    let long = "call == clock_nanosleep && wall > 60ms";
    let asleep = "label == nanosleep && comm == sleep";
    let failed = "call == statx && errno == ENOENT || call == newfstatat && errno == ENOENT";
    done(&mut debox_of_shared(&[
        "run",
        "-o",
        file,
        "--on",
        long,
        "--do",
        "print",
        "--on",
        asleep,
        "--do",
        "print",
        "--on",
        failed,
        "--do",
        "print",
        "--log",
        "/dev/null",
        "--",
        "sh",
        "-c",
        "sleep 0.03; sleep 0.09; ls /nowhere/at/all 2>/dev/null; true",
    ]));
    let report: Value =
        serde_json::from_str(&done(&mut debox(&["report", "--json", file]))).unwrap();
    let calls = report["slow_calls"].as_array().unwrap();
    let conditions = |call: &Value| -> Vec<String> {
        let list = call["conditions"].as_array().unwrap().iter();
        list.map(|c| c.as_str().unwrap().to_owned()).collect()
    };
    let sleeps: Vec<&Value> = calls
        .iter()
        .filter(|c| c["call"] == "clock_nanosleep")
        .collect();
    let told: Vec<Vec<String>> = sleeps.iter().map(|c| conditions(c)).collect();
    // Longest first.
    assert_eq!(
        told,
        [vec![long.to_owned(), asleep.into()], vec![asleep.into()]],
        "{sleeps:#?}"
    );
    let missing: Vec<&Value> = calls
        .iter()
        .filter(|c| {
            c["path"]
                .as_str()
                .is_some_and(|p| p.contains("/nowhere/at/all"))
        })
        .collect();
    assert!(!missing.is_empty());
    for call in &missing {
        assert_eq!(
            (call["retval"].as_i64(), call["error"].as_str()),
            (Some(-2), Some("ENOENT"))
        );
        let stat = ["statx", "newfstatat"].contains(&call["call"].as_str().unwrap());
        assert_eq!(
            conditions(call),
            if stat {
                vec![failed.to_owned()]
            } else {
                vec![]
            }
        );
    }
    for call in calls.iter().filter(|c| c["retval"] == 0) {
        assert!(
            call["error"].is_null() && (!conditions(call).contains(&failed.to_owned())),
            "{call}"
        );
    }

    let page = done(&mut debox(&["report", "--html", "-", file]));
    assert!(
        page.contains("call == clock_nanosleep &amp;&amp; wall &gt; 60ms"),
        "no condition in the page"
    );
    assert!(page.contains("ENOENT"));
    let trace: Value =
        serde_json::from_str(&done(&mut debox(&["report", "--perfetto", "-", file]))).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let both = format!("{long}; {asleep}");
    assert!(
        events
            .iter()
            .any(|e| e["args"]["conditions"] == both.as_str()),
        "{both}"
    );
    assert!(
        events
            .iter()
            .any(|e| e["args"]["conditions"] == failed && e["args"]["error"] == "ENOENT")
    );
    done(
        debox(&["report", "--parquet"])
            .arg(directory.path().join("tables"))
            .arg(file),
    );
    let table = std::fs::read(directory.path().join("tables/slow_calls.parquet")).unwrap();
    let holds = |text: &str| table.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(holds("label == nanosleep && comm == sleep") && holds("conditions"));
    let text = done(&mut debox(&["report", "--top", "1000", file]));
    assert!(text.contains(&format!("met {both}")), "{text}");
    assert!(
        text.contains("failed (ENOENT)") && !text.contains("failed (-"),
        "{text}"
    );
}

/// What a program saw as EINTR or not at all, has a name too.
#[test]
fn calls_that_a_signal_broke_off_are_named() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.debox");
    let file = file.to_str().unwrap();
    // Signals go on until one meets the read, however slow the machine is.
    let script = "import signal, time, os
signal.signal(signal.SIGALRM, lambda *a: None)
r, w = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    for i in range(20):
        time.sleep(0.03)
        os.kill(parent, signal.SIGALRM)
    os._exit(0)
os.close(w)
os.read(r, 1)
";
    let said = done(&mut debox_of_shared(&[
        "run",
        "-o",
        file,
        "--on",
        "call == read && wall > 5ms",
        "--do",
        "print",
        "--capture=boundary",
        "--",
        "python3",
        "-c",
        script,
    ]));
    assert!(
        said.contains("read(pipe ") && said.contains(") = ERESTARTSYS (interrupted)"),
        "{said}"
    );
    let text = done(&mut debox(&["report", "--top", "1000", file]));
    assert!(text.contains("interrupted (ERESTARTSYS)"), "{text}");
    let page = done(&mut debox(&["report", "--html", "-", file]));
    assert!(page.contains("ERESTARTSYS"));
    let report: Value =
        serde_json::from_str(&done(&mut debox(&["report", "--json", file]))).unwrap();
    let broken = |c: &Value| c["retval"] == -512 && c["error"] == "ERESTARTSYS";
    assert!(report["slow_calls"].as_array().unwrap().iter().any(broken));
}

#[test]
fn kern_says_its_schema_first_and_how_a_call_is_measured() {
    if !kernel_or_skip() {
        return;
    }
    let text = done(&mut debox(&[
        "kern", "-d", "200ms", "--json", "--quiet", "openat()",
    ]));
    assert!(
        text.starts_with("{\n  \"schema\": \"debox.kern\",\n  \"schema_version\": 1,\n"),
        "{text}"
    );
    let text = done(&mut debox(&["kern", "--list", "--json", "openat()"]));
    let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(listed["schema"], "debox.kern.list");
    let named = &listed["resources"][0];
    assert_eq!(named["written"], "openat()");
    assert_eq!(named["resources"][0]["way"], "call tracepoint");
    // Where no function can be measured, the error says what can, and that works.
    let out = debox(&["kern", "-d", "200ms", "openat"]).output().unwrap();
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        let hint = "debox kern 'openat()'";
        assert!(err.contains(hint), "{err}");
        done(&mut debox(&["kern", "-d", "200ms", "openat()"]));
        let out = debox(&["kern", "-d", "200ms", "__x64_sys_openat"])
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&out.stderr).contains(hint));
        let out = debox(&["kern", "-d", "200ms", "vfs_read"])
            .output()
            .unwrap();
        assert!(!String::from_utf8_lossy(&out.stderr).contains("()"));
    }
}
