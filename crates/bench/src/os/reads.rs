// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does reading a file cost, by each way and request size, with the file
//! in the page cache and without?
//!
//! One batch is one pass over the beginning of the file, from its first byte,
//! with everything a program would do again for each pass: the mmap pass maps
//! and unmaps, the fread pass rewinds. The result is ns for one request.
//!
//! Before a cold pass the file's pages are really dropped, and that is
//! checked, not assumed: see [`Cold`].

use super::ring::Ring;
use super::{Ctx, Group, Make, unavailable};
use crate::Error;
use crate::raw::{call3, call6, check, os_error};
use crate::sampling::Case;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

pub const WAYS: [&str; 8] = [
    "read", "pread", "readv", "fread", "mmap", "direct", "io_uring", "sendfile",
];

pub const SIZES: [usize; 18] = [
    8,
    16,
    32,
    64,
    128,
    256,
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];
const SIZES_QUICK: [usize; 5] = [8, 512, 4 << 10, 64 << 10, 1 << 20];
/// What O_DIRECT asks of addresses, offsets and lengths, on any usual disk.
const DIRECT_ALIGN: usize = 4096;

unsafe extern "C" {
    fn debox_bench_stream_open(fd: i32) -> *mut libc::c_void;
    fn debox_bench_stream_read(s: *mut libc::c_void, to: *mut u8, size: usize, n: i64) -> i64;
    fn debox_bench_stream_rewind(s: *mut libc::c_void) -> i32;
    fn debox_bench_stream_close(s: *mut libc::c_void) -> i32;
}

/// How many bytes one pass reads: enough to be a stream, little enough that a
/// pass of 8-byte requests ends.
fn pass_bytes(ctx: &Ctx, size: usize, cold: bool) -> u64 {
    let bytes: u64 = match (ctx.quick, cold) {
        (true, false) => {
            if size < 512 {
                32 << 10
            } else {
                1 << 20
            }
        }
        (true, true) => {
            if size < 512 {
                64 << 10
            } else {
                1 << 20
            }
        }
        (false, false) => {
            if size < 512 {
                256 << 10
            } else {
                8 << 20
            }
        }
        (false, true) => {
            if size < 512 {
                2 << 20
            } else {
                16 << 20
            }
        }
    };
    bytes.max(size as u64).min(ctx.file_bytes) / size as u64 * size as u64
}

// ---------------------------------------------------------------- cold

#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const SYS_CACHESTAT: i64 = 451;
const RWF_NOWAIT: usize = 8;

/// How is it known that a pass was cold?
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Cold {
    /// `cachestat` (Linux 6.5) or `mincore`.
    pub method: String,
    pub passes: u64,
    /// Pages that passes were about to read, and how many of these were in the
    /// page cache just before.
    pub pages: u64,
    pub resident: u64,
    /// preadv2(RWF_NOWAIT) at the first, the middle and the last byte: how
    /// many were tried, and how many said EAGAIN (not in the cache).
    pub nowait_tried: u64,
    pub nowait_again: u64,
    /// What passes read, and what /proc/self/io says storage delivered meanwhile.
    pub bytes: u64,
    pub storage_bytes: u64,
}

/// Pages of the first `bytes` of the file that are in the page cache.
///
/// # Errors
/// When neither cachestat nor mincore can tell.
pub fn resident(fd: i32, bytes: u64) -> Result<(u64, &'static str), Error> {
    let range = [0u64, bytes];
    let mut stat = CacheStat::default();
    // SAFETY: the kernel's struct cachestat_range is two u64, struct cachestat five.
    let result = unsafe {
        call6(
            SYS_CACHESTAT,
            fd as usize,
            range.as_ptr() as usize,
            &raw mut stat as usize,
            0,
            0,
            0,
        )
    };
    if result == 0 {
        return Ok((stat.cached, "cachestat"));
    }
    resident_mincore(fd, bytes).map(|n| (n, "mincore"))
}

fn resident_mincore(fd: i32, bytes: u64) -> Result<u64, Error> {
    let pages = bytes.div_ceil(4096) as usize;
    let mut there = vec![0u8; pages];
    // SAFETY: a mapping of our own file that is not touched; one byte a page.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        let result = libc::mincore(at, bytes as usize, there.as_mut_ptr());
        libc::munmap(at, bytes as usize);
        check(result, "mincore")?;
    }
    Ok(there.iter().filter(|b| **b & 1 != 0).count() as u64)
}

/// Whether the byte at `offset` can be read without waiting for storage.
fn at_once(fd: i32, offset: u64) -> Result<bool, i64> {
    let mut byte = 0u8;
    let iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: one vector of one byte.
    let got = unsafe {
        call6(
            libc::SYS_preadv2,
            fd as usize,
            &raw const iov as usize,
            1,
            offset as usize,
            0,
            RWF_NOWAIT,
        )
    };
    match got {
        1 => Ok(true),
        n if n == -i64::from(libc::EAGAIN) => Ok(false),
        n => Err(n),
    }
}

/// Bytes that storage has delivered to this process so far.
fn storage_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines()
        .find_map(|l| l.strip_prefix("read_bytes: "))?
        .trim()
        .parse()
        .ok()
}

/// Drops the file's pages until none of the first `bytes` is left; how many
/// are (at most 1 %), and by which method that was counted.
fn drop_pages(fd: i32, whole: u64, bytes: u64) -> Result<(u64, &'static str), Error> {
    const ATTEMPTS: u32 = 20;
    let pages = bytes.div_ceil(4096);
    for attempt in 1..=ATTEMPTS {
        // SAFETY: no pointers.
        unsafe { libc::posix_fadvise(fd, 0, whole as i64, libc::POSIX_FADV_DONTNEED) };
        let (left, method) = resident(fd, bytes)?;
        // In the end a page or two may be held by somebody who looks at all pages.
        if left == 0 || (attempt == ATTEMPTS && left * 100 <= pages) {
            return Ok((left, method));
        }
        if attempt == ATTEMPTS || (attempt >= 5 && left == pages) {
            return Err(Error::Unavailable(format!(
                "the file stays in memory: {left} of {pages} pages after POSIX_FADV_DONTNEED \
                 (a file system in memory? choose one on a disk with --dir)"
            )));
        }
        // Read-ahead that is still on its way cannot be dropped yet, and dirty
        // pages never.
        if attempt == 4 {
            // SAFETY: no pointers.
            unsafe { libc::fdatasync(fd) };
        }
        std::thread::sleep(std::time::Duration::from_micros(100 * u64::from(attempt)));
    }
    unreachable!("the last attempt returns")
}

/// Makes the next pass a cold one, and makes sure of it. `probe`: a descriptor
/// of the file without read-ahead, so that probing brings in nothing but the
/// probed pages, which are dropped again before the count that matters.
fn chill(fd: i32, probe: i32, whole: u64, bytes: u64, cold: &mut Cold) -> Result<(), Error> {
    drop_pages(fd, whole, bytes)?;
    for offset in [0, bytes / 2, bytes - 1] {
        if let Ok(there) = at_once(probe, offset) {
            cold.nowait_tried += 1;
            cold.nowait_again += u64::from(!there);
        }
        // Being refused has begun the reading: a page on its way stays.
        let mut byte = 0u8;
        // SAFETY: one byte.
        unsafe { libc::pread(probe, (&raw mut byte).cast(), 1, offset as i64) };
    }
    let (left, method) = drop_pages(fd, whole, bytes)?;
    cold.method = method.into();
    cold.passes += 1;
    cold.pages += bytes.div_ceil(4096);
    cold.resident += left;
    Ok(())
}

/// A descriptor that reads single pages, for [`chill`].
fn prober(fd: i32) -> Result<OwnedFd, Error> {
    let probe = reopen(fd, 0)?;
    // SAFETY: no pointers. It concerns this open file only.
    unsafe { libc::posix_fadvise(probe.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    Ok(probe)
}

/// Reads the first `bytes` once, so that they are in the cache.
///
/// # Errors
/// When the file cannot be read.
pub fn warm(fd: i32, bytes: u64) -> Result<(), Error> {
    if resident(fd, bytes)?.0 >= bytes.div_ceil(4096) {
        return Ok(());
    }
    let mut buffer = vec![0u8; 256 << 10];
    let mut at = 0;
    while at < bytes {
        // SAFETY: the buffer has that room.
        let got = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), at as i64) };
        if got <= 0 {
            return Err(os_error("reading the file for the page cache"));
        }
        at += got as u64;
    }
    Ok(())
}

// ---------------------------------------------------------------- ways

/// A buffer at an address that O_DIRECT accepts.
struct Buffer {
    at: *mut u8,
    layout: std::alloc::Layout,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(bytes.max(DIRECT_ALIGN), DIRECT_ALIGN)
            .expect("a size below isize::MAX and an alignment that is a power of two");
        // SAFETY: the size is not 0.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        if at.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Self { at, layout }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in new() with this layout.
        unsafe { std::alloc::dealloc(self.at, self.layout) };
    }
}

/// A descriptor of its own (own position, own flags) of the file behind `fd`.
fn reopen(fd: i32, flags: i32) -> Result<OwnedFd, Error> {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("no NUL");
    // SAFETY: a NUL-terminated path; owned at once.
    unsafe {
        let fd = check(
            libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | flags),
            "opening the file again",
        )?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

struct Stream(*mut libc::c_void);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: opened by debox_bench_stream_open, closed once.
        unsafe { debox_bench_stream_close(self.0) };
    }
}

/// One pass of n requests of one size; `false`: a request failed or was short.
type Pass = Box<dyn FnMut(u64) -> bool>;

fn pass(ctx: &Ctx, file: i32, way: &str, size: usize) -> Result<Pass, Error> {
    let buffer = Buffer::new(size);
    let to = buffer.at;
    let flags = if way == "direct" { libc::O_DIRECT } else { 0 };
    let fd = reopen(file, flags).map_err(|e| {
        if way == "direct" {
            Error::Unavailable(format!("O_DIRECT is refused by this file system: {e}"))
        } else {
            e
        }
    })?;
    let raw = fd.as_raw_fd();
    let want = size as i64;
    // In all ways `to` has `size` bytes and lives as long as the closure that
    // owns `buffer`.
    Ok(match way {
        // SAFETY: reads into the buffer, as above.
        "read" => Box::new(move |n| unsafe {
            let _keep = (&fd, &buffer);
            call3(libc::SYS_lseek, raw as usize, 0, libc::SEEK_SET as usize);
            (0..n).all(|_| call3(libc::SYS_read, raw as usize, to as usize, size) == want)
        }),
        // SAFETY: the same.
        "pread" | "direct" => Box::new(move |n| unsafe {
            let _keep = (&fd, &buffer);
            (0..n).all(|i| {
                let at = i as usize * size;
                call6(libc::SYS_pread64, raw as usize, to as usize, size, at, 0, 0) == want
            })
        }),
        "readv" => {
            // Four parts, as a message with headers has.
            let part = size / 4;
            let vectors: [libc::iovec; 4] = std::array::from_fn(|i| libc::iovec {
                // SAFETY: a quarter of the buffer, inside of it.
                iov_base: unsafe { to.add(i * part) }.cast(),
                iov_len: part,
            });
            // On the heap: the address must stay when the closure moves. Not in
            // a box, whose moves end every other way to its content.
            let vectors = vectors.to_vec();
            let at = vectors.as_ptr() as usize;
            // SAFETY: reads into the parts of the buffer.
            Box::new(move |n| unsafe {
                let _keep = (&fd, &buffer, &vectors);
                call3(libc::SYS_lseek, raw as usize, 0, libc::SEEK_SET as usize);
                (0..n).all(|_| call3(libc::SYS_readv, raw as usize, at, 4) == want)
            })
        }
        "fread" => {
            use std::os::fd::IntoRawFd;
            // SAFETY: a descriptor of ours, which the stream owns from now on.
            let stream = unsafe { debox_bench_stream_open(fd.into_raw_fd()) };
            if stream.is_null() {
                return Err(os_error("fdopen"));
            }
            let stream = Stream(stream);
            // SAFETY: an open stream, and the buffer as above.
            Box::new(move |n| unsafe {
                // The whole stream, not a copy of its pointer: it closes when dropped.
                let (_keep, stream) = (&buffer, &stream);
                debox_bench_stream_rewind(stream.0) == 0
                    && debox_bench_stream_read(stream.0, to, size, n as i64) == n as i64
            })
        }
        "mmap" => {
            let bytes = ctx.file_bytes as usize;
            // SAFETY: copies `size` bytes each from inside the mapping, which is as
            // long as the file (ours, nobody cuts it), into the buffer.
            Box::new(move |n| unsafe {
                let _keep = (&fd, &buffer);
                let from = libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ,
                    libc::MAP_SHARED,
                    raw,
                    0,
                );
                if from == libc::MAP_FAILED {
                    return false;
                }
                for i in 0..n as usize {
                    let here = from.cast::<u8>().add(i * size);
                    std::ptr::copy_nonoverlapping(here, to, size);
                    std::hint::black_box(to);
                }
                libc::munmap(from, bytes) == 0
            })
        }
        "io_uring" => {
            let mut ring = Ring::open(8)?;
            // SAFETY: each read has ended, into the buffer, before the next begins.
            Box::new(move |n| unsafe {
                let _keep = (&fd, &buffer);
                (0..n).all(|i| {
                    matches!(ring.read(raw, to, size as u32, i * size as u64),
                             Ok(got) if i64::from(got) == want)
                })
            })
        }
        _ => {
            // SAFETY: a literal path; owned at once.
            let sink = unsafe {
                OwnedFd::from_raw_fd(check(
                    libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC),
                    "opening /dev/null",
                )?)
            };
            let out = sink.as_raw_fd() as usize;
            // SAFETY: no memory of ours is involved.
            Box::new(move |n| unsafe {
                let _keep = (&fd, &buffer, &sink);
                call3(libc::SYS_lseek, raw as usize, 0, libc::SEEK_SET as usize);
                (0..n).all(|_| call6(libc::SYS_sendfile, out, raw as usize, 0, size, 0, 0) == want)
            })
        }
    })
}

fn case(
    ctx: &Ctx,
    file: i32,
    way: &'static str,
    size: usize,
    cold: Option<Rc<RefCell<Cold>>>,
) -> Case {
    let state = if cold.is_some() { "cold" } else { "warm" };
    let id = format!("read/{state}/{way}/{size}");
    if way == "direct" && !size.is_multiple_of(DIRECT_ALIGN) {
        return unavailable(
            id,
            &Error::Unavailable(format!(
                "O_DIRECT reads whole blocks of {DIRECT_ALIGN} bytes"
            )),
        );
    }
    let bytes = pass_bytes(ctx, size, cold.is_some());
    let requests = bytes / size as u64;
    let (clock, whole) = (ctx.clock, ctx.file_bytes);
    let mut made: Option<(Pass, OwnedFd)> = None;
    let ctx2 = ctx.clone();
    let name = id.clone();
    Case::new(id, move |_| {
        // Made at the first use, so that a hundred cases do not hold a
        // hundred descriptors and buffers from the beginning.
        let (pass, probe) = match &mut made {
            Some(made) => made,
            none => none.insert((pass(&ctx2, file, way, size)?, prober(file)?)),
        };
        match &cold {
            Some(c) => {
                let probe = probe.as_raw_fd();
                chill(file, probe, whole, bytes, &mut c.borrow_mut())?;
            }
            None => warm(file, bytes)?,
        }
        let before = cold.as_ref().and_then(|_| storage_bytes());
        let mut good = false;
        let took = clock.time(|| good = pass(requests));
        if !good {
            return Err(os_error(&name));
        }
        if let (Some(c), Some(before)) = (&cold, before) {
            let mut c = c.borrow_mut();
            c.bytes += bytes;
            c.storage_bytes += storage_bytes().unwrap_or(before) - before;
        }
        Ok(took)
    })
    .most(requests)
    .whole_batches()
    .fixed()
}

thread_local! {
    /// What the cold passes of this process have proved.
    static COLD: Rc<RefCell<Cold>> = Rc::default();
}

/// The proof so far; `None` when no pass was cold.
pub fn cold_proof() -> Option<Cold> {
    COLD.with(|c| (c.borrow().passes > 0).then(|| c.borrow().clone()))
}

pub fn sizes(quick: bool) -> &'static [usize] {
    if quick { &SIZES_QUICK } else { &SIZES }
}

/// One group for each state and size: the ways take turns.
pub fn groups(ctx: &Ctx) -> Vec<Make> {
    let mut found: Vec<Make> = Vec::new();
    let all = sizes(ctx.quick);
    for is_cold in [false, true] {
        for &size in all {
            // Cold passes take longer, and differ more.
            let share = if is_cold { 0.7 } else { 0.3 } / all.len() as f64;
            found.push(Box::new(move |ctx: &Ctx| {
                let cases = WAYS
                    .iter()
                    // O_DIRECT does not look at the cache: it has one state.
                    .filter(|way| is_cold || **way != "direct")
                    .map(|way| match ctx.file {
                        Some(file) => {
                            let cold = is_cold.then(|| COLD.with(Rc::clone));
                            case(ctx, file, way, size, cold)
                        }
                        None => unavailable(
                            format!(
                                "read/{}/{way}/{size}",
                                if is_cold { "cold" } else { "warm" }
                            ),
                            &Error::Unavailable("no file could be made; see the notes".into()),
                        ),
                    })
                    .collect();
                Ok(Group { cases, share })
            }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// The older way to count, for kernels before 6.5, says what the newer says.
    #[test]
    fn mincore_and_cachestat_agree() {
        let mut file = tempfile::tempfile_in(".").unwrap();
        file.write_all(&[7; 64 * 4096]).unwrap();
        file.sync_all().unwrap();
        let fd = file.as_raw_fd();
        let both = |bytes| {
            let (count, method) = resident(fd, bytes).unwrap();
            let older = resident_mincore(fd, bytes).unwrap();
            assert_eq!(count, older, "{method} against mincore");
            older
        };
        // Just written, so all there.
        assert_eq!(both(64 * 4096), 64);
        assert_eq!(both(5 * 4096), 5);
        let mut cold = Cold::default();
        let probe = prober(fd).unwrap();
        chill(fd, probe.as_raw_fd(), 64 * 4096, 64 * 4096, &mut cold).unwrap();
        assert_eq!(both(64 * 4096), 0);
        // One page is read, without read-ahead.
        let mut byte = [0u8];
        // SAFETY: one byte.
        unsafe { libc::pread(probe.as_raw_fd(), byte.as_mut_ptr().cast(), 1, 10 * 4096) };
        assert_eq!(both(64 * 4096), 1);
    }
}
