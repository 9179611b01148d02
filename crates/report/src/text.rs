// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a report look on a terminal or in a file?
//!
//! A headline, the call table, where it blocked, what to know about it. A
//! column that would not fit is left out, least important first, rather than
//! wrapped; a column without a single value is left out as well.

use crate::chains::{self, Root, TreeLine};
use crate::idle::{RowSplit, Split, Splits};
use crate::lives::{self, LifeGroup};
use crate::model::*;
use crate::on_cpu::{OnCpuTop, SAMPLES_FEW};
use crate::open::{OpenGroup, open_groups};
use crate::options::TextOptions;
use debox_output::{
    Column, Pen, Style, Table, count_cell, count_cell_opt, count_text, printable, result_text,
    share_text, shell_word, wrapped,
};

/// A program has hundreds of places that make calls; without --top, these are
/// enough to see where the time goes.
const CALL_SITES_SHOWN: usize = 30;
/// The same of threads in a call.
const OPEN_SHOWN: usize = 20;

/// The command as a shell takes it.
fn command_text(command: &[String]) -> String {
    let words: Vec<String> = command.iter().map(|w| shell_word(w.as_bytes())).collect();
    printable(&words.join(" "))
}

fn subject(run: &Run) -> String {
    if run.kind == RunKind::Run {
        return command_text(&run.command);
    }
    if run.pids.is_empty() {
        return format!("processes: {}", command_text(&run.command));
    }
    let pids: Vec<String> = run.pids.iter().map(u32::to_string).collect();
    let what = if pids.len() == 1 {
        "process"
    } else {
        "processes"
    };
    let mut text = format!("{what} {}", pids.join(", "));
    if !run.command.is_empty() {
        text.push_str(&format!(" ({})", command_text(&run.command)));
    }
    text
}

fn headline(out: &mut String, report: &Report, pen: &Pen, width: Option<usize>) {
    let totals = &report.totals;
    let mut facts = format!("{}; ", pen.time(report.run.wall_ns));
    let calls = format!(
        "{} {}",
        count_text(totals.calls),
        if totals.calls == 1 { "call" } else { "calls" }
    );
    if !report.measured.calls {
        facts.push_str("calls not counted");
    } else if totals.calls == 0 {
        facts.push_str("no calls returned");
    } else {
        let estimate = report
            .calls
            .iter()
            .map(CallRow::mark)
            .find(|mark| !mark.is_empty());
        facts.push_str(&format!(
            "{calls} took {}{}",
            estimate.unwrap_or_default(),
            pen.time(totals.wall_ns)
        ));
    }
    let parts: Vec<String> = [
        ("on CPU", totals.cpu_ns),
        ("blocked", totals.blocked_ns),
        ("run queue", totals.runq_ns),
        ("interrupts", totals.irq_ns),
    ]
    .iter()
    .filter_map(|(name, ns)| ns.map(|ns| format!("{name} {}", pen.time(ns))))
    .collect();
    if !parts.is_empty() && totals.calls > 0 {
        facts.push_str(&format!(": {}", parts.join(", ")));
    }
    let mut head = format!("{}: {facts}", subject(&report.run));
    let room = width.unwrap_or(200);
    if head.chars().count() > room {
        // Two lines, and the command is cut to the first one.
        let wall = format!(": {};", pen.time(report.run.wall_ns));
        let name_room = room.saturating_sub(wall.chars().count()).max(8);
        let rest = facts.split_once("; ").map_or("", |(_, rest)| rest);
        head = format!(
            "{}{wall}\n  {rest}",
            pen.cut(&subject(&report.run), name_room)
        );
    }
    let (first, second) = head.split_once('\n').unwrap_or((&head, ""));
    out.push_str(&pen.paint(Style::Bold, first));
    out.push('\n');
    if !second.is_empty() {
        out.push_str(&pen.paint(Style::Bold, second));
        out.push('\n');
    }
    match &report.run.exit {
        Some(Exit::Signal { number, name }) => {
            let text = format!("ended by signal {number} ({})", printable(name));
            out.push_str(&format!("  {}\n", pen.paint(Style::Bad, &text)));
        }
        Some(Exit::Code(code)) if *code != 0 => {
            let text = format!("exit status {code}");
            out.push_str(&format!("  {}\n", pen.paint(Style::Bad, &text)));
        }
        _ => {}
    }
    if let Some(recording) = report.recording.as_ref().filter(|r| !r.complete) {
        let text = format!(
            "the recording is not complete ({}): this is the run up to {}",
            printable(recording.why.as_deref().unwrap_or("no reason is known")),
            pen.time(recording.until_ns)
        );
        let text = wrapped(&text, line_width(width), "  ", "  ");
        out.push_str(&pen.paint(Style::Bad, &text));
        out.push('\n');
    }
}

/// Why it took so long.
fn verdict_lines(out: &mut String, report: &Report, pen: &Pen, width: Option<usize>) {
    for sentence in &report.verdict {
        let text = wrapped(sentence, line_width(width), "  ", "  ");
        out.push_str(&pen.plain(&text));
        out.push('\n');
    }
}

fn call_name(name: &str, abi: u32) -> String {
    let name = printable(name);
    if abi == 32 {
        format!("{name} (32-bit)")
    } else {
        name
    }
}

fn marked(mark: &str, time: String) -> String {
    format!("{mark}{time}")
}

fn call_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    if report.calls.is_empty() {
        return;
    }
    let shown = options.top.unwrap_or(usize::MAX).min(report.calls.len());
    let (rows, others) = report.calls.split_at(shown);
    let all_ns = report.totals.wall_ns;
    let column = |f: &dyn Fn(&CallRow) -> String, other: &dyn Fn(&[CallRow]) -> String| {
        let mut cells: Vec<String> = rows.iter().map(f).collect();
        if !others.is_empty() {
            cells.push(other(others));
        }
        cells
    };
    let sum = |rows: &[CallRow], f: &dyn Fn(&CallRow) -> u64| {
        rows.iter()
            .fold(0u64, |all, row| all.saturating_add(f(row)))
    };
    let sum_opt = |rows: &[CallRow], f: &dyn Fn(&CallRow) -> Option<u64>| {
        rows.iter().filter_map(f).fold(None, |all: Option<u64>, n| {
            Some(all.unwrap_or(0).saturating_add(n))
        })
    };
    // Percentiles of several calls together have no meaning worth a column.
    let none = |_: &[CallRow]| String::new();
    let counted = |f: &'static dyn Fn(&CallRow) -> u64| {
        column(&|r| count_cell(f(r)), &|o| count_cell(sum(o, f)))
    };
    let counted_opt = |f: &'static dyn Fn(&CallRow) -> Option<u64>| {
        column(&|r| count_cell_opt(f(r)), &|o| {
            count_cell_opt(sum_opt(o, f))
        })
    };
    let timed_opt = |f: &'static dyn Fn(&CallRow) -> Option<u64>| {
        column(&|r| pen.cell_opt(f(r)), &|o| pen.cell_opt(sum_opt(o, f)))
    };
    let share = |ns: Option<u64>| ns.map_or_else(|| "?".into(), |ns| share_text(ns, all_ns));
    let measured = |value: bool, column: Column| if value { Some(column) } else { None };
    let m = &report.measured;
    let columns: Vec<Column> = [
        Some(
            Column::new(
                "CALL",
                0,
                column(&|r| call_name(&r.name, r.abi), &|o| {
                    format!(
                        "({} {})",
                        o.len(),
                        if o.len() == 1 { "other" } else { "others" }
                    )
                }),
            )
            .left()
            .style(Style::Label),
        ),
        Some(Column::new("COUNT", 0, counted(&|r| r.count))),
        Some(Column::new("ERRORS", 4, counted(&|r| r.errors)).optional()),
        Some(Column::new("RESTART", 8, counted(&|r| r.restarted)).optional()),
        Some(Column::new("UNFIN", 3, counted(&|r| r.unfinished)).optional()),
        Some(Column::new(
            "TOTAL",
            0,
            column(&|r| marked(r.mark(), pen.cell_opt(r.wall_ns)), &|o| {
                let mark = o.iter().map(CallRow::mark).max().unwrap_or_default();
                marked(mark, pen.cell_opt(sum_opt(o, &|r| r.wall_ns)))
            }),
        )),
        Some(Column::new(
            "%",
            9,
            column(&|r| share(r.wall_ns), &|o| {
                share(sum_opt(o, &|r| r.wall_ns))
            }),
        )),
        Some(Column::new(
            "MEAN",
            6,
            column(&|r| pen.cell_opt(r.mean_ns), &none),
        )),
        Some(Column::new(
            "P50",
            5,
            column(&|r| pen.cell_opt(r.p50_ns), &none),
        )),
        Some(Column::new(
            "P99",
            2,
            column(&|r| pen.cell_opt(r.p99_ns), &none),
        )),
        Some(Column::new(
            "MAX",
            1,
            column(&|r| pen.cell_opt(r.max_ns), &|o| {
                pen.cell_opt(o.iter().filter_map(|r| r.max_ns).max())
            }),
        )),
        measured(
            m.blocked && m.runq,
            Column::new("ON-CPU", 1, timed_opt(&|r| r.cpu_ns)),
        ),
        measured(
            m.blocked,
            Column::new("BLOCKED", 0, timed_opt(&|r| r.blocked_ns)),
        ),
        measured(m.runq, Column::new("RUNQ", 1, timed_opt(&|r| r.runq_ns))),
        measured(m.irq, Column::new("IRQ", 1, timed_opt(&|r| r.irq_ns))),
        measured(
            m.minor_faults,
            Column::new("MINFLT", 11, counted_opt(&|r| r.minor_faults)).optional(),
        ),
        measured(
            m.major_faults,
            Column::new("MAJFLT", 7, counted_opt(&|r| r.major_faults)).optional(),
        ),
        measured(
            m.switches,
            Column::new("VCSW", 12, counted_opt(&|r| r.nvcsw)).optional(),
        ),
        measured(
            m.switches,
            Column::new("ICSW", 13, counted_opt(&|r| r.nivcsw)).optional(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    out.push('\n');
    *out += &Table::from(columns).text(pen, options.width);
}

/// What a line of the blocking table is of.
#[derive(Clone, Copy, PartialEq)]
enum LineOf {
    /// Several places.
    Label,
    Place,
    /// Those of the place above it that slept under one name.
    Name,
}

struct BlockLine {
    of: LineOf,
    label: String,
    call: String,
    name: String,
    count: Option<u64>,
    total_ns: u64,
    /// None: of these names it is not known.
    split: Option<Split>,
    max_ns: Option<u64>,
    waiters: Option<f64>,
    place: String,
}

/// Where a place has several names: theirs, if it has a hundredth of all or more, or of what is a loss.
fn name_lines(row: &BlockingRow, split: &RowSplit, all: Split, all_ns: u64) -> Vec<BlockLine> {
    let is_little = row.total_ns < all_ns / 100 && split.all.lost_ns <= all.lost_ns / 100;
    if row.by_name.len() < 2 || is_little {
        return Vec::new();
    }
    let told = row.names_told().into_iter();
    told.map(|line| BlockLine {
        of: LineOf::Name,
        label: String::new(),
        call: String::new(),
        split: split.of_names(&line.of),
        name: line.text,
        count: line.count,
        total_ns: line.total_ns,
        max_ns: None,
        waiters: None,
        place: String::new(),
    })
    .collect()
}

/// A label with its rows.
#[derive(Default)]
struct LabelRows<'a> {
    total_ns: u64,
    split: Split,
    rows: Vec<(&'a BlockingRow, &'a RowSplit)>,
}

fn block_lines(report: &Report, splits: &Splits<'_>, named: bool) -> Vec<BlockLine> {
    // Labels in the order of their sums, what is idle last; under each its calls.
    let mut labels: Vec<(&str, LabelRows)> = Vec::new();
    for (row, split) in report.blocking.iter().zip(&splits.rows) {
        let known = labels.iter().position(|(label, _)| *label == row.label);
        let at = known.unwrap_or_else(|| {
            labels.push((&row.label, LabelRows::default()));
            labels.len() - 1
        });
        let of = &mut labels[at].1;
        of.total_ns = of.total_ns.saturating_add(row.total_ns);
        of.split.add(split.all);
        of.rows.push((row, split));
    }
    labels.sort_by_key(|(_, of)| std::cmp::Reverse((of.split.lost_ns, of.total_ns)));
    let mut lines = Vec::new();
    for (label, of) in labels {
        let LabelRows {
            total_ns,
            split,
            mut rows,
        } = of;
        rows.sort_by_key(|(_, split)| std::cmp::Reverse(split.all.lost_ns));
        let one = rows.len() == 1;
        if !one {
            let rows = || rows.iter().map(|(row, _)| *row);
            let count = rows().fold(0u64, |n, r| n.saturating_add(r.count));
            let waiters = |r: &BlockingRow| r.waiters_mean.unwrap_or(0.0) * r.waiters_known as f64;
            let waiters: f64 = rows().map(waiters).sum();
            let known: u64 = rows().map(|r| r.waiters_known).sum();
            lines.push(BlockLine {
                of: LineOf::Label,
                label: label.to_owned(),
                call: format!("({} places)", rows().count()),
                name: String::new(),
                count: Some(count),
                total_ns,
                split: Some(split),
                max_ns: rows().map(|r| r.max_ns).max(),
                waiters: (known > 0).then(|| waiters / known as f64),
                place: String::new(),
            });
        }
        for (row, split) in rows {
            lines.push(BlockLine {
                of: LineOf::Place,
                label: if one { label.to_owned() } else { String::new() },
                call: match &row.call {
                    Some(call) => call_name(call, row.abi),
                    None => "(no call)".into(),
                },
                name: row.whose(),
                count: Some(row.count),
                total_ns: row.total_ns,
                split: Some(split.all),
                max_ns: Some(row.max_ns),
                waiters: row.waiters_mean.filter(|_| row.waiters_known > 0),
                place: row.place(),
            });
            if named {
                let all_ns = report.totals.sleeps_ns;
                lines.extend(name_lines(row, split, splits.all, all_ns));
            }
        }
    }
    lines
}

fn blocking_table(
    out: &mut String,
    report: &Report,
    splits: &Splits,
    pen: &Pen,
    options: &TextOptions,
) {
    if report.blocking.is_empty() {
        if report.measured.sites && report.measured.blocked && report.totals.calls > 0 {
            out.push_str("\nIt never blocked.\n");
        }
        return;
    }
    let totals = &report.totals;
    let title = format!(
        "Where it blocked: {} in {} {}",
        pen.time(totals.sleeps_ns),
        count_text(totals.sleeps),
        if totals.sleeps == 1 {
            "sleep"
        } else {
            "sleeps"
        }
    );
    out.push_str(&format!("\n{}\n", pen.paint(Style::Bold, &title)));
    let named = report.names_differ();
    let mut lines = block_lines(report, splits, named);
    let mut rest = String::new();
    if let Some(top) = options.top.filter(|top| *top < lines.len()) {
        let cut = lines.split_off(top);
        let places = cut.iter().filter(|l| l.of == LineOf::Place).count();
        // What is cut may be names of the last place alone.
        if places > 0 {
            rest = format!(
                "  ({places} more {})\n",
                if places == 1 { "place" } else { "places" }
            );
        }
    }
    let bold: Vec<bool> = lines.iter().map(|l| l.of == LineOf::Label).collect();
    let column = |f: &dyn Fn(&BlockLine) -> String| lines.iter().map(f).collect::<Vec<_>>();
    let others_waited = lines
        .iter()
        .any(|line| line.waiters.is_some_and(|n| n > 0.0));
    let mut columns = vec![
        Column::new("LABEL", 0, column(&|l| l.label.clone()))
            .left()
            .style(Style::Label),
        Column::new("CALL", 0, column(&|l| l.call.clone())).left(),
    ];
    if named {
        columns.push(Column::new("NAME", 0, column(&|l| l.name.clone())).left());
    }
    columns.extend([
        Column::new("COUNT", 0, column(&|l| count_cell_opt(l.count))),
        Column::new("TOTAL", 0, column(&|l| pen.cell(l.total_ns))),
        // Of what is idle as a whole its share says so.
        Column::new(
            "IDLE",
            3,
            column(&|l| match l.split {
                Some(split) if !split.is_idle() && split.idle_ns > 0 => pen.cell(split.idle_ns),
                _ => String::new(),
            }),
        )
        .optional(),
        Column::new(
            "%",
            4,
            column(&|l| {
                let share = l.split.map(|split| split.share_text(splits.all));
                share.unwrap_or_default()
            }),
        ),
        Column::new(
            "MEAN",
            5,
            column(&|l| pen.cell_opt(l.count.map(|count| l.total_ns / count.max(1)))),
        ),
        Column::new(
            "MAX",
            1,
            column(&|l| l.max_ns.map_or_else(String::new, |ns| pen.cell(ns))),
        ),
        Column::new(
            "WAITERS",
            6,
            column(&|l| match l.waiters {
                None if l.of == LineOf::Name => String::new(),
                // A column of nothing but doubt says nothing.
                None if others_waited => "?".into(),
                None | Some(0.0) => "-".into(),
                Some(waiters) => format!("{waiters:.1}"),
            }),
        )
        .optional(),
        Column::new("PLACE", 2, column(&|l| l.place.clone()))
            .left()
            .optional(),
    ]);
    *out += &Table::from(columns).bold(bold).text(pen, options.width);
    out.push_str(&rest);
    aside_line(out, splits.all, pen, options);
}

/// How long was idle.
fn aside_line(out: &mut String, all: Split, pen: &Pen, options: &TextOptions) {
    if let Some(text) = all.aside_text(pen.ascii) {
        *out += &wrapped(&text, line_width(options.width), "  ", "  ");
        out.push('\n');
    }
}

/// Without --top, as many chains, roots and slow calls as are read.
const CHAINS_SHOWN: usize = 14;
const ROOTS_SHOWN: usize = 6;
const SLOW_CALLS_SHOWN: usize = 8;
const OBJECTS_SHOWN: usize = 10;

/// Without --top, as many functions as are read.
const ON_CPU_SHOWN: usize = 10;

/// What the threads did while they had a CPU.
fn on_cpu_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    let Some(on_cpu) = report
        .on_cpu
        .as_ref()
        .filter(|on_cpu| on_cpu.samples >= SAMPLES_FEW)
    else {
        return;
    };
    let kinds = [
        "own code",
        "calls",
        "faults and the like",
        "soft interrupts",
    ];
    let shares: Vec<String> = kinds
        .iter()
        .zip(on_cpu.kinds())
        .filter(|(_, samples)| *samples > 0)
        .map(|(kind, samples)| format!("{kind} {}", share_text(samples, on_cpu.samples)))
        .collect();
    let title = format!(
        "On the CPU: {} ({}, {} a second): {}",
        pen.time(on_cpu.time_ns(on_cpu.samples)),
        match on_cpu.samples {
            1 => "1 sample".into(),
            samples => format!("{} samples", count_text(samples)),
        },
        on_cpu.hz,
        shares.join(", ")
    );
    *out += &format!("\n{}\n", pen.paint(Style::Bold, &title));
    let tops = on_cpu.tops();
    let shown = tops.len().min(options.top.unwrap_or(ON_CPU_SHOWN));
    let rows = &tops[..shown];
    let column = |f: &dyn Fn(&OnCpuTop) -> String| rows.iter().map(f).collect::<Vec<_>>();
    let plus_minus = if pen.ascii { "+-" } else { "±" };
    let mut columns = vec![
        Column::new("TIME", 0, column(&|t| pen.cell(on_cpu.time_ns(t.samples)))),
        Column::new(
            "SHARE",
            0,
            column(&|t| share_text(t.samples, on_cpu.samples)),
        ),
        Column::new(
            plus_minus,
            2,
            column(&|t| format!("{:.1}", on_cpu.error_percent(t.samples))),
        ),
    ];
    if on_cpu.groups.len() > 1 {
        columns.push(Column::new("IN", 0, column(&|t| printable(&t.comm))).left());
    }
    columns.push(Column::new("WHAT", 0, column(&|t| t.text.clone())).left());
    *out += &Table::from(columns).text(pen, options.width);
    if tops.len() > shown {
        let rest = tops[shown..]
            .iter()
            .fold(0u64, |sum, top| sum.saturating_add(top.samples));
        *out += &format!(
            "  ({} more, {}; --top N shows more)\n",
            tops.len() - shown,
            share_text(rest, on_cpu.samples)
        );
    }
}

/// Sleeps that are not told one by one: nothing waited for them.
fn rest_line(out: &mut String, report: &Report, pen: &Pen, rests: &[ChainRow]) {
    let rest = chains::tree(report, rests);
    if rest.total_ns == 0 {
        return;
    }
    let longest: Vec<String> = rest
        .next
        .iter()
        .take(3)
        .map(|node| format!("{} ({})", node.text, pen.time(node.total_ns)))
        .collect();
    let text = format!(
        "Left out, since they are where threads come back to, for work or for an answer: {}: {}{}",
        pen.time(rest.total_ns),
        longest.join("; "),
        if rest.next.len() > 3 { "; ..." } else { "" }
    );
    let text = wrapped(&pen.plain(&text), line_width(None), "  ", "  ");
    *out += &format!("\n{text}\n");
}

/// What was waited for, link by link, and where it ends.
fn chain_tree(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    let (waits, rests) = chains::waits(report);
    let tree = chains::tree(report, &waits);
    if tree.total_ns == 0 {
        rest_line(out, report, pen, &rests);
        return;
    }
    let share = |ns: u64| format!("{:.0} %", ns as f64 * 100.0 / tree.total_ns as f64);
    let most = options.top.unwrap_or(CHAINS_SHOWN);
    let (lines, left) = chains::tree_lines(&tree, most);
    let column = |f: &dyn Fn(&TreeLine) -> String| lines.iter().map(f).collect::<Vec<_>>();
    *out += &format!(
        "\n{}\n",
        pen.paint(Style::Bold, "Who it waited for, and what that waited for")
    );
    let columns = vec![
        Column::new("TOTAL", 0, column(&|l| pen.cell(l.total_ns))),
        Column::new("SHARE", 0, column(&|l| share(l.total_ns))),
        Column::new("PARTS", 1, column(&|l| count_cell(l.count))),
        Column::new(
            "WAITED  ←  FOR",
            0,
            column(&|l| format!("{}{}", "  ".repeat(l.depth), l.text)),
        )
        .left(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    if left > 0 {
        *out += &format!("  ({left} more; --top N shows more)\n");
    }
    rest_line(out, report, pen, &rests);
    let roots = chains::roots(report, &waits);
    *out += &format!("\n{}\n", pen.paint(Style::Bold, "Where that waiting ends"));
    let shown = roots.len().min(options.top.unwrap_or(ROOTS_SHOWN));
    let rows = &roots[..shown];
    let column = |f: &dyn Fn(&Root) -> String| rows.iter().map(f).collect::<Vec<_>>();
    let columns = vec![
        Column::new("TOTAL", 0, column(&|r| pen.cell(r.total_ns))),
        Column::new("SHARE", 0, column(&|r| share(r.total_ns))),
        Column::new("WAYS", 1, column(&|r| count_cell(r.ways as u64))),
        Column::new("ROOT", 0, column(&|r| r.text.clone())).left(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    if roots.len() > shown {
        *out += &format!("  ({} more; --top N shows more)\n", roots.len() - shown);
    }
}

/// Without --top.
const LIVES_SHOWN: usize = 8;
const PATH_SHOWN: usize = 10;

/// What the end depended on.
fn critical_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    let Some(path) = &report.critical_path else {
        return;
    };
    let all = lives::critical_rows(report);
    let title = format!(
        "What its {} depended on, from its beginning to its end",
        pen.time(path.total_ns)
    );
    *out += &format!("\n{}\n", pen.paint(Style::Bold, &title));
    let shown = all.len().min(options.top.unwrap_or(PATH_SHOWN));
    let (rows, others) = all.split_at(shown);
    // The causes of a wait stand below it.
    let lines: Vec<(u64, String, String)> = (rows.iter())
        .flat_map(|row| {
            let who = row.who.as_deref().map_or("(several)".into(), printable);
            let below =
                (row.causes.iter()).map(|(cause, ns)| (*ns, String::new(), format!("  ← {cause}")));
            std::iter::once((row.total_ns, who, row.what.clone())).chain(below)
        })
        .collect();
    type Line = (u64, String, String);
    let column = |f: &dyn Fn(&Line) -> String| lines.iter().map(f).collect::<Vec<_>>();
    let columns = vec![
        Column::new("TIME", 0, column(&|(ns, ..)| pen.cell(*ns))),
        Column::new("%", 0, column(&|(ns, ..)| share_text(*ns, path.total_ns))),
        Column::new("WHO", 0, column(&|(_, who, _)| who.clone()))
            .left()
            .style(Style::Label),
        Column::new("IN", 0, column(&|(.., what)| pen.plain(what))).left(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    if !others.is_empty() {
        let rest = others
            .iter()
            .fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
        *out += &format!(
            "  ({} more: {}; --top N shows more)\n",
            others.len(),
            pen.time(rest)
        );
    }
}

/// Where the time of its threads went, by their names.
fn life_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    let groups = lives::roles(&report.lives);
    if groups.is_empty() {
        return;
    }
    let mut all = LifeTime::default();
    for group in &groups {
        all.add(&group.time);
    }
    let title = format!(
        "Where the time of its threads went: {} of life, {} on a CPU",
        pen.time(all.life_ns),
        pen.time(all.cpu_ns())
    );
    *out += &format!("\n{}\n", pen.paint(Style::Bold, &title));
    let shown = groups.len().min(options.top.unwrap_or(LIVES_SHOWN));
    let (rows, others) = groups.split_at(shown);
    let mut mostly = lives::mostly_in(report, &groups);
    mostly.truncate(shown);
    let column = |f: &dyn Fn(&LifeGroup) -> String| rows.iter().map(f).collect::<Vec<_>>();
    let timed = |f: fn(&LifeTime) -> u64| {
        rows.iter()
            .map(|g| pen.cell(f(&g.time)))
            .collect::<Vec<_>>()
    };
    let columns = vec![
        Column::new("NAME", 0, column(&LifeGroup::name))
            .left()
            .style(Style::Label),
        Column::new("PROCS", 4, column(&|g| count_cell(g.processes))).optional(),
        Column::new("THREADS", 3, column(&|g| count_cell(g.threads))),
        Column::new("LIFE", 0, timed(|t| t.life_ns)),
        Column::new("OWN-CPU", 0, timed(|t| t.own_ns)),
        Column::new(
            match report.measured.calls {
                true => "IN-CALLS",
                false => "KERNEL",
            },
            0,
            timed(|t| t.calls_ns),
        ),
        Column::new("IRQ", 2, timed(LifeTime::interrupts_ns)).optional(),
        Column::new("BLOCKED", 0, timed(|t| t.blocked_ns)),
        Column::new("OUTSIDE", 2, timed(|t| t.outside_ns)).optional(),
        Column::new("STOPPED", 5, timed(|t| t.stopped_ns)).optional(),
        Column::new("RUNQ", 0, timed(|t| t.runq_ns)),
        Column::new("EXIT", 6, timed(|t| t.exit_ns)).optional(),
        Column::new("MOSTLY IN", 2, mostly).left().optional(),
        Column::new("COMMAND", 1, column(&|g| pen.plain(&printable(&g.command))))
            .left()
            .optional(),
        Column::new(
            "CGROUP",
            7,
            column(&|g| pen.plain(&printable(g.cgroup.as_deref().unwrap_or_default()))),
        )
        .left()
        .optional(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    if !others.is_empty() {
        *out += &format!("  ({} more; --top N shows more)\n", others.len());
    }
}

/// Which file, which peer, which lock word the blocked time belongs to.
fn object_table(
    out: &mut String,
    report: &Report,
    splits: &Splits,
    pen: &Pen,
    options: &TextOptions,
) {
    let mut rows: Vec<(&ObjectRow, &Object)> = report
        .by_object
        .iter()
        .filter_map(|row| Some((row, report.objects.get(row.object?)?)))
        .collect();
    if rows.is_empty() {
        return;
    }
    let total = |rows: &mut dyn Iterator<Item = &ObjectRow>| {
        rows.fold(0u64, |sum, row| sum.saturating_add(row.total_ns))
    };
    let title = format!(
        "On what it blocked: {} of {}",
        pen.time(total(&mut rows.iter().map(|(row, _)| *row))),
        pen.time(total(&mut report.by_object.iter()))
    );
    *out += &format!("\n{}\n", pen.paint(Style::Bold, &title));
    let all = splits.of_objects(report);
    // What is idle comes last.
    rows.sort_by_key(|(row, _)| splits.of_object(row).lost_ns == 0);
    let shown = rows.len().min(options.top.unwrap_or(OBJECTS_SHOWN));
    let (rows, others) = rows.split_at(shown);
    let column = |f: &dyn Fn(&ObjectRow, &Object) -> String| {
        rows.iter()
            .map(|(row, object)| f(row, object))
            .collect::<Vec<_>>()
    };
    let columns = vec![
        Column::new("TOTAL", 0, column(&|r, _| pen.cell(r.total_ns))),
        Column::new("%", 2, column(&|r, _| splits.of_object(r).share_text(all))),
        Column::new("COUNT", 1, column(&|r, _| count_cell(r.count))),
        Column::new("MAX", 3, column(&|r, _| pen.cell(r.max_ns))),
        Column::new(
            "CALL",
            0,
            column(&|r, _| {
                r.call
                    .as_ref()
                    .map_or("(no call)".into(), |c| call_name(c, r.abi))
            }),
        )
        .left()
        .style(Style::Label),
        Column::new("OBJECT", 0, column(&|_, o| pen.plain(&printable(&o.text)))).left(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    if !others.is_empty() {
        *out += &format!("  ({} more; --top N shows more)\n", others.len());
    }
    aside_line(out, all, pen, options);
}

/// What ran in its calls for others, as far as can be told: which interrupt served
/// whom is not known, and packets for the machine itself are the sender's own doing.
fn interrupt_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    if !report.measured.irq {
        return;
    }
    let totals = &report.totals;
    let (in_calls, outside) = (
        totals.irq_ns.unwrap_or(0),
        totals.irq_outside_ns.unwrap_or(0),
    );
    let on_cpu = totals.cpu_ns.unwrap_or(0).saturating_add(in_calls);
    let share = match share_text(in_calls, on_cpu) {
        share if share.is_empty() => share,
        share => format!(" ({share} of their time on CPU)"),
    };
    let title = format!(
        "Interrupts that landed in its calls: {}{share}; between its calls: {}",
        pen.time(in_calls),
        pen.time(outside)
    );
    *out += &format!("\n{}\n", pen.paint(Style::Bold, &title));
    let rows = &report.interrupts;
    if rows.is_empty() {
        return;
    }
    let shown = rows.len().min(options.top.unwrap_or(usize::MAX));
    let sum =
        |f: fn(&InterruptRow) -> u64| rows.iter().fold(0u64, |all, r| all.saturating_add(f(r)));
    let column = |f: &dyn Fn(&InterruptRow) -> String, all: String| {
        let mut cells: Vec<String> = rows[..shown].iter().map(f).collect();
        cells.push(all);
        cells
    };
    let columns = vec![
        Column::new(
            "TOTAL",
            0,
            column(&|r| pen.cell(r.total_ns), pen.cell(sum(|r| r.total_ns))),
        ),
        Column::new(
            "COUNT",
            0,
            column(&|r| count_cell(r.count), count_cell(sum(|r| r.count))),
        ),
        Column::new("MAX", 1, column(&|r| pen.cell(r.max_ns), String::new())),
        Column::new(
            "BETWEEN",
            2,
            column(&|r| pen.cell(r.outside_ns), pen.cell(sum(|r| r.outside_ns))),
        ),
        Column::new(
            "COUNT",
            3,
            column(
                &|r| count_cell(r.outside_count),
                count_cell(sum(|r| r.outside_count)),
            ),
        ),
        Column::new(
            "KIND",
            0,
            column(&|r| r.kind.text().to_owned(), "all".to_owned()),
        )
        .left(),
        Column::new(
            "INTERRUPT",
            0,
            column(
                &|r| pen.plain(&printable(&r.name)),
                "work done for others".to_owned(),
            ),
        )
        .left(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    if rows.len() > shown {
        *out += &format!("  ({} more; --top N shows more)\n", rows.len() - shown);
    }
}

/// What a call was made with, in brackets: numbers and flags, not addresses.
fn arguments(call: &SlowCall) -> String {
    let told: Vec<String> = call
        .arguments
        .iter()
        .filter(|argument| !argument.address)
        .map(|argument| {
            format!(
                "{}={}",
                printable(&argument.name),
                printable(&argument.text)
            )
        })
        .collect();
    if told.is_empty() {
        return String::new();
    }
    format!("({})", told.join(", "))
}

fn party(who: &Party) -> String {
    let name = match who.tid {
        0 => printable(&who.comm),
        tid => format!("{} ({tid})", printable(&who.comm)),
    };
    match &who.call {
        Some(call) => format!("{name} in {}", printable(call)),
        None => name,
    }
}

/// One line for each sleep of a slow call; what is short beside the call is
/// summed up.
fn sleep_lines(call: &SlowCall, report: &Report, pen: &Pen) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut few, mut few_ns) = (0u64, 0u64);
    for sleep in &call.sleeps {
        if lines.len() == 3 || sleep.blocked_ns.saturating_mul(20) < call.blocked_ns {
            few += 1;
            few_ns = few_ns.saturating_add(sleep.blocked_ns);
            continue;
        }
        let site = sleep.site.and_then(|site| report.sites.get(site));
        let mut line = format!(
            "{} {}",
            pen.time(sleep.blocked_ns),
            printable(site.map_or("(unknown)", |s| s.label.as_str()))
        );
        if let Some(function) = site.and_then(|s| s.function.as_deref()) {
            line.push_str(&format!(" in {}", printable(function)));
        }
        if let Some(waiters) = sleep.waiters_entry.filter(|&w| w > 0) {
            let others = if waiters == 1 { "other" } else { "others" };
            line.push_str(&format!(", with {waiters} {others}"));
        }
        if let Some(holder) = &sleep.holder {
            let how = if holder.reader { "read-held" } else { "held" };
            let place = chains::holder_place(report, holder.call.as_deref(), holder.stack);
            line.push_str(&format!(", {how} by {}{place}", party(holder)));
        }
        let still = |next: &&Party| sleep.holder.as_ref().is_none_or(|h| h.tid != next.tid);
        if let Some(next) = sleep.holder_exit.as_ref().filter(still) {
            line.push_str(&format!(", then by {}", party(next)));
        }
        let after: Vec<String> = (sleep.chain.into_iter())
            .flat_map(|chain| chains::links_of(report, chain))
            .skip(1)
            .map(|link| chains::link_text(link, report))
            .collect();
        if !after.is_empty() {
            if let Some(part_ns) = sleep.chain_part_ns() {
                line.push_str(&format!(", {} of it", pen.time(part_ns)));
            }
            line.push_str(&format!(" ← {}", after.join(" ← ")));
        } else if let Some(waker) = sleep.waker.as_ref().filter(|w| w.tid != 0) {
            line.push_str(&format!(", woken by {}", party(waker)));
        }
        lines.push(line);
    }
    few += u64::from(call.sleeps_dropped);
    few_ns = few_ns.saturating_add(call.sleeps_dropped_ns);
    if few > 0 {
        let sleeps = if few == 1 { "sleep" } else { "sleeps" };
        lines.push(format!(
            "{} in {} further {sleeps}",
            pen.time(few_ns),
            count_text(few)
        ));
    }
    lines
}

/// The slowest calls, one of each kind of wait first: ten equal waits of an
/// idle thread say no more than one.
fn slow_call_lines(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    if report.slow_calls.is_empty() {
        return;
    }
    let mut seen: std::collections::HashMap<(&str, Option<usize>), usize> = Default::default();
    let mut ranked: Vec<(usize, &SlowCall)> = report
        .slow_calls
        .iter()
        .map(|call| {
            let longest = call.sleeps.iter().max_by_key(|s| s.blocked_ns);
            let times = seen
                .entry((call.call.as_str(), longest.and_then(|s| s.site)))
                .or_insert(0);
            *times += 1;
            (*times, call)
        })
        .collect();
    ranked.sort_by_key(|(times, _)| *times);
    let shown = options.top.unwrap_or(SLOW_CALLS_SHOWN).min(ranked.len());
    let mut rows: Vec<&SlowCall> = ranked[..shown].iter().map(|(_, call)| *call).collect();
    rows.sort_by_key(|call| std::cmp::Reverse(call.wall_ns));
    let (one, many) = match are_sleeps(report) {
        true => ("sleep", "sleeps"),
        false => ("call", "calls"),
    };
    let heading = format!("Slow {many}, the slowest of each kind");
    out.push_str(&format!("\n{}\n", pen.paint(Style::Bold, &heading)));
    for call in rows {
        let mut head = format!(
            "{} {}{}",
            pen.time(call.wall_ns),
            pen.paint(Style::Label, &call_name(&call.call, call.abi)),
            arguments(call)
        );
        if let Some(what) = &call.path {
            head.push_str(&format!(" {}", pen.plain(&printable(what))));
        }
        if call.retval < 0 && call.retval >= -4095 {
            let how = match call.retval {
                // Broken off by a signal: the program sees EINTR, or the kernel
                // makes the call anew.
                -514..=-512 | -516 => "interrupted",
                _ => "failed",
            };
            head.push_str(&format!(", {how} ({})", result_text(call.retval)));
        }
        head.push_str(&format!(
            " by {} ({}), at {}",
            printable(&call.comm),
            call.tid,
            pen.time(call.start_ns)
        ));
        let mut parts = Vec::new();
        if !call.one_sleep {
            parts.push(format!("on CPU {}", pen.time(call.cpu_ns)));
        }
        if call.runq_ns > 0 {
            parts.push(format!("run queue {}", pen.time(call.runq_ns)));
        }
        if let Some(irq_ns) = call.irq_ns.filter(|ns| *ns > 0) {
            parts.push(format!("interrupts {}", pen.time(irq_ns)));
        }
        if call.major_faults > 0 {
            parts.push(format!("major faults {}", call.major_faults));
        }
        let waited =
            call.blocked_ns.saturating_mul(20) >= call.wall_ns && call.runq_ns <= call.blocked_ns;
        if !waited && !parts.is_empty() {
            head.push_str(&format!(": {}", parts.join(", ")));
        }
        let width = line_width(options.width);
        out.push_str(&wrapped(&head, width, "  ", "      "));
        out.push('\n');
        let stack = call.stack.and_then(|stack| report.stacks.get(stack));
        if let Some(frame) = stack.and_then(|s| s.frames.get(s.site_frame)) {
            let from = format!("from {}", printable(&crate::frame_text(frame)));
            out.push_str(&wrapped(&from, width, "    ", "        "));
            out.push('\n');
        }
        if !call.conditions.is_empty() {
            let met: Vec<String> = call.conditions.iter().map(|c| printable(c)).collect();
            let met = format!("met {}", met.join("; "));
            out.push_str(&wrapped(&met, width, "    ", "        "));
            out.push('\n');
        }
        for line in sleep_lines(call, report, pen) {
            out.push_str(&wrapped(&pen.plain(&line), width, "    ", "        "));
            out.push('\n');
        }
    }
    let more = report.slow_calls.len() - shown;
    if more > 0 {
        let what = if more == 1 { one } else { many };
        out.push_str(&format!(
            "  ({} more {what}; --top N shows more)\n",
            count_text(more as u64)
        ));
    }
    if report.slow_calls_left_out > 0 {
        out.push_str(&format!("  ({})\n", left_out_text(report)));
    }
}

/// Whether what is told singly are sleeps, as the ends of calls were not seen.
pub(crate) fn are_sleeps(report: &Report) -> bool {
    report.slow_calls.first().is_some_and(|call| call.one_sleep)
}

/// Of the slow calls.
pub(crate) fn left_out_text(report: &Report) -> String {
    format!(
        "kept singly: {}; {} more that were seen are in the tables alone",
        count_text(report.slow_calls.len() as u64),
        count_text(report.slow_calls_left_out)
    )
}

fn call_site_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    if report.call_sites.is_empty() {
        return;
    }
    out.push_str(&format!("\n{}\n", pen.paint(Style::Bold, "Who called")));
    let shown = options
        .top
        .unwrap_or(CALL_SITES_SHOWN)
        .min(report.call_sites.len());
    let rows = &report.call_sites[..shown];
    let column = |f: &dyn Fn(&CallSiteRow) -> String| rows.iter().map(f).collect::<Vec<_>>();
    let mut columns = vec![
        Column::new("CALL", 0, column(&|r| r.call.clone()))
            .left()
            .style(Style::Label),
        Column::new("COUNT", 0, column(&|r| count_cell(r.count))),
        Column::new("ERRORS", 3, column(&|r| count_cell(r.errors))).optional(),
        Column::new("TOTAL", 0, column(&|r| pen.cell_opt(r.wall_ns))),
        Column::new("MEAN", 2, column(&|r| pen.cell_opt(r.mean_ns))),
        Column::new("MAX", 1, column(&|r| pen.cell_opt(r.max_ns))),
    ];
    if report.measured.blocked {
        columns.push(Column::new(
            "BLOCKED",
            0,
            column(&|r| pen.cell_opt(r.blocked_ns)),
        ));
    }
    columns.push(Column::new("CALL SITE", 0, column(&|r| r.place.clone())).left());
    *out += &Table::from(columns).text(pen, options.width);
    let more = report.call_sites.len() - shown;
    if more > 0 {
        out.push_str(&format!(
            "  ({more} more call {}; --top N shows more)\n",
            if more == 1 { "site" } else { "sites" }
        ));
    }
}

fn trend_lines(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    if report.trends.is_empty() {
        return;
    }
    let title = "What changed as the run went on";
    out.push_str(&format!("\n{}\n", pen.paint(Style::Bold, title)));
    let shown = options.top.unwrap_or(usize::MAX).min(report.trends.len());
    for trend in &report.trends[..shown] {
        let text = pen.plain(&printable(&trend.text));
        let width = line_width(options.width);
        out.push_str(&wrapped(&text, width, "  ", "    "));
        out.push('\n');
    }
    let more = report.trends.len() - shown;
    if more > 0 {
        let calls = if more == 1 { "call" } else { "calls" };
        out.push_str(&format!("  ({more} more {calls})\n"));
    }
}

fn open_call_table(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    if report.open_calls.is_empty() {
        return;
    }
    out.push_str(&format!(
        "\n{}\n",
        pen.paint(Style::Bold, "Still in a call")
    ));
    let groups = open_groups(&report.open_calls);
    let shown = options.top.unwrap_or(OPEN_SHOWN).min(groups.len());
    let rows = &groups[..shown];
    let column = |f: &dyn Fn(&OpenGroup<'_>) -> String| rows.iter().map(f).collect::<Vec<_>>();
    let at_least = |ns: u64| if ns == 0 { "-".into() } else { pen.time(ns) };
    let columns = vec![
        Column::new("CALL", 0, column(&|r| r.first.call.clone()))
            .left()
            .style(Style::Label),
        Column::new(
            "FOR AT LEAST",
            0,
            column(&|r| at_least(r.first.at_least_ns)),
        ),
        Column::new("THREAD", 1, column(&|r| r.threads_text())),
        Column::new("PROCESS", 2, column(&|r| r.first.pid.to_string())),
        Column::new("NAME", 0, column(&|r| r.first.comm.clone())).left(),
    ];
    *out += &Table::from(columns).text(pen, options.width);
    let more: usize = groups[shown..].iter().map(|group| group.threads).sum();
    if more > 0 {
        out.push_str(&format!(
            "  ({} more {}; --top N shows more)\n",
            count_text(more as u64),
            if more == 1 { "thread" } else { "threads" }
        ));
    }
    for why in rows
        .iter()
        .map(OpenGroup::why)
        .filter(|why| !why.is_empty())
    {
        let text = pen.plain(&printable(&why));
        *out += &wrapped(&text, line_width(options.width), "  ", "    ");
        out.push('\n');
    }
}

/// Of sentences: as wide as the terminal, but readable.
fn line_width(width: Option<usize>) -> usize {
    width.unwrap_or(100).max(40)
}

/// What to know about it, and how it was taken.
fn notes(out: &mut String, report: &Report, pen: &Pen, options: &TextOptions) {
    out.push('\n');
    for note in &report.notes {
        let text = format!("note: {}", pen.plain(&printable(&note.text)));
        out.push_str(&wrapped(&text, line_width(options.width), "", "      "));
        out.push('\n');
    }
    let taken = format!("Taken with {}", report.run.capture.text());
    out.push_str(&wrapped(&taken, line_width(options.width), "", "  "));
    out.push('\n');
}

/// The whole report for people.
pub fn render_text(report: &Report, options: &TextOptions) -> String {
    let pen = Pen {
        color: options.color,
        ascii: options.ascii,
    };
    let mut out = String::new();
    headline(&mut out, report, &pen, options.width);
    verdict_lines(&mut out, report, &pen, options.width);
    critical_table(&mut out, report, &pen, options);
    life_table(&mut out, report, &pen, options);
    call_table(&mut out, report, &pen, options);
    let splits = Splits::of(report);
    blocking_table(&mut out, report, &splits, &pen, options);
    object_table(&mut out, report, &splits, &pen, options);
    on_cpu_table(&mut out, report, &pen, options);
    chain_tree(&mut out, report, &pen, options);
    interrupt_table(&mut out, report, &pen, options);
    call_site_table(&mut out, report, &pen, options);
    slow_call_lines(&mut out, report, &pen, options);
    trend_lines(&mut out, report, &pen, options);
    open_call_table(&mut out, report, &pen, options);
    if let Some(trace) = &report.trace {
        crate::trace::section(&mut out, trace, &pen, options);
    }
    notes(&mut out, report, &pen, options);
    out
}
