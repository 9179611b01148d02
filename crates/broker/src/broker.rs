// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does one thread serve every client without trusting any?
//!
//! One epoll loop over nonblocking sockets. Nobody is waited for: a turn takes
//! at most one packet from each connection, a reply that finds no room ends its
//! connection, and what a connection was given goes back when its socket's last
//! copy is closed. What takes its time is done aside, users in turn, and
//! meanwhile nothing more is read from the connection that asked for it.
//! Processes that were given slots are watched by pidfd, so that a dead one's
//! slots do not wait for a parent that shares the socket.

use crate::aside::{Aside, Back, Done, OWN_LANE};
use crate::chains::ChainBook;
use crate::error::BrokerError;
use crate::identity::{Peer, Process, SenderProof};
use crate::label::LabelBook;
use crate::limits::{Limits, Usage, What};
use crate::message::{Credentials, Packet, Refusal, Request, TRACE_REQUEST_SIZE, parse_request};
use crate::own::{own_bytes, own_time};
use crate::shared::Shared;
use crate::shared_file::SharedFile;
use crate::site::{SiteBook, SiteResolver, withhold_addresses};
use crate::socket::{self, Ancillary, Received};
use crate::subuid::Subordinates;
use debox_abi::{
    DEBOX_COSTS_CPU, DEBOX_COSTS_MEMORY, DEBOX_COSTS_RUN_TIME, DEBOX_COSTS_TABLES,
    DEBOX_MSG_ACCOUNT, DEBOX_MSG_JOIN, DEBOX_MSG_LABELS, DEBOX_MSG_SELECT, DEBOX_MSG_SLOTS,
    DEBOX_MSG_TRACE, DEBOX_MSG_WATCH, DEBOX_SEGMENT_SLOTS, Pod, debox_away, debox_costs,
    debox_reply,
};
use debox_client::packet;
use debox_labels::LabelTable;
use debox_probe::{
    Account, AccountOptions, Bound, Boundary, Costs, Join, Kernel, KernelVersion, Segment,
    SegmentOptions, Trace, TraceOptions, TraceTarget, WatchedTest, Watcher, Whom,
};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOKEN_LISTENER: u64 = 0;
const TOKEN_CONTROL: u64 = 1;
const TOKEN_ASIDE: u64 = 2;
const TOKEN_FIRST_CONNECTION: u64 = 16;
/// Set in the token of a watched process's pidfd; the pid is in the low bits.
const TOKEN_PROCESS: u64 = 1 << 63;

/// Connections taken from the queue in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long accepting rests when the system has no descriptor or memory left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an account waits for the unwind tables of what its client has
/// mapped; without them the first walks go by frame pointer.
const TABLES_WAIT: Duration = Duration::from_secs(3);
/// How often closed connections with unread descriptors are looked at.
const DRAIN_TICK: Duration = Duration::from_millis(200);
/// How often memory that a process kept is looked at.
const LINGER_TICK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub struct Config {
    pub limits: Limits,
    /// None: what this kernel offers.
    pub sender_proof: Option<SenderProof>,
    /// Programs without privileges may have their own calls traced, with the
    /// default functions.
    pub trace_for_all: bool,
    pub serve: Serve,
    /// None: the running one. Some defects of kernels are kept from programs
    /// without privileges.
    pub kernel: Option<KernelVersion>,
    /// None: /etc/subuid and /etc/passwd.
    pub subordinate_ids: Option<[PathBuf; 2]>,
}

/// Whom a broker talks to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Serve {
    #[default]
    Everybody,
    /// Its own user, root, and the processes that it watches.
    OwnAndWatched,
}

/// What the control descriptor's owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Continue,
    /// Read symbols and rules anew.
    Reload,
    Stop,
}

struct Connection {
    fd: OwnedFd,
    peer: Arc<Peer>,
    /// Who pays for what it has.
    payer: u32,
    /// Descriptors in replies that may not have been read.
    in_flight: usize,
    segments: Vec<HeldSegment>,
    account: Option<HeldAccount>,
    trace: Option<u32>,
    deadline: Option<Instant>,
    /// A request is being carried out aside.
    busy: bool,
    /// An account that waits for unwind tables.
    waiting: Option<AccountWish>,
}

struct AccountWish {
    process: Process,
    watcher: Watcher,
    options: AccountOptions,
}

struct HeldSegment {
    id: u32,
    tgid: u32,
    payer: u32,
    /// Whose it is, if its records say what sleeps waited for.
    chains_for: Option<Watcher>,
    memory: Vec<u32>,
}

/// Something that was taken back while a process still held its memory: it
/// counts until that lets go.
struct Lingering {
    what: What,
    payer: u32,
    memory: Vec<u32>,
}

/// A closed connection with descriptors that its other end has not read: as
/// long as it keeps them there, they are its user's.
struct Draining {
    fd: OwnedFd,
    payer: u32,
    in_flight: usize,
}

struct HeldAccount {
    /// None while it is being opened.
    id: Option<u32>,
    payer: u32,
    memory: Vec<u32>,
    watcher: Watcher,
}

/// A process that was given slots.
struct Watched {
    process: Arc<Process>,
    segments: usize,
}

/// What is taken back from a connection that is closed.
#[derive(Default)]
struct Leftovers {
    segments: Vec<HeldSegment>,
    trace: Option<u32>,
    account: Option<HeldAccount>,
}

/// A granted request: the reply and the descriptors of its own.
struct Grant {
    reply: debox_reply,
    fds: Vec<OwnedFd>,
    /// The shared memory goes along.
    shared: bool,
}

impl Grant {
    /// What was asked for stands in a file.
    fn file(kind: u32, file: OwnedFd) -> Self {
        Self {
            reply: debox_reply::new(kind),
            fds: vec![file],
            shared: false,
        }
    }
}

fn bound_grant(kind: u32, bound: Bound) -> Grant {
    let mut reply = debox_reply::new(kind);
    reply.threads = bound.threads;
    reply.processes = bound.processes.into();
    Grant {
        reply,
        fds: Vec::new(),
        shared: false,
    }
}

/// For this client alone; `lack`: what it could not be told otherwise.
fn bytes_file(kind: u32, name: &str, lack: &str, bytes: &[u8]) -> Result<Grant, Refusal> {
    SharedFile::new(name)
        .and_then(|mut file| {
            file.append(bytes)?;
            file.for_reading()
        })
        .map(|file| Grant::file(kind, file))
        .map_err(|error| {
            Refusal::new(
                kind,
                libc::ENFILE,
                format!("{lack}: {error}; try again later."),
            )
        })
}

/// One after the other.
fn away_file(kind: u32, away: &[debox_away]) -> Result<Grant, Refusal> {
    let bytes: Vec<u8> = away.iter().flat_map(Pod::as_bytes).copied().collect();
    let lack = "the threads off the CPU cannot be told";
    bytes_file(kind, "debox-away", lack, &bytes)
}

fn functions_file(kind: u32, names: Vec<(u32, String)>) -> Result<Grant, Refusal> {
    let lines = names
        .into_iter()
        .map(|(number, name)| format!("{number}\t{}\n", withhold_addresses(name)));
    let text: String = lines.collect();
    let lack = "the kernel's functions cannot be named";
    bytes_file(kind, "debox-functions", lack, text.as_bytes())
}

/// What the kernel side takes, and this process; what is not known is marked.
fn costs_file(kind: u32, kernel: Costs) -> Result<Grant, Refusal> {
    let mut costs = debox_costs {
        size: size_of::<debox_costs>() as u32,
        known: DEBOX_COSTS_CPU,
        cpu_ns: own_time().as_nanos() as u64,
        ..debox_costs::zeroed()
    };
    if let Some(bytes) = own_bytes() {
        costs.known |= DEBOX_COSTS_MEMORY;
        costs.memory_bytes = bytes;
    }
    if let Some(bytes) = kernel.tables_bytes {
        costs.known |= DEBOX_COSTS_TABLES;
        costs.tables_bytes = bytes;
    }
    let (statistics, lack) = match kernel.run_time {
        Some(Ok(run_time)) => {
            costs.known |= DEBOX_COSTS_RUN_TIME;
            costs.run_time_ns = run_time.ns;
            (run_time.statistics, None)
        }
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let lack_file = "what the broker takes cannot be told";
    let mut grant = bytes_file(kind, "debox-costs", lack_file, costs.as_bytes())?;
    grant.fds.extend(statistics);
    if let Some(why) = lack {
        grant.reply.set_text(&why);
    }
    Ok(grant)
}

fn costs_refusal(kind: u32) -> Refusal {
    Refusal::new(
        kind,
        libc::EPERM,
        "what watching takes is of all users together, and told to who may watch others: it needs \
         CAP_PERFMON or CAP_SYS_ADMIN, in the broker's own user and PID namespaces.",
    )
}

fn labels_refusal(why: &str) -> Refusal {
    Refusal::new(
        DEBOX_MSG_LABELS,
        libc::EOPNOTSUPP,
        format!("places get their labels some milliseconds after they are met: {why}."),
    )
}

enum Answer {
    Now(Box<Grant>),
    /// It is being carried out aside.
    Later,
}

pub struct Broker<K: Kernel + Send + 'static> {
    // Field order is drop order: `shared` retires before the kernel side goes,
    // so that no client takes a record for fresh that nobody fills any more.
    shared: Shared,
    aside: Aside<K, Broker<K>>,
    failed: Option<String>,
    book: SiteBook,
    chains: ChainBook,
    labels: LabelBook,
    limits: Limits,
    proof: SenderProof,
    epoll: OwnedFd,
    listener: OwnedFd,
    accept_paused: Option<Instant>,
    connections: HashMap<u64, Connection>,
    processes: HashMap<u32, Watched>,
    deadlines: BTreeSet<(Instant, u64)>,
    lingering: Vec<Lingering>,
    linger_at: Option<Instant>,
    draining: Vec<Draining>,
    drain_at: Option<Instant>,
    usage: Usage,
    subordinate_files: [PathBuf; 2],
    subordinates: Subordinates,
    serve_whom: Serve,
    watched_test: WatchedTest,
    rings_refused: Option<String>,
    trace_for_all: bool,
    traces: usize,
    next_trace: u32,
    next_token: u64,
}

impl<K: Kernel + Send + 'static> Broker<K> {
    /// A broker over a listening AF_UNIX SOCK_SEQPACKET socket. It lives and
    /// dies with the calling thread, which holds the lock by which clients see
    /// that the broker is there.
    ///
    /// # Errors
    /// When the shared memory or the socket's options cannot be had.
    pub fn new<R: SiteResolver + Send + 'static>(
        config: Config,
        kernel: K,
        resolver: R,
        listener: OwnedFd,
    ) -> Result<Self, BrokerError> {
        let socket = |step| move |source| BrokerError::Socket { step, source };
        let shared = Shared::new()?;
        rustix::io::ioctl_fionbio(&listener, true).map_err(socket("FIONBIO"))?;
        // On the listener, for packets that are sent before we accept.
        socket::pass_credentials(listener.as_fd()).map_err(socket("SO_PASSCRED"))?;
        socket::refuse_descriptors(listener.as_fd()).map_err(socket("SO_PASSRIGHTS"))?;
        let proof = match config.sender_proof {
            Some(SenderProof::StartTime) => SenderProof::StartTime,
            wanted => match socket::pass_pidfd(listener.as_fd()) {
                Ok(()) => SenderProof::MessagePidfd,
                Err(source) if wanted.is_some() => {
                    return Err(BrokerError::Socket {
                        step: "SO_PASSPIDFD",
                        source,
                    });
                }
                Err(_) => SenderProof::StartTime,
            },
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(socket("epoll_create1"))?;
        let mut limits = config.limits;
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limits.fit(open_files.unwrap_or(u64::MAX));
        let subordinate_files = config
            .subordinate_ids
            .unwrap_or_else(|| ["/etc/subuid".into(), "/etc/passwd".into()]);
        let watched_test = kernel.watched_test();
        let broker = Self {
            shared,
            aside: Aside::start(kernel, resolver)?,
            failed: None,
            book: SiteBook::new()?,
            chains: ChainBook::default(),
            labels: LabelBook::default(),
            limits,
            proof,
            epoll,
            listener,
            accept_paused: None,
            connections: HashMap::new(),
            processes: HashMap::new(),
            deadlines: BTreeSet::new(),
            lingering: Vec::new(),
            linger_at: None,
            draining: Vec::new(),
            drain_at: None,
            usage: Usage::new(rustix::process::geteuid().as_raw()),
            subordinates: Subordinates::read(&subordinate_files[0], &subordinate_files[1]),
            subordinate_files,
            serve_whom: config.serve,
            watched_test,
            rings_refused: config
                .kernel
                .unwrap_or_else(KernelVersion::running)
                .rings_refused(),
            trace_for_all: config.trace_for_all,
            traces: 0,
            next_trace: 0,
            next_token: TOKEN_FIRST_CONNECTION,
        };
        broker
            .watch(
                broker.listener.as_fd(),
                TOKEN_LISTENER,
                epoll::EventFlags::IN,
            )
            .and_then(|()| broker.watch(broker.aside.fd(), TOKEN_ASIDE, epoll::EventFlags::IN))
            .map_err(socket("epoll_ctl"))?;
        tracing::debug!(
            ?proof,
            connections = broker.limits.total.connections,
            "broker ready"
        );
        Ok(broker)
    }

    /// Serves until `on_control`, called whenever `control` is readable, says
    /// stop. It has to read what is there.
    ///
    /// # Errors
    /// Only what makes going on impossible (epoll itself fails); never because
    /// of a client.
    pub fn run(
        &mut self,
        control: BorrowedFd,
        mut on_control: impl FnMut() -> Control,
    ) -> Result<(), BrokerError> {
        let socket = |step| move |source| BrokerError::Socket { step, source };
        self.watch(control, TOKEN_CONTROL, epoll::EventFlags::IN)
            .map_err(socket("epoll_ctl"))?;
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout().map(|duration| rustix::event::Timespec {
                tv_sec: duration.as_secs() as i64,
                tv_nsec: duration.subsec_nanos() as _,
            });
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(source) => {
                    return Err(BrokerError::Socket {
                        step: "epoll_wait",
                        source,
                    });
                }
            }
            for event in &events {
                match event.data.u64() {
                    TOKEN_LISTENER => self.accept(),
                    TOKEN_CONTROL => match on_control() {
                        Control::Continue => {}
                        Control::Reload => {
                            self.aside.reload();
                            let [subuid, passwd] = &self.subordinate_files;
                            self.subordinates = Subordinates::read(subuid, passwd);
                        }
                        Control::Stop => {
                            let _ = epoll::delete(&self.epoll, control);
                            return Ok(());
                        }
                    },
                    TOKEN_ASIDE => self.back(),
                    token if token & TOKEN_PROCESS != 0 => {
                        self.process_ended((token & !TOKEN_PROCESS) as u32)
                    }
                    token => self.serve(token, event.flags),
                }
            }
            self.timers();
            if let Some(text) = self.failed.take() {
                return Err(BrokerError::Panicked(text));
            }
        }
    }

    fn watch(&self, fd: BorrowedFd, token: u64, flags: epoll::EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    // ------------------------------------------------------------- time

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let first = self.deadlines.first().map(|&(at, _)| at);
        [first, self.accept_paused, self.drain_at, self.linger_at]
            .into_iter()
            .flatten()
            .min()
            // Rounded up: waking before the time would be a wake-up for nothing.
            .map(|at| at.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn timers(&mut self) {
        let now = Instant::now();
        while let Some(&(at, token)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.deadlines.remove(&(at, token));
            if self
                .connections
                .get(&token)
                .is_some_and(|connection| connection.waiting.is_some())
            {
                self.account_open(token);
                continue;
            }
            tracing::debug!(
                connection = token,
                "silent and without slots or account: closed"
            );
            let refusal = Refusal::new(
                0,
                libc::ETIMEDOUT,
                "no request came in time and the connection holds nothing; connect again when \
                 there is something to ask.",
            );
            if let Some(connection) = self.connections.get(&token) {
                let _ = socket::send(connection.fd.as_fd(), &refusal.reply(), &[]);
            }
            self.hang_up(token);
        }
        if self.accept_paused.is_some_and(|until| until <= now) {
            self.accept_resume();
        }
        if self.drain_at.is_some_and(|at| at <= now) {
            self.drain();
        }
        if self.linger_at.is_some_and(|at| at <= now) {
            self.linger_at = None;
            let asked = std::mem::take(&mut self.lingering);
            self.let_go(OWN_LANE, asked, |_| {});
        }
    }

    fn deadline_set(&mut self, token: u64, deadline: Option<Instant>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            if let Some(old) = connection.deadline {
                self.deadlines.remove(&(old, token));
            }
            connection.deadline = deadline;
            if let Some(new) = deadline {
                self.deadlines.insert((new, token));
            }
        }
    }

    /// After a valid request: only who holds nothing has to keep talking.
    fn deadline_renew(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let holds = connection.account.is_some() || !connection.segments.is_empty();
        let deadline = (!holds).then(|| Instant::now() + self.limits.idle);
        self.deadline_set(token, deadline);
    }

    // ------------------------------------------------------ connections

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            let fd = match rustix::net::accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    // EMFILE, ENFILE, ENOBUFS, ENOMEM: whoever connects waits
                    // in the queue. Without the pause this would be a busy loop.
                    self.accept_pause(error);
                    return;
                }
            };
            let Ok(peer) = socket::peer(fd.as_fd()) else {
                continue;
            };
            let payer = self.subordinates.payer(peer.uid);
            let peer = Peer::of(fd.as_fd(), peer);
            let refused = match self.serves(peer.credentials.uid, peer.pidfd()) {
                false => Some((libc::EACCES, self.not_served(peer.credentials))),
                true => self
                    .usage
                    .check(&self.limits, payer, What::Connections)
                    .err()
                    .map(|text| (libc::EUSERS, text)),
            };
            // Inherited from the listener, but (since 6.16) as it was when the
            // client connected: with socket activation that is before our time.
            let options = socket::pass_credentials(fd.as_fd()).and_then(|()| match self.proof {
                SenderProof::MessagePidfd => socket::pass_pidfd(fd.as_fd()),
                SenderProof::StartTime => socket::pass_timestamp(fd.as_fd()),
            });
            if let Err(error) = options {
                tracing::warn!(%error, "a connection was closed: the kernel does not tell who its senders are");
                self.finish(fd, None);
                continue;
            }
            if let Some((errno, text)) = refused {
                tracing::debug!(uid = peer.credentials.uid, "connection refused: {text}");
                let refusal = Refusal::new(0, errno, text);
                let _ = socket::send(fd.as_fd(), &refusal.reply(), &[]);
                self.finish(fd, None);
                continue;
            }
            let token = self.next_token;
            self.next_token += 1;
            if let Err(error) = self.watch(fd.as_fd(), token, epoll::EventFlags::IN) {
                // ENOSPC: fs.epoll.max_user_watches. The client sees a hang-up.
                tracing::warn!(%error, "a connection could not be watched and was closed");
                self.finish(fd, None);
                continue;
            }
            self.usage.take(payer, What::Connections);
            let peer = Arc::new(peer.without_pidfd());
            self.connections.insert(
                token,
                Connection {
                    fd,
                    peer: peer.clone(),
                    payer,
                    in_flight: 0,
                    segments: Vec::new(),
                    account: None,
                    trace: None,
                    deadline: None,
                    busy: false,
                    waiting: None,
                },
            );
            self.deadline_set(token, Some(Instant::now() + self.limits.first_request));
            tracing::trace!(
                connection = token,
                pid = peer.credentials.pid,
                uid = peer.credentials.uid,
                "connected"
            );
        }
    }

    fn accept_pause(&mut self, error: Errno) {
        if self.accept_paused.is_none() {
            tracing::warn!(
                %error,
                connections = self.connections.len(),
                "cannot accept connections now; raise LimitNOFILE of deboxd if this lasts"
            );
            let _ = epoll::delete(&self.epoll, &self.listener);
        }
        self.accept_paused = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn accept_resume(&mut self) {
        if self.accept_paused.take().is_some()
            && let Err(error) =
                self.watch(self.listener.as_fd(), TOKEN_LISTENER, epoll::EventFlags::IN)
        {
            tracing::warn!(%error, "accepting again failed, trying later");
            self.accept_paused = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    fn serve(&mut self, token: u64, flags: epoll::EventFlags) {
        let Some(connection) = self.connections.get(&token) else {
            return; // closed earlier in this turn
        };
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            // The other end is closed: nobody is left to read a reply.
            self.hang_up(token);
            return;
        }
        // A few bytes more than the longest request, so that a longer one shows.
        let mut buffer = [0u8; TRACE_REQUEST_SIZE + 8];
        let (length, mut ancillary) = match socket::receive(connection.fd.as_fd(), &mut buffer) {
            Ok(Received::Nothing) => return,
            Ok(Received::End) => return self.hang_up(token),
            Err(error) => {
                tracing::debug!(connection = token, %error, "receiving failed");
                return self.hang_up(token);
            }
            Ok(Received::Packet { length, ancillary }) => (length, ancillary),
        };
        let packet = Packet {
            bytes: &buffer[..length.min(buffer.len())],
            length,
            sender: ancillary.credentials,
            descriptors: ancillary.foreign,
        };
        if !ancillary.brought.is_empty() {
            let brought = std::mem::take(&mut ancillary.brought);
            self.aside.close(move || drop(brought));
        }
        let result = match parse_request(&packet) {
            // A parsed request has a sender.
            Ok(request) => match ancillary.credentials {
                Some(sender) => self.answer(token, request, sender, &mut ancillary),
                None => return self.hang_up(token),
            },
            Err(refusal) => {
                // Does not buy time.
                return self.reply(token, Err(refusal), false);
            }
        };
        match result {
            Ok(Answer::Now(grant)) => self.reply(token, Ok(*grant), true),
            Ok(Answer::Later) => self.busy_begin(token),
            Err(refusal) => self.reply(token, Err(refusal), true),
        }
    }

    /// Nothing more is read from a connection until it has its reply; that it
    /// is closed is still seen.
    fn busy_begin(&mut self, token: u64) {
        let waits = match self.connections.get_mut(&token) {
            Some(connection) => {
                connection.busy = true;
                let _ = epoll::modify(
                    &self.epoll,
                    &connection.fd,
                    epoll::EventData::new_u64(token),
                    epoll::EventFlags::empty(),
                );
                connection.waiting.is_some()
            }
            None => false,
        };
        if !waits {
            self.deadline_set(token, None);
        }
    }

    fn reply(&mut self, token: u64, result: Result<Grant, Refusal>, valid: bool) {
        // Who has the reply finds the same in the shared page.
        let features = self.aside.features();
        self.shared.features_set(features);
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if std::mem::take(&mut connection.busy) {
            let _ = epoll::modify(
                &self.epoll,
                &connection.fd,
                epoll::EventData::new_u64(token),
                epoll::EventFlags::IN,
            );
        }
        let (sent, close) = match result {
            Ok(mut grant) => {
                grant.reply.features = features;
                let mut fds: Vec<BorrowedFd> = grant.fds.iter().map(AsFd::as_fd).collect();
                if grant.shared {
                    fds.push(self.shared.fd());
                }
                grant.reply.fds = fds.len() as u32;
                let sent = socket::send(connection.fd.as_fd(), &grant.reply, &fds);
                if sent.is_ok() {
                    connection.in_flight += fds.len();
                    self.usage
                        .take_many(connection.payer, What::InFlight, fds.len());
                }
                (sent, false)
            }
            Err(refusal) => {
                tracing::debug!(
                    connection = token,
                    errno = refusal.errno,
                    "refused: {}",
                    refusal.text
                );
                let mut reply = refusal.reply();
                reply.features = features;
                (
                    socket::send(connection.fd.as_fd(), &reply, &[]),
                    refusal.close,
                )
            }
        };
        match sent {
            Ok(()) if close => self.hang_up(token),
            Ok(()) if valid => self.deadline_renew(token),
            Ok(()) => {}
            Err(error) => {
                // EAGAIN: the client does not read its replies. ETOOMANYREFS:
                // too many descriptors lie unread. Either way it is not waited for.
                tracing::debug!(connection = token, %error, "the reply could not be sent: dropped");
                self.hang_up(token);
            }
        }
    }

    /// Takes back all that the connection was given and closes it.
    fn hang_up(&mut self, token: u64) {
        self.deadline_set(token, None);
        let Some(connection) = self.connections.remove(&token) else {
            return;
        };
        // Explicitly, since a fork of this process may hold a copy until its exec.
        let _ = epoll::delete(&self.epoll, &connection.fd);
        let peer = connection.peer.credentials;
        for segment in &connection.segments {
            self.process_forget(segment.tgid, 1);
        }
        if connection.trace.is_some() {
            self.traces -= 1;
        }
        let payer = connection.payer;
        self.take_back(
            payer,
            Leftovers {
                segments: connection.segments,
                trace: connection.trace,
                account: connection.account,
            },
        );
        tracing::trace!(connection = token, pid = peer.pid, "closed");
        if connection.in_flight > 0 && packet::unread(connection.fd.as_fd()) {
            let _ = rustix::net::shutdown(&connection.fd, rustix::net::Shutdown::Both);
            self.draining.push(Draining {
                fd: connection.fd,
                payer,
                in_flight: connection.in_flight,
            });
            self.drain_at = Some(Instant::now() + DRAIN_TICK);
        } else {
            self.usage
                .give_back_many(payer, What::InFlight, connection.in_flight);
            self.finish(connection.fd, Some(payer));
        }
        self.accept_resume();
    }

    /// Closes a connection. It counts until it is closed, if it was counted.
    fn finish(&mut self, fd: OwnedFd, payer: Option<u32>) {
        let closed = move |broker: &mut Self| {
            if let Some(payer) = payer {
                broker.usage.give_back(payer, What::Connections);
            }
        };
        let Some(unclosed) = socket::finish(fd) else {
            return closed(self);
        };
        let told = self.aside.returning(closed);
        self.aside.close(move || {
            unclosed.close();
            told();
        });
    }

    /// Lets go of closed connections whose replies have been read or thrown
    /// away by now.
    fn drain(&mut self) {
        let (unread, read): (Vec<_>, Vec<_>) = std::mem::take(&mut self.draining)
            .into_iter()
            .partition(|draining| packet::unread(draining.fd.as_fd()));
        self.draining = unread;
        self.drain_at = (!self.draining.is_empty()).then(|| Instant::now() + DRAIN_TICK);
        for draining in read {
            self.usage
                .give_back_many(draining.payer, What::InFlight, draining.in_flight);
            self.finish(draining.fd, Some(draining.payer));
        }
    }

    /// Replies of a connection that have been read are no longer in flight.
    fn in_flight_settle(&mut self, token: u64) {
        if let Some(connection) = self.connections.get_mut(&token)
            && connection.in_flight > 0
            && !packet::unread(connection.fd.as_fd())
        {
            let read = std::mem::take(&mut connection.in_flight);
            self.usage
                .give_back_many(connection.payer, What::InFlight, read);
        }
    }

    /// Room for the descriptors of one more reply.
    fn in_flight_check(&mut self, kind: u32, token: u64) -> Result<(), Refusal> {
        self.in_flight_settle(token);
        let payer = self.lane(token);
        if self
            .usage
            .check(&self.limits, payer, What::InFlight)
            .is_err()
        {
            // Others of the same user may have been read.
            self.drain();
            let tokens: Vec<u64> = self
                .connections
                .iter()
                .filter(|(_, connection)| connection.payer == payer && connection.in_flight > 0)
                .map(|(&token, _)| token)
                .collect();
            for token in tokens {
                self.in_flight_settle(token);
            }
        }
        self.usage
            .check(&self.limits, payer, What::InFlight)
            .map_err(|text| Refusal::new(kind, libc::ETOOMANYREFS, text))
    }

    // ------------------------------------------------------ who is served

    fn serves(&self, uid: u32, pidfd: Option<BorrowedFd<'_>>) -> bool {
        match self.serve_whom {
            Serve::Everybody => true,
            Serve::OwnAndWatched => {
                uid == 0
                    || uid == rustix::process::geteuid().as_raw()
                    || pidfd.is_some_and(|pidfd| (self.watched_test)(pidfd))
            }
        }
    }

    fn not_served(&self, who: Credentials) -> String {
        format!(
            "this is the private broker of a `debox run` of uid {}: it serves that user and the \
             processes that it watches, which process {} (uid {}) is not. Unset DEBOX_SOCKET, or \
             use deboxd's.",
            rustix::process::geteuid().as_raw(),
            who.pid,
            who.uid
        )
    }

    /// Takes things back in the kernel; only then others may have them.
    fn take_back(&mut self, lane: u32, left: Leftovers) {
        if left.segments.is_empty() && left.trace.is_none() && left.account.is_none() {
            return;
        }
        let mut counted: Vec<Lingering> = Vec::new();
        let mut segments = Vec::new();
        for segment in left.segments {
            segments.push(segment.id);
            counted.push(Lingering {
                what: What::Segments,
                payer: segment.payer,
                memory: segment.memory,
            });
        }
        let account = left.account.and_then(|account| {
            counted.push(Lingering {
                what: What::Accounts,
                payer: account.payer,
                memory: account.memory,
            });
            account.id
        });
        let trace = left.trace;
        self.let_go(lane, counted, move |kernel| {
            for segment in segments {
                kernel.segment_release(segment);
            }
            if let Some(trace) = trace {
                kernel.trace_release(trace);
            }
            if let Some(account) = account {
                kernel.account_release(account);
            }
        });
    }

    /// Does `release`, and gives back what nobody holds any more; the rest is
    /// looked at again later.
    fn let_go(
        &mut self,
        lane: u32,
        counted: Vec<Lingering>,
        release: impl FnOnce(&mut K) + Send + 'static,
    ) {
        self.aside.order(lane, move |kernel| {
            release(kernel);
            let memory: Vec<u32> = counted
                .iter()
                .flat_map(|one| one.memory.iter().copied())
                .collect();
            let held: HashSet<u32> = if memory.is_empty() {
                HashSet::new()
            } else {
                kernel.memory_held(&memory).into_iter().collect()
            };
            let done: Done<Self> = Box::new(move |broker| {
                for one in counted {
                    if one.memory.iter().any(|id| held.contains(id)) {
                        broker.lingering.push(one);
                    } else {
                        broker.usage.give_back(one.payer, one.what);
                    }
                }
                if !broker.lingering.is_empty() && broker.linger_at.is_none() {
                    broker.linger_at = Some(Instant::now() + LINGER_TICK);
                }
            });
            done
        });
    }

    // ------------------------------------------------------------ aside

    /// What was done aside.
    fn back(&mut self) {
        for back in self.aside.take() {
            match back {
                Back::Done(done) => done(self),
                Back::Labels(table) => self.labels_install(table),
                Back::Site(id, text, label) => {
                    let named = text.labelled.then_some(text.label.as_str());
                    self.labels.compare(label, named);
                    if let Some(merged) = self.book.publish(&self.shared, id, text) {
                        self.aside.order(OWN_LANE, move |kernel| {
                            kernel.site_merged(id, merged);
                            Box::new(|_: &mut Self| {})
                        });
                    }
                }
                Back::Failed(text) => self.failed = Some(text),
            }
        }
        self.shared.features_set(self.aside.features());
    }

    /// The lane of what a connection asks for.
    fn lane(&self, token: u64) -> u32 {
        self.connections
            .get(&token)
            .map_or(OWN_LANE, |connection| connection.payer)
    }

    /// Does `work` aside, then replies what it said.
    fn answer_aside(
        &mut self,
        token: u64,
        work: impl FnOnce(&mut K) -> Result<Grant, Refusal> + Send + 'static,
    ) {
        self.aside.order(self.lane(token), move |kernel| {
            let result = work(kernel);
            let done: Done<Self> = Box::new(move |broker| broker.reply(token, result, true));
            done
        });
    }

    // -------------------------------------------------------- processes

    fn process_forget(&mut self, tgid: u32, segments: usize) {
        if let Some(watched) = self.processes.get_mut(&tgid) {
            watched.segments = watched.segments.saturating_sub(segments);
            if watched.segments == 0
                && let Some(watched) = self.processes.remove(&tgid)
            {
                let _ = epoll::delete(&self.epoll, &watched.process.pidfd);
            }
        }
    }

    fn process_forget_one(&mut self, process: &Arc<Process>) {
        let known = self
            .processes
            .get(&process.pid)
            .is_some_and(|watched| Arc::ptr_eq(&watched.process, process));
        if known {
            self.process_forget(process.pid, 1);
        }
    }

    /// Takes back the slots of a process that has ended, whoever still holds
    /// the socket.
    fn process_ended(&mut self, tgid: u32) {
        // The event may be of a process that had this number before.
        if self
            .processes
            .get(&tgid)
            .is_none_or(|watched| watched.process.alive())
        {
            return;
        }
        let mut given_back = Vec::new();
        let mut touched = Vec::new();
        for (&token, connection) in &mut self.connections {
            let (ended, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut connection.segments)
                .into_iter()
                .partition(|segment| segment.tgid == tgid);
            connection.segments = kept;
            if !ended.is_empty() {
                touched.push(token);
            }
            given_back.extend(ended);
        }
        self.process_forget(tgid, usize::MAX);
        let lane = given_back.first().map_or(OWN_LANE, |segment| segment.payer);
        self.take_back(
            lane,
            Leftovers {
                segments: given_back,
                ..Leftovers::default()
            },
        );
        for token in touched {
            self.deadline_renew(token);
        }
    }

    // --------------------------------------------------------- requests

    fn answer(
        &mut self,
        token: u64,
        request: Request,
        sender: Credentials,
        ancillary: &mut Ancillary,
    ) -> Result<Answer, Refusal> {
        let kind = request.kind();
        if request == Request::Status {
            return Ok(Answer::Now(self.status(kind).into()));
        }
        let binds = matches!(
            request,
            Request::Join { .. } | Request::Watch { .. } | Request::Select(_)
        );
        if !binds {
            self.in_flight_check(kind, token)?;
        }
        if request == Request::SiteStacks {
            return self
                .site_stacks(kind, token)
                .map(|grant| Answer::Now(grant.into()));
        }
        let Some(peer) = self.connections.get(&token).map(|c| c.peer.clone()) else {
            return Err(Refusal::new(
                kind,
                libc::ENOTCONN,
                "the connection is closed.",
            ));
        };
        let process = Process::sender(kind, sender, ancillary, self.proof)?;
        if !self.serves(process.facts.uids[1], Some(process.pidfd.as_fd())) {
            return Err(Refusal::new(kind, libc::EACCES, self.not_served(sender)));
        }
        // A child may join over the connection that it inherited; all else is
        // for the process that connected.
        if !matches!(request, Request::Join { .. }) {
            peer.is_sender(kind, &process)?;
            peer.lends_to(kind, &process)?;
        }
        let privileged = |target| {
            process.may_watch_others(target)?;
            peer.may_watch_others(target)
        };
        match request {
            Request::Slots { options } => {
                let watcher = process.watcher(sender, privileged(process.pid).is_ok());
                self.slots(token, watcher, process, options)
            }
            Request::Account {
                options,
                user_stacks,
            } => {
                let wish = AccountWish {
                    watcher: process.watcher(sender, privileged(process.pid).is_ok()),
                    options,
                    process,
                };
                if let (true, false, Some(text)) = (
                    options.details,
                    wish.watcher.privileged,
                    &self.rings_refused,
                ) {
                    return Err(Refusal::new(kind, libc::EOPNOTSUPP, text.clone()));
                }
                self.account(token, wish, user_stacks)
            }
            Request::Chains => self.chains(kind, token),
            Request::Labels => return self.labels(kind, token),
            Request::Away => self.away(kind, token),
            Request::KernelFunctions => self.kernel_functions(kind, token),
            Request::Join { follow } => self.join(token, process, follow),
            Request::Boundary(whose) => self.boundary(kind, token, whose),
            Request::Watch {
                pid,
                follow,
                descendants,
            } => {
                privileged(pid).map_err(|text| Refusal::new(kind, libc::EPERM, text))?;
                let join = Join {
                    follow,
                    descendants,
                    except: [process.pid, std::process::id()],
                };
                self.watch_process(token, pid, join)
            }
            Request::Select(whom) => {
                let whom = Whom {
                    except: [process.pid, std::process::id()],
                    ..whom
                };
                self.select(token, process, whom)
            }
            Request::Yield => self.account_yield(kind, token),
            Request::Trace { account, options } => {
                let target = if account {
                    TraceTarget::Account {
                        id: self.account_id(kind, token)?,
                    }
                } else {
                    TraceTarget::Slots { tgid: process.pid }
                };
                let privileged = privileged(process.pid).is_ok();
                self.trace(token, target, privileged, options)
            }
            Request::TraceStop => self.trace_stop(token),
            Request::Costs { run_time } => {
                privileged(process.pid).map_err(|_| costs_refusal(kind))?;
                // Aside: all descriptors of this process are looked through.
                self.answer_aside(token, move |kernel| {
                    costs_file(kind, kernel.costs(run_time))
                });
                Ok(())
            }
            // Answered above.
            Request::Status | Request::SiteStacks => {
                return Ok(Answer::Now(self.status(kind).into()));
            }
        }?;
        Ok(Answer::Later)
    }

    fn status(&self, kind: u32) -> Grant {
        let counters = self.aside.counters();
        let mut reply = debox_reply::new(kind);
        // Of connections that are open: not what lingers.
        let connections = self.connections.values();
        let segments: usize = connections.clone().map(|c| c.segments.len()).sum();
        reply.slots_used = (segments * DEBOX_SEGMENT_SLOTS) as u64;
        reply.accounts_used = connections.filter(|c| c.account.is_some()).count() as u64;
        reply.site_walks = counters.site_walks;
        reply.site_hits = counters.site_hits;
        reply.site_mismatches = counters.site_mismatches + self.labels.mismatches;
        reply.site_failures = counters.site_failures;
        reply.storage_failures = counters.storage_failures;
        reply.slots_exhausted = counters.slots_exhausted;
        reply.switches_hidden = counters.switches_hidden;
        Grant {
            reply,
            fds: Vec::new(),
            shared: false,
        }
    }

    fn slots(
        &mut self,
        token: u64,
        watcher: Watcher,
        process: Process,
        options: SegmentOptions,
    ) -> Result<(), Refusal> {
        let kind = DEBOX_MSG_SLOTS;
        let uid = watcher.uid;
        let tgid = process.pid;
        // The number may have had another owner, whose end is still in the queue.
        self.process_ended(tgid);
        let used = self
            .processes
            .get(&tgid)
            .map_or(0, |watched| watched.segments);
        let limit = self.limits.segments_per_process;
        if used >= limit {
            return Err(Refusal::new(
                kind,
                libc::ENOSPC,
                format!(
                    "process {tgid} has {used} segments ({} threads), the limit of one process is \
                     {limit}; further threads are not watched.",
                    used * DEBOX_SEGMENT_SLOTS
                ),
            ));
        }
        let payer = self.subordinates.payer(uid);
        self.usage
            .check(&self.limits, payer, What::Segments)
            .map_err(|text| Refusal::new(kind, libc::ENOSPC, text))?;
        let process = self.process_note(process)?;
        self.usage.take(payer, What::Segments);
        self.aside.order(self.lane(token), move |kernel| {
            let made = kernel
                .segment_create(tgid, watcher, options)
                .map_err(|error| kernel_refusal(kind, error))
                .and_then(|segment| {
                    // Alive now, hence `tgid` was this process all the while.
                    if process.alive() {
                        return Ok(segment);
                    }
                    kernel.segment_release(segment.id);
                    Err(gone(kind, tgid))
                });
            let done: Done<Self> = Box::new(move |broker| {
                let chains_for = options.chains.then_some(watcher);
                broker.slots_made(token, payer, chains_for, &process, made);
            });
            done
        });
        Ok(())
    }

    /// One more segment for a process, whose end is watched for from now on.
    fn process_note(&mut self, process: Process) -> Result<Arc<Process>, Refusal> {
        let tgid = process.pid;
        if let Some(watched) = self.processes.get_mut(&tgid) {
            watched.segments += 1;
            return Ok(watched.process.clone());
        }
        self.watch(
            process.pidfd.as_fd(),
            TOKEN_PROCESS | u64::from(tgid),
            epoll::EventFlags::IN,
        )
        .map_err(|error| {
            Refusal::new(
                DEBOX_MSG_SLOTS,
                libc::ENFILE,
                format!(
                    "the broker cannot watch for the end of process {tgid}: {error}; try again later."
                ),
            )
        })?;
        let process = Arc::new(process);
        self.processes.insert(
            tgid,
            Watched {
                process: process.clone(),
                segments: 1,
            },
        );
        Ok(process)
    }

    fn slots_made(
        &mut self,
        token: u64,
        payer: u32,
        chains_for: Option<Watcher>,
        process: &Arc<Process>,
        made: Result<Segment, Refusal>,
    ) {
        let tgid = process.pid;
        let segment = match made {
            Ok(segment) => segment,
            Err(refusal) => {
                self.usage.give_back(payer, What::Segments);
                self.process_forget_one(process);
                return self.reply(token, Err(refusal), true);
            }
        };
        let held = HeldSegment {
            id: segment.id,
            tgid,
            payer,
            chains_for,
            memory: segment.memory,
        };
        let known = self
            .processes
            .get(&tgid)
            .is_some_and(|watched| Arc::ptr_eq(&watched.process, process));
        match self.connections.get_mut(&token) {
            Some(connection) if known => connection.segments.push(held),
            // It hung up, or the process ended, while this was made.
            connection => {
                let told = connection.is_some();
                self.process_forget_one(process);
                self.take_back(
                    payer,
                    Leftovers {
                        segments: vec![held],
                        ..Leftovers::default()
                    },
                );
                if told {
                    self.reply(token, Err(gone(DEBOX_MSG_SLOTS, tgid)), true);
                }
                return;
            }
        }
        let mut reply = debox_reply::new(DEBOX_MSG_SLOTS);
        reply.slots = DEBOX_SEGMENT_SLOTS as u32;
        reply.threads = segment.threads;
        let grant = Grant {
            reply,
            fds: vec![segment.record, segment.control],
            shared: true,
        };
        self.reply(token, Ok(grant), true);
    }

    fn account(&mut self, token: u64, wish: AccountWish, user_stacks: bool) -> Result<(), Refusal> {
        let uid = wish.watcher.uid;
        let kind = DEBOX_MSG_ACCOUNT;
        let lane = self.lane(token);
        let Some(connection) = self.connections.get_mut(&token) else {
            return Err(Refusal::new(
                kind,
                libc::ENOTCONN,
                "the connection is closed.",
            ));
        };
        if connection.account.is_some() {
            return Err(Refusal::new(
                kind,
                libc::EEXIST,
                "this connection has an account already; open another connection for another one.",
            ));
        }
        let payer = self.subordinates.payer(uid);
        self.usage
            .check(&self.limits, payer, What::Accounts)
            .map_err(|text| Refusal::new(kind, libc::ENOSPC, text))?;
        self.usage.take(payer, What::Accounts);
        let tables_of = user_stacks.then_some(wish.process.pid);
        connection.account = Some(HeldAccount {
            id: None,
            payer,
            memory: Vec::new(),
            watcher: wish.watcher,
        });
        connection.waiting = Some(wish);
        let Some(pid) = tables_of else {
            self.account_open(token);
            return Ok(());
        };
        self.deadline_set(token, Some(Instant::now() + TABLES_WAIT));
        let returned = self.aside.returning(move |broker: &mut Self| {
            broker.account_open(token);
        });
        self.aside.order(lane, move |kernel| {
            kernel.user_stacks_prepare(payer, pid, returned);
            let done: Done<Self> = Box::new(|_| {});
            done
        });
        Ok(())
    }

    /// The unwind tables are there, or were waited for long enough.
    fn account_open(&mut self, token: u64) {
        self.deadline_set(token, None);
        let lane = self.lane(token);
        let Some(wish) = self
            .connections
            .get_mut(&token)
            .and_then(|connection| connection.waiting.take())
        else {
            return; // the other of the two came first, or it hung up
        };
        let kind = DEBOX_MSG_ACCOUNT;
        self.aside.order(lane, move |kernel| {
            let made = kernel
                .account_create(wish.watcher, wish.options)
                .map_err(|error| kernel_refusal(kind, error))
                .and_then(|account| {
                    // Alive now, hence what was read under its number was its own.
                    if wish.process.alive() {
                        return Ok(account);
                    }
                    kernel.account_release(account.id);
                    Err(gone(kind, wish.process.pid))
                });
            let done: Done<Self> = Box::new(move |broker| broker.account_made(token, made));
            done
        });
    }

    fn account_made(&mut self, token: u64, made: Result<Account, Refusal>) {
        let lane = self.lane(token);
        let held = self
            .connections
            .get_mut(&token)
            .map(|connection| &mut connection.account);
        let account = match (made, held) {
            (Ok(account), Some(Some(held))) => {
                held.id = Some(account.id);
                held.memory.clone_from(&account.memory);
                account
            }
            (Ok(account), _) => {
                // It hung up meanwhile, and its charge went back.
                self.aside.order(lane, move |kernel| {
                    kernel.account_release(account.id);
                    let done: Done<Self> = Box::new(|_| {});
                    done
                });
                return;
            }
            (Err(refusal), held) => {
                if let Some(held) = held.and_then(Option::take) {
                    self.usage.give_back(held.payer, What::Accounts);
                }
                return self.reply(token, Err(refusal), true);
            }
        };
        let mut reply = debox_reply::new(DEBOX_MSG_ACCOUNT);
        reply.cpus = account.cpus;
        reply.cpu_stride = account.cpu_stride;
        let mut fds = vec![account.account, account.cpus_map];
        if let Some(details) = account.details {
            fds.extend([
                details.details,
                details.events,
                details.control,
                details.chains,
                details.objects,
                details.lives,
            ]);
            fds.extend(details.on_cpu);
        }
        let grant = Grant {
            reply,
            fds,
            shared: true,
        };
        self.reply(token, Ok(grant), true);
    }

    fn site_stacks(&self, kind: u32, token: u64) -> Result<Grant, Refusal> {
        self.held_account(kind, token)?;
        let file = self.book.stacks().map_err(|error| {
            Refusal::new(
                kind,
                libc::ENFILE,
                format!("the names of the sites cannot be opened: {error}; try again later."),
            )
        })?;
        Ok(Grant::file(kind, file))
    }

    /// First the new links from the kernel side, then a file of all.
    fn chains(&mut self, kind: u32, token: u64) -> Result<(), Refusal> {
        self.chains_reader(kind, token)?;
        let lane = self.lane(token);
        let from = self.chains.next();
        self.aside.order(lane, move |kernel| {
            let new = kernel.chains(from);
            let done: Done<Self> = Box::new(move |broker| {
                broker.chains.add(from, new);
                let reply = broker.chains_file(kind, token);
                broker.reply(token, reply, true);
            });
            done
        });
        Ok(())
    }

    /// For whom links are told: the watcher of the account, else of the slots.
    fn chains_reader(&self, kind: u32, token: u64) -> Result<Watcher, Refusal> {
        let connection = self.connections.get(&token);
        let account = connection.and_then(|c| c.account.as_ref());
        let slots = connection.and_then(|c| c.segments.last());
        account
            .map(|account| account.watcher)
            .or(slots.and_then(|segment| segment.chains_for))
            .ok_or_else(|| {
                Refusal::new(
                    kind,
                    libc::ENOENT,
                    "this connection has neither an account nor slots with chains; send \
                     DEBOX_MSG_ACCOUNT first, or DEBOX_MSG_SLOTS with DEBOX_REQ_CHAINS.",
                )
            })
    }

    fn chains_file(&mut self, kind: u32, token: u64) -> Result<Grant, Refusal> {
        let watcher = self.chains_reader(kind, token)?;
        let file = self.chains.file(&watcher, &self.book).map_err(|error| {
            Refusal::new(
                kind,
                libc::ENFILE,
                format!("the links of chains cannot be opened: {error}; try again later."),
            )
        })?;
        Ok(Grant::file(kind, file))
    }

    fn away(&mut self, kind: u32, token: u64) -> Result<(), Refusal> {
        let account = self.account_id(kind, token)?;
        let lane = self.lane(token);
        self.aside.order(lane, move |kernel| {
            let away = kernel.away(account);
            let done: Done<Self> = Box::new(move |broker| {
                let reply = away
                    .map_err(|error| kernel_refusal(kind, error))
                    .and_then(|away| away_file(kind, &away));
                broker.reply(token, reply, true);
            });
            done
        });
        Ok(())
    }

    fn kernel_functions(&mut self, kind: u32, token: u64) -> Result<(), Refusal> {
        let account = self.account_id(kind, token)?;
        let lane = self.lane(token);
        self.aside.order(lane, move |kernel| {
            let functions = kernel.on_cpu_functions(account);
            let done: Done<Self> = Box::new(move |broker| {
                let named = broker
                    .aside
                    .returning_with(move |broker: &mut Self, names| {
                        let reply = functions_file(kind, names);
                        broker.reply(token, reply, true);
                    });
                broker.aside.functions_ask(functions, named);
            });
            done
        });
        Ok(())
    }

    fn labels(&mut self, kind: u32, token: u64) -> Result<Answer, Refusal> {
        self.held_account(kind, token)?;
        if self.labels.installed {
            return self.labels_file().map(|grant| Answer::Now(grant.into()));
        }
        self.labels.waiting.push(token);
        if self.labels.waiting.len() == 1 {
            self.aside.labels_ask();
        }
        Ok(Answer::Later)
    }

    fn labels_file(&self) -> Result<Grant, Refusal> {
        match self.labels.file() {
            Ok(file) => Ok(Grant::file(DEBOX_MSG_LABELS, file)),
            Err(error) => Err(labels_refusal(&error.to_string())),
        }
    }

    /// The kernel side gets a table, or another one.
    fn labels_install(&mut self, table: Option<LabelTable>) {
        let Some(table) = table else {
            self.labels_reply(Some(
                "the kernel shows no symbols, or there are too many rules",
            ));
            return;
        };
        let numbers = match self.labels.number(&table.labels) {
            Ok(numbers) => numbers,
            Err(error) => {
                self.labels_reply(Some(&error.to_string()));
                return;
            }
        };
        self.aside.order(OWN_LANE, move |kernel| {
            let set = kernel.labels_set(&table, &numbers);
            let done: Done<Self> = Box::new(move |broker| match set {
                Ok(()) => {
                    broker.labels.installed = true;
                    broker.labels_reply(None);
                }
                Err(error) => broker.labels_reply(Some(&error.to_string())),
            });
            done
        });
    }

    /// To all who wait for labels.
    fn labels_reply(&mut self, problem: Option<&str>) {
        for token in std::mem::take(&mut self.labels.waiting) {
            let reply = match problem {
                Some(why) => Err(labels_refusal(why)),
                None => self.labels_file(),
            };
            self.reply(token, reply, true);
        }
    }

    fn held_account(&self, kind: u32, token: u64) -> Result<&HeldAccount, Refusal> {
        self.connections
            .get(&token)
            .and_then(|connection| connection.account.as_ref())
            .ok_or_else(|| {
                Refusal::new(
                    kind,
                    libc::ENOENT,
                    "this connection has no account; send DEBOX_MSG_ACCOUNT first.",
                )
            })
    }

    fn join(&mut self, token: u64, process: Process, follow: bool) -> Result<(), Refusal> {
        let kind = DEBOX_MSG_JOIN;
        // Whether the account's watcher may see this process is asked in the
        // kernel, at the moment of binding.
        self.held_account(kind, token)?;
        let join = Join {
            follow,
            ..Join::default()
        };
        self.put_into_account(kind, token, process, join)
    }

    /// Each thread is judged in the kernel, by the account's watcher: who may not see a
    /// thread is not told that it is there.
    fn select(&mut self, token: u64, process: Process, whom: Whom) -> Result<(), Refusal> {
        let kind = DEBOX_MSG_SELECT;
        let id = self.account_id(kind, token)?;
        self.answer_aside(token, move |kernel| {
            let bound = kernel
                .account_select(id, &whom)
                .map_err(|error| kernel_refusal(kind, error))?;
            // Alive now, hence it was itself who was left out.
            if !process.alive() {
                return Err(gone(kind, process.pid));
            }
            Ok(bound_grant(kind, bound))
        });
        Ok(())
    }

    /// What the account gives away is for others to take.
    fn account_yield(&mut self, kind: u32, token: u64) -> Result<(), Refusal> {
        let id = self.account_id(kind, token)?;
        self.answer_aside(token, move |kernel| {
            kernel.account_yield(id);
            Ok(bound_grant(kind, Bound::default()))
        });
        Ok(())
    }

    /// Nobody comes under watch by it, so it needs no right: threads of another account are
    /// left alone.
    fn boundary(&mut self, kind: u32, token: u64, whose: Boundary) -> Result<(), Refusal> {
        let id = self.account_id(kind, token)?;
        self.answer_aside(token, move |kernel| {
            let threads = kernel
                .account_boundary(id, whose)
                .map_err(|error| kernel_refusal(kind, error))?;
            let bound = Bound {
                threads,
                processes: 0,
            };
            Ok(bound_grant(kind, bound))
        });
        Ok(())
    }

    fn watch_process(&mut self, token: u64, pid: u32, join: Join) -> Result<(), Refusal> {
        let kind = DEBOX_MSG_WATCH;
        let refuse = |text| Refusal::new(kind, libc::EPERM, text);
        let account = self.held_account(kind, token)?;
        if !account.watcher.privileged {
            return Err(refuse(format!(
                "the account was opened by uid {} without privileges, who must not see process \
                 {pid}; open a connection and an account of your own.",
                account.watcher.uid
            )));
        }
        let target = Process::target(kind, pid)?;
        self.put_into_account(kind, token, target, join)
    }

    fn trace(
        &mut self,
        token: u64,
        target: TraceTarget,
        privileged: bool,
        options: TraceOptions,
    ) -> Result<(), Refusal> {
        let kind = DEBOX_MSG_TRACE;
        let refuse = |errno, text: String| Refusal::new(kind, errno, text);
        if !privileged {
            if !self.trace_for_all {
                return Err(refuse(
                    libc::EPERM,
                    "a call trace hangs probes on kernel functions that all processes run through: it is \
                     for CAP_PERFMON, unless deboxd runs with --trace-for-all."
                        .into(),
                ));
            }
            if !options.patterns.is_empty() || options.way.is_some() {
                return Err(refuse(
                    libc::EPERM,
                    "which functions are traced, and how, is chosen by who has CAP_PERFMON only; leave \
                     it to the broker."
                        .into(),
                ));
            }
        }
        let limit = self.limits.traces;
        let used = self.traces;
        let Some(connection) = self.connections.get_mut(&token) else {
            return Err(refuse(libc::ENOTCONN, "the connection is closed.".into()));
        };
        // A new wish takes the place of the old one.
        let old = connection.trace.take();
        if old.is_some() {
            self.traces -= 1;
        } else if used >= limit {
            return Err(refuse(
                libc::ENOSPC,
                format!(
                    "{used} call traces are on, the limit is {limit}: end one of the programs that \
                     trace."
                ),
            ));
        }
        let id = self.next_trace;
        self.next_trace = self.next_trace.wrapping_add(1);
        self.traces += 1;
        self.aside.order(self.lane(token), move |kernel| {
            if let Some(old) = old {
                kernel.trace_release(old);
            }
            let made = kernel
                .trace_start(id, target, options)
                .map_err(|error| kernel_refusal(kind, error));
            let done: Done<Self> = Box::new(move |broker| broker.trace_made(token, id, made));
            done
        });
        Ok(())
    }

    fn trace_made(&mut self, token: u64, id: u32, made: Result<Trace, Refusal>) {
        let lane = self.lane(token);
        let trace = match (made, self.connections.get_mut(&token)) {
            (Ok(trace), Some(connection)) => {
                connection.trace = Some(id);
                trace
            }
            (Ok(_), None) => {
                self.traces -= 1;
                let left = Leftovers {
                    trace: Some(id),
                    ..Leftovers::default()
                };
                return self.take_back(lane, left);
            }
            (Err(refusal), _) => {
                self.traces -= 1;
                return self.reply(token, Err(refusal), true);
            }
        };
        let grant = Grant {
            reply: debox_reply::new(DEBOX_MSG_TRACE),
            fds: vec![trace.buffers, trace.sums, trace.table],
            shared: false,
        };
        self.reply(token, Ok(grant), true);
    }

    fn trace_stop(&mut self, token: u64) -> Result<(), Refusal> {
        let kind = DEBOX_MSG_TRACE;
        let trace = self
            .connections
            .get(&token)
            .and_then(|connection| connection.trace)
            .ok_or_else(|| {
                Refusal::new(kind, libc::ENOENT, "this connection has no call trace.")
            })?;
        self.answer_aside(token, move |kernel| {
            kernel.trace_stop(trace);
            Ok(Grant {
                reply: debox_reply::new(kind),
                fds: Vec::new(),
                shared: false,
            })
        });
        Ok(())
    }

    fn put_into_account(
        &mut self,
        kind: u32,
        token: u64,
        process: Process,
        join: Join,
    ) -> Result<(), Refusal> {
        let id = self.account_id(kind, token)?;
        self.answer_aside(token, move |kernel| {
            let bound = kernel
                .account_join(id, process.pid, join)
                .map_err(|error| kernel_refusal(kind, error))?;
            // The kernel side knows it by its number. Alive now, hence the
            // number was its own all the while; else somebody else may have
            // been bound.
            if !process.alive() {
                kernel.account_leave(id, process.pid);
                return Err(gone(kind, process.pid));
            }
            Ok(bound_grant(kind, bound))
        });
        Ok(())
    }

    /// Of an account that is open.
    fn account_id(&self, kind: u32, token: u64) -> Result<u32, Refusal> {
        self.held_account(kind, token)?
            .id
            .ok_or_else(|| Refusal::new(kind, libc::EAGAIN, "the account is still being opened."))
    }
}

impl<K: Kernel + Send + 'static> Drop for Broker<K> {
    fn drop(&mut self) {
        self.shared.retire();
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            self.hang_up(token);
        }
    }
}

fn gone(kind: u32, pid: u32) -> Refusal {
    Refusal::new(kind, libc::ESRCH, format!("process {pid} has ended."))
}

fn kernel_refusal(kind: u32, error: debox_probe::Error) -> Refusal {
    let errno = error.errno();
    // What clients ask for in vain is no news; anybody could fill the log.
    if matches!(errno, libc::EPERM | libc::EBUSY | libc::ESRCH) {
        tracing::debug!(errno, "refused: {error}");
    } else {
        tracing::warn!(errno, "the kernel side refused: {error}");
    }
    Refusal::new(kind, errno, error.to_string())
}
