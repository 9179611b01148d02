// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does libdebox/expression.h say, in Rust?
//!
//! Made by `make abi` and not by hand. A constant that is an array's length is a
//! usize; a field that C calls `type` is called `kind`.

use core::ffi::{c_char, c_int, c_uint};
use debox_abi::*;

pub const EXPRESSION_MAX: u32 = 4096;
pub const EXPRESSION_DEPTH_MAX: u32 = 64;
pub const ERRNO_MAX: i32 = 4095;
pub const NUMBER_WALL: u32 = 0;
pub const NUMBER_CPU: u32 = 1;
pub const NUMBER_BLOCKED: u32 = 2;
pub const NUMBER_RUNQ: u32 = 3;
pub const NUMBER_RETVAL: u32 = 4;
pub const NUMBER_MINFLT: u32 = 5;
pub const NUMBER_MAJFLT: u32 = 6;
pub const NUMBER_SLEEPS: u32 = 7;
pub const NUMBER_PREEMPTIONS: u32 = 8;
pub const NUMBER_PID: u32 = 9;
pub const NUMBER_TID: u32 = 10;
pub const NUMBER_WAITERS: u32 = 11;
pub const NUMBER_IRQ: u32 = 12;
pub const NUMBER_FAULTS: u32 = 13;
pub const NUMBER_ERRNO: u32 = 14;
pub const NUMBERS: usize = 15;
pub const ANSWER_NO: u32 = 0;
pub const ANSWER_YES: u32 = 1;
pub const ANSWER_UNKNOWN: u32 = 2;
pub const TEXT_LABEL: u32 = 0;
pub const TEXT_FUNCTION: u32 = 1;
pub const TEXT_HOLDER: u32 = 2;
pub const TEXT_ROOT: u32 = 3;
pub const TEXT_CHAIN: u32 = 4;
pub const TEXT_COMM: u32 = 5;
pub const TEXT_CALLER: u32 = 6;
pub const NODE_AND: u32 = 0;
pub const NODE_OR: u32 = 1;
pub const NODE_NOT: u32 = 2;
pub const NODE_NUMBER: u32 = 3;
pub const NODE_CALL: u32 = 4;
pub const NODE_TEXT: u32 = 5;

laid_out! {
    site_facts = 40, 8 {
        label: *const c_char = 0,
        function: *const c_char = 8,
        holder: *const c_char = 16,
        root: *const c_char = 24,
        chain: *const c_char = 32,
    }
}

laid_out! {
    facts = 792, 8 {
        nr: i32 = 0,
        known: u32 = 4,
        number: [i64; 15] = 8,
        comm: *const c_char = 128,
        caller: *const c_char = 136,
        sites: u32 = 144,
        sites_whole: u32 = 148,
        site: [site_facts; 16] = 152,
    }
}

mirror! {
    node = 184, 8 {
        kind: u32 = 0,
        left: u32 = 4,
        right: u32 = 8,
        which: i32 = 12,
        glob: u32 = 16,
        text: u32 = 20,
        length: u32 = 24,
        at: u32 = 28,
        extent: u32 = 32,
        reserved: u32 = 36,
        low: i64 = 40,
        high: i64 = 48,
        calls: [u64; 16] = 56,
    }
}

laid_out! {
    expression = 32, 8 {
        bytes: u64 = 0,
        root: u32 = 8,
        nodes: u32 = 12,
        capacity: u32 = 16,
        length: u32 = 20,
        text: *const c_char = 24,
    }
}

laid_out! {
    expression_names = 16, 8 {
        name: Option<unsafe extern "C" fn(c_int) -> *const c_char> = 0,
        keys: i32 = 8,
        observer: i32 = 12,
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

unsafe extern "C" {
    pub fn debox_condition_parse_(
        text: *const c_char,
        length: usize,
        names: *const expression_names,
        error: *mut debox_watch_error,
    ) -> *mut expression;
    pub fn debox_condition_free_(x: *mut expression);
    pub fn debox_condition_judge_(x: *const expression, call: *const facts) -> c_uint;
    pub fn debox_condition_wall_ns_(x: *const expression) -> u64;
    pub fn debox_condition_eventful_(x: *const expression) -> c_int;
    pub fn debox_condition_asks_comm_(x: *const expression) -> c_int;
    pub fn debox_condition_asks_sites_(x: *const expression) -> c_int;
    pub fn debox_condition_glob_fits_(
        pattern: *const c_char,
        length: usize,
        name: *const c_char,
    ) -> c_int;
    pub fn debox_condition_nearest_(
        word: *const c_char,
        length: usize,
        names: *const *const c_char,
        count: usize,
    ) -> *const c_char;
}
