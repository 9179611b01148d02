// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a program mean by a wait, where its functions are known?
//!
//! Chains have no stacks of programs; what is recorded with them is the time of each call
//! at each place of the kernel, by stack. So all sleeps of one call at one place are judged
//! together, and only when the data says the same of nearly all of their time.

use crate::findings::share;
use crate::model::*;
use debox_labels::Place;
use std::collections::BTreeMap;

/// Of the time of one call at one place.
const NEARLY_ALL: f64 = 0.95;

#[derive(Default)]
struct Sum<'a> {
    total_ns: u64,
    rests_ns: u64,
    works_ns: u64,
    /// What is meant, by time.
    meant: BTreeMap<&'a str, u64>,
}

/// The first place that fits a stack.
fn place_of<'a>(places: &'a [Place], stack: &UserStack) -> Option<&'a Place> {
    let names = || {
        stack
            .frames
            .iter()
            .filter_map(|frame| frame.function.as_deref())
    };
    places
        .iter()
        .find(|place| names().any(|name| place.fits(name)))
}

/// Corrects which sleeps were at a resting place, and says what the others mean.
pub fn rests_refine(report: &mut Report, places: &[Place]) {
    let said: Vec<Option<&Place>> = (report.stacks.iter())
        .map(|stack| place_of(places, stack))
        .collect();
    if said.iter().all(Option::is_none) {
        return;
    }
    let mut sums: BTreeMap<(Option<&str>, usize), Sum> = BTreeMap::new();
    for path in &report.paths {
        let Some(site) = path.site else {
            continue;
        };
        let sum = sums.entry((path.call.as_deref(), site)).or_default();
        sum.total_ns = sum.total_ns.saturating_add(path.total_ns);
        match path
            .stack
            .and_then(|stack| said.get(stack).copied().flatten())
        {
            Some(place) if place.rests => sum.rests_ns = sum.rests_ns.saturating_add(path.total_ns),
            Some(place) => {
                sum.works_ns = sum.works_ns.saturating_add(path.total_ns);
                let meant = sum.meant.entry(&place.why).or_default();
                *meant = meant.saturating_add(path.total_ns);
            }
            None => {}
        }
    }
    for link in &mut report.chain_links {
        let Some(site) = link
            .site
            .filter(|_| link.kind == ChainKind::Sleep && !link.held)
        else {
            continue;
        };
        let Some(sum) = sums.get(&(link.call.as_deref(), site)) else {
            continue;
        };
        if share(sum.works_ns, sum.total_ns) >= NEARLY_ALL {
            link.rests = false;
            let most = sum.meant.iter().max_by_key(|(_, ns)| **ns);
            link.means = (most.filter(|(_, ns)| share(**ns, sum.total_ns) >= NEARLY_ALL))
                .map(|(why, _)| (*why).to_owned());
        } else if share(sum.rests_ns, sum.total_ns) >= NEARLY_ALL {
            link.rests = true;
            link.means = None;
        }
    }
}
