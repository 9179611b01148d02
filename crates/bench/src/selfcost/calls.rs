// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the measured program of `bench self` do?
//!
//! It is started by itself or under a tool, is told what to do by one JSON
//! argument, and writes ns to a file: the standard streams are the tool's.

use crate::Error;
use crate::clock::gettime_ns;
use crate::raw::{check, os_error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[repr(C)]
#[derive(Default)]
pub(super) struct RawCall {
    what: i32,
    fd: i32,
    fd_out: i32,
    size: usize,
}

/// Two sockets on 127.0.0.1. Nobody reads: what finds no room is dropped by the
/// receiving end, after all its work.
pub(super) struct Loopback {
    from: std::net::UdpSocket,
    _to: std::net::UdpSocket,
}

impl Loopback {
    pub(super) fn open() -> Result<Self, Error> {
        let sockets = || {
            let to = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
            let from = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
            from.connect(to.local_addr()?)?;
            Ok(Self { from, _to: to })
        };
        sockets().map_err(|source: std::io::Error| Error::System {
            what: "opening two sockets on 127.0.0.1".into(),
            source,
        })
    }
}

impl RawCall {
    pub(super) fn getpid() -> Self {
        Self::default()
    }

    pub(super) fn trip(echo: &Echo) -> Self {
        Self {
            what: 3,
            fd: echo.from.as_raw_fd(),
            fd_out: echo.to.as_raw_fd(),
            size: 1,
        }
    }

    /// A packet to this process itself: the kernel receives it in a soft interrupt, in
    /// the call that sends it.
    pub(super) fn datagram(to: &Loopback) -> Self {
        Self {
            what: 4,
            fd_out: to.from.as_raw_fd(),
            size: 64,
            ..Self::default()
        }
    }

    /// ns that `n` of these calls take.
    pub(super) fn timed(&self, bracket: Bracket, n: i64) -> Result<f64, Error> {
        let how = match bracket {
            Bracket::Plain => 0,
            Bracket::Debox => 1,
            Bracket::Clock => 2,
            Bracket::Getrusage => 3,
        };
        let from = gettime_ns(libc::CLOCK_MONOTONIC);
        // SAFETY: descriptors that are open, a size within the C side's buffer.
        let failed = unsafe { debox_bench_calls(self, how, n) };
        let took = gettime_ns(libc::CLOCK_MONOTONIC) - from;
        if failed > 0 {
            Err(os_error("a measured call failed"))
        } else {
            Ok(took as f64)
        }
    }
}

unsafe extern "C" {
    fn debox_bench_calls(call: *const RawCall, bracket: i32, n: i64) -> i64;
}

/// The rows of the paper's Table 2, and one call that sleeps.
pub const CALLS: [(&str, &str); 9] = [
    ("getpid", "getpid"),
    ("gettimeofday", "gettimeofday (call)"),
    ("pread-128", "pread 128 B"),
    ("pread-256", "pread 256 B"),
    ("pread-512", "pread 512 B"),
    ("pread-1024", "pread 1024 B"),
    ("pread-2048", "pread 2048 B"),
    ("pread-4096", "pread 4096 B"),
    ("sleep", "pipe round trip, sleeps"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bracket {
    Plain,
    Debox,
    Clock,
    Getrusage,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Every call of [`CALLS`]: repetitions, and how long each takes.
    Calls { repetitions: usize, batch_us: u64 },
    /// Runs and times a command; the tool's own start is not in the time.
    Command(Vec<String>),
    /// Forks, execs and waits for so many processes; ns for one.
    Storm(u64),
    /// accept and sendfile under load, by user-space stamps and by DeBox in turn.
    Server { connections: u64 },
    /// Loops of calls under the interposer: the shortest of so many turns.
    Wrap { turns: usize },
    /// Loops as they are asked for on standard input.
    Obey,
    /// A recorded call in each of so many threads, and what is then in the
    /// memory of this process and of the broker.
    Threads { number: usize, broker: u32 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub task: Task,
    pub bracket: Bracket,
    pub cpu: usize,
    /// Result: JSON of a map from row to values in ns.
    pub out: PathBuf,
    /// Begin only after SIGUSR1: a tool attaches meanwhile.
    pub wait: bool,
    /// With [`Bracket::Debox`] and for the server: the broker.
    pub socket: Option<PathBuf>,
}

pub type Answer = BTreeMap<String, Vec<f64>>;

/// A client of this broker, with everything on.
pub(super) fn session(socket: &Path) -> Result<debox::Session, Error> {
    let session = debox::Options::new()
        .socket_path(socket)
        .open()
        .map_err(|e| Error::Unavailable(e.to_string()))?;
    match session.status() {
        debox::Status::Measured => Ok(session),
        _ => Err(Error::Unavailable(session.why())),
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut fds = [0; 2];
    // SAFETY: room for two; owned at once.
    unsafe {
        check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), "pipe")?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// The other end of the round trip: a child on the same CPU, that answers each
/// byte, and yields in turn with this process when the byte is [`YIELD`].
pub(super) struct Echo {
    pid: i32,
    to: OwnedFd,
    from: OwnedFd,
    /// Whether the child still has to yield; shared with it.
    yields: &'static AtomicBool,
}

static YIELD: u8 = b'y';

/// In front of everything else on this CPU, or as usual.
fn realtime(on: bool) -> Result<(), Error> {
    let (policy, priority) = if on {
        (libc::SCHED_FIFO, 1)
    } else {
        (libc::SCHED_OTHER, 0)
    };
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: parameters of our own.
    check(
        unsafe { libc::sched_setscheduler(0, policy, &parameters) },
        "becoming a real-time process",
    )
    .map(drop)
}

impl Echo {
    pub(super) fn start() -> Result<Self, Error> {
        let (their_from, to) = pipe()?;
        let (from, their_to) = pipe()?;
        // SAFETY: new memory, of zeros, that nothing else points into; it stays
        // mapped as long as the process.
        let yields = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(os_error("mapping memory"));
            }
            &*at.cast::<AtomicBool>()
        };
        // SAFETY: the child makes system calls only, and exits.
        let pid = unsafe {
            let pid = check(libc::fork(), "fork")?;
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::close(to.as_raw_fd());
                let mut byte = 0u8;
                let at = (&raw mut byte).cast();
                while libc::read(their_from.as_raw_fd(), at, 1) == 1 {
                    if byte == YIELD {
                        if realtime(true).is_err() || libc::write(their_to.as_raw_fd(), at, 1) != 1
                        {
                            break;
                        }
                        while yields.load(Relaxed) {
                            libc::sched_yield();
                        }
                        let _ = realtime(false);
                    }
                    if libc::write(their_to.as_raw_fd(), at, 1) != 1 {
                        break;
                    }
                }
                libc::_exit(0);
            }
            pid
        };
        Ok(Self {
            pid,
            to,
            from,
            yields,
        })
    }

    /// ns of a sched_yield with the switch it makes, of `n` by this process and
    /// as many by the child; that they switch is checked.
    pub(super) fn yielding(&self, n: i64) -> Result<f64, Error> {
        let mut byte = YIELD;
        let mut answer = || {
            // SAFETY: one byte of our own.
            let got = unsafe { libc::read(self.from.as_raw_fd(), (&raw mut byte).cast(), 1) };
            check(got as i32 - 1, "the other end of the switch").map(drop)
        };
        self.yields.store(true, Relaxed);
        realtime(true)?;
        // SAFETY: one byte of our own.
        let sent = unsafe { libc::write(self.to.as_raw_fd(), (&raw const YIELD).cast(), 1) };
        check(sent as i32 - 1, "the other end of the switch")?;
        answer()?;
        // SAFETY: no arguments.
        let turn = || unsafe {
            libc::sched_yield();
        };
        turn();
        let before = switches();
        let from = gettime_ns(libc::CLOCK_MONOTONIC);
        for _ in 0..n {
            turn();
        }
        let took = (gettime_ns(libc::CLOCK_MONOTONIC) - from) as f64;
        let seen = switches() - before;
        self.yields.store(false, Relaxed);
        answer()?;
        realtime(false)?;
        if seen < n * 9 / 10 {
            return Err(Error::Unavailable(format!(
                "only {seen} switches in {n} yields: something else of real-time priority runs here"
            )));
        }
        Ok(took / n as f64 / 2.0)
    }
}

/// How often this process has left its CPU.
fn switches() -> i64 {
    // SAFETY: zeroed is valid, getrusage fills it.
    unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut u);
        u.ru_nvcsw + u.ru_nivcsw
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// A file of 4096 bytes in memory, for the preads.
pub(super) fn block() -> Result<OwnedFd, Error> {
    // SAFETY: owned at once; written from a local buffer.
    unsafe {
        let fd = check(
            libc::memfd_create(c"debox-bench".as_ptr(), libc::MFD_CLOEXEC),
            "memfd",
        )?;
        let fd = OwnedFd::from_raw_fd(fd);
        let bytes = [7u8; 4096];
        if libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), 4096) != 4096 {
            return Err(os_error("writing 4096 bytes"));
        }
        Ok(fd)
    }
}

pub(super) fn calls(
    bracket: Bracket,
    repetitions: usize,
    batch: Duration,
) -> Result<Answer, Error> {
    let file = block()?;
    let echo = Echo::start()?;
    let mut answer = Answer::new();
    let call = |name: &str| match name {
        "getpid" => RawCall::getpid(),
        "gettimeofday" => RawCall {
            what: 1,
            ..RawCall::default()
        },
        "sleep" => RawCall::trip(&echo),
        name => RawCall {
            what: 2,
            fd: file.as_raw_fd(),
            size: name
                .rsplit('-')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(4096),
            ..RawCall::default()
        },
    };
    let mut sizes = Vec::new();
    for (name, _) in CALLS {
        let raw = call(name);
        // Under some tools a call takes a thousand times longer.
        let mut n = 8;
        loop {
            let took = raw.timed(bracket, n)?;
            if took >= batch.as_nanos() as f64 || n >= 1 << 20 {
                break;
            }
            let factor = (batch.as_nanos() as f64 / took.max(1.0)).clamp(1.3, 8.0);
            n = (n as f64 * factor).ceil() as i64;
        }
        sizes.push(n);
    }
    for _ in 0..repetitions {
        for ((name, _), n) in CALLS.iter().zip(&sizes) {
            let took = call(name).timed(bracket, *n)? / *n as f64;
            answer.entry((*name).to_owned()).or_default().push(took);
        }
    }
    Ok(answer)
}

pub(super) fn command(words: &[String]) -> Result<Answer, Error> {
    let (program, rest) = words
        .split_first()
        .ok_or_else(|| Error::Usage("no command to time".into()))?;
    let begin = Instant::now();
    let status = std::process::Command::new(program)
        .args(rest)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .map_err(|source| Error::System {
            what: format!("running {program}"),
            source,
        })?;
    let took = begin.elapsed().as_nanos() as f64;
    if !status.success() {
        return Err(Error::Unavailable(format!("{program} ended with {status}")));
    }
    Ok(Answer::from([("elapsed".to_owned(), vec![took])]))
}

/// fork and execv, as a shell does it. (Command of the standard library calls
/// posix_spawn, which shares the memory until exec: another, cheaper thing.)
pub(super) fn storm(n: u64) -> Result<Answer, Error> {
    const PROGRAM: &std::ffi::CStr = c"/bin/true";
    let words = [PROGRAM.as_ptr(), std::ptr::null()];
    let begin = Instant::now();
    for _ in 0..n {
        let mut status = 0;
        // SAFETY: between fork and exec system calls only; the words end with
        // a null pointer; the child is ours and waited for once.
        unsafe {
            let pid = check(libc::fork(), "fork")?;
            if pid == 0 {
                libc::execv(PROGRAM.as_ptr(), words.as_ptr());
                libc::_exit(127);
            }
            while libc::waitpid(pid, &mut status, 0) < 0 {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(os_error("waiting for a child"));
                }
            }
        }
        if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
            return Err(Error::Unavailable(format!(
                "/bin/true ended with wait status {status:#x}"
            )));
        }
    }
    let each = begin.elapsed().as_nanos() as f64 / n.max(1) as f64;
    Ok(Answer::from([("elapsed".to_owned(), vec![each])]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_storm_says_what_one_process_takes() {
        let begin = Instant::now();
        let each = storm(5).unwrap()["elapsed"][0];
        let all = begin.elapsed().as_nanos() as f64;
        assert!(each * 5.0 <= all && each * 10.0 > all, "{each} of {all}");
    }
}
