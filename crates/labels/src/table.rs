// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the kernel side give a stack its label before anybody has named it?
//!
//! Each function counts for the rules whose lists it fits: a set of rules for
//! `wait`, `site`, `any` and `not`. A stack's label is the first rule that is in
//! all of them (and in no `not`) once its functions are added up, so neither names
//! nor patterns are needed when a stack is met: `bpf/label.h` does
//! the adding.

use std::collections::HashMap;

use crate::rules::{Conditions, Rules, SWITCH_FUNCTION, plain};

/// Rules that fit into a [`RuleSet`].
pub const LABEL_RULES_MAX: usize = 256;

/// Bit n: rule n, in the order in which they are tried.
pub type RuleSet = [u64; LABEL_RULES_MAX / 64];

/// What a function counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FunctionSet {
    pub wait: RuleSet,
    pub site: RuleSet,
    pub any: RuleSet,
    pub not: RuleSet,
    pub plumbing: bool,
    /// The scheduler's own: what is inside of it is whoever watches.
    pub switch: bool,
}

/// Code that is not known: a stack through it has no label yet.
pub const UNKNOWN_SET: u32 = 0;

/// Everything that a stack's label depends on.
#[derive(Clone, Debug)]
pub struct LabelTable {
    /// From this address to the next: a place in `sets`. By address.
    pub functions: Vec<(u64, u32)>,
    /// [`UNKNOWN_SET`] is the first.
    pub sets: Vec<FunctionSet>,
    /// Rules that ask for nothing in these lists.
    pub wait_free: RuleSet,
    pub site_free: RuleSet,
    pub any_free: RuleSet,
    /// By rule.
    pub labels: Vec<String>,
}

fn insert(set: &mut RuleSet, rule: usize) {
    set[rule / 64] |= 1 << (rule % 64);
}

impl Rules {
    /// `functions`: where each begins, by address; None: what is there is not
    /// known. None when there are more rules than [`LABEL_RULES_MAX`].
    pub fn table<'a>(
        &self,
        functions: impl Iterator<Item = (u64, Option<&'a str>)>,
    ) -> Option<LabelTable> {
        if self.conditions.len() > LABEL_RULES_MAX {
            return None;
        }
        let mut table = LabelTable {
            functions: Vec::new(),
            sets: vec![FunctionSet::default()],
            wait_free: RuleSet::default(),
            site_free: RuleSet::default(),
            any_free: RuleSet::default(),
            labels: self.iter().map(|rule| rule.label.clone()).collect(),
        };
        for (number, rule) in self.conditions.iter().enumerate() {
            for (list, free) in [
                (&rule.wait, &mut table.wait_free),
                (&rule.site, &mut table.site_free),
                (&rule.any, &mut table.any_free),
            ] {
                if list.is_empty() {
                    insert(free, number);
                }
            }
        }
        let mut known: HashMap<FunctionSet, u32> = HashMap::new();
        for (start, name) in functions {
            let set = match name {
                None => UNKNOWN_SET,
                Some(name) => {
                    let set = self.function_set(name);
                    *known.entry(set).or_insert_with(|| {
                        table.sets.push(set);
                        table.sets.len() as u32 - 1
                    })
                }
            };
            // Neighbours that count for the same are one.
            if table.functions.last().is_none_or(|(_, last)| *last != set) {
                table.functions.push((start, set));
            }
        }
        Some(table)
    }

    fn function_set(&self, name: &str) -> FunctionSet {
        let fits = self.patterns.matching(name);
        let mut set = FunctionSet {
            plumbing: fits.has_any(&self.plumbing),
            switch: plain(name) == SWITCH_FUNCTION,
            ..FunctionSet::default()
        };
        if fits.is_empty() {
            return set;
        }
        for (number, rule) in self.conditions.iter().enumerate() {
            let Conditions {
                wait,
                site,
                any,
                not,
            } = rule;
            for (list, mine) in [
                (wait, &mut set.wait),
                (site, &mut set.site),
                (any, &mut set.any),
                (not, &mut set.not),
            ] {
                if fits.has_any(list) {
                    insert(mine, number);
                }
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// As bpf/label.h does it.
    fn label<'t>(table: &'t LabelTable, stack: &[u64]) -> Option<&'t str> {
        let set_of = |address: u64| {
            let after = table
                .functions
                .partition_point(|(start, _)| *start < address);
            &table.sets[table.functions[after - 1].1 as usize]
        };
        let mut sum = FunctionSet::default();
        let mut inner = true;
        let mut switched = false;
        for &address in stack {
            let set = set_of(address);
            if set.switch && !switched {
                (sum, inner, switched) = (FunctionSet::default(), true, true);
            }
            for word in 0..sum.any.len() {
                sum.any[word] |= set.any[word];
                sum.not[word] |= set.not[word];
                if inner {
                    sum.wait[word] |= set.wait[word];
                }
            }
            if inner && !set.plumbing {
                sum.site = set.site;
                inner = false;
            }
        }
        (0..table.labels.len())
            .find(|rule| {
                let has = |set: &RuleSet| set[rule / 64] >> (rule % 64) & 1 != 0;
                (has(&sum.wait) || has(&table.wait_free))
                    && (has(&sum.site) || has(&table.site_free))
                    && (has(&sum.any) || has(&table.any_free))
                    && !has(&sum.not)
            })
            .map(|rule| table.labels[rule].as_str())
    }

    #[test]
    fn recorded_stacks_get_the_label_that_their_names_give() {
        let rules = Rules::builtin();
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../labels/stacks");
        let mut stacks: Vec<Vec<String>> = Vec::new();
        for entry in fs::read_dir(directory).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let frames = |text: &str| -> Vec<String> {
                let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
                lines.map(|line| line.trim().to_owned()).collect()
            };
            stacks.extend(
                text.split("\n\n")
                    .map(frames)
                    .filter(|stack| !stack.is_empty()),
            );
        }
        let mut names: Vec<&str> = stacks.iter().flatten().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let start = |place: usize| 0x1000 + 0x100 * place as u64;
        let table = rules
            .table(
                names
                    .iter()
                    .enumerate()
                    .map(|(at, name)| (start(at), Some(*name))),
            )
            .unwrap();
        let mut labelled = 0;
        for stack in &stacks {
            let functions: Vec<&str> = stack.iter().map(String::as_str).collect();
            let addresses: Vec<u64> = functions
                .iter()
                .map(|name| start(names.binary_search(name).unwrap()) + 0x10)
                .collect();
            let wanted = rules.label(&functions).map(|rule| rule.label.as_str());
            assert_eq!(label(&table, &addresses), wanted, "{functions:?}");
            labelled += usize::from(wanted.is_some());
        }
        assert!(labelled > 100, "{labelled} stacks with a label");
    }

    #[test]
    fn neighbours_are_one_and_gaps_are_unknown() {
        let rules = Rules::builtin();
        let functions = [
            (0x1000, Some("a_function_of_no_rule")),
            (0x1100, Some("another_one")),
            (0x1200, Some("__schedule")),
            (0x1300, None),
            (0x1400, Some("a_third")),
        ];
        let table = rules.table(functions.into_iter()).unwrap();
        let starts: Vec<u64> = table.functions.iter().map(|(start, _)| *start).collect();
        assert_eq!(starts, [0x1000, 0x1200, 0x1300, 0x1400]);
        assert_eq!(table.functions[2].1, UNKNOWN_SET);
        assert_eq!(table.functions[0].1, table.functions[3].1);
        assert!(table.sets[table.functions[1].1 as usize].switch);
    }
}
