// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a comparison told to people?

use super::{Basis, Change, Diff, Kind, Metric, Only, Side};
use debox_output::{count_text, duration_text, printable};

/// Lines of what did not clearly change, unless all are asked for.
const UNCLEAR_SHOWN: usize = 8;

fn side_text(side: &Side) -> String {
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

fn effect_text(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "+" };
    format!("{sign}{}", duration_text(ns.unsigned_abs(), false))
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
    let mut out = format!("a: {}\nb: {}\n", side_text(&diff.a), side_text(&diff.b));
    for warning in &diff.warnings {
        out.push_str(&format!("warning: {}\n", printable(warning)));
    }
    out.push_str(if diff.per_run {
        "Counts and label times are per run.\n"
    } else {
        "The runs differ in length: counts and label times are per second.\n"
    });

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
    let all = || diff.changes.iter().chain(&diff.unclear);
    out.push('\n');
    let percent = (1.0 - diff.confidence) * 100.0;
    out.push_str(&format!(
        "note: were the runs alike, one of these {} comparisons would be called a change in {percent:.0} % of cases. The intervals hold what varies within a run; what differs from run to run (caches, other load) they cannot know: repeat the runs to be sure.\n",
        diff.compared
    ));
    if all().any(|c| c.metric == Metric::Mean && c.basis == Basis::Histogram) {
        out.push_str("note: calls without a history of at least 8 points in both files count as independent of each other; their intervals are too narrow when slow calls come in bursts.\n");
    }
    out
}
