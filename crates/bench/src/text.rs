// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a run look like on a terminal?

use crate::account::{Account, Slice};
use crate::model::{Compared, Document, Kind, Row};
use crate::os::reads::{SIZES, WAYS};
use crate::os::switches;
use crate::sampling::alone_on_its_cpu;
use crate::shown::paragraph;
use crate::span::Span;
use crate::stat::{Difference, Summary, Verdict};
use crate::titles::{explanation, title};
use debox_output::{
    Pen, Style, Table, digits_text, measured_text, printable, range_text, signed_text, size_text,
};

/// A mean that may be shown, or the range that hides it.
pub fn mean_text(s: &Summary) -> String {
    match s.verdict {
        Verdict::Stable => measured_text(s.mean),
        Verdict::Unstable => {
            let (low, high) = s.range();
            range_text(low, high)
        }
    }
}

pub fn half_text(s: &Summary) -> String {
    match s.verdict {
        Verdict::Stable => format!("±{:.1}%", (s.mean_high - s.mean) / s.mean.abs() * 100.0),
        Verdict::Unstable => "wide".into(),
    }
}

/// `preemptions`: whether those of batches are worth telling here.
fn outliers_text(s: &Summary, preemptions: bool) -> String {
    match (s.outliers, s.outliers_preempted) {
        (0, _) => "-".into(),
        (n, p) if preemptions && p > 0 => format!("{n} ({p}p)"),
        (n, _) => format!("{n}"),
    }
}

fn part(span: Option<Span>) -> String {
    match span {
        None => "?".into(),
        Some(s) if s.high.abs() < 0.05 => "-".into(),
        Some(s) => s.time(),
    }
}

fn number(v: f64) -> String {
    if v < 0.005 {
        "-".into()
    } else {
        digits_text(v)
    }
}

const ACCOUNT: [&str; 8] = [
    "WALL",
    "ON-CPU",
    "BLOCKED",
    "RUNQ",
    "FAULTS",
    "SLEEPS",
    "PREEMPTED",
    "IN",
];

fn account_cells(a: &Account) -> Vec<String> {
    let cell = |mid, of: fn(&Slice) -> f64| part(Span::of_account(a, mid, of));
    vec![
        cell(a.wall_ns, |s| s.wall_ns),
        cell(a.cpu_ns, |s| s.cpu_ns),
        cell(a.blocked_ns, |s| s.blocked_ns),
        cell(a.runq_ns, |s| s.runq_ns),
        number(a.minor_faults + a.major_faults),
        number(a.voluntary_switches),
        number(a.involuntary_switches),
        sleeps_text(a),
    ]
}

/// The places that make up the waiting, each with at least a tenth of it.
fn sleeps_text(a: &Account) -> String {
    let all: f64 = a.sleeps.iter().map(|s| s.blocked_ns).sum();
    let mut found: Vec<&str> = Vec::new();
    for sleep in a.sleeps.iter().filter(|s| s.blocked_ns >= 0.1 * all) {
        if !found.contains(&sleep.label.as_str()) {
            found.push(&sleep.label);
        }
    }
    found.truncate(2);
    found.join(", ")
}

/// The share of an operation that is waiting, in percent.
fn waiting(a: &Account) -> Option<Span> {
    let mid = 100.0 * a.blocked_ns? / a.wall_ns.filter(|w| *w > 0.0)?;
    Span::of_account(a, Some(mid), |s| {
        100.0 * s.blocked_ns / s.wall_ns.max(0.001)
    })
}

const NUMBERS: [&str; 7] = ["MEAN", "95%", "MIN", "P50", "P99", "MAX", "OUTL."];

/// `step`: of the clock, ns; below it single operations are not told apart.
fn number_cells(s: &Summary, step: f64, preemptions: bool) -> Vec<String> {
    let one = |ns: f64| match s.one_by_one {
        true if ns < step => format!("< {}", measured_text(step)),
        true if ns <= 0.0 => "< step".into(),
        true => measured_text(ns),
        false => format!("({})", measured_text(ns)),
    };
    vec![
        mean_text(s),
        half_text(s),
        one(s.min),
        one(s.p50),
        one(s.p99),
        one(s.max),
        outliers_text(s, preemptions),
    ]
}

struct Text<'a> {
    d: &'a Document,
    pen: Pen,
    out: String,
}

impl Text<'_> {
    fn bold(&self, text: &str) -> String {
        self.pen.paint(Style::Bold, text)
    }

    fn heading(&mut self, text: &str) {
        let line = self.bold(text);
        self.out += &format!("\n{line}\n");
    }

    fn line(&mut self, text: &str) {
        self.out += &paragraph(text);
    }

    fn table(&mut self, table: Table) {
        if table.is_empty() {
            return;
        }
        self.out.push('\n');
        self.out += &table.text(&self.pen, None);
    }

    /// The smallest difference that the chosen clock can show, ns.
    fn step(&self) -> f64 {
        let chosen = self.d.clocks.as_ref().and_then(|c| c.chosen());
        chosen.and_then(|s| s.step_ns).unwrap_or(0.0)
    }

    fn numbers_table(first: &str, more: &[&str]) -> Table {
        let mut head = vec![first];
        head.extend(NUMBERS);
        head.extend(more);
        Table::new(&head).over(3, 7, "one at a time")
    }

    /// DeBox's account of rows, where there is any.
    fn account_table<'r>(&mut self, first: &str, rows: impl Iterator<Item = (String, &'r Row)>) {
        let mut head = vec![first];
        head.extend(ACCOUNT);
        let mut table = Table::new(&head).left(ACCOUNT.len());
        for (name, row) in rows {
            if let Some(a) = &row.account {
                let mut cells = vec![name];
                cells.extend(account_cells(a));
                table.row(cells);
            }
        }
        self.table(table.optional_from(1));
    }

    fn missing(&mut self, prefix: &str) {
        // The same reason for many: said once.
        let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
        for row in self.d.rows_of(prefix) {
            let Some(why) = &row.missing else { continue };
            let name = row.id.strip_prefix(prefix).unwrap_or(&row.id).to_owned();
            let why = why.strip_prefix(&format!("{}: ", row.id)).unwrap_or(why);
            match reasons.iter_mut().find(|(r, _)| *r == why) {
                Some((_, names)) => names.push(name),
                None => reasons.push((why.to_owned(), vec![name])),
            }
        }
        for (why, names) in reasons {
            let shown = if names.len() > 6 {
                format!("{} and {} more", names[..5].join(", "), names.len() - 5)
            } else {
                names.join(", ")
            };
            self.line(&format!("Not measured: {shown}: {why}."));
        }
    }

    fn clocks(&mut self) {
        // Those who wanted only some suites have only the clock in use.
        let Some(survey) = self.d.clocks.as_ref().filter(|c| c.sources.len() > 1) else {
            return;
        };
        self.heading("1. Clocks");
        let mut table = Table::new(&[
            "SOURCE",
            "REACHED BY",
            "COST",
            "95%",
            "STEP",
            "RESOLUTION",
            "BACK",
            "BETWEEN CPUS",
        ])
        .left(1)
        .left(7);
        for s in &survey.sources {
            if s.missing.is_some() {
                continue;
            }
            let or = |v: Option<f64>| v.map_or_else(|| "-".into(), measured_text);
            let across = match (s.exchanges, s.exchanges_backwards) {
                (0, _) => "-".into(),
                (_, 0) => "in order".into(),
                (n, b) => format!(
                    "back in {} %, up to {}",
                    digits_text(100.0 * b as f64 / n as f64),
                    measured_text(s.worst_backwards_ns)
                ),
            };
            let cost = s.cost_ns.map(|mid| Span {
                low: s.cost_low_ns.unwrap_or(mid),
                mid,
                high: s.cost_high_ns.unwrap_or(mid),
                firm: true,
            });
            let half = cost.map_or_else(
                || "-".into(),
                |c| {
                    if c.narrow() {
                        format!("±{:.1}%", 50.0 * (c.high - c.low) / c.mid)
                    } else {
                        "wide".into()
                    }
                },
            );
            table.row(vec![
                s.name
                    .strip_suffix(", system call")
                    .unwrap_or(&s.name)
                    .to_owned(),
                s.reached.clone(),
                cost.map_or_else(|| "-".into(), |c| c.time()),
                half,
                s.step_cycles
                    .map_or_else(|| or(s.step_ns), |c| format!("{c:.0} cycles")),
                or(s.resolution_ns),
                s.backwards.to_string(),
                across,
            ]);
        }
        self.table(table);
        for s in &survey.sources {
            if let Some(why) = &s.missing {
                self.line(&format!("Not measured: {}: {why}.", s.name));
            }
        }
        let (name, why) = (survey.choice.kind.name(), survey.why.clone());
        if let Some((a, b)) = survey.pair {
            let relation = survey.relation.as_deref().unwrap_or("?");
            self.line(&format!(
                "BACK: readings in a row on CPU {a}. BETWEEN CPUS: readings handed to and fro between CPU {a} \
                 and CPU {b} ({relation}); other pairs are not tried."
            ));
        }
        self.line(&format!(
            "Chosen: {name}: {why}. An empty interval reads {}; that is taken off everything below.",
            measured_text(survey.choice.empty_ns)
        ));
    }

    fn trivial(&mut self) {
        if self.d.rows_of("trivial/").next().is_none() {
            return;
        }
        self.heading("2. Trivial kernel calls");
        let step = self.step();
        let mut table = Self::numbers_table("CALL", &["ON-CPU"]);
        for row in self.d.rows_of("trivial/") {
            let Some(s) = &row.summary else { continue };
            let mut cells = vec![title(&row.id)];
            cells.extend(number_cells(s, step, true));
            cells.push(row.account.as_ref().map_or_else(String::new, |a| {
                part(Span::of_account(a, a.cpu_ns, |s| s.cpu_ns))
            }));
            table.row(cells);
        }
        self.table(table.optional_from(8));
        self.missing("trivial/");
        for text in conclusions_trivial(self.d) {
            self.line(&text);
        }
    }

    fn switches(&mut self) {
        if self.d.rows_of("switch/").next().is_none() {
            return;
        }
        for (place, heading) in [
            (
                "same",
                "3. Context switches: round trip, both ends on one CPU",
            ),
            ("other", "   Round trip, the other end on another CPU"),
        ] {
            let step = self.step();
            let mut table = Self::numbers_table("MEANS", &["CALLS", "ONE SWITCH"]);
            let rows: Vec<(String, &Row)> = switches::MEANS
                .iter()
                .filter_map(|means| {
                    let row = self.d.row(&format!("switch/{means}/{place}"))?;
                    Some(((*means).to_owned(), row))
                })
                .collect();
            for (means, row) in &rows {
                let Some(s) = &row.summary else { continue };
                let calls = self
                    .d
                    .summary(&format!("switch-calls/{}", switches::calls_of(means)));
                let one = self
                    .d
                    .derived
                    .iter()
                    .find(|x| x.id == format!("one-switch/{means}/{place}"));
                let mut cells = vec![title(&row.id)];
                // On one CPU both ends preempt each other all the time.
                cells.extend(number_cells(s, step, place == "other"));
                cells.push(calls.map_or_else(|| "?".into(), |c| Span::of(c).scale(2.0).time()));
                cells.push(match one {
                    Some(x) if x.verdict == Verdict::Stable => measured_text(x.ns),
                    Some(x) if x.high > 0.0 => range_text(x.low.max(0.0), x.high),
                    _ => "hidden".into(),
                });
                table.row(cells);
            }
            if !table.is_empty() {
                let relation = self.d.clocks.as_ref().and_then(|c| c.relation.as_ref());
                self.heading(&match relation.filter(|_| place == "other") {
                    Some(relation) => format!("{heading} ({relation})"),
                    None => heading.to_owned(),
                });
                self.table(table);
                self.account_table(
                    "OF ONE END",
                    rows.iter().map(|(_, row)| (title(&row.id), *row)),
                );
            }
        }
        self.missing("switch/");
        self.line(
            "CALLS: what the calls of both ends cost when nobody has to wait. ONE SWITCH: half of what is left \
             of a round trip without them (wake-up, scheduler, address space, caches), with its own 95 % interval. \
             The account is of one end: BLOCKED is its wait for the other. On one CPU it may also be PREEMPTED \
             by the one that it has just woken, and then waits in the run queue instead of sleeping.",
        );
        for text in conclusions_switches(self.d) {
            self.line(&text);
        }
    }

    fn faults(&mut self) {
        if self.d.rows_of("fault/").next().is_none() {
            return;
        }
        self.heading("4. Page faults: first touch of a page");
        let step = self.step();
        let mut table = Self::numbers_table("PAGE", &["MEMORY/S"]);
        for row in self.d.rows_of("fault/") {
            let Some(s) = &row.summary else { continue };
            let mut cells = vec![title(&row.id)];
            cells.extend(number_cells(s, step, alone_on_its_cpu(&row.id)));
            cells.push(if NO_FAULT.contains(&row.id.as_str()) {
                "-".into()
            } else {
                rate(fault_bytes(&row.id) as f64, s)
            });
            table.row(cells);
        }
        self.table(table);
        self.account_table(
            "OF ONE PAGE",
            self.d.rows_of("fault/").map(|r| (title(&r.id), r)),
        );
        self.missing("fault/");
        for text in conclusions_faults(self.d) {
            self.line(&text);
        }
    }

    fn reads(&mut self) {
        if self.d.rows_of("read/").next().is_none() {
            return;
        }
        for (state, heading) in [
            (
                "warm",
                "5. File reads, file in the page cache: MiB/s by request size",
            ),
            (
                "cold",
                "   File reads, page cache dropped before each pass: MiB/s by request size",
            ),
        ] {
            let ways: Vec<&str> = WAYS
                .into_iter()
                .filter(|w| {
                    self.d
                        .rows_of(&format!("read/{state}/{w}/"))
                        .any(|r| r.summary.is_some())
                })
                .collect();
            if ways.is_empty() {
                continue;
            }
            self.heading(heading);
            let mut head = vec!["REQUEST"];
            head.extend(&ways);
            let mut table = Table::new(&head);
            for size in SIZES {
                let cells: Vec<String> = ways
                    .iter()
                    .map(
                        |way| match self.d.summary(&format!("read/{state}/{way}/{size}")) {
                            None => "-".into(),
                            Some(s) => Span::of(s).rate(mib_per_second(size as f64, 1.0)).number(),
                        },
                    )
                    .collect();
                if cells.iter().any(|c| c != "-") {
                    let mut row = vec![size_text(size as u64)];
                    row.extend(cells);
                    table.row(row);
                }
            }
            self.table(table);
            self.read_accounts(state, &ways);
        }
        self.missing("read/");
        if let Some(c) = &self.d.cold {
            self.line(&cold_text(c));
        }
        for text in conclusions_reads(self.d) {
            self.line(&text);
        }
    }

    /// Where the time of one request size went, way by way; and for all sizes,
    /// how much of it is waiting.
    fn read_accounts(&mut self, state: &str, ways: &[&str]) {
        let size = 65536;
        let rows = ways.iter().filter_map(|way| {
            let row = self.d.row(&format!("read/{state}/{way}/{size}"))?;
            Some(((*way).to_owned(), row))
        });
        self.account_table("64 KiB BY", rows);
        let mut head = vec!["% WAITING"];
        head.extend(ways);
        let mut table = Table::new(&head);
        let mut most = 0.0f64;
        for size in SIZES {
            let cells: Vec<String> = ways
                .iter()
                .map(|way| {
                    let row = self.d.row(&format!("read/{state}/{way}/{size}"));
                    let share = row.and_then(|r| waiting(r.account.as_ref()?));
                    most = most.max(share.map_or(0.0, |s| s.high));
                    share.map_or_else(|| "-".into(), |s| s.number())
                })
                .collect();
            if cells.iter().any(|c| c != "-") {
                let mut row = vec![size_text(size as u64)];
                row.extend(cells);
                table.row(row);
            }
        }
        if most >= 1.0 {
            self.table(table);
        }
    }

    fn descriptors(&mut self) {
        for (prefix, kinds, heading) in [
            (
                "descriptor/",
                &["open", "dup", "dup-search", "socket", "accept"][..],
                "6. A new descriptor, by the number that are open",
            ),
            (
                "wait/",
                &["select", "poll", "epoll"][..],
                "   Waiting for one that is ready, by the number of idle ones",
            ),
        ] {
            if self.d.rows_of(prefix).next().is_none() {
                continue;
            }
            self.heading(heading);
            let mut head = vec!["OPEN".to_owned()];
            head.extend(kinds.iter().map(|k| title(&format!("{prefix}{k}"))));
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            let mut table = Table::new(&head);
            for level in levels_of(self.d, prefix) {
                let mut cells = vec![signed_text(level as i64)];
                for kind in kinds {
                    cells.push(
                        self.d
                            .summary(&format!("{prefix}{kind}/{level}"))
                            .map_or_else(|| "-".into(), mean_text),
                    );
                }
                if cells[1..].iter().any(|c| c != "-") {
                    table.row(cells);
                }
            }
            self.table(table);
            if let Some(level) = levels_of(self.d, prefix).last() {
                let rows = kinds.iter().filter_map(|kind| {
                    let row = self.d.row(&format!("{prefix}{kind}/{level}"))?;
                    Some((title(&row.id), row))
                });
                self.account_table(
                    &format!("OF ONE, {} OPEN", signed_text(*level as i64)),
                    rows,
                );
            }
            self.missing(prefix);
        }
        for text in conclusions_descriptors(self.d) {
            self.line(&text);
        }
    }

    fn noise(&mut self) {
        let n = &self.d.noise;
        let text = if n.quiet() {
            format!("The machine was quiet: {}.", n.line())
        } else {
            format!("A noisy machine: {}.", n.reasons.join("; "))
        };
        let all = n.line();
        if n.quiet() {
            self.line(&text);
        } else {
            self.out += &self.pen.paint(Style::Bad, paragraph(&text).trim_end());
            self.out.push('\n');
            self.line(&format!("({all})"));
        }
    }

    fn notes(&mut self) {
        for note in self.d.notes.clone() {
            self.line(&format!("Note: {note}."));
        }
    }
}

/// Where no page is made: how much memory that is a second says nothing.
const NO_FAULT: [&str; 2] = ["fault/none", "fault/prefaulted-before"];

pub fn fault_bytes(id: &str) -> u64 {
    if id == "fault/huge" {
        crate::os::faults::HUGE as u64
    } else {
        crate::os::faults::PAGE as u64
    }
}

pub fn mib_per_second(bytes: f64, ns: f64) -> f64 {
    bytes / (1 << 20) as f64 / (ns / 1e9)
}

fn rate(bytes: f64, s: &Summary) -> String {
    let mib = Span::of(s).rate(mib_per_second(bytes, 1.0));
    if mib.mid >= 1024.0 {
        format!("{} GiB", mib.scale(1.0 / 1024.0).number())
    } else {
        format!("{} MiB", mib.number())
    }
}

pub fn levels_of(d: &Document, prefix: &str) -> Vec<usize> {
    let mut found: Vec<usize> = d
        .rows_of(prefix)
        .filter_map(|r| r.id.rsplit('/').next()?.parse().ok())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

pub fn cold_text(c: &crate::os::reads::Cold) -> String {
    let mut text = format!(
        "Cold is cold: the file was written to disk, and before each of {} passes its pages were dropped \
         (POSIX_FADV_DONTNEED); then {} found {} of {} pages still in memory",
        signed_text(c.passes as i64),
        c.method,
        signed_text(c.resident as i64),
        signed_text(c.pages as i64)
    );
    if c.nowait_tried > 0 {
        text += &format!(
            "; {} of {} probes before that, by preadv2(RWF_NOWAIT), were refused as not in memory (others a fast \
             device answered within the call)",
            signed_text(c.nowait_again as i64),
            signed_text(c.nowait_tried as i64)
        );
    }
    if c.bytes > 0 {
        text += &format!(
            "; storage delivered {:.2} bytes for each byte read (read_bytes of /proc/self/io; above 1: \
             read-ahead)",
            c.storage_bytes as f64 / c.bytes as f64
        );
    }
    text + ". A cache below the kernel (of the disk, or of the host of a virtual machine) cannot be dropped from here."
}

/// Rounds below which the ranks of two cases cannot tell them apart, however
/// far apart they are (p < 0.01 takes 5 against 5).
const ROUNDS_MIN: usize = 5;

/// By the rule of comparisons between runs; `None`: too few rounds to know.
fn differ(a: &Summary, b: &Summary) -> Option<bool> {
    if a.medians.len().min(b.medians.len()) < ROUNDS_MIN {
        return None;
    }
    let compared = crate::stat::compare(&a.medians, &b.medians)?;
    Some(compared.difference != Difference::NotDistinguishable)
}

fn cpu_of(d: &Document, id: &str) -> Option<Span> {
    let a = d.row(id)?.account.as_ref()?;
    Span::of_account(a, a.cpu_ns, |s| s.cpu_ns)
}

fn span_of(d: &Document, id: &str) -> Option<Span> {
    d.summary(id).map(Span::of)
}

pub fn conclusions_trivial(d: &Document) -> Vec<String> {
    let (Some(call), Some(function)) =
        (span_of(d, "trivial/getpid"), span_of(d, "trivial/function"))
    else {
        return Vec::new();
    };
    let mut text = format!(
        "Entering and leaving the kernel costs {} here, {} function calls.",
        call.time(),
        call.over(function).number()
    );
    if let (Some(one), Some(many)) = (
        span_of(d, "trivial/io_uring-nop"),
        span_of(d, "trivial/io_uring-nops"),
    ) {
        let n = crate::os::trivial::NOPS_AT_ONCE;
        text += &format!(
            " An io_uring operation costs {} alone and {} as one of {n}.",
            one.time(),
            many.scale(1.0 / f64::from(n)).time()
        );
    }
    vec![text]
}

pub fn conclusions_switches(d: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let (signal, pipe) = ("switch/signal/same", "switch/pipe/same");
    if let (Some(s), Some(p)) = (d.summary(signal), d.summary(pipe)) {
        if differ(s, p) == Some(true) {
            let mut text = format!(
                "A round trip by signals takes {} times one by pipes.",
                Span::of(s).over(Span::of(p)).number()
            );
            if let (Some(a), Some(b)) = (cpu_of(d, signal), cpu_of(d, pipe)) {
                text += &format!(
                    " One end is on the CPU for {} of it, with pipes for {}",
                    a.time(),
                    b.time()
                );
                if let (Some(cs), Some(cp)) = (
                    span_of(d, "switch-calls/signal"),
                    span_of(d, "switch-calls/pipe"),
                ) {
                    text += &format!(
                        ": sending, the handler's frame and the return from it cost {} where write and read \
                         cost {}",
                        cs.time(),
                        cp.time()
                    );
                }
                text += ".";
            }
            found.push(text);
        } else if differ(s, p) == Some(false) {
            found.push(
                "Signals and pipes cannot be told apart here: the processes' medians overlap."
                    .into(),
            );
        }
    }
    found
}

pub fn conclusions_faults(d: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let (Some(zero), Some(none)) = (span_of(d, "fault/zero-fill"), span_of(d, "fault/none")) else {
        return found;
    };
    let mut text = format!(
        "8 MiB of new memory, touched page by page, cost {} of faults",
        zero.less(none).scale(2048.0).time()
    );
    let mut less = Vec::new();
    for (id, name, per) in [
        ("fault/huge", "as huge pages", 512.0),
        ("fault/map-populate", "with MAP_POPULATE", 1.0),
        (
            "fault/prefaulted-before",
            "when another thread touched it before",
            1.0,
        ),
    ] {
        if let Some(s) = span_of(d, id) {
            less.push(format!("{} {name}", s.scale(2048.0 / per).time()));
        }
    }
    if !less.is_empty() {
        text += &format!("; {}", less.join(", "));
    }
    found.push(text + ".");
    if let (Some(beside), Some(alone)) = (
        d.summary("fault/prefaulted-beside"),
        d.summary("fault/zero-fill"),
    ) && beside.typical() > alone.typical()
        && differ(beside, alone) == Some(true)
    {
        found.push(
            "A thread that pre-faults while the memory is in use makes that slower: both take faults in one \
             address space. It must be ahead."
                .into(),
        );
    }
    found
}

pub fn conclusions_reads(d: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let at = |state: &str, way: &str, size: usize| d.summary(&format!("read/{state}/{way}/{size}"));
    for (size, ways) in [
        (8, ["read", "fread", "mmap"]),
        (65536, ["read", "fread", "mmap"]),
    ] {
        let mut times: Vec<(&str, Span)> = ways
            .iter()
            .filter_map(|w| Some((*w, Span::of(at("warm", w, size)?))))
            .collect();
        if times.len() < 2 {
            continue;
        }
        times.sort_by(|a, b| a.1.mid.total_cmp(&b.1.mid));
        let list: Vec<String> = times
            .iter()
            .map(|(w, t)| format!("{w} {}", t.time()))
            .collect();
        found.push(format!(
            "Warm, {} at a time: {}.",
            size_text(size as u64),
            list.join(", ")
        ));
    }
    if let Some(share) = d
        .row("read/cold/read/65536")
        .and_then(|r| waiting(r.account.as_ref()?))
    {
        found.push(format!(
            "Of a cold read of 64 KiB, {} % is waiting for the device.",
            share.number()
        ));
    }
    found
}

pub fn conclusions_descriptors(d: &Document) -> Vec<String> {
    let ends = |kind: &str, prefix: &str| {
        let levels: Vec<usize> = levels_of(d, prefix)
            .into_iter()
            .filter(|l| d.summary(&format!("{prefix}{kind}/{l}")).is_some())
            .collect();
        let (low, high) = (*levels.first()?, *levels.last()?);
        let get = |l: usize| d.summary(&format!("{prefix}{kind}/{l}"));
        (low != high).then(|| Some((low, high, get(low)?, get(high)?)))?
    };
    let mut found = Vec::new();
    for (prefix, kinds) in [
        (
            "descriptor/",
            &[
                ("open", "open"),
                ("dup", "dup"),
                ("dup-search", "a dup that must search"),
                ("socket", "socket"),
                ("accept", "accept"),
            ][..],
        ),
        (
            "wait/",
            &[
                ("select", "select"),
                ("poll", "poll"),
                ("epoll", "epoll_wait"),
            ],
        ),
    ] {
        let (mut grows, mut stays, mut between) = (Vec::new(), Vec::new(), None);
        for (kind, what) in kinds {
            let Some((low, high, a, b)) = ends(kind, prefix) else {
                continue;
            };
            between = Some((low, high));
            let (from, to) = (Span::of(a), Span::of(b));
            let Some(differs) = differ(a, b) else {
                continue;
            };
            if differs {
                grows.push(format!(
                    "{what} goes from {} to {} ({} times)",
                    from.time(),
                    to.time(),
                    to.over(from).number()
                ));
            } else {
                stays.push(format!("{what} ({})", from.time()));
            }
        }
        let Some((low, high)) = between else { continue };
        if grows.is_empty() && stays.is_empty() {
            continue;
        }
        if !stays.is_empty() {
            grows.push(format!(
                "what does not change measurably: {}",
                stays.join(", ")
            ));
        }
        found.push(format!(
            "From {} to {} descriptors: {}.",
            signed_text(low as i64),
            signed_text(high as i64),
            grows.join("; ")
        ));
    }
    found
}

/// The whole run for a terminal.
pub fn render(d: &Document, color: bool) -> String {
    let pen = Pen {
        color,
        ascii: false,
    };
    let mut t = Text {
        d,
        pen,
        out: String::new(),
    };
    let head = format!(
        "debox bench {}{}: {}",
        d.kind.name(),
        if d.quick { " --quick" } else { "" },
        d.machine.line()
    );
    t.out = t.bold(&printable(&head)) + "\n";
    t.noise();
    match d.kind {
        Kind::Os => {
            t.clocks();
            t.trivial();
            t.switches();
            t.faults();
            t.reads();
            t.descriptors();
            if d.rows_of("").next().is_some() {
                let rounds = d
                    .results
                    .iter()
                    .filter_map(|r| Some(r.summary.as_ref()?.medians.len()))
                    .max()
                    .unwrap_or(0);
                t.out.push('\n');
                t.line(&format!(
                    "Means are of {} processes, with the half width of their 95 % confidence interval; \
                     \"a…b\": the spread hides the mean, so the range of the processes' medians stands there (~a: they agree, single batches do not). \
                     One at a time: single operations, between two readings of the clock, which keep the processor from \
                     overlapping them with anything, so that they may be some ns above the mean; in brackets: of \
                     whole batches, where one alone cannot be timed. OUTL.: \
                     batches far off (p: during a preemption); they are in the means. WALL, ON-CPU, BLOCKED, RUNQ, FAULTS, \
                     SLEEPS, PREEMPTED: DeBox's account of one operation, made apart, in 3 to 5 parts; a…b is the range of the parts; \
                     - is nothing, ? not measured.",
                    rounds
                ));
                if rounds < ROUNDS_MIN {
                    t.line(&format!(
                        "With fewer than {ROUNDS_MIN} rounds nothing is said about which cases differ."
                    ));
                }
            }
        }
        Kind::SelfCost => {
            if let Some(own) = &d.self_cost {
                t.out += &crate::selfcost::show::text(own, &pen);
            }
        }
    }
    if let Some(c) = &d.comparison {
        t.out += &compared(c, &pen);
    }
    if !d.notes.is_empty() {
        t.out.push('\n');
        t.notes();
    }
    t.line(&format!("Took {:.0} s.", d.seconds));
    t.out
}

fn compared(c: &Compared, pen: &Pen) -> String {
    let bold = |text: &str| pen.paint(Style::Bold, text);
    let mut out = format!(
        "\n{}\n",
        bold(&printable(&format!(
            "Compared with {}: {}",
            c.with, c.machine_there
        )))
    );
    if c.machine_differences.is_empty() {
        out += "  The machines are described alike.\n";
    }
    for (what, here, there) in &c.machine_differences {
        out += &paragraph(&format!("{what}: here {here}; there {there}"));
    }
    let mut table = Table::new(&[
        "CASE",
        "HERE",
        "THERE",
        "RATIO",
        "99% INTERVAL",
        "P",
        "HERE IS",
    ])
    .left(6);
    let mut same = 0;
    for row in &c.rows {
        let x = &row.comparison;
        let verdict = match x.difference {
            Difference::Faster => "faster",
            Difference::Slower => "slower",
            Difference::NotDistinguishable => {
                same += 1;
                continue;
            }
        };
        table.row(vec![
            compared_title(&row.id),
            measured_text(x.here_ns),
            measured_text(x.there_ns),
            format!("{:.3}", x.ratio),
            format!("{:.3} to {:.3}", x.ratio_low, x.ratio_high),
            if x.p < 0.001 {
                "<0.001".into()
            } else {
                format!("{:.3}", x.p)
            },
            verdict.into(),
        ]);
    }
    if !table.is_empty() {
        out.push('\n');
        out += &table.text(pen, None);
    }
    out += &paragraph(&format!(
        "{same} of {} cases are not distinguishable. A difference is told when the ranks of the processes' \
             medians (Mann-Whitney, p < 0.01) and the 99 % interval of the ratio both say so; by chance that \
             happens about once in 200 cases.",
        c.rows.len()
    ));
    for note in &c.notes {
        out += &paragraph(note);
    }
    for (what, ids) in [("Only here", &c.only_here), ("Only there", &c.only_there)] {
        if !ids.is_empty() {
            out += &paragraph(&format!("{what}: {} cases ({} …).", ids.len(), ids[0]));
        }
    }
    out
}

/// A case's name with its suite.
pub fn compared_title(id: &str) -> String {
    let mut words: Vec<&str> = id.split('/').collect();
    let suite = words.remove(0);
    let rest = words.join(" ");
    match explanation(id) {
        _ if suite == "trivial" => title(id),
        _ => format!("{suite} {rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::SleepAt;
    use crate::stat::Invocation;

    #[test]
    fn what_the_clock_cannot_show_is_not_a_number() {
        let of = |singles: Vec<f64>| {
            let one = Invocation {
                samples: vec![10.0; 20],
                batch: 100,
                singles,
                ..Invocation::default()
            };
            Summary::of(&[one.clone(), one]).unwrap()
        };
        let cells = number_cells(&of(vec![-3.0, 6.0, 80.0]), 20.0, true);
        assert_eq!(cells[2..4], ["< 20.0 ns", "< 20.0 ns"]);
        assert_eq!(cells[5], "80.0 ns");
        // Of batches the mean is finer than the step; it stands in brackets.
        assert_eq!(number_cells(&of(vec![]), 20.0, true)[2], "(10.0 ns)");
    }

    #[test]
    fn places_are_told_by_their_share_of_the_waiting() {
        let at = |label: &str, count: f64, blocked_ns: f64| SleepAt {
            label: label.into(),
            place: String::new(),
            count,
            blocked_ns,
        };
        let a = Account {
            // Rare and long counts, often and short does not.
            sleeps: vec![at("page-in", 0.01, 900.0), at("mutex", 5.0, 20.0)],
            ..Account::default()
        };
        assert_eq!(sleeps_text(&a), "page-in");
    }
}
