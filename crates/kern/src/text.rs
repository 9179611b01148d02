// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do metrics look as lines of text?

use debox_output::{Pen, Table, count_text, duration_text, printable};

use crate::auto::{Path, Step};
use crate::session::{Session, Watch};

fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    Table::new(head).rows(rows).text(&Pen::default(), None)
}

/// Columns of words.
pub fn table_words(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let table = Table::new(head).rows(rows);
    (1..head.len())
        .fold(table, |table, column| table.left(column))
        .text(&Pen::default(), None)
}

/// A rate with three significant digits at most.
pub fn rate_text(rate: f64) -> String {
    if rate >= 100.0 {
        count_text(rate.round() as u64)
    } else if rate >= 10.0 {
        format!("{rate:.1}")
    } else if rate > 0.0 {
        format!("{rate:.2}")
    } else {
        "-".into()
    }
}

/// Threads: three decimals, `-` for none.
pub fn threads_text(threads: Option<f64>) -> String {
    match threads {
        None => "?".into(),
        Some(0.0) => "-".into(),
        Some(t) if t < 0.0005 => "0.000".into(),
        Some(t) => format!("{t:.3}"),
    }
}

fn time_text(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".into(), |ns| duration_text(ns, false))
}

fn label(watch: &Watch) -> String {
    if watch.restricted.is_empty() {
        watch.name.clone()
    } else {
        format!("{} [{}]", watch.name, watch.restricted)
    }
}

const HEAD: [&str; 8] = [
    "FUNCTION", "CALLS/S", "INSIDE", "SELF", "OFF-CPU", "P50", "P99", "MAX",
];

/// What happened in the last interval.
pub fn interval_text(session: &Session) -> String {
    let rows: Vec<Vec<String>> = session
        .watches
        .iter()
        .filter(|w| w.removed.is_none())
        .filter_map(|w| {
            let p = w.series.last()?;
            Some(if w.timed {
                vec![
                    label(w),
                    rate_text(p.calls_per_second),
                    threads_text(p.concurrency),
                    threads_text(p.self_concurrency),
                    threads_text(p.off_cpu_concurrency),
                    time_text(p.p50_ns),
                    time_text(p.p99_ns),
                ]
            } else {
                vec![label(w), rate_text(p.calls_per_second)]
            })
        })
        .collect();
    let timed = session.watches.iter().any(|w| w.timed);
    format!(
        "{:.1} s\n{}",
        session.seconds(),
        table(if timed { &HEAD[..7] } else { &HEAD[..2] }, rows)
    )
}

/// The whole session.
pub fn summary_text(session: &Session) -> String {
    let timed = session.watches.iter().any(|w| w.timed);
    let mut watches: Vec<&Watch> = session.watches.iter().collect();
    watches.sort_by(|a, b| {
        (b.totals.inside_ns, b.totals.calls).cmp(&(a.totals.inside_ns, a.totals.calls))
    });
    let unused = watches.iter().filter(|w| w.totals.calls == 0).count();
    // A pattern's many functions that nobody called say nothing one by one.
    let shown: Vec<&&Watch> = watches
        .iter()
        .filter(|w| w.totals.calls > 0 || unused <= 5)
        .collect();
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|w| {
            let t = &w.totals;
            let share = |ns: u64| (t.seconds > 0.0).then_some(ns as f64 / 1e9 / t.seconds);
            let mut row = vec![label(w), count_text(t.calls)];
            if timed {
                if w.timed {
                    row.extend([
                        threads_text(t.concurrency),
                        threads_text(share(t.self_inside_ns)),
                        threads_text(share(t.off_cpu_ns)),
                        time_text(t.p50_ns),
                        time_text(t.p99_ns),
                        time_text(Some(t.max_ns).filter(|n| *n > 0)),
                        if t.inside_now > 0 {
                            count_text(t.inside_now)
                        } else {
                            "-".into()
                        },
                    ]);
                } else {
                    row.extend(std::iter::repeat_n("?".to_owned(), 7));
                }
            }
            row
        })
        .collect();
    let head: &[&str] = if timed {
        &[
            "FUNCTION", "CALLS", "INSIDE", "SELF", "OFF-CPU", "P50", "P99", "MAX", "NOW",
        ]
    } else {
        &["FUNCTION", "CALLS"]
    };
    let mut text = format!("In {:.1} s:\n{}", session.seconds(), table(head, rows));
    if unused > 5 {
        text.push_str(&format!("  ({unused} others were not called)\n"));
    }
    if timed {
        text.push_str(
            "INSIDE: threads inside on average (thread-seconds per second). SELF: of these in the \
             function\nitself and not in another one measured here. OFF-CPU: of these not on a CPU. \
             NOW: inside at the end.\n",
        );
    }
    for note in session.notes.iter().chain(&session.losses()) {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}

/// The way down that `--auto` found.
pub fn path_text(path: &Path, session: &Session) -> String {
    let mut text = String::new();
    for (i, branch) in path.branches.iter().enumerate() {
        let Some(root) = branch.steps.first() else {
            text.push_str(&format!("{}\n", printable(&branch.verdict)));
            continue;
        };
        if i == 0 {
            text.push_str(&format!(
                "Where the time of {} goes, {}{}:\n\n",
                printable(&path.root),
                path.method,
                if root.concurrency > 0.0 {
                    format!(" ({:.3} threads inside on average)", root.concurrency)
                } else {
                    String::new()
                }
            ));
        } else {
            text.push_str("\nThe next heaviest way:\n\n");
        }
        let rows: Vec<Vec<String>> = branch
            .steps
            .iter()
            .enumerate()
            .map(|(depth, step)| {
                let others: Vec<String> = branch
                    .beside(depth)
                    .map(|c| format!("{} {}", c.function, percent(c.share)))
                    .collect();
                let name = format!("{}{}", "  ".repeat(depth), step.function);
                [name]
                    .into_iter()
                    .chain(step_text(step))
                    .chain([others.join(", ")])
                    .collect()
            })
            .collect();
        let head = ["FUNCTION", "SHARE", "SELF", "OFF-CPU", "CALLS", "EACH", ""];
        text.push_str(
            &Table::new(&head)
                .left(6)
                .rows(rows)
                .text(&Pen::default(), None),
        );
        text.push_str(&format!("  => {}\n", printable(&branch.verdict)));
    }
    text.push_str(
        "\nSHARE: of the whole, on this way only. SELF: in the function itself and in callees too small to \
         be\nmeasured. OFF-CPU: not on a CPU while inside. To the right: other callees with a share.\n",
    );
    if path.method == "measured" {
        text.push_str(
            "Each line was measured in an interval of its own, after the one above: shares of a load that\n\
             changes go up and down.\n",
        );
    }
    for note in path
        .notes
        .iter()
        .chain(&session.notes)
        .chain(&session.losses())
    {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}

/// Share, of that itself, off the CPU, calls, and how long each.
pub fn step_text(step: &Step) -> [String; 5] {
    let unknown = || "?".to_owned();
    [
        percent(step.share),
        step.self_share.map_or_else(unknown, percent),
        step.off_cpu_share.map_or_else(unknown, percent),
        step.calls.map_or_else(unknown, count_text),
        step.calls
            .filter(|n| *n > 0)
            .map_or_else(unknown, |n| duration_text(step.inside_ns / n, false)),
    ]
}

pub fn percent(share: f64) -> String {
    if share <= 0.0 {
        "-".into()
    } else if share < 0.0005 {
        "0.0%".into()
    } else {
        format!("{:.1}%", share * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(rate_text(0.0), "-");
        assert_eq!(rate_text(0.123), "0.12");
        assert_eq!(rate_text(12.34), "12.3");
        assert_eq!(rate_text(1234.5), "1,235");
        assert_eq!(threads_text(None), "?");
        assert_eq!(threads_text(Some(0.0)), "-");
        assert_eq!(threads_text(Some(0.00001)), "0.000");
        assert_eq!(threads_text(Some(0.4)), "0.400");
    }
}
