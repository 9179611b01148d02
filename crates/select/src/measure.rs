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
    pub wrong: u64,
    pub stalled: u64,
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

/// The median of the turns' ratios.
pub fn ratio(a: &[f64], b: &[f64]) -> f64 {
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    median(&ratios)
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
            m.wrong += outcome.wrong;
            m.stalled += outcome.stalled;
        }
    }
    Ok(measured)
}
