// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may use a broker, as whom does it run, and how does one get in?

use debox_broker::account::{group_name, groups_of, user_name};
use debox_client::Connection;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Who may connect, as far as the mode of the socket says.
pub fn who_may(socket: &Path) -> String {
    let Ok(meta) = std::fs::metadata(socket) else {
        return "unknown".into();
    };
    if meta.mode() & 0o002 != 0 {
        "everybody".into()
    } else if meta.mode() & 0o020 != 0 && meta.gid() != 0 {
        format!("root and members of the group {}", group_text(meta.gid()))
    } else if meta.uid() != 0 {
        let owner = user_name(meta.uid()).unwrap_or_else(|| format!("with id {}", meta.uid()));
        format!("root and the user {owner}")
    } else {
        "root".into()
    }
}

fn group_text(gid: u32) -> String {
    group_name(gid).unwrap_or_else(|| format!("with id {gid}"))
}

/// What to do about a broker that cannot be reached; the rest of a sentence.
pub fn remedy(socket: &Path, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ECONNREFUSED) => {
            ". No broker listens there: start one (systemctl start deboxd.socket) or run debox as root".into()
        }
        Some(libc::EACCES) => format!(". {}", way_in(socket)),
        _ => String::new(),
    }
}

/// What somebody who was refused (EACCES at connect) has to do.
pub fn way_in(socket: &Path) -> String {
    let uid = own_uid();
    let user = user_name(uid).unwrap_or_else(|| format!("user {uid}"));
    let Ok(meta) = std::fs::metadata(socket) else {
        return "Its directory is closed to you: ask the administrator".into();
    };
    if meta.mode() & 0o022 != 0o020 || meta.gid() == 0 {
        return "It is for root only: run debox as root".into();
    }
    let group = group_text(meta.gid());
    if groups_of(&user).contains(&meta.gid()) {
        return format!(
            "It is for members of the group {group}, which you are from your next login on: log in \
             again (or: newgrp {group})"
        );
    }
    format!(
        "It is for members of the group {group}: sudo usermod -aG {group} {user}, and log in again; \
         or run debox as root"
    )
}

fn own_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getuid() }
}

/// The process that serves a socket.
pub struct Server {
    pub pid: u32,
    pub uid: u32,
    pub user: Option<String>,
}

impl Server {
    /// Asked over a new connection: one that was made while systemd still held
    /// the socket shows systemd.
    pub fn of(socket: &Path) -> Option<Self> {
        let (pid, uid) = Connection::open(socket).ok()?.server().ok()?;
        Some(Self {
            pid,
            uid,
            user: user_name(uid),
        })
    }

    /// "debox (uid 999)", or only the number.
    pub fn user_text(&self) -> String {
        match &self.user {
            Some(name) => format!("{name} (uid {})", self.uid),
            None => format!("uid {}", self.uid),
        }
    }
}
