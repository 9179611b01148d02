// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the kernel side, the broker and the clients agree on, in Rust?
//!
//! `generated.rs` is made from the headers in `include/debox`: the same names, the
//! same order, the same units. Every offset and size is asserted at compile time
//! against the number that a C compiler said. The other files are what Rust does
//! with it. All structs are plain old data without padding, so that
//! [`Pod::as_bytes`] never shows uninitialised memory.
#![allow(non_camel_case_types)]

mod fentry;
mod generated;
mod hist;
mod pod;
mod protocol;
mod record;
mod text;
mod trace;

pub use fentry::{bpf_entry_runs_through, never_returns, threads_end_inside, threads_stay_inside};
pub use generated::*;
pub use hist::*;
pub use pod::Pod;
pub use record::{DEBOX_ACCOUNT_CPU_STRIDE, DEBOX_SHARED_SIZE};
pub use text::{name_get, text_get, text_put};
pub use trace::debox_trace_slowest_buffer;
