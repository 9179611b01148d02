// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the machine's time going into, now?
//!
//! Made of a report of an interval ([`debox_report::since`]) or of all the time. The same goes
//! into the page and into `/api/live.json`.

use debox_report::{Report, label_class, life_groups, link_text, links_of, waits};
use serde::Serialize;
use std::collections::BTreeMap;

pub const SCHEMA: &str = "debox-live";
pub const SCHEMA_VERSION: u32 = 1;
/// Of each table.
const ROWS_MOST: usize = 200;

/// The threads of one name. Times are of all of them together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Program {
    pub name: String,
    /// Unit, or else control group, where all of them are in one.
    pub unit: Option<String>,
    pub threads: u64,
    pub cpu_ns: u64,
    /// Asleep where something held them up,
    pub blocked_ns: u64,
    /// and with nothing to do.
    pub resting_ns: u64,
    pub run_queue_ns: u64,
    pub stopped_ns: u64,
}

impl Program {
    pub fn busy_ns(&self) -> u64 {
        [self.cpu_ns, self.blocked_ns, self.run_queue_ns]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Sleeps on one thing in one call.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Wait {
    pub label: String,
    /// None: outside of calls.
    pub call: Option<String>,
    pub class: &'static str,
    pub count: u64,
    pub total_ns: u64,
    /// Since the watch began.
    pub longest_ns: u64,
    /// Where in the kernel, most of the time.
    pub place: Option<String>,
    /// And how long there.
    #[serde(skip)]
    pub place_ns: u64,
}

/// What the waiting of those ended in who were held up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Root {
    pub root: &'static str,
    pub text: String,
    pub total_ns: u64,
}

/// With boundary or splice capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Call {
    pub call: String,
    pub count: u64,
    pub errors: u64,
    pub total_ns: u64,
    pub blocked_ns: Option<u64>,
    pub cpu_ns: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// What everything below is of.
    pub span_ns: u64,
    pub verdict: Vec<String>,
    pub programs: Vec<Program>,
    pub waits: Vec<Wait>,
    pub roots: Vec<Root>,
    pub calls: Vec<Call>,
}

fn programs(report: &Report) -> Vec<Program> {
    let groups = life_groups(&report.lives);
    let mut rows: Vec<Program> = groups
        .into_iter()
        .map(|group| {
            let time = &group.time;
            let asleep_ns = time.blocked_ns.saturating_add(time.outside_ns);
            Program {
                threads: group.threads,
                cpu_ns: time.cpu_ns(),
                blocked_ns: asleep_ns.saturating_sub(time.rest_ns),
                resting_ns: time.rest_ns,
                run_queue_ns: time.runq_ns,
                stopped_ns: time.stopped_ns,
                unit: group.cgroup,
                name: group.comm,
            }
        })
        .collect();
    // Who sleeps in a call may have nothing to do, as far as is known.
    let weight = |row: &Program| row.cpu_ns.saturating_add(row.run_queue_ns);
    rows.sort_by(|a, b| {
        let held_up = b.busy_ns().cmp(&a.busy_ns());
        weight(b).cmp(&weight(a)).then(held_up)
    });
    rows.truncate(ROWS_MOST);
    rows
}

fn place(row: &debox_report::BlockingRow) -> Option<String> {
    match (&row.function, &row.file, row.line) {
        (Some(function), Some(file), Some(line)) => Some(format!("{function} ({file}:{line})")),
        (function, ..) => function.clone(),
    }
}

/// Losses first.
fn waits_of(report: &Report) -> Vec<Wait> {
    let mut sums: BTreeMap<(&str, Option<&str>), Wait> = BTreeMap::new();
    for row in &report.blocking {
        let sum = sums.entry((&row.label, row.call.as_deref())).or_default();
        sum.count = sum.count.saturating_add(row.count);
        sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
        sum.longest_ns = sum.longest_ns.max(row.max_ns);
        if row.total_ns > sum.place_ns {
            sum.place_ns = row.total_ns;
            sum.place = place(row);
        }
    }
    let mut rows: Vec<Wait> = sums
        .into_iter()
        .map(|((label, call), sum)| Wait {
            class: label_class(report, label),
            label: label.to_owned(),
            call: call.map(str::to_owned),
            ..sum
        })
        .collect();
    let order = |row: &Wait| match row.class {
        "loss" => 0,
        "input" => 2,
        "idle" | "tool" => 3,
        _ => 1,
    };
    rows.sort_by_key(|row| (order(row), std::cmp::Reverse(row.total_ns)));
    rows.truncate(ROWS_MOST);
    rows
}

/// Largest first.
pub fn roots(report: &Report) -> Vec<Root> {
    let mut sums: BTreeMap<(&'static str, String), u64> = BTreeMap::new();
    let (held_up, _) = waits(report);
    for row in &held_up {
        let Some(last) = links_of(report, row.first).pop() else {
            continue;
        };
        let key = (last.kind.root_name(), link_text(last, report));
        let sum = sums.entry(key).or_default();
        *sum = sum.saturating_add(row.total_ns);
    }
    let mut roots: Vec<Root> = sums
        .into_iter()
        .map(|((root, text), total_ns)| Root {
            root,
            text,
            total_ns,
        })
        .collect();
    roots.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then(a.text.cmp(&b.text)));
    roots.truncate(ROWS_MOST);
    roots
}

fn calls(report: &Report) -> Vec<Call> {
    if !report.measured.calls {
        return Vec::new();
    }
    let mut rows: Vec<Call> = (report.calls.iter())
        .filter(|row| row.count > 0)
        .map(|row| Call {
            call: row.name.clone(),
            count: row.count,
            errors: row.errors,
            total_ns: row.wall(),
            blocked_ns: row.blocked_ns,
            cpu_ns: row.cpu_ns,
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
    rows.truncate(ROWS_MOST);
    rows
}

impl Interval {
    /// Of a report that is of that time.
    pub fn of(report: &Report) -> Self {
        Self {
            span_ns: report.run.wall_ns,
            verdict: report.verdict.clone(),
            programs: programs(report),
            waits: waits_of(report),
            roots: roots(report),
            calls: calls(report),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum State {
    #[default]
    Live,
    /// It was, and there is nothing more to come.
    Over(String),
    /// It never was.
    NotWatched(String),
}

/// What a page of now shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Live {
    /// Who is watched.
    pub title: String,
    #[serde(flatten)]
    pub state: State,
    pub cpus: u32,
    /// Since the look before this one.
    pub now: Interval,
    /// Since the watch began.
    pub all: Interval,
    /// What the figures lack.
    pub notes: Vec<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    schema_version: u32,
    debox_version: &'static str,
    #[serde(flatten)]
    live: &'a Live,
}

impl Live {
    pub fn json(&self) -> String {
        let document = Document {
            schema: SCHEMA,
            schema_version: SCHEMA_VERSION,
            debox_version: env!("CARGO_PKG_VERSION"),
            live: self,
        };
        // It holds only text, numbers and lists, which always serialise.
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        debox_output::json_printable(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_report::{BlockingRow, LifeRow, LifeTime};

    fn wait(label: &str, call: &str, total_ns: u64, function: &str) -> BlockingRow {
        BlockingRow {
            label: label.into(),
            unlabelled: false,
            call: Some(call.into()),
            abi: 64,
            function: Some(function.into()),
            offset: None,
            file: None,
            line: None,
            count: 1,
            total_ns,
            mean_ns: total_ns,
            max_ns: total_ns,
            share: 0.0,
            waiters_mean: None,
            waiters_max: None,
            waiters_known: 0,
            durations: None,
            by_name: Vec::new(),
        }
    }

    #[test]
    fn waits_of_one_label_and_call_are_one_and_losses_come_first() {
        let report = Report {
            blocking: vec![
                wait("nanosleep", "clock_nanosleep", 900, "do_nanosleep"),
                wait("disk-read", "read", 20, "a"),
                wait("disk-read", "read", 30, "b"),
                wait("disk-read", "pread64", 10, "a"),
            ],
            ..Report::default()
        };
        let interval = Interval::of(&report);
        let told: Vec<_> = (interval.waits.iter())
            .map(|w| {
                (
                    w.call.as_deref().unwrap(),
                    w.total_ns,
                    w.place.as_deref().unwrap(),
                    w.class == "idle",
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("read", 50, "b", false),
                ("pread64", 10, "a", false),
                ("clock_nanosleep", 900, "do_nanosleep", true)
            ]
        );
    }

    #[test]
    fn parts_of_a_program_are_told_once() {
        let life = LifeRow {
            comm: "p".into(),
            threads: 2,
            time: LifeTime {
                own_ns: 5,
                calls_ns: 3,
                blocked_ns: 100,
                rest_ns: 60,
                outside_ns: 7,
                runq_ns: 2,
                life_ns: 117,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        };
        let report = Report {
            lives: vec![life],
            ..Report::default()
        };
        let programs = Interval::of(&report).programs;
        let p = &programs[0];
        assert_eq!(
            (p.cpu_ns, p.blocked_ns, p.resting_ns, p.run_queue_ns),
            (8, 47, 60, 2)
        );
        assert_eq!(p.busy_ns() + p.resting_ns, 117);
    }

    #[test]
    fn the_document_says_what_it_is() {
        let live = Live {
            title: "\u{1b}[2J".into(),
            state: State::NotWatched("no".into()),
            ..Live::default()
        };
        let text = live.json();
        assert!(!text.contains('\u{1b}'));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(
            (&value["state"], &value["why"]),
            (&"not_watched".into(), &"no".into())
        );
    }
}
