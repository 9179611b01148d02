// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whoever takes OTLP, as a test wants it: what was it sent, and what does it do to who sends?
//!
//! It speaks HTTP by hand and gRPC by h2, and shares no code with what sends but OTLP's messages.
#![allow(dead_code)] // Who names this file as a module needs one part or the other.

use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use prost::Message;
use prost::bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What it does with a request.
#[derive(Clone, Debug)]
pub enum Does {
    Take,
    /// All but so many items, with these words.
    Partly(i64, &'static str),
    /// A status of HTTP with further headers (each ends with \r\n), or of gRPC with details.
    Says(u16, String),
    Details(u16, Vec<u8>),
    /// Nothing, and the connection stays.
    Hang,
    /// The connection ends without an answer.
    Close,
    /// A byte of the answer every 50 ms, without an end.
    Slow,
    /// An answer without an end, as fast as it is taken.
    Flood,
    /// Headers without an end.
    FloodHeaders,
    /// What is of no protocol.
    Garbage,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// Without what gRPC puts before it.
    pub body: Vec<u8>,
    pub at: Instant,
    /// Whether it was taken, as a whole or in part.
    pub taken: bool,
}

impl Seen {
    pub fn metrics(&self) -> Vec<Metric> {
        if !self.path.to_ascii_lowercase().contains("metrics") {
            return Vec::new();
        }
        let request = ExportMetricsServiceRequest::decode(self.body.as_slice()).unwrap();
        let scopes = request
            .resource_metrics
            .into_iter()
            .flat_map(|is| is.scope_metrics);
        scopes.flat_map(|is| is.metrics).collect()
    }

    pub fn logs(&self) -> Vec<LogRecord> {
        if self.path.to_ascii_lowercase().contains("metrics") {
            return Vec::new();
        }
        let request = ExportLogsServiceRequest::decode(self.body.as_slice()).unwrap();
        let scopes = request
            .resource_logs
            .into_iter()
            .flat_map(|is| is.scope_logs);
        scopes.flat_map(|is| is.log_records).collect()
    }
}

#[derive(Default)]
struct Shared {
    /// Of the next requests; then it takes all.
    does: Mutex<VecDeque<Does>>,
    seen: Mutex<Vec<Seen>>,
    connections: AtomicU64,
    flooded: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    fn next(&self) -> Does {
        self.does.lock().unwrap().pop_front().unwrap_or(Does::Take)
    }
}

pub struct Collector {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

/// An address that nobody has, nor gets: it is held to the end, by a socket that does not listen, and whoever is to
/// listen there may.
pub fn nobody() -> SocketAddr {
    let holder = tokio::net::TcpSocket::new_v4().unwrap();
    holder.set_reuseaddr(true).unwrap();
    holder.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = holder.local_addr().unwrap();
    std::mem::forget(holder);
    address
}

impl Collector {
    pub fn http(address: Option<SocketAddr>) -> Self {
        Self::start(address, |stream, shared| {
            let _ = serve_http(stream, &shared);
        })
    }

    pub fn grpc(address: Option<SocketAddr>) -> Self {
        Self::start(address, |stream, shared| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(serve_grpc(stream, &shared));
        })
    }

    fn start(address: Option<SocketAddr>, serve: fn(TcpStream, Arc<Shared>)) -> Self {
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if own.over.load(Ordering::SeqCst) {
                    return;
                }
                own.connections.fetch_add(1, Ordering::SeqCst);
                let shared = own.clone();
                let stream = stream.unwrap();
                std::thread::spawn(move || serve(stream, shared));
            }
        });
        Self { address, shared }
    }

    pub fn does(&self, what: impl IntoIterator<Item = Does>) {
        self.shared.does.lock().unwrap().extend(what);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Bytes that were taken from it.
    pub fn flooded(&self) -> u64 {
        self.shared.flooded.load(Ordering::SeqCst)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // It looks at that when somebody comes.
        let _ = TcpStream::connect(self.address);
    }
}

fn answer(path: &str, does: &Does) -> Vec<u8> {
    let Does::Partly(rejected, said) = does else {
        return Vec::new();
    };
    let error_message = (*said).to_owned();
    match path.to_ascii_lowercase().contains("metrics") {
        true => ExportMetricsServiceResponse {
            partial_success: Some(ExportMetricsPartialSuccess {
                rejected_data_points: *rejected,
                error_message,
            }),
        }
        .encode_to_vec(),
        false => ExportLogsServiceResponse {
            partial_success: Some(ExportLogsPartialSuccess {
                rejected_log_records: *rejected,
                error_message,
            }),
        }
        .encode_to_vec(),
    }
}

fn is_taken(does: &Does) -> bool {
    matches!(does, Does::Take | Does::Partly(..))
}

/// As long as the other side takes it.
fn flood(stream: &mut TcpStream, shared: &Shared, what: &[u8], pause: Duration) {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until && !shared.over.load(Ordering::SeqCst) {
        match stream.write(what) {
            Ok(bytes) => shared.flooded.fetch_add(bytes as u64, Ordering::SeqCst),
            Err(_) => return,
        };
        std::thread::sleep(pause);
    }
}

fn hang(shared: &Shared) {
    while !shared.over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn serve_http(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let bytes: usize = headers["content-length"].parse().unwrap();
        let mut body = vec![0; bytes];
        reader.read_exact(&mut body)?;
        let does = shared.next();
        shared.seen.lock().unwrap().push(Seen {
            path: path.clone(),
            headers,
            body,
            at: Instant::now(),
            taken: is_taken(&does),
        });
        match does {
            Does::Take | Does::Partly(..) => {
                let body = answer(&path, &does);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes())?;
                stream.write_all(&body)?;
            }
            Does::Says(status, more) => {
                let head =
                    format!("HTTP/1.1 {status} As it says\r\n{more}Content-Length: 5\r\n\r\nsaid.");
                stream.write_all(head.as_bytes())?;
            }
            Does::Hang => hang(shared),
            Does::Slow => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
                flood(&mut stream, shared, b"x", Duration::from_millis(50));
            }
            Does::Flood => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")?;
                flood(&mut stream, shared, &[b'x'; 65_536], Duration::ZERO);
            }
            Does::FloodHeaders => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
                let header = format!("X-More: {}\r\n", "x".repeat(1000));
                flood(&mut stream, shared, header.as_bytes(), Duration::ZERO);
            }
            Does::Garbage => stream.write_all(b"220 mail.example ESMTP\r\n\r\n")?,
            Does::Close | Does::Details(..) => return Ok(()),
        }
    }
}

async fn serve_grpc(stream: TcpStream, shared: &Shared) {
    // What is no HTTP/2 at all is said before anything of it.
    let early = shared.does.lock().unwrap().front().cloned();
    if let Some(Does::Garbage) = early {
        shared.next();
        let mut stream = stream;
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n\r\n");
        return;
    }
    stream.set_nonblocking(true).unwrap();
    let raw = stream.try_clone().unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let (head, mut stream) = request.into_parts();
        let headers: BTreeMap<String, String> = (head.headers.iter())
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        let path = head.uri.path().to_owned();
        let mut body = Vec::new();
        loop {
            // The connection itself moves on only while it is asked.
            let data = tokio::select! {
                data = stream.data() => data,
                more = connection.accept() => match more {
                    Some(Ok(_)) => panic!("two requests at once"),
                    _ => return,
                },
            };
            let Some(Ok(data)) = data else {
                break;
            };
            let _ = stream.flow_control().release_capacity(data.len());
            body.extend_from_slice(&data);
        }
        assert_eq!(body[0], 0, "compressed");
        let length = u32::from_be_bytes(body[1..5].try_into().unwrap());
        assert_eq!(length as usize, body.len() - 5);
        let does = shared.next();
        shared.seen.lock().unwrap().push(Seen {
            path: path.clone(),
            headers,
            body: body[5..].to_vec(),
            at: Instant::now(),
            taken: is_taken(&does),
        });
        let response = axum::http::Response::builder().header("content-type", "application/grpc");
        let trailers = |status: u16| {
            let mut trailers = axum::http::HeaderMap::new();
            trailers.insert("grpc-status", status.into());
            trailers
        };
        match does {
            Does::Take | Does::Partly(..) => {
                let message = answer(&path, &does);
                let mut framed = vec![0];
                framed.extend((message.len() as u32).to_be_bytes());
                framed.extend(message);
                let mut send = respond
                    .send_response(response.body(()).unwrap(), false)
                    .unwrap();
                send.send_data(Bytes::from(framed), false).unwrap();
                send.send_trailers(trailers(0)).unwrap();
            }
            Does::Says(status, said) => {
                let mut trailers = trailers(status);
                trailers.insert("grpc-message", said.parse().unwrap());
                let mut send = respond
                    .send_response(response.body(()).unwrap(), false)
                    .unwrap();
                send.send_trailers(trailers).unwrap();
            }
            Does::Details(status, details) => {
                let mut trailers = trailers(status);
                trailers.insert("grpc-status-details-bin", base64(&details).parse().unwrap());
                let mut send = respond
                    .send_response(response.body(()).unwrap(), false)
                    .unwrap();
                send.send_trailers(trailers).unwrap();
            }
            Does::Flood | Does::Slow => {
                let mut send = respond
                    .send_response(response.body(()).unwrap(), false)
                    .unwrap();
                // A message of 4 GiB begins.
                send.send_data(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff]), false)
                    .unwrap();
                let (some, pause) = match does {
                    Does::Slow => (1, Duration::from_millis(50)),
                    _ => (16_384, Duration::ZERO),
                };
                loop {
                    send.reserve_capacity(some);
                    let room = tokio::select! {
                        room = std::future::poll_fn(|context| send.poll_capacity(context)) => room,
                        _ = connection.accept() => return,
                    };
                    let Some(Ok(room)) = room else {
                        return;
                    };
                    let bytes = room.min(some);
                    if send
                        .send_data(Bytes::from(vec![b'x'; bytes]), false)
                        .is_err()
                    {
                        return;
                    }
                    shared.flooded.fetch_add(bytes as u64, Ordering::SeqCst);
                    tokio::time::sleep(pause).await;
                }
            }
            Does::FloodHeaders => {
                let mut many = response;
                for number in 0..1_000 {
                    many = many.header(format!("x-more-{number}"), "x".repeat(1_000));
                }
                let _ = respond.send_response(many.body(()).unwrap(), true);
            }
            Does::Hang => {
                let until = async {
                    while !shared.over.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                };
                tokio::select! {
                    () = until => return,
                    _ = connection.accept() => return,
                }
            }
            Does::Close | Does::Garbage => {
                let _ = raw.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let all = three.iter().chain([&0; 2]).take(3);
        let number = all.fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        for at in 0..=three.len() {
            text.push(DIGITS[(number >> (18 - 6 * at)) as usize & 63] as char);
        }
    }
    text
}

/// Until it is so.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never: {what}");
}
