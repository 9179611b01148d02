// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a call can be asked?

pub use crate::generated::NUMBERS;
use crate::generated::*;
use debox_abi::*;

/// Numbers of a call. The first ones are the kernel side's fields, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Number {
    Wall = NUMBER_WALL,
    Cpu = NUMBER_CPU,
    Blocked = NUMBER_BLOCKED,
    Runq = NUMBER_RUNQ,
    Retval = NUMBER_RETVAL,
    Minflt = NUMBER_MINFLT,
    Majflt = NUMBER_MAJFLT,
    Sleeps = NUMBER_SLEEPS,
    Preemptions = NUMBER_PREEMPTIONS,
    Pid = NUMBER_PID,
    Tid = NUMBER_TID,
    Waiters = NUMBER_WAITERS,
    /// Interrupts that landed in the call.
    Irq = NUMBER_IRQ,
    /// Minor and major page faults together.
    Faults = NUMBER_FAULTS,
    /// 0 for calls that did not fail.
    Errno = NUMBER_ERRNO,
}

impl Number {
    pub const ALL: [Number; NUMBERS] = [
        Number::Wall,
        Number::Cpu,
        Number::Blocked,
        Number::Runq,
        Number::Retval,
        Number::Minflt,
        Number::Majflt,
        Number::Sleeps,
        Number::Preemptions,
        Number::Pid,
        Number::Tid,
        Number::Waiters,
        Number::Irq,
        Number::Faults,
        Number::Errno,
    ];

    /// All values that it can have.
    pub fn domain(self) -> (i64, i64) {
        match self {
            Number::Retval => (i64::MIN, i64::MAX),
            Number::Errno => (0, ERRNO_MAX),
            _ => (0, i64::MAX),
        }
    }
}

/// The kernel's MAX_ERRNO: return values from -4095 to -1 are errors.
pub const ERRNO_MAX: i64 = crate::generated::ERRNO_MAX as i64;

// The order above is the kernel side's, and the parser's numbers are places in the lists.
const _: () = {
    assert!(Number::Wall as u32 == DEBOX_FIELD_WALL_NS);
    assert!(Number::Cpu as u32 == DEBOX_FIELD_CPU_NS);
    assert!(Number::Blocked as u32 == DEBOX_FIELD_BLOCKED_NS);
    assert!(Number::Runq as u32 == DEBOX_FIELD_RUNQ_NS);
    assert!(Number::Retval as u32 == DEBOX_FIELD_RETVAL);
    assert!(Number::Minflt as u32 == DEBOX_FIELD_MINOR_FAULTS);
    assert!(Number::Majflt as u32 == DEBOX_FIELD_MAJOR_FAULTS);
    assert!(Number::Sleeps as u32 == DEBOX_FIELD_SLEEPS);
    assert!(Number::Preemptions as u32 == DEBOX_FIELD_PREEMPTIONS);
    assert!(Number::Pid as u32 == DEBOX_FIELD_PID);
    assert!(Number::Tid as u32 == DEBOX_FIELD_TID);
    assert!(Number::Waiters as u32 == DEBOX_FIELD_WAITERS);
    assert!(Number::Irq as u32 == DEBOX_FIELD_IRQ_NS);
    assert!(Number::Faults as usize == DEBOX_FIELDS);
    let mut at = 0;
    while at < NUMBERS {
        assert!(Number::ALL[at] as usize == at);
        at += 1;
    }
    at = 0;
    while at < TextField::ALL.len() {
        assert!(TextField::ALL[at] as usize == at);
        at += 1;
    }
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum TextField {
    /// Of the places where the call slept.
    Label = TEXT_LABEL,
    /// The kernel functions of these places.
    Function = TEXT_FUNCTION,
    /// Command names of those who held locks that these sleeps waited for.
    Holder = TEXT_HOLDER,
    /// Where what these sleeps waited for ends.
    Root = TEXT_ROOT,
    /// Names and labels on the way there.
    Chain = TEXT_CHAIN,
    /// The thread's command name.
    Comm = TEXT_COMM,
    /// The program's function that made the call.
    Caller = TEXT_CALLER,
}

impl TextField {
    /// In the parser's order.
    pub const ALL: [TextField; 7] = [
        TextField::Label,
        TextField::Function,
        TextField::Holder,
        TextField::Root,
        TextField::Chain,
        TextField::Comm,
        TextField::Caller,
    ];
}
