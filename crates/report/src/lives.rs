// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did the time of its threads go, by who they are, and what did the end depend on?

use crate::chains::{limit_text, link_text, links_of};
use crate::model::{ChainKind, CriticalKind, CriticalPart, LifeRow, LifeTime, Report};
use crate::sum::grow;
use debox_labels::Kind;
use debox_output::{printable, share_text};
use std::collections::{BTreeMap, BTreeSet};

/// The threads of one name, in all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifeGroup {
    pub comm: String,
    /// Made by a process of the same name: see [`roles`].
    pub forked: bool,
    pub processes: u64,
    pub threads: u64,
    pub time: LifeTime,
    /// Of the process with the longest life under this name; empty: not known.
    pub command: String,
    /// Unit, or else control group, where all of them are in one and not all threads are.
    pub cgroup: Option<String>,
}

impl LifeGroup {
    pub fn name(&self) -> String {
        let name = printable(&self.comm);
        match self.forked {
            true => format!("{name}, forked"),
            false => name,
        }
    }
}

fn place(row: &LifeRow) -> Option<&str> {
    row.unit.as_deref().or(row.cgroup.as_deref())
}

/// By name; longest life first.
pub fn groups(rows: &[LifeRow]) -> Vec<LifeGroup> {
    grouped(rows, &|_| false)
}

/// By name, and those apart that a process of the same name made, without another program, and that did not
/// just begin one: a server's workers or helpers beside the process that leads them.
pub fn roles(rows: &[LifeRow]) -> Vec<LifeGroup> {
    let from_ns = rows.iter().map(|row| row.first_ns).min().unwrap_or(0);
    let to_ns = rows.iter().map(|row| row.last_ns).max().unwrap_or(0);
    let long_ns = to_ns.saturating_sub(from_ns) / FORKED_SHARE;
    let named: BTreeSet<(u32, &str)> = (rows.iter()).map(|row| (row.pid, &*row.comm)).collect();
    grouped(rows, &|row| {
        row.pid != 0
            && row.execs == 0
            && row.last_ns.saturating_sub(row.first_ns) >= long_ns
            && named.contains(&(row.parent, &*row.comm))
    })
}

/// A forked process has lived for one part in so many of the whole, to be told apart.
const FORKED_SHARE: u64 = 10;

fn grouped(rows: &[LifeRow], forked: &dyn Fn(&LifeRow) -> bool) -> Vec<LifeGroup> {
    let mut by_name: BTreeMap<(&str, bool), LifeGroup> = BTreeMap::new();
    let places: BTreeSet<&str> = rows.iter().filter_map(place).collect();
    let mut places_of: BTreeMap<(&str, bool), BTreeSet<Option<&str>>> = BTreeMap::new();
    // Rows come longest first: the first command is the longest life's.
    for row in rows {
        let key = (&*row.comm, forked(row));
        let group = by_name.entry(key).or_default();
        group.comm.clone_from(&row.comm);
        group.forked = key.1;
        places_of.entry(key).or_default().insert(place(row));
        // Who comes by exec began under another name.
        group.processes += u64::from(row.processes.max(row.execs));
        group.threads += u64::from(row.threads);
        group.time.add(&row.time);
        if group.command.is_empty() {
            group.command.clone_from(&row.command);
        }
    }
    if places.len() > 1 {
        for (key, group) in &mut by_name {
            let of = places_of.get(key).into_iter().flatten();
            let of: Vec<_> = of.collect();
            if let [Some(only)] = of[..] {
                group.cgroup = Some((*only).to_owned());
            }
        }
    }
    let mut groups: Vec<LifeGroup> = by_name.into_values().collect();
    groups.sort_by(|a, b| {
        let weight = |g: &LifeGroup| std::cmp::Reverse(g.time.life_ns);
        weight(a)
            .cmp(&weight(b))
            .then_with(|| (&a.comm, a.forked).cmp(&(&b.comm, b.forked)))
    });
    groups
}

/// How long all threads of a name lived, without what they waited for whoever measured them.
pub(crate) fn life_ns(report: &Report, group: &LifeGroup) -> u64 {
    let of_tool_ns = (report.chains.iter())
        .filter(|row| {
            report
                .chain_links
                .get(row.first)
                .is_some_and(|link| link.comm == group.comm)
                && is_of_tool(report, row.first)
        })
        .fold(0, |sum: u64, row| sum.saturating_add(row.total_ns));
    group.time.life_ns.saturating_sub(of_tool_ns)
}

fn label_is_of_tool(report: &Report, label: &str) -> bool {
    let meaning = crate::findings::meaning(report, label);
    meaning.is_some_and(|meaning| meaning.kind == Kind::Tool)
}

/// Whether a chain begins with a wait for who measures.
pub(crate) fn is_of_tool(report: &Report, chain: usize) -> bool {
    let link = report.chain_links.get(chain);
    let site = link.and_then(|link| report.sites.get(link.site?));
    site.is_some_and(|site| label_is_of_tool(report, &site.label))
}

/// Where threads of several names slept: in what those of each group did most, and how much of all their
/// sleeps that is. Empty: not known, as of a name with two roles, or where more sleeps may be theirs elsewhere.
pub(crate) fn mostly_in(report: &Report, groups: &[LifeGroup]) -> Vec<String> {
    let mut sums: BTreeMap<&str, BTreeMap<(Option<&str>, &str), u64>> = BTreeMap::new();
    let mut unknown_ns = 0;
    let rows = match report.names_differ() {
        true => &report.blocking[..],
        false => &[][..],
    };
    for row in (rows.iter()).filter(|row| !label_is_of_tool(report, &row.label)) {
        let mut left_ns = row.total_ns;
        for name in &row.by_name {
            let Some(comm) = name.comm.as_deref() else {
                continue;
            };
            left_ns = left_ns.saturating_sub(name.total_ns);
            let its = sums.entry(comm).or_default();
            let sum = its.entry((row.call.as_deref(), &*row.label)).or_default();
            grow(sum, name.total_ns);
        }
        grow(&mut unknown_ns, left_ns);
    }
    let mut roles: BTreeMap<&str, u32> = BTreeMap::new();
    for group in groups {
        *roles.entry(&group.comm).or_default() += 1;
    }
    let most = |group: &LifeGroup| {
        let its = (sums.get(&*group.comm)).filter(|_| roles.get(&*group.comm) == Some(&1))?;
        let all_ns = its.values().copied().fold(0, u64::saturating_add);
        let (&(call, label), &ns) = its.iter().max_by_key(|(_, ns)| **ns)?;
        // All that is not known may have been at any other place.
        let others = its.iter().filter(|(of, _)| **of != (call, label));
        let next_ns = others.map(|(_, ns)| *ns).max().unwrap_or(0);
        if next_ns.saturating_add(unknown_ns) > ns {
            return None;
        }
        let mut text = printable(label);
        if let Some(call) = call {
            text = format!("{}: {text}", printable(call));
        }
        if unknown_ns <= all_ns / 100 {
            text = format!("{text} {}", share_text(ns, all_ns));
        }
        Some(text)
    };
    groups
        .iter()
        .map(|group| most(group).unwrap_or_default())
        .collect()
}

/// One line of the critical path: what somebody did, or what they waited for, by its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathLine {
    /// None: of several.
    pub who: Option<String>,
    pub what: String,
    /// Of a wait, where that is known.
    pub cause: Option<String>,
    pub kind: CriticalKind,
    pub total_ns: u64,
}

impl PathLine {
    /// With its cause.
    pub fn text(&self) -> String {
        match &self.cause {
            Some(cause) => format!("{} ← {cause}", self.what),
            None => self.what.clone(),
        }
    }
}

/// One row of its table: waits that read the same, with all of their causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriticalRow {
    pub who: Option<String>,
    /// With its cause, if it is the only one.
    pub what: String,
    pub total_ns: u64,
    /// Of several: what stands below it.
    pub causes: Vec<(String, u64)>,
}

/// So many causes of a wait are told, and the others as one.
const CAUSES_SHOWN: usize = 3;

fn part_text(report: &Report, part: &CriticalPart) -> String {
    match part.kind {
        CriticalKind::Own if report.own_is_told() => "its own code on a CPU".to_owned(),
        CriticalKind::Own => "on a CPU".to_owned(),
        CriticalKind::Calls if report.measured.calls => "system calls on a CPU".to_owned(),
        CriticalKind::Calls => "the kernel on a CPU".to_owned(),
        CriticalKind::Exit => "ending, on a CPU".to_owned(),
        CriticalKind::Interrupts => "interrupts that landed in it".to_owned(),
        CriticalKind::Runq => "waiting for a CPU".to_owned(),
        CriticalKind::Blocked => Wait::of(report, part.chain).text,
        CriticalKind::Other => "(unknown)".to_owned(),
    }
}

/// All that is known of the smallest parts of a critical path.
pub(crate) const ASLEEP: &str = "asleep";

/// A wait, by whom it leads to and where it ends.
pub(crate) struct Wait {
    /// What was waited for, without who did.
    pub text: String,
    /// Who slept last of those that it leads to, and in which call.
    pub way: Option<String>,
    pub root: Option<String>,
}

impl Wait {
    pub fn of(report: &Report, chain: Option<usize>) -> Self {
        let links = chain.map_or_else(Vec::new, |first| links_of(report, first));
        let Some((link, more)) = links.split_first() else {
            return Self {
                text: ASLEEP.to_owned(),
                way: None,
                root: None,
            };
        };
        let text = if link.kind == ChainKind::Sleep {
            let site = link.site.and_then(|site| report.sites.get(site));
            let label = printable(site.map_or("(unknown)", |site| site.label.as_str()));
            match link.call.as_deref().map(printable) {
                Some(call) => format!("{call}: {label}"),
                None => label,
            }
        } else {
            link_text(link, report)
        };
        let asleep = more.iter().rfind(|link| link.kind == ChainKind::Sleep);
        let root = more.last();
        if let (Some(whose), Some(root)) = (asleep, root)
            && root.kind == ChainKind::Limit
        {
            return Self {
                text,
                way: Some(limit_text(whose)),
                root: None,
            };
        }
        let way = asleep.and_then(|link| {
            let call = link.call.as_deref().filter(|_| !link.comm.is_empty())?;
            Some(format!("{} in {}", printable(&link.comm), printable(call)))
        });
        Self {
            text,
            way,
            root: root.map(|root| link_text(root, report)),
        }
    }

    pub fn cause(&self) -> Option<String> {
        match (&self.way, &self.root) {
            (Some(way), Some(root)) => Some(format!("{way} ← {root}")),
            (cause, None) | (None, cause) => cause.clone(),
        }
    }
}

/// Parts that read the same are one. Largest first.
pub fn path_lines(report: &Report) -> Vec<PathLine> {
    let Some(path) = &report.critical_path else {
        return Vec::new();
    };
    type Key = (Option<String>, CriticalKind, String, Option<String>);
    let mut lines: BTreeMap<Key, u64> = BTreeMap::new();
    for part in &path.parts {
        let cause = match part.kind {
            CriticalKind::Blocked => Wait::of(report, part.chain).cause(),
            _ => None,
        };
        let what = part_text(report, part);
        let key = (part.comm.clone(), part.kind, what, cause);
        let sum = lines.entry(key).or_default();
        *sum = sum.saturating_add(part.total_ns);
    }
    let mut lines: Vec<PathLine> = lines
        .into_iter()
        .map(|((who, kind, what, cause), total_ns)| PathLine {
            who,
            what,
            cause,
            kind,
            total_ns,
        })
        .collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.total_ns));
    lines
}

/// Waits that differ in nothing but their cause are one. Largest first.
pub fn critical_rows(report: &Report) -> Vec<CriticalRow> {
    let lines = path_lines(report);
    let mut groups: BTreeMap<(&Option<String>, CriticalKind, &str), Vec<&PathLine>> =
        BTreeMap::new();
    for line in &lines {
        let key = (&line.who, line.kind, line.what.as_str());
        groups.entry(key).or_default().push(line);
    }
    let ns = |lines: &[&PathLine]| {
        (lines.iter()).fold(0u64, |sum, line| sum.saturating_add(line.total_ns))
    };
    let row = |of: Vec<&PathLine>| {
        let (first, several) = (of[0], of.len() > 1);
        let (told, others) = of.split_at(match of.len() {
            all if several && all > CAUSES_SHOWN + 1 => CAUSES_SHOWN,
            all => all,
        });
        let cause_of = |line: &&PathLine| {
            let cause = line.cause.clone();
            let text = cause.unwrap_or_else(|| "(unknown)".to_owned());
            (text, line.total_ns)
        };
        let mut causes: Vec<_> = told.iter().filter(|_| several).map(cause_of).collect();
        if !others.is_empty() {
            causes.push((format!("{} others", others.len()), ns(others)));
        }
        CriticalRow {
            who: first.who.clone(),
            what: match several {
                true => first.what.clone(),
                false => first.text(),
            },
            total_ns: ns(&of),
            causes,
        }
    };
    let mut rows: Vec<CriticalRow> = groups.into_values().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, parent: u32, comm: &str, execs: u32, from_to: (u64, u64)) -> LifeRow {
        LifeRow {
            pid,
            parent,
            comm: comm.into(),
            execs,
            processes: 1,
            threads: 1,
            first_ns: from_to.0,
            last_ns: from_to.1,
            time: LifeTime {
                life_ns: from_to.1 - from_to.0,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        }
    }

    #[test]
    fn workers_are_told_from_who_leads_them() {
        let rows = [
            row(10, 1, "nginx", 1, (0, 1000)),
            row(11, 10, "nginx", 0, (10, 1000)),
            row(12, 10, "nginx", 0, (10, 900)),
            // On its way to another program.
            row(13, 10, "nginx", 0, (500, 510)),
            row(13, 10, "sh", 1, (510, 900)),
            row(14, 13, "sh", 1, (520, 900)),
        ];
        let told = |groups: Vec<LifeGroup>| -> Vec<(String, u64)> {
            groups.iter().map(|g| (g.name(), g.processes)).collect()
        };
        assert_eq!(
            told(roles(&rows)),
            [
                ("nginx, forked".into(), 2),
                ("nginx".into(), 2),
                ("sh".into(), 2)
            ]
        );
        assert_eq!(told(groups(&rows)), [("nginx".into(), 4), ("sh".into(), 2)]);
    }

    #[test]
    fn what_a_name_is_mostly_blocked_in_is_told_where_there_are_several() {
        let place = |label: &str, call: &str, names: &[(&str, u64)]| {
            let total_ns: u64 = names.iter().map(|(_, ns)| ns).sum();
            let by_name: Vec<_> = (names.iter())
                .map(|(comm, ns)| serde_json::json!({"comm": comm, "count": 1, "total_ns": ns}))
                .collect();
            serde_json::json!({
                "label": label, "unlabelled": false, "call": call, "abi": 64, "function": null,
                "offset": null, "file": null, "line": null, "count": names.len(),
                "total_ns": total_ns, "mean_ns": 0, "max_ns": 0, "share": 0.0,
                "waiters_mean": null, "waiters_max": null, "by_name": by_name,
            })
        };
        let mut report = Report {
            lives: vec![
                row(10, 1, "main", 1, (0, 1000)),
                row(11, 10, "helper", 0, (10, 1000)),
            ],
            blocking: serde_json::from_value(serde_json::json!([
                place("page-in", "read", &[("helper", 90), ("main", 10)]),
                place("epoll", "epoll_wait", &[("main", 30), ("helper", 10)]),
            ]))
            .unwrap(),
            ..Report::default()
        };
        let told = |report: &Report| mostly_in(report, &roles(&report.lives));
        let both = ["epoll_wait: epoll 75.0%", "read: page-in 90.0%"];
        assert_eq!(told(&report), both);
        // Of two roles, whose sleeps they were is not known.
        report.lives.push(row(12, 10, "main", 0, (10, 1000)));
        assert_eq!(told(&report), ["", both[1], ""]);
        report.lives.pop();
        // What nobody knows may be more of any place: of the share, and then of the most.
        report.blocking[1].total_ns += 15;
        assert_eq!(told(&report), ["epoll_wait: epoll", "read: page-in"]);
        let mut undivided = report.blocking[1].clone();
        (undivided.total_ns, undivided.by_name) = (6, Vec::new());
        report.blocking.push(undivided);
        assert_eq!(told(&report), ["", "read: page-in"]);
        for row in &mut report.blocking {
            (row.by_name).retain(|name| name.comm.as_deref() == Some("main"));
        }
        assert_eq!(told(&report), ["", ""], "there is no other");
    }
}
