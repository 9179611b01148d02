// SPDX-License-Identifier: MIT OR Apache-2.0
//! As which user does the broker run, and whose is its socket?

use crate::error::StartError;
use debox_broker::account::{group_id, group_name, user_ids, user_name};
use std::collections::HashSet;

/// The user and the group that `make install` (systemd/debox.conf) makes.
pub const DEFAULT_NAME: &str = "debox";

/// User ids that distributions, systemd's transient users and subordinate
/// ranges all leave alone (systemd's list of user ids calls them unused).
const UNOWNED: std::ops::RangeInclusive<u32> = 60578..=61183;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// None: an id that no account has.
    pub name: Option<String>,
    pub uid: u32,
    pub gid: u32,
}

/// The user whom root hands the broker to. Without an account made for it the
/// broker takes an id that nobody has, and not `nobody`: other services run as
/// that one, and a process of the same user can kill the broker.
///
/// `directory_owner`: of the directory that the socket is to be in; an earlier
/// broker that ran as an id which no account has may have left it.
pub fn choose(wanted: Option<&str>, directory_owner: Option<u32>) -> Result<User, StartError> {
    if let Some((uid, gid)) = user_ids(wanted.unwrap_or(DEFAULT_NAME)) {
        let name = wanted.unwrap_or(DEFAULT_NAME).to_owned();
        if uid == 0 || gid == 0 {
            return Err(StartError::UserIsRoot { name });
        }
        return Ok(User {
            name: Some(name),
            uid,
            gid,
        });
    }
    if let Some(name) = wanted {
        return Err(StartError::UserUnknown {
            name: name.to_owned(),
        });
    }
    let uid = unowned(directory_owner).ok_or(StartError::NoUserIdFree)?;
    Ok(User {
        name: None,
        uid,
        gid: uid,
    })
}

fn unowned(directory_owner: Option<u32>) -> Option<u32> {
    let no_account = |id: u32| user_name(id).is_none() && group_name(id).is_none();
    let before = directory_owner.filter(|id| UNOWNED.contains(id) && no_account(*id));
    before.or_else(|| {
        let running = uids_running();
        UNOWNED
            .into_iter()
            .find(|id| !running.contains(id) && no_account(*id))
    })
}

/// The user ids of all processes that can be seen.
fn uids_running() -> HashSet<u32> {
    use std::os::unix::fs::MetadataExt;
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|entry| {
            // The owner of /proc/PID is 0 for who gave up privileges, as an
            // earlier broker has: the status knows better.
            let status = std::fs::read_to_string(entry.path().join("status")).ok();
            let uid = status.and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
                line.split_ascii_whitespace().next()?.parse().ok()
            });
            uid.or_else(|| entry.metadata().ok().map(|meta| meta.uid()))
        })
        .collect()
}

/// The group of that name; the error tells how to come by one.
pub fn group(name: &str) -> Result<u32, StartError> {
    group_id(name).ok_or_else(|| StartError::GroupUnknown {
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_and_root_is_refused() {
        assert!(matches!(
            choose(Some("root"), None),
            Err(StartError::UserIsRoot { .. })
        ));
        let unknown = choose(Some("no-such-user"), None).unwrap_err().to_string();
        assert!(
            unknown.contains("no-such-user") && unknown.contains("useradd"),
            "{unknown}"
        );
        let unknown = group("no-such-group").unwrap_err().to_string();
        assert!(
            unknown.contains("groupadd --system no-such-group") && unknown.contains("--everybody"),
            "{unknown}"
        );
    }

    #[test]
    fn an_unowned_id_has_no_account_and_no_process() {
        let id = unowned(None).unwrap();
        assert!(UNOWNED.contains(&id));
        assert_eq!((user_name(id), group_name(id)), (None, None));
        assert!(!uids_running().contains(&id));
        // That of the broker before, whose directory it is; but no other one.
        assert_eq!(unowned(Some(61000)), Some(61000));
        assert_eq!(unowned(Some(0)), Some(id));
    }
}
