// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why did it take so long, on the page: the verdict, the critical path, whose time it was.

use super::table::{Cell, Table, head, number, words};
use super::time;
use crate::lives::{self, PathLine};
use crate::model::{CriticalKind, Report};
use debox_output::{escape, printable};

pub fn verdict(report: &Report) -> String {
    report
        .verdict
        .iter()
        .map(|sentence| format!("<p class=\"verdict\">{}</p>\n", escape(sentence)))
        .collect()
}

fn who(comm: Option<&str>) -> String {
    comm.map_or_else(|| "(several)".to_owned(), printable)
}

/// The flame graphs' colours.
fn kinds(report: &Report) -> [(&'static str, &'static str); 4] {
    let in_kernel = match report.measured.irq {
        true => "system calls and interrupts on a CPU",
        false => "system calls on a CPU",
    };
    [
        ("u", "own code on a CPU"),
        ("s", in_kernel),
        ("k", "waiting for a CPU"),
        ("l", "asleep"),
    ]
}

fn class(kind: CriticalKind) -> &'static str {
    match kind {
        CriticalKind::Own | CriticalKind::Exit => "u",
        CriticalKind::Calls | CriticalKind::Interrupts => "s",
        CriticalKind::Runq => "k",
        CriticalKind::Blocked | CriticalKind::Other => "l",
    }
}

fn share(ns: u64, of_ns: u64) -> f64 {
    ns as f64 * 100.0 / of_ns.max(1) as f64
}

/// What the end depended on, as one picture: whose time above, what they did below.
pub fn path_picture(report: &Report) -> String {
    let Some(path) = report.critical_path.as_ref().filter(|p| p.total_ns > 0) else {
        return String::new();
    };
    let lines = lives::path_lines(report);
    // Lines come largest first; so do those of each name.
    let mut names: Vec<(String, u64, Vec<&PathLine>)> = Vec::new();
    for line in &lines {
        let who = who(line.who.as_deref());
        match names.iter_mut().find(|(name, ..)| *name == who) {
            Some((_, sum, of)) => {
                *sum = sum.saturating_add(line.total_ns);
                of.push(line);
            }
            None => names.push((who, line.total_ns, vec![line])),
        }
    }
    names.sort_by_key(|(_, ns, _)| std::cmp::Reverse(*ns));
    let mut out = String::new();
    let mut words = Vec::new();
    for (who, ns, of) in &names {
        let part = share(*ns, path.total_ns);
        let text = format!("{who} {} ({part:.0} %)", time(*ns));
        let parts: String = of
            .iter()
            .map(|line| {
                let whole = share(line.total_ns, path.total_ns);
                let text = format!("{} {}", line.text(), time(line.total_ns));
                format!(
                    "<span class=\"{}\" style=\"width:{:.3}%\" title=\"{}: {} ({whole:.1} %)\">{}</span>",
                    class(line.kind),
                    share(line.total_ns, *ns),
                    escape(who),
                    escape(&text),
                    // What has no room for letters has none for their bytes.
                    if whole < 2.0 { String::new() } else { escape(&text) }
                )
            })
            .collect();
        out += &format!(
            "<div style=\"width:{part:.3}%\"><b title=\"{0}\">{1}</b><div>{parts}</div></div>",
            escape(&text),
            if part < 2.0 {
                String::new()
            } else {
                escape(&text)
            }
        );
        words.push(text);
    }
    words.truncate(6);
    let legend: String = kinds(report)
        .iter()
        .filter(|(kind, _)| lines.iter().any(|line| class(line.kind) == *kind))
        .map(|(kind, name)| format!("<li><i class=\"{kind}\"></i>{name}</li>"))
        .collect();
    format!(
        "<div class=\"path\" role=\"img\" aria-label=\"What the {} depended on: {}\">{out}</div>\n\
         <ul class=\"legend\">{legend}<li><a href=\"#critical\">what its {} depended on, by size</a></li></ul>\n",
        time(path.total_ns),
        escape(&words.join(", ")),
        time(path.total_ns)
    )
}

/// What the end depended on, part by part.
pub fn critical(report: &Report) -> String {
    let Some(path) = &report.critical_path else {
        return String::new();
    };
    let table = Table {
        id: "t-critical",
        caption: "Parts of the critical path".into(),
        columns: vec![
            head("Who", "Name of the thread whose time it was"),
            words("In", "What it did, or waited for, and where that wait ends"),
            number("Time", ""),
            number("Share", "Of the time from beginning to end"),
        ],
        rows: lives::critical_rows(report)
            .iter()
            .map(|row| {
                let part = share(row.total_ns, path.total_ns);
                let causes: Vec<String> = (row.causes.iter())
                    .map(|(cause, ns)| format!("{} ← {cause}", time(*ns)))
                    .collect();
                let what = match causes.is_empty() {
                    true => row.what.clone(),
                    false => format!("{} ({})", row.what, causes.join(", ")),
                };
                (
                    String::new(),
                    vec![
                        Cell::Text(who(row.who.as_deref())),
                        Cell::Text(what),
                        Cell::Time(Some(row.total_ns)),
                        Cell::Value(part, format!("{part:.1} %")),
                    ],
                )
            })
            .collect(),
        page: 15,
        sorted: Some(2),
    };
    format!(
        "<p>{} from the beginning to the end of process {}: who decided when it could go on.</p>\n{}",
        time(path.total_ns),
        path.pid,
        table.html()
    )
}

/// Whose time it was, by name.
pub fn lives(report: &Report) -> String {
    let groups = lives::roles(&report.lives);
    if groups.is_empty() {
        return String::new();
    }
    Table {
        id: "t-lives",
        caption: "Threads by name".into(),
        columns: vec![
            head("Name", ""),
            number("Processes", ""),
            number("Threads", "That began under this name, or came to it"),
            number("Life", "From first to last sight, summed up"),
            number("Own code", "On a CPU, outside of calls"),
            match report.measured.calls {
                true => number("In calls", "On a CPU"),
                false => number("Kernel", "On a CPU, by the kernel's clock"),
            },
            number(
                "Interrupts",
                "That landed in it, for whomever; where they are measured (--irq)",
            ),
            number("Blocked", "Asleep in calls"),
            number(
                "At rest",
                "Of that: where it waits when there is nothing to do",
            ),
            number("Outside", "Asleep outside of calls: page faults"),
            number("Stopped", "By a signal, or a tracer"),
            number("Run queue", "Waiting for a CPU"),
            number("Ending", "On a CPU, on its way out"),
            words(
                "Mostly in",
                "What it was blocked in most, and how much of all its sleeps that is; of a name in two rows it is not known",
            ),
            words("Command", "Of the one that lived longest"),
        ],
        rows: groups
            .iter()
            .zip(lives::mostly_in(report, &groups))
            .map(|(group, mostly)| {
                let t = &group.time;
                (
                    String::new(),
                    vec![
                        Cell::Text(group.name()),
                        Cell::Count(Some(group.processes)),
                        Cell::Count(Some(group.threads)),
                        Cell::Time(Some(t.life_ns)),
                        Cell::Time(Some(t.own_ns)),
                        Cell::Time(Some(t.calls_ns)),
                        Cell::Time(report.measured.irq.then(|| t.interrupts_ns())),
                        Cell::Time(Some(t.blocked_ns)),
                        Cell::Time(Some(t.rest_ns)),
                        Cell::Time(Some(t.outside_ns)),
                        Cell::Time(Some(t.stopped_ns)),
                        Cell::Time(Some(t.runq_ns)),
                        Cell::Time(Some(t.exit_ns)),
                        Cell::Text(mostly),
                        Cell::Text(printable(&group.command)),
                    ],
                )
            })
            .collect(),
        page: 15,
        sorted: Some(3),
    }
    .html()
}
