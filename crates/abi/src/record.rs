// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is what lies in shared memory written and read?

use crate::generated::*;
use crate::{Pod, text_get, text_put};
use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the broker's whole shared memory: the header page and the site table.
pub const DEBOX_SHARED_SIZE: usize = DEBOX_PAGE_SIZE + DEBOX_SITES_MAX * size_of::<debox_site>();

impl debox_info {
    /// The sleeps in use; a count beyond the array (bytes from elsewhere) is bounded.
    pub fn sleeps_used(&self) -> &[debox_sleep] {
        &self.sleeps[..(self.sleep_count as usize).min(DEBOX_SLEEPS_MAX)]
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

const SITE_KEY_USED: u64 = 1 << 63;

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
    /// How many sleeps, those that are not over among them.
    pub fn count(&self) -> u64 {
        let all = self.hist.iter();
        all.fold(self.asleep, |all, n| all.saturating_add(*n))
    }
    /// How long the longest that is over was, when it ended (CLOCK_MONOTONIC), and whose it was; if the
    /// row has that whole.
    pub fn longest(&self) -> Option<(u64, u64, &str)> {
        let comm = text_get(&self.longest_comm);
        let whole = self.longest_told == self.longest_begun;
        (whole && self.longest_ns > 0 && !comm.is_empty()).then_some((
            self.longest_ns,
            self.longest_end_ns,
            comm,
        ))
    }
}

impl debox_on_cpu {
    /// Numbers of the kernel's functions in its samples, as often as they occur.
    pub fn kernel_functions(&self) -> impl Iterator<Item = u32> {
        let of_kernel =
            |frame: &&u64| **frame >> DEBOX_FRAME_FILE_SHIFT == u64::from(DEBOX_FRAME_KERNEL);
        let stacks = self.stacks.iter();
        stacks
            .flat_map(|stack| &stack.frames[..(stack.depth as usize).min(DEBOX_USER_FRAMES_MAX)])
            .filter(of_kernel)
            .map(|&frame| frame as u32)
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
