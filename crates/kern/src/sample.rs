// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a function's time go, where no function can be measured? From
//! samples of stacks: they name the functions that were executed, with the
//! share of the time, but neither how often nor how long each was.

use std::collections::HashMap;
use std::time::Instant;

use crate::auto::{Branch, Callee, Options, Path, Step};
use crate::engine::{Resource, SAMPLE_NS};
use crate::error::Error;
use crate::functions::Functions;
use crate::generated::kern_stack_time;
use crate::session::{Session, monotonic_ns};
use debox_command::{Child, stop};

/// A function in a tree of stacks.
#[derive(Default)]
struct Node {
    name: String,
    ns: u64,
    off_ns: u64,
    own_ns: u64,
    below: Vec<Node>,
}

impl Node {
    fn child(&mut self, name: &str) -> &mut Node {
        let place = match self.below.iter().position(|n| n.name == name) {
            Some(place) => place,
            None => {
                self.below.push(Node {
                    name: name.to_owned(),
                    ..Node::default()
                });
                self.below.len() - 1
            }
        };
        &mut self.below[place]
    }

    fn add(&mut self, names: &[String], ns: u64, off_ns: u64) {
        self.ns += ns;
        self.off_ns += off_ns;
        match names.split_first() {
            Some((first, rest)) => self.child(first).add(rest, ns, off_ns),
            None => self.own_ns += ns,
        }
    }
}

/// What brings a thread to the system call's own function, and what only takes
/// the sample.
fn is_frame(name: &str) -> bool {
    !(name.starts_with("entry_SYSCALL")
        || name.starts_with("bpf_trace_run")
        || name.starts_with("__traceiter_")
        || name.starts_with("__bpf_trace_")
        || matches!(
            name,
            "do_syscall_64" | "x64_sys_call" | "__bpf_prog_enter" | "perf_trace_run_bpf_submit"
        ))
}

/// The names of a stack, outermost first.
fn names_of(
    functions: &Functions,
    cache: &mut HashMap<u64, Option<String>>,
    frames: &[u64],
) -> Vec<String> {
    frames
        .iter()
        .rev()
        .filter_map(|address| {
            cache
                .entry(*address)
                // A return address may lie behind the function that never returns.
                .or_insert_with(|| {
                    functions
                        .around(address.wrapping_sub(1))
                        .map(|(f, _)| f.full_name())
                })
                .clone()
        })
        .filter(|name| is_frame(name))
        .collect()
}

fn tree(functions: &Functions, root: &Resource, stacks: &[(Vec<u64>, kern_stack_time)]) -> Node {
    let mut top = Node {
        name: root.name(),
        ..Node::default()
    };
    let mut cache = HashMap::new();
    for (frames, time) in stacks {
        let names = names_of(functions, &mut cache, frames);
        let below = match root {
            Resource::Call { .. } => names.as_slice(),
            _ => match names.iter().position(|n| *n == top.name) {
                Some(at) => &names[at + 1..],
                None => continue,
            },
        };
        // The same call is open in a function that it calls again: once.
        let on_ns = time.samples * SAMPLE_NS;
        top.add(below, on_ns + time.off_ns, time.off_ns);
    }
    top
}

/// Samples until the time is over, and follows the heaviest frames down.
pub fn sampled(
    session: &mut Session,
    root: &Resource,
    options: &Options,
    mut child: Option<&mut Child>,
) -> Result<Path, Error> {
    let mut restriction = session.common.restriction.clone();
    if let Resource::Call { number, .. } = root {
        restriction.call = Some(*number);
    }
    let sampling = session.engine.sample(&restriction)?;
    let began = monotonic_ns();
    let end = options
        .end
        .unwrap_or_else(|| Instant::now() + options.interval * 10);
    while !stop::asked() && Instant::now() < end {
        stop::sleep_until(end.min(Instant::now() + std::time::Duration::from_millis(100)));
        if let Some(child) = &mut child
            && child.ended().is_some()
        {
            break;
        }
    }
    let seconds = (monotonic_ns() - began) as f64 / 1e9;
    session.engine.sample_end(sampling);
    let lost = session.engine.loaded().samples_lost()?;
    let stacks = session.engine.loaded().stacks_read()?;
    let top = tree(&session.functions, root, &stacks);
    let mut path = describe(&top, options, seconds);
    if lost > 0 {
        path.notes.push(format!(
            "{lost} samples found no room: shares may be wrong by their part"
        ));
    }
    Ok(path)
}

fn describe(top: &Node, options: &Options, seconds: f64) -> Path {
    let mut path = Path {
        root: top.name.clone(),
        method: "sampled",
        ..Path::default()
    };
    if top.ns == 0 {
        path.branches.push(Branch {
            steps: Vec::new(),
            verdict: format!("{} was in no sample", top.name),
        });
        return path;
    }
    let mut open: Vec<Vec<&Node>> = vec![vec![top]];
    while path.branches.len() < options.branches
        && let Some(way) = open.pop()
    {
        let mut branch = Branch::default();
        let mut taken = way.clone();
        let mut here = way[way.len() - 1];
        loop {
            let mut below: Vec<&Node> = here.below.iter().collect();
            below.sort_by_key(|n| std::cmp::Reverse(n.ns));
            let part = |ns: u64| ns as f64 / top.ns as f64;
            branch.steps.push(Step {
                function: here.name.clone(),
                inside_ns: here.ns,
                share: part(here.ns),
                self_share: Some(part(here.own_ns)),
                off_cpu_share: Some(part(here.off_ns)),
                concurrency: here.ns as f64 / 1e9 / seconds,
                callees: below
                    .iter()
                    .map(|n| Callee {
                        function: n.name.clone(),
                        inside_ns: n.ns,
                        share: part(n.ns),
                        ..Callee::default()
                    })
                    .collect(),
                ..Step::default()
            });
            let mut heavy = below.into_iter().filter(|n| part(n.ns) >= options.share);
            let Some(next) = heavy.next() else {
                branch.verdict = if part(here.own_ns) >= options.share {
                    format!(
                        "{:.1} % of the time is {}'s own",
                        part(here.own_ns) * 100.0,
                        here.name
                    )
                } else {
                    format!(
                        "nothing below {} has {:.0} % of the time any more",
                        here.name,
                        options.share * 100.0
                    )
                };
                break;
            };
            if crate::auto::is_wait(&next.name) {
                branch.verdict = format!(
                    "{} waits: {:.1} % of the time passes in {}, off the CPU until somebody wakes it",
                    here.name,
                    part(next.ns) * 100.0,
                    next.name
                );
                break;
            }
            for other in heavy {
                let mut way = taken.clone();
                way.push(other);
                open.push(way);
            }
            if taken.len() >= options.depth {
                branch.verdict = format!("{} steps down, the limit (--depth)", taken.len());
                break;
            }
            taken.push(next);
            here = next;
        }
        path.branches.push(branch);
        open.sort_by_key(|way| way[way.len() - 1].ns);
    }
    for way in open.iter().rev().take(5) {
        let node = way[way.len() - 1];
        path.notes.push(format!(
            "not followed: {} with {:.1} % of the time",
            node.name,
            node.ns as f64 * 100.0 / top.ns as f64
        ));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stacks_become_a_way_down() {
        let functions = Functions::read(
            "ffffffff81000000 T entry_SYSCALL_64_after_hwframe\n\
             ffffffff81000100 T __x64_sys_openat\n\
             ffffffff81000200 T path_openat\n\
             ffffffff81000300 T do_truncate\n\
             ffffffff81000400 T walk\n\
             ffffffff81000500 T schedule\n\
             ffffffff81000600 T bpf_trace_run4\n\
             ffffffff81000700 T end\n"
                .as_bytes(),
        )
        .unwrap();
        let at = |n: u64| 0xffffffff81000000 + n * 0x100 + 8;
        let time = |samples, off_ns| kern_stack_time {
            samples,
            times: 1,
            off_ns,
        };
        let stacks = vec![
            (
                vec![at(6), at(5), at(3), at(2), at(1), at(0)],
                time(0, 60_000_000),
            ),
            (vec![at(4), at(2), at(1), at(0)], time(30, 0)),
            (vec![at(2), at(1), at(0)], time(10, 0)),
        ];
        let root = Resource::Call {
            number: 257,
            name: "openat".into(),
        };
        let options = Options {
            interval: Duration::from_secs(1),
            end: None,
            share: 0.1,
            depth: 10,
            branches: 2,
        };
        let path = describe(&tree(&functions, &root, &stacks), &options, 1.0);
        let names: Vec<&str> = path.branches[0]
            .steps
            .iter()
            .map(|s| s.function.as_str())
            .collect();
        assert_eq!(
            names,
            ["openat()", "__x64_sys_openat", "path_openat", "do_truncate"]
        );
        // Below a wait there is nothing to descend into: it ends the way.
        assert_eq!(
            path.branches[0].verdict,
            "do_truncate waits: 59.8 % of the time passes in schedule, off the CPU until somebody wakes it"
        );
        let truncate = &path.branches[0].steps[3];
        assert!((truncate.share - 0.6).abs() < 0.01, "{truncate:?}");
        assert_eq!(path.branches[1].steps[0].function, "walk");
        let function = Resource::Function(functions.starting_at(0xffffffff81000200).unwrap());
        let top = tree(&functions, &function, &stacks);
        assert_eq!(top.below.len(), 2);
        assert_eq!(top.own_ns, 10 * SAMPLE_NS);
    }
}
