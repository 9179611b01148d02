// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a report look in a browser?
//!
//! One file that needs no other: summary, bars, matrix and tables are written
//! here as plain HTML and stand without JavaScript. The script in assets/ adds
//! sorting, filters, pages, histograms, the flame graph, the timeline and the
//! charts from the report's JSON, which is embedded.
//!
//! Names, paths, arguments and functions come from the watched programs and
//! are hostile until escaped: all text goes through [`escape`], the JSON through
//! [`script_json`], and a content security policy admits the one script by its
//! hash and nothing from elsewhere.

mod parts;
mod table;

use crate::chains;
use crate::findings;
use crate::model::*;
use debox_output::{Page, Section, duration_text, printable, result_text};

const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

fn time(ns: u64) -> String {
    duration_text(ns, false)
}

fn each_string(value: &mut serde_json::Value, f: &dyn Fn(&str) -> String) {
    match value {
        serde_json::Value::String(s) => *s = f(s),
        serde_json::Value::Array(list) => list.iter_mut().for_each(|v| each_string(v, f)),
        serde_json::Value::Object(map) => map.values_mut().for_each(|v| each_string(v, f)),
        _ => {}
    }
}

/// What the script draws from: the report, without what stands in the tables
/// already, and with which waits are waits for work.
fn data(report: &Report) -> serde_json::Value {
    let mut value =
        serde_json::to_value(report).expect("a report holds only text, numbers and lists");
    let map = value.as_object_mut().expect("a report is an object");
    for done in [
        "call_sites",
        "notes",
        "findings",
        "open_calls",
        "threads",
        "objects",
        "by_object",
        "interrupts",
    ] {
        map.remove(done);
    }
    if let Some(calls) = map.get_mut("slow_calls").and_then(|c| c.as_array_mut()) {
        for (call, row) in calls.iter_mut().zip(&report.slow_calls) {
            // A script's numbers are exact to 53 bits only.
            call["args"] = row.args.iter().map(|a| format!("{a:#x}")).collect();
            call["retval"] = result_text(row.retval).into();
        }
    }
    let idle: Vec<serde_json::Value> = findings::idle_rows(report)
        .iter()
        .map(|r| serde_json::json!([r.call, r.abi, r.label]))
        .collect();
    map.insert("idle".into(), idle.into());
    let texts: Vec<serde_json::Value> = report
        .chain_links
        .iter()
        .map(|link| chains::link_text(link, report).into())
        .collect();
    map.insert("chain_texts".into(), texts.into());
    each_string(&mut value, &|s| printable(s));
    value
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
    let sections = [
        ("summary", "Summary", parts::summary(report, findings)),
        ("time", "Where the time went", parts::time_bars(report)),
        ("matrix", "Blocked: label × call", parts::matrix(report)),
        ("calls", "Calls", parts::calls(report)),
        ("places", "Where it blocked", parts::places(report)),
        ("objects", "On what it blocked", parts::objects(report)),
        ("chains", "Who it waited for", parts::chains(report)),
        ("interrupts", "Interrupts", parts::interrupts(report)),
        ("culprits", "Culprits", parts::culprits(report)),
        ("sites", "Call sites", parts::call_sites(report)),
        ("flame", "Flame graph of blocked time", parts::flame(report)),
        ("slow", "Slowest calls", parts::slow_calls(report)),
        ("trends", "Trends", parts::trends(report)),
        ("threads", "Threads", parts::threads(report)),
        ("notes", "Notes", parts::notes(report)),
    ];
    Page {
        title: &format!("DeBox: {subject}"),
        version: &report.debox_version,
        style: STYLE,
        header: parts::header(report, &subject),
        sections: sections
            .into_iter()
            .map(|(id, title, body)| Section { id, title, body })
            .collect(),
        footer: "Times are sums over all threads unless said otherwise.",
        script: Some((&data(report).to_string(), SCRIPT)),
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
