// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which functions, files and lines are at an offset in a program or library?
//!
//! From its DWARF, or that of the files that go with it; its symbols; Go's
//! function table. Nothing here opens a file: all are handed in.

use std::cell::OnceCell;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use addr2line::{Context, LookupContinuation as _, LookupResult};
use debox_unwind::{Options, Program};
use gimli::{EndianSlice, RunTimeEndian, SectionId};
use object::{
    CompressionFormat, Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _,
    SegmentFlags, SymbolKind,
};

use crate::Frame;
use crate::elf::{Elf, parse};
use crate::memory::Memory;
use crate::wire::{BUILD_ID_MAX, FRAMES_MAX, LINK_BYTES_MAX, Loaded, Part};

type Slice = EndianSlice<'static, RunTimeEndian>;

/// Functions of one symbol table.
const SYMBOLS_MAX: usize = 4 << 20;

/// The debug information that goes with a module.
struct Dwarf {
    context: Context<Slice>,
    package: Option<gimli::DwarfPackage<Slice>>,
}

struct Symbol {
    address: u64,
    len: u64,
    name: &'static [u8],
}

/// One program or library. `memory` is dropped last, as fields are in their
/// order: the others point into it.
pub struct Module {
    dwarf: OnceCell<Result<Option<Dwarf>, String>>,
    tables: OnceCell<[Vec<Symbol>; 3]>,
    program: Option<Program>,
    main: Elf,
    debug: Option<Elf>,
    alt: Option<Elf>,
    package: Option<Elf>,
    memory: Memory,
}

/// What is at a place.
#[derive(Debug, Default)]
pub struct Named {
    pub frames: Vec<Frame>,
    /// What could not be used.
    pub incomplete: Option<String>,
}

impl Module {
    /// The program or library itself.
    pub fn open(file: &File) -> Result<Module, String> {
        let memory = Memory::default();
        let bytes = memory.file(file)?;
        Module::new(memory, bytes)
    }

    /// The same from its bytes.
    pub fn of_bytes(bytes: Vec<u8>) -> Result<Module, String> {
        let memory = Memory::default();
        let bytes = memory.own(bytes);
        Module::new(memory, bytes)
    }

    fn new(memory: Memory, bytes: &'static [u8]) -> Result<Module, String> {
        let main = parse(bytes)?;
        // Others, 32-bit programs say, have their symbols.
        let program = Program::open(bytes, &Options::new(Arc::default())).ok();
        Ok(Module {
            dwarf: OnceCell::new(),
            tables: OnceCell::new(),
            program,
            main,
            debug: None,
            alt: None,
            package: None,
            memory,
        })
    }

    /// Another file that goes with it, if it does.
    pub fn add(&mut self, part: Part, file: &File) -> Result<(), String> {
        let bytes = self.memory.file(file)?;
        self.add_bytes(part, bytes)
    }

    fn add_bytes(&mut self, part: Part, bytes: &'static [u8]) -> Result<(), String> {
        let elf = parse(bytes)?;
        let id = build_id(&elf);
        match part {
            Part::Main => return Err("it is there already".into()),
            Part::Link => {
                let wanted = self.main.gnu_debuglink().ok().flatten();
                if wanted.is_none_or(|(_, checksum)| checksum != crc32(bytes)) {
                    return Err("its checksum is another".into());
                }
                self.debug = Some(elf);
            }
            Part::BuildId => {
                if id.is_none() || id != build_id(&self.main) {
                    return Err("its build id is another".into());
                }
                self.debug = Some(elf);
            }
            Part::Alt => {
                let wanted = self.described().gnu_debugaltlink().ok().flatten();
                if id.is_none() || wanted.map(|(_, id)| id) != id.as_deref() {
                    return Err("its build id is another".into());
                }
                self.alt = Some(elf);
            }
            Part::Package => self.package = Some(elf),
        }
        self.dwarf = OnceCell::new();
        self.tables = OnceCell::new();
        Ok(())
    }

    /// The file whose DWARF is read.
    fn described(&self) -> &Elf {
        match &self.debug {
            Some(debug) if !has_dwarf(&self.main) => debug,
            _ => &self.main,
        }
    }

    /// What there is, and which other files it asks for.
    pub fn loaded(&self) -> Loaded {
        let bounded = |name: &[u8]| (name.len() <= LINK_BYTES_MAX).then(|| name.to_vec());
        let described = self.described();
        let link = self.main.gnu_debuglink().ok().flatten();
        let alt = described.gnu_debugaltlink().ok().flatten();
        Loaded {
            build_id: build_id(&self.main),
            debug_info: has_dwarf(described),
            link: link.and_then(|(name, _)| bounded(name)),
            alt: alt.and_then(|(name, _)| bounded(name)),
            split: described.section_by_name(".debug_addr").is_some(),
            copy_of: (self.program.as_ref())
                .and_then(Program::copy_of)
                .and_then(bounded),
        }
    }

    /// Bytes that it holds.
    pub(crate) fn held(&self) -> u64 {
        self.memory.held()
    }

    /// The functions around the call that returns to a place, an offset in the
    /// file: what is looked up is the byte before, which is in the call.
    pub fn name(&self, place: u64, lines: bool) -> Named {
        let mut named = Named::default();
        let site = self.program.as_ref().and_then(|p| p.site(place));
        let Some(address) = site
            .unwrap_or(place)
            .checked_sub(1)
            .and_then(|offset| address_of(&self.main, offset))
        else {
            return named;
        };
        let mut frames = Vec::new();
        if lines {
            match self.dwarf().as_ref().map(Option::as_ref) {
                Ok(Some(dwarf)) => match dwarf.frames(address) {
                    Ok(found) => frames = found,
                    Err(error) => named.incomplete = Some(damaged(error)),
                },
                Ok(None) => {}
                Err(error) => named.incomplete = Some(error.clone()),
            }
        }
        let has_line = frames.iter().any(|frame| frame.line != 0);
        let symbol = self.symbol(address);
        if let Some(outer) = frames.last_mut() {
            if outer.function.is_empty()
                && let Some(symbol) = symbol
            {
                outer.function = demangled(symbol.name, None);
                outer.offset = 0;
            }
            if outer.offset == 0
                && let Some(symbol) = symbol
            {
                outer.offset = (address - symbol.address).saturating_add(1);
            }
        }
        if frames.last().is_none_or(|outer| outer.function.is_empty()) {
            frames.clear();
            frames.extend(symbol.map(|symbol| Frame {
                function: demangled(symbol.name, None),
                offset: (address - symbol.address).saturating_add(1),
                ..Frame::default()
            }));
        }
        // A stripped Go program still has dynamic symbols if C is in it, and
        // the nearest one before is not the function.
        if !has_line && let Some(go) = self.program.as_ref().and_then(|p| p.go_place(address)) {
            frames = vec![Frame {
                function: go.function,
                offset: address.wrapping_sub(go.start).saturating_add(1),
                file: if lines { go.file } else { String::new() },
                line: if lines { go.line } else { 0 },
                inlined: false,
            }];
        }
        // What stands for it is told even without a name.
        if let Some(site) = site.filter(|_| frames.is_empty()) {
            frames.push(Frame {
                offset: site,
                ..Frame::default()
            });
        }
        named.frames = frames;
        named
    }

    fn dwarf(&self) -> &Result<Option<Dwarf>, String> {
        self.dwarf.get_or_init(|| {
            let described = self.described();
            if !has_dwarf(described) {
                return Ok(None);
            }
            Dwarf::load(
                &self.memory,
                described,
                self.alt.as_ref(),
                self.package.as_ref(),
            )
            .map(Some)
        })
    }

    fn symbol(&self, address: u64) -> Option<&Symbol> {
        let tables = self.tables.get_or_init(|| {
            [
                table(self.main.symbols()),
                self.debug
                    .as_ref()
                    .map(|debug| table(debug.symbols()))
                    .unwrap_or_default(),
                table(self.main.dynamic_symbols()),
            ]
        });
        tables.iter().find_map(|table| symbol_at(table, address))
    }
}

fn damaged(error: gimli::Error) -> String {
    format!("its debug information is damaged: {error}")
}

fn has_dwarf(elf: &Elf) -> bool {
    elf.section_by_name(".debug_info")
        .is_some_and(|section| section.size() > 0)
        // objcopy --only-keep-debug's counterpart: headers without content.
        && elf.section_by_name(".debug_abbrev").is_some_and(|s| s.data().is_ok_and(|d| !d.is_empty()))
}

fn build_id(elf: &Elf) -> Option<Vec<u8>> {
    let id = elf.build_id().ok().flatten()?;
    (1..=BUILD_ID_MAX).contains(&id.len()).then(|| id.to_vec())
}

/// The address, as in the symbols, of a byte of the file: of code first.
fn address_of(elf: &Elf, offset: u64) -> Option<u64> {
    let mut other = None;
    for segment in elf.segments() {
        let (start, len) = segment.file_range();
        if offset < start || offset - start >= len {
            continue;
        }
        let address = segment.address().checked_add(offset - start);
        let code = matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
        if code {
            return address;
        }
        other = other.or(address);
    }
    other
}

/// Its functions, sorted by address; those of one address in the table's order.
fn table<'a>(
    symbols: impl Iterator<Item = object::Symbol<'static, 'a, &'static [u8]>>,
) -> Vec<Symbol> {
    let mut table: Vec<Symbol> = symbols
        .filter(|symbol| symbol.kind() == SymbolKind::Text && !symbol.is_undefined())
        .filter_map(|symbol| {
            Some(Symbol {
                address: symbol.address(),
                len: symbol.size(),
                name: symbol.name_bytes().ok().filter(|name| !name.is_empty())?,
            })
        })
        .take(SYMBOLS_MAX)
        .collect();
    table.sort_by_key(|symbol| symbol.address);
    table
}

/// The function that starts nearest before an address, if it reaches there or
/// its length is not known.
fn symbol_at(table: &[Symbol], address: u64) -> Option<&Symbol> {
    let next = table.partition_point(|symbol| symbol.address <= address);
    let start = table[next.checked_sub(1)?].address;
    let first = table.partition_point(|symbol| symbol.address < start);
    table[first..next]
        .iter()
        .find(|symbol| symbol.len == 0 || address - start < symbol.len)
}

impl Dwarf {
    fn load(
        memory: &Memory,
        elf: &Elf,
        alt: Option<&Elf>,
        package: Option<&Elf>,
    ) -> Result<Dwarf, String> {
        let load = |elf, id: SectionId| match wanted(id) {
            true => content(memory, elf, Some(id.name())),
            false => content(memory, elf, None),
        };
        let mut dwarf = gimli::Dwarf::load(|id| load(elf, id))?;
        if let Some(alt) = alt {
            dwarf.load_sup(|id| load(alt, id))?;
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let package = match package {
            None => None,
            Some(package) => {
                let empty = EndianSlice::new(&[][..], endian(package));
                let loaded = gimli::DwarfPackage::load(
                    |id| content(memory, package, id.dwo_name()).map_err(|_| gimli::Error::Io),
                    empty,
                );
                Some(loaded.map_err(damaged)?)
            }
        };
        Ok(Dwarf {
            context: Context::from_dwarf(dwarf).map_err(damaged)?,
            package,
        })
    }

    fn frames(&self, address: u64) -> Result<Vec<Frame>, gimli::Error> {
        let mut lookup = self.context.find_frames(address);
        let mut found = loop {
            match lookup {
                LookupResult::Output(found) => break found?,
                LookupResult::Load { load, continuation } => {
                    let unit = match &self.package {
                        Some(package) => package.find_cu(load.dwo_id, &load.parent)?,
                        None => None,
                    };
                    lookup = continuation.resume(unit.map(Arc::new));
                }
            }
        };
        let mut frames: Vec<Frame> = Vec::new();
        let mut outermost = None;
        while let Some(frame) = found.next()? {
            if frames.len() >= FRAMES_MAX {
                break;
            }
            if let Some(inner) = frames.last_mut() {
                inner.inlined = true;
            }
            let function = match &frame.function {
                Some(name) => demangled(name.name.slice(), name.language),
                None => String::new(),
            };
            let (file, line) = frame.location.map_or((None, None), |at| (at.file, at.line));
            outermost = frame.dw_die_offset;
            frames.push(Frame {
                function,
                offset: 0,
                file: file.unwrap_or_default().to_owned(),
                line: line.unwrap_or(0),
                inlined: false,
            });
        }
        let start = outermost.and_then(|die| self.start(address, die));
        if let (Some(outer), Some(start)) = (frames.last_mut(), start) {
            outer.offset = (address - start).saturating_add(1);
        }
        Ok(frames)
    }

    /// Where the part of a function that an address is in starts.
    fn start(&self, address: u64, die: gimli::UnitOffset) -> Option<u64> {
        let unit = self.context.find_dwarf_and_unit(address).skip_all_loads()?;
        let entry = unit.entry(die).ok()?;
        let mut ranges = unit.die_ranges(&entry).ok()?;
        while let Ok(Some(range)) = ranges.next() {
            if (range.begin..range.end).contains(&address) {
                return Some(range.begin);
            }
        }
        None
    }
}

/// Variables, types and macros have no places.
fn wanted(section: SectionId) -> bool {
    !matches!(
        section,
        SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugTypes
    )
}

fn endian(elf: &Elf) -> RunTimeEndian {
    if elf.is_little_endian() {
        RunTimeEndian::Little
    } else {
        RunTimeEndian::Big
    }
}

/// A section's content, decompressed within the limit. One that cannot be had
/// is as good as not there, but for its size.
fn content(memory: &Memory, elf: &Elf, name: Option<&str>) -> Result<Slice, String> {
    let none = EndianSlice::new(&[][..], endian(elf));
    let Some(section) = name.and_then(|name| elf.section_by_name(name)) else {
        return Ok(none);
    };
    let Ok(data) = section.compressed_data() else {
        return Ok(none);
    };
    let bytes = match data.format {
        CompressionFormat::None => data.data,
        CompressionFormat::Zlib => {
            memory.may_hold(data.uncompressed_size)?;
            let decoder = flate2::read::ZlibDecoder::new(data.data);
            memory.own(taken(decoder, data.uncompressed_size)?)
        }
        CompressionFormat::Zstandard => {
            memory.may_hold(data.uncompressed_size)?;
            let decoder = zstd::stream::read::Decoder::with_buffer(data.data)
                .map_err(|error| format!("a section cannot be decompressed: {error}"))?;
            memory.own(taken(decoder, data.uncompressed_size)?)
        }
        _ => return Ok(none),
    };
    Ok(EndianSlice::new(bytes, endian(elf)))
}

/// No more than the header promises; less is what a damaged stream gives.
fn taken(decoder: impl Read, len: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    decoder
        .take(len)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("a section cannot be decompressed: {error}"))?;
    Ok(bytes)
}

/// Without a language (in symbol tables) a name is tried as Rust's, then as
/// C++'s.
fn demangled(name: &[u8], language: Option<gimli::DwLang>) -> String {
    // Names of a megabyte exist only to keep a demangler busy.
    const MANGLED_MAX: usize = 1 << 16;
    let text = String::from_utf8_lossy(name);
    if text.len() > MANGLED_MAX || !text.starts_with(['_', '.']) {
        return text.into_owned();
    }
    let language = match language {
        Some(gimli::DW_LANG_Rust) => Some(gimli::DW_LANG_Rust),
        Some(
            gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20,
        ) => Some(gimli::DW_LANG_C_plus_plus),
        _ => None,
    };
    addr2line::demangle_auto(text, language).into_owned()
}

/// The checksum of a debug link: CRC-32 as in zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
