// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who reads the files of watched programs?
//!
//! A process of its own, the *symboliser*, that can do nothing else: no file
//! system, no network, no privileges, memory and time within limits. It is
//! handed open files and answers with names. In an executable, a library, its
//! debug information or a perf map somebody can have written anything; what
//! comes of that ends this process at the most, and is told ([`Lost`]).
//!
//! [`Symboliser`] starts it when the first thing is asked for, from the
//! executable that is running (`/proc/self/exe`), and again when it has ended.
//! [`foreign`] opens the files, with care for what they might be.

mod client;
mod elf;
pub mod foreign;
mod jit_dump;
mod memory;
mod module;
mod perf_map;
pub mod python;
mod sandbox;
mod server;
mod wire;

pub use client::{Lost, Symboliser, Unusable};
pub use module::{Module, Named};
pub use perf_map::PerfMap;
pub use sandbox::{ATTEMPTS, Refusal, confine};
pub use wire::{Loaded, NAME_CHARS_MAX, Part, Reply, Request, clean};

/// One function at a place. A place has several when functions were inlined:
/// innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Demangled; empty if not known.
    pub function: String,
    /// Bytes from the function's start to the return address; 0 if inlined or
    /// not known.
    pub offset: u64,
    /// Source file as the debug information has it; empty if not known.
    pub file: String,
    /// 0 if not known.
    pub line: u32,
    /// Inlined into the next frame.
    pub inlined: bool,
}
