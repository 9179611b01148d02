// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whither can control come, other than from the instruction before?
//!
//! More is taken for a target than is one, never less: direct branches of all code (of gaps
//! too, which may be data), addresses that code or data of the file names (by lea, as an
//! immediate, by a relocation, in a file that is not relocatable by any word of its data),
//! tables of jumps relative to themselves, landing pads of exceptions, symbols. A return
//! address is none: no instruction that calls ever moves.

use crate::Error;
use crate::code::{Code, Part};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

/// Tables of jumps that are longer are not believed to go on.
const TABLE_ENTRIES_MAX: usize = 65_536;
/// What all tables of a file are read of together at most, one to five seconds' work: a file may be made so that
/// each of its instructions names one. (rustc's 140 MB have two thirds of it.)
const ENTRIES_MAX: usize = 1 << 29;
/// So many targets are looked through for those that are the same.
const TARGETS_MANY: usize = 1 << 22;

pub(crate) struct Targets {
    /// In order, each once.
    addresses: Vec<u64>,
    /// Those whose address code or data names, where no function begins; in order.
    named: Vec<u64>,
}

impl Targets {
    /// # Errors
    /// When its tables of jumps are more than could be read.
    pub fn of(code: &Code<'_>) -> Result<Self, Error> {
        let mut found = Found {
            code,
            addresses: Vec::new(),
            named: Vec::new(),
            of_tables: Vec::new(),
            tables: Vec::new(),
        };
        for range in &code.functions {
            found.of_instructions(range.clone());
        }
        // Of what is known to be code; what is none must not end a table.
        let begins = found.table_begins();
        for range in code.gaps() {
            found.of_instructions(range);
        }
        for label in &code.labels {
            found.add(*label);
        }
        for pointer in &code.pointers {
            found.name(*pointer);
        }
        if !code.relocatable {
            found.of_words();
        }
        for (table, function) in &code.landing_tables {
            found.of_landing_pads(*table, function);
        }
        found.of_relative_tables(&begins)?;
        found.of_tables_keep();
        let Found {
            mut addresses,
            mut named,
            ..
        } = found;
        let begins = |address: &u64| {
            let functions = &code.functions;
            let at = functions.binary_search_by_key(address, |function| function.start);
            at.is_ok()
        };
        named.retain(|address| !begins(address));
        named.sort_unstable();
        addresses.extend(code.functions.iter().map(|function| function.start));
        addresses.sort_unstable();
        addresses.dedup();
        Ok(Self { addresses, named })
    }

    /// Whether one lies within, both ends left out.
    pub fn between(&self, begin: u64, end: u64) -> bool {
        let first = self.addresses.partition_point(|&address| address <= begin);
        self.addresses
            .get(first)
            .is_some_and(|&address| address < end)
    }

    pub fn at(&self, address: u64) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// Whether its address is something that the file works with, other than by branches.
    pub fn is_named(&self, address: u64) -> bool {
        self.named.binary_search(&address).is_ok()
    }
}

struct Found<'a, 'b> {
    code: &'a Code<'b>,
    addresses: Vec<u64>,
    named: Vec<u64>,
    of_tables: Vec<u64>,
    /// What may be a table of jumps, and the code that works with it.
    tables: Vec<(u64, Range<u64>)>,
}

impl Found<'_, '_> {
    fn add(&mut self, address: u64) {
        if self.code.is_executable(address) {
            self.addresses.push(address);
        }
    }

    fn name(&mut self, address: u64) {
        if self.code.is_executable(address) {
            self.addresses.push(address);
            self.named.push(address);
        }
    }

    fn of_instructions(&mut self, range: Range<u64>) {
        let Some(bytes) = self.code.bytes(&range) else {
            return;
        };
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut tables = Vec::new();
        let mut jumps_anywhere = false;
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                continue;
            }
            jumps_anywhere |= instruction.is_jmp_near_indirect();
            self.of_instruction(&instruction, &mut tables);
        }
        if jumps_anywhere {
            let of = |table| (table, range.clone());
            self.tables.extend(tables.into_iter().map(of));
        }
    }

    fn of_instruction(&mut self, instruction: &Instruction, tables: &mut Vec<u64>) {
        for operand in 0..instruction.op_count() {
            match instruction.op_kind(operand) {
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                    self.add(instruction.near_branch_target());
                }
                OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
                    if !self.code.relocatable =>
                {
                    self.name(instruction.immediate(operand));
                }
                OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
                    let address = instruction.ip_rel_memory_address();
                    self.name(address);
                    // In code, too: linkers that keep no segment for what is only read put it there.
                    if instruction.mnemonic() == Mnemonic::Lea {
                        tables.push(address);
                    }
                }
                // jmp *table(, %rax, 8): its words are targets by themselves (of_words);
                // mov table(, %rax, 4): relative to what is not known here, so to the table.
                OpKind::Memory
                    if instruction.memory_index() != Register::None
                        && instruction.memory_displacement64() != 0 =>
                {
                    tables.push(instruction.memory_displacement64());
                }
                _ => {}
            }
        }
    }

    /// Where a table begins for certain: its first entry leads into the function that works with it. (An array that
    /// code names by a place before it may seem to begin within a table.)
    fn table_begins(&self) -> Vec<u64> {
        let is = |(table, of): &&(u64, Range<u64>)| {
            let entry = self
                .code
                .bytes_from(*table)
                .and_then(|bytes| bytes.first_chunk());
            let leads =
                |entry: &[u8; 4]| table.wrapping_add_signed(i64::from(i32::from_le_bytes(*entry)));
            entry.is_some_and(|entry| of.contains(&leads(entry)))
        };
        let mut begins: Vec<u64> = (self.tables.iter().filter(is))
            .map(|(table, _)| *table)
            .collect();
        begins.sort_unstable();
        begins.dedup();
        begins
    }

    /// Nothing says where a table ends. It is read as long as it leads to code; but from where the next one begins
    /// only what leads into the function that the table is of is believed: a compiler lays
    /// thousands of tables one behind the other, and of what is read in one as if it were another's a tenth
    /// is the begin of some instruction. (Up to there also what leads elsewhere: of what is seldom run, a function
    /// has parts of their own.)
    fn of_relative_tables(&mut self, begins: &[u64]) -> Result<(), Error> {
        let mut tables = std::mem::take(&mut self.tables);
        tables.sort_unstable_by_key(|(table, of)| (*table, of.start));
        tables.dedup();
        let (mut left, mut many) = (ENTRIES_MAX, TARGETS_MANY);
        for (table, of) in tables {
            let next = begins.partition_point(|begin| *begin <= table);
            let next = begins.get(next).map_or(u64::MAX, |next| *next);
            let read = self.of_relative_table(table, &of, next);
            left = left
                .checked_sub(read)
                .ok_or(Error::Tables { most: ENTRIES_MAX })?;
            if self.of_tables.len() > many {
                self.of_tables.sort_unstable();
                self.of_tables.dedup();
                many = 2 * self.of_tables.len() + TARGETS_MANY;
            }
        }
        Ok(())
    }

    /// Offsets of 32 bits, relative to the table's beginning. How many were read.
    fn of_relative_table(&mut self, table: u64, of: &Range<u64>, next: u64) -> usize {
        let Some(bytes) = self.code.bytes_from(table) else {
            return 0;
        };
        let mut read = 0;
        let places = (table..).step_by(4);
        for (at, entry) in places.zip(bytes.chunks_exact(4)).take(TABLE_ENTRIES_MAX) {
            let offset = i32::from_le_bytes(entry.try_into().unwrap_or_default());
            let target = table.wrapping_add_signed(i64::from(offset));
            if !self.code.is_executable(target) {
                break;
            }
            read += 1;
            if at < next || of.contains(&target) {
                self.of_tables.push(target);
            }
        }
        read
    }

    /// What is taken for a table of jumps may be other data. A jump that was compiled leads to the begin of an
    /// instruction: of those within functions, the others are none.
    fn of_tables_keep(&mut self) {
        let mut targets = std::mem::take(&mut self.of_tables);
        targets.sort_unstable();
        targets.dedup();
        let mut targets = &targets[..];
        for range in &self.code.functions {
            let (before, rest) = targets.split_at(targets.partition_point(|at| *at < range.start));
            let (within, rest) = rest.split_at(rest.partition_point(|at| *at < range.end));
            targets = rest;
            self.addresses.extend(before);
            let Some(bytes) = self.code.bytes(range).filter(|_| !within.is_empty()) else {
                self.addresses.extend(within);
                continue;
            };
            let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
            let mut instruction = Instruction::default();
            let mut begins = Vec::new();
            while decoder.can_decode() {
                begins.push(decoder.ip());
                decoder.decode_out(&mut instruction);
            }
            let is = |at: &&u64| begins.binary_search(at).is_ok();
            self.addresses.extend(within.iter().filter(is));
        }
        self.addresses.extend(targets);
    }

    /// Of a file that is loaded where it says: each word that is an address of code. Assembly need not
    /// align them (valgrind's are not).
    fn of_words(&mut self) {
        let code = (self.code.parts.iter()).filter(|part| part.executable);
        let ranges: Vec<Range<u64>> = code.map(Part::range).collect();
        for part in &self.code.parts {
            for word in part.bytes.windows(8) {
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                if ranges.iter().any(|range| range.contains(&word)) {
                    self.name(word);
                }
            }
        }
    }

    /// The table of a function's call sites, as exceptions and cancellation use it.
    fn of_landing_pads(&mut self, table: u64, function: &Range<u64>) {
        let Some(bytes) = self.code.bytes_from(table) else {
            return;
        };
        let mut at = Cursor {
            bytes,
            address: table,
        };
        let _ = landing_pads(&mut at, function, &mut |pad| self.add(pad));
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    address: u64,
}

const OMITTED: u8 = 0xff;

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        self.address = self.address.wrapping_add(1);
        Some(*first)
    }

    fn word<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        self.address = self.address.wrapping_add(N as u64);
        Some(*first)
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A pointer as DWARF's exception tables encode it (LSB, "Additional DWARF encodings").
    fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let here = self.address;
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => u64::from_le_bytes(self.word()?),
            0x01 => self.uleb()?,
            0x02 => u16::from_le_bytes(self.word()?).into(),
            0x0a => i64::from(i16::from_le_bytes(self.word()?)) as u64,
            0x03 => u32::from_le_bytes(self.word()?).into(),
            0x0b => i64::from(i32::from_le_bytes(self.word()?)) as u64,
            _ => return None,
        };
        match encoding & 0x70 {
            0x00 => Some(value),
            0x10 => Some(here.wrapping_add(value)),
            _ => None,
        }
    }
}

fn landing_pads(
    at: &mut Cursor<'_>,
    function: &Range<u64>,
    add: &mut dyn FnMut(u64),
) -> Option<()> {
    let start = match at.byte()? {
        OMITTED => function.start,
        encoding => at.pointer(encoding)?,
    };
    let types = at.byte()?;
    if types != OMITTED {
        at.uleb()?;
    }
    let encoding = at.byte()?;
    let bytes = at.uleb()?;
    let end = at.address.checked_add(bytes)?;
    while at.address < end {
        let (_begin, _length) = (at.pointer(encoding)?, at.pointer(encoding)?);
        let pad = at.pointer(encoding)?;
        at.uleb()?;
        if pad != 0 {
            add(start.wrapping_add(pad));
        }
    }
    Some(())
}
