// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do a host's periods come to where the fleet's are, whatever happens to that place?
//!
//! `<root>/<table>/date=YYYY-MM-DD/host=H/<boot>-<begin>-<end>.parquet`, the least and the largest of its periods' times in
//! nanoseconds since 1970: who looks for one opens no file of another. Rows of several periods are
//! collected for a file, as thousands of small ones cost more than what is in them. Files that
//! cannot be written wait in memory, of which there is not more than was said: what is too
//! old is dropped, counted and told.

use crate::rows::{Bounds, Period, Rows, rows};
use crate::store::{Store, StoreError, date_of, host_part};
use crate::table;
use debox_report::Report;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// Who is to end is not patient.
const RETRY_ENDING: Duration = Duration::from_millis(200);
const DAY_NS: u64 = 86_400_000_000_000;
/// A day is one only if the host wrote of another one so many days before it at most: a clock that is wrong for a while
/// says none.
const AGREE_DAYS: i64 = 7;
/// More rows than this are written without waiting for their time.
const ROWS_MOST: usize = 200_000;
/// Who drops it without closing it has this long.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub bounds: Bounds,
    /// Periods of so long share a file; what was not written is lost if the machine is.
    pub every: Duration,
    /// What waits to be written, at most.
    pub queue_bytes: usize,
    /// Of a directory: this host's files of days before that are taken away. None: never.
    pub keep_days: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            every: Duration::from_secs(600),
            queue_bytes: 32 << 20,
            keep_days: None,
        }
    }
}

/// What became of the periods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub periods_written: u64,
    pub periods_dropped: u64,
    /// That are collected for a file, or wait to be written.
    pub periods_queued: u64,
    pub files: u64,
    pub bytes: u64,
    pub rows: u64,
    /// None: the last file was written.
    pub last_error: Option<String>,
}

struct Batch {
    date: String,
    host: String,
    name: String,
    begin_ns: u64,
    periods: u64,
    rows: u64,
    bytes: usize,
    files: Vec<(&'static str, Vec<u8>)>,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Batch>,
    queued_bytes: usize,
    /// In the hands of the one who writes.
    in_hand: u64,
    figures: Figures,
    /// Of periods that were dropped and of which nobody was told.
    untold: u64,
    failing: bool,
    told_failing: bool,
    /// Until when what is left may be written.
    end: Option<Instant>,
    /// The writer has ended.
    over: bool,
}

impl State {
    /// What waits, and what is in the writer's hands.
    fn drop_left(&mut self) {
        let waiting: u64 = self.batches.drain(..).map(|batch| batch.periods).sum();
        let left = waiting + std::mem::take(&mut self.in_hand);
        self.queued_bytes = 0;
        self.figures.periods_dropped += left;
        self.untold += left;
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows of periods that wait for their file.
#[derive(Default)]
struct Collected {
    periods: Vec<Rows>,
    rows: usize,
}

impl Collected {
    /// Of these together there is one file.
    fn fits(&self, next: &Rows) -> bool {
        self.periods.first().is_none_or(|first| {
            let (is, next) = (&first.facts.period, &next.facts.period);
            (&is.host, &is.boot) == (&next.host, &next.boot)
                && date_of(is.begin_ns) == date_of(next.begin_ns)
        })
    }

    fn is_due(&self, every: Duration) -> bool {
        span(&self.periods).is_some_and(|(begin_ns, end_ns)| {
            let length = end_ns.saturating_sub(begin_ns);
            u128::from(length) >= every.as_nanos() || self.rows >= ROWS_MOST
        })
    }
}

/// From the first begin to the last end: a clock that was set back meanwhile has them in another order.
fn span(periods: &[Rows]) -> Option<(u64, u64)> {
    let all = || periods.iter().map(|rows| &rows.facts.period);
    let begin_ns = all().map(|period| period.begin_ns).min()?;
    let end_ns = all().map(|period| period.end_ns).max()?;
    Some((begin_ns, end_ns))
}

pub struct Partitions {
    options: Options,
    collected: Mutex<Collected>,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl Partitions {
    /// # Errors
    /// The place is none, or its thread cannot be begun. Whether it can be written shows later:
    /// [`Partitions::figures`].
    pub fn open(url: &str, options: &Options) -> Result<Self, StoreError> {
        let store = Store::open(url)?;
        let shared = Arc::new(Shared::default());
        let (own, keep_days) = (shared.clone(), options.keep_days);
        let writer = std::thread::Builder::new()
            .name("debox-fleet".into())
            .spawn(move || {
                write_all(&own, &store, keep_days);
                own.lock().over = true;
                own.wake.notify_all();
            })
            .map_err(StoreError::Runtime)?;
        Ok(Self {
            options: options.clone(),
            collected: Mutex::default(),
            shared,
            writer: Some(writer),
        })
    }

    fn collected(&self) -> MutexGuard<'_, Collected> {
        (self.collected.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// The period's rows, which are written when enough of them are together. Waits for nothing.
    pub fn write(&self, report: &Report, period: &Period) {
        self.add(rows(report, period, &self.options.bounds));
    }

    /// The same of rows that are there.
    pub fn add(&self, rows: Rows) {
        let mut collected = self.collected();
        if !collected.fits(&rows) {
            self.hand_over(&mut collected);
        }
        collected.rows += rows.count();
        collected.periods.push(rows);
        if collected.is_due(self.options.every) {
            self.hand_over(&mut collected);
        }
    }

    /// What is collected is written now.
    pub fn flush(&self) {
        self.hand_over(&mut self.collected());
    }

    fn hand_over(&self, collected: &mut Collected) {
        let Collected { periods, rows } = std::mem::take(collected);
        let (Some(first), Some((begin_ns, end_ns))) = (periods.first(), span(&periods)) else {
            return;
        };
        let is = &first.facts.period;
        let files = table::files(&periods);
        let mut state = self.shared.lock();
        let count = periods.len() as u64;
        let files = match files {
            Ok(files) => files,
            Err(error) => {
                state.figures.periods_dropped += count;
                state.untold += count;
                state.figures.last_error = Some(error.to_string());
                return;
            }
        };
        let batch = Batch {
            date: format!("date={}", date_of(begin_ns)),
            host: host_part(&is.host),
            name: format!(
                "{}-{begin_ns}-{end_ns}.parquet",
                // Of the kernel's making, but not for sure.
                is.boot.replace(|c: char| !c.is_ascii_hexdigit(), ""),
            ),
            begin_ns,
            periods: count,
            rows: rows as u64,
            bytes: files.iter().map(|(_, bytes)| bytes.len()).sum(),
            files,
        };
        state.queued_bytes += batch.bytes;
        state.batches.push_back(batch);
        while state.queued_bytes > self.options.queue_bytes {
            let Some(oldest) = state.batches.pop_front() else {
                break;
            };
            state.queued_bytes -= oldest.bytes;
            state.figures.periods_dropped += oldest.periods;
            state.untold += oldest.periods;
        }
        drop(state);
        self.shared.wake.notify_all();
    }

    pub fn figures(&self) -> Figures {
        let collected = self.collected().periods.len() as u64;
        let state = self.shared.lock();
        let waiting: u64 = state.batches.iter().map(|batch| batch.periods).sum();
        Figures {
            periods_queued: collected + state.in_hand + waiting,
            ..state.figures.clone()
        }
    }

    /// What somebody should be told since this was asked last, in a sentence.
    pub fn news(&self) -> Option<String> {
        let mut state = self.shared.lock();
        let dropped = std::mem::take(&mut state.untold);
        if dropped > 0 {
            let error = state.figures.last_error.as_deref().unwrap_or("no room");
            return Some(format!(
                "{dropped} periods of the fleet's tables were dropped, as what cannot be written has no more room: {error}"
            ));
        }
        if state.failing == state.told_failing {
            return None;
        }
        state.told_failing = state.failing;
        Some(match (&state.figures.last_error, state.failing) {
            (Some(error), true) => {
                format!("the fleet's tables cannot be written now, and are tried again: {error}")
            }
            _ => "the fleet's tables are written again".into(),
        })
    }

    /// Writes what is left, for so long at most; what was not written then is dropped.
    pub fn close(mut self, patience: Duration) -> Figures {
        self.end(patience);
        self.figures()
    }

    fn end(&mut self, patience: Duration) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        self.flush();
        let end = Instant::now() + patience;
        let mut state = self.shared.lock();
        state.end = Some(end);
        self.shared.wake.notify_all();
        while !state.over && !writer.is_finished() {
            let left = (end + RETRY_ENDING).saturating_duration_since(Instant::now());
            if left.is_zero() {
                // A request is under way, of which nobody will hear what became.
                state.drop_left();
                break;
            }
            state = match self.shared.wake.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        self.end(PATIENCE);
    }
}

/// The writer's thread.
fn write_all(shared: &Shared, store: &Store, keep_days: Option<u32>) {
    let mut forgotten = String::new();
    while let Some(batch) = next(shared) {
        let mut pause = RETRY_FIRST;
        loop {
            // Before: it makes room.
            if let Some(days) = keep_days {
                forget(store, &batch, days, &mut forgotten);
            }
            let written = put(store, &batch);
            let mut state = shared.lock();
            match written {
                Ok(()) => {
                    state.in_hand = 0;
                    let figures = &mut state.figures;
                    figures.periods_written += batch.periods;
                    figures.files += batch.files.len() as u64;
                    figures.bytes += batch.bytes as u64;
                    figures.rows += batch.rows;
                    figures.last_error = None;
                    state.failing = false;
                    break;
                }
                Err(error) => {
                    state.figures.last_error = Some(error.to_string());
                    state.failing = true;
                }
            }
            if !wait(shared, state, pause) {
                let mut state = shared.lock();
                state.in_hand = 0;
                state.figures.periods_dropped += batch.periods;
                state.untold += batch.periods;
                break;
            }
            pause = (pause * 2).min(RETRY_LAST);
        }
    }
}

/// The oldest batch, when there is one. None: it is over.
fn next(shared: &Shared) -> Option<Batch> {
    let mut state = shared.lock();
    loop {
        let over = state.end.is_some_and(|end| end <= Instant::now());
        if over {
            state.drop_left();
            return None;
        }
        if let Some(batch) = state.batches.pop_front() {
            state.queued_bytes -= batch.bytes;
            state.in_hand = batch.periods;
            return Some(batch);
        }
        if state.end.is_some() {
            return None;
        }
        state = shared
            .wake
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// For so long, or until the end; false: it has come.
fn wait(shared: &Shared, mut state: MutexGuard<'_, State>, pause: Duration) -> bool {
    let mut until = Instant::now() + pause;
    let mut ends = false;
    loop {
        let now = Instant::now();
        if let Some(end) = state.end {
            if end <= now {
                return false;
            }
            if !ends {
                ends = true;
                until = until.min(end).min(now + RETRY_ENDING);
            }
        }
        let Some(left) = until.checked_duration_since(now).filter(|d| !d.is_zero()) else {
            return true;
        };
        state = match shared.wake.wait_timeout(state, left) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
}

fn put(store: &Store, batch: &Batch) -> Result<(), StoreError> {
    for (table, bytes) in &batch.files {
        store.put(&[table, &batch.date, &batch.host, &batch.name], bytes)?;
    }
    Ok(())
}

/// The newest day that another one of them agrees with.
fn newest(days: &BTreeSet<i64>) -> Option<i64> {
    let pairs = days.iter().zip(days.iter().skip(1));
    let agree = pairs.filter(|(before, day)| *day - *before <= AGREE_DAYS);
    agree.map(|(_, day)| *day).next_back()
}

/// Once for each day. It is the files' own, and one that stands alone does not count: a clock that is wrong does not empty
/// the place.
fn forget(store: &Store, batch: &Batch, days: u32, forgotten: &mut String) {
    if *forgotten == batch.date {
        return;
    }
    let mut own = store.days(&batch.host);
    own.insert((batch.begin_ns / DAY_NS) as i64);
    if let Some(newest) = newest(&own) {
        let first = u64::try_from(newest)
            .unwrap_or(0)
            .saturating_sub(u64::from(days));
        store.forget(&batch.host, &date_of(first * DAY_NS));
    }
    forgotten.clone_from(&batch.date);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a store that takes a request and does not answer.
    #[test]
    fn who_ends_does_not_wait_for_a_request() {
        let shared = Arc::new(Shared::default());
        let batch = |periods| Batch {
            date: "date=2026-11-27".into(),
            host: "host=h".into(),
            name: String::new(),
            begin_ns: 0,
            periods,
            rows: 0,
            bytes: 0,
            files: Vec::new(),
        };
        {
            let mut state = shared.lock();
            state.in_hand = 2;
            state.batches.extend([batch(3), batch(4)]);
        }
        let partitions = Partitions {
            options: Options::default(),
            collected: Mutex::default(),
            shared,
            writer: Some(std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(600));
            })),
        };
        let begin = Instant::now();
        let figures = partitions.close(Duration::from_millis(100));
        assert!(begin.elapsed() < Duration::from_secs(30));
        assert_eq!((figures.periods_dropped, figures.periods_queued), (9, 0));
    }

    #[test]
    fn a_day_that_stands_alone_does_not_count() {
        for (days, is) in [
            (&[][..], None),
            (&[9], None),
            (&[1, 9], None),
            (&[1, 8], Some(8)),
            (&[1, 2, 3, 400], Some(3)),
            (&[1, 2, 3, 400, 4_000], Some(3)),
            (&[1, 2, 3, 400, 405], Some(405)),
        ] {
            assert_eq!(newest(&days.iter().copied().collect()), is, "{days:?}");
        }
    }
}
