// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the figures look as text?
//!
//! OpenMetrics 1.0, which has exemplars, and Prometheus' own older form (0.0.4), which has none.
//! Both have the classic buckets of a histogram. The crate prometheus-client writes the first alone.

use crate::series::{Exemplar, Family, Kind, Sample, Value};
use std::fmt::Write;
use std::time::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    OpenMetrics,
    Prometheus,
}

/// The value of a label: a line's end and a quote would end it.
fn escape(to: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '"' => to.push_str("\\\""),
            '\n' => to.push_str("\\n"),
            c => to.push(c),
        }
    }
}

/// A bound as servers write it that read the native form, so that the series is the same one
/// whichever form it came by: as Go's %g does, and never without a point.
fn bound_text(bound: f64) -> String {
    if bound.is_infinite() {
        return "+Inf".into();
    }
    if bound >= 1e-4 {
        return format!("{bound:?}");
    }
    let text = format!("{bound:e}");
    match text.split_once("e-") {
        Some((mantissa, exponent)) => format!("{mantissa}e-{exponent:0>2}"),
        None => text,
    }
}

struct Writer {
    text: String,
    form: Form,
}

impl Writer {
    fn labels<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut any = false;
        for (name, value) in labels {
            self.text.push(if any { ',' } else { '{' });
            any = true;
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(&mut self.text, value);
            self.text.push('"');
        }
        if any {
            self.text.push('}');
        }
    }

    fn number(&mut self, value: f64) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "{value:?}");
    }

    /// Name, labels and a space.
    fn series(&mut self, family: &Family, suffix: &str, sample: &Sample, more: Option<&str>) {
        self.text.push_str(family.name);
        self.text.push_str(suffix);
        let labels = sample.labels.iter().map(|(name, is)| (*name, is.as_str()));
        self.labels(labels.chain(more.map(|bound| ("le", bound))));
        self.text.push(' ');
    }

    fn exemplar(&mut self, exemplar: &Exemplar) {
        let labels = exemplar.labels();
        self.text.push_str(" # ");
        self.labels(labels.iter().map(|(name, is)| (*name, is.as_str())));
        self.text.push(' ');
        self.number(std::time::Duration::from_nanos(exemplar.ns).as_secs_f64());
        let at = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let _ = write!(self.text, " {}.{:03}", at.as_secs(), at.subsec_millis());
    }

    fn sample(&mut self, family: &Family, sample: &Sample) {
        let suffix = match family.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        match &sample.value {
            Value::Count(count) => {
                self.series(family, suffix, sample, None);
                let _ = write!(self.text, "{count}");
            }
            Value::Number(number) => {
                self.series(family, suffix, sample, None);
                self.number(*number);
            }
            Value::Distribution(all) => {
                for (bound, count, exemplar) in all.classic() {
                    self.series(family, "_bucket", sample, Some(&bound_text(bound)));
                    let _ = write!(self.text, "{count}");
                    if let (Some(exemplar), Form::OpenMetrics) = (exemplar, self.form) {
                        self.exemplar(exemplar);
                    }
                    self.text.push('\n');
                }
                self.series(family, "_count", sample, None);
                let _ = writeln!(self.text, "{}", all.count());
                self.series(family, "_sum", sample, None);
                self.number(all.sum_s());
            }
        }
        self.text.push('\n');
    }

    fn family(&mut self, family: &Family) {
        let Family { name, help, .. } = family;
        // The older form knows series, and no families whose series have other names.
        let (suffix, kind) = match (family.kind, self.form) {
            (Kind::Counter, Form::OpenMetrics) => ("", "counter"),
            (Kind::Counter, Form::Prometheus) => ("_total", "counter"),
            (Kind::Info, Form::OpenMetrics) => ("", "info"),
            (Kind::Info, Form::Prometheus) => ("_info", "gauge"),
            (Kind::Gauge, _) => ("", "gauge"),
            (Kind::Histogram, _) => ("", "histogram"),
        };
        let _ = writeln!(self.text, "# HELP {name}{suffix} {help}.");
        let _ = writeln!(self.text, "# TYPE {name}{suffix} {kind}");
        if let (Some(unit), Form::OpenMetrics) = (family.unit, self.form) {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        for sample in &family.samples {
            self.sample(family, sample);
        }
    }
}

pub fn text(families: &[Family], form: Form) -> String {
    let mut writer = Writer {
        text: String::new(),
        form,
    };
    for family in families {
        writer.family(family);
    }
    if form == Form::OpenMetrics {
        writer.text.push_str("# EOF\n");
    }
    writer.text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Distribution;
    use std::time::Duration;

    fn families() -> Vec<Family> {
        let mut all = Distribution {
            sum_ns: 1_500_000_000,
            ..Distribution::default()
        };
        all.buckets[debox_abi::sleep_bucket(1_500_000_000)] = 1;
        all.exemplar = Some(Exemplar {
            ns: 1_500_000_000,
            at: UNIX_EPOCH + Duration::from_millis(12_345),
            program: "a\"b".into(),
            recording: Some("20261127T115200Z".into()),
        });
        let of = |name, kind, unit, labels, value| Family {
            name,
            help: "What it is",
            unit,
            kind,
            samples: vec![Sample {
                labels,
                value,
                since_ns: None,
            }],
        };
        vec![
            of(
                "d_seconds",
                Kind::Counter,
                Some("seconds"),
                vec![("unit", "a\\\nb".into())],
                Value::Number(1e-7),
            ),
            of(
                "d_build",
                Kind::Info,
                None,
                vec![("version", "1".into())],
                Value::Count(1),
            ),
            of(
                "d_took_seconds",
                Kind::Histogram,
                Some("seconds"),
                Vec::new(),
                Value::Distribution(Box::new(all)),
            ),
        ]
    }

    #[test]
    fn both_forms() {
        let text_of = |form| text(&families(), form);
        let open = text_of(Form::OpenMetrics);
        assert!(
            open.starts_with(
                "# HELP d_seconds What it is.\n# TYPE d_seconds counter\n# UNIT d_seconds seconds\n\
                 d_seconds_total{unit=\"a\\\\\\nb\"} 1e-7\n# HELP d_build What it is.\n# TYPE d_build info\n\
                 d_build_info{version=\"1\"} 1\n"
            ),
            "{open}"
        );
        let bucket = "d_took_seconds_bucket{le=\"2.0\"} 1 # {recording=\"20261127T115200Z\",program=\"a\\\"b\"} 1.5 12.345\n";
        assert!(open.contains(bucket), "{open}");
        assert!(
            open.contains("d_took_seconds_bucket{le=\"7.62939453125e-06\"} 0\n"),
            "{open}"
        );
        assert!(
            open.ends_with(
                "{le=\"+Inf\"} 1\nd_took_seconds_count 1\nd_took_seconds_sum 1.5\n# EOF\n"
            ),
            "{open}"
        );
        let older = text_of(Form::Prometheus);
        assert!(
            older.starts_with(
                "# HELP d_seconds_total What it is.\n# TYPE d_seconds_total counter\nd_seconds_total{"
            ),
            "{older}"
        );
        assert!(older.contains("# TYPE d_build_info gauge\n"), "{older}");
        assert!(
            older.contains("d_took_seconds_bucket{le=\"2.0\"} 1\n"),
            "{older}"
        );
        assert!(!older.contains("EOF") && !older.contains("UNIT"), "{older}");
    }

    #[test]
    fn bounds_are_written_as_servers_write_them() {
        for (exp, text) in [
            (-17, "7.62939453125e-06"),
            (-14, "6.103515625e-05"),
            (-13, "0.0001220703125"),
            (0, "1.0"),
            (5, "32.0"),
        ] {
            assert_eq!(bound_text(f64::from(exp).exp2()), text);
        }
    }
}
