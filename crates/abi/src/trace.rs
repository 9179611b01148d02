// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a call's trace laid out and asked for? The mirror of
//! `include/debox/trace.h`.

use crate::pod::mirror;
use crate::{
    DEBOX_FUNCTION_LEN, DEBOX_NR_SLOTS, DEBOX_PAGE_SIZE, DEBOX_PROTOCOL_VERSION, Pod,
    debox_request, text_get, text_put,
};

pub const DEBOX_MSG_TRACE: u32 = 7;

pub const DEBOX_TRACE_DEFAULT: u32 = 200;
pub const DEBOX_TRACE_MAX: u32 = 16384;
pub const DEBOX_TRACE_FUNCTIONS_MAX: usize = 8192;
pub const DEBOX_TRACE_DEPTH_MAX: u32 = 64;

pub const DEBOX_TRACE_WAY_NONE: u32 = 0;
pub const DEBOX_TRACE_WAY_SESSION: u32 = 1;
pub const DEBOX_TRACE_WAY_MULTI: u32 = 2;
pub const DEBOX_TRACE_WAY_FENTRY: u32 = 3;
pub const DEBOX_TRACE_WAY_TRACEPOINT: u32 = 4;

pub const DEBOX_TRACE_OPEN: u16 = 1 << 0;
pub const DEBOX_TRACE_POINT: u16 = 1 << 1;

pub const DEBOX_TRACE_FLAG_COARSE: u32 = 1 << 0;
pub const DEBOX_TRACE_FLAG_UNFINISHED: u32 = 1 << 1;
pub const DEBOX_TRACE_FLAG_COMPAT32: u32 = 1 << 2;

pub const DEBOX_TRACE_STATE_STARTING: u32 = 0;
pub const DEBOX_TRACE_STATE_ON: u32 = 1;
pub const DEBOX_TRACE_STATE_FAILED: u32 = 2;
pub const DEBOX_TRACE_STATE_STOPPED: u32 = 3;

pub const DEBOX_REQ_TRACE_ACCOUNT: u32 = 1 << 8;
pub const DEBOX_REQ_TRACE_STOP: u32 = 1 << 9;

pub const DEBOX_TRACE_MAGIC: u32 = 0x6330_4265;
pub const DEBOX_TRACE_PATTERNS_LEN: usize = 7808;
pub const DEBOX_TRACE_CALLS_MAX: usize = 32;
pub const DEBOX_TRACE_TABLE_SIZE: usize =
    DEBOX_PAGE_SIZE + DEBOX_TRACE_FUNCTIONS_MAX * size_of::<debox_trace_function>();

mirror! {
    /// One function that a call ran through.
    debox_trace_entry = 32 {
        start_ns: u64 = 0,
        total_ns: u64 = 8,
        self_ns: u64 = 16,
        function: u32 = 24,
        depth: u16 = 28,
        flags: u16 = 30,
    }
}

mirror! {
    /// The head of a buffer; entries follow.
    debox_trace = 128 {
        tid: u32 = 0,
        level: u32 = 4,
        call_seq: u64 = 8,
        start_ns: u64 = 16,
        wall_ns: u64 = 24,
        retval: i64 = 32,
        nr: i32 = 40,
        flags: u32 = 44,
        count: u32 = 48,
        dropped: u32 = 52,
        pid: u32 = 56,
        reserved: [u32; 17] = 60,
    }
}

mirror! {
    /// One function, over all calls of an account.
    debox_trace_sum = 32 {
        calls: u64 = 0,
        total_ns: u64 = 8,
        self_ns: u64 = 16,
        max_ns: u64 = 24,
    }
}

mirror! {
    debox_trace_sums = 270464 {
        calls: u64 = 0,
        entries_dropped: u64 = 8,
        threads_untraced: u64 = 16,
        unmatched: u64 = 24,
        unkept: u64 = 32,
        reserved: [u64; 11] = 40,
        slowest: [u64; DEBOX_NR_SLOTS] = 128,
        functions: [debox_trace_sum; DEBOX_TRACE_FUNCTIONS_MAX] = 8320,
    }
}

/// The number of the buffer that a word of `slowest` names.
pub const fn debox_trace_slowest_buffer(word: u64) -> Option<usize> {
    match word & 0xf_ffff {
        0 => None,
        n => Some(n as usize - 1),
    }
}

mirror! {
    debox_trace_function = 64 {
        name: [u8; DEBOX_FUNCTION_LEN] = 0,
    }
}

impl debox_trace_function {
    pub fn new(name: &str) -> Self {
        let mut function = Self::zeroed();
        text_put(&mut function.name, name);
        function
    }

    pub fn name(&self) -> &str {
        text_get(&self.name)
    }
}

mirror! {
    debox_trace_table = 1152 {
        magic: u32 = 0,
        state: u32 = 4,
        way: u32 = 8,
        functions: u32 = 12,
        buffers: u32 = 16,
        capacity: u32 = 20,
        stride: u64 = 24,
        refused: u32 = 32,
        reserved0: u32 = 36,
        missed: u64 = 40,
        attach_ns: u64 = 48,
        reserved: [u64; 9] = 56,
        text: [u8; 1024] = 128,
    }
}

impl debox_trace_table {
    pub fn text(&self) -> &str {
        text_get(&self.text)
    }
    pub fn set_text(&mut self, text: &str) {
        text_put(&mut self.text, text);
    }
}

mirror! {
    debox_trace_request = 8192 {
        head: debox_request = 0,
        capacity: u32 = 64,
        threads: u32 = 68,
        way: u32 = 72,
        calls_count: u32 = 76,
        calls: [u32; DEBOX_TRACE_CALLS_MAX] = 80,
        reserved: [u32; 44] = 208,
        patterns: [u8; DEBOX_TRACE_PATTERNS_LEN] = 384,
    }
}

impl debox_trace_request {
    pub fn new(flags: u32) -> Self {
        Self {
            head: debox_request {
                size: size_of::<Self>() as u32,
                version: DEBOX_PROTOCOL_VERSION,
                kind: DEBOX_MSG_TRACE,
                flags,
                ..debox_request::zeroed()
            },
            ..Self::zeroed()
        }
    }

    pub fn patterns(&self) -> &str {
        text_get(&self.patterns)
    }
}
