// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does the kernel spend its time? Metrics inserted while it runs.
//!
//! KernInst's profiler (Tamches and Miller) for today's kernels: a *metric*
//! (calls, concurrency, latency, self time) is applied to a *resource* (a
//! kernel function, an instruction, a system call), watched over time, and
//! refined into the functions below until the time is explained.

#[cfg(test)]
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

mod args;
mod auto;
mod call_site;
mod code;
mod document;
mod engine;
mod error;
mod functions;
#[allow(non_camel_case_types)]
mod generated;
mod html;
mod list;
mod object;
mod resource;
mod sample;
mod screen;
mod session;
mod text;
mod way;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub use args::{Args, Metric};
pub use engine::{Engine, IndirectCall, Insertion, MetricId, Resource, Restriction};
pub use error::Error;
pub use functions::{Choice, Function, Functions, functions_open};
pub use object::{Limits, Ways};
pub use session::{Point, Session, Totals, Watch};
pub use way::Way;

use debox_command::{
    Child, Ended, Environment, FAILED, Held, Hold, Inherited, Program, Start, stop,
};
use debox_output::say;

/// Does what the command line says; returns the exit status: 0, or that of
/// CMD, or by CMD's signal; 125 when nothing could be measured. `inherited`: what
/// CMD is to find.
pub fn run(args: Args, inherited: &Inherited) -> i32 {
    match measure(&args, inherited) {
        Ok(ended) => ended.end_as(),
        Err(error) => {
            complain(&error);
            error.exit_status()
        }
    }
}

fn complain(error: &Error) {
    match error {
        // A line for each function, whose names are the kernel's.
        Error::CannotAttach(whys) => whys.lines().for_each(say),
        error => say(&error.to_string()),
    }
}

fn output(args: &Args, text: &str) -> Result<(), Error> {
    match &args.output {
        Some(path) if path.as_os_str() != "-" => debox_output::write(path, text.as_bytes())
            .map_err(|source| Error::Output {
                path: path.clone(),
                source,
            }),
        _ => {
            // Whoever stopped reading has what he wanted.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            Ok(())
        }
    }
}

fn measure(args: &Args, inherited: &Inherited) -> Result<Ended, Error> {
    if args.resources.is_empty() && !args.auto {
        return Err(Error::Usage(
            "what is to be measured? Name a function (debox kern vfs_read), a pattern, or a \
             system call (openat()); or let --auto find out"
                .into(),
        ));
    }
    let environment = Environment::inherited();
    let program = match args.command.is_empty() {
        true => None,
        false => Some(Program::resolve(&args.command)?),
    };
    // It is in the set of measured processes before it becomes the command.
    let held = match &program {
        None => None,
        Some(program) => {
            let start = Start::new(program, &environment, inherited);
            Some(start.hold(Hold::Asleep, || Ok(()))?)
        }
    };
    let engine = Engine::open(Limits {
        // With --auto all system calls at once, to see which one takes the most.
        metrics: args
            .max_functions
            .saturating_add(if args.auto { 600 } else { 64 })
            .min(60_000),
        stacks: if args.auto { 16384 } else { 1 },
        threads: args.max_threads,
        ..Limits::default()
    })?;
    let mut session = Session::new(engine, functions_open()?);
    session.max_functions = args.max_functions;
    session.max_overhead = args.max_overhead;
    session.engine.forced_way = args.way;
    session.engine.prefer_sessions = args.auto;
    common_restriction(args, &mut session, held.as_ref())?;
    stop::note_signals();
    if args.list {
        return list(args, &session);
    }
    if args.auto {
        return refine(args, session, held);
    }
    watch(args, session, held)
}

/// System calls that wait because they are asked to: no work is behind them.
const IDLE_CALLS: [&str; 17] = [
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "pause",
    "nanosleep",
    "clock_nanosleep",
    "wait4",
    "waitid",
    "rt_sigtimedwait",
    "rt_sigsuspend",
    "accept",
    "accept4",
    "io_getevents",
];

/// The system call that takes the most time, as `--auto` without a name wants.
fn heaviest_call(
    args: &Args,
    session: &mut Session,
    child: Option<&mut Child>,
) -> Result<Resource, Error> {
    let insertions: Vec<Insertion> = (0..generated::KERN_CALLS as i32)
        .filter_map(|number| {
            let name = debox_symbol::syscall_name(number, false).into_owned();
            debox_symbol::syscall_number(&name)?;
            Some(Insertion {
                resource: Resource::Call { number, name },
                timed: true,
                restriction: session.common.restriction.clone(),
            })
        })
        .collect();
    let (done, _) = session.engine.insert(&insertions)?;
    let end = Instant::now() + args.interval * 2;
    let mut ended = false;
    let mut child = child;
    while Instant::now() < end && !stop::asked() && !ended {
        stop::sleep_until(end.min(Instant::now() + std::time::Duration::from_millis(100)));
        ended = child.as_mut().is_some_and(|c| c.ended().is_some());
    }
    let now = session::monotonic_ns();
    let mut found: Vec<(u64, &str, usize)> = Vec::new();
    for (id, place) in &done {
        let sums = session.engine.read(*id)?;
        let inside = session::span(session::integral(&sums, now), 0);
        if let Resource::Call { name, .. } = &insertions[*place].resource
            && inside > 0
        {
            found.push((inside, name, *place));
        }
    }
    session.engine.clear();
    found.sort_by_key(|f| std::cmp::Reverse(f.0));
    let all: u64 = found.iter().map(|f| f.0).sum();
    let list: Vec<String> = found
        .iter()
        .take(5)
        .map(|(ns, name, _)| format!("{name} {:.1} %", *ns as f64 * 100.0 / all.max(1) as f64))
        .collect();
    if !list.is_empty() && !args.quiet {
        say(&format!("time in system calls: {}", list.join(", ")));
    }
    found
        .iter()
        .find(|(_, name, _)| !IDLE_CALLS.contains(name))
        .map(|(.., place)| insertions[*place].resource.clone())
        .ok_or_else(|| {
            Error::Usage(
                "no system call but waiting ones was made in that time: name one, or the \
                 processes (-p), or a command (-- CMD)"
                    .into(),
            )
        })
}

/// `--auto`.
fn refine(args: &Args, mut session: Session, held: Option<Held>) -> Result<Ended, Error> {
    if args.resources.len() > 1 {
        return Err(Error::Usage(
            "--auto goes down from one function or system call; name only one".into(),
        ));
    }
    let mut child = held.map(Held::start).transpose()?;
    let mut root = match args.resources.first() {
        Some(text) => {
            let written = resource::Written::parse(text).map_err(Error::Usage)?;
            let (restriction, words) = session.restriction(&written)?;
            session.common.restriction = restriction;
            session.common.text = words;
            let mut found = written.resolve(&session.functions).map_err(Error::Usage)?;
            if found.len() != 1 {
                return Err(Error::Usage(format!(
                    "{text} stands for {} functions; --auto goes down from one",
                    found.len()
                )));
            }
            found.remove(0)
        }
        None => heaviest_call(args, &mut session, child.as_mut())?,
    };
    let options = auto::Options {
        interval: args.interval,
        end: args.duration.map(|d| Instant::now() + d),
        share: args.share / 100.0,
        depth: args.depth,
        branches: args.branches.max(1),
    };
    let why = if args.sampled {
        Some("asked for (--sampled)".to_owned())
    } else if !session.engine.loaded().functions() {
        Some(format!(
            "this kernel lets nobody measure its functions: {}",
            session.engine.why_no_functions()
        ))
    } else {
        None
    };
    let code = code::Code::open();
    let path = match (why, code) {
        (None, Ok(code)) => {
            let progress = |line: &str| {
                if !args.quiet {
                    say(line);
                }
            };
            auto::Descent::new(&mut session, &code, &options, child.as_mut(), &progress)
                .run(&root)?
        }
        (why, code) => {
            let why = why.unwrap_or_else(|| {
                format!(
                    "the kernel's code cannot be read from /proc/kcore to see what it calls: {}",
                    code.err().map(|e| e.to_string()).unwrap_or_default()
                )
            });
            session.notes.push(format!("stacks were sampled: {why}"));
            // A call's own function is known as the call.
            if let Resource::Function(f) = &root
                && let Some(name) = f.name.strip_prefix("__x64_sys_")
                && let Some(number) = debox_symbol::syscall_number(name)
            {
                root = Resource::Call {
                    number,
                    name: name.to_owned(),
                };
            }
            sample::sampled(&mut session, &root, &options, child.as_mut())?
        }
    };
    finish(args, &mut session, Some(&path))?;
    session.engine.clear();
    Ok(end_child(child))
}

/// `--list`: nothing is attached.
fn list(args: &Args, session: &Session) -> Result<Ended, Error> {
    let (document, usable) = list::document(session, &args.resources, args.metric)?;
    let text = match args.json {
        true => json(&document)?,
        false => list::text(&document),
    };
    output(args, &text)?;
    Ok(Ended::Code(if usable { 0 } else { FAILED }))
}

fn json(document: &impl serde::Serialize) -> Result<String, Error> {
    let mut text = serde_json::to_string_pretty(document)
        .map_err(|e| Error::Usage(format!("writing JSON: {e}")))?;
    text.push('\n');
    Ok(debox_output::json_printable(&text))
}

/// A command that was asked to end gets this long.
const END_WAIT: Duration = Duration::from_secs(2);

/// The command is ours: it ends with us.
fn end_child(child: Option<Child>) -> Ended {
    let nothing = Ended::Code(0);
    let Some(mut child) = child else {
        return nothing;
    };
    if let Some(ended) = child.ended() {
        return ended;
    }
    child.end(&[(libc::SIGTERM, END_WAIT), (libc::SIGKILL, END_WAIT)]);
    nothing
}

/// What all metrics are restricted to.
fn common_restriction(
    args: &Args,
    session: &mut Session,
    held: Option<&Held>,
) -> Result<(), Error> {
    let mut words = Vec::new();
    let mut pids = args.pids.clone();
    if !pids.is_empty() {
        let list: Vec<String> = pids.iter().map(u32::to_string).collect();
        words.push(format!("pid {}", list.join(", ")));
    }
    if let Some(held) = held {
        pids.push(held.pid() as u32);
        let name = args.command[0].to_string_lossy();
        words.push(name.rsplit('/').next().unwrap_or(&name).to_owned());
    }
    if !pids.is_empty() {
        session.common.restriction.processes = session.process_set(&pids, !args.no_follow)?;
    }
    if let Some(call) = &args.call {
        session.common.restriction.call = Some(session::call_number(call)?);
        words.push(format!("in {call}"));
    }
    if let Some(cgroup) = &args.cgroup {
        session.common.restriction.cgroup = Some(session.engine.cgroup_add(cgroup)?);
        words.push(format!("cgroup {}", cgroup.display()));
    }
    if let Some(site) = &args.from {
        let site = call_site::CallSite::find(site)?;
        session.common.restriction.call_site =
            session
                .engine
                .call_site_add(&site.path, site.call_offset, site.behind_offset)?;
        words.push(format!("from {}", site.name));
    }
    session.common.text = words.join(", ");
    Ok(())
}

fn watch(args: &Args, mut session: Session, held: Option<Held>) -> Result<Ended, Error> {
    let timed = args.metric != Metric::Calls;
    let mut failures = Vec::new();
    for resource in &args.resources {
        let announce = |cost: &str| {
            if !args.quiet {
                say(cost);
            }
        };
        if let Err(error) = session.add(resource, timed, announce) {
            failures.push(error);
        }
    }
    if session.watches.is_empty() {
        return Err(failures
            .into_iter()
            .next()
            .unwrap_or_else(|| Error::Usage("nothing to measure".into())));
    }
    for failure in failures {
        complain(&failure);
    }
    let mut child = held.map(Held::start).transpose()?;
    let on_screen = !args.text
        && !args.json
        && !args.quiet
        && args.output.is_none()
        && std::io::stdout().is_terminal()
        && std::io::stdin().is_terminal();
    if on_screen {
        let path = screen::show(args, &mut session, &mut child)?;
        finish(args, &mut session, path.as_ref())?;
        session.engine.clear();
        return Ok(end_child(child));
    }
    let end = args.duration.map(|d| Instant::now() + d);
    let mut next = Instant::now() + args.interval;
    let mut status = None;
    loop {
        let until = end.map_or(next, |end| end.min(next));
        while !stop::asked() && status.is_none() && Instant::now() < until {
            stop::sleep_until(until.min(Instant::now() + std::time::Duration::from_millis(50)));
            if let Some(child) = &mut child {
                status = child.ended();
            }
        }
        session.tick()?;
        let over = stop::asked()
            || status.is_some()
            || end.is_some_and(|end| Instant::now() >= end)
            || session.watches.iter().all(|w| w.removed.is_some());
        if over {
            break;
        }
        if !args.json && !args.quiet {
            output(args, &text::interval_text(&session))?;
        }
        next += args.interval;
    }
    finish(args, &mut session, None)?;
    session.engine.clear();
    Ok(end_child(child))
}

fn finish(args: &Args, session: &mut Session, path: Option<&auto::Path>) -> Result<(), Error> {
    let text = if args.json {
        json(&document::document(session, args.metric, path))?
    } else if let Some(path) = path {
        text::path_text(path, session)
    } else {
        text::summary_text(session)
    };
    output(args, &text)?;
    if let Some(file) = &args.html {
        let page = html::page(session, args.metric, path);
        debox_output::write(file, page.as_bytes()).map_err(|source| Error::Output {
            path: file.clone(),
            source,
        })?;
    }
    Ok(())
}
