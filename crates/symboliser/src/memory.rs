// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where do a file's bytes lie while they are parsed?
//!
//! Small files are read: one that is cut off meanwhile gives an error. Large
//! ones are mapped, since a part of them is all that is looked at; if one is
//! cut off then, reading behind its end is a SIGBUS, which ends this process.
//! That is why it is a process of its own.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// Larger ones are mapped.
const READ_MAX: u64 = 8 << 20;
/// What one file's parts may take when they are read and decompressed.
const HELD_MAX: u64 = 640 << 20;

/// By pointers, which claim nothing: a box that is moved claims to be the only way
/// to its content, and that would end what was lent of it (Stacked Borrows).
enum Piece {
    /// From Box::into_raw.
    Own(*mut [u8]),
    Mapped(*mut libc::c_void, usize),
}

impl Drop for Piece {
    fn drop(&mut self) {
        // Nobody holds a reference any more (see Memory).
        match *self {
            // SAFETY: from a box, and given back once.
            Piece::Own(bytes) => drop(unsafe { Box::from_raw(bytes) }),
            Piece::Mapped(at, len) => {
                // SAFETY: mapped in Memory::file with this length.
                unsafe { libc::munmap(at, len) };
            }
        }
    }
}

/// All bytes of one program's files. Its references are `'static` for the
/// parsers that keep them; they are valid as long as any clone of this lives,
/// so whoever keeps a reference keeps a clone and drops it last.
#[derive(Clone, Default)]
pub(crate) struct Memory(Rc<Pieces>);

#[derive(Default)]
struct Pieces {
    all: RefCell<Vec<Piece>>,
    held: Cell<u64>,
}

impl Memory {
    /// Bytes of its own, without what is mapped.
    pub fn held(&self) -> u64 {
        self.0.held.get()
    }

    fn keep(&self, piece: Piece) -> &'static [u8] {
        let bytes = match piece {
            // SAFETY: a box's content, which nobody writes any more; it is
            // dropped only with the last clone of this.
            Piece::Own(bytes) => unsafe { &*bytes },
            // SAFETY: mapped readable with this length, and as above. Its owner
            // can change the bytes under us, which no parser can be made to
            // like; a parser that goes astray harms this process only.
            Piece::Mapped(at, len) => unsafe { std::slice::from_raw_parts(at.cast(), len) },
        };
        if let Piece::Own(_) = piece {
            self.0.held.set(self.held() + bytes.len() as u64);
        }
        self.0.all.borrow_mut().push(piece);
        bytes
    }

    /// Whether so many more may be held.
    pub fn may_hold(&self, more: u64) -> Result<(), String> {
        let sum = self.held().saturating_add(more);
        if sum > HELD_MAX {
            return Err(format!(
                "it takes {} MiB when decompressed, more than the limit of {} MiB",
                sum >> 20,
                HELD_MAX >> 20
            ));
        }
        Ok(())
    }

    /// Decompressed bytes, say; their number was asked for before.
    pub fn own(&self, bytes: Vec<u8>) -> &'static [u8] {
        self.keep(Piece::Own(Box::into_raw(bytes.into_boxed_slice())))
    }

    /// A file's content.
    pub fn file(&self, file: &File) -> Result<&'static [u8], String> {
        let len = file_len(file)?;
        if len <= READ_MAX {
            self.may_hold(len)?;
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0)
                .map_err(|error| format!("it cannot be read: {error}"))?;
            return Ok(self.own(bytes));
        }
        let size = usize::try_from(len).map_err(|_| "it is too large".to_owned())?;
        // SAFETY: a new read-only mapping of a descriptor of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(format!("it cannot be mapped: {error}"));
        }
        Ok(self.keep(Piece::Mapped(at, size)))
    }
}

/// Not fstat, which the C library may make a call with a path of.
pub(crate) fn file_len(file: &File) -> Result<u64, String> {
    // SAFETY: no memory.
    let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
    u64::try_from(end).map_err(|_| "it has no length".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For Miri: `cargo +nightly miri test -p debox-symboliser memory`.
    #[test]
    fn what_is_lent_outlives_moves() {
        let memory = Memory::default();
        // Enough of them that the list of pieces moves as well.
        let lent: Vec<_> = (0..9).map(|n| memory.own(vec![n; 7])).collect();
        let holder = Box::new((lent, memory.clone()));
        drop(memory);
        let (lent, last) = *holder;
        for (n, bytes) in lent.iter().enumerate() {
            assert_eq!(**bytes, [n as u8; 7]);
        }
        assert_eq!(last.held(), 9 * 7);
    }
}
