// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is the time spent on doing very little, very often?
//!
//! No single one of such calls or processes is slow, so no table shows them; what they
//! have in common does: one byte each, nothing there, lived for a moment.

use super::{ERRORS_SHARE_MIN, Times, call_name, listed, percent, plural, share, time};
use crate::lives;
use crate::model::*;
use debox_output::{count_text, printable};

/// Fewer than these are no habit.
const CALLS_MIN: u64 = 1_000;
/// So many processes of one name, none of which used a CPU for longer on average,
const PROCESSES_MIN: u64 = 50;
const PROCESS_CPU_NS: u64 = 5_000_000;
/// or lived for longer, are churn.
const PROCESS_LIFE_NS: u64 = 50_000_000;
/// Of the time of a call's waits: so much for one object is all of it.
const ONE_OBJECT: f64 = 0.8;

pub(crate) struct Churn {
    /// Thread time; of many short calls CPU time alone.
    pub explained_ns: u64,
    /// The calls that it is about; empty: it is about none.
    pub calls: Vec<String>,
    pub finding: Finding,
}

/// Calls that are given a path.
const WITH_PATH: [&str; 16] = [
    "open",
    "openat",
    "openat2",
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "execve",
    "execveat",
    "getxattr",
    "lgetxattr",
];
/// Calls that return how many bytes they moved.
const MOVE_BYTES: [&str; 12] = [
    "read", "write", "pread64", "pwrite64", "readv", "writev", "recvfrom", "sendto", "recvmsg",
    "sendmsg", "preadv", "pwritev",
];
const SYNC: [&str; 4] = ["fsync", "fdatasync", "sync_file_range", "msync"];

/// Those worth telling, whatever else there is to tell.
pub(crate) fn find(report: &Report) -> Vec<Churn> {
    let times = Times::of(report);
    let mut list: Vec<Churn> = Vec::new();
    list.extend(missing(report));
    list.extend(one_byte(report));
    list.extend(seeks(report));
    list.extend(synced_by_many(report));
    list.retain(|churn| times.worth(churn.explained_ns));
    list.extend(short_processes(report));
    for churn in &mut list {
        churn.finding.share = share(churn.explained_ns, times.busy_ns());
    }
    list.sort_by_key(|churn| std::cmp::Reverse(churn.explained_ns));
    list
}

/// The part of a call's CPU time that so many of the calls stand for.
fn part_ns(row: &CallRow, of: u64) -> u64 {
    (row.cpu_ns.unwrap_or(0) as f64 * share(of, row.count)) as u64
}

fn rate(report: &Report, count: u64) -> String {
    let seconds = report.run.wall_ns as f64 / 1e9;
    count_text((count as f64 / seconds.max(1e-9)).round() as u64)
}

fn missing(report: &Report) -> Option<Churn> {
    let mut rows: Vec<&CallRow> = (report.calls.iter())
        .filter(|row| {
            WITH_PATH.contains(&row.name.as_str())
                && share(row.missing, row.count) >= ERRORS_SHARE_MIN
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.missing));
    let count: u64 = rows.iter().map(|row| row.missing).sum();
    let all: u64 = rows.iter().map(|row| row.count).sum();
    if count < CALLS_MIN {
        return None;
    }
    let names: Vec<String> = (rows.iter().take(3))
        .map(|row| call_name(Some(&row.name), row.abi))
        .collect();
    let evidence = (rows.iter().take(4))
        .map(|row| {
            format!(
                "{}: {} of {} found nothing (ENOENT), {} a second",
                call_name(Some(&row.name), row.abi),
                count_text(row.missing),
                plural(row.count, "call", "calls"),
                rate(report, row.missing)
            )
        })
        .collect();
    Some(Churn {
        explained_ns: rows.iter().map(|row| part_ns(row, row.missing)).sum(),
        calls: rows.iter().map(|row| row.name.clone()).collect(),
        finding: Finding {
            title: format!(
                "{} of {} {} calls ask for files that are not there",
                count_text(count),
                count_text(all),
                listed(&names)
            ),
            text: "That is a search along a path: of programs, libraries, headers, modules, translations. \
                   Shorten the path, put first what is found most often, or remember what is not there."
                .into(),
            evidence,
            share: 0.0,
        },
    })
}

fn one_byte(report: &Report) -> Option<Churn> {
    let row = (report.calls.iter())
        .filter(|row| {
            MOVE_BYTES.contains(&row.name.as_str())
                && row.ones >= CALLS_MIN
                && share(row.ones, row.count) >= 0.5
        })
        .max_by_key(|row| part_ns(row, row.ones))?;
    let name = call_name(Some(&row.name), row.abi);
    let each_ns = row.cpu_ns.unwrap_or(0) / row.count.max(1);
    Some(Churn {
        explained_ns: part_ns(row, row.ones),
        calls: vec![row.name.clone()],
        finding: Finding {
            title: format!(
                "{} of {} {name} calls move one byte each",
                count_text(row.ones),
                count_text(row.count)
            ),
            text: "A call costs about the same for one byte as for a few thousand: read and write through a \
                   buffer."
                .into(),
            evidence: vec![format!(
                "{name}: {} on the CPU for each call, {} a second",
                time(each_ns),
                rate(report, row.count)
            )],
            share: 0.0,
        },
    })
}

fn seeks(report: &Report) -> Option<Churn> {
    let row = report.calls.iter().find(|row| row.name == "lseek")?;
    let moved: u64 = (report.calls.iter())
        .filter(|row| MOVE_BYTES.contains(&row.name.as_str()))
        .map(|row| row.count)
        .sum();
    if row.count < CALLS_MIN || row.count < moved / 2 {
        return None;
    }
    Some(Churn {
        explained_ns: row.cpu_ns.unwrap_or(0),
        calls: vec![row.name.clone()],
        finding: Finding {
            title: format!(
                "lseek is called {} times, beside {} calls that move data",
                count_text(row.count),
                count_text(moved)
            ),
            text: "A position that is asked for is known already, and one that is set can go with the call: \
                   pread(2) and pwrite(2) take it along."
                .into(),
            evidence: vec![format!(
                "lseek: {} on a CPU in all, {} a second",
                time(row.cpu_ns.unwrap_or(0)),
                rate(report, row.count)
            )],
            share: 0.0,
        },
    })
}

/// Waits of several threads at once, for the same file to be on its disk.
fn synced_by_many(report: &Report) -> Option<Churn> {
    let rows: Vec<&BlockingRow> = (report.blocking.iter())
        .filter(|row| row.call.as_deref().is_some_and(|call| SYNC.contains(&call)))
        .collect();
    let most = rows.iter().filter_map(|row| row.waiters_max).max()?;
    let total_ns: u64 = rows.iter().map(|row| row.total_ns).sum();
    let row = (report.by_object.iter())
        .filter(|row| row.call.as_deref().is_some_and(|call| SYNC.contains(&call)))
        .max_by_key(|row| row.total_ns)?;
    let object = report.objects.get(row.object?)?;
    if most == 0 || share(row.total_ns, total_ns) < ONE_OBJECT {
        return None;
    }
    let call = row.call.clone().unwrap_or_default();
    Some(Churn {
        explained_ns: row.total_ns,
        calls: Vec::new(),
        finding: Finding {
            title: format!(
                "{} is synced by several threads at once: {} of {call}, while up to {} waited for the same",
                printable(&object.text),
                time(row.total_ns),
                plural(most, "other", "others")
            ),
            text: "One sync is enough for all changes that were made before it: let one thread sync for all \
                   that wait (group commit)."
                .into(),
            evidence: vec![format!(
                "{call}: {} in {}, {} of what its calls waited",
                time(row.total_ns),
                plural(row.count, "sleep", "sleeps"),
                percent(share(row.total_ns, total_ns))
            )],
            share: 0.0,
        },
    })
}

/// The processes of a name that is mostly begun and ended.
pub(crate) fn processes_short(group: &lives::LifeGroup) -> bool {
    let each = |ns: u64| ns.checked_div(group.processes).unwrap_or(u64::MAX);
    group.processes >= PROCESSES_MIN
        && each(group.time.cpu_ns()) <= PROCESS_CPU_NS
        && each(group.time.life_ns) <= PROCESS_LIFE_NS
}

fn short_processes(report: &Report) -> Option<Churn> {
    let groups = lives::groups(&report.lives);
    let group = (groups.iter())
        .filter(|group| processes_short(group))
        .max_by_key(|group| group.time.cpu_ns())?;
    // Without waits: for whom is not said.
    let cost_ns = group.time.cpu_ns();
    Some(Churn {
        explained_ns: cost_ns,
        calls: Vec::new(),
        finding: Finding {
            title: format!(
                "{} of {} lived for {} each",
                plural(group.processes, "process", "processes"),
                printable(&group.comm),
                time(lives::life_ns(report, group) / group.processes.max(1))
            ),
            text: "What a process costs to begin and to end is most of that: do the work in one process, or \
                   hand several pieces to each."
                .into(),
            evidence: vec![format!(
                "{}: {} of CPU time for each, {} in all",
                printable(&group.comm),
                time(cost_ns / group.processes.max(1)),
                time(cost_ns)
            )],
            share: 0.0,
        },
    })
}
