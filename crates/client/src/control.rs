// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a client tell the kernel side which details it wants?
//!
//! Through `struct debox_account_control`, which both share: the client writes,
//! the kernel side reads at the end of each call, without any lock. A
//! condition is therefore switched off while it is changed.

use crate::mapping::Mapping;
use debox_abi::*;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, compiler_fence};

pub struct DetailControl {
    /// Written through `place` by &mut self only.
    mapping: Mapping,
}

impl DetailControl {
    pub(crate) fn map(fd: &OwnedFd) -> io::Result<Self> {
        Mapping::part(fd, 0, size_of::<debox_account_control>(), true)
            .map(|mapping| Self { mapping })
    }

    fn place(&self) -> *mut debox_account_control {
        self.mapping.pointer().cast()
    }

    /// DEBOX_DETAIL_*. Set it before the first process joins; later changes
    /// are noticed when a thread gets the CPU anew.
    pub fn flags_set(&mut self, flags: u32) {
        // SAFETY: mapped and aligned; the kernel side reads it whole.
        unsafe { (&raw mut (*self.place()).flags).write_volatile(flags) };
    }

    pub fn flags(&self) -> u32 {
        // SAFETY: mapped and aligned, and only we write it.
        unsafe { (&raw const (*self.place()).flags).read_volatile() }
    }

    /// What the stamps of spliced programs are in time: `struct debox_account_control`.
    pub fn ticks_set(&mut self, rate: u64, offset_ns: i64) {
        // SAFETY: mapped and aligned; the kernel side reads each whole, and of an old one and a
        // new one together it makes a time that is wrong by as much as they differ.
        unsafe {
            (&raw mut (*self.place()).tick_rate).write_volatile(rate);
            (&raw mut (*self.place()).tick_offset_ns).write_volatile(offset_ns);
        }
    }

    /// When a command that is spliced was let go.
    pub fn begins_set(&mut self, begins_ns: u64) {
        // SAFETY: as in ticks_set; written once, before who asks for it runs.
        unsafe { (&raw mut (*self.place()).begins_ns).write_volatile(begins_ns) };
    }

    /// From when on a call is slow; 0: never.
    pub fn slow_ns_set(&mut self, key: u32, ns: u64) {
        let key = key as usize % DEBOX_NR_SLOTS;
        // SAFETY: as in flags_set; the index is in bounds.
        unsafe { (&raw mut (*self.place()).slow_ns[key]).write_volatile(ns) };
    }

    /// Puts a condition in place.
    ///
    /// # Panics
    /// When `index` is not below DEBOX_CONDITIONS_MAX.
    pub fn condition_set(&mut self, index: usize, condition: &debox_condition) {
        assert!(index < DEBOX_CONDITIONS_MAX);
        // SAFETY: in bounds (assert), mapped and aligned. Everybody else only
        // reads, and does not look at a condition without flags. x86-64 keeps
        // the order of stores; the fences keep the compiler's.
        unsafe {
            let place = &raw mut (*self.place()).condition[index];
            (&raw mut (*place).flags).write_volatile(0);
            compiler_fence(Ordering::SeqCst);
            let mut quiet = *condition;
            quiet.flags = 0;
            place.write_volatile(quiet);
            compiler_fence(Ordering::SeqCst);
            (&raw mut (*place).flags).write_volatile(condition.flags);
            let used = &raw mut (*self.place()).conditions;
            used.write_volatile(used.read_volatile().max(index as u32 + 1));
        }
    }

    /// From now on the condition sends neither events nor a signal, and goes on
    /// counting: no call between sees it off.
    ///
    /// # Panics
    /// When `index` is not below DEBOX_CONDITIONS_MAX.
    pub fn condition_quieten(&mut self, index: usize) {
        assert!(index < DEBOX_CONDITIONS_MAX);
        // SAFETY: in bounds, mapped and aligned; only we write, one word each.
        unsafe {
            let place = &raw mut (*self.place()).condition[index];
            (&raw mut (*place).signal).write_volatile(0);
            let flags = &raw mut (*place).flags;
            flags.write_volatile(flags.read_volatile() & !DEBOX_CONDITION_EVENT);
        }
    }

    /// The client has judged a site: from now on its sleeps count for or
    /// against a condition.
    ///
    /// # Panics
    /// When `index` is not below DEBOX_CONDITIONS_MAX.
    pub fn site_judge(&mut self, index: usize, site: u32, member: bool) {
        assert!(index < DEBOX_CONDITIONS_MAX);
        let (word, bit) = (site as usize / 64, 1u64 << (site % 64));
        if word >= DEBOX_SITES_MAX / 64 {
            return;
        }
        // SAFETY: in bounds, mapped and aligned; only we write. `sites` before
        // `known`: a site that is known must already be sorted.
        unsafe {
            let place = &raw mut (*self.place()).condition[index];
            if member {
                let sites = &raw mut (*place).sites[word];
                sites.write_volatile(sites.read_volatile() | bit);
            }
            compiler_fence(Ordering::SeqCst);
            let known = &raw mut (*place).known[word];
            known.write_volatile(known.read_volatile() | bit);
        }
    }
}
