// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does DeBox offer to others while it is left on?
//!
//! [`Config`] is what a file says of whom is watched and where figures are to be had,
//! [`Metrics`] the figures of a report as Prometheus takes them, [`Endpoint`] where they are
//! asked for. Whoever watches (`debox agent`) makes a report whenever somebody asks.

mod config;
mod endpoint;
mod error;
mod metrics;

pub use config::{Config, Listen, MetricsConfig, WatchConfig, Way};
pub use endpoint::{Asked, Endpoint};
pub use error::Error;
pub use metrics::Metrics;
