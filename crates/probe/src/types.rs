// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of the kernel's types do the programs look at?
//!
//! libbpf looks for each type that the programs know among all that the kernel has: more than a hundred
//! thousand, a hundred times, 40 ms before the first program is checked. Here those that have one of
//! the programs' names are taken out of the kernel's, once, with what they are made of, and libbpf is given these.
//!
//! A program may ask for the number that a type has in the kernel. Such types keep their number.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;

const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Names of the types in `debox.bpf.o`, a line each (from `build.rs`).
pub(crate) const DEBOX: &str = include_str!(concat!(env!("OUT_DIR"), "/debox.types"));

/// The programs ask for these types' numbers (`bpf_core_type_id_kernel`).
const NUMBERED: [&str; 2] = ["task_struct", "pt_regs"];

/// A kernel may have these in a module, where libbpf looks only without being given types.
const MODULAR: [&str; 2] = ["unix_sock", "unix_address"];

/// The kernel's types of these names, in a file of memory.
pub(crate) struct Types {
    file: File,
}

impl Types {
    /// `None`: libbpf has to look for itself.
    pub fn of_kernel(names: &str) -> Option<Self> {
        let all = std::fs::read(KERNEL).ok()?;
        let some = reduce(&all, names)?;
        // SAFETY: a name that ends in 0.
        let fd = unsafe { libc::memfd_create(c"debox-types".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(&some).ok()?;
        let types = Self { file };
        File::open(types.path()).is_ok().then_some(types)
    }

    /// As long as the types live.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
const TYPE: usize = 12;

const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_FWD: u32 = 7;

/// What follows a type: so many bytes of its own, and of each of its parts.
fn extra(kind: u32) -> Option<(usize, usize)> {
    Some(match kind {
        KIND_PTR | 7..=12 | 16 | 18 => (0, 0), // FWD to FUNC, FLOAT, TYPE_TAG
        1 | 14 | 17 => (4, 0),                 // INT, VAR, DECL_TAG
        KIND_ARRAY => (12, 0),
        4 | 5 | 15 | 19 => (0, 12), // STRUCT, UNION, DATASEC, ENUM64
        6 | 13 => (0, 8),           // ENUM, FUNC_PROTO
        _ => return None,
    })
}

/// What a program can name and look into: INT, STRUCT, UNION, ENUM, FWD, TYPEDEF, FLOAT, ENUM64.
fn is_named(kind: u32) -> bool {
    matches!(kind, 1 | 4..=8 | 16 | 19)
}

/// TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG: another type, with a word more.
fn is_of_another(kind: u32) -> bool {
    matches!(kind, 8..=11 | 18)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

/// The numbers from 1 on of the types that one is made of, at which words of it they are; no pointer's, behind
/// which no program looks at once.
fn parts(bytes: &[u8]) -> Option<Vec<usize>> {
    let info = word(bytes, 4)?;
    let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
    Some(match kind {
        KIND_ARRAY => vec![TYPE, TYPE + 4],
        4 | 5 => (0..count).map(|i| TYPE + 12 * i + 4).collect(),
        kind if is_of_another(kind) => vec![8],
        _ => vec![],
    })
}

/// Which words of a type are the places of its names.
fn names(bytes: &[u8]) -> Option<Vec<usize>> {
    let info = word(bytes, 4)?;
    let (_, each) = extra(info >> 24 & 31)?;
    let count = if each > 0 { info & 0xffff } else { 0 };
    Some(
        std::iter::once(0)
            .chain((0..count as usize).map(|i| TYPE + each * i))
            .collect(),
    )
}

/// One set of types, as the kernel lays it out (BTF).
struct Set<'b> {
    types: &'b [u8],
    strings: &'b [u8],
    /// Where each begins, and the last one ends; number 0 is "void".
    places: Vec<u32>,
}

impl<'b> Set<'b> {
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        if word(bytes, 0)? & 0xffff != u32::from(MAGIC) {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let section = |at: usize| {
            let begin = header.checked_add(word(bytes, at)? as usize)?;
            bytes.get(begin..begin.checked_add(word(bytes, at + 4)? as usize)?)
        };
        let (types, strings) = (section(8)?, section(16)?);
        let mut places = Vec::with_capacity(types.len() / 24);
        places.push(0);
        let mut at = 0;
        while at < types.len() {
            let info = word(types, at + 4)?;
            let (own, each) = extra(info >> 24 & 31)?;
            let end = at + TYPE + own + each * (info & 0xffff) as usize;
            if end > types.len() {
                return None;
            }
            places.push(at as u32);
            at = end;
        }
        places.push(at as u32);
        Some(Self {
            types,
            strings,
            places,
        })
    }

    /// One more than the last one's number.
    fn end(&self) -> usize {
        self.places.len() - 1
    }

    fn get(&self, number: usize) -> Option<&'b [u8]> {
        let (&begin, &end) = (self.places.get(number)?, self.places.get(number + 1)?);
        self.types.get(begin as usize..end as usize)
    }

    fn text(&self, at: u32) -> Option<&'b [u8]> {
        let text = CStr::from_bytes_until_nul(self.strings.get(at as usize..)?);
        text.ok().map(CStr::to_bytes)
    }
}

/// A name without what tells several of it apart (`___old`).
fn essential(name: &str) -> &str {
    match name.rfind("___") {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// Of all types those with one of these names (a line each), and what they are made of.
fn reduce(all: &[u8], names: &str) -> Option<Vec<u8>> {
    let set = Set::parse(all)?;
    let wanted: HashSet<&[u8]> = (names.lines())
        .map(|name| essential(name).as_bytes())
        .collect();
    // Many names are as long as none of them is.
    let mut lengths = vec![false; wanted.iter().map(|name| name.len() + 1).max()?];
    for name in &wanted {
        lengths[name.len()] = true;
    }
    let mut kept = vec![false; set.end()];
    let mut left = vec![];
    let (mut last_numbered, mut modular) = (0, HashSet::<&str>::new());
    for (number, kept) in kept.iter_mut().enumerate().skip(1) {
        let of = set.get(number)?;
        let kind = word(of, 4)? >> 24 & 31;
        if !is_named(kind) {
            continue;
        }
        let name = set.text(word(of, 0)?)?;
        if !lengths.get(name.len()).is_some_and(|&any| any) || !wanted.contains(name) {
            continue;
        }
        if kind != KIND_FWD {
            if NUMBERED.iter().any(|n| n.as_bytes() == name) {
                last_numbered = number;
            }
            modular.extend(MODULAR.iter().filter(|n| n.as_bytes() == name));
        }
        *kept = true;
        left.push(number);
    }
    let asked = MODULAR
        .iter()
        .filter(|n| wanted.contains(n.as_bytes()))
        .count();
    if modular.len() < asked {
        return None;
    }
    while let Some(number) = left.pop() {
        let of = set.get(number)?;
        for part in parts(of)? {
            let part = word(of, part)? as usize;
            if part != 0 && !std::mem::replace(kept.get_mut(part)?, true) {
                left.push(part);
            }
        }
    }
    // The numbers that they have from now on: the same up to the last one that is asked for, with
    // nothing in place of those that are left out.
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    let mut order = vec![];
    for (number, &kept) in kept.iter().enumerate().skip(1) {
        if kept {
            order.push(Some(number));
            numbers.insert(number as u32, order.len() as u32);
        } else if number <= last_numbered {
            order.push(None);
        }
    }
    let mut types: Vec<u8> = vec![];
    let mut strings = vec![0u8];
    let mut texts: HashMap<u32, u32> = HashMap::from([(0, 0)]);
    for number in order {
        let Some(number) = number else {
            types.extend([0, KIND_FWD << 24, 0].iter().flat_map(|w| w.to_le_bytes()));
            continue;
        };
        let of = set.get(number)?;
        let begin = types.len();
        types.extend(of);
        let mut put = |at: usize, word: u32| {
            types[begin + at..begin + at + 4].copy_from_slice(&word.to_le_bytes());
        };
        for at in self::names(of)? {
            let from = word(of, at)?;
            let to = match texts.get(&from) {
                Some(&to) => to,
                None => {
                    let to = strings.len() as u32;
                    strings.extend(set.text(from)?);
                    strings.push(0);
                    texts.insert(from, to);
                    to
                }
            };
            put(at, to);
        }
        for at in parts(of)? {
            put(at, numbers.get(&word(of, at)?).copied().unwrap_or(0));
        }
        match word(of, 4)? >> 24 & 31 {
            KIND_PTR => put(8, 0), // behind it is void
            // FUNC to DATASEC, DECL_TAG: nothing that a program looks into is made of them.
            12..=15 | 17 => return None,
            _ => {}
        }
    }
    let mut out = Vec::with_capacity(HEADER + types.len() + strings.len());
    out.extend(MAGIC.to_le_bytes());
    out.extend([1, 0]);
    for word in [HEADER, 0, types.len(), types.len(), strings.len()] {
        out.extend((word as u32).to_le_bytes());
    }
    out.extend(types);
    out.extend(strings);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::btf::{Btf, types};

    /// (member, its offset, its type's name) by struct.
    fn layout(btf: &Btf<'_>, name: &str) -> Option<Vec<(String, String)>> {
        let of = btf.type_by_name::<types::Struct<'_>>(name)?;
        Some(
            of.iter()
                .map(|m| {
                    let name = m.name.unwrap_or_default().to_string_lossy().into_owned();
                    (name, format!("{:?}", m.attr))
                })
                .collect(),
        )
    }

    #[test]
    fn the_types_of_the_programs_are_as_the_kernel_has_them() {
        let kernel = Btf::from_vmlinux().expect("the kernel's types");
        let some = Types::of_kernel(DEBOX).expect("types of the programs");
        let ours = Btf::from_path(some.path()).expect("libbpf reads them");
        assert!(
            ours.len() < kernel.len() / 4,
            "{} of {}",
            ours.len(),
            kernel.len()
        );
        let mut structs = 0;
        for name in DEBOX.lines() {
            let name = essential(name);
            let was = layout(&kernel, name);
            assert_eq!(layout(&ours, name), was, "{name}");
            structs += usize::from(was.is_some());
        }
        assert!(structs > 60, "{structs}");
        for name in NUMBERED {
            let number = |btf: &Btf<'_>| {
                let of = btf.type_by_name::<types::Struct<'_>>(name).expect(name);
                of.type_id()
            };
            assert_eq!(number(&ours), number(&kernel), "{name}");
        }
    }

    #[test]
    fn no_other_types_numbers_are_asked_for() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf");
        let mut asked = 0;
        for file in std::fs::read_dir(folder).expect(folder) {
            let text = std::fs::read_to_string(file.expect(folder).path()).expect(folder);
            for (_, after) in text
                .match_indices("bpf_core_type_id_kernel(struct ")
                .map(|(at, found)| text.split_at(at + found.len()))
            {
                let name = after.split(')').next().unwrap_or_default();
                assert!(NUMBERED.contains(&name), "{name}");
                asked += 1;
            }
        }
        assert!(asked > 3, "{asked}");
    }

    #[test]
    fn what_is_cut_or_changed_is_no_set_of_types() {
        let all = std::fs::read(KERNEL).expect(KERNEL);
        let some = reduce(&all, DEBOX).expect("types of the programs");
        assert!(reduce(&some, DEBOX).is_some());
        for end in (0..some.len()).step_by(997) {
            assert!(reduce(&some[..end], DEBOX).is_none(), "{end}");
        }
        let mut seed = 1u64;
        for _ in 0..2_000 {
            let mut changed = some.clone();
            for _ in 0..3 {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let at = (seed >> 33) as usize % changed.len();
                changed[at] ^= (seed >> 20) as u8;
            }
            // Whatever comes of it, it ends.
            let _ = reduce(&changed, DEBOX);
        }
    }
}
