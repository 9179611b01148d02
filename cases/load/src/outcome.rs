// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a run, in numbers, and how is it told?

use crate::files::CLASSES;
use crate::mix::{OPERATIONS, Operation};
use crate::rates::Rates;
use crate::run::Plan;
use debox_output::{Pen, Table, count_text, duration_text};
use debox_select::connections::Answered;
use debox_select::stat::quantile;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// This part of a CPU, used or waited for, and the generator is what was measured.
const BOUND: f64 = 0.9;
/// So far from level while it was measured is worth a word.
const TREND_P: f64 = 0.01;
/// An hour; what takes longer counts as that.
const LONGEST_US: u64 = 3_600_000_000;
const DIGITS: u8 = 3;

/// An operation with a class of files; POST has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(usize);

const POST: usize = 3 * CLASSES as usize;
const GROUPS: usize = POST + 1;

impl Group {
    pub fn of(operation: Operation, class: u32) -> Self {
        Self(match operation {
            Operation::Post => POST,
            _ => operation as usize * CLASSES as usize + class as usize,
        })
    }

    fn operation(self) -> Operation {
        OPERATIONS[self.0 / CLASSES as usize]
    }

    fn class(self) -> Option<u32> {
        (self.0 != POST).then_some(self.0 as u32 % CLASSES)
    }
}

/// In microseconds.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, DIGITS).expect("bounds in order")
}

#[derive(Clone)]
struct Counted {
    answers: u64,
    bytes: u64,
    errors: BTreeMap<&'static str, u64>,
    first_byte: Histogram<u64>,
    waited: Histogram<u64>,
    whole: Histogram<u64>,
}

impl Counted {
    fn new() -> Self {
        Self {
            answers: 0,
            bytes: 0,
            errors: BTreeMap::new(),
            first_byte: histogram(),
            waited: histogram(),
            whole: histogram(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.bytes += other.bytes;
        for (kind, n) in &other.errors {
            *self.errors.entry(kind).or_default() += n;
        }
        for (all, part) in [
            (&mut self.first_byte, &other.first_byte),
            (&mut self.waited, &other.waited),
            (&mut self.whole, &other.whole),
        ] {
            all.add(part).expect("of the same bounds");
        }
    }

    fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct WarmedUp {
    pub seconds: f64,
    /// None: it was not asked for, and too short to tell.
    pub stationary: Option<bool>,
    /// How likely a trend as large as that of its last two blocks is without any
    /// ([`crate::run::level`]).
    pub trend_p: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Conforming {
    pub connections: usize,
    pub percent: f64,
    pub least_kbit: f64,
    pub p5_kbit: f64,
    pub median_kbit: f64,
    pub most_kbit: f64,
}

pub struct Outcome {
    plan: Plan,
    pub warm_up: WarmedUp,
    pub measured_trend_p: Option<f64>,
    groups: Vec<Counted>,
    statuses: BTreeMap<u16, u64>,
    pub verified: u64,
    pub closed_between: u64,
    pub unasked: u64,
    pub idle_closed: u64,
    pub unfinished: u64,
    pub oldest_unfinished_s: f64,
    pub lateness: Histogram<u64>,
    cpu: f64,
    cpu_wait: f64,
    seconds: f64,
    bytes: u64,
    windows: Vec<f64>,
    conforming: Option<Conforming>,
    pub timeline: Timeline,
}

/// Where the rate changes: how many requests should have begun in each step since the begin, and
/// how many were answered in it.
#[derive(Serialize)]
pub struct Timeline {
    step_s: f64,
    asked: Vec<u32>,
    answered: Vec<u32>,
}

impl Timeline {
    const STEP_S: f64 = 0.001;

    fn count(list: &mut Vec<u32>, at_s: f64) {
        let step = (at_s / Self::STEP_S) as usize;
        list.resize(list.len().max(step + 1), 0);
        list[step] += 1;
    }

    pub fn asked(&mut self, at_s: f64) {
        Self::count(&mut self.asked, at_s);
    }

    pub fn answered(&mut self, at_s: f64) {
        Self::count(&mut self.answered, at_s);
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    schema_version: u32,
    server: String,
    directories: u32,
    connections: usize,
    idle: usize,
    line_kbit: f64,
    conforming_kbit: f64,
    static_only: bool,
    cgi_percent: f64,
    rate: Option<f64>,
    new_connection_every: u32,
    verify_percent: f64,
    seed: u64,
    warm_up: &'a WarmedUp,
    seconds: f64,
    measured_trend_p: Option<f64>,
    /// None: too short to tell.
    measured_level: Option<bool>,
    /// As they are said on standard error.
    warnings: Vec<String>,
    conforming: Option<&'a Conforming>,
    requests: u64,
    requests_per_second: f64,
    errors: BTreeMap<&'static str, u64>,
    statuses: &'a BTreeMap<u16, u64>,
    verified: u64,
    bytes: u64,
    bytes_per_second: f64,
    /// Bytes per second in each second.
    windows: &'a [f64],
    /// With --rates.
    timeline: Option<&'a Timeline>,
    closed_between: u64,
    unasked: u64,
    idle_closed: u64,
    unfinished: u64,
    oldest_unfinished_s: f64,
    generator: Generator,
    groups: BTreeMap<String, Part>,
}

#[derive(Serialize)]
struct Generator {
    cpu_share: f64,
    cpu_wait_share: f64,
    timer_late_p50_us: u64,
    timer_late_p99_us: u64,
    timer_late_most_us: u64,
    is_bottleneck: bool,
}

#[derive(Serialize)]
struct Part {
    requests: u64,
    bytes: u64,
    errors: BTreeMap<&'static str, u64>,
    first_byte: Latency,
    waited: Latency,
    whole: Latency,
}

#[derive(Serialize)]
struct Latency {
    mean_us: f64,
    p5_us: u64,
    p50_us: u64,
    p90_us: u64,
    p95_us: u64,
    p99_us: u64,
    p999_us: u64,
    most_us: u64,
    /// Microseconds, and which part of the requests took no longer.
    cdf: Vec<(u64, f64)>,
}

/// Of the curve between its ends, points closer than this are left out.
const CDF_STEP: f64 = 0.002;
/// In the tail none are.
const CDF_TAIL: f64 = 0.99;

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let all = histogram.len();
        let mut cdf: Vec<(u64, f64)> = Vec::new();
        let mut below = 0;
        for value in histogram.iter_recorded() {
            below += value.count_since_last_iteration();
            let share = below as f64 / all as f64;
            let last = cdf.last().map_or(0.0, |(_, share)| *share);
            if cdf.is_empty() || share >= CDF_TAIL || share - last >= CDF_STEP {
                cdf.push((value.value_iterated_to(), share));
            }
        }
        let at = |q| histogram.value_at_quantile(q);
        Self {
            mean_us: if all == 0 { 0.0 } else { histogram.mean() },
            p5_us: at(0.05),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            most_us: histogram.max(),
            cdf,
        }
    }
}

fn micros(time: Duration) -> u64 {
    (time.as_nanos() as u64 + 500) / 1000
}

impl Outcome {
    pub fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            warm_up: WarmedUp::default(),
            measured_trend_p: None,
            groups: vec![Counted::new(); GROUPS],
            statuses: BTreeMap::new(),
            verified: 0,
            closed_between: 0,
            unasked: 0,
            idle_closed: 0,
            unfinished: 0,
            oldest_unfinished_s: 0.0,
            lateness: histogram(),
            cpu: 0.0,
            cpu_wait: 0.0,
            seconds: 0.0,
            bytes: 0,
            windows: Vec::new(),
            conforming: None,
            timeline: Timeline {
                step_s: Timeline::STEP_S,
                asked: Vec::new(),
                answered: Vec::new(),
            },
        }
    }

    pub fn error(&mut self, group: Group, kind: &'static str) {
        *self.groups[group.0].errors.entry(kind).or_default() += 1;
    }

    pub fn status(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    pub fn answer(&mut self, group: Group, answer: &Answered) {
        let counted = &mut self.groups[group.0];
        counted.answers += 1;
        counted.bytes += answer.bytes;
        counted
            .first_byte
            .saturating_record(micros(answer.first_byte));
        counted.waited.saturating_record(micros(answer.waited));
        counted.whole.saturating_record(micros(answer.whole));
    }

    pub fn set_generator(&mut self, cpu: f64, cpu_wait: f64) {
        (self.cpu, self.cpu_wait) = (cpu, cpu_wait);
    }

    /// `connections`: what each received, and whether less than 1 % of its requests failed.
    pub fn set_measured(
        &mut self,
        seconds: f64,
        bytes: u64,
        windows: Vec<f64>,
        connections: Vec<(f64, bool)>,
    ) {
        (self.seconds, self.bytes, self.windows) = (seconds, bytes, windows);
        // What a connection gets of a schedule's rate says nothing of the server.
        if self.plan.rates.is_some() {
            return;
        }
        let conforming = |(kbit, good): &&(f64, bool)| *good && *kbit >= self.plan.conforming_kbit;
        let count = connections.iter().filter(conforming).count();
        let kbit = debox_select::stat::sorted(connections.iter().map(|(kbit, _)| *kbit));
        self.conforming = Some(Conforming {
            connections: count,
            percent: 100.0 * count as f64 / connections.len() as f64,
            least_kbit: kbit[0],
            p5_kbit: quantile(&kbit, 0.05),
            median_kbit: quantile(&kbit, 0.5),
            most_kbit: kbit[kbit.len() - 1],
        });
    }

    fn sum(&self, which: impl Fn(Group) -> bool) -> Counted {
        let mut sum = Counted::new();
        for (i, counted) in self.groups.iter().enumerate() {
            if which(Group(i)) {
                sum.add(counted);
            }
        }
        sum
    }

    pub fn conforming(&self) -> Option<&Conforming> {
        self.conforming.as_ref()
    }

    pub fn answers(&self) -> u64 {
        self.groups.iter().map(|counted| counted.answers).sum()
    }

    pub fn requests_per_second(&self) -> f64 {
        self.answers() as f64 / self.seconds
    }

    pub fn error_count(&self) -> u64 {
        self.groups.iter().map(Counted::error_count).sum()
    }

    pub fn generator_is_bottleneck(&self) -> bool {
        self.cpu + self.cpu_wait >= BOUND
    }

    pub fn json(&self) -> String {
        let part = |counted: Counted| Part {
            requests: counted.answers,
            bytes: counted.bytes,
            first_byte: Latency::of(&counted.first_byte),
            waited: Latency::of(&counted.waited),
            whole: Latency::of(&counted.whole),
            errors: counted.errors,
        };
        let all = self.sum(|_| true);
        let errors = all.errors.clone();
        let mut groups = BTreeMap::from([("all".to_owned(), part(all))]);
        for operation in OPERATIONS {
            let sum = self.sum(|group| group.operation() == operation);
            groups.insert(operation.name().to_owned(), part(sum));
        }
        for class in 0..CLASSES {
            let sum = self.sum(|group| group.class() == Some(class));
            groups.insert(format!("class{class}"), part(sum));
        }
        let plan = &self.plan;
        let document = Document {
            schema: "debox-cases-load",
            schema_version: 1,
            server: plan.server.to_string(),
            directories: plan.directories,
            connections: plan.connections,
            idle: plan.idle,
            line_kbit: plan.line_kbit,
            conforming_kbit: plan.conforming_kbit,
            static_only: plan.static_only,
            cgi_percent: plan.cgi_percent,
            rate: plan.rates.as_ref().and_then(Rates::always),
            new_connection_every: plan.new_connection_every,
            verify_percent: plan.verify_percent,
            seed: plan.seed,
            warm_up: &self.warm_up,
            seconds: self.seconds,
            measured_trend_p: self.measured_trend_p,
            measured_level: self.measured_level(),
            warnings: self.warnings(),
            conforming: self.conforming(),
            requests: self.answers(),
            requests_per_second: self.requests_per_second(),
            errors,
            statuses: &self.statuses,
            verified: self.verified,
            bytes: self.bytes,
            bytes_per_second: self.bytes as f64 / self.seconds,
            windows: &self.windows,
            timeline: plan.changes().then_some(&self.timeline),
            closed_between: self.closed_between,
            unasked: self.unasked,
            idle_closed: self.idle_closed,
            unfinished: self.unfinished,
            oldest_unfinished_s: self.oldest_unfinished_s,
            generator: Generator {
                cpu_share: self.cpu,
                cpu_wait_share: self.cpu_wait,
                timer_late_p50_us: self.lateness.value_at_quantile(0.5),
                timer_late_p99_us: self.lateness.value_at_quantile(0.99),
                timer_late_most_us: self.lateness.max(),
                is_bottleneck: self.generator_is_bottleneck(),
            },
            groups,
        };
        serde_json::to_string(&document).expect("numbers and names")
    }

    pub fn measured_level(&self) -> Option<bool> {
        self.measured_trend_p.map(|p| p >= TREND_P)
    }

    /// What must not be overlooked.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.warm_up.stationary == Some(false) {
            warnings.push(format!(
                "the throughput was not level after {:.0} s of warm-up{}: what follows is no steady state",
                self.warm_up.seconds,
                match self.warm_up.trend_p {
                    Some(p) => format!(" (p = {p:.3})"),
                    None => String::new(),
                }
            ));
        }
        if self.measured_level() == Some(false) {
            warnings.push(format!(
                "the throughput rose or fell while it was measured (p = {:.4})",
                self.measured_trend_p.unwrap_or_default()
            ));
        }
        if self.generator_is_bottleneck() {
            warnings.push(format!(
                "the generator was the bottleneck, not the server: its thread ran {:.0} % of the time \
                 and waited {:.0} % for a CPU; ask with fewer connections or give it a CPU of its own",
                100.0 * self.cpu,
                100.0 * self.cpu_wait
            ));
        }
        warnings
    }

    pub fn text(&self) -> String {
        let plan = &self.plan;
        let us = |us: u64| duration_text(us * 1000, false);
        let line = match plan.line_kbit > 0.0 {
            true => format!("lines of {} kbit/s", plan.line_kbit),
            false => "lines without a limit".into(),
        };
        let level = match (self.warm_up.stationary, self.warm_up.trend_p) {
            (Some(true), Some(p)) => format!("level, p = {p:.2}"),
            (Some(_), _) => "NOT LEVEL".into(),
            (None, _) => "not tested whether level".into(),
        };
        let mut text = format!(
            "{} connections, {line}, {} directories: {:.1} s after {:.0} s of warm-up ({level})\n",
            count_text(plan.connections as u64),
            plan.directories,
            self.seconds,
            self.warm_up.seconds,
        );
        if let Some(c) = &self.conforming {
            text += &format!(
                "  conforming  {} ({:.1} %) with {} kbit/s or more; median {:.1}, lowest {:.1}\n",
                count_text(c.connections as u64),
                c.percent,
                plan.conforming_kbit,
                c.median_kbit,
                c.least_kbit
            );
        }
        let errors = self.error_count();
        let kinds = self.sum(|_| true).errors;
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, n)| format!("{n} {kind}"))
            .collect();
        text += &format!(
            "  answered    {:.1} requests/s, {:.2} Mbit/s; {} wrong or failed{}; {} compared byte by byte\n",
            self.requests_per_second(),
            self.bytes as f64 * 8e-6 / self.seconds,
            count_text(errors),
            if errors > 0 {
                format!(" ({})", kinds.join(", "))
            } else {
                String::new()
            },
            count_text(self.verified),
        );
        if self.closed_between + self.unasked + self.idle_closed > 0 {
            text += &format!(
                "  closed      {} connections between requests ({} with unasked bytes), {} idle ones\n",
                count_text(self.closed_between),
                self.unasked,
                count_text(self.idle_closed)
            );
        }
        text += &format!(
            "  generator   {:.0} % of a CPU, waiting for one {:.0} %; timers late {} (p50), {} (p99)\n\n",
            100.0 * self.cpu,
            100.0 * self.cpu_wait,
            us(self.lateness.value_at_quantile(0.5)),
            us(self.lateness.value_at_quantile(0.99)),
        );
        // What the server let a line wait for is its doing; the rest of WHOLE is the line's.
        let mut table = Table::new(&[
            "",
            "ANSWERS",
            "ERRORS",
            "FIRST BYTE p50",
            "p99",
            "WAITED p50",
            "p99",
            "WHOLE p50",
            "p99",
        ]);
        let mut row = |name: String, counted: &Counted| {
            let mut cells = vec![
                name,
                count_text(counted.answers),
                count_text(counted.error_count()),
            ];
            for histogram in [&counted.first_byte, &counted.waited, &counted.whole] {
                for q in [0.5, 0.99] {
                    cells.push(match histogram.len() {
                        0 => "-".into(),
                        _ => us(histogram.value_at_quantile(q)),
                    });
                }
            }
            table.row(cells);
        };
        row("all".into(), &self.sum(|_| true));
        for operation in OPERATIONS {
            let sum = self.sum(|group| group.operation() == operation);
            if sum.answers + sum.error_count() == 0 {
                continue;
            }
            row(operation.name().into(), &sum);
            if operation == Operation::Static {
                for class in 0..CLASSES {
                    row(
                        format!("  class {class}"),
                        &self.groups[Group::of(operation, class).0],
                    );
                }
            }
        }
        text + &table.text(&Pen::default(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_apart() {
        let mut seen = [false; GROUPS];
        for operation in OPERATIONS {
            for class in 0..CLASSES {
                let group = Group::of(operation, class);
                assert_eq!(group.operation(), operation);
                let post = operation == Operation::Post;
                assert_eq!(group.class(), (!post).then_some(class));
                seen[group.0] = true;
            }
        }
        assert_eq!(seen, [true; GROUPS]);
    }

    #[test]
    fn the_curve_ends_at_all_and_keeps_its_tail() {
        let mut h = histogram();
        for us in 1..=100_000 {
            h.record(us).unwrap();
        }
        let latency = Latency::of(&h);
        assert_eq!(latency.cdf.last().unwrap().1, 1.0);
        assert!(latency.cdf.len() < 1000);
        for (us, share) in &latency.cdf {
            // Three digits are kept.
            assert!(
                (*us as f64 / 100_000.0 / share - 1.0).abs() < 0.0011,
                "{us} {share}"
            );
        }
        assert!((latency.p50_us as f64 / 50_000.0 - 1.0).abs() < 0.0011);
        assert_eq!(Latency::of(&histogram()).cdf, []);
    }
}
