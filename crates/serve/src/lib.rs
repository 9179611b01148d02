// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a machine wait for, and what did it wait for, in a browser?
//!
//! [`serve`] is `debox serve`: it watches as `debox top` does, and whoever may ask ([`guard`])
//! is shown ([`web`]) what is going on ([`live`]) and the recordings of a directory
//! ([`history`]). These are foreign bytes: a process that can do nothing else reads them
//! ([`reader`]). [`page`] is what it looks like.

mod error;
mod guard;
mod history;
mod live;
mod page;
mod reader;
mod serve;
mod web;

pub use error::Error;
pub use reader::read_if_asked;
pub use serve::serve;
