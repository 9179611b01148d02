// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who waits for whom in a circle, and who will therefore wait for ever?
//!
//! A thread is stuck for good when all who could end its wait are known and all of them
//! are stuck themselves; who needs several (all that share a lock), when one of these is. So: take all threads whose wait only others can end; leave out
//! whoever has one among those others who is not in the set; again, until nobody is left
//! out. What remains waits for itself. A circle with somebody outside who could still act
//! is no deadlock and is not called one.

use std::collections::{BTreeMap, BTreeSet};

/// Of one thread: who has to act for its wait to end. Each group must, and any thread of
/// it can. No group: somebody else, or time, could end it as well.
pub(crate) type Enders = Vec<Vec<u32>>;

/// The first group that will never act.
fn hopeless<'a>(enders: &'a [Vec<u32>], stuck: &BTreeSet<u32>) -> Option<&'a Vec<u32>> {
    enders
        .iter()
        .filter(|group| !group.is_empty())
        .find(|group| group.iter().all(|ender| stuck.contains(ender)))
}

/// The threads that wait for each other and for nobody else.
pub(crate) fn stuck(waits: &BTreeMap<u32, Enders>) -> BTreeSet<u32> {
    let mut stuck: BTreeSet<u32> = waits
        .iter()
        .filter(|(_, enders)| enders.iter().any(|group| !group.is_empty()))
        .map(|(tid, _)| *tid)
        .collect();
    loop {
        let free: Vec<u32> = stuck
            .iter()
            .copied()
            .filter(|tid| hopeless(&waits[tid], &stuck).is_none())
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
                .and_then(|enders| hopeless(enders, stuck)?.first());
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
            .map(|(tid, enders)| (*tid, enders.map(<[u32]>::to_vec).into_iter().collect()))
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
    fn who_needs_all_is_stuck_with_one_of_them() {
        // 1 needs 5, which sleeps, and 2 or 3, which wait for 1.
        let mut waits = BTreeMap::from([
            (1, vec![vec![5], vec![2, 3]]),
            (2, vec![vec![1]]),
            (3, vec![vec![1]]),
            (5, vec![]),
        ]);
        let all = stuck(&waits);
        assert_eq!(all, BTreeSet::from([1, 2, 3]));
        assert_eq!(circles(&waits, &all), [[1, 2]]);
        waits.insert(3, vec![]);
        assert_eq!(stuck(&waits), BTreeSet::new());
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
            .map(|tid| (tid, vec![vec![(tid + 1) % 5000]]))
            .collect();
        let stuck = stuck(&ring);
        assert_eq!(circles(&ring, &stuck).concat().len(), 5000);
    }
}
