// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kept the CPUs from the threads that are watched?
//!
//! Limits of control groups, affinities, and what others and a hypervisor took are read
//! from the kernel's files while the run lasts: a command may move itself to another
//! group after it has begun. Of processes that nobody named the groups are looked up in the machine's table. What could
//! not be read is not told.

use crate::limits::{
    Held, Hierarchy, Limits, Throttled, hierarchies, limit_new, limit_of, throttled_of,
};
use debox_report::{CpuLimit, Machine};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Looks follow each other closely at first: commands move themselves soon, if at all.
const LOOKS_MS: [u64; 5] = [5, 20, 75, 200, 500];
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of the processes that are looked at.
const PIDS_MAX: usize = 16;
/// Of the groups that processes were seen in that nobody named, and those above.
const FOLDERS_MOST: usize = 4_096;

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// `0-2,4`: as the kernel writes sets of CPUs.
fn cpu_set(text: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>()) {
            cpus.extend((from..=to).take(8192));
        }
    }
    cpus
}

/// Time of one CPU since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTime {
    busy_ns: u64,
    steal_ns: u64,
}

/// `cpu3 user nice system idle iowait irq softirq steal ...`, in ticks.
fn cpu_times(stat: &str, tick_ns: u64) -> BTreeMap<usize, CpuTime> {
    stat.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
            let ticks: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
            let sum = |at: &[usize]| at.iter().filter_map(|at| ticks.get(*at)).sum::<u64>();
            Some((
                cpu,
                CpuTime {
                    busy_ns: sum(&[0, 1, 2, 5, 6]).saturating_mul(tick_ns),
                    steal_ns: sum(&[7]).saturating_mul(tick_ns),
                },
            ))
        })
        .collect()
}

fn times_now() -> BTreeMap<usize, CpuTime> {
    // SAFETY: no pointers are passed.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick_ns = 1_000_000_000 / u64::try_from(ticks).unwrap_or(100).max(1);
    cpu_times(&read("/proc/stat").unwrap_or_default(), tick_ns)
}

/// The group's name in a hierarchy, of `/proc/PID/cgroup`: `id:controllers:/name`.
fn group_of(cgroup: &str, unified: bool) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, name) = (parts.next()?, parts.next()?, parts.next()?);
        let fits = match unified {
            true => id == "0" && controllers.is_empty(),
            false => controllers.split(',').any(|one| one == "cpu"),
        };
        fits.then_some(name)
    })
}

struct Group {
    limit: CpuLimit,
    since: Throttled,
    folder: PathBuf,
}

/// The groups in a hierarchy that a process is in, by its `/proc/PID/cgroup`: it is held to the limits of all of them.
fn folders_of(hierarchy: &Hierarchy, cgroup: &str) -> Vec<PathBuf> {
    let Some(name) = group_of(cgroup, hierarchy.unified) else {
        return Vec::new();
    };
    let below = (name.strip_prefix(hierarchy.root.trim_end_matches('/')))
        .unwrap_or(name)
        .trim_start_matches('/');
    let folder = hierarchy.mount.join(below);
    let above = folder.ancestors();
    above
        .take_while(|it| it.starts_with(&hierarchy.mount))
        .map(Path::to_owned)
        .collect()
}

/// Processes that nobody named: what the machine's groups were held up for meanwhile.
struct OfMachine {
    limits: Arc<Limits>,
    /// When it began.
    before: Held,
    /// The groups that some of them were seen in. None: all groups are.
    seen: Option<BTreeSet<PathBuf>>,
}

impl OfMachine {
    fn new(all: bool) -> Self {
        let limits = Limits::of_machine();
        Self {
            before: limits.now(),
            limits,
            seen: (!all).then(BTreeSet::new),
        }
    }

    fn look(&mut self, hierarchies: &[Hierarchy], pids: &[u32]) {
        let Some(seen) = &mut self.seen else {
            return;
        };
        for pid in pids {
            let cgroup = read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let folders = hierarchies.iter().flat_map(|it| folders_of(it, &cgroup));
            seen.extend(folders);
        }
        if seen.len() > FOLDERS_MOST {
            let limited = self.limits.now();
            seen.retain(|folder| limited.contains_key(folder));
        }
    }

    /// Those that were held up.
    fn now(&self) -> Vec<CpuLimit> {
        let is_ours =
            |folder: &PathBuf| self.seen.as_ref().is_none_or(|seen| seen.contains(folder));
        let groups = self.limits.now().into_iter();
        let ours = groups.filter(|(folder, _)| is_ours(folder));
        let since = ours.map(|(folder, mut limit)| {
            if let Some(before) = self.before.get(&folder) {
                limit.periods = limit.periods.saturating_sub(before.periods);
                limit.throttled = limit.throttled.saturating_sub(before.throttled);
                limit.throttled_ns = limit.throttled_ns.saturating_sub(before.throttled_ns);
            }
            limit
        });
        since.filter(|limit| limit.throttled_ns > 0).collect()
    }
}

struct Watcher {
    hierarchies: Vec<Hierarchy>,
    groups: BTreeMap<PathBuf, Option<Group>>,
    of_machine: Option<OfMachine>,
    start: BTreeMap<usize, CpuTime>,
    allowed: Vec<usize>,
}

impl Watcher {
    fn new(of_machine: Option<OfMachine>) -> Self {
        Self {
            hierarchies: hierarchies(&read("/proc/self/mountinfo").unwrap_or_default()),
            groups: BTreeMap::new(),
            of_machine,
            start: times_now(),
            allowed: Vec::new(),
        }
    }

    fn look(&mut self, pids: &[u32]) {
        let mut allowed = Vec::new();
        for pid in pids.iter().take(PIDS_MAX) {
            if let Some(cgroup) = read(format!("/proc/{pid}/cgroup")) {
                self.groups_add(&cgroup);
            }
            let status = read(format!("/proc/{pid}/status")).unwrap_or_default();
            if let Some(set) =
                (status.lines()).find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            {
                allowed.extend(cpu_set(set));
            }
        }
        if !allowed.is_empty() {
            allowed.sort_unstable();
            allowed.dedup();
            self.allowed = allowed;
        }
    }

    fn groups_add(&mut self, cgroup: &str) {
        for hierarchy in &self.hierarchies {
            for folder in folders_of(hierarchy, cgroup) {
                (self.groups.entry(folder)).or_insert_with_key(|folder| {
                    limit_of(folder, hierarchy.unified)
                        .map(|limit| group_new(hierarchy, folder, limit))
                });
            }
        }
    }

    fn now(&self) -> Machine {
        let now = times_now();
        let online = now.len() as u32;
        let allowed: Vec<usize> = match self.allowed.is_empty() {
            true => now.keys().copied().collect(),
            false => (self.allowed.iter().copied())
                .filter(|cpu| now.contains_key(cpu))
                .collect(),
        };
        let (mut busy_ns, mut steal_ns) = (0u64, 0u64);
        for cpu in &allowed {
            let (Some(now), Some(then)) = (now.get(cpu), self.start.get(cpu)) else {
                continue;
            };
            busy_ns += now.busy_ns.saturating_sub(then.busy_ns);
            steal_ns += now.steal_ns.saturating_sub(then.steal_ns);
        }
        let mut limits: Vec<CpuLimit> = (self.groups.values().flatten())
            .map(|group| {
                let now = throttled_of(&group.folder).unwrap_or_default();
                let since = |now: u64, then: u64| now.saturating_sub(then);
                CpuLimit {
                    periods: since(now.periods, group.since.periods),
                    throttled: since(now.throttled, group.since.throttled),
                    throttled_ns: since(now.throttled_ns, group.since.throttled_ns),
                    ..group.limit.clone()
                }
            })
            .collect();
        limits.extend(self.of_machine.iter().flat_map(OfMachine::now));
        limits.sort_by_key(|limit| std::cmp::Reverse((limit.throttled, limit.throttled_ns)));
        Machine {
            cpus_online: online,
            cpus_allowed: allowed.iter().map(|cpu| *cpu as u32).collect(),
            busy_ns,
            steal_ns,
            limits,
        }
    }
}

fn group_new(hierarchy: &Hierarchy, folder: &Path, limit: (u64, u64)) -> Group {
    Group {
        limit: limit_new(hierarchy, folder, limit),
        since: throttled_of(folder).unwrap_or_default(),
        folder: folder.to_owned(),
    }
}

/// Looks now and then.
pub struct MachineWatch {
    watcher: Arc<Mutex<Watcher>>,
    /// Dropped, it ends the thread that does.
    _end: Option<Sender<()>>,
}

impl MachineWatch {
    /// Of processes that were named.
    pub fn start(pids: Vec<u32>) -> Self {
        let (end, ended) = channel::<()>();
        let mut watcher = Watcher::new(None);
        watcher.look(&pids);
        let watcher = Arc::new(Mutex::new(watcher));
        let looking = watcher.clone();
        std::thread::spawn(move || {
            let mut soon = LOOKS_MS.iter().copied().map(Duration::from_millis);
            loop {
                let wait = soon.next().unwrap_or(LOOK_EVERY);
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if let Ok(mut watcher) = looking.lock() {
                    watcher.look(&pids);
                }
            }
        });
        Self {
            watcher,
            _end: Some(end),
        }
    }

    /// Of all, or of those that [`Self::look`] is told of.
    pub fn of_machine(all: bool) -> Self {
        let watcher = Watcher::new(Some(OfMachine::new(all)));
        Self {
            watcher: Arc::new(Mutex::new(watcher)),
            _end: None,
        }
    }

    /// These are some of those that nobody named.
    pub fn look(&self, pids: &[u32]) {
        if let Ok(mut watcher) = self.watcher.lock() {
            let Watcher {
                hierarchies,
                of_machine,
                ..
            } = &mut *watcher;
            if let Some(of_machine) = of_machine {
                of_machine.look(hierarchies, pids);
            }
        }
    }

    /// From the start until now.
    pub fn now(&self) -> Option<Machine> {
        self.watcher.lock().ok().map(|watcher| watcher.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert_eq!(cpu_set("0-2,5\n"), [0, 1, 2, 5]);
        let times = cpu_times("cpu 9 9 9 9\ncpu1 1 2 3 40 50 6 7 8 9 9\nintr 1", 10);
        let one = CpuTime {
            busy_ns: 190,
            steal_ns: 80,
        };
        assert_eq!(times.into_iter().collect::<Vec<_>>(), [(1, one)]);
    }

    #[test]
    fn groups_are_found_in_both_hierarchies() {
        let mounts = "30 2 0:20 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                      31 2 0:21 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 2 0:22 /a /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw";
        let found = hierarchies(mounts);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].mount, Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!((found[1].root.as_str(), found[1].unified), ("/a", true));
        let cgroup = "3:cpuset:/x\n1:cpuacct,cpu:/small:er\n0::/a/b\n";
        assert_eq!(group_of(cgroup, false), Some("/small:er"));
        assert_eq!(group_of(cgroup, true), Some("/a/b"));
        let folders = |at: usize| folders_of(&found[at], cgroup);
        let of_cpu =
            ["/small:er", ""].map(|name| PathBuf::from(format!("/sys/fs/cgroup/cpu{name}")));
        assert_eq!(folders(0), of_cpu);
        // This mount shows the group /a as its root.
        let unified = ["/b", ""].map(|name| PathBuf::from(format!("/sys/fs/cgroup/unified{name}")));
        assert_eq!(folders(1), unified);
    }
}
