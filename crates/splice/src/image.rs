// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a copy of a file's code look in which calls are spliced?
//!
//! One file, mapped by every process that runs the code: its executable segments with
//! jumps in the windows, and beside them the *pool*, the trampolines. The pool lies a fixed way
//! before the code, so that all jumps are the same wherever the code is loaded; and as the
//! state is at GS, nothing in it depends on the process. `splice/state.h` has the
//! layout (`struct splice_image`); the runtime maps it.

use crate::state::{IMAGE_MAGIC, IMAGE_SEGMENTS, VERSION};
use crate::trampoline::trampoline;
use crate::{Error, JUMP_BYTES, Table};
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

const PAGE: u64 = 4096;
/// Jumps are of 32 bits.
const REACH: u64 = 0x7000_0000;
/// From a file that can be loaded anywhere to its pool: what is mapped after it lies below it.
const AWAY: u64 = 0x1000_0000;
/// Where nothing can be mapped (vm.mmap_min_addr).
const LOWEST: u64 = 0x1_0000;
/// Addresses are counted from here while code is written: a pool may lie below 0.
const SHIFT: u64 = 1 << 32;
/// What is before the first instruction of a trampoline; a jump that is missed stops there.
const FILL: u8 = 0xcc;

struct Segment {
    address: u64,
    file_offset: u64,
    bytes: Vec<u8>,
    offset: u64,
}

pub struct Image {
    /// As it lies in the file.
    pub bytes: Vec<u8>,
    /// Calls that are spliced, and those that are not.
    pub spliced: u32,
    pub left: u32,
}

impl Image {
    /// # Errors
    /// When the file is no ELF file for x86-64, or its table is another's.
    pub fn of(file: &[u8], table: &Table) -> Result<Self, Error> {
        let header = FileHeader64::<Endianness>::parse(file).map_err(|e| Error::NotElf(e.to_string()))?;
        let endian = header.endian().map_err(|e| Error::NotElf(e.to_string()))?;
        let mut segments = Vec::new();
        let headers = header.program_headers(endian, file).map_err(|e| Error::NotElf(e.to_string()))?;
        for segment in headers {
            let is_code = segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0;
            let (address, offset) = (segment.p_vaddr(endian), segment.p_offset(endian));
            let bytes = segment.p_filesz(endian);
            let whole = bytes != 0 && segment.p_memsz(endian) == bytes && address % PAGE == offset % PAGE;
            if is_code && whole && segment.p_flags(endian) & elf::PF_W == 0 {
                segments.push(whole_pages(file, address, offset, bytes)?);
            }
        }
        let first = (segments.iter().map(|segment| segment.address).min()).unwrap_or(0);
        let last = (segments.iter().map(|s| s.address + s.bytes.len() as u64).max()).unwrap_or(0);
        let fits = !segments.is_empty() && segments.len() <= IMAGE_SEGMENTS && last - first < REACH - AWAY;
        let anywhere = header.e_type(endian) == elf::ET_DYN;
        let mut written = None;
        if fits {
            written = pool(&mut segments, table, first, anywhere)?;
        }
        let Some((pool_address, pool, spliced)) = written else {
            return Ok(Self::nothing(table));
        };
        let left = table.sites.len() as u32 - spliced;
        Ok(Self {
            bytes: lay_out(segments, pool_address, &pool, spliced, left),
            spliced,
            left,
        })
    }

    /// Nothing of this file is spliced.
    fn nothing(table: &Table) -> Self {
        let left = table.sites.len() as u32;
        Self {
            bytes: lay_out(Vec::new(), 0, &[], 0, left),
            spliced: 0,
            left,
        }
    }
}

fn whole_pages(file: &[u8], address: u64, offset: u64, bytes: u64) -> Result<Segment, Error> {
    let before = address % PAGE;
    let from = offset - before;
    let to = (offset.checked_add(bytes))
        .and_then(|end| end.checked_next_multiple_of(PAGE))
        .ok_or(Error::Damaged("a segment does not end"))?;
    let end = to.min(file.len() as u64);
    let part = (file.get(from as usize..end as usize)).ok_or(Error::Damaged("a segment lies outside of it"))?;
    let mut bytes = part.to_vec();
    bytes.resize((to - from) as usize, 0);
    Ok(Segment {
        address: address - before,
        file_offset: from,
        bytes,
        offset: 0,
    })
}

type Pool = (u64, Vec<u8>, u32);

/// Writes the trampolines and the jumps to them. None: nothing can be spliced.
fn pool(segments: &mut [Segment], table: &Table, first: u64, anywhere: bool) -> Result<Option<Pool>, Error> {
    // Where it begins has to be known before it is written: as large as it can become.
    let most = (table.sites.len() as u64 * 512).next_multiple_of(PAGE);
    let address = if anywhere {
        first.wrapping_sub(AWAY).wrapping_sub(most)
    } else {
        match first.checked_sub(most + PAGE) {
            Some(address) if address >= LOWEST => address,
            _ => return Ok(None),
        }
    };
    let mut pool = Vec::new();
    let mut spliced = 0;
    for site in &table.sites {
        let Ok(window) = &site.window else {
            continue;
        };
        let at = address.wrapping_add(SHIFT).wrapping_add(pool.len() as u64);
        // What cannot be written is left: an instruction may be one that only the decoder knows.
        let Ok(code) = trampoline(site, window, SHIFT, at) else {
            continue;
        };
        let Some(place) = place(segments, window.start, window.bytes.len()) else {
            continue;
        };
        if place != window.bytes {
            return Err(Error::Damaged("its code is not what the table was made of"));
        }
        let Ok(way) = i32::try_from(at.wrapping_sub(window.start + SHIFT + JUMP_BYTES as u64) as i64) else {
            continue;
        };
        place.fill(FILL);
        place[0] = 0xe9;
        place[1..JUMP_BYTES].copy_from_slice(&way.to_le_bytes());
        pool.extend(code);
        pool.resize(pool.len().next_multiple_of(16), FILL);
        spliced += 1;
    }
    if pool.is_empty() || pool.len() as u64 > most {
        return Ok(None);
    }
    pool.resize(pool.len().next_multiple_of(PAGE as usize), FILL);
    Ok(Some((address, pool, spliced)))
}

fn place(segments: &mut [Segment], address: u64, bytes: usize) -> Option<&mut [u8]> {
    segments.iter_mut().find_map(|segment| {
        let at = usize::try_from(address.checked_sub(segment.address)?).ok()?;
        segment.bytes.get_mut(at..at.checked_add(bytes)?)
    })
}

/// `struct splice_image`, then each part at a whole page.
fn lay_out(mut segments: Vec<Segment>, pool_address: u64, pool: &[u8], spliced: u32, left: u32) -> Vec<u8> {
    let mut at = PAGE;
    for segment in &mut segments {
        segment.offset = at;
        at += segment.bytes.len() as u64;
    }
    let mut out = Vec::with_capacity(at as usize + pool.len());
    out.extend(IMAGE_MAGIC.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend((segments.len() as u32).to_le_bytes());
    out.extend([pool_address, pool.len() as u64, at].map(u64::to_le_bytes).concat());
    out.extend([spliced, left].map(u32::to_le_bytes).concat());
    for segment in &segments {
        let words = [segment.address, segment.bytes.len() as u64, segment.offset, segment.file_offset];
        out.extend(words.map(u64::to_le_bytes).concat());
    }
    out.resize(PAGE as usize, 0);
    for segment in segments {
        out.extend(segment.bytes);
    }
    out.extend(pool);
    out
}
