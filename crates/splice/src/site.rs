// SPDX-License-Identifier: MIT OR Apache-2.0
//! What around a `syscall` instruction can move, so that a jump has room?

use crate::code::Code;
use crate::in_place::{InPlace, callers_of};
use crate::target::Targets;
use crate::{JUMP_BYTES, WINDOW_BYTES_MAX};
use iced_x86::{
    Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};
use std::ops::Range;

/// The call that ends a signal handler: its frame is known by the bytes at its return address.
const RT_SIGRETURN: u32 = 15;
/// `syscall`.
const BYTES: [u8; 2] = [0x0f, 0x05];

/// Why a site has no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Unwinders and the kernel know the return from a signal handler by its bytes.
    SignalReturn,
    /// Something jumps to where the jump to the trampoline would have its later bytes.
    JumpedInto,
    /// The instructions around it cannot be moved.
    NothingMoves,
    /// What follows uses flags from before the call.
    FlagsKept,
    /// Its function cannot be read to its end.
    NotRead,
    /// No function is known there: it may be data.
    NotKnown,
    /// `int $0x80` or `sysenter`, or a `syscall` with prefixes, which it needs not.
    OtherWay,
    /// It stays where it is: what calls its function is replaced (`in_place.rs`).
    InPlace,
    /// The file works with the address of a call of its function, or of what comes behind it: so that a
    /// signal handler knows how far a call came (valgrind).
    Compared,
}

/// Whole instructions that a jump to the trampoline takes the place of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Address of its first byte.
    pub start: u64,
    /// All of its bytes, as they are in the file.
    pub bytes: Vec<u8>,
    /// Bytes before the `syscall`, and where in them offsets lie that are relative to the
    /// instruction's end: (offset of the 32 bits, end of the instruction), from `start`.
    pub before: usize,
    pub relative: Vec<(u8, u8)>,
}

impl Window {
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The function that is called there, of one that is nothing but that instruction.
    pub fn callee(&self) -> Option<u64> {
        match self.bytes[..] {
            [CALL, a, b, c, d] if self.before == 0 => {
                let way = i32::from_le_bytes([a, b, c, d]);
                Some(self.end().wrapping_add_signed(way.into()))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Of the `syscall`, or of the instruction that calls the function that has it.
    pub address: u64,
    /// The call, where the code says it; else a register does.
    pub nr: Option<u32>,
    pub window: Result<Window, Left>,
}

pub(crate) const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `call rel32`.
const CALL: u8 = 0xe8;

impl Site {
    /// Where its call returns to.
    pub fn back(&self) -> u64 {
        let bytes = match self.callee() {
            Some(_) => JUMP_BYTES,
            None => BYTES.len(),
        };
        self.address.wrapping_add(bytes as u64)
    }

    /// The function that makes the call, where it is not made in the trampoline.
    pub fn callee(&self) -> Option<u64> {
        self.window.as_ref().ok()?.callee()
    }
}

/// All sites of a file, by address.
pub(crate) fn sites(code: &Code<'_>, targets: &Targets, in_place: Option<&InPlace>) -> Vec<Site> {
    let mut sites = Vec::new();
    let mut info = InstructionInfoFactory::new();
    for function in &code.functions {
        let Some(bytes) = code.bytes(function) else {
            continue;
        };
        if bytes
            .windows(2)
            .any(|two| two == BYTES || matches!(two, [0xcd, 0x80] | [0x0f, 0x34]))
        {
            let first = sites.len();
            let of = Of {
                function,
                bytes,
                targets,
                pushes: !code.is_unwound(function),
            };
            of_function(&of, &mut info, &mut sites);
            compared(&mut sites[first..], targets, in_place);
        }
    }
    for gap in code.gaps() {
        let bytes = code.bytes(&gap).unwrap_or_default();
        let found = bytes
            .windows(2)
            .enumerate()
            .filter(|(_, two)| *two == BYTES)
            .map(|(at, _)| gap.start + at as u64)
            .filter(|address| !code.is_data(*address));
        sites.extend(found.map(|address| Site {
            address,
            nr: None,
            window: Err(Left::NotKnown),
        }));
    }
    if let Some(in_place) = in_place {
        for site in &mut sites {
            if site.address == in_place.syscall {
                site.window = Err(Left::InPlace);
            }
        }
        let callers = in_place.callers.iter();
        sites.extend(callers.filter_map(|address| calling(code, targets, *address)));
    }
    sites.sort_by_key(|site| site.address);
    drop_overlaps(&mut sites);
    sites
}

/// None of one function: the range that a handler compares with has all of them.
fn compared(sites: &mut [Site], targets: &Targets, in_place: Option<&InPlace>) {
    let is = |site: &Site| {
        let in_place = in_place.is_some_and(|of| of.syscall == site.address);
        !in_place && (targets.is_named(site.address) || targets.is_named(site.back()))
    };
    if sites.iter().any(is) {
        for site in sites {
            site.window = Err(Left::Compared);
        }
    }
}

/// Of an instruction that calls the function whose call is made in place.
fn calling(code: &Code<'_>, targets: &Targets, address: u64) -> Option<Site> {
    Some(Site {
        address,
        nr: None,
        window: call(code, targets, address)?,
    })
}

/// An instruction that calls, by itself.
fn call(code: &Code<'_>, targets: &Targets, address: u64) -> Option<Result<Window, Left>> {
    let end = address + JUMP_BYTES as u64;
    let bytes = code.bytes(&(address..end))?;
    Some(match targets.between(address, end) {
        true => Err(Left::JumpedInto),
        false => Ok(Window {
            start: address,
            bytes: bytes.to_vec(),
            before: 0,
            relative: Vec::new(),
        }),
    })
}

/// Of a table.
const ASKS_MOST: usize = u8::MAX as usize;

/// Where `_dl_find_object` is asked, so that the runtime can be first: its begin, or, of a whole program in which no
/// jump has room there, all instructions that call it. Empty: that cannot be.
pub(crate) fn asks(code: &Code<'_>, targets: &Targets) -> Vec<Window> {
    let Some(begin) = code.find_object else {
        return Vec::new();
    };
    if let Some(window) = entry(code, targets, begin) {
        return vec![window];
    }
    let callers = (callers_of(code, begin).filter(|_| code.is_whole)).unwrap_or_default();
    let calls = callers.iter().map(|at| call(code, targets, *at)?.ok());
    let calls = calls.collect::<Option<Vec<Window>>>();
    (calls.filter(|calls| calls.len() <= ASKS_MOST)).unwrap_or_default()
}

/// Whole instructions at the begin of a function that a jump can take the place of; what came
/// before it is where it was called.
fn entry(code: &Code<'_>, targets: &Targets, address: u64) -> Option<Window> {
    let function = code
        .functions
        .iter()
        .find(|function| function.start == address)?;
    // The mark of control-flow enforcement stays: whoever comes by a pointer has to land on it.
    let (address, function) = match code.bytes(function)?.starts_with(&ENDBR64) {
        true => (address + 4, address + 4..function.end),
        false => (address, function.clone()),
    };
    let bytes = code.bytes(&function)?;
    let mut info = InstructionInfoFactory::new();
    let decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().take(JUMP_BYTES).collect();
    let mut end = 0;
    while end < all.len() && all[end].ip() - address < JUMP_BYTES as u64 {
        if !moves(&all[end], &mut info) {
            return None;
        }
        end += 1;
    }
    let last = all.get(end.checked_sub(1)?)?;
    let long_enough = last.next_ip() - address >= JUMP_BYTES as u64;
    if !long_enough || targets.between(address, last.next_ip()) {
        return None;
    }
    let around = Around {
        function: bytes,
        base: address,
        all: &all,
        at: end - 1,
        targets,
        pushes: false,
    };
    Some(Window {
        before: 0,
        ..around.taken(end - 1, 0)
    })
}

/// Two calls beside each other cannot both have what lies between them: the later one gives way.
fn drop_overlaps(sites: &mut [Site]) {
    let mut end = 0;
    for site in sites {
        if let Ok(window) = &site.window {
            if window.start < end {
                site.window = Err(Left::NothingMoves);
            } else {
                end = window.end();
            }
        }
    }
}

/// A function, whose sites are looked for.
struct Of<'a> {
    function: &'a Range<u64>,
    bytes: &'a [u8],
    targets: &'a Targets,
    /// Nobody follows what is pushed byte by byte.
    pushes: bool,
}

fn of_function(of: &Of<'_>, info: &mut InstructionInfoFactory, sites: &mut Vec<Site>) {
    let Of {
        function,
        bytes,
        targets,
        pushes,
    } = *of;
    let decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    // One that is cut off by the end is invalid, too.
    let read = all.iter().all(|instruction| !instruction.is_invalid());
    for (at, instruction) in all.iter().enumerate() {
        let other = matches!(instruction.code(), Op::Sysenter)
            || instruction.code() == Op::Int_imm8 && instruction.immediate8() == 0x80
            || instruction.code() == Op::Syscall && instruction.len() != BYTES.len();
        if !other && instruction.code() != Op::Syscall {
            continue;
        }
        let around = Around {
            function: bytes,
            base: function.start,
            all: &all,
            at,
            targets,
            pushes,
        };
        let nr = around.number(info);
        let window = match (other, read, nr) {
            (true, _, _) => Err(Left::OtherWay),
            (_, false, _) => Err(Left::NotRead),
            (_, _, Some(RT_SIGRETURN)) => Err(Left::SignalReturn),
            _ => around.window(info),
        };
        sites.push(Site {
            address: instruction.ip(),
            nr,
            window,
        });
    }
}

/// A `syscall` and what stands around it.
struct Around<'a> {
    function: &'a [u8],
    base: u64,
    all: &'a [Instruction],
    at: usize,
    targets: &'a Targets,
    pushes: bool,
}

/// It saves a register, and that is all.
fn is_push(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Op::Push_r64)
}

/// Whether it does the same elsewhere, but for an offset that can be set right.
fn moves(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    if instruction.flow_control() != FlowControl::Next
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Endbr64 | Mnemonic::Syscall | Mnemonic::Hlt | Mnemonic::Rdtsc
        )
        || instruction.is_invalid()
    {
        return false;
    }
    // Of what changes the stack, the unwind table says where it stands, byte by byte.
    info.info(instruction)
        .used_registers()
        .iter()
        .all(|used| used.register().full_register() != Register::RSP || !writes(used.access()))
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

impl Around<'_> {
    /// The call's number, if an instruction before it says so and nothing can come in between.
    fn number(&self, info: &mut InstructionInfoFactory) -> Option<u32> {
        let mut next = self.all[self.at].ip();
        for instruction in self.all[..self.at].iter().rev() {
            if self.targets.at(next)
                || instruction.is_invalid()
                || instruction.flow_control() != FlowControl::Next
            {
                return None;
            }
            next = instruction.ip();
            let sets = info.info(instruction).used_registers().iter().any(|used| {
                used.register().full_register() == Register::RAX && writes(used.access())
            });
            if !sets {
                continue;
            }
            let whole = matches!(instruction.op0_register(), Register::EAX | Register::RAX);
            return match (instruction.mnemonic(), instruction.op1_kind()) {
                (
                    Mnemonic::Mov,
                    OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64,
                ) if whole => u32::try_from(instruction.immediate(1))
                    .ok()
                    .filter(|nr| *nr != u32::MAX),
                (Mnemonic::Xor | Mnemonic::Sub, OpKind::Register)
                    if whole && instruction.op1_register() == instruction.op0_register() =>
                {
                    Some(0)
                }
                _ => None,
            };
        }
        None
    }

    /// Whether flags from before the call are used after it. The trampoline does not keep them.
    fn flags_kept(&self) -> bool {
        const ARITHMETIC: u32 = iced_x86::RflagsBits::OF
            | iced_x86::RflagsBits::SF
            | iced_x86::RflagsBits::ZF
            | iced_x86::RflagsBits::AF
            | iced_x86::RflagsBits::CF
            | iced_x86::RflagsBits::PF;
        let mut open = ARITHMETIC;
        for instruction in &self.all[self.at + 1..] {
            // It hands them on, as the one before it did.
            if instruction.code() == Op::Syscall {
                continue;
            }
            if instruction.rflags_read() & open != 0 {
                return true;
            }
            open &= !instruction.rflags_modified();
            if open == 0 || instruction.flow_control() != FlowControl::Next {
                return false;
            }
        }
        false
    }

    /// The smallest window there is; of two that are as small the one with more before it: what
    /// comes after the call is then where it was.
    fn window(&self, info: &mut InstructionInfoFactory) -> Result<Window, Left> {
        if self.flags_kept() {
            return Err(Left::FlagsKept);
        }
        let fits = |instruction: &Instruction, info: &mut _| moves(instruction, info);
        let before = (self.all[..self.at].iter().rev())
            .take_while(|instruction| fits(instruction, info))
            .take(JUMP_BYTES)
            .count();
        // Go's vfork takes its return address off the stack for the call.
        let after = (self.all[self.at + 1..].iter())
            .take_while(|instruction| {
                fits(instruction, info) || self.pushes && is_push(instruction)
            })
            .take(JUMP_BYTES)
            .count();
        let mut jumped_into = false;
        let mut best: Option<(usize, usize, usize)> = None;
        for m in 0..=after {
            for k in 0..=before {
                let (first, last) = (&self.all[self.at - k], &self.all[self.at + m]);
                let bytes = (last.next_ip() - first.ip()) as usize;
                if !(JUMP_BYTES..=WINDOW_BYTES_MAX).contains(&bytes) {
                    continue;
                }
                if self.targets.between(first.ip(), last.next_ip()) {
                    jumped_into = true;
                    continue;
                }
                // Moved instructions are few, then bytes.
                if best.is_none_or(|(count, _, _)| k + m < count) {
                    best = Some((k + m, k, m));
                }
            }
        }
        match best {
            Some((_, k, m)) => Ok(self.taken(k, m)),
            None if jumped_into => Err(Left::JumpedInto),
            None => Err(Left::NothingMoves),
        }
    }

    fn taken(&self, before: usize, after: usize) -> Window {
        let range = self.at - before..self.at + after + 1;
        let start = self.all[range.start].ip();
        let end = self.all[range.end - 1].next_ip();
        let relative = self.all[range.clone()]
            .iter()
            .filter(|instruction| instruction.is_ip_rel_memory_operand())
            .map(|instruction| {
                // The 32 bits stand before an immediate, if there is one.
                let mut decoder = Decoder::with_ip(
                    64,
                    &self.function[(instruction.ip() - self.base) as usize..],
                    instruction.ip(),
                    DecoderOptions::NONE,
                );
                let again = decoder.decode();
                let offsets = decoder.get_constant_offsets(&again);
                let from = (instruction.ip() - start) as usize;
                (
                    (from + offsets.displacement_offset()) as u8,
                    (from + instruction.len()) as u8,
                )
            })
            .collect();
        Window {
            start,
            bytes: self.function[(start - self.base) as usize..(end - self.base) as usize].to_vec(),
            before: (self.all[self.at].ip() - start) as usize,
            relative,
        }
    }
}
