// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do chains become the tree and the roots that people read?

mod support;

use debox_report::*;

fn link(kind: ChainKind, comm: &str, site: Option<usize>, parent: Option<usize>) -> ChainLink {
    ChainLink {
        kind,
        comm: comm.into(),
        call: site.map(|_| "futex".into()),
        site,
        operation: None,
        parent,
        held: false,
    }
}

/// a waited 100 for b: 60 of it b slept for the disk, 40 it ran; and c 10 for the disk.
fn report() -> Report {
    let mut report = support::empty();
    report.sites = vec![Site {
        label: "lock".into(),
        unlabelled: false,
        function: None,
        offset: None,
        file: None,
        line: None,
        frames: vec![],
    }];
    report.chain_links = vec![
        link(ChainKind::Disk, "vda", None, None),
        link(ChainKind::Sleep, "b", Some(0), Some(0)),
        link(ChainKind::Sleep, "a", Some(0), Some(1)),
        link(ChainKind::Ran, "b", None, None),
        link(ChainKind::Sleep, "a", Some(0), Some(3)),
        link(ChainKind::Sleep, "c", Some(0), Some(0)),
    ];
    let row = |first, total_ns| ChainRow {
        first,
        count: 1,
        total_ns,
        max_ns: total_ns,
    };
    report.chains = vec![row(2, 60), row(4, 40), row(5, 10)];
    report
}

#[test]
fn chains_that_begin_alike_are_one_branch() {
    let (lines, left) = tree_lines(&tree(&report(), &report().chains), 10);
    let lines: Vec<_> = lines
        .iter()
        .map(|l| (l.depth, l.text.as_str(), l.total_ns))
        .collect();
    assert_eq!(
        lines,
        [
            (0, "a in futex: lock", 100),
            (1, "b in futex: lock ← disk vda", 60),
            (1, "b ran", 40),
            (0, "c in futex: lock ← disk vda", 10),
        ]
    );
    assert_eq!(left, 0);
}

#[test]
fn what_is_least_is_left_out_first() {
    let (lines, left) = tree_lines(&tree(&report(), &report().chains), 2);
    let texts: Vec<_> = lines.iter().map(|l| l.total_ns).collect();
    assert_eq!((texts, left), (vec![100, 60], 2));
}

#[test]
fn roots_are_summed_up_over_all_ways() {
    let roots = roots(&report(), &report().chains);
    let roots: Vec<_> = roots
        .iter()
        .map(|r| (r.text.as_str(), r.total_ns, r.ways, r.known))
        .collect();
    assert_eq!(roots, [("disk vda", 70, 2, true), ("b ran", 40, 1, true)]);
}

#[test]
fn a_circle_in_a_foreign_report_ends() {
    let mut report = report();
    report.chain_links[0].parent = Some(2);
    assert!(links_of(&report, 2).len() <= report.chain_links.len() + 1);
    tree(&report, &report.chains);
    roots(&report, &report.chains);
}
