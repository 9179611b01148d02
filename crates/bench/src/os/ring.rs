// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is io_uring driven with nothing in between?
//!
//! Just enough of it for no-ops and reads: one submission queue and one
//! completion queue that this thread alone uses.

use crate::Error;
use crate::raw::{call3, call6};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const OP_NOP: u8 = 0;
const OP_READ: u8 = 22;
const ENTER_GETEVENTS: usize = 1;
const FEATURE_SINGLE_MMAP: u32 = 1;
const OFFSET_SQ: i64 = 0;
const OFFSET_SQES: i64 = 0x1000_0000;

/// struct io_uring_params of <linux/io_uring.h>, 120 bytes.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

#[repr(C)]
#[derive(Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv1: u32,
    user_addr: u64,
}

/// struct io_uring_sqe, 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Cqe {
    user_data: u64,
    res: i32,
    flags: u32,
}

struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, len: usize, offset: i64) -> Result<Self, Error> {
        // SAFETY: a new mapping of the ring's own memory, unmapped in drop.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(crate::raw::os_error("mapping an io_uring"));
        }
        Ok(Self { at: at.cast(), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in new() with this length.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

pub struct Ring {
    rings: Mapping,
    sqes: Mapping,
    fd: OwnedFd,
    params: Params,
}

impl Ring {
    pub fn open(entries: u32) -> Result<Self, Error> {
        let mut params = Params::default();
        // SAFETY: `params` is the struct the kernel fills.
        let fd = unsafe {
            call3(
                libc::SYS_io_uring_setup,
                entries as usize,
                &raw mut params as usize,
                0,
            )
        };
        if fd < 0 {
            let why = io::Error::from_raw_os_error(-fd as i32);
            let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            let hint = match sysctl.as_deref().map(str::trim) {
                Ok("0") => {
                    " though kernel.io_uring_disabled is 0 (a seccomp filter, as containers have?)"
                        .into()
                }
                Ok(v) => format!(" (kernel.io_uring_disabled is {v})"),
                Err(_) => String::new(),
            };
            return Err(Error::Unavailable(format!("io_uring_setup: {why}{hint}")));
        }
        // SAFETY: just made, nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        if params.features & FEATURE_SINGLE_MMAP == 0 {
            return Err(Error::Unavailable(
                "io_uring of this kernel is older than 5.4 (no single mapping)".into(),
            ));
        }
        let sq = params.sq_off.array as usize + params.sq_entries as usize * 4;
        let cq = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        Ok(Self {
            rings: Mapping::new(&fd, sq.max(cq), OFFSET_SQ)?,
            sqes: Mapping::new(
                &fd,
                params.sq_entries as usize * size_of::<Sqe>(),
                OFFSET_SQES,
            )?,
            fd,
            params,
        })
    }

    #[inline(always)]
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: offsets that the kernel gave, inside the mapping, aligned.
        unsafe { &*self.rings.at.add(offset as usize).cast::<AtomicU32>() }
    }

    #[inline(always)]
    fn put(&mut self, sqe: Sqe) {
        let tail = self.word(self.params.sq_off.tail).load(Ordering::Relaxed);
        let at = tail & (self.params.sq_entries - 1);
        // SAFETY: `at` is below sq_entries, for both arrays.
        unsafe { *self.sqes.at.cast::<Sqe>().add(at as usize) = sqe };
        self.word(self.params.sq_off.array + 4 * at)
            .store(at, Ordering::Relaxed);
        // Pairs with the kernel's acquire of the tail in io_uring_enter.
        self.word(self.params.sq_off.tail)
            .store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Submits `n` and waits for them; the last result, or the first failure.
    #[inline(always)]
    fn enter(&mut self, n: u32) -> Result<i32, Error> {
        // SAFETY: no pointers; the buffers of reads are the caller's, who waits.
        let got = unsafe {
            call6(
                libc::SYS_io_uring_enter,
                self.fd.as_raw_fd() as usize,
                n as usize,
                n as usize,
                ENTER_GETEVENTS,
                0,
                0,
            )
        };
        if got != i64::from(n) {
            return Err(Error::Unavailable(format!(
                "io_uring_enter returned {got}{}",
                crate::raw::errno_text(got)
            )));
        }
        let head = self.word(self.params.cq_off.head).load(Ordering::Relaxed);
        // Pairs with the kernel's release of the tail after it wrote the entries.
        let tail = self.word(self.params.cq_off.tail).load(Ordering::Acquire);
        let mut last = 0;
        for i in 0..tail.wrapping_sub(head) {
            let at = head.wrapping_add(i) & (self.params.cq_entries - 1);
            // SAFETY: below cq_entries.
            let cqe = unsafe {
                *self
                    .rings
                    .at
                    .add(self.params.cq_off.cqes as usize)
                    .cast::<Cqe>()
                    .add(at as usize)
            };
            if cqe.res < 0 {
                return Err(Error::Unavailable(format!(
                    "io_uring operation: {}",
                    io::Error::from_raw_os_error(-cqe.res)
                )));
            }
            last = cqe.res;
        }
        self.word(self.params.cq_off.head)
            .store(tail, Ordering::Release);
        Ok(last)
    }

    /// `n` operations that do nothing, at most as many as the ring has entries.
    #[inline(always)]
    pub fn nops(&mut self, n: u32) -> Result<(), Error> {
        for _ in 0..n {
            self.put(Sqe {
                opcode: OP_NOP,
                ..Sqe::default()
            });
        }
        self.enter(n).map(|_| ())
    }

    /// One read; bytes read.
    ///
    /// # Safety
    /// `to` must have room for `len` bytes; the call waits until they are there.
    #[inline(always)]
    pub unsafe fn read(
        &mut self,
        fd: i32,
        to: *mut u8,
        len: u32,
        offset: u64,
    ) -> Result<i32, Error> {
        self.put(Sqe {
            opcode: OP_READ,
            fd,
            off: offset,
            addr: to as u64,
            len,
            ..Sqe::default()
        });
        self.enter(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_have_the_kernels_sizes() {
        assert_eq!(size_of::<Params>(), 120);
        assert_eq!(size_of::<Sqe>(), 64);
        assert_eq!(size_of::<Cqe>(), 16);
    }

    /// Compared with read(): the same bytes of a file that everybody has.
    #[test]
    fn a_read_reads_what_read_reads() {
        let mut ring = match Ring::open(8) {
            Ok(ring) => ring,
            Err(error) => {
                // Then nobody else gets one either: libc's way, a struct of zeros.
                let mut params = [0u8; 120];
                // SAFETY: 120 bytes, as the kernel's struct has.
                let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, &raw mut params) };
                let why = io::Error::last_os_error();
                assert!(fd < 0, "io_uring works here, and yet: {error}");
                assert!(
                    matches!(why.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
                    "{why}; {error}"
                );
                println!("NOT TESTED: the kernel refuses io_uring: {error}");
                return;
            }
        };
        let path = std::env::current_exe().unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mut expected = vec![0u8; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut expected, 8192).unwrap();
        let mut got = vec![0u8; 4096];
        // SAFETY: the vector has that room.
        let n = unsafe { ring.read(file.as_raw_fd(), got.as_mut_ptr(), 4096, 8192) };
        assert_eq!(n.unwrap(), 4096);
        assert!(got == expected);
        // More than the ring has entries: indices wrap.
        for _ in 0..20 {
            ring.nops(3).unwrap();
        }
    }
}
