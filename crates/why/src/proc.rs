// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the files of /proc say?
//!
//! A process may be gone at any moment: what is not there is left empty.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

use crate::task::{Asleep, Registers, State, Task};

/// Threads and descriptors of one process that are looked at.
const ENTRIES_MAX: usize = 65_536;

pub(crate) fn numbers_in(directory: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take(ENTRIES_MAX)
        .collect()
}

pub(crate) fn read(path: &str) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a descriptor is, as the kernel writes it: a path, `pipe:[123]`.
pub(crate) fn descriptor(tid: u32, fd: u32) -> Option<String> {
    let link = fs::read_link(format!("/proc/{tid}/fd/{fd}")).ok()?;
    Some(String::from_utf8_lossy(link.as_os_str().as_bytes()).into_owned())
}

/// What the kernel tells of an open descriptor: `flags`, `mnt_id` and the like.
pub(crate) fn fdinfo(tid: u32, fd: u32) -> Option<String> {
    read(&format!("/proc/{tid}/fdinfo/{fd}"))
}

/// A field `name: value` of a file with such lines.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// `pipe:[123]`, `socket:[123]`.
pub(crate) fn bracketed(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?
        .strip_prefix(":[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// The user that owns a process, as far as may be known.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|m| m.uid())
}

/// The process of a thread.
pub(crate) fn process_of(tid: u32) -> Option<u32> {
    field(&read(&format!("/proc/{tid}/status"))?, "Tgid")?
        .parse()
        .ok()
}

/// The file name of its program; empty if it may not be known.
pub(crate) fn executable(pid: u32) -> String {
    fs::read_link(format!("/proc/{pid}/exe"))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default()
}

/// Whether this process may read of it what ptrace's access for reading gives. Kernel
/// threads have no secrets that those files would show.
pub fn may_read(pid: u32) -> bool {
    match fs::read(format!("/proc/{pid}/syscall")) {
        Err(error) => !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)),
        Ok(_) => true,
    }
}

/// One mapping of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: u64,
    pub end: u64,
    pub executable: bool,
    pub shared: bool,
    pub offset: u64,
    /// "major:minor" as the file has it.
    pub device: String,
    pub inode: u64,
    pub path: String,
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?;
    let offset = words.next()?;
    let device = words.next()?;
    let inode = words.next()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        executable: access.contains('x'),
        shared: access.ends_with('s'),
        offset: hex(offset)?,
        device: device.to_owned(),
        inode: inode.parse().ok()?,
        path: words.next().unwrap_or_default().trim_start().to_owned(),
    })
}

pub(crate) fn mappings(pid: u32) -> Vec<Mapping> {
    read(&format!("/proc/{pid}/maps"))
        .unwrap_or_default()
        .lines()
        .filter_map(mapping)
        .collect()
}

/// Memory of another process; what of it can be read, from its beginning.
pub(crate) fn memory(tid: u32, address: u64, into: &mut [u8]) -> usize {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the local vector is `into`; the remote one is only an address there.
    let got = unsafe { libc::process_vm_readv(tid as libc::pid_t, &local, 1, &remote, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}

pub(crate) fn memory_words<const N: usize>(tid: u32, address: u64) -> Option<[u32; N]> {
    let mut bytes = vec![0u8; 4 * N];
    if memory(tid, address, &mut bytes) != bytes.len() {
        return None;
    }
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_ne_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}

/// Of /proc/PID/stat: the name may contain anything, so it is read from its end.
struct Stat {
    comm: String,
    state: char,
    parent: u32,
    kernel: bool,
    cpu: u32,
}

fn stat(text: &str) -> Option<Stat> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let rest: Vec<&str> = text[close + 1..].split_ascii_whitespace().collect();
    let number = |at: usize| rest.get(at).and_then(|word| word.parse::<u64>().ok());
    Some(Stat {
        comm: text.get(open + 1..close)?.to_owned(),
        state: rest.first()?.chars().next()?,
        parent: number(1)? as u32,
        kernel: number(6)? & 0x0020_0000 != 0,
        cpu: number(36).unwrap_or(0) as u32,
    })
}

fn state(letter: char, cpu: u32, running: bool) -> State {
    match letter {
        'R' if running => State::Running { cpu },
        'R' => State::Queued { cpu },
        'D' => State::Uninterruptible,
        'I' | 'P' => State::Idle,
        'T' => State::Stopped,
        't' => State::Traced,
        'Z' => State::Zombie,
        'X' | 'x' => State::Dead,
        _ => State::Asleep,
    }
}

/// "running", "-1 SP IP", or "NUMBER ARGUMENTS SP IP".
fn registers(text: &str) -> Option<Registers> {
    let mut words = text.split_ascii_whitespace();
    let call: i64 = words.next()?.parse().ok()?;
    let numbers: Vec<u64> = words
        .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    let mut args = [0; 6];
    let rest = match &numbers[..] {
        [a, b, c, d, e, f, rest @ ..] => {
            args = [*a, *b, *c, *d, *e, *f];
            rest
        }
        rest => rest,
    };
    Some(Registers {
        call: i32::try_from(call).ok().filter(|call| *call >= 0),
        args,
        sp: *rest.first()?,
        ip: *rest.get(1)?,
        bp: 0,
    })
}

/// Milliseconds with a fraction, as /proc/PID/sched has them.
fn sched_ns(text: &str) -> Option<u64> {
    let value = text
        .lines()
        .find(|line| line.starts_with("se.exec_start "))?
        .split_once(':')?
        .1
        .trim();
    let (ms, ns) = value.split_once('.')?;
    Some(ms.parse::<u64>().ok()? * 1_000_000 + ns.parse::<u64>().ok()?)
}

/// `[<0>] futex_wait+0x1/0x2`, innermost first.
fn functions(stack: &str) -> Vec<String> {
    stack
        .lines()
        .filter_map(|line| {
            let name = line.split_once("] ")?.1;
            Some(
                name.split_once('+')
                    .map_or(name, |(name, _)| name)
                    .to_owned(),
            )
        })
        .collect()
}

/// All that /proc tells of a thread without stopping it.
pub(crate) fn task(pid: u32, tid: u32) -> Option<Task> {
    let at = |name: &str| read(&format!("/proc/{pid}/task/{tid}/{name}"));
    let stat = stat(&at("stat")?)?;
    let call = at("syscall");
    let running = call
        .as_deref()
        .is_some_and(|text| text.starts_with("running"));
    let state = state(stat.state, stat.cpu, running);
    let mut functions = at("stack").as_deref().map(functions).unwrap_or_default();
    if functions.is_empty() {
        functions.extend(at("wchan").filter(|name| !name.is_empty() && name != "0"));
    }
    let tracer = at("status")
        .and_then(|text| field(&text, "TracerPid")?.parse().ok())
        .unwrap_or(0);
    let now = read("/proc/thread-self/sched")
        .as_deref()
        .and_then(sched_ns);
    let ran = at("sched").as_deref().and_then(sched_ns);
    Some(Task {
        pid,
        tid,
        parent: stat.parent,
        tracer,
        comm: stat.comm,
        kernel: stat.kernel,
        compat: false,
        since: match (now, ran) {
            (Some(now), Some(ran)) if ran != 0 && state.waits() => Some(Asleep {
                ns: now.saturating_sub(ran),
                // Both are of a clock that stands still at times.
                at_least: true,
            })
            .filter(Asleep::says_something),
            _ => None,
        },
        registers: call
            .as_deref()
            .filter(|_| !matches!(state, State::Zombie | State::Dead))
            .and_then(registers),
        state,
        memory: 0,
        lock: None,
        found: None,
        stack: Vec::new(),
        functions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_a_line_of_its_own() {
        let line = format!(
            "7 (a) R 1 (b) S 3{} 77 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0",
            " 0".repeat(17)
        );
        let stat = stat(&line).unwrap();
        assert_eq!((stat.comm.as_str(), stat.state), ("a) R 1 (b", 'S'));
        assert_eq!((stat.parent, stat.cpu), (3, 1));
        assert!(super::stat("").is_none() && super::stat("1 )(").is_none());
    }

    #[test]
    fn calls_are_read_with_their_arguments() {
        let inside = registers("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ff0 0x4000\n").unwrap();
        assert_eq!(inside.call, Some(202));
        assert_eq!(inside.args, [1, 2, 3, 4, 5, 6]);
        assert_eq!((inside.sp, inside.ip), (0x7ff0, 0x4000));
        let outside = registers("-1 0x7ff0 0x4000").unwrap();
        assert_eq!((outside.call, outside.sp), (None, 0x7ff0));
        assert_eq!(registers("running"), None);
    }

    #[test]
    fn stacks_lose_their_addresses() {
        let text = "[<0>] do_wait+0x5f/0x150\n[<0>] kernel_wait4+0xaf/0x150\n";
        assert_eq!(functions(text), ["do_wait", "kernel_wait4"]);
    }

    #[test]
    fn mappings_keep_spaces_in_paths() {
        let found = mapping("7f00-7f10 r-xs 00001000 fe:01 55   /tmp/a b").unwrap();
        assert_eq!(found.path, "/tmp/a b");
        assert!(found.executable && found.shared);
        assert_eq!((found.offset, found.inode), (0x1000, 55));
    }
}
