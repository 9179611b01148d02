// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is the record the same struct, filled alike, when the boundaries of a call
//! are taken in the kernel? A thread that asked for slots with boundary
//! capture reads the record of any call it made, without libdebox, from its
//! own slot.

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../tests/needs.rs"]
mod needs;

use std::os::fd::AsRawFd;

use debox_abi::*;
use debox_probe::{Kernel, Options, Probe, SegmentOptions, SharedFunctions};

fn map<T>(fd: &impl AsRawFd, protection: i32) -> *mut T {
    let length = DEBOX_PAGE_SIZE * DEBOX_SEGMENT_SLOTS;
    // SAFETY: a fresh shared mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            protection,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

#[test]
fn any_call_of_the_thread_leaves_its_record() {
    if !needs::bpf() {
        return;
    }
    let mut probe = Probe::load(Options::default(), SharedFunctions::default()).unwrap();
    let segment = probe
        .segment_create(
            std::process::id(),
            debox_probe::Watcher::root(),
            SegmentOptions {
                boundary: true,
                chains: false,
                irq: true,
            },
        )
        .unwrap();
    assert!(segment.threads >= 1);
    let records: *const debox_record = map(&segment.record, libc::PROT_READ);
    // SAFETY: no arguments.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: the mapping holds that many records; others may change, tid is
    // only ever ours while we live.
    let slot = (0..DEBOX_SEGMENT_SLOTS)
        .find(|&i| unsafe { std::ptr::read_volatile(&raw const (*records.add(i)).tid) } == tid)
        .expect("this thread has a slot");
    // SAFETY: as above.
    let bank = unsafe { &raw const (*records.add(slot)).bank[0] }.cast::<debox_info>();
    let last = || {
        // SAFETY: only this thread's own calls write the bank, and copying it
        // makes none.
        unsafe { std::ptr::read_volatile(bank) }
    };

    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    // SAFETY: a valid timespec; no remainder is asked for.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clock_nanosleep,
            libc::CLOCK_MONOTONIC,
            0,
            &raw const pause,
            0,
        )
    };
    let sleep = last();
    assert_eq!(result, 0);
    assert_eq!(sleep.nr as i64, libc::SYS_clock_nanosleep);
    assert_eq!(sleep.flags & DEBOX_FLAG_BOUNDARY, DEBOX_FLAG_BOUNDARY);
    let all = DEBOX_VALID_WALL
        | DEBOX_VALID_CPU
        | DEBOX_VALID_BLOCKED
        | DEBOX_VALID_FAULTS
        | DEBOX_VALID_SLEEPS
        | DEBOX_VALID_RETVAL
        | DEBOX_VALID_IRQ
        | DEBOX_VALID_NR;
    assert_eq!(sleep.valid & all, all);
    assert_eq!(
        sleep.wall_ns,
        sleep.cpu_ns + sleep.blocked_ns + sleep.runq_ns + sleep.irq_ns
    );
    assert!(
        (19_900_000..100_000_000).contains(&sleep.blocked_ns),
        "{}",
        sleep.blocked_ns
    );
    assert_eq!((sleep.sleep_count, sleep.sleeps[0].count), (1, 1));
    assert_eq!(sleep.sleeps[0].total_ns, sleep.blocked_ns);
    assert_eq!(
        (sleep.nvcsw, sleep.pid, sleep.tid),
        (1, std::process::id(), tid)
    );

    // SAFETY: a bad descriptor is refused.
    unsafe { libc::syscall(libc::SYS_close, -1) };
    let close = last();
    assert_eq!(close.nr as i64, libc::SYS_close);
    assert_eq!(close.retval, -i64::from(libc::EBADF));
    assert_eq!(
        (close.sleep_count, close.blocked_ns),
        (0, 0),
        "nothing is left of the call before"
    );
    assert!(close.call_seq > sleep.call_seq);

    // read() into memory never touched: one fault a page, inside the call.
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let length = 64 * 4096;
    // SAFETY: fresh anonymous memory, written by read() only.
    unsafe {
        let fresh = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        libc::madvise(fresh, length, libc::MADV_NOHUGEPAGE);
        let got = libc::syscall(libc::SYS_read, zero.as_raw_fd(), fresh, length);
        let read = last();
        assert_eq!((got, read.retval), (length as i64, length as i64));
        assert_eq!((read.minor_faults, read.major_faults), (64, 0));
    }

    // A call of some 50 ms on a CPU: the tick, at the least, lands in it.
    let random = std::fs::File::open("/dev/urandom").unwrap();
    let mut bytes = vec![0u8; 16 << 20];
    // SAFETY: bytes of our own.
    let got = unsafe {
        libc::syscall(
            libc::SYS_read,
            random.as_raw_fd(),
            bytes.as_mut_ptr(),
            bytes.len(),
        )
    };
    let read = last();
    assert_eq!(got, bytes.len() as i64);
    assert!(read.irq_ns > 0, "{} ns on a CPU", read.cpu_ns);
    assert_eq!(
        read.wall_ns,
        read.cpu_ns + read.blocked_ns + read.runq_ns + read.irq_ns
    );

    // Nobody can write what the kernel side says.
    // SAFETY: a mapping that must be refused.
    let writable = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            DEBOX_PAGE_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            segment.record.as_raw_fd(),
            0,
        )
    };
    assert_eq!(writable, libc::MAP_FAILED);

    probe.segment_release(segment.id);
    assert!(!probe.attached(), "the last watcher has left");
}
