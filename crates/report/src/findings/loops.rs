// SPDX-License-Identifier: MIT OR Apache-2.0
//! What blocks an event loop?
//!
//! A thread that rests where it waits for many things at once is to wait nowhere else:
//! while it does, all that it serves waits with it. Which sleeps are such a thread's, the
//! kernel side says of each (`in_loop`): threads of a pool often have the loop's name.

use super::{Times, listed, meaning, percent, plural, share, sums, time};
use crate::chains::{limit_text, link_text, links_of};
use crate::findings::caller_text;
use crate::model::*;
use debox_output::printable;
use std::collections::BTreeMap;

/// Calls that wait for many things at once.
const WAIT_FOR_MANY: [&str; 10] = [
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "io_uring_enter",
    "io_getevents",
    "io_pgetevents",
];
const ACTIVITIES_MIN: u64 = 10;
/// Of the time of its activities.
const SHARE_MIN: f64 = 0.05;
/// Of a loop's wait: so little of other threads, and its call sites are the loop's.
const OTHERS_FEW: f64 = 0.1;
/// What less of a wait ended in than this is said with its part.
const ROOT_MOST: f64 = 0.6;
const TIME_MIN_NS: u64 = 1_000_000;

/// A call that held up a loop.
pub(crate) struct LoopBlock {
    pub total_ns: u64,
    /// Of the time in which the loop had something to do.
    pub share: f64,
    pub text: String,
    pub finding: Finding,
}

/// Names of threads that are event loops, with the call that they rest in most and the time of
/// their activities.
fn loops(report: &Report) -> BTreeMap<&str, (&str, u64)> {
    let mut loops: BTreeMap<&str, (&str, u64)> = BTreeMap::new();
    // Most time comes first.
    for row in &report.activities {
        let call = row.call.as_deref().unwrap_or_default();
        if WAIT_FOR_MANY.contains(&call) && row.count >= ACTIVITIES_MIN {
            let (_, ns) = loops.entry(&row.comm).or_insert((call, 0));
            *ns = ns.saturating_add(row.all.total_ns);
        }
    }
    loops
}

/// Where in the program such waits come from, where that was recorded.
fn called_from(report: &Report, call: Option<&str>, label: &str) -> Vec<(String, u64)> {
    let rows = (report.paths.iter()).filter_map(|path| {
        let site = report.sites.get(path.site?)?;
        let stack = report.stacks.get(path.stack?)?;
        let frame = stack.frames.get(stack.site_frame)?;
        (path.call.as_deref() == call && site.label == label)
            .then(|| (caller_text(frame), path.total_ns))
    });
    let rows: Vec<(String, u64)> = rows.collect();
    sums(rows, |row| row.0.clone(), |row| (row.1, 0))
        .into_iter()
        .map(|(place, ns, _)| (place, ns))
        .collect()
}

/// Longest first.
pub(crate) fn find(report: &Report) -> Vec<LoopBlock> {
    let loops = loops(report);
    #[derive(Default)]
    struct Sum {
        count: u64,
        total_ns: u64,
        max_ns: u64,
        roots: BTreeMap<String, u64>,
    }
    // Where there is no other thread, what waited before it was known as a loop is the loop's too.
    let threads = |comm: &str| {
        let rows = report.lives.iter().filter(|row| row.comm == comm);
        rows.fold(0u32, |sum, row| sum.saturating_add(row.threads))
    };
    let single: BTreeMap<&str, bool> = (loops.keys())
        .map(|comm| (*comm, threads(comm) == 1))
        .collect();
    let mut blocks: BTreeMap<(&str, Option<&str>, &str), Sum> = BTreeMap::new();
    // The same waits of threads that are no loop: stacks do not tell whose they are.
    let mut others: BTreeMap<(Option<&str>, &str), u64> = BTreeMap::new();
    for row in &report.chains {
        let links = links_of(report, row.first);
        let (Some(first), Some(root)) = (links.first(), links.last()) else {
            continue;
        };
        let call = first.call.as_deref();
        let waits = first.kind == ChainKind::Sleep
            && !first.rests
            && root.kind != ChainKind::NotOver
            && !call.is_some_and(|call| WAIT_FOR_MANY.contains(&call));
        if !waits {
            continue;
        }
        let label = (first.site.and_then(|site| report.sites.get(site)))
            .map_or("(unknown)", |site| site.label.as_str());
        let in_loop = (single.get(first.comm.as_str())).map(|single| *single || first.in_loop);
        if in_loop != Some(true) {
            let sum = others.entry((call, label)).or_default();
            *sum = sum.saturating_add(row.total_ns);
            continue;
        }
        let sum = blocks.entry((&first.comm, call, label)).or_default();
        sum.count = sum.count.saturating_add(row.count);
        sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
        sum.max_ns = sum.max_ns.max(row.max_ns);
        if links.len() > 1 {
            // Whose limit it is, where that is not the loop's own.
            let text = match (&links[..], root.kind) {
                ([_, .., whose, _], ChainKind::Limit) => limit_text(whose),
                _ => link_text(root, report),
            };
            *sum.roots.entry(text).or_default() += row.total_ns;
        }
    }
    let mut list: Vec<LoopBlock> = (blocks.into_iter())
        .filter_map(|((comm, call, label), sum)| {
            let (rests_in, active_ns) = loops.get(comm)?;
            let part = share(sum.total_ns, *active_ns);
            if sum.total_ns < TIME_MIN_NS || part < SHARE_MIN {
                return None;
            }
            // Chains count parts of sleeps; of the call's sleeps there are no more than these.
            let slept = (report.blocking.iter())
                .filter(|row| row.call.as_deref() == call && row.label == label)
                .map(|row| row.count)
                .sum::<u64>();
            let times = if slept > 0 { sum.count.min(slept) } else { sum.count };
            let other_ns = others.get(&(call, label)).copied().unwrap_or(0);
            let alone = share(other_ns, sum.total_ns) < OTHERS_FEW;
            // Neither how often nor from where is told apart by whose they were.
            let times = match alone {
                true => format!(" {}", plural(times, "time", "times")),
                false => String::new(),
            };
            let by = call.map_or("page faults".to_owned(), printable);
            let what = meaning(report, label).map_or_else(
                || format!(" ({})", printable(label)),
                |meaning| format!(" waiting for {}", printable(&meaning.what)),
            );
            let root = sum.roots.iter().max_by_key(|(_, ns)| **ns);
            let root = root.map_or_else(String::new, |(root, ns)| {
                match share(*ns, sum.total_ns) {
                    most if most >= ROOT_MOST => format!(" ← {root}"),
                    part => format!(" (← {root}: {} of it)", percent(part)),
                }
            });
            let sites = match alone {
                true => called_from(report, call, label),
                false => Vec::new(),
            };
            let from = sites
                .first()
                .map_or_else(String::new, |(place, _)| format!(", called from {place}"));
            let text = format!(
                "The loop of {} was blocked{times} for {} by {by}{what}{root}{from}",
                printable(comm),
                time(sum.total_ns),
            );
            let mut evidence = vec![
                format!(
                    "{} rests in {rests_in}: its activities took {}, {} of that is this wait, the longest {}",
                    printable(comm),
                    time(*active_ns),
                    percent(part),
                    time(sum.max_ns)
                ),
            ];
            if sites.len() > 1 {
                let places: Vec<String> = (sites.iter().take(3))
                    .map(|(place, ns)| format!("{place} ({})", time(*ns)))
                    .collect();
                evidence.push(format!("called from {}", listed(&places)));
            }
            let mut advice = "While a loop waits, all that it serves waits: do this in another thread, or in \
                              a way that does not block."
                .to_owned();
            if let Some(more) = meaning(report, label).filter(|more| !more.advice.is_empty()) {
                advice = format!("{advice} {}", printable(&more.advice));
            }
            Some(LoopBlock {
                total_ns: sum.total_ns,
                share: part,
                finding: Finding {
                    title: text.clone(),
                    text: advice,
                    evidence,
                    share: share(sum.total_ns, Times::of(report).busy_ns()),
                },
                text,
            })
        })
        .collect();
    list.sort_by_key(|block| std::cmp::Reverse(block.total_ns));
    list
}
