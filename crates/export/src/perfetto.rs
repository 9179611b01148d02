// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the slow calls lie in time, for programs that draw traces?
//!
//! The JSON trace format of Chrome, which Perfetto reads: a slice for each slow
//! call on its thread, and inside of it what its time was made of: its sleeps, waiting for
//! a CPU after a sleep, and the stretches between on a CPU; an arrow from whoever ended a
//! sleep; counters for the gauges and for the mean time of each call with a history. Time
//! stamps are microseconds since the start of the run, with the nanoseconds behind the
//! point.
//!
//! Of the critical path sums are known and no moments. Its track has them one behind the
//! other, largest first, and says so in its name.

use std::collections::{BTreeSet, HashMap};

use debox_output::{error_name, json_printable};
use debox_report::{Party, PathLine, Report, Site, SlowCall, path_lines};
use serde_json::{Map, Value, json};

use crate::path::{call_name, frame_name};

/// Of the critical path's track: no process has it (the kernel's PID_MAX_LIMIT is 4194304).
const PATH_PID: u32 = 4_194_305;

fn micro(ns: u64) -> Value {
    json!(ns as f64 / 1e3)
}

fn party(p: &Party) -> String {
    let mut who = match (p.tid, p.comm.as_str()) {
        (0, _) => "an interrupt".to_owned(),
        (tid, "") => tid.to_string(),
        (tid, comm) => format!("{comm} {tid}"),
    };
    if let Some(call) = &p.call {
        who.push_str(&format!(" in {call}"));
    }
    who
}

fn slice(
    name: &str,
    category: &str,
    call: &SlowCall,
    start_ns: u64,
    ns: u64,
    args: Value,
) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "pid": call.pid, "tid": call.tid,
        "ts": micro(start_ns), "dur": micro(ns), "args": args,
    })
}

fn place(site: &Site) -> Option<String> {
    let function = site.function.as_ref()?;
    Some(match (&site.file, site.line) {
        (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
        _ => function.clone(),
    })
}

/// An arrow needs a slice at each end: on the waker's thread there is one for it.
fn wake_events(pids: &Pids, call: &SlowCall, waker: &Party, at_ns: u64, events: &mut Vec<Value>) {
    let pid = pids.of(waker.tid);
    let id = events.len();
    let arrow = |phase: &str, pid: u32, tid: u32| {
        json!({
            "name": "wakes", "cat": "wake", "ph": phase, "bp": "e", "id": id,
            "pid": pid, "tid": tid, "ts": micro(at_ns),
        })
    };
    let name = format!("wakes {} {}", call.comm, call.tid);
    events.push(json!({
        "name": name, "cat": "wake", "ph": "X", "pid": pid, "tid": waker.tid,
        "ts": micro(at_ns), "dur": 0, "args": {"from": party(waker)},
    }));
    events.push(arrow("s", pid, waker.tid));
    events.push(arrow("f", call.pid, call.tid));
}

/// Process by thread. Of a thread that nobody watched only its own number is known.
struct Pids(HashMap<u32, u32>);

impl Pids {
    fn new(report: &Report) -> Self {
        let calls = report.slow_calls.iter().map(|call| (call.tid, call.pid));
        let threads = report.threads.iter().map(|thread| (thread.tid, thread.pid));
        Self(calls.chain(threads).collect())
    }

    fn of(&self, tid: u32) -> u32 {
        self.0.get(&tid).copied().unwrap_or(tid)
    }
}

fn call_events(report: &Report, pids: &Pids, call: &SlowCall, events: &mut Vec<Value>) {
    let stack = call.stack.and_then(|s| report.stacks.get(s));
    let frames: Vec<String> = stack
        .map(|s| s.frames.iter().map(frame_name).collect())
        .unwrap_or_default();
    let arguments: Vec<String> = match call.arguments.as_slice() {
        [] => call.args.iter().map(|a| format!("{a:#x}")).collect(),
        told => told
            .iter()
            .map(|a| format!("{}={}", a.name, a.text))
            .collect(),
    };
    let mut args = json!({
        "arguments": arguments.join(", "),
        "blocked ns": call.blocked_ns,
        "run queue ns": call.runq_ns,
    });
    // Of one sleep the call may go on.
    if !call.one_sleep {
        args["return value"] = json!(call.retval);
        args["on CPU ns"] = json!(call.cpu_ns);
        args["minor faults"] = json!(call.minor_faults);
        args["major faults"] = json!(call.major_faults);
    }
    if let Some(irq_ns) = call.irq_ns {
        args["interrupts ns"] = json!(irq_ns);
    }
    if let Some(error) = error_name(call.retval) {
        args["error"] = json!(error);
    }
    if let Some(path) = &call.path {
        args["object"] = json!(path);
    }
    if !frames.is_empty() {
        args["called from"] = json!(frames.join(" < "));
    }
    if !call.conditions.is_empty() {
        args["conditions"] = json!(call.conditions.join("; "));
    }
    let name = call_name(Some(&call.call), call.abi);
    events.push(slice(
        &name,
        "call",
        call,
        call.start_ns,
        call.wall_ns,
        args,
    ));
    for sleep in &call.sleeps {
        let site = sleep.site.and_then(|s| report.sites.get(s));
        let mut args = Map::new();
        if let Some(place) = site.and_then(place) {
            args.insert("place".into(), json!(place));
        }
        if let Some(waiters) = sleep.waiters_entry {
            args.insert("waiters at entry".into(), json!(waiters));
        }
        if let Some(waiters) = sleep.waiters_exit {
            args.insert("waiters at wake-up".into(), json!(waiters));
        }
        if let Some(holder) = &sleep.holder {
            args.insert("held by".into(), json!(party(holder)));
        }
        if let Some(waker) = &sleep.waker {
            args.insert("ended by".into(), json!(party(waker)));
        }
        let label = site.map_or("(unknown)", |s| s.label.as_str());
        let args = Value::Object(args);
        events.push(slice(
            label,
            "sleep",
            call,
            sleep.start_ns,
            sleep.blocked_ns,
            args,
        ));
        let woken = sleep.start_ns.saturating_add(sleep.blocked_ns);
        if let Some(waker) = sleep.waker.as_ref().filter(|waker| waker.tid != 0) {
            wake_events(pids, call, waker, woken, events);
        }
        if sleep.runq_ns > 0 {
            events.push(slice(
                "run queue",
                "runq",
                call,
                woken,
                sleep.runq_ns,
                json!({}),
            ));
        }
    }
    cpu_events(call, events);
}

/// What lies between the sleeps of a call: (since the start of the run, length). None where
/// it is not known.
fn between_sleeps(call: &SlowCall) -> Option<Vec<(u64, u64)>> {
    if call.sleeps_dropped > 0 {
        return None;
    }
    let end_ns = call.start_ns.checked_add(call.wall_ns)?;
    let mut spans = Vec::new();
    let mut at_ns = call.start_ns;
    for sleep in &call.sleeps {
        spans.push((at_ns, sleep.start_ns.checked_sub(at_ns)?));
        let away_ns = sleep.blocked_ns.checked_add(sleep.runq_ns)?;
        at_ns = sleep.start_ns.checked_add(away_ns)?;
    }
    spans.push((at_ns, end_ns.checked_sub(at_ns)?));
    spans.retain(|(_, ns)| *ns > 0);
    Some(spans)
}

/// Between its sleeps a call is on a CPU, unless another thread was given it: how long that
/// was is known, and when is not.
fn cpu_events(call: &SlowCall, events: &mut Vec<Value>) {
    let after_sleeps = (call.sleeps.iter()).fold(0u64, |sum, s| sum.saturating_add(s.runq_ns));
    let preempted_ns = call.runq_ns.saturating_sub(after_sleeps);
    let (name, args) = if preempted_ns == 0 {
        ("on CPU", json!({}))
    } else {
        (
            "on CPU, or preempted",
            json!({"preempted in the whole call ns": preempted_ns}),
        )
    };
    for (start_ns, ns) in between_sleeps(call).unwrap_or_default() {
        events.push(slice(name, "cpu", call, start_ns, ns, args.clone()));
    }
}

/// What the end depended on: a slice for each name, and its parts inside.
fn path_events(report: &Report, events: &mut Vec<Value>) {
    let lines = path_lines(report);
    if lines.is_empty() {
        return;
    }
    for (kind, args) in [
        (
            "process_name",
            json!({"name": "critical path, by size and not by time"}),
        ),
        ("process_sort_index", json!({"sort_index": -1})),
        ("thread_name", json!({"name": "what the end depended on"})),
    ] {
        events
            .push(json!({"name": kind, "ph": "M", "pid": PATH_PID, "tid": PATH_PID, "args": args}));
    }
    let mut names: Vec<(Option<&str>, Vec<&PathLine>)> = Vec::new();
    for line in &lines {
        let who = line.who.as_deref();
        match names.iter_mut().find(|(name, _)| *name == who) {
            Some((_, of)) => of.push(line),
            None => names.push((who, vec![line])),
        }
    }
    let sum = |of: &[&PathLine]| {
        of.iter()
            .fold(0u64, |sum, l| sum.saturating_add(l.total_ns))
    };
    names.sort_by_key(|(_, of)| std::cmp::Reverse(sum(of)));
    let mut at_ns = 0u64;
    let mut add = |name: &str, at_ns: u64, ns: u64| {
        events.push(json!({
            "name": name, "cat": "critical", "ph": "X", "pid": PATH_PID, "tid": PATH_PID,
            "ts": micro(at_ns), "dur": micro(ns), "args": {"ns": ns},
        }));
    };
    for (who, of) in names {
        add(who.unwrap_or("(several)"), at_ns, sum(&of));
        for line in of {
            add(&line.text(), at_ns, line.total_ns);
            at_ns = at_ns.saturating_add(line.total_ns);
        }
    }
}

fn counter(name: &str, pid: u32, time_ns: u64, value: Value) -> Value {
    json!({"name": name, "ph": "C", "pid": pid, "ts": micro(time_ns), "args": {"value": value}})
}

/// One JSON document.
pub fn perfetto(report: &Report) -> String {
    let mut events = Vec::new();
    let mut threads = BTreeSet::new();
    let pids = Pids::new(report);
    for call in &report.slow_calls {
        threads.insert((call.pid, call.tid, call.comm.as_str()));
    }
    for thread in report.threads.iter().filter(|t| t.tid != 0) {
        threads.insert((thread.pid, thread.tid, thread.comm.as_str()));
    }
    let wakers: Vec<&Party> = (report.slow_calls.iter())
        .flat_map(|call| &call.sleeps)
        .filter_map(|sleep| sleep.waker.as_ref())
        .filter(|waker| waker.tid != 0 && !waker.comm.is_empty())
        .collect();
    for waker in wakers {
        if !pids.0.contains_key(&waker.tid) {
            threads.insert((waker.tid, waker.tid, waker.comm.as_str()));
        }
    }
    let mut named = BTreeSet::new();
    for (pid, tid, comm) in &threads {
        let main = pid == tid || !threads.iter().any(|t| t.0 == *pid && t.1 == *pid);
        if main && named.insert(*pid) {
            events.push(json!({"name": "process_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": comm}}));
        }
        events.push(json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": comm}}));
    }
    path_events(report, &mut events);
    let mut calls: Vec<&SlowCall> = report.slow_calls.iter().collect();
    calls.sort_by_key(|c| c.start_ns);
    for call in calls {
        call_events(report, &pids, call, &mut events);
    }
    let first = report
        .run
        .pids
        .first()
        .copied()
        .or(threads.first().map(|t| t.0))
        .unwrap_or(0);
    for gauge in &report.gauges {
        let mut add = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                events.push(counter(name, first, gauge.time_ns, json!(value)));
            }
        };
        add("processes", Some(gauge.processes));
        add("threads", Some(gauge.threads));
        add("open descriptors", gauge.descriptors);
        add("mappings", gauge.mappings);
        add("resident bytes", gauge.resident_bytes);
    }
    for history in &report.history {
        let name = format!("{}: mean ns", call_name(Some(&history.call), history.abi));
        for point in history.points.iter().filter(|p| p.count > 0) {
            let mean = point.wall_ns / point.count;
            events.push(counter(&name, first, point.time_ns, json!(mean)));
        }
    }
    let document = json!({
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "tool": format!("DeBox {}", report.debox_version),
            "command": report.run.command.join(" "),
        },
    });
    let mut out = document.to_string();
    out.push('\n');
    json_printable(&out)
}
