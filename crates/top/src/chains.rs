// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the threads of a process wait for, link by link, and where does that end?

use crate::frame::Between;
use crate::views::Style;
use debox_output::{Pen, duration_text, printable};
use debox_report::{ChainRow, Report, link_text, links_of, roots, row_rests, tree, tree_lines};
use std::collections::{BTreeSet, HashMap};

/// More than anybody reads: the least are left out.
const CHAINS_SHOWN: usize = 200;
const ROOTS_SHOWN: usize = 12;

/// A chain in two frames is the same when it reads the same.
fn words(report: &Report, row: &ChainRow) -> String {
    let links = links_of(report, row.first);
    let texts: Vec<String> = links
        .into_iter()
        .map(|link| link_text(link, report))
        .collect();
    format!("{}\n{}", row_rests(report, row), texts.join("\n"))
}

/// The rows whose first link is a thread with one of these names, less what was there
/// before.
fn rows_between(between: &Between<'_>, names: Option<&BTreeSet<&str>>) -> Vec<ChainRow> {
    let mut then: HashMap<String, (u64, u64)> = HashMap::new();
    if let Some(before) = between.before {
        for row in &before.chains {
            let sum = then.entry(words(before, row)).or_default();
            sum.0 += row.count;
            sum.1 += row.total_ns;
        }
    }
    let of_names = |row: &&ChainRow| {
        names.is_none_or(|names| {
            let first = between.now.chain_links.get(row.first);
            first.is_some_and(|link| names.contains(link.comm.as_str()))
        })
    };
    let rows = between.now.chains.iter().filter(of_names).map(|row| {
        // Several rows may read alike: what one has used up is gone for the next.
        let (count, total_ns) = then
            .get_mut(&words(between.now, row))
            .map_or((0, 0), |sum| {
                let used = (sum.0.min(row.count), sum.1.min(row.total_ns));
                *sum = (sum.0 - used.0, sum.1 - used.1);
                used
            });
        ChainRow {
            count: row.count - count,
            total_ns: row.total_ns - total_ns,
            ..*row
        }
    });
    rows.filter(|row| row.total_ns > 0).collect()
}

/// Lines for a panel; `pid` None: of everything that is watched. Links have the names of
/// threads, so a process is told by those of its own.
pub fn lines(between: &Between<'_>, pid: Option<u32>, style: Style) -> Vec<String> {
    let threads = between.now.threads.iter().map(|row| (row.pid, &row.comm));
    let open = between
        .now
        .open_calls
        .iter()
        .map(|call| (call.pid, &call.comm));
    let names: BTreeSet<&str> = threads
        .chain(open)
        .filter(|(of, _)| Some(*of) == pid)
        .map(|(_, comm)| comm.as_str())
        .collect();
    let report = between.now;
    let rows = rows_between(between, pid.map(|_| &names));
    let (rested, rows): (Vec<ChainRow>, Vec<ChainRow>) =
        rows.into_iter().partition(|row| row_rests(report, row));
    let rest_ns = (rested.iter()).fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
    let tree = tree(report, &rows);
    let who = match pid {
        Some(pid) => format!("process {pid}"),
        None => "everything watched".into(),
    };
    let when = if style.totals {
        "since the start"
    } else {
        "a second"
    };
    let mut out = vec![format!("What {who} waited for, {when}  (c: back)")];
    let duration = |ns: u64| duration_text(between.per_second(ns, 0) as u64, style.ascii);
    if rest_ns > 0 {
        // A sleep that has ended counts with all its time, also with what passed before this interval.
        let ns = if style.totals {
            format!("{} ", duration(rest_ns))
        } else {
            String::new()
        };
        out.push(format!(
            "  (left out: {ns}at rest, waiting for work or for an answer)"
        ));
    }
    if rows.is_empty() {
        let nothing = if report.chains.is_empty() {
            "  no sleep has ended yet that could be explained"
        } else {
            "  nothing in this interval; t shows all since the start"
        };
        out.push(nothing.into());
        return out;
    }
    let pen = Pen {
        color: false,
        ascii: style.ascii,
    };
    let line = |total_ns: u64, depth: usize, text: &str| {
        let time = duration(total_ns);
        let share = total_ns as f64 * 100.0 / tree.total_ns.max(1) as f64;
        format!(
            "{time:>9} {share:>4.0} %  {}{}",
            "  ".repeat(depth),
            pen.plain(&printable(text))
        )
    };
    let (chains, left) = tree_lines(&tree, CHAINS_SHOWN);
    out.extend(
        chains
            .iter()
            .map(|row| line(row.total_ns, row.depth, &row.text)),
    );
    if left > 0 {
        out.push(format!("  ({left} more)"));
    }
    out.push(String::new());
    out.push("Where that ends".into());
    let roots = roots(report, &rows);
    out.extend(
        roots
            .iter()
            .take(ROOTS_SHOWN)
            .map(|root| line(root.total_ns, 0, &root.text)),
    );
    if roots.len() > ROOTS_SHOWN {
        out.push(format!("  ({} more)", roots.len() - ROOTS_SHOWN));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_report::{ChainKind, ChainLink};

    #[test]
    fn a_rest_is_in_no_share() {
        let sleep = |rests| ChainLink {
            comm: "server".into(),
            parent: Some(0),
            rests,
            ..ChainLink::of(ChainKind::Sleep)
        };
        let row = |first, seconds: u64| ChainRow {
            first,
            count: 1,
            total_ns: seconds * 1_000_000_000,
            max_ns: 0,
        };
        let report = Report {
            chain_links: vec![ChainLink::of(ChainKind::Timer), sleep(true), sleep(false)],
            chains: vec![row(1, 9), row(2, 1)],
            ..Report::default()
        };
        let between = Between {
            now: &report,
            before: None,
            seconds: 1.0,
        };
        let style = Style {
            totals: true,
            ascii: true,
        };
        let lines = lines(&between, None, style);
        assert!(lines[1].contains("left out: 9.00 s at rest"), "{lines:#?}");
        assert!(lines[2].contains("1.00 s  100 %  server"), "{lines:#?}");
    }
}
