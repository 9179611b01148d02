// SPDX-License-Identifier: MIT OR Apache-2.0
//! What matters most in this report, in plain words?
//!
//! Each rule looks at the numbers and proposes findings with the time that
//! each explains; the three that explain most are kept. Waiting for something
//! to do (an event loop without events) is told apart from losing time, and
//! shares are of the latter. A rule says only what the numbers show: who held
//! a lock is named when holders were recorded for most of the wait, causes are
//! named when the label tells them, and nothing is said below the thresholds.

pub(crate) mod churn;
pub(crate) mod loops;
pub(crate) mod rare;

use std::collections::BTreeMap;

use crate::assemble::frame_text;
use crate::chains::holder_place;
use crate::family::Families;
use crate::model::*;
use debox_labels::{Kind, Meaning, Rules};
use debox_output::{count_text, duration_text, printable, result_text};

const FINDINGS_MAX: usize = 3;
/// Of the time that is not waiting for work.
const SHARE_MIN: f64 = 0.05;
/// Less than this is not worth a reader's time, whatever its share.
const TIME_MIN_NS: u64 = 1_000_000;
/// Waits for input that last this long on average are waits for work.
const INPUT_IDLE_NS: u64 = 100_000_000;
/// Waiting for a CPU is a finding of its own from this share on.
const RUNQ_SHARE_MIN: f64 = 0.1;
/// One call's time on the CPU is one from this share on.
const CPU_SHARE_MIN: f64 = 0.15;
/// Failing calls: at least this many, and this part of them.
const ERRORS_MIN: u64 = 1_000;
const ERRORS_SHARE_MIN: f64 = 0.3;

/// Of a cause's time: so much of it in calls of which something better is known.
const TOLD_MIN: f64 = 0.8;

struct Candidate {
    explained_ns: u64,
    finding: Finding,
}

/// At most three findings, the one that explains most time first; none when
/// nothing stands out.
pub fn find(report: &Report) -> Vec<Finding> {
    let time = Times::of(report);
    let mut list = Vec::new();
    let churns = churn::find(report);
    if time.busy_ns() >= TIME_MIN_NS {
        let rares = rare::find(report);
        blocked(report, &time, &rares, &mut list);
        list.extend(rares.into_iter().map(|rare| Candidate {
            explained_ns: rare.explained_ns,
            finding: rare.finding,
        }));
        run_queue(report, &time, &mut list);
        // What is known better of these calls is said instead.
        let told = |row: &CallRow| churns.iter().any(|churn| churn.calls.contains(&row.name));
        on_cpu(report, &time, &told, &mut list);
        failing(report, &time, &told, &mut list);
    }
    list.extend(churns.into_iter().map(|churn| Candidate {
        explained_ns: churn.explained_ns,
        finding: churn.finding,
    }));
    list.extend(loops::find(report).into_iter().map(|block| Candidate {
        explained_ns: block.total_ns,
        finding: block.finding,
    }));
    growing(report, &time, &mut list);
    // Beside a verdict over the whole time, what is little of that is no finding, however
    // large a part of the waiting it is.
    if report.critical_path.is_some() {
        let whole_ns = report.run.wall_ns;
        list.retain(|candidate| share(candidate.explained_ns, whole_ns) >= SHARE_MIN);
    }
    list.sort_by_key(|c| std::cmp::Reverse(c.explained_ns));
    list.truncate(FINDINGS_MAX);
    let mut findings: Vec<Finding> = list.into_iter().map(|c| c.finding).collect();
    if findings.len() < FINDINGS_MAX {
        findings.extend(idle(report, &time));
    }
    findings
}

/// What to say when [`find`] finds nothing: a sentence with the reason.
pub fn nothing_found(report: &Report) -> String {
    let time = Times::of(report);
    let run = duration_text(report.run.wall_ns, false);
    if report.totals.calls == 0 && time.blocked_ns == 0 {
        return "No calls were counted, so there is nothing to find.".into();
    }
    if !report.measured.blocked {
        return "Where the calls' time went was not measured, so nothing can be said about it."
            .into();
    }
    let busy = duration_text(time.busy_ns(), false);
    if time.busy_ns() < report.run.wall_ns / 100 {
        return format!(
            "Nothing stands out: all calls together took {busy} of a run of {run}, waiting for work aside. What else the run did was outside of system calls: a profiler of the program itself tells more."
        );
    }
    format!(
        "Nothing stands out: the {busy} that calls took, waiting for work aside, is spread over many small parts."
    )
}

/// The rows of `blocking` that are waits for something to do.
pub(crate) fn idle_rows(report: &Report) -> Vec<&BlockingRow> {
    Times::of(report).idle.rows
}

/// Whether a label stands for waits for something to do, however long.
pub(crate) fn label_is_idle(report: &Report, label: &str) -> bool {
    meaning(report, label).is_some_and(|known| known.kind == Kind::Idle)
}

/// The same of a row, as far as its label and its length tell.
pub(crate) fn row_is_idle(report: &Report, row: &BlockingRow) -> bool {
    let is_input = |known: &Meaning| known.kind == Kind::Input;
    label_is_idle(report, &row.label)
        || row.mean_ns >= INPUT_IDLE_NS && meaning(report, &row.label).is_some_and(is_input)
}

/// What the rules say of a label: those of whoever made the report, where they
/// have labels of their own, else the shipped ones. None for functions without
/// a rule.
pub fn meaning<'a>(report: &'a Report, label: &str) -> Option<&'a Meaning> {
    let own = report.labels.iter().find(|own| own.label == label);
    own.map(|own| &own.meaning)
        .or_else(|| Rules::builtin_meanings().get(label))
}

/// Whether a wait with this label is a loss, in a word.
pub fn class(report: &Report, label: &str) -> &'static str {
    match meaning(report, label).map(|known| known.kind) {
        Some(Kind::Idle) => "idle",
        Some(Kind::Input) => "input",
        Some(Kind::Loss) => "loss",
        Some(Kind::Tool) => "tool",
        None => "unknown",
    }
}

/// What a label waits for: "the inode lock".
pub(crate) fn waits_for<'a>(report: &'a Report, label: &str) -> Option<&'a str> {
    meaning(report, label).map(|m| m.what.as_str())
}

/// One cause: the rows whose labels stand for it.
#[derive(Default)]
struct Group<'a> {
    rows: Vec<&'a BlockingRow>,
    total_ns: u64,
    count: u64,
}

struct Times<'a> {
    losses: BTreeMap<String, Group<'a>>,
    idle: Group<'a>,
    blocked_ns: u64,
    lost_ns: u64,
    cpu_ns: u64,
    runq_ns: u64,
}

impl<'a> Times<'a> {
    fn of(report: &'a Report) -> Self {
        let mut losses: BTreeMap<String, Group> = BTreeMap::new();
        let mut idle = Group::default();
        let add = |group: &mut Group<'a>, row: &'a BlockingRow| {
            group.rows.push(row);
            group.total_ns = group.total_ns.saturating_add(row.total_ns);
            group.count = group.count.saturating_add(row.count);
        };
        for row in &report.blocking {
            match meaning(report, &row.label) {
                Some(r) if r.kind == Kind::Tool => {}
                Some(_) if row_is_idle(report, row) => add(&mut idle, row),
                Some(r) => add(losses.entry(r.group.clone()).or_default(), row),
                None => add(losses.entry(row.label.clone()).or_default(), row),
            }
        }
        let lost_ns: u64 = losses
            .values()
            .fold(0, |sum, g| sum.saturating_add(g.total_ns));
        Self {
            blocked_ns: lost_ns.saturating_add(idle.total_ns),
            lost_ns,
            losses,
            idle,
            // With what interrupts took of it, where that is known.
            cpu_ns: (report.totals.cpu_ns.unwrap_or(0))
                .saturating_add(report.totals.irq_ns.unwrap_or(0)),
            runq_ns: report.totals.runq_ns.unwrap_or(0),
        }
    }

    /// What calls and waits took, waiting for work aside.
    fn busy_ns(&self) -> u64 {
        self.lost_ns
            .saturating_add(self.cpu_ns)
            .saturating_add(self.runq_ns)
    }

    fn worth(&self, ns: u64) -> bool {
        ns >= TIME_MIN_NS && share(ns, self.busy_ns()) >= SHARE_MIN
    }
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        (part as f64 / whole as f64).min(1.0)
    }
}

pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

pub(crate) fn time(ns: u64) -> String {
    duration_text(ns, false)
}

pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count_text(n), if n == 1 { one } else { many })
}

/// "a", "a and b", "a, b and c".
pub(crate) fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Sums by a key, largest first.
fn sums<K: Ord + Clone, T>(
    rows: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
    value: impl Fn(&T) -> (u64, u64),
) -> Vec<(K, u64, u64)> {
    let mut map: BTreeMap<K, (u64, u64)> = BTreeMap::new();
    for row in rows {
        let (ns, count) = value(&row);
        let sum = map.entry(key(&row)).or_default();
        sum.0 = sum.0.saturating_add(ns);
        sum.1 = sum.1.saturating_add(count);
    }
    let mut list: Vec<_> = map.into_iter().map(|(k, (ns, n))| (k, ns, n)).collect();
    list.sort_by_key(|(_, ns, _)| std::cmp::Reverse(*ns));
    list
}

fn call_name(call: Option<&str>, abi: u32) -> String {
    match call {
        None => "the program's own code (page faults)".into(),
        Some(call) if abi == 32 => format!("{call} (32-bit)"),
        Some(call) => call.to_owned(),
    }
}

fn place(row: &BlockingRow) -> Option<String> {
    let function = row.function.as_ref()?;
    // How far into the function is for tables.
    Some(match row.file {
        Some(_) => row.place(),
        None => function.clone(),
    })
}

/// Somebody who holds or wakes, all their threads together; and the kernel's threads of each CPU.
struct Who {
    name: String,
    ns: u64,
    count: u64,
    interrupt: bool,
    watched: bool,
    /// Of a holder: where in its program it was, mostly.
    place: String,
}

fn culprits(report: &Report, group: &Group, holders: bool) -> (Vec<Who>, u64) {
    let rows: Vec<&CulpritRow> = report
        .culprits
        .iter()
        .filter(|c| (c.role != CulpritRole::Waker) == holders)
        .filter(|c| {
            group
                .rows
                .iter()
                .any(|b| b.label == c.label && b.call == c.call && b.abi == c.abi)
        })
        .collect();
    let all_ns = rows
        .iter()
        .fold(0u64, |sum, c| sum.saturating_add(c.total_ns));
    let families = Families::of(rows.iter().map(|c| c.comm.as_str()), []);
    let key = |c: &&CulpritRow| {
        let name = families.name(&c.comm);
        (name, c.culprit_call.clone(), c.pid == 0)
    };
    let list = sums(rows.iter().copied(), key, |c| (c.total_ns, c.count))
        .into_iter()
        .map(|(of, ns, count)| {
            let own = || rows.iter().filter(|c| key(c) == of);
            let places = sums(own(), |c| c.stack, |c| (c.total_ns, c.count));
            let place = match places.as_slice() {
                [(stack, ..), more @ ..] if stack.is_some() => {
                    let place = holder_place(report, of.1.as_deref(), *stack);
                    format!(
                        "{place}{}",
                        if more.is_empty() {
                            ""
                        } else {
                            " and elsewhere"
                        }
                    )
                }
                _ => String::new(),
            };
            let mut pids: Vec<u32> = own().map(|c| c.pid).collect();
            let (comm, call, interrupt) = of;
            pids.sort_unstable();
            pids.dedup();
            let mut name = if comm.is_empty() {
                String::new()
            } else {
                printable(&comm)
            };
            let watched = pids.iter().all(|p| {
                report.run.pids.contains(p)
                    || report.threads.iter().any(|t| t.pid == *p)
                    || report.lives.iter().any(|row| row.pid == *p)
            });
            if interrupt {
                name = "an interrupt".into();
            } else {
                let pid = match pids.as_slice() {
                    [pid] => format!("pid {pid}"),
                    many => format!("{} processes", many.len()),
                };
                name = if name.is_empty() {
                    pid
                } else {
                    format!("{name} ({pid})")
                };
                if let Some(call) = &call {
                    name.push_str(&format!(" in {call}"));
                }
            }
            Who {
                name,
                place,
                ns,
                count,
                interrupt,
                watched,
            }
        })
        .collect();
    (list, all_ns)
}

/// All calls of a function whose lines are not known are one.
pub(crate) fn caller_text(frame: &Frame) -> String {
    let text = match (&frame.function, &frame.module, frame.line) {
        (Some(function), Some(module), None) => format!("{function} ({module})"),
        _ => frame_text(frame),
    };
    printable(&text)
}

/// Where in the program these waits come from, when that was recorded:
/// (place, time, count), largest first.
fn call_sites(report: &Report, group: &Group) -> Vec<(String, u64, u64)> {
    let mut rows = Vec::new();
    for path in &report.paths {
        let Some(site) = path.site.and_then(|s| report.sites.get(s)) else {
            continue;
        };
        let ours = group
            .rows
            .iter()
            .any(|b| b.label == site.label && b.call == path.call && b.abi == path.abi);
        let stack = path.stack.and_then(|s| report.stacks.get(s));
        let frame = stack.and_then(|s| s.frames.get(s.site_frame));
        if let (true, Some(frame)) = (ours, frame) {
            rows.push((caller_text(frame), path.total_ns, path.count));
        }
    }
    sums(rows, |r| r.0.clone(), |r| (r.1, r.2))
}

fn blocked(report: &Report, times: &Times, rares: &[rare::Rare], list: &mut Vec<Candidate>) {
    let aside = if share(times.idle.total_ns, times.blocked_ns) >= 0.05 {
        "the blocked time (waiting for work aside)"
    } else {
        "the blocked time"
    };
    for (name, group) in &times.losses {
        // What is known better of nearly all of it is said instead.
        let is_told = |rare: &rare::Rare| {
            let rows = (group.rows.iter()).filter(|row| row.call.as_deref() == Some(&*rare.call));
            let ns = rows.fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
            rare.groups.contains(name) && share(ns, group.total_ns) >= TOLD_MIN
        };
        if !times.worth(group.total_ns) || rares.iter().any(is_told) {
            continue;
        }
        let labels = sums(
            group.rows.iter(),
            |r| r.label.clone(),
            |r| (r.total_ns, r.count),
        );
        let calls = sums(
            group.rows.iter(),
            |r| call_name(r.call.as_deref(), r.abi),
            |r| (r.total_ns, r.count),
        );
        let main: Vec<String> = calls
            .iter()
            .filter(|c| share(c.1, group.total_ns) >= 0.2)
            .take(3)
            .map(|c| c.0.clone())
            .collect();
        let whose = if main.is_empty() {
            plural(calls.len() as u64, "call", "different calls")
        } else {
            listed(&main)
        };
        let whats: Vec<String> = labels
            .iter()
            .filter(|l| share(l.1, group.total_ns) >= 0.2)
            .take(2)
            .filter_map(|l| waits_for(report, &l.0).map(printable))
            .collect();
        let known = !whats.is_empty();
        let (holders, held_ns) = culprits(report, group, true);
        let mut what = if known {
            format!("waiting for {}", listed(&whats))
        } else if name.starts_with('(') {
            "waiting at places that could not be told".into()
        } else {
            format!("waiting in {}", printable(name))
        };
        if let Some(first) = holders.first()
            && share(held_ns, group.total_ns) >= 0.5
            && share(first.ns, group.total_ns) >= 0.5
        {
            let mostly = if share(first.ns, group.total_ns) < 0.9 {
                "mostly "
            } else {
                ""
            };
            what.push_str(&format!(", {mostly}held by {}", first.name));
        }
        let share_lost = share(group.total_ns, times.lost_ns);
        // A sync is told by how long each takes: what its caller feels.
        let row = report
            .calls
            .iter()
            .find(|c| main.len() == 1 && main[0] == call_name(Some(&c.name), c.abi) && c.count > 0);
        let title = match row {
            Some(row) if name == "sync" => format!(
                "{}: {} each {what}: {} of {aside}",
                main[0],
                time(row.mean()),
                percent(share_lost)
            )
            .replacen(" waiting", ", mostly waiting", 1),
            _ => format!("{} of {aside} is {whose} {what}", percent(share_lost)),
        };

        let mut evidence = Vec::new();
        for (label, ns, count) in labels.iter().take(3) {
            let rows = || group.rows.iter().filter(|r| r.label == *label);
            let longest = rows().map(|r| r.max_ns).max().unwrap_or(0);
            let top = rows().max_by_key(|r| r.total_ns);
            let at = top.and_then(|r| place(r)).map_or(String::new(), |p| {
                format!(
                    ", {}{p}",
                    if rows().count() > 1 {
                        "most at "
                    } else {
                        "at "
                    }
                )
            });
            evidence.push(format!(
                "{label}: {} in {} (mean {}, longest {}){at}",
                time(*ns),
                plural(*count, "sleep", "sleeps"),
                time(ns / (*count).max(1)),
                time(longest)
            ));
        }
        for (call, ns, _) in calls.iter().take(3) {
            let Some(row) = report
                .calls
                .iter()
                .find(|c| call_name(Some(&c.name), c.abi) == *call)
            else {
                if calls.len() > 1 {
                    evidence.push(format!("{call}: {}", time(*ns)));
                }
                continue;
            };
            evidence.push(format!(
                "{call}: {}, {} each; {} of its {} wall time is spent here",
                plural(row.count + row.unfinished, "call", "calls"),
                time(row.mean()),
                percent(share(*ns, row.wall())),
                time(row.wall())
            ));
        }
        for who in holders.iter().take(2) {
            let own = if who.watched {
                " (one of the watched processes)"
            } else {
                ""
            };
            evidence.push(format!(
                "{}{own}{} held it when {} began: {}",
                who.name,
                who.place,
                plural(who.count, "of the waits", "of the waits"),
                time(who.ns)
            ));
        }
        let (wakers, _) = culprits(report, group, false);
        for who in wakers.iter().filter(|w| !w.interrupt).take(2) {
            if share(who.ns, group.total_ns) >= 0.1 {
                evidence.push(format!(
                    "{} ended {} waits: {}",
                    who.name,
                    count_text(who.count),
                    time(who.ns)
                ));
            }
        }
        for (site, ns, count) in call_sites(report, group).iter().take(2) {
            evidence.push(format!(
                "called from {site}: {} in {}",
                time(*ns),
                plural(*count, "sleep", "sleeps")
            ));
        }
        let most = (group.rows.iter().filter_map(|r| r.waiters_max))
            .max()
            .unwrap_or(0);
        if most > 0 {
            evidence.push(format!(
                "up to {} waited there at the same time",
                plural(most, "other thread", "other threads")
            ));
        }
        if name == "read" {
            let faults = report.totals.major_faults.unwrap_or(0);
            if faults > 0 {
                evidence.push(format!(
                    "{} inside calls needed the disk",
                    plural(faults, "page fault", "page faults")
                ));
            }
        }
        // Advice on a lock is for those who take it: where that is somebody else, he is the
        // one to look at.
        let stranger = (holders.first())
            .filter(|who| !who.watched && !who.interrupt)
            .filter(|who| share(who.ns, group.total_ns) >= 0.5);
        let text = match labels.first().and_then(|l| meaning(report, &l.0)) {
            Some(_) if known && stranger.is_some() => format!(
                "It is held from outside: {} is none of the watched processes. Do what it does less often, or \
                 at another time.",
                stranger.map_or("", |who| &who.name)
            ),
            Some(r) if known => printable(&r.advice),
            _ if name.starts_with('(') => "The kernel stack could not be taken in time, so the cause is not known; the notes say how often that happened.".into(),
            _ => "No rule names this place, so what it waits for is not known; a rule in /etc/debox/labels.toml can give it a name.".into(),
        };
        list.push(Candidate {
            explained_ns: group.total_ns,
            finding: Finding {
                title,
                text,
                evidence,
                share: share_lost,
            },
        });
    }
}

fn run_queue(report: &Report, times: &Times, list: &mut Vec<Candidate>) {
    let ns = times.runq_ns;
    let part = share(ns, times.busy_ns());
    // A part of little is little: of the lives of threads that waited so it has to be one, too.
    let lives_ns = (report.lives.iter()).fold(0u64, |sum, row| {
        sum.saturating_add(row.time.life_ns.saturating_sub(row.time.rest_ns))
    });
    let of_lives = lives_ns == 0 || share(ns, lives_ns) >= RUNQ_SHARE_MIN;
    if !times.worth(ns) || part < RUNQ_SHARE_MIN || !of_lives {
        return;
    }
    let mut rows: Vec<&CallRow> = report.calls.iter().collect();
    rows.sort_by_key(|r| std::cmp::Reverse(r.runq_ns.unwrap_or(0)));
    let mut evidence = vec![format!(
        "in calls: {} waiting for a CPU, {} blocked (waiting for work aside), {} on a CPU",
        time(ns),
        time(times.lost_ns),
        time(times.cpu_ns)
    )];
    for row in rows.iter().take(2) {
        let waited = row.runq_ns.unwrap_or(0);
        if waited > 0 {
            evidence.push(format!(
                "{}: {} of its {} wall time",
                call_name(Some(&row.name), row.abi),
                time(waited),
                time(row.wall())
            ));
        }
    }
    if let Some(switches) = report.totals.nivcsw.filter(|n| *n > 0) {
        evidence.push(format!(
            "{} away from a thread that would have run on",
            plural(switches, "switch", "switches")
        ));
    }
    evidence.push(format!("CPUs of the machine: {}", report.run.cpus));
    list.push(Candidate {
        explained_ns: ns,
        finding: Finding {
            title: format!(
                "{} of the time in calls (waiting for work aside) is waiting for a CPU: not blocking, but too few CPUs for the threads that want to run",
                percent(part)
            ),
            text: "The threads were ready to run and no CPU was free. Fewer threads that compute at once, more CPUs, a higher CPU limit of the control group, or less other load on the machine would help; making calls block less would not.".into(),
            evidence,
            share: part,
        },
    });
}

fn on_cpu(
    report: &Report,
    times: &Times,
    told: &dyn Fn(&CallRow) -> bool,
    list: &mut Vec<Candidate>,
) {
    for row in report.calls.iter().filter(|row| !told(row)) {
        let cpu = row.cpu_ns.unwrap_or(0);
        let part = share(cpu, times.busy_ns());
        // What it waits for besides is a finding of its own.
        if !times.worth(cpu) || part < CPU_SHARE_MIN {
            continue;
        }
        let name = call_name(Some(&row.name), row.abi);
        let calls = row.count + row.unfinished;
        let each = cpu / calls.max(1);
        let mut evidence = vec![format!(
            "{name}: {}, {} on the CPU each, {} in all ({} of its wall time)",
            plural(calls, "call", "calls"),
            time(each),
            time(cpu),
            percent(share(cpu, row.wall()))
        )];
        if let Some(faults) = row.minor_faults.filter(|n| *n > calls / 2 && *n > 0) {
            evidence.push(format!(
                "{} inside it: part of that time is filling in pages",
                plural(faults, "page fault", "page faults")
            ));
        }
        let mut sites: Vec<&CallSiteRow> = report
            .call_sites
            .iter()
            .filter(|s| s.call == row.name)
            .collect();
        sites.sort_by_key(|s| std::cmp::Reverse(s.cpu_ns.unwrap_or(s.wall())));
        for site in sites.iter().take(2) {
            evidence.push(format!(
                "called from {}: {}, {}",
                printable(&site.place),
                plural(site.count, "call", "calls"),
                time(site.cpu_ns.unwrap_or(site.wall()))
            ));
        }
        let (means, text) = if each < 2_000 {
            (
                "many short calls",
                "The single call is cheap, there are just very many. Do more in each (larger buffers, vectored or batched calls), or keep the answer instead of asking again.",
            )
        } else {
            (
                "work inside the kernel, not waiting",
                "The call does not wait, the kernel works that long for it: copying, searching, zeroing. Do it less often or on smaller objects, or find a call that does less; a trace of the kernel's functions shows what it works on.",
            )
        };
        list.push(Candidate {
            explained_ns: cpu,
            finding: Finding {
                title: format!(
                    "{} of the time in calls (waiting for work aside) is {name} on the CPU: {means}",
                    percent(part)
                ),
                text: text.into(),
                evidence,
                share: part,
            },
        });
    }
}

fn failing(
    report: &Report,
    times: &Times,
    told: &dyn Fn(&CallRow) -> bool,
    list: &mut Vec<Candidate>,
) {
    for row in report.calls.iter().filter(|row| !told(row)) {
        let errors = row.errors.saturating_sub(row.restarted);
        let part = share(errors, row.count);
        if errors < ERRORS_MIN || part < ERRORS_SHARE_MIN {
            continue;
        }
        // How long the failing ones took is not counted apart; a call that
        // fails seldom waits, so its part of the time on the CPU stands.
        let ns = (row.cpu_ns.unwrap_or(0) as f64 * part) as u64;
        if !times.worth(ns) {
            continue;
        }
        let name = call_name(Some(&row.name), row.abi);
        let seconds = report.run.wall_ns as f64 / 1e9;
        let mut evidence = vec![format!(
            "{name}: {} of {} returned an error, {:.0} a second",
            count_text(errors),
            plural(row.count, "call", "calls"),
            errors as f64 / seconds.max(1e-9)
        )];
        let mut seen: BTreeMap<i64, u64> = BTreeMap::new();
        for call in &report.slow_calls {
            if call.call == row.name && call.abi == row.abi && call.retval < 0 {
                *seen.entry(call.retval).or_default() += 1;
            }
        }
        if let Some((errno, n)) = seen.iter().max_by_key(|(_, n)| **n) {
            evidence.push(format!(
                "among the single calls recorded, {} is the most frequent ({n})",
                result_text(*errno)
            ));
        }
        list.push(Candidate {
            explained_ns: ns,
            finding: Finding {
                title: format!(
                    "{} of the {} {name} calls fail",
                    percent(part),
                    count_text(row.count)
                ),
                text: "Calls that fail again and again are polling in disguise (EAGAIN), searches along a path (ENOENT), or a defect. Wait for readiness before the call, remember what is not there, or look at the errors one by one.".into(),
                evidence,
                share: share(ns, times.busy_ns()),
            },
        });
    }
}

fn growing(report: &Report, times: &Times, list: &mut Vec<Candidate>) {
    for trend in &report.trends {
        if trend.to_ns <= trend.from_ns {
            continue;
        }
        let Some(row) = report
            .calls
            .iter()
            .find(|c| c.name == trend.call && c.abi == trend.abi)
        else {
            continue;
        };
        // What the calls would have saved at the speed of the beginning.
        let saved = row
            .wall()
            .saturating_sub(trend.from_ns.saturating_mul(row.count));
        let part = share(saved, times.busy_ns());
        let own = share(saved, row.wall());
        if saved < TIME_MIN_NS || own < 0.2 {
            continue;
        }
        let name = call_name(Some(&trend.call), trend.abi);
        let mut evidence = vec![
            format!(
                "{name}: {} at the start, {} at the end, over {}",
                time(trend.from_ns),
                time(trend.to_ns),
                plural(trend.calls, "call", "calls")
            ),
            format!(
                "at its first speed it would have taken {} less ({} of its time)",
                time(saved),
                percent(own)
            ),
            if trend.p_value < 1e-4 {
                "a trend like this by chance: less than 1 in 10,000".into()
            } else {
                format!(
                    "a trend like this by chance: {:.2} %",
                    trend.p_value * 100.0
                )
            },
        ];
        let with = if trend.grows_with.is_empty() {
            String::new()
        } else {
            evidence.push(format!(
                "what grew as well: {}",
                trend.grows_with.join(", ")
            ));
            format!(", along with {}", listed(&trend.grows_with))
        };
        let text = match trend.call.as_str() {
            "fork" | "vfork" | "clone" | "clone3" => {
                "A fork copies the table of open files and all mappings, so it grows with them. Fork from a small helper process, or use posix_spawn(3) or vfork(2)."
            }
            "mmap" | "munmap" | "mprotect" | "mremap" | "madvise" => {
                "Changes of the address space get dearer the more mappings there are. Unmap what is not needed, map larger pieces, or read files instead of mapping them."
            }
            "select" | "pselect6" | "poll" | "ppoll" => {
                "These calls look at every descriptor each time. epoll(7) looks at the ready ones only."
            }
            _ => {
                "The same call gets dearer as the run goes on: something that it walks through grows. The chart of the call against invocation number shows when."
            }
        };
        list.push(Candidate {
            explained_ns: saved,
            finding: Finding {
                title: format!(
                    "{name} grows from {} to {} a call as the run goes on{with}",
                    time(trend.from_ns),
                    time(trend.to_ns)
                ),
                text: text.into(),
                evidence,
                share: part,
            },
        });
    }
}

/// Where the rest of the blocked time is, so that nobody looks for it.
fn idle(report: &Report, times: &Times) -> Option<Finding> {
    let part = share(times.idle.total_ns, times.blocked_ns);
    if part < 0.5 || times.idle.total_ns < TIME_MIN_NS {
        return None;
    }
    let labels = sums(
        times.idle.rows.iter(),
        |r| (r.label.clone(), call_name(r.call.as_deref(), r.abi)),
        |r| (r.total_ns, r.count),
    );
    let main: Vec<String> = labels
        .iter()
        .filter(|l| share(l.1, times.idle.total_ns) >= 0.2)
        .take(2)
        .map(|((label, call), ..)| {
            let what = waits_for(report, label).map_or_else(String::new, printable);
            format!("{call} waiting for {what}")
        })
        .collect();
    let whose = if main.is_empty() {
        "calls that wait for something to do".into()
    } else {
        listed(&main)
    };
    let evidence = labels
        .iter()
        .take(4)
        .map(|((label, call), ns, count)| {
            format!(
                "{label} in {call}: {} in {} (mean {})",
                time(*ns),
                plural(*count, "sleep", "sleeps"),
                time(ns / (*count).max(1))
            )
        })
        .collect();
    Some(Finding {
        title: format!(
            "{} of the blocked time is no loss: {whose}",
            percent(part)
        ),
        text: "Threads that wait for something to do are not slow. If there was work for them, whoever should have given it to them is the one to look at.".into(),
        evidence,
        share: part,
    })
}
