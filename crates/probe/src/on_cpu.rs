// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does an account get its clock of CPU time, and what are the numbers that its
//! samples give the kernel's functions (`bpf/on_cpu.h`)?

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use debox_abi::{Pod, debox_on_cpu};
use debox_symbol::Functions;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::attach::{cpus_online, software_event};
use crate::error::Error;
use crate::programs::{Link, Programs};
use crate::unwind::{self, Row};
use crate::{DeboxProgs, Probe};

/// Shared with `bpf/user_stack.h` and `bpf/on_cpu.h`.
pub(crate) const FUNCTIONS_TABLE: u32 = unwind::TABLES_MAX;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
/// The lowest address of the kernel's text and modules, x86-64.
const TEXT_MIN: u64 = 0xffff_ffff_8000_0000;
/// The event, and what attaches a program to it.
const DESCRIPTORS_PER_CPU: usize = 2;
/// What runs soft interrupts: since 6.10, and before.
const SOFTIRQ: [&str; 2] = ["handle_softirqs", "__do_softirq"];

/// Where the kernel's functions begin, by number.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// Above TEXT_MIN; of number 1 first. What is nobody's has no number.
    starts: Vec<(u32, bool)>,
    softirq: [u32; 2],
    placed: bool,
}

impl Starts {
    pub fn of(functions: &Functions) -> Self {
        let mut all = Self::default();
        for (address, name) in functions.starts() {
            let Some(at) = address.checked_sub(TEXT_MIN) else {
                continue;
            };
            let Ok(at) = u32::try_from(at) else { continue };
            all.starts.push((at, name.is_some()));
            let softirq = SOFTIRQ.iter().position(|softirq| Some(*softirq) == name);
            if let Some(which) = softirq {
                all.softirq[which] = all.starts.len() as u32;
            }
        }
        all
    }

    /// Rows that lead to a number instead of a rule.
    fn rows(&self) -> Vec<Row> {
        (1u32..)
            .zip(&self.starts)
            .map(|(number, &(pc, named))| {
                let [a, b, c, d] = if named { number } else { 0 }.to_le_bytes();
                Row {
                    pc,
                    cfa_words: u16::from_le_bytes([a, b]),
                    rbp_words: c as i8,
                    kind: d,
                }
            })
            .collect()
    }

    fn address(&self, number: u32) -> Option<u64> {
        let at = (number as usize).checked_sub(1)?;
        self.starts
            .get(at)
            .map(|&(above, _)| TEXT_MIN + u64::from(above))
    }
}

/// An account's.
pub(crate) struct Clock {
    table: MapHandle,
    /// Of each CPU, until the account's first process joins.
    events: Vec<OwnedFd>,
    links: Vec<Link>,
}

impl Clock {
    pub fn table(&self) -> &MapHandle {
        &self.table
    }

    /// From now on it strikes.
    pub fn start(
        &mut self,
        id: u32,
        programs: &Programs,
        all: &DeboxProgs<'_>,
    ) -> Result<(), Error> {
        for event in self.events.drain(..) {
            // 0 is what a program without a cookie is told.
            let cookie = u64::from(id) + 1;
            let action = "attach to the clock of CPU time";
            self.links
                .push(programs.attach_event(&all.on_cpu_clock, event, cookie, action)?);
        }
        Ok(())
    }
}

/// Of each CPU, as long as all clocks, with `others`, leave half of the descriptors.
fn events_open(hz: u32, others: usize) -> io::Result<Vec<OwnedFd>> {
    let period = 1_000_000_000 / u64::from(hz.max(1));
    let cpus = cpus_online()?;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid rlimit that outlives the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let wanted = DESCRIPTORS_PER_CPU * (others + 1) * cpus.len();
    if known && wanted as u64 > limit.rlim_cur / 2 {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    cpus.into_iter()
        .map(|cpu| software_event(PERF_COUNT_SW_CPU_CLOCK, period, cpu))
        .collect()
}

impl Probe {
    /// The clock of a new account; one that the kernel refuses has a table that says so.
    pub(crate) fn clock_create(&mut self, hz: u32) -> Result<Clock, Error> {
        let others = self.accounts.values().filter(|a| a.clock.is_some());
        let (events, hz, error) = match events_open(hz, others.count()) {
            Ok(events) => (events, hz, 0),
            Err(error) => {
                tracing::warn!(%error, "what the CPU does is not told: the clock is refused");
                (vec![], 0, error.raw_os_error().unwrap_or(libc::EIO))
            }
        };
        let table = crate::numbered_create(
            "debox_on_cpu",
            "creating an account's samples",
            |first: &mut debox_on_cpu| {
                first.serial = self.serial;
                first.hz = hz;
                first.error = error;
            },
        )?;
        Ok(Clock {
            table,
            events,
            links: vec![],
        })
    }

    /// The table of functions, until the kernel side has it.
    pub(crate) fn functions_table(&self) -> Result<Option<MapHandle>, Error> {
        if self.functions.placed || self.functions.starts.is_empty() {
            return Ok(None);
        }
        unwind::table_of(&self.functions.rows()).map(Some)
    }

    /// It has it.
    pub(crate) fn functions_placed(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.softirq_functions = self.functions.softirq;
            // A row of each start.
            bss.function_rows = self.functions.starts.len() as u32;
        }
        self.functions.placed = true;
    }

    /// Numbers and addresses of the functions in an account's samples.
    pub(crate) fn functions_sampled(&self, id: u32) -> Result<Vec<(u32, u64)>, Error> {
        let clock = self.accounts.get(&id).and_then(|a| a.clock.as_ref());
        let Some(clock) = clock else {
            return Ok(vec![]);
        };
        let bytes = clock
            .table
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::bpf("reading an account's samples"))?
            .unwrap_or_default();
        Ok(numbers(&bytes)
            .into_iter()
            .filter_map(|number| Some((number, self.functions.address(number)?)))
            .collect())
    }
}

/// Those of functions in a `debox_on_cpu`.
fn numbers(bytes: &[u8]) -> BTreeSet<u32> {
    let mut table = debox_on_cpu::zeroed_box();
    let to = table.as_bytes_mut();
    if bytes.len() < to.len() {
        return BTreeSet::new();
    }
    to.copy_from_slice(&bytes[..to.len()]);
    table.kernel_functions().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lead_to_numbers_and_numbers_to_addresses() {
        let functions = Functions::read(
            &b"ffffffff81000000 T _stext\nffffffff81000000 T first\nffffffff81000100 t handle_softirqs\n\
               ffffffff81002000 T _etext\nffffffffc0000010 t of_module\t[module]\n"[..],
        )
        .unwrap();
        let starts = Starts::of(&functions);
        let rows = starts.rows();
        let number = |row: &Row| {
            u32::from(row.cfa_words)
                | u32::from(row.rbp_words as u8) << 16
                | u32::from(row.kind) << 24
        };
        let told: Vec<_> = rows.iter().map(|row| (row.pc, number(row))).collect();
        assert_eq!(
            told,
            [
                (0x0100_0000, 1),
                (0x0100_0100, 2),
                (0x0100_2000, 0),
                (0x4000_0010, 4),
                (0x4000_1000, 0)
            ]
        );
        assert_eq!(starts.softirq, [2, 0]);
        assert_eq!(starts.address(4), Some(0xffff_ffff_c000_0010));
        assert_eq!((starts.address(0), starts.address(6)), (None, None));
    }
}
