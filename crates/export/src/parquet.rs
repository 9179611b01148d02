// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a report become tables that databases read?
//!
//! One file for each table, in a directory. Numbers are signed 64-bit, so that
//! differences in queries do not wrap; only system call arguments are unsigned.
//! What was not measured is null. Columns are named as in the JSON report.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use debox_report::Report;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

mod tables;

#[derive(Debug, thiserror::Error)]
pub enum ParquetError {
    #[error("cannot make the directory {path}: {source}")]
    Directory {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        source: parquet::errors::ParquetError,
    },
}

enum Values {
    Number(Vec<Option<i64>>),
    Unsigned(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Text(Vec<Option<String>>),
    Truth(Vec<Option<bool>>),
}

/// One table as it is filled, column by column.
struct Table {
    name: &'static str,
    columns: Vec<(String, Values)>,
}

fn signed(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

impl Table {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            columns: Vec::new(),
        }
    }

    fn number<T>(&mut self, name: &str, rows: &[T], f: impl Fn(&T) -> u64) -> &mut Self {
        let values = rows.iter().map(|r| Some(signed(f(r)))).collect();
        self.columns.push((name.into(), Values::Number(values)));
        self
    }

    fn maybe<T>(&mut self, name: &str, rows: &[T], f: impl Fn(&T) -> Option<u64>) -> &mut Self {
        let values = rows.iter().map(|r| f(r).map(signed)).collect();
        self.columns.push((name.into(), Values::Number(values)));
        self
    }

    fn signed<T>(&mut self, name: &str, rows: &[T], f: impl Fn(&T) -> i64) -> &mut Self {
        let values = rows.iter().map(|r| Some(f(r))).collect();
        self.columns.push((name.into(), Values::Number(values)));
        self
    }

    fn real<T>(&mut self, name: &str, rows: &[T], f: impl Fn(&T) -> f64) -> &mut Self {
        let values = rows.iter().map(|r| Some(f(r))).collect();
        self.columns.push((name.into(), Values::Real(values)));
        self
    }

    fn maybe_real<T>(
        &mut self,
        name: &str,
        rows: &[T],
        f: impl Fn(&T) -> Option<f64>,
    ) -> &mut Self {
        self.columns
            .push((name.into(), Values::Real(rows.iter().map(f).collect())));
        self
    }

    fn text<T>(&mut self, name: &str, rows: &[T], f: impl Fn(&T) -> String) -> &mut Self {
        self.maybe_text(name, rows, |r| Some(f(r)))
    }

    fn maybe_text<T>(
        &mut self,
        name: &str,
        rows: &[T],
        f: impl Fn(&T) -> Option<String>,
    ) -> &mut Self {
        let values = rows.iter().map(f).collect();
        self.columns.push((name.into(), Values::Text(values)));
        self
    }

    fn truth<T>(&mut self, name: &str, rows: &[T], f: impl Fn(&T) -> bool) -> &mut Self {
        let values = rows.iter().map(|r| Some(f(r))).collect();
        self.columns.push((name.into(), Values::Truth(values)));
        self
    }

    fn write(&self, report: &Report, directory: &Path) -> Result<PathBuf, ParquetError> {
        let path = directory.join(format!("{}.parquet", self.name));
        let attempt = || -> parquet::errors::Result<()> {
            let fields = self
                .columns
                .iter()
                .map(|(name, values)| {
                    let (physical, logical) = match values {
                        Values::Number(_) => (Physical::INT64, None),
                        Values::Unsigned(_) => {
                            (Physical::INT64, Some(LogicalType::integer(64, false)))
                        }
                        Values::Real(_) => (Physical::DOUBLE, None),
                        Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                        Values::Truth(_) => (Physical::BOOLEAN, None),
                    };
                    Type::primitive_type_builder(name, physical)
                        .with_repetition(Repetition::OPTIONAL)
                        .with_logical_type(logical)
                        .build()
                        .map(Arc::new)
                })
                .collect::<parquet::errors::Result<Vec<_>>>()?;
            let schema = Arc::new(
                Type::group_type_builder(self.name)
                    .with_fields(fields)
                    .build()?,
            );
            let meta = |key: &str, value: String| KeyValue {
                key: key.into(),
                value: Some(value),
            };
            let properties = WriterProperties::builder()
                .set_compression(Compression::SNAPPY)
                .set_created_by(format!("debox {}", report.debox_version))
                .set_key_value_metadata(Some(vec![
                    meta("debox.schema", format!("{}.{}", report.schema, self.name)),
                    meta("debox.schema_version", report.schema_version.to_string()),
                ]))
                .build();
            let file = debox_output::create(&path)
                .map_err(|e| parquet::errors::ParquetError::External(e.into()))?;
            let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
            let mut group = writer.next_row_group()?;
            for (_, values) in &self.columns {
                let Some(mut column) = group.next_column()? else {
                    break;
                };
                // Of an optional column: 1 where a value is there.
                fn parts<T: Clone>(values: &[Option<T>]) -> (Vec<T>, Vec<i16>) {
                    let levels = values.iter().map(|v| i16::from(v.is_some())).collect();
                    (values.iter().flatten().cloned().collect(), levels)
                }
                match values {
                    Values::Number(v) | Values::Unsigned(v) => {
                        let (v, levels) = parts(v);
                        column
                            .typed::<Int64Type>()
                            .write_batch(&v, Some(&levels), None)?;
                    }
                    Values::Real(v) => {
                        let (v, levels) = parts(v);
                        column
                            .typed::<DoubleType>()
                            .write_batch(&v, Some(&levels), None)?;
                    }
                    Values::Text(v) => {
                        let (v, levels) = parts(v);
                        let v: Vec<ByteArray> = v.iter().map(|s| s.as_str().into()).collect();
                        column
                            .typed::<ByteArrayType>()
                            .write_batch(&v, Some(&levels), None)?;
                    }
                    Values::Truth(v) => {
                        let (v, levels) = parts(v);
                        column
                            .typed::<BoolType>()
                            .write_batch(&v, Some(&levels), None)?;
                    }
                }
                column.close()?;
            }
            group.close()?;
            writer.close()?;
            Ok(())
        };
        attempt().map_err(|source| ParquetError::Write {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }
}

/// Writes the tables as `directory`/NAME.parquet, making the directory when it
/// is not there; gives the files' paths.
pub fn parquet(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, ParquetError> {
    debox_output::create_directory(directory).map_err(|source| ParquetError::Directory {
        path: directory.to_owned(),
        source,
    })?;
    tables::TABLES
        .iter()
        .map(|table| table(report).write(report, directory))
        .collect()
}
