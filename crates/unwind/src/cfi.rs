// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a file's call-frame information say about one function?

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EndianSlice, LittleEndian, Operation,
    Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow,
};

use crate::elf::Image;
use crate::span::{Clock, Span, SpanKind};
use crate::{
    END, Error, FRAME_POINTER, PLT, RBP, RBP_LOST, RDI, REALIGNED, RSP, Row, SIGNAL, Source,
};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

const RDI_REGISTER: Register = Register(5);
const RBP_REGISTER: Register = Register(6);
const RSP_REGISTER: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

/// A CIE's instructions are run again for each of its functions, so a long one
/// makes work without bound; real ones are a few bytes long.
const CIE_BYTES_MAX: usize = 1 << 12;
/// One function's instructions.
const FDE_BYTES_MAX: usize = 4 << 20;

/// The row where nothing better is known.
pub const UNKNOWN: Row = Row {
    pc: 0,
    cfa_words: 2,
    rbp_words: -2,
    kind: FRAME_POINTER,
};

/// One section of call-frame information.
pub struct Cfi<'a, Section: UnwindSection<Slice<'a>>> {
    section: Section,
    bases: BaseAddresses,
    cies: HashMap<Section::Offset, Option<CommonInformationEntry<Slice<'a>>>>,
    context: UnwindContext<usize>,
}

impl<'a, Section> Cfi<'a, Section>
where
    Section: UnwindSection<Slice<'a>>,
    Section::Offset: std::hash::Hash + Eq,
{
    pub fn new(section: Section, bases: BaseAddresses) -> Self {
        Cfi {
            section,
            bases,
            cies: HashMap::new(),
            context: UnwindContext::new(),
        }
    }

    fn cie(
        cies: &mut HashMap<Section::Offset, Option<CommonInformationEntry<Slice<'a>>>>,
        section: &Section,
        bases: &BaseAddresses,
        offset: Section::Offset,
    ) -> gimli::Result<CommonInformationEntry<Slice<'a>>> {
        cies.entry(offset)
            .or_insert_with(|| {
                section
                    .cie_from_offset(bases, offset)
                    .ok()
                    .filter(|cie| cie.entry_len() <= CIE_BYTES_MAX)
            })
            .clone()
            .ok_or(gimli::Error::NotCieId)
    }

    /// All functions that it describes. A section that is damaged somewhere
    /// counts up to there.
    pub fn spans<S: Source + ?Sized>(
        &mut self,
        image: &Image<'_, S>,
        kind: impl Fn(usize) -> SpanKind,
        max: usize,
        clock: &Clock,
    ) -> Result<Vec<Span>, Error> {
        let mut spans = Vec::new();
        let bases = self.bases.clone();
        let mut entries = self.section.entries(&bases);
        let mut count = 0u32;
        while let Ok(Some(entry)) = entries.next() {
            count = count.wrapping_add(1);
            if count.is_multiple_of(64) {
                clock.check()?;
            }
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let cies = &mut self.cies;
            let Ok(fde) =
                partial.parse(|section, bases, offset| Self::cie(cies, section, bases, offset))
            else {
                continue;
            };
            if fde.entry_len() > FDE_BYTES_MAX {
                continue;
            }
            let start = fde.initial_address();
            let Some(span) = Span::new(
                image,
                start,
                start.saturating_add(fde.len()),
                kind(fde.offset()),
            ) else {
                continue;
            };
            if spans.len() >= max {
                return Err(Error::Limit {
                    what: "the number of its functions",
                    value: max as u64 + 1,
                    limit: max as u64,
                });
            }
            spans.push(span);
        }
        Ok(spans)
    }

    /// Calls `emit` with the rows of a function, with addresses in place of
    /// `pc`; false if the instructions end in an error before the function's
    /// end.
    pub fn rows(
        &mut self,
        fde: usize,
        clock: &Clock,
        mut emit: impl FnMut(u64, Row) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let cies = &mut self.cies;
        let offset = Section::Offset::from(fde);
        let fde = self
            .section
            .fde_from_offset(&self.bases, offset, |section, bases, offset| {
                Self::cie(cies, section, bases, offset)
            });
        let Ok(fde) = fde else {
            return Ok(false);
        };
        if fde.is_signal_trampoline() {
            emit(fde.initial_address(), row(SIGNAL, 0, 0))?;
            return Ok(true);
        }
        let encoding = fde.cie().encoding();
        let Ok(mut table) = fde.rows(&self.section, &self.bases, &mut self.context) else {
            return Ok(false);
        };
        let mut count = 0u32;
        loop {
            count = count.wrapping_add(1);
            if count.is_multiple_of(256) {
                clock.check()?;
            }
            match table.next_row() {
                Ok(Some(unwind)) => {
                    let converted = convert(unwind, |expression: &UnwindExpression<usize>| {
                        let mut operations =
                            expression.get(&self.section).ok()?.operations(encoding);
                        let mut found = Vec::new();
                        // The longest form that is known has nine operations.
                        while let Some(operation) = operations.next().ok()? {
                            found.push(operation);
                            if found.len() > 9 {
                                return None;
                            }
                        }
                        Some(found)
                    });
                    emit(unwind.start_address(), converted)?;
                }
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            }
        }
    }
}

fn row(kind: u8, cfa_words: u16, rbp_words: i8) -> Row {
    Row {
        pc: 0,
        cfa_words,
        rbp_words,
        kind,
    }
}

/// Whole words only, as the x86-64 ABI has them.
fn words(bytes: i64) -> Option<i64> {
    (bytes % 8 == 0).then_some(bytes / 8)
}

fn convert<'a>(
    unwind: &UnwindTableRow<usize>,
    operations: impl Fn(&UnwindExpression<usize>) -> Option<Vec<Operation<Slice<'a>>>>,
) -> Row {
    let return_address = unwind.register(RETURN_ADDRESS);
    let rbp_rule = unwind.register(RBP_REGISTER);
    match unwind.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let cfa_words = words(*offset).and_then(|words| u16::try_from(words).ok());
            let Some(cfa_words) = cfa_words else {
                return UNKNOWN;
            };
            let rbp_words = match rbp_rule {
                RegisterRule::Undefined | RegisterRule::SameValue => 0,
                RegisterRule::Offset(offset) => words(offset)
                    .and_then(|words| i8::try_from(words).ok())
                    .filter(|&words| words != 0)
                    .unwrap_or(RBP_LOST),
                _ => RBP_LOST,
            };
            let kind = match (*register, return_address) {
                (_, RegisterRule::Undefined) => return row(END, 0, 0),
                (RSP_REGISTER, RegisterRule::Offset(-8)) => RSP,
                (RBP_REGISTER, RegisterRule::Offset(-8)) => RBP,
                (RSP_REGISTER, RegisterRule::Register(RDI_REGISTER)) => RDI,
                _ => return UNKNOWN,
            };
            row(kind, cfa_words, rbp_words)
        }
        CfaRule::Expression(expression) => {
            let Some(operations) = operations(expression) else {
                return UNKNOWN;
            };
            if let Some(threshold) = plt(&operations) {
                return row(PLT, threshold, 0);
            }
            // gcc's dynamic stack alignment: the CFA was stored below rbp, and
            // the caller's rbp is where rbp points to.
            if let [
                Operation::RegisterOffset {
                    register: RBP_REGISTER,
                    offset,
                    ..
                },
                Operation::Deref { size: 8, .. },
            ] = operations[..]
                && let Some(below) = words(offset).and_then(|words| u16::try_from(-words).ok())
                && matches!(return_address, RegisterRule::Offset(-8))
            {
                return row(REALIGNED, below, 0);
            }
            UNKNOWN
        }
    }
}

/// The expression that linkers write for procedure linkage tables, whose
/// entries push one word after so many bytes of their 16:
/// `breg7 8, breg16 0, lit15, and, litN, ge, lit3, shl, plus`.
fn plt(operations: &[Operation<Slice<'_>>]) -> Option<u16> {
    use Operation::{And, Ge, Plus, RegisterOffset, Shl, UnsignedConstant};
    match operations {
        [
            RegisterOffset {
                register: RSP_REGISTER,
                offset: 8,
                ..
            },
            RegisterOffset {
                register: RETURN_ADDRESS,
                offset: 0,
                ..
            },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] if *value < 16 => Some(*value as u16),
        _ => None,
    }
}
