// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does libdebox export, by include/debox.h, in Rust?
//!
//! Made by `make abi` and not by hand. A constant that is an array's length is a
//! usize; a field that C calls `type` is called `kind`.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use debox_abi::*;

pub const DEBOX_SLEEPS_NONE: u32 = 0xffffffff;
pub const DEBOX_OPEN_CLOCK_GETTIME: u32 = 1 << 0;
pub const DEBOX_OPEN_CHAINS: u32 = 1 << 1;
pub const DEBOX_OPEN_IRQ: u32 = 1 << 2;
pub const DEBOX_STATUS_CLOSED: i32 = 0;
pub const DEBOX_STATUS_MEASURED: i32 = 1;
pub const DEBOX_STATUS_WALL_ONLY: i32 = 2;
pub const DEBOX_STATUS_STALE: i32 = 3;
pub const DEBOX_WATCHES_MAX: i32 = 16;
pub const DEBOX_LINK_HELD: u32 = 1 << 0;
pub const DEBOX_LINK_COMPAT32: u32 = 1 << 1;
pub const DEBOX_LINK_WITHHELD: u32 = 1 << 2;

laid_out! {
    debox_options = 88, 8 {
        size: u32 = 0,
        flags: u32 = 4,
        socket_path: *const c_char = 8,
        max_sleeps: u32 = 16,
        history: u32 = 20,
        reserved: [u64; 8] = 24,
    }
}

laid_out! {
    debox_frame = 64, 8 {
        hot_: *mut c_void = 0,
        seq_: u64 = 8,
        spare_: [u64; 6] = 16,
    }
}

mirror! {
    debox_span = 224, 8 {
        stamp_: u64 = 0,
        seq_: u64 = 8,
        generation_: u64 = 16,
        tid_: u32 = 24,
        flags_: u32 = 28,
        totals_: debox_totals = 32,
    }
}

mirror! {
    debox_watch_error = 424, 4 {
        column: u32 = 0,
        length: u32 = 4,
        text: [u8; 160] = 8,
        help: [u8; 256] = 168,
    }
}

mirror! {
    debox_watch_counts = 24, 8 {
        met: u64 = 0,
        unknown: u64 = 8,
        inside: u64 = 16,
    }
}

mirror! {
    debox_link = 96, 8 {
        chain: u32 = 0,
        kind: u32 = 4,
        flags: u32 = 8,
        site: u32 = 12,
        nr: i32 = 16,
        tid: u32 = 20,
        comm: [u8; 16] = 24,
        label: [u8; 24] = 40,
        reserved: [u64; 4] = 64,
    }
}

laid_out! {
    debox_trace_options = 56, 8 {
        size: u32 = 0,
        max_entries: u32 = 4,
        threads: u32 = 8,
        way: u32 = 12,
        functions: *const c_char = 16,
        reserved: [u64; 4] = 24,
    }
}

unsafe extern "C" {
    pub fn debox_open(opts: *const debox_options) -> c_int;
    pub fn debox_close() -> c_int;
    pub fn debox_status() -> c_int;
    pub fn debox_why(buf: *mut c_char, len: usize) -> c_int;
    pub fn debox_features() -> u64;
    pub fn debox_frame_begin(f: *mut debox_frame, nr: c_int, call_site: u64);
    pub fn debox_frame_end(f: *mut debox_frame, ret: c_long);
    pub fn debox_last(out: *mut debox_info) -> c_int;
    pub fn debox_history_read(out: *mut debox_info, n: c_uint, lost: *mut u64) -> c_int;
    pub fn debox_strvalid(valid: u64, buf: *mut c_char, len: usize) -> c_int;
    pub fn debox_call_name(nr: c_int) -> *const c_char;
    pub fn debox_span_begin(span: *mut debox_span) -> c_int;
    pub fn debox_span_end(span: *const debox_span, out: *mut debox_info) -> c_int;
    pub fn debox_watch_remove(watch: c_int) -> c_int;
    pub fn debox_watch_read(watch: c_int, out: *mut debox_watch_counts) -> c_int;
    pub fn debox_site_read(site: u32, out: *mut debox_site) -> c_int;
    pub fn debox_chain_read(chain: u32, out: *mut debox_link, n: c_uint) -> c_int;
    pub fn debox_chain_text(chain: u32, buf: *mut c_char, len: usize) -> c_int;
    pub fn debox_trace_set(max_entries: u32) -> c_int;
    pub fn debox_trace_open(options: *const debox_trace_options) -> c_int;
    pub fn debox_trace_read(
        out: *mut debox_trace_entry,
        n: c_uint,
        dropped: *mut u32,
        flags: *mut u32,
    ) -> c_int;
    pub fn debox_trace_function(function: u32) -> *const c_char;
    pub fn debox_trace_status(out: *mut debox_trace_table) -> c_int;
}
