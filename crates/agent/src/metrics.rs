// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the figures of a report look like to Prometheus?
//!
//! All are sums since the agent began, over periods of which each has a report. A series never goes back (where the report knows less
//! than before it stands still), and there are not more of them than was said: what came first
//! keeps a series of its own, the rest is together in one of the name "other".

use crate::budget::{Level, Look};
use crate::config::{MetricsConfig, What};
use debox_fleet::{OTHER, name, note_name};
use debox_report::{BlockingRow, ChainKind, LifeRow, LifeTime, Report, label_class, links_of};
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

/// As a report labels a place that was not looked up (yet).
const UNKNOWN: &str = "(unknown)";

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
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyOf {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionOf {
    policy: String,
    condition: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cost {
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lack {
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

/// What reports say, by series.
#[derive(Clone, Default)]
struct Sums {
    blocked_ns: HashMap<Wait, u64>,
    sleeps: HashMap<Wait, u64>,
    program_ns: HashMap<ProgramState, u64>,
    faults: HashMap<ProgramState, u64>,
    roots_ns: HashMap<Root, u64>,
    throttled_ns: HashMap<Group, u64>,
    calls: HashMap<CallOf, u64>,
    errors: HashMap<CallOf, u64>,
    incomplete: HashMap<Lack, u64>,
    threads: u64,
}

fn add<K: Eq + Hash>(sums: &mut HashMap<K, u64>, more: HashMap<K, u64>) {
    for (key, value) in more {
        *sums.entry(key).or_default() += value;
    }
}

impl Sums {
    fn add(&mut self, more: Sums) {
        add(&mut self.blocked_ns, more.blocked_ns);
        add(&mut self.sleeps, more.sleeps);
        add(&mut self.program_ns, more.program_ns);
        add(&mut self.faults, more.faults);
        add(&mut self.roots_ns, more.roots_ns);
        add(&mut self.throttled_ns, more.throttled_ns);
        add(&mut self.calls, more.calls);
        add(&mut self.errors, more.errors);
        add(&mut self.incomplete, more.incomplete);
        self.threads += more.threads;
    }
}

pub struct Metrics {
    registry: Registry,
    /// Of periods that are over.
    closed: Sums,
    /// Of those that are not, by policy.
    present: HashMap<String, Sums>,
    waits: Told<Wait>,
    programs: Told<Program>,
    groups: Told<Group>,
    blocked: Family<Wait, Seconds>,
    sleeps: Family<Wait, Counter>,
    program: Family<ProgramState, Seconds>,
    faults: Family<ProgramState, Counter>,
    roots: Family<Root, Seconds>,
    throttled: Family<Group, Seconds>,
    calls: Family<CallOf, Counter>,
    errors: Family<CallOf, Counter>,
    incomplete: Family<Lack, Gauge>,
    threads: Counter,
    policy_threads: Family<PolicyOf, Gauge>,
    conditions: Family<ConditionOf, Counter>,
    exceeded: Family<Cost, Counter>,
    level: Gauge<f64, AtomicU64>,
    cpu: Family<Cost, Gauge<f64, AtomicU64>>,
    memory: Family<Cost, Gauge<f64, AtomicU64>>,
    lost: Counter,
    fleet: Family<Outcome, Counter>,
    report: Gauge<f64, AtomicU64>,
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
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

/// Each root's name once.
pub fn roots() -> Vec<&'static str> {
    use ChainKind::*;
    let kinds = [
        RanUser,
        RanCall,
        Ran,
        Runq,
        Device,
        Disk,
        Timer,
        Limit,
        Network,
        GracePeriod,
        Interrupt,
        NotOver,
        Other,
    ];
    kinds.map(ChainKind::root_name).to_vec()
}

pub fn is_root(name: &str) -> bool {
    roots().contains(&name)
}

/// What the waits of a report ended in, nanoseconds.
fn roots_ns(report: &Report) -> HashMap<Root, u64> {
    let mut sums = HashMap::new();
    for chain in &report.chains {
        if let Some(link) = links_of(report, chain.first).pop() {
            let root = Root {
                root: link.kind.root_name(),
            };
            *sums.entry(root).or_default() += chain.total_ns;
        }
    }
    sums
}

/// Of one report: for how long was that waited for?
pub fn waited(report: &Report, what: &What) -> Duration {
    let ns = match what {
        What::Root(name) => {
            let roots = roots_ns(report);
            let fits = roots.iter().filter(|(root, _)| root.root == name);
            fits.map(|(_, ns)| ns).sum()
        }
        What::Label(name) => {
            let rows = report.blocking.iter().filter(|row| row.label == *name);
            rows.map(|row| row.total_ns).sum()
        }
    };
    Duration::from_nanos(ns)
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
            closed: Sums::default(),
            present: HashMap::new(),
            waits: Told::new(config.blocking_rows),
            programs: Told::new(config.programs),
            groups: Told::new(config.programs),
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
            policy_threads: Family::default(),
            conditions: Family::default(),
            exceeded: Family::default(),
            level: Gauge::default(),
            cpu: Family::default(),
            memory: Family::default(),
            lost: Counter::default(),
            fleet: Family::default(),
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
        registry.register(
            "policy_threads",
            "Threads that are watched now, by the policy of the agent's file whose they are",
            metrics.policy_threads.clone(),
        );
        registry.register(
            "condition_calls",
            "Calls that met a policy's condition, in periods that are over (outcome: told, held_back)",
            metrics.conditions.clone(),
        );
        registry.register(
            "budget_exceeded",
            "Looks at what watching costs that found more than [budget] has (what: cpu, memory, events)",
            metrics.exceeded.clone(),
        );
        registry.register(
            "capture_level",
            "What the budget leaves: 4 all, 3 no conditions, 2 sleeps alone, 1 with longer periods, 0 nothing",
            metrics.level.clone(),
        );
        registry.register(
            "agent_cpu_ratio",
            "CPU time in a second, as the last look at the budget found it (what: agent, programs in the kernel)",
            metrics.cpu.clone(),
        );
        registry.register(
            "agent_memory_bytes",
            "Memory that watching takes, as the last look at the budget found it (what: agent, tables in the kernel)",
            metrics.memory.clone(),
        );
        registry.register(
            "recordings_lost",
            "Periods that the flight recorder has not, or not to their end",
            metrics.lost.clone(),
        );
        registry.register(
            "fleet_periods",
            "Periods that were written to the fleet's tables, or dropped as that could not be",
            metrics.fleet.clone(),
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
        self.groups.most = config.programs;
    }

    /// As of this report of a policy's present period. What is of the whole machine is told by one of the
    /// policies alone.
    pub fn update(&mut self, policy: &str, report: &Report, of_machine: bool) {
        let now = self.sums(report, false, of_machine);
        self.present.insert(policy.to_owned(), now);
        self.raise();
    }

    /// The period of this report is over: the policy's next one begins with nothing.
    pub fn close(&mut self, policy: &str, report: &Report, of_machine: bool) {
        let last = self.sums(report, true, of_machine);
        self.present.remove(policy);
        self.closed.add(last);
        self.raise();
    }

    /// So many threads are a policy's; None: there is no such policy any more.
    pub fn policy(&self, policy: &str, threads: Option<usize>) {
        let policy = PolicyOf {
            policy: policy.to_owned(),
        };
        match threads {
            Some(threads) => {
                let is = i64::try_from(threads).unwrap_or(i64::MAX);
                self.policy_threads.get_or_create(&policy).set(is);
            }
            None => {
                self.policy_threads.remove(&policy);
            }
        }
    }

    /// What came of a condition in a period that is over.
    pub fn condition(&self, policy: &str, condition: &str, told: u64, held_back: u64) {
        for (outcome, calls) in [("told", told), ("held_back", held_back)] {
            let of = ConditionOf {
                policy: policy.to_owned(),
                condition: name(condition),
                outcome,
            };
            self.conditions.get_or_create(&of).inc_by(calls);
        }
    }

    /// A look at the budget.
    pub fn budget(&self, look: &Look) {
        for what in look.over.iter().copied() {
            self.exceeded.get_or_create(&Cost { what }).inc();
        }
        self.level(look.level);
        let set = |what, share| {
            self.cpu.get_or_create(&Cost { what }).set(share);
        };
        set("agent", look.used.agent);
        if let Some(share) = look.used.programs {
            set("programs", share);
        }
        for (what, bytes) in [
            ("agent", look.used.agent_bytes),
            ("tables", look.used.tables_bytes),
        ] {
            self.memory.get_or_create(&Cost { what }).set(bytes as f64);
        }
    }

    pub fn level(&self, level: Level) {
        self.level.set(f64::from(level as u8));
    }

    /// What all reports together took to be made.
    pub fn took(&self, time: Duration) {
        self.report.set(time.as_secs_f64());
    }

    /// What became of the periods that go to the fleet's tables.
    pub fn fleet(&self, figures: &debox_fleet::Figures) {
        for (outcome, periods) in [
            ("written", figures.periods_written),
            ("dropped", figures.periods_dropped),
        ] {
            let periods_of = self.fleet.get_or_create(&Outcome { outcome });
            raise_count(&periods_of, periods);
        }
    }

    /// So many periods more are not recorded.
    pub fn lost(&self, periods: u64) {
        self.lost.inc_by(periods);
    }

    /// What has no name yet will have one in a later report, at the latest in the `last` one: no series
    /// goes back, and it would be there twice.
    fn sums(&mut self, report: &Report, last: bool, of_machine: bool) -> Sums {
        let mut sums = Sums::default();
        self.waits_sum(report, last, &mut sums);
        self.programs_sum(report, last, &mut sums);
        sums.roots_ns = roots_ns(report);
        let machine = report.machine.iter().filter(|_| of_machine);
        for limit in machine.flat_map(|machine| &machine.limits) {
            let mut group = Group {
                group: name(&limit.group),
            };
            if !self.groups.has_room(&group) {
                group.group = OTHER.into();
            }
            *sums.throttled_ns.entry(group).or_default() += limit.throttled_ns;
        }
        for row in report.calls.iter().filter(|_| report.measured.calls) {
            let call = CallOf {
                call: name(&row.name),
            };
            *sums.calls.entry(call.clone()).or_default() += row.count;
            *sums.errors.entry(call).or_default() += row.errors;
        }
        for note in report.notes.iter().filter(|note| note.count > 0) {
            let what = Lack {
                what: note_name(note.kind),
            };
            *sums.incomplete.entry(what).or_default() += note.count;
        }
        sums.threads = report.totals.threads_started;
        sums
    }

    /// To what periods before had and the present ones have.
    fn raise(&self) {
        let mut all = self.closed.clone();
        for present in self.present.values() {
            all.add(present.clone());
        }
        for (wait, ns) in &all.blocked_ns {
            raise(&self.blocked.get_or_create(wait), seconds(*ns));
        }
        for (wait, count) in &all.sleeps {
            raise_count(&self.sleeps.get_or_create(wait), *count);
        }
        for (state, ns) in &all.program_ns {
            raise(&self.program.get_or_create(state), seconds(*ns));
        }
        for (state, count) in &all.faults {
            raise_count(&self.faults.get_or_create(state), *count);
        }
        for (root, ns) in &all.roots_ns {
            raise(&self.roots.get_or_create(root), seconds(*ns));
        }
        for (group, ns) in &all.throttled_ns {
            raise(&self.throttled.get_or_create(group), seconds(*ns));
        }
        for (call, count) in &all.calls {
            raise_count(&self.calls.get_or_create(call), *count);
        }
        for (call, count) in &all.errors {
            raise_count(&self.errors.get_or_create(call), *count);
        }
        for (what, count) in &all.incomplete {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            self.incomplete.get_or_create(what).set(count);
        }
        raise_count(&self.threads, all.threads);
    }

    fn waits_sum(&mut self, report: &Report, last: bool, sums: &mut Sums) {
        let named = |row: &&BlockingRow| last || row.label != UNKNOWN;
        for row in report.blocking.iter().filter(named) {
            let mut wait = Wait {
                label: name(&row.label),
                call: row.call.as_deref().map_or_else(String::new, name),
                class: label_class(report, &row.label),
            };
            if !self.waits.has_room(&wait) {
                wait = Wait {
                    label: OTHER.into(),
                    call: OTHER.into(),
                    class: OTHER,
                };
            }
            *sums.sleeps.entry(wait.clone()).or_default() += row.count;
            *sums.blocked_ns.entry(wait).or_default() += row.total_ns;
        }
    }

    fn programs_sum(&mut self, report: &Report, last: bool, sums: &mut Sums) {
        let named = |row: &&LifeRow| last || !row.comm.is_empty();
        for row in report.lives.iter().filter(named) {
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
            let of = |state| ProgramState {
                program: program.program.clone(),
                unit: program.unit.clone(),
                state,
            };
            for (state, ns) in states(&row.time).into_iter().filter(|(_, ns)| *ns > 0) {
                *sums.program_ns.entry(of(state)).or_default() += ns;
            }
            let faults = [
                ("minor", row.time.minor_faults),
                ("major", row.time.major_faults),
            ];
            for (state, count) in faults.into_iter().filter(|(_, count)| *count > 0) {
                *sums.faults.entry(of(state)).or_default() += count;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use debox_report::{CpuLimit, Machine};

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
        metrics.update("machine", &report(&[(name, 1_500_000_000)]), true);
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
            metrics.update("machine", &report(&[("a", ns)]), true);
            let lines = series(&metrics);
            assert!(
                lines.len() == 1 && lines[0].ends_with(&format!(" {shown}")),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn what_has_no_name_yet_is_told_when_it_has_one() {
        let mut metrics = metrics(1);
        metrics.update("machine", &report(&[("", 1_000_000_000)]), true);
        assert!(series(&metrics).is_empty());
        metrics.update("machine", &report(&[("a", 2_000_000_000)]), true);
        let lines = series(&metrics);
        assert!(
            lines.len() == 1 && lines[0].contains("program=\"a\""),
            "{lines:?}"
        );
        // And if it never gets one, at the end of its period.
        metrics.close(
            "machine",
            &report(&[("a", 2_000_000_000), ("", 1_000_000_000)]),
            true,
        );
        let lines = series(&metrics);
        assert!(
            lines.len() == 2 && lines[1].contains("program=\"other\""),
            "{lines:?}"
        );
    }

    #[test]
    fn periods_add_up() {
        let mut metrics = metrics(10);
        let shown = |metrics: &Metrics| {
            let lines = series(metrics);
            assert_eq!(lines.len(), 1, "{lines:?}");
            lines[0].rsplit_once(' ').unwrap().1.to_owned()
        };
        metrics.update("machine", &report(&[("a", 2_000_000_000)]), true);
        metrics.close("machine", &report(&[("a", 3_000_000_000)]), true);
        assert_eq!(shown(&metrics), "3.0");
        // One in which it was not there.
        metrics.close("machine", &report(&[]), true);
        metrics.update("machine", &report(&[("a", 500_000_000)]), true);
        assert_eq!(shown(&metrics), "3.5");
        metrics.close("machine", &report(&[("a", 1_000_000_000)]), true);
        assert_eq!(shown(&metrics), "4.0");
    }

    #[test]
    fn policies_add_up() {
        let mut metrics = metrics(10);
        let second = |n: u64| [("a", n * 1_000_000_000)];
        metrics.update("one", &report(&second(2)), true);
        metrics.update("two", &report(&second(3)), false);
        assert!(series(&metrics)[0].ends_with(" 5.0"));
        // What the one has closed, the other one goes on with.
        metrics.close("one", &report(&second(4)), true);
        assert!(series(&metrics)[0].ends_with(" 7.0"));
        metrics.update("two", &report(&second(4)), false);
        metrics.update("one", &report(&second(1)), true);
        assert!(series(&metrics)[0].ends_with(" 9.0"));
        metrics.policy("one", Some(7));
        assert!(
            metrics
                .text()
                .contains("debox_policy_threads{policy=\"one\"} 7")
        );
        metrics.policy("one", None);
        assert!(!metrics.text().contains("policy=\"one\""));
    }

    #[test]
    fn groups_that_come_and_go_have_a_bound() {
        let mut metrics = metrics(2);
        for number in 0..5 {
            let limit = CpuLimit {
                group: format!("/box-{number}"),
                throttled_ns: 1_000_000_000,
                ..CpuLimit::default()
            };
            let machine = Machine {
                limits: vec![limit],
                ..Machine::default()
            };
            let report = Report {
                machine: Some(machine),
                ..Report::default()
            };
            metrics.close("one", &report, true);
            // It is the same machine.
            metrics.close("other", &report, false);
        }
        let text = metrics.text();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("debox_cpu_throttled_seconds_total"));
        let mut lines: Vec<&str> = lines.collect();
        lines.sort_unstable();
        let of = |group: &str, value: &str| {
            format!("debox_cpu_throttled_seconds_total{{group=\"{group}\"}} {value}")
        };
        assert_eq!(
            lines,
            [of("/box-0", "1.0"), of("/box-1", "1.0"), of("other", "3.0")]
        );
    }

    #[test]
    fn what_is_too_much_is_together() {
        let mut metrics = metrics(1);
        let rows = [
            ("a", 1_000_000_000),
            ("b", 2_000_000_000),
            ("c", 3_000_000_000),
        ];
        metrics.update("machine", &report(&rows), true);
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
