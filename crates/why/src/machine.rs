// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is there, who has which end of a pipe or socket open, and on whose file
//! systems?

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use debox_labels::Rules;
use debox_symbol::{KernelSymbols, SymbolOptions, SymbolSources, UNKNOWN_FUNCTION};

use crate::kernel::{self, FileKind, OpenFile};
use crate::proc;
use crate::task::{State, Task};

/// The PID namespace in which all processes are seen.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

pub(crate) struct Machine {
    tasks: Vec<Task>,
    by_tid: HashMap<u32, usize>,
    by_pid: HashMap<u32, Vec<usize>>,
    files: Option<Files>,
    /// All processes are seen, with all that they have open.
    pub sees_all: bool,
    /// Where the kernel was not asked, and /proc was, what kept it: "could not be asked (...)".
    pub refused: Option<String>,
    symbols: Option<KernelSymbols>,
    pub rules: Rules,
    pub notes: Vec<String>,
    loaded: HashSet<u32>,
    /// Of processes in other PID namespaces: threads by their numbers there.
    own_numbers: HashMap<u32, HashMap<u32, u32>>,
}

struct Files {
    list: Vec<OpenFile>,
    by_fd: HashMap<(u32, u32), usize>,
    by_ino: HashMap<u64, Vec<usize>>,
    /// By the network and both addresses, own first.
    by_address: HashMap<Connection, Vec<usize>>,
}

type Connection = (u32, (IpAddr, u16), (IpAddr, u16));

impl Files {
    fn new(list: Vec<OpenFile>) -> Files {
        let mut by_ino: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut by_address: HashMap<Connection, Vec<usize>> = HashMap::new();
        for (at, file) in list.iter().enumerate() {
            by_ino.entry(file.ino).or_default().push(at);
            if let FileKind::Inet { net, own, peer, .. } = &file.kind {
                let connection = (*net, *own, *peer);
                by_address.entry(connection).or_default().push(at);
            }
        }
        Files {
            by_fd: kernel::files_by_descriptor(&list),
            by_ino,
            by_address,
            list,
        }
    }

    fn at(&self, places: Option<&Vec<usize>>) -> impl Iterator<Item = &OpenFile> {
        let places = places.map(Vec::as_slice).unwrap_or_default();
        places.iter().map(|at| &self.list[*at])
    }
}

/// Each process once.
fn pids_of<'a>(files: impl Iterator<Item = &'a OpenFile>) -> Vec<u32> {
    let pids: BTreeSet<u32> = files.map(|file| file.pid).collect();
    pids.into_iter().collect()
}

impl Machine {
    /// `kernel`: ask it, where that is allowed. Else, and of the processes that are
    /// asked about, /proc tells what it may.
    pub fn look(kernel: bool, rules: Rules) -> Machine {
        let mut machine = Machine {
            tasks: Vec::new(),
            by_tid: HashMap::new(),
            by_pid: HashMap::new(),
            files: None,
            sees_all: false,
            refused: None,
            symbols: None,
            rules,
            notes: Vec::new(),
            loaded: HashSet::new(),
            own_numbers: HashMap::new(),
        };
        let seen = if kernel {
            kernel::look().map_err(|error| {
                let error = error.to_string();
                format!("could not be asked ({})", error.trim_end_matches('.'))
            })
        } else {
            Err("was not asked, which takes CAP_BPF and CAP_PERFMON".into())
        };
        match seen {
            Ok(seen) => {
                if !seen.complete {
                    machine.notes.push(
                        "there are more threads or open files than are looked at, so some \
                         holders and ends of pipes may be missing"
                            .into(),
                    );
                }
                machine.sees_all = seen.complete
                    && std::fs::read_link("/proc/self/ns/pid")
                        .is_ok_and(|link| link.as_os_str() == FIRST_PID_NAMESPACE);
                machine.files = Some(Files::new(seen.files));
                for task in seen.tasks {
                    machine.add(task);
                }
                // Lines are not shown, and a vmlinux with them takes long to read.
                let sources = SymbolSources {
                    vmlinux_search: Vec::new(),
                    ..SymbolSources::default()
                };
                match KernelSymbols::open_from(sources, SymbolOptions::default()) {
                    Ok(symbols) => machine.symbols = Some(symbols),
                    Err(error) => machine
                        .notes
                        .push(format!("kernel functions have no names: {error}")),
                }
            }
            Err(why) => {
                machine.refused = Some(why);
                for pid in proc::numbers_in("/proc") {
                    if let Some(task) = proc::task(pid, pid) {
                        machine.add(task);
                    }
                }
            }
        }
        machine
    }

    fn add(&mut self, task: Task) {
        // A thread that was seen twice is the later one.
        if let Some(at) = self.by_tid.get(&task.tid) {
            self.tasks[*at] = task;
            return;
        }
        self.by_tid.insert(task.tid, self.tasks.len());
        self.by_pid
            .entry(task.pid)
            .or_default()
            .push(self.tasks.len());
        self.tasks.push(task);
    }

    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    pub fn task(&self, tid: u32) -> Option<&Task> {
        self.by_tid.get(&tid).map(|at| &self.tasks[*at])
    }

    /// The first thread, which has the process's name.
    pub fn leader(&self, pid: u32) -> Option<&Task> {
        self.task(pid)
            .filter(|task| task.pid == pid)
            .or_else(|| self.by_pid.get(&pid).map(|all| &self.tasks[all[0]]))
    }

    pub fn running_on(&self, cpu: u32) -> Option<u32> {
        self.tasks
            .iter()
            .find(|task| task.state == State::Running { cpu })
            .map(|task| task.tid)
    }

    /// All threads of a process that have not ended.
    pub fn threads(&mut self, pid: u32) -> Vec<u32> {
        // Of what the kernel does not show its iterators (it may protect a process), /proc tells.
        let is_shown = self.refused.is_none() && self.by_pid.contains_key(&pid);
        if !is_shown && self.loaded.insert(pid) {
            for tid in proc::numbers_in(&format!("/proc/{pid}/task")) {
                if let Some(task) = proc::task(pid, tid) {
                    self.add(task);
                }
            }
        }
        let all = self.by_pid.get(&pid).map(Vec::as_slice).unwrap_or_default();
        let mut threads: Vec<u32> = all
            .iter()
            .map(|at| &self.tasks[*at])
            .filter(|task| !matches!(task.state, State::Zombie | State::Dead))
            .map(|task| task.tid)
            .collect();
        threads.sort_unstable();
        threads
    }

    /// Its children, whichever of its threads started them.
    pub fn children(&self, pid: u32) -> Vec<&Task> {
        let mut found: Vec<&Task> = self
            .tasks
            .iter()
            .filter(|task| {
                task.tid == task.pid
                    && task.parent == pid
                    && !matches!(task.state, State::Zombie | State::Dead)
            })
            .collect();
        found.sort_by_key(|task| task.pid);
        found
    }

    /// Looks the functions of its stack up.
    pub fn functions_name(&mut self, tid: u32) {
        let Some(at) = self.by_tid.get(&tid).copied() else {
            return;
        };
        let task = &self.tasks[at];
        if !task.functions.is_empty() {
            return;
        }
        let Some(symbols) = &self.symbols else { return };
        let lock = task.found.as_ref().and_then(|found| {
            let names: Vec<String> = found
                .code
                .iter()
                .filter_map(|address| Some(symbols.frame(*address)?.function))
                .collect();
            found.kind(names.iter().map(String::as_str))
        });
        let functions = task
            .stack
            .iter()
            .map(|address| {
                symbols
                    .frame(*address)
                    .map_or_else(|| UNKNOWN_FUNCTION.to_owned(), |frame| frame.function)
            })
            .collect();
        self.tasks[at].functions = functions;
        self.tasks[at].lock = self.tasks[at].lock.or(lock);
    }

    /// Pipes, sockets and FUSE connections that are open.
    fn files(&mut self) -> &Files {
        self.files
            .get_or_insert_with(|| Files::new(pipes_of_proc()))
    }

    pub fn file(&mut self, pid: u32, fd: u32) -> Option<OpenFile> {
        let files = self.files();
        let at = files.by_fd.get(&(pid, fd))?;
        Some(files.list[*at].clone())
    }

    /// What a descriptor is: as the kernel writes it, but an internet socket by its
    /// addresses, where they are known.
    pub fn descriptor(&mut self, task: &Task, fd: u32) -> Option<String> {
        let link = proc::descriptor(task.tid, fd)?;
        let addresses = match proc::bracketed(&link, "socket") {
            Some(_) => self.file(task.pid, fd).and_then(|file| file.addresses()),
            None => None,
        };
        Some(addresses.unwrap_or(link))
    }

    fn holders(&mut self, ino: u64, fits: impl Fn(&OpenFile) -> bool) -> Vec<u32> {
        let files = self.files();
        pids_of(files.at(files.by_ino.get(&ino)).filter(|file| fits(file)))
    }

    /// Processes that have a pipe open for writing, or for reading.
    pub fn pipe_ends(&mut self, ino: u64, writers: bool) -> Vec<u32> {
        self.holders(ino, |file| {
            let access = file.flags as i32 & libc::O_ACCMODE;
            let fits = if writers {
                access != libc::O_RDONLY
            } else {
                access != libc::O_WRONLY
            };
            file.kind == FileKind::Pipe && fits
        })
    }

    /// Processes that have the other end of a socket open.
    pub fn socket_peers(&mut self, socket: &OpenFile) -> Vec<u32> {
        match &socket.kind {
            FileKind::Unix { peer, .. } if *peer != 0 => self.holders(*peer, |_| true),
            FileKind::Inet { net, own, peer, .. } => {
                let other = (*net, *peer, *own);
                let files = self.files();
                pids_of(files.at(files.by_address.get(&other)))
            }
            _ => Vec::new(),
        }
    }

    /// Who serves a FUSE file system, by its device.
    pub fn fuse_servers(&mut self, device: u32) -> Vec<u32> {
        let served = FileKind::Fuse { device };
        let files = self.files().list.iter();
        pids_of(files.filter(|file| file.kind == served && device != 0))
    }

    /// The thread that a program calls `number`, in a process or, with `None`, anywhere
    /// that shares memory of that inode.
    pub fn thread_called(&mut self, number: u32, pid: u32, shared: Option<u64>) -> Option<u32> {
        if number == 0 {
            return None;
        }
        let fits = |task: &Task| match shared {
            None => task.pid == pid,
            Some(inode) => {
                task.pid == pid
                    || proc::mappings(task.pid)
                        .iter()
                        .any(|map| map.shared && map.inode == inode)
            }
        };
        let here = self.task(number).filter(|task| fits(task));
        if let Some(task) = here {
            return (!matches!(task.state, State::Zombie | State::Dead)).then_some(number);
        }
        // In a PID namespace of its own it has another number there.
        if shared.is_some() {
            return None;
        }
        if !self.own_numbers.contains_key(&pid) {
            let mut numbers = HashMap::new();
            if own_number(pid).is_some_and(|own| own != pid) {
                for tid in self.threads(pid) {
                    numbers.extend(own_number(tid).map(|own| (own, tid)));
                }
            }
            self.own_numbers.insert(pid, numbers);
        }
        self.own_numbers[&pid].get(&number).copied()
    }
}

fn own_number(tid: u32) -> Option<u32> {
    let status = proc::read(&format!("/proc/{tid}/status"))?;
    proc::field(&status, "NSpid")?
        .split_ascii_whitespace()
        .next_back()?
        .parse()
        .ok()
}

/// Without the kernel's help: pipes of those processes that may be looked into.
fn pipes_of_proc() -> Vec<OpenFile> {
    let mut found = Vec::new();
    for pid in proc::numbers_in("/proc") {
        for fd in proc::numbers_in(&format!("/proc/{pid}/fd")) {
            let Some(link) = proc::descriptor(pid, fd) else {
                continue;
            };
            let (ino, kind) = if let Some(ino) = proc::bracketed(&link, "pipe") {
                (ino, FileKind::Pipe)
            } else if let Some(ino) = proc::bracketed(&link, "socket") {
                (ino, FileKind::Socket)
            } else {
                continue;
            };
            let flags = proc::fdinfo(pid, fd)
                .and_then(|text| u32::from_str_radix(proc::field(&text, "flags")?, 8).ok())
                .unwrap_or(0);
            found.push(OpenFile {
                pid,
                tid: pid,
                fd,
                ino,
                flags,
                kind,
            });
        }
    }
    found
}

/// A file system as a process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub id: u32,
    /// As the kernel has it.
    pub device: u32,
    pub point: String,
    pub kind: String,
    pub source: String,
}

/// `\040` and the like in mountinfo.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes
            .get(at + 1..at + 4)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (bytes[at], octal) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let words: Vec<&str> = before.split(' ').collect();
    let (major, minor) = words.get(2)?.split_once(':')?;
    let mut after = after.split(' ');
    Some(Mount {
        id: words.first()?.parse().ok()?,
        device: (major.parse::<u32>().ok()? << 20) | minor.parse::<u32>().ok()?,
        point: unescaped(words.get(4)?),
        kind: after.next()?.to_owned(),
        source: unescaped(after.next().unwrap_or_default()),
    })
}

pub(crate) fn mounts(pid: u32) -> Vec<Mount> {
    proc::read(&format!("/proc/{pid}/mountinfo"))
        .unwrap_or_default()
        .lines()
        .filter_map(mount)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let line = r"36 35 0:45 / /mnt/a\040b rw,noatime shared:1 - fuse.sshfs host:/x rw";
        let mount = mount(line).unwrap();
        assert_eq!((mount.id, mount.device), (36, 45));
        assert_eq!(mount.point, "/mnt/a b");
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_str()),
            ("fuse.sshfs", "host:/x")
        );
        assert_eq!(unescaped(r"\134\x"), r"\\x");
        assert!(super::mount("1 2 3").is_none());
    }
}
