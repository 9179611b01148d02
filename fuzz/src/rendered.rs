// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a report that came from outside do to everything that shows it?

use debox_report::*;
use debox_top::{Host, Settings, View, Woken};
use std::time::{Duration, Instant};

pub fn check(mut report: Report) {
    // As `debox report` does.
    report.trends = find_trends(&report.history, &report.gauges);
    report.findings = find_findings(&report);
    for options in [
        TextOptions::default(),
        TextOptions {
            ascii: true,
            top: Some(3),
            ..TextOptions::default()
        },
    ] {
        assert!(!render_text(&report, &options).is_empty());
    }
    // What was written is read as the same.
    let text = render_json(&report);
    let again = parse_json(&text).expect("its own JSON");
    assert_eq!(text, render_json(&again));
    assert!(!render_html(&report).is_empty());
    debox_export::folded(&report);
    debox_export::perfetto(&report);
    debox_export::pprof(&report);
    for other in [&again, &small()] {
        for (a, b) in [(&report, other), (other, &report)] {
            if let Ok(diff) = diff(a, b, &DiffOptions::default()) {
                render_diff(&diff, None);
            }
        }
    }
    top(report);
}

/// A report with little in it, to compare with.
fn small() -> Report {
    parse_json(include_str!("../corpus/json/small.json")).expect("a report of debox")
}

/// Shows one report in all views of `debox top`.
fn top(report: Report) {
    struct Once(Report);
    impl Host for Once {
        fn sample(&mut self) -> Report {
            self.0.clone()
        }
        fn ended(&mut self) -> Option<String> {
            Some("ended".into())
        }
        fn wait(&mut self, _: bool, _: Instant) -> Woken {
            Woken::default()
        }
        fn owns_command(&self) -> bool {
            false
        }
        fn why(&mut self, _: Option<u32>) -> String {
            String::new()
        }
    }

    let settings = Settings {
        title: report.run.command.join(" "),
        interval: Duration::from_millis(100),
        view: View::ALL[0],
        totals: true,
        color: false,
        ascii: false,
    };
    let mut out = Vec::new();
    debox_top::batch(&mut Once(report), settings, &View::ALL, 1, 100, &mut out)
        .expect("writing to memory");
}
