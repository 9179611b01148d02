// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a period of one host say, in rows that many hosts can be compared by?
//!
//! Four tables (docs/fleet.md): `periods` who was watched when, and why it took so long;
//! `waits` time asleep by whose it was, on what, in which call and what that ended in;
//! `threads` where the time of threads went; `calls`, where calls were counted. There are
//! not more rows than was said: the smallest are together in "other", by class and root, so
//! that sums stay what they are.

use debox_cli::cgroup;
use debox_report::{
    Capture, ChainLink, LifeRow, LifeTime, NoteKind, Report, label_class, links_of,
};
use std::collections::{BTreeMap, HashMap};

pub const OTHER: &str = "other";
/// A program's unit, where its threads are in several: waits are told apart by program alone.
pub const SEVERAL: &str = "(several)";
/// More letters of a name than this are a mistake, or somebody's wish to fill a disk.
const NAME_MOST: usize = 64;
/// Of one that is longer so many stay, and
const NAME_KEPT: usize = 55;
/// what stands before the rest of a path.
const CUT: &str = "...";

/// Whose account that is, and of which time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Period {
    pub host: String,
    /// The kernel's number of this boot (/proc/sys/kernel/random/boot_id).
    pub boot: String,
    /// Nanoseconds since 1970.
    pub begin_ns: u64,
    pub end_ns: u64,
    /// What the host's owner calls what it runs; hosts are compared by it.
    pub release: String,
    /// Of the agent's file.
    pub policy: String,
}

/// How many rows a period may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of `waits`.
    pub waits: usize,
    /// Of `threads`.
    pub programs: usize,
    /// What is shorter in a period of a minute is "other"; in proportion in others.
    pub least_ns: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            waits: 2_000,
            programs: 500,
            least_ns: 1_000_000,
        }
    }
}

/// By whom it was waited, for what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wait {
    pub unit: String,
    pub container: String,
    /// Of Kubernetes: its uid.
    pub pod: String,
    pub program: String,
    pub call: String,
    pub label: String,
    pub class: &'static str,
    pub root: &'static str,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSum {
    /// Parts of sleeps: one that several things held up counts with each of them.
    pub sleeps: u64,
    pub blocked_ns: u64,
    pub longest_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Program {
    pub unit: String,
    pub container: String,
    pub pod: String,
    pub program: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramSum {
    /// That began in the period, or came to the name.
    pub threads: u64,
    pub time: LifeTime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSum {
    pub calls: u64,
    pub errors: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub run_queue_ns: u64,
    pub longest_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeriodFacts {
    pub period: Period,
    pub debox_version: String,
    pub kernel: String,
    pub capture: &'static str,
    pub cpus: u64,
    pub threads_started: u64,
    pub sleeps: u64,
    pub blocked_ns: u64,
    pub throttled_ns: u64,
    /// Sentences, a line each.
    pub verdict: String,
    /// What the rows lack: "sites_dropped=3 threads_left=1".
    pub incomplete: String,
}

/// All that is told of one period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub facts: PeriodFacts,
    pub waits: Vec<(Wait, WaitSum)>,
    pub threads: Vec<(Program, ProgramSum)>,
    pub calls: Vec<(String, CallSum)>,
}

/// The same text has the same one, on all hosts.
fn hash(text: &str) -> u32 {
    // FNV-1a
    let add = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, add)
}

/// As it stands in a table: no controls, and not without end. Two that differ do so here as well.
pub fn name(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    if plain.chars().count() <= NAME_MOST {
        return plain;
    }
    let kept: String = plain.chars().take(NAME_KEPT).collect();
    format!("{kept}~{:08x}", hash(&plain))
}

/// The same of a control group's path: those below one group differ at its end, which stays.
pub fn path_name(path: &str) -> String {
    let plain: String = path.chars().filter(|c| !c.is_control()).collect();
    let count = plain.chars().count();
    if count <= NAME_MOST {
        return plain;
    }
    let rest = plain.chars().skip(count + CUT.len() - NAME_MOST);
    CUT.chars().chain(rest).collect()
}

fn capture_name(capture: Capture) -> &'static str {
    match capture {
        Capture::Boundary => "boundary",
        Capture::Wrap => "wrap",
        Capture::Splice => "splice",
        Capture::Sleeps => "sleeps",
    }
}

/// As JSON names it.
pub fn note_name(kind: NoteKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => OTHER.into(),
    }
}

/// Whose a program is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    unit: String,
    container: String,
    pod: String,
}

fn place_of(row: &LifeRow) -> Place {
    let group = row.cgroup.as_deref().unwrap_or_default();
    Place {
        unit: row.unit.as_deref().map_or_else(String::new, name),
        container: cgroup::container(group).unwrap_or_default().to_owned(),
        pod: cgroup::pod(group).unwrap_or_default(),
    }
}

fn program_of(row: &LifeRow) -> Program {
    let Place {
        unit,
        container,
        pod,
    } = place_of(row);
    Program {
        unit,
        container,
        pod,
        program: name(&row.comm),
    }
}

/// Where programs of a name are.
fn places(report: &Report) -> HashMap<&str, Place> {
    let mut places: HashMap<&str, Place> = HashMap::new();
    for row in &report.lives {
        let is = place_of(row);
        let place = places.entry(&row.comm).or_insert_with(|| is.clone());
        for (is, place) in [
            (is.unit, &mut place.unit),
            (is.container, &mut place.container),
            (is.pod, &mut place.pod),
        ] {
            if *place != is {
                *place = SEVERAL.into();
            }
        }
    }
    places
}

fn wait_of(report: &Report, places: &HashMap<&str, Place>, first: &ChainLink) -> Wait {
    let site = first.site.and_then(|site| report.sites.get(site));
    let label = site.map_or_else(String::new, |site| name(&site.label));
    let place = places.get(first.comm.as_str()).cloned().unwrap_or_default();
    Wait {
        unit: place.unit,
        container: place.container,
        pod: place.pod,
        program: name(&first.comm),
        call: first.call.as_deref().map_or_else(String::new, name),
        class: match first.rests {
            true => "rest",
            false => label_class(report, &label),
        },
        label,
        root: "",
    }
}

/// Time asleep by unit, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitWaits {
    /// On what (label), and its class.
    pub labels: BTreeMap<(String, String, &'static str), u64>,
    /// What it ended in (root), and the class of what was waited for.
    pub roots: BTreeMap<(String, &'static str, &'static str), u64>,
}

pub fn unit_waits(report: &Report) -> UnitWaits {
    let all = Bounds {
        waits: usize::MAX,
        ..Bounds::default()
    };
    let mut sums = UnitWaits::default();
    let add = |of: &mut u64, more: u64| *of = of.saturating_add(more);
    for (wait, sum) in waits(report, &all, 0) {
        let root = (wait.unit.clone(), wait.root, wait.class);
        add(sums.roots.entry(root).or_default(), sum.blocked_ns);
        let label = (wait.unit, wait.label, wait.class);
        add(sums.labels.entry(label).or_default(), sum.blocked_ns);
    }
    sums
}

fn waits(report: &Report, bounds: &Bounds, least_ns: u64) -> Vec<(Wait, WaitSum)> {
    let places = places(report);
    let mut sums: BTreeMap<Wait, WaitSum> = BTreeMap::new();
    let mut add = |wait: Wait, more: WaitSum| {
        let sum = sums.entry(wait).or_default();
        sum.sleeps = sum.sleeps.saturating_add(more.sleeps);
        sum.blocked_ns = sum.blocked_ns.saturating_add(more.blocked_ns);
        sum.longest_ns = sum.longest_ns.max(more.longest_ns);
    };
    for row in &report.chains {
        let links = links_of(report, row.first);
        let (Some(first), Some(last)) = (links.first(), links.last()) else {
            continue;
        };
        let wait = Wait {
            root: last.kind.root_name(),
            ..wait_of(report, &places, first)
        };
        add(
            wait,
            WaitSum {
                sleeps: row.count,
                blocked_ns: row.total_ns,
                longest_ns: row.max_ns,
            },
        );
    }
    if report.chains.is_empty() {
        // Without chains nobody knows whose they were, nor where they ended.
        for row in &report.blocking {
            let wait = Wait {
                call: row.call.as_deref().map_or_else(String::new, name),
                label: name(&row.label),
                class: label_class(report, &row.label),
                root: "unknown",
                ..Wait::default()
            };
            add(
                wait,
                WaitSum {
                    sleeps: row.count,
                    blocked_ns: row.total_ns,
                    longest_ns: row.max_ns,
                },
            );
        }
    }
    let other = |wait: &Wait| Wait {
        unit: OTHER.into(),
        container: OTHER.into(),
        pod: OTHER.into(),
        program: OTHER.into(),
        call: OTHER.into(),
        label: OTHER.into(),
        ..wait.clone()
    };
    bounded(
        sums,
        bounds.waits,
        |sum| (sum.blocked_ns, sum.blocked_ns >= least_ns),
        other,
        |sum, more| {
            sum.sleeps = sum.sleeps.saturating_add(more.sleeps);
            sum.blocked_ns = sum.blocked_ns.saturating_add(more.blocked_ns);
            sum.longest_ns = sum.longest_ns.max(more.longest_ns);
        },
    )
}

/// The `most` largest that are large enough as they are, the rest as `other` calls them.
fn bounded<K: Ord + Clone, V: Copy>(
    rows: BTreeMap<K, V>,
    most: usize,
    size: impl Fn(&V) -> (u64, bool),
    other: impl Fn(&K) -> K,
    add: impl Fn(&mut V, &V),
) -> Vec<(K, V)> {
    let mut rows: Vec<(K, V)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, sum)| std::cmp::Reverse(size(sum).0));
    let stay = rows
        .iter()
        .take(most)
        .take_while(|(_, sum)| size(sum).1)
        .count();
    let mut kept: BTreeMap<K, V> = BTreeMap::new();
    for (at, (key, sum)) in rows.into_iter().enumerate() {
        let key = if at < stay { key } else { other(&key) };
        kept.entry(key)
            .and_modify(|is| add(is, &sum))
            .or_insert(sum);
    }
    kept.into_iter().collect()
}

fn threads(report: &Report, bounds: &Bounds, least_ns: u64) -> Vec<(Program, ProgramSum)> {
    let add = |sum: &mut ProgramSum, more: &ProgramSum| {
        sum.threads = sum.threads.saturating_add(more.threads);
        sum.time.add(&more.time);
    };
    let mut sums: BTreeMap<Program, ProgramSum> = BTreeMap::new();
    for row in &report.lives {
        let more = ProgramSum {
            threads: row.threads.into(),
            time: row.time,
        };
        add(sums.entry(program_of(row)).or_default(), &more);
    }
    let other = |_: &Program| Program {
        unit: OTHER.into(),
        container: OTHER.into(),
        pod: OTHER.into(),
        program: OTHER.into(),
    };
    // Who only rests is seen all the same: his threads are there.
    let size = |sum: &ProgramSum| (sum.time.life_ns, sum.time.life_ns >= least_ns);
    bounded(sums, bounds.programs, size, other, add)
}

fn calls(report: &Report) -> Vec<(String, CallSum)> {
    let mut sums: BTreeMap<String, CallSum> = BTreeMap::new();
    for row in report.calls.iter().filter(|_| report.measured.calls) {
        let sum = sums.entry(name(&row.name)).or_default();
        sum.calls = sum.calls.saturating_add(row.count);
        sum.errors = sum.errors.saturating_add(row.errors);
        sum.wall_ns = sum.wall_ns.saturating_add(row.wall());
        sum.blocked_ns = sum.blocked_ns.saturating_add(row.blocked_ns.unwrap_or(0));
        sum.run_queue_ns = sum.run_queue_ns.saturating_add(row.runq_ns.unwrap_or(0));
        sum.longest_ns = sum.longest_ns.max(row.max_ns.unwrap_or(0));
    }
    sums.into_iter().collect()
}

/// What the report of one period says.
pub fn rows(report: &Report, period: &Period, bounds: &Bounds) -> Rows {
    let length_ns = period.end_ns.saturating_sub(period.begin_ns);
    let least_ns = (u128::from(bounds.least_ns) * u128::from(length_ns) / 60_000_000_000) as u64;
    let limits = report.machine.iter().flat_map(|machine| &machine.limits);
    let incomplete: Vec<String> = report
        .notes
        .iter()
        .filter(|note| note.count > 0)
        .map(|note| format!("{}={}", note_name(note.kind), note.count))
        .collect();
    let lines = |text: &String| debox_output::printable(text);
    Rows {
        facts: PeriodFacts {
            period: Period {
                host: name(&period.host),
                boot: name(&period.boot),
                release: name(&period.release),
                ..period.clone()
            },
            debox_version: report.debox_version.clone(),
            kernel: report.run.kernel.as_deref().map_or_else(String::new, name),
            capture: capture_name(report.run.capture),
            cpus: report.run.cpus.into(),
            threads_started: report.totals.threads_started,
            sleeps: report.totals.sleeps,
            blocked_ns: report.totals.sleeps_ns,
            throttled_ns: limits.fold(0, |sum, limit| limit.throttled_ns.saturating_add(sum)),
            verdict: report
                .verdict
                .iter()
                .map(lines)
                .collect::<Vec<_>>()
                .join("\n"),
            incomplete: incomplete.join(" "),
        },
        waits: waits(report, bounds, least_ns),
        threads: threads(report, bounds, least_ns),
        calls: calls(report),
    }
}

impl Rows {
    pub fn count(&self) -> usize {
        1 + self.waits.len() + self.threads.len() + self.calls.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_report::ChainKind;
    use debox_report::{ChainRow, Site};

    const MINUTE: u64 = 60_000_000_000;

    fn period() -> Period {
        Period {
            host: "h".into(),
            boot: "b".into(),
            begin_ns: 0,
            end_ns: MINUTE,
            ..Period::default()
        }
    }

    fn site(label: &str) -> Site {
        serde_json::from_value(serde_json::json!({
            "label": label, "unlabelled": false, "function": null, "offset": null,
            "file": null, "line": null, "frames": []
        }))
        .unwrap()
    }

    fn sleep(comm: &str, site: usize, parent: usize) -> ChainLink {
        ChainLink {
            comm: comm.into(),
            call: Some("fsync".into()),
            site: Some(site),
            parent: Some(parent),
            ..ChainLink::of(ChainKind::Sleep)
        }
    }

    fn life(comm: &str, unit: &str, life_ns: u64) -> LifeRow {
        LifeRow {
            comm: comm.into(),
            unit: Some(unit.into()),
            cgroup: Some(format!("/system.slice/{unit}")),
            threads: 1,
            time: LifeTime {
                life_ns,
                runq_ns: life_ns,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        }
    }

    /// Waits of "a" and of "b" for a disk and a timer.
    fn report() -> Report {
        let row = |first, count, total_ns| ChainRow {
            first,
            count,
            total_ns,
            max_ns: total_ns / count,
        };
        Report {
            sites: vec![site("device-flush"), site("nanosleep")],
            chain_links: vec![
                ChainLink::of(ChainKind::Disk),
                ChainLink::of(ChainKind::Timer),
                sleep("a", 0, 0),
                sleep("b", 0, 0),
                sleep("b", 1, 1),
            ],
            chains: vec![
                row(2, 10, 500_000_000),
                row(3, 4, 2_000_000),
                row(4, 1, 300_000),
            ],
            lives: vec![
                life("a", "one.service", MINUTE),
                life("b", "one.service", MINUTE / 2),
                life("b", "two.service", MINUTE / 2),
            ],
            ..Report::default()
        }
    }

    fn total(rows: &Rows) -> u64 {
        rows.waits.iter().map(|(_, sum)| sum.blocked_ns).sum()
    }

    #[test]
    fn waits_are_told_by_whose_they_are_on_what_and_where_they_end() {
        let rows = rows(
            &report(),
            &period(),
            &Bounds {
                least_ns: 0,
                ..Bounds::default()
            },
        );
        let told: Vec<_> = rows
            .waits
            .iter()
            .map(|(w, s)| {
                let of = (w.unit.as_str(), w.program.as_str(), w.label.as_str());
                (of, w.root, s.sleeps, s.blocked_ns)
            })
            .collect();
        assert_eq!(
            told,
            [
                (("(several)", "b", "device-flush"), "disk", 4, 2_000_000),
                (("(several)", "b", "nanosleep"), "timer", 1, 300_000),
                (
                    ("one.service", "a", "device-flush"),
                    "disk",
                    10,
                    500_000_000
                ),
            ]
        );
        assert_eq!(rows.waits[1].0.class, "idle");
        let waits = unit_waits(&report());
        let roots: Vec<_> = (waits.roots.iter())
            .map(|((unit, root, _), ns)| (unit.as_str(), *root, *ns))
            .collect();
        assert_eq!(
            roots,
            [
                ("(several)", "disk", 2_000_000),
                ("(several)", "timer", 300_000),
                ("one.service", "disk", 500_000_000),
            ]
        );
        assert_eq!(
            waits.labels.values().sum::<u64>(),
            waits.roots.values().sum::<u64>()
        );
        assert_eq!(rows.threads.len(), 3);
    }

    #[test]
    fn what_is_too_much_or_too_little_is_other_and_nothing_is_lost() {
        for (bounds, kept) in [
            (
                Bounds {
                    waits: 1,
                    programs: 1,
                    least_ns: 0,
                },
                1,
            ),
            (Bounds::default(), 2),
        ] {
            let rows = rows(&report(), &period(), &bounds);
            let others = rows.waits.iter().filter(|(w, _)| w.program == OTHER);
            assert_eq!(rows.waits.len() - others.count(), kept, "{bounds:?}");
            assert_eq!(total(&rows), 502_300_000, "{bounds:?}");
            // By root as well.
            let timer = rows.waits.iter().filter(|(w, _)| w.root == "timer");
            assert_eq!(timer.map(|(_, s)| s.blocked_ns).sum::<u64>(), 300_000);
            let life: u64 = rows.threads.iter().map(|(_, s)| s.time.life_ns).sum();
            assert_eq!(life, 2 * MINUTE, "{bounds:?}");
        }
    }

    #[test]
    fn without_chains_the_places_are_left() {
        let mut report = report();
        report.chains.clear();
        report.blocking = serde_json::from_value(serde_json::json!([{
            "label": "device-flush", "unlabelled": false, "call": "fsync", "abi": 64,
            "function": null, "offset": null, "file": null, "line": null, "count": 3,
            "total_ns": 9_000_000, "mean_ns": 3_000_000, "max_ns": 4_000_000, "share": 1.0,
            "waiters_mean": null, "waiters_max": null
        }]))
        .unwrap();
        let rows = rows(&report, &period(), &Bounds::default());
        assert_eq!((rows.waits.len(), total(&rows)), (1, 9_000_000));
        assert_eq!(rows.waits[0].0.root, "unknown");
    }

    #[test]
    fn rows_have_the_container_and_the_pod_of_their_program() {
        const ID: &str = "4f0a1c2b3d4e5f60718293a4b5c6d7e8f9000112233445566778899aabbccdde";
        let group = |pod: &str| {
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8d3c5a1e_0c5f_4f3b_9a53_{pod}.slice/\
                 cri-containerd-{ID}.scope"
            )
        };
        let mut report = report();
        report.lives[0].cgroup = Some(group("0a5b7a1c2d3e"));
        report.lives[1].cgroup = Some(group("0a5b7a1c2d3e"));
        report.lives[2].cgroup = Some(group("0a5b7a1c2d3f"));
        let all = Bounds {
            least_ns: 0,
            ..Bounds::default()
        };
        let rows = rows(&report, &period(), &all);
        let pod = "8d3c5a1e-0c5f-4f3b-9a53-0a5b7a1c2d3e";
        let of = |program: &str| {
            let wait = rows.waits.iter().find(|(wait, _)| wait.program == program);
            let (wait, _) = wait.unwrap();
            (wait.container.as_str(), wait.pod.as_str())
        };
        assert_eq!(of("a"), (&ID[..12], pod));
        assert_eq!(of("b"), (&ID[..12], SEVERAL));
        let threads = rows
            .threads
            .iter()
            .filter(|(program, _)| program.pod == pod);
        assert_eq!(threads.count(), 2);
    }

    #[test]
    fn names_that_are_too_long_stay_apart() {
        let slice = |pod: &str| format!("/kubepods.slice/kubepods-burstable.slice/{pod}.slice");
        let pods = [
            "8d3c5a1e_0c5f_4f3b_9a53_0a5b7a1c2d3e",
            "8d3c5a1e_0c5f_4f3b_9a53_0a5b7a1c2d3f",
        ];
        let groups = pods.map(|pod| slice(&format!("kubepods-burstable-pod{pod}")));
        for (at, group) in groups.iter().enumerate() {
            let path = path_name(group);
            assert_eq!(path.chars().count(), NAME_MOST);
            assert!(path.starts_with("...") && path.contains(pods[at]), "{path}");
            let name = name(group);
            assert_eq!(name.chars().count(), NAME_MOST);
            assert!(
                name.starts_with("/kubepods.slice/kubepods-burstable.slice/"),
                "{name}"
            );
        }
        assert_ne!(path_name(&groups[0]), path_name(&groups[1]));
        assert_ne!(name(&groups[0]), name(&groups[1]));
        let just = "\u{e9}".repeat(NAME_MOST);
        assert_eq!((name(&just), path_name(&just)), (just.clone(), just));
    }

    #[test]
    fn hostile_names_have_an_end_and_no_controls() {
        let mut report = report();
        report.lives[0].comm = "x\n\u{1b}[2J".repeat(100);
        report.verdict = vec!["one\nof \u{1b}[2J".into(), "two".into()];
        let rows = rows(&report, &period(), &Bounds::default());
        for (program, _) in &rows.threads {
            assert!(program.program.chars().count() <= NAME_MOST);
            assert!(!program.program.chars().any(char::is_control));
        }
        assert_eq!(rows.facts.verdict, "one\\nof \\u{1b}[2J\ntwo");
    }
}
