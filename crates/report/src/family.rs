// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which threads does the kernel have one of for each CPU?
//!
//! Which of them it was that woke somebody is the scheduler's choice, and no cause: ksoftirqd/0 and
//! ksoftirqd/1 are told as one, ksoftirqd/*.

use std::collections::{BTreeMap, BTreeSet};

/// "ksoftirqd" of "ksoftirqd/1", "kworker" of "kworker/u8:3" and of "kworker/0:1H".
fn family(comm: &str) -> Option<&str> {
    let (family, which) = comm.split_once('/')?;
    let which = which.strip_prefix('u').unwrap_or(which);
    let which = which.strip_suffix('H').unwrap_or(which);
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (!family.is_empty() && which.split(':').all(number)).then_some(family)
}

/// Names of families that more than one of is there.
#[derive(Debug, Default)]
pub struct Families(BTreeSet<String>);

impl Families {
    /// Of `names`; not those of which one is among `apart`, whose own time is told elsewhere by its name.
    pub fn of<'a>(
        names: impl IntoIterator<Item = &'a str>,
        apart: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut known: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for name in names {
            if let Some(family) = family(name) {
                known.entry(family).or_default().insert(name);
            }
        }
        for family in apart.into_iter().filter_map(family) {
            known.remove(family);
        }
        let several = known.iter().filter(|(_, members)| members.len() > 1);
        Self(several.map(|(family, _)| (*family).to_owned()).collect())
    }

    pub fn name(&self, comm: &str) -> String {
        match family(comm).filter(|family| self.0.contains(*family)) {
            Some(family) => format!("{family}/*"),
            None => comm.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_each_cpu_are_one_where_there_are_several() {
        let names = [
            "ksoftirqd/0",
            "ksoftirqd/1",
            "kworker/0:1H",
            "kworker/u8:3",
            "rcuop/1",
            "a/b",
            "c/1x",
            "c/2x",
            "/1",
            "/2",
        ];
        let families = Families::of(names, []);
        let told: Vec<String> = names.iter().map(|name| families.name(name)).collect();
        assert_eq!(
            told,
            [
                "ksoftirqd/*",
                "ksoftirqd/*",
                "kworker/*",
                "kworker/*",
                "rcuop/1",
                "a/b",
                "c/1x",
                "c/2x",
                "/1",
                "/2"
            ]
        );
        let watched = Families::of(names, ["kworker/1:1"]);
        assert_eq!(watched.name("kworker/0:1H"), "kworker/0:1H");
        assert_eq!(watched.name("ksoftirqd/0"), "ksoftirqd/*");
    }
}
