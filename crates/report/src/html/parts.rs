// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands in each section of the HTML report?

use super::table::{Cell, Column, Table, Width, drawing, head, narrow_style, number, words};
use super::time;
use crate::assemble::frame_text;
use crate::chains;
use crate::culprits::culprit_groups;
use crate::findings::{idle_rows, nothing_found, waits_for};
use crate::idle::{Split, Splits};
use crate::model::*;
use crate::open::open_groups;
use debox_output::{count_text, escape, printable, result_text};

/// Columns and rows of the label × call matrix; the others are summed.
const MATRIX_CALLS: usize = 12;
const MATRIX_LABELS: usize = 24;
/// Bars of "where the time went"; the others are summed.
const BARS: usize = 14;

pub fn call_name(call: Option<&str>, abi: u32) -> String {
    match call {
        None => "(no call)".into(),
        Some(call) if abi == 32 => format!("{call} (32-bit)"),
        Some(call) => call.to_owned(),
    }
}

fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count_text(n), if n == 1 { one } else { many })
}

fn part(ns: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        100.0 * ns as f64 / whole as f64
    }
}

pub fn subject(run: &Run) -> String {
    let command: Vec<String> = run
        .command
        .iter()
        .map(|word| {
            if word.is_empty() || word.contains(char::is_whitespace) {
                format!("'{word}'")
            } else {
                word.clone()
            }
        })
        .collect();
    let command = command.join(" ");
    if run.kind == RunKind::Run {
        return command;
    }
    if run.pids.is_empty() {
        return format!("processes: {command}");
    }
    let pids: Vec<String> = run.pids.iter().map(u32::to_string).collect();
    let what = if pids.len() == 1 {
        "process"
    } else {
        "processes"
    };
    let mut subject = format!("{what} {}", pids.join(", "));
    if !command.is_empty() {
        subject.push_str(&format!(" ({command})"));
    }
    subject
}

pub fn header(report: &Report, subject: &str) -> String {
    let run = &report.run;
    let t = &report.totals;
    let mut facts = vec![format!("{} of run time", time(run.wall_ns))];
    if report.measured.calls {
        facts.push(format!(
            "{} took {}",
            plural(t.calls, "call", "calls"),
            time(t.wall_ns)
        ));
    }
    if t.errors > 0 {
        facts.push(plural(t.errors, "error", "errors"));
    }
    if t.processes_started > 0 {
        facts.push(plural(
            t.processes_started,
            "process started",
            "processes started",
        ));
    }
    if t.threads_started > 0 {
        facts.push(plural(
            t.threads_started,
            "thread started",
            "threads started",
        ));
    }
    facts.push(run.capture.text().into());
    let exit = match &run.exit {
        Some(Exit::Signal { number, name }) => {
            format!(
                "<p class=\"bad\">Ended by signal {number} ({}).</p>\n",
                escape(name)
            )
        }
        Some(Exit::Code(code)) if *code != 0 => {
            format!("<p class=\"bad\">Exit status {code}.</p>\n")
        }
        _ => String::new(),
    };
    let facts: Vec<String> = facts
        .iter()
        .map(|f| format!("<li>{}</li>", escape(f)))
        .collect();
    format!(
        "<div class=\"top\"><p class=\"brand\">DeBox <span>why it blocked</span></p><button id=\"theme\" type=\"button\" hidden>Colours: automatic</button></div>\n<h1>{}</h1>\n<ul class=\"facts\">{}</ul>\n{exit}",
        escape(subject),
        facts.join("")
    )
}

pub fn summary(report: &Report, findings: &[Finding]) -> String {
    let mut out = String::new();
    if let Some(state) = report.recording.as_ref().filter(|s| !s.complete) {
        let why = state.why.as_deref().unwrap_or("the reason is not known");
        out.push_str(&format!(
            "<p class=\"warn\"><strong>The recording is not complete.</strong> It holds the first {}: {}</p>\n",
            time(state.until_ns),
            escape(why)
        ));
    }
    if findings.is_empty() && !report.verdict.is_empty() {
        return out;
    }
    if findings.is_empty() {
        out.push_str(&format!(
            "<p class=\"none\">{}</p>\n",
            escape(&nothing_found(report))
        ));
        return out;
    }
    out.push_str("<ol class=\"findings\">\n");
    for f in findings {
        let percent = (f.share.clamp(0.0, 1.0) * 100.0).round();
        out.push_str(&format!(
            "<li><div class=\"share\" aria-hidden=\"true\"><b>{percent:.0}<small>%</small></b><i><i style=\"width:{percent:.0}%\"></i></i></div><div><h3>{}</h3><p>{}</p><details open><summary>Evidence</summary><ul>",
            escape(&f.title),
            escape(&f.text)
        ));
        for line in &f.evidence {
            out.push_str(&format!("<li>{}</li>", escape(line)));
        }
        out.push_str("</ul></details></div></li>\n");
    }
    out.push_str("</ol>\n");
    out
}

struct Bar {
    name: String,
    cpu: u64,
    blocked: u64,
    runq: u64,
    idle: u64,
    minor: u64,
    major: u64,
}

impl Bar {
    fn busy(&self) -> u64 {
        self.cpu
            .saturating_add(self.blocked)
            .saturating_add(self.runq)
    }

    fn add(&mut self, other: &Bar) {
        for (sum, n) in [
            (&mut self.cpu, other.cpu),
            (&mut self.blocked, other.blocked),
            (&mut self.runq, other.runq),
            (&mut self.idle, other.idle),
            (&mut self.minor, other.minor),
            (&mut self.major, other.major),
        ] {
            *sum = sum.saturating_add(n);
        }
    }

    fn html(&self, scale: u64, with_idle: bool) -> String {
        let mut pieces = vec![
            ("cpu", "on a CPU", self.cpu),
            ("blocked", "blocked", self.blocked),
            ("runq", "waiting for a CPU", self.runq),
        ];
        if with_idle {
            pieces.push(("idle", "waiting for work", self.idle));
        }
        let label: Vec<String> = pieces
            .iter()
            .filter(|p| p.2 > 0)
            .map(|(_, name, ns)| format!("{name} {}", time(*ns)))
            .collect();
        let spans: String = pieces
            .iter()
            .filter(|p| p.2 > 0)
            .map(|(class, name, ns)| {
                format!(
                    "<span class=\"{class}\" style=\"width:{:.3}%\" title=\"{name}: {}\"></span>",
                    part(*ns, scale),
                    time(*ns)
                )
            })
            .collect();
        format!(
            "<div class=\"bar\" role=\"img\" aria-label=\"{}\">{spans}</div>",
            escape(&label.join(", "))
        )
    }
}

fn bars(report: &Report) -> Vec<Bar> {
    let idle = idle_rows(report);
    let idle_of = |call: Option<&str>, abi: u32| {
        idle.iter()
            .filter(|r| r.call.as_deref() == call && (call.is_none() || r.abi == abi))
            .fold(0u64, |sum, r| sum.saturating_add(r.total_ns))
    };
    let mut bars: Vec<Bar> = report
        .calls
        .iter()
        .map(|c| {
            let blocked = c.blocked_ns.unwrap_or(0);
            let idle = idle_of(Some(&c.name), c.abi).min(blocked);
            // Without a broker only the whole is known; it is shown as such.
            Bar {
                name: call_name(Some(&c.name), c.abi),
                cpu: c.cpu_ns.unwrap_or(0).saturating_add(c.irq_ns.unwrap_or(0)),
                blocked: blocked - idle,
                runq: c.runq_ns.unwrap_or(0),
                idle,
                minor: c.minor_faults.unwrap_or(0),
                major: c.major_faults.unwrap_or(0),
            }
        })
        .collect();
    let outside: u64 = report
        .blocking
        .iter()
        .filter(|b| b.call.is_none())
        .fold(0, |sum, b| sum.saturating_add(b.total_ns));
    if outside > 0 {
        let idle = idle_of(None, 0);
        bars.push(Bar {
            name: "(no call)".into(),
            cpu: 0,
            blocked: outside - idle.min(outside),
            runq: 0,
            idle,
            minor: 0,
            major: 0,
        });
    }
    bars
}

pub fn time_bars(report: &Report) -> String {
    if !report.measured.blocked {
        return if report.totals.calls == 0 {
            String::new()
        } else {
            "<p>Only wall times were measured in this run.</p>\n".into()
        };
    }
    let mut list = bars(report);
    if list.is_empty() {
        return String::new();
    }
    let mut all = Bar {
        name: "all".into(),
        cpu: 0,
        blocked: 0,
        runq: 0,
        idle: 0,
        minor: 0,
        major: 0,
    };
    list.iter().for_each(|bar| all.add(bar));
    list.sort_by_key(|b| std::cmp::Reverse(b.busy()));
    let total = all.busy().saturating_add(all.idle);
    let mut out = String::from("<ul class=\"legend\">");
    for (class, name, ns, what) in [
        (
            "cpu",
            "on a CPU",
            all.cpu,
            "in the kernel, working for the call; interrupts are in it",
        ),
        (
            "blocked",
            "blocked",
            all.blocked,
            "asleep until something happened",
        ),
        (
            "runq",
            "waiting for a CPU",
            all.runq,
            "could have run, but no CPU was free",
        ),
        (
            "idle",
            "waiting for work",
            all.idle,
            "blocked with nothing to do: event loops, timers, children",
        ),
    ] {
        out.push_str(&format!(
            "<li title=\"{what}\"><i class=\"{class}\"></i>{name} <b>{}</b> ({:.0} %)</li>",
            time(ns),
            part(ns, total)
        ));
    }
    out.push_str("</ul>\n");
    out.push_str(
        &all.html(total, true)
            .replacen("class=\"bar\"", "class=\"bar big\"", 1),
    );
    if list.len() > BARS + 1 {
        let rest = list.split_off(BARS);
        let mut other = Bar {
            name: format!("({} others)", rest.len()),
            cpu: 0,
            blocked: 0,
            runq: 0,
            idle: 0,
            minor: 0,
            major: 0,
        };
        rest.iter().for_each(|bar| other.add(bar));
        list.push(other);
    }
    let scale = list.iter().map(Bar::busy).max().unwrap_or(0);
    let table = Table {
        id: "t-time",
        caption: "Where the time of each call went, waiting for work aside".into(),
        columns: vec![
            head("Call", ""),
            drawing("On a CPU, blocked, waiting for a CPU", ""),
            number("Sum", "On a CPU, blocked, and waiting for a CPU"),
            number("On CPU", ""),
            number("Blocked", "Asleep, waiting for work aside"),
            number("Run queue", "Runnable, waiting for a CPU"),
            number(
                "Waiting for work",
                "Asleep with nothing to do: not in the bar",
            ),
            number(
                "Major faults",
                "Page faults inside the calls that needed the disk",
            ),
            number("Minor faults", "Page faults inside the calls that did not"),
        ],
        rows: list
            .iter()
            .map(|b| {
                (
                    String::new(),
                    vec![
                        Cell::text(&b.name),
                        Cell::Html(b.html(scale, false)),
                        Cell::Time(Some(b.busy())),
                        Cell::Time(Some(b.cpu)),
                        Cell::Time(Some(b.blocked)),
                        Cell::Time(Some(b.runq)),
                        Cell::Time(Some(b.idle)),
                        Cell::Count(Some(b.major)),
                        Cell::Count(Some(b.minor)),
                    ],
                )
            })
            .collect(),
        page: 0,
        sorted: Some(2),
    };
    out.push_str(&table.html());
    out
}

/// Sums of (time, count) in the order of time, the rest under one name.
fn top(rows: impl Iterator<Item = (String, u64)>, most: usize) -> Vec<String> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (name, ns) in rows {
        match sums.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => *sum = sum.saturating_add(ns),
            None => sums.push((name, ns)),
        }
    }
    sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    sums.truncate(most);
    sums.into_iter().map(|(name, _)| name).collect()
}

pub fn matrix(report: &Report) -> String {
    if report.blocking.is_empty() {
        return String::new();
    }
    let rows = &report.blocking;
    let name = |r: &BlockingRow| call_name(r.call.as_deref(), r.abi);
    let calls = top(rows.iter().map(|r| (name(r), r.total_ns)), MATRIX_CALLS);
    let labels = top(
        rows.iter().map(|r| (r.label.clone(), r.total_ns)),
        MATRIX_LABELS,
    );
    // One more row and column for the rest.
    let (width, height) = (calls.len() + 1, labels.len() + 1);
    let mut cells = vec![(0u64, 0u64); width * height];
    for r in rows {
        let x = calls
            .iter()
            .position(|c| *c == name(r))
            .unwrap_or(width - 1);
        let y = labels
            .iter()
            .position(|l| *l == r.label)
            .unwrap_or(height - 1);
        let cell = &mut cells[y * width + x];
        cell.0 = cell.0.saturating_add(r.total_ns);
        cell.1 = cell.1.saturating_add(r.count);
    }
    let used_x: Vec<usize> = (0..width)
        .filter(|x| (0..height).any(|y| cells[y * width + x].1 > 0))
        .collect();
    let used_y: Vec<usize> = (0..height)
        .filter(|y| (0..width).any(|x| cells[y * width + x].1 > 0))
        .collect();
    let most = cells.iter().map(|c| c.0).max().unwrap_or(1).max(2) as f64;
    let most_count = cells.iter().map(|c| c.1).max().unwrap_or(1).max(2) as f64;
    let sum = |cells: &mut dyn Iterator<Item = (u64, u64)>| {
        cells.fold((0u64, 0u64), |a, c| {
            (a.0.saturating_add(c.0), a.1.saturating_add(c.1))
        })
    };
    let both = |(ns, n): (u64, u64)| {
        format!(
            "<span class=\"by-time\">{}</span><span class=\"by-count\">{}</span>",
            time(ns),
            count_text(n)
        )
    };
    let columns: Vec<Width> = ["Label", "All"]
        .into_iter()
        .chain(
            used_x
                .iter()
                .map(|x| calls.get(*x).map_or("(others)", |c| c)),
        )
        .enumerate()
        .map(|(i, title)| Width {
            title: title.to_owned(),
            class: if i == 0 { "h" } else { "n" },
            chars: if i == 0 { 18 } else { 7 },
        })
        .collect();
    let mut out = String::from(
        "<p class=\"controls\" id=\"matrix-controls\" hidden><button type=\"button\" id=\"matrix-by\" aria-pressed=\"false\">Show how often instead of how long</button></p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Blocked time by label and call\">\n<style>",
    );
    out += &narrow_style("t-matrix", &columns);
    out.push_str(
        "</style><table id=\"t-matrix\" class=\"matrix\">\n<caption class=\"sr\">Blocked time by label (rows) and call (columns)</caption>\n<thead><tr><th scope=\"col\">Label</th><th scope=\"col\" class=\"n\">All</th>",
    );
    for x in &used_x {
        let call = calls.get(*x).map_or("(others)", |c| c);
        out.push_str(&format!(
            "<th scope=\"col\" class=\"n\">{}</th>",
            escape(call)
        ));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for y in &used_y {
        let label = labels.get(*y).map_or("(others)", |l| l);
        let what = waits_for(report, label).map_or(String::new(), |w| {
            format!(" title=\"waiting for {}\"", escape(w))
        });
        let all = sum(&mut (0..width).map(|x| cells[y * width + x]));
        out.push_str(&format!(
            "<tr><th scope=\"row\"{what}>{}</th><td class=\"n all\">{}</td>",
            escape(label),
            both(all)
        ));
        for x in &used_x {
            let cell = cells[y * width + x];
            if cell.1 == 0 {
                out.push_str("<td class=\"n\"></td>");
                continue;
            }
            // Times span orders of magnitude, so the colour follows the logarithm.
            let heat =
                |v: f64, most: f64| (1.0 + v.max(1.0).ln() / most.ln() * 9.0).round().min(10.0);
            let heat_time = if cell.0 as f64 >= most {
                10.0
            } else {
                // Six decades below the largest are cold.
                (10.0 + 1.6 * (cell.0.max(1) as f64 / most).log10())
                    .round()
                    .max(1.0)
            };
            out.push_str(&format!(
                "<td class=\"n heat ht{heat_time} hc{}\" title=\"{}: {} in {}\">{}</td>",
                heat(cell.1 as f64, most_count),
                escape(calls.get(*x).map_or("(others)", |c| c)),
                time(cell.0),
                plural(cell.1, "sleep", "sleeps"),
                both(cell)
            ));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n<tfoot><tr><th scope=\"row\">All</th>");
    out.push_str(&format!(
        "<td class=\"n all\">{}</td>",
        both(sum(&mut cells.iter().copied()))
    ));
    for x in &used_x {
        let all = sum(&mut (0..height).map(|y| cells[y * width + x]));
        out.push_str(&format!("<td class=\"n all\">{}</td>", both(all)));
    }
    out.push_str("</tr></tfoot>\n</table>\n</div>\n");
    out
}

/// A histogram as small as a word, on the scale that all calls share.
fn sparkline(buckets: &[Bucket], from: f64, to: f64) -> String {
    const WIDTH: f64 = 110.0;
    const HEIGHT: f64 = 20.0;
    let most = buckets.iter().map(|b| b.count).max().unwrap_or(0);
    if most == 0 || to <= from {
        return String::new();
    }
    let x = |ns: u64| (((ns.max(1) as f64).ln() - from) / (to - from) * WIDTH).clamp(0.0, WIDTH);
    let bars: String = buckets
        .iter()
        .map(|b| {
            let left = x(b.from_ns);
            let right = b.to_ns.map_or(WIDTH, x).max(left + 1.5);
            // Ten calls in a million must not vanish.
            let height = HEIGHT * (1.0 + b.count as f64).ln() / (1.0 + most as f64).ln();
            format!(
                "M{left:.1} {HEIGHT}V{:.1}H{right:.1}V{HEIGHT}z",
                HEIGHT - height
            )
        })
        .collect();
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" aria-hidden=\"true\"><path d=\"{bars}\"/></svg>"
    )
}

pub fn calls(report: &Report) -> String {
    if report.calls.is_empty() {
        return String::new();
    }
    let ends = report.calls.iter().flat_map(|c| {
        let first = c.histogram.first().map(|b| b.from_ns);
        let last = c.histogram.last().map(|b| b.to_ns.unwrap_or(b.from_ns * 2));
        [first, last].into_iter().flatten()
    });
    let from = (ends.clone().min().unwrap_or(1).max(1) as f64).ln();
    let to = (ends.max().unwrap_or(1).max(2) as f64).ln();
    let m = &report.measured;
    let measured = |yes: bool, n: Option<u64>| if yes { n } else { Some(0) };
    let table = Table {
        id: "t-calls",
        caption: "Calls by total time".into(),
        columns: vec![
            head("Call", ""),
            drawing(
                "Times",
                "How long the calls took: shorter to the left, the same scale in all rows, logarithmic both ways",
            ),
            number("Count", "Calls that returned"),
            number("Errors", "Of those, returned an error"),
            number("Restarted", "Interrupted by a signal and restarted"),
            number("Unfinished", "Never returned"),
            number("Total", "Wall time of all calls together"),
            number("Mean", ""),
            number("p50", "Half of the calls took no longer"),
            number("p99", "99 of 100 calls took no longer"),
            number("Max", ""),
            number("On CPU", ""),
            number("Blocked", "Asleep until woken"),
            number("Run queue", "Runnable, waiting for a CPU"),
            number("Interrupts", "That landed in the calls"),
            number("Major faults", "Page faults that needed the disk"),
            number("Minor faults", "Page faults that did not"),
            number("Switches", "Context switches: voluntary and not"),
        ],
        rows: report
            .calls
            .iter()
            .enumerate()
            .map(|(i, c)| {
                let switches = match (c.nvcsw, c.nivcsw) {
                    (Some(v), Some(n)) => Some(v.saturating_add(n)),
                    _ => None,
                };
                (
                    format!(" data-call=\"{i}\""),
                    vec![
                        Cell::text(&call_name(Some(&c.name), c.abi)),
                        Cell::Html(sparkline(&c.histogram, from, to)),
                        Cell::Count(Some(c.count)),
                        Cell::Count(Some(c.errors)),
                        Cell::Count(Some(c.restarted)),
                        Cell::Count(Some(c.unfinished)),
                        match (c.mark(), c.wall_ns) {
                            ("", _) | (_, None) => Cell::Time(c.wall_ns),
                            (mark, Some(ns)) => {
                                Cell::Value(ns as f64, format!("{mark}{}", time(ns)))
                            }
                        },
                        Cell::Time(c.mean_ns),
                        Cell::Time(c.p50_ns),
                        Cell::Time(c.p99_ns),
                        Cell::Time(c.max_ns),
                        Cell::Time(measured(m.blocked, c.cpu_ns)),
                        Cell::Time(measured(m.blocked, c.blocked_ns)),
                        Cell::Time(measured(m.runq, c.runq_ns)),
                        Cell::Time(measured(m.irq, c.irq_ns)),
                        Cell::Count(measured(m.major_faults, c.major_faults)),
                        Cell::Count(measured(m.minor_faults, c.minor_faults)),
                        Cell::Count(measured(m.switches, switches)),
                    ],
                )
            })
            .collect(),
        page: 25,
        sorted: None,
    };
    format!(
        "{}<div id=\"histogram\" class=\"panel\" hidden></div>\n",
        table.html()
    )
}

/// Who slept there, and how long.
fn whose(row: &BlockingRow) -> String {
    let told = row.names_told().into_iter();
    let texts = told.map(|line| format!("{} {}", line.text, time(line.total_ns)));
    texts.collect::<Vec<_>>().join(", ")
}

/// The share of all that is a loss. What is idle stands below it, and keeps the column.
fn share_cell(split: Split, all: Split) -> Cell {
    if split.lost_ns == 0 && (split.idle_ns > 0 || split.tool_ns > 0) {
        return Cell::Value(-1.0, split.share_text(all));
    }
    let share = part(split.lost_ns, all.lost_ns);
    Cell::Value(share, format!("{share:.1} %"))
}

/// How long was idle.
fn aside(all: Split) -> String {
    let text = all.aside_text(false);
    text.map_or(String::new(), |text| format!("<p>{}.</p>\n", escape(&text)))
}

pub fn places(report: &Report, splits: &Splits) -> String {
    if report.blocking.is_empty() {
        return String::new();
    }
    let named = report.names_differ();
    let columns: Vec<Column> = vec![
        head("Label", "What was waited for"),
        words("Call", ""),
        number("Count", "Sleeps"),
        number("Total", "Blocked time"),
        number("Idle", "Of that: waiting for something to do"),
        number("Share", "Of the blocked time that is a loss"),
        number("Mean", ""),
        number("Max", ""),
        number(
            "Waiters",
            "Others waiting for the same when a sleep began: mean; ? not known",
        ),
        words(
            "Whose",
            "Names of the threads that slept, and how long, where there are several; none: not known",
        ),
        words("Place", "Where in the kernel"),
        words("Waiting for", ""),
    ];
    let table = Table {
        id: "t-places",
        caption: "Places in the kernel where calls blocked".into(),
        columns,
        rows: report
            .blocking
            .iter()
            .zip(&splits.rows)
            .map(|(b, split)| {
                (
                    String::new(),
                    vec![
                        Cell::text(&b.label),
                        Cell::text(&call_name(b.call.as_deref(), b.abi)),
                        Cell::Count(Some(b.count)),
                        Cell::Time(Some(b.total_ns)),
                        Cell::Time(Some(split.all.idle_ns)),
                        share_cell(split.all, splits.all),
                        Cell::Time(Some(b.mean_ns)),
                        Cell::Time(Some(b.max_ns)),
                        Cell::Value(
                            b.waiters_mean.unwrap_or(0.0),
                            match b.waiters_mean.filter(|_| b.waiters_known > 0) {
                                None => "?".into(),
                                Some(0.0) => "–".into(),
                                Some(mean) => format!("{mean:.1}"),
                            },
                        ),
                        Cell::Text(match named {
                            true => whose(b),
                            false => String::new(),
                        }),
                        Cell::Text(b.place()),
                        Cell::text(waits_for(report, &b.label).unwrap_or("")),
                    ],
                )
            })
            .collect(),
        page: 25,
        sorted: Some(3),
    };
    aside(splits.all) + &table.html()
}

pub fn objects(report: &Report, splits: &Splits) -> String {
    let all = splits.of_objects(report);
    let rows: Vec<_> = report
        .by_object
        .iter()
        .filter_map(|row| Some((row, report.objects.get(row.object?)?)))
        .map(|(row, object)| {
            (
                String::new(),
                vec![
                    Cell::text(&object.text),
                    Cell::text(&call_name(row.call.as_deref(), row.abi)),
                    Cell::Time(Some(row.total_ns)),
                    share_cell(splits.of_object(row), all),
                    Cell::Count(Some(row.count)),
                    Cell::Time(Some(row.max_ns)),
                    Cell::text(object.device.as_deref().unwrap_or("")),
                    Cell::Count(object.inode.filter(|_| object.device.is_some())),
                ],
            )
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let table = Table {
        id: "t-objects",
        caption: "Blocked time by what the calls worked on".into(),
        columns: vec![
            words(
                "Object",
                "File, socket, pipe or lock word, as it was during the call",
            ),
            head("Call", ""),
            number("Total", "Blocked"),
            number("Share", "Of the blocked time that is a loss"),
            number("Sleeps", ""),
            number("Longest", ""),
            words("Device", "Of the file system"),
            number("Inode", ""),
        ],
        rows,
        page: 15,
        sorted: Some(2),
    };
    aside(all) + &table.html()
}

pub fn chains(report: &Report) -> String {
    let sum = |rows: &[ChainRow]| {
        let all = rows.iter();
        all.fold(0u64, |sum, row| sum.saturating_add(row.total_ns))
    };
    if sum(&report.chains) == 0 {
        return String::new();
    }
    let (waits, rests) = chains::waits(report);
    let roots = chains::roots(report, &waits);
    let (all, rest_ns) = (sum(&waits), sum(&rests));
    let rested = match rest_ns {
        0 => String::new(),
        ns => format!(
            "<p>Left out of the table: {} where threads come back to, for work or for an answer.</p>\n",
            time(ns)
        ),
    };
    let rows = roots
        .iter()
        .map(|root| {
            (
                String::new(),
                vec![
                    Cell::text(&root.text),
                    Cell::Time(Some(root.total_ns)),
                    Cell::Value(
                        part(root.total_ns, all),
                        format!("{:.1} %", part(root.total_ns, all)),
                    ),
                    Cell::Count(Some(root.count)),
                    Cell::Count(Some(root.ways as u64)),
                    Cell::text(if root.known {
                        ""
                    } else {
                        "not followed further"
                    }),
                ],
            )
        })
        .collect();
    let table = Table {
        id: "t-roots",
        caption: "Where the waiting ends".into(),
        columns: vec![
            words("Root", "What stands at the end of the chains"),
            number("Total", "Blocked time that ends here"),
            number("Share", "Of the blocked time that is told here"),
            number("Parts", "Parts of sleeps that end here"),
            number("Ways", "Different chains that end here"),
            words("", ""),
        ],
        rows,
        page: 10,
        sorted: Some(1),
    };
    format!(
        "<p>Each sleep, what it waited for, what that waited for, and so on to the end. The wider, the longer.</p>\n<noscript><p>The flame graph is drawn by JavaScript.</p></noscript>\n<div id=\"chains-view\"></div>\n{rested}{}",
        if roots.is_empty() {
            String::new()
        } else {
            table.html()
        }
    )
}

pub fn culprits(report: &Report) -> String {
    if report.culprits.is_empty() {
        return String::new();
    }
    let table = Table {
        id: "t-culprits",
        caption: "Who held what was waited for, or ended the wait".into(),
        columns: vec![
            head("Who", ""),
            number("Process", "Its number, or how many there are of that name"),
            words("In", "The system call that it was in, when known"),
            words(
                "Place",
                "Where in its program the owner of a lock made that call, or else its last one",
            ),
            words("Role", ""),
            words("Label", "What was waited for"),
            words("Waiting call", ""),
            number("Waits", ""),
            number("Total", "How long these waits were"),
            number("Longest", ""),
        ],
        rows: culprit_groups(report, report)
            .iter()
            .map(|group| {
                let of = &group.of;
                let who = match (of.interrupt, of.comm.as_str()) {
                    (true, _) => "(interrupt: a device or a timer)",
                    (_, "") => "(name withheld)",
                    (_, comm) => comm,
                };
                let role = match of.role {
                    CulpritRole::Holder => "held the lock",
                    CulpritRole::Reader => "held it for reading",
                    CulpritRole::Waker => "ended the wait",
                };
                let processes = group.pids.len();
                let process = match (group.pids.first(), processes) {
                    (None, _) => String::new(),
                    (Some(pid), 1) => pid.to_string(),
                    (_, many) => format!("{many} processes"),
                };
                (
                    String::new(),
                    vec![
                        Cell::text(who),
                        Cell::Value(processes as f64, process),
                        Cell::text(of.culprit_call.as_deref().unwrap_or("")),
                        Cell::text(&of.place),
                        Cell::text(role),
                        Cell::text(&of.label),
                        Cell::text(&call_name(of.call.as_deref(), of.abi)),
                        Cell::Count(Some(group.count)),
                        Cell::Time(Some(group.total_ns)),
                        Cell::Time(Some(group.max_ns)),
                    ],
                )
            })
            .collect(),
        page: 15,
        sorted: Some(8),
    };
    format!(
        "<p>Who held a lock when a wait began, and who ended waits. One wait can stand here twice: once under its holder, once under whoever ended it.</p>\n{}",
        table.html()
    )
}

/// What ran in its calls, and between them, for whoever it was.
pub fn interrupts(report: &Report) -> String {
    if !report.measured.irq {
        return String::new();
    }
    let (in_calls, outside) = (
        report.totals.irq_ns.unwrap_or(0),
        report.totals.irq_outside_ns.unwrap_or(0),
    );
    let on_cpu = report.totals.cpu_ns.unwrap_or(0).saturating_add(in_calls);
    let text = format!(
        "<p>Work done for others: {} in its calls ({:.1} % of their time on a CPU), {} between them. \
         Whose work an interrupt did is not known; of packets to the machine itself it is the sender's \
         own.</p>\n",
        time(in_calls),
        part(in_calls, on_cpu),
        time(outside)
    );
    if report.interrupts.is_empty() {
        return text;
    }
    let rows = report
        .interrupts
        .iter()
        .map(|row| {
            (
                String::new(),
                vec![
                    Cell::text(&row.name),
                    Cell::text(row.kind.text()),
                    Cell::Count(Some(row.count)),
                    Cell::Time(Some(row.total_ns)),
                    Cell::Value(
                        part(row.total_ns, in_calls),
                        format!("{:.1} %", part(row.total_ns, in_calls)),
                    ),
                    Cell::Time(Some(row.max_ns)),
                    Cell::Count(Some(row.outside_count)),
                    Cell::Time(Some(row.outside_ns)),
                    Cell::Time(Some(row.outside_max_ns)),
                ],
            )
        })
        .collect();
    let table = Table {
        id: "t-interrupts",
        caption: "Interrupts by what they are for".into(),
        columns: vec![
            head("Interrupt", ""),
            words("Kind", ""),
            number("Count", "That landed in calls"),
            number("Total", ""),
            number("Share", "Of all in calls"),
            number("Max", ""),
            number("Between", "In the program's own code"),
            number("Total there", ""),
            number("Max there", ""),
        ],
        rows,
        page: 25,
        sorted: None,
    };
    text + &table.html()
}

pub fn call_sites(report: &Report) -> String {
    if report.call_sites.is_empty() {
        return String::new();
    }
    let rows = report
        .call_sites
        .iter()
        .map(|s| {
            (
                String::new(),
                vec![
                    Cell::text(&s.place),
                    Cell::text(&s.call),
                    Cell::Count(Some(s.count)),
                    Cell::Count(Some(s.errors)),
                    Cell::Time(s.wall_ns),
                    Cell::Value(
                        part(s.wall(), report.totals.wall_ns),
                        format!("{:.1} %", part(s.wall(), report.totals.wall_ns)),
                    ),
                    Cell::Time(s.mean_ns),
                    Cell::Time(s.max_ns),
                    Cell::Time(s.cpu_ns.or((!report.measured.blocked).then_some(0))),
                    Cell::Time(s.blocked_ns.or((!report.measured.blocked).then_some(0))),
                    Cell::Time(s.runq_ns.or((!report.measured.runq).then_some(0))),
                    Cell::Time(s.irq_ns.or((!report.measured.irq).then_some(0))),
                ],
            )
        })
        .collect();
    Table {
        id: "t-sites",
        caption: "Calls by the place in the program that made them".into(),
        columns: vec![
            head("Call site", "The place in the program that made the call"),
            words("Call", ""),
            number("Count", ""),
            number("Errors", ""),
            number("Total", "Wall time"),
            number("Share", "Of the wall time of all calls"),
            number("Mean", ""),
            number("Max", ""),
            number("On CPU", ""),
            number("Blocked", ""),
            number("Run queue", ""),
            number("Interrupts", "That landed in the calls"),
        ],
        rows,
        page: 25,
        sorted: None,
    }
    .html()
}

pub fn flame(report: &Report) -> String {
    if report.paths.is_empty() && report.blocking.is_empty() {
        return String::new();
    }
    let what = if report.paths.is_empty() {
        "By call, place in the kernel and label; the paths through the program were not recorded."
    } else if report.stacks.iter().any(|s| s.frames.len() > 1) {
        "From the program's outermost function down to the kernel function that slept and its label."
    } else {
        "From the program's call site down to the kernel function that slept and its label; with --stacks the whole path through the program is recorded."
    };
    format!(
        "<p>{what} The wider, the longer the program was blocked there.</p>\n<noscript><p>The flame graph is drawn by JavaScript.</p></noscript>\n<div id=\"flame-view\"></div>\n"
    )
}

pub fn all_time(report: &Report) -> String {
    if report.lives.is_empty() {
        return String::new();
    }
    "<p>The lives of all threads, by name: what they ran on a CPU, what they waited for, down to the end of its chain, and for how long they had no CPU. The wider, the longer.</p>\n<noscript><p>The flame graph is drawn by JavaScript.</p></noscript>\n<div id=\"all-view\"></div>\n".into()
}

pub fn on_cpu(report: &Report) -> String {
    let Some(on_cpu) = &report.on_cpu else {
        return String::new();
    };
    let rows = on_cpu
        .tops()
        .into_iter()
        .map(|top| {
            let share = part(top.samples, on_cpu.samples);
            let error = on_cpu.error_percent(top.samples);
            (
                String::new(),
                vec![
                    Cell::text(&top.text),
                    Cell::text(&top.comm),
                    Cell::Time(Some(on_cpu.time_ns(top.samples))),
                    Cell::Value(share, format!("{share:.1} %")),
                    Cell::Value(error, format!("{error:.1}")),
                    Cell::Count(Some(top.samples)),
                ],
            )
        })
        .collect();
    let table = Table {
        id: "t-cpu",
        caption: "What ran".into(),
        columns: vec![
            head(
                "What",
                "A function of the program itself, without what it called; of the kernel the call",
            ),
            words("In", "Threads of this name"),
            number("Time", "What the samples stand for"),
            number("Share", "Of all samples"),
            number(
                "±",
                "Percentage points: the share lies within with a certainty of 95 %",
            ),
            number("Samples", ""),
        ],
        rows,
        page: 15,
        sorted: Some(2),
    };
    format!(
        "<p>{} samples, {} a second of CPU time, {} in all, by name of the threads and by function. The wider, the longer it ran.</p>\n<noscript><p>The flame graph is drawn by JavaScript.</p></noscript>\n<div id=\"cpu-view\"></div>\n{}",
        count_text(on_cpu.samples),
        on_cpu.hz,
        time(on_cpu.time_ns(on_cpu.samples)),
        table.html()
    )
}

fn party(p: &Party) -> String {
    let mut who = if p.tid == 0 {
        "an interrupt".into()
    } else if p.comm.is_empty() {
        p.tid.to_string()
    } else {
        format!("{} ({})", p.comm, p.tid)
    };
    if let Some(call) = &p.call {
        who.push_str(&format!(" in {call}"));
    }
    who
}

/// `chosen`: which of them are in the page.
pub fn slow_calls(report: &Report, chosen: &[usize]) -> String {
    if report.slow_calls.is_empty() {
        return String::new();
    }
    let table = Table {
        id: "t-slow",
        caption: match crate::text::are_sleeps(report) {
            true => "The slowest single sleeps".into(),
            false => "The slowest single calls".into(),
        },
        columns: vec![
            head("Call", ""),
            number("Wall", "How long it took"),
            words("Longest sleep", "Its label"),
            words("Behind", "Who held the lock, or else who ended the wait"),
            words("Object", "What it worked on, as it was during the call"),
            words("Call site", ""),
            number("Started", "Since the start of the run"),
            words("Thread", ""),
            number("Result", ""),
            number("On CPU", ""),
            number("Blocked", ""),
            number("Run queue", ""),
            number("Interrupts", "That landed in the call"),
            words("Conditions", "That it met"),
        ],
        rows: chosen
            .iter()
            .map(|at| &report.slow_calls[*at])
            .enumerate()
            .map(|(i, c)| {
                let sleep = c.sleeps.iter().max_by_key(|s| s.blocked_ns);
                let label = sleep
                    .and_then(|s| report.sites.get(s.site?))
                    .map_or("", |s| s.label.as_str());
                let behind = sleep
                    .and_then(|s| s.holder.as_ref().or(s.waker.as_ref()))
                    .map_or(String::new(), party);
                let stack = c.stack.and_then(|s| report.stacks.get(s));
                let site = stack
                    .and_then(|s| s.frames.get(s.site_frame))
                    .map_or(String::new(), |frame| printable(&frame_text(frame)));
                (
                    format!(" data-slow=\"{i}\""),
                    vec![
                        Cell::text(&call_name(Some(&c.call), c.abi)),
                        Cell::Time(Some(c.wall_ns)),
                        Cell::text(label),
                        Cell::Text(behind),
                        Cell::text(c.path.as_deref().unwrap_or("")),
                        Cell::Text(site),
                        Cell::Time(Some(c.start_ns)),
                        Cell::Text(format!("{} ({})", c.comm, c.tid)),
                        match c.one_sleep {
                            true => Cell::text(""),
                            false => Cell::Value(c.retval as f64, result_text(c.retval)),
                        },
                        Cell::Time(Some(c.cpu_ns)),
                        Cell::Time(Some(c.blocked_ns)),
                        Cell::Time(Some(c.runq_ns)),
                        Cell::Time(c.irq_ns.or(Some(0))),
                        Cell::Text(c.conditions.join("; ")),
                    ],
                )
            })
            .collect(),
        page: 15,
        sorted: Some(1),
    };
    let left = report.slow_calls.len() - chosen.len();
    let mut left = if left == 0 {
        String::new()
    } else {
        format!(
            "<p class=\"soft left\">The slowest, and some of each kind. {} more that were recorded {} not in this page; debox report --json has all.</p>\n",
            count_text(left as u64),
            if left == 1 { "is" } else { "are" }
        )
    };
    if report.slow_calls_left_out > 0 {
        left += &format!(
            "<p class=\"soft left\">{}.</p>\n",
            crate::text::left_out_text(report)
        );
    }
    format!(
        "{left}<noscript><p>The timeline is drawn by JavaScript; the table below has the same calls.</p></noscript>\n<div id=\"timeline\"></div>\n{}",
        table.html()
    )
}

pub fn trends(report: &Report) -> String {
    if report.history.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    if report.trends.is_empty() {
        out.push_str("<p>No call became clearly slower or faster as the run went on.</p>\n");
    } else {
        out.push_str("<ul class=\"trend-words\">");
        for trend in &report.trends {
            out.push_str(&format!("<li>{}</li>", escape(&trend.text)));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<noscript><p>The charts are drawn by JavaScript.</p></noscript>\n<div id=\"trend-charts\"></div>\n");
    out
}

pub fn threads(report: &Report) -> String {
    if report.threads.is_empty() {
        return String::new();
    }
    Table {
        id: "t-threads",
        caption: "Threads".into(),
        columns: vec![
            head("Thread", ""),
            number("Number", ""),
            number("Process", ""),
            number("Calls", ""),
            number("Errors", ""),
            number("In calls", "Wall time"),
            number("On CPU", ""),
            number("Blocked", ""),
            number("Run queue", ""),
            number("Interrupts", "In its calls"),
            number("Between", "Interrupts between its calls"),
            number("Major faults", ""),
            number("Minor faults", ""),
            number("Began", "Since the start of the run"),
            words("Ended", ""),
        ],
        rows: report
            .threads
            .iter()
            .map(|t| {
                let name = if t.tid == 0 {
                    "(other threads)"
                } else {
                    t.comm.as_str()
                };
                let tid = if t.tid == 0 {
                    String::new()
                } else {
                    t.tid.to_string()
                };
                (
                    String::new(),
                    vec![
                        Cell::text(name),
                        Cell::Value(f64::from(t.tid), tid),
                        Cell::Value(f64::from(t.pid), t.pid.to_string()),
                        Cell::Count(Some(t.count)),
                        Cell::Count(Some(t.errors)),
                        Cell::Time(Some(t.wall_ns)),
                        Cell::Time(Some(t.cpu_ns)),
                        Cell::Time(Some(t.blocked_ns)),
                        Cell::Time(Some(t.runq_ns)),
                        Cell::Time(t.irq_ns.or(Some(0))),
                        Cell::Time(t.irq_outside_ns.or(Some(0))),
                        Cell::Count(Some(t.major_faults)),
                        Cell::Count(Some(t.minor_faults)),
                        Cell::Time(Some(t.first_ns)),
                        Cell::Text(t.ended_ns.map_or("lives".into(), time)),
                    ],
                )
            })
            .collect(),
        page: 15,
        sorted: Some(5),
    }
    .html()
}

pub fn notes(report: &Report) -> String {
    let mut out = String::new();
    if !report.notes.is_empty() {
        out.push_str("<ul>\n");
        for note in &report.notes {
            out.push_str(&format!("<li>{}</li>\n", escape(&note.text)));
        }
        out.push_str("</ul>\n");
    }
    if !report.open_calls.is_empty() {
        out.push_str("<h3>Still in a call at the end</h3>\n<ul>\n");
        for group in open_groups(&report.open_calls) {
            let c = group.first;
            let length = if c.at_least_ns > 0 {
                format!(", for at least {}", time(c.at_least_ns))
            } else {
                String::new()
            };
            let threads = match group.threads {
                1 => format!("thread {}", c.tid),
                _ => group.threads_text(),
            };
            let why = match group.why().as_str() {
                "" => String::new(),
                why => format!(": {}", escape(why)),
            };
            out.push_str(&format!(
                "<li>{} ({threads} of process {}) in {}{length}{why}</li>\n",
                escape(&c.comm),
                c.pid,
                escape(&c.call),
            ));
        }
        out.push_str("</ul>\n");
    }
    out
}
