// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a report look in a browser?
//!
//! One file that needs no other: summary, bars, matrix and tables are written
//! here as plain HTML and stand without JavaScript. The script in assets/ adds
//! sorting, filters, pages, histograms, the flame graph, the timeline and the
//! charts from the report's JSON, which is embedded.
//!
//! Names, paths, arguments and functions come from the watched programs and
//! are hostile until escaped: all text goes through [`text`], the JSON through
//! [`script_json`], and a content security policy admits the one script by its
//! hash and nothing from elsewhere.

mod parts;
mod table;

use base64::Engine as _;
use sha2::{Digest, Sha256};

use crate::findings;
use crate::model::*;
use crate::units::duration_text;
use debox_output::{printable, result_text};

const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

/// Escapes for element content and for attributes in double quotes; control
/// characters and those that turn the writing direction are shown escaped.
fn text(foreign: &str) -> String {
    let mut out = String::with_capacity(foreign.len() + 8);
    for c in printable(foreign).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn time(ns: u64) -> String {
    duration_text(ns, false)
}

/// JSON that cannot end its script element, nor begin a comment in it.
fn script_json(value: &serde_json::Value) -> String {
    let json = value.to_string();
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // These occur in strings only.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out
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
    for done in ["call_sites", "notes", "findings", "open_calls", "threads"] {
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
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(SCRIPT));
    let subject = parts::subject(&report.run);
    let mut out = String::with_capacity(1 << 18);
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str(&format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'\">\n"
    ));
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    out.push_str(&format!(
        "<meta name=\"generator\" content=\"DeBox {}\">\n",
        text(&report.debox_version)
    ));
    out.push_str(&format!("<title>DeBox: {}</title>\n", text(&subject)));
    out.push_str(&format!("<style>\n{STYLE}</style>\n</head>\n<body>\n"));
    out.push_str("<a class=\"skip\" href=\"#summary\">Skip to the summary</a>\n");

    let sections: Vec<(&str, &str, String)> = [
        ("summary", "Summary", parts::summary(report, findings)),
        ("time", "Where the time went", parts::time_bars(report)),
        ("matrix", "Blocked: label × call", parts::matrix(report)),
        ("calls", "Calls", parts::calls(report)),
        ("places", "Where it blocked", parts::places(report)),
        ("culprits", "Culprits", parts::culprits(report)),
        ("sites", "Call sites", parts::call_sites(report)),
        ("flame", "Flame graph of blocked time", parts::flame(report)),
        ("slow", "Slowest calls", parts::slow_calls(report)),
        ("trends", "Trends", parts::trends(report)),
        ("threads", "Threads", parts::threads(report)),
        ("notes", "Notes", parts::notes(report)),
    ]
    .into_iter()
    .filter(|(_, _, body)| !body.is_empty())
    .collect();

    out.push_str(&parts::header(report, &subject));
    out.push_str("<nav aria-label=\"Sections\"><ul>\n");
    for (id, title, _) in &sections {
        out.push_str(&format!("<li><a href=\"#{id}\">{title}</a></li>\n"));
    }
    out.push_str("</ul></nav>\n<main>\n");
    for (id, title, body) in &sections {
        out.push_str(&format!(
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n{body}</section>\n"
        ));
    }
    out.push_str("</main>\n");
    out.push_str(&format!(
        "<footer>Made by DeBox {}. Times are sums over all threads unless said otherwise.</footer>\n",
        text(&report.debox_version)
    ));
    out.push_str("<script type=\"application/json\" id=\"data\">");
    out.push_str(&script_json(&data(report)));
    out.push_str("</script>\n<script>");
    out.push_str(SCRIPT);
    out.push_str("</script>\n</body>\n</html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_could_leave_its_place() {
        assert_eq!(
            text("a<b>&\"c'\u{202e}\u{7}"),
            "a&lt;b&gt;&amp;&quot;c&#39;\\u{202e}\\u{7}"
        );
        let json = script_json(&serde_json::json!({"a": "</script><!--&\u{2028}"}));
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        let back: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(back["a"], "</script><!--&\u{2028}");
    }

    #[test]
    fn the_script_cannot_end_its_element() {
        assert!(!SCRIPT.to_lowercase().contains("</script"));
        assert!(!SCRIPT.contains("<!--"));
        assert!(!STYLE.to_lowercase().contains("</style"));
    }
}
