// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where did the time of a system call go?
//!
//! DeBox gives every system call a record: how long it took, how much of that
//! it was on a CPU, blocked (and where in the kernel), or waiting for a CPU.
//! This crate is the safe face of libdebox, which becomes a part of the program.
//! `make install` puts it under the prefix:
//! `cargo add --path /usr/local/share/debox/rust/debox`.
//!
//! ```
//! use std::fs::File;
//! use std::io::Read;
//!
//! let session = debox::Session::open()?;
//! let mut file = File::open("/proc/self/status")?;
//! let mut buf = [0u8; 4096];
//! let (result, record) = debox::call(|| file.read(&mut buf));
//! result?;
//! println!("{record}");
//! if let Some(wall) = record.wall() {
//!     assert!(wall.as_secs() < 10);
//! }
//! // Without a broker only wall times are measured, and this says why:
//! eprintln!("{}", session.why());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Span`] is the account of any stretch of a thread's execution, without a
//! system call of its own; [`history`] are the thread's last records.

mod chain;
mod record;
mod site;
#[allow(dead_code, non_camel_case_types)]
mod sys;

pub use chain::{Chain, ChainError, Link};
pub use debox_abi as abi;
pub use record::{Holder, Record, Sleep, Waker, call_name};
pub use site::{Site, SiteError};

use core::ffi::{c_char, c_int};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use debox_abi::{Pod, debox_info};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// Why could libdebox not start?
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "the socket path {0:?} contains a zero byte or is too long for a socket address (107 bytes); choose another"
    )]
    Path(std::path::PathBuf),
    #[error("libdebox refused its options: history {history} (at most 65536)")]
    Options { history: u32 },
    #[error("libdebox could not start: {0}")]
    System(#[source] io::Error),
}

/// Why is there no record?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    #[error("no call of this thread has finished yet")]
    NoCall,
    #[error("debox is closed; open a Session first")]
    Closed,
    #[error("the span was begun by another thread, or before a fork")]
    OtherThread,
    #[error("libdebox failed with error {0}")]
    Other(i32),
}

impl RecordError {
    fn from_code(code: c_int) -> Self {
        match code {
            -61 => Self::NoCall,
            -107 => Self::Closed,
            -18 => Self::OtherThread,
            other => Self::Other(other),
        }
    }
}

/// How much is measured?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Closed,
    /// A broker measures what happens inside calls.
    Measured,
    /// No broker: wall times only.
    WallOnly,
    /// The broker is gone; open again for a new one.
    Stale,
}

/// What [`Session`] may be told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    socket_path: Option<std::path::PathBuf>,
    max_sleeps: Option<u32>,
    history: u32,
    clock_gettime: bool,
    chains: bool,
    irq: bool,
}

impl Options {
    pub fn new() -> Self {
        Self::default()
    }

    /// The broker to ask; otherwise `$DEBOX_SOCKET`, otherwise the system's.
    pub fn socket_path(mut self, path: impl AsRef<Path>) -> Self {
        self.socket_path = Some(path.as_ref().to_owned());
        self
    }

    /// Sleeps kept in a record, 16 at most, which is the default.
    pub fn max_sleeps(mut self, n: u32) -> Self {
        self.max_sleeps = Some(n);
        self
    }

    /// Records kept per thread; 64 by default.
    pub fn history(mut self, n: u32) -> Self {
        self.history = n;
        self
    }

    /// Stamp with `clock_gettime` even where the processor's counter is usable.
    pub fn clock_gettime(mut self, yes: bool) -> Self {
        self.clock_gettime = yes;
        self
    }

    /// Records say what each sleep waited for: [`Sleep::chain`]. Costs a part of a
    /// microsecond a sleep.
    pub fn chains(mut self, yes: bool) -> Self {
        self.chains = yes;
        self
    }

    /// Measure interrupts that land in calls. It costs every interrupt of the machine
    /// a little; in a process that is open already it changes nothing.
    pub fn irq(mut self, yes: bool) -> Self {
        self.irq = yes;
        self
    }

    /// Starts recording in this process.
    pub fn open(self) -> Result<Session, OpenError> {
        let path = match &self.socket_path {
            None => None,
            Some(path) if path.as_os_str().len() > 107 => {
                return Err(OpenError::Path(path.clone()));
            }
            Some(path) => Some(
                CString::new(path.as_os_str().as_bytes())
                    .map_err(|_| OpenError::Path(path.clone()))?,
            ),
        };
        let options = sys::debox_options {
            size: size_of::<sys::debox_options>() as u32,
            flags: [
                (self.clock_gettime, sys::DEBOX_OPEN_CLOCK_GETTIME),
                (self.chains, sys::DEBOX_OPEN_CHAINS),
                (self.irq, sys::DEBOX_OPEN_IRQ),
            ]
            .iter()
            .filter(|(wanted, _)| *wanted)
            .fold(0, |flags, (_, flag)| flags | flag),
            socket_path: path.as_ref().map_or(core::ptr::null(), |p| p.as_ptr()),
            max_sleeps: match self.max_sleeps {
                None => 0,
                Some(0) => sys::DEBOX_SLEEPS_NONE,
                Some(n) => n,
            },
            history: self.history,
            reserved: [0; 8],
        };
        // SAFETY: `options` and the string it points to outlive the call.
        match unsafe { sys::debox_open(&options) } {
            0 => Ok(Session { _private: () }),
            -22 => Err(OpenError::Options {
                history: self.history,
            }),
            code => Err(OpenError::System(io::Error::from_raw_os_error(-code))),
        }
    }
}

/// Recording in this process, all its threads, and its future children.
///
/// There is one state per process: opening twice is harmless. Dropping a
/// session leaves recording on, as other parts of the program may use it;
/// [`Session::close`] ends it.
#[derive(Debug)]
pub struct Session {
    _private: (),
}

impl Session {
    /// Starts recording with the defaults. Needs no privilege, and succeeds
    /// without a broker: see [`Session::status`].
    pub fn open() -> Result<Self, OpenError> {
        Options::new().open()
    }

    pub fn status(&self) -> Status {
        // SAFETY: no arguments.
        match unsafe { sys::debox_status() } {
            sys::DEBOX_STATUS_MEASURED => Status::Measured,
            sys::DEBOX_STATUS_WALL_ONLY => Status::WallOnly,
            sys::DEBOX_STATUS_STALE => Status::Stale,
            code => {
                debug_assert_eq!(code, sys::DEBOX_STATUS_CLOSED);
                Status::Closed
            }
        }
    }

    /// Why is not everything measured, and what can be done? Empty when it is.
    pub fn why(&self) -> String {
        let mut text = [0u8; 640];
        // SAFETY: the buffer and its length belong together.
        unsafe { sys::debox_why(text.as_mut_ptr().cast::<c_char>(), text.len()) };
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }

    /// `DEBOX_FEATURE_*` bits that the broker has attached.
    pub fn features(&self) -> u64 {
        // SAFETY: no arguments.
        unsafe { sys::debox_features() }
    }

    /// Stops recording in every thread and gives the slots back.
    pub fn close(self) {
        // SAFETY: no arguments; other threads' open calls notice by themselves.
        unsafe { sys::debox_close() };
    }
}

/// A value that says what the kernel returned.
pub trait Outcome {
    /// The raw result, `-errno` on failure.
    fn raw(&self) -> i64;
}

fn errno() -> i64 {
    i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

macro_rules! outcome_signed {
    ($($t:ty)*) => { $(
        /// As libc has it: -1, and errno.
        impl Outcome for $t {
            fn raw(&self) -> i64 {
                if *self == -1 { -errno() } else { *self as i64 }
            }
        }
    )* };
}
outcome_signed!(i32 i64 isize);

macro_rules! outcome_unsigned {
    ($($t:ty)*) => { $(
        impl Outcome for $t {
            fn raw(&self) -> i64 {
                *self as i64
            }
        }
    )* };
}
outcome_unsigned!(u8 u16 u32 u64 usize);

impl Outcome for () {
    fn raw(&self) -> i64 {
        0
    }
}

impl<T> Outcome for *mut T {
    fn raw(&self) -> i64 {
        if self.addr() == usize::MAX {
            -errno()
        } else {
            self.addr() as i64
        }
    }
}

impl<T: Outcome> Outcome for io::Result<T> {
    fn raw(&self) -> i64 {
        match self {
            Ok(value) => value.raw(),
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(5)),
        }
    }
}

/// An open call; closed when dropped, also by a panic. By the pointer that the
/// library has kept: calls of signal handlers come to the frame by it meanwhile,
/// and a borrow of the frame would claim that nobody does.
struct Bracket(*mut sys::debox_frame);

impl Drop for Bracket {
    fn drop(&mut self) {
        // EINTR: the closure was left by a panic.
        // SAFETY: the frame was begun in `call_raw`, where it has stayed since.
        unsafe { sys::debox_frame_end(self.0, -4) };
    }
}

/// Runs `f`, which makes a system call, and returns its value and the call's
/// record. When there is none (debox is closed, or nested too deep), the
/// record has every field "not measured".
///
/// Calls may nest, also through signal handlers.
pub fn call<T: Outcome>(f: impl FnOnce() -> T) -> (T, Record) {
    call_raw(-1, f, T::raw)
}

/// The same with the system call's number known beforehand.
pub fn call_nr<T: Outcome>(nr: i32, f: impl FnOnce() -> T) -> (T, Record) {
    call_raw(nr, f, T::raw)
}

/// The same for a value of any type: `raw` tells the kernel's result from it.
#[inline(never)]
pub fn call_raw<T, F, R>(nr: i32, f: F, raw: R) -> (T, Record)
where
    F: FnOnce() -> T,
    R: FnOnce(&T) -> i64,
{
    let mut frame = MaybeUninit::uninit();
    // All that follows goes by this pointer.
    let frame: *mut sys::debox_frame = frame.as_mut_ptr();
    // The address of this monomorphic copy stands for the call site.
    let call_site = call_raw::<T, F, R> as fn(i32, F, R) -> (T, Record) as usize;
    // SAFETY: a local that stays in place until its call is ended: by the guard,
    // or below.
    unsafe { sys::debox_frame_begin(frame, nr, call_site as u64) };
    let bracket = Bracket(frame);
    let value = f();
    let ret = raw(&value);
    core::mem::forget(bracket);
    // SAFETY: as above; the guard is forgotten, so it ends once. Of the frame
    // `hot_` is always set, `seq_` where that is not null, and nothing else.
    let recorded = unsafe {
        sys::debox_frame_end(frame, ret);
        (!(*frame).hot_.is_null()).then(|| (*frame).seq_)
    };
    let record = match (recorded, last()) {
        (Some(seq), Ok(record)) if record.seq() == seq => record,
        _ => Record::new(debox_info::zeroed()),
    };
    (value, record)
}

fn info_empty() -> debox_info {
    debox_info {
        size: size_of::<debox_info>() as u32,
        ..debox_info::zeroed()
    }
}

/// The record of the thread's last finished call, also of interposed libc calls.
pub fn last() -> Result<Record, RecordError> {
    let mut info = info_empty();
    // SAFETY: `info` is a whole debox_info, and says so in `size`.
    match unsafe { sys::debox_last(&mut info) } {
        0 => Ok(Record::new(info)),
        code => Err(RecordError::from_code(code)),
    }
}

/// The thread's last records, and what is missing.
#[derive(Debug)]
pub struct History {
    /// Oldest first.
    pub records: Vec<Record>,
    /// Calls since the previous reading that are no longer to be had.
    pub lost: u64,
}

/// Reads up to `n` of the thread's last records.
pub fn history(n: u32) -> Result<History, RecordError> {
    let mut infos = vec![info_empty(); n as usize];
    let mut lost = 0;
    // SAFETY: `infos` has room for n whole structs, and the first tells their size.
    let code = unsafe { sys::debox_history_read(infos.as_mut_ptr(), n, &mut lost) };
    if code < 0 {
        return Err(RecordError::from_code(code));
    }
    infos.truncate(code as usize);
    Ok(History {
        records: infos.into_iter().map(Record::new).collect(),
        lost,
    })
}

/// A stretch of one thread's execution that has begun.
///
/// Begin and end read shared memory and make no system call.
///
/// ```
/// debox::Session::open()?;
/// let span = debox::Span::begin()?;
/// let sum: u64 = (0..1000).sum();
/// let account = span.end()?;
/// println!("{sum}: {account}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a span says something when it ends"]
pub struct Span {
    raw: sys::debox_span,
    /// A span belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Span {
    pub fn begin() -> Result<Self, RecordError> {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: on success the span is filled; on failure it is not used.
        match unsafe { sys::debox_span_begin(raw.as_mut_ptr()) } {
            0 => Ok(Self {
                // SAFETY: filled.
                raw: unsafe { raw.assume_init() },
                _thread: PhantomData,
            }),
            code => Err(RecordError::from_code(code)),
        }
    }

    /// The account from the beginning until now; the span goes on.
    pub fn so_far(&self) -> Result<Record, RecordError> {
        let mut info = info_empty();
        // SAFETY: a span of this thread's, and a whole debox_info.
        match unsafe { sys::debox_span_end(&self.raw, &mut info) } {
            0 => Ok(Record::new(info)),
            code => Err(RecordError::from_code(code)),
        }
    }

    pub fn end(self) -> Result<Record, RecordError> {
        self.so_far()
    }
}

/// The kernel functions that one call ran through.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// In the order in which they were entered.
    pub entries: Vec<TraceEntry>,
    /// Entries that found no room.
    pub dropped: u32,
    /// Made of static tracepoints: this kernel allows no probes on functions.
    pub coarse: bool,
}

/// One kernel function inside a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    pub function: String,
    /// Traced functions above it.
    pub depth: u16,
    /// After the call began.
    pub start: Duration,
    /// None: a tracepoint, or it had not returned. Sleeps are included.
    pub total: Option<Duration>,
    /// Of `total`: outside of traced functions that it called.
    pub own: Option<Duration>,
}

/// Traces every call of this thread from now on, with room for `max_entries`
/// entries each; 0 switches it off. The first thread of a process waits until
/// the kernel has attached the trace.
///
/// # Errors
/// [`RecordError`] as `debox_trace_set(3)` says: no broker, no permission, or
/// no way on this kernel.
pub fn trace_set(max_entries: u32) -> Result<(), RecordError> {
    // SAFETY: a plain call about the calling thread.
    match unsafe { sys::debox_trace_set(max_entries) } {
        0 => Ok(()),
        code => Err(RecordError::from_code(code)),
    }
}

/// The trace of the thread's last finished call.
///
/// # Errors
/// When the last call was not traced.
pub fn trace_last() -> Result<Trace, RecordError> {
    let mut raw = vec![debox_abi::debox_trace_entry::zeroed(); debox_abi::DEBOX_TRACE_MAX as usize];
    let (mut dropped, mut flags) = (0, 0);
    // SAFETY: `raw` has room for as many entries as are named.
    let read = unsafe {
        sys::debox_trace_read(raw.as_mut_ptr(), raw.len() as u32, &mut dropped, &mut flags)
    };
    if read < 0 {
        return Err(RecordError::from_code(read));
    }
    let entries = raw[..read as usize]
        .iter()
        .map(|e| {
            let timed = u32::from(e.flags)
                & (debox_abi::DEBOX_TRACE_OPEN | debox_abi::DEBOX_TRACE_POINT)
                == 0;
            // SAFETY: libdebox returns a string that ends with 0 and stays until
            // the library is closed; it is copied at once.
            let name = unsafe { core::ffi::CStr::from_ptr(sys::debox_trace_function(e.function)) };
            TraceEntry {
                function: name.to_string_lossy().into_owned(),
                depth: e.depth,
                start: Duration::from_nanos(e.start_ns),
                total: timed.then(|| Duration::from_nanos(e.total_ns)),
                own: timed.then(|| Duration::from_nanos(e.self_ns)),
            }
        })
        .collect();
    Ok(Trace {
        entries,
        dropped,
        coarse: flags & debox_abi::DEBOX_TRACE_FLAG_COARSE != 0,
    })
}
