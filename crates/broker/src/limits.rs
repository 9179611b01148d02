// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much may one process, one user and everybody together take?
//!
//! A limit is there so that one user's mistake or malice is refused before it
//! is felt by others. Root's own programs count against the totals only.

use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub connections: usize,
    pub segments: usize,
    pub accounts: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Of everybody together. Lowered at start to what RLIMIT_NOFILE allows.
    pub total: Shares,
    /// Of one user id other than 0.
    pub per_uid: Shares,
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
            },
            // A segment is 256 KiB of kernel memory, an account about half a
            // megabyte for each CPU.
            per_uid: Shares {
                connections: 1024,
                segments: 512,
                accounts: 8,
            },
            reserved_for_root: Shares {
                connections: 256,
                segments: 256,
                accounts: 16,
            },
            segments_per_process: 128,
            traces: 8,
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(60),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Connections,
    Segments,
    Accounts,
}

impl Shares {
    fn get(&self, what: What) -> usize {
        match what {
            What::Connections => self.connections,
            What::Segments => self.segments,
            What::Accounts => self.accounts,
        }
    }

    fn get_mut(&mut self, what: What) -> &mut usize {
        match what {
            What::Connections => &mut self.connections,
            What::Segments => &mut self.segments,
            What::Accounts => &mut self.accounts,
        }
    }
}

const NONE: Shares = Shares {
    connections: 0,
    segments: 0,
    accounts: 0,
};

/// Who has what now.
#[derive(Debug)]
pub(crate) struct Usage {
    total: Shares,
    per_uid: HashMap<u32, Shares>,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            total: NONE,
            per_uid: HashMap::new(),
        }
    }
}

impl Usage {
    pub fn total(&self, what: What) -> usize {
        self.total.get(what)
    }

    /// Err is the text for the client.
    pub fn check(&self, limits: &Limits, uid: u32, what: What) -> Result<(), String> {
        let name = match what {
            What::Connections => "connections",
            What::Segments => "segments of slots",
            What::Accounts => "accounts",
        };
        let used = self.per_uid.get(&uid).map_or(0, |shares| shares.get(what));
        let limit = limits.per_uid.get(what);
        if uid != 0 && used >= limit {
            return Err(format!(
                "uid {uid} has {used} {name} open, the limit of one user is {limit}; end programs \
                 that are watched, or close what they no longer need."
            ));
        }
        let used = self.total(what);
        let reserve = if uid == 0 {
            0
        } else {
            limits.reserved_for_root.get(what)
        };
        let limit = limits.total.get(what).saturating_sub(reserve);
        if used >= limit {
            return Err(format!(
                "all users together have {used} {name} open, the broker's limit is {limit}; try \
                 again when other programs have ended."
            ));
        }
        Ok(())
    }

    pub fn take(&mut self, uid: u32, what: What) {
        *self.total.get_mut(what) += 1;
        *self.per_uid.entry(uid).or_insert(NONE).get_mut(what) += 1;
    }

    pub fn give_back(&mut self, uid: u32, what: What) {
        let total = self.total.get_mut(what);
        *total = total.saturating_sub(1);
        if let Some(shares) = self.per_uid.get_mut(&uid) {
            let one = shares.get_mut(what);
            *one = one.saturating_sub(1);
            if *shares == NONE {
                self.per_uid.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_bounded_and_root_still_gets_in() {
        let limits = Limits {
            total: Shares {
                accounts: 4,
                ..NONE
            },
            per_uid: Shares {
                accounts: 2,
                ..NONE
            },
            reserved_for_root: Shares {
                accounts: 1,
                ..NONE
            },
            ..Limits::default()
        };
        let mut usage = Usage::default();
        for uid in [1, 1, 2] {
            usage.check(&limits, uid, What::Accounts).unwrap();
            usage.take(uid, What::Accounts);
        }
        let text = usage.check(&limits, 1, What::Accounts).unwrap_err();
        assert!(text.contains("limit of one user is 2"), "{text}");
        let text = usage.check(&limits, 2, What::Accounts).unwrap_err();
        assert!(text.contains("all users together have 3"), "{text}");
        usage.check(&limits, 0, What::Accounts).unwrap();
        usage.take(0, What::Accounts);
        assert!(usage.check(&limits, 0, What::Accounts).is_err());
        for uid in [0, 1, 1, 2] {
            usage.give_back(uid, What::Accounts);
        }
        assert!(usage.per_uid.is_empty());
        assert_eq!(usage.total(What::Accounts), 0);
    }
}
