// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does wrap capture need beside the account?

use crate::call_site::{self, Modules};
use crate::collect::{Collected, Collector};
use crate::error::Error;
use crate::source::Source;
use debox_abi::{DEBOX_ENV_COLLECT, DEBOX_ENV_IRQ, DEBOX_ENV_SOCKET};
use debox_command::{Environment, Library};
use std::os::unix::ffi::OsStrExt;

/// The interposer, its broker and its collector for the command's environment.
pub fn prepare(
    environment: &mut Environment,
    source: &Source,
    call_sites: bool,
    irq: bool,
) -> Result<Collector, Error> {
    let library = Library::WRAP.find()?;
    let collector = Collector::start(call_sites)?;
    environment.preload(&library, false)?;
    environment.set(DEBOX_ENV_SOCKET, source.socket().as_os_str().as_bytes())?;
    if irq {
        environment.set(DEBOX_ENV_IRQ, b"1")?;
    }
    environment.set(DEBOX_ENV_COLLECT, collector.path().as_os_str().as_bytes())?;
    Ok(collector)
}

/// Names a place in the program of one of the processes.
pub fn place_name(collected: &Collected, process: usize, address: u64) -> String {
    let modules = Modules::holding(&collected.modules, process, address);
    call_site::name(modules, address)
}
