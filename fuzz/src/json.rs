// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a JSON document do to who reads it back: report, diff, top, and
//! `bench --compare`?

use crate::rendered;

pub fn check(data: &[u8]) {
    // Both readers of reports say the same.
    let report = debox_record::read_bytes(data);
    if let Ok(text) = std::str::from_utf8(data) {
        if report.is_ok() {
            assert!(debox_report::parse_json(text).is_ok());
        } else {
            let _ = debox_report::parse_json(text);
        }
        if let Ok(document) = debox_bench::document_parse(text) {
            let compared = debox_bench::model::compare(&document, &document, "itself");
            let shown = debox_bench::model::Document {
                comparison: Some(compared),
                ..document
            };
            debox_bench::document_text(&shown, false);
            debox_bench::document_page(&shown);
        }
    }
    if let Ok(report) = report {
        rendered::check(report);
    }
}
