// SPDX-License-Identifier: MIT OR Apache-2.0
//! What difference does the library make to a command?
//!
//! The command runs without it and with it, and both stand side by side: time,
//! CPU time, context switches, and what `debox run` says about the calls that
//! wait, where DeBox can watch. For the calls it runs once more: watching every
//! call takes time, which must not be in the times.

use crate::{Args, Error, counts_make, environment, library_find, run_to_end, statistics, warn};
use debox_command::{Ended, Environment, Inherited};
use debox_output::{Pen, Table, count_text, duration_text};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Duration, Instant};

struct Run {
    ended: Ended,
    wall: Duration,
    user: Duration,
    system: Duration,
    switches: i64,
    processes: Vec<statistics::Process>,
}

/// A call that waits, as `debox run` counts it.
struct Call {
    name: String,
    count: u64,
    cpu_ns: u64,
}

fn time(value: libc::timeval) -> Duration {
    Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000)
}

fn children_usage() -> libc::rusage {
    // SAFETY: fills a local.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    }
}

/// The command itself, for its times.
fn once(args: &Args, inherited: &Inherited, library: Option<&Path>) -> Result<Run, Error> {
    let counts = counts_make()?;
    let option = format!("file={}", counts.path().display());
    let environment = environment(args, library, &option)?;
    let before = children_usage();
    let begin = Instant::now();
    let ended = run_to_end(
        &args.command,
        &environment,
        inherited,
        [None; 3],
        args.duration,
    )?;
    let wall = begin.elapsed();
    let after = children_usage();
    let (processes, _) =
        statistics::read(counts.path()).map_err(Error::system("reading the counts"))?;
    Ok(Run {
        ended,
        wall,
        user: time(after.ru_utime).saturating_sub(time(before.ru_utime)),
        system: time(after.ru_stime).saturating_sub(time(before.ru_stime)),
        switches: after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw,
        processes,
    })
}

const WAITS: [&str; 9] = [
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_ctl",
    "epoll_create1",
];

fn calls_of(report: &[u8]) -> Option<Vec<Call>> {
    let report: serde_json::Value = serde_json::from_slice(report).ok()?;
    let list = report.get("calls")?.as_array()?.iter();
    Some(
        list.filter_map(|c| {
            let name = c.get("name")?.as_str()?;
            WAITS.contains(&name).then_some(Call {
                name: name.to_owned(),
                count: c.get("count")?.as_u64()?,
                cpu_ns: c.get("cpu_ns")?.as_u64()?,
            })
        })
        .collect(),
    )
}

/// The command under `debox run`, for its calls. None: it cannot watch here.
fn watched(
    args: &Args,
    inherited: &Inherited,
    library: Option<&Path>,
) -> Result<Option<Vec<Call>>, Error> {
    let report =
        tempfile::NamedTempFile::new().map_err(Error::system("making a file for the report"))?;
    let debox = std::env::current_exe().map_err(Error::system("finding debox"))?;
    // The variables are the command's alone: debox is not to be preloaded.
    let mut words: Vec<OsString> = vec![
        debox.into(),
        "run".into(),
        "--quiet".into(),
        "--json".into(),
        "-o".into(),
        report.path().into(),
    ];
    // Its own limit: loading what watches takes seconds, and is not the command's.
    if let Some(limit) = args.duration {
        words.extend(["-d".into(), format!("{}s", limit.as_secs_f64()).into()]);
    }
    words.extend(["--", "env", "-u", "LD_PRELOAD", "-u", crate::OPTIONS_ENV].map(OsString::from));
    let wanted = environment(args, library, "")?;
    for name in ["LD_PRELOAD", crate::OPTIONS_ENV] {
        if let Some(value) = wanted.get(name) {
            let word = [name.as_bytes(), b"=", value].concat();
            words.push(OsString::from_vec(word));
        }
    }
    words.extend(args.command.iter().cloned());
    let null = File::options()
        .write(true)
        .open("/dev/null")
        .map_err(Error::system("opening /dev/null"))?;
    let streams = [None, Some(null.as_fd()), Some(null.as_fd())];
    let own = Environment::inherited();
    run_to_end(&words, &own, inherited, streams, None)?;
    Ok(std::fs::read(report.path()).ok().and_then(|r| calls_of(&r)))
}

fn duration(ns: u64) -> String {
    duration_text(ns, false)
}

fn change(without: u64, with: u64) -> String {
    if without == 0 {
        return String::new();
    }
    let ratio = with as f64 / without as f64;
    if (0.995..1.005).contains(&ratio) {
        "the same".into()
    } else if ratio >= 10.0 {
        format!("x {ratio:.0}")
    } else {
        format!("x {ratio:.2}")
    }
}

pub fn run(args: &Args, inherited: &Inherited) -> Result<Ended, Error> {
    let library = library_find()?;
    warn(&args.command[0]);
    // Turn and turn about, so that what the first warms up does not count for
    // the second only.
    let without_calls = watched(args, inherited, None)?;
    let with_calls = watched(args, inherited, Some(&library))?;
    let without = once(args, inherited, None)?;
    let with = once(args, inherited, Some(&library))?;
    let mut out = io::stderr().lock();
    let _ = print(
        &mut out,
        args,
        &without,
        &with,
        without_calls.as_deref(),
        with_calls.as_deref(),
    );
    Ok(if without.ended == Ended::Code(0) {
        with.ended
    } else {
        without.ended
    })
}

fn row(name: &str, text: fn(u64) -> String, without: u64, with: u64) -> Vec<String> {
    let change = change(without, with);
    vec![name.to_owned(), text(without), text(with), change]
}

fn table(without: &Run, with: &Run, calls: Option<(&[Call], &[Call])>) -> Table {
    let mut table = Table::new(&["", "WITHOUT", "WITH", "CHANGE"]).left(3);
    let mut time = |name, of: fn(&Run) -> Duration| {
        let ns = |run| u64::try_from(of(run).as_nanos()).unwrap_or(u64::MAX);
        table.row(row(name, duration, ns(without), ns(with)));
    };
    time("wall time", |r| r.wall);
    time("CPU time, user", |r| r.user);
    time("CPU time, kernel", |r| r.system);
    let (a, b) = (without.switches as u64, with.switches as u64);
    table.row(row("context switches", count_text, a, b));
    if without.ended != with.ended {
        let status = |run: &Run| run.ended.status().to_string();
        let (a, b) = (status(without), status(with));
        table.row(vec!["exit status".into(), a, b, "DIFFERENT".into()]);
    }
    let Some((without, with)) = calls else {
        return table;
    };
    let sums = |name: Option<&str>, of: fn(&Call) -> u64| {
        let sum = |list: &[Call]| {
            let these = list
                .iter()
                .filter(|c| name.is_none_or(|name| c.name == name));
            these.map(of).sum::<u64>()
        };
        (sum(without), sum(with))
    };
    for name in WAITS {
        let (a, b) = sums(Some(name), |c| c.count);
        if a + b > 0 {
            table.row(row(&format!("{name} calls"), count_text, a, b));
            let (a, b) = sums(Some(name), |c| c.cpu_ns);
            table.row(row(&format!("{name} CPU time"), duration, a, b));
        }
    }
    let (a, b) = sums(None, |c| c.cpu_ns);
    table.row(row("all of these, CPU time", duration, a, b));
    table
}

fn print(
    out: &mut impl Write,
    args: &Args,
    without: &Run,
    with: &Run,
    without_calls: Option<&[Call]>,
    with_calls: Option<&[Call]>,
) -> io::Result<()> {
    let words: Vec<_> = args.command.iter().map(|w| w.to_string_lossy()).collect();
    writeln!(out, "\n{}", debox_output::printable(&words.join(" ")))?;
    write!(
        out,
        "\n{}",
        table(without, with, without_calls.zip(with_calls)).text(&Pen::default(), None)
    )?;
    if without_calls.and(with_calls).is_none() {
        writeln!(
            out,
            "\n  No counts of calls: debox run cannot watch here (root, or a running deboxd;\n  debox doctor says more)."
        )?;
    }
    writeln!(out, "\n  What the library did:")?;
    if with.processes.is_empty() {
        writeln!(out, "    nothing: it is in none of the command's processes")?;
    }
    statistics::print(&with.processes, 0, &mut *out)
}
