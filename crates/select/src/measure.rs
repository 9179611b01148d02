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
use crate::stat::{median, median_interval};
use debox_command::stop;
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
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        let (low, high) = median_interval(&ratios);
        Self {
            median: median(&ratios),
            low,
            high,
        }
    }
}

fn rights(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("--realtime needs root (CAP_SYS_NICE): {error}"),
    )
}

/// One turn, and the server's CPU time in it. On a machine that gives neither of the two a
/// CPU for so long, a turn without an answer measures nothing: a longer one takes its place.
fn turn_with_an_answer(
    server: &Server,
    client: &mut Agent,
    turn: Duration,
) -> io::Result<(Outcome, u64)> {
    const LONGEST: Duration = Duration::from_secs(10);
    let mut turn = turn;
    loop {
        let before = server.cpu_ns()?;
        let outcome = client.run(turn)?;
        let cpu = server.cpu_ns()? - before;
        if outcome.requests > 0 {
            return Ok((outcome, cpu));
        }
        if turn >= LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("a server answered no request within {turn:?}"),
            ));
        }
        turn *= 2;
    }
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
        if stop::asked() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        for place in 0..running.len() {
            // In another order each time.
            let at = (place + turn) % running.len();
            let (server, client) = &mut running[at];
            if plan.realtime {
                std::thread::sleep(plan.turn * 3);
            }
            let (outcome, cpu) = turn_with_an_answer(server, client, plan.turn)?;
            let m = &mut measured[at];
            m.per_second.push(outcome.rate());
            m.cpu_us.push(cpu as f64 / 1000.0 / outcome.requests as f64);
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
