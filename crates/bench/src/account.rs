// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did the time of an operation go, by DeBox's own account?
//!
//! Made apart from the measuring, so that no number carries DeBox's cost:
//! the same case runs again, each timed section in a span (sums), and then
//! some operations in a bracket each (the places where they slept).

use crate::Error;
use crate::clock::Clock;
use crate::sampling::Case;
use debox::{Options, Session, Span, Status};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Per operation, of the measured thread only. `None`: not measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Account {
    pub operations: u64,
    pub wall_ns: Option<f64>,
    pub cpu_ns: Option<f64>,
    pub blocked_ns: Option<f64>,
    pub runq_ns: Option<f64>,
    /// Page faults, from getrusage around the same span (spans count those of
    /// kernel mode, and major ones).
    pub minor_faults: f64,
    pub major_faults: f64,
    pub voluntary_switches: f64,
    pub involuntary_switches: f64,
    /// Where it slept, largest first.
    pub sleeps: Vec<SleepAt>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct SleepAt {
    pub label: String,
    pub place: String,
    /// Per operation.
    pub count: f64,
    pub blocked_ns: f64,
}

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
struct Sections {
    open: Option<(Span, libc::rusage)>,
    count: u64,
    wall_ns: f64,
    cpu_ns: f64,
    blocked_ns: f64,
    runq_ns: f64,
    /// A part that some section's record did not have is not known at all.
    unknown: bool,
    minor: i64,
    major: i64,
    voluntary: i64,
    involuntary: i64,
}

thread_local! {
    static SECTIONS: RefCell<Sections> = RefCell::default();
    /// Apart from the rest, so that an unwatched section only looks at one byte.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// A timed section begins; whether it is watched.
#[inline(always)]
pub fn section_begin() -> bool {
    let watched = WATCHING.get();
    if watched {
        section_open();
    }
    watched
}

#[cold]
fn section_open() {
    SECTIONS.with(|s| {
        let mut s = s.borrow_mut();
        let before = usage();
        match Span::begin() {
            Ok(span) => s.open = Some((span, before)),
            Err(_) => s.unknown = true,
        }
    });
}

/// The section that began last is over.
#[cold]
pub fn section_end() {
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
fn sections<T>(f: impl FnOnce() -> T) -> (T, Sections) {
    SECTIONS.with(|s| *s.borrow_mut() = Sections::default());
    WATCHING.set(true);
    let value = f();
    WATCHING.set(false);
    (value, SECTIONS.with(std::cell::RefCell::take))
}

/// Recording in this process.
pub struct Accountant {
    session: Session,
    /// What an empty section is on the CPU.
    empty_ns: f64,
}

const WATCHED: Duration = Duration::from_millis(6);
const BRACKETS: usize = 24;

impl Accountant {
    /// # Errors
    /// [`Error::Unavailable`] with libdebox's own words when sleeps cannot be
    /// measured.
    pub fn open(socket: &Path, clock: &Clock) -> Result<Self, Error> {
        let session = Options::new()
            .socket_path(socket)
            .open()
            .map_err(|e| Error::Unavailable(e.to_string()))?;
        if session.status() != Status::Measured {
            return Err(Error::Unavailable(session.why()));
        }
        let mut empty: Vec<f64> = (0..200)
            .map(|_| {
                let ((), s) = sections(|| {
                    clock.time(|| ());
                });
                s.cpu_ns
            })
            .collect();
        empty.sort_by(f64::total_cmp);
        Ok(Self {
            session,
            empty_ns: empty[empty.len() / 2],
        })
    }

    pub fn close(self) {
        self.session.close();
    }

    /// The account of one case. `batch`: operations that its measuring made at once.
    pub fn account(&self, case: &mut Case, batch: u64, mean_ns: f64) -> Result<Account, Error> {
        let want = (WATCHED.as_nanos() as f64 / mean_ns.max(1.0)) as u64;
        // A few passes of what is only done in whole passes.
        let (n, times) = if case.fixed {
            (case.most, (want / case.most).clamp(1, 4))
        } else {
            (want.clamp(1, 100_000).max(batch.min(4)).min(case.most), 1)
        };
        if let Some(before) = &mut case.before {
            before()?;
        }
        // New places get their names while nobody counts.
        (case.batch)(n.min(8))?;
        if let Some(before) = &mut case.before {
            before()?;
        }
        let (done, s) = sections(|| (0..times).try_for_each(|_| (case.batch)(n).map(|_| ())));
        done?;
        let operations = n * times;
        let per = |v: f64| (!s.unknown && s.count > 0).then(|| v / operations as f64);
        let own = self.empty_ns * s.count as f64;
        let each = |v: i64| v as f64 / operations as f64;
        let mut account = Account {
            operations,
            wall_ns: per((s.wall_ns - own).max(0.0)),
            cpu_ns: per((s.cpu_ns - own).max(0.0)),
            blocked_ns: per(s.blocked_ns),
            runq_ns: per(s.runq_ns),
            minor_faults: each(s.minor),
            major_faults: each(s.major),
            voluntary_switches: each(s.voluntary),
            involuntary_switches: each(s.involuntary),
            sleeps: Vec::new(),
        };
        if s.blocked_ns > 0.0 {
            account.sleeps = self.sleeps(case)?;
        }
        Ok(account)
    }

    fn sleeps(&self, case: &mut Case) -> Result<Vec<SleepAt>, Error> {
        let mut found: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        let mut operations = 0u64;
        let rounds = if case.one_by_one { BRACKETS } else { 2 };
        let n = match (case.one_by_one, case.fixed) {
            (true, _) => 1,
            (_, true) => case.most,
            _ => case.most.min(64),
        };
        for _ in 0..rounds {
            if let Some(before) = &mut case.before {
                before()?;
            }
            let batch = &mut case.batch;
            let (result, record) = debox::call_raw(-1, || batch(n), |_| 0);
            result?;
            operations += n;
            for sleep in record.sleeps().into_iter().flatten() {
                let mut text = sleep.text();
                for _ in 0..50 {
                    if text.is_ok() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    text = sleep.text();
                }
                let (label, place) = match text {
                    Ok(site) => {
                        let place = match site.source {
                            Some((file, line)) => format!("{} {file}:{line}", site.function),
                            None => format!("{}+{:#x}", site.function, site.offset),
                        };
                        (site.label, place)
                    }
                    Err(_) => (format!("site {}", sleep.site()), String::new()),
                };
                let entry = found.entry((label, place)).or_default();
                entry.0 += u64::from(sleep.count());
                entry.1 += sleep.total().as_nanos() as u64;
            }
        }
        let mut sleeps: Vec<SleepAt> = found
            .into_iter()
            .map(|((label, place), (count, ns))| SleepAt {
                label,
                place,
                count: count as f64 / operations as f64,
                blocked_ns: ns as f64 / operations as f64,
            })
            .collect();
        sleeps.sort_by(|a, b| b.blocked_ns.total_cmp(&a.blocked_ns));
        sleeps.truncate(4);
        Ok(sleeps)
    }
}
