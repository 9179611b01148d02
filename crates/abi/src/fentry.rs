// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel functions must never get an fentry or fexit program?
//!
//! The code that enters and leaves a BPF program takes the RCU read lock and
//! keeps the thread on its CPU. Where these are functions, a program on one of
//! them enters itself without end, and the machine stands still. Newer kernels
//! refuse them; Linux 6.1 does not.

/// Whether entering or leaving a BPF program runs through this function.
pub fn bpf_entry_runs_through(function: &str) -> bool {
    const NAMES: [&str; 4] = [
        "migrate_disable",
        "migrate_enable",
        "preempt_count_add",
        "preempt_count_sub",
    ];
    const BEGINNINGS: [&str; 6] = [
        "__rcu_read_",
        "rcu_read_",
        "rcu_preempt_",
        "__bpf_prog_",
        "__bpf_tramp_",
        "bpf_prog_",
    ];
    NAMES.contains(&function) || BEGINNINGS.iter().any(|b| function.starts_with(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_of_programs_and_nothing_else() {
        for name in [
            "__rcu_read_lock",
            "__rcu_read_unlock",
            "rcu_read_unlock_special",
            "migrate_disable",
        ] {
            assert!(bpf_entry_runs_through(name), "{name}");
        }
        for name in [
            "vfs_read",
            "schedule",
            "_raw_spin_lock",
            "kfree",
            "rcu_core",
        ] {
            assert!(!bpf_entry_runs_through(name), "{name}");
        }
    }
}
