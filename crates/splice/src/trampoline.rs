// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a trampoline do around its call?
//!
//! ```text
//! what stood before the call; the mark (stack pointer), number and begin of the call;
//! syscall; its sums; what stood after the call; jump back
//! ```
//!
//! rcx and r11 are free from before to after a `syscall`, by the instruction's definition,
//! and no stack is used: so nothing can be in the way of a red zone, of vfork, of a
//! thread's new stack. State lies in the thread's block, at GS. A signal handler may come at any
//! instruction and make calls itself: it finds the mark and leaves to the runtime
//! (`splice/runtime.c`) what follows from it; whatever the trampoline then reads
//! is as it was.
//!
//! Trampolines of another kind, which are made where somebody asked for them, leave both stamps out of most
//! calls that take little (`struct splice_sample`): those have a way of their own, behind all else.

use crate::site::{Site, Window};
use crate::state::{BUCKETS, NO_TIME, NRS, UNSTAMPED, block, row, row_of, sample, sample_of};
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, ax, byte_ptr, cl, dword_ptr, eax,
    ecx, edx, esi, qword_ptr, r10, r11, r11d, rax, rcx, rdx, rsp, word_ptr,
};
use iced_x86::{BlockEncoderOptions, Decoder, DecoderOptions, IcedError};

const MMAP: u32 = 9;
const MPROTECT: u32 = 10;
const SHMAT: u32 = 30;
const CLONE: u32 = 56;
const FORK: u32 = 57;
const VFORK: u32 = 58;
const EXECVE: u32 = 59;
const EXIT: u32 = 60;
const SETUID: u32 = 105;
const SETGID: u32 = 106;
const SETREUID: u32 = 113;
const SETREGID: u32 = 114;
const SETGROUPS: u32 = 116;
const SETRESUID: u32 = 117;
const SETRESGID: u32 = 119;
const SETFSUID: u32 = 122;
const SETFSGID: u32 = 123;
const CAPSET: u32 = 126;
const PRCTL: u32 = 157;
const ARCH_PRCTL: u32 = 158;
const EXIT_GROUP: u32 = 231;
const UNSHARE: u32 = 272;
const SETNS: u32 = 308;
const SECCOMP: u32 = 317;
const RESTART_SYSCALL: u32 = 219;
const EXECVEAT: u32 = 322;
const PKEY_MPROTECT: u32 = 329;
const CLONE3: u32 = 435;
const LANDLOCK_RESTRICT_SELF: u32 = 446;
const PROT_WRITE: i32 = 2;
const PROT_EXEC: i32 = 4;
/// Results from here on are errors.
const ERRORS_FROM: i32 = -4095;
/// 2^32 / the golden ratio: what is near to each other comes to lie far apart.
const SPREAD: i32 = 0x9e37_79b1_u32 as i32;

fn makes_a_thread(nr: u32) -> bool {
    matches!(nr, CLONE | FORK | VFORK | CLONE3)
}

/// Calls that the runtime is asked about, before and after. `mmap` only of code, `mprotect` of what may be code.
fn special(nr: u32) -> bool {
    makes_a_thread(nr)
        || matches!(
            nr,
            EXECVE | EXIT | PRCTL | ARCH_PRCTL | EXIT_GROUP | SECCOMP | EXECVEAT | SHMAT
        )
        || gives_up_rights(nr)
}

/// As the runtime has them.
fn gives_up_rights(nr: u32) -> bool {
    matches!(
        nr,
        SETUID
            | SETGID
            | SETREUID
            | SETREGID
            | SETGROUPS
            | SETRESUID
            | SETRESGID
            | SETFSUID
            | SETFSGID
            | CAPSET
            | UNSHARE
            | SETNS
            | LANDLOCK_RESTRICT_SELF
    )
}

fn state(offset: u64) -> AsmMemoryOperand {
    qword_ptr(offset).gs()
}

/// The bytes of the trampoline of a site, for this address. Addresses of the window and of
/// the trampoline are taken relative to each other only; both have to be shifted alike. `samples`: it asks which
/// calls are stamped.
pub(crate) fn trampoline(
    site: &Site,
    window: &Window,
    shift: u64,
    at: u64,
    samples: bool,
) -> Result<Vec<u8>, IcedError> {
    Writer::of(site, window, shift, samples)?.a.assemble(at)
}

/// Where in a trampoline goes on whoever stands in its window, by address in the file.
pub(crate) struct Places {
    /// Whoever is about to execute the instruction there: (its address, that in the trampoline).
    moved: Vec<(u64, u64)>,
    /// Whose call is under way or has just ended: one that the runtime is not asked about,
    plain: Option<u64>,
    /// and one that it is.
    asked: Option<u64>,
    nr: Option<u32>,
    /// Behind the `syscall` itself.
    back: u64,
}

impl Places {
    /// As of [`trampoline`].
    pub(crate) fn of(
        site: &Site,
        window: &Window,
        shift: u64,
        at: u64,
        samples: bool,
    ) -> Result<Self, IcedError> {
        let mut writer = Writer::of(site, window, shift, samples)?;
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let code = writer.a.assemble_options(at, options)?;
        let place = |label: &CodeLabel| code.label_ip(label).map(|ip| ip.wrapping_sub(shift));
        let moved = writer.moved.iter();
        Ok(Self {
            moved: moved
                .map(|(address, label)| Ok((address.wrapping_sub(shift), place(label)?)))
                .collect::<Result<_, IcedError>>()?,
            plain: writer.plain.as_ref().map(place).transpose()?,
            asked: writer.asked.as_ref().map(place).transpose()?,
            nr: site.nr,
            back: site.back(),
        })
    }

    /// Of a thread that stands at `ip`; `call`: the one that it is in, and its third argument. None:
    /// it cannot be told.
    pub(crate) fn next(&self, ip: u64, call: Option<(u32, u64)>) -> Option<u64> {
        let Some((nr, third)) = call.filter(|_| ip == self.back) else {
            let of = self.moved.iter().find(|(address, _)| *address == ip);
            return of.map(|(_, place)| *place);
        };
        match self.nr {
            Some(own) if own != nr && nr != RESTART_SYSCALL => None,
            Some(own) if special(own) => self.asked,
            Some(MMAP) if third & PROT_EXEC as u64 != 0 => self.asked,
            Some(_) => self.plain,
            // Which of its calls it is depends on more.
            None => self.plain.filter(|_| !special(nr) && nr != MMAP),
        }
    }
}

/// Of what follows a call: it was interrupted, and it has been counted but for its result.
#[derive(Clone, Copy)]
struct Ends {
    interrupted: CodeLabel,
    counted: CodeLabel,
}

/// The same for the begin of `_dl_find_object`, or where it is called: the runtime is asked first. It is as at that
/// begin: where it is called, the call leads here.
pub(crate) fn asked_first(window: &Window, shift: u64, at: u64) -> Result<Vec<u8>, IcedError> {
    let mut writer = Writer::new(None, false)?;
    let start = window.start.wrapping_add(shift);
    let mut goes_on = writer.a.create_label();
    writer.leave(block::FIND, goes_on)?;
    writer.a.set_label(&mut goes_on)?;
    if let Some(callee) = window.callee() {
        writer.a.jmp(callee.wrapping_add(shift))?;
        return writer.a.assemble(at);
    }
    for instruction in instructions(&window.bytes, start) {
        writer.a.add_instruction(instruction)?;
    }
    writer.a.jmp(start + window.bytes.len() as u64)?;
    writer.a.assemble(at)
}

fn instructions(bytes: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, address, DecoderOptions::NONE)
}

struct Writer {
    a: CodeAssembler,
    nr: Option<u32>,
    samples: bool,
    /// See [`Places`].
    moved: Vec<(u64, CodeLabel)>,
    plain: Option<CodeLabel>,
    asked: Option<CodeLabel>,
}

impl Writer {
    fn new(nr: Option<u32>, samples: bool) -> Result<Self, IcedError> {
        Ok(Self {
            a: CodeAssembler::new(64)?,
            nr,
            samples,
            moved: Vec::new(),
            plain: None,
            asked: None,
        })
    }

    /// The whole trampoline of a site.
    fn of(site: &Site, window: &Window, shift: u64, samples: bool) -> Result<Self, IcedError> {
        let mut writer = Self::new(site.nr, samples)?;
        let start = window.start.wrapping_add(shift);
        if let Some(callee) = site.callee() {
            writer.here(start)?;
            writer.call_in_place(callee.wrapping_add(shift))?;
            writer.a.jmp(start + window.bytes.len() as u64)?;
            return Ok(writer);
        }
        let call = window.before..window.before + 2;
        writer.moved(&window.bytes[..call.start], start)?;
        writer.here(start + call.start as u64)?;
        writer.call()?;
        writer.moved(&window.bytes[call.end..], start + call.end as u64)?;
        writer.here(start + window.bytes.len() as u64)?;
        writer.a.jmp(start + window.bytes.len() as u64)?;
        Ok(writer)
    }

    /// What stood at this address begins here.
    fn here(&mut self, address: u64) -> Result<(), IcedError> {
        let mut here = self.a.create_label();
        self.a.set_label(&mut here)?;
        self.moved.push((address, here));
        Ok(())
    }

    /// Offsets to what it names are set right as it is written.
    fn moved(&mut self, bytes: &[u8], address: u64) -> Result<(), IcedError> {
        for instruction in instructions(bytes, address) {
            self.here(instruction.ip())?;
            self.a.add_instruction(instruction)?;
        }
        Ok(())
    }

    /// Leaves to the runtime; it comes back to `to`.
    fn leave(&mut self, entry: u64, to: CodeLabel) -> Result<(), IcedError> {
        self.a.lea(r11, qword_ptr(to))?;
        self.a.jmp(state(entry))
    }

    fn call(&mut self) -> Result<(), IcedError> {
        let mut done = self.a.create_label();
        match self.nr {
            Some(nr) if special(nr) => self.special(done)?,
            Some(nr @ (MMAP | MPROTECT | PKEY_MPROTECT)) => {
                let mut of_code = self.a.create_label();
                let writes = if nr == MMAP { 0 } else { PROT_WRITE };
                self.a.test(edx, PROT_EXEC | writes)?;
                self.a.jne(of_code)?;
                self.plain(done)?;
                self.a.set_label(&mut of_code)?;
                self.special(done)?;
            }
            Some(_) => self.plain(done)?,
            None => self.by_register(done)?,
        }
        self.a.set_label(&mut done)?;
        // A label is of an instruction, and the next one may be decoded, not written.
        self.a.nop()
    }

    /// Which call it is is known as it is made.
    fn by_register(&mut self, done: CodeLabel) -> Result<(), IcedError> {
        let mut plain = self.a.create_label();
        let mut is_special = self.a.create_label();
        let mut a_thread = self.a.create_label();
        self.a.cmp(eax, NRS as i32)?;
        self.a.jae(plain)?;
        self.a.mov(ecx, eax)?;
        self.a.cmp(byte_ptr(rcx + block::SPECIAL as i32).gs(), 0)?;
        self.a.jne(is_special)?;
        self.a.set_label(&mut plain)?;
        self.plain(done)?;
        self.a.set_label(&mut is_special)?;
        for nr in [CLONE, FORK, VFORK, CLONE3] {
            self.a.cmp(eax, nr as i32)?;
            self.a.je(a_thread)?;
        }
        for nr in [EXECVE, EXECVEAT] {
            let mut other = self.a.create_label();
            self.a.cmp(eax, nr as i32)?;
            self.a.jne(other)?;
            self.around(nr as i32, None, done)?;
            self.a.set_label(&mut other)?;
            self.a.nop()?;
        }
        self.around(-1, None, done)?;
        self.a.set_label(&mut a_thread)?;
        self.around(CLONE as i32, None, done)
    }

    fn special(&mut self, done: CodeLabel) -> Result<(), IcedError> {
        let nr = self.nr.unwrap_or(NRS);
        let family = if makes_a_thread(nr) { CLONE } else { nr };
        self.around(family as i32, Some(nr), done)
    }

    /// The call between two of the runtime's.
    fn around(&mut self, family: i32, nr: Option<u32>, done: CodeLabel) -> Result<(), IcedError> {
        let mut call = self.a.create_label();
        match nr {
            Some(nr) => {
                self.a.mov(ecx, nr as i32)?;
                self.a.mov(eax, nr as i32)?;
            }
            None => self.a.mov(ecx, eax)?,
        }
        self.leave(block::BEFORE, call)?;
        self.a.set_label(&mut call)?;
        self.a.syscall()?;
        let mut back = self.a.create_label();
        self.a.set_label(&mut back)?;
        self.asked = Some(back);
        self.a.mov(ecx, family)?;
        self.leave(block::AFTER, done)
    }

    /// rax = the time stamp counter; rdx is lost.
    fn ticks(&mut self) -> Result<(), IcedError> {
        self.a.rdtsc()?;
        self.a.shl(rdx, 32)?;
        self.a.or(rax, rdx)
    }

    /// A word of what is known of the number's samples; of one that is known as it is made, `by` leads there.
    fn sample(&self, field: u64, by: AsmRegister64) -> AsmMemoryOperand {
        match self.nr {
            Some(nr) => dword_ptr(sample_of(nr) + field).gs(),
            None => dword_ptr(by + (block::SAMPLE + field) as i32).gs(),
        }
    }

    /// Whether this call is stamped. r11 is its number, if that is known as it is made, and then leads to what is
    /// known of its samples; rax is lost.
    fn asks(&mut self, unstamped: CodeLabel) -> Result<(), IcedError> {
        if self.nr.is_none() {
            self.a.mov(eax, NRS as i32 - 1)?;
            self.a.cmp(r11d, eax)?;
            self.a.cmova(r11d, eax)?;
            self.a.shl(r11d, sample::BYTES.ilog2())?;
        }
        let skip = self.sample(sample::SKIP, r11);
        self.a.cmp(skip, 0)?;
        self.a.jne(unstamped)
    }

    /// It is; so many of the next ones are not. By the last stamp: what calls come in turns is not known, and
    /// each of them is to be met. rax and rdx are lost.
    fn skips(&mut self) -> Result<(), IcedError> {
        let (span, skip) = (
            self.sample(sample::SPAN, r11),
            self.sample(sample::SKIP, r11),
        );
        self.a.mov(eax, dword_ptr(block::START).gs())?;
        self.a.imul_3(eax, eax, SPREAD)?;
        self.a.mul(span)?;
        self.a.mov(skip, edx)
    }

    /// A call that is not stamped begins; its `start` is no time, but no other call's either. What handlers
    /// call from here on is called within it.
    fn begins_unstamped(&mut self, stamped: CodeLabel) -> Result<(), IcedError> {
        let (span, skip) = (
            self.sample(sample::SPAN, r11),
            self.sample(sample::SKIP, r11),
        );
        // All are from now on.
        self.a.cmp(span, 0)?;
        self.a.je(stamped)?;
        self.a.sub(skip, 1)?;
        self.a.inc(state(block::START))?;
        self.a.mov(state(block::INNER_START), 0)?;
        self.a.mov(dword_ptr(block::TIMED).gs(), UNSTAMPED as i32)
    }

    /// ... and what follows it.
    fn ended_unstamped(&mut self, ends: Ends) -> Result<(), IcedError> {
        self.a.mov(rcx, rdx)?;
        self.a.mov(r11, rax)?;
        self.a.cmp(state(block::OPEN), rsp)?;
        self.a.jne(ends.interrupted)?;
        self.a.mov(dword_ptr(block::TIMED).gs(), 2)?;
        if self.nr.is_none() {
            self.number()?;
            self.a.shl(ecx, sample::BYTES.ilog2())?;
        }
        let long = |field: u64| match self.nr {
            Some(nr) => state(sample_of(nr) + field),
            None => qword_ptr(rcx + (block::SAMPLE + field) as i32).gs(),
        };
        let estimate = self.sample(sample::ESTIMATE_NS, rcx);
        let (unstamped, estimated) = (long(sample::UNSTAMPED), long(sample::ESTIMATED_NS));
        self.a.mov(eax, estimate)?;
        self.a.mov(state(block::LAST_NS), NO_TIME as i32)?;
        self.a.mov(state(block::LAST_RESULT), r11)?;
        self.a.inc(dword_ptr(block::CALLS).gs())?;
        self.a.inc(unstamped)?;
        self.a.add(estimated, rax)?;
        self.a.add(state(block::CALLED_NS), rax)?;
        self.row()?;
        self.a.inc(self.of_row(row::COUNT))?;
        // Of no bucket, and so not shown.
        self.a.xor(eax, eax)?;
        self.a.jmp(ends.counted)
    }

    /// The call begins now. rdx is in `kept` meanwhile, rax is lost.
    fn begins(&mut self, kept: AsmRegister64) -> Result<(), IcedError> {
        self.a.mov(kept, rdx)?;
        if self.samples {
            self.skips()?;
        }
        self.ticks()?;
        self.a.mov(state(block::START), rax)?;
        self.a.mov(dword_ptr(block::TIMED).gs(), 1)?;
        self.a.mov(rdx, kept)
    }

    /// The call is made by a function that is called with (cancelled, number, six arguments): so rax, r10 and
    /// r11 are free before, and all that a function may change is after.
    fn call_in_place(&mut self, callee: u64) -> Result<(), IcedError> {
        let mut done = self.a.create_label();
        let mut call = self.a.create_label();
        let mut interrupts = self.a.create_label();
        let mut looked = self.a.create_label();
        let mut stamped = self.a.create_label();
        let mut unstamped = self.a.create_label();
        self.a.mov(r11d, esi)?;
        self.a.cmp(state(block::OPEN), 0)?;
        self.a.jne(interrupts)?;
        self.a.mov(state(block::OPEN), rsp)?;
        self.a.mov(state(block::NR), r11)?;
        if self.samples {
            self.asks(unstamped)?;
        }
        self.a.set_label(&mut stamped)?;
        self.begins(r10)?;
        self.a.set_label(&mut call)?;
        self.a.call(callee)?;
        let ends = self.ended(done)?;
        if self.samples {
            self.a.set_label(&mut unstamped)?;
            self.begins_unstamped(stamped)?;
            self.a.call(callee)?;
            self.ended_unstamped(ends)?;
        }

        // The runtime keeps all but rcx and r11.
        self.a.set_label(&mut interrupts)?;
        self.a.mov(r10, rcx)?;
        self.a.mov(eax, esi)?;
        self.leave(block::ENTER, looked)?;
        self.a.set_label(&mut looked)?;
        self.a.mov(rcx, r10)?;
        self.a.jmp(call)?;
        self.a.set_label(&mut done)?;
        self.a.nop()
    }

    fn plain(&mut self, done: CodeLabel) -> Result<(), IcedError> {
        let mut call = self.a.create_label();
        let mut interrupts = self.a.create_label();
        let mut stamped = self.a.create_label();
        let mut unstamped = self.a.create_label();
        // Somebody's call is open: this one is a handler's, or a handler jumped out of that.
        self.a.cmp(state(block::OPEN), 0)?;
        self.a.jne(interrupts)?;
        self.a.mov(state(block::OPEN), rsp)?;
        match self.nr {
            // Not timed yet.
            Some(nr) => self.a.mov(state(block::NR), nr as i32)?,
            None => {
                self.a.mov(r11d, eax)?;
                self.a.mov(state(block::NR), r11)?;
            }
        }
        if self.samples {
            self.asks(unstamped)?;
        }
        self.a.set_label(&mut stamped)?;
        self.begins(rcx)?;
        match self.nr {
            None if !self.samples => self.a.mov(eax, r11d)?,
            _ => self.call_number()?,
        }
        self.a.set_label(&mut call)?;
        self.a.syscall()?;
        let ends = self.ended(done)?;
        if self.samples {
            self.a.set_label(&mut unstamped)?;
            self.begins_unstamped(stamped)?;
            self.call_number()?;
            self.a.syscall()?;
            self.ended_unstamped(ends)?;
        }

        self.a.set_label(&mut interrupts)?;
        if let Some(nr) = self.nr {
            self.a.mov(eax, nr as i32)?;
        }
        self.leave(block::ENTER, call)
    }

    /// eax = the number, which is in the block.
    fn call_number(&mut self) -> Result<(), IcedError> {
        match self.nr {
            Some(nr) => self.a.mov(eax, nr as i32),
            None => self.a.mov(eax, dword_ptr(block::NR).gs()),
        }
    }

    /// What follows the call.
    fn ended(&mut self, done: CodeLabel) -> Result<Ends, IcedError> {
        let mut interrupted = self.a.create_label();
        let mut back = self.a.create_label();
        self.a.set_label(&mut back)?;
        self.plain = Some(back);
        self.a.mov(rcx, rdx)?;
        self.a.mov(r11, rax)?;
        self.a.cmp(state(block::OPEN), rsp)?;
        self.a.jne(interrupted)?;
        // Ended; before the stamp, behind which an interrupt comes that had to wait for it: how long
        // the thread is kept there is not the call's.
        self.a.mov(dword_ptr(block::TIMED).gs(), 2)?;
        self.ticks()?;
        let counted = self.sums()?;
        self.a.jmp(done)?;

        self.a.set_label(&mut interrupted)?;
        self.a.mov(rax, r11)?;
        self.a.mov(rdx, rcx)?;
        self.a.mov(ecx, self.nr.map_or(-1, |nr| nr as i32))?;
        self.leave(block::EXIT, done)?;
        Ok(Ends {
            interrupted,
            counted,
        })
    }

    /// ecx = the number of a call that is known as it is made, as it is counted.
    fn number(&mut self) -> Result<(), IcedError> {
        let mut known = self.a.create_label();
        self.a.mov(ecx, dword_ptr(block::NR).gs())?;
        self.a.cmp(ecx, NRS as i32)?;
        self.a.jb(known)?;
        self.a.mov(ecx, NRS as i32 - 1)?;
        self.a.set_label(&mut known)?;
        self.a.nop()
    }

    /// rcx leads to its row.
    fn row(&mut self) -> Result<(), IcedError> {
        if self.nr.is_some() {
            return Ok(());
        }
        self.number()?;
        (self.a).movzx(ecx, word_ptr(rcx * 2 + block::ROW as i32).gs())?;
        self.a.imul_3(ecx, ecx, row::BYTES as i32)
    }

    fn of_row(&self, offset: u64) -> AsmMemoryOperand {
        match self.nr {
            Some(nr) => qword_ptr(row_of(nr) + offset).gs(),
            None => qword_ptr(rcx + (block::ROWS + offset) as i32).gs(),
        }
    }

    /// rax: now; rcx: the program's rdx; r11: the result. Ends with these back in place. Where it is counted but
    /// for its result, eax is its bucket, and rcx leads to the row of a call that is known as it is made. No register of the
    /// program is kept in the block, which another thread that gives up rights replaces by a copy (`cut_off` of
    /// splice/runtime.c).
    fn sums(&mut self) -> Result<CodeLabel, IcedError> {
        let mut backwards = self.a.create_label();
        let mut scaled = self.a.create_label();
        let mut longest = self.a.create_label();
        let mut counted = self.a.create_label();
        let mut short = self.a.create_label();
        let mut long = self.a.create_label();
        let mut in_bucket = self.a.create_label();
        let mut failed = self.a.create_label();
        let mut one = self.a.create_label();
        let mut end = self.a.create_label();
        let mut judged = self.a.create_label();
        let nr = self.nr;
        self.a.sub(rax, state(block::START))?;
        self.a.jb(backwards)?;
        // ns = ticks x rate >> 32
        self.a.mul(state(block::RATE))?;
        self.a.shrd(rax, rdx, 32u32)?;
        self.a.set_label(&mut scaled)?;
        self.a.mov(rdx, rcx)?;
        self.a.mov(state(block::LAST_NS), rax)?;
        self.a.mov(state(block::LAST_RESULT), r11)?;
        self.row()?;
        self.a.inc(dword_ptr(block::CALLS).gs())?;
        self.a.inc(self.of_row(row::COUNT))?;
        self.a.add(self.of_row(row::WALL_NS), rax)?;
        self.a.add(state(block::CALLED_NS), rax)?;
        self.a.cmp(rax, self.of_row(row::MAX_NS))?;
        self.a.ja(longest)?;
        self.a.set_label(&mut counted)?;
        // 8 buckets for each power of two from 2^4 to 2^40; as debox_bucket_.
        self.a.cmp(rax, 16)?;
        self.a.jb(short)?;
        self.a.bsr(rcx, rax)?;
        self.a.sub(ecx, 3)?;
        self.a.shr(rax, cl)?;
        self.a.lea(rax, qword_ptr(rax + rcx * 8))?;
        self.a.cmp(eax, BUCKETS as i32 + 14)?;
        self.a.ja(long)?;
        self.a.set_label(&mut in_bucket)?;
        self.row()?;
        let buckets = row::HIST as i64 - 4 * 15;
        match nr {
            Some(nr) => self
                .a
                .inc(dword_ptr(rax * 4 + (row_of(nr) as i64 + buckets)).gs())?,
            None => self
                .a
                .inc(dword_ptr(rcx + rax * 4 + (block::ROWS as i64 + buckets)).gs())?,
        }
        self.a.set_label(&mut judged)?;
        self.a.cmp(r11, ERRORS_FROM)?;
        self.a.jae(failed)?;
        self.a.cmp(r11, 1)?;
        self.a.je(one)?;
        self.a.set_label(&mut end)?;
        let mut shown = self.a.create_label();
        let mut over = self.a.create_label();
        // rax is its bucket still.
        match nr {
            Some(nr) => {
                let of = block::DOORS + 2 * u64::from(nr.min(NRS - 1));
                self.a.cmp(ax, word_ptr(of).gs())?;
            }
            None => {
                self.number()?;
                self.a
                    .cmp(ax, word_ptr(rcx * 2 + block::DOORS as i32).gs())?;
            }
        }
        self.a.mov(rax, r11)?;
        self.a.jae(shown)?;
        self.a.mov(state(block::OPEN), 0)?;
        self.a.jmp(over)?;

        self.a.set_label(&mut shown)?;
        self.leave(block::DOOR, over)?;

        self.a.set_label(&mut backwards)?;
        self.a.xor(eax, eax)?;
        self.a.jmp(scaled)?;
        self.a.set_label(&mut longest)?;
        self.a.mov(self.of_row(row::MAX_NS), rax)?;
        self.a.jmp(counted)?;
        self.a.set_label(&mut short)?;
        self.a.mov(eax, 15)?;
        self.a.jmp(in_bucket)?;
        self.a.set_label(&mut long)?;
        self.a.mov(eax, BUCKETS as i32 + 14)?;
        self.a.jmp(in_bucket)?;
        self.a.set_label(&mut failed)?;
        self.a.inc(dword_ptr(block::FAILED).gs())?;
        self.a.inc(self.of_row(row::ERRORS))?;
        self.a.cmp(r11, -libc::ENOENT)?;
        self.a.jne(end)?;
        self.a.inc(self.of_row(row::MISSING))?;
        self.a.jmp(end)?;
        self.a.set_label(&mut one)?;
        self.a.inc(self.of_row(row::ONES))?;
        self.a.jmp(end)?;
        self.a.set_label(&mut over)?;
        self.a.nop()?;
        Ok(judged)
    }
}
