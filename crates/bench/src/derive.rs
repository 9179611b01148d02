// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which numbers follow from measured ones?

use crate::model::{Derived, Row};
use crate::os::switches;
use crate::stat::{self, Confidence, Verdict};

/// Half a round trip without the calls that it makes: one switch.
pub fn derive(results: &[Row]) -> Vec<Derived> {
    let medians = |id: &str| {
        results
            .iter()
            .find(|r| r.id == id)?
            .summary
            .as_ref()
            .map(|s| s.medians.clone())
    };
    let mut found = Vec::new();
    for place in ["same", "other"] {
        for means in switches::MEANS {
            let id = format!("switch/{means}/{place}");
            let calls_id = format!("switch-calls/{}", switches::calls_of(means));
            let (Some(trips), Some(calls)) = (medians(&id), medians(&calls_id)) else {
                continue;
            };
            // Both ends make the calls once each. Round by round.
            let values: Vec<f64> = trips
                .iter()
                .zip(&calls)
                .map(|(t, c)| (t - 2.0 * c) / 2.0)
                .collect();
            if values.len() < 2 {
                continue;
            }
            let ns = stat::mean(&values);
            let half = stat::half_width(&values, Confidence::P95);
            let stable = half <= stat::STABLE_WITHIN * ns.abs() && ns > 0.0;
            found.push(Derived {
                id: format!("one-switch/{means}/{place}"),
                formula: format!("({id} - 2 x {calls_id}) / 2"),
                ns,
                low: ns - half,
                high: ns + half,
                verdict: if stable {
                    Verdict::Stable
                } else {
                    Verdict::Unstable
                },
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::stat::{Invocation, Summary};

    fn row(id: &str, values: &[f64]) -> Row {
        let invocations: Vec<Invocation> = values
            .iter()
            .map(|v| Invocation {
                samples: vec![*v; 20],
                batch: 1,
                ..Invocation::default()
            })
            .collect();
        Row {
            id: id.into(),
            summary: Summary::of(&invocations),
            account: None,
            missing: None,
        }
    }

    #[test]
    fn a_switch_is_half_a_round_trip_less_its_calls() {
        let rows = [
            row("switch/pipe/same", &[3000.0, 3020.0, 2980.0]),
            row("switch-calls/pipe", &[500.0; 3]),
        ];
        let found = derive(&rows);
        assert_eq!(found.len(), 1);
        assert!((found[0].ns - 1000.0).abs() < 1e-9);
        assert_eq!(found[0].verdict, Verdict::Stable);
    }

    #[test]
    fn a_switch_that_the_calls_hide_is_not_a_number() {
        let rows = [
            row("switch/futex/other", &[900.0, 1300.0, 1000.0]),
            row("switch-calls/futex", &[500.0, 520.0, 490.0]),
        ];
        assert_eq!(derive(&rows)[0].verdict, Verdict::Unstable);
    }

    #[test]
    fn an_interval_wider_than_a_tenth_is_no_number() {
        // (trip - 1000) / 2: 1000 ± 18 %, and 1000 ± 4 %.
        for (trips, verdict) in [
            ([2800.0, 3000.0, 3200.0, 2850.0, 3150.0], Verdict::Unstable),
            ([2960.0, 3000.0, 3040.0, 2970.0, 3030.0], Verdict::Stable),
        ] {
            let rows = [
                row("switch/pipe/same", &trips),
                row("switch-calls/pipe", &[500.0; 5]),
            ];
            assert_eq!(derive(&rows)[0].verdict, verdict);
        }
    }
}
