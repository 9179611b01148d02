// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the counters of a run add up to, and what do they leave out?

mod details;
mod interrupts;
mod launch;
mod lives;
mod objects;
mod on_cpu;
mod sleepers;

pub use details::{CallArguments, CodePlace, Details, FrameNames, disk_operation, frame_text};
pub use lives::title_text;

use crate::model::*;
use crate::sum::{Sum, grow};
use crate::wrap::WrapCounts;
use debox_abi::*;
use debox_output::{count_text, duration_text};
use std::collections::BTreeMap;

/// Names of system calls: (number, 32-bit table?) to name.
pub type CallNames<'a> = dyn Fn(u32, bool) -> Option<String> + 'a;
/// The place in the program of (process of the wrap counts, address).
pub type CallSiteNames<'a> = dyn Fn(usize, u64) -> String + 'a;

/// What the caller knows about the run beside the counters.
#[derive(Clone, Debug)]
pub struct RunFacts {
    pub kind: RunKind,
    pub command: Vec<String>,
    pub pids: Vec<u32>,
    pub capture: Capture,
    pub wall_ns: u64,
    pub exit: Option<Exit>,
    /// Debox ended the command (--duration).
    pub ended_early: bool,
    /// DEBOX_FEATURE_* of the broker.
    pub features: u64,
    /// Interrupts were asked for.
    pub irq: bool,
    /// The broker died during the run.
    pub stale: bool,
    /// Threads of the run that live on (or None if nobody looked).
    pub threads_running: Option<u64>,
    pub open_calls: Vec<OpenCall>,
    /// Further notes of the caller's own.
    pub notes: Vec<Note>,
    pub machine: Option<Machine>,
    pub splice_setup: Option<SpliceSetup>,
}

impl RunFacts {
    /// Of a run of which nothing else is known yet.
    pub fn new(kind: RunKind, capture: Capture, command: Vec<String>) -> Self {
        Self {
            kind,
            command,
            pids: Vec::new(),
            capture,
            wall_ns: 0,
            exit: None,
            ended_early: false,
            features: 0,
            irq: false,
            stale: false,
            threads_running: None,
            open_calls: Vec::new(),
            notes: Vec::new(),
            machine: None,
            splice_setup: None,
        }
    }
}

/// One snapshot of everything.
pub struct Input<'a> {
    pub account: &'a debox_account,
    pub cpus: &'a [debox_account_cpu],
    /// The site table; entries that are not resolved have `state` 0.
    pub sites: &'a [debox_site],
    /// Given where calls were counted in user space.
    pub wrap: Option<&'a WrapCounts>,
    pub facts: RunFacts,
    pub call_names: &'a CallNames<'a>,
    pub call_site_names: Option<&'a CallSiteNames<'a>>,
    /// Given in boundary capture, where the broker hands details out.
    pub details: Option<&'a Details<'a>>,
}

fn mean(total: u64, count: u64) -> u64 {
    total.checked_div(count).unwrap_or(0)
}

/// "1 call", "2 calls".
fn n(count: u64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        count_text(count),
        if count == 1 { one } else { many }
    )
}

/// Which call a key of the account stands for.
enum Key {
    Call { nr: u32, compat: bool },
    Outside,
    Unknown,
}

fn key_parse(key: u32) -> Key {
    match key {
        DEBOX_NR_OUTSIDE => Key::Outside,
        k if k < DEBOX_NR_COMPAT => Key::Call {
            nr: k,
            compat: false,
        },
        k if k < DEBOX_NR_OUTSIDE => Key::Call {
            nr: k - DEBOX_NR_COMPAT,
            compat: true,
        },
        _ => Key::Unknown,
    }
}

/// Name, number and table width of a key; name None outside of calls.
fn key_name(key: u32, names: &CallNames<'_>) -> (Option<String>, Option<u32>, u32) {
    match key_parse(key) {
        Key::Outside => (None, None, 64),
        Key::Unknown => (Some("(unknown)".into()), None, 64),
        Key::Call { nr, compat } => {
            let abi = if compat { 32 } else { 64 };
            let name = names(nr, compat).unwrap_or_else(|| format!("call {nr}"));
            (Some(name), Some(nr), abi)
        }
    }
}

/// Name and table width of the call that an account's key stands for; None
/// outside of calls.
pub fn call_of_key(key: u32, names: &CallNames<'_>) -> Option<(String, u32)> {
    let (name, _, abi) = key_name(key, names);
    Some((name?, abi))
}

fn measured_by(features: u64, irq: bool, capture: Capture, wrap: Option<&WrapCounts>) -> Measured {
    let has = |bit| features & bit != 0;
    let kernel_side = match capture {
        Capture::Boundary | Capture::Sleeps => true,
        Capture::Wrap => wrap.is_some_and(|w| w.processes.iter().any(|p| p.measured)),
        Capture::Splice => features != 0,
    };
    Measured {
        calls: capture != Capture::Sleeps,
        blocked: kernel_side && has(DEBOX_FEATURE_SLEEPS),
        runq: kernel_side && has(DEBOX_FEATURE_RUNQ),
        minor_faults: kernel_side && has(DEBOX_FEATURE_FAULTS),
        major_faults: kernel_side && has(DEBOX_FEATURE_MAJOR_FAULTS),
        switches: kernel_side && has(DEBOX_FEATURE_SLEEPS),
        sites: has(DEBOX_FEATURE_SITES),
        irq: irq && kernel_side && has(DEBOX_FEATURE_IRQ),
    }
}

fn call_row(key: u32, sum: &Sum, measured: Measured, names: &CallNames<'_>) -> CallRow {
    let (name, nr, abi) = key_name(key, names);
    let kept = |on: bool, value: u64| (on && sum.measured).then_some(value);
    let percentile = |p| sum.hist.percentile(p, sum.max_ns).unwrap_or(0);
    let ended = sum.count.saturating_add(sum.unfinished);
    let timed = ended.saturating_sub(sum.untimed);
    // What has no time is not as if it had taken none.
    let of_times = |value: u64| (timed > 0 || ended == 0).then_some(value);
    CallRow {
        name: name.unwrap_or_else(|| "(outside)".into()),
        nr,
        abi,
        count: sum.count,
        errors: sum.errors,
        restarted: sum.restarted,
        unfinished: sum.unfinished,
        untimed: sum.untimed,
        unstamped: sum.unstamped,
        wall_ns: of_times(sum.wall_ns),
        mean_ns: of_times(mean(sum.wall_ns, timed)),
        p50_ns: of_times(percentile(50)),
        p99_ns: of_times(percentile(99)),
        max_ns: of_times(sum.max_ns),
        cpu_ns: kept(measured.blocked && measured.runq, sum.cpu_ns()),
        blocked_ns: kept(measured.blocked, sum.blocked_ns),
        runq_ns: kept(measured.runq, sum.runq_ns),
        irq_ns: kept(measured.irq, sum.irq_ns),
        minor_faults: kept(measured.minor_faults, sum.minor_faults),
        major_faults: kept(measured.major_faults, sum.major_faults),
        nvcsw: kept(measured.switches, sum.nvcsw),
        nivcsw: kept(measured.switches, sum.nivcsw),
        missing: sum.missing,
        ones: sum.ones,
        histogram: sum
            .hist
            .used()
            .map(|(from_ns, to_ns, count)| Bucket {
                from_ns,
                to_ns: (to_ns != u64::MAX).then_some(to_ns),
                count,
            })
            .collect(),
    }
}

fn totals_of(calls: &[CallRow], blocking: &[BlockingRow], account: &debox_account) -> Totals {
    let mut totals = Totals {
        processes_started: account.processes_started,
        threads_started: account.threads_started,
        threads_ended: account.threads_ended,
        ..Totals::default()
    };
    let grow_some = |sum: &mut Option<u64>, by: Option<u64>| {
        if let Some(by) = by {
            *sum = Some(sum.unwrap_or(0).saturating_add(by));
        }
    };
    for row in calls {
        grow(&mut totals.calls, row.count);
        grow(&mut totals.errors, row.errors);
        grow(&mut totals.restarted, row.restarted);
        grow(&mut totals.unfinished, row.unfinished);
        grow(&mut totals.wall_ns, row.wall());
        grow_some(&mut totals.cpu_ns, row.cpu_ns);
        grow_some(&mut totals.blocked_ns, row.blocked_ns);
        grow_some(&mut totals.runq_ns, row.runq_ns);
        grow_some(&mut totals.irq_ns, row.irq_ns);
        grow_some(&mut totals.minor_faults, row.minor_faults);
        grow_some(&mut totals.major_faults, row.major_faults);
        grow_some(&mut totals.nvcsw, row.nvcsw);
        grow_some(&mut totals.nivcsw, row.nivcsw);
    }
    for row in blocking {
        grow(&mut totals.sleeps, row.count);
        grow(&mut totals.sleeps_ns, row.total_ns);
    }
    totals
}

/// The text of a site; None when its number has no resolved entry (yet).
fn site_text(sites: &[debox_site], site: u32) -> Option<&debox_site> {
    sites
        .get(site as usize)
        .filter(|entry| entry.state == DEBOX_SITE_RESOLVED)
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PlaceKey {
    nr_key: u32,
    label: String,
    function: String,
    file: String,
    line: u32,
}

struct PlaceSum {
    offset: u32,
    unlabelled: bool,
    count: u64,
    total_ns: u64,
    max_ns: u64,
    waiters: u64,
    waiters_max: u64,
    waiters_known: u64,
    over_ns: u64,
    over: [u64; DEBOX_SLEEP_BUCKETS],
    longest: Option<Longest>,
}

impl Default for PlaceSum {
    fn default() -> Self {
        Self {
            offset: 0,
            unlabelled: false,
            count: 0,
            total_ns: 0,
            max_ns: 0,
            waiters: 0,
            waiters_max: 0,
            waiters_known: 0,
            over_ns: 0,
            over: [0; DEBOX_SLEEP_BUCKETS],
            longest: None,
        }
    }
}

/// The buckets in use.
fn sleep_buckets(histogram: &[u64; DEBOX_SLEEP_BUCKETS]) -> Vec<Bucket> {
    let used = histogram
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0);
    used.map(|(bucket, &count)| {
        let (from_ns, to_ns) = sleep_range(bucket);
        Bucket {
            from_ns,
            to_ns: (to_ns != u64::MAX).then_some(to_ns),
            count,
        }
    })
    .collect()
}

struct Blocking {
    rows: Vec<BlockingRow>,
    unresolved: u64,
    unresolved_ns: u64,
}

fn blocking_of(input: &Input<'_>) -> Blocking {
    let mut places: BTreeMap<PlaceKey, PlaceSum> = BTreeMap::new();
    let (mut unresolved, mut unresolved_ns) = (0, 0);
    for row in &input.account.sites {
        let Some((nr_key, site)) = row.key_parts() else {
            continue;
        };
        let count = row.count();
        let total_ns = row.total_ns.saturating_add(row.asleep_ns);
        if count == 0 {
            // The row was just taken and its first sleep is not over.
            continue;
        }
        let mut entry = site_text(input.sites, site);
        if let Some(first) = entry.and_then(|e| site_text(input.sites, e.merged)) {
            entry = Some(first);
        }
        let key = match entry {
            Some(e) => PlaceKey {
                nr_key,
                label: e.label().to_owned(),
                function: e.function().to_owned(),
                file: e.file().to_owned(),
                line: e.line,
            },
            None => {
                if site != DEBOX_SITE_NONE {
                    grow(&mut unresolved, count);
                    grow(&mut unresolved_ns, total_ns);
                }
                PlaceKey {
                    nr_key,
                    label: "(unknown)".into(),
                    function: String::new(),
                    file: String::new(),
                    line: 0,
                }
            }
        };
        let sum = places.entry(key).or_default();
        if let Some(e) = entry {
            sum.offset = e.offset;
            sum.unlabelled |= e.flags & DEBOX_SITE_FLAG_UNLABELLED != 0;
        }
        grow(&mut sum.count, count);
        grow(&mut sum.total_ns, total_ns);
        sum.max_ns = sum.max_ns.max(row.max_ns);
        grow(&mut sum.over_ns, row.total_ns.saturating_add(row.before_ns));
        for (bucket, more) in sum.over.iter_mut().zip(&row.hist) {
            grow(bucket, *more);
        }
        let known = sum.longest.as_ref().map_or(0, |longest| longest.ns);
        if let (Some((ns, end_ns, comm)), Some(details)) = (row.longest(), input.details)
            && ns > known
        {
            sum.longest = Some(Longest {
                ns,
                end_ns: end_ns.saturating_sub(details.start_ns),
                comm: comm.to_owned(),
            });
        }
        grow(&mut sum.waiters, row.waiters_entry);
        grow(&mut sum.waiters_known, row.waiters_known);
        sum.waiters_max = sum.waiters_max.max(row.waiters_max);
    }
    let all_ns = places
        .values()
        .fold(0u64, |all, sum| all.saturating_add(sum.total_ns));
    let text = |s: String| (!s.is_empty()).then_some(s);
    let mut rows: Vec<BlockingRow> = places
        .into_iter()
        .map(|(key, sum)| {
            let (call, _, abi) = key_name(key.nr_key, input.call_names);
            let function = text(key.function);
            BlockingRow {
                label: key.label,
                unlabelled: sum.unlabelled,
                call,
                abi,
                offset: function.is_some().then_some(sum.offset),
                function,
                file: text(key.file),
                line: (key.line != 0).then_some(key.line),
                count: sum.count,
                total_ns: sum.total_ns,
                mean_ns: mean(sum.total_ns, sum.count),
                max_ns: sum.max_ns,
                share: if all_ns == 0 {
                    0.0
                } else {
                    sum.total_ns as f64 / all_ns as f64
                },
                waiters_mean: (sum.waiters_known > 0)
                    .then(|| sum.waiters as f64 / sum.waiters_known as f64),
                waiters_max: (sum.waiters_known > 0).then_some(sum.waiters_max),
                waiters_known: sum.waiters_known,
                durations: Some(Durations {
                    total_ns: sum.over_ns,
                    histogram: sleep_buckets(&sum.over),
                    longest: sum.longest,
                }),
                by_name: Vec::new(),
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        b.total_ns
            .cmp(&a.total_ns)
            .then(b.count.cmp(&a.count))
            .then_with(|| (&a.label, &a.call).cmp(&(&b.label, &b.call)))
    });
    Blocking {
        rows,
        unresolved,
        unresolved_ns,
    }
}

/// Sums of the account's own rows, by nr key.
fn account_sums(account: &debox_account, cpus: &[debox_account_cpu]) -> BTreeMap<u32, Sum> {
    let mut sums = BTreeMap::new();
    for (key, &index) in account.row_of.iter().enumerate() {
        if index == 0 || index as usize >= DEBOX_ROWS_MAX {
            continue;
        }
        let mut sum = Sum::default();
        for cpu in cpus {
            sum.add_row(&cpu.rows[index as usize]);
        }
        // Of spliced calls it has all but how many there were.
        let is_known = sum.blocked_ns > 0
            || sum.runq_ns > 0
            || sum.irq_ns > 0
            || sum.minor_faults + sum.major_faults > 0;
        if !sum.is_empty() || is_known {
            sums.insert(key as u32, sum);
        }
    }
    sums
}

fn call_sites_of(input: &Input<'_>, measured: Measured) -> Vec<CallSiteRow> {
    let (Some(wrap), Some(names)) = (input.wrap, input.call_site_names) else {
        return Vec::new();
    };
    // Processes of one program share their places, so the text is the key.
    let mut by_place: BTreeMap<(String, String), Sum> = BTreeMap::new();
    for ((process, nr, address), sum) in &wrap.by_site {
        let call = key_name(*nr, input.call_names).0.unwrap_or_default();
        let merged = by_place
            .entry((call, names(*process, *address)))
            .or_default();
        grow(&mut merged.count, sum.count);
        grow(&mut merged.errors, sum.errors);
        grow(&mut merged.wall_ns, sum.wall_ns);
        grow(&mut merged.measured_wall_ns, sum.measured_wall_ns);
        merged.measured |= sum.measured;
        merged.max_ns = merged.max_ns.max(sum.max_ns);
        grow(&mut merged.blocked_ns, sum.blocked_ns);
        grow(&mut merged.runq_ns, sum.runq_ns);
        grow(&mut merged.irq_ns, sum.irq_ns);
    }
    let capture = input.facts.capture;
    let mut rows: Vec<CallSiteRow> = by_place
        .into_iter()
        .filter(|(_, sum)| sum.count > 0)
        .map(|((call, place), sum)| {
            let kept = |on: bool, value: u64| (on && sum.measured).then_some(value);
            // Who has measured such a call knows no place.
            let told =
                capture != Capture::Splice || !ends_untold(Some(&call)) || sum.errors == sum.count;
            let of_times = |value: u64| told.then_some(value);
            CallSiteRow {
                stack: None,
                call,
                place,
                count: sum.count,
                errors: sum.errors,
                wall_ns: of_times(sum.wall_ns),
                mean_ns: of_times(mean(sum.wall_ns, sum.count)),
                max_ns: of_times(sum.max_ns),
                cpu_ns: kept(measured.blocked && measured.runq, sum.cpu_ns()),
                blocked_ns: kept(measured.blocked, sum.blocked_ns),
                runq_ns: kept(measured.runq, sum.runq_ns),
                irq_ns: kept(measured.irq, sum.irq_ns),
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        b.wall_ns
            .cmp(&a.wall_ns)
            .then_with(|| a.place.cmp(&b.place))
    });
    rows
}

struct Notes(Vec<Note>);

impl Notes {
    fn put(&mut self, kind: NoteKind, count: u64, time_ns: Option<u64>, text: String) {
        self.0.push(Note {
            kind,
            count,
            time_ns,
            text,
        });
    }
}

fn time(ns: u64) -> String {
    duration_text(ns, false)
}

/// Why threads left, each reason with how many; and what to do.
fn reasons_to_leave(account: &debox_account) -> String {
    let reasons = [
        (
            account.left_privileged_exec,
            "ran a set-user-id or set-group-id program, or one with capabilities",
        ),
        (
            account.left_unreadable_exec,
            "ran a program that may be run but not read",
        ),
        (
            account.left_credentials,
            "changed user or group ids or capabilities",
        ),
        (
            account.left_undumpable,
            "made their process undumpable (PR_SET_DUMPABLE)",
        ),
    ];
    let counted =
        |&(count, what): &(u64, &str)| (count > 0).then(|| format!("{} {what}", count_text(count)));
    let mut parts: Vec<String> = reasons.iter().filter_map(counted).collect();
    if let Some(last) = parts.last_mut() {
        last.push_str(" (ptrace would refuse that, so DeBox does: run debox as root to see it)");
    }
    parts.extend(counted(&(
        account.left_taken,
        "went to another account (another debox watches them now)",
    )));
    parts.join(", ")
}

fn account_notes(
    input: &Input<'_>,
    blocking: &Blocking,
    sums: &BTreeMap<u32, Sum>,
    notes: &mut Notes,
) {
    let account = input.account;
    if input.facts.stale {
        notes.put(
            NoteKind::Stale,
            0,
            None,
            "the broker ended during the run: what happened afterwards is missing. \
             Start it again (systemctl restart deboxd, or run as root) and repeat"
                .into(),
        );
    }
    if account.calls_begun_before > 0 {
        notes.put(
            NoteKind::Other,
            account.calls_begun_before,
            None,
            format!(
                "{} begun before the watch: what came after is counted",
                n(account.calls_begun_before, "call had", "calls had")
            ),
        );
    }
    if account.sleeps_untold > 0 {
        notes.put(
            NoteKind::SpliceUntold,
            account.sleeps_untold,
            Some(account.sleeps_untold_ns),
            format!(
                "{} ({}) in calls that were made where no code was replaced: they are in BLOCKING alone, and those \
                 calls are missing (--audit counts them)",
                n(account.sleeps_untold, "sleep was", "sleeps were"),
                time(account.sleeps_untold_ns)
            ),
        );
    }
    if account.threads_unwatched > 0 {
        notes.put(
            NoteKind::ThreadsUnwatched,
            account.threads_unwatched,
            None,
            format!(
                "{} could not be watched, since the kernel had no memory for the thread's state: \
                 those calls are missing",
                n(account.threads_unwatched, "thread", "threads")
            ),
        );
    }
    if account.rows_dropped > 0 {
        notes.put(
            NoteKind::RowsDropped,
            account.rows_dropped,
            None,
            format!(
                "{} missing: an account has room for {} different system calls",
                n(account.rows_dropped, "call is", "calls are"),
                DEBOX_ROWS_MAX - 1
            ),
        );
    }
    if account.sites_dropped > 0 {
        notes.put(
            NoteKind::SitesDropped,
            account.sites_dropped,
            Some(account.sites_dropped_ns),
            format!(
                "{} ({}) missing in the blocking table: an account has room for {} pairs of \
                 system call and place",
                n(account.sites_dropped, "sleep", "sleeps"),
                time(account.sites_dropped_ns),
                DEBOX_SITE_ROWS_MAX
            ),
        );
    }
    if account.sites_unknown > 0 {
        notes.put(
            NoteKind::SitesUnknown,
            account.sites_unknown,
            Some(account.sites_unknown_ns),
            format!(
                "{} ({}) without a place: the kernel's stack could not be taken",
                n(account.sites_unknown, "sleep", "sleeps"),
                time(account.sites_unknown_ns)
            ),
        );
    }
    if blocking.unresolved > 0 {
        notes.put(
            NoteKind::SitesUnresolved,
            blocking.unresolved,
            Some(blocking.unresolved_ns),
            format!(
                "{} ({}) shown as (unknown): the broker had not named the place in time",
                n(blocking.unresolved, "sleep", "sleeps"),
                time(blocking.unresolved_ns)
            ),
        );
    }
    if account.irqs_dropped > 0 {
        notes.put(
            NoteKind::RowsDropped,
            account.irqs_dropped,
            Some(account.irqs_dropped_ns),
            format!(
                "{} ({}) missing in the table of interrupts: an account has room for {} kinds",
                n(account.irqs_dropped, "interrupt", "interrupts"),
                time(account.irqs_dropped_ns),
                DEBOX_IRQ_ROWS_MAX
            ),
        );
    }
    let left = account.threads_left();
    if left > 0 {
        notes.put(
            NoteKind::ThreadsLeft,
            left,
            None,
            format!(
                "{} left the watch: {}",
                n(left, "thread", "threads"),
                reasons_to_leave(account)
            ),
        );
    }
    // Sums of counters that are read while they are written may be off by the
    // calls in flight; beyond 1 µs a call something is wrong, and is said.
    let (mut rows, mut excess) = (0u64, 0u64);
    for sum in sums.values() {
        if sum.excess_ns() > sum.count.saturating_mul(1000) {
            rows += 1;
            grow(&mut excess, sum.excess_ns());
        }
    }
    // The kernel side tells what threads slept that nobody counts, too; that they are missing is said.
    let uncounted = input
        .wrap
        .is_some_and(|counts| counts.processes.iter().any(|p| p.threads_lost > 0));
    if rows > 0 && !uncounted {
        notes.put(
            NoteKind::Inconsistent,
            rows,
            Some(excess),
            format!(
                "blocked and run-queue time exceed the wall time of {} by {}: \
                 please report this as a defect",
                n(rows, "system call", "system calls"),
                time(excess)
            ),
        );
    }
    if let Some(running @ 1..) = input.facts.threads_running {
        notes.put(
            NoteKind::ThreadsRunning,
            running,
            None,
            format!(
                "{} still running: what happens from now on, and open calls, are not included",
                n(running, "thread is", "threads are")
            ),
        );
    }
}

fn measured_notes(
    measured: Measured,
    features: u64,
    irq: bool,
    capture: Capture,
    notes: &mut Notes,
) {
    let missing: Vec<&str> = [
        (measured.blocked, "blocked time"),
        (measured.runq, "run-queue wait"),
        (measured.minor_faults, "minor faults"),
        (measured.major_faults, "major faults"),
        (measured.sites, "places"),
        (measured.irq || !irq, "interrupts"),
    ]
    .iter()
    .filter(|(on, _)| !on)
    .map(|(_, name)| *name)
    .collect();
    let by_itself = capture == Capture::Splice || capture == Capture::Wrap && !measured.blocked;
    if missing.is_empty() || by_itself || features == 0 {
        // Whoever counted in user space says why; and of whom nobody was watched, too.
        return;
    }
    notes.put(
        NoteKind::NotMeasured,
        0,
        None,
        format!(
            "not measured here: {}; `debox doctor` says why and what to do",
            missing.join(", ")
        ),
    );
}

fn wrap_notes(input: &Input<'_>, wrap: &WrapCounts, names: &CallNames<'_>, notes: &mut Notes) {
    notes.put(
        NoteKind::WrapCoverage,
        0,
        None,
        "wrap capture: calls that libc makes internally (stdio, malloc, threads, the dynamic \
         loader) and those of static programs are not counted; leave out --capture=wrap to count all"
            .into(),
    );
    if wrap.processes.is_empty() && wrap.refused.is_empty() {
        notes.put(
            NoteKind::WrapNobody,
            0,
            None,
            "no process loaded the interposer: the program is static or set-user-id, or it ended \
             without making a call that is interposed. Leave out --capture=wrap to watch it"
                .into(),
        );
    }
    uncovered_note(input, wrap, names, notes);
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for process in wrap.processes.iter().filter(|p| !p.measured) {
        *reasons.entry(process.why.as_str()).or_default() += 1;
    }
    for (why, processes) in reasons {
        let why = if why.is_empty() {
            "it gave no reason"
        } else {
            why
        };
        notes.put(
            NoteKind::WrapNotMeasured,
            processes,
            None,
            format!(
                "{}: wall times only, blocked time and the rest not measured ({})",
                n(processes, "process", "processes"),
                debox_output::printable(why)
            ),
        );
    }
    let lost = wrap
        .processes
        .iter()
        .fold(0u64, |all, p| all.saturating_add(p.threads_lost));
    if lost > 0 {
        notes.put(
            NoteKind::WrapThreadsLost,
            lost,
            None,
            format!(
                "{} found no free counters in the interposer: their calls are missing",
                n(lost, "thread", "threads")
            ),
        );
    }
    let restricted = wrap.processes.iter().filter(|p| p.restricted).count() as u64;
    if restricted > 0 {
        notes.put(
            NoteKind::Other,
            restricted,
            None,
            format!(
                "{} forbade itself system calls or the time stamp counter (seccomp, PR_SET_TSC): \
                 calls of threads and children that came later are missing; leave out --capture=wrap",
                n(restricted, "process", "processes")
            ),
        );
    }
    if wrap.dropped > 0 {
        notes.put(
            NoteKind::WrapDropped,
            wrap.dropped,
            Some(wrap.dropped_ns),
            format!(
                "{} ({}) missing: a thread's counters hold {} pairs of call and call site",
                n(wrap.dropped, "call", "calls"),
                time(wrap.dropped_ns),
                DEBOX_WRAP_ROWS
            ),
        );
    }
    if wrap.stale > 0 {
        notes.put(
            NoteKind::Stale,
            wrap.stale,
            None,
            format!(
                "{} ended after the broker was gone: their blocked time is not known",
                n(wrap.stale, "call", "calls")
            ),
        );
    }
    if wrap.sites_merged > 0 && input.call_site_names.is_some() {
        notes.put(
            NoteKind::Other,
            wrap.sites_merged,
            None,
            format!(
                "{} calls found no room in the call-site table",
                count_text(wrap.sites_merged)
            ),
        );
    }
    for why in &wrap.refused {
        notes.put(
            NoteKind::WrapRefused,
            1,
            None,
            format!(
                "counters of one process were refused: {}",
                debox_output::printable(why)
            ),
        );
    }
    if wrap.refused_more > 0 {
        notes.put(
            NoteKind::WrapRefused,
            wrap.refused_more,
            None,
            format!(
                "counters of {} were refused",
                n(wrap.refused_more, "further process", "further processes")
            ),
        );
    }
}

/// What the kernel side saw blocking beyond what the interposers were told of.
fn uncovered_note(input: &Input<'_>, wrap: &WrapCounts, names: &CallNames<'_>, notes: &mut Notes) {
    let mut seen: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut labels: BTreeMap<String, u64> = BTreeMap::new();
    for row in &input.account.sites {
        let Some((key, site)) = row.key_parts() else {
            continue;
        };
        let entry = seen.entry(key).or_default();
        let (count, total_ns) = (row.count(), row.total_ns.saturating_add(row.asleep_ns));
        grow(&mut entry.0, count);
        grow(&mut entry.1, total_ns);
        if !wrap.by_nr.contains_key(&key) && count > 0 {
            let label = site_text(input.sites, site).map_or("(unknown)", |e| e.label());
            let call = key_name(key, names)
                .0
                .unwrap_or_else(|| "page faults".into());
            grow(
                labels.entry(format!("{label} in {call}")).or_default(),
                total_ns,
            );
        }
    }
    let (mut count, mut total, mut partly) = (0u64, 0u64, 0u64);
    for (key, (sleeps, ns)) in seen {
        match wrap.by_nr.get(&key) {
            None => {
                grow(&mut count, sleeps);
                grow(&mut total, ns);
            }
            // The same call is made by the program (interposed) and by libc
            // itself (not): what the kernel side has more is libc's. Where
            // nothing was measured in the call, nothing can be said.
            Some(sum) if sum.measured && sum.measured_wall_ns == sum.wall_ns => {
                let more = ns.saturating_sub(sum.blocked_ns);
                // Both sides stamp each sleep; their clocks agree to 1 µs.
                if more > sleeps.saturating_mul(1000) {
                    grow(&mut partly, more);
                }
            }
            Some(_) => {}
        }
    }
    if count > 0 {
        let mut labels: Vec<(String, u64)> = labels.into_iter().collect();
        labels.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let more = labels.len().saturating_sub(4);
        let mut list: Vec<String> = labels
            .iter()
            .take(4)
            .map(|(label, ns)| format!("{label} {}", time(*ns)))
            .collect();
        if more > 0 {
            list.push(format!("{more} more"));
        }
        notes.put(
            NoteKind::WrapUncoveredSleeps,
            count,
            Some(total),
            format!(
                "{} ({}) outside of interposed calls, recorded by the kernel side: {}",
                n(count, "sleep", "sleeps"),
                time(total),
                list.join(", ")
            ),
        );
    }
    if partly > 0 {
        notes.put(
            NoteKind::WrapUncoveredSleeps,
            0,
            Some(partly),
            format!(
                "{} of the blocked time above belongs to calls that are not in the call table: \
                 made inside libc, by DeBox itself to reach its broker (recvmsg), by threads \
                 that were not counted, or never ended (exit, exec, longjmp, cancellation)",
                time(partly)
            ),
        );
    }
}

/// Whether a spliced program counts calls of this name and cannot tell of their ends.
fn ends_untold(name: Option<&str>) -> bool {
    name.is_some_and(|name| name.starts_with("execve") || ["exit", "exit_group"].contains(&name))
}

/// Of those that a spliced program has counted, the time is known if somebody else has seen the end.
fn untimed_tell(sums: &mut BTreeMap<u32, Sum>, names: &CallNames<'_>) {
    for (key, sum) in sums {
        if ends_untold(key_name(*key, names).0.as_deref()) {
            sum.untimed = sum.count.saturating_sub(sum.hist.count());
        }
    }
}

/// A sum that is only a part of what it seems to be says so; one that is nothing is a question mark.
fn untimed_notes(calls: &[CallRow], notes: &mut Notes) {
    for row in calls {
        if row.untimed == 0 || row.wall_ns.is_none() {
            continue;
        }
        notes.put(
            NoteKind::SpliceLeft,
            row.untimed,
            None,
            format!(
                "{} of {} calls of {} have no time: nobody came along with them, or they had not ended",
                count_text(row.untimed),
                count_text(row.count),
                row.name
            ),
        );
    }
}

/// Counted in the program, with what the kernel side saw of those that slept. Of an execve that succeeds the kernel
/// side alone knows the end, and asking whoever watches is a part of it.
fn spliced_sums(
    counts: &WrapCounts,
    account: &BTreeMap<u32, Sum>,
    names: &CallNames<'_>,
) -> BTreeMap<u32, Sum> {
    let mut sums = counts.by_nr.clone();
    for (key, sum) in &mut sums {
        let (name, ..) = key_name(*key, names);
        let seen = account.get(key).map_or(0, |seen| seen.hist.count());
        // One that nobody came along with has no end.
        if !ends_untold(name.as_deref()) || sum.hist.count().saturating_add(seen) == sum.count {
            sum.measured = true;
            sum.measured_wall_ns = sum.wall_ns;
        }
    }
    for (key, seen) in account {
        match sums.get_mut(key) {
            Some(sum) if sum.measured => sum.add(seen),
            Some(sum) => sum.counts_add(seen),
            // Of a program that was not spliced.
            None if !seen.is_empty() => {
                sums.insert(*key, seen.clone());
            }
            None => {}
        }
    }
    if counts.jumped_out > 0 {
        for sum in sums.values_mut().filter(|sum| sum.measured) {
            // Of those the program knows no end, and the kernel side how long they waited.
            let more = sum.excess_ns();
            grow(&mut sum.wall_ns, more);
            grow(&mut sum.measured_wall_ns, more);
        }
    }
    sums
}

/// Adds everything up. The call table is sorted by total wall time.
pub fn assemble(input: Input<'_>) -> Report {
    let capture = input.facts.capture;
    let measured = measured_by(input.facts.features, input.facts.irq, capture, input.wrap);
    let from_account = account_sums(input.account, input.cpus);
    let spliced;
    let sums = match input.wrap {
        _ if capture == Capture::Splice => {
            let mut sums = match input.wrap {
                Some(wrap) if measured.blocked => {
                    spliced_sums(wrap, &from_account, input.call_names)
                }
                Some(wrap) => wrap.by_nr.clone(),
                None => from_account.clone(),
            };
            untimed_tell(&mut sums, input.call_names);
            spliced = sums;
            &spliced
        }
        Some(wrap) => &wrap.by_nr,
        None => &from_account,
    };
    let calls: Vec<CallRow> = sums
        .iter()
        .filter(|(key, sum)| **key != DEBOX_NR_OUTSIDE && !sum.is_empty())
        .map(|(key, sum)| call_row(*key, sum, measured, input.call_names))
        .collect();
    let mut blocking = blocking_of(&input);

    let mut notes = Notes(Vec::new());
    account_notes(&input, &blocking, sums, &mut notes);
    let features = input.facts.features;
    measured_notes(measured, features, input.facts.irq, capture, &mut notes);
    if capture == Capture::Splice && !measured.blocked {
        untimed_notes(&calls, &mut notes);
    }
    if let Some(wrap) = input.wrap.filter(|_| capture == Capture::Wrap) {
        wrap_notes(&input, wrap, input.call_names, &mut notes);
    }
    let told = input
        .details
        .map(|facts| details::tell(facts, input.sites, input.call_names, measured, &mut notes));
    let mut told = told.unwrap_or_default();
    if let Some(facts) = input.details {
        let lives = facts.lives.filter(|_| input.facts.kind == RunKind::Run);
        let launcher = lives.and_then(|lives| launch::renamed(&told.lives, lives.critical_pid));
        // There is no path before its process has ended.
        if let (Some(lives), Some(path)) = (lives, &mut told.critical_path) {
            let held_ns = facts.start_ns.saturating_sub(lives.begin_ns);
            launch::leave(&mut told.lives, path, held_ns);
        }
        let rows = &mut blocking.rows;
        let launcher = launcher.as_ref();
        sleepers::divide(rows, facts, input.sites, input.call_names, launcher);
    }
    if measured.irq {
        lives::interrupts_apart(&mut told);
    }
    if !measured.calls {
        lives::calls_by_clock(&mut told);
    }
    let on_cpu = input.details.and_then(|facts| {
        let table = facts.on_cpu?;
        on_cpu::tell(table, facts, input.call_names, &mut notes)
    });
    notes.0.extend(input.facts.notes.iter().cloned());

    let mut totals = totals_of(&calls, &blocking.rows, input.account);
    let interrupts = match measured.irq {
        true => interrupts::rows(input.account),
        false => Vec::new(),
    };
    totals.irq_outside_ns = measured.irq.then(|| interrupts::outside_ns(&interrupts));
    let mut call_sites = call_sites_of(&input, measured);
    call_sites.append(&mut told.call_sites);
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        debox_version: env!("CARGO_PKG_VERSION").to_owned(),
        run: Run {
            kind: input.facts.kind,
            command: input.facts.command,
            pids: input.facts.pids,
            capture,
            wall_ns: input.facts.wall_ns,
            exit: input.facts.exit,
            cpus: input.cpus.len() as u32,
            splice_setup: input.facts.splice_setup,
            ..Run::default()
        },
        measured,
        totals,
        calls,
        blocking: blocking.rows,
        call_sites,
        open_calls: input.facts.open_calls,
        notes: notes.0,
        culprits: told.culprits,
        chain_links: told.chain_links,
        chains: told.chains,
        lives: told.lives,
        activities: told.activities,
        // Of processes that were watched for a while, the end of one is not what it is about.
        critical_path: (told.critical_path).filter(|_| input.facts.kind == RunKind::Run),
        machine: input.facts.machine,
        objects: told.objects,
        by_object: told.by_object,
        interrupts,
        on_cpu,
        threads: told.threads,
        sites: told.sites,
        stacks: told.stacks,
        paths: told.paths,
        slow_calls: told.slow_calls,
        // Whoever chose them says it.
        slow_calls_left_out: 0,
        ..Report::default()
    };
    report.sort_calls(SortKey::Total);
    report
}
