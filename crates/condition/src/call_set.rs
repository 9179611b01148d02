// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which system calls, of both tables, does a name or pattern stand for?

use crate::glob;
use crate::suggest::nearest;
use debox_abi::{DEBOX_NR_COMPAT, DEBOX_NR_SLOTS};
use debox_symbol::{syscall_name, syscall_number, syscall_number_compat};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A set of account keys: bit n is native call n, bit 512 + n 32-bit call n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CallSet(pub [u64; DEBOX_NR_SLOTS / 64]);

impl CallSet {
    pub const ALL: Self = Self([u64::MAX; DEBOX_NR_SLOTS / 64]);

    pub fn add(&mut self, key: u32) {
        if key < DEBOX_NR_SLOTS as u32 {
            self.0[key as usize / 64] |= 1 << (key % 64);
        }
    }

    pub fn has(&self, key: u32) -> bool {
        key < DEBOX_NR_SLOTS as u32 && self.0[key as usize / 64] >> (key % 64) & 1 != 0
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    pub fn complement(&self) -> Self {
        Self(self.0.map(|word| !word))
    }

    pub fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| b & !a == 0)
    }

    /// Adds the call of that name in either table; false when there is none.
    fn add_name(&mut self, name: &str) -> bool {
        let native = syscall_number(name).filter(|nr| *nr < DEBOX_NR_COMPAT as i32);
        let compat = syscall_number_compat(name)
            .filter(|nr| *nr < (DEBOX_NR_SLOTS as i32 - DEBOX_NR_COMPAT as i32));
        if let Some(nr) = native {
            self.add(nr as u32);
        }
        if let Some(nr) = compat {
            self.add(DEBOX_NR_COMPAT + nr as u32);
        }
        native.is_some() || compat.is_some()
    }
}

struct Table {
    /// Every name of either system call table.
    names: Vec<Cow<'static, str>>,
    also: BTreeMap<&'static str, Vec<&'static str>>,
    groups: BTreeMap<&'static str, Vec<&'static str>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut names: Vec<Cow<'static, str>> = (0..DEBOX_NR_COMPAT as i32)
        .flat_map(|nr| [syscall_name(nr, false), syscall_name(nr, true)])
        .filter(|name| !name.starts_with("syscall_"))
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut also = BTreeMap::new();
    let mut groups = BTreeMap::new();
    for line in include_str!("../data/calls.tsv").lines() {
        let mut part = line.split('\t');
        let (kind, name, calls) = (part.next(), part.next(), part.next());
        if let (Some(kind), Some(name), Some(calls)) = (kind, name, calls) {
            let calls = calls.split(' ').collect();
            match kind {
                "also" => also.insert(name, calls),
                "group" => groups.insert(name, calls),
                _ => None,
            };
        }
    }
    Table {
        names,
        also,
        groups,
    }
});

/// The calls that `name` stands for: a call, a function of libc, or a %group.
pub fn named(name: &str) -> Option<CallSet> {
    let mut set = CallSet::default();
    if name.starts_with('%') {
        for call in TABLE.groups.get(name)? {
            set.add_name(call);
        }
        return Some(set);
    }
    let mut found = set.add_name(name);
    for call in TABLE.also.get(name).into_iter().flatten() {
        found |= set.add_name(call);
    }
    found.then_some(set)
}

/// The calls whose own name fits a pattern.
pub fn like(pattern: &str) -> CallSet {
    let mut set = CallSet::default();
    for name in TABLE.names.iter().filter(|name| glob::fits(pattern, name)) {
        set.add_name(name);
    }
    set
}

pub fn suggestion(name: &str) -> Option<String> {
    if name.starts_with('%') {
        return nearest(name, TABLE.groups.keys().copied()).map(str::to_owned);
    }
    let names = TABLE.names.iter().map(AsRef::as_ref);
    nearest(name, names.chain(TABLE.also.keys().copied())).map(str::to_owned)
}

pub fn group_names() -> String {
    TABLE.groups.keys().copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(set: &CallSet) -> Vec<u32> {
        (0..DEBOX_NR_SLOTS as u32)
            .filter(|key| set.has(*key))
            .collect()
    }

    #[test]
    fn names_of_calls_and_of_libc_functions() {
        // fsync is 74, and 118 in the 32-bit table.
        assert_eq!(keys(&named("fsync").unwrap()), [74, 512 + 118]);
        // open 2, openat 257; 5 and 295.
        assert_eq!(keys(&named("open").unwrap()), [2, 257, 512 + 5, 512 + 295]);
        assert_eq!(keys(&like("open")), [2, 512 + 5]);
        assert_eq!(keys(&named("socketcall").unwrap()), [512 + 102]);
        // recv is no call of its own on x86-64.
        assert_eq!(keys(&named("recv").unwrap()), [45, 512 + 371]);
        assert!(named("fsnyc").is_none());
        assert_eq!(suggestion("fsnyc").as_deref(), Some("fsync"));
        assert_eq!(suggestion("%netwrok").as_deref(), Some("%network"));
        assert!(like("no-such-*").is_empty());
        assert!(like("*").has(0) && like("*").has(512 + 102));
    }

    #[test]
    fn the_data_names_real_calls_only() {
        for (name, calls) in TABLE.also.iter().chain(&TABLE.groups) {
            for call in calls {
                assert!(
                    TABLE.names.iter().any(|known| known == call),
                    "{name}: no call {call}"
                );
            }
            let mut sorted = calls.clone();
            sorted.dedup();
            assert_eq!(sorted.len(), calls.len(), "{name} names a call twice");
        }
        assert_eq!(TABLE.groups["%net"], TABLE.groups["%network"]);
    }
}
