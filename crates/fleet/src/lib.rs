// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do many hosts tell, and who asks them?
//!
//! [`rows`] makes of a report the rows of a few tables; [`Partitions`] brings them, as files of
//! Parquet, to a directory or an object store. [`ask`] is `debox fleet`: questions in SQL
//! (`fleet/*.sql`) to ClickHouse, which reads these files or a database they were loaded into.
#![forbid(unsafe_code)]

mod command;
mod engine;
mod error;
mod load;
mod partitions;
mod rows;
mod session;
mod store;
mod table;
mod when;

pub use command::ask;
pub use error::Error;
pub use partitions::{Figures, Options, Partitions};
pub use rows::{
    Bounds, CallSum, PeriodFacts, Program, ProgramSum, Rows, UnitWaits, Wait, WaitSum, name,
    note_name, path_name, rows, unit_waits,
};
pub use rows::{OTHER, Period, SEVERAL};
pub use store::StoreError;
