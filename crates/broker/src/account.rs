// SPDX-License-Identifier: MIT OR Apache-2.0
//! What are users and groups called on this machine?
//!
//! The C library is asked, since accounts need not be in /etc/passwd.

use std::ffi::{CStr, CString};

/// What the C library's lookups keep their strings in. An entry that needs
/// more (a group of ten thousand members) is asked for again with more.
const ROOM: usize = 4096;
const ROOM_MAX: usize = 1 << 24;

/// Calls `ask` with more and more room until it does not say ERANGE.
fn with_room<T>(mut ask: impl FnMut(&mut [libc::c_char]) -> Result<Option<T>, i32>) -> Option<T> {
    let mut room = vec![0; ROOM];
    loop {
        match ask(&mut room) {
            Ok(found) => return found,
            Err(libc::ERANGE) if room.len() < ROOM_MAX => room.resize(room.len() * 4, 0),
            // Nobody is told apart from "could not be asked" by getpwnam's own
            // documentation: ENOENT, ESRCH, EPERM and others all mean it.
            Err(_) => return None,
        }
    }
}

fn user_entry<T>(
    call: impl Fn(*mut libc::passwd, &mut [libc::c_char], *mut *mut libc::passwd) -> i32,
    take: impl Fn(&libc::passwd) -> T,
) -> Option<T> {
    with_room(|room| {
        // SAFETY: all-zero is a valid passwd (null pointers, ids 0).
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        match call(&raw mut entry, room, &raw mut found) {
            // SAFETY: found is null or points to `entry`, whose strings lie in `room`.
            0 => Ok(unsafe { found.as_ref() }.map(&take)),
            errno => Err(errno),
        }
    })
}

fn group_entry<T>(
    call: impl Fn(*mut libc::group, &mut [libc::c_char], *mut *mut libc::group) -> i32,
    take: impl Fn(&libc::group) -> T,
) -> Option<T> {
    with_room(|room| {
        // SAFETY: all-zero is a valid group (null pointers, id 0).
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        match call(&raw mut entry, room, &raw mut found) {
            // SAFETY: found is null or points to `entry`, whose strings lie in `room`.
            0 => Ok(unsafe { found.as_ref() }.map(&take)),
            errno => Err(errno),
        }
    })
}

/// A C string of an entry that was found.
fn text(name: *const libc::c_char) -> String {
    // SAFETY: names in entries are strings that end with 0.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// User and group id of the account `name`.
pub fn user_ids(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    user_entry(
        // SAFETY: all pointers are valid for the call, the length is the room's.
        |entry, room, found| unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, room.as_mut_ptr(), room.len(), found)
        },
        |entry| (entry.pw_uid, entry.pw_gid),
    )
}

/// The account of that user id.
pub fn user_name(uid: u32) -> Option<String> {
    user_entry(
        // SAFETY: as above.
        |entry, room, found| unsafe {
            libc::getpwuid_r(uid, entry, room.as_mut_ptr(), room.len(), found)
        },
        |entry| text(entry.pw_name),
    )
}

pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    group_entry(
        // SAFETY: as above.
        |entry, room, found| unsafe {
            libc::getgrnam_r(name.as_ptr(), entry, room.as_mut_ptr(), room.len(), found)
        },
        |entry| entry.gr_gid,
    )
}

pub fn group_name(gid: u32) -> Option<String> {
    group_entry(
        // SAFETY: as above.
        |entry, room, found| unsafe {
            libc::getgrgid_r(gid, entry, room.as_mut_ptr(), room.len(), found)
        },
        |entry| text(entry.gr_name),
    )
}

/// All groups that the account `name` is a member of, as the next login would
/// give them.
pub fn groups_of(name: &str) -> Vec<u32> {
    let Some((_, gid)) = user_ids(name) else {
        return Vec::new();
    };
    let Ok(name) = CString::new(name) else {
        return Vec::new();
    };
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: name ends with 0, `groups` has room for `count` ids.
        let status =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if status >= 0 {
            groups.truncate(count.max(0) as usize);
            return groups;
        }
        // It told how many there are; 65,536 is the most that a process can have.
        if groups.len() >= 1 << 16 {
            return Vec::new();
        }
        groups.resize((count.max(0) as usize).max(groups.len() * 2), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_by_name_and_by_number() {
        assert_eq!(user_ids("root"), Some((0, 0)));
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(group_id("root"), Some(0));
        assert_eq!(group_name(0).as_deref(), Some("root"));
        assert!(groups_of("root").contains(&0));
        assert_eq!(user_ids("no such user"), None);
        assert_eq!(groups_of("no such user"), Vec::<u32>::new());
    }
}
