// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is told to others, before it has a form?
//!
//! [`crate::metrics`] makes families of series of the reports; whatever brings them to somebody
//! ([`crate::text`], [`crate::protobuf`]) walks these and knows nothing of reports.

use debox_abi::{DEBOX_SLEEP_BUCKETS, DEBOX_SLEEP_MIN_EXP, sleep_bucket};
use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sum that never goes back; its samples' names end in `_total`.
    Counter,
    Gauge,
    /// How many took how long; each bucket is a sum that never goes back.
    Histogram,
    /// What is always 1, for its labels; its samples' names end in `_info`.
    Info,
}

pub struct Family {
    /// In full, without what `kind` adds.
    pub name: &'static str,
    /// A sentence without its full stop.
    pub help: &'static str,
    /// The name ends in it.
    pub unit: Option<&'static str>,
    pub kind: Kind,
    /// In order of their labels.
    pub samples: Vec<Sample>,
}

pub type Labels = Vec<(&'static str, String)>;

pub struct Sample {
    pub labels: Labels,
    pub value: Value,
    /// Of a sum: since when it is, in nanoseconds since 1970, if that is not since the agent began.
    pub since_ns: Option<u64>,
}

pub enum Value {
    Count(u64),
    Number(f64),
    Distribution(Box<Distribution>),
}

/// Sleeps by how long they took, in the kernel side's own buckets: the bounds are powers of the
/// square root of two of *seconds*, so that they are those of a native histogram (schema 1), and
/// every second one is a bound of the classic one. Nothing is moved from a bucket to another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    pub buckets: [u64; DEBOX_SLEEP_BUCKETS],
    pub sum_ns: u64,
    pub exemplar: Option<Exemplar>,
}

/// The longest that was seen between two readings: what it was of, and where more of it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemplar {
    pub ns: u64,
    /// When it ended.
    pub at: SystemTime,
    pub program: String,
    /// The flight recorder's period, by its file's name but for its end.
    pub recording: Option<String>,
}

/// OpenMetrics: of an exemplar's labels, names and values together.
const EXEMPLAR_LETTERS_MOST: usize = 128;

impl Exemplar {
    /// As many as may be told.
    pub fn labels(&self) -> Labels {
        let recording = (self.recording.iter()).map(|name| ("recording", name.clone()));
        let all = recording.chain([("program", self.program.clone())]);
        let mut letters = 0;
        all.filter(|(name, value)| {
            letters += name.chars().count() + value.chars().count();
            letters <= EXEMPLAR_LETTERS_MOST
        })
        .collect()
    }
}

/// Of the classic histogram: 7.6 us to 32 s, twice as much each time. Whoever wants to know more exactly
/// takes the native one; and there are as many series as bounds.
const CLASSIC_EXP: std::ops::RangeInclusive<i32> = -17..=5;
/// Two buckets for each power of two.
pub const NATIVE_SCHEMA: i32 = 1;
/// What is not above the first bound is as good as nothing: the bucket of zero, as wide as ours.
pub const NATIVE_ZERO_S: f64 = 1.0 / (1u64 << DEBOX_SLEEP_MIN_EXP) as f64;

/// Used buckets that follow each other: so many unused ones before them, and what is in each.
pub struct Span {
    pub offset: i32,
    pub counts: Vec<u64>,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            buckets: [0; DEBOX_SLEEP_BUCKETS],
            sum_ns: 0,
            exemplar: None,
        }
    }
}

impl Distribution {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn add(&mut self, more: &Self) {
        for (bucket, count) in self.buckets.iter_mut().zip(&more.buckets) {
            *bucket += count;
        }
        self.sum_ns += more.sum_ns;
        let longest = self.exemplar.as_ref().map_or(0, |it| it.ns);
        if let Some(exemplar) = more.exemplar.as_ref().filter(|it| it.ns > longest) {
            self.exemplar = Some(exemplar.clone());
        }
    }

    pub fn sum_s(&self) -> f64 {
        Duration::from_nanos(self.sum_ns).as_secs_f64()
    }

    /// Each bound, in seconds, how many do not exceed it, and what stands for those between the bound
    /// before and this one. The last bound is infinite.
    pub fn classic(&self) -> Vec<(f64, u64, Option<&Exemplar>)> {
        let (mut from, mut below) = (0, 0);
        let bounds = CLASSIC_EXP.map(|exp| {
            let bound = 2 * (exp + DEBOX_SLEEP_MIN_EXP as i32) as usize;
            (f64::from(exp).exp2(), bound)
        });
        let bounds = bounds.chain([(f64::INFINITY, DEBOX_SLEEP_BUCKETS - 1)]);
        bounds
            .map(|(bound_s, last)| {
                let of = from..=last;
                below += self.buckets[of.clone()].iter().sum::<u64>();
                from = last + 1;
                let exemplar = self.exemplar.as_ref();
                let exemplar = exemplar.filter(|it| of.contains(&sleep_bucket(it.ns)));
                (bound_s, below, exemplar)
            })
            .collect()
    }

    /// In the bucket of zero.
    pub fn native_zero(&self) -> u64 {
        self.buckets[0]
    }

    /// The others in use. What is above the last bound, 4.5 h, is in the bucket behind it: there is no
    /// other one, and no period of the agent is as long.
    pub fn native(&self) -> Vec<Span> {
        // Bucket 0 of a native histogram ends at a second.
        let first = 1 - 2 * DEBOX_SLEEP_MIN_EXP as i32;
        let mut spans: Vec<Span> = Vec::new();
        let mut next = 0;
        for (at, &count) in self.buckets[1..].iter().enumerate() {
            let index = first + at as i32;
            match spans.last_mut() {
                _ if count == 0 => continue,
                Some(span) if index == next => span.counts.push(count),
                _ => spans.push(Span {
                    offset: index - next,
                    counts: vec![count],
                }),
            }
            next = index + 1;
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn of(ns: &[u64]) -> Distribution {
        let mut all = Distribution::default();
        for &ns in ns {
            all.buckets[sleep_bucket(ns)] += 1;
            all.sum_ns += ns;
        }
        all
    }

    /// What is in it: buckets' upper ends in seconds by what the schema says, and counts.
    fn meant(spans: &[Span]) -> Vec<(f64, u64)> {
        let mut index = 0;
        let mut all = Vec::new();
        for span in spans {
            index += span.offset;
            for &count in &span.counts {
                all.push(((f64::from(index) / 2.0).exp2(), count));
                index += 1;
            }
        }
        all
    }

    #[test]
    fn native_buckets_are_those_that_were_counted() {
        let second = 1_000_000_000;
        let all = of(&[
            500,
            second,
            second + 1,
            second / 2,
            second / 2,
            second * 16_384,
            u64::MAX / 4,
        ]);
        assert_eq!(all.native_zero(), 1);
        let spans = all.native();
        assert_eq!(
            meant(&spans),
            [
                (0.5, 2),
                (1.0, 1),
                (2f64.sqrt(), 1),
                (16_384.0, 1),
                (14.5f64.exp2(), 1)
            ]
        );
        assert_eq!(
            spans.iter().map(|span| span.offset).collect::<Vec<_>>(),
            [-2, 1, 26]
        );
        let native: u64 = spans.iter().flat_map(|span| &span.counts).sum();
        assert_eq!(native + all.native_zero(), all.count());
    }

    #[test]
    fn classic_buckets_hold_the_same() {
        let mut all = of(&[
            0,
            7_629,
            7_630,
            1_000_000_000,
            32_000_000_000,
            32_000_000_001,
        ]);
        all.exemplar = Some(Exemplar {
            ns: 1_000_000_000,
            at: SystemTime::UNIX_EPOCH,
            program: "dd".into(),
            recording: None,
        });
        let classic = all.classic();
        let at = |bound: f64| classic.iter().find(|(is, ..)| *is == bound).unwrap();
        assert_eq!(at((-17f64).exp2()).1, 2);
        assert_eq!(at((-16f64).exp2()).1, 3);
        assert_eq!((at(0.5).1, at(1.0).1), (3, 4));
        assert_eq!((at(32.0).1, at(f64::INFINITY).1), (5, 6));
        assert_eq!(at(f64::INFINITY).1, all.count());
        let with: Vec<f64> = (classic.iter())
            .filter(|(.., exemplar)| exemplar.is_some())
            .map(|(bound, ..)| *bound)
            .collect();
        assert_eq!(with, [1.0]);
        assert_eq!(classic.len(), 24);
    }

    #[test]
    fn an_exemplar_has_as_many_letters_as_it_may() {
        let mut exemplar = Exemplar {
            ns: 1,
            at: SystemTime::UNIX_EPOCH,
            program: "x".repeat(15),
            recording: Some("20261127T115200Z".into()),
        };
        assert_eq!(exemplar.labels().len(), 2);
        exemplar.program = "ü".repeat(97);
        assert_eq!(exemplar.labels().len(), 1);
        exemplar.program = "ü".repeat(96);
        assert_eq!(exemplar.labels().len(), 2);
    }
}
