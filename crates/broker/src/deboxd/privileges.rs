// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of root's powers does the broker keep?

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// BPF and PERFMON: load and attach, whenever the first watcher comes. SYSLOG:
/// kallsyms. SYS_PTRACE: the namespaces of processes that ask for others'
/// calls. SYS_RESOURCE: descriptors in flight beyond RLIMIT_NOFILE.
const KEPT: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_RESOURCE);

/// Gives up everything else, for good. What cannot be given up is told and is
/// no reason to stop: a service manager may have taken it away already.
pub fn drop_needless() {
    let told = |what: &str, result: rustix::io::Result<()>| {
        if let Err(error) = result {
            tracing::warn!(%error, "could not {what}");
        }
    };
    told("set no_new_privs", set_no_new_privs(true));
    for number in 0..64 {
        let Some(one) = CapabilitySet::from_bits(1 << number) else {
            continue;
        };
        if KEPT.contains(one) {
            continue;
        }
        // EINVAL: this kernel does not have it. EPERM: without CAP_SETPCAP the
        // set stays as it is, and no_new_privs makes it meaningless.
        let _ = remove_capability_from_bounding_set(one);
    }
    let _ = clear_ambient_capability_set();
    match capabilities(None) {
        Ok(now) => {
            let permitted = now.permitted & KEPT;
            told(
                "drop capabilities",
                set_capabilities(
                    None,
                    CapabilitySets {
                        effective: permitted,
                        permitted,
                        inheritable: CapabilitySet::empty(),
                    },
                ),
            );
        }
        Err(error) => told("read capabilities", Err(error)),
    }
}
