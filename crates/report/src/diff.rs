// SPDX-License-Identifier: MIT OR Apache-2.0
//! What changed between two runs, and how sure is that?
//!
//! Each quantity is compared with an interval. Where both reports have a
//! history of the call, its points are drawn anew in blocks (a bootstrap that
//! keeps slow and fast stretches together). Otherwise histograms are: their
//! calls count as independent. Of labels and call sites only number, sum and
//! longest are known; the sum of their squares cannot exceed sum × longest,
//! which bounds the spread from above. Verdicts hold for all comparisons
//! together (Holm): if nothing changed, one report in twenty says otherwise.
//!
//! What the intervals cannot know is how much a run differs from its own
//! repetition; the text says so.

mod estimate;
mod page;
mod points;
mod text;

use debox_output::{count_text, duration_text};
use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::chains::{link_text, links_of};
use crate::model::*;
use estimate::Estimate;

pub use page::render_diff_html;
pub use points::{Points, PointsChange, diff_points};
pub use text::render_diff;

pub const DIFF_SCHEMA: &str = "debox.diff";
pub const DIFF_SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug)]
pub struct DiffOptions {
    /// Of intervals and of the verdicts together, 0 to 1.
    pub confidence: f64,
    /// Smaller relative changes are none, however sure.
    pub change_min: f64,
    /// Nor are those with a smaller part of the time of all calls.
    pub effect_min: f64,
    /// Compare what should not be compared.
    pub force: bool,
    /// Of the random numbers: the same seed gives the same intervals.
    pub seed: u64,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            confidence: 0.95,
            change_min: 0.02,
            effect_min: 0.001,
            force: false,
            seed: 1,
        }
    }
}

/// Two reports that cannot be compared.
#[derive(Debug)]
pub struct NotComparable {
    pub why: String,
}

impl std::fmt::Display for NotComparable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for NotComparable {}

#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    pub schema: &'static str,
    pub schema_version: u32,
    pub a: Side,
    pub b: Side,
    /// Length of the first run by that of the second, where both are commands that ended
    /// by themselves with status 0 and were recorded to their end; else null.
    pub speed_up: Option<f64>,
    /// What to know before believing it.
    pub warnings: Vec<String>,
    pub confidence: f64,
    /// Comparisons that were made.
    pub compared: usize,
    /// Counts and label times are per run (both commands ended by themselves,
    /// or made the same number of calls), not per second.
    pub per_run: bool,
    /// What changed for sure, largest effect on the total time first.
    pub changes: Vec<Change>,
    /// What may or may not have changed, largest share of time first.
    pub unclear: Vec<Change>,
    /// In b only.
    pub appeared: Vec<Only>,
    /// In a only.
    pub vanished: Vec<Only>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub command: Vec<String>,
    pub wall_ns: u64,
    pub calls: u64,
    pub calls_wall_ns: u64,
    pub blocked_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Call,
    Label,
    CallSite,
    /// Where waiting ends: see [`crate::chains::roots`].
    Root,
    /// Interrupts that landed in calls, by their name.
    Interrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Wall time of a call, nanoseconds.
    Mean,
    P99,
    /// Blocked time of a call, nanoseconds.
    Blocked,
    /// Calls by second, or by run.
    Count,
    /// Blocked nanoseconds of a label or root by second, or by run.
    LabelTime,
    /// The same of interrupts.
    InterruptTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    History,
    Histogram,
    /// From number, sum and longest: an upper bound of the spread.
    Bound,
    /// Counts, as of events that come by chance.
    Chance,
}

/// One quantity in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub kind: Kind,
    pub name: String,
    pub metric: Metric,
    pub basis: Basis,
    pub a: f64,
    pub b: f64,
    /// (b - a) / a and its interval; null when a is 0.
    pub change: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Of the test against "no change", before the correction for many tests.
    pub p_value: f64,
    /// On the wall (or blocked) time of b, by this alone.
    pub effect_ns: i64,
    pub significant: bool,
    /// In words: "fsync: mean 2.1 ms -> 0.9 ms (-57 %, …)".
    pub text: String,
}

/// Something that only one run has.
#[derive(Clone, Debug, Serialize)]
pub struct Only {
    pub kind: Kind,
    pub name: String,
    pub count: u64,
    pub total_ns: u64,
}

/// Fewer of something may be in one run and not in the other by chance.
const ONLY_COUNT_MIN: u64 = 5;
/// Call sites below this share of the wall time are not compared: each
/// comparison makes the others less sure.
const SITE_SHARE_MIN: f64 = 0.01;
/// Runs did the same work when their numbers of calls differ by less.
const SAME_WORK: f64 = 0.02;
/// The 99th percentile of fewer calls is the longest one or two.
const P99_CALLS_MIN: u64 = 500;
const MEAN_CALLS_MIN: u64 = 10;

fn call_name(call: &str, abi: u32) -> String {
    if abi == 32 {
        format!("{call} (32-bit)")
    } else {
        call.to_owned()
    }
}

fn side(report: &Report) -> Side {
    Side {
        command: report.run.command.clone(),
        wall_ns: report.run.wall_ns,
        calls: report.totals.calls,
        calls_wall_ns: report.totals.wall_ns,
        blocked_ns: report.totals.blocked_ns,
    }
}

fn comparable(a: &Report, b: &Report, force: bool) -> Result<Vec<String>, NotComparable> {
    let mut warnings = Vec::new();
    let mut refuse = |why: String| {
        if force {
            warnings.push(why);
            Ok(())
        } else {
            Err(NotComparable { why })
        }
    };
    if a.run.capture != b.run.capture {
        refuse(format!(
            "the first run was taken with {}, the second with {}: they count different calls",
            a.run.capture.text(),
            b.run.capture.text()
        ))?;
    }
    for (which, report) in [("first", a), ("second", b)] {
        if report.totals.calls == 0 {
            refuse(format!("the {which} run has no calls"))?;
        }
    }
    let mut warn = |yes: bool, text: String| {
        if yes {
            warnings.push(text);
        }
    };
    let (short, long) = (
        a.run.wall_ns.min(b.run.wall_ns),
        a.run.wall_ns.max(b.run.wall_ns),
    );
    warn(
        short.saturating_mul(3) < long,
        format!(
            "the runs' lengths are very different ({} and {}): start-up weighs more in the shorter one",
            duration_text(a.run.wall_ns, false),
            duration_text(b.run.wall_ns, false)
        ),
    );
    warn(
        a.run.command != b.run.command,
        "the commands are not the same".into(),
    );
    warn(
        a.run.cpus != b.run.cpus,
        format!(
            "the machines are not the same ({} and {} CPUs)",
            a.run.cpus, b.run.cpus
        ),
    );
    let m = (&a.measured, &b.measured);
    warn(
        m.0.blocked != m.1.blocked || m.0.sites != m.1.sites,
        "blocking was measured in one run only, so it is not compared".into(),
    );
    for (which, report) in [("first", a), ("second", b)] {
        if let Some(state) = report.recording.as_ref().filter(|s| !s.complete) {
            warn(
                true,
                format!(
                    "the {which} recording ends after {}",
                    duration_text(state.until_ns, false)
                ),
            );
        }
        for note in &report.notes {
            let lossy = matches!(
                note.kind,
                NoteKind::Stale
                    | NoteKind::RowsDropped
                    | NoteKind::SitesDropped
                    | NoteKind::ThreadsUnwatched
                    | NoteKind::WrapDropped
                    | NoteKind::WrapThreadsLost
            );
            warn(
                lossy,
                format!("the {which} run is not whole: {}", note.text),
            );
            warn(
                note.kind == NoteKind::SpliceSampled && note.count > 0,
                format!(
                    "times of the {which} run are estimates in part: {}",
                    note.text
                ),
            );
        }
    }
    Ok(warnings)
}

/// " (-57 %, 95 % interval -61..-52 %)"; empty where there is none.
fn interval_text(c: &estimate::Comparison, confidence: f64) -> String {
    let percent = |v: f64| {
        let v = v * 100.0;
        if v > 99_999.0 {
            ">+99999".into()
        } else if v.abs() < 9.95 {
            format!("{v:+.1}")
        } else {
            format!("{v:+.0}")
        }
    };
    match (c.change, c.low, c.high) {
        (Some(change), Some(low), Some(high)) => format!(
            " ({} %, {:.0} % interval {}..{} %)",
            percent(change),
            confidence * 100.0,
            percent(low),
            percent(high)
        ),
        _ => String::new(),
    }
}

/// Which of the tests hold, all of them together (Holm): the smallest p has to pass the
/// strictest bound, and so on; the first that fails ends it.
fn hold(p_values: &[f64], confidence: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|x, y| p_values[*x].total_cmp(&p_values[*y]));
    let alpha = 1.0 - confidence;
    let mut holds = vec![false; p_values.len()];
    for (rank, index) in order.iter().enumerate() {
        if p_values[*index] > alpha / (order.len() - rank) as f64 {
            break;
        }
        holds[*index] = true;
    }
    holds
}

/// Where the draws are more skewed than the test assumes, they decide.
fn is_clear(low: Option<f64>, high: Option<f64>) -> bool {
    match (low, high) {
        (Some(low), Some(high)) => low > 0.0 || high < 0.0,
        _ => true,
    }
}

struct Work<'r> {
    a: &'r Report,
    b: &'r Report,
    options: &'r DiffOptions,
    rng: StdRng,
    /// Seconds, or 1 when both runs did the same work.
    unit: (f64, f64),
    per_run: bool,
    changes: Vec<Change>,
}

impl Work<'_> {
    /// `scale`: from the change of the quantity to the time of the second run.
    #[allow(clippy::too_many_arguments)]
    fn compare(
        &mut self,
        kind: Kind,
        name: &str,
        metric: Metric,
        basis: Basis,
        a: &Estimate,
        b: &Estimate,
        scale: f64,
    ) {
        let c = estimate::compare(a, b, self.options.confidence);
        let interval = interval_text(&c, self.options.confidence);
        let time = |ns: f64| duration_text(ns.round().max(0.0) as u64, false);
        let number = |n: f64| {
            if self.per_run || n >= 100.0 {
                count_text(n.round() as u64)
            } else {
                format!("{n:.1}")
            }
        };
        let per = if self.per_run { "" } else { " a second" };
        let subject = match kind {
            Kind::Call => name.to_owned(),
            Kind::Label => format!("label {name}"),
            Kind::CallSite => format!("call site {name}"),
            Kind::Root => format!("root {name}"),
            Kind::Interrupt => format!("interrupts {name}"),
        };
        let what = match metric {
            Metric::Mean => format!("mean {} -> {}", time(a.value), time(b.value)),
            Metric::P99 => format!("p99 {} -> {}", time(a.value), time(b.value)),
            Metric::Blocked => format!("blocked {} -> {} a call", time(a.value), time(b.value)),
            Metric::Count if self.per_run => {
                format!("{} -> {} calls", number(a.value), number(b.value))
            }
            Metric::Count => format!("{} -> {} calls a second", number(a.value), number(b.value)),
            Metric::LabelTime => format!("blocked {} -> {}{per}", time(a.value), time(b.value)),
            Metric::InterruptTime => format!("{} -> {}{per}", time(a.value), time(b.value)),
        };
        self.changes.push(Change {
            kind,
            name: name.to_owned(),
            metric,
            basis,
            a: a.value,
            b: b.value,
            change: c.change,
            low: c.low,
            high: c.high,
            p_value: c.p_value,
            effect_ns: ((b.value - a.value) * scale) as i64,
            significant: false,
            text: format!("{subject}: {what}{interval}"),
        });
    }

    fn calls(&mut self) {
        let (ra, rb) = (self.a, self.b);
        for a in &ra.calls {
            let Some(b) = rb.calls.iter().find(|b| b.name == a.name && b.abi == a.abi) else {
                continue;
            };
            if a.count < MEAN_CALLS_MIN || b.count < MEAN_CALLS_MIN {
                continue;
            }
            let name = call_name(&a.name, a.abi);
            let history = |r: &'_ Report| -> Vec<HistoryPoint> {
                let found = r
                    .history
                    .iter()
                    .find(|h| h.call == a.name && h.abi == a.abi);
                found.map_or(Vec::new(), |h| h.points.clone())
            };
            let (ha, hb) = (history(ra), history(rb));
            let rng = &mut self.rng;
            let pair = |value: &dyn Fn(&HistoryPoint) -> u64, rng: &mut StdRng| {
                let side = |points: &[HistoryPoint], rng: &mut StdRng| {
                    let parts: Vec<(f64, f64)> = points
                        .iter()
                        .filter(|p| p.count > 0)
                        .map(|p| (value(p) as f64, p.count as f64))
                        .collect();
                    estimate::ratio_of_sums(&parts, rng)
                };
                Some((side(&ha, rng)?, side(&hb, rng)?))
            };
            let walls = pair(&|p| p.wall_ns, rng);
            let blocks = pair(&|p| p.blocked_ns, rng);
            let rates = {
                let side = |points: &[HistoryPoint], rng: &mut StdRng| {
                    let mut before = 0;
                    let mut parts = Vec::new();
                    for p in points {
                        let length = p.time_ns.saturating_sub(before);
                        before = p.time_ns;
                        if length > 0 {
                            parts.push((p.count as f64, length as f64 / 1e9));
                        }
                    }
                    estimate::ratio_of_sums(&parts, rng)
                };
                match (side(&ha, rng), side(&hb, rng)) {
                    (Some(x), Some(y)) => Some((x, y)),
                    _ => None,
                }
            };
            // A call that never returned has its time in the sum, not in the
            // histogram.
            let whole = |r: &CallRow| r.unfinished * 10 <= r.count;
            let (independent_a, independent_b) =
                (estimate::histogram_mean(a), estimate::histogram_mean(b));
            if let Some((x, y)) = &walls {
                self.compare(
                    Kind::Call,
                    &name,
                    Metric::Mean,
                    Basis::History,
                    x,
                    y,
                    b.count as f64,
                );
            } else if let (Some(x), Some(y), true) =
                (&independent_a, &independent_b, whole(a) && whole(b))
            {
                self.compare(
                    Kind::Call,
                    &name,
                    Metric::Mean,
                    Basis::Histogram,
                    x,
                    y,
                    b.count as f64,
                );
            }
            // Neighbouring calls resemble each other: by how much more the
            // mean varies than it would otherwise, the percentile does too.
            let inflate =
                |blocks: Option<&Estimate>, single: Option<&Estimate>| match (blocks, single) {
                    (Some(h), Some(i)) if i.spread > 0.0 && i.value > 0.0 && h.value > 0.0 => {
                        ((h.spread / h.value) / (i.spread / i.value)).max(1.0)
                    }
                    _ => 1.0,
                };
            if a.count >= P99_CALLS_MIN && b.count >= P99_CALLS_MIN {
                let by = (
                    inflate(walls.as_ref().map(|w| &w.0), independent_a.as_ref()),
                    inflate(walls.as_ref().map(|w| &w.1), independent_b.as_ref()),
                );
                let x = estimate::histogram_percentile(a, by.0, &mut self.rng);
                let y = estimate::histogram_percentile(b, by.1, &mut self.rng);
                if let (Some(x), Some(y)) = (x, y) {
                    // One call in a hundred is that slow or slower.
                    let scale = b.count as f64 / 100.0;
                    self.compare(
                        Kind::Call,
                        &name,
                        Metric::P99,
                        Basis::Histogram,
                        &x,
                        &y,
                        scale,
                    );
                }
            }
            if ra.measured.blocked && rb.measured.blocked {
                let known = |r: &CallRow| r.blocked_ns.filter(|_| whole(r));
                if let Some((x, y)) = &blocks {
                    if x.value > 0.0 || y.value > 0.0 {
                        self.compare(
                            Kind::Call,
                            &name,
                            Metric::Blocked,
                            Basis::History,
                            x,
                            y,
                            b.count as f64,
                        );
                    }
                } else if let (Some(x), Some(y)) = (known(a), known(b))
                    && x + y > 0
                {
                    let x = estimate::bounded_mean(a.count, x, a.max_ns.unwrap_or(0));
                    let y = estimate::bounded_mean(b.count, y, b.max_ns.unwrap_or(0));
                    self.compare(
                        Kind::Call,
                        &name,
                        Metric::Blocked,
                        Basis::Bound,
                        &x,
                        &y,
                        b.count as f64,
                    );
                }
            }
            if self.per_run {
                let x = estimate::number(a.count);
                let y = estimate::number(b.count);
                let scale = b.mean() as f64;
                self.compare(
                    Kind::Call,
                    &name,
                    Metric::Count,
                    Basis::Chance,
                    &x,
                    &y,
                    scale,
                );
            } else if let Some((x, y)) = &rates {
                let scale = b.mean() as f64 * self.b.run.wall_ns as f64 / 1e9;
                self.compare(
                    Kind::Call,
                    &name,
                    Metric::Count,
                    Basis::History,
                    x,
                    y,
                    scale,
                );
            }
        }
    }

    /// Time by name, of what both have.
    fn sums(&mut self, kind: Kind) {
        let (a, b) = (sums_of(kind, self.a), sums_of(kind, self.b));
        for (name, x) in &a {
            let Some(y) = b.get(name) else { continue };
            if x.count + y.count < 2 * MEAN_CALLS_MIN {
                continue;
            }
            let scale = self.unit.1;
            let x = estimate::bounded_sum(x.count, x.total_ns, x.max_ns, self.unit.0);
            let y = estimate::bounded_sum(y.count, y.total_ns, y.max_ns, self.unit.1);
            let metric = match kind {
                Kind::Interrupt => Metric::InterruptTime,
                _ => Metric::LabelTime,
            };
            self.compare(kind, name, metric, Basis::Bound, &x, &y, scale);
        }
    }

    fn call_sites(&mut self) {
        let (ra, rb) = (self.a, self.b);
        let large = |r: &Report, s: &CallSiteRow| {
            s.wall() as f64 >= SITE_SHARE_MIN * r.totals.wall_ns as f64
        };
        for a in &ra.call_sites {
            let twin = rb
                .call_sites
                .iter()
                .find(|b| b.call == a.call && b.place == a.place);
            let Some(b) = twin else { continue };
            if a.count < MEAN_CALLS_MIN
                || b.count < MEAN_CALLS_MIN
                || !(large(ra, a) || large(rb, b))
            {
                continue;
            }
            let x = estimate::bounded_mean(a.count, a.wall(), a.max_ns.unwrap_or(0));
            let y = estimate::bounded_mean(b.count, b.wall(), b.max_ns.unwrap_or(0));
            let name = format!("{} in {}", a.call, a.place);
            self.compare(
                Kind::CallSite,
                &name,
                Metric::Mean,
                Basis::Bound,
                &x,
                &y,
                b.count as f64,
            );
        }
    }
}

#[derive(Default)]
struct Sum {
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

/// Blocked time by label or root, interrupts by name; empty where it was not
/// measured.
fn sums_of(kind: Kind, report: &Report) -> BTreeMap<String, Sum> {
    let mut map: BTreeMap<String, Sum> = BTreeMap::new();
    let mut add = |name: String, count: u64, total_ns: u64, max_ns: u64| {
        let sum = map.entry(name).or_default();
        sum.count += count;
        sum.total_ns = sum.total_ns.saturating_add(total_ns);
        sum.max_ns = sum.max_ns.max(max_ns);
    };
    match kind {
        Kind::Label if report.measured.sites => {
            for row in &report.blocking {
                add(row.label.clone(), row.count, row.total_ns, row.max_ns);
            }
        }
        // Where knowledge ends differs from run to run by chance.
        Kind::Root => {
            for row in &report.chains {
                let last = links_of(report, row.first).pop();
                let Some(root) = last.filter(|root| root.kind.known()) else {
                    continue;
                };
                // Its place has a line, which differs from build to build.
                let root = ChainLink {
                    stack: None,
                    ..root.clone()
                };
                let text = link_text(&root, report);
                add(text, row.count, row.total_ns, row.max_ns);
            }
        }
        Kind::Interrupt => {
            for row in report.interrupts.iter().filter(|row| row.count > 0) {
                add(row.name.clone(), row.count, row.total_ns, row.max_ns);
            }
        }
        _ => {}
    }
    map
}

/// What `with` has and `without` has not.
fn only(with: &Report, without: &Report) -> Vec<Only> {
    let mut list = Vec::new();
    for row in &with.calls {
        let there = without
            .calls
            .iter()
            .any(|c| c.name == row.name && c.abi == row.abi);
        if !there && row.count + row.unfinished >= ONLY_COUNT_MIN {
            list.push(Only {
                kind: Kind::Call,
                name: call_name(&row.name, row.abi),
                count: row.count + row.unfinished,
                total_ns: row.wall(),
            });
        }
    }
    for kind in [Kind::Label, Kind::Root, Kind::Interrupt] {
        let there = sums_of(kind, without);
        let measured = match kind {
            Kind::Root => !without.chains.is_empty(),
            Kind::Interrupt => without.measured.irq,
            _ => without.measured.sites,
        };
        for (name, sum) in sums_of(kind, with) {
            if measured && !there.contains_key(&name) && sum.count >= ONLY_COUNT_MIN {
                list.push(Only {
                    kind,
                    name,
                    count: sum.count,
                    total_ns: sum.total_ns,
                });
            }
        }
    }
    // Without call sites in the other report, all of them would be new.
    if !without.call_sites.is_empty() {
        for row in &with.call_sites {
            let there = without
                .call_sites
                .iter()
                .any(|s| s.call == row.call && s.place == row.place);
            let large = row.wall() as f64 >= SITE_SHARE_MIN * with.totals.wall_ns as f64;
            if !there && large && row.count >= ONLY_COUNT_MIN {
                list.push(Only {
                    kind: Kind::CallSite,
                    name: format!("{} in {}", row.call, row.place),
                    count: row.count,
                    total_ns: row.wall(),
                });
            }
        }
    }
    list.sort_by_key(|o| std::cmp::Reverse(o.total_ns));
    list
}

/// Compares two reports; `a` is the one before.
pub fn diff(a: &Report, b: &Report, options: &DiffOptions) -> Result<Diff, NotComparable> {
    let warnings = comparable(a, b, options.force)?;
    let (calls_a, calls_b) = (a.totals.calls as f64, b.totals.calls as f64);
    let same_work = (calls_a - calls_b).abs() <= SAME_WORK * calls_a.max(calls_b);
    // A command that ended by itself has done its job, however long it took.
    let done = |r: &Report| {
        r.run.kind == RunKind::Run && matches!(r.run.exit, Some(Exit::Code(code)) if code == 0)
    };
    let per_run = same_work || (done(a) && done(b));
    let whole = |r: &Report| {
        done(r) && r.run.wall_ns > 0 && r.recording.as_ref().is_none_or(|s| s.complete)
    };
    let speed_up = (whole(a) && whole(b)).then(|| a.run.wall_ns as f64 / b.run.wall_ns as f64);
    let seconds = |r: &Report| (r.run.wall_ns as f64 / 1e9).max(1e-9);
    let mut work = Work {
        a,
        b,
        options,
        rng: StdRng::seed_from_u64(options.seed),
        unit: if per_run {
            (1.0, 1.0)
        } else {
            (seconds(a), seconds(b))
        },
        per_run,
        changes: Vec::new(),
    };
    work.calls();
    work.sums(Kind::Label);
    work.sums(Kind::Root);
    work.sums(Kind::Interrupt);
    work.call_sites();
    let mut changes = work.changes;

    let all_ns = a.totals.wall_ns.max(b.totals.wall_ns) as f64;
    let p_values: Vec<f64> = changes.iter().map(|c| c.p_value).collect();
    for (c, holds) in changes.iter_mut().zip(hold(&p_values, options.confidence)) {
        let large = c.change.is_none_or(|v| v.abs() >= options.change_min)
            && c.effect_ns.unsigned_abs() as f64 >= options.effect_min * all_ns;
        c.significant = holds && large && is_clear(c.low, c.high);
    }
    let compared = changes.len();
    let (mut sure, mut unclear): (Vec<Change>, Vec<Change>) =
        changes.into_iter().partition(|c| c.significant);
    // What belongs together stands together, under its largest effect.
    let mut largest: BTreeMap<(u8, String), i64> = BTreeMap::new();
    let key = |c: &Change| (c.kind as u8, c.name.clone());
    for c in &sure {
        let effect = largest.entry(key(c)).or_default();
        *effect = (*effect).max(c.effect_ns.abs());
    }
    sure.sort_by(|x, y| {
        let by_subject = largest[&key(y)].cmp(&largest[&key(x)]);
        by_subject
            .then_with(|| key(x).cmp(&key(y)))
            .then_with(|| (x.metric as u8).cmp(&(y.metric as u8)))
    });
    let weight = |c: &Change| match c.kind {
        Kind::Call => b
            .calls
            .iter()
            .find(|r| call_name(&r.name, r.abi) == c.name)
            .map_or(0, CallRow::wall),
        _ => (c.b * work.unit.1) as u64,
    };
    unclear.sort_by_key(|c| std::cmp::Reverse(weight(c)));
    Ok(Diff {
        schema: DIFF_SCHEMA,
        schema_version: DIFF_SCHEMA_VERSION,
        a: side(a),
        b: side(b),
        speed_up,
        warnings,
        confidence: options.confidence,
        compared,
        per_run,
        changes: sure,
        unclear,
        appeared: only(b, a),
        vanished: only(a, b),
    })
}
