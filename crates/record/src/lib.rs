// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a run become a file that can be read later, even if its writer was
//! killed?
//!
//! [`Observer`] looks at an account from time to time while the command runs:
//! what each look adds goes into a [`History`] of bounded size, single slow
//! calls into a [`Reservoir`] of bounded size, and all of it, with the sums,
//! into a [`Writer`], which appends blocks that each stand for themselves.
//! [`read`] gives the report back. docs/recording.md describes the format and
//! the bounds.

#[cfg(test)]
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

mod format;
mod gauge;
mod history;
mod limits;
mod observe;
mod reader;
mod slow;
mod slowest;
mod writer;

pub use format::{Start, VERSION};
pub use gauge::Gauges;
pub use history::{History, POINTS_MAX, RowSums};
pub use observe::{Account, Observed, Observer, Options, Recording, monotonic_ns, start_here};
pub use reader::{ReadError, is_recording, read, read_bytes};
pub use slow::{Reservoir, SLOW_CALLS_MAX};
pub use slowest::Slowest;
pub use writer::{Contents, WriteError, Writer};
