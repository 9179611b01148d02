// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would the sums be if the calls and sleeps under way ended now?

use crate::account::{AccountView, Snapshot};
use debox_abi::*;
use std::collections::{HashMap, HashSet};

/// As the broker told them.
pub fn away_parse(bytes: &[u8]) -> Vec<debox_away> {
    bytes
        .chunks_exact(size_of::<debox_away>())
        .take(DEBOX_AWAY_MAX as usize)
        .filter_map(debox_away::read_from)
        .collect()
}

impl Snapshot {
    /// Adds what is open, with its times so far: a call to those that have not
    /// returned, a sleep to the sleeps.
    pub fn away_add(&mut self, account: &AccountView, away: &[debox_away]) {
        let mut still = 0;
        let mut places = AllPlaces::of(self);
        let mut sites = HashSet::new();
        for away in away {
            let key = (away.key as usize) % DEBOX_NR_SLOTS;
            if away.flags & DEBOX_AWAY_CALL != 0 {
                self.away_call_add(key, away);
                self.away_thread_add(away, &mut places.threads);
            }
            if away.flags & DEBOX_AWAY_LIFE != 0 {
                self.away_life_add(away, &mut places.lives);
            }
            if away.flags & DEBOX_AWAY_ASLEEP != 0 {
                self.away_sleep_add(key, away, &mut places.sites);
                self.away_object_add(key, away, &mut places.objects);
                if sites.insert(away.site) {
                    self.site_add(account, away.site as usize);
                }
                if self.details.is_some() {
                    self.away_chain_add(key, away, &mut still);
                }
            }
        }
    }

    fn away_call_add(&mut self, key: usize, away: &debox_away) {
        let rows_used = &mut self.account.rows_used;
        let place = &mut self.account.row_of[key];
        if *place == 0 && (*rows_used as usize) + 1 < DEBOX_ROWS_MAX {
            *rows_used += 1;
            *place = *rows_used;
        }
        let place = *place as usize;
        let row = (self.cpus.first_mut()).and_then(|cpu| cpu.rows.get_mut(place));
        let Some(row) = row.filter(|_| place > 0) else {
            self.account.rows_dropped = self.account.rows_dropped.saturating_add(1);
            return;
        };
        grow(&mut row.unfinished, 1);
        grow(&mut row.wall_ns, away.wall_ns);
        grow(&mut row.blocked_ns, away.blocked_ns);
        grow(&mut row.runq_ns, away.runq_ns);
        grow(&mut row.irq_ns, away.irq_ns);
        row.max_ns = row.max_ns.max(away.wall_ns);
    }

    fn away_thread_add(&mut self, away: &debox_away, places: &mut Places) {
        let Some(details) = &mut self.details else {
            return;
        };
        let at = places.of_key(away.tid.into());
        let row = match at {
            Some(at) => &mut details.threads[at + 1],
            None => &mut details.threads[0],
        };
        if row.tid == 0 && at.is_some() {
            (row.tid, row.tgid, row.comm) = (away.tid, away.pid, away.comm);
        }
        grow(&mut row.wall_ns, away.wall_ns);
        grow(&mut row.blocked_ns, away.blocked_ns);
        grow(&mut row.runq_ns, away.runq_ns);
    }

    /// Into its own row, or that of its name in many processes: of its control group, or of all.
    fn away_life_add(&mut self, away: &debox_away, places: &mut Places) {
        let Some(lives) = &mut self.lives else {
            return;
        };
        let of_name = 1 << 63 | u64::from(away.program) << 32;
        let own = of_name | u64::from(away.pid);
        let of_group = of_name | DEBOX_LIFE_GROUP | u64::from(away.cgroup as u32);
        let mut known = [own, of_group, of_name].into_iter();
        let known = known.find_map(|key| places.find(key));
        let time = match known.or_else(|| places.take(own)) {
            Some(at) => {
                let row = &mut lives.rows[at];
                if row.key == 0 {
                    (row.key, row.cgroup) = (own, away.cgroup);
                }
                &mut row.time
            }
            None => {
                grow(&mut lives.rows_dropped, 1);
                &mut lives.dropped
            }
        };
        let life = &away.life;
        grow(&mut time.life_ns, life.life_ns);
        grow(&mut time.own_ns, life.own_ns);
        grow(&mut time.calls_ns, life.calls_ns);
        grow(&mut time.exit_ns, life.exit_ns);
        grow(&mut time.blocked_ns, life.blocked_ns);
        grow(&mut time.rest_ns, life.rest_ns);
        grow(&mut time.outside_ns, life.outside_ns);
        grow(&mut time.stopped_ns, life.stopped_ns);
        grow(&mut time.runq_ns, life.runq_ns);
        grow(&mut time.minor_faults, life.minor_faults);
        grow(&mut time.major_faults, life.major_faults);
        grow(&mut time.user_ns, life.user_ns);
        grow(&mut time.system_ns, life.system_ns);
        grow(&mut time.irq_ns, life.irq_ns);
        grow(&mut time.irq_outside_ns, life.irq_outside_ns);
    }

    fn away_sleep_add(&mut self, key: usize, away: &debox_away, places: &mut Places) {
        let account = &mut self.account;
        if away.site as usize >= DEBOX_SITES_MAX {
            grow(&mut account.sites_unknown, 1);
            grow(&mut account.sites_unknown_ns, away.asleep_ns);
            return;
        }
        let tag = 1 << 63 | (key as u64) << 32 | u64::from(away.site);
        let rows = &mut account.sites;
        let Some(at) = places.of_key(tag) else {
            grow(&mut account.sites_dropped, 1);
            grow(&mut account.sites_dropped_ns, away.asleep_ns);
            return;
        };
        let row = &mut rows[at];
        row.key = tag;
        let sums = (&mut row.asleep, &mut row.asleep_ns, &mut row.max_ns);
        sleep_add(sums, away.asleep_ns);
    }

    /// The kernel side names what a sleep worked on as it ends: of this one it is not known yet.
    fn away_object_add(&mut self, key: usize, away: &debox_away, places: &mut Places) {
        let Some(objects) = &mut self.objects else {
            return;
        };
        let tag = 1 << 63 | (key as u64) << 32;
        let rows = &mut objects.rows;
        let Some(at) = places.of_key(tag) else {
            grow(&mut objects.rows_dropped, 1);
            grow(&mut objects.rows_dropped_ns, away.asleep_ns);
            return;
        };
        let row = &mut rows[at];
        row.key = tag;
        let sums = (&mut row.count, &mut row.total_ns, &mut row.max_ns);
        sleep_add(sums, away.asleep_ns);
    }

    /// `still`: the number of the root of all of them, 0 before the first.
    fn away_chain_add(&mut self, key: usize, away: &debox_away, still: &mut u32) {
        let mut link_add = |link: debox_chain| {
            self.chains.push(link);
            self.chains.len() as u32
        };
        if *still == 0 {
            *still = link_add(debox_chain {
                kind: DEBOX_CHAIN_NOT_OVER,
                site: DEBOX_SITE_NONE,
                nr: -1,
                depth: 1,
                ..debox_chain::zeroed()
            });
        }
        let first = link_add(debox_chain {
            kind: DEBOX_CHAIN_SLEEP,
            parent: *still,
            site: away.site,
            nr: if key == DEBOX_NR_OUTSIDE as usize {
                -1
            } else {
                key as i32
            },
            tid: away.tid,
            depth: 2,
            flags: away.flags >> DEBOX_AWAY_LINK_SHIFT,
            comm: away.comm,
            ..debox_chain::zeroed()
        });
        let sum = debox_chain_sum {
            count: 1,
            total_ns: away.asleep_ns,
            max_ns: away.asleep_ns,
        };
        self.chain_sums.push((first, sum));
    }
}

/// Rows by their key, for thousands of threads in thousands of rows.
struct Places {
    at: HashMap<u64, usize>,
    /// The first one last.
    free: Vec<usize>,
}

impl Places {
    fn of(keys: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) -> Self {
        let mut places = Self {
            at: HashMap::new(),
            free: Vec::new(),
        };
        for (at, key) in keys.enumerate().rev() {
            match key {
                0 => places.free.push(at),
                key => drop(places.at.insert(key, at)),
            }
        }
        places
    }

    fn find(&self, key: u64) -> Option<usize> {
        self.at.get(&key).copied()
    }

    fn take(&mut self, key: u64) -> Option<usize> {
        let at = self.free.pop()?;
        self.at.insert(key, at);
        Some(at)
    }

    /// The row of a key, or a free one.
    fn of_key(&mut self, key: u64) -> Option<usize> {
        self.find(key).or_else(|| self.take(key))
    }
}

struct AllPlaces {
    threads: Places,
    lives: Places,
    sites: Places,
    objects: Places,
}

impl AllPlaces {
    fn of(snapshot: &Snapshot) -> Self {
        let threads = snapshot.details.as_ref();
        let threads = threads.map_or(&[][..], |details| &details.threads[1..]);
        let lives = snapshot.lives.as_ref();
        let lives = lives.map_or(&[][..], |lives| &lives.rows);
        let objects = snapshot.objects.as_ref();
        let objects = objects.map_or(&[][..], |objects| &objects.rows);
        Self {
            threads: Places::of(threads.iter().map(|row| row.tid.into())),
            lives: Places::of(lives.iter().map(|row| row.key)),
            sites: Places::of(snapshot.account.sites.iter().map(|row| row.key)),
            objects: Places::of(objects.iter().map(|row| row.key)),
        }
    }
}

/// One more sleep: (count, total, longest).
fn sleep_add((count, total_ns, max_ns): (&mut u64, &mut u64, &mut u64), ns: u64) {
    grow(count, 1);
    grow(total_ns, ns);
    *max_ns = ns.max(*max_ns);
}

fn grow(to: &mut u64, by: u64) {
    *to = to.saturating_add(by);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not over is judged as what is: a helper without work rests.
    #[test]
    fn a_sleep_that_is_not_over_is_at_rest_or_not() {
        let mut snapshot = Snapshot::empty();
        let mut still = 0;
        for flags in [DEBOX_CHAIN_REST, DEBOX_CHAIN_FIRST, DEBOX_CHAIN_LOOP, 0] {
            let away = debox_away {
                flags: DEBOX_AWAY_ASLEEP | DEBOX_AWAY_LIFE | flags << DEBOX_AWAY_LINK_SHIFT,
                asleep_ns: 5,
                ..debox_away::zeroed()
            };
            snapshot.away_chain_add(47, &away, &mut still);
            let link = snapshot.chains.last().expect("its link");
            assert_eq!((link.flags, link.parent, link.nr), (flags, still, 47));
        }
        assert_eq!(
            snapshot.chains[still as usize - 1].kind,
            DEBOX_CHAIN_NOT_OVER
        );
    }

    /// Of its process, else of its name in its control group, else of its name.
    #[test]
    fn a_life_goes_into_the_row_that_the_kernel_side_would_take() {
        let mut lives = debox_lives::zeroed_box();
        let of_name: u64 = 1 << 63 | 1 << 32;
        lives.rows[0].key = of_name | 7;
        lives.rows[1].key = of_name | DEBOX_LIFE_GROUP | 9;
        lives.rows[2].key = of_name;
        let mut snapshot = Snapshot {
            lives: Some(lives),
            ..Snapshot::empty()
        };
        let mut places = AllPlaces::of(&snapshot).lives;
        let group = 3 << 32 | 9;
        for (program, pid, cgroup, life_ns) in [
            (1, 7, group, 1),
            (1, 8, group, 20),
            (1, 9, group + 1, 300),
            (1, 9, 0, 4_000),
            (2, 8, group, 50_000),
        ] {
            let mut away = debox_away {
                program,
                pid,
                cgroup,
                ..debox_away::zeroed()
            };
            away.life.life_ns = life_ns;
            snapshot.away_life_add(&away, &mut places);
        }
        let lives = snapshot.lives.unwrap();
        let told = lives.rows[..4].iter().map(|row| row.time.life_ns);
        assert_eq!(told.collect::<Vec<_>>(), [1, 20, 4_300, 50_000]);
        let last = &lives.rows[3];
        assert_eq!((last.key, last.cgroup), (1 << 63 | 2 << 32 | 8, group));
    }
}
