// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a run look like on a terminal?

use crate::account::Account;
use crate::model::{Compared, Document, Kind, Row};
use crate::os::reads::{SIZES, WAYS};
use crate::os::switches;
use crate::stat::{Difference, Summary, Verdict};
use crate::titles::{bytes, digits, explanation, time, title, with_commas};

/// A table with a left-aligned first column; numbers to the right.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns that hold words.
    left: Vec<usize>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(|h| (*h).to_owned()).collect(),
            rows: Vec::new(),
            left: vec![0],
        }
    }

    pub fn left(mut self, column: usize) -> Self {
        self.left.push(column);
        self
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn render(&self, bold: &dyn Fn(&str) -> String) -> String {
        let columns = self.head.len();
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = (0..columns)
            .map(|c| {
                let body = self.rows.iter().filter_map(|r| r.get(c)).map(|t| width(t));
                body.chain([width(&self.head[c])]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &[String]| {
            let mut out = String::from(" ");
            for (c, cell) in cells.iter().enumerate() {
                let pad = " ".repeat(widths[c].saturating_sub(width(cell)));
                out += " ";
                if self.left.contains(&c) {
                    out += cell;
                    out += &pad;
                } else {
                    out += &pad;
                    out += cell;
                }
                out += " ";
            }
            out.trim_end().to_owned()
        };
        let mut out = bold(&line(&self.head));
        out.push('\n');
        for row in &self.rows {
            out += &line(row);
            out.push('\n');
        }
        out
    }
}

/// A mean that may be shown, or the range that hides it.
pub fn mean_text(s: &Summary) -> String {
    match s.verdict {
        Verdict::Stable => time(s.mean),
        Verdict::Unstable => {
            let (low, high) = s.range();
            range(low, high)
        }
    }
}

/// `144…146 ns`, `0.98…1.31 µs`: one unit.
pub fn range(low: f64, high: f64) -> String {
    if time(low) == time(high) {
        return format!("~{}", time(low));
    }
    let text = time(high);
    let (scale, unit) = match text.rsplit(' ').next() {
        Some("ns") => (1.0, "ns"),
        Some("µs") => (1e3, "µs"),
        Some("ms") => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{}…{} {unit}", digits(low / scale), digits(high / scale))
}

pub fn half_text(s: &Summary) -> String {
    match s.verdict {
        Verdict::Stable => format!("±{:.1}%", (s.mean_high - s.mean) / s.mean.abs() * 100.0),
        Verdict::Unstable => "wide".into(),
    }
}

fn outliers_text(s: &Summary) -> String {
    match (s.outliers, s.outliers_preempted) {
        (0, _) => "-".into(),
        (n, 0) => format!("{n}"),
        (n, p) => format!("{n} ({p}p)"),
    }
}

fn part(ns: Option<f64>) -> String {
    match ns {
        None => "?".into(),
        Some(v) if v.abs() < 0.05 => "-".into(),
        Some(v) => time(v),
    }
}

fn number(v: f64) -> String {
    if v < 0.005 { "-".into() } else { digits(v) }
}

fn account_cells(a: Option<&Account>) -> [String; 4] {
    match a {
        None => ["?".into(), "?".into(), "?".into(), "?".into()],
        Some(a) => [
            part(a.cpu_ns),
            part(a.blocked_ns),
            number(a.minor_faults + a.major_faults),
            number(a.voluntary_switches),
        ],
    }
}

fn sleeps_text(a: Option<&Account>) -> String {
    let Some(a) = a else { return String::new() };
    a.sleeps
        .iter()
        .filter(|s| s.count >= 0.05)
        .take(2)
        .map(|s| s.label.clone())
        .collect::<Vec<_>>()
        .join(", ")
}

const NUMBERS: [&str; 7] = ["MEAN", "95%", "MIN", "P50", "P99", "MAX", "OUTL."];
const ACCOUNT: [&str; 4] = ["ON-CPU", "BLOCKED", "FAULTS", "SLEEPS"];

fn number_cells(s: &Summary) -> Vec<String> {
    vec![
        mean_text(s),
        half_text(s),
        time(s.min),
        time(s.p50),
        time(s.p99),
        time(s.max),
        outliers_text(s),
    ]
}

struct Text<'a> {
    d: &'a Document,
    color: bool,
    out: String,
}

impl Text<'_> {
    fn bold(&self, text: &str) -> String {
        if self.color {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn heading(&mut self, text: &str) {
        let line = self.bold(text);
        self.out += &format!("\n{line}\n");
    }

    fn line(&mut self, text: &str) {
        self.out += &wrapped(text, 100, "  ");
    }

    fn table(&mut self, table: &Table) {
        if table.is_empty() {
            return;
        }
        let color = self.color;
        self.out.push('\n');
        self.out += &table.render(&|t| {
            if color {
                format!("\x1b[1m{t}\x1b[0m")
            } else {
                t.to_owned()
            }
        });
    }

    fn has_accounts(&self, prefix: &str) -> bool {
        self.d.rows_of(prefix).any(|r| r.account.is_some())
    }

    /// Rows with all their numbers, and the account if there is any.
    fn full_table(&mut self, first: &str, prefix: &str, of: impl Fn(&Row) -> Option<String>) {
        let accounts = self.has_accounts(prefix);
        let mut head = vec![first];
        head.extend(NUMBERS);
        if accounts {
            head.extend(ACCOUNT);
        }
        let mut table = Table::new(&head);
        for row in self.d.rows_of(prefix) {
            let (Some(name), Some(s)) = (of(row), &row.summary) else {
                continue;
            };
            let mut cells = vec![name];
            cells.extend(number_cells(s));
            if accounts {
                cells.extend(account_cells(row.account.as_ref()));
            }
            table.row(cells);
        }
        self.table(&table);
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
        let Some(survey) = &self.d.clocks else { return };
        self.heading("1. Clocks");
        let mut table = Table::new(&[
            "SOURCE",
            "REACHED BY",
            "COST",
            "STEP",
            "RESOLUTION",
            "BACK",
            "BETWEEN CPUS",
        ])
        .left(1)
        .left(6);
        for s in &survey.sources {
            if s.missing.is_some() {
                continue;
            }
            let or = |v: Option<f64>| v.map_or_else(|| "-".into(), time);
            let across = match (s.exchanges, s.exchanges_backwards) {
                (0, _) => "-".into(),
                (_, 0) => "in order".into(),
                (n, b) => format!("back {b} of {n}, up to {}", time(s.worst_backwards_ns)),
            };
            table.row(vec![
                s.name.clone(),
                s.reached.clone(),
                or(s.cost_ns),
                or(s.step_ns),
                or(s.resolution_ns),
                s.backwards.to_string(),
                across,
            ]);
        }
        self.table(&table);
        for s in &survey.sources {
            if let Some(why) = &s.missing {
                self.line(&format!("Not measured: {}: {why}.", s.name));
            }
        }
        let (name, why) = (survey.choice.kind.name(), survey.why.clone());
        self.line(&format!(
            "Chosen: {name}: {why}. An empty interval reads {}; that is taken off everything below.",
            time(survey.choice.empty_ns)
        ));
    }

    fn trivial(&mut self) {
        if self.d.rows_of("trivial/").next().is_none() {
            return;
        }
        self.heading("2. Trivial kernel calls");
        self.full_table("CALL", "trivial/", |r| Some(title(&r.id)));
        self.missing("trivial/");
        let (Some(call), Some(function)) = (
            self.d.summary("trivial/getpid"),
            self.d.summary("trivial/function"),
        ) else {
            return;
        };
        let mut text = format!(
            "Entering and leaving the kernel costs about {} here, {} function calls.",
            time(call.typical()),
            digits(call.typical() / function.typical().max(0.1))
        );
        if let (Some(one), Some(many)) = (
            self.d.summary("trivial/io_uring-nop"),
            self.d.summary("trivial/io_uring-nops"),
        ) {
            let each = many.typical() / f64::from(crate::os::trivial::NOPS_AT_ONCE);
            text += &format!(
                " An io_uring operation costs {} alone and {} as one of {}.",
                time(one.typical()),
                time(each),
                crate::os::trivial::NOPS_AT_ONCE
            );
        }
        self.line(&text);
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
            let accounts = self.has_accounts("switch/");
            let mut head = vec!["MEANS"];
            head.extend(NUMBERS);
            head.extend(["CALLS", "ONE SWITCH"]);
            if accounts {
                head.extend(["ON-CPU", "BLOCKED", "RUNQ", "SLEEPS", "IN"]);
            }
            let mut table = Table::new(&head);
            if accounts {
                table = table.left(head.len() - 1);
            }
            for means in switches::MEANS {
                let Some(row) = self.d.row(&format!("switch/{means}/{place}")) else {
                    continue;
                };
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
                cells.extend(number_cells(s));
                cells.push(calls.map_or_else(|| "?".into(), |c| time(2.0 * c.typical())));
                cells.push(match one {
                    Some(x) if x.verdict == Verdict::Stable => time(x.ns),
                    Some(x) if x.high > 0.0 => range(x.low.max(0.0), x.high),
                    _ => "hidden".into(),
                });
                if accounts {
                    let a = row.account.as_ref();
                    let [cpu, blocked, _, sleeps] = account_cells(a);
                    cells.extend([
                        cpu,
                        blocked,
                        part(a.and_then(|a| a.runq_ns)),
                        sleeps,
                        sleeps_text(a),
                    ]);
                }
                table.row(cells);
            }
            if !table.is_empty() {
                self.heading(heading);
                self.table(&table);
            }
        }
        self.missing("switch/");
        self.line(
            "CALLS: what the calls of both ends cost when nobody has to wait. ONE SWITCH: half of what is left \
             of a round trip without them (wake-up, scheduler, address space, caches). The account is of one \
             end: BLOCKED is its wait for the other.",
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
        let accounts = self.has_accounts("fault/");
        let mut head = vec!["PAGE"];
        head.extend(NUMBERS);
        head.push("MEMORY/S");
        if accounts {
            head.extend(["ON-CPU", "FAULTS"]);
        }
        let mut table = Table::new(&head);
        for row in self.d.rows_of("fault/") {
            let Some(s) = &row.summary else { continue };
            let mut cells = vec![title(&row.id)];
            cells.extend(number_cells(s));
            cells.push(rate(fault_bytes(&row.id) as f64, s.typical()));
            if accounts {
                let [cpu, _, faults, _] = account_cells(row.account.as_ref());
                cells.extend([cpu, faults]);
            }
            table.row(cells);
        }
        self.table(&table);
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
                            Some(s) if s.verdict == Verdict::Stable => {
                                digits(mib_per_second(size as f64, s.typical()))
                            }
                            Some(s) => {
                                let (low, high) = s.range();
                                format!(
                                    "{}…{}",
                                    digits(mib_per_second(size as f64, high)),
                                    digits(mib_per_second(size as f64, low))
                                )
                            }
                        },
                    )
                    .collect();
                if cells.iter().any(|c| c != "-") {
                    let mut row = vec![bytes(size as u64)];
                    row.extend(cells);
                    table.row(row);
                }
            }
            self.table(&table);
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

    /// Where the time of one request size went, way by way.
    fn read_accounts(&mut self, state: &str, ways: &[&str]) {
        let size = 65536;
        let mut table = Table::new(&[
            "64 KiB BY",
            "MEAN",
            "95%",
            "ON-CPU",
            "BLOCKED",
            "RUNQ",
            "FAULTS",
            "SLEEPS",
            "IN",
        ])
        .left(8);
        for way in ways {
            let Some(row) = self.d.row(&format!("read/{state}/{way}/{size}")) else {
                continue;
            };
            let (Some(s), Some(a)) = (&row.summary, &row.account) else {
                continue;
            };
            let [cpu, blocked, faults, sleeps] = account_cells(Some(a));
            table.row(vec![
                (*way).to_owned(),
                mean_text(s),
                half_text(s),
                cpu,
                blocked,
                part(a.runq_ns),
                faults,
                sleeps,
                sleeps_text(Some(a)),
            ]);
        }
        self.table(&table);
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
                let mut cells = vec![with_commas(level as i64)];
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
            self.table(&table);
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
            let marked = if self.color {
                format!("\x1b[33m{text}\x1b[0m")
            } else {
                text
            };
            self.line(&marked);
            self.line(&format!("({all})"));
        }
    }

    fn notes(&mut self) {
        for note in self.d.notes.clone() {
            self.line(&format!("Note: {note}."));
        }
    }
}

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

fn rate(bytes: f64, ns: f64) -> String {
    let mib = mib_per_second(bytes, ns);
    if mib >= 1024.0 {
        format!("{} GiB", digits(mib / 1024.0))
    } else {
        format!("{} MiB", digits(mib))
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
        "Cold is cold: before each of {} passes the file was dropped (fdatasync, POSIX_FADV_DONTNEED), and {} \
         found {} of {} pages still in memory",
        with_commas(c.passes as i64),
        c.method,
        with_commas(c.resident as i64),
        with_commas(c.pages as i64)
    );
    if c.nowait_tried > 0 {
        text += &format!(
            "; {} of {} probes by preadv2(RWF_NOWAIT) were refused as not in memory",
            with_commas(c.nowait_again as i64),
            with_commas(c.nowait_tried as i64)
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

/// By the rule of comparisons between runs.
fn differ(a: &Summary, b: &Summary) -> bool {
    crate::stat::compare(&a.medians, &b.medians)
        .is_some_and(|c| c.difference != Difference::NotDistinguishable)
}

fn cpu_of(d: &Document, id: &str) -> Option<f64> {
    d.row(id)?.account.as_ref()?.cpu_ns
}

pub fn conclusions_switches(d: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let (signal, pipe) = ("switch/signal/same", "switch/pipe/same");
    if let (Some(s), Some(p)) = (d.summary(signal), d.summary(pipe)) {
        if differ(s, p) {
            let mut text = format!(
                "A round trip by signals takes {:.2} times one by pipes.",
                s.typical() / p.typical()
            );
            if let (Some(a), Some(b)) = (cpu_of(d, signal), cpu_of(d, pipe)) {
                text += &format!(
                    " One end is on the CPU for {} of it, with pipes for {}",
                    time(a),
                    time(b)
                );
                if let (Some(cs), Some(cp)) = (
                    d.summary("switch-calls/signal"),
                    d.summary("switch-calls/pipe"),
                ) {
                    text += &format!(
                        ": sending, the handler's frame and the return from it cost {} where write and read \
                         cost {}",
                        time(cs.typical()),
                        time(cp.typical())
                    );
                }
                text += ".";
            }
            found.push(text);
        } else {
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
    let (Some(zero), Some(none)) = (d.summary("fault/zero-fill"), d.summary("fault/none")) else {
        return found;
    };
    let mut text = format!(
        "8 MiB of new memory, touched page by page, cost {} of faults",
        time(2048.0 * (zero.typical() - none.typical()).max(0.0))
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
        if let Some(s) = d.summary(id) {
            less.push(format!("{} {name}", time(2048.0 * s.typical() / per)));
        }
    }
    if !less.is_empty() {
        text += &format!("; {}", less.join(", "));
    }
    found.push(text + ".");
    if let Some(s) = d.summary("fault/prefaulted-beside")
        && s.typical() > zero.typical()
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
        let mut times: Vec<(&str, f64)> = ways
            .iter()
            .filter_map(|w| Some((*w, at("warm", w, size)?.typical())))
            .collect();
        if times.len() < 2 {
            continue;
        }
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        let list: Vec<String> = times
            .iter()
            .map(|(w, t)| format!("{w} {}", time(*t)))
            .collect();
        found.push(format!(
            "Warm, {} at a time: {}.",
            bytes(size as u64),
            list.join(", ")
        ));
    }
    if let Some(a) = d
        .row("read/cold/read/65536")
        .and_then(|r| r.account.as_ref())
        && let (Some(blocked), Some(wall)) = (a.blocked_ns, a.wall_ns)
        && wall > 0.0
    {
        found.push(format!(
            "Of a cold read of 64 KiB, {:.0} % is waiting for the device.",
            100.0 * blocked / wall
        ));
    }
    found
}

pub fn conclusions_descriptors(d: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let ends = |kind: &str, prefix: &str| {
        let levels: Vec<usize> = levels_of(d, prefix)
            .into_iter()
            .filter(|l| d.summary(&format!("{prefix}{kind}/{l}")).is_some())
            .collect();
        let (low, high) = (*levels.first()?, *levels.last()?);
        let get = |l: usize| d.summary(&format!("{prefix}{kind}/{l}"));
        (low != high).then(|| Some((low, high, get(low)?, get(high)?)))?
    };
    for (kind, prefix, what) in [
        ("open", "descriptor/", "open"),
        ("dup-search", "descriptor/", "a dup that must search"),
        ("poll", "wait/", "poll"),
        ("epoll", "wait/", "epoll_wait"),
    ] {
        if let Some((low, high, a, b)) = ends(kind, prefix) {
            found.push(if differ(a, b) {
                format!(
                    "From {} to {} descriptors, {what} goes from {} to {} ({:.2} times).",
                    with_commas(low as i64),
                    with_commas(high as i64),
                    time(a.typical()),
                    time(b.typical()),
                    b.typical() / a.typical()
                )
            } else {
                format!(
                    "From {} to {} descriptors, {what} does not change measurably ({}).",
                    with_commas(low as i64),
                    with_commas(high as i64),
                    time(a.typical())
                )
            });
        }
    }
    found
}

/// Words of `text` in lines of `width`, each after `indent`.
pub fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let mut out = String::new();
    let mut line = String::from(indent);
    for word in text.split_whitespace() {
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if line.len() > indent.len() && !fits {
            out += line.trim_end();
            out.push('\n');
            line = String::from(indent);
        }
        if line.len() > indent.len() {
            line.push(' ');
        }
        line += word;
    }
    out += line.trim_end();
    out.push('\n');
    out
}

/// The whole run for a terminal.
pub fn render(d: &Document, color: bool) -> String {
    let mut t = Text {
        d,
        color,
        out: String::new(),
    };
    let head = format!(
        "debox bench {}{}: {}",
        match d.kind {
            Kind::Os => "os",
            Kind::SelfCost => "self",
        },
        if d.quick { " --quick" } else { "" },
        d.machine.line()
    );
    t.out = t.bold(&head) + "\n";
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
                t.out.push('\n');
                t.line(&format!(
                    "Means are of {} processes, with the half width of their 95 % confidence interval; \
                     \"a…b\": the spread hides the mean, so the range of the processes' medians stands there (~a: they agree, single batches do not). \
                     Percentiles are of single operations where these can be timed, else of batches. OUTL.: \
                     batches far off (p: during a preemption); they are in the means. ON-CPU, BLOCKED, FAULTS, \
                     SLEEPS: DeBox's account of one operation, made apart; - is nothing, ? not measured.",
                    d.results
                        .iter()
                        .filter_map(|r| Some(r.summary.as_ref()?.medians.len()))
                        .max()
                        .unwrap_or(0)
                ));
            }
        }
        Kind::SelfCost => {
            if let Some(own) = &d.self_cost {
                let color = t.color;
                t.out += &crate::selfcost::text(own, color);
            }
        }
    }
    if let Some(c) = &d.comparison {
        t.out += &compared(c, color);
    }
    if !d.notes.is_empty() {
        t.out.push('\n');
        t.notes();
    }
    t.line(&format!("Took {:.0} s.", d.seconds));
    t.out
}

fn compared(c: &Compared, color: bool) -> String {
    let bold = |t: &str| {
        if color {
            format!("\x1b[1m{t}\x1b[0m")
        } else {
            t.to_owned()
        }
    };
    let mut out = format!(
        "\n{}\n",
        bold(&format!("Compared with {}: {}", c.with, c.machine_there))
    );
    if c.machine_differences.is_empty() {
        out += "  The machines are described alike.\n";
    }
    for (what, here, there) in &c.machine_differences {
        out += &wrapped(&format!("{what}: here {here}; there {there}"), 100, "  ");
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
            time(x.here_ns),
            time(x.there_ns),
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
        out += &table.render(&bold);
    }
    out += &wrapped(
        &format!(
            "{same} of {} cases are not distinguishable. A difference is told when the ranks of the processes' \
             medians (Mann-Whitney, p < 0.01) and the 99 % interval of the ratio both say so; by chance that \
             happens about once in 200 cases.",
            c.rows.len()
        ),
        100,
        "  ",
    );
    for (what, ids) in [("Only here", &c.only_here), ("Only there", &c.only_there)] {
        if !ids.is_empty() {
            out += &wrapped(
                &format!("{what}: {} cases ({} …).", ids.len(), ids[0]),
                100,
                "  ",
            );
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
