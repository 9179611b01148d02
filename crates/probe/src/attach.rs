// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which programs hang on the kernel now?
//!
//! The event hooks while anybody is watched, the system call tracepoints only
//! while somebody is watched by boundary capture, nothing when nobody is.

use libbpf_rs::btf::{Btf, types};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::Error;
use crate::programs::{Link, Program, Programs};
use crate::{DeboxProgs, HOT_CPUS, Options};

/// What was asked for and is in place; dropping a set detaches it.
#[derive(Default)]
pub struct Attached {
    events: Vec<Link>,
    boundary: Vec<Link>,
    /// Faults in records.
    records: Vec<Link>,
    waker: Vec<Link>,
    /// Handlers of devices and soft interrupts: for wakers, and for `irq`.
    handler_begins: Vec<Link>,
    handler_ends: Vec<Link>,
    /// In place of those, for `irq`; they stay while there are wakers.
    handler_ends_timed: Vec<Link>,
    /// The processor's own vectors.
    irq: Vec<Link>,
    /// Why interrupts are not measured.
    irq_refused: Option<String>,
    features: u64,
}

/// What is wanted of interrupts.
#[derive(Clone, Copy)]
pub struct Interrupts {
    /// Who woke whom.
    pub wakers: bool,
    /// How long they took.
    pub irq: bool,
}

/// Tracepoints of the processor's own interrupts, and whether every kernel has
/// them: the others go with kinds of processors and with what is configured.
const VECTORS: [(&str, bool); 11] = [
    ("local_timer", true),
    ("reschedule", true),
    ("call_function", true),
    ("call_function_single", true),
    ("irq_work", true),
    ("x86_platform_ipi", false),
    ("error_apic", false),
    ("spurious_apic", false),
    ("thermal_apic", false),
    ("threshold_apic", false),
    ("deferred_error_apic", false),
];

/// Which tracepoints there are: the kernel has a type of that name for each.
struct Tracepoints(Option<Btf<'static>>);

impl Tracepoints {
    fn of_kernel() -> Self {
        Self(Btf::from_vmlinux().ok())
    }

    fn has(&self, name: &str) -> bool {
        let name = format!("btf_trace_{name}");
        (self.0.as_ref()).is_some_and(|btf| {
            btf.type_by_name::<types::Typedef<'_>>(name.as_str())
                .is_some()
        })
    }
}

/// Why interrupts cannot be measured on a machine, whatever the kernel lets us attach.
/// `version`: of /proc/sys/kernel/version.
fn irq_impossible(version: &str, cpus: u32) -> Option<String> {
    if version.contains("PREEMPT_RT") {
        // From begin to end is then not one stretch of one CPU.
        return Some(format!(
            "the kernel is a real-time one ({}), which runs soft interrupts in tasks that \
             others preempt",
            version.trim()
        ));
    }
    (cpus > HOT_CPUS)
        .then(|| format!("the machine may have {cpus} CPUs; the kernel side knows {HOT_CPUS}"))
}

/// What nearly everybody will ask for who watches somebody.
pub fn needed<'p>(all: &'p DeboxProgs<'_>, options: &Options) -> Vec<&'p Program<'p>> {
    let mut needed = vec![
        &all.sched_process_fork,
        &all.sched_process_exec,
        &all.sched_process_exit,
        &all.task_rename_spliced,
        &all.task_rename,
        &all.sched_switch,
        &all.page_fault_kernel,
        &all.contention_begin,
        &all.contention_end,
        &all.page_faults_maj,
        &all.bind_threads,
        &all.asleep_threads,
        &all.away_threads,
        &all.follow_threads,
        &all.on_cpu_clock,
    ];
    if !options.boundary_later {
        // A command's threads have mostly ended before anybody would take them off.
        needed.extend([&all.sys_enter, &all.sys_exit, &all.unbind_threads]);
    }
    if !options.no_wakers {
        needed.extend([
            &all.sched_waking,
            &all.hrtimer_expire_entry,
            &all.hrtimer_expire_exit,
            &all.timer_expire_entry,
            &all.block_rq_complete,
            &all.netif_rx,
            &all.irq_handler_entry,
            &all.irq_handler_exit,
            &all.softirq_entry,
            &all.softirq_exit,
        ]);
    }
    needed
}

/// Whether interrupts can be measured here: all hooks are put in place, and taken away.
pub fn irq_try(programs: &Programs, all: &DeboxProgs<'_>, cpus: u32) -> Result<(), String> {
    let mut attached = Attached::default();
    let wanted = Interrupts {
        wakers: false,
        irq: true,
    };
    attached.interrupts_attach(programs, all, wanted, cpus);
    match attached.irq_refused {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

impl Attached {
    pub fn features(&self) -> u64 {
        self.features
    }

    pub fn anything(&self) -> bool {
        !self.events.is_empty() || !self.boundary.is_empty()
    }

    pub fn events_attach(
        &mut self,
        programs: &Programs,
        all: &DeboxProgs<'_>,
    ) -> Result<(), Error> {
        if !self.events.is_empty() {
            return Ok(());
        }
        let hook = |program, action| programs.attach_trace(program, action);
        let mut links = vec![
            hook(&all.sched_process_fork, "attach to sched_process_fork")?,
            hook(&all.sched_process_exec, "attach to sched_process_exec")?,
            hook(&all.sched_process_exit, "attach to sched_process_exit")?,
            // In this order they run: the second one closes a call that the first one asks about.
            hook(&all.task_rename_spliced, "attach to task_rename")?,
            hook(&all.task_rename, "attach to task_rename")?,
            hook(&all.sched_switch, "attach to sched_switch")?,
            hook(&all.page_fault_kernel, "attach to page_fault_kernel")?,
        ];
        self.features = debox_abi::DEBOX_FEATURE_SLEEPS
            | debox_abi::DEBOX_FEATURE_FAULTS
            | debox_abi::DEBOX_FEATURE_SITES;
        match (
            hook(&all.contention_begin, "attach to contention_begin"),
            hook(&all.contention_end, "attach to contention_end"),
        ) {
            (Ok(begin), Ok(end)) => {
                links.extend([begin, end]);
                self.features |= debox_abi::DEBOX_FEATURE_LOCKS;
            }
            (begin, end) => {
                tracing::warn!(error = ?begin.err().or(end.err()), "no lock holders: contention tracepoints refused");
            }
        }
        match major_fault_events(programs, &all.page_faults_maj) {
            Ok(events) => {
                links.extend(events);
                self.features |= debox_abi::DEBOX_FEATURE_MAJOR_FAULTS;
            }
            Err(error) => {
                tracing::warn!(%error, "major faults count as minor ones: no perf software events");
            }
        }
        self.events = links;
        Ok(())
    }

    /// Only records and details say who woke a thread, and the hooks are a
    /// cost to every wake-up and interrupt of the machine.
    fn waker_attach(&mut self, programs: &Programs, all: &DeboxProgs<'_>) {
        if !self.waker.is_empty() {
            return;
        }
        match programs.attach_trace(&all.sched_waking, "attach to sched_waking") {
            Ok(link) => {
                self.waker.push(link);
                self.features |= debox_abi::DEBOX_FEATURE_WAKERS;
            }
            Err(error) => {
                tracing::warn!(%error, "no wakers: sched_waking refused");
                return;
            }
        }
        // Without one of these an interrupt is told with less of a name.
        for (program, what) in [
            (&all.hrtimer_expire_entry, "hrtimer_expire_entry"),
            (&all.hrtimer_expire_exit, "hrtimer_expire_exit"),
            (&all.timer_expire_entry, "timer_expire_entry"),
            (&all.block_rq_complete, "block_rq_complete"),
            (&all.netif_rx, "netif_rx"),
        ] {
            match programs.attach_trace(program, "attach to a tracepoint") {
                Ok(link) => self.waker.push(link),
                Err(error) => tracing::warn!(%error, what, "interrupts lack names: refused"),
            }
        }
    }

    /// Ends before begins: the first begin that is seen has its end.
    fn handlers_attach(&mut self, programs: &Programs, all: &DeboxProgs<'_>, timed: bool) -> bool {
        let refused = &mut self.irq_refused;
        let mut attach = |to: &mut Vec<Link>, these: [(&Program<'_>, &str); 2]| {
            for (program, what) in these {
                match programs.attach_trace(program, "attach to a tracepoint") {
                    Ok(link) => to.push(link),
                    Err(error) => {
                        tracing::warn!(%error, what, "interrupts are not told: refused");
                        *refused = Some(format!("{what}: {error}"));
                    }
                }
            }
        };
        if timed && self.handler_ends_timed.is_empty() {
            let ends = [
                (&all.irq_handler_exit_timed, "irq_handler_exit"),
                (&all.softirq_exit_timed, "softirq_exit"),
            ];
            attach(&mut self.handler_ends_timed, ends);
        }
        if !timed && self.handler_ends.is_empty() && self.handler_ends_timed.is_empty() {
            let ends = [
                (&all.irq_handler_exit, "irq_handler_exit"),
                (&all.softirq_exit, "softirq_exit"),
            ];
            attach(&mut self.handler_ends, ends);
        }
        if self.handler_begins.is_empty() {
            let begins = [
                (&all.irq_handler_entry, "irq_handler_entry"),
                (&all.softirq_entry, "softirq_entry"),
            ];
            attach(&mut self.handler_begins, begins);
        }
        self.handler_begins.len() == 2 && (!timed || self.handler_ends_timed.len() == 2)
    }

    fn vectors_attach(&mut self, programs: &Programs, all: &DeboxProgs<'_>) -> bool {
        let mut complete = true;
        let kernel = Tracepoints::of_kernel();
        for (program, end) in [(&all.vector_exit, "exit"), (&all.vector_entry, "entry")] {
            for (vector, everywhere) in VECTORS {
                let name = format!("{vector}_{end}");
                if !everywhere && !kernel.has(&name) {
                    continue;
                }
                match programs.attach_raw_tracepoint(program, &name) {
                    Ok(link) => self.irq.push(link),
                    Err(error) => {
                        tracing::warn!(%error, name, "interrupts are not measured: refused");
                        self.irq_refused = Some(format!("{name}: {error}"));
                        complete = false;
                    }
                }
            }
        }
        complete
    }

    /// The hooks are a cost to every interrupt of the machine.
    pub fn interrupts_attach(
        &mut self,
        programs: &Programs,
        all: &DeboxProgs<'_>,
        wanted: Interrupts,
        cpus: u32,
    ) {
        if wanted.wakers {
            self.waker_attach(programs, all);
        }
        let mut irq = wanted.irq && self.irq.is_empty();
        if irq {
            let version = std::fs::read_to_string("/proc/sys/kernel/version");
            self.irq_refused = irq_impossible(&version.unwrap_or_default(), cpus);
            if let Some(why) = &self.irq_refused {
                tracing::warn!(why, "interrupts are not measured");
                irq = false;
            }
        }
        if irq {
            // At the same time; what is refused is told where it is attached.
            let _ = programs.load(&[
                &all.irq_handler_exit_timed,
                &all.softirq_exit_timed,
                &all.vector_exit,
                &all.vector_entry,
            ]);
        }
        let handlers = (wanted.wakers || irq) && self.handlers_attach(programs, all, irq);
        if irq && self.vectors_attach(programs, all) && handlers {
            self.features |= debox_abi::DEBOX_FEATURE_IRQ;
        }
    }

    pub fn interrupts_detach(&mut self, wanted: Interrupts) {
        if !wanted.irq {
            self.irq.clear();
            self.features &= !debox_abi::DEBOX_FEATURE_IRQ;
        }
        if !wanted.wakers {
            self.waker.clear();
            self.features &= !debox_abi::DEBOX_FEATURE_WAKERS;
        }
        if !wanted.wakers && !wanted.irq {
            self.handlers_detach();
        }
    }

    pub fn boundary_attach(
        &mut self,
        programs: &Programs,
        all: &DeboxProgs<'_>,
    ) -> Result<(), Error> {
        if self.boundary.is_empty() {
            programs.load(&[&all.sys_exit, &all.sys_enter])?;
            self.boundary = vec![
                programs.attach_trace(&all.sys_exit, "attach to sys_exit")?,
                programs.attach_trace(&all.sys_enter, "attach to sys_enter")?,
            ];
        }
        Ok(())
    }

    pub fn boundary_detach(&mut self) {
        self.boundary.clear();
    }

    pub fn events_detach(&mut self) {
        self.events.clear();
        self.waker.clear();
        self.handlers_detach();
        self.irq.clear();
        self.features = 0;
    }

    fn handlers_detach(&mut self) {
        self.handler_begins.clear();
        self.handler_ends.clear();
        self.handler_ends_timed.clear();
    }

    /// The first slots are about to be bound.
    pub fn records_attach(
        &mut self,
        programs: &Programs,
        all: &DeboxProgs<'_>,
    ) -> Result<(), Error> {
        if !self.records.is_empty() {
            return Ok(());
        }
        programs.load(&[&all.page_fault_record, &all.page_faults_maj_record])?;
        let faults =
            programs.attach_trace(&all.page_fault_record, "attach to page_fault_kernel")?;
        self.records.push(faults);
        match major_fault_events(programs, &all.page_faults_maj_record) {
            Ok(events) => self.records.extend(events),
            Err(error) => {
                tracing::warn!(%error, "major faults count as minor ones: no perf software events");
                self.features &= !debox_abi::DEBOX_FEATURE_MAJOR_FAULTS;
            }
        }
        Ok(())
    }

    pub fn records_detach(&mut self) {
        self.records.clear();
    }
}

const PERF_COUNT_SW_PAGE_FAULTS_MAJ: u64 = 6;

/// One software event of major faults on each online CPU.
pub(crate) fn major_fault_events(
    programs: &Programs,
    program: &Program<'_>,
) -> Result<Vec<Link>, Error> {
    let mut links = vec![];
    for cpu in cpus_online().map_err(|source| Error::Kernel {
        action: "list its CPUs",
        source,
    })? {
        // Of period 1: each fault.
        let event = software_event(PERF_COUNT_SW_PAGE_FAULTS_MAJ, 1, cpu).map_err(|source| {
            Error::Kernel {
                action: "open a perf event for major faults",
                source,
            }
        })?;
        let action = "attach to the event of major faults";
        links.push(programs.attach_event(program, event, 0, action)?);
    }
    Ok(links)
}

/// A software event of one CPU, of whatever runs there; it counts once it is attached to.
pub(crate) fn software_event(which: u64, period: u64, cpu: u32) -> io::Result<OwnedFd> {
    const PERF_TYPE_SOFTWARE: u32 = 1;
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    const DISABLED: u64 = 1;
    // struct perf_event_attr, PERF_ATTR_SIZE_VER0: 64 bytes
    let mut attr = [0u8; 64];
    attr[0..4].copy_from_slice(&PERF_TYPE_SOFTWARE.to_ne_bytes());
    attr[4..8].copy_from_slice(&64u32.to_ne_bytes());
    attr[8..16].copy_from_slice(&which.to_ne_bytes());
    attr[16..24].copy_from_slice(&period.to_ne_bytes());
    attr[40..48].copy_from_slice(&DISABLED.to_ne_bytes());
    // SAFETY: attr is a valid perf_event_attr of the size it states, and
    // outlives the call; pid -1 with a CPU is a system-wide event.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.as_ptr(),
            -1 as libc::pid_t,
            cpu as libc::c_int,
            -1 as libc::c_int,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(crate) fn cpus_online() -> io::Result<Vec<u32>> {
    Ok(cpu_list_parse(&std::fs::read_to_string(
        "/sys/devices/system/cpu/online",
    )?))
}

fn cpu_list_parse(text: &str) -> Vec<u32> {
    let mut out = vec![];
    for part in text.trim().split(',') {
        let mut ends = part.splitn(2, '-').filter_map(|n| n.parse::<u32>().ok());
        if let Some(first) = ends.next() {
            out.extend(first..=ends.next().unwrap_or(first));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn cpu_lists() {
        assert_eq!(super::cpu_list_parse("0-1\n"), [0, 1]);
        assert_eq!(super::cpu_list_parse("0,2-4,7"), [0, 2, 3, 4, 7]);
        assert_eq!(super::cpu_list_parse(""), Vec::<u32>::new());
    }

    /// As kernels say it, of machines that are not at hand.
    #[test]
    fn where_interrupts_cannot_be_measured_it_is_said_why() {
        let ordinary = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.38-1 (2025-07-16)\n";
        let lazy = "#1 SMP PREEMPT_LAZY 6.18\n";
        let real_time = "#1 SMP PREEMPT_RT Debian 6.1.140-1 (2025-05-22)\n";
        assert_eq!(super::irq_impossible(ordinary, 2), None);
        assert_eq!(super::irq_impossible(lazy, crate::HOT_CPUS), None);
        assert_eq!(super::irq_impossible("", 1), None);
        let why = super::irq_impossible(real_time, 2).expect("a real-time kernel");
        assert!(
            why.contains("real-time") && why.contains("6.1.140-1 (2025-05-22))"),
            "{why}"
        );
        let why = super::irq_impossible(ordinary, crate::HOT_CPUS + 1).expect("too many CPUs");
        assert!(why.contains("1025 CPUs"), "{why}");
    }
}
