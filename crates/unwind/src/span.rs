// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which code does one source describe, and how long may looking for it take?

use std::time::Duration;

use crate::elf::Image;
use crate::{Error, Source};

/// CPU time of this thread: a busy machine must not turn files away.
pub struct Clock {
    end: Duration,
    limit: Duration,
}

impl Clock {
    pub fn new(limit: Duration) -> Clock {
        Clock {
            end: Clock::now().saturating_add(limit),
            limit,
        }
    }

    fn now() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a timespec of our own; the clock exists on
        // every kernel, so the call cannot fail.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    pub fn check(&self) -> Result<(), Error> {
        if Clock::now() <= self.end {
            return Ok(());
        }
        Err(Error::Time {
            limit_ms: self.limit.as_millis(),
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub enum SpanKind {
    /// An FDE of .eh_frame, by its offset.
    EhFrame(usize),
    /// An FDE of .debug_frame, by its offset.
    DebugFrame(usize),
    /// A function of Go's table, by its number.
    Go(usize),
    /// A signal trampoline, known by its instructions.
    Trampoline,
    /// A function of which no more than its name is known.
    Symbol,
}

/// One function, or the part of it that no better source covers.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Offsets in the file.
    pub start: u32,
    pub end: u32,
    /// Address − file offset, wrapping.
    pub delta: u64,
    pub kind: SpanKind,
    pub wrapper: bool,
}

impl Span {
    /// None if there is no code at `start`.
    pub fn new<S: Source + ?Sized>(
        image: &Image<'_, S>,
        start: u64,
        end: u64,
        kind: SpanKind,
    ) -> Option<Span> {
        let (from, to) = image.code(start, end)?;
        Some(Span {
            start: from,
            end: to,
            delta: start.wrapping_sub(u64::from(from)),
            kind,
            wrapper: false,
        })
    }
}
