// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is left on, and what does it offer to others?
//!
//! [`watch`] is `debox agent`: [`config`] is what its file says of whom is watched and where
//! figures are to be had, [`running`] how each policy is watched, [`metrics`] the figures of a report as [`series`], [`text`]
//! and [`protobuf`] the forms of these, [`endpoint`] where they are asked for, [`otlp`] how they are sent, [`flight`] the last recordings. There is a report for each period ([`endings`]:
//! what comes of it when), and whenever somebody asks one of the present one so far.

mod budget;
mod config;
mod endings;
mod endpoint;
mod error;
mod fleet;
mod flight;
mod metrics;
mod otlp;
mod protobuf;
mod running;
mod series;
mod snapshot;
mod text;
mod watch;

pub use error::Error;
pub use snapshot::snapshot;
pub use watch::watch;
