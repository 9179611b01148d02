// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does blocked time look to programs that draw flame graphs?
//!
//! One line for each path: the frames from the outermost on, with semicolons
//! between, a space, and nanoseconds. Kernel functions end in `_[k]`, inlined
//! ones in `_[i]`, as flamegraph.pl colours them; the label stands in brackets.

use std::collections::BTreeMap;

use debox_output::printable;
use debox_report::Report;

use crate::path::{Step, frame_name, paths};

/// A frame's name may hold neither the separator nor an end of line.
fn clean(name: &str) -> String {
    printable(name).replace(';', ":")
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

/// Blocked nanoseconds by stack, sorted by name, each stack once.
pub fn folded(report: &Report) -> String {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for path in paths(report) {
        let line: Vec<String> = path.steps.iter().map(step_text).collect();
        let sum = sums.entry(line.join(";")).or_default();
        *sum = sum.saturating_add(path.total_ns);
    }
    sums.iter()
        .filter(|(_, ns)| **ns > 0)
        .map(|(line, ns)| format!("{line} {ns}\n"))
        .collect()
}
