// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do sanitizers and valgrind say of a spliced program what they say of it bare?

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

#[path = "common/splice.rs"]
mod splice;

use splice::needs;
use splice::{NOBODY, Place, count, notes};

/// tests/splice/defects.cc, built with these options.
fn defects(place: &Place, options: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/defects.cc");
    let program = place.0.path().join("defects");
    let built = Command::new("c++")
        .args(["-O1", "-g", "-pthread", "-o"])
        .args([&program, &source])
        .args(options)
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "c++ {options:?} (apt-get install g++)"
    );
    program.to_str().unwrap().to_owned()
}

/// Whose privileges: a broker is there for root only.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Tests,
    Nobody,
}

impl Who {
    fn output(self, place: &Place, command: &mut Command) -> Output {
        if self == Self::Nobody && needs::is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.env("HOME", place.0.path()).output().unwrap()
    }
}

fn place() -> Place {
    let place = Place::new();
    if needs::is_root() {
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    place
}

/// What is said of the program, without what differs from run to run: addresses, process numbers, the order
/// of threads. Of its stacks the lines of its own code.
fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let of_it = ["SUMMARY", "ERROR", "WARNING", "error", "Invalid", "depends"];
    let lines = text.lines().filter(|line| {
        line.contains("defects.cc:") || of_it.iter().any(|word| line.contains(word))
    });
    let mut said: Vec<String> = lines
        .map(|line| {
            let differs = |word: &&str| word.contains("0x") || word.contains("pid=");
            // ==1234== and ==1234==ERROR:
            let line = line.trim_start_matches(|c: char| c == '=' || c.is_ascii_digit());
            let words = line.split_whitespace().filter(|word| !differs(word));
            words.collect::<Vec<_>>().join(" ")
        })
        .collect();
    said.sort();
    said
}

/// Bare and spliced alike: exit status, output and what is said. Gives what is said, and the report.
fn alike(place: &Place, who: Who, words: &[&str]) -> (Vec<String>, Value) {
    let bare = who.output(place, Command::new(words[0]).args(&words[1..]));
    let file = place.0.path().join("report.json");
    let _ = std::fs::remove_file(&file);
    let mut command = place.debox(&["run", "--capture=splice", "-q", "--json", "-o"]);
    let spliced = who.output(place, command.arg(&file).arg("--").args(words));
    assert_eq!(
        (bare.status, said(&bare), &bare.stdout),
        (spliced.status, said(&spliced), &spliced.stdout),
        "{who:?} {words:?}: {bare:?}\n{spliced:?}"
    );
    let report = std::fs::read_to_string(&file).unwrap();
    (said(&bare), serde_json::from_str(&report).unwrap())
}

/// LeakSanitizer's own thread traces all others of its process, from a task that is none of its threads.
#[test]
fn sanitizers_find_the_same() {
    for (sanitizer, defect, who, found) in [
        ("address", "none", Who::Nobody, ""),
        ("address", "free", Who::Nobody, "heap-use-after-free"),
        ("address", "leak", Who::Tests, "77 byte(s) leaked"),
        ("undefined", "none", Who::Nobody, ""),
        (
            "undefined",
            "overflow",
            Who::Nobody,
            "signed integer overflow",
        ),
        ("thread", "none", Who::Nobody, ""),
        ("thread", "race", Who::Nobody, "data race"),
        ("leak", "none", Who::Nobody, ""),
        ("leak", "leak", Who::Nobody, "77 byte(s) leaked"),
    ] {
        let place = place();
        let program = defects(&place, &[&format!("-fsanitize={sanitizer}")]);
        let (said, report) = alike(&place, who, &[&program, defect]);
        let of_it = format!("{sanitizer} {defect}: {said:?}");
        assert_eq!(said.is_empty(), found.is_empty(), "{of_it}");
        assert!(
            said.is_empty() || said.iter().any(|line| line.contains(found)),
            "{of_it}"
        );
        // One for each of 400, and those of its handler.
        assert!(count(&report, "getppid") >= 420, "{of_it} {report}");
        assert_eq!(notes(&report, "splice_left"), [""; 0], "{of_it}");
        // What it waits for while copies of its files are made is DeBox's own part, though it traces.
        let verdict = report["verdict"].to_string();
        assert!(
            !verdict.contains("debox in futex") || verdict.contains("splice-setup"),
            "{verdict}"
        );
    }
}

/// Its own handlers compare where they come with where it makes the calls of the program that it runs: it has to be
/// left as it is, and its calls are the kernel side's.
#[test]
fn valgrind_finds_the_same() {
    if !Path::new("/usr/bin/valgrind").exists() {
        needs::not_run("no valgrind is installed");
        return;
    }
    for who in [Who::Nobody, Who::Tests] {
        let place = place();
        let program = defects(&place, &[]);
        for (options, defect, found) in [
            (&["--tool=memcheck"][..], "none", ""),
            (&["--tool=memcheck"], "free", "Invalid read of size 1"),
            (&["--tool=memcheck"], "unset", "depends on uninitialised"),
            (&["--tool=helgrind"], "race", "defects.cc:"),
        ] {
            let mut words = vec!["/usr/bin/valgrind", "-q", "--error-exitcode=9"];
            words.extend(options);
            words.extend([&program, defect]);
            let (said, report) = alike(&place, who, &words);
            let of_it = format!("{who:?} {options:?} {defect}: {said:?}");
            assert!(said.iter().any(|line| line.contains(found)) || found.is_empty());
            let (kind, told) = match who == Who::Tests && needs::is_root() {
                true => ("splice_boundary", count(&report, "getppid") >= 420),
                // The shell that starts it asks as well.
                false => ("splice_left", count(&report, "getppid") < 10),
            };
            assert!(told, "{of_it}: {}", report["calls"]);
            let notes = notes(&report, kind);
            assert!(
                notes.iter().any(|note| note.contains("valgrind")),
                "{of_it}: {}",
                report["notes"]
            );
        }
    }
}
