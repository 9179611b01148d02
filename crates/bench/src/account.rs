// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did the time of an operation go, by DeBox's own account?
//!
//! Made apart from the measuring, so that no number carries DeBox's cost:
//! the same case runs again in a few slices, each timed section in a span
//! (sums), and then once more with each section in a bracket (the places where
//! it slept). Only sections are watched: what a case does before and after
//! them, such as emptying a cache, is nobody's account.

use crate::Error;
use crate::clock::Clock;
use crate::sampling::Case;
use crate::section::{Sections, Watching, sections};
use debox::{Options, Session, Site, Status};
use serde::{Deserialize, Serialize};
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
    /// The parts of the run that the sums above are made of.
    #[serde(default)]
    pub slices: Vec<Slice>,
}

/// One part of an account's run; per operation.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Slice {
    pub wall_ns: f64,
    pub cpu_ns: f64,
    pub blocked_ns: f64,
    pub runq_ns: f64,
}

impl Account {
    /// Lowest and highest of the slices.
    pub fn range(&self, of: impl Fn(&Slice) -> f64) -> Option<(f64, f64)> {
        let values = crate::stat::sorted(self.slices.iter().map(of));
        Some((*values.first()?, *values.last()?))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct SleepAt {
    pub label: String,
    pub place: String,
    /// Per operation.
    pub count: f64,
    pub blocked_ns: f64,
}

/// Recording in this process.
pub struct Accountant {
    session: Session,
    /// What an empty section is on the CPU.
    empty_ns: f64,
}

const WATCHED: Duration = Duration::from_millis(6);
/// The run is made in so many parts, whose spread says what their sums are worth.
const SLICES: u64 = 5;
/// Passes over a file take long: as few of them as still have a spread.
const SLICES_MIN: u64 = 3;

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
                let ((), s) = sections(Watching::Sums, || {
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
        // What is only done in whole passes: some of them.
        let (n, slices) = if case.fixed {
            (case.most, (want / case.most).clamp(SLICES_MIN, SLICES))
        } else {
            let n = (want / SLICES).clamp(1, 100_000).max(batch.min(4));
            (n.min(case.most), SLICES)
        };
        let prepare = |case: &mut Case| case.before.as_mut().map_or(Ok(()), |before| before());
        prepare(case)?;
        // New places get their names while nobody counts.
        (case.batch)(n.min(8))?;
        let mut account = Account::default();
        let mut sum = Sections::default();
        for _ in 0..slices {
            prepare(case)?;
            let (done, s) = sections(Watching::Sums, || (case.batch)(n));
            done?;
            let own = self.empty_ns * s.count as f64;
            let per = |v: f64| v.max(0.0) / n as f64;
            account.slices.push(Slice {
                wall_ns: per(s.wall_ns - own),
                cpu_ns: per(s.cpu_ns - own),
                blocked_ns: per(s.blocked_ns),
                runq_ns: per(s.runq_ns),
            });
            sum.unknown |= s.unknown || s.count == 0;
            sum.minor += s.minor;
            sum.major += s.major;
            sum.voluntary += s.voluntary;
            sum.involuntary += s.involuntary;
        }
        if sum.unknown {
            account.slices.clear();
        }
        let mean = |of: fn(&Slice) -> f64| {
            let values: Vec<f64> = account.slices.iter().map(of).collect();
            (!values.is_empty()).then(|| crate::stat::mean(&values))
        };
        let each = |v: i64| v as f64 / (n * slices) as f64;
        let mut account = Account {
            operations: n * slices,
            wall_ns: mean(|s| s.wall_ns),
            cpu_ns: mean(|s| s.cpu_ns),
            blocked_ns: mean(|s| s.blocked_ns),
            runq_ns: mean(|s| s.runq_ns),
            minor_faults: each(sum.minor),
            major_faults: each(sum.major),
            voluntary_switches: each(sum.voluntary),
            involuntary_switches: each(sum.involuntary),
            sleeps: Vec::new(),
            slices: account.slices,
        };
        if account.blocked_ns.is_some_and(|b| b > 0.0) {
            account.sleeps = self.sleeps(case, n, if case.fixed { 2 } else { slices })?;
        }
        Ok(account)
    }

    /// Where `rounds` batches of `n` sleep.
    fn sleeps(&self, case: &mut Case, n: u64, rounds: u64) -> Result<Vec<SleepAt>, Error> {
        let mut found: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        for _ in 0..rounds {
            if let Some(before) = &mut case.before {
                before()?;
            }
            let (done, s) = sections(Watching::Places, || (case.batch)(n));
            done?;
            for (site, (count, ns)) in s.sleeps {
                let mut text = Site::read(site);
                for _ in 0..50 {
                    if text.is_ok() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    text = Site::read(site);
                }
                let name = match text {
                    Ok(site) => {
                        let place = match site.source {
                            Some((file, line)) => format!("{} {file}:{line}", site.function),
                            None => format!("{}+{:#x}", site.function, site.offset),
                        };
                        (site.label, place)
                    }
                    Err(_) => (format!("site {site}"), String::new()),
                };
                let entry = found.entry(name).or_default();
                entry.0 += count;
                entry.1 += ns;
            }
        }
        let operations = (n * rounds) as f64;
        let mut sleeps: Vec<SleepAt> = found
            .into_iter()
            .map(|((label, place), (count, ns))| SleepAt {
                label,
                place,
                count: count as f64 / operations,
                blocked_ns: ns as f64 / operations,
            })
            .collect();
        sleeps.sort_by(|a, b| b.blocked_ns.total_cmp(&a.blocked_ns));
        sleeps.truncate(4);
        Ok(sleeps)
    }
}
