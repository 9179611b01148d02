// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a function's time go, step by step down to where it is spent?
//!
//! The way of the KernInst paper from `copen` to `ufs_iupdat`: measure the
//! functions that a function calls, descend into the one that dominates, and
//! so on. A callee is counted only when it is called on the path taken so far:
//! its frame must lie directly on that of the function above it.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::code::Code;
use crate::engine::{Insertion, MetricId, Resource, Restriction};
use crate::error::Error;
use crate::functions::Function;
use crate::generated::kern_sums;
use crate::session::{Session, integral, monotonic_ns, overhead, span, too_often};
use debox_command::{Child, stop};

/// How a function's time was explained, from the top down.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Path {
    pub root: String,
    /// "measured" (every call), or "sampled" (stacks).
    pub method: &'static str,
    pub branches: Vec<Branch>,
    pub notes: Vec<String>,
}

/// One way down.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Branch {
    pub steps: Vec<Step>,
    pub verdict: String,
}

impl Branch {
    /// What the step below does not say: the other callees with a share.
    pub fn beside(&self, depth: usize) -> impl Iterator<Item = &Callee> {
        let next = self.steps.get(depth + 1).map(|s| s.function.as_str());
        let callees = self.steps[depth].callees.iter();
        callees
            .filter(move |c| Some(c.function.as_str()) != next && c.share >= 0.02)
            .take(3)
    }
}

/// One function on the way.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Step {
    pub function: String,
    /// None: not counted.
    pub calls: Option<u64>,
    /// Thread-nanoseconds inside, on this path.
    pub inside_ns: u64,
    /// Of the root's time in the same interval, 0 to 1.
    pub share: f64,
    /// ... in itself, not in a measured callee. None: not measured.
    pub self_share: Option<f64>,
    /// ... off the CPU, of calls that returned.
    pub off_cpu_share: Option<f64>,
    /// Average number of threads inside.
    pub concurrency: f64,
    pub callees: Vec<Callee>,
    /// Small functions without calls or loops, counted as its own time.
    pub trivial: usize,
    /// Callees that no probe may enter: counted as its own time.
    pub refused: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Callee {
    pub function: String,
    pub calls: Option<u64>,
    pub inside_ns: u64,
    pub share: f64,
    /// Found while it was called through a pointer.
    pub indirect: bool,
}

/// What `--auto` was told.
pub struct Options {
    pub interval: Duration,
    pub end: Option<Instant>,
    /// 0 to 1.
    pub share: f64,
    pub depth: usize,
    pub branches: usize,
}

/// The scheduler's front doors: below them nothing explains why.
pub fn is_wait(name: &str) -> bool {
    debox_abi::threads_stay_inside(name) || matches!(name, "io_schedule" | "io_schedule_timeout")
}

/// Calls of the root that an interval should have seen.
const CALLS_ENOUGH: u64 = 20;
/// How often an interval is prolonged for them.
const PATIENCE: u32 = 10;

struct Measured {
    id: MetricId,
    before: kern_sums,
    before_ns: u64,
    after: kern_sums,
    after_ns: u64,
}

impl Measured {
    fn new(id: MetricId) -> Measured {
        Measured {
            id,
            before: kern_sums::default(),
            before_ns: 0,
            after: kern_sums::default(),
            after_ns: 0,
        }
    }

    fn begin(&mut self, session: &Session) -> Result<(), Error> {
        self.before = session.engine.read(self.id)?;
        self.before_ns = monotonic_ns();
        Ok(())
    }

    fn end(&mut self, session: &Session) -> Result<(), Error> {
        self.after = session.engine.read(self.id)?;
        self.after_ns = monotonic_ns();
        Ok(())
    }

    fn inside_ns(&self) -> u64 {
        span(
            integral(&self.after, self.after_ns),
            integral(&self.before, self.before_ns),
        )
    }

    fn calls(&self) -> u64 {
        self.after.calls - self.before.calls
    }

    fn off_ns(&self) -> u64 {
        self.after.off_ns - self.before.off_ns
    }

    /// Calls whose time is missing: not timed for want of room, or not seen to
    /// return.
    fn untimed(&self) -> u64 {
        let lost = |s: &kern_sums| s.no_room + s.too_deep + s.nested + s.lost;
        lost(&self.after) - lost(&self.before)
    }
}

/// The path down from one function, by measuring.
pub struct Descent<'a> {
    session: &'a mut Session,
    code: &'a Code,
    options: &'a Options,
    child: Option<&'a mut Child>,
    progress: &'a dyn Fn(&str),
    /// The functions from the root to where we are, inserted.
    chain: Vec<(Resource, MetricId)>,
}

enum Halt {
    /// Somebody stopped us, or the command ended.
    Over(&'static str),
    /// The way itself costs more than is allowed.
    TooOften(String),
    Error(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Error(error)
    }
}

impl<'a> Descent<'a> {
    pub fn new(
        session: &'a mut Session,
        code: &'a Code,
        options: &'a Options,
        child: Option<&'a mut Child>,
        progress: &'a dyn Fn(&str),
    ) -> Descent<'a> {
        Descent {
            session,
            code,
            options,
            child,
            progress,
            chain: Vec::new(),
        }
    }

    /// Goes down from `root`; from a system call first to its own function.
    pub fn run(&mut self, root: &Resource) -> Result<Path, Error> {
        let mut path = Path {
            root: root.name(),
            method: "measured",
            ..Path::default()
        };
        // Ways not taken yet: the functions down to where they begin, and the
        // share that they had.
        let mut open: Vec<(Vec<Resource>, f64)> = vec![(vec![root.clone()], 1.0)];
        while path.branches.len() < self.options.branches
            && let Some((way, _)) = open.pop()
        {
            let mut branch = Branch::default();
            let result = self.branch(&way, &mut branch, &mut open);
            let keep = !branch.steps.is_empty() || path.branches.is_empty();
            match result {
                Ok(()) => path.branches.push(branch),
                Err(Halt::TooOften(why)) => {
                    branch.verdict = why;
                    path.branches.push(branch);
                    break;
                }
                Err(Halt::Over(why)) => {
                    branch.verdict = format!("{why}; the way down is not complete");
                    if keep {
                        path.branches.push(branch);
                    }
                    break;
                }
                Err(Halt::Error(error)) => {
                    self.unchain(0);
                    return Err(error);
                }
            }
            open.sort_by(|a, b| a.1.total_cmp(&b.1));
        }
        for (way, share) in open.iter().rev().take(5) {
            path.notes.push(format!(
                "not followed: {} with {:.1} % of the time",
                way.last().map(Resource::name).unwrap_or_default(),
                share * 100.0
            ));
        }
        self.unchain(0);
        Ok(path)
    }

    fn unchain(&mut self, keep: usize) {
        let ids: Vec<MetricId> = self.chain.drain(keep..).map(|(_, id)| id).collect();
        self.session.engine.remove(&ids);
    }

    fn extend(&mut self, resource: &Resource) -> Result<(), Error> {
        let restriction = match self.chain.last() {
            None => self.session.common.restriction.clone(),
            Some((_, above)) => Restriction {
                under: Some(*above),
                ..Restriction::default()
            },
        };
        self.announce(
            &format!("{} itself", resource.name()),
            std::slice::from_ref(resource),
        );
        let insertion = Insertion {
            resource: resource.clone(),
            timed: true,
            restriction,
        };
        let (done, skipped) = self.session.engine.insert(&[insertion])?;
        match done.first() {
            Some((id, _)) => {
                self.chain.push((resource.clone(), *id));
                Ok(())
            }
            None => Err(Error::CannotAttach(
                skipped
                    .into_iter()
                    .map(|s| s.why)
                    .collect::<Vec<_>>()
                    .join("\n"),
            )),
        }
    }

    /// What is about to be attached, and what that takes.
    fn announce(&self, what: &str, resources: &[Resource]) {
        let cost = self.session.cost(resources, true);
        if cost.functions > 0 {
            (self.progress)(&format!("        {what}: {}", cost.text()));
        }
    }

    /// From the end of `way` down.
    fn branch(
        &mut self,
        way: &[Resource],
        branch: &mut Branch,
        open: &mut Vec<(Vec<Resource>, f64)>,
    ) -> Result<(), Halt> {
        let common = self
            .chain
            .iter()
            .zip(way)
            .take_while(|((have, _), want)| have == *want)
            .count();
        self.unchain(common);
        for resource in &way[common..] {
            self.extend(resource)?;
        }
        let mut taken: Vec<Resource> = way.to_vec();
        loop {
            let Some((here, _)) = self.chain.last().cloned() else {
                return Ok(());
            };
            let (step, mut below) = self.step(&here)?;
            (self.progress)(&format!(
                "{:5.1} %  {}{}",
                step.share * 100.0,
                "  ".repeat(taken.len() - 1),
                step.function
            ));
            let own = step.self_share.unwrap_or(0.0);
            let function = step.function.clone();
            let off = step.off_cpu_share.unwrap_or(0.0);
            let called = step.calls > Some(0) || step.inside_ns > 0;
            branch.steps.push(step);
            if !called {
                branch.verdict = format!("{function} was not called while it was measured");
                return Ok(());
            }
            below.retain(|(_, share)| *share >= self.options.share);
            if below.is_empty() {
                branch.verdict = format!(
                    "{:.1} % of the time is {function}'s own{}",
                    own * 100.0,
                    if off > own / 2.0 && own > 0.0 {
                        ", most of it off the CPU"
                    } else {
                        ""
                    }
                );
                if own < self.options.share {
                    branch.verdict = format!(
                        "no function that {function} calls has {:.0} % of the time any more",
                        self.options.share * 100.0
                    );
                }
                return Ok(());
            }
            let (next, next_share) = below.remove(0);
            if is_wait(&next.name()) {
                branch.verdict = format!(
                    "{function} waits: {:.1} % of the time passes in {}, off the CPU until \
                     somebody wakes it",
                    next_share * 100.0,
                    next.name()
                );
                for (other, share) in below {
                    let mut way = taken.clone();
                    way.push(other);
                    open.push((way, share));
                }
                return Ok(());
            }
            for (other, share) in below {
                let mut way = taken.clone();
                way.push(other);
                open.push((way, share));
            }
            if taken.len() >= self.options.depth {
                branch.verdict = format!("{} steps down, the limit (--depth)", taken.len());
                return Ok(());
            }
            self.extend(&next)?;
            taken.push(next);
        }
    }

    /// Measures what `here` calls: the step, and the callees by share.
    #[allow(clippy::type_complexity)]
    fn step(&mut self, here: &Resource) -> Result<(Step, Vec<(Resource, f64)>), Halt> {
        let above = self.chain.last().map(|(_, id)| *id);
        let restriction = Restriction {
            under: above,
            ..Restriction::default()
        };
        let mut step = Step {
            function: here.name(),
            ..Step::default()
        };
        let mut wanted: Vec<(Function, bool)> = Vec::new();
        let mut indirect = Vec::new();
        match here {
            Resource::Call { name, .. } => {
                if let Some(f) = crate::resource::call_entry(&self.session.functions, name) {
                    wanted.push((f, false));
                }
            }
            Resource::Function(function) => {
                if let Ok(callees) = self.code.callees(&self.session.functions, function) {
                    for callee in callees.direct {
                        if self.code.is_trivial(&callee) {
                            step.trivial += 1;
                        } else {
                            wanted.push((callee, false));
                        }
                    }
                    indirect = callees.indirect;
                }
            }
            Resource::Instruction { .. } => {}
        }
        // One on the way already would be counted for both.
        let on_way: Vec<Resource> = self.chain.iter().map(|(r, _)| r.clone()).collect();
        wanted.retain(|(f, _)| !on_way.contains(&Resource::Function(f.clone())));
        let room = self
            .session
            .max_functions
            .saturating_sub(self.chain.len() as u32) as usize;
        if wanted.len() > room {
            self.session.notes.push(format!(
                "{} calls {} functions, of which the first {room} were measured (--max-functions)",
                step.function,
                wanted.len()
            ));
            wanted.truncate(room);
        }
        let mut inserted = self.insert_all(&wanted, &restriction, &mut step)?;
        if !indirect.is_empty()
            && let Some(above) = above
        {
            let learning = self.session.engine.learn(above, &indirect);
            if !learning.is_empty() {
                self.wait(above, &mut inserted, &mut step)?;
                let learned = self.session.engine.learned(&learning)?;
                drop(learning);
                let mut new = Vec::new();
                for (address, _) in learned {
                    let Some((f, offset)) = self.session.functions.around(address) else {
                        continue;
                    };
                    let known = wanted
                        .iter()
                        .chain(&new)
                        .any(|(w, _)| w.address == f.address)
                        || on_way.contains(&Resource::Function(f.clone()));
                    if offset > 4 || known {
                        continue;
                    }
                    if self.code.is_trivial(&f) {
                        step.trivial += 1;
                    } else {
                        new.push((f, true));
                    }
                }
                inserted.extend(self.insert_all(&new, &restriction, &mut step)?);
                self.session.engine.targets_forget();
            }
        }
        let mut path: Vec<Measured> = self
            .chain
            .iter()
            .map(|(_, id)| Measured::new(*id))
            .collect();
        let mut below: Vec<(Function, bool, Measured)> = inserted
            .iter()
            .map(|(f, indirect, id)| (f.clone(), *indirect, Measured::new(*id)))
            .collect();
        for measured in path.iter_mut().chain(below.iter_mut().map(|b| &mut b.2)) {
            measured.begin(self.session)?;
        }
        let waited = match above {
            Some(above) => self.wait(above, &mut inserted, &mut step),
            None => Ok(()),
        };
        if matches!(waited, Err(Halt::TooOften(_))) {
            let ids: Vec<MetricId> = inserted.iter().map(|i| i.2).collect();
            self.session.engine.remove(&ids);
            waited?;
            return Ok((step, Vec::new()));
        }
        // Those that were taken out meanwhile are part of their caller.
        below.retain(|b| inserted.iter().any(|i| i.2 == b.2.id));
        for measured in path.iter_mut().chain(below.iter_mut().map(|b| &mut b.2)) {
            measured.end(self.session)?;
        }
        let ids: Vec<MetricId> = below.iter().map(|b| b.2.id).collect();
        self.session.engine.remove(&ids);
        let root_ns = path.first().map_or(0, Measured::inside_ns).max(1);
        let part = |ns: u64| ns as f64 / root_ns as f64;
        if let Some(me) = path.last() {
            step.calls = Some(me.calls());
            step.inside_ns = me.inside_ns();
            step.share = part(step.inside_ns);
            step.off_cpu_share = Some(part(me.off_ns()));
            let seconds = (me.after_ns - me.before_ns).max(1) as f64;
            step.concurrency = step.inside_ns as f64 / seconds;
        }
        for (name, m) in below
            .iter()
            .map(|(f, _, m)| (f.full_name(), m))
            .chain(path.last().map(|m| (step.function.clone(), m)))
        {
            if m.untimed() > 0 {
                self.session.notes.push(format!(
                    "{name}: of {} calls {} have no time, or too much (too many threads inside, \
                     too deep, or a return that was not seen)",
                    m.calls(),
                    m.untimed()
                ));
            }
        }
        below.retain(|(.., m)| m.calls() > 0 || m.inside_ns() > 0);
        below.sort_by_key(|(.., m)| std::cmp::Reverse(m.inside_ns()));
        let used: u64 = below.iter().map(|(.., m)| m.inside_ns()).sum();
        step.self_share = Some(part(step.inside_ns.saturating_sub(used)));
        step.callees = below
            .iter()
            .map(|(f, indirect, m)| Callee {
                function: f.full_name(),
                calls: Some(m.calls()),
                inside_ns: m.inside_ns(),
                share: part(m.inside_ns()),
                indirect: *indirect,
            })
            .collect();
        // What was measured before the end counts; then it is over.
        if let Err(halt) = waited
            && step.calls == Some(0)
        {
            return Err(halt);
        }
        let ways = below
            .into_iter()
            .map(|(f, _, m)| {
                let share = part(m.inside_ns());
                (Resource::Function(f), share)
            })
            .collect();
        Ok((step, ways))
    }

    fn insert_all(
        &mut self,
        functions: &[(Function, bool)],
        restriction: &Restriction,
        step: &mut Step,
    ) -> Result<Vec<(Function, bool, MetricId)>, Error> {
        if functions.is_empty() {
            return Ok(Vec::new());
        }
        let insertions: Vec<Insertion> = functions
            .iter()
            .map(|(f, _)| Insertion {
                resource: Resource::Function(f.clone()),
                timed: true,
                restriction: restriction.clone(),
            })
            .collect();
        let resources: Vec<Resource> = insertions.iter().map(|i| i.resource.clone()).collect();
        self.announce(&format!("what {} calls", step.function), &resources);
        let (done, skipped) = self.session.engine.insert(&insertions)?;
        step.refused.extend(skipped.into_iter().map(|s| s.name));
        Ok(done
            .into_iter()
            .map(|(id, place)| (functions[place].0.clone(), functions[place].1, id))
            .collect())
    }

    /// An interval, longer while too few calls have come. What is called too
    /// often is taken out of `below`.
    fn wait(
        &mut self,
        id: MetricId,
        below: &mut Vec<(Function, bool, MetricId)>,
        step: &mut Step,
    ) -> Result<(), Halt> {
        let before = self.session.engine.read(id)?.calls;
        let mut rates = Rates::begin(self.session, self.chain.iter().map(|c| c.1), below)?;
        for _ in 0..PATIENCE {
            let mut until = Instant::now() + self.options.interval;
            if let Some(end) = self.options.end {
                until = until.min(end);
            }
            while Instant::now() < until && !stop::asked() {
                stop::sleep_until(until.min(Instant::now() + Duration::from_millis(100)));
                if let Some(child) = &mut self.child
                    && child.ended().is_some()
                {
                    return Err(Halt::Over("the command ended"));
                }
                self.limit(&mut rates, below, step)?;
            }
            if stop::asked() {
                return Err(Halt::Over("it was stopped"));
            }
            if self.options.end.is_some_and(|end| Instant::now() >= end) {
                return Err(Halt::Over("the time was over (--duration)"));
            }
            let sums = self.session.engine.read(id)?;
            // Enough calls, or some that last.
            if sums.calls - before >= CALLS_ENOUGH || sums.entered > sums.left {
                break;
            }
        }
        Ok(())
    }

    /// `--max-overhead`: callees are taken out until the rest costs less; the
    /// way itself cannot be.
    fn limit(
        &mut self,
        rates: &mut Rates,
        below: &mut Vec<(Function, bool, MetricId)>,
        step: &mut Step,
    ) -> Result<(), Halt> {
        let limit = self.session.max_overhead;
        let Some(mut costs) = rates.costs(self.session)? else {
            return Ok(());
        };
        while costs.iter().map(|c| c.percent).sum::<f64>() > limit {
            costs.sort_by(|a, b| a.percent.total_cmp(&b.percent));
            let Some(worst) = costs.pop() else { break };
            let Some(at) = below.iter().position(|b| b.2 == worst.id) else {
                let name = self
                    .chain
                    .iter()
                    .find(|c| c.1 == worst.id)
                    .map(|c| c.0.name())
                    .unwrap_or_default();
                return Err(Halt::TooOften(too_often(
                    &name,
                    worst.rate,
                    worst.percent,
                    limit,
                )));
            };
            let (function, ..) = below.remove(at);
            self.session.engine.remove(&[worst.id]);
            rates.forget(worst.id);
            step.refused.push(function.full_name());
            self.session.notes.push(too_often(
                &function.full_name(),
                worst.rate,
                worst.percent,
                limit,
            ));
        }
        Ok(())
    }
}

/// How often is what is inserted called?
struct Rates {
    since: Instant,
    calls: Vec<(MetricId, u64)>,
}

struct CallCost {
    id: MetricId,
    rate: f64,
    percent: f64,
}

impl Rates {
    /// Between two looks: shorter bursts are nobody's load.
    const LOOK: Duration = Duration::from_millis(250);

    fn begin(
        session: &Session,
        chain: impl Iterator<Item = MetricId>,
        below: &[(Function, bool, MetricId)],
    ) -> Result<Rates, Error> {
        let calls = chain
            .chain(below.iter().map(|b| b.2))
            .map(|id| Ok((id, session.engine.read(id)?.calls)))
            .collect::<Result<_, Error>>()?;
        Ok(Rates {
            since: Instant::now(),
            calls,
        })
    }

    /// What each costs, when enough time has passed since the last look.
    fn costs(&mut self, session: &Session) -> Result<Option<Vec<CallCost>>, Error> {
        let elapsed = self.since.elapsed();
        if elapsed < Rates::LOOK {
            return Ok(None);
        }
        let mut costs = Vec::with_capacity(self.calls.len());
        for (id, last) in &mut self.calls {
            let calls = session.engine.read(*id)?.calls;
            let rate = calls.saturating_sub(*last) as f64 / elapsed.as_secs_f64();
            *last = calls;
            costs.push(CallCost {
                id: *id,
                rate,
                percent: overhead(session.engine.way(*id), true, rate),
            });
        }
        self.since = Instant::now();
        Ok(Some(costs))
    }

    fn forget(&mut self, id: MetricId) {
        self.calls.retain(|c| c.0 != id);
    }
}
