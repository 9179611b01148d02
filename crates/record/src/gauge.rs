// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large are the watched processes right now?
//!
//! What a call's growing time may follow: open descriptors, mappings, resident
//! memory, threads, processes. Read from /proc, bounded in how many processes
//! are looked at.

use debox_report::Gauge;
use std::collections::HashSet;
use std::path::Path;

/// Processes whose sizes are read: the roots and their oldest descendants.
const PROCESSES_READ: usize = 16;
/// Processes that are counted.
const PROCESSES_COUNTED: usize = 1024;
/// Threads of one process that are asked for children.
const THREADS_ASKED: usize = 64;
/// Gauges kept of a run.
const GAUGES_MAX: usize = 512;

/// The gauges of a run, never more than the bound: at the bound every second
/// one goes, and from then on only every second one is kept.
#[derive(Default)]
pub struct Gauges {
    kept: Vec<Gauge>,
    every: usize,
    skipped: usize,
    /// Since the last flush.
    pending: Vec<Gauge>,
}

impl Gauges {
    pub fn add(&mut self, gauge: Gauge) {
        self.every = self.every.max(1);
        self.skipped += 1;
        if self.skipped < self.every {
            return;
        }
        self.skipped = 0;
        self.kept.push(gauge);
        self.pending.push(gauge);
        thin(&mut self.kept, GAUGES_MAX, || self.every *= 2);
        thin(&mut self.pending, GAUGES_MAX, || {});
    }

    pub fn all(&self) -> &[Gauge] {
        &self.kept
    }

    pub fn pending_take(&mut self) -> Vec<Gauge> {
        std::mem::take(&mut self.pending)
    }
}

fn thin(gauges: &mut Vec<Gauge>, max: usize, mut thinned: impl FnMut()) {
    while gauges.len() > max {
        let mut index = 0;
        gauges.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        thinned();
    }
}

pub(crate) fn append(gauges: &mut Vec<Gauge>, more: Vec<Gauge>) {
    gauges.extend(more);
    thin(gauges, GAUGES_MAX, || {});
}

fn read(path: &str) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

fn children(pid: u32, out: &mut Vec<u32>) {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for task in tasks.flatten().take(THREADS_ASKED) {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        out.extend(
            text.split_ascii_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
}

/// The roots and what descends from them, oldest generation first.
fn family(roots: &[u32], follow: bool) -> Vec<u32> {
    let mut known: HashSet<u32> = HashSet::new();
    let mut list: Vec<u32> = Vec::new();
    let mut queue: Vec<u32> = roots.to_vec();
    let mut next = 0;
    while next < queue.len() && list.len() < PROCESSES_COUNTED {
        let pid = queue[next];
        next += 1;
        if known.insert(pid) && Path::new(&format!("/proc/{pid}")).exists() {
            list.push(pid);
            if follow {
                children(pid, &mut queue);
            }
        }
    }
    list
}

/// Open descriptors. Linux 6.2 and later say how many in the directory's size.
fn descriptors(pid: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let path = format!("/proc/{pid}/fd");
    let size = std::fs::metadata(&path).ok()?.size();
    if size > 0 {
        return Some(size);
    }
    let count = std::fs::read_dir(path).ok()?.count() as u64;
    // A process that ended just now has none, and no mappings either.
    (count > 0 || mappings(pid).is_some()).then_some(count)
}

fn mappings(pid: u32) -> Option<u64> {
    let maps = read(&format!("/proc/{pid}/maps"))?;
    let lines = maps.iter().filter(|byte| **byte == b'\n').count() as u64;
    // A process that ended just now has none.
    (lines > 0).then_some(lines)
}

fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = String::from_utf8(read(&format!("/proc/{pid}/statm"))?).ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: no memory involved.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    (pages > 0).then_some(pages * page)
}

fn threads(pid: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // A directory has a link from each of its own: two, and one per thread.
    let links = std::fs::metadata(format!("/proc/{pid}/task")).ok()?.nlink();
    Some(links.saturating_sub(2))
}

/// A look at the processes `roots` (and their descendants, with `follow`):
/// counts of all, and of each size the largest that one process has.
pub fn gauge(roots: &[u32], follow: bool, time_ns: u64) -> Option<Gauge> {
    let family = family(roots, follow);
    if family.is_empty() {
        return None;
    }
    let read = &family[..family.len().min(PROCESSES_READ)];
    let most = |f: &dyn Fn(u32) -> Option<u64>| read.iter().filter_map(|pid| f(*pid)).max();
    Some(Gauge {
        time_ns,
        processes: family.len() as u64,
        threads: family.iter().filter_map(|pid| threads(*pid)).sum(),
        descriptors: most(&descriptors),
        mappings: most(&mappings),
        resident_bytes: most(&resident_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_as_proc_says() {
        let me = std::process::id();
        let before = gauge(&[me], false, 5).unwrap();
        assert_eq!((before.time_ns, before.processes), (5, 1));
        assert!(before.threads >= 1);
        assert!(before.resident_bytes.unwrap() > 100_000);
        let files: Vec<std::fs::File> = (0..300)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        let after = gauge(&[me], false, 6).unwrap();
        let more = after.descriptors.unwrap() as i64 - before.descriptors.unwrap() as i64;
        // Other tests of this process open and close a few meanwhile.
        assert!((250..350).contains(&more), "{more}");
        drop(files);
        assert!(gauge(&[u32::MAX - 1], true, 0).is_none());
    }

    #[test]
    fn children_are_counted() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 100 & wait"])
            .spawn()
            .unwrap();
        let mut most = 0;
        for _ in 0..200 {
            most = gauge(&[child.id()], true, 0).map_or(0, |g| g.processes);
            if most == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let pids = family(&[child.id()], true);
        for pid in pids.iter().skip(1) {
            // SAFETY: a grandchild of ours.
            unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
        }
        child.wait().unwrap();
        assert_eq!(most, 2);
    }

    #[test]
    fn the_number_kept_is_bounded_and_spread() {
        let mut gauges = Gauges::default();
        for i in 0..100_000u64 {
            gauges.add(Gauge {
                time_ns: i,
                ..Gauge::default()
            });
        }
        let all = gauges.all();
        assert!(all.len() <= GAUGES_MAX && all.len() > GAUGES_MAX / 4);
        assert!(all.last().unwrap().time_ns > 99_000);
        let step = all[1].time_ns - all[0].time_ns;
        assert!(
            all.windows(2)
                .all(|w| w[1].time_ns - w[0].time_ns <= 2 * step)
        );
    }
}
