// SPDX-License-Identifier: MIT OR Apache-2.0
//! How sure is a number?
//!
//! A benchmark is repeated in several processes ("invocations"): where memory
//! lies, which caches are warm and what else runs differ between processes
//! more than between two batches of one. So the unit that counts for
//! confidence is the invocation: its mean (or median) is one observation.
//! Batches inside one only say when it may stop.

pub use debox_select::stat::{
    Confidence, deviation, half_width, mean, median, median_interval, quantile, sorted, student_t,
};
use serde::{Deserialize, Serialize};

/// JSON has no infinity: where an interval is open (one invocation says nothing
/// about others), it is null.
pub fn open_below<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or(f64::NEG_INFINITY))
}

/// As [`open_below`], for the upper end.
pub fn open_above<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or(f64::INFINITY))
}

/// What one invocation measured: a number for each batch, ns per operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Invocation {
    pub samples: Vec<f64>,
    /// Indices of batches during which the thread was preempted.
    pub preempted: Vec<u32>,
    /// Operations in each batch.
    pub batch: u64,
    /// Timed one at a time, ns, sorted.
    pub singles: Vec<f64>,
}

/// Batches that follow each other are not independent: means of 10
/// neighbouring groups are nearly so. The half width of the 95 % interval of
/// their mean tells an invocation when it has seen enough.
pub fn half_width_within(samples: &[f64]) -> f64 {
    const GROUPS: usize = 10;
    if samples.len() < 2 * GROUPS {
        return f64::INFINITY;
    }
    let size = samples.len() / GROUPS;
    let means: Vec<f64> = samples.chunks_exact(size).take(GROUPS).map(mean).collect();
    half_width(&means, Confidence::P95)
}

/// What a whole benchmark says. Times in ns per operation.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    pub mean: f64,
    /// 95 % confidence interval of the mean, over invocations.
    #[serde(deserialize_with = "open_below")]
    pub mean_low: f64,
    #[serde(deserialize_with = "open_above")]
    pub mean_high: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
    /// Percentiles, min and max are of operations timed one at a time; else of batches.
    pub one_by_one: bool,
    /// Median of the batches of each invocation: the values that comparisons use.
    pub medians: Vec<f64>,
    /// Batches, operations in them, and all operations.
    pub batches: u64,
    pub operations: u64,
    /// Batches above the third quartile by more than three times the
    /// interquartile range; how many of these saw a preemption; and the mean
    /// without them. They stay in `mean`.
    pub outliers: u64,
    pub outliers_preempted: u64,
    pub mean_without: f64,
    /// Batches that saw a preemption.
    pub preempted: u64,
    pub verdict: Verdict,
}

/// May the mean be printed as a number?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval is within ±10 % of the mean.
    Stable,
    /// Wider: the mean is hidden by its spread; print the interval of medians.
    Unstable,
}

pub const STABLE_WITHIN: f64 = 0.10;

impl Summary {
    /// `None` without a single sample.
    pub fn of(invocations: &[Invocation]) -> Option<Self> {
        let used: Vec<&Invocation> = invocations
            .iter()
            .filter(|i| !i.samples.is_empty())
            .collect();
        if used.is_empty() {
            return None;
        }
        let means: Vec<f64> = used.iter().map(|i| mean(&i.samples)).collect();
        let all = sorted(used.iter().flat_map(|i| i.samples.iter().copied()));
        let m = mean(&means);
        let half = half_width(&means, Confidence::P95);
        let (q1, q3) = (quantile(&all, 0.25), quantile(&all, 0.75));
        // A clock's step can make the quartiles equal: then nothing within 1 %
        // of them is an outlier.
        let fence = q3 + 3.0 * (q3 - q1).max(0.01 * q3);
        let (mut outliers, mut outliers_preempted, mut preempted) = (0, 0, 0);
        for i in &used {
            preempted += i.preempted.len() as u64;
            for (n, v) in i.samples.iter().enumerate() {
                if *v > fence {
                    outliers += 1;
                    outliers_preempted += u64::from(i.preempted.contains(&(n as u32)));
                }
            }
        }
        let inside: Vec<f64> = all.iter().copied().filter(|v| *v <= fence).collect();
        let singles = sorted(used.iter().flat_map(|i| i.singles.iter().copied()));
        let one_by_one = !singles.is_empty();
        let spread = if one_by_one { &singles } else { &all };
        let stable = used.len() > 1 && half <= STABLE_WITHIN * m.abs();
        Some(Self {
            mean: m,
            mean_low: m - half,
            mean_high: m + half,
            min: spread[0],
            p50: quantile(spread, 0.5),
            p90: quantile(spread, 0.9),
            p99: quantile(spread, 0.99),
            max: spread[spread.len() - 1],
            one_by_one,
            medians: used.iter().map(|i| median(&i.samples)).collect(),
            batches: all.len() as u64,
            operations: used.iter().map(|i| i.samples.len() as u64 * i.batch).sum(),
            outliers,
            outliers_preempted,
            mean_without: mean(&inside),
            preempted,
            verdict: if stable {
                Verdict::Stable
            } else {
                Verdict::Unstable
            },
        })
    }

    /// The median of the invocations' medians.
    pub fn typical(&self) -> f64 {
        median(&self.medians)
    }

    /// Lowest and highest median of an invocation.
    pub fn range(&self) -> (f64, f64) {
        let s = sorted(self.medians.iter().copied());
        (s[0], s[s.len() - 1])
    }
}

/// Two runs of the same benchmark.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Comparison {
    /// Typical value (geometric mean of the invocations' medians) of each.
    pub here_ns: f64,
    pub there_ns: f64,
    /// here / there, with its 99 % confidence interval (Welch, of logarithms).
    pub ratio: f64,
    #[serde(deserialize_with = "open_below")]
    pub ratio_low: f64,
    #[serde(deserialize_with = "open_above")]
    pub ratio_high: f64,
    /// Probability of medians so far apart in rank if nothing differed
    /// (Mann-Whitney, exact, two-sided).
    pub p: f64,
    pub difference: Difference,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    Faster,
    Slower,
    /// Within what two runs of the same differ by.
    NotDistinguishable,
}

/// A difference counts when both tests see it: ranks (p < 0.01), and the
/// interval of the ratio leaves 1 out. `None` when values are missing or not
/// positive.
pub fn compare(here: &[f64], there: &[f64]) -> Option<Comparison> {
    if here.len() < 2 || there.len() < 2 || here.iter().chain(there).any(|v| *v <= 0.0) {
        return None;
    }
    let log = |v: &[f64]| v.iter().map(|x| x.ln()).collect::<Vec<f64>>();
    let (a, b) = (log(here), log(there));
    let (va, vb) = (
        deviation(&a).powi(2) / a.len() as f64,
        deviation(&b).powi(2) / b.len() as f64,
    );
    let diff = mean(&a) - mean(&b);
    let error = (va + vb).sqrt();
    // Welch and Satterthwaite; equal values everywhere leave no error at all.
    let df = if error > 0.0 {
        (va + vb).powi(2)
            / (va.powi(2) / (a.len() as f64 - 1.0) + vb.powi(2) / (b.len() as f64 - 1.0))
    } else {
        1.0
    };
    let half = if error > 0.0 {
        student_t(df, Confidence::P99) * error
    } else {
        0.0
    };
    let p = mann_whitney(here, there);
    let difference = if p < 0.01 && (diff - half > 0.0 || diff + half < 0.0) {
        if diff < 0.0 {
            Difference::Faster
        } else {
            Difference::Slower
        }
    } else {
        Difference::NotDistinguishable
    };
    Some(Comparison {
        here_ns: mean(&a).exp(),
        there_ns: mean(&b).exp(),
        ratio: diff.exp(),
        ratio_low: (diff - half).exp(),
        ratio_high: (diff + half).exp(),
        p,
        difference,
    })
}

/// Two-sided p of the Mann-Whitney U test. Exact: counts the arrangements by
/// dynamic programming. Ties count half (and make it a little careful).
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return 1.0;
    }
    let mut u = 0.0f64;
    for x in a {
        for y in b {
            u += if x > y {
                1.0
            } else if x == y {
                0.5
            } else {
                0.0
            };
        }
    }
    let u = u.min((n * m) as f64 - u).ceil() as usize;
    let counts = partitions(n, m);
    let total: f64 = counts.iter().sum();
    let tail: f64 = counts[..=u].iter().sum();
    (2.0 * tail / total).min(1.0)
}

/// For every U from 0 to n*m: how many arrangements of n and m values have it
/// (the coefficients of the Gaussian binomial).
fn partitions(n: usize, m: usize) -> Vec<f64> {
    let most = n * m;
    // f[i][k] for j of b's, built up one value of b at a time:
    // f(i, j, k) = f(i-1, j, k-j) + f(i, j-1, k)
    let mut f = vec![vec![0.0f64; most + 1]; n + 1];
    for row in &mut f {
        row[0] = 1.0;
    }
    for j in 1..=m {
        for i in 1..=n {
            for k in j..=most {
                let above = f[i - 1][k - j];
                f[i][k] += above;
            }
        }
    }
    f.swap_remove(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_interval_survives_json() {
        let one = Summary::of(&[Invocation {
            samples: vec![1.0, 2.0, 3.0],
            batch: 1,
            ..Invocation::default()
        }])
        .unwrap();
        assert_eq!(
            (one.mean_low, one.mean_high),
            (f64::NEG_INFINITY, f64::INFINITY)
        );
        assert_eq!(one.verdict, Verdict::Unstable);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), one);
    }

    /// Tables of the exact test: U = 0 of 5 and 5 has p = 2/252; U = 2 of 5
    /// and 5 is 4 arrangements at most 2 on either side: 1 + 1 + 2.
    #[test]
    fn mann_whitney_counts_arrangements() {
        let low = [1.0, 2.0, 3.0, 4.0, 5.0];
        let high = [6.0, 7.0, 8.0, 9.0, 10.0];
        assert!((mann_whitney(&low, &high) - 2.0 / 252.0).abs() < 1e-12);
        let near = [1.0, 2.0, 3.0, 4.0, 7.5];
        assert!((mann_whitney(&near, &high) - 2.0 * 4.0 / 252.0).abs() < 1e-12);
        assert_eq!(mann_whitney(&low, &low), 1.0);
    }

    fn noisy(rng: &mut fastrand::Rng, level: f64, runs: usize) -> Vec<f64> {
        (0..runs)
            .map(|_| {
                // Each process has its own shift, as real ones have.
                let shift: f64 = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
                level * (1.0 + 0.02 * shift)
            })
            .collect()
    }

    #[test]
    fn what_does_not_differ_is_rarely_called_different() {
        let mut rng = fastrand::Rng::with_seed(7);
        for runs in [5, 10] {
            let wrong = (0..2000)
                .filter(|_| {
                    let c = compare(&noisy(&mut rng, 100.0, runs), &noisy(&mut rng, 100.0, runs));
                    c.unwrap().difference != Difference::NotDistinguishable
                })
                .count();
            assert!(
                wrong <= 30,
                "{wrong} of 2000 with {runs} runs: more than 1.5 %"
            );
        }
    }

    #[test]
    fn what_differs_is_found() {
        let mut rng = fastrand::Rng::with_seed(8);
        let found = (0..500)
            .filter(|_| {
                let c = compare(&noisy(&mut rng, 115.0, 10), &noisy(&mut rng, 100.0, 10));
                c.unwrap().difference == Difference::Slower
            })
            .count();
        assert!(found >= 495, "{found} of 500");
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        let mut rng = fastrand::Rng::with_seed(9);
        let held = (0..2000)
            .filter(|_| {
                let v = noisy(&mut rng, 100.0, 6);
                (mean(&v) - 100.0).abs() <= half_width(&v, Confidence::P95)
            })
            .count();
        assert!((1860..=1940).contains(&held), "{held} of 2000");
    }

    fn invocation(samples: Vec<f64>) -> Invocation {
        Invocation {
            samples,
            batch: 10,
            ..Invocation::default()
        }
    }

    #[test]
    fn outliers_are_counted_and_stay_in_the_mean() {
        let mut one = invocation(vec![10.0; 19]);
        one.samples.push(210.0);
        one.preempted.push(19);
        let s = Summary::of(&[one.clone(), one]).unwrap();
        assert_eq!((s.outliers, s.outliers_preempted, s.preempted), (2, 2, 2));
        assert_eq!(s.mean, 20.0);
        assert_eq!(s.mean_without, 10.0);
        assert_eq!(s.operations, 400);
        assert_eq!(s.max, 210.0);
    }

    #[test]
    fn a_spread_that_hides_the_number_is_told() {
        let stable = Summary::of(&[invocation(vec![10.0; 30]), invocation(vec![10.1; 30])]);
        assert_eq!(stable.unwrap().verdict, Verdict::Stable);
        let wide = Summary::of(&[invocation(vec![10.0; 30]), invocation(vec![17.0; 30])]);
        assert_eq!(wide.unwrap().verdict, Verdict::Unstable);
        // One invocation cannot know.
        let one = Summary::of(&[invocation(vec![10.0; 30])]);
        assert_eq!(one.unwrap().verdict, Verdict::Unstable);
        assert!(Summary::of(&[]).is_none());
    }
}
