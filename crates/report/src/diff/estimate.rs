// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large is a quantity, and how far may it be off?

use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Poisson};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::model::CallRow;

/// A quantity of one run.
#[derive(Clone, Debug)]
pub struct Estimate {
    pub value: f64,
    /// Standard error.
    pub spread: f64,
    /// Degrees of freedom of the standard error.
    pub freedom: f64,
    /// Drawn anew, when it was.
    pub draws: Vec<f64>,
}

/// Fewer points of a history say too little about its course.
const POINTS_MIN: usize = 8;
const DRAWS: usize = 600;
const PERCENTILE_DRAWS: usize = 200;

/// Σ value / Σ weight over points in the order of time, with blocks of
/// neighbours drawn together: their length is the cube root of their number.
/// None with too few points.
pub fn ratio_of_sums(parts: &[(f64, f64)], rng: &mut StdRng) -> Option<Estimate> {
    let n = parts.len();
    if n < POINTS_MIN {
        return None;
    }
    let length = (n as f64).cbrt().round().max(1.0) as usize;
    let blocks = n.div_ceil(length);
    let ratio = |v: f64, w: f64| if w > 0.0 { v / w } else { 0.0 };
    let sum = parts.iter().fold((0.0, 0.0), |s, p| (s.0 + p.0, s.1 + p.1));
    // Sums of the block that begins at each point, around the end.
    let sums: Vec<(f64, f64)> = (0..n)
        .map(|i| {
            (0..length).fold((0.0, 0.0), |s, k| {
                let p = parts[(i + k) % n];
                (s.0 + p.0, s.1 + p.1)
            })
        })
        .collect();
    let draws: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn = (0..blocks).fold((0.0, 0.0), |s, _| {
                let block = sums[rng.random_range(0..n)];
                (s.0 + block.0, s.1 + block.1)
            });
            ratio(drawn.0, drawn.1)
        })
        .collect();
    // Drawing with replacement from few blocks is a little too narrow.
    let correct = (blocks as f64 / (blocks as f64 - 1.0)).sqrt();
    Some(Estimate {
        value: ratio(sum.0, sum.1),
        spread: deviation(&draws) * correct,
        freedom: blocks as f64 - 1.0,
        draws,
    })
}

fn deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

/// Where each bucket begins and ends; the open one at the longest call.
fn ends(row: &CallRow) -> impl Iterator<Item = (f64, f64)> {
    row.histogram.iter().map(|b| {
        let longest = row.max_ns.unwrap_or(0).max(b.from_ns) + 1;
        let to = b.to_ns.map_or(longest, |to| to.min(longest));
        (b.from_ns as f64, to as f64)
    })
}

/// Mean wall time of calls that count as independent of each other.
pub fn histogram_mean(row: &CallRow) -> Option<Estimate> {
    let counts = row.histogram.iter().map(|b| b.count as f64);
    let middles = ends(row).map(|(from, to)| (from + to) / 2.0);
    let values: Vec<(f64, f64)> = middles.zip(counts).collect();
    let n: f64 = values.iter().map(|v| v.1).sum();
    if n < 2.0 {
        return None;
    }
    let mean = values.iter().map(|(x, k)| x * k).sum::<f64>() / n;
    let squares = values
        .iter()
        .map(|(x, k)| k * (x - mean).powi(2))
        .sum::<f64>();
    // Buckets give the spread, the sum gives the mean exactly.
    let exact = row.mean() as f64;
    let scale = if mean > 0.0 { exact / mean } else { 1.0 };
    Some(Estimate {
        value: exact,
        spread: (squares / (n - 1.0) / n).sqrt() * scale,
        freedom: n - 1.0,
        draws: vec![],
    })
}

/// The 99th percentile; `inflate`: by how much more the calls vary together
/// than independent ones.
pub fn histogram_percentile(row: &CallRow, inflate: f64, rng: &mut StdRng) -> Option<Estimate> {
    let ends: Vec<(f64, f64)> = ends(row).collect();
    let counts: Vec<f64> = row.histogram.iter().map(|b| b.count as f64).collect();
    let percentile = |counts: &[f64]| {
        let rank = counts.iter().sum::<f64>() * 0.99;
        let mut below = 0.0;
        for ((from, to), n) in ends.iter().zip(counts) {
            if below + n >= rank && *n > 0.0 {
                return from + (to - from) * ((rank - below) / n).clamp(0.0, 1.0);
            }
            below += n;
        }
        ends.last().map_or(0.0, |e| e.1)
    };
    if counts.is_empty() {
        return None;
    }
    let value = percentile(&counts);
    let mut drawn = vec![0.0; counts.len()];
    let draws: Vec<f64> = (0..PERCENTILE_DRAWS)
        .map(|_| {
            for (d, n) in drawn.iter_mut().zip(&counts) {
                *d = Poisson::new(*n).map_or(0.0, |p| p.sample(rng));
            }
            // Away from the value by as much more as calls vary together.
            (value + (percentile(&drawn) - value) * inflate).max(value / 100.0)
        })
        .collect();
    Some(Estimate {
        value,
        spread: deviation(&draws),
        freedom: 200.0,
        draws,
    })
}

/// The mean of `count` values of which only sum and largest are known: their
/// squares sum up to at most `total_ns` × `max_ns`.
pub fn bounded_mean(count: u64, total_ns: u64, max_ns: u64) -> Estimate {
    let n = count.max(1) as f64;
    let total = total_ns as f64;
    let mean = total / n;
    let squares = total * max_ns as f64;
    let variance = (squares / n - mean * mean).max(0.0);
    Estimate {
        value: mean,
        spread: (variance / n).sqrt(),
        freedom: (n - 1.0).max(1.0),
        draws: vec![],
    }
}

/// The sum, by `unit`, of waits that come by chance: the variance of such a
/// sum is the expected sum of squares.
pub fn bounded_sum(count: u64, total_ns: u64, max_ns: u64, unit: f64) -> Estimate {
    let squares = total_ns as f64 * max_ns as f64;
    Estimate {
        value: total_ns as f64 / unit,
        spread: squares.sqrt() / unit,
        freedom: (count as f64 - 1.0).max(1.0),
        draws: vec![],
    }
}

/// A number of events that come by chance.
pub fn number(count: u64) -> Estimate {
    Estimate {
        value: count as f64,
        spread: (count as f64).sqrt(),
        freedom: 1e6,
        draws: vec![],
    }
}

pub struct Comparison {
    pub change: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub p_value: f64,
}

/// From here on Student's distribution is the normal one, to six digits.
const FREEDOM_NORMAL: f64 = 1e6;

/// Where the distribution of Student's t has the share `q` (0.5 to 1) below it.
/// By halving: the iteration of statrs 0.18 never ends for some degrees of
/// freedom, and they come out of a file.
fn student_quantile(freedom: f64, q: f64) -> f64 {
    let Some(student) = (freedom < FREEDOM_NORMAL)
        .then(|| StudentsT::new(0.0, 1.0, freedom).ok())
        .flatten()
    else {
        return Normal::standard().inverse_cdf(q);
    };
    let mut high = 1.0;
    while student.cdf(high) < q && high < 1e15 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if student.cdf(middle) < q {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Relative change from `a` to `b`, its interval, and the two-sided p of "no
/// change". Times are skewed, so the ratio is judged by its logarithm.
pub fn compare(a: &Estimate, b: &Estimate, confidence: f64) -> Comparison {
    let freedom = |va: f64, vb: f64| {
        // Welch and Satterthwaite.
        let sum = va + vb;
        let parts = va * va / a.freedom.max(1.0) + vb * vb / b.freedom.max(1.0);
        if parts > 0.0 {
            (sum * sum / parts).max(1.0)
        } else {
            1e6
        }
    };
    let student = |f: f64| StudentsT::new(0.0, 1.0, f).expect("a positive number of degrees");
    let p_of = |difference: f64, spread: f64, f: f64| {
        if spread <= 0.0 {
            // No spread at all: equal is equal, and a difference is one.
            return if difference == 0.0 { 1.0 } else { 0.0 };
        }
        (2.0 * (1.0 - student(f).cdf((difference / spread).abs()))).clamp(0.0, 1.0)
    };
    if a.value <= 0.0 || b.value <= 0.0 {
        let (va, vb) = (a.spread.powi(2), b.spread.powi(2));
        let p_value = p_of(b.value - a.value, (va + vb).sqrt(), freedom(va, vb));
        let change = (a.value > 0.0).then(|| b.value / a.value - 1.0);
        return Comparison {
            change,
            low: None,
            high: None,
            p_value,
        };
    }
    let (sa, sb) = (a.spread / a.value, b.spread / b.value);
    let (va, vb) = (sa * sa, sb * sb);
    let (difference, spread, f) = ((b.value / a.value).ln(), (va + vb).sqrt(), freedom(va, vb));
    let t = student_quantile(f, 0.5 + confidence / 2.0);
    let normal = (
        (difference - t * spread).exp() - 1.0,
        (difference + t * spread).exp() - 1.0,
    );
    // Where both sides were drawn anew, the draws know the skew; the wider of
    // the two intervals is given.
    let (low, high) = if a.draws.len() == b.draws.len() && !a.draws.is_empty() {
        let mut ratios: Vec<f64> = a
            .draws
            .iter()
            .zip(&b.draws)
            .filter(|(x, _)| **x > 0.0)
            .map(|(x, y)| y / x - 1.0)
            .collect();
        ratios.sort_by(f64::total_cmp);
        let at = |q: f64| ratios.get((q * (ratios.len().max(1) - 1) as f64).round() as usize);
        let low = at((1.0 - confidence) / 2.0).copied().unwrap_or(normal.0);
        let high = at((1.0 + confidence) / 2.0).copied().unwrap_or(normal.1);
        (low.min(normal.0), high.max(normal.1))
    } else {
        normal
    };
    Comparison {
        change: Some(b.value / a.value - 1.0),
        low: Some(low),
        high: Some(high),
        p_value: p_of(difference, spread, f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables_and_always_come() {
        for (freedom, q, expected) in [
            (1.0, 0.975, 12.706205),
            (4.0, 0.995, 4.604095),
            (10.0, 0.975, 2.228139),
            (120.0, 0.95, 1.657651),
            (1e9, 0.975, 1.959964),
        ] {
            let found = student_quantile(freedom, q);
            assert!((found - expected).abs() < 1e-5, "{freedom} {q}: {found}");
        }
        let mut freedom = 1e-3;
        while freedom < f64::INFINITY {
            for q in [0.5, 0.9, 0.999_999, 1.0] {
                assert!(student_quantile(freedom, q) >= 0.0, "{freedom} {q}");
            }
            freedom *= 1.7;
        }
    }
}
