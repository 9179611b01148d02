// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the largest number of connections of which nearly all are served as fast as their
//! lines?
//!
//! The number is doubled until a run fails, then the gap is halved. More connections need not
//! be harder in every run: a failure counts when it comes twice, by however much it failed, and the
//! best number must pass two more runs; if it does not, the search goes on below it, more carefully.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    pub connections: usize,
    pub conforming_percent: f64,
    pub requests_per_second: f64,
    pub errors: u64,
    pub stationary: Option<bool>,
    /// As it began, nothing was left in sockets of the run before.
    pub settled: bool,
    pub generator_is_bottleneck: bool,
    pub passed: bool,
}

#[derive(Debug, Serialize)]
pub struct Found {
    pub schema: &'static str,
    pub schema_version: u32,
    pub least_percent: f64,
    /// Passed each time it was tried, and twice more; None: not even the first.
    pub highest: Option<usize>,
    /// The search ended at its own upper end, not at the server's.
    pub at_upper_end: bool,
    /// No number failed that is below one that passed.
    pub monotone: bool,
    /// Above the highest, a run failed in which the generator had no more time: the server may
    /// be able to do more.
    pub limited_by_generator: bool,
    pub steps: Vec<Step>,
}

pub struct Search {
    pub from: usize,
    pub to: usize,
    /// The gap that is left, as a part of the number.
    pub within: f64,
}

/// So often the best passes again.
const CONFIRMED: usize = 2;

struct State<'a, E> {
    run: &'a mut dyn FnMut(usize) -> Result<Step, E>,
    steps: Vec<Step>,
    careful: bool,
}

impl<E> State<'_, E> {
    fn passes_once(&mut self, n: usize) -> Result<bool, E> {
        let step = (self.run)(n)?;
        self.steps.push(step);
        Ok(step.passed)
    }

    /// One pass of two runs is enough; once a number has passed by luck, two of three.
    fn passes(&mut self, n: usize) -> Result<bool, E> {
        let first = self.passes_once(n)?;
        if !self.careful {
            return Ok(first || self.passes_once(n)?);
        }
        let second = self.passes_once(n)?;
        if first == second {
            return Ok(first);
        }
        self.passes_once(n)
    }

    /// The largest below `n` that has passed and was not found out since.
    fn passed_below(&self, n: usize, lost: &[usize]) -> Option<usize> {
        let passed = self.steps.iter().filter(|step| step.passed);
        let below = passed
            .map(|step| step.connections)
            .filter(|c| *c < n && !lost.contains(c));
        below.max()
    }
}

pub fn find<E>(
    search: &Search,
    least_percent: f64,
    run: &mut dyn FnMut(usize) -> Result<Step, E>,
) -> Result<Found, E> {
    let mut state = State {
        run,
        steps: Vec::new(),
        careful: false,
    };
    let mut good = None;
    let mut bad = search.to + 1;
    let mut n = search.from;
    loop {
        if !state.passes(n)? {
            bad = n;
            break;
        }
        good = Some(n);
        if n == search.to {
            break;
        }
        n = (2 * n).min(search.to);
    }
    // Tried, and found to pass not always.
    let mut lost = Vec::new();
    while let Some(best) = good {
        if bad - best > ((best as f64 * search.within) as usize).max(1) {
            let middle = best + (bad - best) / 2;
            match state.passes(middle)? {
                true => good = Some(middle),
                false => bad = middle,
            }
            continue;
        }
        let mut confirmed = 0;
        while confirmed < CONFIRMED && state.passes_once(best)? {
            confirmed += 1;
        }
        if confirmed == CONFIRMED {
            break;
        }
        state.careful = true;
        lost.push(best);
        bad = best;
        good = state.passed_below(best, &lost);
    }
    let steps = state.steps;
    let highest = good;
    let above = |step: &&Step| !step.passed && highest.is_none_or(|n| step.connections > n);
    Ok(Found {
        schema: "debox-cases-load-find",
        schema_version: 1,
        least_percent,
        highest,
        at_upper_end: highest == Some(search.to),
        monotone: !steps.iter().any(|failed| {
            let more = |step: &Step| step.passed && step.connections >= failed.connections;
            !failed.passed && steps.iter().any(more)
        }),
        limited_by_generator: steps
            .iter()
            .filter(above)
            .any(|step| step.generator_is_bottleneck),
        steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(to: usize, passes: &mut dyn FnMut(usize, usize) -> bool) -> Found {
        let mut runs = 0;
        let mut run = |connections| {
            runs += 1;
            let passed = passes(runs, connections);
            assert!(runs < 100, "the search ends");
            Ok::<_, ()>(Step {
                connections,
                conforming_percent: if passed { 100.0 } else { 0.0 },
                requests_per_second: 0.0,
                errors: 0,
                stationary: Some(true),
                settled: true,
                generator_is_bottleneck: connections > 5000,
                passed,
            })
        };
        let search = Search {
            from: 50,
            to,
            within: 0.02,
        };
        find(&search, 95.0, &mut run).unwrap()
    }

    #[test]
    fn the_limit_is_found_within_its_gap() {
        for limit in [50, 51, 99, 100, 777, 2399] {
            let result = found(10_000, &mut |_, n| n <= limit);
            let n = result.highest.unwrap();
            assert!(n <= limit && limit - n <= 1 + limit / 50, "{limit}: {n}");
            assert!(result.monotone && !result.at_upper_end && !result.limited_by_generator);
            let last: Vec<_> = result.steps.iter().rev().take(2).collect();
            assert!(last.iter().all(|step| step.connections == n && step.passed));
        }
        assert_eq!(found(10_000, &mut |_, n| n < 50).highest, None);
        let all = found(300, &mut |_, _| true);
        assert_eq!((all.highest, all.at_upper_end), (Some(300), true));
        assert!(found(10_000, &mut |_, n| n < 4000).limited_by_generator);
    }

    #[test]
    fn one_failure_is_tried_again_and_a_lucky_number_is_found_out() {
        // The third run fails, whatever it is.
        let result = found(10_000, &mut |run, n| run != 3 && n <= 400);
        assert!(result.highest.unwrap() >= 392 && !result.monotone);
        // 400 to 500 pass by luck, every other time.
        let mut turn = false;
        let result = found(10_000, &mut |_, n| {
            turn = !turn;
            n <= 400 || (n < 500 && turn)
        });
        assert!((380..500).contains(&result.highest.unwrap()));
        // Passes once, never again.
        let mut seen = Vec::new();
        let result = found(10_000, &mut |_, n| {
            let first = !seen.contains(&n);
            seen.push(n);
            n <= 100 || (first && n < 400)
        });
        let n = result.highest.unwrap();
        assert!((98..=102).contains(&n), "{n} {:?}", result.steps);
    }

    #[test]
    fn what_failed_by_however_much_is_tried_again() {
        let mut seen = Vec::new();
        let result = found(10_000, &mut |_, n| {
            let again = seen.contains(&n);
            seen.push(n);
            again && n <= 777
        });
        let n = result.highest.unwrap();
        assert!((760..=777).contains(&n) && !result.monotone, "{n}");
        assert_eq!(found(10_000, &mut |_, _| false).steps.len(), 2);
    }
}
