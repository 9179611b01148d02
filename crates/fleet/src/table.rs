// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the rows of periods become files of Parquet?
//!
//! A file holds one table of one host, for one or several periods, sorted by whose the rows
//! are and then by time: what is the same stands together and takes no room. Texts are in
//! dictionaries; sums are split into their bytes, of which the high ones are all zero.

use crate::rows::{PeriodFacts, Rows};
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel,
};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};
use std::sync::Arc;

const ZSTD: i32 = 3;

enum Values {
    /// Milliseconds since 1970.
    Time(Vec<i64>),
    Text(Vec<ByteArray>),
    Number(Vec<i64>),
}

/// One table as it is filled, column by column.
struct Table<'a, T> {
    rows: &'a [T],
    columns: Vec<(&'static str, Values)>,
}

impl<'a, T> Table<'a, T> {
    fn of(rows: &'a [T]) -> Self {
        Self {
            rows,
            columns: Vec::new(),
        }
    }

    fn time(mut self, name: &'static str, of: impl Fn(&T) -> u64) -> Self {
        let values = self.rows.iter().map(|row| (of(row) / 1_000_000) as i64);
        self.columns.push((name, Values::Time(values.collect())));
        self
    }

    fn text(mut self, name: &'static str, of: impl Fn(&'a T) -> &'a str) -> Self {
        let values = self.rows.iter().map(|row| of(row).into());
        self.columns.push((name, Values::Text(values.collect())));
        self
    }

    fn number(mut self, name: &'static str, of: impl Fn(&T) -> u64) -> Self {
        let values = self.rows.iter();
        let values = values.map(|row| i64::try_from(of(row)).unwrap_or(i64::MAX));
        self.columns.push((name, Values::Number(values.collect())));
        self
    }

    fn file(self) -> Result<Vec<u8>> {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD)?))
            .set_created_by(concat!("debox ", env!("CARGO_PKG_VERSION")).into())
            // Files are small: whoever reads one reads all of it.
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true);
        let mut fields = Vec::new();
        for (name, values) in &self.columns {
            let (physical, logical) = match values {
                Values::Time(_) => (
                    Physical::INT64,
                    Some(LogicalType::timestamp(true, TimeUnit::MILLIS)),
                ),
                Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Values::Number(_) => {
                    let path = ColumnPath::from(*name);
                    properties = properties
                        .set_column_dictionary_enabled(path.clone(), false)
                        .set_column_encoding(path, Encoding::BYTE_STREAM_SPLIT);
                    (Physical::INT64, None)
                }
            };
            let field = Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::REQUIRED)
                .with_logical_type(logical)
                .build()?;
            fields.push(Arc::new(field));
        }
        let schema = Type::group_type_builder("debox_fleet").with_fields(fields);
        let mut writer = SerializedFileWriter::new(
            Vec::new(),
            Arc::new(schema.build()?),
            Arc::new(properties.build()),
        )?;
        let mut group = writer.next_row_group()?;
        for (_, values) in &self.columns {
            let Some(mut column) = group.next_column()? else {
                break;
            };
            match values {
                Values::Time(v) | Values::Number(v) => {
                    column.typed::<Int64Type>().write_batch(v, None, None)?;
                }
                Values::Text(v) => {
                    column.typed::<ByteArrayType>().write_batch(v, None, None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
        writer.into_inner()
    }
}

/// A row and whose it is, sorted by `key` and then by time.
fn sorted<'a, K: Ord, V>(
    periods: &'a [Rows],
    of: impl Fn(&'a Rows) -> &'a [(K, V)],
) -> Vec<(&'a PeriodFacts, &'a K, &'a V)> {
    let mut rows: Vec<_> = periods
        .iter()
        .flat_map(|rows| {
            of(rows)
                .iter()
                .map(|(key, value)| (&rows.facts, key, value))
        })
        .collect();
    rows.sort_by(|a, b| {
        let by_time = a.0.period.begin_ns.cmp(&b.0.period.begin_ns);
        a.1.cmp(b.1).then(by_time)
    });
    rows
}

/// The tables of these periods that have rows, each with its name.
///
/// # Errors
/// None that a file in memory can have.
pub fn files(periods: &[Rows]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut files = Vec::new();
    let calls = sorted(periods, |rows| &rows.calls);
    let threads = sorted(periods, |rows| &rows.threads);
    let waits = sorted(periods, |rows| &rows.waits);
    let waits_file = Table::of(&waits)
        .time("time", |r| r.0.period.begin_ns)
        .text("host", |r| &r.0.period.host)
        .text("release", |r| &r.0.period.release)
        .text("policy", |r| &r.0.period.policy)
        .text("unit", |r| &r.1.unit)
        .text("container", |r| &r.1.container)
        .text("pod", |r| &r.1.pod)
        .text("program", |r| &r.1.program)
        .text("call", |r| &r.1.call)
        .text("label", |r| &r.1.label)
        .text("class", |r| r.1.class)
        .text("root", |r| r.1.root)
        .number("sleeps", |r| r.2.sleeps)
        .number("blocked_ns", |r| r.2.blocked_ns)
        .number("longest_ns", |r| r.2.longest_ns);
    if !waits.is_empty() {
        files.push(("waits", waits_file.file()?));
    }
    let threads_file = Table::of(&threads)
        .time("time", |r| r.0.period.begin_ns)
        .text("host", |r| &r.0.period.host)
        .text("release", |r| &r.0.period.release)
        .text("policy", |r| &r.0.period.policy)
        .text("unit", |r| &r.1.unit)
        .text("container", |r| &r.1.container)
        .text("pod", |r| &r.1.pod)
        .text("program", |r| &r.1.program)
        .number("threads", |r| r.2.threads)
        .number("own_code_ns", |r| r.2.time.own_ns)
        .number("system_calls_ns", |r| r.2.time.calls_ns)
        .number("ending_ns", |r| r.2.time.exit_ns)
        .number("blocked_ns", |r| {
            r.2.time.blocked_ns.saturating_sub(r.2.time.rest_ns)
        })
        .number("resting_ns", |r| r.2.time.rest_ns)
        .number("page_faults_ns", |r| r.2.time.outside_ns)
        .number("stopped_ns", |r| r.2.time.stopped_ns)
        .number("run_queue_ns", |r| r.2.time.runq_ns)
        .number("interrupts_ns", |r| r.2.time.interrupts_ns())
        .number("minor_faults", |r| r.2.time.minor_faults)
        .number("major_faults", |r| r.2.time.major_faults);
    if !threads.is_empty() {
        files.push(("threads", threads_file.file()?));
    }
    let calls_file = Table::of(&calls)
        .time("time", |r| r.0.period.begin_ns)
        .text("host", |r| &r.0.period.host)
        .text("release", |r| &r.0.period.release)
        .text("policy", |r| &r.0.period.policy)
        .text("call", |r| r.1)
        .number("calls", |r| r.2.calls)
        .number("errors", |r| r.2.errors)
        .number("wall_ns", |r| r.2.wall_ns)
        .number("blocked_ns", |r| r.2.blocked_ns)
        .number("run_queue_ns", |r| r.2.run_queue_ns)
        .number("longest_ns", |r| r.2.longest_ns);
    if !calls.is_empty() {
        files.push(("calls", calls_file.file()?));
    }
    // Last: who finds this one finds the others.
    let facts: Vec<&PeriodFacts> = periods.iter().map(|rows| &rows.facts).collect();
    let periods_file = Table::of(&facts)
        .time("time", |r| r.period.begin_ns)
        .time("until", |r| r.period.end_ns)
        .text("host", |r| &r.period.host)
        .text("boot", |r| &r.period.boot)
        .text("release", |r| &r.period.release)
        .text("policy", |r| &r.period.policy)
        .text("debox_version", |r| &r.debox_version)
        .text("kernel", |r| &r.kernel)
        .text("capture", |r| r.capture)
        .number("cpus", |r| r.cpus)
        .number("threads_started", |r| r.threads_started)
        .number("sleeps", |r| r.sleeps)
        .number("blocked_ns", |r| r.blocked_ns)
        .number("throttled_ns", |r| r.throttled_ns)
        .text("verdict", |r| &r.verdict)
        .text("incomplete", |r| &r.incomplete);
    if !facts.is_empty() {
        files.push(("periods", periods_file.file()?));
    }
    Ok(files)
}
