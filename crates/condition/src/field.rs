// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of a call can be asked?

use debox_abi::*;

/// Numbers of a call. The first ones are the kernel side's fields, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Number {
    Wall,
    Cpu,
    Blocked,
    Runq,
    Retval,
    Minflt,
    Majflt,
    Sleeps,
    Preemptions,
    Pid,
    Tid,
    Waiters,
    /// Interrupts that landed in the call.
    Irq,
    /// Minor and major page faults together.
    Faults,
    /// 0 for calls that did not fail.
    Errno,
}

pub const NUMBERS: usize = 15;

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
pub const ERRNO_MAX: i64 = 4095;

// The order above is the kernel side's.
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
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TextField {
    /// Of the places where the call slept.
    Label,
    /// The kernel functions of these places.
    Function,
    /// Command names of those who held locks that these sleeps waited for.
    Holder,
    /// Where what these sleeps waited for ends.
    Root,
    /// Names and labels on the way there.
    Chain,
    /// The thread's command name.
    Comm,
    /// The program's function that made the call.
    Caller,
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
