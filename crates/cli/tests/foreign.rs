// SPDX-License-Identifier: MIT OR Apache-2.0
//! Can text that somebody else wrote steer the terminal, begin a line of its
//! own, or turn the writing direction, in any field of any output?
//!
//! A full report is taken as JSON, and every string in it that may be any
//! string is made hostile, so a field that is added later is tested without
//! being named here. The tests with real programs need root and BPF, and fail
//! without; DEBOX_TEST_NO_BPF=1 leaves them out and says so.

mod common;
#[path = "../../report/tests/support/mod.rs"]
mod support;

use common::{DEBOX, debox_of_shared, kernel_or_skip};
use debox_report::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Colours, a title, the clipboard, C1 controls; lines of its own; the writing
/// direction; what ends markup, a folded stack's frame, a shell's quotes.
const EVIL: &str = "a\u{1b}[31m\u{1b}]0;t\u{7}\u{1b}]52;c;eA==\u{1b}\\\u{9b}2J\u{8}\u{7f}\u{85}\u{0}\n\
                    INJECTED line\r\tx\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}INJECTED\u{200b}\u{feff}; '\"\\\
                    </script><script>alert(1)</script><!--";

/// What a terminal (or a reader) must not get. Newlines are looked at apart.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Takes out what DeBox itself writes to colour: `ESC [ digits m`.
fn without_colour(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        out.push_str(before);
        let digits = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match digits.strip_prefix('m') {
            Some(behind) => rest = behind,
            None => {
                out.push_str("\u{1b}[");
                rest = after;
            }
        }
    }
    out + rest
}

/// A page without the style and the script that are the same in all of them.
fn without_own(page: &str) -> String {
    let mut page = page.to_owned();
    for (begin, end) in [("<style>", "</style>"), ("<script>", "</script>")] {
        let from = page.find(begin).expect(begin);
        let to = page.rfind(end).expect(end);
        page.replace_range(from..to, "");
    }
    page
}

fn harmless(what: &str, text: &str) {
    for line in text.split('\n') {
        if let Some(c) = line.chars().find(|c| steers(*c)) {
            panic!("{what}: {c:?} in {line:?}");
        }
        assert!(
            !line.trim_start().starts_with("INJECTED"),
            "{what}: a line of its own: {line:?}"
        );
    }
}

/// Of a place in a document: `slow_calls[].sleeps[].holder.comm`.
type Field = String;

fn each_leaf(value: &mut Value, field: &str, f: &mut dyn FnMut(&Field, &mut Value)) {
    match value {
        Value::Array(list) if !list.is_empty() => {
            let field = format!("{field}[]");
            list.iter_mut().for_each(|v| each_leaf(v, &field, f));
        }
        Value::Object(map) => {
            for (key, v) in map {
                each_leaf(v, &format!("{field}.{key}"), f);
            }
        }
        other => f(&field.to_owned(), other),
    }
}

/// What one field is made: a string, or a list of one, where the report takes it.
fn hostile_value(found: &Value, change: &dyn Fn(&str) -> String) -> Option<Value> {
    match found {
        Value::String(text) => Some(change(text).into()),
        Value::Null => Some(change("").into()),
        Value::Array(_) => Some(json!([change("")])),
        _ => None,
    }
}

/// The report with every string changed that may be any; the fields changed,
/// and the fields that hold a string and may not.
fn hostile(
    report: &Report,
    change: &dyn Fn(&str) -> String,
) -> (Report, BTreeSet<Field>, BTreeSet<Field>) {
    let clean = serde_json::to_value(report).unwrap();
    let mut first: BTreeMap<Field, Value> = BTreeMap::new();
    each_leaf(&mut clean.clone(), "", &mut |field, value| {
        // A null of an optional text says less than a text.
        let known = first.entry(field.clone()).or_insert_with(|| value.clone());
        if known.is_null() {
            *known = value.clone();
        }
    });
    let (mut changed, mut fixed) = (BTreeSet::new(), BTreeSet::new());
    for (field, value) in &first {
        if hostile_value(value, change).is_none() {
            continue;
        }
        let mut tried = clean.clone();
        each_leaf(&mut tried, "", &mut |at, v| {
            if at == field
                && let Some(evil) = hostile_value(v, change)
            {
                *v = evil;
            }
        });
        let schema = field.starts_with(".schema");
        if !schema && serde_json::from_value::<Report>(tried).is_ok() {
            changed.insert(field.clone());
        } else if value.is_string() {
            fixed.insert(field.clone());
        }
    }
    let mut all = clean;
    each_leaf(&mut all, "", &mut |at, v| {
        if changed.contains(at)
            && let Some(evil) = hostile_value(v, change)
        {
            *v = evil;
        }
    });
    (serde_json::from_value(all).unwrap(), changed, fixed)
}

/// A report in which every kind of thing occurs.
fn full() -> Report {
    let mut report = support::server(6);
    report.run.exit = Some(Exit::Signal {
        number: 9,
        name: "SIGKILL".into(),
    });
    report.run.kernel = Some("6.18".into());
    report.run.hostname = Some("here".into());
    report.open_calls.push(OpenCall {
        pid: 4,
        tid: 5,
        comm: "worker".into(),
        call: "read".into(),
        at_least_ns: 7,
        why: "worker waits".into(),
        held_up: "somebody has its lock".into(),
    });
    report.trace = Some(TraceReport {
        way: "fentry".into(),
        text: "no more".into(),
        slowest: vec![TracedCall {
            call: "read".into(),
            entries: vec![TraceEntry {
                function: "vfs_read".into(),
                ..TraceEntry::default()
            }],
            ..TracedCall::default()
        }],
        functions: vec![TraceFunction {
            function: "vfs_read".into(),
            ..TraceFunction::default()
        }],
        ..TraceReport::default()
    });
    report.findings = find_findings(&report);
    report.trends = find_trends(&report.history, &report.gauges);
    assert!(!report.findings.is_empty() && !report.trends.is_empty());
    report
}

fn run(command: &mut Command) -> (String, String) {
    let shown = format!("{command:?}");
    let out = command
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{shown}: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_else(|e| panic!("{shown}: {e}"));
    (text(out.stdout), text(out.stderr))
}

fn debox() -> Command {
    let mut command = Command::new(DEBOX);
    command.env_remove("DEBOX_SOCKET");
    command
}

/// All that `debox report` and `debox diff` write of one document.
fn outputs_are_harmless(what: &str, file: &Path, other: &Path) {
    for options in [
        &["--color=never"][..],
        &["--color=always"],
        &["--color=always", "--top", "2"],
        &["--color=always", "--top", "1000"],
    ] {
        let (text, err) = run(debox().arg("report").args(options).arg(file));
        assert!(text.contains("INJECTED"), "{what}: {text}{err}");
        harmless(&format!("{what} {options:?}"), &without_colour(&text));
        harmless(what, &err);
    }
    for form in ["--html", "--folded", "--perfetto", "--json"] {
        let mut command = debox();
        command.args(["report", form]);
        if form != "--json" {
            command.arg("-");
        }
        let (text, err) = run(command.arg(file));
        assert!(text.contains("INJECTED"), "{what} {form}: {text}{err}");
        if form == "--html" {
            let text = without_own(&text);
            harmless(&format!("{what} {form}"), &text);
            assert!(!text.contains("<script>alert"), "{what}");
        } else {
            harmless(&format!("{what} {form}"), &text);
        }
        if form == "--perfetto" || form == "--json" {
            let document: Value = serde_json::from_str(&text).expect(form);
            assert!(document.to_string().contains("INJECTED"));
        }
        if form == "--folded" {
            for line in text.lines() {
                let (_, ns) = line.rsplit_once(' ').unwrap();
                assert!(ns.parse::<u64>().is_ok(), "{line}");
            }
        }
    }
    for options in [
        &["--force"][..],
        &["--force", "--json"],
        &["--force", "--html", "-"],
    ] {
        for (a, b) in [(file, other), (other, file)] {
            let (mut text, err) = run(debox().arg("diff").args(options).args([a, b]));
            assert!(text.contains("INJECTED"), "{what}: {text}{err}");
            if options.contains(&"--html") {
                text = without_own(&text);
                assert!(!text.contains("<script>alert"), "{what}");
            }
            harmless(&format!("{what} diff {options:?}"), &text);
        }
    }
}

#[test]
fn no_field_of_a_report_steers_anything() {
    let report = full();
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other.json");
    std::fs::write(&other, render_json(&report)).unwrap();
    type Way<'a> = (&'a str, &'a dyn Fn(&str) -> String);
    let ways: [Way; 2] = [
        ("all of it", &|_| EVIL.to_owned()),
        // Where a name decides what is done with it.
        ("its end", &|text| format!("{text}{EVIL}")),
    ];
    for (way, change) in ways {
        let (evil, changed, fixed) = hostile(&report, change);
        // Words of a list of words: nothing else is ever taken for them.
        let words = [
            ".schema",
            ".run.kind",
            ".run.capture",
            ".culprits[].role",
            ".trends[].part",
            ".notes[].kind",
        ];
        let unknown: Vec<&Field> = fixed
            .iter()
            .filter(|f| !words.contains(&f.as_str()))
            .collect();
        assert!(
            unknown.is_empty(),
            "texts that were not tested: {unknown:?}"
        );
        for named in [
            ".run.command[]",
            ".run.exit.signal.name",
            ".run.hostname",
            ".run.kernel",
            ".calls[].name",
            ".slow_calls[].conditions[]",
            ".slow_calls[].path",
            ".slow_calls[].error",
            ".slow_calls[].sleeps[].holder.comm",
            ".slow_calls[].sleeps[].waker.call",
            ".stacks[].frames[].module",
            ".sites[].frames[]",
            ".trace.slowest[].entries[].function",
            ".recording.why",
            ".trends[].grows_with[]",
            ".findings[].evidence[]",
            ".open_calls[].comm",
            ".threads[].comm",
            ".culprits[].culprit_call",
            ".call_sites[].place",
            ".notes[].text",
        ] {
            assert!(changed.contains(named), "{named} is not in {changed:?}");
        }
        // What a library's user would print.
        for color in [false, true] {
            for ascii in [false, true] {
                for width in [None, Some(80)] {
                    let options = TextOptions {
                        width,
                        color,
                        ascii,
                        top: None,
                    };
                    let text = render_text(&evil, &options);
                    harmless(way, &without_colour(&text));
                }
            }
        }
        harmless(way, &without_own(&render_html(&evil)));
        harmless(way, &render_json(&evil));
        let back: Value = serde_json::from_str(&render_json(&evil)).unwrap();
        assert_eq!(
            back,
            serde_json::to_value(&evil).unwrap(),
            "the JSON says the same"
        );

        let file = directory.path().join("evil.json");
        std::fs::write(&file, serde_json::to_string(&evil).unwrap()).unwrap();
        outputs_are_harmless(way, &file, &other);

        // The same as a recording; its first block has texts of its own.
        let path = directory.path().join("evil.debox");
        let start = debox_record::Start {
            debox_version: change(""),
            kind: RunKind::Run,
            capture: Capture::Boundary,
            command: vec![change("")],
            pids: vec![],
            cpus: 2,
            started_unix_ns: 1,
            kernel: change(""),
            hostname: change(""),
        };
        let mut sums = evil.clone();
        let (history, gauges) = (
            std::mem::take(&mut sums.history),
            std::mem::take(&mut sums.gauges),
        );
        let writer = debox_record::Writer::create(&path, &start).unwrap();
        writer
            .finish(&debox_record::Contents {
                report: &sums,
                history,
                gauges,
                whole: true,
                until_ns: 1,
            })
            .unwrap();
        outputs_are_harmless(way, &path, &other);
    }
}

struct Shown(Report);

impl debox_top::Host for Shown {
    fn sample(&mut self) -> Report {
        self.0.clone()
    }
    fn ended(&mut self) -> Option<String> {
        Some(EVIL.into())
    }
    fn wait(&mut self, _: bool, _: Instant) -> debox_top::Woken {
        debox_top::Woken::default()
    }
    fn owns_command(&self) -> bool {
        false
    }
    fn why(&mut self, _: Option<u32>) -> String {
        EVIL.into()
    }
}

#[test]
fn no_field_steers_the_live_view() {
    let (evil, ..) = hostile(&full(), &|_| EVIL.to_owned());
    for ascii in [false, true] {
        let settings = debox_top::Settings {
            title: EVIL.into(),
            interval: Duration::from_millis(1),
            view: debox_top::View::Calls,
            totals: true,
            color: false,
            ascii,
        };
        let mut out = Vec::new();
        let mut host = Shown(evil.clone());
        debox_top::batch(&mut host, settings, &debox_top::View::ALL, 1, 400, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("INJECTED"));
        harmless("top", &text);
    }
}

#[test]
fn errors_show_names_and_do_not_obey_them() {
    let directory = tempfile::tempdir().unwrap();
    let evil = "x\u{1b}[31m\nINJECTED\u{202e}";
    let name = directory.path().join(evil);
    let no_text = {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec(b"/nowhere/\xff\x1b[31m\nINJECTED".to_vec())
    };
    let schema = directory.path().join("schema.json");
    let mut report = serde_json::to_value(support::empty()).unwrap();
    report["schema"] = evil.into();
    std::fs::write(&schema, report.to_string()).unwrap();
    let variant = directory.path().join("variant.json");
    let mut report = serde_json::to_value(support::empty()).unwrap();
    report["run"]["kind"] = evil.into();
    std::fs::write(&variant, report.to_string()).unwrap();
    let garbage = directory.path().join(format!("{evil}.txt"));
    std::fs::write(&garbage, "garbage").unwrap();

    let os = |text: &str| std::ffi::OsString::from(text);
    let cases: Vec<Vec<std::ffi::OsString>> = vec![
        vec![os("report"), name.clone().into()],
        vec![os("report"), no_text.clone()],
        vec![os("report"), schema.into()],
        vec![os("report"), variant.into()],
        vec![os("report"), garbage.clone().into()],
        vec![os("diff"), garbage.into(), name.clone().into()],
        vec![os("status"), os("--socket"), name.clone().into()],
        vec![os("run"), os("--socket"), name.clone().into(), os("true")],
        vec![os("run"), name.clone().into()],
        vec![os("run"), no_text],
        vec![os("run"), os("-o"), name.join("y").into(), os("true")],
        vec![
            os("run"),
            os("--json"),
            os("-o"),
            format!("{evil}.debox").into(),
            os("true"),
        ],
        vec![
            os("run"),
            os("--on"),
            evil.into(),
            os("--do"),
            os("print"),
            os("true"),
        ],
        vec![
            os("run"),
            os("--on"),
            os("wall > 1s"),
            os("--do"),
            evil.into(),
            os("true"),
        ],
        vec![
            os("run"),
            os("--on"),
            os("wall > 1s"),
            os("--do"),
            format!("exec {evil}").into(),
            os("true"),
        ],
        vec![format!("--{evil}").into()],
        vec![evil.into()],
        vec![os("run"), format!("--sort={evil}").into(), os("true")],
        vec![os("report"), os("--top"), evil.into(), os("x")],
        vec![os("kern"), evil.into()],
        vec![os("kern"), os("--metric"), evil.into(), os("x")],
        vec![os("kern"), format!("vfs_read@{evil}").into()],
        vec![
            os("bench"),
            os("os"),
            os("--json"),
            name.join("y").into(),
            os("--only"),
            evil.into(),
        ],
        vec![os("select"), name.clone().into()],
        vec![os("doctor"), os("--socket"), name.clone().into()],
        vec![
            os("doctor"),
            os("--json"),
            os("--socket"),
            name.clone().into(),
        ],
    ];
    for arguments in cases {
        let (out, err) = run(debox().args(&arguments).current_dir(directory.path()));
        assert!(!out.is_empty() || !err.is_empty(), "{arguments:?}");
        harmless(
            &format!("{arguments:?}"),
            &without_colour(&format!("{err}\n{out}")),
        );
    }
}

/// A program whose path, thread name, arguments and files are hostile.
fn hostile_program(directory: &Path) -> PathBuf {
    let inner = directory.join("d\u{1b}]0;t\u{7}\nINJECTED\u{202e}");
    std::fs::create_dir(&inner).unwrap();
    let source = directory.join("program.c");
    let text = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct timespec t = { 0, 30000000 };
	prctl(PR_SET_NAME, "n\033[31m\nINJECTED\233");
	mkdir("p\033[31m\nINJECTED\342\200\256", 0700);
	rmdir("p\033[31m\nINJECTED\342\200\256");
	open("no\033[31m\nINJECTED", O_RDONLY);
	nanosleep(&t, NULL);
	return 0;
}
"#;
    std::fs::write(&source, text).unwrap();
    let program = inner.join("e\u{1b}[31m\nINJECTED");
    let out = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    program
}

#[test]
fn a_hostile_program_is_shown_and_does_not_steer() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = hostile_program(directory.path());
    let home = program.parent().unwrap();
    let file = home.join("r\u{1b}[31m\nINJECTED.debox");
    let asleep = "call == clock_nanosleep";
    let evil = "\u{1b}[31m\nINJECTED\u{202e}";
    let on = |action: &'static str| {
        vec![
            "--on".to_owned(),
            asleep.into(),
            "--do".into(),
            action.into(),
        ]
    };
    let mut runs: Vec<Vec<String>> = vec![
        vec![],
        vec!["--json".into()],
        vec!["--capture=wrap".into(), "--call-site".into()],
        vec!["--call-site".into(), "--color=always".into()],
        on("print"),
        on("stack"),
        on("core"),
        on("signal WINCH"),
        on("exec true"),
        vec!["-o".into(), file.to_str().unwrap().into()],
    ];
    runs.last_mut().unwrap().extend(on("print"));
    for options in runs {
        let (out, err) = run(debox_of_shared(&["run"])
            .args(&options)
            .arg("--")
            .arg(&program)
            .arg(evil)
            .current_dir(home));
        let text = format!("{out}\n{err}");
        assert!(text.contains("INJECTED"), "{options:?}: {text}");
        harmless(&format!("{options:?}"), &without_colour(&text));
    }
    // The core is found under its hostile name, and the line that is told can
    // be given to a shell.
    for form in [&[][..], &["--json"], &["--html", "-"], &["--perfetto", "-"]] {
        let (out, err) = run(debox().arg("report").args(form).arg(&file));
        assert!(out.contains("INJECTED"), "{form:?}: {out}{err}");
        let shown = if form.contains(&"--html") {
            without_own(&out)
        } else {
            out
        };
        harmless(&format!("{form:?}"), &shown);
    }
    let (out, err) = run(debox_of_shared(&["top", "--batch", "2", "--"])
        .arg(&program)
        .arg(evil)
        .current_dir(home));
    harmless("top", &format!("{out}\n{err}"));
    assert!(out.contains("INJECTED"), "{out}");
}

/// Threads with hostile names that hold, wait, and are in a call for as long as anybody looks:
/// what is told of those, by commands that join later.
const WAITING: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int to[2], from[2];
static void *holder(void *unused)
{
	prctl(PR_SET_NAME, "\033[1m\nINJECTED\233<");
	pthread_mutex_lock(&mutex);
	pause();
	return unused;
}
static void *waiter(void *unused)
{
	prctl(PR_SET_NAME, "<b>\"\nINJECTED");
	pthread_mutex_lock(&mutex);
	return unused;
}
static void *asks(void *unused)
{
	char byte = 0;
	prctl(PR_SET_NAME, "\342\200\256\nINJECTED\r");
	while (write(to[1], &byte, 1) == 1 && read(from[0], &byte, 1) == 1)
		;
	return unused;
}
static void *answers(void *unused)
{
	struct timespec t = { 0, 5000000 };
	char byte;
	prctl(PR_SET_NAME, "\033]0;t\a\nINJECTED");
	while (read(to[0], &byte, 1) == 1 && !nanosleep(&t, NULL) && write(from[1], &byte, 1) == 1)
		;
	return unused;
}
int main(void)
{
	void *(*bodies[])(void *) = { holder, waiter, asks, answers };
	pthread_t thread;
	if (pipe(to) || pipe(from))
		return 1;
	for (int i = 0; i < 4; i++) {
		pthread_create(&thread, NULL, bodies[i], NULL);
		usleep(50000);
	}
	write(1, "ready\n", 6);
	pause();
}
"#;

#[test]
fn threads_with_hostile_names_are_shown_and_do_not_steer() {
    if !kernel_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("waiting.c");
    let program = directory.path().join("waiting");
    std::fs::write(&source, WAITING).unwrap();
    let built = Command::new("cc")
        .args(["-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.unwrap().success());
    let mut child = Command::new(&program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let pid = child.id().to_string();
    let file = directory.path().join("waiting.debox");
    let file = file.to_str().unwrap();
    let attach = |options: &[&'static str]| -> Vec<String> {
        let all = [&["attach", "-p", &pid, "--duration", "600ms"], options].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let words = |line: &[&str]| line.iter().map(|word| (*word).to_owned()).collect();
    let views = "threads,culprits,blocking,sites";
    // With what must be found in it, so that it is there to be hostile.
    let mut runs: Vec<(Vec<String>, &str)> = vec![
        (attach(&["--color=always"]), "Still in a call"),
        (attach(&["--irq", "--call-site"]), "Who it waited for"),
        (attach(&["--json"]), "open_calls"),
        (
            attach(&["--on", "wall > 1ms", "--do", "print"]),
            "pipe-read",
        ),
        (
            words(&[
                "top",
                "--batch",
                "3",
                "--interval",
                "200ms",
                "--view",
                views,
                "-p",
                &pid,
            ]),
            "NOW IN",
        ),
        (words(&["why", &pid]), "held by"),
        (words(&["why", "--json", &pid]), "holder"),
    ];
    let mut recorded = attach(&["-o"]);
    recorded.push(file.to_owned());
    runs.push((recorded, "recorded"));
    for form in ["--html", "--perfetto"] {
        runs.push((words(&["report", form, "-", file]), ""));
    }
    runs.push((words(&["report", "--json", file]), "chain_links"));
    runs.push((words(&["report", file]), "Still in a call"));
    for (line, has) in runs {
        let (out, err) = run(debox_of_shared(&[]).args(&line));
        let mut text = format!("{out}\n{err}");
        if line.contains(&"--html".to_owned()) {
            assert!(!text.contains("<b>\""), "{line:?}");
            text = without_own(&text);
        }
        assert!(text.contains(has), "{line:?}: no {has:?}: {text}");
        assert!(
            text.contains("INJECTED") || has == "recorded",
            "{line:?}: {text}"
        );
        harmless(&format!("{line:?}"), &without_colour(&text));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
