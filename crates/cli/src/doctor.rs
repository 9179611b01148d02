// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox doctor`: what works here, what does not, why, and what to do?
//!
//! What the kernel side needs is tried for real (debox-probe loads and attaches
//! every program once); the rest is read from the places named in each check.

use crate::access::{self, Server};
use crate::args::{Color, DoctorArgs};
use crate::error::Error;
use crate::output;
use crate::source::{capabilities, may_load};
use crate::spliced::own_libc;
use crate::status::{feature_names, socket_of};
use debox_abi::{DEBOX_MSG_STATUS, debox_request};
use debox_client::Connection;
use debox_command::Library;
use debox_output::{Column, Pen, Style, Table};
use serde::Serialize;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// DeBox works, with less.
    Degraded,
    No,
}

#[derive(Clone, Debug, Serialize)]
struct Check {
    area: &'static str,
    name: String,
    purpose: String,
    state: State,
    /// A private broker (root's `run` and `attach`) cannot work without it.
    basic: bool,
    /// The value or answer that was found.
    found: String,
    /// What to do; empty when there is nothing to do.
    remedy: String,
}

#[derive(Serialize)]
struct Diagnosis {
    schema: &'static str,
    schema_version: u32,
    debox_version: &'static str,
    kernel: String,
    ok: bool,
    verdict: String,
    checks: Vec<Check>,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// "No such file or directory (os error 2)": the words are enough.
fn without_numbers(mut text: String) -> String {
    while let Some(start) = text.find(" (os error ") {
        let Some(length) = text[start..].find(')') else {
            break;
        };
        text.replace_range(start..=start + length, "");
    }
    text
}

struct List(Vec<Check>);

impl List {
    fn put(
        &mut self,
        area: &'static str,
        name: &str,
        purpose: &str,
        state: State,
        found: impl Into<String>,
        remedy: &str,
    ) {
        self.0.push(Check {
            area,
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            state,
            basic: false,
            found: without_numbers(found.into()),
            remedy: if state == State::Ok {
                String::new()
            } else {
                remedy.to_owned()
            },
        });
    }

    fn basic(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.basic = true;
        }
    }
}

fn when(good: bool, otherwise: State) -> State {
    if good { State::Ok } else { otherwise }
}

fn kernel_version() -> (String, (u32, u32)) {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (release, version)
}

/// Whether BPF programs may read the kernel's memory: the mode that says so.
fn lockdown_mode(lockdown: Option<&str>) -> Option<String> {
    lockdown
        .and_then(|l| l.split(['[', ']']).nth(1))
        .map(str::to_owned)
}

/// What is known at once to be missing on this machine, whoever asks; nothing is tried.
pub fn missing_for_certain() -> Option<String> {
    let (release, version) = kernel_version();
    if version < (6, 1) {
        return Some(format!("Linux {release} is too old, 6.1 is the first"));
    }
    if fs::metadata("/sys/kernel/btf/vmlinux").is_err() {
        return Some("the kernel's type information (/sys/kernel/btf/vmlinux) is not there".into());
    }
    let lockdown = read("/sys/kernel/security/lockdown");
    (lockdown_mode(lockdown.as_deref()).as_deref() == Some("confidentiality"))
        .then(|| "lockdown=confidentiality closes the kernel's memory".into())
}

fn kernel_checks(list: &mut List) {
    let (release, version) = kernel_version();
    list.put(
        "kernel",
        "version",
        "Linux 6.1 or later, x86-64",
        when(version >= (6, 1), State::No),
        format!("Linux {release}, {}", std::env::consts::ARCH),
        "install a kernel of 6.1 or later",
    );
    let btf = fs::metadata("/sys/kernel/btf/vmlinux");
    list.put(
        "kernel",
        "btf",
        "the kernel's type information, to fit the BPF programs to this kernel",
        when(btf.is_ok(), State::No),
        match &btf {
            Ok(meta) => format!("/sys/kernel/btf/vmlinux, {} bytes", meta.len()),
            Err(e) => format!("/sys/kernel/btf/vmlinux: {e}"),
        },
        "a kernel with CONFIG_DEBUG_INFO_BTF=y; in a container, mount /sys",
    );
    list.basic();
    let jit = read("/proc/sys/net/core/bpf_jit_enable");
    list.put(
        "kernel",
        "bpf-jit",
        "BPF programs at full speed",
        when(!matches!(jit.as_deref(), Some("0")), State::Degraded),
        jit.map_or("net.core.bpf_jit_enable is not readable".into(), |v| {
            format!("net.core.bpf_jit_enable = {v}")
        }),
        "sysctl net.core.bpf_jit_enable=1",
    );
    // Not kept by every kernel; three zeros mean that it is compiled in but off.
    let schedstat = read("/proc/thread-self/schedstat");
    let slices = schedstat
        .as_deref()
        .and_then(|s| s.split(' ').nth(2))
        .and_then(|n| n.parse::<u64>().ok());
    list.put(
        "kernel",
        "sched-info",
        "time waiting for a CPU",
        when(slices.is_some_and(|n| n > 0), State::Degraded),
        schedstat.map_or("/proc/self/schedstat does not exist".into(), |s| format!("/proc/self/schedstat: {s}")),
        "a kernel with CONFIG_SCHED_INFO (CONFIG_TASK_DELAY_ACCT or CONFIG_SCHEDSTATS); before 5.14 also sysctl kernel.task_delayacct=1",
    );
    let clock = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    list.put(
        "kernel",
        "clock",
        "time stamps of 10 ns each in wrap capture",
        when(clock.as_deref() == Some("tsc"), State::Degraded),
        clock.map_or("the clock source is not readable".into(), |c| format!("clock source {c}")),
        "boot with clocksource=tsc if the processor's counter is stable; else stamps cost more but are right",
    );
    let unified = debox_probe::unified();
    list.put(
        "kernel",
        "cgroup2",
        "--cgroup, --unit and --container",
        when(unified.is_ok(), State::Degraded),
        match &unified {
            Ok((_, place)) => format!("the unified hierarchy is mounted at {}", place.display()),
            Err(_) => "the unified hierarchy (cgroup v2) is not mounted".into(),
        },
        "mount -t cgroup2 none DIRECTORY, or boot with systemd.unified_cgroup_hierarchy=1",
    );
    let first = debox_probe::first_pid_namespace();
    list.put(
        "kernel",
        "pid-namespace",
        "process numbers that are the kernel's",
        when(first, State::Degraded),
        if first {
            "the first PID namespace".into()
        } else {
            "another one: numbers are its own, processes outside of it have number 0, no --trace, \
             and `why` sees what /proc shows"
                .to_owned()
        },
        "run debox, or deboxd, in the host's PID namespace (docker run --pid=host)",
    );
}

fn privilege_checks(list: &mut List) {
    let effective = capabilities();
    let has = |bit: u32| effective & (1 << bit) != 0;
    for (name, bit, purpose) in [
        ("CAP_BPF", 39, "load BPF programs (CAP_SYS_ADMIN does, too)"),
        (
            "CAP_PERFMON",
            38,
            "attach them, watch others (CAP_SYS_ADMIN does, too)",
        ),
        (
            "CAP_SYS_ADMIN",
            21,
            "both, and on some systems the only one that is accepted",
        ),
        (
            "CAP_SYSLOG",
            34,
            "read kernel addresses, to name the places where calls block",
        ),
    ] {
        let enough = has(bit) || (bit != 34 && has(21)) || (bit == 21 && may_load());
        list.put(
            "privileges",
            name,
            purpose,
            when(
                enough,
                if bit == 34 {
                    State::Degraded
                } else {
                    State::No
                },
            ),
            if has(bit) {
                "held"
            } else if enough {
                "not held, not needed beside the others"
            } else {
                "not held"
            },
            "run debox as root, or let deboxd run and use its socket",
        );
    }
    let lockdown = read("/sys/kernel/security/lockdown");
    let mode = lockdown_mode(lockdown.as_deref());
    list.put(
        "privileges",
        "lockdown",
        "the lockdown security module lets BPF read kernel memory",
        when(mode.as_deref() != Some("confidentiality"), State::No),
        match (&lockdown, &mode) {
            (_, Some(mode)) => format!("lockdown={mode}"),
            (Some(text), None) => text.clone(),
            (None, None) => "not active, or securityfs is not mounted".into(),
        },
        "boot with lockdown=integrity or without lockdown",
    );
    let unprivileged = read("/proc/sys/kernel/unprivileged_bpf_disabled");
    list.put(
        "privileges",
        "unprivileged-bpf",
        "does not matter to DeBox: its broker is privileged",
        State::Ok,
        unprivileged.map_or("not readable".into(), |v| {
            format!("kernel.unprivileged_bpf_disabled = {v}")
        }),
        "",
    );
    let rings = debox_probe::KernelVersion::running();
    let refused = rings.rings_refused();
    list.put(
        "privileges",
        "ring-buffers",
        "details (culprits, call sites, recordings) for users without CAP_PERFMON",
        when(refused.is_none(), State::Degraded),
        refused.unwrap_or_else(|| format!("kernel {rings} has the mending of CVE-2024-41009")),
        "update the kernel to 6.1.97, 6.6.37, 6.9.8, 6.10 or later; until then only who has CAP_PERFMON gets them",
    );
    let kptr = read("/proc/sys/kernel/kptr_restrict");
    let readable = match kptr.as_deref() {
        Some("2") => false,
        Some("1") => has(34),
        // 0: hidden from users when perf_event_paranoid is above 1.
        _ => true,
    };
    list.put(
        "privileges",
        "kptr-restrict",
        "kernel addresses in /proc/kallsyms",
        when(readable, State::Degraded),
        kptr.map_or("not readable".into(), |v| {
            format!("kernel.kptr_restrict = {v}")
        }),
        "sysctl kernel.kptr_restrict=1 (and CAP_SYSLOG); without, places are not named",
    );
    let paranoid = read("/proc/sys/kernel/perf_event_paranoid");
    let level: i32 = paranoid
        .as_deref()
        .and_then(|p| p.parse().ok())
        .unwrap_or(2);
    list.put(
        "privileges",
        "perf-event-paranoid",
        "count major page faults inside of wrapped calls",
        when(level < 1 || has(38) || has(21), State::Degraded),
        paranoid.map_or("not readable".into(), |v| {
            format!("kernel.perf_event_paranoid = {v}")
        }),
        "CAP_PERFMON, or sysctl kernel.perf_event_paranoid=0",
    );
    let limit = read("/proc/self/limits").unwrap_or_default();
    let limit = limit
        .lines()
        .find(|l| l.starts_with("Max locked memory"))
        .unwrap_or("not readable");
    let limit = limit
        .trim_start_matches("Max locked memory")
        .split_whitespace()
        .next()
        .unwrap_or("?");
    let charged = kernel_version().1 < (5, 11);
    list.put(
        "privileges",
        "memlock",
        "memory for maps (since Linux 5.11 this limit does not apply to them)",
        when(!charged || limit == "unlimited", State::Degraded),
        format!("RLIMIT_MEMLOCK = {limit}"),
        "ulimit -l unlimited",
    );
}

fn probe_checks(list: &mut List) {
    for check in debox_probe::check() {
        let state = match check.state {
            debox_probe::State::Works => State::Ok,
            debox_probe::State::Degraded => State::Degraded,
            debox_probe::State::Refused => State::No,
        };
        list.put(
            "kernel side",
            check.name,
            check.purpose,
            state,
            if state == State::Ok {
                "tried, works".to_owned()
            } else {
                check.reason.clone()
            },
            &check.remedy,
        );
        if check.basic {
            list.basic();
        }
    }
}

fn splice_check(list: &mut List) {
    let (good, found, remedy) = match spliceable(false) {
        Ok(found) => (true, found, ""),
        Err((found, remedy)) => (false, found, remedy),
    };
    let state = when(good, State::Degraded);
    let purpose = "`run --capture=splice`: calls counted in the program's own code";
    list.put("parts", "splice", purpose, state, found, remedy);
}

/// Whether programs that have this machine's C library can be spliced; of others each run says it itself.
/// If not, why, and what helps. `make`: the folder of patched code is made, if it is not there.
pub fn spliceable(make: bool) -> Result<String, (String, &'static str)> {
    const BOUNDARY: &str = "--capture=boundary";
    if debox_splice::RUNTIME.is_none() {
        Library::SPLICE.find().map_err(|error| {
            let remedy = "install DeBox's libraries, or name the file in $DEBOX_SPLICE_RUNTIME";
            (error.to_string(), remedy)
        })?;
    }
    if read("/proc/sys/kernel/yama/ptrace_scope").as_deref() == Some("3") {
        let remedy = "kernel.yama.ptrace_scope = 1 from the next boot on (3 stays until then); or --capture=boundary";
        return Err((
            "kernel.yama.ptrace_scope = 3: nobody may trace".into(),
            remedy,
        ));
    }
    // Once in a run: it takes a process.
    static TRACES: OnceLock<Result<(), String>> = OnceLock::new();
    let traces =
        TRACES.get_or_init(|| debox_splice::may_trace().map_err(|error| error.to_string()));
    if let Err(why) = traces {
        return Err((
            format!(
                "no process may be traced here ({why}): programs could not be stopped as they begin"
            ),
            "let this user trace (kernel.yama.ptrace_scope, SELinux' deny_ptrace, the container's seccomp profile); or \
             --capture=boundary",
        ));
    }
    debox_splice::ticks_check().map_err(|error| (error.to_string(), BOUNDARY))?;
    let images = crate::patched::folder(make).map_err(|error| {
        // Its own words have the remedy in them, for who sees them alone.
        let found = match error {
            Error::Splice(debox_splice::Error::Images { folder, why }) => {
                format!("{}: {why}", folder.display())
            }
            error => error.to_string(),
        };
        let remedy = "set XDG_CACHE_HOME to a folder that is yours, and not mounted noexec; or --capture=boundary";
        (found, remedy)
    })?;
    let Some(libc) = own_libc() else {
        return Ok("there is no libc.so.6 to look at".into());
    };
    match debox_splice::knows_its_calls(&libc, Some(&images)) {
        Ok(false) => Ok(format!("{} can be spliced", libc.display())),
        Ok(true) => Err((
            format!(
                "{} has no place to tell an unwinder of other code (glibc before 2.35, musl), or has calls that may not \
                 be replaced: programs with it are counted at the kernel's boundary, where there is a broker",
                libc.display()
            ),
            "none; --capture=boundary does the same at once, static programs of other libraries can be spliced",
        )),
        Err(error) => Err((format!("{}: {error}", libc.display()), BOUNDARY)),
    }
}

fn part_checks(list: &mut List, socket: Option<PathBuf>) -> bool {
    let socket = socket_of(socket);
    let answer =
        Connection::open(&socket).and_then(|c| c.ask(&debox_request::new(DEBOX_MSG_STATUS, 0)));
    let reachable = answer.is_ok();
    let found = match &answer {
        Ok((reply, _)) => {
            let attached = feature_names(reply.features);
            let attached = if attached.is_empty() {
                "idle".into()
            } else {
                attached.join(", ")
            };
            let runs_as = Server::of(&socket).map_or(String::new(), |server| {
                format!(", runs as {}", server.user_text())
            });
            format!(
                "{} answers ({attached}){runs_as}, for {}",
                socket.display(),
                access::who_may(&socket)
            )
        }
        Err(error) => error.to_string(),
    };
    let closed = matches!(&answer, Err(debox_client::Error::Connect { source, .. })
        if source.raw_os_error() == Some(libc::EACCES));
    let remedy = if closed {
        access::way_in(&socket)
    } else {
        "as root: systemctl enable --now deboxd.socket, or run deboxd".into()
    };
    // Root needs none.
    let state = if reachable || may_load() {
        State::Ok
    } else {
        State::No
    };
    list.put(
        "parts",
        "broker",
        "a permanent broker, for programs without privileges",
        state,
        if state == State::Ok && !reachable {
            format!(
                "none at {}; not needed, a private one is started",
                socket.display()
            )
        } else {
            found
        },
        &remedy,
    );
    let library = Library::WRAP.find();
    list.put(
        "parts",
        Library::WRAP.name,
        "`run --capture=wrap`",
        when(library.is_ok(), State::Degraded),
        match &library {
            Ok(path) => path.display().to_string(),
            Err(error) => error.to_string(),
        },
        "install DeBox's libraries, or name the file in $DEBOX_WRAP_LIBRARY",
    );
    splice_check(list);
    let symbols = debox_symbol::KernelSymbols::open(debox_symbol::SymbolOptions::default());
    let (state, found) = match &symbols {
        Ok(symbols) => match symbols.vmlinux() {
            Some(path) => (State::Ok, path.display().to_string()),
            None => (State::Degraded, symbols.notes().join(" ")),
        },
        Err(error) => (State::Degraded, error.to_string()),
    };
    list.put(
        "parts",
        "vmlinux",
        "files and lines of the places where calls block (else function+offset)",
        state,
        found,
        "install the kernel's debug package (Debian: linux-image-$(uname -r)-dbg), or --vmlinux FILE",
    );
    reachable
}

fn diagnose(socket: Option<PathBuf>) -> Diagnosis {
    let mut list = List(Vec::new());
    kernel_checks(&mut list);
    privilege_checks(&mut list);
    probe_checks(&mut list);
    let reachable = part_checks(&mut list, socket);
    let missing: Vec<&str> = list
        .0
        .iter()
        .filter(|c| c.basic && c.state == State::No)
        .map(|c| c.name.as_str())
        .collect();
    let own = missing.is_empty();
    let verdict = match (own, reachable) {
        (true, _) => "`debox run` and `debox attach` work".to_owned(),
        (false, true) => "`debox run` works through the permanent broker".to_owned(),
        (false, false) => format!(
            "`debox run` does not work: no permanent broker, and a private one lacks {}",
            missing.join(", ")
        ),
    };
    Diagnosis {
        schema: "debox.doctor",
        schema_version: 1,
        debox_version: env!("CARGO_PKG_VERSION"),
        kernel: kernel_version().0,
        ok: own || reachable,
        verdict,
        checks: list.0,
    }
}

type Cell = (String, Option<Style>);

/// What is told of a check below its own line.
fn told(check: &Check) -> Vec<Cell> {
    let mut told = Vec::new();
    if check.state == State::Ok {
        if check.found != "tried, works" {
            told.push((check.found.clone(), Some(Style::Dim)));
        }
        return told;
    }
    if !check.found.is_empty() {
        told.push((format!("because: {}", check.found), None));
    }
    for (at, line) in check.remedy.lines().enumerate() {
        let begin = if at == 0 { "remedy:" } else { "" };
        told.push((format!("{begin:9}{line}"), None));
    }
    told
}

fn text(diagnosis: &Diagnosis, pen: &Pen, all: bool) -> String {
    let mut rows: Vec<(&str, [Cell; 3])> = Vec::new();
    let plain = |text: &str| (text.to_owned(), None);
    let shown = |c: &&Check| all || c.state == State::No;
    for check in diagnosis.checks.iter().filter(shown) {
        let (word, style) = match check.state {
            State::Ok => ("ok", Style::Good),
            State::Degraded => ("degraded", Style::Poor),
            State::No => ("no", Style::Bad),
        };
        let state = (word.to_owned(), Some(style));
        rows.push((
            check.area,
            [state, plain(&check.name), plain(&check.purpose)],
        ));
        let below = told(check).into_iter();
        rows.extend(below.map(|cell| (check.area, [plain(""), plain(""), cell])));
    }
    let column = |at: usize| {
        let (cells, styles) = rows.iter().map(|(_, row)| row[at].clone()).unzip();
        Column::new("", 0, cells).left().styles(styles)
    };
    let table = Table::from(vec![column(0), column(1), column(2)]).text(pen, None);
    let mut out = String::new();
    let mut area = "";
    for ((of, _), line) in rows.iter().zip(table.lines()) {
        if *of != area {
            area = of;
            out += &pen.paint(Style::Bold, area);
            out.push('\n');
        }
        out += line;
        out.push('\n');
    }
    let style = if diagnosis.ok {
        Style::Good
    } else {
        Style::Bad
    };
    let verdict = pen.paint(style, &pen.plain(&diagnosis.verdict));
    out + &pen.paint(Style::Bold, &verdict) + "\n"
}

fn pen(color: Color, terminal: bool) -> Pen {
    Pen {
        color: output::color(color, terminal),
        ascii: output::ascii(),
    }
}

pub fn doctor(args: DoctorArgs) -> Result<i32, Error> {
    let diagnosis = diagnose(args.socket);
    let out = if args.result.json {
        output::json(&diagnosis)
    } else {
        text(
            &diagnosis,
            &pen(args.color, args.result.on_terminal()),
            true,
        )
    };
    output::deliver(&args.result, &out)?;
    Ok(if diagnosis.ok { 0 } else { 1 })
}

/// What is wrong, when `run` or `attach` cannot work.
pub fn explain() {
    let diagnosis = diagnose(None);
    // A mistake in --labels or --vmlinux, say: "it works" below it would only
    // puzzle.
    if diagnosis
        .checks
        .iter()
        .all(|c| !c.basic || c.state != State::No)
    {
        return;
    }
    let pen = pen(Color::Auto, std::io::stderr().is_terminal());
    let _ = std::io::stderr()
        .lock()
        .write_all(text(&diagnosis, &pen, false).as_bytes());
}
