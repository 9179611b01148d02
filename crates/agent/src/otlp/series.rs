// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the figures that Prometheus is told look like in OTLP?
//!
//! They are the same ones: the families of series of [`crate::metrics`] are written as OTLP has
//! them: counters as monotonic sums since the agent began, distributions as exponential histograms, whose buckets are those of a
//! native one. A name loses what OTLP says elsewhere: `debox_blocked_seconds_total` is
//! `debox.blocked` with the unit `s`. Prometheus, and what writes for it, put that together
//! again, so that dashboards and alerts find the series on either way.
//!
//! OpenTelemetry's SDK (opentelemetry_sdk) has no door for sums that somebody else has added up: its messages are
//! made by its own instruments alone, with the time of their own making, 2,000 series each, and no reading later
//! is what was read before. So these are opentelemetry-proto's messages themselves.

use super::message::said;
use crate::series::{
    self, Distribution, Family, Kind, Labels, NATIVE_SCHEMA, NATIVE_ZERO_S, Sample,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge,
    Metric, NumberDataPoint, Sum, exemplar,
};
use std::time::UNIX_EPOCH;

/// Of one message: a family of thousands may have to go in several requests.
const POINTS_MOST: usize = 1_000;
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;
/// What is counted, by the last word of a name.
const COUNTED: [(&str, &str); 12] = [
    ("sleeps", "{sleep}"),
    ("faults", "{fault}"),
    ("calls", "{call}"),
    ("errors", "{error}"),
    ("threads", "{thread}"),
    ("recordings_lost", "{period}"),
    ("periods", "{period}"),
    ("incomplete", "{item}"),
    ("sent", "{item}"),
    ("dropped", "{item}"),
    ("exceeded", "{look}"),
    ("level", "{level}"),
];

/// Since when, and as of when: nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub begin_ns: u64,
    pub now_ns: u64,
}

/// How a family of series is called, and in which unit it is.
fn name_of(family: &Family) -> (String, String) {
    let counted = || COUNTED.iter().find(|(end, _)| family.name.ends_with(end));
    let unit = match family.unit {
        None => counted().map_or("", |(_, unit)| unit),
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("ratio") => "1",
        Some(other) => other,
    };
    let name = family.unit.and_then(|unit| family.name.strip_suffix(unit));
    let name = (name.and_then(|name| name.strip_suffix('_'))).unwrap_or(family.name);
    let end = if family.kind == Kind::Info {
        "_info"
    } else {
        ""
    };
    let name = match name.split_once('_') {
        Some((prefix, rest)) => format!("{prefix}.{rest}{end}"),
        None => format!("{name}{end}"),
    };
    (name, unit.to_owned())
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let of = |(name, value): &(&str, String)| said(name, value.as_str());
    labels.iter().map(of).collect()
}

fn exemplar(of: &series::Exemplar) -> Exemplar {
    let at = of.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Exemplar {
        time_unix_nano: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
        value: Some(exemplar::Value::AsDouble(of.ns as f64 / 1e9)),
        filtered_attributes: attributes(&of.labels()),
        ..Exemplar::default()
    }
}

/// A sum that began anew says so, or what it has would be taken for what it had.
fn begin_ns(sample: &Sample, span: Span) -> u64 {
    let since_ns = sample.since_ns.unwrap_or(0).min(span.now_ns);
    span.begin_ns.max(since_ns)
}

fn number(sample: &Sample, begin_ns: u64, now_ns: u64) -> Option<NumberDataPoint> {
    let value = match &sample.value {
        series::Value::Count(count) => Value::AsInt(i64::try_from(*count).unwrap_or(i64::MAX)),
        series::Value::Number(number) => Value::AsDouble(*number),
        series::Value::Distribution(_) => return None,
    };
    Some(NumberDataPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: begin_ns,
        time_unix_nano: now_ns,
        value: Some(value),
        ..NumberDataPoint::default()
    })
}

/// Buckets without gaps, from one at an offset. Prometheus counts a bucket by its upper bound, OTLP by its lower
/// one.
fn buckets(spans: &[series::Span]) -> Option<Buckets> {
    let first = spans.first()?;
    let mut counts = Vec::new();
    for (at, span) in spans.iter().enumerate() {
        let gap = if at == 0 { 0 } else { span.offset };
        counts.extend(std::iter::repeat_n(0, usize::try_from(gap).unwrap_or(0)));
        counts.extend(&span.counts);
    }
    Some(Buckets {
        offset: first.offset - 1,
        bucket_counts: counts,
    })
}

fn distribution(sample: &Sample, all: &Distribution, span: Span) -> ExponentialHistogramDataPoint {
    ExponentialHistogramDataPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: begin_ns(sample, span),
        time_unix_nano: span.now_ns,
        count: all.count(),
        sum: Some(all.sum_s()),
        scale: NATIVE_SCHEMA,
        zero_count: all.native_zero(),
        zero_threshold: NATIVE_ZERO_S,
        positive: buckets(&all.native()),
        exemplars: all.exemplar.iter().map(exemplar).collect(),
        ..ExponentialHistogramDataPoint::default()
    }
}

fn chunks<T>(points: Vec<T>, metric: &Metric, data: impl Fn(Vec<T>) -> Data) -> Vec<(u64, Metric)> {
    let mut all = Vec::new();
    let mut points = points.into_iter().peekable();
    while points.peek().is_some() {
        let some: Vec<T> = points.by_ref().take(POINTS_MOST).collect();
        let items = some.len() as u64;
        let data = Some(data(some));
        all.push((
            items,
            Metric {
                data,
                ..metric.clone()
            },
        ));
    }
    all
}

/// All of a reading, each message with the number of its points.
pub fn of(families: &[Family], span: Span) -> Vec<(u64, Metric)> {
    let mut all = Vec::new();
    for family in families {
        let (name, unit) = name_of(family);
        let metric = Metric {
            name,
            unit,
            description: family.help.to_owned(),
            ..Metric::default()
        };
        // A gauge is of a moment.
        let begin_ns = |sample: &Sample| match family.kind {
            Kind::Gauge | Kind::Info => 0,
            Kind::Counter | Kind::Histogram => begin_ns(sample, span),
        };
        let numbers = (family.samples.iter())
            .filter_map(|sample| number(sample, begin_ns(sample), span.now_ns));
        match family.kind {
            Kind::Counter => {
                all.extend(chunks(numbers.collect(), &metric, |data_points| {
                    Data::Sum(Sum {
                        data_points,
                        aggregation_temporality: CUMULATIVE,
                        is_monotonic: true,
                    })
                }));
            }
            Kind::Gauge | Kind::Info => {
                all.extend(chunks(numbers.collect(), &metric, |data_points| {
                    Data::Gauge(Gauge { data_points })
                }));
            }
            Kind::Histogram => {
                let points = family
                    .samples
                    .iter()
                    .filter_map(|sample| match &sample.value {
                        series::Value::Distribution(of) => Some(distribution(sample, of, span)),
                        _ => None,
                    });
                all.extend(chunks(points.collect(), &metric, |data_points| {
                    Data::ExponentialHistogram(ExponentialHistogram {
                        data_points,
                        aggregation_temporality: CUMULATIVE,
                    })
                }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::metrics::{Metrics, Reading};
    use debox_abi::sleep_bucket;
    use debox_report::{LifeRow, LifeTime, Report};
    use opentelemetry_proto::tonic::common::v1::any_value;
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    const SPAN: Span = Span {
        begin_ns: 1_000,
        now_ns: 2_000,
    };

    fn label(is: &KeyValue) -> (String, String) {
        match &is.value.as_ref().unwrap().value {
            Some(any_value::Value::StringValue(text)) => (is.key.clone(), text.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// As Prometheus would name the series, and as its text writes the value.
    fn lines(metrics: &[(u64, Metric)]) -> BTreeMap<String, f64> {
        let mut lines = BTreeMap::new();
        for (items, metric) in metrics {
            let (points, end) = match metric.data.as_ref().unwrap() {
                Data::Sum(sum) => {
                    assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
                    (&sum.data_points, "_total")
                }
                Data::Gauge(gauge) => (&gauge.data_points, ""),
                other => panic!("{other:?}"),
            };
            assert_eq!(*items, points.len() as u64);
            let unit = match metric.unit.as_str() {
                "s" => "_seconds",
                "By" => "_bytes",
                "1" => "_ratio",
                _ => "",
            };
            let name = format!("{}{unit}{end}", metric.name.replace('.', "_"));
            for point in points {
                let begin_ns = if end.is_empty() { 0 } else { SPAN.begin_ns };
                assert_eq!(
                    (point.start_time_unix_nano, point.time_unix_nano),
                    (begin_ns, SPAN.now_ns)
                );
                let labels: Vec<String> = (point.attributes.iter().map(label))
                    .map(|(key, value)| {
                        format!(
                            "{key}=\"{}\"",
                            value.replace('\\', "\\\\").replace('"', "\\\"")
                        )
                    })
                    .collect();
                let series = match labels.is_empty() {
                    true => name.clone(),
                    false => format!("{name}{{{}}}", labels.join(",")),
                };
                let value = match point.value.unwrap() {
                    Value::AsDouble(value) => value,
                    Value::AsInt(value) => value as f64,
                };
                assert_eq!(lines.insert(series, value), None);
            }
        }
        lines
    }

    /// A series that had ended is another sum, of the time since it is there again.
    #[test]
    fn a_sum_that_begins_anew_says_since_when() {
        let sample = |since_ns| Sample {
            labels: Vec::new(),
            value: series::Value::Count(1),
            since_ns,
        };
        let family = |kind| Family {
            name: "debox_sleeps",
            help: "",
            unit: None,
            kind,
            samples: [None, Some(1_500), Some(500), Some(9_000)]
                .map(sample)
                .into(),
        };
        let begins = |kind| match of(&[family(kind)], SPAN).remove(0).1.data {
            Some(Data::Sum(Sum { data_points, .. }) | Data::Gauge(Gauge { data_points })) => {
                let points = data_points.iter();
                points.map(|it| it.start_time_unix_nano).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        // Never before the agent, nor after what is told of it.
        assert_eq!(begins(Kind::Counter), [1_000, 1_500, 1_000, 2_000]);
        assert_eq!(begins(Kind::Gauge), [0; 4]);
    }

    /// Series by series, of one reading.
    #[test]
    fn they_are_what_prometheus_is_told() {
        let mut config = Config::parse("").unwrap().metrics;
        config.programs = 5_000;
        let mut metrics = Metrics::new(&config);
        let life = |number: u64| LifeRow {
            comm: format!("a\"\\{number}"),
            unit: Some("u.service".into()),
            time: LifeTime {
                life_ns: number + 1,
                runq_ns: number + 1,
                minor_faults: number + 1,
                ..LifeTime::default()
            },
            ..LifeRow::default()
        };
        let mut report = Report {
            lives: (0..2_500).map(life).collect(),
            ..Report::default()
        };
        report.totals.threads_started = 7;
        metrics.update(&Reading {
            policy: "all",
            report: &report,
            took: Duration::from_millis(3),
            begun_ns: 0,
            recording: None,
        });
        metrics.read(Duration::from_millis(3));
        let mut sent = super::super::Figures {
            sent: [5, 6],
            ..Default::default()
        };
        sent.dropped[1][0] = 4;
        metrics.otlp(&sent, &super::super::Signal::ALL);
        let text = crate::text::text(&metrics.families(), crate::text::Form::OpenMetrics);
        let mut told = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            told.insert(series.to_owned(), value.parse::<f64>().unwrap());
        }
        assert!(told.len() > 5_000, "{}", told.len());
        assert_eq!(
            told["debox_otlp_dropped_total{signal=\"logs\",reason=\"queue_full\"}"],
            4.0
        );
        let messages = of(&metrics.families(), SPAN);
        assert!(
            messages
                .iter()
                .all(|(items, _)| *items <= POINTS_MOST as u64)
        );
        assert_eq!(lines(&messages), told);
        for (_, metric) in &messages {
            let has_unit = !metric.unit.is_empty() && !metric.description.is_empty();
            assert!(has_unit || metric.name == "debox.build_info", "{metric:?}");
        }
    }

    #[test]
    fn a_name_lacks_what_is_said_elsewhere() {
        for (name, unit, kind, is) in [
            (
                "debox_blocked_seconds",
                Some("seconds"),
                Kind::Counter,
                ("debox.blocked", "s"),
            ),
            (
                "debox_wait_root_seconds",
                Some("seconds"),
                Kind::Counter,
                ("debox.wait_root", "s"),
            ),
            (
                "debox_agent_report_seconds",
                Some("seconds"),
                Kind::Gauge,
                ("debox.agent_report", "s"),
            ),
            (
                "debox_blocked_duration_seconds",
                Some("seconds"),
                Kind::Histogram,
                ("debox.blocked_duration", "s"),
            ),
            (
                "debox_agent_memory_bytes",
                Some("bytes"),
                Kind::Gauge,
                ("debox.agent_memory", "By"),
            ),
            (
                "debox_agent_cpu_ratio",
                Some("ratio"),
                Kind::Gauge,
                ("debox.agent_cpu", "1"),
            ),
            (
                "debox_sleeps",
                None,
                Kind::Counter,
                ("debox.sleeps", "{sleep}"),
            ),
            (
                "debox_page_faults",
                None,
                Kind::Counter,
                ("debox.page_faults", "{fault}"),
            ),
            (
                "debox_calls",
                None,
                Kind::Counter,
                ("debox.calls", "{call}"),
            ),
            (
                "debox_condition_calls",
                None,
                Kind::Counter,
                ("debox.condition_calls", "{call}"),
            ),
            (
                "debox_call_errors",
                None,
                Kind::Counter,
                ("debox.call_errors", "{error}"),
            ),
            (
                "debox_threads",
                None,
                Kind::Counter,
                ("debox.threads", "{thread}"),
            ),
            (
                "debox_recordings_lost",
                None,
                Kind::Counter,
                ("debox.recordings_lost", "{period}"),
            ),
            (
                "debox_fleet_periods",
                None,
                Kind::Counter,
                ("debox.fleet_periods", "{period}"),
            ),
            (
                "debox_incomplete",
                None,
                Kind::Counter,
                ("debox.incomplete", "{item}"),
            ),
            (
                "debox_budget_exceeded",
                None,
                Kind::Counter,
                ("debox.budget_exceeded", "{look}"),
            ),
            (
                "debox_otlp_sent",
                None,
                Kind::Counter,
                ("debox.otlp_sent", "{item}"),
            ),
            ("debox_build", None, Kind::Info, ("debox.build_info", "")),
            ("debox_unit", None, Kind::Info, ("debox.unit_info", "")),
        ] {
            let family = Family {
                name,
                help: "",
                unit,
                kind,
                samples: Vec::new(),
            };
            let (name, unit) = name_of(&family);
            assert_eq!((name.as_str(), unit.as_str()), is);
        }
    }

    #[test]
    fn distributions_keep_their_buckets() {
        let second = 1_000_000_000;
        let mut all = Distribution::default();
        // (0.707, 1]: 2, (1, 1.41]: 1, a gap, (8, 11.3]: 1; and one that is as good as nothing.
        for ns in [second, second - 1, second + 1, 9 * second, 10] {
            all.buckets[sleep_bucket(ns)] += 1;
            all.sum_ns += ns;
        }
        all.exemplar = Some(series::Exemplar {
            ns: 9 * second,
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(7),
            program: "dd".into(),
            recording: Some("20261127T115200Z.web".into()),
        });
        let family = Family {
            name: "debox_blocked_duration_seconds",
            help: "how long",
            unit: Some("seconds"),
            kind: Kind::Histogram,
            samples: vec![Sample {
                labels: vec![("label", "page-in".into())],
                value: series::Value::Distribution(Box::new(all)),
                since_ns: None,
            }],
        };
        let all = of(&[family], SPAN);
        let [(1, metric)] = all.as_slice() else {
            panic!("{all:?}")
        };
        let Some(Data::ExponentialHistogram(is)) = &metric.data else {
            panic!("{metric:?}")
        };
        let point = &is.data_points[0];
        assert_eq!((point.count, point.scale, point.zero_count), (5, 1, 1));
        // Scale 1: of index 0 is (1, 1.41], of -1 what is below.
        let positive = point.positive.as_ref().unwrap();
        assert_eq!(positive.offset, -1);
        assert_eq!(positive.bucket_counts, [2, 1, 0, 0, 0, 0, 0, 1]);
        let counts: u64 = positive.bucket_counts.iter().sum();
        assert_eq!(counts + point.zero_count, point.count);
        assert_eq!(
            label(&point.attributes[0]),
            ("label".into(), "page-in".into())
        );
        let exemplar = &point.exemplars[0];
        assert_eq!(exemplar.time_unix_nano, 7_000_000_000);
        assert_eq!(exemplar.value, Some(exemplar::Value::AsDouble(9.0)));
        let labels: Vec<_> = exemplar.filtered_attributes.iter().map(label).collect();
        assert_eq!(
            labels[0],
            ("recording".into(), "20261127T115200Z.web".into())
        );
        assert_eq!(labels[1], ("program".into(), "dd".into()));
    }
}
