// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is the time between a case's two stamps watched?
//!
//! [`crate::clock::Clock::time`] calls at both ends; while nobody makes an account
//! ([`crate::account`]) that is a look at one byte.

use debox::Span;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

fn usage() -> libc::rusage {
    // SAFETY: an all-zero rusage is valid, and getrusage fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    }
}

/// What watched sections sum up to.
#[derive(Default)]
pub(crate) struct Sections {
    open: Option<(Span, libc::rusage)>,
    pub(crate) count: u64,
    pub(crate) wall_ns: f64,
    pub(crate) cpu_ns: f64,
    pub(crate) blocked_ns: f64,
    pub(crate) runq_ns: f64,
    /// A part that some section's record did not have is not known at all.
    pub(crate) unknown: bool,
    pub(crate) minor: i64,
    pub(crate) major: i64,
    pub(crate) voluntary: i64,
    pub(crate) involuntary: i64,
    /// By site: how often it slept there, and for how many ns.
    pub(crate) sleeps: BTreeMap<u32, (u64, u64)>,
}

/// How sections are watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watching {
    Not,
    Sums,
    Places,
}

thread_local! {
    static SECTIONS: RefCell<Sections> = RefCell::default();
    /// Apart from the rest, so that an unwatched section only looks at one byte.
    static WATCHING: Cell<Watching> = const { Cell::new(Watching::Not) };
}

unsafe extern "C" {
    fn debox_bench_section_begin();
    fn debox_bench_section_end();
}

/// A timed section begins; whether it is watched.
#[inline(always)]
pub fn section_begin() -> bool {
    let watched = WATCHING.get() != Watching::Not;
    if watched {
        section_open();
    }
    watched
}

#[cold]
fn section_open() {
    if WATCHING.get() == Watching::Places {
        // SAFETY: ended in section_end; sections do not nest.
        unsafe { debox_bench_section_begin() };
        return;
    }
    SECTIONS.with(|s| {
        let mut s = s.borrow_mut();
        let before = usage();
        match Span::begin() {
            Ok(span) => s.open = Some((span, before)),
            Err(_) => s.unknown = true,
        }
    });
}

/// The bracket around the section that began last is over.
fn places_end() {
    // SAFETY: begun in section_open.
    unsafe { debox_bench_section_end() };
    let Ok(record) = debox::last() else { return };
    SECTIONS.with(|s| {
        let mut s = s.borrow_mut();
        for sleep in record.sleeps().into_iter().flatten() {
            let entry = s.sleeps.entry(sleep.site()).or_default();
            entry.0 += u64::from(sleep.count());
            entry.1 += sleep.total().as_nanos() as u64;
        }
    });
}

/// The section that began last is over.
#[cold]
pub fn section_end() {
    if WATCHING.get() == Watching::Places {
        return places_end();
    }
    SECTIONS.with(|s| {
        let mut s = s.borrow_mut();
        let Some((span, before)) = s.open.take() else {
            return;
        };
        let record = span.end();
        let after = usage();
        let parts = record.ok().and_then(|r| {
            let ns = |d: Option<Duration>| d.map(|d| d.as_nanos() as f64);
            Some((ns(r.wall())?, ns(r.cpu())?, ns(r.blocked())?, ns(r.runq())?))
        });
        let Some((wall, cpu, blocked, runq)) = parts else {
            s.unknown = true;
            return;
        };
        s.count += 1;
        s.wall_ns += wall;
        s.cpu_ns += cpu;
        s.blocked_ns += blocked;
        s.runq_ns += runq;
        s.minor += after.ru_minflt - before.ru_minflt;
        s.major += after.ru_majflt - before.ru_majflt;
        s.voluntary += after.ru_nvcsw - before.ru_nvcsw;
        s.involuntary += after.ru_nivcsw - before.ru_nivcsw;
    });
}

/// Watches the sections of `f`.
pub(crate) fn sections<T>(how: Watching, f: impl FnOnce() -> T) -> (T, Sections) {
    SECTIONS.with(|s| *s.borrow_mut() = Sections::default());
    WATCHING.set(how);
    let value = f();
    WATCHING.set(Watching::Not);
    (value, SECTIONS.with(std::cell::RefCell::take))
}
