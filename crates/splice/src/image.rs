// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a copy of a file's code look in which calls are spliced?
//!
//! One file, mapped by every process that runs the code: the whole file that it is a copy of, with
//! jumps in the windows; behind it the *pool*, the trampolines; last a page that says where what
//! is (`struct splice_image` of `splice/state.h`), which the runtime and debox-unwind read. So a
//! place in it is that place in the file, and whoever looks for symbols, call frame information
//! or a build id finds the file's.
//!
//! In memory the pool lies a fixed way before the code, or behind it, so that all jumps are the same wherever
//! the code is loaded; and as the state is at GS, nothing in it depends on the process.

use crate::state::{IMAGE_MAGIC, IMAGE_PATH, IMAGE_SEGMENTS, KNOWS_ITS_CALLS, SETS_GS, VERSION};
use crate::trampoline::{Places, asked_first, trampoline};
use crate::{Error, JUMP_BYTES, Site, Table, Window};
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

/// What is patched, by whole pages.
struct Code {
    segments: Vec<Part>,
    /// The file, up to the end of a page.
    bytes: Vec<u8>,
}

/// Code that an image has in place of a file's: address, bytes, where it lies in both files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub address: u64,
    pub bytes: u64,
    pub offset: u64,
}

/// Where a thread goes on that stands at `ip` in the window of a site, by address in the file; as
/// [`Places::next`]. `jump`: what lies at its begin.
pub(crate) fn place(
    site: &Site,
    jump: [u8; JUMP_BYTES],
    ip: u64,
    call: Option<(u32, u64)>,
    samples: bool,
) -> Option<u64> {
    let window = site.window.as_ref().ok()?;
    let [JUMP, way @ ..] = jump else {
        return None;
    };
    let behind = window.start.wrapping_add(JUMP_BYTES as u64);
    let at = behind.wrapping_add(i32::from_le_bytes(way) as u64);
    let places = Places::of(site, window, SHIFT, at.wrapping_add(SHIFT), samples).ok()?;
    places.next(ip, call)
}

/// Where the pool lies in memory, seen from the code: there has to be room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Below,
    Above,
}

/// One of the images that there may be of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub side: Side,
    /// Its trampolines ask which calls are stamped.
    pub samples: bool,
}

pub struct Image {
    /// Of the pool: address and bytes.
    pub pool: (u64, u64),
    /// What of the file it replaces.
    pub parts: Vec<Part>,
    /// As it lies in the file.
    pub bytes: Vec<u8>,
    /// Calls that are spliced, and those that are not.
    pub spliced: u32,
    pub left: u32,
}

impl Image {
    /// `path`: where the file lies, for people.
    ///
    /// # Errors
    /// When the file is no ELF file for x86-64, or its table is another's.
    pub fn of(file: &[u8], table: &Table, path: &Path, kind: Kind) -> Result<Self, Error> {
        let header =
            FileHeader64::<Endianness>::parse(file).map_err(|e| Error::NotElf(e.to_string()))?;
        let endian = header.endian().map_err(|e| Error::NotElf(e.to_string()))?;
        let mut segments = Vec::new();
        let headers = header
            .program_headers(endian, file)
            .map_err(|e| Error::NotElf(e.to_string()))?;
        for segment in headers {
            let is_code =
                segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0;
            let (address, offset) = (segment.p_vaddr(endian), segment.p_offset(endian));
            let bytes = segment.p_filesz(endian);
            let whole =
                bytes != 0 && segment.p_memsz(endian) == bytes && address % PAGE == offset % PAGE;
            if is_code && whole && segment.p_flags(endian) & elf::PF_W == 0 {
                segments.push(whole_pages(file, address, offset, bytes)?);
            }
        }
        let first = (segments.iter().map(|segment| segment.address).min()).unwrap_or(0);
        let last = (segments.iter().map(|s| s.address + s.bytes).max()).unwrap_or(0);
        let fits =
            !segments.is_empty() && segments.len() <= IMAGE_SEGMENTS && last - first < REACH - AWAY;
        let anywhere = header.e_type(endian) == elf::ET_DYN;
        let mut written = None;
        let mut code = Code {
            segments,
            bytes: Vec::new(),
        };
        if fits {
            code.bytes = file.to_vec();
            code.bytes
                .resize(file.len().next_multiple_of(PAGE as usize), 0);
            let most = pool_most(table, kind);
            let address = match (kind.side, anywhere) {
                (Side::Below, true) => Some(first.wrapping_sub(AWAY).wrapping_sub(most)),
                (Side::Above, true) => Some(last + AWAY),
                (Side::Below, false) => (first.checked_sub(most + PAGE)).filter(|at| *at >= LOWEST),
                // A heap begins there.
                (Side::Above, false) => None,
            };
            if let Some(address) = address {
                written = pool(&mut code, table, address, kind)?;
            }
        }
        let all = table.sites.len() as u32;
        let Some(pool) = written else {
            // Nothing of this file is spliced.
            let nothing = Code {
                segments: Vec::new(),
                bytes: Vec::new(),
            };
            let left = match (table.knows_its_calls, table.sets_gs) {
                (true, _) => KNOWS_ITS_CALLS,
                (_, true) => SETS_GS,
                _ => table.places_left() as u32,
            };
            return Ok(Self {
                pool: (0, 0),
                parts: Vec::new(),
                bytes: lay_out(nothing, &Pool::default(), left, path),
                spliced: 0,
                left: all,
            });
        };
        let left = all - pool.spliced;
        Ok(Self {
            pool: (pool.address, pool.bytes.len() as u64 + PAGE),
            parts: code.segments.clone(),
            bytes: lay_out(code, &pool, left, path),
            spliced: pool.spliced,
            left,
        })
    }
}

pub(crate) fn whole_pages(
    file: &[u8],
    address: u64,
    offset: u64,
    bytes: u64,
) -> Result<Part, Error> {
    let before = address % PAGE;
    let from = offset - before;
    let end = (offset.checked_add(bytes)).ok_or(Error::Damaged("a segment does not end"))?;
    if end > file.len() as u64 {
        return Err(Error::Damaged("a segment lies outside of it"));
    }
    Ok(Part {
        address: address - before,
        offset: from,
        bytes: end.next_multiple_of(PAGE) - from,
    })
}

#[derive(Default)]
struct Pool {
    address: u64,
    bytes: Vec<u8>,
    /// Address of how to unwind from it.
    frames: u64,
    spliced: u32,
}

/// Begins each page of the pool: of every 16 bytes of it, how far the site lies that the
/// trampoline there is of, and [`WAY_0`]. An unwinder finds it by where it is ([`frames`]).
const WHERE: usize = 4 * (PAGE as usize / 16);

/// The site may lie before it.
const WAY_0: u64 = 1 << 31;

/// Trampolines, page by page; none lies in two.
struct Pages {
    address: u64,
    bytes: Vec<u8>,
}

impl Pages {
    /// Where the next one of this size comes to lie.
    fn room(&mut self, size: usize) -> Option<u64> {
        let page = PAGE as usize;
        let at = self.bytes.len().next_multiple_of(16);
        self.bytes.resize(at, FILL);
        if at.is_multiple_of(page) || at % page + size > page {
            self.bytes.resize(at.next_multiple_of(page), FILL);
            self.bytes.resize(self.bytes.len() + WHERE, 0);
        }
        let fits = WHERE + size <= page;
        fits.then(|| self.address.wrapping_add(self.bytes.len() as u64))
    }

    /// `back`: the address that its call would return to.
    fn put(&mut self, code: &[u8], back: u64) -> Option<()> {
        let page = self.bytes.len() & !(PAGE as usize - 1);
        let from = self.address.wrapping_add(page as u64).wrapping_sub(WAY_0);
        let way = u32::try_from(back.wrapping_sub(from)).ok()?;
        let first = self.bytes.len() - page;
        self.bytes.extend(code);
        for part in first / 16..(first + code.len()).div_ceil(16) {
            self.bytes[page + 4 * part..][..4].copy_from_slice(&way.to_le_bytes());
        }
        Some(())
    }
}

/// Where it begins has to be known before it is written: as large as it can become.
fn pool_most(table: &Table, kind: Kind) -> u64 {
    let of_each = if kind.samples { 1536 } else { 1024 };
    let all = (table.sites.len() + table.find_object.len()) as u64;
    (all * of_each + 3 * PAGE).next_multiple_of(PAGE)
}

/// Writes the trampolines and the jumps to them. None: nothing can be spliced.
fn pool(code: &mut Code, table: &Table, address: u64, kind: Kind) -> Result<Option<Pool>, Error> {
    let mut pages = Pages {
        address,
        bytes: Vec::new(),
    };
    let mut spliced = 0;
    if table.against().is_some() {
        return Ok(None);
    }
    for site in &table.sites {
        let Ok(window) = &site.window else {
            continue;
        };
        let write = |at| trampoline(site, window, SHIFT, at, kind.samples);
        if one(code, &mut pages, window, site.back(), JUMP, write)? {
            spliced += 1;
        }
    }
    for window in &table.find_object {
        let write = |at| asked_first(window, SHIFT, at);
        let (begin, by) = match window.callee() {
            Some(callee) => (callee, CALL),
            None => (window.start, JUMP),
        };
        if !one(code, &mut pages, window, begin, by, write)? {
            return Ok(None);
        }
    }
    // Behind it come how to unwind from it, and what is known of the image.
    if spliced == 0 || pages.bytes.len() as u64 + 2 * PAGE > pool_most(table, kind) {
        return Ok(None);
    }
    let size = pages.bytes.len() as u64;
    pages
        .bytes
        .resize(pages.bytes.len().next_multiple_of(PAGE as usize), FILL);
    let frames_at = address.wrapping_add(pages.bytes.len() as u64);
    pages.bytes.extend(frames(size, pages.bytes.len() as u64));
    pages
        .bytes
        .resize(pages.bytes.len().next_multiple_of(PAGE as usize), 0);
    Ok(Some(Pool {
        address,
        bytes: pages.bytes,
        frames: frames_at,
        spliced,
    }))
}

/// `jmp rel32`, `call rel32`.
const JUMP: u8 = 0xe9;
const CALL: u8 = 0xe8;

/// `by`: how its trampoline is gone to. False: it is left, since it cannot be written.
fn one(
    code: &mut Code,
    pages: &mut Pages,
    window: &Window,
    back: u64,
    by: u8,
    write: impl Fn(u64) -> Result<Vec<u8>, iced_x86::IcedError>,
) -> Result<bool, Error> {
    // Its size depends a little on where it lies: jumps may be short.
    let shifted = |address: u64| address.wrapping_add(SHIFT);
    let Ok(size) = write(shifted(pages.address)).map(|code| code.len() + 16) else {
        return Ok(false);
    };
    let Some(at) = pages.room(size) else {
        return Ok(false);
    };
    let Some(written) = write(shifted(at)).ok().filter(|code| code.len() <= size) else {
        return Ok(false);
    };
    let Some(place) = code.place(window.start, window.bytes.len()) else {
        return Ok(false);
    };
    if place != window.bytes {
        return Err(Error::Damaged("its code is not what the table was made of"));
    }
    let way = at
        .wrapping_sub(window.start)
        .wrapping_sub(JUMP_BYTES as u64) as i64;
    let Ok(way) = i32::try_from(way) else {
        return Ok(false);
    };
    if pages.put(&written, back).is_none() {
        return Ok(false);
    }
    place.fill(FILL);
    place[0] = by;
    place[1..JUMP_BYTES].copy_from_slice(&way.to_le_bytes());
    Ok(true)
}

/// How to unwind from a pool that lies `before` these bytes, `size` of it: as in
/// `.eh_frame_hdr` and `.eh_frame`. A trampoline has no frame: all is as at its site, and the return
/// address is the site's, by the page's table:
/// page = rip & -4096; page + u32 at (page + (rip & 4095) / 16 * 4) - WAY_0
fn frames(size: u64, before: u64) -> Vec<u8> {
    #[rustfmt::skip]
    let expression = [
        0x80, 0x00,             // breg16 0             rip
        0x0b, 0x00, 0xf0, 0x1a, // const2s -4096, and   page
        0x12,                   // dup                  page page
        0x80, 0x00,             // breg16 0             page page rip
        0x0a, 0xff, 0x0f, 0x1a, // const2u 4095, and    page page offset
        0x34, 0x25,             // lit4, shr            page page part
        0x32, 0x24,             // lit2, shl            page page place
        0x22,                   // plus                 page address
        0x94, 0x04,             // deref_size 4         page way
        0x22,                   // plus                 site + WAY_0
        0x0c, 0, 0, 0, 0x80,    // const4u 1 << 31      site + WAY_0, WAY_0
        0x1c,                   // minus
    ];
    let mut out = vec![1, 0x1b, 0xff, 0xff];
    // To .eh_frame, which follows.
    out.extend(4u32.to_le_bytes());
    let mut cie = vec![0; 4];
    cie.extend([1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b]);
    // The stack pointer is where the caller's would be: CFA = rsp, and rsp = CFA.
    cie.extend([0x0c, 7, 0]);
    entry(&mut out, cie);
    // From its own field back to the CIE.
    let mut fde = ((out.len() + 4 - 8) as u32).to_le_bytes().to_vec();
    let begin = out.len() as i64 + 8;
    fde.extend(((-(before as i64) - begin) as i32).to_le_bytes());
    fde.extend((size as u32).to_le_bytes());
    fde.push(0);
    fde.extend([0x16, 16, expression.len() as u8]);
    fde.extend(expression);
    entry(&mut out, fde);
    out.extend([0; 4]);
    out
}

/// Its length comes first, and nothing (0) fills it up.
fn entry(out: &mut Vec<u8>, mut bytes: Vec<u8>) {
    bytes.resize((bytes.len() + 4).next_multiple_of(8) - 4, 0);
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

impl Code {
    fn place(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let at = self.segments.iter().find_map(|segment| {
            let at = address.checked_sub(segment.address)?;
            let inside = at.checked_add(bytes as u64)? <= segment.bytes;
            inside.then_some(segment.offset + at)
        })?;
        let at = usize::try_from(at).ok()?;
        self.bytes.get_mut(at..at.checked_add(bytes)?)
    }
}

/// Its last page is `struct splice_image` and the path.
fn lay_out(code: Code, pool: &Pool, left: u32, path: &Path) -> Vec<u8> {
    let Code { segments, bytes } = code;
    let mut out = bytes;
    let at = out.len();
    out.extend(&pool.bytes);
    let last = out.len();
    // It is mapped with the pool.
    let pool_bytes = match segments.is_empty() {
        true => 0,
        false => pool.bytes.len() as u64 + PAGE,
    };
    out.extend(IMAGE_MAGIC.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend((segments.len() as u32).to_le_bytes());
    out.extend(
        [pool.address, pool_bytes, at as u64]
            .map(u64::to_le_bytes)
            .concat(),
    );
    out.extend([pool.spliced, left].map(u32::to_le_bytes).concat());
    out.extend(pool.frames.to_le_bytes());
    for segment in &segments {
        let words = [segment.address, segment.bytes, segment.offset];
        out.extend(words.map(u64::to_le_bytes).concat());
    }
    out.resize(last + IMAGE_PATH, 0);
    // One that is longer has no name.
    let path = path.as_os_str().as_bytes();
    if path.len() < PAGE as usize - IMAGE_PATH {
        out.extend(path);
    }
    out.resize(last + PAGE as usize, 0);
    out
}
