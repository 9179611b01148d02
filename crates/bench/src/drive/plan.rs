// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long may each suite take, and how many rounds are there?

use crate::args::OsArgs;
use crate::os::Suite;
use std::time::Duration;

/// Suites whose cases take this long in each invocation, ms: (quick, full).
pub(super) fn budget_ms(suite: Suite, quick: bool) -> u64 {
    let (short, long) = match suite {
        Suite::Clocks => (0, 0),
        Suite::Trivial => (250, 4_000),
        Suite::Switches => (450, 6_000),
        Suite::Faults => (300, 4_000),
        Suite::Reads => (500, 16_000),
        Suite::Descriptors => (300, 5_000),
    };
    if quick { short } else { long }
}

/// No account of a suite is begun after that, ms.
pub(super) fn account_ms(suite: Suite, quick: bool) -> u64 {
    let (short, long) = match suite {
        Suite::Clocks => (0, 0),
        Suite::Trivial => (300, 2_000),
        Suite::Switches => (500, 4_000),
        Suite::Faults => (500, 4_000),
        Suite::Reads => (1_500, 60_000),
        Suite::Descriptors => (700, 15_000),
    };
    if quick { short } else { long }
}

const ALL: [Suite; 5] = [
    Suite::Trivial,
    Suite::Switches,
    Suite::Faults,
    Suite::Reads,
    Suite::Descriptors,
];

pub(super) struct Plan {
    pub(super) quick: bool,
    pub(super) suites: Vec<Suite>,
    /// Nobody asked for the clocks' own rows: a short look chooses one.
    pub(super) clocks_only_choice: bool,
    pub(super) invocations: usize,
    /// No further invocation begins after that.
    pub(super) limit: Duration,
    pub(super) target: f64,
    pub(super) file_bytes: u64,
}

impl Plan {
    pub(super) fn of(args: &OsArgs) -> Self {
        let mut plan = Self::usual(args.output.quick);
        if !args.only.is_empty() {
            plan.suites.retain(|s| args.only.contains(s));
            plan.clocks_only_choice = !args.only.contains(&Suite::Clocks);
        }
        if let Some(rounds) = args.output.rounds {
            plan.invocations = rounds as usize;
            plan.limit = Duration::MAX;
        }
        plan
    }

    fn usual(quick: bool) -> Self {
        let (invocations, seconds, target, mib) = if quick {
            (5, 13, 0.03, 16)
        } else {
            (10, 450, 0.01, 128)
        };
        Self {
            quick,
            suites: ALL.to_vec(),
            clocks_only_choice: false,
            invocations,
            limit: Duration::from_secs(seconds),
            target,
            file_bytes: mib << 20,
        }
    }

    pub(super) fn needs_file(&self) -> bool {
        self.suites
            .iter()
            .any(|s| matches!(s, Suite::Faults | Suite::Reads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part ends by its own limit: together they keep what is promised,
    /// with room for the clocks, the file, DeBox's start and one more round.
    #[test]
    fn the_parts_fit_into_the_time_that_is_promised() {
        for (quick, promised, room) in [(true, 20, 3), (false, 600, 60)] {
            let accounts: u64 = ALL.iter().map(|s| account_ms(*s, quick)).sum();
            let all = Plan::usual(quick).limit + Duration::from_millis(accounts);
            assert!(
                all + Duration::from_secs(room) <= Duration::from_secs(promised),
                "{all:?}"
            );
            // And the rounds that are planned fit into their part.
            let round: u64 = ALL.iter().map(|s| budget_ms(*s, quick)).sum();
            let rounds = Duration::from_millis(round * Plan::usual(quick).invocations as u64);
            assert!(rounds <= Plan::usual(quick).limit, "{rounds:?}");
        }
    }
}
