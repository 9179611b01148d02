// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a comparison look in a browser?
//!
//! The report's page, with other sections: how much faster the second run was, first;
//! then what made it so.

use super::text::{effect_text, headline, notes, side_text};
use super::{Change, Diff, Kind, Metric, Only, Side};
use crate::html::table::{Cell, Table, drawing, head, number, take_styles, words};
use crate::html::{PAGE_SCRIPT, STYLE, time};
use debox_output::{Page, Section, count_text, escape};

fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Call => "call",
        Kind::Label => "label",
        Kind::CallSite => "call site",
        Kind::Root => "root",
        Kind::Interrupt => "interrupt",
    }
}

fn metric_text(change: &Change, per_run: bool) -> String {
    let per = if per_run { "in all" } else { "a second" };
    match change.metric {
        Metric::Mean => "mean of a call".into(),
        Metric::P99 => "99th percentile".into(),
        Metric::Blocked => "blocked in a call".into(),
        Metric::Count => format!("calls {per}"),
        Metric::LabelTime => format!("blocked {per}"),
        Metric::InterruptTime => format!("interrupts {per}"),
    }
}

fn value(change: &Change, v: f64) -> Cell {
    let text = match change.metric {
        Metric::Count if v < 100.0 && v.fract() != 0.0 => format!("{v:.1}"),
        Metric::Count => count_text(v.round() as u64),
        _ => time(v.round().max(0.0) as u64),
    };
    Cell::Value(v, text)
}

fn percent(v: Option<f64>) -> String {
    match v.map(|v| v * 100.0) {
        None => String::new(),
        Some(v) if v > 99_999.0 => "> +99999 %".into(),
        Some(v) if v.abs() < 9.95 => format!("{v:+.1} %"),
        Some(v) => format!("{v:+.0} %"),
    }
}

/// Shorter to the left, in green; longer to the right.
fn arrow(effect_ns: i64, most_ns: u64) -> String {
    let width = effect_ns.unsigned_abs() as f64 * 50.0 / most_ns.max(1) as f64;
    let (class, left) = if effect_ns < 0 {
        ("less", 50.0 - width)
    } else {
        ("more", 50.0)
    };
    format!(
        "<div class=\"arrow\"><i class=\"{class}\" style=\"margin-left:{left:.2}%;width:{width:.2}%\"></i></div>"
    )
}

fn changes(id: &'static str, caption: &str, list: &[Change], diff: &Diff) -> String {
    if list.is_empty() {
        return String::new();
    }
    let most = list.iter().map(|c| c.effect_ns.unsigned_abs()).max();
    let rows = list
        .iter()
        .map(|c| {
            let interval = match (c.low, c.high) {
                (Some(_), Some(_)) => format!("{} to {}", percent(c.low), percent(c.high)),
                _ => String::new(),
            };
            (
                String::new(),
                vec![
                    Cell::text(&c.name),
                    Cell::text(kind_text(c.kind)),
                    Cell::Text(metric_text(c, diff.per_run)),
                    value(c, c.a),
                    value(c, c.b),
                    Cell::Value(c.change.unwrap_or(f64::MAX), percent(c.change)),
                    Cell::Text(interval),
                    Cell::Html(arrow(c.effect_ns, most.unwrap_or(0))),
                    Cell::Value(c.effect_ns as f64, effect_text(c.effect_ns)),
                ],
            )
        })
        .collect();
    Table {
        id,
        caption: caption.to_owned(),
        columns: vec![
            head("What", ""),
            words("Kind", ""),
            words("Of it", ""),
            number("Before", ""),
            number("After", ""),
            number("Change", ""),
            words(
                "Interval",
                "In which the change lies, with the confidence that was asked for",
            ),
            drawing("Less or more", "Time of the second run, by this alone"),
            number("Effect", "On the time of the second run, by this alone"),
        ],
        rows,
        page: 25,
        sorted: None,
    }
    .html()
}

fn only(id: &'static str, caption: &str, list: &[Only]) -> String {
    if list.is_empty() {
        return String::new();
    }
    Table {
        id,
        caption: caption.to_owned(),
        columns: vec![
            head("What", ""),
            words("Kind", ""),
            number("Count", ""),
            number("Time", ""),
        ],
        rows: list
            .iter()
            .map(|o| {
                let cells = vec![
                    Cell::text(&o.name),
                    Cell::text(kind_text(o.kind)),
                    Cell::Count(Some(o.count)),
                    Cell::Time(Some(o.total_ns)),
                ];
                (String::new(), cells)
            })
            .collect(),
        page: 15,
        sorted: None,
    }
    .html()
}

/// Both runs on one scale.
fn sides(diff: &Diff) -> String {
    let most = diff.a.wall_ns.max(diff.b.wall_ns).max(1);
    let bar = |name: &str, side: &Side| {
        format!(
            "<dt>{name}</dt><dd><div class=\"bar big\" role=\"img\" aria-label=\"{name}: {0}\"><span class=\"cpu\" style=\"width:{1:.3}%\"></span></div>{2}</dd>",
            time(side.wall_ns),
            side.wall_ns as f64 * 100.0 / most as f64,
            escape(&side_text(side))
        )
    };
    format!(
        "<dl class=\"facts-grid sides\">{}{}</dl>\n",
        bar("before", &diff.a),
        bar("after", &diff.b)
    )
}

const MORE_STYLE: &str = "
.sides dd { margin-bottom: .6rem; } .sides .bar.big { margin-bottom: .2rem; background: none; }
.arrow { background: linear-gradient(to right, transparent calc(50% - .5px), var(--soft) 0 calc(50% + .5px), transparent 0); min-width: 90px; }
.arrow i { display: block; height: 14px; } .arrow .less { background: var(--c2); } .arrow .more { background: var(--blocked); }
td.d { min-width: 110px; }
";

/// The comparison as one HTML document.
pub fn render_diff_html(diff: &Diff) -> String {
    let mut summary = String::new();
    for warning in &diff.warnings {
        summary += &format!("<p class=\"warn\">{}</p>\n", escape(warning));
    }
    summary += &sides(diff);
    summary += &match diff.changes.first() {
        Some(c) => format!(
            "<p class=\"verdict\">{}; {} in all.</p>\n",
            escape(&c.text),
            effect_text(c.effect_ns)
        ),
        None if diff.appeared.is_empty() && diff.vanished.is_empty() => format!(
            "<p class=\"none\">No significant difference in {} comparisons.</p>\n",
            count_text(diff.compared as u64)
        ),
        None => String::new(),
    };
    let notes: String = notes(diff)
        .iter()
        .map(|note| format!("<li>{}</li>\n", escape(note)))
        .collect();
    let mut sections = vec![
        Section {
            id: "summary",
            title: "Both runs",
            body: summary,
        },
        Section {
            id: "changes",
            title: "What changed, largest effect first",
            body: changes("t-changes", "What changed for sure", &diff.changes, diff),
        },
        Section {
            id: "appeared",
            title: "In the second run only",
            body: only("t-appeared", "In the second run only", &diff.appeared),
        },
        Section {
            id: "vanished",
            title: "In the first run only",
            body: only("t-vanished", "In the first run only", &diff.vanished),
        },
        Section {
            id: "unclear",
            title: "Not sure, or too small to matter",
            body: changes(
                "t-unclear",
                "Not sure, or too small to matter",
                &diff.unclear,
                diff,
            ),
        },
        Section {
            id: "notes",
            title: "How sure is that?",
            body: format!("<ul>\n{notes}</ul>\n"),
        },
    ];
    let style = format!("{STYLE}{MORE_STYLE}{}", take_styles(&mut sections));
    let title = headline(diff);
    Page {
        title: &format!("DeBox: {title}"),
        version: env!("CARGO_PKG_VERSION"),
        style: &style,
        header: format!(
            "<div class=\"top\"><p class=\"brand\">DeBox <span>what changed</span></p><button id=\"theme\" type=\"button\" hidden>Colours: automatic</button></div>\n<h1>{}</h1>\n",
            escape(&title)
        ),
        sections,
        footer: "Times of calls are sums over all threads.",
        script: Some(("null", PAGE_SCRIPT)),
    }
    .html()
}
