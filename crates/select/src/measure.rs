// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do servers compare on a machine whose speed changes from second to
//! second?
//!
//! All variants run at the same time, each with its idle connections, and are
//! asked in turns, a fraction of a second each. Every turn gives the CPU time
//! per request and the requests per second of each variant; what is reported
//! are medians, and medians of ratios within one turn.

use crate::agent::Agent;
use crate::load::{Load, Outcome};
use crate::servers::{self, Program, Server};
use std::io;
use std::path::Path;
use std::time::Duration;

/// A server and whether the library is in it.
#[derive(Clone, Debug)]
pub struct Variant {
    pub name: String,
    pub program: Program,
    pub library: bool,
    pub idle: usize,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub hot: usize,
    pub keep_alive: bool,
    pub bytes: usize,
    pub rate: Option<f64>,
    /// Servers and clients before everything else, with pauses for the rest.
    pub realtime: bool,
    pub turns: usize,
    pub turn: Duration,
}

/// What one variant did, turn by turn.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub per_second: Vec<f64>,
    pub cpu_us: Vec<f64>,
    pub median_latency_us: Vec<f64>,
    pub p99_latency_us: Vec<f64>,
    pub requests: u64,
    pub wrong: u64,
    pub stalled: u64,
    /// Connections that were to be kept and that the server closed.
    pub dropped: u64,
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Of the turns' ratios: the median, and the range in which it lies with a
/// probability of 95 %.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    pub fn of(a: &[f64], b: &[f64]) -> Self {
        let mut ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        // How many of n lie below their median is binomial: the widest cut at
        // each end with no more than 2.5 % beyond it.
        // (By logarithms: 2^-1100 is 0.)
        let (mut cut, mut below, mut term) = (0, 0.0, n as f64 * 0.5f64.ln());
        while cut < n / 2 {
            below += term.exp();
            if below > 0.025 {
                break;
            }
            cut += 1;
            term += ((n - cut + 1) as f64 / cut as f64).ln();
        }
        // Too few for 95 %: all there are.
        let edge = cut.saturating_sub(1);
        Self {
            median: median(&ratios),
            low: ratios.get(edge).copied().unwrap_or(f64::NAN),
            high: n
                .checked_sub(edge + 1)
                .map_or(f64::NAN, |last| ratios[last]),
        }
    }
}

fn rights(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("--realtime needs root (CAP_SYS_NICE): {error}"),
    )
}

pub fn run(variants: &[Variant], plan: &Plan, library: &Path) -> io::Result<Vec<Measured>> {
    let mut running: Vec<(Server, Agent)> = Vec::new();
    for variant in variants {
        let server = servers::start(
            variant.program,
            variant.library.then_some((library, "")),
            variant.idle + plan.hot + 30,
        )?;
        let client = Agent::start(&Load {
            server: server.address,
            path: format!("/{}", plan.bytes),
            idle: variant.idle,
            hot: plan.hot,
            keep_alive: plan.keep_alive,
            rate: plan.rate,
            churn: false,
            deadline: Duration::from_secs(10),
            seed: 1,
        })?;
        if plan.realtime {
            servers::prefer(server.pid()).map_err(rights)?;
            servers::prefer(client.pid()).map_err(rights)?;
        }
        running.push((server, client));
    }
    // The server's queue of new connections empties, sets become known.
    std::thread::sleep(Duration::from_millis(300));
    for (_, client) in &mut running {
        client.run(Duration::from_millis(200))?;
    }
    let mut measured = vec![Measured::default(); variants.len()];
    for turn in 0..plan.turns {
        for place in 0..running.len() {
            // In another order each time.
            let at = (place + turn) % running.len();
            let (server, client) = &mut running[at];
            if plan.realtime {
                std::thread::sleep(plan.turn * 3);
            }
            let before = server.cpu_ns()?;
            let outcome: Outcome = client.run(plan.turn)?;
            let cpu = server.cpu_ns()? - before;
            let m = &mut measured[at];
            m.per_second.push(outcome.rate());
            m.cpu_us
                .push(cpu as f64 / 1000.0 / outcome.requests.max(1) as f64);
            m.median_latency_us.push(f64::from(outcome.latency_us(0.5)));
            m.p99_latency_us.push(f64::from(outcome.latency_us(0.99)));
            m.requests += outcome.requests;
            m.wrong += outcome.wrong;
            m.stalled += outcome.stalled;
            m.dropped += outcome.dropped;
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks from tables of the sign test: 2 and 8 of 9, 5 and 14 of 18, 22 and 39 of 60;
    /// that of 10,000 by sums of exact binomial coefficients.
    #[test]
    fn the_range_of_a_median_is_that_of_the_sign_test() {
        for (n, low, high) in [
            (3, 1, 3),
            (5, 1, 5),
            (9, 2, 8),
            (18, 5, 14),
            (60, 22, 39),
            (10_000, 4902, 5099),
        ] {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            let ones = vec![1.0; values.len()];
            let ratio = Ratio::of(&values, &ones);
            assert_eq!((ratio.low, ratio.high), (low as f64, high as f64), "of {n}");
            assert_eq!(ratio.median, (f64::from(n) + 1.0) / 2.0);
        }
    }

    #[test]
    fn no_turns_give_no_ratio() {
        let ratio = Ratio::of(&[], &[]);
        assert!(ratio.median.is_nan() && ratio.low.is_nan() && ratio.high.is_nan());
    }
}
