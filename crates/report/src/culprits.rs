// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who kept calls waiting, as people read it?
//!
//! A row of a report is of one process. Fifteen helpers of one command are one line.

use crate::assemble::frame_text;
use crate::family::Families;
use crate::model::*;
use crate::sum::grow;
use debox_output::printable;
use std::collections::{BTreeMap, BTreeSet};

/// What tells lines apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CulpritOf {
    /// A device or a timer, and no process.
    pub interrupt: bool,
    /// Empty: withheld, or an interrupt.
    pub comm: String,
    pub role: CulpritRole,
    /// As in [`CulpritRow`].
    pub culprit_call: Option<String>,
    /// Where in its program; empty: not known.
    pub place: String,
    pub label: String,
    pub call: Option<String>,
    pub abi: u32,
}

/// All processes of a command that kept the same waiting in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CulpritGroup {
    pub of: CulpritOf,
    /// None: an interrupt.
    pub pids: BTreeSet<u32>,
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// Longest total first. `later`: the report that says which names are one family's, this one or one that
/// it is compared with.
pub fn culprit_groups(report: &Report, later: &Report) -> Vec<CulpritGroup> {
    let families = Families::of(later.culprits.iter().map(|row| row.comm.as_str()), []);
    let mut groups: BTreeMap<CulpritOf, CulpritGroup> = BTreeMap::new();
    for row in &report.culprits {
        let interrupt = row.pid == 0;
        let stack = row.stack.and_then(|stack| report.stacks.get(stack));
        let frame = stack.and_then(|stack| stack.frames.get(stack.site_frame));
        let of = CulpritOf {
            interrupt,
            comm: match interrupt {
                true => String::new(),
                false => families.name(&row.comm),
            },
            role: row.role,
            culprit_call: row.culprit_call.clone(),
            place: frame.map_or(String::new(), |frame| printable(&frame_text(frame))),
            label: row.label.clone(),
            call: row.call.clone(),
            abi: row.abi,
        };
        let group = groups.entry(of.clone()).or_insert_with(|| CulpritGroup {
            of,
            pids: BTreeSet::new(),
            count: 0,
            total_ns: 0,
            max_ns: 0,
        });
        if !interrupt {
            group.pids.insert(row.pid);
        }
        grow(&mut group.count, row.count);
        grow(&mut group.total_ns, row.total_ns);
        group.max_ns = group.max_ns.max(row.max_ns);
    }
    let mut groups: Vec<CulpritGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.total_ns));
    groups
}
