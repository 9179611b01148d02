// SPDX-License-Identifier: MIT OR Apache-2.0
//! On which ways, from the program's outermost function to the label, did the
//! program come to block?

use debox_report::{Frame, Report, Site};

pub enum Step<'a> {
    /// The stack's outer frames are missing.
    Cut,
    Program(&'a Frame),
    Call(String),
    /// A kernel function, and the site if it is the one that slept.
    Kernel(&'a str, Option<&'a Site>),
    Label(&'a str),
}

pub struct Path<'a> {
    /// Outermost first.
    pub steps: Vec<Step<'a>>,
    pub call: String,
    pub label: &'a str,
    pub count: u64,
    pub total_ns: u64,
}

pub fn call_name(call: Option<&str>, abi: u32) -> String {
    match call {
        None => "(no call)".into(),
        Some(call) if abi == 32 => format!("{call} (32-bit)"),
        Some(call) => call.to_owned(),
    }
}

/// A frame's function, or its place in the module when that has no name.
pub fn frame_name(frame: &Frame) -> String {
    match (&frame.function, &frame.module) {
        (Some(function), _) => function.clone(),
        (None, Some(module)) => format!("{module}+{:#x}", frame.offset),
        (None, None) => format!("{:#x}", frame.offset),
    }
}

/// The steps of a stack of the program, outermost first.
pub fn program_steps(report: &Report, stack: Option<usize>) -> Vec<Step<'_>> {
    let Some(stack) = stack.and_then(|s| report.stacks.get(s)) else {
        return Vec::new();
    };
    let cut = stack.cut.then_some(Step::Cut);
    let frames = stack.frames.iter().rev().map(Step::Program);
    cut.into_iter().chain(frames).collect()
}

/// Of the recorded paths; where there are none, of the blocking table.
pub fn paths(report: &Report) -> Vec<Path<'_>> {
    if report.paths.is_empty() {
        return report
            .blocking
            .iter()
            .map(|b| {
                let call = call_name(b.call.as_deref(), b.abi);
                let mut steps = vec![Step::Call(call.clone())];
                if let Some(function) = &b.function {
                    steps.push(Step::Kernel(function, None));
                }
                steps.push(Step::Label(&b.label));
                Path {
                    steps,
                    call,
                    label: &b.label,
                    count: b.count,
                    total_ns: b.total_ns,
                }
            })
            .collect();
    }
    report
        .paths
        .iter()
        .map(|p| {
            let call = call_name(p.call.as_deref(), p.abi);
            let mut steps = program_steps(report, p.stack);
            steps.push(Step::Call(call.clone()));
            let site = p.site.and_then(|s| report.sites.get(s));
            let mut label = "(unknown)";
            if let Some(site) = site {
                label = &site.label;
                if site.frames.is_empty() {
                    steps.extend(site.function.iter().map(|f| Step::Kernel(f, Some(site))));
                }
                for frame in &site.frames {
                    let slept = site.function.as_deref() == Some(frame);
                    steps.push(Step::Kernel(frame, slept.then_some(site)));
                }
            }
            steps.push(Step::Label(label));
            Path {
                steps,
                call,
                label,
                count: p.count,
                total_ns: p.total_ns,
            }
        })
        .collect()
}
