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

/// Whether no thread ever comes back from this function. An fexit program on it
/// would never run, and the kernel (before 6.15, which refuses it) would never
/// free the trampoline that a thread has ended in.
pub fn never_returns(function: &str) -> bool {
    matches!(
        function,
        "do_exit"
            | "do_group_exit"
            | "do_task_dead"
            | "__x64_sys_exit"
            | "__x64_sys_exit_group"
            | "__do_sys_exit_group"
            | "__do_sys_exit"
            | "kthread_exit"
            | "kthread_complete_and_exit"
            | "make_task_dead"
            | "panic"
            | "rewind_stack_and_make_dead"
    )
}

/// Whether threads end inside this function, which returns otherwise: the same
/// holds for its trampoline.
pub fn threads_end_inside(function: &str) -> bool {
    never_returns(function) || matches!(function, "x64_sys_call" | "do_syscall_64")
}

/// Whether idle threads stay inside this function for hours. What they return
/// through stays in the kernel until they do, long after whoever put it there
/// is gone.
pub fn threads_stay_inside(function: &str) -> bool {
    matches!(
        function,
        "schedule"
            | "__schedule"
            | "schedule_timeout"
            | "schedule_preempt_disabled"
            | "schedule_hrtimeout"
            | "schedule_hrtimeout_range"
            | "schedule_hrtimeout_range_clock"
            | "schedule_rtlock"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_threads_are_in_the_scheduler() {
        assert!(threads_stay_inside("schedule"));
        // Waits for a disk, which answers.
        assert!(!threads_stay_inside("io_schedule") && !threads_stay_inside("vfs_read"));
    }

    #[test]
    fn of_calls_only_exits_do_not_return() {
        assert!(never_returns("do_exit") && threads_end_inside("do_exit"));
        assert!(!never_returns("x64_sys_call") && threads_end_inside("x64_sys_call"));
        assert!(!threads_end_inside("do_exit_mm"));
    }

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
