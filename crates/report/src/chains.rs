// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did sleeps wait for, what did that wait for, and where does it end?

use crate::assemble::frame_text;
use crate::model::{ChainKind, ChainLink, ChainRow, Frame, Report};
use debox_output::printable;
use std::collections::BTreeMap;

/// One line of the tree: all chains that read the same up to here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainNode {
    pub text: String,
    /// Parts of sleeps: one that several things held up counts with each of them.
    pub count: u64,
    pub total_ns: u64,
    /// Largest first; empty: a root.
    pub next: Vec<ChainNode>,
}

/// Where chains end, summed up over all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub text: String,
    pub total_ns: u64,
    /// The longest part of a sleep.
    pub max_ns: u64,
    pub count: u64,
    /// Different chains that end here.
    pub ways: usize,
    /// What is really known to be the end; else it is where knowledge ends.
    pub known: bool,
}

impl ChainKind {
    /// What a chain that ends so ends in, in a word.
    pub fn root_name(self) -> &'static str {
        use ChainKind::*;
        match self {
            RanUser => "own_code",
            RanCall => "system_call",
            Ran => "running",
            Runq => "run_queue",
            Device => "device",
            Disk => "disk",
            Timer => "timer",
            Limit => "time_limit",
            Network => "network",
            GracePeriod => "grace_period",
            Interrupt => "interrupt",
            NotOver => "not_over",
            Sleep | Earlier | Slept | Woken | Unseen | Ended | Deeper | Dropped | Other => {
                "unknown"
            }
        }
    }

    /// Whether a chain that ends so has been followed to its end.
    pub fn known(self) -> bool {
        !matches!(
            self,
            Self::Earlier
                | Self::Woken
                | Self::Unseen
                | Self::NotOver
                | Self::Ended
                | Self::Deeper
                | Self::Dropped
                | Self::Slept
                | Self::Other
        )
    }
}

/// So many callers of a place say which way led there.
const CALLERS_SHOWN: usize = 2;

/// What starts a program or a thread says nothing of its caller.
fn in_libc(frame: &Frame) -> bool {
    let module = frame.module.as_deref().unwrap_or_default();
    module.starts_with("libc.so") || module.starts_with("ld-musl")
}

/// A place in the program, and its callers where stacks are whole: " at f (x.c:7), from
/// main (x.c:9)"; empty when it is not known.
fn place_text(report: &Report, stack: Option<usize>) -> String {
    let Some(stack) = stack.and_then(|stack| report.stacks.get(stack)) else {
        return String::new();
    };
    let frames = stack.frames.iter().skip(stack.site_frame).enumerate();
    let own = frames.take_while(|(i, frame)| *i == 0 || !in_libc(frame));
    let mut text = String::new();
    for (i, frame) in own.take(1 + CALLERS_SHOWN) {
        text += if i == 0 { " at " } else { ", from " };
        text += &printable(&frame_text(frame));
    }
    text
}

/// Where the holder of a lock was: in the call that it was in, or as it made its last one.
pub fn holder_place(report: &Report, call: Option<&str>, stack: Option<usize>) -> String {
    let place = place_text(report, stack);
    match call {
        None if !place.is_empty() => format!(", which made its last call{place}"),
        _ => place,
    }
}

/// Of a link, without what it waited for.
pub fn link_text(link: &ChainLink, report: &Report) -> String {
    let who = match link.comm.as_str() {
        "" => "another user's task".to_owned(),
        comm => printable(comm),
    };
    let call = link.call.as_deref().map(printable);
    match link.kind {
        ChainKind::Sleep if link.comm.is_empty() => match &link.class {
            Some(class) => format!("{who} slept: {}", printable(class)),
            None => format!("{who} slept"),
        },
        ChainKind::Sleep => {
            let site = link.site.and_then(|site| report.sites.get(site));
            let label = printable(site.map_or("(unknown)", |site| site.label.as_str()));
            let held = if link.held { ", held by" } else { "" };
            match call {
                Some(call) => format!("{who} in {call}: {label}{held}"),
                None => format!("{who}: {label}{held}"),
            }
        }
        ChainKind::RanUser => format!("{who} ran its own code{}", place_text(report, link.stack)),
        ChainKind::RanCall => match call {
            Some(call) => format!("{who} ran in {call}{}", place_text(report, link.stack)),
            None => format!("{who} ran in calls"),
        },
        ChainKind::Ran => format!("{who} ran{}", place_text(report, link.stack)),
        ChainKind::Runq => format!("{who} waited for a CPU"),
        ChainKind::Device => format!("device {who}"),
        ChainKind::Disk => match &link.operation {
            Some(operation) => format!("disk {who}: {operation}"),
            None => format!("disk {who}"),
        },
        ChainKind::Timer => "a timer".to_owned(),
        ChainKind::Limit => "its own time limit".to_owned(),
        ChainKind::Network => "a packet from the network".to_owned(),
        ChainKind::GracePeriod => "an RCU grace period".to_owned(),
        ChainKind::Interrupt => "an interrupt".to_owned(),
        ChainKind::Earlier => match call {
            Some(call) => format!("{who} in {call}, what it did before is not known"),
            None => format!("{who}, what it did before is not known"),
        },
        ChainKind::Slept => format!("{who} slept, for more than is kept apart"),
        ChainKind::Woken => match call {
            Some(call) => format!("{who} in {call}, not followed yet"),
            None => format!("{who}, not followed yet"),
        },
        ChainKind::Unseen => "who woke it was not seen".to_owned(),
        ChainKind::NotOver => "not over yet".to_owned(),
        ChainKind::Ended => "not over when debox ended it".to_owned(),
        ChainKind::Deeper => "more links than are kept".to_owned(),
        ChainKind::Dropped => "no room for more chains".to_owned(),
        ChainKind::Other => "(unknown)".to_owned(),
    }
}

/// Of somebody else's sleep that its own time limit ended: "its own" would be said of who waits for it.
pub(crate) fn limit_text(whose: &ChainLink) -> String {
    let who = match whose.comm.as_str() {
        "" => "another user's task".to_owned(),
        comm => printable(comm),
    };
    match whose.call.as_deref().filter(|_| !whose.comm.is_empty()) {
        Some(call) => format!(
            "{who} waiting in {} until its own time limit",
            printable(call)
        ),
        None => format!("{who} waiting until its own time limit"),
    }
}

/// The links of a chain, first to root.
pub fn links_of(report: &Report, first: usize) -> Vec<&ChainLink> {
    let mut links = Vec::new();
    let mut next = Some(first);
    while let Some(link) = next.and_then(|at| report.chain_links.get(at)) {
        // A recording's numbers are foreign: they may lead in a circle.
        if links.len() > report.chain_links.len() {
            break;
        }
        links.push(link);
        next = link.parent;
    }
    links
}

/// The forest of chains (all are `report.chains`); children of the one that is returned.
pub fn tree(report: &Report, rows: &[ChainRow]) -> ChainNode {
    #[derive(Default)]
    struct Growing {
        count: u64,
        total_ns: u64,
        next: BTreeMap<String, Growing>,
    }
    fn grown(text: String, node: Growing) -> ChainNode {
        let mut next: Vec<ChainNode> = node
            .next
            .into_iter()
            .map(|(text, node)| grown(text, node))
            .collect();
        next.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then(a.text.cmp(&b.text)));
        ChainNode {
            text,
            count: node.count,
            total_ns: node.total_ns,
            next,
        }
    }
    let mut all = Growing::default();
    for row in rows {
        let mut at = &mut all;
        let texts = links_of(report, row.first)
            .into_iter()
            .map(|link| link_text(link, report));
        for text in std::iter::once(String::new()).chain(texts) {
            if !text.is_empty() {
                at = at.next.entry(text).or_default();
            }
            at.count = at.count.saturating_add(row.count);
            at.total_ns = at.total_ns.saturating_add(row.total_ns);
        }
    }
    grown(String::new(), all)
}

/// Whether these sleeps were at their thread's resting place.
pub fn row_rests(report: &Report, row: &ChainRow) -> bool {
    let first = report.chain_links.get(row.first);
    first.is_some_and(|link| link.rests)
}

/// Sleeps that held something up, and those at a resting place.
pub fn waits(report: &Report) -> (Vec<ChainRow>, Vec<ChainRow>) {
    report
        .chains
        .iter()
        .partition(|row| !row_rests(report, row))
}

/// Of these chains. Largest first.
pub fn roots(report: &Report, rows: &[ChainRow]) -> Vec<Root> {
    let mut roots: BTreeMap<String, Root> = BTreeMap::new();
    for row in rows {
        let Some(last) = links_of(report, row.first).pop() else {
            continue;
        };
        let text = link_text(last, report);
        let root = roots.entry(text.clone()).or_insert(Root {
            text,
            total_ns: 0,
            max_ns: 0,
            count: 0,
            ways: 0,
            known: last.kind.known(),
        });
        root.total_ns = root.total_ns.saturating_add(row.total_ns);
        root.max_ns = root.max_ns.max(row.max_ns);
        root.count = root.count.saturating_add(row.count);
        root.ways += 1;
    }
    let mut roots: Vec<Root> = roots.into_values().collect();
    roots.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then(a.text.cmp(&b.text)));
    roots
}

/// A line of the tree as it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeLine {
    pub depth: usize,
    pub text: String,
    pub count: u64,
    pub total_ns: u64,
}

/// The tree in lines, `most` of them at most: what is least of the whole is left
/// out, with what comes after it. A link with one thing to wait for stands
/// in a line with it.
pub fn tree_lines(tree: &ChainNode, most: usize) -> (Vec<TreeLine>, usize) {
    fn lines(nodes: &[ChainNode], depth: usize, least: u64, out: &mut Vec<TreeLine>) {
        for node in nodes.iter().filter(|node| node.total_ns >= least) {
            let mut text = node.text.clone();
            let mut last = node;
            while let [only] = last.next.as_slice() {
                text.push_str(" ← ");
                text.push_str(&only.text);
                last = only;
            }
            out.push(TreeLine {
                depth,
                text,
                count: node.count,
                total_ns: node.total_ns,
            });
            lines(&last.next, depth + 1, least, out);
        }
    }
    let mut every = Vec::new();
    lines(&tree.next, 0, 0, &mut every);
    if every.len() <= most {
        return (every, 0);
    }
    let mut times: Vec<u64> = every.iter().map(|line| line.total_ns).collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    let mut shown = Vec::new();
    // Equal times may be more than there is room for.
    lines(&tree.next, 0, times[most - 1], &mut shown);
    shown.truncate(most);
    let left = every.len() - shown.len();
    (shown, left)
}
