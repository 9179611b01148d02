// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to a run's account while the run lasts?
//!
//! A thread looks at it: often at first, less often the longer the run lasts,
//! and never so often that looking costs more than a small share of one CPU.
//! Events are taken out of their ring more often than that, since the ring is
//! small. What was seen is flushed to the recording from time to time.

use crate::format::Start;
use crate::gauge::{Gauges, gauge};
use crate::history::{History, RowSums};
use crate::slow::{MATCHED_MAX, Reservoir, thresholds_begin, thresholds_raise};
use crate::writer::{Contents, WriteError, Writer};
use debox_abi::debox_event_call;
use debox_output::count_text;
use debox_report::{CallNames, Note, NoteKind, Report};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first look comes soon: a run may end within milliseconds.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// The ring of events is emptied at least so often.
const DRAIN_MAX: Duration = Duration::from_millis(100);
const FLUSH_MIN: Duration = Duration::from_millis(500);
const FLUSH_MAX: Duration = Duration::from_secs(10);
/// A look, a gauge or a flush that took t is not repeated before t x this: each
/// of them costs at most half a percent of a CPU.
const COST_TIMES: u32 = 200;

/// CLOCK_MONOTONIC, the clock of events.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What is looked at. Times of events are CLOCK_MONOTONIC.
pub trait Account: Send + 'static {
    /// Tells the sums of each call (by nr key) that returned since the last look.
    fn look(&mut self, each: &mut dyn FnMut(u32, &RowSums));
    /// Empties the ring of events.
    fn events(&mut self, each: &mut dyn FnMut(&debox_event_call));
    /// Whether single sleeps are told, since the ends of calls are not seen.
    fn tells_sleeps(&self) -> bool;
    /// From what wall time on calls of `key`, or sleeps in them, are worth an event.
    fn threshold_set(&mut self, key: u32, wall_ns: u64);
    /// For who acts on events at once: what is readable when some wait, and how
    /// long to wait at most, `age` after the start.
    fn urgent(&self, age: Duration) -> Option<(BorrowedFd<'_>, Duration)>;
    /// A report of now, for a flush. `slow` is what was kept so far.
    fn report(&mut self, wall_ns: u64, slow: &[&debox_event_call]) -> Report;
}

pub struct Options {
    /// CLOCK_MONOTONIC at the start of the run.
    pub start_ns: u64,
    /// Processes whose sizes are read; empty: none.
    pub roots: Vec<u32>,
    /// Their children, too.
    pub follow: bool,
    pub call_names: Box<dyn Fn(u32, bool) -> Option<String> + Send>,
}

/// Everything that was seen.
pub struct Observed {
    pub history: History,
    pub gauges: Gauges,
    pub slow: Reservoir,
    pub looks: u64,
}

impl Observed {
    /// Takes in an event that comes after the last look.
    pub fn event(&mut self, event: &debox_event_call) {
        self.slow.add(event);
    }

    /// Puts what only an observer sees into a report.
    pub fn complete(&self, report: &mut Report, names: &CallNames<'_>) {
        report.history = self.history.all(names);
        report.gauges = self.gauges.all().to_vec();
        report.slow_calls_left_out = self.slow.left_out();
        let more = self.slow.matched_dropped();
        if more > 0 {
            report.notes.push(Note::new(
                NoteKind::DetailsDropped,
                more,
                format!(
                    "of the calls that met a condition (--on) the first {MATCHED_MAX} are kept singly; {} \
                     more are there only if they are among the slowest",
                    count_text(more)
                ),
            ));
        }
    }
}

/// The thread that looks.
pub struct Observer<A: Account> {
    stop: UnixStream,
    thread: JoinHandle<Watcher<A>>,
}

struct Watcher<A: Account> {
    account: A,
    options: Options,
    writer: Option<Writer>,
    seen: Observed,
    since: Instant,
}

/// When something is due again.
pub(crate) struct Pace {
    due: Instant,
    min: Duration,
    max: Duration,
    /// Part of the run's length that passes between two times.
    part: u32,
}

impl Pace {
    /// Of looks at the sums, from now on.
    pub(crate) fn of_looks() -> Self {
        Self {
            due: Instant::now() + LOOK_FIRST,
            min: LOOK_MIN,
            max: LOOK_MAX,
            part: 200,
        }
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    pub(crate) fn next(&mut self, since: Instant, began: Instant) {
        let now = Instant::now();
        let by_age = (now - since) / self.part;
        let by_cost = (now - began) * COST_TIMES;
        self.due = now + by_age.clamp(self.min, self.max).max(by_cost);
    }
}

impl<A: Account> Observer<A> {
    /// Without a writer only the events are taken out.
    pub fn start(
        mut account: A,
        writer: Option<Writer>,
        options: Options,
    ) -> std::io::Result<Self> {
        if writer.is_some() {
            thresholds_begin(&mut account);
        }
        let (stopped, stop) = UnixStream::pair()?;
        let thread = std::thread::Builder::new()
            .name("debox-observer".into())
            .spawn(move || {
                let mut watcher = Watcher {
                    account,
                    options,
                    writer,
                    seen: Observed {
                        history: History::default(),
                        gauges: Gauges::default(),
                        slow: Reservoir::default(),
                        looks: 0,
                    },
                    since: Instant::now(),
                };
                watcher.run(&stopped);
                watcher
            })?;
        Ok(Self { stop, thread })
    }

    /// Looks for the last time and gives everything back. The writer has not
    /// been finished: the final report is made first.
    pub fn finish(self) -> (A, Observed, Option<Recording>) {
        drop(self.stop);
        let mut watcher = match self.thread.join() {
            Ok(watcher) => watcher,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        watcher.drain();
        if watcher.writer.is_some() {
            watcher.look();
        }
        let recording = watcher.writer.map(|writer| Recording { writer });
        (watcher.account, watcher.seen, recording)
    }
}

/// A recording whose command has ended.
pub struct Recording {
    writer: Writer,
}

impl Recording {
    /// Writes the final report, which has history and gauges in it, and closes
    /// the file.
    pub fn finish(self, report: &Report) -> Result<PathBuf, WriteError> {
        let mut sums = report.clone();
        let history = std::mem::take(&mut sums.history);
        let gauges = std::mem::take(&mut sums.gauges);
        strip(&mut sums);
        self.writer.finish(&Contents {
            until_ns: sums.run.wall_ns,
            report: &sums,
            history,
            gauges,
            whole: true,
        })
    }
}

/// What is made from the rest whenever a recording is read.
pub(crate) fn strip(report: &mut Report) {
    report.history.clear();
    report.gauges.clear();
    report.trends.clear();
    report.findings.clear();
    report.recording = None;
}

impl<A: Account> Watcher<A> {
    /// Until the other end of `stopped` is closed.
    fn run(&mut self, stopped: &UnixStream) {
        let now = Instant::now();
        let (mut look, mut sizes) = (Pace::of_looks(), Pace::of_looks());
        let mut flush = Pace {
            due: now + FLUSH_MIN,
            min: FLUSH_MIN,
            max: FLUSH_MAX,
            part: 20,
        };
        let never = now + Duration::from_secs(u32::MAX.into());
        if self.writer.is_none() {
            (look.due, flush.due) = (never, never);
        }
        if self.writer.is_none() || self.options.roots.is_empty() {
            sizes.due = never;
        }
        loop {
            let due = look.due.min(sizes.due).min(flush.due);
            let left = due.saturating_duration_since(Instant::now());
            if self.wait(stopped, left.min(DRAIN_MAX)) {
                return;
            }
            self.drain();
            let began = Instant::now();
            if look.is_due(began) {
                self.look();
                look.next(self.since, began);
            }
            let began = Instant::now();
            if sizes.is_due(began) {
                let (roots, follow) = (&self.options.roots, self.options.follow);
                if let Some(gauge) = gauge(roots, follow, self.run_ns()) {
                    self.seen.gauges.add(gauge);
                }
                sizes.next(self.since, began);
            }
            let began = Instant::now();
            if flush.is_due(began) {
                self.flush();
                flush.next(self.since, began);
            }
        }
    }

    /// Whether it is time to end.
    fn wait(&self, stopped: &UnixStream, longest: Duration) -> bool {
        let entry = |fd: BorrowedFd<'_>| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let urgent = self.account.urgent(self.since.elapsed());
        let mut list = vec![entry(stopped.as_fd())];
        list.extend(urgent.map(|(events, _)| entry(events)));
        let wait = urgent.map_or(longest, |(_, pause)| pause.min(longest));
        // Rounded up: waking before something is due would spin.
        let wait = wait.as_micros().div_ceil(1000) as i32;
        // SAFETY: a valid list of its length; the descriptors live.
        unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, wait) };
        list[0].revents != 0
    }

    fn run_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.options.start_ns)
    }

    fn drain(&mut self) {
        let (slow, kept) = (&mut self.seen.slow, self.writer.is_some());
        let mut told = false;
        self.account.events(&mut |event| {
            if kept {
                slow.add(event);
                told = true;
            }
        });
        if told && self.account.tells_sleeps() {
            thresholds_raise(&mut self.account, &[], &self.seen.slow);
        }
    }

    fn look(&mut self) {
        let time_ns = self.run_ns();
        let history = &mut self.seen.history;
        let mut changed = false;
        self.account.look(&mut |key, row| {
            changed = true;
            history.add(key, row, time_ns);
        });
        self.seen.looks += 1;
        if changed && !self.account.tells_sleeps() {
            let sums: Vec<(u32, &RowSums)> = self.seen.history.sums().collect();
            thresholds_raise(&mut self.account, &sums, &self.seen.slow);
        }
    }

    fn flush(&mut self) {
        let Some(mut writer) = self.writer.take() else {
            return;
        };
        self.look();
        let until_ns = self.run_ns();
        let mut report = self.account.report(until_ns, &self.seen.slow.events());
        strip(&mut report);
        let names = &self.options.call_names;
        let whole = writer.wants_whole();
        let pending = self.seen.history.pending_take(names);
        let pending_gauges = self.seen.gauges.pending_take();
        let (history, gauges) = if whole {
            (
                self.seen.history.all(names),
                self.seen.gauges.all().to_vec(),
            )
        } else {
            (pending, pending_gauges)
        };
        writer.flush(&Contents {
            report: &report,
            history,
            gauges,
            whole,
            until_ns,
        });
        self.writer = Some(writer);
    }
}

/// What `uname` and the clock say, for the first block.
pub fn start_here(start: Start) -> Start {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim_end().to_owned()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Start {
        started_unix_ns: now.map_or(0, |d| d.as_nanos() as u64),
        kernel: read("/proc/sys/kernel/osrelease"),
        hostname: read("/proc/sys/kernel/hostname"),
        ..start
    }
}
