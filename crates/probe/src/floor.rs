// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own charge: programs that do nothing, for benchmarks.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};

use crate::error::Error;

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    unreachable_pub,
    missing_docs
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/floor.skel.rs"));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Empty programs on sys_enter and sys_exit.
    SyscallEmpty,
    /// The same, each reading the clock once.
    SyscallClock,
    /// An empty program on sched_switch.
    SwitchEmpty,
}

/// Attached while it lives.
pub struct FloorGuard {
    _links: Vec<Link>,
}

/// Attaches the programs of one floor.
pub fn floor_attach(floor: Floor) -> Result<FloorGuard, Error> {
    let mut place: MaybeUninit<OpenObject> = MaybeUninit::uninit();
    let open = skel::FloorSkelBuilder::default()
        .open(&mut place)
        .map_err(Error::bpf("opening the floor programs"))?;
    let skel = open
        .load()
        .map_err(Error::bpf("loading the floor programs"))?;
    let programs = match floor {
        Floor::SyscallEmpty => vec![&skel.progs.enter_empty, &skel.progs.exit_empty],
        Floor::SyscallClock => vec![&skel.progs.enter_clock, &skel.progs.exit_clock],
        Floor::SwitchEmpty => vec![&skel.progs.switch_empty],
    };
    let links = programs
        .into_iter()
        .map(|p| {
            p.attach_trace()
                .map_err(Error::bpf("attaching a floor program"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    // A link keeps its program alive; the rest of the object may go.
    Ok(FloorGuard { _links: links })
}
