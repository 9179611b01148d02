// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose work is next, when several users wait for one thread?
//!
//! A lane for each user, served in turn: who asks for a thousand things delays
//! the next user by one of them.

use std::collections::{HashMap, VecDeque};

#[derive(Debug)]
pub struct Turns<T> {
    lanes: HashMap<u32, VecDeque<T>>,
    /// Lanes with something in them.
    order: VecDeque<u32>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T> Turns<T> {
    pub fn push(&mut self, lane: u32, item: T) {
        let waiting = self.lanes.entry(lane).or_default();
        if waiting.is_empty() {
            self.order.push_back(lane);
        }
        waiting.push_back(item);
    }

    /// The lane, and what has waited longest in it.
    pub fn pop(&mut self) -> Option<(u32, T)> {
        let lane = self.order.pop_front()?;
        let waiting = self.lanes.get_mut(&lane)?;
        let item = waiting.pop_front()?;
        if waiting.is_empty() {
            self.lanes.remove(&lane);
        } else {
            self.order.push_back(lane);
        }
        Some((lane, item))
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_lane_delays_the_others_by_one() {
        let mut turns = Turns::default();
        for n in 0..1000 {
            turns.push(1, n);
        }
        assert_eq!(turns.pop(), Some((1, 0)));
        turns.push(2, 5000);
        turns.push(3, 6000);
        turns.push(2, 5001);
        let order: Vec<i32> = (0..6).map(|_| turns.pop().unwrap().1).collect();
        assert_eq!(order, [1, 5000, 6000, 2, 5001, 3]);
        while turns.pop().is_some() {}
        assert!(turns.is_empty() && turns.lanes.is_empty());
    }
}
