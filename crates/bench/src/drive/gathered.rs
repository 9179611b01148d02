// SPDX-License-Identifier: MIT OR Apache-2.0
//! What have all invocations of a suite said?

use crate::os::reads::Cold;
use crate::sampling::alone_on_its_cpu;
use crate::stat::{Invocation, Summary};
use crate::worker::Answer;
use std::collections::BTreeMap;

/// Everything that invocations have said about one suite.
#[derive(Default)]
pub(super) struct Gathered {
    /// In the order of the first answer.
    pub(super) order: Vec<String>,
    pub(super) invocations: BTreeMap<String, Vec<Invocation>>,
    pub(super) missing: BTreeMap<String, String>,
    pub(super) accounts: BTreeMap<String, crate::account::Account>,
    pub(super) cold: Cold,
}

impl Gathered {
    pub(super) fn add(&mut self, answer: Answer) {
        for row in answer.rows {
            if !self.order.contains(&row.id) {
                self.order.push(row.id.clone());
            }
            if let Some(i) = row.invocation.filter(|i| !i.samples.is_empty()) {
                self.invocations.entry(row.id.clone()).or_default().push(i);
            }
            if let Some(why) = row.missing {
                self.missing.insert(row.id.clone(), why);
            }
            if let Some(account) = row.account {
                self.accounts.insert(row.id, account);
            }
        }
        if let Some(c) = answer.cold {
            self.cold.method = c.method;
            self.cold.passes += c.passes;
            self.cold.pages += c.pages;
            self.cold.resident += c.resident;
            self.cold.nowait_tried += c.nowait_tried;
            self.cold.nowait_again += c.nowait_again;
            self.cold.bytes += c.bytes;
            self.cold.storage_bytes += c.storage_bytes;
        }
    }

    /// Is every mean known to within the target?
    pub(super) fn settled(&self, target: f64) -> bool {
        self.invocations.values().all(|i| {
            Summary::of(i).is_some_and(|s| s.mean_high - s.mean <= 2.0 * target * s.mean.abs())
        })
    }
}

/// The share of batches that saw a preemption, of those that should see none.
pub(super) fn preempted<'a>(
    suites: impl Iterator<Item = &'a BTreeMap<String, Vec<Invocation>>>,
) -> Option<f64> {
    let (batches, preempted) = suites
        .flatten()
        .filter(|(id, _)| alone_on_its_cpu(id))
        .flat_map(|(_, invocations)| invocations)
        .fold((0, 0), |(b, p), i| {
            (b + i.samples.len(), p + i.preempted.len())
        });
    (batches > 0).then(|| preempted as f64 / batches as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partner_on_the_same_cpu_is_no_disturbance() {
        let invocation = |preempted: Vec<u32>| Invocation {
            samples: vec![1.0; 10],
            preempted,
            ..Invocation::default()
        };
        let rows = BTreeMap::from([
            (
                "switch/pipe/same".to_owned(),
                vec![invocation(vec![1, 2, 3])],
            ),
            (
                "fault/prefaulted-beside".to_owned(),
                vec![invocation(vec![1])],
            ),
            ("switch/pipe/other".to_owned(), vec![invocation(vec![4])]),
            ("trivial/getpid".to_owned(), vec![invocation(vec![])]),
        ]);
        assert_eq!(preempted([&rows].into_iter()), Some(0.05));
        assert_eq!(preempted([&BTreeMap::new()].into_iter()), None);
    }
}
