// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many connections does a server keep as fast as their lines, and how long does it let a
//! request wait?
//!
//! *Closed loop*: each connection asks as soon as its line is clear of the last answer
//! (`debox_select::pace`). *Open loop* (a rate, which may change as time goes on): requests begin by a schedule, and wait for a free
//! connection if there is none; their times count from when they should have begun, so that a
//! server that stalls is not spared the requests of that time. Those that should have begun in the
//! measured time are waited for after it.
//!
//! Nothing counts before the bytes per second are level (Mann and Kendall's test over two blocks of
//! windows of a second, one after the other), or it is said that they were not.

use crate::mix::{Mix, Operation, RightAnswer};
use crate::outcome::{Group, Outcome};
use crate::rates::Rates;
use debox_select::connections::{Answered, Connections, Event, Failure, Options};
use debox_select::pace::Line;
use debox_select::servers::descriptors_allow;
use debox_select::stat::level_probability;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub enum WarmUp {
    /// Until it is level, but no longer.
    Level(Duration),
    Fixed(Duration),
}

/// One that is asked for instead of the mix.
#[derive(Clone, Debug)]
pub struct Page {
    pub path: String,
    pub bytes: u64,
}

impl Page {
    fn text(&self, close: bool) -> String {
        let close = if close { "Connection: close\r\n" } else { "" };
        let path = &self.path;
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n")
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub server: SocketAddrV4,
    pub directories: u32,
    pub connections: usize,
    pub idle: usize,
    /// Of each connection's line; 0: without end.
    pub line_kbit: f64,
    pub conforming_kbit: f64,
    pub static_only: bool,
    pub cgi_percent: f64,
    /// Open loop.
    pub rates: Option<Rates>,
    /// Where they change: their time 0, in seconds of the monotonic clock.
    pub begin_at: Option<f64>,
    pub page: Option<Page>,
    /// Requests of a connection on average; 0: it stays.
    pub new_connection_every: u32,
    pub measured: Duration,
    pub warm_up: WarmUp,
    pub seed: u64,
    pub verify_percent: f64,
    pub silence: Duration,
}

impl Plan {
    /// Whether the rate changes as time goes on.
    pub fn changes(&self) -> bool {
        self.rates
            .as_ref()
            .is_some_and(|rates| rates.end().is_some())
    }
}

/// Windows of a second in a block.
const BLOCK: usize = 8;
/// Level: so large a trend comes by chance more often than this.
const LEVEL_PROBABILITY: f64 = 0.1;
const WINDOW: Duration = Duration::from_secs(1);
/// Connections of a closed loop begin one after the other, in so long or the whole warm-up.
const RAMP: Duration = Duration::from_secs(1);
/// A connection that failed asks again after so long: a server that refuses is not to be
/// hammered.
const PAUSE_FAILED: Duration = Duration::from_millis(10);
const PAUSE_REFUSED: Duration = Duration::from_millis(100);
/// Idle connections follow their number so often.
const IDLE_EVERY: Duration = Duration::from_millis(5);
/// Descriptors of other things.
const DESCRIPTORS_OWN: usize = 32;

struct Asked {
    operation: Operation,
    class: u32,
    right: RightAnswer,
    verified: bool,
    begun: Instant,
    last: bool,
}

#[derive(Default)]
struct Slot {
    asked: Option<Asked>,
    /// Until the connection is made anew.
    left: u32,
    /// Its line is clear then.
    clear_at: Option<Instant>,
    answers: u64,
    errors: u64,
    received_before: u64,
}

struct Run<'a> {
    plan: &'a Plan,
    mix: Mix,
    connections: Connections,
    /// Behind the idle connections, one for each that asks.
    slots: Vec<Slot>,
    events: Vec<(usize, Event)>,
    /// Open loop: since when it goes, when the next request should begin (None: no more do), and
    /// who is free for it.
    origin: Instant,
    due: Option<Instant>,
    free: VecDeque<usize>,
    /// The next request waits for its time, not for a connection.
    in_time: bool,
    /// Idle connections, as far as they come and go.
    idle_open: VecDeque<usize>,
    idle_shut: Vec<usize>,
    from: Option<Instant>,
    to: Option<Instant>,
    outcome: Outcome,
}

pub fn run(plan: &Plan) -> io::Result<Outcome> {
    let wanted = plan.idle + plan.connections + DESCRIPTORS_OWN;
    let allowed = descriptors_allow(wanted);
    if allowed < wanted {
        return Err(io::Error::other(format!(
            "{} connections need {wanted} descriptors, and {allowed} are allowed: raise `ulimit -Hn`",
            plan.idle + plan.connections
        )));
    }
    // Timers are to be as exact as they can be: the default lets them be 50 us late.
    // SAFETY: takes a number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let options = Options {
        server: plan.server,
        line: (plan.line_kbit > 0.0).then(|| Line::new(plan.line_kbit * 1000.0)),
        silence: Some(plan.silence),
    };
    let mut connections = Connections::new(options, plan.idle + plan.connections)?;
    let rates = plan.rates.as_ref();
    let idle = rates.and_then(|rates| rates.idle(0.0)).unwrap_or(plan.idle);
    connections.open_first(idle, plan.silence)?;
    let now = begin(plan)?;
    let mut run = Run {
        plan,
        mix: Mix::new(
            plan.directories,
            plan.static_only,
            plan.cgi_percent,
            plan.seed,
        ),
        connections,
        slots: std::iter::repeat_with(Slot::default)
            .take(plan.connections)
            .collect(),
        events: Vec::new(),
        origin: now,
        due: None,
        free: VecDeque::new(),
        in_time: true,
        idle_open: (0..idle).collect(),
        idle_shut: (idle..plan.idle).collect(),
        from: None,
        to: None,
        outcome: Outcome::new(plan),
    };
    run.begin(now);
    run.warm_up()?;
    run.measure()?;
    Ok(run.outcome)
}

/// When it begins: now, or as the plan says.
fn begin(plan: &Plan) -> io::Result<Instant> {
    let Some(at_s) = plan.begin_at else {
        return Ok(Instant::now());
    };
    let mut clock = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills a local.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut clock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let left_s = at_s - (clock.tv_sec as f64 + clock.tv_nsec as f64 * 1e-9);
    if left_s < 0.0 {
        return Err(io::Error::other(format!(
            "--begin-at was {:.2} s ago when the idle connections were open: give a later one",
            -left_s
        )));
    }
    let begin = Instant::now() + Duration::from_secs_f64(left_s);
    std::thread::sleep(Duration::from_secs_f64(left_s));
    Ok(begin)
}

/// How likely is a trend as large as that of the last two whole blocks without any? Of three the
/// least likely: of each of the two, and of both together, which shows a slow one. Blocks do not
/// overlap: of a test that is made anew with each window, one by chance lets any trend pass. None:
/// there are no two yet.
pub fn level(windows: &[f64]) -> Option<f64> {
    let whole = windows.len() / BLOCK * BLOCK;
    let both = &windows[whole.checked_sub(2 * BLOCK)?..whole];
    let (first, second) = both.split_at(BLOCK);
    let probabilities = [first, second, both].map(level_probability);
    Some(probabilities.into_iter().fold(1.0, f64::min))
}

/// CPU time of this thread, and the time it waited for a CPU.
fn own_times() -> io::Result<(Duration, Duration)> {
    // SAFETY: fills a local.
    let busy = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) != 0 {
            return Err(io::Error::last_os_error());
        }
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    // Kernels without CONFIG_SCHED_INFO have no such file.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((busy, Duration::from_nanos(waited.unwrap_or(0))))
}

impl Run<'_> {
    fn begin(&mut self, now: Instant) {
        let ramp = match self.plan.warm_up {
            WarmUp::Level(most) | WarmUp::Fixed(most) => RAMP.min(most),
        };
        if self.plan.changes() {
            self.due_next(0.0);
        } else if self.plan.rates.is_some() {
            self.due = Some(now);
        }
        for i in 0..self.plan.connections {
            if self.plan.rates.is_some() {
                self.free.push_back(i);
            } else {
                let part = i as f64 / self.plan.connections as f64;
                self.connections
                    .wake(self.plan.idle + i, now + ramp.mul_f64(part));
            }
        }
    }

    /// The request after the one that was due then.
    fn due_next(&mut self, due_s: f64) {
        let requests = self.mix.until_next();
        let rates = self.plan.rates.as_ref();
        let next = rates.and_then(|rates| rates.after(due_s, requests));
        self.due = next.map(|s| self.origin + Duration::from_secs_f64(s));
    }

    fn since_begin(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.origin).as_secs_f64()
    }

    /// Goes on for one window; the bytes per second in it.
    fn window(&mut self, length: Duration) -> io::Result<f64> {
        let begin = Instant::now();
        let before = self.connections.received_in_all();
        loop {
            let left = length.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            self.turn(begin + length)?;
        }
        let bytes = self.connections.received_in_all() - before;
        Ok(bytes as f64 / begin.elapsed().as_secs_f64())
    }

    fn warm_up(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let most = match self.plan.warm_up {
            WarmUp::Level(most) | WarmUp::Fixed(most) => most,
        };
        let mut windows = Vec::new();
        let mut probability = None;
        loop {
            let left = most.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            let speed = self.window(WINDOW.min(left))?;
            // A rest of a window is none; in the first one the connections begin.
            if left < WINDOW || begin.elapsed() < RAMP + WINDOW / 2 {
                continue;
            }
            windows.push(speed);
            probability = level(&windows);
            let level = probability.is_some_and(|p| p >= LEVEL_PROBABILITY);
            if level && matches!(self.plan.warm_up, WarmUp::Level(_)) {
                break;
            }
        }
        let warm_up = &mut self.outcome.warm_up;
        warm_up.seconds = begin.elapsed().as_secs_f64();
        warm_up.stationary = probability.map(|p| p >= LEVEL_PROBABILITY);
        if let WarmUp::Level(_) = self.plan.warm_up {
            // Too short to tell is not level.
            warm_up.stationary.get_or_insert(false);
        }
        warm_up.trend_p = probability;
        Ok(())
    }

    fn measure(&mut self) -> io::Result<()> {
        for (i, slot) in self.slots.iter_mut().enumerate() {
            slot.received_before = self.connections.received(self.plan.idle + i);
        }
        self.connections.take_lateness();
        let received_before = self.connections.received_in_all();
        let (busy, waited) = own_times()?;
        // Where the rate changes, its time is the measured one.
        let begin = match self.plan.changes() {
            true => self.origin,
            false => Instant::now(),
        };
        self.from = Some(begin);
        let mut windows = Vec::new();
        loop {
            let left = self.plan.measured.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            let speed = self.window(WINDOW.min(left))?;
            if left >= WINDOW / 2 {
                windows.push(speed);
            }
        }
        let end = Instant::now();
        self.to = Some(end);
        let seconds = (end - begin).as_secs_f64();
        let (busy_after, waited_after) = own_times()?;
        let bytes = self.connections.received_in_all() - received_before;
        let slot_kbit = self.slots.iter().enumerate().map(|(i, slot)| {
            let bytes = self.connections.received(self.plan.idle + i) - slot.received_before;
            let good = slot.errors * 100 < (slot.answers + slot.errors).max(1);
            (bytes as f64 * 8e-3 / seconds, good)
        });
        let slot_kbit = slot_kbit.collect();
        if self.plan.rates.is_some() {
            self.finish(end)?;
        }
        let oldest = self.connections.owed_since();
        let o = &mut self.outcome;
        o.set_generator(
            (busy_after - busy).as_secs_f64() / seconds,
            (waited_after - waited).as_secs_f64() / seconds,
        );
        if windows.len() >= BLOCK {
            o.measured_trend_p = Some(level_probability(&windows));
        }
        o.unfinished = self.connections.owed_count() as u64;
        o.oldest_unfinished_s = oldest.map_or(0.0, |since| (end - since.min(end)).as_secs_f64());
        o.set_measured(seconds, bytes, windows, slot_kbit);
        Ok(())
    }

    /// Open loop: waits for the answers to what should have begun in the measured time.
    fn finish(&mut self, end: Instant) -> io::Result<()> {
        let until = end + self.plan.silence;
        let is_open = |run: &Self| {
            let counts = |slot: &Slot| slot.asked.as_ref().is_some_and(|asked| asked.begun < end);
            run.due.is_some_and(|due| due < end) || run.slots.iter().any(counts)
        };
        while is_open(self) && Instant::now() < until {
            self.turn(until.min(Instant::now() + Duration::from_millis(20)))?;
        }
        // Whoever is asked and has not failed yet has been silent for shorter than the limit.
        while let Some(due) = self.due.filter(|due| *due < end) {
            let request = self.mix.draw();
            let group = Group::of(request.operation, request.file.class);
            self.outcome.error(group, "not_begun");
            self.due_next(self.since_begin(due));
        }
        for slot in &mut self.slots {
            if let Some(asked) = slot.asked.take_if(|asked| asked.begun < end) {
                self.outcome
                    .error(Group::of(asked.operation, asked.class), "unfinished");
            }
        }
        Ok(())
    }

    /// Whether a request counts that began then and ends now.
    fn counts(&self, begun: Instant) -> bool {
        let inside = |at: Instant| {
            self.from.is_some_and(|from| from <= at) && self.to.is_none_or(|to| at < to)
        };
        match self.plan.rates {
            Some(_) => inside(begun),
            None => inside(Instant::now()),
        }
    }

    fn turn(&mut self, until: Instant) -> io::Result<()> {
        let mut until = until;
        if self.plan.rates.is_some() {
            self.keep_to_schedule()?;
            self.in_time = !self.free.is_empty();
            if let Some(due) = self.due.filter(|_| self.in_time) {
                until = until.min(due);
            }
        }
        if self.plan.changes() && self.to.is_none() {
            self.follow_idle()?;
            until = until.min(Instant::now() + IDLE_EVERY);
        }
        let (slots, idle) = (&self.slots, self.plan.idle);
        let mut right = |at: usize, offset: u64, bytes: &[u8]| {
            let asked = at.checked_sub(idle).and_then(|i| slots[i].asked.as_ref());
            asked.is_none_or(|asked| !asked.verified || asked.right.has(offset, bytes))
        };
        let mut events = std::mem::take(&mut self.events);
        self.connections.poll(until, &mut events, &mut right)?;
        for (at, event) in events.drain(..) {
            match at.checked_sub(idle) {
                Some(i) => self.happened(i, event)?,
                None => self.idle_happened(at, event)?,
            }
        }
        self.events = events;
        for late in self.connections.take_lateness() {
            if self.from.is_some() && self.to.is_none() {
                self.outcome
                    .lateness
                    .saturating_record(late.as_micros() as u64);
            }
        }
        Ok(())
    }

    fn keep_to_schedule(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let is_due =
            |due: &Instant, to: Option<Instant>| *due <= now && to.is_none_or(|to| *due < to);
        while let Some(begun) = self.due.filter(|due| is_due(due, self.to)) {
            let Some(i) = self.free.pop_front() else {
                break;
            };
            let at_s = self.since_begin(begun);
            self.due_next(at_s);
            if self.plan.changes() {
                self.outcome.timeline.asked(at_s);
            }
            if self.in_time && self.from.is_some() {
                let late = Instant::now().saturating_duration_since(begun);
                let _ = self.outcome.lateness.record(late.as_micros() as u64);
            }
            self.ask(i, begun, Duration::ZERO)?;
        }
        Ok(())
    }

    /// Opens and closes as many as the plan has now; those that were open the longest go.
    fn follow_idle(&mut self) -> io::Result<()> {
        let now_s = self.since_begin(Instant::now());
        let rates = self.plan.rates.as_ref();
        let Some(wanted) = rates.and_then(|rates| rates.idle(now_s)) else {
            return Ok(());
        };
        while self.idle_open.len() > wanted {
            let at = self.idle_open.pop_front().expect("more than are wanted");
            self.connections.close(at);
            self.idle_shut.push(at);
        }
        while self.idle_open.len() < wanted {
            let at = self.idle_shut.pop().expect("as many as are ever wanted");
            self.connections.start(at)?;
            self.idle_open.push_back(at);
        }
        Ok(())
    }

    fn idle_happened(&mut self, at: usize, event: Event) -> io::Result<()> {
        if let Event::Woken = event {
            return self.connections.start(at);
        }
        if self.from.is_some() && self.to.is_none() {
            self.outcome.idle_closed += 1;
        }
        self.connections.wake(at, Instant::now() + PAUSE_REFUSED);
        Ok(())
    }

    fn ask(&mut self, i: usize, begun: Instant, late: Duration) -> io::Result<()> {
        let request = self.mix.draw();
        let at = self.plan.idle + i;
        let slot = &mut self.slots[i];
        let every = self.plan.new_connection_every;
        if every > 0 && !self.connections.is_open(at) {
            slot.left = self.mix.connection_length(every);
        }
        slot.left = slot.left.saturating_sub(1);
        let last = every > 0 && slot.left == 0;
        let (text, right) = match &self.plan.page {
            Some(page) => (page.text(last), RightAnswer::of_length(page.bytes)),
            None => (request.text(last), request.right_answer()),
        };
        slot.asked = Some(Asked {
            operation: request.operation,
            class: request.file.class,
            right,
            verified: self.mix.chance(self.plan.verify_percent),
            begun,
            last,
        });
        self.connections.ask(at, text.as_bytes(), begun, late)
    }

    fn happened(&mut self, i: usize, event: Event) -> io::Result<()> {
        let at = self.plan.idle + i;
        let now = Instant::now();
        match event {
            Event::Woken => {
                let clear_at = self.slots[i].clear_at.take();
                if self.plan.rates.is_some() {
                    self.free(i);
                    return Ok(());
                }
                // Since the line is clear, it was our timer that let it wait.
                let late =
                    clear_at.map_or(Duration::ZERO, |clear| now.saturating_duration_since(clear));
                self.ask(i, now, late)
            }
            Event::Answered(answer) => {
                let asked = self.slots[i]
                    .asked
                    .take()
                    .expect("an answer to what was asked");
                self.judge(i, &asked, &answer);
                if asked.last {
                    self.connections.close(at);
                }
                self.slots[i].clear_at = Some(answer.clear_at);
                if answer.clear_at > now {
                    self.connections.wake(at, answer.clear_at);
                    return Ok(());
                }
                self.happened(i, Event::Woken)
            }
            Event::Failed(failure) => {
                let asked = self.slots[i]
                    .asked
                    .take()
                    .expect("a failure of what was asked");
                if self.counts(asked.begun) {
                    self.slots[i].errors += 1;
                    let group = Group::of(asked.operation, asked.class);
                    self.outcome.error(group, failure_name(failure));
                }
                let pause = match failure {
                    Failure::Connect => PAUSE_REFUSED,
                    _ => PAUSE_FAILED,
                };
                self.connections.wake(at, now + pause);
                Ok(())
            }
            Event::Closed { unasked } => {
                if self.counts(now) {
                    self.outcome.closed_between += 1;
                    self.outcome.unasked += u64::from(unasked);
                }
                // One that is free is opened by the next request.
                if self.plan.rates.is_none() {
                    self.connections.wake(at, now);
                }
                Ok(())
            }
        }
    }

    fn free(&mut self, i: usize) {
        self.free.push_back(i);
        let at = self.plan.idle + i;
        // One that the server closes meanwhile is opened anew, and no error.
        if self.connections.is_open(at) {
            self.connections.watch(at);
        }
    }

    fn judge(&mut self, i: usize, asked: &Asked, answer: &Answered) {
        if !self.counts(asked.begun) {
            return;
        }
        let group = Group::of(asked.operation, asked.class);
        let wrong = if answer.status != 200 {
            self.outcome.status(answer.status);
            Some("status")
        } else if answer.body_bytes != asked.right.bytes() {
            Some("length")
        } else if !answer.right {
            Some("bytes")
        } else {
            None
        };
        self.outcome.verified += u64::from(asked.verified && answer.status == 200);
        match wrong {
            Some(kind) => {
                self.slots[i].errors += 1;
                self.outcome.error(group, kind);
            }
            None => {
                self.slots[i].answers += 1;
                self.outcome.answer(group, answer);
                if self.plan.changes() {
                    let at_s = self.since_begin(asked.begun + answer.whole);
                    self.outcome.timeline.answered(at_s);
                }
            }
        }
    }
}

fn failure_name(failure: Failure) -> &'static str {
    match failure {
        Failure::Connect => "connect",
        Failure::Closed => "closed",
        Failure::Reset => "reset",
        Failure::NotHttp => "not_http",
        Failure::TooLong => "length",
        Failure::Silent => "silent",
        Failure::Stalled => "stalled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows that rise by `rise` of the first one each second, with normal noise of 5 %.
    fn windows(rise: f64, count: usize, random: &mut fastrand::Rng) -> Vec<f64> {
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        (0..count)
            .map(|n| 1.0 + rise * n as f64 + 0.05 * normal())
            .collect()
    }

    /// After how many windows the warm-up ends; None: not within a minute.
    fn ends_after(windows: &[f64]) -> Option<usize> {
        (1..=windows.len()).find(|n| level(&windows[..*n]).is_some_and(|p| p >= LEVEL_PROBABILITY))
    }

    /// Of 1,000 warm-ups: how many are over after two blocks, and how many within a minute.
    fn passed(rise: f64) -> (usize, usize) {
        let mut random = fastrand::Rng::with_seed(1);
        let ends: Vec<_> = (0..1000)
            .filter_map(|_| ends_after(&windows(rise, 58, &mut random)))
            .collect();
        let soon = ends.iter().filter(|n| **n == 2 * BLOCK).count();
        assert!(ends.iter().all(|n| *n >= 2 * BLOCK && n % BLOCK == 0));
        (soon, ends.len())
    }

    #[test]
    fn what_rises_by_two_percent_a_second_is_not_level_and_what_is_flat_is() {
        let (soon, ever) = passed(0.02);
        assert!(soon < 20 && ever < 50, "{soon}, {ever}");
        let (soon, ever) = passed(0.01);
        assert!(soon < 150 && ever < 400, "{soon}, {ever}");
        let (soon, ever) = passed(0.0);
        assert!(soon > 650 && ever > 980, "{soon}, {ever}");
    }

    #[test]
    fn a_level_block_behind_another_level_one_is_not_level_if_it_is_lower() {
        let mut windows = [vec![2.0; BLOCK], vec![1.0; BLOCK]].concat();
        for (n, speed) in windows.iter_mut().enumerate() {
            *speed += [0.0, 0.01, -0.01][n % 3];
        }
        assert!(level(&windows).unwrap() < LEVEL_PROBABILITY);
        windows.extend_from_within(BLOCK..);
        assert!(level(&windows).unwrap() >= LEVEL_PROBABILITY);
        assert_eq!(level(&windows[..2 * BLOCK - 1]), None);
    }
}
