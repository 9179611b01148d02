// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much may one process, one user and everybody together take?
//!
//! A limit is there so that one user's mistake or malice is refused before it
//! is felt by others. Root's own programs count against the totals only.
//! The broker's own user is the machine's as well: the agent runs as it, and has
//! an account for each of its policies, two while one period follows another.
//!
//! What one user may have shrinks as others come: a share of what others have
//! left, one more share being kept for who comes next. Nothing is taken away,
//! but who has his share gets no more, and a newcomer finds something until
//! very many have come.

use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub connections: usize,
    pub segments: usize,
    pub accounts: usize,
    /// Descriptors in replies that have not been read: the kernel counts them
    /// as the broker's.
    pub in_flight: usize,
}

impl Shares {
    pub const NONE: Shares = Shares {
        connections: 0,
        segments: 0,
        accounts: 0,
        in_flight: 0,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Of everybody together. Connections are lowered at start to what
    /// RLIMIT_NOFILE allows.
    pub total: Shares,
    /// Of one user id other than 0, with its subordinate ones.
    pub per_uid: Shares,
    /// Of the user that the broker runs as, however many others there are.
    pub own_uid: Shares,
    /// Of the totals, what only user 0 may have: the administrator must still
    /// get in when others have taken the rest.
    pub reserved_for_root: Shares,
    pub segments_per_process: usize,
    /// Call traces of everybody together: each hangs probes on functions that
    /// all processes run through.
    pub traces: usize,
    /// A connection that has not sent one valid request by then is closed.
    pub first_request: Duration,
    /// A connection that holds nothing is closed after such a silence.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // The kernel side has room for 4096 segments and 64 accounts.
            total: Shares {
                connections: 8192,
                segments: 4096,
                accounts: 64,
                in_flight: 8192,
            },
            // A segment is 256 KiB of kernel memory, an account about half a
            // megabyte for each CPU.
            per_uid: Shares {
                connections: 1024,
                segments: 512,
                accounts: 8,
                in_flight: 1024,
            },
            // An agent's 16 policies, each with the one before, and some that
            // have ended and are not taken back yet.
            own_uid: Shares {
                connections: 1024,
                segments: 512,
                accounts: 40,
                in_flight: 1024,
            },
            reserved_for_root: Shares {
                connections: 256,
                segments: 256,
                accounts: 16,
                in_flight: 256,
            },
            segments_per_process: 128,
            traces: 8,
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(60),
        }
    }
}

/// Descriptors that are not for connections: maps in passing, /proc files, logs.
const DESCRIPTORS_KEPT: u64 = 128;

impl Limits {
    /// Lowers the totals to what RLIMIT_NOFILE allows: one descriptor for each
    /// connection, one for each process with slots; and, without
    /// CAP_SYS_RESOURCE, no more than so many on their way to clients, or the
    /// kernel would refuse everybody's replies (ETOOMANYREFS).
    pub(crate) fn fit(&mut self, open_files: u64) {
        let at_most = |limit: &mut usize, reserved: &mut usize, room: u64| {
            *limit = (*limit).min(usize::try_from(room).unwrap_or(usize::MAX));
            if *reserved * 4 > *limit {
                *reserved = *limit / 4;
            }
        };
        let room = (open_files.saturating_sub(DESCRIPTORS_KEPT) / 2).max(16);
        let (total, root) = (&mut self.total, &mut self.reserved_for_root);
        at_most(&mut total.connections, &mut root.connections, room);
        at_most(&mut total.in_flight, &mut root.in_flight, open_files);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Connections,
    Segments,
    Accounts,
    InFlight,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Connections => "connections",
            What::Segments => "segments of slots",
            What::Accounts => "accounts",
            What::InFlight => "descriptors in unread replies",
        }
    }
}

impl Shares {
    fn get(&self, what: What) -> usize {
        match what {
            What::Connections => self.connections,
            What::Segments => self.segments,
            What::Accounts => self.accounts,
            What::InFlight => self.in_flight,
        }
    }

    fn get_mut(&mut self, what: What) -> &mut usize {
        match what {
            What::Connections => &mut self.connections,
            What::Segments => &mut self.segments,
            What::Accounts => &mut self.accounts,
            What::InFlight => &mut self.in_flight,
        }
    }
}

/// Who has what now. A user is who pays: see `subuid.rs`.
#[derive(Debug)]
pub(crate) struct Usage {
    /// The user that the broker runs as.
    own: u32,
    total: Shares,
    per_uid: HashMap<u32, Shares>,
}

impl Usage {
    pub fn new(own: u32) -> Self {
        Self {
            own,
            total: Shares::NONE,
            per_uid: HashMap::new(),
        }
    }

    pub fn total(&self, what: What) -> usize {
        self.total.get(what)
    }

    fn of(&self, uid: u32, what: What) -> usize {
        self.per_uid.get(&uid).map_or(0, |shares| shares.get(what))
    }

    /// Err is the text for the client.
    pub fn check(&self, limits: &Limits, uid: u32, what: What) -> Result<(), String> {
        let name = what.name();
        let total = limits.total.get(what);
        let everybody = self.total(what);
        if uid == 0 {
            if everybody < total {
                return Ok(());
            }
            return Err(full(everybody, name, total));
        }
        let used = self.of(uid, what);
        let limit = match uid == self.own {
            true => limits.own_uid.get(what),
            false => limits.per_uid.get(what),
        };
        if used >= limit {
            return Err(format!(
                "uid {uid} has {used} {name} open, the limit of one user is {limit}; end programs \
                 that are watched, or close what they no longer need."
            ));
        }
        // Root has its reserve, or what it took beyond that.
        let root = self.of(0, what);
        let room = total.saturating_sub(root.max(limits.reserved_for_root.get(what)));
        let others = everybody - root - used;
        if used + others >= room {
            return Err(full(used + others, name, room));
        }
        if uid == self.own {
            return Ok(());
        }
        let users = 1 + self
            .per_uid
            .iter()
            .filter(|(other, shares)| **other != uid && **other != 0 && shares.get(what) > 0)
            .count();
        // One part for each, one for who comes next; and one at least, while
        // there is one.
        let left = room - others;
        let share = (left / (users + 1)).max(1);
        if used >= share {
            return Err(format!(
                "uid {uid} has {used} {name} open, its share of the {left} that {} other users \
                 leave is {share}; end programs that are watched, or try again when others have \
                 ended.",
                users - 1
            ));
        }
        Ok(())
    }

    pub fn take(&mut self, uid: u32, what: What) {
        self.take_many(uid, what, 1);
    }

    pub fn take_many(&mut self, uid: u32, what: What, count: usize) {
        if count > 0 {
            *self.total.get_mut(what) += count;
            *self
                .per_uid
                .entry(uid)
                .or_insert(Shares::NONE)
                .get_mut(what) += count;
        }
    }

    pub fn give_back(&mut self, uid: u32, what: What) {
        self.give_back_many(uid, what, 1);
    }

    pub fn give_back_many(&mut self, uid: u32, what: What, count: usize) {
        let total = self.total.get_mut(what);
        *total = total.saturating_sub(count);
        if let Some(shares) = self.per_uid.get_mut(&uid) {
            let one = shares.get_mut(what);
            *one = one.saturating_sub(count);
            if *shares == Shares::NONE {
                self.per_uid.remove(&uid);
            }
        }
    }
}

fn full(used: usize, name: &str, limit: usize) -> String {
    format!(
        "all users together have {used} {name} open, the broker's limit is {limit}; try again \
         when other programs have ended."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whom the broker runs as.
    const OWN: u32 = 999;

    #[test]
    fn a_low_limit_of_open_files_lowers_what_may_be_on_its_way() {
        let mut limits = Limits::default();
        let whole = limits.clone();
        limits.fit(1 << 20);
        assert_eq!(limits, whole);
        limits.fit(512);
        assert_eq!(limits.total.connections, (512 - 128) / 2);
        assert_eq!(limits.total.in_flight, 512);
        assert_eq!(limits.reserved_for_root.in_flight, 128);
        assert_eq!(limits.reserved_for_root.connections, 48);
    }

    fn take_all(usage: &mut Usage, limits: &Limits, uid: u32, what: What) -> usize {
        let mut taken = 0;
        while usage.check(limits, uid, what).is_ok() {
            usage.take(uid, what);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_user_is_bounded_and_root_still_gets_in() {
        let accounts = |accounts| Shares {
            accounts,
            ..Shares::NONE
        };
        let limits = Limits {
            total: accounts(8),
            per_uid: accounts(2),
            reserved_for_root: accounts(2),
            ..Limits::default()
        };
        let mut usage = Usage::new(OWN);
        assert_eq!(take_all(&mut usage, &limits, 1, What::Accounts), 2);
        let text = usage.check(&limits, 1, What::Accounts).unwrap_err();
        assert!(text.contains("limit of one user is 2"), "{text}");
        // 4 left, for two of them and one more.
        assert_eq!(take_all(&mut usage, &limits, 2, What::Accounts), 1);
        let text = usage.check(&limits, 2, What::Accounts).unwrap_err();
        assert!(text.contains("share of the 4 that 1 other"), "{text}");
        for uid in 3..6 {
            assert_eq!(take_all(&mut usage, &limits, uid, What::Accounts), 1);
        }
        let text = usage.check(&limits, 6, What::Accounts).unwrap_err();
        assert!(text.contains("all users together have 6"), "{text}");
        assert_eq!(take_all(&mut usage, &limits, 0, What::Accounts), 2);
        for uid in [0, 0, 1, 1, 2, 3, 4, 5] {
            usage.give_back(uid, What::Accounts);
        }
        assert!(usage.per_uid.is_empty());
        assert_eq!(usage.total(What::Accounts), 0);
    }

    #[test]
    fn six_users_with_eight_accounts_each_lock_nobody_out() {
        let limits = Limits::default();
        for what in [
            What::Accounts,
            What::Segments,
            What::Connections,
            What::InFlight,
        ] {
            let mut usage = Usage::new(OWN);
            for uid in 1000..1006 {
                take_all(&mut usage, &limits, uid, what);
            }
            // Nor can those who come next.
            for uid in 2000..2012 {
                let taken = take_all(&mut usage, &limits, uid, what);
                assert!(taken > 0, "uid {uid} found no {}", what.name());
            }
            let root = take_all(&mut usage, &limits, 0, what);
            assert!(root >= limits.reserved_for_root.get(what));
        }
    }

    #[test]
    fn what_root_takes_of_its_reserve_is_not_missing_to_others() {
        let limits = Limits::default();
        let mut usage = Usage::new(OWN);
        for _ in 0..limits.reserved_for_root.accounts {
            usage.take(0, What::Accounts);
        }
        assert_eq!(take_all(&mut usage, &limits, 1000, What::Accounts), 8);
    }

    /// Whoever came before, and whoever comes then.
    #[test]
    fn the_brokers_own_user_has_no_share() {
        let limits = Limits::default();
        let mut usage = Usage::new(OWN);
        assert_eq!(take_all(&mut usage, &limits, OWN, What::Accounts), 40);
        for _ in 0..24 {
            usage.give_back(OWN, What::Accounts);
        }
        for uid in 1000..1004 {
            assert!(take_all(&mut usage, &limits, uid, What::Accounts) > 0);
        }
        // As many again as it has, less what others have.
        let left = 48 - usage.total(What::Accounts);
        assert_eq!(
            take_all(&mut usage, &limits, OWN, What::Accounts),
            left.min(24)
        );
        let text = usage.check(&limits, OWN, What::Accounts).unwrap_err();
        assert!(text.contains("all users together have 48"), "{text}");
        let root = take_all(&mut usage, &limits, 0, What::Accounts);
        assert_eq!(root, limits.reserved_for_root.accounts);
    }
}
