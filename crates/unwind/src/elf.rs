// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which parts of an ELF file matter for unwinding, and where are they?

use std::cell::Cell;
use std::io::Read as _;

use object::LittleEndian as LE;
use object::elf;
use object::pod::{from_bytes, slice_from_bytes};

use crate::{Error, Options, Source};

/// A file has a handful of segments and some dozens of sections; the ELF
/// header's 16 bits allow 65,535 of each, which bounds the loops below.
const NOTE_BYTES_MAX: u64 = 1 << 16;
const DYNAMIC_BYTES_MAX: u64 = 1 << 20;
const SONAME_BYTES_MAX: usize = 256;
/// Longer than the names of all sections that are of use.
const SECTION_NAME_MAX: usize = 64;

/// A part of the file that is mapped executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub offset: u32,
    pub len: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub len: u64,
    pub link: u32,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    address: u64,
    offset: u64,
    len: u64,
}

/// A symbol of kind function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    pub address: u64,
    pub len: u64,
    pub name: String,
}

pub struct Image<'a, S: Source + ?Sized> {
    source: &'a S,
    file_len: u64,
    /// Bytes that may still be read or decompressed.
    budget: Cell<u64>,
    read_limit: u64,
    max_symbols: usize,
    pub entry: u64,
    pub elf_type: u16,
    /// Sorted by file offset, not overlapping.
    pub executable: Vec<Segment>,
    loads: Vec<Load>,
    pub build_id: Option<Vec<u8>>,
    pub soname: Option<String>,
    pub has_interpreter: bool,
    pub has_needed: bool,
    pub is_pie: bool,
    pub eh_frame_hdr: Option<u64>,
    sections: Vec<(String, Section)>,
}

impl<'a, S: Source + ?Sized> Image<'a, S> {
    pub fn open(source: &'a S, options: &Options) -> Result<Self, Error> {
        let file_len = source.byte_len()?;
        let limit = options.max_file_bytes;
        if file_len > limit {
            return Err(Error::Limit {
                what: "the file's length in bytes",
                value: file_len,
                limit,
            });
        }
        let mut image = Image {
            source,
            file_len,
            budget: Cell::new(options.max_read_bytes),
            read_limit: options.max_read_bytes,
            max_symbols: options.max_rows,
            entry: 0,
            elf_type: 0,
            executable: Vec::new(),
            loads: Vec::new(),
            build_id: None,
            soname: None,
            has_interpreter: false,
            has_needed: false,
            is_pie: false,
            eh_frame_hdr: None,
            sections: Vec::new(),
        };
        image.read_headers()?;
        Ok(image)
    }

    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// So many bytes from there, if the file and the limit allow.
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let in_file = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.file_len);
        if !in_file {
            return Err(Error::Malformed {
                what: "a part of it lies behind its end",
            });
        }
        self.charge(len)?;
        let mut bytes = vec![0; len as usize];
        self.source.read_exact_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    fn charge(&self, len: u64) -> Result<(), Error> {
        let left = self.budget.get();
        if len > left {
            return Err(Error::Limit {
                what: "what has to be read of it, in bytes,",
                value: (self.read_limit - left).saturating_add(len),
                limit: self.read_limit,
            });
        }
        self.budget.set(left - len);
        Ok(())
    }

    fn read_headers(&mut self) -> Result<(), Error> {
        let ident_len = 16.min(self.file_len);
        let ident = self.read(0, ident_len)?;
        if ident.get(..4) != Some(&elf::ELFMAG[..]) {
            return Err(Error::NotElf);
        }
        match ident.get(4..6) {
            Some(&[elf::ELFCLASS64, elf::ELFDATA2LSB]) => {}
            Some(&[elf::ELFCLASS32, _]) => return Err(Error::Elf32),
            Some(&[_, elf::ELFDATA2MSB]) => return Err(Error::Machine { machine: 0 }),
            _ => return Err(Error::NotElf),
        }
        let bytes = self.read(0, size_of::<elf::FileHeader64<LE>>() as u64)?;
        let (header, _) = from_bytes::<elf::FileHeader64<LE>>(&bytes).map_err(damaged_header)?;
        let machine = header.e_machine.get(LE);
        if machine != elf::EM_X86_64 {
            return Err(Error::Machine { machine });
        }
        self.elf_type = header.e_type.get(LE);
        if !matches!(self.elf_type, elf::ET_EXEC | elf::ET_DYN) {
            return Err(Error::NotLoadable {
                elf_type: self.elf_type,
            });
        }
        self.entry = header.e_entry.get(LE);
        self.read_segments(header)?;
        // A file without section headers can still be unwound.
        self.read_sections(header).or_else(|error| match error {
            Error::Malformed { .. } => Ok(()),
            error => Err(error),
        })
    }

    fn read_segments(&mut self, header: &elf::FileHeader64<LE>) -> Result<(), Error> {
        type Header = elf::ProgramHeader64<LE>;
        let count = header.e_phnum.get(LE);
        if count > 0 && usize::from(header.e_phentsize.get(LE)) != size_of::<Header>() {
            return Err(damaged_header(()));
        }
        let len = u64::from(count) * size_of::<Header>() as u64;
        let bytes = self.read(header.e_phoff.get(LE), len)?;
        let (headers, _) =
            slice_from_bytes::<Header>(&bytes, usize::from(count)).map_err(damaged_header)?;
        let mut dynamic = None;
        for segment in headers {
            let (offset, len) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
            let address = segment.p_vaddr.get(LE);
            match segment.p_type.get(LE) {
                elf::PT_LOAD => {
                    // What lies behind the end of the file is never mapped.
                    let len = len.min(self.file_len.saturating_sub(offset));
                    if len == 0 || address.checked_add(len).is_none() {
                        continue;
                    }
                    self.loads.push(Load {
                        address,
                        offset,
                        len,
                    });
                    if segment.p_flags.get(LE) & elf::PF_X != 0 {
                        let limit = u64::from(u32::MAX);
                        if offset + len > limit {
                            return Err(Error::Limit {
                                what: "the end of its code in the file, in bytes,",
                                value: offset + len,
                                limit,
                            });
                        }
                        self.executable.push(Segment {
                            address,
                            offset: offset as u32,
                            len: len as u32,
                        });
                    }
                }
                elf::PT_DYNAMIC if len <= DYNAMIC_BYTES_MAX => dynamic = Some((offset, len)),
                elf::PT_INTERP => self.has_interpreter = true,
                elf::PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(address),
                elf::PT_NOTE if len <= NOTE_BYTES_MAX && self.build_id.is_none() => {
                    if let Ok(notes) = self.read(offset, len) {
                        self.build_id = build_id(&notes, segment.p_align.get(LE));
                    }
                }
                _ => {}
            }
        }
        self.executable.sort_by_key(|segment| segment.offset);
        // Two segments that show the same part of the file: the first counts.
        let mut end = 0;
        self.executable.retain(|segment| {
            let keep = segment.offset >= end;
            if keep {
                end = segment.offset + segment.len;
            }
            keep
        });
        if let Some((offset, len)) = dynamic
            && let Ok(bytes) = self.read(offset, len)
        {
            self.read_dynamic(&bytes);
        }
        Ok(())
    }

    fn read_dynamic(&mut self, bytes: &[u8]) {
        let (mut soname, mut strings) = (None, None);
        for entry in bytes.chunks_exact(16) {
            let tag = word(entry, 0).unwrap_or(0);
            let value = word(entry, 8).unwrap_or(0);
            match u32::try_from(tag).unwrap_or(0) {
                elf::DT_NULL if tag == 0 => break,
                elf::DT_SONAME => soname = Some(value),
                elf::DT_STRTAB => strings = Some(value),
                elf::DT_NEEDED => self.has_needed = true,
                elf::DT_FLAGS_1 => self.is_pie = value & u64::from(elf::DF_1_PIE) != 0,
                _ => {}
            }
        }
        let place = soname
            .zip(strings)
            .and_then(|(name, table)| self.file_offset(table.checked_add(name)?));
        if let Some(offset) = place {
            let len = (SONAME_BYTES_MAX as u64).min(self.file_len.saturating_sub(offset));
            if let Ok(bytes) = self.read(offset, len) {
                self.soname = string(&bytes, 0);
            }
        }
    }

    fn read_sections(&mut self, header: &elf::FileHeader64<LE>) -> Result<(), Error> {
        type Header = elf::SectionHeader64<LE>;
        let count = usize::from(header.e_shnum.get(LE));
        if count == 0 || usize::from(header.e_shentsize.get(LE)) != size_of::<Header>() {
            return Ok(());
        }
        let bytes = self.read(
            header.e_shoff.get(LE),
            count as u64 * size_of::<Header>() as u64,
        )?;
        let (headers, _) = slice_from_bytes::<Header>(&bytes, count).map_err(damaged_header)?;
        let Some(names) = headers.get(usize::from(header.e_shstrndx.get(LE))) else {
            return Ok(());
        };
        let names = self.read(names.sh_offset.get(LE), names.sh_size.get(LE))?;
        for section in headers {
            // All 65,535 names could be one that is 4 KiB long.
            let name = string(&names, section.sh_name.get(LE) as usize)
                .filter(|name| name.len() <= SECTION_NAME_MAX)
                .unwrap_or_default();
            self.sections.push((
                name,
                Section {
                    kind: section.sh_type.get(LE),
                    flags: section.sh_flags.get(LE),
                    address: section.sh_addr.get(LE),
                    offset: section.sh_offset.get(LE),
                    len: section.sh_size.get(LE),
                    link: section.sh_link.get(LE),
                },
            ));
        }
        Ok(())
    }

    /// A section that has content in the file.
    pub fn section(&self, name: &str) -> Option<Section> {
        self.sections
            .iter()
            .find(|(n, s)| n == name && s.kind != elf::SHT_NOBITS && s.kind != elf::SHT_NULL)
            .map(|(_, section)| *section)
    }

    pub fn sections(&self) -> impl Iterator<Item = (&str, Section)> {
        self.sections.iter().map(|(name, s)| (name.as_str(), *s))
    }

    /// A section's content, decompressed.
    pub fn content(&self, section: &Section) -> Result<Vec<u8>, Error> {
        let bytes = self.read(section.offset, section.len)?;
        if section.flags & u64::from(elf::SHF_COMPRESSED) == 0 {
            return Ok(bytes);
        }
        let (header, data) =
            from_bytes::<elf::CompressionHeader64<LE>>(&bytes).map_err(damaged_section)?;
        let len = header.ch_size.get(LE);
        self.charge(len)?;
        match header.ch_type.get(LE) {
            elf::ELFCOMPRESS_ZLIB => inflate(data, len),
            elf::ELFCOMPRESS_ZSTD => {
                let decoder = zstd::stream::read::Decoder::with_buffer(data)?;
                take(decoder, len)
            }
            _ => Err(damaged_section(())),
        }
    }

    /// A section in the form that Go's linker and older compilers used before
    /// SHF_COMPRESSED: `ZLIB`, the length in 8 bytes (big endian), and data.
    pub fn zdebug_content(&self, section: &Section) -> Result<Vec<u8>, Error> {
        let bytes = self.read(section.offset, section.len)?;
        let len = bytes
            .get(4..12)
            .filter(|_| bytes.starts_with(b"ZLIB"))
            .and_then(|len| Some(u64::from_be_bytes(len.try_into().ok()?)))
            .ok_or_else(|| damaged_section(()))?;
        self.charge(len)?;
        inflate(&bytes[12..], len)
    }

    /// Where the byte at an address is in the file.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let load = self
            .loads
            .iter()
            .find(|load| address >= load.address && address - load.address < load.len)?;
        Some(load.offset + (address - load.address))
    }

    /// How many bytes of the file are mapped in one piece from an address on.
    pub fn mapped_from(&self, address: u64) -> Option<(u64, u64)> {
        let load = self
            .loads
            .iter()
            .find(|load| address >= load.address && address - load.address < load.len)?;
        let into = address - load.address;
        Some((load.offset + into, load.len - into))
    }

    /// The part of an address range that is code, as offsets in the file.
    pub fn code(&self, start: u64, end: u64) -> Option<(u32, u32)> {
        let segment = self
            .executable
            .iter()
            .find(|s| start >= s.address && start - s.address < u64::from(s.len))?;
        let from = (start - segment.address) as u32;
        let to = end
            .checked_sub(segment.address)?
            .min(u64::from(segment.len)) as u32;
        (to > from).then_some((segment.offset + from, segment.offset + to))
    }

    /// All function symbols of one table (`SHT_SYMTAB` or `SHT_DYNSYM`) that
    /// are defined here, sorted by address.
    pub fn functions(&self, table: u32) -> Result<Vec<Symbol>, Error> {
        type Entry = elf::Sym64<LE>;
        let Some((_, section)) = self.sections.iter().find(|(_, s)| s.kind == table) else {
            return Ok(Vec::new());
        };
        let Some((_, names)) = self.sections.get(section.link as usize) else {
            return Ok(Vec::new());
        };
        let count = section.len / size_of::<Entry>() as u64;
        if count > 4 * self.max_symbols as u64 {
            return Err(Error::Limit {
                what: "the number of its symbols",
                value: count,
                limit: 4 * self.max_symbols as u64,
            });
        }
        let names = self.read(names.offset, names.len)?;
        let bytes = self.read(section.offset, count * size_of::<Entry>() as u64)?;
        let (entries, _) =
            slice_from_bytes::<Entry>(&bytes, count as usize).map_err(damaged_section)?;
        let mut symbols = Vec::new();
        // Names overlap in a hostile table: their bytes are charged, too.
        for entry in entries {
            let kind = entry.st_info & 0xf;
            let defined = entry.st_shndx.get(LE) != elf::SHN_UNDEF;
            if !defined || !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) {
                continue;
            }
            let Some(name) = string(&names, entry.st_name.get(LE) as usize) else {
                continue;
            };
            self.charge(name.len() as u64)?;
            symbols.push(Symbol {
                address: entry.st_value.get(LE),
                len: entry.st_size.get(LE),
                name,
            });
        }
        symbols.sort();
        Ok(symbols)
    }
}

/// The little-endian 8 bytes at an offset.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The little-endian 4 bytes at an offset.
pub fn half(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// A name of at most 4 KiB that ends with a zero byte.
pub fn string(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let rest = &rest[..rest.len().min(4096)];
    let len = rest.iter().position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..len]).into_owned())
}

fn damaged_header(_: ()) -> Error {
    Error::Malformed {
        what: "its headers are not those of a 64-bit program",
    }
}

fn damaged_section(_: ()) -> Error {
    Error::Malformed {
        what: "a section is not what its header says",
    }
}

fn inflate(data: &[u8], len: u64) -> Result<Vec<u8>, Error> {
    take(flate2::read::ZlibDecoder::new(data), len)
}

/// At most `len` bytes; less is what a damaged stream gives.
fn take(decoder: impl std::io::Read, len: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    decoder
        .take(len)
        .read_to_end(&mut bytes)
        .map_err(|_| damaged_section(()))?;
    Ok(bytes)
}

/// NT_GNU_BUILD_ID among a segment's notes.
fn build_id(notes: &[u8], align: u64) -> Option<Vec<u8>> {
    let align = if align == 8 { 8 } else { 4 };
    let mut at = 0usize;
    loop {
        let name_len = half(notes, at)? as usize;
        let len = half(notes, at.checked_add(4)?)? as usize;
        let kind = half(notes, at.checked_add(8)?)?;
        let name_at = at.checked_add(12)?;
        let data_at = name_at
            .checked_add(name_len)?
            .checked_next_multiple_of(align)?;
        let data = notes.get(data_at..data_at.checked_add(len)?)?;
        let name = notes.get(name_at..name_at.checked_add(name_len)?)?;
        if kind == elf::NT_GNU_BUILD_ID && name == b"GNU\0" && !data.is_empty() {
            return Some(data.to_vec());
        }
        at = data_at.checked_add(len)?.checked_next_multiple_of(align)?;
    }
}
