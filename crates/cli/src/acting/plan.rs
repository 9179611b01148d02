// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which conditions does the kernel side get, and what belongs to each?

use super::action::Action;
use super::args::ActArgs;
use super::ends;
use crate::error::Error;
use crate::session::nanos;
use ::debox_condition::{Expression, Number, Part, Predicate, TextField, compile, underline};
use debox_abi::debox_condition as Condition;
use debox_abi::*;
use debox_client::{AccountView, Connection};
use debox_labels::Rules;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Everything that --on and --do ask for, checked.
pub struct Plan {
    pub watches: Vec<Watch>,
    pub slots: Vec<Slot>,
    /// Instead of standard error.
    pub log: Option<(File, PathBuf)>,
    /// Interrupts are measured.
    pub irq: bool,
    /// See [`ActArgs::lasting`].
    pub lasting: bool,
    /// The ends of calls are not seen: it is about their sleeps, one by one.
    pub of_sleeps: bool,
}

/// One --on.
pub struct Watch {
    pub expression: Expression,
    pub parts: Vec<Part>,
    pub actions: Vec<Planned>,
}

impl Watch {
    pub fn asks_chains(&self) -> bool {
        self.expression.tests().iter().any(|test| {
            matches!(
                test.predicate,
                Predicate::Text(TextField::Root | TextField::Chain, _)
            )
        })
    }

    pub fn asks_caller(&self) -> bool {
        self.expression
            .tests()
            .iter()
            .any(|test| matches!(test.predicate, Predicate::Text(TextField::Caller, _)))
    }
}

/// One --do.
pub struct Planned {
    pub action: Action,
    /// 0: without limit.
    pub limit: u64,
    pub every_ns: u64,
}

/// One of the kernel side's conditions. Signals have their own, as they are
/// limited on their own.
pub struct Slot {
    pub watch: usize,
    pub part: usize,
    pub signal: bool,
    pub condition: Box<Condition>,
}

/// The labels that rules give, for hints.
fn labels(extra: Option<&Path>) -> Vec<String> {
    let extra: Vec<PathBuf> = extra.map(Path::to_path_buf).into_iter().collect();
    // Bad rules are the broker's to complain about.
    let rules = Rules::load(&extra).unwrap_or_else(|_| Rules::builtin());
    rules.iter().map(|rule| rule.label.clone()).collect()
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}

impl Plan {
    /// Refuses what makes no sense before anything starts; None: nothing is
    /// asked for.
    pub fn new(
        args: &ActArgs,
        irq: bool,
        label_rules: Option<&Path>,
    ) -> Result<Option<Self>, Error> {
        if args.rules.is_empty() {
            return Ok(None);
        }
        let lasting = args.lasting;
        let mut watches = Vec::new();
        let mut slots = Vec::new();
        for rule in &args.rules {
            let expression = Expression::parse(&rule.on)
                .map_err(|error| Error::Arguments(format!("--on: {}", error.render(&rule.on))))?;
            if let Some(test) = (expression.tests().into_iter())
                .find(|test| !irq && matches!(test.predicate, Predicate::Number(Number::Irq, _)))
            {
                return Err(Error::Arguments(format!(
                    "--on: interrupts are measured on request only: add --irq\n{}",
                    underline(&rule.on, test.at, test.length)
                )));
            }
            let known = match args.lasting {
                true => Vec::new(),
                false => labels(label_rules),
            };
            let unknown = |field, known: &[&str]| match args.lasting {
                true => Vec::new(),
                false => expression.words_unknown(field, known.iter().copied()),
            };
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            for (at, length, name, near) in unknown(TextField::Label, &known) {
                let near = near.map_or(String::new(), |near| format!(" Did you mean {near}?"));
                crate::say_lines(&format!(
                    "note: no rule gives the label {name}; it fits places without a rule only, whose label is \
                     their function.{near}\n{}",
                    underline(&rule.on, at, length)
                ));
            }
            let ends: Vec<&str> = known.iter().chain(ends::ROOTS.iter()).copied().collect();
            for (at, length, name, near) in unknown(TextField::Root, &ends) {
                let near = near.map_or(String::new(), |near| format!(" Did you mean {near}?"));
                crate::say_lines(&format!(
                    "note: no chain ends in {name}: a root is a label, running, run-queue, timer, time-limit, device, \
                     network, interrupt, or disk-read, disk-write, disk-flush and the like.{near}\n{}",
                    underline(&rule.on, at, length)
                ));
            }
            let actions = rule
                .actions
                .iter()
                .map(|args| {
                    let action = match lasting && args.text == "keep" {
                        true => Action::Keep,
                        false => Action::parse(&args.text)?,
                    };
                    Ok(Planned {
                        limit: args.limit.unwrap_or_else(|| action.limit()),
                        every_ns: args.every.map_or(0, nanos),
                        action,
                    })
                })
                .collect::<Result<Vec<_>, Error>>()?;
            if actions
                .iter()
                .filter(|a| a.action.signal().is_some())
                .count()
                > 1
            {
                return Err(Error::Arguments(format!(
                    "--on '{}': a call can be followed by one signal, and {} send one each: keep one of them",
                    rule.on,
                    actions
                        .iter()
                        .filter(|a| a.action.signal().is_some())
                        .map(|a| a.action.text())
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
            let room = DEBOX_CONDITIONS_MAX - slots.len();
            let signals = actions.iter().any(|a| a.action.signal().is_some());
            let others = actions.iter().any(|a| a.action.signal().is_none());
            let each = usize::from(signals) + usize::from(others);
            let refused = |text: String| {
                Error::Arguments(format!(
                    "--on: {}\n{}",
                    indented(&text),
                    underline(&rule.on, 0, rule.on.len())
                ))
            };
            let compiled = compile(&expression, DEBOX_CONDITIONS_MAX)
                .map_err(|error| refused(error.to_string()))?;
            if compiled.parts.len() * each > room {
                return Err(refused(format!(
                    "it takes {} of the kernel side's {DEBOX_CONDITIONS_MAX} conditions{}, and {room} are left. \
                     Use fewer '||', '!=' and --on",
                    compiled.parts.len() * each,
                    if each > 1 {
                        " (signals need their own)"
                    } else {
                        ""
                    },
                )));
            }
            let late = compiled.late();
            if signals && !late.is_empty() {
                crate::say(&format!(
                    "note: the kernel cannot judge {}: where that decides, the signal comes some milliseconds \
                     after the call has returned",
                    late.join(", ")
                ));
            }
            for (part, compiled) in compiled.parts.iter().enumerate() {
                for signal in [false, true] {
                    let class: Vec<&Planned> = actions
                        .iter()
                        .filter(|a| a.action.signal().is_some() == signal)
                        .collect();
                    if !class.is_empty() {
                        slots.push(Slot {
                            watch: watches.len(),
                            part,
                            signal,
                            condition: condition(compiled, &class),
                        });
                    }
                }
            }
            watches.push(Watch {
                expression,
                parts: compiled.parts,
                actions,
            });
        }
        let log = args
            .log
            .as_ref()
            .map(|path| {
                debox_output::create(path)
                    .map(|file| (file, path.clone()))
                    .map_err(|source| Error::Output {
                        path: path.clone(),
                        source,
                    })
            })
            .transpose()?;
        Ok(Some(Self {
            watches,
            slots,
            log,
            irq,
            lasting,
            of_sleeps: false,
        }))
    }

    /// With `--capture=sleeps`: as each sleep ends, and not as its call does.
    ///
    /// # Errors
    /// It asks for what is not known then.
    pub fn of_sleeps(mut self) -> Result<Self, Error> {
        for watch in &self.watches {
            if let Some(test) = watch.expression.not_of_sleeps() {
                return Err(Error::Arguments(format!(
                    "--on: with --capture=sleeps a condition is about one sleep, of which wall, blocked, runq, call, label, \
                     function, holder, root, chain, waiters, pid, tid and comm are known: leave the rest out, or say \
                     --capture=boundary\n{}",
                    underline(watch.expression.text(), test.at, test.length)
                )));
            }
            let signal = |planned: &&Planned| planned.action.signal().is_some();
            if let Some(planned) = watch.actions.iter().find(signal) {
                return Err(Error::Arguments(format!(
                    "--do {}: with --capture=sleeps nothing is done as a call returns; say --capture=boundary, or --do print, \
                     stack or exec",
                    planned.action.text()
                )));
            }
        }
        self.of_sleeps = true;
        Ok(self)
    }

    pub fn has(&self, wanted: impl Fn(&Action) -> bool) -> bool {
        self.watches
            .iter()
            .flat_map(|watch| &watch.actions)
            .any(|planned| wanted(&planned.action))
    }

    pub fn dumps_core(&self) -> bool {
        self.has(|action| *action == Action::Core)
    }

    /// Whether events need the program's stack.
    pub fn wants_stacks(&self) -> bool {
        // A sleep ends in another program's place.
        if self.of_sleeps {
            return false;
        }
        let asks_caller = self.watches.iter().any(Watch::asks_caller);
        asks_caller || self.has(|action| matches!(action, Action::Stack | Action::Exec(_)))
    }

    /// Lets the kernel side judge labels at the first sleep at a place, before it
    /// has a name.
    pub fn labels_resolve(&mut self, connection: &Connection) -> Result<(), Error> {
        let watches = &self.watches;
        let mut asking: Vec<&mut Slot> = (self.slots.iter_mut())
            .filter(|slot| watches[slot.watch].parts[slot.part].asks_labels())
            .collect();
        if asking.is_empty() {
            return Ok(());
        }
        let labels = match connection.labels() {
            Ok(labels) => labels,
            Err(debox_client::Error::Refused { text, .. }) => {
                crate::say(&format!("note: {text}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        for slot in &mut asking {
            let part = &watches[slot.watch].parts[slot.part];
            slot.condition.flags |= DEBOX_CONDITION_LABELS;
            for (number, label) in (1..DEBOX_LABEL_NONE as usize).zip(&labels) {
                if part.wants_label(label) {
                    slot.condition.labels[number / 64] |= 1 << (number % 64);
                }
            }
        }
        Ok(())
    }

    /// Before the first process joins.
    pub fn install(&self, view: &mut AccountView) -> Result<(), Error> {
        let Some(details) = &mut view.details else {
            return Err(Error::CannotWatch {
                why: "the broker gives no single calls, which --on needs".into(),
            });
        };
        for (index, slot) in self.slots.iter().enumerate() {
            details.control.condition_set(index, &slot.condition);
        }
        let stacks = if self.wants_stacks() {
            DEBOX_DETAIL_EVENT_STACKS
        } else {
            0
        };
        let sleeps = if self.of_sleeps {
            DEBOX_DETAIL_SLEEPS
        } else {
            0
        };
        let flags = details.control.flags() | DEBOX_DETAIL_EVENTS | stacks | sleeps;
        details.control.flags_set(flags);
        Ok(())
    }
}

fn condition(part: &Part, class: &[&Planned]) -> Box<Condition> {
    let mut condition = Condition::zeroed_box();
    part.fill(&mut condition);
    condition.flags |= DEBOX_CONDITION_ON | DEBOX_CONDITION_EVENT;
    if !part.exact() {
        // Not all that it picks is meant: limits are for user space.
        return condition;
    }
    // Some other action may go on when one has reached its limit.
    let unlimited = class.iter().any(|planned| planned.limit == 0);
    condition.limit = match class.iter().map(|planned| planned.limit).max() {
        Some(limit) if !unlimited => limit,
        _ => 0,
    };
    condition.interval_ns = class
        .iter()
        .map(|planned| planned.every_ns)
        .min()
        .unwrap_or(0);
    if let Some(signal) = class.iter().find_map(|planned| planned.action.signal()) {
        condition.signal = signal as u32;
        condition.flags |= DEBOX_CONDITION_SIGNAL_THREAD;
    }
    condition
}
