// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes of a file are code, and where do its functions begin?
//!
//! Instructions have no marks: read from a wrong byte, other ones are seen. So they are read
//! from where functions are known to begin, by the unwind table (`.eh_frame`, which also
//! covers hand-written code that has call frame information) and by symbols that have a
//! size, and only up to where these end. What lies outside of them is a gap: it is read
//! as well, for jumps that lead out of it, but no site in it is believed.

use crate::Error;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use std::collections::BTreeMap;
use std::ops::Range;

type Header = FileHeader64<Endianness>;

/// Larger ones are left to other captures: their tables would take seconds.
pub(crate) const CODE_BYTES_MAX: usize = 512 << 20;
/// Functions that are larger are data that somebody gave a size.
const FUNCTION_BYTES_MAX: u64 = 64 << 20;

const FIND_OBJECT: &[u8] = b"_dl_find_object";
/// What a C library has.
const LIBC: &[u8] = b"__libc_start_main";
/// The first is a version of symbols.
const CANCELLED_BY_PLACE: [&[u8]; 3] = [b"GLIBC_2.41", b"__syscall_cancel_arch", b"__cp_begin"];

/// A part of the file as it is mapped.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub address: u64,
    pub bytes: &'a [u8],
    pub executable: bool,
}

impl Part<'_> {
    pub fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.bytes.len() as u64)
    }
}

/// What of a file matters here. Addresses are those of the file.
pub(crate) struct Code<'a> {
    /// Empty: it has none.
    pub build_id: Vec<u8>,
    /// Mapped parts that are in the file, by address.
    pub parts: Vec<Part<'a>>,
    /// Where functions lie, by address; they do not overlap.
    pub functions: Vec<Range<u64>>,
    /// Of their call frame information: where tables of landing pads lie, with the function.
    pub landing_tables: Vec<(u64, Range<u64>)>,
    /// What pointers are made of as the file is loaded.
    pub pointers: Vec<u64>,
    /// Values of symbols of code, those without a size among them: other files may come there by name.
    pub labels: Vec<u64>,
    /// It has a table of Go's.
    pub is_go: bool,
    /// What its unwind table tells of, by address; None: not known, there is one that cannot be read.
    unwound: Option<Vec<Range<u64>>>,
    /// Sections that are no code, whatever else lies in their segment (.rodata, linked without `-z separate-code`).
    data: Vec<Range<u64>>,
    /// `_dl_find_object`: an unwinder asks it which table is of some code (glibc 2.35).
    pub find_object: Option<u64>,
    /// By its names it compares where a call was interrupted with its own code (glibc 2.41, musl).
    pub cancels_by_place: bool,
    /// It is, or has, a C library.
    pub is_libc: bool,
    /// It is a program, with all of its libraries.
    pub is_whole: bool,
    /// It is a program whose libraries are files of their own.
    pub has_loader: bool,
    /// The file may be loaded anywhere: absolute addresses in it are in `pointers`.
    pub relocatable: bool,
}

fn not_elf(error: impl ToString) -> Error {
    Error::NotElf(error.to_string())
}

impl<'a> Code<'a> {
    pub fn of(file: &'a [u8]) -> Result<Self, Error> {
        let header = Header::parse(file).map_err(not_elf)?;
        let endian = header.endian().map_err(not_elf)?;
        if header.e_machine(endian) != elf::EM_X86_64 || endian != Endianness::Little {
            return Err(Error::NotElf("not of x86-64".into()));
        }
        let mut parts = Vec::new();
        let (mut has_loader, mut says_program, mut unwinds) = (false, false, false);
        for segment in header.program_headers(endian, file).map_err(not_elf)? {
            has_loader |= segment.p_type(endian) == elf::PT_INTERP;
            unwinds |= segment.p_type(endian) == elf::PT_GNU_EH_FRAME;
            if let Ok(Some(about)) = segment.dynamic(endian, file) {
                let flags = about
                    .iter()
                    .find(|entry| entry.tag32(endian) == Some(elf::DT_FLAGS_1));
                let flags = flags.map_or(0, |entry| entry.d_val(endian));
                says_program = flags & u64::from(elf::DF_1_PIE) != 0;
            }
            if segment.p_type(endian) != elf::PT_LOAD {
                continue;
            }
            parts.push(Part {
                address: segment.p_vaddr(endian),
                bytes: segment
                    .data(endian, file)
                    .map_err(|()| not_elf("a segment lies outside of the file"))?,
                executable: segment.p_flags(endian) & elf::PF_X != 0,
            });
        }
        parts.sort_by_key(|part| part.address);
        let all: usize = (parts.iter())
            .filter(|part| part.executable)
            .map(|part| part.bytes.len())
            .sum();
        if all > CODE_BYTES_MAX {
            return Err(Error::TooLarge {
                most: CODE_BYTES_MAX,
            });
        }
        let relocatable = header.e_type(endian) == elf::ET_DYN;
        let mut code = Self {
            build_id: build_id(header, endian, file).unwrap_or_default(),
            parts,
            functions: Vec::new(),
            landing_tables: Vec::new(),
            pointers: Vec::new(),
            labels: Vec::new(),
            is_go: false,
            unwound: None,
            data: Vec::new(),
            find_object: None,
            cancels_by_place: false,
            is_libc: false,
            is_whole: !has_loader && (!relocatable || says_program),
            has_loader,
            relocatable,
        };
        let mut found = Vec::new();
        let read = code.by_unwind_table(header, endian, file, &mut found);
        code.unwound = match read {
            None if unwinds => None,
            _ => Some(apart(found.clone())),
        };
        code.by_symbols(header, endian, file, &mut found)?;
        code.by_go_table(header, endian, file, &mut found);
        code.functions = apart(found);
        code.data(header, endian, file)?;
        code.gaps_fallen_into();
        code.relocations(header, endian, file)?;
        Ok(code)
    }

    /// The bytes from an address to the end of its part.
    pub fn bytes_from(&self, address: u64) -> Option<&'a [u8]> {
        let after = self.parts.partition_point(|part| part.address <= address);
        let part = self.parts.get(after.checked_sub(1)?)?;
        part.bytes.get((address - part.address) as usize..)
    }

    pub fn is_executable(&self, address: u64) -> bool {
        (self.parts.iter()).any(|part| part.executable && part.range().contains(&address))
    }

    /// Whether an unwinder has, or may have, a table of a function.
    pub fn is_unwound(&self, function: &Range<u64>) -> bool {
        self.unwound.as_ref().is_none_or(|all| {
            let behind = all.partition_point(|range| range.end <= function.start);
            all.get(behind)
                .is_some_and(|range| range.start < function.end)
        })
    }

    pub fn is_data(&self, address: u64) -> bool {
        self.data.iter().any(|section| section.contains(&address))
    }

    pub fn bytes(&self, range: &Range<u64>) -> Option<&'a [u8]> {
        self.bytes_from(range.start)?
            .get(..usize::try_from(range.end.checked_sub(range.start)?).ok()?)
    }

    /// Executable bytes that no function covers.
    pub fn gaps(&self) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        for part in self.parts.iter().filter(|part| part.executable) {
            let range = part.range();
            let mut at = range.start;
            for function in &self.functions {
                if function.end <= at || function.start >= range.end {
                    continue;
                }
                if at < function.start {
                    gaps.push(at..function.start);
                }
                at = function.end;
            }
            if at < range.end {
                gaps.push(at..range.end);
            }
        }
        gaps
    }

    /// A function whose last instruction leads on into a gap goes on there: hand-written code
    /// ends its call frame information where a child's stack begins (glibc's clone3).
    fn gaps_fallen_into(&mut self) {
        for gap in self.gaps() {
            let before = self
                .functions
                .partition_point(|function| function.end < gap.start);
            let falls = (self.functions.get(before).cloned())
                .filter(|function| function.end == gap.start)
                .and_then(|function| Some((self.bytes(&function)?, function.start)))
                .is_some_and(|(bytes, start)| falls_through(bytes, start));
            if falls {
                let data = self.data.iter().map(|section| section.start);
                let data = data.filter(|start| gap.contains(start)).min();
                self.functions[before].end = data.unwrap_or(gap.end);
            }
        }
    }

    fn by_unwind_table(
        &mut self,
        header: &Header,
        endian: Endianness,
        file: &'a [u8],
        found: &mut Vec<Range<u64>>,
    ) -> Option<()> {
        let sections = header.sections(endian, file).ok()?;
        let (_, section) = sections.section_by_name(endian, b".eh_frame")?;
        let bytes = section.data(endian, file).ok()?;
        let address = |name: &[u8]| {
            let section = sections.section_by_name(endian, name);
            section.map_or(0, |(_, section)| section.sh_addr(endian))
        };
        let bases = BaseAddresses::default()
            .set_eh_frame(section.sh_addr(endian))
            .set_text(address(b".text"))
            .set_got(address(b".got"));
        let frames = EhFrame::new(bytes, LittleEndian);
        let mut entries = frames.entries(&bases);
        // What is damaged covers nothing from there on.
        while let Some(entry) = entries.next().ok()? {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(EhFrame::cie_from_offset).ok()?;
            let begin = fde.initial_address();
            let Some(end) = begin.checked_add(fde.len()) else {
                continue;
            };
            // That of a signal handler's return begins a byte before its code, so that an
            // unwinder that looks up a byte before a return address finds it.
            found.push(begin + u64::from(fde.is_signal_trampoline())..end);
            if let Some(gimli::Pointer::Direct(table)) = fde.lsda() {
                self.landing_tables.push((table, begin..end));
            }
        }
        Some(())
    }

    /// Stripped, as most Go programs are that are given away: then there are functions of C at most, and few names that
    /// are exported.
    fn by_go_table(
        &mut self,
        header: &Header,
        endian: Endianness,
        file: &[u8],
        found: &mut Vec<Range<u64>>,
    ) {
        let Ok(sections) = header.sections(endian, file) else {
            return;
        };
        let has = |name: &str| {
            let section = sections.section_by_name(endian, name.as_bytes());
            section.is_some()
        };
        self.is_go = debox_unwind::GO_SECTIONS.into_iter().any(has);
        if !self.is_go || has(".symtab") {
            return;
        }
        let program = debox_unwind::Program::open(file, &debox_unwind::Options::default());
        let functions = program.map_or_else(|_| Vec::new(), |program| program.go_functions());
        found.extend(
            functions
                .into_iter()
                .filter(|range| self.may_be_read(range)),
        );
    }

    fn may_be_read(&self, range: &Range<u64>) -> bool {
        range.start < range.end
            && range.end - range.start <= FUNCTION_BYTES_MAX
            && self.is_executable(range.start)
            && self.bytes(range).is_some()
    }

    fn by_symbols(
        &mut self,
        header: &Header,
        endian: Endianness,
        file: &'a [u8],
        found: &mut Vec<Range<u64>>,
    ) -> Result<(), Error> {
        let sections = header.sections(endian, file).map_err(not_elf)?;
        let mut is_libc = false;
        let mut named = false;
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let Ok(symbols) = sections.symbols(endian, file, kind) else {
                continue;
            };
            for symbol in symbols.iter() {
                let functions = [elf::STT_FUNC, elf::STT_GNU_IFUNC];
                let name = symbol.name(endian, symbols.strings()).unwrap_or_default();
                let defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
                named |= defined && CANCELLED_BY_PLACE[1..].contains(&name);
                is_libc |= defined && name == LIBC;
                if name == FIND_OBJECT && defined {
                    self.find_object = Some(symbol.st_value(endian));
                }
                if defined
                    && (functions.contains(&symbol.st_type())
                        || symbol.st_type() == elf::STT_NOTYPE)
                {
                    self.labels.push(symbol.st_value(endian));
                }
                if functions.contains(&symbol.st_type()) && defined {
                    let begin = symbol.st_value(endian);
                    found.push(begin..begin.saturating_add(symbol.st_size(endian)));
                }
            }
        }
        // Other libraries of it have symbols of that version, too.
        let version = is_libc && defines_version(&sections, endian, file, CANCELLED_BY_PLACE[0]);
        self.cancels_by_place = named || version;
        self.is_libc = is_libc;
        found.retain(|range| self.may_be_read(range));
        Ok(())
    }

    fn data(&mut self, header: &Header, endian: Endianness, file: &'a [u8]) -> Result<(), Error> {
        let sections = header.sections(endian, file).map_err(not_elf)?;
        let data = sections.iter().filter(|section| {
            let flags = section.sh_flags(endian);
            let loaded = flags & u64::from(elf::SHF_ALLOC) != 0
                && section.sh_type(endian) != elf::SHT_NOBITS;
            loaded && flags & u64::from(elf::SHF_EXECINSTR) == 0
        });
        self.data = data
            .map(|section| {
                let begin = section.sh_addr(endian);
                begin..begin.saturating_add(section.sh_size(endian))
            })
            .collect();
        Ok(())
    }

    /// Addends of relative relocations: what becomes a pointer into this file.
    fn relocations(
        &mut self,
        header: &Header,
        endian: Endianness,
        file: &'a [u8],
    ) -> Result<(), Error> {
        let sections = header.sections(endian, file).map_err(not_elf)?;
        for section in sections.iter() {
            if let Ok(Some((relocations, _))) = section.rela(endian, file) {
                for relocation in relocations {
                    let kind = relocation.r_type(endian, false);
                    if [elf::R_X86_64_RELATIVE, elf::R_X86_64_IRELATIVE].contains(&kind) {
                        self.pointers.push(relocation.r_addend.get(endian) as u64);
                    }
                }
            }
            if let Ok(Some(packed)) = section.relr(endian, file) {
                for place in packed {
                    let bytes = self.bytes_from(place).and_then(|bytes| bytes.get(..8));
                    if let Some(bytes) = bytes {
                        (self.pointers)
                            .push(u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether it is a library that has this version of its symbols.
fn defines_version(
    sections: &object::read::elf::SectionTable<'_, Header>,
    endian: Endianness,
    file: &[u8],
    version: &[u8],
) -> bool {
    let Ok(Some((mut all, strings))) = sections.gnu_verdef(endian, file).map(|found| {
        found.and_then(|(all, strings)| Some((all, sections.strings(endian, file, strings).ok()?)))
    }) else {
        return false;
    };
    while let Ok(Some((_, mut names))) = all.next() {
        while let Ok(Some(name)) = names.next() {
            if name.name(endian, strings).is_ok_and(|name| name == version) {
                return true;
            }
        }
    }
    false
}

/// Whether the last of these instructions is followed by what comes after them.
fn falls_through(bytes: &[u8], start: u64) -> bool {
    let decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    decoder.into_iter().last().is_some_and(|last| {
        let flow = last.flow_control();
        !last.is_invalid() && matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch)
    })
}

fn build_id(header: &Header, endian: Endianness, file: &[u8]) -> Option<Vec<u8>> {
    for segment in header.program_headers(endian, file).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, file) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec()).filter(|id| !id.is_empty());
            }
        }
    }
    None
}

/// Of ranges that overlap the one that begins first, up to where the next begins: both begin
/// where a function does, and what begins in the midst of one is read from there.
fn apart(found: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut by_start: BTreeMap<u64, u64> = BTreeMap::new();
    for range in found {
        let end = by_start.entry(range.start).or_default();
        *end = range.end.max(*end);
    }
    let mut functions: Vec<Range<u64>> = Vec::with_capacity(by_start.len());
    for (start, end) in by_start {
        if let Some(last) = functions.last_mut()
            && last.end > start
        {
            // The rest of the longer one goes on behind the shorter one.
            let rest = last.end;
            last.end = start;
            functions.push(start..end.max(rest));
            continue;
        }
        functions.push(start..end);
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn functions_do_not_overlap() {
        assert_eq!(apart(vec![0..4, 8..10, 4..6]), [0..4, 4..6, 8..10]);
        assert_eq!(apart(vec![0..10, 4..6]), [0..4, 4..10]);
        assert_eq!(apart(vec![0..6, 4..10, 0..3]), [0..4, 4..10]);
        assert_eq!(apart(vec![]), []);
    }
}
