// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where in an ELF file can a system call be replaced by a jump?
//!
//! For splice capture the two bytes of a `syscall` instruction are too few: a jump to a
//! trampoline has five. So with it one or more of the instructions before or after move
//! into the trampoline, and nothing may come in between them: no jump of this file may
//! lead there, nor may one of them depend on where it stands in a way that cannot be
//! carried over. [`Table::of`] finds each `syscall`, and for each either such a [`Window`]
//! or the reason why there is none ([`Left`]). What is not proved is left: a call that is
//! not spliced is seen by another capture, a jump into the midst of a jump is a crash.
//!
//! Steps, a file each: which bytes are code, and where functions begin
//! (`code.rs`); whither control can come other than from the instruction before
//! (`target.rs`); which call is made in place (`in_place.rs`); whether the register is free by which trampolines find their
//! counters (`gs.rs`); and what of a site can move (`site.rs`). `table.rs` is the result, as bytes for a cache and back.

mod attach;
mod begin;
mod callers;
mod clock;
mod code;
mod elf_file;
mod error;
mod frames;
mod gs;
mod image;
mod images;
mod in_place;
mod maps;
mod moved;
mod places;
mod proc;
mod remote;
mod rows;
mod run;
mod sample;
mod site;
mod spare;
mod state;
mod table;
mod target;
mod threads;
mod tracee;
mod trampoline;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use clock::{offset_ns, rate, rate_begin, ticks_check};
pub use error::Error;
pub use image::{Image, Kind, Side};
pub use images::{RUNTIME, folder_check, image_source, runtime_laid};
pub use places::{Place, PlaceSums, Places};
pub use proc::lives;
pub use run::{Boundary, Counted, Following, Reason, Run, Since, Sums, UNDONE};
pub use sample::Sampling;
pub use site::{Left, Site, Window};
pub use state::NRS;
pub use table::Table;
pub use tracee::may_trace;

/// Whether a file is, or has, a C library whose calls may not be replaced ([`Table::knows_its_calls`]);
/// `images`: where those are kept, and what was found out for them.
///
/// # Errors
/// When it cannot be read, is no ELF file for x86-64, or is too large.
pub fn knows_its_calls(file: &Path, images: Option<&Path>) -> Result<bool, Error> {
    let read = |error: io::Error| Error::Run(error.to_string());
    let mut file = File::open(file).map_err(read)?;
    // To look through all of a C library's code takes as long as to start and end twenty programs.
    if let Some(table) = images.and_then(|folder| images::table_kept(folder, &file)) {
        return Ok(table.knows_its_calls);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(read)?;
    Ok(Table::of(&bytes)?.knows_its_calls)
}

/// The jump to a trampoline: `jmp rel32`.
pub const JUMP_BYTES: usize = 5;
/// No window has more: of seven instructions of up to 15 bytes, in practice of 13.
pub const WINDOW_BYTES_MAX: usize = 32;
