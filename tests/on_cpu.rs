// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is it told rightly what the threads did while they had a CPU?
//!
//! Of the programs of tests/truth/oncpu.c it is known. Samples are drawn by chance: what
//! they say may be wrong by so many times the error that their number implies.

use debox_tests::*;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Once in 1.7 million.
const SIGMAS: f64 = 5.0;

fn command(words: &[&str]) -> Vec<String> {
    let program = program("oncpu").display().to_string();
    std::iter::once(program)
        .chain(words.iter().map(|word| (*word).to_owned()))
        .collect()
}

/// With a broker that has all rights: where perf events are for nobody without
/// CAP_SYS_ADMIN (Debian), deboxd has none.
fn sampled(options: &[&str], words: &[&str]) -> Run {
    let run = run_privately(options, &command(words));
    assert!(run.output.status.success(), "{:?}", run.output);
    run
}

fn rows(run: &Run, list: &str) -> Vec<Value> {
    let rows = run.report["on_cpu"][list].as_array();
    rows.unwrap_or_else(|| panic!("no {list} in {}", run.report))
        .clone()
}

fn samples(run: &Run) -> u64 {
    number(&run.report["on_cpu"], "samples")
}

/// Samples of a function itself.
fn own(run: &Run, name: &str) -> u64 {
    let functions = rows(run, "functions");
    let of = functions.iter().filter(|f| f["name"] == name);
    of.map(|f| number(f, "self")).sum()
}

fn group(run: &Run, comm: &str) -> Option<Value> {
    rows(run, "groups").into_iter().find(|g| g["comm"] == comm)
}

/// User and system time, as the program itself was told.
fn usage(run: &Run) -> (f64, f64) {
    let text = String::from_utf8_lossy(&run.output.stdout).into_owned();
    let mut words = text.split_whitespace().map(|w| w.parse::<f64>().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

#[track_caller]
fn share_is(part: u64, all: u64, share: f64, why: &str) {
    let (part, all) = (part as f64, all as f64);
    // A host that takes the CPU away for a while takes many strikes of one function.
    let chance = if slow() { 2.0 * SIGMAS } else { SIGMAS };
    let error = chance * (share * (1.0 - share) / all).sqrt();
    assert!(
        (part / all - share).abs() <= error,
        "{why}: {part} of {all} samples, not {share} ± {error}"
    );
}

/// What the samples stand for is what the kernel has booked.
#[track_caller]
fn sum_is(samples: u64, hz: f64, ns: f64) {
    let (found, known) = (samples as f64, ns / 1e9 * hz);
    let error = SIGMAS * known.sqrt() / 2.0 + 3.0;
    // The clock of a machine that stands still loses strikes.
    let least = if slow() { 0.0 } else { known - error };
    assert!(
        found >= least && found <= known + error,
        "{found} samples, where {known} ± {error} were to be"
    );
}

#[test]
fn functions_have_the_shares_that_they_have() {
    let Some(_alone) = alone() else { return };
    // An emulated machine takes seconds to make the table that callers are found by.
    let seconds = if slow() { "6" } else { "2" };
    let run = sampled(&["--hz", "499"], &["shares", seconds]);
    run.check_sound();
    let (user, system) = usage(&run);
    sum_is(samples(&run), 499.0, user + system);
    let (long, short) = (own(&run, "burn_long"), own(&run, "burn_short"));
    assert!(long + short >= 50, "{}", run.report["on_cpu"]);
    share_is(long, long + short, 0.7, "burn_long");
    // Who called them.
    let functions = rows(&run, "functions");
    let main = functions.iter().find(|f| f["name"] == "main").unwrap();
    let main = number(main, "total");
    // Until their file's table is there callers may be missing.
    let least = if slow() { 1 } else { (long + short) / 2 };
    assert!(
        main >= least,
        "main calls them: {main} of {} samples",
        long + short
    );
    // A tree, a caller before what it calls; every row's samples are its group's.
    let frames = rows(&run, "frames");
    for (at, frame) in frames.iter().enumerate() {
        assert!(
            frame["caller"]
                .as_u64()
                .is_none_or(|caller| caller < at as u64)
        );
        assert!((number(frame, "function") as usize) < functions.len());
    }
    let told: u64 = rows(&run, "rows")
        .iter()
        .map(|r| number(r, "samples"))
        .sum();
    assert_eq!(told, samples(&run), "no row is dropped");
}

#[test]
fn the_kernel_has_the_share_that_it_has() {
    let Some(_alone) = alone() else { return };
    let run = sampled(&["--hz", "499"], &["kernel", "2"]);
    let (user, system) = usage(&run);
    let own = group(&run, "oncpu").unwrap();
    let (in_user, in_calls) = (number(&own, "user"), number(&own, "calls"));
    let in_read: u64 = rows(&run, "rows")
        .iter()
        .filter(|row| row["kind"] == "call" && row["call"] == "read")
        .map(|row| number(row, "samples"))
        .sum();
    assert!(in_read >= 50, "{}", run.report["on_cpu"]);
    assert!(in_read <= in_calls);
    // The kernel books some of an interrupt's and a fault's time otherwise.
    let all = in_user + in_calls;
    let share = user / (user + system);
    let error = SIGMAS * (share * (1.0 - share) / all as f64).sqrt() + 0.05;
    let found = in_user as f64 / all as f64;
    assert!(
        (found - share).abs() <= error,
        "{found} of the samples in user mode, not {share} ± {error}"
    );
    // Inside of it the kernel's own functions have names.
    let functions = rows(&run, "functions");
    let kernel = functions
        .iter()
        .filter(|f| f["module"].is_null() && f["name"].is_string());
    let named: u64 = kernel.map(|f| number(f, "self")).sum();
    assert!(
        named * 10 >= in_calls * 9,
        "{named} of {in_calls} have names"
    );
}

#[test]
fn code_that_is_made_while_it_runs_has_its_names() {
    let Some(_alone) = alone() else { return };
    let run = sampled(&["--hz", "499"], &["jit", "1"]);
    let pid = run.report["run"]["pids"][0].as_u64().unwrap();
    // Of our own making, by its name.
    let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
    let made = own(&run, "made_now");
    // Where all is emulated, its beginning takes longer.
    let least = if slow() { 4 } else { 8 };
    assert!(
        made * 10 >= samples(&run) * least,
        "{made} of {}: {}",
        samples(&run),
        run.report["on_cpu"]
    );
    let functions = rows(&run, "functions");
    let caller = functions.iter().find(|f| f["name"] == "run_made");
    let called = caller.map_or(0, |f| number(f, "total"));
    let least = if slow() { 1 } else { made / 2 };
    assert!(called >= least, "through run_made: {called} of {made}");
}

/// The Python that is installed, if its functions are read (3.11 to 3.13).
fn python() -> Option<String> {
    let names = ["python3", "python3.11", "python3.12", "python3.13"];
    let known = names.into_iter().find(|name| {
        let said = Command::new(name)
            .args(["-c", "import sys; print(sys.version_info[:2])"])
            .output();
        let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
        said.is_ok_and(|said| ["(3, 11)", "(3, 12)", "(3, 13)"].contains(&said.trim()))
    });
    if known.is_none() {
        not_run("no Python whose functions are read (3.11 to 3.13)");
    }
    known.map(str::to_owned)
}

/// Two threads in turns, each in functions of its own.
const PYTHON: &str = "
import threading, time
def spin(until):
    n = 0
    while time.thread_time() < until:
        for i in range(2000): n += i
class Left:
    def burn(self): spin(1.2)
def right_burn():
    spin(0.6)
threads = [threading.Thread(target=Left().burn), threading.Thread(target=right_burn)]
for t in threads: t.start()
for t in threads: t.join()
";

#[test]
fn functions_of_python_have_their_names() {
    if !bpf_wanted() {
        return;
    }
    let Some(python) = python() else {
        return;
    };
    let _alone = alone();
    let file = tempfile::Builder::new().suffix(".py").tempfile().unwrap();
    std::fs::write(file.path(), PYTHON).unwrap();
    let path = file.path().display().to_string();
    let run = run_privately(&["--hz", "499"], &[python, path.clone()]);
    assert!(run.output.status.success(), "{:?}", run.output);
    let functions = rows(&run, "functions");
    let total = |name: &str| {
        let of = functions.iter().filter(|f| f["name"] == name);
        of.map(|f| number(f, "total")).sum::<u64>()
    };
    let (spin, left, right) = (total("spin"), total("Left.burn"), total("right_burn"));
    // Until the interpreter's file is read, it is its functions that are shown.
    let least = if slow() { 1 } else { samples(&run) / 2 };
    assert!(spin >= least, "{spin} of {}: {functions:?}", samples(&run));
    share_is(left, left + right, 2.0 / 3.0, "Left.burn");
    let module = path.rsplit('/').next().unwrap();
    let spinner = functions.iter().find(|f| f["name"] == "spin").unwrap();
    assert_eq!(spinner["module"], module);
    // No thread is taken for the other.
    let frames = rows(&run, "frames");
    for row in rows(&run, "rows") {
        let mut names = Vec::new();
        let mut next = row["frame"].as_u64();
        while let Some(at) = next {
            let frame = &frames[at as usize];
            let function = &functions[number(frame, "function") as usize];
            names.push(function["name"].as_str().unwrap_or_default().to_owned());
            next = frame["caller"].as_u64();
        }
        let has = |name: &str| names.iter().any(|known| known == name);
        assert!(!(has("Left.burn") && has("right_burn")), "{names:?}");
        if let Some(spin) = names.iter().position(|name| name == "spin") {
            let caller = names.get(spin + 1).map(String::as_str);
            assert!(
                matches!(caller, Some("Left.burn" | "right_burn")),
                "{names:?}"
            );
        }
    }
}

#[test]
fn who_sleeps_has_no_samples() {
    let Some(_alone) = alone() else { return };
    let run = sampled(&[], &["threads", "0.5"]);
    assert_eq!(number(&run.report["on_cpu"], "hz"), 99);
    let burner = group(&run, "burner").expect("it computes");
    assert!(number(&burner, "samples") >= 5, "{burner}");
    // Where all is emulated, to begin and to end takes the time of some.
    let slept = group(&run, "sleeper").map_or(0, |group| number(&group, "samples"));
    let most = if slow() {
        number(&burner, "samples") / 5
    } else {
        0
    };
    assert!(slept <= most, "{slept} samples, {burner}");
}

/// Of a report, as `debox report --folded-all` writes it.
fn folded_all(run: &Run) -> Vec<(Vec<String>, u64)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), run.report.to_string()).unwrap();
    let text = Command::new(debox())
        .args(["report", "--folded-all", "-"])
        .arg(file.path())
        .output()
        .unwrap();
    assert!(text.status.success(), "{text:?}");
    String::from_utf8_lossy(&text.stdout)
        .lines()
        .map(|line| {
            let (stack, ns) = line.rsplit_once(' ').unwrap();
            let stack = stack.split(';').map(str::to_owned).collect();
            (stack, ns.parse().unwrap())
        })
        .collect()
}

#[test]
fn all_time_adds_up_to_the_lives() {
    if !bpf_wanted() {
        return;
    }
    let _alone = alone();
    let run = sampled(&["--hz", "499"], &["threads", "0.5"]);
    let folded = folded_all(&run);
    let lives = run.report["lives"].as_array().unwrap();
    assert!(lives.len() >= 3, "{lives:?}");
    let sum = |comm: &str, state: Option<&str>| -> u64 {
        let of = folded.iter().filter(|(stack, _)| {
            stack[0] == comm && state.is_none_or(|state| stack[1] == format!("({state})"))
        });
        of.map(|(_, ns)| ns).sum()
    };
    for comm in lives.iter().map(|life| life["comm"].as_str().unwrap()) {
        let life = |part: &str| -> u64 {
            let of = lives.iter().filter(|life| life["comm"] == comm);
            of.map(|life| number(life, part)).sum()
        };
        assert_eq!(sum(comm, None), life("life_ns"), "{comm}: {folded:?}");
        let on_cpu = life("own_ns") + life("calls_ns");
        assert_eq!(sum(comm, Some("on a CPU")), on_cpu, "{comm}");
        let asleep = sum(comm, Some("blocked")) + sum(comm, Some("at rest"));
        assert_eq!(asleep, life("blocked_ns"), "{comm}");
        assert_eq!(
            sum(comm, Some("waiting for a CPU")),
            life("runq_ns"),
            "{comm}"
        );
    }
    // What ran, and what the sleep waited for.
    let has = |comm: &str, state: &str, words: &str| {
        folded.iter().any(|(stack, _)| {
            stack[0] == comm && stack[1] == state && stack[2..].iter().any(|s| s.contains(words))
        })
    };
    assert!(has("burner", "(on a CPU)", "burn"), "{folded:?}");
    assert!(
        has("sleeper", "(blocked)", "a timer") || has("sleeper", "(at rest)", "a timer"),
        "{folded:?}"
    );
}

#[test]
fn nobody_asks_and_nothing_is_told() {
    let Some(_alone) = alone() else { return };
    let run = sampled(&["--hz", "0"], &["shares", "0.3"]);
    assert!(run.report["on_cpu"].is_null(), "{}", run.report["on_cpu"]);
    assert!(!run.notes().iter().any(|note| note == "not_measured"));
}

#[test]
fn a_hostile_name_does_no_harm() {
    let Some(_alone) = alone() else { return };
    let name = "a;\u{1b}[31m\nb 9";
    let run = sampled(&[], &["name", "0.5", name]);
    assert!(group(&run, name).is_some(), "{}", run.report["on_cpu"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), run.report.to_string()).unwrap();
    let text = Command::new(debox())
        .args(["report", "--color", "always"])
        .arg(file.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("On the CPU"), "{text}");
    assert!(text.contains("burn_long"), "{text}");
    assert!(
        !text.contains("\u{1b}[31mb") && !text.contains("\nb 9"),
        "{text}"
    );
}

/// Who ptrace refuses has no samples: they are of nobody but the account's own.
#[test]
fn of_a_program_with_more_rights_nothing_is_told() {
    let Some(_alone) = alone() else { return };
    let broker = shared_broker();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let mode = |path: &Path, bits| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(bits);
        std::fs::set_permissions(path, mode).unwrap();
    };
    mode(directory.path(), 0o755);
    let debox = directory.path().join("debox");
    std::fs::copy(self::debox(), &debox).unwrap();
    let reports = directory.path().join("reports");
    std::fs::create_dir(&reports).unwrap();
    std::os::unix::fs::chown(&reports, Some(65534), Some(65534)).unwrap();
    for (name, bits, seen) in [("own", 0o755, true), ("setuid", 0o4755, false)] {
        let copy = directory.path().join(name);
        std::fs::copy(program("oncpu"), &copy).unwrap();
        mode(&copy, bits);
        let path = reports.join(name);
        let mut command = Command::new(&debox);
        command
            .current_dir("/")
            .args(["run", "--json", "-o"])
            .arg(&path)
            .arg("--socket")
            .arg(broker.socket())
            .arg("--")
            .arg(&copy)
            .args(["shares", "0.5"]);
        let output = as_nobody(&mut command).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let run = Run {
            report: serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(),
            output,
        };
        let burnt = match run.report["on_cpu"].is_null() {
            true => 0,
            false => own(&run, "burn_long"),
        };
        assert_eq!(burnt > 0, seen, "{name}: {}", run.report["on_cpu"]);
        if !seen && !run.report["on_cpu"].is_null() {
            assert_eq!(group(&run, name), None, "{}", run.report["on_cpu"]);
        }
    }
}
