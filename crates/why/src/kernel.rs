// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the kernel itself say of all threads and their files?
//!
//! `bpf/why.bpf.c`, loaded, read and gone. Needs CAP_BPF and CAP_PERFMON.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link};

use crate::task::{Asleep, FoundLock, KernelLock, LockKind, Registers, State, Task};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    unreachable_pub,
    missing_docs
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/why.skel.rs"));
}

use skel::types::{why_file, why_task};

const KTHREAD: u32 = 1;
const ON_CPU: u32 = 2;
const COMPAT: u32 = 4;

/// Of `enum why_lock`.
const LOCK_FOUND: u32 = 5;

const INTERRUPTIBLE: u32 = 1;
const UNINTERRUPTIBLE: u32 = 2;
const STOPPED: u32 = 4;
const TRACED: u32 = 8;
const PARKED: u32 = 0x40;
const NOLOAD: u32 = 0x400;
const EXIT_DEAD: u32 = 0x10;

/// Both can be off by as much: below it nothing is said of it.
const SINCE_UNSURE: Duration = Duration::from_millis(10);

/// An end of a pipe or socket, or a connection of a FUSE server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenFile {
    pub pid: u32,
    pub tid: u32,
    pub fd: u32,
    pub ino: u64,
    /// As of open(): who may read, who may write.
    pub flags: u32,
    pub kind: FileKind,
}

/// `127.0.0.1:80`, `[::1]:80`.
pub(crate) fn address_text((address, port): (IpAddr, u16)) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

impl OpenFile {
    /// Of an internet socket, its own address and with whom it is connected.
    pub fn addresses(&self) -> Option<String> {
        let FileKind::Inet {
            listens,
            stream,
            own,
            peer,
            ..
        } = &self.kind
        else {
            return None;
        };
        let kind = if *stream { "tcp" } else { "udp" };
        let mut text = format!("{kind} {}", address_text(*own));
        if !listens && peer.1 != 0 {
            text += &format!(" with {}", address_text(*peer));
        }
        Some(text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Pipe,
    /// The other end's inode; 0 if there is none, or nobody has it open yet.
    Unix {
        peer: u64,
        listens: bool,
    },
    Inet {
        net: u32,
        listens: bool,
        stream: bool,
        own: (IpAddr, u16),
        peer: (IpAddr, u16),
    },
    /// Netlink and the like.
    Socket,
    /// The device number of the file systems that it serves.
    Fuse {
        device: u32,
    },
}

pub(crate) struct Seen {
    pub tasks: Vec<Task>,
    pub files: Vec<OpenFile>,
    /// There were not more than are looked at.
    pub complete: bool,
}

/// Why the kernel was not asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{0}")]
    Bpf(#[from] libbpf_rs::Error),
    #[error("reading the iterator: {0}")]
    Read(#[from] io::Error),
}

/// What is read of either iterator: somebody can have started and opened as much as
/// the machine's limits let him.
const BYTES_MAX: usize = 128 << 20;

/// All of it, or its beginning.
fn read(link: &Link) -> Result<(Vec<u8>, bool), Refused> {
    let mut iter = Iter::new(link)?;
    let mut bytes = Vec::new();
    let mut part = vec![0u8; 1 << 16];
    loop {
        match iter.read(&mut part) {
            Ok(0) => return Ok((bytes, true)),
            Ok(_) if bytes.len() >= BYTES_MAX => return Ok((bytes, false)),
            Ok(got) => bytes.extend_from_slice(&part[..got]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// As the iterator wrote them, one after the other.
fn records<T: Copy>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    bytes.chunks_exact(size_of::<T>()).map(|chunk| {
        // SAFETY: as many bytes as a T has, written by our own BPF program from a
        // struct of the same definition, all of whose bit patterns are values.
        unsafe { chunk.as_ptr().cast::<T>().read_unaligned() }
    })
}

/// The scheduler's clock, just now: the time at which this thread got its CPU after a
/// sleep of no length.
fn moment_make() {
    std::thread::sleep(Duration::from_nanos(1));
}

pub(crate) fn own_tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() as u32 }
}

/// One look at all threads, and at the files through which they wait for each other.
pub(crate) fn look() -> Result<Seen, Refused> {
    let mut place = MaybeUninit::uninit();
    let skel = skel::WhySkelBuilder::default().open(&mut place)?.load()?;
    let tasks = skel.progs.why_tasks.attach()?;
    let files = skel.progs.why_files.attach()?;
    moment_make();
    let (tasks, all_tasks) = read(&tasks)?;
    let (files, all_files) = read(&files)?;
    let own = own_tid();
    let now = records::<why_task>(&tasks)
        .find(|task| task.tid == own)
        .map_or(0, |task| task.last_arrival);
    // The order in which processes open and close does not matter, the first thread
    // that has a table of files stands for all that share it.
    Ok(Seen {
        tasks: records::<why_task>(&tasks)
            .map(|task| task_of(&task, now))
            .collect(),
        files: records::<why_file>(&files)
            .map(|file| file_of(&file))
            .collect(),
        complete: all_tasks && all_files,
    })
}

fn text(bytes: &[std::os::raw::c_char; 16]) -> String {
    let bytes: Vec<u8> = bytes
        .iter()
        .map(|byte| *byte as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn state_of(task: &why_task) -> State {
    let running = task.flags & ON_CPU != 0;
    match task.state {
        _ if task.exit_state & EXIT_DEAD != 0 => State::Dead,
        _ if task.exit_state != 0 => State::Zombie,
        _ if running => State::Running { cpu: task.cpu },
        0 => State::Queued { cpu: task.cpu },
        state if state & TRACED != 0 => State::Traced,
        state if state & STOPPED != 0 => State::Stopped,
        state if state & INTERRUPTIBLE != 0 => State::Asleep,
        state if state & UNINTERRUPTIBLE != 0 && state & NOLOAD != 0 => State::Idle,
        state if state & PARKED != 0 => State::Idle,
        _ => State::Uninterruptible,
    }
}

/// Since when it is off its CPU. It got that at `last_arrival` and ran for `ran`; it ran
/// last at `exec_start` of a clock that stands still while interrupts and other guests
/// have the CPU: how much those had since the machine started is known, how much of it
/// before then is not.
fn since_of(task: &why_task, now: u64) -> Option<Asleep> {
    if now == 0 {
        return None;
    }
    if task.state == 0 && task.last_queued != 0 {
        return Some(Asleep {
            ns: now.saturating_sub(task.last_queued),
            at_least: false,
        });
    }
    let earliest = task.exec_start.max(task.last_arrival).min(now);
    if earliest == 0 {
        return None;
    }
    let taken = task.clock.saturating_sub(task.clock_task);
    let latest = task.exec_start.saturating_add(taken).clamp(earliest, now);
    let told = task.last_arrival.saturating_add(task.ran);
    let known = task.ran != u64::MAX && task.last_arrival != 0;
    let from = if known {
        told.clamp(earliest, latest)
    } else {
        latest
    };
    let ns = now - from;
    let unsure = if known { 0 } else { latest - earliest };
    let at_least = unsure > (SINCE_UNSURE.as_nanos() as u64).max(ns / 100);
    Some(Asleep { ns, at_least }).filter(Asleep::says_something)
}

fn task_of(task: &why_task, now: u64) -> Task {
    let state = state_of(task);
    let kernel = task.flags & KTHREAD != 0;
    let registers = (!kernel).then_some(Registers {
        // Of who runs these are those of its last entry, whenever that was; who has ended is
        // in no call.
        call: (!matches!(state, State::Running { .. } | State::Zombie | State::Dead))
            .then_some(task.ax as i64)
            .filter(|call| *call >= 0)
            .map(|call| call as i32),
        args: task.arg,
        ip: task.ip,
        sp: task.sp,
        bp: task.bp,
    });
    let number = |tid: u32| (tid != 0).then_some(tid);
    let kind = match task.lock {
        1 => Some(LockKind::Mutex),
        2 => Some(LockKind::Semaphore),
        3 => Some(LockKind::Rwsem),
        4 => Some(LockKind::RtMutex),
        _ => None,
    };
    Task {
        pid: task.pid,
        tid: task.tid,
        parent: task.parent,
        tracer: task.tracer,
        comm: text(&task.comm),
        kernel,
        compat: task.flags & COMPAT != 0,
        since: match state {
            State::Running { .. } | State::Zombie | State::Dead => None,
            _ => since_of(task, now),
        },
        state,
        registers,
        memory: task.mm,
        lock: kind.map(|kind| KernelLock {
            kind,
            owner: number(task.lock_owner),
            readers: task.lock_readers != 0,
        }),
        found: (task.lock == LOCK_FOUND).then(|| FoundLock {
            mutex_owner: number(task.lock_owner),
            rwsem_owner: number(task.rwsem_owner),
            rwsem_readers: task.rwsem_readers != 0,
            code: task.code[..(task.codes as usize).min(task.code.len())].to_vec(),
        }),
        stack: task.frame[..(task.frames as usize).min(task.frame.len())].to_vec(),
        functions: Vec::new(),
    }
}

fn address(family: u16, bytes: [u8; 16]) -> IpAddr {
    if i32::from(family) == libc::AF_INET {
        return Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into();
    }
    let v6 = Ipv6Addr::from(bytes);
    // A connection of IPv4 through a socket of IPv6 is the same connection.
    v6.to_ipv4_mapped().map_or(v6.into(), IpAddr::from)
}

fn file_of(file: &why_file) -> OpenFile {
    /// TCP_LISTEN of the kernel's states.
    const LISTEN: u32 = 10;
    let kind = match file.mode & libc::S_IFMT {
        libc::S_IFIFO => FileKind::Pipe,
        libc::S_IFCHR => FileKind::Fuse {
            device: file.fuse_device,
        },
        _ => match i32::from(file.family) {
            libc::AF_UNIX => FileKind::Unix {
                peer: file.peer_ino,
                listens: file.socket_state == LISTEN,
            },
            libc::AF_INET | libc::AF_INET6 => FileKind::Inet {
                net: file.net,
                listens: file.socket_state == LISTEN,
                stream: i32::from(file.r#type) == libc::SOCK_STREAM,
                own: (address(file.family, file.address), file.port),
                peer: (address(file.family, file.peer_address), file.peer_port),
            },
            _ => FileKind::Socket,
        },
    };
    OpenFile {
        pid: file.pid,
        tid: file.tid,
        fd: file.fd,
        ino: file.ino,
        flags: file.flags,
        kind,
    }
}

/// By process and descriptor.
pub(crate) fn files_by_descriptor(files: &[OpenFile]) -> HashMap<(u32, u32), usize> {
    let mut found = HashMap::new();
    for (at, file) in files.iter().enumerate() {
        found.entry((file.pid, file.fd)).or_insert(at);
    }
    found
}
