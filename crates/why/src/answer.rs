// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is answered, for people and for programs?

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use debox_output::{duration_text, printable};

use crate::graph::{self, Enders};
use crate::task::{Asleep, State, Task};
use crate::told::{Answer, Deadlock, Link, Means, Neighbour, Thread};
use crate::wait::{Asker, On, Verb, Wait, left};

/// Threads that are followed beyond those that were asked about.
const FOLLOWED_MAX: usize = 4096;
/// Of others' threads: a process with more is followed by its first ones.
const THREADS_OF_OTHERS_MAX: usize = 256;
/// Links that a sentence tells.
const LINKS_MAX: usize = 12;
/// Names in one sentence.
const NAMES_MAX: usize = 4;
/// Threads of one deadlock that are told.
const IN_CIRCLE_MAX: usize = 32;

struct Book {
    asker: Asker,
    waits: BTreeMap<u32, Wait>,
    enders: BTreeMap<u32, Enders>,
    stuck: BTreeSet<u32>,
    in_circle: BTreeSet<u32>,
    alone: HashMap<u32, bool>,
}

pub(crate) fn answer(asker: Asker, asked: &[u32]) -> Answer {
    let mut book = Book {
        asker,
        waits: BTreeMap::new(),
        enders: BTreeMap::new(),
        stuck: BTreeSet::new(),
        in_circle: BTreeSet::new(),
        alone: HashMap::new(),
    };
    book.follow(asked);
    book.stuck = graph::stuck(&book.enders);
    let circles = graph::circles(&book.enders, &book.stuck);
    book.in_circle = circles.iter().flatten().copied().collect();
    let deadlocks: Vec<Deadlock> = circles
        .into_iter()
        .map(|circle| book.deadlock(circle))
        .collect();
    let threads: Vec<Thread> = asked.iter().filter_map(|tid| book.thread(*tid)).collect();
    let told = deadlocks.iter().map(|deadlock| deadlock.text.clone());
    let sentences = told
        .chain(crate::text::sentences(&threads, &book.in_circle))
        .collect();
    let mut notes = book.asker.machine.notes.clone();
    notes.extend(book.notes());
    notes.extend(book.asker.stacks.notes());
    Answer {
        schema: "debox.why",
        schema_version: 1,
        debox_version: env!("CARGO_PKG_VERSION"),
        taken: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
        source: match book.asker.machine.refused {
            Some(_) => "proc",
            None => "kernel",
        },
        sentences,
        deadlocks,
        threads,
        notes,
    }
}

impl Book {
    /// All waits that can be reached from the threads that were asked about.
    fn follow(&mut self, asked: &[u32]) {
        let mut next: Vec<u32> = asked.iter().rev().copied().collect();
        while let Some(tid) = next.pop() {
            if self.waits.contains_key(&tid) || self.waits.len() >= asked.len() + FOLLOWED_MAX {
                continue;
            }
            let Some(wait) = self.asker.wait(tid) else {
                continue;
            };
            let mut groups: Enders = Vec::new();
            let (mut all, mut all_seen) = (Vec::new(), true);
            for on in &wait.on {
                let mut threads = match on {
                    On::Thread(tid) => vec![*tid],
                    On::Process(pid) => self.asker.machine.threads(*pid),
                };
                // More than are looked at: nothing is said of all of them.
                let seen = threads.len() <= THREADS_OF_OTHERS_MAX && !threads.is_empty();
                threads.truncate(THREADS_OF_OTHERS_MAX);
                all.extend(&threads);
                all_seen &= seen;
                if seen {
                    groups.push(threads);
                }
            }
            next.extend(all.iter().rev());
            let only = wait.only_they && wait.verb == Verb::Waits;
            let enders = match wait.needs_all {
                true if only => groups,
                false if only && all_seen => vec![groups.concat()],
                _ => Vec::new(),
            };
            self.waits.insert(tid, wait);
            self.enders.insert(tid, enders);
        }
    }

    fn is_alone(&mut self, pid: u32) -> bool {
        let machine = &mut self.asker.machine;
        *self
            .alone
            .entry(pid)
            .or_insert_with(|| machine.threads(pid).len() <= 1)
    }

    /// `backup (812)`, `worker (813 of backup 812)`; to threads of that process itself
    /// (`about`) only `worker (813)`.
    fn name(&mut self, tid: u32, about: u32) -> String {
        let Some(task) = self.asker.machine.task(tid) else {
            return format!("{tid}");
        };
        let (pid, comm) = (task.pid, printable(&task.comm));
        if task.kernel || pid == about || self.is_alone(pid) {
            return format!("{comm} ({tid})");
        }
        let process = self
            .asker
            .machine
            .leader(pid)
            .map(|task| printable(&task.comm))
            .unwrap_or_default();
        if pid == tid {
            format!("{comm} ({pid}, main thread)")
        } else {
            format!("{comm} ({tid} of {process} {pid})")
        }
    }

    fn name_on(&mut self, on: On, about: u32) -> String {
        match on {
            On::Thread(tid) => self.name(tid, about),
            On::Process(pid) => {
                let comm = self
                    .asker
                    .machine
                    .leader(pid)
                    .map(|task| printable(&task.comm));
                format!("{} ({pid})", comm.unwrap_or_default())
            }
        }
    }

    fn names(&mut self, on: &[On], and: &str, about: u32) -> String {
        let mut names: Vec<String> = Vec::new();
        for one in on.iter().take(NAMES_MAX) {
            names.push(self.name_on(*one, about));
        }
        match (names.as_slice(), on.len()) {
            ([only], 1) => only.clone(),
            ([first @ .., last], all) if all <= NAMES_MAX => {
                format!("{} {and} {last}", first.join(", "))
            }
            (names, all) => {
                format!("{} {and} {} others", names.join(", "), all - names.len())
            }
        }
    }

    /// `has waited 3 s for X held by Y`, or, in the middle of a sentence, `waits for ...`.
    fn clause(&mut self, tid: u32, first: bool) -> String {
        let Some(wait) = self.waits.get(&tid).cloned() else {
            return "was not looked at".into();
        };
        let task = self.asker.machine.task(tid);
        let about = task.map_or(0, |task| task.pid);
        let since = task.and_then(|task| task.since);
        let age = since.filter(|_| first).map(age_text);
        let and = if wait.needs_all { "and" } else { "or" };
        let names = self.names(&wait.on, and, about);
        let on = if wait.on.is_empty() {
            String::new()
        } else {
            format!("{}{names}{}", wait.join, wait.after)
        };
        let text = &wait.text;
        let said = match (wait.verb, age) {
            (Verb::Waits, Some(age)) => format!("has waited {age} {text}{on}"),
            (Verb::Waits, None) => format!("waits {text}{on}"),
            (Verb::Sleeps, Some(age)) => format!("has slept {age} {text}"),
            (Verb::Sleeps, None) => format!("sleeps {text}"),
            (Verb::Stopped, Some(age)) => format!("has been stopped {text}{on} for {age}"),
            (Verb::Stopped, None) => format!("is stopped {text}{on}"),
            (Verb::Runs, _) if first => format!("is not waiting: running {text}"),
            (Verb::Runs, _) => format!("is running {text}"),
            (Verb::Queued, Some(age)) => {
                format!("is not waiting: it could run, and has been without a CPU for {age}{on}")
            }
            (Verb::Queued, None) => format!("could run and waits for {text}"),
            (Verb::Displaced, _) if first => format!("is not waiting: it could run, but {text}"),
            (Verb::Displaced, _) => format!("could run, but {text}"),
            (Verb::Ended, _) => format!("has ended{text}{on}"),
        };
        match self.left(tid) {
            Some(left) if wait.verb == Verb::Sleeps => format!("{said}, {left} left"),
            Some(left) if first => format!("{said}, for {left} more at the most"),
            _ => said,
        }
    }

    fn left(&self, tid: u32) -> Option<String> {
        self.left_ns(tid).map(|ns| duration_text(ns, false))
    }

    fn left_ns(&self, tid: u32) -> Option<u64> {
        let asleep = self.asker.machine.task(tid)?.since.map(|since| since.ns);
        let left = left(self.waits.get(&tid)?.limit?, asleep)?;
        Some(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Who of those that it waits for tells most: somebody stuck, then somebody who
    /// waits for others, then the first.
    fn next(&mut self, tid: u32) -> Option<u32> {
        let wait = self.waits.get(&tid)?.clone();
        // Who has the CPU has been named, and waits for nothing.
        if wait.verb == Verb::Queued {
            return None;
        }
        let mut candidates = Vec::new();
        for on in wait.on {
            match on {
                On::Thread(tid) => candidates.push(tid),
                On::Process(pid) => {
                    let threads = self.asker.machine.threads(pid);
                    candidates.extend(threads.into_iter().take(THREADS_OF_OTHERS_MAX));
                }
            }
        }
        let rank = |tid: &u32| match self.waits.get(tid) {
            _ if self.stuck.contains(tid) => 0,
            Some(wait) if wait.verb == Verb::Stopped => 1,
            Some(wait) if !wait.idle => 2,
            Some(_) => 3,
            None => 4,
        };
        candidates.into_iter().min_by_key(rank)
    }

    fn chain(&mut self, tid: u32) -> Vec<Link> {
        let mut chain = Vec::new();
        let mut seen = BTreeSet::from([tid]);
        let mut at = tid;
        while chain.len() < LINKS_MAX {
            let Some(next) = self.next(at) else { break };
            let Some(task) = self.asker.machine.task(next).cloned() else {
                break;
            };
            let again = !seen.insert(next);
            chain.push(Link {
                pid: task.pid,
                tid: next,
                comm: printable(&task.comm),
                state: task.state,
                asleep_ns: task.since.map(|since| since.ns),
                label: self.waits.get(&next).and_then(|wait| wait.label.clone()),
                text: self.clause(next, false),
                again,
            });
            if again {
                break;
            }
            at = next;
        }
        chain
    }

    /// Without the name it begins with.
    fn sentence(&mut self, tid: u32, chain: &[Link]) -> String {
        let mut text = self.clause(tid, true);
        for (place, link) in chain.iter().enumerate() {
            if link.again {
                text += ": a circle";
                break;
            }
            if self.in_circle.contains(&link.tid) {
                text += ", which is in a deadlock";
                break;
            }
            let before = match place {
                0 => tid,
                _ => chain[place - 1].tid,
            };
            let wait = self.waits.get(&before);
            let many = wait.is_some_and(|wait| wait.on.len() > 1);
            let process = wait.is_some_and(|wait| matches!(wait.on[..], [On::Process(_)]));
            if many {
                text += &format!("; of these {} {}", self.name(link.tid, 0), link.text);
            } else if process && !self.is_alone(link.pid) && link.tid != link.pid {
                text += &format!(", whose thread {} ({}) {}", link.comm, link.tid, link.text);
            } else {
                text += &format!(", which {}", link.text);
            }
        }
        text
    }

    fn deadlock(&mut self, circle: Vec<u32>) -> Deadlock {
        let limited = circle
            .iter()
            .any(|tid| self.waits.get(tid).is_some_and(|wait| wait.limit.is_some()));
        let of = |tid: &u32| self.asker.machine.task(*tid).map_or(0, |task| task.pid);
        let pids: BTreeSet<u32> = circle.iter().map(of).collect();
        let one = pids.first().copied().filter(|_| pids.len() == 1);
        let mut parts = Vec::new();
        for tid in circle.iter().take(IN_CIRCLE_MAX) {
            let name = self.name(*tid, one.unwrap_or(0));
            parts.push(format!("{name} {}", self.clause(*tid, true)));
        }
        if circle.len() > parts.len() {
            parts.push(format!("and {} more", circle.len() - parts.len()));
        }
        let who = match (circle.len(), one) {
            (1, Some(pid)) => format!(" of {} with itself", self.name_on(On::Process(pid), 0)),
            (1, None) => String::new(),
            (n, Some(pid)) => {
                format!(" of {n} threads of {}", self.name_on(On::Process(pid), 0))
            }
            (n, None) => format!(" of {n} threads"),
        };
        let end = if limited {
            ", until a time is over"
        } else {
            ""
        };
        Deadlock {
            until_a_time: limited,
            text: format!("DEADLOCK{who}{end}: {}", parts.join("; ")),
            threads: circle,
        }
    }

    fn thread(&mut self, tid: u32) -> Option<Thread> {
        let task: Task = self.asker.machine.task(tid)?.clone();
        let wait = self.waits.get(&tid)?.clone();
        let call = self.asker.call(&task);
        let places = self.asker.places(&task);
        let user: Vec<String> = (places.iter())
            .map(|place| printable(&place.text))
            .collect();
        let functions: Vec<String> = (places.iter())
            .map(|place| place.function.clone())
            .collect();
        let means = (self.asker.machine.rules.places().iter())
            .find(|rule| functions.iter().any(|function| rule.fits(function)))
            .map(|rule| Means {
                why: rule.why.clone(),
                rests: rule.rests,
            });
        let chain = self.chain(tid);
        let about = self.sentence(tid, &chain);
        let name = self.name(tid, 0);
        let mut waits_for = Vec::new();
        for on in &wait.on {
            let (pid, tid) = match on {
                On::Thread(tid) => (self.asker.machine.task(*tid).map_or(0, |t| t.pid), *tid),
                On::Process(pid) => (*pid, 0),
            };
            let known = self
                .asker
                .machine
                .task(if tid == 0 { pid } else { tid })
                .cloned();
            waits_for.push(Neighbour {
                relation: wait.relation,
                pid,
                tid,
                comm: known
                    .as_ref()
                    .map_or_else(String::new, |t| printable(&t.comm)),
                state: known.map(|task| task.state),
            });
        }
        let meanings = self.asker.machine.rules.meanings();
        let label_text = wait
            .label
            .as_ref()
            .and_then(|label| meanings.get(label))
            .map(|meaning| meaning.what.clone());
        let later = self.clause(tid, false);
        let mut notes = wait.notes.clone();
        if !task.kernel && !crate::proc::may_read(task.pid) {
            notes.push(
                "its memory and files may not be read (CAP_SYS_PTRACE is missing, or a security \
                 policy forbids it): arguments, descriptors and the program's stack are missing"
                    .into(),
            );
        }
        if task.compat {
            notes.push("a 32-bit call: its arguments and the program's stack are not read".into());
        }
        Some(Thread {
            pid: task.pid,
            tid,
            comm: printable(&task.comm),
            state: task.state,
            cpu: match task.state {
                State::Running { cpu } | State::Queued { cpu } => Some(cpu),
                _ => None,
            },
            asleep_ns: task.since.map(|since| since.ns),
            asleep_at_least: task.since.is_some_and(|since| since.at_least),
            call: call.as_ref().map(|call| call.name.clone()),
            call_text: call.as_ref().map(|call| call.text()),
            object: call
                .and_then(|call| call.object)
                .map(|object| printable(&object)),
            left_ns: self.left_ns(tid),
            label: wait.label.clone(),
            label_text,
            idle: wait.idle && !self.stuck.contains(&tid),
            kernel_stack: task.functions.clone(),
            alike: format!(
                "{} {later} {} {}",
                task.pid,
                task.functions.join(";"),
                user.join(";")
            ),
            user_stack: user,
            means,
            sentence: format!("{name} {about}"),
            text: later,
            waits_for,
            only_they: wait.only_they,
            chain,
            deadlocked: self.stuck.contains(&tid),
            notes,
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let machine = &self.asker.machine;
        if let Some(why) = &machine.refused {
            notes.push(format!(
                "the kernel {}, so only /proc was read: holders of the \
                 kernel's locks, ends of sockets and what other users' processes do are \
                 missing. Ask as root: sudo debox why ...",
                why
            ));
        } else if !machine.sees_all {
            notes.push(
                "this is a PID namespace of its own: processes outside of it are not seen, and \
                 nothing that goes through pipes or sockets is called a deadlock"
                    .into(),
            );
        }
        if self.asker.stacks.was_late() {
            notes.push(
                "not all places in programs have been named in time; ask again for more".into(),
            );
        }
        notes
    }
}

pub(crate) fn age_text(since: Asleep) -> String {
    let text = duration_text(since.ns, false);
    if since.at_least {
        format!("at least {text}")
    } else {
        text
    }
}
