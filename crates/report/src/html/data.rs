// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the script draw from?
//!
//! Only what it draws, and that once: a stack is a list of numbers into one table of
//! frames, rows are lists without names. Of thousands of rare ways the largest are drawn
//! one by one, and the others as one, with their number and their time.

use super::parts::call_name;
use crate::all_time::{AllTime, TimeOf};
use crate::chains;
use crate::findings::idle_rows;
use crate::model::*;
use debox_output::{printable, printable_within, result_text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Ways that are drawn one by one, in each flame graph.
const WAYS_MAX: usize = 1_000;
/// Single calls with all about them; of each kind of call some, however short.
const SLOW_MAX: usize = 250;
const SLOW_EACH: usize = 4;
/// Characters of a frame's name.
const NAME_MAX: usize = 160;

/// Which of the slow calls are in the page: those that met a condition, the slowest of
/// each kind, and then the slowest. Indices, longest call first.
pub fn slow_calls(report: &Report) -> Vec<usize> {
    let calls = &report.slow_calls;
    if calls.len() <= SLOW_MAX {
        return (0..calls.len()).collect();
    }
    let mut of_kind: HashMap<(&str, u32), usize> = HashMap::new();
    let mut rank: Vec<(u8, usize)> = calls
        .iter()
        .enumerate()
        .map(|(i, call)| {
            let seen = of_kind.entry((&call.call, call.abi)).or_default();
            *seen += 1;
            let rank = match (call.conditions.is_empty(), *seen) {
                (false, _) => 0,
                (true, 1..=SLOW_EACH) => 1,
                _ => 2,
            };
            (rank, i)
        })
        .collect();
    rank.sort_unstable();
    let chosen: BTreeSet<usize> = rank.into_iter().take(SLOW_MAX).map(|(_, i)| i).collect();
    chosen.into_iter().collect()
}

fn name(text: &str) -> String {
    printable_within(text, NAME_MAX)
}

/// Each frame and each stack once, as far as something leads to it.
struct Stacks<'r> {
    report: &'r Report,
    frames: Vec<Value>,
    frame_at: HashMap<&'r Frame, usize>,
    stacks: Vec<Value>,
    stack_at: HashMap<usize, usize>,
}

impl<'r> Stacks<'r> {
    fn frame(&mut self, frame: &'r Frame) -> usize {
        if let Some(at) = self.frame_at.get(frame) {
            return *at;
        }
        let module = frame.module.as_deref();
        let mut text = match (&frame.function, module) {
            (Some(function), _) => function.clone(),
            (None, Some(module)) => format!("{module}+{:#x}", frame.offset),
            (None, None) => format!("{:#x}", frame.offset),
        };
        if frame.inlined {
            text += " (inlined)";
        }
        // Without its folder, as in tables.
        let file = frame.file.as_deref();
        let file = file.map(|file| file.rsplit('/').next().unwrap_or(file));
        let file = file.map(|file| match frame.line {
            Some(line) => format!("{file}:{line}"),
            None => file.to_owned(),
        });
        // A name made of the module tells it already.
        let module = module.filter(|_| frame.function.is_some());
        let more: Vec<String> = file
            .into_iter()
            .chain(module.map(str::to_owned))
            .map(|text| name(&text))
            .collect();
        self.frames.push(json!([name(&text), more.join(", ")]));
        self.frame_at.insert(frame, self.frames.len() - 1);
        self.frames.len() - 1
    }

    /// [cut, innermost frame, its caller, ...]
    fn stack(&mut self, stack: Option<usize>) -> Option<usize> {
        let index = stack?;
        let stack = self.report.stacks.get(index)?;
        if let Some(at) = self.stack_at.get(&index) {
            return Some(*at);
        }
        let mut row = vec![usize::from(stack.cut)];
        for frame in &stack.frames {
            row.push(self.frame(frame));
        }
        self.stacks.push(json!(row));
        self.stack_at.insert(index, self.stacks.len() - 1);
        Some(self.stacks.len() - 1)
    }
}

fn where_text(file: Option<&str>, line: Option<u32>) -> String {
    match (file, line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.to_owned(),
        _ => String::new(),
    }
}

fn party(party: Option<&Party>) -> String {
    let Some(party) = party else {
        return String::new();
    };
    let mut who = match (party.tid, party.comm.as_str()) {
        (0, _) => "an interrupt".to_owned(),
        (tid, "") => format!("thread {tid}"),
        (tid, comm) => format!("{comm} {tid}"),
    };
    if let Some(call) = &party.call {
        who += &format!(" in {call}");
    }
    if party.reader {
        who += " (reading)";
    }
    who
}

fn slow_call(call: &SlowCall, stacks: &mut Stacks) -> Value {
    let told: Vec<String> = if call.arguments.is_empty() {
        call.args.iter().map(|a| format!("{a:#x}")).collect()
    } else {
        let named = call.arguments.iter();
        named.map(|a| format!("{}={}", a.name, a.text)).collect()
    };
    let sleeps: Vec<Value> = call
        .sleeps
        .iter()
        .map(|s| {
            json!([
                s.start_ns,
                s.blocked_ns,
                s.runq_ns,
                s.site,
                party(s.holder.as_ref()),
                party(s.waker.as_ref()),
                s.waiters_entry,
                s.waiters_exit
            ])
        })
        .collect();
    // Arguments that a script's numbers cannot hold are text; so is the result.
    json!([
        call_name(Some(&call.call), call.abi),
        call.pid,
        call.tid,
        call.comm,
        call.start_ns,
        [
            call.wall_ns,
            call.cpu_ns,
            call.blocked_ns,
            call.runq_ns,
            call.irq_ns.unwrap_or(0)
        ],
        [call.major_faults, call.minor_faults],
        call.path,
        told.join(", "),
        match call.one_sleep {
            true => String::new(),
            false => result_text(call.retval),
        },
        stacks.stack(call.stack),
        call.conditions,
        sleeps,
        [u64::from(call.sleeps_dropped), call.sleeps_dropped_ns]
    ])
}

/// Which ways are drawn, in their order, and number, count and time of the others.
fn largest<T>(
    rows: &[T],
    size: impl Fn(&T) -> u64,
    count: impl Fn(&T) -> u64,
) -> (Vec<usize>, Value) {
    let mut ways: Vec<usize> = (0..rows.len()).collect();
    if rows.len() <= WAYS_MAX {
        return (ways, Value::Null);
    }
    ways.sort_by_key(|at| std::cmp::Reverse(size(&rows[*at])));
    let rest = ways.split_off(WAYS_MAX);
    ways.sort_unstable();
    let sum = |f: &dyn Fn(&T) -> u64| {
        let each = rest.iter().map(|at| f(&rows[*at]));
        each.fold(0u64, u64::saturating_add)
    };
    let left = json!([rest.len(), sum(&count), sum(&size)]);
    (ways, left)
}

/// Name, life, parts: state, what is known of it, its index, nanoseconds. `samples` and
/// `chains`: the ways that are drawn.
fn all_time(report: &Report, samples: &[usize], chains: &[usize]) -> Value {
    let groups = crate::all_time::all_time(report);
    if groups.is_empty() {
        return Value::Null;
    }
    let drawn = |of: &'static str, ways: &[usize], at: usize| match ways.binary_search(&at) {
        Ok(at) => (of, at),
        Err(_) => ("rarer", 0),
    };
    let told = |group: &AllTime| {
        let parts = group.parts.iter().map(|part| {
            let (of, at) = match part.of {
                TimeOf::Nothing => ("", 0),
                TimeOf::OwnCode => ("own", 0),
                TimeOf::Calls => ("calls", 0),
                TimeOf::Samples(at) => drawn("cpu", samples, at),
                TimeOf::Chain(at) => drawn("chain", chains, at),
            };
            json!([part.state.text(), of, at, part.ns])
        });
        json!([group.comm, group.life_ns, parts.collect::<Value>()])
    };
    groups.iter().map(told).collect()
}

fn on_cpu(on_cpu: &OnCpu) -> (Vec<usize>, Value) {
    let (ways, left) = largest(&on_cpu.rows, |r| r.samples, |r| r.samples);
    let rows: Vec<&OnCpuRow> = ways.iter().map(|at| &on_cpu.rows[*at]).collect();
    // Of the tree only what leads to these rows, numbered anew.
    let (mut frames, mut functions) = (BTreeSet::new(), BTreeMap::new());
    for row in &rows {
        let mut next = row.frame;
        while let Some(at) = next.filter(|at| frames.insert(*at)) {
            let frame = on_cpu.frames.get(at);
            functions.extend(frame.map(|frame| (frame.function, 0)));
            next = frame.and_then(|frame| frame.caller);
        }
    }
    frames.retain(|at| {
        on_cpu
            .frames
            .get(*at)
            .is_some_and(|f| f.function < on_cpu.functions.len())
    });
    functions.retain(|at, _| *at < on_cpu.functions.len());
    let frame_at: HashMap<usize, usize> =
        frames.iter().enumerate().map(|(i, at)| (*at, i)).collect();
    for (i, new) in functions.values_mut().enumerate() {
        *new = i;
    }
    let at = |frame: Option<usize>| frame.and_then(|frame| frame_at.get(&frame).copied());
    let told = json!({
        "hz": on_cpu.hz,
        "samples": on_cpu.samples,
        "left": left,
        "groups": on_cpu.groups.iter().map(|g| json!([g.comm, g.samples])).collect::<Value>(),
        "functions": functions.keys().map(|f| {
            let f = &on_cpu.functions[*f];
            json!([f.name.as_deref().map(name), f.module])
        }).collect::<Value>(),
        "frames": frames.iter().map(|f| {
            let f = &on_cpu.frames[*f];
            json!([functions[&f.function], at(f.caller)])
        }).collect::<Value>(),
        "rows": rows.iter().map(|r| {
            json!([r.group, r.kind, call_name(r.call.as_deref(), r.abi), at(r.frame), r.samples])
        }).collect::<Value>(),
    });
    (ways, told)
}

/// `slow`: which of the slow calls are in the page.
pub fn data(report: &Report, slow: &[usize]) -> Value {
    let mut stacks = Stacks {
        report,
        frames: Vec::new(),
        frame_at: HashMap::new(),
        stacks: Vec::new(),
        stack_at: HashMap::new(),
    };
    let idle: BTreeSet<(Option<&str>, u32, &str)> = idle_rows(report)
        .iter()
        .map(|r| {
            (
                r.call.as_deref(),
                r.call.as_ref().map_or(0, |_| r.abi),
                r.label.as_str(),
            )
        })
        .collect();
    let is_idle = |call: Option<&str>, abi: u32, label: &str| {
        u8::from(idle.contains(&(call, call.map_or(0, |_| abi), label)))
    };
    let label_of = |site: Option<usize>| {
        site.and_then(|site| report.sites.get(site))
            .map_or("", |site| &site.label)
    };
    let (ways, paths_left) = largest(&report.paths, |p| p.total_ns, |p| p.count);
    let paths = ways.iter().map(|at| &report.paths[*at]);
    let paths: Value = paths
        .map(|p| {
            let call = p.call.as_deref();
            json!([
                call_name(call, p.abi),
                stacks.stack(p.stack),
                p.site,
                p.total_ns,
                p.count,
                is_idle(call, p.abi, label_of(p.site))
            ])
        })
        .collect();
    let blocking: Value = report
        .blocking
        .iter()
        .filter(|_| report.paths.is_empty())
        .map(|b| {
            let call = b.call.as_deref();
            json!([
                call_name(call, b.abi),
                b.function,
                where_text(b.file.as_deref(), b.line),
                b.label,
                b.total_ns,
                b.count,
                is_idle(call, b.abi, &b.label)
            ])
        })
        .collect();
    let slow: Value = slow
        .iter()
        .map(|i| slow_call(&report.slow_calls[*i], &mut stacks))
        .collect();
    let (chain_ways, chains_left) = largest(&report.chains, |c| c.total_ns, |c| c.count);
    let chains: Vec<&ChainRow> = chain_ways.iter().map(|at| &report.chains[*at]).collect();
    let mut linked = BTreeSet::new();
    for row in &chains {
        let mut next = Some(row.first);
        while let Some(at) = next.filter(|at| *at < report.chain_links.len() && linked.insert(*at))
        {
            next = report.chain_links[at].parent;
        }
    }
    let link_at: HashMap<usize, usize> =
        linked.iter().enumerate().map(|(i, at)| (*at, i)).collect();
    let links: Value = linked
        .iter()
        .map(|at| {
            let link = &report.chain_links[*at];
            let parent = link.parent.and_then(|parent| link_at.get(&parent));
            let sleep = u8::from(link.kind == ChainKind::Sleep);
            json!([parent, sleep, name(&chains::link_text(link, report))])
        })
        .collect();
    let lives_ns = report
        .lives
        .iter()
        .fold(0u64, |sum, l| sum.saturating_add(l.time.life_ns));
    let mut value = json!({
        "wall_ns": report.run.wall_ns,
        "lives_ns": lives_ns,
        "threads": report.lives.iter().map(|l| u64::from(l.threads)).sum::<u64>(),
        "calls": report.calls.iter().map(|c| json!([
            call_name(Some(&c.name), c.abi), c.mean_ns, c.p50_ns, c.p99_ns, c.max_ns,
            c.histogram.iter().map(|b| json!([b.from_ns, b.to_ns, b.count])).collect::<Value>()
        ])).collect::<Value>(),
        "sites": report.sites.iter().map(|s| json!([
            s.label, s.function, where_text(s.file.as_deref(), s.line), s.frames
        ])).collect::<Value>(),
        "paths": paths,
        "paths_left": paths_left,
        "blocking": blocking,
        "links": links,
        "chains": chains.iter().map(|c| json!([
            link_at.get(&c.first), c.total_ns, c.count,
            u8::from(chains::row_rests(report, c))
        ])).collect::<Value>(),
        "chains_left": chains_left,
        "slow": slow,
        // Of a call at one moment there is no course.
        "history": report.history.iter().filter(|h| h.points.len() > 1).map(|h| json!([
            call_name(Some(&h.call), h.abi),
            h.points.iter().map(|p| {
                json!([p.time_ns, p.first, p.count, p.wall_ns, p.blocked_ns, p.p99_ns])
            }).collect::<Value>()
        ])).collect::<Value>(),
        "trends": report.trends.iter().map(|t| json!([
            call_name(Some(&t.call), t.abi), t.from_ns, t.to_ns, t.grows_with
        ])).collect::<Value>(),
        "gauges": report.gauges.iter().map(|g| json!([
            g.time_ns, g.processes, g.threads, g.descriptors, g.mappings, g.resident_bytes
        ])).collect::<Value>(),
    });
    value["frames"] = stacks.frames.into();
    value["stacks"] = stacks.stacks.into();
    let mut sample_ways = Vec::new();
    if let Some(cpu) = &report.on_cpu {
        (sample_ways, value["on_cpu"]) = on_cpu(cpu);
    }
    value["all_time"] = all_time(report, &sample_ways, &chain_ways);
    each_string(&mut value, &|s| printable(s));
    value
}

fn each_string(value: &mut Value, f: &dyn Fn(&str) -> String) {
    match value {
        Value::String(s) => *s = f(s),
        Value::Array(list) => list.iter_mut().for_each(|v| each_string(v, f)),
        Value::Object(map) => map.values_mut().for_each(|v| each_string(v, f)),
        _ => {}
    }
}
