// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a report look in a browser?
//!
//! One file that needs no other: summary, bars, matrix and tables are written
//! here as plain HTML and stand without JavaScript. The script in assets/ adds
//! sorting, filters, pages, histograms, the flame graph, the timeline and the
//! charts from what is embedded as JSON.
//!
//! Names, paths, arguments and functions come from the watched programs and
//! are hostile until escaped: all text goes through [`escape`], the JSON through
//! [`script_json`], and a content security policy admits the one script by its
//! hash and nothing from elsewhere.

mod data;
mod lives;
mod parts;
pub(crate) mod table;

use crate::findings;
use crate::idle::Splits;
use crate::model::*;
use debox_output::{Page, Section, duration_text};

pub(crate) const STYLE: &str = include_str!("../assets/report.css");
/// Of all pages with tables.
pub const PAGE_SCRIPT: &str = include_str!("../assets/page.js");
const SCRIPT: &str = concat!(
    include_str!("../assets/page.js"),
    include_str!("../assets/report.js")
);

/// What a policy says to admit the script of [`render_html`] and no other.
pub fn script_policy() -> String {
    debox_output::script_policy(SCRIPT)
}

pub(crate) fn time(ns: u64) -> String {
    duration_text(ns, false)
}

/// The whole report as one HTML document.
pub fn render_html(report: &Report) -> String {
    let found;
    let findings = if report.findings.is_empty() {
        found = findings::find(report);
        &found
    } else {
        &report.findings
    };
    let subject = parts::subject(&report.run);
    let slow = data::slow_calls(report);
    let splits = Splits::of(report);
    let sections = [
        (
            "summary",
            "Summary",
            lives::verdict(report)
                + &lives::path_picture(report)
                + &parts::summary(report, findings),
        ),
        (
            "critical",
            "What its time depended on",
            lives::critical(report),
        ),
        (
            "lives",
            "Where the time of its threads went",
            lives::lives(report),
        ),
        ("time", "Where the time went", parts::time_bars(report)),
        ("matrix", "Blocked: label × call", parts::matrix(report)),
        ("calls", "Calls", parts::calls(report)),
        ("places", "Where it blocked", parts::places(report, &splits)),
        (
            "objects",
            "On what it blocked",
            parts::objects(report, &splits),
        ),
        ("chains", "Who it waited for", parts::chains(report)),
        ("interrupts", "Interrupts", parts::interrupts(report)),
        ("culprits", "Culprits", parts::culprits(report)),
        ("sites", "Call sites", parts::call_sites(report)),
        ("flame", "Flame graph of blocked time", parts::flame(report)),
        ("all", "All of their time", parts::all_time(report)),
        ("cpu", "On the CPU", parts::on_cpu(report)),
        (
            "slow",
            match crate::text::are_sleeps(report) {
                true => "Slowest sleeps",
                false => "Slowest calls",
            },
            parts::slow_calls(report, &slow),
        ),
        ("trends", "Trends", parts::trends(report)),
        ("threads", "Threads", parts::threads(report)),
        ("notes", "Notes", parts::notes(report)),
    ];
    let mut sections: Vec<Section> = sections
        .into_iter()
        .map(|(id, title, body)| Section { id, title, body })
        .collect();
    let style = format!("{STYLE}{}", table::take_styles(&mut sections));
    Page {
        title: &format!("DeBox: {subject}"),
        version: &report.debox_version,
        style: &style,
        header: parts::header(report, &subject),
        sections,
        footer: "Times are sums over all threads unless said otherwise.",
        script: Some((&data::data(report, &slow).to_string(), SCRIPT)),
    }
    .html()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_cannot_end_its_element() {
        assert!(!SCRIPT.to_lowercase().contains("</script"));
        assert!(!SCRIPT.contains("<!--"));
        assert!(!STYLE.to_lowercase().contains("</style"));
    }
}
