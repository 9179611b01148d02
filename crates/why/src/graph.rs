// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who waits for whom in a circle, and who will therefore wait for ever?
//!
//! A thread is stuck for good when all who could end its wait are known and all of them
//! are stuck themselves. So: take all threads whose wait only others can end; leave out
//! whoever has one among those others who is not in the set; again, until nobody is left
//! out. What remains waits for itself. A circle with somebody outside who could still act
//! is no deadlock and is not called one.

use std::collections::{BTreeMap, BTreeSet};

/// Of one thread: who could end its wait, each any of some threads; None: somebody
/// else, or time, could as well.
pub(crate) type Enders = Option<Vec<u32>>;

/// The threads that wait for each other and for nobody else.
pub(crate) fn stuck(waits: &BTreeMap<u32, Enders>) -> BTreeSet<u32> {
    let mut stuck: BTreeSet<u32> = waits
        .iter()
        .filter(|(_, enders)| enders.as_ref().is_some_and(|list| !list.is_empty()))
        .map(|(tid, _)| *tid)
        .collect();
    loop {
        let free: Vec<u32> = stuck
            .iter()
            .copied()
            .filter(|tid| {
                let enders = waits[tid].as_deref().unwrap_or_default();
                !enders.iter().all(|ender| stuck.contains(ender))
            })
            .collect();
        if free.is_empty() {
            return stuck;
        }
        for tid in free {
            stuck.remove(&tid);
        }
    }
}

/// The circles among stuck threads, each once, beginning with its lowest number.
pub(crate) fn circles(waits: &BTreeMap<u32, Enders>, stuck: &BTreeSet<u32>) -> Vec<Vec<u32>> {
    let mut found: BTreeSet<Vec<u32>> = BTreeSet::new();
    let mut done: BTreeSet<u32> = BTreeSet::new();
    for start in stuck {
        let mut path: Vec<u32> = Vec::new();
        let mut at = *start;
        while !done.contains(&at) {
            if let Some(first) = path.iter().position(|tid| *tid == at) {
                let mut circle = path[first..].to_vec();
                let lowest = circle
                    .iter()
                    .enumerate()
                    .min_by_key(|(_, tid)| **tid)
                    .map_or(0, |(place, _)| place);
                circle.rotate_left(lowest);
                found.insert(circle);
                break;
            }
            path.push(at);
            let next = waits
                .get(&at)
                .and_then(Option::as_ref)
                .and_then(|enders| enders.iter().find(|ender| stuck.contains(ender)));
            let Some(next) = next else { break };
            at = *next;
        }
        done.extend(path);
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(list: &[(u32, Option<&[u32]>)]) -> BTreeMap<u32, Enders> {
        list.iter()
            .map(|(tid, enders)| (*tid, enders.map(<[u32]>::to_vec)))
            .collect()
    }

    fn both(list: &[(u32, Option<&[u32]>)]) -> (Vec<u32>, Vec<Vec<u32>>) {
        let waits = waits(list);
        let stuck = stuck(&waits);
        let circles = circles(&waits, &stuck);
        (stuck.into_iter().collect(), circles)
    }

    #[test]
    fn a_ring_is_a_deadlock_and_whoever_waits_for_it_is_stuck() {
        let (stuck, circles) = both(&[
            (3, Some(&[1])),
            (1, Some(&[2])),
            (2, Some(&[3])),
            (9, Some(&[2])),
        ]);
        assert_eq!(stuck, [1, 2, 3, 9]);
        assert_eq!(circles, [[1, 2, 3]]);
    }

    #[test]
    fn one_who_could_act_is_enough() {
        // 2 waits for 1 or 5, and 5 sleeps for a while.
        let (stuck, circles) = both(&[(1, Some(&[2])), (2, Some(&[1, 5])), (5, None)]);
        assert!(stuck.is_empty() && circles.is_empty());
        // Nobody is known to be able to end it: that is no proof of anything.
        assert_eq!(both(&[(1, Some(&[]))]).0, []);
    }

    #[test]
    fn a_thread_can_wait_for_itself() {
        assert_eq!(both(&[(7, Some(&[7]))]), (vec![7], vec![vec![7]]));
    }

    #[test]
    fn two_rings_are_two() {
        let (_, circles) = both(&[
            (1, Some(&[2])),
            (2, Some(&[1])),
            (3, Some(&[4])),
            (4, Some(&[3])),
        ]);
        assert_eq!(circles, [[1, 2], [3, 4]]);
    }

    #[test]
    fn a_long_ring_is_walked_without_recursion() {
        let ring: BTreeMap<u32, Enders> = (0..5000)
            .map(|tid| (tid, Some(vec![(tid + 1) % 5000])))
            .collect();
        let stuck = stuck(&ring);
        assert_eq!(circles(&ring, &stuck).concat().len(), 5000);
    }
}
