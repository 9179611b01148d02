// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does one request get to whoever takes it, and its answer back?
//!
//! Over HTTP by ureq, which the agent has anyway; as gRPC by tonic. A line is there as long as there is something
//! to send: nothing is held open from one reading to the next, and the name of the host is looked up anew. Each
//! request has one time limit for all of it, whatever comes back and however slowly.

use super::answer::{ANSWER_MOST, Answer, line, of_http, retry_info, taken};
use super::config::{OtlpConfig, Protocol, Signal};
use super::queue::Batch;
use axum::http::HeaderMap;
use axum::http::uri::PathAndQuery;
use prost::bytes::{Buf, BufMut, Bytes};
use std::error::Error;
use std::path::Path;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

const AGENT: &str = concat!("debox-agent/", env!("CARGO_PKG_VERSION"));
/// Of an answer's headers.
const HEADERS_MOST: u32 = 16 << 10;

pub enum Line {
    Http(Box<HttpLine>),
    Grpc(Box<GrpcLine>),
}

impl Line {
    /// # Errors
    /// In words: the authorities cannot be read.
    pub fn open(config: &OtlpConfig) -> Result<Self, String> {
        Ok(match config.protocol {
            Protocol::Http => Self::Http(Box::new(HttpLine::open(config)?)),
            Protocol::Grpc => Self::Grpc(Box::new(GrpcLine::open(config)?)),
        })
    }

    pub fn send(&mut self, batch: &Batch, limit: Duration) -> Answer {
        match self {
            Self::Http(line) => line.send(batch, limit),
            Self::Grpc(line) => line.send(batch, limit),
        }
    }
}

fn is_tls(config: &OtlpConfig) -> bool {
    config.endpoint.starts_with("https:")
}

fn authorities(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("[otlp] ca_file {}: {error}", path.display()))
}

/// A chain of errors in one line, and what to do where that is known.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        // Many repeat what their cause says.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    let mut text = line(&text);
    if text.contains("certificate") || text.contains("UnknownIssuer") {
        text += ". Name whom to trust in [otlp] ca_file, or the host as its certificate does in endpoint";
    }
    text
}

fn no_answer(limit: Duration) -> Answer {
    Answer::Later {
        after: None,
        what: format!("no answer in {:.0} s", limit.as_secs_f64()),
    }
}

pub struct HttpLine {
    agent: ureq::Agent,
    endpoint: String,
    headers: HeaderMap,
}

impl HttpLine {
    fn open(config: &OtlpConfig) -> Result<Self, String> {
        let mut is = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // Data, and keys in headers, go where the file says and nowhere else.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(HEADERS_MOST as usize)
            .user_agent(AGENT);
        if is_tls(config) {
            let tls = ureq::tls::TlsConfig::builder().root_certs(roots(config)?);
            is = is.tls_config(tls.build());
        }
        Ok(Self {
            agent: is.build().into(),
            endpoint: config.endpoint.clone(),
            headers: config.headers.0.clone(),
        })
    }

    fn send(&mut self, batch: &Batch, limit: Duration) -> Answer {
        let url = format!("{}/v1/{}", self.endpoint, batch.signal.name());
        let mut request = (self.agent.post(url)).content_type("application/x-protobuf");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.config().timeout_global(Some(limit)).build();
        let answer = match request.send(batch.bytes.as_slice()) {
            Ok(answer) => answer,
            Err(ureq::Error::Timeout(_)) => return no_answer(limit),
            Err(ureq::Error::RedirectFailed) => {
                return of_http(batch.signal, 307, &HeaderMap::new(), &[]);
            }
            Err(error) => {
                let what = told(&error);
                return Answer::Later { after: None, what };
            }
        };
        let (head, mut body) = answer.into_parts();
        // The status is the answer: a body that is too long, or does not end, changes nothing.
        let body = body.with_config().limit(ANSWER_MOST as u64).read_to_vec();
        let body = body.unwrap_or_default();
        of_http(batch.signal, head.status.as_u16(), &head.headers, &body)
    }
}

fn roots(config: &OtlpConfig) -> Result<ureq::tls::RootCerts, String> {
    use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};
    let certificates: Vec<Certificate<'static>> = match &config.ca_file {
        Some(path) => {
            let pem = authorities(path)?;
            let items = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(is)) => Some(is),
                _ => None,
            });
            items.collect()
        }
        None => {
            let is = rustls_native_certs::load_native_certs();
            let all = is
                .certs
                .iter()
                .map(|is| Certificate::from_der(is).to_owned());
            all.collect()
        }
    };
    if certificates.is_empty() {
        return Err(match &config.ca_file {
            Some(path) => format!("[otlp] ca_file {} has no certificate in PEM", path.display()),
            None => "this system trusts nobody: install its package ca-certificates, or name whom to trust in \
                     [otlp] ca_file"
                .to_owned(),
        });
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

pub struct GrpcLine {
    /// None: it is being dropped.
    runtime: Option<tokio::runtime::Runtime>,
    client: Grpc<Channel>,
    headers: MetadataMap,
}

impl GrpcLine {
    fn open(config: &OtlpConfig) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("starting to send: {error}"))?;
        let endpoint = Endpoint::from_shared(config.endpoint.clone()).and_then(|is| {
            let is = is.http2_max_header_list_size(HEADERS_MOST);
            is.user_agent(AGENT)
        });
        let mut endpoint = endpoint.map_err(|error| told(&error))?;
        if is_tls(config) {
            let tls = ClientTlsConfig::new();
            let tls = match &config.ca_file {
                Some(path) => tls.ca_certificate(Certificate::from_pem(authorities(path)?)),
                None => tls.with_native_roots(),
            };
            endpoint = endpoint.tls_config(tls).map_err(|error| told(&error))?;
        }
        let channel = {
            let _within = runtime.enter();
            endpoint.connect_lazy()
        };
        Ok(Self {
            runtime: Some(runtime),
            client: Grpc::new(channel).max_decoding_message_size(ANSWER_MOST),
            headers: MetadataMap::from_headers(config.headers.0.clone()),
        })
    }

    fn send(&mut self, batch: &Batch, limit: Duration) -> Answer {
        let Some(runtime) = &self.runtime else {
            return no_answer(limit);
        };
        let path = PathAndQuery::from_static(match batch.signal {
            Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        });
        let mut request = Request::new(batch.bytes.clone());
        *request.metadata_mut() = self.headers.clone();
        let client = &mut self.client;
        let called = async {
            client.ready().await.map_err(|error| {
                let mut status = Status::unavailable(error.to_string());
                status.set_source(std::sync::Arc::new(error));
                status
            })?;
            client.unary(request, path, Encoded).await
        };
        match runtime.block_on(async { tokio::time::timeout(limit, called).await }) {
            Err(_) => no_answer(limit),
            Ok(Ok(answer)) => taken(batch.signal, &answer.into_inner()),
            Ok(Err(status)) => of_status(batch.signal, &status),
        }
    }
}

impl Drop for GrpcLine {
    fn drop(&mut self) {
        // A name that is being looked up is not waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn of_status(signal: Signal, status: &Status) -> Answer {
    // Nobody has answered: it is the connection's.
    if let Some(cause) = status.source() {
        let what = told(cause);
        return Answer::Later { after: None, what };
    }
    let after = retry_info(status.details());
    let said = line(status.message());
    let mut what = format!("gRPC status {:?}", status.code());
    if !said.is_empty() {
        what = format!("{what}: {said}");
    }
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Answer::Later { after, what },
        Code::ResourceExhausted if after.is_some() => Answer::Later { after, what },
        Code::Unauthenticated | Code::PermissionDenied => Answer::Refused {
            what: format!("{what}; are [otlp] headers what it wants?"),
        },
        Code::Unimplemented => Answer::Refused {
            what: format!(
                "{what}; does [otlp] endpoint speak gRPC (protocol), and take {} (signals)?",
                signal.name()
            ),
        },
        _ => Answer::Refused { what },
    }
}

/// Messages that were written before, and answers as they come.
struct Encoded;

impl Codec for Encoded {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Encoded {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let bytes = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_of_grpc_is_what_otlp_says() {
        use Code::*;
        for code in [
            Cancelled,
            DeadlineExceeded,
            Aborted,
            OutOfRange,
            Unavailable,
            DataLoss,
        ] {
            let is = of_status(Signal::Metrics, &Status::new(code, "no\nmore"));
            let what = format!("gRPC status {code:?}: no");
            assert_eq!(is, Answer::Later { after: None, what });
        }
        for code in [
            Unknown,
            InvalidArgument,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            FailedPrecondition,
            Unimplemented,
            Internal,
            Unauthenticated,
            // Without saying when, it is for good.
            ResourceExhausted,
        ] {
            let is = of_status(Signal::Metrics, &Status::new(code, ""));
            assert!(matches!(is, Answer::Refused { .. }), "{code:?}: {is:?}");
        }
    }
}
