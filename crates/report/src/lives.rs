// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did the time of its threads go, by who they are, and what did the end depend on?

use crate::chains::{link_text, links_of};
use crate::model::{ChainKind, CriticalKind, CriticalPart, LifeRow, LifeTime, Report};
use debox_output::printable;
use std::collections::{BTreeMap, BTreeSet};

/// The threads of one name, in all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifeGroup {
    pub comm: String,
    pub processes: u64,
    pub threads: u64,
    pub time: LifeTime,
    /// Of the process with the longest life under this name; empty: not known.
    pub command: String,
    /// Unit, or else control group, where all of them are in one and not all threads are.
    pub cgroup: Option<String>,
}

fn place(row: &LifeRow) -> Option<&str> {
    row.unit.as_deref().or(row.cgroup.as_deref())
}

/// Most time on a CPU or blocked first.
pub fn groups(rows: &[LifeRow]) -> Vec<LifeGroup> {
    let mut by_name: BTreeMap<&str, LifeGroup> = BTreeMap::new();
    let places: BTreeSet<&str> = rows.iter().filter_map(place).collect();
    let mut places_of: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    // Rows come longest first: the first command is the longest life's.
    for row in rows {
        let group = by_name.entry(&row.comm).or_default();
        group.comm.clone_from(&row.comm);
        places_of.entry(&row.comm).or_default().insert(place(row));
        // Who comes by exec began under another name.
        group.processes += u64::from(row.processes.max(row.execs));
        group.threads += u64::from(row.threads);
        group.time.add(&row.time);
        if group.command.is_empty() {
            group.command.clone_from(&row.command);
        }
    }
    if places.len() > 1 {
        for (comm, group) in &mut by_name {
            let of = places_of.get(comm).into_iter().flatten();
            let of: Vec<_> = of.collect();
            if let [Some(only)] = of[..] {
                group.cgroup = Some((*only).to_owned());
            }
        }
    }
    let mut groups: Vec<LifeGroup> = by_name.into_values().collect();
    groups.sort_by(|a, b| {
        let weight = |g: &LifeGroup| std::cmp::Reverse(g.time.life_ns);
        weight(a).cmp(&weight(b)).then(a.comm.cmp(&b.comm))
    });
    groups
}

/// One line of the critical path: what somebody did, or what they waited for, by its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLine {
    /// None: of several.
    pub who: Option<String>,
    pub what: String,
    pub kind: CriticalKind,
    pub total_ns: u64,
}

fn part_text(report: &Report, part: &CriticalPart) -> String {
    match part.kind {
        CriticalKind::Own if report.own_is_told() => "its own code on a CPU".to_owned(),
        CriticalKind::Own => "on a CPU".to_owned(),
        CriticalKind::Calls if report.measured.calls => "system calls on a CPU".to_owned(),
        CriticalKind::Calls => "the kernel on a CPU".to_owned(),
        CriticalKind::Exit => "ending, on a CPU".to_owned(),
        CriticalKind::Interrupts => "interrupts that landed in it".to_owned(),
        CriticalKind::Runq => "waiting for a CPU".to_owned(),
        CriticalKind::Blocked => blocked_text(report, part.chain),
        CriticalKind::Other => "(unknown)".to_owned(),
    }
}

/// All that is known of the smallest parts of a critical path.
pub(crate) const ASLEEP: &str = "asleep";

/// The first link without its name, and the call in which the last of those slept that it
/// leads to; and the root, if it is another link.
pub(crate) fn blocked_texts(report: &Report, chain: Option<usize>) -> (String, Option<String>) {
    let links = chain.map_or_else(Vec::new, |first| links_of(report, first));
    let Some(link) = links.first() else {
        return (ASLEEP.to_owned(), None);
    };
    let mut text = if link.kind == ChainKind::Sleep {
        let site = link.site.and_then(|site| report.sites.get(site));
        let label = printable(site.map_or("(unknown)", |site| site.label.as_str()));
        match link.call.as_deref().map(printable) {
            Some(call) => format!("{call}: {label}"),
            None => label,
        }
    } else {
        link_text(link, report)
    };
    let asleep = links
        .iter()
        .skip(1)
        .rfind(|link| link.kind == ChainKind::Sleep);
    if let Some((link, call)) =
        asleep.and_then(|link| link.call.as_deref().map(|call| (link, call)))
        && !link.comm.is_empty()
    {
        text.push_str(&format!(
            " ← {} in {}",
            printable(&link.comm),
            printable(call)
        ));
    }
    let root = links.last().filter(|_| links.len() > 1);
    (text, root.map(|root| link_text(root, report)))
}

fn blocked_text(report: &Report, chain: Option<usize>) -> String {
    match blocked_texts(report, chain) {
        (text, Some(root)) => format!("{text} ← {root}"),
        (text, None) => text,
    }
}

/// Parts that read the same are one. Largest first.
pub fn path_lines(report: &Report) -> Vec<PathLine> {
    let Some(path) = &report.critical_path else {
        return Vec::new();
    };
    let mut lines: BTreeMap<(Option<String>, CriticalKind, String), u64> = BTreeMap::new();
    for part in &path.parts {
        let what = part_text(report, part);
        let key = (part.comm.clone(), part.kind, what);
        let sum = lines.entry(key).or_default();
        *sum = sum.saturating_add(part.total_ns);
    }
    let mut lines: Vec<PathLine> = lines
        .into_iter()
        .map(|((who, kind, what), total_ns)| PathLine {
            who,
            what,
            kind,
            total_ns,
        })
        .collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.total_ns));
    lines
}
