// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did the time of threads go, and what did the end depend on?

use super::{CallNames, Notes, call_of_key, n, time};
use crate::model::{
    ActivityRow, ActivityTime, CriticalKind, CriticalPart, CriticalPath, LifeRow, LifeTime,
    NoteKind, clock_tells,
};
use debox_abi::*;
use debox_output::shell_word;
use std::collections::BTreeMap;

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The arguments as a shell takes them; what was cut off is marked.
pub fn title_text(title: &[u8; DEBOX_TITLE_LEN]) -> String {
    let cut = title.last() != Some(&0);
    let Some(last) = title.iter().rposition(|b| *b != 0) else {
        return String::new();
    };
    let used = last + 1;
    let words: Vec<String> = title[..used].split(|b| *b == 0).map(shell_word).collect();
    let mut text = words.join(" ");
    if cut {
        text.push_str("...");
    }
    text
}

fn name_of(lives: &debox_lives, program: usize) -> Option<String> {
    let program = lives.programs.get(program).filter(|_| program > 0)?;
    (program.key != 0).then(|| text_of(&program.comm))
}

/// Whose row that is; 0: of many.
fn pid_of(row: &debox_life) -> u32 {
    match row.key & DEBOX_LIFE_GROUP {
        0 => row.key as u32,
        _ => 0,
    }
}

/// The number of its control group; 0: not known, or several. A row that a thread came to with the end of a stretch has it
/// in its key alone.
fn group_of(row: &debox_life) -> u64 {
    match row.cgroup {
        0 if row.key & DEBOX_LIFE_GROUP != 0 => u64::from(row.key as u32),
        group => group,
    }
}

/// Longest first.
pub(super) fn rows(lives: &debox_lives, start_ns: u64) -> Vec<LifeRow> {
    let mut rows: Vec<LifeRow> = (lives.rows.iter())
        .filter(|row| row.key != 0)
        .map(|row| LifeRow {
            pid: pid_of(row),
            parent: row.parent,
            comm: name_of(lives, (row.key >> 32) as usize & (DEBOX_PROGRAMS_MAX - 1))
                .unwrap_or_default(),
            command: title_text(&row.title),
            threads: row.threads,
            processes: row.processes,
            execs: row.execs,
            first_ns: row.first_ns.saturating_sub(start_ns),
            last_ns: row.last_ns.saturating_sub(start_ns),
            cgroup: None,
            unit: None,
            cgroup_number: group_of(row),
            time: (&row.time).into(),
        })
        .collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.time.life_ns), row.pid));
    rows
}

/// What found no room.
pub(super) fn notes_of(lives: &debox_lives, notes: &mut Notes) {
    let lost_ns = lives.dropped.life_ns;
    let names = u64::from(lives.programs_dropped);
    // By name alone: of a control group's it is known whose they are.
    let shared = (lives.rows.iter()).filter(|row| row.key != 0 && row.key as u32 == 0);
    let (threads, processes) = shared.fold((0, 0), |(threads, processes), row| {
        (
            threads + u64::from(row.threads),
            processes + u64::from(row.processes),
        )
    });
    if threads > 0 {
        let text = format!(
            "{} of {} told by the name alone, without the unit and the container: there was no row for their \
             process or control group, or the group is not known",
            n(threads, "thread", "threads"),
            n(processes, "process is", "processes are")
        );
        notes.put(NoteKind::LivesShared, threads, None, text);
    }
    for (count, time_ns, text) in [
        (
            lives.rows_dropped,
            Some(lost_ns),
            format!(
                "{} ({}) missing among the programs: room for {DEBOX_LIVES_MAX} pairs of program and process",
                n(
                    lives.rows_dropped,
                    "stretch of a thread's life is",
                    "stretches of threads' lives are"
                ),
                time(lost_ns)
            ),
        ),
        (
            names,
            None,
            format!(
                "{} among those of no name: room for {} names of programs",
                n(names, "thread is", "threads are"),
                DEBOX_PROGRAMS_MAX - 1
            ),
        ),
        (
            lives.activities_dropped,
            None,
            format!(
                "{} missing: room for {DEBOX_ACTIVITIES_MAX} pairs of program and resting place",
                n(lives.activities_dropped, "activity is", "activities are")
            ),
        ),
    ] {
        if count > 0 {
            notes.put(NoteKind::DetailsDropped, count, time_ns, text);
        }
    }
}

fn part_of(ns: u64, part: u64, whole: u64) -> u64 {
    let part = u128::from(ns) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    part as u64
}

/// What `of` says of each part becomes a part of its own, of this kind.
fn set_apart(path: &mut CriticalPath, kind: CriticalKind, of: impl Fn(&CriticalPart) -> u64) {
    let mut apart: Vec<CriticalPart> = Vec::new();
    for part in &mut path.parts {
        let total_ns = of(part).min(part.total_ns);
        if total_ns == 0 {
            continue;
        }
        part.total_ns -= total_ns;
        let known = apart.iter_mut().find(|other| other.comm == part.comm);
        match known {
            Some(other) => other.total_ns = other.total_ns.saturating_add(total_ns),
            None => apart.push(CriticalPart {
                kind,
                total_ns,
                ..part.clone()
            }),
        }
    }
    path.parts.append(&mut apart);
    path.parts.retain(|part| part.total_ns > 0);
    path.parts
        .sort_by_key(|part| std::cmp::Reverse(part.total_ns));
}

/// A path does not tell interrupts apart: its time on a CPU has the share of them that all
/// threads of the name have.
pub(super) fn interrupts_apart(told: &mut super::details::Told) {
    let Some(path) = &mut told.critical_path else {
        return;
    };
    let mut by_comm: BTreeMap<&str, LifeTime> = BTreeMap::new();
    for row in &told.lives {
        by_comm.entry(&row.comm).or_default().add(&row.time);
    }
    set_apart(path, CriticalKind::Interrupts, |part| {
        let time = part.comm.as_deref().and_then(|comm| by_comm.get(comm));
        let time = time.copied().unwrap_or_default();
        let (irq_ns, rest_ns) = match part.kind {
            CriticalKind::Own => (time.irq_outside_ns, time.own_ns),
            CriticalKind::Calls => (time.irq_ns, time.calls_ns),
            _ => return 0,
        };
        part_of(part.total_ns, irq_ns, irq_ns.saturating_add(rest_ns))
    });
}

/// Where calls have no ends: what of the time on a CPU was spent in the kernel, by the kernel's
/// clock, stands in for the time in calls. (Faults are in it.)
pub(super) fn calls_by_clock(told: &mut super::details::Told) {
    if !clock_tells(&told.lives) {
        return;
    }
    let mut by_comm: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for LifeRow { comm, time, .. } in &mut told.lives {
        let ticks_ns = time.user_ns.saturating_add(time.system_ns);
        let ns = part_of(time.own_ns, time.system_ns, ticks_ns);
        let (kernel_ns, all_ns) = by_comm.entry(comm.clone()).or_default();
        *kernel_ns = kernel_ns.saturating_add(ns);
        *all_ns = all_ns.saturating_add(time.own_ns);
        time.own_ns -= ns;
        time.calls_ns = time.calls_ns.saturating_add(ns);
    }
    let of = |comm: &str, ns: u64| {
        let (kernel_ns, all_ns) = by_comm.get(comm).copied().unwrap_or_default();
        part_of(ns, kernel_ns, all_ns)
    };
    for row in &mut told.activities {
        for time in [&mut row.all, &mut row.slow] {
            let ns = of(&row.comm, time.own_ns);
            time.own_ns -= ns;
            time.calls_ns = time.calls_ns.saturating_add(ns);
        }
    }
    let Some(path) = &mut told.critical_path else {
        return;
    };
    set_apart(path, CriticalKind::Calls, |part| match part.kind {
        CriticalKind::Own => of(part.comm.as_deref().unwrap_or(""), part.total_ns),
        _ => 0,
    });
    path.parts
        .sort_by_key(|part| std::cmp::Reverse(part.total_ns));
}

/// `chain`: the index of a chain's first link.
pub(super) fn critical(
    lives: &debox_lives,
    chain: &mut dyn FnMut(u32) -> Option<usize>,
) -> Option<CriticalPath> {
    if lives.end_ns == 0 || lives.end_ns < lives.begin_ns {
        return None;
    }
    let used = (lives.critical.used as usize).min(lives.critical.part.len());
    let mut parts: Vec<CriticalPart> = lives.critical.part[..used]
        .iter()
        .map(|part| {
            let kind = kind_of((part.key >> DEBOX_CRITICAL_KIND_SHIFT) as u32 & 7);
            let blocked = kind == CriticalKind::Blocked;
            CriticalPart {
                comm: name_of(lives, (part.key >> DEBOX_CRITICAL_PROGRAM_SHIFT) as usize),
                kind,
                chain: blocked.then(|| chain(part.key as u32)).flatten(),
                total_ns: part.ns,
            }
        })
        .collect();
    for (kind, ns) in (0..).zip(lives.critical.other_ns) {
        if ns > 0 {
            parts.push(CriticalPart {
                comm: None,
                kind: kind_of(kind),
                chain: None,
                total_ns: ns,
            });
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.total_ns));
    Some(CriticalPath {
        pid: lives.critical_pid,
        total_ns: lives.end_ns - lives.begin_ns,
        parts,
    })
}

/// Where bucket `at` of latencies begins.
fn bucket_from_ns(at: usize) -> u64 {
    if at == 0 {
        0
    } else {
        1 << (DEBOX_ACTIVITY_MIN_EXP as usize + at - 1)
    }
}

/// The latency that a part (in hundredths) of them does not exceed: within its bucket
/// as if they were spread evenly.
fn percentile_ns(row: &debox_activity, count: u64, hundredths: u64) -> u64 {
    let wanted = (count.saturating_mul(hundredths)).div_ceil(100).max(1);
    let mut before = 0u64;
    for (at, bucket) in row.bucket.iter().enumerate() {
        if before.saturating_add(bucket.count) < wanted {
            before = before.saturating_add(bucket.count);
            continue;
        }
        let from = bucket_from_ns(at);
        let to = bucket_from_ns(at + 1).min(row.max_ns).max(from);
        let part = u128::from(to - from) * u128::from(wanted - before);
        return from + (part / u128::from(bucket.count.max(1))) as u64;
    }
    row.max_ns
}

fn activity_add(to: &mut ActivityTime, bucket: &debox_activity_bucket) {
    let grow = |to: &mut u64, by: u64| *to = to.saturating_add(by);
    grow(&mut to.total_ns, bucket.total_ns);
    grow(&mut to.own_ns, bucket.own_ns);
    grow(&mut to.calls_ns, bucket.calls_ns);
    grow(&mut to.blocked_ns, bucket.blocked_ns);
    grow(&mut to.runq_ns, bucket.runq_ns);
}

/// Most time first.
pub(super) fn activities(
    lives: &debox_lives,
    names: &CallNames<'_>,
    chain: &mut dyn FnMut(u32) -> Option<usize>,
) -> Vec<ActivityRow> {
    let mut rows: Vec<ActivityRow> = (lives.activities.iter())
        .filter(|row| row.key != 0)
        .map(|row| {
            let count = (row.bucket.iter()).fold(0u64, |sum, b| sum.saturating_add(b.count));
            let program = (row.key >> 32) as usize & (DEBOX_PROGRAMS_MAX - 1);
            let mut out = ActivityRow {
                comm: name_of(lives, program).unwrap_or_default(),
                call: call_of_key(row.key as u32 & (DEBOX_NR_SLOTS as u32 - 1), names)
                    .map(|(name, _)| name),
                count,
                p50_ns: percentile_ns(row, count, 50),
                p99_ns: percentile_ns(row, count, 99),
                max_ns: row.max_ns,
                ..ActivityRow::default()
            };
            for (at, bucket) in row.bucket.iter().enumerate().rev() {
                activity_add(&mut out.all, bucket);
                if bucket.count == 0 || out.slow_count > count / 100 {
                    continue;
                }
                out.slow_count += bucket.count;
                out.slow_from_ns = bucket_from_ns(at);
                activity_add(&mut out.slow, bucket);
                if bucket.longest_ns > out.longest_ns {
                    out.longest_ns = bucket.longest_ns;
                    out.longest_chain = chain(bucket.chain);
                }
            }
            out
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.all.total_ns));
    rows
}

fn kind_of(kind: u32) -> CriticalKind {
    match kind {
        DEBOX_CRITICAL_OWN => CriticalKind::Own,
        DEBOX_CRITICAL_CALLS => CriticalKind::Calls,
        DEBOX_CRITICAL_EXIT => CriticalKind::Exit,
        DEBOX_CRITICAL_RUNQ => CriticalKind::Runq,
        DEBOX_CRITICAL_BLOCKED => CriticalKind::Blocked,
        _ => CriticalKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_that_found_no_room_are_told() {
        let mut lives = debox_lives::zeroed_box();
        let told = |lives: &debox_lives| {
            let mut notes = Notes(Vec::new());
            notes_of(lives, &mut notes);
            let told = notes.0.into_iter();
            told.map(|note| (note.kind, note.count, note.time_ns, note.text))
                .collect::<Vec<_>>()
        };
        assert!(told(&lives).is_empty());
        lives.rows_dropped = 2;
        lives.dropped.life_ns = 3_000_000_000;
        lives.programs_dropped = 1;
        lives.activities_dropped = 4;
        let notes = told(&lives);
        let kind = NoteKind::DetailsDropped;
        let counts: Vec<_> = (notes.iter())
            .map(|note| (note.0, note.1, note.2))
            .collect();
        assert_eq!(
            counts,
            [
                (kind, 2, Some(3_000_000_000)),
                (kind, 1, None),
                (kind, 4, None)
            ]
        );
        assert!(
            notes[0]
                .3
                .starts_with("2 stretches of threads' lives are ("),
            "{notes:?}"
        );
        assert!(notes[1].3.starts_with("1 thread is among"), "{notes:?}");
    }

    #[test]
    fn threads_without_a_row_of_their_own_are_told() {
        let mut lives = debox_lives::zeroed_box();
        lives.programs[1].key = 1;
        lives.programs[1].comm[..2].copy_from_slice(b"cc");
        let of_name: u64 = 1 << 63 | 1 << 32;
        for (at, (key, cgroup, threads)) in [
            (of_name | 7, 9, 1),
            (of_name | DEBOX_LIFE_GROUP | 9, 9, 20),
            (of_name | DEBOX_LIFE_GROUP | 8, 0, 30),
            (of_name, 0, 300),
        ]
        .into_iter()
        .enumerate()
        {
            let row = &mut lives.rows[at];
            (row.key, row.cgroup) = (key, cgroup);
            (row.threads, row.processes) = (threads, threads / 2);
            row.time.life_ns = 1_000 - u64::from(threads);
        }
        let told: Vec<_> = (rows(&lives, 0).iter())
            .map(|row| (row.pid, row.comm.clone(), row.cgroup_number, row.threads))
            .collect();
        let cc = || "cc".to_owned();
        assert_eq!(
            told,
            [
                (7, cc(), 9, 1),
                (0, cc(), 9, 20),
                (0, cc(), 8, 30),
                (0, cc(), 0, 300)
            ]
        );
        let mut notes = Notes(Vec::new());
        notes_of(&lives, &mut notes);
        let [note] = &notes.0[..] else {
            panic!("{:?}", notes.0)
        };
        assert_eq!((note.kind, note.count), (NoteKind::LivesShared, 300));
        assert!(
            note.text
                .starts_with("300 threads of 150 processes are told"),
            "{}",
            note.text
        );
    }

    #[test]
    fn a_command_line_reads_as_a_shell_takes_it() {
        let mut title = [0; DEBOX_TITLE_LEN];
        title[..11].copy_from_slice(b"sh\0-c\0a b\0\0");
        assert_eq!(title_text(&title), "sh -c 'a b'");
        title.fill(b'x');
        assert!(title_text(&title).ends_with("x..."));
        assert_eq!(title_text(&[0; DEBOX_TITLE_LEN]), "");
    }
}
