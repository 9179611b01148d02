// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much does a web server do with N idle connections, and does it ever
//! forget one?
//!
//! One thread with its own epoll instance. *Idle* connections are opened first
//! and say nothing, as those of the paper's load-adding client. *Hot* ones ask
//! for the same page again and again, either over one connection or over a new
//! one for each request. With churn, connections misbehave at random: they are
//! closed or reset in the middle, ask in two halves, pause, and long idle ones
//! wake up; every request that was sent whole must be answered in time.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Load {
    pub server: SocketAddrV4,
    /// The page, such as `/1259`.
    pub path: String,
    pub idle: usize,
    pub hot: usize,
    pub keep_alive: bool,
    /// Requests per second altogether; None: as many as the server takes.
    pub rate: Option<f64>,
    pub churn: bool,
    /// An answer that takes longer is a stalled connection.
    pub deadline: Duration,
    pub seed: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub requests: u64,
    pub seconds: f64,
    /// Answers that were not `200` with the whole page.
    pub wrong: u64,
    /// Requests without an answer within the deadline.
    pub stalled: u64,
    /// Connections that the server closed while it owed an answer.
    pub dropped: u64,
    /// Of single requests, in microseconds, sorted.
    pub latencies_us: Vec<u32>,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// A quantile of the answering times, in microseconds; 0 if there are none.
    pub fn latency_us(&self, quantile: f64) -> u32 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us
            .get((last as f64 * quantile) as usize)
            .copied()
            .unwrap_or(0)
    }
}

struct Connection {
    fd: OwnedFd,
    /// When the request that waits for its answer was sent.
    asked: Option<Instant>,
    got: usize,
    /// Of the whole answer, once its head is there.
    expected: usize,
    status_good: bool,
    head: Vec<u8>,
    idle: bool,
    /// The second half of a request is due then.
    rest_at: Option<Instant>,
    /// Says nothing until then.
    pause_until: Option<Instant>,
}

pub struct Client {
    load: Load,
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    request: Vec<u8>,
    random: u64,
    opened: u32,
    outcome: Outcome,
    buffer: Vec<u8>,
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

impl Client {
    /// Opens the idle connections and the hot ones.
    pub fn new(load: Load) -> io::Result<Self> {
        // SAFETY: a new descriptor, owned at once.
        let epoll =
            unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            load.path,
            if load.keep_alive {
                ""
            } else {
                "Connection: close\r\n"
            }
        )
        .into_bytes();
        let mut client = Self {
            random: load.seed | 1,
            load,
            epoll,
            connections: Vec::new(),
            request,
            opened: 0,
            outcome: Outcome::default(),
            buffer: vec![0; 1 << 16],
        };
        // Hot ones in the middle: a server that looks at its connections in
        // order finds them neither first nor last.
        let half = client.load.idle / 2;
        for at in 0..client.load.idle + client.load.hot {
            let hot = at >= half && at < half + client.load.hot;
            let mut connection = client.connect()?;
            connection.idle = !hot;
            client.register(at, &connection)?;
            client.connections.push(Some(connection));
            if at % 64 == 63 {
                // The server's queue of new connections is short.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(client)
    }

    fn random(&mut self, n: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    fn connect(&mut self) -> io::Result<Connection> {
        // SAFETY: a new descriptor, owned at once; addresses are locals of
        // their size.
        let fd = unsafe {
            let fd = OwnedFd::from_raw_fd(check(libc::socket(
                libc::AF_INET,
                libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
                0,
            ))?);
            let one: i32 = 1;
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY,
                (&raw const one).cast(),
                4,
            );
            // From several addresses: one has no more than 28,000 ports.
            self.opened = self.opened.wrapping_add(1);
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::IPPROTO_IP,
                24,
                (&raw const one).cast(),
                4,
            );
            let mut from: libc::sockaddr_in = std::mem::zeroed();
            from.sin_family = libc::AF_INET as u16;
            from.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 1, 1 + (self.opened % 8) as u8]);
            check(libc::bind(
                fd.as_raw_fd(),
                (&raw const from).cast(),
                size_of::<libc::sockaddr_in>() as u32,
            ))?;
            let mut to: libc::sockaddr_in = std::mem::zeroed();
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = self.load.server.port().to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(self.load.server.ip().octets());
            check(libc::connect(
                fd.as_raw_fd(),
                (&raw const to).cast(),
                size_of::<libc::sockaddr_in>() as u32,
            ))?;
            fd
        };
        Ok(Connection {
            fd,
            asked: None,
            got: 0,
            expected: 0,
            status_good: false,
            head: Vec::new(),
            idle: false,
            rest_at: None,
            pause_until: None,
        })
    }

    fn register(&self, at: usize, connection: &Connection) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: at as u64,
        };
        // SAFETY: the event is a local.
        check(unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                connection.fd.as_raw_fd(),
                &mut event,
            )
        })
        .map(drop)
    }

    fn send(&self, connection: &Connection, from: usize, to: usize) -> bool {
        let part = &self.request[from..to];
        // SAFETY: the buffer is valid for its length.
        let sent = unsafe {
            libc::send(
                connection.fd.as_raw_fd(),
                part.as_ptr().cast(),
                part.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        sent == part.len() as isize
    }

    /// Opens a new connection in the place of one that is gone.
    fn reopen(&mut self, at: usize) -> io::Result<()> {
        let idle = self.connections[at].as_ref().is_some_and(|c| c.idle);
        self.connections[at] = None;
        let mut connection = self.connect()?;
        connection.idle = idle;
        self.register(at, &connection)?;
        self.connections[at] = Some(connection);
        Ok(())
    }

    fn reset(&mut self, at: usize) -> io::Result<()> {
        if let Some(c) = &self.connections[at] {
            let hard = libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            // SAFETY: the option is a local of its size.
            unsafe {
                libc::setsockopt(
                    c.fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const hard).cast(),
                    size_of::<libc::linger>() as u32,
                )
            };
        }
        self.reopen(at)
    }

    fn ask(&mut self, at: usize) -> io::Result<()> {
        if self.connections[at].is_none() {
            self.reopen(at)?;
        }
        let mut connection = self.connections[at].take().expect("opened above");
        let now = Instant::now();
        connection.got = 0;
        connection.expected = 0;
        connection.head.clear();
        let whole = self.request.len();
        if self.load.churn && self.random(8) == 0 {
            // In two halves.
            self.send(&connection, 0, whole / 2);
            connection.rest_at = Some(now + Duration::from_millis(self.random(60)));
        } else {
            connection.asked = Some(now);
            if !self.send(&connection, 0, whole) {
                // The server closed it while it was idle.
                self.connections[at] = Some(connection);
                self.reopen(at)?;
                connection = self.connections[at].take().expect("reopened");
                connection.asked = Some(now);
                self.send(&connection, 0, whole);
            }
        }
        self.connections[at] = Some(connection);
        Ok(())
    }

    /// What a connection does after an answer.
    fn after(&mut self, at: usize, ask_again: bool) -> io::Result<()> {
        if !self.load.keep_alive {
            let idle = self.connections[at].as_ref().is_some_and(|c| c.idle);
            self.connections[at] = None;
            if idle {
                return self.reopen_idle(at);
            }
        } else if self.load.churn {
            match self.random(20) {
                0 => self.reopen(at)?,
                1 => self.reset(at)?,
                2 => {
                    // In the middle of a request.
                    if let Some(c) = &self.connections[at] {
                        self.send(c, 0, 7);
                    }
                    self.reset(at)?;
                }
                3 | 4 => {
                    let pause = Duration::from_millis(self.random(400));
                    if let Some(c) = &mut self.connections[at] {
                        c.pause_until = Some(Instant::now() + pause);
                    }
                    return Ok(());
                }
                _ => {}
            }
        }
        if ask_again && self.connections[at].as_ref().is_none_or(|c| !c.idle) {
            self.ask(at)?;
        }
        Ok(())
    }

    fn reopen_idle(&mut self, at: usize) -> io::Result<()> {
        let mut connection = self.connect()?;
        connection.idle = true;
        self.register(at, &connection)?;
        self.connections[at] = Some(connection);
        Ok(())
    }

    /// Reads what is there; true when the answer is complete or the connection
    /// over.
    fn read(&mut self, at: usize) -> bool {
        let Some(c) = &mut self.connections[at] else {
            return false;
        };
        // SAFETY: the buffer is valid for its length.
        let got = unsafe {
            libc::recv(
                c.fd.as_raw_fd(),
                self.buffer.as_mut_ptr().cast(),
                self.buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if got <= 0 {
            if got < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
                return false;
            }
            if c.asked.take().is_some() {
                self.outcome.dropped += 1;
            }
            c.expected = 0;
            return true;
        }
        c.got += got as usize;
        if c.expected == 0 {
            c.head.extend_from_slice(&self.buffer[..got as usize]);
            if let Some(end) = c.head.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&c.head[..end]).to_ascii_lowercase();
                let length = head
                    .lines()
                    .find_map(|l| l.strip_prefix("content-length:"))
                    .and_then(|v| v.trim().parse::<usize>().ok());
                c.expected = end + 4 + length.unwrap_or(0);
                c.status_good = head.split(' ').nth(1) == Some("200") && length.is_some();
            }
        }
        if c.expected == 0 || c.got < c.expected {
            return false;
        }
        match c.asked.take() {
            Some(asked) => {
                let took = asked.elapsed();
                self.outcome.requests += 1;
                if !c.status_good || c.got != c.expected {
                    self.outcome.wrong += 1;
                }
                if took > self.load.deadline {
                    self.outcome.stalled += 1;
                }
                self.outcome.latencies_us.push(took.as_micros() as u32);
            }
            None => self.outcome.wrong += 1,
        }
        true
    }

    fn over(&self, at: usize) -> bool {
        self.connections[at]
            .as_ref()
            .is_none_or(|c| c.expected == 0)
    }

    fn wait(&mut self, events: &mut [libc::epoll_event], timeout: Duration) -> usize {
        let limit = libc::timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: the array is valid for its length, the rest are locals.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len(),
                &raw const limit,
                0,
                8,
            )
        };
        n.max(0) as usize
    }

    /// Asks for so long, and says what came of it.
    pub fn run(&mut self, duration: Duration) -> io::Result<Outcome> {
        let begin = Instant::now();
        let end = begin + duration;
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 256];
        let half = self.load.idle / 2;
        let hot = half..half + self.load.hot;
        self.outcome = Outcome::default();
        let mut free: Vec<usize> = Vec::new();
        let mut due = begin;
        for at in hot {
            if self.load.rate.is_some() {
                free.push(at);
            } else {
                self.ask(at)?;
            }
        }
        let mut look_at = begin;
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let mut limit = (end - now).min(Duration::from_millis(20));
            if let Some(rate) = self.load.rate {
                while due <= now {
                    match free.pop() {
                        Some(at) => self.ask(at)?,
                        // More is asked than the server does: what is due
                        // waits, as at a saturated server.
                        None => break,
                    }
                    due += Duration::from_secs_f64(1.0 / rate);
                }
                if !free.is_empty() {
                    limit = limit.min(due.saturating_duration_since(now));
                }
            }
            let n = self.wait(&mut events, limit);
            for event in &events[..n] {
                let at = event.u64 as usize;
                if !self.read(at) {
                    continue;
                }
                if self.over(at) {
                    self.reopen(at)?;
                    if self.connections[at].as_ref().is_some_and(|c| !c.idle) {
                        if self.load.rate.is_some() {
                            free.push(at);
                        } else {
                            self.ask(at)?;
                        }
                    }
                    continue;
                }
                self.after(at, self.load.rate.is_none())?;
                if self.load.rate.is_some() {
                    free.push(at);
                }
            }
            if self.load.churn && now >= look_at {
                look_at = now + Duration::from_millis(5);
                self.churn(now)?;
            }
        }
        self.outcome.seconds = begin.elapsed().as_secs_f64();
        // Requests on their way are answered too, or are stalled.
        let grace = Instant::now() + self.load.deadline;
        while Instant::now() < grace && self.connections.iter().flatten().any(|c| c.asked.is_some())
        {
            let before = self.outcome.requests;
            let n = self.wait(&mut events, Duration::from_millis(50));
            for event in &events[..n] {
                let at = event.u64 as usize;
                let over = self.read(at) && self.over(at);
                let answered = self.connections[at]
                    .as_ref()
                    .is_some_and(|c| c.asked.is_none());
                if over || (answered && !self.load.keep_alive) {
                    self.connections[at] = None;
                }
            }
            if !self.load.churn {
                self.outcome.requests = before;
            }
        }
        self.outcome.stalled += self
            .connections
            .iter()
            .flatten()
            .filter(|c| c.asked.is_some())
            .count() as u64;
        for c in self.connections.iter_mut().flatten() {
            c.asked = None;
        }
        // One connection per request: hot ones begin anew with the next run.
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.latencies_us.sort_unstable();
        Ok(outcome)
    }

    fn churn(&mut self, now: Instant) -> io::Result<()> {
        for at in 0..self.connections.len() {
            let Some(c) = &mut self.connections[at] else {
                continue;
            };
            if c.rest_at.is_some_and(|t| t <= now) {
                c.rest_at = None;
                c.asked = Some(Instant::now());
                let c = self.connections[at].take().expect("just seen");
                self.send(&c, self.request.len() / 2, self.request.len());
                self.connections[at] = Some(c);
            } else if c.pause_until.is_some_and(|t| t <= now) {
                c.pause_until = None;
                self.ask(at)?;
            }
        }
        // A long idle one wakes up, goes, or comes.
        if self.load.idle > 0 {
            let at = self.random(self.connections.len() as u64) as usize;
            let quiet = self.connections[at]
                .as_ref()
                // One that pauses will ask by itself, and then perhaps while the
                // answer to this request is still on its way.
                .is_some_and(|c| {
                    c.idle && c.asked.is_none() && c.rest_at.is_none() && c.pause_until.is_none()
                });
            if quiet {
                match self.random(4) {
                    0 => self.reopen(at)?,
                    1 => self.reset(at)?,
                    _ => self.ask(at)?,
                }
            }
        }
        Ok(())
    }
}
