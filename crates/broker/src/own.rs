// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does this process take, with what it started?

use std::time::Duration;

/// A process of DeBox starts a few.
const FAMILY_MAX: usize = 256;

/// A process, what it started, and what that started.
pub fn family_of(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() && found.len() < FAMILY_MAX {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", found[next]));
        next += 1;
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split_ascii_whitespace()
                    .filter_map(|c| c.parse::<u32>().ok()),
            );
        }
    }
    found
}

/// CPU time of this process, of children that have ended, and of those that live.
pub fn own_time() -> Duration {
    let of = |who| {
        // SAFETY: all-zero is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills a valid local.
        unsafe { libc::getrusage(who, &raw mut usage) };
        let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    // SAFETY: no memory involved.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let living = family_of(std::process::id())
        .into_iter()
        .skip(1)
        .map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            // Fields 14 and 15; the rest begins with field 3.
            let fields = rest.split_ascii_whitespace().skip(11).take(2);
            let used: f64 = fields.filter_map(|f| f.parse::<f64>().ok()).sum();
            Duration::from_secs_f64(used / ticks)
        });
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN) + living.sum::<Duration>()
}

/// What no other process has, of this one and its children. None: /proc does not tell.
pub fn own_bytes() -> Option<u64> {
    let anonymous = |pid: u32| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))?;
        let number = line.split_ascii_whitespace().next()?;
        Some(number.parse::<u64>().ok()? << 10)
    };
    let me = std::process::id();
    let children = family_of(me).into_iter().skip(1);
    // One that has just ended has none.
    Some(anonymous(me)? + children.filter_map(anonymous).sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_this_process_takes_is_known() {
        let before = own_time();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            std::hint::black_box(0);
        }
        let took = own_time().saturating_sub(before);
        assert!(
            took > Duration::ZERO && took < Duration::from_secs(30),
            "{took:?}"
        );
        let memory = own_bytes().unwrap();
        assert!(memory > 100_000 && memory < 1 << 34, "{memory}");
    }
}
