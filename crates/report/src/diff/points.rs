// SPDX-License-Identifier: MIT OR Apache-2.0
//! What changed between two groups of hosts, or two stretches of their time, and how sure is
//! that?
//!
//! Of each side there are points: of a host, or of a stretch of one host's time, how long it
//! waited, and for how long it was watched. They are drawn anew as the points of a recording's
//! history are, so that an interval holds what differs from host to host.

use super::{DiffOptions, estimate, hold, interval_text, is_clear};
use debox_output::duration_text;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

/// One quantity: of each point its nanoseconds and the seconds in which they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Points {
    pub name: Vec<String>,
    pub a: Vec<(f64, f64)>,
    pub b: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PointsChange {
    pub name: Vec<String>,
    /// Nanoseconds in a second of a host.
    pub a: f64,
    pub b: f64,
    /// (b - a) / a and its interval; null when a is 0.
    pub change: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Of the test against "no change", before the correction for many tests.
    pub p_value: f64,
    pub significant: bool,
    /// "1.2 ms -> 0.9 ms (-25 %, ...)".
    pub text: String,
}

/// Compares each quantity, largest difference first. None: a side has fewer points than say
/// anything of how they differ.
pub fn diff_points(all: &[Points], options: &DiffOptions) -> Option<Vec<PointsChange>> {
    let mut rng = StdRng::seed_from_u64(options.seed);
    let mut changes = Vec::new();
    for points in all {
        let a = estimate::ratio_of_sums(&points.a, &mut rng)?;
        let b = estimate::ratio_of_sums(&points.b, &mut rng)?;
        let c = estimate::compare(&a, &b, options.confidence);
        let time = |ns: f64| duration_text(ns.round().max(0.0) as u64, false);
        let interval = interval_text(&c, options.confidence);
        changes.push(PointsChange {
            name: points.name.clone(),
            a: a.value,
            b: b.value,
            change: c.change,
            low: c.low,
            high: c.high,
            p_value: c.p_value,
            significant: false,
            text: format!("{} -> {}{interval}", time(a.value), time(b.value)),
        });
    }
    let sum = |side: fn(&PointsChange) -> f64| changes.iter().map(side).sum::<f64>();
    let all_ns = sum(|c| c.a).max(sum(|c| c.b));
    let p_values: Vec<f64> = changes.iter().map(|c| c.p_value).collect();
    for (c, holds) in changes.iter_mut().zip(hold(&p_values, options.confidence)) {
        let large = c.change.is_none_or(|v| v.abs() >= options.change_min)
            && (c.b - c.a).abs() >= options.effect_min * all_ns;
        c.significant = holds && large && is_clear(c.low, c.high);
    }
    changes.sort_by(|x, y| (y.b - y.a).abs().total_cmp(&(x.b - x.a).abs()));
    Some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts that differ by a tenth, around a mean.
    fn side(mean: f64) -> Vec<(f64, f64)> {
        let of = |i: usize| mean * (0.9 + 0.2 * ((i * 7) % 20) as f64 / 19.0);
        (0..20).map(|i| (of(i) * 60.0, 60.0)).collect()
    }

    fn points(name: &str, a: f64, b: f64) -> Points {
        Points {
            name: vec![name.into()],
            a: side(a),
            b: side(b),
        }
    }

    #[test]
    fn what_changed_is_found_and_what_did_not_is_not() {
        let all = [
            points("same", 1e6, 1e6),
            points("less", 2e6, 1e6),
            points("new", 0.0, 1e6),
            points("tiny", 1.0, 2.0),
        ];
        let changes = diff_points(&all, &DiffOptions::default()).unwrap();
        let sure: Vec<&str> = changes
            .iter()
            .filter(|c| c.significant)
            .map(|c| c.name[0].as_str())
            .collect();
        let mut sorted = sure.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["less", "new"], "{changes:?}");
        let less = changes.iter().find(|c| c.name[0] == "less").unwrap();
        assert!((less.change.unwrap() + 0.5).abs() < 1e-9);
        assert!(
            less.low.unwrap() < -0.4 && less.high.unwrap() > -0.6,
            "{less:?}"
        );
        assert!(
            less.text.starts_with("2.00 ms -> 1.00 ms (-50 %"),
            "{}",
            less.text
        );
    }

    #[test]
    fn a_few_points_say_nothing() {
        let few = Points {
            a: side(1.0)[..7].to_vec(),
            ..points("few", 1.0, 2.0)
        };
        assert!(diff_points(&[few], &DiffOptions::default()).is_none());
    }
}
