// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do OTLP's messages say of whoever sends them, and where is one cut into several?

use super::config::Signal;
use super::queue::Batch;
use crate::fleet::line;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use std::collections::BTreeMap;

const SERVICE: &str = "debox-agent";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Whoever takes requests takes 4 MiB and more, if nobody has told it otherwise.
const REQUEST_BYTES: usize = 1 << 20;

pub fn text(value: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(value.into())),
    }
}

pub fn said(key: &str, value: impl Into<String>) -> KeyValue {
    of(key, Value::StringValue(value.into()))
}

pub fn of(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// Whose figures these are; `more` is what the file says, and has the last word.
pub fn resource(more: &BTreeMap<String, String>) -> Resource {
    let host = line("/proc/sys/kernel/hostname");
    let mut all = BTreeMap::from([
        ("service.name".to_owned(), SERVICE.to_owned()),
        ("service.version".to_owned(), VERSION.to_owned()),
        // One agent a host. Prometheus calls it `instance`, and so do the dashboards.
        ("service.instance.id".to_owned(), host.clone()),
        ("host.name".to_owned(), host),
        ("host.id".to_owned(), line("/etc/machine-id")),
        ("os.type".to_owned(), "linux".to_owned()),
        (
            "debox.boot.id".to_owned(),
            line("/proc/sys/kernel/random/boot_id"),
        ),
    ]);
    if let Some(host) = more.get("host.name") {
        all.insert("service.instance.id".to_owned(), host.clone());
    }
    all.extend(more.clone());
    Resource {
        attributes: (all.into_iter())
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| said(&key, value))
            .collect(),
        ..Resource::default()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: SERVICE.to_owned(),
        version: VERSION.to_owned(),
        ..InstrumentationScope::default()
    }
}

/// In requests of a size that is taken. Each has the number of its data points beside it.
pub fn metrics(resource: &Resource, metrics: Vec<(u64, Metric)>) -> Vec<Batch> {
    let request = |metrics: Vec<Metric>| ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    };
    cut(metrics)
        .into_iter()
        .map(|(items, metrics)| Batch {
            signal: Signal::Metrics,
            items,
            bytes: request(metrics).encode_to_vec(),
        })
        .collect()
}

/// The same of log records.
pub fn logs(resource: &Resource, records: Vec<LogRecord>) -> Vec<Batch> {
    let request = |log_records: Vec<LogRecord>| ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope()),
                log_records,
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    };
    cut(records.into_iter().map(|record| (1, record)).collect())
        .into_iter()
        .map(|(items, records)| Batch {
            signal: Signal::Logs,
            items,
            bytes: request(records).encode_to_vec(),
        })
        .collect()
}

fn cut<M: Message>(messages: Vec<(u64, M)>) -> Vec<(u64, Vec<M>)> {
    let mut all: Vec<(u64, Vec<M>)> = Vec::new();
    let mut bytes = REQUEST_BYTES;
    for (items, message) in messages {
        let more = message.encoded_len();
        if bytes + more > REQUEST_BYTES {
            all.push((0, Vec::new()));
            bytes = 0;
        }
        bytes += more;
        if let Some(last) = all.last_mut() {
            last.0 += items;
            last.1.push(message);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(resource: &'a Resource, key: &str) -> Option<&'a str> {
        let is = resource.attributes.iter().find(|is| is.key == key)?;
        match is.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some(text),
            _ => None,
        }
    }

    #[test]
    fn a_host_is_named_as_the_file_says() {
        let own = resource(&BTreeMap::new());
        let host = line("/proc/sys/kernel/hostname");
        for key in ["host.name", "service.instance.id"] {
            assert_eq!(value(&own, key), Some(host.as_str()));
        }
        assert_eq!(value(&own, "service.name"), Some("debox-agent"));
        assert_eq!(value(&own, "debox.boot.id").map(str::len), Some(36));
        let more = BTreeMap::from([("host.name".to_owned(), "web-1".to_owned())]);
        let named = resource(&more);
        for key in ["host.name", "service.instance.id"] {
            assert_eq!(value(&named, key), Some("web-1"));
        }
    }

    #[test]
    fn what_is_large_goes_in_several_requests() {
        let record = |bytes: usize| LogRecord {
            body: Some(text("x".repeat(bytes))),
            ..LogRecord::default()
        };
        let resource = resource(&BTreeMap::new());
        assert!(logs(&resource, Vec::new()).is_empty());
        let records = (0..40).map(|_| record(100_000)).collect();
        let batches = logs(&resource, records);
        assert_eq!(batches.iter().map(|batch| batch.items).sum::<u64>(), 40);
        assert_eq!(batches.len(), 4);
        for batch in &batches {
            assert!(batch.bytes.len() < REQUEST_BYTES + 1000);
            let read = ExportLogsServiceRequest::decode(batch.bytes.as_slice()).unwrap();
            let records = &read.resource_logs[0].scope_logs[0].log_records;
            assert_eq!(records.len() as u64, batch.items);
        }
        // One that is too large alone goes alone.
        let batches = logs(&resource, vec![record(1), record(2_000_000), record(1)]);
        assert_eq!(batches.len(), 3);
    }
}
