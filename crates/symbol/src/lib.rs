// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the place in the kernel called where a thread slept?
//!
//! A kernel stack of return addresses becomes a [`Site`]: the label of the
//! resource, the function that decided to sleep, and its file and line where
//! the kernel's debug information is installed. System call numbers get
//! their names here too.

mod arguments;
mod debuginfod;
mod functions;
mod kernel;
mod lines;
mod resolver;
mod syscalls;
pub mod tracefs;
mod user;

pub use arguments::{
    Argument, Kind as ArgumentKind, ObjectArgument, ObjectBy, Removes, arguments, object_arguments,
};
pub use debuginfod::{Debuginfod, DebuginfodError};
pub use functions::{Function, Functions, SharedFunctions, TRACEABLE_ADDRESSES, TRACEABLE_NAMES};
pub use kernel::{Frame, KernelSymbols, SymbolError, SymbolOptions, SymbolSources};
pub use resolver::{Resolver, Site, UNKNOWN_FUNCTION, stack_label};
pub use syscalls::{syscall_name, syscall_number, syscall_number_compat};
pub use user::{CodeFile, UserCode, UserFrame, UserNote, UserOptions, UserSymbols};
