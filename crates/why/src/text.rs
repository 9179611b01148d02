// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is read first, what after it, and what is left out?
//!
//! Deadlocks; then a sentence for each stuck thing; then the same in detail, threads that
//! do the same told once; at last those that have nothing to do.

use std::collections::{BTreeMap, BTreeSet};

use debox_output::{Pen, duration_text, wrapped};

use crate::told::{Answer, Thread};

/// How it is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions {
    /// None: lines as long as they are.
    pub width: Option<usize>,
    /// The stacks and calls of idle threads as well.
    pub all: bool,
    /// No signs of its own beyond ASCII.
    pub ascii: bool,
}

/// Groups in the order of their first thread; stuck ones before idle ones.
fn groups(threads: &[Thread]) -> Vec<Vec<&Thread>> {
    let mut place: BTreeMap<&str, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&Thread>> = Vec::new();
    for thread in threads {
        match place.get(thread.alike.as_str()) {
            Some(at) => groups[*at].push(thread),
            None => {
                place.insert(&thread.alike, groups.len());
                groups.push(vec![thread]);
            }
        }
    }
    groups.sort_by_key(|group| (!group[0].deadlocked, group[0].idle));
    groups
}

/// The longest wait stands for all.
fn longest<'a>(group: &[&'a Thread]) -> &'a Thread {
    group
        .iter()
        .max_by_key(|thread| (thread.asleep_ns, std::cmp::Reverse(thread.tid)))
        .expect("a group has a thread")
}

fn sentence(group: &[&Thread]) -> String {
    let thread = longest(group);
    match group.len() {
        1 => thread.sentence.clone(),
        n => format!(
            "{n} threads of process {} do the same; the longest: {}",
            thread.pid, thread.sentence
        ),
    }
}

/// One for each stuck thing that is not told with a deadlock (`told`); if nothing is
/// stuck, one for each thing that is waited for.
pub(crate) fn sentences(threads: &[Thread], told: &BTreeSet<u32>) -> Vec<String> {
    let groups = groups(threads);
    let of = |idle: bool| -> Vec<String> {
        groups
            .iter()
            .filter(|group| group[0].idle == idle && !told.contains(&group[0].tid))
            .map(|group| sentence(group))
            .collect()
    };
    let stuck = of(false);
    if !stuck.is_empty() || !told.is_empty() {
        return stuck;
    }
    // Of a server that has nothing to do not each of its threads; but whoever waits to
    // be woken may hang for a reason that nobody wrote down.
    let mut processes: BTreeMap<u32, Vec<&Thread>> = BTreeMap::new();
    for thread in threads {
        processes.entry(thread.pid).or_default().push(thread);
    }
    let mut sentences = Vec::new();
    for (pid, threads) in processes {
        match threads[..] {
            [only] => sentences.push(only.sentence.clone()),
            _ => {
                let name = threads.iter().find(|thread| thread.tid == pid);
                sentences.push(format!(
                    "nobody is seen to hold up {} ({pid}): its {} threads wait for input, for \
                     time, or to be woken",
                    name.unwrap_or(&threads[0]).comm,
                    threads.len()
                ));
            }
        }
    }
    sentences
}

/// The answer as text.
pub fn render(answer: &Answer, options: &TextOptions) -> String {
    let width = options.width.unwrap_or(usize::MAX);
    let mut out = String::new();
    let mut line = |text: &str, first: &str, next: &str| {
        out.push_str(&wrapped(text, width, first, next));
        out.push('\n');
    };
    for sentence in &answer.sentences {
        line(sentence, "", "  ");
    }
    let groups = groups(&answer.threads);
    let detailed = |group: &&Vec<&Thread>| options.all || !group[0].idle || groups.len() == 1;
    for group in groups.iter().filter(detailed) {
        line("", "", "");
        detail(group, &mut line);
    }
    let idle: Vec<&Vec<&Thread>> = groups.iter().filter(|group| !detailed(group)).collect();
    if !idle.is_empty() && !(options.all) {
        line("", "", "");
        line("waiting for something to come:", "", "");
        for group in idle {
            let thread = longest(group);
            line(
                &format!("{}: {}{}", who(group), thread.text, since(thread)),
                "  ",
                "    ",
            );
        }
    }
    if !answer.notes.is_empty() {
        line("", "", "");
    }
    for note in &answer.notes {
        line(note, "note: ", "      ");
    }
    let pen = Pen {
        color: false,
        ascii: options.ascii,
    };
    pen.plain(&out)
}

fn who(group: &[&Thread]) -> String {
    const SHOWN: usize = 8;
    let comm = &group[0].comm;
    if let [thread] = group {
        return format!("thread {} {comm}", thread.tid);
    }
    let mut tids: Vec<String> = group
        .iter()
        .take(SHOWN)
        .map(|thread| thread.tid.to_string())
        .collect();
    if group.len() > SHOWN {
        tids.push(format!("and {} more", group.len() - SHOWN));
    }
    format!("{} threads {comm} ({})", group.len(), tids.join(", "))
}

fn since(thread: &Thread) -> String {
    match thread.asleep_ns {
        Some(ns) => format!(
            ", {}{}",
            if thread.asleep_at_least {
                "at least "
            } else {
                ""
            },
            duration_text(ns, false)
        ),
        None => String::new(),
    }
}

fn detail(group: &[&Thread], line: &mut impl FnMut(&str, &str, &str)) {
    let thread = longest(group);
    let state = thread.state.to_string();
    line(
        &format!("{}: {state}{}", who(group), since(thread)),
        "",
        "  ",
    );
    if let Some(call) = &thread.call_text {
        line(call, "  call     ", "           ");
    }
    if let Some(label) = &thread.label {
        let what = match &thread.label_text {
            Some(what) => format!("{label}: waiting for {what}"),
            None => label.clone(),
        };
        line(&what, "  label    ", "           ");
    }
    if !thread.kernel_stack.is_empty() {
        line(
            &thread.kernel_stack.join(" ← "),
            "  kernel   ",
            "           ",
        );
    }
    if !thread.user_stack.is_empty() {
        line(&thread.user_stack.join(" ← "), "  program  ", "           ");
    }
    if let Some(means) = &thread.means {
        line(&means.why, "  that is  ", "           ");
    }
    for link in &thread.chain {
        let mark = if link.again { " (again: a circle)" } else { "" };
        line(
            &format!("{} ({}) {}{mark}", link.comm, link.tid, link.text),
            "  ← ",
            "      ",
        );
    }
    for note in &thread.notes {
        line(note, "  note     ", "           ");
    }
}
