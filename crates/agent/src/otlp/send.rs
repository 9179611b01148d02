// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who sends what waits, when is it tried again, and who is told?
//!
//! A thread of its own: who hands something over waits for nothing, however long a request
//! takes. Each signal has its own times: one that is refused for now does not hold the other up. What may
//! be tried again is, after a pause that doubles up to a minute, with chance in it, so that many
//! agents do not come back at once; a server's own word on when is followed, within bounds.

use super::answer::Answer;
use super::config::{OtlpConfig, Signal};
use super::line::Line;
use super::queue::{Batch, Figures, Queue, Reason};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// Who is to end is not patient.
const RETRY_ENDING: Duration = Duration::from_millis(200);
/// A server that wants more than that is wrong, or means harm.
const AFTER_MOST: Duration = Duration::from_secs(900);
/// Less is no time for a request.
const LIMIT_LEAST: Duration = Duration::from_millis(50);

/// What became of the last request. Somebody is told when that is another thing than before; the words may differ
/// each time, and are told with the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Went {
    #[default]
    Well,
    /// So many items were left out.
    Partly(u64),
    Later,
    Refused,
}

impl Went {
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// How it stands with a signal.
struct Lane {
    due: Instant,
    pause: Duration,
    went: Went,
    /// In the server's words, or the connection's.
    said: String,
    told: Went,
    /// That there was no more room: it is said once, until something is taken again.
    full_told: bool,
    /// Items that were dropped for it until somebody was told last.
    full: u64,
    /// Since when something is to be sent and nobody has answered anything of use.
    waits: Option<Instant>,
}

impl Lane {
    fn new() -> Self {
        Self {
            due: Instant::now(),
            pause: RETRY_FIRST,
            went: Went::Well,
            said: String::new(),
            told: Went::Well,
            full_told: false,
            full: 0,
            waits: None,
        }
    }

    fn trouble(&self) -> Option<&str> {
        matches!(self.went, Went::Later | Went::Refused).then_some(self.said.as_str())
    }
}

struct State {
    queue: Queue,
    config: Arc<OtlpConfig>,
    /// Another one for each other config.
    generation: u64,
    lanes: [Lane; Signal::ALL.len()],
    /// Which had its turn last.
    last: Signal,
    /// Until when what is left may be sent.
    end: Option<Instant>,
    /// Of so many items a request is under way.
    in_hand: u64,
    ended: bool,
    /// What was not sent at the end.
    left: u64,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For so long at most; without an end until somebody wakes it.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match limit {
            Some(limit) => match self.wake.wait_timeout(state, limit) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            },
            None => (self.wake.wait(state)).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// What is sent next.
struct Work {
    batch: Batch,
    config: Arc<OtlpConfig>,
    generation: u64,
    limit: Duration,
}

impl State {
    /// Whose turn it is; with two that are due the one that was not last.
    fn ready(&self, now: Instant) -> Option<Signal> {
        let mut order = Signal::ALL;
        if order[0] == self.last {
            order.reverse();
        }
        (order.into_iter())
            .find(|signal| self.queue.has(*signal) && self.lanes[*signal as usize].due <= now)
    }

    /// When something will be ready, if nothing comes.
    fn due(&self) -> Option<Instant> {
        let waiting = Signal::ALL.into_iter().filter(|is| self.queue.has(*is));
        waiting.map(|is| self.lanes[is as usize].due).min()
    }

    fn work(&mut self, now: Instant) -> Option<Work> {
        let signal = self.ready(now)?;
        let batch = self.queue.take(signal)?;
        self.last = signal;
        self.in_hand = batch.items;
        let limit = match self.end {
            Some(end) => end.saturating_duration_since(now).min(self.config.timeout),
            None => self.config.timeout,
        };
        Some(Work {
            batch,
            config: self.config.clone(),
            generation: self.generation,
            limit: limit.max(LIMIT_LEAST),
        })
    }

    fn settle(&mut self, work: Work, answer: Answer) {
        let Work {
            batch, generation, ..
        } = work;
        self.in_hand = 0;
        let now = Instant::now();
        let ending = self.end.is_some();
        let has_more = self.queue.has(batch.signal);
        let lane = &mut self.lanes[batch.signal as usize];
        if !matches!(answer, Answer::Later { .. }) {
            lane.waits = has_more.then_some(now);
        }
        match answer {
            Answer::Taken { rejected, said } => {
                let rejected = rejected.min(batch.items);
                // What is said of nothing left out is a warning.
                lane.went = match rejected == 0 && said.is_empty() {
                    true => Went::Well,
                    false => Went::Partly(rejected),
                };
                lane.said = said;
                lane.full_told = false;
                lane.pause = RETRY_FIRST;
                lane.due = now;
                self.queue.sent(&batch, rejected);
            }
            Answer::Refused { what } => {
                (lane.went, lane.said) = (Went::Refused, what);
                lane.pause = RETRY_FIRST;
                lane.due = now;
                self.queue.drop(&batch, Reason::Refused);
            }
            Answer::Later { after, what } => {
                // What another server said is nothing to the present one.
                if generation == self.generation {
                    (lane.went, lane.said) = (Went::Later, what);
                    let pause = match ending {
                        true => RETRY_ENDING,
                        false => {
                            jittered(lane.pause).max(after.unwrap_or_default().min(AFTER_MOST))
                        }
                    };
                    lane.due = now + pause;
                    lane.pause = (lane.pause * 2).min(RETRY_LAST);
                }
                self.queue.put_back(batch);
            }
        }
    }
}

/// Between half of it and one and a half.
fn jittered(pause: Duration) -> Duration {
    // Each has keys of its own, from the system's random numbers.
    let chance = std::hash::RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (chance >> 11) as f64 / (1_u64 << 53) as f64)
}

/// The thread.
fn send_all(shared: &Shared) {
    let mut line: Option<(u64, Line)> = None;
    loop {
        let Some(work) = next(shared, &mut line) else {
            return;
        };
        if line.as_ref().is_some_and(|(is, _)| *is != work.generation) {
            line = None;
        }
        let answer = match &mut line {
            Some((_, line)) => line.send(&work.batch, work.limit),
            None => match Line::open(&work.config) {
                Ok(mut is) => {
                    let answer = is.send(&work.batch, work.limit);
                    line = Some((work.generation, is));
                    answer
                }
                Err(what) => Answer::Later { after: None, what },
            },
        };
        // What has failed is begun anew.
        if matches!(answer, Answer::Later { .. }) {
            line = None;
        }
        shared.lock().settle(work, answer);
    }
}

/// Waits for something to send. None: it is over.
fn next(shared: &Shared, line: &mut Option<(u64, Line)>) -> Option<Work> {
    let mut state = shared.lock();
    loop {
        let now = Instant::now();
        let has = Signal::ALL
            .into_iter()
            .any(|signal| state.queue.has(signal));
        if state.end.is_some_and(|end| end <= now || !has) {
            state.left = state.queue.drop_all(Reason::Ended);
            state.ended = true;
            drop(state);
            shared.wake.notify_all();
            return None;
        }
        if let Some(work) = state.work(now) {
            return Some(work);
        }
        if line.is_some() {
            // Others may hand something over while it is taken down.
            drop(state);
            *line = None;
            state = shared.lock();
            continue;
        }
        let until = state.due().into_iter().chain(state.end).min();
        state = shared.wait(
            state,
            until.map(|until| until.saturating_duration_since(now)),
        );
    }
}

pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// # Errors
    /// There can be no thread.
    pub fn start(config: &OtlpConfig) -> std::io::Result<Self> {
        let mut queue = Queue::default();
        queue.limit(config.queue_bytes);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                queue,
                config: Arc::new(config.clone()),
                generation: 0,
                lanes: Signal::ALL.map(|_| Lane::new()),
                last: Signal::Metrics,
                end: None,
                in_hand: 0,
                ended: false,
                left: 0,
            }),
            wake: Condvar::new(),
        });
        let own = shared.clone();
        std::thread::Builder::new()
            .name("debox-otlp".into())
            .spawn(move || send_all(&own))?;
        Ok(Self { shared })
    }

    /// What waits goes where this says, from now on.
    pub fn take(&self, config: &OtlpConfig) {
        let mut state = self.shared.lock();
        state.queue.limit(config.queue_bytes);
        state.config = Arc::new(config.clone());
        state.generation += 1;
        for lane in &mut state.lanes {
            lane.due = Instant::now();
            lane.waits = lane.waits.map(|_| lane.due);
            lane.pause = RETRY_FIRST;
            // Of another place there is nothing known.
            (lane.went, lane.told) = (Went::Well, Went::Well);
        }
        drop(state);
        self.shared.wake.notify_all();
    }

    pub fn push(&self, batches: Vec<Batch>) {
        let mut state = self.shared.lock();
        for batch in batches {
            let lane = &mut state.lanes[batch.signal as usize];
            lane.waits.get_or_insert_with(Instant::now);
            state.queue.push(batch);
        }
        drop(state);
        self.shared.wake.notify_all();
    }

    pub fn figures(&self) -> Figures {
        self.shared.lock().queue.figures()
    }

    /// For how long nobody has answered anything of use, while something is to be sent.
    pub fn waiting(&self, signal: Signal) -> Duration {
        let state = self.shared.lock();
        let waits = state.lanes[signal as usize].waits;
        waits.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// What somebody should be told since this was asked last, in sentences.
    pub fn news(&self) -> Vec<String> {
        let mut state = self.shared.lock();
        let endpoint = state.config.endpoint.clone();
        let figures = state.queue.figures();
        let mut news = Vec::new();
        for signal in Signal::ALL {
            let name = signal.name();
            let lane = &mut state.lanes[signal as usize];
            if !lane.went.is_like(&lane.told) {
                let said = &lane.said;
                news.push(match lane.went {
                    Went::Well => format!("OTLP: {name} are taken by {endpoint} again"),
                    Went::Partly(items) => {
                        format!("OTLP: {endpoint} left out {items} items of {name}: {said}")
                    }
                    Went::Later => format!(
                        "OTLP: {name} cannot be sent to {endpoint} now, and are tried again: {said}"
                    ),
                    Went::Refused => format!(
                        "OTLP: {name} are refused by {endpoint}, and what is refused is not sent again: {said}"
                    ),
                });
                lane.told = lane.went.clone();
            }
            let full = figures.dropped[signal as usize][Reason::QueueFull as usize];
            if full > lane.full && !lane.full_told {
                news.push(format!(
                    "OTLP: {name} are dropped, the oldest first, as what waits for {endpoint} has no more room \
                     ([otlp] queue_mb)"
                ));
                lane.full_told = true;
            }
            lane.full = full;
        }
        news
    }

    /// What is left may be sent for so long, by the thread, which ends with it.
    pub fn end(&self, patience: Duration) {
        let mut state = self.shared.lock();
        if state.end.is_none() {
            let now = Instant::now();
            state.end = Some(now + patience);
            for lane in &mut state.lanes {
                lane.due = now;
            }
        }
        drop(state);
        self.shared.wake.notify_all();
    }

    /// It has ended.
    pub fn is_over(&self) -> bool {
        self.shared.lock().ended
    }

    /// Waits for that. A request that is under way then is left to itself: how many items were not sent, and why.
    pub fn wait(&self) -> (u64, Option<String>) {
        let mut state = self.shared.lock();
        while !state.ended {
            let now = Instant::now();
            let Some(left) = state.end.and_then(|end| end.checked_duration_since(now)) else {
                break;
            };
            state = self.shared.wait(state, Some(left));
        }
        if !state.ended {
            let state = &mut *state;
            state.left = state.queue.drop_all(Reason::Ended) + state.in_hand;
        }
        let trouble = state.lanes.iter().find_map(Lane::trouble);
        (state.left, trouble.map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_have_chance_in_them_and_bounds() {
        let second = Duration::from_secs(1);
        let all: Vec<Duration> = (0..200).map(|_| jittered(second)).collect();
        for is in &all {
            assert!(*is >= second / 2 && *is <= second * 3 / 2, "{is:?}");
        }
        let spread = *all.iter().max().unwrap() - *all.iter().min().unwrap();
        assert!(spread > second / 2, "{spread:?}");
    }
}
