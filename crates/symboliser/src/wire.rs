// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the symboliser and the process that started it say to each other?
//!
//! One request, one reply, in turn, over a stream socket: four bytes of length,
//! one of kind, and the fields of that kind in their order. A request may carry
//! one descriptor. Both sides read with bounds, and what comes back is foreign
//! bytes as the files are: whoever took the symboliser over can say anything,
//! but only in this form.

use crate::Frame;
use crate::python::{PYTHON_BYTES, Python};
use debox_output::is_unprintable;

/// Where a file's description lies: a request is small.
pub const REQUEST_BYTES_MAX: usize = 1 << 16;
/// A reply without unwind rows.
pub const REPLY_BYTES_MAX: usize = 1 << 20;
/// An unwind row is 8 bytes; besides, there is one header.
pub const ROW_BYTES: usize = 8;
/// Inlined functions at one place.
pub const FRAMES_MAX: usize = 128;
/// C++ names can be longer than any screen.
pub const NAME_CHARS_MAX: usize = 512;
/// Build ids have 20 bytes, or 32.
pub const BUILD_ID_MAX: usize = 64;
/// A file name, and one with a directory before it.
pub const LINK_BYTES_MAX: usize = 4096;

/// Why the bytes are not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message")]
pub struct Malformed;

/// What a file is to the program whose places are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The program or library itself.
    Main,
    /// What its `.gnu_debuglink` names: the checksum must agree.
    Link,
    /// Found by build id: that must agree.
    BuildId,
    /// What `.gnu_debugaltlink` names: its build id must agree.
    Alt,
    /// A package of split debug information.
    Package,
}

impl Part {
    const ALL: [Part; 5] = [
        Part::Main,
        Part::Link,
        Part::BuildId,
        Part::Alt,
        Part::Package,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The descriptor is this part of the file that is called `file` from now
    /// on. Main first.
    Load { file: u32, part: Part },
    /// Which functions are at an offset in the file?
    Name { file: u32, place: u64, lines: bool },
    /// The descriptor is a perf map.
    Map { map: u32 },
    /// Which function is at an address?
    MapName { map: u32, address: u64 },
    /// The descriptor is the C library, whose names tell its functions in
    /// static programs.
    Libc,
    /// Make the unwind table of the descriptor.
    Table {
        rows_max: u32,
        cpu_ms: u32,
        file_name: String,
    },
    /// Is the descriptor a Python interpreter?
    Python,
    /// Try what the sandbox forbids; there is no reply, as it ends the process.
    Attempt { what: u8 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub build_id: Option<Vec<u8>>,
    /// Has line information, or refers to a part that has.
    pub debug_info: bool,
    /// File name and checksum.
    pub link: Option<Vec<u8>>,
    /// A path.
    pub alt: Option<Vec<u8>>,
    /// Some debug information is split off, into a package perhaps.
    pub split: bool,
    /// The path of the file that it is a copy of, with its calls spliced.
    pub copy_of: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Confined; the first thing that is said.
    Ready,
    /// This part, map or library cannot be used, and why.
    Refused(String),
    Loaded(Loaded),
    /// Empty if there is no name. With what could not be used on the way.
    Named {
        frames: Vec<Frame>,
        incomplete: Option<String>,
    },
    /// Start of the function, and its name.
    MapNamed(Option<(u64, String)>),
    Done,
    Table(Vec<u8>),
    Python(Option<Python>),
    /// It had to go when others came: hand it in again.
    Forgotten,
    /// It will end now: a defect in what parses, at this place in its source.
    Panicked(String),
}

/// A message with its header.
pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

pub const HEADER_BYTES: usize = 5;

/// Length and kind.
pub fn header(bytes: &[u8; HEADER_BYTES]) -> (usize, u8) {
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (length as usize, bytes[4])
}

/// A name that a terminal can be shown, of no more than [`NAME_CHARS_MAX`].
/// Unlike printed text it is not escaped but loses what is not printable: it is
/// cleaned by both sides, and the second time must change nothing.
pub fn clean(name: &str) -> String {
    let mut chars = name
        .chars()
        .map(|c| if is_unprintable(c) { '?' } else { c });
    let mut text: String = chars.by_ref().take(NAME_CHARS_MAX).collect();
    if chars.next().is_some() {
        text.push('…');
    }
    text
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, value: u8) {
        self.0.push(value);
    }
    fn half(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn word(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn bytes(&mut self, value: &[u8]) {
        self.half(value.len() as u32);
        self.0.extend_from_slice(value);
    }
    fn optional(&mut self, value: Option<&[u8]>) {
        self.byte(value.is_some().into());
        self.bytes(value.unwrap_or_default());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }
    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
    fn half(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
    }
    fn word(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
    }
    fn bytes(&mut self, max: usize) -> Result<&'a [u8], Malformed> {
        let len = self.half()? as usize;
        if len > max {
            return Err(Malformed);
        }
        self.take(len)
    }
    fn optional(&mut self, max: usize) -> Result<Option<&'a [u8]>, Malformed> {
        let some = self.flag()?;
        let bytes = self.bytes(max)?;
        Ok(some.then_some(bytes))
    }
    /// Cleaned again here: the sender may not be what it was.
    fn name(&mut self) -> Result<String, Malformed> {
        // A character has at most four bytes; one more is the ellipsis.
        let bytes = self.bytes(4 * (NAME_CHARS_MAX + 1))?;
        std::str::from_utf8(bytes).map(clean).map_err(|_| Malformed)
    }
    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let kind = match self {
            Request::Load { file, part } => {
                out.half(*file);
                out.byte(*part as u8);
                1
            }
            Request::Name { file, place, lines } => {
                out.half(*file);
                out.word(*place);
                out.byte((*lines).into());
                2
            }
            Request::Map { map } => {
                out.half(*map);
                3
            }
            Request::MapName { map, address } => {
                out.half(*map);
                out.word(*address);
                4
            }
            Request::Libc => 5,
            Request::Table {
                rows_max,
                cpu_ms,
                file_name,
            } => {
                out.half(*rows_max);
                out.half(*cpu_ms);
                out.bytes(file_name.as_bytes());
                6
            }
            Request::Attempt { what } => {
                out.byte(*what);
                7
            }
            Request::Python => 8,
        };
        frame(kind, &out.0)
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Request, Malformed> {
        let mut from = Reader(body);
        let request = match kind {
            1 => Request::Load {
                file: from.half()?,
                part: *Part::ALL.get(usize::from(from.byte()?)).ok_or(Malformed)?,
            },
            2 => Request::Name {
                file: from.half()?,
                place: from.word()?,
                lines: from.flag()?,
            },
            3 => Request::Map { map: from.half()? },
            4 => Request::MapName {
                map: from.half()?,
                address: from.word()?,
            },
            5 => Request::Libc,
            6 => Request::Table {
                rows_max: from.half()?,
                cpu_ms: from.half()?,
                file_name: String::from_utf8_lossy(from.bytes(LINK_BYTES_MAX)?).into_owned(),
            },
            7 => Request::Attempt { what: from.byte()? },
            8 => Request::Python,
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(request)
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let kind = match self {
            Reply::Ready => 1,
            Reply::Refused(why) => {
                out.bytes(clean(why).as_bytes());
                2
            }
            Reply::Loaded(loaded) => {
                out.optional(loaded.build_id.as_deref());
                out.byte(loaded.debug_info.into());
                out.optional(loaded.link.as_deref());
                out.optional(loaded.alt.as_deref());
                out.byte(loaded.split.into());
                out.optional(loaded.copy_of.as_deref());
                3
            }
            Reply::Named { frames, incomplete } => {
                out.half(frames.len() as u32);
                for frame in frames {
                    out.bytes(clean(&frame.function).as_bytes());
                    out.word(frame.offset);
                    out.bytes(clean(&frame.file).as_bytes());
                    out.half(frame.line);
                    out.byte(frame.inlined.into());
                }
                out.byte(incomplete.is_some().into());
                out.bytes(clean(incomplete.as_deref().unwrap_or_default()).as_bytes());
                4
            }
            Reply::MapNamed(found) => {
                let (start, name) = found
                    .as_ref()
                    .map_or((0, ""), |(start, name)| (*start, name));
                out.byte(found.is_some().into());
                out.word(start);
                out.bytes(clean(name).as_bytes());
                5
            }
            Reply::Done => 6,
            Reply::Table(rows) => {
                out.0.extend_from_slice(rows);
                7
            }
            Reply::Forgotten => 9,
            Reply::Python(found) => {
                if let Some(python) = found {
                    out.0.extend_from_slice(&python.to_bytes());
                }
                10
            }
            Reply::Panicked(place) => {
                out.bytes(clean(place).as_bytes());
                8
            }
        };
        frame(kind, &out.0)
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Reply, Malformed> {
        let mut from = Reader(body);
        let reply = match kind {
            1 => Reply::Ready,
            2 => Reply::Refused(from.name()?),
            3 => {
                let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
                Reply::Loaded(Loaded {
                    build_id: owned(from.optional(BUILD_ID_MAX)?),
                    debug_info: from.flag()?,
                    link: owned(from.optional(LINK_BYTES_MAX)?),
                    alt: owned(from.optional(LINK_BYTES_MAX)?),
                    split: from.flag()?,
                    copy_of: owned(from.optional(LINK_BYTES_MAX)?),
                })
            }
            4 => {
                let count = from.half()? as usize;
                if count > FRAMES_MAX {
                    return Err(Malformed);
                }
                let mut frames = Vec::with_capacity(count);
                for _ in 0..count {
                    frames.push(Frame {
                        function: from.name()?,
                        offset: from.word()?,
                        file: from.name()?,
                        line: from.half()?,
                        inlined: from.flag()?,
                    });
                }
                let some = from.flag()?;
                let text = from.name()?;
                Reply::Named {
                    frames,
                    incomplete: some.then_some(text),
                }
            }
            5 => {
                let (some, start, name) = (from.flag()?, from.word()?, from.name()?);
                Reply::MapNamed(some.then_some((start, name)))
            }
            6 => Reply::Done,
            7 => {
                let rows = from.take(from.0.len())?;
                if rows.len() % ROW_BYTES != 0 {
                    return Err(Malformed);
                }
                Reply::Table(rows.to_vec())
            }
            8 => Reply::Panicked(from.name()?),
            9 => Reply::Forgotten,
            10 if body.is_empty() => Reply::Python(None),
            10 => {
                let bytes = from.take(PYTHON_BYTES)?.try_into().map_err(|_| Malformed)?;
                Reply::Python(Some(Python::from_bytes(bytes).ok_or(Malformed)?))
            }
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies() -> Vec<Reply> {
        vec![
            Reply::Ready,
            Reply::Refused("no".into()),
            Reply::Loaded(Loaded {
                build_id: Some(vec![1; 20]),
                debug_info: true,
                link: Some(b"prog.debug".to_vec()),
                alt: None,
                split: false,
                copy_of: Some(b"/usr/lib/prog".to_vec()),
            }),
            Reply::Named {
                frames: vec![
                    Frame {
                        function: "f".into(),
                        line: 7,
                        inlined: true,
                        ..Frame::default()
                    },
                    Frame::default(),
                ],
                incomplete: Some("why".into()),
            },
            Reply::MapNamed(None),
            Reply::MapNamed(Some((16, "jit".into()))),
            Reply::Done,
            Reply::Table(vec![7; 64]),
            Reply::Panicked("a.rs:1".into()),
            Reply::Forgotten,
            Reply::Python(Some(Python {
                evaluates_end: 7,
                ..Python::default()
            })),
        ]
    }

    fn split(bytes: &[u8]) -> (u8, &[u8]) {
        let (length, kind) = header(bytes[..HEADER_BYTES].try_into().unwrap());
        assert_eq!(length, bytes.len() - HEADER_BYTES);
        (kind, &bytes[HEADER_BYTES..])
    }

    #[test]
    fn what_is_said_is_heard() {
        for reply in replies() {
            let bytes = reply.encode();
            let (kind, body) = split(&bytes);
            assert_eq!(Reply::decode(kind, body), Ok(reply));
        }
        for request in [
            Request::Load {
                file: 3,
                part: Part::Package,
            },
            Request::Name {
                file: 3,
                place: 9,
                lines: true,
            },
            Request::Map { map: 1 },
            Request::MapName { map: 1, address: 5 },
            Request::Libc,
            Request::Table {
                rows_max: 5,
                cpu_ms: 7,
                file_name: "libc.so".into(),
            },
            Request::Attempt { what: 2 },
            Request::Python,
        ] {
            let bytes = request.encode();
            let (kind, body) = split(&bytes);
            assert_eq!(Request::decode(kind, body), Ok(request));
        }
    }

    /// Cut, lengthened, or with any byte changed: an error or another message,
    /// never more than the limits.
    #[test]
    fn nothing_else_is_believed() {
        for reply in replies() {
            let bytes = reply.encode();
            let (kind, body) = split(&bytes);
            let longer = [body, &[0]].concat();
            assert!(matches!(reply, Reply::Table(_)) || Reply::decode(kind, &longer).is_err());
            for cut in 0..body.len() {
                let cut = Reply::decode(kind, &body[..cut]);
                let may_be = matches!(reply, Reply::Table(_)) || cut == Ok(Reply::Python(None));
                assert!(may_be || cut.is_err(), "{cut:?}");
            }
            for at in 0..body.len() {
                for value in [0, 1, 0x1b, 0x7f, 0x80, 0xff] {
                    let mut changed = body.to_vec();
                    changed[at] = value;
                    let Ok(Reply::Named { frames, .. }) = Reply::decode(kind, &changed) else {
                        continue;
                    };
                    assert!(frames.len() <= FRAMES_MAX);
                    for frame in frames {
                        assert!(!frame.function.contains('\x1b'));
                    }
                }
            }
        }
        let esc = Reply::Refused("a\x1b[2J".into());
        let mut bytes = esc.encode();
        let at = bytes.iter().position(|b| *b == b'?').unwrap();
        bytes[at] = 0x1b;
        let (kind, body) = split(&bytes);
        assert_eq!(
            Reply::decode(kind, body),
            Ok(Reply::Refused("a?[2J".into()))
        );
        assert!(Reply::decode(0, &[]).is_err() && Reply::decode(99, &[]).is_err());
    }

    #[test]
    fn names_are_harmless() {
        assert_eq!(clean("a\x1b[31mb\u{202e}c\u{e0041}"), "a?[31mb?c?");
        let long = "x".repeat(NAME_CHARS_MAX + 1);
        assert_eq!(clean(&long).chars().count(), NAME_CHARS_MAX + 1);
        assert!(clean(&long).ends_with('…'));
        let twice = Reply::Refused(long.clone());
        let bytes = twice.encode();
        let (kind, body) = split(&bytes);
        assert_eq!(Reply::decode(kind, body), Ok(Reply::Refused(clean(&long))));
        // Who says more than that is not believed, whatever it ends with.
        let mut writer = Writer::default();
        writer.bytes(format!("{}……", clean(&long)).as_bytes());
        let body = writer.0;
        assert_eq!(Reply::decode(kind, &body), Ok(Reply::Refused(clean(&long))));
    }
}
