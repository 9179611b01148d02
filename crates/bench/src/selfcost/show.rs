// SPDX-License-Identifier: MIT OR Apache-2.0
//! How are the costs of watching shown: terminal, Markdown, page?

use super::goals::two_calls;
use super::grid::{Cell, Grid, WayKind};
use super::memory::Memory;
use super::result::{Found, Goal, Reached, SelfCost, ServerRow, Unit};
use crate::model::Document;
use crate::shown::{Figures, date, paragraph};
use debox_output::chart::{self, Bar, Scale};
use debox_output::{
    Pen, Section, Style, Table, bytes_text, difference_text, digits_text, html_table, mark_text,
    measured_text, two_digits_text,
};
use std::fmt::Write;

/// Rows that stand for the others in tables of many ways.
const FEW: [&str; 4] = ["getpid", "gettimeofday", "pread-4096", "sleep"];

/// `±` what: how far the interval reaches from the value.
fn half(value: f64, low: f64, high: f64) -> Option<f64> {
    let far = (high - value).max(value - low);
    far.is_finite().then_some(far)
}

/// In place of a number that its own interval hides, and of a difference that
/// two bare runs have as well.
const NOISE: &str = "noise";

fn hidden(value: f64, low: f64, high: f64) -> bool {
    half(value, low, high).is_some_and(|far| far >= value.abs())
}

/// `+354 ±12 ns`, in the value's unit.
fn plus(value: f64, low: f64, high: f64) -> String {
    if hidden(value, low, high) {
        return NOISE.into();
    }
    difference_text(value, half(value, low, high).unwrap_or(f64::NAN))
}

fn added(cell: &Cell) -> String {
    match cell.distinguishable {
        Some(false) => NOISE.into(),
        _ => plus(cell.added, cell.added_low, cell.added_high),
    }
}

fn factor(cell: &Cell) -> String {
    let number = match cell.ratio {
        r if r >= 10.0 => digits_text(r),
        r => format!("{r:.2}"),
    };
    match (
        cell.distinguishable,
        half(cell.ratio, cell.ratio_low, cell.ratio_high),
    ) {
        (Some(false), _) => NOISE.into(),
        _ if hidden(cell.ratio, cell.ratio_low, cell.ratio_high) => NOISE.into(),
        (_, Some(far)) => format!("{number} ±{}×", two_digits_text(far)),
        (_, None) => format!("{number}×"),
    }
}

fn percent(cell: &Cell) -> String {
    let number = (cell.ratio - 1.0) * 100.0;
    match (
        cell.distinguishable,
        half(cell.ratio, cell.ratio_low, cell.ratio_high),
    ) {
        (Some(false), _) => NOISE.into(),
        _ if cell.ratio >= 2.0 => factor(cell),
        (_, Some(far)) if far * 100.0 >= number.abs() => NOISE.into(),
        (_, Some(far)) => format!("{number:+.1} ±{} %", two_digits_text(far * 100.0)),
        (_, None) => format!("{number:+.1} %"),
    }
}

/// How far two bare runs are apart: nothing smaller can be told.
fn null_time(cell: Option<&Cell>) -> String {
    cell.map_or_else(
        || "-".into(),
        |c| {
            let far = c.added_low.abs().max(c.added_high.abs());
            format!("±{}", measured_text(far))
        },
    )
}

fn null_percent(cell: &Cell) -> String {
    let far = (cell.ratio_low - 1.0)
        .abs()
        .max((cell.ratio_high - 1.0).abs());
    if far.is_finite() {
        format!("±{} %", two_digits_text(far * 100.0))
    } else {
        "?".into()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Goals,
    Wrap,
    Floor,
    Memory,
    Nginx,
    Server,
    Calls,
    Programs,
}

/// head and rows of a table, for any medium.
struct Sheet {
    of: Of,
    caption: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    note: String,
    /// For those who want to know exactly: not in the README.
    detail: bool,
}

/// `+5.3 ±2.1 %`, or what a value is that its interval hides.
fn goal_text(unit: Unit, found: &Found) -> String {
    let nothing = if unit == Unit::Times { 1.0 } else { 0.0 };
    let far = half(found.value, found.low, found.high).unwrap_or(0.0);
    if unit != Unit::Bytes
        && hidden(
            found.value - nothing,
            found.low - nothing,
            found.high - nothing,
        )
    {
        return format!("{NOISE}, ±{}", unit_text(unit, far, false));
    }
    match unit {
        Unit::Times => format!("{:.3} ±{far:.3}×", found.value),
        Unit::Percent => format!("{:+.1} ±{} %", found.value, two_digits_text(far)),
        Unit::Ns => plus(found.value, found.low, found.high),
        Unit::Bytes => bytes_text(found.value as u64),
    }
}

fn unit_text(unit: Unit, value: f64, signed: bool) -> String {
    let sign = if signed && value >= 0.0 { "+" } else { "" };
    match unit {
        Unit::Times => format!("{value:.3}×"),
        Unit::Percent => format!("{sign}{value:.1} %"),
        Unit::Ns => format!("{sign}{}", measured_text(value)),
        Unit::Bytes => bytes_text(value as u64),
    }
}

/// What it may cost, and costs.
fn by_goal(goals: &[Goal]) -> Sheet {
    let rows = goals.iter().map(|g| {
        let mut cells = vec![g.title.clone(), unit_text(g.unit, g.most, true)];
        match &g.found {
            None => cells.extend(["-", "-", "-", "-", "not measured"].map(String::from)),
            Some(f) => cells.extend([
                goal_text(g.unit, f),
                unit_text(g.unit, f.of_minima, true),
                unit_text(g.unit, f.of_medians, true),
                match g.unit {
                    Unit::Bytes => "-".into(),
                    unit => format!("±{}", unit_text(unit, f.null, false)),
                },
                match f.reached {
                    Reached::Yes => "yes".into(),
                    Reached::No => "no".into(),
                    Reached::Untold => "hidden by noise".to_owned(),
                },
            ]),
        }
        cells
    });
    Sheet {
        of: Of::Goals,
        caption: "What DeBox may cost, and costs here".into(),
        head: ["what", "at most", "measured", "of minima", "of medians", "null run", "reached"]
            .map(String::from)
            .into(),
        rows: rows.collect(),
        note: "Measured: the median over the rounds of the difference (or ratio) within a round, and how far its \
               interval reaches (95 %); a round's value is the shortest of many. Of minima, of medians: the same of \
               all rounds' least values, and of their medians. Null run: as far from nothing two runs of the same \
               came. noise: the interval is wider than the value. hidden by noise: the goal lies within the interval \
               and the null run's. The floor is what the kernel charges for programs that do nothing."
            .into(),
        detail: false,
    }
}

/// A row a call, a column a way; `ways` of these that are shown.
fn by_call(g: &Grid, of: Of, caption: &str, note: &str, ways: impl Fn(WayKind) -> bool) -> Sheet {
    let ways: Vec<usize> = (2..g.ways.len())
        .filter(|w| ways(g.ways[*w].kind) && g.ways[*w].missing.is_none())
        .collect();
    let mut head = vec!["call".to_owned(), "base".into(), "null run".into()];
    head.extend(ways.iter().map(|w| g.ways[*w].title.clone()));
    let rows = (0..g.rows.len())
        .filter_map(|r| {
            let base = g.cell(r, 0)?;
            let mut cells = vec![
                g.rows[r].title.clone(),
                measured_text(base.median),
                null_time(g.cell(r, 1)),
            ];
            cells.extend(
                ways.iter()
                    .map(|w| g.cell(r, *w).map_or_else(|| "-".into(), added)),
            );
            Some(cells)
        })
        .collect();
    Sheet {
        of,
        caption: caption.into(),
        head,
        rows,
        note: format!(
            "{} rounds. Median of the differences to the base within rounds, and how far its interval reaches \
             (95 %, from 6 rounds on free of any distribution). noise: no more than what two bare runs differ by \
             (null run), or than its own interval. {note}",
            g.rounds()
        ),
        detail: false,
    }
}

/// What is in memory.
fn by_size(m: &Memory) -> Sheet {
    let row = |what: String, bytes: f64| vec![what, bytes_text(bytes as u64)];
    Sheet {
        of: Of::Memory,
        caption: format!("Memory of DeBox, with a client of {} threads", m.threads),
        head: ["what", "size"].map(String::from).into(),
        rows: vec![
            vec!["threads that are watched".into(), m.watched.to_string()],
            row("a slot, for one thread".into(), m.slot()),
            row(format!("all slots, in {} segments", m.segments()), m.slots),
            row("table of sites, one for all clients".into(), m.sites),
            row("broker, resident, before".into(), m.broker_before),
            row(format!("broker, resident, {} threads", m.threads), m.broker),
        ]
        .into_iter()
        .chain(m.spliced.map(|bytes| {
            row(
                "private memory of a program, when it is spliced".into(),
                bytes,
            )
        }))
        .collect(),
        note: String::new(),
        detail: false,
    }
}

/// Of what boundary capture adds to a round trip, which part is whose.
fn shares(own: &SelfCost, g: &Grid) -> Option<String> {
    let least = |way: &str| Some(g.cell(0, g.way(way)?)?.min);
    let (bare, others) = (least("bare")?, least("other-boundary")?);
    let (watched, calls) = (least("watched-boundary")?, two_calls(own)?);
    Some(format!(
        "Boundary capture charges the round trip's four calls, too: of what it adds, {} are the hooks' for unwatched \
         threads, {} those of the watched thread's two calls, and {} the sleep's own (minima).",
        measured_text(others - bare),
        measured_text(calls),
        measured_text(watched - others - calls)
    ))
}

/// A row a way, a column a call or program: how many times as long.
fn by_way(g: &Grid, of: Of, columns: &[usize], caption: &str, note: String) -> Sheet {
    let mut head = vec!["way".to_owned()];
    head.extend(columns.iter().map(|r| g.rows[*r].title.clone()));
    let rows = (0..g.ways.len())
        .filter(|w| {
            g.ways[*w].missing.is_none() && columns.iter().any(|r| g.cell(*r, *w).is_some())
        })
        .map(|w| {
            let cells = columns.iter().map(|r| match (w, g.cell(*r, w)) {
                (_, None) => "-".into(),
                (0, Some(c)) => measured_text(c.median),
                (1, Some(c)) => null_percent(c),
                (_, Some(c)) if of != Of::Calls => percent(c),
                (_, Some(c)) => factor(c),
            });
            std::iter::once(g.ways[w].title.clone())
                .chain(cells)
                .collect()
        })
        .collect();
    Sheet {
        of,
        caption: caption.into(),
        head,
        rows,
        note,
        detail: false,
    }
}

/// What lies behind one column of these: the spread of each way.
fn spread(g: &Grid, of: Of, row: usize) -> Sheet {
    let title = &g.rows[row].title;
    let rows = (0..g.ways.len())
        .filter_map(|w| {
            let c = g.cell(row, w)?;
            let interval = if c.added_low.is_finite() && c.added_high.is_finite() {
                format!(
                    "{} to {}",
                    measured_text(c.added_low),
                    measured_text(c.added_high)
                )
            } else {
                "?".into()
            };
            let (added, interval) = match w {
                0 => ("-".into(), "-".into()),
                _ => (measured_text(c.added), interval),
            };
            Some(vec![
                g.ways[w].title.clone(),
                measured_text(c.min),
                measured_text(c.median),
                format!("{} to {}", measured_text(c.low), measured_text(c.high)),
                added,
                interval,
                match c.distinguishable {
                    None => "-".into(),
                    Some(true) => "yes".into(),
                    Some(false) => NOISE.into(),
                },
            ])
        })
        .collect();
    Sheet {
        of,
        caption: match of {
            Of::Calls | Of::Programs => format!("{title}, way by way"),
            _ => format!("{}: {title}, way by way", g.title),
        },
        head: ["way", "min", "median", "quartiles", "added", "95 %", "told"]
            .map(String::from)
            .into(),
        rows,
        note: String::new(),
        detail: true,
    }
}

/// The paper's Table 1.
fn by_stamps(rows: &[ServerRow]) -> Sheet {
    Sheet {
        of: Of::Server,
        note: "What preempts the program beside the call is in its own stamps and not in DeBox's record.".into(),
        detail: false,
        caption: "Calls of a server on a busy CPU: what the program measures itself, and DeBox"
            .into(),
        head: [
            "call",
            "measured by",
            "min",
            "median",
            "mean",
            "p99",
            "max",
            "calls",
        ]
        .map(String::from)
        .into(),
        rows: rows
            .iter()
            .map(|r| {
                vec![
                    r.call.clone(),
                    r.by.clone(),
                    measured_text(r.min),
                    measured_text(r.median),
                    measured_text(r.mean),
                    measured_text(r.p99),
                    measured_text(r.max),
                    r.count.to_string(),
                ]
            })
            .collect(),
    }
}

/// Whether any way of DeBox's was measured: without, there is nothing to tell.
fn told(g: &Option<Grid>) -> Option<&Grid> {
    let g = g.as_ref()?;
    let debox = |c: &Cell| g.ways[c.way].kind == WayKind::Debox;
    g.cells.iter().any(debox).then_some(g)
}

fn sheets(own: &SelfCost) -> Vec<Sheet> {
    let mut found = Vec::new();
    if !own.goals.is_empty() {
        found.push(by_goal(&own.goals));
    }
    if let Some(g) = told(&own.wrap) {
        found.push(by_call(
            g,
            Of::Wrap,
            "What wrap capture adds to one call, and what it consists of",
            "All variants of a row take turns in one process into which the interposer was preloaded, with everything \
             on and nothing happening inside the calls. counted: under debox run --capture=wrap --call-site.",
            |_| true,
        ));
        let few = ["getpid", "pread-4096", "counted-getpid"];
        let rows = few.iter().filter_map(|id| g.row(id));
        found.extend(rows.map(|r| spread(g, Of::Wrap, r)));
    }
    for (grid, note) in [
        (
            &own.boundary,
            "One process makes calls all the time, while what hangs on the kernel changes.",
        ),
        (
            &own.sleeps,
            "Two processes, two pipes, one CPU: four system calls, two switches, two sleeps, two wake-ups a round \
             trip. Only one of the two is watched, so a round trip has one watched sleep (and one watched switch back).",
        ),
        (
            &own.switches,
            "Two SCHED_FIFO processes that yield to each other.",
        ),
        (
            &own.interrupts,
            "A datagram over 127.0.0.1: the soft interrupt that receives it runs in the call.",
        ),
    ] {
        if let Some(g) = told(grid) {
            let shares = (g.id == "sleeps").then(|| shares(own, g)).flatten();
            found.push(Sheet {
                note: [Some(format!("{} rounds. {note}", g.rounds())), shares]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" "),
                detail: false,
                ..spread(g, Of::Floor, 0)
            });
        }
    }
    found.extend(own.memory.as_ref().map(by_size));
    if let Some(g) = &own.nginx {
        found.push(by_way(
            g,
            Of::Nginx,
            &[0, 1],
            "nginx: one request for 1 KiB",
            format!(
                "{} rounds (of other tools 4 at most). One worker, a fresh server each time; wrk with 64 connections on \
                 another CPU. The worker's CPU time in the calmest of six tenths of a second, by its own count of \
                 requests; the time for one request by wrk's.",
                g.rounds()
            ),
        ));
        found.push(spread(g, Of::Nginx, 0));
    }
    if !own.server.is_empty() {
        found.push(by_stamps(&own.server));
    }
    if let Some(g) = &own.calls {
        let of_debox = by_call(
            g,
            Of::Calls,
            "What DeBox adds to one call",
            "The round trip makes two calls and sleeps once; its partner is watched as well where a tool follows \
             children.",
            |kind| kind == WayKind::Debox,
        );
        if of_debox.head.len() > 3 {
            found.push(of_debox);
        }
        let few: Vec<usize> = FEW
            .iter()
            .filter_map(|id| g.row(id))
            .filter(|r| g.cell(*r, 0).is_some())
            .collect();
        let mut note = "The first line is the time itself, the second what two bare runs differ by. Tool and \
             program share one CPU; every way gets a fresh process in each round, and the order rotates."
            .to_owned();
        // Its row looks like a mistake otherwise.
        if let (Some(w), Some(r)) = (g.way("perf-stat"), g.row("sleep"))
            && g.cell(r, w)
                .is_some_and(|c| c.distinguishable == Some(true) && c.ratio > 3.0)
        {
            note += " perf stat costs nothing until the program sleeps: at every switch the kernel takes the \
                     counters off the processor and puts them back, which is dear where a hypervisor emulates \
                     them.";
        }
        found.push(by_way(
            g,
            Of::Calls,
            &few,
            "The same calls by other tools: times as long as nothing",
            note,
        ));
        found.extend(few.iter().map(|r| spread(g, Of::Calls, *r)));
    }
    if let Some(g) = &own.loads {
        let all: Vec<usize> = (0..g.rows.len())
            .filter(|r| g.cell(*r, 0).is_some())
            .collect();
        found.push(by_way(
            g,
            Of::Programs,
            &all,
            "Whole programs: added to the time, or times as long",
            format!(
                "{} rounds. Time inside of the tool, without its start and its report. {}noise: no more than what two \
                 bare runs differ by, which is in the second line, or than its own interval.",
                g.rounds(),
                PROGRAMS
                    .iter()
                    .filter(|(id, _)| g.row(id).is_some_and(|r| all.contains(&r)))
                    .map(|(_, what)| format!("{what}. "))
                    .collect::<String>()
            ),
        ));
        found.extend(all.iter().map(|r| spread(g, Of::Programs, *r)));
    }
    found
}

/// What the short names of programs stand for.
const PROGRAMS: [(&str, &str); 6] = [
    ("tar-1", "tar-gz: tar with gzip -1"),
    (
        "build",
        "build: the C sources of libdebox, compiled by cc -O0",
    ),
    ("storm", "fork+exec: one process, /bin/true"),
    (
        "start",
        "start: /bin/true, with the tool's own start and end",
    ),
    ("redis", "redis: one GET by redis-benchmark, 16 connections"),
    (
        "fio",
        "fio: 1,500 random reads of 4 KiB, page cache dropped before",
    ),
];

/// What was not measured, and why; many things with one reason are one line.
fn missing(own: &SelfCost) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut add = |title: String, why: &str| match found.iter_mut().find(|(_, y)| y == why) {
        Some((titles, _)) if titles.split("; ").any(|t| t == title) => {}
        Some((titles, _)) => *titles = format!("{titles}; {title}"),
        None => found.push((title, why.to_owned())),
    };
    for (title, why) in &own.left_out {
        add(title.clone(), why);
    }
    for g in own.grids() {
        for w in &g.ways {
            if let Some(why) = &w.missing {
                add(w.title.clone(), why);
            }
        }
        for r in &g.rows {
            if let Some(why) = &r.missing {
                add(r.title.clone(), why);
            }
        }
        let mut lines: Vec<(usize, &str, Vec<&str>)> = Vec::new();
        for a in &g.absent {
            let row = g.rows[a.row].title.as_str();
            match lines.iter_mut().find(|l| (l.0, l.1) == (a.way, &a.why)) {
                Some(line) => line.2.push(row),
                None => lines.push((a.way, &a.why, vec![row])),
            }
        }
        for (way, why, rows) in lines {
            add(
                format!("{} with {}", rows.join(", "), g.ways[way].title),
                why,
            );
        }
    }
    for g in &own.goals {
        // Every other reason stands with its row or way.
        if let Some(why) = g.missing.as_ref().filter(|why| why.contains("--only")) {
            add(g.title.clone(), why);
        }
    }
    found
}

fn versions_text(own: &SelfCost) -> String {
    let all: Vec<String> = own
        .versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    all.join(", ")
}

fn rounds_text(own: &SelfCost) -> String {
    let mut parts = Vec::new();
    if let Some(g) = &own.calls {
        parts.push(format!("{} rounds of calls", g.rounds()));
    }
    if let Some(g) = &own.loads {
        parts.push(format!("{} rounds of programs", g.rounds()));
    }
    parts.join(", ")
}

/// For a terminal.
pub fn text(own: &SelfCost, pen: &Pen) -> String {
    let bold = |text: &str| pen.paint(Style::Bold, text);
    let mut out = String::new();
    for sheet in sheets(own) {
        let _ = write!(out, "\n{}\n\n", bold(&sheet.caption));
        // Many columns with long names: a legend of numbers instead.
        let long = sheet.head.len() > 6
            && sheet.head.iter().map(|h| h.chars().count()).sum::<usize>() > 90;
        let mut legend = String::new();
        let head: Vec<String> = sheet
            .head
            .iter()
            .enumerate()
            .map(|(i, h)| {
                if long && i >= 3 {
                    let _ = write!(legend, "{}[{}] {h}", if i > 3 { ", " } else { "" }, i - 2);
                    format!("[{}]", i - 2)
                } else {
                    h.to_uppercase()
                }
            })
            .collect();
        let refs: Vec<&str> = head.iter().map(String::as_str).collect();
        let mut table = Table::new(&refs);
        if sheet.head.get(1).is_some_and(|h| h == "measured by") {
            table = table.left(1);
        }
        for row in sheet.rows {
            table.row(row);
        }
        out += &table.text(pen, None);
        if !legend.is_empty() {
            out += &paragraph(&legend);
        }
        if !sheet.note.is_empty() {
            out += &paragraph(&sheet.note);
        }
    }
    let missing = missing(own);
    if !missing.is_empty() {
        let _ = write!(out, "\n{}\n\n", bold("Not measured"));
        for (title, why) in missing {
            out += &paragraph(&format!("{title}: {why}."));
        }
    }
    if !own.versions.is_empty() {
        out += "\n";
        out += &paragraph(&format!("Versions: {}.", versions_text(own)));
    }
    out
}

fn markdown_table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|t| t.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut out = line(head);
    out += &format!("|---|{}\n", "---:|".repeat(head.len() - 1));
    rows.iter().for_each(|row| out += &line(row));
    out
}

/// What a reader of the README compares: the ways, by id, and the calls.
const SHORT_WAYS: [&str; 5] = ["bracket", "run-splice", "run", "strace-c", "perf-trace"];
const SHORT_CALLS: [&str; 3] = ["getpid", "pread-4096", "sleep"];

/// For the README: five ways to learn about three calls.
pub fn markdown(d: &Document, own: &SelfCost) -> String {
    let mut out = String::new();
    if let Some(g) = &own.calls {
        let calls: Vec<usize> = SHORT_CALLS.iter().filter_map(|id| g.row(id)).collect();
        let mut head = vec!["time of one call".to_owned()];
        head.extend(calls.iter().map(|r| {
            let bare = g.cell(*r, 0).map(|c| measured_text(c.median));
            format!("{}, {}", g.rows[*r].title, bare.unwrap_or_default())
        }));
        let rows = SHORT_WAYS.iter().filter_map(|id| {
            let w = g.way(id)?;
            let cells = calls.iter().map(|r| match g.cell(*r, w) {
                None => "not measured".into(),
                Some(c) if c.distinguishable == Some(false) => "as without".into(),
                Some(c) if hidden(c.ratio, c.ratio_low, c.ratio_high) => "not clear".into(),
                Some(c) if c.ratio >= 10.0 => format!("{:.0}×", c.ratio),
                Some(c) => format!("{:.1}×", c.ratio),
            });
            Some(
                std::iter::once(g.ways[w].title.clone())
                    .chain(cells)
                    .collect(),
            )
        });
        out += &markdown_table(&head, &rows.collect::<Vec<_>>());
    }
    let _ = write!(
        out,
        "\nMeasured on {} by `debox bench self` ({}) on: {}.{} All of it, with intervals and other tools, \
         stands in [docs/PERFORMANCE.md](docs/PERFORMANCE.md); `sudo debox bench self` measures yours.\n",
        date(d.started).split(' ').next().unwrap_or_default(),
        rounds_text(own),
        d.machine.line(),
        if d.noise.quiet() {
            ""
        } else {
            " A noisy machine."
        },
    );
    out
}

/// For the page.
pub fn sections(own: &SelfCost, figures: &mut Figures) -> Vec<Section> {
    let mut calls = String::new();
    if let Some(g) = &own.calls {
        calls += "<div class=\"figures\">";
        for id in FEW {
            let Some(r) = g.row(id) else { continue };
            let bars: Vec<Bar> = (0..g.ways.len())
                .filter_map(|w| {
                    let c = g.cell(r, w)?;
                    let colour = match g.ways[w].kind {
                        WayKind::Nothing => 2,
                        WayKind::Debox => 0,
                        WayKind::Other => 1,
                    };
                    // One part of the right colour; the others are empty.
                    Some(Bar {
                        name: g.ways[w].title.clone(),
                        parts: vec![(c.median, colour)],
                        interval: Some((c.low, c.high)),
                        text: measured_text(c.median),
                    })
                })
                .collect();
            calls += &figures.drawn(chart::bars(
                &format!("One {}", g.rows[r].title),
                &bars,
                Scale::Log,
                &["DeBox", "others", "nothing"],
                &mark_text,
            ));
        }
        calls += "</div>";
    }
    let html = |of: Of| -> String {
        let sheets = sheets(own).into_iter().filter(|s| s.of == of);
        sheets
            .map(|sheet| {
                let head: Vec<&str> = sheet.head.iter().map(String::as_str).collect();
                let words: &[usize] = if of == Of::Server { &[0, 1] } else { &[0] };
                let table = html_table(&head, &sheet.rows, words);
                let caption = debox_output::escape(&sheet.caption);
                if sheet.detail {
                    format!("<details><summary>{caption}</summary>{table}</details>")
                } else {
                    let note = debox_output::escape(&sheet.note);
                    format!("<h3>{caption}</h3>{table}<p class=\"soft\">{note}</p>")
                }
            })
            .collect()
    };
    let left_out: String = missing(own)
        .iter()
        .map(|(t, why)| {
            format!(
                "<li>{}: {}</li>",
                debox_output::escape(t),
                debox_output::escape(why)
            )
        })
        .collect();
    let left_out = if left_out.is_empty() {
        left_out
    } else {
        format!("<ul>{left_out}</ul>")
    };
    let section = |(id, title, body)| Section { id, title, body };
    [
        ("goals", "Goals", html(Of::Goals)),
        ("wrap", "Wrap capture", html(Of::Wrap)),
        ("floor", "Above the kernel's floor", html(Of::Floor)),
        ("memory", "Memory", html(Of::Memory)),
        ("nginx", "nginx", html(Of::Nginx)),
        ("calls", "Single calls", calls + &html(Of::Calls)),
        ("programs", "Whole programs", html(Of::Programs)),
        ("server", "A busy server", html(Of::Server)),
        ("missing", "Not measured", left_out),
    ]
    .map(section)
    .into()
}

#[cfg(test)]
mod tests {
    use super::super::{RowHead, WayHead};
    use super::*;

    fn own() -> SelfCost {
        let way = |id: &str, kind| WayHead {
            id: id.into(),
            title: id.into(),
            kind,
            missing: None,
        };
        let rows = ["tar", "redis", "lost"].map(|id| RowHead {
            id: id.into(),
            title: id.into(),
            missing: None,
        });
        let ways = [
            way("bare", WayKind::Nothing),
            way("again", WayKind::Nothing),
            way("run", WayKind::Debox),
            way("strace", WayKind::Other),
            way("perf", WayKind::Other),
        ];
        let mut g = Grid::new("programs", "Whole programs", rows.into(), ways);
        for k in 0..6 {
            let noise = f64::from(k % 3) * 1e3;
            for (w, factor) in [1.0, 1.0, 1.5, 20.0].iter().enumerate() {
                let ns = 1e6 * factor + if w < 2 { noise } else { -noise };
                let both = [("tar".to_owned(), ns), ("redis".to_owned(), ns)];
                g.add(w, &both[..if w == 3 { 1 } else { 2 }]);
            }
        }
        g.drop_cell(1, 3, "crashed".into());
        g.drop_cell(2, 0, "no such file".into());
        g.drop_way(4, "refused".into());
        g.judge();
        SelfCost {
            loads: Some(g),
            versions: vec![("strace".into(), "6.1".into())],
            ..SelfCost::default()
        }
    }

    #[test]
    fn a_number_that_its_interval_hides_is_noise() {
        assert_eq!(plus(354.0, 340.0, 366.2), "+354 ±14 ns");
        assert_eq!(plus(354.0, f64::NAN, f64::NAN), "+354 ns");
        assert_eq!(plus(354.0, 20.0, 720.0), "noise");
    }

    #[test]
    fn a_missing_cell_costs_neither_its_row_nor_its_way_and_is_told() {
        let text = text(&own(), &Pen::default());
        let line = |name: &str| -> Vec<String> {
            let line = text.lines().find(|l| l.trim_start().starts_with(name));
            line.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
                .split("  ")
                .map(|w| w.trim().to_owned())
                .filter(|w| !w.is_empty())
                .collect()
        };
        assert_eq!(line("bare")[1..], ["1.00 ms", "1.00 ms"]);
        assert!(line("run")[1].starts_with("+49."), "{text}");
        assert!(line("strace")[1].starts_with("20.0 ±"), "{text}");
        assert_eq!(line("strace")[2], "-");
        for told in [
            "redis with strace: crashed.",
            "lost: no such file.",
            "perf: refused.",
            "Versions: strace 6.1.",
            "6 rounds.",
        ] {
            assert!(text.contains(told), "{told} is not in:\n{text}");
        }
    }

    #[test]
    fn every_swatch_of_a_legend_has_a_name() {
        let mut own = own();
        own.calls = own.loads.clone().map(|mut g| {
            g.rows[0].id = "getpid".into();
            g
        });
        let sections = sections(&own, &mut Figures::default());
        let page: String = sections.into_iter().map(|s| s.body).collect();
        assert!(page.contains("</i>nothing</li>"), "{page}");
        assert!(!page.contains("</i></li>"), "{page}");
    }
}
