// SPDX-License-Identifier: MIT OR Apache-2.0
//! With which words does a condition ask for `root` and `chain`?

use debox_abi::*;
use std::collections::BTreeSet;

/// What a sleep waited for, in words, a line each.
pub struct Ends {
    /// What the last link is, and the label of the last sleep.
    pub root: String,
    /// Names of tasks and devices, and labels, from the second link on.
    pub chain: String,
}

/// Words that chains end in, besides labels: what [`root_word`] gives.
pub const ROOTS: [&str; 17] = [
    "running",
    "run-queue",
    "device",
    "disk",
    "disk-read",
    "disk-write",
    "disk-flush",
    "disk-discard",
    "disk-secure-erase",
    "disk-write-zeroes",
    "disk-zone-append",
    "timer",
    "time-limit",
    "network",
    "grace-period",
    "interrupt",
    "unknown",
];

/// A word for a root; of a disk's also what it did.
fn root_word(link: &debox_chain) -> String {
    match link.kind {
        DEBOX_CHAIN_RAN_USER | DEBOX_CHAIN_RAN_CALL | DEBOX_CHAIN_RAN => "running".to_owned(),
        DEBOX_CHAIN_RUNQ => "run-queue".to_owned(),
        DEBOX_CHAIN_DEVICE => "device".to_owned(),
        DEBOX_CHAIN_DISK => match debox_report::disk_operation(link.nr) {
            Some(operation) => format!("disk-{}", operation.replace(' ', "-")),
            None => "disk".to_owned(),
        },
        DEBOX_CHAIN_TIMER => "timer".to_owned(),
        DEBOX_CHAIN_LIMIT => "time-limit".to_owned(),
        DEBOX_CHAIN_NETWORK => "network".to_owned(),
        DEBOX_CHAIN_GRACE_PERIOD => "grace-period".to_owned(),
        DEBOX_CHAIN_INTERRUPT => "interrupt".to_owned(),
        _ => "unknown".to_owned(),
    }
}

impl Ends {
    /// None: there is no such chain (yet).
    pub fn of(
        links: &[debox_chain],
        first: u32,
        site: &dyn Fn(u32) -> Option<debox_site>,
    ) -> Option<Self> {
        let mut chain = BTreeSet::new();
        let mut label = None;
        let mut at = first;
        loop {
            // A parent has a lower number (debox_client::chains_parse).
            let link = links.get((at as usize).checked_sub(1)?)?;
            let name = name_get(&link.comm);
            let place = (link.kind == DEBOX_CHAIN_SLEEP)
                .then(|| site(link.site))
                .flatten();
            let mine = place.map(|site| text_get(&site.label).to_owned());
            if at != first {
                chain.extend((!name.is_empty()).then(|| name.into_owned()));
                chain.extend(mine.clone());
            }
            label = mine.or(label);
            let grace = debox_chain {
                kind: DEBOX_CHAIN_GRACE_PERIOD,
                ..debox_chain::zeroed()
            };
            let ends = place.is_some_and(|site| site.flags & DEBOX_SITE_FLAG_GRACE_PERIOD != 0);
            if link.parent == 0 || ends {
                let mut root = root_word(if ends { &grace } else { link });
                if let Some(label) = label {
                    root.push('\n');
                    root.push_str(&label);
                }
                let chain: Vec<String> = chain.into_iter().collect();
                return Some(Self {
                    root,
                    chain: chain.join("\n"),
                });
            }
            at = link.parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_have_words_and_chains_names() {
        let comm = |text: &str| {
            let mut comm = [0; DEBOX_COMM_LEN];
            text_put(&mut comm, text);
            comm
        };
        let link = |kind, parent, name: &str, nr| debox_chain {
            kind,
            parent,
            nr,
            comm: comm(name),
            ..debox_chain::zeroed()
        };
        let waits = [
            link(DEBOX_CHAIN_TIMER, 0, "", -1),
            link(DEBOX_CHAIN_SLEEP, 1, "server", 41),
        ];
        let grows = |_| {
            let mut site = debox_site::zeroed();
            text_put(&mut site.label, "fd-table");
            site.flags = DEBOX_SITE_FLAG_GRACE_PERIOD;
            Some(site)
        };
        let ends = Ends::of(&waits, 2, &grows).unwrap();
        assert_eq!(ends.root, "grace-period\nfd-table");
        let links = [
            link(DEBOX_CHAIN_DISK, 0, "vda", 2),
            link(DEBOX_CHAIN_SLEEP, 1, "jbd2/vda1-8", -1),
            link(DEBOX_CHAIN_SLEEP, 2, "dd", 74),
        ];
        let site = |_| {
            let mut site = debox_site::zeroed();
            text_put(&mut site.label, "device-flush");
            Some(site)
        };
        let ends = Ends::of(&links, 3, &site).unwrap();
        assert_eq!(ends.root, "disk-flush\ndevice-flush");
        assert_eq!(ends.chain, "device-flush\njbd2/vda1-8\nvda");
        assert!(Ends::of(&links, 0, &site).is_none());
        assert!(Ends::of(&links, 4, &site).is_none());
    }
}
