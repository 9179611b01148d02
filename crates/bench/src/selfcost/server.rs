// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of a call's time, as a program sees it, is not the call's? (The
//! paper's Table 1.)
//!
//! A server on a busy CPU times every accept() and sendfile(): half of them by
//! reading the clock before and after, as a program would, half by DeBox. What
//! preempts the server beside the call is in the first and not in the second.

use crate::Error;
use crate::clock::gettime_ns;
use crate::raw::{check, os_error};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const REPLY: usize = 32 << 10;

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |source| Error::System {
        what: what.into(),
        source,
    }
}

/// A child that asks again and again, on the server's own CPU, and one that
/// only computes there: both want the CPU while calls are made.
struct Load {
    pids: Vec<i32>,
}

impl Drop for Load {
    fn drop(&mut self) {
        for pid in &self.pids {
            // SAFETY: our own children.
            unsafe {
                libc::kill(*pid, libc::SIGKILL);
                libc::waitpid(*pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Forks a child that runs `body` until it is killed.
fn child(body: impl Fn()) -> Result<i32, Error> {
    // SAFETY: this process has one thread here but libdebox's, and the child
    // uses sockets and buffers that it makes itself.
    unsafe {
        let pid = check(libc::fork(), "fork")?;
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                body();
            }
        }
        Ok(pid)
    }
}

pub fn serve(connections: u64) -> Result<BTreeMap<String, Vec<f64>>, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed("listening on loopback"))?;
    listener
        .set_nonblocking(true)
        .map_err(failed("listening on loopback"))?;
    let address = listener
        .local_addr()
        .map_err(failed("listening on loopback"))?;
    let file = content()?;
    let mut load = Load { pids: Vec::new() };
    load.pids.push(child(|| {
        if let Ok(mut s) = TcpStream::connect(address) {
            let mut buffer = [0u8; 16384];
            while matches!(s.read(&mut buffer), Ok(n) if n > 0) {}
        }
    })?);
    load.pids.push(child(|| {
        std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
    })?);
    let mut answer = BTreeMap::<String, Vec<f64>>::new();
    let mut note = |name: &str, ns: f64| answer.entry(name.to_owned()).or_default().push(ns);
    let mut served = 0;
    let begin = std::time::Instant::now();
    while served < connections {
        if begin.elapsed().as_secs() > 60 {
            return Err(Error::Unavailable(
                "the server got no connections for a minute".into(),
            ));
        }
        let by_user = served % 2 == 0;
        // SAFETY: no address wanted.
        let accept = || unsafe {
            libc::accept4(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
        let Some(fd) = timed(by_user, libc::SYS_accept4, accept, |ns, who| {
            note(&format!("accept-{who}"), ns);
        }) else {
            // Nobody is waiting: let the client run.
            std::thread::yield_now();
            continue;
        };
        // SAFETY: just accepted.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut sent = 0usize;
        while sent < REPLY {
            let mut offset = sent as i64;
            // SAFETY: an offset that lives through the call.
            let send = || unsafe {
                libc::sendfile(
                    socket.as_raw_fd(),
                    file.as_raw_fd(),
                    &mut offset,
                    REPLY - sent,
                ) as i32
            };
            match timed(by_user, libc::SYS_sendfile, send, |ns, who| {
                note(&format!("sendfile-{who}"), ns);
            }) {
                Some(n) if n > 0 => sent += n as usize,
                _ => return Err(os_error("sendfile")),
            }
        }
        served += 1;
    }
    Ok(answer)
}

/// The call's value, or `None` when it failed; successful calls are noted.
fn timed(
    by_user: bool,
    nr: i64,
    call: impl FnOnce() -> i32,
    note: impl FnOnce(f64, &str),
) -> Option<i32> {
    if by_user {
        let from = gettime_ns(libc::CLOCK_MONOTONIC);
        let got = call();
        let took = gettime_ns(libc::CLOCK_MONOTONIC) - from;
        if got >= 0 {
            note(took as f64, "user");
        }
        return (got >= 0).then_some(got);
    }
    let (got, record) = debox::call_nr(nr as i32, call);
    if let (true, Some(wall)) = (got >= 0, record.wall()) {
        note(wall.as_nanos() as f64, "debox");
    }
    (got >= 0).then_some(got)
}

fn content() -> Result<OwnedFd, Error> {
    // SAFETY: owned at once; written from a local buffer.
    unsafe {
        let fd = check(
            libc::memfd_create(c"debox-bench".as_ptr(), libc::MFD_CLOEXEC),
            "memfd",
        )?;
        let fd = OwnedFd::from_raw_fd(fd);
        let bytes = vec![7u8; REPLY];
        if libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), REPLY) != REPLY as isize {
            return Err(os_error("writing a file in memory"));
        }
        Ok(fd)
    }
}
