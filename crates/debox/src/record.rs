// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the record of a call say?

use crate::chain::Chain;
use crate::site::{Site, SiteError};
use crate::sys;
use core::ffi::CStr;
use core::fmt;
use debox_abi::*;
use std::time::Duration;

/// The account of one call, or of a span.
///
/// What was not measured is `None`, never a zero.
#[derive(Clone, Copy)]
pub struct Record {
    info: debox_info,
}

macro_rules! duration {
    ($(#[$doc:meta])* $name:ident, $bit:ident, $field:ident) => {
        $(#[$doc])*
        pub fn $name(&self) -> Option<Duration> {
            self.valid($bit).then(|| Duration::from_nanos(self.info.$field))
        }
    };
}

macro_rules! count {
    ($(#[$doc:meta])* $name:ident, $bit:ident) => {
        $(#[$doc])*
        pub fn $name(&self) -> Option<u32> {
            self.valid($bit).then_some(self.info.$name)
        }
    };
}

impl Record {
    pub(crate) fn new(info: debox_info) -> Self {
        Self { info }
    }

    fn valid(&self, bit: u64) -> bool {
        self.info.valid & bit != 0
    }

    fn flag(&self, flag: u32) -> bool {
        self.info.flags & flag != 0
    }

    /// The struct as shared with C.
    pub fn as_raw(&self) -> &debox_info {
        &self.info
    }

    /// The system call's number.
    pub fn nr(&self) -> Option<i32> {
        self.valid(DEBOX_VALID_NR).then_some(self.info.nr)
    }

    /// The system call's name.
    pub fn name(&self) -> Option<&'static str> {
        call_name(self.nr()?)
    }

    /// What the kernel returned: `-errno` on failure.
    pub fn retval(&self) -> Option<i64> {
        self.valid(DEBOX_VALID_RETVAL).then_some(self.info.retval)
    }

    /// The thread's running number of the call.
    pub fn seq(&self) -> u64 {
        self.info.call_seq
    }

    /// When the call began, on CLOCK_MONOTONIC.
    pub fn start(&self) -> Option<Duration> {
        self.valid(DEBOX_VALID_WALL)
            .then(|| Duration::from_nanos(self.info.start_ns))
    }

    duration!(
        /// The whole call: [`cpu`](Self::cpu) + [`blocked`](Self::blocked) + [`runq`](Self::runq),
        /// and [`irq`](Self::irq) where that is measured.
        wall, DEBOX_VALID_WALL, wall_ns);
    duration!(
        /// On a CPU.
        cpu, DEBOX_VALID_CPU, cpu_ns);
    duration!(
        /// Asleep until woken.
        blocked, DEBOX_VALID_BLOCKED, blocked_ns);
    duration!(
        /// Runnable, and waiting for a CPU.
        runq, DEBOX_VALID_RUNQ, runq_ns);
    duration!(
        /// Interrupts that landed in the call; measured on request ([`Options::irq`](crate::Options::irq)).
        irq, DEBOX_VALID_IRQ, irq_ns);
    duration!(
        /// Off the CPU in user mode beside the call; in a span, within it.
        outside, DEBOX_VALID_BLOCKED, outside_ns);
    count!(
        /// Page faults without input or output.
        minor_faults, DEBOX_VALID_FAULTS);
    count!(
        /// Page faults that waited for a device.
        major_faults, DEBOX_VALID_FAULTS);
    count!(
        /// Voluntary context switches.
        nvcsw, DEBOX_VALID_SWITCHES);
    count!(
        /// Involuntary context switches.
        nivcsw, DEBOX_VALID_SWITCHES);

    /// Where the call blocked, in order of first occurrence; at most 16 places.
    pub fn sleeps(&self) -> Option<impl ExactSizeIterator<Item = Sleep> + '_> {
        self.valid(DEBOX_VALID_SLEEPS).then(|| {
            self.info
                .sleeps_used()
                .iter()
                .map(|raw| Sleep { raw: *raw })
        })
    }

    /// Sleeps that found no room in the record, and their time.
    pub fn sleeps_dropped(&self) -> Option<(u32, Duration)> {
        self.valid(DEBOX_VALID_SLEEPS).then(|| {
            (
                self.info.sleeps_dropped,
                Duration::from_nanos(self.info.sleeps_dropped_ns),
            )
        })
    }

    /// The address in the program that made the call.
    pub fn call_site(&self) -> Option<u64> {
        self.valid(DEBOX_VALID_CALL_SITE)
            .then_some(self.info.call_site)
    }

    pub fn pid(&self) -> u32 {
        self.info.pid
    }

    pub fn tid(&self) -> u32 {
        self.info.tid
    }

    /// Calls that are summed up here: 1, or more for a span.
    pub fn calls(&self) -> u32 {
        self.info.calls
    }

    /// The broker was gone when the call ended.
    pub fn is_stale(&self) -> bool {
        self.flag(DEBOX_FLAG_STALE)
    }

    /// The call never returned, or has not yet.
    pub fn is_unfinished(&self) -> bool {
        self.flag(DEBOX_FLAG_UNFINISHED)
    }

    /// Nested calls overwrote what the kernel had measured.
    pub fn is_clobbered(&self) -> bool {
        self.flag(DEBOX_FLAG_CLOBBERED)
    }

    /// The program's spliced code stamped the call: nobody bracketed it.
    pub fn is_spliced(&self) -> bool {
        self.flag(DEBOX_FLAG_SPLICE)
    }

    /// This is the account of a span, not of one call.
    pub fn is_span(&self) -> bool {
        self.flag(DEBOX_FLAG_SPAN)
    }
}

/// `read` for 0 and so on; `None` for a number that is not known.
pub fn call_name(nr: i32) -> Option<&'static str> {
    // SAFETY: any number is allowed; the result is NULL or a string literal.
    unsafe {
        let name = sys::debox_call_name(nr);
        if name.is_null() {
            None
        } else {
            CStr::from_ptr(name).to_str().ok()
        }
    }
}

struct Part(Option<Duration>);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(duration) => write!(f, "{duration:?}"),
            None => f.write_str("not measured"),
        }
    }
}

/// One line: the call and where its time went.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_span() {
            write!(f, "span of {} calls", self.calls())?;
        } else {
            match (self.name(), self.nr()) {
                (Some(name), _) => f.write_str(name)?,
                (None, Some(nr)) => write!(f, "call {nr}")?,
                (None, None) => f.write_str("call")?,
            }
            if let Some(retval) = self.retval() {
                write!(f, " = {retval}")?;
            }
        }
        write!(
            f,
            ": wall {}, cpu {}, blocked {}, run queue {}",
            Part(self.wall()),
            Part(self.cpu()),
            Part(self.blocked()),
            Part(self.runq())
        )?;
        for sleep in self.sleeps().into_iter().flatten() {
            let label = sleep
                .text()
                .map(|site| site.label)
                .unwrap_or_else(|_| format!("site {}", sleep.site()));
            write!(f, "; {label} {}x {:?}", sleep.count(), sleep.total())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("name", &self.name())
            .field("nr", &self.nr())
            .field("retval", &self.retval())
            .field("wall", &self.wall())
            .field("cpu", &self.cpu())
            .field("blocked", &self.blocked())
            .field("runq", &self.runq())
            .field("minor_faults", &self.minor_faults())
            .field("major_faults", &self.major_faults())
            .field("sleeps", &self.sleeps().map(Iterator::collect::<Vec<_>>))
            .field("flags", &format_args!("{:#x}", self.info.flags))
            .finish()
    }
}

/// Who held the lock that a call slept on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// 0 when unknown, or withheld because it is another user's.
    pub tid: u32,
    pub comm: String,
    /// A reader is one of perhaps many: a hint.
    pub reader: bool,
}

/// Who woke a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waker {
    pub tid: u32,
    pub comm: String,
}

/// One place where a call blocked.
#[derive(Clone, Copy)]
pub struct Sleep {
    raw: debox_sleep,
}

impl Sleep {
    /// The struct as shared with C.
    pub fn as_raw(&self) -> &debox_sleep {
        &self.raw
    }

    /// The number of the place; [`Site::read`] has its text.
    pub fn site(&self) -> u32 {
        self.raw.site
    }

    /// Label, function, file and line of the place.
    pub fn text(&self) -> Result<Site, SiteError> {
        Site::read(self.raw.site)
    }

    /// How often the call blocked here.
    pub fn count(&self) -> u32 {
        self.raw.count
    }

    /// How long in all.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.raw.total_ns)
    }

    /// The longest time at once.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.raw.max_ns)
    }

    /// Other threads that waited for the same when the last sleep began, counted up to
    /// 64; `None` where that cannot be known.
    pub fn waiters_entry(&self) -> Option<u32> {
        (self.raw.flags & DEBOX_SLEEP_WAITERS_ENTRY != 0).then_some(self.raw.waiters_entry)
    }

    /// ... and when it ended.
    pub fn waiters_exit(&self) -> Option<u32> {
        (self.raw.flags & DEBOX_SLEEP_WAITERS_EXIT != 0).then_some(self.raw.waiters_exit)
    }

    /// Who held the lock; `None` where the kernel records no owner.
    pub fn holder(&self) -> Option<Holder> {
        (self.raw.holder_kind != DEBOX_HOLDER_NONE).then(|| Holder {
            tid: self.raw.holder_pid,
            comm: name_get(&self.raw.holder_comm).into_owned(),
            reader: self.raw.holder_kind == DEBOX_HOLDER_READER,
        })
    }

    /// What the longest of these sleeps waited for, and how much of it that explains
    /// (1.0 is all). `None` where it was not asked for ([`Options::chains`](crate::Options::chains)),
    /// or there was no room for more chains.
    pub fn chain(&self) -> Option<(Chain, f64)> {
        (self.raw.flags & DEBOX_SLEEP_CHAIN != 0 && self.raw.chain != 0).then(|| {
            let share = f64::from(self.raw.chain_permille) / 1000.0;
            (Chain::new(self.raw.chain), share)
        })
    }

    /// Who woke the call last.
    pub fn waker(&self) -> Option<Waker> {
        (self.raw.waker_pid != 0).then(|| Waker {
            tid: self.raw.waker_pid,
            comm: name_get(&self.raw.waker_comm).into_owned(),
        })
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("site", &self.site())
            .field("count", &self.count())
            .field("total", &self.total())
            .field("longest", &self.longest())
            .finish()
    }
}
