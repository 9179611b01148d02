// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who holds the file lock that a process waits for?
//!
//! /proc/locks lists every lock, and below it those who wait for it.

use crate::proc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileLock {
    /// `FLOCK`, `POSIX`, `OFDLCK`, `LEASE` ...
    pub kind: String,
    /// For writing: exclusive.
    pub write: bool,
    /// -1 where the lock belongs to no process.
    pub pid: i64,
    pub inode: u64,
    /// `0 EOF`
    pub range: String,
    /// Of the lock that this one waits for, in the same list.
    pub waits_for: Option<usize>,
}

/// `1: -> FLOCK  ADVISORY  WRITE 812 fe:01:5551 0 EOF`; more spaces before the arrow
/// say that it waits for another one that waits.
fn parse(text: &str) -> Vec<FileLock> {
    let mut locks: Vec<FileLock> = Vec::new();
    // The last lock at each depth.
    let mut above: Vec<usize> = Vec::new();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once(':') else {
            continue;
        };
        let depth = match rest.find("->") {
            // `N: ->` is the first.
            Some(at) => at.max(1),
            None => 0,
        };
        let words: Vec<&str> = rest
            .trim_start()
            .trim_start_matches("->")
            .split_ascii_whitespace()
            .collect();
        let [kind, _, access, pid, file, from, to, ..] = words[..] else {
            continue;
        };
        let Some(inode) = file.rsplit(':').next().and_then(|ino| ino.parse().ok()) else {
            continue;
        };
        above.truncate(depth);
        let waits_for = if depth == 0 {
            None
        } else {
            above.last().copied()
        };
        let number = locks.len();
        // A list that was cut begins in the middle.
        if depth > 0 && waits_for.is_none() {
            continue;
        }
        while above.len() < depth {
            above.push(number - 1);
        }
        above.push(number);
        locks.push(FileLock {
            kind: kind.to_owned(),
            write: access == "WRITE",
            pid: pid.parse().unwrap_or(-1),
            inode,
            range: format!("{from} {to}"),
            waits_for,
        });
    }
    locks
}

/// All of the machine.
pub(crate) fn all() -> Vec<FileLock> {
    parse(&proc::read("/proc/locks").unwrap_or_default())
}

/// The locks that a process waits for, each with the one that is held and in the way.
pub(crate) fn waited_by(locks: &[FileLock], pid: u32) -> Vec<(FileLock, FileLock)> {
    locks
        .iter()
        .filter(|lock| lock.pid == i64::from(pid) && lock.waits_for.is_some())
        .map(|lock| (lock.clone(), held(locks, lock).clone()))
        .collect()
}

fn held<'a>(locks: &'a [FileLock], mut lock: &'a FileLock) -> &'a FileLock {
    // Each stands below what it waits for, so this ends.
    while let Some(above) = lock.waits_for {
        lock = &locks[above];
    }
    lock
}

/// Who has a locked file open through the description that holds the lock: its
/// children, too, and whoever it was handed to.
pub(crate) fn holders(lock: &FileLock) -> Vec<u32> {
    let mut found = Vec::new();
    for pid in proc::numbers_in("/proc") {
        let holds = proc::numbers_in(&format!("/proc/{pid}/fd"))
            .into_iter()
            .any(|fd| {
                proc::fdinfo(pid, fd).is_some_and(|text| {
                    text.lines()
                        .filter_map(|line| line.strip_prefix("lock:"))
                        .flat_map(parse_one)
                        .any(|held| held.inode == lock.inode && held.kind == lock.kind)
                })
            });
        if holds {
            found.push(pid);
        }
    }
    found
}

fn parse_one(line: &str) -> Vec<FileLock> {
    parse(line.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 100 fe:01:55 0 EOF
1: -> POSIX  ADVISORY  WRITE 101 fe:01:55 0 EOF
1:  -> POSIX  ADVISORY  WRITE 102 fe:01:55 0 9
1: -> POSIX  ADVISORY  READ 103 fe:01:55 0 EOF
2: FLOCK  ADVISORY  READ 200 00:2a:66 0 EOF
3: OFDLCK ADVISORY  WRITE -1 00:2a:67 0 EOF
3: -> OFDLCK ADVISORY  WRITE -1 00:2a:67 0 EOF
";

    #[test]
    fn waiters_stand_below_what_they_wait_for() {
        let locks = parse(LOCKS);
        let blockers: Vec<Option<i64>> = locks
            .iter()
            .map(|lock| lock.waits_for.map(|at| locks[at].pid))
            .collect();
        assert_eq!(
            blockers,
            [None, Some(100), Some(101), Some(100), None, None, Some(-1)]
        );
        assert_eq!(locks[2].range, "0 9");
        assert!(locks[1].write && !locks[4].write);
        assert_eq!(parse("garbage\n1: x\n: -> -> ->\n"), []);
    }

    #[test]
    fn fdinfo_has_the_same_lines() {
        let held = parse_one("\t1: FLOCK  ADVISORY  WRITE 1431 fe:01:55 0 EOF");
        assert_eq!((held[0].pid, held[0].inode), (1431, 55));
    }
}
