// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which threads that are still in a call are in the same?
//!
//! A pool of three hundred idle threads is one line, not three hundred.

use crate::model::OpenCall;
use std::collections::HashMap;

/// Threads of one process, of one name, in one call, that wait for the same.
pub struct OpenGroup<'a> {
    /// The one that waits longest.
    pub first: &'a OpenCall,
    pub threads: usize,
}

const TIME_UNITS: [&str; 7] = ["ns", "us", "µs", "ms", "s", "min", "h"];

/// A sentence without the thread that it begins with, and without times.
fn what_for(call: &OpenCall) -> String {
    let after = call.why.strip_prefix(call.comm.as_str());
    let rest = after
        .filter(|rest| rest.starts_with(" ("))
        .and_then(|rest| rest.split_once(") "))
        .map_or(call.why.as_str(), |(_, rest)| rest);
    let mut words: Vec<&str> = Vec::new();
    for word in rest.split(' ') {
        let unit = TIME_UNITS.contains(&word.trim_end_matches([',', ';', '.']));
        if unit && words.last().is_some_and(|last| last.parse::<f64>().is_ok()) {
            words.pop();
        } else {
            words.push(word);
        }
    }
    words.join(" ")
}

/// In the order of the calls' first ones.
pub fn open_groups(calls: &[OpenCall]) -> Vec<OpenGroup<'_>> {
    let mut places = HashMap::new();
    let mut groups: Vec<OpenGroup<'_>> = Vec::new();
    for call in calls {
        let key = (call.pid, &call.comm, &call.call, what_for(call));
        let place = *places.entry(key).or_insert(groups.len());
        match groups.get_mut(place) {
            None => groups.push(OpenGroup {
                first: call,
                threads: 1,
            }),
            Some(group) => {
                group.threads += 1;
                if call.at_least_ns > group.first.at_least_ns {
                    group.first = call;
                }
            }
        }
    }
    groups
}

impl OpenGroup<'_> {
    /// `7`, `300 threads`.
    pub fn threads_text(&self) -> String {
        match self.threads {
            1 => self.first.tid.to_string(),
            many => format!("{many} threads"),
        }
    }

    /// What they wait for, in a sentence; empty if not asked.
    pub fn why(&self) -> String {
        let why = &self.first.why;
        match self.threads {
            _ if why.is_empty() => String::new(),
            1 => why.clone(),
            2 => format!("{why}; so does another thread"),
            many => format!("{why}; so do {} more threads", many - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tid: u32, call: &str, why: &str) -> OpenCall {
        OpenCall {
            pid: 7,
            tid,
            comm: "java".into(),
            call: call.into(),
            at_least_ns: u64::from(tid),
            why: why.into(),
            held_up: String::new(),
        }
    }

    #[test]
    fn alike_is_who_waits_for_the_same_however_long() {
        let calls = [
            call(7, "futex", "java (7) has waited 4.09 s for a semaphore"),
            call(
                8,
                "futex",
                "java (8 of java 7) has waited 3 s for a semaphore",
            ),
            call(
                9,
                "futex",
                "java (9 of java 7) has waited 3 s for a mutex held by java (8)",
            ),
            call(
                10,
                "futex",
                "java (10 of java 7) has waited 2 s for a mutex held by java (9)",
            ),
            call(11, "read", ""),
            call(12, "read", ""),
            call(
                13,
                "nanosleep",
                "java (13 of java 7) has slept 1 ms in nanosleep, 9.0 s left",
            ),
            call(
                14,
                "nanosleep",
                "java (14 of java 7) has slept 1.5 us in nanosleep, 1 h left",
            ),
        ];
        let groups = open_groups(&calls);
        let told: Vec<(u32, String)> = groups
            .iter()
            .map(|group| (group.first.tid, group.threads_text()))
            .collect();
        let expected = [
            (8, "2 threads"),
            (9, "9"),
            (10, "10"),
            (12, "2 threads"),
            (14, "2 threads"),
        ];
        assert_eq!(told, expected.map(|(tid, text)| (tid, text.to_owned())));
        assert_eq!(groups[3].why(), "");
        assert!(
            groups[0]
                .why()
                .ends_with("for a semaphore; so does another thread")
        );
    }
}
