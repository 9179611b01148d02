// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose sleeps were those of a place?
//!
//! The kernel side sums sleeps up by call and place, whoever slept. A chain begins with who slept, in
//! which call and where, and the parts of a sleep add up to it: so the rows are divided by chains. In the
//! call the two may differ: of what a program's runtime waits for within a call, and of what comes as a
//! call ends. Chains that their row has no room for are of other rows of that place, and nobody knows of
//! which and whose: what may lack them is not divided.

use super::details::{Details, sleeper};
use super::{CallNames, key_name, site_text};
use crate::all_time::share_out;
use crate::model::{BlockedName, BlockingRow};
use crate::sum::grow;
use debox_abi::{DEBOX_NR_OUTSIDE, debox_site};
use std::collections::{BTreeMap, BTreeSet};

/// What rows tell places apart by: label, function, file and line.
type Place<'a> = (&'a str, &'a str, &'a str, u32);
/// A call's name, and the width of its table.
type Call = (Option<String>, u32);
/// By name of the threads: parts of sleeps, and nanoseconds.
type Shares = BTreeMap<String, (u64, u64)>;

fn place_of_site(sites: &[debox_site], site: u32) -> Place<'_> {
    let entry = site_text(sites, site);
    let first = entry.and_then(|entry| site_text(sites, entry.merged));
    match first.or(entry) {
        Some(e) => (e.label(), e.function(), e.file(), e.line),
        None => ("(unknown)", "", "", 0),
    }
}

fn place_of_row(row: &BlockingRow) -> Place<'_> {
    let function = row.function.as_deref().unwrap_or_default();
    let file = row.file.as_deref().unwrap_or_default();
    (&row.label, function, file, row.line.unwrap_or(0))
}

fn all(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn shares_ns(shares: &Shares) -> u64 {
    all(shares.values().map(|(_, ns)| *ns))
}

/// A hundredth, or 100 µs of what is ten times as long.
fn rounding_ns(ns: u64) -> u64 {
    (ns / 10).min(100_000).max(ns / 100)
}

/// A row, and what chains say of it.
struct Told<'a> {
    row: &'a mut BlockingRow,
    shares: Shares,
    ns: u64,
}

impl Told<'_> {
    fn is_over(&self) -> bool {
        self.ns.saturating_sub(self.row.total_ns) > rounding_ns(self.row.total_ns)
    }

    fn is_short(&self) -> bool {
        self.row.total_ns.saturating_sub(self.ns) > rounding_ns(self.row.total_ns)
    }

    fn divide(self) {
        let Self { row, shares, ns } = self;
        let parts = all(shares.values().map(|(parts, _)| *parts));
        // A sleep has one part at least: where there are no more parts than sleeps, each is one.
        let whole = ns == row.total_ns && parts == row.count;
        let alone = ns >= row.total_ns && shares.len() == 1;
        let weights: Vec<u64> = shares.values().map(|(_, ns)| *ns).collect();
        let times = share_out(ns.min(row.total_ns), &weights);
        let names = shares.into_iter().zip(times);
        row.by_name = names
            .map(|((comm, (parts, _)), total_ns)| BlockedName {
                comm: Some(comm),
                count: match alone {
                    true => Some(row.count),
                    false => whole.then_some(parts),
                },
                total_ns,
            })
            .collect();
        if ns < row.total_ns {
            row.by_name.push(BlockedName {
                comm: None,
                count: None,
                total_ns: row.total_ns - ns,
            });
        }
        row.by_name.sort_by(|a, b| {
            b.total_ns
                .cmp(&a.total_ns)
                .then_with(|| a.comm.cmp(&b.comm))
        });
    }
}

/// All rows of a place. `lost`: there are sleeps of which no chain is known.
fn place_divide(rows: Vec<&mut BlockingRow>, mut calls: BTreeMap<Call, Shares>, lost: bool) {
    let rows_ns = all(rows.iter().map(|row| row.total_ns));
    let chains_ns = all(calls.values().map(shares_ns));
    let names: BTreeSet<&String> = calls.values().flat_map(BTreeMap::keys).collect();
    // Nobody else slept here, in whichever call.
    if names.len() == 1 && chains_ns.abs_diff(rows_ns) <= rows_ns / 100 {
        let comm = names.first().map(|comm| (*comm).clone());
        for row in rows {
            row.by_name = vec![BlockedName {
                comm: comm.clone(),
                count: Some(row.count),
                total_ns: row.total_ns,
            }];
        }
        return;
    }
    let rows = rows.into_iter().map(|row| {
        let shares = calls.remove(&(row.call.clone(), row.abi));
        let shares = shares.unwrap_or_default();
        let ns = shares_ns(&shares);
        Told { row, shares, ns }
    });
    let rows: Vec<Told<'_>> = rows.collect();
    let over = rows.iter().any(Told::is_over) || calls.values().any(|left| shares_ns(left) > 0);
    // Where chains are lost, a row that lacks some may have another one's.
    let several = rows.iter().filter(|row| row.is_short()).count() > 1;
    for row in rows {
        let doubtful = row.is_short() && (over || lost && several);
        if row.ns > 0 && !row.is_over() && !doubtful {
            row.divide();
        }
    }
}

/// `launcher`: what the command's process was called until its execve, and then.
pub(super) fn divide(
    rows: &mut [BlockingRow],
    facts: &Details<'_>,
    sites: &[debox_site],
    names: &CallNames<'_>,
    launcher: Option<&(String, String)>,
) {
    let mut places: BTreeMap<Place<'_>, BTreeMap<Call, Shares>> = BTreeMap::new();
    let mut lost = false;
    for (number, sum) in facts.chain_sums {
        let Some((link, comm)) = sleeper(facts, *number) else {
            lost = true;
            continue;
        };
        let comm = match launcher {
            Some((was, is)) if *was == comm => is.clone(),
            _ => comm,
        };
        let nr_key = u32::try_from(link.nr).unwrap_or(DEBOX_NR_OUTSIDE);
        let (call, _, abi) = key_name(nr_key, names);
        let calls = places.entry(place_of_site(sites, link.site)).or_default();
        let shares = calls.entry((call, abi)).or_default();
        let (parts, ns) = shares.entry(comm).or_default();
        grow(parts, sum.count);
        grow(ns, sum.total_ns);
    }
    let numbers: BTreeMap<Place<'_>, usize> = places.keys().copied().zip(0..).collect();
    let mut rows_at: Vec<Vec<&mut BlockingRow>> = numbers.iter().map(|_| Vec::new()).collect();
    for row in rows {
        let at = numbers.get(&place_of_row(row)).copied();
        if let Some(at) = at {
            rows_at[at].push(row);
        }
    }
    for (rows, calls) in rows_at.into_iter().zip(places.into_values()) {
        place_divide(rows, calls, lost);
    }
}
