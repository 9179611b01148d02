// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox agent`: who is watched as long as the machine runs, and who asks for the figures?

use crate::budget::{Budget, Level, Steps};
use crate::config::{Config, Policy, Way, What};
use crate::endings::Endings;
use crate::endpoint::{Endpoint, Figures};
use crate::fleet::Fleet;
use crate::flight::{Flight, Present};
use crate::metrics::{Metrics, Reading, waited};
use crate::otlp::Otlp;
use crate::running::{
    Begin, Begun, Running, SELDOM, Spare, Waiting, Watch, could_begin, whom_text,
};
use debox_cli::acting;
use debox_cli::ahead::Ahead;
use debox_cli::args::{AgentArgs, BrokerArgs};
use debox_cli::capture::{Base, Finished, OpenCalls};
use debox_cli::error::Error;
use debox_cli::limits::Limits;
use debox_command::{Ended, Inherited, service};
use debox_report::Report;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONFIG: &str = "/etc/debox/agent.toml";
/// What is read so often stays known when its program ends, also if nobody asks.
const READ_EVERY: Duration = Duration::from_secs(60);

/// What could not be kept is tried again after that.
const KEEP_AGAIN: Duration = Duration::from_secs(60);

struct File {
    path: PathBuf,
    /// Somebody has named it.
    named: bool,
}

impl File {
    fn read(&self) -> Result<Config, Error> {
        Ok(Config::read(&self.path, self.named)?)
    }
}

/// A period that is over, but for what its open calls wait for.
struct Over {
    policy: String,
    begun_ns: u64,
    finished: Finished,
    /// None: it is not recorded.
    recorded: Option<Present>,
}

/// What is left to do of periods that are over.
enum After {
    Tell(Box<Over>),
    /// What is of the last minutes stays. `asked`: by somebody.
    Keep {
        why: String,
        asked: bool,
    },
}

struct Agent<'a> {
    file: File,
    config: Config,
    broker: &'a BrokerArgs,
    inherited: &'a Inherited,
    base: Base,
    /// In the file's order; none where the budget leaves nothing.
    running: Vec<Running>,
    /// The others of the file.
    waiting: Vec<Waiting>,
    /// None of the file's could begin, and those of before go on: when it is tried again.
    retake: Option<Instant>,
    budget: Budget,
    endings: Endings<After>,
    /// Until when boundary capture lasts, of each policy of the file whose time has begun.
    ends: Vec<(Policy, Instant)>,
    endpoint: Endpoint,
    metrics: Metrics,
    /// Of the machine's control groups, whoever is watched.
    limits: Arc<Limits>,
    flight: Option<Flight>,
    /// Why there is none, although one is asked for; it is said once.
    no_flight: Option<String>,
    fleet: Option<Fleet>,
    otlp: Otlp,
    /// When the figures are read, whether somebody asks or not.
    next: Instant,
    /// Before that nothing more is kept unasked.
    keep_next: Option<Instant>,
    /// Why nothing could be kept unasked, last time; it is said once.
    not_kept: Option<String>,
}

/// To its end a period takes half as much memory as all the rest, for a moment; the allocator would keep it.
fn memory_return() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer; what is allocated stays where it is.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Agent<'_> {
    /// For who asks, which costs little; what is `due` as well: recordings, and, once a minute, what /proc tells of each
    /// thread.
    fn read(&mut self) {
        let begin = Instant::now();
        let looks = begin >= self.next;
        for running in &mut self.running {
            let begin = Instant::now();
            if looks {
                running.present.capture.look(true);
            }
            let report = running.present.capture.report();
            let name = &running.policy.name;
            self.metrics.update(&Reading {
                policy: name,
                report: &report,
                took: begin.elapsed(),
                begun_ns: running.present.begun_ns,
                recording: (self.flight.as_ref()).and_then(|flight| flight.recording(name)),
            });
            let threads = running.present.capture.threads();
            self.metrics.policy(name, threads);
            if let Some(flight) = (self.flight.as_mut()).filter(|flight| flight.is_due(name)) {
                flight.checkpoint(name, &report);
            }
        }
        self.metrics.throttled(&self.limits.now());
        self.metrics.read(begin.elapsed());
        if looks {
            let seldom = self.budget.level() <= Level::Seldom;
            self.next = Instant::now() + READ_EVERY * if seldom { SELDOM } else { 1 };
        }
        if let Some(flight) = &mut self.flight {
            self.metrics.lost(flight.lost());
        }
        if let Some(fleet) = &self.fleet {
            self.metrics.fleet(&fleet.figures());
            fleet.tell();
        }
        self.otlp.read(&mut self.metrics);
    }

    fn period_begin(&mut self, at: usize) {
        let running = &mut self.running[at];
        running.present.recorded = self.config.flight.is_some();
        if let Some(flight) = &mut self.flight {
            let capture = &running.present.capture;
            flight.begin(&running.policy.name, |path| capture.writer(path));
        }
    }

    /// A policy's period is over, and its next one begins.
    fn turn(&mut self, at: usize) {
        let begin = Begin {
            base: &self.base,
            broker: self.broker,
            inherited: self.inherited,
            records: self.config.flight.is_some(),
        };
        let running = &mut self.running[at];
        let how = running.how_next(self.budget.level());
        let Some(over) = running.turn(&begin, how) else {
            return;
        };
        let policy = running.policy.clone();
        self.over(&policy, over);
        memory_return();
        self.flight_take();
        self.period_begin(at);
    }

    /// What came of a period. Figures have it from now on; who else is told hears of it in its turn.
    fn over(&mut self, policy: &Policy, over: Watch) {
        let (finished, calls) = over.capture.finish_soon();
        for (when, sum) in policy.when.iter().zip(finished.acted()) {
            let held_back = sum.met.saturating_sub(sum.acted);
            self.metrics
                .condition(&policy.name, &when.condition, sum.acted, held_back);
            if held_back > 0 {
                // Conditions are looked at in this way alone.
                let what = match policy.capture {
                    Way::Sleeps => "sleeps",
                    Way::Boundary => "calls",
                };
                debox_cli::say(&format!(
                    "policy {}: condition '{}' was met by {} {what} in this period; {} of them are told here by \
                     this number alone",
                    policy.name, when.condition, sum.met, held_back
                ));
            }
        }
        let name = policy.name.as_str();
        self.metrics.close(&Reading {
            policy: name,
            report: finished.report(),
            took: Duration::ZERO,
            begun_ns: over.begun_ns,
            recording: (self.flight.as_ref()).and_then(|flight| flight.recording(name)),
        });
        let recorded = (self.flight.as_mut()).and_then(|flight| flight.over(name));
        // As it began, its folder could not be had.
        let lost = over.recorded && recorded.is_none();
        self.metrics.lost(u64::from(lost));
        let over = Over {
            policy: policy.name.clone(),
            begun_ns: over.begun_ns,
            finished,
            recorded,
        };
        (self.endings).when_explained(After::Tell(Box::new(over)), calls);
        self.endings_take(false);
    }

    /// What is known by now of periods that are over; of all of them, if it `waits`.
    fn endings_take(&mut self, waits: bool) {
        let mut told = false;
        while let Some((after, calls)) = self.endings.next(waits) {
            match after {
                After::Tell(mut over) => {
                    self.period_tell(&mut over, calls.as_ref());
                    self.period_judge(&over.policy, over.finished.report());
                    told = true;
                }
                After::Keep { why, asked: false } => self.keep(&why),
                After::Keep { why, asked: true } => match &mut self.flight {
                    Some(flight) => keep_tell(&self.otlp, &flight.keep(&why), &why, true),
                    None => debox_cli::say("nothing is kept: [flight] directory is \"\""),
                },
            }
        }
        if told {
            memory_return();
        }
    }

    /// Behind the periods that are over.
    fn keep_behind(&mut self, why: String, asked: bool) {
        self.endings.behind(After::Keep { why, asked });
        self.endings_take(false);
    }

    /// Single calls that met a condition, or are slow.
    fn act(&mut self) {
        let mut keep_of = None;
        for (at, running) in self.running.iter_mut().enumerate() {
            let Running {
                policy,
                present,
                budget,
                ..
            } = running;
            let events = present.capture.act(&mut |event| {
                for (bit, when) in policy.when.iter().enumerate() {
                    if when.keep && event.conditions >> bit & 1 != 0 && keep_of.is_none() {
                        let call = acting::short(event);
                        let name = &policy.name;
                        let why = format!("condition {} of policy {name}: {call}", when.condition);
                        keep_of = Some((at, why));
                    }
                }
            });
            let of_all = budget.events(events, self.config.budget.every);
            self.budget.events(of_all);
        }
        let Some((at, why)) = keep_of else {
            return;
        };
        if !self.may_keep() {
            return;
        }
        // The call is of the present period, whose end is kept once.
        self.keep_next = Some(Instant::now() + KEEP_AGAIN);
        self.turn(at);
        self.keep_behind(why, false);
    }

    /// What goes on would be kept again and again.
    fn may_keep(&self) -> bool {
        let now = Instant::now();
        self.config.flight.is_some() && self.keep_next.is_none_or(|next| next <= now)
    }

    /// Unasked. What fails is tried again, but not as often as there is something to keep.
    fn keep(&mut self, why: &str) {
        let (Some(flight), Some(config)) = (&mut self.flight, &self.config.flight) else {
            return;
        };
        let kept = flight.keep(why);
        let pause = match &kept {
            Ok(_) => config.before,
            Err(_) => KEEP_AGAIN.min(config.before),
        };
        self.keep_next = Some(Instant::now() + pause);
        let before = std::mem::replace(&mut self.not_kept, kept.as_ref().err().cloned());
        if kept.is_ok() || before != self.not_kept {
            keep_tell(&self.otlp, &kept, why, false);
        }
    }

    /// What it costs, and whether that is too much.
    fn budget_look(&mut self) {
        let every = self.config.budget.every;
        for at in 0..self.running.len() {
            let Running { policy, budget, .. } = &mut self.running[at];
            let Some((over, changed)) = budget.look(&policy.name, every) else {
                continue;
            };
            if over {
                self.metrics.exceeded("events");
            }
            if changed {
                self.turn(at);
                self.levels_tell();
            }
        }
        let conditions = |policy: &Policy| !policy.when.is_empty();
        let boundary = |policy: &Policy| policy.capture == Way::Boundary;
        let steps = Steps {
            conditions: self.config.policies.iter().any(conditions),
            boundary: self.config.policies.iter().any(boundary),
        };
        let Some(look) = self.budget.look(steps, &self.base) else {
            return;
        };
        self.metrics.budget(&look);
        if look.changed {
            self.level_take();
        }
    }

    /// What budgets leave of each policy.
    fn levels_tell(&mut self) {
        let of_all = self.budget.level();
        for policy in &self.config.policies {
            let running = self
                .running
                .iter()
                .find(|running| running.policy == *policy);
            let level = running.map_or(of_all, |running| running.level(of_all));
            self.metrics.level(&policy.name, level);
        }
    }

    /// Watches as the budget's level has it.
    fn level_take(&mut self) {
        let level = self.budget.level();
        self.levels_tell();
        if level == Level::Nothing {
            self.waiting.clear();
            self.retake = None;
            for over in std::mem::take(&mut self.running) {
                self.over(&over.policy, over.present);
                self.metrics.policy(&over.policy.name, 0);
            }
            return;
        }
        // Whoever waits begins as the level has it then.
        if self.running.is_empty() && self.waiting.is_empty() {
            self.policies_take();
            return;
        }
        if let Some(flight) = &mut self.flight {
            flight.seldom(level <= Level::Seldom);
        }
        for at in 0..self.running.len() {
            let running = &self.running[at];
            if running.how_next(level) != running.how {
                self.turn(at);
            }
        }
    }

    /// Between two periods: the recorder that the file asks for, also if its folder could not be had
    /// until now.
    fn flight_take(&mut self) {
        let asked = self.config.flight.as_ref();
        let has = self.flight.as_ref().map(Flight::directory);
        if has == asked.map(|config| config.directory.as_path())
            || self.flight.as_ref().is_some_and(|flight| !flight.idle())
        {
            return;
        }
        if self.flight.is_some() {
            // What is over goes to where it was written so far.
            self.endings_take(true);
        }
        // Its lock goes first: to close a file again ends all locks that the process has on it.
        if let Some(flight) = self.flight.take() {
            self.metrics.lost(flight.close());
        }
        self.flight = flight_open(&self.config, &mut self.no_flight);
    }

    /// To all who are told of periods, with what its open calls wait for, if that is known.
    fn period_tell(&mut self, over: &mut Over, calls: Option<&OpenCalls>) {
        over.finished.open_calls_tell(calls);
        let (policy, report) = (over.policy.as_str(), over.finished.report());
        if let Some(fleet) = &mut self.fleet {
            fleet.end(policy, over.begun_ns, report);
        }
        if let (Some(flight), Some(recorded)) = (&mut self.flight, over.recorded.take()) {
            flight.end(recorded, report);
        }
        let recording = (self.flight.as_ref()).and_then(|flight| flight.last(policy));
        (self.otlp).period_end(policy, over.begun_ns, report, recording);
    }

    /// Whether one that is over is to be kept.
    fn period_judge(&mut self, policy: &str, report: &Report) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        self.metrics.lost(flight.lost());
        if !self.may_keep() {
            return;
        }
        let config = self.config.flight.iter();
        let above = config.flat_map(|config| &config.when).find_map(|when| {
            let waited = waited(report, &when.what);
            let (kind, name) = match &when.what {
                What::Root(name) => ("root", name),
                What::Label(name) => ("label", name),
            };
            (waited > when.above).then(|| {
                format!(
                    "{kind} {name}: {:.3} s in one period of policy {policy}, more than {:.3} s",
                    waited.as_secs_f64(),
                    when.above.as_secs_f64()
                )
            })
        });
        if let Some(why) = above {
            self.keep(&why);
        }
    }

    /// `debox snapshot`
    fn snapshot(&mut self) {
        for at in 0..self.running.len() {
            self.turn(at);
        }
        self.keep_behind("asked for".into(), true);
    }

    /// The file has changed, or may have.
    fn reload(&mut self) {
        let config = match self.file.read() {
            Ok(config) => config,
            Err(error) => {
                debox_cli::say(&format!("{error}; what was read before stays"));
                return;
            }
        };
        // What is over goes to where it was to go.
        self.endings_take(true);
        let path = self.file.path.display();
        if config.metrics.listen != self.config.metrics.listen {
            debox_cli::say(&format!(
                "{path}: [metrics] listen is taken at the start only; start the agent again for it"
            ));
        }
        self.metrics.limit(&config.metrics);
        let flight = (self.config.flight.as_ref(), config.flight.as_ref());
        let moved = flight.0.map(|f| &f.directory) != flight.1.map(|f| &f.directory);
        if let (Some(flight), Some(config)) = (&mut self.flight, &config.flight)
            && !moved
        {
            flight.limit(config);
        }
        let anew = moved || self.retake.is_some() || config.policies != self.config.policies;
        let budgeted = !self.budget.is_of(&config.budget);
        if budgeted {
            // As if it began.
            self.budget = Budget::new(&config.budget);
        }
        if config.fleet != self.config.fleet {
            if let Some(fleet) = self.fleet.take() {
                self.metrics.fleet_end(&fleet.close());
            }
            self.fleet = fleet_open(&config);
        }
        self.otlp.take(config.otlp.as_ref());
        self.config = config;
        if anew && self.budget.level() > Level::Nothing {
            self.policies_take();
        } else {
            self.metrics.policies(self.config.policies.iter());
            if budgeted {
                self.level_take();
            }
            // Whoever has made room says so.
            for waiting in &mut self.waiting {
                waiting.due = Instant::now();
            }
        }
        self.levels_tell();
        // From here on it is as it says.
        debox_cli::say(&format!("{}: read again", self.file.path.display()));
    }

    /// The file's policies take the place of those that are watched. First all of these give way and go on
    /// watching, then each of the new ones takes whom it is the first to fit, and what is left ends. What cannot begin
    /// waits.
    fn policies_take(&mut self) {
        let level = self.budget.level();
        self.retake = None;
        if let Some(flight) = &mut self.flight {
            flight.seldom(level <= Level::Seldom);
        }
        for running in &self.running {
            if let Err(error) = running.present.capture.give_way() {
                debox_cli::complain(&error);
            }
        }
        let begin = Begin {
            base: &self.base,
            broker: self.broker,
            inherited: self.inherited,
            records: self.config.flight.is_some(),
        };
        // Those of before leave room as they end.
        let spare = self.running.is_empty().then(|| Spare::open(&begin));
        let policies = &self.config.policies;
        let begun = Begun::of(&begin, policies, &self.ends, level, spare.as_ref());
        drop(spare);
        self.metrics.policies(policies.iter());
        for waiting in &begun.waiting {
            waiting.say();
            self.metrics.policy(&waiting.policy.name, 0);
        }
        // Where there is no room, it may be those of before that have it.
        if begun.running.is_empty() && !begun.full && !self.running.is_empty() {
            debox_cli::say(
                "none of the policies can be watched; those of before go on until they can",
            );
            self.waiting.clear();
            self.retake_later();
            // They have given way, and have their places again with new periods.
            for at in 0..self.running.len() {
                self.turn(at);
            }
            return;
        }
        self.waiting = begun.waiting;
        let old = std::mem::replace(&mut self.running, begun.running);
        self.ends
            .retain(|(policy, _)| self.config.policies.contains(policy));
        self.ends_note();
        for over in old {
            self.over(&over.policy, over.present);
        }
        self.flight_take();
        for at in 0..self.running.len() {
            self.period_begin(at);
        }
        self.levels_tell();
    }

    fn retake_later(&mut self) {
        let periods = self.config.policies.iter().map(|policy| policy.period);
        self.retake = periods.min().map(|period| Instant::now() + period);
    }

    /// Whose time has begun, goes on with it whatever becomes of its watch.
    fn ends_note(&mut self) {
        for running in &self.running {
            if let Some(ends) = running.way_ends
                && !self.ends.iter().any(|(of, _)| *of == running.policy)
            {
                self.ends.push((running.policy.clone(), ends));
            }
        }
    }

    /// When the figures are wanted, whether somebody asks or not.
    fn due(&self) -> Instant {
        let others = [self.flight.as_ref().and_then(Flight::due), self.otlp.due()];
        let due = others.into_iter().flatten().min();
        due.map_or(self.next, |due| due.min(self.next))
    }

    /// When something is to be done for a policy.
    fn policies_due(&self) -> Option<Instant> {
        let boundary = |running: &Running| {
            running
                .way_ends
                .filter(|_| running.how.way == Way::Boundary)
        };
        let due = self.running.iter().flat_map(|running| {
            [Some(running.period_ends), boundary(running)]
                .into_iter()
                .flatten()
        });
        let waiting = self.waiting.iter().map(|waiting| waiting.due);
        due.chain(waiting).chain(self.retake).min()
    }

    /// Those that could not begin, and whose time it is again.
    fn waiting_begin(&mut self) {
        let now = Instant::now();
        let level = self.budget.level();
        let begin = Begin {
            base: &self.base,
            broker: self.broker,
            inherited: self.inherited,
            records: self.config.flight.is_some(),
        };
        if self.retake.is_some_and(|due| due <= now) {
            if could_begin(&begin, &self.config.policies, level) {
                self.policies_take();
            } else {
                self.retake_later();
            }
            return;
        }
        if !self.waiting.iter().any(|waiting| waiting.due <= now) {
            return;
        }
        let spare = Spare::open(&begin);
        let mut begun = Vec::new();
        self.waiting.retain_mut(|waiting| {
            let running = (waiting.due <= now).then(|| waiting.start(&begin, level, &spare));
            let running = running.flatten();
            let waits = running.is_none();
            begun.extend(running);
            waits
        });
        drop(spare);
        for running in begun {
            let at = (self.running).partition_point(|before| before.rank < running.rank);
            self.running.insert(at, running);
            self.period_begin(at);
        }
        self.ends_note();
    }

    /// Periods that are over, and what was to last for a time.
    fn policies_turn(&mut self) {
        for at in 0..self.running.len() {
            let running = &self.running[at];
            let now = Instant::now();
            let lasted = running.how.way == Way::Boundary
                && running.way_ends.is_some_and(|until| until <= now);
            if lasted {
                self.turn(at);
                let running = &mut self.running[at];
                if running.how.way == Way::Boundary {
                    // There could be no other period: it is tried again at this one's end.
                    running.way_ends = Some(running.period_ends);
                    continue;
                }
                let policy = &running.policy;
                debox_cli::say(&format!(
                    "policy {}: boundary capture has lasted {} s, as asked for; it goes on by sleeps",
                    policy.name,
                    policy.capture_for.unwrap_or_default().as_secs()
                ));
            } else if now >= running.period_ends {
                self.turn(at);
            }
        }
    }

    /// Until somebody ends it: by which signal. None: there is nothing to be watched any more.
    fn stay(&mut self) -> Option<i32> {
        // Systemd, if it has started this and wants to know whether it goes on.
        let beat = service::alive_every();
        loop {
            let mut next = self.due();
            if let Some(every) = beat {
                tell(service::ALIVE);
                next = next.min(Instant::now() + every);
            }
            next = self.policies_due().map_or(next, |due| due.min(next));
            next = self.budget.due().map_or(next, |due| due.min(next));
            let every = self.config.budget.every;
            let own = (self.running.iter()).filter_map(|running| running.budget.due(every));
            next = own.min().map_or(next, |due| due.min(next));
            next = self.endings.due().map_or(next, |due| due.min(next));
            let mut wait = vec![self.endpoint.as_fd()];
            for (ring, soon) in self
                .running
                .iter()
                .filter_map(|running| running.present.capture.events())
            {
                wait.extend(ring);
                next = soon.map_or(next, |soon| next.min(Instant::now() + soon));
            }
            let tick = self.base.tick(&wait, Some(next));
            match tick.stop {
                Some(libc::SIGHUP) => self.reload(),
                Some(signal) => return Some(signal),
                None => {}
            }
            if tick.asked {
                self.snapshot();
            }
            let mut ended = self
                .running
                .iter_mut()
                .filter_map(|running| running.present.capture.ended());
            if let Some(why) = ended.next() {
                debox_cli::say(&format!("the watch is over: {why}"));
                return None;
            }
            self.endings_take(false);
            self.act();
            self.policies_turn();
            self.waiting_begin();
            self.budget_look();
            let asked = self.endpoint.asked();
            if asked.is_some() || Instant::now() >= self.due() {
                self.read();
            }
            let mut next = asked;
            while let Some(asked) = next {
                asked.answer(Figures::of(self.metrics.families()));
                next = self.endpoint.asked();
            }
        }
    }

    /// What there is of the present periods is written.
    fn end(mut self) {
        self.endings_take(true);
        // Nothing more is kept for what ends now.
        self.config.flight = None;
        for running in std::mem::take(&mut self.running) {
            self.over(&running.policy, running.present);
        }
        self.endings_take(true);
        self.metrics.throttled(&self.limits.now());
        if let Some(flight) = self.flight.take() {
            self.metrics.lost(flight.close());
        }
        if let Some(fleet) = self.fleet {
            self.metrics.fleet_end(&fleet.close());
        }
        self.otlp.close(&self.metrics);
    }
}

fn tell(state: &str) {
    if let Err(error) = service::tell(state) {
        debox_cli::say(&format!(
            "the service manager could not be told {state}: {error}"
        ));
    }
}

/// `asked`: by somebody.
fn keep_tell(otlp: &Otlp, kept: &Result<PathBuf, String>, why: &str, asked: bool) {
    match kept {
        Ok(path) => debox_cli::say(&format!("kept in {}: {why}", path.display())),
        Err(error) => debox_cli::say(&format!("nothing is kept ({why}): {error}")),
    }
    let kept = kept.as_ref();
    let kept = kept.map(PathBuf::as_path).map_err(String::as_str);
    otlp.kept(kept, why, asked);
}

/// Without it the agent goes on. `why`: what was said of there being none.
fn flight_open(config: &Config, why: &mut Option<String>) -> Option<Flight> {
    let opened = Flight::open(config.flight.as_ref()?);
    let before = why.take();
    match opened {
        Ok(flight) => {
            if before.is_some() {
                let directory = flight.directory().display();
                debox_cli::say(&format!("flight recorder: goes on, in {directory}"));
            }
            Some(flight)
        }
        Err(error) => {
            let error = error.to_string();
            if before.as_ref() != Some(&error) {
                debox_cli::say(&format!("{error}; nothing is recorded"));
            }
            *why = Some(error);
            None
        }
    }
}

/// The same.
fn fleet_open(config: &Config) -> Option<Fleet> {
    match Fleet::open(config.fleet.as_ref()?) {
        Ok(fleet) => Some(fleet),
        Err(error) => {
            debox_cli::say(&format!(
                "{error}. Name another place in [fleet] to, or \"\" for none; nothing goes to the fleet's tables"
            ));
            None
        }
    }
}

fn check(file: &File) -> Result<i32, Error> {
    file.read()?;
    let text = match Path::exists(&file.path) {
        true => format!("{}: nothing is wrong\n", file.path.display()),
        false => format!("{} is not there: the defaults\n", file.path.display()),
    };
    debox_cli::output::print(text.as_bytes()).map(|()| 0)
}

/// Whom it watches, in words.
fn policies_text(config: &Config) -> String {
    let text = |policy: &Policy| format!("{} ({})", policy.name, whom_text(policy));
    match &config.policies[..] {
        [one] => whom_text(one),
        several => several.iter().map(text).collect::<Vec<_>>().join(", "),
    }
}

pub fn watch(args: AgentArgs, inherited: Inherited) -> Result<i32, Error> {
    let file = File {
        named: args.config.is_some(),
        path: args.config.unwrap_or_else(|| CONFIG.into()),
    };
    if args.check {
        return check(&file);
    }
    let config = file.read()?;
    // Before the long part: who else has the address is to be told at once.
    let endpoint = Endpoint::open(&config.metrics.listen)?;
    let mut no_flight = None;
    let flight = flight_open(&config, &mut no_flight);
    let fleet = fleet_open(&config);
    let otlp = Otlp::new(config.otlp.as_ref());
    let ahead = Ahead::begin();
    let boundary = |policy: &Policy| policy.capture == Way::Boundary;
    let base = Base::open(&args.broker, !config.policies.iter().any(boundary))?;
    let begin = Begin {
        base: &base,
        broker: &args.broker,
        inherited: &inherited,
        records: config.flight.is_some(),
    };
    let spare = Spare::open(&begin);
    let Begun {
        running,
        waiting,
        full,
        refused,
    } = Begun::of(&begin, &config.policies, &[], Level::Full, Some(&spare));
    drop(spare);
    if let (true, false, Some(error)) = (running.is_empty(), full, refused) {
        return Err(error);
    }
    waiting.iter().for_each(Waiting::say);
    drop(ahead);
    let recorded = match &flight {
        Some(flight) => format!("; recordings in {}", flight.directory().display()),
        None => String::new(),
    };
    debox_cli::say(&format!(
        "watching {}{recorded}; figures at {}",
        policies_text(&config),
        endpoint.place()
    ));
    let mut agent = Agent {
        metrics: Metrics::new(&config.metrics),
        limits: Limits::of_machine(),
        endings: Endings::new(OpenCalls::explain),
        ends: Vec::new(),
        budget: Budget::new(&config.budget),
        file,
        config,
        broker: &args.broker,
        inherited: &inherited,
        base,
        running,
        waiting,
        retake: None,
        endpoint,
        flight,
        no_flight,
        fleet,
        otlp,
        next: Instant::now(),
        keep_next: None,
        not_kept: None,
    };
    agent.ends_note();
    for waiting in &agent.waiting {
        agent.metrics.policy(&waiting.policy.name, 0);
    }
    for at in 0..agent.running.len() {
        agent.period_begin(at);
    }
    agent.levels_tell();
    tell(service::READY);
    let ended = agent.stay();
    tell(service::STOPPING);
    agent.end();
    Ok(match ended {
        Some(libc::SIGTERM) => 0,
        Some(signal) => Ended::Signal(signal).end_as(),
        None => 1,
    })
}
