// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do a client and the broker say to each other? The mirror of
//! `include/debox/protocol.h`.

use crate::pod::mirror;
use crate::{DEBOX_HIST_BUCKETS, Pod, text_get, text_put};

pub const DEBOX_PROTOCOL_VERSION: u32 = 1;
pub const DEBOX_SOCKET_PATH: &str = "/run/debox/debox.sock";
pub const DEBOX_ENV_SOCKET: &str = "DEBOX_SOCKET";
pub const DEBOX_ENV_COLLECT: &str = "DEBOX_COLLECT";

pub const DEBOX_MSG_SLOTS: u32 = 1;
pub const DEBOX_MSG_ACCOUNT: u32 = 2;
pub const DEBOX_MSG_JOIN: u32 = 3;
pub const DEBOX_MSG_WATCH: u32 = 4;
pub const DEBOX_MSG_STATUS: u32 = 5;
pub const DEBOX_MSG_SITE_STACKS: u32 = 6;

pub const DEBOX_REQ_BOUNDARY: u32 = 1 << 0;
pub const DEBOX_REQ_NOFOLLOW: u32 = 1 << 1;
pub const DEBOX_REQ_DETAILS: u32 = 1 << 2;
pub const DEBOX_REQ_USER_STACKS: u32 = 1 << 3;

mirror! {
    debox_request = 64 {
        size: u32 = 0,
        version: u32 = 4,
        /// DEBOX_MSG_*; `type` in C.
        kind: u32 = 8,
        flags: u32 = 12,
        pid: i32 = 16,
        reserved: [u32; 11] = 20,
    }
}

impl debox_request {
    pub fn new(kind: u32, flags: u32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            version: DEBOX_PROTOCOL_VERSION,
            kind,
            flags,
            ..Self::zeroed()
        }
    }

    pub fn watch(pid: i32, flags: u32) -> Self {
        Self {
            pid,
            ..Self::new(DEBOX_MSG_WATCH, flags)
        }
    }
}

mirror! {
    debox_reply = 384 {
        size: u32 = 0,
        version: u32 = 4,
        /// Of the request; `type` in C.
        kind: u32 = 8,
        /// 0 or -errno.
        status: i32 = 12,
        fds: u32 = 16,
        slots: u32 = 20,
        cpus: u32 = 24,
        threads: u32 = 28,
        cpu_stride: u64 = 32,
        features: u64 = 40,
        slots_used: u64 = 48,
        accounts_used: u64 = 56,
        site_walks: u64 = 64,
        site_hits: u64 = 72,
        site_mismatches: u64 = 80,
        site_failures: u64 = 88,
        storage_failures: u64 = 96,
        slots_exhausted: u64 = 104,
        switches_hidden: u64 = 112,
        reserved: [u64; 1] = 120,
        text: [u8; 256] = 128,
    }
}

impl debox_reply {
    pub fn new(kind: u32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            version: DEBOX_PROTOCOL_VERSION,
            kind,
            ..Self::zeroed()
        }
    }

    /// A refusal: `errno` positive, `text` for people.
    pub fn refusal(kind: u32, errno: i32, text: &str) -> Self {
        let mut reply = Self::new(kind);
        reply.status = -errno;
        reply.set_text(text);
        reply
    }

    pub fn text(&self) -> &str {
        text_get(&self.text)
    }
    pub fn set_text(&mut self, text: &str) {
        text_put(&mut self.text, text);
    }
}

pub const DEBOX_COLLECT_MAGIC: u32 = 0x7730_4265;
pub const DEBOX_WRAP_ROWS: usize = 256;

mirror! {
    debox_collect = 64 {
        size: u32 = 0,
        version: u32 = 4,
        stripes: u32 = 8,
        stripe_size: u32 = 12,
        reserved: [u32; 12] = 16,
    }
}

mirror! {
    /// One (call, call site) pair of a wrap collector.
    debox_wrap_row = 2416 {
        used: u64 = 0,
        call_site: u64 = 8,
        count: u64 = 16,
        errors: u64 = 24,
        wall_ns: u64 = 32,
        max_ns: u64 = 40,
        blocked_ns: u64 = 48,
        runq_ns: u64 = 56,
        minor_faults: u64 = 64,
        major_faults: u64 = 72,
        nvcsw: u64 = 80,
        nivcsw: u64 = 88,
        hist: [u64; DEBOX_HIST_BUCKETS] = 96,
    }
}

impl debox_wrap_row {
    /// The system call number of a used row.
    pub const fn nr(&self) -> Option<u32> {
        if self.used & (1 << 63) == 0 {
            return None;
        }
        Some(self.used as u32)
    }
}

mirror! {
    debox_wrap_stripe = 618560 {
        owner_tid: u32 = 0,
        rows_used: u32 = 4,
        dropped: u64 = 8,
        dropped_ns: u64 = 16,
        stale: u64 = 24,
        reserved: [u64; 4] = 32,
        rows: [debox_wrap_row; DEBOX_WRAP_ROWS] = 64,
    }
}

mirror! {
    debox_wrap_header = 256 {
        magic: u32 = 0,
        version: u32 = 4,
        pid: u32 = 8,
        measured: u32 = 12,
        threads_lost: u32 = 16,
        restricted: u32 = 20,
        reserved: [u32; 10] = 24,
        why: [u8; 192] = 64,
    }
}

impl debox_wrap_header {
    pub fn why(&self) -> &str {
        text_get(&self.why)
    }
}
