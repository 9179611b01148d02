// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do all clients read, and how do they see that the broker is gone?
//!
//! One memfd: `struct debox_shared`, then the site table. Only this mapping can
//! write it: it is made before F_SEAL_FUTURE_WRITE (kernel 5.1) is set, after
//! which neither write() nor a new shared writable mapping is possible through
//! any descriptor of the file, also not after reopening it in /proc.
//!
//! The broker's thread holds a robust, process-shared mutex in it for its whole
//! life. When the thread ends, however it ends, the kernel walks the thread's
//! robust list and sets FUTEX_OWNER_DIED in the lock word; that happens when the
//! address space is left, which is before the last descriptor (and with it the
//! BPF programs) goes away. A client needs one load to know, no system call.

use debox_abi::{
    DEBOX_ABI_VERSION, DEBOX_PAGE_SIZE, DEBOX_SHARED_MAGIC, DEBOX_SHARED_SIZE, Pod, debox_shared,
    debox_site,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The thread id in a futex word (FUTEX_TID_MASK of the kernel's ABI).
const TID_MASK: u32 = 0x3fff_ffff;

#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    #[error(
        "cannot make the broker's shared memory ({size} bytes, {step}): {source}; memfd_create and \
         file seals need kernel 5.1 and a tmpfs limit that is not exhausted",
        size = DEBOX_SHARED_SIZE
    )]
    Memory { step: &'static str, source: Errno },
    #[error(
        "cannot make the robust mutex by which clients see that the broker lives ({step}): {source}"
    )]
    Mutex {
        step: &'static str,
        source: std::io::Error,
    },
    #[error(
        "the C library keeps {word:#x} in the first word of a locked robust mutex where the thread \
         id {tid} was expected; this libc is not supported, build the broker against glibc"
    )]
    LockWord { word: u32, tid: u32 },
}

/// The shared memory, with the lock held by the thread that made it: neither
/// the mutex nor the robust list may move to another thread.
pub struct Shared {
    fd: OwnedFd,
    base: NonNull<u8>,
    locked: bool,
    _not_send: PhantomData<*mut u8>,
}

impl Shared {
    pub fn new() -> Result<Self, SharedError> {
        let memory = |step| move |source| SharedError::Memory { step, source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // MFD_NOEXEC_SEAL exists since 6.3; vm.memfd_noexec=2 demands it there.
        let fd = rustix::fs::memfd_create("debox-shared", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|e| match e {
                Errno::INVAL => rustix::fs::memfd_create("debox-shared", flags),
                e => Err(e),
            })
            .map_err(memory("memfd_create"))?;
        rustix::fs::ftruncate(&fd, DEBOX_SHARED_SIZE as u64).map_err(memory("ftruncate"))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; it is
        // unmapped only in drop.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                DEBOX_SHARED_SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(memory("mmap"))?;
        let mut shared = Self {
            fd,
            base: NonNull::new(base.cast()).ok_or(SharedError::Memory {
                step: "mmap",
                source: Errno::NOMEM,
            })?,
            locked: false,
            _not_send: PhantomData,
        };
        // A forked child of the process that hosts a private broker must not
        // hold a writable view.
        // SAFETY: the range is ours; DONTFORK changes nothing in this process.
        unsafe { rustix::mm::madvise(base, DEBOX_SHARED_SIZE, Advice::LinuxDontFork) }
            .map_err(memory("madvise"))?;
        rustix::fs::fcntl_add_seals(
            &shared.fd,
            SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )
        .map_err(memory("F_SEAL_FUTURE_WRITE"))?;

        let mut header = debox_shared::zeroed();
        header.abi_version = DEBOX_ABI_VERSION;
        header.broker_pid = std::process::id();
        header.alive_offset = std::mem::offset_of!(debox_shared, mutex) as u32;
        header.site_entry_size = size_of::<debox_site>() as u32;
        header.magic = DEBOX_SHARED_MAGIC;
        // SAFETY: the page is mapped, aligned, and nobody else has it yet.
        unsafe { shared.header().write(header) };
        shared.lock()?;
        Ok(shared)
    }

    fn header(&self) -> *mut debox_shared {
        self.base.as_ptr().cast()
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        const {
            assert!(size_of::<libc::pthread_mutex_t>() <= 128);
            let offset = std::mem::offset_of!(debox_shared, mutex);
            assert!(offset & (align_of::<libc::pthread_mutex_t>() - 1) == 0);
        }
        // SAFETY: inside the mapped first page.
        unsafe { (&raw mut (*self.header()).mutex).cast() }
    }

    fn lock(&mut self) -> Result<(), SharedError> {
        let check = |step: &'static str, status: libc::c_int| match status {
            0 => Ok(()),
            errno => Err(SharedError::Mutex {
                step,
                source: std::io::Error::from_raw_os_error(errno),
            }),
        };
        let mut attr = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: attr is initialised by the first call and destroyed by the
        // last; the mutex lies in zeroed memory that stays mapped while it is
        // locked (drop unlocks before it unmaps), and in this thread only.
        unsafe {
            check("attr_init", libc::pthread_mutexattr_init(attr.as_mut_ptr()))?;
            let attr = attr.as_mut_ptr();
            let result = (|| {
                check(
                    "attr_setpshared",
                    libc::pthread_mutexattr_setpshared(attr, libc::PTHREAD_PROCESS_SHARED),
                )?;
                check(
                    "attr_setrobust",
                    libc::pthread_mutexattr_setrobust(attr, libc::PTHREAD_MUTEX_ROBUST),
                )?;
                check("init", libc::pthread_mutex_init(self.mutex(), attr))?;
                check("lock", libc::pthread_mutex_lock(self.mutex()))
            })();
            libc::pthread_mutexattr_destroy(attr);
            result?;
        }
        self.locked = true;
        // The clients look at the word itself, so where glibc keeps it is part
        // of the contract: make sure of it, rather than believe it.
        // SAFETY: gettid has no conditions.
        let tid = unsafe { libc::gettid() } as u32;
        let word = self.alive_word().load(Ordering::Relaxed);
        if word & TID_MASK != tid {
            return Err(SharedError::LockWord { word, tid });
        }
        Ok(())
    }

    fn alive_word(&self) -> &AtomicU32 {
        // SAFETY: the mutex's first word, aligned and mapped as long as self.
        unsafe { &*self.mutex().cast::<AtomicU32>() }
    }

    /// Tells the clients that from here on their records are stale; before the
    /// programs are detached. Unlocking leaves 0 in the word.
    pub fn retire(&mut self) {
        if std::mem::take(&mut self.locked) {
            // SAFETY: locked by this thread (the type is not Send).
            unsafe { libc::pthread_mutex_unlock(self.mutex()) };
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn features_set(&self, features: u64) {
        // SAFETY: an aligned u64 in the mapped first page; clients only load it.
        let word = unsafe { &*(&raw mut (*self.header()).features).cast::<AtomicU64>() };
        word.store(features, Ordering::Relaxed);
    }

    /// Stores the text of site `id`. Each number is published once (the site
    /// book sees to it) and is below DEBOX_SITES_MAX.
    pub(crate) fn site_publish(&self, id: u32, site: &debox_site) {
        assert!((id as usize) < debox_abi::DEBOX_SITES_MAX);
        // SAFETY: within the mapping (asserted), aligned to the entry size;
        // only this thread writes the table.
        unsafe {
            let table = self.base.as_ptr().add(DEBOX_PAGE_SIZE).cast::<debox_site>();
            debox_site::publish(table.add(id as usize), site);
        }
        // SAFETY: an aligned u32 in the mapped first page.
        let count = unsafe { &*(&raw mut (*self.header()).site_count).cast::<AtomicU32>() };
        // Release: who sees the count also sees the entries below it that were
        // published before.
        count.fetch_max(id + 1, Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.retire();
        // SAFETY: mapped in new, no reference outlives self.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), DEBOX_SHARED_SIZE);
        }
    }
}
