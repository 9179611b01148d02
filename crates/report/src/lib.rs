// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does an account become something that people and machines can read?
//!
//! [`assemble`] is a pure function from a snapshot (the account, the site
//! table, what the interposer counted, the run's own facts) to a [`Report`];
//! [`render_text`] and [`render_json`] print one. Nothing here opens a file,
//! asks a clock or knows a terminal, so all of it can be tested with invented
//! snapshots.
#![forbid(unsafe_code)]

mod all_time;
mod assemble;
mod chains;
mod culprits;
mod diff;
mod family;
mod findings;
mod hist;
mod html;
mod idle;
mod lives;
mod model;
mod on_cpu;
mod open;
mod options;
mod rests;
mod since;
mod sum;
mod text;
mod trace;
mod trend;
mod verdict;
mod wrap;

pub use all_time::{AllTime, AllTimePart, TimeOf, TimeState, all_time};
pub use assemble::{
    CallArguments, CallNames, CodePlace, Details, FrameNames, Input, RunFacts, assemble,
    call_of_key, disk_operation, frame_text, title_text,
};
pub use chains::{
    ChainNode, Root, TreeLine, holder_place, link_text, links_of, roots, row_rests, tree,
    tree_lines, waits,
};
pub use culprits::{CulpritGroup, CulpritOf, culprit_groups};
pub use diff::{
    Basis, Change, DIFF_SCHEMA, DIFF_SCHEMA_VERSION, Diff, DiffOptions, Kind, Metric,
    NotComparable, Only, Points, PointsChange, Side, diff, diff_points, render_diff,
    render_diff_html,
};
pub use findings::{
    class as label_class, find as find_findings, meaning as label_meaning, nothing_found,
};
pub use hist::Hist;
pub use html::{PAGE_SCRIPT, render_html, script_policy};
pub use lives::{
    CriticalRow, LifeGroup, PathLine, critical_rows, groups as life_groups, path_lines,
};
pub use model::*;
pub use on_cpu::{OnCpuTop, stack_of};
pub use options::TextOptions;
pub use rests::rests_refine;
pub use since::since;
pub use text::render_text;
pub use trace::{TraceEntry, TraceFunction, TraceReport, TracedCall};
pub use trend::find as find_trends;
pub use verdict::of as verdict_of;
pub use wrap::{PlaceCounts, WrapCounts, WrapProcess};

/// The report as one JSON document with a final newline; `docs/json.md`
/// describes it.
pub fn render_json(report: &Report) -> String {
    let text = match report.measured.calls {
        true => serde_json::to_string_pretty(report),
        // Not 0: nobody counted.
        false => serde_json::to_value(report).and_then(|mut value| {
            for field in ["calls", "errors", "restarted", "unfinished", "wall_ns"] {
                value["totals"][field] = serde_json::Value::Null;
            }
            serde_json::to_string_pretty(&value)
        }),
    };
    let mut out =
        text.expect("a report holds only text, numbers and lists, which always serialise");
    out.push('\n');
    debox_output::json_printable(&out)
}

/// Reads what [`render_json`] wrote, also of another version with more fields;
/// refuses documents that are not reports.
pub fn parse_json(text: &str) -> Result<Report, serde_json::Error> {
    use serde::de::Error;
    #[derive(serde::Deserialize)]
    struct Head {
        schema: String,
        schema_version: u32,
    }
    let head: Head = serde_json::from_str(text)?;
    if head.schema != SCHEMA {
        let found = head.schema.escape_default();
        return Err(serde_json::Error::custom(format!(
            "the document's schema is \"{found}\", not \"{SCHEMA}\""
        )));
    }
    if head.schema_version != SCHEMA_VERSION {
        return Err(serde_json::Error::custom(format!(
            "the report is of schema version {}, this program reads {SCHEMA_VERSION}",
            head.schema_version
        )));
    }
    serde_json::from_str(text)
}
