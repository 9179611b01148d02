// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which call is a thread in, with which arguments, and on which object?
//!
//! Of a call that has not returned its descriptors are still what they were when it
//! began, unless another thread of the process closed them meanwhile. Numbers are
//! those of the 64-bit calls.

use std::time::Duration;

use debox_output::printable_within;
use debox_symbol::syscall_name;

use crate::proc;
use crate::task::Task;

/// Of a path that was passed.
const PATH_BYTES_MAX: usize = 4096;
const SHOWN_MAX: usize = 200;

/// What an argument is: `f` descriptor, `d` directory of a path, `p` path, `x` address
/// or bits, `n` number with a sign, `i` the same of 32 bits, `u` without, `t` a timespec, `m` milliseconds;
/// the other letters are sets of names below.
const CALLS: &[(&str, &str)] = &[
    ("accept", "fxx"),
    ("accept4", "fxxx"),
    ("clock_nanosleep", "CNtx"),
    ("close", "f"),
    ("connect", "fxu"),
    ("copy_file_range", "fxfxux"),
    ("epoll_pwait", "fxim"),
    ("epoll_pwait2", "fxit"),
    ("epoll_wait", "fxim"),
    ("fallocate", "fxnn"),
    ("fcntl", "fLx"),
    ("fdatasync", "f"),
    ("flock", "fK"),
    ("fstat", "fx"),
    ("fsync", "f"),
    ("ftruncate", "fn"),
    ("futex", "xFutxx"),
    ("getdents64", "fxu"),
    ("io_getevents", "xnnxt"),
    ("io_uring_enter", "fuux"),
    ("ioctl", "fxx"),
    ("linkat", "dpdpx"),
    ("lseek", "fnn"),
    ("lstat", "px"),
    ("mkdir", "px"),
    ("mkdirat", "dpx"),
    ("mmap", "xuxxfx"),
    ("msgrcv", "ixunx"),
    ("msgsnd", "ixux"),
    ("nanosleep", "tx"),
    ("newfstatat", "dpxx"),
    ("open", "px"),
    ("openat", "dpx"),
    ("pause", ""),
    ("poll", "xum"),
    ("ppoll", "xut"),
    ("pread64", "fxun"),
    ("preadv", "fxun"),
    ("pselect6", "ixxxt"),
    ("pwrite64", "fxun"),
    ("pwritev", "fxun"),
    ("read", "fxu"),
    ("readv", "fxu"),
    ("recvfrom", "fxux"),
    ("recvmmsg", "fxux"),
    ("recvmsg", "fxx"),
    ("rename", "pp"),
    ("renameat2", "dpdpx"),
    ("rmdir", "p"),
    ("rt_sigsuspend", "x"),
    ("rt_sigtimedwait", "xxt"),
    ("select", "ixxxx"),
    ("semop", "ixu"),
    ("semtimedop", "ixut"),
    ("sendfile", "ffxu"),
    ("sendmsg", "fxx"),
    ("sendto", "fxux"),
    ("splice", "fxfxux"),
    ("stat", "px"),
    ("statx", "dpxx"),
    ("sync", ""),
    ("syncfs", "f"),
    ("unlink", "p"),
    ("unlinkat", "dpx"),
    ("vfork", ""),
    ("wait4", "ixWx"),
    ("waitid", "Iuxx"),
    ("write", "fxu"),
    ("writev", "fxu"),
];

/// One call that has not returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub number: i32,
    pub name: String,
    /// As they are shown; empty if it is not known what they are.
    pub args: Vec<String>,
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
        if self.args.is_empty() && arguments(&self.name).is_none() {
            return format!("{}(...)", self.name);
        }
        format!("{}({})", self.name, self.args.join(", "))
    }
}

fn arguments(name: &str) -> Option<&'static str> {
    let at = CALLS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    Some(CALLS[at].1)
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

fn clock_now(clock: libc::clockid_t) -> Option<Duration> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a local of the right type.
    let done = unsafe { libc::clock_gettime(clock, &mut now) };
    (done == 0).then(|| Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

fn named(value: u64, names: &[(u64, &str)]) -> Option<String> {
    names
        .iter()
        .find(|(number, _)| *number == value)
        .map(|(_, name)| (*name).to_owned())
}

fn flock_text(value: u64) -> String {
    let kind = match value & 7 {
        1 => "LOCK_SH",
        2 => "LOCK_EX",
        _ => return format!("{value:#x}"),
    };
    kind.to_owned()
}

fn clock_text(value: u64) -> String {
    let names = [
        (0, "CLOCK_REALTIME"),
        (1, "CLOCK_MONOTONIC"),
        (7, "CLOCK_BOOTTIME"),
        (11, "CLOCK_TAI"),
    ];
    named(value, &names).unwrap_or_else(|| value.to_string())
}

fn futex_text(value: u64) -> String {
    let names = [
        (0, "FUTEX_WAIT"),
        (6, "FUTEX_LOCK_PI"),
        (9, "FUTEX_WAIT_BITSET"),
        (11, "FUTEX_WAIT_REQUEUE_PI"),
        (13, "FUTEX_LOCK_PI2"),
    ];
    let mut text = named(value & 0x7f, &names).unwrap_or_else(|| format!("{:#x}", value & 0x7f));
    if value & 128 != 0 {
        text.push_str("|PRIVATE");
    }
    if value & 256 != 0 {
        text.push_str("|REALTIME");
    }
    text
}

fn fcntl_text(value: u64) -> String {
    let names = [(7, "F_SETLKW"), (38, "F_OFD_SETLKW"), (1024, "F_SETLEASE")];
    named(value, &names).unwrap_or_else(|| value.to_string())
}

fn waited_text(value: u64) -> String {
    let names = [(0, "P_ALL"), (1, "P_PID"), (2, "P_PGID"), (3, "P_PIDFD")];
    named(value, &names).unwrap_or_else(|| value.to_string())
}

fn wait_options_text(value: u64) -> String {
    let mut names = Vec::new();
    for (bit, name) in [(2, "WUNTRACED"), (8, "WCONTINUED")] {
        if value & bit != 0 {
            names.push(name);
        }
    }
    match (&names[..], value) {
        ([], 0) => "0".into(),
        ([], _) => format!("{value:#x}"),
        (names, _) => names.join("|"),
    }
}

/// The call a thread is in, as far as may be read of its process.
pub(crate) fn call_of(task: &Task) -> Option<Call> {
    let number = task.call()?;
    let args = task.registers?.args;
    let name = syscall_name(number, task.compat).into_owned();
    let mut call = Call {
        number,
        name: name.clone(),
        ..Call::default()
    };
    // The arguments of a 32-bit call lie in other registers.
    let kinds = arguments(&name).filter(|_| !task.compat);
    let tid = task.tid;
    let mut directory = None;
    for (kind, value) in kinds.unwrap_or_default().chars().zip(args) {
        let text = match kind {
            'f' if (value as i32) < 0 => (value as i32).to_string(),
            'f' => {
                let fd = value as u32;
                let what = proc::descriptor(tid, fd);
                let text = what.as_deref().map_or_else(
                    || fd.to_string(),
                    |what| format!("{fd} {}", printable_within(what, SHOWN_MAX)),
                );
                if call.fd.is_none() && call.object.is_none() {
                    call.fd = Some(fd);
                    call.object = what;
                }
                text
            }
            'd' => {
                let fd = value as i32;
                directory = Some(fd);
                if fd == libc::AT_FDCWD {
                    "AT_FDCWD".into()
                } else {
                    fd.to_string()
                }
            }
            'p' => match path_at(tid, value) {
                Some(path) => {
                    if call.object.is_none() {
                        call.object = Some(absolute(tid, directory, &path));
                    }
                    format!("\"{}\"", printable_within(&path, SHOWN_MAX))
                }
                None => format!("{value:#x}"),
            },
            'n' => (value as i64).to_string(),
            'i' => (value as i32).to_string(),
            'u' => value.to_string(),
            'm' => {
                let ms = value as i32;
                if ms >= 0 {
                    call.limit = Some(Limit::After(Duration::from_millis(ms as u64)));
                }
                ms.to_string()
            }
            't' => match timespec_at(tid, value) {
                Some(time) => {
                    call.limit = limit(&name, &args, time);
                    format!("{} s", time.as_secs_f64())
                }
                None if value == 0 => "NULL".into(),
                None => format!("{value:#x}"),
            },
            'C' => clock_text(value),
            'N' => named(value, &[(1, "TIMER_ABSTIME")]).unwrap_or_else(|| value.to_string()),
            'F' => futex_text(value),
            'K' => flock_text(value),
            'L' => fcntl_text(value),
            'I' => waited_text(value),
            'W' => wait_options_text(value),
            _ if value == 0 => "0".into(),
            _ => format!("{value:#x}"),
        };
        call.args.push(text);
    }
    Some(call)
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
        _ => Some(Limit::After(time)),
    }
}

/// As seen from the process's root, without asking any file system.
fn absolute(tid: u32, directory: Option<i32>, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let base = match directory {
        Some(fd) if fd >= 0 => proc::descriptor(tid, fd as u32),
        _ => std::fs::read_link(format!("/proc/{tid}/cwd"))
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

    #[test]
    fn the_table_is_sorted_and_names_calls_that_exist() {
        assert!(CALLS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (name, kinds) in CALLS {
            assert!(debox_symbol::syscall_number(name).is_some(), "{name}");
            assert!(kinds.len() <= 6, "{name}");
        }
    }

    #[test]
    fn flags_have_names() {
        assert_eq!(
            futex_text(128 | 256 | 9),
            "FUTEX_WAIT_BITSET|PRIVATE|REALTIME"
        );
        assert_eq!(flock_text(2), "LOCK_EX");
        assert_eq!(fcntl_text(7), "F_SETLKW");
        assert_eq!(wait_options_text(0), "0");
        assert_eq!(wait_options_text(2 | 8), "WUNTRACED|WCONTINUED");
        assert_eq!(clock_text(1), "CLOCK_MONOTONIC");
    }
}
