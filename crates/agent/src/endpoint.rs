// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where are the figures asked for?
//!
//! A thread answers over HTTP; who has the figures is woken ([`Endpoint::as_fd`]) and gives
//! them ([`Endpoint::asked`]). However often somebody asks, they are made once a second at most,
//! and who connects and says nothing keeps nobody away ([`Limited`]).

use crate::Error;
use crate::config::Listen;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::serve::Listener;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;

/// Whoever has the figures answers within that, or is told to be stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// What was answered is good for so long.
const FRESH: Duration = Duration::from_secs(1);
/// So many connections are there at once; more wait to be accepted.
const CONNECTIONS: usize = 128;
/// Whoever connects says within that what they want,
const FIRST_WORD: Duration = Duration::from_secs(2);
/// and is gone by then, however slowly they speak or read.
const LONGEST: Duration = Duration::from_secs(15);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const INDEX: &str = "DeBox's agent: /metrics has the figures, as Prometheus reads them.\n";

/// Somebody wants to know.
pub struct Asked(oneshot::Sender<String>);

impl Asked {
    pub fn answer(self, text: String) {
        // Who asked may have gone.
        let _ = self.0.send(text);
    }
}

struct Shared {
    asks: mpsc::Sender<Asked>,
    bell: UnixStream,
    last: Mutex<Option<(Instant, String)>>,
}

pub struct Endpoint {
    asks: mpsc::Receiver<Asked>,
    bell: OwnedFd,
    said: String,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket that nobody listens at any more is taken away; other files are not.
fn left_behind(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn unix_listen(path: &Path) -> io::Result<UnixListener> {
    if left_behind(path) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

fn open(listen: &Listen) -> io::Result<Socket> {
    Ok(match listen {
        Listen::Address(address) => Socket::Tcp(TcpListener::bind(address)?),
        Listen::Path(path) => Socket::Unix(unix_listen(path)?),
    })
}

/// A connection that is over in time.
struct Timed<S> {
    stream: S,
    spoken: bool,
    end: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl<S> Timed<S> {
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.in_time(context)?;
        let got = pin!(&mut self.stream).poll_read(context, into);
        if got.is_ready() && !self.spoken {
            self.spoken = true;
            let end = tokio::time::Instant::now() + LONGEST;
            self.end.as_mut().reset(end);
        }
        got
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.in_time(context)?;
        pin!(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(context)
    }
}

/// Accepts so many, of which each is over in time.
struct Limited<L> {
    listener: L,
    room: Arc<Semaphore>,
}

impl<L> Limited<L> {
    fn new(listener: L) -> Self {
        Self {
            listener,
            room: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }
}

impl<L: Listener> Listener for Limited<L>
where
    L::Io: Unpin,
{
    type Io = Timed<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let room = loop {
            // It is never closed.
            if let Ok(room) = Arc::clone(&self.room).acquire_owned().await {
                break room;
            }
        };
        let (stream, address) = self.listener.accept().await;
        let timed = Timed {
            stream,
            spoken: false,
            end: Box::pin(tokio::time::sleep(FIRST_WORD)),
            _room: room,
        };
        (timed, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn figures(shared: &Shared) -> Option<String> {
    // Who asks meanwhile waits for the same.
    let mut last = shared.last.lock().await;
    if let Some((when, text)) = last.as_ref()
        && when.elapsed() < FRESH
    {
        return Some(text.clone());
    }
    let (sender, receiver) = oneshot::channel();
    shared.asks.send(Asked(sender)).ok()?;
    // Full: it rings already.
    let _ = io::Write::write(&mut &shared.bell, b"!");
    let text = tokio::time::timeout(PATIENCE, receiver).await.ok()?.ok()?;
    *last = Some((Instant::now(), text.clone()));
    Some(text)
}

const SNIFF: (HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const STORE: (HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

async fn metrics(State(shared): State<&'static Shared>) -> impl IntoResponse {
    match figures(shared).await {
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

fn serve(
    socket: Socket,
    shared: &'static Shared,
    runtime: &tokio::runtime::Runtime,
) -> io::Result<()> {
    let router = Router::new()
        .route("/", get(|| async { ([SNIFF], INDEX) }))
        .route("/metrics", get(metrics))
        .with_state(shared);
    runtime.block_on(async {
        match socket {
            Socket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(Limited::new(listener), router).await
            }
            Socket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                axum::serve(Limited::new(listener), router).await
            }
        }
    })
}

impl Endpoint {
    /// # Errors
    /// Somebody else has the address, or it may not be had.
    pub fn open(listen: &Listen) -> Result<Self, Error> {
        let named = match listen {
            Listen::Address(address) => address.to_string(),
            Listen::Path(path) => path.display().to_string(),
        };
        let socket = match open(listen) {
            Ok(socket) => socket,
            Err(source) => {
                let listen = named;
                return Err(Error::Listen { listen, source });
            }
        };
        let said = match &socket {
            Socket::Tcp(listener) => {
                let address = listener.local_addr().map_err(Error::Start)?;
                format!("http://{address}/metrics")
            }
            Socket::Unix(_) => format!("{named} (/metrics)"),
        };
        let (bell, rings) = UnixStream::pair().map_err(Error::Start)?;
        rings.set_nonblocking(true).map_err(Error::Start)?;
        bell.set_nonblocking(true).map_err(Error::Start)?;
        let (sender, asks) = mpsc::channel();
        // As long as the process.
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            asks: sender,
            bell: rings,
            last: Mutex::new(None),
        }));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(Error::Start)?;
        std::thread::Builder::new()
            .name("debox-metrics".into())
            .spawn(move || {
                // Ends with the process.
                let _ = serve(socket, shared, &runtime);
            })
            .map_err(Error::Start)?;
        Ok(Self {
            asks,
            bell: bell.into(),
            said,
        })
    }

    /// Where it is, for people.
    pub fn place(&self) -> &str {
        &self.said
    }

    /// Who asks now, if anybody.
    pub fn asked(&self) -> Option<Asked> {
        let mut rung = [0; 64];
        while rustix::io::read(&self.bell, &mut rung).is_ok_and(|bytes| bytes > 0) {}
        self.asks.try_recv().ok()
    }
}

impl AsFd for Endpoint {
    /// Readable: somebody asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
