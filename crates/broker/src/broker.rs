// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does one thread serve every client without trusting any?
//!
//! One epoll loop over nonblocking sockets. Nobody is waited for: a turn takes
//! at most one packet from each connection, a reply that finds no room ends its
//! connection, and what a connection was given goes back when its socket's last
//! copy is closed. Processes that were given slots are watched by pidfd, so
//! that a dead one's slots do not wait for a parent that shares the socket.

use crate::error::BrokerError;
use crate::identity::{Process, SenderProof};
use crate::kernel::{AccountOptions, Kernel, KernelError, TraceTarget, TraceWish};
use crate::limits::{Limits, Usage, What};
use crate::message::{
    Credentials, Packet, Refusal, Request, TRACE_REQUEST_SIZE, TraceAsk, parse_request,
};
use crate::shared::{Shared, text_file};
use crate::site::{SiteBook, SiteResolver};
use crate::socket::{self, Ancillary, Received};
use debox_abi::{
    DEBOX_MSG_ACCOUNT, DEBOX_MSG_JOIN, DEBOX_MSG_SLOTS, DEBOX_MSG_TRACE, DEBOX_MSG_WATCH,
    DEBOX_SEGMENT_SLOTS, debox_reply,
};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const TOKEN_LISTENER: u64 = 0;
const TOKEN_CONTROL: u64 = 1;
const TOKEN_STACKS: u64 = 2;
const TOKEN_FIRST_CONNECTION: u64 = 16;
/// Set in the token of a watched process's pidfd; the pid is in the low bits.
const TOKEN_PROCESS: u64 = 1 << 63;

/// Connections taken from the queue in one turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long accepting rests when the system has no descriptor or memory left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often stacks are fetched from a kernel side that cannot announce them.
const STACKS_TICK: Duration = Duration::from_millis(100);
/// Descriptors that are not for connections: maps in passing, /proc files, logs.
const DESCRIPTORS_KEPT: u64 = 128;

#[derive(Debug, Clone, Default)]
pub struct Config {
    pub limits: Limits,
    /// None: what this kernel offers.
    pub sender_proof: Option<SenderProof>,
    /// Programs without privileges may have their own calls traced, with the
    /// default functions.
    pub trace_for_all: bool,
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
    peer: Credentials,
    segments: Vec<HeldSegment>,
    account: Option<HeldAccount>,
    trace: Option<u32>,
    deadline: Option<Instant>,
}

#[derive(Clone, Copy)]
struct HeldSegment {
    id: u32,
    tgid: u32,
    uid: u32,
}

struct HeldAccount {
    id: u32,
    uid: u32,
    /// Capabilities of who opened it: nobody with more may be put into it.
    permitted: u64,
    /// Who opened it may watch others.
    privileged: bool,
}

/// A process that was given slots.
struct Watched {
    process: Process,
    segments: usize,
}

/// A granted request: the reply and the descriptors of its own.
struct Grant {
    reply: debox_reply,
    fds: Vec<OwnedFd>,
    /// The shared memory goes along.
    shared: bool,
}

pub struct Broker<K: Kernel, R: SiteResolver> {
    // Field order is drop order: `shared` retires before the kernel side goes,
    // so that no client takes a record for fresh that nobody fills any more.
    shared: Shared,
    kernel: K,
    resolver: R,
    book: SiteBook,
    limits: Limits,
    proof: SenderProof,
    epoll: OwnedFd,
    listener: OwnedFd,
    accept_paused: Option<Instant>,
    connections: HashMap<u64, Connection>,
    processes: HashMap<u32, Watched>,
    deadlines: BTreeSet<(Instant, u64)>,
    usage: Usage,
    trace_for_all: bool,
    traces: usize,
    next_trace: u32,
    next_token: u64,
}

impl<K: Kernel, R: SiteResolver> Broker<K, R> {
    /// A broker over a listening AF_UNIX SOCK_SEQPACKET socket. It lives and
    /// dies with the calling thread, which holds the lock by which clients see
    /// that the broker is there.
    ///
    /// # Errors
    /// When the shared memory or the socket's options cannot be had.
    pub fn new(
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
        // One descriptor for each connection, one for each process with slots.
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let room = (open_files
            .unwrap_or(u64::MAX)
            .saturating_sub(DESCRIPTORS_KEPT)
            / 2)
        .max(16);
        limits.total.connections = limits
            .total
            .connections
            .min(usize::try_from(room).unwrap_or(usize::MAX));
        if limits.reserved_for_root.connections * 4 > limits.total.connections {
            limits.reserved_for_root.connections = limits.total.connections / 4;
        }
        let broker = Self {
            shared,
            kernel,
            resolver,
            book: SiteBook::default(),
            limits,
            proof,
            epoll,
            listener,
            accept_paused: None,
            connections: HashMap::new(),
            processes: HashMap::new(),
            deadlines: BTreeSet::new(),
            usage: Usage::default(),
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
                        Control::Reload => match self.resolver.reload() {
                            Ok(()) => tracing::info!("symbols and labels were read again"),
                            Err(error) => {
                                tracing::error!(%error, "symbols and labels stay as they were")
                            }
                        },
                        Control::Stop => {
                            let _ = epoll::delete(&self.epoll, control);
                            return Ok(());
                        }
                    },
                    TOKEN_STACKS => self.stacks(),
                    token if token & TOKEN_PROCESS != 0 => {
                        self.process_ended((token & !TOKEN_PROCESS) as u32)
                    }
                    token => self.serve(token, event.flags),
                }
            }
            self.timers();
        }
    }

    fn watch(&self, fd: BorrowedFd, token: u64, flags: epoll::EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    // ------------------------------------------------------------- time

    fn kernel_is_polled(&self) -> bool {
        self.kernel.event_fd().is_none()
            && self.usage.total(What::Segments) + self.usage.total(What::Accounts) > 0
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let first = self.deadlines.first().map(|&(at, _)| at);
        [
            first,
            self.accept_paused,
            self.kernel_is_polled().then(|| now + STACKS_TICK),
        ]
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
            self.deadlines.remove(&(at, token));
        }
        if self.accept_paused.is_some_and(|until| until <= now) {
            self.accept_resume();
        }
        if self.kernel_is_polled() {
            self.stacks();
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
            if let Err(text) = self.usage.check(&self.limits, peer.uid, What::Connections) {
                tracing::debug!(uid = peer.uid, "connection refused: {text}");
                let refusal = Refusal::new(0, libc::EUSERS, text);
                let _ = socket::send(fd.as_fd(), &refusal.reply(), &[]);
                socket::finish(fd);
                continue;
            }
            // Inherited from the listener, but (since 6.16) as it was when the
            // client connected: with socket activation that is before our time.
            let options = socket::pass_credentials(fd.as_fd()).and_then(|()| match self.proof {
                SenderProof::MessagePidfd => socket::pass_pidfd(fd.as_fd()),
                SenderProof::StartTime => socket::pass_timestamp(fd.as_fd()),
            });
            if let Err(error) = options {
                tracing::warn!(%error, "a connection was closed: the kernel does not tell who its senders are");
                continue;
            }
            let token = self.next_token;
            self.next_token += 1;
            if let Err(error) = self.watch(fd.as_fd(), token, epoll::EventFlags::IN) {
                // ENOSPC: fs.epoll.max_user_watches. The client sees a hang-up.
                tracing::warn!(%error, "a connection could not be watched and was closed");
                continue;
            }
            self.usage.take(peer.uid, What::Connections);
            self.connections.insert(
                token,
                Connection {
                    fd,
                    peer,
                    segments: Vec::new(),
                    account: None,
                    trace: None,
                    deadline: None,
                },
            );
            self.deadline_set(token, Some(Instant::now() + self.limits.first_request));
            tracing::trace!(
                connection = token,
                pid = peer.pid,
                uid = peer.uid,
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
        let (result, valid) = match parse_request(&packet) {
            // A parsed request has a sender.
            Ok(request) => match ancillary.credentials {
                Some(sender) => (self.answer(token, request, sender, &mut ancillary), true),
                None => return self.hang_up(token),
            },
            Err(refusal) => (Err(refusal), false),
        };
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        let (sent, close) = match result {
            Ok(mut grant) => {
                grant.reply.features = self.kernel.features();
                let mut fds: Vec<BorrowedFd> = grant.fds.iter().map(AsFd::as_fd).collect();
                if grant.shared {
                    fds.push(self.shared.fd());
                }
                grant.reply.fds = fds.len() as u32;
                (
                    socket::send(connection.fd.as_fd(), &grant.reply, &fds),
                    false,
                )
            }
            Err(refusal) => {
                tracing::debug!(
                    connection = token,
                    sender = ?packet.sender,
                    errno = refusal.errno,
                    "refused: {}",
                    refusal.text
                );
                let mut reply = refusal.reply();
                reply.features = self.kernel.features();
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
        for segment in connection.segments {
            self.segment_give_back(segment);
            self.process_forget(segment.tgid, 1);
        }
        if let Some(trace) = connection.trace {
            self.kernel.trace_release(trace);
            self.traces -= 1;
        }
        if let Some(account) = connection.account {
            self.kernel.account_release(account.id);
            self.usage.give_back(account.uid, What::Accounts);
        }
        self.usage.give_back(connection.peer.uid, What::Connections);
        self.kernel_changed();
        tracing::trace!(connection = token, pid = connection.peer.pid, "closed");
        socket::finish(connection.fd);
        self.accept_resume();
    }

    fn segment_give_back(&mut self, segment: HeldSegment) {
        self.kernel.segment_release(segment.id);
        self.usage.give_back(segment.uid, What::Segments);
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
            let before = connection.segments.len();
            connection.segments.retain(|segment| {
                let keep = segment.tgid != tgid;
                if !keep {
                    given_back.push(*segment);
                }
                keep
            });
            if connection.segments.len() != before {
                touched.push(token);
            }
        }
        self.process_forget(tgid, usize::MAX);
        for segment in given_back {
            self.segment_give_back(segment);
        }
        for token in touched {
            self.deadline_renew(token);
        }
        self.kernel_changed();
    }

    // --------------------------------------------------------- requests

    fn answer(
        &mut self,
        token: u64,
        request: Request,
        sender: Credentials,
        ancillary: &mut Ancillary,
    ) -> Result<Grant, Refusal> {
        let kind = request.kind();
        if request == Request::Status {
            return Ok(self.status(kind));
        }
        if request == Request::SiteStacks {
            return self.site_stacks(kind, token);
        }
        let process = Process::sender(kind, sender, ancillary, self.proof)?;
        let grant = match request {
            Request::Slots { boundary } => self.slots(token, sender.uid, process, boundary),
            Request::Account(options) => self.account(token, sender.uid, &process, options),
            Request::Join { follow } => self.join(token, sender.uid, &process, follow),
            Request::Watch { pid, follow } => self.watch_process(token, &process, pid, follow),
            Request::Trace(ask) => self.trace(token, &process, ask),
            Request::TraceStop => self.trace_stop(token),
            Request::Status | Request::SiteStacks => Ok(self.status(kind)),
        };
        self.kernel_changed();
        grant
    }

    fn status(&self, kind: u32) -> Grant {
        let counters = self.kernel.counters();
        let mut reply = debox_reply::new(kind);
        reply.slots_used = (self.usage.total(What::Segments) * DEBOX_SEGMENT_SLOTS) as u64;
        reply.accounts_used = self.usage.total(What::Accounts) as u64;
        reply.site_walks = counters.site_walks;
        reply.site_hits = counters.site_hits;
        reply.site_mismatches = counters.site_mismatches;
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
        uid: u32,
        process: Process,
        boundary: bool,
    ) -> Result<Grant, Refusal> {
        let kind = DEBOX_MSG_SLOTS;
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
        self.usage
            .check(&self.limits, uid, What::Segments)
            .map_err(|text| Refusal::new(kind, libc::ENOSPC, text))?;

        let segment = self
            .kernel
            .segment_create(tgid, uid, boundary)
            .map_err(|error| kernel_refusal(kind, error))?;
        // Alive now, hence `tgid` was this process all the while.
        if !process.alive() {
            self.kernel.segment_release(segment.id);
            return Err(Refusal::new(
                kind,
                libc::ESRCH,
                format!("process {tgid} has ended."),
            ));
        }
        if let Some(watched) = self.processes.get_mut(&tgid) {
            watched.segments += 1;
        } else {
            let watching = self.watch(
                process.pidfd.as_fd(),
                TOKEN_PROCESS | u64::from(tgid),
                epoll::EventFlags::IN,
            );
            if let Err(error) = watching {
                self.kernel.segment_release(segment.id);
                return Err(Refusal::new(
                    kind,
                    libc::ENFILE,
                    format!(
                        "the broker cannot watch for the end of process {tgid}: {error}; try again later."
                    ),
                ));
            }
            self.processes.insert(
                tgid,
                Watched {
                    process,
                    segments: 1,
                },
            );
        }
        self.usage.take(uid, What::Segments);
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.segments.push(HeldSegment {
                id: segment.id,
                tgid,
                uid,
            });
        }
        let mut reply = debox_reply::new(kind);
        reply.slots = DEBOX_SEGMENT_SLOTS as u32;
        reply.threads = segment.threads;
        Ok(Grant {
            reply,
            fds: vec![segment.record, segment.control],
            shared: true,
        })
    }

    fn account(
        &mut self,
        token: u64,
        uid: u32,
        process: &Process,
        options: AccountOptions,
    ) -> Result<Grant, Refusal> {
        let kind = DEBOX_MSG_ACCOUNT;
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
        self.usage
            .check(&self.limits, uid, What::Accounts)
            .map_err(|text| Refusal::new(kind, libc::ENOSPC, text))?;
        let account = self
            .kernel
            .account_create(uid, options)
            .map_err(|error| kernel_refusal(kind, error))?;
        connection.account = Some(HeldAccount {
            id: account.id,
            uid,
            permitted: process.facts.cap_permitted,
            privileged: process.may_watch_others(process.pid).is_ok(),
        });
        self.usage.take(uid, What::Accounts);
        let mut reply = debox_reply::new(kind);
        reply.cpus = account.cpus;
        reply.cpu_stride = account.cpu_stride;
        let mut fds = vec![account.account, account.cpus_map];
        fds.extend(account.details.into_iter().flatten());
        Ok(Grant {
            reply,
            fds,
            shared: true,
        })
    }

    fn site_stacks(&self, kind: u32, token: u64) -> Result<Grant, Refusal> {
        self.held_account(kind, token)?;
        let text = self.book.stacks_text();
        let file = text_file(&text).map_err(|error| {
            Refusal::new(
                kind,
                libc::ENOMEM,
                format!("no memory for the names of the sites: {error}"),
            )
        })?;
        Ok(Grant {
            reply: debox_reply::new(kind),
            fds: vec![file],
            shared: false,
        })
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

    fn join(
        &mut self,
        token: u64,
        uid: u32,
        process: &Process,
        follow: bool,
    ) -> Result<Grant, Refusal> {
        let kind = DEBOX_MSG_JOIN;
        let account = self.held_account(kind, token)?;
        // A program that gained privileges by exec may have inherited the
        // socket; its calls are not for the eyes of the user who started it.
        if !account.privileged && !process.within(account.uid, account.permitted) {
            return Err(Refusal::new(
                kind,
                libc::EPERM,
                format!(
                    "process {} (uid {uid}) has other user ids or more capabilities than uid {}, \
                     who opened the account; open the account as root.",
                    process.pid, account.uid
                ),
            ));
        }
        let id = account.id;
        self.put_into_account(kind, id, process, follow)
    }

    fn watch_process(
        &mut self,
        token: u64,
        process: &Process,
        pid: u32,
        follow: bool,
    ) -> Result<Grant, Refusal> {
        let kind = DEBOX_MSG_WATCH;
        let refuse = |text| Refusal::new(kind, libc::EPERM, text);
        process.may_watch_others(pid).map_err(refuse)?;
        let account = self.held_account(kind, token)?;
        if !account.privileged {
            return Err(refuse(format!(
                "the account was opened by uid {} without privileges, who must not see process \
                 {pid}; open a connection and an account of your own.",
                account.uid
            )));
        }
        let id = account.id;
        let target = Process::target(kind, pid)?;
        self.put_into_account(kind, id, &target, follow)
    }

    fn trace(&mut self, token: u64, process: &Process, ask: TraceAsk) -> Result<Grant, Refusal> {
        let kind = DEBOX_MSG_TRACE;
        let refuse = |errno, text: String| Refusal::new(kind, errno, text);
        let privileged = process.may_watch_others(process.pid).is_ok();
        if !privileged {
            if !self.trace_for_all {
                return Err(refuse(
                    libc::EPERM,
                    "a call trace hangs probes on kernel functions that all processes run through: it is \
                     for root and CAP_PERFMON, unless deboxd runs with --trace-for-all."
                        .into(),
                ));
            }
            if !ask.patterns.is_empty() || ask.way != 0 {
                return Err(refuse(
                    libc::EPERM,
                    "which functions are traced, and how, is chosen by root and CAP_PERFMON only; leave \
                     it to the broker."
                        .into(),
                ));
            }
        }
        let target = if ask.account {
            TraceTarget::Account {
                id: self.held_account(kind, token)?.id,
            }
        } else {
            TraceTarget::Process { tgid: process.pid }
        };
        let limit = self.limits.traces;
        let used = self.traces;
        let Some(connection) = self.connections.get_mut(&token) else {
            return Err(refuse(libc::ENOTCONN, "the connection is closed.".into()));
        };
        // A new wish takes the place of the old one.
        if let Some(old) = connection.trace.take() {
            self.kernel.trace_release(old);
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
        let wish = TraceWish {
            target,
            capacity: ask.capacity,
            threads: ask.threads,
            way: ask.way,
            calls: ask.calls,
            patterns: ask.patterns,
        };
        let trace = self
            .kernel
            .trace_start(id, wish)
            .map_err(|error| kernel_refusal(kind, error))?;
        connection.trace = Some(id);
        self.traces += 1;
        Ok(Grant {
            reply: debox_reply::new(kind),
            fds: vec![trace.buffers, trace.sums, trace.table],
            shared: false,
        })
    }

    fn trace_stop(&mut self, token: u64) -> Result<Grant, Refusal> {
        let kind = DEBOX_MSG_TRACE;
        let trace = self
            .connections
            .get(&token)
            .and_then(|connection| connection.trace)
            .ok_or_else(|| {
                Refusal::new(kind, libc::ENOENT, "this connection has no call trace.")
            })?;
        self.kernel.trace_stop(trace);
        Ok(Grant {
            reply: debox_reply::new(kind),
            fds: Vec::new(),
            shared: false,
        })
    }

    fn put_into_account(
        &mut self,
        kind: u32,
        id: u32,
        process: &Process,
        follow: bool,
    ) -> Result<Grant, Refusal> {
        let threads = self
            .kernel
            .account_join(id, process.pid, follow)
            .map_err(|error| kernel_refusal(kind, error))?;
        let mut reply = debox_reply::new(kind);
        reply.threads = threads;
        Ok(Grant {
            reply,
            fds: Vec::new(),
            shared: false,
        })
    }

    // ------------------------------------------------------ kernel side

    /// The kernel side may have attached or detached something.
    fn kernel_changed(&mut self) {
        self.shared.features_set(self.kernel.features());
        if let Some(fd) = self.kernel.event_fd() {
            match self.watch(fd, TOKEN_STACKS, epoll::EventFlags::IN) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => {
                    tracing::error!(%error, "new stacks are not announced: sites stay without names")
                }
            }
        }
    }

    fn stacks(&mut self) {
        let stacks = self.kernel.new_stacks();
        if stacks.is_empty() {
            return;
        }
        for (id, merged) in self.book.publish(&self.shared, &mut self.resolver, stacks) {
            self.kernel.site_merged(id, merged);
        }
    }
}

impl<K: Kernel, R: SiteResolver> Drop for Broker<K, R> {
    fn drop(&mut self) {
        self.shared.retire();
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            self.hang_up(token);
        }
    }
}

fn kernel_refusal(kind: u32, error: KernelError) -> Refusal {
    tracing::warn!(
        errno = error.errno,
        "the kernel side refused: {}",
        error.text
    );
    Refusal::new(kind, error.errno, error.text)
}
