// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often is something repeated, and when is it enough?
//!
//! A case is measured in batches: as many operations as make the clock's own
//! error small. The cases of a suite take turns, each round begins with
//! another one, so that whatever disturbs the machine disturbs all of them.
//! A case rests when the interval of its mean is narrow enough; the suite ends
//! when all rest or its time is over.

use crate::Error;
use crate::raw;
use crate::stat::{Invocation, half_width_within, mean};
use std::time::{Duration, Instant};

/// One thing to be measured.
pub struct Case {
    /// Stable name, the key for comparisons: `trivial/getpid`.
    pub id: String,
    /// Runs n operations and returns the ns they took, with the clock's own
    /// cost taken off.
    pub batch: Box<dyn FnMut(u64) -> Result<f64, Error>>,
    /// Most operations in one batch (a region's pages, a file's blocks).
    pub most: u64,
    /// Every batch has `most` operations.
    pub fixed: bool,
    /// Batches of one operation tell how single ones are distributed.
    pub one_by_one: bool,
    /// Runs whenever this case's turn begins.
    pub before: Option<Box<dyn FnMut() -> Result<(), Error>>>,
    /// Single operations timed by the case itself, in batches of its own.
    pub singles: Option<Singles>,
}

/// Appends the times of single operations.
pub type Singles = Box<dyn FnMut(&mut Vec<f64>) -> Result<(), Error>>;

impl Case {
    pub fn new(
        id: impl Into<String>,
        batch: impl FnMut(u64) -> Result<f64, Error> + 'static,
    ) -> Self {
        Self {
            id: id.into(),
            batch: Box::new(batch),
            most: u64::MAX,
            fixed: false,
            one_by_one: true,
            before: None,
            singles: None,
        }
    }

    pub fn most(mut self, most: u64) -> Self {
        self.most = most;
        self
    }

    /// Every batch is a whole one of `most` operations.
    pub fn fixed(mut self) -> Self {
        self.fixed = true;
        self
    }

    /// Batches of one make no sense here.
    pub fn whole_batches(mut self) -> Self {
        self.one_by_one = false;
        self
    }

    pub fn singles(mut self, f: impl FnMut(&mut Vec<f64>) -> Result<(), Error> + 'static) -> Self {
        self.singles = Some(Box::new(f));
        self.one_by_one = false;
        self
    }

    /// Shorter than the clock's step: nothing to be timed one at a time.
    pub fn no_singles(mut self) -> Self {
        self.singles = None;
        self
    }

    pub fn before(mut self, f: impl FnMut() -> Result<(), Error> + 'static) -> Self {
        self.before = Some(Box::new(f));
        self
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// For all cases together.
    pub budget: Duration,
    /// A case may rest when the 95 % interval of its mean is within ± this share.
    pub target: f64,
    /// How long a batch should take, so that reading the clock does not matter.
    pub batch: Duration,
    /// Where the rotation begins: another case in each invocation.
    pub first: usize,
    /// Batches in one turn, and turns that every case has in any case.
    pub turn: usize,
    pub turns_min: usize,
}

/// Samples kept for each invocation: enough for its median and its own interval.
const SAMPLES_MAX: usize = 400;
const SAMPLES_MIN: usize = 20;
const SINGLES_MAX: usize = 2000;
const TURN_SINGLES: usize = 50;

/// Context switches against this thread's will so far.
fn preemptions() -> i64 {
    // SAFETY: an all-zero rusage is valid, and getrusage fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}

fn resting(i: &Invocation, plan: &Plan) -> bool {
    i.samples.len() >= SAMPLES_MAX
        || (i.samples.len() >= SAMPLES_MIN
            && half_width_within(&i.samples) <= plan.target * mean(&i.samples).abs())
}

/// How many operations make a batch of the wanted length: doubled until it is
/// that long, which also warms everything up.
pub fn batch_size(case: &mut Case, plan: &Plan) -> Result<u64, Error> {
    if case.fixed {
        (case.batch)(case.most)?;
        return Ok(case.most);
    }
    let want = plan.batch.as_nanos() as f64;
    let mut n = 1;
    loop {
        let took = (case.batch)(n)?;
        if n >= case.most || took >= want {
            return Ok(n);
        }
        let factor = if took > 0.0 {
            (want / took).clamp(1.2, 8.0)
        } else {
            8.0
        };
        n = ((n as f64 * factor).ceil() as u64).min(case.most);
    }
}

/// Measures all cases; one invocation each, in the order given. A case that
/// fails ends with its error, the others go on.
pub fn measure(cases: &mut [Case], plan: &Plan) -> Vec<Result<Invocation, Error>> {
    let begin = Instant::now();
    let mut found: Vec<Result<Invocation, Error>> = cases
        .iter_mut()
        .map(|case| {
            if let Some(before) = &mut case.before {
                before()?;
            }
            let batch = batch_size(case, plan)?;
            Ok(Invocation {
                batch,
                ..Invocation::default()
            })
        })
        .collect();
    let mut round = plan.first;
    loop {
        let mut awake = false;
        for k in 0..cases.len() {
            let at = (k + round) % cases.len();
            let (case, Ok(invocation)) = (&mut cases[at], &mut found[at]) else {
                continue;
            };
            if resting(invocation, plan) {
                continue;
            }
            awake = true;
            if let Err(error) = turn(case, invocation, plan.turn) {
                found[at] = Err(error);
            }
        }
        round += 1;
        if !awake || (round - plan.first >= plan.turns_min && begin.elapsed() >= plan.budget) {
            break;
        }
    }
    for invocation in found.iter_mut().flatten() {
        invocation.singles.sort_by(f64::total_cmp);
    }
    found
}

fn turn(case: &mut Case, i: &mut Invocation, size: usize) -> Result<(), Error> {
    if let Some(before) = &mut case.before {
        before()?;
    }
    for _ in 0..size {
        let switched = preemptions();
        let took = (case.batch)(i.batch)?;
        if preemptions() != switched {
            i.preempted.push(i.samples.len() as u32);
        }
        i.samples.push(took / i.batch as f64);
    }
    if i.singles.len() < SINGLES_MAX {
        if let Some(singles) = &mut case.singles {
            singles(&mut i.singles)?;
        } else if case.one_by_one {
            // The first after other work is cold: the batch before has warmed it.
            for _ in 0..TURN_SINGLES {
                i.singles.push((case.batch)(1)?);
            }
        }
    }
    Ok(())
}

/// Pins the calling thread to one CPU.
pub fn pin(cpu: usize) -> Result<(), Error> {
    // SAFETY: a zeroed set is an empty one; the pointer and size belong together.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    raw::check(result, &format!("pinning to CPU {cpu}"))?;
    Ok(())
}

/// Is another thread on the CPU a disturbance here, or what is measured? Both
/// ends of a switch on one CPU preempt each other, and pre-faulting has a
/// thread beside it.
pub fn alone_on_its_cpu(id: &str) -> bool {
    let one_switches = id.starts_with("switch/") && id.ends_with("/same");
    !one_switches && !id.starts_with("fault/prefaulted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    fn plan(ms: u64) -> Plan {
        Plan {
            budget: Duration::from_millis(ms),
            target: 0.01,
            batch: Duration::from_micros(100),
            first: 0,
            turn: 5,
            turns_min: 2,
        }
    }

    #[test]
    fn a_steady_case_rests_early_and_an_unsteady_one_gets_the_time() {
        let count = Rc::new(Cell::new(0u64));
        let seen = count.clone();
        let mut wild = fastrand::Rng::with_seed(3);
        let mut cases = vec![
            Case::new("steady", move |n| {
                seen.set(seen.get() + 1);
                Ok(100.0 * n as f64)
            })
            .whole_batches(),
            Case::new("wild", move |n| {
                Ok(100.0 * n as f64 * (0.2 + wild.f64() * 20.0))
            })
            .whole_batches(),
        ];
        let found = measure(&mut cases, &plan(300));
        let steady = found[0].as_ref().unwrap();
        let wild = found[1].as_ref().unwrap();
        assert_eq!(steady.samples.len(), SAMPLES_MIN);
        assert!(wild.samples.len() > steady.samples.len());
        assert!(
            steady.batch >= 1000,
            "a batch takes 100 us of 100 ns each: {}",
            steady.batch
        );
        assert!(count.get() < 50);
    }

    #[test]
    fn a_failing_case_does_not_take_the_others_along() {
        let mut cases = vec![
            Case::new("bad", |_| Err(Error::Unavailable("not here".into()))),
            Case::new("good", |n| Ok(n as f64 * 1e3)),
        ];
        let found = measure(&mut cases, &plan(10));
        assert!(found[0].is_err());
        let good = found[1].as_ref().unwrap();
        assert!(!good.samples.is_empty() && !good.singles.is_empty());
    }

    #[test]
    fn most_bounds_the_batch() {
        let mut cases = vec![
            Case::new("few", |n| {
                assert!(n <= 64);
                Ok(n as f64)
            })
            .most(64),
        ];
        assert_eq!(measure(&mut cases, &plan(5))[0].as_ref().unwrap().batch, 64);
    }
}
