// SPDX-License-Identifier: MIT OR Apache-2.0
//! With what can time be measured here, how finely, and at what cost?

use crate::Error;
use crate::clock::{self, Choice, Clock, Kind};
use crate::raw::call3;
use crate::sampling::pin;
use crate::stat::{median, median_interval, sorted};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// All sources, and the one that everything else is measured with.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Survey {
    pub sources: Vec<Source>,
    pub choice: Choice,
    pub why: String,
    /// Ticks a second of the time-stamp counter.
    pub counter_hz: Option<f64>,
    /// The CPUs that readings were handed between, and what they share.
    pub pair: Option<(usize, usize)>,
    pub relation: Option<String>,
}

impl Survey {
    /// The source that was picked.
    pub fn chosen(&self) -> Option<&Source> {
        let (_, name) = CANDIDATES.iter().find(|c| c.0 == self.choice.kind)?;
        self.sources.iter().find(|s| s.name == *name)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Source {
    pub name: String,
    /// How it is reached: instruction, vDSO, system call, or a library
    /// function that makes a system call after all.
    pub reached: String,
    /// What its documentation or clock_getres says, ns.
    pub resolution_ns: Option<f64>,
    /// Smallest difference that two readings in a row really had.
    pub step_ns: Option<f64>,
    /// The same where a unit is a cycle of the processor, not a length of time.
    pub step_cycles: Option<f64>,
    /// One reading: the median of blocks of readings, and its 95 % interval.
    pub cost_ns: Option<f64>,
    pub cost_low_ns: Option<f64>,
    pub cost_high_ns: Option<f64>,
    /// Readings in a row, and how many went backwards.
    pub readings: u64,
    pub backwards: u64,
    /// Handed to another CPU and compared there, and how many seemed to go back.
    pub exchanges: u64,
    pub exchanges_backwards: u64,
    pub worst_backwards_ns: f64,
    /// Why it was not measured.
    pub missing: Option<String>,
}

type Read = fn() -> u64;

/// A source: how to read it, and what a unit of it is.
struct Entry {
    name: &'static str,
    read: Read,
    unit_ns: f64,
    resolution_ns: Option<f64>,
    /// Means something on another CPU too (CPU time does not).
    global: bool,
    vdso: Option<Vdso>,
}

#[derive(Clone, Copy)]
enum Vdso {
    Clock(libc::clockid_t),
    GetTimeOfDay,
    Time,
}

#[inline(always)]
fn counter() -> u64 {
    // SAFETY: rdtsc exists on every x86-64; a kernel that forbids it to user
    // space kills us, which nobody configures.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn by_clock<const CLOCK: libc::clockid_t>() -> u64 {
    clock::gettime_ns(CLOCK)
}

fn by_call<const CLOCK: libc::clockid_t>() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a timespec to write to.
    unsafe {
        call3(
            libc::SYS_clock_gettime,
            CLOCK as usize,
            &raw mut ts as usize,
            0,
        )
    };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

fn of_day(tv: libc::timeval) -> u64 {
    tv.tv_sec as u64 * 1_000_000 + tv.tv_usec as u64
}

fn get_time_of_day() -> u64 {
    let mut tv = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    // SAFETY: a timeval to write to.
    unsafe { libc::gettimeofday(&mut tv, std::ptr::null_mut()) };
    of_day(tv)
}

fn get_time_of_day_call() -> u64 {
    let mut tv = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    // SAFETY: as above.
    unsafe { call3(libc::SYS_gettimeofday, &raw mut tv as usize, 0, 0) };
    of_day(tv)
}

fn time_seconds() -> u64 {
    // SAFETY: NULL is allowed.
    unsafe { libc::time(std::ptr::null_mut()) as u64 }
}

fn times_ticks() -> u64 {
    // SAFETY: zeroed is valid, times fills it.
    unsafe {
        let mut t: libc::tms = std::mem::zeroed();
        libc::times(&mut t) as u64
    }
}

fn rusage_micros() -> u64 {
    // SAFETY: zeroed is valid, getrusage fills it.
    unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut u);
        of_day(u.ru_utime) + of_day(u.ru_stime)
    }
}

fn clock_micros() -> u64 {
    unsafe extern "C" {
        fn clock() -> libc::c_long;
    }
    // SAFETY: no arguments.
    unsafe { clock() as u64 }
}

/// The descriptor of the perf event that [`perf_read`] reads.
static PERF_FD: AtomicU64 = AtomicU64::new(0);

fn perf_read() -> u64 {
    let mut value = 0u64;
    let fd = PERF_FD.load(Ordering::Relaxed) as usize;
    // SAFETY: eight bytes to write to.
    unsafe { call3(libc::SYS_read, fd, &raw mut value as usize, 8) };
    value
}

/// Type and number of the hardware's cycles as a perf event.
const CYCLES: (u32, u64) = (0, 0);

/// A counting event of this thread. type 1, config 1: the software task
/// clock; type 0, config 0: hardware cycles.
fn perf_open(kind: u32, config: u64) -> Result<OwnedFd, std::io::Error> {
    // The first 64 bytes of struct perf_event_attr (PERF_ATTR_SIZE_VER0):
    // type, size, config, then sampling fields and flags that stay 0.
    let mut attr = [0u64; 8];
    attr[0] = u64::from(kind) | 64 << 32;
    attr[1] = config;
    // exclude_hv only: bit 6 of the flags, allowed to unprivileged users with
    // exclude_kernel (bit 5) as well.
    attr[5] = 1 << 5 | 1 << 6;
    let at = &raw const attr as usize;
    // SAFETY: the struct that the kernel reads; owned at once.
    unsafe {
        let fd = crate::raw::call6(
            libc::SYS_perf_event_open,
            at,
            0,
            usize::MAX,
            usize::MAX,
            0,
            0,
        );
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(-fd as i32));
        }
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

fn resolution(clock: libc::clockid_t) -> Option<f64> {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a timespec to write to.
    (unsafe { libc::clock_getres(clock, &mut ts) } == 0)
        .then_some(ts.tv_sec as f64 * 1e9 + ts.tv_nsec as f64)
}

/// Does libc's function get its answer without entering the kernel? Asked in a
/// child that forbids itself the system call: then only a vDSO can answer.
/// `None`: seccomp is not available.
fn without_kernel(what: Vdso) -> Option<bool> {
    #[repr(C)]
    struct Instruction(u16, u8, u8, u32);
    #[repr(C)]
    struct Program(u16, *const Instruction);
    let nr = match what {
        Vdso::Clock(_) => libc::SYS_clock_gettime,
        Vdso::GetTimeOfDay => libc::SYS_gettimeofday,
        Vdso::Time => libc::SYS_time,
    } as u32;
    const EPERM_ERRNO: u32 = 0x0005_0000 | 1;
    let code = [
        // The number; equal to the forbidden one: EPERM, else allow.
        Instruction(0x20, 0, 0, 0),
        Instruction(0x15, 0, 1, nr),
        Instruction(0x06, 0, 0, EPERM_ERRNO),
        Instruction(0x06, 0, 0, 0x7fff_0000),
    ];
    let program = Program(code.len() as u16, code.as_ptr());
    // SAFETY: the child makes system calls only and exits.
    unsafe {
        let pid = libc::fork();
        if pid < 0 {
            return None;
        }
        if pid == 0 {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) != 0
            {
                libc::_exit(2);
            }
            let failed = match what {
                Vdso::Clock(id) => {
                    let mut ts = libc::timespec {
                        tv_sec: 0,
                        tv_nsec: 0,
                    };
                    libc::clock_gettime(id, &mut ts) != 0
                }
                Vdso::GetTimeOfDay => {
                    let mut tv = libc::timeval {
                        tv_sec: 0,
                        tv_usec: 0,
                    };
                    libc::gettimeofday(&mut tv, std::ptr::null_mut()) != 0
                }
                Vdso::Time => libc::time(std::ptr::null_mut()) < 1_000_000,
            };
            libc::_exit(i32::from(failed));
        }
        let mut status = 0;
        libc::waitpid(pid, &mut status, 0);
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => Some(true),
            (true, 1) => Some(false),
            _ => None,
        }
    }
}

fn entries(ns_per_tick: f64) -> Vec<Entry> {
    let entry = |name, read, unit_ns, resolution_ns, global, vdso| Entry {
        name,
        read,
        unit_ns,
        resolution_ns,
        global,
        vdso,
    };
    let tick = Some(ns_per_tick);
    // clock ticks of times(2)
    // SAFETY: no pointers.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    macro_rules! vdso {
        ($name:literal, $id:ident, $global:expr) => {
            entry(
                $name,
                by_clock::<{ libc::$id }> as Read,
                1.0,
                resolution(libc::$id),
                $global,
                Some(Vdso::Clock(libc::$id)),
            )
        };
    }
    macro_rules! by_call {
        ($name:literal, $id:ident) => {
            entry(
                $name,
                by_call::<{ libc::$id }> as Read,
                1.0,
                resolution(libc::$id),
                true,
                None,
            )
        };
    }
    vec![
        entry("rdtsc", counter as Read, ns_per_tick, tick, true, None),
        entry(
            "lfence; rdtsc; lfence",
            clock::counter_fenced,
            ns_per_tick,
            tick,
            true,
            None,
        ),
        entry(
            "rdtscp; lfence",
            clock::counter_ordered,
            ns_per_tick,
            tick,
            true,
            None,
        ),
        vdso!("clock_gettime MONOTONIC", CLOCK_MONOTONIC, true),
        vdso!("clock_gettime MONOTONIC_RAW", CLOCK_MONOTONIC_RAW, true),
        vdso!("clock_gettime REALTIME", CLOCK_REALTIME, true),
        vdso!("clock_gettime BOOTTIME", CLOCK_BOOTTIME, true),
        vdso!("clock_gettime TAI", CLOCK_TAI, true),
        vdso!(
            "clock_gettime MONOTONIC_COARSE",
            CLOCK_MONOTONIC_COARSE,
            true
        ),
        vdso!("clock_gettime REALTIME_COARSE", CLOCK_REALTIME_COARSE, true),
        vdso!(
            "clock_gettime PROCESS_CPUTIME_ID",
            CLOCK_PROCESS_CPUTIME_ID,
            false
        ),
        vdso!(
            "clock_gettime THREAD_CPUTIME_ID",
            CLOCK_THREAD_CPUTIME_ID,
            false
        ),
        entry(
            "gettimeofday",
            get_time_of_day,
            1e3,
            Some(1e3),
            true,
            Some(Vdso::GetTimeOfDay),
        ),
        entry("time", time_seconds, 1e9, Some(1e9), true, Some(Vdso::Time)),
        by_call!("clock_gettime MONOTONIC, system call", CLOCK_MONOTONIC),
        by_call!(
            "clock_gettime MONOTONIC_RAW, system call",
            CLOCK_MONOTONIC_RAW
        ),
        by_call!("clock_gettime REALTIME, system call", CLOCK_REALTIME),
        by_call!("clock_gettime BOOTTIME, system call", CLOCK_BOOTTIME),
        by_call!("clock_gettime TAI, system call", CLOCK_TAI),
        by_call!(
            "clock_gettime MONOTONIC_COARSE, system call",
            CLOCK_MONOTONIC_COARSE
        ),
        by_call!(
            "clock_gettime REALTIME_COARSE, system call",
            CLOCK_REALTIME_COARSE
        ),
        entry(
            "gettimeofday, system call",
            get_time_of_day_call,
            1e3,
            Some(1e3),
            true,
            None,
        ),
        entry("times", times_ticks, 1e9 / hz, Some(1e9 / hz), true, None),
        entry("getrusage", rusage_micros, 1e3, Some(1e3), false, None),
        entry("clock", clock_micros, 1e3, Some(1e3), false, None),
    ]
}

/// Readings in a row: smallest step, cost, steps back.
fn in_a_row(read: Read, unit_ns: f64, patience: Duration, to: &mut Source) {
    const BLOCK: usize = 200;
    const BLOCKS_MIN: usize = 20;
    let begin = Instant::now();
    let (mut smallest, mut changes) = (u64::MAX, 0);
    let mut costs = Vec::new();
    let mut values = vec![0u64; BLOCK];
    loop {
        let from = clock::gettime_ns(libc::CLOCK_MONOTONIC_RAW);
        for v in &mut values {
            *v = read();
        }
        costs.push((clock::gettime_ns(libc::CLOCK_MONOTONIC_RAW) - from) as f64 / BLOCK as f64);
        for pair in values.windows(2) {
            match pair[1].checked_sub(pair[0]) {
                Some(0) => {}
                Some(step) => {
                    changes += 1;
                    smallest = smallest.min(step);
                }
                None => to.backwards += 1,
            }
        }
        to.readings += BLOCK as u64;
        // Coarse clocks change after milliseconds only.
        if costs.len() >= BLOCKS_MIN
            && begin.elapsed() >= patience
            && (changes >= 3 || begin.elapsed() >= 8 * patience)
        {
            break;
        }
    }
    to.step_ns = (changes > 0).then_some(smallest as f64 * unit_ns);
    to.cost_ns = Some(median(&costs));
    let (low, high) = median_interval(&costs);
    (to.cost_low_ns, to.cost_high_ns) = (Some(low), Some(high));
}

/// Two threads on two CPUs hand a reading to each other; each must be at or
/// after the one it answers.
fn across(read: Read, unit_ns: f64, cpus: (usize, usize), time: Duration, to: &mut Source) {
    // The turn in the lowest bit of `turn`; the value beside it.
    static TURN: AtomicU64 = AtomicU64::new(0);
    static VALUE: AtomicU64 = AtomicU64::new(0);
    static OVER: AtomicBool = AtomicBool::new(false);
    TURN.store(0, Ordering::SeqCst);
    VALUE.store(read(), Ordering::SeqCst);
    OVER.store(false, Ordering::SeqCst);
    let side = |mine: u64, cpu: usize| -> (u64, u64, u64) {
        let (mut seen, mut back, mut worst) = (0, 0, 0);
        if pin(cpu).is_err() {
            OVER.store(true, Ordering::Relaxed);
            return (0, 0, 0);
        }
        while !OVER.load(Ordering::Relaxed) {
            // Pairs with the release of the other side's TURN: its VALUE is visible.
            if TURN.load(Ordering::Acquire) != mine {
                std::hint::spin_loop();
                continue;
            }
            let theirs = VALUE.load(Ordering::Relaxed);
            let now = read();
            seen += 1;
            if now < theirs {
                back += 1;
                worst = worst.max(theirs - now);
            }
            VALUE.store(now, Ordering::Relaxed);
            TURN.store(1 - mine, Ordering::Release);
        }
        (seen, back, worst)
    };
    let sides = std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| side(0, cpus.0)),
            scope.spawn(|| side(1, cpus.1)),
        ];
        std::thread::sleep(time);
        OVER.store(true, Ordering::Relaxed);
        threads.map(|t| t.join().expect("does not panic"))
    });
    to.exchanges = sides.iter().map(|s| s.0).sum();
    to.exchanges_backwards = sides.iter().map(|s| s.1).sum();
    to.worst_backwards_ns = sides.iter().map(|s| s.2).max().unwrap_or(0) as f64 * unit_ns;
}

/// What the kernel itself reads time from.
pub fn clock_source() -> String {
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}

/// Looks at every source, and picks.
///
/// # Errors
/// When this thread cannot be pinned.
pub fn survey(cpu: usize, other_cpu: Option<usize>, quick: bool) -> Result<Survey, Error> {
    pin(cpu)?;
    let ns_per_tick = clock::counter_calibrate(Duration::from_millis(if quick { 30 } else { 200 }));
    let patience = Duration::from_millis(if quick { 2 } else { 20 });
    let handing = Duration::from_millis(if quick { 12 } else { 150 });
    let mut sources = Vec::new();
    let measure = |e: &Entry, reached: String| {
        let mut source = Source {
            name: e.name.into(),
            reached,
            resolution_ns: e.resolution_ns,
            ..Source::default()
        };
        in_a_row(e.read, e.unit_ns, patience, &mut source);
        if let (Some(other), true) = (other_cpu, e.global) {
            across(e.read, e.unit_ns, (cpu, other), handing, &mut source);
        }
        source
    };
    for e in entries(ns_per_tick) {
        let reached = match e.vdso.map(without_kernel) {
            None if e.unit_ns == ns_per_tick => "instruction",
            None => "system call",
            Some(Some(true)) => "vDSO",
            Some(Some(false)) => "call (vDSO falls back)",
            Some(None) => "vDSO or call",
        };
        sources.push(measure(&e, reached.into()));
    }
    for (name, kind, config) in [
        ("perf event, task clock", 1, 1),
        ("perf event, cycles", CYCLES.0, CYCLES.1),
    ] {
        match perf_open(kind, config) {
            Ok(fd) => {
                PERF_FD.store(fd.as_raw_fd() as u64, Ordering::Relaxed);
                let entry = Entry {
                    name,
                    read: perf_read,
                    unit_ns: 1.0,
                    resolution_ns: None,
                    global: false,
                    vdso: None,
                };
                let mut source = measure(&entry, "system call (read)".into());
                if (kind, config) == CYCLES {
                    source.step_cycles = source.step_ns.take();
                }
                sources.push(source);
            }
            Err(error) => sources.push(Source {
                name: name.into(),
                reached: "system call (read)".into(),
                missing: Some(format!("perf_event_open: {error}")),
                ..Source::default()
            }),
        }
    }
    let (kind, why) = pick(&sources, clock::counter_invariant(), &clock_source());
    let rate = if kind.counter() { ns_per_tick } else { 1.0 };
    Ok(Survey {
        sources,
        choice: clock::choice(kind, rate),
        why,
        counter_hz: Some(1e9 / ns_per_tick),
        pair: other_cpu.map(|other| (cpu, other)),
        relation: other_cpu.map(|other| relation(cpu, other)),
    })
}

/// What two CPUs share, as the kernel describes it.
pub fn relation(a: usize, b: usize) -> String {
    let read = |cpu: usize, name: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/{name}"))
            .ok()
            .map(|t| t.trim().to_owned())
    };
    let package = |cpu| read(cpu, "topology/physical_package_id");
    let (Some(here), Some(there)) = (package(a), package(b)) else {
        return "how they are related the kernel does not say".into();
    };
    if here != there {
        return "in different sockets".into();
    }
    let same = |name: &str| read(a, name).is_some_and(|x| read(b, name) == Some(x));
    if same("topology/thread_siblings_list") {
        "two hardware threads of one core".into()
    } else if same("cache/index3/shared_cpu_list") {
        "two cores that share a third-level cache".into()
    } else {
        "two cores of one socket that share no third-level cache".into()
    }
}

/// Costs so close are the same: they differ by as much from run to run.
const SAME_COST: f64 = 1.10;

/// What everything can be measured with, the preferred first among equals: the
/// counter's rate is nobody's to bend, MONOTONIC's is a time daemon's.
const CANDIDATES: [(Kind, &str); 5] = [
    (Kind::CounterOrdered, "rdtscp; lfence"),
    (Kind::CounterFenced, "lfence; rdtsc; lfence"),
    (Kind::MonotonicRaw, "clock_gettime MONOTONIC_RAW"),
    (Kind::Monotonic, "clock_gettime MONOTONIC"),
    (Kind::Boottime, "clock_gettime BOOTTIME"),
];

/// The cheapest source that is in order, fine enough, and never goes back; of
/// equally cheap ones the first candidate. `invariant`: the processor promises
/// a constant rate of its counter; `kernel`: what the kernel reads time from.
fn pick(sources: &[Source], invariant: bool, kernel: &str) -> (Kind, String) {
    let find = |name: &str| sources.iter().find(|s| s.name == name);
    let ns = |v: Option<f64>| format!("{:.1} ns", v.unwrap_or(f64::NAN));
    let cost = |s: &Source| s.cost_ns.unwrap_or(f64::MAX);
    let mut rejected = Vec::new();
    let mut good: Vec<(Kind, &Source)> = Vec::new();
    for (kind, name) in CANDIDATES {
        let Some(s) = find(name) else { continue };
        let back = s.backwards + s.exchanges_backwards;
        let why_not = if back > 0 {
            Some(format!("went back {back} times"))
        } else if s.step_ns.is_none_or(|step| step > 200.0) {
            Some("steps of more than 200 ns".into())
        } else if kind.counter() && !invariant {
            Some(
                "the processor does not promise a constant rate (constant_tsc, nonstop_tsc)".into(),
            )
        } else if kind.counter() && kernel != "tsc" {
            Some(format!(
                "the kernel itself does not trust it: its clock source is {kernel}"
            ))
        } else {
            None
        };
        match why_not {
            Some(why) => rejected.push(format!("{name}: {why}")),
            None => good.push((kind, s)),
        }
    }
    let cheapest = good.iter().map(|g| cost(g.1)).fold(f64::MAX, f64::min);
    let equal: Vec<&(Kind, &Source)> = good
        .iter()
        .filter(|g| cost(g.1) <= SAME_COST * cheapest)
        .collect();
    let Some((kind, chosen)) = equal.first().map(|g| (g.0, g.1)) else {
        let why = "no source fulfils all conditions; CLOCK_MONOTONIC is at least never set back";
        return (
            Kind::Monotonic,
            format!("{why}. Not taken: {}", rejected.join("; ")),
        );
    };
    let mut why = format!(
        "it stays in order with the code around it, steps finely ({}) and never went back, neither \
         in {} readings on one CPU nor {}",
        ns(chosen.step_ns),
        debox_output::signed_text(chosen.readings as i64),
        match chosen.exchanges {
            0 => "between CPUs, which could not be tried".into(),
            n => format!("in {} between two", debox_output::signed_text(n as i64)),
        }
    );
    why += &match equal.len() {
        1 => format!(
            "; of {} such sources it is the cheapest ({})",
            good.len(),
            ns(chosen.cost_ns)
        ),
        n => format!(
            "; of {} such sources {n} cost the same within 10 % ({} to {}), and of these it is the one whose \
             rate is least in others' hands",
            good.len(),
            ns(Some(cheapest)),
            ns(equal
                .iter()
                .map(|g| g.1.cost_ns)
                .fold(None, |a, b| match (a, b) {
                    (Some(a), Some(b)) => Some(f64::max(a, b)),
                    (a, b) => a.or(b),
                }))
        ),
    };
    if let Some(plain) = find("rdtsc")
        && kind.counter()
    {
        rejected.insert(
            0,
            format!(
                "rdtsc alone ({}): the processor may move it past the code that is measured",
                ns(plain.cost_ns)
            ),
        );
    }
    if find("clock_gettime REALTIME").is_some_and(|s| cost(s) < SAME_COST * cost(chosen)) {
        rejected.push("REALTIME and TAI: they can be set".into());
    }
    if !rejected.is_empty() {
        why += &format!(". Not taken: {}", rejected.join("; "));
    }
    (kind, why)
}

/// Effective frequency of the processor now, in GHz: a chain of additions,
/// each of which needs the one before it, takes one cycle each. Also where a
/// virtual machine hides the frequency. The best of a few tries.
pub fn frequency_ghz(clock: &Clock) -> f64 {
    const ADDS: u64 = 200_000;
    let tries: Vec<f64> = (0..5)
        .map(|_| {
            let took = clock.time(|| {
                let mut rounds = ADDS / 10;
                // SAFETY: registers only.
                unsafe {
                    core::arch::asm!(
                        "2:",
                        "add {x}, {one}", "add {x}, {one}", "add {x}, {one}", "add {x}, {one}",
                        "add {x}, {one}", "add {x}, {one}", "add {x}, {one}", "add {x}, {one}",
                        "add {x}, {one}", "add {x}, {one}",
                        "dec {n}",
                        "jnz 2b",
                        x = inout(reg) 0u64 => _,
                        one = in(reg) 1u64,
                        n = inout(reg) rounds,
                        options(nomem, nostack),
                    );
                }
                std::hint::black_box(rounds);
            });
            ADDS as f64 / took
        })
        .collect();
    *sorted(tries).last().expect("five tries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_survey_knows_what_the_kernel_says_elsewhere() {
        let s = survey(0, None, true).unwrap();
        let get = |name: &str| s.sources.iter().find(|x| x.name == name).unwrap();
        // Independent: the kernel log and cpuinfo would say the same rate;
        // bogomips is twice the counter's MHz on x86 (calibrated by the kernel).
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let bogomips: f64 = info
            .lines()
            .find_map(|l| {
                l.strip_prefix("bogomips")?
                    .split(':')
                    .nth(1)?
                    .trim()
                    .parse()
                    .ok()
            })
            .unwrap();
        let ratio = s.counter_hz.unwrap() / (bogomips / 2.0 * 1e6);
        assert!((0.98..1.02).contains(&ratio), "{ratio}");
        // A coarse clock steps by whole ticks, whose length clock_getres knows;
        // by more than one where a busy machine let us see few of them.
        let coarse = get("clock_gettime MONOTONIC_COARSE");
        if let Some(step) = coarse.step_ns {
            let ticks = step / coarse.resolution_ns.unwrap();
            assert!(ticks > 0.9 && (ticks - ticks.round()).abs() < 0.1, "{step}");
        }
        // A system call cannot be cheaper than the vDSO's own reading.
        let vdso = get("clock_gettime MONOTONIC");
        if vdso.reached == "vDSO" {
            let call = get("clock_gettime MONOTONIC, system call");
            assert!(call.cost_ns > vdso.cost_ns);
        }
        assert!(
            s.sources
                .iter()
                .all(|x| x.missing.is_some() || x.cost_ns.is_some())
        );
    }

    fn source(name: &str, cost: f64) -> Source {
        Source {
            name: name.into(),
            cost_ns: Some(cost),
            step_ns: Some(20.0),
            readings: 1000,
            exchanges: 500,
            ..Source::default()
        }
    }

    #[test]
    fn the_cheapest_is_picked_and_the_order_decides_among_equals() {
        let mut all = vec![
            source("rdtsc", 10.0),
            source("lfence; rdtsc; lfence", 39.0),
            source("rdtscp; lfence", 40.2),
            source("clock_gettime MONOTONIC", 41.0),
            source("clock_gettime MONOTONIC_RAW", 60.0),
        ];
        let (kind, why) = pick(&all, true, "tsc");
        assert_eq!(kind, Kind::CounterOrdered);
        assert!(!why.contains("the cheapest"), "{why}");
        assert!(why.contains("39.0 ns to 41.0 ns"), "{why}");
        // Clearly cheaper: then it is, and is said to be.
        all[3].cost_ns = Some(25.0);
        let (kind, why) = pick(&all, true, "tsc");
        assert_eq!(kind, Kind::Monotonic);
        assert!(why.contains("the cheapest (25.0 ns)"), "{why}");
    }

    #[test]
    fn what_is_not_to_be_trusted_is_not_picked() {
        let all = || {
            vec![
                source("lfence; rdtsc; lfence", 10.0),
                source("rdtscp; lfence", 10.0),
                source("clock_gettime MONOTONIC_RAW", 30.0),
                source("clock_gettime MONOTONIC", 50.0),
            ]
        };
        for (invariant, kernel, word) in [
            (false, "tsc", "constant rate"),
            (true, "hpet", "clock source is hpet"),
        ] {
            let (kind, why) = pick(&all(), invariant, kernel);
            assert_eq!(kind, Kind::MonotonicRaw);
            assert!(why.contains(word), "{why}");
        }
        let mut back = all();
        back[0].exchanges_backwards = 3;
        back[1].backwards = 1;
        back[2].step_ns = Some(1000.0);
        assert_eq!(pick(&back, true, "tsc").0, Kind::Monotonic);
        back[3].step_ns = None;
        let (kind, why) = pick(&back, true, "tsc");
        assert_eq!(kind, Kind::Monotonic);
        assert!(why.starts_with("no source fulfils"), "{why}");
    }

    #[test]
    fn with_one_cpu_nothing_is_claimed_about_two() {
        let mut one = source("rdtscp; lfence", 10.0);
        one.exchanges = 0;
        let (_, why) = pick(&[one], true, "tsc");
        assert!(why.contains("could not be tried"), "{why}");
    }

    #[test]
    fn the_thread_clock_needs_the_kernel() {
        // Compared with what the kernel's vDSO is documented to have (vdso(7)):
        // no CPU time clocks.
        assert_ne!(
            without_kernel(Vdso::Clock(libc::CLOCK_THREAD_CPUTIME_ID)),
            Some(true)
        );
    }
}
