// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did all of the threads' time go, on a CPU and off it, by what ran and what was
//! waited for?
//!
//! The lives say how long each state lasted, to the nanosecond. Within a state the samples
//! say what ran, and the chains what a sleep waited for: the state's time is shared out over
//! them, so that everything adds up to the lives again.

use crate::lives;
use crate::model::{ChainKind, OnCpuKind, Report};
use std::collections::BTreeMap;

/// What threads of one name did with their lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllTime {
    pub comm: String,
    pub life_ns: u64,
    /// Their sum is `life_ns`.
    pub parts: Vec<AllTimePart>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AllTimePart {
    pub state: TimeState,
    pub of: TimeOf,
    pub ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeState {
    Cpu,
    Interrupts,
    Ending,
    Blocked,
    Rest,
    Outside,
    Stopped,
    Runq,
}

/// What is known of it besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOf {
    Nothing,
    /// No sample tells more.
    OwnCode,
    Calls,
    /// Index into the rows of `on_cpu`.
    Samples(usize),
    /// Index into `chains`.
    Chain(usize),
}

impl TimeState {
    pub fn text(self) -> &'static str {
        match self {
            Self::Cpu => "on a CPU",
            Self::Interrupts => "in interrupts",
            Self::Ending => "ending, on a CPU",
            Self::Blocked => "blocked",
            Self::Rest => "at rest",
            Self::Outside => "asleep outside of calls",
            Self::Stopped => "stopped",
            Self::Runq => "waiting for a CPU",
        }
    }
}

/// Shares a sum out by weight, to the last nanosecond.
pub(crate) fn share_out(sum_ns: u64, weights: &[u64]) -> Vec<u64> {
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    // A recording's numbers are foreign: their product must fit.
    let shift = (u128::BITS - all.leading_zeros()).saturating_sub(u64::BITS);
    let (mut before, mut given) = (0u128, 0u64);
    weights
        .iter()
        .map(|weight| {
            before += u128::from(*weight);
            let until = u128::from(sum_ns) * (before >> shift) / (all >> shift).max(1);
            let until = u64::try_from(until).unwrap_or(sum_ns);
            let part = until - given;
            given = until;
            part
        })
        .collect()
}

impl AllTime {
    fn put(&mut self, state: TimeState, of: TimeOf, ns: u64) {
        if ns > 0 {
            self.parts.push(AllTimePart { state, of, ns });
        }
    }

    /// Time on a CPU, by samples: (row, samples).
    fn sampled(&mut self, state: TimeState, rest: TimeOf, ns: u64, rows: &[(usize, u64)]) {
        if rows.iter().all(|(_, samples)| *samples == 0) {
            return self.put(state, rest, ns);
        }
        let weights: Vec<u64> = rows.iter().map(|(_, samples)| *samples).collect();
        for ((row, _), part) in rows.iter().zip(share_out(ns, &weights)) {
            self.put(state, TimeOf::Samples(*row), part);
        }
    }

    /// Time asleep, by chains: (row, at rest, nanoseconds).
    fn chained(&mut self, state: TimeState, ns: u64, chains: &[(usize, bool, u64)]) {
        let told: u128 = chains.iter().map(|(.., ns)| u128::from(*ns)).sum();
        let fits = told <= u128::from(ns);
        let weights: Vec<u64> = chains.iter().map(|(.., ns)| *ns).collect();
        let parts = match fits {
            true => weights,
            // A sleep that began under another name is told under this one.
            false => share_out(ns, &weights),
        };
        let given: u64 = parts.iter().sum();
        for ((row, rests, _), part) in chains.iter().zip(parts) {
            let state = if *rests { TimeState::Rest } else { state };
            self.put(state, TimeOf::Chain(*row), part);
        }
        self.put(state, TimeOf::Nothing, ns - given);
    }
}

/// By name of the threads, the longest lives first; empty where lives are not known.
pub fn all_time(report: &Report) -> Vec<AllTime> {
    /// Of one name.
    #[derive(Default)]
    struct Known {
        own: Vec<(usize, u64)>,
        calls: Vec<(usize, u64)>,
        exit: Vec<(usize, u64)>,
        in_calls: Vec<(usize, bool, u64)>,
        outside: Vec<(usize, bool, u64)>,
    }
    let mut known: BTreeMap<&str, Known> = BTreeMap::new();
    if let Some(on_cpu) = &report.on_cpu {
        for (at, row) in on_cpu.rows.iter().enumerate() {
            let of = known.entry(on_cpu.comm(row)).or_default();
            let exits = matches!(row.call.as_deref(), Some("exit" | "exit_group"));
            match row.kind {
                OnCpuKind::Call if exits => of.exit.push((at, row.samples)),
                OnCpuKind::Call => of.calls.push((at, row.samples)),
                _ => of.own.push((at, row.samples)),
            }
        }
    }
    for (at, row) in report.chains.iter().enumerate() {
        let link = report.chain_links.get(row.first);
        let Some(link) = link.filter(|link| link.kind == ChainKind::Sleep) else {
            continue;
        };
        let of = known.entry(&link.comm).or_default();
        match link.call {
            Some(_) => of.in_calls.push((at, link.rests, row.total_ns)),
            None => of.outside.push((at, false, row.total_ns)),
        }
    }
    let nothing = Known::default();
    lives::groups(&report.lives)
        .into_iter()
        .map(|group| {
            let known = known.get(group.comm.as_str()).unwrap_or(&nothing);
            let time = &group.time;
            let mut all = AllTime::default();
            all.sampled(TimeState::Cpu, TimeOf::OwnCode, time.own_ns, &known.own);
            all.sampled(TimeState::Cpu, TimeOf::Calls, time.calls_ns, &known.calls);
            all.put(TimeState::Interrupts, TimeOf::Nothing, time.interrupts_ns());
            all.sampled(
                TimeState::Ending,
                TimeOf::Nothing,
                time.exit_ns,
                &known.exit,
            );
            all.chained(TimeState::Blocked, time.blocked_ns, &known.in_calls);
            all.chained(TimeState::Outside, time.outside_ns, &known.outside);
            all.put(TimeState::Stopped, TimeOf::Nothing, time.stopped_ns);
            all.put(TimeState::Runq, TimeOf::Nothing, time.runq_ns);
            all.comm = group.comm;
            // A recording's numbers are foreign: the parts are what is shown.
            all.life_ns = (all.parts.iter()).fold(0, |sum, part| sum.saturating_add(part.ns));
            all
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_sharing_out() {
        assert_eq!(share_out(10, &[1, 1, 1]), [3, 3, 4]);
        assert_eq!(share_out(0, &[1, 2]), [0, 0]);
        assert_eq!(
            share_out(u64::MAX, &[u64::MAX, u64::MAX])
                .iter()
                .sum::<u64>(),
            u64::MAX
        );
    }
}
