// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the figures of a report look like to Prometheus?
//!
//! All are sums since the watch began. A series never goes back (where the report knows less
//! than before it stands still), and there are not more of them than was said: what came first
//! keeps a series of its own, the rest is together in one of the name "other".

use crate::config::MetricsConfig;
use debox_labels::Kind;
use debox_report::{ChainKind, LifeTime, Report, label_meaning};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

const OTHER: &str = "other";
/// More letters of a name than this are a mistake, or somebody's wish to fill a disk.
const NAME_MOST: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Wait {
    label: String,
    call: String,
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Program {
    program: String,
    unit: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProgramState {
    program: String,
    unit: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Root {
    root: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Group {
    group: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOf {
    call: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    what: String,
}

type Seconds = Counter<f64, AtomicU64>;

/// Rows that have a series.
struct Told<K> {
    known: HashSet<K>,
    most: usize,
}

impl<K: Clone + Eq + Hash> Told<K> {
    fn new(most: usize) -> Self {
        Self {
            known: HashSet::new(),
            most,
        }
    }

    fn has_room(&mut self, key: &K) -> bool {
        if self.known.contains(key) {
            return true;
        }
        let room = self.known.len() < self.most;
        if room {
            self.known.insert(key.clone());
        }
        room
    }
}

pub struct Metrics {
    registry: Registry,
    waits: Told<Wait>,
    programs: Told<Program>,
    blocked: Family<Wait, Seconds>,
    sleeps: Family<Wait, Counter>,
    program: Family<ProgramState, Seconds>,
    faults: Family<ProgramState, Counter>,
    roots: Family<Root, Seconds>,
    throttled: Family<Group, Seconds>,
    calls: Family<CallOf, Counter>,
    errors: Family<CallOf, Counter>,
    incomplete: Family<What, Gauge>,
    threads: Counter,
    report: Gauge<f64, AtomicU64>,
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn name(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(NAME_MOST)
        .collect()
}

/// Up to that; never back.
fn raise(counter: &Seconds, to: f64) {
    let by = to - counter.get();
    if by > 0.0 {
        counter.inc_by(by);
    }
}

fn raise_count(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

fn class(report: &Report, label: &str) -> &'static str {
    match label_meaning(report, label).map(|known| known.kind) {
        Some(Kind::Idle) => "idle",
        Some(Kind::Input) => "input",
        Some(Kind::Loss) => "loss",
        Some(Kind::Tool) => "tool",
        None => "unknown",
    }
}

/// What a chain of waits ends in.
fn root(kind: ChainKind) -> &'static str {
    use ChainKind::*;
    match kind {
        RanUser => "own_code",
        RanCall => "system_call",
        Ran => "running",
        Runq => "run_queue",
        Device => "device",
        Disk => "disk",
        Timer => "timer",
        Limit => "time_limit",
        Network => "network",
        Interrupt => "interrupt",
        NotOver => "not_over",
        Sleep | Earlier | Slept | Woken | Unseen | Ended | Deeper | Dropped | Other => "unknown",
    }
}

/// Where a thread's life went, each part once.
fn states(time: &LifeTime) -> [(&'static str, u64); 8] {
    [
        ("own_code", time.own_ns),
        ("system_calls", time.calls_ns),
        ("ending", time.exit_ns),
        ("blocked", time.blocked_ns.saturating_sub(time.rest_ns)),
        ("resting", time.rest_ns),
        ("page_faults", time.outside_ns),
        ("stopped", time.stopped_ns),
        ("run_queue", time.runq_ns),
    ]
}

impl Metrics {
    pub fn new(config: &MetricsConfig) -> Self {
        let mut registry = Registry::with_prefix("debox");
        let mut metrics = Self {
            registry: Registry::default(),
            waits: Told::new(config.blocking_rows),
            programs: Told::new(config.programs),
            blocked: Family::default(),
            sleeps: Family::default(),
            program: Family::default(),
            faults: Family::default(),
            roots: Family::default(),
            throttled: Family::default(),
            calls: Family::default(),
            errors: Family::default(),
            incomplete: Family::default(),
            threads: Counter::default(),
            report: Gauge::default(),
        };
        registry.register_with_unit(
            "blocked",
            "Time asleep in system calls: on what (label), in which call, and whether that is a loss",
            Unit::Seconds,
            metrics.blocked.clone(),
        );
        registry.register("sleeps", "Sleeps in system calls", metrics.sleeps.clone());
        registry.register_with_unit(
            "thread",
            "Where the time of threads went, by program and systemd unit",
            Unit::Seconds,
            metrics.program.clone(),
        );
        registry.register(
            "page_faults",
            "Page faults (state: minor, major)",
            metrics.faults.clone(),
        );
        registry.register_with_unit(
            "wait_root",
            "Time asleep, by what the waiting ended in when it was followed through who was waited for",
            Unit::Seconds,
            metrics.roots.clone(),
        );
        registry.register_with_unit(
            "cpu_throttled",
            "Time in which a control group's limit of CPU time kept its threads from running",
            Unit::Seconds,
            metrics.throttled.clone(),
        );
        registry.register(
            "calls",
            "System calls that returned (boundary capture)",
            metrics.calls.clone(),
        );
        registry.register(
            "call_errors",
            "Of these, that failed",
            metrics.errors.clone(),
        );
        registry.register(
            "incomplete",
            "What the figures lack: how many calls, sleeps, threads or processes a note of the report is about",
            metrics.incomplete.clone(),
        );
        registry.register(
            "threads",
            "Threads that began under watch",
            metrics.threads.clone(),
        );
        registry.register_with_unit(
            "agent_report",
            "How long it took to read the figures, last time",
            Unit::Seconds,
            metrics.report.clone(),
        );
        registry.register(
            "build",
            "Which DeBox this is",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        metrics.registry = registry;
        metrics
    }

    /// Of further rows so many are told apart; those that have a series keep it.
    pub fn limit(&mut self, config: &MetricsConfig) {
        self.waits.most = config.blocking_rows;
        self.programs.most = config.programs;
    }

    /// As of this report, which it took so long to make.
    pub fn update(&mut self, report: &Report, took: Duration) {
        self.waits_update(report);
        self.programs_update(report);
        let mut roots: HashMap<&'static str, u64> = HashMap::new();
        for chain in &report.chains {
            let mut at = chain.first;
            // Parents come before their children: it ends.
            for _ in 0..report.chain_links.len() {
                match report.chain_links.get(at).and_then(|link| link.parent) {
                    Some(parent) => at = parent,
                    None => break,
                }
            }
            if let Some(link) = report.chain_links.get(at) {
                *roots.entry(root(link.kind)).or_default() += chain.total_ns;
            }
        }
        for (root, ns) in roots {
            raise(&self.roots.get_or_create(&Root { root }), seconds(ns));
        }
        for limit in report.machine.iter().flat_map(|machine| &machine.limits) {
            let group = name(&limit.group);
            let throttled = self.throttled.get_or_create(&Group { group });
            raise(&throttled, seconds(limit.throttled_ns));
        }
        for row in report.calls.iter().filter(|_| report.measured.calls) {
            let call = CallOf {
                call: name(&row.name),
            };
            raise_count(&self.calls.get_or_create(&call), row.count);
            raise_count(&self.errors.get_or_create(&call), row.errors);
        }
        for note in report.notes.iter().filter(|note| note.count > 0) {
            let what = note_name(note.kind);
            let count = i64::try_from(note.count).unwrap_or(i64::MAX);
            self.incomplete.get_or_create(&What { what }).set(count);
        }
        raise_count(&self.threads, report.totals.threads_started);
        self.report.set(took.as_secs_f64());
    }

    fn waits_update(&mut self, report: &Report) {
        let mut sums: HashMap<Wait, (u64, u64)> = HashMap::new();
        for row in &report.blocking {
            let mut wait = Wait {
                label: name(&row.label),
                call: row.call.as_deref().map_or_else(String::new, name),
                class: class(report, &row.label),
            };
            if !self.waits.has_room(&wait) {
                wait = Wait {
                    label: OTHER.into(),
                    call: OTHER.into(),
                    class: OTHER,
                };
            }
            let sum = sums.entry(wait).or_default();
            *sum = (sum.0 + row.total_ns, sum.1 + row.count);
        }
        for (wait, (ns, count)) in sums {
            raise(&self.blocked.get_or_create(&wait), seconds(ns));
            raise_count(&self.sleeps.get_or_create(&wait), count);
        }
    }

    fn programs_update(&mut self, report: &Report) {
        let mut sums: HashMap<Program, LifeTime> = HashMap::new();
        for row in &report.lives {
            let mut program = Program {
                program: name(&row.comm),
                unit: row.unit.as_deref().map_or_else(String::new, name),
            };
            if !self.programs.has_room(&program) {
                program = Program {
                    program: OTHER.into(),
                    unit: OTHER.into(),
                };
            }
            sums.entry(program).or_default().add(&row.time);
        }
        for (Program { program, unit }, time) in sums {
            let of = |state| ProgramState {
                program: program.clone(),
                unit: unit.clone(),
                state,
            };
            for (state, ns) in states(&time) {
                if ns > 0 {
                    raise(&self.program.get_or_create(&of(state)), seconds(ns));
                }
            }
            for (state, count) in [("minor", time.minor_faults), ("major", time.major_faults)] {
                if count > 0 {
                    raise_count(&self.faults.get_or_create(&of(state)), count);
                }
            }
        }
    }

    /// In OpenMetrics' form.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// As JSON names it.
fn note_name(kind: debox_report::NoteKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => OTHER.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use debox_report::LifeRow;

    fn metrics(programs: usize) -> Metrics {
        let mut config = Config::parse("").unwrap().metrics;
        config.programs = programs;
        Metrics::new(&config)
    }

    fn report(rows: &[(&str, u64)]) -> Report {
        let row = |(comm, runq_ns): &(&str, u64)| LifeRow {
            comm: (*comm).into(),
            time: LifeTime {
                life_ns: *runq_ns,
                runq_ns: *runq_ns,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        };
        Report {
            lives: rows.iter().map(row).collect(),
            ..Report::default()
        }
    }

    fn series(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("debox_thread_seconds_total"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_name_cannot_end_its_label() {
        let mut metrics = metrics(10);
        let name = "a\"} 1\ndebox_evil{\\";
        metrics.update(&report(&[(name, 1_500_000_000)]), Duration::ZERO);
        let line = "debox_thread_seconds_total{program=\"a\\\"} 1debox_evil{\\\\\",unit=\"\",state=\"run_queue\"} 1.5";
        assert_eq!(series(&metrics), [line]);
        assert!(
            !metrics
                .text()
                .lines()
                .any(|line| line.starts_with("debox_evil"))
        );
    }

    #[test]
    fn no_series_goes_back() {
        let mut metrics = metrics(10);
        for (ns, shown) in [
            (2_000_000_000, "2.0"),
            (1_000_000_000, "2.0"),
            (3_000_000_000, "3.0"),
        ] {
            metrics.update(&report(&[("a", ns)]), Duration::ZERO);
            let lines = series(&metrics);
            assert!(
                lines.len() == 1 && lines[0].ends_with(&format!(" {shown}")),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn what_is_too_much_is_together() {
        let mut metrics = metrics(1);
        let rows = [
            ("a", 1_000_000_000),
            ("b", 2_000_000_000),
            ("c", 3_000_000_000),
        ];
        metrics.update(&report(&rows), Duration::ZERO);
        let of = |program: &str, unit: &str, value: &str| {
            format!(
                "debox_thread_seconds_total{{program=\"{program}\",unit=\"{unit}\",state=\"run_queue\"}} {value}"
            )
        };
        assert_eq!(
            series(&metrics),
            [of("a", "", "1.0"), of("other", "other", "5.0")]
        );
    }
}
