// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is a file a Python interpreter, and where in its memory are the functions that it runs?
//!
//! CPython from 3.11 on keeps for each thread a list of frames, which the kernel side reads
//! (`bpf/python.h`). Where things are differs between versions: 3.13 says so itself, in
//! its data; of 3.11 and 3.12 it is known, and has been the same in each of their releases.
//! Of others nothing is claimed: a frame without a name is better than a wrong one.

use std::fs::File;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

use crate::elf::parse;
use crate::memory::Memory;

/// The numbers of `struct python` in bpf/user_stack.h, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Python {
    /// Distances from where the file's first byte would be in memory: of the pointer to the
    /// first interpreter, and of the type of code objects.
    pub runtime: u64,
    pub code_type: u64,
    /// Offsets in the file: the function that evaluates the program's.
    pub evaluates: u64,
    pub evaluates_end: u64,
    pub offsets: [u32; OFFSETS],
}

pub const OFFSETS: usize = 15;
pub const PYTHON_BYTES: usize = 4 * 8 + OFFSETS * 4;
/// No structure is larger.
const OFFSET_MAX: u32 = 1 << 20;

impl Python {
    pub fn to_bytes(self) -> [u8; PYTHON_BYTES] {
        let mut bytes = [0; PYTHON_BYTES];
        let words = [
            self.runtime,
            self.code_type,
            self.evaluates,
            self.evaluates_end,
        ];
        let halves = self.offsets.iter().flat_map(|half| half.to_le_bytes());
        let all = (words.iter().flat_map(|word| word.to_le_bytes())).chain(halves);
        bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        bytes
    }

    /// What does not look like one is none.
    pub fn from_bytes(bytes: &[u8; PYTHON_BYTES]) -> Option<Python> {
        let word = |at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap());
        let mut offsets = [0; OFFSETS];
        for (to, from) in offsets.iter_mut().zip(bytes[32..].chunks_exact(4)) {
            *to = u32::from_le_bytes(from.try_into().unwrap());
        }
        let python = Python {
            runtime: word(0),
            code_type: word(1),
            evaluates: word(2),
            evaluates_end: word(3),
            offsets,
        };
        python.is_sound().then_some(python)
    }

    fn is_sound(&self) -> bool {
        self.evaluates < self.evaluates_end
            && self.offsets.iter().all(|offset| *offset < OFFSET_MAX)
    }
}

/// Where a list of interpreters begins in the runtime's state, and then the offsets.
type Layout = (u64, [u32; OFFSETS]);

/// interpreter: next, threads; thread: next, id, frame (a pointer to a pointer: one more
/// than the second's place); frame: code, previous, owner; code: name, file; type of an
/// object; text: length, state, data.
const OF_3_11: Layout = (
    40,
    [
        0,
        16,
        8,
        152,
        56,
        8 + 1,
        32,
        48,
        69,
        128,
        112,
        8,
        16,
        32,
        48,
    ],
);
const OF_3_12: Layout = (
    40,
    [0, 72, 8, 136, 56, 1, 0, 8, 70, 128, 112, 8, 16, 32, 40],
);

/// What 3.13 says of itself, at the beginning of the runtime's state: a word, its version,
/// whether it is one without a global lock, and then offsets.
const COOKIE: &[u8; 8] = b"xdebugpy";
const OWN_BYTES: u64 = 584;
const OWN_INTERPRETERS: usize = 40;
const OWN: [usize; 14] = [
    64, 72, 168, 192, 184, 240, 232, 264, 296, 280, 360, 552, 544, 560,
];

fn layout_of(version: u32, own: Option<&[u8]>) -> Option<Layout> {
    match version >> 16 {
        0x030b => Some(OF_3_11),
        0x030c => Some(OF_3_12),
        0x030d => {
            let own = own?;
            let word = |at: usize| {
                let bytes = own.get(at..at + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            let free_threaded = word(16)? != 0;
            if !own.starts_with(COOKIE) || word(8)? != u64::from(version) || free_threaded {
                return None;
            }
            let mut offsets = [0; OFFSETS];
            // There the frame is not behind a pointer.
            let places = (0..OFFSETS).filter(|to| *to != 5);
            for (to, from) in places.zip(OWN) {
                offsets[to] = u32::try_from(word(from)?).ok()?;
            }
            Some((word(OWN_INTERPRETERS)?, offsets))
        }
        _ => None,
    }
}

pub fn of_file(file: &File) -> Result<Option<Python>, String> {
    let memory = Memory::default();
    let found = of_elf(memory.file(file)?);
    drop(memory);
    found
}

/// None: it is no interpreter, or not one of those that are known.
pub fn of_bytes(bytes: Vec<u8>) -> Result<Option<Python>, String> {
    let memory = Memory::default();
    let found = of_elf(memory.own(bytes));
    drop(memory);
    found
}

fn of_elf(bytes: &'static [u8]) -> Result<Option<Python>, String> {
    let elf = parse(bytes)?;
    if !elf.is_64() || !elf.is_little_endian() {
        return Ok(None);
    }
    let mut places = [None; 4];
    let names: [&[u8]; 4] = [
        b"_PyRuntime",
        b"PyCode_Type",
        b"_PyEval_EvalFrameDefault",
        b"Py_Version",
    ];
    for symbol in elf.dynamic_symbols().filter(|s| s.is_definition()) {
        let name = symbol.name_bytes().unwrap_or_default();
        if let Some(which) = names.iter().position(|wanted| *wanted == name) {
            places[which] = Some((symbol.address(), symbol.size()));
        }
    }
    let [
        Some(runtime),
        Some(code_type),
        Some(evaluates),
        Some(version),
    ] = places
    else {
        return Ok(None);
    };
    let data = |address: u64, len: u64| -> Option<&[u8]> {
        (elf.segments()).find_map(|segment| segment.data_range(address, len).ok().flatten())
    };
    let Some(version) = data(version.0, 8).and_then(|bytes| bytes.try_into().ok()) else {
        return Ok(None);
    };
    let version = u32::try_from(u64::from_le_bytes(version)).unwrap_or(0);
    let Some((interpreters, offsets)) = layout_of(version, data(runtime.0, OWN_BYTES)) else {
        return Ok(None);
    };
    let code = elf.segments().find_map(|segment| {
        let inside = evaluates.0.checked_sub(segment.address())?;
        (inside < segment.size()).then(|| (segment.address(), segment.file_range()))
    });
    let Some((address, (offset, len))) = code else {
        return Ok(None);
    };
    // From addresses in the file's own counting to the bytes that they are mapped from.
    let from_first = |place: u64| place.wrapping_sub(address).wrapping_add(offset);
    let begin = from_first(evaluates.0);
    let found = Python {
        runtime: from_first(runtime.0.wrapping_add(interpreters)),
        code_type: from_first(code_type.0),
        evaluates: begin,
        evaluates_end: (begin.saturating_add(evaluates.1)).min(offset.saturating_add(len)),
        offsets,
    };
    Ok(Some(found).filter(Python::is_sound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_known_has_no_layout() {
        assert_eq!(layout_of(0x030b_02f0, None), Some(OF_3_11));
        assert_eq!(layout_of(0x030a_00f0, None), None);
        assert_eq!(layout_of(0x030e_00f0, Some(&[0; 584])), None);
    }

    #[test]
    fn what_3_13_says_is_believed_with_its_own_version_only() {
        let mut own = vec![0; OWN_BYTES as usize];
        own[..8].copy_from_slice(COOKIE);
        own[8..16].copy_from_slice(&0x030d_00f0u64.to_le_bytes());
        for (value, at) in (100u64..).zip(OWN) {
            own[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        own[OWN_INTERPRETERS] = 7;
        let offsets = [
            100, 101, 102, 103, 104, 0, 105, 106, 107, 108, 109, 110, 111, 112, 113,
        ];
        assert_eq!(layout_of(0x030d_00f0, Some(&own)), Some((7, offsets)));
        assert_eq!(layout_of(0x030d_01f0, Some(&own)), None);
        assert_eq!(layout_of(0x030d_00f0, Some(&own[..500])), None);
        own[16] = 1;
        assert_eq!(layout_of(0x030d_00f0, Some(&own)), None);
    }

    #[test]
    fn what_is_no_interpreter_is_none() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(of_bytes(own), Ok(None));
        assert!(of_bytes(b"\x7fELF".to_vec()).is_err());
    }

    #[test]
    fn bytes_say_the_same_again() {
        let python = Python {
            runtime: 1,
            code_type: 2,
            evaluates: 3,
            evaluates_end: 4,
            offsets: OF_3_11.1,
        };
        assert_eq!(Python::from_bytes(&python.to_bytes()), Some(python));
        assert_eq!(Python::from_bytes(&[0; PYTHON_BYTES]), None);
        assert_eq!(Python::from_bytes(&[0xff; PYTHON_BYTES]), None);
    }
}
