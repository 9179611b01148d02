// SPDX-License-Identifier: MIT OR Apache-2.0
//! With what can time be measured here, how finely, and at what cost?

use crate::Error;
use crate::clock::{self, Choice, Clock, Kind};
use crate::raw::call3;
use crate::sampling::pin;
use crate::stat::{median, sorted};
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
    /// One reading.
    pub cost_ns: Option<f64>,
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

fn counter_fenced() -> u64 {
    // SAFETY: as above.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        let t = core::arch::x86_64::_rdtsc();
        core::arch::x86_64::_mm_lfence();
        t
    }
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
        .then(|| ts.tv_sec as f64 * 1e9 + ts.tv_nsec as f64)
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
    vec![
        entry("rdtsc", counter as Read, ns_per_tick, tick, true, None),
        entry(
            "lfence; rdtsc; lfence",
            counter_fenced,
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
        entry(
            "clock_gettime MONOTONIC, system call",
            by_call::<{ libc::CLOCK_MONOTONIC }>,
            1.0,
            resolution(libc::CLOCK_MONOTONIC),
            true,
            None,
        ),
        entry(
            "clock_gettime REALTIME, system call",
            by_call::<{ libc::CLOCK_REALTIME }>,
            1.0,
            resolution(libc::CLOCK_REALTIME),
            true,
            None,
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
    const BLOCK: usize = 1000;
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
        if begin.elapsed() >= patience && (changes >= 3 || begin.elapsed() >= 8 * patience) {
            break;
        }
    }
    to.step_ns = (changes > 0).then_some(smallest as f64 * unit_ns);
    to.cost_ns = Some(median(&costs));
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
        ("perf event, cycles", 0, 0),
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
                sources.push(measure(&entry, "system call (read)".into()));
            }
            Err(error) => sources.push(Source {
                name: name.into(),
                reached: "system call (read)".into(),
                missing: Some(format!("perf_event_open: {error}")),
                ..Source::default()
            }),
        }
    }
    let (choice, why) = pick(&sources, ns_per_tick);
    Ok(Survey {
        sources,
        choice,
        why,
        counter_hz: Some(1e9 / ns_per_tick),
    })
}

/// The cheapest source that is in order, fine enough, and never goes back.
fn pick(sources: &[Source], ns_per_tick: f64) -> (Choice, String) {
    let find = |name: &str| sources.iter().find(|s| s.name == name);
    let kernel = clock_source();
    let mut rejected = Vec::new();
    let mut good: Vec<(Kind, &Source)> = Vec::new();
    for (kind, name) in [
        (Kind::CounterOrdered, "rdtscp; lfence"),
        (Kind::Monotonic, "clock_gettime MONOTONIC"),
        (Kind::MonotonicRaw, "clock_gettime MONOTONIC_RAW"),
    ] {
        let Some(s) = find(name) else { continue };
        let why_not = if s.backwards > 0 || s.exchanges_backwards > 0 {
            Some(format!(
                "went back {} times",
                s.backwards + s.exchanges_backwards
            ))
        } else if s.step_ns.is_none_or(|step| step > 200.0) {
            Some("steps of more than 200 ns".into())
        } else if kind == Kind::CounterOrdered && !clock::counter_invariant() {
            Some(
                "the processor does not promise a constant rate (constant_tsc, nonstop_tsc)".into(),
            )
        } else if kind == Kind::CounterOrdered && kernel != "tsc" {
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
    good.sort_by(|a, b| {
        a.1.cost_ns
            .unwrap_or(f64::MAX)
            .total_cmp(&b.1.cost_ns.unwrap_or(f64::MAX))
    });
    let kind = good.first().map_or(Kind::Monotonic, |g| g.0);
    let rate = if kind == Kind::CounterOrdered {
        ns_per_tick
    } else {
        1.0
    };
    let choice = clock::choice(kind, rate);
    let mut why = match good.first() {
        Some((_, s)) => format!(
            "the cheapest ({:.1} ns) of those that stay in order with the code around them, step finely \
             ({:.1} ns) and never went back, neither on one CPU ({} readings) nor between two ({} exchanges)",
            s.cost_ns.unwrap_or(f64::NAN),
            s.step_ns.unwrap_or(f64::NAN),
            crate::titles::with_commas(s.readings as i64),
            crate::titles::with_commas(s.exchanges as i64)
        ),
        None => {
            "no source fulfils all conditions; CLOCK_MONOTONIC is at least never set back".into()
        }
    };
    if let Some(plain) = find("rdtsc")
        && kind == Kind::CounterOrdered
    {
        why += &format!(
            "; rdtsc alone ({:.1} ns) may be moved by the processor past the code that is measured",
            plain.cost_ns.unwrap_or(f64::NAN)
        );
    }
    if !rejected.is_empty() {
        why += &format!(". Not taken: {}", rejected.join("; "));
    }
    (choice, why)
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
        // A coarse clock steps by a tick: 1, 3.3, 4 or 10 ms.
        let coarse = get("clock_gettime MONOTONIC_COARSE");
        if let Some(step) = coarse.step_ns {
            assert!((0.9e6..1.2e7).contains(&step), "{step}");
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
