// SPDX-License-Identifier: MIT OR Apache-2.0
//! A period is over: what do its open calls wait for, while the next one is watched?
//!
//! To find that out takes up to a second, in which nobody would be told figures. A thread of its own does it, of one
//! period after the other. What becomes of the period waits for its answer, in the order in which periods ended; so does
//! what is to be kept of them. An answer that does not come in time is done without, and so is that of a period that ends
//! while as many wait as may: each waits with its report, which is large.

use debox_cli::capture::OpenCalls;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For one answer, from when it is looked for: longer than that takes where the machine is busy.
const PATIENCE: Duration = Duration::from_secs(15);
/// Who has not answered by then is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);
/// So many of them, which may be there for ever (at a file that does not answer), and there is nobody else to ask.
const GIVEN_UP_MOST: usize = 8;
/// How often an answer is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What waits, at most.
const WAITING_MOST: usize = 4;

type Explain = Arc<dyn Fn(&mut OpenCalls) + Send + Sync>;

enum Needs {
    /// Only what is before it.
    Nothing,
    Answer(OpenCalls),
    /// The same, and the worker has the question.
    Asked,
}

struct Waiting<T> {
    what: T,
    needs: Needs,
}

/// Who answers, one question at a time.
struct Worker {
    asks: Sender<OpenCalls>,
    answers: Receiver<OpenCalls>,
    /// Since when it has a question.
    asked: Option<Instant>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// None: there is no thread to be had.
    fn begin(explain: Explain) -> Option<Self> {
        let (asks, next) = channel::<OpenCalls>();
        let (told, answers) = channel();
        let answer = move || {
            for mut calls in next {
                explain(&mut calls);
                // Who was given up learns it here.
                if told.send(calls).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("debox-calls".into());
        Some(Self {
            thread: thread.spawn(answer).ok()?,
            asks,
            answers,
            asked: None,
        })
    }
}

/// `T`: what is to be done then.
pub struct Endings<T> {
    explain: Explain,
    worker: Option<Worker>,
    given_up: Vec<JoinHandle<()>>,
    waiting: VecDeque<Waiting<T>>,
    patience: Duration,
    given_up_after: Duration,
}

impl<T> Endings<T> {
    /// `explain` is run beside.
    pub fn new(explain: impl Fn(&mut OpenCalls) + Send + Sync + 'static) -> Self {
        Self {
            explain: Arc::new(explain),
            worker: None,
            given_up: Vec::new(),
            waiting: VecDeque::new(),
            patience: PATIENCE,
            given_up_after: GIVEN_UP_AFTER,
        }
    }

    /// Is done when it is known what these wait for; before all others and without, where too many wait.
    pub fn when_explained(&mut self, what: T, calls: OpenCalls) {
        self.worker_take();
        if self.waiting.len() >= WAITING_MOST {
            let needs = Needs::Nothing;
            self.waiting.push_front(Waiting { what, needs });
            return;
        }
        let needs = Needs::Answer(calls);
        self.waiting.push_back(Waiting { what, needs });
    }

    /// Is done behind all that waits.
    pub fn behind(&mut self, what: T) {
        let needs = Needs::Nothing;
        self.waiting.push_back(Waiting { what, needs });
    }

    /// There is somebody to ask, if that can be.
    fn worker_take(&mut self) {
        let is_late = |worker: &mut Worker| {
            let since = worker.asked;
            since.is_some_and(|since| since.elapsed() >= self.given_up_after)
        };
        if let Some(worker) = self.worker.take_if(is_late) {
            debox_cli::say(&format!(
                "what open calls wait for was not found out in {} s, and that is given up",
                self.given_up_after.as_secs()
            ));
            self.given_up.push(worker.thread);
        }
        self.given_up.retain(|thread| !thread.is_finished());
        if self.worker.is_none() && self.given_up.len() < GIVEN_UP_MOST {
            self.worker = Worker::begin(self.explain.clone());
        }
    }

    /// What is to be done next, with the answer if there is one. None: that is not known yet, or, where it `waits`, nothing
    /// is left.
    pub fn next(&mut self, waits: bool) -> Option<(T, Option<OpenCalls>)> {
        let explained = self.explained(waits)?;
        let next = self.waiting.pop_front()?;
        Some((next.what, explained))
    }

    /// What is to be known for the first one. None: it may be yet.
    fn explained(&mut self, waits: bool) -> Option<Option<OpenCalls>> {
        loop {
            let first = self.waiting.front_mut()?;
            let Some(worker) = self.worker.as_mut() else {
                return Some(None);
            };
            if matches!(first.needs, Needs::Nothing) {
                return Some(None);
            }
            let Some(since) = worker.asked else {
                let asked = std::mem::replace(&mut first.needs, Needs::Asked);
                // Else who has its question was given up, or is no more.
                if let Needs::Answer(calls) = asked
                    && worker.asks.send(calls).is_ok()
                {
                    worker.asked = Some(Instant::now());
                    continue;
                }
                return Some(None);
            };
            let left = self.patience.saturating_sub(since.elapsed());
            let wait = if waits { left } else { Duration::ZERO };
            match worker.answers.recv_timeout(wait) {
                Ok(calls) => {
                    worker.asked = None;
                    // Else nobody waits for that one any more.
                    if matches!(first.needs, Needs::Asked) {
                        return Some(Some(calls));
                    }
                }
                Err(RecvTimeoutError::Timeout) if !left.is_zero() && !waits => return None,
                Err(RecvTimeoutError::Timeout) => return Some(None),
                Err(RecvTimeoutError::Disconnected) => {
                    self.worker = None;
                    return Some(None);
                }
            }
        }
    }

    /// When it is to be looked for what is next; None: nothing waits.
    pub fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| Instant::now() + LOOK_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// One that answers each time it is told to, and at once when nobody can tell it any more.
    fn endings() -> (Endings<&'static str>, Sender<()>) {
        let (tells, told) = channel();
        let told = Mutex::new(told);
        let explain = move |_: &mut OpenCalls| {
            let _ = told.lock().unwrap().recv();
        };
        (Endings::new(explain), tells)
    }

    fn next(endings: &mut Endings<&'static str>, waits: bool) -> Option<(&'static str, bool)> {
        let next = endings.next(waits);
        next.map(|(what, calls)| (what, calls.is_some()))
    }

    #[test]
    fn all_is_done_in_its_order_and_nobody_is_held_up() {
        let (mut endings, tells) = endings();
        assert!(endings.due().is_none());
        endings.when_explained("first", OpenCalls::default());
        endings.behind("kept");
        endings.when_explained("second", OpenCalls::default());
        let begin = Instant::now();
        assert_eq!(next(&mut endings, false), None);
        assert!(begin.elapsed() < PATIENCE / 2);
        assert!(endings.due().is_some());
        tells.send(()).unwrap();
        assert_eq!(next(&mut endings, true), Some(("first", true)));
        assert_eq!(next(&mut endings, false), Some(("kept", false)));
        assert_eq!(next(&mut endings, false), None);
        drop(tells);
        assert_eq!(next(&mut endings, true), Some(("second", true)));
        assert_eq!(next(&mut endings, true), None);
        assert!(endings.due().is_none());
        // Where nothing is before it, it is done at once.
        endings.behind("kept");
        assert_eq!(next(&mut endings, false), Some(("kept", false)));
    }

    #[test]
    fn an_answer_that_comes_too_late_is_nobody_elses() {
        let (mut endings, tells) = endings();
        endings.patience = Duration::ZERO;
        endings.when_explained("first", OpenCalls::default());
        assert_eq!(next(&mut endings, false), Some(("first", false)));
        endings.patience = PATIENCE;
        endings.when_explained("second", OpenCalls::default());
        // The first one's.
        tells.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(next(&mut endings, false), None);
        tells.send(()).unwrap();
        assert_eq!(next(&mut endings, true), Some(("second", true)));
    }

    /// Who waits for a slow answer has not lost its patience with its own.
    #[test]
    fn patience_is_that_with_who_is_asked() {
        let (mut endings, tells) = endings();
        endings.when_explained("first", OpenCalls::default());
        endings.when_explained("second", OpenCalls::default());
        assert_eq!(next(&mut endings, false), None);
        std::thread::sleep(Duration::from_millis(100));
        tells.send(()).unwrap();
        assert_eq!(next(&mut endings, true), Some(("first", true)));
        endings.patience = Duration::from_millis(50);
        let begin = Instant::now();
        assert_eq!(next(&mut endings, true), Some(("second", false)));
        assert!(begin.elapsed() >= endings.patience);
    }

    #[test]
    fn where_too_many_wait_one_more_does_not() {
        let (mut endings, tells) = endings();
        for _ in 0..WAITING_MOST {
            endings.when_explained("waits", OpenCalls::default());
        }
        assert_eq!(next(&mut endings, false), None);
        endings.when_explained("one more", OpenCalls::default());
        assert_eq!(next(&mut endings, false), Some(("one more", false)));
        assert_eq!(next(&mut endings, false), None);
        drop(tells);
        for _ in 0..WAITING_MOST {
            assert_eq!(next(&mut endings, true), Some(("waits", true)));
        }
    }

    #[test]
    fn who_never_answers_is_given_up_and_another_one_asked() {
        let (begins, begun) = channel();
        let (tells, told) = channel::<()>();
        let told = Mutex::new(Some(told));
        let explain = move |_: &mut OpenCalls| {
            let hangs = told.lock().unwrap().take();
            if let Some(told) = hangs {
                begins.send(()).unwrap();
                let _ = told.recv();
            }
        };
        let mut endings = Endings::new(explain);
        endings.patience = Duration::ZERO;
        endings.when_explained("first", OpenCalls::default());
        assert_eq!(next(&mut endings, true), Some(("first", false)));
        begun.recv().unwrap();
        // Not yet.
        endings.when_explained("second", OpenCalls::default());
        assert_eq!(next(&mut endings, true), Some(("second", false)));
        endings.patience = PATIENCE;
        endings.given_up_after = Duration::ZERO;
        endings.when_explained("third", OpenCalls::default());
        assert_eq!(next(&mut endings, true), Some(("third", true)));
        assert_eq!(endings.given_up.len(), 1);
        drop(tells);
        // It goes when it can.
        while !endings.given_up[0].is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn without_the_thread_all_is_done_without_answers() {
        let mut endings = Endings::new(|_| panic!("as a defect would"));
        for what in ["first", "second", "third"] {
            endings.when_explained(what, OpenCalls::default());
            assert_eq!(next(&mut endings, true), Some((what, false)));
        }
    }
}
