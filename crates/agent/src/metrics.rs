// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the figures of a report look like to whoever collects them?
//!
//! All are sums since the agent began, over periods of which each has a report. A series never goes back (where the report knows less
//! than before it stands still), and there are not more of them than was said: what came first
//! keeps a series of its own, the rest is together in one of the name "other". A series that nothing was heard of for
//! hours ends, and its place is another one's.

use crate::budget::{Level, Look};
use crate::config::{MetricsConfig, Policy, What};
use crate::fleet::{line, now_ns};
use crate::otlp;
use crate::series::{Distribution, Exemplar, Family, Kind, Labels, Sample, Value};
use debox_abi::sleep_bucket;
use debox_cli::cgroup;
use debox_cli::limits::Held;
use debox_fleet::{OTHER, SEVERAL, UnitWaits, name, note_name, path_name, unit_waits};
use debox_report::{BlockingRow, ChainKind, LifeRow, LifeTime, Report, label_class, links_of};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// A series that stood in no report for so long ends.
const UNUSED: Duration = Duration::from_secs(6 * 3600);
/// As a report labels a place that was not looked up (yet).
const UNKNOWN: &str = "(unknown)";

/// What tells a series from the others of its family.
trait Labelled {
    fn labels(&self) -> Labels;
}

/// A struct of texts that are the labels of their names.
macro_rules! labels {
    (struct $name:ident { $($field:ident: $type:ty,)* }) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $name {
            $($field: $type,)*
        }
        impl Labelled for $name {
            fn labels(&self) -> Labels {
                vec![$((stringify!($field), self.$field.to_string())),*]
            }
        }
    };
}

labels! {
    struct Wait {
        label: String,
        call: String,
        class: &'static str,
    }
}

labels! {
    struct WaitKind {
        label: String,
        class: &'static str,
    }
}

labels! {
    struct UnitWait {
        unit: String,
        label: String,
        class: &'static str,
    }
}

labels! {
    struct UnitRoot {
        unit: String,
        root: &'static str,
        class: &'static str,
    }
}

labels! {
    struct UnitOf {
        unit: String,
        container_id: String,
        pod_uid: String,
    }
}

impl UnitOf {
    /// One series for each unit, or nothing could be joined with it.
    fn or_in(&mut self, other: Self) {
        for (is, other) in [
            (&mut self.container_id, other.container_id),
            (&mut self.pod_uid, other.pod_uid),
        ] {
            if *is != other {
                *is = SEVERAL.into();
            }
        }
    }
}

labels! {
    struct ProgramState {
        program: String,
        unit: String,
        state: &'static str,
    }
}

labels! {
    struct Root {
        root: &'static str,
    }
}

labels! {
    struct Group {
        group: String,
    }
}

labels! {
    struct CallOf {
        call: String,
    }
}

labels! {
    struct Outcome {
        outcome: &'static str,
    }
}

labels! {
    struct PolicyOf {
        policy: String,
    }
}

impl PolicyOf {
    fn of(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
        }
    }
}

labels! {
    struct ConditionOf {
        policy: String,
        condition: String,
        outcome: &'static str,
    }
}

labels! {
    struct Cost {
        what: &'static str,
    }
}

labels! {
    struct Sent {
        signal: &'static str,
    }
}

labels! {
    struct Dropped {
        signal: &'static str,
        reason: &'static str,
    }
}

labels! {
    struct Lack {
        what: String,
    }
}

labels! {
    struct Build {
        version: &'static str,
        boot: String,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Program {
    program: String,
    unit: String,
}

impl ProgramState {
    fn of(&self) -> Program {
        Program {
            program: self.program.clone(),
            unit: self.unit.clone(),
        }
    }
}

struct Place {
    /// When a report had it last.
    used: Instant,
    /// The series may have been there before, and have ended: this one began after that moment, in nanoseconds
    /// since 1970.
    since_ns: Option<u64>,
}

/// Rows that have a series.
struct Told<K> {
    known: HashMap<K, Place>,
    most: usize,
    /// Some have ended.
    released: bool,
}

impl<K: Clone + Eq + Hash> Told<K> {
    fn new(most: usize) -> Self {
        Self {
            known: HashMap::new(),
            most,
            released: false,
        }
    }

    /// `before_ns`: when it was read before.
    fn has_room(&mut self, key: &K, before_ns: u64) -> bool {
        let used = Instant::now();
        if let Some(place) = self.known.get_mut(key) {
            place.used = used;
            return true;
        }
        let room = self.known.len() < self.most;
        if room {
            let since_ns = self.released.then_some(before_ns);
            self.known.insert(key.clone(), Place { used, since_ns });
        }
        room
    }

    /// The same of a row of a period in which `others` were told of as such: those stay so to its end, or what they
    /// had would be there twice.
    fn has_room_in(&mut self, key: &K, before_ns: u64, others: &mut HashSet<K>) -> bool {
        if others.contains(key) {
            return false;
        }
        let room = self.has_room(key, before_ns);
        if !room {
            others.insert(key.clone());
        }
        room
    }

    /// Who was not heard of for too long.
    fn release(&mut self, now: Instant) -> HashSet<K> {
        let unused = |place: &Place| now.saturating_duration_since(place.used) >= UNUSED;
        let gone = self.known.extract_if(|_, place| unused(place));
        let gone: HashSet<K> = gone.map(|(key, _)| key).collect();
        self.released |= !gone.is_empty();
        gone
    }

    fn since_ns(&self, key: &K) -> Option<u64> {
        self.known.get(key)?.since_ns
    }
}

/// Rows of a period that are together in "other".
#[derive(Default)]
struct Others {
    waits: HashSet<Wait>,
    units: HashSet<UnitWait>,
    unit_roots: HashSet<UnitRoot>,
    kinds: HashSet<WaitKind>,
    programs: HashSet<Program>,
}

/// What reports say, by series.
#[derive(Clone, Default)]
struct Sums {
    blocked_ns: HashMap<Wait, u64>,
    sleeps: HashMap<Wait, u64>,
    units_ns: HashMap<UnitWait, u64>,
    unit_roots_ns: HashMap<UnitRoot, u64>,
    durations: HashMap<WaitKind, Distribution>,
    program_ns: HashMap<ProgramState, u64>,
    faults: HashMap<ProgramState, u64>,
    roots_ns: HashMap<Root, u64>,
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

/// Up to what was and is; never back.
fn raise<K: Clone + Eq + Hash>(
    shown: &mut HashMap<K, u64>,
    was: &HashMap<K, u64>,
    is: &HashMap<K, u64>,
) {
    for (key, value) in is {
        let to = value + was.get(key).copied().unwrap_or(0);
        let shown = shown.entry(key.clone()).or_default();
        *shown = to.max(*shown);
    }
}

fn raise_distributions(
    shown: &mut HashMap<WaitKind, Distribution>,
    was: &HashMap<WaitKind, Distribution>,
    is: &HashMap<WaitKind, Distribution>,
) {
    let none = Distribution::default();
    for (kind, is) in is {
        let was = was.get(kind).unwrap_or(&none);
        let shown = shown.entry(kind.clone()).or_default();
        let mut highest = None;
        for (at, shown) in shown.buckets.iter_mut().enumerate() {
            let to = is.buckets[at] + was.buckets[at];
            if to > *shown {
                *shown = to;
                highest = Some(at);
            }
        }
        shown.sum_ns = shown.sum_ns.max(is.sum_ns + was.sum_ns);
        // The longest that is known by name is the longest there was only if no bucket above has more.
        let exemplar = is.exemplar.as_ref();
        if let Some(exemplar) = exemplar.filter(|it| highest == Some(sleep_bucket(it.ns))) {
            shown.exemplar = Some(exemplar.clone());
        }
    }
}

impl Sums {
    fn add(&mut self, more: Sums) {
        add(&mut self.blocked_ns, more.blocked_ns);
        add(&mut self.sleeps, more.sleeps);
        add(&mut self.units_ns, more.units_ns);
        add(&mut self.unit_roots_ns, more.unit_roots_ns);
        for (kind, all) in more.durations {
            self.durations.entry(kind).or_default().add(&all);
        }
        add(&mut self.program_ns, more.program_ns);
        add(&mut self.faults, more.faults);
        add(&mut self.roots_ns, more.roots_ns);
        add(&mut self.calls, more.calls);
        add(&mut self.errors, more.errors);
        add(&mut self.incomplete, more.incomplete);
        self.threads += more.threads;
    }

    fn raise(&mut self, was: &Sums, is: &Sums) {
        raise(&mut self.blocked_ns, &was.blocked_ns, &is.blocked_ns);
        raise(&mut self.sleeps, &was.sleeps, &is.sleeps);
        raise(&mut self.units_ns, &was.units_ns, &is.units_ns);
        raise(
            &mut self.unit_roots_ns,
            &was.unit_roots_ns,
            &is.unit_roots_ns,
        );
        raise_distributions(&mut self.durations, &was.durations, &is.durations);
        raise(&mut self.program_ns, &was.program_ns, &is.program_ns);
        raise(&mut self.faults, &was.faults, &is.faults);
        raise(&mut self.roots_ns, &was.roots_ns, &is.roots_ns);
        raise(&mut self.calls, &was.calls, &is.calls);
        raise(&mut self.errors, &was.errors, &is.errors);
        raise(&mut self.incomplete, &was.incomplete, &is.incomplete);
        self.threads = self.threads.max(was.threads + is.threads);
    }

    fn forget(
        &mut self,
        waits: &HashSet<Wait>,
        units: &HashSet<UnitWait>,
        unit_roots: &HashSet<UnitRoot>,
        kinds: &HashSet<WaitKind>,
        programs: &HashSet<Program>,
    ) {
        self.blocked_ns.retain(|wait, _| !waits.contains(wait));
        self.sleeps.retain(|wait, _| !waits.contains(wait));
        self.units_ns.retain(|unit, _| !units.contains(unit));
        (self.unit_roots_ns).retain(|root, _| !unit_roots.contains(root));
        self.durations.retain(|kind, _| !kinds.contains(kind));
        let stays = |state: &ProgramState, _: &mut u64| !programs.contains(&state.of());
        self.program_ns.retain(stays);
        self.faults.retain(stays);
    }
}

/// A report of a policy's present period, and what it does not say itself.
pub struct Reading<'a> {
    pub policy: &'a str,
    pub report: &'a Report,
    /// So long it took to make it.
    pub took: Duration,
    /// When the period began: nanoseconds since 1970.
    pub begun_ns: u64,
    /// Where the flight recorder has it.
    pub recording: Option<&'a str>,
}

pub struct Metrics {
    /// Of periods that are over.
    closed: Sums,
    /// Of those that are not, by policy.
    present: HashMap<String, Present>,
    /// What is told: up to that, and never back.
    shown: Sums,
    waits: Told<Wait>,
    units: Told<UnitWait>,
    unit_roots: Told<UnitRoot>,
    kinds: Told<WaitKind>,
    programs: Told<Program>,
    groups: Told<Group>,
    /// Units that are in a container, or of a pod; and which.
    contained: Told<String>,
    containers: HashMap<String, UnitOf>,
    /// Since the agent began.
    throttled_ns: HashMap<Group, u64>,
    /// What the machine's table of limits had last.
    held_ns: HashMap<PathBuf, u64>,
    /// When all was read last.
    read_ns: u64,
    policy_threads: HashMap<PolicyOf, u64>,
    conditions: HashMap<ConditionOf, u64>,
    exceeded: HashMap<Cost, u64>,
    levels: HashMap<PolicyOf, u64>,
    cpu: HashMap<Cost, f64>,
    memory: HashMap<Cost, u64>,
    lost: u64,
    fleet: HashMap<Outcome, u64>,
    /// Written and dropped before the file named the present place.
    fleet_before: [u64; 2],
    otlp_sent: HashMap<Sent, u64>,
    otlp_dropped: HashMap<Dropped, u64>,
    otlp_waiting: HashMap<Sent, f64>,
    took: Duration,
    /// The kernel's number of this boot.
    boot: String,
}

/// A policy's present period.
#[derive(Default)]
struct Present {
    sums: Sums,
    others: Others,
    /// Until then, since it began, all was told that had come to pass.
    told_ns: u64,
}

fn seconds(ns: u64) -> Value {
    Value::Number(Duration::from_nanos(ns).as_secs_f64())
}

fn samples<K: Labelled, V>(sums: &HashMap<K, V>, value: impl Fn(&V) -> Value) -> Vec<Sample> {
    samples_since(sums, value, |_| None)
}

/// Of series that may end: `since` when one began that may have been there before.
fn samples_since<K: Labelled, V>(
    sums: &HashMap<K, V>,
    value: impl Fn(&V) -> Value,
    since: impl Fn(&K) -> Option<u64>,
) -> Vec<Sample> {
    let mut samples: Vec<Sample> = (sums.iter())
        .map(|(key, sum)| Sample {
            labels: key.labels(),
            value: value(sum),
            since_ns: since(key),
        })
        .collect();
    samples.sort_by(|a, b| a.labels.cmp(&b.labels));
    samples
}

fn alone(value: Value) -> Vec<Sample> {
    vec![Sample {
        labels: Vec::new(),
        value,
        since_ns: None,
    }]
}

fn family(name: &'static str, kind: Kind, help: &'static str, samples: Vec<Sample>) -> Family {
    let unit = (name.rsplit_once('_'))
        .map(|(_, last)| last)
        .filter(|last| ["seconds", "bytes", "ratio"].contains(last));
    Family {
        name,
        help,
        unit,
        kind,
        samples,
    }
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
        Self {
            closed: Sums::default(),
            present: HashMap::new(),
            shown: Sums::default(),
            waits: Told::new(config.blocking_rows),
            units: Told::new(config.blocking_rows),
            unit_roots: Told::new(config.blocking_rows),
            kinds: Told::new(config.durations),
            programs: Told::new(config.programs),
            groups: Told::new(config.programs),
            contained: Told::new(config.programs),
            containers: HashMap::new(),
            throttled_ns: HashMap::new(),
            held_ns: HashMap::new(),
            read_ns: now_ns(),
            policy_threads: HashMap::new(),
            conditions: HashMap::new(),
            exceeded: HashMap::new(),
            levels: HashMap::new(),
            cpu: HashMap::new(),
            memory: HashMap::new(),
            lost: 0,
            fleet: HashMap::new(),
            fleet_before: [0; 2],
            otlp_sent: HashMap::new(),
            otlp_dropped: HashMap::new(),
            otlp_waiting: HashMap::new(),
            took: Duration::ZERO,
            boot: line("/proc/sys/kernel/random/boot_id"),
        }
    }

    /// All there is to be told, whatever form it is to have.
    pub fn families(&self) -> Vec<Family> {
        let shown = &self.shown;
        let count = |count: &u64| Value::Count(*count);
        let time = |ns: &u64| seconds(*ns);
        let distribution = |all: &Distribution| Value::Distribution(Box::new(all.clone()));
        let of_wait = |wait: &Wait| self.waits.since_ns(wait);
        let of_unit = |unit: &UnitWait| self.units.since_ns(unit);
        let of_unit_root = |root: &UnitRoot| self.unit_roots.since_ns(root);
        let of_kind = |kind: &WaitKind| self.kinds.since_ns(kind);
        let of_program = |state: &ProgramState| self.programs.since_ns(&state.of());
        let of_group = |group: &Group| self.groups.since_ns(group);
        let containers = self.containers.values();
        let unit_infos: HashMap<UnitOf, u64> = containers.map(|of| (of.clone(), 1)).collect();
        let build = HashMap::from([(
            Build {
                version: env!("CARGO_PKG_VERSION"),
                boot: self.boot.clone(),
            },
            1,
        )]);
        vec![
            family(
                "debox_blocked_seconds",
                Kind::Counter,
                "Time asleep in system calls: on what (label), in which call, and whether that is a loss",
                samples_since(&shown.blocked_ns, time, of_wait),
            ),
            family(
                "debox_sleeps",
                Kind::Counter,
                "Sleeps in system calls",
                samples_since(&shown.sleeps, count, of_wait),
            ),
            family(
                "debox_unit_blocked_seconds",
                Kind::Counter,
                "The same time by systemd unit: on what (label), and whether that is a loss",
                samples_since(&shown.units_ns, time, of_unit),
            ),
            family(
                "debox_blocked_duration_seconds",
                Kind::Histogram,
                "How long those of these sleeps took that are over, each whole",
                samples_since(&shown.durations, distribution, of_kind),
            ),
            family(
                "debox_thread_seconds",
                Kind::Counter,
                "Where the time of threads went, by program and systemd unit (by sleeps own_code and system_calls are told apart by the kernel's ticks)",
                samples_since(&shown.program_ns, time, of_program),
            ),
            family(
                "debox_page_faults",
                Kind::Counter,
                "Page faults (state: minor, major)",
                samples_since(&shown.faults, count, of_program),
            ),
            family(
                "debox_wait_root_seconds",
                Kind::Counter,
                "Time asleep, by what the waiting ended in when it was followed through who was waited for",
                samples(&shown.roots_ns, time),
            ),
            family(
                "debox_unit_wait_root_seconds",
                Kind::Counter,
                "The same time by systemd unit, and whether what was waited for is a loss",
                samples_since(&shown.unit_roots_ns, time, of_unit_root),
            ),
            family(
                "debox_cpu_throttled_seconds",
                Kind::Counter,
                "Time in which a control group's limit of CPU time kept its threads from running",
                samples_since(&self.throttled_ns, time, of_group),
            ),
            family(
                "debox_calls",
                Kind::Counter,
                "System calls that returned (boundary capture)",
                samples(&shown.calls, count),
            ),
            family(
                "debox_call_errors",
                Kind::Counter,
                "Of these, that failed",
                samples(&shown.errors, count),
            ),
            family(
                "debox_incomplete",
                Kind::Counter,
                "What the figures lack: how many calls, sleeps, threads or processes a note of the report is about",
                samples(&shown.incomplete, count),
            ),
            family(
                "debox_threads",
                Kind::Counter,
                "Threads that began under watch",
                alone(Value::Count(shown.threads)),
            ),
            family(
                "debox_policy_threads",
                Kind::Gauge,
                "Threads that are watched now, by the policy of the agent's file whose they are",
                samples(&self.policy_threads, count),
            ),
            family(
                "debox_condition_calls",
                Kind::Counter,
                "Calls that met a policy's condition, in periods that are over (outcome: told, held_back)",
                samples(&self.conditions, count),
            ),
            family(
                "debox_budget_exceeded",
                Kind::Counter,
                "Looks at what watching costs that found more than [budget] has (what: cpu, memory, events)",
                samples(&self.exceeded, count),
            ),
            family(
                "debox_capture_level",
                Kind::Gauge,
                "What budgets leave of a policy: 4 all, 3 no conditions, 2 sleeps alone, 1 with longer periods, 0 nothing",
                samples(&self.levels, count),
            ),
            family(
                "debox_agent_cpu_ratio",
                Kind::Gauge,
                "CPU time in a second, as the last look at the budget found it (what: agent, broker, programs in the kernel)",
                samples(&self.cpu, |share| Value::Number(*share)),
            ),
            family(
                "debox_agent_memory_bytes",
                Kind::Gauge,
                "Memory that watching takes, as the last look at the budget found it (what: agent, broker, tables in the kernel)",
                samples(&self.memory, count),
            ),
            family(
                "debox_recordings_lost",
                Kind::Counter,
                "Periods that the flight recorder has not, or not to their end",
                alone(Value::Count(self.lost)),
            ),
            family(
                "debox_fleet_periods",
                Kind::Counter,
                "Periods that were written to the fleet's tables, or dropped as that could not be",
                samples(&self.fleet, count),
            ),
            family(
                "debox_otlp_sent",
                Kind::Counter,
                "Data points and log records that were sent over OTLP, and taken",
                samples(&self.otlp_sent, count),
            ),
            family(
                "debox_otlp_dropped",
                Kind::Counter,
                "Data points and log records that were to be sent over OTLP and were not, or not taken",
                samples(&self.otlp_dropped, count),
            ),
            family(
                "debox_otlp_waiting_seconds",
                Kind::Gauge,
                "For how long something is to be sent over OTLP, and nobody has taken or refused anything",
                samples(&self.otlp_waiting, |seconds| Value::Number(*seconds)),
            ),
            family(
                "debox_agent_report_seconds",
                Kind::Gauge,
                "How long it took to read the figures, last time",
                alone(Value::Number(self.took.as_secs_f64())),
            ),
            family(
                "debox_unit",
                Kind::Info,
                "In which container a unit is, and of which pod of Kubernetes",
                samples(&unit_infos, count),
            ),
            family(
                "debox_build",
                Kind::Info,
                "Which DeBox this is",
                samples(&build, count),
            ),
        ]
    }

    /// Of further rows so many are told apart; those that have a series keep it.
    pub fn limit(&mut self, config: &MetricsConfig) {
        self.waits.most = config.blocking_rows;
        self.units.most = config.blocking_rows;
        self.unit_roots.most = config.blocking_rows;
        self.kinds.most = config.durations;
        self.programs.most = config.programs;
        self.groups.most = config.programs;
        self.contained.most = config.programs;
    }

    /// As of this report of a policy's present period; told when all of them are read ([`Self::read`]).
    pub fn update(&mut self, reading: &Reading<'_>) {
        let mut present = self.sums(reading, false);
        // What ended while it was made is in it or is not.
        let took_ns = u64::try_from(reading.took.as_nanos()).unwrap_or(u64::MAX);
        present.told_ns = reading.report.run.wall_ns.saturating_sub(took_ns);
        self.present.insert(reading.policy.to_owned(), present);
    }

    /// What the machine's control groups were held up for, each since somebody asked first.
    pub fn throttled(&mut self, held: &Held) {
        for (folder, limit) in held {
            let before = self.held_ns.get(folder).copied().unwrap_or(0);
            // What was forgotten and is there again began anew.
            let more = (limit.throttled_ns.checked_sub(before)).unwrap_or(limit.throttled_ns);
            let mut group = Group {
                group: path_name(&limit.group),
            };
            if !self.groups.has_room(&group, self.read_ns) {
                group.group = OTHER.into();
            }
            *self.throttled_ns.entry(group).or_default() += more;
        }
        let held = held.iter();
        self.held_ns = held
            .map(|(folder, limit)| (folder.clone(), limit.throttled_ns))
            .collect();
    }

    /// All policies' reports are read, which took so long.
    pub fn read(&mut self, took: Duration) {
        self.took = took;
        self.raise();
        self.release(Instant::now());
        self.read_ns = now_ns();
    }

    /// Gives back the places of what is not there any more.
    fn release(&mut self, now: Instant) {
        let (waits, kinds) = (self.waits.release(now), self.kinds.release(now));
        let (units, unit_roots) = (self.units.release(now), self.unit_roots.release(now));
        let programs = self.programs.release(now);
        for sums in [&mut self.closed, &mut self.shown] {
            sums.forget(&waits, &units, &unit_roots, &kinds, &programs);
        }
        let groups = self.groups.release(now);
        self.throttled_ns.retain(|group, _| !groups.contains(group));
        let contained = self.contained.release(now);
        self.containers.retain(|unit, _| !contained.contains(unit));
    }

    /// The period of this report is over: the policy's next one begins with nothing.
    pub fn close(&mut self, reading: &Reading<'_>) {
        let last = self.sums(reading, true);
        self.present.insert(reading.policy.to_owned(), last);
        self.raise();
        if let Some(over) = self.present.remove(reading.policy) {
            self.closed.add(over.sums);
        }
    }

    /// To what periods before had and the present ones have.
    fn raise(&mut self) {
        let mut now = Sums::default();
        for present in self.present.values() {
            now.add(present.sums.clone());
        }
        self.shown.raise(&self.closed, &now);
        // Told once.
        for present in self.present.values_mut() {
            for all in present.sums.durations.values_mut() {
                all.exemplar = None;
            }
        }
    }

    /// So many threads are a policy's.
    pub fn policy(&mut self, policy: &str, threads: usize) {
        self.policy_threads
            .insert(PolicyOf::of(policy), threads as u64);
    }

    /// There are no others any more.
    pub fn policies<'a>(&mut self, policies: impl Iterator<Item = &'a Policy>) {
        let names: HashSet<&str> = policies.map(|policy| policy.name.as_str()).collect();
        for of_policies in [&mut self.policy_threads, &mut self.levels] {
            of_policies.retain(|of, _| names.contains(of.policy.as_str()));
        }
    }

    /// What came of a condition in a period that is over.
    pub fn condition(&mut self, policy: &str, condition: &str, told: u64, held_back: u64) {
        for (outcome, calls) in [("told", told), ("held_back", held_back)] {
            let of = ConditionOf {
                policy: policy.to_owned(),
                condition: name(condition),
                outcome,
            };
            *self.conditions.entry(of).or_default() += calls;
        }
    }

    /// A look at the budget.
    pub fn budget(&mut self, look: &Look) {
        for what in look.over.iter().copied() {
            self.exceeded(what);
        }
        // What was not measured is not there.
        self.cpu.clear();
        self.memory.clear();
        let used = &look.used;
        for (what, share) in [
            ("agent", Some(used.agent)),
            ("broker", used.broker),
            ("programs", used.programs),
        ] {
            self.cpu.extend(share.map(|share| (Cost { what }, share)));
        }
        for (what, bytes) in [
            ("agent", used.agent_bytes),
            ("broker", used.broker_bytes),
            ("tables", used.tables_bytes),
        ] {
            self.memory
                .extend(bytes.map(|bytes| (Cost { what }, bytes)));
        }
    }

    /// A look found more of this than a budget has.
    pub fn exceeded(&mut self, what: &'static str) {
        *self.exceeded.entry(Cost { what }).or_default() += 1;
    }

    pub fn level(&mut self, policy: &str, level: Level) {
        self.levels.insert(PolicyOf::of(policy), level as u64);
    }

    /// What became of the periods that go to the fleet's tables.
    pub fn fleet(&mut self, figures: &debox_fleet::Figures) {
        let [written, dropped] = self.fleet_before;
        for (outcome, periods) in [
            ("written", written + figures.periods_written),
            ("dropped", dropped + figures.periods_dropped),
        ] {
            self.fleet.insert(Outcome { outcome }, periods);
        }
    }

    /// The last of them: whatever comes after counts from nothing.
    pub fn fleet_end(&mut self, figures: &debox_fleet::Figures) {
        self.fleet(figures);
        let [written, dropped] = &mut self.fleet_before;
        *written += figures.periods_written;
        *dropped += figures.periods_dropped;
    }

    /// What became of what is sent over OTLP; also where nothing is dropped, so that the first time is seen.
    pub fn otlp(&mut self, figures: &otlp::Figures, signals: &[otlp::Signal]) {
        for of in signals {
            let signal = of.name();
            let is = self.otlp_sent.entry(Sent { signal }).or_default();
            *is = figures.sent[*of as usize].max(*is);
            for why in otlp::Reason::ALL {
                let reason = why.name();
                let dropped = Dropped { signal, reason };
                let is = self.otlp_dropped.entry(dropped).or_default();
                *is = figures.dropped[*of as usize][why as usize].max(*is);
            }
        }
    }

    /// Of what is sent now, and of nothing else.
    pub fn otlp_waiting(&mut self, waiting: impl IntoIterator<Item = (otlp::Signal, Duration)>) {
        let all = waiting.into_iter().map(|(of, time)| {
            let signal = of.name();
            (Sent { signal }, time.as_secs_f64())
        });
        self.otlp_waiting = all.collect();
    }

    /// So many periods more are not recorded.
    pub fn lost(&mut self, periods: u64) {
        self.lost += periods;
    }

    /// What has no name yet will have one in a later report, at the latest in the `last` one: no series
    /// goes back, and it would be there twice.
    fn sums(&mut self, reading: &Reading<'_>, last: bool) -> Present {
        let report = reading.report;
        let mut present = Present::default();
        if let Some(before) = self.present.get_mut(reading.policy) {
            present.others = std::mem::take(&mut before.others);
            present.told_ns = before.told_ns;
        }
        self.waits_sum(reading, last, &mut present);
        self.units_sum(report, last, &mut present);
        self.programs_sum(report, last, &mut present);
        if last {
            self.containers_note(report);
        }
        let sums = &mut present.sums;
        sums.roots_ns = roots_ns(report);
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
        present
    }

    fn waits_sum(&mut self, reading: &Reading<'_>, last: bool, present: &mut Present) {
        let Present {
            sums,
            others,
            told_ns,
        } = present;
        let (report, before_ns) = (reading.report, self.read_ns);
        let named = |row: &&BlockingRow| last || row.label != UNKNOWN;
        for row in report.blocking.iter().filter(named) {
            let mut wait = Wait {
                label: name(&row.label),
                call: row.call.as_deref().map_or_else(String::new, name),
                class: label_class(report, &row.label),
            };
            let mut kind = WaitKind {
                label: wait.label.clone(),
                class: wait.class,
            };
            if !self.waits.has_room_in(&wait, before_ns, &mut others.waits) {
                wait = Wait {
                    label: OTHER.into(),
                    call: OTHER.into(),
                    class: OTHER,
                };
            }
            *sums.sleeps.entry(wait.clone()).or_default() += row.count;
            *sums.blocked_ns.entry(wait).or_default() += row.total_ns;
            // None of it is over yet.
            let over = (row.durations.as_ref()).filter(|over| !over.histogram.is_empty());
            let Some(over) = over else {
                continue;
            };
            if !self.kinds.has_room_in(&kind, before_ns, &mut others.kinds) {
                kind = WaitKind {
                    label: OTHER.into(),
                    class: OTHER,
                };
            }
            let is_new = !self.shown.durations.contains_key(&kind);
            let all = sums.durations.entry(kind).or_default();
            for bucket in &over.histogram {
                all.buckets[sleep_bucket(bucket.from_ns)] += bucket.count;
            }
            all.sum_ns += over.total_ns;
            // What ended before the last reading was told of by it; but of a series that is new.
            let longest = over.longest.as_ref();
            let longest = longest.filter(|it| is_new || it.end_ns >= *told_ns);
            if let Some(longest) = longest
                && all.exemplar.as_ref().is_none_or(|it| longest.ns > it.ns)
            {
                all.exemplar = Some(Exemplar {
                    ns: longest.ns,
                    at: UNIX_EPOCH + Duration::from_nanos(reading.begun_ns + longest.end_ns),
                    program: name(&longest.comm),
                    recording: reading.recording.map(str::to_owned),
                });
            }
        }
    }

    /// At a period's end: whose a wait was is known when the life of its thread is, and before it would be nobody's, too.
    fn units_sum(&mut self, report: &Report, last: bool, present: &mut Present) {
        let Present { sums, others, .. } = present;
        if !last {
            return;
        }
        let UnitWaits { labels, roots } = unit_waits(report);
        // Where a thread waits for work there is nothing to do.
        let class_of = |class: &'static str| if class == "rest" { "idle" } else { class };
        for ((unit, root, class), ns) in roots {
            let class = class_of(class);
            let mut of = UnitRoot { unit, root, class };
            if !(self.unit_roots).has_room_in(&of, self.read_ns, &mut others.unit_roots) {
                // There are few roots and classes: sums by these stay what they are.
                of.unit = OTHER.into();
            }
            *sums.unit_roots_ns.entry(of).or_default() += ns;
        }
        for ((unit, label, class), ns) in labels {
            let class = class_of(class);
            let mut wait = UnitWait { unit, label, class };
            if !(self.units).has_room_in(&wait, self.read_ns, &mut others.units) {
                wait = UnitWait {
                    unit: OTHER.into(),
                    label: OTHER.into(),
                    class: OTHER,
                };
            }
            *sums.units_ns.entry(wait).or_default() += ns;
        }
    }

    /// Where units' threads are seen: by all rows together, whose order says nothing.
    fn containers_note(&mut self, report: &Report) {
        let mut seen: BTreeMap<String, UnitOf> = BTreeMap::new();
        for row in &report.lives {
            let (Some(unit), Some(group)) = (&row.unit, &row.cgroup) else {
                continue;
            };
            let is = UnitOf {
                unit: name(unit),
                container_id: cgroup::container(group).unwrap_or_default().to_owned(),
                pod_uid: cgroup::pod(group).unwrap_or_default(),
            };
            match seen.get_mut(&is.unit) {
                Some(seen) => seen.or_in(is),
                None => {
                    seen.insert(is.unit.clone(), is);
                }
            }
        }
        for (unit, is) in seen {
            let known = self.containers.get_mut(&unit);
            let nowhere = is.container_id.is_empty() && is.pod_uid.is_empty();
            // What has no room is told of by its sums alone, as "other" is in no container.
            if nowhere && known.is_none() || !self.contained.has_room(&unit, self.read_ns) {
                continue;
            }
            match known {
                Some(known) => known.or_in(is),
                None => {
                    self.containers.insert(unit, is);
                }
            }
        }
    }

    fn programs_sum(&mut self, report: &Report, last: bool, present: &mut Present) {
        let Present { sums, others, .. } = present;
        let named = |row: &&LifeRow| last || !row.comm.is_empty();
        for row in report.lives.iter().filter(named) {
            let mut program = Program {
                program: name(&row.comm),
                unit: row.unit.as_deref().map_or_else(String::new, name),
            };
            if !self
                .programs
                .has_room_in(&program, self.read_ns, &mut others.programs)
            {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use debox_report::{ChainLink, ChainRow, CpuLimit};

    fn metrics(programs: usize) -> Metrics {
        let mut config = Config::parse("").unwrap().metrics;
        config.programs = programs;
        Metrics::new(&config)
    }

    fn reading(report: &Report) -> Reading<'_> {
        Reading {
            policy: "all",
            report,
            took: Duration::ZERO,
            begun_ns: 0,
            recording: Some("20261127T115200Z"),
        }
    }

    impl Metrics {
        fn text(&self) -> String {
            crate::text::text(&self.families(), crate::text::Form::OpenMetrics)
        }

        fn update_with(&mut self, report: &Report) {
            self.update(&reading(report));
            self.read(Duration::ZERO);
        }

        fn close_with(&mut self, report: &Report) {
            self.close(&reading(report));
        }
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
        metrics.update_with(&report(&[(name, 1_500_000_000)]));
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
            metrics.update_with(&report(&[("a", ns)]));
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
        metrics.update_with(&report(&[("", 1_000_000_000)]));
        assert!(series(&metrics).is_empty());
        metrics.update_with(&report(&[("a", 2_000_000_000)]));
        let lines = series(&metrics);
        assert!(
            lines.len() == 1 && lines[0].contains("program=\"a\""),
            "{lines:?}"
        );
        // And if it never gets one, at the end of its period.
        metrics.close_with(&report(&[("a", 2_000_000_000), ("", 1_000_000_000)]));
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
        metrics.update_with(&report(&[("a", 2_000_000_000)]));
        metrics.close_with(&report(&[("a", 3_000_000_000)]));
        assert_eq!(shown(&metrics), "3.0");
        // One in which it was not there.
        metrics.close_with(&report(&[]));
        metrics.update_with(&report(&[("a", 500_000_000)]));
        assert_eq!(shown(&metrics), "3.5");
        metrics.close_with(&report(&[("a", 1_000_000_000)]));
        assert_eq!(shown(&metrics), "4.0");
    }

    #[test]
    fn periods_of_the_fleet_add_up_over_places() {
        let mut metrics = metrics(10);
        let figures = |periods_written, periods_dropped| debox_fleet::Figures {
            periods_written,
            periods_dropped,
            ..debox_fleet::Figures::default()
        };
        metrics.fleet(&figures(5, 1));
        metrics.fleet_end(&figures(6, 2));
        metrics.fleet(&figures(1, 0));
        metrics.fleet_end(&figures(2, 3));
        metrics.fleet(&figures(0, 0));
        let text = metrics.text();
        for line in [
            "debox_fleet_periods_total{outcome=\"written\"} 8\n",
            "debox_fleet_periods_total{outcome=\"dropped\"} 5\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn groups_that_come_and_go_have_a_bound() {
        let mut metrics = metrics(2);
        let of = |number: usize, ms: u64| {
            let limit = CpuLimit {
                group: format!("/box-{number}"),
                throttled_ns: ms * 1_000_000,
                ..CpuLimit::default()
            };
            (PathBuf::from(format!("/cg/box-{number}")), limit)
        };
        for number in 0..5 {
            metrics.throttled(&Held::from([of(number, 500)]));
            metrics.throttled(&Held::from([of(number, 1_000)]));
        }
        // One that was forgotten meanwhile begins with nothing.
        metrics.throttled(&Held::from([of(1, 500)]));
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
            [of("/box-0", "1.0"), of("/box-1", "1.5"), of("other", "3.0")]
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
        metrics.update_with(&report(&rows));
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

    /// Who comes later has a series once those of before are not heard of any more.
    #[test]
    fn places_are_given_back_after_hours() {
        let mut metrics = metrics(2);
        let second = 1_000_000_000;
        let since = |metrics: &Metrics, program: &str| {
            let families = metrics.families();
            let family = families.iter().find(|it| it.name == "debox_thread_seconds");
            let of = |sample: &&Sample| sample.labels[0].1 == program;
            family
                .unwrap()
                .samples
                .iter()
                .find(of)
                .map(|it| it.since_ns)
        };
        let of = |program: &str, value: &str| {
            let unit = if program == OTHER { OTHER } else { "" };
            format!(
                "debox_thread_seconds_total{{program=\"{program}\",unit=\"{unit}\",state=\"run_queue\"}} {value}"
            )
        };
        metrics.close_with(&report(&[("a", 2 * second), ("b", second)]));
        // For as long as they may be heard of again.
        metrics.release(Instant::now() + UNUSED / 2);
        metrics.update_with(&report(&[("b", second), ("c", 3 * second)]));
        assert_eq!(
            series(&metrics),
            [of("a", "2.0"), of("b", "2.0"), of("other", "3.0")]
        );
        // "b" has just been heard of.
        let place = |program: &str| Program {
            program: program.into(),
            unit: String::new(),
        };
        let long_ago = Instant::now() - UNUSED;
        metrics.programs.known.get_mut(&place("a")).unwrap().used = long_ago;
        let before_ns = metrics.read_ns;
        metrics.read(Duration::ZERO);
        assert_eq!(series(&metrics), [of("b", "2.0"), of("other", "3.0")]);
        // What of this period was in "other" stays there, to its end.
        metrics.update_with(&report(&[("b", second), ("c", 4 * second)]));
        metrics.close_with(&report(&[("b", second), ("c", 5 * second)]));
        assert_eq!(series(&metrics), [of("b", "2.0"), of("other", "5.0")]);
        metrics.update_with(&report(&[("c", second), ("d", second)]));
        assert_eq!(
            series(&metrics),
            [of("b", "2.0"), of("c", "1.0"), of("other", "6.0")]
        );
        // What may have been there before says since when it is.
        assert_eq!(since(&metrics, "b"), Some(None));
        assert!(since(&metrics, "c").unwrap().unwrap() >= before_ns);
        // And one that comes back begins with nothing.
        metrics.close_with(&report(&[("c", second)]));
        metrics.release(Instant::now() + UNUSED);
        assert_eq!(series(&metrics), [of("other", "6.0")]);
        metrics.update_with(&report(&[("a", second)]));
        assert_eq!(series(&metrics), [of("a", "1.0"), of("other", "6.0")]);
    }

    #[test]
    fn which_debox_and_which_boot_is_one_series() {
        let text = metrics(1).text();
        let infos = text
            .lines()
            .filter(|line| line.starts_with("debox_build_info{"));
        let boot = line("/proc/sys/kernel/random/boot_id");
        assert_eq!(boot.len(), 36, "{boot}");
        let info = format!(
            "debox_build_info{{version=\"{}\",boot=\"{boot}\"}} 1",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(infos.collect::<Vec<_>>(), [info]);
    }

    /// One series each, or nothing could be joined with it.
    #[test]
    fn units_are_told_with_their_containers_and_pods() {
        const ID: &str = "4f0a1c2b3d4e5f60718293a4b5c6d7e8f9000112233445566778899aabbccdde";
        let pod = "8d3c5a1e-0c5f-4f3b-9a53-0a5b7a1c2d3e";
        let slice = format!(
            "/kubepods.slice/kubepods-pod{}.slice",
            pod.replace('-', "_")
        );
        let scope = format!("cri-containerd-{ID}.scope");
        let row = |unit: &str, group: &str| LifeRow {
            unit: Some(unit.into()),
            cgroup: Some(group.into()),
            ..LifeRow::default()
        };
        let report = |lives: Vec<LifeRow>| Report {
            lives,
            ..Report::default()
        };
        let infos = |metrics: &Metrics| {
            let text = metrics.text();
            let lines = text
                .lines()
                .filter(|line| line.starts_with("debox_unit_info"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let of = |unit: &str, container: &str, pod: &str| {
            format!(
                "debox_unit_info{{unit=\"{unit}\",container_id=\"{container}\",pod_uid=\"{pod}\"}} 1"
            )
        };
        let mut metrics = metrics(2);
        metrics.close_with(&report(vec![
            row(&scope, &format!("{slice}/{scope}")),
            row(&scope, &format!("{slice}/{scope}/init")),
            row("ssh.service", "/system.slice/ssh.service"),
        ]));
        let first = of(&name(&scope), &ID[..12], pod);
        assert_eq!(infos(&metrics), std::slice::from_ref(&first));
        // Docker's own groups are below its unit, whichever row is first; and one more is too much.
        let mut docker = vec![
            row("docker.service", &format!("/docker.service/docker/{ID}")),
            row("docker.service", "/docker.service"),
            row("third.scope", &format!("/third.scope/{ID}")),
        ];
        let second = of("docker.service", SEVERAL, "");
        metrics.close_with(&report(docker.clone()));
        assert_eq!(infos(&metrics), [first, second.clone()]);
        metrics.release(Instant::now() + UNUSED);
        assert_eq!(infos(&metrics), Vec::<String>::new());
        docker.swap(0, 1);
        metrics.close_with(&report(docker));
        assert!(infos(&metrics).contains(&second));
    }

    #[test]
    fn places_of_waits_distributions_and_groups_are_given_back_too() {
        let mut metrics = metrics(1);
        (metrics.waits.most, metrics.units.most) = (1, 1);
        metrics.unit_roots.most = 1;
        metrics.kinds.most = 1;
        let held = |name: &str| {
            let limit = CpuLimit {
                group: name.into(),
                throttled_ns: 1_000_000_000,
                ..CpuLimit::default()
            };
            Held::from([(PathBuf::from(name), limit)])
        };
        for label in ["a", "b"] {
            metrics.throttled(&held(label));
            metrics.close_with(&waits(1, vec![slept(label, &[1_000_000], None)]));
            let text = metrics.text();
            for of in [
                format!(
                    "debox_sleeps_total{{label=\"{label}\",call=\"read\",class=\"unknown\"}} 1\n"
                ),
                format!(
                    "debox_blocked_seconds_total{{label=\"{label}\",call=\"read\",class=\"unknown\"}} 0.001\n"
                ),
                format!(
                    "debox_unit_blocked_seconds_total{{unit=\"\",label=\"{label}\",class=\"unknown\"}} 0.001\n"
                ),
                "debox_unit_wait_root_seconds_total{unit=\"\",root=\"unknown\",class=\"unknown\"} 0.001\n"
                    .to_owned(),
                format!(
                    "debox_blocked_duration_seconds_count{{label=\"{label}\",class=\"unknown\"}} 1\n"
                ),
                format!("debox_cpu_throttled_seconds_total{{group=\"{label}\"}} 1.0\n"),
            ] {
                assert!(text.contains(&of), "{of} {text}");
            }
            assert!(!text.contains("=\"other\""), "{text}");
            metrics.release(Instant::now() + UNUSED);
            assert!(
                !metrics.text().contains(&format!("=\"{label}\"")),
                "{label}"
            );
        }
    }

    /// By unit as well; what is too much keeps its root.
    #[test]
    fn what_waits_end_in_is_told_by_unit_as_periods_end() {
        let mut metrics = metrics(10);
        metrics.unit_roots.most = 2;
        let sleep = |comm: &str, parent| ChainLink {
            comm: comm.into(),
            parent: Some(parent),
            ..ChainLink::of(ChainKind::Sleep)
        };
        let life = |comm: &str, unit: &str| LifeRow {
            comm: comm.into(),
            unit: Some(unit.into()),
            ..LifeRow::default()
        };
        let row = |first, ms: u64| ChainRow {
            first,
            count: 1,
            total_ns: ms * 1_000_000,
            max_ns: ms * 1_000_000,
        };
        let report = Report {
            chain_links: vec![
                ChainLink::of(ChainKind::Disk),
                ChainLink::of(ChainKind::Timer),
                sleep("a", 0),
                sleep("a", 1),
                ChainLink {
                    rests: true,
                    ..sleep("b", 1)
                },
                sleep("c", 0),
            ],
            chains: vec![row(2, 500), row(3, 250), row(4, 125), row(5, 1_000)],
            lives: vec![
                life("a", "a.service"),
                life("b", "b.service"),
                life("c", "c.service"),
            ],
            ..Report::default()
        };
        let told = |metrics: &Metrics| -> Vec<String> {
            let text = metrics.text();
            let mut lines = (text.lines())
                .filter_map(|line| line.strip_prefix("debox_unit_wait_root_seconds_total"))
                .map(str::to_owned)
                .collect::<Vec<_>>();
            lines.sort();
            lines
        };
        metrics.update_with(&report);
        assert_eq!(told(&metrics), Vec::<String>::new());
        metrics.close_with(&report);
        metrics.close_with(&report);
        assert_eq!(
            told(&metrics),
            [
                r#"{unit="a.service",root="disk",class="unknown"} 1.0"#,
                r#"{unit="a.service",root="timer",class="unknown"} 0.5"#,
                r#"{unit="other",root="disk",class="unknown"} 2.0"#,
                r#"{unit="other",root="timer",class="idle"} 0.25"#,
            ]
        );
        metrics.release(Instant::now() + UNUSED);
        assert_eq!(told(&metrics).len(), 2);
    }

    fn slept(label: &str, ns: &[u64], longest: Option<(&str, u64)>) -> BlockingRow {
        let buckets = ns.iter().map(|&ns| {
            let (from_ns, to_ns) = debox_abi::sleep_range(sleep_bucket(ns));
            let to_ns = (to_ns != u64::MAX).then_some(to_ns);
            let count = 1;
            serde_json::json!({"from_ns": from_ns, "to_ns": to_ns, "count": count})
        });
        let buckets: Vec<_> = buckets.collect();
        let most = ns.iter().max();
        let longest = longest
            .map(|(comm, end_ns)| serde_json::json!({"ns": most, "comm": comm, "end_ns": end_ns}));
        let total_ns = ns.iter().sum::<u64>();
        serde_json::from_value(serde_json::json!({
            "label": label, "unlabelled": false, "call": "read", "abi": 64, "function": null,
            "offset": null, "file": null, "line": null, "count": ns.len(),
            "total_ns": total_ns, "mean_ns": 0, "max_ns": most, "share": 0.0,
            "waiters_mean": null, "waiters_max": null,
            "durations": {"total_ns": total_ns, "histogram": buckets, "longest": longest},
        }))
        .unwrap()
    }

    fn told(metrics: &Metrics, label: &str) -> Distribution {
        let kinds = metrics.shown.durations.iter();
        let mut of = kinds.filter(|(kind, _)| kind.label == label);
        let found = of.next().unwrap_or_else(|| panic!("no {label}")).1.clone();
        assert!(of.next().is_none(), "{label}: two");
        found
    }

    fn waits(wall_ns: u64, rows: Vec<BlockingRow>) -> Report {
        let mut report = Report {
            blocking: rows,
            ..Report::default()
        };
        report.run.wall_ns = wall_ns;
        report
    }

    #[test]
    fn how_long_sleeps_took_is_told_over_all_periods() {
        let mut metrics = metrics(10);
        let second = 1_000_000_000;
        metrics.update_with(&waits(second, vec![slept("d", &[5_000], None)]));
        // Two places of one label.
        let rows = vec![
            slept("d", &[5_000, second], None),
            slept("d", &[second], None),
        ];
        metrics.close_with(&waits(2 * second, rows));
        metrics.update_with(&waits(second, vec![slept("d", &[5_000], None)]));
        let all = told(&metrics, "d");
        assert_eq!(all.count(), 4);
        assert_eq!(all.buckets[sleep_bucket(second)], 2);
        assert_eq!(all.sum_ns, 2 * second + 10_000);
        let text = metrics.text();
        let sleeps = "debox_sleeps_total{label=\"d\",call=\"read\",class=\"unknown\"} 4\n";
        let count = "debox_blocked_duration_seconds_count{label=\"d\",class=\"unknown\"} 4\n";
        assert!(text.contains(sleeps) && text.contains(count), "{text}");
    }

    #[test]
    fn distributions_have_a_bound_of_their_own() {
        let mut metrics = metrics(10);
        metrics.kinds.most = 1;
        let rows = ["a", "b", "c"].map(|label| slept(label, &[1_000_000], None));
        metrics.update_with(&waits(1, rows.into()));
        assert_eq!(told(&metrics, "a").count(), 1);
        assert_eq!(told(&metrics, OTHER).count(), 2);
        assert_eq!(metrics.shown.sleeps.len(), 3);
    }

    /// Each step is (until when the report goes, what it has), and which exemplar there is then.
    #[test]
    fn an_exemplar_is_of_the_longest_since_the_last_reading_or_stays() {
        let mut metrics = metrics(10);
        let ms = 1_000_000;
        let of = |metrics: &Metrics| {
            let exemplar = told(metrics, "d").exemplar;
            exemplar.map(|it| (it.ns / ms, it.program, it.recording))
        };
        let is =
            |ms, program: &str| Some((ms, program.to_owned(), Some("20261127T115200Z".to_owned())));
        // Nobody knows whose it was.
        metrics.update_with(&waits(10 * ms, vec![slept("d", &[8 * ms], None)]));
        assert_eq!(of(&metrics), None);
        let rows = || vec![slept("d", &[8 * ms, 40 * ms], Some(("dd", 60 * ms)))];
        metrics.update_with(&waits(100 * ms, rows()));
        assert_eq!(of(&metrics), is(40, "dd"));
        assert_eq!(
            told(&metrics, "d").exemplar.unwrap().at,
            UNIX_EPOCH + Duration::from_millis(60)
        );
        // Another place's, a shorter one: it is the longest since.
        let mut more = rows();
        more.push(slept("d", &[2 * ms], Some(("cat", 150 * ms))));
        metrics.update_with(&waits(200 * ms, more));
        assert_eq!(of(&metrics), is(2, "cat"));
        // One that is known, and a longer one that is not: the one before stays.
        let more = vec![
            slept("d", &[8 * ms, 40 * ms, 30 * ms], Some(("dd", 60 * ms))),
            slept("d", &[2 * ms, 4 * ms], Some(("sh", 250 * ms))),
        ];
        metrics.update_with(&waits(300 * ms, more));
        assert_eq!(of(&metrics), is(2, "cat"));
        // Of a new period.
        let text = metrics.text();
        assert!(text.contains("program=\"cat\"} 0.002 0.150\n"), "{text}");
        metrics.close_with(&waits(400 * ms, Vec::new()));
        let rows = vec![slept("d", &[ms], Some(("ls", 5 * ms)))];
        metrics.update_with(&waits(10 * ms, rows));
        assert_eq!(of(&metrics), is(1, "ls"));
    }
}
