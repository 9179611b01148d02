// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who gives programs their slots and accounts, and keeps them apart?
//!
//! The broker is the one privileged part of DeBox that talks to unprivileged
//! ones. `deboxd` runs it for a whole machine, [`Private`] inside one program.
//! It is written against two seams, [`debox_probe::Kernel`] and [`SiteResolver`];
//! [`real`] puts the BPF probe and the kernel's symbols behind them.

#[cfg(test)]
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;

pub mod account;
mod aside;
mod broker;
mod chains;
mod error;
mod identity;
mod label;
mod limits;
mod listen;
mod message;
mod own;
mod private;
pub mod real;
mod shared;
mod shared_file;
mod site;
mod socket;
mod subuid;

pub use broker::{Broker, Config, Control, Serve};
pub use error::BrokerError;
pub use identity::{SenderProof, nofile_raise};
pub use limits::{Limits, Shares};
pub use listen::{Access, Listener, activated, directory_make, directory_owner, listen};
pub use message::{
    Credentials, Packet, REQUEST_SIZE, Refusal, Request, SELECT_REQUEST_SIZE, TRACE_REQUEST_SIZE,
    parse_request,
};
pub use own::{family_of, own_bytes, own_time};
pub use private::{Private, PrivateOptions};
pub use shared::{Shared, SharedError};
pub use site::SiteResolver;
