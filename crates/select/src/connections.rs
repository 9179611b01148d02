// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does one thread hold thousands of HTTP connections, and know of each what became of its
//! request?
//!
//! What is asked and when is the caller's matter ([`crate::load`] for `debox bench select`,
//! cases/load for the case study): it asks, wakes up, closes, and is told what happened. A
//! connection that is not open is opened by asking. With a line's speed connections read as
//! [`crate::pace`] says; then epoll tells of each only when it waits for the server, so that data
//! it may not read yet wakes nobody.

use crate::answer::Answer;
use crate::pace::{Line, Pace, READ_BYTES};
use crate::socket::{self, check};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Silent connections are looked for so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Reads of slow connections come together, so often: one wake-up for several of them. What that
/// makes them late is made up for by [`Pace`].
const READS_EVERY: Duration = Duration::from_millis(2);
/// So many are being opened at a time; a server's queue of new connections is short.
const OPENING: usize = 64;

#[derive(Clone, Debug)]
pub struct Options {
    pub server: SocketAddrV4,
    /// Of each connection; None: as fast as the server.
    pub line: Option<Line>,
    /// A request whose answer does not go on for so long has failed. None: the caller waits.
    pub silence: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be made.
    Connect,
    /// The server closed before the first byte, or before the last one.
    Closed,
    Reset,
    /// What came is no HTTP.
    NotHttp,
    /// More bytes than the answer has.
    TooLong,
    /// No byte in time.
    Silent,
    /// The answer began, and stopped.
    Stalled,
}

/// An answer that is whole.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub status: u16,
    /// What `Content-Length` said.
    pub told_bytes: Option<u64>,
    pub body_bytes: u64,
    /// With the head.
    pub bytes: u64,
    /// What the caller found in each piece of the body.
    pub right: bool,
    /// Since the request began, which may be before it was sent.
    pub first_byte: Duration,
    /// Until its last byte, as the line would have delivered it: never before it was read.
    pub whole: Duration,
    /// Of that, the time for which the server owed bytes.
    pub waited: Duration,
    /// When the next request may be sent.
    pub clear_at: Instant,
    /// The server takes another request over this connection.
    pub kept: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Answered(Answered),
    /// The connection is closed.
    Failed(Failure),
    /// The server closed a connection over which it owed nothing, or said something unasked.
    Closed {
        unasked: bool,
    },
    /// The time given to [`Connections::wake`].
    Woken,
}

/// A request that waits for its answer.
struct Owed {
    begun: Instant,
    first_byte: Option<Instant>,
    /// The last byte, or the request.
    progress: Instant,
    bytes: u64,
    waited: Duration,
    right: bool,
}

struct Connection {
    socket: Option<OwnedFd>,
    connecting: bool,
    /// What epoll is to tell; None: it does not know the socket yet.
    armed: Option<u32>,
    /// Not sent yet.
    unsent: Vec<u8>,
    owed: Option<Owed>,
    answer: Answer,
    pace: Pace,
    /// Timers with another number are over.
    timer: u32,
    /// All bytes that came over it and those in its place before.
    received: u64,
}

pub struct Connections {
    options: Options,
    epoll: OwnedFd,
    list: Vec<Connection>,
    opened: u32,
    timers: BinaryHeap<Reverse<(Instant, usize, u32)>>,
    buffer: Vec<u8>,
    ready: Vec<libc::epoll_event>,
    look_at: Instant,
    origin: Instant,
    received: u64,
    lateness: Vec<Duration>,
}

/// Kept for [`Connections::take_lateness`]; who does not ask for them needs none.
const LATENESS_MOST: usize = 1 << 16;

const READ: u32 = libc::EPOLLIN as u32;
const WRITE: u32 = libc::EPOLLOUT as u32;
const BROKEN: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

impl Connections {
    /// None of them is open yet.
    pub fn new(options: Options, count: usize) -> io::Result<Self> {
        // SAFETY: a new descriptor, owned at once.
        let epoll =
            unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let now = Instant::now();
        let list = std::iter::repeat_with(|| Connection {
            socket: None,
            connecting: false,
            armed: None,
            unsent: Vec::new(),
            owed: None,
            answer: Answer::default(),
            pace: Pace::new(now),
            timer: 0,
            received: 0,
        });
        Ok(Self {
            list: list.take(count).collect(),
            buffer: vec![
                0;
                if options.line.is_some() {
                    READ_BYTES
                } else {
                    1 << 16
                }
            ],
            options,
            epoll,
            opened: 0,
            timers: BinaryHeap::new(),
            ready: vec![libc::epoll_event { events: 0, u64: 0 }; 256],
            look_at: now,
            origin: now,
            received: 0,
            lateness: Vec::new(),
        })
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn is_open(&self, at: usize) -> bool {
        self.list[at].socket.is_some()
    }

    /// Whether an answer is waited for.
    pub fn is_owed(&self, at: usize) -> bool {
        self.list[at].owed.is_some()
    }

    pub fn owed_count(&self) -> usize {
        self.list.iter().filter(|c| c.owed.is_some()).count()
    }

    /// When the oldest request without an answer began.
    pub fn owed_since(&self) -> Option<Instant> {
        self.list
            .iter()
            .filter_map(|c| Some(c.owed.as_ref()?.begun))
            .min()
    }

    /// All bytes that came, of one and of all.
    pub fn received(&self, at: usize) -> u64 {
        self.list[at].received
    }

    pub fn received_in_all(&self) -> u64 {
        self.received
    }

    /// By how much timers were late since the last time.
    pub fn take_lateness(&mut self) -> std::vec::Drain<'_, Duration> {
        self.lateness.drain(..)
    }

    /// Opens the first `count`, a few at a time, and returns when they are connected.
    pub fn open_first(&mut self, count: usize, limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        let mut events = Vec::new();
        for first in (0..count).step_by(OPENING) {
            let part = first..count.min(first + OPENING);
            for at in part.clone() {
                self.start(at)?;
            }
            while self.list[part.clone()].iter().any(|c| c.connecting) {
                let now = Instant::now();
                self.poll(now + LOOK_EVERY, &mut events, &mut |_, _, _| true)?;
                let refused = |(_, event): &_| matches!(event, Event::Failed(Failure::Connect));
                if now >= until || events.drain(..).any(|event| refused(&event)) {
                    return Err(self.takes_no_connection());
                }
            }
            // The server's queue of new connections empties.
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    pub fn takes_no_connection(&self) -> io::Error {
        io::Error::new(
            io::ErrorKind::ConnectionRefused,
            format!(
                "{} takes no connection; is the server running?",
                self.options.server
            ),
        )
    }

    /// Begins to open it; if that fails, it is told as [`Failure::Connect`].
    pub fn start(&mut self, at: usize) -> io::Result<()> {
        self.begin(at)?;
        self.arm(at, READ | WRITE);
        Ok(())
    }

    fn begin(&mut self, at: usize) -> io::Result<()> {
        self.close(at);
        self.opened = self.opened.wrapping_add(1);
        let slow = self.options.line.is_some();
        let c = &mut self.list[at];
        c.socket = Some(socket::open(self.options.server, self.opened, slow)?);
        c.connecting = true;
        Ok(())
    }

    fn arm(&mut self, at: usize, events: u32) {
        let once = match self.options.line {
            Some(_) => ONCE,
            None => 0,
        };
        let c = &mut self.list[at];
        let Some(fd) = &c.socket else { return };
        let what = match c.armed {
            Some(armed) if armed == events => return,
            Some(_) => libc::EPOLL_CTL_MOD,
            None => libc::EPOLL_CTL_ADD,
        };
        c.armed = Some(events);
        let mut event = libc::epoll_event {
            events: events | once,
            u64: at as u64,
        };
        // SAFETY: the event is a local.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd.as_raw_fd(), &mut event) };
        assert_eq!(
            result,
            0,
            "an open descriptor: {}",
            io::Error::last_os_error()
        );
    }

    /// Tells when the server closes it, though nothing is asked: without it, the next request
    /// would find out. (Where lines have no speed that is always told.)
    pub fn watch(&mut self, at: usize) {
        self.arm(at, READ);
    }

    pub fn close(&mut self, at: usize) {
        let c = &mut self.list[at];
        c.socket = None;
        c.connecting = false;
        c.armed = None;
        c.unsent.clear();
        c.owed = None;
        c.timer = c.timer.wrapping_add(1);
    }

    /// Closes it with a reset.
    pub fn reset(&mut self, at: usize) {
        if let Some(fd) = &self.list[at].socket {
            socket::reset_on_close(fd);
        }
        self.close(at);
    }

    /// [`Event::Woken`] then, unless something else happens to the connection before.
    pub fn wake(&mut self, at: usize, when: Instant) {
        let c = &mut self.list[at];
        c.timer = c.timer.wrapping_add(1);
        self.timers.push(Reverse((when, at, c.timer)));
    }

    /// Sends bytes that are no whole request.
    pub fn send_part(&mut self, at: usize, bytes: &[u8]) {
        self.list[at].unsent.extend_from_slice(bytes);
        // What fails here is seen by whoever waits for an answer.
        let _ = self.send(at);
    }

    fn send(&mut self, at: usize) -> io::Result<()> {
        let c = &mut self.list[at];
        let Some(fd) = &c.socket else { return Ok(()) };
        let sent = socket::send(fd, &c.unsent)?;
        c.unsent.drain(..sent);
        c.connecting &= sent == 0;
        self.arm_for_more(at);
        Ok(())
    }

    fn arm_for_more(&mut self, at: usize) {
        let sent = self.list[at].unsent.is_empty();
        self.arm(at, if sent { READ } else { READ | WRITE });
    }

    /// Sends a request that began at `begun`: now, or when a schedule wanted it. `late`: since the
    /// line was clear, as far as it was the generator that let it wait.
    pub fn ask(
        &mut self,
        at: usize,
        request: &[u8],
        begun: Instant,
        late: Duration,
    ) -> io::Result<()> {
        let kept = self.is_open(at);
        if !kept {
            self.begin(at)?;
        }
        self.list[at].unsent.extend_from_slice(request);
        if self.send(at).is_err() {
            if kept {
                // The server closed it while it was idle, and took nothing.
                self.begin(at)?;
                self.list[at].unsent.extend_from_slice(request);
                let _ = self.send(at);
            }
            // Of a new one epoll tells what is wrong.
            self.arm_for_more(at);
        }
        self.owe(at, begun, late);
        Ok(())
    }

    /// Sends the rest of a request, whose first part went out by [`Self::send_part`].
    pub fn ask_rest(&mut self, at: usize, rest: &[u8]) {
        self.send_part(at, rest);
        self.owe(at, Instant::now(), Duration::ZERO);
    }

    fn owe(&mut self, at: usize, begun: Instant, late: Duration) {
        let now = Instant::now();
        let c = &mut self.list[at];
        c.timer = c.timer.wrapping_add(1);
        c.answer.clear();
        c.pace.ask(now, late);
        c.owed = Some(Owed {
            begun,
            first_byte: None,
            progress: now,
            bytes: 0,
            waited: now.saturating_duration_since(begun),
            right: true,
        });
    }

    /// Waits until something happens or it is `until`, and tells what happened: to each connection
    /// one thing at most. `check` gets each piece of a body, with its connection and offset, and
    /// says whether it is right.
    pub fn poll(
        &mut self,
        until: Instant,
        events: &mut Vec<(usize, Event)>,
        check: &mut dyn FnMut(usize, u64, &[u8]) -> bool,
    ) -> io::Result<()> {
        let now = Instant::now();
        let mut limit = until.min(now + LOOK_EVERY);
        if let Some(Reverse((due, ..))) = self.timers.peek() {
            limit = limit.min(*due);
        }
        let ready = self.wait(limit.saturating_duration_since(now))?;
        for i in 0..ready {
            let libc::epoll_event { events: flags, u64 } = self.ready[i];
            let event = self.happened(u64 as usize, flags, check);
            events.extend(event.map(|event| (u64 as usize, event)));
        }
        let now = Instant::now();
        while let Some(Reverse((due, at, number))) = self.timers.peek().copied() {
            if due > now {
                break;
            }
            self.timers.pop();
            if self.list[at].timer != number {
                continue;
            }
            if self.lateness.len() < LATENESS_MOST {
                self.lateness.push(now - due);
            }
            let event = match self.list[at].owed {
                Some(_) => self.read(at, check),
                None => Some(Event::Woken),
            };
            events.extend(event.map(|event| (at, event)));
        }
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            self.look(now, events);
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let limit = libc::timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: the array is valid for its length, the rest are locals.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.ready.as_mut_ptr(),
                self.ready.len(),
                &raw const limit,
                0,
                8,
            )
        };
        match check(n as i32) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            result => result.map(|n| n as usize),
        }
    }

    /// Requests whose answers do not go on.
    fn look(&mut self, now: Instant, events: &mut Vec<(usize, Event)>) {
        let Some(silence) = self.options.silence else {
            return;
        };
        for at in 0..self.list.len() {
            let c = &self.list[at];
            let Some(owed) = &c.owed else { continue };
            if now.saturating_duration_since(owed.progress) < silence {
                continue;
            }
            let failure = match owed.first_byte {
                _ if c.connecting => Failure::Connect,
                None => Failure::Silent,
                Some(_) => Failure::Stalled,
            };
            events.push((at, self.fail(at, failure)));
        }
    }

    fn fail(&mut self, at: usize, failure: Failure) -> Event {
        self.close(at);
        Event::Failed(failure)
    }

    fn happened(
        &mut self,
        at: usize,
        flags: u32,
        check: &mut dyn FnMut(usize, u64, &[u8]) -> bool,
    ) -> Option<Event> {
        let c = &mut self.list[at];
        c.socket.as_ref()?;
        if self.options.line.is_some() {
            c.armed = Some(0);
        }
        if c.connecting {
            if flags & BROKEN != 0 {
                return Some(self.fail(at, Failure::Connect));
            }
            c.connecting = false;
            if flags & WRITE != 0 && c.unsent.is_empty() {
                self.arm(at, READ);
            }
        }
        let unsent = !self.list[at].unsent.is_empty();
        if flags & WRITE != 0 && unsent && self.send(at).is_err() {
            return Some(self.fail(at, Failure::Reset));
        }
        if flags & !WRITE == 0 {
            return None;
        }
        self.read(at, check)
    }

    /// Reads what is there and may be read.
    fn read(
        &mut self,
        at: usize,
        check: &mut dyn FnMut(usize, u64, &[u8]) -> bool,
    ) -> Option<Event> {
        loop {
            let c = &mut self.list[at];
            let fd = c.socket.as_ref()?;
            let result = socket::receive(fd, &mut self.buffer);
            let now = Instant::now();
            let got = match result {
                Ok(None) => {
                    c.pace.empty(now);
                    self.arm_for_more(at);
                    return None;
                }
                Err(_) if c.owed.is_some() => return Some(self.fail(at, Failure::Reset)),
                Ok(Some(0)) if c.owed.is_some() => {
                    if c.answer.ends_with_close() {
                        return self.answered(at, now);
                    }
                    return Some(self.fail(at, Failure::Closed));
                }
                Err(_) | Ok(Some(0)) => {
                    self.close(at);
                    return Some(Event::Closed { unasked: false });
                }
                Ok(Some(got)) => got,
            };
            c.received += got as u64;
            self.received += got as u64;
            let Some(owed) = &mut c.owed else {
                self.close(at);
                return Some(Event::Closed { unasked: true });
            };
            owed.first_byte.get_or_insert(now);
            owed.bytes += got as u64;
            if let Some(line) = self.options.line {
                owed.waited += c.pace.read(now, got, line);
            }
            owed.progress = now.max(c.pace.clear_at());
            let right = &mut owed.right;
            let taken = c.answer.take(&self.buffer[..got], &mut |offset, bytes| {
                *right &= check(at, offset, bytes);
            });
            match taken {
                Err(_) => return Some(self.fail(at, Failure::NotHttp)),
                Ok(used) if used < got => return Some(self.fail(at, Failure::TooLong)),
                Ok(_) if c.answer.is_whole() => return self.answered(at, now),
                Ok(_) => {}
            }
            // Without one, epoll tells when there is more.
            self.options.line?;
            let clear_at = c.pace.clear_at();
            if clear_at > now {
                let since = clear_at - self.origin;
                let whole = READS_EVERY.as_nanos() as u64;
                let steps = (since.as_nanos() as u64).div_ceil(whole);
                self.wake(at, self.origin + Duration::from_nanos(steps * whole));
                return None;
            }
        }
    }

    fn answered(&mut self, at: usize, now: Instant) -> Option<Event> {
        let c = &mut self.list[at];
        let owed = c.owed.take()?;
        let clear_at = match self.options.line {
            Some(_) => c.pace.clear_at(),
            None => now,
        };
        let whole = clear_at.max(now) - owed.begun;
        let kept = c.answer.kept();
        let event = Event::Answered(Answered {
            status: c.answer.status(),
            told_bytes: c.answer.told_bytes(),
            body_bytes: c.answer.body_bytes(),
            bytes: owed.bytes,
            right: owed.right,
            first_byte: owed.first_byte.unwrap_or(now) - owed.begun,
            whole,
            waited: match self.options.line {
                Some(_) => owed.waited,
                None => whole,
            },
            clear_at,
            kept,
        });
        if !kept {
            self.close(at);
        }
        Some(event)
    }
}
