// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a part of DeBox answer over HTTP to whoever can reach it?
//!
//! [`Socket`] is an address or a path that nobody else has, [`serve`] answers there on a thread
//! of its own: so many connections at once, each over in time ([`Limits`]), so that who connects
//! and says nothing keeps nobody away. What is answered may be known to another thread only:
//! [`desk`].
#![forbid(unsafe_code)]

mod desk;
mod limited;
mod listen;
mod serve;

pub use desk::{Asked, Asker, Desk, PATIENCE, desk};
pub use limited::{Limits, Peer};
pub use listen::{Listen, Socket};
pub use serve::serve;
