// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which functions of a program had the CPU, how sure is that, and through which
//! callers?

use crate::model::{OnCpu, OnCpuFunction, OnCpuGroup, OnCpuKind, OnCpuRow};
use debox_output::printable;
use std::collections::BTreeMap;

/// Fewer samples than these say nothing about shares.
pub(crate) const SAMPLES_FEW: u64 = 20;

/// One line of "On the CPU": a function of the program, or a call, in threads of one
/// name.
#[derive(Clone, Debug, PartialEq)]
pub struct OnCpuTop {
    pub comm: String,
    pub text: String,
    pub samples: u64,
}

/// `function (module)`; of the kernel, and without a name, the one that is there.
pub fn function_text(function: &OnCpuFunction) -> String {
    match (&function.name, &function.module) {
        (Some(name), Some(module)) if module.is_empty() => printable(name),
        (Some(name), Some(module)) => format!("{} ({})", printable(name), printable(module)),
        (Some(name), None) => printable(name),
        (None, Some(module)) => format!("({})", printable(module)),
        (None, None) => "(kernel)".into(),
    }
}

/// The functions of a row's stack, outermost first.
pub fn stack_of<'a>(on_cpu: &'a OnCpu, row: &OnCpuRow) -> Vec<&'a OnCpuFunction> {
    let mut stack = Vec::new();
    let mut next = row.frame;
    while let Some(frame) = next.and_then(|at| on_cpu.frames.get(at)) {
        // A recording's numbers are foreign: they may lead in a circle.
        if stack.len() > on_cpu.frames.len() {
            break;
        }
        stack.extend(on_cpu.functions.get(frame.function));
        next = frame.caller;
    }
    stack.reverse();
    stack
}

impl OnCpu {
    /// What so many samples stand for.
    pub fn time_ns(&self, samples: u64) -> u64 {
        let ns = u128::from(samples) * 1_000_000_000 / u128::from(self.hz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Half the width, in percent of all samples, of what so many of them stand for with a
    /// certainty of 95 %: they are drawn by chance.
    pub fn error_percent(&self, samples: u64) -> f64 {
        let all = self.samples.max(1) as f64;
        let share = samples as f64 / all;
        196.0 * (share * (1.0 - share) / all).sqrt()
    }

    pub(crate) fn comm(&self, row: &OnCpuRow) -> &str {
        let group: Option<&OnCpuGroup> = self.groups.get(row.group);
        group.map_or("?", |group| group.comm.as_str())
    }

    /// Own functions of the program by what they ran themselves, the kernel by call; most
    /// samples first.
    pub fn tops(&self) -> Vec<OnCpuTop> {
        let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
        for row in &self.rows {
            let innermost = row
                .frame
                .and_then(|at| self.frames.get(at))
                .and_then(|frame| self.functions.get(frame.function));
            let text = match (row.kind, &row.call) {
                (OnCpuKind::User, _) => innermost.map_or("(unknown)".into(), function_text),
                (OnCpuKind::Call, Some(call)) => format!("{}: the kernel", printable(call)),
                // What the runtime of a spliced program makes for itself.
                (OnCpuKind::Call, None) => "DeBox's own calls: the kernel".into(),
                (OnCpuKind::Kernel, _) => "faults and the like: the kernel".into(),
                (OnCpuKind::Interrupt, _) => "soft interrupts: the kernel".into(),
            };
            let sum = sums.entry((self.comm(row).to_owned(), text)).or_default();
            *sum = sum.saturating_add(row.samples);
        }
        let mut tops: Vec<OnCpuTop> = sums
            .into_iter()
            .map(|((comm, text), samples)| OnCpuTop {
                comm,
                text,
                samples,
            })
            .collect();
        tops.sort_by_key(|top| std::cmp::Reverse(top.samples));
        tops
    }

    /// Of all samples: in own code, in calls, elsewhere in the kernel, in interrupts.
    pub fn kinds(&self) -> [u64; 4] {
        let sum = |of: fn(&OnCpuGroup) -> u64| {
            (self.groups.iter()).fold(0u64, |all, group| all.saturating_add(of(group)))
        };
        [
            sum(|g| g.user),
            sum(|g| g.calls),
            sum(|g| g.kernel),
            sum(|g| g.interrupts),
        ]
    }
}
