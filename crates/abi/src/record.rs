// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does shared memory hold? The mirror of `include/debox/abi.h`.

use crate::pod::mirror;
use crate::{DEBOX_HIST_BUCKETS, Pod, text_get, text_put};
use core::sync::atomic::{AtomicU32, Ordering};

pub const DEBOX_ABI_VERSION: u32 = 1;

pub const DEBOX_SLEEPS_MAX: usize = 16;
pub const DEBOX_COMM_LEN: usize = 16;

pub const DEBOX_VALID_WALL: u64 = 1 << 0;
pub const DEBOX_VALID_CPU: u64 = 1 << 1;
pub const DEBOX_VALID_BLOCKED: u64 = 1 << 2;
pub const DEBOX_VALID_RUNQ: u64 = 1 << 3;
pub const DEBOX_VALID_FAULTS: u64 = 1 << 4;
pub const DEBOX_VALID_SWITCHES: u64 = 1 << 5;
pub const DEBOX_VALID_SLEEPS: u64 = 1 << 6;
pub const DEBOX_VALID_IRQ: u64 = 1 << 7;
pub const DEBOX_VALID_TRACE: u64 = 1 << 8;
pub const DEBOX_VALID_CALL_SITE: u64 = 1 << 9;
pub const DEBOX_VALID_RETVAL: u64 = 1 << 10;
pub const DEBOX_VALID_NR: u64 = 1 << 11;

pub const DEBOX_FLAG_WRAP: u32 = 1 << 0;
pub const DEBOX_FLAG_BOUNDARY: u32 = 1 << 1;
pub const DEBOX_FLAG_STALE: u32 = 1 << 2;
pub const DEBOX_FLAG_UNFINISHED: u32 = 1 << 3;
pub const DEBOX_FLAG_CLOBBERED: u32 = 1 << 4;
pub const DEBOX_FLAG_COMPAT32: u32 = 1 << 5;
pub const DEBOX_FLAG_RESTARTED: u32 = 1 << 6;
pub const DEBOX_FLAG_SPAN: u32 = 1 << 7;

pub const DEBOX_HOLDER_NONE: u32 = 0;
pub const DEBOX_HOLDER_WRITER: u32 = 1;
pub const DEBOX_HOLDER_READER: u32 = 2;

pub const DEBOX_PAGE_SIZE: usize = 4096;
pub const DEBOX_SEGMENT_SLOTS: usize = 32;
pub const DEBOX_BANKS: usize = 2;
pub const DEBOX_BANK_SIZE: usize = 1920;

pub const DEBOX_SITES_MAX: usize = 16384;
pub const DEBOX_SITE_NONE: u32 = u32::MAX;
pub const DEBOX_LABEL_LEN: usize = 24;
pub const DEBOX_FUNCTION_LEN: usize = 64;
pub const DEBOX_FILE_LEN: usize = 112;
pub const DEBOX_SITE_EMPTY: u32 = 0;
pub const DEBOX_SITE_RESOLVED: u32 = 1;
pub const DEBOX_SITE_FLAG_UNLABELLED: u32 = 1 << 0;

pub const DEBOX_SHARED_MAGIC: u32 = 0x5830_4265;
/// Bytes of the broker's whole shared memory: the header page and the site table.
pub const DEBOX_SHARED_SIZE: usize = DEBOX_PAGE_SIZE + DEBOX_SITES_MAX * size_of::<debox_site>();

pub const DEBOX_FEATURE_SLEEPS: u64 = 1 << 0;
pub const DEBOX_FEATURE_FAULTS: u64 = 1 << 1;
pub const DEBOX_FEATURE_MAJOR_FAULTS: u64 = 1 << 2;
pub const DEBOX_FEATURE_LOCKS: u64 = 1 << 3;
pub const DEBOX_FEATURE_WAKERS: u64 = 1 << 4;
pub const DEBOX_FEATURE_RUNQ: u64 = 1 << 5;
pub const DEBOX_FEATURE_SITES: u64 = 1 << 6;

pub const DEBOX_ROWS_MAX: usize = 192;
pub const DEBOX_NR_SLOTS: usize = 1024;
pub const DEBOX_NR_COMPAT: u32 = 512;
pub const DEBOX_NR_OUTSIDE: u32 = 1022;
pub const DEBOX_NR_UNKNOWN: u32 = 1023;
pub const DEBOX_SITE_ROWS_MAX: usize = 2048;

mirror! {
    /// One blocking place inside one call.
    debox_sleep = 96 {
        total_ns: u64 = 0,
        max_ns: u64 = 8,
        site: u32 = 16,
        count: u32 = 20,
        waiters_entry: u32 = 24,
        waiters_exit: u32 = 28,
        holder_pid: u32 = 32,
        waker_pid: u32 = 36,
        holder_kind: u32 = 40,
        reserved0: u32 = 44,
        holder_comm: [u8; DEBOX_COMM_LEN] = 48,
        waker_comm: [u8; DEBOX_COMM_LEN] = 64,
        reserved: [u64; 2] = 80,
    }
}

mirror! {
    /// The account of one call, of any capture, in any language.
    debox_info = 1768 {
        size: u32 = 0,
        flags: u32 = 4,
        valid: u64 = 8,
        call_seq: u64 = 16,
        nr: i32 = 24,
        sleep_count: u32 = 28,
        retval: i64 = 32,
        start_ns: u64 = 40,
        wall_ns: u64 = 48,
        cpu_ns: u64 = 56,
        blocked_ns: u64 = 64,
        runq_ns: u64 = 72,
        irq_ns: u64 = 80,
        outside_ns: u64 = 88,
        call_site: u64 = 96,
        minor_faults: u32 = 104,
        major_faults: u32 = 108,
        nvcsw: u32 = 112,
        nivcsw: u32 = 116,
        sleeps_dropped: u32 = 120,
        trace_count: u32 = 124,
        sleeps_dropped_ns: u64 = 128,
        trace_dropped: u32 = 136,
        pid: u32 = 140,
        tid: u32 = 144,
        calls: u32 = 148,
        reserved: [u64; 10] = 152,
        sleeps: [debox_sleep; DEBOX_SLEEPS_MAX] = 232,
    }
}

impl debox_info {
    /// The sleeps in use; a count beyond the array (bytes from elsewhere) is bounded.
    pub fn sleeps_used(&self) -> &[debox_sleep] {
        &self.sleeps[..(self.sleep_count as usize).min(DEBOX_SLEEPS_MAX)]
    }
}

mirror! {
    /// The control page: the program writes it, the kernel side only reads it.
    debox_control = 4096 {
        open_seq: u64 = 0,
        nr: i32 = 8,
        level: u32 = 12,
        call_site: u64 = 16,
        max_sleeps: u32 = 24,
        flags: u32 = 28,
        max_trace: u32 = 32,
        reserved0: u32 = 36,
        reserved: [u64; 3] = 40,
        user: [u8; DEBOX_PAGE_SIZE - 64] = 64,
    }
}

mirror! {
    /// Sums over a thread's whole watched life: two reads make a span.
    debox_totals = 192 {
        blocked_ns: u64 = 0,
        runq_ns: u64 = 8,
        outside_blocked_ns: u64 = 16,
        outside_runq_ns: u64 = 24,
        sleeps: u64 = 32,
        kernel_faults: u64 = 40,
        major_faults: u64 = 48,
        nvcsw: u64 = 56,
        nivcsw: u64 = 64,
        dropped_ns: u64 = 72,
        reserved: [u64; 14] = 80,
    }
}

/// One record's place in the record page; the bytes after it stay free for
/// fields of later versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct debox_bank {
    pub info: debox_info,
    pub pad: [u8; DEBOX_BANK_SIZE - size_of::<debox_info>()],
}
const _: () = assert!(size_of::<debox_bank>() == DEBOX_BANK_SIZE);
// SAFETY: a Pod followed by bytes; the sizes add up to the struct's (assert above).
unsafe impl Pod for debox_bank {}
impl Default for debox_bank {
    fn default() -> Self {
        Self::zeroed()
    }
}

mirror! {
    /// The record page: only the kernel side writes it.
    debox_record = 4096 {
        tid: u32 = 0,
        tgid: u32 = 4,
        generation: u64 = 8,
        totals: debox_totals = 16,
        away: u32 = 208,
        reserved0: u32 = 212,
        reserved: [u64; 5] = 216,
        bank: [debox_bank; DEBOX_BANKS] = 256,
    }
}

mirror! {
    /// The text of one site.
    debox_site = 256 {
        /// Stored last, with release order: see [`debox_site::publish`].
        state: u32 = 0,
        merged: u32 = 4,
        line: u32 = 8,
        offset: u32 = 12,
        label: [u8; DEBOX_LABEL_LEN] = 16,
        function: [u8; DEBOX_FUNCTION_LEN] = 40,
        file: [u8; DEBOX_FILE_LEN] = 104,
        flags: u32 = 216,
        reserved: [u32; 9] = 220,
    }
}

impl debox_site {
    /// A resolved site, for writers; too long text is cut.
    pub fn new(label: &str, function: &str, file: &str, line: u32, offset: u32) -> Self {
        let mut site = Self::zeroed();
        site.state = DEBOX_SITE_RESOLVED;
        site.line = line;
        site.offset = offset;
        text_put(&mut site.label, label);
        text_put(&mut site.function, function);
        text_put(&mut site.file, file);
        site
    }

    pub fn label(&self) -> &str {
        text_get(&self.label)
    }
    pub fn function(&self) -> &str {
        text_get(&self.function)
    }
    pub fn file(&self) -> &str {
        text_get(&self.file)
    }

    /// Copies the entry out of shared memory if it is resolved.
    ///
    /// # Safety
    /// `entry` points to a `debox_site` in mapped, readable memory that is
    /// written only by [`debox_site::publish`]. It does not come from a shared
    /// reference: an atomic is read through it.
    pub unsafe fn load(entry: *const debox_site) -> Option<debox_site> {
        // SAFETY: `state` is an aligned u32 in mapped memory (caller).
        let state = unsafe { &*(&raw const (*entry).state).cast::<AtomicU32>() };
        // Acquire: pairs with the release store in `publish`; the text was
        // stored before it and does not change afterwards.
        if state.load(Ordering::Acquire) != DEBOX_SITE_RESOLVED {
            return None;
        }
        // SAFETY: mapped memory (caller); volatile, since another process owns it.
        Some(unsafe { entry.read_volatile() })
    }

    /// Stores `site` into shared memory, `state` last.
    ///
    /// # Safety
    /// `entry` points to an empty `debox_site` in mapped, writable memory and
    /// nobody else writes this entry.
    pub unsafe fn publish(entry: *mut debox_site, site: &debox_site) {
        let mut copy = *site;
        copy.state = DEBOX_SITE_EMPTY;
        // SAFETY: mapped and ours to write (caller).
        unsafe { entry.write_volatile(copy) };
        // SAFETY: as above, `state` is an aligned u32.
        let state = unsafe { &*(&raw mut (*entry).state).cast::<AtomicU32>() };
        // Release: pairs with the acquire load in `load` and in libdebox.
        state.store(DEBOX_SITE_RESOLVED, Ordering::Release);
    }
}

mirror! {
    /// The first page of the broker's shared memory; the site table follows at
    /// DEBOX_PAGE_SIZE.
    debox_shared = 200 {
        magic: u32 = 0,
        abi_version: u32 = 4,
        broker_pid: u32 = 8,
        alive_offset: u32 = 12,
        site_count: u32 = 16,
        site_entry_size: u32 = 20,
        features: u64 = 24,
        reserved: [u64; 5] = 32,
        mutex: [u8; 128] = 72,
    }
}

mirror! {
    /// One system call of an account, on one CPU.
    debox_row = 2416 {
        count: u64 = 0,
        errors: u64 = 8,
        restarted: u64 = 16,
        unfinished: u64 = 24,
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

mirror! {
    debox_account_cpu = 463872 {
        rows: [debox_row; DEBOX_ROWS_MAX] = 0,
    }
}

const SITE_KEY_USED: u64 = 1 << 63;

mirror! {
    /// Where one system call blocked.
    debox_site_row = 64 {
        key: u64 = 0,
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
        waiters_entry: u64 = 32,
        waiters_max: u64 = 40,
        reserved: [u64; 2] = 48,
    }
}

impl debox_site_row {
    pub const fn key_of(nr_key: u32, site: u32) -> u64 {
        SITE_KEY_USED | ((nr_key as u64) << 32) | site as u64
    }
    /// (nr key, site) of a used row.
    pub const fn key_parts(&self) -> Option<(u32, u32)> {
        if self.key & SITE_KEY_USED == 0 {
            return None;
        }
        Some((((self.key & !SITE_KEY_USED) >> 32) as u32, self.key as u32))
    }
}

mirror! {
    /// The sums of a whole run, beside one debox_account_cpu per CPU.
    debox_account = 135304 {
        rows_used: u32 = 0,
        cpus: u32 = 4,
        threads_started: u64 = 8,
        threads_ended: u64 = 16,
        threads_unwatched: u64 = 24,
        rows_dropped: u64 = 32,
        sites_dropped: u64 = 40,
        sites_dropped_ns: u64 = 48,
        sites_unknown: u64 = 56,
        sites_unknown_ns: u64 = 64,
        left_privileged_exec: u64 = 72,
        processes_started: u64 = 80,
        left_unreadable_exec: u64 = 88,
        left_credentials: u64 = 96,
        left_undumpable: u64 = 104,
        left_taken: u64 = 112,
        reserved: [u64; 2] = 120,
        row_of: [u32; DEBOX_NR_SLOTS] = 136,
        sites: [debox_site_row; DEBOX_SITE_ROWS_MAX] = 4232,
    }
}

impl debox_account {
    /// Threads that left the watch before their end, for whatever reason.
    pub const fn threads_left(&self) -> u64 {
        self.left_privileged_exec
            .saturating_add(self.left_unreadable_exec)
            .saturating_add(self.left_credentials)
            .saturating_add(self.left_undumpable)
            .saturating_add(self.left_taken)
    }
}

/// Bytes from one CPU's element of the per-CPU map to the next.
pub const DEBOX_ACCOUNT_CPU_STRIDE: usize = size_of::<debox_account_cpu>().next_multiple_of(8);
