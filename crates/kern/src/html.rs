// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a session look as a page, complete in one file?
//!
//! No script, no library, nothing fetched.

use debox_output::chart::{self, Axis, Scale, Series};
use debox_output::{Page, Section, count_text, digits_text, duration_text, escape, html_table};
use std::fmt::Write;

use crate::args::Metric;
use crate::auto::Path;
use crate::document::kernel_release;
use crate::session::{Point, Session, Watch, hist_of};
use crate::text::{percent, rate_text, step_text, threads_text};

/// More curves than this cannot be told apart.
const CURVES_MAX: usize = 8;

const STYLE: &str = include_str!("../assets/kern.css");

/// The value of a metric at a point; latencies in seconds.
pub fn value(point: &Point, metric: Metric) -> Option<f64> {
    match metric {
        Metric::Calls => Some(point.calls_per_second),
        Metric::Concurrency => point.concurrency,
        Metric::Latency => point.p99_ns.map(|ns| ns as f64 / 1e9),
        Metric::SelfTime => point.self_concurrency,
        Metric::OffCpu => point.off_cpu_concurrency,
    }
}

/// A value of a metric in words.
pub fn value_text(value: f64, metric: Metric) -> String {
    match metric {
        Metric::Calls => rate_text(value),
        Metric::Latency => duration_text((value * 1e9) as u64, false),
        _ => threads_text(Some(value)),
    }
}

fn plot(watches: &[&Watch], metric: Metric) -> String {
    let series: Vec<Series> = watches
        .iter()
        .map(|watch| Series {
            name: watch.name.clone(),
            points: watch
                .series
                .iter()
                .filter_map(|p| Some((p.seconds, value(p, metric)?)))
                .collect(),
            dashed: false,
        })
        .collect();
    let mut name = metric.title().to_owned();
    name[..1].make_ascii_uppercase();
    let seconds = Axis {
        scale: Scale::Linear,
        mark: &|s| format!("{} s", digits_text(s)),
        name: "",
    };
    let values = Axis {
        scale: Scale::Linear,
        mark: &|v| {
            if v == 0.0 {
                "0".into()
            } else {
                value_text(v, metric)
            }
        },
        name: "",
    };
    let figure = chart::lines(&name, &series, &seconds, &values);
    figure.map_or_else(String::new, |f| f.html())
}

/// How long single calls took; none longer than the longest that was seen.
fn distribution(watch: &Watch, colour: usize) -> Option<String> {
    let beyond = watch.totals.max_ns.saturating_add(1);
    let buckets: Vec<(f64, f64, u64)> = hist_of(&watch.histogram)
        .used()
        .map(|(from, to, count)| (from as f64, to.min(beyond) as f64, count))
        .collect();
    let caption = format!(
        "{}, {} calls",
        watch.name,
        count_text(watch.totals.returned)
    );
    let figure = chart::histogram(&caption, &buckets, colour, &|ns| {
        duration_text(ns as u64, false)
    })?;
    Some(figure.html())
}

/// The page.
pub fn page(session: &Session, metric: Metric, path: Option<&Path>) -> String {
    let title = match path {
        Some(path) => format!("Where the time of {} goes", path.root),
        None => "Kernel functions over time".to_owned(),
    };
    let only = if session.common.text.is_empty() {
        String::new()
    } else {
        format!("<li>only {}</li>", escape(&session.common.text))
    };
    let mut watches: Vec<&Watch> = session.watches.iter().collect();
    watches.sort_by_key(|w| std::cmp::Reverse((w.totals.inside_ns, w.totals.calls)));
    let section = |id, title, body| Section { id, title, body };
    Page {
        title: &title,
        version: env!("CARGO_PKG_VERSION"),
        style: STYLE,
        header: format!(
            "<div class=\"top\"><p class=\"brand\">DeBox <span>inside the kernel</span></p></div>\n\
             <h1>{}</h1>\n<ul class=\"facts\"><li>Linux {}</li><li>{:.1} s</li>{only}</ul>\n",
            escape(&title),
            escape(&kernel_release()),
            session.seconds(),
        ),
        sections: vec![
            section("ways", "The heaviest ways down", path.map_or_else(String::new, ways)),
            section("time", "Over time", over_time(&watches, metric)),
            section("latency", "How long each call took", distributions(&watches)),
            section("all", "All of it", all(&watches)),
            section("notes", "Notes", notes(session, path)),
        ],
        footer: "Inside: threads inside on average (thread-seconds per second). Self: of these in the \
                 function itself and not in another one measured here. Off-CPU: of these not on a CPU.",
        script: None,
    }
    .html()
}

fn over_time(watches: &[&Watch], metric: Metric) -> String {
    let shown = &watches[..watches.len().min(CURVES_MAX)];
    let mut metrics = vec![metric];
    for other in [Metric::Concurrency, Metric::Calls, Metric::Latency] {
        if !metrics.contains(&other) {
            metrics.push(other);
        }
    }
    let figures: String = metrics.iter().map(|m| plot(shown, *m)).collect();
    if figures.is_empty() {
        return String::new();
    }
    let mut html = format!("<div class=\"figures\">{figures}</div>\n");
    if watches.len() > CURVES_MAX {
        let _ = writeln!(
            html,
            "<p class=\"soft\">The {CURVES_MAX} heaviest of {}; all are in the table.</p>",
            watches.len()
        );
    }
    html
}

fn distributions(watches: &[&Watch]) -> String {
    let shown = watches.iter().take(CURVES_MAX).enumerate();
    shown
        .filter_map(|(i, watch)| distribution(watch, i))
        .collect()
}

fn all(watches: &[&Watch]) -> String {
    let rows: Vec<Vec<String>> = watches
        .iter()
        .map(|w| {
            let t = &w.totals;
            let part = |ns: u64| {
                threads_text((w.timed && t.seconds > 0.0).then_some(ns as f64 / 1e9 / t.seconds))
            };
            let time = |ns: Option<u64>| ns.map_or("-".into(), |n| duration_text(n, false));
            let name = match &w.removed {
                Some(why) => format!("{} ({why})", w.name),
                None => w.name.clone(),
            };
            vec![
                name,
                count_text(t.calls),
                threads_text(t.concurrency),
                part(t.self_inside_ns),
                part(t.off_cpu_ns),
                time(t.p50_ns),
                time(t.p99_ns),
                time(Some(t.max_ns).filter(|n| *n > 0)),
                t.inside_now.to_string(),
                w.way.map_or("tracepoint", crate::way::Way::name).into(),
            ]
        })
        .collect();
    html_table(
        &[
            "Function",
            "Calls",
            "Inside",
            "Self",
            "Off-CPU",
            "p50",
            "p99",
            "Max",
            "Inside now",
            "Attached by",
        ],
        &rows,
        &[9],
    )
}

fn notes(session: &Session, path: Option<&Path>) -> String {
    let items: String = path
        .iter()
        .flat_map(|p| p.notes.iter().cloned())
        .chain(session.notes.iter().cloned())
        .chain(session.losses())
        .map(|note| format!("<li>{}</li>", escape(&note)))
        .collect();
    if items.is_empty() {
        return items;
    }
    format!("<ul>{items}</ul>\n")
}

/// Each way: a function below another, with its share as a bar.
fn ways(path: &Path) -> String {
    let mut html = String::new();
    for (i, branch) in path.branches.iter().enumerate() {
        let _ = write!(
            html,
            "<h3>{}</h3>\n<div class=\"scroll\"><table class=\"plain\"><thead><tr><th>Function</th><th class=\"n\">Share</th><th class=\"n\">Self</th><th class=\"n\">Off-CPU</th><th class=\"n\">Calls</th><th class=\"n\">Each</th><th>Beside it</th></tr></thead><tbody>\n",
            if i == 0 {
                "The heaviest way down"
            } else {
                "The next heaviest"
            }
        );
        for (depth, step) in branch.steps.iter().enumerate() {
            let [share, own, off_cpu, calls, each] = step_text(step);
            let others: Vec<String> = branch
                .beside(depth)
                .map(|c| format!("<code>{}</code> {}", escape(&c.function), percent(c.share)))
                .collect();
            let _ = writeln!(
                html,
                "<tr><td style=\"padding-left:{:.1}rem\"><code>{}</code></td><td class=\"n share\"><b style=\"width:{:.1}%\"></b><span>{share}</span></td><td class=\"n\">{own}</td><td class=\"n\">{off_cpu}</td><td class=\"n\">{calls}</td><td class=\"n\">{each}</td><td>{}</td></tr>",
                0.6 + 0.7 * depth as f64,
                escape(&step.function),
                (step.share * 100.0).min(100.0),
                others.join(", ")
            );
        }
        let _ = write!(
            html,
            "</tbody></table></div>\n<p>{}.</p>\n",
            escape(&branch.verdict)
        );
    }
    html
}
