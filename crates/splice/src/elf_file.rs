// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a program's loader lie, where its headers, and what of its pages of code is nobody's?

use crate::Error;
use crate::state::PAGE;
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub struct Facts {
    /// Of its first instruction.
    pub entry: u64,
    /// Address of the program headers, where the kernel says AT_PHDR.
    pub headers: Option<u64>,
    pub interpreter: Option<PathBuf>,
    /// Addresses from where its code ends to where its last page does: mapped to be executed, and nobody's.
    pub spare: Range<u64>,
}

/// # Errors
/// When it is no ELF file.
pub fn facts(file: &[u8]) -> Result<Facts, Error> {
    let not = |error: object::Error| Error::NotElf(error.to_string());
    let header = FileHeader64::<Endianness>::parse(file).map_err(not)?;
    let endian = header.endian().map_err(not)?;
    let at = header.e_phoff(endian);
    let mut facts = Facts {
        entry: header.e_entry(endian),
        headers: None,
        interpreter: None,
        spare: 0..0,
    };
    for segment in header.program_headers(endian, file).map_err(not)? {
        let (address, offset) = (segment.p_vaddr(endian), segment.p_offset(endian));
        match segment.p_type(endian) {
            elf::PT_LOAD => {
                let inside = at >= offset && at - offset < segment.p_filesz(endian);
                if inside && facts.headers.is_none() {
                    facts.headers = Some(address.wrapping_add(at - offset));
                }
                let bytes = segment.p_filesz(endian);
                let rights = segment.p_flags(endian) & (elf::PF_X | elf::PF_W);
                if rights == elf::PF_X && segment.p_memsz(endian) == bytes {
                    let end = address.wrapping_add(bytes);
                    let spare = end..end.checked_next_multiple_of(PAGE).unwrap_or(end);
                    if spare.end - spare.start > facts.spare.end - facts.spare.start {
                        facts.spare = spare;
                    }
                }
            }
            elf::PT_INTERP => {
                let path = segment
                    .data(endian, file)
                    .map_err(|()| Error::Damaged("it names no loader"))?;
                let path = path.strip_suffix(b"\0").unwrap_or(path);
                facts.interpreter = Some(PathBuf::from(OsStr::from_bytes(path)));
            }
            _ => {}
        }
    }
    Ok(facts)
}
