// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a Go program's own function table say?
//!
//! Go programs carry, stripped or not, a table from which the runtime prints
//! its stack traces: `.gopclntab`, with for each function the distance of the
//! stack pointer from the caller's, by instruction (`pcsp`). Its form here is
//! that of Go 1.18 and later (see Go's `runtime/symtab.go`); before 1.18 it is
//! not read, and frame pointers, which Go has kept since 1.7, are used.

use crate::elf::{Image, half, string, word};
use crate::names::go_function_is_wrapper;
use crate::span::{Clock, Span, SpanKind};
use crate::{END, Error, FRAME_POINTER, RSP, Row, SIGNAL, Source};

/// Magic of Go 1.18–1.19 and of 1.20 and later: the layout is the same.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
const HEADER_BYTES: usize = 72;
/// `runtime._func`: entryOff, nameOff, args, deferreturn, pcsp, pcfile, pcln,
/// npcdata, cuOffset, startLine, funcID, flag, pad, nfuncdata.
const FUNC_PCSP: usize = 16;
const FUNC_PCFILE: usize = 20;
const FUNC_PCLN: usize = 24;
const FUNC_CU: usize = 32;
const FUNC_FLAG: usize = 41;
/// This function is the first on its stack (FuncFlagTopFrame).
const FLAG_TOP_FRAME: u8 = 1;
/// `runtime.moduledata`: the address of the header is its first word, and the
/// address of the code its 23rd, since Go 1.18.
const MODULE_TEXT: u64 = 176;
/// More changes of the stack pointer than any function has.
const STEPS_MAX: usize = 1 << 20;
/// Words of the program's data that are searched for the module's.
const SEARCH_BYTES_MAX: u64 = 64 << 20;

/// These run on another stack than their caller. They keep the caller's frame
/// pointer in rbp, so the chain leads back to the goroutine that asked.
const FRAME_POINTER_FUNCTIONS: [&str; 3] = [
    "runtime.systemstack",
    "runtime.asmcgocall",
    "runtime.asmcgocall_no_g",
];
/// These leave their goroutine behind: what they call is the scheduler's own.
const TOP_FUNCTIONS: [&str; 4] = [
    "runtime.mcall",
    "runtime.morestack",
    "runtime.goexit",
    "runtime.rt0_go",
];

/// Where the table lies in a file; in a position-independent one it is the second.
pub const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

pub struct GoTable {
    bytes: Vec<u8>,
    count: usize,
    text: u64,
    names: usize,
    units: usize,
    files: usize,
    pc_values: usize,
    functions: usize,
}

/// A place in a Go program, by the program's own tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoPlace {
    /// `main.(*server).serve`
    pub function: String,
    /// Address of the function's first instruction.
    pub start: u64,
    /// Source file, empty if not known, and line, 0 if not known. In code that
    /// was inlined they are the inlined function's.
    pub file: String,
    pub line: u32,
}

impl GoTable {
    /// The table, if the file has one in a form that is known.
    pub fn find<S: Source + ?Sized>(
        image: &Image<'_, S>,
        max: usize,
    ) -> Result<Option<GoTable>, Error> {
        let mut sections = SECTIONS.iter();
        let Some(section) = sections.find_map(|name| image.section(name)) else {
            return Ok(None);
        };
        let bytes = image.content(&section)?;
        let Some(table) = GoTable::parse(bytes) else {
            return Ok(None);
        };
        let limit = max as u64;
        if table.count as u64 > limit {
            return Err(Error::Limit {
                what: "the number of its Go functions",
                value: table.count as u64,
                limit,
            });
        }
        let text = table.find_text(image, section.address)?;
        Ok(text.map(|text| GoTable { text, ..table }))
    }

    fn parse(bytes: Vec<u8>) -> Option<GoTable> {
        if bytes.len() < HEADER_BYTES
            || !MAGICS.contains(&half(&bytes, 0)?)
            || bytes[4..8] != [0, 0, 1, 8]
        {
            return None;
        }
        let place = |at| {
            let offset = usize::try_from(word(&bytes, at)?).ok()?;
            (offset < bytes.len()).then_some(offset)
        };
        let count = usize::try_from(word(&bytes, 8)?).ok()?;
        let (names, units, files) = (place(32)?, place(40)?, place(48)?);
        let (pc_values, functions) = (place(56)?, place(64)?);
        // An entry is two numbers of 4 bytes; the code's end follows the last.
        let needed = count.checked_mul(8)?.checked_add(4)?;
        (bytes.len() - functions >= needed).then_some(())?;
        let text = word(&bytes, 24)?;
        Some(GoTable {
            bytes,
            count,
            text,
            names,
            units,
            files,
            pc_values,
            functions,
        })
    }

    /// The address that the table's offsets start from. Its header has it in
    /// programs at fixed addresses up to Go 1.25; else it is found through the
    /// entry point, or in the module's data, which points to the header.
    fn find_text<S: Source + ?Sized>(
        &self,
        image: &Image<'_, S>,
        address: u64,
    ) -> Result<Option<u64>, Error> {
        if self.text != 0 && image.code(self.text, u64::MAX).is_some() {
            return Ok(Some(self.text));
        }
        for index in 0..self.count {
            if let Some(name) = self.name(index)
                && name == "_rt0_amd64_linux"
                && let Some(entry) = self.entry(index)
                && let Some(text) = image.entry.checked_sub(u64::from(entry))
                && self.covers(image, text)
            {
                return Ok(Some(text));
            }
        }
        // Position-independent: the words are in the relocations' addends.
        let mut module = None;
        let mut relocations = Vec::new();
        if let Some(section) = image
            .section(".rela.dyn")
            .filter(|s| s.len <= SEARCH_BYTES_MAX)
        {
            relocations = image.content(&section)?;
        }
        let relative = |addend: u64| {
            relocations
                .chunks_exact(24)
                .filter(|rela| word(rela, 8) == Some(u64::from(object::elf::R_X86_64_RELATIVE)))
                .find(|rela| word(rela, 16) == Some(addend))
                .and_then(|rela| word(rela, 0))
        };
        if let Some(at) = relative(address) {
            module = Some(at);
            let wanted = at.wrapping_add(MODULE_TEXT);
            let text = relocations
                .chunks_exact(24)
                .find(|rela| word(rela, 0) == Some(wanted))
                .and_then(|rela| word(rela, 16));
            if let Some(text) = text.filter(|&text| self.covers(image, text)) {
                return Ok(Some(text));
            }
        }
        for (name, section) in image.sections() {
            let data = matches!(name, ".go.module" | ".noptrdata" | ".data" | ".data.rel.ro")
                && section.kind == object::elf::SHT_PROGBITS
                && section.len <= SEARCH_BYTES_MAX;
            if !data {
                continue;
            }
            let bytes = image.content(&section)?;
            for (index, chunk) in bytes.chunks_exact(8).enumerate() {
                let at = index * 8;
                let here = section.address.wrapping_add(at as u64);
                if word(chunk, 0) != Some(address) && module != Some(here) {
                    continue;
                }
                if let Some(text) = word(&bytes, at + MODULE_TEXT as usize)
                    && self.covers(image, text)
                {
                    return Ok(Some(text));
                }
            }
        }
        Ok(None)
    }

    /// Whether all functions are code if the first is there.
    fn covers<S: Source + ?Sized>(&self, image: &Image<'_, S>, text: u64) -> bool {
        let end = half(&self.bytes, self.functions + 8 * self.count);
        let last = end.and_then(|end| end.checked_sub(1));
        last.and_then(|last| text.checked_add(u64::from(last)))
            .is_some_and(|last| {
                image.code(text, u64::MAX).is_some() && image.code(last, u64::MAX).is_some()
            })
    }

    fn entry(&self, index: usize) -> Option<u32> {
        half(&self.bytes, self.functions + 8 * index)
    }

    fn func(&self, index: usize) -> Option<usize> {
        let offset = half(&self.bytes, self.functions + 8 * index + 4)? as usize;
        self.functions.checked_add(offset)
    }

    pub fn name(&self, index: usize) -> Option<String> {
        let offset = half(&self.bytes, self.func(index)?.checked_add(4)?)? as usize;
        string(&self.bytes, self.names.checked_add(offset)?)
    }

    /// Where functions lie, each up to the next one.
    pub fn ranges(&self) -> Vec<std::ops::Range<u64>> {
        let address = |index| self.text.checked_add(self.entry(index)?.into());
        (0..self.count)
            .map_while(|index| Some(address(index)?..address(index + 1)?))
            .collect()
    }

    /// All functions, from each one's start to the next one's, as Go's runtime
    /// looks them up.
    pub fn spans<S: Source + ?Sized>(
        &self,
        image: &Image<'_, S>,
        clock: &Clock,
    ) -> Result<Vec<Span>, Error> {
        let mut spans = Vec::with_capacity(self.count);
        for index in 0..self.count {
            if index % 256 == 0 {
                clock.check()?;
            }
            let (Some(start), Some(end)) = (self.entry(index), self.entry(index + 1)) else {
                break;
            };
            let (Some(start), Some(end)) = (
                self.text.checked_add(start.into()),
                self.text.checked_add(end.into()),
            ) else {
                break;
            };
            if let Some(mut span) = Span::new(image, start, end, SpanKind::Go(index)) {
                span.wrapper = self
                    .name(index)
                    .is_some_and(|name| go_function_is_wrapper(&name));
                spans.push(span);
            }
        }
        Ok(spans)
    }

    /// Calls `emit` with the rows of a function, with addresses in place of
    /// `pc`; false if the table ends early.
    pub fn rows(
        &self,
        index: usize,
        clock: &Clock,
        mut emit: impl FnMut(u64, Row) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let Some((func, start)) = self.func(index).zip(self.entry(index)) else {
            return Ok(false);
        };
        let start = self.text.wrapping_add(u64::from(start));
        let plain = |kind, cfa_words, rbp_words| Row {
            pc: 0,
            cfa_words,
            rbp_words,
            kind,
        };
        let name = self.name(index).unwrap_or_default();
        let flag = self.bytes.get(func + FUNC_FLAG).copied().unwrap_or(0);
        if name.starts_with("runtime.sigreturn") {
            emit(start, plain(SIGNAL, 0, 0))?;
            return Ok(true);
        }
        if flag & FLAG_TOP_FRAME != 0 || TOP_FUNCTIONS.contains(&name.as_str()) {
            emit(start, plain(END, 0, 0))?;
            return Ok(true);
        }
        if FRAME_POINTER_FUNCTIONS.contains(&name.as_str()) {
            emit(start, plain(FRAME_POINTER, 2, -2))?;
            return Ok(true);
        }
        // 0: there is no such table for this function.
        let Some(pcsp) = half(&self.bytes, func + FUNC_PCSP).filter(|&pcsp| pcsp != 0) else {
            return Ok(false);
        };
        let mut at = self.pc_values.saturating_add(pcsp as usize);
        let (mut pc, mut delta) = (start, -1i64);
        for step in 0..STEPS_MAX {
            if step % 256 == 255 {
                clock.check()?;
            }
            let Some(change) = self.varint(&mut at) else {
                return Ok(false);
            };
            // A change of 0 ends the table, unless it is the first.
            if change == 0 && step > 0 {
                return Ok(true);
            }
            let Some(length) = self.varint(&mut at) else {
                return Ok(false);
            };
            delta += i64::from(change >> 1) ^ -i64::from(change & 1);
            let cfa_words = (delta % 8 == 0)
                .then_some(delta / 8 + 1)
                .and_then(|words| u16::try_from(words).ok());
            // The first word that a Go function puts on its stack is rbp.
            let row = match cfa_words {
                Some(cfa_words) => plain(RSP, cfa_words, if delta >= 8 { -2 } else { 0 }),
                None => plain(FRAME_POINTER, 2, -2),
            };
            emit(pc, row)?;
            pc = pc.saturating_add(u64::from(length));
        }
        Ok(false)
    }

    /// The function, file and line of an address.
    pub fn place(&self, address: u64) -> Option<GoPlace> {
        let offset = u32::try_from(address.checked_sub(self.text)?).ok()?;
        let (mut from, mut to) = (0, self.count);
        while from < to {
            let middle = from + (to - from) / 2;
            if self.entry(middle)? <= offset {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        let index = from.checked_sub(1)?;
        if offset >= self.entry(index + 1)? {
            return None;
        }
        let func = self.func(index)?;
        let start = self.text.checked_add(self.entry(index)?.into())?;
        let line = self.value(func + FUNC_PCLN, start, address);
        let file = self
            .value(func + FUNC_PCFILE, start, address)
            .and_then(|file| {
                let unit = half(&self.bytes, func + FUNC_CU)?;
                let entry = usize::try_from(unit.checked_add(file)?).ok()?;
                let at = self.units.checked_add(entry.checked_mul(4)?)?;
                let name = half(&self.bytes, at).filter(|&name| name != u32::MAX)?;
                string(&self.bytes, self.files.checked_add(name as usize)?)
            });
        Some(GoPlace {
            function: self.name(index)?,
            start,
            line: line.filter(|_| file.is_some()).unwrap_or(0),
            file: file.unwrap_or_default(),
        })
    }

    /// What one of a function's tables says at an address.
    fn value(&self, table: usize, start: u64, address: u64) -> Option<u32> {
        let offset = half(&self.bytes, table).filter(|&offset| offset != 0)?;
        let mut at = self.pc_values.checked_add(offset as usize)?;
        let (mut pc, mut value) = (start, -1i64);
        for step in 0..STEPS_MAX {
            let change = self.varint(&mut at)?;
            if change == 0 && step > 0 {
                return None;
            }
            value += i64::from(change >> 1) ^ -i64::from(change & 1);
            pc = pc.checked_add(self.varint(&mut at)?.into())?;
            if address < pc {
                return u32::try_from(value).ok();
            }
        }
        None
    }

    fn varint(&self, at: &mut usize) -> Option<u32> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = *self.bytes.get(*at)?;
            *at += 1;
            value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
