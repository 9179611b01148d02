// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does an account tell beyond its sums? The Rust mirror of the details
//! section of `include/debox/abi.h`: units and meaning stand there.

use crate::pod::mirror;
use crate::record::*;

pub const DEBOX_EVENTS_BYTES: usize = 1 << 20;
pub const DEBOX_KEY_USED: u64 = 1 << 63;
pub const DEBOX_KEY_NR_SHIFT: u32 = 53;
pub const DEBOX_KEY_SITE_SHIFT: u32 = 38;
pub const DEBOX_KEY_SITE_NONE: u32 = 0x7fff;
pub const DEBOX_USER_FRAMES_MAX: usize = 32;
pub const DEBOX_USER_STACKS_MAX: usize = 8192;
pub const DEBOX_USER_FILES_MAX: usize = 512;
pub const DEBOX_PATH_LEN: usize = 240;
pub const DEBOX_FRAME_FILE_SHIFT: u32 = 48;
pub const DEBOX_STACK_CUT: u32 = 1 << 0;
pub const DEBOX_STACK_PENDING: u32 = 1 << 1;
pub const DEBOX_STACK_LOST: u32 = 1 << 2;
pub const DEBOX_COARSE_BUCKETS: usize = 40;
pub const DEBOX_CALL_SITE_ROWS_MAX: usize = 4096;
pub const DEBOX_PATH_ROWS_MAX: usize = 8192;
pub const DEBOX_CULPRIT_HOLDER_WRITER: u32 = 1;
pub const DEBOX_CULPRIT_HOLDER_READER: u32 = 2;
pub const DEBOX_CULPRIT_WAKER: u32 = 3;
pub const DEBOX_CULPRIT_KIND_SHIFT: u32 = 36;
pub const DEBOX_CULPRIT_NR_SHIFT: u32 = 24;
pub const DEBOX_CULPRIT_PID_MASK: u32 = 0x3fffff;
pub const DEBOX_CULPRIT_ROWS_MAX: usize = 4096;
pub const DEBOX_THREAD_ROWS_MAX: usize = 1024;
pub const DEBOX_CONDITIONS_MAX: usize = 8;
pub const DEBOX_FIELD_WALL_NS: u32 = 0;
pub const DEBOX_FIELD_CPU_NS: u32 = 1;
pub const DEBOX_FIELD_BLOCKED_NS: u32 = 2;
pub const DEBOX_FIELD_RUNQ_NS: u32 = 3;
pub const DEBOX_FIELD_RETVAL: u32 = 4;
pub const DEBOX_FIELD_MINOR_FAULTS: u32 = 5;
pub const DEBOX_FIELD_MAJOR_FAULTS: u32 = 6;
pub const DEBOX_FIELD_SLEEPS: u32 = 7;
pub const DEBOX_FIELD_PREEMPTIONS: u32 = 8;
pub const DEBOX_FIELD_PID: u32 = 9;
pub const DEBOX_FIELD_TID: u32 = 10;
pub const DEBOX_FIELD_WAITERS: u32 = 11;
pub const DEBOX_FIELDS: usize = 12;
pub const DEBOX_CONDITION_ON: u32 = 1 << 0;
pub const DEBOX_CONDITION_COMM: u32 = 1 << 1;
pub const DEBOX_CONDITION_COMM_NOT: u32 = 1 << 2;
pub const DEBOX_CONDITION_SITES: u32 = 1 << 3;
pub const DEBOX_CONDITION_SITES_NOT: u32 = 1 << 4;
pub const DEBOX_CONDITION_EVENT: u32 = 1 << 5;
pub const DEBOX_CONDITION_SIGNAL_THREAD: u32 = 1 << 6;
pub const DEBOX_DETAIL_CALL_SITES: u32 = 1 << 0;
pub const DEBOX_DETAIL_STACKS: u32 = 1 << 1;
pub const DEBOX_DETAIL_THREADS: u32 = 1 << 2;
pub const DEBOX_DETAIL_EVENTS: u32 = 1 << 3;
pub const DEBOX_DETAIL_EVENT_STACKS: u32 = 1 << 4;
pub const DEBOX_EVENT_CALL: u32 = 1;
pub const DEBOX_EVENT_SLOW: u32 = 1 << 0;
pub const DEBOX_EVENT_UNCERTAIN: u32 = 1 << 1;
pub const DEBOX_EVENT_PATH: u32 = 1 << 2;
pub const DEBOX_EVENT_COMPAT32: u32 = 1 << 3;
pub const DEBOX_EVENT_SLEEPS_MAX: usize = 8;
pub const DEBOX_EVENT_PATH_LEN: usize = 128;

mirror! {
    /// A user stack: the place in the program that made a call.
    debox_user_stack = 280 {
        hash: u64 = 0,
        depth: u32 = 8,
        flags: u32 = 12,
        pid: u32 = 16,
        site_frame: u32 = 20,
        frames: [u64; DEBOX_USER_FRAMES_MAX] = 24,
    }
}

mirror! {
    /// A file that user stacks have frames in.
    debox_user_file = 264 {
        ino: u64 = 0,
        dev: u32 = 8,
        state: u32 = 12,
        pid: u32 = 16,
        reserved0: u32 = 20,
        path: [u8; DEBOX_PATH_LEN] = 24,
    }
}

mirror! {
    /// The calls of one system call from one user stack.
    debox_call_site_row = 256 {
        key: u64 = 0,
        count: u64 = 8,
        errors: u64 = 16,
        wall_ns: u64 = 24,
        max_ns: u64 = 32,
        blocked_ns: u64 = 40,
        runq_ns: u64 = 48,
        minor_faults: u64 = 56,
        major_faults: u64 = 64,
        reserved: [u64; 3] = 72,
        hist: [u32; DEBOX_COARSE_BUCKETS] = 96,
    }
}

mirror! {
    /// Sleeps of one system call at one site from one user stack.
    debox_path_row = 32 {
        key: u64 = 0,
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
    }
}

mirror! {
    /// Who held what was waited for, or ended the wait.
    debox_culprit_row = 56 {
        key: u64 = 0,
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
        tid: u32 = 32,
        reserved0: u32 = 36,
        comm: [u8; DEBOX_COMM_LEN] = 40,
    }
}

mirror! {
    /// The calls of one thread.
    debox_thread_row = 120 {
        tid: u32 = 0,
        tgid: u32 = 4,
        comm: [u8; DEBOX_COMM_LEN] = 8,
        first_ns: u64 = 24,
        ended_ns: u64 = 32,
        count: u64 = 40,
        errors: u64 = 48,
        wall_ns: u64 = 56,
        blocked_ns: u64 = 64,
        runq_ns: u64 = 72,
        minor_faults: u64 = 80,
        major_faults: u64 = 88,
        reserved: [u64; 3] = 96,
    }
}

mirror! {
    /// A conjunction that single calls are compared with.
    debox_condition = 4464 {
        flags: u32 = 0,
        signal: u32 = 4,
        fields: u32 = 8,
        reserved0: u32 = 12,
        limit: u64 = 16,
        interval_ns: u64 = 24,
        comm: [u8; DEBOX_COMM_LEN] = 32,
        min: [i64; DEBOX_FIELDS] = 48,
        max: [i64; DEBOX_FIELDS] = 144,
        calls: [u64; DEBOX_NR_SLOTS / 64] = 240,
        sites: [u64; DEBOX_SITES_MAX / 64] = 368,
        known: [u64; DEBOX_SITES_MAX / 64] = 2416,
    }
}

mirror! {
    /// What the client asks of the kernel side.
    debox_account_control = 43968 {
        flags: u32 = 0,
        conditions: u32 = 4,
        reserved: [u64; 7] = 8,
        slow_ns: [u64; DEBOX_NR_SLOTS] = 64,
        condition: [debox_condition; DEBOX_CONDITIONS_MAX] = 8256,
    }
}

mirror! {
    /// What the kernel side knows of a condition.
    debox_condition_state = 64 {
        matched: u64 = 0,
        acted: u64 = 8,
        limited: u64 = 16,
        uncertain: u64 = 24,
        last_ns: u64 = 32,
        reserved: [u64; 3] = 40,
    }
}

mirror! {
    /// What an account tells beyond its sums.
    debox_details = 4092664 {
        events_sent: u64 = 0,
        events_dropped: u64 = 8,
        call_sites_dropped: u64 = 16,
        call_sites_dropped_ns: u64 = 24,
        stacks_dropped: u64 = 32,
        stacks_pending: u64 = 40,
        stacks_failed: u64 = 48,
        paths_dropped: u64 = 56,
        paths_dropped_ns: u64 = 64,
        culprits_dropped: u64 = 72,
        culprits_dropped_ns: u64 = 80,
        files_dropped: u64 = 88,
        threads_dropped: u64 = 96,
        stacks_used: u32 = 104,
        files_used: u32 = 108,
        threads_used: u32 = 112,
        reserved0: u32 = 116,
        serial: u64 = 120,
        reserved: [u64; 15] = 128,
        condition: [debox_condition_state; DEBOX_CONDITIONS_MAX] = 248,
        culprits: [debox_culprit_row; DEBOX_CULPRIT_ROWS_MAX] = 760,
        paths: [debox_path_row; DEBOX_PATH_ROWS_MAX] = 230136,
        threads: [debox_thread_row; DEBOX_THREAD_ROWS_MAX] = 492280,
        files: [debox_user_file; DEBOX_USER_FILES_MAX] = 615160,
        call_sites: [debox_call_site_row; DEBOX_CALL_SITE_ROWS_MAX] = 750328,
        stacks: [debox_user_stack; DEBOX_USER_STACKS_MAX] = 1798904,
    }
}

mirror! {
    /// One sleep of a single call, not merged.
    debox_event_sleep = 88 {
        start_ns: u64 = 0,
        blocked_ns: u64 = 8,
        runq_ns: u64 = 16,
        site: u32 = 24,
        waiters_entry: u32 = 28,
        waiters_exit: u32 = 32,
        holder_kind: u32 = 36,
        holder_pid: u32 = 40,
        holder_nr: i32 = 44,
        waker_pid: u32 = 48,
        waker_nr: i32 = 52,
        holder_comm: [u8; DEBOX_COMM_LEN] = 56,
        waker_comm: [u8; DEBOX_COMM_LEN] = 72,
    }
}

mirror! {
    /// One finished call.
    debox_event_call = 1016 {
        size: u32 = 0,
        kind: u32 = 4,
        flags: u32 = 8,
        key: u32 = 12,
        pid: u32 = 16,
        tid: u32 = 20,
        comm: [u8; DEBOX_COMM_LEN] = 24,
        retval: i64 = 40,
        args: [u64; 6] = 48,
        start_ns: u64 = 96,
        wall_ns: u64 = 104,
        cpu_ns: u64 = 112,
        blocked_ns: u64 = 120,
        runq_ns: u64 = 128,
        minor_faults: u32 = 136,
        major_faults: u32 = 140,
        nvcsw: u32 = 144,
        nivcsw: u32 = 148,
        user_stack: u32 = 152,
        conditions: u32 = 156,
        uncertain: u32 = 160,
        signal: u32 = 164,
        sleep_count: u32 = 168,
        sleeps_dropped: u32 = 172,
        sleeps_dropped_ns: u64 = 176,
        path: [u8; DEBOX_EVENT_PATH_LEN] = 184,
        sleeps: [debox_event_sleep; DEBOX_EVENT_SLEEPS_MAX] = 312,
    }
}
