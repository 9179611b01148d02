// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does debox start a command, wait for it, and end as it ended?
//!
//! The command finds signals, limits and descriptors as debox found them
//! ([`Inherited`]) and may be held until somebody watches it ([`Start::hold`]).
//! What is sent to debox alone is passed on while it runs ([`Child::wait`]), and
//! debox ends with its status or by its signal ([`Ended::end_as`]). 127 is a
//! command that is not there, 126 one that cannot be executed, 125 a debox that
//! cannot work ([`Error::exit_status`]).

mod child;
mod duration;
mod environment;
mod error;
mod gate;
mod inherited;
mod library;
mod names;
mod program;
pub mod service;
mod signals;
mod start;
pub mod stop;

pub use child::{Child, Ended, pidfd_open, signal_name};
pub use duration::duration;
pub use environment::Environment;
pub use error::{Error, FAILED};
pub use gate::Hold;
pub use inherited::{Inherited, note_before_runtime};
pub use library::Library;
pub use names::names_settle;
pub use program::{Program, find, interpreter};
pub use signals::{Arrived, Signals};
pub use start::{Held, Start, Streams};
