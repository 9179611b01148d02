// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the agent say of moments, so that who asks "why was it slow at 14:05" finds it among the
//! logs?
//!
//! Of each period a record, at its end: its body is the first sentence of the period's verdict, and beside it stand
//! what waited longest for what it needed, and the recording that has the rest. Of each time that
//! something is kept another one, with the folder; these are warnings where nobody asked for it.

use super::message::{of, said, text};
use debox_fleet::{Bounds, Period, rows};
use debox_output::{Utc, printable};
use debox_report::Report;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use std::path::Path;

const NANOSECONDS: u64 = 1_000_000_000;
/// Time that is lost, and not spent waiting for work.
const LOSS: &str = "loss";

/// Whether something could be kept, and where.
pub type Kept<'a> = Result<&'a Path, &'a str>;

/// "2026-11-27T14:05:00Z"
fn moment(ns: u64) -> String {
    let seconds = i64::try_from(ns / NANOSECONDS).unwrap_or(i64::MAX);
    let Utc {
        hour,
        minute,
        second,
        ..
    } = Utc::of_seconds(seconds);
    let date = Utc::of_seconds(seconds).date();
    let millis = ns % NANOSECONDS / 1_000_000;
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

fn record(
    event: &str,
    severity: SeverityNumber,
    at_ns: u64,
    now_ns: u64,
    body: String,
    attributes: Vec<KeyValue>,
) -> LogRecord {
    LogRecord {
        time_unix_nano: at_ns,
        observed_time_unix_nano: now_ns,
        severity_number: severity.into(),
        severity_text: match severity {
            SeverityNumber::Error => "ERROR",
            SeverityNumber::Warn => "WARN",
            _ => "INFO",
        }
        .to_owned(),
        body: Some(text(body)),
        event_name: event.to_owned(),
        attributes,
        ..LogRecord::default()
    }
}

/// From when to when it was, and where its recording is.
fn span(period: &Period, recording: Option<&Path>) -> Vec<KeyValue> {
    let mut all = vec![
        said("debox.period.begin", moment(period.begin_ns)),
        said("debox.period.end", moment(period.end_ns)),
    ];
    if !period.policy.is_empty() {
        all.push(said("debox.policy", period.policy.as_str()));
    }
    if let Some(path) = recording {
        all.push(said("debox.recording", path.to_string_lossy()));
    }
    all
}

/// A period is over.
pub fn period(
    report: &Report,
    period: &Period,
    recording: Option<&Path>,
    now_ns: u64,
) -> LogRecord {
    let rows = rows(report, period, &Bounds::default());
    let facts = &rows.facts;
    let mut attributes = span(period, recording);
    let lost = rows.waits.iter().filter(|(wait, _)| wait.class == LOSS);
    if let Some((wait, sum)) = lost.max_by_key(|(_, sum)| sum.blocked_ns) {
        for (key, value) in [
            ("debox.wait.program", &wait.program),
            ("debox.wait.unit", &wait.unit),
            ("debox.wait.container", &wait.container),
            ("debox.wait.pod", &wait.pod),
            ("debox.wait.call", &wait.call),
            ("debox.wait.label", &wait.label),
        ] {
            if !value.is_empty() {
                attributes.push(said(key, value.as_str()));
            }
        }
        attributes.push(said("debox.wait.root", wait.root));
        let seconds = sum.blocked_ns as f64 / NANOSECONDS as f64;
        attributes.push(of("debox.wait.seconds", Value::DoubleValue(seconds)));
    }
    if report.verdict.len() > 1 {
        attributes.push(said("debox.verdict", facts.verdict.as_str()));
    }
    if !facts.incomplete.is_empty() {
        attributes.push(said("debox.incomplete", facts.incomplete.as_str()));
    }
    let body = match report.verdict.first() {
        Some(sentence) => printable(sentence),
        None => "Nothing was measured.".to_owned(),
    };
    record(
        "debox.period",
        SeverityNumber::Info,
        period.end_ns,
        now_ns,
        body,
        attributes,
    )
}

/// What is of the last minutes stays, or was to stay.
pub fn kept(
    kept: Kept<'_>,
    why: &str,
    asked: bool,
    period: &Period,
    recording: Option<&Path>,
    now_ns: u64,
) -> LogRecord {
    let mut attributes = span(period, recording);
    attributes.push(said("debox.kept.why", printable(why)));
    let (event, severity, body) = match kept {
        Ok(folder) => {
            attributes.push(said("debox.kept.folder", folder.to_string_lossy()));
            let body = format!(
                "Recordings are kept in {}: {}",
                folder.display(),
                printable(why)
            );
            let severity = match asked {
                true => SeverityNumber::Info,
                false => SeverityNumber::Warn,
            };
            ("debox.kept", severity, body)
        }
        Err(error) => {
            let body = format!("Nothing is kept ({}): {}", printable(why), printable(error));
            ("debox.not_kept", SeverityNumber::Error, body)
        }
    };
    record(event, severity, period.end_ns, now_ns, body, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use debox_report::{ChainKind, ChainLink, ChainRow, LifeRow, Note, NoteKind, Site};

    const PERIOD_NS: u64 = 60 * NANOSECONDS;

    fn at() -> Period {
        Period {
            begin_ns: 1_795_788_240 * NANOSECONDS,
            end_ns: 1_795_788_300 * NANOSECONDS,
            ..Period::default()
        }
    }

    fn value(record: &LogRecord, key: &str) -> Option<String> {
        let is = record.attributes.iter().find(|is| is.key == key)?;
        match is.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some(text.clone()),
            Value::DoubleValue(number) => Some(number.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn body(record: &LogRecord) -> &str {
        match &record.body.as_ref().unwrap().value {
            Some(Value::StringValue(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    fn report() -> Report {
        let site = |label: &str| -> Site {
            serde_json::from_value(serde_json::json!({
                "label": label, "unlabelled": false, "function": null, "offset": null,
                "file": null, "line": null, "frames": []
            }))
            .unwrap()
        };
        let sleep = |comm: &str, site, parent| ChainLink {
            comm: comm.into(),
            call: Some("fsync".into()),
            site: Some(site),
            parent: Some(parent),
            ..ChainLink::of(ChainKind::Sleep)
        };
        let row = |first, total_ns| ChainRow {
            first,
            count: 1,
            total_ns,
            max_ns: total_ns,
        };
        Report {
            verdict: vec!["68% waiting for the disk.".into(), "More \x1b.".into()],
            sites: vec![site("device-flush"), site("nanosleep")],
            chain_links: vec![
                ChainLink::of(ChainKind::Disk),
                ChainLink::of(ChainKind::Timer),
                sleep("db", 0, 0),
                sleep("cron", 1, 1),
            ],
            // Who sleeps longer because he wants to is no loss.
            chains: vec![row(2, 41 * NANOSECONDS), row(3, 60 * NANOSECONDS)],
            lives: vec![LifeRow {
                comm: "db".into(),
                unit: Some("db.service".into()),
                ..LifeRow::default()
            }],
            notes: vec![Note::new(NoteKind::SitesDropped, 3, "")],
            ..Report::default()
        }
    }

    #[test]
    fn a_period_says_what_it_waited_for() {
        let path = Path::new("/var/lib/debox/flight/x.debox");
        let is = period(&report(), &at(), Some(path), 5);
        assert_eq!(body(&is), "68% waiting for the disk.");
        assert_eq!(
            (is.time_unix_nano, is.observed_time_unix_nano),
            (at().end_ns, 5)
        );
        assert_eq!(
            (is.event_name.as_str(), is.severity_text.as_str()),
            ("debox.period", "INFO")
        );
        for (key, text) in [
            ("debox.period.begin", "2026-11-27T14:04:00.000Z"),
            ("debox.period.end", "2026-11-27T14:05:00.000Z"),
            ("debox.recording", "/var/lib/debox/flight/x.debox"),
            ("debox.wait.program", "db"),
            ("debox.wait.unit", "db.service"),
            ("debox.wait.call", "fsync"),
            ("debox.wait.label", "device-flush"),
            ("debox.wait.root", "disk"),
            ("debox.wait.seconds", "41"),
            ("debox.verdict", "68% waiting for the disk.\nMore \\u{1b}."),
            ("debox.incomplete", "sites_dropped=3"),
        ] {
            assert_eq!(value(&is, key).as_deref(), Some(text), "{key}");
        }
        assert_eq!(at().end_ns - at().begin_ns, PERIOD_NS);
    }

    #[test]
    fn nothing_is_said_of_what_nobody_knows() {
        let is = period(&Report::default(), &at(), None, 5);
        assert_eq!(body(&is), "Nothing was measured.");
        let keys: Vec<&str> = is.attributes.iter().map(|is| is.key.as_str()).collect();
        assert_eq!(keys, ["debox.period.begin", "debox.period.end"]);
    }

    #[test]
    fn what_is_kept_says_where_and_why() {
        let folder = Path::new("/f/kept/1");
        let why = "root disk: 41.000 s in one period, more than 30.000 s";
        let is = kept(Ok(folder), why, false, &at(), None, 5);
        assert_eq!(
            body(&is),
            format!("Recordings are kept in /f/kept/1: {why}")
        );
        assert_eq!(
            (is.event_name.as_str(), is.severity_text.as_str()),
            ("debox.kept", "WARN")
        );
        assert_eq!(
            value(&is, "debox.kept.folder").as_deref(),
            Some("/f/kept/1")
        );
        assert_eq!(value(&is, "debox.kept.why").as_deref(), Some(why));
        let asked = kept(Ok(folder), "asked for", true, &at(), None, 5);
        assert_eq!(asked.severity_text, "INFO");
        let not = kept(Err("no room\x1b"), why, false, &at(), None, 5);
        assert_eq!(
            (not.event_name.as_str(), not.severity_text.as_str()),
            ("debox.not_kept", "ERROR")
        );
        assert!(body(&not).ends_with(": no room\\u{1b}"), "{}", body(&not));
        assert_eq!(value(&not, "debox.kept.folder"), None);
    }
}
