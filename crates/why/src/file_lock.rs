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
    /// As the kernel has it: of the file system.
    pub device: u32,
    pub inode: u64,
    /// `0 EOF`
    pub range: String,
    /// A lease that its holder has been told to give up.
    pub breaking: bool,
    /// Of the lock that this one waits for, in the same list.
    pub waits_for: Option<usize>,
}

impl FileLock {
    /// Those that can be in each other's way.
    fn class(&self) -> &str {
        match self.kind.as_str() {
            "OFDLCK" => "POSIX",
            "DELEG" => "LEASE",
            kind => kind,
        }
    }

    /// First and last byte.
    fn bytes(&self) -> Option<(u64, u64)> {
        let (from, to) = self.range.split_once(' ')?;
        let to = match to {
            "EOF" => u64::MAX,
            to => to.parse().ok()?,
        };
        Some((from.parse().ok()?, to))
    }

    fn file(&self) -> (u32, u64) {
        (self.device, self.inode)
    }

    /// Whether it, which is held, is in the way of another one of its file.
    fn stops(&self, other: &FileLock) -> bool {
        if self.class() != other.class() {
            return false;
        }
        if self.class() == "LEASE" {
            // What it was for is not told any more once it is to be given up.
            return self.breaking;
        }
        // A process's own POSIX locks are not in its way.
        if self.kind == "POSIX" && other.kind == "POSIX" && self.pid == other.pid {
            return false;
        }
        let apart = match (self.bytes(), other.bytes()) {
            (Some(a), Some(b)) => a.1 < b.0 || b.1 < a.0,
            _ => false,
        };
        (self.write || other.write) && !apart
    }
}

/// The file systems' device and the inode. Of who waits for a lease to be given up the
/// kernel has none.
fn place(file: &str) -> Option<(u32, u64)> {
    if file.starts_with("<none>") {
        return Some((0, 0));
    }
    let mut place = file.split(':');
    let mut hex = || u32::from_str_radix(place.next()?, 16).ok();
    let device = hex()? << 20 | hex()?;
    Some((device, place.next()?.parse().ok()?))
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
        let [kind, how, access, pid, file, from, to, ..] = words[..] else {
            continue;
        };
        let Some((mut device, mut inode)) = place(file) else {
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
        if let Some(above) = waits_for.filter(|_| inode == 0) {
            (device, inode) = locks[above].file();
        }
        locks.push(FileLock {
            kind: kind.to_owned(),
            write: access == "WRITE",
            pid: pid.parse().unwrap_or(-1),
            device,
            inode,
            range: format!("{from} {to}"),
            breaking: how == "BREAKING",
            waits_for,
        });
    }
    locks
}

/// All of the machine.
pub(crate) fn all() -> Vec<FileLock> {
    parse(&proc::read("/proc/locks").unwrap_or_default())
}

/// What a call wants, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub pid: u32,
    /// `FLOCK`, `POSIX`, `OFDLCK`, `LEASE`.
    pub kind: &'static str,
    /// The file system's device, and the inode.
    pub file: Option<(u32, u64)>,
    /// As in a `FileLock`.
    pub range: Option<String>,
}

/// The lock that a call waits for, and those that are held and in its way.
pub(crate) fn waited_for(locks: &[FileLock], wanted: &Wanted) -> Option<(FileLock, Vec<FileLock>)> {
    let mine = |lock: &&FileLock| {
        // Who waits for an open-file-description lock is not recorded in it: it is known
        // by its file alone.
        let owner = match wanted.kind {
            "OFDLCK" => wanted.file.is_some(),
            _ => lock.pid == i64::from(wanted.pid),
        };
        let kind = match wanted.kind {
            "LEASE" => lock.class() == "LEASE",
            kind => lock.kind == kind,
        };
        let file = wanted.file.is_none_or(|file| file == lock.file());
        lock.waits_for.is_some() && owner && kind && file
    };
    let waiting: Vec<&FileLock> = locks.iter().filter(mine).collect();
    let own = waiting
        .iter()
        .find(|lock| wanted.range.as_ref() == Some(&lock.range))
        .or(waiting.first())?;
    let first = held(locks, own);
    // The one above it is where it queues; others that are held are in its way as well.
    let others = locks.iter().filter(|lock| {
        lock.waits_for.is_none() && *lock != first && lock.file() == first.file() && lock.stops(own)
    });
    let all = std::iter::once(first).chain(others).cloned().collect();
    Some(((*own).clone(), all))
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
                        .any(|held| held == *lock)
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
4: LEASE  BREAKING  READ 300 fe:01:56 0 EOF
4: -> LEASE  BREAKER   WRITE 301 <none>:0 0 EOF
5: LEASE  ACTIVE    READ 302 fe:01:56 0 EOF
6: POSIX  ADVISORY  READ 400 fe:01:57 0 9
6: -> POSIX  ADVISORY  WRITE 402 fe:01:57 4 8
7: OFDLCK ADVISORY  READ -1 fe:01:57 5 20
8: POSIX  ADVISORY  READ 403 fe:01:57 9 EOF
8: FLOCK  ADVISORY  READ 404 fe:01:57 0 EOF
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
            [
                None,
                Some(100),
                Some(101),
                Some(100),
                None,
                None,
                Some(-1),
                None,
                Some(300),
                None,
                None,
                Some(400),
                None,
                None,
                None
            ]
        );
        assert_eq!(locks[2].range, "0 9");
        assert_eq!((locks[2].device, locks[2].inode), (0xfe << 20 | 1, 55));
        assert!(locks[1].write && !locks[4].write);
        assert_eq!(locks[7].waits_for, None);
        assert_eq!((locks[8].pid, locks[8].file()), (301, (0xfe << 20 | 1, 56)));
        assert_eq!(parse("garbage\n1: x\n: -> -> ->\n"), []);
    }

    #[test]
    fn fdinfo_has_the_same_lines() {
        let held = parse_one("\t1: FLOCK  ADVISORY  WRITE 1431 fe:01:55 0 EOF");
        assert_eq!((held[0].pid, held[0].inode), (1431, 55));
    }

    fn stopped_by(wanted: &Wanted) -> Option<(String, Vec<(String, i64)>)> {
        let (own, held) = waited_for(&parse(LOCKS), wanted)?;
        let held = held.iter().map(|lock| (lock.kind.clone(), lock.pid));
        Some((own.range, held.collect()))
    }

    #[test]
    fn all_that_are_in_the_way_are_found() {
        let range = |range: &str| Some(range.to_owned());
        let posix = Wanted {
            pid: 402,
            kind: "POSIX",
            ..Wanted::default()
        };
        let both = vec![("POSIX".to_owned(), 400), ("OFDLCK".to_owned(), -1)];
        assert_eq!(stopped_by(&posix), Some(("4 8".to_owned(), both)));
        let lease = Wanted {
            pid: 301,
            kind: "LEASE",
            ..Wanted::default()
        };
        let holder = vec![("LEASE".to_owned(), 300)];
        assert_eq!(stopped_by(&lease), Some(("0 EOF".to_owned(), holder)));
        // Nobody says who waits for this one, so its file must.
        let mut ofd = Wanted {
            kind: "OFDLCK",
            range: range("0 EOF"),
            ..Wanted::default()
        };
        assert_eq!(stopped_by(&ofd), None);
        ofd.file = Some((0x2a, 67));
        let holder = vec![("OFDLCK".to_owned(), -1)];
        assert_eq!(stopped_by(&ofd), Some(("0 EOF".to_owned(), holder)));
        ofd.file = Some((0x2b, 67));
        assert_eq!(stopped_by(&ofd), None);
    }
}
