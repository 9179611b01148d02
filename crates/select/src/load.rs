// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much does a web server do with N idle connections, and does it ever
//! forget one?
//!
//! *Idle* connections are opened first
//! and say nothing, as those of the paper's load-adding client. *Hot* ones ask
//! for the same page again and again, either over one connection or over a new
//! one for each request. With churn, connections misbehave at random: they are
//! closed or reset in the middle, ask in two halves, pause, and long idle ones
//! wake up; every request that was sent whole must be answered in time.
//!
//! With a rate requests are due by the clock (an open loop). One that no connection is free for
//! waits, and its time counts from when it was due: a server that stalls is not spared the requests
//! of that time.

use crate::connections::{Connections, Event, Failure, Options};
use std::io;
use std::net::SocketAddrV4;
use std::ops::Range;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Load {
    pub server: SocketAddrV4,
    /// The page, such as `/1259`.
    pub path: String,
    pub idle: usize,
    pub hot: usize,
    pub keep_alive: bool,
    /// Requests per second altogether; None: as many as the server takes.
    pub rate: Option<f64>,
    pub churn: bool,
    /// An answer that takes longer is a stalled connection.
    pub deadline: Duration,
    pub seed: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub requests: u64,
    pub seconds: f64,
    /// Answers that were not `200` with the whole page.
    pub wrong: u64,
    /// Requests without an answer within the deadline.
    pub stalled: u64,
    /// Connections that the server closed while it owed an answer.
    pub dropped: u64,
    /// Of single requests, in microseconds, sorted; with a rate since they were due.
    pub latencies_us: Vec<u32>,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// A quantile of the answering times, in microseconds; 0 if there are none.
    pub fn latency_us(&self, quantile: f64) -> u32 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us
            .get((last as f64 * quantile) as usize)
            .copied()
            .unwrap_or(0)
    }
}

/// What a connection does when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// The second half of a request is due.
    Rest,
    /// It has said nothing for a while.
    Ask,
}

pub struct Client {
    load: Load,
    connections: Connections,
    next: Vec<Next>,
    /// When the request was sent that each waits for the answer to.
    sent: Vec<Instant>,
    /// Those that wait for the schedule.
    free: Vec<usize>,
    request: Vec<u8>,
    random: u64,
    outcome: Outcome,
}

impl Client {
    /// Opens the idle connections and the hot ones.
    pub fn new(load: Load) -> io::Result<Self> {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            load.path,
            if load.keep_alive {
                ""
            } else {
                "Connection: close\r\n"
            }
        )
        .into_bytes();
        let options = Options {
            server: load.server,
            line: None,
            // What is late is counted when it comes.
            silence: None,
        };
        let count = load.idle + load.hot;
        let mut connections = Connections::new(options, count)?;
        connections.open_first(count, load.deadline.max(Duration::from_secs(10)))?;
        if load.rate.is_some() {
            // Timers are to be as exact as they can be: the default lets them be 50 us late, which
            // would be in the times.
            // SAFETY: takes a number.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        }
        Ok(Self {
            random: load.seed | 1,
            connections,
            next: vec![Next::Nothing; count],
            sent: vec![Instant::now(); count],
            free: Vec::new(),
            request,
            outcome: Outcome::default(),
            load,
        })
    }

    /// Hot ones in the middle: a server that looks at its connections in
    /// order finds them neither first nor last.
    fn hot(&self) -> Range<usize> {
        let half = self.load.idle / 2;
        half..half + self.load.hot
    }

    fn random(&mut self, n: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    /// Opens a new connection in the place of one that is gone.
    fn reopen(&mut self, at: usize) -> io::Result<()> {
        self.next[at] = Next::Nothing;
        self.connections.start(at)
    }

    fn reset(&mut self, at: usize) -> io::Result<()> {
        self.connections.reset(at);
        self.reopen(at)
    }

    /// What was due then, or (None) now.
    fn ask(&mut self, at: usize, due: Option<Instant>) -> io::Result<()> {
        let now = Instant::now();
        self.sent[at] = now;
        self.next[at] = Next::Nothing;
        if self.load.churn && self.random(8) == 0 {
            // In two halves.
            if !self.connections.is_open(at) {
                self.reopen(at)?;
            }
            let half = self.request.len() / 2;
            self.connections.send_part(at, &self.request[..half]);
            self.next[at] = Next::Rest;
            let pause = Duration::from_millis(self.random(60));
            self.connections.wake(at, now + pause);
            return Ok(());
        }
        let begun = due.unwrap_or(now);
        self.connections
            .ask(at, &self.request, begun, Duration::ZERO)
    }

    /// A hot one asks again, or waits for the schedule.
    fn go_on(&mut self, at: usize) -> io::Result<()> {
        if !self.hot().contains(&at) {
            return Ok(());
        }
        if self.load.rate.is_none() {
            return self.ask(at, None);
        }
        // Closed while it waited, it still does.
        if !self.free.contains(&at) {
            self.free.push(at);
        }
        Ok(())
    }

    /// What a connection does after an answer.
    fn after(&mut self, at: usize) -> io::Result<()> {
        if !self.load.keep_alive {
            self.connections.close(at);
        }
        if !self.connections.is_open(at) && !self.hot().contains(&at) {
            self.reopen(at)?;
        }
        if self.load.keep_alive && self.load.churn {
            match self.random(20) {
                0 => self.reopen(at)?,
                1 => self.reset(at)?,
                2 => {
                    // In the middle of a request.
                    self.connections.send_part(at, &self.request[..7]);
                    self.reset(at)?;
                }
                3 | 4 => {
                    let pause = Duration::from_millis(self.random(400));
                    self.next[at] = Next::Ask;
                    self.connections.wake(at, Instant::now() + pause);
                    return Ok(());
                }
                _ => {}
            }
        }
        self.go_on(at)
    }

    /// Counts what happened; whether it is an answer.
    fn count(&mut self, at: usize, event: Event) -> io::Result<bool> {
        match event {
            Event::Answered(answer) => {
                self.outcome.requests += 1;
                // A page that ends with the connection may be cut.
                if answer.status != 200 || answer.told_bytes.is_none() {
                    self.outcome.wrong += 1;
                }
                // Not since it was due: the server is judged, not the queue before it.
                if self.sent[at].elapsed() > self.load.deadline {
                    self.outcome.stalled += 1;
                }
                self.outcome
                    .latencies_us
                    .push(answer.whole.as_micros() as u32);
                return Ok(true);
            }
            Event::Failed(Failure::Connect) => return Err(self.connections.takes_no_connection()),
            Event::Failed(Failure::NotHttp | Failure::TooLong) => self.outcome.wrong += 1,
            Event::Failed(_) => self.outcome.dropped += 1,
            Event::Closed { unasked } => self.outcome.wrong += u64::from(unasked),
            Event::Woken => {}
        }
        Ok(false)
    }

    fn happened(&mut self, at: usize, event: Event) -> io::Result<()> {
        if self.count(at, event)? {
            return self.after(at);
        }
        if !matches!(event, Event::Woken) {
            self.reopen(at)?;
            return self.go_on(at);
        }
        match std::mem::replace(&mut self.next[at], Next::Nothing) {
            Next::Rest => {
                let rest = &self.request[self.request.len() / 2..];
                self.sent[at] = Instant::now();
                self.connections.ask_rest(at, rest);
                Ok(())
            }
            Next::Ask => self.ask(at, None),
            Next::Nothing => Ok(()),
        }
    }

    /// Asks for so long, and says what came of it.
    pub fn run(&mut self, duration: Duration) -> io::Result<Outcome> {
        let begin = Instant::now();
        let end = begin + duration;
        self.outcome = Outcome::default();
        let mut events = Vec::new();
        let mut due = begin;
        self.free.clear();
        for at in self.hot() {
            self.go_on(at)?;
        }
        let mut look_at = begin;
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let mut until = end.min(now + Duration::from_millis(20));
            if let Some(rate) = self.load.rate {
                while due <= now {
                    match self.free.pop() {
                        Some(at) => self.ask(at, Some(due))?,
                        // More is asked than the server does: what is due
                        // waits, as at a saturated server.
                        None => break,
                    }
                    due += Duration::from_secs_f64(1.0 / rate);
                }
                if !self.free.is_empty() {
                    until = until.min(due);
                }
            }
            self.connections
                .poll(until, &mut events, &mut |_, _, _| true)?;
            for (at, event) in events.drain(..) {
                self.happened(at, event)?;
            }
            if self.load.churn && now >= look_at {
                look_at = now + Duration::from_millis(5);
                self.churn()?;
            }
        }
        self.outcome.seconds = begin.elapsed().as_secs_f64();
        self.finish()?;
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.latencies_us.sort_unstable();
        Ok(outcome)
    }

    /// Requests on their way are answered too, or are stalled. One connection per request: hot
    /// ones begin anew with the next run.
    fn finish(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        let grace = Instant::now() + self.load.deadline;
        while Instant::now() < grace && self.connections.owed_count() > 0 {
            let before = self.outcome.requests;
            let until = Instant::now() + Duration::from_millis(50);
            self.connections
                .poll(until, &mut events, &mut |_, _, _| true)?;
            for (at, event) in events.drain(..) {
                if self.count(at, event)? {
                    if !self.load.keep_alive {
                        self.connections.close(at);
                    }
                } else if !self.connections.is_open(at) {
                    self.reopen(at)?;
                }
            }
            if !self.load.churn {
                self.outcome.requests = before;
            }
        }
        for at in 0..self.connections.len() {
            self.outcome.stalled += u64::from(self.connections.is_owed(at));
            // The answer may still come, and would be taken for that to the next request; the
            // second half of a request will not.
            if self.connections.is_owed(at) || self.next[at] != Next::Nothing {
                self.reopen(at)?;
            }
        }
        Ok(())
    }

    /// A long idle one wakes up, goes, or comes.
    fn churn(&mut self) -> io::Result<()> {
        if self.load.idle == 0 {
            return Ok(());
        }
        let at = self.random(self.connections.len() as u64) as usize;
        // One that pauses will ask by itself, and then perhaps while the
        // answer to this request is still on its way.
        let quiet = !self.hot().contains(&at)
            && self.next[at] == Next::Nothing
            && !self.connections.is_owed(at);
        if !quiet {
            return Ok(());
        }
        match self.random(4) {
            0 => self.reopen(at),
            1 => self.reset(at),
            _ => self.ask(at, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    const STALL: Duration = Duration::from_millis(200);

    /// Serves one connection, and lets its tenth request wait.
    fn stalling() -> SocketAddrV4 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            for n in 1.. {
                if !matches!(stream.read(&mut request), Ok(1..)) {
                    return;
                }
                if n == 10 {
                    std::thread::sleep(STALL);
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx");
            }
        });
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
    }

    /// How many requests took a quarter of the stall or more.
    fn late(rate: Option<f64>) -> usize {
        let load = Load {
            server: stalling(),
            path: "/1".into(),
            idle: 0,
            hot: 1,
            keep_alive: true,
            rate,
            churn: false,
            deadline: Duration::from_secs(5),
            seed: 1,
        };
        let mut client = Client::new(load).unwrap();
        let outcome = client.run(Duration::from_secs(1)).unwrap();
        assert_eq!((outcome.wrong, outcome.stalled, outcome.dropped), (0, 0, 0));
        let long = |us: &&u32| u128::from(**us) >= STALL.as_micros() / 4;
        outcome.latencies_us.iter().filter(long).count()
    }

    #[test]
    fn with_a_rate_a_request_counts_from_when_it_was_due() {
        // 40 are due in the stall, of which 30 wait for a quarter of it and longer.
        let open = late(Some(200.0));
        assert!((25..60).contains(&open), "{open}");
        // Who asks when it is answered waits once.
        let closed = late(None);
        assert!((1..5).contains(&closed), "{closed}");
    }
}
