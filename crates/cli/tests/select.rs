// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does `debox select` as a command do what it says: serve, count, compare, name
//! what it cannot serve, and pass everything else through?
//!
//! What the library answers is tested in tests/select.

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const DEBOX: &str = env!("CARGO_BIN_EXE_debox");

const WAITS: &str = "
import select, socket
p = select.poll()
pairs = [socket.socketpair() for _ in range(300)]
for a, b in pairs:
    p.register(a, select.POLLIN)
for i in range(2000):
    assert p.poll(0) == []
";

fn select(args: &[&str]) -> Output {
    Command::new(DEBOX)
        .arg("select")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number before these words, in a report.
fn number(report: &str, words: &str) -> u64 {
    let line = report
        .lines()
        .find(|l| l.ends_with(words))
        .unwrap_or_else(|| panic!("no \"{words}\" in:\n{report}"));
    line.split_whitespace()
        .next()
        .unwrap()
        .replace(',', "")
        .parse()
        .unwrap()
}

#[test]
fn stats_count_what_the_program_did() {
    let out = select(&["--stats", "--", "/usr/bin/python3", "-c", WAITS]);
    assert!(out.status.success(), "{out:?}");
    let report = text(&out.stderr);
    let served = number(&report, "poll and ppoll calls served");
    let left = number(&report, "calls left to the kernel: a new set");
    assert!(served + left <= 2000 && served > 1900, "{report}");
    assert_eq!(number(&report, "descriptors registered"), 300);
    assert_eq!(number(&report, "most descriptors in one set"), 300);
}

#[test]
fn compare_shows_both_runs_side_by_side() {
    let out = select(&["--compare", "--", "/usr/bin/python3", "-c", WAITS]);
    assert!(out.status.success(), "{out:?}");
    side_by_side(&out);
}

#[test]
fn compare_ends_what_does_not_end() {
    let script = format!("{WAITS}\nimport time\ntime.sleep(1000)");
    let command = ["--", "/usr/bin/python3", "-c", &script];
    let out = select(&[&["--compare", "-d", "3s"][..], &command].concat());
    assert_eq!(out.status.signal(), Some(15), "{out:?}");
    side_by_side(&out);
}

fn side_by_side(out: &Output) {
    let report = text(&out.stdout) + &text(&out.stderr);
    for words in [
        "WITHOUT",
        "WITH",
        "wall time",
        "CPU time, kernel",
        "context switches",
    ] {
        assert!(report.contains(words), "no \"{words}\" in:\n{report}");
    }
    // The kernel's work is counted by DeBox where it may watch; as root it may.
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        let row = |name: &str| -> Vec<u64> {
            let line = report
                .lines()
                .find(|l| l.trim_start().starts_with(name))
                .unwrap_or_else(|| panic!("no row {name} in:\n{report}"));
            line.split_whitespace()
                .filter_map(|w| w.replace(',', "").parse().ok())
                .collect()
        };
        assert_eq!(row("poll calls")[..2], [2000, 0], "{report}");
        let epoll = row("epoll_pwait calls");
        assert_eq!(epoll[0], 0);
        assert!(epoll[1] > 1900, "{report}");
    }
}

#[test]
fn status_and_signals_are_the_commands() {
    for options in [&["--"][..], &["--stats", "--"], &["--compare", "--"]] {
        let run = |script| select(&[options, &["sh", "-c", script]].concat()).status;
        assert_eq!(run("exit 7").code(), Some(7), "{options:?}");
        assert_eq!(run("kill -TERM $$").signal(), Some(15), "{options:?}");
    }
    assert_eq!(select(&["--", "/nonexistent"]).status.code(), Some(127));
}

fn build(dir: &Path, name: &str, options: &[&str]) -> String {
    build_source(dir, name, "int main(void) { return 5; }\n", options)
}

fn build_source(dir: &Path, name: &str, text: &str, options: &[&str]) -> String {
    let (source, program) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&source, text).unwrap();
    let out = Command::new("cc")
        .args(options)
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    program.to_str().unwrap().to_owned()
}

/// What cannot be served is named, and runs as it would without.
#[test]
fn programs_that_cannot_be_served_are_named_and_run() {
    let dir = tempfile::tempdir().unwrap();
    let dynamic = build(dir.path(), "dynamic", &[]);
    let quiet = select(&["--", &dynamic]);
    assert_eq!(quiet.status.code(), Some(5));
    assert_eq!(text(&quiet.stderr), "");

    let named = |program: &str, words: &str| {
        let out = select(&["--", program]);
        assert_eq!(out.status.code(), Some(5), "{out:?}");
        assert!(text(&out.stderr).contains(words), "no \"{words}\": {out:?}");
    };
    named(
        &build(dir.path(), "static", &["-static"]),
        "is statically linked",
    );
    named(
        &build(dir.path(), "narrow", &["-m32"]),
        "is a 32-bit program",
    );

    // Another owner, or nothing changes when it runs.
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        let owned = build(dir.path(), "owned", &[]);
        std::os::unix::fs::chown(&owned, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(&owned, std::fs::Permissions::from_mode(0o4755)).unwrap();
        named(&owned, "is set-user-id or set-group-id");
    } else {
        eprintln!("set-user-id: not tested, that needs root");
    }

    // A Go program is known by its section; nothing else of it is needed.
    let go = build(dir.path(), "go", &[]);
    let note = dir.path().join("note");
    std::fs::write(&note, "go1.22").unwrap();
    let added = dir.path().join("go-with-section");
    let out = Command::new("objcopy")
        .arg("--add-section")
        .arg(format!(".go.buildinfo={}", note.display()))
        .args(["--set-section-flags", ".go.buildinfo=alloc,readonly,data"])
        .arg(&go)
        .arg(&added)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    named(added.to_str().unwrap(), "is a Go program");
}

/// System calls of the program's own, without libc: said before it starts, and
/// what goes through syscall() is counted.
#[test]
#[cfg(target_arch = "x86_64")]
fn waits_that_are_not_seen_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let own = build_source(
        dir.path(),
        "own",
        "int main(void) {\n\
         long r;\n\
         __asm__ volatile (\"movl $7, %%eax\\n\\tsyscall\" : \"=a\"(r)\n\
             : \"D\"(0L), \"S\"(0L), \"d\"(0L) : \"rcx\", \"r11\", \"memory\");\n\
         return r == 0 ? 5 : 6;\n}\n",
        &["-O1"],
    );
    let out = select(&["--", &own]);
    assert_eq!(out.status.code(), Some(5), "{out:?}");
    let said = text(&out.stderr);
    assert!(
        said.contains("has 1 place in its code that make") && said.contains("stay the kernel's"),
        "{said}"
    );

    let uring = build_source(
        dir.path(),
        "uring",
        "int main(void) {\n\
         long r;\n\
         __asm__ volatile (\"movl $425, %%eax\\n\\tsyscall\" : \"=a\"(r)\n\
             : \"D\"(0L), \"S\"(0L) : \"rcx\", \"r11\", \"memory\");\n\
         return 5;\n}\n",
        &["-O1"],
    );
    let out = select(&["--", &uring]);
    assert_eq!(out.status.code(), Some(5), "{out:?}");
    assert!(text(&out.stderr).contains("uses io_uring"), "{out:?}");

    let through = build_source(
        dir.path(),
        "through",
        "#define _GNU_SOURCE\n#include <sys/syscall.h>\n#include <unistd.h>\n\
         int main(void) {\n\
         for (int i = 0; i < 3; i++) syscall(SYS_poll, 0, 0, 0);\n\
         syscall(SYS_io_uring_setup, 0, 0);\n\
         return 5;\n}\n",
        &[],
    );
    let out = select(&["--stats", "--", &through]);
    assert_eq!(out.status.code(), Some(5), "{out:?}");
    let report = text(&out.stderr);
    assert_eq!(number(&report, "poll or select by syscall()"), 3);
    assert_eq!(number(&report, "what they wait for is not seen"), 1);

    // A program that only calls libc has nothing said about it.
    assert_eq!(text(&select(&["--", "/bin/ls", "/"]).stderr), "");
}

#[test]
fn a_measurement_is_written_as_text_and_as_json() {
    let bench = |args: &[&str]| {
        let mut command = Command::new(DEBOX);
        command.args(["bench", "select"]).args(args);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let row = "plain select server, no idle, 50 hot";
    let out = bench(&["--only", row, "--turns", "6", "--json"]);
    assert!(out.status.success(), "{out:?}");
    let document: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(document["schema"], "debox.bench-select", "{document}");
    assert_eq!(document["schema_version"], 1, "{document}");
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{document}");
    assert!(
        rows[0]["name"].as_str().unwrap().contains(row),
        "{document}"
    );
    let number = |name: &str| rows[0]["rate"][name].as_f64().unwrap();
    assert!(number("low") > 0.0, "{document}");
    assert!(number("low") <= number("median"), "{document}");
    assert!(number("median") <= number("high"), "{document}");
    assert!(document["lowest_free"].is_null(), "{document}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("select.txt");
    let out = bench(&["--only", "lowest free", "-o", file.to_str().unwrap()]);
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    let written = std::fs::read_to_string(file).unwrap();
    assert_eq!(text(&out.stderr), written);
    assert!(
        written.contains("lowest free of 1,048,576 numbers: "),
        "{written}"
    );

    let out = bench(&["--only", "no such row", "--json"]);
    assert_eq!(out.status.code(), Some(125), "{out:?}");
    assert!(out.stdout.is_empty(), "{out:?}");
}
