// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why did this take so long? In one to three sentences.
//!
//! Of a command with an end: what its end depended on (the critical path), as shares of
//! the time from its beginning to its end. Of what is watched for a while: what its threads
//! did when they had something to do. What threads did while nothing waited for them, and
//! how long they rested, is no answer and not in it. A sentence says what was measured;
//! where that is not enough to judge, it says so, and with which command more is seen.

use crate::chains::{self, link_text, links_of};
use crate::findings::{churn, loops, rare};
use crate::findings::{listed, percent, plural, share, time};
use crate::lives::{self, ASLEEP, Wait};
use crate::model::*;
use debox_labels::Kind;
use debox_output::printable;
use std::collections::BTreeMap;

/// Less of the whole is not named.
const SHARE_MIN: f64 = 0.1;
/// Of a watch: a wait that is seen at its begin and at its end.
const SHARE_ALL_THE_WHILE: f64 = 0.9;
/// What measuring took is told from here on.
const ASIDE_MIN: f64 = 0.01;
/// ... and what it does from here on.
const ASIDE_MUCH: f64 = 0.2;
/// Of the time of several calls: so much of one is told.
const MOSTLY_MIN: f64 = 0.5;
/// From here on it is the answer.
const MOST: f64 = 0.7;
/// Of the CPU time in calls: what calls that do very little make of it is the answer.
const CHURN_MIN: f64 = 0.4;
/// Of the periods of a limit: so many in which it held its group back are told.
const THROTTLED_MIN: f64 = 0.2;
/// ... and is the answer if that lasted for this part of the waiting.
const LIMIT_MIN: f64 = 0.3;
/// Of waits that read the same: a root of so many is that of all, in a sentence.
const ROOT_MOST: f64 = 0.8;
/// Of waits that read the same: so many that a time limit ended are told.
const LIMIT_TOLD: f64 = 0.2;
/// So much of a wait a cause has to explain, to be told before what is not known.
const ROOT_LEAST: f64 = 0.1;
/// Of a program's own time: so much of it in the kernel is told. Ticks tell no less.
const FAULTS_MIN: f64 = 0.2;
/// A fault that reads no disk takes less, also in a guest of a guest.
const FAULT_NS_MAX: u64 = 20_000;
/// Activities fewer than these are not worth percentiles.
const ACTIVITIES_MIN: u64 = 100;

/// At most three sentences; empty when nothing was measured to say it from.
pub fn of(report: &Report) -> Vec<String> {
    if report.run.capture == Capture::Splice && !report.measured.blocked {
        return of_counts(report).unwrap_or_default();
    }
    if report.critical_path.is_some() {
        return of_command(report).unwrap_or_default();
    }
    of_watch(report).unwrap_or_default()
}

/// Calls that end when something comes, or a time is over: what they take is no work.
pub(crate) const WAIT: [&str; 20] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "futex",
    "futex_waitv",
    "io_getevents",
    "io_pgetevents",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pselect6",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "select",
    "wait4",
    "waitid",
];

/// The same; whether a thread rests in them the kernel side does not say.
const WAIT_UNJUDGED: [&str; 2] = ["futex_wait", "vfork"];

/// By which others come to be there.
const BEGINS: [&str; 4] = ["clone", "clone3", "fork", "vfork"];

/// Of calls and their times alone: how much of it they can be, and no more.
fn of_counts(report: &Report) -> Option<Vec<String>> {
    let wall_ns = report.run.wall_ns;
    let setup = report.run.splice_setup.unwrap_or_default();
    let setup_ns = setup.total_ns;
    // It is in the execve that a program begins with, or else in the other call for that.
    let by_execve = report.calls.iter().filter(|row| row.name == "execve");
    let in_execve_ns = setup_ns.min(sum(by_execve.map(CallRow::wall)));
    let took_ns = |row: &CallRow| match row.name.as_str() {
        "execve" => row.wall().saturating_sub(in_execve_ns),
        "execveat" => row.wall().saturating_sub(setup_ns - in_execve_ns),
        _ => row.wall(),
    };
    let part = |waits: bool| {
        let is_wait = |name: &str| WAIT.contains(&name) || WAIT_UNJUDGED.contains(&name);
        let rows = (report.calls.iter()).filter(|row| is_wait(&row.name) == waits);
        let all_ns = sum(rows.clone().map(took_ns));
        let most = rows.max_by_key(|row| took_ns(row));
        let mostly = match most {
            Some(most) if share(took_ns(most), all_ns) >= MOSTLY_MIN => {
                Some(format!("mostly {}", printable(&most.name)))
            }
            _ => None,
        };
        (all_ns, mostly)
    };
    let ((waits_ns, waits), (others_ns, others)) = (part(true), part(false));
    let all_ns = waits_ns.saturating_add(others_ns);
    let of_all = match all_ns <= wall_ns {
        true => format!(" ({})", percent(share(all_ns, wall_ns))),
        // Of several that went on side by side.
        false => ", those of all threads added up".to_owned(),
    };
    let aside = |most: Option<String>| most.map_or_else(String::new, |most| format!(" ({most})"));
    let split = match share(waits_ns, all_ns) {
        few if few < SHARE_MIN => others.map_or_else(String::new, |most| format!(", {most}")),
        most if most > 1.0 - SHARE_MIN => {
            format!(", in calls that wait for something to come{}", aside(waits))
        }
        _ => format!(
            ": {} in calls that wait for something to come{}, {} in others{}",
            time(waits_ns),
            aside(waits),
            time(others_ns),
            aside(others)
        ),
    };
    let mut sentences = vec![format!(
        "In {} system calls took {}{of_all}{split}.",
        time(wall_ns),
        time(all_ns)
    )];
    let own_ns = setup_ns.saturating_add(setup.asked_ns);
    if share(own_ns, wall_ns) >= ASIDE_MIN {
        // Then nobody waited beside another one.
        let is_alone = setup.programs == 1
            && !report
                .calls
                .iter()
                .any(|row| BEGINS.contains(&row.name.as_str()));
        let of_it = match is_alone {
            true => format!("Of {} DeBox itself took {}", time(wall_ns), time(own_ns)),
            false => format!(
                "DeBox itself took {}, of all programs and threads added up,",
                time(own_ns)
            ),
        };
        let to = match (setup.programs, setup.files_copied) {
            (0, _) => "to replace system calls in libraries that were opened meanwhile",
            (_, 0) => "to prepare programs that begin",
            _ => {
                "to prepare programs that begin, and to copy those that it had not seen yet: a second run has less of that"
            }
        };
        // Who asks where the time went is told first what took most of it.
        let at = usize::from(!is_alone || share(own_ns, wall_ns) < MOSTLY_MIN);
        sentences.insert(at, format!("{of_it} {to}."));
    }
    sentences.push(
        "What they waited for, and what went on besides, the kernel side would tell: a note says why there was none."
            .to_owned(),
    );
    Some(sentences)
}

/// Somebody's part of it.
#[derive(Default)]
struct Part {
    own_ns: u64,
    calls_ns: u64,
    exit_ns: u64,
    irq_ns: u64,
    runq_ns: u64,
    /// What the kernel took of the program's own time, if that is worth telling.
    faults: Option<Faults>,
    /// Own code of threads of this name that is not in it: of a path, what went on beside it.
    beside_ns: u64,
    /// By what was waited for.
    blocked: BTreeMap<String, Waits>,
}

/// Waits that read the same, but for their causes.
#[derive(Clone, Default)]
struct Waits {
    total_ns: u64,
    causes: BTreeMap<Cause, Root>,
}

/// Whom it leads to, and where it ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    way: Option<String>,
    root: Option<String>,
}

#[derive(Clone, Copy)]
struct Root {
    ns: u64,
    /// One that leads to it.
    chain: Option<usize>,
    /// It is a cause, and not where knowledge ends.
    known: bool,
    /// Nothing came: the call would not wait longer.
    is_limit: bool,
}

/// Causes that lead to one: the same holder, whatever that waited for; else the same root.
struct Blocker<'a> {
    way: Option<&'a str>,
    ns: u64,
    known: bool,
    is_limit: bool,
    /// Largest first.
    roots: Vec<(Option<&'a str>, &'a Root)>,
}

impl Blocker<'_> {
    /// "python3 in fsync ← disk vda: flush": with its root, if that is nearly all of it.
    fn text(&self) -> Option<String> {
        let root = (self.roots.first())
            .filter(|(_, root)| share(root.ns, self.ns) >= ROOT_MOST)
            .and_then(|(text, _)| *text);
        match (self.way, root) {
            (Some(way), Some(root)) => Some(format!("{way} ← {root}")),
            (cause, None) | (None, cause) => cause.map(str::to_owned),
        }
    }
}

/// Of some of `ns`, the one to tell: a cause before a larger part of which none is known.
fn told_of<T>(list: &[T], ns: u64, of: impl Fn(&T) -> (u64, bool)) -> Option<(&T, Option<&T>)> {
    // Largest first.
    let first = list.first()?;
    let cause = list.iter().position(|one| of(one).1);
    let at = match cause {
        Some(at)
            if share(of(first).0, ns) < ROOT_MOST && share(of(&list[at]).0, ns) >= ROOT_LEAST =>
        {
            at
        }
        _ => 0,
    };
    // Of what comes after it, the first cause is the largest.
    let second = (list.iter().skip(at + 1)).find(|one| of(one).1);
    Some((&list[at], second))
}

impl Waits {
    fn limit_ns(&self) -> u64 {
        sum((self.causes.values())
            .filter(|root| root.is_limit)
            .map(|root| root.ns))
    }

    /// Which file they were for, all but a few. Which of them were is not known, only how long all sleeps of that call
    /// were, and all of them for one file: what is left of the first cannot be more of these waits than that.
    fn file(&self, report: &Report) -> Option<String> {
        let chain = self.causes.values().find_map(|root| root.chain)?;
        let call = links_of(report, chain).first()?.call.as_deref();
        let slept_ns = sum((report.blocking.iter())
            .filter(|row| row.call.as_deref() == call)
            .map(|row| row.total_ns));
        let rows = report.by_object.iter();
        let most = rows
            .filter(|row| row.call.as_deref() == call && row.object.is_some())
            .max_by_key(|row| row.total_ns)?;
        let object = report.objects.get(most.object?)?;
        // Or of these waits something is not in the tables.
        let others_ns = slept_ns.max(self.total_ns).saturating_sub(most.total_ns);
        (object.kind == ObjectKind::File && share(others_ns, self.total_ns) <= 1.0 - ROOT_MOST)
            .then(|| printable(&object.text))
    }

    fn add(&mut self, cause: Cause, root: Root) {
        self.total_ns = self.total_ns.saturating_add(root.ns);
        let sum = self.causes.entry(cause).or_insert(Root { ns: 0, ..root });
        sum.ns = sum.ns.saturating_add(root.ns);
    }

    /// Largest first.
    fn blockers(&self) -> Vec<Blocker<'_>> {
        let mut by: BTreeMap<(Option<&str>, Option<&str>), Blocker<'_>> = BTreeMap::new();
        for (cause, root) in &self.causes {
            let (way, text) = (cause.way.as_deref(), cause.root.as_deref());
            let key = (way, text.filter(|_| way.is_none()));
            let blocker = by.entry(key).or_insert(Blocker {
                way,
                ns: 0,
                known: false,
                is_limit: root.is_limit,
                roots: Vec::new(),
            });
            blocker.ns = blocker.ns.saturating_add(root.ns);
            blocker.known |= root.known;
            blocker.roots.push((text, root));
        }
        let mut list: Vec<Blocker<'_>> = by.into_values().collect();
        for blocker in &mut list {
            (blocker.roots).sort_by_key(|(_, root)| std::cmp::Reverse(root.ns));
        }
        list.sort_by_key(|blocker| std::cmp::Reverse(blocker.ns));
        list
    }

    /// " ← disk vda: flush", or " (60 % of it ← disk vda: flush, 40 % ← a timer)", and a chain to
    /// the first. The second is told if it is half of the first, and worth telling in the whole.
    /// Who waits with a time limit and begins again has waited for what came at last.
    fn root(&self, whole_ns: u64) -> (String, Option<usize>) {
        let limit_ns = self.limit_ns();
        let waited_ns = self.total_ns.saturating_sub(limit_ns);
        let blockers = self.blockers();
        let came = (blockers.iter()).find(|blocker| !blocker.is_limit && blocker.known);
        if let Some(blocker) = came
            && let Some(text) = blocker.text()
            && share(limit_ns, self.total_ns) >= LIMIT_TOLD
            && share(blocker.ns, waited_ns) >= ROOT_MOST
        {
            let limit = match percent(share(limit_ns, self.total_ns)) {
                all if all == percent(1.0) => "nearly all".to_owned(),
                part => part,
            };
            return (
                format!(" ({limit} of it up to its own time limit, and then ← {text})"),
                blocker.roots.first().and_then(|(_, root)| root.chain),
            );
        }
        let of = |blocker: &Blocker<'_>| (blocker.ns, blocker.known);
        let Some((first, second)) = told_of(&blockers, self.total_ns, of) else {
            return (String::new(), None);
        };
        let worth = |ns: u64, first_ns: u64| {
            ns.saturating_mul(2) >= first_ns && share(ns, whole_ns) >= SHARE_MIN
        };
        let parts = |list: [(Option<String>, u64); 2]| {
            let told: Vec<String> = (list.into_iter().enumerate())
                .filter_map(|(at, (text, ns))| {
                    let it = if at == 0 { " of it" } else { "" };
                    Some(format!(
                        "{}{it} ← {}",
                        percent(share(ns, self.total_ns)),
                        text?
                    ))
                })
                .collect();
            match told.is_empty() {
                true => String::new(),
                false => format!(" ({})", told.join(", ")),
            }
        };
        let chain_of =
            |blocker: &Blocker<'_>| blocker.roots.first().and_then(|(_, root)| root.chain);
        if share(first.ns, self.total_ns) < ROOT_MOST {
            let second = second.filter(|second| worth(second.ns, first.ns));
            let second = second.map_or((None, 0), |second| (second.text(), second.ns));
            return (parts([(first.text(), first.ns), second]), chain_of(first));
        }
        // One holder of all, and of that what it waited for.
        let of = |(_, root): &(Option<&str>, &Root)| (root.ns, root.known);
        let Some(((root_text, root), other)) = told_of(&first.roots, first.ns, of) else {
            return (String::new(), None);
        };
        let way = first
            .way
            .map_or_else(String::new, |way| format!(" ← {way}"));
        let roots = match root_text {
            Some(text) if share(root.ns, self.total_ns) >= ROOT_MOST => format!(" ← {text}"),
            _ => {
                let other = other.filter(|(_, other)| worth(other.ns, root.ns));
                let other = other.map_or((None, 0), |(text, other)| {
                    (text.map(str::to_owned), other.ns)
                });
                parts([(root_text.map(str::to_owned), root.ns), other])
            }
        };
        (format!("{way}{roots}"), root.chain)
    }
}

/// Of a name.
#[derive(Clone, Copy)]
struct Faults {
    /// Of its own time.
    share: f64,
    count: u64,
    are_faults: bool,
}

impl Faults {
    fn text(self) -> String {
        match self.are_faults {
            true => format!("in {} page faults", debox_output::count_text(self.count)),
            false => "in the kernel outside of calls".to_owned(),
        }
    }
}

/// Of a name's own time what the kernel took.
fn faults_of(time: &LifeTime) -> Option<Faults> {
    let ns = time.own_kernel_ns()?;
    let share = share(ns, time.own_ns);
    (share >= FAULTS_MIN).then_some(Faults {
        share,
        count: time.minor_faults,
        are_faults: ns / time.minor_faults.max(1) < FAULT_NS_MAX,
    })
}

fn sum(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}

impl Part {
    fn blocked_ns(&self) -> u64 {
        sum(self.blocked.values().map(|waits| waits.total_ns))
    }

    /// Without waiting for a CPU, which is nobody's doing.
    fn did_ns(&self) -> u64 {
        let cpu_ns = sum([self.own_ns, self.calls_ns, self.exit_ns, self.irq_ns]);
        cpu_ns.saturating_add(self.blocked_ns())
    }

    /// Who waits for a time and looks again (Python's threads, for their one interpreter lock) may
    /// have waited for what others computed: nobody woke them, so no path tells.
    fn computed_beside(&self, limit_ns: u64) -> bool {
        limit_ns > 0 && share(self.beside_ns, limit_ns) >= ROOT_MOST
    }

    /// Time limits beside which as much was computed.
    fn beside_limits_ns(&self) -> u64 {
        let limits = self.blocked.values().map(Waits::limit_ns);
        let limit_ns = sum(limits);
        if self.computed_beside(limit_ns) {
            limit_ns
        } else {
            0
        }
    }

    fn blocked_add(&mut self, report: &Report, ns: u64, chain: Option<usize>) {
        let wait = Wait::of(report, chain);
        let links = chain.map_or_else(Vec::new, |first| links_of(report, first));
        let last = links.last();
        let is_limit = last.is_some_and(|link| link.kind == ChainKind::Limit);
        // Of somebody else it is what that one waited for.
        let own = links.len() <= 2;
        let root = Root {
            ns,
            chain,
            known: last.is_some_and(|link| !link.kind.ends_knowledge()) || is_limit && !own,
            is_limit: is_limit && own,
        };
        let cause = Cause {
            way: wait.way,
            root: wait.root,
        };
        self.blocked.entry(wait.text).or_default().add(cause, root);
    }

    /// What it did, of a whole, largest first: (text, time, a chain of a wait).
    fn doings(&self, report: &Report, whole_ns: u64) -> Vec<(String, u64, Option<usize>)> {
        let faults_ns =
            (self.faults).map_or(0, |faults| (self.own_ns as f64 * faults.share) as u64);
        let mut doings = vec![
            (
                match report.own_is_told() {
                    true => "computing in its own code".to_owned(),
                    false => "on a CPU".to_owned(),
                },
                self.own_ns - faults_ns,
                None,
            ),
            (calls_text(report), self.calls_ns, None),
            ("ending".to_owned(), self.exit_ns, None),
            (interrupts_text(report), self.irq_ns, None),
        ];
        doings.extend(self.faults.map(|faults| (faults.text(), faults_ns, None)));
        doings.extend(self.blocked.iter().map(|(text, waits)| {
            let (root, chain) = waits.root(whole_ns);
            let at = if text == ASLEEP { "" } else { "in " };
            let beside = match self.computed_beside(waits.limit_ns()) {
                true => format!(
                    " (other threads of it computed for {})",
                    time(self.beside_ns)
                ),
                false => String::new(),
            };
            let on = waits.file(report).map(|file| format!(" on {file}"));
            let on = on.unwrap_or_default();
            (
                format!("{at}{text}{on}{root}{beside}"),
                waits.total_ns,
                chain,
            )
        }));
        doings.sort_by_key(|(_, ns, _)| std::cmp::Reverse(*ns));
        doings
    }
}

/// "in system calls on a CPU", and in which if one has most of it.
fn calls_text(report: &Report) -> String {
    if !report.measured.calls {
        return "on a CPU in the kernel".to_owned();
    }
    let text = "on a CPU in system calls";
    let all_ns = report.totals.cpu_ns.unwrap_or(0);
    let most = (report.calls.iter()).max_by_key(|row| row.cpu_ns.unwrap_or(0));
    match most {
        Some(row) if share(row.cpu_ns.unwrap_or(0), all_ns) >= MOST => {
            format!("{text} (mostly {})", printable(&row.name))
        }
        _ => text.to_owned(),
    }
}

/// "in interrupts that landed in it", and of which kind if one has most of it.
fn interrupts_text(report: &Report) -> String {
    let text = "in interrupts that landed in it";
    let ns = |row: &InterruptRow| row.total_ns.saturating_add(row.outside_ns);
    let all_ns = sum(report.interrupts.iter().map(ns));
    match (report.interrupts.iter()).max_by_key(|row| ns(row)) {
        Some(row) if share(ns(row), all_ns) >= MOST => {
            format!("{text} (mostly {})", printable(&row.name))
        }
        _ => text.to_owned(),
    }
}

/// "62 % (4.4 s)".
fn part_text(ns: u64, whole_ns: u64) -> String {
    format!("{} ({})", percent(share(ns, whole_ns)), time(ns))
}

fn advice(report: &Report, chain: Option<usize>) -> Option<String> {
    let link = report.chain_links.get(chain?)?;
    if link.means.is_some() {
        return link.means.clone();
    }
    let label = &report.sites.get(link.site?)?.label;
    let meaning = crate::findings::meaning(report, label)?;
    // Advice on waits for nothing is for those who look for a loss there.
    (meaning.kind != Kind::Idle && !meaning.advice.is_empty()).then(|| meaning.advice.clone())
}

/// Who sleeps for a while and looks again is woken by nobody: what it looks for is on no path, and
/// may be what somebody computed beside.
fn polled(report: &Report, parts: &[(&str, Part)], whole_ns: u64) -> Option<String> {
    let (_, first) = parts.first()?;
    let by_timer = |root: &&Root| {
        let links = (root.chain).map_or_else(Vec::new, |chain| links_of(report, chain));
        links
            .last()
            .is_some_and(|link| link.kind == ChainKind::Timer)
    };
    let roots = first
        .blocked
        .values()
        .flat_map(|waits| waits.causes.values());
    let timed_ns = sum(roots.filter(by_timer).map(|root| root.ns));
    let on_path = |comm: &str| {
        let part = parts.iter().find(|(name, _)| *name == comm);
        part.map_or(0, |(_, part)| {
            sum([part.own_ns, part.calls_ns, part.exit_ns])
        })
    };
    let (who, ns) = (lives::groups(&report.lives).into_iter())
        .map(|group| {
            let ns = group.time.cpu_ns().saturating_sub(on_path(&group.comm));
            (group.comm.clone(), ns)
        })
        .max_by_key(|(_, ns)| *ns)?;
    (share(timed_ns, whole_ns) >= 0.3 && share(ns, timed_ns) >= 0.5).then(|| {
        format!(
            "Beside that {} had a CPU for {}: whoever sleeps and looks again is woken by nobody, so that may be \
             what it waited for.",
            printable(&who),
            time(ns)
        )
    })
}

/// Threads of a pool have one name with different numbers, and are one ("Thread-2" and "Thread-0"),
/// unless it is one of them that did it.
fn alike_names(path: &CriticalPath) -> BTreeMap<&str, String> {
    let mut of: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for part in &path.parts {
        let name = part.comm.as_deref().unwrap_or_default();
        let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
        if base.len() < name.len() && !base.is_empty() {
            let ns = of.entry(base).or_default().entry(name).or_default();
            *ns = ns.saturating_add(part.total_ns);
        }
    }
    of.retain(|_, names| {
        let most = names.values().copied().max().unwrap_or(0);
        names.len() > 1 && share(most, sum(names.values().copied())) < MOST
    });
    let told = of.into_iter().flat_map(|(base, names)| {
        let text = format!("{base}* ({} threads)", names.len());
        names.into_keys().map(move |name| (name, text.clone()))
    });
    told.collect()
}

/// The largest of what was done: waits of one cause together, with a chain of the longest.
fn most_of_one_cause(
    report: &Report,
    doings: &[(String, u64, Option<usize>)],
) -> Option<(u64, Option<usize>)> {
    let mut causes: BTreeMap<String, (u64, Option<usize>)> = BTreeMap::new();
    for (text, ns, chain) in doings {
        let cause = chain.and_then(|chain| cause_of(report, chain));
        // The longest comes first.
        let sum = causes
            .entry(cause.unwrap_or_else(|| text.clone()))
            .or_insert((0, *chain));
        sum.0 = sum.0.saturating_add(*ns);
    }
    causes.into_values().max_by_key(|(ns, _)| *ns)
}

/// The group of what a chain waits for first.
fn cause_of(report: &Report, chain: usize) -> Option<String> {
    let label = &report
        .sites
        .get(report.chain_links.get(chain)?.site?)?
        .label;
    Some(crate::findings::meaning(report, label)?.group.clone())
}

fn of_command(report: &Report) -> Option<Vec<String>> {
    let path = report.critical_path.as_ref()?;
    let is_of_tool = |part: &&CriticalPart| {
        part.chain
            .is_some_and(|chain| lives::is_of_tool(report, chain))
    };
    let of_tool_ns = sum((path.parts.iter())
        .filter(is_of_tool)
        .map(|part| part.total_ns));
    let whole_ns = path.total_ns.saturating_sub(of_tool_ns);
    if whole_ns == 0 {
        return None;
    }
    let alike = alike_names(path);
    let mut parts: BTreeMap<&str, Part> = BTreeMap::new();
    for of in path.parts.iter().filter(|part| !is_of_tool(part)) {
        let name = of.comm.as_deref().unwrap_or("");
        let part = parts
            .entry(alike.get(name).map_or(name, String::as_str))
            .or_default();
        let grow = |to: &mut u64| *to = to.saturating_add(of.total_ns);
        match of.kind {
            CriticalKind::Own => grow(&mut part.own_ns),
            CriticalKind::Calls => grow(&mut part.calls_ns),
            CriticalKind::Exit => grow(&mut part.exit_ns),
            CriticalKind::Interrupts => grow(&mut part.irq_ns),
            CriticalKind::Runq => grow(&mut part.runq_ns),
            CriticalKind::Blocked | CriticalKind::Other => {
                part.blocked_add(report, of.total_ns, of.chain);
            }
        }
    }
    let runq_ns = sum(parts.values().map(|part| part.runq_ns));
    let own_ns = sum(parts.values().map(|part| part.own_ns));
    let calls_ns = sum(parts.values().map(|part| part.calls_ns));
    for group in lives::groups(&report.lives) {
        if let Some(part) = parts.get_mut(group.comm.as_str()) {
            part.faults = faults_of(&group.time);
            part.beside_ns = group.time.own_ns.saturating_sub(part.own_ns);
        }
    }
    let limits_ns = sum(parts.values().map(Part::beside_limits_ns));
    let mut parts: Vec<(&str, Part)> = parts.into_iter().collect();
    parts.sort_by_key(|(_, part)| std::cmp::Reverse(part.did_ns()));

    let mut told = Vec::new();
    for (at, (who, part)) in parts.iter().enumerate() {
        let did_ns = part.did_ns();
        if at > 0 && (share(did_ns, whole_ns) < SHARE_MIN || told.len() >= 3) || did_ns == 0 {
            break;
        }
        let name = match *who {
            "" => "several others".to_owned(),
            who => printable(who),
        };
        let doings = part.doings(report, whole_ns);
        let said: Vec<String> = doings
            .iter()
            .take_while(|(_, ns, _)| *ns > 0)
            .filter(|(_, ns, _)| share(*ns, did_ns) >= SHARE_MIN)
            .take(3)
            .map(|(text, ns, _)| {
                if share(*ns, did_ns) > 0.98 {
                    text.clone()
                } else {
                    format!("{} {text}", time(*ns))
                }
            })
            .collect();
        told.push(format!(
            "{} {name}: {}",
            part_text(did_ns, whole_ns),
            listed(&said)
        ));
    }
    if share(runq_ns, whole_ns) >= SHARE_MIN {
        told.push(format!(
            "{} waiting for a CPU",
            part_text(runq_ns, whole_ns)
        ));
    }
    let aside = match share(of_tool_ns, path.total_ns) {
        part if part < ASIDE_MIN => String::new(),
        _ => format!(" (without {} of DeBox's own work)", time(of_tool_ns)),
    };
    let mut sentences = vec![format!(
        "Of {}{aside}, {}.",
        time(whole_ns),
        told.join("; ")
    )];

    let first = parts
        .first()
        .and_then(|(_, part)| most_of_one_cause(report, &part.doings(report, whole_ns)));
    if share(runq_ns, whole_ns) >= 0.3 {
        let part = share(runq_ns, whole_ns);
        sentences.push(cpus_busy(report, whole_ns, runq_ns, part));
    }
    let own_first = share(runq_ns, whole_ns) < 0.5;
    if !own_first {
        // What it did itself is the smaller part.
    } else if let Some(sentence) = parts.first().and_then(|(who, part)| {
        (share(part.did_ns(), whole_ns) >= 0.3).then(|| many_processes(report, who))?
    }) {
        sentences.push(sentence);
    } else if let Some(sentence) = churn_sentence(report, calls_ns, whole_ns) {
        sentences.push(sentence);
    } else if let Some((_, part)) = parts.first()
        && let Some(faults) = part.faults.filter(|faults| faults.are_faults)
        && share(part.own_ns, whole_ns) * faults.share >= 0.3
    {
        sentences.push(
            "A page fault is a first use of memory: to keep what was used instead of giving it \
             back, or huge pages, would help."
                .to_owned(),
        );
    } else if !report.own_is_told() {
        // Nor whether it is a matter of calls.
    } else if share(own_ns, whole_ns) >= MOST {
        sentences.push(
            "Not a matter of system calls: what the code does with the CPU is the question."
                .to_owned(),
        );
    } else if share(own_ns.saturating_add(limits_ns), whole_ns) >= MOST {
        let all_ns = sum(report.lives.iter().map(|row| row.time.own_ns));
        sentences.push(format!(
            "Its threads computed for {} in all: what the code does with the CPU, and whether it lets them run \
             at the same time, is the question.",
            time(all_ns)
        ));
    } else if let Some(sentence) = polled(report, &parts, whole_ns) {
        sentences.push(sentence);
    } else if let Some((ns, chain)) = first
        && share(ns, whole_ns) >= 0.3
    {
        sentences.extend(rare_sentence(report, ns, chain).or_else(|| advice(report, chain)));
    }
    if share(of_tool_ns, path.total_ns) >= ASIDE_MUCH {
        let mut of_tool = path.parts.iter().filter(is_of_tool);
        sentences.extend(of_tool.find_map(|part| advice(report, part.chain)));
    }
    Some(sentences)
}

/// Calls that do very little each, if they are what the time in calls went into.
fn churn_sentence(report: &Report, calls_ns: u64, whole_ns: u64) -> Option<String> {
    if share(calls_ns, whole_ns) < 0.2 {
        return None;
    }
    let all_ns = report.totals.cpu_ns?;
    let churn = (churn::find(report).into_iter())
        .find(|churn| !churn.calls.is_empty() && share(churn.explained_ns, all_ns) >= CHURN_MIN)?;
    Some(format!("{}. {}", churn.finding.title, churn.finding.text))
}

/// Few calls that are as long as all others together and more, if their wait is what it is about.
fn rare_sentence(report: &Report, ns: u64, chain: Option<usize>) -> Option<String> {
    let group = cause_of(report, chain?)?;
    let rare = (rare::find(report).into_iter())
        .find(|rare| rare.groups.contains(&group) && share(rare.explained_ns, ns) >= MOST)?;
    let sentence = format!("{}. {}", rare.finding.title, rare.finding.text);
    Some(sentence.trim_end().to_owned())
}

/// What held up an event loop for a part of its time that is worth telling.
fn loop_sentence(report: &Report) -> Option<String> {
    let block = (loops::find(report).into_iter()).find(|block| block.share >= SHARE_MIN)?;
    Some(format!("{}.", block.text))
}

/// Many processes that lived for a moment each.
fn many_processes(report: &Report, who: &str) -> Option<String> {
    let group = lives::groups(&report.lives)
        .into_iter()
        .find(|group| group.comm == who)?;
    let each_ns = lives::life_ns(report, &group).checked_div(group.processes)?;
    churn::processes_short(&group).then(|| {
        format!(
            "{} ran {} times for {} each: what a process costs to begin and to end is most of that, \
             and fewer of them would help.",
            printable(who),
            debox_output::count_text(group.processes),
            time(each_ns)
        )
    })
}

/// A path waits from the wake-up on; a thread is in a queue only when its CPU has heard of
/// it. What lies between is nobody's use of a CPU: an idle one has to begin.
fn wake_ups(report: &Report, waited_ns: u64) -> Option<String> {
    let queued_ns = sum(report.lives.iter().map(|row| row.time.runq_ns));
    let began_ns = waited_ns.saturating_sub(queued_ns);
    let count = report.totals.nvcsw.filter(|count| *count > 0)?;
    (share(began_ns, waited_ns) >= MOST).then(|| {
        format!(
            "Hardly in a queue: {} of it is what {} wake-ups took, from who woke until a CPU that had \
             nothing to do had begun. To wake up less often, or on one CPU, would help.",
            percent(share(began_ns, waited_ns)),
            debox_output::count_text(count)
        )
    })
}

/// Whose were the CPUs that it waited for? What was measured is named, and nothing else.
/// `waited_ns`: for how long, all together; `part`: of what went on.
fn cpus_busy(report: &Report, whole_ns: u64, waited_ns: u64, part: f64) -> String {
    if let Some(text) = given_away(report) {
        return text;
    }
    let text = cpus_taken(report, whole_ns, waited_ns);
    match text.strip_prefix(NOT_THE_PROGRAM) {
        // It is not all that there is.
        Some(rest) if part < 0.5 => {
            let mut rest = rest.chars();
            let first = rest.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(rest).collect()
        }
        _ => text,
    }
}

const NOT_THE_PROGRAM: &str = "The machine, not the program: ";

/// Most of the waiting for a CPU came of calls that give it to others.
fn given_away(report: &Report) -> Option<String> {
    let row = (report.calls.iter()).find(|row| row.name == "sched_yield")?;
    let all_ns = sum(report.lives.iter().map(|row| row.time.runq_ns));
    (share(row.runq_ns.unwrap_or(0), all_ns) >= MOST).then(|| {
        format!(
            "It gave its CPU to others itself: {} calls of sched_yield waited for {} in all. To sleep until there is \
             something to do, or a lock of the C library, would help.",
            debox_output::count_text(row.count),
            time(row.runq_ns.unwrap_or(0))
        )
    })
}

fn cpus_taken(report: &Report, whole_ns: u64, waited_ns: u64) -> String {
    let used_ns = sum(report.lives.iter().map(|row| row.time.cpu_ns()));
    let all = u64::from(report.run.cpus.max(1));
    let Some(machine) = &report.machine else {
        return cpus_filled(used_ns, whole_ns, all).unwrap_or_else(|| {
            format!(
                "{NOT_THE_PROGRAM}it had {} of {} CPU time; what kept it from the rest was \
                 not measured.",
                percent(share(used_ns, whole_ns.saturating_mul(all))),
                plural(all, "CPU's", "CPUs'")
            )
        });
    };
    let limit = (machine.limits.first())
        .filter(|limit| share(limit.throttled, limit.periods) >= THROTTLED_MIN);
    if let Some(limit) = limit
        && share(limit.throttled_ns, waited_ns) >= LIMIT_MIN
    {
        let cpus = limit.quota_ns as f64 / limit.period_ns.max(1) as f64;
        return format!(
            "A limit, not the program: the control group {} may use {} of each {} ({cpus:.2} CPUs, {}), and \
             was held back in {} of {} of them: more of it, or less to compute, would help.",
            printable(&limit.group),
            time(limit.quota_ns),
            time(limit.period_ns),
            printable(&limit.file),
            debox_output::count_text(limit.throttled),
            debox_output::count_text(limit.periods),
        );
    }
    if let Some(text) = wake_ups(report, waited_ns) {
        return text;
    }
    let online = u64::from(machine.cpus_online.max(1));
    let allowed = machine.cpus_allowed.len() as u64;
    let cpus = if allowed > 0 { allowed } else { online };
    let capacity_ns = whole_ns.saturating_mul(cpus);
    let bound = allowed > 0 && allowed < online;
    let mut few = String::new();
    if bound {
        few = format!(
            "; its affinity lets it run on {} of the {online} only",
            cpus_text(&machine.cpus_allowed)
        );
    }
    if let Some(limit) = limit {
        few.push_str(&format!(
            "; the control group {} used up its limit in {} of {} periods, for {} in all",
            printable(&limit.group),
            debox_output::count_text(limit.throttled),
            debox_output::count_text(limit.periods),
            time(limit.throttled_ns),
        ));
    }
    if share(machine.steal_ns, capacity_ns) >= SHARE_MIN {
        return format!(
            "{NOT_THE_PROGRAM}a hypervisor took {} of the time of {} (steal), it had {}{few}.",
            percent(share(machine.steal_ns, capacity_ns)),
            plural(cpus, "CPU", "CPUs"),
            percent(share(used_ns, capacity_ns)),
        );
    }
    if share(used_ns, capacity_ns) >= MOST {
        return match bound {
            true => format!(
                "Its own threads filled {}, and its affinity lets them run nowhere else: the other {} of \
                 the machine would help.",
                cpus_text(&machine.cpus_allowed),
                plural(online - allowed, "CPU", "CPUs")
            ),
            false => cpus_filled(used_ns, whole_ns, cpus).unwrap_or_default(),
        };
    }
    // The two were not read at the same moments.
    let others_ns =
        (machine.busy_ns.saturating_sub(used_ns)).min(capacity_ns.saturating_sub(used_ns));
    if share(others_ns, capacity_ns) >= SHARE_MIN {
        return format!(
            "{NOT_THE_PROGRAM}others used {} of the time of {}, it had {}{few}.",
            percent(share(others_ns, capacity_ns)),
            plural(cpus, "CPU", "CPUs"),
            percent(share(used_ns, capacity_ns)),
        );
    }
    format!(
        "It had {} of the time of {}{few}; neither a limit of its control group, nor other programs, nor a \
         hypervisor took much of the rest, and what did is not known.",
        percent(share(used_ns, capacity_ns)),
        plural(cpus, "CPU", "CPUs"),
    )
}

/// "CPU 0", "CPUs 0, 2 and 3".
fn cpus_text(cpus: &[u32]) -> String {
    let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let word = if cpus.len() == 1 { "CPU" } else { "CPUs" };
    match numbers.len() {
        0..=8 => format!("{word} {}", listed(&numbers)),
        many => format!("{many} CPUs"),
    }
}

/// None: it did not.
fn cpus_filled(used_ns: u64, whole_ns: u64, cpus: u64) -> Option<String> {
    let part = share(used_ns, whole_ns.saturating_mul(cpus));
    (part >= MOST).then(|| {
        format!(
            "Its own threads filled the {}: more CPUs, or less to compute, would help; fewer waits \
             would not.",
            plural(cpus, "CPU", "CPUs")
        )
    })
}

/// What is known of the sleeps of one name.
fn waits_of(report: &Report) -> BTreeMap<&str, Part> {
    let mut parts: BTreeMap<&str, Part> = BTreeMap::new();
    for row in &report.chains {
        let links = links_of(report, row.first);
        let (Some(first), Some(root)) = (links.first(), links.last()) else {
            continue;
        };
        if first.kind == ChainKind::Sleep && !first.rests && root.kind != ChainKind::NotOver {
            let part = parts.entry(&first.comm).or_default();
            part.blocked_add(report, row.total_ns, Some(row.first));
        }
    }
    parts
}

fn of_watch(report: &Report) -> Option<Vec<String>> {
    let wall_ns = report.run.wall_ns;
    let groups = lives::groups(&report.lives);
    let mut all = LifeTime::default();
    for group in &groups {
        all.add(&group.time);
    }
    if all.life_ns == 0 || wall_ns == 0 {
        return None;
    }
    let threads = sum(groups.iter().map(|group| group.threads));
    let who = match threads {
        1 => "its thread".to_owned(),
        many => format!("its {many} threads"),
    };

    // Sleeps that lasted to the end may be rests as well as hangs; those at a resting place are
    // rests.
    let open_ns = sum(report.chains.iter().filter_map(|row| {
        let links = links_of(report, row.first);
        let (first, root) = (links.first()?, links.last()?);
        (root.kind == ChainKind::NotOver && !first.rests).then_some(row.total_ns)
    }));
    let rest_ns = sum(chains::waits(report).1.iter().map(|row| row.total_ns));
    let idle_ns = rest_ns.saturating_add(open_ns).min(all.life_ns);
    let busy_ns = all.life_ns - idle_ns;
    let mut sentences = Vec::new();
    let held_up = held_up(report, wall_ns);
    // Many threads that rest do not make nothing of what one does.
    if share(busy_ns, all.life_ns.min(wall_ns)) < 0.01 {
        let known = held_up.is_some();
        sentences.extend(held_up);
        sentences.push(format!(
            "Nothing {}went on: {who} slept for {} of the {}{}.",
            if known { "else " } else { "" },
            percent(share(idle_ns, all.life_ns)),
            time(wall_ns),
            resting_text(report, true)
        ));
        if !known && share(open_ns, all.life_ns) >= SHARE_MIN {
            sentences.push(
                "Whether that is waiting for work or for somebody who holds it up, `debox why` \
                 tells."
                    .to_owned(),
            );
        }
        return Some(sentences);
    }

    let mut parts = waits_of(report);
    let mut whole = Part::default();
    for group in &groups {
        let part = parts.entry(&group.comm).or_default();
        part.own_ns = part.own_ns.saturating_add(group.time.own_ns);
        part.calls_ns = part.calls_ns.saturating_add(group.time.calls_ns);
        part.exit_ns = part.exit_ns.saturating_add(group.time.exit_ns);
        part.irq_ns = part.irq_ns.saturating_add(group.time.interrupts_ns());
        part.runq_ns = part.runq_ns.saturating_add(group.time.runq_ns);
    }
    for part in parts.values() {
        whole.own_ns = whole.own_ns.saturating_add(part.own_ns);
        whole.calls_ns = whole.calls_ns.saturating_add(part.calls_ns);
        whole.exit_ns = whole.exit_ns.saturating_add(part.exit_ns);
        whole.irq_ns = whole.irq_ns.saturating_add(part.irq_ns);
        whole.runq_ns = whole.runq_ns.saturating_add(part.runq_ns);
        for (text, waits) in &part.blocked {
            let of_all = whole.blocked.entry(text.clone()).or_default();
            for (cause, root) in &waits.causes {
                of_all.add(cause.clone(), *root);
            }
        }
    }
    whole.faults = faults_of(&all);
    let did_ns = whole.did_ns().saturating_add(whole.runq_ns).max(1);
    let doings = whole.doings(report, did_ns);
    let mut told: Vec<String> = doings
        .iter()
        .filter(|(_, ns, _)| share(*ns, did_ns) >= SHARE_MIN)
        .take(3)
        .map(|(text, ns, _)| format!("{} {text}", part_text(*ns, did_ns)))
        .collect();
    if share(whole.runq_ns, did_ns) >= SHARE_MIN {
        told.push(format!(
            "{} waiting for a CPU",
            part_text(whole.runq_ns, did_ns)
        ));
    }
    if told.is_empty() {
        told.push("spread over many small parts".to_owned());
    }
    let rested = if share(idle_ns, all.life_ns) >= SHARE_MIN {
        let other = percent(share(idle_ns, all.life_ns));
        if slept_for_own(report) {
            format!(
                "; the other {other} of the time it slept until other threads of its own had run{}: \
                 for a lock that they held, or for work from them",
                resting_text(report, false)
            )
        } else {
            let why = if held_up.is_some() {
                ""
            } else {
                " until something came"
            };
            format!(
                "; the other {other} of the time it slept{why}{}",
                resting_text(report, true)
            )
        }
    } else {
        String::new()
    };
    sentences.push(format!(
        "In {}, {who} had something to do for {}: {}{rested}.",
        time(wall_ns),
        time(did_ns),
        listed(&told)
    ));
    sentences.extend(held_up);
    sentences.extend(loop_sentence(report).or_else(|| slowest(report)));
    let waited = share(whole.runq_ns, did_ns);
    if waited >= 0.3 {
        sentences.push(cpus_busy(report, wall_ns, whole.runq_ns, waited));
    }
    if waited >= 0.5 {
        // What it did itself is the smaller part.
    } else if let Some(sentence) = churn_sentence(report, whole.calls_ns, did_ns) {
        sentences.push(sentence);
    } else if let Some((ns, chain)) = most_of_one_cause(report, &doings)
        && share(ns, did_ns) >= 0.3
    {
        sentences.extend(rare_sentence(report, ns, chain).or_else(|| advice(report, chain)));
    }
    sentences.truncate(3);
    Some(sentences)
}

/// Whether most of the resting, as far as it is known what ended it, was for threads of the
/// program itself that ran, or waited for a CPU, meanwhile: whether there was something to do
/// is not known then. (A lock's waiters come back to one place as those of a pool do.)
fn slept_for_own(report: &Report) -> bool {
    let (mut known_ns, mut own_ns) = (0u64, 0u64);
    for row in &report.chains {
        let links = links_of(report, row.first);
        let (Some(first), Some(root)) = (links.first(), links.last()) else {
            continue;
        };
        if !first.rests || root.kind == ChainKind::NotOver || root.kind.ends_knowledge() {
            continue;
        }
        known_ns = known_ns.saturating_add(row.total_ns);
        use ChainKind::{Ran, RanCall, RanUser, Runq};
        if matches!(root.kind, Ran | RanCall | RanUser | Runq) && first.by_own {
            own_ns = own_ns.saturating_add(row.total_ns);
        }
    }
    known_ns > 0 && share(own_ns, known_ns) >= MOST
}

/// What a wait that lasted through the whole watch means, where that is known.
fn held_up(report: &Report, wall_ns: u64) -> Option<String> {
    let all_the_while = |call: &&OpenCall| {
        !call.held_up.is_empty() && share(call.at_least_ns, wall_ns) >= SHARE_ALL_THE_WHILE
    };
    let longest =
        (report.open_calls.iter().filter(all_the_while)).max_by_key(|call| call.at_least_ns)?;
    Some(longest.held_up.clone())
}

/// " in epoll_wait", of where most of the resting is; with sleeps that are not over, if `open`.
fn resting_text(report: &Report, open: bool) -> String {
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &report.chains {
        let links = links_of(report, row.first);
        let Some((first, root)) = links.first().zip(links.last()) else {
            continue;
        };
        let is_open = root.kind == ChainKind::NotOver;
        if (first.rests && !is_open) || (open && is_open) {
            let call = first.call.as_deref().unwrap_or("page faults");
            let sum = calls.entry(call).or_default();
            *sum = sum.saturating_add(row.total_ns);
        }
    }
    let most = calls.into_iter().max_by_key(|(_, ns)| *ns);
    most.map_or_else(String::new, |(call, _)| {
        format!(", mostly in {}", printable(call))
    })
}

/// Of the activities that took most time: how long, and what makes the slowest slow.
fn slowest(report: &Report) -> Option<String> {
    let row = report.activities.first()?;
    if row.count < ACTIVITIES_MIN || row.slow_count == 0 || report.run.wall_ns == 0 {
        return None;
    }
    let rate = row.count as f64 * 1e9 / report.run.wall_ns as f64;
    let rate = if rate >= 10.0 {
        format!("{rate:.0}")
    } else {
        format!("{rate:.1}")
    };
    let slow = &row.slow;
    let in_calls = match report.measured.calls {
        true => "on a CPU in system calls",
        false => "on a CPU in the kernel",
    };
    let mut doings = [
        ("computing", slow.own_ns),
        (in_calls, slow.calls_ns),
        ("waiting for a CPU", slow.runq_ns),
        ("asleep", slow.blocked_ns),
    ];
    doings.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let (what, ns) = doings[0];
    let what = match row.longest_chain {
        Some(chain) if what == "asleep" => {
            let links = links_of(report, chain);
            let root = links.last().filter(|_| links.len() > 1);
            let root = root.map_or_else(String::new, |root| {
                format!(" ← {}", link_text(root, report))
            });
            let first = links
                .first()
                .map_or_else(String::new, |first| link_text(first, report));
            format!("asleep (the longest: {first}{root})")
        }
        _ => what.to_owned(),
    };
    Some(format!(
        "{}: {rate} activities a second, half of them within {}, 99 % within {}, the longest {}; the \
         slowest {} spent {} of their time {what}.",
        printable(&row.comm),
        time(row.p50_ns),
        time(row.p99_ns),
        time(row.max_ns),
        row.slow_count,
        percent(share(ns, slow.total_ns)),
    ))
}
