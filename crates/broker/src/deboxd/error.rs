// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why does deboxd not serve, and what would help?

use debox_broker::BrokerError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Broker(#[from] BrokerError),
    #[error(
        "there is no user {name}; make it (useradd --system --user-group --no-create-home --shell \
         /usr/sbin/nologin {name}), or name another one with --user"
    )]
    UserUnknown { name: String },
    #[error(
        "the broker never runs as user or group 0, which is what {name} is; name another one with \
         --user"
    )]
    UserIsRoot { name: String },
    #[error(
        "there is no user debox, and every user id from 60578 to 61183 is taken; make the user \
         (systemd-sysusers, or useradd --system --user-group --no-create-home --shell \
         /usr/sbin/nologin debox), or name one with --user"
    )]
    NoUserIdFree,
    #[error(
        "there is no group {name}, whose members may use the broker; make it (groupadd --system \
         {name}), name another one with --group, or let every user of this machine in with \
         --everybody"
    )]
    GroupUnknown { name: String },
    #[error(
        "the directory {path} belongs to user {owner}, who could put another socket there; choose a \
         --socket in a directory of root's, or --user with that user's name"
    )]
    DirectoryOfAnother { path: PathBuf, owner: u32 },
    #[error(
        "the broker does not run as user 0, and could not become user {uid} ({step}: {source}); \
         start it with CAP_SETUID, CAP_SETGID and CAP_SETPCAP, or as a user of its own with the \
         capabilities that it keeps, as deboxd.service does"
    )]
    Switch {
        uid: u32,
        step: &'static str,
        source: std::io::Error,
    },
    #[error(
        "the broker must not have {what}, and could not give it up; take it out of the unit or of \
         whatever starts deboxd"
    )]
    Powerful { what: String },
    #[error(
        "cannot refuse itself ptrace and its like (seccomp: {source}); allow prctl(PR_SET_SECCOMP) to \
         it, in a kernel with CONFIG_SECCOMP_FILTER"
    )]
    Filter { source: std::io::Error },
    #[error("cannot read its own {what}: {source}; mount /proc")]
    Unverified {
        what: &'static str,
        source: std::io::Error,
    },
}
