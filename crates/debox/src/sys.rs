// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does libdebox export? The mirror of `include/debox.h`.
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_int, c_long};
use debox_abi::{DEBOX_COMM_LEN, DEBOX_LABEL_LEN, debox_info, debox_site, debox_totals};

pub const DEBOX_STATUS_CLOSED: c_int = 0;
pub const DEBOX_STATUS_MEASURED: c_int = 1;
pub const DEBOX_STATUS_WALL_ONLY: c_int = 2;
pub const DEBOX_STATUS_STALE: c_int = 3;
pub const DEBOX_OPEN_CLOCK_GETTIME: u32 = 1 << 0;
pub const DEBOX_OPEN_CHAINS: u32 = 1 << 1;
pub const DEBOX_OPEN_IRQ: u32 = 1 << 2;
pub const DEBOX_LINK_HELD: u32 = 1 << 0;
pub const DEBOX_LINK_COMPAT32: u32 = 1 << 1;
pub const DEBOX_LINK_WITHHELD: u32 = 1 << 2;
pub const DEBOX_SLEEPS_NONE: u32 = u32::MAX;

#[repr(C)]
pub struct debox_options {
    pub size: u32,
    pub flags: u32,
    pub socket_path: *const c_char,
    pub max_sleeps: u32,
    pub history: u32,
    pub reserved: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct debox_link {
    pub chain: u32,
    pub kind: u32,
    pub flags: u32,
    pub site: u32,
    pub nr: i32,
    pub tid: u32,
    pub comm: [u8; DEBOX_COMM_LEN],
    pub label: [u8; DEBOX_LABEL_LEN],
    pub reserved: [u64; 4],
}

// As libdebox/chain.c says.
const _: () = assert!(size_of::<debox_link>() == 96);

#[repr(C)]
pub struct debox_frame {
    pub hot: *mut u8,
    pub seq: u64,
    pub spare: [u64; 6],
}

#[repr(C)]
pub struct debox_span {
    pub stamp: u64,
    pub seq: u64,
    pub generation: u64,
    pub tid: u32,
    pub flags: u32,
    pub totals: debox_totals,
}

unsafe extern "C" {
    pub fn debox_open(opts: *const debox_options) -> c_int;
    pub fn debox_close() -> c_int;
    pub fn debox_status() -> c_int;
    pub fn debox_why(buf: *mut c_char, len: usize) -> c_int;
    pub fn debox_features() -> u64;
    pub fn debox_frame_begin(frame: *mut debox_frame, nr: c_int, call_site: u64);
    pub fn debox_frame_end(frame: *mut debox_frame, ret: c_long);
    pub fn debox_last(out: *mut debox_info) -> c_int;
    pub fn debox_history_read(out: *mut debox_info, n: u32, lost: *mut u64) -> c_int;
    pub fn debox_call_name(nr: c_int) -> *const c_char;
    pub fn debox_span_begin(span: *mut debox_span) -> c_int;
    pub fn debox_span_end(span: *const debox_span, out: *mut debox_info) -> c_int;
    pub fn debox_trace_set(max_entries: u32) -> c_int;
    pub fn debox_trace_read(
        out: *mut debox_abi::debox_trace_entry,
        n: u32,
        dropped: *mut u32,
        flags: *mut u32,
    ) -> c_int;
    pub fn debox_trace_function(function: u32) -> *const c_char;
    pub fn debox_site_read(site: u32, out: *mut debox_site) -> c_int;
    pub fn debox_chain_read(chain: u32, out: *mut debox_link, n: u32) -> c_int;
    pub fn debox_chain_text(chain: u32, buf: *mut c_char, len: usize) -> c_int;
}
