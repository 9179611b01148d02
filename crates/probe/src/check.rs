// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do this kernel and these privileges really allow? Asked by trying.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::{Options, Probe, SharedFunctions};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    unreachable_pub,
    missing_docs
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/doctor.skel.rs"));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Works,
    /// DeBox works without it; the text says what is missing then.
    Degraded,
    Refused,
}

/// One feature, tried.
#[derive(Debug, Clone)]
pub struct Check {
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    pub state: State,
    /// `run` cannot work without it.
    pub basic: bool,
    /// What the kernel said; empty when it works.
    pub reason: String,
    /// What to do; empty when it works.
    pub remedy: String,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:?} {} {}",
            self.name, self.state, self.reason, self.remedy
        )
    }
}

const REMEDY_CAPS: &str = "run as root or with CAP_BPF and CAP_PERFMON; if root is refused too, a lockdown or security policy forbids it";

fn outcome<T, E: fmt::Display>(
    name: &'static str,
    purpose: &'static str,
    basic: bool,
    result: Result<T, E>,
    remedy: &str,
) -> (Check, Option<T>) {
    match result {
        Ok(value) => {
            let check = Check {
                name,
                purpose,
                state: State::Works,
                basic,
                reason: String::new(),
                remedy: String::new(),
            };
            (check, Some(value))
        }
        Err(error) => {
            let state = if basic {
                State::Refused
            } else {
                State::Degraded
            };
            let reason = format!("{error:#}");
            (
                Check {
                    name,
                    purpose,
                    state,
                    basic,
                    reason,
                    remedy: remedy.to_owned(),
                },
                None,
            )
        }
    }
}

/// Loads and attaches everything DeBox may use, one piece at a time, and takes
/// it away again.
pub fn check() -> Vec<Check> {
    let mut out = vec![];
    let (loaded, probe) = outcome(
        "bpf-load",
        "load the BPF programs and create their maps",
        true,
        Probe::load(Options::default(), SharedFunctions::default()),
        REMEDY_CAPS,
    );
    out.push(loaded);
    if let Some(probe) = probe {
        let p = &probe.skel.progs;
        let basics = [
            (
                "sched_switch",
                "sleeps and run-queue waits",
                &p.sched_switch,
            ),
            (
                "sched_process_fork",
                "children and threads",
                &p.sched_process_fork,
            ),
            ("sched_process_exec", "exec", &p.sched_process_exec),
            ("sched_process_exit", "thread ends", &p.sched_process_exit),
            ("task_rename", "names of threads", &p.task_rename),
            (
                "page_fault_kernel",
                "page faults inside wrapped calls",
                &p.page_fault_record,
            ),
            (
                "sys_enter",
                "call boundaries of unmodified programs",
                &p.sys_enter,
            ),
            (
                "sys_exit",
                "call boundaries of unmodified programs",
                &p.sys_exit,
            ),
        ];
        for (name, purpose, program) in basics {
            out.push(
                outcome(name, purpose, true, probe.programs.attach_trace(program, name), "needs Linux 6.1 or later with this tracepoint (CONFIG_FTRACE_SYSCALLS for sys_enter and sys_exit) and CAP_PERFMON").0,
            );
        }
        let extras = [
            (
                "contention_begin",
                "lock holders and waiters",
                &p.contention_begin,
                "Linux 5.19 or later",
            ),
            (
                "contention_end",
                "lock holders and waiters",
                &p.contention_end,
                "Linux 5.19 or later",
            ),
            (
                "sched_waking",
                "who woke a thread",
                &p.sched_waking,
                "CAP_PERFMON",
            ),
        ];
        for (name, purpose, program, remedy) in extras {
            out.push(
                outcome(
                    name,
                    purpose,
                    false,
                    probe.programs.attach_trace(program, name),
                    remedy,
                )
                .0,
            );
        }
        out.push(
            outcome(
                "interrupts",
                "time that interrupts take in calls (--irq)",
                false,
                crate::attach::irq_try(&probe.programs, p, probe.cpus_possible),
                "no real-time kernel, 1,024 CPUs at most, and CAP_PERFMON; without it --irq measures nothing and says so",
            )
            .0,
        );
        out.push(
            outcome(
                "task-iterator",
                "put running processes under watch",
                true,
                probe.programs.iterator(&p.bind_threads),
                "needs BPF task iterators (Linux 5.8) and CAP_PERFMON",
            )
            .0,
        );
        out.push(
            outcome(
                "perf-major-faults",
                "tell major from minor faults inside wrapped calls",
                false,
                crate::attach::major_fault_events(&probe.programs, &p.page_faults_maj_record),
                "CAP_PERFMON, or kernel.perf_event_paranoid below 1; else major faults of wrapped calls count as minor",
            )
            .0,
        );
        let frozen = crate::pages_create("debox_check").and_then(|map| {
            map.freeze().map_err(crate::Error::bpf("freezing a map"))?;
            map_is_read_only(map.as_fd().as_raw_fd())
        });
        out.push(
            outcome(
                "frozen-maps",
                "records that clients can read and nobody can write",
                true,
                frozen,
                "Linux 5.5 or later",
            )
            .0,
        );
        out.push(if probe.text.known() {
            outcome::<(), &str>(
                "kernel-symbols",
                "name the functions where calls block",
                false,
                Ok(()),
                "",
            )
            .0
        } else {
            outcome::<(), _>(
                "kernel-symbols",
                "name the functions where calls block",
                false,
                Err("/proc/kallsyms shows only zero addresses"),
                "CAP_SYSLOG, or sysctl kernel.kptr_restrict=1 or 0",
            )
            .0
        });
    }
    for (index, (name, purpose, remedy)) in [
        (
            "fentry",
            "call trace of chosen functions",
            "CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, and no lockdown that refuses it",
        ),
        (
            "kprobe",
            "probes on single functions and instructions",
            "CONFIG_KPROBES",
        ),
        (
            "kprobe.multi",
            "call trace of many functions",
            "CONFIG_FPROBE (Linux 5.18)",
        ),
        (
            "kprobe.session",
            "call trace of many functions at half the cost",
            "CONFIG_FPROBE, Linux 6.10",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        out.push(outcome(name, purpose, false, function_probe_try(index), remedy).0);
    }
    let works = |name: &str| {
        out.iter()
            .any(|check| check.name == name && check.state == State::Works)
    };
    // The order of crate::trace::Way::ALL.
    let (purpose, result) = if works("kprobe.session") {
        ("functions inside a call, by kprobe.session", Ok(()))
    } else if works("kprobe.multi") {
        ("functions inside a call, by kprobe.multi", Ok(()))
    } else if works("fentry") {
        (
            "functions inside a call, by fentry and fexit (64 functions at most)",
            Ok(()),
        )
    } else {
        (
            "functions inside a call",
            Err("no probes on functions: --trace shows the static tracepoints that calls pass"),
        )
    };
    out.push(
        outcome(
            "call-trace",
            purpose,
            false,
            result,
            "a kernel with CONFIG_FPROBE or CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, and no lockdown that refuses them",
        )
        .0,
    );
    out
}

/// A frozen map must map for reading and refuse to map for writing.
fn map_is_read_only(fd: i32) -> Result<(), crate::Error> {
    let length = debox_abi::DEBOX_PAGE_SIZE;
    let map = |protection| {
        // SAFETY: a fresh mapping of a map descriptor at an address of the
        // kernel's choice; unmapped below.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: exactly the mapping made above.
        unsafe { libc::munmap(at, length) };
        Ok(())
    };
    map(libc::PROT_READ).map_err(|source| crate::Error::Kernel {
        action: "map a frozen map for reading",
        source,
    })?;
    match map(libc::PROT_READ | libc::PROT_WRITE) {
        Err(_) => Ok(()),
        Ok(()) => Err(crate::Error::Kernel {
            action: "keep a frozen map read-only",
            source: std::io::Error::other("it can be mapped for writing"),
        }),
    }
}

fn function_probe_try(index: usize) -> Result<(), libbpf_rs::Error> {
    let mut place: MaybeUninit<OpenObject> = MaybeUninit::uninit();
    let mut open = skel::DoctorSkelBuilder::default().open(&mut place)?;
    for (i, program) in [
        &mut open.progs.fentry,
        &mut open.progs.kprobe,
        &mut open.progs.kprobe_multi,
        &mut open.progs.kprobe_session,
    ]
    .into_iter()
    .enumerate()
    {
        program.set_autoload(i == index);
    }
    let skel = open.load()?;
    let program = [
        &skel.progs.fentry,
        &skel.progs.kprobe,
        &skel.progs.kprobe_multi,
        &skel.progs.kprobe_session,
    ][index];
    program.attach().map(drop)
}
