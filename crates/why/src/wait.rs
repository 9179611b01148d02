// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does one thread wait for, and who could end that?

use std::collections::HashMap;
use std::time::Duration;

use debox_labels::Kind;
use debox_output::{printable, printable_within};
use debox_symbol::stack_label;

use crate::call::{self, Call, Limit};
use crate::file_lock::{self, FileLock, Wanted};
use crate::futex::{self, Lock, Waited};
use crate::kernel::{FileKind, OpenFile, address_text, own_tid};
use crate::machine::{Machine, Mount, mounts};
use crate::proc;
use crate::task::{LockKind, State, Task};
use crate::user_stack::{Place, UserStacks};

/// Descriptors of a poll that are looked at.
const POLLED_MAX: usize = 1024;
const SHOWN_MAX: usize = 120;
/// Of which more is told.
const LISTED_MAX: usize = 8;

/// Who could end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum On {
    Thread(u32),
    /// Any thread of it.
    Process(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Waits,
    Sleeps,
    Stopped,
    Runs,
    Queued,
    /// By debox itself, which looked.
    Displaced,
    Ended,
}

/// As in "waits `text` `join` A and B `after`".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub verb: Verb,
    pub text: String,
    pub join: &'static str,
    pub after: &'static str,
    /// What the others are to it.
    pub relation: &'static str,
    pub on: Vec<On>,
    /// Nobody else can end it, only these.
    pub only_they: bool,
    /// And one of them alone cannot.
    pub needs_all: bool,
    /// There is nothing to do, rather than somebody in the way.
    pub idle: bool,
    pub label: Option<String>,
    pub limit: Option<Limit>,
    pub notes: Vec<String>,
}

impl Wait {
    fn new(verb: Verb, text: impl Into<String>) -> Wait {
        Wait {
            verb,
            text: text.into(),
            join: "",
            after: "",
            relation: "",
            on: Vec::new(),
            only_they: false,
            needs_all: false,
            idle: false,
            label: None,
            limit: None,
            notes: Vec::new(),
        }
    }

    fn idle(mut self) -> Wait {
        self.idle = true;
        self
    }

    fn on(mut self, join: &'static str, relation: &'static str, on: Vec<On>) -> Wait {
        if !on.is_empty() {
            self.join = join;
            self.relation = relation;
        }
        self.on = on;
        self
    }

    fn only_they(mut self, only: bool) -> Wait {
        self.only_they = only && !self.on.is_empty();
        self
    }

    fn after(mut self, after: &'static str) -> Wait {
        self.after = after;
        self
    }

    fn note(mut self, note: impl Into<String>) -> Wait {
        self.notes.push(note.into());
        self
    }
}

fn processes(pids: &[u32]) -> Vec<On> {
    pids.iter().map(|pid| On::Process(*pid)).collect()
}

/// Everything that is asked about threads, each once.
pub(crate) struct Asker {
    pub machine: Machine,
    pub stacks: UserStacks,
    calls: HashMap<u32, Option<Call>>,
    places: HashMap<u32, Vec<Place>>,
    mounts: HashMap<u32, Vec<Mount>>,
    locks: Option<Vec<FileLock>>,
    lock_holders: Vec<(FileLock, Vec<u32>)>,
}

impl Asker {
    pub fn new(machine: Machine) -> Asker {
        Asker {
            machine,
            stacks: UserStacks::new(),
            calls: HashMap::new(),
            places: HashMap::new(),
            mounts: HashMap::new(),
            locks: None,
            lock_holders: Vec::new(),
        }
    }

    pub fn call(&mut self, task: &Task) -> Option<Call> {
        let machine = &mut self.machine;
        self.calls
            .entry(task.tid)
            .or_insert_with(|| call::call_of(task, |fd| machine.descriptor(task, fd)))
            .clone()
    }

    /// Its stack in the program.
    pub fn places(&mut self, task: &Task) -> &[Place] {
        if !self.places.contains_key(&task.tid) {
            let stands = !matches!(
                task.state,
                State::Running { .. } | State::Queued { .. } | State::Zombie | State::Dead
            );
            let walked = match task.registers {
                Some(registers) if stands && !task.compat => {
                    self.stacks.walk(task.pid, task.tid, &registers)
                }
                _ => Vec::new(),
            };
            self.places.insert(task.tid, walked);
        }
        &self.places[&task.tid]
    }

    /// The label by the rules, whether a rule gave it, and the function that decided to
    /// sleep.
    pub fn label(&self, task: &Task) -> Option<(String, bool, String)> {
        // The walk passes over the scheduler's own functions, and the kernel counts its
        // locks among them; the rules want to see that it waits for one.
        let lock = match task.lock.map(|lock| lock.kind) {
            Some(LockKind::Mutex) => Some("__mutex_lock"),
            Some(LockKind::Rwsem) => Some("rwsem_down_write_slowpath"),
            Some(LockKind::Semaphore) => Some("__down"),
            Some(LockKind::RtMutex) | None => None,
        };
        let walked = task.functions.iter().map(String::as_str);
        let names: Vec<&str> = lock.into_iter().chain(walked).collect();
        let (site, label, by_rule) = stack_label(&self.machine.rules, &names)?;
        // A function's name is cut for a record, and there is room for it here.
        let function = debox_labels::plain(names[site]);
        let label = match function.starts_with(&label) && !by_rule {
            true => function.to_owned(),
            false => label,
        };
        Some((label, by_rule, names[site].to_owned()))
    }

    /// What a thread waits for.
    pub fn wait(&mut self, tid: u32) -> Option<Wait> {
        self.machine.functions_name(tid);
        let task = self.machine.task(tid)?.clone();
        let label = self.label(&task).filter(|_| task.state.waits());
        let mut wait = self.unlabelled(&task);
        wait.label = label.map(|(label, _, _)| label);
        if wait.limit.is_none() && matches!(wait.verb, Verb::Waits | Verb::Sleeps) {
            wait.limit = self.call(&task).and_then(|call| call.limit);
        }
        Some(wait)
    }

    fn unlabelled(&mut self, task: &Task) -> Wait {
        match task.state {
            State::Running { cpu } => return Wait::new(Verb::Runs, format!("on CPU {cpu}")),
            State::Queued { cpu } => {
                let running = self.machine.running_on(cpu);
                if running == Some(own_tid()) {
                    let text = format!("debox itself had CPU {cpu} at this moment");
                    return Wait::new(Verb::Displaced, text);
                }
                return Wait::new(Verb::Queued, format!("CPU {cpu}")).on(
                    ": that CPU runs ",
                    "running",
                    running.map(On::Thread).into_iter().collect(),
                );
            }
            State::Stopped => {
                return Wait::new(Verb::Stopped, "by a signal")
                    .note(format!("kill -CONT {} lets it go on", task.pid));
            }
            State::Traced => {
                let on = match task.tracer {
                    0 => Vec::new(),
                    tracer => vec![On::Process(tracer)],
                };
                return Wait::new(Verb::Stopped, "by its tracer").on(" ", "tracer", on);
            }
            State::Zombie | State::Dead => {
                if task.tid == task.pid && !self.machine.threads(task.pid).is_empty() {
                    return Wait::new(Verb::Ended, ", and other threads of its process have not");
                }
                let on = match self.machine.leader(task.parent) {
                    Some(parent) if task.tid == task.pid => vec![On::Process(parent.pid)],
                    _ => Vec::new(),
                };
                let to_whom = " and waits to be waited for by its parent ";
                return Wait::new(Verb::Ended, "").on(to_whom, "parent", on);
            }
            State::Idle if task.kernel => {
                return Wait::new(Verb::Waits, "for work, as a kernel thread").idle();
            }
            // In its own function, and in nobody's that a rule knows.
            State::Asleep if task.kernel && self.label(task).is_none_or(|label| !label.1) => {
                return Wait::new(Verb::Waits, "for work, as a kernel thread").idle();
            }
            _ => {}
        }
        let call = self.call(task);
        let found = self
            .kernel_lock(task)
            .or_else(|| self.fuse(task, call.as_ref()))
            .or_else(|| self.by_call(task, call.as_ref()));
        found.unwrap_or_else(|| self.otherwise(task, call.as_ref()))
    }

    /// By label alone.
    fn otherwise(&mut self, task: &Task, call: Option<&Call>) -> Wait {
        let label = self.label(task);
        let meaning = label
            .as_ref()
            .and_then(|(label, _, _)| self.machine.rules.meanings().get(label));
        let mut text = match (call, task.kernel) {
            (Some(call), _) => {
                let mut text = format!("in {}", call.name);
                if let Some(object) = &call.object {
                    text += &format!(" of {}", printable_within(object, SHOWN_MAX));
                }
                text
            }
            (None, true) => "in the kernel".to_owned(),
            (None, false) => "outside of calls (a page fault, or on its way back)".to_owned(),
        };
        let idle = meaning.is_some_and(|meaning| matches!(meaning.kind, Kind::Idle | Kind::Input));
        if let Some(meaning) = meaning {
            text += &format!(" for {}", meaning.what);
        } else if let Some((_, _, function)) = &label {
            text += &format!(" ({function})");
        }
        let mut wait = Wait::new(Verb::Waits, text);
        wait.idle = idle || (task.kernel && label.is_none());
        wait
    }

    fn kernel_lock(&mut self, task: &Task) -> Option<Wait> {
        let lock = task.lock?;
        let on: Vec<On> = lock.owner.map(On::Thread).into_iter().collect();
        let label = self
            .label(task)
            .map(|(label, ..)| label)
            .unwrap_or_default();
        let (what, only) = match lock.kind {
            // The futex says it better, and its owner is the same.
            LockKind::RtMutex if task.call() == Some(libc::SYS_futex as i32) => {
                ("a priority-inheritance mutex".to_owned(), true)
            }
            LockKind::RtMutex => (format!("an rt_mutex of the kernel ({label})"), true),
            LockKind::Mutex => (format!("a mutex of the kernel ({label})"), true),
            LockKind::Semaphore => (format!("a semaphore of the kernel ({label})"), false),
            LockKind::Rwsem if lock.readers => (
                format!("a read-write semaphore of the kernel ({label})"),
                false,
            ),
            LockKind::Rwsem => (
                format!("a read-write semaphore of the kernel ({label})"),
                true,
            ),
        };
        let join = if lock.readers {
            " held for reading, last by "
        } else {
            " held by "
        };
        let call = self.call(task).map(|call| format!(", in {}", call.name));
        let mut wait = Wait::new(Verb::Waits, format!("for {what}")).on(join, "holder", on);
        wait.only_they = only && !wait.on.is_empty();
        if wait.on.is_empty() {
            wait.text += &call.unwrap_or_default();
            wait = wait.note("who holds it is not recorded in it at this moment");
        }
        Some(wait)
    }

    fn mounts(&mut self, pid: u32) -> &[Mount] {
        self.mounts.entry(pid).or_insert_with(|| mounts(pid))
    }

    /// The file system that a call works on, without asking it anything.
    fn mount_of(&mut self, task: &Task, call: &Call) -> Option<Mount> {
        let by_id = call.fd.and_then(|fd| {
            let info = proc::fdinfo(task.tid, fd)?;
            proc::field(&info, "mnt_id")?.parse::<u32>().ok()
        });
        let mounts = self.mounts(task.pid);
        if let Some(id) = by_id {
            return mounts.iter().find(|mount| mount.id == id).cloned();
        }
        let path = call.object.as_deref()?;
        mounts
            .iter()
            .filter(|mount| {
                let point = mount.point.trim_end_matches('/');
                path.strip_prefix(point)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
            // The later of two at one place lies over the earlier.
            .max_by_key(|mount| mount.point.len())
            .cloned()
    }

    fn fuse(&mut self, task: &Task, call: Option<&Call>) -> Option<Wait> {
        let waits = task.is_in("request_wait_answer")
            || task.is_in("fuse_get_req")
            || task.is_in_any("__fuse_simple_request")
            || task.is_in_any("fuse_simple_request");
        if !waits {
            return None;
        }
        let all: Vec<Mount> = self
            .mounts(task.pid)
            .iter()
            .filter(|mount| mount.kind == "fuse" || mount.kind.starts_with("fuse"))
            .filter(|mount| mount.kind != "fusectl")
            .cloned()
            .collect();
        let mount = call
            .and_then(|call| self.mount_of(task, call))
            .filter(|mount| all.contains(mount))
            .or_else(|| all.first().filter(|_| all.len() == 1).cloned());
        let Some(mount) = mount else {
            return Some(
                Wait::new(Verb::Waits, "for an answer of a FUSE file system")
                    .note("its path does not say which one"),
            );
        };
        let servers = self.machine.fuse_servers(mount.device);
        let text = format!(
            "for an answer of the FUSE file system at {} from",
            printable_within(&mount.point, SHOWN_MAX)
        );
        let mut wait = if servers.is_empty() {
            Wait::new(Verb::Waits, text.trim_end_matches(" from")).note(
                "the process that serves it is not to be seen from here (other namespaces, \
                 or no privileges)",
            )
        } else {
            Wait::new(Verb::Waits, text).on(" ", "server", processes(&servers))
        };
        wait.only_they = self.machine.sees_all && !wait.on.is_empty();
        Some(wait)
    }

    fn by_call(&mut self, task: &Task, call: Option<&Call>) -> Option<Wait> {
        let call = call?;
        match call.name.as_str() {
            "futex" | "futex_wait" | "futex_waitv" => self.futex(task, call),
            "flock" | "fcntl" | "fcntl64" | "open" | "openat" | "openat2" | "creat"
            | "truncate"
                if in_file_lock(task) =>
            {
                self.file_lock(task, call)
            }
            "open" | "openat" | "openat2" if task.is_in("fifo_open") => self.fifo_open(call),
            "wait4" | "waitid" => self.child(task, call),
            "vfork" | "clone" | "clone3" => self.vfork(task),
            "nanosleep" | "clock_nanosleep" => {
                let mut wait = Wait::new(Verb::Sleeps, format!("in {}", call.name));
                wait.limit = call.limit;
                wait.idle = true;
                wait.notes = self.locked_by_others(task.pid);
                Some(wait)
            }
            "pause" | "rt_sigsuspend" | "rt_sigtimedwait" | "sigreturn" => {
                Some(Wait::new(Verb::Waits, format!("for a signal ({})", call.name)).idle())
            }
            "poll" | "ppoll" | "select" | "pselect6" | "epoll_wait" | "epoll_pwait"
            | "epoll_pwait2" => Some(self.polled(task, call)),
            "read" | "readv" | "pread64" | "preadv" | "recvfrom" | "recvmsg" | "recvmmsg"
            | "accept" | "accept4" => self.transfer(task, call, false),
            "write" | "writev" | "pwrite64" | "sendto" | "sendmsg" | "sendmmsg" | "sendfile"
            | "connect" => self.transfer(task, call, true),
            "splice" | "tee" => self.transfer(task, call, task.is_in_any("wait_for_space")),
            _ => None,
        }
    }

    /// The end of a pipe or socket that somebody else has.
    fn transfer(&mut self, task: &Task, call: &Call, out: bool) -> Option<Wait> {
        let fd = call.fd?;
        let file = self.machine.file(task.pid, fd)?;
        match &file.kind {
            FileKind::Pipe => Some(self.pipe(task, call, &file, out)),
            FileKind::Fuse { .. } => Some(
                Wait::new(
                    Verb::Waits,
                    "for a request to the FUSE file system that it serves",
                )
                .idle(),
            ),
            _ => Some(self.socket(task, call, &file, out)),
        }
    }

    fn pipe(&mut self, task: &Task, call: &Call, file: &OpenFile, out: bool) -> Wait {
        let all = self.machine.pipe_ends(file.ino, !out);
        let others: Vec<u32> = all.iter().copied().filter(|pid| *pid != task.pid).collect();
        let name = match call.object.as_deref() {
            Some(path) if path.starts_with('/') => {
                format!("the named pipe {}", printable_within(path, SHOWN_MAX))
            }
            _ => "a pipe".to_owned(),
        };
        let (text, join, relation) = match out {
            true => (
                format!("for room in {name}"),
                ", which is full and is read by ",
                "reader",
            ),
            false => (
                format!("for data in {name}"),
                " that is written by ",
                "writer",
            ),
        };
        let text = match (out, others.is_empty()) {
            (true, true) => format!("{text}, which is full"),
            _ => text,
        };
        let mut wait = Wait::new(Verb::Waits, text).on(join, relation, processes(&others));
        if others.is_empty() {
            if all.is_empty() {
                wait = wait.note("no process that can be seen from here has its other end open");
            } else {
                wait = wait
                    .on(
                        ", which nobody but itself has open: ",
                        relation,
                        processes(&all),
                    )
                    .only_they(self.machine.sees_all);
                return wait;
            }
        }
        wait.only_they = self.machine.sees_all && !wait.on.is_empty() && all == others;
        wait.idle = !out;
        wait
    }

    fn socket(&mut self, task: &Task, call: &Call, file: &OpenFile, out: bool) -> Wait {
        if call.name == "connect" {
            return Wait::new(Verb::Waits, "for its connection to be accepted (connect)");
        }
        let what = if out { "for room to send" } else { "for data" };
        let (peer, place) = self.peer_of(task.pid, file);
        match place {
            Peer::Open(what) => Wait::new(Verb::Waits, format!("for {what}")).idle(),
            Peer::Here(place) => {
                let join = if out { " to " } else { " from " };
                let mut wait = Wait::new(Verb::Waits, what).on(join, "peer", processes(&peer));
                wait.after = place;
                wait.only_they = self.machine.sees_all && !peer.contains(&task.pid);
                wait.idle = !out;
                wait
            }
            Peer::Away(address) => {
                let way = if out { "to" } else { "from" };
                let mut wait = Wait::new(
                    Verb::Waits,
                    format!("{what} {way} {address} over the network"),
                );
                wait.idle = !out;
                wait
            }
            Peer::Nobody(why) => {
                let mut wait = Wait::new(Verb::Waits, format!("{what} on a socket"));
                wait.idle = !out;
                wait.note(why)
            }
        }
    }

    fn peer_of(&mut self, pid: u32, file: &OpenFile) -> (Vec<u32>, Peer) {
        let peers = self.machine.socket_peers(file);
        let others: Vec<u32> = peers.iter().copied().filter(|peer| *peer != pid).collect();
        let shown = if others.is_empty() { peers } else { others };
        let place = match &file.kind {
            FileKind::Inet {
                listens: true, own, ..
            } => Peer::Open(format!("a connection to {}", address_text(*own))),
            FileKind::Inet { .. } if !shown.is_empty() => Peer::Here(" on a local TCP connection"),
            FileKind::Inet { peer, stream, .. } if peer.1 != 0 => {
                if peer.0.is_loopback() {
                    Peer::Nobody(format!(
                        "its other end is {} of this machine, which no process that can be \
                         seen from here has open",
                        address_text(*peer)
                    ))
                } else {
                    let _ = stream;
                    Peer::Away(address_text(*peer))
                }
            }
            FileKind::Inet { own, stream, .. } => match stream {
                true => Peer::Nobody("it is not connected".into()),
                false => Peer::Open(format!("a datagram on {}", address_text(*own))),
            },
            FileKind::Unix { .. } if !shown.is_empty() => Peer::Here(" on a Unix socket"),
            FileKind::Unix { listens: true, .. } => {
                Peer::Open("a connection on a Unix socket".into())
            }
            FileKind::Unix { .. } => Peer::Open("data on a Unix socket".into()),
            _ => Peer::Nobody("which socket it is cannot be seen from here".into()),
        };
        (shown, place)
    }

    /// What poll, select and epoll wait at.
    fn polled(&mut self, task: &Task, call: &Call) -> Wait {
        let fds = polled_descriptors(task, call);
        let mut on: Vec<On> = Vec::new();
        let mut listed: Vec<String> = Vec::new();
        let mut open = None;
        let mut known = true;
        for fd in fds.iter().take(LISTED_MAX) {
            let Some(file) = self.machine.file(task.pid, *fd) else {
                known = false;
                let link = proc::descriptor(task.tid, *fd).unwrap_or_else(|| "closed".into());
                listed.push(format!("{fd} {}", printable_within(&link, SHOWN_MAX)));
                continue;
            };
            match &file.kind {
                FileKind::Pipe => {
                    let mut ends = self.machine.pipe_ends(file.ino, true);
                    ends.retain(|pid| *pid != task.pid);
                    known &= !ends.is_empty();
                    on.extend(processes(&ends));
                    listed.push(match ends[..] {
                        [pid] => format!("{fd} a pipe of process {pid}"),
                        _ => format!("{fd} a pipe"),
                    });
                }
                _ => {
                    let (peers, place) = self.peer_of(task.pid, &file);
                    match place {
                        Peer::Here(place) => {
                            on.extend(
                                peers
                                    .iter()
                                    .filter(|p| **p != task.pid)
                                    .map(|p| On::Process(*p)),
                            );
                            listed.push(format!("{fd}{}", place.trim_start_matches(" on")));
                        }
                        Peer::Away(address) => {
                            known = false;
                            listed.push(format!("{fd} connected to {address}"));
                        }
                        Peer::Open(what) => {
                            known = false;
                            listed.push(format!("{fd} for {what}"));
                            open = Some(what);
                        }
                        Peer::Nobody(_) => {
                            known = false;
                            listed.push(format!("{fd} a socket"));
                        }
                    }
                }
            }
        }
        on.sort_unstable();
        on.dedup();
        let name = &call.name;
        let mut wait = match fds.len() {
            0 => Wait::new(Verb::Waits, format!("in {name} for nothing but its time")),
            1 => Wait::new(
                Verb::Waits,
                match open {
                    Some(what) => format!("for {what} ({name})"),
                    None => format!("for input ({name})"),
                },
            ),
            n => Wait::new(
                Verb::Waits,
                format!("for input on {n} descriptors ({name})"),
            ),
        };
        // With many it is a server between requests, and none of them is "the" one. Where
        // something else could end it as well (a signal, a timer, somebody elsewhere),
        // whoever holds the other end of one of them need not be waited for at all.
        if known && fds.len() <= 4 && on.len() <= 2 {
            wait = wait.on(" from ", "peer", on);
            wait.only_they = self.machine.sees_all && !wait.on.is_empty();
        }
        wait.idle = true;
        if !listed.is_empty() {
            let more = fds.len() - listed.len();
            let mut text = format!("waits at {}", listed.join(", "));
            if more > 0 {
                text += &format!(" and {more} more");
            }
            wait = wait.note(text);
        }
        // Who starts others waits so for the end of one of them as well.
        let children = self.machine.children(task.pid);
        if wait.on.is_empty() && !children.is_empty() {
            let mut names: Vec<String> = children
                .iter()
                .take(LISTED_MAX)
                .map(|child| format!("{} ({})", printable(&child.comm), child.pid))
                .collect();
            if children.len() > names.len() {
                names.push(format!("{} more", children.len() - names.len()));
            }
            wait = wait.note(format!("its children: {}", names.join(", ")));
        }
        wait
    }

    fn fifo_open(&mut self, call: &Call) -> Option<Wait> {
        let path = call.object.as_deref().unwrap_or("a named pipe");
        Some(Wait::new(
            Verb::Waits,
            format!(
                "for somebody to open the other end of the named pipe {}",
                printable_within(path, SHOWN_MAX)
            ),
        ))
    }

    fn child(&mut self, task: &Task, call: &Call) -> Option<Wait> {
        let args = task.registers?.args;
        let which = match call.name.as_str() {
            "wait4" => (args[0] as i32 > 0).then_some(args[0] as u32),
            _ => (args[0] == 1).then_some(args[1] as u32),
        };
        let mut children: Vec<u32> = self
            .machine
            .children(task.pid)
            .iter()
            .map(|child| child.pid)
            .collect();
        if let Some(which) = which
            && children.contains(&which)
        {
            children = vec![which];
        }
        let on = processes(&children);
        Some(match children.len() {
            0 => Wait::new(Verb::Waits, format!("for a child ({})", call.name))
                .note("no child of it is to be seen from here"),
            1 => Wait::new(Verb::Waits, "for its child")
                .on(" ", "child", on)
                .after(" to end")
                .only_they(self.machine.sees_all),
            n => Wait::new(
                Verb::Waits,
                format!("for the first of its {n} children to end:"),
            )
            .on(" ", "child", on)
            .only_they(self.machine.sees_all),
        })
    }

    fn vfork(&mut self, task: &Task) -> Option<Wait> {
        if !task.is_in("wait_for_vfork_done") && !task.is_in_any("kernel_clone") {
            return None;
        }
        let on: Vec<u32> = self
            .machine
            .children(task.pid)
            .iter()
            .filter(|child| task.memory != 0 && child.memory == task.memory)
            .map(|child| child.pid)
            .collect();
        Some(
            Wait::new(Verb::Waits, "for its vfork child")
                .on(" ", "child", processes(&on))
                .after(" to call exec or to end")
                .only_they(self.machine.sees_all && on.len() == 1),
        )
    }

    /// Of flock, fcntl, and calls that break a lease.
    fn lock_wanted(&mut self, task: &Task, call: &Call) -> Wanted {
        const F_OFD_SETLKW: u64 = 38;
        let args = task.registers.map_or([0; 6], |registers| registers.args);
        let kind = match call.name.as_str() {
            "flock" => "FLOCK",
            "fcntl" | "fcntl64" if args[1] == F_OFD_SETLKW => "OFDLCK",
            "fcntl" | "fcntl64" => "POSIX",
            _ => "LEASE",
        };
        let mut wanted = Wanted {
            pid: task.pid,
            kind,
            ..Wanted::default()
        };
        if kind == "LEASE" {
            return wanted;
        }
        let inode = call.fd.and_then(|fd| {
            let info = proc::fdinfo(task.tid, fd)?;
            proc::field(&info, "ino")?.parse::<u64>().ok()
        });
        if let (Some(inode), Some(mount)) = (inode, self.mount_of(task, call)) {
            wanted.file = Some((mount.device, inode));
        }
        if kind != "FLOCK" && !task.compat {
            wanted.range = call::lock_range(task.tid, args[2]);
        }
        wanted
    }

    fn lock_holders(&mut self, held: &FileLock) -> Vec<u32> {
        // A flock belongs to what open() made, which its taker may have handed on.
        let taker = u32::try_from(held.pid).ok().filter(|pid| *pid != 0);
        if let Some(pid) = taker.filter(|pid| self.machine.leader(*pid).is_some()) {
            return vec![pid];
        }
        if let Some((_, holders)) = self.lock_holders.iter().find(|(lock, _)| lock == held) {
            return holders.clone();
        }
        let holders = file_lock::holders(held);
        self.lock_holders.push((held.clone(), holders.clone()));
        holders
    }

    fn file_lock(&mut self, task: &Task, call: &Call) -> Option<Wait> {
        let wanted = self.lock_wanted(task, call);
        let locks = self.locks.get_or_insert_with(file_lock::all);
        let (own, held) = file_lock::waited_for(locks, &wanted)?;
        let lease = wanted.kind == "LEASE";
        let kind = match own.kind.as_str() {
            "FLOCK" => "flock",
            "POSIX" => "POSIX lock",
            "OFDLCK" => "open-file-description lock",
            _ => "file lock",
        };
        let file = call.object.as_deref().map_or_else(String::new, |path| {
            format!(" on {}", printable_within(path, SHOWN_MAX))
        });
        let access = if own.write {
            "an exclusive"
        } else {
            "a shared"
        };
        let mut text = match lease {
            true => format!("for a lease{file} to be given up"),
            false => format!("for {access} {kind}{file}"),
        };
        if own.range != "0 EOF" {
            text += &format!(" (bytes {})", own.range.replace(' ', " to "));
        }
        let mut holders: Vec<u32> = Vec::new();
        // Of one lock that several have open any of them may let go.
        let mut needs_all = true;
        let mut notes: Vec<String> = Vec::new();
        for lock in &held {
            let of_this = self.lock_holders(lock);
            needs_all &= of_this.len() == 1;
            if of_this.is_empty() {
                notes.push(match lock.pid {
                    pid if pid > 0 => {
                        format!("process {pid} took it and is not to be seen from here")
                    }
                    _ => "who holds it is not to be seen from here".into(),
                });
            }
            for pid in of_this {
                if !holders.contains(&pid) {
                    holders.push(pid);
                }
            }
        }
        notes.dedup();
        let join = if lease { " by " } else { " held by " };
        let mut wait = Wait::new(Verb::Waits, text).on(join, "holder", processes(&holders));
        // One who holds it and is not seen may let go and leave the others to hold it.
        wait = wait.only_they(needs_all || held.len() == 1);
        wait.needs_all = needs_all && holders.len() > 1;
        wait.notes = notes;
        if lease {
            // The kernel takes it away then.
            let seconds = proc::read("/proc/sys/fs/lease-break-time");
            let seconds = seconds.and_then(|text| text.trim().parse::<u64>().ok());
            wait.limit = seconds
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Limit::After(Duration::from_secs(seconds)));
        }
        Some(wait)
    }

    /// Who wants a lock without waiting for it (SQLite does) sleeps between its tries: it has
    /// the file open, and another process has it locked.
    fn locked_by_others(&mut self, pid: u32) -> Vec<String> {
        let locks = self.locks.get_or_insert_with(file_lock::all);
        let mut held: Vec<FileLock> = locks
            .iter()
            .filter(|lock| lock.write && lock.waits_for.is_none() && lock.pid != i64::from(pid))
            .filter(|lock| matches!(lock.kind.as_str(), "FLOCK" | "POSIX"))
            .cloned()
            .collect();
        if held.is_empty() {
            return Vec::new();
        }
        let mut notes = Vec::new();
        for fd in proc::numbers_in(&format!("/proc/{pid}/fd"))
            .into_iter()
            .take(POLLED_MAX)
        {
            let info = proc::fdinfo(pid, fd).unwrap_or_default();
            let number = |name| proc::field(&info, name)?.parse::<u64>().ok();
            let (Some(inode), Some(id)) = (number("ino"), number("mnt_id")) else {
                continue;
            };
            let mounts = self.mounts(pid);
            let Some(mount) = mounts.iter().find(|mount| u64::from(mount.id) == id) else {
                continue;
            };
            let device = mount.device;
            let is_it = |lock: &FileLock| lock.inode == inode && lock.device == device;
            let Some(lock) = held.iter().find(|lock| is_it(lock)).cloned() else {
                continue;
            };
            // Told once, with however many descriptors and locks.
            held.retain(|lock| !is_it(lock));
            let holder = u32::try_from(lock.pid).ok();
            let Some(holder) = holder.and_then(|pid| self.machine.leader(pid)) else {
                continue;
            };
            notes.push(format!(
                "{} is open here and locked by {} ({}): it may be trying again and again",
                printable_within(&proc::descriptor(pid, fd).unwrap_or_default(), SHOWN_MAX),
                printable(&holder.comm),
                holder.pid,
            ));
            if notes.len() == LISTED_MAX {
                break;
            }
        }
        notes
    }

    fn futex(&mut self, task: &Task, call: &Call) -> Option<Wait> {
        let args = task.registers?.args;
        if call.name != "futex" {
            return Some(Wait::new(Verb::Waits, "to be woken (futex)").idle());
        }
        let address = args[0];
        let before = address.wrapping_sub(4 * futex::BEFORE as u64);
        let waited = Waited {
            operation: args[1] as u32,
            value: args[2] as u32,
            before: proc::memory_words(task.tid, before),
            from: proc::memory_words(task.tid, address),
            word: proc::memory_words::<1>(task.tid, address).map(|words| words[0]),
        };
        if waited.word.is_none() {
            return Some(
                Wait::new(Verb::Waits, "to be woken (futex)")
                    .note("its memory may not be read, so who holds the lock is not known"),
            );
        }
        let callers: Vec<String> = self
            .places(task)
            .iter()
            .map(|place| place.function.clone())
            .collect();
        let lock = futex::lock(&waited, &callers);
        // Memory of several processes: a file's, or without a name.
        let shared = if waited.is_private() {
            None
        } else {
            self.stacks
                .mappings(task.pid)
                .iter()
                .find(|map| map.shared && (map.start..map.end).contains(&address))
                .map(|map| (map.inode, map.path.clone()))
        };
        let inode = shared.as_ref().map(|(inode, _)| *inode);
        let place = match &shared {
            Some((_, path)) if path.starts_with("/dev/zero") => " in shared memory".to_owned(),
            Some((_, path)) => {
                format!(" in shared memory ({})", printable_within(path, SHOWN_MAX))
            }
            None => String::new(),
        };
        let in_lock = callers
            .iter()
            .take(6)
            .any(|name| name.contains("mutex") || name.contains("rwlock"));
        let held = |asker: &mut Asker, what: &str, owner: u32| {
            let text = format!("for {what}{place}");
            match asker.machine.thread_called(owner, task.pid, inode) {
                Some(tid) => Wait::new(Verb::Waits, text)
                    .on(" held by ", "holder", vec![On::Thread(tid)])
                    .only_they(true),
                None if in_lock => Wait::new(
                    Verb::Waits,
                    format!("{text} that thread {owner} holds, which is not there (any more)"),
                ),
                None => {
                    Wait::new(Verb::Waits, format!("to be woken (futex){place}")).note(format!(
                        "its memory looks like a lock of thread {owner}, which is not there: \
                         either that one ended without letting go, or it is no lock"
                    ))
                }
            }
        };
        Some(match lock {
            Some(Lock::Mutex { owner }) => held(self, "a mutex", owner),
            Some(Lock::PiMutex { owner }) => held(self, "a priority-inheritance mutex", owner),
            Some(Lock::Written { owner }) => held(self, "a read-write lock (for writing)", owner),
            Some(Lock::Read) => Wait::new(
                Verb::Waits,
                format!("for a read-write lock{place} that is held for reading"),
            )
            .note("who reads is not recorded in it"),
            Some(Lock::Thread { tid }) => match self.machine.thread_called(tid, task.pid, None) {
                Some(tid) => Wait::new(Verb::Waits, "for its thread")
                    .on(" ", "thread", vec![On::Thread(tid)])
                    .after(" to end")
                    .only_they(true),
                None => Wait::new(Verb::Waits, "to be woken (futex)"),
            },
            Some(Lock::Condition) => {
                Wait::new(Verb::Waits, format!("for a condition variable{place}")).idle()
            }
            Some(Lock::Semaphore) => {
                Wait::new(Verb::Waits, format!("for a semaphore{place}")).idle()
            }
            Some(Lock::Barrier) => {
                Wait::new(Verb::Waits, format!("for others at a barrier{place}"))
            }
            None => Wait::new(Verb::Waits, format!("to be woken (futex){place}")).idle(),
        })
    }
}

enum Peer {
    Here(&'static str),
    Away(String),
    /// Of no one peer: what anybody may send to it.
    Open(String),
    Nobody(String),
}

fn in_file_lock(task: &Task) -> bool {
    [
        "flock_lock_inode_wait",
        "posix_lock_inode_wait",
        "locks_lock_inode_wait",
        "do_lock_file_wait",
        "fcntl_setlk",
        "__break_lease",
        "__do_sys_flock",
        "__x64_sys_flock",
        "do_flock",
    ]
    .iter()
    .any(|name| task.is_in(name))
}

/// The descriptors in what was passed to the call.
fn polled_descriptors(task: &Task, call: &Call) -> Vec<u32> {
    let Some(registers) = task.registers else {
        return Vec::new();
    };
    let args = registers.args;
    match call.name.as_str() {
        "poll" | "ppoll" => {
            let count = usize::try_from(args[1]).unwrap_or(0).min(POLLED_MAX);
            let mut bytes = vec![0u8; count * 8];
            let got = proc::memory(task.tid, args[0], &mut bytes);
            bytes[..got]
                .chunks_exact(8)
                .filter_map(|entry| {
                    let fd = i32::from_ne_bytes(entry[..4].try_into().ok()?);
                    u32::try_from(fd).ok()
                })
                .collect()
        }
        "select" | "pselect6" => {
            let count = usize::try_from(args[0]).unwrap_or(0).min(POLLED_MAX);
            let mut fds = Vec::new();
            for set in &args[1..4] {
                let mut bytes = vec![0u8; count.div_ceil(64) * 8];
                if *set == 0 || proc::memory(task.tid, *set, &mut bytes) != bytes.len() {
                    continue;
                }
                fds.extend((0..count).filter(|fd| bytes[fd / 8] & (1 << (fd % 8)) != 0));
            }
            fds.sort_unstable();
            fds.dedup();
            fds.into_iter().map(|fd| fd as u32).collect()
        }
        _ => {
            let info = call.fd.and_then(|fd| proc::fdinfo(task.tid, fd));
            info.unwrap_or_default()
                .lines()
                .filter_map(|line| {
                    line.strip_prefix("tfd:")?
                        .split_ascii_whitespace()
                        .next()?
                        .parse()
                        .ok()
                })
                .take(POLLED_MAX)
                .collect()
        }
    }
}

/// How much longer it lasts at the most.
pub(crate) fn left(limit: Limit, asleep_ns: Option<u64>) -> Option<Duration> {
    match limit {
        Limit::In(left) => Some(left),
        Limit::After(length) => Some(length.saturating_sub(Duration::from_nanos(asleep_ns?))),
    }
}
