// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which addresses are the kernel's own code, and which of them
//! schedule() or the system calls' dispatch?

use std::ops::Range;

use debox_symbol::Functions;

/// Address ranges read once from /proc/kallsyms: kernel text does not move
/// while it runs.
#[derive(Debug, Default)]
pub struct KernelText {
    text: Range<u64>,
    schedule: Vec<Range<u64>>,
    dispatch: Vec<Range<u64>>,
}

/// Functions that call the system call's own, from a frame of random size; each
/// of them is called from one place only.
const DISPATCH: &[&str] = &[
    "do_syscall_64",
    "do_int80_syscall_32",
    "do_int80_emulation",
    "int80_emulation",
    "__do_fast_syscall_32",
    "do_fast_syscall_32",
];

impl KernelText {
    pub fn of(all: &Functions) -> KernelText {
        KernelText {
            text: all.address("_stext").unwrap_or(0)..all.address("_etext").unwrap_or(0),
            schedule: all.ranges(&["schedule"]),
            dispatch: all.ranges(DISPATCH),
        }
    }

    /// False where kallsyms hides its addresses: then nothing is ever signed
    /// and every stack is walked.
    pub fn known(&self) -> bool {
        self.text.start != 0 && self.text.end > self.text.start
    }

    pub fn contains(&self, address: u64) -> bool {
        self.text.contains(&address)
    }

    /// `address` is a return address: it belongs to the function before it. Not
    /// __schedule(), which do_task_dead() calls too, with a frame of its own.
    pub fn is_schedule(&self, address: u64) -> bool {
        self.schedule.iter().any(|r| r.contains(&(address - 1)))
    }

    /// The same.
    pub fn is_dispatch(&self, address: u64) -> bool {
        self.dispatch.iter().any(|r| r.contains(&(address - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_at_the_next_symbol_whatever_the_order() {
        let functions = Functions::read(
            &b"1000 T _stext\n3000 t schedule\n2000 t __schedule\n2800 t other\n3100 T pipe_read\n4000 T do_syscall_64\n\
               5000 T after\n9000 T _etext\n\
               a000 t schedule\t[module]\n"[..],
        )
        .unwrap();
        let text = KernelText::of(&functions);
        assert!(text.known());
        assert!(text.contains(0x2800) && !text.contains(0x9000));
        assert!(text.is_schedule(0x3001) && text.is_schedule(0x3100));
        assert!(!text.is_schedule(0x3000) && !text.is_schedule(0x3101));
        assert!(!text.is_schedule(0x2001), "__schedule");
        assert!(text.is_dispatch(0x4001) && text.is_dispatch(0x5000));
        assert!(!text.is_dispatch(0x4000) && !text.is_dispatch(0x5001));
        assert!(
            !text.is_schedule(0xa001),
            "a module's function of that name is not the kernel's"
        );
    }
}
