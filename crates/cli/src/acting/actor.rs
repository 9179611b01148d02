// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is done when the event of a call that met a condition arrives?

use super::action::Action;
use super::core_file::core_found;
use super::ends::Ends;
use super::plan::{Plan, Slot};
use super::show;
use crate::error::Error;
use crate::session::nanos;
use ::debox_condition::{Answer, CallFacts, Number, SiteFacts};
use debox_abi::*;
use debox_client::{AccountView, Connection, DetailsView};
use debox_output::{count_text, error_name, shell_word};
use debox_report::{Note, NoteKind, Object};
use debox_symbol::{CodeFile, UserCode, UserSymbols};
use std::cell::RefCell;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A new place gets its name within milliseconds; a call whose condition
/// depends on one is kept so long.
const NAME_WAIT: Duration = Duration::from_millis(500);
/// Calls kept for that reason.
const PENDING_MAX: usize = 256;
/// A command of --do exec that still runs at the end gets this long.
const EXEC_WAIT: Duration = Duration::from_secs(5);

thread_local! {
    // Not to be sent between threads, so each that names stacks has its own.
    static SYMBOLS: RefCell<UserSymbols> = RefCell::default();
}

/// What has become of one --do.
#[derive(Default)]
struct State {
    acted: u64,
    late: u64,
    /// Signals that were not sent: the call had returned before its place had
    /// a name.
    missed: u64,
    /// Refused or failed: a signal that may not be sent, a command that cannot
    /// be started.
    failed: u64,
    last: Option<Instant>,
    told: bool,
}

/// What has become of one --on, as far as user space judged it.
#[derive(Default)]
struct Judged {
    met: u64,
    not_met: u64,
    unknown: u64,
}

/// What came of one condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Calls that met it.
    pub met: u64,
    /// Of these, for which an action was done.
    pub acted: u64,
}

/// What must be known of a process before it is gone.
struct Core {
    pid: i32,
    tid: i32,
    comm: String,
    directory: Option<PathBuf>,
    program: Option<PathBuf>,
}

pub struct Actor {
    plan: Plan,
    /// By watch and action.
    states: Vec<Vec<State>>,
    judged: Vec<Judged>,
    /// Sites whose text was compared: bit = site.
    known: Box<[u64; DEBOX_SITES_MAX / 64]>,
    pending: Vec<(Instant, Box<debox_event_call>)>,
    /// For the links of chains, where conditions ask for them.
    connection: Arc<Connection>,
    links: Vec<debox_chain>,
    running: Option<(Child, String)>,
    /// Processes told to dump core.
    cores: Vec<Core>,
    ascii: bool,
}

impl Actor {
    /// Before the first process joins: puts the conditions in place.
    pub fn install(
        mut plan: Plan,
        view: &mut AccountView,
        connection: Arc<Connection>,
    ) -> Result<Self, Error> {
        plan.labels_resolve(&connection)?;
        plan.install(view)?;
        let mut actor = Self::new(plan, connection);
        actor.sites_learn(view);
        Ok(actor)
    }

    fn new(plan: Plan, connection: Arc<Connection>) -> Self {
        Self {
            connection,
            links: Vec::new(),
            states: plan
                .watches
                .iter()
                .map(|watch| watch.actions.iter().map(|_| State::default()).collect())
                .collect(),
            judged: plan.watches.iter().map(|_| Judged::default()).collect(),
            known: Box::new([0; DEBOX_SITES_MAX / 64]),
            pending: Vec::new(),
            running: None,
            cores: Vec::new(),
            ascii: crate::output::ascii(),
            plan,
        }
    }

    /// Which calls conditions may be about, and from how long on.
    pub fn calls_asked(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let conditions = self.plan.slots.iter().map(|slot| &slot.condition);
        conditions.flat_map(|condition| {
            // A call lasts as long as any part of it.
            let longer = [
                DEBOX_FIELD_WALL_NS,
                DEBOX_FIELD_CPU_NS,
                DEBOX_FIELD_BLOCKED_NS,
                DEBOX_FIELD_RUNQ_NS,
            ];
            let asked = (longer.iter())
                .filter(|&&field| condition.fields >> field & 1 != 0)
                .map(|&field| condition.min[field as usize]);
            let from_ns = u64::try_from(asked.max().unwrap_or(0)).unwrap_or(0);
            let keys = 0..DEBOX_NR_SLOTS as u32;
            let is_asked = |key: &u32| condition.calls[*key as usize / 64] >> (key % 64) & 1 != 0;
            keys.filter(is_asked).map(move |key| (key, from_ns))
        })
    }

    /// Whether conditions ask for places, whose names come as time goes on.
    pub fn asks_sites(&self) -> bool {
        self.plan
            .slots
            .iter()
            .any(|slot| self.plan.watches[slot.watch].parts[slot.part].asks_sites())
    }

    /// Whether a stopped command must not stop debox along with it.
    pub fn stops(&self) -> bool {
        self.plan
            .has(|action| action.signal() == Some(libc::SIGSTOP))
    }

    /// Tells the kernel side which places the conditions mean, as far as they
    /// have a name by now.
    pub fn sites_learn(&mut self, view: &mut AccountView) {
        if !self.asks_sites() {
            return;
        }
        for site in 0..view.site_count() {
            if self.known[site / 64] >> (site % 64) & 1 != 0 {
                continue;
            }
            let Some(text) = view.site(site) else {
                continue;
            };
            self.known[site / 64] |= 1 << (site % 64);
            let Some(details) = &mut view.details else {
                return;
            };
            for (index, slot) in self.plan.slots.iter_mut().enumerate() {
                let part = &self.plan.watches[slot.watch].parts[slot.part];
                if !part.asks_sites() {
                    continue;
                }
                let member = part.wants_site(text_get(&text.label), text_get(&text.function));
                details.control.site_judge(index, site as u32, member);
                // A condition that is put in place anew must know as much.
                slot.condition.known[site / 64] |= 1 << (site % 64);
                if member {
                    slot.condition.sites[site / 64] |= 1 << (site % 64);
                }
            }
        }
    }

    /// The texts of the conditions, in the order of the command line.
    pub fn conditions(&self) -> Vec<String> {
        let watches = self.plan.watches.iter();
        watches.map(|w| w.expression.text().to_owned()).collect()
    }

    /// Empties the ring and does what its events ask for. `each` sees them all,
    /// with a bit in `conditions` for each of [`Actor::conditions`] that was
    /// met, whoever judged it, and nothing uncertain.
    pub fn turn(&mut self, view: &mut AccountView, each: &mut dyn FnMut(&debox_event_call)) {
        self.sites_learn(view);
        let mut events: Vec<Box<debox_event_call>> = Vec::new();
        if let Some(details) = &mut view.details {
            details.events.drain(|bytes| {
                if let Some(event) = debox_event_call::read_from(bytes)
                    && event.kind == DEBOX_EVENT_CALL
                {
                    events.push(Box::new(event));
                }
            });
        }
        let waiting = std::mem::take(&mut self.pending);
        for (since, event) in waiting {
            self.event(view, event, since, each);
        }
        for event in events {
            if event.conditions | event.uncertain == 0 {
                // Only slow.
                each(&event);
            } else {
                self.event(view, event, Instant::now(), each);
            }
        }
        self.reap();
    }

    /// Whether it is of something that lasts; see [`super::ActArgs::lasting`].
    pub fn lasts(&self) -> bool {
        self.plan.lasting
    }

    /// Whether a call waits for the name of a place.
    pub fn waits(&self) -> bool {
        !self.pending.is_empty()
    }

    fn event(
        &mut self,
        view: &mut AccountView,
        mut event: Box<debox_event_call>,
        since: Instant,
        each: &mut dyn FnMut(&debox_event_call),
    ) {
        let site = |index: u32| view.site(index as usize);
        let unnamed =
            |sleep: &debox_event_sleep| sleep.site != DEBOX_SITE_NONE && site(sleep.site).is_none();
        if since.elapsed() < NAME_WAIT
            && self.pending.len() < PENDING_MAX
            && show::sleeps(&event).iter().any(unnamed)
        {
            // Whatever is done with it, it is better done with names.
            self.pending.push((since, event));
            return;
        }
        let mut tasks: Vec<(usize, usize, bool, bool)> = Vec::new();
        let mut met = 0u32;
        for watch in 0..self.plan.watches.len() {
            let bits = |wanted: &dyn Fn(&Slot) -> bool| -> u32 {
                let slots = self.plan.slots.iter().enumerate();
                slots
                    .filter(|(_, slot)| slot.watch == watch && wanted(slot))
                    .fold(0, |bits, (index, _)| bits | 1 << index)
            };
            let part = |slot: &Slot| &self.plan.watches[watch].parts[slot.part];
            let exact = bits(&|slot| part(slot).exact());
            let signals = bits(&|slot| slot.signal);
            let mine = bits(&|_| true);
            let sure = event.conditions & exact;
            let perhaps = (event.conditions & mine & !exact) | (event.uncertain & mine);
            if sure == 0 && perhaps == 0 {
                continue;
            }
            let mut late = false;
            // Nothing but the name of a place was missing.
            let unannounced = (event.conditions | event.uncertain) & mine & !exact == 0;
            if sure == 0 {
                // Naming it may take long, the first time.
                let caller = if self.plan.watches[watch].asks_caller() {
                    frames(view.details.as_ref(), &event, true).and_then(|frames| frames.caller)
                } else {
                    None
                };
                let texts: Vec<Option<debox_site>> = show::sleeps(&event)
                    .iter()
                    .map(|sleep| site(sleep.site))
                    .collect();
                let ends: Vec<Option<Ends>> = if self.plan.watches[watch].asks_chains() {
                    let sleeps = show::sleeps(&event).iter();
                    sleeps.map(|sleep| self.ends(view, sleep.chain)).collect()
                } else {
                    Vec::new()
                };
                let answer = self.plan.watches[watch].expression.judge(&facts(
                    &event,
                    &texts,
                    &ends,
                    caller.as_deref(),
                    self.plan.irq,
                ));
                match answer {
                    Answer::Yes => late = true,
                    Answer::No => {
                        self.judged[watch].not_met += 1;
                        continue;
                    }
                    Answer::Unknown => {
                        self.judged[watch].unknown += 1;
                        continue;
                    }
                }
                self.judged[watch].met += 1;
            }
            met |= 1 << watch;
            for (index, planned) in self.plan.watches[watch].actions.iter().enumerate() {
                let signal = planned.action.signal().is_some();
                // Of an event that the kernel side has sent for the sake of
                // another action, this one is none of its conditions.
                let class = if signal { signals } else { mine & !signals };
                if late && signal && unannounced {
                    self.states[watch][index].missed += 1;
                } else if late || sure & class != 0 {
                    tasks.push((watch, index, late, signal && !late));
                }
            }
        }
        (event.conditions, event.uncertain) = (met, 0);
        each(&event);
        for (watch, action, late, sent) in tasks {
            self.act(view, &event, watch, action, late, sent);
        }
    }

    /// What `root` and `chain` are compared with; None: not known.
    fn ends(&mut self, view: &AccountView, chain: u32) -> Option<Ends> {
        if chain as usize > self.links.len() {
            self.links = self.connection.chains().ok()?;
        }
        Ends::of(&self.links, chain, &|index| view.site(index as usize))
    }

    /// `sent`: the kernel side has done it.
    fn act(
        &mut self,
        view: &mut AccountView,
        event: &debox_event_call,
        watch: usize,
        index: usize,
        late: bool,
        sent: bool,
    ) {
        let planned = &self.plan.watches[watch].actions[index];
        let action = planned.action.clone();
        let (limit, every) = (planned.limit, Duration::from_nanos(planned.every_ns));
        let state = &mut self.states[watch][index];
        if sent {
            if event.signal == 0 {
                state.failed += 1;
                if !state.told {
                    state.told = true;
                    crate::say(&format!(
                        "{}: process {} is another user's, and may not be sent signals",
                        action.text(),
                        event.pid
                    ));
                }
                return;
            }
        } else {
            let early = state.last.is_some_and(|last| last.elapsed() < every);
            let busy = matches!(action, Action::Exec(_)) && self.running.is_some();
            if (limit != 0 && state.acted >= limit) || early || busy {
                return;
            }
        }
        state.acted += 1;
        state.late += u64::from(late);
        state.last = Some(Instant::now());
        let reached = limit != 0 && state.acted >= limit && !state.told;
        let done = self.carry_out(view, event, watch, &action, late, sent);
        let state = &mut self.states[watch][index];
        if let Err(why) = done {
            state.acted -= 1;
            state.failed += 1;
            crate::say(&format!("--do '{}': {why}", action.text()));
        } else if reached {
            state.told = true;
            if limit > 1 {
                crate::say(&format!(
                    "--do '{}' was done {limit} times: from now on only counted (--limit 0: without limit)",
                    action.text()
                ));
            }
            self.quieten(view, watch);
        }
    }

    /// Actions that have all reached their limit need no more events; the
    /// kernel side goes on counting.
    fn quieten(&mut self, view: &mut AccountView, watch: usize) {
        for signal in [false, true] {
            let actions = self.plan.watches[watch].actions.iter();
            let spent = actions
                .zip(&self.states[watch])
                .filter(|(planned, _)| planned.action.signal().is_some() == signal)
                .all(|(planned, state)| planned.limit != 0 && state.acted >= planned.limit);
            if !spent {
                continue;
            }
            let Some(details) = &mut view.details else {
                return;
            };
            for (index, slot) in self.plan.slots.iter().enumerate() {
                if slot.watch == watch && slot.signal == signal {
                    details.control.condition_quieten(index);
                }
            }
        }
    }

    /// Whole lines; what is foreign in them was made harmless before.
    fn write(&mut self, text: &str) -> Result<(), String> {
        match &mut self.plan.log {
            None => {
                let _ = std::io::stderr().lock().write_all(text.as_bytes());
                Ok(())
            }
            Some((file, path)) => file
                .write_all(text.as_bytes())
                .map_err(|error| format!("cannot write {}: {error}", path.display())),
        }
    }

    fn carry_out(
        &mut self,
        view: &mut AccountView,
        event: &debox_event_call,
        watch: usize,
        action: &Action,
        late: bool,
        sent: bool,
    ) -> Result<(), String> {
        if let Some(number) = action.signal()
            && !sent
        {
            signal_send(event, number)?;
        }
        let site = |index: u32| view.site(index as usize);
        let line = show::line(event, &site, late, self.ascii);
        match action {
            Action::Keep => Ok(()),
            Action::Print => self.write(&format!("debox: {line}\n")),
            Action::Stack => {
                let frames = frames(view.details.as_ref(), event, false).unwrap_or_default();
                let text = show::stack(event, &site, &frames.lines, &frames.why, self.ascii);
                self.write(&format!("debox: {line}\n{text}"))
            }
            Action::Core => {
                let pid = event.pid as i32;
                let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
                crate::say(&format!(
                    "--do core: {} as this call returned: {line}",
                    told("SIGABRT", late)
                ));
                self.cores.push(Core {
                    pid,
                    tid: event.tid as i32,
                    comm: name_get(&event.comm).into_owned(),
                    directory: link("cwd"),
                    program: link("exe"),
                });
                Ok(())
            }
            Action::Stop => {
                crate::say(&format!(
                    "--do stop: {} as this call returned: {line}",
                    told("SIGSTOP", late)
                ));
                crate::say(&format!(
                    "  look: gdb -p {pid}    go on: kill -CONT {pid}",
                    pid = event.pid
                ));
                Ok(())
            }
            Action::Signal(_) => {
                crate::say(&format!(
                    "--do '{}': {} as this call returned: {line}",
                    action.text(),
                    told("sent", late)
                ));
                Ok(())
            }
            Action::Exec(words) => self.exec(view, event, watch, words, late),
        }
    }

    fn exec(
        &mut self,
        view: &AccountView,
        event: &debox_event_call,
        watch: usize,
        words: &[String],
        late: bool,
    ) -> Result<(), String> {
        let longest = show::sleeps(event)
            .iter()
            .max_by_key(|sleep| sleep.blocked_ns);
        let site = longest.and_then(|sleep| view.site(sleep.site as usize));
        let caller = frames(view.details.as_ref(), event, true).and_then(|frames| frames.caller);
        let object = Object::of(&event.object);
        let path = object.as_ref().and_then(|o| o.path()).map(str::to_owned);
        let errno = error_name(event.retval).unwrap_or_default();
        let retval = match event.flags & DEBOX_EVENT_SLEEP {
            0 => event.retval.to_string(),
            _ => String::new(),
        };
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("DEBOX_PID", event.pid.to_string())
            .env("DEBOX_TID", event.tid.to_string())
            .env("DEBOX_COMM", name_get(&event.comm).as_ref())
            .env("DEBOX_CALL", show::event_call(event))
            .env("DEBOX_RETVAL", retval)
            .env("DEBOX_ERRNO", errno)
            .env("DEBOX_WALL_NS", event.wall_ns.to_string())
            .env("DEBOX_CPU_NS", event.cpu_ns.to_string())
            .env("DEBOX_BLOCKED_NS", event.blocked_ns.to_string())
            .env("DEBOX_RUNQ_NS", event.runq_ns.to_string())
            .envs(
                self.plan
                    .irq
                    .then(|| ("DEBOX_IRQ_NS", event.irq_ns.to_string())),
            )
            .env(
                "DEBOX_LABEL",
                site.as_ref().map_or("", |site| text_get(&site.label)),
            )
            .env(
                "DEBOX_FUNCTION",
                site.as_ref().map_or("", |site| text_get(&site.function)),
            )
            .env("DEBOX_PATH", path.unwrap_or_default())
            .env(
                "DEBOX_OBJECT",
                object.map_or(String::new(), |object| object.text),
            )
            .env("DEBOX_CALLER", caller.unwrap_or_default())
            .env(
                "DEBOX_CONDITION",
                self.plan.watches[watch].expression.text(),
            )
            .env("DEBOX_LATE", if late { "1" } else { "0" })
            .stdin(Stdio::null());
        // Standard output is the watched command's.
        if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
            command.stdout(stderr);
        }
        let child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        self.running = Some((child, words.join(" ")));
        Ok(())
    }

    fn reap(&mut self) {
        if let Some((child, words)) = &mut self.running {
            match child.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) if !status.success() => {
                    crate::say(&format!("--do 'exec {words}': {status}"));
                }
                _ => {}
            }
            self.running = None;
        }
    }

    /// Calls that met a condition, and those that were judged afterwards.
    fn met(&self, watch: usize, kernel: Option<&debox_details>) -> (u64, u64) {
        let mut met = self.judged[watch].met;
        let mut uncertain = 0;
        // The counts of one class of conditions: those of the other repeat them.
        let slots = self.plan.slots.iter().enumerate();
        let first = slots.clone().find(|(_, slot)| slot.watch == watch);
        let class = first.is_some_and(|(_, slot)| slot.signal);
        for (index, slot) in slots.filter(|(_, s)| s.watch == watch && s.signal == class) {
            if let Some(kernel) = kernel {
                let counts = &kernel.condition[index];
                let exact = self.plan.watches[watch].parts[slot.part].exact();
                met += if exact { counts.matched } else { 0 };
                uncertain += counts.uncertain;
            }
        }
        (met, uncertain)
    }

    /// What came of the conditions so far, in the order in which they were given.
    pub fn sums(&self, view: &AccountView) -> Vec<Sum> {
        let kernel = view.details.as_ref().map(DetailsView::copy);
        let watches = 0..self.plan.watches.len();
        let sum = |watch: usize| Sum {
            met: self.met(watch, kernel.as_deref()).0,
            acted: self.states[watch]
                .iter()
                .map(|state| state.acted)
                .max()
                .unwrap_or(0),
        };
        watches.map(sum).collect()
    }

    /// When it is to be looked at again, if no event comes before.
    pub fn due(&self) -> Option<Duration> {
        match (self.waits(), self.asks_sites()) {
            (true, _) => Some(Duration::from_millis(5)),
            (false, true) => Some(Duration::from_millis(250)),
            (false, false) => None,
        }
    }

    /// Lets what is under way come to its end; `each` sees the events that were
    /// still to be judged. What it came to, as notes and sums.
    pub fn finish(
        mut self,
        view: &mut AccountView,
        each: &mut dyn FnMut(&debox_event_call),
    ) -> (Vec<Note>, Vec<Sum>) {
        // An event waits for NAME_WAIT at most.
        self.turn(view, each);
        while self.waits() {
            std::thread::sleep(Duration::from_millis(5));
            self.turn(view, each);
        }
        let until = Instant::now() + EXEC_WAIT;
        while self.running.is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            self.reap();
        }
        if let Some((child, words)) = &self.running {
            crate::say(&format!(
                "--do 'exec {words}' still runs (process {}) and is left alone",
                child.id()
            ));
        }
        for core in &self.cores {
            let directory = core.directory.as_deref();
            if let Some(path) = core_found(core.pid, core.tid, &core.comm, directory) {
                let program = match &core.program {
                    Some(program) => shell_word(program.as_os_str().as_bytes()),
                    None => "-c".into(),
                };
                crate::say(&format!(
                    "core of process {}: gdb {program} {}",
                    core.pid,
                    shell_word(path.as_os_str().as_bytes())
                ));
            }
        }
        let kernel = view.details.as_ref().map(DetailsView::copy);
        let mut notes: Vec<Note> = Vec::new();
        for watch in 0..self.plan.watches.len() {
            let expression = self.plan.watches[watch].expression.text();
            let mut text = match self.plan.lasting {
                true => format!("condition '{expression}': "),
                false => format!("--on '{expression}': "),
            };
            let (met, uncertain) = self.met(watch, kernel.as_deref());
            text.push_str(&format!(
                "met by {} {}",
                count_text(met),
                match (self.plan.of_sleeps, met) {
                    (true, 1) => "sleep",
                    (true, _) => "sleeps",
                    (false, 1) => "call",
                    (false, _) => "calls",
                }
            ));
            for (planned, state) in self.plan.watches[watch]
                .actions
                .iter()
                .zip(&self.states[watch])
            {
                text.push_str(&format!(
                    "; {} {} times",
                    planned.action.done(),
                    count_text(state.acted)
                ));
                if state.late > 0 {
                    text.push_str(&format!(" ({} late)", count_text(state.late)));
                }
                if state.missed > 0 {
                    text.push_str(&format!(
                        ", {} not, as the call had returned before its place had a name",
                        count_text(state.missed)
                    ));
                }
                if state.failed > 0 {
                    text.push_str(&format!(", {} failed", count_text(state.failed)));
                }
                let rest = met.saturating_sub(state.acted + state.missed + state.failed);
                if rest > 0 {
                    text.push_str(&format!(", held back {} times", count_text(rest)));
                }
            }
            if uncertain > 0 {
                text.push_str(&format!(
                    "; {} calls slept where no label was known yet and were judged afterwards",
                    count_text(uncertain)
                ));
            }
            if self.judged[watch].unknown > 0 {
                text.push_str(&format!(
                    "; {} {} could not be judged",
                    count_text(self.judged[watch].unknown),
                    if self.judged[watch].unknown == 1 {
                        "call"
                    } else {
                        "calls"
                    }
                ));
            }
            // What lasts has these in series of their own.
            let count = if self.plan.lasting { 0 } else { met };
            notes.push(Note::new(NoteKind::Other, count, text));
        }
        if let Some(kernel) = kernel.filter(|kernel| kernel.events_dropped > 0) {
            notes.push(Note::new(
                NoteKind::Other,
                kernel.events_dropped,
                format!(
                    "{} events found no room on their way from the kernel: nothing was done about these. \
                     A narrower --on helps",
                    count_text(kernel.events_dropped)
                ),
            ));
        }
        (notes, self.sums(view))
    }
}

fn facts<'a>(
    event: &'a debox_event_call,
    sites: &'a [Option<debox_site>],
    ends: &'a [Option<Ends>],
    caller: Option<&'a str>,
    irq: bool,
) -> CallFacts<'a> {
    let mut call = CallFacts {
        key: Some(event.key),
        comm: Some(text_get(&event.comm)),
        caller,
        sites_whole: event.sleeps_dropped == 0,
        ..CallFacts::default()
    };
    call.set(Number::Wall, event.wall_ns);
    call.set(Number::Blocked, event.blocked_ns);
    call.set(Number::Runq, event.runq_ns);
    call.set(Number::Pid, event.pid.into());
    call.set(Number::Tid, event.tid.into());
    if event.flags & DEBOX_EVENT_SLEEP == 0 {
        call.set(Number::Cpu, event.cpu_ns);
        if irq {
            call.set(Number::Irq, event.irq_ns);
        }
        call.set(Number::Minflt, event.minor_faults.into());
        call.set(Number::Majflt, event.major_faults.into());
        call.set(Number::Sleeps, event.nvcsw.into());
        call.set(Number::Preemptions, event.nivcsw.into());
        call.numbers[Number::Retval as usize] = Some(event.retval);
    }
    let waiters = show::sleeps(event).iter().map(|sleep| sleep.waiters_entry);
    if event.sleeps_dropped == 0 {
        call.set(Number::Waiters, waiters.max().unwrap_or(0).into());
    }
    let sleeps = show::sleeps(event).iter().enumerate();
    call.sites = sleeps
        .map(|(at, sleep)| {
            let site = sites[at].as_ref();
            let end = ends.get(at).and_then(Option::as_ref);
            SiteFacts {
                label: site.map(|site| text_get(&site.label)),
                function: site.map(|site| text_get(&site.function)),
                holder: Some(text_get(&sleep.holder_comm)),
                root: end.map(|end| end.root.as_str()),
                chain: end.map(|end| end.chain.as_str()),
            }
        })
        .collect();
    call
}

#[derive(Default)]
struct Frames {
    lines: Vec<String>,
    /// The program's function that made the call.
    caller: Option<String>,
    /// Why there are no lines.
    why: String,
}

/// The program's stack of an event; `caller_only` names that frame alone.
fn frames(
    details: Option<&DetailsView>,
    event: &debox_event_call,
    caller_only: bool,
) -> Option<Frames> {
    let mut frames = Frames::default();
    let details = details?;
    if event.user_stack == 0 {
        frames.why = match event.flags & DEBOX_EVENT_SLEEP {
            0 => "the kernel could not walk it".into(),
            _ => "with --capture=sleeps it is not walked".into(),
        };
        return Some(frames);
    }
    let stack = details.user_stack(event.user_stack)?;
    let depth = (stack.depth as usize).min(DEBOX_USER_FRAMES_MAX);
    let site_frame = (stack.site_frame as usize).min(depth.saturating_sub(1));
    SYMBOLS.with_borrow_mut(|symbols| {
        for (index, frame) in stack.frames[..depth].iter().enumerate() {
            if caller_only && index != site_frame {
                continue;
            }
            let offset = frame & ((1 << DEBOX_FRAME_FILE_SHIFT) - 1);
            let code = match (frame >> DEBOX_FRAME_FILE_SHIFT) as u32 {
                0 => UserCode::Memory { pid: event.pid },
                file => match details.user_file(file) {
                    Some(file) => UserCode::File(CodeFile {
                        path: text_get(&file.path).into(),
                        pid: Some(event.pid),
                        build_id: None,
                    }),
                    None => UserCode::Memory { pid: event.pid },
                },
            };
            let named = symbols.resolve_one(&code, offset);
            if index == site_frame {
                frames.caller = named
                    .first()
                    .map(|frame| frame.function.clone())
                    .filter(|name| !name.is_empty());
            }
            frames
                .lines
                .extend(named.iter().map(|frame| frame.to_string()));
        }
    });
    if stack.flags & (DEBOX_STACK_CUT | DEBOX_STACK_LOST) != 0 && !caller_only {
        frames.lines.push("... (not to its end)".into());
    }
    if frames.lines.is_empty() {
        frames.why = "it is not complete yet".into();
    }
    Some(frames)
}

/// A signal that came late did not come as the call returned.
fn told(what: &str, late: bool) -> String {
    if late {
        format!("{what}, some time after and not")
    } else {
        what.to_owned()
    }
}

/// Late: by hand, to the thread.
fn signal_send(event: &debox_event_call, signal: i32) -> Result<(), String> {
    // SAFETY: no memory involved. The kernel checks that the thread is still
    // one of that process.
    let result = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            event.pid as libc::pid_t,
            event.tid as libc::pid_t,
            signal,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        let error = std::io::Error::last_os_error();
        Err(format!("process {}: {error}", event.pid))
    }
}

/// How long it may take until an event is looked at.
pub fn pause(actor: &Actor, age: Duration) -> Duration {
    // The names of new places come most at first.
    let ms = if actor.waits() || (actor.asks_sites() && nanos(age) < 2_000_000_000) {
        3
    } else if actor.asks_sites() {
        20
    } else {
        100
    };
    Duration::from_millis(ms)
}
