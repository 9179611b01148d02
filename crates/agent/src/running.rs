// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a policy watched, one period after the other?

use crate::budget::Level;
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
    pub present: Watch,
    /// When the present period ends.
    pub period_ends: Instant,
    /// When boundary capture ends.
    pub way_ends: Option<Instant>,
    /// Why a period could not begin; it is said once.
    trouble: Option<String>,
}

impl Running {
    /// The first period.
    pub fn start(
        begin: &Begin<'_>,
        policy: Policy,
        rank: u32,
        how: How,
        way_ends: Option<Instant>,
    ) -> Result<Self, Error> {
        let capture = capture_of(begin, &policy, rank, how)?;
        Ok(Self {
            period_ends: Instant::now() + how.period(&policy),
            policy,
            rank,
            how,
            present: Watch::of(capture),
            way_ends,
            trouble: None,
        })
    }

    /// A period is over, and the next one begins: with an account of its own, so that none is
    /// ever full, which takes the threads over in the middle of what they do. What there was before;
    /// None: there could be no other one, and it goes on.
    pub fn turn(&mut self, begin: &Begin<'_>, how: How) -> Option<Watch> {
        let next = match capture_of(begin, &self.policy, self.rank, how) {
            Ok(next) => next,
            Err(error) => {
                let what = error.to_string();
                if self.trouble.as_ref() != Some(&what) {
                    debox_cli::say(&format!("{what}; the period goes on"));
                    self.trouble = Some(what);
                }
                self.period_ends = Instant::now() + self.how.period(&self.policy);
                return None;
            }
        };
        self.trouble = None;
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

/// When a policy's boundary capture ends that begins now.
pub fn way_ends(policy: &Policy) -> Option<Instant> {
    let time: Duration = policy.capture_for?;
    Some(Instant::now() + time)
}
