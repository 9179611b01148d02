// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the figures look to a server that asks for native histograms?
//!
//! io.prometheus.client.MetricFamily, each with its length before it: the only form that has
//! them. The messages stand here by field number. The crate prometheus-client has them as well, but
//! makes them of their .proto as it is built, with a compiler for these and thirty crates of its
//! own, and gives native histograms no exemplars.

use crate::series::{
    Distribution, Exemplar, Family, Kind, NATIVE_SCHEMA, NATIVE_ZERO_S, Sample, Value,
};
use prost::Message;
use std::time::UNIX_EPOCH;

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(enumeration = "MetricType", optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
    #[prost(string, optional, tag = "5")]
    unit: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// Gauge, Counter
#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
    #[prost(message, repeated, tag = "16")]
    exemplars: Vec<ExemplarMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<ExemplarMessage>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct ExemplarMessage {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

fn labels_of(labels: &[(&'static str, String)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&'static str, String)| LabelPair {
        name: Some((*name).to_owned()),
        value: Some(value.clone()),
    };
    labels.iter().map(pair).collect()
}

fn exemplar_of(exemplar: &Exemplar) -> ExemplarMessage {
    let at = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    ExemplarMessage {
        label: labels_of(&exemplar.labels()),
        value: Some(std::time::Duration::from_nanos(exemplar.ns).as_secs_f64()),
        timestamp: Some(Timestamp {
            seconds: at.as_secs() as i64,
            nanos: at.subsec_nanos() as i32,
        }),
    }
}

/// With the classic buckets as well: servers before 3 take exemplars from these, also those of a native
/// histogram.
fn histogram_of(all: &Distribution) -> Histogram {
    let spans = all.native();
    let mut before = 0;
    let deltas = spans.iter().flat_map(|span| &span.counts).map(|&count| {
        let count = count as i64;
        let delta = count - before;
        before = count;
        delta
    });
    let positive_delta = deltas.collect();
    let bucket = |(bound, count, exemplar): (f64, u64, Option<&Exemplar>)| Bucket {
        cumulative_count: Some(count),
        upper_bound: Some(bound),
        exemplar: exemplar.map(exemplar_of),
    };
    Histogram {
        sample_count: Some(all.count()),
        sample_sum: Some(all.sum_s()),
        bucket: all.classic().into_iter().map(bucket).collect(),
        schema: Some(NATIVE_SCHEMA),
        zero_threshold: Some(NATIVE_ZERO_S),
        zero_count: Some(all.native_zero()),
        positive_span: (spans.iter())
            .map(|span| BucketSpan {
                offset: Some(span.offset),
                length: Some(span.counts.len() as u32),
            })
            .collect(),
        positive_delta,
        exemplars: all.exemplar.iter().map(exemplar_of).collect(),
    }
}

fn metric_of(kind: Kind, sample: &Sample) -> Metric {
    let mut metric = Metric {
        label: labels_of(&sample.labels),
        ..Metric::default()
    };
    let number = match &sample.value {
        Value::Count(count) => *count as f64,
        Value::Number(number) => *number,
        Value::Distribution(all) => {
            metric.histogram = Some(histogram_of(all));
            return metric;
        }
    };
    let number = Some(Number {
        value: Some(number),
    });
    match kind {
        Kind::Counter => metric.counter = number,
        Kind::Gauge | Kind::Info | Kind::Histogram => metric.gauge = number,
    }
    metric
}

pub fn protobuf(families: &[Family]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in families {
        // Here families are named as their series are.
        let (suffix, kind) = match family.kind {
            Kind::Counter => ("_total", MetricType::Counter),
            Kind::Gauge => ("", MetricType::Gauge),
            Kind::Info => ("_info", MetricType::Gauge),
            Kind::Histogram => ("", MetricType::Histogram),
        };
        let samples = family.samples.iter();
        let message = MetricFamily {
            name: Some(format!("{}{suffix}", family.name)),
            help: Some(format!("{}.", family.help)),
            kind: Some(kind as i32),
            metric: samples
                .map(|sample| metric_of(family.kind, sample))
                .collect(),
            unit: family.unit.map(str::to_owned),
        };
        bytes.extend(message.encode_length_delimited_to_vec());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_written_is_read() {
        let mut all = Distribution::default();
        for ns in [
            100,
            1_000_000_000,
            1_000_000_000,
            1_300_000_000,
            3_000_000_000,
        ] {
            all.buckets[debox_abi::sleep_bucket(ns)] += 1;
            all.sum_ns += ns;
        }
        all.exemplar = Some(Exemplar {
            ns: 3_000_000_000,
            at: UNIX_EPOCH + Duration::from_millis(1_500),
            program: "dd".into(),
            recording: None,
        });
        let of = |name, kind, value| Family {
            name,
            help: "What it is",
            unit: None,
            kind,
            samples: vec![Sample {
                labels: vec![("label", "disk".into())],
                value,
                since_ns: None,
            }],
        };
        let bytes = protobuf(&[
            of("d_sleeps", Kind::Counter, Value::Count(5)),
            of(
                "d_seconds",
                Kind::Histogram,
                Value::Distribution(Box::new(all)),
            ),
        ]);
        let mut rest = bytes.as_slice();
        let counter = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert_eq!(counter.name.as_deref(), Some("d_sleeps_total"));
        assert_eq!(counter.metric[0].counter, Some(Number { value: Some(5.0) }));
        let family = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert!(rest.is_empty());
        assert_eq!(family.kind(), MetricType::Histogram);
        let is = family.metric[0].histogram.as_ref().unwrap();
        assert_eq!((is.sample_count, is.zero_count), (Some(5), Some(1)));
        // Up to a second: bucket 0; up to 1.4: 1; up to 4: 4.
        let span = |offset, length| BucketSpan {
            offset: Some(offset),
            length: Some(length),
        };
        assert_eq!(is.positive_span, [span(0, 2), span(2, 1)]);
        assert_eq!(is.positive_delta, [2, -1, 0]);
        assert_eq!(is.exemplars.len(), 1);
        let classic = is.bucket.iter().find(|bucket| bucket.exemplar.is_some());
        assert_eq!(classic.unwrap().upper_bound, Some(4.0));
        assert_eq!(is.exemplars[0].timestamp.unwrap().nanos, 500_000_000);
    }
}
