// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where are the figures asked for?
//!
//! Who has the figures is woken ([`Endpoint::as_fd`]) and gives them ([`Endpoint::asked`]).

use crate::Error;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use debox_http::{Asked, Asker, Desk, Limits, Listen, PATIENCE, Socket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

const LIMITS: Limits = Limits {
    connections: 128,
    request: Duration::from_secs(2),
    longest: Duration::from_secs(15),
};
/// Of a socket: for users of its owner's group.
const MODE: u32 = 0o660;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const INDEX: &str = "DeBox's agent: /metrics has the figures, as Prometheus reads them.\n";

pub struct Endpoint {
    desk: Desk<String>,
    said: String,
}

const SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

async fn metrics(State(figures): State<Arc<Asker<String>>>) -> impl IntoResponse {
    match figures.ask().await {
        Some(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, OPEN_METRICS), SNIFF, STORE],
            text,
        ),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            [(header::CONTENT_TYPE, "text/plain"), SNIFF, STORE],
            format!(
                "the agent has no figures after {} s: it is ending, or its machine is stuck\n",
                PATIENCE.as_secs()
            ),
        ),
    }
}

impl Endpoint {
    /// # Errors
    /// Somebody else has the address, or it may not be had.
    pub fn open(listen: &Listen) -> Result<Self, Error> {
        let socket = Socket::open(listen, MODE).map_err(|source| Error::Listen {
            listen: listen.to_string(),
            source,
        })?;
        let said = match socket.address().map_err(Error::Start)? {
            Some(address) => format!("http://{address}/metrics"),
            None => format!("{listen} (/metrics)"),
        };
        let (asker, desk) = debox_http::desk().map_err(Error::Start)?;
        let router = Router::new()
            .route("/", get(|| async { ([SNIFF], INDEX) }))
            .route("/metrics", get(metrics))
            .with_state(Arc::new(asker));
        debox_http::serve(socket, LIMITS, router, "debox-metrics").map_err(Error::Start)?;
        Ok(Self { desk, said })
    }

    /// Where it is, for people.
    pub fn place(&self) -> &str {
        &self.said
    }

    /// Who asks now, if anybody.
    pub fn asked(&self) -> Option<Asked<String>> {
        self.desk.asked()
    }
}

impl AsFd for Endpoint {
    /// Readable: somebody asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.desk.as_fd()
    }
}
