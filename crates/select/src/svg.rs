// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a figure with a few curves drawn?

use debox_output::escape;
use std::fmt::Write;

pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Native grey, ours strong, epoll thin: see `STYLES`.
    pub style: usize,
}

pub struct Figure {
    pub title: String,
    pub x: String,
    pub y: String,
    pub curves: Vec<Curve>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 58.0;
/// Colours that are told apart without seeing colours, and dashes.
const STYLES: [(&str, &str, f64); 6] = [
    ("#c1440e", "", 2.0),
    ("#0b5fa5", "", 2.6),
    ("#2a2a2a", "5 4", 1.6),
    ("#c1440e", "2 3", 2.0),
    ("#0b5fa5", "2 3", 2.6),
    ("#2a2a2a", "1 4", 1.6),
];

/// A step of 1, 2 or 5 times a power of ten, for about five of them.
fn step(most: f64) -> f64 {
    let raw = (most / 5.0).max(1e-9);
    let power = 10f64.powf(raw.log10().floor());
    let first = raw / power;
    power
        * if first <= 1.0 {
            1.0
        } else if first <= 2.0 {
            2.0
        } else if first <= 5.0 {
            5.0
        } else {
            10.0
        }
}

fn label(value: f64) -> String {
    if value >= 10_000.0 {
        format!("{}k", (value / 100.0).round() / 10.0)
    } else if value.fract() == 0.0 {
        format!("{value}")
    } else {
        format!("{value:.1}")
    }
}

impl Figure {
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|c| &c.points);
        let most_x = points().map(|p| p.0).fold(1.0, f64::max);
        let step_y = step(points().map(|p| p.1).fold(1e-9, f64::max) * 1.02);
        let most_y = (points().map(|p| p.1).fold(1e-9, f64::max) * 1.02 / step_y).ceil() * step_y;
        let step_x = step(most_x);
        let (plot_w, plot_h) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let at_x = |x: f64| LEFT + x / most_x * plot_w;
        let at_y = |y: f64| TOP + plot_h - y / most_y * plot_h;
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"DejaVu Sans, sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
            escape(&self.title)
        );
        let mut y = 0.0;
        while y <= most_y + step_y / 2.0 {
            let _ = writeln!(
                s,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#dddddd\"/><text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
                LEFT + plot_w,
                at_y(y),
                LEFT - 8.0,
                at_y(y) + 4.0,
                label(y)
            );
            y += step_y;
        }
        let mut x = 0.0;
        while x <= most_x + step_x * 0.01 {
            let _ = writeln!(
                s,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"#888888\"/><text x=\"{0:.1}\" y=\"{3:.1}\" text-anchor=\"middle\">{4}</text>",
                at_x(x),
                TOP + plot_h,
                TOP + plot_h + 5.0,
                TOP + plot_h + 20.0,
                label(x)
            );
            x += step_x;
        }
        let _ = writeln!(
            s,
            "<path d=\"M{LEFT} {TOP}V{0:.1}H{1:.1}\" fill=\"none\" stroke=\"#444444\"/>\n\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"middle\">{4}</text>\n\
             <text transform=\"translate(18 {5:.1}) rotate(-90)\" text-anchor=\"middle\">{6}</text>",
            TOP + plot_h,
            LEFT + plot_w,
            LEFT + plot_w / 2.0,
            HEIGHT - 14.0,
            escape(&self.x),
            TOP + plot_h / 2.0,
            escape(&self.y)
        );
        for (i, curve) in self.curves.iter().enumerate() {
            let (colour, dash, width) = STYLES[curve.style % STYLES.len()];
            let path: Vec<String> = curve
                .points
                .iter()
                .map(|p| format!("{:.1},{:.1}", at_x(p.0), at_y(p.1)))
                .collect();
            let _ = writeln!(
                s,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dash}\"/>",
                path.join(" ")
            );
            for p in &curve.points {
                let _ = writeln!(
                    s,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{colour}\"/>",
                    at_x(p.0),
                    at_y(p.1)
                );
            }
            let row = TOP + 8.0 + 22.0 * i as f64;
            let key = LEFT + plot_w + 18.0;
            let _ = writeln!(
                s,
                "<line x1=\"{key}\" x2=\"{}\" y1=\"{row}\" y2=\"{row}\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dash}\"/><text x=\"{}\" y=\"{}\">{}</text>",
                key + 28.0,
                key + 36.0,
                row + 4.0,
                escape(&curve.name)
            );
        }
        s.push_str("</svg>\n");
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_curves_and_escapes_its_words() {
        let svg = Figure {
            title: "a < b".into(),
            x: "x".into(),
            y: "y & z".into(),
            curves: vec![Curve {
                name: "one".into(),
                points: vec![(0.0, 1.0), (10.0, 12_000.0)],
                style: 0,
            }],
        }
        .svg();
        assert!(svg.contains("a &lt; b") && svg.contains("y &amp; z") && svg.contains("polyline"));
        assert!(svg.contains("10k"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step(2000.0), 500.0);
        assert_eq!(step(100.0), 20.0);
        assert_eq!(step(1.0), 0.2);
    }
}
