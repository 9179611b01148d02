// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a policy watched, one period after the other?

use crate::budget::{Level, PolicyBudget};
use crate::config::{Policy, PolicyWhen, Way};
use crate::fleet::now_ns;
use debox_cli::acting::{ActArgs, ActionArgs, RuleArgs};
use debox_cli::args::{BrokerArgs, CaptureArgs, Way as CaptureWay};
use debox_cli::capture::{Base, Capture, Target, Want};
use debox_cli::error::Error;
use debox_command::Inherited;
use std::time::{Duration, Instant};

/// Whom, in words.
pub fn whom_text(policy: &Policy) -> String {
    match policy.whom.all {
        true => "the whole machine".into(),
        false => policy.whom.words().join(" "),
    }
}

/// A line is written so often at most; what is more is counted.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// A stack.
const STACK_EVERY: Duration = Duration::from_secs(10);
/// What could not begin is tried again first after that, then as often as it has periods.
const AGAIN: Duration = Duration::from_secs(1);
/// The same for a next period that finds no room: an account that has just ended is taken back within moments.
const TURN_AGAIN: Duration = Duration::from_millis(100);
/// From then on it is no matter of moments.
const MOMENTS: Duration = Duration::from_secs(5);
/// Behind all policies of a file.
const RANK_LAST: u32 = debox_abi::DEBOX_SELECT_RANK_MAX;
/// What is seldom is so many times as long.
pub const SELDOM: u32 = 5;

/// How it is watched now, which may be less than its file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    pub way: Way,
    pub conditions: bool,
    /// Its periods are longer.
    pub seldom: bool,
}

impl How {
    /// As the file has it, until boundary capture has lasted as long as it was to, and with what the
    /// budget leaves.
    pub fn of(policy: &Policy, way_ends: Option<Instant>, level: Level) -> Self {
        let over = way_ends.is_some_and(|until| until <= Instant::now());
        let way = match over || level <= Level::Sleeps {
            true => Way::Sleeps,
            false => policy.capture,
        };
        Self {
            way,
            // What is asked of a whole call is not asked of its sleeps.
            conditions: way == policy.capture && !policy.when.is_empty() && level == Level::Full,
            seldom: level <= Level::Seldom,
        }
    }

    fn period(self, policy: &Policy) -> Duration {
        policy.period * if self.seldom { SELDOM } else { 1 }
    }
}

fn rule_of(when: &PolicyWhen) -> RuleArgs {
    let action = |text: &str, every| ActionArgs {
        text: text.into(),
        limit: Some(0),
        every: Some(every),
    };
    let actions = [
        when.log.then(|| action("print", LOG_EVERY)),
        when.stack.then(|| action("stack", STACK_EVERY)),
        when.keep.then(|| action("keep", LOG_EVERY)),
    ];
    RuleArgs {
        on: when.condition.clone(),
        actions: actions.into_iter().flatten().collect(),
    }
}

/// One period of a policy begins. It takes over whom it is the first to fit.
fn capture_of(begin: &Begin<'_>, policy: &Policy, rank: u32, how: How) -> Result<Capture, Error> {
    let target = Target::policy(&policy.whom, rank, policy.owners_first)?;
    let want = want_of(begin, policy, how)?;
    begin.base.start(want, target, begin.inherited)
}

fn want_of(begin: &Begin<'_>, policy: &Policy, how: How) -> Result<Want, Error> {
    let way = match how.way {
        Way::Sleeps => CaptureWay::Sleeps,
        Way::Boundary => CaptureWay::Boundary,
    };
    let rules = policy.when.iter().filter(|_| how.conditions).map(rule_of);
    let mut want = Want::new(&CaptureArgs {
        broker: begin.broker.clone(),
        capture_way: Some(way),
        act: ActArgs::lasting(rules.collect()),
        ..CaptureArgs::default()
    })?;
    if begin.records && !how.seldom {
        want.slow_keep();
    }
    Ok(want)
}

/// What is needed to begin a period.
pub struct Begin<'a> {
    pub base: &'a Base,
    pub broker: &'a BrokerArgs,
    pub inherited: &'a Inherited,
    /// There is a flight recorder.
    pub records: bool,
}

/// An account that watches nobody, held while policies begin: there is room left then for one more, which each period's
/// end takes.
pub struct Spare {
    capture: Option<Capture>,
    full: Option<Error>,
}

impl Spare {
    pub fn open(begin: &Begin<'_>) -> Self {
        let args = CaptureArgs {
            broker: begin.broker.clone(),
            capture_way: Some(CaptureWay::Sleeps),
            ..CaptureArgs::default()
        };
        let opened = Want::new(&args).and_then(|want| {
            let nobody = Target::processes(&[])?;
            begin.base.start(want, nobody, begin.inherited)
        });
        let (capture, error) = match opened {
            Ok(capture) => (Some(capture), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            capture,
            // Whatever else is wrong, whoever begins is told.
            full: error.filter(Error::is_full),
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            // Its memory goes before its connection: it is taken back at once.
            drop(capture.finish());
        }
    }
}

/// What becomes of a file's policies.
#[derive(Default)]
pub struct Begun {
    pub running: Vec<Running>,
    pub waiting: Vec<Waiting>,
    /// One of them found no room.
    pub full: bool,
    /// The first other reason.
    pub refused: Option<Error>,
}

impl Begun {
    /// `ends`: of policies whose time runs already. With `spare` room is left for one more.
    pub fn of(
        begin: &Begin<'_>,
        policies: &[Policy],
        ends: &[(Policy, Instant)],
        level: Level,
        spare: Option<&Spare>,
    ) -> Self {
        let mut begun = Self::default();
        let full = spare.and_then(|spare| spare.full.as_ref());
        for (policy, rank) in policies.iter().zip(1..) {
            let runs = ends.iter().find(|(of, _)| of == policy);
            let mut waiting = Waiting {
                policy: policy.clone(),
                rank,
                way_ends: runs.map(|(_, ends)| *ends),
                // An account that has just ended is taken back within moments.
                due: Instant::now() + AGAIN,
                trouble: String::new(),
            };
            let error = match full {
                Some(error) => {
                    begun.full = true;
                    error.to_string()
                }
                None => match waiting.running(begin, level) {
                    Ok(running) => {
                        begun.running.push(running);
                        continue;
                    }
                    Err(error) => {
                        let text = error.to_string();
                        if error.is_full() {
                            begun.full = true;
                        } else {
                            begun.refused.get_or_insert(error);
                        }
                        text
                    }
                },
            };
            waiting.trouble = error;
            begun.waiting.push(waiting);
        }
        begun
    }
}

/// Whether one of these could begin. Nobody who is watched is taken over for that.
pub fn could_begin(begin: &Begin<'_>, policies: &[Policy], level: Level) -> bool {
    policies.iter().any(|policy| {
        let how = How::of(policy, None, level);
        let begun = capture_of(begin, policy, RANK_LAST, how);
        begun.map(Capture::finish_soon).is_ok()
    })
}

/// One period of a policy.
pub struct Watch {
    pub capture: Capture,
    /// By the clock of the day as it began: nanoseconds since 1970. That clock may be set meanwhile.
    pub begun_ns: u64,
    /// It was to be recorded.
    pub recorded: bool,
}

impl Watch {
    fn of(capture: Capture) -> Self {
        let ago = capture.since.elapsed();
        Self {
            begun_ns: now_ns().saturating_sub(ago.as_nanos() as u64),
            capture,
            recorded: false,
        }
    }
}

/// A policy, and its present period.
pub struct Running {
    pub policy: Policy,
    /// From 1 on; who fits several is the lowest one's.
    pub rank: u32,
    pub how: How,
    pub budget: PolicyBudget,
    pub present: Watch,
    /// When the present period ends.
    pub period_ends: Instant,
    /// When boundary capture ends.
    pub way_ends: Option<Instant>,
    /// Why a period could not begin; it is said once.
    trouble: Option<String>,
    /// Since when there is no room for the next one.
    full: Option<Instant>,
}

impl Running {
    /// The first period.
    fn start(
        begin: &Begin<'_>,
        policy: Policy,
        rank: u32,
        how: How,
        way_ends: Option<Instant>,
    ) -> Result<Self, Error> {
        let capture = capture_of(begin, &policy, rank, how)?;
        Ok(Self {
            period_ends: Instant::now() + how.period(&policy),
            budget: PolicyBudget::new(policy.events_per_s),
            policy,
            rank,
            how,
            present: Watch::of(capture),
            way_ends,
            trouble: None,
            full: None,
        })
    }

    /// What the policy's own budget and the one of all leave.
    pub fn level(&self, of_all: Level) -> Level {
        of_all.min(self.budget.level())
    }

    /// How it is to be watched from its next period on.
    pub fn how_next(&self, of_all: Level) -> How {
        How::of(&self.policy, self.way_ends, self.level(of_all))
    }

    /// A period is over, and the next one begins: with an account of its own, so that none is
    /// ever full, which takes the threads over in the middle of what they do. What there was before;
    /// None: there could be no other one, and it goes on.
    pub fn turn(&mut self, begin: &Begin<'_>, how: How) -> Option<Watch> {
        let next = match capture_of(begin, &self.policy, self.rank, how) {
            Ok(next) => next,
            Err(error) => {
                let now = Instant::now();
                if error.is_full() && self.full.get_or_insert(now).elapsed() < MOMENTS {
                    self.period_ends = now + TURN_AGAIN;
                    return None;
                }
                let what = error.to_string();
                if self.trouble.as_ref() != Some(&what) {
                    debox_cli::say(&format!("{what}; the period goes on"));
                    self.trouble = Some(what);
                }
                self.period_ends = Instant::now() + self.how.period(&self.policy);
                return None;
            }
        };
        (self.trouble, self.full) = (None, None);
        self.how = how;
        // By the clock, and not by when it was noticed; but never twice at once.
        let now = Instant::now();
        let period = how.period(&self.policy);
        let due = self.period_ends + period;
        self.period_ends = match due > now {
            true => due.min(now + period),
            false => now + period,
        };
        Some(std::mem::replace(&mut self.present, Watch::of(next)))
    }
}

/// A policy whose first period could not begin.
pub struct Waiting {
    pub policy: Policy,
    pub rank: u32,
    /// When boundary capture ends, if its time runs already.
    way_ends: Option<Instant>,
    /// When it is tried again.
    pub due: Instant,
    /// Why it could not; it is said once.
    trouble: String,
}

impl Waiting {
    pub fn say(&self) {
        debox_cli::say(&format!(
            "policy {}: {}; it is not watched, and is tried again",
            self.policy.name, self.trouble
        ));
    }

    fn running(&self, begin: &Begin<'_>, level: Level) -> Result<Running, Error> {
        let ends = self.way_ends.or_else(|| way_ends(&self.policy));
        let how = How::of(&self.policy, ends, level);
        Running::start(begin, self.policy.clone(), self.rank, how, ends)
    }

    /// None: it cannot begin yet either.
    pub fn start(&mut self, begin: &Begin<'_>, level: Level, spare: &Spare) -> Option<Running> {
        let started = match &spare.full {
            Some(error) => Err(error.to_string()),
            None => (self.running(begin, level)).map_err(|error| error.to_string()),
        };
        match started {
            Ok(running) => {
                debox_cli::say(&format!("policy {}: is watched now", self.policy.name));
                Some(running)
            }
            Err(what) => {
                if self.trouble != what {
                    self.trouble = what;
                    self.say();
                }
                let how = How::of(&self.policy, self.way_ends, level);
                self.due = Instant::now() + how.period(&self.policy);
                None
            }
        }
    }
}

/// When a policy's boundary capture ends that begins now.
fn way_ends(policy: &Policy) -> Option<Instant> {
    let time: Duration = policy.capture_for?;
    Some(Instant::now() + time)
}
