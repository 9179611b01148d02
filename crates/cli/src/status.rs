// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox status`: how is a permanent broker doing?

use crate::access::{self, Server};
use crate::args::StatusArgs;
use crate::error::Error;
use crate::output;
use debox_abi::*;
use debox_client::Connection;
use debox_output::{count_text, printable};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Status {
    schema: &'static str,
    schema_version: u32,
    socket: String,
    /// Absent when the kernel does not tell.
    broker_pid: Option<u32>,
    broker_uid: Option<u32>,
    broker_user: Option<String>,
    access: String,
    features: Vec<&'static str>,
    slots_used: u64,
    accounts_used: u64,
    site_walks: u64,
    site_hits: u64,
    site_mismatches: u64,
    site_failures: u64,
    storage_failures: u64,
    slots_exhausted: u64,
    switches_hidden: u64,
}

pub fn feature_names(features: u64) -> Vec<&'static str> {
    [
        (DEBOX_FEATURE_SLEEPS, "sleeps"),
        (DEBOX_FEATURE_RUNQ, "runq"),
        (DEBOX_FEATURE_FAULTS, "faults"),
        (DEBOX_FEATURE_MAJOR_FAULTS, "major_faults"),
        (DEBOX_FEATURE_LOCKS, "locks"),
        (DEBOX_FEATURE_WAKERS, "wakers"),
        (DEBOX_FEATURE_SITES, "sites"),
        (DEBOX_FEATURE_IRQ, "irq"),
    ]
    .iter()
    .filter(|(bit, _)| features & bit != 0)
    .map(|(_, name)| *name)
    .collect()
}

/// The broker that is asked when nothing names another one.
pub fn socket_of(given: Option<PathBuf>) -> PathBuf {
    given
        .or_else(|| {
            std::env::var_os(DEBOX_ENV_SOCKET)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        })
        .unwrap_or_else(|| DEBOX_SOCKET_PATH.into())
}

pub fn status(args: StatusArgs) -> Result<i32, Error> {
    let socket = socket_of(args.socket);
    let connection = Connection::open(&socket)?;
    let (reply, _) = connection.ask(&debox_request::new(DEBOX_MSG_STATUS, 0))?;
    let server = Server::of(&socket);
    let runs_as = server.as_ref().map_or("unknown".into(), |server| {
        format!("{}, process {}", server.user_text(), server.pid)
    });
    let status = Status {
        schema: "debox.status",
        schema_version: 1,
        socket: socket.display().to_string(),
        broker_pid: server.as_ref().map(|server| server.pid),
        broker_uid: server.as_ref().map(|server| server.uid),
        broker_user: server.and_then(|server| server.user),
        access: access::who_may(&socket),
        features: feature_names(reply.features),
        slots_used: reply.slots_used,
        accounts_used: reply.accounts_used,
        site_walks: reply.site_walks,
        site_hits: reply.site_hits,
        site_mismatches: reply.site_mismatches,
        site_failures: reply.site_failures,
        storage_failures: reply.storage_failures,
        slots_exhausted: reply.slots_exhausted,
        switches_hidden: reply.switches_hidden,
    };
    let text = if args.result.json {
        output::json(&status)
    } else {
        let attached = if status.features.is_empty() {
            "nothing (nobody is watching)".into()
        } else {
            status.features.join(", ")
        };
        format!(
            "broker       {}\nruns as      {runs_as}\nfor          {}\nattached     {attached}\nslots        {}\naccounts     {}\n\
             places       {} recognised, {} walked, {} mismatched, {} walks failed\n\
             threads      {} without memory for their state, {} without a slot at first\n\
             switches     {} hidden by the kernel\n",
            printable(&status.socket),
            printable(&status.access),
            count_text(status.slots_used),
            count_text(status.accounts_used),
            count_text(status.site_hits),
            count_text(status.site_walks),
            count_text(status.site_mismatches),
            count_text(status.site_failures),
            count_text(status.storage_failures),
            count_text(status.slots_exhausted),
            count_text(status.switches_hidden),
        )
    };
    output::deliver(&args.result, &text)?;
    Ok(0)
}
