// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which waits are a loss, and of how much are their shares?
//!
//! A thread that waits for something to do loses nothing, however long it waits. Chains tell of each sleep
//! whether it was at its thread's resting place, as they do for the verdict and for "Who it waited for".
//! Where they tell of too little, the label decides, as it does for findings.

use crate::chains::links_of;
use crate::findings::{label_is_idle, meaning, row_is_idle};
use crate::model::*;
use crate::sum::grow;
use crate::verdict::WAIT;
use debox_labels::Kind;
use debox_output::{duration_text, share_text};
use std::collections::BTreeMap;

/// So much of some waits is that of all.
const NEARLY_ALL: f64 = 0.95;
/// Others of whose waits the kernel side says whether they are at rest (`rest_calls` of bpf/life.h).
const MAY_REST: [&str; 10] = [
    "io_uring_enter",
    "mq_timedreceive",
    "msgrcv",
    "read",
    "readv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "semop",
    "semtimedop",
];

/// Of some waits: what is a loss, what is idle, and what waited for who measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    pub lost_ns: u64,
    pub idle_ns: u64,
    pub tool_ns: u64,
}

impl Split {
    fn lost(ns: u64) -> Self {
        Self {
            lost_ns: ns,
            ..Self::default()
        }
    }

    fn idle(ns: u64) -> Self {
        Self {
            idle_ns: ns,
            ..Self::default()
        }
    }

    fn tool(ns: u64) -> Self {
        Self {
            tool_ns: ns,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        grow(&mut self.lost_ns, other.lost_ns);
        grow(&mut self.idle_ns, other.idle_ns);
        grow(&mut self.tool_ns, other.tool_ns);
    }

    pub(crate) fn is_idle(self) -> bool {
        self.lost_ns == 0 && self.idle_ns > 0
    }

    /// The share of all that is a loss, or "idle".
    pub(crate) fn share_text(self, all: Self) -> String {
        match (self.lost_ns, self.idle_ns, self.tool_ns) {
            (0, 1.., _) => "idle".to_owned(),
            (0, _, 1..) => "-".to_owned(),
            (lost_ns, ..) => share_text(lost_ns, all.lost_ns),
        }
    }

    /// What of all these waits is in no share; None: they have all of it.
    pub(crate) fn aside_text(self, ascii: bool) -> Option<String> {
        let idle = (self.idle_ns > 0).then(|| {
            let ns = duration_text(self.idle_ns, ascii);
            format!("{ns} idle, waiting for work or for an answer")
        });
        let tool = (self.tool_ns > 0).then(|| {
            let ns = duration_text(self.tool_ns, ascii);
            format!("{ns} waiting for DeBox itself")
        });
        let parts: Vec<String> = idle.into_iter().chain(tool).collect();
        (!parts.is_empty()).then(|| format!("Not in the shares: {}", parts.join("; ")))
    }
}

/// Of threads of one name, or of all: time asleep, and of it at rest.
#[derive(Clone, Copy, Default)]
struct Rests {
    ns: u64,
    rest_ns: u64,
}

impl Rests {
    fn add(&mut self, ns: u64, rests: bool) {
        grow(&mut self.ns, ns);
        if rests {
            grow(&mut self.rest_ns, ns);
        }
    }

    /// What of `ns` is idle, if it is as what is known here.
    fn split(self, ns: u64) -> Split {
        // A recording's numbers are foreign.
        let rest_ns = self.rest_ns.min(self.ns);
        let idle_ns = u128::from(ns) * u128::from(rest_ns) / u128::from(self.ns.max(1));
        let idle_ns = u64::try_from(idle_ns).unwrap_or(ns);
        Split {
            lost_ns: ns - idle_ns,
            idle_ns,
            tool_ns: 0,
        }
    }
}

/// What rows tell places apart by, and the call.
type Place<'a> = (
    Option<&'a str>,
    &'a str,
    Option<&'a str>,
    Option<&'a str>,
    Option<u32>,
);

/// What chains say of the sleeps at a place, by the names of who slept.
#[derive(Default)]
struct Known<'a> {
    all: Rests,
    by_name: BTreeMap<&'a str, Rests>,
}

fn known(report: &Report) -> BTreeMap<Place<'_>, Known<'_>> {
    let mut places: BTreeMap<Place<'_>, Known<'_>> = BTreeMap::new();
    for row in &report.chains {
        let links = links_of(report, row.first);
        let (Some(link), Some(last)) = (links.first(), links.last()) else {
            continue;
        };
        if link.kind != ChainKind::Sleep {
            continue;
        }
        let Some(site) = link.site.and_then(|site| report.sites.get(site)) else {
            continue;
        };
        // Such a sleep may be the first there, and at rest.
        if !link.rests && matches!(last.kind, ChainKind::NotOver | ChainKind::Ended) {
            continue;
        }
        let place = (
            link.call.as_deref(),
            site.label.as_str(),
            site.function.as_deref(),
            site.file.as_deref(),
            site.line,
        );
        let known = places.entry(place).or_default();
        known.all.add(row.total_ns, link.rests);
        let of_name = known.by_name.entry(&link.comm).or_default();
        of_name.add(row.total_ns, link.rests);
    }
    places
}

/// A row of `blocking`, and the names in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowSplit {
    pub all: Split,
    /// Of each in `by_name`; None: not known.
    names: Vec<Option<Split>>,
}

impl RowSplit {
    fn of(report: &Report, row: &BlockingRow, known: Option<&Known<'_>>) -> Self {
        let whole = |split: fn(u64) -> Split| Self {
            all: split(row.total_ns),
            names: (row.by_name.iter())
                .map(|name| Some(split(name.total_ns)))
                .collect(),
        };
        match meaning(report, &row.label).map(|meaning| meaning.kind) {
            Some(Kind::Tool) => return whole(Split::tool),
            Some(Kind::Loss) => return whole(Split::lost),
            _ => {}
        }
        // Chains that found no room tell nothing: those of most of the row have to be there.
        let known = known.filter(|known| known.all.ns >= row.total_ns / 2 && known.all.ns > 0);
        let Some(known) = known else {
            return match row_is_idle(report, row) {
                true => whole(Split::idle),
                false => whole(Split::lost),
            };
        };
        let label_is_idle = label_is_idle(report, &row.label);
        if known.all.rest_ns == 0 {
            let may_rest = |call| WAIT.contains(&call) || MAY_REST.contains(&call);
            let is_judged = row.abi != 32 && row.call.as_deref().is_some_and(may_rest);
            return match label_is_idle && !is_judged {
                true => whole(Split::idle),
                false => whole(Split::lost),
            };
        }
        // The first waits of an event loop come before it is known where it rests.
        if label_is_idle && known.all.rest_ns as f64 >= NEARLY_ALL * known.all.ns as f64 {
            return whole(Split::idle);
        }
        let all = known.all.split(row.total_ns);
        let of_name = |name: &BlockedName| {
            let rests = known.by_name.get(name.comm.as_deref()?)?;
            Some(rests.split(name.total_ns))
        };
        let names = row.by_name.iter().map(of_name).collect();
        match all.is_idle() {
            true => whole(Split::idle),
            false => Self { all, names },
        }
    }

    /// Of those of `by_name` that are told in one line; None: not of all is it known.
    pub(crate) fn of_names(&self, at: &[usize]) -> Option<Split> {
        let mut sum = Split::default();
        for at in at {
            sum.add(self.names.get(*at).copied().flatten()?);
        }
        Some(sum)
    }
}

/// All waits of a report.
pub(crate) struct Splits<'a> {
    /// As in `blocking`.
    pub rows: Vec<RowSplit>,
    pub all: Split,
    by_call: BTreeMap<(Option<&'a str>, u32), Split>,
}

impl<'a> Splits<'a> {
    pub(crate) fn of(report: &'a Report) -> Self {
        let places = known(report);
        let mut by_call: BTreeMap<(Option<&str>, u32), Split> = BTreeMap::new();
        let mut all = Split::default();
        let mut rows = Vec::new();
        for row in &report.blocking {
            let call = row.call.as_deref();
            let place = (
                call,
                row.label.as_str(),
                row.function.as_deref(),
                row.file.as_deref(),
                row.line,
            );
            let split = RowSplit::of(report, row, places.get(&place));
            all.add(split.all);
            by_call.entry((call, row.abi)).or_default().add(split.all);
            rows.push(split);
        }
        Self { rows, all, by_call }
    }

    /// Of all objects.
    pub(crate) fn of_objects(&self, report: &Report) -> Split {
        let mut all = Split::default();
        for row in &report.by_object {
            all.add(self.of_object(row));
        }
        all
    }

    /// Of what a call worked on is known in which call it waited, and not where.
    pub(crate) fn of_object(&self, row: &ObjectRow) -> Split {
        let ns = row.total_ns;
        let of_call = self.by_call.get(&(row.call.as_deref(), row.abi));
        let Split {
            lost_ns,
            idle_ns,
            tool_ns,
        } = of_call.copied().unwrap_or_default();
        let most = |of: u64| {
            let all = lost_ns as f64 + idle_ns as f64 + tool_ns as f64;
            all > 0.0 && of as f64 >= all * NEARLY_ALL
        };
        // More of it waited than that: of a file among pipes, say, all may be the loss.
        let may_be_loss = lost_ns > 0 && ns <= lost_ns;
        match (most(idle_ns), most(tool_ns)) {
            (true, _) if !may_be_loss => Split::idle(ns),
            (_, true) if !may_be_loss => Split::tool(ns),
            _ => Split::lost(ns),
        }
    }
}
