// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a session look as a page, complete in one file?
//!
//! The plots are drawn here, as SVG: no script, no library, nothing fetched.

use debox_output::{count_text, duration_text, escape};
use std::fmt::Write;

use crate::args::Metric;
use crate::auto::Path;
use crate::document::kernel_release;
use crate::session::{Point, Session, Watch, hist_of};
use crate::text::{percent, rate_text, threads_text};

const COLOURS: [&str; 8] = [
    "#1f6fb4", "#d1495b", "#2e8b57", "#c77d0a", "#7b4fb3", "#0f8b8d", "#8c564b", "#5b6770",
];
/// More curves than this cannot be told apart.
const CURVES_MAX: usize = 8;

const STYLE: &str = "
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #ffffff; --dim: #5b6770; --line: #d5dae0; --bar: #1f6fb4; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e9ed; --bg: #14171b; --dim: #9aa5b1; --line: #333a42; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.dim { color: var(--dim); } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: var(--dim); font-size: .85rem; }
td.words { text-align: left; white-space: normal; color: var(--dim); font-size: .85rem; }
code { font: .92em ui-monospace, monospace; } svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--dim); } .grid { stroke: var(--line); stroke-width: 1; }
.key span { display: inline-block; margin-right: 1.2rem; white-space: nowrap; } .key i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; vertical-align: -1px; }
.share { position: relative; min-width: 7rem; } .share b { position: absolute; left: 0; top: 18%; bottom: 18%; background: var(--bar); opacity: .25; border-radius: 2px; } .share span { position: relative; }
.scroll { overflow-x: auto; }
";

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

/// A round number at or above `largest`: 1, 2 or 5 times a power of ten.
pub fn round_up(largest: f64) -> f64 {
    if largest <= 0.0 || !largest.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(largest.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|v| *v >= largest * 0.999_999)
        .unwrap_or(10.0 * power)
}

fn plot(watches: &[&Watch], metric: Metric) -> Option<String> {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 260.0;
    const LEFT: f64 = 70.0;
    const BOTTOM: f64 = 28.0;
    const TOP: f64 = 10.0;
    const RIGHT: f64 = 12.0;
    let mut largest: f64 = 0.0;
    let mut last: f64 = 0.0;
    let mut points = 0;
    for watch in watches {
        for point in &watch.series {
            if let Some(v) = value(point, metric) {
                largest = largest.max(v);
                last = last.max(point.seconds);
                points += 1;
            }
        }
    }
    if points == 0 || last <= 0.0 {
        return None;
    }
    let top = round_up(largest);
    let x = |s: f64| LEFT + s / last * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| TOP + (1.0 - (v / top).min(1.0)) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over time\">",
        metric.title()
    );
    for part in 0..=4 {
        let v = top * f64::from(part) / 4.0;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            WIDTH - RIGHT,
            y(v),
            LEFT - 8.0,
            y(v) + 4.0,
            if part == 0 {
                "0".into()
            } else {
                value_text(v, metric)
            }
        );
    }
    for part in 0..=4 {
        let s = last * f64::from(part) / 4.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{:.1} s</text>",
            x(s),
            HEIGHT - 8.0,
            match part {
                0 => "start",
                4 => "end",
                _ => "middle",
            },
            s
        );
    }
    for (i, watch) in watches.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let line: Vec<String> = watch
            .series
            .iter()
            .filter_map(|p| Some(format!("{:.1},{:.1}", x(p.seconds), y(value(p, metric)?))))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\" points=\"{}\"/>",
            line.join(" ")
        );
        for p in &watch.series {
            if let Some(v) = value(p, metric) {
                let _ = write!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>{} at {:.1} s: {}</title></circle>",
                    x(p.seconds),
                    y(v),
                    escape(&watch.name),
                    p.seconds,
                    value_text(v, metric)
                );
            }
        }
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// How long single calls took, on a logarithmic axis: buckets (from, to,
/// count), of which none was longer than `max_ns`.
fn distribution(buckets: &[(u64, u64, u64)], max_ns: u64, colour: &str) -> Option<String> {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 130.0;
    const LEFT: f64 = 70.0;
    const BOTTOM: f64 = 24.0;
    const TOP: f64 = 8.0;
    const RIGHT: f64 = 12.0;
    let first = buckets.first()?.0.max(1) as f64;
    let last = (max_ns.saturating_add(1) as f64).max(first * 2.0);
    let most = buckets.iter().map(|b| b.2).max()?.max(1);
    let x = |ns: f64| {
        LEFT + (ns.clamp(first, last) / first).ln() / (last / first).ln() * (WIDTH - LEFT - RIGHT)
    };
    let y = |n: u64| TOP + (1.0 - n as f64 / most as f64) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"distribution of latency\">\
         <line class=\"grid\" x1=\"{LEFT}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
         <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
        WIDTH - RIGHT,
        y(0),
        LEFT - 8.0,
        TOP + 10.0,
        count_text(most),
    );
    for (from, to, count) in buckets {
        let (left, right) = (x(*from as f64), x(*to as f64));
        let _ = write!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{} to {}: {} calls</title></rect>",
            y(*count),
            (right - left - 0.5).max(1.0),
            y(0) - y(*count),
            duration_text(*from, false),
            duration_text((*to).min(max_ns.saturating_add(1)), false),
            count_text(*count)
        );
    }
    for part in 0..=4 {
        let ns = first * (last / first).powf(f64::from(part) / 4.0);
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            x(ns),
            HEIGHT - 6.0,
            match part {
                0 => "start",
                4 => "end",
                _ => "middle",
            },
            duration_text(ns as u64, false)
        );
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// The page.
pub fn page(session: &Session, metric: Metric, path: Option<&Path>) -> String {
    let title = match path {
        Some(path) => format!("Where the time of {} goes", path.root),
        None => "Kernel functions over time".to_owned(),
    };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n\
         <p class=\"dim\">Linux {1}, {2:.1} s{3}</p>\n",
        escape(&title),
        escape(&kernel_release()),
        session.seconds(),
        if session.common.text.is_empty() {
            String::new()
        } else {
            format!(", only {}", escape(&session.common.text))
        }
    );
    if let Some(path) = path {
        ways(&mut html, path);
    }
    let mut watches: Vec<&Watch> = session.watches.iter().collect();
    watches.sort_by_key(|w| std::cmp::Reverse((w.totals.inside_ns, w.totals.calls)));
    if !watches.is_empty() {
        let shown: Vec<&Watch> = watches.iter().take(CURVES_MAX).copied().collect();
        html.push_str("<p class=\"key\">");
        for (i, watch) in shown.iter().enumerate() {
            let _ = write!(
                html,
                "<span><i style=\"background:{}\"></i><code>{}</code></span>",
                COLOURS[i % COLOURS.len()],
                escape(&watch.name)
            );
        }
        html.push_str("</p>\n");
        let mut metrics = vec![metric];
        for other in [Metric::Concurrency, Metric::Calls, Metric::Latency] {
            if !metrics.contains(&other) {
                metrics.push(other);
            }
        }
        for metric in metrics {
            if let Some(svg) = plot(&shown, metric) {
                let mut name = metric.title().to_owned();
                name[..1].make_ascii_uppercase();
                let _ = write!(html, "<h2>{name}</h2>\n{svg}\n");
            }
        }
        let mut title = "<h2>How long each call took</h2>\n";
        for (i, watch) in shown.iter().enumerate() {
            let buckets: Vec<_> = hist_of(&watch.histogram).used().collect();
            let colour = COLOURS[i % COLOURS.len()];
            if let Some(svg) = distribution(&buckets, watch.totals.max_ns, colour) {
                let _ = write!(
                    html,
                    "{title}<p class=\"key\"><span><i style=\"background:{colour}\"></i><code>{}</code>, {} calls</span></p>\n{svg}\n",
                    escape(&watch.name),
                    count_text(watch.totals.returned)
                );
                title = "";
            }
        }
        if watches.len() > CURVES_MAX {
            let _ = writeln!(
                html,
                "<p class=\"dim\">The {CURVES_MAX} heaviest of {}; all are in the table.</p>",
                watches.len()
            );
        }
        html.push_str(
            "<h2>All of it</h2>\n<div class=\"scroll\"><table><tr><th>Function</th><th>Calls</th>\
             <th>Inside</th><th>Self</th><th>Off-CPU</th><th>p50</th><th>p99</th><th>Max</th>\
             <th>Inside now</th><th>Attached by</th></tr>\n",
        );
        for w in watches {
            let t = &w.totals;
            let part = |ns: u64| {
                threads_text((w.timed && t.seconds > 0.0).then_some(ns as f64 / 1e9 / t.seconds))
            };
            let time = |ns: Option<u64>| ns.map_or("-".into(), |n| duration_text(n, false));
            let _ = writeln!(
                html,
                "<tr><td><code>{}</code>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&w.name),
                w.removed
                    .as_ref()
                    .map(|r| format!(" <span class=\"dim\">({})</span>", escape(r)))
                    .unwrap_or_default(),
                count_text(t.calls),
                threads_text(t.concurrency),
                part(t.self_inside_ns),
                part(t.off_cpu_ns),
                time(t.p50_ns),
                time(t.p99_ns),
                time(Some(t.max_ns).filter(|n| *n > 0)),
                t.inside_now,
                w.way.map_or("tracepoint", crate::engine::Way::name)
            );
        }
        html.push_str("</table></div>\n<p class=\"dim\">Inside: threads inside on average (thread-seconds per second). Self: of these in the function itself and not in another one measured here. Off-CPU: of these not on a CPU.</p>\n");
    }
    let notes: Vec<String> = path
        .iter()
        .flat_map(|p| p.notes.iter().cloned())
        .chain(session.notes.iter().cloned())
        .chain(session.losses())
        .collect();
    if !notes.is_empty() {
        html.push_str("<h2>Notes</h2>\n<ul>");
        for note in notes {
            let _ = write!(html, "<li>{}</li>", escape(&note));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</body></html>\n");
    html
}

fn ways(html: &mut String, path: &Path) {
    for (i, branch) in path.branches.iter().enumerate() {
        let _ = write!(
            html,
            "<h2>{}</h2>\n<div class=\"scroll\"><table><tr><th>Function</th><th>Share</th><th>Self</th><th>Off-CPU</th><th>Calls</th><th>Each</th><th style=\"text-align:left\">Beside it</th></tr>\n",
            if i == 0 {
                "The heaviest way down"
            } else {
                "The next heaviest"
            }
        );
        for (depth, step) in branch.steps.iter().enumerate() {
            let next = branch.steps.get(depth + 1).map(|s| s.function.as_str());
            let others: Vec<String> = step
                .callees
                .iter()
                .filter(|c| Some(c.function.as_str()) != next && c.share >= 0.02)
                .take(3)
                .map(|c| format!("<code>{}</code> {}", escape(&c.function), percent(c.share)))
                .collect();
            let _ = writeln!(
                html,
                "<tr><td style=\"padding-left:{:.1}rem\"><code>{}</code></td><td class=\"share\"><b style=\"width:{:.1}%\"></b><span>{}</span></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"words\">{}</td></tr>",
                0.6 + 0.7 * depth as f64,
                escape(&step.function),
                (step.share * 100.0).min(100.0),
                percent(step.share),
                step.self_share.map_or("?".into(), percent),
                step.off_cpu_share.map_or("?".into(), percent),
                step.calls.map_or("?".into(), count_text),
                step.calls
                    .filter(|n| *n > 0)
                    .map_or("?".into(), |n| duration_text(step.inside_ns / n, false)),
                others.join(", ")
            );
        }
        let _ = write!(
            html,
            "</table></div>\n<p>{}.</p>\n",
            escape(&branch.verdict)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (largest, top) in [
            (0.0, 1.0),
            (0.4, 0.5),
            (0.5, 0.5),
            (7.0, 10.0),
            (1234.0, 2000.0),
        ] {
            assert!((round_up(largest) - top).abs() < 1e-9, "{largest}");
        }
    }

    #[test]
    fn a_distribution_has_a_bar_for_each_bucket() {
        let svg = distribution(&[(512, 1024, 3), (4096, 8192, 1)], 5000, "red").unwrap();
        assert_eq!(svg.matches("<rect").count(), 2);
        // The last bucket ends at the longest call.
        assert!(svg.contains("to 5.00 µs: 1 calls"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(distribution(&[], 0, "red").is_none());
        assert!(
            !distribution(&[(0, 1, 9)], 0, "red")
                .unwrap()
                .contains("NaN")
        );
    }
}
