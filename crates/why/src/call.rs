// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which call is a thread in, with which arguments, and on which object?
//!
//! Of a call that has not returned its descriptors are still what they were when it
//! began, unless another thread of the process closed them meanwhile. What they are
//! stands in the table of `debox_symbol`; here is what the process's files and memory
//! say of them.

use std::time::Duration;

use debox_output::printable_within;
use debox_symbol::{Argument, ArgumentKind, arguments, syscall_name};

use crate::proc;
use crate::task::Task;

/// Of a path that was passed.
const PATH_BYTES_MAX: usize = 4096;
const SHOWN_MAX: usize = 200;

/// One call that has not returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// As they are shown; `None` if it is not known what they are.
    pub args: Option<Vec<String>>,
    /// What it works on: a path, `pipe:[123]`.
    pub object: Option<String>,
    /// Of the object, if it is one.
    pub fd: Option<u32>,
    /// How long it waits at the most, from its beginning, where it says so.
    pub limit: Option<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Since it began.
    After(Duration),
    /// From now; nothing if it is over.
    In(Duration),
}

impl Call {
    pub fn text(&self) -> String {
        match &self.args {
            Some(args) => format!("{}({})", self.name, args.join(", ")),
            None => format!("{}(...)", self.name),
        }
    }
}

/// A string of the process.
fn path_at(tid: u32, address: u64) -> Option<String> {
    let mut bytes = vec![0u8; PATH_BYTES_MAX];
    let mut got = proc::memory(tid, address, &mut bytes);
    if got == 0 {
        // It may end before the end of its page, and the next page be missing.
        let rest = (4096 - (address & 4095)) as usize;
        got = proc::memory(tid, address, &mut bytes[..rest]);
    }
    let end = bytes[..got].iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

fn timespec_at(tid: u32, address: u64) -> Option<Duration> {
    let mut bytes = [0u8; 16];
    if address == 0 || proc::memory(tid, address, &mut bytes) != 16 {
        return None;
    }
    let half = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (half(8) < 1_000_000_000).then(|| Duration::new(half(0), half(8) as u32))
}

/// The bytes of a `struct flock`, as /proc/locks writes them; None where they are counted
/// from elsewhere than the file's beginning.
pub(crate) fn lock_range(tid: u32, address: u64) -> Option<String> {
    let mut bytes = [0u8; 24];
    if proc::memory(tid, address, &mut bytes) != bytes.len() {
        return None;
    }
    let long = |at: usize| i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let whence = i16::from_ne_bytes([bytes[2], bytes[3]]);
    if i32::from(whence) != libc::SEEK_SET {
        return None;
    }
    let (start, length) = (long(8), long(16));
    match length {
        0 => Some(format!("{start} EOF")),
        1.. => Some(format!("{start} {}", start.checked_add(length)? - 1)),
        _ => Some(format!("{} {}", start.checked_add(length)?, start - 1)),
    }
}

pub(crate) fn clock_now(clock: libc::clockid_t) -> Option<Duration> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a local of the right type.
    let done = unsafe { libc::clock_gettime(clock, &mut now) };
    (done == 0).then(|| Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

/// The call a thread is in, as far as may be read of its process. `named`: what a
/// descriptor is.
pub(crate) fn call_of(task: &Task, named: impl FnMut(u32) -> Option<String>) -> Option<Call> {
    let args = task.registers?.args;
    Some(told(task.tid, task.call()?, task.compat, &args, named))
}

fn told(
    tid: u32,
    number: i32,
    compat: bool,
    args: &[u64; 6],
    mut named: impl FnMut(u32) -> Option<String>,
) -> Call {
    let mut call = Call {
        name: syscall_name(number, compat).into_owned(),
        ..Call::default()
    };
    // The arguments of a 32-bit call lie in other registers.
    let arguments = arguments(number, compat, args).filter(|_| !compat);
    let mut directory = None;
    let mut tell = |argument: Argument| {
        let (value, mut text) = (argument.value, argument.text);
        let fd = u32::try_from(value as i32).ok();
        match argument.kind {
            ArgumentKind::Descriptor | ArgumentKind::Directory => {
                let what = fd.and_then(&mut named);
                if let Some(what) = &what {
                    text += &format!(" {}", printable_within(what, SHOWN_MAX));
                }
                if argument.kind == ArgumentKind::Directory {
                    directory = fd;
                } else if fd.is_some() && call.fd.is_none() && call.object.is_none() {
                    (call.fd, call.object) = (fd, what);
                }
            }
            ArgumentKind::Path => {
                if let Some(path) = path_at(tid, value) {
                    text = format!("\"{}\"", printable_within(&path, SHOWN_MAX));
                    if call.object.is_none() {
                        call.object = Some(absolute(tid, directory, &path));
                    }
                }
            }
            ArgumentKind::Milliseconds => {
                let ms = u64::try_from(value as i32).ok();
                call.limit = ms.map(|ms| Limit::After(Duration::from_millis(ms)));
            }
            ArgumentKind::Timespec => {
                if let Some(time) = timespec_at(tid, value) {
                    text = format!("{} s", time.as_secs_f64());
                    call.limit = limit(&call.name, args, time);
                }
            }
            _ => {}
        }
        format!("{}={text}", argument.name)
    };
    let shown = arguments.map(|list| list.into_iter().map(&mut tell).collect());
    call.args = shown;
    call
}

/// Whether a time is a length or a moment depends on the call.
fn limit(name: &str, args: &[u64; 6], time: Duration) -> Option<Limit> {
    let moment = |clock| {
        let now = clock_now(clock)?;
        Some(Limit::In(time.saturating_sub(now)))
    };
    match name {
        "clock_nanosleep" if args[1] & 1 != 0 => moment(args[0] as libc::clockid_t),
        // FUTEX_WAIT alone takes a length.
        "futex" if args[1] & 0x7f == 0 => Some(Limit::After(time)),
        "futex" if args[1] & 256 != 0 || args[1] & 0x7f == 6 => moment(libc::CLOCK_REALTIME),
        "futex" => moment(libc::CLOCK_MONOTONIC),
        "futex_wait" => moment(args[5] as libc::clockid_t),
        "futex_waitv" => moment(args[4] as libc::clockid_t),
        "mq_timedsend" | "mq_timedreceive" => moment(libc::CLOCK_REALTIME),
        // It is looked at after each message that came, and ends no wait for one.
        "recvmmsg" => None,
        _ => Some(Limit::After(time)),
    }
}

/// As seen from the process's root, without asking any file system.
fn absolute(tid: u32, directory: Option<u32>, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let base = match directory {
        Some(fd) => proc::descriptor(tid, fd),
        None => std::fs::read_link(format!("/proc/{tid}/cwd"))
            .ok()
            .map(|path| path.to_string_lossy().into_owned()),
    };
    match base {
        Some(base) if path.is_empty() => base,
        Some(base) => format!("{}/{path}", base.trim_end_matches('/')),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    fn told_here(number: i32, compat: bool, args: &[u64; 6]) -> Call {
        let pid = std::process::id();
        told(pid, number, compat, args, |fd| proc::descriptor(pid, fd))
    }

    /// Of a call that this process might be in.
    fn own(number: libc::c_long, args: [u64; 6]) -> Call {
        told_here(number as i32, false, &args)
    }

    #[test]
    fn arguments_are_told_with_what_they_stand_for() {
        let root = std::fs::File::open("/").unwrap();
        let fd = root.as_raw_fd() as u64;
        let call = own(libc::SYS_flock, [fd, 2, 0, 0, 0, 0]);
        assert_eq!(call.text(), format!("flock(fd={fd} /, operation=LOCK_EX)"));
        assert_eq!(call.fd, Some(fd as u32));
        assert_eq!(call.object.as_deref(), Some("/"));

        let path = c"etc/hostname";
        let args = [fd, path.as_ptr() as u64, libc::O_PATH as u64, 0, 0, 0];
        let call = own(libc::SYS_openat, args);
        assert_eq!(
            call.text(),
            format!("openat(dirfd={fd} /, pathname=\"etc/hostname\", flags=O_RDONLY|O_PATH)")
        );
        assert_eq!(call.fd, None);
        assert_eq!(call.object.as_deref(), Some("/etc/hostname"));

        // The writing end of sendfile is the one that makes it wait.
        let call = own(libc::SYS_sendfile, [fd, u64::MAX, 0, 1, 0, 0]);
        assert_eq!(
            call.text(),
            format!("sendfile(out_fd={fd} /, in_fd=-1, offset=NULL, count=1)")
        );
        assert_eq!(call.fd, Some(fd as u32));
    }

    #[test]
    fn what_is_not_known_is_left_open() {
        assert_eq!(own(libc::SYS_getppid, [1; 6]).text(), "getppid(...)");
        assert_eq!(own(libc::SYS_pause, [1; 6]).text(), "pause()");
        let compat = told_here(3, true, &[0; 6]);
        assert_eq!(compat.text(), "read(...)");
        // Nothing can be read at 8.
        assert_eq!(own(libc::SYS_rmdir, [8; 6]).text(), "rmdir(pathname=0x8)");
    }

    #[test]
    fn limits_are_lengths_or_moments() {
        let time = libc::timespec {
            tv_sec: 7,
            tv_nsec: 500_000_000,
        };
        let at = &raw const time as u64;
        let after = |ms| Some(Limit::After(Duration::from_millis(ms)));
        let call = own(libc::SYS_clock_nanosleep, [1, 0, at, 0, 0, 0]);
        assert_eq!(
            call.text(),
            "clock_nanosleep(clock=CLOCK_MONOTONIC, flags=0, request=7.5 s, remain=NULL)"
        );
        assert_eq!(call.limit, after(7500));
        // Long ago.
        let call = own(libc::SYS_clock_nanosleep, [0, 1, at, 0, 0, 0]);
        assert_eq!(call.limit, Some(Limit::In(Duration::ZERO)));
        let futex = |operation: u64| own(libc::SYS_futex, [8, operation, 0, at, 0, 0]).limit;
        assert_eq!(futex(128), after(7500));
        assert_eq!(futex(128 | 256 | 9), Some(Limit::In(Duration::ZERO)));
        // A number of waiters, though it may be an address as well.
        assert_eq!(futex(3), None);
        assert_eq!(own(libc::SYS_poll, [0, 0, 250, 0, 0, 0]).limit, after(250));
        assert_eq!(own(libc::SYS_poll, [0, 0, u64::MAX, 0, 0, 0]).limit, None);
        assert_eq!(own(libc::SYS_recvmmsg, [0, 0, 0, 0, at, 0]).limit, None);
    }
}
