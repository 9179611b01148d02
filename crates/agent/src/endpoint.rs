// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where are the figures asked for?
//!
//! Who has the figures is woken ([`Endpoint::as_fd`]) and gives them ([`Endpoint::asked`]); here they get
//! the form that whoever asks can read.

use crate::Error;
use crate::protobuf::protobuf;
use crate::series::Family;
use crate::text::{self, text};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use debox_http::{Asked, Asker, Desk, Limits, Listen, PATIENCE, Socket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const LIMITS: Limits = Limits {
    connections: 128,
    request: Duration::from_secs(2),
    longest: Duration::from_secs(15),
};
/// Of a socket: for users of its owner's group.
const MODE: u32 = 0o660;
const INDEX: &str = "DeBox's agent: /metrics has the figures, as Prometheus reads them.\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    OpenMetrics,
    /// The only one with native histograms.
    Protobuf,
    Prometheus,
}

impl Form {
    const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Of a range of types in an Accept line; None: it is none of ours.
    fn of(range: &str, parameters: &[(&str, &str)]) -> Option<Self> {
        let is = |name: &str, value: &str| {
            let mut of = parameters
                .iter()
                .filter(|(is, _)| is.eq_ignore_ascii_case(name));
            of.next().is_some_and(|(_, is)| *is == value)
        };
        match range {
            "application/openmetrics-text" | "application/*" | "*/*" => Some(Self::OpenMetrics),
            "application/vnd.google.protobuf"
                if is("proto", "io.prometheus.client.MetricFamily")
                    && is("encoding", "delimited") =>
            {
                Some(Self::Protobuf)
            }
            "text/plain" | "text/*" => Some(Self::Prometheus),
            _ => None,
        }
    }
}

/// What is liked best, of the same the first; else that of most collectors.
fn form_of(accept: &str) -> Form {
    let mut best = (0.0, Form::OpenMetrics);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = parts
            .filter_map(|part| part.split_once('='))
            .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
            .collect();
        let liked = parameters
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("q"));
        let liked: f32 = liked.map_or(1.0, |(_, value)| value.parse().unwrap_or(0.0));
        if let Some(form) = Form::of(&name, &parameters)
            && liked > best.0
        {
            best = (liked, form);
        }
    }
    best.1
}

/// The figures of a reading, which several may ask for: each form is made once.
#[derive(Clone)]
pub struct Figures(Arc<Forms>);

struct Forms {
    families: Vec<Family>,
    open_metrics: OnceLock<Bytes>,
    protobuf: OnceLock<Bytes>,
    prometheus: OnceLock<Bytes>,
}

impl Figures {
    pub fn of(families: Vec<Family>) -> Self {
        Self(Arc::new(Forms {
            families,
            open_metrics: OnceLock::new(),
            protobuf: OnceLock::new(),
            prometheus: OnceLock::new(),
        }))
    }

    fn form(&self, form: Form) -> Bytes {
        let Forms { families, .. } = &*self.0;
        let text_of = |form| Bytes::from(text(families, form));
        let made = match form {
            Form::OpenMetrics => {
                (self.0.open_metrics).get_or_init(|| text_of(text::Form::OpenMetrics))
            }
            Form::Prometheus => (self.0.prometheus).get_or_init(|| text_of(text::Form::Prometheus)),
            Form::Protobuf => (self.0.protobuf).get_or_init(|| protobuf(families).into()),
        };
        made.clone()
    }
}

pub struct Endpoint {
    desk: Desk<Figures>,
    said: String,
}

const SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

async fn metrics(
    State(figures): State<Arc<Asker<Figures>>>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let lines = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    let form = form_of(&accept.join(","));
    match figures.ask().await {
        Some(figures) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, form.content_type()), SNIFF, STORE],
            figures.form(form),
        ),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            [(header::CONTENT_TYPE, "text/plain"), SNIFF, STORE],
            format!(
                "the agent has no figures after {} s: it is ending, or its machine is stuck\n",
                PATIENCE.as_secs()
            )
            .into(),
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
    pub fn asked(&self) -> Option<Asked<Figures>> {
        self.desk.asked()
    }
}

impl AsFd for Endpoint {
    /// Readable: somebody asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.desk.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_the_one_that_is_liked_best() {
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let of_2_42 = "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,\
                       text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, form) in [
            ("", Form::OpenMetrics),
            ("*/*", Form::OpenMetrics),
            (of_2_42, Form::OpenMetrics),
            (&format!("{native},{of_2_42}"), Form::Protobuf),
            // Another encoding of it is not ours.
            (
                &format!("{},{of_2_42}", native.replace("delimited", "text")),
                Form::OpenMetrics,
            ),
            (&format!("{native};q=0"), Form::OpenMetrics),
            ("text/html,text/plain;q=0.9", Form::Prometheus),
            ("Text/Plain; version=0.0.4", Form::Prometheus),
            ("image/png", Form::OpenMetrics),
            (";;,=,;q=x,\"", Form::OpenMetrics),
        ] {
            assert_eq!(form_of(accept), form, "{accept}");
        }
    }
}
