// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a comparison told to people?

use super::{Basis, Change, Diff, Kind, Metric, Only, Side};
use debox_output::{count_text, duration_text, printable};

/// Lines of what did not clearly change, unless all are asked for.
const UNCLEAR_SHOWN: usize = 8;

pub(super) fn side_text(side: &Side) -> String {
    let command: Vec<String> = side.command.iter().map(|w| printable(w)).collect();
    let command = if command.is_empty() {
        "(attached)".into()
    } else {
        command.join(" ")
    };
    let blocked = side.blocked_ns.map_or(String::new(), |ns| {
        format!(", {} of it blocked", duration_text(ns, false))
    });
    format!(
        "{command}: {}, {} calls took {}{blocked}",
        duration_text(side.wall_ns, false),
        count_text(side.calls),
        duration_text(side.calls_wall_ns, false)
    )
}

pub(super) fn effect_text(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "+" };
    format!("{sign}{}", duration_text(ns.unsigned_abs(), false))
}

/// How much faster, where that can be said.
pub(super) fn headline(diff: &Diff) -> String {
    let (a, b) = (
        duration_text(diff.a.wall_ns, false),
        duration_text(diff.b.wall_ns, false),
    );
    match diff.speed_up {
        None => format!(
            "{a} before, {b} after; whether both did the same work, and to its end, is not known"
        ),
        Some(v) if (0.995..1.005).contains(&v) => format!("as fast as before: {a} -> {b}"),
        Some(v) if v >= 1.0 => format!("{} times as fast: {a} -> {b}", factor(v)),
        Some(v) => format!("{} times as long: {a} -> {b}", factor(1.0 / v)),
    }
}

fn factor(v: f64) -> String {
    match v {
        v if v >= 99.95 => count_text(v.round() as u64),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// What has to be known of the intervals.
pub(super) fn notes(diff: &Diff) -> Vec<String> {
    let percent = (1.0 - diff.confidence) * 100.0;
    let mut notes = vec![
        if diff.per_run {
            "Counts and label times are per run.".into()
        } else {
            "The runs differ in length: counts and label times are per second.".to_owned()
        },
        format!(
            "Were the runs alike, one of these {} comparisons would be called a change in {percent:.0} % of cases. The intervals hold what varies within a run; what differs from run to run (caches, other load) they cannot know: repeat the runs to be sure.",
            diff.compared
        ),
    ];
    if diff.speed_up.is_some() {
        notes.push("The speed-up is that of one run each: it has no interval.".into());
    }
    let all = || diff.changes.iter().chain(&diff.unclear);
    if all().any(|c| c.metric == Metric::Mean && c.basis == Basis::Histogram) {
        notes.push("Calls without a history of at least 8 points in both files count as independent of each other; their intervals are too narrow when slow calls come in bursts.".into());
    }
    notes
}

fn only_lines(out: &mut String, title: &str, list: &[Only], top: usize) {
    if list.is_empty() {
        return;
    }
    out.push_str(&format!("\n{title}\n"));
    for o in list.iter().take(top) {
        let kind = match o.kind {
            Kind::Call => "",
            Kind::Label => "label ",
            Kind::CallSite => "call site ",
            Kind::Root => "root ",
            Kind::Interrupt => "interrupts ",
        };
        let (one, many) = match o.kind {
            Kind::Label | Kind::Root => ("sleep", "sleeps"),
            Kind::Interrupt => ("interrupt", "interrupts"),
            _ => ("call", "calls"),
        };
        out.push_str(&format!(
            "  {kind}{}: {} {}, {}\n",
            printable(&o.name),
            count_text(o.count),
            if o.count == 1 { one } else { many },
            duration_text(o.total_ns, false)
        ));
    }
    if list.len() > top {
        out.push_str(&format!("  ({} more)\n", list.len() - top));
    }
}

/// The comparison as text; `top`: lines of each part, None: all.
pub fn render_diff(diff: &Diff, top: Option<usize>) -> String {
    let most = top.unwrap_or(usize::MAX);
    let mut out = format!(
        "{}\na: {}\nb: {}\n",
        headline(diff),
        side_text(&diff.a),
        side_text(&diff.b)
    );
    for warning in &diff.warnings {
        out.push_str(&format!("warning: {}\n", printable(warning)));
    }
    let notes = notes(diff);
    out.push_str(&format!("{}\n", notes[0]));

    if diff.changes.is_empty() && diff.appeared.is_empty() && diff.vanished.is_empty() {
        out.push_str(&format!(
            "\nNo significant difference in {} comparisons.\n",
            diff.compared
        ));
    }
    if !diff.changes.is_empty() {
        out.push_str("\nWhat changed, largest effect on the time of b first\n");
        for c in diff.changes.iter().take(most) {
            out.push_str(&format!(
                "  {}; {} in all\n",
                printable(&c.text),
                effect_text(c.effect_ns)
            ));
        }
        if diff.changes.len() > most {
            out.push_str(&format!("  ({} more)\n", diff.changes.len() - most));
        }
    }
    only_lines(&mut out, "In b only", &diff.appeared, most);
    only_lines(&mut out, "In a only", &diff.vanished, most);
    let unclear: Vec<&Change> = diff.unclear.iter().collect();
    if !unclear.is_empty() {
        let shown = unclear.len().min(top.unwrap_or(UNCLEAR_SHOWN));
        out.push_str("\nNot sure, or too small to matter\n");
        for c in &unclear[..shown] {
            out.push_str(&format!("  {}\n", printable(&c.text)));
        }
        if unclear.len() > shown {
            out.push_str(&format!("  ({} more)\n", unclear.len() - shown));
        }
    }
    out.push('\n');
    for note in &notes[1..] {
        out.push_str(&format!("note: {note}\n"));
    }
    out
}
