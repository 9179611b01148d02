// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which control groups have a limit of CPU time, and for how long did that keep their threads from running?
//!
//! Of the whole machine that is kept in one table, however many ask: the trees are walked now and then, the groups with a
//! limit are read more often. What walking takes is bounded, and so is how many groups are kept. Of a group that is gone the
//! last reading stays for a while.

use debox_report::CpuLimit;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often groups with a limit are read: what one does after that until it is gone is not told.
const READ_EVERY: Duration = Duration::from_secs(5);
/// Who asks more often is told the same.
const READ_LEAST: Duration = Duration::from_millis(200);
/// How often new groups are looked for, if that takes no more
const WALK_EVERY: Duration = Duration::from_secs(10);
/// than one part of so many of a CPU; else more seldom,
const WALK_SHARE: u32 = 500;
/// but so often.
const WALK_SELDOM: Duration = Duration::from_secs(300);
/// Folders of one walk, those that are higher up first.
const FOLDERS_MOST: usize = 20_000;
/// Groups with a limit that are kept.
const GROUPS_MOST: usize = 1_000;
/// What a group that is gone was held up for stays so long.
const GONE_KEPT: Duration = Duration::from_secs(3600);

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// What a group's statistics count up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    pub periods: u64,
    pub throttled: u64,
    pub throttled_ns: u64,
}

/// Of `cpu.stat`, in both versions of control groups.
pub fn throttled(stat: &str) -> Throttled {
    let mut sums = Throttled::default();
    for line in stat.lines() {
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        let value: u64 = value.trim().parse().unwrap_or(0);
        match name {
            "nr_periods" => sums.periods = value,
            "nr_throttled" => sums.throttled = value,
            "throttled_usec" => sums.throttled_ns = value.saturating_mul(1000),
            "throttled_time" => sums.throttled_ns = value,
            _ => {}
        }
    }
    sums
}

/// (quota, period) of `cpu.max`; None: no limit.
fn cpu_max(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((
        quota.parse::<u64>().ok()?.saturating_mul(1000),
        period.parse::<u64>().ok()?.saturating_mul(1000),
    ))
}

/// Where groups that limit CPU time are, and which files say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub mount: PathBuf,
    /// Of the group that this mount shows as its root.
    pub root: String,
    pub unified: bool,
}

/// Of `/proc/self/mountinfo`: `id parent dev ROOT MOUNT options [...] - TYPE source SUPER`.
pub fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let mut front = front.split(' ').skip(3);
            let (root, mount) = (front.next()?, front.next()?);
            let mut back = back.split(' ');
            let kind = back.next()?;
            let unified = kind == "cgroup2";
            let of_cpu = back.nth(1)?.split(',').any(|option| option == "cpu");
            (unified || kind == "cgroup" && of_cpu).then(|| Hierarchy {
                mount: PathBuf::from(mount),
                root: root.to_owned(),
                unified,
            })
        })
        .collect()
}

/// Quota and period of a group's folder.
pub fn limit_of(folder: &Path, unified: bool) -> Option<(u64, u64)> {
    if unified {
        return cpu_max(&read(folder.join("cpu.max"))?);
    }
    let number = |name: &str| read(folder.join(name))?.trim().parse::<u64>().ok();
    // -1: no limit.
    let quota = number("cpu.cfs_quota_us")?;
    let period = number("cpu.cfs_period_us")?;
    Some((quota.saturating_mul(1000), period.saturating_mul(1000)))
}

/// Of a group's folder, now.
pub fn throttled_of(folder: &Path) -> Option<Throttled> {
    Some(throttled(&read(folder.join("cpu.stat"))?))
}

/// A group with this limit, that was held up for nothing yet.
pub fn limit_new(
    hierarchy: &Hierarchy,
    folder: &Path,
    (quota_ns, period_ns): (u64, u64),
) -> CpuLimit {
    let below = folder.strip_prefix(&hierarchy.mount).unwrap_or(folder);
    let file = match hierarchy.unified {
        true => "cpu.max",
        false => "cpu.cfs_quota_us",
    };
    CpuLimit {
        group: format!("/{}", below.display()),
        file: file.into(),
        quota_ns,
        period_ns,
        ..CpuLimit::default()
    }
}

/// A group that has a limit, or had one.
struct Limited {
    /// With what it was held up since the table was made.
    limit: CpuLimit,
    inode: u64,
    /// As its file had it last.
    last: Throttled,
    gone: Option<Instant>,
}

impl Limited {
    fn read(&mut self, folder: &Path) {
        let Some(now) = throttled_of(folder) else {
            self.gone.get_or_insert_with(Instant::now);
            return;
        };
        // Another one of the name counts from the start.
        let is_other = now.periods < self.last.periods || now.throttled_ns < self.last.throttled_ns;
        let last = match is_other {
            true => Throttled::default(),
            false => self.last,
        };
        self.last = now;
        let limit = &mut self.limit;
        for (sum, now, last) in [
            (&mut limit.periods, now.periods, last.periods),
            (&mut limit.throttled, now.throttled, last.throttled),
            (&mut limit.throttled_ns, now.throttled_ns, last.throttled_ns),
        ] {
            *sum = sum.saturating_add(now.saturating_sub(last));
        }
    }
}

/// The groups of the trees that limit CPU time.
struct Table {
    hierarchies: Vec<Hierarchy>,
    groups: BTreeMap<PathBuf, Limited>,
    most: usize,
    folders_most: usize,
    /// Device and inode of what the last walk saw. None: there was none.
    walked: Option<HashSet<(u64, u64)>>,
    read: Instant,
    /// There are more groups than are looked at, and that was not said yet.
    more: bool,
}

impl Table {
    fn new(hierarchies: Vec<Hierarchy>, most: usize, folders_most: usize) -> Self {
        // Where the controller is in another tree nothing is to be found in this one.
        let limits = |it: &Hierarchy| {
            let controllers = || read(it.mount.join("cgroup.controllers")).unwrap_or_default();
            !it.unified
                || controllers()
                    .split_ascii_whitespace()
                    .any(|one| one == "cpu")
        };
        Self {
            hierarchies: hierarchies.into_iter().filter(limits).collect(),
            groups: BTreeMap::new(),
            most,
            folders_most,
            walked: None,
            read: Instant::now(),
            more: false,
        }
    }

    /// Looks for groups that have a limit now.
    fn walk(&mut self) {
        let mut seen = HashSet::new();
        let trees = self.hierarchies.iter().cloned();
        let mut next: VecDeque<(Hierarchy, PathBuf)> =
            trees.map(|it| (it.clone(), it.mount)).collect();
        while let Some((hierarchy, folder)) = next.pop_front() {
            let Ok(meta) = std::fs::symlink_metadata(&folder) else {
                continue; // removed meanwhile
            };
            // A tree may be mounted twice.
            let id = (meta.dev(), meta.ino());
            if seen.contains(&id) {
                continue;
            }
            if seen.len() == self.folders_most {
                self.more = true;
                break;
            }
            seen.insert(id);
            match limit_of(&folder, hierarchy.unified) {
                Some(limit) => self.take(&hierarchy, &folder, id, limit),
                None => {
                    if let Some(known) = self.groups.get_mut(&folder) {
                        known.gone.get_or_insert_with(Instant::now);
                    }
                }
            }
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    next.push_back((hierarchy.clone(), entry.path()));
                }
            }
        }
        self.walked = Some(seen);
    }

    fn take(&mut self, hierarchy: &Hierarchy, folder: &Path, id: (u64, u64), limit: (u64, u64)) {
        if let Some(known) = self.groups.get_mut(folder) {
            (known.limit.quota_ns, known.limit.period_ns) = limit;
            known.gone = None;
            if known.inode != id.1 {
                (known.inode, known.last) = (id.1, Throttled::default());
            }
            return;
        }
        if self.groups.len() >= self.most && !self.room_make() {
            self.more = true;
            return;
        }
        // Of one that came since the last walk all is new; of others nobody knows when it was.
        let is_new = self
            .walked
            .as_ref()
            .is_some_and(|walked| !walked.contains(&id));
        let last = match is_new {
            true => Throttled::default(),
            false => throttled_of(folder).unwrap_or_default(),
        };
        let limited = Limited {
            limit: limit_new(hierarchy, folder, limit),
            inode: id.1,
            last,
            gone: None,
        };
        self.groups.insert(folder.to_owned(), limited);
    }

    /// Of those that are gone the one that was held up least is forgotten.
    fn room_make(&mut self) -> bool {
        let gone = self.groups.iter().filter(|(_, it)| it.gone.is_some());
        let least = gone.min_by_key(|(_, it)| it.limit.throttled_ns);
        match least.map(|(folder, _)| folder.clone()) {
            Some(folder) => self.groups.remove(&folder).is_some(),
            None => false,
        }
    }

    /// Reads what the groups were held up for.
    fn read(&mut self) {
        for (folder, limited) in &mut self.groups {
            limited.read(folder);
        }
        self.groups.retain(|_, limited| {
            let gone = limited.gone.map(|since| since.elapsed());
            gone.is_none_or(|gone| limited.limit.throttled_ns > 0 && gone < GONE_KEPT)
        });
        self.read = Instant::now();
    }
}

/// Groups of the machine with what they were held up for.
pub type Held = BTreeMap<PathBuf, CpuLimit>;

/// The machine's table, which is read as long as somebody has it.
pub struct Limits {
    table: Mutex<Table>,
    /// Dropped, it ends the thread.
    _end: Sender<()>,
}

static SHARED: Mutex<Weak<Limits>> = Mutex::new(Weak::new());

impl Limits {
    pub fn of_machine() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = shared.upgrade() {
            return there;
        }
        let trees = hierarchies(&read("/proc/self/mountinfo").unwrap_or_default());
        let mut table = Table::new(trees, GROUPS_MOST, FOLDERS_MOST);
        table.walk();
        table.read();
        let (end, ended) = channel::<()>();
        let limits = Arc::new(Self {
            table: Mutex::new(table),
            _end: end,
        });
        *shared = Arc::downgrade(&limits);
        let looking = shared.clone();
        std::thread::spawn(move || {
            let (mut next, mut told) = (Instant::now() + WALK_EVERY, false);
            while ended.recv_timeout(READ_EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(limits) = looking.upgrade() else {
                    return;
                };
                let more = limits.look(&mut next);
                if more && !told {
                    told = true;
                    crate::say(&format!(
                        "there are more than {GROUPS_MOST} control groups with a limit of CPU time, or more than                          {FOLDERS_MOST} of all: how long the others were throttled is not told"
                    ));
                }
            }
        });
        limits
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are more than are looked at.
    fn look(&self, next: &mut Instant) -> bool {
        let mut table = self.lock();
        let begin = Instant::now();
        if begin >= *next {
            table.walk();
            let pause = (begin.elapsed() * WALK_SHARE).clamp(WALK_EVERY, WALK_SELDOM);
            *next = Instant::now() + pause;
        }
        table.read();
        table.more
    }

    /// All that are known, each with what held it up since somebody asked first.
    pub fn now(&self) -> Held {
        let mut table = self.lock();
        if table.read.elapsed() >= READ_LEAST {
            table.read();
        }
        let groups = table.groups.iter();
        groups
            .map(|(folder, limited)| (folder.clone(), limited.limit.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert_eq!(cpu_max("max 100000\n"), None);
        assert_eq!(cpu_max("50000 100000\n"), Some((50_000_000, 100_000_000)));
        let sums = |text: &str| throttled(text).throttled_ns;
        assert_eq!(
            sums("nr_periods 3\nnr_throttled 2\nthrottled_usec 7\n"),
            7000
        );
        assert_eq!(sums("nr_periods 3\nnr_throttled 2\nthrottled_time 7\n"), 7);
    }

    /// A folder that looks like a tree of control groups.
    struct Tree(tempfile::TempDir, bool);

    impl Tree {
        fn new(unified: bool) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("cgroup.controllers"), "io cpu memory\n").unwrap();
            Self(folder, unified)
        }

        fn hierarchy(&self) -> Hierarchy {
            Hierarchy {
                mount: self.0.path().to_owned(),
                root: "/".into(),
                unified: self.1,
            }
        }

        fn group(&self, name: &str, limited: bool, throttled_ms: u64) {
            let folder = self.0.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
            let counts = format!("nr_periods {throttled_ms}\nnr_throttled {throttled_ms}\n");
            match self.1 {
                true => {
                    let quota = if limited { "50000" } else { "max" };
                    write("cpu.max", format!("{quota} 100000\n"));
                    write(
                        "cpu.stat",
                        format!(
                            "usage_usec 9\n{counts}throttled_usec {}\n",
                            throttled_ms * 1000
                        ),
                    );
                }
                false => {
                    let quota = if limited { "50000" } else { "-1" };
                    write("cpu.cfs_quota_us", format!("{quota}\n"));
                    write("cpu.cfs_period_us", "100000\n".into());
                    write(
                        "cpu.stat",
                        format!("{counts}throttled_time {}\n", throttled_ms * 1_000_000),
                    );
                }
            }
        }

        fn remove(&self, name: &str) {
            std::fs::remove_dir_all(self.0.path().join(name)).unwrap();
        }

        fn table(&self, most: usize) -> Table {
            let mut table = Table::new(vec![self.hierarchy()], most, 100);
            table.walk();
            table.read();
            table
        }
    }

    fn told(table: &Table) -> Vec<(String, u64)> {
        let groups = table.groups.values();
        groups
            .map(|it| (it.limit.group.clone(), it.limit.throttled_ns / 1_000_000))
            .collect()
    }

    fn is(told: &[(&str, u64)]) -> Vec<(String, u64)> {
        told.iter()
            .map(|(name, ms)| ((*name).to_owned(), *ms))
            .collect()
    }

    #[test]
    fn groups_with_a_limit_are_found_wherever_they_are() {
        for unified in [true, false] {
            let tree = Tree::new(unified);
            tree.group("a.slice", false, 7);
            tree.group("a.slice/b.service", true, 100);
            tree.group("a.slice/b.service/c", false, 5);
            tree.group("a.slice/d", true, 0);
            let mut table = tree.table(10);
            // What was before is not the watch's.
            assert_eq!(
                told(&table),
                is(&[("/a.slice/b.service", 0), ("/a.slice/d", 0)])
            );
            let limit = table.groups.values().next().unwrap().limit.clone();
            assert_eq!((limit.quota_ns, limit.period_ns), (50_000_000, 100_000_000));
            tree.group("a.slice/b.service", true, 130);
            // One that comes has all it has.
            tree.group("e", true, 40);
            // And one that has got a limit what it has from then on.
            tree.group("a.slice/b.service/c", true, 5);
            table.walk();
            table.read();
            assert_eq!(
                told(&table),
                is(&[
                    ("/a.slice/b.service", 30),
                    ("/a.slice/b.service/c", 0),
                    ("/a.slice/d", 0),
                    ("/e", 40)
                ])
            );
        }
    }

    #[test]
    fn what_is_gone_keeps_its_last_reading_and_goes_first() {
        let tree = Tree::new(true);
        tree.group("a", true, 0);
        tree.group("b", true, 0);
        let mut table = tree.table(3);
        tree.group("a", true, 20);
        table.read();
        tree.remove("a");
        tree.remove("b");
        table.walk();
        table.read();
        assert_eq!(told(&table), is(&[("/a", 20)]));
        // Made anew, it counts from the start.
        tree.group("a", true, 5);
        table.walk();
        table.read();
        assert_eq!(told(&table), is(&[("/a", 25)]));
        tree.remove("a");
        table.walk();
        table.read();
        // More than there is room for: who is gone makes some, who is there does not.
        for name in ["c", "d", "e"] {
            tree.group(name, true, 1);
        }
        table.walk();
        table.read();
        assert_eq!(told(&table), is(&[("/c", 1), ("/d", 1), ("/e", 1)]));
        assert!(!table.more);
        tree.group("f", true, 1);
        table.walk();
        table.read();
        assert_eq!(told(&table), is(&[("/c", 1), ("/d", 1), ("/e", 1)]));
        assert!(table.more);
    }

    #[test]
    fn a_walk_has_an_end_and_a_tree_is_walked_once() {
        let tree = Tree::new(true);
        for number in 0..20 {
            tree.group(&format!("g{number}"), true, 0);
        }
        let mut table = Table::new(vec![tree.hierarchy(), tree.hierarchy()], 100, 100);
        table.walk();
        assert_eq!((table.groups.len(), table.more), (20, false));
        let mut table = Table::new(vec![tree.hierarchy()], 100, 10);
        table.walk();
        assert_eq!((table.groups.len(), table.more), (9, true));
        // A tree that limits no CPU time.
        std::fs::write(tree.0.path().join("cgroup.controllers"), "io memory\n").unwrap();
        assert!(
            Table::new(vec![tree.hierarchy()], 100, 100)
                .hierarchies
                .is_empty()
        );
    }
}
