// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a value told that is only known to lie somewhere?
//!
//! What is known to within ±10 % is one number; anything else is the range.
//! Sums and ratios of two values lie between what their worst cases give, so
//! that a sentence never says more than the tables that it is made of.

use crate::account::{Account, Slice};
use crate::stat::{STABLE_WITHIN, Summary, Verdict};
use debox_output::{digits_text, measured_text, range_text};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub low: f64,
    pub mid: f64,
    pub high: f64,
    /// The ends are a confidence interval; else just what was seen.
    pub firm: bool,
}

impl Span {
    /// ns for one operation: the mean with its interval, or where the spread
    /// hides that, the range of the invocations' medians.
    pub fn of(s: &Summary) -> Self {
        let (low, mid, high) = match s.verdict {
            Verdict::Stable => (s.mean_low, s.mean, s.mean_high),
            Verdict::Unstable => {
                let (low, high) = s.range();
                (low, s.typical(), high)
            }
        };
        Self {
            low,
            mid,
            high,
            firm: s.verdict == Verdict::Stable,
        }
    }

    /// A part of an account, over the slices of its run.
    pub fn of_account(a: &Account, mid: Option<f64>, of: fn(&Slice) -> f64) -> Option<Self> {
        let mid = mid?;
        let (low, high) = a.range(of).unwrap_or((mid, mid));
        Some(Self {
            low,
            mid,
            high,
            firm: true,
        })
    }

    pub fn scale(self, by: f64) -> Self {
        Self {
            low: self.low * by,
            mid: self.mid * by,
            high: self.high * by,
            firm: self.firm,
        }
    }

    /// The difference, not below 0.
    pub fn less(self, other: Self) -> Self {
        Self {
            low: (self.low - other.high).max(0.0),
            mid: (self.mid - other.mid).max(0.0),
            high: (self.high - other.low).max(0.0),
            firm: self.firm && other.firm,
        }
    }

    /// The ratio.
    pub fn over(self, other: Self) -> Self {
        Self {
            low: self.low / other.high,
            mid: self.mid / other.mid,
            high: self.high / other.low,
            firm: self.firm && other.firm,
        }
    }

    /// `what` divided by this: a rate.
    pub fn rate(self, what: f64) -> Self {
        Self {
            low: what / self.high,
            mid: what / self.mid,
            high: what / self.low,
            firm: self.firm,
        }
    }

    /// May it be told as one number?
    pub fn narrow(&self) -> bool {
        self.firm && self.high - self.low <= 2.0 * STABLE_WITHIN * self.mid.abs()
    }

    pub fn time(&self) -> String {
        if self.narrow() {
            measured_text(self.mid)
        } else {
            range_text(self.low, self.high)
        }
    }

    pub fn number(&self) -> String {
        if self.narrow() {
            return digits_text(self.mid);
        }
        let (low, high) = (digits_text(self.low), digits_text(self.high));
        if low == high {
            format!("~{low}")
        } else {
            format!("{low}…{high}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::Invocation;

    fn summary(values: &[f64]) -> Summary {
        let invocations: Vec<Invocation> = values
            .iter()
            .map(|v| Invocation {
                samples: vec![*v; 20],
                batch: 1,
                ..Invocation::default()
            })
            .collect();
        Summary::of(&invocations).unwrap()
    }

    #[test]
    fn a_wide_value_makes_every_sentence_wide() {
        let firm = Span::of(&summary(&[100.0, 101.0, 99.0, 100.0, 100.0]));
        let wide = Span::of(&summary(&[39.0, 303.0, 50.0, 60.0, 70.0]));
        assert_eq!(firm.time(), "100 ns");
        assert_eq!(wide.time(), "39.0…303 ns");
        // 100 with its interval, over 39 to 303.
        let ratio = firm.over(wide);
        assert!(!ratio.narrow());
        assert!(ratio.number().starts_with("0.33…2.5"), "{}", ratio.number());
        assert!(wide.less(firm).low == 0.0);
        assert!(firm.over(firm).narrow());
        let rate = wide.rate(4096.0);
        assert!((rate.low - 4096.0 / 303.0).abs() < 1e-9 && rate.high == 4096.0 / 39.0);
    }

    #[test]
    fn slices_that_differ_are_told_as_a_range() {
        let slice = |cpu_ns| Slice {
            cpu_ns,
            ..Slice::default()
        };
        let mut a = Account {
            cpu_ns: Some(100.0),
            slices: vec![slice(95.0), slice(105.0)],
            ..Account::default()
        };
        let text = |a: &Account| Span::of_account(a, a.cpu_ns, |s| s.cpu_ns).unwrap().time();
        assert_eq!(text(&a), "100 ns");
        a.slices.push(slice(201.0));
        assert_eq!(text(&a), "95.0…201 ns");
    }
}
