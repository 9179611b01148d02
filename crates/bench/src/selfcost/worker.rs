// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which task is a process of `bench self` to do, and when does it begin?

use super::calls::{self, Bracket, Order, Task};
use super::{memory, obey, server, wrap};
use crate::Error;
use crate::sampling::pin;
use std::time::Duration;

/// The hidden subcommand.
pub fn main(order: &str) -> Result<i32, Error> {
    let order: Order = serde_json::from_str(order)
        .map_err(|e| Error::Usage(format!("this subcommand is for debox itself: {e}")))?;
    if order.wait {
        wait_for_signal();
    }
    pin(order.cpu)?;
    let session = match (&order.socket, order.bracket) {
        (Some(socket), _) => Some(calls::session(socket)?),
        (None, Bracket::Debox) => {
            return Err(Error::Usage(
                "brackets of DeBox need a broker's socket".into(),
            ));
        }
        (None, _) => None,
    };
    let answer = match &order.task {
        Task::Calls {
            repetitions,
            batch_us,
        } => calls::calls(
            order.bracket,
            *repetitions,
            Duration::from_micros(*batch_us),
        )?,
        Task::Command(words) => calls::command(words)?,
        Task::Storm(n) => calls::storm(*n)?,
        Task::Server { connections } => server::serve(*connections)?,
        Task::Wrap { turns } => wrap::turns(&calls::block()?, *turns)?,
        Task::Obey => return obey::obey().map(|()| 0),
        Task::Threads { number, broker } => memory::threads(*number, *broker)?,
    };
    if let Some(session) = session {
        session.close();
    }
    let text = serde_json::to_string(&answer).expect("plain data");
    std::fs::write(&order.out, text).map_err(|e| Error::File {
        path: order.out.clone(),
        what: e.to_string(),
    })?;
    Ok(0)
}

fn wait_for_signal() {
    // SAFETY: a set that is emptied first; no handler involved. The parent has
    // blocked nothing: the signal can arrive before, so it blocks SIGUSR1 in
    // the child before exec, and it stays pending.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        let mut signal = 0;
        libc::sigwait(&set, &mut signal);
    }
}
