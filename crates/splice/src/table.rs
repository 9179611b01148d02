// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sites of a file, and as bytes for a cache.
//!
//! ```text
//! "DBXSITES"  u32 version  u32 n, n bytes of build id  u32 sites, then of each:
//!   u64 address   u32 number of the call, ~0: not known   u8 why it was left, 0: it was not
//!   u8 bytes of the window   u8 of them before the call   u8 r, its relative offsets
//!   the bytes   r times: u8 where 32 bits lie, u8 the end of their instruction
//! u8 whether calls may not move, u8 whether it sets GS, u8 in how many places `_dl_find_object` is asked, then as of a site
//! ```
//!
//! Little-endian, by address. [`Table::parse`] believes nothing: what it returns has windows
//! that do not overlap, contain their call and offsets that lie within them.

use crate::code::Code;
use crate::in_place::InPlace;
use crate::run::{KNOWS_ITS_CALLS, SETS_GS};
use crate::site::{Left, Site, Window, asks, sites};
use crate::state::VERSION;
use crate::target::Targets;
use crate::{Error, JUMP_BYTES, WINDOW_BYTES_MAX, gs};

const MAGIC: &[u8; 8] = b"DBXSITES";
const BUILD_ID_MAX: usize = 64;
const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Empty: the file has none, and nothing says later that the table is its.
    pub build_id: Vec<u8>,
    /// By address.
    pub sites: Vec<Site>,
    /// The file is, or has, a C library that cancels threads by where they were interrupted, and who
    /// makes the calls that this is about is not known, or that has no place to tell an unwinder of
    /// our code. Or a call that makes threads has no room. Or the file is a whole program that compares so.
    pub knows_its_calls: bool,
    /// It sets the GS register by an instruction.
    pub sets_gs: bool,
    /// The begin of `_dl_find_object`, or where it is called.
    pub find_object: Vec<Window>,
}

impl Table {
    /// Reads a whole file: half a second for each 10 MB of code, or less.
    ///
    /// # Errors
    /// When it is no ELF file for x86-64, is too large, or has more tables of jumps than could be read.
    pub fn of(file: &[u8]) -> Result<Self, Error> {
        const THREADS: [u32; 4] = [56, 57, 58, 435]; // clone, fork, vfork, clone3
        let code = Code::of(file)?;
        let targets = Targets::of(&code)?;
        let in_place = InPlace::of(&code);
        let callers = in_place.as_ref().ok().and_then(Option::as_ref);
        let sites = sites(&code, &targets, callers);
        let unknown = match &in_place {
            Err(_) => true,
            Ok(None) => code.cancels_by_place,
            Ok(Some(of)) => {
                let calls = |site: &&Site| of.callers.contains(&site.address);
                sites.iter().filter(calls).any(|site| site.window.is_err())
            }
        };
        // A thread that a call makes that is left would have the block of another one, and so would, after its execve,
        // a child that has its parent's memory. Of which number one is that is only known as it is made, it may be that.
        let makes = |site: &Site| match (&site.window, site.nr) {
            (Err(_), Some(nr)) => THREADS.contains(&nr),
            (Err(Left::JumpedInto | Left::NothingMoves | Left::FlagsKept), None) => true,
            _ => false,
        };
        let left = sites.iter().any(makes);
        // All of its calls would be missing: nothing says where its functions are.
        let unread = (code.is_whole || code.is_go)
            && sites.iter().any(|site| site.window == Err(Left::NotKnown))
            && !sites.iter().any(|site| site.window.is_ok());
        let find_object = asks(&code, &targets);
        // All of its calls may be made there: valgrind makes those of the program that it runs so.
        let compares = |site: &Site| site.window == Err(Left::Compared);
        let compared = !code.has_loader && !code.relocatable && sites.iter().any(compares);
        // Cancellation unwinds through trampolines, and exceptions out of handlers do. A program may have the library's
        // code, and no symbols: then it has code that is only gone to by unwinding.
        let lands = code.is_whole && !code.landing_tables.is_empty();
        let unwound = code.is_libc || lands || callers.is_some() && !code.has_loader;
        Ok(Self {
            knows_its_calls: unknown
                || unwound && find_object.is_empty()
                || left
                || compared
                || unread,
            sets_gs: gs::is_set(&code, &targets),
            find_object,
            sites,
            build_id: code.build_id,
        })
    }

    /// Why nothing of a process may be spliced that has this file's code; None: it may.
    pub(crate) fn against(&self) -> Option<&'static str> {
        match (self.knows_its_calls, self.sets_gs) {
            (true, _) => Some(KNOWS_ITS_CALLS),
            (_, true) => Some(SETS_GS),
            _ => None,
        }
    }

    /// Sites that have room, and all.
    pub fn room(&self) -> (usize, usize) {
        let room = self.sites.iter().filter(|site| site.window.is_ok()).count();
        (room, self.sites.len())
    }

    /// What jumps take the place of: address and bytes.
    pub fn replaced(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let windows = self
            .sites
            .iter()
            .filter_map(|site| site.window.as_ref().ok());
        (windows.chain(&self.find_object)).map(|window| (window.start, &window.bytes[..]))
    }

    /// Sites without room from which calls may come. What no function is known to hold is perhaps data, if the
    /// file makes no call besides.
    pub fn places_left(&self) -> usize {
        const ENDS: [Option<u32>; 2] = [Some(60), Some(231)]; // exit, exit_group
        let calls = self.sites.iter().any(|site| site.window.is_ok());
        let matters = |site: &&Site| match site.window {
            Ok(_) | Err(Left::SignalReturn | Left::InPlace) => false,
            Err(Left::NotKnown) => calls,
            Err(_) => !ENDS.contains(&site.nr),
        };
        self.sites.iter().filter(matters).count()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.build_id.len() as u32).to_le_bytes());
        out.extend(&self.build_id);
        out.extend((self.sites.len() as u32).to_le_bytes());
        for site in &self.sites {
            out.extend(site.address.to_le_bytes());
            out.extend(site.nr.unwrap_or(UNKNOWN).to_le_bytes());
            match &site.window {
                Err(left) => out.extend([left_number(*left), 0, 0, 0]),
                Ok(window) => window_put(&mut out, window),
            }
        }
        out.extend([self.knows_its_calls, self.sets_gs].map(u8::from));
        out.push(self.find_object.len() as u8);
        for window in &self.find_object {
            out.extend(window.start.to_le_bytes());
            window_put(&mut out, window);
        }
        out
    }

    /// # Errors
    /// When the bytes are no table, or one of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut at = Reader(bytes);
        if at.take(8)? != MAGIC || at.u32()? != VERSION {
            return Err(Error::Damaged("it is none of this version"));
        }
        let n = at.u32()? as usize;
        if n > BUILD_ID_MAX {
            return Err(Error::Damaged("its build id has a wrong length"));
        }
        let build_id = at.take(n)?.to_vec();
        let count = at.u32()?;
        let mut sites: Vec<Site> = Vec::new();
        let mut free = 0;
        for _ in 0..count {
            let site = site_parse(&mut at)?;
            if sites
                .last()
                .is_some_and(|last| last.address >= site.address)
            {
                return Err(Error::Damaged("its sites are not in order"));
            }
            if let Ok(window) = &site.window {
                if window.start < free {
                    return Err(Error::Damaged("two windows overlap"));
                }
                free = window.end();
            }
            sites.push(site);
        }
        let [knows, sets, asks] = at.array()?;
        if knows > 1 || sets > 1 {
            return Err(Error::Damaged("a mark is neither set nor not"));
        }
        let mut find_object: Vec<Window> = Vec::new();
        for _ in 0..asks {
            let start = at.u64()?;
            let window = window_parse(&mut at, start, false)?;
            let apart = |site: &Site| match &site.window {
                Ok(other) => other.end() <= window.start || window.end() <= other.start,
                Err(_) => true,
            };
            let behind = (find_object.last()).is_none_or(|last| last.end() <= window.start);
            if !behind || !sites.iter().all(apart) {
                return Err(Error::Damaged("two windows overlap"));
            }
            find_object.push(window);
        }
        if !at.0.is_empty() {
            return Err(Error::Damaged("more follows"));
        }
        Ok(Self {
            build_id,
            sites,
            knows_its_calls: knows == 1,
            sets_gs: sets == 1,
            find_object,
        })
    }
}

fn window_put(out: &mut Vec<u8>, window: &Window) {
    let bytes = [window.bytes.len(), window.before, window.relative.len()];
    out.push(0);
    out.extend(bytes.map(|n| n as u8));
    out.extend(&window.bytes);
    out.extend(window.relative.iter().flat_map(|&(at, end)| [at, end]));
}

fn site_parse(at: &mut Reader<'_>) -> Result<Site, Error> {
    let address = at.u64()?;
    let nr = Some(at.u32()?).filter(|nr| *nr != UNKNOWN);
    let left = at.0.first().copied().unwrap_or(0);
    let window = if left == 0 {
        Ok(window_parse(at, address, true)?)
    } else {
        let left = left_of(left).ok_or(Error::Damaged("a site was left for an unknown reason"))?;
        if at.array()? != [left_number(left), 0, 0, 0] {
            return Err(Error::Damaged("a site that was left has a window"));
        }
        Err(left)
    };
    Ok(Site {
        address,
        nr,
        window,
    })
}

/// One that contains the call at `address`, or one that begins there.
fn window_parse(at: &mut Reader<'_>, address: u64, of_call: bool) -> Result<Window, Error> {
    let [is, n, before, relative] = at.array()?;
    let (n, before) = (usize::from(n), usize::from(before));
    if is != 0 || !of_call && before != 0 {
        return Err(Error::Damaged("it is no window"));
    }
    let bytes = at.take(n)?.to_vec();
    let start = address.checked_sub(before as u64);
    let (Some(start), JUMP_BYTES..=WINDOW_BYTES_MAX) = (start, n) else {
        return Err(Error::Damaged("a window has a wrong size"));
    };
    let calls = before == 0 && n == JUMP_BYTES && bytes[0] == 0xe8;
    let contains = !of_call || calls || bytes.get(before..before + 2) == Some(&[0x0f, 0x05]);
    if !contains || start.checked_add(n as u64).is_none() {
        return Err(Error::Damaged("a window does not contain its call"));
    }
    let mut offsets = Vec::new();
    for _ in 0..relative {
        let [from, end] = at.array()?;
        let call = match (of_call, calls) {
            (true, true) => 0..n,
            (true, false) => before..before + 2,
            (false, _) => 0..0,
        };
        let (from_byte, to) = (usize::from(from), usize::from(from) + 4);
        let inside = to <= usize::from(end) && usize::from(end) <= n;
        if !inside || from_byte < call.end && call.start < to {
            return Err(Error::Damaged("an offset lies outside of its window"));
        }
        offsets.push((from, end));
    }
    Ok(Window {
        start,
        bytes,
        before,
        relative: offsets,
    })
}

const LEFT: [Left; 9] = [
    Left::SignalReturn,
    Left::JumpedInto,
    Left::NothingMoves,
    Left::FlagsKept,
    Left::NotRead,
    Left::NotKnown,
    Left::OtherWay,
    Left::InPlace,
    Left::Compared,
];

/// From 1 on.
fn left_number(left: Left) -> u8 {
    1 + LEFT.iter().position(|&known| known == left).unwrap_or(0) as u8
}

fn left_of(number: u8) -> Option<Left> {
    LEFT.get(usize::from(number).checked_sub(1)?).copied()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) =
            (self.0.split_at_checked(n)).ok_or(Error::Damaged("it ends too soon"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) =
            (self.0.split_first_chunk()).ok_or(Error::Damaged("it ends too soon"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }
}
