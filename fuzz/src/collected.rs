// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may the counters that a process hands over (`run --capture=wrap`) do?
//!
//! The process's message, the header of its memory, then rows, which are put
//! into a memory of the right size: no mutation makes the 600 kB of a stripe.

use crate::{Taker, rendered};
use debox_abi::{
    DEBOX_COLLECT_MAGIC, DEBOX_PAGE_SIZE, DEBOX_PROTOCOL_VERSION, Pod, debox_collect,
    debox_wrap_header, debox_wrap_row, debox_wrap_stripe,
};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

const SMALL: usize = 4;

pub fn check(data: &[u8]) {
    let mut taker = Taker(data);
    let flags = taker.u8();
    let mut packet = debox_collect::zeroed();
    packet.as_bytes_mut().copy_from_slice(&taker.array::<64>());
    let mut header = debox_wrap_header::zeroed();
    header.as_bytes_mut().copy_from_slice(&taker.array::<256>());
    let mut stripes = 1;
    // Most of the time what every process says.
    if flags & 1 == 0 {
        stripes = 1 + u32::from(flags >> 1) % SMALL as u32;
        packet = debox_collect {
            size: size_of::<debox_collect>() as u32,
            version: DEBOX_PROTOCOL_VERSION,
            stripes,
            stripe_size: size_of::<debox_wrap_stripe>() as u32,
            ..debox_collect::zeroed()
        };
        header.magic = DEBOX_COLLECT_MAGIC;
        header.version = DEBOX_PROTOCOL_VERSION;
    }
    let memory = memory(&header, stripes, &mut taker, flags);
    match debox_cli::fuzz::collected(&packet, &memory) {
        Ok(report) => rendered::check(report),
        Err(why) => assert!(!why.is_empty()),
    }
}

fn memory(header: &debox_wrap_header, stripes: u32, taker: &mut Taker<'_>, flags: u8) -> File {
    // SAFETY: a fresh descriptor, owned at once.
    let file = unsafe {
        File::from_raw_fd(libc::memfd_create(
            c"fuzz".as_ptr(),
            libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
        ))
    };
    let stripe_size = size_of::<debox_wrap_stripe>() as u64;
    let whole = DEBOX_PAGE_SIZE as u64 + u64::from(stripes) * stripe_size;
    file.set_len(whole).expect("a memfd of some megabytes");
    let put = |bytes: &[u8], at: u64| file.write_all_at(bytes, at).expect("inside of the file");
    put(header.as_bytes(), 0);
    for stripe in 0..stripes {
        let start = DEBOX_PAGE_SIZE as u64 + u64::from(stripe) * stripe_size;
        let head = core::mem::offset_of!(debox_wrap_stripe, rows);
        let mut bytes = vec![0; head];
        bytes[..32].copy_from_slice(&taker.array::<32>());
        put(&bytes, start);
        for _ in 0..taker.u8() % 8 {
            let index = u64::from(taker.u8());
            let mut row = debox_wrap_row::zeroed();
            let fields = core::mem::offset_of!(debox_wrap_row, hist);
            let front = taker.bytes(fields);
            row.as_bytes_mut()[..front.len()].copy_from_slice(front);
            let bucket = usize::from(taker.u16()) % row.hist.len();
            row.hist[bucket] = taker.u64();
            let at = head as u64 + index * size_of::<debox_wrap_row>() as u64;
            put(row.as_bytes(), start + at);
        }
    }
    let seals = if flags == 255 {
        libc::F_SEAL_GROW
    } else {
        libc::F_SEAL_GROW | libc::F_SEAL_SHRINK
    };
    // SAFETY: no memory involved.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    file
}
