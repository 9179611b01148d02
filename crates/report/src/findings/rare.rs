// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which calls are short nearly always, and once in a while so long that these few have the time?
//!
//! Averages hide them: one call in a thousand that waits a thousand times as long as the others
//! doubles the mean. The histogram of a call tells, and what it blocked on tells what for. Of
//! calls that wait for something to do nothing is said: their waits are long because nothing
//! came.

use super::{
    Group, Times, call_name, call_sites, culprits, listed, meaning, percent, plural, share, sums,
    time, waits_for,
};
use crate::model::*;
use debox_labels::Kind;
use debox_output::{count_text, printable};

/// Of a call: fewer calls have no tail.
const CALLS_MIN: u64 = 1_000;
/// So many of them are rare.
const RARE: f64 = 0.01;
/// Longer than this many times the median is long, and at least ...
const LONG_TIMES: u64 = 20;
const LONG_MIN_NS: u64 = 100_000;
/// What the long ones have of the call's time is most of it.
const TAIL_MIN: f64 = 0.5;
/// Of the time of the long ones: so much in waits that are a loss is what they waited for.
const WAIT_MIN: f64 = 0.7;

/// A call of which few have the time.
pub(crate) struct Rare {
    pub call: String,
    /// Groups of the labels of what they waited for.
    pub groups: Vec<String>,
    pub explained_ns: u64,
    pub finding: Finding,
}

/// The slowest calls of a row: how many, how long at least and all together.
struct Tail {
    count: u64,
    from_ns: u64,
    total_ns: u64,
}

/// None: there is none worth telling.
fn tail_of(row: &CallRow) -> Option<Tail> {
    if row.count < CALLS_MIN {
        return None;
    }
    let (p50_ns, max_ns, wall_ns) = (row.p50_ns?, row.max_ns?, row.wall_ns?);
    let long_ns = p50_ns.saturating_mul(LONG_TIMES).max(LONG_MIN_NS);
    let mut tail = Tail {
        count: 0,
        from_ns: 0,
        total_ns: 0,
    };
    for bucket in row.histogram.iter().rev() {
        let count = tail.count.saturating_add(bucket.count);
        if bucket.from_ns < long_ns || share(count, row.count) > RARE {
            break;
        }
        // No call is longer than the longest; those of a bucket are spread over it.
        let to_ns = bucket.to_ns.unwrap_or(max_ns).min(max_ns);
        let each_ns = bucket.from_ns.midpoint(to_ns.max(bucket.from_ns));
        tail = Tail {
            count,
            from_ns: bucket.from_ns,
            total_ns: (tail.total_ns).saturating_add(each_ns.saturating_mul(bucket.count)),
        };
    }
    tail.total_ns = tail.total_ns.min(wall_ns);
    (tail.count > 0 && share(tail.total_ns, wall_ns) >= TAIL_MIN).then_some(tail)
}

/// Longest first.
pub(crate) fn find(report: &Report) -> Vec<Rare> {
    let times = Times::of(report);
    let told = |row: &CallRow| {
        let tail = tail_of(row).filter(|tail| times.worth(tail.total_ns))?;
        let is_loss =
            |label: &str| meaning(report, label).is_some_and(|meaning| meaning.kind == Kind::Loss);
        let mut groups = Vec::new();
        let mut own = Group::default();
        for (name, group) in &times.losses {
            let before = own.rows.len();
            for of in &group.rows {
                if of.call.as_deref() == Some(row.name.as_str())
                    && of.abi == row.abi
                    && is_loss(&of.label)
                {
                    own.total_ns = own.total_ns.saturating_add(of.total_ns);
                    own.count = own.count.saturating_add(of.count);
                    own.rows.push(of);
                }
            }
            if own.rows.len() > before {
                groups.push(name.clone());
            }
        }
        let group = own;
        if group.rows.is_empty() || share(group.total_ns, tail.total_ns) < WAIT_MIN {
            return None;
        }
        let labels = sums(
            group.rows.iter(),
            |row| row.label.clone(),
            |row| (row.total_ns, row.count),
        );
        let whats: Vec<String> = (labels.iter().take(2).enumerate())
            .filter(|(at, (_, ns, _))| *at == 0 || share(*ns, group.total_ns) >= 0.2)
            .filter_map(|(_, (label, ..))| waits_for(report, label).map(printable))
            .collect();
        let what = listed(&whats);
        let (holders, held_ns) = culprits(report, &group, true);
        let holder = (holders.first())
            .filter(|who| share(held_ns.min(who.ns), group.total_ns) >= 0.5)
            .map_or_else(String::new, |who| format!(", held by {}", who.name));
        let call = call_name(Some(&row.name), row.abi);
        let mut evidence = vec![format!(
            "{call}: half of its {} took {} at most, {} took {} or more, the longest {}",
            plural(row.count, "call", "calls"),
            time(row.p50_ns.unwrap_or(0)),
            count_text(tail.count),
            time(tail.from_ns),
            time(row.max_ns.unwrap_or(0))
        )];
        evidence.extend(labels.iter().take(3).map(|(label, ns, count)| {
            format!(
                "{}: {} in {}",
                printable(label),
                time(*ns),
                plural(*count, "sleep", "sleeps")
            )
        }));
        let sites: Vec<String> = (call_sites(report, &group).iter().take(2))
            .map(|(site, ns, _)| format!("{site} ({})", time(*ns)))
            .collect();
        if !sites.is_empty() {
            evidence.push(format!("called from {}", listed(&sites)));
        }
        let advice = (labels.first()).and_then(|(label, ..)| meaning(report, label));
        Some(Rare {
            call: row.name.clone(),
            groups,
            explained_ns: tail.total_ns,
            finding: Finding {
                title: format!(
                    "{} of {} {call} calls took {} of the call's time, {} or more each, waiting for \
                     {what}{holder}",
                    count_text(tail.count),
                    count_text(row.count),
                    percent(share(tail.total_ns, row.wall())),
                    time(tail.from_ns)
                ),
                text: advice.map_or_else(String::new, |meaning| printable(&meaning.advice)),
                evidence,
                share: share(tail.total_ns, times.busy_ns()),
            },
        })
    };
    let mut list: Vec<Rare> = report.calls.iter().filter_map(told).collect();
    list.sort_by_key(|rare| std::cmp::Reverse(rare.explained_ns));
    list
}
