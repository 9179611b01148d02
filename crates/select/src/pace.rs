// SPDX-License-Identifier: MIT OR Apache-2.0
//! When may a connection read on, so that it is no faster than its line?
//!
//! A client behind a slow line is made by reading late: what the server sends fills the small
//! receive buffer and TCP's window tells it to wait. Each read of n bytes keeps the line busy for
//! n / speed; the next read, or the next request, comes when the line is clear. So small answers
//! are paced as large ones are: 1,000 bytes at 400 kbit/s keep the next request back for 20 ms. The
//! pace is that of the whole connection, not of each byte: up to [`READ_BYTES`] come at once.
//!
//! Time for which the server owed bytes is lost, as on a real line, and never made up for: this is
//! what makes a connection slower than its line, and is counted as *waited*. Time for which
//! the generator itself was late is not the server's; the connection keeps it as credit.

use std::time::{Duration, Instant};

/// Read at once of a slow connection: 164 ms of a line of 400 kbit/s. Each read costs the window's
/// update and what the server's side sends upon it, so smaller pieces are dear.
pub const READ_BYTES: usize = 8192;

#[derive(Clone, Copy, Debug)]
pub struct Line {
    ns_per_byte: f64,
}

impl Line {
    pub fn new(bits_per_second: f64) -> Self {
        Self {
            ns_per_byte: 8e9 / bits_per_second,
        }
    }

    pub fn time(&self, bytes: usize) -> Duration {
        Duration::from_nanos((bytes as f64 * self.ns_per_byte) as u64)
    }
}

#[derive(Debug)]
pub struct Pace {
    clear_at: Instant,
    /// The server owes bytes since then, and none are there.
    empty_since: Option<Instant>,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self {
            clear_at: now,
            empty_since: None,
        }
    }

    /// A request goes out; of the time since the line was clear, `late` was the generator's.
    pub fn ask(&mut self, now: Instant, late: Duration) {
        self.clear_at = now - late;
        self.empty_since = Some(now);
    }

    /// Nothing is there to be read.
    pub fn empty(&mut self, now: Instant) {
        self.empty_since.get_or_insert(now);
    }

    /// So much was read; for how long it had been waited for.
    pub fn read(&mut self, now: Instant, bytes: usize, line: Line) -> Duration {
        let since = self.empty_since.take();
        let waited = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.clear_at += waited + line.time(bytes);
        waited
    }

    /// When the line is clear.
    pub fn clear_at(&self) -> Instant {
        self.clear_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_lost_and_lateness_is_made_up_for() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let line = Line::new(400_000.0);
        assert_eq!(line.time(1000), Duration::from_millis(20));
        let mut pace = Pace::new(begin);
        // 10 ms until the first byte.
        pace.ask(begin, Duration::ZERO);
        assert_eq!(pace.read(at(10), 1000, line), Duration::from_millis(10));
        assert_eq!(pace.clear_at(), at(30));
        // Read 15 ms too late by the generator: as if it had been in time.
        assert_eq!(pace.read(at(45), 1000, line), Duration::ZERO);
        assert_eq!(pace.clear_at(), at(50));
        // Nothing there at 52: the wait begins then, what was late before stays credit.
        pace.empty(at(52));
        pace.empty(at(53));
        assert_eq!(pace.read(at(60), 500, line), Duration::from_millis(8));
        assert_eq!(pace.clear_at(), at(68));
        // Asked 5 ms late of its own, and after a rest with no credit.
        pace.ask(at(73), Duration::from_millis(5));
        pace.read(at(74), 500, line);
        assert_eq!(pace.clear_at(), at(79));
        pace.ask(at(500), Duration::ZERO);
        pace.read(at(500), 500, line);
        assert_eq!(pace.clear_at(), at(510));
    }
}
