// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which tables are there, and what stands in their rows?

use crate::frame::{Between, buckets_between, percentile};
use crate::table::{Cell, Column, Row, Table};
use debox_output::{count_text, duration_text, printable};
use debox_report::{CulpritOf, CulpritRole, Report, culprit_groups};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Calls,
    Blocking,
    CallSites,
    Threads,
    Culprits,
    Processes,
}

impl View {
    pub const ALL: [View; 6] = [
        View::Calls,
        View::Blocking,
        View::CallSites,
        View::Threads,
        View::Culprits,
        View::Processes,
    ];

    /// As on the command line.
    pub const NAMES: [&'static str; 6] = [
        "calls",
        "blocking",
        "sites",
        "threads",
        "culprits",
        "processes",
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Some(Self::ALL[Self::NAMES.iter().position(|n| *n == name)?])
    }

    pub fn title(self) -> &'static str {
        match self {
            View::Calls => "calls",
            View::Blocking => "blocking",
            View::CallSites => "call sites",
            View::Threads => "threads",
            View::Culprits => "culprits",
            View::Processes => "processes",
        }
    }

    /// The column that it is sorted by at first: the time.
    pub fn sorted_by(self) -> usize {
        match self {
            View::Calls => 2,
            View::Blocking => 3,
            View::CallSites => 3,
            View::Threads => 4,
            View::Culprits => 7,
            View::Processes => 2,
        }
    }
}

/// How numbers are written.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub totals: bool,
    pub ascii: bool,
}

impl Style {
    fn count(self, value: f64) -> Cell {
        let text = if value == 0.0 {
            "-".into()
        } else if self.totals || value >= 9.95 {
            count_text(value.round() as u64)
        } else {
            // Slower than once in twenty seconds is still not never.
            format!("{:.1}", value.max(0.1))
        };
        Cell::Number(text, value)
    }

    fn time(self, value: f64) -> Cell {
        let text = if value == 0.0 {
            "-".into()
        } else {
            duration_text(value.round().max(1.0) as u64, self.ascii)
        };
        Cell::Number(text, value)
    }

    fn marked(self, mark: &str, value: f64) -> Cell {
        match self.time(value) {
            Cell::Number(text, value) if value > 0.0 => {
                Cell::Number(format!("{mark}{text}"), value)
            }
            cell => cell,
        }
    }

    fn some_time(self, value: Option<f64>) -> Cell {
        value.map_or(Cell::Number("?".into(), -1.0), |value| self.time(value))
    }
}

fn text(value: &str) -> Cell {
    Cell::Text(printable(value))
}

fn mean(total: f64, count: f64) -> f64 {
    if count > 0.0 { total / count } else { 0.0 }
}

/// `(no call)`: outside of calls.
fn call_text(call: Option<&str>, abi: u32) -> String {
    match call {
        None => "(no call)".into(),
        Some(name) if abi == 32 => format!("{name} (32-bit)"),
        Some(name) => name.into(),
    }
}

const NUMBER: usize = 8;

fn words(title: &'static str, least: usize, rank: u8) -> Column {
    Column {
        title,
        text: true,
        least,
        rank,
    }
}

fn number(title: &'static str, rank: u8) -> Column {
    Column {
        title,
        text: false,
        least: NUMBER,
        rank,
    }
}

/// The rows of one view. `now` lies in `between`.
pub fn table(view: View, between: &Between<'_>, style: Style) -> Table {
    match view {
        View::Calls => calls(between, style),
        View::Blocking => blocking(between, style),
        View::CallSites => call_sites(between, style),
        View::Threads => threads(between, style),
        View::Culprits => culprits(between, style),
        View::Processes => processes(between, style),
    }
}

/// Rate and time have different titles in totals.
fn titled(style: Style, rate: &'static str, total: &'static str) -> &'static str {
    if style.totals { total } else { rate }
}

fn calls(between: &Between<'_>, style: Style) -> Table {
    let before: HashMap<(&str, u32), _> = between
        .before
        .iter()
        .flat_map(|report| &report.calls)
        .map(|row| ((row.name.as_str(), row.abi), row))
        .collect();
    let irq = between.now.measured.irq;
    let rows = between.now.calls.iter().map(|row| {
        let old = before.get(&(row.name.as_str(), row.abi)).copied();
        let was = |get: fn(&debox_report::CallRow) -> u64| old.map_or(0, get);
        let count = between.per_second(row.count, was(|r| r.count));
        let wall = between.per_second(row.wall(), was(|r| r.wall()));
        let part = |now: Option<u64>, then: Option<u64>| {
            style.some_time(between.some_per_second(now, then))
        };
        let buckets = buckets_between(
            &row.histogram,
            old.map_or(&[][..], |o| o.histogram.as_slice()),
        );
        let percent =
            |p| style.time(percentile(&buckets, p, row.max_ns.unwrap_or(0)).unwrap_or(0) as f64);
        let interrupts = irq.then(|| part(row.irq_ns, old.and_then(|o| o.irq_ns)));
        let mut row = Row {
            cells: vec![
                text(&call_text(Some(&row.name), row.abi)),
                style.count(count),
                style.marked(row.mark(), wall),
                part(row.blocked_ns, old.and_then(|o| o.blocked_ns)),
                part(row.cpu_ns, old.and_then(|o| o.cpu_ns)),
                part(row.runq_ns, old.and_then(|o| o.runq_ns)),
                percent(50),
                percent(99),
                percent(100),
                style.count(between.per_second(row.errors, was(|r| r.errors))),
            ],
            idle: count == 0.0 && wall == 0.0,
        };
        row.cells.extend(interrupts);
        row
    });
    let mut table = Table {
        rows: rows.collect(),
        columns: vec![
            words("CALL", 10, 0),
            number(titled(style, "CALLS/S", "CALLS"), 0),
            number(titled(style, "TIME/S", "TIME"), 0),
            number("BLOCKED", 0),
            number("ON-CPU", 1),
            number("RUNQ", 2),
            number("P50", 4),
            number("P99", 3),
            number("MAX", 5),
            number(titled(style, "ERRORS/S", "ERRORS"), 6),
        ],
        nothing: "no call has returned yet".into(),
    };
    // Last: what a column is sorted by keeps its place.
    table.columns.extend(irq.then(|| number("IRQ", 2)));
    table
}

#[derive(Default)]
struct Blocked {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    waiters_max: u64,
    place: String,
    places: usize,
}

/// By label and call: places of one label are summed up.
fn blocked(report: &Report) -> BTreeMap<(String, String), Blocked> {
    let mut sums: BTreeMap<(String, String), Blocked> = BTreeMap::new();
    for row in &report.blocking {
        let sum = sums
            .entry((row.label.clone(), call_text(row.call.as_deref(), row.abi)))
            .or_default();
        sum.count += row.count;
        sum.total_ns += row.total_ns;
        sum.max_ns = sum.max_ns.max(row.max_ns);
        sum.waiters_max = sum.waiters_max.max(row.waiters_max.unwrap_or(0));
        sum.places += 1;
        // Rows are in order of their time: the first is the heaviest.
        if sum.places == 1 {
            sum.place = row.place();
        }
    }
    sums
}

fn blocking(between: &Between<'_>, style: Style) -> Table {
    let before = between.before.map(blocked).unwrap_or_default();
    let rows = blocked(between.now).into_iter().map(|(key, sum)| {
        let old = before.get(&key);
        let count = between.per_second(sum.count, old.map_or(0, |o| o.count));
        let total = between.per_second(sum.total_ns, old.map_or(0, |o| o.total_ns));
        let place = match sum.places {
            1 => sum.place,
            n => format!("{} and {} more", sum.place, n - 1),
        };
        Row {
            cells: vec![
                text(&key.0),
                text(&key.1),
                style.count(count),
                style.time(total),
                style.time(mean(total, count)),
                style.time(sum.max_ns as f64),
                style.count(sum.waiters_max as f64),
                text(&place),
            ],
            idle: count == 0.0 && total == 0.0,
        }
    });
    Table {
        rows: rows.collect(),
        columns: vec![
            words("LABEL", 16, 0),
            words("CALL", 12, 0),
            number(titled(style, "SLEEPS/S", "SLEEPS"), 0),
            number("BLOCKED", 0),
            number("MEAN", 2),
            number("LONGEST", 3),
            number("WAITERS", 4),
            words("PLACE", 16, 1),
        ],
        nothing: if between.now.measured.blocked {
            "no call has blocked yet".into()
        } else {
            "blocked time is not measured by this broker".into()
        },
    }
}

/// The rows of the look before, by what makes them the same row.
fn before<'a, R, K: Eq + Hash>(
    between: &Between<'a>,
    rows: fn(&Report) -> &Vec<R>,
    key: impl Fn(&R) -> K,
) -> HashMap<K, &'a R> {
    let rows = between.before.map(rows).into_iter().flatten();
    rows.map(|row| (key(row), row)).collect()
}

fn call_sites(between: &Between<'_>, style: Style) -> Table {
    let key = |row: &debox_report::CallSiteRow| (row.place.clone(), row.call.clone());
    let before = before(between, |report| &report.call_sites, key);
    let rows = between.now.call_sites.iter().map(|row| {
        let old = before.get(&key(row)).copied();
        let count = between.per_second(row.count, old.map_or(0, |o| o.count));
        let wall = between.per_second(row.wall(), old.map_or(0, |o| o.wall()));
        let part = |now: Option<u64>, then: Option<u64>| {
            style.some_time(between.some_per_second(now, then))
        };
        Row {
            cells: vec![
                text(&row.place),
                text(&row.call),
                style.count(count),
                style.time(wall),
                part(row.blocked_ns, old.and_then(|o| o.blocked_ns)),
                part(row.cpu_ns, old.and_then(|o| o.cpu_ns)),
                style.time(mean(wall, count)),
                style.time(row.max_ns.unwrap_or(0) as f64),
                style.count(between.per_second(row.errors, old.map_or(0, |o| o.errors))),
            ],
            idle: count == 0.0 && wall == 0.0,
        }
    });
    Table {
        rows: rows.collect(),
        columns: vec![
            words("CALL SITE", 24, 0),
            words("CALL", 10, 0),
            number(titled(style, "CALLS/S", "CALLS"), 0),
            number(titled(style, "TIME/S", "TIME"), 0),
            number("BLOCKED", 1),
            number("ON-CPU", 2),
            number("MEAN", 3),
            number("LONGEST", 4),
            number(titled(style, "ERRORS/S", "ERRORS"), 5),
        ],
        nothing: "no call sites are known of these calls".into(),
    }
}

fn threads(between: &Between<'_>, style: Style) -> Table {
    let key = |row: &debox_report::ThreadRow| (row.pid, row.tid, row.first_ns);
    let before = before(between, |report| &report.threads, key);
    let open: HashMap<u32, _> = between
        .now
        .open_calls
        .iter()
        .map(|call| (call.tid, call))
        .collect();
    let now_text = |tid: u32, ended: bool| match open.get(&tid) {
        _ if ended => "ended".to_owned(),
        None => String::new(),
        Some(call) if call.at_least_ns < 1_000_000 => call.call.clone(),
        Some(call) => format!(
            "{} {}",
            call.call,
            duration_text(call.at_least_ns, style.ascii)
        ),
    };
    let irq = between.now.measured.irq;
    let mut rows: Vec<Row> = between
        .now
        .threads
        .iter()
        .map(|row| {
            let old = before.get(&key(row)).copied();
            let per = |now: u64, then: fn(&debox_report::ThreadRow) -> u64| {
                between.per_second(now, old.map_or(0, then))
            };
            let count = per(row.count, |r| r.count);
            let wall = per(row.wall_ns, |r| r.wall_ns);
            let id = |id: u32| match row.tid {
                0 => Cell::Number("others".into(), f64::from(u32::MAX)),
                _ => Cell::Number(id.to_string(), f64::from(id)),
            };
            let interrupts = irq.then(|| {
                style.some_time(between.some_per_second(row.irq_ns, old.and_then(|o| o.irq_ns)))
            });
            let mut row = Row {
                cells: vec![
                    text(&row.comm),
                    id(row.tid),
                    id(row.pid),
                    style.count(count),
                    style.time(wall),
                    style.time(per(row.blocked_ns, |r| r.blocked_ns)),
                    style.time(per(row.cpu_ns, |r| r.cpu_ns)),
                    style.time(per(row.runq_ns, |r| r.runq_ns)),
                    style.count(per(row.errors, |r| r.errors)),
                    text(&now_text(row.tid, row.ended_ns.is_some())),
                ],
                idle: count == 0.0 && wall == 0.0,
            };
            row.cells.extend(interrupts);
            row
        })
        .collect();
    // Threads that have not returned from any call are known from /proc alone.
    for call in &between.now.open_calls {
        if !between.now.threads.iter().any(|row| row.tid == call.tid) {
            let none = || Cell::Number("-".into(), 0.0);
            let mut row = Row {
                cells: vec![
                    text(&call.comm),
                    Cell::Number(call.tid.to_string(), f64::from(call.tid)),
                    Cell::Number(call.pid.to_string(), f64::from(call.pid)),
                    none(),
                    none(),
                    none(),
                    none(),
                    none(),
                    none(),
                    text(&now_text(call.tid, false)),
                ],
                idle: true,
            };
            row.cells.extend(irq.then(none));
            rows.push(row);
        }
    }
    let mut table = Table {
        rows,
        columns: vec![
            words("COMMAND", 8, 0),
            number("TID", 0),
            number("PID", 4),
            number(titled(style, "CALLS/S", "CALLS"), 0),
            number(titled(style, "TIME/S", "TIME"), 0),
            number("BLOCKED", 0),
            number("ON-CPU", 2),
            number("RUNQ", 3),
            number(titled(style, "ERRORS/S", "ERRORS"), 5),
            words("NOW IN", 12, 1),
        ],
        nothing: "no thread is known yet".into(),
    };
    table.columns.extend(irq.then(|| number("IRQ", 2)));
    table
}

/// What the threads of one process did, under whatever names.
#[derive(Clone, Default)]
struct ProcessSums<'a> {
    name: &'a str,
    latest_ns: u64,
    place: Option<&'a str>,
    many: u64,
    cpu_ns: u64,
    paged_ns: u64,
    held_up_ns: u64,
    rest_ns: u64,
    runq_ns: u64,
    calls: u64,
}

/// By number; of several that came when there were many already, by name.
fn process_sums(report: &Report) -> HashMap<(u32, &str), ProcessSums<'_>> {
    let mut sums: HashMap<(u32, &str), ProcessSums<'_>> = HashMap::new();
    for row in &report.lives {
        let key = (row.pid, if row.pid == 0 { row.comm.as_str() } else { "" });
        let place = row.unit.as_deref().or(row.cgroup.as_deref());
        let sum = sums.entry(key).or_insert_with(|| ProcessSums {
            place,
            ..ProcessSums::default()
        });
        let time = &row.time;
        if row.last_ns >= sum.latest_ns || sum.name.is_empty() {
            sum.latest_ns = row.last_ns;
            sum.name = &row.comm;
            if row.pid != 0 {
                sum.place = place;
            }
        }
        // Of several together: where all of them are.
        if row.pid == 0 && sum.place != place {
            sum.place = None;
        }
        sum.many += u64::from(row.processes.max(row.execs));
        sum.cpu_ns += time.cpu_ns();
        sum.paged_ns += time.outside_ns;
        let asleep = time.blocked_ns + time.outside_ns;
        sum.held_up_ns += asleep.saturating_sub(time.rest_ns);
        sum.rest_ns += time.rest_ns;
        sum.runq_ns += time.runq_ns;
    }
    for row in &report.threads {
        if let Some(sum) = sums.get_mut(&(row.pid, "")) {
            sum.calls += row.count;
        }
    }
    sums
}

fn processes(between: &Between<'_>, style: Style) -> Table {
    let before = between.before.map(process_sums).unwrap_or_default();
    let mut now: Vec<_> = process_sums(between.now).into_iter().collect();
    now.sort_unstable_by_key(|(key, _)| *key);
    let places = now
        .iter()
        .any(|(_, sum)| sum.place.is_some_and(|p| p != "/"));
    let rows = now.iter().map(|(key, sum)| {
        let old = before.get(key).cloned().unwrap_or_default();
        let per = |f: fn(&ProcessSums<'_>) -> u64| between.per_second(f(sum), f(&old));
        let (cpu, held_up) = (per(|s| s.cpu_ns), per(|s| s.held_up_ns));
        let (runq, calls) = (per(|s| s.runq_ns), per(|s| s.calls));
        // Who sleeps in a call may have nothing to do, as far as is known.
        let busy = cpu + runq + per(|s| s.paged_ns);
        let mut cells = vec![
            text(sum.name),
            match key.0 {
                0 => Cell::Number(format!("{}x", count_text(sum.many)), f64::from(u32::MAX)),
                pid => Cell::Number(pid.to_string(), f64::from(pid)),
            },
            style.time(busy),
            style.time(cpu),
            style.time(held_up),
            style.time(runq),
            style.time(per(|s| s.rest_ns)),
            // Of several together they are not known.
            match key.0 {
                0 => Cell::Number("?".into(), -1.0),
                _ => style.count(calls),
            },
        ];
        cells.extend(places.then(|| text(sum.place.unwrap_or_default())));
        Row {
            cells,
            idle: busy == 0.0 && calls == 0.0,
        }
    });
    let mut table = Table {
        rows: rows.collect(),
        columns: vec![
            words("NAME", 8, 0),
            number("PID", 0),
            number(titled(style, "BUSY/S", "BUSY"), 0),
            number("CPU", 0),
            number("BLOCKED", 0),
            number("RUNQ", 1),
            number("AT REST", 3),
            number(titled(style, "CALLS/S", "CALLS"), 0),
        ],
        nothing: "no process is known yet".into(),
    };
    table.columns.extend(places.then(|| words("CGROUP", 10, 2)));
    table
}

fn culprits(between: &Between<'_>, style: Style) -> Table {
    let before = between.before.into_iter();
    let before = before.flat_map(|report| culprit_groups(report, between.now));
    let before: HashMap<CulpritOf, (u64, u64)> = before
        .map(|group| (group.of, (group.count, group.total_ns)))
        .collect();
    let groups = culprit_groups(between.now, between.now);
    let rows = groups.into_iter().map(|group| {
        let of = &group.of;
        let (old_count, old_ns) = before.get(of).copied().unwrap_or_default();
        let count = between.per_second(group.count, old_count);
        let total = between.per_second(group.total_ns, old_ns);
        let who = match (group.pids.first(), group.pids.len()) {
            (None, _) => "an interrupt".into(),
            (Some(pid), 1) => format!("{} {pid}", of.comm),
            (_, many) => format!("{} ({many})", of.comm),
        };
        let role = match of.role {
            CulpritRole::Holder => "held it",
            CulpritRole::Reader => "read it",
            CulpritRole::Waker => "woke",
        };
        Row {
            cells: vec![
                text(&who),
                text(role),
                text(of.culprit_call.as_deref().unwrap_or("")),
                text(&of.place),
                text(&of.label),
                text(&call_text(of.call.as_deref(), of.abi)),
                style.count(count),
                style.time(total),
                style.time(group.max_ns as f64),
            ],
            idle: count == 0.0 && total == 0.0,
        }
    });
    Table {
        rows: rows.collect(),
        columns: vec![
            words("WHO", 12, 0),
            words("HOW", 7, 0),
            words("IN CALL", 8, 2),
            words("PLACE", 12, 4),
            words("AT", 10, 0),
            words("WAITING", 8, 1),
            number(titled(style, "WAITS/S", "WAITS"), 0),
            number(titled(style, "TIME/S", "TIME"), 0),
            number("LONGEST", 3),
        ],
        nothing: "nobody has been seen to keep a call waiting".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_report::{CulpritRow, LifeRow};

    #[test]
    fn processes_of_one_command_are_one_culprit() {
        let row = |pid, count| CulpritRow {
            call: Some("recvmsg".into()),
            abi: 64,
            label: "unix-recv".into(),
            function: None,
            role: CulpritRole::Waker,
            pid,
            tid: pid,
            comm: "helper".into(),
            culprit_call: None,
            stack: None,
            count,
            total_ns: count * 1_000_000,
            max_ns: 1_000_000,
        };
        let report = |pids: std::ops::Range<u32>, count| Report {
            culprits: pids.map(|pid| row(pid, count)).collect(),
            ..Report::default()
        };
        // One has come since.
        let (before, now) = (report(1..15, 10), report(1..16, 30));
        let between = Between {
            now: &now,
            before: Some(&before),
            seconds: 10.0,
        };
        let style = Style {
            totals: false,
            ascii: true,
        };
        let table = culprits(&between, style);
        let told: Vec<&str> = table.rows[0].cells.iter().map(Cell::text).collect();
        assert_eq!(table.rows.len(), 1);
        assert_eq!((told[0], told[6]), ("helper (15)", "31"));
    }

    /// A process is where it was last.
    #[test]
    fn several_together_are_where_all_of_them_are() {
        let row = |pid, comm: &str, unit: Option<&str>, last_ns| LifeRow {
            pid,
            comm: comm.into(),
            unit: unit.map(str::to_owned),
            last_ns,
            ..LifeRow::default()
        };
        let (a, b) = (Some("a.service"), Some("b.service"));
        let report = Report {
            lives: vec![
                row(0, "one", a, 1),
                row(0, "one", a, 2),
                row(0, "two", a, 2),
                row(0, "two", b, 1),
                row(0, "two", b, 3),
                row(0, "known", a, 2),
                row(0, "known", None, 1),
                row(0, "", b, 1),
                row(0, "", a, 1),
                row(7, "x", a, 1),
                row(7, "y", b, 2),
            ],
            ..Report::default()
        };
        let sums = process_sums(&report);
        let place = |pid, comm| sums[&(pid, comm)].place;
        assert_eq!(place(0, "one"), a);
        for comm in ["two", "known", ""] {
            assert_eq!(place(0, comm), None, "{comm}");
        }
        assert_eq!(place(7, ""), b);
    }
}
