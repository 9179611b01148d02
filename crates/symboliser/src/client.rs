// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is the symboliser asked, and what if it does not answer?
//!
//! One request at a time, each with a limit on processor and on clock time.
//! Whatever else happens to it (a signal, a panic, nonsense on the socket), it
//! is ended, and started again when the next thing is asked. What it says is
//! foreign bytes, too, and read with bounds.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use debox_client::packet;
use debox_unwind::Row;

use crate::Named;
use crate::python::Python;
use crate::server::{BEFORE_MAIN, PROGRAM, SERVE};
use crate::wire::{HEADER_BYTES, Loaded, Part, REPLY_BYTES_MAX, ROW_BYTES, Reply, Request, header};

/// Processor time of one request.
const CPU_MAX: Duration = Duration::from_secs(10);
/// On the clock, where the machine is busy or somebody stops it.
const WALL_MAX: Duration = Duration::from_secs(60);
/// All requests together: so much at once, and a tenth of the time that goes by.
const CPU_ALL: Duration = Duration::from_secs(60);
/// How often it is looked at the processor time.
const LOOK: Duration = Duration::from_millis(100);
/// Ends that are not asked for. Then it is given up.
const ENDS_MAX: u32 = 32;

/// Why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// It used up its memory, or ended itself otherwise.
    #[error("out of memory")]
    Memory,
    #[error("more than {} s of processor time", CPU_MAX.as_secs())]
    Cpu,
    #[error("no answer in {} s", WALL_MAX.as_secs())]
    Wall,
    /// What it parsed, or mapped, led it to something that ended it.
    #[error("{0}")]
    Signal(&'static str),
    /// A defect in what parses.
    #[error("panic at {0}")]
    Panic(String),
    #[error("an answer that is none")]
    Nonsense,
    #[error("it ended with status {0}")]
    Status(i32),
    /// It is not asked any more.
    #[error("too many files in which it ended")]
    GivenUp,
    #[error("no processor time left for it")]
    TimeOver,
    /// It cannot be started, or not be confined.
    #[error("it cannot be started: {0}")]
    Start(String),
}

impl Lost {
    /// Whether the same question could be answered by a fresh process: not if
    /// it takes too long.
    pub fn again(&self) -> bool {
        !matches!(
            self,
            Lost::Cpu | Lost::Wall | Lost::GivenUp | Lost::TimeOver | Lost::Start(_)
        )
    }
}

/// Why a file, or a part of one, has not been read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("{0}")]
    Lost(#[from] Lost),
    /// It says what is wrong with the file.
    #[error("{0}")]
    Refused(String),
    /// Others came since: hand it in again.
    #[error("it is not loaded any more")]
    Forgotten,
}

struct Running {
    child: Child,
    socket: UnixStream,
    clock: libc::clockid_t,
}

/// The process and its limits.
pub struct Symboliser {
    running: Option<Running>,
    started: Instant,
    /// How often it was started: what was loaded in another life is gone.
    life: u32,
    ends: u32,
    cpu: Duration,
    /// All requests together are limited, too.
    limited: bool,
    /// It will not start: one try is enough.
    refused: Option<String>,
}

impl Default for Symboliser {
    fn default() -> Self {
        Symboliser::new()
    }
}

impl Symboliser {
    /// Starts nothing yet.
    pub fn new() -> Symboliser {
        Symboliser {
            running: None,
            started: Instant::now(),
            life: 0,
            ends: 0,
            cpu: Duration::ZERO,
            limited: true,
            refused: None,
        }
    }

    /// For the files of many users: one user's must not use up what others
    /// need, so there are limits for each request only.
    pub fn for_all() -> Symboliser {
        let mut symboliser = Symboliser::new();
        symboliser.limited = false;
        symboliser
    }

    /// Changes when all that was loaded is gone.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// How often it ended without being asked to.
    pub fn ends(&self) -> u32 {
        self.ends
    }

    /// Processor time that all requests took together.
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    /// The process, if one is running.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    pub fn load(&mut self, file: u32, part: Part, open: &File) -> Result<Loaded, Unusable> {
        match self.ask(&Request::Load { file, part }, Some(open))? {
            Reply::Loaded(loaded) => Ok(loaded),
            other => Err(self.unusable(other)),
        }
    }

    /// What a place in a loaded file is called.
    pub fn name(&mut self, file: u32, place: u64, lines: bool) -> Result<Named, Unusable> {
        match self.ask(&Request::Name { file, place, lines }, None)? {
            Reply::Named { frames, incomplete } => Ok(Named { frames, incomplete }),
            other => Err(self.unusable(other)),
        }
    }

    pub fn map(&mut self, map: u32, open: &File) -> Result<(), Unusable> {
        match self.ask(&Request::Map { map }, Some(open))? {
            Reply::Done => Ok(()),
            other => Err(self.unusable(other)),
        }
    }

    pub fn map_name(&mut self, map: u32, address: u64) -> Result<Option<(u64, String)>, Unusable> {
        match self.ask(&Request::MapName { map, address }, None)? {
            Reply::MapNamed(found) => Ok(found),
            other => Err(self.unusable(other)),
        }
    }

    /// Whether a file is a Python interpreter that is known, and where in it things are.
    pub fn python(&mut self, open: &File) -> Result<Option<Python>, Unusable> {
        match self.ask(&Request::Python, Some(open))? {
            Reply::Python(found) => Ok(found),
            other => Err(self.unusable(other)),
        }
    }

    /// The C library that this machine runs; to be told again in each life.
    pub fn libc(&mut self, open: &File) -> Result<(), Unusable> {
        match self.ask(&Request::Libc, Some(open))? {
            Reply::Done => Ok(()),
            other => Err(self.unusable(other)),
        }
    }

    /// The unwind table of a file: rows in order, as many as asked for at most.
    pub fn table(
        &mut self,
        open: &File,
        file_name: &str,
        rows_max: u32,
        cpu_max: Duration,
    ) -> Result<Vec<Row>, Unusable> {
        let request = Request::Table {
            rows_max,
            cpu_ms: u32::try_from(cpu_max.as_millis()).unwrap_or(u32::MAX),
            file_name: file_name.to_owned(),
        };
        let bytes = match self.ask(&request, Some(open))? {
            Reply::Table(bytes) => bytes,
            other => return Err(self.unusable(other)),
        };
        match rows(&bytes, rows_max) {
            Some(rows) => Ok(rows),
            None => Err(self.lost(Lost::Nonsense).into()),
        }
    }

    /// Lets it try what it must not do ([`crate::ATTEMPTS`]): for tests.
    pub fn attempt(&mut self, what: u8) -> Result<(), Unusable> {
        match self.ask(&Request::Attempt { what }, None)? {
            Reply::Done => Ok(()),
            other => Err(self.unusable(other)),
        }
    }

    fn unusable(&mut self, reply: Reply) -> Unusable {
        match reply {
            Reply::Refused(why) => Unusable::Refused(why),
            Reply::Forgotten => Unusable::Forgotten,
            Reply::Panicked(place) => self.lost(Lost::Panic(place)).into(),
            _ => self.lost(Lost::Nonsense).into(),
        }
    }

    fn ask(&mut self, request: &Request, open: Option<&File>) -> Result<Reply, Lost> {
        self.start()?;
        let Some(running) = &mut self.running else {
            return Err(Lost::GivenUp);
        };
        let before = running.cpu();
        let limit = match request {
            Request::Table { rows_max, .. } => *rows_max as usize * ROW_BYTES,
            _ => REPLY_BYTES_MAX,
        };
        let answer = send(&running.socket, &request.encode(), open)
            .and_then(|()| running.receive(limit, before));
        self.cpu += running.cpu().saturating_sub(before);
        answer.map_err(|broken| match broken {
            Broken::Ended => self.ended(),
            Broken::Lost(lost) => self.lost(lost),
        })
    }

    fn start(&mut self) -> Result<(), Lost> {
        if self.limited && self.cpu > CPU_ALL + self.started.elapsed() / 10 {
            return Err(Lost::TimeOver);
        }
        if self.running.is_some() {
            return Ok(());
        }
        if let Some(why) = &self.refused {
            return Err(Lost::Start(why.clone()));
        }
        if self.limited && self.ends >= ENDS_MAX {
            return Err(Lost::GivenUp);
        }
        self.life += 1;
        match Running::start() {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err(why) => {
                self.refused = self.limited.then(|| why.clone());
                Err(Lost::Start(why))
            }
        }
    }

    /// It is no good any more: for what it did, or did not do.
    fn lost(&mut self, lost: Lost) -> Lost {
        if let Some(running) = self.running.take() {
            running.end();
        }
        self.ends += 1;
        lost
    }

    /// It hung up: why?
    fn ended(&mut self) -> Lost {
        self.ends += 1;
        match self.running.take().map(Running::end) {
            Some(Some(status)) => cause(status),
            _ => Lost::Wall,
        }
    }
}

impl Drop for Symboliser {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

fn cause(status: ExitStatus) -> Lost {
    match status.signal() {
        Some(libc::SIGABRT) => Lost::Memory,
        Some(libc::SIGXCPU) => Lost::Cpu,
        Some(libc::SIGBUS) => Lost::Signal("the file became shorter while it was read"),
        Some(libc::SIGSEGV) => Lost::Signal("a memory fault, or too deep a stack"),
        Some(libc::SIGSYS) => Lost::Signal("a system call that is forbidden to it"),
        Some(libc::SIGKILL) => Lost::Signal("killed"),
        Some(_) => Lost::Signal("another signal"),
        None => Lost::Status(status.code().unwrap_or(0)),
    }
}

/// Sorted, no two alike, of kinds that exist, and not too many.
fn rows(bytes: &[u8], max: u32) -> Option<Vec<Row>> {
    let count = bytes.len() / ROW_BYTES;
    if !bytes.len().is_multiple_of(ROW_BYTES) || count > max as usize {
        return None;
    }
    let mut rows: Vec<Row> = Vec::with_capacity(count);
    for chunk in bytes.chunks_exact(ROW_BYTES) {
        let row = Row::from_bytes(chunk.try_into().ok()?)?;
        if rows.last().is_some_and(|last| last.pc >= row.pc) {
            return None;
        }
        rows.push(row);
    }
    Some(rows)
}

enum Broken {
    /// The other end is closed.
    Ended,
    Lost(Lost),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Broken {
        Broken::Ended
    }
}

impl Running {
    fn start() -> Result<Running, String> {
        // Referred to, so that the linker keeps it in every program that asks.
        std::hint::black_box(&raw const BEFORE_MAIN);
        let told = |error: io::Error| error.to_string();
        let (ours, theirs) = UnixStream::pair().map_err(told)?;
        let child = Command::new("/proc/self/exe")
            .arg0(PROGRAM.to_str().unwrap_or_default())
            .arg(SERVE.to_str().unwrap_or_default())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(told)?;
        let mut clock = 0;
        // SAFETY: a local of the right type.
        unsafe { libc::clock_getcpuclockid(child.id() as libc::pid_t, &mut clock) };
        let mut running = Running {
            child,
            socket: ours,
            clock,
        };
        match running.receive(REPLY_BYTES_MAX, Duration::ZERO) {
            Ok(Reply::Ready) => Ok(running),
            Ok(Reply::Refused(why)) => {
                running.end();
                Err(format!("it cannot be confined here ({why})"))
            }
            _ => {
                let status = running.end();
                Err(status.map_or_else(|| "no answer".into(), |status| status.to_string()))
            }
        }
    }

    /// Processor time of the process, its end included.
    fn cpu(&self) -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a local of the right type. A process that is gone leaves 0.
        unsafe { libc::clock_gettime(self.clock, &mut time) };
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    }

    /// One reply of bounded size in bounded time.
    fn receive(&mut self, limit: usize, before: Duration) -> Result<Reply, Broken> {
        let until = Instant::now() + WALL_MAX;
        let mut head = [0; HEADER_BYTES];
        self.fill(&mut head, until, before)?;
        let (length, kind) = header(&head);
        if length > limit.max(REPLY_BYTES_MAX) {
            return Err(Broken::Lost(Lost::Nonsense));
        }
        let mut body = vec![0; length];
        self.fill(&mut body, until, before)?;
        Reply::decode(kind, &body).map_err(|_| Broken::Lost(Lost::Nonsense))
    }

    fn fill(&mut self, into: &mut [u8], until: Instant, before: Duration) -> Result<(), Broken> {
        let mut done = 0;
        while done < into.len() {
            let mut poll = libc::pollfd {
                fd: self.socket.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: a list of one.
            if unsafe { libc::poll(&mut poll, 1, LOOK.as_millis() as i32) } <= 0 {
                if self.cpu().saturating_sub(before) > CPU_MAX {
                    return Err(Broken::Lost(Lost::Cpu));
                }
                if Instant::now() > until {
                    return Err(Broken::Lost(Lost::Wall));
                }
                continue;
            }
            match (&self.socket).read(&mut into[done..]) {
                Ok(0) => return Err(Broken::Ended),
                Ok(got) => done += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken::Ended),
            }
        }
        Ok(())
    }

    /// Ends it, if it has not ended itself.
    fn end(mut self) -> Option<ExitStatus> {
        // It hung up, so it is ending; if not, it is time.
        drop(self.socket);
        for _ in 0..20 {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_micros(200)),
                Err(_) => return None,
            }
        }
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

/// A request is small: it fits into the socket's buffer, as the other side is
/// waiting for it.
fn send(socket: &UnixStream, bytes: &[u8], open: Option<&File>) -> Result<(), Broken> {
    let files: Vec<_> = open.iter().map(|file| file.as_fd()).collect();
    packet::send_now(socket.as_raw_fd(), bytes, &files).map_err(|_| Broken::Ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked() {
        let row = |pc, kind| {
            Row {
                pc,
                cfa_words: 1,
                rbp_words: 0,
                kind,
            }
            .to_bytes()
        };
        let table = |rows: &[[u8; 8]], max| super::rows(&rows.concat(), max).map(|r| r.len());
        assert_eq!(table(&[row(0, 1), row(4, 0x81)], 2), Some(2));
        assert_eq!(table(&[row(0, 1), row(4, 0x81)], 1), None, "too many");
        assert_eq!(table(&[row(4, 1), row(4, 2)], 9), None, "no order");
        assert_eq!(table(&[row(5, 1), row(4, 2)], 9), None, "no order");
        assert_eq!(table(&[row(5, 0x41)], 9), None, "no such kind");
        assert_eq!(super::rows(&[0; 9], 9), None);
        assert_eq!(super::rows(&[], 9), Some(vec![]));
    }
}
