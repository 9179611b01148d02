// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long is a tick of the time stamp counter, and which time is it by it?

use crate::Error;
use std::arch::x86_64::_rdtsc;
use std::fs::File;
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Against the system's clock, whose reading takes some tens of nanoseconds: right to some
/// millionths of what is measured.
const MEASURED_FOR: Duration = Duration::from_millis(4);
/// What is told of a processor, at most.
const CPU_BYTES: u64 = 8192;
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Since when it is measured.
static BEGUN: Mutex<Option<(u64, u64)>> = Mutex::new(None);

/// Ticks, and CLOCK_MONOTONIC: the two that were read within the shortest time, of a few.
fn both() -> (u64, u64) {
    let one = || {
        let before = monotonic_ns();
        let ticks = ticks();
        (monotonic_ns() - before, ticks, before)
    };
    let (took, ticks, before) = (0..8)
        .map(|_| one())
        .min_by_key(|(took, ..)| *took)
        .unwrap_or_else(one);
    (ticks, before + took / 2)
}

/// The time stamp counter.
pub fn ticks() -> u64 {
    // SAFETY: every processor of this kind has it.
    unsafe { _rdtsc() }
}

/// Nanoseconds of so many; `rate` as of [`rate`].
pub fn ns(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> 32) as u64
}

/// [`rate`] waits for what is left of the time that it measures for from here on, which others may use.
pub fn rate_begin() {
    *BEGUN.lock().unwrap_or_else(|e| e.into_inner()) = Some(both());
}

/// Nanoseconds of a tick, 32 bits after the point. Measured anew after a minute, since the system's clock may be
/// steered meanwhile.
///
/// # Errors
/// Where it is not the same on all processors and at all times.
pub fn rate() -> Result<u64, Error> {
    static RATE: Mutex<Option<(u64, Instant)>> = Mutex::new(None);
    let mut known = RATE.lock().unwrap_or_else(|e| e.into_inner());
    match *known {
        Some((rate, then)) if then.elapsed() < KNOWN_FOR => Ok(rate),
        _ => {
            let rate = measured()?;
            *known = Some((rate, Instant::now()));
            Ok(rate)
        }
    }
}

/// Whether ticks tell time on this machine.
///
/// # Errors
/// Where the counter is not the same on all processors and at all times.
pub fn ticks_check() -> Result<(), Error> {
    // Of the first processor: there may be hundreds.
    let mut about = Vec::new();
    let read =
        File::open("/proc/cpuinfo").and_then(|file| file.take(CPU_BYTES).read_to_end(&mut about));
    let about = String::from_utf8_lossy(if read.is_ok() { &about } else { &[] });
    let flags = about
        .lines()
        .find(|line| line.starts_with("flags"))
        .unwrap_or_default();
    let steady = ["constant_tsc", "nonstop_tsc"];
    if !steady
        .iter()
        .all(|flag| flags.split_ascii_whitespace().any(|is| is == *flag))
    {
        return Err(Error::Run(
            "this processor's time stamp counter does not count time (constant_tsc, nonstop_tsc in /proc/cpuinfo)".into(),
        ));
    }
    Ok(())
}

fn measured() -> Result<u64, Error> {
    ticks_check()?;
    let begun = BEGUN.lock().unwrap_or_else(|e| e.into_inner()).take();
    let (first, begin) = begun.unwrap_or_else(both);
    let gone = Duration::from_nanos(monotonic_ns().saturating_sub(begin));
    std::thread::sleep(MEASURED_FOR.saturating_sub(gone));
    let (last, end) = both();
    let ticks = last.checked_sub(first).filter(|ticks| *ticks > 0);
    let ticks = ticks.ok_or_else(|| Error::Run("the time stamp counter runs backwards".into()))?;
    let ns = u128::from(end - begin);
    Ok(u64::try_from((ns << 32) / u128::from(ticks)).unwrap_or(u64::MAX))
}

/// What has to be added to ticks × `rate` (as of [`rate`]) for CLOCK_MONOTONIC, as of now.
pub fn offset_ns(rate: u64) -> i64 {
    let (ticks, now_ns) = both();
    now_ns.wrapping_sub(ns(ticks, rate)) as i64
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid place; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
