// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel functions did the calls run through? The part of a report that
//! a call trace makes, and how it is printed.

use crate::options::TextOptions;
use debox_output::{Pen, Style, Table, count_text, printable, result_text};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What a call trace found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// How it was taken: "kprobe.session", "kprobe.multi", "fentry/fexit", "tracepoints".
    pub way: String,
    /// Made of static tracepoints, not of functions.
    pub coarse: bool,
    /// Functions (tracepoints) that were traced, and ones that could not be.
    pub functions_traced: u32,
    pub functions_refused: u32,
    /// Why some could not be, and what else must be known; may be empty.
    pub text: String,
    /// Calls that were traced.
    pub calls: u64,
    /// Entries that found no room in the trace of their call; in the sums they are.
    pub entries_dropped: u64,
    /// Threads that found no buffer: their calls are missing.
    pub threads_untraced: u64,
    /// Entries and returns that the kernel did not deliver (of all processes).
    pub missed: u64,
    /// Returns without an entry, and entries whose return never came.
    pub unmatched: u64,
    /// The slowest call of each system call, slowest first.
    pub slowest: Vec<TracedCall>,
    /// Sums over all calls, largest self time first.
    pub functions: Vec<TraceFunction>,
}

/// One call with its functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCall {
    pub call: String,
    pub abi: u32,
    pub pid: u32,
    pub tid: u32,
    pub wall_ns: u64,
    pub retval: i64,
    /// Name of the error that it returned; null: none.
    #[serde(default)]
    pub error: Option<String>,
    /// It never returned.
    pub unfinished: bool,
    pub dropped: u32,
    /// In the order in which the functions were entered.
    pub entries: Vec<TraceEntry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEntry {
    pub function: String,
    /// Traced functions above it.
    pub depth: u32,
    /// Since the call began.
    pub start_ns: u64,
    /// null: a tracepoint, or the function had not returned.
    pub total_ns: Option<u64>,
    /// Of it outside of traced functions that it called.
    pub self_ns: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFunction {
    pub function: String,
    pub calls: u64,
    /// Recursion counts once.
    pub total_ns: u64,
    pub self_ns: u64,
    pub max_ns: u64,
}

/// Trees that are printed, and lines of each; JSON has them all.
const TREES: usize = 4;
const LINES: usize = 40;
const FUNCTIONS: usize = 20;
/// Deeper entries are not indented further.
const DEPTH_SHOWN: usize = 64;

/// Indices of the entries worth a line: the longest, and whoever called them.
fn worth(call: &TracedCall) -> Vec<usize> {
    if call.entries.len() <= LINES {
        return (0..call.entries.len()).collect();
    }
    let mut order: Vec<usize> = (0..call.entries.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(call.entries[i].total_ns.unwrap_or(0)));
    // Who called is at least as long, so it comes first, but for equals.
    let mut keep: Vec<usize> = order.into_iter().take(LINES).collect();
    keep.sort_unstable();
    keep
}

fn tree(out: &mut String, call: &TracedCall, pen: &Pen) {
    let mut head = format!("{} {}", printable(&call.call), pen.time(call.wall_ns));
    if call.abi == 32 {
        head.push_str(" (32-bit)");
    }
    let head = pen.paint(Style::Bold, &head);
    let _ = write!(out, "\nslowest {head}, pid {}", call.pid);
    if call.tid != call.pid {
        let _ = write!(out, " tid {}", call.tid);
    }
    if call.unfinished {
        out.push_str(", never returned");
    } else {
        let _ = write!(out, ", result {}", result_text(call.retval));
    }
    out.push('\n');
    let lines = worth(call);
    let mut table = Table::new(&["START", "TIME", "SELF", "FUNCTION"])
        .right(0)
        .left(3)
        .optional_from(1);
    for &i in &lines {
        let e = &call.entries[i];
        let cell = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| pen.time(ns));
        let indent = 2 * (e.depth as usize).min(DEPTH_SHOWN);
        table.row(vec![
            pen.time(e.start_ns),
            cell(e.total_ns),
            cell(e.self_ns),
            " ".repeat(indent) + &e.function,
        ]);
    }
    *out += &table.text(pen, None);
    let shorter = call.entries.len() - lines.len();
    if shorter > 0 {
        let _ = writeln!(
            out,
            "  and {} shorter ones between them (JSON has all)",
            count_text(shorter as u64)
        );
    }
    if call.dropped > 0 {
        let _ = writeln!(
            out,
            "  and {} more that found no room: a larger --trace-max keeps them",
            count_text(u64::from(call.dropped))
        );
    }
}

/// The section of the text report.
pub(crate) fn section(out: &mut String, trace: &TraceReport, pen: &Pen, options: &TextOptions) {
    let bold = |text: &str| pen.paint(Style::Bold, text);
    let what = if trace.coarse {
        "tracepoints"
    } else {
        "functions"
    };
    let _ = writeln!(
        out,
        "\n{}: {} calls through {} kernel {what}, by {}{}",
        bold("call trace"),
        count_text(trace.calls),
        count_text(u64::from(trace.functions_traced)),
        printable(&trace.way),
        if trace.coarse {
            " (coarse: functions cannot be traced here)"
        } else {
            ""
        }
    );
    for call in trace.slowest.iter().take(options.top.unwrap_or(TREES)) {
        tree(out, call, pen);
    }
    let more: Vec<String> = trace
        .slowest
        .iter()
        .skip(options.top.unwrap_or(TREES))
        .map(|c| printable(&c.call))
        .collect();
    if !more.is_empty() {
        let shown = more[..more.len().min(8)].join(", ");
        let rest = more.len().saturating_sub(8);
        let rest = if rest > 0 {
            format!(" and {rest} more")
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "\ntraces of {shown}{rest} are in the JSON report; --call CALL prints the ones that matter"
        );
    }
    if !trace.functions.is_empty() {
        let rows = (trace.functions.iter()).take(options.top.unwrap_or(FUNCTIONS));
        let _ = writeln!(out, "\n{} over all traced calls, by self time", bold(what));
        let (calls, function) = match trace.coarse {
            true => ("PASSED", "TRACEPOINT"),
            false => ("CALLS", "FUNCTION"),
        };
        let rows = rows.map(|f| {
            let [total, own, max] = [f.total_ns, f.self_ns, f.max_ns].map(|ns| pen.cell(ns));
            vec![count_text(f.calls), total, own, max, f.function.clone()]
        });
        let table = Table::new(&[calls, "TOTAL", "SELF", "MAX", function])
            .right(0)
            .left(4)
            .optional_from(1)
            .rows(rows);
        *out += &table.text(pen, None);
        let rest = trace
            .functions
            .len()
            .saturating_sub(options.top.unwrap_or(FUNCTIONS));
        if rest > 0 {
            let _ = writeln!(out, "  and {} more (JSON has all)", count_text(rest as u64));
        }
    }
    let mut remarks = vec![];
    if trace.missed > 0 {
        remarks.push(format!(
            "the kernel did not deliver {} entries or returns, of all processes together",
            count_text(trace.missed)
        ));
    }
    if trace.unmatched > 0 {
        remarks.push(format!(
            "{} returns and entries found no partner: those times are incomplete",
            count_text(trace.unmatched)
        ));
    }
    if trace.threads_untraced > 0 {
        remarks.push(format!(
            "{} threads were not traced: too many at one time",
            count_text(trace.threads_untraced)
        ));
    }
    if !trace.text.is_empty() {
        remarks.push(trace.text.clone());
    }
    if !remarks.is_empty() {
        out.push('\n');
    }
    for remark in remarks {
        let _ = writeln!(out, "trace note: {}", printable(&remark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: &str, depth: u32, total_ns: Option<u64>) -> TraceEntry {
        TraceEntry {
            function: function.into(),
            depth,
            start_ns: 1_500,
            total_ns,
            self_ns: total_ns.map(|ns| ns / 2),
        }
    }

    fn text_of(trace: &TraceReport) -> String {
        let mut out = String::new();
        section(&mut out, trace, &Pen::default(), &TextOptions::default());
        out
    }

    #[test]
    fn functions_stand_below_those_that_called_them() {
        let mut trace = TraceReport {
            way: "kprobe.session".into(),
            calls: 1,
            functions_traced: 2,
            slowest: vec![TracedCall {
                call: "read".into(),
                wall_ns: 4_000,
                pid: 7,
                tid: 7,
                entries: vec![
                    entry("vfs_read", 0, Some(2_000)),
                    entry("rw_verify_area\u{1b}[2J", 1, None),
                ],
                ..TracedCall::default()
            }],
            functions: vec![TraceFunction {
                function: "vfs_read".into(),
                calls: 1_234,
                total_ns: 2_000,
                self_ns: 1_000,
                max_ns: 0,
            }],
            ..TraceReport::default()
        };
        assert_eq!(
            text_of(&trace),
            "\ncall trace: 1 calls through 2 kernel functions, by kprobe.session\n\
             \nslowest read 4.00 µs, pid 7, result 0\n\
             \x20   START     TIME     SELF  FUNCTION\n\
             \x20 1.50 µs  2.00 µs  1.00 µs  vfs_read\n\
             \x20 1.50 µs        -        -    rw_verify_area\\u{1b}[2J\n\
             \nfunctions over all traced calls, by self time\n\
             \x20 CALLS    TOTAL     SELF  FUNCTION\n\
             \x20 1,234  2.00 µs  1.00 µs  vfs_read\n"
        );
        // Tracepoints have no end.
        trace.coarse = true;
        trace.slowest[0].entries.remove(0);
        trace.functions[0].total_ns = 0;
        trace.functions[0].self_ns = 0;
        let text = text_of(&trace);
        assert!(
            text.contains("\n    START  FUNCTION\n  1.50 µs    rw_"),
            "{text}"
        );
        assert!(
            text.contains("\n  PASSED  TRACEPOINT\n   1,234  vfs_read\n"),
            "{text}"
        );
    }
}
