// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why did it take so long, since an earlier look?
//!
//! A report has sums since the beginning. What the verdict is made of is taken less what
//! the earlier report has; the sentences are the same.

use crate::chains::{link_text, links_of};
use crate::model::*;
use std::collections::HashMap;

/// The chain's words: in two reports it is the same when it reads the same.
fn words(report: &Report, row: &ChainRow) -> String {
    let links = links_of(report, row.first);
    let whose = links.first().map(|link| (link.rests, link.in_loop));
    let texts: Vec<String> = (links.into_iter())
        .map(|link| link_text(link, report))
        .collect();
    format!("{whose:?}\n{}", texts.join("\n"))
}

fn not_over(report: &Report, row: &ChainRow) -> bool {
    links_of(report, row.first)
        .pop()
        .is_some_and(|root| root.kind == ChainKind::NotOver)
}

/// Whose sleeps they were.
fn sleeper<'a>(report: &'a Report, row: &ChainRow) -> &'a str {
    let link = report.chain_links.get(row.first);
    link.map_or("", |link| link.comm.as_str())
}

fn chains_since(now: &Report, before: &Report) -> Vec<ChainRow> {
    let mut then: HashMap<String, (u64, u64)> = HashMap::new();
    // Sleeps that were not over in the earlier report, by whose they were: what of them
    // had passed by then.
    let mut open: HashMap<&str, u64> = HashMap::new();
    for row in &before.chains {
        let sum = then.entry(words(before, row)).or_default();
        sum.0 = sum.0.saturating_add(row.count);
        sum.1 = sum.1.saturating_add(row.total_ns);
        if not_over(before, row) {
            let sum = open.entry(sleeper(before, row)).or_default();
            *sum = sum.saturating_add(row.total_ns);
        }
    }
    let mut rows: Vec<ChainRow> = (now.chains.iter())
        .map(|row| {
            // Several rows may read alike: what one has used up is gone for the next.
            let used = then.get_mut(&words(now, row)).map_or((0, 0), |sum| {
                let used = (sum.0.min(row.count), sum.1.min(row.total_ns));
                *sum = (sum.0 - used.0, sum.1 - used.1);
                used
            });
            if not_over(now, row) {
                let sum = open.entry(sleeper(now, row)).or_default();
                *sum = sum.saturating_sub(used.1);
            }
            ChainRow {
                count: row.count - used.0,
                total_ns: row.total_ns - used.1,
                ..*row
            }
        })
        .collect();
    // What is left there has ended since, and counts for its chain as a whole.
    rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
    for row in &mut rows {
        if let Some(left) = open.get_mut(sleeper(now, row)) {
            let taken = (*left).min(row.total_ns);
            *left -= taken;
            row.total_ns -= taken;
        }
    }
    rows.retain(|row| row.total_ns > 0);
    rows
}

fn lives_since(now: &[LifeRow], before: &[LifeRow]) -> Vec<LifeRow> {
    type Whose<'a> = (u32, &'a str, u64, Option<&'a str>);
    /// Those of many processes are one for each control group, whose name may be found out later than its number, or not be
    /// known any more.
    fn whose(row: &LifeRow) -> Whose<'_> {
        let (number, path) = match (row.pid, row.cgroup_number) {
            (0, 0) => (0, row.cgroup.as_deref()),
            (0, number) => (number, None),
            _ => (0, None),
        };
        (row.pid, &row.comm, number, path)
    }
    let mut then: HashMap<Whose<'_>, LifeTime> = HashMap::new();
    for row in before {
        let sum = then.entry(whose(row)).or_default();
        *sum = sum.with(&row.time, u64::saturating_add);
    }
    (now.iter())
        .map(|row| {
            let Some(was) = then.get_mut(&whose(row)) else {
                return row.clone();
            };
            let time = row.time.with(was, u64::saturating_sub);
            // Several rows may be of one group without a name: what one has used up is gone for the next.
            *was = was.with(&row.time, u64::saturating_sub);
            LifeRow {
                time,
                ..row.clone()
            }
        })
        .filter(|row| row.time.life_ns > 0)
        .collect()
}

fn calls_since(now: &[CallRow], before: &[CallRow]) -> Vec<CallRow> {
    let then: HashMap<(&str, u32), &CallRow> = (before.iter())
        .map(|row| ((row.name.as_str(), row.abi), row))
        .collect();
    (now.iter())
        .map(|row| {
            let mut row = row.clone();
            let Some(was) = then.get(&(row.name.as_str(), row.abi)) else {
                return row;
            };
            let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
            let some = |now: &mut Option<u64>, before: Option<u64>| {
                if let Some(now) = now {
                    *now = now.saturating_sub(before.unwrap_or(0));
                }
            };
            less(&mut row.count, was.count);
            less(&mut row.errors, was.errors);
            less(&mut row.restarted, was.restarted);
            less(&mut row.missing, was.missing);
            less(&mut row.ones, was.ones);
            less(&mut row.untimed, was.untimed);
            less(&mut row.unstamped, was.unstamped);
            some(&mut row.wall_ns, was.wall_ns);
            some(&mut row.cpu_ns, was.cpu_ns);
            some(&mut row.blocked_ns, was.blocked_ns);
            some(&mut row.runq_ns, was.runq_ns);
            row
        })
        .collect()
}

/// How many, and their time; percentiles, and the slowest, are known of all of them only.
fn activities_since(now: &[ActivityRow], before: &[ActivityRow]) -> Vec<ActivityRow> {
    (now.iter())
        .map(|row| {
            let was = (before.iter()).find(|was| was.comm == row.comm && was.call == row.call);
            let (count, total_ns) = was.map_or((0, 0), |was| (was.count, was.all.total_ns));
            ActivityRow {
                comm: row.comm.clone(),
                call: row.call.clone(),
                count: row.count.saturating_sub(count),
                all: ActivityTime {
                    total_ns: row.all.total_ns.saturating_sub(total_ns),
                    ..ActivityTime::default()
                },
                ..ActivityRow::default()
            }
        })
        .collect()
}

fn machine_since(now: &Report, before: &Report) -> Option<Machine> {
    let (mut machine, before) = (now.machine.clone()?, before.machine.as_ref()?);
    let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
    less(&mut machine.busy_ns, before.busy_ns);
    less(&mut machine.steal_ns, before.steal_ns);
    for limit in &mut machine.limits {
        let was = before
            .limits
            .iter()
            .find(|was| was.group == limit.group && was.file == limit.file);
        if let Some(was) = was {
            less(&mut limit.periods, was.periods);
            less(&mut limit.throttled, was.throttled);
            less(&mut limit.throttled_ns, was.throttled_ns);
        }
    }
    Some(machine)
}

fn blocking_since(now: &[BlockingRow], before: &[BlockingRow]) -> Vec<BlockingRow> {
    type Place<'a> = (&'a str, Option<&'a str>, u32, Option<&'a str>, Option<u32>);
    fn place(row: &BlockingRow) -> Place<'_> {
        let (call, function) = (row.call.as_deref(), row.function.as_deref());
        (&row.label, call, row.abi, function, row.offset)
    }
    let mut then: HashMap<Place<'_>, (u64, u64)> = HashMap::new();
    for row in before {
        let sum = then.entry(place(row)).or_default();
        sum.0 = sum.0.saturating_add(row.count);
        sum.1 = sum.1.saturating_add(row.total_ns);
    }
    let mut rows: Vec<BlockingRow> = (now.iter())
        .map(|row| {
            // Several rows may be of one place: what one has used up is gone for the next.
            let used = then.get_mut(&place(row)).map_or((0, 0), |sum| {
                let used = (sum.0.min(row.count), sum.1.min(row.total_ns));
                *sum = (sum.0 - used.0, sum.1 - used.1);
                used
            });
            let (count, total_ns) = (row.count - used.0, row.total_ns - used.1);
            BlockingRow {
                count,
                total_ns,
                mean_ns: total_ns.checked_div(count).unwrap_or(0),
                // Those of all the time would not add up to it.
                by_name: Vec::new(),
                ..row.clone()
            }
        })
        .filter(|row| row.count > 0 || row.total_ns > 0)
        .collect();
    let all_ns = (rows.iter()).fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
    for row in &mut rows {
        row.share = row.total_ns as f64 / all_ns.max(1) as f64;
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
    rows
}

/// What came to pass from one report to a later one of the same account: the verdict, and what
/// it and the tables of calls, waits and threads are made of. The longest of something, and how
/// long how many took, is that of all the time.
pub fn since(now: &Report, before: &Report) -> Report {
    let mut totals = now.totals.clone();
    totals.cpu_ns = (totals.cpu_ns).map(|ns| ns.saturating_sub(before.totals.cpu_ns.unwrap_or(0)));
    let mut since = Report {
        run: Run {
            wall_ns: now.run.wall_ns.saturating_sub(before.run.wall_ns),
            ..now.run.clone()
        },
        totals,
        calls: calls_since(&now.calls, &before.calls),
        blocking: blocking_since(&now.blocking, &before.blocking),
        labels: now.labels.clone(),
        chain_links: now.chain_links.clone(),
        chains: chains_since(now, before),
        lives: lives_since(&now.lives, &before.lives),
        sites: now.sites.clone(),
        measured: now.measured,
        activities: activities_since(&now.activities, &before.activities),
        machine: machine_since(now, before),
        // No path, which has no end here.
        ..Report::default()
    };
    since.verdict = crate::verdict::of(&since);
    since
}
