// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of ours hangs on the kernel, and how does it change between two rounds
//! of the same process?

use crate::Error;
use crate::noise::bpf_links;
use debox_probe::{
    AccountOptions, Counters, Floor, FloorGuard, Kernel, Options, Probe, SharedFunctions, Watcher,
    floor_attach,
};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    Wrap,
    Boundary,
    /// Boundary, and what each call and sleep was about: sites, objects, chains, lives.
    Details,
    /// Wrap without the hook on sched_waking.
    NoWakers,
    /// The same as the two first, and interrupts are measured.
    WrapIrq,
    BoundaryIrq,
}

#[derive(Clone, Copy, Debug)]
pub enum Hang {
    Nothing,
    /// Programs that do nothing (bpf/floor.bpf.c).
    Floor(Floor),
    /// An account of this process, as `debox run` has it.
    Watch(Capture, u32),
}

pub struct Hooks {
    floor: Option<FloorGuard>,
    /// With the hook on sched_waking, and without; loaded when first needed.
    probes: [Option<Probe>; 2],
    /// Probe and account that are in use.
    watching: Option<(usize, u32)>,
    /// Links of others, there before us.
    foreign: Option<u32>,
}

fn unavailable(error: debox_probe::Error) -> Error {
    Error::Unavailable(error.to_string())
}

impl Hooks {
    pub fn new() -> Self {
        Self {
            floor: None,
            probes: [None, None],
            watching: None,
            foreign: bpf_links(),
        }
    }

    /// Programs go a moment after who used them: what is measured next must
    /// not pay for them.
    pub fn off(&mut self) {
        self.floor = None;
        if let Some((probe, account)) = self.watching.take()
            && let Some(probe) = &mut self.probes[probe]
        {
            probe.account_release(account);
        }
        let Some(before) = self.foreign else { return };
        let begin = Instant::now();
        while bpf_links().is_some_and(|n| n > before) && begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn put(&mut self, what: Hang) -> Result<(), Error> {
        self.off();
        match what {
            Hang::Nothing => {}
            Hang::Floor(floor) => self.floor = Some(floor_attach(floor).map_err(unavailable)?),
            Hang::Watch(capture, pid) => {
                let index = usize::from(capture == Capture::NoWakers);
                if self.probes[index].is_none() {
                    let options = Options {
                        no_wakers: index == 1,
                        ..Options::default()
                    };
                    let probe = Probe::load(options, SharedFunctions::default());
                    self.probes[index] = Some(probe.map_err(unavailable)?);
                }
                let probe = self.probes[index].as_mut().expect("just loaded");
                let options = AccountOptions {
                    boundary: matches!(
                        capture,
                        Capture::Boundary | Capture::BoundaryIrq | Capture::Details
                    ),
                    details: capture == Capture::Details,
                    irq: matches!(capture, Capture::WrapIrq | Capture::BoundaryIrq),
                    ..AccountOptions::default()
                };
                let account = probe
                    .account_create(Watcher::root(), options)
                    .map_err(unavailable)?;
                self.watching = Some((index, account.id));
                probe
                    .account_join(account.id, pid, debox_probe::Join::default())
                    .map_err(unavailable)?;
            }
        }
        Ok(())
    }

    /// Takes waiting stacks, as a broker does; what the kernel side has counted.
    pub fn learn(&mut self) -> Option<Counters> {
        let probe = self.probes[self.watching?.0].as_mut()?;
        while probe.wait(Duration::ZERO) && !probe.new_stacks().is_empty() {}
        probe.new_stacks();
        Some(probe.counters())
    }
}
