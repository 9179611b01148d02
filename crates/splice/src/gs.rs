// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does code of a file set the GS register by an instruction?
//!
//! Trampolines find their thread's counters by it, and nobody is asked before an instruction, as is before the call that
//! does the same (arch_prctl). So nothing may be spliced where such code is mapped. A file that is taken for one
//! costs its processes the kernel's boundary; one that is overlooked is written to where its program keeps its own.

use crate::code::Code;
use crate::target::Targets;
use iced_x86::{Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

pub(crate) fn is_set(code: &Code<'_>, targets: &Targets) -> bool {
    let known = code.functions.iter().map(|range| (range.clone(), true));
    let gaps = code.gaps().into_iter().map(|range| (range, false));
    known.chain(gaps).any(|(range, known)| {
        let bytes = code.bytes(&range).unwrap_or_default();
        bytes.windows(2).any(may_set) && is_set_within(bytes, range.start, known, targets)
    })
}

/// Each of these instructions has two such bytes.
fn may_set(two: &[u8]) -> bool {
    matches!(two, [0x0f, 0xa9 | 0xae | 0xb5]) || matches!(two, [0x8e, to] if to & 0x38 == 0x28)
}

/// `begins`: control comes to the first byte.
///
/// `wrgsbase` has four bytes or five: data does not look like it by chance. Of the others one in 2,048 places of any data
/// is one (tables of cryptography lie among code). They are believed where control comes, and all around is code.
fn is_set_within(bytes: &[u8], start: u64, begins: bool, targets: &Targets) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let (mut reached, mut all_read, mut found) = (begins, true, false);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.mnemonic() == Mnemonic::Wrgsbase {
            return true;
        }
        all_read &= !instruction.is_invalid();
        reached |= targets.at(instruction.ip());
        found |= reached && loads(&instruction);
        reached &= !matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Exception
        );
    }
    found && all_read
}

/// A selector, from which its base comes.
fn loads(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Lgs => true,
        Mnemonic::Mov => instruction.op0_register() == Register::GS,
        _ => matches!(instruction.code(), Op::Popw_GS | Op::Popq_GS),
    }
}
