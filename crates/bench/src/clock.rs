// SPDX-License-Identifier: MIT OR Apache-2.0
//! With which clock is everything measured?
//!
//! Suite 1 looks at every time source and picks one (`os::clocks`); this file
//! is the chosen one in use: a reading costs nothing but the reading, and the
//! cost of a pair of readings is known and taken off.

use serde::{Deserialize, Serialize};

/// The clock that was picked, and what must be known to use it in another process.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Choice {
    pub kind: Kind,
    /// Nanoseconds a tick: 1 for clock_gettime.
    pub ns_per_tick: f64,
    /// What an empty interval reads, in ns: taken off every interval.
    pub empty_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The time-stamp counter, in order: rdtscp, then lfence.
    CounterOrdered,
    /// clock_gettime(CLOCK_MONOTONIC_RAW) of the vDSO.
    MonotonicRaw,
    /// clock_gettime(CLOCK_MONOTONIC) of the vDSO.
    Monotonic,
    /// The time-stamp counter between two fences.
    CounterFenced,
    /// clock_gettime(CLOCK_BOOTTIME) of the vDSO.
    Boottime,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::CounterOrdered => "time-stamp counter, in order (rdtscp; lfence)",
            Self::MonotonicRaw => "clock_gettime(CLOCK_MONOTONIC_RAW)",
            Self::Monotonic => "clock_gettime(CLOCK_MONOTONIC)",
            Self::CounterFenced => "time-stamp counter, in order (lfence; rdtsc; lfence)",
            Self::Boottime => "clock_gettime(CLOCK_BOOTTIME)",
        }
    }

    /// Read without the kernel, in ticks of its own.
    pub fn counter(self) -> bool {
        matches!(self, Self::CounterOrdered | Self::CounterFenced)
    }
}

/// rdtscp waits for earlier instructions, the fence keeps later ones behind.
#[inline(always)]
pub fn counter_ordered() -> u64 {
    let mut aux = 0;
    // SAFETY: both instructions are part of x86-64 as far as Linux runs there;
    // rdtscp of every processor of the last 15 years.
    unsafe {
        let ticks = core::arch::x86_64::__rdtscp(&mut aux);
        core::arch::x86_64::_mm_lfence();
        ticks
    }
}

/// The fences keep everything before and after where it is.
#[inline(always)]
pub fn counter_fenced() -> u64 {
    // SAFETY: as above; rdtsc exists on every x86-64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        let ticks = core::arch::x86_64::_rdtsc();
        core::arch::x86_64::_mm_lfence();
        ticks
    }
}

#[inline(always)]
pub fn gettime_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a timespec to write to; the clock ids in use always exist.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// A clock in use. Copies are cheap.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    kind: Kind,
    ns_per_tick: f64,
    empty_ns: f64,
}

impl Clock {
    pub fn new(choice: &Choice) -> Self {
        Self {
            kind: choice.kind,
            ns_per_tick: choice.ns_per_tick,
            empty_ns: choice.empty_ns,
        }
    }

    #[inline(always)]
    pub fn now(&self) -> u64 {
        match self.kind {
            Kind::CounterOrdered => counter_ordered(),
            Kind::MonotonicRaw => gettime_ns(libc::CLOCK_MONOTONIC_RAW),
            Kind::Monotonic => gettime_ns(libc::CLOCK_MONOTONIC),
            Kind::CounterFenced => counter_fenced(),
            Kind::Boottime => gettime_ns(libc::CLOCK_BOOTTIME),
        }
    }

    /// Nanoseconds between two readings, less what the readings take.
    #[inline(always)]
    pub fn between(&self, from: u64, to: u64) -> f64 {
        to.wrapping_sub(from) as i64 as f64 * self.ns_per_tick - self.empty_ns
    }

    /// Times `f`: a section. While DeBox watches, its account is made of
    /// sections, so that it is of the same code as the time; the two marks
    /// are outside of the interval.
    #[inline(always)]
    pub fn time(&self, f: impl FnOnce()) -> f64 {
        let watched = crate::section::section_begin();
        let from = self.now();
        f();
        let to = self.now();
        if watched {
            crate::section::section_end();
        }
        self.between(from, to)
    }

    /// What an empty interval reads, in ns: the median of many, the warm case.
    fn empty_measure(&self) -> f64 {
        let mut seen: Vec<f64> = (0..4096)
            .map(|_| {
                let from = self.now();
                let to = self.now();
                // The counters of two CPUs may be some ticks apart.
                to.wrapping_sub(from) as i64 as f64 * self.ns_per_tick
            })
            .collect();
        seen.sort_by(f64::total_cmp);
        seen[seen.len() / 2]
    }
}

/// Nanoseconds a tick of the counter, against CLOCK_MONOTONIC_RAW (which no
/// time daemon bends). Each end is the pair of readings with the narrowest
/// gap of many, so that an interruption between the two does not count.
pub fn counter_calibrate(over: std::time::Duration) -> f64 {
    let pair = || {
        (0..64)
            .map(|_| {
                let a = counter_ordered();
                let ns = gettime_ns(libc::CLOCK_MONOTONIC_RAW);
                let b = counter_ordered();
                (b - a, a + (b - a) / 2, ns)
            })
            .min()
            .expect("64 tries")
    };
    let (_, tick0, ns0) = pair();
    std::thread::sleep(over);
    let (_, tick1, ns1) = pair();
    (ns1 - ns0) as f64 / (tick1 - tick0) as f64
}

/// The choice for one kind, with its own overhead measured.
pub fn choice(kind: Kind, ns_per_tick: f64) -> Choice {
    let clock = Clock {
        kind,
        ns_per_tick,
        empty_ns: 0.0,
    };
    Choice {
        kind,
        ns_per_tick,
        empty_ns: clock.empty_measure(),
    }
}

/// Whether the processor promises a counter of constant rate that never stops.
pub fn counter_invariant() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or("");
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    has("constant_tsc") && has("nonstop_tsc") && has("rdtscp")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_counter_agrees_with_the_kernels_clock() {
        let rate = counter_calibrate(Duration::from_millis(20));
        let clock = Clock::new(&choice(Kind::CounterOrdered, rate));
        // Both ends taken close together; the shortest of a few tries, since
        // another process may run between the readings.
        let off = (0..10)
            .map(|_| {
                let (t, ns) = (clock.now(), gettime_ns(libc::CLOCK_MONOTONIC_RAW));
                std::thread::sleep(Duration::from_millis(10));
                let (t2, ns2) = (clock.now(), gettime_ns(libc::CLOCK_MONOTONIC_RAW));
                (clock.between(t, t2) / (ns2 - ns) as f64 - 1.0).abs()
            })
            .fold(f64::MAX, f64::min);
        assert!(off < 0.001, "off by {off}");
    }

    #[test]
    fn an_empty_interval_is_about_nothing() {
        for kind in [
            Kind::CounterOrdered,
            Kind::CounterFenced,
            Kind::MonotonicRaw,
            Kind::Monotonic,
            Kind::Boottime,
        ] {
            let rate = if kind.counter() {
                counter_calibrate(Duration::from_millis(5))
            } else {
                1.0
            };
            let clock = Clock::new(&choice(kind, rate));
            let mut seen: Vec<f64> = (0..1001).map(|_| clock.time(|| ())).collect();
            seen.sort_by(f64::total_cmp);
            // Reading a clock that is no counter may take a microsecond.
            let bound = clock.empty_ns.max(20.0);
            assert!(seen[500].abs() < bound, "{kind:?}: {}", seen[500]);
        }
    }
}
