// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a program talk to a broker, and what does it read out of the maps
//! that it is given?
//!
//! [`Connection`] asks; an [`AccountView`] is what comes back: sums, sites, and
//! with details an event ring and a page to say what is wanted. [`packet`] is
//! what all of it, and others that pass descriptors, send and receive with.
//! (libdebox does the same in C, since it works inside other programs.)

mod account;
mod away;
mod connection;
mod control;
mod cost;
mod error;
mod lasting;
mod look;
mod mapping;
pub mod packet;
mod ring;

pub use account::{AccountView, DetailsView, Snapshot};
pub use away::away_parse;
pub use connection::{Connection, chains_parse, reply_judge, site_stacks_parse};
pub use control::DetailControl;
pub use cost::Costs;
pub use error::Error;
pub use look::Looks;
pub use mapping::Mapping;
pub use ring::EventRing;
