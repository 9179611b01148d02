// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which call has to be made where it stands, and who has it made?
//!
//! A C library may cancel a thread by where it was interrupted: glibc from 2.41 on and musl make all
//! calls that end a cancelled thread by one function (`__syscall_cancel_arch`, `__syscall_cp_asm`), and their
//! signal handler compares the interrupted instruction with that function's begin and end. So its
//! `syscall` stays, and the jumps take the place of the instructions that call the function: what
//! is stamped before and after lies outside of the range, as what the library itself does there.
//!
//! Both have the function from the same assembly. It is known by what it does with its arguments, since
//! the symbol is stripped in what distributions ship.

use crate::code::Code;
use crate::site::ENDBR64;
use iced_x86::{Code as Op, Decoder, DecoderOptions, Instruction, OpKind};
use std::collections::BTreeSet;

/// (cancelled, number, six arguments), the last two on the stack: each goes where a call has it.
const ARGUMENTS: [u8; 35] = [
    0x49, 0x89, 0xfb, // mov %rdi, %r11
    0x48, 0x89, 0xf0, // mov %rsi, %rax
    0x48, 0x89, 0xd7, // mov %rdx, %rdi
    0x48, 0x89, 0xce, // mov %rcx, %rsi
    0x4c, 0x89, 0xc2, // mov %r8, %rdx
    0x4d, 0x89, 0xca, // mov %r9, %r10
    0x4c, 0x8b, 0x44, 0x24, 0x08, // mov 8(%rsp), %r8
    0x4c, 0x8b, 0x4c, 0x24, 0x10, // mov 16(%rsp), %r9
    0x4c, 0x89, 0x5c, 0x24, 0x08, // mov %r11, 8(%rsp)
    0x0f, 0x05, // syscall
];
const RET: u8 = 0xc3;
/// What stands before, and how many bytes the way has that the last instruction leads: it looks whether the thread
/// is cancelled, and goes elsewhere if so.
const HEADS: [(&[u8], usize); 3] = [
    // mov (%rdi), %eax; testb $8, (%rdi); jne rel32
    (&[0x8b, 0x07, 0xf6, 0x07, 0x08, 0x0f, 0x85], 4),
    // mov (%rdi), %eax; test %eax, %eax; jne rel32, rel8
    (&[0x8b, 0x07, 0x85, 0xc0, 0x0f, 0x85], 4),
    (&[0x8b, 0x07, 0x85, 0xc0, 0x75], 1),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InPlace {
    /// Of the instruction.
    pub syscall: u64,
    /// The instructions that call its function, by address.
    pub callers: BTreeSet<u64>,
}

impl InPlace {
    /// None: there is no such function. Err: there is one, or more, and who calls it is not known.
    pub fn of(code: &Code<'_>) -> Result<Option<Self>, ()> {
        let mut found = None;
        for part in code.parts.iter().filter(|part| part.executable) {
            for at in memchr::memmem::find_iter(part.bytes, &ARGUMENTS) {
                let end = at + ARGUMENTS.len();
                if part.bytes.get(end) != Some(&RET) || found.is_some() {
                    return Err(());
                }
                let head = head_bytes(&part.bytes[..at]).ok_or(())?;
                let begin = part.address.wrapping_add((at - head) as u64);
                found = Some((begin, part.address.wrapping_add(end as u64 - 2)));
            }
        }
        let Some((begin, syscall)) = found else {
            return Ok(None);
        };
        let callers = callers(code, begin, syscall.wrapping_add(2))?;
        Ok(Some(Self { syscall, callers }))
    }
}

/// The instructions that call a function; None: it is not known who does.
pub(crate) fn callers_of(code: &Code<'_>, begin: u64) -> Option<BTreeSet<u64>> {
    callers(code, begin, begin.wrapping_add(1)).ok()
}

/// How many of the last of these bytes belong to the function.
fn head_bytes(before: &[u8]) -> Option<usize> {
    let (rest, head) = HEADS.iter().find_map(|(head, way)| {
        let rest = before.get(..before.len().checked_sub(*way)?)?;
        Some((rest.strip_suffix(*head)?, head.len() + way))
    })?;
    let marked = rest.ends_with(&ENDBR64);
    Some(head + if marked { ENDBR64.len() } else { 0 })
}

/// Who calls the function from `begin` to `end`. The handler names both, to compare, and has them from where pointers
/// lie; that is no call. A jump to it, or a call by a pointer, would be a way that is not seen.
fn callers(code: &Code<'_>, begin: u64, end: u64) -> Result<BTreeSet<u64>, ()> {
    let leads_in = |address: u64| (begin..end).contains(&address);
    // The begin that the handler compares with lies behind a mark of control-flow enforcement.
    let marked = (code.bytes_from(begin)).is_some_and(|bytes| bytes.starts_with(&ENDBR64));
    let begins = |address: u64| address == begin || marked && address == begin.wrapping_add(4);
    let inside = |pointer: &u64| leads_in(*pointer) && !begins(*pointer);
    if code.pointers.iter().any(inside) {
        return Err(());
    }
    let word_at = |address: u64| {
        let bytes = code.bytes_from(address)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let mut callers = BTreeSet::new();
    let mut instruction = Instruction::default();
    let known = code.functions.iter().map(|range| (range.clone(), true));
    let gaps = code.gaps().into_iter().map(|range| (range, false));
    for (range, known) in known.chain(gaps) {
        let Some(bytes) = code.bytes(&range) else {
            continue;
        };
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let target = match instruction.op0_kind() {
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                    Some(instruction.near_branch_target())
                }
                OpKind::Memory
                    if instruction.is_ip_rel_memory_operand()
                        && (instruction.is_call_near_indirect()
                            || instruction.is_jmp_near_indirect()) =>
                {
                    word_at(instruction.ip_rel_memory_address())
                }
                _ => None,
            };
            if instruction.is_invalid() || !target.is_some_and(leads_in) {
                continue;
            }
            let calls = instruction.code() == Op::Call_rel32_64
                && target == Some(begin)
                && instruction.len() == crate::JUMP_BYTES;
            match calls && known {
                true => callers.insert(instruction.ip()),
                false => return Err(()),
            };
        }
    }
    match callers.is_empty() {
        true => Err(()),
        false => Ok(callers),
    }
}
