// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does systemd learn that a service is ready, and that it has not got stuck? (The protocol of
//! sd_notify(3) and sd_watchdog_enabled(3).)

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

pub const READY: &str = "READY=1";
pub const STOPPING: &str = "STOPPING=1";
/// It goes on.
pub const ALIVE: &str = "WATCHDOG=1";

/// Sends one line of state to $NOTIFY_SOCKET; without it, nobody wants to know.
///
/// # Errors
/// When whoever wants to know cannot be told.
pub fn tell(state: &str) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    }?;
    let sent = UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    match sent == state.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// How often [`ALIVE`] is to be told: twice in the time after which the unit counts as stuck. None: nobody waits
/// for it.
pub fn alive_every() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    // What it is not meant for has inherited it.
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    let stuck_after = number("WATCHDOG_USEC").filter(|&us| us > 0)?;
    Some(Duration::from_micros((stuck_after / 2).max(1)))
}
