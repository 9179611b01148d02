// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do blocked time, and time on a CPU, look to programs that draw flame graphs?
//!
//! One line for each path: the frames from the outermost on, with semicolons
//! between, a space, and nanoseconds. Kernel functions end in `_[k]`, inlined
//! ones in `_[i]`, as flamegraph.pl colours them; the label stands in brackets.

use std::collections::BTreeMap;

use debox_output::printable;
use debox_report::{
    OnCpu, OnCpuFunction, OnCpuKind, OnCpuRow, Report, TimeOf, all_time, link_text, links_of,
    stack_of,
};

use crate::path::{Step, call_name, frame_name, paths};

/// A frame's name may hold neither the separator nor an end of line.
fn clean(name: &str) -> String {
    printable(name).replace(';', ":")
}

/// By stack, each once.
#[derive(Default)]
struct Sums(BTreeMap<String, u64>);

impl Sums {
    fn add(&mut self, line: &[String], more: u64) {
        let sum = self.0.entry(line.join(";")).or_default();
        *sum = sum.saturating_add(more);
    }

    fn text(&self) -> String {
        (self.0.iter())
            .map(|(line, sum)| format!("{line} {sum}\n"))
            .collect()
    }
}

fn step_text(step: &Step) -> String {
    match step {
        Step::Cut => "(cut off)".into(),
        Step::Program(frame) if frame.inlined => format!("{}_[i]", clean(&frame_name(frame))),
        Step::Program(frame) => clean(&frame_name(frame)),
        Step::Call(call) => clean(call),
        Step::Kernel(function, _) => format!("{}_[k]", clean(function)),
        Step::Label(label) => format!("[{}]", clean(label)),
    }
}

fn function_name(function: &OnCpuFunction) -> String {
    match (&function.name, &function.module) {
        (Some(name), Some(_)) => clean(name),
        (Some(name), None) => format!("{}_[k]", clean(name)),
        (None, Some(module)) => format!("({})", clean(module)),
        (None, None) => "(kernel)_[k]".into(),
    }
}

/// Of a sample: the program's functions, the call (or what else it was in the kernel for),
/// the kernel's functions.
fn sample_names(on_cpu: &OnCpu, row: &OnCpuRow) -> Vec<String> {
    let stack = stack_of(on_cpu, row);
    let entry = match row.kind {
        OnCpuKind::User => None,
        OnCpuKind::Call if row.call.is_none() => Some("(DeBox's own calls)".to_owned()),
        OnCpuKind::Call => Some(clean(&call_name(row.call.as_deref(), row.abi))),
        OnCpuKind::Kernel => Some("(fault or the like)".to_owned()),
        OnCpuKind::Interrupt => Some("(soft interrupt)".to_owned()),
    };
    let kernel = stack.iter().position(|function| function.module.is_none());
    let (program, kernel) = stack.split_at(kernel.unwrap_or(stack.len()));
    (program.iter().map(|function| function_name(function)))
        .chain(entry)
        .chain(kernel.iter().map(|function| function_name(function)))
        .collect()
}

/// Samples by stack, sorted by name, each stack once, under the threads' name.
pub fn folded_cpu(report: &Report) -> String {
    let mut sums = Sums::default();
    let Some(on_cpu) = &report.on_cpu else {
        return String::new();
    };
    for row in &on_cpu.rows {
        let comm = on_cpu.groups.get(row.group).map_or("?", |g| &g.comm);
        let mut line = vec![clean(comm)];
        line.extend(sample_names(on_cpu, row));
        sums.add(&line, row.samples);
    }
    sums.text()
}

/// All of the threads' lives, in nanoseconds: the threads' name, the state, and what ran, or
/// what the sleep waited for.
pub fn folded_all(report: &Report) -> String {
    let mut sums = Sums::default();
    for group in all_time(report) {
        for part in &group.parts {
            let mut line = vec![clean(&group.comm), format!("({})", part.state.text())];
            match part.of {
                TimeOf::Nothing => {}
                TimeOf::OwnCode => line.push("own code".into()),
                TimeOf::Calls => line.push("calls".into()),
                TimeOf::Samples(at) => {
                    let on_cpu = report.on_cpu.as_ref();
                    let row = on_cpu.and_then(|on_cpu| Some((on_cpu, on_cpu.rows.get(at)?)));
                    line.extend(row.map_or(vec![], |(on_cpu, row)| sample_names(on_cpu, row)));
                }
                TimeOf::Chain(at) => {
                    let first = report.chains.get(at).map(|row| row.first);
                    let links = first.map_or(vec![], |first| links_of(report, first));
                    line.extend(
                        links
                            .into_iter()
                            .map(|link| clean(&link_text(link, report))),
                    );
                }
            }
            sums.add(&line, part.ns);
        }
    }
    sums.text()
}

/// Blocked nanoseconds by stack, sorted by name, each stack once.
pub fn folded(report: &Report) -> String {
    let mut sums = Sums::default();
    for path in paths(report) {
        let line: Vec<String> = path.steps.iter().map(step_text).collect();
        if path.total_ns > 0 {
            sums.add(&line, path.total_ns);
        }
    }
    sums.text()
}
