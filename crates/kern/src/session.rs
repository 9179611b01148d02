// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has been measured so far, and how does it change?

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use debox_abi::DEBOX_HIST_BUCKETS;
use debox_report::Hist;
use serde::Serialize;

use crate::call_site;
use crate::engine::{Engine, Insertion, MetricId, Resource, Restriction};
use crate::error::Error;
use crate::functions::{Choice, Function, Functions};
use crate::generated::kern_sums;
use crate::resource::Written;
use crate::way::Way;

/// One point of a plot: what happened since the point before.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Point {
    /// Since the session began.
    pub seconds: f64,
    pub calls_per_second: f64,
    /// Average number of threads inside; None if only calls are counted.
    pub concurrency: Option<f64>,
    pub self_concurrency: Option<f64>,
    pub off_cpu_concurrency: Option<f64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

/// Everything since a metric was inserted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    pub seconds: f64,
    pub calls: u64,
    /// Thread-seconds inside, of calls that are not over too.
    pub inside_ns: u64,
    pub concurrency: Option<f64>,
    /// Threads inside at this moment.
    pub inside_now: u64,
    pub returned: u64,
    pub total_ns: u64,
    pub self_ns: u64,
    /// inside_ns without what measured callees took.
    pub self_inside_ns: u64,
    pub off_cpu_ns: u64,
    pub self_off_cpu_ns: u64,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub max_ns: u64,
    /// Threads that ended inside.
    pub never_returned: u64,
    /// Entries whose return was not seen.
    pub lost_returns: u64,
    /// Entries that were counted but not timed, for want of room.
    pub untimed: u64,
}

/// A metric on a resource, watched.
pub struct Watch {
    pub id: MetricId,
    pub name: String,
    pub resource: Resource,
    pub way: Option<Way>,
    pub timed: bool,
    pub restriction: Restriction,
    /// ... in words.
    pub restricted: String,
    /// As somebody would write it; None for what was found below another one.
    pub written: Option<String>,
    pub series: Vec<Point>,
    pub totals: Totals,
    pub histogram: Vec<u64>,
    /// Why it was taken out, if so.
    pub removed: Option<String>,
    began: u64,
    last_ns: u64,
    last: kern_sums,
}

/// CLOCK_MONOTONIC, which bpf_ktime_get_ns() reads.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Thread-nanoseconds inside up to `now`, modulo 2^64 (see bpf/kern.h).
pub fn integral(sums: &kern_sums, now: u64) -> u64 {
    sums.left_at
        .wrapping_sub(sums.entered_at)
        .wrapping_add(sums.entered.wrapping_sub(sums.left).wrapping_mul(now))
}

/// The difference of two integrals: a CPU that entered after `now` was read
/// may make it a little negative.
pub fn span(later: u64, earlier: u64) -> u64 {
    let difference = later.wrapping_sub(earlier);
    if difference > u64::MAX / 2 {
        0
    } else {
        difference
    }
}

pub fn hist_of(buckets: &[u64]) -> Hist {
    let mut hist = Hist::default();
    let mut array = [0u64; DEBOX_HIST_BUCKETS];
    for (to, from) in array.iter_mut().zip(buckets) {
        *to = *from;
    }
    hist.add(&array);
    hist
}

impl Watch {
    /// Reads what was counted, and adds a point.
    fn read(&mut self, engine: &Engine, session_began: u64) -> Result<(), Error> {
        let sums = engine.read(self.id)?;
        let now = monotonic_ns();
        let seconds = now.saturating_sub(self.last_ns).max(1) as f64 / 1e9;
        let since = |a: u64, b: u64| a.saturating_sub(b) as f64;
        let mut point = Point {
            seconds: now.saturating_sub(session_began) as f64 / 1e9,
            calls_per_second: since(sums.calls, self.last.calls) / seconds,
            ..Point::default()
        };
        let whole = span(integral(&sums, now), integral(&self.last, self.last_ns));
        if self.timed {
            point.concurrency = Some(whole as f64 / 1e9 / seconds);
            // What callees took, of calls that are over: the rest is its own.
            let below = |s: &kern_sums| s.total_ns.saturating_sub(s.self_ns);
            let own = (whole as f64 - since(below(&sums), below(&self.last))).max(0.0);
            point.self_concurrency = Some(own / 1e9 / seconds);
            point.off_cpu_concurrency = Some(since(sums.off_ns, self.last.off_ns) / 1e9 / seconds);
            let histogram = engine.histogram(self.id)?;
            let new: Vec<u64> = histogram
                .iter()
                .zip(self.histogram.iter().chain(std::iter::repeat(&0)))
                .map(|(a, b)| a.saturating_sub(*b))
                .collect();
            let recent = hist_of(&new);
            point.p50_ns = recent.percentile(50, sums.max_ns);
            point.p99_ns = recent.percentile(99, sums.max_ns);
            self.histogram = histogram;
        }
        self.series.push(point);
        self.last = sums;
        self.last_ns = now;
        let all = hist_of(&self.histogram);
        let lived = now.saturating_sub(self.began).max(1) as f64 / 1e9;
        let inside_ns = span(integral(&sums, now), 0);
        self.totals = Totals {
            seconds: lived,
            calls: sums.calls,
            inside_ns,
            concurrency: self.timed.then_some(inside_ns as f64 / 1e9 / lived),
            inside_now: sums.entered.saturating_sub(sums.left),
            returned: sums.returned,
            total_ns: sums.total_ns,
            self_ns: sums.self_ns,
            self_inside_ns: inside_ns.saturating_sub(sums.total_ns.saturating_sub(sums.self_ns)),
            off_cpu_ns: sums.off_ns,
            self_off_cpu_ns: sums.self_off_ns,
            p50_ns: all.percentile(50, sums.max_ns),
            p99_ns: all.percentile(99, sums.max_ns),
            max_ns: sums.max_ns,
            never_returned: sums.never,
            lost_returns: sums.lost,
            untimed: sums.no_room + sums.too_deep + sums.nested,
        };
        Ok(())
    }
}

/// What a session's metrics are restricted to when they say nothing else.
#[derive(Clone, Debug, Default)]
pub struct Common {
    pub restriction: Restriction,
    pub text: String,
}

/// The metrics of one run of `debox kern`.
pub struct Session {
    pub engine: Engine,
    pub functions: Arc<Functions>,
    pub watches: Vec<Watch>,
    pub notes: Vec<String>,
    pub common: Common,
    pub began: Instant,
    began_ns: u64,
    next_set: u32,
    pub max_functions: u32,
    pub max_overhead: f64,
    pub force_many: bool,
}

/// What inserting would take.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cost {
    pub functions: usize,
    pub ways: Vec<(String, usize)>,
    pub attach_seconds: f64,
    pub detach_seconds: f64,
    /// For each execution of what is measured.
    pub call_ns: u64,
    pub refused: Vec<String>,
}

/// Seconds for one more function, and nanoseconds for each of its calls,
/// entry and exit: from measurements of Linux 6.1 and 6.12.
fn way_cost(way: Option<Way>, timed: bool) -> (f64, f64, u64) {
    let (attach, detach, call) = match way {
        Some(Way::Session | Way::Multi) => (0.0002, 0.0002, 250),
        Some(Way::Trampoline) => (0.04, 0.15, 200),
        Some(Way::Kprobe) => (0.03, 0.09, 500),
        None => (0.01, 0.03, 150),
    };
    (attach, detach, if timed { call } else { call / 2 })
}

impl Cost {
    pub fn text(&self) -> String {
        let ways: Vec<String> = match self.ways.as_slice() {
            [(way, 1)] => vec![format!("by {way}")],
            ways => ways
                .iter()
                .map(|(way, n)| format!("{n} by {way}"))
                .collect(),
        };
        format!(
            "{}: about {} to attach, {} to detach, and {:.2} µs a call",
            ways.join(", "),
            seconds_text(self.attach_seconds),
            seconds_text(self.detach_seconds),
            self.call_ns as f64 / 1000.0
        )
    }
}

fn seconds_text(seconds: f64) -> String {
    if seconds < 0.1 {
        "0.1 s".into()
    } else {
        format!("{seconds:.1} s")
    }
}

impl Session {
    pub fn new(engine: Engine, functions: Arc<Functions>) -> Session {
        Session {
            engine,
            functions,
            watches: Vec::new(),
            notes: Vec::new(),
            common: Common::default(),
            began: Instant::now(),
            began_ns: monotonic_ns(),
            next_set: 1,
            max_functions: 200,
            max_overhead: 30.0,
            force_many: false,
        }
    }

    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A new set of processes: its bit.
    pub fn process_set(&mut self, pids: &[u32], follow: bool) -> Result<u32, Error> {
        if self.next_set >= 32 {
            return Err(Error::Usage(
                "at most 31 different restrictions to processes".into(),
            ));
        }
        let bit = 1u32 << (self.next_set - 1);
        self.next_set += 1;
        for pid in pids {
            if !Path::new(&format!("/proc/{pid}")).exists() {
                return Err(Error::Usage(format!("there is no process {pid}")));
            }
            self.engine.process_add(*pid, bit)?;
        }
        if follow {
            self.engine.follow((1 << (self.next_set - 1)) - 1)?;
        }
        Ok(bit)
    }

    /// The restriction that a resource was written with, beside the common one.
    pub fn restriction(&mut self, written: &Written) -> Result<(Restriction, String), Error> {
        let mut restriction = self.common.restriction.clone();
        let mut text = self.common.text.clone();
        let mut say = |what: String| {
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(&what);
        };
        if !written.pids.is_empty() {
            restriction.processes = self.process_set(&written.pids, true)?;
            let list: Vec<String> = written.pids.iter().map(u32::to_string).collect();
            say(format!("pid {}", list.join(", ")));
        }
        if let Some(call) = &written.call {
            restriction.call = Some(call_number(call)?);
            say(format!("in {call}"));
        }
        if let Some(cgroup) = &written.cgroup {
            restriction.cgroup = Some(self.engine.cgroup_add(cgroup)?);
            say(format!("cgroup {}", cgroup.display()));
        }
        if let Some(site) = &written.call_site {
            let site = call_site::CallSite::find(site)?;
            restriction.call_site =
                self.engine
                    .call_site_add(&site.path, site.call_offset, site.behind_offset)?;
            say(format!("from {}", site.name));
        }
        Ok((restriction, text))
    }

    /// What inserting these would take.
    pub fn cost(&self, resources: &[Resource], timed: bool) -> Cost {
        let functions: Vec<&Function> = resources
            .iter()
            .filter_map(|r| match r {
                Resource::Function(f) => Some(f),
                _ => None,
            })
            .collect();
        let mut plan = self.engine.plan(&functions).into_iter();
        let mut cost = Cost::default();
        for resource in resources {
            let (way, label) = match resource {
                Resource::Function(_) => match plan.next() {
                    Some(Ok(way)) => (Some(way), way.name()),
                    Some(Err(why)) => {
                        cost.refused.push(why);
                        continue;
                    }
                    None => continue,
                },
                Resource::Instruction { .. } => (Some(Way::Kprobe), "kprobe"),
                Resource::Call { .. } => (None, "call tracepoint"),
            };
            let timed = timed && !matches!(resource, Resource::Instruction { .. });
            let (attach, detach, call) = way_cost(way, timed);
            cost.functions += 1;
            cost.attach_seconds += attach;
            cost.detach_seconds += detach;
            cost.call_ns = cost.call_ns.max(call);
            match cost.ways.iter_mut().find(|(name, _)| name == label) {
                Some((_, n)) => *n += 1,
                None => cost.ways.push((label.to_owned(), 1)),
            }
        }
        cost
    }

    /// What a written resource stands for, when there is room for all of it.
    fn resolve(&self, text: &str) -> Result<(Written, Vec<Resource>), Error> {
        let written = Written::parse(text).map_err(Error::Usage)?;
        let resources = written.resolve(&self.functions).map_err(Error::Usage)?;
        let attached = self.watches.iter().filter(|w| w.removed.is_none()).count();
        if attached + resources.len() > self.max_functions as usize && !self.force_many {
            return Err(Error::Usage(format!(
                "{text} stands for {} functions{}; at most {} are attached at the same time. \
                 Narrow it (`debox kern --list '{text}'` lists them), or raise the limit: \
                 --max-functions {}",
                resources.len(),
                if attached > 0 {
                    format!(", and {attached} are being measured")
                } else {
                    String::new()
                },
                self.max_functions,
                attached + resources.len()
            )));
        }
        Ok((written, resources))
    }

    /// What inserting one written resource would take.
    pub fn cost_of(&self, text: &str, timed: bool) -> Result<Cost, Error> {
        let (written, resources) = self.resolve(text)?;
        let mut cost = self.cost(&resources, timed);
        if cost.functions == 0 {
            cost.refused.extend(written.as_call());
            return Err(Error::CannotAttach(cost.refused.join("\n")));
        }
        Ok(cost)
    }

    /// Inserts one written resource: what was attached. Its cost is announced
    /// before that.
    pub fn add(
        &mut self,
        text: &str,
        timed: bool,
        announce: impl Fn(&str),
    ) -> Result<Vec<usize>, Error> {
        let (written, resources) = self.resolve(text)?;
        let (restriction, restricted) = self.restriction(&written)?;
        let cost = self.cost(&resources, timed);
        if cost.functions > 0 {
            announce(&format!("{text}: {}", cost.text()));
        }
        let insertions: Vec<Insertion> = resources
            .into_iter()
            .map(|resource| Insertion {
                timed: timed && !matches!(resource, Resource::Instruction { .. }),
                resource,
                restriction: restriction.clone(),
            })
            .collect();
        let (done, skipped) = self.engine.insert(&insertions)?;
        if done.is_empty() {
            let mut whys: Vec<String> = skipped.into_iter().map(|s| s.why).collect();
            if whys.is_empty() {
                whys.push(format!("{text}: nothing to attach to"));
            }
            whys.extend(written.as_call());
            return Err(Error::CannotAttach(whys.join("\n")));
        }
        for skip in skipped {
            self.notes.push(format!("not measured: {}", skip.why));
        }
        let first = self.watches.len();
        for (id, place) in done {
            let insertion = &insertions[place];
            let at = self.watch(id, insertion, &restricted);
            let restrictions = text.split_once('@').map(|(_, rest)| rest);
            self.watches[at].written = Some(match (restrictions, &written.choice) {
                // One of all.
                (Some(_), Choice::All) | (None, _) => insertion.resource.name(),
                (Some(rest), _) => format!("{}@{rest}", insertion.resource.name()),
            });
        }
        Ok((first..self.watches.len()).collect())
    }

    /// Begins to watch an inserted metric.
    pub fn watch(&mut self, id: MetricId, insertion: &Insertion, restricted: &str) -> usize {
        let now = monotonic_ns();
        // Inserting others of the same group may have taken a second: what was
        // counted meanwhile is no part of the first interval, or the watchdog
        // would take a function out for a rate that it never had.
        let last = self.engine.read(id).unwrap_or_default();
        self.watches.push(Watch {
            id,
            name: insertion.resource.name(),
            resource: insertion.resource.clone(),
            way: self.engine.way(id),
            timed: insertion.timed,
            restriction: insertion.restriction.clone(),
            restricted: restricted.to_owned(),
            written: None,
            series: Vec::new(),
            totals: Totals::default(),
            histogram: Vec::new(),
            removed: None,
            began: now,
            last_ns: now,
            last,
        });
        self.watches.len() - 1
    }

    /// Takes a metric out, and those that count only directly below it; what
    /// they have measured stays.
    pub fn remove(&mut self, place: usize, why: &str) -> Duration {
        let mut ids: Vec<MetricId> = Vec::new();
        let Some(first) = self.watches.get(place).filter(|w| w.removed.is_none()) else {
            return Duration::ZERO;
        };
        let (name, first) = (first.name.clone(), first.id);
        // Whoever is below one of them comes behind it in the list.
        for watch in self.watches.iter_mut().filter(|w| w.removed.is_none()) {
            if watch.id == first {
                watch.removed = Some(why.to_owned());
            } else if watch.restriction.under.is_some_and(|u| ids.contains(&u)) {
                watch.removed = Some(format!("{name}: {why}"));
            } else {
                continue;
            }
            ids.push(watch.id);
        }
        self.engine.remove(&ids)
    }

    /// Reads all metrics: one point more for each.
    pub fn tick(&mut self) -> Result<(), Error> {
        for watch in &mut self.watches {
            if watch.removed.is_none() {
                watch.read(&self.engine, self.began_ns)?;
            }
        }
        self.watchdog();
        Ok(())
    }

    /// Share of one CPU that measuring takes, by estimate, in percent.
    pub fn overhead(&self) -> f64 {
        self.watches
            .iter()
            .filter(|w| w.removed.is_none())
            .map(watch_overhead)
            .sum()
    }

    fn watchdog(&mut self) {
        while self.overhead() > self.max_overhead {
            let worst = self
                .watches
                .iter()
                .enumerate()
                .filter(|(_, w)| w.removed.is_none())
                .max_by(|a, b| watch_overhead(a.1).total_cmp(&watch_overhead(b.1)))
                .map(|(place, _)| place);
            let Some(worst) = worst else { break };
            let watch = &self.watches[worst];
            let rate = watch.series.last().map_or(0.0, |p| p.calls_per_second);
            let text = too_often(&watch.name, rate, watch_overhead(watch), self.max_overhead);
            self.notes.push(text);
            self.remove(worst, "called too often");
        }
    }

    /// What was lost or not measured, in words.
    pub fn losses(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for watch in &self.watches {
            let t = &watch.totals;
            if t.lost_returns > 0 {
                notes.push(format!(
                    "{}: {} returns were not seen (more threads inside than the kernel has \
                     instances of the probe); they count as calls and, until that was noticed, \
                     as threads inside",
                    watch.name, t.lost_returns
                ));
            }
            if t.untimed > 0 {
                notes.push(format!(
                    "{}: {} calls were counted but not timed (too many threads inside, too deep, \
                     or an interrupt in the middle of the counting); --max-threads makes more room",
                    watch.name, t.untimed
                ));
            }
            if t.never_returned > 0 {
                notes.push(format!(
                    "{}: {} threads ended inside of it",
                    watch.name, t.never_returned
                ));
            }
        }
        if let Ok(missed) = self.engine.missed()
            && missed > 0
        {
            notes.push(format!(
                "the kernel skipped {missed} probe hits (a probe inside a probe, or more threads \
                 inside than it has instances for): counts are too low by that; --way fentry \
                 has no such limit"
            ));
        }
        if let Ok(unfollowed) = self.engine.loaded().unfollowed()
            && unfollowed > 0
        {
            notes.push(format!(
                "{unfollowed} child processes were not followed: too many at the same time"
            ));
        }
        notes
    }
}

fn watch_overhead(watch: &Watch) -> f64 {
    watch.series.last().map_or(0.0, |p| {
        overhead(watch.way, watch.timed, p.calls_per_second)
    })
}

/// Share of one CPU that measuring so many calls takes, by estimate, in percent.
pub fn overhead(way: Option<Way>, timed: bool, calls_per_second: f64) -> f64 {
    let (_, _, call_ns) = way_cost(way, timed);
    calls_per_second * call_ns as f64 / 1e7
}

/// Why something was taken out.
pub fn too_often(name: &str, rate: f64, overhead: f64, limit: f64) -> String {
    format!(
        "{name} was called {} times a second: measuring that takes about {overhead:.2} % of a CPU, \
         so it was taken out (limit: --max-overhead {limit})",
        debox_output::count_text(rate as u64),
    )
}

/// The number of a system call by its name.
pub fn call_number(name: &str) -> Result<i32, Error> {
    debox_symbol::syscall_number(name.trim_end_matches("()"))
        .ok_or_else(|| Error::Usage(format!("{name} is no system call: see `man 2 syscalls`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_inside_counts_what_is_not_over() {
        // Entered at 100 and 150; the first left at 180.
        let sums = kern_sums {
            entered: 2,
            entered_at: 250,
            left: 1,
            left_at: 180,
            ..kern_sums::default()
        };
        assert_eq!(integral(&sums, 200), 80 + 50);
        assert_eq!(integral(&sums, 300), 80 + 150);
        assert_eq!(span(10, 12), 0);
        assert_eq!(span(12, 10), 2);
        // Many large times wrap, the difference does not.
        let sums = kern_sums {
            entered: 3,
            entered_at: (u64::MAX / 2).wrapping_mul(3),
            left: 2,
            left_at: (u64::MAX / 2).wrapping_mul(2).wrapping_add(7),
            ..kern_sums::default()
        };
        assert_eq!(integral(&sums, u64::MAX / 2 + 5), 12);
    }
}
