// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do numbers become pictures? SVG that takes its colours from the page, so
//! one picture serves light and dark; in a file of its own it brings them along.

use crate::{count_text, escape};
use std::fmt::Write;

const STYLE: &str = include_str!("../assets/page.css");

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
            let step = round_up((high - low) / 5.0);
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

fn place(scale: Scale, v: f64, low: f64, high: f64) -> f64 {
    let part = match scale {
        Scale::Linear => (v - low) / (high - low),
        Scale::Log => (v.max(low).ln() - low.ln()) / (high.ln() - low.ln()),
    };
    part.clamp(0.0, 1.0)
}

/// A picture with what it shows, and a legend of two names or more.
pub struct Figure {
    caption: String,
    size: (f64, f64),
    /// What stands in the svg element.
    body: String,
    /// Colour (a variable of the page) and name.
    legend: Vec<(String, String)>,
}

impl Figure {
    fn of(
        caption: &str,
        size: (f64, f64),
        body: String,
        names: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let mut legend: Vec<_> = names.into_iter().collect();
        if legend.len() < 2 {
            legend.clear();
        }
        Self {
            caption: caption.to_owned(),
            size,
            body,
            legend,
        }
    }

    /// What it shows, as a part of a file's name.
    pub fn slug(&self) -> String {
        let lower = self.caption.to_lowercase();
        let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|w| !w.is_empty()).collect();
        words.join("-")
    }

    /// In a page.
    pub fn html(&self) -> String {
        let (width, height) = self.size;
        let caption = escape(&self.caption);
        let mut out = format!(
            "<figure><figcaption>{caption}</figcaption><svg class=\"chart\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{caption}\">{}</svg>",
            self.body
        );
        if !self.legend.is_empty() {
            out += "<ul class=\"legend\">";
            for (colour, name) in &self.legend {
                let _ = write!(
                    out,
                    "<li><i style=\"background:var({colour})\"></i>{}</li>",
                    escape(name)
                );
            }
            out += "</ul>";
        }
        out + "</figure>\n"
    }

    /// As a file of its own, caption above and legend below.
    pub fn file(&self) -> String {
        const ABOVE: f64 = 30.0;
        let (width, height) = self.size;
        let (mut x, mut y) = (10.0, ABOVE + height + 16.0);
        let mut legend = String::new();
        for (colour, name) in &self.legend {
            let need = 26.0 + 6.8 * name.chars().count() as f64;
            if x + need > width && x > 10.0 {
                (x, y) = (10.0, y + 18.0);
            }
            let _ = write!(
                legend,
                "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"10\" height=\"10\" rx=\"2\" style=\"fill:var({colour})\"/>\
                 <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
                y - 9.0,
                x + 15.0,
                escape(name)
            );
            x += need;
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {:.0}\"><style>{}</style>\
             <text class=\"v\" x=\"10\" y=\"18\" style=\"font-weight:600;font-size:14px\">{}</text>\
             <g transform=\"translate(0 {ABOVE})\">{}</g>{legend}</svg>\n",
            if self.legend.is_empty() {
                ABOVE + height
            } else {
                y + 10.0
            },
            file_style(),
            escape(&self.caption),
            self.body
        )
    }
}

/// The page's colours and the rules for charts, for an svg element alone.
fn file_style() -> String {
    let block = |head: &str| {
        let from = STYLE.find(head).expect("the style has its colours") + head.len();
        let to = STYLE[from..].find('}').expect("a block ends") + from;
        let colours = STYLE[from..to].split(';').map(str::trim);
        let colours: Vec<&str> = colours.filter(|c| c.starts_with("--")).collect();
        colours.join(";")
    };
    let rules: Vec<&str> = STYLE
        .lines()
        .filter_map(|l| l.strip_prefix("svg.chart "))
        .filter(|l| !l.starts_with('{'))
        .collect();
    format!(
        "svg{{{}}}@media (prefers-color-scheme: dark){{svg{{{}}}}}\
         svg{{font-family:system-ui,'DejaVu Sans',sans-serif;background:var(--card)}}{}",
        block(":root {"),
        block(":root:not([data-theme=\"light\"]) {"),
        rules.join("")
    )
}

/// Horizontal bars with their values; `names` is the legend of the parts.
pub fn bars(
    caption: &str,
    bars: &[Bar],
    scale: Scale,
    names: &[&str],
    mark: &dyn Fn(f64) -> String,
) -> Option<Figure> {
    if bars.is_empty() {
        return None;
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
        return None;
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
    let mut svg = String::new();
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
    let legend = PARTS.iter().zip(names);
    let legend = legend.map(|(c, n)| ((*c).to_owned(), (*n).to_owned()));
    Some(Figure::of(caption, (WIDTH, height), svg, legend))
}

/// One line of a picture; each has the next of the page's eight colours.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// It goes with the line before it, and has its colour.
    pub dashed: bool,
}

/// An axis: how it goes, how its marks are written, and what it shows.
pub struct Axis<'a> {
    pub scale: Scale,
    pub mark: &'a dyn Fn(f64) -> String,
    pub name: &'a str,
}

const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 34.0;

fn grid_line(svg: &mut String, right: f64, y: f64, mark: &str) {
    let _ = write!(
        svg,
        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 6.0,
        y + 4.0,
        escape(mark)
    );
}

/// The line below, with its marks and what it shows.
fn x_axis(svg: &mut String, (width, height): (f64, f64), marks: &[(f64, String)], name: &str) {
    let (y, right) = (height - BOTTOM, width - RIGHT);
    let mut free = right - 6.6 * name.chars().count() as f64 - 12.0;
    if name.is_empty() {
        free = f64::MAX;
    }
    for (x, mark) in marks {
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\"/>",
            y + 5.0
        );
        if *x > free {
            continue;
        }
        let _ = write!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            y + 19.0,
            // The last one's middle would stand beyond the edge.
            if *x > width - 30.0 { "end" } else { "middle" },
            escape(mark)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        y + 19.0,
        escape(name)
    );
}

/// Lines with a dot at each value. A logarithmic x axis has its marks at the
/// values that occur; a linear one begins at zero.
pub fn lines(caption: &str, series: &[Series], x_is: &Axis, y_is: &Axis) -> Option<Figure> {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 330.0;
    let all = || series.iter().flat_map(|s| s.points.iter());
    let mut xs: Vec<f64> = all().map(|p| p.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (Some(first), Some(&last)) = (xs.first(), xs.last()) else {
        return None;
    };
    let x_low = match x_is.scale {
        Scale::Linear => 0.0,
        Scale::Log => *first,
    };
    let most = all().map(|p| p.1).fold(0.0, f64::max);
    let least = all()
        .map(|p| p.1)
        .filter(|v| *v > 0.0)
        .fold(f64::MAX, f64::min);
    let (low, high) = match y_is.scale {
        Scale::Linear => (0.0, most * 1.05),
        Scale::Log => (least / 1.3, most * 1.3),
    };
    if last <= x_low || high <= low {
        return None;
    }
    let x = |v: f64| LEFT + place(x_is.scale, v, x_low, last) * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - place(y_is.scale, v, low, high) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!("<text x=\"4\" y=\"12\">{}</text>", escape(y_is.name));
    for t in ticks(y_is.scale, low, high) {
        grid_line(&mut svg, WIDTH - RIGHT, y(t), &(y_is.mark)(t));
    }
    let marks = match x_is.scale {
        Scale::Linear => ticks(Scale::Linear, 0.0, last),
        Scale::Log => {
            let step = xs.len().div_ceil(9);
            xs.iter().copied().step_by(step).collect()
        }
    };
    let marks: Vec<_> = marks.iter().map(|v| (x(*v), (x_is.mark)(*v))).collect();
    x_axis(&mut svg, (WIDTH, HEIGHT), &marks, x_is.name);
    let mut legend = Vec::new();
    let mut whole = 0;
    for s in series {
        whole += usize::from(!s.dashed);
        let colour = format!("--c{}", whole.saturating_sub(1) % 8);
        let dash = if s.dashed {
            ";stroke-dasharray:4 3"
        } else {
            ""
        };
        let path: Vec<String> = s
            .points
            .iter()
            .map(|(a, b)| format!("{:.1} {:.1}", x(*a), y(*b)))
            .collect();
        if !path.is_empty() {
            let _ = write!(
                svg,
                "<path class=\"line\" style=\"stroke:var({colour}){dash}\" d=\"M{}\"/>",
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
                escape(&(x_is.mark)(*a)),
                escape(&(y_is.mark)(*b))
            );
        }
        let name = if s.dashed {
            format!("{} (dashed)", s.name)
        } else {
            s.name.clone()
        };
        legend.push((colour, name));
    }
    Some(Figure::of(caption, (WIDTH, HEIGHT), svg, legend))
}

/// How often which value: (from, to, count) over a logarithmic axis.
pub fn histogram(
    caption: &str,
    buckets: &[(f64, f64, u64)],
    colour: usize,
    mark: &dyn Fn(f64) -> String,
) -> Option<Figure> {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 150.0;
    let first = buckets.first()?.0.max(1.0);
    let last = buckets.last()?.1.max(first * 2.0);
    let most = buckets.iter().map(|b| b.2).max()?.max(1);
    let x = |v: f64| LEFT + place(Scale::Log, v, first, last) * (WIDTH - LEFT - RIGHT);
    let y = |n: u64| {
        HEIGHT - BOTTOM - place(Scale::Linear, n as f64, 0.0, most as f64) * (HEIGHT - TOP - BOTTOM)
    };
    let mut svg = String::new();
    grid_line(&mut svg, WIDTH - RIGHT, y(most), &count_text(most));
    for (from, to, count) in buckets {
        let (left, right) = (x(*from), x(*to));
        let _ = write!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
             style=\"fill:var(--c{})\"><title>{} to {}: {}</title></rect>",
            y(*count),
            (right - left - 0.5).max(1.0),
            y(0) - y(*count),
            colour % 8,
            escape(&mark(*from)),
            escape(&mark(*to)),
            count_text(*count)
        );
    }
    let marks: Vec<(f64, String)> = ticks(Scale::Log, first, last)
        .into_iter()
        .map(|v| (x(v), mark(v)))
        .collect();
    x_axis(&mut svg, (WIDTH, HEIGHT), &marks, "");
    Some(Figure::of(caption, (WIDTH, HEIGHT), svg, []))
}

/// Ratios with their intervals around 1.
pub fn ratios(caption: &str, rows: &[(String, f64, f64, f64)]) -> Option<Figure> {
    if rows.is_empty() {
        return None;
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
    let mut svg = String::new();
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
    Some(Figure::of(caption, (WIDTH, height), svg, []))
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
    fn text_cannot_leave_its_place() {
        let axis = || Axis {
            scale: Scale::Linear,
            mark: &|v| format!("<{v}>"),
            name: "<y>",
        };
        let series = [1.0, 2.0].map(|v| Series {
            name: "<s>".into(),
            points: vec![(v, v), (2.0 * v, v)],
            dashed: false,
        });
        let bar = Bar {
            name: "<i>".into(),
            parts: vec![(1.0, 0)],
            interval: None,
            text: "<t>".into(),
        };
        let figures = [
            lines("<b>", &series, &axis(), &axis()),
            bars("<b>", &[bar], Scale::Linear, &["<x>"], &|v| {
                format!("<{v}>")
            }),
            histogram("<b>", &[(1.0, 2.0, 1)], 0, &|v| format!("<{v}>")),
            ratios("<b>", &[("<i>".into(), 1.0, 0.9, 1.1)]),
        ];
        for figure in figures.into_iter().flatten() {
            for out in [figure.html(), figure.file()] {
                for foreign in ["<b>", "<i>", "<s>", "<t>", "<x>", "<y>", "<0", "<1", "<2"] {
                    assert!(!out.contains(foreign), "{foreign} in {out}");
                }
            }
        }
    }

    #[test]
    fn a_file_brings_its_colours_along() {
        let style = file_style();
        for needle in [
            "--c0: #d9542b",
            "prefers-color-scheme: dark",
            ".line { fill: none",
        ] {
            assert!(style.contains(needle), "{needle} in {style}");
        }
        assert!(!style.contains("svg.chart"));
    }

    #[test]
    fn a_line_needs_two_places() {
        let axis = || Axis {
            scale: Scale::Log,
            mark: &|v| v.to_string(),
            name: "",
        };
        let one = Series {
            name: String::new(),
            points: vec![(3.0, 1.0)],
            dashed: false,
        };
        assert!(lines("", &[one], &axis(), &axis()).is_none());
        assert!(lines("", &[], &axis(), &axis()).is_none());
    }
}
