// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a broker say that watching takes?

use debox_abi::{
    DEBOX_COSTS_CPU, DEBOX_COSTS_MEMORY, DEBOX_COSTS_RUN_TIME, DEBOX_COSTS_TABLES, Pod, debox_costs,
};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Of all its clients together; None: not known.
#[derive(Debug, Default)]
pub struct Costs {
    /// Of its programs in the kernel, in the times in which the kernel took it.
    pub run_time: Option<Duration>,
    /// Of its maps in the kernel.
    pub tables_bytes: Option<u64>,
    /// Of its process and what that started.
    pub cpu: Option<Duration>,
    pub memory_bytes: Option<u64>,
    /// Why the run time is not known, if it was asked for.
    pub lack: Option<String>,
    /// While it is open the kernel takes the run time of programs. None: it always does, or never.
    pub statistics: Option<OwnedFd>,
}

impl Costs {
    /// None: it is no such struct.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let costs = debox_costs::read_from(bytes)?;
        let told = |bit: u32, value: u64| (costs.known & bit != 0).then_some(value);
        Some(Self {
            run_time: told(DEBOX_COSTS_RUN_TIME, costs.run_time_ns).map(Duration::from_nanos),
            tables_bytes: told(DEBOX_COSTS_TABLES, costs.tables_bytes),
            cpu: told(DEBOX_COSTS_CPU, costs.cpu_ns).map(Duration::from_nanos),
            memory_bytes: told(DEBOX_COSTS_MEMORY, costs.memory_bytes),
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_zero() {
        let costs = debox_costs {
            known: DEBOX_COSTS_CPU,
            run_time_ns: 5,
            tables_bytes: 6,
            ..debox_costs::zeroed()
        };
        let told = Costs::parse(costs.as_bytes()).unwrap();
        assert_eq!(told.cpu, Some(Duration::ZERO));
        assert_eq!(
            (told.run_time, told.tables_bytes, told.memory_bytes),
            (None, None, None)
        );
        assert!(Costs::parse(&costs.as_bytes()[1..]).is_none());
    }
}
