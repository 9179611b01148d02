// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of which calls does a program stamp only one in so many?
//!
//! Where somebody asked for that: of those of a number that take so little that two reads of the time stamp
//! counter are much of it, by what the program has said of them. All are counted; those without stamps are taken
//! to last as long as the stamped ones have lasted on a CPU, since what they were off it the kernel side tells.
//! Which of them are stamped is left to chance (`struct splice_sample` of `splice/state.h`).

use crate::state::sample;
use debox_abi::{hist_bucket, hist_range};

/// When calls of a number are not all stamped any more.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// One in so many is.
    pub one_in: u32,
    /// So many have to have been stamped,
    pub after: u64,
    /// and have taken less than that on a CPU, on average; as long as the next ones do.
    pub below_ns: u64,
}

impl Sampling {
    /// As it is asked for on the command line.
    pub fn one_in(one_in: u32) -> Self {
        Self {
            one_in,
            after: 1000,
            below_ns: 1000,
        }
    }
}

/// What a block is told of a number: `span` and `estimate_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) span: u32,
    pub(crate) estimate_ns: u32,
}

impl Told {
    pub(crate) const BYTES: usize = 8;

    pub(crate) fn parse(of: &[u8]) -> Self {
        let word = |at: u64| {
            let at = at as usize;
            u32::from_le_bytes(of[at..at + 4].try_into().unwrap_or_default())
        };
        Self {
            span: word(sample::SPAN),
            estimate_ns: word(sample::ESTIMATE_NS),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        (u64::from(self.span) | u64::from(self.estimate_ns) << 32).to_le_bytes()
    }
}

/// Who leaves a CPU in a call is back after so long at the least.
const LONG_NS: u64 = 4000;

/// How long those calls took that may have been off the CPU, of `wall_ns` altogether: what the others took,
/// which is the little of both, is known about.
pub(crate) fn long_ns(wall_ns: u64, count: impl Fn(usize) -> u64) -> u64 {
    let short = (0..hist_bucket(LONG_NS)).map(|k| {
        let (from, to) = hist_range(k);
        count(k).saturating_mul(from.midpoint(to))
    });
    wall_ns.saturating_sub(short.fold(0, u64::saturating_add))
}

/// Stamped calls of a number, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamped {
    pub(crate) calls: u64,
    pub(crate) wall_ns: u64,
    /// As of [`long_ns`].
    pub(crate) long_ns: u64,
}

impl Stamped {
    /// What one took on a CPU, on average; `away`: how much of the time of long ones they were off it.
    fn mean_ns(self, away: f64) -> f64 {
        let away_ns = self.long_ns as f64 * away.clamp(0.0, 1.0);
        (self.wall_ns as f64 - away_ns).max(0.0) / self.calls.max(1) as f64
    }

    fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            wall_ns: self.wall_ns.saturating_sub(before.wall_ns),
            long_ns: self.long_ns.saturating_sub(before.long_ns),
        }
    }
}

/// What is known of a number in a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number {
    /// As it was decided last,
    at: Stamped,
    /// and before the first ones of which not all were stamped.
    from: Option<Stamped>,
    pub(crate) told: Told,
}

impl Number {
    /// `all`: until now; `away`: as of [`Stamped::mean_ns`], asked for where that matters.
    pub(crate) fn decide(
        &mut self,
        rule: &Sampling,
        all: Stamped,
        away: impl FnOnce() -> f64,
    ) -> Told {
        let last = all.since(self.at);
        if last.calls < rule.after.max(1) {
            return self.told;
        }
        let away = away();
        self.told = match last.mean_ns(away) < rule.below_ns as f64 {
            true => {
                // All that were stamped since then: what is rare, and takes long, counts as often as it is.
                let known = all.since(*self.from.get_or_insert(self.at));
                Told {
                    span: rule.one_in.saturating_mul(2).saturating_sub(1),
                    estimate_ns: known.mean_ns(away).round() as u32,
                }
            }
            false => Told::default(),
        };
        self.at = all;
        self.told
    }

    /// All are to be stamped.
    pub(crate) fn stop(&mut self) -> Told {
        self.told = Told::default();
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::BUCKETS;

    fn stamped(calls: u64, mean_ns: u64) -> Stamped {
        Stamped {
            calls,
            wall_ns: calls * mean_ns,
            long_ns: 0,
        }
    }

    fn told(span: u32, estimate_ns: u32) -> Told {
        Told { span, estimate_ns }
    }

    #[test]
    fn few_and_long_calls_are_all_stamped() {
        let rule = Sampling::one_in(16);
        let mut number = Number::default();
        assert_eq!(number.decide(&rule, stamped(999, 200), || 0.0), told(0, 0));
        assert_eq!(
            number.decide(&rule, stamped(1000, 200), || 0.0),
            told(31, 200)
        );
        let mut number = Number::default();
        let long = stamped(1_000_000, 1000);
        assert_eq!(number.decide(&rule, long, || 0.0), told(0, 0));
    }

    #[test]
    fn what_becomes_long_is_stamped_again() {
        let rule = Sampling::one_in(16);
        let mut number = Number::default();
        let mut all = stamped(2000, 200);
        number.decide(&rule, all, || 0.0);
        all.calls += 900;
        all.wall_ns += 9_000_000;
        assert_eq!(number.decide(&rule, all, || 0.0), told(31, 200));
        all.calls += 100;
        assert_eq!(number.decide(&rule, all, || 0.0), told(0, 0));
        // Short again: with what is known of all of them.
        all.calls += 7000;
        all.wall_ns += 600_000;
        assert_eq!(number.decide(&rule, all, || 0.0), told(31, 1000));
        assert_eq!(number.stop(), told(0, 0));
    }

    /// Neither does it make calls long, nor is it of those that are estimated: who sees it tells of each.
    #[test]
    fn time_off_the_cpu_is_left_out() {
        let rule = Sampling::one_in(2);
        let mut hist = [0u64; BUCKETS as usize];
        hist[hist_bucket(200)] = 4990;
        hist[hist_bucket(2_000_000)] = 10;
        let wall_ns = 4990 * 200 + 20_000_000;
        let long_ns = long_ns(wall_ns, |k| hist[k]);
        assert_eq!(long_ns, 20_000_000);
        let all = Stamped {
            calls: 5000,
            wall_ns,
            long_ns,
        };
        let decided = |away: f64| Number::default().decide(&rule, all, || away);
        assert_eq!(decided(0.0), told(0, 0));
        assert_eq!(decided(1.0), told(3, 200));
        // More than they took cannot be.
        assert_eq!(decided(7.0), told(3, 200));
    }

    #[test]
    fn it_is_written_as_the_block_has_it() {
        let mut of = [0u8; sample::BYTES as usize];
        of[sample::SPAN as usize..].copy_from_slice(&told(31, 170).to_bytes());
        assert_eq!(Told::parse(&of), told(31, 170));
    }
}
