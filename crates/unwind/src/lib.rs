// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where is a function's return address?
//!
//! [`table`] makes of an x86-64 ELF file a list of [`Row`]s, small and plain
//! enough for a BPF program to search: from which place in the file on, how
//! the canonical frame address (CFA: the stack pointer before the call) is
//! found, and where the caller's `rbp` is kept. The return address is at
//! CFA − 8 (but see [`RDI`]).
//!
//! The rows come, in this order, from `.eh_frame`, from Go's function table
//! (`.gopclntab`, there in stripped Go programs too), and from `.debug_frame`.
//! Code that none of them covers gets [`FRAME_POINTER`]. Go's table comes
//! before `.debug_frame` because Go's `.debug_frame` does not say where `rbp`
//! is kept.
//!
//! Files are untrusted: the broker reads those of every user's programs. So a
//! file is read, never mapped (its owner could truncate it: SIGBUS); what is
//! read, decompressed and kept is bounded by [`Options`], and so is the CPU
//! time; no input makes it panic.

mod build;
mod cfi;
mod elf;
mod go;
mod names;
mod span;
mod spliced;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use go::{GoPlace, SECTIONS as GO_SECTIONS};
pub use names::{LibcNames, soname_is_wrapper};

/// Outermost frame, or no code at all: nothing to unwind.
pub const END: u8 = 0;
/// CFA = rsp + 8 × `cfa_words`.
pub const RSP: u8 = 1;
/// CFA = rbp + 8 × `cfa_words`.
pub const RBP: u8 = 2;
/// No usable call-frame information: if the program was built with frame
/// pointers, CFA = rbp + 16 and the caller's rbp is at CFA − 16.
/// `cfa_words` and `rbp_words` say so too (2, −2).
pub const FRAME_POINTER: u8 = 3;
/// A procedure linkage table: CFA = rsp + 8 + (8 if (rip & 15) >= `cfa_words`
/// else 0); `cfa_words` is 11 with lazy binding, the classic form.
pub const PLT: u8 = 4;
/// The trampoline that a signal handler returns to: rsp points to the
/// `ucontext` that the kernel pushed, which has all registers.
pub const SIGNAL: u8 = 5;
/// A function that aligned its stack itself: CFA = the word at
/// rbp − 8 × `cfa_words`; the caller's rbp is the word at rbp.
pub const REALIGNED: u8 = 6;
/// The return address is in rdi and not on the stack, as around the call in
/// glibc's vfork(): CFA = rsp + 8 × `cfa_words`. It can be innermost only.
pub const RDI: u8 = 7;
/// The part of [`Row::kind`] that the constants above are in.
pub const KIND_MASK: u8 = 0x07;
/// In [`Row::kind`]: this is code of the C library or of the language's
/// runtime, so the call site that a person looks for is further out.
pub const WRAPPER: u8 = 0x80;
/// [`Row::rbp_words`]: the caller's rbp is lost or at a place that cannot be
/// told in this form.
pub const RBP_LOST: i8 = i8::MIN;

/// How to unwind from the code between `pc` and the next row's `pc`.
///
/// For a return address look up the byte before it, which is inside the call
/// instruction; for the innermost frame the instruction pointer itself, or,
/// inside a system call, the byte before it too: the instruction pointer is
/// then just behind `syscall`, and nothing changes the stack there.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Offset in the file (not an address) of the first byte it holds for.
    pub pc: u32,
    /// Distance of the CFA in 8 bytes; see the kinds.
    pub cfa_words: u16,
    /// The caller's rbp is at CFA + 8 × this; 0: rbp has not changed.
    pub rbp_words: i8,
    /// One of [`END`] … [`RDI`], and [`WRAPPER`].
    pub kind: u8,
}

const _: () = assert!(size_of::<Row>() == 8);

impl Row {
    /// The kind without [`WRAPPER`].
    pub fn kind(&self) -> u8 {
        self.kind & KIND_MASK
    }

    pub fn is_wrapper(&self) -> bool {
        self.kind & WRAPPER != 0
    }

    /// As it lies in memory on the machines that it is made for.
    pub fn to_bytes(self) -> [u8; 8] {
        let [a, b, c, d] = self.pc.to_le_bytes();
        let [e, f] = self.cfa_words.to_le_bytes();
        [a, b, c, d, e, f, self.rbp_words as u8, self.kind]
    }

    /// None if no table has such a row.
    pub fn from_bytes(bytes: [u8; 8]) -> Option<Row> {
        let [a, b, c, d, e, f, rbp, kind] = bytes;
        (kind & !(KIND_MASK | WRAPPER) == 0).then_some(Row {
            pc: u32::from_le_bytes([a, b, c, d]),
            cfa_words: u16::from_le_bytes([e, f]),
            rbp_words: rbp as i8,
            kind,
        })
    }
}

/// What [`table`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Sorted by `pc`, no two alike in a row. Before the first row, and from
    /// the last one on (always [`END`]), there is no code.
    pub rows: Vec<Row>,
    /// The GNU build id, if the file has one.
    pub build_id: Option<Vec<u8>>,
    /// `DT_SONAME`, for shared libraries.
    pub soname: Option<String>,
    /// Has a Go function table.
    pub go: bool,
    /// A program that needs no shared library.
    pub static_binary: bool,
    /// Whether [`WRAPPER`] says anything: false for a static program that was
    /// stripped of its symbols, where nobody can tell libc's functions from
    /// the program's.
    pub wrapper_known: bool,
}

impl Table {
    /// The row that holds at an offset in the file, or none before the first.
    pub fn row(&self, offset: u32) -> Option<&Row> {
        let next = self.rows.partition_point(|row| row.pc <= offset);
        self.rows.get(next.checked_sub(1)?)
    }
}

/// Limits, and what helps.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest file, in bytes. Offsets have 32 bits, so no more than 4 GiB are
    /// of use.
    pub max_file_bytes: u64,
    /// Most bytes that are read from the file and decompressed, together.
    pub max_read_bytes: u64,
    /// Most rows of the table, and most functions of any of its sources.
    pub max_rows: usize,
    /// Most CPU time of the calling thread.
    pub max_cpu: Duration,
    /// The file's name without its directory, by which musl's libc is known
    /// where it was built without a `DT_SONAME`. [`table_of_path`] sets it.
    pub file_name: Option<String>,
    /// The names of libc's functions, by which a static program's own copies
    /// are known. The default is those of the libc that this machine runs.
    pub libc_names: Arc<LibcNames>,
}

impl Options {
    /// With the usual limits.
    pub fn new(libc_names: Arc<LibcNames>) -> Self {
        Options {
            max_file_bytes: 4 << 30,
            max_read_bytes: 256 << 20,
            max_rows: 2 << 20,
            max_cpu: Duration::from_secs(10),
            file_name: None,
            libc_names,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options::new(LibcNames::of_this_machine())
    }
}

/// Why there is no table. What the file's frames are is then unknown: unwind
/// by frame pointers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the file cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("not an ELF file")]
    NotElf,
    #[error(
        "a 32-bit program: only 64-bit x86 programs can be unwound; \
         call sites inside it are shown as they are, without a caller"
    )]
    Elf32,
    #[error(
        "built for another processor (ELF machine {machine}): only x86-64 programs can be unwound"
    )]
    Machine { machine: u16 },
    #[error("not an executable or shared library (ELF type {elf_type})")]
    NotLoadable { elf_type: u16 },
    #[error("a damaged ELF file: {what}")]
    Malformed { what: &'static str },
    #[error("{what} is {value}, more than the limit of {limit}")]
    Limit {
        what: &'static str,
        value: u64,
        limit: u64,
    },
    #[error("making the table took more than {limit_ms} ms of CPU time, the limit")]
    Time { limit_ms: u128 },
}

/// Bytes at places: a file, or a file's content in memory.
pub trait Source {
    /// Its length in bytes.
    fn byte_len(&self) -> std::io::Result<u64>;
    /// Fills `into` from `offset` on, or fails.
    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()>;
}

impl Source for File {
    fn byte_len(&self) -> std::io::Result<u64> {
        let metadata = self.metadata()?;
        // A pipe or a device would block or never end.
        if !metadata.is_file() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(metadata.len())
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, into, offset)
    }
}

impl Source for [u8] {
    fn byte_len(&self) -> std::io::Result<u64> {
        Ok(<[u8]>::len(self) as u64)
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let end = usize::try_from(offset)
            .ok()
            .and_then(|from| Some(from..from.checked_add(into.len())?));
        match end.and_then(|range| self.get(range)) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The table of an open file or of bytes.
pub fn table<S: Source + ?Sized>(source: &S, options: &Options) -> Result<Table, Error> {
    build::table(source, options)
}

/// The table of the file at a path. Opening does not block on a FIFO, and
/// does not become this process's terminal.
pub fn table_of_path(path: &Path, options: &Options) -> Result<Table, Error> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)?;
    let mut options = options.clone();
    if options.file_name.is_none() {
        options.file_name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
    }
    table(&file, &options)
}

/// What naming places in a file needs to know besides its symbols.
pub struct Program {
    build_id: Option<Vec<u8>>,
    code: Vec<elf::Segment>,
    go: Option<go::GoTable>,
    spliced: Option<spliced::Spliced>,
}

impl Program {
    /// Reads a file, within the same limits as [`table`].
    pub fn open<S: Source + ?Sized>(source: &S, options: &Options) -> Result<Program, Error> {
        let image = elf::Image::open(source, options)?;
        Ok(Program {
            build_id: image.build_id.clone(),
            code: image.executable.clone(),
            go: go::GoTable::find(&image, options.max_rows)?,
            spliced: spliced::Spliced::find(&image)?,
        })
    }

    /// The GNU build id.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// The address, as in the file's symbols, of the code at an offset in it.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let offset = u32::try_from(offset).ok()?;
        let segment = self
            .code
            .iter()
            .find(|s| offset >= s.offset && offset - s.offset < s.len)?;
        Some(segment.address + u64::from(offset - segment.offset))
    }

    /// Where a copy in which calls are spliced is that of, as far as it is known.
    pub fn copy_of(&self) -> Option<&[u8]> {
        Some(&self.spliced.as_ref()?.path)
    }

    /// Of a place behind a call in one of such a copy's trampolines, the place in the file that it
    /// stands for.
    pub fn site(&self, place: u64) -> Option<u64> {
        self.spliced.as_ref()?.site(place)
    }

    /// Where a Go program's functions lie, each up to the next one. Of other programs none.
    pub fn go_functions(&self) -> Vec<std::ops::Range<u64>> {
        self.go.as_ref().map_or_else(Vec::new, go::GoTable::ranges)
    }

    /// For Go programs, function, file and line of an address, which need
    /// neither symbols nor debug information.
    pub fn go_place(&self, address: u64) -> Option<GoPlace> {
        self.go.as_ref()?.place(address)
    }
}
