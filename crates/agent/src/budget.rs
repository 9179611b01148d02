// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does watching cost, and what is left out when that is more than was said?
//!
//! The broker is asked what it takes, with its programs and maps in the kernel, of all its clients. The
//! kernel takes the run time of BPF programs for whoever asks, at a cost at each run: it is asked for a
//! moment now and then. What the broker does not tell is said, and not counted.
//!
//! What is over twice goes down a step, and up again when it has been below half of the budget for a
//! while. A step up that did not last makes the while twice as long.
//!
//! A policy may have a budget of its own, of what can be told apart by policies: events. The kernel
//! takes the run time by program, and tables are made for all that may come.

use crate::config::BudgetConfig;
use debox_cli::capture::{Base, Costs, own_bytes, own_time};
use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// So long the kernel takes the run time of programs.
const WINDOW: Duration = Duration::from_millis(250);
/// Looks in a row.
const OVER: u32 = 2;
const WELL: u32 = 6;
const WELL_MOST: u32 = 360;

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

/// What was used since the look before. None: it could not be measured, or, of a broker of its own, is the agent's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// Of one CPU, by the agent and what it started.
    pub agent: f64,
    /// By the broker and what that started.
    pub broker: Option<f64>,
    /// By DeBox's programs in the kernel.
    pub programs: Option<f64>,
    /// Of the agent and what it started.
    pub agent_bytes: Option<u64>,
    /// Of the broker and what that started.
    pub broker_bytes: Option<u64>,
    /// Of maps in the kernel.
    pub tables_bytes: Option<u64>,
    pub events_per_s: f64,
}

impl Used {
    fn memory(&self) -> u64 {
        let parts = [self.agent_bytes, self.broker_bytes, self.tables_bytes];
        parts.into_iter().flatten().sum()
    }

    fn cpu(&self) -> f64 {
        self.agent + self.broker.unwrap_or(0.0) + self.programs.unwrap_or(0.0)
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

    /// What a step from the level before means, and, of one down, what was over.
    fn say(&self, before: Level, whose: &str, over: impl FnOnce() -> String) {
        let why = match self.level.cmp(&before) {
            Ordering::Equal => return,
            Ordering::Less => over(),
            Ordering::Greater => "there is room again".to_owned(),
        };
        let from_here_on = self.level.text();
        debox_cli::say(&format!("{whose}: {why}; from here on: {from_here_on}"));
    }
}

fn events_text(events_per_s: f64, most: u64) -> String {
    format!("{events_per_s:.0} events a second, and {most} was to be the most")
}

/// The time in which the kernel takes the run time of programs.
struct Window {
    begin: Instant,
    /// As it began. While it is there the kernel takes the time.
    before: Costs,
}

/// Of one CPU; None: not known.
fn share(before: Option<Duration>, after: Option<Duration>, took: Duration) -> Option<f64> {
    let ran = after?.saturating_sub(before?);
    Some(ran.as_secs_f64() / took.as_secs_f64().max(1e-3))
}

/// Without what is counted as the agent's: a broker of its own is a part of its process.
fn others(costs: Costs, own_broker: bool) -> Costs {
    match own_broker {
        true => Costs {
            cpu: None,
            memory_bytes: None,
            ..costs
        },
        false => costs,
    }
}

/// Of one policy.
pub struct PolicyBudget {
    events_per_s: Option<u64>,
    ladder: Ladder,
    looked: Instant,
    events: u64,
}

impl PolicyBudget {
    pub fn new(events_per_s: Option<u64>) -> Self {
        Self {
            events_per_s,
            ladder: Ladder::new(),
            looked: Instant::now(),
            events: 0,
        }
    }

    pub fn level(&self) -> Level {
        self.ladder.level
    }

    /// Of these, what is a matter of all policies' budget: what is beyond its own is seen to here.
    pub fn events(&mut self, events: u64, every: Duration) -> u64 {
        let most = self.events_per_s.map_or(u64::MAX, |most| {
            (most as f64 * every.as_secs_f64().max(1.0)) as u64
        });
        let left = most.saturating_sub(self.events);
        self.events += events;
        events.min(left)
    }

    pub fn due(&self, every: Duration) -> Option<Instant> {
        self.events_per_s.map(|_| self.looked + every)
    }

    /// What is due, of the policy with this name: whether it was over, and whether it is another level now.
    pub fn look(&mut self, name: &str, every: Duration) -> Option<(bool, bool)> {
        let most = self.events_per_s?;
        let since = self.looked.elapsed();
        if since < every {
            return None;
        }
        let events_per_s = self.events as f64 / since.as_secs_f64().max(1e-3);
        (self.looked, self.events) = (Instant::now(), 0);
        let before = self.ladder.level;
        let steps = Steps {
            conditions: true,
            boundary: false,
        };
        let share = events_per_s / most as f64;
        self.ladder.look(share, steps);
        // Where no other period can begin they go on, and nothing else would make them fewer.
        self.ladder.level = self.ladder.level.max(Level::NoConditions);
        let changed = self.ladder.level != before;
        self.ladder.say(before, &format!("policy {name}"), || {
            events_text(events_per_s, most)
        });
        Some((share > 1.0, changed))
    }
}

pub struct Budget {
    config: BudgetConfig,
    ladder: Ladder,
    looked: Instant,
    own: Duration,
    /// The broker's CPU time at the look before.
    broker: Option<(Instant, Duration)>,
    window: Option<Window>,
    events: u64,
    /// Why something is not known; it is said once.
    unmeasured: Option<String>,
}

/// A step that was taken, and what was used in the time before.
pub struct Look {
    pub changed: bool,
    /// Which budgets were exceeded.
    pub over: Vec<&'static str>,
    pub used: Used,
}

impl Budget {
    pub fn new(config: &BudgetConfig) -> Self {
        Self {
            config: config.clone(),
            ladder: Ladder::new(),
            looked: Instant::now(),
            own: own_time(),
            broker: None,
            window: None,
            events: 0,
            unmeasured: None,
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

    /// What the broker says, as far as a budget is about that.
    fn costs(&mut self, base: &Base) -> Costs {
        let run_time = self.config.cpu.is_some();
        if !run_time && self.config.memory_bytes.is_none() {
            return Costs::default();
        }
        let (costs, unmeasured) = match base.costs(run_time) {
            Ok(mut costs) => {
                let lack = costs.lack.take();
                (costs, lack)
            }
            Err(error) => (
                Costs::default(),
                Some(format!(
                    "of the broker, its programs in the kernel and its maps nothing is measured, only the agent: {error}"
                )),
            ),
        };
        if let Some(why) = &unmeasured
            && unmeasured != self.unmeasured
        {
            debox_cli::say(&format!("[budget]: {why}"));
        }
        self.unmeasured = unmeasured;
        others(costs, base.is_own())
    }

    /// What is due; None: nothing was decided.
    pub fn look(&mut self, steps: Steps, base: &Base) -> Option<Look> {
        let now = Instant::now();
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        let Some(window) = self.window.take() else {
            let before = self.costs(base);
            let begin = Instant::now();
            self.broker = self.broker.or(before.cpu.map(|cpu| (begin, cpu)));
            self.window = Some(Window { begin, before });
            return None;
        };
        let after = self.costs(base);
        let took = window.begin.elapsed();
        let own = own_time();
        let since = self.looked.elapsed().as_secs_f64().max(1e-3);
        let used = Used {
            agent: own.saturating_sub(self.own).as_secs_f64() / since,
            broker: (self.broker)
                .and_then(|(at, before)| share(Some(before), after.cpu, at.elapsed())),
            programs: share(window.before.run_time, after.run_time, took),
            agent_bytes: own_bytes(),
            broker_bytes: after.memory_bytes,
            tables_bytes: after.tables_bytes,
            events_per_s: self.events as f64 / since,
        };
        // The kernel takes the run time no longer than that.
        drop(window);
        (self.own, self.events, self.looked) = (own, 0, Instant::now());
        self.broker = after.cpu.map(|cpu| (self.looked, cpu));
        let shares = used.shares(&self.config);
        let share = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
        let over: Vec<&'static str> = shares
            .iter()
            .filter(|(_, share)| *share > 1.0)
            .map(|(what, _)| *what)
            .collect();
        let before = self.ladder.level;
        let changed = self.ladder.look(share, steps);
        (self.ladder).say(before, "budget", || self.over_text(&used, &over));
        Some(Look {
            changed,
            over,
            used,
        })
    }

    fn over_text(&self, used: &Used, over: &[&'static str]) -> String {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let text = |what: &&'static str| match *what {
            "cpu" => format!(
                "{} of a CPU, {} of it by programs in the kernel, and {} was to be the most",
                percent(used.cpu()),
                used.programs.map_or("not measured".into(), percent),
                percent(self.config.cpu.unwrap_or(0.0))
            ),
            "memory" => format!(
                "{} MB of memory, {} of it tables in the kernel, and {} MB was to be the most",
                used.memory() >> 20,
                used.tables_bytes
                    .map_or("not measured".into(), |bytes| format!("{} MB", bytes >> 20)),
                self.config.memory_bytes.unwrap_or(0) >> 20
            ),
            _ => events_text(used.events_per_s, self.config.events_per_s.unwrap_or(0)),
        };
        over.iter().map(text).collect::<Vec<_>>().join("; ")
    }
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
    fn what_a_policy_has_beyond_its_own_is_not_of_all() {
        let second = Duration::from_secs(1);
        let mut own = PolicyBudget::new(Some(20));
        let of_all: Vec<u64> = (0..3).map(|_| own.events(15, second)).collect();
        assert_eq!(of_all, [15, 5, 0]);
        assert_eq!(PolicyBudget::new(None).events(1000, second), 1000);
        assert_eq!(own.look("web", 60 * second), None);
        // Without conditions is all that helps, also where no other period could begin.
        let looks: Vec<(bool, bool)> = (0..9)
            .filter_map(|_| {
                own.events(u64::from(u32::MAX), second);
                own.look("web", Duration::ZERO)
            })
            .collect();
        assert_eq!(looks[..3], [(true, false), (true, true), (true, false)]);
        assert!(looks[3..].iter().all(|look| *look == (true, false)));
        assert_eq!(own.level(), Level::NoConditions);
    }

    fn measured() -> Used {
        Used {
            agent: 0.002,
            broker: Some(0.004),
            programs: Some(0.006),
            agent_bytes: Some(10 << 20),
            broker_bytes: Some(20 << 20),
            tables_bytes: Some(40 << 20),
            events_per_s: 0.0,
        }
    }

    #[test]
    fn a_broker_that_is_another_process_counts() {
        let config = BudgetConfig {
            cpu: Some(0.01),
            memory_bytes: Some(50 << 20),
            events_per_s: None,
            every: Duration::from_secs(10),
        };
        let used = measured();
        assert!((used.cpu() - 0.012).abs() < 1e-9, "{used:?}");
        assert_eq!(used.memory(), 70 << 20);
        let shares = used.shares(&config);
        assert!(shares.iter().all(|(_, share)| *share > 1.0), "{shares:?}");
        // Not twice, where it is a part of the agent's.
        let costs = |own_broker| {
            let costs = Costs {
                run_time: Some(Duration::from_millis(1)),
                tables_bytes: Some(3),
                cpu: Some(Duration::from_millis(2)),
                memory_bytes: Some(4),
                ..Costs::default()
            };
            let costs = others(costs, own_broker);
            assert!(costs.run_time.is_some() && costs.tables_bytes.is_some());
            (costs.cpu, costs.memory_bytes)
        };
        assert_eq!(costs(false), (Some(Duration::from_millis(2)), Some(4)));
        assert_eq!(costs(true), (None, None));
    }

    #[test]
    fn what_is_not_measured_is_no_zero() {
        let ms = Duration::from_millis;
        assert_eq!(share(Some(ms(10)), Some(ms(35)), ms(250)), Some(0.1));
        assert_eq!(share(Some(ms(10)), Some(ms(10)), ms(250)), Some(0.0));
        assert_eq!(share(None, Some(ms(35)), ms(250)), None);
        assert_eq!(share(Some(ms(10)), None, ms(250)), None);
        // And it is said so.
        let budget = Budget::new(&BudgetConfig {
            cpu: Some(0.001),
            memory_bytes: Some(1 << 20),
            events_per_s: None,
            every: Duration::from_secs(10),
        });
        let text = |used: &Used| budget.over_text(used, &["cpu", "memory"]);
        assert!(!text(&measured()).contains("not measured"));
        let used = Used {
            programs: None,
            tables_bytes: None,
            ..measured()
        };
        assert_eq!(text(&used).matches("not measured").count(), 2, "{used:?}");
    }
}
