// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do numbers become pictures? Inline SVG that takes its colours from the
//! page, so one picture serves light and dark.

use debox_output::escape;
use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    Linear,
    Log,
}

/// One bar: parts that are stacked, and the interval of the whole.
pub struct Bar {
    pub name: String,
    /// (value, index of the legend's colour)
    pub parts: Vec<(f64, usize)>,
    pub interval: Option<(f64, f64)>,
    pub text: String,
}

pub const PARTS: [&str; 4] = ["--cpu", "--blocked", "--runq", "--idle"];

/// Marks of an axis from `low` to `high`.
fn ticks(scale: Scale, low: f64, high: f64) -> Vec<f64> {
    match scale {
        Scale::Log => {
            let mut found = Vec::new();
            let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
            let few = to - from <= 2;
            for decade in from..=to {
                for factor in if few {
                    &[1.0, 2.0, 5.0][..]
                } else {
                    &[1.0][..]
                } {
                    let v = factor * 10f64.powi(decade);
                    if v >= low * 0.999 && v <= high * 1.001 {
                        found.push(v);
                    }
                }
            }
            // At most about ten.
            let step = found.len().div_ceil(10).max(1);
            found.into_iter().step_by(step).collect()
        }
        Scale::Linear => {
            let rough = (high - low) / 5.0;
            let power = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0]
                .into_iter()
                .map(|f| f * power)
                .find(|s| *s >= rough)
                .unwrap_or(power * 10.0);
            let mut v = (low / step).ceil() * step;
            let mut found = Vec::new();
            while v <= high * 1.0001 {
                found.push(v);
                v += step;
            }
            found
        }
    }
}

fn place(scale: Scale, v: f64, low: f64, high: f64) -> f64 {
    let part = match scale {
        Scale::Linear => (v - low) / (high - low),
        Scale::Log => (v.max(low).ln() - low.ln()) / (high.ln() - low.ln()),
    };
    part.clamp(0.0, 1.0)
}

fn legend(names: &[String], colours: &[String]) -> String {
    if names.len() < 2 {
        return String::new();
    }
    let items: String = names
        .iter()
        .zip(colours)
        .map(|(n, c)| {
            format!(
                "<li><i style=\"background:var({c})\"></i>{}</li>",
                escape(n)
            )
        })
        .collect();
    format!("<ul class=\"legend\">{items}</ul>")
}

fn figure(caption: &str, svg: &str, legend: &str) -> String {
    format!(
        "<figure><figcaption>{}</figcaption>{svg}{legend}</figure>\n",
        escape(caption)
    )
}

/// Horizontal bars with their values; `names` is the legend of the parts.
pub fn bars(
    caption: &str,
    bars: &[Bar],
    scale: Scale,
    names: &[&str],
    mark: &dyn Fn(f64) -> String,
) -> String {
    if bars.is_empty() {
        return String::new();
    }
    const ROW: f64 = 24.0;
    const WIDTH: f64 = 640.0;
    let label = bars
        .iter()
        .map(|b| b.name.chars().count())
        .max()
        .unwrap_or(0) as f64
        * 6.6
        + 14.0;
    let value = bars
        .iter()
        .map(|b| b.text.chars().count())
        .max()
        .unwrap_or(0) as f64
        * 6.6
        + 12.0;
    let (x0, x1) = (label, WIDTH - value);
    let total = |b: &Bar| b.parts.iter().map(|p| p.0).sum::<f64>();
    let high = bars
        .iter()
        .map(|b| {
            b.interval
                .map_or(0.0, |i| i.1)
                .min(total(b) * 2.0)
                .max(total(b))
        })
        .fold(0.0, f64::max);
    if high <= 0.0 {
        return String::new();
    }
    let low = match scale {
        Scale::Linear => 0.0,
        Scale::Log => {
            let least = bars
                .iter()
                .map(total)
                .filter(|v| *v > 0.0)
                .fold(f64::MAX, f64::min);
            10f64.powf((least / 1.5).log10().floor())
        }
    };
    let at = |v: f64| x0 + place(scale, v, low, high) * (x1 - x0);
    let height = bars.len() as f64 * ROW + 26.0;
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(caption)
    );
    for t in ticks(scale, low, high) {
        let x = at(t);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height - 20.0,
            height - 6.0,
            escape(&mark(t))
        );
    }
    for (i, b) in bars.iter().enumerate() {
        let y = i as f64 * ROW;
        let middle = y + ROW / 2.0;
        let _ = write!(
            svg,
            "<text class=\"v\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            x0 - 7.0,
            middle + 4.0,
            escape(&b.name)
        );
        let mut sum = 0.0;
        for (v, colour) in &b.parts {
            let from = at(if sum > 0.0 { sum } else { low });
            sum += v.max(0.0);
            let to = at(sum);
            let _ = write!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"1.5\" \
                 style=\"fill:var({})\"><title>{}: {}</title></rect>",
                y + 4.0,
                (to - from).max(0.5),
                ROW - 8.0,
                PARTS[colour % PARTS.len()],
                escape(names.get(*colour).unwrap_or(&"")),
                escape(&mark(*v))
            );
        }
        let mut end = at(sum);
        if let Some((a, z)) = b.interval {
            let (a, z) = (at(a), at(z));
            end = end.max(z);
            let _ = write!(
                svg,
                "<path class=\"whisker\" d=\"M{a:.1} {middle:.1}H{z:.1}M{a:.1} {:.1}v8M{z:.1} {:.1}v8\"/>",
                middle - 4.0,
                middle - 4.0
            );
        }
        let _ = write!(
            svg,
            "<text class=\"v\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            end + 6.0,
            middle + 4.0,
            escape(&b.text)
        );
    }
    svg += "</svg>";
    let colours: Vec<String> = PARTS.iter().map(|c| (*c).to_owned()).collect();
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    figure(caption, &svg, &legend(&names, &colours))
}

pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over a logarithmic x axis, whose marks are the values that occur.
pub fn lines(
    caption: &str,
    series: &[Series],
    scale: Scale,
    x_mark: &dyn Fn(f64) -> String,
    y_mark: &dyn Fn(f64) -> String,
    y_name: &str,
) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 330.0;
    const LEFT: f64 = 66.0;
    const RIGHT: f64 = 14.0;
    const TOP: f64 = 22.0;
    const BOTTOM: f64 = 34.0;
    let all = || series.iter().flat_map(|s| s.points.iter());
    let mut xs: Vec<f64> = all().map(|p| p.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < 2 {
        return String::new();
    }
    let most = all().map(|p| p.1).fold(0.0, f64::max);
    let least = all()
        .map(|p| p.1)
        .filter(|v| *v > 0.0)
        .fold(f64::MAX, f64::min);
    let (low, high) = match scale {
        Scale::Linear => (0.0, most * 1.05),
        Scale::Log => (least / 1.3, most * 1.3),
    };
    let (x_low, x_high) = (xs[0], xs[xs.len() - 1]);
    let x = |v: f64| LEFT + place(Scale::Log, v, x_low, x_high) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - place(scale, v, low, high) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\
         <text x=\"4\" y=\"12\">{}</text>",
        escape(caption),
        escape(y_name)
    );
    for t in ticks(scale, low, high) {
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            WIDTH - RIGHT,
            y(t),
            LEFT - 6.0,
            y(t) + 4.0,
            escape(&y_mark(t))
        );
    }
    let step = xs.len().div_ceil(9);
    for v in xs.iter().step_by(step) {
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\"/>\
             <text x=\"{0:.1}\" y=\"{3:.1}\" text-anchor=\"{5}\">{4}</text>",
            x(*v),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 5.0,
            HEIGHT - BOTTOM + 19.0,
            escape(&x_mark(*v)),
            // The last one's middle would stand beyond the edge.
            if x(*v) > WIDTH - 30.0 {
                "end"
            } else {
                "middle"
            }
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>",
        WIDTH - RIGHT,
        HEIGHT - BOTTOM
    );
    let mut colours = Vec::new();
    for (i, s) in series.iter().enumerate() {
        let colour = format!("--c{}", i % 8);
        let path: Vec<String> = s
            .points
            .iter()
            .map(|(a, b)| format!("{:.1} {:.1}", x(*a), y(*b)))
            .collect();
        if !path.is_empty() {
            let _ = write!(
                svg,
                "<path class=\"line\" style=\"stroke:var({colour})\" d=\"M{}\"/>",
                path.join("L")
            );
        }
        for (a, b) in &s.points {
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" style=\"fill:var({colour})\">\
                 <title>{}, {}: {}</title></circle>",
                x(*a),
                y(*b),
                escape(&s.name),
                escape(&x_mark(*a)),
                escape(&y_mark(*b))
            );
        }
        colours.push(colour);
    }
    svg += "</svg>";
    let names: Vec<String> = series.iter().map(|s| s.name.clone()).collect();
    figure(caption, &svg, &legend(&names, &colours))
}

/// Ratios with their intervals around 1.
pub fn ratios(caption: &str, rows: &[(String, f64, f64, f64)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    const ROW: f64 = 20.0;
    const WIDTH: f64 = 760.0;
    let label = rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0) as f64 * 6.4 + 14.0;
    let far = rows
        .iter()
        .flat_map(|r| [r.1, 1.0 / r.1])
        .fold(1.2, f64::max)
        .min(64.0)
        * 1.2;
    let (low, high) = (1.0 / far, far);
    let at = |v: f64| label + place(Scale::Log, v, low, high) * (WIDTH - label - 60.0);
    let height = rows.len() as f64 * ROW + 26.0;
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(caption)
    );
    for t in ticks(Scale::Log, low, high) {
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{1:.1}\"/>\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{t}×</text>",
            at(t),
            height - 20.0,
            height - 6.0
        );
    }
    let _ = write!(
        svg,
        "<line class=\"whisker\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{1:.1}\"/>",
        at(1.0),
        height - 20.0
    );
    for (i, (name, ratio, from, to)) in rows.iter().enumerate() {
        let y = i as f64 * ROW + ROW / 2.0;
        let colour = if *ratio < 1.0 { "--c2" } else { "--bad" };
        let _ = write!(
            svg,
            "<text class=\"v\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" style=\"stroke:var({colour});stroke-width:2\"/>\
             <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\" style=\"fill:var({colour})\"/>\
             <text class=\"v\" x=\"{:.1}\" y=\"{:.1}\">{ratio:.2}×</text>",
            label - 7.0,
            y + 4.0,
            escape(name),
            at(*from),
            at(*to),
            at(*ratio),
            WIDTH - 52.0,
            y + 4.0
        );
    }
    svg += "</svg>";
    figure(caption, &svg, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(
            ticks(Scale::Linear, 0.0, 10.0),
            [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        );
        assert_eq!(ticks(Scale::Log, 1.0, 1000.0), [1.0, 10.0, 100.0, 1000.0]);
        for (low, high) in [(0.3, 7.0), (20.0, 4e6), (0.9, 1.1)] {
            for t in ticks(Scale::Log, low, high) {
                assert!(t >= low * 0.99 && t <= high * 1.01);
            }
        }
    }

    #[test]
    fn text_cannot_leave_its_place() {
        let svg = bars(
            "<b>",
            &[Bar {
                name: "<i>".into(),
                parts: vec![(1.0, 0)],
                interval: None,
                text: "1".into(),
            }],
            Scale::Linear,
            &["x"],
            &|v| v.to_string(),
        );
        assert!(!svg.contains("<b>") && !svg.contains("<i>"));
    }
}
