// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do other tools read what DeBox measured?
//!
//! [`folded`], [`folded_cpu`] and [`folded_all`] for flamegraph.pl, speedscope and inferno; [`perfetto`] for
//! ui.perfetto.dev and chrome://tracing; [`pprof`] for `go tool pprof`;
//! [`parquet`] for DuckDB, ClickHouse and pandas. docs/exports.md shows each
//! answering a question.
#![forbid(unsafe_code)]

mod folded;
mod parquet;
mod path;
mod perfetto;
mod pprof;

pub use folded::{folded, folded_all, folded_cpu};
pub use parquet::{ParquetError, parquet};
pub use perfetto::perfetto;
pub use pprof::pprof;
