// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between what does the middle of measured values lie?
//!
//! For `debox bench select` here, and for all other benchmarks in crates/bench, which
//! depends on this crate.

/// The value below which a share `q` (0 to 1) of the sorted values lies, between neighbours.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        1 => sorted[0],
        n => {
            let at = q.clamp(0.0, 1.0) * (n - 1) as f64;
            let low = at.floor() as usize;
            let high = (low + 1).min(n - 1);
            sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
        }
    }
}

pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    v
}

pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values.iter().copied()), 0.5)
}

/// Distribution-free 95 % interval of the median: the k-th from either end,
/// with P(fewer than k of n below the median) < 2.5 %. Fewer than 6 values
/// cannot have one; then it is Student's interval of the mean.
pub fn median_interval(values: &[f64]) -> (f64, f64) {
    let v = sorted(values.iter().copied());
    let n = v.len();
    if n < 2 {
        return (f64::NAN, f64::NAN);
    }
    if n < 6 {
        let (m, half) = (mean(&v), half_width(&v, Confidence::P95));
        return (m - half, m + half);
    }
    // Binomial(n, 1/2), summed from below; by logarithms, since 2^-1100 is 0.
    let (mut k, mut below, mut term) = (0, 0.0, n as f64 * 0.5f64.ln());
    while k + 1 < n {
        below += term.exp();
        if below > 0.025 {
            break;
        }
        k += 1;
        term += ((n - k + 1) as f64 / k as f64).ln();
    }
    // k values may lie outside at either end; with few values: none.
    let k = k.saturating_sub(1).min((n - 1) / 2);
    (v[k], v[n - 1 - k])
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation with n-1 degrees of freedom; 0 for fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let m = mean(values);
    (values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// The two-sided quantile of Student's t: 95 % or 99 % of the distribution
/// with `df` degrees of freedom lies within ±t. Cornish-Fisher expansion,
/// exact values where it is off (few degrees).
pub fn student_t(df: f64, confidence: Confidence) -> f64 {
    const T95: [f64; 6] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447];
    const T99: [f64; 6] = [63.657, 9.925, 5.841, 4.604, 4.032, 3.707];
    let (table, z): ([f64; 6], f64) = match confidence {
        Confidence::P95 => (T95, 1.959_964),
        Confidence::P99 => (T99, 2.575_829),
    };
    if df < 1.0 {
        return f64::INFINITY;
    }
    if df < 6.0 {
        let low = df.floor() as usize;
        let part = df - df.floor();
        return table[low - 1] + (table[low] - table[low - 1]) * part;
    }
    let g1 = (z.powi(3) + z) / 4.0;
    let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let g3 = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + g1 / df + g2 / df.powi(2) + g3 / df.powi(3)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    P95,
    P99,
}

/// Half the width of the confidence interval of the mean of independent values.
pub fn half_width(values: &[f64], confidence: Confidence) -> f64 {
    if values.len() < 2 {
        return f64::INFINITY;
    }
    student_t(values.len() as f64 - 1.0, confidence) * deviation(values)
        / (values.len() as f64).sqrt()
}

/// How likely is it that values as far from level as these come in this order by chance? Mann and
/// Kendall's test of a trend, both sides, by the normal distribution: for 8 values or more. 1 for
/// values that are all alike, NaN for fewer than 3.
pub fn level_probability(values: &[f64]) -> f64 {
    let n = values.len();
    if n < 3 {
        return f64::NAN;
    }
    let sign = |a: f64, b: f64| f64::from(i8::from(a < b) - i8::from(a > b));
    let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let score: f64 = pairs.map(|(i, j)| sign(values[i], values[j])).sum();
    let weight = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let sorted = sorted(values.iter().copied());
    let ties: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|alike| weight(alike.len() as f64))
        .sum();
    let variance = (weight(n as f64) - ties) / 18.0;
    if variance <= 0.0 {
        return 1.0;
    }
    // Scores are whole numbers two apart: half of that to the middle.
    normal_beyond((score.abs() - 1.0).max(0.0) / variance.sqrt())
}

/// How much of the normal distribution lies farther from its middle than `z`, on both sides;
/// within 2e-7 (Abramowitz and Stegun 7.1.26).
fn normal_beyond(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let terms = [
        0.254_829_592,
        -0.284_496_736,
        1.421_413_741,
        -1.453_152_027,
        1.061_405_429,
    ];
    terms.iter().rev().fold(0.0, |sum, a| (sum + a) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let v = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&v, 0.0), 1.0);
        assert_eq!(quantile(&v, 0.5), 2.5);
        assert_eq!(quantile(&v, 1.0), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn student_t_is_the_tables() {
        for (df, t95, t99) in [
            (1.0, 12.706, 63.657),
            (4.0, 2.776, 4.604),
            (9.0, 2.262, 3.250),
            (30.0, 2.042, 2.750),
        ] {
            assert!(
                (student_t(df, Confidence::P95) / t95 - 1.0).abs() < 0.002,
                "{df}"
            );
            assert!(
                (student_t(df, Confidence::P99) / t99 - 1.0).abs() < 0.005,
                "{df}"
            );
        }
    }

    /// Ranks from tables of the sign test: 1 and 6 of 6, 2 and 8 of 9, 5 and 14 of 18, 22 and
    /// 39 of 60; that of 10,000 by sums of exact binomial coefficients.
    #[test]
    fn the_interval_of_a_median_is_that_of_the_sign_test() {
        for (n, low, high) in [
            (6, 1, 6),
            (9, 2, 8),
            (12, 3, 10),
            (18, 5, 14),
            (25, 8, 18),
            (60, 22, 39),
            (10_000, 4902, 5099),
        ] {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            let ends = (f64::from(low), f64::from(high));
            assert_eq!(median_interval(&values), ends, "of {n}");
            assert_eq!(median(&values), (f64::from(n) + 1.0) / 2.0);
        }
        // 1 to 5: 3 ± 2.776 * 1.5811 / sqrt 5.
        let (low, high) = median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((low - 1.037).abs() < 0.001 && (high - 4.963).abs() < 0.001);
        for few in [&[][..], &[1.0]] {
            let (low, high) = median_interval(few);
            assert!(low.is_nan() && high.is_nan());
        }
    }

    #[test]
    fn a_trend_is_told_from_noise() {
        assert!((normal_beyond(1.959_964) - 0.05).abs() < 1e-5);
        assert!((normal_beyond(0.0) - 1.0).abs() < 1e-6);
        // Score 28 of 8 values: z = 27 / sqrt(65.33) = 3.340.
        let rising: Vec<f64> = (0..8).map(f64::from).collect();
        assert!((level_probability(&rising) - 0.000_836).abs() < 2e-6);
        // 5 of 6 pairs rise, 1 is alike: (4*3*13 - 2*1*9) / 18.
        let tied = level_probability(&[1.0, 2.0, 2.0, 3.0]);
        assert!((tied - normal_beyond(4.0 / (23.0f64 / 3.0).sqrt())).abs() < 1e-9);
        assert_eq!(level_probability(&[5.0; 9]), 1.0);
        assert!(level_probability(&[3.0, 1.0, 4.0, 1.5, 5.0, 0.9, 2.6, 3.5]) > 0.5);
        assert!(level_probability(&[1.0, 2.0]).is_nan());
    }
}
