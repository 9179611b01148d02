// SPDX-License-Identifier: MIT OR Apache-2.0
//! What waits to be sent, and what goes when there is no room?
//!
//! Each signal has an order of its own: logs are few, and metrics that nobody takes do not push
//! them out. When all together is more than was said, the signal that has most loses its
//! oldest. Whatever does not arrive is counted, by why.

use super::config::Signal;
use std::collections::VecDeque;

/// Why something was not sent, as `debox_otlp_dropped_total` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It waited for too long: there was no room for what came after it.
    QueueFull,
    /// Whoever takes them said that they cannot be taken, and that trying again is of no use.
    Refused,
    /// Taken with others, and left out (OTLP's partial success).
    Rejected,
    /// The agent ended, or was told to send nothing more.
    Ended,
}

impl Reason {
    pub const ALL: [Self; 4] = [Self::QueueFull, Self::Refused, Self::Rejected, Self::Ended];

    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Ended => "ended",
        }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub signal: Signal,
    /// Data points or log records.
    pub items: u64,
    /// As it is sent: an Export...ServiceRequest.
    pub bytes: Vec<u8>,
}

/// What became of data points and log records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub sent: [u64; Signal::ALL.len()],
    pub dropped: [[u64; Reason::ALL.len()]; Signal::ALL.len()],
}

impl Figures {
    pub fn plus(&self, more: &Self) -> Self {
        let mut sum = *self;
        for (is, more) in sum.sent.iter_mut().zip(more.sent) {
            *is += more;
        }
        let dropped = sum.dropped.iter_mut().flatten();
        for (is, more) in dropped.zip(more.dropped.iter().flatten()) {
            *is += more;
        }
        sum
    }
}

#[derive(Debug, Default)]
pub struct Queue {
    lanes: [VecDeque<Batch>; Signal::ALL.len()],
    bytes: [usize; Signal::ALL.len()],
    bytes_most: usize,
    figures: Figures,
}

impl Queue {
    pub fn limit(&mut self, bytes_most: usize) {
        self.bytes_most = bytes_most;
        self.trim();
    }

    pub fn push(&mut self, batch: Batch) {
        let lane = batch.signal as usize;
        self.bytes[lane] += batch.bytes.len();
        self.lanes[lane].push_back(batch);
        self.trim();
    }

    /// What could not be sent is the oldest again, also when it comes to room.
    pub fn put_back(&mut self, batch: Batch) {
        let lane = batch.signal as usize;
        self.bytes[lane] += batch.bytes.len();
        self.lanes[lane].push_front(batch);
        self.trim();
    }

    pub fn take(&mut self, signal: Signal) -> Option<Batch> {
        let batch = self.lanes[signal as usize].pop_front()?;
        self.bytes[signal as usize] -= batch.bytes.len();
        Some(batch)
    }

    pub fn has(&self, signal: Signal) -> bool {
        !self.lanes[signal as usize].is_empty()
    }

    fn trim(&mut self) {
        while self.bytes.iter().sum::<usize>() > self.bytes_most {
            let most = Signal::ALL
                .into_iter()
                .max_by_key(|s| self.bytes[*s as usize]);
            let Some(batch) = most.and_then(|signal| self.take(signal)) else {
                return;
            };
            self.drop(&batch, Reason::QueueFull);
        }
    }

    pub fn sent(&mut self, batch: &Batch, rejected: u64) {
        let rejected = rejected.min(batch.items);
        self.figures.sent[batch.signal as usize] += batch.items - rejected;
        self.figures.dropped[batch.signal as usize][Reason::Rejected as usize] += rejected;
    }

    pub fn drop(&mut self, batch: &Batch, why: Reason) {
        self.figures.dropped[batch.signal as usize][why as usize] += batch.items;
    }

    /// All of it: how many items.
    pub fn drop_all(&mut self, why: Reason) -> u64 {
        let mut items = 0;
        for signal in Signal::ALL {
            while let Some(batch) = self.take(signal) {
                items += batch.items;
                self.drop(&batch, why);
            }
        }
        items
    }

    pub fn figures(&self) -> Figures {
        self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(signal: Signal, name: u8, bytes: usize) -> Batch {
        Batch {
            signal,
            items: 3,
            bytes: vec![name; bytes],
        }
    }

    fn queue(bytes_most: usize) -> Queue {
        let mut queue = Queue::default();
        queue.limit(bytes_most);
        queue
    }

    fn names(queue: &mut Queue, signal: Signal) -> Vec<u8> {
        std::iter::from_fn(|| queue.take(signal))
            .map(|is| is.bytes[0])
            .collect()
    }

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let mut queue = queue(100);
        for name in 0..5 {
            queue.push(batch(Signal::Metrics, name, 30));
        }
        let figures = queue.figures();
        assert_eq!(figures.dropped, [[6, 0, 0, 0], [0; 4]]);
        // What comes back is older than all that is there, and goes first again.
        let oldest = queue.take(Signal::Metrics).unwrap();
        queue.push(batch(Signal::Metrics, 5, 30));
        queue.put_back(oldest);
        assert_eq!(queue.figures().dropped[0][0], 9);
        assert_eq!(names(&mut queue, Signal::Metrics), [3, 4, 5]);
        assert_eq!(queue.bytes, [0, 0]);
        // One that has no room alone.
        queue.push(batch(Signal::Metrics, 6, 101));
        assert!(!queue.has(Signal::Metrics));
    }

    #[test]
    fn metrics_do_not_push_logs_out() {
        let mut queue = queue(100);
        for name in 0..3 {
            queue.push(batch(Signal::Logs, name, 10));
        }
        for name in 0..20 {
            queue.push(batch(Signal::Metrics, name, 20));
        }
        assert_eq!(names(&mut queue, Signal::Logs), [0, 1, 2]);
        assert_eq!(names(&mut queue, Signal::Metrics), [17, 18, 19]);
        assert_eq!(queue.figures().dropped, [[17 * 3, 0, 0, 0], [0; 4]]);
    }

    #[test]
    fn what_became_of_each_is_counted_once() {
        let mut queue = queue(100);
        let one = batch(Signal::Logs, 1, 10);
        queue.sent(&one, 1);
        // Who says that more was left out than there was, says all.
        queue.sent(&one, u64::MAX);
        queue.drop(&one, Reason::Refused);
        queue.push(one);
        queue.push(batch(Signal::Metrics, 1, 10));
        assert_eq!(queue.drop_all(Reason::Ended), 6);
        let figures = queue.figures();
        assert_eq!(figures.sent, [0, 2]);
        assert_eq!(figures.dropped, [[0, 0, 0, 3], [0, 3, 4, 3]]);
    }
}
