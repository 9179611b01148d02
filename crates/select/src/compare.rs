// SPDX-License-Identifier: MIT OR Apache-2.0
//! What difference does the library make to a command?
//!
//! The command runs without it and with it, and both stand side by side: time,
//! CPU time, context switches, and what `debox run` says about the calls that
//! wait, where DeBox can watch. For the calls it runs once more: watching every
//! call takes time, which must not be in the times.

use crate::{
    Args, Error, Restore, command, environment, library_find, share, statistics, status_of, warn,
};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Waits for the command, ends it after `limit`, and passes on what ends debox.
pub(crate) fn wait(child: &mut Child, limit: Option<Duration>) -> Result<ExitStatus, Error> {
    let begin = Instant::now();
    let mut asked = false;
    // SAFETY: all-zero is a valid set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // The signals are blocked in every thread of debox, so sigtimedwait gets them.
    // SAFETY: fills and reads locals.
    unsafe {
        libc::sigemptyset(&mut set);
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGCHLD,
        ] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
    loop {
        if let Some(status) = child
            .try_wait()
            .map_err(Error::system("waiting for the command"))?
        {
            return Ok(status);
        }
        let left = match limit {
            Some(limit) if !asked => limit.saturating_sub(begin.elapsed()),
            // After SIGTERM: five seconds, then SIGKILL.
            Some(limit) => (limit + Duration::from_secs(5)).saturating_sub(begin.elapsed()),
            None => Duration::from_secs(3600),
        };
        if left.is_zero() {
            let signal = if asked { libc::SIGKILL } else { libc::SIGTERM };
            // SAFETY: our own child, not waited for.
            unsafe { libc::kill(child.id() as i32, signal) };
            if asked {
                return child
                    .wait()
                    .map_err(Error::system("waiting for the command"));
            }
            asked = true;
            continue;
        }
        let ts = libc::timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        // SAFETY: all-zero is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: reads and fills locals.
        let signal = unsafe { libc::sigtimedwait(&set, &mut info, &ts) };
        // What a terminal sends goes to the command as well.
        if signal > 0 && signal != libc::SIGCHLD && info.si_code <= 0 {
            // SAFETY: our own child, not waited for.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }
}

struct Run {
    status: i32,
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
fn once(args: &Args, restore: &Restore, library: Option<&Path>) -> Result<Run, Error> {
    let counts =
        tempfile::NamedTempFile::new().map_err(Error::system("making a file to count in"))?;
    statistics::create(counts.path()).map_err(Error::system("making a file to count in"))?;
    share(counts.path());
    let mut cmd = command(&args.command, restore);
    set_environment(
        &mut cmd,
        args,
        library,
        &format!("file={}", counts.path().display()),
    );
    let before = children_usage();
    let begin = Instant::now();
    let mut child = cmd
        .spawn()
        .map_err(|e| Error::starting(&args.command[0], e))?;
    let status = wait(&mut child, args.duration)?;
    let wall = begin.elapsed();
    let after = children_usage();
    let (processes, _) =
        statistics::read(counts.path()).map_err(Error::system("reading the counts"))?;
    Ok(Run {
        status: status_of(status),
        wall,
        user: time(after.ru_utime).saturating_sub(time(before.ru_utime)),
        system: time(after.ru_stime).saturating_sub(time(before.ru_stime)),
        switches: after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw,
        processes,
    })
}

fn set_environment(cmd: &mut Command, args: &Args, library: Option<&Path>, more: &str) {
    match library {
        Some(library) => {
            cmd.envs(environment(args, library, more));
        }
        None => {
            cmd.env_remove(crate::OPTIONS_ENV);
        }
    }
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
    restore: &Restore,
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
    words.extend(["--".into(), "env".into()]);
    match library {
        Some(library) => {
            for (name, value) in environment(args, library, "") {
                let mut word = OsString::from(name);
                word.push("=");
                word.push(value);
                words.push(word);
            }
        }
        None => words.extend(["-u".into(), crate::OPTIONS_ENV.into()]),
    }
    words.extend(args.command.iter().cloned());
    let mut child = command(&words, restore)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .map_err(Error::system("starting debox run"))?;
    wait(&mut child, args.duration)?;
    Ok(std::fs::read(report.path()).ok().and_then(|r| calls_of(&r)))
}

fn duration(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s >= 10.0 {
        format!("{s:.1} s")
    } else if s >= 1.0 {
        format!("{s:.2} s")
    } else if s >= 0.001 {
        format!("{:.1} ms", s * 1e3)
    } else {
        format!("{:.1} us", s * 1e6)
    }
}

fn change(without: f64, with: f64) -> String {
    if without <= 0.0 {
        return String::new();
    }
    let ratio = with / without;
    if (0.995..1.005).contains(&ratio) {
        "the same".into()
    } else if ratio >= 10.0 {
        format!("x {ratio:.0}")
    } else {
        format!("x {ratio:.2}")
    }
}

pub fn run(args: &Args, restore: &Restore) -> Result<i32, Error> {
    let library = library_find()?;
    warn(&args.command[0]);
    // Turn and turn about, so that what the first warms up does not count for
    // the second only.
    let without_calls = watched(args, restore, None)?;
    let with_calls = watched(args, restore, Some(&library))?;
    let without = once(args, restore, None)?;
    let with = once(args, restore, Some(&library))?;
    let mut out = io::stderr().lock();
    let _ = print(
        &mut out,
        args,
        &without,
        &with,
        without_calls.as_deref(),
        with_calls.as_deref(),
    );
    Ok(if without.status == 0 {
        with.status
    } else {
        without.status
    })
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
    writeln!(
        out,
        "\n  {:<34} {:>14} {:>14}   CHANGE",
        "", "WITHOUT", "WITH"
    )?;
    let mut row = |name: &str, a: String, b: String, change: String| {
        writeln!(out, "  {name:<34} {a:>14} {b:>14}   {change}")
    };
    let times = |f: fn(&Run) -> Duration| {
        let (a, b) = (f(without), f(with));
        (
            duration(a),
            duration(b),
            change(a.as_secs_f64(), b.as_secs_f64()),
        )
    };
    for (name, (a, b, c)) in [
        ("wall time", times(|r| r.wall)),
        ("CPU time, user", times(|r| r.user)),
        ("CPU time, kernel", times(|r| r.system)),
    ] {
        row(name, a, b, c)?;
    }
    row(
        "context switches",
        statistics::number(without.switches as u64),
        statistics::number(with.switches as u64),
        change(without.switches as f64, with.switches as f64),
    )?;
    if without.status != with.status {
        row(
            "exit status",
            without.status.to_string(),
            with.status.to_string(),
            "DIFFERENT".into(),
        )?;
    }
    match (without_calls, with_calls) {
        (Some(a), Some(b)) => {
            let zero = |name: &str| Call {
                name: name.into(),
                count: 0,
                cpu_ns: 0,
            };
            for name in WAITS {
                let find = |l: &[Call]| {
                    l.iter()
                        .filter(|c| c.name == name)
                        .fold(zero(name), |sum, c| Call {
                            name: sum.name,
                            count: sum.count + c.count,
                            cpu_ns: sum.cpu_ns + c.cpu_ns,
                        })
                };
                let (x, y) = (find(a), find(b));
                if x.count + y.count == 0 {
                    continue;
                }
                row(
                    &format!("{} calls", x.name),
                    statistics::number(x.count),
                    statistics::number(y.count),
                    change(x.count as f64, y.count as f64),
                )?;
                row(
                    &format!("{} CPU time", x.name),
                    duration(Duration::from_nanos(x.cpu_ns)),
                    duration(Duration::from_nanos(y.cpu_ns)),
                    change(x.cpu_ns as f64, y.cpu_ns as f64),
                )?;
            }
            let sum = |l: &[Call]| Duration::from_nanos(l.iter().map(|c| c.cpu_ns).sum());
            row(
                "all of these, CPU time",
                duration(sum(a)),
                duration(sum(b)),
                change(sum(a).as_secs_f64(), sum(b).as_secs_f64()),
            )?;
        }
        _ => writeln!(
            out,
            "\n  No counts of calls: debox run cannot watch here (root, or a running deboxd;\n  debox doctor says more)."
        )?,
    }
    writeln!(out, "\n  What the library did:")?;
    if with.processes.is_empty() {
        writeln!(out, "    nothing: it is in none of the command's processes")?;
    }
    statistics::print(&with.processes, 0, &mut *out)
}
