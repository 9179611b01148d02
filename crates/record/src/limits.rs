// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much can a report that debox wrote hold?
//!
//! Reports are read from files that anybody can make. What is done with one
//! takes time and memory by the lengths of its lists, in places by their
//! squares, so a list that no account can fill is refused, with its name.

use crate::format::exceeds;
use debox_abi::*;
use debox_report::Report;

/// Inlined functions come on top of the frames that were walked.
const FRAMES_MAX: usize = 4_096;
const KERNEL_FRAMES_MAX: usize = 1_024;
const WORDS_MAX: usize = 1 << 20;
/// One for each process or thread that something was the matter with.
const NOTES_MAX: usize = 1 << 16;
const THREADS_MAX: usize = 1 << 16;
/// The interposer's table (debox_report::WrapCounts) has as many.
const CALL_SITES_MAX: usize = 1 << 15;
const TRACED_MAX: usize = 4_096;
/// One of each chain, of each sleep that is not over, and of each row what nobody knows.
const NAMES_MAX: usize = DEBOX_CHAINS_MAX + DEBOX_AWAY_MAX as usize + 2 * DEBOX_SITE_ROWS_MAX;
const FEW: usize = 4_096;

/// What exceeds its bound, as a sentence.
pub fn check(r: &Report) -> Result<(), String> {
    let inner = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let trace = r.trace.as_ref();
    let stacks = DEBOX_USER_STACKS_MAX + SLOW_CALLS_MAX + CALL_SITES_MAX;
    for (found, what, most) in [
        (r.run.command.len(), "words of a command", WORDS_MAX),
        (r.run.pids.len(), "pids", WORDS_MAX),
        (r.calls.len(), "calls", 2 * DEBOX_NR_SLOTS),
        (
            inner(&mut r.calls.iter().map(|c| c.histogram.len())),
            "buckets of a histogram",
            DEBOX_HIST_BUCKETS,
        ),
        (
            r.blocking.len(),
            "rows of blocking",
            2 * DEBOX_SITE_ROWS_MAX,
        ),
        (
            inner(&mut r.blocking.iter().map(|row| {
                let durations = row.durations.as_ref();
                durations.map_or(0, |durations| durations.histogram.len())
            })),
            "buckets of sleeps",
            DEBOX_SLEEP_BUCKETS,
        ),
        (
            r.blocking
                .iter()
                .map(|row| row.by_name.len())
                .sum::<usize>(),
            "names of who slept",
            NAMES_MAX,
        ),
        (r.labels.len(), "labels", DEBOX_SITE_ROWS_MAX),
        (r.call_sites.len(), "call sites", CALL_SITES_MAX),
        (r.open_calls.len(), "open calls", THREADS_MAX),
        (r.notes.len(), "notes", NOTES_MAX),
        (r.culprits.len(), "culprits", 2 * DEBOX_CULPRIT_ROWS_MAX),
        (
            r.objects.len(),
            "objects",
            DEBOX_OBJECTS_MAX + SLOW_CALLS_MAX,
        ),
        (r.by_object.len(), "rows of objects", DEBOX_OBJECT_ROWS_MAX),
        (r.lives.len(), "lives", DEBOX_LIVES_MAX),
        (r.activities.len(), "activities", DEBOX_ACTIVITIES_MAX),
        (
            r.critical_path.as_ref().map_or(0, |path| path.parts.len()),
            "parts of a critical path",
            2 * DEBOX_CRITICAL_PARTS_MAX,
        ),
        (r.threads.len(), "threads", THREADS_MAX),
        (r.sites.len(), "sites", 2 * DEBOX_SITES_MAX),
        (
            inner(&mut r.sites.iter().map(|s| s.frames.len())),
            "frames of a site",
            KERNEL_FRAMES_MAX,
        ),
        (r.stacks.len(), "stacks", stacks),
        (
            inner(&mut r.stacks.iter().map(|s| s.frames.len())),
            "frames of a stack",
            FRAMES_MAX,
        ),
        (r.paths.len(), "paths", 2 * DEBOX_PATH_ROWS_MAX),
        (r.history.len(), "histories", DEBOX_NR_SLOTS),
        (
            inner(&mut r.history.iter().map(|h| h.points.len())),
            "points of a history",
            2 * crate::history::POINTS_MAX,
        ),
        (r.gauges.len(), "gauges", FEW),
        (r.trends.len(), "trends", 4 * DEBOX_NR_SLOTS),
        (r.slow_calls.len(), "slow calls", SLOW_CALLS_MAX),
        (
            inner(&mut r.slow_calls.iter().map(|c| c.sleeps.len())),
            "sleeps of a call",
            DEBOX_SLEEPS_MAX,
        ),
        (
            inner(&mut r.slow_calls.iter().map(|c| c.arguments.len())),
            "arguments of a call",
            6,
        ),
        (
            inner(&mut r.slow_calls.iter().map(|c| c.conditions.len())),
            "conditions of a call",
            32,
        ),
        (r.findings.len(), "findings", FEW),
        (
            trace.map_or(0, |t| t.slowest.len()),
            "traced calls",
            TRACED_MAX,
        ),
        (
            inner(
                &mut trace
                    .iter()
                    .flat_map(|t| &t.slowest)
                    .map(|c| c.entries.len()),
            ),
            "entries of a traced call",
            DEBOX_TRACE_MAX as usize,
        ),
        (
            trace.map_or(0, |t| t.functions.len()),
            "traced functions",
            2 * DEBOX_TRACE_FUNCTIONS_MAX,
        ),
    ] {
        if found > most {
            return Err(exceeds(found, what, most));
        }
    }
    Ok(())
}

/// The slowest, and those that met a condition.
const SLOW_CALLS_MAX: usize = 2 * (crate::slow::SLOW_CALLS_MAX + crate::slow::MATCHED_MAX);
