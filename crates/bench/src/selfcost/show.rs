// SPDX-License-Identifier: MIT OR Apache-2.0
//! How are the costs of watching shown: terminal, Markdown, page?

use super::grid::{Cell, Grid, WayKind};
use super::{SelfCost, ServerRow};
use crate::chart::{self, Bar, Scale};
use crate::model::Document;
use crate::page::{self, Section};
use crate::text::{Table, wrapped};
use crate::titles::{digits, mark, time};
use std::fmt::Write;

/// Rows that stand for the others in tables of many ways.
const FEW: [&str; 4] = ["getpid", "gettimeofday", "pread-4096", "sleep"];

fn added(cell: &Cell) -> String {
    match cell.distinguishable {
        Some(false) => "n.d.".into(),
        _ if cell.added >= 0.0 => format!("+{}", time(cell.added)),
        _ => time(cell.added),
    }
}

fn factor(cell: &Cell) -> String {
    match cell.distinguishable {
        Some(false) => "n.d.".into(),
        _ if cell.ratio >= 10.0 => format!("{}×", digits(cell.ratio)),
        _ => format!("{:.2}×", cell.ratio),
    }
}

fn percent(cell: &Cell) -> String {
    match cell.distinguishable {
        Some(false) => "n.d.".into(),
        _ if cell.ratio >= 2.0 => factor(cell),
        _ => format!("{:+.1} %", (cell.ratio - 1.0) * 100.0),
    }
}

fn null_text(cell: Option<&Cell>) -> String {
    cell.map_or_else(
        || "?".into(),
        |c| {
            let far = c.added_low.abs().max(c.added_high.abs());
            format!("±{}", time(far))
        },
    )
}

/// head and rows of a table, for any medium.
struct Sheet {
    caption: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The paper's Table 2: a row a call, a column a way of DeBox's.
fn by_call(g: &Grid) -> Sheet {
    let ways: Vec<usize> = (2..g.ways.len())
        .filter(|w| g.ways[*w].kind == WayKind::Debox && g.ways[*w].missing.is_none())
        .collect();
    let mut head = vec!["call".to_owned(), "base".into(), "null run".into()];
    head.extend(ways.iter().map(|w| g.ways[*w].title.clone()));
    let rows = (0..g.rows.len())
        .filter_map(|r| {
            let base = g.cell(r, 0)?;
            let mut cells = vec![
                g.rows[r].title.clone(),
                time(base.median),
                null_text(g.cell(r, 1)),
            ];
            cells.extend(
                ways.iter()
                    .map(|w| g.cell(r, *w).map_or_else(|| "?".into(), added)),
            );
            Some(cells)
        })
        .collect();
    Sheet {
        caption: "What DeBox adds to one call (median of the differences within rounds)".into(),
        head,
        rows,
    }
}

/// Every way against a few calls: how many times as long.
fn by_way(g: &Grid) -> Sheet {
    let rows_of: Vec<usize> = FEW.iter().filter_map(|id| g.row(id)).collect();
    let mut head = vec!["way".to_owned()];
    head.extend(rows_of.iter().map(|r| g.rows[*r].title.clone()));
    head.push("getpid: min".into());
    head.push("median".into());
    head.push("quartiles".into());
    let first = rows_of.first().copied().unwrap_or(0);
    let rows = (0..g.ways.len())
        .filter(|w| g.ways[*w].missing.is_none() && g.cell(first, *w).is_some())
        .map(|w| {
            let mut cells = vec![g.ways[w].title.clone()];
            for r in &rows_of {
                cells.push(match (w, g.cell(*r, w)) {
                    (_, None) => "?".into(),
                    (0, Some(c)) => time(c.median),
                    (_, Some(c)) => factor(c),
                });
            }
            if let Some(c) = g.cell(first, w) {
                cells.push(time(c.min));
                cells.push(time(c.median));
                cells.push(format!("{} to {}", time(c.low), time(c.high)));
            }
            cells
        })
        .collect();
    Sheet {
        caption: "The same calls by other tools: times as long as nothing".into(),
        head,
        rows,
    }
}

/// The paper's Table 3: a row a load, a column a way.
fn by_load(g: &Grid) -> Sheet {
    let ways: Vec<usize> = (2..g.ways.len())
        .filter(|w| g.ways[*w].missing.is_none())
        .collect();
    let mut head = vec!["program".to_owned(), "base".into(), "null run".into()];
    head.extend(ways.iter().map(|w| g.ways[*w].title.clone()));
    let rows = (0..g.rows.len())
        .filter_map(|r| {
            let base = g.cell(r, 0)?;
            let null = g.cell(r, 1).map_or_else(
                || "?".into(),
                |c| {
                    let far = c.added_low.abs().max(c.added_high.abs()) / base.median;
                    format!("±{:.1} %", far * 100.0)
                },
            );
            let mut cells = vec![g.rows[r].title.clone(), time(base.median), null];
            cells.extend(
                ways.iter()
                    .map(|w| g.cell(r, *w).map_or_else(|| "?".into(), percent)),
            );
            Some(cells)
        })
        .collect();
    Sheet {
        caption: "Whole programs: added to the time, or times as long".into(),
        head,
        rows,
    }
}

/// The paper's Table 1.
fn by_stamps(rows: &[ServerRow]) -> Sheet {
    Sheet {
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
                    time(r.min),
                    time(r.median),
                    time(r.mean),
                    time(r.p99),
                    time(r.max),
                    r.count.to_string(),
                ]
            })
            .collect(),
    }
}

fn sheets(own: &SelfCost) -> Vec<(Sheet, &'static str)> {
    let mut found = Vec::new();
    if !own.server.is_empty() {
        found.push((
            by_stamps(&own.server),
            "What preempts the program beside the call is in its own stamps and not in DeBox's record.",
        ));
    }
    if let Some(g) = &own.calls {
        let of_debox = by_call(g);
        if of_debox.head.len() > 3 {
            found.push((
                of_debox,
                "n.d.: not distinguishable from what two bare runs differ by (null run). The round trip makes \
                 two calls and sleeps once; its partner is watched as well where a tool follows children.",
            ));
        }
        found.push((
            by_way(g),
            "The first line is the time itself. Tool and program share one CPU; every way gets a fresh process \
             in each round, and the order rotates.",
        ));
    }
    if let Some(g) = &own.loads {
        found.push((
            by_load(g),
            "Time inside of the tool, without its start and its report. nginx and redis: time for one request.",
        ));
    }
    found
}

fn missing(own: &SelfCost) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for g in own.calls.iter().chain(&own.loads) {
        for w in &g.ways {
            if let Some(why) = &w.missing
                && !found.iter().any(|(t, _)| *t == w.title)
            {
                found.push((w.title.clone(), why.clone()));
            }
        }
    }
    found
}

fn rounds_text(own: &SelfCost) -> String {
    let count = |g: &Grid| g.cell(0, 0).map_or(0, |c| c.values.len());
    let mut parts = Vec::new();
    if let Some(g) = &own.calls {
        parts.push(format!("{} rounds of calls", count(g)));
    }
    if let Some(g) = &own.loads {
        parts.push(format!("{} rounds of programs", count(g)));
    }
    parts.join(", ")
}

/// For a terminal.
pub fn text(own: &SelfCost, color: bool) -> String {
    let bold = |t: &str| {
        if color {
            format!("\x1b[1m{t}\x1b[0m")
        } else {
            t.to_owned()
        }
    };
    let mut out = String::new();
    for (sheet, note) in sheets(own) {
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
        out += &table.render(&bold);
        if !legend.is_empty() {
            out += &wrapped(&legend, 100, "  ");
        }
        out += &wrapped(note, 100, "  ");
    }
    for (title, why) in missing(own) {
        out += &wrapped(&format!("Not measured: {title}: {why}."), 100, "  ");
    }
    out += &wrapped(&format!("{}.", rounds_text(own)), 100, "  ");
    out
}

fn markdown_table(sheet: &Sheet) -> String {
    let cell = |t: &str| t.replace('|', "\\|");
    let mut out = format!("**{}**\n\n|", sheet.caption);
    for h in &sheet.head {
        let _ = write!(out, " {} |", cell(h));
    }
    out += "\n|---|";
    for h in &sheet.head[1..] {
        out += if h == "measured by" { "---|" } else { "---:|" };
    }
    out.push('\n');
    for row in &sheet.rows {
        out.push('|');
        for c in row {
            let _ = write!(out, " {} |", cell(c));
        }
        out.push('\n');
    }
    out
}

/// For the README.
pub fn markdown(d: &Document, own: &SelfCost) -> String {
    let mut out = format!(
        "Measured by `debox bench self{}` ({}) on: {}. {}\n",
        if d.quick { " --quick" } else { "" },
        rounds_text(own),
        d.machine.line(),
        if d.noise.quiet() {
            "The machine was quiet.".to_owned()
        } else {
            format!("A noisy machine: {}.", d.noise.reasons.join("; "))
        }
    );
    for (sheet, note) in sheets(own) {
        let _ = write!(out, "\n{}\n{note}\n", markdown_table(&sheet));
    }
    let missing = missing(own);
    if !missing.is_empty() {
        out += "\nNot measured:\n\n";
        for (title, why) in missing {
            let _ = writeln!(out, "- {title}: {why}");
        }
    }
    out
}

/// For the page.
pub fn sections(own: &SelfCost) -> Vec<Section> {
    let mut calls = String::new();
    if let Some(g) = &own.calls {
        calls += "<div class=\"figures\">";
        for id in FEW {
            let Some(r) = g.row(id) else { continue };
            let bars: Vec<Bar> = (0..g.ways.len())
                .filter_map(|w| {
                    let c = g.cell(r, w)?;
                    let colour = match g.ways[w].kind {
                        WayKind::Nothing => 3,
                        WayKind::Debox => 0,
                        WayKind::Other => 1,
                    };
                    // One part of the right colour; the others are empty.
                    Some(Bar {
                        name: g.ways[w].title.clone(),
                        parts: vec![(c.median, colour)],
                        interval: Some((c.low, c.high)),
                        text: time(c.median),
                    })
                })
                .collect();
            calls += &chart::bars(
                &format!("One {}", g.rows[r].title),
                &bars,
                Scale::Log,
                &["DeBox", "others", "", "nothing"],
                &mark,
            );
        }
        calls += "</div>";
    }
    let mut tables = String::new();
    let mut programs = String::new();
    let mut server = String::new();
    for (sheet, note) in sheets(own) {
        let head: Vec<&str> = sheet.head.iter().map(String::as_str).collect();
        let words: &[usize] = if head.get(1) == Some(&"measured by") {
            &[0, 1]
        } else {
            &[0]
        };
        let html = format!(
            "<h3>{}</h3>{}<p class=\"soft\">{}</p>",
            chart::escape(&sheet.caption),
            page::table(&head, &sheet.rows, words),
            chart::escape(note)
        );
        match head[0] {
            "program" => programs += &html,
            "way" | "call" if head.get(1) != Some(&"measured by") => tables += &html,
            _ => server += &html,
        }
    }
    let left_out: String = missing(own)
        .iter()
        .map(|(t, why)| format!("<li>{}: {}</li>", chart::escape(t), chart::escape(why)))
        .collect();
    let left_out = if left_out.is_empty() {
        left_out
    } else {
        format!("<ul>{left_out}</ul>")
    };
    vec![
        ("calls", "Single calls", calls + &tables),
        ("programs", "Whole programs", programs),
        ("server", "A busy server", server),
        ("missing", "Not measured", left_out),
    ]
}
