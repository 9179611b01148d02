// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a kernel call cost that does next to nothing?

use super::Ctx;
use super::ring::Ring;
use crate::Error;
use crate::raw::{call3, check, errno_text};
use crate::sampling::Case;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub const NOPS_AT_ONCE: u32 = 32;
/// Beyond every table of system calls.
const NO_SUCH_CALL: i64 = 1_000_000;

fn calls(ctx: &Ctx, id: &str, call: impl Fn() -> i64 + 'static, expected: i64) -> Case {
    let clock = ctx.clock;
    let name = id.to_owned();
    Case::new(format!("trivial/{id}"), move |n| {
        let mut last = 0;
        let took = clock.time(|| {
            for _ in 0..n {
                last = call();
            }
        });
        // What is measured must be what was meant: a sandbox may answer EPERM.
        if (expected < 0 && last != expected) || (expected >= 0 && last < 0) {
            return Err(Error::Unavailable(format!(
                "{name} returned {last}{}",
                errno_text(last)
            )));
        }
        Ok(took)
    })
}

/// An empty function that the compiler cannot look into.
#[inline(never)]
fn nothing() -> i64 {
    std::hint::black_box(0)
}

pub fn cases(ctx: &Ctx) -> Result<Vec<Case>, Error> {
    let mut found = vec![
        // Shorter than the clock's step: never one at a time.
        calls(ctx, "function", || std::hint::black_box(nothing()), 0).whole_batches(),
    ];
    let clock = ctx.clock;
    found.push(
        Case::new("trivial/vdso", move |n| {
            Ok(clock.time(|| {
                for _ in 0..n {
                    std::hint::black_box(crate::clock::gettime_ns(libc::CLOCK_MONOTONIC));
                }
            }))
        })
        .whole_batches(),
    );
    for (id, nr) in [
        ("getpid", libc::SYS_getpid),
        ("getppid", libc::SYS_getppid),
        ("gettid", libc::SYS_gettid),
        ("getuid", libc::SYS_getuid),
    ] {
        // SAFETY: calls that touch no memory.
        found.push(calls(ctx, id, move || unsafe { call3(nr, 0, 0, 0) }, 0));
    }
    // Vectors and not boxes: moving a box into the closure ends every other way to
    // its content, and the kernel comes by one.
    // SAFETY: all-zero is a valid utsname.
    let mut name: Vec<libc::utsname> = vec![unsafe { std::mem::zeroed() }];
    let to = name.as_mut_ptr() as usize;
    found.push(calls(
        ctx,
        "uname",
        move || {
            let _keep = &name;
            // SAFETY: writes one utsname, which the closure keeps.
            unsafe { call3(libc::SYS_uname, to, 0, 0) }
        },
        0,
    ));
    // SAFETY: all-zero is a valid tms.
    let mut times: Vec<libc::tms> = vec![unsafe { std::mem::zeroed() }];
    let to = times.as_mut_ptr() as usize;
    found.push(calls(
        ctx,
        "times",
        move || {
            let _keep = &times;
            // SAFETY: writes one tms, which the closure keeps.
            unsafe { call3(libc::SYS_times, to, 0, 0) }
        },
        0,
    ));
    // SAFETY: all-zero is a valid timespec.
    let mut ts: Vec<libc::timespec> = vec![unsafe { std::mem::zeroed() }];
    let to = ts.as_mut_ptr() as usize;
    found.push(calls(
        ctx,
        "clock_gettime",
        move || {
            let _keep = &ts;
            // SAFETY: writes one timespec, which the closure keeps.
            unsafe {
                call3(
                    libc::SYS_clock_gettime,
                    libc::CLOCK_MONOTONIC as usize,
                    to,
                    0,
                )
            }
        },
        0,
    ));
    found.push(calls(
        ctx,
        "close-bad",
        // SAFETY: no descriptor has this number.
        || unsafe { call3(libc::SYS_close, usize::MAX, 0, 0) },
        -i64::from(libc::EBADF),
    ));
    // SAFETY: a literal path; the descriptor is owned at once.
    let zero = unsafe {
        OwnedFd::from_raw_fd(check(
            libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC),
            "opening /dev/zero",
        )?)
    };
    found.push(calls(
        ctx,
        "read-0",
        // SAFETY: reads 0 bytes.
        move || unsafe { call3(libc::SYS_read, zero.as_raw_fd() as usize, 8, 0) },
        0,
    ));
    // SAFETY: a literal path; the descriptor is owned at once.
    let null = unsafe {
        OwnedFd::from_raw_fd(check(
            libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC),
            "opening /dev/null",
        )?)
    };
    static BYTE: u8 = 0;
    found.push(calls(
        ctx,
        "write-null",
        // SAFETY: reads one byte of a static.
        move || unsafe {
            call3(
                libc::SYS_write,
                null.as_raw_fd() as usize,
                &raw const BYTE as usize,
                1,
            )
        },
        0,
    ));
    found.push(calls(
        ctx,
        "no-such-call",
        // SAFETY: there is no such call.
        || unsafe { call3(NO_SUCH_CALL, 0, 0, 0) },
        -i64::from(libc::ENOSYS),
    ));
    for (id, at_once) in [("io_uring-nop", 1), ("io_uring-nops", NOPS_AT_ONCE)] {
        let clock = ctx.clock;
        found.push(match Ring::open(64) {
            Ok(mut ring) => Case::new(format!("trivial/{id}"), move |n| {
                let mut bad = None;
                let took = clock.time(|| {
                    for _ in 0..n {
                        if let Err(e) = ring.nops(at_once) {
                            bad = Some(e);
                            break;
                        }
                    }
                });
                bad.map_or(Ok(took), Err)
            }),
            Err(error) => super::unavailable(format!("trivial/{id}"), &error),
        });
    }
    Ok(found)
}
