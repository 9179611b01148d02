// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does watching cost, and what is left out when that is more than was said?
//!
//! The kernel takes the run time of BPF programs for whoever asks, at a cost at each run: it is
//! asked for a moment now and then. Programs and maps are those of this process, which has them if
//! the broker is its own; of another broker nothing is known but what the agent itself takes.
//!
//! What is over twice goes down a step, and up again when it has been below half of the budget for a
//! while. A step up that did not last makes the while twice as long.

use crate::config::BudgetConfig;
use debox_cli::capture::family_of;
use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// So long the kernel takes the run time of programs.
const WINDOW: Duration = Duration::from_millis(250);
/// Looks in a row.
const OVER: u32 = 2;
const WELL: u32 = 6;
const WELL_MOST: u32 = 360;

const BPF_ENABLE_STATS: libc::c_long = 32;
const BPF_STATS_RUN_TIME: u32 = 0;

/// What is done, from the least to all that the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Nothing,
    Seldom,
    Sleeps,
    NoConditions,
    Full,
}

impl Level {
    fn text(self) -> &'static str {
        match self {
            Level::Nothing => "nothing is watched",
            Level::Seldom => "by sleeps, with periods and readings that are longer",
            Level::Sleeps => "by sleeps, without the ends of calls",
            Level::NoConditions => "conditions are not looked at",
            Level::Full => "all that the file says",
        }
    }
}

/// What there is to leave out.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    pub conditions: bool,
    pub boundary: bool,
}

impl Steps {
    /// From the least on, those that differ.
    fn levels(self) -> impl DoubleEndedIterator<Item = Level> {
        let all = [
            Some(Level::Nothing),
            Some(Level::Seldom),
            self.boundary.then_some(Level::Sleeps),
            self.conditions.then_some(Level::NoConditions),
            Some(Level::Full),
        ];
        all.into_iter().flatten()
    }

    fn down(self, from: Level) -> Level {
        let mut lower = self.levels().rev().filter(|level| *level < from);
        lower.next().unwrap_or(Level::Nothing)
    }

    fn up(self, from: Level) -> Level {
        let mut higher = self.levels().filter(|level| *level > from);
        higher.next().unwrap_or(Level::Full)
    }
}

/// What was used since the look before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// Of one CPU, by the agent and what it started.
    pub agent: f64,
    /// By DeBox's programs in the kernel; None: it could not be measured.
    pub programs: Option<f64>,
    /// Of the agent and what it started.
    pub agent_bytes: u64,
    /// Of maps in the kernel.
    pub tables_bytes: u64,
    pub events_per_s: f64,
}

impl Used {
    fn memory(&self) -> u64 {
        self.agent_bytes + self.tables_bytes
    }

    fn cpu(&self) -> f64 {
        self.agent + self.programs.unwrap_or(0.0)
    }

    /// How much of each budget that is.
    fn shares(&self, config: &BudgetConfig) -> Vec<(&'static str, f64)> {
        let cpu = config.cpu.map(|most| ("cpu", self.cpu() / most));
        let memory =
            (config.memory_bytes).map(|most| ("memory", self.memory() as f64 / most as f64));
        let events = (config.events_per_s).map(|most| ("events", self.events_per_s / most as f64));
        [cpu, memory, events].into_iter().flatten().collect()
    }
}

/// When is a step taken, and which?
struct Ladder {
    level: Level,
    /// Looks in a row that were over, and below half.
    over: u32,
    well: u32,
    /// So many below half make a step up.
    patience: u32,
    /// Looks since the last step up.
    since_up: u32,
}

impl Ladder {
    const fn new() -> Self {
        Self {
            level: Level::Full,
            over: 0,
            well: 0,
            patience: WELL,
            since_up: u32::MAX,
        }
    }

    /// `share`: the largest part of a budget that was used. Whether it is another level now.
    fn look(&mut self, share: f64, steps: Steps) -> bool {
        self.since_up = self.since_up.saturating_add(1);
        let before = self.level;
        // What is left is the agent itself, and what watching would cost is not known.
        let below = share <= 0.5 || self.level == Level::Nothing;
        self.well = if below { self.well + 1 } else { 0 };
        self.over = if share > 1.0 { self.over + 1 } else { 0 };
        if self.over >= OVER && self.level > Level::Nothing {
            self.level = steps.down(self.level);
            if self.since_up <= self.patience {
                self.patience = (self.patience * 2).min(WELL_MOST);
            }
        } else if self.well >= self.patience && self.level < Level::Full {
            self.level = steps.up(self.level);
            self.since_up = 0;
        }
        if self.level == before {
            return false;
        }
        (self.over, self.well) = (0, 0);
        true
    }
}

/// What is open of the kernel's statistics.
struct Window {
    begin: Instant,
    /// While it is there the kernel takes the time.
    _stats: Option<OwnedFd>,
    before_ns: u64,
}

pub struct Budget {
    config: BudgetConfig,
    ladder: Ladder,
    looked: Instant,
    own: Duration,
    window: Option<Window>,
    events: u64,
    used: Option<Used>,
    /// Why the programs' time is not known; it is said once.
    unmeasured: Option<String>,
}

/// A step that was taken, and what was used in the time before.
pub struct Look {
    pub changed: bool,
    /// Which budgets were exceeded.
    pub over: Vec<&'static str>,
    pub used: Used,
    pub level: Level,
}

impl Budget {
    /// `own_broker`: programs and maps are this process's.
    pub fn new(config: &BudgetConfig, own_broker: bool) -> Self {
        let unmeasured = match (config.cpu, own_broker) {
            (Some(_), false) => Some(
                "the broker is another process: of its programs in the kernel, its maps and itself nothing is \
                 measured here, only the agent"
                    .to_owned(),
            ),
            (Some(_), true) => stats_enable().err(),
            (None, _) => None,
        };
        if let Some(why) = &unmeasured {
            debox_cli::say(&format!("[budget]: {why}"));
        }
        Self {
            config: config.clone(),
            ladder: Ladder::new(),
            looked: Instant::now(),
            own: own_time(),
            window: None,
            events: 0,
            used: None,
            unmeasured,
        }
    }

    pub fn is_of(&self, config: &BudgetConfig) -> bool {
        self.config == *config
    }

    pub fn level(&self) -> Level {
        self.ladder.level
    }

    /// So many calls met a condition and were told.
    pub fn events(&mut self, events: u64) {
        self.events += events;
    }

    /// When it is to be looked at; None: there is no budget.
    pub fn due(&self) -> Option<Instant> {
        let config = &self.config;
        if config.cpu.is_none() && config.memory_bytes.is_none() && config.events_per_s.is_none() {
            return None;
        }
        Some(match &self.window {
            Some(window) => window.begin + WINDOW,
            None => self.looked + self.config.every.saturating_sub(WINDOW),
        })
    }

    /// What is due; None: nothing was decided.
    pub fn look(&mut self, steps: Steps) -> Option<Look> {
        let now = Instant::now();
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        let Some(window) = self.window.take() else {
            let stats = match self.unmeasured {
                None if self.config.cpu.is_some() => stats_enable().ok().flatten(),
                _ => None,
            };
            self.window = Some(Window {
                _stats: stats,
                before_ns: self.programs_ns(),
                begin: Instant::now(),
            });
            return None;
        };
        let (ran_ns, took) = (
            self.programs_ns().saturating_sub(window.before_ns),
            window.begin.elapsed(),
        );
        drop(window);
        let own = own_time();
        let since = self.looked.elapsed().as_secs_f64().max(1e-3);
        let measured = self.unmeasured.is_none() && self.config.cpu.is_some();
        let used = Used {
            agent: own.saturating_sub(self.own).as_secs_f64() / since,
            programs: measured.then(|| ran_ns as f64 / took.as_nanos().max(1) as f64),
            agent_bytes: agent_bytes(),
            tables_bytes: own_objects("map_id:", "memlock:"),
            events_per_s: self.events as f64 / since,
        };
        (self.own, self.events, self.looked) = (own, 0, Instant::now());
        self.used = Some(used);
        let shares = used.shares(&self.config);
        let share = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
        let over: Vec<&'static str> = shares
            .iter()
            .filter(|(_, share)| *share > 1.0)
            .map(|(what, _)| *what)
            .collect();
        let before = self.ladder.level;
        let changed = self.ladder.look(share, steps);
        if changed && self.ladder.level < before {
            debox_cli::say(&format!(
                "budget: {}; from here on: {}",
                self.over_text(&used, &over),
                self.ladder.level.text()
            ));
        } else if changed {
            debox_cli::say(&format!(
                "budget: there is room again; from here on: {}",
                self.ladder.level.text()
            ));
        }
        Some(Look {
            changed,
            over,
            used,
            level: self.ladder.level,
        })
    }

    fn over_text(&self, used: &Used, over: &[&'static str]) -> String {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let text = |what: &&'static str| match *what {
            "cpu" => format!(
                "{} of a CPU, {} by its programs in the kernel, and {} was to be the most",
                percent(used.cpu()),
                used.programs.map_or("not measured".into(), percent),
                percent(self.config.cpu.unwrap_or(0.0))
            ),
            "memory" => format!(
                "{} MB of memory, and {} MB was to be the most",
                used.memory() >> 20,
                self.config.memory_bytes.unwrap_or(0) >> 20
            ),
            _ => format!(
                "{:.0} events a second, and {} was to be the most",
                used.events_per_s,
                self.config.events_per_s.unwrap_or(0)
            ),
        };
        over.iter().map(text).collect::<Vec<_>>().join("; ")
    }

    fn programs_ns(&self) -> u64 {
        if self.unmeasured.is_some() || self.config.cpu.is_none() {
            return 0;
        }
        own_objects("prog_id:", "run_time_ns:")
    }
}

/// None: the kernel takes it all the time.
fn stats_enable() -> Result<Option<OwnedFd>, String> {
    let always = std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled");
    if always.is_ok_and(|text| text.trim() == "1") {
        return Ok(None);
    }
    let attr: [u32; 32] = {
        let mut attr = [0; 32];
        attr[0] = BPF_STATS_RUN_TIME;
        attr
    };
    // SAFETY: the struct is a valid local of that size; the kernel reads it only.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_ENABLE_STATS,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!(
            "the CPU time of DeBox's programs in the kernel is not measured: {error}. It needs CAP_SYS_ADMIN, or \
             sysctl kernel.bpf_stats_enabled=1"
        ));
    }
    // SAFETY: the descriptor is new, and this process's own.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// A sum over this process's BPF objects of a kind, each once.
fn own_objects(id: &str, value: &str) -> u64 {
    let mut found: HashMap<String, u64> = HashMap::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo")
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        if let (Some(id), Some(value)) = (field(id), field(value)) {
            found.insert(id.trim().to_owned(), value.trim().parse().unwrap_or(0));
        }
    }
    found.values().sum()
}

/// CPU time of this process, of children that have ended, and of those that live.
fn own_time() -> Duration {
    let of = |who| {
        // SAFETY: all-zero is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills a valid local.
        unsafe { libc::getrusage(who, &raw mut usage) };
        let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    // SAFETY: no memory involved.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let living = family_of(std::process::id())
        .into_iter()
        .skip(1)
        .map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            // Fields 14 and 15; the rest begins with field 3.
            let fields = rest.split_ascii_whitespace().skip(11).take(2);
            let used: f64 = fields.filter_map(|f| f.parse::<f64>().ok()).sum();
            Duration::from_secs_f64(used / ticks)
        });
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN) + living.sum::<Duration>()
}

/// What no other process has, of this one and its children.
fn agent_bytes() -> u64 {
    let anonymous = |pid: u32| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_ascii_whitespace().next());
        number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    family_of(std::process::id())
        .into_iter()
        .map(anonymous)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Steps = Steps {
        conditions: true,
        boundary: true,
    };

    fn go(ladder: &mut Ladder, steps: Steps, share: f64, times: u32) -> Vec<Level> {
        let mut levels = Vec::new();
        for _ in 0..times {
            if ladder.look(share, steps) {
                levels.push(ladder.level);
            }
        }
        levels
    }

    #[test]
    fn what_is_over_goes_down_step_by_step() {
        use Level::*;
        let mut ladder = Ladder::new();
        assert!(go(&mut ladder, ALL, 0.9, 100).is_empty());
        // Once is nothing.
        assert!(go(&mut ladder, ALL, 3.0, 1).is_empty());
        assert!(go(&mut ladder, ALL, 0.9, 1).is_empty());
        assert_eq!(
            go(&mut ladder, ALL, 3.0, 20),
            // Nothing is not the end: it is tried again, at growing intervals.
            [NoConditions, Sleeps, Seldom, Nothing, Seldom, Nothing]
        );
        let few = Steps {
            conditions: false,
            boundary: false,
        };
        assert_eq!(go(&mut Ladder::new(), few, 3.0, 4), [Seldom, Nothing]);
    }

    #[test]
    fn what_is_well_below_goes_up_again_and_not_to_and_fro() {
        use Level::*;
        let mut ladder = Ladder::new();
        assert_eq!(go(&mut ladder, ALL, 3.0, 4), [NoConditions, Sleeps]);
        // Within the budget, but not by far: it stays.
        assert!(go(&mut ladder, ALL, 0.7, 50).is_empty());
        assert_eq!(go(&mut ladder, ALL, 0.2, 12), [NoConditions, Full]);
        // It did not last: the next time takes twice as long.
        assert_eq!(go(&mut ladder, ALL, 3.0, 2), [NoConditions]);
        assert!(go(&mut ladder, ALL, 0.2, 11).is_empty());
        assert_eq!(go(&mut ladder, ALL, 0.2, 1), [Full]);
    }

    #[test]
    fn what_this_process_takes_is_known() {
        let before = own_time();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            std::hint::black_box(0);
        }
        let took = own_time().saturating_sub(before);
        assert!(
            took > Duration::ZERO && took < Duration::from_secs(30),
            "{took:?}"
        );
        let memory = agent_bytes();
        assert!(memory > 100_000 && memory < 1 << 34, "{memory}");
    }
}
