// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long does one getpid(), one pipe round trip, one switch take in one and
//! the same process, now?
//!
//! The measured process obeys lines on its standard input, so that what hangs
//! on the kernel can change between two rounds of it.

use super::calls::{Bracket, Echo, Loopback, Order, RawCall};
use super::ways::Bench;
use crate::Error;
use crate::tidy::Guarded;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Stdio};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Loop {
    Getpid,
    /// Through two pipes: 2 switches, 2 sleeps; the partner is nobody's.
    Trip,
    /// This side's read()s in DEBOX_CALL brackets.
    TripBracketed,
    /// A packet to itself: one soft interrupt, in the call that sends it.
    Datagram,
    /// Of two SCHED_FIFO processes in turn: a sched_yield() and its switch.
    Yield,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    /// ns for one of `n`, so many times.
    Run {
        what: Loop,
        n: i64,
        times: usize,
    },
    Open(PathBuf),
    Close,
}

/// The measured process.
pub(super) fn obey() -> Result<(), Error> {
    let (echo, loopback) = (Echo::start()?, Loopback::open()?);
    let mut session = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let step = serde_json::from_str(&line)
            .map_err(|e| Error::Usage(format!("this subcommand is for debox itself: {e}")))?;
        let answer = step_do(step, &echo, &loopback, &mut session).map_err(|e| e.to_string());
        println!("{}", serde_json::to_string(&answer).expect("plain data"));
    }
    Ok(())
}

fn step_do(
    step: Step,
    echo: &Echo,
    loopback: &Loopback,
    session: &mut Option<debox::Session>,
) -> Result<Vec<f64>, Error> {
    match step {
        Step::Run { what, n, times } => {
            let one = |n: i64| match what {
                Loop::Getpid => RawCall::getpid().timed(Bracket::Plain, n),
                Loop::Datagram => RawCall::datagram(loopback).timed(Bracket::Plain, n),
                Loop::Trip => RawCall::trip(echo).timed(Bracket::Plain, n),
                Loop::TripBracketed => RawCall::trip(echo).timed(Bracket::Debox, n),
                Loop::Yield => echo.yielding(n).map(|ns| ns * n as f64),
            };
            one(n / 10 + 1)?;
            (0..times).map(|_| Ok(one(n)? / n as f64)).collect()
        }
        Step::Open(socket) => {
            *session = Some(super::calls::session(&socket)?);
            Ok(Vec::new())
        }
        Step::Close => {
            if let Some(session) = session.take() {
                session.close();
            }
            Ok(Vec::new())
        }
    }
}

/// The driver's end of it.
pub(super) struct Worker {
    guarded: Guarded,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    pub fn start(bench: &Bench, order: &Order) -> Result<Self, Error> {
        let mut command = bench.command(&[], order);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        crate::tidy::bind(&mut command, Some(bench.cpu), None);
        let mut guarded = Guarded::spawn(&mut command)?;
        let to = guarded.child.stdin.take().expect("piped");
        let from = BufReader::new(guarded.child.stdout.take().expect("piped"));
        Ok(Self { guarded, to, from })
    }

    pub fn pid(&self) -> u32 {
        self.guarded.child.id()
    }

    fn ask(&mut self, step: &Step) -> Result<Vec<f64>, Error> {
        let mut line = serde_json::to_string(step).expect("plain data");
        line.push('\n');
        let mut said = String::new();
        let ended = |_| Error::Unavailable("the measured process has ended".into());
        self.to.write_all(line.as_bytes()).map_err(ended)?;
        self.from.read_line(&mut said).map_err(ended)?;
        serde_json::from_str::<Result<Vec<f64>, String>>(&said)
            .map_err(|_| Error::Unavailable("the measured process has ended".into()))?
            .map_err(Error::Unavailable)
    }

    /// The shortest of so many batches of `n`, ns for one.
    pub fn run(&mut self, what: Loop, n: i64, times: usize) -> Result<f64, Error> {
        let values = self.ask(&Step::Run { what, n, times })?;
        Ok(values.into_iter().fold(f64::MAX, f64::min))
    }

    /// As a client of a broker, from now on.
    pub fn open(&mut self, socket: PathBuf) -> Result<(), Error> {
        self.ask(&Step::Open(socket)).map(drop)
    }

    pub fn close(&mut self) -> Result<(), Error> {
        self.ask(&Step::Close).map(drop)
    }
}
