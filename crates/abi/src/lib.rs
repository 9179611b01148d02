// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the kernel side, the broker and the clients agree on, in Rust?
//!
//! A mirror of `include/debox/abi.h` and `include/debox/protocol.h`: the same
//! names, the same order, the same units. Every offset and size is asserted at
//! compile time against the number written here, and `tests/abi` compares
//! these numbers with what a C compiler says (`cargo run -p debox-abi
//! --example layout` prints them). All structs are plain old data without
//! padding, so that [`Pod::as_bytes`] never shows uninitialised memory.
#![allow(non_camel_case_types)]

mod details;
mod fentry;
mod hist;
mod pod;
mod protocol;
mod record;
mod text;
mod trace;

pub use details::*;
pub use fentry::{bpf_entry_runs_through, never_returns, threads_end_inside, threads_stay_inside};
pub use hist::*;
pub use pod::Pod;
pub use protocol::*;
pub use record::*;
pub use text::{text_get, text_put};
pub use trace::*;

/// One field of one struct, as the layout comparison wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub size: usize,
}

/// One struct with its size and fields, in declaration order.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub align: usize,
    pub fields: &'static [Field],
}

/// Every struct of both headers.
pub const LAYOUTS: &[Layout] = &[
    debox_sleep::LAYOUT,
    debox_info::LAYOUT,
    debox_control::LAYOUT,
    debox_totals::LAYOUT,
    debox_record::LAYOUT,
    debox_site::LAYOUT,
    debox_shared::LAYOUT,
    debox_row::LAYOUT,
    debox_account_cpu::LAYOUT,
    debox_site_row::LAYOUT,
    debox_account::LAYOUT,
    debox_user_stack::LAYOUT,
    debox_user_file::LAYOUT,
    debox_call_site_row::LAYOUT,
    debox_path_row::LAYOUT,
    debox_culprit_row::LAYOUT,
    debox_thread_row::LAYOUT,
    debox_condition::LAYOUT,
    debox_account_control::LAYOUT,
    debox_condition_state::LAYOUT,
    debox_details::LAYOUT,
    debox_event_sleep::LAYOUT,
    debox_event_call::LAYOUT,
    debox_request::LAYOUT,
    debox_reply::LAYOUT,
    debox_collect::LAYOUT,
    debox_wrap_row::LAYOUT,
    debox_wrap_stripe::LAYOUT,
    debox_wrap_header::LAYOUT,
    debox_trace_entry::LAYOUT,
    debox_trace::LAYOUT,
    debox_trace_sum::LAYOUT,
    debox_trace_sums::LAYOUT,
    debox_trace_function::LAYOUT,
    debox_trace_table::LAYOUT,
    debox_trace_request::LAYOUT,
];
